/*
 * ring_alloc.c - which sockets share a ring (VMA_RING_ALLOCATION_LOGIC_*): numbers in, numbers out.
 *
 *   logic  key                      rings
 *   0      nothing                  one per interface
 *   1      local address            one per IP
 *   10     socket                   one per socket
 *   11     the user's number        one per user id (extra API)
 *   20     thread                   one per thread
 *   30/31  core                     one per core; 31 also binds its threads to cores, which its caller does
 *
 * The logic is part of the key, and so is the profile: rings of different ones on one interface are never shared by
 * accident. Thread and core are those that made the socket, so its key stays the same while it lives, unless
 * VMA_RING_MIGRATION_RATIO_RX or _TX is set (<vma/sock_migrate.h>).
 */
#include <string.h>

#include <vma/ring.h>

struct vma_ring_key vma_ring_key(enum vma_ring_logic logic, const struct vma_ring_requester *where)
{
	struct vma_ring_key key;

	memset(&key, 0, sizeof(key)); /* padding too: keys are compared as bytes */
	key.logic = logic;
	key.profile = where->profile;
	switch (logic) {
	case VMA_RING_LOGIC_PER_INTERFACE:
		break;
	case VMA_RING_LOGIC_PER_IP:
		memcpy(key.id, where->local, sizeof(key.id));
		break;
	case VMA_RING_LOGIC_PER_SOCKET:
		memcpy(key.id, &where->socket_id, sizeof(where->socket_id));
		break;
	case VMA_RING_LOGIC_PER_USER_ID:
		memcpy(key.id, &where->user_id, sizeof(where->user_id));
		break;
	case VMA_RING_LOGIC_PER_THREAD:
		memcpy(key.id, &where->thread_id, sizeof(where->thread_id));
		break;
	case VMA_RING_LOGIC_PER_CORE:
	case VMA_RING_LOGIC_PER_CORE_ATTACH_THREADS:
		memcpy(key.id, &where->core, sizeof(where->core));
		break;
	}
	return key;
}

/* FNV-1a, with a last mix because the number below comes from a division. */
static uint32_t hash_ring_key(const struct vma_ring_key *key)
{
	uint64_t h = 0xcbf29ce484222325 ^ (uint64_t)key->logic ^ (uint64_t)key->profile << 32;

	for (size_t i = 0; i < sizeof(key->id); i++)
		h = (h ^ key->id[i]) * 0x100000001b3;
	h ^= h >> 33;
	h *= 0xff51afd7ed558ccd;
	return (uint32_t)(h >> 32);
}

/* Sharing goes by the key, so that one asks twice and gets the same ring while the number of rings stands. */
int vma_ring_choose_existing_or_new(struct vma_ring_key key, uint32_t existing, uint32_t limit)
{
	if (limit == 0 || existing < limit)
		return -1;
	return (int)(hash_ring_key(&key) % existing);
}
