/*
 * ring_ports.c - blocks of local ports: connections of TCP that begin here, and need no rule of their own at first.
 *
 * A rule costs a conversation with the owner of the device, which is most of what a connection costs. A block is one
 * rule for 256 ports. It keeps no process off a port. So a connection may do without a rule of its own if
 *
 *   (A) a kernel socket is bound to the port, and shares it with no other, and then
 *   (B) no rule names the port (vma_nic_port_has_rule).
 *
 * Another process that wants the port has a kernel socket bound to it (C) before it has a rule made (D). If B misses D,
 * then D comes after it, and so after A: as A shares the port with no other, there was no C. The kernel's own
 * connections are the kernel's; the NIC sees to that packet by packet.
 *
 * If B finds a rule after A, that is bad luck: the port cannot be changed any more. The rule may be of this very pair,
 * of a connection of another process that has ended since it was looked at before A. It takes another process that
 * makes connections, so there are blocks only while no other process has queue pairs of the interface. Rings of one
 * process have blocks of their own. If (A) holds a port for a socket of one ring, no socket of another ring can have
 * it.
 *
 * A NIC that matches headers only (VMA_NIC_CAP_TO_KERNEL) has no ranges of ports. There all ports of an address are one
 * block, if it was opened so (VMA_TCP_2T_RULES). It also brings in what is the kernel's, which the protocol gives to the
 * kernel. Other processes may have rules beside it, and B does not see theirs. By C none of these can name the port, but
 * what is left of a connection that had the same peer may, for a moment: then the SYN goes out a second time.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <time.h>

#include "ring_priv.h"

#define WHOLE_ADDRESS 1       /* stands for all of them */
#define BLOCKS_MOST 128       /* of a ring: the ports that Linux gives to connections are in 111 */
#define BLOCKS_MOST_BESIDE 64 /* of one among several: others are to have some */

static _Atomic uint32_t rings_with_blocks; /* of this process */

/* A ring that is the only one with blocks may have all. One that comes later has what is left. */
static bool ring_may_have_more_port_blocks(const struct vma_ring *ring)
{
	const uint32_t blocks = atomic_load(&ring->ports.blocks);

	return blocks < BLOCKS_MOST_BESIDE || (blocks < BLOCKS_MOST && atomic_load(&rings_with_blocks) == 1);
}

static void ring_increment_port_block_count(struct vma_ring *ring)
{
	if (atomic_fetch_add(&ring->ports.blocks, 1) == 0)
		atomic_fetch_add(&rings_with_blocks, 1);
}

static void ring_subtract_port_block_count(struct vma_ring *ring, uint32_t n)
{
	if (n != 0 && atomic_fetch_sub(&ring->ports.blocks, n) == n)
		atomic_fetch_sub(&rings_with_blocks, 1);
}

void ring_ports_init(struct vma_ring *ring)
{
	pthread_mutex_init(&ring->ports.nic_lock, NULL);
}

void ring_ports_fini(struct vma_ring *ring)
{
	ring_subtract_port_block_count(ring, atomic_load(&ring->ports.blocks));
	pthread_mutex_destroy(&ring->ports.nic_lock);
}

static unsigned port_block_index(const struct vma_ring *ring, uint16_t port_be)
{
	return ring->rules.to_kernel ? WHOLE_ADDRESS : ntohs(port_be) / VMA_FLOW_PORTS;
}

static bool port_block_bit_is_set(const _Atomic uint64_t *bits, unsigned block)
{
	return atomic_load_explicit(&bits[block / 64], memory_order_relaxed) >> block % 64 & 1;
}

/* NULL: there are none of this address. */
static const struct ring_port_blocks *port_blocks_find(const struct ring_ports *ports, const void *local, uint16_t vlan)
{
	const uint32_t n = atomic_load_explicit(&ports->addresses, memory_order_acquire);

	for (uint32_t i = 0; i < n; i++)
		if (memcmp(ports->of[i].local, local, 4) == 0 && ports->of[i].vlan == vlan)
			return &ports->of[i];
	return NULL;
}

bool ring_has_port_block(const struct vma_ring *ring, const void *local, uint16_t vlan, uint16_t port_be)
{
	const struct ring_port_blocks *blocks = port_blocks_find(&ring->ports, local, vlan);

	return blocks != NULL && port_block_bit_is_set(blocks->mine, port_block_index(ring, port_be));
}

void ring_forget_revoked_port_block(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct ring_port_blocks *blocks =
	        (struct ring_port_blocks *)port_blocks_find(&ring->ports, key->local, key->vlan);
	const unsigned block = port_block_index(ring, key->local_port_be);

	const uint64_t bit = UINT64_C(1) << block % 64;

	if (blocks != NULL && atomic_fetch_and(&blocks->mine[block / 64], ~bit) & bit)
		ring_subtract_port_block_count(ring, 1);
}

/* ---- asking; with the mutex ---- */

static struct ring_port_blocks *port_blocks_find_or_add(struct ring_ports *ports, const struct vma_flow_key *key)
{
	struct ring_port_blocks *blocks = (struct ring_port_blocks *)port_blocks_find(ports, key->local, key->vlan);
	const uint32_t n = atomic_load_explicit(&ports->addresses, memory_order_relaxed);

	if (blocks != NULL || n == RING_PORT_ADDRESSES)
		return blocks;
	blocks = &ports->of[n];
	memcpy(blocks->local, key->local, sizeof(blocks->local));
	blocks->vlan = key->vlan;
	atomic_store_explicit(&ports->addresses, n + 1, memory_order_release);
	return blocks;
}

