/*
 * A device whose rules take what is the kernel's: a listener gives it what nobody here knows, and answers for what was
 * here a moment ago.
 */
#include "raw.h"

enum { KEPT = 64 };

static struct vma_nic_ops ops_to_kernel;
static struct {
	unsigned count;
	uint32_t seq[KEPT]; /* relative to the raw peer's */
	uint8_t flags[KEPT];
	int rc;
} kernel;

static int record_segment_for_kernel(struct vma_nic_qp *qp, const struct vma_buf *packet)
{
	const uint8_t *tcp = (const uint8_t *)vma_buf_data(qp->arena, packet) + packet->l4_off;

	if (kernel.rc < 0)
		return kernel.rc;
	assert_true(kernel.count < KEPT);
	kernel.seq[kernel.count] = raw_load_be32(tcp + 4) - RAW_ISN;
	kernel.flags[kernel.count++] = tcp[13];
	return 0;
}

static int setup(void **state)
{
	struct vma_nic_qp *qp;

	setup_raw_tcp_peer(state);
	memset(&kernel, 0, sizeof(kernel));
	qp = vma_ring_qp(side[0].ring);
	ops_to_kernel = *qp->backend_ops;
	ops_to_kernel.to_kernel = record_segment_for_kernel;
	atomic_store(&qp->ops, &ops_to_kernel);
	side[0].nic->info.caps |= VMA_NIC_CAP_TO_KERNEL;
	raw.peer_port = htons(PORT);
	return 0;
}

static void open_listener(void)
{
	fixture_listen_with(0, &side[0].options, 8);
}

/* Accepted from the raw peer's port. */
static struct app *accept_connection_from_raw_peer(void)
{
	const unsigned before = fixture_accepted_count;

	raw_send_syn_to_listener(0);
	assert_true(raw_last_segment()->flags & TCP_SYN);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, before + 1);
	return fixture_last_accepted();
}

static void test_what_nobody_knows_is_the_kernels_in_order(void **state)
{
	(void)state;
	open_listener();
	for (uint32_t i = 0; i < 20; i++)
		raw_send_segment(1000 + i * 100, 1, TCP_ACK, "0123456789", 10);
	raw_send_segment(5000, 1, TCP_SYN | TCP_ACK, "", 0);
	raw_send_segment(5001, 1, TCP_FIN | TCP_ACK, "", 0);
	raw_send_segment(5002, 0, TCP_RST, "", 0);
	assert_int_equal(kernel.count, 23);
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(kernel.seq[i], 1000 + i * 100);
	assert_int_equal(kernel.flags[20], TCP_SYN | TCP_ACK);
	assert_int_equal(kernel.flags[21], TCP_FIN | TCP_ACK);
	assert_int_equal(kernel.flags[22], TCP_RST);
	assert_int_equal(raw_unseen_count(), 0); /* no RST of ours */
}

static void test_what_the_kernel_cannot_be_given_is_lost_without_a_word(void **state)
{
	(void)state;
	open_listener();
	kernel.rc = -ENOBUFS;
	raw_send_segment(1000, 1, TCP_ACK, "0123456789", 10);
	assert_int_equal(kernel.count, 0);
	assert_int_equal(raw_unseen_count(), 0);
}

static void test_requests_and_connections_are_not_the_kernels(void **state)
{
	struct app *app;

	(void)state;
	open_listener();
	app = accept_connection_from_raw_peer();
	raw_send_bytes(1, 1, 100);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 100);
	assert_int_equal(kernel.count, 0);
}

static void test_cookies_come_back_here(void **state)
{
	(void)state;
	side[0].options.syncookies = 2;
	open_listener();
	raw_send_syn_to_listener(0);
	assert_true(raw_last_segment()->flags & TCP_SYN);
	raw_send_segment(1, 2, TCP_ACK, "", 0); /* another number */
	assert_int_equal(kernel.count, 1);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(kernel.count, 1);
	assert_int_equal(fixture_accepted_count, 1);
}

static void test_late_segments_of_a_connection_that_was_reset_are_answered_here(void **state)
{
	struct app *app;

	(void)state;
	open_listener();
	app = accept_connection_from_raw_peer();
	vma_tcp_close(app->conn, true);
	fixture_run_until_idle();
	assert_true(raw_last_segment()->flags & TCP_RST);
	raw_send_bytes(1, 1, 100);
	assert_true(raw_last_segment()->flags & TCP_RST);
	assert_int_equal(kernel.count, 0);
	fixture_run_for_ns(2 * SEC);
	raw_send_bytes(101, 1, 100); /* it is no more remembered */
	assert_int_equal(raw_unseen_count(), 0);
	assert_int_equal(kernel.count, 1);
}

