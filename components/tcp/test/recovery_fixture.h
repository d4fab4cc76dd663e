/*
 * A sender's recovery and timers, real ones, between fakes: an output that makes segments by the rules of tcp_priv.h, a
 * network in virtual time that loses what it is told to lose, and a receiver that acknowledges by RFC 2018, 2883 and
 * 7323. After each step the scoreboard is compared with sums taken from the marks themselves.
 *
 *   setup_established_connection_and_link ── fixture_write_app_bytes ── fixture_run_until ──> output ──> network ──> receiver
 *                                       ^                   recovery_* <──────── ACKs ┘
 *                                       └── timers (wheel)
 */
#ifndef RECOVERY_FIXTURE_H
#define RECOVERY_FIXTURE_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <vma/test.h>

#include "../loss/sack_index.h"
#include "../loss/scoreboard.h"

#define MSS 1000u
#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define ISS 0xffffa000u /* sequence numbers wrap in every longer test */
#define FOREVER (UINT64_C(100000) * SECOND)

struct flying {
	struct flying *next;
	uint64_t at_ns;
	bool is_ack;
	uint32_t seq, len, ts_val; /* data */
	struct tcp_ack ack;
};
struct range {
	uint32_t left, right;
};

struct fixture {
	struct vma_tcp tcp;
	struct vma_tcp_conn conn;
	struct tcp_pcb pcb;
	bool ready;
	/* the network */
	struct flying *flying;
	uint64_t delay_ns, jitter_ns;                   /* one way */
	uint64_t link_rate, link_free_ns, link_room_ns; /* bytes per second, 0: any; how long its queue is at most */
	uint64_t link_waits_ns;                         /* of the last segment, in the queue */
	uint32_t seed;
	uint32_t sent;                        /* transmissions of data so far, again ones included */
	bool (*drop)(uint32_t seq, bool ack); /* also told of repetitions: fixture.again */
	bool again;
	double loss, ack_loss;
	int frames; /* left; -1: any number */
	/* the receiver */
	uint32_t rcv_nxt, window, ts_recent;
	struct range ooo[4000]; /* most recent first */
	unsigned ooo_count;
	bool no_sack, no_timestamps, no_dsack, mute;
	bool unchecked;                 /* the walk of all that is out is left to the end */
	uint32_t ack_every, unacked_in; /* as receivers that delay */
	uint64_t delivered_ns;          /* when rcv_nxt moved last */
	/* what happened */
	uint32_t outs, agains, failed;
	int error;
	bool reset;
	uint32_t keepalives, forced;
	uint64_t last_again_ns;
	uint32_t last_again_seq, max_pipe;
};
static struct fixture w;

/* ---- the network ---- */

static uint32_t fixture_draw_random(void)
{
	w.seed = w.seed * 1664525 + 1013904223;
	return w.seed >> 8;
}

static bool fixture_random_happens(double p)
{
	return fixture_draw_random() % 100000 < p * 100000;
}

static void fixture_put_in_flight(const struct flying *what, uint64_t leaves_ns)
{
	struct flying *copy = malloc(sizeof(*copy)), **place = &w.flying;

	assert_non_null(copy);
	*copy = *what;
	copy->at_ns = leaves_ns + w.delay_ns + (w.jitter_ns ? fixture_draw_random() % w.jitter_ns : 0);
	while (*place && (*place)->at_ns <= copy->at_ns)
		place = &(*place)->next;
	copy->next = *place;
	*place = copy;
}

/* When it has passed; false: there was no room. */
static bool link_compute_departure_time(uint32_t len, uint64_t *leaves_ns)
{
	uint64_t begins_ns = w.link_free_ns > w.tcp.now_ns ? w.link_free_ns : w.tcp.now_ns;

	*leaves_ns = w.tcp.now_ns;
	if (w.link_rate == 0)
		return true;
	if (begins_ns - w.tcp.now_ns > w.link_room_ns)
		return false;
	w.link_waits_ns = begins_ns - w.tcp.now_ns;
	*leaves_ns = w.link_free_ns = begins_ns + len * SECOND / w.link_rate;
	return true;
}

static void fixture_transmit_segment_with_loss(struct tcp_seg *seg, bool again)
{
	struct flying data = {.seq = seg_seq(seg), .len = seg_len(seg), .ts_val = tcp_clock_ms(&w.tcp)};
	uint64_t leaves_ns;

	w.again = again;
	w.sent++;
	if (again) {
		w.agains++;
		w.last_again_ns = w.tcp.now_ns;
		w.last_again_seq = data.seq;
	}
	if ((w.drop && w.drop(data.seq - ISS, false)) || fixture_random_happens(w.loss))
		return;
	if (link_compute_departure_time(data.len, &leaves_ns))
		fixture_put_in_flight(&data, leaves_ns);
}

