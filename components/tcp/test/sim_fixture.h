/*
 * sim_fixture - two whole stacks in one process, on a wire with faults, in virtual time.
 *
 *   peers ── stack 0 ── ring 0 ══ wire: delay, loss, ... ══ ring 1 ── stack 1 ── peers
 *
 * One thread. Nothing happens but in sim_run_once, and the clock moves only when nothing is left to do at the present
 * moment: then it goes to the time when something is due (a timer, a frame on its way, a peer's pause). So a run is
 * decided by its seed alone, an hour of timeouts costs nothing, and a hang is seen at once: bytes are missing and
 * nothing is due.
 *
 * A side is driven as a process drives it: when frames come (or later, sim_side.laziness_ns), and at the time that
 * host.due has told, as the internal thread does: a stack whose vma_tcp_next_due_ns becomes earlier without a word
 * fails.
 */
#ifndef SIM_FIXTURE_H
#define SIM_FIXTURE_H

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/ring.h>
#include <vma/tcp.h>

#include "../tcp_priv.h"

#define SIM_MS 1000000ULL
#define SIM_S 1000000000ULL
enum { SIM_FRAMES_WITHHELD_MAX = 4096, SIM_RETIRED = 64 };

/* ---- chance: splitmix64 ---- */

struct sim_rng {
	uint64_t state;
};
static inline uint64_t sim_rng_next(struct sim_rng *chance)
{
	uint64_t x = chance->state += 0x9e3779b97f4a7c15U;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
	x = (x ^ x >> 27) * 0x94d049bb133111ebU;
	return x ^ x >> 31;
}
/* lowest to highest, both included */
static inline uint64_t sim_rng_between(struct sim_rng *chance, uint64_t lowest, uint64_t highest)
{
	return lowest + sim_rng_next(chance) % (highest - lowest + 1);
}
static inline bool sim_rng_happens(struct sim_rng *chance, uint32_t percent)
{
	return sim_rng_next(chance) % 100 < percent;
}
/* Of many magnitudes: each power of two between them is as likely as another. */
static inline uint64_t sim_rng_magnitude(struct sim_rng *chance, uint64_t lowest, uint64_t highest)
{
	uint64_t most = lowest;

	while (most < highest && sim_rng_happens(chance, 85))
		most = most * 2 + 1;
	return sim_rng_between(chance, lowest, most < highest ? most : highest);
}

/* ---- the fixture ---- */

struct sim;
struct sim_side {
	struct sim *sim;
	int number;
	struct vma_bufarena *arena;
	struct vma_bufpool *spill;
	struct vma_nic *nic;
	struct vma_ring *ring;
	struct vma_tcp *tcp;
	uint64_t laziness_ns, next_drive_ns; /* frames wait so long until somebody polls */
	uint64_t known_due_ns;               /* what the internal thread believes */
	bool known_busy, told;
	struct vma_buf *stolen[SIM_FRAMES_WITHHELD_MAX]; /* a shortage: frames that somebody else holds */
	unsigned stolen_count;
	struct vma_tcp_conn *retired[SIM_RETIRED];
	unsigned retired_count;
	struct vma_nic_ops hooked; /* sim_watch.h */
	uint64_t cut;              /* packets that the NIC was to cut */
	uint64_t polled;           /* frames that have come out of the queue pair */
};

struct sim {
	uint64_t now_ns, end_ns;
	struct sim_rng chance;
	struct sim_side side[2];
	struct vma_wire_faults faults;
	uint32_t mtu;
	uint64_t rounds;
	/* what lives on top */
	bool (*act)(struct sim *sim);           /* peers, shortages: true if something happened */
	uint64_t (*due)(const struct sim *sim); /* when it wants to be called */
	void (*frame)(struct sim_side *side, const uint8_t *ip, uint32_t len); /* looks at what is sent, instead */
	void *top;
	bool failed, trace;
	char failure[512];
};

struct sim_attr {
	uint64_t seed, start_ns;
	uint32_t mtu, frame_size, queue_frames, rx_wre, tx_wre;
	struct vma_wire_faults faults[2];
	bool memory_link, checksum_offload, segmentation_offload, no_timestamps[2];
	uint32_t gro_streams_max, max_syn_rate, orphans_max, time_wait_max;
	uint64_t laziness_ns[2];
	void (*watch)(struct sim_side *side); /* sim_watch_hook_nic_queue_pair */
};

