/* top_host - processes that come and go between readings. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "top_host.h"

_Static_assert((TOP_ROWS_SURE + 1) * PROCESSES_MAX <= TOP_ROWS_MAX, "there is more than what is sure");

static uint64_t host_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void close_process_stats_view(struct top_process *process)
{
	vma_stats_view_close(process->view);
	process->view = NULL;
	top_rows_fini(&process->sockets);
}

void top_host_fini(struct top_host *host)
{
	for (size_t i = 0; i < host->count; i++)
		close_process_stats_view(&host->processes[i]);
	free(host->processes);
	*host = (struct top_host){0};
}

/* The list becomes that of `pids`; those that were in it keep what they have. Both are in order. */
static int top_host_merge_pids(struct top_host *host, const pid_t *pids, size_t count)
{
	struct top_process *merged = calloc(count + 1, sizeof(*merged));
	size_t at = 0;

	if (merged == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		while (at < host->count && host->processes[at].pid < pids[i])
			close_process_stats_view(&host->processes[at++]);
		if (at < host->count && host->processes[at].pid == pids[i])
			merged[i] = host->processes[at++];
		else
			merged[i].pid = pids[i];
	}
	while (at < host->count)
		close_process_stats_view(&host->processes[at++]);
	free(host->processes);
	host->processes = merged;
	host->count = count;
	return 0;
}

/* 0, -ENOENT or -ESRCH (it has just gone), -ENOMEM, or why it cannot be read. */
static int open_process_stats_view(struct top_process *process, const struct options *options)
{
	char path[PATH_MAX];

	if (!processes_path(options, process->pid, path, sizeof(path)))
		return -ENAMETOOLONG;
	if (process->view != NULL && vma_stats_view_is_current(process->view, path))
		return 0;
	close_process_stats_view(process);
	return vma_stats_view_open(path, &process->view);
}

static int top_process_read_stats(struct top_host *host, struct top_process *process, const struct options *options,
                                  size_t most)
{
	static struct vma_stats_snapshot snapshot;
	int rc = open_process_stats_view(process, options);

	if (rc == -ENOMEM)
		return rc;
	if (rc < 0 || !processes_name(process->pid, process->name)) {
		host->unreadable += rc < 0 && rc != -ENOENT && rc != -ESRCH;
		close_process_stats_view(process);
		return 0;
	}
	vma_stats_view_read(process->view, &snapshot);
	return top_rows_update(&process->sockets, options, &snapshot, most);
}

/* Rows that are a process's, or are kept for it. */
static size_t top_process_row_count(const struct top_process *process)
{
	return process->sockets.count > TOP_ROWS_SURE ? process->sockets.count : TOP_ROWS_SURE;
}

/* In the order of pids, but from the one on that the last reading came to. */
static int read_processes(struct top_host *host, const struct options *options, uint64_t until_ns)
{
	const size_t first = host->next < host->count ? host->next : 0;
	size_t rows = 0, n = 0;
	int rc = 0;

	for (size_t i = 0; i < host->count; i++)
		rows += top_process_row_count(&host->processes[i]);
	for (; n < host->count && rc == 0 && (n == 0 || host_now_ns() < until_ns); n++) {
		struct top_process *process = &host->processes[(first + n) % host->count];

		rows -= top_process_row_count(process);
		rc = top_process_read_stats(host, process, options,
		                            rows + TOP_ROWS_SURE < TOP_ROWS_MAX ? TOP_ROWS_MAX - rows : TOP_ROWS_SURE);
		rows += top_process_row_count(process);
	}
	host->put_off = (unsigned)(host->count - n);
	host->next = n < host->count ? (first + n) % host->count : 0;
	return rc;
}

int top_host_read(struct top_host *host, const struct options *options, uint64_t budget_ns)
{
	static pid_t pids[PROCESSES_MAX];
	const uint64_t until_ns = host_now_ns() + budget_ns;
	int rc = top_host_merge_pids(host, pids, processes_find(options, pids));

	host->unreadable = 0;
	if (rc == 0)
		rc = read_processes(host, options, until_ns);
	host->left_out = 0;
	for (size_t i = 0; i < host->count; i++)
		host->left_out += host->processes[i].sockets.left_out;
	return rc;
}