/* ---- the receiver ---- */

static void fixture_insert_received_range(uint32_t left, uint32_t right)
{
	struct range grown = {left, right};
	unsigned kept = 0;

	for (unsigned i = 0; i < w.ooo_count; i++) {
		struct range r = w.ooo[i];

		if (TCP_SEQ_LEQ(r.left, grown.right) && TCP_SEQ_GEQ(r.right, grown.left)) {
			grown.left = TCP_SEQ_LT(r.left, grown.left) ? r.left : grown.left;
			grown.right = TCP_SEQ_GT(r.right, grown.right) ? r.right : grown.right;
		} else {
			w.ooo[kept++] = r;
		}
	}
	assert_true(kept < sizeof(w.ooo) / sizeof(w.ooo[0]));
	memmove(w.ooo + 1, w.ooo, kept * sizeof(w.ooo[0]));
	w.ooo[0] = grown;
	w.ooo_count = kept + 1;
}

static void fixture_join_received_ranges(void)
{
	for (unsigned i = 0; i < w.ooo_count; i++) {
		if (TCP_SEQ_GT(w.ooo[i].left, w.rcv_nxt))
			continue;
		if (TCP_SEQ_GT(w.ooo[i].right, w.rcv_nxt))
			w.rcv_nxt = w.ooo[i].right;
		memmove(w.ooo + i, w.ooo + i + 1, (--w.ooo_count - i) * sizeof(w.ooo[0]));
		fixture_join_received_ranges();
		return;
	}
}

static bool receiver_has_range(uint32_t left, uint32_t right)
{
	if (TCP_SEQ_LEQ(right, w.rcv_nxt))
		return true;
	for (unsigned i = 0; i < w.ooo_count; i++) {
		if (TCP_SEQ_GEQ(left, w.ooo[i].left) && TCP_SEQ_LEQ(right, w.ooo[i].right))
			return true;
	}
	return false;
}

static void fixture_receiver_sends_ack(const struct range *dsack)
{
	struct flying answer = {.is_ack = true};
	struct tcp_ack *ack = &answer.ack;

	w.unacked_in = 0;
	*ack = (struct tcp_ack){.ackno = w.rcv_nxt, .window = w.window, .has_ts = !w.no_timestamps};
	if (ack->has_ts)
		ack->ts_ecr = w.ts_recent;
	if (dsack && !w.no_dsack && !w.no_sack) {
		ack->block[ack->blocks].left = dsack->left;
		ack->block[ack->blocks++].right = dsack->right;
	}
	for (unsigned i = 0; i < w.ooo_count && ack->blocks < 3 && !w.no_sack; i++) {
		ack->block[ack->blocks].left = w.ooo[i].left;
		ack->block[ack->blocks++].right = w.ooo[i].right;
	}
	if ((w.drop && w.drop(w.rcv_nxt - ISS, true)) || fixture_random_happens(w.ack_loss))
		return;
	fixture_put_in_flight(&answer, w.tcp.now_ns);
}

static void fixture_receiver_takes_data(const struct flying *data)
{
	struct range range = {data->seq, data->seq + data->len};
	bool twice = receiver_has_range(range.left, range.right), in_order = data->seq == w.rcv_nxt;

	if (w.mute)
		return;
	if (TCP_SEQ_LEQ(data->seq, w.rcv_nxt) && TCP_SEQ_GEQ(data->ts_val, w.ts_recent))
		w.ts_recent = data->ts_val;
	if (!twice) {
		fixture_insert_received_range(range.left, range.right);
		fixture_join_received_ranges();
		w.delivered_ns = w.tcp.now_ns;
	}
	/* An ACK for every ack_every segments in order, at once for everything else; the last ones wait for no timer.
	 */
	if (!twice && in_order && w.ooo_count == 0 && ++w.unacked_in < w.ack_every && w.flying && !w.flying->is_ack)
		return;
	fixture_receiver_sends_ack(twice ? &range : NULL);
}

/* ---- the scoreboard as it should be ---- */

static unsigned fixture_check_lost_list(const struct tcp_seg_list *list, uint8_t marks)
{
	const struct tcp_seg *before = NULL;
	unsigned n = 0;

	for (const struct tcp_seg *seg = list->first; seg; seg = seg->lost_next, n++) {
		assert_int_equal(seg->marks, marks);
		assert_ptr_equal(seg->lost_prev, before);
		before = seg;
	}
	assert_ptr_equal(list->last, before);
	return n;
}

