/* Several threads wait for one set, or one of them in the kernel: each event wakes one, and nobody is left behind. */
#include <sys/resource.h>

#include "backends.h"

#define THREADS 4

struct crew {
	struct backend *be;
	int ep, msec;
	uint32_t events;
	pthread_t thread[THREADS];
	_Atomic int got, returned;
};

static void *sleepers_wait_once(void *arg)
{
	struct crew *crew = arg;
	struct epoll_event event;
	int n = backend_epoll_wait(crew->be, crew->ep, &event, 1, crew->msec);

	if (n == 1)
		atomic_fetch_add(&crew->got, 1);
	atomic_fetch_add(&crew->returned, 1);
	return NULL;
}

static void start_sleeper_threads(struct crew *crew)
{
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&crew->thread[i], NULL, sleepers_wait_once, crew), 0);
	usleep(50000); /* asleep by now */
}

static void wait_until_n_threads_returned(struct crew *crew, int n)
{
	for (int msec = 0; msec < 2000 && atomic_load(&crew->returned) < n; msec++)
		usleep(1000);
}

static void join_sleeper_threads(struct crew *crew)
{
	for (int i = 0; i < THREADS; i++)
		pthread_join(crew->thread[i], NULL);
}

/* n of them should be. */
static void say_count_of_returned_threads(struct crew *crew, int n)
{
	wait_until_n_threads_returned(crew, n);
	usleep(20000); /* for those who should sleep on */
	say(crew->be, "%d of %d\n", atomic_load(&crew->got), atomic_load(&crew->returned));
}

static void one_edge_wakes_one_thread(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be);
	struct crew crew = {.be = be, .ep = ep, .msec = 5000};

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1);
	start_sleeper_threads(&crew);
	for (int i = 1; i <= THREADS; i++) {
		backend_make_datagram_arrive(be, fd);
		say_count_of_returned_threads(&crew, i);
	}
	join_sleeper_threads(&crew);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(one_edge_wakes_one_thread)

static void every_member_wakes_its_own_thread(struct backend *be)
{
	int ep = epoll_create1(0), fd[THREADS];
	struct crew crew = {.be = be, .ep = ep, .msec = 5000};
	uint64_t begun = msec_now();

	for (int i = 0; i < THREADS; i++) {
		fd[i] = backend_socket(be);
		backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd[i], EPOLLIN | EPOLLONESHOT, 1);
	}
	start_sleeper_threads(&crew);
	for (int i = 0; i < THREADS; i++)
		backend_make_datagram_arrive(be, fd[i]);
	join_sleeper_threads(&crew);
	say(be, "%d, in time: %d\n", atomic_load(&crew.got), msec_now() - begun < 2000);
	for (int i = 0; i < THREADS; i++)
		backend_close(be, fd[i]);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(every_member_wakes_its_own_thread)

/* The set was the kernel's when the threads began to wait for it. */
static void threads_in_the_kernel_come_out_when_the_set_becomes_ours(struct backend *be)
{
	int ep = epoll_create1(0), pipes[2], fd[THREADS];
	struct crew crew = {.be = be, .ep = ep, .msec = 5000};
	uint64_t begun = msec_now();

	assert_int_equal(pipe(pipes), 0);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 2);
	start_sleeper_threads(&crew);
	for (int i = 0; i < THREADS; i++) {
		fd[i] = backend_socket(be);
		backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd[i], EPOLLIN | EPOLLONESHOT, 1);
	}
	usleep(50000);
	say(be, "%d\n", atomic_load(&crew.returned));
	for (int i = 0; i < THREADS; i++)
		backend_make_datagram_arrive(be, fd[i]);
	join_sleeper_threads(&crew);
	say(be, "%d, in time: %d\n", atomic_load(&crew.got), msec_now() - begun < 2000);
	backends_say_epoll_wait(be, ep, 8, 0);
	close(pipes[0]);
	close(pipes[1]);
	for (int i = 0; i < THREADS; i++)
		backend_close(be, fd[i]);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(threads_in_the_kernel_come_out_when_the_set_becomes_ours)