static struct vma_flow_key port_block_key(const struct vma_ring *ring, const struct ring_port_blocks *blocks,
                                          unsigned block)
{
	struct vma_flow_key key = {.family = AF_INET, .proto = VMA_FLOW_TCP_PORTS, .vlan = blocks->vlan};

	if (ring->rules.to_kernel)
		key.proto = VMA_FLOW_TCP_ADDRESS;
	else
		key.local_port_be = htons((uint16_t)(block * VMA_FLOW_PORTS));
	memcpy(key.local, blocks->local, sizeof(blocks->local));
	return key;
}

static int port_block_add(struct vma_ring *ring, const struct ring_port_blocks *blocks, unsigned block)
{
	const struct vma_flow_rule rule = {.key = port_block_key(ring, blocks, block)};
	int rc = vma_nic_flow_add(ring->qp, &rule);

	return rc == -EEXIST ? 0 : rc;
}

static int port_block_ensure(struct vma_ring *ring, struct ring_port_blocks *blocks, const struct vma_flow_key *key)
{
	const unsigned block = port_block_index(ring, key->local_port_be);
	const uint64_t bit = UINT64_C(1) << block % 64;
	struct timespec now;
	int rc;

	if (port_block_bit_is_set(blocks->mine, block))
		return 0;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (blocks->refused_sec != (uint64_t)now.tv_sec) {
		memset(blocks->refused, 0, sizeof(blocks->refused));
		blocks->refused_sec = (uint64_t)now.tv_sec;
	}
	if (blocks->refused[block / 64] & bit)
		return -EADDRINUSE;
	if (!ring_may_have_more_port_blocks(ring))
		return -EADDRINUSE; /* or perhaps nobody's */
	rc = port_block_add(ring, blocks, block);
	if (rc == 0) {
		atomic_fetch_or(&blocks->mine[block / 64], bit);
		ring_increment_port_block_count(ring);
		if (ring->rules.to_kernel)
			atomic_store(&ring->ports.address_is_new, true);
	} else if (rc == -EADDRINUSE) {
		blocks->refused[block / 64] |= bit;
	}
	return rc;
}

static int port_block_reserve_for_key(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct ring_port_blocks *blocks;
	int rc = -EADDRINUSE;

	pthread_mutex_lock(&ring->ports.nic_lock);
	blocks = port_blocks_find_or_add(&ring->ports, key);
	if (blocks != NULL)
		rc = port_block_ensure(ring, blocks, key);
	pthread_mutex_unlock(&ring->ports.nic_lock);
	return rc;
}

int vma_ring_reserve_port_block_of_key(struct vma_ring *ring, const struct vma_flow_key *key)
{
	const struct ring_port_blocks *blocks = port_blocks_find(&ring->ports, key->local, key->vlan);
	int rc = 0;

	if (key->family != AF_INET || key->proto != IPPROTO_TCP || port_block_index(ring, key->local_port_be) == 0)
		return 0;
	if (blocks == NULL || !port_block_bit_is_set(blocks->mine, port_block_index(ring, key->local_port_be)))
		rc = port_block_reserve_for_key(ring, key);
	if (rc < 0)
		return rc == -EADDRINUSE && !ring->rules.to_kernel ? rc : 0;
	if (!drive_flag_acquire(&ring->rx))
		return 0;
	rc = vma_nic_qp_is_only_tenant(ring->qp) && !vma_nic_port_has_rule(ring->qp, key->local_port_be);
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	return rc;
}

bool vma_ring_take_new_address_mark(struct vma_ring *ring)
{
	return atomic_load_explicit(&ring->ports.address_is_new, memory_order_relaxed) &&
	       atomic_exchange(&ring->ports.address_is_new, false);
}

/* ---- giving back ---- */

bool vma_ring_has_port_blocks(const struct vma_ring *ring)
{
	return atomic_load_explicit(&ring->ports.blocks, memory_order_relaxed) != 0;
}

/* With the mutex: who wants the block again waits until the NIC has taken this one back. */
static void port_blocks_remove(struct vma_ring *ring, struct ring_port_blocks *blocks, const uint64_t *had)
{
	for (unsigned block = 0; block < 256; block++) {
		const struct vma_flow_key key = port_block_key(ring, blocks, block);

		if (had[block / 64] >> block % 64 & 1)
			vma_nic_flow_del(ring->qp, &key);
	}
}

void vma_ring_release_unused_port_blocks(struct vma_ring *ring, bool (*unused)(void *arg), void *arg)
{
	struct ring_ports *ports = &ring->ports;
	uint64_t had[RING_PORT_ADDRESSES][4] = {0};
	uint32_t n;

	if (!vma_ring_has_port_blocks(ring))
		return;
	pthread_mutex_lock(&ports->nic_lock);
	n = atomic_load_explicit(&ports->addresses, memory_order_relaxed);
	if (drive_flag_acquire(&ring->rx)) {
		for (uint32_t i = 0; unused(arg) && i < n * 4; i++) {
			had[i / 4][i % 4] = atomic_exchange(&ports->of[i / 4].mine[i % 4], 0);
			ring_subtract_port_block_count(ring, (uint32_t)__builtin_popcountll(had[i / 4][i % 4]));
		}
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
		for (uint32_t i = 0; i < n; i++)
			port_blocks_remove(ring, &ports->of[i], had[i]);
	}
	pthread_mutex_unlock(&ports->nic_lock);
}
