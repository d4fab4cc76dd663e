/* Level, edge, one-shot, changes and refusals: as the kernel, whichever way datagrams come. */
#include "backends.h"

static void level_triggered_event_repeats_until_read(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be);

	say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 7));
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_make_datagram_arrive(be, fd);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 100);
	backend_recv(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_recv(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(level_triggered_event_repeats_until_read)

static void edge_is_told_once_for_each_arrival(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be);

	backend_make_datagram_arrive(be, fd);
	say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1ULL << 63));
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_make_datagram_arrive(be, fd); /* unread data, new edge */
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_make_datagram_arrive(be, fd);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 2)); /* tells what is there */
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(edge_is_told_once_for_each_arrival)

static void an_edge_of_what_was_read_meanwhile_is_none(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be);

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1);
	backend_make_datagram_arrive(be, fd);
	backend_recv(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(an_edge_of_what_was_read_meanwhile_is_none)

static void one_shot_is_told_once_until_it_is_changed(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be);

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 1);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 2));
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd, EPOLLIN, 3));
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(one_shot_is_told_once_until_it_is_changed)

static void only_what_was_asked_for_is_told(struct backend *be)
{
	static const uint32_t requests[] = {EPOLLIN,
	                                    EPOLLOUT,
	                                    EPOLLIN | EPOLLOUT,
	                                    EPOLLRDNORM,
	                                    EPOLLWRNORM | EPOLLWRBAND,
	                                    EPOLLPRI,
	                                    0,
	                                    EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLMSG | EPOLLRDBAND};
	int ep = epoll_create1(0), fd = backend_socket(be);

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, 0, 0);
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd, requests[i], i));
		backends_say_epoll_wait(be, ep, 8, 0);
		backend_make_datagram_arrive(be, fd);
		backends_say_epoll_wait(be, ep, 8, 0);
		backend_recv(be, fd);
		backends_say_epoll_wait(be, ep, 8, 0);
		say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd, requests[i] | EPOLLET, i));
		backends_say_epoll_wait(be, ep, 8, 0);
		backends_say_epoll_wait(be, ep, 8, 0);
		backend_make_datagram_arrive(be, fd);
		backends_say_epoll_wait(be, ep, 8, 0);
		backends_say_epoll_wait(be, ep, 8, 0);
		backend_recv(be, fd);
	}
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(only_what_was_asked_for_is_told)

static void what_the_kernel_refuses_is_refused(struct backend *be)
{
	int ep = epoll_create1(0), other = epoll_create1(0), fd = backend_socket(be), fd2 = backend_socket(be),
	    pipes[2];
	int closed = backend_socket(be);
	FILE *file = tmpfile();

	backend_close(be, closed);
	assert_int_equal(pipe(pipes), 0);
	/* before the set has a member of ours, and after */
	for (int round = 0; round < 2; round++) {
		say(be, "MOD %d DEL %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd2, EPOLLIN, 0),
		    backend_epoll_ctl(be, ep, EPOLL_CTL_DEL, fd2, EPOLLIN, 0));
		say(be, "op %d %d\n", backend_epoll_ctl(be, ep, 4, fd, EPOLLIN, 0),
		    backend_epoll_ctl(be, ep, 0, fd, EPOLLIN, 0));
		say(be, "closed %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, closed, EPOLLIN, 0));
		say(be, "no set %d %d\n", backend_epoll_ctl(be, pipes[0], EPOLL_CTL_ADD, fd, EPOLLIN, 0),
		    backend_epoll_ctl(be, fd2, EPOLL_CTL_ADD, fd, EPOLLIN, 0));
		say(be, "no fd %d %d\n", backend_epoll_ctl(be, -1, EPOLL_CTL_ADD, fd, EPOLLIN, 0),
		    backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, -1, EPOLLIN, 0));
		say(be, "self %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, ep, EPOLLIN, 0));
		say(be, "file %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fileno(file), EPOLLIN, 0));
		say(be, "exclusive %d\n",
		    backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLPRI | EPOLLEXCLUSIVE, 0));
		say(be, "exclusive %d\n",
		    backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT | EPOLLEXCLUSIVE, 0));
		say(be, "exclusive set %d\n",
		    backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, other, EPOLLIN | EPOLLEXCLUSIVE, 0));
		say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE, 0));
		say(be, "again %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 0));
		say(be, "MOD of exclusive %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd, EPOLLIN, 0));
		say(be, "DEL %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_DEL, fd, 0, 0));
		say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 0));
		say(be, "MOD to exclusive %d\n",
		    backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLEXCLUSIVE, 0));
		say(be, "DEL %d %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_DEL, fd, 0, 0),
		    backend_epoll_ctl(be, ep, EPOLL_CTL_DEL, fd, 0, 0));
	}
	fclose(file);
	close(pipes[0]);
	close(pipes[1]);
	backend_close(be, fd);
	backend_close(be, fd2);
	backend_close(be, other);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(what_the_kernel_refuses_is_refused)