static void __attribute__((format(printf, 2, 3))) sim_fail(struct sim *sim, const char *format, ...)
{
	va_list args;

	if (sim->failed)
		return;
	sim->failed = true;
	va_start(args, format);
	vsnprintf(sim->failure, sizeof(sim->failure), format, args);
	va_end(args);
}

/* ---- what the stacks ask of their host ---- */

static uint64_t sim_allocated;      /* not freed yet: of both sides */
static uint32_t sim_alloc_fail_ppm; /* a shortage of memory */
static struct sim_rng sim_alloc_chance;

static void *sim_alloc(size_t size)
{
	void *memory;

	if (sim_alloc_fail_ppm != 0 && sim_rng_next(&sim_alloc_chance) % 1000000 < sim_alloc_fail_ppm)
		return NULL;
	memory = aligned_alloc(64, (size + 63) / 64 * 64);
	if (memory != NULL) {
		memset(memory, 0, size);
		sim_allocated++;
	}
	return memory;
}

/* Not only uncleared: nothing in it is what anybody would expect. */
static void *sim_alloc_bytes(size_t size)
{
	void *memory = sim_alloc(size);

	if (memory != NULL)
		memset(memory, 0xa5, size);
	return memory;
}

static void sim_free(void *memory)
{
	if (memory != NULL)
		sim_allocated--;
	free(memory);
}

static uint64_t sim_now(void *arg)
{
	return ((struct sim_side *)arg)->sim->now_ns;
}

static void sim_on_due_changed(void *arg)
{
	((struct sim_side *)arg)->told = true;
}

/* Freed later, as if somebody still looked at it. */
static void sim_retire_conn(struct vma_tcp_conn *conn, void *arg)
{
	struct sim_side *side = arg;

	if (side->retired_count == SIM_RETIRED) {
		sim_fail(side->sim, "too many connections retired at once");
		return;
	}
	side->retired[side->retired_count++] = conn;
}

static void sim_free_retired(struct sim_side *side)
{
	for (unsigned i = 0; i < side->retired_count; i++)
		vma_tcp_conn_free(side->retired[i]);
	side->retired_count = 0;
}

static struct vma_tcp_host_ops sim_make_host_ops_of_side(struct sim_side *side)
{
	return (struct vma_tcp_host_ops){.now_ns = sim_now,
	                                 .alloc = sim_alloc,
	                                 .alloc_bytes = sim_alloc_bytes,
	                                 .free = sim_free,
	                                 .due = sim_on_due_changed,
	                                 .retire = sim_retire_conn,
	                                 .arg = side};
}

/* ---- beginning and end ---- */

static void sim_assert(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "sim: %s\n", what);
	abort();
}

/* Arenas are kept from seed to seed, by frame size; they are empty in between. */
static struct vma_bufarena *sim_get_arena_of_side(int side, uint32_t frame_size)
{
	static struct vma_bufarena *arenas[2][2];
	struct vma_bufarena **slot = &arenas[side][frame_size > 2048];
	struct vma_bufarena_attr attr = {.capacity = 65536, .frame_size = frame_size};

	if (*slot == NULL)
		sim_assert(vma_bufarena_create(&attr, slot) == 0, "no arena");
	return *slot;
}

static void sim_side_start(struct sim_side *side, const struct sim_attr *attr)
{
	struct vma_ring_attr ring = {.nic = side->nic,
	                             .spill_pool = side->spill,
	                             .rx_wre = attr->rx_wre,
	                             .tx_wre = attr->tx_wre,
	                             .thread_mode = VMA_THREAD_SPIN,
	                             .rx_sw_csum = true,
	                             .name = "sim"};
	struct vma_tcp_attr tcp = {.arena = side->arena,
	                           .host = sim_make_host_ops_of_side(side),
	                           .no_timestamps = attr->no_timestamps[side->number],
	                           .gro_streams_max = attr->gro_streams_max,
	                           .max_syn_rate = attr->max_syn_rate,
	                           .orphans_max = attr->orphans_max,
	                           .time_wait_max = attr->time_wait_max,
	                           .name = side->number == 0 ? "sim0" : "sim1"};

	sim_assert(vma_ring_create(&ring, &side->ring) == 0, "no ring");
	attr->watch(side);
	tcp.ring = side->ring;
	for (unsigned i = 0; i < sizeof(tcp.secret); i++)
		tcp.secret[i] = (uint8_t)sim_rng_next(&side->sim->chance);
	sim_assert(vma_tcp_create(&tcp, &side->tcp) == 0, "no stack");
	side->laziness_ns = attr->laziness_ns[side->number];
	side->known_due_ns = vma_tcp_next_due_ns(side->tcp);
	side->known_busy = vma_tcp_is_busy(side->tcp);
}

