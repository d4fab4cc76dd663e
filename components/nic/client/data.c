/*
 * data - the hot path of the xdp backend: loads, stores, and one system call, the kick.
 *
 * Every index and descriptor is checked before use. When the owner dies, the nic's thread puts zero pages in place of
 * the rings, and these functions may run at that moment (client.h).
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/stats.h>

#include "../os.h"
#include "client.h"
#include "../xdp/shared.h"

#define BURST 64
#define KICKS_MAX 128 /* the kernel sends a few dozen frames per call in copy mode; the ring holds at most 2048 */

static struct xdp_qp *xdp_qp_of_base(struct vma_nic_qp *base)
{
	return (struct xdp_qp *)base;
}

/* Not in a forked child, and the owner lives. */
static inline bool qp_usable(const struct xdp_qp *qp)
{
	return __builtin_expect(atomic_load_explicit(qp->fork_guard, memory_order_relaxed) != 0, 1) &&
	       !vma_nic_qp_lost(&qp->base);
}

/* ---- receive half ---- */

/* Each word is read once: what was checked must be what is used. */
static inline struct xdp_desc read_desc(const struct xdp_desc *desc)
{
	return (struct xdp_desc){
	        .addr = __atomic_load_n(&desc->addr, __ATOMIC_RELAXED),
	        .len = __atomic_load_n(&desc->len, __ATOMIC_RELAXED),
	        .options = __atomic_load_n(&desc->options, __ATOMIC_RELAXED),
	};
}

/* The buffer of a descriptor, with its place and length in it; NULL: not within our memory. */
static inline struct vma_buf *buf_of_desc(struct xdp_qp *qp, struct xdp_qp_queue *port, struct xdp_desc desc)
{
	const uint64_t frame = desc.addr >> XDP_FRAME_SHIFT;
	const uint32_t off = desc.addr & ((1u << XDP_FRAME_SHIFT) - 1);
	struct vma_buf *buf;

	if (frame >= qp->nframes || desc.len > (1u << XDP_FRAME_SHIFT) - off)
		return NULL;
	xdp_set_frame_holder(qp->shared, (uint32_t)frame, port->driver.self);
	buf = vma_buf_at(qp->base.arena, qp->first + (uint32_t)frame);
	buf->data_off = off;
	buf->len = buf->packet_len = desc.len;
	return buf;
}

/*
 * What did not fit into the RX ring, and what found no frame in the fill ring, only the kernel has counted. Kernels
 * before 5.9 say both in one number.
 */
__attribute__((cold, noinline)) void nic_xdp_add_kernel_rx_drops_to_stats(struct xdp_qp *qp, struct xdp_qp_queue *port)
{
	struct xdp_statistics counted = {0};
	socklen_t len = sizeof(counted);
	const int saved = errno;
	uint64_t lost;

	if (os_getsockopt(port->fd, SOL_XDP, XDP_STATISTICS, &counted, &len) == 0) {
		lost = counted.rx_dropped + counted.rx_ring_full;
		if (lost > port->lost) {
			vma_log_once(VMA_LOG_DETAILS,
			             "%s: lost %llu packets: nobody took them in time from its receive queue of %u",
			             qp->name, (unsigned long long)(lost - port->lost), port->rx.size);
			vma_stats_add(&qp->stats->rx_dropped, lost - port->lost);
			vma_stats_add(&qp->stats->rx_ring_full, 1);
			port->lost = lost;
		}
	}
	errno = saved;
}

/*
 * Half full: something may have been lost before, and may still be until what is there has been taken, so the
 * next look counts again. Or an index that cannot be.
 */
static __attribute__((cold, noinline)) uint32_t rx_count_drops_on_backlog(struct xdp_qp *qp, struct xdp_qp_queue *port,
                                                                          uint32_t ready)
{
	if (ready > port->rx.size) {
		port->rx.cached_producer = port->rx.cached_consumer;
		return 0;
	}
	nic_xdp_add_kernel_rx_drops_to_stats(qp, port);
	port->rx_much = ready >= port->rx.size / 2 ? 0 : port->rx.size / 2;
	return ready;
}

/* The index of the next arrival, if there is any in the ring. */
static inline uint32_t rx_ring_ready_count(struct xdp_qp *qp, struct xdp_qp_queue *port)
{
	struct xdp_ring *rx = &port->rx;
	uint32_t ready = rx->cached_producer - rx->cached_consumer;

	if (ready == 0) {
		/* Acquire: the descriptors and the packets behind them were written before the index. */
		rx->cached_producer = atomic_load_explicit(rx->producer, memory_order_acquire);
		ready = rx->cached_producer - rx->cached_consumer;
		if (__builtin_expect(ready >= port->rx_much, 0))
			ready = rx_count_drops_on_backlog(qp, port, ready);
	}
	return ready;
}