static void bad_arguments_of_a_wait(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be);
	struct epoll_event *bad = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), good;
	struct timespec odd = {0, 1000000000};

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 5);
	backend_make_datagram_arrive(be, fd);
	say(be, "max %d %d %d\n", backend_epoll_wait(be, ep, &good, 0, 0), backend_epoll_wait(be, ep, &good, -1, 0),
	    backend_epoll_wait(be, ep, &good, INT32_MAX, 0));
	say(be, "pointer %d\n", backend_epoll_wait(be, ep, bad, 8, 0));
	say(be, "and the event is still there: ");
	backends_say_epoll_wait(be, ep, 8, 0);
	if (be->kind == KERNEL) {
		say(be, "time %d", negative_errno_or_rc(epoll_pwait2(ep, &good, 1, &odd, NULL)));
		say(be, " mask %d\n", negative_errno_or_rc(epoll_pwait2(ep, &good, 1, NULL, (sigset_t *)8)));
		say(be, "event %d", negative_errno_or_rc(epoll_ctl(ep, EPOLL_CTL_MOD, fd, (struct epoll_event *)8)));
		say(be, " of none %d\n",
		    negative_errno_or_rc(epoll_ctl(ep, EPOLL_CTL_DEL, fd, (struct epoll_event *)8)));
	} else {
		struct vma_thread *self = vma_enter();
		struct epoll_set *set = epoll_set_find(ep);

		say(be, "time %d", vma_iomux_epoll_wait(&set->file, ep, &good, 1, &odd, NULL));
		say(be, " mask %d\n", vma_iomux_epoll_wait(&set->file, ep, &good, 1, NULL, (sigset_t *)8));
		say(be, "event %d", vma_iomux_epoll_ctl(ep, EPOLL_CTL_MOD, fd, (struct epoll_event *)8));
		say(be, " of none %d\n", vma_iomux_epoll_ctl(ep, EPOLL_CTL_DEL, fd, (struct epoll_event *)8));
		vma_leave(self);
	}
	munmap(bad, 4096);
	backend_close(be, fd);
	backend_close(be, ep);
}
static void test_bad_arguments_of_a_wait(void **state)
{
	(void)state;
	SKIP_SIGNALS();
	run_scenario_in_all_backends(bad_arguments_of_a_wait);
}

static void epoll_reports_os_members_beside_ours(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be), event = eventfd(0, 0), pipes[2];

	assert_int_equal(pipe(pipes), 0);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 1); /* before the set is ours */
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 2);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, event, EPOLLIN | EPOLLET, 3);
	backends_say_epoll_wait(be, ep, 8, 0);
	assert_int_equal(write(pipes[1], "x", 1), 1);
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 50);
	eventfd_write(event, 1);
	backends_say_epoll_wait(be, ep, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_make_datagram_arrive(be, fd);
	usleep(1000); /* a program that was busy elsewhere is told of everything */
	backends_say_epoll_wait(be, ep, 8, 0);
	close(pipes[1]);
	usleep(1000);
	backends_say_epoll_wait(be, ep, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_DEL, pipes[0], 0, 0));
	backends_say_epoll_wait(be, ep, 8, 0);
	close(pipes[0]);
	close(event);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(epoll_reports_os_members_beside_ours)

