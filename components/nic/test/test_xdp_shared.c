/*
 * The fill/completion object without a kernel: what each call does, and a client that dies at every step of it.
 * The files under test are compiled in here, with their step hook.
 */
#include <stdbool.h>

#include <vma/test.h>

/* A crash is a jump out of the client at its next-but-n step: memory stays as it was, as after a kill. */
static jmp_buf crash;
static long steps_until_crash;
static bool victim_is_running;

static inline void crash_victim_if_step_reached(void)
{
	if (victim_is_running && steps_until_crash-- == 0)
		longjmp(crash, 1);
}
#define XDP_SHARED_STEP() crash_victim_if_step_reached()

#include "../xdp/shared.c"
#include "../xdp/recover.c"

#include "xdp_fixture.h"

#define VICTIM 1

static struct fixture *fixture;
static struct client clients[W_SLOTS];

static int setup(void **state)
{
	(void)state;
	fixture = fixture_create(1);
	assert_non_null(fixture);
	for (uint32_t s = 0; s < W_SLOTS; s++)
		client_init(&clients[s], fixture, s, s + 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fixture_destroy(fixture);
	return 0;
}

static void assert_fixture_no_errors(void)
{
	if (fixture->errors != 0)
		fail_msg("%u complaints, first: %s", fixture->errors, fixture->complaint);
}

static void test_fill_takes_what_fits_and_marks_it(void **state)
{
	struct xdp_ring *ring = &clients[0].fill[0];
	uint32_t frames[W_RX_FRAMES];

	(void)state;
	for (uint32_t i = 0; i < W_RX_FRAMES; i++) {
		frames[i] = i;
		xdp_shared_set_frame_holder(&clients[0].driver[0], i);
	}
	assert_int_equal(xdp_shared_put_in_fill_ring(&clients[0].driver[0], frames, W_RX_FRAMES), W_FILL);
	assert_int_equal(xdp_shared_put_in_fill_ring(&clients[0].driver[0], frames + W_FILL, 1), 0);
	assert_int_equal(ring_used_entries(ring), W_FILL);
	for (uint32_t i = 0; i < W_FILL; i++) {
		assert_int_equal(ring->addrs[(W_START + i) & ring->mask], (uint64_t)i << XDP_FRAME_SHIFT);
		assert_int_equal(fixture->shared.holder[i], XDP_HOLDER_FILL);
	}
	assert_int_equal(fixture->shared.holder[W_FILL], 1);
}

static void test_fill_leaves_frames_of_others_alone(void **state)
{
	const uint32_t frames[] = {5, 6, W_FRAMES, XDP_FRAMES_MAX, UINT32_MAX};

	(void)state;
	xdp_shared_set_frame_holder(&clients[0].driver[0], 5);
	xdp_shared_set_frame_holder(&clients[2].driver[0], 6);
	assert_int_equal(xdp_shared_put_in_fill_ring(&clients[0].driver[0], frames, 5), 5);
	assert_int_equal(ring_used_entries(&clients[0].fill[0]), 1);
	assert_int_equal(fixture->shared.holder[6], 3);
	xdp_shared_set_frame_holder(&clients[0].driver[0], UINT32_MAX); /* out of range: ignored */
}

static void test_taken_lock_makes_calls_return_zero(void **state)
{
	const uint32_t frame = 3;

	(void)state;
	fixture->shared.queue[0].fill.lock = 3;
	fixture->shared.queue[0].comp.lock = 3;
	fixture->comp[0].producer++;
	xdp_shared_set_frame_holder(&clients[0].driver[0], frame);
	assert_int_equal(xdp_shared_put_in_fill_ring(&clients[0].driver[0], &frame, 1), 0);
	assert_int_equal(xdp_shared_drain_completion_ring(&clients[0].driver[0]), 0);
	/* The other queue has locks of its own. */
	assert_int_equal(xdp_shared_put_in_fill_ring(&clients[0].driver[1], &frame, 1), 1);
}

/* Sends all frames of a client through the fake kernel of one queue up to the completion ring. */
static void xdp_shared_send_all(struct client *client, uint32_t queue)
{
	for (int i = 0; i < 1000; i++) {
		client_send_random_frames(client, queue);
		fake_kernel_take_tx(fixture, client->slot, queue);
		fake_kernel_complete(fixture, queue);
	}
}

static void test_completions_find_their_slots_whoever_drains(void **state)
{
	uint32_t frames[W_TX_FRAMES];

	(void)state;
	xdp_shared_send_all(&clients[0], 0);
	assert_int_equal(fixture_count_tx_frames_in_flight(&fixture->shared, 0), W_TX_FRAMES);
	assert_int_equal(xdp_shared_drain_completion_ring(&clients[3].driver[0]), W_TX_FRAMES);
	xdp_shared_send_all(&clients[2], 0);
	assert_int_equal(xdp_shared_drain_completion_ring(&clients[3].driver[0]), W_TX_FRAMES);
	assert_int_equal(fixture_count_tx_frames_in_flight(&fixture->shared, 0), 0);
	assert_int_equal(xdp_shared_take_completed_tx(&fixture->shared, 1, frames, W_TX_FRAMES), 0);
	assert_int_equal(xdp_shared_take_completed_tx(&fixture->shared, 0, frames, 5), 5);
	assert_int_equal(xdp_shared_take_completed_tx(&fixture->shared, 0, frames, W_TX_FRAMES), W_TX_FRAMES - 5);
	assert_int_equal(xdp_shared_take_completed_tx(&fixture->shared, 0, frames, W_TX_FRAMES), 0);
	assert_int_equal(xdp_shared_take_completed_tx(&fixture->shared, 2, frames, W_TX_FRAMES), W_TX_FRAMES);
	for (uint32_t i = 0; i < W_TX_FRAMES; i++)
		assert_in_range(frames[i], W_RX_FRAMES + 2 * W_TX_FRAMES, W_RX_FRAMES + 3 * W_TX_FRAMES - 1);
}

static void test_completion_of_what_is_not_in_flight_is_ignored(void **state)
{
	struct xdp_ring *comp = &clients[0].comp[0];
	const uint64_t addrs[] = {W_RX_FRAMES, 1, W_FRAMES + 5, XDP_FRAMES_MAX, UINT64_MAX >> XDP_FRAME_SHIFT};
	uint32_t frames[8];

	(void)state;
	xdp_shared_set_tx_frame_in_flight(&fixture->shared, W_RX_FRAMES, 1, 0); /* in flight, but on the other queue */
	for (uint32_t i = 0; i < 5; i++)
		comp->addrs[(*comp->producer)++ & comp->mask] = addrs[i] << XDP_FRAME_SHIFT;
	assert_int_equal(xdp_shared_drain_completion_ring(&clients[0].driver[0]), 5);
	assert_int_equal(xdp_shared_take_completed_tx(&fixture->shared, 0, frames, 8), 0);
	assert_int_equal(fixture_count_tx_frames_in_flight(&fixture->shared, 0), 1);
}

static void test_hints_that_do_not_fit_are_not_missed(void **state)
{
	const uint32_t first = 1000, count = XDP_HINTS * 3; /* more than the ring of hints holds */
	uint32_t frames[100], total = 0, n;
	struct xdp_ring *comp = &clients[0].comp[0];

	(void)state;
	xdp_shared_set_tx_range_of_slot(&fixture->shared, 9, first, count);
	for (uint32_t i = 0; i < count; i++) {
		xdp_shared_set_tx_frame_in_flight(&fixture->shared, first + i, 0, i);
		comp->addrs[(*comp->producer)++ & comp->mask] = (uint64_t)(first + i) << XDP_FRAME_SHIFT;
		if (ring_used_entries(comp) == W_COMP || i == count - 1)
			assert_true(xdp_shared_drain_completion_ring(&clients[0].driver[0]) > 0);
	}
	while ((n = xdp_shared_take_completed_tx(&fixture->shared, 9, frames, 100)) > 0) {
		for (uint32_t i = 0; i < n; i++)
			assert_in_range(frames[i], first, first + count - 1);
		total += n;
	}
	assert_int_equal(total, count);
}

static void test_garbage_in_shared_memory_is_survived(void **state)
{
	struct xdp_shared *shared = &fixture->shared;
	uint64_t seed = 99;
	uint32_t frames[64], at;

	(void)state;
	for (int round = 0; round < 2000; round++) {
		/* Garbage everywhere a client can write, then every call of the owner and of another client. */
		for (uint32_t q = 0; q < W_QUEUES; q++) {
			fixture->fill[q].producer = xdp_fixture_random_below(&seed, UINT32_MAX);
			fixture->comp[q].producer = xdp_fixture_random_below(&seed, UINT32_MAX);
			if (xdp_fixture_random_below(&seed, 2)) /* near enough to be believed */
				fixture->comp[q].consumer =
				        fixture->comp[q].producer - xdp_fixture_random_below(&seed, W_COMP + 2);
			for (uint32_t i = 0; i < W_FILL; i++) {
				fixture->fill[q].entries[i].addr = seed;
				fixture->comp[q].entries[i].addr = (uint64_t)xdp_fixture_random_below(&seed, W_FRAMES)
				                                   << XDP_FRAME_SHIFT;
				fixture->rx[VICTIM][q].entries[i].addr =
				        (uint64_t)xdp_fixture_random_below(&seed, UINT32_MAX) << 9;
			}
			fixture->rx[VICTIM][q].producer =
			        fixture->rx[VICTIM][q].consumer + xdp_fixture_random_below(&seed, W_RX + 2);
			shared->queue[q].fill.lock = shared->queue[q].comp.lock = VICTIM + 1;
			shared->queue[q].fill.redo = XDP_REDO(fixture->fill[q].producer,
			                                      xdp_fixture_random_below(&seed, 2)
			                                              ? xdp_fixture_random_below(&seed, W_FILL + 2)
			                                              : seed >> 32);
			shared->queue[q].comp.position = XDP_POSITION_VALID | seed;
			if (xdp_fixture_random_below(&seed, 2))
				shared->queue[q].comp.position =
				        XDP_POSITION_VALID |
				        (uint32_t)(fixture->comp[q].consumer + xdp_fixture_random_below(&seed, W_COMP));
		}
		for (uint32_t s = 0; s < XDP_SLOTS_MAX; s++) {
			shared->slot[s].rescan = xdp_fixture_random_below(&seed, 2);
			shared->hints[s][0].producer = (uint32_t)seed;
			shared->hints[s][0].consumer = (uint32_t)seed - xdp_fixture_random_below(&seed, XDP_HINTS + 9);
			shared->hints[s][0].frame[xdp_fixture_random_below(&seed, XDP_HINTS)] = (uint32_t)seed;
			shared->slot[s].tx_first = xdp_fixture_random_below(&seed, 3)
			                                   ? xdp_fixture_random_below(&seed, XDP_FRAMES_MAX)
			                                   : (uint32_t)seed;
			shared->slot[s].tx_count = xdp_fixture_random_below(&seed, 3)
			                                   ? xdp_fixture_random_below(&seed, 200)
			                                   : (uint32_t)(round % 16 ? 0 : seed);
			xdp_fixture_random_below(&seed, 2);
		}
		for (uint32_t f = 0; f < W_FRAMES; f++) {
			shared->state[f] = seed << 5 ^ seed;
			shared->route[f] = (uint8_t)xdp_fixture_random_below(&seed, 256);
			shared->holder[f] = (uint16_t)xdp_fixture_random_below(&seed, 4);
		}
		shared->nframes = round % 64 ? W_FRAMES : (uint32_t)seed;
		xdp_shared_release_dead_locks(clients[0].driver, W_QUEUES, VICTIM);
		for (uint32_t q = 0; q < W_QUEUES; q++) {
			assert_int_equal(shared->queue[q].fill.lock, 0);
			assert_int_equal(shared->queue[q].comp.lock, 0);
			xdp_shared_hold_frames_in_rx_ring(shared, VICTIM, &clients[VICTIM].rx[q]);
			fixture_end_tx_frames_kernel_did_not_take(shared, VICTIM, q, (uint32_t)seed);
			xdp_shared_drain_completion_ring(&clients[0].driver[q]);
			xdp_shared_put_in_fill_ring(&clients[0].driver[q], (const uint32_t[]){1, 2, 3}, 3);
		}
		fixture_count_tx_frames_in_flight(shared, VICTIM);
		assert_in_range(xdp_shared_take_completed_tx(shared, 0, frames, 64), 0, 64);
		at = 0;
		assert_in_range(xdp_shared_take_frames_of_slot(shared, VICTIM, &at, W_FRAMES, frames, 64), 0, 64);
		assert_in_range(at, 0, W_FRAMES);
	}
}

/* A living neighbour writes the dead client's name into frames behind the owner, again and again. */
static void test_seizing_is_one_pass(void **state)
{
	uint32_t frames[4], at = 0;
	unsigned n, total = 0;

	(void)state;
	fixture->shared.nframes = UINT32_MAX;
	for (uint32_t f = 0; f < W_FRAMES; f++)
		fixture->shared.holder[f] = VICTIM + 1;
	while ((n = xdp_shared_take_frames_of_slot(&fixture->shared, VICTIM, &at, W_FRAMES, frames, 4)) > 0) {
		for (unsigned i = 0; i < n; i++) {
			assert_in_range(frames[i], 0, W_FRAMES - 1);
			fixture->shared.holder[frames[i]] = VICTIM + 1;
		}
		total += n;
	}
	assert_int_equal(total, W_FRAMES);
}

static void test_lock_that_nobody_holds_is_freed(void **state)
{
	struct xdp_shared_queue *queue = &fixture->shared.queue[0];

	(void)state;
	queue->fill.lock = 777;
	queue->comp.lock = 778;
	assert_int_equal(xdp_shared_put_in_fill_ring(&clients[0].driver[0], (const uint32_t[]){1}, 1), 0);
	assert_false(
	        xdp_shared_break_lock(&clients[1].driver[0], XDP_LOCK_FILL, 778)); /* not the number that is there */
	assert_int_equal(queue->fill.lock, 777);
	assert_true(xdp_shared_break_lock(&clients[1].driver[0], XDP_LOCK_FILL, 777));
	assert_true(xdp_shared_break_lock(&clients[1].driver[0], XDP_LOCK_COMP, 778));
	assert_int_equal(queue->fill.lock, 0);
	assert_int_equal(queue->comp.lock, 0);
	assert_int_equal(xdp_shared_put_in_fill_ring(&clients[0].driver[0], (const uint32_t[]){1}, 1), 1);
}

static void test_check_refuses_other_layouts(void **state)
{
	(void)state;
	assert_int_equal(xdp_shared_check(&fixture->shared, sizeof(fixture->shared)), 0);
	assert_int_equal(xdp_shared_check(&fixture->shared, sizeof(fixture->shared) - 1), -EPROTO);
	fixture->shared.version++;
	assert_int_equal(xdp_shared_check(&fixture->shared, sizeof(fixture->shared)), -EPROTO);
	fixture->shared.version--;
	fixture->shared.nframes = XDP_FRAMES_MAX + 1;
	assert_int_equal(xdp_shared_check(&fixture->shared, sizeof(fixture->shared)), -EPROTO);
	assert_int_equal(xdp_shared_bytes(XDP_FRAMES_MAX + 1), 0);
}

static void test_what_was_never_sent_is_settled(void **state)
{
	const uint32_t first = W_RX_FRAMES + VICTIM * W_TX_FRAMES;

	(void)state;
	for (uint32_t i = 0; i < 6; i++)
		xdp_shared_set_tx_frame_in_flight(&fixture->shared, first + i, i % 2,
		                                  W_START + 8 + i); /* across the wrap */
	fixture_end_tx_frames_kernel_did_not_take(&fixture->shared, VICTIM, 0, W_START + 11);
	assert_int_equal(fixture_count_tx_frames_in_flight(&fixture->shared, VICTIM),
	                 5); /* index 12 of queue 0 is gone */
	fixture_end_tx_frames_kernel_did_not_take(&fixture->shared, VICTIM, 1, W_START + 9);
	assert_int_equal(fixture_count_tx_frames_in_flight(&fixture->shared, VICTIM), 2);
}

/* ---- dying at every step ---- */

static void run_other_clients(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		for (uint32_t s = 0; s < W_SLOTS; s++)
			if (s != VICTIM)
				fake_client_random_step(&clients[s]);
		for (int k = 0; k < 6; k++)
			fake_kernel_step(fixture);
	}
}

