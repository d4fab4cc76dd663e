/* What has come out of order is held within bounds, and not in frames. */
#include "raw.h"

#include "../budget.h"

static unsigned ooo_buffers_of_conn(const struct app *app)
{
	return app->conn->pcb->ooseq_pbufs;
}

static bool pointer_is_in_fixture_frames(const void *at)
{
	return (const char *)at >= fixture_arena->frames &&
	       (const char *)at <
	               fixture_arena->frames + ((size_t)fixture_arena->capacity << fixture_arena->frame_shift);
}

/* Single bytes, each behind a hole of one: `n` of them from the second byte on. */
static void send_every_other_byte(unsigned first, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		uint8_t byte = fixture_pattern_byte_at(1 + 2 * (first + i));

		raw_send_segment(2 + 2 * (first + i), 1, TCP_ACK, &byte, 1);
	}
}

static void test_single_bytes_keep_no_frames(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();

	(void)state;
	send_every_other_byte(0, 50);
	assert_int_equal(ooo_buffers_of_conn(app), 50);
	assert_in_range(side[0].tcp->ooo_bytes, 50 * OOO_OVERHEAD, 50 * (OOO_OVERHEAD + 128));
	for (const struct tcp_seg *seg = app->conn->pcb->ooseq; seg != NULL; seg = seg->next)
		for (const struct pbuf *p = seg->p; p != NULL; p = p->next)
			assert_false(pointer_is_in_fixture_frames(p) || pointer_is_in_fixture_frames(p->payload));
	for (unsigned i = 0; i < 50; i++) {
		uint8_t byte = fixture_pattern_byte_at(2 * i);

		raw_send_segment(1 + 2 * i, 1, TCP_ACK, &byte, 1);
	}
	assert_int_equal(read_bytes(app, 200), 100);
	assert_int_equal(side[0].tcp->ooo_bytes, 0);
	app_free(app);
}

static void test_beyond_half_of_the_bound_a_connection_keeps_a_little(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();
	const uint64_t max = ooo_max(side[0].tcp);

	(void)state;
	side[0].tcp->ooo_bytes += max / 2; /* other connections' */
	send_every_other_byte(0, 2 * OOO_LITTLE);
	assert_int_equal(ooo_buffers_of_conn(app), OOO_LITTLE);
	side[0].tcp->ooo_bytes += max / 2;
	send_every_other_byte(OOO_LITTLE, 1);
	assert_int_equal(ooo_buffers_of_conn(app), OOO_LITTLE);
	/* What is in order is taken all the same, and what was refused is said again. */
	side[0].tcp->ooo_bytes -= max;
	for (unsigned i = 0; i < 2 * OOO_LITTLE; i++) {
		uint8_t bytes[2] = {fixture_pattern_byte_at(2 * i), fixture_pattern_byte_at(2 * i + 1)};

		raw_send_segment(1 + 2 * i, 1, TCP_ACK, bytes, 2);
	}
	assert_int_equal(read_bytes(app, 1000), 4 * OOO_LITTLE);
	assert_int_equal(side[0].tcp->ooo_bytes, 0);
	app_free(app);
}

/* In a large window, which each ACK of ours makes small again. */
static void send_byte_at(struct app *app, unsigned seq)
{
	const uint8_t byte = fixture_pattern_byte_at(0);

	app->conn->pcb->rcv_wnd = 1 << 20;
	raw_send_segment(seq, 1, TCP_ACK, &byte, 1);
	raw.count = raw.seen = 0; /* of the answers */
}

/* A peer that has the whole queue looked through for each of its bytes. */
static void test_place_far_from_both_ends_is_not_looked_for(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();

	(void)state;
	for (unsigned i = 0; i < OOO_STEPS + 100; i++)
		send_byte_at(app, 11 + 4 * i);
	assert_int_equal(ooo_buffers_of_conn(app), OOO_STEPS + 100);
	send_byte_at(app, 11 + 4 * (OOO_STEPS + 50) + 2);
	assert_int_equal(ooo_buffers_of_conn(app), OOO_STEPS + 100);
	send_byte_at(app, 11 + 4 * 500 + 2);
	send_byte_at(app, 11 + 4 * (OOO_STEPS + 100));
	assert_int_equal(ooo_buffers_of_conn(app), OOO_STEPS + 102);
	app_free(app);
}

