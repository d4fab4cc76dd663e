/*
 * mlx5_data - the hot path over an mlx5 card's rings: no call of libibverbs, and no system call.
 *
 * Frames that wait to be sent lie in `sent`, as on every card (data.c). The kick writes WQEs and rings. There is always
 * room for them, because mlx5_queue_open_rings has made the ring large enough for the longest WQE for each place of
 * `sent`. A place is free again only when the card has said that its WQE is done.
 *
 * In the same way each ring of completions holds one for each packet of its queue. The receive queue holds one WQE for
 * each receive that `rx_with_nic` counts.
 */
#include <errno.h>

#include <vma/log.h>

#include "data.h"
#include "mlx5.h"
#include "mlx5_wqe.h"

/*
 * The card has written what is not known here. Its queue is lost, and the next one is driven by libibverbs (thread.c,
 * verbs.c). Until then the completion stands, and nothing behind it is read.
 */
static __attribute__((cold, noinline)) void mlx5_mark_rings_failed(struct verbs_qp *qp, const char *what,
                                                                   uint8_t op_own)
{
	if (!atomic_exchange(&qp->queue.mlx5->failed, true))
		vma_log_warn("%s: RDMA device %s has written %s (0x%02x): libibverbs drives its rings from now on",
		             qp->name, qp->queue.device->place.device, what, op_own);
	verbs_qp_note_maybe_broken(qp);
}

static __attribute__((cold)) enum ibv_wc_status cqe_status(const struct mlx5_cqe64 *cqe)
{
	switch (((const struct mlx5_err_cqe *)cqe)->syndrome) {
	case MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR:
		return IBV_WC_LOC_LEN_ERR;
	case MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR:
		return IBV_WC_LOC_QP_OP_ERR;
	case MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:
		return IBV_WC_LOC_PROT_ERR;
	case MLX5_CQE_SYNDROME_WR_FLUSH_ERR:
		return IBV_WC_WR_FLUSH_ERR;
	case MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR:
		return IBV_WC_LOC_ACCESS_ERR;
	default:
		return IBV_WC_GENERAL_ERR;
	}
}

/* ---- posting ---- */

static inline char *rq_wqe(const struct verbs_mlx5 *mlx5, uint32_t index)
{
	return mlx5->rq + ((size_t)(index & mlx5->rq_mask) << mlx5->rq_shift);
}

static inline void rq_publish(struct verbs_mlx5 *mlx5)
{
	mlx5_to_device();
	atomic_store_explicit(mlx5->rq_record, htobe32(mlx5->rq_head & 0xffff), memory_order_relaxed);
}

int mlx5_post_receive_list(struct verbs_qp *qp, unsigned n)
{
	struct verbs_mlx5 *mlx5 = qp->queue.mlx5;

	if (n > mlx5->rq_mask + 1 - (mlx5->rq_head - mlx5->rq_tail))
		return ENOMEM;
	for (unsigned i = 0; i < n; i++, mlx5->rq_head++) {
		const struct ibv_recv_wr *wr = &qp->rx_wr[i];
		char *at = rq_wqe(mlx5, mlx5->rq_head);

		for (int part = 0; part < wr->num_sge; part++, at += MLX5_SEG_BYTES)
			mlx5_write_data_seg(at, wr->sg_list[part].addr, wr->sg_list[part].length,
			                    wr->sg_list[part].lkey);
		mlx5->rq_bufs[mlx5->rq_head & mlx5->rq_mask] = (struct vma_buf *)(uintptr_t)wr->wr_id;
	}
	rq_publish(mlx5);
	return 0;
}

/* Of a single buffer. That it has a key says that the queue pair is usable, too. */
unsigned mlx5_post_rx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct verbs_mlx5 *mlx5 = qp->queue.mlx5;
	struct vma_buf *buf;
	uint32_t lkey;

	if (n != 1 || qp->rx_with_nic >= qp->rx_single_max || mlx5 == NULL || !verbs_lkey(qp, bufs[0], &lkey))
		return verbs_post_rx(base, bufs, n);
	buf = bufs[0];
	vma_buf_debug_mark_lent(base->arena, buf);
	buf->user = &data_with_nic;
	buf->next = NULL;
	qp->rx_with_nic++;
	vma_stats_add(&qp->stats->fill_posted, 1);
	mlx5_write_data_seg(rq_wqe(mlx5, mlx5->rq_head), (uintptr_t)verbs_frame_of_buf(qp, buf), data_frame_bytes(qp),
	                    lkey);
	mlx5->rq_bufs[mlx5->rq_head++ & mlx5->rq_mask] = buf;
	rq_publish(mlx5);
	return 1;
}

