/*
 * Arbitrary segments into a connection in every state: the stack must not crash, read or write where it may not, take
 * bytes for others, shrink its window, or keep anything afterwards.
 *
 * The input is a list of steps, one byte that says which, and what it needs. The peer is no stack: it knows what the
 * stack sent last, and so can behave well (the shortest way into any state), nearly well, or not at all.
 */
#include <stdarg.h>

#include <sys/epoll.h>

#include "sim_watch.h"
#include "../lwip/port.h"

#define must(x) sim_assert((x), #x)

enum { LOCAL_PORT = SIM_LISTEN, PEER_PORT = SIM_PORT, STREAM = 1 << 17 };

enum step {
	STEP_SEGMENT, /* flags, distance of seq and ack from what would be right, window, options, payload */
	STEP_BYTES,   /* a TCP header and what follows it, as they are, but for ports and checksum */
	STEP_DATA,    /* the next bytes, acknowledging all */
	STEP_ACK,     /* all that was sent */
	STEP_FIN,
	STEP_RST,
	STEP_SYN,
	STEP_SYNACK,
	STEP_TIME, /* 2^n us pass */
	STEP_CONNECT,
	STEP_WRITE,
	STEP_READ,
	STEP_SHUTDOWN,
	STEP_CLOSE,
	STEP_ABORT,
	STEP_DISOWN,
	STEP_OPTION,
	STEP_ICMP,
	STEP_PATH,
	STEP_NO_MEMORY,
	STEP_UNLISTEN,
	STEPS,
	/* Bytes from 252 on, which would be among the first steps once more. */
	STEP_HOLD = 252, /* reads without copying, or gives back what was read so */
	STEP_INSPECT,    /* begins or ends the inspection, and has all that waits received */
	STEP_INSPECT_SOME
};

struct input {
	const uint8_t *at, *end;
};

static struct sim sim;
static struct vma_tcp_listener *listener;
static struct vma_tcp_conn *conn;
static bool closed;
static uint64_t read_bytes;
static unsigned
        urgent_bytes_left_out; /* urgent bytes right behind them that reading leaves out: for newer ones, as in the kernel */
static struct {                /* what the peer knows: in sequence numbers */
	bool known;            /* the stack has sent something */
	uint32_t next;         /* what the stack has sent up to */
	uint32_t acked;        /* what it has acknowledged last: the peer's right sequence number */
	uint32_t isn;          /* the peer's own, when it behaves well */
	uint32_t syn;          /* the last SYN's that it sent */
	bool unsure;           /* bytes may be elsewhere than they say: they are not compared */
	bool begun;            /* the stack has taken one of them: */
	uint32_t base;         /* where the peer's bytes begin */
	uint32_t ts_val;
} peer;
static uint8_t stream[STREAM]; /* of the peer, by distance from its first byte */

