/*
 * ooo.c - the bound of data that has come out of order.
 *
 * A peer decides how much comes out of order, and in how small pieces. So all that is held of it, its overhead
 * included, has a bound (budget.h). Beyond half of that bound each connection may have only a little. If there is no
 * room, the farthest data gives way to nearer data: it is needed last. A SACK has told the peer that the data is there,
 * and may tell otherwise later (RFC 2018, section 8). For that the peer keeps its bytes until they are acknowledged.
 */
#include "../budget.h"
#include "ooo.h"
#include "../lwip/port.h"

#include <vma_lwip_queues.h>

/* Of what is held, given up at once: so that the walk to it is paid for by many pieces. */
#define PRUNED_PART 8

static uint32_t ooo_segment_end_seq(const struct tcp_seg *seg)
{
	return seg->tcphdr->seqno + TCP_TCPLEN(seg);
}

bool ooo_already_holds_segment(const struct vma_tcp_conn *conn, const struct segment *s, unsigned *steps)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint32_t reach = s->seq;

	*steps = 0;
	if (pcb->ooseq_last != NULL && TCP_SEQ_GT(s->seq, pcb->ooseq_last->tcphdr->seqno))
		return false;
	for (const struct tcp_seg *seg = pcb->ooseq;
	     seg != NULL && TCP_SEQ_LEQ(seg->tcphdr->seqno, reach) && *steps <= OOO_STEPS; seg = seg->next) {
		++*steps;
		reach = TCP_SEQ_GT(ooo_segment_end_seq(seg), reach) ? ooo_segment_end_seq(seg) : reach;
		if (TCP_SEQ_GEQ(reach, s->end))
			return true;
	}
	return false;
}

/* Blocks of the next ACK end where that ends which is held. */
static void ooo_trim_sack_blocks(struct tcp_pcb *pcb, uint32_t edge)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < LWIP_TCP_MAX_SACK_NUM; i++) {
		struct tcp_sack_range range = pcb->rcv_sacks[i];

		if (range.left == range.right || TCP_SEQ_GEQ(range.left, edge))
			continue;
		range.right = TCP_SEQ_GT(range.right, edge) ? edge : range.right;
		pcb->rcv_sacks[kept++] = range;
	}
	while (kept < LWIP_TCP_MAX_SACK_NUM)
		pcb->rcv_sacks[kept++] = (struct tcp_sack_range){0, 0};
}

/* Gives up the farthest part of what is held, but nothing that begins before `beyond`. False: all that is held does. */
static bool ooo_prune_farthest(struct vma_tcp_conn *conn, uint32_t beyond)
{
	struct tcp_pcb *pcb = conn->pcb;
	uint32_t keep = pcb->ooseq_pbufs - (pcb->ooseq_pbufs + PRUNED_PART - 1) / PRUNED_PART, passed = 0;
	struct tcp_seg **link = &pcb->ooseq, *last = NULL, *farthest;

	while (*link != NULL && (passed + (*link)->queue_pbufs <= keep || TCP_SEQ_LT((*link)->tcphdr->seqno, beyond))) {
		passed += (*link)->queue_pbufs;
		last = *link;
		link = &last->next;
	}
	farthest = *link;
	if (farthest == NULL)
		return false;
	*link = NULL;
	tcp_segs_free(farthest);
	pcb->ooseq_last = last;
	ooo_trim_sack_blocks(pcb, last != NULL ? ooo_segment_end_seq(last) : pcb->rcv_nxt);
	TCP_COUNT(conn->tcp, no_memory, 1);
	return true;
}

static bool ooo_has_space(const struct vma_tcp_conn *conn)
{
	const struct vma_tcp *tcp = conn->tcp;

	if (ooo_queue_is_full(conn->pcb))
		return false;
	return tcp->ooo_bytes < ooo_max(tcp) / 2 ||
	       (tcp->ooo_bytes < ooo_max(tcp) && conn->pcb->ooseq_pbufs < OOO_LITTLE);
}

bool ooo_make_room_for_segment(struct vma_tcp_conn *conn, const struct segment *s, unsigned steps)
{
	if (steps > OOO_STEPS)
		return false;
	return ooo_has_space(conn) || (ooo_prune_farthest(conn, s->end) && ooo_has_space(conn));
}