/* ---- receiving ---- */

static __attribute__((noinline)) uint64_t cqe_timestamp_ns(struct verbs_qp *qp, const struct mlx5_cqe64 *cqe)
{
	const struct verbs_mlx5 *mlx5 = qp->queue.mlx5;
	const enum verbs_timestamp_kind stamps = verbs_qp_timestamp_kind(qp);
	const uint64_t ticks = be64toh(cqe->timestamp);
	struct mlx5dv_clock_info info;

	if (stamps != VERBS_STAMPS_WALL)
		return verbs_rx_ticks_to_timestamp_ns(qp, stamps, ticks);
	return mlx5->lib->get_clock_info(mlx5->context, &info) == 0 ? mlx5dv_ts_to_ns(&info, ticks) : 0;
}

/* What is wrong with a completion that says that a packet has come; NULL: nothing is. */
static const char *rx_cqe_invalid_reason(const struct verbs_qp *qp, const struct mlx5_cqe64 *cqe, uint8_t op_own)
{
	const struct verbs_mlx5 *mlx5 = qp->queue.mlx5;
	const uint32_t len = be32toh(cqe->byte_cnt);

	if (mlx5->rq_head == mlx5->rq_tail)
		return "a completion of no receive";
	if (op_own & MLX5_CQE_FORMAT)
		return "a completion of another format";
	if (op_own >> 4 == MLX5_CQE_RESP_ERR)
		return NULL;
	if (op_own >> 4 != MLX5_CQE_RESP_SEND)
		return "a completion of another kind";
	if (len == 0 || len > qp->rx_bufs * data_frame_bytes(qp))
		return "a packet that is longer than its buffers";
	return be16toh(cqe->wqe_counter) != (uint16_t)mlx5->rq_tail ? "a completion out of order" : NULL;
}

bool mlx5_read_rx_completion(struct verbs_qp *qp, struct data_received *out)
{
	struct verbs_mlx5 *mlx5 = qp->queue.mlx5;
	const uint32_t index = atomic_load_explicit(&mlx5->rx_cq.index, memory_order_relaxed);
	const struct mlx5_cqe64 *cqe = mlx5_cqe_at(&mlx5->rx_cq, index);
	const uint8_t op_own = mlx5_cqe_read_op_own(cqe);
	const char *objection;

	if (!mlx5_cqe_is_there(&mlx5->rx_cq, index, op_own))
		return false;
	mlx5_from_device();
	objection = rx_cqe_invalid_reason(qp, cqe, op_own);
	if (__builtin_expect(objection != NULL, 0)) {
		mlx5_mark_rings_failed(qp, objection, op_own);
		return false;
	}
	*out = (struct data_received){.id = (uintptr_t)mlx5->rq_bufs[mlx5->rq_tail & mlx5->rq_mask]};
	if (op_own >> 4 == MLX5_CQE_RESP_ERR) {
		out->status = cqe_status(cqe);
	} else {
		out->len = be32toh(cqe->byte_cnt);
		out->flags = mlx5_cqe_checksums_ok(cqe, mlx5->checksum_mask) ? IBV_WC_IP_CSUM_OK : 0;
		if (__builtin_expect(verbs_qp_timestamp_kind(qp) != VERBS_STAMPS_NONE, 0))
			out->stamp_ns = cqe_timestamp_ns(qp, cqe);
	}
	mlx5->rq_tail++;
	mlx5_cq_set_consumer_index(&mlx5->rx_cq, index + 1);
	return true;
}

/* A receive that has failed, behind which the look goes on. False: there is none, or the card is refused. */
static __attribute__((cold, noinline)) bool poll_failed_cqe(struct verbs_qp *qp)
{
	struct data_received what;

	if (!mlx5_read_rx_completion(qp, &what))
		return false;
	data_receive_failed(qp, &what);
	return true;
}

/*
 * Packets of one buffer each. A completion that is not that of the next receive, of a packet that fits into it, is left
 * to mlx5_read_rx_completion.
 */
