/*
 * tap - packets are copied on their way between a backend and its user.
 *
 * A queue pair's `ops` is the backend's table or the tap's, which differs in poll_rx and tx. Either is right at any
 * moment. So it is changed under the lock, but not under the queue pair's halves. A call that has read the old table
 * goes on with it. Tables are constant once they are seen, and there is one for each backend.
 *
 * A queue pair is in the list from create to destroy. Both take the lock, so its holder may change `ops` of all.
 *
 * A packet in pieces is put when its last piece has come, so that its length is known. The pieces of an earlier burst
 * are kept in the queue pair's `tap_partial_packet`, as its user may give the buffers back meanwhile.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vma/capture.h>
#include <vma/log.h>
#include <vma/nic_tap.h>

#include "tap.h"

enum { TAP_TABLES = 4, TAP_PIECES = 64 };

/* The pieces of a packet of which the last is yet to come. */
struct tap_partial_packet {
	uint64_t session; /* that they were seen in */
	bool is_open;     /* there are some */
	struct vma_capture_info info;
	uint32_t kept;
	uint8_t bytes[VMA_CAPTURE_DATA_MAX];
};

struct vma_capture *_Atomic vma_nic_tap_capture;

static pthread_mutex_t tap_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vma_nic_qp *tap_list;
static _Atomic uint64_t tap_session_count; /* how often taps were put on while none were */
static struct tap_table {
	const struct vma_nic_ops *of; /* NULL: free */
	struct vma_nic_ops ops;
} tap_tables[TAP_TABLES];

/* ---- with the lock ---- */

static void tap_stop_capture_on_all_queue_pairs(void)
{
	atomic_store_explicit(&vma_nic_tap_capture, NULL, memory_order_relaxed);
	for (struct vma_nic_qp *qp = tap_list; qp != NULL; qp = qp->next_of_all)
		atomic_store_explicit(&qp->ops, qp->backend_ops, memory_order_release);
}

/* The capture, if it is still wanted; else all taps come off. */
static struct vma_capture *tap_current_capture(void)
{
	struct vma_capture *capture = atomic_load_explicit(&vma_nic_tap_capture, memory_order_acquire);

	if (capture == NULL || vma_capture_wanted(capture))
		return capture;
	if (pthread_mutex_trylock(&tap_lock) == 0) {
		if (!vma_capture_wanted(capture)) /* it may have been asked for again meanwhile */
			tap_stop_capture_on_all_queue_pairs();
		pthread_mutex_unlock(&tap_lock);
	}
	return NULL;
}

/* ---- data path ---- */

static uint64_t tap_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct vma_capture_info tap_fill_capture_info(const struct vma_nic_qp *qp, const struct vma_buf *buf,
                                                     uint8_t kind)
{
	struct vma_capture_info info = {.id = vma_buf_index(qp->arena, buf), .kind = kind, .time_ns = tap_now_ns()};

	memccpy(info.text, qp->nic->info.name, '\0', sizeof(info.text) - 1);
	return info;
}

static void tap_keep_partial_packet(struct tap_partial_packet *part, const struct vma_capture_info *info,
                                    const struct iovec *pieces, unsigned n)
{
	if (!part->is_open)
		part->kept = 0;
	for (unsigned i = part->is_open; i < n; i++) { /* the first of an open part are the bytes that it has */
		const size_t room = sizeof(part->bytes) - part->kept;
		const size_t len = pieces[i].iov_len < room ? pieces[i].iov_len : room;

		memcpy(part->bytes + part->kept, pieces[i].iov_base, len);
		part->kept += (uint32_t)len;
	}
	part->info = *info;
	part->is_open = true;
}

/* One packet, or as much of it as there is: how many buffers. */
static unsigned tap_write_packet_to_capture(struct vma_capture *capture, const struct vma_nic_qp *qp,
                                            struct vma_buf *const *bufs, unsigned n)
{
	struct tap_partial_packet *part = qp->tap_partial_packet;
	struct vma_capture_info info = tap_fill_capture_info(qp, bufs[0], VMA_CAPTURE_IN);
	struct iovec pieces[1 + TAP_PIECES];
	unsigned k = 0, i = 0;
	bool goes_on = true;

	if (qp->nic->info.caps & VMA_NIC_CAP_MEMORY_LINK)
		info.flags = VMA_CAPTURE_CSUM_OPEN;
	if (part->is_open) {
		info = part->info;
		pieces[k++] = (struct iovec){part->bytes, part->kept};
	}
	for (; goes_on && i < n && i < TAP_PIECES; i++) {
		pieces[k++] = (struct iovec){vma_buf_data(qp->arena, bufs[i]), bufs[i]->len};
		info.len += bufs[i]->len;
		goes_on = bufs[i]->flags & VMA_BUF_RX_MORE;
	}
	if (goes_on) {
		tap_keep_partial_packet(part, &info, pieces, k);
	} else {
		vma_capture_write_packet(capture, &info, pieces, k);
		part->is_open = false;
	}
	return i;
}

/* Buffers that the backend has just handed over. */
static unsigned tap_poll_rx_and_capture(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	const unsigned got = qp->backend_ops->poll_rx(qp, bufs, n);
	struct vma_capture *capture = got != 0 ? tap_current_capture() : NULL;
	const uint64_t session = atomic_load_explicit(&tap_session_count, memory_order_relaxed);

	if (capture == NULL)
		return got;
	if (qp->tap_partial_packet->session != session) { /* packets have passed unseen */
		qp->tap_partial_packet->session = session;
		qp->tap_partial_packet->is_open = false;
	}
	for (unsigned i = 0; i < got;)
		i += tap_write_packet_to_capture(capture, qp, bufs + i, got - i);
	return got;
}

