/*
 * The fast path through input and output and the slow one through lwIP do the same: one conversation, drawn by chance,
 * takes each, and after every segment what is known and what was sent is compared.
 */
#include "raw.h"

struct known {
	uint32_t rcv_nxt, rcv_wnd, snd_nxt, snd_lbb, lastack, snd_wnd, snd_wl1, snd_wl2, snd_buf, snd_queuelen;
	uint32_t ts_recent, ts_lastacksent, state, flags;
	uint32_t rcv_edge, rcv_wup, quick_acks, snd_wnd_max, cwnd, events, frames;
	uint64_t produced, lwip_end, acked, snd_max, released, segments_in, bytes_in, said;
	bool unacked, pingpong;
	/* what tx/output.c, recovery and the timers note of what leaves */
	uint32_t state_of_recovery, sends, pipe_bytes, flight_max, flight_max_end, timeouts, snd_sml;
	uint32_t out_segments, acks_before_hold, tail_probe_end;
	uint64_t rto_from_ns, probe_from_ns, last_sent_ns, persist_due_ns, last_data_out_ns, ack_ns, ato_ns, delack_ns;
	uint64_t timer_ns, segments_out, bytes_out, due_ns;
	bool window_limited, probe_wanted, probe_new, tail_probe_out, push_once, is_busy, ack_held, timer_is_set;
};

static void record_output_state(struct app *app, struct known *k)
{
	const struct vma_tcp_conn *conn = app->conn;
	const struct tcp_recovery *r = &conn->recovery;
	const struct tcp_timer_node *timer = &conn->timer[TCP_TIMER_RETRANSMIT];

	k->state_of_recovery = r->state;
	k->sends = r->sends;
	k->pipe_bytes = r->pipe_bytes;
	k->flight_max = r->flight_max;
	k->flight_max_end = r->flight_max_end;
	k->timeouts = r->timeouts;
	k->snd_sml = conn->snd_sml;
	k->out_segments = conn->out_segments;
	k->acks_before_hold = conn->window.acks_before_hold;
	k->tail_probe_end = r->tail_probe_end;
	k->rto_from_ns = r->rto_from_ns;
	k->probe_from_ns = r->probe_from_ns;
	k->last_sent_ns = r->last_sent_ns;
	k->persist_due_ns = r->persist_due_ns;
	k->last_data_out_ns = conn->window.last_data_out_ns;
	k->ack_ns = conn->window.ack_ns;
	k->ato_ns = conn->window.ato_ns;
	k->delack_ns = conn->window.delack_due_ns;
	k->timer_is_set = wheel_is_set(timer);
	k->timer_ns = k->timer_is_set ? timer->due_ns : 0;
	k->segments_out = conn->counts.segments_out;
	k->bytes_out = conn->counts.bytes_out;
	k->due_ns = vma_tcp_next_due_ns(conn->tcp);
	k->window_limited = r->window_limited;
	k->probe_wanted = r->probe_wanted;
	k->probe_new = r->probe_new;
	k->tail_probe_out = r->tail_probe_out;
	k->push_once = conn->push_once;
	k->is_busy = conn->is_busy;
	k->ack_held = conn->window.ack_held;
}

