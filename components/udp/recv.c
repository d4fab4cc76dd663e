/*
 * recv.c - a datagram in: the sink puts it into the queue of its ring, recv takes it out and copies.
 *
 *   recv ──┬─ a queue has one: take, copy, put the buffers back
 *          ├─ drive the own rings once, look again
 *          └─ recv_wait.c: the shadow, waiting
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/probe.h>

#include "cmsg.h"
#include "extra.h"
#include "fork_shared.h"
#include "fork_queue.h"
#include "pace.h"
#include "recv.h"
#include "xtreme.h"

/* ---- the sink ---- */

/* Wall-clock time of arrival: the NIC's, if that is near, or now. It is not in the future: clocks are only so equal. */
static uint64_t __attribute__((noinline)) packet_arrival_realtime_ns(const struct vma_buf *packet)
{
	struct timespec now;
	uint64_t now_ns;

	clock_gettime(CLOCK_REALTIME, &now);
	now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	if (packet->timestamp_ns != 0 && !(packet->flags & VMA_BUF_RX_NIC_CLOCK) && packet->timestamp_ns < now_ns)
		return packet->timestamp_ns;
	return now_ns;
}

/* SO_RXQ_OVFL counts for the socket, so over all its queues. */
static uint32_t __attribute__((cold)) udp_rxq_ovfl_count(const struct udp_sock *sock)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);
	uint64_t drops = atomic_load_explicit(&sock->drops_ended, memory_order_relaxed);

	for (uint32_t i = 0; all != NULL && i < all->n; i++)
		drops += atomic_load_explicit(&all->at[i]->queue.dropped, memory_order_relaxed);
	return (uint32_t)drops;
}

void udp_count_dropped(const struct udp_sock *sock, uint64_t bytes)
{
	if (sock->stats != NULL) {
		vma_stats_add(&sock->stats->rx_dropped, 1);
		vma_stats_add(&sock->stats->rx_dropped_bytes, bytes);
	}
}

/* QUEUE: for a receiver; TAKEN: a callback will see it first, or a poll; REFUSED: the socket does not get it. */
enum rx_opts_verdict { RX_OPTS_QUEUE, RX_OPTS_TAKEN, RX_OPTS_REFUSED };

static enum rx_opts_verdict __attribute__((noinline))
apply_rx_opts_to_datagram(struct udp_attachment *at, uint32_t rx_opts, const struct vma_buf *packet,
                          struct udp_datagram *datagram)
{
	struct udp_sock *sock = at->sock;

	if (udp_fork_shared_has_changed(sock) && !udp_datagram_matches_shared_socket_names(sock, datagram))
		return RX_OPTS_REFUSED; /* it is not what it was */
	if (rx_opts & (UDP_RX_OPT_STAMPS | UDP_RX_OPT_LAST_STAMP | UDP_RX_OPT_CALLBACK))
		datagram->arrival_ns = packet_arrival_realtime_ns(packet);
	if (rx_opts & UDP_RX_OPT_RXQ_OVFL)
		datagram->drops = udp_rxq_ovfl_count(sock);
	if ((rx_opts & UDP_RX_OPT_CALLBACK) == 0) {
		if ((rx_opts & UDP_RX_OPT_XTREME) == 0)
			return RX_OPTS_QUEUE;
		return udp_xtreme_deliver(at, datagram) ? RX_OPTS_TAKEN : RX_OPTS_REFUSED;
	}
	if (udp_queue_datagram_for_callback(at, datagram))
		return RX_OPTS_TAKEN;
	udp_count_dropped(sock, datagram->len);
	return RX_OPTS_REFUSED;
}

static inline void stats_count_queued_datagram(const struct udp_sock *sock, uint64_t bytes)
{
	struct vma_stats_socket *stats = sock->stats;

	if (stats != NULL) {
		vma_stats_add(&stats->rx_queued, 1);
		vma_stats_add(&stats->rx_queued_bytes, bytes);
	}
}

/* A connected socket hears its peer only, also where its flow is wider: a group, or the time of connecting. */
static inline bool is_from_peer(const struct udp_sock *sock, const struct udp_datagram *datagram)
{
	uint64_t peer = atomic_load_explicit(&sock->peer_key, memory_order_relaxed);

	return peer == 0 || peer == udp_peer_key(datagram->src, datagram->src_port_be);
}

