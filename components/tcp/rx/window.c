/*
 * window.c - the receive window, when the peer is told of it, and the sizes of both buffers.
 *
 * The edge never moves back (RFC 9293 3.8.6). Its place, rcv_edge, is the furthest that the peer was told, in units
 * that window scaling can express. All bytes up to it are accepted. The buffer counts bytes.
 *
 * The window also has a limit of the ring's: the bytes that a peer may send in a millisecond fit into half the receive
 * queue. If the application does not drive the ring, the internal thread does after that time. Bytes without room by
 * then are lost and sent again. The other half is for others, and for a connection that comes from a larger ring, whose
 * edge does not move back. A near peer may send a whole window in a millisecond. A far peer is allowed more in
 * proportion to its round trip. So the limit costs it no rate that the queue could bear. It is not divided among
 * connections.
 *
 * ACKs are delayed as the kernel delays them. They are not delayed at the beginning and after a pause (quick_acks),
 * while the peer may still be in slow start. Nor are they if more than one segment waits. In a conversation (pingpong)
 * the delay is 40 ms, and the answer takes the ACK along.
 *
 * In a fast stream an ACK stands for more segments, as the kernel's does behind GRO and a NIC's interrupts that are
 * spared. Each ACK costs both sides about what a segment costs, and the sender's bursts become larger. An ACK is held
 * until 32 segments wait or 120 us are over since the last one. If the time ran out, the sender has stopped, perhaps
 * for this ACK. Then none is held for a while, which is the longer the more often this happens in a row. So streams
 * below 3 Gb/s are held once in a while only. The bound is well below what a stream on one core reaches when nothing is
 * held. A bound near that would flip between the two, and a stream would stay slow because of it.
 *
 * Behind a hole, RFC 5681 4.2 wants an ACK for each segment, so the sender counts three; SACK blocks say the same
 * later. As in the kernel, there are three at once, and then one for 44 segments or for a twentieth of the round trip.
 * The kernel's timer has 100 us of slack, all of which it uses: that is the least here. An ACK that closes a hole is
 * not held. Nor is one if data has come in a second place since the last. An ACK has room for three blocks. A block
 * that no ACK reports, or only a lost one, is taken for lost by the sender, and sent again.
 */
#include "../budget.h"
#include "../small_mss_quota.h"
#include "../timer/timers.h"
#include "../zcopy.h"

#define ATO_MIN_NS (40 * TCP_NS_PER_MS)
#define FIRST_DELAY_NS TCP_NS_PER_MS /* before any data; the kernel's next tick */
#define DELACK_MAX_NS (200 * TCP_NS_PER_MS)
#define QUICK_ACKS_MAX 16
#define HOLD_SEGMENTS 32
#define HOLD_NS UINT64_C(120000)
#define HOLD_REST_MIN 8 /* ACKs until one is held again; doubled with each time in a row that runs out */
#define HOLD_REST_MAX 256
#define HOLE_ACKS 3
#define HOLE_SEGMENTS 44
#define HOLE_MIN_NS UINT64_C(100000)
#define HOLE_MAX_NS TCP_NS_PER_MS
#define RCVBUF_MIN 1152
#define SNDBUF_MIN 4608
#define SEGMENT_MEMORY 288 /* what one holds until it is acknowledged, but for its bytes: lwip/objects.c */
#define RCV_MSS_FIRST 536
#define ROUNDING_MAX 16384        /* bytes of the buffer that rounding up may give away */
#define UNDRIVEN_NS TCP_NS_PER_MS /* a ring that has traffic is driven again by then */
#define RING_LIMIT_LEAST (128u << 10)
#define HEADERS_MOST 128 /* of a frame: Ethernet, VLAN, IP and TCP with options */

static uint32_t min_u64_to_u32(uint64_t value, uint64_t limit)
{
	return (uint32_t)(value < limit ? value : limit);
}

static uint32_t max_u32(uint32_t value, uint32_t limit)
{
	return value > limit ? value : limit;
}

/* ---- sizes ---- */

