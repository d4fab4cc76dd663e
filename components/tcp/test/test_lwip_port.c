/* The adapted lwIP on its port: one connection at a time in each thread, pbufs in frames, and what was changed in it.
 */
#include <pthread.h>

#include "lwip_fixture.h"

static struct fixture w;

static int setup(void **state)
{
	(void)state;
	lwip_fixture_open(&w, NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	lwip_fixture_close(&w);
	return 0;
}

/* ---- whose pcb it is ---- */

static void test_connect_and_accept_of_the_answer_establish(void **state)
{
	(void)state;
	lwip_fixture_connect(&w);
	assert_int_equal(w.sent.flags, TCP_SYN);
	assert_int_equal(w.sent.seq, FIXTURE_ISN);
	assert_int_equal(w.conn.pcb->state, SYN_SENT);
	lwip_fixture_receive_segment(&w,
	                             (struct segment){.flags = TCP_SYN | TCP_ACK, .seq = 5000, .ack = FIXTURE_ISN + 1});
	assert_int_equal(w.conn.pcb->state, ESTABLISHED);
	lwip_fixture_abort(&w);
	assert_int_equal(w.sent.flags, TCP_RST | TCP_ACK);
}

static void test_pcb_that_a_reset_ends_is_gone_from_its_connection(void **state)
{
	(void)state;
	lwip_fixture_establish(&w);
	lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_RST, .seq = 5001});
	assert_null(w.conn.pcb);
	assert_int_equal(w.errs, 1);
	assert_int_equal(w.err_told, ERR_RST);
	assert_true(w.pcb_was_there);
	assert_int_equal(port_memory_in_use(&w.tcp), 0);
}

static void test_pcb_in_time_wait_stays_until_it_is_ended(void **state)
{
	(void)state;
	lwip_fixture_establish(&w);
	lwip_enter(&w.tcp, &w.conn);
	assert_int_equal(tcp_close(w.conn.pcb), ERR_OK);
	lwip_leave();
	assert_int_equal(w.sent.flags, TCP_FIN | TCP_ACK);
	lwip_fixture_receive_segment(&w,
	                             (struct segment){.flags = TCP_FIN | TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 2});
	assert_non_null(w.conn.pcb);
	assert_int_equal(w.conn.pcb->state, TIME_WAIT);
	lwip_fixture_output(&w);
	assert_int_equal(w.sent.ack, 5002);
	/* A second FIN finds it again. */
	w.sent.count = 0;
	lwip_fixture_receive_segment(&w,
	                             (struct segment){.flags = TCP_FIN | TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 2});
	assert_int_equal(w.sent.count, 1);
	assert_int_equal(w.sent.flags, TCP_ACK);
	lwip_fixture_abort(&w);
}

static void test_pcb_that_the_last_ack_ends_is_gone_from_its_connection(void **state)
{
	(void)state;
	lwip_fixture_establish(&w);
	lwip_fixture_receive_segment(&w,
	                             (struct segment){.flags = TCP_FIN | TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1});
	assert_int_equal(w.conn.pcb->state, CLOSE_WAIT);
	lwip_enter(&w.tcp, &w.conn);
	assert_int_equal(tcp_close(w.conn.pcb), ERR_OK);
	lwip_leave();
	lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_ACK, .seq = 5002, .ack = FIXTURE_ISN + 2});
	assert_null(w.conn.pcb);
}

static void test_pcb_that_was_bound_and_not_connected_can_be_entered_and_ended(void **state)
{
	ip_addr_t local;

	(void)state;
	memcpy(&local, fixture_local, 4);
	lwip_enter(&w.tcp, &w.conn);
	w.conn.pcb = tcp_new();
	assert_int_equal(tcp_bind(w.conn.pcb, &local, LOCAL_PORT), ERR_OK);
	lwip_leave();
	lwip_fixture_abort(&w);
}