static void all_get_their_turn_where_few_fit(struct backend *be)
{
	int ep = epoll_create1(0), fd[5], pipes[2], told[6] = {0};
	struct epoll_event events[2];

	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(write(pipes[1], "x", 1), 1);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 5);
	for (unsigned i = 0; i < 5; i++) {
		fd[i] = backend_socket(be);
		backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd[i], EPOLLIN, i);
		backend_make_datagram_arrive(be, fd[i]);
	}
	for (int i = 0; i < 60; i++) {
		int n = backend_epoll_wait(be, ep, events, i % 2 + 1, 0);

		assert_int_equal(n, i % 2 + 1);
		for (int k = 0; k < n; k++)
			told[events[k].data.u64]++;
	}
	for (int i = 0; i < 6; i++)
		say(be, "%s\n", told[i] >= 4 ? "often" : "seldom");
	for (int i = 0; i < 5; i++)
		backend_close(be, fd[i]);
	close(pipes[0]);
	close(pipes[1]);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(all_get_their_turn_where_few_fit)

static void a_file_in_two_sets_and_under_two_numbers(struct backend *be)
{
	int a = epoll_create1(0), b = epoll_create1(0), fd = backend_socket(be), copy = backend_dup(be, fd);

	backend_epoll_ctl(be, a, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	say(be, "%d\n", backend_epoll_ctl(be, a, EPOLL_CTL_ADD, copy, EPOLLIN | EPOLLET, 2));
	say(be, "%d\n", backend_epoll_ctl(be, b, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 3));
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, a, 8, 0);
	backends_say_epoll_wait(be, b, 8, 0);
	backends_say_epoll_wait(be, a, 8, 0);
	backends_say_epoll_wait(be, b, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, a, EPOLL_CTL_DEL, fd, 0, 0));
	backends_say_epoll_wait(be, a, 8, 0);
	backend_make_datagram_arrive(be, copy);
	backends_say_epoll_wait(be, a, 8, 0);
	backend_close(be, copy);
	backend_close(be, fd);
	backend_close(be, a);
	backend_close(be, b);
}
SAME_ON_ALL_BACKENDS(a_file_in_two_sets_and_under_two_numbers)

static void a_registration_goes_with_the_last_number(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be), copy = backend_dup(be, fd), next;

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backend_make_datagram_arrive(be, fd);
	backend_close(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0); /* the copy keeps it */
	say(be, "DEL %d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_DEL, fd, 0, 0));
	next = backend_socket(be); /* the same number, another socket */
	say(be, "%d ADD %d\n", next == fd, backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, next, EPOLLIN, 2));
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_close(be, copy);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_make_datagram_arrive(be, next);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_close(be, next);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(a_registration_goes_with_the_last_number)

static void a_wait_ends_by_an_arrival_or_in_time(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be);
	uint64_t begun = msec_now();
	struct later later;

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backends_say_epoll_wait(be, ep, 8, 60);
	say(be, "%d\n", msec_now() - begun >= 59 && msec_now() - begun < 1000);
	begin_delayed_send(&later, be, fd, 30);
	backends_say_epoll_wait(be, ep, 8, 5000);
	join_delayed_send_thread(&later);
	backend_recv(be, fd);
	begin_delayed_send(&later, be, fd, 30);
	backends_say_epoll_wait(be, ep, 8, -1);
	join_delayed_send_thread(&later);
	say(be, "%d\n", msec_now() - begun < 3000);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(a_wait_ends_by_an_arrival_or_in_time)

static void set_own_poll(int fd, bool own)
{
	struct vma_thread *self = vma_enter();

	vma_file_set_poll_without_shadow(vma_fd_lookup(fd), own);
	vma_leave(self);
}

static void epoll_reports_error_of_shadow_socket(struct backend *be)
{
	struct sockaddr_in addr;
	socklen_t len = sizeof(addr);
	int ep = epoll_create1(0), fd = backend_socket(be), peer = socket(AF_INET, SOCK_DGRAM, 0);

	if (be->kind == OWN)
		set_own_poll(fd, false); /* that it is told of is what sets the others apart */
	memset(&addr, 0, sizeof(addr));
	addr.sin_family = AF_INET;
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(peer, (struct sockaddr *)&addr, len), 0);
	assert_int_equal(getsockname(peer, (struct sockaddr *)&addr, &len), 0);
	close(peer);
	assert_int_equal(connect(fd, (struct sockaddr *)&addr, len), 0);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	assert_int_equal(send(fd, "x", 1, 0), 1); /* refused */
	backends_say_epoll_wait(be, ep, 8, 200);
	assert_int_equal(recv(fd, &addr, 1, 0), -1);
	say(be, "%d\n", errno);
	backends_say_epoll_wait(be, ep, 8, 0);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(epoll_reports_error_of_shadow_socket)

