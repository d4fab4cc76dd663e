/*
 * fd_list - the descriptors of -s: 4-16 or 1,9, or both.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_FD_LIST_H
#define VMA_STATS_TOOL_FD_LIST_H

#include <stdbool.h>
#include <stdint.h>

#define FD_LIST_RANGES 64

struct fd_list {
	unsigned count; /* 0: all */
	struct {
		uint64_t first, last;
	} ranges[FD_LIST_RANGES];
};
bool fd_list_parse(struct fd_list *list, const char *text);
bool fd_list_has(const struct fd_list *list, uint64_t fd);

#endif
