/*
 * sim_seed - what a seed decides: the wire, the shortages, the connections and their plans; what must be so at the end.
 *
 *   calm       nobody does anything early, and the wire comes back: every byte arrives, both ends see the end, no error
 *   disturbed  somebody closes, aborts or shuts down at any moment, or the wire is cut: what arrives is the beginning
 * of what was sent, both ends come to an end in bounded time, with an error that can come of it
 *
 * In both nothing is left afterwards: connections, timers, frames, memory.
 */
#ifndef SIM_SEED_H
#define SIM_SEED_H

#include "sim_peer.h"

enum { SIM_SHORTAGES = 4 };
enum sim_shortage_kind {
	SIM_SHORTAGE_TX_FRAMES,
	SIM_SHORTAGE_RX_BUFFERS,
	SIM_SHORTAGE_MEMORY,
	SIM_SHORTAGE_WIRE_SLOTS,
	SIM_SHORTAGE_KINDS
};

struct sim_shortage {
	enum sim_shortage_kind kind;
	int side;
	uint64_t begin_ns, end_ns; /* UINT64_MAX: for ever */
	bool begun, ended;
};

struct sim_scenario {
	uint64_t seed;
	struct sim sim;
	struct sim_attr attr;
	struct sim_pair pair[SIM_PAIRS];
	unsigned pairs, shortages;
	struct sim_shortage shortage[SIM_SHORTAGES];
	struct vma_tcp_listener *listener[2];
	uint32_t admit_percent;
	bool disturbed, cut, faulty, listeners_close_early;
	uint64_t left_ns; /* when the last one had left */
	uint64_t listeners_close_ns;
};

/* ---- the wire ---- */

static void sim_draw_wire_faults_and_sizes(struct sim_rng *chance, struct sim_scenario *s)
{
	static const uint32_t mtus[] = {1500, 1500, 1500, 1500, 576, 1280, 9000, 296};
	struct sim_attr *attr = &s->attr;
	uint64_t delay = sim_rng_happens(chance, 8) ? 0 : sim_rng_magnitude(chance, 1000, 300 * SIM_MS);
	bool faulty = s->faulty = sim_rng_happens(chance, 65);

	attr->mtu = mtus[sim_rng_next(chance) % (sizeof(mtus) / sizeof(*mtus))];
	attr->frame_size = attr->mtu > 1500 && sim_rng_happens(chance, 50) ? 16384 : 2048;
	attr->queue_frames = (uint32_t)sim_rng_magnitude(chance, 16, 1024);
	attr->rx_wre = (uint32_t)sim_rng_magnitude(chance, 16, 512);
	attr->tx_wre = (uint32_t)sim_rng_magnitude(chance, 16, 512);
	for (int i = 0; i < 2; i++) {
		struct vma_wire_faults *faults = &attr->faults[i];

		faults->seed = sim_rng_next(chance);
		faults->delay_ns = sim_rng_happens(chance, 80) ? delay : delay / 3;
		if (sim_rng_happens(chance, 40))
			faults->jitter_ns = sim_rng_magnitude(chance, 1, delay + 1);
		attr->no_timestamps[i] = sim_rng_happens(chance, 15);
		attr->laziness_ns[i] = sim_rng_happens(chance, 30) ? sim_rng_magnitude(chance, 1000, 20 * SIM_MS) : 0;
		if (!faulty)
			continue;
		faults->loss_ppm = sim_rng_happens(chance, 70) ? (uint32_t)sim_rng_magnitude(chance, 100, 200000) : 0;
		faults->duplicate_ppm =
		        sim_rng_happens(chance, 40) ? (uint32_t)sim_rng_magnitude(chance, 100, 200000) : 0;
		faults->reorder_ppm =
		        sim_rng_happens(chance, 40) ? (uint32_t)sim_rng_magnitude(chance, 100, 300000) : 0;
		faults->reorder_depth = (uint32_t)sim_rng_between(chance, 1, 20);
		faults->corrupt_ppm = sim_rng_happens(chance, 30) ? (uint32_t)sim_rng_magnitude(chance, 100, 50000) : 0;
	}
	attr->memory_link = sim_rng_happens(chance, 15);
	attr->checksum_offload = sim_rng_happens(chance, 40);
	attr->segmentation_offload = attr->checksum_offload && attr->seed % 4 != 0;
	if (attr->memory_link || attr->checksum_offload) /* what is turned on the way would go unnoticed */
		attr->faults[0].corrupt_ppm = attr->faults[1].corrupt_ppm = 0;
	attr->gro_streams_max = sim_rng_happens(chance, 75) ? 32 : (uint32_t)sim_rng_between(chance, 0, 2);
}