/* ---- what only ours can show ---- */

static void test_idle_members_cost_nothing(void **state)
{
	enum { MEMBERS = 2000 };
	struct backend be = {.kind = OFFLOADED};
	int ep = epoll_create1(0), fd[MEMBERS], first;
	struct epoll_event events[4];
	uint32_t polls = 0;

	(void)state;
	for (int i = 0; i < MEMBERS; i++) {
		fd[i] = eventfd(0, 0);
		if (fd[i] < 0) {
			while (i-- > 0)
				backend_close(&be, fd[i]);
			backend_close(&be, ep);
			vma_test_skip("as many as %d descriptors are not to be had here", MEMBERS);
		}
		assert_int_equal(fake_install_udp_file(fd[i]), 0);
		assert_int_equal(backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, fd[i], EPOLLIN, (uint64_t)i), 0);
	}
	first = backend_epoll_wait(&be, ep, events, 4, 0);
	assert_int_equal(first, 0);
	for (int i = 0; i < MEMBERS; i++)
		polls += atomic_exchange(&fake_file_of_fd(fd[i])->polls, 0);
	assert_true(polls >= MEMBERS); /* when they were added */
	for (int i = 0; i < 1000; i++) {
		fake_queue_datagram_and_wake(fake_file_of_fd(fd[i]));
		assert_int_equal(backend_epoll_wait(&be, ep, events, 4, 0), 1);
		assert_int_equal(events[0].data.u64, i);
		atomic_store(&fake_file_of_fd(fd[i])->queued, 0);
	}
	polls = 0;
	for (int i = 0; i < MEMBERS; i++)
		polls += atomic_load(&fake_file_of_fd(fd[i])->polls);
	assert_true(polls <= 3000);
	for (int i = 0; i < MEMBERS; i++)
		backend_close(&be, fd[i]);
	backend_close(&be, ep);
}

static uint32_t take_poll_count_of_fd(int fd)
{
	return atomic_exchange(&fake_file_of_fd(fd)->polls, 0);
}

/* A wait that looked at it might find events that are being told of, which would queue it once more: an edge told
 * twice.
 */
static void test_member_that_is_not_ready_waits_for_its_events(void **state)
{
	struct backend backend = {.kind = OFFLOADED};
	struct epoll_event event;
	const int ep = epoll_create1(0), fd = backend_socket(&backend);

	(void)state;
	assert_int_equal(backend_epoll_ctl(&backend, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1), 0);
	take_poll_count_of_fd(fd);
	atomic_fetch_add(&fake_file_of_fd(fd)->queued, 1); /* its watchers are not told yet */
	assert_int_equal(backend_epoll_wait(&backend, ep, &event, 1, 0), 0);
	assert_int_equal(take_poll_count_of_fd(fd), 0);
	backend_make_datagram_arrive(&backend, fd);
	assert_int_equal(backend_epoll_wait(&backend, ep, &event, 1, 0), 1);
	assert_int_equal(backend_epoll_wait(&backend, ep, &event, 1, 0), 0);
	backend_recv(&backend, fd);
	backend_recv(&backend, fd);
	assert_int_equal(backend_epoll_ctl(&backend, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 1), 0);
	take_poll_count_of_fd(fd);
	assert_int_equal(backend_epoll_wait(&backend, ep, &event, 1, 0), 0);
	assert_int_equal(take_poll_count_of_fd(fd), 0);
	backend_close(&backend, fd);
	backend_close(&backend, ep);
	backends_free_retired_objects();
}

