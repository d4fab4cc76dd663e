/*
 * callback.c - receive callbacks. Packets wait in a queue of their own. A thread of the program, on its way out of the
 * library, asks the application for its verdict on each.
 *
 * A packet is held before the application sees it (vma_held_packet_add). So its identifier is valid in the callback
 * already, and another thread may free it before the callback has returned. A verdict other than HOLD takes it back; if
 * it was freed meanwhile, there is nothing to take.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "extra.h"
#include "xtreme.h"

#define NSEC 1000000000

static struct udp_extra_api_state *extra_state_of_callback_source(struct vma_callback_source *source)
{
	return (struct udp_extra_api_state *)((char *)source - offsetof(struct udp_extra_api_state, source));
}

/* ---- the sink's side ---- */

int udp_attachment_make_undecided_queue(struct udp_attachment *at)
{
	struct udp_queue *queue;
	int rc;

	if (atomic_load_explicit(&at->undecided, memory_order_relaxed) != NULL)
		return 0;
	queue = vma_alloc(sizeof(*queue));
	if (queue == NULL)
		return -ENOMEM;
	rc = udp_queue_init(queue);
	if (rc != 0)
		vma_free(queue);
	else
		atomic_store_explicit(&at->undecided, queue, memory_order_release);
	return rc;
}

int udp_redirect_new_attachment_to_callback(const struct udp_sock *sock, struct udp_attachment *at)
{
	const struct udp_extra_api_state *extra = atomic_load_explicit(&sock->extra, memory_order_acquire);

	return extra != NULL && atomic_load_explicit(&extra->detour, memory_order_relaxed)
	               ? udp_attachment_make_undecided_queue(at)
	               : 0;
}

bool udp_queue_datagram_for_callback(struct udp_attachment *at, const struct udp_datagram *datagram)
{
	struct udp_sock *sock = at->sock;
	struct udp_extra_api_state *extra = atomic_load_explicit(&sock->extra, memory_order_acquire);
	struct udp_queue *undecided = atomic_load_explicit(&at->undecided, memory_order_acquire);

	if (!udp_queue_push(undecided, datagram, atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed)))
		return false;
	vma_callback_post(&extra->source);
	return true;
}

/* ---- verdicts ---- */

/* A packet between its queue and its verdict, in the frame of the thread that asks. */
struct asking {
	struct udp_extra_api_state *extra;
	struct udp_attachment *at; /* it came by; never looked into, since it may have gone */
	struct udp_datagram datagram;
	uint64_t id;
	int fd;
	unsigned n;
	struct vma_recv_callback callback;
	struct vma_fragment fragments[UDP_FRAGMENTS_MAX];
	struct iovec iov[UDP_FRAGMENTS_MAX];
};

static void recv_callback_drop_packet(struct asking *asking)
{
	struct vma_stats_socket *stats = asking->extra->sock->stats;

	if (stats != NULL) {
		vma_stats_add(&stats->rx_dropped, 1);
		vma_stats_add(&stats->rx_dropped_bytes, asking->datagram.len);
	}
	vma_buf_put_chain(vma_engine_get_or_start()->arena, asking->datagram.packet);
}

/* The queue that it would have come to without a callback; if that has ended, another one of the socket. */
static struct udp_attachment *attachment_or_replacement(const struct udp_sock *sock, const struct udp_attachment *at)
{
	struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);

	for (uint32_t i = 0; all != NULL && i < all->n; i++) {
		if (all->at[i] == at)
			return all->at[i];
	}
	return all != NULL && all->n != 0 ? all->at[all->n - 1] : NULL;
}

static void recv_callback_queue_packet(struct asking *asking)
{
	struct udp_sock *sock = asking->extra->sock;
	struct udp_attachment *at = attachment_or_replacement(sock, asking->at);

	if (at == NULL || vma_file_is_closed(&sock->file) ||
	    !udp_queue_push(&at->queue, &asking->datagram, atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed))) {
		recv_callback_drop_packet(asking);
		return;
	}
	if (sock->stats != NULL) {
		vma_stats_add(&sock->stats->rx_queued, 1);
		vma_stats_add(&sock->stats->rx_queued_bytes, asking->datagram.len);
	}
	udp_xtreme_post_event(at);
	vma_file_wake_sleepers_and_watchers(&sock->file, VMA_FILE_READABLE);
}

/* Inside. */
static void recv_callback_apply_verdict(struct asking *asking, vma_recv_callback_retval_t verdict)
{
	if (verdict == VMA_PACKET_HOLD)
		return;
	if (!vma_held_packet_undo_add(&asking->extra->holder, asking->id))
		return;
	if (verdict == VMA_PACKET_RECV)
		recv_callback_queue_packet(asking);
	else
		vma_buf_put_chain(vma_engine_get_or_start()->arena, asking->datagram.packet);
}

/* ---- asking ---- */

/* The next packet without a verdict. What has moved to another ring comes first, as for receivers. */
static bool recv_callback_pop_undecided_packet(struct asking *asking)
{
	struct udp_attachments *all = atomic_load_explicit(&asking->extra->sock->attachments, memory_order_acquire);

	for (uint32_t i = 0; all != NULL && i < all->n; i++) {
		struct udp_queue *undecided = atomic_load_explicit(&all->at[i]->undecided, memory_order_acquire);
		const struct udp_datagram *front = undecided != NULL ? udp_queue_front(undecided) : NULL;

		if (front == NULL)
			continue;
		asking->datagram = *front;
		asking->at = all->at[i];
		udp_queue_pop(undecided);
		return true;
	}
	return false;
}