/* Up to n buffers of one device queue. Crash safety (xdp/xdp.h): hold all, then publish, then use. */
static inline unsigned xdp_rx_poll_device_queue(struct xdp_qp *qp, struct xdp_qp_queue *port, struct vma_buf **bufs,
                                                unsigned n)
{
	struct xdp_ring *rx = &port->rx;
	const uint32_t consumer = rx->cached_consumer;
	uint32_t ready = rx_ring_ready_count(qp, port), taken = 0;
	uint64_t more = 0; /* a bit for each buffer whose packet goes on in the next one */

	_Static_assert(BURST <= 64, "a bit for each buffer");
	if (ready == 0)
		return 0;
	if (ready > n)
		ready = n;
	for (uint32_t i = 0; i < ready; i++) {
		const struct xdp_desc desc = read_desc(&rx->descs[(consumer + i) & rx->mask]);
		struct vma_buf *buf = buf_of_desc(qp, port, desc);

		if (buf == NULL)
			continue;
		more |= (uint64_t)(desc.options & XDP_PKT_CONTD) << taken;
		bufs[taken++] = buf;
	}
	vma_bufpool_init_bufs_taken_from_nic(atomic_load_explicit(&qp->base.rx_pool, memory_order_relaxed), bufs,
	                                     taken);
	for (; __builtin_expect(more != 0, 0); more &= more - 1)
		bufs[__builtin_ctzll(more)]->flags = VMA_BUF_RX_MORE;
	rx->cached_consumer = consumer + ready;
	atomic_store_explicit(&qp->rx_seen, rx->cached_consumer, memory_order_relaxed);
	/* Release: descriptors are read before the kernel may overwrite them; pairs with its load of the index. */
	atomic_store_explicit(rx->consumer, rx->cached_consumer, memory_order_release);
	return taken;
}

/* No half is held, so nothing of the rings is looked at but the one word that stays mapped, see client.h. */
bool nic_xdp_rx_is_empty(const struct vma_nic_qp *base)
{
	const struct xdp_qp *qp = (const struct xdp_qp *)base;
	const _Atomic uint32_t *arrivals = atomic_load_explicit(&qp->rx_arrivals, memory_order_relaxed);

	if (atomic_load_explicit(qp->fork_guard, memory_order_relaxed) == 0 || arrivals == NULL)
		return false;
	return atomic_load_explicit(arrivals, memory_order_relaxed) ==
	       atomic_load_explicit(&qp->rx_seen, memory_order_relaxed);
}

/* In turns; a packet of several buffers stays on its device queue until its last one, or two packets would mix. */
static __attribute__((noinline)) unsigned xdp_qp_rx_poll_device_queues_in_turn(struct xdp_qp *qp, struct vma_buf **bufs,
                                                                               unsigned n)
{
	unsigned got = 0;

	for (uint32_t tried = 0; tried < qp->queues && got < n;) {
		const unsigned wanted = n - got < BURST ? n - got : BURST;
		const unsigned k = xdp_rx_poll_device_queue(qp, &qp->port[qp->rx_at], bufs + got, wanted);

		got += k;
		if (k > 0)
			qp->rx_in_chain = bufs[got - 1]->flags & VMA_BUF_RX_MORE;
		if (k == wanted || qp->rx_in_chain) {
			if (k == 0)
				break; /* the rest of the packet is on its way */
			continue;
		}
		qp->rx_at = qp->rx_at + 1 < qp->queues ? qp->rx_at + 1 : 0;
		tried++;
	}
	return got;
}

/*
 * A user that keeps half as much again as its quota (nic.h) gets nothing more until it posts: its RX ring fills, and
 * the kernel drops what is for this queue pair instead of what is for others.
 */
unsigned nic_xdp_poll_rx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct xdp_qp *qp = xdp_qp_of_base(base);
	unsigned got;

	if (!qp_usable(qp) || qp->rx_held >= qp->rx_held_max)
		return 0;
	if (__builtin_expect(qp->queues == 1, 1))
		got = xdp_rx_poll_device_queue(qp, qp->port, bufs, n < BURST ? n : BURST);
	else
		got = xdp_qp_rx_poll_device_queues_in_turn(qp, bufs, n);
	qp->rx_held += got;
	return got;
}