static void test_rings_of_a_set_are_those_of_its_members(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	int ep = epoll_create1(0), outer = epoll_create1(0), a = backend_socket(&be), b = backend_socket(&be);
	struct vma_file *set;
	struct vma_watcher *watcher;

	(void)state;
	atomic_store(&fake_file_of_fd(a)->rings, 6);
	backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
	backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, b, EPOLLIN, 2);
	backend_epoll_ctl(&be, outer, EPOLL_CTL_ADD, ep, EPOLLIN, 3);
	set = &epoll_set_find(ep)->file;
	assert_int_equal(set->ops->rings(set), 6);
	atomic_store(&fake_file_of_fd(b)->rings, 12);
	watcher = atomic_load(&atomic_load(&fake_file_of_fd(b)->file.watchers)->watcher[0]);
	watcher->rings(watcher, 12);
	assert_int_equal(set->ops->rings(set), 14);
	assert_int_equal(epoll_set_find(outer)->file.ops->rings(&epoll_set_find(outer)->file), 14);
	backend_epoll_ctl(&be, ep, EPOLL_CTL_DEL, a, 0, 0);
	assert_int_equal(set->ops->rings(set), 12);
	backend_close(&be, b);
	assert_int_equal(set->ops->rings(set), 0);
	assert_int_equal(epoll_set_find(outer)->file.ops->rings(&epoll_set_find(outer)->file), 0);
	backend_close(&be, a);
	backend_close(&be, ep);
	backend_close(&be, outer);
}

/* A TCP socket that is not connected: for the kernel it has hung up. */
static int make_unconnected_tcp_socket_hung_up(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(fake_install_udp_file(fd), 0);
	atomic_store(&fake_file_of_fd(fd)->file.own_poll, true);
	return fd;
}

static void epoll_asks_shadow_socket_unless_own_poll(uint32_t events)
{
	struct backend be = {.kind = OFFLOADED};
	int ep = epoll_create1(0), fd = make_unconnected_tcp_socket_hung_up();
	struct epoll_event event;

	assert_int_equal(backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, fd, events, 1), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 1), 0);
	fake_queue_datagram_and_wake(fake_file_of_fd(fd));
	assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 100), 1);
	assert_int_equal(event.events, EPOLLIN);
	atomic_store(&fake_file_of_fd(fd)->queued, 0);
	if (!(events & EPOLLEXCLUSIVE))
		assert_int_equal(backend_epoll_ctl(&be, ep, EPOLL_CTL_MOD, fd, events, 1), 0);
	assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 1), 0);
	set_own_poll(fd, false);
	assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 100), 1);
	assert_int_equal(event.events, EPOLLHUP);
	set_own_poll(fd, true);
	backend_epoll_wait(&be, ep, &event, 1, 1); /* what had been asked before */
	assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 1), 0);
	assert_int_equal(backend_epoll_ctl(&be, ep, EPOLL_CTL_DEL, fd, 0, 0), 0);
	backend_close(&be, fd);
	backend_close(&be, ep);
}

static void test_a_shadow_that_is_not_the_file_is_not_asked(void **state)
{
	(void)state;
	epoll_asks_shadow_socket_unless_own_poll(EPOLLIN);
	epoll_asks_shadow_socket_unless_own_poll(EPOLLIN | EPOLLET);
	epoll_asks_shadow_socket_unless_own_poll(EPOLLIN | EPOLLONESHOT);
	epoll_asks_shadow_socket_unless_own_poll(EPOLLIN | EPOLLEXCLUSIVE);
}

/* Another process may keep it, as this copy does that the library has not seen: S is rid of it soon, and tells nobody.
 */
static void test_a_socket_that_is_kept_elsewhere_is_told_of_no_more(void **state)
{
	struct backend be = {.kind = SHADOW};
	int ep = epoll_create1(0), fd = backend_socket(&be), other = backend_socket(&be),
	    copy = (int)syscall(SYS_dup, fd);
	struct epoll_event event;

	(void)state;
	backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, other, EPOLLIN, 2);
	backend_close(&be, fd);
	send_by_kernel(copy);
	for (int i = 0; i < 8; i++) {
		usleep(ASKED_AGAIN_USEC);
		assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 0), 0);
	}
	assert_int_equal(iomux_os_epoll_nonblocking(epoll_set_find(ep)->members_epfd, &event, 1), 0);
	backend_make_datagram_arrive(&be, other);
	assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 0), 1);
	assert_int_equal(event.data.u64, 2);
	backend_close(&be, other);
	backend_close(&be, ep);
	close(copy);
}

