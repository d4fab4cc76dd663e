/*
 * pending.c - connections that wait for accept, of a listener that other processes serve, too. Another process can go
 * on with them, from what is written here for the owner of the device (<vma/nic_group.h>).
 *
 *   SYN ──> HALF_OPEN, then the SYN-ACK ──handshake──> QUEUED ──accept──> FREE
 *                  └───────────── the owner: MOVED ──────┘     another stack makes it: tcp_listener_adopt_pending_conn
 *
 * None of the peer's bytes, and no FIN, is acknowledged before accept. So the entry says all: the peer has them still,
 * and sends them again. An ACK that is due waits for a delayed one's time, again and again. A connection that has been
 * moved is over here, without a word to the peer.
 *
 * The driver makes entries; any thread accepts. A change of state is one compare-and-swap of the entry. The
 * connection's `pending` is taken by an exchange, so the entry is given back once.
 */
#include <errno.h>
#include <string.h>

#include <vma/packet.h>

#include "rx/segment.h"
#include "siphash.h"
#include "timer/timers.h"

#define TRIES 16                    /* places that are looked at for a free one */
#define ACK_NS (20 * TCP_NS_PER_MS) /* until an ACK that waits for accept is thought of again */

void tcp_pending_init(struct vma_tcp *tcp)
{
	tcp->member = vma_ring_qp(tcp->ring)->member;
	if (tcp->member != NULL)
		memcpy(tcp->isn_key, tcp->member->isn_key, sizeof(tcp->isn_key));
	if (tcp->member != NULL && tcp->member->clock_ms != 0)
		tcp->clock_offset_ms = tcp->member->clock_ms; /* the next process goes on with it */
}

bool tcp_pending_is_shared(const struct vma_tcp *tcp)
{
	return tcp->member != NULL && atomic_load_explicit(&tcp->member->groups, memory_order_relaxed) != 0;
}

/*
 * A SYN that one process was slow to take is repeated by the peer, and the other may go to another process. Both answer
 * then. The peer takes the SYN-ACK that comes first, and what it says goes to who got its last SYN: so both have to
 * begin with the same number. In place of RFC 6528's clock it is the peer's own number that makes it another one each
 * time, as with SYN cookies.
 */
uint32_t tcp_isn_same_in_all_processes(const struct vma_tcp *tcp, const struct vma_flow_key *key, uint32_t irs)
{
	static const uint8_t no_key[sizeof(tcp->isn_key)];
	struct {
		struct vma_flow_key key;
		uint32_t irs, pad;
	} named = {.key = *key, .irs = irs};
	uint32_t isn;

	if (!tcp_pending_is_shared(tcp) || memcmp(tcp->isn_key, no_key, sizeof(no_key)) == 0)
		return 0;
	isn = (uint32_t)siphash(tcp->isn_key, &named, sizeof(named));
	return isn != 0 ? isn : 1;
}

/* ---- entries ---- */

static struct vma_pending *pending_find_free_entry(struct vma_tcp *tcp, uint32_t *place)
{
	for (int i = 0; i < TRIES; i++) {
		struct vma_pending *entry;

		*place = tcp->pending_at++ % VMA_PENDING_MAX;
		entry = &tcp->member->pending[*place];
		if (atomic_load_explicit(&entry->state, memory_order_acquire) == VMA_PENDING_FREE)
			return entry;
	}
	return NULL;
}

static void pending_fill_entry_from_conn(const struct vma_tcp_conn *conn, struct vma_pending *entry)
{
	const struct tcp_pcb *pcb = conn->pcb;

	entry->irs = pcb->rcv_nxt - 1;
	entry->iss = pcb->lastack;
	entry->mss = conn->peer_mss;
	entry->window = (uint16_t)(pcb->snd_wnd < 65535 ? pcb->snd_wnd : 65535);
	entry->since_ns = conn->tcp->now_ns;
	memcpy(entry->local, conn->key.local, sizeof(entry->local));
	memcpy(entry->peer, conn->key.peer, sizeof(entry->peer));
	entry->local_port_be = conn->key.local_port_be;
	entry->peer_port_be = conn->key.peer_port_be;
	entry->vlan = conn->key.vlan;
	entry->scale = pcb->flags & TF_WND_SCALE ? pcb->snd_scale : 0;
	entry->flags = (uint8_t)((pcb->flags & TF_WND_SCALE ? VMA_PENDING_SCALE : 0) |
	                         (pcb->flags & TF_SACK ? VMA_PENDING_SACK : 0) |
	                         (pcb->flags & TF_TIMESTAMP ? VMA_PENDING_TIMESTAMPS : 0));
	entry->ts_val = pcb->ts_recent;
	memcpy(entry->mac, conn->path.bytes, sizeof(entry->mac));
}

