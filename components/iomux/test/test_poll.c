/* poll and select: what the kernel answers, for any mix; signals and their masks. */
#include <sys/resource.h>

#include "backends.h"

static void say_poll_result_and_revents(struct backend *be, int rc, const struct pollfd *fds, nfds_t n)
{
	say(be, "%d:", rc);
	for (nfds_t i = 0; i < n; i++)
		say(be, " %x", (uint16_t)fds[i].revents);
	say(be, "\n");
}

static void poll_handles_mix_of_fds(struct backend *be)
{
	int a = backend_socket(be), b = backend_socket(be), pipes[2], closed = dup(0);
	struct pollfd fds[7];

	close(closed);
	assert_int_equal(pipe(pipes), 0);
	fds[0] = (struct pollfd){.fd = a, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = b, .events = POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM | POLLWRBAND | POLLPRI};
	fds[2] = (struct pollfd){.fd = pipes[0], .events = POLLIN};
	fds[3] = (struct pollfd){.fd = pipes[1], .events = POLLIN};
	fds[4] = (struct pollfd){.fd = -5, .events = POLLIN, .revents = 77};
	fds[5] = (struct pollfd){.fd = a, .events = 0};
	fds[6] = (struct pollfd){.fd = closed, .events = 0};
	say_poll_result_and_revents(be, backend_poll(be, fds, 1, 0), fds, 1);
	say_poll_result_and_revents(be, backend_poll(be, fds, 7, 0), fds, 7);
	fds[6].fd = -1;
	say_poll_result_and_revents(be, backend_poll(be, fds, 7, 100), fds, 7);
	backend_make_datagram_arrive(be, a);
	say_poll_result_and_revents(be, backend_poll(be, fds, 1, 0), fds, 1);
	usleep(1000);
	say_poll_result_and_revents(be, backend_poll(be, fds, 7, -1), fds, 7);
	backend_recv(be, a);
	backend_make_datagram_arrive(be, b);
	assert_int_equal(write(pipes[1], "x", 1), 1);
	usleep(1000);
	say_poll_result_and_revents(be, backend_poll(be, fds, 7, 100), fds, 7);
	close(pipes[1]);
	usleep(1000);
	fds[3].fd = -1;
	say_poll_result_and_revents(be, backend_poll(be, fds, 7, 100), fds, 7);
	backend_close(be, a);
	say_poll_result_and_revents(be, backend_poll(be, fds, 7, 100), fds, 7);
	close(pipes[0]);
	backend_close(be, b);
}
SAME_ON_ALL_BACKENDS(poll_handles_mix_of_fds)

static void a_wait_ends_by_any_of_them_or_in_time(struct backend *be)
{
	int a = backend_socket(be), pipes[2];
	struct pollfd fds[2] = {{.fd = a, .events = POLLIN}, {.events = POLLIN}};
	uint64_t begun = msec_now();
	struct later later;

	assert_int_equal(pipe(pipes), 0);
	fds[1].fd = pipes[0];
	say_poll_result_and_revents(be, backend_poll(be, fds, 2, 60), fds, 2);
	say(be, "%d\n", msec_now() - begun >= 59 && msec_now() - begun < 1000);
	begin_delayed_send(&later, be, a, 30);
	say_poll_result_and_revents(be, backend_poll(be, fds, 2, -1), fds, 2);
	join_delayed_send_thread(&later);
	backend_recv(be, a);
	assert_int_equal(write(pipes[1], "x", 1), 1);
	say_poll_result_and_revents(be, backend_poll(be, fds, 2, -1), fds, 2);
	say(be, "%d\n", msec_now() - begun < 3000);
	close(pipes[0]);
	close(pipes[1]);
	backend_close(be, a);
}
SAME_ON_ALL_BACKENDS(a_wait_ends_by_any_of_them_or_in_time)

static void many_descriptors(struct backend *be)
{
	enum { N = 300 };
	struct pollfd fds[N];
	int a = backend_socket(be);

	for (int i = 0; i < N; i++)
		fds[i] = (struct pollfd){.fd = i == N - 1 ? a : -1, .events = POLLIN};
	say(be, "%d\n", backend_poll(be, fds, N, 0));
	backend_make_datagram_arrive(be, a);
	usleep(100);
	say(be, "%d %x\n", backend_poll(be, fds, N, 10), fds[N - 1].revents);
	backend_close(be, a);
}
SAME_ON_ALL_BACKENDS(many_descriptors)

