/*
 * What vmad has closed by threads: one that waits delays no other one, and does not wait for ever.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vma/test.h>

#include "../vmad/closer.h"

enum { JOBS = 40 };

static uint64_t closer_test_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static struct vmad_fd_closer *create_test_closer(void)
{
	struct vmad_fd_closer *closer;

	assert_int_equal(vmad_fd_closer_create(JOBS, &closer), 0);
	return closer;
}

/* As vmad's loop does. */
static bool await_closer_job_done(struct vmad_fd_closer *closer, unsigned job, uint64_t within_ms)
{
	const uint64_t until = closer_test_now_ms() + within_ms;

	while (vmad_fd_closer_job_is_running(closer, job) && closer_test_now_ms() < until) {
		struct pollfd heard = {.fd = vmad_fd_closer_done_fd(closer), .events = POLLIN};

		if (poll(&heard, 1, 20) > 0)
			vmad_fd_closer_drain_done_fd(closer);
		vmad_fd_closer_signal_late_jobs(closer, closer_test_now_ms());
	}
	return !vmad_fd_closer_job_is_running(closer, job);
}

/* A socket whose close waits for up to a minute; its peer, which reads nothing, into *peer. */
static int open_socket_with_slow_close(int *peer)
{
	const struct linger linger = {.l_onoff = 1, .l_linger = 60};
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(address);
	static char bytes[65536];
	const int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &len), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, len), 0);
	*peer = accept(listener, NULL, NULL);
	assert_true(*peer >= 0);
	close(listener);
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	return fd;
}

static int open_test_udp_socket(void)
{
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);

	assert_true(fd >= 0);
	return fd;
}

static void test_a_close_that_waits_delays_no_other_one(void **state)
{
	struct vmad_fd_closer *closer = create_test_closer();
	int peer[JOBS / 2], fd;

	(void)state;
	for (unsigned i = 0; i < JOBS / 2; i++) {
		fd = open_socket_with_slow_close(&peer[i]);
		vmad_fd_closer_submit(closer, i, &fd, 1);
	}
	for (unsigned i = JOBS / 2; i < JOBS; i++) {
		fd = open_test_udp_socket();
		vmad_fd_closer_submit(closer, i, &fd, 1);
	}
	for (unsigned i = JOBS / 2; i < JOBS; i++)
		assert_true(await_closer_job_done(closer, i, 10000));
	for (unsigned i = 0; i < JOBS / 2; i++)
		close(peer[i]);
	for (unsigned i = 0; i < JOBS / 2; i++)
		assert_true(await_closer_job_done(closer, i, 10000));
	vmad_fd_closer_destroy(closer);
}

static void test_a_close_does_not_wait_for_as_long_as_a_client_likes(void **state)
{
	struct vmad_fd_closer *closer = create_test_closer();
	const uint64_t begun = closer_test_now_ms();
	int peer[2], fds[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		fds[i] = open_socket_with_slow_close(&peer[i]);
	vmad_fd_closer_submit(closer, 0, fds, 2);
	assert_false(vmad_fd_closer_job_is_late(closer, 0, begun));
	assert_true(await_closer_job_done(closer, 0, 30000));
	assert_true(closer_test_now_ms() - begun >= VMAD_CLOSE_LATE_MS / 2);
	for (int i = 0; i < 2; i++)
		close(peer[i]);
	vmad_fd_closer_destroy(closer);
}

static void test_it_settles_when_all_is_out_of_the_table(void **state)
{
	struct vmad_fd_closer *closer = create_test_closer();
	int peer[2], fds[2], fd;

	(void)state;
	for (int i = 0; i < 2; i++)
		fds[i] = open_socket_with_slow_close(&peer[i]);
	fd = fds[0];
	vmad_fd_closer_submit(closer, 0, &fd, 1);
	/* A machine that is busy may not have begun yet. */
	for (int i = 0; i < 500 && !vmad_fd_closer_wait_all_closed(closer); i++)
		;
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	vmad_fd_closer_submit(closer, 1, (int[]){fds[1], open_test_udp_socket()}, 2);
	assert_false(vmad_fd_closer_wait_all_closed(closer)); /* the second one waits for the first */
	assert_true(await_closer_job_done(closer, 0, 30000));
	assert_true(await_closer_job_done(closer, 1, 30000));
	assert_true(vmad_fd_closer_wait_all_closed(closer));
	for (int i = 0; i < 2; i++)
		close(peer[i]);
	vmad_fd_closer_destroy(closer);
}

static void test_it_may_go_while_something_is_closed(void **state)
{
	struct vmad_fd_closer *closer = create_test_closer();
	int peer, fd = open_socket_with_slow_close(&peer);

	(void)state;
	vmad_fd_closer_submit(closer, 0, &fd, 1);
	fd = open_test_udp_socket();
	vmad_fd_closer_submit(closer, 1, &fd, 1);
	vmad_fd_closer_destroy(closer);
	close(peer);
	for (int i = 0; i < 500 && fcntl(fd, F_GETFD) >= 0; i++)
		poll(NULL, 0, 20);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void test_of_nothing_nothing_is_closed(void **state)
{
	struct vmad_fd_closer *closer = create_test_closer();
	const int none = -1;

	(void)state;
	vmad_fd_closer_submit(closer, 0, &none, 1);
	vmad_fd_closer_submit(closer, 0, NULL, 0);
	assert_false(vmad_fd_closer_job_is_running(closer, 0));
	vmad_fd_closer_destroy(closer);
	vmad_fd_closer_destroy(NULL);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_close_that_waits_delays_no_other_one),
        cmocka_unit_test(test_a_close_does_not_wait_for_as_long_as_a_client_likes),
        cmocka_unit_test(test_it_settles_when_all_is_out_of_the_table),
        cmocka_unit_test(test_it_may_go_while_something_is_closed),
        cmocka_unit_test(test_of_nothing_nothing_is_closed),
};

VMA_TEST_MAIN(tests)