/* Every run holds the segments up to the next one, and knows how many of them are not SACKed. */
static void fixture_check_sack_index(void)
{
	const struct tcp_sack_index *index = &w.conn.recovery.sack_index;
	const struct tcp_seg *seg = w.pcb.unacked;
	uint32_t begin = index->begin;

	/* Those that are acknowledged are dropped with the next SACK. */
	while (index->end - begin > 1 && TCP_SEQ_LEQ(index->at[begin + 1].seq, w.pcb.lastack))
		begin++;
	for (uint32_t i = begin; i != index->end; i++) {
		bool is_last = i + 1 == index->end;
		uint32_t unsacked = 0;

		if (i != begin)
			assert_ptr_equal(seg, index->at[i].first);
		for (; seg && !(is_last ? false : seg == index->at[i + 1].first); seg = seg->next) {
			unsacked += !(seg->marks & SEG_SACKED);
			if (is_last && seg == index->last)
				break;
		}
		assert_non_null(seg);
		if (i == begin)
			assert_true(index->at[i].unsacked >= unsacked);
		else
			assert_int_equal(index->at[i].unsacked, unsacked);
	}
}

static void fixture_check_scoreboard_invariants(void)
{
	const struct tcp_recovery *r = &w.conn.recovery;
	uint32_t sacked = 0, segments = 0, lost = 0, again = 0;
	unsigned waiting = 0, resent = 0;
	struct tcp_seg *last = NULL;

	for (struct tcp_seg *seg = w.pcb.unacked; seg; seg = seg->next) {
		if (seg->marks & SEG_SACKED) {
			assert_false(seg->marks & (SEG_LOST | SEG_RETRANSMITTED));
			sacked += seg_len(seg);
			segments++;
		}
		if (seg->marks & SEG_RETRANSMITTED)
			assert_true(seg->marks & SEG_LOST);
		lost += seg->marks & SEG_LOST ? seg_len(seg) : 0;
		again += seg->marks & SEG_RETRANSMITTED ? seg_len(seg) : 0;
		waiting += (seg->marks & (SEG_LOST | SEG_RETRANSMITTED)) == SEG_LOST;
		resent += (seg->marks & SEG_RETRANSMITTED) != 0;
		last = seg;
	}
	assert_true(!last || last == w.pcb.unacked_last);
	assert_int_equal(fixture_check_lost_list(&r->waiting, SEG_LOST), waiting);
	assert_int_equal(fixture_check_lost_list(&r->resent, SEG_LOST | SEG_RETRANSMITTED), resent);
	fixture_check_sack_index();
	assert_int_equal(r->sacked_bytes, sacked);
	assert_int_equal(r->sacked_segments, segments);
	assert_int_equal(r->lost_bytes, lost);
	assert_int_equal(r->retransmitted_bytes, again);
	if (r->checked) {
		uint32_t below = 0;
		struct tcp_seg *seg = w.pcb.unacked;

		for (; seg && seg != r->checked; seg = seg->next)
			below += seg->marks & SEG_SACKED ? 1 : 0;
		assert_ptr_equal(seg, r->checked);
		below += seg->marks & SEG_SACKED ? 1 : 0;
		assert_int_equal(r->sacked_checked, below);
	} else {
		assert_int_equal(r->sacked_checked, 0);
	}
	if (recovery_bytes_in_flight(&w.conn) > w.max_pipe)
		w.max_pipe = recovery_bytes_in_flight(&w.conn);
	assert_true(w.conn.cc.cwnd >= MSS || r->state == TCP_RECOVERY_FAST);
}

/* ---- the sender's surroundings ---- */

void conn_enqueue_ready(struct vma_tcp_conn *conn)
{
	assert_ptr_equal(conn, &w.conn);
	w.ready = true;
}

int tcp_output_retransmit(struct vma_tcp_conn *conn, struct tcp_seg *seg)
{
	struct tcp_seg *there = conn->pcb->unacked;

	while (there && there != seg)
		there = there->next;
	assert_non_null(there);
	assert_false(seg->marks & SEG_SACKED);
	if (w.frames == 0)
		return -ENOBUFS;
	if (w.frames > 0)
		w.frames--;
	fixture_transmit_segment_with_loss(seg, true);
	return 0;
}