void tcp_pending_publish_half_open(struct vma_tcp_conn *conn)
{
	struct vma_pending *entry;
	uint32_t place;

	if (!tcp_pending_is_shared(conn->tcp))
		return;
	entry = pending_find_free_entry(conn->tcp, &place);
	if (entry == NULL)
		return;
	pending_fill_entry_from_conn(conn, entry);
	atomic_fetch_add_explicit(&conn->tcp->member->waiting, 1, memory_order_relaxed);
	atomic_store_explicit(&entry->state, VMA_PENDING_HALF_OPEN, memory_order_release);
	atomic_store_explicit(&conn->pending, place + 1, memory_order_relaxed);
}

static struct vma_pending *pending_entry_of_conn(const struct vma_tcp_conn *conn)
{
	const uint32_t pending = atomic_load_explicit(&conn->pending, memory_order_acquire);

	return pending != 0 ? &conn->tcp->member->pending[pending - 1] : NULL;
}

bool tcp_pending_mark_queued(struct vma_tcp_conn *conn)
{
	struct vma_pending *entry = pending_entry_of_conn(conn);
	uint32_t state = VMA_PENDING_HALF_OPEN;

	if (entry == NULL)
		return true;
	entry->since_ns = conn->tcp->now_ns; /* which whoever moves it in this moment need not see */
	return atomic_compare_exchange_strong(&entry->state, &state, VMA_PENDING_QUEUED);
}

bool tcp_pending_withdraw(struct vma_tcp_conn *conn)
{
	const uint32_t pending = atomic_exchange(&conn->pending, 0);

	if (pending == 0)
		return true;
	atomic_fetch_sub_explicit(&conn->tcp->member->waiting, 1, memory_order_relaxed);
	return atomic_exchange(&conn->tcp->member->pending[pending - 1].state, VMA_PENDING_FREE) != VMA_PENDING_MOVED;
}

bool tcp_pending_was_adopted(const struct vma_tcp_conn *conn)
{
	const struct vma_pending *entry = pending_entry_of_conn(conn);

	return entry != NULL && atomic_load_explicit(&entry->state, memory_order_relaxed) == VMA_PENDING_MOVED;
}

bool tcp_has_pending_conns(const struct vma_tcp *tcp)
{
	for (uint32_t i = 0; tcp->member != NULL && i < VMA_PENDING_MAX; i++) {
		const uint32_t state = atomic_load_explicit(&tcp->member->pending[i].state, memory_order_relaxed);

		if (state == VMA_PENDING_HALF_OPEN || state == VMA_PENDING_QUEUED)
			return true;
	}
	return false;
}

/* True: nothing is to be acknowledged now. */
bool tcp_pending_delay_ack(struct vma_tcp_conn *conn)
{
	if (atomic_load_explicit(&conn->pending, memory_order_relaxed) == 0)
		return false;
	tcp_clear_flags(conn->pcb, TF_ACK_NOW);
	conn->dsack_left = conn->dsack_right = 0;
	if (conn->window.delack_due_ns == UINT64_MAX && !tcp_pending_was_adopted(conn))
		timers_set_delack(conn, ACK_NS);
	return true;
}

/* ---- accept ---- */

bool vma_tcp_is_pending(const struct vma_tcp_conn *conn)
{
	return atomic_load_explicit(&conn->pending, memory_order_relaxed) != 0;
}

bool tcp_pending_outlives_process(const struct vma_tcp_conn *conn)
{
	return vma_tcp_is_pending(conn) && tcp_pending_is_shared(conn->tcp);
}

bool vma_tcp_claim_accepted_conn(struct vma_tcp_conn *conn)
{
	struct vma_nic_accept_page *member = conn->tcp->member;

	/* Its entry says so until it is dropped: it may come back before that (tcp_listener_adopt_pending_conn). */
	if (tcp_pending_was_adopted(conn) || !tcp_pending_withdraw(conn))
		return false;
	if (member != NULL)
		atomic_fetch_add_explicit(&member->accepted, 1, memory_order_relaxed);
	return true;
}

void vma_tcp_drop_adopted_elsewhere(struct vma_tcp_conn *conn)
{
	bool acquired = vma_ring_acquire(conn->tcp->ring);

	if (!conn->is_over)
		conn_fail_with_error(conn, 0, false);
	tcp_pending_withdraw(conn);
	if (acquired)
		vma_ring_release(conn->tcp->ring);
}