static void lwip_port_open_listener(void)
{
	ip_addr_t local;
	struct tcp_pcb *pcb;

	memcpy(&local, fixture_local, 4);
	lwip_enter_listener(&w.tcp, NULL);
	port_netif.mtu = 1500;
	pcb = tcp_new();
	assert_int_equal(tcp_bind(pcb, &local, LOCAL_PORT), ERR_OK);
	w.listener = (struct tcp_pcb_listen *)tcp_listen(pcb);
	assert_non_null(w.listener);
	tcp_accept((struct tcp_pcb *)w.listener, lwip_accept_callback_ignore);
	lwip_leave();
}

static void lwip_port_close_listener(void)
{
	lwip_enter_listener(&w.tcp, w.listener);
	assert_int_equal(tcp_close((struct tcp_pcb *)w.listener), ERR_OK);
	lwip_leave();
}

static void syn_to_listener(void)
{
	lwip_enter_listener(&w.tcp, w.listener);
	lwip_fixture_input(&w, (struct segment){.flags = TCP_SYN,
	                                        .seq = 5000,
	                                        .options = fixture_syn_options,
	                                        .options_len = sizeof(fixture_syn_options)});
	lwip_leave();
}

static void test_pcb_that_a_syn_makes_is_given_to_the_hook_before_the_answer(void **state)
{
	(void)state;
	lwip_port_open_listener();
	w.rcv_wnd_max = 30000;
	syn_to_listener();
	assert_non_null(w.conn.pcb);
	assert_int_equal(w.conn.pcb->state, SYN_RCVD);
	assert_int_equal(w.sent.flags, TCP_SYN | TCP_ACK);
	assert_int_equal(w.sent.window, 30000);
	lwip_fixture_receive_segment(
	        &w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1, .payload = "hello"});
	assert_int_equal(w.conn.pcb->state, ESTABLISHED);
	assert_int_equal(w.received_bytes, 5);
	lwip_fixture_abort(&w);
	lwip_port_close_listener();
}

static void test_pcb_that_the_hook_refuses_is_freed_without_an_answer(void **state)
{
	(void)state;
	lwip_port_open_listener();
	w.sent.count = 0;
	w.passive = ERR_MEM;
	syn_to_listener();
	assert_null(w.conn.pcb);
	assert_int_equal(w.errs, 1);
	assert_int_equal(w.sent.count, 0);
	lwip_port_close_listener();
}

static void test_listener_answers_an_unmatched_segment_with_a_reset(void **state)
{
	(void)state;
	lwip_port_open_listener();
	lwip_enter_listener(&w.tcp, w.listener);
	lwip_fixture_input(&w, (struct segment){.flags = TCP_ACK, .seq = 1, .ack = 77});
	lwip_leave();
	assert_true(w.sent.flags & TCP_RST);
	assert_int_equal(w.sent.seq, 77);
	assert_null(w.conn.pcb);
	lwip_port_close_listener();
}

static void test_a_segment_reaches_the_connection_entered_and_no_other(void **state)
{
	struct tcp_pcb *first, *second;

	(void)state;
	lwip_fixture_establish(&w);
	first = w.conn.pcb;
	w.conn.pcb = NULL;
	lwip_fixture_establish(&w); /* the same ports: two that only lwip_enter tells apart */
	second = w.conn.pcb;
	lwip_fixture_receive_segment(
	        &w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1, .payload = "x"});
	assert_int_equal(first->rcv_nxt, 5001);
	assert_int_equal(second->rcv_nxt, 5002);
	lwip_fixture_abort(&w);
	w.conn.pcb = first;
	lwip_fixture_receive_segment(
	        &w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1, .payload = "abc"});
	assert_int_equal(first->rcv_nxt, 5004);
	lwip_fixture_abort(&w);
}

static void test_the_hook_drops_what_it_refuses(void **state)
{
	(void)state;
	lwip_fixture_establish(&w);
	w.inpacket = ERR_VAL;
	lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_RST, .seq = 5001});
	assert_non_null(w.conn.pcb);
	w.inpacket = ERR_OK;
	lwip_fixture_abort(&w);
}