static void sim_start(struct sim *sim, const struct sim_attr *attr)
{
	struct vma_wire_pair_attr pair = {.queue_frames = attr->queue_frames,
	                                  .mtu = attr->mtu,
	                                  .virtual_now_ns = &sim->now_ns,
	                                  .memory_link = attr->memory_link,
	                                  .checksum_offload = attr->checksum_offload,
	                                  .segmentation_offload = attr->segmentation_offload};
	struct vma_nic *nics[2];

	*sim = (struct sim){.now_ns = attr->start_ns, .end_ns = UINT64_MAX, .mtu = attr->mtu};
	sim->chance.state = attr->seed;
	sim_alloc_fail_ppm = 0;
	sim_alloc_chance.state = attr->seed;
	for (int i = 0; i < 2; i++) {
		struct vma_bufpool_attr spill = {.max_bufs = 8192, .name = "spill"};

		sim->side[i].sim = sim;
		sim->side[i].number = i;
		pair.arena[i] = spill.arena = sim->side[i].arena = sim_get_arena_of_side(i, attr->frame_size);
		pair.faults[i] = attr->faults[i];
		sim_assert(vma_bufpool_create(&spill, &sim->side[i].spill) == 0, "no pool");
	}
	sim_assert(vma_wire_create_pair(&pair, nics) == 0, "no wire");
	for (int i = 0; i < 2; i++) {
		sim->side[i].nic = nics[i];
		sim_side_start(&sim->side[i], attr);
	}
}

static inline void sim_return_taken_frames(struct sim_side *side)
{
	vma_buf_put_burst(side->arena, side->stolen, side->stolen_count);
	side->stolen_count = 0;
}

/* All frames of a pool that are free now. */
static inline void sim_take_free_frames(struct sim_side *side, struct vma_bufpool *pool)
{
	while (side->stolen_count < SIM_FRAMES_WITHHELD_MAX) {
		unsigned n = SIM_FRAMES_WITHHELD_MAX - side->stolen_count, got;

		got = vma_bufpool_get(pool, side->stolen + side->stolen_count, n < 64 ? n : 64);
		if (got == 0)
			break;
		side->stolen_count += got;
	}
}

static unsigned sim_count_pools_left(const struct sim_side *side)
{
	unsigned n = 0;

	for (unsigned i = 0; i < VMA_BUFPOOL_MAX; i++)
		n += atomic_load(&side->arena->pools[i]) != NULL;
	return n;
}

/* Ends everything, and says what is left that should not be: memory, and frames (a pool is there until the last frame
 * has come home). */
static inline void sim_end_and_check_leaks(struct sim *sim)
{
	for (int i = 0; i < 2; i++) {
		sim_return_taken_frames(&sim->side[i]);
		vma_tcp_destroy(sim->side[i].tcp);
		sim_free_retired(&sim->side[i]);
		vma_ring_destroy(sim->side[i].ring);
	}
	if (sim_allocated != 0)
		sim_fail(sim, "%" PRIu64 " pieces of memory are left", sim_allocated);
	sim_allocated = 0;
	for (int i = 0; i < 2; i++) {
		vma_nic_close(sim->side[i].nic);
		vma_bufpool_retire(sim->side[i].spill, NULL, NULL);
		vma_bufpool_flush_thread(sim->side[i].arena);
		if (sim_count_pools_left(&sim->side[i]) != 0)
			sim_fail(sim, "side %d: frames are left", i);
	}
}

/* ---- rounds ---- */

/* What the internal thread knows of the stack's time. */
static void sim_note_stack_due_time(struct sim *sim, struct sim_side *side)
{
	uint64_t due = vma_tcp_next_due_ns(side->tcp);
	bool busy = vma_tcp_is_busy(side->tcp);

	if (!side->told && due < side->known_due_ns && side->known_due_ns > sim->now_ns)
		sim_fail(sim, "side %d: due in %" PRIu64 " ns, which nobody was told", side->number, due - sim->now_ns);
	if (!side->told && busy && !side->known_busy)
		sim_fail(sim, "side %d: busy, which nobody was told", side->number);
	if (side->told || side->known_due_ns <= sim->now_ns)
		side->known_due_ns = due;
	side->known_busy = busy;
	side->told = false;
}

