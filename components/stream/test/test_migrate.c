/* A connection goes on with the ring of the thread that uses it, and no ring is made for one that stays. */
#include "fixture.h"

#include <stdlib.h>

enum { RATIO = 10 };

static struct {
	struct vma_nic_ops ops;
	const struct vma_nic_ops *before;
	unsigned made; /* queue pairs */
} device;

static int count_qp_create(struct vma_nic *nic, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out)
{
	device.made++;
	return device.before->qp_create(nic, attr, out);
}

static int hook_qp_create_op(void **state)
{
	(void)state;
	device.before = fixture.end[0]->ops;
	device.ops = *device.before;
	device.ops.qp_create = count_qp_create;
	fixture.end[0]->ops = &device.ops;
	return 0;
}

static int restore_qp_create_op(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;

	(void)state;
	conf->tcp_3t_rules = false;
	fixture.end[0]->ops = device.before;
	return 0;
}

struct receiver_that_looks {
	int fd;
	uint64_t rings; /* of the socket, afterwards */
};

static void *receive_often_without_waiting(void *arg)
{
	struct receiver_that_looks *receiver_that_looks = arg;
	char byte;

	for (int i = 0; i < 2 * RATIO; i++)
		do_recv(receiver_that_looks->fd, &byte, 1, MSG_DONTWAIT);
	receiver_that_looks->rings = stream_ring_bits(vma_fd_lookup(receiver_that_looks->fd));
	return NULL;
}

/* Another thread uses the socket so often that it is to move. How many rings that made. */
static unsigned rings_created_by_use_in_other_thread(int fd)
{
	struct receiver_that_looks receiver_that_looks = {.fd = fd};
	pthread_t thread;

	device.made = 0;
	assert_int_equal(pthread_create(&thread, NULL, receive_often_without_waiting, &receiver_that_looks), 0);
	pthread_join(thread, NULL);
	return device.made;
}

static uint64_t rx_migration_count_of_fd(int fd)
{
	return vma_stats_read_counter(&fixture_sock_of(fd)->stats->rx_migrations);
}

static uint64_t refused_migrations_of_fd(int fd)
{
	return vma_stats_read_counter(&fixture_sock_of(fd)->stats->migrations_refused);
}

static void test_a_connection_goes_on_with_the_ring_of_another_thread(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	const uint64_t rings = stream_ring_bits(vma_fd_lookup(fd));
	char got[8] = "";

	(void)state;
	assert_int_equal(rings_created_by_use_in_other_thread(fd), 1);
	assert_int_equal(rx_migration_count_of_fd(fd), 1);
	assert_int_equal(stream_ring_bits(vma_fd_lookup(fd)) & rings, 0);
	fixture_peer_send(peer, "there", 5);
	fixture_until(vma_tcp_readable_bytes(stream_tcp_conn(fixture_sock_of(fd))) == 5);
	assert_int_equal(do_recv(fd, got, sizeof(got), 0), 5);
	fixture_close_conn_pair(fd, listener, peer);
}

/* With VMA_TCP_3T_RULES: its listener's rule covers it. */
struct conn_covered_by_3tuple_rule {
	int listener, fd;
	struct fixture_conn peer;
};

static void open_conn_covered_by_3tuple_rule(struct conn_covered_by_3tuple_rule *conn_covered_by_3tuple_rule,
                                             uint16_t port)
{
	vma_engine_get_or_start()->conf.tcp_3t_rules = true;
	conn_covered_by_3tuple_rule->listener = fixture_stream_socket(SOCK_NONBLOCK);
	assert_int_equal(do_bind(conn_covered_by_3tuple_rule->listener, FIXTURE_LOCAL, port), 0);
	assert_int_equal(do_listen(conn_covered_by_3tuple_rule->listener, 4), 0);
	fixture_peer_connect(&conn_covered_by_3tuple_rule->peer, 2000, port);
	fixture_until((conn_covered_by_3tuple_rule->fd =
	                       do_accept(conn_covered_by_3tuple_rule->listener, NULL, SOCK_NONBLOCK)) != -EAGAIN);
	assert_true(conn_covered_by_3tuple_rule->fd >= 0);
	assert_false(vma_tcp_conn_has_own_nic_rule(stream_tcp_conn(fixture_sock_of(conn_covered_by_3tuple_rule->fd))));
}

static void close_conn_covered_by_3tuple_rule(struct conn_covered_by_3tuple_rule *conn_covered_by_3tuple_rule)
{
	do_close(conn_covered_by_3tuple_rule->fd);
	do_close(conn_covered_by_3tuple_rule->listener);
	fixture_peer_reset_and_free_conn(&conn_covered_by_3tuple_rule->peer);
	fixture_wait_until_no_connections();
}

static void test_no_ring_is_made_for_a_connection_that_is_to_have_no_rule(void **state)
{
	struct conn_covered_by_3tuple_rule conn_covered_by_3tuple_rule;

	(void)state;
	open_conn_covered_by_3tuple_rule(&conn_covered_by_3tuple_rule, 7120);
	assert_int_equal(rings_created_by_use_in_other_thread(conn_covered_by_3tuple_rule.fd), 0);
	assert_int_equal(rx_migration_count_of_fd(conn_covered_by_3tuple_rule.fd), 0);
	assert_int_equal(refused_migrations_of_fd(conn_covered_by_3tuple_rule.fd), 1);
	close_conn_covered_by_3tuple_rule(&conn_covered_by_3tuple_rule);
}

static void test_no_ring_is_made_for_a_connection_that_is_over(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);

	(void)state;
	fixture_peer_reset_and_free_conn(peer);
	fixture_until(do_poll(fd) & EPOLLHUP);
	assert_int_equal(rings_created_by_use_in_other_thread(fd), 0);
	assert_int_equal(rx_migration_count_of_fd(fd), 0);
	fixture_close_conn_pair(fd, listener, peer);
}

/* Of its own thread's ring it is said before anything is looked at that could keep the connection. */
static void test_a_connection_that_is_at_home_is_not_refused(void **state)
{
	struct receiver_that_looks receiver_that_looks;
	struct conn_covered_by_3tuple_rule conn_covered_by_3tuple_rule;

	(void)state;
	open_conn_covered_by_3tuple_rule(&conn_covered_by_3tuple_rule, 7121);
	receiver_that_looks.fd = conn_covered_by_3tuple_rule.fd;
	receive_often_without_waiting(&receiver_that_looks);
	assert_int_equal(refused_migrations_of_fd(conn_covered_by_3tuple_rule.fd), 0);
	assert_int_equal(rx_migration_count_of_fd(conn_covered_by_3tuple_rule.fd), 0);
	close_conn_covered_by_3tuple_rule(&conn_covered_by_3tuple_rule);
}

#define MIGRATE_CASE(name) cmocka_unit_test_setup_teardown(name, hook_qp_create_op, restore_qp_create_op)
static const struct CMUnitTest tests[] = {
        MIGRATE_CASE(test_a_connection_goes_on_with_the_ring_of_another_thread),
        MIGRATE_CASE(test_no_ring_is_made_for_a_connection_that_is_to_have_no_rule),
        MIGRATE_CASE(test_no_ring_is_made_for_a_connection_that_is_over),
        MIGRATE_CASE(test_a_connection_that_is_at_home_is_not_refused),
};

int main(void)
{
	setenv("VMA_RING_ALLOCATION_LOGIC_RX", "20", 1);
	setenv("VMA_RING_MIGRATION_RATIO_RX", "10", 1);
	return fixture_run_tests("migrate", tests, sizeof(tests) / sizeof(tests[0]));
}