static void *thread_receive_segment(void *arg)
{
	fixture = arg;
	lwip_fixture_receive_segment(
	        arg, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1, .payload = "12345"});
	return NULL;
}

static void test_a_connection_goes_on_in_another_thread(void **state)
{
	pthread_t thread;

	(void)state;
	lwip_fixture_establish(&w);
	assert_int_equal(pthread_create(&thread, NULL, thread_receive_segment, &w), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(w.conn.pcb->rcv_nxt, 5006);
	assert_int_equal(w.received_bytes, 5);
	lwip_fixture_output(&w);
	lwip_fixture_abort(&w);
}

/* ---- pbufs of received frames ---- */

static struct vma_buf *make_packet_without_options(uint32_t headroom, const char *payload)
{
	struct tcp_hdr hdr = {.src = 1};

	w.headroom = headroom;
	return lwip_fixture_make_received_packet(&w, &hdr, NULL, 0, payload, (uint32_t)strlen(payload));
}

static void free_pbuf(struct pbuf *p)
{
	lwip_enter(&w.tcp, NULL);
	pbuf_free(p);
	lwip_leave();
}

static const uint8_t some_header[20] = "the header's bytes..";

static struct pbuf *wrap_buffer_as_pbuf(struct vma_buf *buf)
{
	struct pbuf *p;

	lwip_enter(&w.tcp, NULL);
	p = port_pbuf_chain_from_packet(&w.tcp, buf, some_header, sizeof(some_header));
	lwip_leave();
	return p;
}

static bool pointer_is_in_packet_memory(const void *at)
{
	return (const char *)at >= w.arena->frames && (const char *)at < w.arena->frames + FIXTURE_BUFS * 2048;
}

static void test_what_lwip_follows_lies_in_no_frame(void **state)
{
	struct vma_buf *buf = make_packet_without_options(64, "payload");
	char *frame = vma_buf_frame(w.arena, buf);
	struct pbuf *p = wrap_buffer_as_pbuf(buf);

	(void)state;
	assert_true(pointer_is_in_packet_memory(frame));
	assert_int_equal(p->len, 20);
	assert_int_equal(p->tot_len, 27);
	assert_false(pointer_is_in_packet_memory(p) || pointer_is_in_packet_memory(p->payload) ||
	             pointer_is_in_packet_memory(p->next));
	assert_ptr_equal(p->next->payload, vma_buf_data(w.arena, buf) + 54);
	assert_memory_equal(p->next->payload, "payload", 7);
	/* Another client of the interface does what it likes. */
	memset(frame, 0xff, 2048);
	assert_memory_equal(p->payload, some_header, 20);
	assert_int_equal(p->next->len, 7);
	free_pbuf(p);
	assert_int_equal(port_memory_in_use(&w.tcp), 0);
	lwip_fixture_assert_all_frames_returned(&w);
}

static void test_a_segment_without_data_keeps_no_frame(void **state)
{
	struct pbuf *p = wrap_buffer_as_pbuf(make_packet_without_options(8, ""));

	(void)state;
	lwip_fixture_assert_all_frames_returned(&w);
	assert_int_equal(p->tot_len, 20);
	assert_null(p->next);
	free_pbuf(p);
	assert_int_equal(port_memory_in_use(&w.tcp), 0);
}

static void test_a_first_buffer_may_end_with_the_header(void **state)
{
	struct vma_buf *first = make_packet_without_options(8, ""), *second;
	struct pbuf *p;

	(void)state;
	assert_int_equal(vma_bufpool_get(w.pool, &second, 1), 1);
	second->data_off = 8;
	second->len = 4;
	memcpy(vma_buf_data(w.arena, second), "data", 4);
	first->next = second;
	first->payload_len = 4;
	first->packet_len = first->len + 4;
	p = wrap_buffer_as_pbuf(first);
	assert_int_equal(p->tot_len, 24);
	assert_int_equal(pbuf_memcmp(p, 20, "data", 4), 0);
	free_pbuf(p);
	lwip_fixture_assert_all_frames_returned(&w);
}

static void test_padding_behind_the_segment_is_left_out(void **state)
{
	struct vma_buf *buf = make_packet_without_options(8, "abc");
	struct pbuf *p;

	(void)state;
	buf->len = buf->packet_len = 60;
	buf->payload_len = 3;
	p = wrap_buffer_as_pbuf(buf);
	assert_int_equal(p->tot_len, 23);
	assert_int_equal(p->next->len, 3);
	assert_null(p->next->next);
	free_pbuf(p);
}

/* A packet of three buffers: the headers and "one", "-two-" and "three" with `pad` bytes of padding. */
static struct vma_buf *make_packet_of_three_buffers(uint32_t data_off, uint32_t pad)
{
	struct vma_buf *first = make_packet_without_options(data_off, "one"), *more[2];

	assert_int_equal(vma_bufpool_get(w.pool, more, 2), 2);
	for (unsigned i = 0; i < 2; i++) {
		more[i]->data_off = data_off;
		more[i]->len = i ? 5 + pad : 5;
		memcpy(vma_buf_data(w.arena, more[i]), i ? "three" : "-two-", 5);
	}
	first->next = more[0];
	more[0]->next = more[1];
	first->payload_len = 13;
	first->packet_len = first->len + 10 + pad;
	return first;
}

static void test_a_packet_of_several_buffers_is_a_chain(void **state)
{
	struct pbuf *p = wrap_buffer_as_pbuf(make_packet_of_three_buffers(64, 4));
	char bytes[64];

	(void)state;
	assert_int_equal(p->tot_len, 33);
	assert_int_equal(p->next->tot_len, 13);
	assert_int_equal(p->next->next->tot_len, 10);
	assert_int_equal(p->next->next->next->tot_len, 5);
	assert_int_equal(pbuf_copy_partial(p, bytes, sizeof(bytes), 20), 13);
	assert_memory_equal(bytes, "one-two-three", 13);
	free_pbuf(p);
	assert_int_equal(port_memory_in_use(&w.tcp), 0);
	lwip_fixture_assert_all_frames_returned(&w);
}

static void test_a_buffer_that_holds_nothing_but_padding_is_given_back_at_once(void **state)
{
	struct vma_buf *packet = make_packet_of_three_buffers(64, 0);
	struct pbuf *p;

	(void)state;
	packet->payload_len = 8;
	p = wrap_buffer_as_pbuf(packet);
	assert_int_equal(p->tot_len, 28);
	assert_null(p->next->next->next);
	free_pbuf(p);
	lwip_fixture_assert_all_frames_returned(&w);
}

static size_t allocs_until_failure;
static void *alloc_until_limit(size_t size)
{
	return allocs_until_failure && allocs_until_failure-- ? calloc(1, size) : NULL;
}

static void test_without_memory_for_a_pbuf_the_packet_remains_the_callers(void **state)
{
	(void)state;
	w.tcp.host.alloc = alloc_until_limit;
	for (allocs_until_failure = 0; allocs_until_failure < 4;) { /* a header's, and three buffers' */
		size_t left = allocs_until_failure;
		struct vma_buf *packet = make_packet_of_three_buffers(0, 0);
		struct pbuf *p = wrap_buffer_as_pbuf(packet);

		assert_null(p);
		assert_int_equal(port_memory_in_use(&w.tcp), 0);
		vma_buf_put_chain(w.arena, packet);
		lwip_fixture_assert_all_frames_returned(&w);
		port_memory_destroy(&w.tcp); /* what the first try left in the lists */
		allocs_until_failure = 1;
		assert_int_equal(port_memory_create(&w.tcp), 0);
		allocs_until_failure = left + 1;
	}
	w.tcp.host.alloc = NULL;
}

static void test_out_of_order_segments_keep_their_frames_until_the_hole_is_filled(void **state)
{
	struct vma_buf *bufs[FIXTURE_BUFS];

	(void)state;
	lwip_fixture_establish(&w);
	lwip_fixture_receive_segment(
	        &w, (struct segment){.flags = TCP_ACK, .seq = 5004, .ack = FIXTURE_ISN + 1, .payload = "def"});
	lwip_fixture_receive_segment(
	        &w, (struct segment){.flags = TCP_ACK, .seq = 5010, .ack = FIXTURE_ISN + 1, .payload = "jkl"});
	assert_int_equal(w.received_bytes, 0);
	assert_int_equal(vma_bufpool_get(w.pool, bufs, FIXTURE_BUFS), FIXTURE_BUFS - 2);
	vma_buf_put_burst(w.arena, bufs, FIXTURE_BUFS - 2);
	lwip_fixture_receive_segment(
	        &w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1, .payload = "abc"});
	assert_int_equal(w.received_bytes, 6);
	assert_int_equal(vma_bufpool_get(w.pool, bufs, FIXTURE_BUFS), FIXTURE_BUFS - 1);
	vma_buf_put_burst(w.arena, bufs, FIXTURE_BUFS - 1);
	lwip_fixture_abort(&w); /* with one still queued */
	lwip_fixture_assert_all_frames_returned(&w);
}

