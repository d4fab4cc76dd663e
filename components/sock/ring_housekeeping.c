/*
 * ring_housekeeping - housekeeping: what the internal thread does with ring contexts.
 *
 *   armed ── a packet: one wake-up ──> awake ── at each interval: have others driven it? then nothing; else drive it
 *     ^                                                │
 *     └── there was nothing to drive ──────────────────┘
 *
 * The descriptor of a ring is in the thread's set only while the ring is armed. So a thread that spins on a ring, or
 * sleeps on it and gets a packet now and then, costs the internal thread a tick per interval
 * (VMA_PROGRESS_ENGINE_INTERVAL) and no wake-up per packet. A ring without traffic costs nothing.
 *
 * As long as there is a busy poller (busy_poller.c) the interval is BUSY_POLL_NS: no other thread would hear of a
 * packet if the busy poller lost its core. Looking costs less than the busy poller saves.
 */
#include <sys/epoll.h>

#include "internal_priv.h"
#include "wait_priv.h"

#define BUSY_POLL_NS (1 * MS)
#define LATER_NS (1 * MS)
#define LATER_SOON_NS (LATER_NS / 4) /* a turn that comes anyway takes along what is as old as this */
#define SENDS_BUSY 64                /* frames between two looks: a rail that sends more is looked at, not slept on */
#define END_FIRST_NS (2 * MS)
#define END_LAST_NS (1000 * MS)

/* Deadlines are the thread's own, 0: none. */
static struct {
	uint64_t drive_ns, end_ns;
	uint64_t end_step_ns; /* between looks whether a retired rail has ended */

	_Alignas(64) _Atomic uint64_t later; /* rails, by bit, with frames sent LATER */
	_Atomic uint64_t later_since_ns;     /* when the first of them was said, roughly */
	_Atomic uint64_t sending;            /* rails, by bit, that send much while they are armed */
	_Atomic bool busy_polled;            /* somebody has begun to busy-poll since the last turn */
	_Atomic uint32_t ending;             /* retired rails */
} housekeeping;

/* ---- frames sent LATER ---- */

/*
 * A bit that is set already has been said already, and a look at it is enough. The frame was queued before (A), under
 * the transmit flag, whose release is sequentially consistent, as are the look at the bit (B) and the exchange by which
 * the thread takes the bits (C), after which it looks for frames (D). Does B find the bit, then C comes after B, and so
 * D after A: the thread sees the frame. Does it not, then the bit is set here, and another C comes: the thread wakes no
 * later than in a millisecond (ring_housekeeping_again looks at the bits, see sleep_time.h), and is woken only if it
 * would sleep longer. So a busy sender, for whom the thread looks at its rail once a millisecond anyway, wakes nobody.
 */
void vma_engine_later(uint64_t rails)
{
	uint64_t now;

	if ((atomic_load(&housekeeping.later) & rails) == rails)
		return;
	now = vma_now_ns();
	if (atomic_load(&housekeeping.later) == 0)
		atomic_store_explicit(&housekeeping.later_since_ns, now, memory_order_relaxed);
	if (atomic_fetch_or(&housekeeping.later, rails) == 0)
		internal_wake_by(now + LATER_NS);
}

static bool has_stack(const struct vma_rail *rail)
{
	return atomic_load_explicit(&rail->tcp, memory_order_relaxed) != NULL;
}

static void flush_bit(struct vma_rail *rail, void *arg)
{
	if (!(*(const uint64_t *)arg & vma_rail_bit(rail)))
		return;
	vma_ring_flush(rail->ring);
	if (has_stack(rail)) /* sends that were queued */
		vma_ring_progress(rail->ring);
}

/* A time that is another's, by a race of two senders, only has frames leave a little earlier. */
static uint64_t later_due(uint64_t after_ns)
{
	return atomic_load_explicit(&housekeeping.later_since_ns, memory_order_relaxed) + after_ns;
}

