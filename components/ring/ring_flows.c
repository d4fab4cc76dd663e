/*
 * ring_flows.c - flows come and go: the ring's tables, and the NIC's rules for them.
 *
 * The NIC has a rule for a key in two cases only. Either the key's entry says `steered`, or a call of steer is asking
 * for it. Everything here happens with the receive flag, except for that asking. It takes the time of a system call, of
 * a card's firmware, or of an answer of vmad. Packets are to go on meanwhile. Until attach or steer has taken the flag
 * again, a struct ring_steering in the ring's list makes it known to others. From there detach takes its flow out. Then
 * steer touches the flow no more, and takes the rule back itself, unless the rule is needed by then. It may be needed
 * by an entry that is steered, or by a later steer of the same key, which inherits it. A rule that is already there
 * (-EEXIST) is this queue pair's own, added by one of those. For a rule that goes see ring_leave.c. Only a sink, which
 * has the flag, asks with it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "ring_priv.h"

struct ring_steering {
	struct ring_steering *next;
	struct vma_flow_key key;
	struct vma_flow *flow; /* NULL: detached meanwhile */
	bool inherited;        /* the NIC has the rule, by a call that has no use for it any more */
};

struct flow_entry *ring_flow_entry_of_key(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct flow_words words = flow_words_of(key);

	return flow_table_find(ring_flow_table_for_key(ring, key), &words);
}

static struct ring_steering *ring_find_steering_of_key(const struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct ring_steering *steering = ring->steerings;

	while (steering != NULL && memcmp(&steering->key, key, sizeof(*key)) != 0)
		steering = steering->next;
	return steering;
}

static struct vma_flow_rule flow_nic_rule_of(const struct vma_flow *flow)
{
	return (struct vma_flow_rule){.key = flow->key,
	                              .flags = flow->flags & ~(uint32_t)VMA_FLOW_RING_ONLY,
	                              .shadow_cookie = flow->shadow_cookie,
	                              .shadow_fd = flow->shadow_fd};
}

/* ---- attach ---- */

/*
 * The NIC steers once per key. It hears of later members too if they have a shadow: that kernel socket is none of the
 * strangers for whose sake a flow is given up.
 */
static bool flow_needs_nic_request(const struct vma_flow *flow, const struct flow_entry *entry)
{
	return !(flow->flags & VMA_FLOW_RING_ONLY) && (!entry->steered || flow->shadow_cookie != 0);
}

static void ring_link_steering_of_flow(struct vma_ring *ring, struct vma_flow *flow, struct ring_steering *steering)
{
	*steering = (struct ring_steering){.next = ring->steerings, .key = flow->key, .flow = flow};
	ring->steerings = steering;
}

/* 1: it is attached, and the NIC is to be asked; -EAGAIN: not before the NIC has answered, see ring_leave.c. */
static int flow_insert_and_start_steering(struct vma_ring *ring, struct vma_flow *flow, struct ring_steering *steering)
{
	struct flow_table *table = ring_flow_table_for_key(ring, &flow->key);
	struct flow_entry *entry;
	struct ring_stale_rule *stale;
	int rc;

	if (flow->ring != NULL)
		return -EEXIST;
	if (!(flow->flags & VMA_FLOW_RING_ONLY) && ring_rule_is_leaving(ring, &flow->key))
		return -EAGAIN;
	ring->last.word0 = 0;
	rc = flow_table_insert(table, flow, &entry);
	if (rc != 0)
		return rc;
	stale = ring_stale_rule_of(entry);
	if (stale != NULL) {
		ring_stale_rule_unlink_and_keep_spare(ring, stale);
		entry->inherited = true;
	}
	flow->ring = ring;
	if (entry->revoked) {
		ring_detach_flow_holding_rx_flag(ring, flow, stale == NULL);
		return -EADDRINUSE;
	}
	if (!flow_needs_nic_request(flow, entry))
		return 0;
	ring_link_steering_of_flow(ring, flow, steering);
	return 1;
}

