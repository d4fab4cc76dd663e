/*
 * merge - the packets of several processes, held for a moment: put into the order of their times, and told why they
 * were dropped.
 *
 *   process ──> its queue ──┐
 *   process ──> its queue ──┴─ the oldest first, when it has been held long enough ──> merge_pop_oldest_packet
 *
 * A packet is held for MERGE_HOLD_NS: within a burst the library knows whether it drops it, and other processes'
 * packets have been read. A fragment is held for MERGE_HOLD_FRAGMENT_NS, as the library waits so long for the rest of
 * its datagram. If more than MERGE_BYTES_MAX are held, the oldest packet is not held any longer.
 *
 * Times are of one clock, CLOCK_REALTIME. If it is set, packets before and after that are not put into order.
 *
 * Threads: one.
 * Memory: packets are allocated; a popped one is the caller's, to be freed. Queues are the caller's.
 * Example: test/test_merge.c.
 */
#ifndef VMA_DUMP_MERGE_H
#define VMA_DUMP_MERGE_H

#include <stdbool.h>
#include <stddef.h>

#include <vma/capture.h>

#define MERGE_HOLD_NS UINT64_C(20000000)
#define MERGE_HOLD_FRAGMENT_NS UINT64_C(1200000000)
#define MERGE_STARVED_NS UINT64_C(3000000000) /* the clock was set: who waits so long goes first */
#define MERGE_BYTES_MAX ((size_t)64 << 20)

struct merge_packet {
	struct merge_packet *next, *before;
	struct merge_queue *queue;
	struct vma_capture_info info;
	uint64_t since_ns; /* when it was read, CLOCK_MONOTONIC */
	uint64_t lost;     /* records of its process, right before it */
	bool interrupted;  /* the capture was, before it */
	bool is_fragment;
	char reason[VMA_CAPTURE_TEXT_MAX]; /* "": not dropped */
	uint8_t data[];                    /* info.captured bytes */
};

struct merge_queue {
	struct merge_queue *next;
	struct merge_packet *first, *last;
	const void *of; /* for the caller: whose it is */
	uint64_t lost;  /* what the next packet is told */
	bool interrupted;
};

struct merge {
	struct merge_queue *queues;
	size_t bytes; /* of all packets that are held */
};

/* The queue is zeroed but for `of`. It may be removed when it is empty. */
void merge_add_queue(struct merge *merge, struct merge_queue *queue);
void merge_remove_queue(struct merge *merge, struct merge_queue *queue);
/* A record of any kind. False: there is no memory. */
bool merge_push_record(struct merge *merge, struct merge_queue *queue, const struct vma_capture_info *info,
                       const uint8_t *data, uint64_t now_ns);
/* The next packet that has been held long enough, or, with `all`, the next one; NULL: there is none. */
struct merge_packet *merge_pop_oldest_packet(struct merge *merge, uint64_t now_ns, bool all);

#endif
