/*
 * Two stacks talk to each other, a seed decides how, and what must be so is so: see sim_seed.h. One seed is one link
 * and a few connections.
 *
 * seconds: 25
 *
 *   SEED=n            this one, and what happened in it
 *   SIM_TRACE=1       ... with every frame and event
 *   SEEDS_SECONDS=t   as many as go into t seconds (25), from SEED_BASE (1) on; or SEEDS=n of them. A long run says now
 *                     and then how far it is: make soak T=3600
 */
#include <stdarg.h>
#include <time.h>

#include <vma/test.h>

#include "sim_seed.h"

static struct sim_scenario scenario;

static uint64_t seeds_getenv_number_or_default(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text != NULL && *text != '\0' ? strtoull(text, NULL, 0) : otherwise;
}

static double seeds_monotonic_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- what a failure says ---- */

static void print_peer_plan_and_state(const struct sim_peer *peer)
{
	const struct sim_plan *plan = &peer->plan;

	printf("#     side %d: writes %" PRIu64 " by %u..%u, reads by %u..%u%s%s%s%s%s; early %d state %d; "
	       "sndbuf %d rcvbuf %d cc %d nodelay %d\n",
	       peer->side->number, plan->total, plan->write_min, plan->write_max, plan->read_min, plan->read_max,
	       plan->echo ? ", echo" : "", plan->waits_for_eof ? ", waits" : "", plan->shuts ? ", shuts" : "",
	       plan->eager ? ", eager" : "", plan->lingers ? ", lingers" : "", plan->early, plan->early_state,
	       plan->options.sndbuf, plan->options.rcvbuf, plan->options.congestion, plan->options.nodelay);
	printf("#       wrote %" PRIu64 ", read %" PRIu64 ", events %#x, end %d, closed %d, left %d, error %d\n",
	       peer->written, peer->read, peer->events, peer->eof, peer->closed, peer->gone, peer->error);
	if (peer->conn != NULL)
		printf("#       state %d, error %d, queued in %" PRIu64 " out %" PRIu64 " unsent %" PRIu64
		       " room %" PRIu64 ", readiness %#x\n",
		       vma_tcp_state(peer->conn), vma_tcp_error(peer->conn), vma_tcp_readable_bytes(peer->conn),
		       vma_tcp_tx_unacked_bytes(peer->conn), vma_tcp_tx_unsent(peer->conn),
		       vma_tcp_tx_space(peer->conn), vma_tcp_poll_events(peer->conn));
}

static void print_scenario_settings(const struct sim_scenario *s)
{
	printf("# seed %" PRIu64 ": %s%s, mtu %u frames %u queue %u rx %u tx %u, at %.6f s (began %.6f)\n", s->seed,
	       s->disturbed ? "disturbed" : "calm", s->cut ? ", cut" : "", s->attr.mtu, s->attr.frame_size,
	       s->attr.queue_frames, s->attr.rx_wre, s->attr.tx_wre, (double)s->sim.now_ns / 1e9,
	       (double)s->attr.start_ns / 1e9);
	for (int i = 0; i < 2; i++) {
		const struct vma_wire_faults *faults = &s->attr.faults[i];

		printf("#   from side %d: delay %" PRIu64 " jitter %" PRIu64
		       " ns, ppm: loss %u twice %u reorder %u turned "
		       "%u; lazy %" PRIu64 " ns; time stamps %d; known due %" PRId64 "\n",
		       i, faults->delay_ns, faults->jitter_ns, faults->loss_ppm, faults->duplicate_ppm,
		       faults->reorder_ppm, faults->corrupt_ppm, s->attr.laziness_ns[i], !s->attr.no_timestamps[i],
		       (int64_t)(s->sim.side[i].known_due_ns - s->sim.now_ns));
	}
	for (unsigned i = 0; i < s->shortages; i++)
		printf("#   shortage %d of side %d, %.6f to %.6f\n", s->shortage[i].kind, s->shortage[i].side,
		       (double)s->shortage[i].begin_ns / 1e9, (double)s->shortage[i].end_ns / 1e9);
	for (unsigned i = 0; i < s->pairs; i++) {
		printf("#   connection %u: side %d connects%s\n", i, s->pair[i].connector,
		       s->pair[i].simultaneous ? ", and the other" : "");
		print_peer_plan_and_state(&s->pair[i].peer[0]);
		print_peer_plan_and_state(&s->pair[i].peer[1]);
	}
}

/* ---- what must be so ---- */

static bool error_can_happen_in_scenario(const struct sim_scenario *s, int error)
{
	switch (error) {
	case 0:
	case ECONNRESET:
	case EPIPE:
	case ECONNREFUSED:
	case ETIMEDOUT: /* the other one is gone, and its reset was lost or nobody answers any more */
		return true;
	case ECONNABORTED:
		return s->listeners_close_early;
	default:
		return false;
	}
}