/* Of kernel buffers half is for bookkeeping, at first; ours hold just bytes. */
static uint32_t rcvbuf_initial(const struct vma_tcp_conn *conn)
{
	uint32_t set = (uint32_t)tcp_option(conn, VMA_TCP_OPT_RCVBUF), clamp;

	set = set != 0 ? set : (uint32_t)tcp_option(conn, VMA_TCP_OPT_RCVBUF_INIT) / 2;
	clamp = (uint32_t)tcp_option(conn, VMA_TCP_OPT_WINDOW_CLAMP);
	if (clamp != 0 && clamp < set)
		set = clamp;
	return max_u32(set, RCVBUF_MIN);
}

/*
 * The kernel's buffer holds segments with all that belongs to them. Ours is of bytes; but those of small segments need
 * several times as much for the segments, and a peer decides how small. So what such bytes and their segments need
 * together stays within the buffer.
 */
static uint64_t payload_bytes_within_sndbuf(const struct vma_tcp_conn *conn, uint64_t sndbuf)
{
	if (conn->mss == 0 || !conn_has_small_mss(conn))
		return sndbuf;
	return max_u32((uint32_t)(sndbuf * conn->mss / (conn->mss + SEGMENT_MEMORY)), SNDBUF_MIN);
}

static uint32_t sndbuf_initial(const struct vma_tcp_conn *conn)
{
	uint32_t set = (uint32_t)tcp_option(conn, VMA_TCP_OPT_SNDBUF);

	if (set == 0)
		return max_u32((uint32_t)tcp_option(conn, VMA_TCP_OPT_SNDBUF_INIT), SNDBUF_MIN);
	return max_u32(min_u64_to_u32((uint64_t)set * 2, INT32_MAX), SNDBUF_MIN);
}

void window_init(struct vma_tcp_conn *conn)
{
	atomic_store_explicit(&conn->rcvbuf, rcvbuf_initial(conn), memory_order_relaxed);
	atomic_store_explicit(&conn->sndbuf, sndbuf_initial(conn), memory_order_relaxed);
	atomic_store_explicit(&conn->window_max, UINT32_MAX, memory_order_relaxed);
	conn->window.ato_ns = 0;
	conn->window.rcv_mss = RCV_MSS_FIRST;
}

void tcp_apply_sndbuf_rcvbuf_options(struct vma_tcp_conn *conn)
{
	uint32_t sndbuf = sndbuf_initial(conn);

	if (tcp_option(conn, VMA_TCP_OPT_RCVBUF) != 0 || tcp_option(conn, VMA_TCP_OPT_WINDOW_CLAMP) != 0)
		atomic_store_explicit(&conn->rcvbuf, rcvbuf_initial(conn), memory_order_relaxed);
	if (tcp_option(conn, VMA_TCP_OPT_SNDBUF) != 0)
		atomic_store_explicit(&conn->sndbuf, payload_bytes_within_sndbuf(conn, sndbuf), memory_order_relaxed);
	conn->tx_space_freed = true;
}

/* In bytes, for a peer whose round trip is shorter than UNDRIVEN_NS. */
static uint64_t window_limit_by_rx_ring(const struct vma_tcp_conn *conn)
{
	const struct vma_tcp *tcp = conn->tcp;
	const uint32_t segment = conn->window.rcv_mss;
	const uint32_t frames = ((segment + HEADERS_MOST - 1) >> tcp->arena->frame_shift) + 1;
	const uint64_t bytes = vma_ring_qp(tcp->ring)->rx_depth / 2 / frames * (uint64_t)segment;

	return bytes > RING_LIMIT_LEAST ? bytes : RING_LIMIT_LEAST;
}

/* A round trip that is not known limits nothing. */
void window_max_update(struct vma_tcp_conn *conn)
{
	const uint64_t rtt_ns = conn->rtt.min_ns != 0 ? conn->rtt.min_ns : conn->window.rcv_rtt_ns;
	uint64_t max = UINT64_C(65535) << conn->pcb->rcv_scale, limit = max;

	if (rtt_ns != 0)
		limit = rtt_ns > UNDRIVEN_NS ? window_limit_by_rx_ring(conn) * (rtt_ns / UNDRIVEN_NS)
		                             : window_limit_by_rx_ring(conn);
	atomic_store_explicit(&conn->window_max, min_u64_to_u32(limit, max), memory_order_relaxed);
}

