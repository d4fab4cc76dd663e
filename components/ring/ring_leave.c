/*
 * ring_leave.c - rules of the NIC that outlive their flows, until a thread has the time to have them deleted.
 *
 * Deleting one takes a system call, or a conversation with vmad. A connection ends with the receive flag held, in the
 * middle of all packets. So its flow leaves the table at once, and in its place comes a *leaver*: a flow of the ring's
 * own, whose packets go on to the flow that covers the key (a listener's), as if there were nothing. It keeps the entry
 * `steered`. Then one of two things happens:
 *
 *   a flow of the same key is attached ── inherits the rule; the leaver is a spare one again
 *   vma_ring_prune ── the leaver goes, its key is noted in `asked`, and the NIC is asked without the flag
 *
 * While a key is in `asked`, no other thread speaks to the NIC of it: it waits at `asking`, which is held until the NIC
 * has answered. Otherwise a rule that is added anew could be the one that is deleted. A thread waits for the mutex only
 * without the flag, because the holder takes the flag; with the flag it only tries.
 *
 * A flow that leaves needs no memory: steer, which is control path, has made a leaver for it.
 */
#include <stdlib.h>

#include "ring_priv.h"

void ring_leavers_init(struct vma_ring *ring)
{
	TAILQ_INIT(&ring->leavers.waiting);
	TAILQ_INIT(&ring->leavers.spare);
	pthread_mutex_init(&ring->leavers.asking, NULL);
}

static struct ring_leaver *leave_take_first(struct ring_leavers *leavers, bool spare)
{
	struct ring_leaver *leaver = spare ? TAILQ_FIRST(&leavers->spare) : TAILQ_FIRST(&leavers->waiting);

	if (leaver == NULL)
		return NULL;
	if (spare)
		TAILQ_REMOVE(&leavers->spare, leaver, link);
	else
		TAILQ_REMOVE(&leavers->waiting, leaver, link);
	return leaver;
}

/* The queue pair has gone, and its rules with it. */
void ring_leavers_fini(struct vma_ring *ring)
{
	struct ring_leaver *leaver;

	while ((leaver = leave_take_first(&ring->leavers, false)) != NULL)
		free(leaver);
	while ((leaver = leave_take_first(&ring->leavers, true)) != NULL)
		free(leaver);
	pthread_mutex_destroy(&ring->leavers.asking);
}

/* ---- spare ones ---- */

/* The entry has become steered. *memory: one leaver, NULL when there was no memory; what is taken is NULL then. */
void ring_leaver_reserve(struct vma_ring *ring, struct flow_entry *entry, struct ring_leaver **memory)
{
	if (entry->reserved || *memory == NULL)
		return;
	TAILQ_INSERT_HEAD(&ring->leavers.spare, *memory, link);
	entry->reserved = true;
	*memory = NULL;
}

void ring_leaver_unreserve(struct vma_ring *ring, const struct flow_entry *entry)
{
	if (entry->reserved)
		free(leave_take_first(&ring->leavers, true));
}

/* ---- in the table ---- */

static bool pass_to_next_member(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_flow_key key = flow->key;
	struct vma_flow *covering;

	key.peer_port_be = 0;
	memset(key.peer, 0, sizeof(key.peer));
	covering = vma_ring_flow(flow->ring, &key);
	return covering != NULL && covering->sink(covering, packet, info);
}

struct ring_leaver *ring_leaver_of(const struct flow_entry *entry)
{
	return entry->head != NULL && entry->head->sink == pass_to_next_member ? (struct ring_leaver *)entry->head
	                                                                       : NULL;
}

static void leaver_take_out(struct vma_ring *ring, struct ring_leaver *leaver)
{
	ring->last.word0 = 0;
	TAILQ_REMOVE(&ring->leavers.waiting, leaver, link);
	flow_table_remove(ring_table_of(ring, &leaver->flow.key), &leaver->flow);
}

void ring_leaver_inherit(struct vma_ring *ring, struct ring_leaver *leaver)
{
	leaver_take_out(ring, leaver);
	TAILQ_INSERT_HEAD(&ring->leavers.spare, leaver, link);
}

void ring_leaver_forget(struct vma_ring *ring, struct ring_leaver *leaver)
{
	leaver_take_out(ring, leaver);
	free(leaver);
}

/* As the only member but one, which is about to go. False: there is no rule, or nothing to remember it by. */
static bool put_in(struct vma_ring *ring, const struct vma_flow *flow)
{
	struct flow_entry *entry = ring_entry_of(ring, &flow->key);
	struct ring_leaver *leaver;

	if (entry->head != flow || flow->next != NULL || !entry->steered || !entry->reserved || entry->revoked)
		return false;
	leaver = leave_take_first(&ring->leavers, true);
	leaver->flow = (struct vma_flow){.key = flow->key, .sink = pass_to_next_member, .ring = ring};
	flow_table_insert(ring_table_of(ring, &flow->key), &leaver->flow, &entry); /* which needs no memory */
	TAILQ_INSERT_TAIL(&ring->leavers.waiting, leaver, link);
	return true;
}

bool vma_ring_detach_later(struct vma_ring *ring, struct vma_flow *flow)
{
	bool acquired = drive_acquire(&ring->rx), waits = flow->ring == ring && put_in(ring, flow);

	ring_detach_held(ring, flow, false);
	if (acquired)
		ring_rx_release(ring, drive_tid());
	return waits;
}

/* ---- the NIC is asked ---- */

bool ring_rule_is_leaving(const struct vma_ring *ring, const struct vma_flow_key *key)
{
	for (unsigned i = 0; i < ring->leavers.asked_count; i++)
		if (memcmp(&ring->leavers.asked[i], key, sizeof(*key)) == 0)
			return true;
	return false;
}

void ring_rule_await(struct vma_ring *ring)
{
	pthread_mutex_lock(&ring->leavers.asking);
	pthread_mutex_unlock(&ring->leavers.asking);
}

static void note_asked(struct vma_ring *ring, unsigned most)
{
	struct ring_leavers *leavers = &ring->leavers;

	for (leavers->asked_count = 0; leavers->asked_count < most; leavers->asked_count++) {
		struct ring_leaver *leaver = TAILQ_FIRST(&leavers->waiting);

		if (leaver == NULL)
			break;
		leavers->asked[leavers->asked_count] = leaver->flow.key;
		ring_leaver_forget(ring, leaver);
	}
}

/* `asked` is changed with both the flag and the mutex, so it is read here with the mutex alone. -ENOENT: the rule was
 * revoked, or the owner that knew it has gone. */
bool vma_ring_prune(struct vma_ring *ring, unsigned most)
{
	struct ring_leavers *leavers = &ring->leavers;
	bool more = true;

	for (unsigned burst; most > 0 && more; most -= burst) {
		if (!drive_acquire(&ring->rx))
			return true;
		if (pthread_mutex_trylock(&leavers->asking) != 0) { /* somebody else is at it */
			ring_rx_release(ring, drive_tid());
			return true;
		}
		note_asked(ring, most < LEAVE_BURST ? most : LEAVE_BURST);
		burst = leavers->asked_count;
		more = !TAILQ_EMPTY(&leavers->waiting);
		ring_rx_release(ring, drive_tid());
		for (unsigned i = 0; i < burst; i++)
			vma_nic_flow_del(ring->qp, &leavers->asked[i]);
		drive_acquire(&ring->rx);
		leavers->asked_count = 0;
		ring_rx_release(ring, drive_tid());
		pthread_mutex_unlock(&leavers->asking);
	}
	return more;
}