static inline __attribute__((always_inline)) unsigned poll_rx_ring(struct verbs_qp *qp, struct verbs_mlx5 *mlx5,
                                                                   struct vma_buf **bufs, unsigned n, bool with_stamps)
{
	struct mlx5_cq *cq = &mlx5->rx_cq;
	const uint32_t most = data_frame_bytes(qp);
	uint32_t index = atomic_load_explicit(&cq->index, memory_order_relaxed), first = index;
	uint32_t head = mlx5->rq_head, tail = mlx5->rq_tail;
	unsigned got = 0;

	while (got < n) {
		const struct mlx5_cqe64 *cqe = mlx5_cqe_at(cq, index);
		const uint8_t op_own = mlx5_cqe_read_op_own(cqe);
		struct vma_buf *buf;
		uint32_t len;

		if (((op_own ^ mlx5_cq_owner_bit_at(cq, index)) & ~MLX5_CQE_SOLICITED) != MLX5_CQE_PACKET) {
			if (__builtin_expect(!mlx5_cqe_is_there(cq, index, op_own), 1))
				break;
			goto other;
		}
		mlx5_from_device();
		len = be32toh(cqe->byte_cnt);
		if (__builtin_expect(len - 1 >= most || tail == head || be16toh(cqe->wqe_counter) != (uint16_t)tail, 0))
			goto other;
		buf = mlx5->rq_bufs[tail++ & mlx5->rq_mask];
		data_init_received_buf(qp, buf, len,
		                       mlx5_cqe_checksums_ok(cqe, mlx5->checksum_mask)
		                               ? VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK
		                               : 0);
		if (with_stamps && verbs_qp_timestamp_kind(qp) != VERBS_STAMPS_NONE) {
			const uint64_t stamp_ns = cqe_timestamp_ns(qp, cqe);

			data_set_rx_timestamps(qp, &buf, &stamp_ns, 1);
		}
		index++;
		bufs[got++] = buf;
		continue;
	other:
		mlx5->rq_tail = tail;
		mlx5_cq_set_consumer_index(cq, index);
		if (!poll_failed_cqe(qp))
			break;
		head = mlx5->rq_head;
		tail = mlx5->rq_tail;
		first = index = atomic_load_explicit(&cq->index, memory_order_relaxed);
	}
	if (index != first) {
		mlx5->rq_tail = tail;
		mlx5_cq_set_consumer_index(cq, index);
	}
	vma_stats_add(&qp->stats->rx_frames, got);
	return got;
}

__attribute__((noinline)) unsigned mlx5_poll_rx_single_buffer(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	return poll_rx_ring(qp, qp->queue.mlx5, bufs, n, true);
}

static __attribute__((noinline)) unsigned mlx5_poll_rx_slow_path(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	const unsigned got = verbs_poll_rx(&qp->base, bufs, n);

	data_set_has_pending_rx(qp, qp->rx_pending_n != 0);
	return got;
}

unsigned mlx5_poll_rx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct verbs_mlx5 *mlx5 = atomic_load_explicit(&qp->rx_mlx5, memory_order_relaxed);

	if (__builtin_expect(!qp_opened_by_this_process(qp), 0))
		return 0;
	if (__builtin_expect(mlx5 == NULL || qp->rx_pending_n != 0, 0))
		return mlx5_poll_rx_slow_path(qp, bufs, n);
	return poll_rx_ring(qp, mlx5, bufs, n, false);
}

/* The index is the same before and after the look at its owner bit: so that was the next completion's all the while. */
static bool mlx5_rx_cq_is_empty(const struct verbs_qp *qp, const struct mlx5_cq *cq)
{
	const uint32_t index = atomic_load_explicit(&cq->index, memory_order_acquire);
	/* Acquire: index and rx_keeps are not looked at before the owner bit was. */
	const uint8_t op_own = __atomic_load_n(&mlx5_cqe_at(cq, index)->op_own, __ATOMIC_ACQUIRE);

	return !mlx5_cqe_is_there(cq, index, op_own) && !atomic_load_explicit(&qp->rx_keeps, memory_order_relaxed) &&
	       atomic_load_explicit(&cq->index, memory_order_relaxed) == index;
}

/*
 * The ring is the provider's, and ends with the queue. A look counts itself in before it takes the pointer; a rebind,
 * whose queue pair was lost before, finds that the pointer is NULL since then, and goes on only if no look is counted.
 * All four steps are sequentially consistent: either the look finds NULL, or the rebind the look. A rebind that finds
 * one does not wait, as a signal handler may have interrupted the look, but is tried again.
 */