static void refusals_of_poll(struct backend *be)
{
	int a = backend_socket(be);
	struct pollfd fds[2] = {{.fd = a, .events = POLLIN}}, *bad;
	struct timespec odd[3] = {{0, 1000000000}, {-1, 0}, {0, -1}}, none = {0, 0};
	struct rlimit limit, low;

	bad = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 3; i++)
		say(be, "%d\n", backend_ppoll(be, fds, 1, &odd[i], NULL));
	say(be, "%d\n", backend_ppoll(be, fds, 1, &none, (sigset_t *)8));
	say(be, "%d\n", backend_ppoll(be, (struct pollfd *)8, 1, &none, NULL));
	bad->fd == 0 ? say(be, "%d\n", backend_ppoll(be, bad, 1, &none, NULL)) : 0;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = (struct rlimit){100, limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	{
		struct pollfd more[101];

		for (int i = 0; i < 101; i++)
			more[i] = (struct pollfd){.fd = i == 0 ? a : -1};
		say(be, "%d %d\n", backend_ppoll(be, more, 100, &none, NULL),
		    backend_ppoll(be, more, 101, &none, NULL));
	}
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	munmap(bad, 4096);
	backend_close(be, a);
}
static void test_refusals_of_poll(void **state)
{
	(void)state;
	SKIP_SIGNALS();
	run_scenario_in_all_backends(refusals_of_poll);
}

/* ---- select ---- */

static void say_select_result_and_fd_sets(struct backend *be, int rc, const int *fd, int n, fd_set *r, fd_set *wr,
                                          fd_set *e)
{
	say(be, "%d:", rc);
	for (int i = 0; i < n; i++)
		say(be, " %d%d%d", !!FD_ISSET(fd[i], r), !!FD_ISSET(fd[i], wr), !!FD_ISSET(fd[i], e));
	say(be, "\n");
}

static void select_fds_and_print_sets(struct backend *be, const int *fd, int n, int in, int out, int except, int msec)
{
	struct timespec timeout = timespec_from_msec(msec);
	fd_set r, wr, e;
	int most = 0;

	FD_ZERO(&r);
	FD_ZERO(&wr);
	FD_ZERO(&e);
	for (int i = 0; i < n; i++) {
		most = fd[i] > most ? fd[i] : most;
		in & 1 << i ? FD_SET(fd[i], &r) : (void)0;
		out & 1 << i ? FD_SET(fd[i], &wr) : (void)0;
		except & 1 << i ? FD_SET(fd[i], &e) : (void)0;
	}
	say_select_result_and_fd_sets(be, backend_pselect(be, most + 1, &r, &wr, &e, msec < 0 ? NULL : &timeout, NULL),
	                              fd, n, &r, &wr, &e);
}

static void select_returns_right_fd_set_bits(struct backend *be)
{
	int fd[4], pipes[2];

	fd[0] = backend_socket(be);
	fd[1] = backend_socket(be);
	assert_int_equal(pipe(pipes), 0);
	fd[2] = pipes[0];
	fd[3] = pipes[1];
	select_fds_and_print_sets(be, fd, 4, 7, 0, 15, 0);
	select_fds_and_print_sets(be, fd, 4, 7, 0, 15, 20);
	backend_make_datagram_arrive(be, fd[0]);
	usleep(1000);
	select_fds_and_print_sets(be, fd, 4, 7, 0, 15, 0);
	select_fds_and_print_sets(be, fd, 4, 7, 15, 15, 0);
	select_fds_and_print_sets(be, fd, 4, 2, 1, 0, -1);
	close(pipes[1]);
	usleep(1000);
	select_fds_and_print_sets(be, fd, 3, 7, 0, 7, 20);
	select_fds_and_print_sets(be, fd, 3, 2, 0, 4, 20); /* a hang-up that was not asked for */
	close(pipes[0]);
	select_fds_and_print_sets(be, fd, 3, 7, 0, 0, 20); /* closed: EBADF, bits as they were */
	backend_close(be, fd[0]);
	backend_close(be, fd[1]);
}
SAME_ON_ALL_BACKENDS(select_returns_right_fd_set_bits)

