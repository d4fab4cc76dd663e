/*
 * ring_housekeeping - housekeeping: the internal thread's work on ring contexts.
 *
 *   armed ── a packet: one wake-up ──> awake ── at each interval: have others driven it? then nothing; else drive it
 *     ^                                                │
 *     └── there was nothing to drive ──────────────────┘
 *
 * The descriptor of a ring is in the thread's set only while the ring is armed. So a thread may spin on a ring, or
 * sleep on it and get a packet now and then. That costs the internal thread a tick per interval
 * (VMA_PROGRESS_ENGINE_INTERVAL) and no wake-up per packet. A ring without traffic costs nothing.
 *
 * VMA_INTERNAL_THREAD_ARM_CQ: the ring is armed again at once, whether others drive or not. Only while another thread
 * has the flag, it cannot be, and is tried again ARM_RETRY_NS later.
 *
 * While there is a busy poller (wait/busy_poller.c) the interval is BUSY_POLL_NS. No other thread would hear of a
 * packet if the busy poller lost its core. Looking costs less than the busy poller saves.
 */
#include <sys/epoll.h>

#include "internal.h"
#include "../wait/wait.h"

#define BUSY_POLL_NS (1 * MS)
#define ARM_RETRY_NS (MS / 10)
#define SEND_LATER_NS (1 * MS)
#define SEND_LATER_COALESCE_NS (SEND_LATER_NS / 4) /* a turn that comes anyway takes along what is as old as this */
#define SENDS_BUSY 64 /* frames between two looks: a ring context that sends more is looked at, not slept on */
#define END_FIRST_NS (2 * MS)
#define END_LAST_NS (1000 * MS)
#define LEFT_TURNS 8 /* 2 to 256 ms: grace periods take two or three */

/* Deadlines are the thread's own, 0: none. */
static struct {
	uint64_t drive_ns, end_ns;
	uint64_t end_step_ns; /* between looks whether a retired ring context has ended */

	_Alignas(64) _Atomic uint64_t later; /* ring contexts, by bit, with frames sent LATER */
	_Atomic uint64_t later_since_ns;     /* when the first of them was said, roughly */
	_Atomic uint64_t sending;            /* ring contexts, by bit, that send much while they are armed */
	_Atomic bool busy_polled;            /* somebody has begun to busy-poll since the last turn */
	_Atomic uint32_t ending;             /* retired ring contexts */
	_Atomic uint32_t left;               /* turns that end what a closed socket has retired */
} housekeeping;

/* ---- frames sent LATER ---- */

/*
 * A bit that is set already has been said already, and a look at it is enough. The frame was queued before (A), under
 * the transmit flag, whose release is sequentially consistent, as are the look at the bit (B) and the exchange by which
 * the thread takes the bits (C), after which it looks for frames (D). Does B find the bit, then C comes after B, and so
 * D after A: the thread sees the frame. Does it not, then the bit is set here, and another C comes: the thread wakes no
 * later than in a millisecond (ring_housekeeping_next_due_ns looks at the bits, see sleep_time.h), and is woken only if
 * it would sleep longer. The owner of a biased flag (VMA_THREAD_MODE=0) releases it by a plain store. So between C and
 * D stands a barrier in all threads: after it the thread sees A, or the owner's B comes after C and does not find the
 * bit. So a busy sender, for whom the thread looks at its ring context once a millisecond anyway, wakes
 * nobody.
 */
void vma_engine_flush_rings_within_1ms(uint64_t ring_ctxs)
{
	uint64_t now;

	if ((atomic_load(&housekeeping.later) & ring_ctxs) == ring_ctxs)
		return;
	now = vma_now_ns();
	if (atomic_load(&housekeeping.later) == 0)
		atomic_store_explicit(&housekeeping.later_since_ns, now, memory_order_relaxed);
	if (atomic_fetch_or(&housekeeping.later, ring_ctxs) == 0)
		internal_thread_wake_no_later_than(now + SEND_LATER_NS);
}

static bool ring_ctx_has_tcp_stack(const struct vma_ring_ctx *ring_ctx)
{
	return atomic_load_explicit(&ring_ctx->tcp, memory_order_relaxed) != NULL;
}

