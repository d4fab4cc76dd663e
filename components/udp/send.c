/*
 * send.c - a datagram out: through an own frame if everything is plain, else through the shadow.
 *
 *   sendmsg ──┬─ plain call, destination cached, fits one frame ──> copy, headers, ring
 *             └─ else plan: what is missing is asked for, and meanwhile, or for good, the shadow sends
 *
 * The shadow's answer is right by construction. That holds for wrong addresses, errors that wait, fragments,
 * broadcasts, and groups with members on this host. It also holds for neighbours that are not resolved yet, most
 * control messages, and MSG_MORE.
 */
#include <errno.h>
#include <sched.h>
#include <time.h>

#include "dst.h"
#include "frame.h"
#include "fork_shared.h"
#include "os_sends.h"
#include "deferred.h"
#include "extra.h"
#include "pace.h"

enum {
	/* What we do as the kernel does. MSG_CONFIRM is a hint to the neighbour table, which we leave as it is. */
	SERVED_FLAGS = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM | MSG_EOR,
	BURST_AFTER = 4,            /* sends in a row before kicks are shared */
	BURST_GAP_NS = 5000,        /* between two of them */
	MSG_SEND_CHECK_ONLY = 0x10, /* the kernel's MSG_PROBE, a name that the C library does not have */
	PACED_SLEEP_NS = 50000000,
	FULL_SLEEP_NS = 20000, /* queue full, and nobody in the way: the peer or the kernel has to come to it */
};

_Atomic uint64_t udp_sends_by_os_count;

static _Atomic uint64_t burst_gap_tsc;

/* ---- shared kicks ---- */

static bool __attribute__((cold, noinline)) send_is_in_burst_init(uint64_t since)
{
	uint64_t gap = vma_tsc_of_nsec(BURST_GAP_NS);

	atomic_store_explicit(&burst_gap_tsc, gap, memory_order_relaxed);
	return since < gap;
}

static inline bool send_is_in_burst(uint64_t since)
{
	uint64_t gap = atomic_load_explicit(&burst_gap_tsc, memory_order_relaxed);

	return __builtin_expect(gap != 0, 1) ? since < gap : send_is_in_burst_init(since);
}

/* Sends in a row: the frame is left for a kick that it shares with the next ones. */
static unsigned __attribute__((noinline))
send_defer_kick_to_batch(struct vma_thread *self, struct vma_ring_ctx *ring_ctx)
{
	if (self->tx_ring != ring_ctx->ring) {
		if (self->tx_ring != NULL)
			vma_inet_flush_sends_slow(self);
		self->tx_ring = ring_ctx->ring;
	}
	return VMA_RING_SEND_LATER;
}

/*
 * Whether this frame is kicked at once: all but those that follow BURST_AFTER others of this thread closely. A frame
 * that is kicked takes along what waits in its ring.
 */
static inline unsigned send_kick_flags(struct vma_thread *self, const struct vma_engine *engine,
                                       struct vma_ring_ctx *ring_ctx)
{
	uint64_t now, since;

	if (engine->latency)
		return 0;
	now = vma_tsc();
	since = now - self->tx_last_tsc;
	self->tx_last_tsc = now;
	if (!send_is_in_burst(since)) {
		vma_inet_flush_sends(self);
		return 0;
	}
	if (self->tx_burst < BURST_AFTER) {
		self->tx_burst++;
		return 0;
	}
	return send_defer_kick_to_batch(self, ring_ctx);
}

/* ---- the shadow ---- */

static void udp_count_kernel_send(struct udp_sock *sock, ssize_t sent)
{
	if (sock->stats == NULL)
		return;
	if (sent < 0) {
		vma_inet_count_failed_call(sock->stats, &sock->stats->tx_os_errors, sent);
	} else {
		vma_stats_add(&sock->stats->tx_os_packets, 1);
		vma_stats_add(&sock->stats->tx_os_bytes, (uint64_t)sent);
	}
}

/* Others that have the socket, too, are told: what they send belongs to the same datagram. */
static void set_corked(struct udp_sock *sock, bool corked)
{
	const bool was = atomic_load_explicit(&sock->unplain, memory_order_relaxed) & UDP_CORKED;
	struct udp_fork_shared *fork_shared = udp_fork_shared(sock);

	if (was == corked)
		return;
	if (corked)
		atomic_fetch_or_explicit(&sock->unplain, UDP_CORKED, memory_order_relaxed);
	else
		atomic_fetch_and_explicit(&sock->unplain, (uint8_t)~UDP_CORKED, memory_order_relaxed);
	if (fork_shared != NULL) {
		atomic_store(&fork_shared->corked, corked);
		atomic_fetch_add(&fork_shared->changes, 1);
	}
}