/* Runs the victim until its step `at`; false when it came to its end before. */
static bool run_victim_until_crash(long at, int rounds)
{
	volatile bool died = false;

	steps_until_crash = at;
	victim_is_running = true;
	if (setjmp(crash) == 0) {
		for (int i = 0; i < rounds; i++) {
			fake_client_random_step(&clients[VICTIM]);
			victim_is_running = false;
			run_other_clients(1);
			victim_is_running = true;
		}
	} else {
		died = true;
	}
	victim_is_running = false;
	return died;
}

static void assert_each_frame_accounted(void)
{
	struct client *living[W_SLOTS];

	for (uint32_t s = 0; s < W_SLOTS; s++)
		living[s] = fixture->live[s] ? &clients[s] : NULL;
	assert_rx_frames_accounted(fixture, living);
	assert_tx_frames_accounted(fixture, living);
}

/* Nothing is forgotten: in the end every client has all its TX frames again and could give back every RX frame. */
static void assert_all_frames_come_back(void)
{
	bool done = false;

	for (int i = 0; i < 2000 && !done; i++) {
		done = true;
		for (uint32_t s = 0; s < W_SLOTS; s++)
			done &= fake_client_return_all(&clients[s]);
		for (int k = 0; k < 50; k++)
			fake_kernel_step(fixture);
	}
	if (!done)
		complain(fixture, "a client waits for ever", 0, 0);
	assert_each_frame_accounted();
}

