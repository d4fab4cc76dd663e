/* A connection that cannot be handed over to the kernel, whichever step fails, goes on here as before. */
#include "fixture.h"

#include <netinet/tcp.h>

#include <vma/nic_repair.h>

/* The kernel's part, as far as the test says: TCP_REPAIR and the like are answered here, all else is real. */
static struct {
	int (*setsockopt)(int fd, int level, int name, const void *value, socklen_t len);
	int fails_at, error; /* the n-th of these calls */
	int calls;
	bool repairing;
} kernel;

static int fake_setsockopt_of_tcp_repair(int fd, int level, int name, const void *value, socklen_t len)
{
	const bool is_repair =
	        level == IPPROTO_TCP && (name == TCP_REPAIR || name == TCP_REPAIR_QUEUE || name == TCP_QUEUE_SEQ ||
	                                 name == TCP_REPAIR_OPTIONS || name == TCP_REPAIR_WINDOW);
	int on;

	if (!is_repair)
		return kernel.setsockopt(fd, level, name, value, len);
	if (++kernel.calls == kernel.fails_at) {
		errno = kernel.error;
		return -1;
	}
	if (name == TCP_REPAIR) {
		memcpy(&on, value, sizeof(on));
		kernel.repairing = on == TCP_REPAIR_ON;
	}
	return 0;
}

static int try_stream_to_kernel(int fd)
{
	struct stream_sock *sock = fixture_sock_of(fd);
	struct vma_thread *self = vma_enter();
	int rc;

	pthread_mutex_lock(&sock->file.lock);
	stream_so_cookie(sock, fd);
	rc = stream_hand_over_conn_to_kernel(sock, fd, VMA_SOCK_FORKED);
	pthread_mutex_unlock(&sock->file.lock);
	vma_leave(self);
	return rc;
}

static void expect_conversation_goes_on(int fd, struct fixture_conn *peer)
{
	char got[8] = "";

	fixture_peer_send(peer, "to us", 5);
	fixture_until(vma_tcp_readable_bytes(stream_tcp_conn(fixture_sock_of(fd))) == 5);
	assert_int_equal(do_recv(fd, got, sizeof(got), 0), 5);
	assert_memory_equal(got, "to us", 5);
	assert_int_equal(do_send(fd, "to you", 6, 0), 6);
	fixture_until(vma_tcp_readable_bytes(peer->conn) == 6);
	assert_int_equal(fixture_peer_recv(peer, got, sizeof(got)), 6);
	assert_memory_equal(got, "to you", 6);
}

static void check_failed_repair_call_is_undone(int call, int error)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	struct sockaddr_in before = {0}, after = {0};
	socklen_t len = sizeof(before);

	assert_int_equal(vma_os.getsockname(fd, (struct sockaddr *)&before, &len), 0);
	kernel.setsockopt = vma_repair_setsockopt;
	kernel.calls = 0;
	kernel.fails_at = call;
	kernel.error = error;
	vma_repair_setsockopt = fake_setsockopt_of_tcp_repair;
	assert_int_equal(try_stream_to_kernel(fd), -error);
	vma_repair_setsockopt = kernel.setsockopt;
	assert_false(kernel.repairing);
	assert_false(fixture_sock_of(fd)->file.os_only);
	assert_int_equal(vma_os.getsockname(fd, (struct sockaddr *)&after, &len), 0);
	assert_int_equal(after.sin_port, before.sin_port); /* the port is still reserved */
	expect_conversation_goes_on(fd, peer);
	fixture_close_conn_pair(fd, listener, peer);
}

static void test_without_the_right_to_it_it_goes_on_here(void **state)
{
	(void)state;
	check_failed_repair_call_is_undone(1, EPERM);
	assert_int_equal(kernel.calls, 1); /* nothing had to be undone */
}

/* On, queue, number, queue, number: before the shadow is connected, which only a kernel that repairs does quietly. */
static void test_a_step_that_fails_is_undone(void **state)
{
	(void)state;
	for (int call = 2; call <= 5; call++) {
		check_failed_repair_call_is_undone(call, EINVAL);
		assert_int_equal(kernel.calls, call + 1); /* and off */
	}
}

static void test_what_has_no_connection_is_not_moved(void **state)
{
	int fd = fixture_stream_socket(0);

	(void)state;
	assert_int_equal(try_stream_to_kernel(fd), -ENOTCONN);
	do_close(fd);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_the_right_to_it_it_goes_on_here),
        cmocka_unit_test(test_a_step_that_fails_is_undone),
        cmocka_unit_test(test_what_has_no_connection_is_not_moved),
};
FIXTURE_MAIN("move", tests)
