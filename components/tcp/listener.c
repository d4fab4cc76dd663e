/*
 * listener.c - connection requests: which are let in, half-open connections, and handing over what is complete.
 *
 * The listener's flow gets all segments of its port that no connection's flow takes. A SYN makes a connection at once,
 * whose flow lies in the ring's table only. It is half-open, and counts against the backlog, until the handshake is
 * complete.
 *
 * Beyond the backlog, the owner's queue or the rate, SYNs are dropped as the kernel drops them: the peer asks again.
 * Beyond the backlog alone they are answered by a cookie (net.ipv4.tcp_syncookies), of which nothing is kept. The ACK
 * that brings it back makes the connection then. If there are to be no cookies, a request among very many that has not
 * answered in time makes way for another. So a few forged ones per second do not keep all others out (RFC 4987 3.4).
 *
 * All other segments belong to no connection here, and are answered by RST. If they may be another process's, only the
 * second time (stranger.c). If the NIC has no way to leave the kernel's connections to the kernel, they are given to
 * it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/packet.h>

#include "rx/segment.h"
#include "syncookie.h"

#define RECYCLE_ABOVE 64
#define SYN_ACK_WAIT_NS (500 * TCP_NS_PER_MS) /* for a SYN-ACK that was repeated to be answered */

struct vma_tcp_listener {
	struct vma_flow flow;
	struct vma_tcp *tcp;
	const struct vma_tcp_listener_ops *owner;
	void *arg;
	struct vma_tcp_options options;
	struct tcp_pcb_listen pcb; /* lwIP's idea of it */
	uint32_t backlog, half_open;
	uint32_t syn_tokens;                /* requests that the rate allows now, */
	uint64_t syn_tokens_ns;             /* as of then */
	bool finishing;                     /* no request is let in any more, */
	bool closed;                        /* and each is refused */
	bool retired;                       /* other processes serve it, and get what nobody here has accepted */
	bool withdrawn;                     /* the flow is detached */
	uint64_t cookies_until_ns;          /* so long those may come back that were sent; 0: none was */
	struct vma_tcp_conn *first, **last; /* half-open, the oldest first */
	struct vma_tcp_listener *next, **prev;
};

/* ---- half-open connections ---- */

static void add_half_open(struct vma_tcp_listener *listener, struct vma_tcp_conn *conn)
{
	conn->listener = listener;
	conn->next_half_open = NULL;
	conn->prev_half_open = listener->last;
	*listener->last = conn;
	listener->last = &conn->next_half_open;
	listener->half_open++;
}

static void remove_half_open(struct vma_tcp_conn *conn)
{
	*conn->prev_half_open = conn->next_half_open;
	if (conn->next_half_open != NULL)
		conn->next_half_open->prev_half_open = conn->prev_half_open;
	else
		conn->listener->last = conn->prev_half_open;
	conn->listener->half_open--;
	conn->listener = NULL;
}

/* It has ended before anybody knew of it: nobody holds its reference. */
void tcp_half_open_end(struct vma_tcp_conn *conn)
{
	remove_half_open(conn);
	conn->is_unused = true;
}

void tcp_half_open_established(struct vma_tcp_conn *conn)
{
	struct vma_tcp_listener *listener = conn->listener;

	remove_half_open(conn);
	TCP_COUNT(conn->tcp, handshakes, 1);
	if (!tcp_pending_mark_queued(conn)) {
		tcp_pending_withdraw(conn);
		conn->is_unused = true;
		conn_fail_with_error(conn, 0, false);
		return;
	}
	if (listener->owner->accepted(listener, listener->arg, conn))
		return;
	conn->is_unused = true;
	conn_fail_with_error(conn, 0, true);
}

/* ---- a SYN ---- */