/* Honoured where a driver asks for it (zero-copy); in copy mode the flag is never set. */
static void fill_ring_kick_if_needed(const struct xdp_qp_queue *port)
{
	if (atomic_load_explicit(port->fill.flags, memory_order_relaxed) & XDP_RING_NEED_WAKEUP)
		syscall(SYS_recvfrom, port->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
}

/*
 * Up to BURST buffers of one device queue. They are marked as the NIC's (to_nic) before they are filled: once a frame
 * is in the fill ring it may come back through any queue pair of this process, whose from_nic must find it so. What was
 * not taken is taken back.
 */
static unsigned rx_post_to_queue(struct xdp_qp *qp, uint32_t queue, struct vma_buf **bufs, unsigned n)
{
	struct vma_bufpool *pool = atomic_load_explicit(&qp->base.rx_pool, memory_order_relaxed);
	uint32_t frames[BURST];
	unsigned taken;

	for (unsigned i = 0; i < n; i++)
		frames[i] = vma_buf_index(qp->base.arena, bufs[i]) - qp->first;
	vma_bufpool_uncount_bufs_given_to_nic(pool, bufs, n);
	taken = xdp_shared_put_in_fill_ring(&qp->port[queue].driver, frames, n);
	if (taken < n)
		vma_bufpool_init_bufs_taken_from_nic(pool, bufs + taken, n - taken);
	qp->rx_held -= taken < qp->rx_held ? taken : qp->rx_held;
	if (taken > 0)
		fill_ring_kick_if_needed(&qp->port[queue]);
	return taken;
}

unsigned nic_xdp_post_rx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct xdp_qp *qp = xdp_qp_of_base(base);
	unsigned done = 0;

	if (!qp_usable(qp))
		return 0;
	while (done < n) {
		uint32_t frame = vma_buf_index(base->arena, bufs[done]) - qp->first;
		const uint32_t queue = frame >> qp->queue_shift;
		unsigned run = 1, taken;

		if (frame >= qp->nframes) { /* of the window before a rebind: home with it */
			vma_buf_put(base->arena, bufs[done++]);
			continue;
		}
		while (done + run < n && run < BURST) {
			frame = vma_buf_index(base->arena, bufs[done + run]) - qp->first;
			if (frame >= qp->nframes || frame >> qp->queue_shift != queue)
				break;
			run++;
		}
		taken = rx_post_to_queue(qp, queue, bufs + done, run);
		done += taken;
		if (taken < run)
			break;
	}
	return done;
}

/*
 * The nic's thread may run nic_xdp_detach_lost_qp at the same time, which marks the queue pair lost before it removes.
 * Whichever of its removal and our addition comes second in the kernel sees the other: the removal finds what was
 * added, or we find the mark and remove it ourselves.
 */
__attribute__((cold, noinline)) int nic_xdp_add_to_epoll(struct xdp_qp *qp, struct xdp_qp_queue *port, bool by_edges)
{
	struct epoll_event event = {.events = by_edges ? EPOLLIN | EPOLLET : EPOLLIN};

	if (os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_ADD, port->fd, &event) < 0 && errno != EEXIST)
		return vma_nic_qp_lost(&qp->base) ? 0 : -errno;
	port->watched = true;
	port->by_edges = by_edges;
	if (vma_nic_qp_lost(&qp->base))
		os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_DEL, port->fd, NULL);
	return 0;
}

/* What the nic's thread does when it gives the sockets up at the same time (nic_xdp_detach_lost_qp) is the same
 * removal. */
static void xdp_qp_epoll_del_device_queue(struct xdp_qp *qp, struct xdp_qp_queue *port)
{
	if (port->watched)
		os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_DEL, port->fd, NULL);
	port->watched = port->by_edges = false;
}

