/*
 * Out of order data: the queue and the SACK ranges are those that lwIP makes when it walks the whole queue, every byte
 * arrives once and in order, and a segment costs the same however many are queued.
 */
#include <stdio.h>
#include <time.h>

#include "lwip_fixture.h"

enum { SPAN = 6000 }; /* how far ahead of what was received segments come, in bytes */
static struct fixture w;
static struct vma_tcp_conn *conn[2]; /* the first as it is; the second never knows the end of its queue */
static uint32_t taken[2];            /* bytes received in order */
static unsigned which;

static uint8_t lwip_queues_pattern_byte_at(uint32_t offset)
{
	return (uint8_t)(offset * 167 + (offset >> 8) * 31);
}

static err_t lwip_recv_callback_check_pattern(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
	uint32_t left;

	(void)arg, (void)err;
	if (!p)
		return ERR_OK;
	left = p->tot_len;
	tcp_recved(pcb, p->tot_len);
	for (const struct pbuf *at = p; at; at = at->next) {
		assert_int_equal(at->tot_len, left);
		for (uint16_t i = 0; i < at->len; i++)
			assert_int_equal(((const uint8_t *)at->payload)[i],
			                 lwip_queues_pattern_byte_at(taken[which]++));
		left -= at->len;
	}
	assert_int_equal(left, 0);
	pbuf_free(p);
	return ERR_OK;
}

/* A segment with the bytes from `offset` on, in memory of lwIP's. */
static void send_flagged_segment_at_offset(unsigned i, uint32_t offset, uint16_t len, uint8_t flags)
{
	struct tcp_hdr hdr = {
	        .src = htons(PEER_PORT),
	        .dest = htons(LOCAL_PORT),
	        .seqno = htonl(5001 + offset),
	        .ackno = htonl(FIXTURE_ISN + 1),
	        .wnd = htons(65535),
	};
	struct pbuf *p;

	which = i;
	TCPH_HDRLEN_FLAGS_SET(&hdr, 5, flags);
	lwip_enter(&w.tcp, conn[i]);
	p = pbuf_alloc(PBUF_RAW, (u16_t)(sizeof(hdr) + len), PBUF_RAM);
	assert_non_null(p);
	memcpy(p->payload, &hdr, sizeof(hdr));
	for (uint16_t k = 0; k < len; k++)
		((uint8_t *)p->payload)[sizeof(hdr) + k] = lwip_queues_pattern_byte_at(offset + k);
	lwip_tcp_input_segment(fixture_peer, fixture_local, p);
	lwip_leave();
}

static void send_segment_at_offset(unsigned i, uint32_t offset, uint16_t len)
{
	send_flagged_segment_at_offset(i, offset, len, TCP_ACK);
}

static const uint8_t sack_options[] = {2, 4, 0x05, 0xb4, 1, 3, 3, 7, 4, 2, 1, 1};

static int setup(void **state)
{
	static struct vma_tcp_conn second;

	(void)state;
	lwip_fixture_open(&w, NULL);
	memset(taken, 0, sizeof(taken));
	for (unsigned i = 0; i < 2; i++) {
		lwip_fixture_connect(&w);
		w.conn.pcb->rcv_wnd_max = 8 << 20;
		lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_SYN | TCP_ACK,
		                                                  .seq = 5000,
		                                                  .ack = FIXTURE_ISN + 1,
		                                                  .options = sack_options,
		                                                  .options_len = sizeof(sack_options)});
		assert_true(w.conn.pcb->flags & TF_SACK);
		tcp_recv(w.conn.pcb, lwip_recv_callback_check_pattern);
		conn[i] = i ? &w.conn : &second;
		if (!i) {
			memset(&second, 0, sizeof(second));
			second.pcb = w.conn.pcb;
			w.conn.pcb = NULL;
		}
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		lwip_enter(&w.tcp, conn[i]);
		tcp_abort(conn[i]->pcb);
		lwip_leave();
	}
	lwip_fixture_close(&w);
	return 0;
}

static void assert_both_pcbs_have_same_ooo_queue(void)
{
	const struct tcp_pcb *a = conn[0]->pcb, *b = conn[1]->pcb;
	const struct tcp_seg *s = a->ooseq, *t = b->ooseq;

	assert_int_equal(taken[0], taken[1]);
	assert_int_equal(a->rcv_nxt, b->rcv_nxt);
	assert_memory_equal(a->rcv_sacks, b->rcv_sacks, sizeof(a->rcv_sacks));
	for (; s && t; s = s->next, t = t->next) {
		assert_int_equal(s->tcphdr->seqno, t->tcphdr->seqno);
		assert_int_equal(s->len, t->len);
		if (a->ooseq_last == s)
			assert_null(s->next);
	}
	assert_null(s);
	assert_null(t);
	assert_true(a->ooseq || a->ooseq_pbufs == 0);
}

static uint32_t state_of_random;
static uint32_t random_below(uint32_t n)
{
	state_of_random = state_of_random * 1664525 + 1013904223;
	return (uint32_t)((uint64_t)(state_of_random >> 8) * n >> 24);
}

