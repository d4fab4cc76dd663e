/* Level, edge, one-shot, changes and refusals: as the kernel, whichever way datagrams come. */
#include "backends.h"

static void level_is_told_until_it_is_read(struct backend *w)
{
	int ep = epoll_create1(0), fd = w_socket(w);

	say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 7));
	backends_see(w, ep, 8, 0);
	w_send(w, fd);
	w_send(w, fd);
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 100);
	w_recv(w, fd);
	backends_see(w, ep, 8, 0);
	w_recv(w, fd);
	backends_see(w, ep, 8, 0);
	w_send(w, fd);
	backends_see(w, ep, 8, 0);
	w_close(w, fd);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(level_is_told_until_it_is_read)

static void edge_is_told_once_for_each_arrival(struct backend *w)
{
	int ep = epoll_create1(0), fd = w_socket(w);

	w_send(w, fd);
	say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1ULL << 63));
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 0);
	w_send(w, fd); /* unread data, new edge */
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 0);
	w_send(w, fd);
	w_send(w, fd);
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 0);
	say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 2)); /* tells what is there */
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 0);
	w_close(w, fd);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(edge_is_told_once_for_each_arrival)

static void an_edge_of_what_was_read_meanwhile_is_none(struct backend *w)
{
	int ep = epoll_create1(0), fd = w_socket(w);

	w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1);
	w_send(w, fd);
	w_recv(w, fd);
	backends_see(w, ep, 8, 0);
	w_send(w, fd);
	backends_see(w, ep, 8, 0);
	w_close(w, fd);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(an_edge_of_what_was_read_meanwhile_is_none)

static void one_shot_is_told_once_until_it_is_changed(struct backend *w)
{
	int ep = epoll_create1(0), fd = w_socket(w);

	w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 1);
	w_send(w, fd);
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 0);
	w_send(w, fd);
	backends_see(w, ep, 8, 0);
	say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 2));
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 0);
	say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_MOD, fd, EPOLLIN, 3));
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 0);
	w_close(w, fd);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(one_shot_is_told_once_until_it_is_changed)

static void only_what_was_asked_for_is_told(struct backend *w)
{
	static const uint32_t requests[] = {EPOLLIN,
	                                    EPOLLOUT,
	                                    EPOLLIN | EPOLLOUT,
	                                    EPOLLRDNORM,
	                                    EPOLLWRNORM | EPOLLWRBAND,
	                                    EPOLLPRI,
	                                    0,
	                                    EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLMSG | EPOLLRDBAND};
	int ep = epoll_create1(0), fd = w_socket(w);

	w_ctl(w, ep, EPOLL_CTL_ADD, fd, 0, 0);
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_MOD, fd, requests[i], i));
		backends_see(w, ep, 8, 0);
		w_send(w, fd);
		backends_see(w, ep, 8, 0);
		w_recv(w, fd);
		backends_see(w, ep, 8, 0);
		say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_MOD, fd, requests[i] | EPOLLET, i));
		backends_see(w, ep, 8, 0);
		backends_see(w, ep, 8, 0);
		w_send(w, fd);
		backends_see(w, ep, 8, 0);
		backends_see(w, ep, 8, 0);
		w_recv(w, fd);
	}
	w_close(w, fd);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(only_what_was_asked_for_is_told)

