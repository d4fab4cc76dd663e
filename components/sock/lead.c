/*
 * lead - a thread that spins and delivers to threads that sleep leads them: their watcher need not hear of packets.
 *
 * The kernel wakes a ring's watcher for each packet, whoever takes it: on the sender's core a wake-up, on the watcher's
 * two switches, each time for nothing, as long as somebody spins. So a spinner that has delivered to others, and goes
 * on, unarms the ring, and arms it again when it leaves, be it to its own work or to sleep. One that only waits for
 * what is its own pays neither. Who leads a ring drives it: a ring that is no more among those it waits for is given up
 * at the next look. While its core is taken from it nobody hears; so the internal thread looks each millisecond as long
 * as somebody leads, and drives if at two looks nobody else has (rail_care.c). Without it nobody leads.
 *
 * `leads`, for the rings of each bit: how many lead, and whether one of them has unarmed, or a watcher has not armed
 * because of them (UNARMED).
 *   - a ring without a watcher is unarmed as rail_rest.c says; else who unarms does so, with the receive flag, if
 *     somebody leads at that moment, having set UNARMED (A) by the same step that finds a leader;
 *   - a watcher claims the watch (B), then either finds a leader and sets UNARMED by the same step (C), or arms; one
 *     that leaves gives the watch up (B), then does C, or looks for another;
 *   - the last leader to leave takes the count to zero and UNARMED down in one step (D), and if it was up, looks for
 *     the watcher and arms, or wakes it, to arm by itself; if there is none, it wakes a sleeper, who claims the watch.
 *
 * So UNARMED is only ever up while somebody leads, and the D of the last of those follows every A and C. After A: the
 * arm that follows D needs the receive flag, so it comes after the unarming, or the flag is busy and the watcher is
 * woken. After C: D's look comes after B and finds the watcher, or that there is none (and who claims the watch after
 * that look finds no leader but a later one, whose D is still to come). An arm that comes late, when others lead
 * already, costs needless wake-ups until it is taken down again.
 */
#include "internal_priv.h"
#include "wait_priv.h"

enum { UNARMED = 1, LEADER = 2 };

static _Atomic uint32_t leads[64];

/* Sets UNARMED if somebody leads. */
bool lead_covers(unsigned bit)
{
	uint32_t word = atomic_load(&leads[bit]);

	while (word >= LEADER)
		if (atomic_compare_exchange_weak(&leads[bit], &word, word | UNARMED))
			return true;
	return false;
}

bool lead_exists(unsigned bit)
{
	return atomic_load(&leads[bit]) >= LEADER;
}

static bool begin(struct vma_thread *self, unsigned bit)
{
	if (!rail_care_drives())
		return false;
	atomic_fetch_add(&leads[bit], LEADER);
	self->leads |= 1ULL << bit;
	rail_care_note_lead();
	return true;
}

void lead(struct vma_thread *self, uint64_t rings)
{
	for (; rings != 0; rings &= rings - 1) {
		const unsigned bit = (unsigned)__builtin_ctzll(rings);

		if (!has_sleepers(bit))
			continue;
		if ((self->leads & 1ULL << bit) == 0 && !begin(self, bit))
			continue;
		for (struct vma_rail *rail = first_rail(bit); rail != NULL; rail = next_rail(rail))
			rail_rest_led(rail);
	}
}

static void arm_for_watchers(unsigned bit, const struct vma_thread *self, bool may_drive)
{
	bool unwatched = false;

	for (struct vma_rail *rail = first_rail(bit); rail != NULL; rail = next_rail(rail)) {
		struct vma_thread *watcher = atomic_load(&rail->watcher);

		unwatched |= watcher == NULL;
		if (watcher == NULL)
			continue;
		if (may_drive)
			rail_note_arm(rail);
		if (!may_drive || vma_ring_arm(rail->ring) != 0)
			vma_thread_wake(watcher);
	}
	if (unwatched)
		hand_over_watch(bit, self);
}

void lead_end(struct vma_thread *self, uint64_t rings, bool may_drive)
{
	rings &= self->leads;
	self->leads &= ~rings;
	for (; rings != 0; rings &= rings - 1) {
		const unsigned bit = (unsigned)__builtin_ctzll(rings);
		uint32_t word = atomic_load(&leads[bit]), left;

		do
			left = word < 2 * LEADER ? 0 : word - LEADER;
		while (!atomic_compare_exchange_weak(&leads[bit], &word, left));
		if (left == 0 && (word & UNARMED) != 0)
			arm_for_watchers(bit, self, may_drive);
	}
}

void lead_forked_child(void)
{
	for (unsigned bit = 0; bit < 64; bit++)
		atomic_store(&leads[bit], 0);
}
