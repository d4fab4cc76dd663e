/*
 * options - the command line of vma_stats.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_OPTIONS_H
#define VMA_STATS_TOOL_OPTIONS_H

#include <sys/types.h>

#include "fd_list.h"

enum options_view {
	VIEW_BASIC = 1,
	VIEW_EXTRA,
	VIEW_FULL,
	VIEW_GROUPS,
	VIEW_NETSTAT,
	VIEW_WHY,
	VIEW_ALL, /* of --json, if no view is named */
	VIEW_TCP, /* -t */
};
enum options_result { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION, OPTIONS_WRONG };
#define OPTIONS_NONE (-1)

struct options {
	pid_t pid;        /* 0: to be found */
	const char *name; /* of the program; NULL: any */
	const char *directory;
	bool forbid_clean;
	unsigned interval; /* seconds */
	unsigned cycles;   /* 0: for ever */
	enum options_view view;
	bool deltas, zero, assert_offloaded, json, tcp;
	int log_level, details_level; /* OPTIONS_NONE: not asked for */
	int dump_fd, dump_level;      /* dump_fd 0: of all */
	struct fd_list fds;
	bool openmetrics, per_socket;
	const char *listen; /* ADDR:PORT or PORT; NULL: not asked for */
	const char *output; /* of the report; NULL: standard output */
	bool report, top;
	const char *vmad; /* of this interface; NULL: not asked for */
	bool has_view;    /* a view was asked for, beside what acts on the process */
};
/* `wrong`, of at least 128 bytes, is a sentence of OPTIONS_WRONG. */
enum options_result options_parse(struct options *options, int argc, char **argv, char *wrong, unsigned wrong_bytes);
extern const char options_help[];
/* Whether something is to be asked of the process. */
bool options_ask_for_action(const struct options *options);

#endif
