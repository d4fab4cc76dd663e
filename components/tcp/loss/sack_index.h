/*
 * sack_index - finds a sequence number in the list of unacknowledged segments, and passes by parts that are SACKed
 * whole.
 *
 * The peer decides how many segments are out (megabytes, 48 bytes each), and which its SACK blocks name, in which
 * order. So a block must not cost a walk through the list. The index is an array of runs of SACK_RUN_LENGTH segments
 * each:
 *
 *   run   {seq, first segment, segments that are not SACKed}     found by bisection, passed by if it has none
 *
 * An ACK with blocks extends the index by the segments that have been sent since, each of them once. Without blocks
 * there is no index and no cost. A run whose beginning has been acknowledged is searched from the head of the list. A
 * change of the list in its middle resets the index. So does a SACK that is taken back.
 *
 * Threads: the driver.
 * Memory: a byte for each segment out, in powers of two; without memory the runs are longer, or there are none.
 * Example: test/test_sack_cost.c.
 */
#ifndef VMA_TCP_LOSS_SACK_INDEX_H
#define VMA_TCP_LOSS_SACK_INDEX_H

#include "../tcp_priv.h"

#define SACK_RUN_LENGTH 16

static inline void sack_index_reset(struct tcp_sack_index *index)
{
	index->begin = index->end = 0;
	index->last = NULL;
}
void sack_index_free(struct vma_tcp_conn *conn); /* with the connection */
/* To the end of what is out; una: what lies before it is acknowledged, although it may be in the list still. */
void sack_index_cover_unacked(struct vma_tcp_conn *conn, uint32_t una);

/* A walk from the segment that holds seq on, which passes by runs that are SACKed whole. */
struct sack_walk {
	struct tcp_seg *seg; /* NULL: the end */
	uint32_t run;        /* that it is in */
};
struct sack_walk sack_walk_from(struct vma_tcp_conn *conn, uint32_t seq);
void sack_walk_next(struct vma_tcp_conn *conn, struct sack_walk *walk);
void sack_walk_note_sacked(struct vma_tcp_conn *conn, const struct sack_walk *walk); /* its segment has been SACKed */

#endif