/*
 * One life: the fixture runs, the victim dies at `at`, the others go on for `meanwhile` rounds, the owner takes back.
 */
static bool run_with_victim_killed_at(uint64_t seed, long at, int meanwhile)
{
	bool died;

	fixture = fixture_create(seed);
	for (uint32_t s = 0; s < W_SLOTS; s++)
		client_init(&clients[s], fixture, s, seed * W_SLOTS + s);
	fixture_owner_fill_rings(fixture);
	run_other_clients(20);
	for (int i = 0; i < 60; i++) {
		fake_client_random_step(&clients[VICTIM]);
		fake_kernel_step(fixture);
	}
	died = run_victim_until_crash(at, 40);
	run_other_clients(meanwhile);
	fixture->live[VICTIM] = false;
	fixture_owner_reclaim_dead(fixture, VICTIM);
	assert_each_frame_accounted();
	fixture_owner_fill_rings(fixture);
	run_other_clients(30);
	assert_each_frame_accounted();
	for (int i = 0; i < 20000 && fixture_count_tx_frames_in_flight(&fixture->shared, VICTIM) > 0; i++) {
		fake_kernel_step(fixture);
		fixture_owner_fill_rings(fixture);
	}
	if (fixture_count_tx_frames_in_flight(&fixture->shared, VICTIM) > 0)
		complain(fixture, "in flight for ever", 0, VICTIM);
	fixture_reset_rings_of_rented_slot(fixture, VICTIM); /* somebody else takes the slot */
	client_init(&clients[VICTIM], fixture, VICTIM, seed + 7);
	for (int i = 0; i < 30; i++) {
		fake_client_random_step(&clients[VICTIM]);
		run_other_clients(1);
	}
	assert_each_frame_accounted();
	assert_all_frames_come_back();
	if (fixture->errors != 0)
		fail_msg("seed %lu, step %ld, %d rounds later: %s", (unsigned long)seed, at, meanwhile,
		         fixture->complaint);
	fixture_destroy(fixture);
	return died;
}