/* The blocks of the last ACK that has come to the raw peer. */
static unsigned sack_blocks_of_last_ack(uint32_t blocks[4][2])
{
	const struct raw_segment *s = &raw.log[raw.count - 1];
	unsigned n = 0;

	for (unsigned at = 0; at<s->options_len; at += s->options[at]> 1 ? s->options[at + 1] : 1) {
		if (s->options[at] != 5)
			continue;
		for (unsigned i = 2; i < s->options[at + 1]; i += 8, n++) {
			blocks[n][0] = raw_load_be32(s->options + at + i) - RAW_ISN;
			blocks[n][1] = raw_load_be32(s->options + at + i + 4) - RAW_ISN;
		}
	}
	return n;
}

/* What is nearer takes the place of the farthest, and the peer is told that that is gone: RFC 2018 8. */
static void test_farthest_is_given_up_for_what_is_nearer(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();
	const uint64_t max = ooo_max(side[0].tcp);
	uint32_t blocks[4][2];
	unsigned n, held;
	uint8_t byte;

	(void)state;
	side[0].tcp->ooo_bytes += max / 2; /* other connections' */
	send_every_other_byte(10, OOO_LITTLE);
	assert_int_equal(ooo_buffers_of_conn(app), OOO_LITTLE);
	fixture_run_for_ns(10 * MS);
	n = sack_blocks_of_last_ack(blocks);
	assert_true(n > 0);
	assert_int_equal(blocks[0][0], 2 + 2 * (10 + OOO_LITTLE - 1));
	byte = fixture_pattern_byte_at(3);
	raw_send_segment(4, 1, TCP_ACK, &byte, 1);
	/* An eighth is gone, the nearest and the new one are there. */
	held = ooo_buffers_of_conn(app);
	assert_int_equal(held, OOO_LITTLE - OOO_LITTLE / 8 + 1);
	assert_int_equal(app->conn->pcb->ooseq->tcphdr->seqno - RAW_ISN, 4);
	fixture_run_for_ns(10 * MS);
	n = sack_blocks_of_last_ack(blocks);
	assert_true(n > 0);
	assert_int_equal(blocks[0][0], 4);
	for (unsigned i = 0; i < n; i++)
		assert_true(blocks[i][1] <= 2 + 2 * (10 + OOO_LITTLE - OOO_LITTLE / 8));
	/* What is farther than all that is held, and what is in the middle, gives up nothing for itself. */
	send_every_other_byte(10 + OOO_LITTLE, 20);
	assert_int_equal(ooo_buffers_of_conn(app), OOO_LITTLE);
	/* The peer says again what has been given up, and every byte is right. */
	side[0].tcp->ooo_bytes -= max / 2;
	for (unsigned i = 0; i < 2 * OOO_LITTLE; i++) {
		uint8_t bytes[2] = {fixture_pattern_byte_at(2 * i), fixture_pattern_byte_at(2 * i + 1)};

		raw_send_segment(1 + 2 * i, 1, TCP_ACK, bytes, 2);
	}
	assert_int_equal(read_bytes(app, 1000), 4 * OOO_LITTLE);
	assert_int_equal(side[0].tcp->ooo_bytes, 0);
	app_free(app);
}

static void test_what_is_held_goes_with_its_connection(void **state)
{
	struct app *app = stack_connects_to_raw_peer_with_sack();

	(void)state;
	send_every_other_byte(0, 10);
	assert_int_not_equal(side[0].tcp->ooo_bytes, 0);
	raw_send_segment(1, 1, TCP_RST, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_CLOSE);
	assert_int_equal(side[0].tcp->ooo_bytes, 0);
	app_free(app);
}

static const struct CMUnitTest tests[] = {
        RAW_CASE(test_single_bytes_keep_no_frames),
        RAW_CASE(test_beyond_half_of_the_bound_a_connection_keeps_a_little),
        RAW_CASE(test_place_far_from_both_ends_is_not_looked_for),
        RAW_CASE(test_farthest_is_given_up_for_what_is_nearer),
        RAW_CASE(test_what_is_held_goes_with_its_connection),
};

VMA_TEST_MAIN(tests)
