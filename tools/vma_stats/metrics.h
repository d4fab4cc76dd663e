/*
 * metrics - the counters of processes as text for Prometheus and other programs that read its formats.
 *
 * By default a metric has one series for each process: the sum of its sockets, rings, queues and pools, closed ones
 * included, or the largest. So the number of series is bounded by the number of processes. With options->per_socket
 * each object has a series of its own: at most VMA_STATS_FD_NUM sockets of a process, and its rings.
 *
 *   processes ──> a snapshot each ──> rows: (process, type, object), values ──> family by family, rows in each
 *
 * Any user may put files into the directory, and write what he likes into the memory that they name. So a scrape has
 * two budgets. The first is of time: after it, processes are put off to the next scrape. The second is of rows: if it
 * is used up, a process has sums only.
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

#define METRICS_ROWS_MAX (8 * 4096) /* a row of each type for each process, if there are as many as there can be */
#define METRICS_SCRAPE_NS (2000 * 1000000ULL)

struct metrics {
	struct metrics_process *processes;
	struct metrics_row *rows;
	size_t process_count, row_count, row_room;
	size_t rows_kept;    /* for the processes that are still to come */
	unsigned unreadable; /* processes of another version, or that have become another user */
	unsigned put_off;    /* processes for which there was no time */
	unsigned summed;     /* processes whose objects have no rows of their own, although they were asked for */
};
/* Zero it first. */
void metrics_fini(struct metrics *metrics);
/* `comm` is the program's name. 0 or -ENOMEM. */
int metrics_add_process(struct metrics *metrics, const struct options *options, pid_t pid, const char *comm,
                        const struct vma_stats_snapshot *snapshot);
void metrics_write(const struct metrics *metrics, const struct options *options, enum metrics_format format, FILE *out);

/*
 * All that the options choose, now, for `budget_ns` or little more. The next scrape begins with those that this one has
 * put off. 0 or -ENOMEM.
 */
int metrics_scrape(const struct options *options, enum metrics_format format, uint64_t budget_ns, FILE *out);

#endif
