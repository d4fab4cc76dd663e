/*
 * fake_owner - an owner without a device: linked in place of owner/owner.c, so that vmad's messages can be tested as
 * any user. It keeps the book of slots and flows that an owner would keep, and refuses what an owner would refuse.
 */
#ifndef VMA_FAKE_OWNER_H
#define VMA_FAKE_OWNER_H

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../owner/record.h"
#include "../xdp/owner.h"
#include "../xdp/xdp.h"

#define FAKE_FLOWS 64

static struct xdp_owner {
	_Atomic int busy;               /* that many calls of create fail with -EBUSY */
	_Atomic uint64_t rented;        /* bit per slot */
	_Atomic uint64_t leaving;       /* returned, but for its frames */
	_Atomic unsigned rents, finals; /* slots given out, and taken back with their frames */
	_Atomic bool revoke;            /* the next tick takes the first flow back */
	struct {
		bool used;
		uint32_t slot;
		struct vma_flow_key key;
	} flow[FAKE_FLOWS];
	_Atomic uint64_t shadow[FAKE_FLOWS]; /* of the last calls of flow_shadows */
	_Atomic unsigned shadows;
	struct xdp_proof_socket proof;                 /* of the last flow_ask */
	struct vma_flow_minisock minisock[FAKE_FLOWS]; /* of the last calls of minisock_export */
	_Atomic unsigned minisocks;
	int fd;
} fake;

static void fake_owner_reset(void)
{
	if (fake.fd > 0)
		close(fake.fd);
	memset(&fake, 0, sizeof(fake));
	fake.fd = memfd_create("fake", MFD_CLOEXEC);
}

int xdp_owner_create(const struct xdp_owner_attr *attr, struct xdp_owner **out)
{
	(void)attr;
	if (atomic_load(&fake.busy) > 0) {
		atomic_fetch_sub(&fake.busy, 1);
		return -EBUSY;
	}
	*out = &fake;
	return 0;
}

void xdp_owner_destroy(struct xdp_owner *owner)
{
	(void)owner;
}

int xdp_owner_rent_queue_pair_slot(struct xdp_owner *owner, uint32_t rx_wre, uint32_t tx_wre, struct xdp_rental *out)
{
	uint32_t slot = 0;

	(void)rx_wre;
	(void)tx_wre;
	while (slot < XDP_SLOTS_MAX && (owner->rented >> slot & 1))
		slot++;
	if (slot == XDP_SLOTS_MAX)
		return -ENOSPC;
	owner->rented |= 1ull << slot;
	owner->rents++;
	*out = (struct xdp_rental){
	        .slot = slot, .queues = 2, .nframes = 512, .rx_size = 64, .tx_size = 64, .tx_count = 64, .mtu = 1500};
	out->alive_fd = -1;
	out->umem_fd = out->shared_fd = out->claims_fd = out->socket_fd[0] = out->socket_fd[1] = owner->fd;
	return 0;
}

void xdp_owner_take_back_slot(struct xdp_owner *owner, uint32_t slot, bool frames_too)
{
	if (slot >= XDP_SLOTS_MAX || !(owner->rented >> slot & 1))
		return;
	for (unsigned i = 0; i < FAKE_FLOWS; i++)
		if (owner->flow[i].used && owner->flow[i].slot == slot)
			owner->flow[i].used = false;
	owner->leaving |= 1ull << slot;
	if (!frames_too)
		return;
	owner->leaving &= ~(1ull << slot);
	owner->rented &= ~(1ull << slot);
	owner->finals++;
}

int xdp_owner_flow_add(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	for (unsigned i = 0; i < FAKE_FLOWS; i++)
		if (owner->flow[i].used && memcmp(&owner->flow[i].key, &rule->key, sizeof(rule->key)) == 0)
			return owner->flow[i].slot == slot ? -EEXIST : -EADDRINUSE;
	for (unsigned i = 0; i < FAKE_FLOWS; i++) {
		if (owner->flow[i].used)
			continue;
		owner->flow[i].used = true;
		owner->flow[i].slot = slot;
		owner->flow[i].key = rule->key;
		return 0;
	}
	return -ENOSPC;
}

/* What was shown is kept, to be looked at. */
int xdp_owner_flow_request(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule,
                           const struct xdp_proof_socket *proof)
{
	owner->proof = *proof;
	return xdp_owner_flow_add(owner, slot, rule);
}

int xdp_owner_flow_shadows(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key,
                           const uint64_t *cookies, unsigned n)
{
	int rc = key->family == 2 ? 0 : -EAFNOSUPPORT; /* AF_INET */

	if (slot >= XDP_SLOTS_MAX || !(owner->rented >> slot & 1))
		return -EINVAL;
	for (unsigned i = 0; i < n && rc == 0; i++)
		owner->shadow[owner->shadows++ % FAKE_FLOWS] = cookies[i];
	return rc;
}

bool xdp_owner_uses_generic_xdp(const struct xdp_owner *owner)
{
	(void)owner;
	return true;
}

int xdp_owner_flow_del(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	for (unsigned i = 0; i < FAKE_FLOWS; i++) {
		if (!owner->flow[i].used || owner->flow[i].slot != slot ||
		    memcmp(&owner->flow[i].key, key, sizeof(*key)) != 0)
			continue;
		owner->flow[i].used = false;
		return 0;
	}
	return -ENOENT;
}