/*
 * An error that waits in the library, and not in the shadow, is told as the kernel tells its own: after all that is
 * wrong with the call itself. MSG_SEND_CHECK_ONLY has the kernel check the call, and send nothing.
 */
static ssize_t __attribute__((cold, noinline))
return_deferred_error(struct udp_sock *sock, int fd, const struct msghdr *msg, int flags)
{
	ssize_t rc = vma_inet_os_send(fd, msg, flags | MSG_SEND_CHECK_ONLY | MSG_DONTWAIT);

	return rc < 0 ? rc : -atomic_exchange_explicit(&sock->file.deferred_error, 0, memory_order_relaxed);
}

static void send_by_kernel_on_cancel(void *arg)
{
	struct udp_sock *sock = arg;
	struct vma_thread *self = vma_enter();

	vma_file_put(&sock->file);
	vma_leave(self);
}

/* Outside. */
static ssize_t __attribute__((noinline))
send_error_or_message(struct udp_sock *sock, int fd, const struct msghdr *msg, int flags)
{
	ssize_t sent = 0;

	if (__builtin_expect(atomic_load_explicit(&sock->file.deferred_error, memory_order_relaxed) != 0, 0))
		sent = return_deferred_error(sock, fd, msg, flags);
	return sent == 0 ? vma_inet_os_send(fd, msg, flags) : sent;
}

/* Outside, since it may block. Frames of before leave first. */
static ssize_t __attribute__((cold, noinline))
udp_send_by_kernel_socket(struct udp_sock *sock, int fd, const struct msghdr *msg, int flags)
{
	ssize_t sent;

	vma_inet_flush_sends(vma_thread_self());
	vma_file_get(&sock->file);
	pthread_cleanup_push(send_by_kernel_on_cancel, sock);
	vma_leave_to_block();
	sent = send_error_or_message(sock, fd, msg, flags);
	pthread_cleanup_pop(0);
	vma_enter();
	/* After the call: a receiver that has seen the number before had not asked for this one. */
	atomic_fetch_add_explicit(&udp_sends_by_os_count, 1, memory_order_release);
	udp_count_kernel_send(sock, sent);
	if (sent >= 0)
		set_corked(sock, flags & MSG_MORE);
	vma_file_put(&sock->file);
	return sent;
}

/* ---- a frame ---- */

static inline void stats_count_sent_datagram(const struct udp_sock *sock, size_t len)
{
	struct vma_stats_socket *stats = sock->stats;

	if (stats != NULL) {
		vma_stats_add(&stats->tx_packets, 1);
		vma_stats_add(&stats->tx_bytes, len);
	}
}

static inline int udp_gather_iov(uint8_t *to, const struct iovec *iov, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (iov[i].iov_len != 0 && vma_memcpy_or_efault(to, iov[i].iov_base, iov[i].iov_len) != 0)
			return -EFAULT;
		to += iov[i].iov_len;
	}
	return 0;
}

/* len bytes in n pieces, which fit. The length; -EFAULT; -EAGAIN: no room now. */
static inline __attribute__((always_inline)) ssize_t
udp_transmit(const struct udp_sock *sock, const struct udp_dst *dst, const struct iovec *iov, size_t n, size_t len)
{
	struct vma_ring *ring = dst->ring_ctx->ring;
	struct vma_bufarena *arena = dst->engine->arena;
	struct vma_buf *buf = vma_ring_tx_buf(ring);
	struct vma_nic_seg seg = {.buf = buf};
	uint16_t id = 0;
	unsigned flags;
	uint8_t *frame;

	if (__builtin_expect(buf == NULL, 0))
		return -EAGAIN;
	frame = (uint8_t *)vma_buf_data(arena, buf);
	if (__builtin_expect(udp_gather_iov(frame + dst->headers_len, iov, n) != 0, 0)) {
		vma_buf_put(arena, buf);
		return -EFAULT;
	}
	if (__builtin_expect(!dst->df, 0))
		id = (uint16_t)atomic_fetch_add_explicit(dst->ip_id, 1, memory_order_relaxed);
	seg.off = buf->data_off;
	seg.len = udp_frame_write_headers(dst, frame, (uint32_t)len, id, &seg.flags);
	flags = send_kick_flags(vma_thread_self(), dst->engine, dst->ring_ctx);
	if (__builtin_expect(vma_ring_send(ring, &seg, 1, flags) == 0, 0)) {
		vma_buf_put(arena, buf);
		return -EAGAIN;
	}
	if (flags & VMA_RING_SEND_LATER)
		vma_engine_flush_rings_within_1ms(vma_ring_ctx_bit(dst->ring_ctx)); /* after: see there */
	vma_ring_ctx_count_send(dst->ring_ctx);
	stats_count_sent_datagram(sock, len);
	return (ssize_t)len;
}