static void sim_draw_shortages(struct sim_rng *chance, struct sim_scenario *s)
{
	if (!sim_rng_happens(chance, 30))
		return;
	s->shortages = (unsigned)sim_rng_between(chance, 1, SIM_SHORTAGES);
	for (unsigned i = 0; i < s->shortages; i++) {
		struct sim_shortage *shortage = &s->shortage[i];
		bool wire;

		shortage->kind = (enum sim_shortage_kind)(sim_rng_next(chance) % SIM_SHORTAGE_KINDS);
		wire = shortage->kind == SIM_SHORTAGE_WIRE_SLOTS;
		shortage->side = (int)(sim_rng_next(chance) & 1);
		shortage->begin_ns = s->attr.start_ns + sim_rng_magnitude(chance, 1, 5 * SIM_S);
		shortage->end_ns = shortage->begin_ns + sim_rng_magnitude(chance, 1000, (wire ? 20000 : 500) * SIM_MS);
		s->faulty |= wire;
	}
	if (s->disturbed && sim_rng_happens(chance, 15)) {
		s->cut = true;
		s->shortage[0].kind = SIM_SHORTAGE_WIRE_SLOTS;
		s->shortage[0].end_ns = UINT64_MAX;
	}
}

/* ---- the connections ---- */

static void sim_draw_tcp_options(struct sim_rng *chance, const struct sim_scenario *s, struct vma_tcp_options *options)
{
	static const int32_t keepalives[] = {1, 3, 10, 60};

	vma_tcp_options_init(options);
	options->syncookies = 0; /* a cookie whose ACK and first byte are lost ends with RST, and nobody was asked */
	options->nodelay = sim_rng_happens(chance, 40);
	options->quickack = sim_rng_happens(chance, 70);
	options->congestion = (int32_t)(sim_rng_next(chance) % 4);
	if (sim_rng_happens(chance, 30))
		options->sndbuf = (int32_t)sim_rng_magnitude(chance, 2048, 1 << 20);
	if (sim_rng_happens(chance, 30))
		options->rcvbuf = (int32_t)sim_rng_magnitude(chance, 2048, 1 << 20);
	if (sim_rng_happens(chance, 10))
		options->maxseg = (int32_t)sim_rng_between(chance, 88, 1460);
	if (sim_rng_happens(chance, 10))
		options->notsent_lowat = (int32_t)sim_rng_magnitude(chance, 1000, 100000);
	if (sim_rng_happens(chance, 5))
		options->window_clamp = (int32_t)sim_rng_magnitude(chance, 3000, 200000);
	if (sim_rng_happens(chance, 10))
		options->pmtudisc = 0;
	/* A wire that loses a fifth must not end a connection that is not meant to end. */
	options->syncnt = 30;
	options->synack_retries = 30;
	options->orphan_retries = 30;
	options->retries2 = 30;
	if (s->disturbed || sim_rng_happens(chance, 10)) { /* who only waits must learn that nobody is there any more */
		options->keepalive = 1;
		options->keepidle_sec = keepalives[sim_rng_next(chance) % 4];
		options->keepintvl_sec = keepalives[sim_rng_next(chance) % 4];
		options->keepcnt = s->disturbed ? 9 : 100;
	}
	if (s->cut)
		options->syncnt = options->synack_retries = options->orphan_retries = options->retries2 =
		        (int32_t)sim_rng_between(chance, 2, 10);
}