static void test_everything_is_freed_in_the_end(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	int before, ep = epoll_create1(0), fd = backend_socket(&be), next;
	struct epoll_event event;

	(void)state;
	backends_free_retired_objects();
	before = atomic_load(&fakes_destroyed);
	backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	for (int i = 0; i < 100; i++) {
		backend_make_datagram_arrive(&be, fd);
		assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 0), 1);
		backend_recv(&be, fd);
		backend_make_datagram_arrive(&be, fd); /* goes while it is queued */
		backend_close(&be, fd);
		fd = backend_socket(&be);
		assert_int_equal(backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1), 0);
		backends_free_retired_objects();
	}
	assert_true(epoll_set_find(ep)->n_items < 20);
	backend_close(&be, ep);
	backend_close(&be, fd);
	backends_free_retired_objects();
	assert_int_equal(atomic_load(&fakes_destroyed) - before, 101);
	next = epoll_create1(0);
	assert_true(next <= ep + 1); /* no descriptor was left behind */
	close(next);
}

/* By level and by edge. Its shadow, which has nothing to send, is writable all the time. */
static void test_a_file_that_is_full_is_told_as_writable_when_it_has_room(void **state)
{
	(void)state;
	for (int edge = 0; edge < 2; edge++) {
		struct backend be = {.kind = OFFLOADED};
		int ep = epoll_create1(0), fd = backend_socket(&be);
		struct epoll_event events[4];

		fake_set_full(fake_file_of_fd(fd), edge);
		assert_int_equal(backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, fd, EPOLLOUT | (edge ? EPOLLET : 0), 7), 0);
		if (!edge) {
			assert_int_equal(backend_epoll_wait(&be, ep, events, 4, 0), 1);
			fake_set_full(fake_file_of_fd(fd), true);
		}
		assert_int_equal(backend_epoll_wait(&be, ep, events, 4, 0), 0);
		assert_int_equal(backend_epoll_wait(&be, ep, events, 4, 5), 0);
		fake_set_full(fake_file_of_fd(fd), false);
		assert_int_equal(backend_epoll_wait(&be, ep, events, 4, 5), 1);
		assert_int_equal(events[0].events, EPOLLOUT);
		assert_int_equal(backend_epoll_wait(&be, ep, events, 4, 0), !edge);
		backend_close(&be, fd);
		backend_close(&be, ep);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_level_triggered_event_repeats_until_read),
	        cmocka_unit_test(test_edge_is_told_once_for_each_arrival),
	        cmocka_unit_test(test_an_edge_of_what_was_read_meanwhile_is_none),
	        cmocka_unit_test(test_one_shot_is_told_once_until_it_is_changed),
	        cmocka_unit_test(test_only_what_was_asked_for_is_told),
	        cmocka_unit_test(test_what_the_kernel_refuses_is_refused),
	        cmocka_unit_test(test_bad_arguments_of_a_wait),
	        cmocka_unit_test(test_epoll_reports_os_members_beside_ours),
	        cmocka_unit_test(test_all_get_their_turn_where_few_fit),
	        cmocka_unit_test(test_a_file_in_two_sets_and_under_two_numbers),
	        cmocka_unit_test(test_a_registration_goes_with_the_last_number),
	        cmocka_unit_test(test_a_wait_ends_by_an_arrival_or_in_time),
	        cmocka_unit_test(test_epoll_reports_error_of_shadow_socket),
	        cmocka_unit_test(test_idle_members_cost_nothing),
	        cmocka_unit_test(test_member_that_is_not_ready_waits_for_its_events),
	        cmocka_unit_test(test_rings_of_a_set_are_those_of_its_members),
	        cmocka_unit_test(test_a_shadow_that_is_not_the_file_is_not_asked),
	        cmocka_unit_test(test_a_socket_that_is_kept_elsewhere_is_told_of_no_more),
	        cmocka_unit_test(test_a_file_that_is_full_is_told_as_writable_when_it_has_room),
	        cmocka_unit_test(test_everything_is_freed_in_the_end),
	};

	return run_backends(__FILE__, tests, sizeof(tests) / sizeof(tests[0]));
}