/* Nobody else disturbs what ends with an early shutdown for writing: it is calm, only shorter. */
static bool pair_early_ends_are_shut_wr(const struct sim_scenario *s, const struct sim_pair *pair)
{
	bool calm = !s->cut && !s->listeners_close_early && pair->peer[0].gone && pair->peer[1].gone;

	for (int i = 0; i < 2; i++)
		calm &= pair->peer[i].plan.early == SIM_EARLY_NONE || pair->peer[i].plan.early == SIM_EARLY_SHUT_WR ||
		        !pair->peer[i].early_done;
	return calm;
}

static void check_peer_of_disturbed_scenario(struct sim_scenario *s, struct sim_peer *peer)
{
	if (peer->gone && !error_can_happen_in_scenario(s, peer->error))
		sim_peer_fail(peer, "ends with %s, which cannot be", strerror(peer->error));
	if (peer->error == 0 && peer->gone && pair_early_ends_are_shut_wr(s, peer->pair) && peer->eof &&
	    peer->read != sim_other_peer(peer)->written)
		sim_peer_fail(peer, "saw the end after %" PRIu64 " of %" PRIu64 " bytes", peer->read,
		              sim_other_peer(peer)->written);
}

static void check_no_checksum_errors_received(struct sim_scenario *s)
{
	for (int i = 0; i < 2; i++) {
		struct vma_stats_ring_rx *rx = &vma_ring_stats(s->sim.side[i].ring)->rx;

		if (s->attr.faults[1 - i].corrupt_ppm == 0 && (vma_stats_read_counter(&rx->rx_drop_l4_checksum) != 0 ||
		                                               vma_stats_read_counter(&rx->rx_drop_ip_checksum) != 0))
			sim_fail(&s->sim, "side %d: sends wrong checksums", 1 - i);
	}
}

/* Nothing is in the way: no pauses, nothing lost or late. */
static bool scenario_is_undisturbed(const struct sim_scenario *s)
{
	bool plain = !s->disturbed && !s->faulty && s->shortages == 0 && s->admit_percent == 100;

	for (int i = 0; i < 2; i++)
		plain &= s->attr.faults[i].jitter_ns == 0 && s->attr.laziness_ns[i] == 0;
	for (unsigned i = 0; i < s->pairs; i++)
		for (int side = 0; side < 2; side++) {
			const struct sim_plan *plan = &s->pair[i].peer[side].plan;

			plain &= plan->path_change_mtu == 0 && plan->path_late_ns == 0 && s->pair[i].incarnation == 0;
		}
	return plain;
}

/* How long it may take: a round trip for each windowful, and something for delayed ACKs and the beginning. */
static uint64_t scenario_time_limit_ns(const struct sim_scenario *s)
{
	uint64_t rtt = s->attr.faults[0].delay_ns + s->attr.faults[1].delay_ns, allowed = 3 * SIM_S + 40 * rtt;

	for (unsigned i = 0; i < s->pairs; i++)
		for (int side = 0; side < 2; side++) {
			const struct sim_plan *from = &s->pair[i].peer[side].plan,
			                      *to = &s->pair[i].peer[1 - side].plan;
			uint64_t window = 8192, size = (from->write_min + from->write_max) / 2 + 1;

			if (from->options.sndbuf != 0 && (uint64_t)from->options.sndbuf < window)
				window = (uint64_t)from->options.sndbuf;
			if (to->options.rcvbuf != 0 && (uint64_t)to->options.rcvbuf < window)
				window = (uint64_t)to->options.rcvbuf;
			allowed += from->total / (window / 4 + 1) * (rtt + SIM_MS);
			allowed += from->write_gap_ns * (from->total / size + 1);
			allowed += to->read_gap_ns * (from->total / ((to->read_min + to->read_max) / 2 + 1) + 1);
			for (unsigned k = 0; k < SIM_READER_PAUSES; k++)
				allowed +=
				        to->stop[k].ns + SIM_S; /* a window that was closed is probed less and less */
			if (from->cork_percent + from->more_percent != 0)
				allowed += (from->total / size + 1) * 200 * SIM_MS;
		}
	return allowed;
}

/* Where nothing is lost, nothing is sent twice, and nobody waits for a timer that stands for something lost. */
static void sim_check_no_retransmits_without_loss(struct sim_scenario *s)
{
	uint64_t took = s->left_ns - s->attr.start_ns;
	struct vma_tcp_counts counts[2];
	struct vma_wire_counts wire;

	if (!scenario_is_undisturbed(s))
		return;
	for (int i = 0; i < 2; i++) {
		vma_wire_read_counters(s->sim.side[i].nic, &wire);
		vma_tcp_read_counters(s->sim.side[i].tcp, &counts[i]);
		if (wire.queue_full != 0 || counts[i].syns_dropped != 0) /* something was lost, in its way */
			return;
	}
	for (int i = 0; i < 2; i++)
		/* A tail-loss probe is allowed: delayed ACKs for short segments come later than it (RFC 8985 7.2). */
		if (counts[i].timeouts != 0 || counts[i].retransmits > counts[i].tail_probes)
			sim_fail(&s->sim,
			         "side %d: nothing was lost, but %" PRIu64 " segments were sent again and %" PRIu64
			         " timeouts ran",
			         i, counts[i].retransmits, counts[i].timeouts);
	for (unsigned i = 0; i < s->pairs; i++)
		for (int side = 0; side < 2; side++)
			if (sim_seen_direction[i][side].resets != 0)
				sim_fail(&s->sim, "connection %u: side %d sends a reset", i, side);
	if (took > scenario_time_limit_ns(s))
		sim_fail(&s->sim, "it took %.3f s, and not %.3f at most", (double)took / 1e9,
		         (double)scenario_time_limit_ns(s) / 1e9);
}