static void sim_draw_reader_pauses(struct sim_rng *chance, struct sim_plan *plan, uint64_t total)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < SIM_READER_PAUSES && sim_rng_happens(chance, 25); i++) {
		at += sim_rng_between(chance, 0, total);
		plan->stop[i].at = at;
		plan->stop[i].ns = sim_rng_magnitude(chance, 1000, 30 * SIM_S);
	}
}

static void sim_draw_early_end(struct sim_rng *chance, struct sim_plan *plan, uint64_t both)
{
	plan->early = (enum sim_early_action)sim_rng_between(chance, SIM_EARLY_CLOSE, SIM_EARLY_ACTIONS - 1);
	plan->early_ns = sim_rng_happens(chance, 50) ? 0 : sim_rng_magnitude(chance, 1, 3 * SIM_S);
	if (sim_rng_happens(chance, 40))
		plan->early_state = (int)sim_rng_between(chance, TCP_ESTABLISHED, TCP_CLOSING);
	else if (sim_rng_happens(chance, 60))
		plan->early_bytes = sim_rng_between(chance, 0, both);
}

static void sim_draw_peer_plan(struct sim_rng *chance, const struct sim_scenario *s, struct sim_plan *plan)
{
	uint32_t biggest = sim_rng_happens(chance, 15) ? 1 << 20 : sim_rng_happens(chance, 50) ? 100000 : 5000;

	sim_draw_tcp_options(chance, s, &plan->options);
	plan->total = sim_rng_happens(chance, 15) ? 0 : sim_rng_magnitude(chance, 1, biggest);
	plan->write_min = plan->write_max = (uint32_t)sim_rng_magnitude(chance, 1, 65536);
	if (sim_rng_happens(chance, 60))
		plan->write_min = (uint32_t)sim_rng_between(chance, 1, plan->write_max);
	/* Without a window, thousands of single bytes flood the wire at every timeout. */
	if (plan->options.congestion == VMA_TCP_CC_NONE) {
		plan->total %= 20000;
		if (plan->write_min < 500)
			plan->write_min = plan->write_max = plan->write_max + 500;
	}
	plan->read_min = plan->read_max = (uint32_t)sim_rng_magnitude(chance, 1, 262144);
	if (sim_rng_happens(chance, 60))
		plan->read_min = (uint32_t)sim_rng_between(chance, 1, plan->read_max);
	/* Not a million calls for a megabyte. */
	if (plan->total / plan->write_max > 2000)
		plan->write_max = (uint32_t)(plan->total / 1000);
	if (plan->total / ((plan->write_min + plan->write_max) / 2 + 1) > 4000)
		plan->write_min = plan->write_max / 2;
	plan->write_gap_ns = sim_rng_happens(chance, 25) ? sim_rng_magnitude(chance, 1000, 100 * SIM_MS) : 0;
	plan->read_gap_ns = sim_rng_happens(chance, 25) ? sim_rng_magnitude(chance, 1000, 100 * SIM_MS) : 0;
	if (plan->total / plan->write_max > 100)
		plan->write_gap_ns /= 100;
	plan->more_percent = sim_rng_happens(chance, 15) ? (uint32_t)sim_rng_between(chance, 1, 100) : 0;
	plan->later_percent = sim_rng_happens(chance, 20) ? 50 : 0;
	plan->cork_percent = sim_rng_happens(chance, 10) ? (uint32_t)sim_rng_between(chance, 1, 100) : 0;
	plan->urgent_percent = sim_rng_happens(chance, 6) ? (uint32_t)sim_rng_between(chance, 1, 100) : 0;
	plan->options.oobinline = sim_rng_happens(chance, 50);
	plan->shuts = sim_rng_happens(chance, 60);
	plan->eager = sim_rng_happens(chance, 30);
	plan->lingers = sim_rng_happens(chance, 50);
	if (sim_rng_happens(chance, 8))
		plan->path_late_ns = sim_rng_magnitude(chance, 1, 5 * SIM_S);
	if (sim_rng_happens(chance, 8) && s->attr.mtu > 300) {
		plan->path_change_ns = sim_rng_magnitude(chance, 1, 3 * SIM_S);
		plan->path_change_mtu = (uint32_t)sim_rng_between(chance, 256, s->attr.mtu);
		plan->path_by_icmp = sim_rng_happens(chance, 50);
	}
	plan->steer_ns = sim_rng_happens(chance, 20) ? sim_rng_magnitude(chance, 1, SIM_S) : 0;
}