static void refusals_of_select(struct backend *be)
{
	int a = backend_socket(be);
	struct timespec odd = {0, 1000000000}, none = {0, 0};
	fd_set r;

	FD_ZERO(&r);
	FD_SET(a, &r);
	say(be, "%d\n", backend_pselect(be, a + 1, &r, NULL, NULL, &odd, NULL));
	say(be, "%d\n", backend_pselect(be, -1, &r, NULL, NULL, &none, NULL));
	say(be, "%d\n", backend_pselect(be, a + 1, &r, (fd_set *)8, NULL, &none, NULL));
	say(be, "still set %d\n", !!FD_ISSET(a, &r));
	say(be, "%d\n", backend_pselect(be, a, &r, NULL, NULL, &none, NULL));
	backend_close(be, a);
}
static void test_refusals_of_select(void **state)
{
	(void)state;
	SKIP_SIGNALS();
	run_scenario_in_all_backends(refusals_of_select);
}

/* getdtablesize() with a set of ordinary size: the kernel looks at what its table has room for. */
static void select_ignores_bits_beyond_fd_table(struct backend *be)
{
	char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd_set *r = (fd_set *)(memory + 4096 - sizeof(fd_set));
	struct timespec none = {0, 0};
	int a = backend_socket(be), none_open = FD_SETSIZE - 1;

	munmap(memory + 4096, 4096);
	FD_ZERO(r);
	FD_SET(a, r);
	backend_make_datagram_arrive(be, a);
	say(be, "%d %d\n", backend_pselect(be, 100000, r, NULL, NULL, &none, NULL), !!FD_ISSET(a, r));
	while (fcntl(none_open, F_GETFD) >= 0) /* the library's own */
		none_open--;
	FD_SET(none_open, r); /* beyond the table: not looked at */
	say(be, "%d\n", backend_pselect(be, FD_SETSIZE, r, NULL, NULL, &none, NULL));
	munmap(memory, 4096);
	backend_close(be, a);
}
SAME_ON_ALL_BACKENDS(select_ignores_bits_beyond_fd_table)

/* Beside what is ready: the second time right after the first. */
static void a_descriptor_that_is_not_open_is_told_each_time(struct backend *be)
{
	int a = backend_socket(be), closed = dup(0), fds[2] = {a, closed};

	close(closed);
	backend_make_datagram_arrive(be, a);
	for (int i = 0; i < 3; i++)
		select_fds_and_print_sets(be, fds, 2, 1, 0, 3, 0);
	backend_close(be, a);
}
SAME_ON_ALL_BACKENDS(a_descriptor_that_is_not_open_is_told_each_time)

static void sets_beyond_fd_setsize(struct backend *be)
{
	int a = backend_socket(be), high = fcntl(a, F_DUPFD, 3000);
	uint64_t r[64] = {0};
	struct timespec none = {0, 0};

	if (high < 0) {
		backend_close(be, a);
		vma_test_skip("descriptor 3000 is not to be had here");
	}
	if (be->kind != KERNEL)
		assert_int_equal(vma_fd_install(high, vma_fd_lookup(a)), 0);
	r[high / 64] |= 1ULL << high % 64;
	backend_make_datagram_arrive(be, a);
	say(be, "%d %d\n", backend_pselect(be, high + 1, (fd_set *)r, NULL, NULL, &none, NULL),
	    !!(r[high / 64] & 1ULL << high % 64));
	backend_recv(be, a);
	usleep(100);
	say(be, "%d %d\n", backend_pselect(be, high + 1, (fd_set *)r, NULL, NULL, &none, NULL),
	    !!(r[high / 64] & 1ULL << high % 64));
	backend_close(be, high);
	backend_close(be, a);
}
SAME_ON_ALL_BACKENDS(sets_beyond_fd_setsize)

/* ---- signals ---- */