/* The SYN's window is not scaled; what it said is the edge. */
void window_init_on_established(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;

	conn->window.rcv_edge = pcb->rcv_nxt + min_u64_to_u32(pcb->rcv_wnd_max, 65535);
	pcb->rcv_wnd = pcb->rcv_ann_wnd = conn->window.rcv_edge - pcb->rcv_nxt;
	pcb->rcv_wnd_max = UINT32_C(1) << 30;
	window_max_update(conn);
	conn->window.rcv_space =
	        min_u64_to_u32(atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed), 10 * conn->mss);
	conn->window.rcv_space_ns = conn->tcp->now_ns;
	if (tcp_option(conn, VMA_TCP_OPT_SNDBUF) == 0)
		window_sndbuf_grow(conn);
	else
		atomic_store_explicit(&conn->sndbuf, payload_bytes_within_sndbuf(conn, sndbuf_initial(conn)),
		                      memory_order_relaxed);
}

/*
 * What has left the receive buffer for good: what is held has not. Other threads change the parts while they are added
 * up, so the sum may be less than before.
 */
static __attribute__((cold, noinline)) uint32_t rx_bytes_consumed_from_buffer(const struct vma_tcp_conn *conn)
{
	const uint32_t before = conn->window.rcv_space_copied_seen;
	const uint32_t gone = (uint32_t)(zcopy_received_offset(conn) - fifo_queued_bytes(&conn->rx) -
	                                 zcopy_held_and_waiting_bytes(conn));

	return (int32_t)(gone - before) > 0 ? gone : before;
}

/*
 * The kernel's dynamic right-sizing: what was read in one round trip, twice (a sender in slow start doubles), and more
 * when it grows.
 */
static void rcvbuf_grow(struct vma_tcp_conn *conn)
{
	uint64_t now = conn->tcp->now_ns, rcvbuf = atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed);
	uint32_t seen, copied;
	uint64_t rtt = conn->window.rcv_rtt_ns != 0 ? conn->window.rcv_rtt_ns : conn->rtt.srtt_ns;
	uint64_t wanted, max;

	if (conn->tcp->attr.no_rcvbuf_growth || rtt == 0 || now - conn->window.rcv_space_ns < rtt)
		return;
	seen = __builtin_expect(conn->window.chooses, 0) ? rx_bytes_consumed_from_buffer(conn)
	                                                 : (uint32_t)fifo_consumed(&conn->rx);
	copied = seen - conn->window.rcv_space_copied_seen;
	if (copied > conn->window.rcv_space) {
		wanted = 2 * (uint64_t)copied + 16 * conn->mss;
		wanted += 2 * (wanted * (copied - conn->window.rcv_space) / conn->window.rcv_space);
		max = (uint64_t)tcp_option(conn, VMA_TCP_OPT_RCVBUF_MAX);
		wanted = min_u64_to_u32(wanted, max);
		if (wanted > rcvbuf && !tcp_memory_under_pressure(conn->tcp) &&
		    tcp_option(conn, VMA_TCP_OPT_RCVBUF) == 0 && tcp_option(conn, VMA_TCP_OPT_WINDOW_CLAMP) == 0)
			atomic_store_explicit(&conn->rcvbuf, wanted, memory_order_relaxed);
		conn->window.rcv_space = copied;
		window_max_update(conn);
	}
	conn->window.rcv_space_copied_seen = seen;
	conn->window.rcv_space_ns = now;
}

/* What the peer's time stamps say of the round trip, as it is seen from the receiving side; in milliseconds. */
static void rcv_rtt_sample(struct vma_tcp_conn *conn)
{
	const struct tcp_ack *ack = &conn->tcp->ack;
	uint32_t ms;

	if (!ack->has_ts || ack->ts_ecr == 0 || ack->ts_ecr == conn->window.rcv_rtt_ecr)
		return; /* of those with one echo the first has waited least */
	conn->window.rcv_rtt_ecr = ack->ts_ecr;
	ms = tcp_conn_clock_ms(conn) - ack->ts_ecr;
	if (ms > 60000)
		return;
	ms = ms != 0 ? ms : 1;
	conn->window.rcv_rtt_ns = conn->window.rcv_rtt_ns == 0 ? ms * TCP_NS_PER_MS
	                                                       : conn->window.rcv_rtt_ns - conn->window.rcv_rtt_ns / 8 +
	                                                                 ms * TCP_NS_PER_MS / 8;
}