/* In the queue pair, or before it, if it has no buffer for them and they are not delayed any more. */
static bool sim_has_frames_waiting(const struct sim_side *side)
{
	struct vma_nic *other = side->sim->side[1 - side->number].nic;
	struct vma_wire_counts counts;

	vma_wire_read_counters(other, &counts);
	if (counts.delivered != side->polled)
		return true;
	return vma_wire_next_arrival_ns(other) == UINT64_MAX &&
	       counts.sent + counts.duplicated != counts.delivered + counts.lost + counts.no_flow + counts.queue_full;
}

static bool sim_drive_ring_of_side(struct sim *sim, struct sim_side *side)
{
	bool timer = side->known_due_ns <= sim->now_ns, moved = false;
	int n;

	if (!timer && sim->now_ns < side->next_drive_ns)
		return false;
	for (int i = 0; i < 64 && (n = vma_ring_progress(side->ring)) != 0; i++)
		moved = true;
	if (moved)
		side->next_drive_ns = sim->now_ns + side->laziness_ns;
	sim_free_retired(side);
	return moved;
}

static uint64_t sim_next_event_ns(struct sim *sim)
{
	uint64_t next = sim->due != NULL ? sim->due(sim) : UINT64_MAX;

	for (int i = 0; i < 2; i++) {
		struct sim_side *side = &sim->side[i];
		uint64_t arrives = vma_wire_next_arrival_ns(side->nic);

		if (side->known_due_ns < next)
			next = side->known_due_ns;
		if (arrives < next)
			next = arrives;
		if (sim_has_frames_waiting(side) && side->next_drive_ns < next)
			next = side->next_drive_ns;
	}
	return next;
}

/* Does what can be done now. False: nothing could. */
static bool sim_run_once(struct sim *sim)
{
	bool moved = false;
	int first = (int)(sim_rng_next(&sim->chance) & 1);

	vma_wire_drive_both_ends(sim->side[0].nic);
	for (int i = 0; i < 2; i++)
		moved |= sim_drive_ring_of_side(sim, &sim->side[first ^ i]);
	if (sim->act != NULL)
		moved |= sim->act(sim);
	vma_wire_drive_both_ends(sim->side[0].nic);
	for (int i = 0; i < 2; i++)
		sim_note_stack_due_time(sim, &sim->side[i]);
	sim->rounds++;
	return moved;
}

/* Until done says so: true. False: nothing is due any more, the time is over, or something failed. */
static inline bool sim_run_until_done(struct sim *sim, bool (*done)(struct sim *sim))
{
	unsigned stuck = 0, restless = 0;

	while (!sim->failed) {
		bool moved = sim_run_once(sim);
		uint64_t next;

		if (done(sim))
			return true;
		if (moved) {
			if (++restless > 1000000)
				sim_fail(sim, "no end of what happens at one moment");
			continue;
		}
		restless = 0;
		next = sim_next_event_ns(sim);
		if (next == UINT64_MAX)
			return false;
		if (next > sim->now_ns) {
			stuck = 0;
			sim->now_ns = next;
		} else { /* due, and does not move: the wheel's tick is a microsecond; or a frame finds no buffer */
			sim->now_ns += 1000ULL << (stuck / 64 < 10 ? stuck / 64 : 10);
			if (++stuck > 100000)
				sim_fail(sim,
				         "something is due all the time, and nothing moves: timers %d %d, on the wire "
				         "%d %d, "
				         "frames %d %d, peers %d",
				         sim->side[0].known_due_ns <= sim->now_ns,
				         sim->side[1].known_due_ns <= sim->now_ns,
				         vma_wire_next_arrival_ns(sim->side[0].nic) <= sim->now_ns,
				         vma_wire_next_arrival_ns(sim->side[1].nic) <= sim->now_ns,
				         sim_has_frames_waiting(&sim->side[0]), sim_has_frames_waiting(&sim->side[1]),
				         sim->due != NULL && sim->due(sim) <= sim->now_ns);
		}
		if (sim->now_ns > sim->end_ns)
			return false;
	}
	return false;
}

#endif