static _Atomic int handled;
static void handler(int sig)
{
	(void)sig;
	atomic_fetch_add(&handled, 1);
}

/* As interpose does it for the application's sigaction. */
static void set_sigusr1_handler(struct backend *be, int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	if (be->kind == KERNEL)
		assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	else
		assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	atomic_store(&handled, 0);
}

/* Again and again until its wait has ended: on a busy machine the first may come before it has begun. */
struct signaller {
	pthread_t thread, whom;
	_Atomic bool ended;
};

static void *send_sigusr1_repeatedly_thread(void *arg)
{
	struct signaller *signaller = arg;

	do {
		usleep(30000);
		pthread_kill(signaller->whom, SIGUSR1);
	} while (!atomic_load(&signaller->ended));
	return NULL;
}

static void start_signaller_thread(struct signaller *signaller)
{
	*signaller = (struct signaller){.whom = pthread_self()};
	atomic_store(&handled, 0);
	assert_int_equal(pthread_create(&signaller->thread, NULL, send_sigusr1_repeatedly_thread, signaller), 0);
}

/* Whether a handler had run when the wait ended. */
static bool stop_signals_and_check_handler_had_run(struct signaller *signaller)
{
	const bool was_handled = atomic_load(&handled) > 0;

	atomic_store(&signaller->ended, true);
	pthread_join(signaller->thread, NULL);
	return was_handled;
}

static void a_signal_ends_a_wait_whatever_its_flags(struct backend *be)
{
	int a = backend_socket(be), ep = epoll_create1(0);
	struct pollfd pfd = {.fd = a, .events = POLLIN, .revents = 5};
	struct signaller signaller;
	struct epoll_event event;

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
	for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
		set_sigusr1_handler(be, flags);
		start_signaller_thread(&signaller);
		say(be, "%d", backend_poll(be, &pfd, 1, 5000));
		say(be, " %d %x\n", stop_signals_and_check_handler_had_run(&signaller), pfd.revents);
		start_signaller_thread(&signaller);
		say(be, "%d", backend_epoll_wait(be, ep, &event, 1, 5000));
		say(be, " %d\n", stop_signals_and_check_handler_had_run(&signaller));
	}
	backend_close(be, a);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(a_signal_ends_a_wait_whatever_its_flags)

static void a_mask_holds_for_the_time_of_the_call(struct backend *be)
{
	int a = backend_socket(be), ep = epoll_create1(0);
	struct pollfd pfd = {.fd = a, .events = POLLIN};
	struct timespec timeout = {0, 30000000}, none = {0, 0};
	sigset_t usr1, empty, before, now;
	struct epoll_event event;

	set_sigusr1_handler(be, 0);
	sigemptyset(&empty);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
	pthread_sigmask(SIG_BLOCK, &usr1, &before);
	pthread_kill(pthread_self(), SIGUSR1);
	say(be, "blocked: %d %d\n", backend_ppoll(be, &pfd, 1, &timeout, NULL), atomic_load(&handled));
	say(be, "open: %d", backend_ppoll(be, &pfd, 1, &timeout, &empty));
	say(be, " %d\n", atomic_load(&handled));
	pthread_kill(pthread_self(), SIGUSR1);
	say(be, "not waiting: %d", backend_ppoll(be, &pfd, 1, &none, &empty));
	say(be, " %d\n", atomic_load(&handled));
	pthread_kill(pthread_self(), SIGUSR1);
	say(be, "epoll, not waiting: %d", backend_epoll_pwait(be, ep, &event, 1, 0, &empty));
	say(be, " %d\n", atomic_load(&handled));
	say(be, "epoll: %d", backend_epoll_pwait(be, ep, &event, 1, 30, &empty));
	say(be, " %d\n", atomic_load(&handled));
	backend_make_datagram_arrive(be, a);
	pthread_kill(pthread_self(), SIGUSR1);
	say(be, "ready: %d", backend_ppoll(be, &pfd, 1, &timeout, &empty));
	say(be, " %d", atomic_load(&handled));
	say(be, " epoll: %d", backend_epoll_pwait(be, ep, &event, 1, 30, &empty));
	say(be, " %d\n", atomic_load(&handled));
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	say(be, "still blocked: %d\n", sigismember(&now, SIGUSR1));
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	say(be, "%d\n", atomic_load(&handled));
	backend_recv(be, a);
	pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
	pthread_kill(pthread_self(), SIGUSR1);
	say(be, "closed for the call: %d", backend_ppoll(be, &pfd, 1, &timeout, &usr1));
	say(be, " %d\n", atomic_load(&handled));
	backend_close(be, a);
	backend_close(be, ep);
}
static void test_a_mask_holds_for_the_time_of_the_call(void **state)
{
	(void)state;
	SKIP_SIGNALS(); /* handlers come late there, too */
	run_scenario_in_all_backends(a_mask_holds_for_the_time_of_the_call);
}

