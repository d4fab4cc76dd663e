/*
 * stats_priv - the segment as it lies in the file, and this process's handle of it.
 *
 *   header | entry 0 .. entry N-1 | block 0 .. block N-1        (all on cache-line boundaries)
 *
 * An entry says what its block holds. Everything in it is atomic, because readers look while it changes.
 *
 * Threads: the thread that has taken a block's bit writes its entry; the block's user writes the counters. Readers of
 * any process look at any time.
 */
#ifndef VMA_STATS_PRIV_H
#define VMA_STATS_PRIV_H

#include <limits.h>
#include <sys/types.h>

#include <vma/stats.h>

#define STATS_MAGIC 0x5441545341564d56u /* "VMVASTAT" */
#define STATS_VERSION 1u                /* of header and entry; lists of counters are told apart by fields_hash */
#define STATS_BLOCKS 1536u              /* the 1024 sockets that VMA_STATS_FD_NUM allows, and all else */
#define STATS_NAME_WORDS (VMA_STATS_NAME_MAX / 8)

struct stats_header {
	_Atomic uint64_t magic; /* written last: a file without it is not finished */
	uint64_t fields_hash;   /* over names and places of all counters */
	uint64_t file_bytes;
	uint32_t version;
	uint32_t header_bytes, entry_bytes, block_bytes, block_count;
	uint32_t type_bytes[VMA_STATS_TYPE_COUNT];
	int32_t pid;
} __attribute__((aligned(VMA_STATS_ALIGN)));

struct stats_entry {
	_Atomic uint32_t sequence; /* odd while type, name and the zeroing of the block are on their way */
	_Atomic uint32_t type;     /* enum vma_stats_type */
	_Atomic uint64_t name[STATS_NAME_WORDS];
} __attribute__((aligned(VMA_STATS_ALIGN)));

union stats_any_block { /* as large as the largest, and thereby a whole number of lines */
#define X(name, type, text) struct type name;
	VMA_STATS_TYPES(X)
#undef X
	_Atomic uint64_t words[1];
};

struct stats_segment {
	struct stats_header header;
	struct stats_entry entries[STATS_BLOCKS];
	union stats_any_block blocks[STATS_BLOCKS];
};
#define STATS_BLOCK_WORDS (sizeof(union stats_any_block) / 8)
_Static_assert(sizeof(union stats_any_block) % VMA_STATS_ALIGN == 0, "whole lines");

struct stats_file {
	int fd; /* holds the lock; -1: no file */
	dev_t dev;
	ino_t ino;
	pid_t owner;
	char path[PATH_MAX];
};

/* stats_file.c. 0: the leftover is gone, or was gone already. -EEXIST: somebody lives there, or it is not a file of
 * ours. */
int stats_file_remove_leftover(const char *path);

struct vma_stats {
	struct stats_segment *segment;
	_Atomic uint64_t used[STATS_BLOCKS / 64]; /* private: what others write into the file cannot mislead grab */
	struct stats_file file;
};

/* The header that belongs to this build, without magic and pid. */
void stats_header_fill(struct stats_header *header);
size_t stats_type_bytes(enum vma_stats_type type);

/* Makes DIR/vmastat.PID, `bytes` long, reserved, locked. A leftover of a dead process is replaced. 0 or -errno. */
int stats_file_create(struct stats_file *file, const char *dir, size_t bytes);
/* Closes, and removes the file if it is still the one that this process made. */
void stats_file_remove(struct stats_file *file);

#endif