/* VMA_TCP_MAX_SYN_RATE: as many tokens as a second brings, at most. */
static bool take_syn_token(struct vma_tcp_listener *listener)
{
	const struct vma_tcp *tcp = listener->tcp;
	uint64_t rate = tcp->attr.max_syn_rate, passed = tcp->now_ns - listener->syn_tokens_ns, tokens;

	if (rate == 0)
		return true;
	passed = passed < TCP_NS_PER_S ? passed : TCP_NS_PER_S;
	tokens = passed * rate / TCP_NS_PER_S;
	if (tokens != 0) {
		listener->syn_tokens_ns = tcp->now_ns;
		tokens += listener->syn_tokens;
		listener->syn_tokens = (uint32_t)(tokens < rate ? tokens : rate);
	}
	if (listener->syn_tokens == 0)
		return false;
	listener->syn_tokens--;
	return true;
}

/*
 * More are half open than can be by chance, and this one's SYN-ACK has been sent again, in vain (unless it is one that
 * TCP_DEFER_ACCEPT waits for): it is a forged one, or hardly worth more than the one that asks now.
 */
static bool half_open_is_evictable(const struct vma_tcp_listener *listener, const struct vma_tcp_conn *conn)
{
	return listener->half_open > RECYCLE_ABOVE && conn->recovery.timeouts > 0 && !conn->defer_data &&
	       listener->tcp->now_ns - conn->recovery.rto_from_ns >= SYN_ACK_WAIT_NS;
}

enum admission { DROP, KEEP, COOKIE, REFUSE };

static bool sends_cookies(const struct vma_tcp_listener *listener)
{
	return listener->options.syncookies == 2 ||
	       (listener->half_open >= listener->backlog && listener->options.syncookies != 0);
}

/* As net.ipv4.tcp_syncookies: 0 never, 1 when there is no room for another request, 2 always. */
static enum admission listener_syn_admission(struct vma_tcp_listener *listener)
{
	bool full = listener->half_open >= listener->backlog, cookie;

	if (listener->closed)
		return REFUSE;
	if (listener->finishing)
		return DROP;
	cookie = sends_cookies(listener);
	if ((full && !cookie && !half_open_is_evictable(listener, listener->first)) || !take_syn_token(listener) ||
	    !listener->owner->admit(listener, listener->arg))
		return DROP;
	if (cookie)
		return COOKIE;
	if (full)
		conn_fail_with_error(listener->first, 0, false);
	return KEEP;
}

/* The way back is the way it came. */
static void tcp_path_reverse_of_syn(struct vma_tcp *tcp, const struct vma_buf *packet, struct vma_tcp_path *path)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(tcp->arena, packet), *ip = frame + packet->l3_off;

	memset(path, 0, sizeof(*path));
	memcpy(path->bytes, frame, packet->l3_off);
	memcpy(path->bytes, frame + 6, 6);
	memcpy(path->bytes + 6, frame, 6);
	path->ip_off = (uint8_t)packet->l3_off;
	path->len = (uint8_t)(packet->l3_off + VMA_PKT_IP4_HLEN);
	path->bytes[path->ip_off] = 0x45;
	memcpy(path->bytes + path->ip_off + 12, ip + 16, 4);
	memcpy(path->bytes + path->ip_off + 16, ip + 12, 4);
	path->mtu = tcp_mtu_for_syn_reply(tcp);
}

struct vma_flow_key tcp_flow_key_of_packet(const struct vma_rx_info *info)
{
	struct vma_flow_key key = {.family = info->family,
	                           .proto = IPPROTO_TCP,
	                           .vlan = info->vlan,
	                           .local_port_be = info->dst_port_be,
	                           .peer_port_be = info->src_port_be};

	memcpy(key.local, info->dst, sizeof(key.local));
	memcpy(key.peer, info->src, sizeof(key.peer));
	return key;
}

/* lwIP has made a pcb, and read the options of the SYN; the SYN-ACK comes next. */
err_t tcp_hook_passive(struct tcp_pcb_listen *listener, struct tcp_pcb *pcb)
{
	struct vma_tcp_conn *conn = lwip_at.tcp->opening;

	(void)listener;
	lwip_at.conn = conn;
	conn->pcb = pcb;
	conn->peer_mss = pcb->mss;
	tcp_pcb_attach(conn, pcb);
	tcp_drop_unagreed_options(conn);
	return ERR_OK;
}