static void what_the_kernel_refuses_is_refused(struct backend *w)
{
	int ep = epoll_create1(0), other = epoll_create1(0), fd = w_socket(w), fd2 = w_socket(w), pipes[2];
	int closed = w_socket(w);
	FILE *file = tmpfile();

	w_close(w, closed);
	assert_int_equal(pipe(pipes), 0);
	/* before the set has a member of ours, and after */
	for (int round = 0; round < 2; round++) {
		say(w, "MOD %d DEL %d\n", w_ctl(w, ep, EPOLL_CTL_MOD, fd2, EPOLLIN, 0),
		    w_ctl(w, ep, EPOLL_CTL_DEL, fd2, EPOLLIN, 0));
		say(w, "op %d %d\n", w_ctl(w, ep, 4, fd, EPOLLIN, 0), w_ctl(w, ep, 0, fd, EPOLLIN, 0));
		say(w, "closed %d\n", w_ctl(w, ep, EPOLL_CTL_ADD, closed, EPOLLIN, 0));
		say(w, "no set %d %d\n", w_ctl(w, pipes[0], EPOLL_CTL_ADD, fd, EPOLLIN, 0),
		    w_ctl(w, fd2, EPOLL_CTL_ADD, fd, EPOLLIN, 0));
		say(w, "no fd %d %d\n", w_ctl(w, -1, EPOLL_CTL_ADD, fd, EPOLLIN, 0),
		    w_ctl(w, ep, EPOLL_CTL_ADD, -1, EPOLLIN, 0));
		say(w, "self %d\n", w_ctl(w, ep, EPOLL_CTL_ADD, ep, EPOLLIN, 0));
		say(w, "file %d\n", w_ctl(w, ep, EPOLL_CTL_ADD, fileno(file), EPOLLIN, 0));
		say(w, "exclusive %d\n", w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLPRI | EPOLLEXCLUSIVE, 0));
		say(w, "exclusive %d\n", w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT | EPOLLEXCLUSIVE, 0));
		say(w, "exclusive set %d\n", w_ctl(w, ep, EPOLL_CTL_ADD, other, EPOLLIN | EPOLLEXCLUSIVE, 0));
		say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE, 0));
		say(w, "again %d\n", w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 0));
		say(w, "MOD of exclusive %d\n", w_ctl(w, ep, EPOLL_CTL_MOD, fd, EPOLLIN, 0));
		say(w, "DEL %d\n", w_ctl(w, ep, EPOLL_CTL_DEL, fd, 0, 0));
		say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 0));
		say(w, "MOD to exclusive %d\n", w_ctl(w, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLEXCLUSIVE, 0));
		say(w, "DEL %d %d\n", w_ctl(w, ep, EPOLL_CTL_DEL, fd, 0, 0), w_ctl(w, ep, EPOLL_CTL_DEL, fd, 0, 0));
	}
	fclose(file);
	close(pipes[0]);
	close(pipes[1]);
	w_close(w, fd);
	w_close(w, fd2);
	w_close(w, other);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(what_the_kernel_refuses_is_refused)

static void bad_arguments_of_a_wait(struct backend *w)
{
	int ep = epoll_create1(0), fd = w_socket(w);
	struct epoll_event *bad = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), good;
	struct timespec odd = {0, 1000000000};

	w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 5);
	w_send(w, fd);
	say(w, "max %d %d %d\n", w_wait(w, ep, &good, 0, 0), w_wait(w, ep, &good, -1, 0),
	    w_wait(w, ep, &good, INT32_MAX, 0));
	say(w, "pointer %d\n", w_wait(w, ep, bad, 8, 0));
	say(w, "and the event is still there: ");
	backends_see(w, ep, 8, 0);
	if (w->kind == KERNEL) {
		say(w, "time %d", errno_of(epoll_pwait2(ep, &good, 1, &odd, NULL)));
		say(w, " mask %d\n", errno_of(epoll_pwait2(ep, &good, 1, NULL, (sigset_t *)8)));
		say(w, "event %d", errno_of(epoll_ctl(ep, EPOLL_CTL_MOD, fd, (struct epoll_event *)8)));
		say(w, " of none %d\n", errno_of(epoll_ctl(ep, EPOLL_CTL_DEL, fd, (struct epoll_event *)8)));
	} else {
		struct vma_thread *self = vma_enter();
		struct epoll_set *set = epoll_set_find(ep);

		say(w, "time %d", vma_iomux_epoll_wait(&set->file, ep, &good, 1, &odd, NULL));
		say(w, " mask %d\n", vma_iomux_epoll_wait(&set->file, ep, &good, 1, NULL, (sigset_t *)8));
		say(w, "event %d", vma_iomux_epoll_ctl(ep, EPOLL_CTL_MOD, fd, (struct epoll_event *)8));
		say(w, " of none %d\n", vma_iomux_epoll_ctl(ep, EPOLL_CTL_DEL, fd, (struct epoll_event *)8));
		vma_leave(self);
	}
	munmap(bad, 4096);
	w_close(w, fd);
	w_close(w, ep);
}
static void test_bad_arguments_of_a_wait(void **state)
{
	(void)state;
	SKIP_SIGNALS();
	in_all_backends(bad_arguments_of_a_wait);
}

