/* sack_index.c - the index of sack_index.h. */
#include <string.h>

#include "sack_index.h"
#include "scoreboard.h"

#define STRETCHES_LEAST 16

/* Room for one more run: what has been acknowledged makes it, or memory does. */
static bool sack_index_grow(struct vma_tcp_conn *conn, struct tcp_sack_index *index)
{
	uint32_t used = index->end - index->begin,
	         capacity = index->capacity > 0 ? 2 * index->capacity : STRETCHES_LEAST;
	struct tcp_sack_run *grown;

	if (index->end < index->capacity)
		return true;
	if (index->begin > index->capacity / 2) {
		memmove(index->at, index->at + index->begin, used * sizeof(*index->at));
	} else {
		grown = conn->memory.alloc(capacity * sizeof(*grown));
		if (grown == NULL)
			return false;
		if (index->at != NULL) {
			memcpy(grown, index->at + index->begin, used * sizeof(*grown));
			conn->memory.free(index->at);
		}
		index->at = grown;
		index->capacity = capacity;
	}
	index->begin = 0;
	index->end = used;
	return true;
}

void sack_index_free(struct vma_tcp_conn *conn)
{
	struct tcp_sack_index *index = &conn->recovery.sack_index;

	if (index->at != NULL)
		conn->memory.free(index->at);
	*index = (struct tcp_sack_index){.at = NULL};
}

/* What ends before una begins the next run's. */
static void sack_index_drop_acknowledged(struct tcp_sack_index *index, uint32_t una)
{
	while (index->end - index->begin > 1 && TCP_SEQ_LEQ(index->at[index->begin + 1].seq, una))
		index->begin++;
}

static bool sack_index_append(struct vma_tcp_conn *conn, struct tcp_sack_index *index, struct tcp_seg *seg)
{
	if (index->begin == index->end || index->last_length >= SACK_RUN_LENGTH) {
		if (sack_index_grow(conn, index)) {
			index->at[index->end++] = (struct tcp_sack_run){.seq = seg_seq(seg), .first = seg};
			index->last_length = 0;
		} else if (index->begin == index->end) {
			return false;
		}
	}
	index->at[index->end - 1].unsacked += !(seg->marks & SEG_SACKED);
	index->last_length++;
	index->last = seg;
	return true;
}

void sack_index_cover_unacked(struct vma_tcp_conn *conn, uint32_t una)
{
	struct tcp_sack_index *index = &conn->recovery.sack_index;
	struct tcp_seg *seg = index->last != NULL ? index->last->next : conn->pcb->unacked;

	sack_index_drop_acknowledged(index, una);
	for (; seg != NULL; seg = seg->next)
		if (TCP_SEQ_GT(seg_end(seg), una) && !sack_index_append(conn, index, seg))
			return;
}

/* The last run that begins at seq or before; the first one, if there is none. */
static uint32_t sack_index_find_run_at_or_before(const struct tcp_sack_index *index, uint32_t seq)
{
	uint32_t low = index->begin, high = index->end;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (TCP_SEQ_LEQ(index->at[middle].seq, seq))
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* If a run begins here, it is the one that the walk is in; and past it, if nothing in it is left to be marked. */
static void sack_walk_enter_run(struct vma_tcp_conn *conn, struct sack_walk *walk)
{
	struct tcp_recovery *r = &conn->recovery;
	const struct tcp_sack_index *index = &r->sack_index;

	while (walk->run + 1 < index->end && walk->seg == index->at[walk->run + 1].first) {
		walk->run++;
		r->sack_steps++;
		if (index->at[walk->run].unsacked != 0)
			return;
		walk->seg = walk->run + 1 < index->end ? index->at[walk->run + 1].first : NULL;
	}
}

void sack_walk_next(struct vma_tcp_conn *conn, struct sack_walk *walk)
{
	conn->recovery.sack_steps++;
	walk->seg = walk->seg->next;
	sack_walk_enter_run(conn, walk);
}

struct sack_walk sack_walk_from(struct vma_tcp_conn *conn, uint32_t seq)
{
	const struct tcp_sack_index *index = &conn->recovery.sack_index;
	struct sack_walk walk = {.seg = conn->pcb->unacked};
	const struct tcp_sack_run *run;

	if (index->begin != index->end) {
		walk.run = sack_index_find_run_at_or_before(index, seq);
		run = &index->at[walk.run];
		/* The first one may have lost its beginning. All others begin beyond what is acknowledged. */
		if (walk.run != index->begin)
			walk.seg = run->first;
		if (run->unsacked == 0)
			walk.seg = walk.run + 1 < index->end ? index->at[walk.run + 1].first : NULL;
		sack_walk_enter_run(conn, &walk);
	}
	while (walk.seg != NULL && TCP_SEQ_LEQ(seg_end(walk.seg), seq))
		sack_walk_next(conn, &walk);
	return walk;
}

void sack_walk_note_sacked(struct vma_tcp_conn *conn, const struct sack_walk *walk)
{
	struct tcp_sack_index *index = &conn->recovery.sack_index;

	if (index->begin != index->end)
		index->at[walk->run].unsacked--;
}