/* ---- what only ours can show ---- */

static void test_nothing_of_ours_is_the_kernels_call(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	int a = backend_socket(&be);
	struct pollfd pfd = {.fd = 0, .events = POLLIN};
	fd_set set;

	(void)state;
	FD_ZERO(&set);
	FD_SET(0, &set);
	assert_false(vma_iomux_poll_has_offloaded_fd(&pfd, 1));
	assert_false(vma_iomux_poll_has_offloaded_fd(&pfd, 0));
	assert_false(vma_iomux_must_handle_select(1, &set, NULL, NULL));
	assert_false(vma_iomux_must_handle_select(0, NULL, NULL, NULL));
	FD_SET(a, &set);
	assert_true(vma_iomux_must_handle_select(a + 1, NULL, NULL, &set));
	assert_false(vma_iomux_must_handle_select(a, NULL, NULL, &set));
	backend_close(&be, a);
}

/* (Where the C library reads it, and crashes.) */
static void test_a_bad_timeout_is_a_fault(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	int a = backend_socket(&be);
	struct pollfd pfd = {.fd = a, .events = POLLIN};
	fd_set set;

	(void)state;
	SKIP_SIGNALS();
	sigaction(SIGSEGV, &our_segv, NULL);
	FD_ZERO(&set);
	FD_SET(a, &set);
	assert_int_equal(backend_ppoll(&be, &pfd, 1, (struct timespec *)8, NULL), -EFAULT);
	assert_int_equal(backend_pselect(&be, a + 1, &set, NULL, NULL, (struct timespec *)8, NULL), -EFAULT);
	backend_close(&be, a);
}

static void test_what_is_left_of_the_timeout(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	int a = backend_socket(&be);
	struct timespec timeout = {10, 0}, left = {99, 9};
	struct vma_thread *self;
	struct later later;
	fd_set set;

	(void)state;
	FD_ZERO(&set);
	FD_SET(a, &set);
	begin_delayed_send(&later, &be, a, 100);
	self = vma_enter();
	assert_int_equal(vma_iomux_select(a + 1, &set, NULL, NULL, &timeout, NULL, &left), 1);
	join_delayed_send_thread(&later);
	assert_in_range(left.tv_sec * 1000 + left.tv_nsec / 1000000, 1, 9901); /* a busy machine takes more of it */
	backend_recv(&be, a);
	timeout = timespec_from_msec(1);
	assert_int_equal(vma_iomux_select(a + 1, &set, NULL, NULL, &timeout, NULL, &left), 0);
	assert_int_equal(left.tv_sec + left.tv_nsec, 0);
	vma_leave(self);
	backend_close(&be, a);
}

static void test_a_member_closed_by_another_thread_is_the_oss(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	int a = backend_socket(&be), b = backend_socket(&be);
	struct pollfd fds[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};

	(void)state;
	backend_close(&be, a);
	assert_int_equal(backend_poll(&be, fds, 2, -1), 1);
	assert_int_equal(fds[0].revents, POLLNVAL);
	assert_int_equal(fds[1].revents, 0);
	backend_make_datagram_arrive(&be, b);
	assert_int_equal(backend_poll(&be, fds, 2, -1), 2);
	assert_int_equal(fds[0].revents, POLLNVAL);
	assert_int_equal(fds[1].revents, POLLIN);
	backend_close(&be, b);
}