static uint32_t round_up_to_power_of_two(uint32_t value)
{
	return value <= 1 ? 1 : UINT32_C(1) << (32 - __builtin_clz(value - 1));
}

void window_sndbuf_grow(struct vma_tcp_conn *conn)
{
	/* The kernel's truesize of a segment of this size. */
	uint32_t per_segment = round_up_to_power_of_two(conn->mss + 640) + 256;
	uint64_t sndbuf = atomic_load_explicit(&conn->sndbuf, memory_order_relaxed), wanted;
	uint64_t segments = conn->mss != 0 ? conn->cc.cwnd / conn->mss : 0;

	if (tcp_option(conn, VMA_TCP_OPT_SNDBUF) != 0 || tcp_memory_under_pressure(conn->tcp))
		return;
	/* A model wants to be able to double the window while it repairs a loss, too: so the kernel. */
	wanted = (cc_is_model_based(&conn->cc) ? 3 : 2) * (segments > 10 ? segments : 10) * per_segment;
	wanted = min_u64_to_u32(wanted, (uint64_t)tcp_option(conn, VMA_TCP_OPT_SNDBUF_MAX));
	wanted = payload_bytes_within_sndbuf(conn, wanted);
	if (wanted > sndbuf)
		atomic_store_explicit(&conn->sndbuf, wanted, memory_order_relaxed);
}

/* ---- what is announced ---- */

static uint64_t rcvbuf_minus_queued(uint64_t rcvbuf, uint64_t queued)
{
	return rcvbuf > queued ? rcvbuf - queued : 0;
}

/* Silly windows are not announced (RFC 9293 3.8.6.2.2): less than a segment, or a sixteenth of the buffer, is none. */
static uint64_t window_avoid_silly(uint64_t rcvbuf, uint64_t space, uint32_t mss)
{
	if (mss > rcvbuf)
		mss = (uint32_t)rcvbuf;
	if (space < rcvbuf / 2 && (space < rcvbuf / 16 || space < mss))
		return 0;
	return space;
}

static uint32_t advertised_window_left(const struct vma_tcp_conn *conn)
{
	int32_t left = (int32_t)(conn->window.rcv_edge - conn->pcb->rcv_nxt);

	return left > 0 ? (uint32_t)left : 0;
}

/*
 * What is left of the announced window, in units of window scaling: rounded up, so that the edge does not move back, as
 * the kernel does. A peer whose few bytes are acknowledged one segment at a time would never find the window closed: it
 * gets so much that way, and after that sees the edge move back by less than a unit (RFC 7323 2.4), although what it
 * has sent up to the old edge is taken.
 */
static uint32_t round_window_to_scale(uint64_t rcvbuf, uint64_t queued, uint32_t now, uint32_t unit)
{
	uint64_t up = (now + (uint64_t)unit - 1) & ~(uint64_t)(unit - 1);
	uint64_t limit = (rcvbuf > 65535 ? rcvbuf : 65535) + ROUNDING_MAX; /* a SYN announces that much */

	return queued + up <= limit ? (uint32_t)up : now & ~(unit - 1);
}

/* While memory for all is short, as the kernel: four segments for who has half the buffer unread, none beyond the end.
 */
static uint64_t __attribute__((cold, noinline))
window_reduce_under_memory_pressure(const struct vma_tcp_conn *conn, uint64_t rcvbuf, uint64_t queued, uint64_t window)
{
	const uint64_t few = 4 * (uint64_t)conn->window.rcv_mss;

	if (tcp_memory_is_exhausted(conn->tcp))
		return queued >= BUDGET_RCV_LEAST ? 0 : min_u64_to_u32(window, few);
	return 2 * queued > rcvbuf ? min_u64_to_u32(window, few) : window;
}