static void test_late_segments_of_a_connection_that_the_peer_has_reset_are_answered_here(void **state)
{
	(void)state;
	open_listener();
	accept_connection_from_raw_peer();
	raw_send_segment(1, 0, TCP_RST, "", 0);
	raw_mark_all_segments_seen();
	raw_send_bytes(1, 1, 100);
	assert_true(raw_last_segment()->flags & TCP_RST);
	assert_int_equal(kernel.count, 0);
}

static void test_time_wait_answers_here(void **state)
{
	struct app *app;

	(void)state;
	open_listener();
	app = accept_connection_from_raw_peer();
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	assert_true(raw_last_segment()->flags & TCP_FIN);
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(3 * SEC);
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_last_segment()->flags, TCP_ACK);
	assert_int_equal(kernel.count, 0);
}

static void test_what_has_become_the_kernels_is_the_kernels_at_once(void **state)
{
	struct vma_tcp_export exported;
	struct app *app;

	(void)state;
	open_listener();
	app = accept_connection_from_raw_peer();
	raw_mark_all_segments_seen();
	assert_true(vma_ring_acquire(side[0].ring));
	assert_int_equal(vma_tcp_export_begin(app->conn, &exported), 0);
	vma_tcp_export_end(app->conn, NULL);
	vma_ring_release(side[0].ring);
	raw_send_bytes(1, 1, 100);
	raw_send_bytes(101, 1, 100);
	assert_int_equal(kernel.count, 2);
	assert_int_equal(kernel.seq[1], 101);
	assert_int_equal(raw_unseen_count(), 0);
}

/* A third of them has been forgotten, and nothing more is kept. */
static void test_what_is_remembered_has_a_bound(void **state)
{
	unsigned allocated = 0;

	(void)state;
	open_listener();
	for (unsigned i = 0; i < 3000; i++) {
		raw.port = (uint16_t)(RAW_PORT + 1 + i); /* nobody looks at the answers */
		raw_send_syn_to_listener(0);
		raw_send_segment(1, 0, TCP_RST, "", 0);
		if (i == 100)
			allocated = fixture_allocated;
	}
	assert_int_equal(fixture_allocated, allocated);
	assert_int_equal(kernel.count, 0);
}

static void test_time_wait_of_a_connection_that_began_here_is_brief(void **state)
{
	struct app *app;

	(void)state;
	app = stack_connects_to_raw_peer();
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	assert_true(raw_last_segment()->flags & TCP_FIN);
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	raw_mark_all_segments_seen();
	fixture_run_for_ns(900 * MS);
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_last_segment()->flags, TCP_ACK);
	fixture_run_for_ns(900 * MS); /* it lives on from there */
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_last_segment()->flags, TCP_ACK);
	fixture_run_for_ns(1100 * MS);
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_unseen_count(), 0);
	app_free(app);
}

/* Of both kinds, whichever came first. */
static void test_brief_and_long_time_waits_end_each_in_its_time(void **state)
{
	struct app *accepted, *app;

	(void)state;
	open_listener();
	accepted = accept_connection_from_raw_peer();
	vma_tcp_close(accepted->conn, false);
	fixture_run_until_idle();
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	raw_mark_all_segments_seen();
	raw.port = RAW_PORT;
	app = stack_connects_to_raw_peer();
	vma_tcp_close(app->conn, false);
	fixture_run_until_idle();
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_is_empty(side[0].tcp), false);
	fixture_run_for_ns(58 * SEC);
	raw.peer_port = htons(PORT);
	raw_mark_all_segments_seen();
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_last_segment()->flags, TCP_ACK);
	fixture_run_for_ns(61 * SEC);
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(raw_unseen_count(), 0);
	assert_int_equal(kernel.count, 1);
	app_free(app);
}

#define TO_KERNEL_CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown_raw_tcp_peer)
static const struct CMUnitTest tests[] = {
        TO_KERNEL_CASE(test_what_nobody_knows_is_the_kernels_in_order),
        TO_KERNEL_CASE(test_what_the_kernel_cannot_be_given_is_lost_without_a_word),
        TO_KERNEL_CASE(test_requests_and_connections_are_not_the_kernels),
        TO_KERNEL_CASE(test_cookies_come_back_here),
        TO_KERNEL_CASE(test_late_segments_of_a_connection_that_was_reset_are_answered_here),
        TO_KERNEL_CASE(test_late_segments_of_a_connection_that_the_peer_has_reset_are_answered_here),
        TO_KERNEL_CASE(test_time_wait_answers_here),
        TO_KERNEL_CASE(test_what_has_become_the_kernels_is_the_kernels_at_once),
        TO_KERNEL_CASE(test_what_is_remembered_has_a_bound),
        TO_KERNEL_CASE(test_time_wait_of_a_connection_that_began_here_is_brief),
        TO_KERNEL_CASE(test_brief_and_long_time_waits_end_each_in_its_time),
};
VMA_TEST_MAIN(tests)