/* What the NIC would refuse, for flows that it does not hear of. */
static int flow_check_attach_arguments(const struct vma_flow *flow)
{
	const uint32_t known = VMA_FLOW_LISTENER | VMA_FLOW_RING_ONLY | VMA_FLOW_PORT_EXCLUSIVE | VMA_FLOW_INHERITED |
	                       VMA_FLOW_REUSEPORT | VMA_FLOW_PORT_BOUND;

	if (flow->sink == NULL || (flow->flags & ~known) != 0)
		return -EINVAL;
	if ((flow->flags & VMA_FLOW_LISTENER) != 0 && (flow->key.proto != IPPROTO_TCP || flow->key.peer_port_be != 0))
		return -EINVAL;
	return vma_flow_key_check(&flow->key);
}

struct vma_flow *vma_ring_find_first_flow_of_key(struct vma_ring *ring, const struct vma_flow_key *key)
{
	const struct flow_entry *entry = ring_flow_entry_of_key(ring, key);

	return entry != NULL && ring_stale_rule_of(entry) == NULL ? entry->head : NULL;
}

/* ---- steer ---- */

/*
 * The NIC hears of the shadow of a flow whose rule it has already, so that it does not take it for a stranger's socket.
 * A TCP connection's shadow is none: it is bound, but the kernel has no connection of it. (One that becomes the
 * kernel's gives its rule back.) So a port that is used again costs no question.
 */
static bool flow_shadow_must_be_told_to_nic(const struct vma_flow *flow)
{
	return flow->shadow_cookie != 0 && !(flow->key.proto == IPPROTO_TCP && flow->key.peer_port_be != 0);
}

/* 1: the NIC is to be asked; -EAGAIN: later, see ring_leave.c. */
static int flow_start_steering_if_nic_needed(struct vma_ring *ring, struct vma_flow *flow,
                                             struct ring_steering *steering)
{
	const struct flow_entry *entry;

	if (flow->ring != ring)
		return -EINVAL;
	entry = ring_flow_entry_of_key(ring, &flow->key);
	if (entry->revoked)
		return -EADDRINUSE;
	if (entry->steered && (!entry->inherited || !flow_shadow_must_be_told_to_nic(flow)))
		return 0;
	if (ring_rule_is_leaving(ring, &flow->key))
		return -EAGAIN;
	ring_link_steering_of_flow(ring, flow, steering);
	return 1;
}

static void unlink_steering(struct vma_ring *ring, const struct ring_steering *steering)
{
	struct ring_steering **place = &ring->steerings;

	while (*place != steering)
		place = &(*place)->next;
	*place = steering->next;
}

/* The NIC has a rule of this key, which was asked for by a call whose flow is gone. Whether nobody else has a use for
 * it. */
static bool nic_rule_is_unwanted(struct vma_ring *ring, const struct vma_flow_key *key)
{
	const struct flow_entry *entry = ring_flow_entry_of_key(ring, key);
	struct ring_steering *other = ring_find_steering_of_key(ring, key);

	if (entry != NULL && entry->steered)
		return false;
	if (other != NULL)
		other->inherited = true;
	return other == NULL;
}

/* The NIC has said rc. *unwanted: it has a rule for nobody, see ring_delete_unwanted_rule_and_release_rx. */
static int flow_steering_finish_with_nic_result(struct vma_ring *ring, struct ring_steering *steering, int rc,
                                                struct ring_stale_rule **memory, bool *unwanted)
{
	struct flow_entry *entry = ring_flow_entry_of_key(ring, &steering->key);

	unlink_steering(ring, steering);
	*unwanted = false;
	if (rc == -EEXIST || (rc != 0 && steering->inherited))
		rc = 0;
	if (rc == 0 && steering->flow != NULL) {
		entry->steered = true;
		entry->inherited = false;
		ring_keep_spare_stale_rule_for_entry(ring, entry, memory);
	} else if (rc == 0) {
		*unwanted = nic_rule_is_unwanted(ring, &steering->key);
	}
	return steering->flow != NULL ? rc : -EINVAL;
}

/*
 * Releases the flag. An unwanted rule is given back without it, as a flow of the control path gives its own back
 * (ring_leave.c). While this thread waits for its turn, somebody else may come to want the rule.
 */