/* rx_opts is a constant 0 in the usual case. */
static inline __attribute__((always_inline)) bool udp_filter_and_queue_datagram(struct udp_attachment *at,
                                                                                struct vma_buf *packet,
                                                                                const struct vma_rx_info *info,
                                                                                uint32_t rx_opts)
{
	struct udp_sock *sock = at->sock;
	struct udp_datagram datagram = {.packet = packet,
	                                .src_port_be = info->src_port_be,
	                                .dst_port_be = info->dst_port_be,
	                                .len = packet->payload_len,
	                                .ttl = info->ttl,
	                                .tos = info->tos,
	                                .ifindex = at->ifindex};

	memcpy(&datagram.src, info->src, 4);
	memcpy(&datagram.dst, info->dst, 4);
	if (!is_from_peer(sock, &datagram))
		return false;
	if (__builtin_expect((info->dst[0] & 0xf0) == 0xe0, 0) &&
	    !udp_multicast_filter_accepts_source(sock, datagram.dst, datagram.src, datagram.ifindex))
		return false;
	if (__builtin_expect(rx_opts != 0, 0)) {
		const enum rx_opts_verdict say = apply_rx_opts_to_datagram(at, rx_opts, packet, &datagram);

		if (say != RX_OPTS_QUEUE)
			return say == RX_OPTS_TAKEN;
	}
	if (!udp_queue_push(&at->queue, &datagram, atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed))) {
		udp_count_dropped(sock, datagram.len);
		return false;
	}
	/* Read as a plain field, which the note names: a load of its own would cost an instruction. */
	VMA_PROBE4(delivered, *(const int *)&sock->file.fd, datagram.len, datagram.dst_port_be, datagram.src_port_be);
	stats_count_queued_datagram(sock, datagram.len);
	vma_file_wake_readers_or_batch(&sock->file);
	return true;
}

bool udp_deliver_with_opts(struct udp_attachment *at, struct vma_buf *packet, const struct vma_rx_info *info,
                           uint32_t rx_opts)
{
	return udp_filter_and_queue_datagram(at, packet, info, rx_opts);
}

bool udp_deliver(struct udp_attachment *at, struct vma_buf *packet, const struct vma_rx_info *info)
{
	const uint32_t rx_opts = atomic_load_explicit(&at->sock->rx_opts, memory_order_relaxed);

	if (__builtin_expect(rx_opts == 0, 1))
		return udp_filter_and_queue_datagram(at, packet, info, 0);
	return rx_opts == UDP_RX_OPT_XTREME ? udp_xtreme_sink(at, packet, info)
	                                    : udp_deliver_with_opts(at, packet, info, rx_opts);
}

bool udp_queue_datagram_and_notify(struct udp_attachment *at, const struct udp_datagram *datagram)
{
	struct udp_sock *sock = at->sock;

	if (!udp_queue_push(&at->queue, datagram, atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed))) {
		udp_count_dropped(sock, datagram->len);
		return false;
	}
	VMA_PROBE4(delivered, *(const int *)&sock->file.fd, datagram->len, datagram->dst_port_be,
	           datagram->src_port_be);
	stats_count_queued_datagram(sock, datagram->len);
	vma_file_wake_readers_or_batch(&sock->file);
	return true;
}

_Static_assert(VMA_FILE_READABLE == (EPOLLIN | EPOLLRDNORM), "of sock.h, without this header");

/* ---- taking ---- */

/*
 * The reader's lock: held for some ten instructions by a thread that is inside, so no handler and no sleep comes
 * between; only the scheduler may. Those who find it taken wait one behind the other in the mutex, and the first of
 * them naps, which also works when it has a higher real-time priority than the holder. The C library's nanosleep is a
 * cancellation point: the mutex would stay taken.
 */
static void __attribute__((cold, noinline)) udp_receive_lock_acquire_slow(struct udp_sock *sock)
{
	struct timespec nap = {.tv_nsec = 10000};
	unsigned tries = 0;

	pthread_mutex_lock(&sock->reader);
	while (atomic_exchange_explicit(&sock->taking, true, memory_order_acquire)) {
		if (++tries > 100)
			syscall(SYS_nanosleep, &nap, NULL);
	}
	pthread_mutex_unlock(&sock->reader);
}

static inline void udp_receive_lock_acquire(struct udp_sock *sock)
{
	if (__builtin_expect(atomic_exchange_explicit(&sock->taking, true, memory_order_acquire), 0))
		udp_receive_lock_acquire_slow(sock);
}

