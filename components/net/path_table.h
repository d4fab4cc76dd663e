/*
 * path_table.h - key -> path: a ck_ht, changed under net's lock, read without.
 *
 * The table holds 64-bit hashes. The path's own words tell whether the path found is the wanted one. (It may also have
 * been reused for another key meanwhile.) Of two keys with the same hash only the first is in the table.
 * Reclamation: paths are never freed before destroy. Arrays that the hash table has outgrown are kept until then too.
 * Each is twice as large as the one before, so all of them together take no more than the present one.
 */
#ifndef VMA_NET_PATH_TABLE_H
#define VMA_NET_PATH_TABLE_H

#include <vma/ck_tsan.h>
#include <ck_ht.h>

#include <vma/net.h>

struct path_table_block;
struct path_table {
	ck_ht_t hash;
	uint64_t seed[2];
	struct path_table_block *outgrown;
	unsigned removed; /* since tombstones were last collected */
};

int path_table_init(struct path_table *table);
void path_table_fini(struct path_table *table);
/* false: another path has this hash, or no memory. */
bool path_table_add(struct path_table *table, const struct vma_net_key *key, struct vma_net_path *path);
void path_table_remove(struct path_table *table, const struct vma_net_key *key);
/* The path that has the key's hash, NULL: none. Any thread. */
struct vma_net_path *path_table_find(struct path_table *table, const struct vma_net_key *key);

#endif