static uint32_t choose_window(const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint64_t rcvbuf = atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed);
	uint32_t now = advertised_window_left(conn), unit = UINT32_C(1) << pcb->rcv_scale, chosen;
	uint64_t queued = fifo_queued_bytes(&conn->rx) + (pcb->refused_data != NULL ? pcb->refused_data->tot_len : 0);

	if (__builtin_expect(conn->window.chooses, 0))
		queued += zcopy_held_and_waiting_bytes(conn);
	chosen = min_u64_to_u32(window_avoid_silly(rcvbuf, rcvbuf_minus_queued(rcvbuf, queued), conn->window.rcv_mss),
	                        atomic_load_explicit(&conn->window_max, memory_order_relaxed));
	if (__builtin_expect(tcp_memory_under_pressure(conn->tcp), 0))
		chosen = (uint32_t)window_reduce_under_memory_pressure(conn, rcvbuf, queued, chosen);
	chosen &= ~(unit - 1);
	return chosen >= now ? chosen : round_window_to_scale(rcvbuf, queued, now, unit);
}

/* The peer is told of `window` bytes, which are not fewer than it knows of, or what round_window_to_scale makes of
 * these. */
static inline uint16_t window_commit_advertised(struct vma_tcp_conn *conn, uint32_t window, uint32_t now)
{
	struct tcp_pcb *pcb = conn->pcb;
	struct vma_tcp *tcp = conn->tcp;
	const uint32_t rcv_nxt = pcb->rcv_nxt;

	tcp->acked_since_kick += rcv_nxt - conn->window.rcv_wup;
	if (window > now)
		conn->window.rcv_edge = rcv_nxt + window;
	pcb->rcv_wnd = window > now ? window : now;
	pcb->rcv_ann_wnd = window;
	conn->window.rcv_wup = rcv_nxt;
	conn->out_segments++;
	if (conn->window.quick_acks != 0 && --conn->window.quick_acks == 0)
		conn->window.ato_ns = ATO_MIN_NS;
	conn->window.ack_ns = tcp->now_ns;
	conn->window.ack_held = false;
	conn->window.acks_before_hold -= conn->window.acks_before_hold != 0;
	if (!conn->window.sacks_held) /* data takes no blocks along */
		timers_cancel_delack(conn);
	return (uint16_t)min_u64_to_u32(window >> pcb->rcv_scale, 65535);
}

static uint16_t __attribute__((noinline)) window_advertise_recomputed(struct vma_tcp_conn *conn)
{
	uint32_t window = choose_window(conn), now = advertised_window_left(conn);

	if (window == 0 && now == 0 && conn->window.rcv_edge != conn->pcb->rcv_nxt)
		TCP_COUNT(conn->tcp, zero_windows, 1);
	return window_commit_advertised(conn, window, now);
}

/* At first the usual case of choose_window: at least half the buffer is free, and the edge does not move back. */
uint16_t window_advertise(struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint64_t rcvbuf = atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed),
	         queued = fifo_queued_bytes(&conn->rx);
	uint32_t now = advertised_window_left(conn), window;

	window = min_u64_to_u32(rcvbuf - queued, atomic_load_explicit(&conn->window_max, memory_order_relaxed)) >>
	         pcb->rcv_scale << pcb->rcv_scale;
	if (__builtin_expect(queued > rcvbuf / 2 || pcb->refused_data != NULL || window < now || window == 0 ||
	                             tcp_memory_under_pressure(conn->tcp) || conn->window.chooses,
	                     0))
		return window_advertise_recomputed(conn);
	return window_commit_advertised(conn, window, now);
}

/*
 * The reader's question, of published values; they may be a little old, and then the answer of the next read, or the
 * next ACK, is the better one. As tcp_cleanup_rbuf: the window would double, or all has been read and an ACK waits.
 */