static void test_death_at_every_step_loses_and_doubles_nothing(void **state)
{
	static const int meanwhile[] = {0, 1, 40};
	long lives = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 12; seed++)
		for (uint32_t m = 0; m < 3; m++)
			for (long at = 0; run_with_victim_killed_at(seed, at, meanwhile[m]); at++)
				lives++;
	print_message("%ld deaths\n", lives);
	assert_true(lives > 2500);
}

static bool crash_victim_draining_completions(long at)
{
	volatile bool died = true;

	steps_until_crash = at;
	victim_is_running = true;
	if (setjmp(crash) == 0) {
		xdp_shared_drain_completion_ring(&clients[VICTIM].driver[0]);
		died = false;
	}
	victim_is_running = false;
	return died;
}

/*
 * The recorded entry's frame may be taken and sent again before its drainer is buried; its new state then must not be
 * mistaken for the old, even where the index of its new descriptor is that of another frame in the same batch.
 */
static void test_frame_sent_again_is_not_completed_by_recovery(void **state)
{
	const uint32_t early = W_RX_FRAMES, late = W_RX_FRAMES + 2 * W_TX_FRAMES;
	uint32_t frames[W_TX_FRAMES];
	long at = 0;

	(void)state;
	for (bool died = true; died; at++) {
		struct xdp_ring *comp = &clients[0].comp[0];

		for (uint32_t i = 0; i < 2; i++)
			comp->addrs[(*comp->producer)++ & comp->mask] = (uint64_t)(i ? late : early) << XDP_FRAME_SHIFT;
		xdp_shared_set_tx_frame_in_flight(&fixture->shared, early, 0, 7);
		xdp_shared_set_tx_frame_in_flight(&fixture->shared, late, 0, 8);
		died = crash_victim_draining_completions(at);
		fixture->shared.slot[0].rescan = 1; /* a hint too many, at the worst time */
		if (xdp_shared_take_completed_tx(&fixture->shared, 0, frames, W_TX_FRAMES) == 1) {
			assert_int_equal(frames[0], early);
			xdp_shared_set_tx_frame_in_flight(&fixture->shared, early, 0, 8);
			xdp_shared_release_dead_locks(clients[0].driver, W_QUEUES, VICTIM);
			assert_int_equal(fixture_count_tx_frames_in_flight(&fixture->shared, 0), 1);
		} else {
			xdp_shared_release_dead_locks(clients[0].driver, W_QUEUES, VICTIM);
		}
		comp->consumer[0] = comp->producer[0];
		xdp_shared_set_tx_range_of_slot(&fixture->shared, 0, early, W_TX_FRAMES);
		xdp_shared_set_tx_range_of_slot(&fixture->shared, 2, late, W_TX_FRAMES);
	}
	assert_true(at > 8);
}

