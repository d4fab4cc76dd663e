/*
 * source - one process that is captured.
 *
 *   source_keep_capture_requested, at least every half second ──> request: the process copies packets for two seconds
 *   source_move_packets_to_merge ──> what it has copied goes to the merge
 *
 * So a capture ends by itself in any case when this program has gone. And this program cannot hold the other up.
 *
 * Threads: one.
 */
#ifndef VMA_DUMP_SOURCE_H
#define VMA_DUMP_SOURCE_H

#include <vma/stats_read.h>

#include "merge.h"
#include "processes.h"

#define SOURCE_LEASE_SECONDS 2
#define SOURCE_START_NS UINT64_C(5000000000) /* for which it is waited for at the start */

struct source {
	struct source *next; /* for the caller */
	pid_t pid;
	char name[PROCESSES_NAME_BYTES];
	struct vma_stats_view *view;
	struct vma_capture_reader *reader; /* NULL: the process has not made its ring yet */
	struct merge_queue queue;
	uint64_t began_ns, asked_ns; /* CLOCK_MONOTONIC */
	uint64_t grants;             /* when the ring was opened */
	uint64_t lost;               /* the last packets have been told of so many */
	bool captures;               /* packets come for certain */
	bool has_ended;
	unsigned interruptions; /* it was not asked for so long that it had ended the capture */
};

/* Of the process with this pid, whose view becomes the source's. NULL: no memory; then the view is closed. */
struct source *source_create(struct vma_stats_view *view, pid_t pid, struct merge *merge);
/* What it has in the merge has been popped. */
void source_destroy(struct source *source, struct merge *merge);
/* Asks, if it is time. 0, or -errno: the process has gone, or does not capture. */
int source_keep_capture_requested(struct source *source, uint32_t snap, struct merge *merge, uint64_t now_ns);
/* Whether there was anything. A ring's length at a time: the process is to be asked again, however much comes. */
bool source_move_packets_to_merge(struct source *source, struct merge *merge, uint64_t now_ns);
/* All that has come, after the end. */
void source_read_remaining_records(struct source *source, struct merge *merge, uint64_t now_ns);
uint64_t source_lost_packet_count(const struct source *source);

#endif