static inline void udp_receive_lock_release(struct udp_sock *sock)
{
	atomic_store_explicit(&sock->taking, false, memory_order_release);
}

static void __attribute__((noinline)) udp_ref_chain(struct vma_buf *packet)
{
	for (; packet != NULL; packet = packet->next)
		vma_buf_ref(packet);
}

/*
 * The queue was never longer than a receiver finds it: nothing is taken in between. Bytes are looked at when it is
 * longer than ever before, and when a datagram is alone larger than all of then.
 */
static void __attribute__((cold, noinline)) stats_update_queue_max(struct vma_stats_socket *stats, uint64_t packets)
{
	const uint64_t taken = vma_stats_read_counter(&stats->rx_bytes) +
	                       vma_stats_read_counter(&stats->rx_lost_bytes) -
	                       vma_stats_read_counter(&stats->rx_peek_bytes);
	const uint64_t bytes = vma_stats_read_counter(&stats->rx_queued_bytes) - taken;

	vma_stats_set(&stats->rx_queue_max, packets);
	if (bytes <= vma_stats_read_counter(&stats->rx_queued_bytes) &&
	    bytes > vma_stats_read_counter(&stats->rx_queue_max_bytes))
		vma_stats_set(&stats->rx_queue_max_bytes, bytes);
}

static inline void stats_update_max_queue_length(const struct udp_sock *sock, const struct udp_queue *queue)
{
	const uint64_t packets = atomic_load_explicit(&queue->pushed, memory_order_relaxed) -
	                         atomic_load_explicit(&queue->popped, memory_order_relaxed);

	if (sock->stats != NULL && __builtin_expect(packets > vma_stats_read_counter(&sock->stats->rx_queue_max), 0))
		stats_update_queue_max(sock->stats, packets);
}

/* The next datagram of one queue; peek: it stays there, and *out has a reference of its own. */
static inline bool queue_take_datagram(struct udp_sock *sock, struct udp_queue *queue, bool peek,
                                       struct udp_datagram *out)
{
	const struct udp_datagram *front;

	if (udp_queue_is_empty(queue))
		return false;
	udp_receive_lock_acquire(sock);
	front = udp_queue_front(queue);
	if (front != NULL) {
		*out = *front;
		stats_update_max_queue_length(sock, queue);
		if (__builtin_expect(peek, 0))
			udp_ref_chain(front->packet);
		else
			udp_queue_pop(queue);
	}
	udp_receive_lock_release(sock);
	return front != NULL;
}

/* What has moved on first; then in turn, so that a busy ring does not keep the others waiting. */
static bool __attribute__((noinline))
take_datagram_from_ring_queues_in_turn(struct udp_sock *sock, const struct udp_attachments *all, bool peek,
                                       struct udp_datagram *out)
{
	uint32_t first = atomic_load_explicit(&sock->next_ring, memory_order_relaxed);
	const uint32_t live = all->n - all->left;

	for (uint32_t i = 0; i < all->left; i++) {
		if (queue_take_datagram(sock, &all->at[i]->queue, peek, out))
			return true;
	}
	for (uint32_t i = 0; i < live; i++) {
		uint32_t at = all->left + (first + i) % live;

		if (!queue_take_datagram(sock, &all->at[at]->queue, peek, out))
			continue;
		/* A peek comes to the same one again. */
		atomic_store_explicit(&sock->next_ring, peek ? at - all->left : at - all->left + 1,
		                      memory_order_relaxed);
		return true;
	}
	return false;
}

static inline bool udp_take_datagram(struct udp_sock *sock, const struct udp_attachments *all, bool peek,
                                     struct udp_datagram *out)
{
	if (__builtin_expect(all->n == 1, 1))
		return queue_take_datagram(sock, &all->at[0]->queue, peek, out);
	return take_datagram_from_ring_queues_in_turn(sock, all, peek, out);
}

bool udp_dequeue_next_datagram(struct udp_sock *sock, const struct udp_attachments *all, struct udp_datagram *out)
{
	return udp_take_datagram(sock, all, false, out);
}

void udp_drain_queues_calling_each(struct udp_sock *sock, const struct udp_attachments *all,
                                   void (*each)(void *arg, const struct udp_datagram *datagram), void *arg)
{
	const struct udp_datagram *front;

	udp_receive_lock_acquire(sock);
	for (uint32_t i = 0; i < all->n; i++) {
		while ((front = udp_queue_front(&all->at[i]->queue)) != NULL) {
			each(arg, front);
			vma_buf_put_chain(vma_engine_get_or_start()->arena, front->packet);
			udp_queue_pop(&all->at[i]->queue);
		}
	}
	udp_receive_lock_release(sock);
}