bool xdp_owner_slot_is_entitled_to_connection(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	for (unsigned i = 0; i < FAKE_FLOWS; i++)
		if (owner->flow[i].used && owner->flow[i].slot == slot &&
		    memcmp(&owner->flow[i].key, key, sizeof(*key)) == 0)
			return true;
	return false;
}

int xdp_owner_flow_move(struct xdp_owner *owner, uint32_t from, uint32_t to, const struct vma_flow_key *key)
{
	for (unsigned i = 0; i < FAKE_FLOWS; i++) {
		if (!owner->flow[i].used || owner->flow[i].slot != from ||
		    memcmp(&owner->flow[i].key, key, sizeof(*key)) != 0)
			continue;
		owner->flow[i].slot = to;
		return 0;
	}
	return -ENOENT;
}

int xdp_owner_flow_stop_new_conns(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	(void)owner, (void)slot, (void)key;
	return -ENOENT;
}

int xdp_owner_take_over_conn_as_minisock(struct xdp_owner *owner, uint32_t slot,
                                         const struct vma_flow_minisock *minisock)
{
	if (slot >= XDP_SLOTS_MAX || !(owner->rented >> slot & 1))
		return -EINVAL;
	owner->minisock[owner->minisocks++ % FAKE_FLOWS] = *minisock;
	return 0;
}

uint32_t xdp_owner_slot_flow_count(const struct xdp_owner *owner, uint32_t slot)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < FAKE_FLOWS; i++)
		n += owner->flow[i].used && owner->flow[i].slot == slot;
	return n;
}

void xdp_owner_fill_interface_report(const struct xdp_owner *owner, struct vma_vmad_interface *out)
{
	*out = (struct vma_vmad_interface){
	        .queues = 2, .mtu = 1500, .queue_pairs = (uint32_t)__builtin_popcountll(owner->rented)};
}

bool xdp_owner_fill_slot_report(const struct xdp_owner *owner, uint32_t number, struct vma_vmad_queue_pair *out)
{
	if (number >= XDP_SLOTS_MAX || !(owner->rented >> number & 1))
		return false;
	*out = (struct vma_vmad_queue_pair){
	        .number = number, .state = 1, .flows = xdp_owner_slot_flow_count(owner, number), .tx_frames = 64};
	return true;
}

void xdp_owner_log_summary(const struct xdp_owner *owner)
{
	(void)owner;
}

int xdp_owner_get_minisock_segment_fd(const struct xdp_owner *owner)
{
	(void)owner;
	return -1;
}

int xdp_owner_link_fd(const struct xdp_owner *owner)
{
	(void)owner;
	return -1;
}

void xdp_owner_tick(struct xdp_owner *owner, void (*revoked)(uint32_t slot, const struct vma_flow_key *key, void *arg),
                    void *arg)
{
	for (unsigned i = 0; i < FAKE_FLOWS && owner->revoke; i++) {
		if (!owner->flow[i].used)
			continue;
		owner->flow[i].used = false;
		owner->revoke = false;
		revoked(owner->flow[i].slot, &owner->flow[i].key, arg);
	}
}

void xdp_owner_set_adopt_callback(struct xdp_owner *owner, bool (*adopt)(uint32_t, const struct vma_pending *, void *),
                                  void *arg)
{
	(void)owner, (void)adopt, (void)arg;
}

bool xdp_owner_has_flow(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	for (unsigned i = 0; i < FAKE_FLOWS; i++)
		if (owner->flow[i].used && memcmp(&owner->flow[i].key, key, sizeof(*key)) == 0)
			return true;
	return false;
}

bool xdp_owner_has_minisocks(const struct xdp_owner *owner)
{
	(void)owner;
	return false;
}

int xdp_owner_next_tick_ms(const struct xdp_owner *owner)
{
	(void)owner;
	return 5;
}

bool xdp_owner_device_gone(const struct xdp_owner *owner)
{
	(void)owner;
	return false;
}

/* Nothing is kept here: each slot's tenant is known while this owner lives. */
static struct owner_slot_tenant fake_tenant[XDP_SLOTS_MAX];

void xdp_owner_put_all_fds_in_fdstore(struct xdp_owner *owner, struct fdstore *fdstore)
{
	(void)owner, (void)fdstore;
}

int xdp_owner_take_over_from_fdstore(const struct xdp_owner_attr *attr, struct fdstore *fdstore,
                                     struct fdstore_fds *hand, struct xdp_owner **out)
{
	(void)attr, (void)fdstore, (void)hand, (void)out;
	return -EPROTO;
}

void xdp_owner_record_tenant_of_slot(struct xdp_owner *owner, uint32_t slot, const struct owner_slot_tenant *tenant,
                                     int pidfd)
{
	(void)owner, (void)pidfd;
	fake_tenant[slot] = *tenant;
}

int xdp_owner_get_tenant_pidfd(const struct xdp_owner *owner, uint32_t slot)
{
	(void)owner, (void)slot;
	return -1;
}

bool xdp_owner_tenant(const struct xdp_owner *owner, uint32_t slot, struct owner_slot_tenant *tenant, bool *leaves)
{
	if (slot >= XDP_SLOTS_MAX || !(owner->rented >> slot & 1))
		return false;
	*tenant = fake_tenant[slot];
	*leaves = owner->leaving >> slot & 1;
	return true;
}

void xdp_owner_resend_moved_conns_to_slot(struct xdp_owner *owner, uint32_t slot)
{
	(void)owner, (void)slot;
}

void xdp_owner_end_unannounced_flows_of_slot(struct xdp_owner *owner, uint32_t slot)
{
	(void)owner, (void)slot;
}

#endif
