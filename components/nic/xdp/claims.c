/* claims - flows claimed, given up, swept; the argument is in claims.h. */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "claims.h"
#include "shared.h"

#define BYTES (XDP_CLAIM_BUCKETS * sizeof(struct xdp_claim_bucket))

_Static_assert(XDP_SLOTS_MAX < 1 << 16, "a slot's number is no name");

/* The program's structure has plain words; here they are atomics of the same shape. */
static _Atomic uint64_t *claim_word_as_atomic(__u64 *at)
{
	_Static_assert(sizeof(_Atomic uint64_t) == sizeof(__u64), "one and the same");
	return (_Atomic uint64_t *)at;
}

/* A map is no file of any type. The kernel maps no more of one than there is; a file could be cut under our eyes. */
struct xdp_claim_bucket *xdp_claims_map(int fd)
{
	struct stat st;
	void *claims;

	if (fstat(fd, &st) < 0 || (st.st_mode & S_IFMT) != 0)
		return NULL;
	claims = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (claims == MAP_FAILED)
		return NULL;
	madvise(claims, BYTES, MADV_DONTFORK);
	return claims;
}

void xdp_claims_unmap(struct xdp_claim_bucket *claims)
{
	if (claims != NULL)
		munmap(claims, BYTES);
}

/* ---- clients ---- */

static uint64_t claim_pack_name_and_seek_bucket(const struct vma_flow_key *key, struct xdp_claim_bucket **bucket)
{
	uint32_t local;

	memcpy(&local, key->local, sizeof(local));
	*bucket += xdp_claim_bucket_of(local, key->local_port_be);
	return xdp_claim_pack_local_name(local, key->local_port_be, key->vlan);
}

static uint64_t claim_pack_peer_and_slot(const struct vma_flow_key *key, uint32_t slot)
{
	uint32_t peer;

	memcpy(&peer, key->peer, sizeof(peer));
	return xdp_claim_pack_peer_and_slot(peer, key->peer_port_be, (uint16_t)slot);
}

/* A dead client's that nobody has swept yet would be found in the place of ours. */
static bool claim_has_other_slot(struct xdp_claim *claim, uint64_t name, uint32_t slot)
{
	return atomic_load(claim_word_as_atomic(&claim->name)) == name &&
	       (uint16_t)atomic_load(claim_word_as_atomic(&claim->peer_and_slot)) != slot;
}

struct xdp_claim *xdp_claims_add_flow(struct xdp_claim_bucket *claims, struct xdp_shared *shared, uint32_t slot,
                                      const struct vma_flow_key *key)
{
	const uint64_t name = claim_pack_name_and_seek_bucket(key, &claims);

	for (unsigned i = 0; i < XDP_CLAIM_WAYS; i++)
		if (claim_has_other_slot(&claims->way[i], name, slot))
			return NULL;
	for (unsigned i = 0; i < XDP_CLAIM_WAYS; i++) {
		struct xdp_claim *claim = &claims->way[i];
		uint64_t expected = 0;

		if (!atomic_compare_exchange_strong(claim_word_as_atomic(&claim->name), &expected, slot + 1))
			continue;
		atomic_store_explicit(claim_word_as_atomic(&claim->peer_and_slot), claim_pack_peer_and_slot(key, slot),
		                      memory_order_relaxed);
		atomic_store(claim_word_as_atomic(&claim->name),
		             name); /* after `peer_and_slot`, for the program; before `open`, for the owner */
		if (!atomic_load(&shared->claims_open)) {
			xdp_claims_remove_flow(claim);
			return NULL;
		}
		atomic_fetch_add_explicit(&shared->claims_made, 1, memory_order_relaxed);
		return claim;
	}
	return NULL;
}

/* The peer's half stays. Nobody else writes the word of a claim that has a name, while its client lives. */
void xdp_claims_move_to_slot(struct xdp_claim *claim, uint32_t slot)
{
	const uint64_t peer_and_slot =
	        atomic_load_explicit(claim_word_as_atomic(&claim->peer_and_slot), memory_order_relaxed);

	atomic_store(claim_word_as_atomic(&claim->peer_and_slot), (peer_and_slot & ~(uint64_t)UINT16_MAX) | slot);
}

void xdp_claims_remove_flow(struct xdp_claim *claim)
{
	atomic_store(claim_word_as_atomic(&claim->name), 0);
}

/* ---- the owner ---- */

void xdp_claims_allow(struct xdp_shared *shared)
{
	atomic_store(&shared->claims_open, 1);
}

static bool xdp_claims_exist(struct xdp_claim_bucket *claims)
{
	for (unsigned b = 0; b < XDP_CLAIM_BUCKETS; b++)
		for (unsigned i = 0; i < XDP_CLAIM_WAYS; i++)
			if (atomic_load(claim_word_as_atomic(&claims[b].way[i].name)) != 0)
				return true;
	return false;
}

bool xdp_claims_forbid_if_none_exist(struct xdp_claim_bucket *claims, struct xdp_shared *shared)
{
	atomic_store(&shared->claims_open, 0);
	if (!xdp_claims_exist(claims))
		return true;
	atomic_store(&shared->claims_open, 1);
	return false;
}

/* `name` was read from it. */
static bool claim_is_of_slot(struct xdp_claim *claim, uint64_t name, uint32_t slot)
{
	return name == slot + 1 ||
	       (name > UINT16_MAX && (uint16_t)atomic_load(claim_word_as_atomic(&claim->peer_and_slot)) == slot);
}

uint32_t xdp_claims_count_all(struct xdp_claim_bucket *claims)
{
	uint32_t n = 0;

	for (unsigned b = 0; b < XDP_CLAIM_BUCKETS; b++)
		for (unsigned i = 0; i < XDP_CLAIM_WAYS; i++)
			n += atomic_load(claim_word_as_atomic(&claims[b].way[i].name)) != 0;
	return n;
}

uint32_t xdp_claims_count_of_slot(struct xdp_claim_bucket *claims, uint32_t slot)
{
	uint32_t n = 0;

	for (unsigned b = 0; b < XDP_CLAIM_BUCKETS; b++)
		for (unsigned i = 0; i < XDP_CLAIM_WAYS; i++)
			n += claim_is_of_slot(&claims[b].way[i],
			                      atomic_load(claim_word_as_atomic(&claims[b].way[i].name)), slot);
	return n;
}

/*
 * `peer_and_slot` names the slot whose client wrote it last, and is written while the name tells that somebody is at
 * it: with a name behind it, it is that name's. A dead slot's word is changed by nobody but the owner; what another
 * client takes meanwhile has another name, or another slot.
 */
static void claim_free_if_of_slot(struct xdp_claim *claim, uint32_t slot)
{
	uint64_t name = atomic_load(claim_word_as_atomic(&claim->name));

	if (claim_is_of_slot(claim, name, slot))
		atomic_compare_exchange_strong(claim_word_as_atomic(&claim->name), &name, 0);
}

void xdp_claims_free_of_slot(struct xdp_claim_bucket *claims, uint32_t slot)
{
	for (unsigned b = 0; b < XDP_CLAIM_BUCKETS; b++)
		for (unsigned i = 0; i < XDP_CLAIM_WAYS; i++)
			claim_free_if_of_slot(&claims[b].way[i], slot);
}
