/*
 * cq_refill.c - the debt to the receive queue, spare buffers to pay it with, and the way out if the user holds too many
 * frames.
 */
#include <string.h>

#include <vma/nic_tap.h>

#include "cq_refill.h"

void cq_refill_init(struct vma_cq *cq)
{
	cq->spare_count = 0;
	vma_cq_refill(cq);
}

void cq_refill_fini(struct vma_cq *cq)
{
	vma_buf_put_burst(cq->arena, cq->spare, cq->spare_count);
	cq->spare_count = 0;
}

/*
 * The pool is the queue pair's of now. A rebind that fails may have ended those of before, and another queue pair's may
 * have their places. It cannot change here: a rebind holds the receive half as well.
 *
 * Where the owner keeps the first fill, only what was polled is ours to post, and a spare kept back is a frame that
 * all processes of the device queue miss; elsewhere spares are fetched ahead of the debt.
 *
 * For a debt that hurts nobody (cq_update_needs_refill) other threads' caches are let alone: several that sleep in turn
 * keep a buffer or two each, and to take these back would be a system call, and an interruption of the core that sends,
 * before each sleep.
 */
static void cq_fetch_spare_bufs(struct vma_cq *cq)
{
	uint32_t want = cq->qp->rx_self_fill ? cq->owed : cq->spare_want;
	struct vma_bufpool *pool;

	if (want > SPARE_MAX)
		want = SPARE_MAX;
	if (cq->spare_count >= want)
		return;
	want -= cq->spare_count;
	pool = atomic_load_explicit(&cq->qp->rx_pool, memory_order_relaxed);
	if (cq->owed >= cq->idle_at)
		cq->spare_count += vma_bufpool_get(pool, &cq->spare[cq->spare_count], want);
	else
		cq->spare_count += vma_bufpool_get_without_growth(pool, &cq->spare[cq->spare_count], want);
}

unsigned vma_cq_refill(struct vma_cq *cq)
{
	unsigned total = 0;

	while (cq->owed > 0) {
		unsigned n, posted;

		if (cq->spare_count < cq->owed)
			cq_fetch_spare_bufs(cq);
		n = cq->spare_count < cq->owed ? cq->spare_count : cq->owed;
		if (n == 0)
			break;
		posted = vma_nic_post_rx(cq->qp, &cq->spare[cq->spare_count - n], n);
		if (posted < n) /* the NIC took the first ones: close the gap */
			memmove(&cq->spare[cq->spare_count - n], &cq->spare[cq->spare_count - n + posted],
			        (n - posted) * sizeof(cq->spare[0]));
		cq->spare_count -= posted;
		cq->owed -= posted;
		total += posted;
		if (posted < n)
			break;
	}
	vma_stats_add(&cq->count->buffers_posted, total);
	vma_stats_set(&cq->count->spare_buffers, cq->spare_count);
	if (cq->owed >= cq->idle_at)
		vma_stats_add(&cq->count->refill_short, 1);
	cq_update_needs_refill(cq);
	return total;
}

/* Keeps a packet's frames for the receive queue: as spares while there is room, else through their pool. */
static void recycle_packet(struct vma_cq *cq, struct vma_buf *packet)
{
	while (packet != NULL) {
		struct vma_buf *next = packet->next;

		packet->next = NULL;
		if (cq->spare_count < SPARE_MAX)
			cq->spare[cq->spare_count++] = packet;
		else
			vma_buf_put(cq->arena, packet);
		packet = next;
	}
}

/* Same bytes at the same offsets, in buffers of the spill pool; NULL when that has none. */
static struct vma_buf *copy_packet_into_spill_buffers(struct vma_cq *cq, const struct vma_buf *packet)
{
	struct vma_buf *first = NULL, **link = &first;

	for (; packet != NULL; packet = packet->next) {
		struct vma_buf *copy;

		if (vma_bufpool_get(cq->spill_pool, &copy, 1) == 0) {
			if (first != NULL)
				vma_buf_put_chain(cq->arena, first);
			return NULL;
		}
		copy->flags = packet->flags;
		copy->data_off = packet->data_off;
		copy->len = packet->len;
		copy->packet_len = packet->packet_len;
		copy->flow_tag = packet->flow_tag;
		copy->timestamp_ns = packet->timestamp_ns;
		memcpy(vma_buf_data(cq->arena, copy), vma_buf_data(cq->arena, packet), packet->len);
		*link = copy;
		link = &copy->next;
	}
	return first;
}

struct vma_buf *cq_copy_packet_to_spill_pool(struct vma_cq *cq, struct vma_buf *packet)
{
	struct vma_buf *copy = NULL;

	if (cq->spill_pool != NULL)
		copy = copy_packet_into_spill_buffers(cq, packet);
	if (copy != NULL) {
		vma_nic_tap_on_copy(cq->qp, packet, copy);
		vma_stats_add(&cq->count->copied_out, 1);
	} else {
		if (!cq->must_keep_full)
			return packet; /* remember the debt; the queue runs shorter until the user puts something */
		vma_nic_tap_on_drop(cq->qp, packet, "drop_no_memory");
		vma_stats_add(&cq->count->drop_no_memory, 1);
	}
	recycle_packet(cq, packet);
	return copy;
}
