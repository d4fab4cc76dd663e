/* A socket goes on with the ring of the thread that receives from it: what moves, what stays, and the order. */
#include <pthread.h>
#include <stdio.h>

#include "../recv.h"
#include "control_fixture.h"

enum { RATIO = 10 };

static const struct udp_attachments *attachments_of_fd(int fd)
{
	return atomic_load(&control_fixture_sock_of(fd)->attachments);
}

static void *receive_many_times_thread(void *arg)
{
	for (int i = 0; i < 2 * RATIO; i++)
		control_fixture_receive(*(int *)arg);
	return NULL;
}

/* Another thread looks so often that the socket is to move. */
static void move_to_another_thread(int fd)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, receive_many_times_thread, &fd), 0);
	pthread_join(thread, NULL);
}

static uint64_t rx_migrations(int fd)
{
	return vma_stats_read_counter(&control_fixture_sock_of(fd)->stats->rx_migrations);
}

static int open_socket_bound_to(const char *address, uint16_t port)
{
	int fd = fixture_open_offloaded_udp_socket();

	assert_int_equal(control_fixture_bind_to(fd, address, port), 0);
	control_fixture_receive(fd);
	return fd;
}

static void test_a_socket_goes_on_with_the_ring_of_another_thread(void **state)
{
	int fd = open_socket_bound_to("10.77.0.1", 36910);
	const uint64_t rings = attachments_of_fd(fd)->rings;

	(void)state;
	move_to_another_thread(fd);
	assert_int_equal(rx_migrations(fd), 1);
	assert_int_equal(attachments_of_fd(fd)->rings & rings, 0);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36910, "there");
	assert_string_equal(control_fixture_receive(fd), "there");
	control_fixture_close(fd);
}

/* What is queued before the move is received by nobody until after it. */
static void *peek_many_times_thread(void *arg)
{
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};

	for (int i = 0; i < 2 * RATIO; i++) {
		struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
		struct vma_thread *self = vma_enter();
		struct vma_file *file = vma_fd_lookup(*(int *)arg);

		file->ops->recvmsg(file, *(int *)arg, &msg, MSG_DONTWAIT | MSG_PEEK);
		vma_leave(self);
	}
	return NULL;
}

static void test_what_was_queued_before_the_move_is_received_first(void **state)
{
	int fd = open_socket_bound_to("10.77.0.1", 36911);
	pthread_t thread;
	char text[16];

	(void)state;
	for (int i = 0; i < 3; i++) {
		for (int at = 0; at < 2; at++) {
			snprintf(text, sizeof(text), "%d", 2 * i + at);
			peer_send("10.77.0.2", 7000, "10.77.0.1", 36911, text);
		}
		assert_int_equal(pthread_create(&thread, NULL, peek_many_times_thread, &fd), 0);
		pthread_join(thread, NULL);
		assert_int_equal(rx_migrations(fd), i + 1);
		assert_int_equal(attachments_of_fd(fd)->left, i + 1);
	}
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36911, "6");
	for (int i = 0; i < 7; i++) {
		snprintf(text, sizeof(text), "%d", i);
		assert_string_equal(control_fixture_receive(fd), text);
	}
	assert_string_equal(control_fixture_receive(fd), "");
	assert_int_equal(attachments_of_fd(fd)->n, 1);
	assert_int_equal(attachments_of_fd(fd)->left, 0);
	control_fixture_close(fd);
}

static void test_all_addresses_of_a_socket_move_together(void **state)
{
	int fd = open_socket_bound_to("0.0.0.0", 36912);

	(void)state;
	move_to_another_thread(fd);
	assert_int_equal(rx_migrations(fd), 1);
	assert_int_equal(attachments_of_fd(fd)->n, 1);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36912, "one");
	peer_send("10.77.0.2", 7000, "10.77.0.255", 36912, "all here");
	peer_send("10.77.0.2", 7000, "255.255.255.255", 36912, "all");
	assert_string_equal(control_fixture_receive(fd), "one");
	assert_string_equal(control_fixture_receive(fd), "all here");
	assert_string_equal(control_fixture_receive(fd), "all");
	control_fixture_update_flows(fd);
	assert_int_equal(attachments_of_fd(fd)->n, 1);
	control_fixture_close(fd);
}

static void test_sockets_that_share_a_port_stay_until_one_is_alone(void **state)
{
	int a = fixture_open_offloaded_udp_socket(), b = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(a, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(b, SOL_SOCKET, SO_REUSEADDR, 1);
	assert_int_equal(control_fixture_bind_to(a, "10.77.0.1", 36913), 0);
	assert_int_equal(control_fixture_bind_to(b, "10.77.0.1", 36913), 0);
	control_fixture_receive(b);
	move_to_another_thread(b);
	assert_int_equal(rx_migrations(b), 0);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36913, "new");
	assert_string_equal(control_fixture_receive(b), "new");
	control_fixture_close(a);
	move_to_another_thread(b);
	assert_int_equal(rx_migrations(b), 1);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36913, "alone");
	assert_string_equal(control_fixture_receive(b), "alone");
	control_fixture_close(b);
}

static void test_a_socket_of_the_kernel_counts_and_does_not_move(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	fixture.no_device = true;
	control_fixture_bind_to(fd, "10.77.0.1", 36914);
	move_to_another_thread(fd);
	assert_int_equal(rx_migrations(fd), 0);
	fixture.no_device = false;
	control_fixture_update_flows(fd);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	control_fixture_close(fd);
}

static void test_drops_are_counted_on_when_a_queue_is_left(void **state)
{
	int fd = open_socket_bound_to("10.77.0.1", 36915);
	struct udp_sock *sock = control_fixture_sock_of(fd);

	(void)state;
	atomic_store(&attachments_of_fd(fd)->at[0]->queue.dropped, 5);
	move_to_another_thread(fd);
	assert_int_equal(rx_migrations(fd), 1);
	control_fixture_receive(fd);
	assert_int_equal(atomic_load(&sock->drops_ended), 5);
	control_fixture_close(fd);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_socket_goes_on_with_the_ring_of_another_thread),
        cmocka_unit_test(test_what_was_queued_before_the_move_is_received_first),
        cmocka_unit_test(test_all_addresses_of_a_socket_move_together),
        cmocka_unit_test(test_sockets_that_share_a_port_stay_until_one_is_alone),
        cmocka_unit_test(test_a_socket_of_the_kernel_counts_and_does_not_move),
        cmocka_unit_test(test_drops_are_counted_on_when_a_queue_is_left),
};

int main(void)
{
	setenv("VMA_RING_ALLOCATION_LOGIC_RX", "20", 1);
	setenv("VMA_RING_MIGRATION_RATIO_RX", "10", 1);
	return control_fixture_run_tests("migrate", tests, sizeof(tests) / sizeof(tests[0]));
}