static bool segment_came[2 << 20];

static void note_bytes_that_came(uint32_t offset, uint16_t len)
{
	assert_true(offset + 2 * SPAN < sizeof(segment_came));
	memset(segment_came + offset, 1, len);
}

static void check_ooo_queue_has_received_bytes(void)
{
	uint32_t bytes = 0;

	for (const struct tcp_seg *seg = conn[0]->pcb->ooseq; seg; seg = seg->next)
		bytes += seg->len;
	for (uint32_t offset = taken[0]; offset < taken[0] + 2 * SPAN; offset++)
		bytes -= segment_came[offset];
	assert_int_equal(bytes, 0);
}

static void ooo_random_conversation(uint32_t seed)
{
	uint32_t ahead = taken[0];

	state_of_random = seed;
	for (unsigned i = 0; i < 300; i++) {
		uint16_t len = (uint16_t)(1 + random_below(200));
		uint32_t offset;

		if (random_below(3)) { /* most come in order, behind a hole */
			offset = ahead += random_below(8) ? 0 : 1 + random_below(300);
			ahead += len;
		} else {
			offset = taken[0] + random_below(random_below(4) ? SPAN : 200);
		}
		if (ahead > taken[0] + SPAN) {
			offset = taken[0];
			ahead = taken[0];
		}
		conn[1]->pcb->ooseq_last = NULL;
		send_segment_at_offset(0, offset, len);
		send_segment_at_offset(1, offset, len);
		assert_both_pcbs_have_same_ooo_queue();
		note_bytes_that_came(offset, len);
		check_ooo_queue_has_received_bytes();
	}
}

static void test_any_order_makes_the_queue_and_the_ranges_that_a_walk_makes(void **state)
{
	(void)state;
	memset(segment_came, 0, sizeof(segment_came));
	for (uint32_t seed = 1; seed <= 100; seed++)
		ooo_random_conversation(seed);
	assert_true(taken[0] > 100000);
}

static void test_what_a_filled_hole_lets_go_is_one_chain_with_right_lengths(void **state)
{
	(void)state;
	for (uint32_t i = 1; i < 100; i++)
		send_segment_at_offset(0, i * 1000, 1000); /* more than 64 KB: lwIP hands it out in pieces */
	assert_int_equal(taken[0], 0);
	send_segment_at_offset(0, 0, 1000);
	assert_int_equal(taken[0], 100000);
	assert_null(conn[0]->pcb->ooseq);
}

static void test_what_is_queued_stays_when_a_part_of_it_comes_again(void **state)
{
	const struct tcp_sack_range *range = conn[0]->pcb->rcv_sacks;

	(void)state;
	for (unsigned is_last = 0; is_last < 2; is_last++) {
		uint32_t base = taken[0];

		send_segment_at_offset(0, base + 1000, 4000); /* as merged segments are */
		if (!is_last)
			send_segment_at_offset(0, base + 8000, 1000);
		send_segment_at_offset(0, base + 2000, 1000);
		assert_int_equal(range->left, 5001 + base + 1000);
		assert_int_equal(range->right, 5001 + base + 5000);
		send_segment_at_offset(0, base, 1000);
		assert_int_equal(taken[0], base + 5000);
		send_segment_at_offset(0, base + 5000, 3000);
		assert_int_equal(taken[0], base + (is_last ? 8000 : 9000));
	}
}

static void test_the_end_of_the_queue_is_forgotten_when_it_is_freed(void **state)
{
	(void)state;
	send_segment_at_offset(0, 100, 10);
	send_segment_at_offset(0, 200, 10);
	assert_int_equal(conn[0]->pcb->ooseq_last->tcphdr->seqno, 5201);
	send_segment_at_offset(0, 150, 100); /* covers it */
	assert_null(conn[0]->pcb->ooseq_last);
	send_segment_at_offset(0, 300, 10);
	assert_int_equal(conn[0]->pcb->ooseq_last->tcphdr->seqno, 5301);
	send_segment_at_offset(0, 0, 400);
	assert_null(conn[0]->pcb->ooseq_last);
}

static void set_receive_window(uint32_t bytes)
{
	struct tcp_pcb *pcb = conn[0]->pcb;

	pcb->rcv_wnd = pcb->rcv_ann_wnd = pcb->rcv_wnd_max = bytes;
	pcb->rcv_ann_right_edge = pcb->rcv_nxt + bytes;
}

static void test_out_of_order_data_is_cut_at_the_edge_of_the_window(void **state)
{
	(void)state;
	for (unsigned order = 0; order < 3; order++) {
		uint32_t base = taken[0];

		set_receive_window(1000);
		if (order == 1) /* behind another */
			send_segment_at_offset(0, base + 100, 100);
		if (order == 2) /* before another */
			send_segment_at_offset(0, base + 990, 50);
		send_segment_at_offset(0, base + 900, 300);
		for (const struct tcp_seg *seg = conn[0]->pcb->ooseq; seg; seg = seg->next)
			assert_true(TCP_SEQ_LEQ(seg->tcphdr->seqno + seg->len, 5001 + base + 1000));
		send_segment_at_offset(0, base, 950);
		assert_int_equal(taken[0], base + 1000);
		assert_int_equal(conn[0]->pcb->rcv_wnd, 1000);
		assert_null(conn[0]->pcb->ooseq);
	}
}

