/*
 * ring_exempt.c - exemptions: connections of TCP that the kernel has, although a rule of the NIC brings them here.
 *
 * The NIC matches headers, so a listener's rule also takes packets of the kernel's connections of the same port
 * (VMA_NIC_CAP_TO_KERNEL). All packets of such a connection are the kernel's, a SYN as well. So it has a flow of its
 * own in the ring's table, without a rule, whose sink gives its packets to the kernel.
 *
 * No event tells that the kernel has a connection no more. So the kernel is asked, by
 * vma_ring_remove_exempts_of_ended_conns, without the receive flag. An exemption that comes too late, or for which
 * there is no room, costs little. A listener gives packets that it does not know to the kernel anyway (tcp/listener.c).
 *
 * The sweep holds the flag for SWEEP_BURST exemptions at a time, each found by its key: packets wait for no more.
 *
 * A NIC that can is asked to leave the connection to the kernel by itself (vma_nic_leave_connection_to_kernel), without
 * the flag. Packets that come before that, or after the NIC has let go of the connection, meet the entry in the table.
 *
 * Threads: the list is changed with the receive flag. An exemption that the sweep has read may only be gone by another
 * sweep: it names them by key.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "ring_priv.h"

#define SWEEP_BURST 64

struct ring_exempt {
	struct vma_flow flow; /* first */
	TAILQ_ENTRY(ring_exempt) link;
	bool in_nic;
};

static bool exempt_flow_sink_reinjects_to_kernel(struct vma_flow *flow, struct vma_buf *packet,
                                                 const struct vma_rx_info *info)
{
	(void)info;
	if (!vma_ring_reinject_packet(flow->ring, packet))
		return false;
	vma_buf_put_chain(flow->ring->rules.arena, packet);
	return true;
}

/* ---- with the receive flag ---- */

static bool exempt_is_covered_by_flow(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct vma_flow_key any = *key;

	any.peer_port_be = 0;
	memset(any.peer, 0, sizeof(any.peer));
	return vma_ring_find_first_flow_of_key(ring, &any) != NULL ||
	       ring_has_port_block(ring, key->local, key->vlan, key->local_port_be);
}

static int exempt_insert_one_connection(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct ring_exempt *exempt;
	int rc;

	if (vma_ring_find_first_flow_of_key(ring, key) != NULL)
		return -EEXIST;
	if (!exempt_is_covered_by_flow(ring, key))
		return -ENOENT;
	if (ring->exempts_count == RING_EXEMPTS_MAX)
		return -ENOSPC;
	exempt = calloc(1, sizeof(*exempt));
	if (exempt == NULL)
		return -ENOMEM;
	exempt->flow = (struct vma_flow){
	        .key = *key, .flags = VMA_FLOW_RING_ONLY, .sink = exempt_flow_sink_reinjects_to_kernel};
	rc = vma_ring_attach_flow(ring, &exempt->flow);
	if (rc < 0) {
		free(exempt);
		return rc;
	}
	TAILQ_INSERT_TAIL(&ring->exempts, exempt, link);
	ring->exempts_count++;
	return 0;
}

static void exempt_remove_from_ring(struct vma_ring *ring, struct ring_exempt *exempt)
{
	TAILQ_REMOVE(&ring->exempts, exempt, link);
	ring->exempts_count--;
	ring_detach_flow_holding_rx_flag(ring, &exempt->flow, false);
	free(exempt);
}

/* NULL: there is none. A connection of this process may have the same key meanwhile. */
static struct ring_exempt *exempt_find_flow_of_key(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct vma_flow *flow = vma_ring_find_first_flow_of_key(ring, key);

	while (flow != NULL && flow->sink != exempt_flow_sink_reinjects_to_kernel)
		flow = flow->next;
	return (struct ring_exempt *)flow;
}

void ring_exempts_init(struct vma_ring *ring)
{
	TAILQ_INIT(&ring->exempts);
}

void ring_exempts_fini(struct vma_ring *ring)
{
	struct ring_exempt *exempt;

	while ((exempt = TAILQ_FIRST(&ring->exempts)) != NULL) {
		if (exempt->in_nic)
			vma_nic_end_leave_connection_to_kernel(ring->nic, &exempt->flow.key);
		exempt_remove_from_ring(ring, exempt);
	}
}

/* ---- control path ---- */

struct found {
	struct vma_flow_key *keys;
	unsigned n, room;
};

static void exempt_collect_key_in_found(const struct vma_flow_key *connection, void *arg)
{
	struct found *found = arg;

	if (found->n < found->room)
		found->keys[found->n++] = *connection;
}