static void test_a_shadow_that_is_not_the_file_is_not_asked(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	int fd = socket(AF_INET, SOCK_STREAM, 0); /* for the kernel it has hung up */
	struct pollfd member = {.fd = fd, .events = POLLIN};
	struct timespec soon = {0, 1000000};
	fd_set readable;

	(void)state;
	assert_int_equal(fake_install_udp_file(fd), 0);
	atomic_store(&fake_file_of_fd(fd)->file.own_poll, true);
	assert_int_equal(backend_poll(&be, &member, 1, 0), 0);
	assert_int_equal(backend_poll(&be, &member, 1, 2), 0);
	FD_ZERO(&readable);
	FD_SET(fd, &readable);
	assert_int_equal(backend_pselect(&be, fd + 1, &readable, NULL, NULL, &soon, NULL), 0);
	fake_queue_datagram_and_wake(fake_file_of_fd(fd));
	assert_int_equal(backend_poll(&be, &member, 1, 100), 1);
	assert_int_equal(member.revents, POLLIN);
	atomic_store(&fake_file_of_fd(fd)->queued, 0);
	atomic_store(&fake_file_of_fd(fd)->file.own_poll, false);
	usleep(ASKED_AGAIN_USEC);
	assert_int_equal(backend_poll(&be, &member, 1, 100), 1);
	assert_int_equal(member.revents, POLLHUP);
	backend_close(&be, fd);
}

struct poller {
	pthread_t thread;
	struct backend be;
	int fd;
	struct vma_thread *_Atomic self;
};

static void *poll_one_fd_thread(void *arg)
{
	struct poller *poller = arg;
	struct pollfd member = {.fd = poller->fd, .events = POLLIN};

	atomic_store(&poller->self, vma_thread_self());
	backend_poll(&poller->be, &member, 1, 30000);
	return NULL;
}

static bool poller_sleeps_on_rings(struct poller *poller, uint64_t rings)
{
	struct vma_thread *self = atomic_load(&poller->self);

	return self != NULL && atomic_load(&self->state) == VMA_THREAD_ASLEEP && atomic_load(&self->rings) == rings;
}

static bool poller_sleeps_on_rings_within_5s(struct poller *poller, uint64_t rings)
{
	for (int msec = 0; msec < 5000 && !poller_sleeps_on_rings(poller, rings); msec++)
		usleep(1000);
	return poller_sleeps_on_rings(poller, rings);
}

/* As a socket that has moved does it. */
static void fake_change_rings_and_wake(struct fake *fake, uint64_t rings)
{
	struct vma_thread *self = vma_enter();

	atomic_store(&fake->rings, rings);
	vma_waitq_wake(&fake->file.waitq, true);
	vma_leave(self);
}

static void test_a_sleeper_goes_along_with_a_member_that_moves(void **state)
{
	struct poller poller = {.be = {.kind = OFFLOADED}};
	bool slept[2];

	(void)state;
	poller.fd = backend_socket(&poller.be);
	atomic_store(&fake_file_of_fd(poller.fd)->rings, 1 << 3);
	assert_int_equal(pthread_create(&poller.thread, NULL, poll_one_fd_thread, &poller), 0);
	slept[0] = poller_sleeps_on_rings_within_5s(&poller, 1 << 3);
	fake_change_rings_and_wake(fake_file_of_fd(poller.fd), 1 << 5);
	slept[1] = poller_sleeps_on_rings_within_5s(&poller, 1 << 5);
	fake_queue_datagram_and_wake(fake_file_of_fd(poller.fd));
	pthread_join(poller.thread, NULL);
	assert_true(slept[0] && slept[1]);
	backend_close(&poller.be, poller.fd);
}

static void *fake_become_writable_later(void *arg)
{
	usleep(300000); /* longer than anybody spins */
	fake_set_full(arg, false);
	return NULL;
}

