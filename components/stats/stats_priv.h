/*
 * stats_priv - the segment as it lies in memory, the file that names it, and this process's handle of both.
 *
 *   header | drops | entry 0 .. entry N-1 | block 0 .. block N-1 | base 0 .. base N-1     (all on cache-line boundaries)
 *
 * An entry says what its block holds. Everything in it is atomic, because readers look while it changes. A base has the
 * values of its block at the last request to zero it; its pages exist only if there was one. The last blocks, one for
 * each type, are retired ones: they have the sums of what dropped blocks of that type have counted.
 *
 * Threads: the thread that has taken a block's bit writes its entry; the block's user writes the counters. Readers of
 * any process look at any time.
 */
#ifndef VMA_STATS_PRIV_H
#define VMA_STATS_PRIV_H

#include <limits.h>
#include <sys/types.h>

#include <vma/capture.h>
#include <vma/stats_read.h>

#define STATS_MAGIC 0x5441545341564d56u  /* "VMVASTAT" */
#define STATS_VERSION 4u                 /* of header and entry; lists of counters are told apart by fields_hash */
#define STATS_BLOCKS VMA_STATS_ITEMS_MAX /* the 1024 sockets that VMA_STATS_FD_NUM allows, and all else */
#define STATS_PLACES (STATS_BLOCKS + VMA_STATS_TYPE_COUNT) /* and the retired ones */
#define STATS_RETIRED(type) (STATS_BLOCKS + (size_t)(type))
#define STATS_NAME_WORDS (VMA_STATS_NAME_MAX / 8)

struct stats_header {
	_Atomic uint64_t magic; /* written last: a file without it is not finished */
	uint64_t fields_hash;   /* over names and places of all counters */
	uint64_t file_bytes;
	uint32_t version;
	uint32_t header_bytes, entry_bytes, block_bytes, block_count;
	uint32_t type_bytes[VMA_STATS_TYPE_COUNT];
	int32_t pid;
	uint64_t cookie;            /* as in the file that names it */
	_Atomic int32_t capture_fd; /* 0: no packets have been asked for yet; written last */
	_Atomic uint64_t capture_ino;
} __attribute__((aligned(VMA_STATS_ALIGN)));

/* Blocks that were dropped. A drop moves counts to a retired block, so a reader asks whether one was in between. */
struct stats_drops {
	_Atomic uint64_t begun, done;
} __attribute__((aligned(VMA_STATS_ALIGN)));

struct stats_entry {
	_Atomic uint32_t sequence; /* odd while type, name and the zeroing of the block are on their way */
	_Atomic uint32_t type;     /* enum vma_stats_type */
	_Atomic uint32_t based;    /* the sequence that the base is of; another one: there is no base */
	uint32_t unused;
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
	struct stats_drops drops;
	struct stats_entry entries[STATS_PLACES];
	union stats_any_block blocks[STATS_PLACES];
	union stats_any_block bases[STATS_PLACES];
};
#define STATS_RESERVED offsetof(struct stats_segment, bases)
#define STATS_BLOCK_WORDS (sizeof(union stats_any_block) / 8)
_Static_assert(sizeof(union stats_any_block) == sizeof(struct vma_stats_item) - offsetof(struct vma_stats_item, words),
               "an item has room for any block");
_Static_assert(sizeof(union stats_any_block) % VMA_STATS_ALIGN == 0, "whole lines");

/* What the file vmastat.PID holds. */
struct stats_locator {
	uint64_t magic;
	uint32_t version;
	int32_t pid; /* as its process sees itself */
	int32_t memory_fd, request_fd;
	uint64_t memory_ino, request_ino;
	uint64_t cookie; /* random, and the header's as well */
};

/* A request on its way through the pipe. */
struct stats_message {
	uint32_t magic;
	struct vma_stats_request request;
};
#define STATS_MESSAGE_MAGIC 0x51545356u /* "VSTQ" */

/* A descriptor of the library's. A program may have closed the number, and have another file there by now. */
struct stats_fd {
	int fd; /* -1: none */
	dev_t dev;
	ino_t ino;
};

struct stats_file {
	struct stats_fd held; /* holds the lock */
	pid_t owner;
	char path[PATH_MAX];
};

/* stats_file.c. 0: the leftover is gone, or was gone already. -EEXIST: somebody lives there, or it is not a file of
 * ours. */
int stats_file_remove_leftover(const char *path);
/* The pid of a file's name; 0: it is no such name. */
pid_t stats_file_pid(const char *name);

struct vma_stats {
	struct stats_segment *segment;
	_Atomic uint64_t used[STATS_BLOCKS / 64]; /* private: what others write cannot mislead grab */
	struct stats_file file;
	struct stats_fd memory, requests, capture_memory;
	struct vma_capture *capture; /* NULL: none yet */
	size_t capture_ready;        /* bytes of it that have their pages */
	struct {
		uint32_t asked, before; /* the largest in this period, and in the one before */
		uint64_t since_ns;      /* of this period; 0: there has been none */
	} snap;
};

/* stats_block.c: the retired blocks have their types. */
void stats_retired_init(struct stats_segment *segment);

/* The header that belongs to this build, without magic, pid and cookie. */
void stats_header_fill(struct stats_header *header);
size_t stats_type_block_size(enum vma_stats_type type);

/* Makes DIR/vmastat.PID, empty and locked. A leftover of a dead process is replaced. 0 or -errno. */
int stats_file_create(struct stats_file *file, const char *dir);
/* Says where the segment is: from now on readers find it. */
int stats_file_write_locator(struct stats_file *file, const struct stats_locator *locator);
/* Closes, and removes the file if it is still the one that this process made. */
void stats_file_remove(struct stats_file *file);

/* stats_fd.c: out of the way of the program's small numbers. */
int stats_fd_take_over_and_move_high(struct stats_fd *held, int fd);
void stats_fd_close_if_still_ours(struct stats_fd *held);

/* stats_memory.c: the sealed memory, and its mapping; and the pipe. 0 or -errno. */
int stats_memory_create(struct stats_fd *memory, struct stats_segment **segment);
int stats_create_request_pipe(struct stats_fd *requests);

/* stats_copy.c. The block at this place as readers see it: true, and *sequence is the entry's that it belongs to. */
bool stats_copy_entry_consistently(const struct stats_segment *segment, size_t place, struct vma_stats_item *out);

#endif