static void members_of_the_os_are_told_beside_ours(struct backend *w)
{
	int ep = epoll_create1(0), fd = w_socket(w), event = eventfd(0, 0), pipes[2];

	assert_int_equal(pipe(pipes), 0);
	w_ctl(w, ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 1); /* before the set is ours */
	w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 2);
	w_ctl(w, ep, EPOLL_CTL_ADD, event, EPOLLIN | EPOLLET, 3);
	backends_see(w, ep, 8, 0);
	assert_int_equal(write(pipes[1], "x", 1), 1);
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 50);
	eventfd_write(event, 1);
	backends_see(w, ep, 8, 0);
	backends_see(w, ep, 8, 0);
	w_send(w, fd);
	usleep(1000); /* a program that was busy elsewhere is told of everything */
	backends_see(w, ep, 8, 0);
	close(pipes[1]);
	usleep(1000);
	backends_see(w, ep, 8, 0);
	say(w, "%d\n", w_ctl(w, ep, EPOLL_CTL_DEL, pipes[0], 0, 0));
	backends_see(w, ep, 8, 0);
	close(pipes[0]);
	close(event);
	w_close(w, fd);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(members_of_the_os_are_told_beside_ours)

static void all_get_their_turn_where_few_fit(struct backend *w)
{
	int ep = epoll_create1(0), fd[5], pipes[2], told[6] = {0};
	struct epoll_event events[2];

	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(write(pipes[1], "x", 1), 1);
	w_ctl(w, ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 5);
	for (unsigned i = 0; i < 5; i++) {
		fd[i] = w_socket(w);
		w_ctl(w, ep, EPOLL_CTL_ADD, fd[i], EPOLLIN, i);
		w_send(w, fd[i]);
	}
	for (int i = 0; i < 60; i++) {
		int n = w_wait(w, ep, events, i % 2 + 1, 0);

		assert_int_equal(n, i % 2 + 1);
		for (int k = 0; k < n; k++)
			told[events[k].data.u64]++;
	}
	for (int i = 0; i < 6; i++)
		say(w, "%s\n", told[i] >= 4 ? "often" : "seldom");
	for (int i = 0; i < 5; i++)
		w_close(w, fd[i]);
	close(pipes[0]);
	close(pipes[1]);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(all_get_their_turn_where_few_fit)

static void a_file_in_two_sets_and_under_two_numbers(struct backend *w)
{
	int a = epoll_create1(0), b = epoll_create1(0), fd = w_socket(w), copy = w_dup(w, fd);

	w_ctl(w, a, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	say(w, "%d\n", w_ctl(w, a, EPOLL_CTL_ADD, copy, EPOLLIN | EPOLLET, 2));
	say(w, "%d\n", w_ctl(w, b, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 3));
	w_send(w, fd);
	backends_see(w, a, 8, 0);
	backends_see(w, b, 8, 0);
	backends_see(w, a, 8, 0);
	backends_see(w, b, 8, 0);
	say(w, "%d\n", w_ctl(w, a, EPOLL_CTL_DEL, fd, 0, 0));
	backends_see(w, a, 8, 0);
	w_send(w, copy);
	backends_see(w, a, 8, 0);
	w_close(w, copy);
	w_close(w, fd);
	w_close(w, a);
	w_close(w, b);
}
SAME_ON_ALL_BACKENDS(a_file_in_two_sets_and_under_two_numbers)

static void a_registration_goes_with_the_last_number(struct backend *w)
{
	int ep = epoll_create1(0), fd = w_socket(w), copy = w_dup(w, fd), next;

	w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	w_send(w, fd);
	w_close(w, fd);
	backends_see(w, ep, 8, 0); /* the copy keeps it */
	say(w, "DEL %d\n", w_ctl(w, ep, EPOLL_CTL_DEL, fd, 0, 0));
	next = w_socket(w); /* the same number, another socket */
	say(w, "%d ADD %d\n", next == fd, w_ctl(w, ep, EPOLL_CTL_ADD, next, EPOLLIN, 2));
	backends_see(w, ep, 8, 0);
	w_close(w, copy);
	backends_see(w, ep, 8, 0);
	w_send(w, next);
	backends_see(w, ep, 8, 0);
	w_close(w, next);
	backends_see(w, ep, 8, 0);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(a_registration_goes_with_the_last_number)

static void a_wait_ends_by_an_arrival_or_in_time(struct backend *w)
{
	int ep = epoll_create1(0), fd = w_socket(w);
	uint64_t begun = msec_now();
	struct later later;

	w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backends_see(w, ep, 8, 60);
	say(w, "%d\n", msec_now() - begun >= 59 && msec_now() - begun < 1000);
	begin_later(&later, w, fd, 30);
	backends_see(w, ep, 8, 5000);
	end_later(&later);
	w_recv(w, fd);
	begin_later(&later, w, fd, 30);
	backends_see(w, ep, 8, -1);
	end_later(&later);
	say(w, "%d\n", msec_now() - begun < 3000);
	w_close(w, fd);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(a_wait_ends_by_an_arrival_or_in_time)

static void set_own_poll(int fd, bool own)
{
	struct vma_thread *self = vma_enter();

	vma_file_set_own_poll(vma_fd_lookup(fd), own);
	vma_leave(self);
}

static void an_error_of_the_shadow_is_told(struct backend *w)
{
	struct sockaddr_in addr;
	socklen_t len = sizeof(addr);
	int ep = epoll_create1(0), fd = w_socket(w), peer = socket(AF_INET, SOCK_DGRAM, 0);

	if (w->kind == OWN)
		set_own_poll(fd, false); /* that it is told of is what sets the others apart */
	memset(&addr, 0, sizeof(addr));
	addr.sin_family = AF_INET;
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(peer, (struct sockaddr *)&addr, len), 0);
	assert_int_equal(getsockname(peer, (struct sockaddr *)&addr, &len), 0);
	close(peer);
	assert_int_equal(connect(fd, (struct sockaddr *)&addr, len), 0);
	w_ctl(w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	assert_int_equal(send(fd, "x", 1, 0), 1); /* refused */
	backends_see(w, ep, 8, 200);
	assert_int_equal(recv(fd, &addr, 1, 0), -1);
	say(w, "%d\n", errno);
	backends_see(w, ep, 8, 0);
	w_close(w, fd);
	w_close(w, ep);
}
SAME_ON_ALL_BACKENDS(an_error_of_the_shadow_is_told)

/* ---- what only ours can show ---- */

static void test_idle_members_cost_nothing(void **state)
{
	enum { MEMBERS = 2000 };
	struct backend w = {.kind = OFFLOADED};
	int ep = epoll_create1(0), fd[MEMBERS], first;
	struct epoll_event events[4];
	uint32_t polls = 0;

	(void)state;
	for (int i = 0; i < MEMBERS; i++) {
		fd[i] = eventfd(0, 0);
		if (fd[i] < 0) {
			while (i-- > 0)
				w_close(&w, fd[i]);
			w_close(&w, ep);
			vma_test_skip("as many as %d descriptors are not to be had here", MEMBERS);
		}
		assert_int_equal(fake_install(fd[i]), 0);
		assert_int_equal(w_ctl(&w, ep, EPOLL_CTL_ADD, fd[i], EPOLLIN, (uint64_t)i), 0);
	}
	first = w_wait(&w, ep, events, 4, 0);
	assert_int_equal(first, 0);
	for (int i = 0; i < MEMBERS; i++)
		polls += atomic_exchange(&fake_at(fd[i])->polls, 0);
	assert_true(polls >= MEMBERS); /* when they were added */
	for (int i = 0; i < 1000; i++) {
		fake_push(fake_at(fd[i]));
		assert_int_equal(w_wait(&w, ep, events, 4, 0), 1);
		assert_int_equal(events[0].data.u64, i);
		atomic_store(&fake_at(fd[i])->queued, 0);
	}
	polls = 0;
	for (int i = 0; i < MEMBERS; i++)
		polls += atomic_load(&fake_at(fd[i])->polls);
	assert_true(polls <= 3000);
	for (int i = 0; i < MEMBERS; i++)
		w_close(&w, fd[i]);
	w_close(&w, ep);
}

static uint32_t polls_of(int fd)
{
	return atomic_exchange(&fake_at(fd)->polls, 0);
}

/* A wait that looked at it might find news that are being told of, which would queue it once more: an edge told twice.
 */
static void test_member_that_is_not_ready_waits_for_its_news(void **state)
{
	struct backend backend = {.kind = OFFLOADED};
	struct epoll_event event;
	const int ep = epoll_create1(0), fd = w_socket(&backend);

	(void)state;
	assert_int_equal(w_ctl(&backend, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1), 0);
	polls_of(fd);
	atomic_fetch_add(&fake_at(fd)->queued, 1); /* its watchers are not told yet */
	assert_int_equal(w_wait(&backend, ep, &event, 1, 0), 0);
	assert_int_equal(polls_of(fd), 0);
	w_send(&backend, fd);
	assert_int_equal(w_wait(&backend, ep, &event, 1, 0), 1);
	assert_int_equal(w_wait(&backend, ep, &event, 1, 0), 0);
	w_recv(&backend, fd);
	w_recv(&backend, fd);
	assert_int_equal(w_ctl(&backend, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 1), 0);
	polls_of(fd);
	assert_int_equal(w_wait(&backend, ep, &event, 1, 0), 0);
	assert_int_equal(polls_of(fd), 0);
	w_close(&backend, fd);
	w_close(&backend, ep);
	backends_settle();
}

static void test_rings_of_a_set_are_those_of_its_members(void **state)
{
	struct backend w = {.kind = OFFLOADED};
	int ep = epoll_create1(0), outer = epoll_create1(0), a = w_socket(&w), b = w_socket(&w);
	struct vma_file *set;
	struct vma_watcher *watcher;

	(void)state;
	atomic_store(&fake_at(a)->rings, 6);
	w_ctl(&w, ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
	w_ctl(&w, ep, EPOLL_CTL_ADD, b, EPOLLIN, 2);
	w_ctl(&w, outer, EPOLL_CTL_ADD, ep, EPOLLIN, 3);
	set = &epoll_set_find(ep)->file;
	assert_int_equal(set->ops->rings(set), 6);
	atomic_store(&fake_at(b)->rings, 12);
	watcher = atomic_load(&atomic_load(&fake_at(b)->file.watchers)->watcher[0]);
	watcher->rings(watcher, 12);
	assert_int_equal(set->ops->rings(set), 14);
	assert_int_equal(epoll_set_find(outer)->file.ops->rings(&epoll_set_find(outer)->file), 14);
	w_ctl(&w, ep, EPOLL_CTL_DEL, a, 0, 0);
	assert_int_equal(set->ops->rings(set), 12);
	w_close(&w, b);
	assert_int_equal(set->ops->rings(set), 0);
	assert_int_equal(epoll_set_find(outer)->file.ops->rings(&epoll_set_find(outer)->file), 0);
	w_close(&w, a);
	w_close(&w, ep);
	w_close(&w, outer);
}

/* A TCP socket that is not connected: for the kernel it has hung up. */
static int hung_up_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(fake_install(fd), 0);
	atomic_store(&fake_at(fd)->file.own_poll, true);
	return fd;
}

static void shadow_is_asked_when_it_counts(uint32_t events)
{
	struct backend w = {.kind = OFFLOADED};
	int ep = epoll_create1(0), fd = hung_up_socket();
	struct epoll_event event;

	assert_int_equal(w_ctl(&w, ep, EPOLL_CTL_ADD, fd, events, 1), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(w_wait(&w, ep, &event, 1, 1), 0);
	fake_push(fake_at(fd));
	assert_int_equal(w_wait(&w, ep, &event, 1, 100), 1);
	assert_int_equal(event.events, EPOLLIN);
	atomic_store(&fake_at(fd)->queued, 0);
	if (!(events & EPOLLEXCLUSIVE))
		assert_int_equal(w_ctl(&w, ep, EPOLL_CTL_MOD, fd, events, 1), 0);
	assert_int_equal(w_wait(&w, ep, &event, 1, 1), 0);
	set_own_poll(fd, false);
	assert_int_equal(w_wait(&w, ep, &event, 1, 100), 1);
	assert_int_equal(event.events, EPOLLHUP);
	set_own_poll(fd, true);
	w_wait(&w, ep, &event, 1, 1); /* what had been asked before */
	assert_int_equal(w_wait(&w, ep, &event, 1, 1), 0);
	assert_int_equal(w_ctl(&w, ep, EPOLL_CTL_DEL, fd, 0, 0), 0);
	w_close(&w, fd);
	w_close(&w, ep);
}

static void test_a_shadow_that_is_not_the_file_is_not_asked(void **state)
{
	(void)state;
	shadow_is_asked_when_it_counts(EPOLLIN);
	shadow_is_asked_when_it_counts(EPOLLIN | EPOLLET);
	shadow_is_asked_when_it_counts(EPOLLIN | EPOLLONESHOT);
	shadow_is_asked_when_it_counts(EPOLLIN | EPOLLEXCLUSIVE);
}

/* Another process may keep it, as this copy does that the library has not seen: S is rid of it soon, and tells nobody.
 */
static void test_a_socket_that_is_kept_elsewhere_is_told_of_no_more(void **state)
{
	struct backend w = {.kind = SHADOW};
	int ep = epoll_create1(0), fd = w_socket(&w), other = w_socket(&w), copy = (int)syscall(SYS_dup, fd);
	struct epoll_event event;

	(void)state;
	w_ctl(&w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	w_ctl(&w, ep, EPOLL_CTL_ADD, other, EPOLLIN, 2);
	w_close(&w, fd);
	send_by_kernel(copy);
	for (int i = 0; i < 8; i++) {
		usleep(ASKED_AGAIN_USEC);
		assert_int_equal(w_wait(&w, ep, &event, 1, 0), 0);
	}
	assert_int_equal(iomux_os_epoll(epoll_set_find(ep)->s, &event, 1), 0);
	w_send(&w, other);
	assert_int_equal(w_wait(&w, ep, &event, 1, 0), 1);
	assert_int_equal(event.data.u64, 2);
	w_close(&w, other);
	w_close(&w, ep);
	close(copy);
}

static void test_everything_is_freed_in_the_end(void **state)
{
	struct backend w = {.kind = OFFLOADED};
	int before, ep = epoll_create1(0), fd = w_socket(&w), next;
	struct epoll_event event;

	(void)state;
	backends_settle();
	before = atomic_load(&fakes_destroyed);
	w_ctl(&w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	for (int i = 0; i < 100; i++) {
		w_send(&w, fd);
		assert_int_equal(w_wait(&w, ep, &event, 1, 0), 1);
		w_recv(&w, fd);
		w_send(&w, fd); /* goes while it is queued */
		w_close(&w, fd);
		fd = w_socket(&w);
		assert_int_equal(w_ctl(&w, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1), 0);
		backends_settle();
	}
	assert_true(epoll_set_find(ep)->n_items < 20);
	w_close(&w, ep);
	w_close(&w, fd);
	backends_settle();
	assert_int_equal(atomic_load(&fakes_destroyed) - before, 101);
	next = epoll_create1(0);
	assert_true(next <= ep + 1); /* no descriptor was left behind */
	close(next);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_level_is_told_until_it_is_read),
	        cmocka_unit_test(test_edge_is_told_once_for_each_arrival),
	        cmocka_unit_test(test_an_edge_of_what_was_read_meanwhile_is_none),
	        cmocka_unit_test(test_one_shot_is_told_once_until_it_is_changed),
	        cmocka_unit_test(test_only_what_was_asked_for_is_told),
	        cmocka_unit_test(test_what_the_kernel_refuses_is_refused),
	        cmocka_unit_test(test_bad_arguments_of_a_wait),
	        cmocka_unit_test(test_members_of_the_os_are_told_beside_ours),
	        cmocka_unit_test(test_all_get_their_turn_where_few_fit),
	        cmocka_unit_test(test_a_file_in_two_sets_and_under_two_numbers),
	        cmocka_unit_test(test_a_registration_goes_with_the_last_number),
	        cmocka_unit_test(test_a_wait_ends_by_an_arrival_or_in_time),
	        cmocka_unit_test(test_an_error_of_the_shadow_is_told),
	        cmocka_unit_test(test_idle_members_cost_nothing),
	        cmocka_unit_test(test_member_that_is_not_ready_waits_for_its_news),
	        cmocka_unit_test(test_rings_of_a_set_are_those_of_its_members),
	        cmocka_unit_test(test_a_shadow_that_is_not_the_file_is_not_asked),
	        cmocka_unit_test(test_a_socket_that_is_kept_elsewhere_is_told_of_no_more),
	        cmocka_unit_test(test_everything_is_freed_in_the_end),
	};

	return run_backends(__FILE__, tests, sizeof(tests) / sizeof(tests[0]));
}