static void ring_delete_unwanted_rule_and_release_rx(struct vma_ring *ring, const struct vma_flow_key *key,
                                                     bool unwanted)
{
	for (; unwanted; unwanted = nic_rule_is_unwanted(ring, key)) {
		if (ring_rule_try_begin_nic_delete(ring, key)) {
			ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
			vma_nic_flow_del(ring->qp, key);
			drive_flag_acquire(&ring->rx);
			ring_rule_finish_nic_delete_and_unlock(ring);
			return;
		}
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
		ring_wait_for_nic_rule_requests(ring);
		drive_flag_acquire(&ring->rx);
	}
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
}

/* A refusal ends what flow_insert_and_start_steering has begun. */
static int flow_attach_finish_with_nic_result(struct vma_ring *ring, struct vma_flow *flow,
                                              struct ring_steering *steering, int rc, bool *unwanted)
{
	const bool is_attached = steering->flow != NULL;
	struct ring_stale_rule *none = NULL;

	rc = flow_steering_finish_with_nic_result(ring, steering, rc, &none, unwanted);
	if (rc != 0 && is_attached)
		ring_detach_flow_holding_rx_flag(ring, flow, false);
	return rc;
}

int vma_ring_attach_flow(struct vma_ring *ring, struct vma_flow *flow)
{
	struct ring_steering steering;
	struct vma_flow_rule rule;
	int rc = flow_check_attach_arguments(flow);
	bool acquired, unwanted;

	if (rc != 0)
		return rc;
	for (;;) {
		acquired = drive_flag_acquire(&ring->rx);
		rc = flow_insert_and_start_steering(ring, flow, &steering);
		if (rc > 0)
			rule = flow_nic_rule_of(flow);
		if (rc > 0 && !acquired)
			return flow_attach_finish_with_nic_result(ring, flow, &steering,
			                                          vma_nic_flow_add(ring->qp, &rule), &unwanted);
		if (acquired)
			ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
		if (rc != -EAGAIN || !acquired)
			break;
		ring_wait_for_nic_rule_requests(ring);
	}
	if (rc <= 0)
		return rc;
	rc = vma_nic_flow_add(ring->qp, &rule);
	drive_flag_acquire(&ring->rx);
	rc = flow_attach_finish_with_nic_result(ring, flow, &steering, rc, &unwanted);
	ring_delete_unwanted_rule_and_release_rx(ring, &rule.key, unwanted);
	return rc;
}

int vma_ring_request_nic_rule_of_flow(struct vma_ring *ring, struct vma_flow *flow)
{
	struct ring_steering steering;
	struct ring_stale_rule *stale;
	struct vma_flow_rule rule;
	bool unwanted;
	int rc;

	do {
		if (!drive_flag_acquire(&ring->rx))
			return -EDEADLK;
		rc = flow_start_steering_if_nic_needed(ring, flow, &steering);
		if (rc > 0)
			rule = flow_nic_rule_of(flow);
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
		if (rc == -EAGAIN)
			ring_wait_for_nic_rule_requests(ring);
	} while (rc == -EAGAIN);
	if (rc <= 0)
		return rc;
	stale = malloc(sizeof(*stale)); /* without one, its end has to ask the NIC at once */
	rc = vma_nic_flow_add(ring->qp, &rule);
	drive_flag_acquire(&ring->rx);
	rc = flow_steering_finish_with_nic_result(ring, &steering, rc, &stale, &unwanted);
	ring_delete_unwanted_rule_and_release_rx(ring, &rule.key, unwanted);
	free(stale);
	return rc;
}

/* ---- detach ---- */

static void ring_clear_flow_of_steerings(struct vma_ring *ring, const struct vma_flow *flow)
{
	for (struct ring_steering *steering = ring->steerings; steering != NULL; steering = steering->next)
		if (steering->flow == flow)
			steering->flow = NULL;
}

/*
 * Holding the flag means that no sink runs, unless it is the one that called us; and the next lookup finds it gone.
 * given_back: the NIC has been told already.
 */
