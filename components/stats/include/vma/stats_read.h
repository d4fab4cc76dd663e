/*
 * stats_read - the reader's side of stats: the processes, and the counters of one of them.
 *
 *   vmastat.PID ── names ──> memfd of the process, by /proc/PID/fd: counters, read-only
 *                            pipe of the process, by /proc/PID/fd: requests
 *
 * Nothing is believed that a file or another process says. The file is read, never mapped. The memory is mapped if it
 * is sealed against shortening, so a read cannot raise SIGBUS. Sizes and places are this build's own constants; types
 * are range-checked, names ended and printable.
 *
 * Functions return 0 or a count, or a negative errno.
 *
 * Threads: a view and a snapshot are used by one thread at a time.
 * Progress: a block that changes hands during the copy is tried a few times, then passed over.
 * Memory: views are allocated; snapshots are the caller's.
 * Example: tools/vma_stats, test/test_view.c.
 */
#ifndef VMA_STATS_READ_H
#define VMA_STATS_READ_H

#include <sys/types.h>

#include <vma/stats.h>

/*
 * Maps the counters of the process that a file vmastat.PID names. -EPROTO: it is no such file, or of another build;
 * -ESRCH: its process has gone, or is not to be found under that number here; -EACCES: it is another user's.
 */
struct vma_stats_view;
int vma_stats_view_open(const char *path, struct vma_stats_view **out);
void vma_stats_view_close(struct vma_stats_view *view);
/* Whether the file that the view was opened by still names the same memory: not so after an exec. */
bool vma_stats_view_is_current(const struct vma_stats_view *view, const char *path);
int vma_stats_view_pid(const struct vma_stats_view *view); /* of the process, as it sees itself */
/*
 * Next used block after *cursor (start with 0): type, name, and a copy of the block taken now; each is valid until the
 * same block is visited again or the view closed. False at the end.
 */
bool vma_stats_view_next(struct vma_stats_view *view, size_t *cursor, enum vma_stats_type *type, const char **name,
                         const void **block);
/* Asks the process; it answers within moments, by doing so. -EPIPE: it has gone. */
int vma_stats_view_request(const struct vma_stats_view *view, const struct vma_stats_request *request);

/* A copy of one block. `place` and `sequence` tell a block from others, and from what its place held before. */
struct vma_stats_item {
	enum vma_stats_type type;
	uint32_t place, sequence;
	char name[VMA_STATS_NAME_MAX];
	union { /* by type */
		struct vma_stats_ring ring;
		struct vma_stats_cq cq;
		struct vma_stats_bufpool bufpool;
		struct vma_stats_nic nic;
		struct vma_stats_socket socket;
		struct vma_stats_process process;
		struct vma_stats_iomux iomux;
		_Atomic uint64_t words[1];
	};
};

/*
 * All blocks of a process, in the order of their places. retired[type] has the sums of what blocks of that type had
 * counted when they were dropped; its type is FREE if it cannot be read. The sum of a counter over the items of a
 * type and its retired one does not fall, unless the counters are zeroed. If a snapshot is not `whole`, blocks were
 * dropped while it was taken: their counts may be in it twice, or not at all.
 */
#define VMA_STATS_ITEMS_MAX 1536
struct vma_stats_snapshot {
	int pid;
	uint64_t taken_ns; /* CLOCK_MONOTONIC */
	bool whole;
	size_t count;
	struct vma_stats_item items[VMA_STATS_ITEMS_MAX];
	struct vma_stats_item retired[VMA_STATS_TYPE_COUNT];
};
void vma_stats_view_read(const struct vma_stats_view *view, struct vma_stats_snapshot *out);
/* What was counted between two snapshots of one process: `now` keeps values that hold now, and maxima. */
void vma_stats_snapshot_subtract(struct vma_stats_snapshot *now, const struct vma_stats_snapshot *before);
/* The item of that type and name; NULL. */
const struct vma_stats_item *vma_stats_snapshot_find(const struct vma_stats_snapshot *snapshot,
                                                     enum vma_stats_type type, const char *name);

/*
 * The pids of the files in `dir` whose processes live, in order, at most `most`. Those of processes that have gone are
 * removed, if `clean`.
 */
int vma_stats_list_live_pids(const char *dir, bool clean, pid_t *pids, unsigned most);

/*
 * Opens a file for output that only this user is to read: a new one, or a regular file of this user's that has one
 * name, emptied; a pipe or a device as it is. No link is followed. A descriptor, or -errno; -EPERM: it is another
 * user's, or has other names.
 */
int vma_stats_open_output(const char *path);

#endif