static struct tcp_seg *new_segment(uint32_t seq, uint32_t len, uint8_t flags)
{
	struct tcp_seg *seg = calloc(1, sizeof(*seg) + sizeof(struct tcp_hdr));

	assert_non_null(seg);
	seg->tcphdr = (struct tcp_hdr *)(seg + 1);
	seg->tcphdr->seqno = lwip_htonl(seq);
	TCPH_HDRLEN_FLAGS_SET(seg->tcphdr, 5, flags);
	seg->len = (u16_t)len;
	return seg;
}

static void append(struct tcp_seg *seg)
{
	if (w.pcb.unacked)
		w.pcb.unacked_last->next = seg;
	else
		w.pcb.unacked = seg;
	w.pcb.unacked_last = seg;
	w.pcb.snd_nxt = seg_end(seg);
	recovery_on_segment_sent(&w.conn, seg);
	w.outs++;
	fixture_transmit_segment_with_loss(seg, false);
}

/* Whole segments only, but for the last bytes of all. Returns whether one has left. */
static bool fixture_send_new_segment(void)
{
	uint32_t waiting = (uint32_t)(fifo_produced(&w.conn.tx) - w.conn.lwip_end), len = waiting < MSS ? waiting : MSS;

	if (len == 0 || w.frames == 0 || recovery_new_bytes_allowed(&w.conn) < len ||
	    w.pcb.snd_nxt - w.pcb.lastack + len > w.pcb.snd_wnd)
		return false;
	if (w.frames > 0)
		w.frames--;
	w.conn.lwip_end += len;
	append(new_segment(w.pcb.snd_nxt, len, TCP_ACK));
	return true;
}

static void fixture_send_allowed_segments(void)
{
	w.ready = false;
	if (w.error)
		return;
	if (recovery_retransmit(&w.conn) == 0) {
		while (fixture_send_new_segment())
			if (!w.unchecked)
				fixture_check_scoreboard_invariants();
	}
	recovery_note_app_limited_or_set_pacing(&w.conn);
	timers_retransmit_update(&w.conn);
	assert_true(!w.pcb.unacked || wheel_is_set(&w.conn.timer[TCP_TIMER_RETRANSMIT]));
	fixture_check_scoreboard_invariants();
}

static void fixture_receive_ack(const struct tcp_ack *ack)
{
	struct tcp_seg *seg;

	w.conn.last_in_ns = w.tcp.now_ns;
	recovery_ack_before_lwip(&w.conn, ack);
	if (TCP_SEQ_GT(ack->ackno, w.pcb.lastack) && TCP_SEQ_LEQ(ack->ackno, w.pcb.snd_nxt)) {
		w.pcb.lastack = ack->ackno;
		while ((seg = w.pcb.unacked) && TCP_SEQ_LEQ(seg_end(seg), ack->ackno)) {
			w.pcb.unacked = seg->next;
			memset(seg, 0xee, sizeof(*seg));
			free(seg);
		}
		if (w.pcb.state == SYN_SENT || w.pcb.state == SYN_RCVD)
			w.pcb.state = ESTABLISHED;
	}
	w.pcb.snd_wnd = ack->window;
	recovery_ack_after_lwip(&w.conn, ack);
	w.ready = true;
}

static void fixture_fire_timer(struct tcp_timer_node *node, void *arg)
{
	(void)arg;
	timers_fire(&w.conn, node->kind);
	w.ready = true;
}

/* Events in order until nothing flies and no timer runs, or the time has come. */
static void fixture_run_until(uint64_t until_ns)
{
	unsigned stands_still = 0;

	while (!w.error) {
		uint64_t next_ns = wheel_next_due_ns(&w.tcp.wheel);
		struct flying *first = w.flying;

		if (w.ready) {
			fixture_send_allowed_segments();
			continue;
		}
		if (first && first->at_ns < next_ns)
			next_ns = first->at_ns;
		if (next_ns > until_ns)
			break;
		/* Due already is due now; but not for ever. */
		if (next_ns > w.tcp.now_ns)
			stands_still = 0;
		assert_true(stands_still++ < 100000);
		w.tcp.now_ns = next_ns > w.tcp.now_ns ? next_ns : w.tcp.now_ns;
		if (first && first->at_ns <= w.tcp.now_ns) {
			w.flying = first->next;
			if (first->is_ack)
				fixture_receive_ack(&first->ack);
			else
				fixture_receiver_takes_data(first);
			free(first);
		} else {
			wheel_advance(&w.tcp.wheel, w.tcp.now_ns, fixture_fire_timer, NULL);
		}
	}
	if (until_ns != FOREVER && !w.error)
		w.tcp.now_ns = until_ns;
}