static inline __attribute__((always_inline)) bool reader_should_send_window_update(const struct vma_tcp_conn *conn,
                                                                                   uint64_t withheld)
{
	uint64_t rcvbuf = atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed);
	uint64_t edge = atomic_load_explicit(&conn->rx_edge, memory_order_relaxed);
	uint64_t produced = fifo_produced(&conn->rx), queued = produced - fifo_consumed(&conn->rx) + withheld;
	uint64_t now, next;

	if (queued == 0 && atomic_load_explicit(&conn->ack_waits, memory_order_relaxed))
		return true;
	now = edge > produced ? edge - produced : 0;
	if (2 * now > rcvbuf)
		return false;
	next = window_avoid_silly(rcvbuf, rcvbuf_minus_queued(rcvbuf, queued),
	                          atomic_load_explicit(&conn->mss_now, memory_order_relaxed));
	next = min_u64_to_u32(next, atomic_load_explicit(&conn->window_max, memory_order_relaxed));
	return next != 0 && next >= 2 * now;
}

static __attribute__((noinline)) bool reader_should_update_unless_fin(const struct vma_tcp_conn *conn, uint8_t mode)
{
	return (mode & RX_FIN) == 0 && reader_should_send_window_update(conn, zcopy_held_and_waiting_bytes(conn));
}

bool window_wants_update(const struct vma_tcp_conn *conn)
{
	const uint8_t mode = atomic_load_explicit(&conn->rx_mode, memory_order_relaxed);

	if (__builtin_expect(mode != 0, 0))
		return reader_should_update_unless_fin(conn, mode);
	return reader_should_send_window_update(conn, 0);
}

void window_after_read(struct vma_tcp_conn *conn)
{
	if (!conn->connected || conn->pcb->state == TIME_WAIT)
		return;
	rcvbuf_grow(conn);
	window_publish_for_reader(conn);
	if (window_wants_update(conn))
		tcp_ack_now(conn->pcb);
}

void window_publish_for_reader(struct vma_tcp_conn *conn)
{
	uint64_t produced = fifo_produced(&conn->rx);
	bool waits;

	if (!conn->connected || conn->pcb == NULL)
		return;
	atomic_store_explicit(&conn->rx_edge, produced + advertised_window_left(conn), memory_order_relaxed);
	waits = conn->window.rcv_wup != conn->pcb->rcv_nxt && !conn->window.pingpong && conn->pushed &&
	        !conn->window.ack_held;
	atomic_store_explicit(&conn->ack_waits, waits, memory_order_relaxed);
}

/* ---- when to acknowledge ---- */

static void more_quick_acks(struct vma_tcp_conn *conn)
{
	uint32_t quick = advertised_window_left(conn) / (2 * conn->window.rcv_mss);

	quick = quick < 2 ? 2 : quick;
	conn->window.quick_acks = max_u32(conn->window.quick_acks, quick < QUICK_ACKS_MAX ? quick : QUICK_ACKS_MAX);
}

/* The kernel's tcp_event_data_recv: the pace at which data comes is how long an answer may take. */
static void window_update_ack_timeout(struct vma_tcp_conn *conn)
{
	uint64_t now = conn->tcp->now_ns, gap = now - conn->window.last_data_in_ns;

	if (conn->window.ato_ns == 0) {
		more_quick_acks(conn);
		conn->window.ato_ns = ATO_MIN_NS;
	} else if (gap <= ATO_MIN_NS / 2) {
		conn->window.ato_ns = conn->window.ato_ns / 2 + ATO_MIN_NS / 2;
	} else if (gap < conn->window.ato_ns) {
		conn->window.ato_ns = conn->window.ato_ns / 2 + gap;
	} else if (gap > rtt_rto_ns(&conn->rtt, 0)) {
		more_quick_acks(conn);
	}
	conn->window.last_data_in_ns = now;
}

static uint64_t delayed_ack_timeout_ns(const struct vma_tcp_conn *conn)
{
	uint64_t max = DELACK_MAX_NS, delay = conn->window.ato_ns;

	if (conn->rtt.srtt_ns != 0)
		max = conn->rtt.srtt_ns > ATO_MIN_NS ? conn->rtt.srtt_ns : ATO_MIN_NS;
	return delay < max ? delay : max;
}