/* ---- what was changed in lwIP ---- */

static void write_segments(unsigned n)
{
	static const char bytes[1000];

	lwip_enter(&w.tcp, &w.conn);
	w.conn.pcb->cwnd = 100000;
	for (unsigned i = 0; i < n; i++) { /* each its own: a segment has 536 bytes, without an MSS option */
		assert_int_equal(tcp_write(w.conn.pcb, bytes + (i & 1) * 500, w.conn.pcb->mss, 0), ERR_OK);
		assert_int_equal(tcp_output(w.conn.pcb), ERR_OK);
	}
	lwip_leave();
}

static struct tcp_seg *last_unacked(void)
{
	struct tcp_seg *seg = w.conn.pcb->unacked;

	while (seg && seg->next)
		seg = seg->next;
	return seg;
}

static void establish_with_mss(uint16_t mss)
{
	uint8_t options[4] = {2, 4, (uint8_t)(mss >> 8), (uint8_t)mss};

	lwip_fixture_connect(&w);
	lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_SYN | TCP_ACK,
	                                                  .seq = 5000,
	                                                  .ack = FIXTURE_ISN + 1,
	                                                  .options = options,
	                                                  .options_len = 4});
}

static void test_the_end_of_the_unacknowledged_list_is_known(void **state)
{
	(void)state;
	establish_with_mss(400);
	for (unsigned round = 0; round < 3; round++) {
		uint32_t una = w.conn.pcb->lastack;

		write_segments(3);
		assert_ptr_equal(w.conn.pcb->unacked_last, last_unacked());
		lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = una + 400});
		assert_ptr_equal(w.conn.pcb->unacked_last, last_unacked());
		write_segments(2);
		assert_ptr_equal(w.conn.pcb->unacked_last, last_unacked());
		lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = una + 5 * 400});
		assert_null(w.conn.pcb->unacked);
	}
	lwip_fixture_abort(&w);
}