bool mlx5_rx_is_empty(const struct vma_nic_qp *base)
{
	struct verbs_qp *qp = (struct verbs_qp *)(uintptr_t)base;
	const struct verbs_mlx5 *mlx5 = atomic_load_explicit(&qp->rx_look, memory_order_relaxed);
	bool is_empty;

	if (mlx5 == NULL || !qp_opened_by_this_process(qp))
		return false;
	atomic_fetch_add(&qp->lookers, 1);
	mlx5 = atomic_load(&qp->rx_look);
	is_empty = mlx5 != NULL && mlx5_rx_cq_is_empty(qp, &mlx5->rx_cq);
	atomic_fetch_sub(&qp->lookers, 1);
	return is_empty;
}

/* ---- sleeping ---- */

void mlx5_advance_cq_arm_sequence(struct verbs_qp *qp, unsigned n)
{
	qp->queue.mlx5->rx_cq.arm_seq += n;
}

/* The card tells of a completion behind the consumer index that it reads here, also of one that is there already. */
int mlx5_arm_rx_cq(struct verbs_qp *qp)
{
	struct mlx5_cq *cq = &qp->queue.mlx5->rx_cq;
	const uint32_t index = atomic_load_explicit(&cq->index, memory_order_relaxed);
	const uint32_t command = (cq->arm_seq & 3) << 28 | MLX5_CQ_DB_REQ_NOT | (index & 0xffffff);

	atomic_store_explicit(&cq->record[1], htobe32(command), memory_order_release);
	mlx5_flush_mmio();
	*cq->arm_reg = htobe64((uint64_t)command << 32 | cq->number);
	mlx5_flush_mmio();
	return 0;
}

/* ---- sending ---- */

static inline char *sq_wqe_at(const struct verbs_mlx5 *mlx5, uint32_t index)
{
	return mlx5->sq + (size_t)(index & mlx5->sq_mask) * MLX5_SEND_WQE_BB;
}

/* On from `at` by so many bytes, which may go round the end. */
static inline char *sq_copy_with_wraparound(const struct verbs_mlx5 *mlx5, char *at, const void *bytes, uint32_t n)
{
	const uint32_t room = (uint32_t)(mlx5->sq_end - at);

	if (__builtin_expect(n >= room, 0)) {
		memcpy(at, bytes, room);
		memcpy(mlx5->sq, (const char *)bytes + room, n - room);
		return mlx5->sq + (n - room);
	}
	memcpy(at, bytes, n);
	return at + n;
}

/* Where the segment behind `at` begins. */
static inline char *sq_next_seg(const struct verbs_mlx5 *mlx5, char *at)
{
	at = mlx5->sq + ((size_t)(at - mlx5->sq + MLX5_SEG_BYTES - 1) & ~(size_t)(MLX5_SEG_BYTES - 1));
	return at == mlx5->sq_end ? mlx5->sq : at;
}

/* One WQE of so many segments is written, but for its control segment, and `end` is the place behind its packet. */
static inline char *sq_finish_wqe(struct verbs_mlx5 *mlx5, uint8_t opcode, unsigned segs, bool signal, uint32_t end)
{
	char *ctrl = sq_wqe_at(mlx5, mlx5->sq_index);

	mlx5_write_ctrl_seg(mlx5, ctrl, opcode, segs, signal);
	mlx5->sq_places[mlx5->sq_index & mlx5->sq_mask] = end;
	mlx5->sq_index += mlx5_wqe_blocks_of_segs(segs);
	return ctrl;
}

/* Of the list's bytes the first n, at `at`; they are in the list no more. Returns how many were missing. */
static uint32_t move_header_bytes_from_sges(struct data_outgoing *out, char *at, uint32_t n)
{
	for (unsigned i = 0; i < out->sges && n != 0; i++) {
		const uint32_t part = out->sge[i].length < n ? out->sge[i].length : n;

		memcpy(at, (const void *)(uintptr_t)out->sge[i].addr, part);
		out->sge[i].addr += part;
		out->sge[i].length -= part;
		at += part;
		n -= part;
	}
	return n;
}

