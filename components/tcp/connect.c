/* connect.c - the active open, and the step of a connection whose handshake is complete. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "siphash.h"
#include "tcp_priv.h"
#include "zcopy.h"
#include "lwip/port.h"

#define ISN_TICK_NS 64 /* the kernel's clock of sequence numbers; RFC 6528 asks for 4 us or faster */

/* ---- sequence numbers ---- */

/* RFC 6528: a clock, and a secret function of the 4-tuple. */
uint32_t tcp_isn(struct vma_tcp *tcp, const struct vma_flow_key *key)
{
	uint32_t hash = (uint32_t)siphash(tcp->attr.secret, key, sizeof(*key));

	return hash + (uint32_t)(tcp->now_ns / ISN_TICK_NS);
}

/* lwIP asks in the name of the connection at hand; addresses are those of its key. */
u32_t tcp_hook_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port)
{
	struct vma_tcp *tcp = lwip_at.tcp;
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = IPPROTO_TCP,
	                           .local_port_be = lwip_htons(local_port),
	                           .peer_port_be = lwip_htons(remote_port)};

	if (tcp->isn_above != 0)
		return tcp->isn_above;
	memcpy(key.local, local_ip, 4);
	memcpy(key.peer, remote_ip, 4);
	return tcp_isn(tcp, &key);
}

/* ---- segment size ---- */

static uint32_t tcp_option_bytes_of_pcb(const struct tcp_pcb *pcb)
{
	return pcb->flags & TF_TIMESTAMP ? LWIP_TCP_OPT_LEN_TS_OUT : 0;
}

/* IP and TCP headers without options deducted. */
static uint32_t mss_of_path(const struct vma_tcp_conn *conn)
{
	uint32_t mtu = conn->path.len != 0 && conn->path.mtu >= 68 ? conn->path.mtu : conn->tcp->nic->mtu;
	uint32_t mss = (mtu < conn->tcp->nic->mtu ? mtu : conn->tcp->nic->mtu) - 40,
	         wanted = (uint32_t)tcp_option(conn, VMA_TCP_OPT_MAXSEG);

	return wanted != 0 && wanted < mss ? wanted : mss;
}

/* What this side tells the peer: RFC 9293 3.7.1. */
uint32_t tcp_mss_advertised(const struct vma_tcp_conn *conn)
{
	uint32_t mss = mss_of_path(conn), most = conn->path.advmss;

	return most != 0 && most < mss ? most : mss;
}

/* A segment leaves in one buffer, whatever the path's mtu. */
static uint32_t mss_of_buffer(const struct vma_tcp *tcp)
{
	uint32_t size = UINT32_C(1) << tcp->arena->frame_shift;

	return size - vma_ring_qp(tcp->ring)->tx_headroom - sizeof(((struct vma_tcp_path *)0)->bytes) - TCP_HLEN;
}

void tcp_conn_mss_update(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;
	uint32_t mss = mss_of_path(conn), headers, before = conn->mss, least = conn->tcp->attr.min_snd_mss;

	if (pcb == NULL)
		return;
	if (conn->peer_mss != 0 && conn->peer_mss < mss)
		mss = conn->peer_mss;
	if (mss < least)
		mss = least;
	if (mss_of_buffer(conn->tcp) < mss)
		mss = mss_of_buffer(conn->tcp);
	headers = tcp_option_bytes_of_pcb(pcb);
	pcb->mss = (u16_t)mss;
	conn->mss = mss - headers;
	atomic_store_explicit(&conn->mss_now, conn->mss, memory_order_relaxed);
	cc_set_mss(&conn->cc, conn->mss);
	cc_set_initial_window_segments(&conn->cc, conn->path.initcwnd);
	if (before != 0 && conn->mss < before)
		tcp_split_queued_segments_to_mss(conn);
}

/* ---- the SYN ---- */

/* A SYN without this option: the bytes that lwIP has left for it go. */
static void syn_remove_option(struct tcp_pcb *pcb, u8_t flag, unsigned bytes)
{
	struct tcp_seg *seg = pcb->unsent;
	unsigned words = TCPH_HDRLEN(seg->tcphdr) - bytes / 4;

	seg->flags &= (u8_t)~flag;
	TCPH_HDRLEN_SET(seg->tcphdr, words);
	pbuf_realloc(seg->p, (u16_t)(seg->p->tot_len - bytes));
}

