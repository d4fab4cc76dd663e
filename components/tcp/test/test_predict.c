/*
 * The short ways through input and output and those through lwIP do the same: one conversation, drawn by chance, takes
 * each, and after every segment what is known and what was sent is compared.
 */
#include "raw.h"

struct known {
	uint32_t rcv_nxt, rcv_wnd, snd_nxt, snd_lbb, lastack, snd_wnd, snd_wl1, snd_wl2, snd_buf, snd_queuelen;
	uint32_t ts_recent, ts_lastacksent, state, flags;
	uint32_t rcv_edge, rcv_wup, quick_acks, snd_wnd_max, cwnd, events, frames;
	uint64_t produced, fed, acked, given, released, segments_in, bytes_in, said;
	bool unacked, pingpong;
};

static uint64_t mix(uint64_t hash, const void *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* What all segments so far have said. */
static uint64_t said_so_far(uint64_t hash)
{
	for (; raw.seen < raw.count; raw.seen++) {
		const struct raw_segment *s = &raw.log[raw.seen];
		const uint32_t header[] = {s->seq, s->ack, s->window, s->flags, s->urgent, s->len, s->tos, s->ttl};

		hash = mix(hash, header, sizeof(header));
		hash = mix(hash, s->options, s->options_len);
		hash = mix(hash, s->data, s->len);
	}
	return hash;
}

static struct known look(struct app *app)
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
	k.rcv_edge = conn->rcv_edge;
	k.rcv_wup = conn->rcv_wup;
	k.quick_acks = conn->quick_acks;
	k.snd_wnd_max = conn->snd_wnd_max;
	k.cwnd = conn->cc.cwnd;
	k.events = app->events;
	k.frames = raw.count;
	k.produced = fifo_produced(&conn->rx);
	k.fed = conn->fed;
	k.acked = atomic_load(&conn->acked);
	k.given = atomic_load(&conn->given);
	k.released = fifo_consumed(&conn->tx);
	k.segments_in = counts_of(0).segments_in;
	k.bytes_in = counts_of(0).bytes_in;
	k.unacked = pcb->unacked != NULL;
	k.pingpong = conn->pingpong;
	return k;
}

static uint32_t draw(uint32_t *seed, uint32_t below)
{
	*seed = *seed * 1664525 + 1013904223;
	return (*seed >> 8) % below;
}

enum { STEPS = 400 };

/* What the peer says next, mostly what is expected. */
static void say(uint32_t *seed, uint32_t *mine, struct app *app)
{
	uint32_t sent = app->conn->pcb->snd_nxt - raw.their_isn, una = app->conn->pcb->lastack - raw.their_isn;
	uint32_t ack = una + (sent != una ? draw(seed, sent - una + 1) : 0), len = draw(seed, 3) ? draw(seed, 900) : 0;

	raw.window = (uint16_t)(draw(seed, 20) == 0 ? draw(seed, 3000) : 20000 + draw(seed, 40000));
	if (raw.ts != 0)
		raw.ts += draw(seed, 3);
	switch (draw(seed, 12)) {
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

static void converse(uint32_t seed, bool through_lwip, bool stamped, struct known *known)
{
	uint32_t mine = 1;
	uint64_t said = 0;
	struct app *app;

	raw_open(NULL);
	side[0].tcp->predicts_nothing = through_lwip;
	raw.ts = stamped ? 1000 : 0;
	app = raw_connect();
	for (int i = 0; i < STEPS; i++) {
		say(&seed, &mine, app);
		known[i] = look(app);
		known[i].said = said = said_so_far(said);
		if (draw(&seed, 3) == 0)
			send_bytes(app, 1 + draw(&seed, 3000));
		if (draw(&seed, 3) == 0)
			read_bytes(app, draw(&seed, 5000));
		if (draw(&seed, 10) == 0)
			run(draw(&seed, 60) * MS);
		said = said_so_far(said);
		raw.count = raw.seen = raw.count % (RAW_LOG / 2);
	}
	assert_true(known[STEPS - 1].bytes_in > 50000);
	app_free(app);
	raw_close(NULL);
}

static void compare(bool stamped)
{
	static struct known fast[STEPS], slow[STEPS];

	for (uint32_t seed = 1; seed <= 20; seed++) {
		converse(seed, false, stamped, fast);
		converse(seed, true, stamped, slow);
		for (int i = 0; i < STEPS; i++)
			assert_memory_equal(&fast[i], &slow[i], sizeof(*fast));
	}
}

static void test_short_way_does_what_lwip_does(void **state)
{
	(void)state;
	compare(false);
}

static void test_short_way_does_what_lwip_does_with_time_stamps(void **state)
{
	(void)state;
	compare(true);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_way_does_what_lwip_does),
        cmocka_unit_test(test_short_way_does_what_lwip_does_with_time_stamps),
};
VMA_TEST_MAIN(tests)