static void test_a_fin_beyond_the_window_is_not_queued(void **state)
{
	(void)state;
	set_receive_window(1000);
	send_flagged_segment_at_offset(0, 900, 100, TCP_ACK | TCP_FIN);
	send_segment_at_offset(0, 0, 900);
	assert_int_equal(taken[0], 1000);
	assert_int_equal(conn[0]->pcb->state, ESTABLISHED);
	send_flagged_segment_at_offset(0, 900, 100, TCP_ACK | TCP_FIN);
	assert_int_equal(conn[0]->pcb->state, CLOSE_WAIT);
	assert_int_equal(conn[0]->pcb->rcv_nxt, 5001 + 1001);
}

static void test_data_behind_a_fin_does_not_turn_the_window_round(void **state)
{
	(void)state;
	set_receive_window(1000);
	send_flagged_segment_at_offset(0, 400, 100, TCP_ACK | TCP_FIN);
	send_segment_at_offset(0, 0, 1000); /* more than there can be, and all that the window lets in */
	assert_true(conn[0]->pcb->rcv_wnd <= 1000);
}

/* Every second byte of `bytes`, each in a segment of its own. */
static void send_every_second_byte(uint32_t from, uint32_t bytes)
{
	for (uint32_t at = from; at < from + bytes; at += 2)
		send_segment_at_offset(0, at, 1);
}

static void test_a_peer_of_single_bytes_gets_no_more_frames_than_the_window_is_worth(void **state)
{
	uint64_t before = port_memory_in_use(&w.tcp);

	(void)state;
	set_receive_window(65536);
	send_every_second_byte(10, 30000);
	assert_in_range(conn[0]->pcb->ooseq_pbufs, 300, 400);
	assert_int_equal(port_memory_in_use(&w.tcp), before + 2 * conn[0]->pcb->ooseq_pbufs); /* each a segment, too */
	/* What was dropped comes again, and all arrives. */
	for (uint32_t offset = 0; offset < 30000; offset += 1000)
		send_segment_at_offset(0, offset, 1000);
	assert_int_equal(taken[0], 30000);
	assert_int_equal(conn[0]->pcb->ooseq_pbufs, 0);
	assert_int_equal(port_memory_in_use(&w.tcp), before);
}

static void test_a_window_of_segments_of_512_bytes_behind_a_hole_is_kept(void **state)
{
	(void)state;
	set_receive_window(1 << 20);
	for (uint32_t offset = 512; offset < 1 << 20; offset += 512)
		send_segment_at_offset(0, offset, 512);
	send_segment_at_offset(0, 0, 512);
	assert_int_equal(taken[0], 1 << 20);
}

static uint64_t lwip_queues_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * TCP_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* CPU time per segment of n, all but the first of which come before it. */
static double ooo_cost_per_segment_ns(unsigned n)
{
	uint32_t base = taken[0];
	uint64_t before = lwip_queues_cpu_ns();

	for (unsigned i = 1; i < n; i++)
		send_segment_at_offset(0, base + i * 300, 300);
	send_segment_at_offset(0, base, 300);
	assert_int_equal(taken[0], base + n * 300);
	return (double)(lwip_queues_cpu_ns() - before) / n;
}

static void test_a_segment_costs_the_same_however_many_are_queued(void **state)
{
	double few = 1e9, many = 1e9;

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		double cost = ooo_cost_per_segment_ns(250);

		few = cost < few ? cost : few;
		cost = ooo_cost_per_segment_ns(8000);
		many = cost < many ? cost : many;
	}
	if (many > few * 8) {
		print_message("%.0f ns each of 250, %.0f ns each of 8000\n", few, many);
		fail();
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        TEST(test_any_order_makes_the_queue_and_the_ranges_that_a_walk_makes),
        TEST(test_what_a_filled_hole_lets_go_is_one_chain_with_right_lengths),
        TEST(test_what_is_queued_stays_when_a_part_of_it_comes_again),
        TEST(test_the_end_of_the_queue_is_forgotten_when_it_is_freed),
        TEST(test_out_of_order_data_is_cut_at_the_edge_of_the_window),
        TEST(test_a_fin_beyond_the_window_is_not_queued),
        TEST(test_data_behind_a_fin_does_not_turn_the_window_round),
        TEST(test_a_peer_of_single_bytes_gets_no_more_frames_than_the_window_is_worth),
        TEST(test_a_window_of_segments_of_512_bytes_behind_a_hole_is_kept),
        TEST(test_a_segment_costs_the_same_however_many_are_queued),
};
VMA_TEST_MAIN(tests)