static void syn_remove_disabled_options(struct tcp_pcb *pcb, const struct vma_tcp_attr *attr)
{
	if (attr->no_timestamps)
		syn_remove_option(pcb, TF_SEG_OPTS_TS, LWIP_TCP_OPT_LEN_TS_OUT);
	if (attr->no_window_scaling)
		syn_remove_option(pcb, TF_SEG_OPTS_WND_SCALE, LWIP_TCP_OPT_LEN_WS_OUT);
	if (attr->no_sack)
		syn_remove_option(pcb, TF_SEG_OPTS_SACK_PERM, LWIP_TCP_OPT_LEN_SACK_PERM_OUT);
}

static err_t pcb_set_addresses_and_enqueue_syn(struct vma_tcp_conn *conn, struct tcp_pcb *pcb)
{
	const struct vma_flow_key *key = &conn->key;
	uint32_t iss = conn->isn_above != 0 ? conn->isn_above : tcp_isn(conn->tcp, key);
	err_t err;

	memcpy(&pcb->local_ip, key->local, 4);
	memcpy(&pcb->remote_ip, key->peer, 4);
	pcb->local_port = lwip_htons(key->local_port_be);
	pcb->remote_port = lwip_htons(key->peer_port_be);
	pcb->snd_nxt = pcb->snd_lbb = iss;
	pcb->lastack = iss;
	pcb->snd_wl2 = iss;
	pcb->snd_wnd = pcb->snd_wnd_max = TCP_WND;
	pcb->state = SYN_SENT;
	err = tcp_enqueue_flags(pcb, TCP_SYN);
	if (err == ERR_OK)
		syn_remove_disabled_options(pcb, &conn->tcp->attr);
	return err;
}

/* Driver. */
static int conn_send_syn(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb;
	err_t err = ERR_MEM;

	lwip_enter(conn->tcp, conn);
	pcb = tcp_alloc(TCP_PRIO_NORMAL);
	if (pcb != NULL) {
		conn->pcb = pcb;
		tcp_pcb_attach(conn, pcb);
		err = pcb_set_addresses_and_enqueue_syn(conn, pcb);
		TCP_REG_ACTIVE(pcb);
		if (err != ERR_OK)
			tcp_abandon(pcb, 0);
	}
	lwip_leave();
	if (err != ERR_OK)
		return -ENOMEM;
	tcp_conn_mss_update(conn);
	timers_retransmit_update(conn);
	tcp_conn_publish_state_and_events(conn);
	conn_enqueue_ready(conn);
	return 0;
}

/* ---- vma_tcp_connect ---- */

static struct vma_flow_key conn_attr_key(const struct vma_tcp_conn_attr *attr)
{
	struct vma_flow_key key = {.family = attr->family,
	                           .proto = IPPROTO_TCP,
	                           .vlan = attr->vlan,
	                           .local_port_be = attr->local_port_be,
	                           .peer_port_be = attr->peer_port_be};

	memcpy(key.local, attr->local, sizeof(key.local));
	memcpy(key.peer, attr->peer, sizeof(key.peer));
	return key;
}

/* Receive flag held. The connection, with its flow in the ring's table. */
static int conn_create_unless_tuple_is_in_use(struct vma_tcp *tcp, const struct vma_tcp_conn_attr *attr,
                                              const struct vma_flow_key *key, struct vma_tcp_conn **out)
{
	const struct vma_flow *present = vma_ring_find_first_flow_of_key(tcp->ring, key);
	const enum timewait_reuse_rule use = attr->port_is_bound    ? TIMEWAIT_USE_BOUND
	                                     : attr->time_wait_ends ? TIMEWAIT_USE_LAST
	                                                            : TIMEWAIT_USE_CHOSEN;
	struct vma_tcp_conn *conn;
	uint32_t isn_above = 0;

	if (present != NULL && present->sink == tcp_conn_flow_sink) {
		if (!attr->port_is_bound || !conn_end_for_tuple_reuse(present->owner, &isn_above))
			return -EADDRINUSE;
	} else if (present != NULL && !timewait_end_if_reusable(tcp, key, use, &isn_above)) {
		return -EADDRINUSE;
	}
	conn = tcp_conn_new(tcp, key, attr->options);
	if (conn == NULL)
		return -ENOMEM;
	conn->path = attr->path;
	conn->isn_above = isn_above;
	conn->flow.shadow_cookie = attr->shadow_cookie;
	conn->flow.shadow_fd = attr->shadow_fd;
	conn->flow.flags = VMA_FLOW_RING_ONLY | (attr->port_is_bound ? VMA_FLOW_PORT_BOUND : 0);
	*out = conn;
	return 0;
}

int vma_tcp_request_port_block(struct vma_tcp *tcp, const struct vma_tcp_conn_attr *attr)
{
	const struct vma_flow_key key = conn_attr_key(attr);

	return vma_ring_reserve_port_block_of_key(tcp->ring, &key);
}

