/*
 * What SACK blocks cost a sender with a large window of small segments, whatever a peer writes into them: counted in
 * segments and runs that are looked at, not timed.
 */
#include "recovery_fixture.h"

/* A megabyte in segments of 48 bytes (the fixture's are longer: what counts is how many). */
enum { SEGMENTS_UNACKED = 21845, SACK_RUNS = SEGMENTS_UNACKED / SACK_RUN_LENGTH + 1 };

static void setup_many_unacked_segments(void)
{
	setup_established_connection_and_link(VMA_TCP_CC_LWIP);
	rtt_sample(&w.conn.rtt, 2 * w.delay_ns, w.tcp.now_ns);
	w.mute = true;
	w.conn.cc.cwnd = SEGMENTS_UNACKED * MSS;
	w.pcb.snd_wnd = w.window = SEGMENTS_UNACKED * MSS;
	w.unchecked = true;
	fixture_write_app_bytes(SEGMENTS_UNACKED * MSS);
	fixture_run_until(100 * SECOND + 1);
	w.unchecked = false;
	fixture_check_scoreboard_invariants();
	assert_int_equal(w.outs, SEGMENTS_UNACKED);
	w.frames = 0; /* nothing leaves: what is acknowledged is what is counted */
}

static struct tcp_ack ack_with_sack_blocks(const uint32_t (*blocks)[2], unsigned n)
{
	struct tcp_ack ack = {.ackno = w.pcb.lastack, .window = w.window, .blocks = n};

	for (unsigned i = 0; i < n; i++) {
		ack.block[i].left = ISS + blocks[i][0] * MSS;
		ack.block[i].right = ISS + blocks[i][1] * MSS;
	}
	return ack;
}

/* Steps that it took. */
static uint32_t sack_index_take_blocks_steps(const uint32_t (*blocks)[2], unsigned n)
{
	const struct tcp_ack ack = ack_with_sack_blocks(blocks, n);
	uint32_t before = w.conn.recovery.sack_steps;

	fixture_receive_ack(&ack);
	return w.conn.recovery.sack_steps - before;
}

/* Single segments, from the end to the front, four in each ACK, each in another quarter of what is out. */
static void test_blocks_that_come_from_the_end_on_cost_no_walk(void **state)
{
	uint32_t first = 0;

	(void)state;
	setup_many_unacked_segments();
	for (uint32_t i = 0; i < SEGMENTS_UNACKED / 8; i++) {
		uint32_t blocks[4][2], steps;

		for (uint32_t k = 0; k < 4; k++) {
			blocks[k][0] = SEGMENTS_UNACKED / 4 * (k + 1) - 2 * i - 1;
			blocks[k][1] = blocks[k][0] + 1;
		}
		steps = sack_index_take_blocks_steps(blocks, 4);
		first = i == 0 ? steps : first;
		assert_true(steps <= 4 * 2 * SACK_RUN_LENGTH);
	}
	assert_true(first <= 4 * 2 * SACK_RUN_LENGTH);
	fixture_check_scoreboard_invariants();
	assert_int_equal(w.conn.recovery.sacked_segments, SEGMENTS_UNACKED / 8 * 4);
}

/* All that is out but the head, said again and again, between blocks that let the last ACK's be forgotten. */
static void test_large_blocks_that_are_known_cost_a_step_for_each_stretch(void **state)
{
	static const uint32_t all[][2] = {{1, SEGMENTS_UNACKED}},
	                      ends[][2] = {{1, 2}, {SEGMENTS_UNACKED - 1, SEGMENTS_UNACKED}};

	(void)state;
	setup_many_unacked_segments();
	sack_index_take_blocks_steps(all, 1);
	assert_int_equal(w.conn.recovery.sacked_segments, SEGMENTS_UNACKED - 1);
	for (unsigned i = 0; i < 100; i++) {
		assert_true(sack_index_take_blocks_steps(ends, 2) <= 4 * SACK_RUN_LENGTH);
		assert_true(sack_index_take_blocks_steps(all, 1) <= SACK_RUNS + 2 * SACK_RUN_LENGTH);
	}
	fixture_check_scoreboard_invariants();
}

/* Edges inside segments mark none, and make no run one to be looked at more than once in an ACK. */
static void test_blocks_of_parts_of_segments_cost_no_walk(void **state)
{
	(void)state;
	setup_many_unacked_segments();
	for (uint32_t i = 0; i < 200; i++) {
		struct tcp_ack ack = {.ackno = ISS, .window = w.window, .blocks = 4};
		uint32_t before = w.conn.recovery.sack_steps;

		for (uint32_t k = 0; k < 4; k++) {
			ack.block[k].left = ISS + (SEGMENTS_UNACKED - 1 - 100 * i - 7 * k) * MSS + 1;
			ack.block[k].right = ack.block[k].left + MSS - 2;
		}
		fixture_receive_ack(&ack);
		assert_true(w.conn.recovery.sack_steps - before <= 4 * 2 * SACK_RUN_LENGTH);
	}
	fixture_check_scoreboard_invariants();
	assert_int_equal(w.conn.recovery.sacked_segments, 0);
}

