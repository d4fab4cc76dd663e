/* dump.c - the inside of a connection, for a line-by-line print (vma_stats -S). */
#include <netinet/tcp.h>
#include <string.h>

#include "tcp_priv.h"
#include "loss/scoreboard.h"
#include "lwip/port.h"

static void dump_tcp_segment(struct vma_tcp_dump_segment *out, const struct tcp_seg *seg)
{
	if (seg == NULL)
		return;
	out->there = true;
	out->seq = seg_seq(seg);
	out->len = seg->len;
}

static void dump_pcb(struct vma_tcp_dump *out, const struct tcp_pcb *pcb)
{
	out->flags = pcb->flags;
	out->wnd_scale = (pcb->flags & TF_WND_SCALE) != 0;
	out->rcv_scale = pcb->rcv_scale;
	out->snd_scale = pcb->snd_scale;
	out->rcv_wnd = pcb->rcv_wnd;
	out->rcv_ann_wnd = pcb->rcv_ann_wnd;
	out->rcv_wnd_max = pcb->rcv_wnd_max;
	out->snd_wnd = pcb->snd_wnd;
	out->rcv_nxt = pcb->rcv_nxt;
	out->snd_nxt = pcb->snd_nxt;
	out->snd_wl1 = pcb->snd_wl1;
	out->snd_wl2 = pcb->snd_wl2;
	out->lastack = pcb->lastack;
	dump_tcp_segment(&out->unsent, pcb->unsent);
	dump_tcp_segment(&out->unacked, pcb->unacked);
	dump_tcp_segment(&out->unacked_last, pcb->unacked != NULL ? pcb->unacked_last : NULL);
}

void vma_tcp_get_dump(struct vma_tcp_conn *conn, struct vma_tcp_dump *out)
{
	bool acquired;
	struct vma_tcp *tcp = tcp_conn_acquire_ring_of_stack(conn, &acquired);

	memset(out, 0, sizeof(*out));
	out->state = vma_tcp_state(conn);
	out->mss = conn->mss;
	out->advertised_mss = tcp_mss_advertised(conn);
	out->rcv_queued = fifo_queued_bytes(&conn->rx);
	out->rcvbuf = atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed);
	out->sndbuf = atomic_load_explicit(&conn->sndbuf, memory_order_relaxed);
	out->snd_space = vma_tcp_tx_space(conn);
	out->snd_wnd_max = conn->snd_wnd_max;
	out->cwnd = conn->cc.cwnd;
	out->rcv_edge = conn->window.rcv_edge;
	out->rtt_usec = (uint32_t)(conn->rtt.srtt_ns / 1000);
	out->rto_msec = (uint32_t)(rtt_rto_ns(&conn->rtt, conn->recovery.backoff) / TCP_NS_PER_MS);
	out->timeouts = conn->recovery.timeouts;
	if (conn->pcb != NULL)
		dump_pcb(out, conn->pcb);
	if (acquired)
		vma_ring_release(tcp->ring);
}