/* A reader that takes one byte at a time from a megabyte is only slow. */
static void sim_limit_slow_reader(struct sim_plan *plan, uint64_t incoming)
{
	if (incoming / plan->read_max > 2000)
		plan->read_max = (uint32_t)(incoming / 1000);
	if (incoming / ((plan->read_min + plan->read_max) / 2 + 1) > 4000)
		plan->read_min = plan->read_max / 2;
	if (incoming / plan->read_max > 100)
		plan->read_gap_ns /= 100;
}

/* By chances of its own: what else a seed decides stays what it was. */
static void sim_draw_zero_copy_holds(uint64_t seed, struct sim_plan *const plan[2])
{
	struct sim_rng chance = {seed ^ 0x5eed2c09};

	sim_rng_next(&chance);
	for (int i = 0; i < 2; i++)
		if (sim_rng_happens(&chance, 30))
			plan[i]->hold_ns = sim_rng_magnitude(&chance, 1000, 300 * SIM_MS);
}

static void sim_draw_pair_plan(struct sim_scenario *s, unsigned number, unsigned incarnation, uint64_t now_ns)
{
	struct sim_pair *pair = &s->pair[number];
	struct sim_rng *chance = &pair->chance;
	struct sim_plan *plan[2] = {&pair->peer[0].plan, &pair->peer[1].plan};
	unsigned repeats = pair->repeats;
	int first, connector = pair->connector;

	*pair = (struct sim_pair){.sim = &s->sim, .number = number, .incarnation = incarnation, .repeats = repeats};
	chance->state = s->seed * 1000 + number + incarnation * 0x100000000ULL;
	sim_rng_next(chance);
	if (incarnation == 0 && !s->disturbed && sim_rng_happens(chance, 15))
		pair->repeats = (unsigned)sim_rng_between(chance, 1, 3);
	pair->connector = (int)(sim_rng_next(chance) & 1);
	pair->simultaneous = sim_rng_happens(chance, 5) && pair->repeats == 0 && incarnation == 0;
	if (incarnation > 0)
		pair->connector = connector;
	pair->connect_ns = now_ns + (sim_rng_happens(chance, 50) ? 0 : sim_rng_magnitude(chance, 1, SIM_S));
	for (int i = 0; i < 2; i++) {
		pair->peer[i].pair = pair;
		pair->peer[i].side = &s->sim.side[i];
		pair->peer[i].next_ns = UINT64_MAX;
		sim_draw_peer_plan(chance, s, plan[i]);
	}
	sim_draw_zero_copy_holds(s->seed + number + incarnation, plan);
	first = (int)(sim_rng_next(chance) & 1); /* who ends first, if one waits for the other */
	plan[first]->waits_for_eof = false;
	plan[1 - first]->waits_for_eof = sim_rng_happens(chance, 50);
	if (sim_rng_happens(chance, 20)) {
		plan[1 - first]->echo = true;
		if (plan[1 - first]->total > plan[first]->total)
			plan[1 - first]->total = plan[first]->total;
	}
	for (int i = 0; i < 2; i++) {
		sim_draw_reader_pauses(chance, plan[i], plan[1 - i]->total);
		sim_limit_slow_reader(plan[i], plan[1 - i]->total);
		if (s->disturbed && (i == first || sim_rng_happens(chance, 40)))
			sim_draw_early_end(chance, plan[i], plan[0]->total + plan[1]->total);
	}
}

