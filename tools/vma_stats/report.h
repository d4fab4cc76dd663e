/*
 * report - one text for a bug report: the program and its parameters, all views, kernel, interfaces, their vmads'
 * state, and the end of the log. No payload, and of the environment only VMA_* and XLIO_*.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_REPORT_H
#define VMA_STATS_TOOL_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include <vma/stats_read.h>

#include "options.h"

/* What it says of interfaces is of the process's network namespace: this process goes there, if it may. */
void report_write(const struct options *options, const struct vma_stats_view *view, pid_t pid, FILE *out);
/* A parameter of an environment, "NAME=value", that may be shown. */
bool environment_entry_may_be_shown(const char *entry);

#endif
