/* xtreme.c - SocketXtreme: the sink's short way to a poll, and the queue's long one. */
#include "xtreme.h"

#include <errno.h>
#include <string.h>

#include "extra.h"
#include "recv.h"

int udp_xtreme_enable_on_sock(struct udp_sock *sock)
{
	sock->xtreme = vma_xtreme_create(&sock->file, NULL);
	if (sock->xtreme == NULL)
		return -ENOMEM;
	atomic_fetch_or_explicit(&sock->rx_opts, UDP_RX_OPT_XTREME, memory_order_relaxed);
	return 0;
}

int udp_xtreme_create_event_source(const struct udp_sock *sock, struct udp_attachment *at)
{
	if (sock->xtreme == NULL)
		return 0;
	at->xtreme = vma_xtreme_source_create(&at->sock->file, at->ring_ctx->id % 64);
	return at->xtreme != NULL ? 0 : -ENOMEM;
}

/* ---- giving ---- */

static inline void xtreme_stats_count_datagram(struct vma_stats_socket *stats, uint64_t n, uint64_t bytes)
{
	vma_stats_add(&stats->rx_packets, n);
	vma_stats_add(&stats->rx_bytes, bytes);
	vma_stats_add(&stats->rx_zcopy, n);
}

static inline uint64_t hw_stamp_of(const struct vma_buf *packet)
{
	return packet->flags & VMA_BUF_RX_HW_TIMESTAMP ? packet->timestamp_ns : 0;
}

static inline enum vma_xtreme_given xtreme_give_fragmented_datagram(const struct udp_sock *sock,
                                                                    struct vma_xtreme_poll *poll,
                                                                    const struct udp_datagram *datagram,
                                                                    const struct vma_fragment *fragments, unsigned n)
{
	const struct vma_xtreme_packet packet = {
	        .fragments = fragments,
	        .n = n,
	        .len = datagram->len,
	        .cost = udp_datagram_rcvbuf_charge(datagram),
	        .limit = atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed),
	        .stamp_ns = hw_stamp_of(datagram->packet),
	        .src = datagram->src,
	        .src_port_be = datagram->src_port_be,
	};

	return vma_xtreme_poll_add_packet_completion(poll, sock->xtreme, &packet);
}

static enum vma_xtreme_given __attribute__((cold, noinline))
xtreme_give_packet_chain(const struct udp_sock *sock, struct vma_xtreme_poll *poll, const struct udp_datagram *datagram)
{
	struct vma_fragment fragments[UDP_FRAGMENTS_MAX];
	const unsigned n = udp_fragments_of(datagram, fragments);

	return n != 0 ? xtreme_give_fragmented_datagram(sock, poll, datagram, fragments, n) : VMA_XTREME_REFUSED;
}

static inline enum vma_xtreme_given xtreme_give_datagram(const struct udp_sock *sock, struct vma_xtreme_poll *poll,
                                                         const struct udp_datagram *datagram)
{
	const struct vma_fragment one = {
	        .buf = datagram->packet, .off = datagram->packet->payload_off, .len = datagram->len};

	if (__builtin_expect(datagram->packet->next != NULL, 0))
		return xtreme_give_packet_chain(sock, poll, datagram);
	return xtreme_give_fragmented_datagram(sock, poll, datagram, &one, 1);
}

static void __attribute__((cold))
stats_count_refused_datagram(const struct udp_sock *sock, const struct udp_datagram *datagram)
{
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->rx_hold_refused, 1);
	udp_count_dropped(sock, datagram->len);
}

/* ---- the sink ---- */

void udp_xtreme_post_event(const struct udp_attachment *at)
{
	if (at->xtreme != NULL)
		vma_xtreme_queue_source_events(at->xtreme, 0);
}

static inline void xtreme_stats_count_unqueued_datagram(struct vma_stats_socket *stats, uint64_t n, uint64_t bytes)
{
	if (stats == NULL)
		return;
	vma_stats_add(&stats->rx_queued, n);
	vma_stats_add(&stats->rx_queued_bytes, bytes);
	xtreme_stats_count_datagram(stats, n, bytes);
}

/* The address of a group is left to the long way, which asks its filters; so is whatever cannot be given at once. */
static inline bool xtreme_may_complete_at_once(const struct udp_attachment *at, const struct vma_rx_info *info,
                                               uint32_t src)
{
	const uint64_t peer = atomic_load_explicit(&at->sock->peer_key, memory_order_relaxed);

	return (info->dst[0] & 0xf0) != 0xe0 && (peer == 0 || peer == udp_peer_key(src, info->src_port_be)) &&
	       udp_queue_is_empty(&at->queue);
}