static void send_syn_ack(struct vma_tcp_listener *listener, struct vma_tcp_conn *conn, struct pbuf *p)
{
	struct vma_tcp *tcp = conn->tcp;
	struct tcp_seg *seg;

	tcp->opening = conn;
	lwip_enter_listener(tcp, &listener->pcb);
	lwip_tcp_input_segment(conn->key.peer, conn->key.local, p);
	if (conn->pcb != NULL && conn->pcb->unacked != NULL)
		for (seg = conn->pcb->unacked; seg != NULL; seg = seg->next)
			recovery_on_segment_sent(conn, seg);
	lwip_leave();
	tcp->opening = NULL;
}

/* True: the packet has been taken. Silently: what answers it was sent before. */
static bool listener_open_passive_conn(struct vma_tcp_listener *listener, struct vma_buf *packet,
                                       const struct vma_rx_info *info, bool silently)
{
	struct vma_tcp *tcp = listener->tcp;
	struct vma_flow_key key = tcp_flow_key_of_packet(info);
	struct vma_tcp_conn *conn = tcp_conn_new(tcp, &key, &listener->options);
	struct segment syn;
	struct pbuf *p;
	uint8_t path_len;

	if (conn == NULL) {
		tcp->isn_above = 0;
		return false;
	}
	conn->passive = true;
	tcp_path_reverse_of_syn(tcp, packet, &conn->path);
	path_len = conn->path.len;
	if (silently)
		conn->path.len = 0;
	conn->flow.flags = VMA_FLOW_RING_ONLY;
	add_half_open(listener, conn);
	conn->attached = vma_ring_attach_flow(tcp->ring, &conn->flow) == 0;
	segment_parse(&syn, tcp->arena, packet);
	lwip_enter(tcp, NULL);
	p = conn->attached ? port_pbuf_chain_from_packet(tcp, packet, syn.header, syn.hdr_len) : NULL;
	lwip_leave();
	if (tcp->isn_above == 0)
		tcp->isn_above = tcp_isn_same_in_all_processes(tcp, &key, syn.seq);
	if (p != NULL)
		send_syn_ack(listener, conn, p);
	tcp->isn_above = 0;
	conn->path.len = path_len;
	if (conn->pcb == NULL) {
		TCP_COUNT(tcp, no_memory, 1);
		conn_clean_up_after_pcb_freed(conn, 0);
		return p != NULL;
	}
	tcp_pending_publish_half_open(conn); /* the SYN-ACK leaves at the end of the run */
	timers_retransmit_update(conn);
	conn_enqueue_ready(conn);
	return true;
}

/* ---- cookies ---- */

/* The least that a connection of this listener's begins with. */
static uint16_t listener_initial_window(const struct vma_tcp_options *options)
{
	int32_t window = options->rcvbuf != 0 ? options->rcvbuf : options->rcvbuf_init / 2;

	if (options->window_clamp != 0 && options->window_clamp < window)
		window = options->window_clamp;
	return (uint16_t)(window > 65535 ? 65535 : window < 1152 ? 1152 : window);
}

static void listener_send_syn_cookie(struct vma_tcp_listener *listener, struct vma_buf *packet)
{
	struct vma_tcp *tcp = listener->tcp;

	listener->cookies_until_ns = tcp->now_ns + SYNCOOKIE_LIFETIME_NS;
	TCP_COUNT(tcp, cookies_sent, 1);
	syncookie_send(tcp, packet, listener_initial_window(&listener->options));
}

/* The connection, half open again; then the ACK goes to it as any other does. True: the packet has been taken. */
static bool listener_recreate_from_cookie(struct vma_tcp_listener *listener, struct vma_buf *syn, uint32_t isn,
                                          struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_tcp *tcp = listener->tcp;
	struct vma_flow_key key = tcp_flow_key_of_packet(info);
	struct vma_flow *flow;
	bool taken;

	tcp->isn_above = isn;
	taken = listener_open_passive_conn(listener, syn, info, true);
	if (!taken)
		vma_buf_put(tcp->arena, syn);
	flow = vma_ring_find_first_flow_of_key(tcp->ring, &key);
	return flow != NULL && flow->sink == tcp_conn_flow_sink && tcp_conn_flow_sink(flow, packet, info);
}

