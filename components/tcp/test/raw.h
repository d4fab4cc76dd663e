/*
 * raw - a peer without a stack: side 1 of the fixture sends the segments that a test says, and keeps those that come.
 *
 * Numbers are relative: mine from the raw peer's initial sequence number RAW_ISN, theirs from the stack's.
 */
#ifndef VMA_TCP_TEST_RAW_H
#define VMA_TCP_TEST_RAW_H

#include "fixture.h"

enum { RAW_ISN = 0x7fffff00u, RAW_SEGMENTS_LOGGED_MAX = 512, RAW_PORT = 4000 };

struct raw_segment {
	uint32_t seq, ack; /* relative: their first byte of data is 1, mine too */
	uint32_t seq_absolute;
	uint16_t window, urgent;
	uint8_t flags;
	uint32_t len;
	uint8_t data[2048];
	uint8_t options[40];
	unsigned options_len;
	uint8_t tos, ttl;
	uint16_t ip_id;
	bool dont_fragment;
	uint64_t at_ns;
};

static struct {
	struct vma_flow flow;
	struct raw_segment *log;
	unsigned count, seen;
	uint32_t their_isn;
	uint16_t peer_port, port;
	uint32_t ts; /* the next time stamp value; 0: none are sent */
	uint32_t ts_ecr;
	uint16_t window;
	bool holds; /* what is sent waits, to be found at once */
} raw;

static uint32_t raw_load_be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void raw_store_be(uint8_t *p, uint32_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		p[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
}

static bool raw_log_received_segment(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(fixture_arena, packet);
	const uint8_t *ip = frame + packet->l3_off, *tcp = frame + packet->l4_off;
	struct raw_segment *s = &raw.log[raw.count];

	(void)flow;
	assert_true(raw.count < RAW_SEGMENTS_LOGGED_MAX);
	raw.count++;
	memset(s, 0, sizeof(*s));
	s->flags = tcp[13];
	s->seq_absolute = raw_load_be32(tcp + 4);
	if (s->flags & TCP_SYN)
		raw.their_isn = s->seq_absolute;
	s->seq = s->seq_absolute - raw.their_isn;
	s->ack = raw_load_be32(tcp + 8) - RAW_ISN;
	s->window = (uint16_t)(tcp[14] << 8 | tcp[15]);
	s->urgent = (uint16_t)(tcp[18] << 8 | tcp[19]);
	s->options_len = (tcp[12] >> 4) * 4u - 20;
	memcpy(s->options, tcp + 20, s->options_len);
	s->len = packet->payload_len;
	memcpy(s->data, frame + packet->payload_off, s->len);
	s->tos = ip[1];
	s->ip_id = (uint16_t)(ip[4] << 8 | ip[5]);
	s->ttl = ip[8];
	s->dont_fragment = ip[6] & 0x40;
	s->at_ns = fixture_now_ns;
	raw.peer_port = info->src_port_be;
	vma_buf_put_chain(fixture_arena, packet);
	return true;
}

static inline int setup_raw_tcp_peer(void **state)
{
	fixture_open(state);
	memset(&raw, 0, sizeof(raw));
	raw.log = calloc(RAW_SEGMENTS_LOGGED_MAX, sizeof(*raw.log));
	raw.port = RAW_PORT;
	raw.window = 65535;
	/* Any peer: what no connection takes. */
	raw.flow = (struct vma_flow){.key = {.family = AF_INET, .proto = IPPROTO_TCP, .local_port_be = htons(RAW_PORT)},
	                             .flags = VMA_FLOW_LISTENER,
	                             .sink = raw_log_received_segment};
	memcpy(raw.flow.key.local, side[1].ip, 16);
	assert_int_equal(vma_ring_attach_flow(side[1].ring, &raw.flow), 0);
	return 0;
}

static inline int teardown_raw_tcp_peer(void **state)
{
	vma_ring_detach_flow(side[1].ring, &raw.flow);
	free(raw.log);
	return fixture_close(state);
}

/* One segment to side 0: seq relative to mine, ack to theirs; both counted from the SYN, whose number is 0. */
static inline void raw_send_segment_with_options(uint32_t seq, uint32_t ack, uint8_t flags, const void *options,
                                                 unsigned options_len, uint16_t urgent, const void *data, uint32_t len)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(1, 1500);
	struct vma_buf *buf = vma_ring_tx_buf(side[1].ring);
	uint8_t *frame = (uint8_t *)vma_buf_data(fixture_arena, buf), *ip = frame + 14, *tcp = ip + 20;
	uint32_t l4_len = 20 + options_len + len;
	struct vma_nic_seg seg = {.buf = buf, .off = buf->data_off, .len = 34 + l4_len};
	uint16_t sum;

	memcpy(frame, path.bytes, 34);
	raw_store_be(ip + 2, 20 + l4_len, 2);
	ip[8] = 64;
	ip[9] = IPPROTO_TCP;
	sum = (uint16_t)~vma_csum_fold(vma_csum_add(0, ip, 20));
	memcpy(ip + 10, &sum, 2);
	memset(tcp, 0, 20);
	raw_store_be(tcp, raw.port, 2);
	memcpy(tcp + 2, &raw.peer_port, 2);
	raw_store_be(tcp + 4, RAW_ISN + seq, 4);
	raw_store_be(tcp + 8, flags & TCP_ACK ? raw.their_isn + ack : 0, 4);
	tcp[12] = (uint8_t)((20 + options_len) / 4 << 4);
	tcp[13] = flags;
	raw_store_be(tcp + 14, raw.window, 2);
	raw_store_be(tcp + 18, urgent, 2);
	memcpy(tcp + 20, options, options_len);
	memcpy(tcp + 20 + options_len, data, len);
	sum = (uint16_t)~vma_csum_fold(
	        vma_csum_add(vma_csum_pseudo4(ip + 12, ip + 16, IPPROTO_TCP, l4_len), tcp, l4_len));
	memcpy(tcp + 16, &sum, 2);
	assert_int_equal(vma_ring_send(side[1].ring, &seg, 1, 0), 1);
	if (!raw.holds)
		fixture_run_until_idle();
}