int udp_next_datagram_len(struct udp_sock *sock)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);
	uint32_t first = atomic_load_explicit(&sock->next_ring, memory_order_relaxed);
	const struct udp_datagram *front = NULL;
	struct udp_datagram left;
	int len = -1;

	if (udp_fork_queue_take(sock, true, &left) != NULL)
		return left.len;
	udp_receive_lock_acquire(sock);
	for (uint32_t i = 0; all != NULL && front == NULL && i < all->left; i++)
		front = udp_queue_front(&all->at[i]->queue);
	for (uint32_t i = 0; all != NULL && front == NULL && i < all->n - all->left; i++)
		front = udp_queue_front(&all->at[all->left + (first + i) % (all->n - all->left)]->queue);
	if (front != NULL)
		len = front->len;
	udp_receive_lock_release(sock);
	return len;
}

/* ---- giving ---- */

struct source { /* where copying stands in a packet's buffers */
	const struct vma_bufarena *arena;
	const struct vma_buf *buf;
	uint32_t off;
};

static int copy_from_packet_chain(struct source *from, uint8_t *to, size_t len)
{
	while (len > 0 && from->buf != NULL) {
		size_t here = from->buf->len - from->off;

		if (here > len)
			here = len;
		if (vma_memcpy_or_efault(to, vma_buf_data(from->arena, from->buf) + from->off, here) != 0)
			return -EFAULT;
		to += here;
		len -= here;
		from->off += (uint32_t)here;
		if (from->off == from->buf->len) {
			from->buf = from->buf->next;
			from->off = 0;
		}
	}
	return 0;
}

static int __attribute__((noinline))
copy_packet_payload_to_iovec(const struct vma_bufarena *arena, const struct vma_buf *packet, const struct iovec *iov,
                             size_t n, size_t len)
{
	struct source from = {.arena = arena, .buf = packet, .off = packet->payload_off};

	for (size_t i = 0; i < n && len > 0; i++) {
		size_t here = iov[i].iov_len < len ? iov[i].iov_len : len;

		if (copy_from_packet_chain(&from, iov[i].iov_base, here) != 0)
			return -EFAULT;
		len -= here;
	}
	return 0;
}

static int __attribute__((noinline))
recv_fill_msg_name(const struct udp_sock *sock, struct msghdr *msg, const struct udp_datagram *datagram)
{
	const struct sockaddr_in from = {
	        .sin_family = AF_INET, .sin_port = datagram->src_port_be, .sin_addr.s_addr = datagram->src};
	union vma_name name;
	size_t len = msg->msg_namelen;

	msg->msg_namelen =
	        vma_name_fill_from_sockaddr_in(sock->file.family, &from, &name); /* what it would have been */
	return vma_memcpy_or_efault(msg->msg_name, &name, len < msg->msg_namelen ? len : msg->msg_namelen);
}

/* What is on is what is set now, by whichever process. */
static void __attribute__((noinline))
put_rx_cmsgs(struct udp_sock *sock, struct msghdr *msg, const struct udp_datagram *datagram)
{
	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes(sock);
	udp_put_cmsgs(msg, atomic_load_explicit(&sock->rx_opts, memory_order_relaxed), datagram);
}

/* What recv says of a datagram beside its bytes, `len` of which are copied. */
static inline __attribute__((always_inline)) ssize_t
fill_msg_metadata(struct udp_sock *sock, struct msghdr *msg, int flags, const struct udp_datagram *datagram, size_t len)
{
	uint32_t rx_opts = atomic_load_explicit(&sock->rx_opts, memory_order_relaxed);

	if (__builtin_expect(rx_opts != 0, 0))
		put_rx_cmsgs(sock, msg, datagram);
	else
		msg->msg_controllen = 0;
	if (msg->msg_name != NULL && recv_fill_msg_name(sock, msg, datagram) != 0)
		return -EFAULT;
	if (__builtin_expect(datagram->arrival_ns != 0, 0))
		atomic_store_explicit(&sock->last_stamp_ns, datagram->arrival_ns, memory_order_relaxed);
	return __builtin_expect(flags & MSG_TRUNC, 0) ? datagram->len : (ssize_t)len;
}