/* ---- waiting for room ---- */

struct send_wait {
	uint64_t deadline_ns; /* 0: not waited yet */
	struct vma_ring_backoff backoff;
	uint32_t signals, interrupts, tries;
	/* given back if the thread is cancelled in a wait */
	struct udp_sock *sock;
	struct vma_ring_ctx *ring_ctx;
	void *iov_memory; /* of the call's pieces, or NULL */
};

static void send_wait_on_cancel(void *arg)
{
	const struct send_wait *send_wait = arg;
	struct vma_thread *self = vma_enter();

	vma_ring_ctx_put(send_wait->ring_ctx);
	vma_free(send_wait->iov_memory);
	vma_file_put(&send_wait->sock->file);
	vma_leave(self);
}

/* Outside, until a paced socket may send; it is looked at again now and then, as its pace may change. */
static void send_sleep_until(uint64_t until_ns, const struct send_wait *send_wait)
{
	const uint64_t now_ns = vma_now_ns();
	uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	struct timespec nap;

	if (send_wait->deadline_ns != UINT64_MAX && send_wait->deadline_ns < now_ns + left_ns)
		left_ns = send_wait->deadline_ns > now_ns ? send_wait->deadline_ns - now_ns : 0;
	if (left_ns > PACED_SLEEP_NS)
		left_ns = PACED_SLEEP_NS;
	nap = (struct timespec){.tv_nsec = (long)left_ns};
	nanosleep(&nap, NULL);
}

/* Outside: first for who drives the ring, then for the NIC to take something. */
static void send_wait_for_tx_ring_progress(struct vma_ring *ring, struct send_wait *send_wait)
{
	const struct timespec nap = {.tv_nsec = FULL_SLEEP_NS};

	vma_ring_flush_tx(ring);
	if (vma_ring_drive_holder_tid(ring, VMA_RING_TX) != 0)
		vma_ring_wait_for_holder(ring, VMA_RING_TX, &send_wait->backoff, 1000000);
	else if (send_wait->tries < 8)
		sched_yield();
	else
		nanosleep(&nap, NULL);
	send_wait->tries++;
}

static void __attribute__((noinline)) send_wait_outside(uint64_t until_ns, struct send_wait *send_wait)
{
	pthread_cleanup_push(send_wait_on_cancel, send_wait);
	vma_leave_to_block();
	if (until_ns != 0)
		send_sleep_until(until_ns, send_wait);
	else
		send_wait_for_tx_ring_progress(send_wait->ring_ctx->ring, send_wait);
	pthread_cleanup_pop(0);
	vma_enter();
}

/*
 * VMA_TX_NONBLOCKED_EAGAINS=0, for programs that cannot live with EAGAIN: what a send that does not wait finds no room
 * for is said to be sent. What has been queued leaves, and if that makes no room, the datagram is dropped. So is one
 * that is too early.
 */
static ssize_t __attribute__((cold, noinline)) send_or_drop(const struct udp_sock *sock, const struct udp_dst *dst,
                                                            const struct vma_inet_iov_iter *iov_iter, bool early)
{
	ssize_t sent = -EAGAIN;

	vma_inet_flush_sends(vma_thread_self());
	vma_ring_flush_tx(dst->ring_ctx->ring);
	if (!early)
		sent = udp_transmit(sock, dst, iov_iter->iov, iov_iter->n, iov_iter->left);
	if (sent != -EAGAIN)
		return sent;
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->tx_drops, 1);
	return (ssize_t)iov_iter->left;
}