static void flush_ring_if_in_mask(struct vma_ring_ctx *ring_ctx, void *arg)
{
	if (!(*(const uint64_t *)arg & vma_ring_ctx_bit(ring_ctx)))
		return;
	vma_ring_flush_tx(ring_ctx->ring);
	if (ring_ctx_has_tcp_stack(ring_ctx)) /* sends that were queued */
		vma_ring_progress_and_notify(ring_ctx->ring);
}

/* A time that is another's, by a race of two senders, only has frames leave a little earlier. */
static uint64_t later_frames_due_ns(uint64_t after_ns)
{
	return atomic_load_explicit(&housekeeping.later_since_ns, memory_order_relaxed) + after_ns;
}

/* When the next turn is due for them. */
static uint64_t housekeeping_flush_delayed_sends_when_due(uint64_t now)
{
	uint64_t ring_ctxs;

	if (atomic_load(&housekeeping.later) == 0)
		return NO_DEADLINE;
	if (now < later_frames_due_ns(SEND_LATER_COALESCE_NS))
		return later_frames_due_ns(SEND_LATER_NS);
	ring_ctxs = atomic_exchange(&housekeeping.later, 0);
	vma_ring_membarrier_if_any_biased();
	ring_ctxs_each(flush_ring_if_in_mask, &ring_ctxs);
	return NO_DEADLINE;
}

uint64_t ring_housekeeping_next_due_ns(void)
{
	uint64_t later = atomic_load(&housekeeping.later) != 0 ? later_frames_due_ns(SEND_LATER_NS) : NO_DEADLINE;
	uint64_t busy_polled = atomic_load(&housekeeping.busy_polled) ? vma_now_ns() + BUSY_POLL_NS : NO_DEADLINE;

	return later < busy_polled ? later : busy_polled;
}

/* ---- ring contexts that nobody drives ---- */

bool ring_housekeeping_arm_and_watch_ring(struct vma_ring_ctx *ring_ctx)
{
	const bool in_set = ring_ctx->armed;

	ring_ctx->armed = true;
	ring_ctx_count_arm(ring_ctx);
	if (vma_ring_arm(ring_ctx->ring) == 0 &&
	    (in_set ||
	     internal_epoll_add_fd(vma_ring_fd(ring_ctx->ring), EPOLLIN, INTERNAL_RING_CTX, ring_ctx->id) == 0))
		return true;
	if (in_set)
		internal_epoll_remove_fd(vma_ring_fd(ring_ctx->ring));
	ring_ctx->armed = false;
	return false;
}

void ring_housekeeping_unwatch_ring_fd(struct vma_ring_ctx *ring_ctx)
{
	if (ring_ctx->armed)
		internal_epoll_remove_fd(vma_ring_fd(ring_ctx->ring));
	ring_ctx->armed = false;
}

/* VMA_INTERNAL_THREAD_ARM_CQ */
static bool internal_thread_arms_cq(void)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return engine != NULL && engine->conf.internal_thread_arm_cq;
}

bool ring_housekeeping_drain(struct vma_ring_ctx *ring_ctx, int64_t max)
{
	int64_t total = 0;
	int n;

	do {
		n = vma_ring_progress_and_notify(ring_ctx->ring);
		total += n;
	} while (n > 0 && total < max);
	return n == 0;
}

static void drain_and_arm_ring_ctx(struct vma_ring_ctx *ring_ctx, int64_t max)
{
	if (!ring_housekeeping_drain(ring_ctx, max) || !ring_housekeeping_arm_and_watch_ring(ring_ctx))
		ring_housekeeping_unwatch_ring_fd(ring_ctx);
}

/* The packet that an armed ring context was waiting for. */
void ring_housekeeping_handle_ring_readable(struct vma_engine *engine, uint64_t number)
{
	struct vma_ring_ctx *ring_ctx = ring_ctx_of_id((uint32_t)number);

	if (ring_ctx == NULL)
		return;
	vma_cq_count_wakeup(vma_ring_cq(ring_ctx->ring));
	if (tcp_housekeeping_handle_ring_readable(ring_ctx, &engine->conf))
		return;
	if (internal_thread_arms_cq())
		drain_and_arm_ring_ctx(ring_ctx, engine->conf.progress_engine_wce_max);
	else
		ring_housekeeping_unwatch_ring_fd(ring_ctx);
}