/*
 * Whether the segment brings a cookie back. A full queue of the owner's drops it, as the kernel does: the peer says its
 * data again.
 */
static bool listener_accept_syncookie(struct vma_tcp_listener *listener, struct vma_buf *packet,
                                      const struct vma_rx_info *info, bool *taken)
{
	struct vma_tcp *tcp = listener->tcp;
	struct vma_buf *syn;
	uint32_t isn;

	if (listener->cookies_until_ns < tcp->now_ns)
		return false;
	syn = syncookie_check_and_rebuild_syn(tcp, packet, &isn);
	if (syn == NULL)
		return false;
	TCP_COUNT(tcp, cookies_received, 1);
	*taken = false;
	if (listener->owner->admit(listener, listener->arg))
		*taken = listener_recreate_from_cookie(listener, syn, isn, packet, info);
	else
		vma_buf_put(tcp->arena, syn);
	return true;
}

bool tcp_listener_sends_cookies(const struct vma_flow *flow)
{
	const struct vma_tcp_listener *listener = (const struct vma_tcp_listener *)flow;

	return sends_cookies(listener) && !listener->closed && !listener->finishing;
}

bool tcp_listener_packet_has_valid_syn_cookie(const struct vma_flow *flow, struct vma_buf *packet)
{
	const struct vma_tcp_listener *listener = (const struct vma_tcp_listener *)flow;
	struct vma_buf *syn = NULL;
	uint32_t isn;

	if (!listener->closed && listener->cookies_until_ns >= listener->tcp->now_ns)
		syn = syncookie_check_and_rebuild_syn(listener->tcp, packet, &isn);
	if (syn != NULL)
		vma_buf_put(listener->tcp->arena, syn);
	return syn != NULL;
}

