/*
 * top_table - the lines of the screen: rows of all processes, filtered and sorted, and their sums.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_TOP_TABLE_H
#define VMA_STATS_TOOL_TOP_TABLE_H

#include "top_host.h"

/* In the order of the screen. */
enum top_column {
	TOP_PID,
	TOP_PROGRAM,
	TOP_FD,
	TOP_TYPE,
	TOP_LOCAL,
	TOP_PEER,
	TOP_OFFLOAD,
	TOP_RX,
	TOP_TX,
	TOP_RX_MB,
	TOP_TX_MB,
	TOP_DROPPED,
	TOP_READY,
	TOP_TREND, /* the packet rate, received and sent, as it was */
	TOP_COLUMNS
};

#define TOP_FILTER_BYTES 16 /* a program's name has no more */

struct top_choice {
	enum top_column sort; /* names and numbers of descriptors rise, amounts fall */
	bool reverse;
	char filter[TOP_FILTER_BYTES]; /* a part of the program's name; "": all */
	pid_t only;                    /* 0: all processes */
};

struct top_line {
	const struct top_process *process;
	const struct top_row *row;
};
/* It points into the host: it is good until the next reading. */
struct top_table {
	struct top_line *lines;
	size_t count, room;
	size_t processes; /* that the choice leaves, and that can be read */
	size_t sockets[TOP_OFFLOADS];
	double rates[TOP_RATES]; /* sums */
};
/* Zero it first. */
void top_table_fini(struct top_table *table);
/* 0 or -ENOMEM. */
int top_table_fill(struct top_table *table, const struct top_host *host, const struct top_choice *choice);
/* Whether a column's numbers fall unless they are reversed. */
bool top_column_sorts_descending(enum top_column column);
/* "yes", "new", or in one word why not: "rule". At most 13 bytes. */
const char *top_offloaded_or_reason_word(const struct top_row *row, char word[16]);

#endif