static void a_member_added_while_others_sleep_wakes_them(struct backend *be)
{
	int ep = epoll_create1(0), first = backend_socket(be), fd = backend_socket(be);
	struct crew crew = {.be = be, .ep = ep, .msec = 5000};

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, first, EPOLLIN, 1);
	backend_make_datagram_arrive(be, fd);
	start_sleeper_threads(&crew);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 2);
	say_count_of_returned_threads(&crew, 1);
	backend_epoll_ctl(be, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 2);
	say_count_of_returned_threads(&crew, 2);
	backend_make_datagram_arrive(be, first); /* level: all are told */
	join_sleeper_threads(&crew);
	say(be, "%d\n", atomic_load(&crew.got));
	backend_close(be, fd);
	backend_close(be, first);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(a_member_added_while_others_sleep_wakes_them)

static void a_member_of_the_os_wakes_too(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be), event = eventfd(0, 0);
	struct crew crew = {.be = be, .ep = ep, .msec = 5000};

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, event, EPOLLIN, 2);
	start_sleeper_threads(&crew);
	eventfd_write(event, 1);
	join_sleeper_threads(&crew);
	say(be, "%d\n", atomic_load(&crew.got)); /* level: all are told */
	close(event);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(a_member_of_the_os_wakes_too)

struct poller {
	struct backend *be;
	struct pollfd fds[2]; /* the second ends it */
	int n;
	_Atomic bool done;
};

static void *sleepers_poll_once(void *arg)
{
	struct poller *poller = arg;

	poller->n = backend_poll(poller->be, poller->fds, 2, 5000);
	atomic_store(&poller->done, true);
	return NULL;
}

/* The first in the queue waits for an error: a datagram is none of its business. */
static void a_datagram_wakes_the_one_who_waits_for_data(struct backend *be)
{
	struct poller pollers[2] = {{.be = be}, {.be = be, .fds[0].events = POLLIN}};
	int fd = backend_socket(be), event = eventfd(0, 0);
	pthread_t threads[2];

	for (int i = 0; i < 2; i++) {
		pollers[i].fds[0].fd = fd;
		pollers[i].fds[1] = (struct pollfd){.fd = event, .events = POLLIN};
		assert_int_equal(pthread_create(&threads[i], NULL, sleepers_poll_once, &pollers[i]), 0);
		usleep(50000); /* asleep by now */
	}
	backend_make_datagram_arrive(be, fd);
	for (int msec = 0; msec < 2000 && !atomic_load(&pollers[1].done); msec++)
		usleep(1000);
	say(be, "%d %d\n", atomic_load(&pollers[0].done), atomic_load(&pollers[1].done));
	eventfd_write(event, 1);
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		say(be, "%d: %x\n", pollers[i].n, pollers[i].fds[0].revents);
	}
	close(event);
	backend_close(be, fd);
}
SAME_ON_ALL_BACKENDS(a_datagram_wakes_the_one_who_waits_for_data)

static uint64_t cpu_usec(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void test_sleepers_stay_asleep_after_one_of_them_was_woken(void **state)
{
	struct backend be = {.kind = OFFLOADED};
	int ep = epoll_create1(0), fd = backend_socket(&be);
	struct crew crew = {.be = &be, .ep = ep, .msec = 10000};
	uint64_t before;

	(void)state;
	backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1);
	start_sleeper_threads(&crew);
	before = cpu_usec();
	backend_make_datagram_arrive(&be, fd);
	wait_until_n_threads_returned(&crew, 1);
	usleep(500000);
	assert_true(cpu_usec() - before < 50000);
	assert_int_equal(atomic_load(&crew.returned), 1);
	for (int i = 2; i <= THREADS; i++) {
		backend_make_datagram_arrive(&be, fd);
		wait_until_n_threads_returned(&crew, i);
	}
	join_sleeper_threads(&crew);
	backend_close(&be, fd);
	backend_close(&be, ep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_one_edge_wakes_one_thread),
	        cmocka_unit_test(test_every_member_wakes_its_own_thread),
	        cmocka_unit_test(test_threads_in_the_kernel_come_out_when_the_set_becomes_ours),
	        cmocka_unit_test(test_a_member_added_while_others_sleep_wakes_them),
	        cmocka_unit_test(test_a_member_of_the_os_wakes_too),
	        cmocka_unit_test(test_a_datagram_wakes_the_one_who_waits_for_data),
	        cmocka_unit_test(test_sleepers_stay_asleep_after_one_of_them_was_woken),
	};

	return run_backends(__FILE__, tests, sizeof(tests) / sizeof(tests[0]));
}