/*
 * What readers need to know to tell how long the queue is: this datagram was peeked at, and is there still; or bytes of
 * it were taken that no receiver has got.
 */
static void __attribute__((cold, noinline)) stats_count_peek(const struct udp_sock *sock, ssize_t len)
{
	if (sock->stats != NULL && len >= 0) {
		vma_stats_add(&sock->stats->rx_peeks, 1);
		vma_stats_add(&sock->stats->rx_peek_bytes, (uint64_t)len);
	}
}

static void __attribute__((cold, noinline))
stats_count_truncated_bytes(const struct udp_sock *sock, int flags, size_t bytes)
{
	if (sock->stats != NULL && !(flags & MSG_PEEK))
		vma_stats_add(&sock->stats->rx_lost_bytes, bytes);
}

static void __attribute__((cold, noinline))
stats_count_truncated_datagram(const struct udp_sock *sock, int flags, size_t bytes)
{
	stats_count_truncated_bytes(sock, flags, bytes);
	if (sock->stats != NULL && !(flags & MSG_PEEK))
		vma_stats_add(&sock->stats->rx_lost, 1);
}

void udp_count_datagram_as_dropped(const struct udp_sock *sock, const struct udp_datagram *datagram)
{
	stats_count_truncated_datagram(sock, 0, datagram->len);
}

/* The length that fits; what does not is lost. */
static inline size_t datagram_truncate_to_capacity(const struct udp_sock *sock, struct msghdr *msg, int flags,
                                                   size_t capacity, const struct udp_datagram *datagram)
{
	msg->msg_flags = flags & MSG_CMSG_CLOEXEC; /* the kernel leaves it there */
	if (__builtin_expect(datagram->len <= capacity, 1))
		return datagram->len;
	msg->msg_flags |= MSG_TRUNC;
	if (!(flags & MSG_TRUNC)) /* else the answer is the whole length */
		stats_count_truncated_bytes(sock, flags, datagram->len - capacity);
	return capacity;
}

/* Copies a taken datagram of which the pieces have `capacity`. What cannot be written is lost. */
static inline __attribute__((always_inline)) ssize_t copy_datagram_to_msg(struct udp_sock *sock, struct msghdr *msg,
                                                                          int flags, const struct iovec *iov, size_t n,
                                                                          size_t capacity,
                                                                          const struct udp_datagram *datagram)
{
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	const struct vma_buf *packet = datagram->packet;
	size_t len = datagram_truncate_to_capacity(sock, msg, flags, capacity, datagram);
	int rc;

	if (__builtin_expect(n == 1 && packet->next == NULL, 1))
		rc = len == 0 ? 0
		              : vma_memcpy_or_efault(iov->iov_base, vma_buf_data(arena, packet) + packet->payload_off,
		                                     len);
	else
		rc = copy_packet_payload_to_iovec(arena, packet, iov, n, len);
	if (__builtin_expect(rc != 0, 0))
		return -EFAULT;
	return fill_msg_metadata(sock, msg, flags, datagram, len);
}

static inline void stats_count_received_datagram(const struct udp_sock *sock, ssize_t len)
{
	struct vma_stats_socket *stats = sock->stats;

	if (stats == NULL)
		return;
	if (__builtin_expect(len < 0, 0)) {
		vma_inet_count_failed_call(stats, &stats->rx_errors, len);
	} else {
		vma_stats_add(&stats->rx_packets, 1);
		vma_stats_add(&stats->rx_bytes, (uint64_t)len);
		if (__builtin_expect((uint64_t)len > vma_stats_read_counter(&stats->rx_queue_max_bytes), 0))
			vma_stats_set(&stats->rx_queue_max_bytes, (uint64_t)len);
	}
}

static inline __attribute__((always_inline)) ssize_t
copy_datagram_and_release(struct udp_sock *sock, struct msghdr *msg, int flags, const struct iovec *iov, size_t n,
                          size_t capacity, const struct udp_datagram *datagram)
{
	ssize_t len = copy_datagram_to_msg(sock, msg, flags, iov, n, capacity, datagram);

	stats_count_received_datagram(sock, len);
	if (__builtin_expect(len < 0, 0))
		stats_count_truncated_datagram(sock, flags, datagram->len < capacity ? datagram->len : capacity);
	if (__builtin_expect(datagram->packet->next == NULL, 1))
		vma_buf_put(vma_engine_get_or_start()->arena, datagram->packet);
	else
		vma_buf_put_chain(vma_engine_get_or_start()->arena, datagram->packet);
	return len;
}

