/*
 * export.c - a connection leaves for another stack, in the middle of a conversation.
 *
 * No thread drives from begin to end, so what is exported stays true while the other stack gets it. Some packets were
 * steered to us before the NIC has taken the rule back. They are passed on to the caller, which carries them to the
 * other stack. Packets that come later still (or all of them, if the caller carries nothing) find no connection. A
 * listener on its port would answer with RST, so exported connections are remembered for a second.
 *
 * If the NIC leaves the kernel's packets to us (VMA_NIC_CAP_TO_KERNEL), a listener gives the kernel all packets that
 * are not known here. Connections that have ended here are remembered for a second, too, to be answered here.
 */
#include <errno.h>
#include <string.h>

#include "tcp_priv.h"
#include "lwip/port.h"
#include "zcopy.h"

#define EXPORTED_NS TCP_NS_PER_S
#define WAYS 8

/* ---- connections that have left ---- */

/* The set of a peer: the oldest in it makes way, long before its time only when very many go within a second. */
static struct tcp_left_conn *exported_table_hash_set_of_peer(struct tcp_left_conn *table, const uint8_t *peer,
                                                             uint16_t peer_port_be)
{
	uint32_t h;

	memcpy(&h, peer, sizeof(h));
	h = (h ^ peer_port_be) * 0x9e3779b1U;
	return &table[(h >> 16) % (TCP_EXPORTED / WAYS) * WAYS];
}

/* Without memory it is as if it had not been: the peer may hear a RST. */
static void exported_table_add(struct vma_tcp *tcp, struct tcp_left_conn **table, const struct vma_flow_key *key,
                               enum tcp_left_to left)
{
	struct tcp_left_conn *set, *oldest;

	if (*table == NULL)
		*table = tcp_alloc_zeroed(tcp, TCP_EXPORTED * sizeof(**table));
	if (*table == NULL)
		return;
	set = oldest = exported_table_hash_set_of_peer(*table, key->peer, key->peer_port_be);
	for (unsigned i = 1; i < WAYS; i++)
		if (set[i].until_ns < oldest->until_ns)
			oldest = &set[i];
	*oldest = (struct tcp_left_conn){.until_ns = tcp->now_ns + EXPORTED_NS, .key = *key, .left = left};
}

static bool rx_packet_is_of_key(const struct vma_flow_key *key, const struct vma_rx_info *info)
{
	return key->peer_port_be == info->src_port_be && key->local_port_be == info->dst_port_be &&
	       key->vlan == info->vlan && memcmp(key->peer, info->src, sizeof(info->src)) == 0 &&
	       memcmp(key->local, info->dst, sizeof(info->dst)) == 0;
}

/* The latest; NULL: there is none. */
static const struct tcp_left_conn *exported_table_find(const struct vma_tcp *tcp, struct tcp_left_conn *table,
                                                       const struct vma_rx_info *info)
{
	const struct tcp_left_conn *set =
	        table != NULL ? exported_table_hash_set_of_peer(table, info->src, info->src_port_be) : NULL;
	const struct tcp_left_conn *latest = NULL;

	for (unsigned i = 0; set != NULL && i < WAYS; i++)
		if (set[i].until_ns > tcp->now_ns && rx_packet_is_of_key(&set[i].key, info) &&
		    (latest == NULL || set[i].until_ns > latest->until_ns))
			latest = &set[i];
	return latest;
}

void tcp_remember_exported_conn(struct vma_tcp *tcp, const struct vma_flow_key *key, enum tcp_left_to left)
{
	exported_table_add(tcp, &tcp->exported, key, left);
}

uint64_t tcp_exported_conn_remembered_until_ns(const struct vma_tcp *tcp, const struct vma_rx_info *info)
{
	const struct tcp_left_conn *exported = exported_table_find(tcp, tcp->exported, info);

	return exported != NULL ? exported->until_ns : 0;
}

