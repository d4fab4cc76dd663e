/*
 * flow_table.h - from a flow key to the list of its members, for one kind of key (5-tuples, or 3-tuples).
 *
 * The hash is keyed with a secret per table, because a remote peer chooses part of the key.
 *
 * Threads: the holder of the receive flag only, for reading and writing: no atomics, no locks.
 * Cost: one hash and, at a load below one half, 1.5 probes in the mean with any number of flows. A probe compares
 * cached hashes and looks at a flow only if they agree.
 */
#ifndef VMA_RING_FLOW_TABLE_H
#define VMA_RING_FLOW_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <vma/ring.h>

struct flow_entry {
	struct vma_flow *head; /* members in order of attachment; NULL: empty entry */
	uint32_t hash;
	bool steered;   /* the NIC was told of this key */
	bool revoked;   /* and no longer steers it to us */
	bool inherited; /* from flows that have gone: the NIC does not know the shadows of those that are here */
	bool reserved;  /* there is a spare stale rule for it, see ring_leave.c */
};

struct flow_table {
	struct flow_entry *entries;
	uint32_t mask; /* entries - 1 */
	uint32_t used;
	uint64_t secret[4];
};

/* A key as five words: the shape that is hashed and compared. */
struct flow_words {
	uint64_t w[5];
};

static inline struct flow_words flow_words_of(const struct vma_flow_key *key)
{
	struct flow_words words;

	memcpy(&words, key, sizeof(words));
	return words;
}

/* Of the first word, what a 3-tuple has too: all but the peer's port. */
#define FLOW_WORD0_LOCAL UINT64_C(0x0000ffffffffffff)

/* The first word from the fields of a packet, without a detour through memory. */
static inline uint64_t flow_word0(uint8_t family, uint8_t proto, uint16_t vlan, uint16_t local_port_be,
                                  uint16_t peer_port_be)
{
	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "offsets of struct vma_flow_key as shifts");
	return family | (uint64_t)proto << 8 | (uint64_t)vlan << 16 | (uint64_t)local_port_be << 32 |
	       (uint64_t)peer_port_be << 48;
}

static inline uint64_t flow_hash_multiply_fold(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* An IPv4 key has its addresses in the low halves of words 1 and 3, and takes one multiplication. */
static inline uint32_t flow_hash(const struct flow_table *table, const struct flow_words *k)
{
	uint64_t h = flow_hash_multiply_fold(k->w[0] ^ table->secret[0],
	                                     k->w[1] ^ (k->w[3] << 32 | k->w[3] >> 32) ^ table->secret[1]);

	if ((k->w[2] | k->w[4]) != 0)
		h ^= flow_hash_multiply_fold(k->w[2] ^ table->secret[2], k->w[4] ^ table->secret[3]);
	return (uint32_t)(h ^ h >> 32);
}

int flow_table_init(struct flow_table *table);
void flow_table_fini(struct flow_table *table);
/* Appends a member; *entry is where. 0, or -ENOMEM. */
int flow_table_insert(struct flow_table *table, struct vma_flow *flow, struct flow_entry **entry);
/* Takes a member out; true: it was the last of its key. */
bool flow_table_remove(struct flow_table *table, struct vma_flow *flow);

static inline bool flow_words_equal(const struct flow_words *a, const struct flow_words *b)
{
	return ((a->w[0] ^ b->w[0]) | (a->w[1] ^ b->w[1]) | (a->w[2] ^ b->w[2]) | (a->w[3] ^ b->w[3]) |
	        (a->w[4] ^ b->w[4])) == 0;
}

static inline __attribute__((always_inline)) struct flow_entry *flow_table_find(const struct flow_table *table,
                                                                                const struct flow_words *words)
{
	uint32_t hash = flow_hash(table, words);

	for (uint32_t i = hash & table->mask;; i = (i + 1) & table->mask) {
		struct flow_entry *entry = &table->entries[i];
		struct flow_words theirs;

		if (entry->head == NULL)
			return NULL;
		if (entry->hash != hash)
			continue;
		theirs = flow_words_of(&entry->head->key);
		if (flow_words_equal(&theirs, words))
			return entry;
	}
}

#endif