static void sim_draw_scenario_from_seed(struct sim_scenario *s, uint64_t seed)
{
	struct sim_rng chance = {seed};

	*s = (struct sim_scenario){.seed = seed, .admit_percent = 100};
	sim_rng_next(&chance);
	s->attr.seed = seed;
	s->attr.watch = sim_watch_hook_nic_queue_pair;
	s->attr.start_ns = sim_rng_happens(&chance, 50) ? sim_rng_between(&chance, SIM_S, 1000 * SIM_S)
	                                                : (1ULL << 32) * SIM_MS - sim_rng_between(&chance, 1, SIM_S);
	s->disturbed = sim_rng_happens(&chance, 40);
	s->pairs = sim_rng_happens(&chance, 60) ? 1 : (unsigned)sim_rng_magnitude(&chance, 1, SIM_PAIRS);
	sim_draw_wire_faults_and_sizes(&chance, s);
	sim_draw_shortages(&chance, s);
	if (sim_rng_happens(&chance, 10))
		s->admit_percent = (uint32_t)sim_rng_between(&chance, 30, 99);
	if (s->disturbed && sim_rng_happens(&chance, 15)) {
		s->listeners_close_early = true;
		s->listeners_close_ns = s->attr.start_ns + sim_rng_magnitude(&chance, 1, 2 * SIM_S);
	}
	for (unsigned i = 0; i < s->pairs; i++)
		sim_draw_pair_plan(s, i, 0, s->attr.start_ns);
}

/* ---- listeners ---- */

static bool sim_listener_admit_at_random(struct vma_tcp_listener *listener, void *arg)
{
	struct sim_side *side = arg;
	struct sim_scenario *s = side->sim->top;

	(void)listener;
	return sim_rng_happens(&side->sim->chance, s->admit_percent);
}

/* What a listener's options do not give it. */
static void sim_set_options(struct sim_peer *peer, struct vma_tcp_conn *conn)
{
	const struct vma_tcp_options *options = &peer->plan.options;

	for (unsigned i = 0; i < VMA_TCP_OPT_COUNT; i++) {
		int32_t value = ((const int32_t *)options)[i];

		if (value == vma_tcp_get_option(conn, (enum vma_tcp_option)i) || i == VMA_TCP_OPT_MAXSEG ||
		    i == VMA_TCP_OPT_DEFER_ACCEPT || i == VMA_TCP_OPT_WINDOW_CLAMP ||
		    (value == 0 && (i == VMA_TCP_OPT_SNDBUF || i == VMA_TCP_OPT_RCVBUF)))
			continue;
		if (vma_tcp_set_option(conn, (enum vma_tcp_option)i, value) != 0)
			sim_peer_fail(peer, "option %u is not set to %d", i, value);
	}
}

static bool sim_accepted(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	struct sim_side *side = arg;
	struct sim_scenario *s = side->sim->top;
	struct vma_flow_key names;
	struct sim_peer *peer;
	unsigned number;

	(void)listener;
	vma_tcp_conn_key(conn, &names);
	number = (unsigned)ntohs(names.peer_port_be) - SIM_PORT;
	if (number >= s->pairs || ntohs(names.local_port_be) != SIM_LISTEN) {
		sim_fail(side->sim, "side %d: accepts a connection that nobody made", side->number);
		return false;
	}
	peer = &s->pair[number].peer[side->number];
	if (peer->conn != NULL || peer->gone) { /* the connector gave up once: it has one connection only */
		sim_peer_fail(peer, "is accepted twice");
		return false;
	}
	peer->events |= VMA_TCP_CONNECTED;
	sim_trace_peer_action(peer, "is accepted", 0);
	sim_peer_assign_connection(peer, conn);
	vma_tcp_conn_set_owner_and_replay_events(conn, &sim_owner, peer);
	sim_set_options(peer, conn);
	return true;
}