/* Its shadow, which has nothing to send, is. */
static void test_a_file_that_is_full_is_not_writable_until_it_says_so(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	struct pollfd fds[1] = {{.fd = backend_socket(&be), .events = POLLIN | POLLOUT}};
	struct fake *fake = fake_file_of_fd(fds[0].fd);
	struct timespec timeout = {.tv_nsec = 1000000};
	uint64_t begun = msec_now();
	struct vma_thread *self;
	pthread_t thread;
	fd_set set;

	(void)state;
	fake_set_full(fake, true);
	assert_int_equal(backend_poll(&be, fds, 1, 0), 0);
	assert_int_equal(backend_poll(&be, fds, 1, 5), 0);
	fake_queue_datagram_and_wake(fake);
	assert_int_equal(backend_poll(&be, fds, 1, 5), 1);
	assert_int_equal(fds[0].revents & (POLLIN | POLLOUT), POLLIN);
	FD_ZERO(&set);
	FD_SET(fds[0].fd, &set);
	self = vma_enter();
	assert_int_equal(vma_iomux_select(fds[0].fd + 1, NULL, &set, NULL, &timeout, NULL, NULL), 0);
	vma_leave(self);
	fds[0].events = POLLOUT;
	assert_int_equal(pthread_create(&thread, NULL, fake_become_writable_later, fake), 0);
	assert_int_equal(backend_poll(&be, fds, 1, 10000), 1);
	assert_int_equal(fds[0].revents & POLLOUT, POLLOUT);
	pthread_join(thread, NULL);
	assert_true(msec_now() - begun < 9000); /* it was woken */
	backend_close(&be, fds[0].fd);
}

static void *fake_give_to_kernel_later_thread(void *arg)
{
	struct fake *fake = arg;
	struct vma_thread *self;

	usleep(300000);
	self = vma_enter();
	atomic_store(&fake->is_os, true);
	vma_waitq_wake(&fake->file.waitq, true);
	vma_leave(self);
	return NULL;
}

/* The shadow was not asked as long as the file was full; from now on nobody else knows. */
static void test_a_file_that_is_full_and_becomes_the_kernels_is_as_writable_as_its_shadow(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	struct pollfd fds[1] = {{.fd = backend_socket(&be), .events = POLLOUT}};
	struct fake *fake = fake_file_of_fd(fds[0].fd);
	pthread_t thread;

	(void)state;
	fake_set_full(fake, true);
	assert_int_equal(backend_poll(&be, fds, 1, 0), 0);
	assert_int_equal(pthread_create(&thread, NULL, fake_give_to_kernel_later_thread, fake), 0);
	assert_int_equal(backend_poll(&be, fds, 1, 5000), 1);
	assert_int_equal(fds[0].revents, POLLOUT);
	pthread_join(thread, NULL);
	backend_close(&be, fds[0].fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_poll_handles_mix_of_fds),
	        cmocka_unit_test(test_a_wait_ends_by_any_of_them_or_in_time),
	        cmocka_unit_test(test_many_descriptors),
	        cmocka_unit_test(test_refusals_of_poll),
	        cmocka_unit_test(test_select_returns_right_fd_set_bits),
	        cmocka_unit_test(test_refusals_of_select),
	        cmocka_unit_test(test_select_ignores_bits_beyond_fd_table),
	        cmocka_unit_test(test_a_descriptor_that_is_not_open_is_told_each_time),
	        cmocka_unit_test(test_sets_beyond_fd_setsize),
	        cmocka_unit_test(test_a_signal_ends_a_wait_whatever_its_flags),
	        cmocka_unit_test(test_a_mask_holds_for_the_time_of_the_call),
	        cmocka_unit_test(test_nothing_of_ours_is_the_kernels_call),
	        cmocka_unit_test(test_a_bad_timeout_is_a_fault),
	        cmocka_unit_test(test_what_is_left_of_the_timeout),
	        cmocka_unit_test(test_a_member_closed_by_another_thread_is_the_oss),
	        cmocka_unit_test(test_a_shadow_that_is_not_the_file_is_not_asked),
	        cmocka_unit_test(test_a_sleeper_goes_along_with_a_member_that_moves),
	        cmocka_unit_test(test_a_file_that_is_full_is_not_writable_until_it_says_so),
	        cmocka_unit_test(test_a_file_that_is_full_and_becomes_the_kernels_is_as_writable_as_its_shadow),
	};

	return run_backends(__FILE__, tests, sizeof(tests) / sizeof(tests[0]));
}