/* What needs no list: the one piece of most calls, taken along. */
static inline bool msg_get_single_iov(const struct msghdr *msg, struct iovec *iov)
{
	if (msg->msg_iovlen != 1)
		return false;
	if (vma_inet_iov_is_library_memory(msg))
		*iov = *msg->msg_iov;
	else if (vma_memcpy_or_efault(iov, msg->msg_iov, sizeof(*iov)) != 0)
		return false;
	return !vma_inet_iov_is_bad_ptr(iov) && iov->iov_len <= VMA_INET_BYTES_MAX;
}

static ssize_t __attribute__((noinline))
receive_by_iov_iter(struct udp_sock *sock, const struct udp_attachments *all, struct msghdr *msg, int flags)
{
	struct udp_datagram datagram;
	struct vma_inet_iov_iter iov_iter;
	ssize_t rc = vma_inet_iov_iter_init_from_msghdr(&iov_iter, msg);

	if (rc == 0)
		rc = udp_take_datagram(sock, all, flags & MSG_PEEK, &datagram)
		             ? copy_datagram_and_release(sock, msg, flags, iov_iter.iov, iov_iter.n, iov_iter.left,
		                                         &datagram)
		             : -ENODATA;
	if (flags & MSG_PEEK)
		stats_count_peek(sock, rc);
	vma_inet_iov_iter_release(&iov_iter);
	return rc;
}

/* What was queued when the process forked. */
static ssize_t __attribute__((cold, noinline))
receive_datagram_queued_before_fork(struct udp_sock *sock, struct msghdr *msg, int flags)
{
	struct udp_datagram datagram;
	struct vma_inet_iov_iter iov_iter;
	ssize_t rc = flags & VMA_LEND_FLAG && vma_recv_zcopy_call_of_msghdr(msg)->forced
	                     ? -EIO
	                     : vma_inet_iov_iter_init_from_msghdr(&iov_iter, msg);
	const uint8_t *bytes = rc == 0 ? udp_fork_queue_take(sock, flags & MSG_PEEK, &datagram) : NULL;
	size_t len;

	if (rc == -EIO)
		return rc;

	if (bytes != NULL) {
		len = datagram_truncate_to_capacity(sock, msg, flags, iov_iter.left, &datagram);
		rc = vma_inet_iov_iter_write(&iov_iter, bytes, len) < len
		             ? -EFAULT
		             : fill_msg_metadata(sock, msg, flags, &datagram, len);
		stats_count_received_datagram(sock, rc);
		if (flags & MSG_PEEK)
			stats_count_peek(sock, rc);
	} else if (rc == 0) {
		rc = -ENODATA;
	}
	vma_inet_iov_iter_release(&iov_iter);
	return rc;
}

/* ---- lending ---- */

/* Reader's lock. The packet is held as *id; 0: it cannot be lent. */
static uint64_t recv_lend_front_datagram(struct udp_sock *sock, struct vma_recv_zcopy_call *lend,
                                         const struct udp_datagram *front, struct vma_fragment *fragments, unsigned n)
{
	struct udp_extra_api_state *extra =
	        n != 0 && vma_recv_zcopy_buffer_has_room(lend, n) ? udp_extra_api_state_get_or_create(sock) : NULL;
	uint64_t id;

	if (extra == NULL ||
	    vma_held_packet_add(&extra->holder, lend->fd, fragments, n, udp_datagram_rcvbuf_charge(front),
	                        atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed), 0, &id) != 0)
		return 0;
	return id;
}

/* A taken datagram: held as id; 0: it could not be, and is the caller's. */
struct lent {
	struct udp_datagram datagram;
	uint64_t id;
	unsigned n;
	struct vma_fragment fragments[UDP_FRAGMENTS_MAX];
};