/* When the next turn is due for them. */
static uint64_t turn_later(uint64_t now)
{
	uint64_t rails;

	if (atomic_load(&housekeeping.later) == 0)
		return NO_DEADLINE;
	if (now < later_due(LATER_SOON_NS))
		return later_due(LATER_NS);
	rails = atomic_exchange(&housekeeping.later, 0);
	rails_each(flush_bit, &rails);
	return NO_DEADLINE;
}

uint64_t ring_housekeeping_again(void)
{
	uint64_t later = atomic_load(&housekeeping.later) != 0 ? later_due(LATER_NS) : NO_DEADLINE;
	uint64_t busy_polled = atomic_load(&housekeeping.busy_polled) ? vma_now_ns() + BUSY_POLL_NS : NO_DEADLINE;

	return later < busy_polled ? later : busy_polled;
}

/* ---- rails that nobody drives ---- */

bool ring_housekeeping_arm(struct vma_rail *rail)
{
	const bool in_set = rail->armed;

	rail->armed = true;
	rail_note_arm(rail);
	if (vma_ring_arm(rail->ring) == 0 &&
	    (in_set || internal_set_add(vma_ring_fd(rail->ring), EPOLLIN, INTERNAL_RAIL, rail->id) == 0))
		return true;
	if (in_set)
		internal_set_remove(vma_ring_fd(rail->ring));
	rail->armed = false;
	return false;
}

void ring_housekeeping_disarm(struct vma_rail *rail)
{
	if (rail->armed)
		internal_set_remove(vma_ring_fd(rail->ring));
	rail->armed = false;
}

/* The packet that an armed rail was waiting for. */
void ring_housekeeping_take_event(struct vma_engine *engine, uint64_t number)
{
	struct vma_rail *rail = rail_of_id((uint32_t)number);

	if (rail != NULL && !tcp_housekeeping_take_event(rail, &engine->conf))
		ring_housekeeping_disarm(rail);
}

static uint64_t sent_since(struct vma_rail *rail)
{
	const uint64_t before = rail->sent_seen;

	rail->sent_seen = atomic_load_explicit(&vma_ring_stats(rail->ring)->tx.tx_packets, memory_order_relaxed);
	return rail->sent_seen - before;
}

void ring_housekeeping_note_sends(struct vma_rail *rail)
{
	if (atomic_fetch_or(&housekeeping.sending, vma_rail_bit(rail)) == 0)
		internal_wake();
}

static void disarm_sender(struct vma_rail *rail, void *arg)
{
	if (!(*(const uint64_t *)arg & vma_rail_bit(rail)) || !rail->armed)
		return;
	ring_housekeeping_disarm(rail);
	sent_since(rail);
	ring_disarm_ask(rail);
}

static void turn_sending(void)
{
	uint64_t rails;

	if (atomic_load(&housekeeping.sending) == 0)
		return;
	rails = atomic_exchange(&housekeeping.sending, 0);
	rails_each(disarm_sender, &rails);
}

/* Whether there was anything, or there is somebody at it. */
static bool ring_housekeeping_drive(struct vma_rail *rail, int64_t max)
{
	int64_t total = 0;
	int n = 0;

	while (total < max) {
		n = vma_ring_progress(rail->ring);
		if (n <= 0)
			break;
		total += n;
	}
	return total > 0 || n < 0;
}

static void ring_housekeeping_look_after(struct vma_rail *rail, void *arg)
{
	const uint64_t driven = atomic_load_explicit(&rail->driven, memory_order_relaxed);

	if (rail->armed || has_stack(rail))
		return;
	if (driven != rail->driven_seen)
		rail->driven_seen = driven;
	else if (!ring_housekeeping_drive(rail, *(const int64_t *)arg) && sent_since(rail) < SENDS_BUSY)
		ring_housekeeping_arm(rail);
}

static void count_awake(struct vma_rail *rail, void *arg)
{
	*(unsigned *)arg += !rail->armed && !has_stack(rail);
}