static void test_a_new_segment_has_been_sent_never_and_carries_no_mark(void **state)
{
	(void)state;
	establish_with_mss(400);
	for (unsigned round = 0; round < 2; round++) { /* the second time in memory that was used */
		write_segments(2);
		for (struct tcp_seg *seg = w.conn.pcb->unacked; seg; seg = seg->next) {
			assert_int_equal(seg->sends, 0);
			assert_int_equal(seg->marks, 0);
			assert_int_equal(seg->sent_ns + seg->first_sent_ns, 0);
			seg->sends = 0xff;
			seg->marks = SEG_SACKED | SEG_LOST | SEG_RETRANSMITTED;
			seg->sent_ns = seg->first_sent_ns = 0xffff;
		}
		lwip_fixture_receive_segment(
		        &w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = w.conn.pcb->snd_nxt});
	}
	lwip_fixture_abort(&w);
}

static void test_duplicate_acks_retransmit_nothing(void **state)
{
	(void)state;
	establish_with_mss(400);
	write_segments(4);
	w.sent.count = 0;
	for (unsigned i = 0; i < 6; i++) {
		lwip_fixture_receive_segment(&w,
		                             (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1});
		lwip_fixture_output(&w);
	}
	assert_int_equal(w.sent.count, 0);
	lwip_fixture_abort(&w);
}