/* All of the list's bytes, behind a word that says how many. Returns the number of segments. */
static unsigned sq_write_inline_data(const struct verbs_mlx5 *mlx5, char *at, const struct data_outgoing *out)
{
	uint32_t bytes = 0;
	uint32_t *word = (uint32_t *)(void *)at;

	at += sizeof(*word);
	for (unsigned i = 0; i < out->sges; i++) {
		at = sq_copy_with_wraparound(mlx5, at, (const void *)(uintptr_t)out->sge[i].addr, out->sge[i].length);
		bytes += out->sge[i].length;
	}
	if (bytes != 0)
		*word = htobe32(bytes | MLX5_INLINE_SEG);
	return mlx5_inline_segs(bytes);
}

static unsigned sq_write_data_segs(const struct verbs_mlx5 *mlx5, char *at, const struct data_outgoing *out)
{
	unsigned segs = 0;

	for (unsigned i = 0; i < out->sges; i++) {
		if (out->sge[i].length == 0)
			continue;
		mlx5_write_data_seg(at, out->sge[i].addr, out->sge[i].length, out->sge[i].lkey);
		at = sq_next_seg(mlx5, at + MLX5_SEG_BYTES);
		segs++;
	}
	return segs;
}

struct sq_last {
	char *ctrl;
	unsigned segs;
	unsigned wqes;
	int error;
};

/*
 * Any packet. The card gets its first bytes in the Ethernet segment: all headers of one that it cuts; of others as many
 * as any card wants, with zeros behind a packet that is shorter. Returns the place behind it.
 */
static __attribute__((noinline)) uint32_t sq_build_wqe_for_any_packet(struct verbs_qp *qp, struct verbs_mlx5 *mlx5,
                                                                      uint32_t at, struct sq_last *last)
{
	char *eth = sq_wqe_at(mlx5, mlx5->sq_index) + MLX5_SEG_BYTES, *next;
	struct data_outgoing out;
	unsigned flags, segs;
	uint32_t header;
	bool cut;

	data_collect_outgoing_packet(qp, at, &out);
	cut = data_is_tso(&out);
	header = cut ? out.first->hdr_len : MLX5_INLINE_HEADER;
	if (header > MLX5_TSO_HEADER_MAX) {
		last->error = EINVAL;
		return out.end;
	}
	flags = data_send_flags(qp, &out);
	mlx5_put_eth(eth, flags & IBV_SEND_IP_CSUM, cut ? out.first->mss : 0, (uint16_t)header);
	if (cut) {
		next = sq_copy_with_wraparound(mlx5, eth + MLX5_ETH_HEADER_AT, (const void *)(uintptr_t)out.first->addr,
		                               header);
	} else {
		memset(eth + MLX5_ETH_HEADER_AT, 0, header);
		move_header_bytes_from_sges(&out, eth + MLX5_ETH_HEADER_AT, header);
		next = eth + MLX5_ETH_BYTES;
	}
	next = sq_next_seg(mlx5, next);
	segs = 1 + mlx5_eth_segs(header);
	if (data_is_inline(qp, &out)) {
		segs += sq_write_inline_data(mlx5, next, &out);
		data_release_inlined_bufs(qp, &out);
	} else {
		segs += sq_write_data_segs(mlx5, next, &out);
	}
	last->ctrl =
	        sq_finish_wqe(mlx5, cut ? MLX5_OPCODE_TSO : MLX5_OPCODE_SEND, segs, flags & IBV_SEND_SIGNALED, out.end);
	last->segs = segs;
	return out.end;
}

/* A packet of one segment that the card reads, and that is longer than the header: one block. */
static inline __attribute__((always_inline)) char *
sq_append_single_segment_wqe(struct verbs_mlx5 *mlx5, const struct verbs_send_segment *seg, uint32_t end, bool signal)
{
	const uint32_t index = mlx5->sq_index, block = index & mlx5->sq_mask;
	char *ctrl = mlx5->sq + (size_t)block * MLX5_SEND_WQE_BB;

	mlx5->sq_index = index + 1;
	mlx5->sq_places[block] = end;
	mlx5_write_single_segment_wqe(ctrl, index, mlx5->sq_plain, seg->addr, seg->len, seg->lkey,
	                              seg->how & IBV_SEND_IP_CSUM, signal);
	return ctrl;
}