/* What is lost is in lists of its own: the next one to leave is at hand, and so is the oldest that has left. */
static void test_lost_segments_are_at_hand(void **state)
{
	static const uint32_t all_but_each_other[][2] = {{SEGMENTS_UNACKED / 2, SEGMENTS_UNACKED}};
	struct tcp_recovery *r = &w.conn.recovery;
	struct tcp_seg *seg;
	uint32_t n = 0;

	(void)state;
	setup_many_unacked_segments();
	sack_index_take_blocks_steps(all_but_each_other, 1);
	fixture_check_scoreboard_invariants();
	assert_true(scoreboard_bytes_to_resend(&w.conn) == SEGMENTS_UNACKED / 2 * MSS);
	for (uint32_t before = w.pcb.lastack - 1; (seg = scoreboard_next_lost(&w.conn)) != NULL; n++) {
		assert_true(TCP_SEQ_GT(seg_seq(seg), before));
		before = seg_seq(seg);
		seg->sent_ns = w.tcp.now_ns;
		seg->send_number = ++r->sends;
		scoreboard_on_resent(&w.conn, seg);
	}
	assert_int_equal(n, SEGMENTS_UNACKED / 2);
	fixture_check_scoreboard_invariants();
	/* The tenth is delivered, a round trip later: those that left before it are lost again, and go first. */
	w.tcp.now_ns += SECOND;
	assert_ptr_equal(r->resent.first, w.pcb.unacked);
	sack_index_take_blocks_steps((const uint32_t[][2]){{10, 11}, {SEGMENTS_UNACKED / 2, SEGMENTS_UNACKED}}, 2);
	fixture_check_scoreboard_invariants();
	assert_int_equal(scoreboard_bytes_to_resend(&w.conn), 10 * MSS);
	assert_ptr_equal(scoreboard_next_lost(&w.conn), w.pcb.unacked);
	assert_int_equal(seg_seq(r->resent.first), ISS + 11 * MSS);
}

static void *alloc_always_fails(size_t size)
{
	(void)size;
	return NULL;
}

static void test_without_memory_for_the_index_blocks_count_all_the_same(void **state)
{
	(void)state;
	setup_many_unacked_segments();
	w.conn.memory.alloc = alloc_always_fails;
	sack_index_take_blocks_steps((const uint32_t[][2]){{SEGMENTS_UNACKED - 10, SEGMENTS_UNACKED - 5}, {5, 10}}, 2);
	fixture_check_scoreboard_invariants();
	assert_int_equal(w.conn.recovery.sacked_segments, 10);
}

/* Blocks of every kind, and the head moves: the index is what the list is. */
static void test_index_follows_the_list(void **state)
{
	(void)state;
	setup_many_unacked_segments();
	for (unsigned i = 0; i < 2000; i++) {
		uint32_t head = (w.pcb.lastack - ISS) / MSS, blocks[3][2];
		struct tcp_ack ack;

		for (unsigned k = 0; k < 3; k++) {
			blocks[k][0] = head + 1 + fixture_draw_random() % (SEGMENTS_UNACKED - head - 1);
			blocks[k][1] = blocks[k][0] + 1 + fixture_draw_random() % (k == 0 ? 3 : 300);
			if (blocks[k][1] > SEGMENTS_UNACKED)
				blocks[k][1] = SEGMENTS_UNACKED;
		}
		ack = ack_with_sack_blocks((const uint32_t(*)[2])blocks, 3);
		if (fixture_draw_random() % 3 == 0)
			ack.ackno += fixture_draw_random() % 20 * MSS;
		if (TCP_SEQ_GT(ack.ackno, ISS + (SEGMENTS_UNACKED - 100) * MSS))
			break;
		fixture_receive_ack(&ack);
		if (i % 16 == 0)
			fixture_check_scoreboard_invariants();
		if (i % 500 == 250)
			recovery_begin_resend_of_oversized(&w.conn);
	}
	fixture_check_scoreboard_invariants();
}

static int teardown_unacked_segments(void **state)
{
	(void)state;
	fixture_free_segments_and_flights();
	return 0;
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_blocks_that_come_from_the_end_on_cost_no_walk, teardown_unacked_segments),
        cmocka_unit_test_teardown(test_large_blocks_that_are_known_cost_a_step_for_each_stretch,
                                  teardown_unacked_segments),
        cmocka_unit_test_teardown(test_blocks_of_parts_of_segments_cost_no_walk, teardown_unacked_segments),
        cmocka_unit_test_teardown(test_lost_segments_are_at_hand, teardown_unacked_segments),
        cmocka_unit_test_teardown(test_without_memory_for_the_index_blocks_count_all_the_same,
                                  teardown_unacked_segments),
        cmocka_unit_test_teardown(test_index_follows_the_list, teardown_unacked_segments),
};

VMA_TEST_MAIN(tests)