static inline void raw_send_segment(uint32_t seq, uint32_t ack, uint8_t flags, const void *data, uint32_t len)
{
	uint8_t options[12] = {1, 1, 8, 10};

	raw_store_be(options + 4, raw.ts, 4);
	raw_store_be(options + 8, raw.ts_ecr, 4);
	raw_send_segment_with_options(seq, ack, flags, options, raw.ts != 0 ? 12 : 0, 0, data, len);
}

static inline void raw_send_bytes(uint32_t seq, uint32_t ack, uint32_t len)
{
	uint8_t data[2048];

	for (uint32_t i = 0; i < len; i++)
		data[i] = fixture_pattern_byte_at(seq - 1 + i);
	raw_send_segment(seq, ack, TCP_ACK | TCP_PSH, data, len);
}

static inline unsigned raw_unseen_count(void)
{
	return raw.count - raw.seen;
}

/* The next that came; there must be one. */
static inline const struct raw_segment *raw_next_segment(void)
{
	assert_true(raw.seen < raw.count);
	return &raw.log[raw.seen++];
}

/* The last of those not looked at yet. */
static inline const struct raw_segment *raw_last_segment(void)
{
	assert_true(raw.seen < raw.count);
	raw.seen = raw.count;
	return &raw.log[raw.count - 1];
}

static inline void raw_mark_all_segments_seen(void)
{
	raw.seen = raw.count;
}

static inline struct app *stack_sends_syn_to_raw_peer(void)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(0, side[0].nic->info.mtu);
	struct app *app = calloc(1, sizeof(*app));

	assert_int_equal(fixture_connect_rc(0, 1000, RAW_PORT, &path, app), 0);
	fixture_run_until_idle();
	return app;
}

/* Active open of side 0; MSS 1000 and, if raw.ts is set, time stamps; no scaling, no SACK. */
static inline struct app *stack_connects_to_raw_peer(void)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	uint8_t options[16] = {2, 4, 1000 >> 8, 1000 & 255, 1, 1, 8, 10};

	raw_store_be(options + 8, raw.ts, 4);
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, raw.ts != 0 ? 16 : 4, 0, "", 0);
	assert_int_equal(raw_next_segment()->flags, TCP_ACK);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	fixture_take_app_events(app);
	return app;
}

/* The same with window scaling by 7 and SACK. */
static inline struct app *stack_connects_to_raw_peer_with_sack(void)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	uint8_t options[12] = {2, 4, 1000 >> 8, 1000 & 255, 1, 3, 3, 7, 1, 1, 4, 2};

	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, 12, 0, "", 0);
	assert_int_equal(raw_next_segment()->flags, TCP_ACK);
	fixture_take_app_events(app);
	return app;
}

/* A SYN of the raw peer's to the listener of side 0, from its RAW_PORT. */
static inline void raw_send_syn_to_listener(uint32_t seq)
{
	uint8_t options[4] = {2, 4, 1000 >> 8, 1000 & 255};

	raw.peer_port = htons(PORT);
	raw_send_segment_with_options(seq, 0, TCP_SYN, options, 4, 0, "", 0);
}

#define RAW_CASE(f) cmocka_unit_test_setup_teardown(f, setup_raw_tcp_peer, teardown_raw_tcp_peer)

#endif
