/*
 * busy_poller_disarm_rings_with_sleepers - a thread that spins and delivers to threads that sleep. While there is one,
 * the watcher of the ring need not hear of packets.
 *
 * The kernel wakes a ring's watcher for each packet, even if another thread takes it. That is a wake-up on the sender's
 * core and two switches on the watcher's, each time for nothing, as long as another thread spins. So a spinner that has
 * delivered to others, and goes on, unarms the ring. It arms the ring again when it leaves, be it to its own work or to
 * sleep. A spinner that only waits for its own data pays neither. A busy poller drives its ring. If a ring is no more
 * among those it waits for, the ring is given up at the next look. While its core is taken from it no thread hears of
 * packets. So the internal thread looks each millisecond while there is a busy poller, and drives if at two looks no
 * other thread has (engine/ring_housekeeping.c). Without the internal thread there are no busy pollers.
 *
 * `busy_polls` has for the rings of each bit the number of busy pollers, and the mark UNARMED. The mark says that one
 * of them has unarmed, or that a watcher has not armed because of them.
 *   - A ring without a watcher is unarmed as engine/ring_disarm.c says. Else the thread that unarms does so, with
 *     the receive flag, if there is a busy poller at that moment. It has set UNARMED (A) by the same step that finds
 *     the busy poller.
 *   - A watcher claims the watch (B), then either finds a busy poller and sets UNARMED by the same step (C), or arms. A
 *     watcher that leaves gives the watch up (B), then does C, or looks for another.
 *   - The last busy poller to leave takes the count to zero and UNARMED down in one step (D). If UNARMED was up, it
 *     looks for the watcher and arms, or wakes it, to arm by itself. If there is no watcher, it wakes a sleeper, which
 *     claims the watch.
 *
 * So UNARMED is only ever up while there is a busy poller, and the D of the last of them follows every A and C. After
 * A: the arm that follows D needs the receive flag. So it comes after the unarming, or the flag is busy and the watcher
 * is woken. After C: D's look comes after B and finds the watcher, or that there is none. (A thread that claims the
 * watch after that look finds only a later busy poller, whose D is still to come.) An arm that comes late, when there
 * are other busy pollers already, costs needless wake-ups until it is taken down again.
 */
#include "../engine/internal.h"
#include "wait.h"

enum { UNARMED = 1, BUSY_POLLER = 2 };

static _Atomic uint32_t busy_polls[64];

/* Sets UNARMED if there is a busy poller. */
bool busy_poller_exists_mark_ring_unarmed(unsigned bit)
{
	uint32_t word = atomic_load(&busy_polls[bit]);

	while (word >= BUSY_POLLER)
		if (atomic_compare_exchange_weak(&busy_polls[bit], &word, word | UNARMED))
			return true;
	return false;
}

bool busy_poller_exists(unsigned bit)
{
	return atomic_load(&busy_polls[bit]) >= BUSY_POLLER;
}

static bool busy_poller_begin(struct vma_thread *self, unsigned bit)
{
	if (!ring_housekeeping_drives())
		return false;
	atomic_fetch_add(&busy_polls[bit], BUSY_POLLER);
	self->busy_polls |= 1ULL << bit;
	ring_housekeeping_wake_for_busy_poller();
	return true;
}

void busy_poller_disarm_rings_with_sleepers(struct vma_thread *self, uint64_t rings)
{
	for (; rings != 0; rings &= rings - 1) {
		const unsigned bit = (unsigned)__builtin_ctzll(rings);

		if (!ring_bit_has_sleepers(bit))
			continue;
		if ((self->busy_polls & 1ULL << bit) == 0 && !busy_poller_begin(self, bit))
			continue;
		for (struct vma_ring_ctx *ring_ctx = first_ring_ctx(bit); ring_ctx != NULL;
		     ring_ctx = next_ring_ctx(ring_ctx))
			ring_disarm_busy_polled(ring_ctx);
	}
}

static void arm_ring_for_watchers(unsigned bit, const struct vma_thread *self, bool may_drive)
{
	bool unwatched = false;

	for (struct vma_ring_ctx *ring_ctx = first_ring_ctx(bit); ring_ctx != NULL;
	     ring_ctx = next_ring_ctx(ring_ctx)) {
		struct vma_thread *watcher = atomic_load(&ring_ctx->watcher);

		unwatched |= watcher == NULL;
		if (watcher == NULL)
			continue;
		if (may_drive)
			ring_ctx_count_arm(ring_ctx);
		if (!may_drive || vma_ring_arm(ring_ctx->ring) != 0)
			vma_thread_wake(watcher);
	}
	if (unwatched)
		wake_next_sleeper_to_watch_ring(bit, self);
}

void busy_poller_end(struct vma_thread *self, uint64_t rings, bool may_drive)
{
	rings &= self->busy_polls;
	self->busy_polls &= ~rings;
	for (; rings != 0; rings &= rings - 1) {
		const unsigned bit = (unsigned)__builtin_ctzll(rings);
		uint32_t word = atomic_load(&busy_polls[bit]), left;

		do
			left = word < 2 * BUSY_POLLER ? 0 : word - BUSY_POLLER;
		while (!atomic_compare_exchange_weak(&busy_polls[bit], &word, left));
		if (left == 0 && (word & UNARMED) != 0)
			arm_ring_for_watchers(bit, self, may_drive);
	}
}

void busy_poller_reset_in_fork_child(void)
{
	for (unsigned bit = 0; bit < 64; bit++)
		atomic_store(&busy_polls[bit], 0);
}