void ring_detach_flow_holding_rx_flag(struct vma_ring *ring, struct vma_flow *flow, bool given_back)
{
	struct flow_entry entry;

	if (flow->ring != ring)
		return;
	if (ring->cursor == flow)
		ring->cursor = flow->next;
	ring->last.word0 = 0;
	ring_clear_flow_of_steerings(ring, flow);
	flow->ring = NULL;
	entry = *ring_flow_entry_of_key(ring, &flow->key);
	if (!flow_table_remove(ring_flow_table_for_key(ring, &flow->key), flow))
		return;
	ring_free_reserved_stale_rule(ring, &entry);
	/* -ENOENT: it was revoked, or the owner that knew it has gone. */
	if (entry.steered && !given_back)
		vma_nic_flow_del(ring->qp, &flow->key);
}

bool vma_ring_stop_new_conns_of_listener(struct vma_ring *ring, const struct vma_flow *flow)
{
	const struct vma_nic_accept_page *member = ring->qp->member;

	if (member == NULL || atomic_load(&member->groups) == 0 ||
	    vma_nic_flow_stop_new_connections(ring->qp, &flow->key) != 0)
		return false;
	if (drive_flag_acquire(&ring->rx)) {
		ring_rx_drain(ring);
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	}
	return true;
}

bool vma_ring_flow_is_alone_with_nic_rule(struct vma_ring *ring, const struct vma_flow *flow)
{
	const struct flow_entry *entry = flow->ring == ring ? ring_flow_entry_of_key(ring, &flow->key) : NULL;

	return entry != NULL && entry->head == flow && flow->next == NULL && entry->steered && !entry->revoked;
}

static bool flow_is_only_nic_member(struct vma_ring *ring, const struct vma_flow *flow)
{
	const struct flow_entry *entry = ring_flow_entry_of_key(ring, &flow->key);

	return entry != NULL && entry->head == flow && flow->next == NULL && entry->steered;
}

static void detach_flow_and_call_back(struct vma_ring *ring, struct vma_flow *flow, bool given_back,
                                      void (*with)(void *), void *arg)
{
	ring_detach_flow_holding_rx_flag(ring, flow, given_back);
	if (with != NULL)
		with(arg);
}

/*
 * The rule goes first or last: without `drained` the flow leaves the table before the NIC is asked; with it, it takes
 * what has come until the NIC has answered. While the queue is emptied, its own sink may detach it. `with` (NULL:
 * nothing) is called with the flag, when the flow has just left the table.
 */
static void ring_detach_flow_and_delete_nic_rule(struct vma_ring *ring, struct vma_flow *flow, bool drained,
                                                 void (*with)(void *), void *arg)
{
	const struct vma_flow_key key = flow->key;

	for (;;) {
		if (!drive_flag_acquire(&ring->rx)) {
			detach_flow_and_call_back(ring, flow, false, with, arg);
			return;
		}
		if (drained && flow->ring == ring)
			ring_rx_drain(ring);
		if (flow->ring != ring || !flow_is_only_nic_member(ring, flow)) {
			detach_flow_and_call_back(ring, flow, false, with, arg);
			ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
			return;
		}
		if (ring_rule_try_begin_nic_delete(ring, &key))
			break;
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
		ring_wait_for_nic_rule_requests(ring);
	}
	if (drained)
		ring_flow_entry_of_key(ring, &key)->steered = false; /* who wants it again waits for the NIC's answer */
	else
		detach_flow_and_call_back(ring, flow, true, with, arg);
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	vma_nic_flow_del(ring->qp, &key); /* -ENOENT: it was revoked, or the owner that knew it has gone */
	drive_flag_acquire(&ring->rx);
	if (drained) {
		ring_rx_drain(ring);
		detach_flow_and_call_back(ring, flow, true, with, arg);
	}
	ring_rule_finish_nic_delete_and_unlock(ring);
}

void vma_ring_detach_flow(struct vma_ring *ring, struct vma_flow *flow)
{
	ring_detach_flow_and_delete_nic_rule(ring, flow, false, NULL, NULL);
}

void vma_ring_drain_and_detach_flow(struct vma_ring *ring, struct vma_flow *flow)
{
	ring_detach_flow_and_delete_nic_rule(ring, flow, true, NULL, NULL);
}

void vma_ring_detach_flow_and_call_back(struct vma_ring *ring, struct vma_flow *flow, void (*with)(void *arg),
                                        void *arg)
{
	ring_detach_flow_and_delete_nic_rule(ring, flow, false, with, arg);
}