/* ---- what another process has not accepted ---- */

static uint8_t *pending_write_tcp_timestamp_option(const struct vma_tcp *tcp, const struct vma_pending *pending,
                                                   bool echo, uint8_t *p)
{
	if (!(pending->flags & VMA_PENDING_TIMESTAMPS))
		return p;
	p = vma_pkt_put32(p, SEGMENT_TS_WORD);
	p = vma_pkt_put32(p, pending->ts_val);
	return vma_pkt_put32(p, echo ? tcp_clock_ms(tcp) : 0);
}

static uint8_t *pending_write_options(const struct vma_tcp *tcp, const struct vma_pending *pending, bool syn,
                                      uint8_t *p)
{
	if (syn) {
		p = vma_pkt_put16(p, 2 << 8 | 4);
		p = vma_pkt_put16(p, pending->mss);
		if (pending->flags & VMA_PENDING_SACK)
			p = vma_pkt_put32(p, UINT32_C(0x01010402));
		if (pending->flags & VMA_PENDING_SCALE)
			p = vma_pkt_put32(p, UINT32_C(0x01030300) | pending->scale);
	}
	return pending_write_tcp_timestamp_option(tcp, pending, !syn, p);
}

static uint8_t *pending_write_ethernet(const struct vma_pending *pending, uint8_t *p)
{
	memcpy(p, pending->mac + 6, 6);
	memcpy(p + 6, pending->mac, 6);
	p += 12;
	if (pending->vlan != 0)
		p = vma_pkt_put16(vma_pkt_put16(p, 0x8100), pending->vlan);
	return vma_pkt_put16(p, 0x0800);
}

/* As the peer has sent it: its SYN, or the ACK that ends the handshake. */
struct vma_buf *tcp_pending_make_peer_segment(struct vma_tcp *tcp, const struct vma_pending *pending, bool syn)
{
	struct vma_buf *buf = vma_ring_tx_buf(tcp->ring);
	uint32_t window = pending->window;
	uint8_t *frame, *p, *tcp_head;

	if (buf == NULL)
		return NULL;
	frame = (uint8_t *)vma_buf_data(tcp->arena, buf);
	memset(frame, 0, VMA_PKT_ETH_HLEN + VMA_PKT_VLAN_HLEN + VMA_PKT_IP4_HLEN + 60);
	p = pending_write_ethernet(pending, frame);
	buf->l3_off = (uint16_t)(p - frame);
	p[0] = 0x45;
	p[8] = 64;
	p[9] = IPPROTO_TCP;
	memcpy(p + 12, pending->peer, 4);
	memcpy(p + 16, pending->local, 4);
	tcp_head = p + VMA_PKT_IP4_HLEN;
	buf->l4_off = (uint16_t)(tcp_head - frame);
	memcpy(tcp_head, &pending->peer_port_be, 2);
	memcpy(tcp_head + 2, &pending->local_port_be, 2);
	vma_pkt_put32(tcp_head + 4, pending->irs + !syn);
	vma_pkt_put32(tcp_head + 8, syn ? 0 : pending->iss + 1);
	if (!syn && pending->flags & VMA_PENDING_SCALE)
		window >>= pending->scale < 14 ? pending->scale : 14;
	vma_pkt_put16(tcp_head + 14, window);
	p = pending_write_options(tcp, pending, syn, tcp_head + VMA_PKT_TCP_HLEN);
	tcp_head[12] = (uint8_t)((p - tcp_head) / 4 << 4);
	tcp_head[13] = syn ? TCP_SYN : TCP_ACK;
	buf->payload_off = (uint16_t)(p - frame);
	buf->payload_len = 0;
	buf->len = buf->packet_len = buf->payload_off;
	vma_pkt_put16(frame + buf->l3_off + 2, buf->len - buf->l3_off);
	buf->next = NULL;
	return buf;
}

void tcp_pending_to_rx_info(const struct vma_pending *pending, struct vma_rx_info *info)
{
	*info = (struct vma_rx_info){.family = AF_INET,
	                             .proto = IPPROTO_TCP,
	                             .vlan = pending->vlan,
	                             .src_port_be = pending->peer_port_be,
	                             .dst_port_be = pending->local_port_be,
	                             .ttl = 64,
	                             .tcp_flags = TCP_ACK};
	memcpy(info->src, pending->peer, sizeof(pending->peer));
	memcpy(info->dst, pending->local, sizeof(pending->local));
}