/* Only who has asked for it: by default nothing is lost that the sender was not told of. */
static bool conf_drops_when_tx_is_full(const struct vma_conf *conf)
{
	return conf->given[VMA_CONF_AT_tx_nonblocked_eagains] && !conf->tx_nonblocked_eagains;
}

/* until_ns: when its pace lets it send; 0: there is no room. 0: try again. As the kernel's wait for SO_SNDBUF: -EAGAIN,
 * -EINTR. */
static int __attribute__((cold, noinline))
send_wait_for_space(struct udp_sock *sock, struct vma_ring_ctx *ring_ctx, bool nonblocking, uint64_t until_ns,
                    struct send_wait *send_wait)
{
	struct vma_thread *self = vma_thread_self();
	uint64_t timeout_ns = atomic_load_explicit(&sock->sndtimeo_ns, memory_order_relaxed);

	if (nonblocking || timeout_ns == 0) {
		if (sock->stats != NULL)
			vma_stats_add(&sock->stats->tx_eagain, 1);
		if (until_ns != 0)
			udp_pace_schedule_readiness(sock);
		return -EAGAIN;
	}
	if (send_wait->deadline_ns == 0) {
		send_wait->deadline_ns = vma_inet_deadline(timeout_ns);
		send_wait->signals = self->signals;
		send_wait->interrupts = self->interrupts;
		if (sock->stats != NULL)
			vma_stats_add(&sock->stats->tx_waits, 1);
	}
	/* The socket may move to another ring meanwhile. It held this one when it was found, inside, so there is one.
	 * */
	atomic_fetch_add_explicit(&ring_ctx->refs, 1, memory_order_relaxed);
	send_wait->ring_ctx = ring_ctx;
	if (until_ns != 0)
		vma_inet_flush_sends(self);
	send_wait_outside(until_ns, send_wait);
	vma_ring_ctx_put(ring_ctx);
	if (self->signals != send_wait->signals &&
	    (timeout_ns != UINT64_MAX || self->interrupts != send_wait->interrupts))
		return -EINTR;
	return send_wait->deadline_ns != UINT64_MAX && vma_now_ns() >= send_wait->deadline_ns ? -EAGAIN : 0;
}

/* ---- the general way ---- */

static bool __attribute__((noinline))
send_key_of_mapped_ipv6(const struct udp_sock *sock, const struct msghdr *msg, uint64_t *key)
{
	union vma_name to;

	if (vma_name_copy_from_program_sockaddr(sock->file.family, msg->msg_name, msg->msg_namelen, &to) != 0 ||
	    to.any.sa_family != AF_INET)
		return false;
	*key = udp_peer_key(to.in.sin_addr.s_addr, to.in.sin_port);
	return to.in.sin_port != 0 && to.in.sin_addr.s_addr != 0;
}

/* The destination's key, 0: the connected peer; false: what the kernel has to judge. */
static bool send_destination_key(const struct udp_sock *sock, const struct msghdr *msg, uint64_t *key)
{
	struct sockaddr_in to;

	*key = 0;
	if (msg->msg_name == NULL)
		return atomic_load_explicit(&sock->connected, memory_order_relaxed);
	if (msg->msg_namelen < sizeof(to) || vma_memcpy_or_efault(&to, msg->msg_name, sizeof(to)) != 0)
		return false;
	if (__builtin_expect(to.sin_family != AF_INET, 0))
		return send_key_of_mapped_ipv6(sock, msg, key);
	*key = udp_peer_key(to.sin_addr.s_addr, to.sin_port);
	return to.sin_port != 0 && to.sin_addr.s_addr != 0;
}

/* Before the first send: the port that the kernel would choose, so that answers find us. And what fork left to do. */
static void __attribute__((cold, noinline)) udp_prepare_first_send(struct udp_sock *sock, int fd)
{
	struct sockaddr_in any = {.sin_family = AF_INET};
	struct vma_file *file = &sock->file;
	union vma_name name;
	socklen_t len;
	bool bound;

	if (atomic_load_explicit(&sock->inherited, memory_order_relaxed))
		udp_offload_inherited_socket(sock);
	pthread_mutex_lock(&file->lock);
	bound = sock->local.sin_port != 0;
	any.sin_addr = sock->local.sin_addr; /* stays, if it was bound to one and has lost its port */
	if (bound && atomic_load_explicit(&sock->tx, memory_order_relaxed) == NULL)
		udp_dst_rebuild_after_change(sock);
	pthread_mutex_unlock(&file->lock);
	/* It fails when somebody else was quicker, which is as good. */
	if (!bound && file->ops->bind != NULL) {
		len = vma_name_fill_from_sockaddr_in(file->family, &any, &name);
		file->ops->bind(file, fd, &name.any, len);
	}
}

