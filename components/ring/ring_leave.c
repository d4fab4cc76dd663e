/*
 * ring_leave.c - rules of the NIC that outlive their flows, until a thread has the time to have them deleted.
 *
 * Deleting one takes a system call, the time of a card's firmware, or a conversation with vmad. A connection ends with
 * the receive flag held, in the middle of all packets. So its flow leaves the table at once, and in its place comes a
 * *stale rule*. That is a flow of the ring's own, whose packets go on to the flow that covers the key (a listener's).
 * Packets see no difference. It keeps the entry `steered`. Then one of two things happens:
 *
 *   a flow of the same key is attached ── inherits the rule; the stale rule is a spare one again
 *   vma_ring_delete_stale_nic_rules ── the stale rule goes, its key is noted in `deleting`, and the NIC is asked without the flag
 *
 * A flow that a thread of the control path detaches needs no stale rule: that thread notes the key and asks at once.
 *
 * While a key is in `deleting`, no other thread speaks to the NIC of it. It waits at `nic_lock`, which is held until
 * the NIC has answered. Otherwise a rule that is added anew could be the one that is deleted. A thread waits for the
 * mutex only without the flag, because the holder takes the flag; with the flag it only tries.
 *
 * A flow that leaves needs no memory: steer, which is control path, has made a stale rule for it.
 */
#include <stdlib.h>
#include <time.h>

#include "ring_priv.h"

void ring_stale_rules_init(struct vma_ring *ring)
{
	TAILQ_INIT(&ring->stale_rules.waiting);
	TAILQ_INIT(&ring->stale_rules.spare);
	pthread_mutex_init(&ring->stale_rules.nic_lock, NULL);
}

static struct ring_stale_rule *stale_rule_take_first(struct ring_stale_rules *stale_rules, bool spare)
{
	struct ring_stale_rule *stale = spare ? TAILQ_FIRST(&stale_rules->spare) : TAILQ_FIRST(&stale_rules->waiting);

	if (stale == NULL)
		return NULL;
	if (spare)
		TAILQ_REMOVE(&stale_rules->spare, stale, link);
	else
		TAILQ_REMOVE(&stale_rules->waiting, stale, link);
	return stale;
}

/* The queue pair has gone, and its rules with it. */
void ring_stale_rules_fini(struct vma_ring *ring)
{
	struct ring_stale_rule *stale;

	while ((stale = stale_rule_take_first(&ring->stale_rules, false)) != NULL)
		free(stale);
	while ((stale = stale_rule_take_first(&ring->stale_rules, true)) != NULL)
		free(stale);
	pthread_mutex_destroy(&ring->stale_rules.nic_lock);
}

/* ---- spare ones ---- */

/* The entry has become steered. *memory: one stale rule, NULL when there was no memory; what is taken is NULL then. */
void ring_keep_spare_stale_rule_for_entry(struct vma_ring *ring, struct flow_entry *entry,
                                          struct ring_stale_rule **memory)
{
	if (entry->reserved || *memory == NULL)
		return;
	TAILQ_INSERT_HEAD(&ring->stale_rules.spare, *memory, link);
	entry->reserved = true;
	*memory = NULL;
}

void ring_free_reserved_stale_rule(struct vma_ring *ring, const struct flow_entry *entry)
{
	if (entry->reserved)
		free(stale_rule_take_first(&ring->stale_rules, true));
}

/* ---- in the table ---- */

static bool stale_flow_sink_pass_to_wildcard_flow(struct vma_flow *flow, struct vma_buf *packet,
                                                  const struct vma_rx_info *info)
{
	struct vma_flow_key key = flow->key;
	struct vma_flow *covering;

	key.peer_port_be = 0;
	memset(key.peer, 0, sizeof(key.peer));
	covering = vma_ring_find_first_flow_of_key(flow->ring, &key);
	return covering != NULL && covering->sink(covering, packet, info);
}

struct ring_stale_rule *ring_stale_rule_of(const struct flow_entry *entry)
{
	return entry->head != NULL && entry->head->sink == stale_flow_sink_pass_to_wildcard_flow
	               ? (struct ring_stale_rule *)entry->head
	               : NULL;
}

static void stale_rule_unlink(struct vma_ring *ring, struct ring_stale_rule *stale)
{
	ring->last.word0 = 0;
	TAILQ_REMOVE(&ring->stale_rules.waiting, stale, link);
	flow_table_remove(ring_flow_table_for_key(ring, &stale->flow.key), &stale->flow);
}

void ring_stale_rule_unlink_and_keep_spare(struct vma_ring *ring, struct ring_stale_rule *stale)
{
	stale_rule_unlink(ring, stale);
	TAILQ_INSERT_HEAD(&ring->stale_rules.spare, stale, link);
}

void ring_stale_rule_free(struct vma_ring *ring, struct ring_stale_rule *stale)
{
	stale_rule_unlink(ring, stale);
	free(stale);
}

