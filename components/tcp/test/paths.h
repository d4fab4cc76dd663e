/*
 * paths - the same conversation, played on the fast path and on the slow one (predicts_nothing), and all that is known
 * of the connection afterwards, to be compared.
 */
#ifndef VMA_TCP_TEST_PATHS_H
#define VMA_TCP_TEST_PATHS_H

#include <stdio.h>

#include "raw.h"

enum { FAST, SLOW, TCP_PATHS };

/* Everything that recovery, congestion control, window and timers go by, and what the peer and the owner have seen. */
#define COMPARED_STATE_OF_CONN(X)                                                                                      \
	X(struct tcp_recovery, recovery, conn->recovery)                                                               \
	X(struct tcp_rtt, rtt, conn->rtt)                                                                              \
	X(struct tcp_cc, cc, conn->cc)                                                                                 \
	X(struct tcp_rate, rate, conn->rate)                                                                           \
	X(struct tcp_pacing, pace, conn->pace)                                                                         \
	X(struct vma_tcp_counts, counts, conn->counts)                                                                 \
	X(struct vma_tcp_counts, stack_counts, fixture_stack_counts(0))                                                \
	X(uint64_t, retransmit_due_ns, known_due_ns(conn, TCP_TIMER_RETRANSMIT))                                       \
	X(uint64_t, delack_timer_due_ns, known_due_ns(conn, TCP_TIMER_DELACK))                                         \
	X(uint64_t, keepalive_due_ns, known_due_ns(conn, TCP_TIMER_KEEPALIVE))                                         \
	X(uint64_t, pace_due_ns, known_due_ns(conn, TCP_TIMER_PACE))                                                   \
	X(uint64_t, delack_due_ns, conn->window.delack_due_ns)                                                         \
	X(uint64_t, ato_ns, conn->window.ato_ns)                                                                       \
	X(uint64_t, ack_ns, conn->window.ack_ns)                                                                       \
	X(uint64_t, rcv_space_ns, conn->window.rcv_space_ns)                                                           \
	X(uint64_t, last_data_in_ns, conn->window.last_data_in_ns)                                                     \
	X(uint64_t, last_in_ns, conn->last_in_ns)                                                                      \
	X(uint64_t, rcvbuf, atomic_load(&conn->rcvbuf))                                                                \
	X(uint64_t, sndbuf, atomic_load(&conn->sndbuf))                                                                \
	X(uint64_t, rx_edge, atomic_load(&conn->rx_edge))                                                              \
	X(uint64_t, produced, fifo_produced(&conn->rx))                                                                \
	X(uint64_t, lwip_end, conn->lwip_end)                                                                          \
	X(uint64_t, acked, atomic_load(&conn->acked))                                                                  \
	X(uint64_t, snd_max, atomic_load(&conn->snd_max))                                                              \
	X(uint64_t, released, fifo_consumed(&conn->tx))                                                                \
	X(uint64_t, in_use, port_memory_in_use(side[0].tcp))                                                           \
	X(uint64_t, stack_due_ns, vma_tcp_next_due_ns(side[0].tcp))                                                    \
	X(uint64_t, stack_busy, vma_tcp_is_busy(side[0].tcp))                                                          \
	X(int64_t, published, vma_tcp_state(conn))                                                                     \
	X(uint64_t, rcv_edge, conn->window.rcv_edge)                                                                   \
	X(uint64_t, rcv_wup, conn->window.rcv_wup)                                                                     \
	X(uint64_t, rcv_mss, conn->window.rcv_mss)                                                                     \
	X(uint64_t, rcv_space, conn->window.rcv_space)                                                                 \
	X(uint64_t, rcv_rtt_ecr, conn->window.rcv_rtt_ecr)                                                             \
	X(uint64_t, quick_acks, conn->window.quick_acks)                                                               \
	X(uint64_t, data_segments_in, conn->data_segments_in)                                                          \
	X(uint64_t, data_segments_out, conn->data_segments_out)                                                        \
	X(uint64_t, snd_wnd_max, conn->snd_wnd_max)                                                                    \
	X(uint64_t, snd_sml, conn->snd_sml)                                                                            \
	X(uint64_t, events, app->events)                                                                               \
	X(uint64_t, last_data_out_ns, conn->window.last_data_out_ns)                                                   \
	X(uint64_t, out_segments, conn->out_segments)                                                                  \
	X(uint64_t, ack_held, conn->window.ack_held)                                                                   \
	X(uint64_t, acks_before_hold, conn->window.acks_before_hold)                                                   \
	X(uint64_t, pingpong, conn->window.pingpong)                                                                   \
	X(uint64_t, pushed, conn->pushed)                                                                              \
	X(uint64_t, ack_waits, atomic_load(&conn->ack_waits))                                                          \
	X(uint64_t, is_busy, conn->is_busy)                                                                            \
	X(uint64_t, push_once, conn->push_once)                                                                        \
	X(uint64_t, ack_received, conn->ack_received)                                                                  \
	X(uint64_t, tx_space_freed, conn->tx_space_freed)                                                              \
	X(uint64_t, urgent_mode, conn->urgent_mode)                                                                    \
	X(uint64_t, sent, raw.count)                                                                                   \
	X(uint64_t, sent_segments, compared_sent_digest())
