/* path_table - the hash table of paths, and the end of its outgrown arrays. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "path_table.h"

#define CAPACITY_FIRST 64
#define COLLECT_AFTER 1024

/* In front of every array of the hash table; keeps ck's 16 or 32 byte alignment. */
struct path_table_block {
	_Alignas(64) struct path_table_block *next;
};

/* ck's allocator gets no argument: this is the table that the calling thread is changing. */
static _Thread_local struct path_table *changing;

static void *path_table_block_alloc(size_t bytes)
{
	struct path_table_block *block =
	        aligned_alloc(_Alignof(struct path_table_block), (sizeof(*block) + bytes + 63) & ~(size_t)63);

	/* cppcheck-suppress memleak ; path_table_block_free_or_defer finds it from what is returned */
	return block != NULL ? block + 1 : NULL;
}

static void path_table_block_free_or_defer(void *memory, size_t bytes, bool readers)
{
	struct path_table_block *block;

	(void)bytes;
	if (memory == NULL)
		return;
	block = (struct path_table_block *)memory - 1;
	if (!readers || changing == NULL) {
		free(block);
		return;
	}
	block->next = changing->outgrown;
	changing->outgrown = block;
}

static struct ck_malloc allocator = {.malloc = path_table_block_alloc, .free = path_table_block_free_or_defer};

int path_table_init(struct path_table *table)
{
	memset(table, 0, sizeof(*table));
	/* Others choose addresses: without the seed they could choose them to collide. */
	if (syscall(SYS_getrandom, table->seed, sizeof(table->seed), 0) != (long)sizeof(table->seed))
		return -errno;
	if (!ck_ht_init(&table->hash, CK_HT_MODE_DIRECT | CK_HT_WORKLOAD_DELETE, NULL, &allocator, CAPACITY_FIRST,
	                table->seed[0]))
		return -ENOMEM;
	return 0;
}

void path_table_fini(struct path_table *table)
{
	struct path_table_block *block = table->outgrown;

	if (table->hash.map != NULL)
		ck_ht_destroy(&table->hash);
	while (block != NULL) {
		struct path_table_block *next = block->next;

		free(block);
		block = next;
	}
	memset(table, 0, sizeof(*table));
}

/* Multiply and fold, seeded; never the two values that ck_ht keeps for itself. */
static uintptr_t path_hash_key(const struct path_table *table, const struct vma_net_key *key)
{
	uint64_t words[VMA_NET_KEY_WORDS], hash = table->seed[1];

	memcpy(words, key, sizeof(words));
	for (size_t i = 0; i < VMA_NET_KEY_WORDS; i++) {
		const unsigned __int128 product =
		        (unsigned __int128)(words[i] ^ hash ^ table->seed[0]) * 0x9e3779b97f4a7c15u;

		hash = (uint64_t)product ^ (uint64_t)(product >> 64) ^ ((hash << 23) | (hash >> 41));
	}
	return hash == CK_HT_KEY_EMPTY || hash == CK_HT_KEY_TOMBSTONE ? 1 : hash;
}

bool path_table_add(struct path_table *table, const struct vma_net_key *key, struct vma_net_path *path)
{
	const uintptr_t number = path_hash_key(table, key);
	ck_ht_entry_t entry;
	ck_ht_hash_t hash;
	bool added;

	ck_ht_hash_direct(&hash, &table->hash, number);
	ck_ht_entry_set_direct(&entry, hash, number, (uintptr_t)path);
	__tsan_release(&table->hash);
	changing = table;
	added = ck_ht_put_spmc(&table->hash, hash, &entry);
	changing = NULL;
	return added;
}

void path_table_remove(struct path_table *table, const struct vma_net_key *key)
{
	const uintptr_t number = path_hash_key(table, key);
	ck_ht_entry_t entry;
	ck_ht_hash_t hash;

	ck_ht_hash_direct(&hash, &table->hash, number);
	ck_ht_entry_key_set_direct(&entry, number);
	changing = table;
	ck_ht_remove_spmc(&table->hash, hash, &entry);
	if (++table->removed >= COLLECT_AFTER) {
		ck_ht_gc(&table->hash, 0, number);
		table->removed = 0;
	}
	changing = NULL;
}

struct vma_net_path *path_table_find(struct path_table *table, const struct vma_net_key *key)
{
	const uintptr_t number = path_hash_key(table, key);
	ck_ht_entry_t entry;
	ck_ht_hash_t hash;

	ck_ht_hash_direct(&hash, &table->hash, number);
	ck_ht_entry_key_set_direct(&entry, number);
	if (!ck_ht_get_spmc(&table->hash, hash, &entry))
		return NULL;
	__tsan_acquire(&table->hash);
	return (struct vma_net_path *)ck_ht_entry_value_direct(&entry);
}
