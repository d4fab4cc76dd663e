/*
 * tap - packets are copied on their way between a backend and its user.
 *
 * A queue pair's `ops` is the backend's table or the tap's, which differs in poll_rx and tx. Either is right at any
 * moment: so it is changed under the lock, but not under the queue pair's halves, and a call that has read the old table
 * goes on with it. Tables are constant once they are seen, and there is one for each backend.
 *
 * A queue pair is in the list from create to destroy. Both take the lock, so whoever has it may change `ops` of all.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <vma/capture.h>
#include <vma/nic_tap.h>

#include "tap.h"

enum { TAP_TABLES = 4, TAP_PIECES = 32 };

struct vma_capture *_Atomic vma_nic_tapped;

static pthread_mutex_t tap_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vma_nic_qp *tap_list;
static struct tap_table {
	const struct vma_nic_ops *of; /* NULL: free */
	struct vma_nic_ops ops;
} tap_tables[TAP_TABLES];

/* ---- with the lock ---- */

static void untap_all(void)
{
	atomic_store_explicit(&vma_nic_tapped, NULL, memory_order_relaxed);
	for (struct vma_nic_qp *qp = tap_list; qp != NULL; qp = qp->next_of_all)
		atomic_store_explicit(&qp->ops, qp->backend_ops, memory_order_release);
}

/* The capture, if it is still wanted; else all taps come off. */
static struct vma_capture *tap_capture(void)
{
	struct vma_capture *capture = atomic_load_explicit(&vma_nic_tapped, memory_order_acquire);

	if (capture == NULL || vma_capture_wanted(capture))
		return capture;
	if (pthread_mutex_trylock(&tap_lock) == 0) {
		if (!vma_capture_wanted(capture)) /* it may have been asked for again meanwhile */
			untap_all();
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

static struct vma_capture_info tap_info(const struct vma_nic_qp *qp, const struct vma_buf *buf, uint8_t kind)
{
	struct vma_capture_info info = {.id = vma_buf_index(qp->arena, buf), .kind = kind, .time_ns = tap_now_ns()};

	snprintf(info.text, sizeof(info.text), "%.*s", VMA_CAPTURE_TEXT_MAX - 1, qp->nic->info.name);
	return info;
}

/* Buffers that the backend has just handed over. A packet in pieces of which the last is yet to come is cut there: the
 * others are no packet. */
static unsigned tap_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	const unsigned got = qp->backend_ops->poll_rx(qp, bufs, n);
	struct vma_capture *capture = got != 0 ? tap_capture() : NULL;

	for (unsigned i = 0; capture != NULL && i < got; i++) {
		struct vma_capture_info info = tap_info(qp, bufs[i], VMA_CAPTURE_IN);
		struct iovec pieces[TAP_PIECES];
		unsigned k = 0;

		if (qp->tap_in_packet) {
			qp->tap_in_packet = bufs[i]->flags & VMA_BUF_RX_MORE;
			continue;
		}
		if (qp->nic->info.caps & VMA_NIC_CAP_MEMORY_LINK)
			info.flags = VMA_CAPTURE_CSUM_OPEN;
		for (;; i++) {
			pieces[k++] = (struct iovec){vma_buf_data(qp->arena, bufs[i]), bufs[i]->len};
			info.len += bufs[i]->len;
			qp->tap_in_packet = bufs[i]->flags & VMA_BUF_RX_MORE;
			if (!qp->tap_in_packet || i + 1 == got || k == TAP_PIECES)
				break;
		}
		vma_capture_put(capture, &info, pieces, k);
	}
	return got;
}

static void tap_sent(struct vma_capture *capture, const struct vma_nic_qp *qp, const struct vma_nic_seg *segs,
                     unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct vma_capture_info info = tap_info(qp, segs[i].buf, VMA_CAPTURE_OUT);
		struct iovec pieces[TAP_PIECES];
		unsigned k = 0;

		if (segs[i].flags & VMA_NIC_SEG_CSUM)
			info.flags = VMA_CAPTURE_CSUM_OPEN;
		for (;; i++) {
			pieces[k++] = (struct iovec){vma_buf_frame(qp->arena, segs[i].buf) + segs[i].off, segs[i].len};
			info.len += segs[i].len;
			if (!(segs[i].flags & VMA_NIC_SEG_MORE) || i + 1 == n || k == TAP_PIECES)
				break;
		}
		vma_capture_put(capture, &info, pieces, k);
	}
}