#define COMPARED_STATE_OF_PCB(X)                                                                                       \
	X(uint64_t, rcv_nxt, pcb->rcv_nxt)                                                                             \
	X(uint64_t, rcv_wnd, pcb->rcv_wnd)                                                                             \
	X(uint64_t, snd_nxt, pcb->snd_nxt)                                                                             \
	X(uint64_t, snd_lbb, pcb->snd_lbb)                                                                             \
	X(uint64_t, lastack, pcb->lastack)                                                                             \
	X(uint64_t, snd_wnd, pcb->snd_wnd)                                                                             \
	X(uint64_t, snd_wl1, pcb->snd_wl1)                                                                             \
	X(uint64_t, snd_wl2, pcb->snd_wl2)                                                                             \
	X(uint64_t, snd_buf, pcb->snd_buf)                                                                             \
	X(uint64_t, snd_queuelen, pcb->snd_queuelen)                                                                   \
	X(uint64_t, ts_recent, pcb->ts_recent)                                                                         \
	X(uint64_t, ts_lastacksent, pcb->ts_lastacksent)                                                               \
	X(uint64_t, state, pcb->state)                                                                                 \
	X(uint64_t, flags, pcb->flags)                                                                                 \
	X(uint64_t, unsent, pcb->unsent != NULL)                                                                       \
	X(uint64_t, unacked, compared_unacked_digest(pcb))
#define COMPARED_STATE(X) COMPARED_STATE_OF_CONN(X) COMPARED_STATE_OF_PCB(X)

struct known { /* compared as bytes */
#define X(type, name, value) type name;
	COMPARED_STATE(X)
#undef X
};

static struct app *app;
static uint32_t mine; /* the next number */

static inline uint32_t raw_peer_expected_ack(void)
{
	return app->conn->pcb->snd_nxt - raw.their_isn;
}

/* ---- what is known ---- */

static inline uint64_t known_due_ns(const struct vma_tcp_conn *conn, enum tcp_timer which)
{
	return wheel_is_set(&conn->timer[which]) ? conn->timer[which].due_ns : 0;
}

