/*
 * ring_exempt.c - exemptions: connections of TCP that the kernel has, although a rule of the NIC brings them here.
 *
 * The NIC matches headers, so a listener's rule takes what comes for the kernel's connections of the same port, too
 * (VMA_NIC_CAP_TO_KERNEL). Whatever such a connection gets is the kernel's, a SYN as well: so it has a flow of its own in
 * the ring's table, without a rule, whose sink gives its packets to the kernel.
 *
 * No event tells that the kernel has a connection no more. So the kernel is asked, by vma_ring_exempt_sweep, without the
 * receive flag. An exemption that comes too late, or for which there is no room, costs little: what a listener does not
 * know it gives to the kernel anyway (tcp/listener.c).
 *
 * Threads: the list is changed with the receive flag. One that the sweep has read may only be gone by another sweep:
 * it names them by key.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "ring_priv.h"

struct ring_exempt {
	struct vma_flow flow; /* first */
	struct ring_exempt *next;
};

static bool exempt_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)info;
	if (!vma_ring_to_kernel(flow->ring, packet))
		return false;
	vma_buf_put_chain(flow->ring->rules.arena, packet);
	return true;
}

/* ---- with the receive flag ---- */

static bool has_cover(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct vma_flow_key any = *key;

	any.peer_port_be = 0;
	memset(any.peer, 0, sizeof(any.peer));
	return vma_ring_flow(ring, &any) != NULL;
}

static int exempt_add(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct ring_exempt *exempt;
	int rc;

	if (vma_ring_flow(ring, key) != NULL)
		return -EEXIST;
	if (!has_cover(ring, key))
		return -ENOENT;
	if (ring->exempts_count == RING_EXEMPTS_MAX)
		return -ENOSPC;
	exempt = calloc(1, sizeof(*exempt));
	if (exempt == NULL)
		return -ENOMEM;
	exempt->flow = (struct vma_flow){.key = *key, .flags = VMA_FLOW_RING_ONLY, .sink = exempt_sink};
	rc = vma_ring_attach(ring, &exempt->flow);
	if (rc < 0) {
		free(exempt);
		return rc;
	}
	exempt->next = ring->exempts;
	ring->exempts = exempt;
	ring->exempts_count++;
	return 0;
}

static void exempt_end(struct vma_ring *ring, struct ring_exempt **place)
{
	struct ring_exempt *exempt = *place;

	*place = exempt->next;
	ring->exempts_count--;
	ring_detach_held(ring, &exempt->flow, false);
	free(exempt);
}

static void exempt_end_key(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct ring_exempt **place = &ring->exempts;

	while (*place != NULL && memcmp(&(*place)->flow.key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	if (*place != NULL)
		exempt_end(ring, place);
}

void ring_exempts_fini(struct vma_ring *ring)
{
	while (ring->exempts != NULL)
		exempt_end(ring, &ring->exempts);
}

/* ---- control path ---- */

struct found {
	struct vma_flow_key *keys;
	unsigned n, room;
};

static void found_add(const struct vma_flow_key *connection, void *arg)
{
	struct found *found = arg;

	if (found->n < found->room)
		found->keys[found->n++] = *connection;
}

static void exempt_all(struct vma_ring *ring, const struct vma_flow_key *keys, unsigned n)
{
	const bool acquired = vma_ring_acquire(ring);

	for (unsigned i = 0; i < n; i++)
		exempt_add(ring, &keys[i]);
	if (acquired)
		vma_ring_release(ring);
}

bool vma_ring_exempt(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct found found = {.room = RING_EXEMPTS_MAX};

	if (!ring->rules.to_kernel || key->proto != IPPROTO_TCP)
		return false;
	if (key->peer_port_be != 0) {
		exempt_all(ring, key, 1);
		return true;
	}
	found.keys = malloc(found.room * sizeof(*found.keys));
	if (found.keys == NULL || vma_nic_kernel_connections(ring->nic, key, found_add, &found) < 0)
		found.n = 0;
	exempt_all(ring, found.keys, found.n);
	free(found.keys);
	return found.n != 0;
}

/* What nothing covers any more the NIC leaves to the kernel. How many keys are left to ask about. */
static unsigned exempts_collect(struct vma_ring *ring, struct vma_flow_key *keys, unsigned room)
{
	struct ring_exempt **place = &ring->exempts;
	unsigned n = 0;

	while (*place != NULL) {
		if (!has_cover(ring, &(*place)->flow.key)) {
			exempt_end(ring, place);
			continue;
		}
		if (n < room)
			keys[n++] = (*place)->flow.key;
		place = &(*place)->next;
	}
	return n;
}

bool vma_ring_exempt_sweep(struct vma_ring *ring)
{
	struct vma_flow_key *keys = malloc(RING_EXEMPTS_MAX * sizeof(*keys));
	bool *has = calloc(RING_EXEMPTS_MAX, sizeof(*has)), any = true;
	unsigned n;

	if (keys != NULL && has != NULL && drive_acquire(&ring->rx)) {
		n = exempts_collect(ring, keys, RING_EXEMPTS_MAX);
		ring_rx_release(ring, drive_tid());
		if (n != 0 && vma_nic_kernel_has(ring->nic, keys, n, has) < 0)
			memset(has, 1, n * sizeof(*has)); /* not known */
		drive_acquire(&ring->rx);
		for (unsigned i = 0; i < n; i++)
			if (!has[i])
				exempt_end_key(ring, &keys[i]);
		any = ring->exempts != NULL;
		ring_rx_release(ring, drive_tid());
	}
	free(keys);
	free(has);
	return any;
}