/* A backend may give a buffer back at once, so each is held until it has been copied. Only what was taken is. */
static unsigned tap_tx(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n)
{
	struct vma_capture *capture = tap_capture();
	unsigned taken;

	if (capture == NULL)
		return qp->backend_ops->tx(qp, segs, n);
	for (unsigned i = 0; i < n; i++)
		vma_buf_ref(segs[i].buf);
	taken = qp->backend_ops->tx(qp, segs, n);
	tap_sent(capture, qp, segs, taken);
	for (unsigned i = 0; i < n; i++)
		vma_buf_put(qp->arena, segs[i].buf);
	return taken;
}

void vma_nic_tap_note_drop(const struct vma_nic_qp *qp, const struct vma_buf *packet, const char *reason)
{
	struct vma_capture *capture = tap_capture();
	struct vma_capture_info info = tap_info(qp, packet, VMA_CAPTURE_DROP);

	snprintf(info.text, sizeof(info.text), "%s", reason);
	if (capture != NULL)
		vma_capture_put(capture, &info, NULL, 0);
}

/* ---- control path ---- */

/* NULL: there are more backends than tables. */
static const struct vma_nic_ops *tap_table_of(const struct vma_nic_ops *ops)
{
	struct tap_table *table = tap_tables;

	while (table < tap_tables + TAP_TABLES && table->of != NULL && table->of != ops)
		table++;
	if (table == tap_tables + TAP_TABLES)
		return NULL;
	if (table->of == NULL) {
		table->ops = *ops;
		table->ops.poll_rx = tap_poll_rx;
		table->ops.tx = tap_tx;
		table->of = ops;
	}
	return &table->ops;
}

static void tap_qp(struct vma_nic_qp *qp)
{
	const struct vma_nic_ops *table = tap_table_of(qp->backend_ops);

	if (table != NULL)
		atomic_store_explicit(&qp->ops, table, memory_order_release);
}

void nic_tap_add(struct vma_nic_qp *qp)
{
	pthread_mutex_lock(&tap_lock);
	qp->backend_ops = qp->ops;
	qp->next_of_all = tap_list;
	tap_list = qp;
	if (atomic_load_explicit(&vma_nic_tapped, memory_order_relaxed) != NULL)
		tap_qp(qp);
	pthread_mutex_unlock(&tap_lock);
}

void nic_tap_remove(struct vma_nic_qp *qp)
{
	struct vma_nic_qp **place = &tap_list;

	pthread_mutex_lock(&tap_lock);
	while (*place != NULL && *place != qp)
		place = &(*place)->next_of_all;
	if (*place != NULL)
		*place = qp->next_of_all;
	pthread_mutex_unlock(&tap_lock);
}

void vma_nic_tap(struct vma_capture *capture)
{
	pthread_mutex_lock(&tap_lock);
	atomic_store_explicit(&vma_nic_tapped, capture, memory_order_release);
	for (struct vma_nic_qp *qp = tap_list; qp != NULL; qp = qp->next_of_all)
		tap_qp(qp);
	pthread_mutex_unlock(&tap_lock);
}

/* Another thread of the parent may have had the lock, and have been in the middle of the list: all of it is abandoned. */
void vma_nic_tap_forked(void)
{
	pthread_mutex_init(&tap_lock, NULL);
	atomic_store_explicit(&vma_nic_tapped, NULL, memory_order_relaxed);
	tap_list = NULL;
}