static bool conf_has_rail_housekeeping(const struct vma_conf *conf)
{
	return conf->progress_engine_interval != 0 && conf->progress_engine_wce_max != 0;
}

bool ring_housekeeping_drives(void)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return engine != NULL && conf_has_rail_housekeeping(&engine->conf);
}

/* Leading is counted before (A); as for LATER frames, this look, or the one at `busy_polled` before the thread sleeps, sees it.
 */
void ring_housekeeping_note_busy_poller(void)
{
	if (!atomic_load(&housekeeping.busy_polled) && !atomic_exchange(&housekeeping.busy_polled, true))
		internal_wake_by(vma_now_ns() + BUSY_POLL_NS);
}

static void look_led(struct vma_rail *rail, void *arg)
{
	*(bool *)arg |= busy_poller_exists(rail->id % 64);
}

static uint64_t interval_of(const struct vma_conf *conf)
{
	const uint64_t interval = (uint64_t)conf->progress_engine_interval * MS;
	bool busy_polled = atomic_load(&housekeeping.busy_polled) && atomic_exchange(&housekeeping.busy_polled, false);

	if (!busy_polled)
		rails_each(look_led, &busy_polled);
	return busy_polled && interval > BUSY_POLL_NS ? BUSY_POLL_NS : interval;
}

static void turn_driving(const struct vma_conf *conf, uint64_t now)
{
	int64_t max = conf->progress_engine_wce_max;
	const uint64_t interval = interval_of(conf);
	unsigned awake = 0;

	if (!conf_has_rail_housekeeping(conf)) {
		housekeeping.drive_ns = 0;
		return;
	}
	if (housekeeping.drive_ns != 0 && now >= housekeeping.drive_ns) {
		rails_each(ring_housekeeping_look_after, &max);
		housekeeping.drive_ns = 0;
	}
	rails_each(count_awake, &awake);
	if (awake == 0)
		housekeeping.drive_ns = 0;
	else if (housekeeping.drive_ns == 0 || housekeeping.drive_ns > now + interval)
		housekeeping.drive_ns = now + interval;
}

uint64_t ring_housekeeping_turn(struct vma_engine *engine, uint64_t now)
{
	uint64_t next = turn_later(now);

	turn_sending();
	turn_driving(&engine->conf, now);
	if (housekeeping.drive_ns != 0 && housekeeping.drive_ns < next)
		next = housekeeping.drive_ns;
	return next;
}

/* ---- retired rails ---- */

void ring_housekeeping_expect_end(void)
{
	atomic_fetch_add(&housekeeping.ending, 1);
	internal_wake();
}

void ring_housekeeping_forget(struct vma_rail *rail)
{
	internal_set_remove(vma_ring_fd(rail->ring));
	atomic_fetch_sub(&housekeeping.ending, 1);
}

/*
 * Retired rails give their queue pairs back only when they are ended, which takes everybody who is inside to leave:
 * microseconds, as a rule. Who stays inside for long is waited for with ever longer pauses.
 */
uint64_t ring_housekeeping_turn_ending(uint64_t now)
{
	if (atomic_load(&housekeeping.ending) == 0) {
		housekeeping.end_ns = housekeeping.end_step_ns = 0;
		return NO_DEADLINE;
	}
	if (housekeeping.end_ns > now)
		return housekeeping.end_ns;
	housekeeping.end_step_ns = housekeeping.end_step_ns == 0 ? END_FIRST_NS : housekeeping.end_step_ns * 2;
	if (housekeeping.end_step_ns > END_LAST_NS)
		housekeeping.end_step_ns = END_LAST_NS;
	return housekeeping.end_ns = now + housekeeping.end_step_ns;
}

void ring_housekeeping_fork_child(void)
{
	housekeeping.drive_ns = housekeeping.end_ns = housekeeping.end_step_ns = 0;
	atomic_store(&housekeeping.later, 0);
	atomic_store(&housekeeping.sending, 0);
	atomic_store(&housekeeping.busy_polled, false);
	atomic_store(&housekeeping.ending, 0);
}