/* 0, -ENODATA; forced, and it stays where it is: -ENOBUFS, -EIO. */
static int queue_take_for_zcopy(struct udp_sock *sock, struct udp_queue *queue, struct vma_recv_zcopy_call *lend,
                                int flags, struct lent *lent)
{
	const struct udp_datagram *front;
	int rc = -ENODATA;

	if (udp_queue_is_empty(queue))
		return -ENODATA;
	udp_receive_lock_acquire(sock);
	front = udp_queue_front(queue);
	if (front != NULL) {
		rc = 0;
		lent->datagram = *front;
		lent->n = udp_fragments_of(front, lent->fragments);
		lent->id = flags & MSG_PEEK ? 0 : recv_lend_front_datagram(sock, lend, front, lent->fragments, lent->n);
		if (lent->id == 0 && lend->forced)
			rc = vma_recv_zcopy_buffer_has_room(lend, lent->n) ? -EIO : -ENOBUFS;
		else if (lent->id == 0 && flags & MSG_PEEK)
			udp_ref_chain(front->packet);
		else
			udp_queue_pop(queue);
		stats_update_max_queue_length(sock, queue);
	}
	udp_receive_lock_release(sock);
	return rc;
}

static int zcopy_take_datagram_from_ring_queues(struct udp_sock *sock, const struct udp_attachments *all,
                                                struct vma_recv_zcopy_call *lend, int flags, struct lent *lent)
{
	const uint32_t first = atomic_load_explicit(&sock->next_ring, memory_order_relaxed), live = all->n - all->left;
	int rc = -ENODATA;

	for (uint32_t i = 0; rc == -ENODATA && i < all->left; i++)
		rc = queue_take_for_zcopy(sock, &all->at[i]->queue, lend, flags, lent);
	for (uint32_t i = 0; rc == -ENODATA && i < live; i++) {
		const uint32_t at = (first + i) % live;

		rc = queue_take_for_zcopy(sock, &all->at[all->left + at]->queue, lend, flags, lent);
		if (rc == 0 && live > 1)
			atomic_store_explicit(&sock->next_ring, flags & MSG_PEEK ? at : at + 1, memory_order_relaxed);
	}
	return rc;
}

/* Describes what is held to the application. */
static ssize_t recv_describe_lent_packet(struct udp_sock *sock, struct vma_recv_zcopy_call *lend, int flags,
                                         const struct lent *lent)
{
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	ssize_t len = vma_recv_zcopy_add_packet(lend, arena, lent->id, lent->fragments, lent->n);

	lend->msg.msg_flags = flags & MSG_CMSG_CLOEXEC;
	if (len == 0)
		len = fill_msg_metadata(sock, &lend->msg, flags, &lent->datagram, lent->datagram.len);
	stats_count_received_datagram(sock, len);
	if (len >= 0) {
		if (sock->stats != NULL)
			vma_stats_add(&sock->stats->rx_zcopy, 1);
		return len;
	}
	stats_count_truncated_datagram(sock, flags, lent->datagram.len);
	vma_held_packet_free(&sock->file, lend->fd, lent->id);
	lend->packets = 0;
	return len;
}

static ssize_t __attribute__((cold, noinline))
receive_zcopy_queued(struct udp_sock *sock, const struct udp_attachments *all, struct msghdr *msg, int flags)
{
	struct vma_recv_zcopy_call *lend = vma_recv_zcopy_call_of_msghdr(msg);
	struct lent lent;
	ssize_t rc = zcopy_take_datagram_from_ring_queues(sock, all, lend, flags, &lent);

	if (rc != 0)
		return rc;
	if (lent.id != 0)
		return recv_describe_lent_packet(sock, lend, flags, &lent);
	rc = copy_datagram_and_release(sock, msg, flags, &lend->piece, 1, lend->piece.iov_len, &lent.datagram);
	if (flags & MSG_PEEK)
		stats_count_peek(sock, rc);
	return rc;
}

ssize_t udp_receive_queued(struct udp_sock *sock, struct msghdr *msg, int flags)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);
	struct udp_datagram datagram;
	struct iovec iov;
	ssize_t len =
	        udp_has_nonempty_fork_queue(sock) ? receive_datagram_queued_before_fork(sock, msg, flags) : -ENODATA;

	if (len != -ENODATA || !udp_has_datagram(all))
		return len;
	if (__builtin_expect(flags & (MSG_PEEK | VMA_LEND_FLAG) || !msg_get_single_iov(msg, &iov), 0))
		return flags & VMA_LEND_FLAG ? receive_zcopy_queued(sock, all, msg, flags)
		                             : receive_by_iov_iter(sock, all, msg, flags);
	if (!udp_take_datagram(sock, all, false, &datagram))
		return -ENODATA;
	return copy_datagram_and_release(sock, msg, flags, &iov, 1, iov.iov_len, &datagram);
}

/* ---- recv ---- */