static void sim_listen(struct sim_scenario *s, int side)
{
	static const struct vma_tcp_listener_ops owner = {.admit = sim_listener_admit_at_random,
	                                                  .accepted = sim_accepted};
	struct vma_tcp_options options;
	struct vma_tcp_listen_attr attr = {.owner = &owner,
	                                   .arg = &s->sim.side[side],
	                                   .options = &options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(SIM_LISTEN),
	                                   .backlog = (uint32_t)sim_rng_between(&s->sim.chance, 1, 64)};
	int rc;

	options = s->pair[0].peer[side].plan.options;
	sim_ip_address_of_side(side, attr.local);
	rc = vma_tcp_listen(s->sim.side[side].tcp, &attr, &s->listener[side]);
	if (rc != 0)
		sim_fail(&s->sim, "listen: %s", strerror(-rc));
}

static void sim_close_listeners(struct sim_scenario *s)
{
	for (int i = 0; i < 2; i++)
		if (s->listener[i] != NULL)
			vma_tcp_listener_close(s->listener[i]);
	s->listener[0] = s->listener[1] = NULL;
}

/* ---- shortages ---- */

static void sim_set_total_wire_loss(struct sim_scenario *s, bool all)
{
	for (int i = 0; i < 2; i++) {
		struct vma_wire_faults faults = s->attr.faults[i];

		if (all)
			faults.loss_ppm = 1000000;
		sim_assert(vma_wire_set_faults(s->sim.side[i].nic, &faults) == 0, "no faults");
	}
}

static void sim_shortage_set(struct sim_scenario *s, const struct sim_shortage *shortage, bool on)
{
	struct sim_side *side = &s->sim.side[shortage->side];
	struct vma_nic_qp *qp = vma_ring_qp(side->ring);

	if (s->sim.trace)
		fprintf(stderr, "%12.6f shortage %d of side %d %s\n", (double)s->sim.now_ns / 1e9, shortage->kind,
		        shortage->side, on ? "begins" : "ends");
	switch (shortage->kind) {
	case SIM_SHORTAGE_WIRE_SLOTS:
		sim_set_total_wire_loss(s, on);
		break;
	case SIM_SHORTAGE_MEMORY:
		sim_alloc_fail_ppm = on ? 300000 : 0;
		break;
	default:
		if (on)
			sim_take_free_frames(
			        side,
			        atomic_load(shortage->kind == SIM_SHORTAGE_TX_FRAMES ? &qp->tx_pool : &qp->rx_pool));
		else
			sim_return_taken_frames(side);
		break;
	}
}

static bool sim_apply_due_shortages(struct sim_scenario *s)
{
	bool moved = false;

	for (unsigned i = 0; i < s->shortages; i++) {
		struct sim_shortage *shortage = &s->shortage[i];

		if (!shortage->begun && s->sim.now_ns >= shortage->begin_ns) {
			shortage->begun = moved = true;
			sim_shortage_set(s, shortage, true);
		}
		if (shortage->begun && !shortage->ended && s->sim.now_ns >= shortage->end_ns) {
			shortage->ended = moved = true;
			sim_shortage_set(s, shortage, false);
		}
	}
	return moved;
}

/* ---- what happens and when ---- */

/* Everything that was written has been read, and the end was seen. */
static void sim_check_peer_read_all_without_error(struct sim_peer *peer)
{
	const struct sim_peer *other = sim_other_peer(peer);

	/* Only its FIN was not acknowledged yet: so often was that lost that the other one's TIME_WAIT was over. */
	bool late = peer->error == ECONNRESET && peer->closed && other->gone && other->eof && peer->eof;

	if (peer->error != 0 && !late)
		sim_peer_fail(peer, "ends with %s", strerror(peer->error));
	if (peer->read != other->plan.total)
		sim_peer_fail(peer, "has read %" PRIu64 " of %" PRIu64 " bytes", peer->read, other->plan.total);
	if (!peer->eof)
		sim_peer_fail(peer, "has not seen the end");
}