static uint64_t hash_mix_bytes(uint64_t hash, const void *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* What all segments so far have said. */
static uint64_t hash_of_segments_sent(uint64_t hash)
{
	for (; raw.seen < raw.count; raw.seen++) {
		const struct raw_segment *s = &raw.log[raw.seen];
		const uint32_t header[] = {s->seq, s->ack, s->window, s->flags, s->urgent, s->len, s->tos, s->ttl};

		hash = hash_mix_bytes(hash, header, sizeof(header));
		hash = hash_mix_bytes(hash, s->options, s->options_len);
		hash = hash_mix_bytes(hash, s->data, s->len);
	}
	return hash;
}

static struct known predict_record_state(struct app *app)
{
	const struct vma_tcp_conn *conn = app->conn;
	const struct tcp_pcb *pcb = conn->pcb;
	struct known k;

	memset(&k, 0, sizeof(k)); /* compared as bytes */
	k.rcv_nxt = pcb->rcv_nxt;
	k.rcv_wnd = pcb->rcv_wnd;
	k.snd_nxt = pcb->snd_nxt;
	k.snd_lbb = pcb->snd_lbb;
	k.lastack = pcb->lastack;
	k.snd_wnd = pcb->snd_wnd;
	k.snd_wl1 = pcb->snd_wl1;
	k.snd_wl2 = pcb->snd_wl2;
	k.snd_buf = pcb->snd_buf;
	k.snd_queuelen = pcb->snd_queuelen;
	k.ts_recent = pcb->ts_recent;
	k.ts_lastacksent = pcb->ts_lastacksent;
	k.state = pcb->state;
	k.flags = pcb->flags;
	k.rcv_edge = conn->window.rcv_edge;
	k.rcv_wup = conn->window.rcv_wup;
	k.quick_acks = conn->window.quick_acks;
	k.snd_wnd_max = conn->snd_wnd_max;
	k.cwnd = conn->cc.cwnd;
	k.events = app->events;
	k.frames = raw.count;
	k.produced = fifo_produced(&conn->rx);
	k.lwip_end = conn->lwip_end;
	k.acked = atomic_load(&conn->acked);
	k.snd_max = atomic_load(&conn->snd_max);
	k.released = fifo_consumed(&conn->tx);
	k.segments_in = fixture_stack_counts(0).segments_in;
	k.bytes_in = fixture_stack_counts(0).bytes_in;
	k.unacked = pcb->unacked != NULL;
	k.pingpong = conn->window.pingpong;
	record_output_state(app, &k);
	return k;
}

static uint32_t predict_draw(uint32_t *seed, uint32_t below)
{
	*seed = *seed * 1664525 + 1013904223;
	return (*seed >> 8) % below;
}

enum { STEPS = 400 };

/* What the peer says next, mostly what is expected. */
static void predict_peer_sends_random(uint32_t *seed, uint32_t *mine, struct app *app)
{
	uint32_t sent = app->conn->pcb->snd_nxt - raw.their_isn, una = app->conn->pcb->lastack - raw.their_isn;
	uint32_t ack = una + (sent != una ? predict_draw(seed, sent - una + 1) : 0),
	         len = predict_draw(seed, 3) ? predict_draw(seed, 900) : 0;

	raw.window =
	        (uint16_t)(predict_draw(seed, 20) == 0 ? predict_draw(seed, 3000) : 20000 + predict_draw(seed, 40000));
	if (raw.ts != 0)
		raw.ts += predict_draw(seed, 3);
	switch (predict_draw(seed, 12)) {
	case 0: /* again */
		raw_send_bytes(*mine - (*mine > 100 ? 100 : 0), ack, *mine > 100 ? 100 : 0);
		break;
	case 1: /* a hole, closed at once */
		raw_send_bytes(*mine + 50, ack, 50);
		raw_send_bytes(*mine, ack, 50);
		*mine += 100;
		break;
	default:
		raw_send_bytes(*mine, ack, len);
		*mine += len;
	}
}

enum peer { PEER_PLAIN, PEER_STAMPED, PEER_SACK };

static void predict_random_conversation(uint32_t seed, bool through_lwip, enum peer peer, struct known *known)
{
	uint32_t mine = 1;
	uint64_t said = 0;
	struct app *app;

	setup_raw_tcp_peer(NULL);
	side[0].tcp->predicts_nothing = through_lwip;
	raw.ts = peer == PEER_STAMPED ? 1000 : 0;
	app = peer == PEER_SACK ? stack_connects_to_raw_peer_with_sack() : stack_connects_to_raw_peer();
	for (int i = 0; i < STEPS; i++) {
		predict_peer_sends_random(&seed, &mine, app);
		known[i] = predict_record_state(app);
		known[i].said = said = hash_of_segments_sent(said);
		if (predict_draw(&seed, 3) == 0)
			fixture_send_bytes(app, 1 + predict_draw(&seed, predict_draw(&seed, 2) ? 3000 : 200));
		if (predict_draw(&seed, 3) == 0)
			read_bytes(app, predict_draw(&seed, 5000));
		if (predict_draw(&seed, 10) == 0)
			fixture_run_for_ns(predict_draw(&seed, 60) * MS);
		said = hash_of_segments_sent(said);
		raw.count = raw.seen = raw.count % (RAW_SEGMENTS_LOGGED_MAX / 2);
	}
	assert_true(known[STEPS - 1].bytes_in > 50000);
	assert_true(through_lwip ? side[0].tcp->alone == 0 : side[0].tcp->alone > 20);
	app_free(app);
	teardown_raw_tcp_peer(NULL);
}

static void compare_fast_path_with_lwip_states(enum peer peer)
{
	static struct known fast[STEPS], slow[STEPS];

	for (uint32_t seed = 1; seed <= 20; seed++) {
		predict_random_conversation(seed, false, peer, fast);
		predict_random_conversation(seed, true, peer, slow);
		for (int i = 0; i < STEPS; i++)
			assert_memory_equal(&fast[i], &slow[i], sizeof(*fast));
	}
}

static void test_fast_path_does_what_lwip_does(void **state)
{
	(void)state;
	compare_fast_path_with_lwip_states(PEER_PLAIN);
}

static void test_fast_path_does_what_lwip_does_with_time_stamps(void **state)
{
	(void)state;
	compare_fast_path_with_lwip_states(PEER_STAMPED);
}

/* Here tail-loss probes and RACK note what has been sent. */
static void test_fast_path_does_what_lwip_does_with_sack(void **state)
{
	(void)state;
	compare_fast_path_with_lwip_states(PEER_SACK);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fast_path_does_what_lwip_does),
        cmocka_unit_test(test_fast_path_does_what_lwip_does_with_time_stamps),
        cmocka_unit_test(test_fast_path_does_what_lwip_does_with_sack),
};
VMA_TEST_MAIN(tests)