bool udp_xtreme_sink(struct udp_attachment *at, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_xtreme_poll *poll = vma_xtreme_poll_of_this_thread();
	const struct udp_sock *sock = at->sock;
	uint32_t src;

	memcpy(&src, info->src, 4);
	if (__builtin_expect(
	            poll == NULL || packet->next != NULL || !xtreme_may_complete_at_once(at, info, src) ||
	                    vma_xtreme_poll_add_datagram(poll, sock->xtreme, packet,
	                                                 atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed), src,
	                                                 info->src_port_be) != VMA_XTREME_GIVEN,
	            0))
		return udp_deliver_with_opts(at, packet, info, UDP_RX_OPT_XTREME);
	xtreme_stats_count_unqueued_datagram(sock->stats, 1, packet->payload_len);
	return true;
}

static uint64_t __attribute__((noinline)) packets_payload_bytes(struct vma_buf *const *packets, unsigned n)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < n; i++)
		bytes += packets[i]->payload_len;
	return bytes;
}

unsigned udp_xtreme_take_train(struct udp_attachment *at, struct vma_buf *const *packets, unsigned n,
                               const struct vma_rx_info *info)
{
	struct vma_xtreme_poll *poll = vma_xtreme_poll_of_this_thread();
	const struct udp_sock *sock = at->sock;
	struct sockaddr_in src = {.sin_family = AF_INET, .sin_port = info->src_port_be};

	memcpy(&src.sin_addr, info->src, 4);
	if (poll == NULL || atomic_load_explicit(&sock->rx_opts, memory_order_relaxed) != UDP_RX_OPT_XTREME ||
	    !xtreme_may_complete_at_once(at, info, src.sin_addr.s_addr))
		return 0;
	n = vma_xtreme_poll_add_datagram_train(poll, sock->xtreme, packets, n,
	                                       atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed), &src);
	if (sock->stats != NULL)
		xtreme_stats_count_unqueued_datagram(sock->stats, n, packets_payload_bytes(packets, n));
	return n;
}

bool udp_xtreme_deliver(struct udp_attachment *at, const struct udp_datagram *datagram)
{
	struct vma_xtreme_poll *poll = vma_xtreme_poll_of_this_thread();
	const struct udp_sock *sock = at->sock;
	enum vma_xtreme_given given = VMA_XTREME_NO_ROOM;

	if (__builtin_expect(poll != NULL && udp_queue_is_empty(&at->queue), 1))
		given = xtreme_give_datagram(sock, poll, datagram);
	if (__builtin_expect(given == VMA_XTREME_GIVEN, 1)) {
		xtreme_stats_count_unqueued_datagram(sock->stats, 1, datagram->len);
		return true;
	}
	if (given == VMA_XTREME_REFUSED) {
		stats_count_refused_datagram(sock, datagram);
		return false;
	}
	if (!udp_queue_datagram_and_notify(at, datagram))
		return false;
	udp_xtreme_post_event(at);
	return true;
}

/* ---- the queue ---- */

/* One that is refused is lost: it would keep what comes behind it waiting until the program frees something. */
static void xtreme_give_queued_datagram(const struct udp_sock *sock, struct vma_xtreme_poll *poll,
                                        const struct udp_datagram *datagram)
{
	if (xtreme_give_datagram(sock, poll, datagram) == VMA_XTREME_GIVEN) {
		if (sock->stats != NULL)
			xtreme_stats_count_datagram(sock->stats, 1, datagram->len);
		return;
	}
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->rx_hold_refused, 1);
	udp_count_datagram_as_dropped(sock, datagram);
	vma_buf_put_chain(vma_engine_get_or_start()->arena, datagram->packet);
}

bool udp_xtreme_complete_queued_datagrams(struct vma_file *file, struct vma_xtreme_poll *poll, uint32_t *events)
{
	struct udp_sock *sock = udp_sock(file);
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);
	struct udp_datagram datagram;

	*events = 0;
	while (udp_has_datagram(all)) {
		if (vma_xtreme_next_completion(poll) == NULL)
			return true;
		if (!udp_dequeue_next_datagram(sock, all, &datagram))
			break;
		xtreme_give_queued_datagram(sock, poll, &datagram);
	}
	return false;
}