static uint64_t ring_ctx_sent_since_last_look(struct vma_ring_ctx *ring_ctx)
{
	const uint64_t before = ring_ctx->sent_seen;

	ring_ctx->sent_seen =
	        atomic_load_explicit(&vma_ring_stats(ring_ctx->ring)->tx.tx_packets, memory_order_relaxed);
	return ring_ctx->sent_seen - before;
}

void ring_housekeeping_wake_for_sending_ring(struct vma_ring_ctx *ring_ctx)
{
	if (internal_thread_arms_cq())
		return;
	if (atomic_fetch_or(&housekeeping.sending, vma_ring_ctx_bit(ring_ctx)) == 0)
		internal_thread_wake();
}

static void disarm_ring_if_in_mask(struct vma_ring_ctx *ring_ctx, void *arg)
{
	if (!(*(const uint64_t *)arg & vma_ring_ctx_bit(ring_ctx)) || !ring_ctx->armed)
		return;
	ring_housekeeping_unwatch_ring_fd(ring_ctx);
	ring_ctx_sent_since_last_look(ring_ctx);
	ring_disarm_schedule(ring_ctx);
}

static void housekeeping_disarm_sending_rings(void)
{
	uint64_t ring_ctxs;

	if (atomic_load(&housekeeping.sending) == 0)
		return;
	ring_ctxs = atomic_exchange(&housekeeping.sending, 0);
	ring_ctxs_each(disarm_ring_if_in_mask, &ring_ctxs);
}

/* Whether there was anything, or there is somebody at it. */
static bool ring_housekeeping_drive(struct vma_ring_ctx *ring_ctx, int64_t max)
{
	int64_t total = 0;
	int n = 0;

	while (total < max) {
		n = vma_ring_progress_and_notify(ring_ctx->ring);
		if (n <= 0)
			break;
		total += n;
	}
	return total > 0 || n < 0;
}

static void ring_housekeeping_poll_or_arm_ring(struct vma_ring_ctx *ring_ctx, void *arg)
{
	const uint64_t driven = atomic_load_explicit(&ring_ctx->driven, memory_order_relaxed);

	if (ring_ctx->armed || ring_ctx_has_tcp_stack(ring_ctx) || ring_ctx_has_timed_sleeper(ring_ctx))
		return;
	if (internal_thread_arms_cq())
		drain_and_arm_ring_ctx(ring_ctx, *(const int64_t *)arg);
	else if (driven != ring_ctx->driven_seen)
		ring_ctx->driven_seen = driven;
	else if (!ring_housekeeping_drive(ring_ctx, *(const int64_t *)arg) &&
	         ring_ctx_sent_since_last_look(ring_ctx) < SENDS_BUSY)
		ring_housekeeping_arm_and_watch_ring(ring_ctx);
}

static void count_unarmed_ring_without_tcp(struct vma_ring_ctx *ring_ctx, void *arg)
{
	*(unsigned *)arg += !ring_ctx->armed && !ring_ctx_has_tcp_stack(ring_ctx);
}

static bool conf_enables_periodic_ring_polling(const struct vma_conf *conf)
{
	return conf->internal_thread_arm_cq ||
	       (conf->progress_engine_interval != 0 && conf->progress_engine_wce_max != 0);
}

bool ring_housekeeping_drives(void)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return engine != NULL && conf_enables_periodic_ring_polling(&engine->conf);
}

/*
 * The busy poller is counted before (A). So, as with LATER frames, the thread sees it in this look, or in the one at
 * `busy_polled` before it sleeps.
 */
void ring_housekeeping_wake_for_busy_poller(void)
{
	if (!atomic_load(&housekeeping.busy_polled) && !atomic_exchange(&housekeeping.busy_polled, true))
		internal_thread_wake_no_later_than(vma_now_ns() + BUSY_POLL_NS);
}

static void set_if_ring_has_busy_poller(struct vma_ring_ctx *ring_ctx, void *arg)
{
	*(bool *)arg |= busy_poller_exists(ring_ctx->id % 64);
}

