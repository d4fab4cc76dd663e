/*
 * mlx5 - the rings of an mlx5 card, driven by the library itself (VMA_MLX5_DIRECT).
 *
 * Queue pair and completion queues are made through libibverbs as ever (queue.c). The function mlx5dv_init_obj of
 * libmlx5.so.1 says where their rings lie. From then on libibverbs is not asked for a packet any more:
 *
 *   send queue          work requests (WQEs) in blocks of 64 bytes      doorbell record, then the doorbell: the first
 *                                                                       8 bytes of the last WQE; or all of a single WQE
 *                                                                       (BlueFlame)
 *   receive queue       WQEs that are lists of buffers                  doorbell record
 *   completion queues   CQEs of 64 bytes, whose owner bit says in       consumer index in a record; to arm: a record and a
 *                       which round the card has written them           register
 *
 * All that is more than one byte is in network order. Source of the layouts: <infiniband/mlx5dv.h>.
 *
 * A card that does not keep to this ends the direct path: mlx5_mark_rings_failed in mlx5_data.c. Nothing that a card
 * writes is used as an index or a length before it is checked.
 *
 * Threads: as verbs.h says of each half; mlx5_rx_is_empty any thread. Progress: no call waits.
 * Memory: mlx5_queue_open_rings allocates, mlx5_queue_close_rings frees. The rings are the provider's, and end with the
 * queue's objects. Example: test/test_mlx5.c, over a model of the card (test/mlx5_model.h).
 */
#ifndef VMA_NIC_VERBS_MLX5_H
#define VMA_NIC_VERBS_MLX5_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/mlx5dv.h>

#include "data.h"

struct mlx5_lib {
	bool (*is_supported)(struct ibv_device *device);
	int (*init_obj)(struct mlx5dv_obj *obj, uint64_t type);
	int (*get_clock_info)(struct ibv_context *context, struct mlx5dv_clock_info *info);
};

/* One completion queue. */
struct mlx5_cq {
	const char *cqes; /* of each entry the last 64 bytes, which are the CQE */
	uint32_t mask;
	uint8_t entry_shift;        /* bytes from one entry to the next */
	uint8_t count_shift;        /* entries */
	_Atomic uint32_t index;     /* of the next completion; it counts on */
	_Atomic uint32_t *record;   /* [0] consumer index, [1] arm */
	volatile uint64_t *arm_reg; /* NULL: it is never armed */
	uint32_t number, arm_seq;   /* events so far */
};

struct verbs_mlx5 {
	const struct mlx5_lib *lib;
	struct ibv_context *context;
	_Atomic bool failed;    /* the card did not keep to what is known here */
	uint16_t checksum_mask; /* of what CQEs say of checksums; 0: nothing */

	/* receive half; entries are receives */
	struct mlx5_cq rx_cq __attribute__((aligned(64)));
	char *rq;
	uint32_t rq_mask, rq_shift; /* bytes of a WQE */
	uint32_t rq_head, rq_tail;  /* next to post, next to complete; they count on */
	_Atomic uint32_t *rq_record;
	struct vma_buf **rq_bufs; /* by entry: the first buffer */

	/* transmit half; entries are blocks */
	struct mlx5_cq tx_cq __attribute__((aligned(64)));
	char *sq;
	const char *sq_end;
	uint32_t sq_mask;
	uint32_t sq_index;  /* of the next WQE; it counts on */
	uint32_t sq_number; /* of the queue, shifted as a WQE has it */
	uint32_t sq_plain;  /* the same, with MLX5_PLAIN_SEGS and in network order */
	_Atomic uint32_t *sq_record;
	char *bf;
	uint32_t bf_size, bf_at; /* of each of the two halves; 0: no BlueFlame */
	uint32_t *sq_places;     /* by a WQE's first block: what its completion says (data_handle_send_completion) */
};

extern const struct vma_nic_ops vma_nic_mlx5_ops; /* verbs.c: those of verbs, but for the four functions below */

/* ---- mlx5.c: control path, the nic's lock held ---- */

/* Whether the device's rings can be driven: device->mlx5. If not, a line says why. `name` is the interface's. */
void mlx5_enable_direct_rings_if_supported(struct verbs_device *device, const char *name);

/* Of a queue that was opened with this attr. 0: it is the library's from now on. Else a negative errno, *what says why
 * not, and the queue is to be closed: libmlx5 believes that its completion queues are not its own any more. */
int mlx5_queue_open_rings(struct verbs_queue *queue, const struct verbs_queue_attr *attr, const char **what);
void mlx5_queue_close_rings(struct verbs_mlx5 *mlx5); /* before the queue's objects end; NULL is allowed */

static inline bool mlx5_has_failed(const struct verbs_queue *queue)
{
	return queue->mlx5 != NULL && atomic_load_explicit(&queue->mlx5->failed, memory_order_relaxed);
}

/* ---- mlx5_data.c: what differs in the table of operations. A queue without rings is left to data.c. ---- */
unsigned mlx5_post_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
unsigned mlx5_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
bool mlx5_rx_is_empty(const struct vma_nic_qp *qp);
int mlx5_kick(struct vma_nic_qp *qp);

/* ---- mlx5_data.c: what data.c asks in place of libibverbs, of a queue with rings ---- */
int mlx5_post_receive_list(struct verbs_qp *qp, unsigned n);                  /* of rx_wr; 0 or an errno */
bool mlx5_read_rx_completion(struct verbs_qp *qp, struct data_received *out); /* false: there is none */
unsigned mlx5_poll_rx_single_buffer(struct verbs_qp *qp, struct vma_buf **bufs,
                                    unsigned n);                    /* with stamps, if it has them */
int mlx5_arm_rx_cq(struct verbs_qp *qp);                            /* 0 or an errno */
void mlx5_advance_cq_arm_sequence(struct verbs_qp *qp, unsigned n); /* so many were taken back */
void mlx5_poll_tx_completions(struct verbs_qp *qp);
int mlx5_send_queued_packets(struct verbs_qp *qp); /* all that waits, and the doorbell; 0 or an errno */

#endif