static bool sock_is_ready_to_send_offloaded(const struct udp_sock *sock)
{
	const struct udp_tx_options *tx = atomic_load_explicit(&sock->tx, memory_order_acquire);

	return tx != NULL && tx->local.sin_port != 0;
}

/* Somebody on this host wants a copy, which only the kernel can give. */
static inline bool group_has_local_members(const struct udp_dst *dst)
{
	return dst->members_matter && udp_group_has_local_members(dst->to.sin_addr.s_addr, dst->ifindex);
}

/* A frame at its time, if this socket is paced here. -EAGAIN: no room now, or too early: *until_ns. */
static ssize_t send_at_pace(struct udp_sock *sock, const struct udp_dst *dst, const struct vma_inet_iov_iter *iov_iter,
                            uint64_t *until_ns)
{
	uint64_t taken_ns = 0;
	ssize_t sent;

	*until_ns = 0;
	if (udp_is_paced(sock) && !(vma_nic_info(vma_ring_nic(dst->ring_ctx->ring))->caps & VMA_NIC_CAP_PACING))
		*until_ns =
		        udp_pace_reserve_time_for_frame(sock, dst->headers_len + (uint32_t)iov_iter->left, &taken_ns);
	if (*until_ns != 0)
		return -EAGAIN;
	sent = udp_transmit(sock, dst, iov_iter->iov, iov_iter->n, iov_iter->left);
	if (sent < 0 && taken_ns != 0)
		udp_pace_undo_delay_of_unsent_frame(sock, taken_ns);
	return sent;
}

/* With a reference to the socket, which goes with a cancelled thread. -ENOTSUP: by the OS. */
static ssize_t send_offloaded(struct udp_sock *sock, const struct msghdr *msg, int flags,
                              const struct vma_inet_iov_iter *iov_iter, const struct udp_tx_cmsgs *cmsgs)
{
	bool nonblocking = flags & MSG_DONTWAIT || atomic_load_explicit(&sock->nonblocking, memory_order_relaxed);
	struct send_wait send_wait = {.sock = sock, .iov_memory = iov_iter->many};
	struct udp_dst own;
	uint64_t key, until_ns;

	if (!send_destination_key(sock, msg, &key))
		return -ENOTSUP;
	for (;;) {
		const struct udp_dst *dst =
		        cmsgs == NULL ? udp_dst_find(sock, key, &own) : udp_dst_find_with_cmsgs(sock, key, cmsgs, &own);
		ssize_t sent;

		if (dst == NULL || iov_iter->left > dst->max_payload || group_has_local_members(dst))
			return -ENOTSUP;
		if (dst->confirm)
			udp_dst_request_path_probe(sock, dst);
		sent = send_at_pace(sock, dst, iov_iter, &until_ns);
		if (sent != -EAGAIN)
			return sent;
		/* Its owner has gone, and until there is a new one nothing makes room. */
		if (vma_nic_qp_lost(vma_ring_qp(dst->ring_ctx->ring)))
			return -ENOTSUP;
		if (nonblocking && conf_drops_when_tx_is_full(&dst->engine->conf))
			return send_or_drop(sock, dst, iov_iter, until_ns != 0);
		sent = send_wait_for_space(sock, dst->ring_ctx, nonblocking, until_ns, &send_wait);
		if (sent != 0)
			return sent;
	}
}

/* Whether this very call is for the kernel. */
static bool send_must_use_kernel(const struct udp_sock *sock, int flags)
{
	return sock->file.os_only || flags & ~SERVED_FLAGS ||
	       atomic_load_explicit(&sock->unplain, memory_order_relaxed) & UDP_CORKED;
}

/*
 * An error waits in the shadow. The kernel tells it once, and so we: the flag is taken down. But the kernel looks first
 * for what is wrong with the call itself, and then the error is left for the next one.
 */