static void test_input_sends_nothing_by_itself(void **state)
{
	static const char bytes[400];

	(void)state;
	establish_with_mss(400);
	lwip_enter(&w.tcp, &w.conn);
	assert_int_equal(tcp_write(w.conn.pcb, bytes, sizeof(bytes), 0), ERR_OK);
	lwip_leave();
	w.sent.count = 0;
	lwip_fixture_receive_segment(
	        &w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1, .payload = "x"});
	lwip_fixture_receive_segment(
	        &w, (struct segment){.flags = TCP_ACK, .seq = 5002, .ack = FIXTURE_ISN + 1, .payload = "y"});
	assert_int_equal(w.sent.count, 0);
	lwip_fixture_output(&w);
	assert_int_equal(w.sent.count, 1);
	assert_int_equal(w.sent.payload, 400);
	assert_int_equal(w.sent.ack, 5003);
	lwip_fixture_abort(&w);
}

static void test_a_segment_can_be_sent_again_as_it_is(void **state)
{
	uint8_t first[256];

	(void)state;
	establish_with_mss(100);
	write_segments(1);
	memcpy(first, w.sent.bytes, sizeof(first));
	lwip_enter(&w.tcp, &w.conn);
	assert_int_equal(tcp_output_segment(w.conn.pcb->unacked, w.conn.pcb, &port_netif), ERR_OK);
	lwip_leave();
	assert_int_equal(w.sent.payload, 100);
	assert_memory_equal(first, w.sent.bytes, w.sent.len);
	lwip_fixture_abort(&w);
}

static void test_each_connection_has_a_window_of_its_own(void **state)
{
	(void)state;
	lwip_port_open_listener();
	w.rcv_wnd_max = 1 << 20;
	syn_to_listener();
	assert_int_equal(w.sent.window, 65535); /* never scaled in a SYN */
	lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = FIXTURE_ISN + 1});
	assert_int_equal(TCP_WND_MAX(w.conn.pcb), 1 << 20);
	lwip_enter(&w.tcp, &w.conn);
	tcp_ack_now(w.conn.pcb);
	tcp_output(w.conn.pcb);
	lwip_leave();
	assert_int_equal(w.sent.window, (1 << 20) >> 7);
	lwip_fixture_abort(&w);
	lwip_port_close_listener();
	/* Without the peer's window scale option 65535 is all that there is. */
	w.conn.pcb = NULL;
	lwip_fixture_connect(&w);
	w.conn.pcb->rcv_wnd_max = 1 << 20;
	lwip_fixture_receive_segment(&w,
	                             (struct segment){.flags = TCP_SYN | TCP_ACK, .seq = 5000, .ack = FIXTURE_ISN + 1});
	assert_int_equal(TCP_WND_MAX(w.conn.pcb), 65535);
	lwip_fixture_abort(&w);
}

static void test_a_small_window_holds_from_the_syn_on(void **state)
{
	ip_addr_t local, peer;

	(void)state;
	memcpy(&local, fixture_local, 4);
	memcpy(&peer, fixture_peer, 4);
	lwip_enter(&w.tcp, &w.conn);
	w.conn.pcb = tcp_new();
	w.conn.pcb->rcv_wnd_max = 4096;
	assert_int_equal(tcp_bind(w.conn.pcb, &local, LOCAL_PORT), ERR_OK);
	assert_int_equal(tcp_connect(w.conn.pcb, &peer, PEER_PORT, NULL), ERR_OK);
	lwip_leave();
	assert_int_equal(w.sent.window, 4096);
	lwip_fixture_receive_segment(&w, (struct segment){.flags = TCP_SYN | TCP_ACK,
	                                                  .seq = 5000,
	                                                  .ack = FIXTURE_ISN + 1,
	                                                  .options = fixture_syn_options,
	                                                  .options_len = sizeof(fixture_syn_options)});
	assert_int_equal(w.conn.pcb->rcv_wnd, 4096);
	lwip_fixture_output(&w);
	assert_int_equal(w.sent.window, 4096 >> 7);
	lwip_fixture_abort(&w);
}