static void sim_check_scenario(struct sim_scenario *s)
{
	sim_check_no_retransmits_without_loss(s);
	for (unsigned i = 0; i < s->pairs; i++)
		for (int side = 0; side < 2; side++) {
			if (s->disturbed)
				check_peer_of_disturbed_scenario(s, &s->pair[i].peer[side]);
			else
				sim_check_peer_read_all_without_error(&s->pair[i].peer[side]);
		}
	check_no_checksum_errors_received(s);
}

/* ---- running ---- */

static void run_scenario_until_stacks_are_idle(struct sim_scenario *s)
{
	struct sim *sim = &s->sim;

	sim->top = s;
	sim->act = sim_run_all_peers;
	sim->due = sim_next_due_of_all_peers;
	sim->end_ns = s->attr.start_ns + 6 * 3600 * SIM_S;
	if (!sim_run_until_done(sim, sim_all_connections_have_ended) && !sim->failed)
		sim_fail(sim, sim->now_ns > sim->end_ns ? "it does not end" : "it hangs: nothing is due any more");
	if (sim->failed)
		return;
	s->left_ns = sim->now_ns;
	sim_check_scenario(s);
	sim_close_listeners(s);
	if (!sim_run_until_done(sim, sim_both_stacks_are_idle) && !sim->failed)
		sim_fail(sim, "something of the connections is left: all %p %p, due %d %d, busy %d %d",
		         (void *)sim->side[0].tcp->all, (void *)sim->side[1].tcp->all,
		         vma_tcp_next_due_ns(sim->side[0].tcp) != UINT64_MAX,
		         vma_tcp_next_due_ns(sim->side[1].tcp) != UINT64_MAX, vma_tcp_is_busy(sim->side[0].tcp),
		         vma_tcp_is_busy(sim->side[1].tcp));
}

/* Whoever is still there when a run has failed lets go, so that the end does not find it. */
static void sim_drop_remaining_conns(struct sim_scenario *s)
{
	for (unsigned i = 0; i < s->pairs; i++)
		for (int side = 0; side < 2; side++)
			if (s->pair[i].peer[side].conn != NULL)
				sim_peer_release_conn(&s->pair[i].peer[side]);
	sim_close_listeners(s);
}

static bool seed_passes(uint64_t seed)
{
	struct sim_scenario *s = &scenario;

	sim_draw_scenario_from_seed(s, seed);
	sim_start(&s->sim, &s->attr);
	s->sim.trace = getenv("SIM_TRACE") != NULL;
	sim_listen(s, 0);
	sim_listen(s, 1);
	run_scenario_until_stacks_are_idle(s);
	if (s->sim.failed)
		print_scenario_settings(s);
	sim_drop_remaining_conns(s);
	sim_return_held_pieces_when_due(NULL, UINT64_MAX);
	sim_end_and_check_leaks(&s->sim);
	if (s->sim.failed)
		printf("# seed %" PRIu64 " failed: %s\n#   again: make test-tcp T='*seeds*' SEED=%" PRIu64 "\n", seed,
		       s->sim.failure, seed);
	fflush(stdout);
	return !s->sim.failed;
}

static void print_seeds_run_summary(uint64_t base, uint64_t run, uint64_t failures, double begin)
{
	printf("# %" PRIu64 " seeds from %" PRIu64 ", %.1f a second, %" PRIu64 " failed\n", run, base,
	       (double)run / (seeds_monotonic_seconds() - begin), failures);
	fflush(stdout);
}

static void test_all_seeds_end_as_they_must(void **state)
{
	uint64_t base = seeds_getenv_number_or_default("SEED_BASE", 1),
	         most = seeds_getenv_number_or_default("SEEDS", UINT64_MAX), run = 0, failures = 0;
	double begin = seeds_monotonic_seconds(), limit = (double)seeds_getenv_number_or_default("SEEDS_SECONDS", 25),
	       said = begin;

	(void)state;
	sim_fill_pattern_table();
	if (getenv("SEED") != NULL && *getenv("SEED") != '\0') {
		base = seeds_getenv_number_or_default("SEED", 1);
		most = 1;
	}
	if (most != UINT64_MAX)
		limit = 1e9;
	for (; run < most && seeds_monotonic_seconds() - begin < limit && failures < 5; run++) {
		failures += !seed_passes(base + run);
		if (seeds_monotonic_seconds() - said > 30) {
			said = seeds_monotonic_seconds();
			print_seeds_run_summary(base, run + 1, failures, begin);
		}
	}
	print_seeds_run_summary(base, run, failures, begin);
	assert_int_equal(failures, 0);
	assert_true(run > 0);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_seeds_end_as_they_must)};

VMA_TEST_MAIN(tests)
