/*
 * data - the common part of two hot paths: through libibverbs (data.c), and through an mlx5 card's rings (mlx5_data.c).
 * It has the check whether a queue pair may be used, the frames that wait to be sent, and the handling of completions.
 *
 * Threads: as verbs.h says of each half. Progress: no call waits. Memory: the queue pair's.
 */
#ifndef VMA_NIC_VERBS_DATA_H
#define VMA_NIC_VERBS_DATA_H

#include <vma/stats.h>

#include "verbs.h"

extern char data_with_nic; /* its address: vma_buf.user of each buffer that the device has, beside 0 references */

static inline bool qp_opened_by_this_process(const struct verbs_qp *qp)
{
	return __builtin_expect(atomic_load_explicit(qp->fork_guard, memory_order_relaxed) != 0, 1);
}

/* Not in a forked child, and the device works. */
static inline bool qp_is_usable_in_this_process(const struct verbs_qp *qp)
{
	return qp_opened_by_this_process(qp) && !vma_nic_qp_lost(&qp->base);
}

static inline uint32_t data_frame_bytes(const struct verbs_qp *qp)
{
	return UINT32_C(1) << qp->frame_shift;
}

/* Receive half: whether rx_pending has something, for whoever asks without it (mlx5_rx_is_empty). Release: whoever sees
 * the queue's next index sees this, too. */
static inline void data_set_has_pending_rx(struct verbs_qp *qp, bool keeps)
{
	atomic_store_explicit(&qp->rx_keeps, keeps, memory_order_release);
}

static inline enum verbs_timestamp_kind verbs_qp_timestamp_kind(const struct verbs_qp *qp)
{
	return atomic_load_explicit(&qp->rx_stamps, memory_order_relaxed);
}

/* ---- receiving ---- */

/* One completion, whatever the interface it was read by. */
struct data_received {
	uintptr_t id; /* the first buffer's address */
	uint32_t len;
	unsigned flags;
	enum ibv_wc_status status;
	uint64_t stamp_ns; /* if there are stamps */
};

/* A receive that has failed: its buffers are posted again, unless the queue has stopped. */
void data_receive_failed(struct verbs_qp *qp, const struct data_received *what) __attribute__((cold, noinline));
/* On buffers that are the user's, the first of each packet. */
void data_set_rx_timestamps(const struct verbs_qp *qp, struct vma_buf **bufs, const uint64_t *stamps_ns, unsigned n)
        __attribute__((noinline));

/* A buffer that the device has filled with so many bytes is the user's. */
static inline void data_init_received_buf(struct verbs_qp *qp, struct vma_buf *buf, uint32_t len, uint16_t flags)
{
	struct vma_stats_nic *stats = qp->stats;

	vma_buf_debug_mark_returned(qp->base.arena, buf);
	buf->user = NULL;
	buf->next = NULL;
	buf->data_off = 0;
	buf->len = buf->packet_len = len;
	buf->flags = flags;
	buf->flow_tag = 0;
	buf->timestamp_ns = 0;
	qp->rx_with_nic--;
	vma_stats_add(&stats->rx_bytes, len);
}

/* ---- sending ---- */

static inline bool send_seg_is_fast_path_packet(const struct verbs_send_segment *seg)
{
	return seg->how & SENT_PLAIN;
}

/* A packet that waits for the kick, as the provider wants it. */
struct data_outgoing {
	struct verbs_send_segment *first;
	unsigned count; /* segments */
	uint32_t bytes;
	uint32_t end; /* place behind it: what its completion says */
	unsigned sges;
	struct ibv_sge sge[VERBS_SEGS_MAX];
};

static inline bool data_is_tso(const struct data_outgoing *out)
{
	return !send_seg_is_fast_path_packet(out->first) && (out->first->flags & VMA_NIC_SEG_TSO);
}

/* The one at `at`. Of a TSO packet the headers are no part of the list. */
static inline void data_collect_outgoing_packet(const struct verbs_qp *qp, uint32_t at, struct data_outgoing *out)
{
	const struct verbs_send_segment *seg;
	uint32_t skip;

	out->first = &qp->sent[at & qp->sent_mask];
	out->bytes = 0;
	out->sges = 0;
	skip = data_is_tso(out) ? out->first->hdr_len : 0;
	do {
		seg = &qp->sent[at++ & qp->sent_mask];
		out->sge[out->sges++] = (struct ibv_sge){seg->addr + skip, seg->len - skip, seg->lkey};
		out->bytes += seg->len;
		skip = 0;
	} while (!send_seg_is_fast_path_packet(seg) && (seg->flags & VMA_NIC_SEG_MORE));
	out->count = out->sges;
	out->end = at;
}

static inline bool data_is_inline(const struct verbs_qp *qp, const struct data_outgoing *out)
{
	return out->bytes <= qp->queue.inline_max && !data_is_tso(out);
}

/* It has been copied into the send queue. */
static inline void data_release_inlined_bufs(struct verbs_qp *qp, const struct data_outgoing *out)
{
	for (unsigned i = 0; i < out->count; i++) {
		struct verbs_send_segment *seg = &qp->sent[(out->end - out->count + i) & qp->sent_mask];

		vma_buf_put(qp->base.arena, seg->buf);
		seg->buf = NULL;
	}
}

static inline unsigned data_send_flags(struct verbs_qp *qp, const struct data_outgoing *out)
{
	const bool signal = verbs_send_needs_signal(&qp->signals, out->count, out->end == qp->sent_queued);

	return (signal ? IBV_SEND_SIGNALED : 0) | (uint8_t)out->first->how;
}

/* All that waits, and the doorbell. 0 or -errno. */
int data_send_all_queued_packets(struct verbs_qp *qp) __attribute__((noinline));
/* What the device refused will never be sent. Returns -error. */
int data_drop_sends_after_kick_failure(struct verbs_qp *qp, int error) __attribute__((cold, noinline));
void data_send_failed(struct verbs_qp *qp, enum ibv_wc_status status) __attribute__((cold, noinline));

/* A completion's buffers are complete, and all before them. */
static inline void data_handle_send_completion(struct verbs_qp *qp, uint64_t id, enum ibv_wc_status status)
{
	const uint32_t end = (uint32_t)id;

	if (__builtin_expect(status != IBV_WC_SUCCESS, 0))
		data_send_failed(qp, status);
	if (end - qp->sent_completed <= qp->sent_kicked - qp->sent_completed)
		qp->sent_completed = end;
}

#endif