/*
 * Without the receive flag if the caller does not hold it: packets go on while the NIC is asked. What comes for the
 * connection meanwhile is dropped: it has no pcb, and has said nothing yet.
 */
static int conn_attach_flow_and_rule(struct vma_tcp_conn *conn, bool held, bool covered)
{
	struct vma_ring *ring = conn->tcp->ring;
	int rc;

	if (held && !covered)
		conn->flow.flags &= ~(uint32_t)VMA_FLOW_RING_ONLY;
	rc = vma_ring_attach_flow(ring, &conn->flow);
	conn->attached = rc == 0;
	if (held || covered || rc != 0)
		return rc;
	vma_ring_release(ring);
	rc = vma_ring_request_nic_rule_of_flow(ring, &conn->flow);
	vma_ring_acquire(ring);
	tcp_update_now(conn->tcp);
	return rc;
}

/* Receive flag held. */
static int conn_create_and_send_syn(struct vma_tcp *tcp, const struct vma_tcp_conn_attr *attr,
                                    const struct vma_flow_key *key, bool held, struct vma_tcp_conn **out)
{
	struct vma_tcp_conn *conn;
	int rc = conn_create_unless_tuple_is_in_use(tcp, attr, key, &conn);

	if (rc != 0)
		return rc;
	rc = conn_attach_flow_and_rule(conn, held, attr->covered);
	conn->steered = rc == 0 && !attr->covered;
	atomic_store(&conn->owner_arg, attr->arg);
	atomic_store(&conn->owner, rc == 0 ? attr->owner : NULL);
	if (rc == 0 && attr->inspected && !zcopy_inspect_from_start(conn))
		rc = -ENOMEM;
	if (rc == 0)
		rc = conn_send_syn(conn);
	if (rc != 0) {
		atomic_store(&conn->owner, NULL);
		conn_clean_up_after_pcb_freed(conn, -rc);
		vma_tcp_conn_put(conn);
		return rc;
	}
	*out = conn;
	return 0;
}

int vma_tcp_connect(struct vma_tcp *tcp, const struct vma_tcp_conn_attr *attr, struct vma_tcp_conn **out)
{
	struct vma_flow_key key = conn_attr_key(attr);
	int rc = vma_flow_key_check(&key);
	bool acquired;

	if (rc != 0)
		return rc;
	if (attr->options == NULL || key.peer_port_be == 0)
		return -EINVAL;
	acquired = vma_ring_acquire(tcp->ring);
	tcp_update_now(tcp);
	rc = conn_create_and_send_syn(tcp, attr, &key, !acquired, out);
	if (acquired)
		vma_ring_release(tcp->ring);
	return rc;
}

uint16_t vma_tcp_oldest_timewait_port(struct vma_tcp *tcp, const struct vma_tcp_conn_attr *attr)
{
	const struct vma_flow_key key = conn_attr_key(attr);
	bool acquired = vma_ring_acquire(tcp->ring);
	uint16_t port_be;

	tcp_update_now(tcp);
	port_be = timewait_oldest_port(tcp, &key);
	if (acquired)
		vma_ring_release(tcp->ring);
	return port_be;
}

/* ---- established ---- */

/* RFC 7323 2.2, 3.2, 2018 2: what is not offered by both is not used. lwIP takes the peer's offer for enough. */
void tcp_drop_unagreed_options(struct vma_tcp_conn *conn)
{
	const struct vma_tcp_attr *attr = &conn->tcp->attr;
	struct tcp_pcb *pcb = conn->pcb;

	if (attr->no_timestamps)
		tcp_clear_flags(pcb, TF_TIMESTAMP);
	if (attr->no_sack)
		tcp_clear_flags(pcb, TF_SACK);
	if (attr->no_window_scaling) {
		tcp_clear_flags(pcb, TF_WND_SCALE);
		pcb->snd_scale = pcb->rcv_scale = 0;
	}
}

/* Within lwip_enter. Both streams begin behind their SYNs. */
void tcp_conn_established(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;

	tcp_drop_unagreed_options(conn);
	conn->connected = true;
	conn->peer_mss = pcb->mss;
	conn->tx_seq = pcb->snd_nxt;
	conn->rx_seq = pcb->rcv_nxt;
	conn->window.rcv_wup = pcb->rcv_nxt;
	conn->snd_sml = pcb->snd_nxt;
	tcp_set_flags(pcb, TF_NODELAY); /* Nagle's rule is tx/output.c's */
	tcp_conn_mss_update(conn);
	window_init_on_established(conn);
	conn->events |= VMA_TCP_CONNECTED | VMA_TCP_WRITABLE;
	timers_keepalive_update(conn);
}