/* Sockets count their descriptors from the start: the next tenant's first frame has the index of the last one's. */
static void test_frame_of_next_tenant_is_not_completed_by_recovery(void **state)
{
	const uint32_t frame = W_RX_FRAMES;
	struct xdp_ring *comp = &clients[0].comp[0];
	uint32_t tried = 0;

	(void)state;
	for (long at = 0;; at++) {
		comp->addrs[(*comp->producer)++ & comp->mask] = (uint64_t)frame << XDP_FRAME_SHIFT;
		xdp_shared_set_tx_frame_in_flight(&fixture->shared, frame, 0, 0);
		if (!crash_victim_draining_completions(at))
			break;
		if (fixture_count_tx_frames_in_flight(&fixture->shared, 0) ==
		    0) { /* tenant 0 may be buried before the drainer */
			xdp_shared_release_dead_locks(clients[2].driver, W_QUEUES, 0);
			xdp_shared_set_tx_range_of_slot(&fixture->shared, 0, frame, W_TX_FRAMES);
			xdp_shared_set_tx_frame_in_flight(&fixture->shared, frame, 0, 0);
			xdp_shared_release_dead_locks(clients[2].driver, W_QUEUES, VICTIM);
			assert_int_equal(fixture_count_tx_frames_in_flight(&fixture->shared, 0), 1);
			tried++;
		}
		xdp_shared_release_dead_locks(clients[2].driver, W_QUEUES, VICTIM);
		comp->consumer[0] = comp->producer[0];
		xdp_shared_set_tx_range_of_slot(&fixture->shared, 0, frame, W_TX_FRAMES);
	}
	assert_true(tried > 2);
}