void tcp_note_ended_conn(struct vma_tcp *tcp, const struct vma_flow_key *key)
{
	if (tcp->nic->caps & VMA_NIC_CAP_TO_KERNEL)
		exported_table_add(tcp, &tcp->ended, key, TCP_ENDED);
}

/* One that ended here may have come back, and have been exported then. */
enum tcp_left_to tcp_find_who_took_conn(const struct vma_tcp *tcp, const struct vma_rx_info *info)
{
	const struct tcp_left_conn *left = exported_table_find(tcp, tcp->exported, info);

	if (left == NULL)
		left = exported_table_find(tcp, tcp->ended, info);
	return left != NULL ? left->left : TCP_LEFT_FOR_NONE;
}

bool tcp_pass_foreign_segment_to_kernel(struct vma_tcp *tcp, struct vma_buf *packet, const struct vma_rx_info *info)
{
	switch (tcp_find_who_took_conn(tcp, info)) {
	case TCP_ENDED:
		if (info->tcp_flags & TCP_ACK)
			tcp_reply_rst(tcp, packet);
		return false;
	case TCP_LEFT_FOR_STACK:
		return false;
	default:
		if (!vma_ring_reinject_packet(tcp->ring, packet))
			return false;
		vma_buf_put_chain(tcp->arena, packet);
		return true;
	}
}

/* ---- told ---- */

static bool conn_is_exportable(const struct vma_tcp_conn *conn)
{
	if (conn->pcb == NULL || conn->is_over || conn->closing || conn->aborting || !conn->attached)
		return false;
	if (atomic_load(&conn->work) & (TCP_WORK_CLOSE | TCP_WORK_ABORT) ||
	    conn->todo & (TCP_WORK_CLOSE | TCP_WORK_ABORT))
		return false;
	return tcp_is_synchronized(conn->pcb);
}

static void export_options(const struct vma_tcp_conn *conn, struct vma_tcp_export *out)
{
	const struct tcp_pcb *pcb = conn->pcb;

	out->mss = (uint16_t)conn->peer_mss;
	out->has_scale = pcb->flags & TF_WND_SCALE;
	out->snd_scale = out->has_scale ? pcb->snd_scale : 0;
	out->rcv_scale = out->has_scale ? pcb->rcv_scale : 0;
	out->has_sack = pcb->flags & TF_SACK;
	out->has_ts = pcb->flags & TF_TIMESTAMP;
	out->ts_now = tcp_conn_clock_ms(conn);
}

/* Where in the send fifo the first byte lies that is not acknowledged; the FIN counts as a byte behind the last. */
static uint64_t tx_fifo_unacked_offset(const struct vma_tcp_conn *conn)
{
	uint64_t at = tcp_tx_offset(conn, conn->pcb->lastack), produced = fifo_produced(&conn->tx);

	return at < produced ? at : produced;
}

static void tcp_export_send_state(const struct vma_tcp_conn *conn, struct vma_tcp_export *out)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint64_t produced = fifo_produced(&conn->tx), from = tx_fifo_unacked_offset(conn),
	         sent = tcp_tx_offset(conn, pcb->snd_nxt);

	out->snd_una = conn->tx_seq + (uint32_t)from;
	out->unacked = produced - from;
	out->sent = (sent < produced ? sent : produced) - from;
	out->snd_wl1 = pcb->snd_wl1;
	out->snd_wnd = pcb->snd_wnd;
	out->snd_wnd_max = conn->snd_wnd_max > pcb->snd_wnd ? conn->snd_wnd_max : pcb->snd_wnd;
	out->shut_wr = atomic_load(&conn->shut_wr);
}

static void tcp_export_receive_state(const struct vma_tcp_conn *conn, struct vma_tcp_export *out)
{
	out->unread = fifo_queued_bytes(&conn->rx);
	out->rcv_nxt = conn->rx_seq + (uint32_t)zcopy_received_offset(conn);
	out->fin_received = (atomic_load(&conn->rx_mode) & RX_FIN) != 0;
	out->shut_rd = (atomic_load(&conn->rx_mode) & RX_SHUT) != 0;
	out->rcv_wup = (int32_t)(conn->window.rcv_wup - out->rcv_nxt) > 0 ? out->rcv_nxt : conn->window.rcv_wup;
	out->rcv_wnd = (int32_t)(conn->window.rcv_edge - out->rcv_wup) > 0 ? conn->window.rcv_edge - out->rcv_wup : 0;
}

