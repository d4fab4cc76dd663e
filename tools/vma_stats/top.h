/*
 * top - --top: the sockets of all processes on a full screen, with their rates, until it is told to end.
 *
 *   every interval: top_host reads ──> top_table sorts ──┬──> top_screen draws (words of top_text, top_keys)
 *   a key: top_keys changes the state ───────────────────┘
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_TOP_H
#define VMA_STATS_TOOL_TOP_H

#include "options.h"

/* The exit status. */
int top_run(const struct options *options);

#endif