static void recv_callback_count_queued(const struct udp_sock *sock, struct vma_info_t *info)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);

	for (uint32_t i = 0; all != NULL && i < all->n; i++) {
		const struct udp_queue *queue = &all->at[i]->queue;
		const uint64_t popped = atomic_load_explicit(&queue->popped, memory_order_relaxed);
		const uint64_t popped_bytes = atomic_load_explicit(&queue->popped_bytes, memory_order_relaxed);

		/* popped first: it is never beyond what has been pushed */
		info->socket_ready_queue_pkt_count +=
		        (uint32_t)(atomic_load_explicit(&queue->pushed, memory_order_relaxed) - popped);
		info->socket_ready_queue_byte_count +=
		        (uint32_t)(atomic_load_explicit(&queue->pushed_bytes, memory_order_relaxed) - popped_bytes);
	}
}

static struct timespec timespec_of_ns(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / NSEC), .tv_nsec = (long)(ns % NSEC)};
}

static void recv_callback_fill_info(const struct asking *asking, struct vma_info_t *info, struct sockaddr_in names[2])
{
	const struct udp_datagram *datagram = &asking->datagram;
	const struct vma_buf *packet = datagram->packet;

	names[0] = (struct sockaddr_in){
	        .sin_family = AF_INET, .sin_port = datagram->src_port_be, .sin_addr.s_addr = datagram->src};
	names[1] = (struct sockaddr_in){
	        .sin_family = AF_INET, .sin_port = datagram->dst_port_be, .sin_addr.s_addr = datagram->dst};
	*info = (struct vma_info_t){
	        .struct_sz = sizeof(*info),
	        .packet_id = (void *)(uintptr_t)asking->id,
	        .src = &names[0],
	        .dst = &names[1],
	        .payload_sz = datagram->len,
	        .sw_timestamp = timespec_of_ns(datagram->arrival_ns),
	};
	if (packet->flags & VMA_BUF_RX_HW_TIMESTAMP)
		info->hw_timestamp = timespec_of_ns(packet->timestamp_ns);
	recv_callback_count_queued(asking->extra->sock, info);
}

/* Inside. False: the socket holds as much as it may, and the packet is over. */
static bool recv_callback_hold_packet(struct asking *asking)
{
	struct udp_sock *sock = asking->extra->sock;

	asking->fd = atomic_load_explicit(&sock->file.fd, memory_order_relaxed);
	asking->n = udp_fragments_of(&asking->datagram, asking->fragments);
	if (asking->n != 0 &&
	    vma_held_packet_add(&asking->extra->holder, asking->fd, asking->fragments, asking->n,
	                        udp_datagram_rcvbuf_charge(&asking->datagram),
	                        atomic_load_explicit(&sock->rcvbuf, memory_order_relaxed), 0, &asking->id) == 0)
		return true;
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->rx_hold_refused, 1);
	recv_callback_drop_packet(asking);
	return false;
}

/* The application's thread ends in its callback, by pthread_exit or cancelled. */
static void recv_callback_on_thread_end(void *arg)
{
	struct vma_thread *self = vma_enter();

	recv_callback_apply_verdict(arg, VMA_PACKET_DROP);
	vma_leave(self);
}

/* Outside. */
static void recv_callback_call(struct asking *asking, struct vma_info_t *info)
{
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	vma_recv_callback_retval_t verdict;
	struct vma_thread *self;

	for (unsigned i = 0; i < asking->n; i++)
		asking->iov[i] = (struct iovec){.iov_base = vma_buf_data(arena, asking->fragments[i].buf) +
		                                            asking->fragments[i].off,
		                                .iov_len = asking->fragments[i].len};
	pthread_cleanup_push(recv_callback_on_thread_end, asking);
	verdict = asking->callback.function(asking->fd, asking->n, asking->iov, info, asking->callback.context);
	pthread_cleanup_pop(0);
	self = vma_enter();
	recv_callback_apply_verdict(asking, verdict);
	vma_leave(self);
}

/* Inside. Whether there is a callback to ask; if not, the packet has got its verdict. */
static bool recv_callback_prepare_call(struct asking *asking)
{
	struct udp_sock *sock = asking->extra->sock;
	const struct udp_callback *callback = atomic_load_explicit(&asking->extra->callback, memory_order_acquire);

	if (callback == NULL) {
		recv_callback_queue_packet(asking);
		return false;
	}
	asking->callback = callback->now;
	if (!recv_callback_hold_packet(asking))
		return false;
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->rx_callbacks, 1);
	return true;
}

bool udp_run_recv_callbacks(struct vma_callback_source *source)
{
	struct asking asking;

	asking.extra = extra_state_of_callback_source(source);
	for (unsigned n = 0; n < VMA_CALLBACK_TURN; n++) {
		struct vma_thread *self = vma_enter();
		struct sockaddr_in names[2];
		struct vma_info_t info;
		bool asks;

		if (!recv_callback_pop_undecided_packet(&asking)) {
			vma_leave(self);
			return false;
		}
		asks = recv_callback_prepare_call(&asking);
		if (asks)
			recv_callback_fill_info(&asking, &info, names);
		vma_leave(self);
		if (asks)
			recv_callback_call(&asking, &info);
	}
	return true;
}
