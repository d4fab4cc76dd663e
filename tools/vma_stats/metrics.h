/*
 * metrics - the counters of processes as text for Prometheus and what reads the same formats.
 *
 * By default a metric has one series for each process: the sum of its sockets, rings, queues and pools, closed ones
 * included, or the largest. So the number of series is bounded by the number of processes. With options->per_socket
 * each object has a series of its own: at most VMA_STATS_FD_NUM sockets of a process, and its rings.
 *
 *   processes ──> a snapshot each ──> rows: (process, type, object), values ──> family by family, rows in each
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_METRICS_H
#define VMA_STATS_TOOL_METRICS_H

#include <stdio.h>

#include <vma/stats_read.h>

#include "options.h"

/* The text format 0.0.4 differs: a counter's family has "_total", and there are no units and no end. */
enum metrics_format { METRICS_OPENMETRICS, METRICS_TEXT };

struct metrics {
	struct metrics_process *processes;
	struct metrics_row *rows;
	size_t process_count, row_count, row_room;
	unsigned unreadable; /* processes of another version, or that have become another user */
};
/* Zero it first. */
void metrics_fini(struct metrics *metrics);
/* `comm` is the program's name. 0 or -ENOMEM. */
int metrics_add(struct metrics *metrics, const struct options *options, pid_t pid, const char *comm,
                const struct vma_stats_snapshot *snapshot);
void metrics_write(const struct metrics *metrics, const struct options *options, enum metrics_format format, FILE *out);

/* All that the options choose, now. 0 or -ENOMEM. */
int metrics_scrape(const struct options *options, enum metrics_format format, FILE *out);

#endif