static ssize_t __attribute__((cold, noinline))
udp_send_by_kernel_to_report_error(struct udp_sock *sock, int fd, const struct msghdr *msg, int flags)
{
	ssize_t sent;

	atomic_store_explicit(&sock->os_error, false, memory_order_relaxed);
	sent = udp_send_by_kernel_socket(sock, fd, msg, flags);
	if (sent < 0)
		udp_note_error_waiting_in_shadow(sock, fd);
	return sent;
}

/* ---- dummies ---- */

/* The frame of a message, and not sent. -EINVAL: the message itself would go through the kernel. */
static ssize_t udp_build_frame_without_sending(struct udp_sock *sock, const struct udp_dst *dst,
                                               const struct vma_inet_iov_iter *iov_iter)
{
	struct vma_ring *ring = dst->ring_ctx->ring;
	struct vma_bufarena *arena = dst->engine->arena;
	struct vma_buf *buf = vma_ring_tx_buf(ring);
	struct vma_nic_seg seg = {.buf = buf};
	uint8_t *frame;
	int rc;

	if (buf == NULL)
		return -EAGAIN;
	frame = (uint8_t *)vma_buf_data(arena, buf);
	rc = udp_gather_iov(frame + dst->headers_len, iov_iter->iov, iov_iter->n);
	if (rc == 0) {
		seg.off = buf->data_off;
		seg.len = udp_frame_write_headers(dst, frame, (uint32_t)iov_iter->left, 0, &seg.flags);
		vma_ring_send_dummy(ring, &seg);
		if (sock->stats != NULL)
			vma_stats_add(&sock->stats->tx_dummies, 1);
	}
	vma_buf_put(arena, buf);
	return rc == 0 ? (ssize_t)iov_iter->left : rc;
}

static ssize_t __attribute__((cold, noinline))
udp_prepare_message_without_sending(struct udp_sock *sock, int fd, const struct msghdr *msg, int flags)
{
	struct vma_inet_iov_iter iov_iter;
	const struct udp_dst *dst;
	struct udp_dst own;
	ssize_t rc;
	uint64_t key;

	flags &= ~VMA_SND_FLAGS_DUMMY;
	if (!sock->file.os_only && !udp_offload_is_deferred(sock) && !sock_is_ready_to_send_offloaded(sock))
		udp_prepare_first_send(sock, fd);
	if (send_must_use_kernel(sock, flags) || udp_offload_is_deferred(sock) ||
	    (msg->msg_control != NULL && msg->msg_controllen != 0) || !send_destination_key(sock, msg, &key))
		return -EINVAL;
	rc = vma_inet_iov_iter_init_from_msghdr(&iov_iter, msg);
	if (rc == 0) {
		dst = udp_dst_find(sock, key, &own);
		rc = dst != NULL && dst->ring_ctx != NULL && iov_iter.left <= dst->max_payload &&
		                     !group_has_local_members(dst)
		             ? udp_build_frame_without_sending(sock, dst, &iov_iter)
		             : -EINVAL;
	}
	vma_inet_iov_iter_release(&iov_iter);
	return rc;
}

void udp_warm_up_send_path_if_connected(struct udp_sock *sock, int fd)
{
	const struct msghdr msg = {0};

	if (atomic_load_explicit(&sock->connected, memory_order_relaxed))
		udp_prepare_message_without_sending(sock, fd, &msg, VMA_SND_FLAGS_DUMMY);
}

