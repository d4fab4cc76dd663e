/* options - what the command line asks for. */
#ifndef VMA_DUMP_OPTIONS_H
#define VMA_DUMP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct options {
	pid_t pid;             /* 0: the only one there is */
	const char *interface; /* NULL: all of the process's; else: of all processes */
	int fd;                /* -1: all of the process's packets */
	const char *directory; /* of the statistics files */
	const char *file;      /* "-": standard output */
	uint32_t snap;         /* bytes of a frame that are written */
	uint64_t count;        /* 0: no end */
	bool list;
	char filter[4096]; /* libpcap's language; "": everything */
};

enum options_result { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION, OPTIONS_WRONG };
enum options_result options_parse(struct options *options, int argc, char **argv);
extern const char options_help[];

#endif