/* A packet of one segment that lies in the WQE as a whole, and that is longer than the header. */
static __attribute__((noinline)) unsigned sq_build_inline_single_segment_wqe(struct verbs_qp *qp,
                                                                             struct verbs_mlx5 *mlx5,
                                                                             struct verbs_send_segment *seg,
                                                                             uint32_t end, bool signal, char **ctrl)
{
	char *eth = sq_wqe_at(mlx5, mlx5->sq_index) + MLX5_SEG_BYTES;
	const char *frame = (const char *)(uintptr_t)seg->addr;
	const uint32_t bytes = seg->len - MLX5_INLINE_HEADER;
	const unsigned segs = 3 + mlx5_inline_segs(bytes);

	mlx5_put_eth(eth, seg->how & IBV_SEND_IP_CSUM, 0, MLX5_INLINE_HEADER);
	memcpy(eth + MLX5_ETH_HEADER_AT, frame, MLX5_INLINE_HEADER);
	*(uint32_t *)(void *)(eth + MLX5_ETH_BYTES) = htobe32(bytes | MLX5_INLINE_SEG);
	sq_copy_with_wraparound(mlx5, eth + MLX5_ETH_BYTES + sizeof(uint32_t), frame + MLX5_INLINE_HEADER, bytes);
	*ctrl = sq_finish_wqe(mlx5, MLX5_OPCODE_SEND, segs, signal, end);
	vma_buf_put(qp->base.arena, seg->buf);
	seg->buf = NULL;
	return segs;
}

/* A plain packet, if it is longer than the header; the number of its segments. */
static inline __attribute__((always_inline)) unsigned
sq_build_single_segment_wqe(struct verbs_qp *qp, struct verbs_mlx5 *mlx5, struct verbs_send_segment *seg, uint32_t end,
                            bool signal, char **ctrl)
{
	if (seg->len <= qp->queue.inline_max)
		return sq_build_inline_single_segment_wqe(qp, mlx5, seg, end, signal, ctrl);
	*ctrl = sq_append_single_segment_wqe(mlx5, seg, end, signal);
	return MLX5_PLAIN_SEGS;
}

/* Blocks of a single WQE, in the order of their addresses, into the register: stores that are not split or swapped. */
typedef uint64_t bf_unit __attribute__((vector_size(16), may_alias));

static inline void blueflame_copy_block(volatile bf_unit *to, const bf_unit *from)
{
	const bf_unit a = from[0], b = from[1], c = from[2], d = from[3];

	to[0] = a;
	to[1] = b;
	to[2] = c;
	to[3] = d;
}

static void blueflame_copy_wqe(const struct verbs_mlx5 *mlx5, const char *ctrl, unsigned blocks)
{
	char *to = mlx5->bf + mlx5->bf_at;

	for (; blocks != 0; blocks--, to += MLX5_SEND_WQE_BB) {
		blueflame_copy_block((volatile bf_unit *)(void *)to, (const bf_unit *)(const void *)ctrl);
		ctrl += MLX5_SEND_WQE_BB;
		if (ctrl == mlx5->sq_end)
			ctrl = mlx5->sq;
	}
}

/*
 * The record, and the register: of a WQE that is alone all of it, if the register takes so much, and the card need not
 * fetch it. The two halves of the register take turns, so that no store is combined with the one before.
 */
static inline __attribute__((always_inline)) void sq_ring_doorbell(struct verbs_mlx5 *mlx5, const char *ctrl,
                                                                   unsigned segs, bool is_alone)
{
	const unsigned blocks = mlx5_wqe_blocks_of_segs(segs);
	char *reg = mlx5->bf + mlx5->bf_at;

	mlx5_to_device();
	atomic_store_explicit(mlx5->sq_record, htobe32(mlx5->sq_index & 0xffff), memory_order_relaxed);
	mlx5_flush_mmio();
	if (!is_alone || blocks * MLX5_SEND_WQE_BB > mlx5->bf_size)
		*(volatile uint64_t *)(void *)reg = *(const uint64_t *)(const void *)ctrl;
	else if (blocks == 1)
		blueflame_copy_block((volatile bf_unit *)(void *)reg, (const bf_unit *)(const void *)ctrl);
	else
		blueflame_copy_wqe(mlx5, ctrl, blocks);
	mlx5_flush_mmio();
	mlx5->bf_at ^= mlx5->bf_size;
}

