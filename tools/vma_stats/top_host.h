/*
 * top_host - the processes of this host that can be read, and their sockets, reading after reading.
 *
 * A process's memory stays mapped from its first reading to its end, so a reading wakes nobody. Its file is looked at
 * each time. After an exec, or if the pid has gone to another process, it names other memory, and rates begin anew.
 *
 * Any user may put files into the directory, so a reading has two budgets. The first is of time: after it, the
 * processes that are left keep their rows and come first in the next reading. The second is of rows: each process has
 * some for sure.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_TOP_HOST_H
#define VMA_STATS_TOOL_TOP_HOST_H

#include "processes.h"
#include "top_rows.h"

#define TOP_ROWS_MAX 16384           /* sockets of all processes */
#define TOP_ROWS_SURE 3              /* of each process, whatever others have: fewer than ROWS_MAX / PROCESSES_MAX */
#define TOP_READ_NS (250 * 1000000L) /* a reading begins no process after that */

struct top_process {
	pid_t pid;
	char name[PROCESSES_NAME_BYTES]; /* of the program, printable */
	struct vma_stats_view *view;     /* NULL: it cannot be read */
	struct top_rows sockets;
};
struct top_host {
	struct top_process *processes; /* in the order of pids */
	size_t count, next;            /* next: the first one of the next reading */
	unsigned unreadable;           /* of another user or version */
	unsigned put_off;              /* processes for which the last reading had no time */
	size_t left_out;               /* sockets for which it had no row */
};
/* Zero it first. */
void top_host_fini(struct top_host *host);
/* Reads those that the options choose, for `budget_ns` or little more. 0 or -ENOMEM. */
int top_host_read(struct top_host *host, const struct options *options, uint64_t budget_ns);

#endif