/* The next one with the same addresses and ports. */
static bool sim_pair_reconnect(struct sim_scenario *s, struct sim_pair *pair)
{
	unsigned repeats = pair->repeats;

	if (repeats == 0 || !pair->peer[0].gone || !pair->peer[1].gone)
		return false;
	sim_check_peer_read_all_without_error(&pair->peer[0]);
	sim_check_peer_read_all_without_error(&pair->peer[1]);
	sim_draw_pair_plan(s, pair->number, pair->incarnation + 1, s->sim.now_ns);
	pair->repeats = repeats - 1;
	return true;
}

static bool sim_run_all_peers(struct sim *sim)
{
	struct sim_scenario *s = sim->top;
	bool moved = sim_apply_due_shortages(s);

	if (s->listeners_close_early && sim->now_ns >= s->listeners_close_ns && s->listener[0] != NULL) {
		sim_close_listeners(s);
		moved = true;
	}
	for (unsigned i = 0; i < s->pairs; i++) {
		struct sim_pair *pair = &s->pair[i];

		if (sim->now_ns >= pair->connect_ns) {
			pair->connect_ns = UINT64_MAX;
			for (int side = 0; side < 2; side++)
				if ((side == pair->connector || pair->simultaneous) && pair->peer[side].conn == NULL &&
				    !pair->peer[side].gone)
					moved |= sim_connect(&pair->peer[side]);
		}
		for (int side = 0; side < 2; side++)
			moved |= sim_peer_run_actions(&pair->peer[side]);
		moved |= sim_pair_reconnect(s, pair);
	}
	return moved;
}

static uint64_t sim_next_due_of_all_peers(const struct sim *sim)
{
	const struct sim_scenario *s = sim->top;
	uint64_t due = UINT64_MAX;
#define SIM_EARLIER(ns) due = (ns) < due ? (ns) : due

	for (unsigned i = 0; i < s->pairs; i++) {
		SIM_EARLIER(s->pair[i].connect_ns);
		SIM_EARLIER(s->pair[i].peer[0].next_ns);
		SIM_EARLIER(s->pair[i].peer[1].next_ns);
	}
	for (unsigned i = 0; i < s->shortages; i++) {
		if (!s->shortage[i].begun)
			SIM_EARLIER(s->shortage[i].begin_ns);
		else if (!s->shortage[i].ended)
			SIM_EARLIER(s->shortage[i].end_ns);
	}
	if (s->listeners_close_early && s->listener[0] != NULL)
		SIM_EARLIER(s->listeners_close_ns);
#undef SIM_EARLIER
	return due;
}

/* Whoever made a connection or was accepted has left. One that was never accepted does not count. */
static bool sim_all_connections_have_ended(struct sim *sim)
{
	struct sim_scenario *s = sim->top;

	for (unsigned i = 0; i < s->pairs; i++) {
		struct sim_pair *pair = &s->pair[i];

		if (pair->connect_ns != UINT64_MAX || pair->peer[0].conn != NULL || pair->peer[1].conn != NULL)
			return false;
		if (!s->disturbed && !(pair->peer[0].gone && pair->peer[1].gone))
			return false;
	}
	return true;
}

static bool sim_both_stacks_are_idle(struct sim *sim)
{
	for (int i = 0; i < 2; i++) {
		const struct vma_tcp *tcp = sim->side[i].tcp;

		if (tcp->all != NULL || vma_tcp_next_due_ns(tcp) != UINT64_MAX || vma_tcp_is_busy(tcp))
			return false;
	}
	return true;
}

#endif