static ssize_t __attribute__((noinline))
udp_send_slow_path(struct udp_sock *sock, int fd, const struct msghdr *msg, int flags)
{
	const bool has_cmsgs = msg->msg_control != NULL && msg->msg_controllen != 0;
	struct udp_tx_cmsgs cmsgs;
	struct vma_inet_iov_iter iov_iter;
	ssize_t sent;

	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes(sock);
	if (flags & VMA_SND_FLAGS_DUMMY)
		return udp_prepare_message_without_sending(sock, fd, msg, flags);
	if (__builtin_expect(atomic_load_explicit(&sock->sends_remaining, memory_order_relaxed) != 0, 0) &&
	    !sock->file.os_only) {
		udp_watch_errors(sock, fd);
		if (udp_deferred_count_send_and_may_offload(sock, fd))
			return udp_send_by_kernel_socket(sock, fd, msg, flags);
	}
	if (!sock->file.os_only && !sock_is_ready_to_send_offloaded(sock))
		udp_prepare_first_send(sock, fd);
	if (send_must_use_kernel(sock, flags))
		return udp_send_by_kernel_socket(sock, fd, msg, flags);
	if (atomic_load_explicit(&sock->os_error, memory_order_relaxed))
		return udp_send_by_kernel_to_report_error(sock, fd, msg, flags);
	if (has_cmsgs && !udp_tx_cmsgs_read(&cmsgs, sock->file.family, msg))
		return udp_send_by_kernel_socket(sock, fd, msg, flags);
	sent = vma_inet_iov_iter_init_from_msghdr(&iov_iter, msg);
	if (sent == 0) {
		vma_file_get(&sock->file);
		sent = send_offloaded(sock, msg, flags, &iov_iter, has_cmsgs ? &cmsgs : NULL);
		vma_file_put(&sock->file);
	} else if (sent == -EFAULT || sent == -EINVAL) {
		sent = -ENOTSUP; /* which of several errors comes first, the kernel knows */
	}
	vma_inet_iov_iter_release(&iov_iter);
	return sent == -ENOTSUP ? udp_send_by_kernel_socket(sock, fd, msg, flags) : sent;
}

/* ---- the plain way ---- */

/* One piece, no control message, nothing pending. `heeded`: of enum udp_send_slow_reasons, what has been looked at. */
static inline bool send_can_use_fast_path(const struct udp_sock *sock, const struct msghdr *msg, int flags,
                                          unsigned heeded)
{
	return !((flags & ~SERVED_FLAGS) | sock->file.os_only | (msg->msg_control != NULL) | (msg->msg_iovlen != 1) |
	         (atomic_load_explicit(&sock->unplain, memory_order_relaxed) & ~heeded) |
	         atomic_load_explicit(&sock->sends_remaining, memory_order_relaxed) |
	         atomic_load_explicit(&sock->os_error, memory_order_relaxed));
}

/* The same of a socket that other processes have, too: it goes the plain way once it is as they have left it. */
static bool __attribute__((noinline))
send_can_use_fast_path_after_sync(struct udp_sock *sock, const struct msghdr *msg, int flags)
{
	if (!(atomic_load_explicit(&sock->unplain, memory_order_relaxed) & UDP_SHARED))
		return false;
	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes(sock);
	return send_can_use_fast_path(sock, msg, flags, UDP_SHARED);
}

static inline const struct udp_dst *dst_cached(const struct udp_sock *sock, const struct msghdr *msg)
{
	const struct udp_dst *dst;
	uint64_t key;

	if (msg->msg_name == NULL) {
		dst = atomic_load_explicit(&sock->dst, memory_order_acquire);
	} else {
		if (!send_destination_key(sock, msg, &key))
			return NULL;
		dst = atomic_load_explicit(&sock->dst_more[udp_dst_cache_slot_of_key(key)], memory_order_acquire);
		if (dst != NULL && !udp_dst_is_for_address_key(dst, key))
			return NULL;
	}
	if (dst == NULL || dst->ring_ctx == NULL || dst->confirm || !udp_dst_is_current(sock, dst) ||
	    group_has_local_members(dst))
		return NULL;
	return dst;
}

ssize_t udp_sendmsg(struct vma_file *file, int fd, const struct msghdr *msg, int flags)
{
	struct udp_sock *sock = udp_sock(file);
	const struct udp_dst *dst;
	struct iovec iov;
	ssize_t sent;

	if (__builtin_expect(!send_can_use_fast_path(sock, msg, flags, 0), 0) &&
	    !send_can_use_fast_path_after_sync(sock, msg, flags))
		return udp_send_slow_path(sock, fd, msg, flags);
	dst = dst_cached(sock, msg);
	if (__builtin_expect(dst == NULL, 0))
		return udp_send_slow_path(sock, fd, msg, flags);
	if (vma_inet_iov_is_library_memory(msg))
		iov = *msg->msg_iov;
	else if (vma_memcpy_or_efault(&iov, msg->msg_iov, sizeof(iov)) != 0)
		return -EFAULT;
	if (__builtin_expect(iov.iov_len > dst->max_payload, 0))
		return udp_send_slow_path(sock, fd, msg, flags);
	sent = udp_transmit(sock, dst, &iov, 1, iov.iov_len);
	return __builtin_expect(sent != -EAGAIN, 1) ? sent : udp_send_slow_path(sock, fd, msg, flags);
}