static void tap_capture_sent(struct vma_capture *capture, const struct vma_nic_qp *qp, const struct vma_nic_seg *segs,
                             unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct vma_capture_info info = tap_fill_capture_info(qp, segs[i].buf, VMA_CAPTURE_OUT);
		struct iovec pieces[TAP_PIECES];
		unsigned k = 0;

		if (segs[i].flags & VMA_NIC_SEG_CSUM)
			info.flags = VMA_CAPTURE_CSUM_OPEN;
		for (;; i++) {
			if (k < TAP_PIECES) /* of more only the length is told */
				pieces[k++] = (struct iovec){vma_buf_frame(qp->arena, segs[i].buf) + segs[i].off,
				                             segs[i].len};
			info.len += segs[i].len;
			if (!(segs[i].flags & VMA_NIC_SEG_MORE) || i + 1 == n)
				break;
		}
		vma_capture_write_packet(capture, &info, pieces, k);
	}
}

/* A backend may give a buffer back at once, so each is held until it has been copied. Only what was taken is. */
static unsigned tap_send_and_capture(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n)
{
	struct vma_capture *capture = tap_current_capture();
	unsigned taken;

	if (capture == NULL)
		return qp->backend_ops->tx(qp, segs, n);
	for (unsigned i = 0; i < n; i++)
		vma_buf_ref(segs[i].buf);
	taken = qp->backend_ops->tx(qp, segs, n);
	tap_capture_sent(capture, qp, segs, taken);
	for (unsigned i = 0; i < n; i++)
		vma_buf_put(qp->arena, segs[i].buf);
	return taken;
}

void vma_nic_tap_note_drop(const struct vma_nic_qp *qp, const struct vma_buf *packet, const char *reason)
{
	struct vma_capture *capture = tap_current_capture();
	struct vma_capture_info info = tap_fill_capture_info(qp, packet, VMA_CAPTURE_DROP);

	snprintf(info.text, sizeof(info.text), "%s", reason);
	if (capture != NULL)
		vma_capture_write_packet(capture, &info, NULL, 0);
}

void vma_nic_tap_note_copy(const struct vma_nic_qp *qp, const struct vma_buf *packet, const struct vma_buf *copy)
{
	struct vma_capture *capture = tap_current_capture();
	struct vma_capture_info info = tap_fill_capture_info(qp, packet, VMA_CAPTURE_MOVED);

	info.len = vma_buf_index(qp->arena, copy);
	if (capture != NULL)
		vma_capture_write_packet(capture, &info, NULL, 0);
}

/* ---- control path ---- */

/* NULL: there are more backends than tables. */
static const struct vma_nic_ops *tap_get_or_create_capture_ops(const struct vma_nic_ops *ops)
{
	struct tap_table *table = tap_tables;

	while (table < tap_tables + TAP_TABLES && table->of != NULL && table->of != ops)
		table++;
	if (table == tap_tables + TAP_TABLES)
		return NULL;
	if (table->of == NULL) {
		table->ops = *ops;
		table->ops.poll_rx = tap_poll_rx_and_capture;
		table->ops.tx = tap_send_and_capture;
		table->of = ops;
	}
	return &table->ops;
}

static void tap_start_capture_on_queue_pair(struct vma_nic_qp *qp)
{
	const struct vma_nic_ops *table = tap_get_or_create_capture_ops(qp->backend_ops);

	if (qp->tap_partial_packet == NULL)
		qp->tap_partial_packet = calloc(1, sizeof(*qp->tap_partial_packet));
	if (table != NULL && qp->tap_partial_packet != NULL)
		atomic_store_explicit(&qp->ops, table, memory_order_release);
	else
		vma_log_warn("%s: packets cannot be captured: no memory", qp->nic->info.name);
}

void nic_tap_register_queue_pair(struct vma_nic_qp *qp)
{
	pthread_mutex_lock(&tap_lock);
	qp->backend_ops = qp->ops;
	qp->next_of_all = tap_list;
	tap_list = qp;
	if (atomic_load_explicit(&vma_nic_tap_capture, memory_order_relaxed) != NULL)
		tap_start_capture_on_queue_pair(qp);
	pthread_mutex_unlock(&tap_lock);
}

void nic_tap_unregister_queue_pair(struct vma_nic_qp *qp)
{
	struct vma_nic_qp **place = &tap_list;

	pthread_mutex_lock(&tap_lock);
	while (*place != NULL && *place != qp)
		place = &(*place)->next_of_all;
	if (*place != NULL)
		*place = qp->next_of_all;
	pthread_mutex_unlock(&tap_lock);
	free(qp->tap_partial_packet);
	qp->tap_partial_packet = NULL;
}

void vma_nic_tap_start_capture(struct vma_capture *capture)
{
	pthread_mutex_lock(&tap_lock);
	if (atomic_load_explicit(&vma_nic_tap_capture, memory_order_relaxed) == NULL)
		atomic_fetch_add_explicit(&tap_session_count, 1, memory_order_relaxed);
	atomic_store_explicit(&vma_nic_tap_capture, capture, memory_order_release);
	for (struct vma_nic_qp *qp = tap_list; qp != NULL; qp = qp->next_of_all)
		tap_start_capture_on_queue_pair(qp);
	pthread_mutex_unlock(&tap_lock);
}

/* Another thread of the parent may have had the lock, and have been in the middle of the list: all of it is abandoned.
 * */
void vma_nic_tap_stop_in_child(void)
{
	pthread_mutex_init(&tap_lock, NULL);
	atomic_store_explicit(&vma_nic_tap_capture, NULL, memory_order_relaxed);
	tap_list = NULL;
}
