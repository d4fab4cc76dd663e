/*
 * top_rows - the sockets of one process between two readings: the rates of each per second, and their history.
 *
 *   snapshot ──┐
 *              ├──> rows: a socket each, in the order of places
 *   rows before┘    a block that is not the same as before (place, sequence), or a counter that is less: rate 0
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_TOP_ROWS_H
#define VMA_STATS_TOOL_TOP_ROWS_H

#include <vma/stats_read.h>

#include "options.h"

#define TOP_SAMPLES 32 /* of a row's packet rate */

enum top_rate { TOP_RX_PACKETS, TOP_TX_PACKETS, TOP_RX_BYTES, TOP_TX_BYTES, TOP_DROPS, TOP_RATES };
enum top_offload { TOP_OFFLOADED, TOP_BY_KERNEL, TOP_UNDECIDED, TOP_OFFLOADS };

struct top_row {
	uint32_t place, sequence; /* of its block */
	uint64_t fd, reason;
	uint64_t local_addr, local_port, peer_addr, peer_port;
	bool tcp, listens;
	enum top_offload offload;
	uint64_t ready_packets, ready_bytes; /* what waits to be received; TCP has bytes only */
	uint64_t counts[TOP_RATES];          /* offloaded and by the kernel */
	double rates[TOP_RATES];             /* per second, between the last two readings */
	unsigned samples;
	float history[TOP_SAMPLES]; /* packets per second, received and sent; the newest is the last */
};

struct top_rows {
	struct top_row *rows;
	size_t count;
	size_t left_out;   /* sockets for which there was no room */
	uint64_t taken_ns; /* when it was read */
};
/* Zero it first. */
void top_rows_fini(struct top_rows *rows);
/* The sockets of a snapshot that -s has, `most` at most. 0 or -ENOMEM; then the rows are as they were. */
int top_rows_update(struct top_rows *rows, const struct options *options, const struct vma_stats_snapshot *now,
                    size_t most);

#endif