static void fixture_write_app_bytes(uint64_t bytes)
{
	atomic_store(&w.conn.tx.produced, fifo_produced(&w.conn.tx) + bytes);
	w.ready = true;
}

static void fixture_free_segments_and_flights(void)
{
	sack_index_free(&w.conn);
	while (w.pcb.unacked) {
		struct tcp_seg *seg = w.pcb.unacked;

		w.pcb.unacked = seg->next;
		free(seg);
	}
	while (w.flying) {
		struct flying *first = w.flying;

		w.flying = first->next;
		free(first);
	}
}

/* Established; every option at its default. */
static void setup_established_connection_and_link(int algorithm)
{
	static const int32_t defaults[] = {
#define X(name, field, value) value,
	        VMA_TCP_OPTIONS(X)
#undef X
	};

	fixture_free_segments_and_flights();
	memset(&w, 0, sizeof(w));
	w.tcp.now_ns = 100 * SECOND;
	w.tcp.clock_offset_ms = 0xfffff000u; /* its time stamps wrap, too */
	wheel_init(&w.tcp.wheel, w.tcp.now_ns);
	w.conn.tcp = &w.tcp;
	w.conn.pcb = &w.pcb;
	w.conn.memory = (struct fifo_memory){.alloc = malloc, .free = free};
	w.conn.connected = true;
	w.conn.mss = MSS;
	w.conn.last_in_ns = w.tcp.now_ns;
	w.pcb.state = ESTABLISHED;
	w.pcb.mss = MSS;
	w.pcb.flags = TF_SACK | TF_TIMESTAMP;
	w.pcb.lastack = w.pcb.snd_nxt = w.rcv_nxt = ISS;
	w.pcb.snd_wnd = w.window = 1 << 24;
	w.ts_recent = tcp_clock_ms(&w.tcp);
	w.delay_ns = 10 * MS;
	w.frames = -1;
	w.ack_every = 1;
	w.seed = 1;
	for (unsigned i = 0; i < VMA_TCP_OPT_COUNT; i++)
		atomic_store(&w.conn.option[i], defaults[i]);
	rtt_init(&w.conn.rtt);
	cc_init(&w.conn.cc, algorithm, MSS);
	recovery_init(&w.conn);
	timers_init(&w.conn);
}

static inline bool fixture_all_bytes_delivered(void)
{
	return w.rcv_nxt == ISS + (uint32_t)fifo_produced(&w.conn.tx) && w.pcb.lastack == w.rcv_nxt && !w.pcb.unacked;
}

/* ---- what timer/timers.c and others call ---- */

void conn_enqueue_retry(struct vma_tcp_conn *conn)
{
	conn->in_retry = true;
}

int tcp_output_probe(struct vma_tcp_conn *conn)
{
	assert_ptr_equal(conn, &w.conn);
	if (w.frames == 0)
		return -ENOBUFS;
	if (w.frames > 0)
		w.frames--;
	w.keepalives++;
	if (!w.mute)
		fixture_receiver_sends_ack(NULL);
	return 0;
}

/* This fixture's segments are long ones. */
void tcp_output_join_short_segments(struct vma_tcp_conn *conn)
{
	assert_ptr_equal(conn, &w.conn);
}

/* One segment if the window is open at all. */
int tcp_output_one_segment_despite_limits(struct vma_tcp_conn *conn)
{
	uint32_t waiting = (uint32_t)(fifo_produced(&conn->tx) - conn->lwip_end), room = conn->pcb->snd_wnd;
	uint32_t len = waiting < room ? waiting : room;

	len = len < MSS ? len : MSS;
	if (len == 0)
		return 0;
	if (w.frames == 0)
		return -ENOBUFS;
	conn->lwip_end += len;
	w.forced++;
	append(new_segment(w.pcb.snd_nxt, len, TCP_ACK));
	return 1;
}

uint64_t stack_retry_time_ns(const struct vma_tcp *tcp)
{
	return tcp->now_ns + TCP_NS_PER_MS;
}

void conn_fail_with_error(struct vma_tcp_conn *conn, int error, bool reset)
{
	assert_ptr_equal(conn, &w.conn);
	w.failed++;
	w.error = error ? error : -1;
	w.reset = reset;
	timers_stop_all(conn);
}

void window_delack_fired(struct vma_tcp_conn *conn)
{
	assert_ptr_equal(conn, &w.conn);
	w.forced++;
}

#endif