int vma_tcp_export_begin(struct vma_tcp_conn *conn, struct vma_tcp_export *out)
{
	struct vma_tcp *tcp = conn->tcp;

	memset(out, 0, sizeof(*out));
	if (!conn_is_exportable(conn))
		return -ENOTCONN;
	tcp_update_now(tcp);
	export_options(conn, out);
	tcp_export_send_state(conn, out);
	tcp_export_receive_state(conn, out);
	out->moved_bytes = fifo_consumed(&conn->rx) != 0 || fifo_produced(&conn->tx) != 0;
	if (conn->burst != NULL || conn->pcb->refused_data != NULL || conn->urgent_mode ||
	    vma_tcp_bytes_before_urgent_mark(conn) >= 0 || zcopy_waiting_bytes(conn) != 0 ||
	    out->rcv_nxt + out->fin_received != conn->pcb->rcv_nxt)
		return -EBUSY;
	return 0;
}

unsigned vma_tcp_export_peek_unacked_tx_bytes(struct vma_tcp_conn *conn, size_t skip, struct iovec *spans, unsigned n)
{
	return fifo_peek_spans(&conn->tx, (size_t)(tx_fifo_unacked_offset(conn) - fifo_consumed(&conn->tx)) + skip,
	                       spans, n);
}

unsigned vma_tcp_export_peek_rx_bytes(struct vma_tcp_conn *conn, size_t skip, struct iovec *spans, unsigned n)
{
	return fifo_peek_spans(&conn->rx, skip, spans, n);
}

/* ---- gone ---- */

static struct tcp_seg *ooo_segment_at(const struct vma_tcp_conn *conn, unsigned i)
{
	struct tcp_seg *seg = conn->pcb->ooseq;

	while (seg != NULL && i-- > 0)
		seg = seg->next;
	return seg;
}

ssize_t vma_tcp_export_copy_ooo_segment(struct vma_tcp_conn *conn, unsigned i, uint32_t *seq, bool *fin, void *to,
                                        size_t room)
{
	const struct tcp_seg *seg = ooo_segment_at(conn, i);

	if (seg == NULL)
		return -ENOENT;
	if (seg->len > room)
		return -EMSGSIZE;
	*seq = seg->tcphdr->seqno;
	*fin = (TCPH_FLAGS(seg->tcphdr) & TCP_FIN) != 0;
	return pbuf_copy_partial(seg->p, to, seg->len, 0);
}

static bool export_late_packet_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_tcp_late_sink *late = flow->owner;

	(void)info;
	late->packet(late, packet);
	return false;
}

/* Who looks at the connection again finds nothing to read, and nothing to write to. */
void vma_tcp_export_end(struct vma_tcp_conn *conn, struct vma_tcp_late_sink *late)
{
	atomic_store_explicit(&conn->owner, NULL, memory_order_release);
	atomic_store_explicit(&conn->owner_arg, NULL, memory_order_relaxed);
	tcp_remember_exported_conn(conn->tcp, &conn->key, TCP_LEFT_FOR_KERNEL);
	conn->exported = true;
	fifo_consume(&conn->rx, fifo_queued_bytes(&conn->rx));
	if (late != NULL) {
		conn->flow.sink = export_late_packet_sink;
		conn->flow.owner = late;
		conn->attached = false; /* the flow's end is detach's business */
	}
	conn_fail_with_error(conn, 0, false);
}

void vma_tcp_export_detach(struct vma_tcp_conn *conn)
{
	vma_ring_drain_and_detach_flow(conn->tcp->ring, &conn->flow);
}