static inline uint64_t fnv_hash_continue(uint64_t hash, const void *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* What the peer has got, and when: bytes, and a digest that tells one sequence of segments from another. */
static inline uint64_t compared_sent_digest(void)
{
	uint64_t hash = 0;

	for (unsigned i = 0; i < raw.count; i++) {
		const struct raw_segment *s = &raw.log[i];
		const uint64_t head[] = {s->seq, s->ack, s->window, s->urgent, s->flags, s->len, s->at_ns};

		hash = fnv_hash_continue(hash, head, sizeof(head));
		hash = fnv_hash_continue(hash, s->data, s->len);
		hash = fnv_hash_continue(hash, s->options, s->options_len);
	}
	return hash;
}

/* How many there are, and what recovery has noted in each of them. */
static inline uint64_t compared_unacked_digest(const struct tcp_pcb *pcb)
{
	uint64_t hash = 0;

	for (const struct tcp_seg *seg = pcb->unacked; seg != NULL; seg = seg->next) {
		const uint64_t notes[] = {seg->sent_ns,
		                          seg->first_sent_ns,
		                          seg->send_number,
		                          seg->sends,
		                          seg->marks,
		                          seg->len,
		                          seg->rate_marks,
		                          seg->rate_marks ? seg->rate_delivered : 0,
		                          seg->rate_marks ? seg->rate_delivered_ago : 0,
		                          seg->rate_marks ? seg->rate_first_ago : 0};

		hash = fnv_hash_continue(hash, notes, sizeof(notes));
	}
	return hash;
}

static inline void record_compared_state(struct known *k)
{
	const struct vma_tcp_conn *conn = app->conn;
	const struct tcp_pcb *pcb = conn->pcb;

	memset(k, 0, sizeof(*k));
#define X(type, name, value) k->name = value;
	COMPARED_STATE_OF_CONN(X)
	if (pcb != NULL) {
		COMPARED_STATE_OF_PCB(X)
	}
#undef X
	memset(&k->recovery.delta, 0, sizeof(k->recovery.delta)); /* of one acknowledgement; and so is a sample */
	memset(&k->rate.sampled, 0, sizeof(k->rate) - offsetof(struct tcp_rate, sampled));
	k->recovery.checked = k->recovery.lost_last = NULL;
	k->recovery.waiting = k->recovery.resent = (struct tcp_seg_list){NULL, NULL};
	memset(&k->recovery.sack_index, 0, sizeof(k->recovery.sack_index));
}

/* The first that differs, and its values as far as they are numbers; NULL: none does. */
static inline const char *compared_state_difference(const struct known *a, const struct known *b, char *text,
                                                    size_t size)
{
	static const struct {
		const char *name;
		size_t at, len;
	} fields[] = {
#define X(type, name, value) {#name, offsetof(struct known, name), sizeof(type)},
	        COMPARED_STATE(X)
#undef X
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		const uint8_t *x = (const uint8_t *)a + fields[i].at, *y = (const uint8_t *)b + fields[i].at;
		uint64_t left, right;
		size_t byte = 0;

		if (memcmp(x, y, fields[i].len) == 0)
			continue;
		while (x[byte] == y[byte])
			byte++;
		memcpy(&left, x + byte / 8 * 8, 8);
		memcpy(&right, y + byte / 8 * 8, 8);
		snprintf(text, size, "%s+%zu: %#llx on the fast path, %#llx on the slow one", fields[i].name,
		         byte / 8 * 8, (unsigned long long)left, (unsigned long long)right);
		return text;
	}
	return NULL;
}

static inline void expect_same_state(const struct known *a, const struct known *b, unsigned n)
{
	char text[200];

	for (unsigned i = 0; i < n; i++)
		if (compared_state_difference(&a[i], &b[i], text, sizeof(text)) != NULL)
			fail_msg("%u: %s", i, text);
}

/* ---- the conversation ---- */

static inline void peer_sends_expected_message(uint32_t len)
{
	raw_send_bytes(mine, raw_peer_expected_ack(), len);
	mine += len;
}

/* Nothing has been sent yet. */
static inline void setup_stack_with_fast_or_slow_path(int which)
{
	setup_raw_tcp_peer(NULL);
	side[0].tcp->predicts_nothing = which == SLOW;
	side[0].options.nodelay = 1;
	raw.ts_ecr = 0;
	raw.window = 20000;
}

/* Time stamps, SACK and window scaling, or some of them. The first bytes find a place in the fifo. */
static inline void handshake_with_raw_peer_and_options(bool stamped, bool sack)
{
	uint8_t options[24] = {2, 4, 1000 >> 8, 1000 & 255, 1, 3, 3, 7};
	unsigned len = 8;

	raw.ts = stamped ? 1000 : 0;
	app = stack_sends_syn_to_raw_peer();
	assert_int_equal(raw_next_segment()->flags, TCP_SYN);
	if (sack)
		memcpy(options + len, "\1\1\4\2", 4);
	len += sack ? 4 : 0;
	if (stamped) {
		memcpy(options + len, "\1\1\10\12", 4);
		raw_store_be(options + len + 4, raw.ts, 4);
		len += 12;
	}
	raw_send_segment_with_options(0, 1, TCP_SYN | TCP_ACK, options, len, 0, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	mine = 1;
	peer_sends_expected_message(64);
	assert_int_equal(read_bytes(app, 64), 64);
}

static inline void setup_connection_with_fast_or_slow_path(int which, bool stamped, bool sack)
{
	setup_stack_with_fast_or_slow_path(which);
	handshake_with_raw_peer_and_options(stamped, sack);
}

static inline void teardown_connection_and_raw_peer(void)
{
	app_free(app);
	teardown_raw_tcp_peer(NULL);
}

/* The slow path notes each segment whole before it looks at it. */
static inline void arm_fast_path_detection(void)
{
	memset(&side[0].tcp->ack, 0xee, sizeof(side[0].tcp->ack));
}

static inline bool fast_path_was_taken(void)
{
	return side[0].tcp->ack.payload == 0xeeeeeeee;
}

static inline uint32_t draw_random_below(uint32_t *seed, uint32_t below)
{
	*seed = *seed * 1664525 + 1013904223;
	return (*seed >> 8) % below;
}

#endif