static uint8_t fuzz_input_take_byte(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

static uint32_t fuzz_input_take_u32(struct input *in)
{
	uint32_t value = 0;

	for (int i = 0; i < 4; i++)
		value = value << 8 | fuzz_input_take_byte(in);
	return value;
}

/* ---- the stack's side ---- */

static void fuzz_track_segment_sent_by_stack(struct sim_side *side, const uint8_t *ip, uint32_t len)
{
	struct sim_segment segment;

	if (side->number != 0)
		return;
	must(sim_segment_parse(ip, len, &segment));
	must(segment.total <= 1500);
	if (segment.flags & SIM_RST)
		return;
	peer.known = true;
	peer.next = segment.seq + segment.payload + ((segment.flags & SIM_SYN) != 0) + ((segment.flags & SIM_FIN) != 0);
	if (!(segment.flags & SIM_ACK))
		return;
	peer.acked = segment.ack;
	if (segment.flags & SIM_SYN)
		peer.base = segment.ack;
	else if (!peer.begun)
		peer.base = peer.syn + 1;
	peer.begun = true;
}

static void fuzz_check_event_is_of_connection(struct vma_tcp_conn *which, void *arg, uint32_t events)
{
	(void)arg;
	must(which == conn || conn == NULL);
	must(events != 0);
}
static bool fuzz_take_arriving_piece(struct vma_tcp_conn *which, void *arg,
                                     const struct vma_tcp_rx_stream_piece *piece);
static const struct vma_tcp_conn_ops owner = {fuzz_check_event_is_of_connection, fuzz_take_arriving_piece};

static bool fuzz_listener_admit_all(struct vma_tcp_listener *which, void *arg)
{
	(void)which, (void)arg;
	return true;
}

static bool fuzz_accept_first_connection(struct vma_tcp_listener *which, void *arg, struct vma_tcp_conn *made)
{
	(void)which, (void)arg;
	if (conn != NULL || closed)
		return false;
	conn = made;
	vma_tcp_conn_set_owner_and_replay_events(conn, &owner, NULL);
	return true;
}

static struct vma_tcp_path fuzz_path_to_peer_with_mtu(uint32_t mtu)
{
	struct vma_tcp_path path = {.len = 34, .ip_off = 14, .mtu = mtu};

	memcpy(path.bytes, vma_nic_info(sim.side[1].nic)->mac, 6);
	memcpy(path.bytes + 6, vma_nic_info(sim.side[0].nic)->mac, 6);
	path.bytes[12] = 8;
	path.bytes[14] = 0x45;
	memcpy(path.bytes + 26, (const uint8_t[]){10, 0, 0, 1}, 4);
	memcpy(path.bytes + 30, (const uint8_t[]){10, 0, 0, 2}, 4);
	return path;
}

static void fuzz_open_listener_on_stack(struct input *in)
{
	static const struct vma_tcp_listener_ops listener_owner = {.admit = fuzz_listener_admit_all,
	                                                           .accepted = fuzz_accept_first_connection};
	struct vma_tcp_options options;
	uint8_t how;
	struct vma_tcp_listen_attr attr = {.owner = &listener_owner,
	                                   .options = &options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(LOCAL_PORT),
	                                   .local = {10, 0, 0, 1},
	                                   .backlog = 4};

	vma_tcp_options_init(&options);
	options.rcvbuf = 1 << (11 + fuzz_input_take_byte(in) % 8);
	how = fuzz_input_take_byte(in);
	options.keepalive = how & 1;
	options.syncookies = how & 2 ? 2 : 1; /* always: so what comes next brings back a valid one */
	must(vma_tcp_listen(sim.side[0].tcp, &attr, &listener) == 0);
}

static void fuzz_connect_to_peer(struct input *in)
{
	struct vma_tcp_options options;
	struct vma_tcp_conn_attr attr = {.owner = &owner,
	                                 .options = &options,
	                                 .path = fuzz_path_to_peer_with_mtu(1500),
	                                 .family = AF_INET,
	                                 .local_port_be = htons(LOCAL_PORT),
	                                 .peer_port_be = htons(PEER_PORT),
	                                 .local = {10, 0, 0, 1},
	                                 .peer = {10, 0, 0, 2}};
	struct vma_tcp_conn *made = NULL;
	int rc;

	if (conn != NULL || closed)
		return;
	vma_tcp_options_init(&options);
	options.rcvbuf = 1 << (11 + fuzz_input_take_byte(in) % 8);
	rc = vma_tcp_connect(sim.side[0].tcp, &attr, &made);
	must(rc == 0 || rc == -EADDRINUSE || rc == -ENOMEM);
	if (rc == 0)
		conn = made;
}

static bool is_urgent_data_inline(void)
{
	return vma_tcp_get_option(conn, VMA_TCP_OPT_OOBINLINE) != 0;
}

/* Where the urgent byte is among the bytes read; -1: there is none. */
static int64_t urgent_mark_among_read_bytes(void)
{
	return conn != NULL ? atomic_load(&conn->urgent_at) : -1;
}

/* Before a step that does not read: whether the next byte is an urgent one, which a newer one would have left out. */
static bool next_byte_is_urgent(void)
{
	if (conn == NULL || urgent_mark_among_read_bytes() != (int64_t)(read_bytes + urgent_bytes_left_out) ||
	    is_urgent_data_inline())
		return false;
	if (conn->pcb != NULL && conn->pcb->refused_data != NULL)
		peer.unsure = true; /* it comes in the step, before the newer one or behind */
	return fifo_queued_bytes(&conn->rx) > urgent_bytes_left_out;
}

/* Whatever overlapped, came twice or in between: a position has one value. */
static void fuzz_read_and_check_bytes(size_t most)
{
	struct iovec spans[4];
	size_t taken = 0;
	unsigned steps =
	        urgent_bytes_left_out + (vma_tcp_bytes_before_urgent_mark(conn) == 0 && !is_urgent_data_inline());
	unsigned n = vma_tcp_peek_rx_spans(conn, 0, spans, 4);

	if (most == 0)
		return;
	if (n > 0 || fifo_queued_bytes(&conn->rx) == steps) {
		read_bytes += steps;
		urgent_bytes_left_out = 0;
	}
	for (unsigned i = 0; i < n && taken < most; i++) {
		size_t part = spans[i].iov_len < most - taken ? spans[i].iov_len : most - taken;

		for (size_t k = 0; k < part; k++)
			must(peer.unsure || ((uint8_t *)spans[i].iov_base)[k] == stream[(read_bytes + k) % STREAM]);
		read_bytes += part;
		taken += part;
	}
	vma_tcp_rx_consume(conn, taken);
}

static void fuzz_write_bytes(size_t bytes)
{
	struct iovec spans[4];
	size_t sum = 0;
	int n = vma_tcp_tx_reserve(conn, bytes, spans, 4);

	must(n >= 0 || n == -EPIPE || n == -ENOMEM);
	for (int i = 0; i < n; i++) {
		memset(spans[i].iov_base, 'w', spans[i].iov_len);
		sum += spans[i].iov_len;
	}
	must(sum <= bytes);
	if (sum > 0)
		vma_tcp_tx_commit(conn, sum, sum % 7 == 0 ? VMA_TCP_TX_URGENT : sum % 5 == 0 ? VMA_TCP_TX_MORE : 0);
}

static void fuzz_drop_connection(void)
{
	struct vma_tcp_conn *gone = conn;

	if (gone == NULL)
		return;
	vma_tcp_conn_drop_owner_and_abort(gone);
	conn = NULL;
	closed = true;
	vma_tcp_conn_put(gone);
}

static void fuzz_check_connection_invariants(void)
{
	uint32_t bits;

	if (conn == NULL)
		return;
	bits = vma_tcp_poll_events(conn);
	must((vma_tcp_readable_bytes(conn) > 0 || vma_tcp_rx_eof(conn)) == ((bits & EPOLLIN) != 0));
	must(vma_tcp_state(conn) >= TCP_ESTABLISHED && vma_tcp_state(conn) <= TCP_CLOSING);
	must(vma_tcp_error(conn) >= 0);
	must(vma_tcp_tx_unsent(conn) <= vma_tcp_tx_unacked_bytes(conn));
	must(vma_tcp_readable_bytes(conn) <= STREAM);
}

/* ---- the peer's side ---- */

static void fuzz_drive_until_idle(void)
{
	for (int i = 0; i < 8; i++) {
		vma_wire_drive_both_ends(sim.side[0].nic);
		while (vma_ring_progress(sim.side[0].ring) > 0)
			;
		while (vma_ring_progress(sim.side[1].ring) > 0)
			;
	}
	sim_free_retired(&sim.side[0]);
}

/* Ports, addresses, lengths and checksum are made right: what is wrong there never gets past the ring. */
static void fuzz_inject_segment(const uint8_t *tcp, uint32_t len)
{
	struct vma_buf *buf = vma_ring_tx_buf(sim.side[1].ring);
	struct vma_nic_seg seg = {.buf = buf};
	struct vma_tcp_path path = fuzz_path_to_peer_with_mtu(1500);
	uint8_t *frame, *ip, *out;
	uint16_t sum;

	if (buf == NULL)
		return;
	if (tcp[13] & SIM_SYN)
		peer.syn = sim_load_be32(tcp + 4);
	frame = (uint8_t *)vma_buf_data(sim.side[1].arena, buf);
	ip = frame + 14;
	out = ip + 20;
	memcpy(frame, path.bytes + 6, 6);
	memcpy(frame + 6, path.bytes, 6);
	memcpy(frame + 12, path.bytes + 12, 22);
	memcpy(ip + 12, path.bytes + 30, 4);
	memcpy(ip + 16, path.bytes + 26, 4);
	ip[2] = (uint8_t)((20 + len) >> 8);
	ip[3] = (uint8_t)(20 + len);
	ip[8] = 64;
	ip[9] = IPPROTO_TCP;
	memcpy(out, tcp, len);
	out[0] = PEER_PORT >> 8;
	out[1] = PEER_PORT & 255;
	out[2] = 0;
	out[3] = LOCAL_PORT;
	out[16] = out[17] = 0;
	sum = (uint16_t)~vma_csum_fold(vma_csum_add(vma_csum_pseudo4(ip + 12, ip + 16, IPPROTO_TCP, len), out, len));
	memcpy(out + 16, &sum, 2);
	ip[10] = ip[11] = 0;
	sum = (uint16_t)~vma_csum_fold(vma_csum_add(0, ip, 20));
	memcpy(ip + 10, &sum, 2);
	seg.off = buf->data_off;
	seg.len = 34 + len;
	if (vma_ring_send(sim.side[1].ring, &seg, 1, 0) != 1)
		vma_buf_put(sim.side[1].arena, buf);
	fuzz_drive_until_idle();
}

static void fuzz_store_be32(uint8_t *at, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		at[i] = (uint8_t)(value >> (24 - 8 * i));
}

struct segment {
	uint32_t seq, ack;
	uint8_t flags;
	uint16_t window, urgent;
	uint8_t options[40];
	uint32_t options_len, payload;
};

/* Where the stack takes the peer's bytes to begin, as far as that can be known. */
static uint32_t fuzz_peer_stream_start_seq(void)
{
	if (conn != NULL && conn->connected)
		return conn->rx_seq;
	peer.unsure |= !peer.begun;
	return peer.begun ? peer.base : peer.isn + 1;
}

/* Payload is the stream's at its place, so that what is read can be checked. */
static void fuzz_send_segment_as_peer(const struct segment *s)
{
	uint8_t tcp[1480];
	uint32_t header = 20 + (s->options_len + 3) / 4 * 4;
	uint32_t at = s->payload != 0 ? s->seq - fuzz_peer_stream_start_seq() : 0;

	memset(tcp, 0, header);
	fuzz_store_be32(tcp + 4, s->seq);
	fuzz_store_be32(tcp + 8, s->ack);
	tcp[12] = (uint8_t)(header / 4 << 4);
	tcp[13] = s->flags;
	tcp[14] = (uint8_t)(s->window >> 8);
	tcp[15] = (uint8_t)s->window;
	tcp[18] = (uint8_t)(s->urgent >> 8);
	tcp[19] = (uint8_t)s->urgent;
	memcpy(tcp + 20, s->options, s->options_len);
	for (uint32_t i = 0; i < s->payload; i++)
		tcp[header + i] = stream[(at + i) % STREAM];
	fuzz_inject_segment(tcp, header + s->payload);
}

static uint32_t expected_peer_seq(void)
{
	return peer.acked != 0 ? peer.acked : peer.isn + 1;
}

/* Distances: mostly small, to both sides, sometimes anything. */
static uint32_t fuzz_draw_sequence_distance(struct input *in)
{
	uint8_t how = fuzz_input_take_byte(in);

	if (how < 128)
		return 0;
	if (how < 192)
		return (uint32_t)(how - 160);
	if (how < 240)
		return (uint32_t)((how - 216) * 1448);
	return fuzz_input_take_u32(in);
}

static uint32_t fuzz_draw_tcp_options(struct input *in, uint8_t options[40])
{
	uint32_t len = 0;

	for (unsigned n = fuzz_input_take_byte(in) % 4; n > 0 && len < 30; n--) {
		uint8_t kind = fuzz_input_take_byte(in);

		if (kind < 64 && len <= 30) { /* time stamp */
			options[len] = 8;
			options[len + 1] = 10;
			fuzz_store_be32(options + len + 2, peer.ts_val += kind & 15);
			fuzz_store_be32(options + len + 6,
			                kind & 32 ? fuzz_input_take_u32(in) : (uint32_t)(sim.now_ns / SIM_MS));
			len += 10;
		} else if (kind < 128 && len <= 30) { /* SACK */
			uint32_t left = peer.next + fuzz_draw_sequence_distance(in);

			options[len] = 5;
			options[len + 1] = 10;
			fuzz_store_be32(options + len + 2, left);
			fuzz_store_be32(options + len + 6, left + fuzz_draw_sequence_distance(in));
			len += 10;
		} else if (kind < 160) { /* MSS */
			options[len] = 2;
			options[len + 1] = 4;
			options[len + 2] = fuzz_input_take_byte(in);
			options[len + 3] = fuzz_input_take_byte(in);
			len += 4;
		} else if (kind < 192) { /* window scale, SACK permitted */
			memcpy(options + len, (const uint8_t[]){3, 3, fuzz_input_take_byte(in), 4, 2}, 5);
			len += 5;
		} else {
			options[len++] = fuzz_input_take_byte(in);
			options[len++] = fuzz_input_take_byte(in);
		}
	}
	return len;
}

static void fuzz_step_peer_sends_drawn_segment(struct input *in)
{
	struct segment s = {.flags = fuzz_input_take_byte(in) & 63};

	s.seq = expected_peer_seq() + fuzz_draw_sequence_distance(in);
	s.ack = peer.next + fuzz_draw_sequence_distance(in);
	s.window = (uint16_t)(fuzz_input_take_byte(in) << (fuzz_input_take_byte(in) & 8));
	s.urgent = s.flags & SIM_URG ? fuzz_input_take_byte(in) : 0;
	s.options_len = fuzz_draw_tcp_options(in, s.options);
	s.payload = (uint32_t)fuzz_input_take_byte(in) * (fuzz_input_take_byte(in) & 7 ? 1 : 5);
	fuzz_send_segment_as_peer(&s);
}

static void fuzz_step_raw_segment(struct input *in)
{
	uint8_t tcp[200] = {0};
	uint32_t len = 20 + fuzz_input_take_byte(in) % 180, i;

	for (i = 4; i < len && in->at < in->end; i++)
		tcp[i] = fuzz_input_take_byte(in);
	if ((uint32_t)(tcp[12] >> 4) * 4 < len) /* its payload could not be the stream's */
		len = (uint32_t)(tcp[12] >> 4) * 4 >= 20 ? (uint32_t)(tcp[12] >> 4) * 4 : 20;
	tcp[12] |= 0x50;
	if (len < (uint32_t)(tcp[12] >> 4) * 4)
		len = (uint32_t)(tcp[12] >> 4) * 4;
	fuzz_inject_segment(tcp, len);
}

/* What a peer would do. */
static void fuzz_step_valid_peer(enum step step, struct input *in)
{
	struct segment s = {.seq = expected_peer_seq(), .ack = peer.next, .flags = SIM_ACK, .window = 60000};

	if (step == STEP_DATA)
		s.payload = 1 + fuzz_input_take_byte(in) * 5U;
	if (step == STEP_FIN)
		s.flags |= SIM_FIN;
	if (step == STEP_RST)
		s.flags = SIM_RST;
	if (step == STEP_SYN || step == STEP_SYNACK) {
		s.flags = step == STEP_SYN ? SIM_SYN : SIM_SYN | SIM_ACK;
		s.seq = peer.isn;
		memcpy(s.options, (const uint8_t[]){2, 4, 5, 0xb4, 4, 2, 3, 3, 7}, 9);
		s.options_len = 9;
		if (fuzz_input_take_byte(in) & 1)
			s.options_len = 0;
	}
	fuzz_send_segment_as_peer(&s);
}

static void fuzz_advance_time_and_fire_timers(uint64_t ns)
{
	uint64_t until = sim.now_ns + ns;

	for (int i = 0; i < 200 && vma_tcp_next_due_ns(sim.side[0].tcp) <= until; i++) {
		uint64_t due = vma_tcp_next_due_ns(sim.side[0].tcp);

		sim.now_ns = due > sim.now_ns ? due : sim.now_ns + 2000;
		fuzz_drive_until_idle();
	}
	if (until > sim.now_ns)
		sim.now_ns = until;
	fuzz_drive_until_idle();
}

/* ---- ICMP errors that quote a segment ---- */

/* Whether the message quotes one of the connection's segments, read by RFC 792 and nothing else. */
static bool icmp_quotes_our_segment(const uint8_t *icmp, size_t len)
{
	const uint8_t *ip = icmp + 8, *tcp;
	size_t header = len >= 28 ? (size_t)(ip[0] & 15) * 4 : 0;

	if (len < 28 || ip[0] >> 4 != 4 || header < 20 || len < 8 + header + 8 || ip[9] != 6 ||
	    ((ip[6] << 8 | ip[7]) & 0x1fff) != 0)
		return false;
	tcp = ip + header;
	return memcmp(ip + 12, (const uint8_t[]){10, 0, 0, 1}, 4) == 0 &&
	       memcmp(ip + 16, (const uint8_t[]){10, 0, 0, 2}, 4) == 0 && (tcp[0] << 8 | tcp[1]) == LOCAL_PORT &&
	       (tcp[2] << 8 | tcp[3]) == PEER_PORT;
}

/* Mostly right, as long as the input says, a few bytes of it written over: in memory that ends where it does. */
static void fuzz_step_icmp_quote(struct input *in)
{
	uint8_t options = fuzz_input_take_byte(in) % 16, writes = fuzz_input_take_byte(in) % 8;
	size_t len = fuzz_input_take_byte(in) % 100;
	uint8_t whole[8 + 60 + 100] = {3, 4, [6] = 2, [7] = 0x40, [8] = 0x45, [17] = 6}, *message;
	bool found, ours;

	whole[0] = (uint8_t)(fuzz_input_take_byte(in) % 16);
	whole[1] = (uint8_t)(fuzz_input_take_byte(in) % 20);
	whole[8] = (uint8_t)(0x40 | (options < 5 ? 5 : options));
	memcpy(whole + 20, (const uint8_t[]){10, 0, 0, 1, 10, 0, 0, 2}, 8);
	whole[8 + (whole[8] & 15) * 4 + 1] = LOCAL_PORT & 255;
	whole[8 + (whole[8] & 15) * 4] = LOCAL_PORT >> 8;
	whole[8 + (whole[8] & 15) * 4 + 2] = PEER_PORT >> 8;
	whole[8 + (whole[8] & 15) * 4 + 3] = PEER_PORT & 255;
	fuzz_store_be32(whole + 8 + (whole[8] & 15) * 4 + 4, peer.acked + fuzz_draw_sequence_distance(in));
	for (; writes > 0; writes--)
		whole[fuzz_input_take_byte(in) % sizeof(whole)] = fuzz_input_take_byte(in);
	message = malloc(len > 0 ? len : 1);
	must(message != NULL);
	memcpy(message, whole, len);
	ours = icmp_quotes_our_segment(message, len);
	found = vma_tcp_icmp_packet(sim.side[0].tcp, 0, message, len);
	must(!found || ours);
	must(found || !ours || vma_tcp_state(conn) != TCP_ESTABLISHED);
	free(message);
	fuzz_drive_until_idle();
	must(conn->path.len == 0 || conn->path.mtu >= 200); /* STEP_PATH's least */
}

/* ---- receive without copying ---- */

enum { HELD = 64 };
static struct held {
	struct vma_tcp_rx_stream_piece piece;
	uint64_t number;
	struct vma_tcp_memory *memory;
} held[HELD];
static unsigned held_count;

static void fuzz_give_back_held_pieces(unsigned most)
{
	for (; most > 0 && held_count > 0; most--) {
		const struct held *last = &held[--held_count];

		vma_buf_put(sim.side[0].arena, last->piece.buf);
		vma_tcp_held_bytes_returned(conn, last->memory, last->number, last->piece.len, 1);
	}
}

static bool takes_arriving_pieces;

static bool fuzz_take_arriving_piece(struct vma_tcp_conn *which, void *arg, const struct vma_tcp_rx_stream_piece *piece)
{
	(void)arg;
	must(which == conn && piece->buf != NULL && piece->len > 0);
	must(vma_tcp_readable_bytes(conn) == 0 && vma_tcp_bytes_before_urgent_mark(conn) < 0);
	if (!takes_arriving_pieces || held_count == HELD)
		return false;
	held[held_count++] = (struct held){*piece, vma_tcp_zcopy_conn_id(conn), vma_tcp_memory_limits_of(conn)};
	vma_tcp_rx_hold_arriving_piece(conn, piece);
	read_bytes += piece->len;
	return true;
}

static void fuzz_step_hold_piece(uint8_t byte)
{
	struct vma_tcp_rx_stream_piece piece;

	takes_arriving_pieces = byte & 8;
	if (takes_arriving_pieces && vma_tcp_offer_arriving_pieces(conn) != 0)
		return;
	if (byte >= 128)
		fuzz_give_back_held_pieces(byte & 63);
	if (vma_tcp_enable_rx_zcopy(conn) != 0)
		return;
	for (unsigned n = byte & 7; n > 0 && held_count < HELD && vma_tcp_bytes_before_urgent_mark(conn) < 0; n--) {
		const uint64_t before = fifo_consumed(&conn->rx);

		if (!vma_tcp_peek_first_rx_piece(conn, &piece) || piece.buf == NULL)
			break;
		vma_buf_ref(piece.buf);
		held[held_count++] = (struct held){piece, vma_tcp_zcopy_conn_id(conn), vma_tcp_memory_limits_of(conn)};
		vma_tcp_rx_hold_piece(conn, &piece);
		read_bytes += fifo_consumed(&conn->rx) - before;
	}
}

static enum vma_tcp_inspect_verdict
fuzz_inspector_accept_every_piece(struct vma_tcp_conn *c, const struct vma_tcp_rx_stream_piece *piece, void *arg)
{
	(void)c, (void)arg;
	must(piece->len > 0);
	return VMA_TCP_RECV;
}

static void fuzz_step_inspect(enum step step, uint8_t byte)
{
	static const struct vma_tcp_inspector inspector = {.decide = fuzz_inspector_accept_every_piece};

	peer.unsure = true; /* of the urgent byte */
	if (step == STEP_INSPECT)
		(void)vma_tcp_enable_rx_inspection(conn, byte & 1);
	(void)vma_tcp_inspect_received(conn, &inspector, step == STEP_INSPECT ? UINT32_MAX : byte & 3);
}

/* ---- an input ---- */

static void fuzz_step_on_connection(enum step step, struct input *in)
{
	uint8_t byte = fuzz_input_take_byte(in);
	struct vma_tcp_path path;

	if (conn == NULL)
		return;
	switch (step) {
	case STEP_WRITE:
		fuzz_write_bytes(byte * 33U + 1);
		break;
	case STEP_READ:
		fuzz_read_and_check_bytes(byte < 200 ? byte * 11U : SIZE_MAX);
		break;
	case STEP_SHUTDOWN:
		(void)vma_tcp_shutdown(conn, byte % 3);
		break;
	case STEP_CLOSE:
	case STEP_ABORT:
		vma_tcp_close(conn, step == STEP_ABORT);
		if (byte & 1)
			fuzz_drop_connection();
		break;
	case STEP_DISOWN:
		fuzz_drop_connection();
		break;
	case STEP_OPTION:
		(void)vma_tcp_set_option(conn, (enum vma_tcp_option)(byte % VMA_TCP_OPT_COUNT),
		                         (int32_t)fuzz_input_take_u32(in));
		break;
	case STEP_ICMP:
		if (byte >= 192) {
			fuzz_step_icmp_quote(in);
			return;
		}
		vma_tcp_post_icmp_error(conn, byte, fuzz_input_take_byte(in), (uint16_t)(fuzz_input_take_byte(in) << 3),
		                        peer.acked + fuzz_draw_sequence_distance(in));
		break;
	case STEP_HOLD:
		fuzz_step_hold_piece(byte);
		break;
	case STEP_INSPECT:
	case STEP_INSPECT_SOME:
		fuzz_step_inspect(step, byte);
		break;
	case STEP_PATH:
		path = fuzz_path_to_peer_with_mtu(200 + byte * 5U);
		path.len = byte & 1 ? path.len : 0;
		vma_tcp_set_path(conn, &path);
		break;
	default:
		break;
	}
	fuzz_drive_until_idle();
}

static void fuzz_do_one_step(struct input *in)
{
	const uint8_t byte = fuzz_input_take_byte(in);
	const bool stands = next_byte_is_urgent();
	const uint64_t before = read_bytes + urgent_bytes_left_out;
	enum step step = (enum step)(byte >= STEP_HOLD && byte <= STEP_INSPECT_SOME ? byte : byte % STEPS);

	switch (step) {
	case STEP_SEGMENT:
		fuzz_step_peer_sends_drawn_segment(in);
		break;
	case STEP_BYTES:
		fuzz_step_raw_segment(in);
		break;
	case STEP_DATA:
	case STEP_ACK:
	case STEP_FIN:
	case STEP_RST:
	case STEP_SYN:
	case STEP_SYNACK:
		fuzz_step_valid_peer(step, in);
		break;
	case STEP_TIME:
		fuzz_advance_time_and_fire_timers(1000ULL << fuzz_input_take_byte(in) % 28);
		break;
	case STEP_CONNECT:
		fuzz_connect_to_peer(in);
		fuzz_drive_until_idle();
		break;
	case STEP_NO_MEMORY:
		sim_alloc_fail_ppm = fuzz_input_take_byte(in) & 1 ? 500000 : 0;
		break;
	case STEP_UNLISTEN:
		if (listener != NULL)
			vma_tcp_listener_close(listener);
		listener = NULL;
		break;
	default:
		fuzz_step_on_connection(step, in);
		break;
	}
	/* A step that reads takes the mark away, and brings no newer one. */
	urgent_bytes_left_out += stands && urgent_mark_among_read_bytes() > (int64_t)before;
	fuzz_check_connection_invariants();
}

static void fuzz_start_simulated_pair(void)
{
	struct sim_attr attr = {.seed = 1,
	                        .start_ns = 1000 * SIM_S,
	                        .mtu = 1500,
	                        .frame_size = 2048,
	                        .rx_wre = 64,
	                        .tx_wre = 64,
	                        .watch = sim_watch_hook_nic_queue_pair};
	struct sim_rng chance = {7};

	sim_start(&sim, &attr);
	sim.frame = fuzz_track_segment_sent_by_stack;
	for (unsigned i = 0; i < STREAM; i++)
		stream[i] = (uint8_t)sim_rng_next(&chance);
}

/* A stack of its own for each input, so that none depends on another. */
static void fuzz_start_new_stack(void)
{
	struct sim_side *side = &sim.side[0];
	struct vma_tcp_attr attr = {.ring = side->ring,
	                            .arena = side->arena,
	                            .host = sim_make_host_ops_of_side(side),
	                            .gro_streams_max = 32,
	                            .name = "fuzz"};

	sim.now_ns = 1000 * SIM_S;
	sim_alloc_chance.state = 1;
	must(vma_tcp_create(&attr, &side->tcp) == 0);
	memset(&peer, 0, sizeof(peer));
	peer.isn = 0x12345678;
	conn = NULL;
	closed = false;
	read_bytes = 0;
	urgent_bytes_left_out = 0;
	takes_arriving_pieces = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};
	static uint64_t before;

	if (size > 4096)
		return 0;
	if (sim.frame == NULL) {
		fuzz_start_simulated_pair();
		vma_tcp_destroy(sim.side[0].tcp);
		before = sim_allocated;
	}
	fuzz_start_new_stack();
	fuzz_open_listener_on_stack(&in);
	while (in.at < in.end)
		fuzz_do_one_step(&in);
	sim_alloc_fail_ppm = 0;
	fuzz_drop_connection();
	fuzz_give_back_held_pieces(HELD);
	if (listener != NULL)
		vma_tcp_listener_close(listener);
	listener = NULL;
	fuzz_drive_until_idle();
	vma_tcp_destroy(sim.side[0].tcp);
	sim_free_retired(&sim.side[0]);
	must(sim_allocated == before);
	must(!sim.failed);
	return 0;
}