static void test_random_steps_keep_the_accounts(void **state)
{
	(void)state;
	fixture_owner_fill_rings(fixture);
	for (int i = 0; i < 3000; i++) {
		fake_client_random_step(&clients[VICTIM]);
		run_other_clients(1);
		assert_each_frame_accounted();
	}
	assert_fixture_no_errors();
	assert_true(fixture->received > 1000);
	assert_true(fixture->sent > 1000);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fill_takes_what_fits_and_marks_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fill_leaves_frames_of_others_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_taken_lock_makes_calls_return_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(test_completions_find_their_slots_whoever_drains, setup, teardown),
        cmocka_unit_test_setup_teardown(test_completion_of_what_is_not_in_flight_is_ignored, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hints_that_do_not_fit_are_not_missed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbage_in_shared_memory_is_survived, setup, teardown),
        cmocka_unit_test_setup_teardown(test_seizing_is_one_pass, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lock_that_nobody_holds_is_freed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_check_refuses_other_layouts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_was_never_sent_is_settled, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_steps_keep_the_accounts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_frame_sent_again_is_not_completed_by_recovery, setup, teardown),
        cmocka_unit_test_setup_teardown(test_frame_of_next_tenant_is_not_completed_by_recovery, setup, teardown),
        cmocka_unit_test(test_death_at_every_step_loses_and_doubles_nothing),
};

VMA_TEST_MAIN(tests)