bool tcp_listener_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_tcp_listener *listener = (struct vma_tcp_listener *)flow;
	struct vma_tcp *tcp = listener->tcp;
	enum admission admission;
	bool taken;

	if (__builtin_expect(tcp->defers_control, 0) && tcp_control_queue_syn(tcp, flow, packet, info))
		return true;
	tcp_update_now(tcp);
	if ((info->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN) {
		admission = listener_syn_admission(listener);
		if (admission == KEEP)
			return listener_open_passive_conn(listener, packet, info, false);
		if (admission == COOKIE)
			listener_send_syn_cookie(listener, packet);
		else if (admission == REFUSE)
			tcp_reply_rst(tcp, packet);
		else
			TCP_COUNT(tcp, syns_dropped, 1);
		return false;
	}
	if (!listener->closed && (info->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_ACK &&
	    listener_accept_syncookie(listener, packet, info, &taken))
		return taken;
	if (tcp->nic->caps & VMA_NIC_CAP_TO_KERNEL)
		return tcp_pass_foreign_segment_to_kernel(tcp, packet, info);
	if (info->tcp_flags & TCP_ACK &&
	    !tcp_stranger_gets_no_reset(tcp, packet, info,
	                                !listener->closed && listener->cookies_until_ns >= tcp->now_ns))
		tcp_reply_rst(tcp, packet);
	return false;
}

/*
 * A SYN that its peer has repeated since may be found here late, when another process has answered the other one. The
 * peer has the number of the SYN-ACK that came first: of the handshake that is complete, or that began before.
 */
static bool present_conn_is_from_late_syn(const struct vma_tcp_conn *present, const struct vma_pending *pending)
{
	return present->listener != NULL && present->pcb != NULL && present->pcb->state == SYN_RCVD &&
	       (pending->handshaken || present->created_ns > pending->since_ns);
}

/*
 * Nothing may stand at the connection's place. What was moved away from here, and has not been accepted since, may come
 * back: nobody has taken the old one out of the queue, whose owner finds later that it is over.
 */
static bool evict_present_conn_for_pending(struct vma_tcp *tcp, struct vma_flow *present,
                                           const struct vma_pending *pending)
{
	struct vma_tcp_conn *conn;

	if (present == NULL || timewait_evict(tcp, present))
		return true;
	if (present->sink != tcp_conn_flow_sink)
		return false;
	conn = present->owner;
	if (!tcp_pending_was_adopted(conn) && !present_conn_is_from_late_syn(conn, pending))
		return false;
	conn_fail_with_error(conn, 0, false);
	return true;
}

/* Its queue may be full: this connection has been let in before. */
void tcp_listener_adopt_pending_conn(struct vma_flow *flow, const struct vma_pending *pending)
{
	struct vma_tcp_listener *listener = (struct vma_tcp_listener *)flow;
	struct vma_tcp *tcp = listener->tcp;
	struct vma_buf *syn, *ack;
	struct vma_rx_info info;
	struct vma_flow_key key;

	if (flow->sink != tcp_listener_sink)
		return;
	tcp_pending_to_rx_info(pending, &info);
	key = tcp_flow_key_of_packet(&info);
	if (!evict_present_conn_for_pending(tcp, vma_ring_find_first_flow_of_key(tcp->ring, &key), pending))
		return;
	syn = tcp_pending_make_peer_segment(tcp, pending, true);
	ack = syn != NULL ? tcp_pending_make_peer_segment(tcp, pending, false) : NULL;
	if (ack == NULL) {
		if (syn != NULL)
			vma_buf_put(tcp->arena, syn);
		return;
	}
	if (pending->handshaken) {
		if (listener_recreate_from_cookie(listener, syn, pending->iss, ack, &info))
			return;
	} else {
		/* The SYN-ACK again: the first may never have left. */
		tcp->isn_above = pending->iss;
		if (!listener_open_passive_conn(listener, syn, &info, false))
			vma_buf_put(tcp->arena, syn);
	}
	vma_buf_put(tcp->arena, ack);
}

static void listener_revoked(struct vma_flow *flow)
{
	struct vma_tcp_listener *listener = (struct vma_tcp_listener *)flow;

	if (listener->owner->revoked != NULL)
		listener->owner->revoked(listener, listener->arg);
}
static const struct vma_flow_ops listener_flow_ops = {.revoked = listener_revoked};

/* ---- control path ---- */

static void listener_init_lwip_pcb(struct vma_tcp_listener *listener)
{
	struct tcp_pcb_listen *pcb = &listener->pcb;

	memcpy(&pcb->local_ip, listener->flow.key.local, 4);
	pcb->local_port = lwip_ntohs(listener->flow.key.local_port_be);
	pcb->state = LISTEN;
}

static void listener_add_to_stack_list(struct vma_tcp_listener *listener)
{
	struct vma_tcp *tcp = listener->tcp;

	listener->next = tcp->listeners;
	listener->prev = &tcp->listeners;
	if (listener->next != NULL)
		listener->next->prev = &listener->next;
	tcp->listeners = listener;
}

static void listener_remove_from_stack_list(struct vma_tcp_listener *listener)
{
	*listener->prev = listener->next;
	if (listener->next != NULL)
		listener->next->prev = listener->prev;
}

/* What others who have the listener go on with is over without a word. */
static void listener_end_half_open_conns(struct vma_tcp_listener *listener, bool reset)
{
	while (listener->first != NULL)
		conn_fail_with_error(listener->first, 0, reset && !tcp_pending_was_adopted(listener->first));
}

/* In the ring's table; without a rule of the NIC, if that is to be asked for later. */
static int listen_attach_rx_flag_held(struct vma_tcp_listener *listener, bool rule_later)
{
	struct vma_tcp *tcp = listener->tcp;
	int rc;

	if (vma_ring_find_first_flow_of_key(tcp->ring, &listener->flow.key) != NULL)
		return -EADDRINUSE;
	if (rule_later)
		listener->flow.flags |= VMA_FLOW_RING_ONLY;
	rc = vma_ring_attach_flow(tcp->ring, &listener->flow);
	listener->flow.flags &= ~(uint32_t)VMA_FLOW_RING_ONLY;
	if (rc == 0)
		listener_add_to_stack_list(listener);
	return rc;
}

/*
 * Without the receive flag: packets go on while the NIC is asked. What a wider rule has brought meanwhile may be half
 * open. If the NIC refuses, the listener is the kernel's, which never saw these requests: their peers are reset.
 */
static int listener_install_nic_rule(struct vma_tcp_listener *listener)
{
	struct vma_tcp *tcp = listener->tcp;
	int rc = vma_ring_request_nic_rule_of_flow(tcp->ring, &listener->flow);

	if (rc == 0)
		return 0;
	vma_ring_acquire(tcp->ring); /* nothing is accepted between the two */
	vma_ring_detach_flow(tcp->ring, &listener->flow);
	listener_end_half_open_conns(listener, true);
	tcp_control_drop_syns_of_listener(tcp, &listener->flow);
	listener_remove_from_stack_list(listener);
	vma_ring_release(tcp->ring);
	return rc;
}

int vma_tcp_listen(struct vma_tcp *tcp, const struct vma_tcp_listen_attr *attr, struct vma_tcp_listener **out)
{
	struct vma_flow_key key = {
	        .family = attr->family, .proto = IPPROTO_TCP, .vlan = attr->vlan, .local_port_be = attr->local_port_be};
	struct vma_tcp_listener *listener;
	bool acquired;
	int rc;

	if (attr->owner == NULL || attr->options == NULL)
		return -EINVAL;
	memcpy(key.local, attr->local, sizeof(key.local));
	rc = vma_flow_key_check(&key);
	if (rc != 0)
		return rc;
	listener = tcp_alloc_zeroed(tcp, sizeof(*listener));
	if (listener == NULL)
		return -ENOMEM;
	listener->tcp = tcp;
	listener->owner = attr->owner;
	listener->arg = attr->arg;
	listener->options = *attr->options;
	listener->backlog = attr->backlog;
	listener->syn_tokens = tcp->attr.max_syn_rate;
	listener->syn_tokens_ns = tcp->now_ns;
	listener->last = &listener->first;
	listener->flow = (struct vma_flow){.key = key,
	                                   .flags = VMA_FLOW_LISTENER | (attr->inherited ? VMA_FLOW_INHERITED : 0),
	                                   .shadow_cookie = attr->shadow_cookie,
	                                   .shadow_fd = attr->shadow_fd,
	                                   .sink = tcp_listener_sink,
	                                   .owner = listener,
	                                   .ops = &listener_flow_ops};
	listener_init_lwip_pcb(listener);
	acquired = vma_ring_acquire(tcp->ring);
	rc = listen_attach_rx_flag_held(listener, acquired);
	if (acquired)
		vma_ring_release(tcp->ring);
	if (rc == 0 && acquired)
		rc = listener_install_nic_rule(listener);
	if (rc != 0)
		tcp_free_memory(tcp, listener);
	else
		*out = listener;
	return rc;
}

int vma_tcp_listener_share_rule(struct vma_tcp_listener *listener, uint64_t shadow_cookie, int shadow_fd)
{
	const struct vma_flow_rule rule = {.key = listener->flow.key,
	                                   .flags = listener->flow.flags,
	                                   .shadow_cookie = shadow_cookie,
	                                   .shadow_fd = shadow_fd};
	const int rc = vma_nic_flow_add(vma_ring_qp(listener->tcp->ring), &rule);

	return rc == -EEXIST ? 0 : rc;
}

void vma_tcp_listener_set_options(struct vma_tcp_listener *listener, const struct vma_tcp_options *options,
                                  uint32_t backlog)
{
	bool acquired = vma_ring_acquire(listener->tcp->ring);

	listener->options = *options;
	listener->backlog = backlog;
	if (acquired)
		vma_ring_release(listener->tcp->ring);
}

/* The first from `conn` on that the listener's rule covers, held in memory; NULL: there is none. Receive flag held. */
static struct vma_tcp_conn *listener_next_conn_without_own_rule(struct vma_tcp_listener *listener,
                                                                struct vma_tcp_conn *conn)
{
	const struct vma_flow_key *key = &listener->flow.key;

	for (; conn != NULL; conn = conn->next_all) {
		if (conn->is_over || !conn->passive || conn->steered || conn->rule_asked || !conn->attached ||
		    (listener->retired && vma_tcp_is_pending(conn)) ||
		    (conn->listener != NULL && conn->listener != listener) ||
		    conn->key.local_port_be != key->local_port_be || conn->key.vlan != key->vlan ||
		    memcmp(conn->key.local, key->local, sizeof(key->local)) != 0)
			continue;
		conn->rule_asked = true; /* whatever the NIC says, it is not asked again */
		conn->held++;
		return conn;
	}
	return NULL;
}

/*
 * What was accepted, or is half open, lives on without the listener's rule. The NIC is asked without the receive flag:
 * a connection that is held stays in the list, and the walk goes on behind it. What comes meanwhile joins the list at
 * its head: whether that is seen to, `newcomers` says. How many rules were made.
 */
static unsigned listener_add_nic_rules_for_conns(struct vma_tcp_listener *listener, bool newcomers)
{
	struct vma_tcp *tcp = listener->tcp;
	struct vma_ring *ring = tcp->ring;
	struct vma_tcp_conn *conn = NULL;
	unsigned n = 0;

	for (;;) {
		struct vma_tcp_conn *before = conn;

		vma_ring_acquire(ring);
		if (before != NULL)
			before->steered |= vma_ring_flow_is_alone_with_nic_rule(ring, &before->flow);
		conn = listener_next_conn_without_own_rule(listener, before != NULL ? before->next_all : tcp->all);
		if (conn == NULL && before != NULL && newcomers)
			conn = listener_next_conn_without_own_rule(listener, tcp->all);
		if (before != NULL) {
			before->held--;
			conn_enqueue_ready(before); /* if it is over, it goes now */
		}
		vma_ring_release(ring);
		if (conn == NULL)
			return n;
		vma_ring_request_nic_rule_of_flow(ring, &conn->flow);
		n++;
	}
}

static bool listener_stop_accepting_syns(struct vma_tcp_listener *listener)
{
	bool acquired = vma_ring_acquire(listener->tcp->ring), finished;

	listener->finishing = true;
	finished = listener->half_open == 0;
	if (acquired)
		vma_ring_release(listener->tcp->ring);
	return finished;
}

bool vma_tcp_listener_has_no_half_open(struct vma_tcp_listener *listener)
{
	bool acquired = vma_ring_acquire(listener->tcp->ring), drained = listener->half_open == 0;

	if (acquired)
		vma_ring_release(listener->tcp->ring);
	return drained;
}

/* The same work of control.c, too: the listener is about to end, and its own thread may come late. */
static int listener_progress_ring_and_run_control(const struct vma_tcp_listener *listener)
{
	const int n = vma_ring_progress_and_notify(listener->tcp->ring);

	vma_tcp_run_control_queue(listener->tcp);
	return n;
}

/*
 * What has come by now is let in, and so is what comes while the most of the rules are made: dropped it would come
 * again after a second. Only what comes while the last rules are made, and the listener's goes, is dropped.
 */
void vma_tcp_listener_withdraw(struct vma_tcp_listener *listener)
{
	enum { ROUNDS = 8 }; /* more may come as fast as rules are made */

	if (listener->withdrawn)
		return;
	listener_progress_ring_and_run_control(listener);
	for (unsigned i = 0; i < ROUNDS && listener_add_nic_rules_for_conns(listener, false) != 0; i++)
		listener_progress_ring_and_run_control(listener);
	listener_stop_accepting_syns(listener);
	listener_add_nic_rules_for_conns(listener, true);
	vma_ring_drain_and_detach_flow(listener->tcp->ring, &listener->flow);
	listener->withdrawn = true;
}

#define SUCCESSOR_NS (500 * TCP_NS_PER_MS)

/*
 * Connections wait for accept, and all who served the listener with this process are leaving, too: it is a reload,
 * whose new workers have not asked for the flow yet, on a busy host. True: one has, and gets what waits.
 */
static bool listener_await_successor(struct vma_tcp_listener *listener)
{
	struct vma_tcp *tcp = listener->tcp;
	const uint64_t begun = tcp->host.now_ns(tcp->host.arg);
	const struct timespec nap = {.tv_nsec = 1000000};

	while (tcp_has_pending_conns(tcp) && tcp->host.now_ns(tcp->host.arg) - begun < SUCCESSOR_NS) {
		listener_progress_ring_and_run_control(listener);
		syscall(SYS_nanosleep, &nap, NULL); /* the C library's is a cancellation point */
		if (vma_ring_stop_new_conns_of_listener(tcp->ring, &listener->flow))
			return true;
	}
	return false;
}

void vma_tcp_listener_drain(struct vma_tcp_listener *listener, uint64_t max_ns)
{
	struct vma_tcp *tcp = listener->tcp;
	const uint64_t begun = tcp->host.now_ns(tcp->host.arg);
	bool late = false;

	if (vma_ring_stop_new_conns_of_listener(tcp->ring, &listener->flow) || listener_await_successor(listener))
		return;
	listener_progress_ring_and_run_control(listener);
	while (!listener_stop_accepting_syns(listener) && !late) {
		/* Who was kept from the CPU for so long still looks at what has come meanwhile. */
		late = tcp->host.now_ns(tcp->host.arg) - begun >= max_ns;
		if (listener_progress_ring_and_run_control(listener) <= 0 && !late)
			sched_yield();
	}
}

/*
 * Nobody else serves it. A SYN that has come, or that comes before the NIC has forgotten the rule, is refused: dropped
 * it would come again after a second, when the peer has long asked in vain. So the flow stays until the queue has been
 * emptied behind the rule's end.
 */
static void listener_close_sole_process(struct vma_tcp_listener *listener)
{
	struct vma_tcp *tcp = listener->tcp;
	bool acquired = vma_ring_acquire(tcp->ring);

	listener->closed = !listener->finishing;
	listener_end_half_open_conns(listener, true);
	if (acquired)
		vma_ring_release(tcp->ring);
	if (!listener->withdrawn) {
		listener_add_nic_rules_for_conns(listener, true);
		vma_ring_drain_and_detach_flow(tcp->ring, &listener->flow);
	}
}

static void end_all_half_open(void *listener)
{
	listener_end_half_open_conns(listener, true);
}

/* Others serve it: with the rule they get what nobody here has accepted. The NIC is told without the flag. */
static void listener_close_shared(struct vma_tcp_listener *listener)
{
	listener_add_nic_rules_for_conns(listener, true);
	vma_ring_detach_flow_and_call_back(listener->tcp->ring, &listener->flow, end_all_half_open, listener);
}

void vma_tcp_listener_close(struct vma_tcp_listener *listener)
{
	struct vma_tcp *tcp = listener->tcp;
	bool acquired;

	listener->retired = !listener->withdrawn && vma_ring_stop_new_conns_of_listener(tcp->ring, &listener->flow);
	if (listener->retired)
		listener_close_shared(listener);
	else
		listener_close_sole_process(listener);
	acquired = vma_ring_acquire(tcp->ring);
	if (listener->closed)
		tcp_control_deliver_queued_syns(tcp); /* refused */
	tcp_control_drop_syns_of_listener(tcp, &listener->flow);
	listener_remove_from_stack_list(listener);
	if (acquired)
		vma_ring_release(tcp->ring);
	tcp_free_memory(tcp, listener);
}

void tcp_listeners_free(struct vma_tcp *tcp)
{
	while (tcp->listeners != NULL) {
		struct vma_tcp_listener *listener = tcp->listeners;

		listener_end_half_open_conns(listener, false);
		if (!listener->withdrawn)
			vma_ring_detach_flow(tcp->ring, &listener->flow);
		tcp_control_drop_syns_of_listener(tcp, &listener->flow);
		listener_remove_from_stack_list(listener);
		tcp_free_memory(tcp, listener);
	}
}