static uint64_t housekeeping_interval_ns(const struct vma_conf *conf)
{
	const uint64_t interval =
	        conf->internal_thread_arm_cq ? ARM_RETRY_NS : (uint64_t)conf->progress_engine_interval * MS;
	bool busy_polled = atomic_load(&housekeeping.busy_polled) && atomic_exchange(&housekeeping.busy_polled, false);

	if (!busy_polled)
		ring_ctxs_each(set_if_ring_has_busy_poller, &busy_polled);
	return busy_polled && interval > BUSY_POLL_NS ? BUSY_POLL_NS : interval;
}

static void housekeeping_drive_rings(const struct vma_conf *conf, uint64_t now)
{
	int64_t max = conf->progress_engine_wce_max;
	const uint64_t interval = housekeeping_interval_ns(conf);
	unsigned awake = 0;

	if (!conf_enables_periodic_ring_polling(conf)) {
		housekeeping.drive_ns = 0;
		return;
	}
	if (housekeeping.drive_ns != 0 && now >= housekeeping.drive_ns) {
		ring_ctxs_each(ring_housekeeping_poll_or_arm_ring, &max);
		housekeeping.drive_ns = 0;
	}
	ring_ctxs_each(count_unarmed_ring_without_tcp, &awake);
	if (awake == 0)
		housekeeping.drive_ns = 0;
	else if (housekeeping.drive_ns == 0 || housekeeping.drive_ns > now + interval)
		housekeeping.drive_ns = now + interval;
}

uint64_t ring_housekeeping_run(struct vma_engine *engine, uint64_t now)
{
	uint64_t next = housekeeping_flush_delayed_sends_when_due(now);

	housekeeping_disarm_sending_rings();
	housekeeping_drive_rings(&engine->conf, now);
	if (housekeeping.drive_ns != 0 && housekeeping.drive_ns < next)
		next = housekeeping.drive_ns;
	return next;
}

/* ---- retired ring contexts ---- */

void ring_housekeeping_wake_to_reclaim_ring(void)
{
	atomic_fetch_add(&housekeeping.ending, 1);
	internal_thread_wake();
}

void vma_ring_files_wake_reclaim_slow(void)
{
	atomic_store(&housekeeping.left, LEFT_TURNS);
	internal_thread_wake();
}

void ring_housekeeping_remove(struct vma_ring_ctx *ring_ctx)
{
	internal_epoll_remove_fd(vma_ring_fd(ring_ctx->ring));
	atomic_fetch_sub(&housekeeping.ending, 1);
}

/*
 * Retired ring contexts give their queue pairs back only when they are ended, which takes everybody who is inside to
 * leave: microseconds, as a rule. Who stays inside for long is waited for with ever longer pauses.
 */
uint64_t ring_housekeeping_reclaim_due_with_backoff(uint64_t now)
{
	const uint32_t left = atomic_load(&housekeeping.left);

	if (atomic_load(&housekeeping.ending) == 0 && left == 0) {
		housekeeping.end_ns = housekeeping.end_step_ns = 0;
		return NO_DEADLINE;
	}
	if (housekeeping.end_ns > now)
		return housekeeping.end_ns;
	if (left != 0)
		atomic_store(&housekeeping.left, left - 1); /* one that was set anew meanwhile may be a turn short */
	housekeeping.end_step_ns = housekeeping.end_step_ns == 0 ? END_FIRST_NS : housekeeping.end_step_ns * 2;
	if (housekeeping.end_step_ns > END_LAST_NS)
		housekeeping.end_step_ns = END_LAST_NS;
	return housekeeping.end_ns = now + housekeeping.end_step_ns;
}

void ring_housekeeping_reset_in_fork_child(void)
{
	housekeeping.drive_ns = housekeeping.end_ns = housekeeping.end_step_ns = 0;
	atomic_store(&housekeeping.later, 0);
	atomic_store(&housekeeping.sending, 0);
	atomic_store(&housekeeping.busy_polled, false);
	atomic_store(&housekeeping.ending, 0);
	atomic_store(&housekeeping.left, 0);
}