static const uint8_t *find_tcp_option_in_sent_segment(uint8_t kind)
{
	const uint8_t *at = w.sent.bytes + 20, *end = w.sent.bytes + (w.sent.bytes[12] >> 4) * 4;

	while (at < end && *at != kind)
		at += *at <= 1 ? 1 : at[1];
	return at < end ? at : NULL;
}

static void test_time_stamps_are_the_stacks_milliseconds_from_a_secret_origin(void **state)
{
	const uint8_t *stamp;
	uint8_t other[16] = {1};
	uint32_t value;

	(void)state;
	lwip_fixture_connect(&w);
	stamp = find_tcp_option_in_sent_segment(8);
	assert_non_null(stamp);
	memcpy(&value, stamp + 2, 4);
	assert_int_equal(ntohl(value), (uint32_t)(5000 + port_clock_offset(w.tcp.attr.secret)));
	w.tcp.now_ns += 7 * TCP_NS_PER_MS + 999999;
	assert_int_equal(port_clock_ms(&w.tcp), ntohl(value) + 7);
	assert_int_not_equal(port_clock_offset(other), port_clock_offset(w.tcp.attr.secret));
	assert_non_null(find_tcp_option_in_sent_segment(4)); /* SACK permitted */
	lwip_fixture_abort(&w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        TEST(test_connect_and_accept_of_the_answer_establish),
        TEST(test_pcb_that_a_reset_ends_is_gone_from_its_connection),
        TEST(test_pcb_in_time_wait_stays_until_it_is_ended),
        TEST(test_pcb_that_the_last_ack_ends_is_gone_from_its_connection),
        TEST(test_pcb_that_was_bound_and_not_connected_can_be_entered_and_ended),
        TEST(test_pcb_that_a_syn_makes_is_given_to_the_hook_before_the_answer),
        TEST(test_pcb_that_the_hook_refuses_is_freed_without_an_answer),
        TEST(test_listener_answers_an_unmatched_segment_with_a_reset),
        TEST(test_a_segment_reaches_the_connection_entered_and_no_other),
        TEST(test_the_hook_drops_what_it_refuses),
        TEST(test_a_connection_goes_on_in_another_thread),
        TEST(test_what_lwip_follows_lies_in_no_frame),
        TEST(test_a_segment_without_data_keeps_no_frame),
        TEST(test_a_first_buffer_may_end_with_the_header),
        TEST(test_padding_behind_the_segment_is_left_out),
        TEST(test_a_packet_of_several_buffers_is_a_chain),
        TEST(test_a_buffer_that_holds_nothing_but_padding_is_given_back_at_once),
        TEST(test_without_memory_for_a_pbuf_the_packet_remains_the_callers),
        TEST(test_out_of_order_segments_keep_their_frames_until_the_hole_is_filled),
        TEST(test_the_end_of_the_unacknowledged_list_is_known),
        TEST(test_a_new_segment_has_been_sent_never_and_carries_no_mark),
        TEST(test_duplicate_acks_retransmit_nothing),
        TEST(test_input_sends_nothing_by_itself),
        TEST(test_a_segment_can_be_sent_again_as_it_is),
        TEST(test_each_connection_has_a_window_of_its_own),
        TEST(test_a_small_window_holds_from_the_syn_on),
        TEST(test_time_stamps_are_the_stacks_milliseconds_from_a_secret_origin),
};
VMA_TEST_MAIN(tests)