/* Whether that of `waiting` bytes is held a moment longer. Half the window is the most that may wait for it. */
static bool window_hold_update(struct vma_tcp_conn *conn, uint32_t waiting)
{
	uint64_t since_ns = conn->tcp->now_ns - conn->window.ack_ns;

	if (waiting >= HOLD_SEGMENTS * conn->window.rcv_mss)
		conn->window.hold_failed = 0;
	if (conn->window.acks_before_hold != 0 || since_ns >= HOLD_NS ||
	    waiting >= HOLD_SEGMENTS * conn->window.rcv_mss || waiting > advertised_window_left(conn))
		return false;
	if (!conn->window.ack_held)
		timers_set_delack(conn, HOLD_NS - since_ns);
	conn->window.ack_held = true;
	return true;
}

/* VMA_TCP_QUICKACK, where the connection has not been told otherwise; the route's word is the last. */
static bool acks_are_never_delayed(const struct vma_tcp_conn *conn)
{
	if (__builtin_expect(conn->path.quickack, 0))
		return true;
	return conn->tcp->attr.quickack && tcp_option(conn, VMA_TCP_OPT_QUICKACK) != 0;
}

/* VMA_TCP_QUICKACK_THRESHOLD, where the connection has not been told otherwise. */
static bool segment_disables_delayed_ack(const struct vma_tcp_conn *conn, uint32_t segment)
{
	return __builtin_expect(segment <= conn->tcp->attr.quickack_threshold, 0) &&
	       tcp_option(conn, VMA_TCP_OPT_QUICKACK) != 0;
}

static void __attribute__((cold, noinline)) window_raise_rcv_mss(struct vma_tcp_conn *conn, uint32_t segment)
{
	conn->window.rcv_mss = min_u64_to_u32(segment, tcp_mss_advertised(conn));
	window_max_update(conn);
}

void window_on_data_received(struct vma_tcp_conn *conn, uint32_t bytes, uint32_t segment, bool push)
{
	struct tcp_pcb *pcb = conn->pcb;
	uint32_t waiting = pcb->rcv_nxt - conn->window.rcv_wup;

	if (__builtin_expect(segment > conn->window.rcv_mss, 0))
		window_raise_rcv_mss(conn, segment);
	conn->pushed = push;
	window_update_ack_timeout(conn);
	if (segment >= conn->window.rcv_mss)
		rcv_rtt_sample(conn);
	rcvbuf_grow(conn);
	(void)bytes;
	if (acks_are_never_delayed(conn) || segment_disables_delayed_ack(conn, segment)) {
		tcp_ack_now(pcb);
		return;
	}
	if (waiting > conn->window.rcv_mss && conn->window.quick_acks == 0 && pcb->ooseq == NULL &&
	    window_hold_update(conn, waiting))
		return;
	if ((waiting > conn->window.rcv_mss && choose_window(conn) >= advertised_window_left(conn)) ||
	    (conn->window.quick_acks != 0 && !conn->window.pingpong) || pcb->ooseq != NULL)
		tcp_ack_now(pcb);
	else if (conn->window.delack_due_ns == UINT64_MAX)
		timers_set_delack(conn, delayed_ack_timeout_ns(conn));
}

/* lwIP would acknowledge it at once. Who closes in answer has the ACK go with his FIN. */
void window_on_fin(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;

	if (acks_are_never_delayed(conn) || (conn->window.quick_acks != 0 && !conn->window.pingpong))
		return;
	tcp_clear_flags(pcb, TF_ACK_NOW);
	if (conn->window.delack_due_ns == UINT64_MAX)
		timers_set_delack(conn, conn->window.ato_ns != 0 ? delayed_ack_timeout_ns(conn) : FIRST_DELAY_NS);
}

static uint64_t delayed_sack_timeout_ns(const struct vma_tcp_conn *conn)
{
	uint64_t rtt = conn->window.rcv_rtt_ns;

	if (rtt == 0 || (conn->rtt.srtt_ns != 0 && conn->rtt.srtt_ns < rtt))
		rtt = conn->rtt.srtt_ns;
	return rtt / 20 < HOLE_MIN_NS ? HOLE_MIN_NS : rtt / 20 < HOLE_MAX_NS ? rtt / 20 : HOLE_MAX_NS;
}