/* A packet that cannot be sent fails the kick, as it does with libibverbs: nothing of it has been rung for. */
int mlx5_send_queued_packets(struct verbs_qp *qp)
{
	struct verbs_mlx5 *mlx5 = qp->queue.mlx5;
	const uint32_t before = mlx5->sq_index;
	struct sq_last last = {.wqes = 0};

	for (uint32_t at = qp->sent_kicked; at != qp->sent_queued; last.wqes++) {
		struct verbs_send_segment *seg = &qp->sent[at & qp->sent_mask];

		if (send_seg_is_fast_path_packet(seg) && seg->len > MLX5_INLINE_HEADER) {
			at++;
			last.segs = sq_build_single_segment_wqe(
			        qp, mlx5, seg, at, verbs_send_needs_signal(&qp->signals, 1, at == qp->sent_queued),
			        &last.ctrl);
		} else {
			at = sq_build_wqe_for_any_packet(qp, mlx5, at, &last);
			if (last.error != 0)
				break;
		}
	}
	if (__builtin_expect(last.error != 0, 0)) {
		mlx5->sq_index = before;
		return last.error;
	}
	sq_ring_doorbell(mlx5, last.ctrl, last.segs, last.wqes == 1);
	return 0;
}

/* Of a single packet, which is plain. */
int mlx5_kick(struct vma_nic_qp *base)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct verbs_mlx5 *mlx5 = atomic_load_explicit(&qp->tx_mlx5, memory_order_relaxed);
	const uint32_t end = qp->sent_kicked + 1;
	struct verbs_send_segment *seg = &qp->sent[qp->sent_kicked & qp->sent_mask];
	bool signal;
	unsigned segs;
	char *ctrl;

	if (__builtin_expect(mlx5 == NULL, 0))
		return verbs_kick(base);
	if (end != qp->sent_queued || !send_seg_is_fast_path_packet(seg) || seg->len <= MLX5_INLINE_HEADER)
		return data_send_all_queued_packets(qp);
	signal = verbs_single_send_needs_signal(&qp->signals);
	if (__builtin_expect(seg->len > qp->queue.inline_max, 1)) {
		sq_ring_doorbell(mlx5, sq_append_single_segment_wqe(mlx5, seg, end, signal), MLX5_PLAIN_SEGS, true);
	} else {
		segs = sq_build_inline_single_segment_wqe(qp, mlx5, seg, end, signal, &ctrl);
		sq_ring_doorbell(mlx5, ctrl, segs, true);
	}
	qp->sent_kicked = end;
	vma_stats_add(&qp->stats->kicks, 1);
	return 0;
}

/* ---- completions ---- */

static const char *tx_cqe_invalid_reason(const struct verbs_qp *qp, uint8_t op_own, uint32_t end)
{
	if (op_own & MLX5_CQE_FORMAT)
		return "a completion of another format";
	if (op_own >> 4 != MLX5_CQE_REQ && op_own >> 4 != MLX5_CQE_REQ_ERR)
		return "a completion of another kind";
	return end - qp->sent_completed > qp->sent_kicked - qp->sent_completed ? "a completion of no send" : NULL;
}

void mlx5_poll_tx_completions(struct verbs_qp *qp)
{
	struct verbs_mlx5 *mlx5 = qp->queue.mlx5;
	struct mlx5_cq *cq = &mlx5->tx_cq;
	const uint32_t first = atomic_load_explicit(&cq->index, memory_order_relaxed);
	uint32_t index = first;

	for (;; index++) {
		const struct mlx5_cqe64 *cqe = mlx5_cqe_at(cq, index);
		const uint8_t op_own = mlx5_cqe_read_op_own(cqe);
		const char *objection;
		uint32_t end;

		if (!mlx5_cqe_is_there(cq, index, op_own))
			break;
		mlx5_from_device();
		end = mlx5->sq_places[be16toh(cqe->wqe_counter) & mlx5->sq_mask];
		objection = tx_cqe_invalid_reason(qp, op_own, end);
		if (__builtin_expect(objection != NULL, 0)) {
			mlx5_mark_rings_failed(qp, objection, op_own);
			break;
		}
		data_handle_send_completion(qp, end, op_own >> 4 == MLX5_CQE_REQ ? IBV_WC_SUCCESS : cqe_status(cqe));
	}
	if (index != first)
		mlx5_cq_set_consumer_index(cq, index);
}