static uint64_t leave_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* As the only member but one, which is about to go. False: there is no rule, or nothing to remember it by. */
static bool ring_remember_stale_rule_of_leaving_flow(struct vma_ring *ring, const struct vma_flow *flow)
{
	struct flow_entry *entry = ring_flow_entry_of_key(ring, &flow->key);
	struct ring_stale_rule *stale;

	if (entry->head != flow || flow->next != NULL || !entry->steered || !entry->reserved || entry->revoked)
		return false;
	stale = stale_rule_take_first(&ring->stale_rules, true);
	stale->flow = (struct vma_flow){.key = flow->key, .sink = stale_flow_sink_pass_to_wildcard_flow, .ring = ring};
	stale->left_ns = ring->rules.to_kernel ? leave_now_ns() : 0;
	flow_table_insert(ring_flow_table_for_key(ring, &flow->key), &stale->flow, &entry); /* which needs no memory */
	TAILQ_INSERT_TAIL(&ring->stale_rules.waiting, stale, link);
	return true;
}

bool vma_ring_detach_flow_keep_stale_rule(struct vma_ring *ring, struct vma_flow *flow)
{
	bool acquired = drive_flag_acquire(&ring->rx),
	     waits = flow->ring == ring && ring_remember_stale_rule_of_leaving_flow(ring, flow);

	ring_detach_flow_holding_rx_flag(ring, flow, false);
	if (acquired)
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	return waits;
}

/* ---- the NIC is asked ---- */

bool ring_rule_is_leaving(const struct vma_ring *ring, const struct vma_flow_key *key)
{
	for (unsigned i = 0; i < ring->stale_rules.deleting_count; i++)
		if (memcmp(&ring->stale_rules.deleting[i], key, sizeof(*key)) == 0)
			return true;
	return false;
}

void ring_wait_for_nic_rule_requests(struct vma_ring *ring)
{
	pthread_mutex_lock(&ring->stale_rules.nic_lock);
	pthread_mutex_unlock(&ring->stale_rules.nic_lock);
}

bool ring_rule_try_begin_nic_delete(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct ring_stale_rules *stale_rules = &ring->stale_rules;

	if (pthread_mutex_trylock(&stale_rules->nic_lock) != 0)
		return false;
	stale_rules->deleting[0] = *key;
	stale_rules->deleting_count = 1;
	return true;
}

void ring_rule_finish_nic_delete_and_unlock(struct vma_ring *ring)
{
	ring->stale_rules.deleting_count = 0;
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	pthread_mutex_unlock(&ring->stale_rules.nic_lock);
}

/* They wait in the order in which they left. */
static struct ring_stale_rule *stale_rule_oldest_if_due(const struct ring_stale_rules *stale_rules, uint64_t until_ns)
{
	struct ring_stale_rule *stale = TAILQ_FIRST(&stale_rules->waiting);

	return stale != NULL && stale->left_ns <= until_ns ? stale : NULL;
}

static void stale_rules_move_due_keys_to_deleting(struct vma_ring *ring, unsigned most, uint64_t until_ns)
{
	struct ring_stale_rules *stale_rules = &ring->stale_rules;

	for (stale_rules->deleting_count = 0; stale_rules->deleting_count < most; stale_rules->deleting_count++) {
		struct ring_stale_rule *stale = stale_rule_oldest_if_due(stale_rules, until_ns);

		if (stale == NULL)
			break;
		stale_rules->deleting[stale_rules->deleting_count] = stale->flow.key;
		ring_stale_rule_free(ring, stale);
	}
}

/* `deleting` is changed with both the flag and the mutex, so it is read here with the mutex alone. -ENOENT: the rule
 * was revoked, or the owner that knew it has gone. */
bool vma_ring_delete_stale_nic_rules(struct vma_ring *ring, unsigned most, uint64_t until_ns, unsigned *deleted)
{
	struct ring_stale_rules *stale_rules = &ring->stale_rules;
	bool more = true, due = true;
	unsigned n = 0, none;

	deleted = deleted != NULL ? deleted : &none;
	for (*deleted = 0; n < most && due; *deleted = n) {
		if (!drive_flag_acquire(&ring->rx))
			return true;
		if (pthread_mutex_trylock(&stale_rules->nic_lock) != 0) { /* somebody else is at it */
			ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
			return true;
		}
		stale_rules_move_due_keys_to_deleting(ring, most - n < LEAVE_BURST ? most - n : LEAVE_BURST, until_ns);
		n += stale_rules->deleting_count;
		more = !TAILQ_EMPTY(&stale_rules->waiting);
		due = stale_rule_oldest_if_due(stale_rules, until_ns) != NULL;
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
		for (unsigned i = 0; i < stale_rules->deleting_count; i++)
			vma_nic_flow_del(ring->qp, &stale_rules->deleting[i]);
		drive_flag_acquire(&ring->rx);
		ring_rule_finish_nic_delete_and_unlock(ring);
	}
	return more;
}