/* Whether what has come last lies in another block than what came before it: lwIP has the newest one first. */
static bool newest_sack_block_has_changed(const struct vma_tcp_conn *conn)
{
	const struct tcp_sack_range *newest = &conn->pcb->rcv_sacks[0];

	return TCP_SEQ_GT(newest->left, conn->window.sack_left) || TCP_SEQ_LT(newest->right, conn->window.sack_right);
}

static void window_note_newest_sack_block(struct vma_tcp_conn *conn)
{
	conn->window.sack_places += conn->window.sacks_waiting != 0 && newest_sack_block_has_changed(conn);
	conn->window.sack_left = conn->pcb->rcv_sacks[0].left;
	conn->window.sack_right = conn->pcb->rcv_sacks[0].right;
}

bool window_new_sack_block_needs_ack(const struct vma_tcp_conn *conn)
{
	return conn->window.sack_places != 0;
}

void window_on_out_of_order_data(struct vma_tcp_conn *conn, uint32_t bytes, bool flagged)
{
	struct tcp_pcb *pcb = conn->pcb;

	if (conn->window.hole != pcb->rcv_nxt) {
		conn->window.hole = pcb->rcv_nxt;
		conn->window.hole_acks = 0;
	}
	if (pcb->flags & TF_SACK && pcb->ooseq != NULL)
		window_note_newest_sack_block(conn);
	conn->window.sacks_waiting += bytes;
	if (flagged || !(pcb->flags & TF_SACK) || pcb->ooseq == NULL || conn->window.hole_acks < HOLE_ACKS ||
	    window_new_sack_block_needs_ack(conn) || conn->window.sacks_waiting >= HOLE_SEGMENTS * conn->window.rcv_mss)
		return;
	tcp_clear_flags(pcb, TF_ACK_NOW);
	if (!conn->window.sacks_held)
		timers_set_delack(conn, delayed_sack_timeout_ns(conn));
	conn->window.sacks_held = true;
}

void window_on_ack_sent(struct vma_tcp_conn *conn)
{
	conn->window.sacks_held = false;
	conn->window.sacks_waiting = 0;
	conn->window.sack_places = 0;
	conn->window.hole_acks += conn->pcb->ooseq != NULL;
}

void window_on_duplicate_data(struct vma_tcp_conn *conn, uint32_t left, uint32_t right)
{
	/* An ACK has room for one such report. */
	if (conn->pcb->flags & TF_SACK && conn->dsack_left != conn->dsack_right)
		tcp_output_ack(conn);
	conn->dsack_left = left;
	conn->dsack_right = right;
	more_quick_acks(conn);
	conn->window.pingpong = false;
	conn->window.ato_ns = ATO_MIN_NS;
}

void window_delack_fired(struct vma_tcp_conn *conn)
{
	if (conn->pcb == NULL || (conn->window.rcv_wup == conn->pcb->rcv_nxt && !conn->window.sacks_held))
		return;
	if (conn->window.sacks_held) {
		conn->window.sacks_held = false;
	} else if (conn->window.ack_held) {
		conn->window.acks_before_hold = HOLD_REST_MIN << conn->window.hold_failed;
		conn->window.hold_failed += conn->window.acks_before_hold < HOLD_REST_MAX;
	} else if (conn->window.pingpong) {
		conn->window.pingpong = false;
		conn->window.ato_ns = ATO_MIN_NS;
	} else {
		uint64_t rto = rtt_rto_ns(&conn->rtt, 0);

		conn->window.ato_ns = 2 * conn->window.ato_ns < rto ? 2 * conn->window.ato_ns : rto;
	}
	tcp_ack_now(conn->pcb);
	conn_enqueue_ready(conn);
}

void window_set_quickack(struct vma_tcp_conn *conn, bool on)
{
	conn->window.pingpong = !on;
	if (on && conn->pcb != NULL && conn->connected && conn->window.rcv_wup != conn->pcb->rcv_nxt)
		tcp_ack_now(conn->pcb);
}