/* True: the ring has one of them at least. */
static bool exempt_add_connections_to_ring(struct vma_ring *ring, const struct vma_flow_key *keys, unsigned n)
{
	const bool acquired = vma_ring_acquire(ring);
	bool any = false;

	for (unsigned i = 0; i < n; i++)
		any |= exempt_insert_one_connection(ring, &keys[i]) == 0 ||
		       exempt_find_flow_of_key(ring, &keys[i]) != NULL;
	if (acquired)
		vma_ring_release(ring);
	return any;
}

/* Whether there is an exemption that the NIC does not know of. If so, it is `known` from now on. */
static bool exempt_check_unknown_to_nic_and_set(struct vma_ring *ring, const struct vma_flow_key *key, bool known)
{
	const bool acquired = vma_ring_acquire(ring);
	struct ring_exempt *exempt = exempt_find_flow_of_key(ring, key);
	const bool is_new = exempt != NULL && !exempt->in_nic;

	if (is_new)
		exempt->in_nic = known;
	if (acquired)
		vma_ring_release(ring);
	return is_new;
}

static void exempt_all_in_nic(struct vma_ring *ring, const struct vma_flow_key *keys, unsigned n)
{
	int rc = 0;

	for (unsigned i = 0; i < n && rc != -EOPNOTSUPP; i++) {
		if (!exempt_check_unknown_to_nic_and_set(ring, &keys[i], false))
			continue;
		rc = vma_nic_leave_connection_to_kernel(ring->nic, &keys[i]);
		if (rc == 0 && !exempt_check_unknown_to_nic_and_set(
		                       ring, &keys[i], true)) /* it has ended, or another thread was faster */
			vma_nic_end_leave_connection_to_kernel(ring->nic, &keys[i]);
	}
}

bool vma_ring_exempt_kernel_connections(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct found found = {.room = RING_EXEMPTS_MAX};
	bool any;

	if (!ring->rules.to_kernel || key->proto != IPPROTO_TCP)
		return false;
	if (key->peer_port_be != 0) {
		any = exempt_add_connections_to_ring(ring, key, 1);
		exempt_all_in_nic(ring, key, 1);
		return any;
	}
	found.keys = malloc(found.room * sizeof(*found.keys));
	if (found.keys == NULL ||
	    vma_nic_for_each_kernel_connection(ring->nic, key, exempt_collect_key_in_found, &found) < 0)
		found.n = 0;
	any = exempt_add_connections_to_ring(ring, found.keys, found.n);
	exempt_all_in_nic(ring, found.keys, found.n);
	free(found.keys);
	return any;
}

/* The keys of all. */
static unsigned exempts_copy_keys(struct vma_ring *ring, struct vma_flow_key *keys)
{
	const struct ring_exempt *exempt;
	unsigned n = 0;

	TAILQ_FOREACH(exempt, &ring->exempts, link)
	keys[n++] = exempt->flow.key;
	return n;
}

/*
 * Those that the kernel has no more, and those that nothing covers: these the NIC leaves to the kernel. has[i]: whether
 * the kernel has it; from now on whether the NIC is to be told of its end.
 */
static void exempts_remove_ended_or_uncovered(struct vma_ring *ring, const struct vma_flow_key *keys, bool *has,
                                              unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		const bool goes_on = has[i] && exempt_is_covered_by_flow(ring, &keys[i]);
		struct ring_exempt *exempt = goes_on ? NULL : exempt_find_flow_of_key(ring, &keys[i]);

		has[i] = exempt != NULL && exempt->in_nic;
		if (exempt != NULL)
			exempt_remove_from_ring(ring, exempt);
	}
}

bool vma_ring_remove_exempts_of_ended_conns(struct vma_ring *ring)
{
	struct vma_flow_key *keys = malloc(RING_EXEMPTS_MAX * sizeof(*keys));
	bool *has = calloc(RING_EXEMPTS_MAX, sizeof(*has)), any = true;
	unsigned n, at = 0;

	if (keys != NULL && has != NULL && drive_flag_acquire(&ring->rx)) {
		n = exempts_copy_keys(ring, keys);
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
		if (n != 0 && vma_nic_kernel_has_connections(ring->nic, keys, n, has) < 0)
			memset(has, 1, n * sizeof(*has)); /* not known */
		do {
			const unsigned burst = n - at < SWEEP_BURST ? n - at : SWEEP_BURST;

			drive_flag_acquire(&ring->rx);
			exempts_remove_ended_or_uncovered(ring, keys + at, has + at, burst);
			any = !TAILQ_EMPTY(&ring->exempts);
			ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
			for (unsigned i = 0; i < burst; i++)
				if (has[at + i])
					vma_nic_end_leave_connection_to_kernel(ring->nic, &keys[at + i]);
			at += burst;
		} while (at < n);
	}
	free(keys);
	free(has);
	return any;
}