/* All sockets in the epoll set, in this way. */
static int xdp_qp_epoll_add_device_queues(struct xdp_qp *qp, bool by_edges)
{
	for (uint32_t queue = 0; queue < qp->queues; queue++) {
		struct xdp_qp_queue *port = &qp->port[queue];
		int rc;

		if (__builtin_expect(port->by_edges != by_edges, 0))
			xdp_qp_epoll_del_device_queue(qp, port);
		rc = port->watched ? 0 : nic_xdp_add_to_epoll(qp, port, by_edges);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* An index that cannot be counts as none. */
static uint32_t port_rx_waiting_count(const struct xdp_qp_queue *port)
{
	const uint32_t ready = atomic_load_explicit(port->rx.producer, memory_order_acquire) - port->rx.cached_consumer;

	return ready <= port->rx.size ? ready : 0;
}

/*
 * A socket in an epoll set costs every packet, and every completion of a sent one, a wake-up in the kernel, a sixth of
 * the rate, whether anybody sleeps or not. So it goes there when somebody first wants to sleep, and who only polls
 * never pays. It stays there until nic_xdp_unarm: a removal for each wake-up would be a system call more for those who
 * sleep.
 */
int nic_xdp_arm(struct vma_nic_qp *base)
{
	struct xdp_qp *qp = xdp_qp_of_base(base);
	int rc;

	if (atomic_load_explicit(qp->fork_guard, memory_order_relaxed) == 0)
		return -ENODEV;
	qp->armed = true; /* for rebind, whose sockets must wake who sleeps by then */
	if (vma_nic_qp_lost(base))
		return 0;
	rc = xdp_qp_epoll_add_device_queues(qp, false);
	for (uint32_t queue = 0; rc == 0 && queue < qp->queues; queue++)
		rc = port_rx_waiting_count(&qp->port[queue]) != 0;
	return rc;
}

unsigned nic_xdp_rx_waiting(struct vma_nic_qp *base)
{
	struct xdp_qp *qp = xdp_qp_of_base(base);
	unsigned waiting = 0;

	if (!qp_usable(qp))
		return 0;
	for (uint32_t queue = 0; queue < qp->queues; queue++)
		waiting += port_rx_waiting_count(&qp->port[queue]);
	return waiting;
}

/*
 * Edges that were not taken are told as long as packets are there, so they are taken before the count. What comes after
 * that is an edge again; what came before is in the count.
 */
int nic_xdp_arm_edge_triggered(struct vma_nic_qp *base)
{
	struct epoll_event taken[XDP_QUEUES_MAX + 1];
	struct xdp_qp *qp = xdp_qp_of_base(base);
	const int saved = errno;
	int rc;

	if (atomic_load_explicit(qp->fork_guard, memory_order_relaxed) == 0)
		return -ENODEV;
	qp->armed = true;
	if (vma_nic_qp_lost(base))
		return 0;
	rc = xdp_qp_epoll_add_device_queues(qp, true);
	if (rc == 0)
		os_epoll_wait(qp->epoll_fd, taken, XDP_QUEUES_MAX + 1, 0);
	errno = saved;
	return rc < 0 ? rc : (int)nic_xdp_rx_waiting(base);
}

void nic_xdp_unarm(struct vma_nic_qp *base)
{
	struct xdp_qp *qp = xdp_qp_of_base(base);
	const int saved = errno;

	if (atomic_load_explicit(qp->fork_guard, memory_order_relaxed) == 0)
		return; /* the sockets are its parent's */
	qp->armed = false;
	for (uint32_t queue = 0; queue < qp->queues; queue++)
		xdp_qp_epoll_del_device_queue(qp, &qp->port[queue]);
	errno = saved;
}

int nic_xdp_fd(const struct vma_nic_qp *base)
{
	return ((const struct xdp_qp *)base)->epoll_fd;
}

/* ---- transmit half ---- */

static inline bool seg_is_within_frame(const struct vma_nic_seg *seg)
{
	return seg->len > 0 && seg->off < (1u << XDP_FRAME_SHIFT) && seg->len <= (1u << XDP_FRAME_SHIFT) - seg->off;
}

static inline bool xdp_client_seg_in_frame(const struct xdp_qp *qp, const struct vma_nic_seg *seg)
{
	return seg_is_within_frame(seg) && seg->off >= qp->base.tx_headroom;
}

/* A VLAN tag does not count against the MTU. */
static uint64_t max_frame_len_with_vlan(const struct xdp_qp *qp, uint32_t longest, const struct vma_nic_seg *seg)
{
	const unsigned char *frame = (const unsigned char *)vma_buf_frame(qp->base.arena, seg->buf) + seg->off;

	return seg->len >= 14 && frame[12] == 0x81 && frame[13] == 0x00 ? longest + 4 : longest;
}

enum tx_verdict { PACKET_SEND, PACKET_DROP, PACKET_STOP };

/* Looks at the packet that starts at segs[0]; *count becomes its number of segments. */
static __attribute__((noinline)) enum tx_verdict
classify_tx_packet(const struct xdp_qp *qp, const struct vma_nic_seg *segs, unsigned n, unsigned *count)
{
	enum tx_verdict verdict = PACKET_SEND;
	uint64_t bytes = 0;
	unsigned i = 0;

	for (;; i++) {
		uint32_t at;

		if (i == n || i == qp->segs_max || !seg_is_within_frame(&segs[i]))
			return PACKET_STOP;
		at = vma_buf_index(qp->base.arena, segs[i].buf) - qp->first - qp->tx_first;
		/* Queued before a rebind: in a buffer of that binding's, or without room for what this one writes. */
		if (at >= qp->tx_count || segs[i].off < qp->base.tx_headroom)
			verdict = PACKET_DROP;
		else if (qp->in_flight[at])
			return PACKET_STOP; /* still on its way from before: after the next reap */
		bytes += segs[i].len;
		if (!(segs[i].flags & VMA_NIC_SEG_MORE))
			break;
	}
	*count = i + 1;
	if (verdict == PACKET_DROP || bytes <= qp->longest || bytes <= max_frame_len_with_vlan(qp, qp->longest, segs))
		return verdict;
	/* Whoever queued it may have gone by the MTU of before the rebind; it must not stop what is behind it. */
	return bytes <= max_frame_len_with_vlan(qp, qp->longest_ever, segs) ? PACKET_DROP : PACKET_STOP;
}

/*
 * Has the kernel finish the checksum of UDP or TCP, whose field holds the pseudo header's sum; or, as on a veth, leave
 * it to whoever needs it. The descriptor's flag for that.
 */
static inline uint32_t request_tx_checksum_offload(const struct xdp_qp *qp, const struct vma_nic_seg *seg)
{
	uint8_t *frame = (uint8_t *)vma_buf_frame(qp->base.arena, seg->buf) + seg->off;
	const unsigned ip = frame[12] == 0x81 && frame[13] == 0x00 ? 18 : 14;
	const struct xdp_tx_metadata request = {
	        .flags = XDP_TX_METADATA_CSUM,
	        .csum_start = (uint16_t)(ip + (frame[ip] & 15) * 4u),
	        .csum_offset = frame[ip + 9] == IPPROTO_TCP ? 16 : 6,
	};

	memcpy(frame - sizeof(request), &request, sizeof(request));
	return XDP_DESC_TX_METADATA;
}

static inline void tx_put_desc(struct xdp_qp *qp, struct xdp_qp_queue *port, const struct vma_nic_seg *seg)
{
	struct xdp_ring *tx = &port->tx;
	const uint32_t frame = vma_buf_index(qp->base.arena, seg->buf) - qp->first;
	uint32_t options = seg->flags & VMA_NIC_SEG_MORE ? XDP_PKT_CONTD : 0;

	if (seg->flags & VMA_NIC_SEG_CSUM && qp->base.tx_headroom != 0)
		options |= request_tx_checksum_offload(qp, seg);
	/* Marked before the producer index that makes it visible is published. */
	xdp_tx_frame_set_in_flight(qp->shared, frame, port->driver.queue, tx->cached_producer);
	qp->in_flight[frame - qp->tx_first] = 1;
	tx->descs[tx->cached_producer++ & tx->mask] = (struct xdp_desc){
	        .addr = ((uint64_t)frame << XDP_FRAME_SHIFT) + seg->off,
	        .len = seg->len,
	        .options = options,
	};
}

/* Nearly all packets: one segment, nothing to be said against it, and room in the ring. False: the long way. */
static inline bool tx_put_single_segment(struct xdp_qp *qp, struct xdp_qp_queue *port, const struct vma_nic_seg *seg)
{
	const uint32_t at = vma_buf_index(qp->base.arena, seg->buf) - qp->first - qp->tx_first;

	if (seg->flags & VMA_NIC_SEG_MORE || !xdp_client_seg_in_frame(qp, seg) || seg->len > qp->longest ||
	    at >= qp->tx_count || qp->in_flight[at] ||
	    port->tx.cached_producer - port->tx.cached_consumer >= port->tx.size)
		return false;
	tx_put_desc(qp, port, seg);
	return true;
}

unsigned nic_xdp_tx(struct vma_nic_qp *base, const struct vma_nic_seg *segs, unsigned n)
{
	struct xdp_qp *qp = xdp_qp_of_base(base);
	struct xdp_qp_queue *port = &qp->port[qp->tx_queue];
	struct xdp_ring *tx = &port->tx;
	unsigned done = 0;

	if (!qp_usable(qp))
		return 0;
	while (done < n) {
		enum tx_verdict verdict;
		unsigned count = 0;

		if (__builtin_expect(tx_put_single_segment(qp, port, segs + done), 1)) {
			done++;
			continue;
		}
		verdict = classify_tx_packet(qp, segs + done, n - done, &count);

		if (verdict == PACKET_STOP)
			break;
		if (verdict == PACKET_DROP) {
			for (unsigned i = 0; i < count; i++)
				vma_buf_put(base->arena, segs[done + i].buf);
			done += count;
			continue;
		}
		if (tx->cached_producer - tx->cached_consumer + count > tx->size) {
			tx->cached_consumer = atomic_load_explicit(tx->consumer, memory_order_acquire);
			if (tx->cached_producer - tx->cached_consumer + count > tx->size)
				break;
		}
		for (unsigned i = 0; i < count; i++)
			tx_put_desc(qp, port, &segs[done + i]);
		done += count;
	}
	/* Release: the kernel sees descriptors and frames before the index. */
	atomic_store_explicit(tx->producer, tx->cached_producer, memory_order_release);
	return done;
}

/*
 * The request for a checksum lies in the frame, where another client may have written over it: then the kernel refuses
 * the descriptor with EINVAL, and would do so for ever. Without the request it takes the packet, whose checksum is
 * wrong for the peer, who drops it. False: it is not that.
 */
static __attribute__((cold, noinline)) bool drop_tx_metadata_request(struct xdp_ring *tx)
{
	const uint32_t consumer = atomic_load_explicit(tx->consumer, memory_order_acquire);
	struct xdp_desc *desc = &tx->descs[consumer & tx->mask];

	if (consumer == tx->cached_producer || !(desc->options & XDP_DESC_TX_METADATA))
		return false;
	desc->options &= ~(uint32_t)XDP_DESC_TX_METADATA;
	return true;
}

/* Calls until the kernel has taken everything or stops taking. */
int nic_xdp_kick(struct vma_nic_qp *base)
{
	struct xdp_qp *qp = xdp_qp_of_base(base);
	struct xdp_qp_queue *port = &qp->port[qp->tx_queue];
	struct xdp_ring *tx = &port->tx;

	if (!qp_usable(qp))
		return -ENODEV;
	if (!(atomic_load_explicit(tx->flags, memory_order_relaxed) & XDP_RING_NEED_WAKEUP))
		return 0;
	for (int i = 0; i < KICKS_MAX; i++) {
		uint32_t consumer = atomic_load_explicit(tx->consumer, memory_order_acquire);
		const uint32_t before = consumer;

		if (consumer == tx->cached_producer)
			return 0;
		/* By number: the library's own sendto is interposed, and libc's is a cancellation point with two locked
		 * instructions, 3 % of a 64-byte packet. */
		if (syscall(SYS_sendto, port->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN &&
		    errno != EBUSY && errno != ENOBUFS && !(errno == EINVAL && drop_tx_metadata_request(tx)))
			return vma_nic_qp_lost(base) ? -ENODEV : -errno;
		consumer = atomic_load_explicit(tx->consumer, memory_order_acquire);
		if (consumer == tx->cached_producer)
			return 0;
		if (consumer == before) /* the completion ring may be what is full */
			if (xdp_shared_drain_completion_ring(&port->driver) == 0)
				return -EAGAIN;
	}
	return -EAGAIN;
}

unsigned nic_xdp_reap_tx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct xdp_qp *qp = xdp_qp_of_base(base);
	uint32_t frames[BURST];
	unsigned got, kept = 0;

	if (!qp_usable(qp))
		return 0;
	if (n > BURST)
		n = BURST;
	xdp_shared_drain_completion_ring(&qp->port[qp->tx_queue].driver);
	got = xdp_shared_take_completed_tx(qp->shared, qp->slot, frames, n);
	for (unsigned i = 0; i < got; i++) {
		const uint32_t at = frames[i] - qp->tx_first;

		if (at >= qp->tx_count || !qp->in_flight[at])
			continue;
		qp->in_flight[at] = 0;
		bufs[kept++] = vma_buf_at(base->arena, qp->first + frames[i]);
	}
	return kept;
}

/* Completions tell that a frame has left the device, or been handed on by a veth. */
bool nic_xdp_tx_is_idle(struct vma_nic_qp *base)
{
	const struct xdp_qp *qp = xdp_qp_of_base(base);

	for (uint32_t i = 0; qp_usable(qp) && i < qp->tx_count; i++) {
		if (qp->in_flight[i])
			return false;
	}
	return true;
}