/*
 * Drives on if the last step was a full one but had nothing for this socket, or if another thread drives and this call
 * does not wait for it later.
 */
static bool __attribute__((cold, noinline))
keep_driving_rings(const struct udp_sock *sock, const struct udp_attachments *all, int driven, int flags)
{
	if (driven == -EBUSY &&
	    (flags & MSG_DONTWAIT || atomic_load_explicit(&sock->nonblocking, memory_order_relaxed)))
		driven = vma_ring_ctxs_catch_up(all->rings);
	for (unsigned steps = 1; driven >= VMA_RING_CTXS_FULL && steps < VMA_RING_CTXS_STEPS && !udp_has_datagram(all);
	     steps++)
		driven = vma_ring_ctxs_progress(all->rings);
	return udp_has_datagram(all);
}

ssize_t udp_recvmsg(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	struct udp_sock *sock = udp_sock(file);
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);
	struct udp_datagram datagram;
	struct iovec iov;

	vma_inet_flush_sends(vma_thread_self());
	if (__builtin_expect(all == NULL || flags & (MSG_ERRQUEUE | MSG_PEEK | VMA_LEND_FLAG) || file->os_only ||
	                             atomic_load_explicit(&sock->os_attention, memory_order_relaxed) ||
	                             msg->msg_namelen > INT32_MAX || !msg_get_single_iov(msg, &iov),
	                     0))
		return udp_recv_slow_path(sock, fd, msg, flags & ~VMA_LEND_FLAG); /* that is a program's own */
	if (!udp_take_datagram(sock, all, false, &datagram)) {
		const int driven = vma_ring_ctxs_progress(all->rings);

		if (!udp_take_datagram(sock, all, false, &datagram) &&
		    (driven == 0 || !keep_driving_rings(sock, all, driven, flags) ||
		     !udp_take_datagram(sock, all, false, &datagram)))
			return udp_recv_when_queue_is_empty(sock, fd, msg, flags);
	}
	return copy_datagram_and_release(sock, msg, flags, &iov, 1, iov.iov_len, &datagram);
}

ssize_t udp_recvmsg_after_periodic_ring_drain(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	struct udp_sock *sock = udp_sock(file);
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);

	if (all != NULL && !file->os_only && vma_inet_drain_is_due(&sock->drain, udp_has_datagram(all)))
		vma_ring_ctxs_progress(all->rings);
	return udp_recvmsg(file, fd, msg, flags);
}

/* ---- readiness ---- */

/* Of a socket that sends offloaded: it always can, unless it is paced. Then the shadow, which has nothing to send, is
 * no help either. */
static uint32_t udp_poll_out(struct udp_sock *sock)
{
	const uint32_t out = EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND;

	if (__builtin_expect(!udp_is_paced(sock), 1))
		return out;
	return VMA_POLL_OWN_OUT | (udp_pace_may_send_or_schedule_wakeup(sock) ? out : 0);
}

/* What waits in the shadow, and its errors, are asked of the OS. */
uint32_t udp_poll(struct vma_file *file)
{
	const struct udp_sock *sock = udp_sock(file);
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);
	bool shut_rd = atomic_load_explicit(&sock->shut_rd, memory_order_relaxed);
	uint32_t events = udp_has_nonempty_fork_queue(sock) && !file->os_only ? EPOLLIN | EPOLLRDNORM : 0;

	if (all == NULL) {
		if (atomic_load_explicit(&sock->inherited, memory_order_relaxed))
			udp_schedule_offload_of_inherited(udp_sock(file));
		/* It may send past the kernel all the same; an unpaced one is as writable as its shadow. */
		if (udp_is_paced(sock) && !file->os_only && !atomic_load_explicit(&sock->os_send, memory_order_relaxed))
			events |= udp_poll_out(udp_sock(file));
		return events;
	}
	if (!atomic_load_explicit(&sock->os_send, memory_order_relaxed))
		events |= udp_poll_out(udp_sock(file));
	if (shut_rd)
		events |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
	if (shut_rd && atomic_load_explicit(&sock->shut_wr, memory_order_relaxed))
		events |= EPOLLHUP;
	if (udp_has_datagram(all))
		events |= EPOLLIN | EPOLLRDNORM;
	return events;
}

uint64_t udp_socket_rings_mask(struct vma_file *file)
{
	const struct udp_attachments *all = atomic_load_explicit(&udp_sock(file)->attachments, memory_order_acquire);

	return all != NULL ? all->rings : 0;
}
