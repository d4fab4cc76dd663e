/*
 * mlx5 - the rings of an mlx5 card: libmlx5 is found, and a queue's rings are taken over.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "mlx5.h"
#include "mlx5_wqe.h"

#define WQES_MAX 32768 /* an index in a WQE has 16 bits */
#define CQES_MAX (1u << 22)

static struct mlx5_lib lib;
static bool lib_complete;

/* It is there if the card is one of its: libibverbs has opened it. It stays open. */
static void mlx5_library_load(void)
{
	void *library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);

	if (library == NULL) {
		vma_log_debug("verbs: %s", dlerror());
		return;
	}
	*(void **)&lib.is_supported = verbs_lib_symbol(library, "mlx5dv_is_supported");
	*(void **)&lib.init_obj = verbs_lib_symbol(library, "mlx5dv_init_obj");
	*(void **)&lib.get_clock_info = verbs_lib_symbol(library, "mlx5dv_get_clock_info");
	lib_complete = lib.is_supported != NULL && lib.init_obj != NULL && lib.get_clock_info != NULL;
}

/* Settings of libmlx5 itself that change a WQE, or forbid to copy it into the register. */
static bool env_is_set(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && strcmp(value, "0") != 0;
}

void mlx5_enable_direct_rings_if_supported(struct verbs_device *device, const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const char *why = NULL;

	pthread_once(&once, mlx5_library_load);
	if (!MLX5_KNOWN_ORDER)
		why = "not on this kind of processor";
	else if (!lib_complete)
		why = "there is no libmlx5.so.1 with mlx5dv_init_obj";
	else if (!lib.is_supported(device->context->device))
		why = "it is no mlx5 device";
	else if (env_is_set("MLX5_QP_SIGNATURE"))
		why = "MLX5_QP_SIGNATURE is set";
	device->mlx5 = why == NULL ? &lib : NULL;
	if (why != NULL)
		vma_log_once(VMA_LOG_WARN, "%s: VMA_MLX5_DIRECT has no effect on RDMA device %s: %s", name,
		             device->place.device, why);
}

/* ---- a queue ---- */

static bool is_power_of_2(uint32_t n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

/* What the longest packet takes, in blocks. */
static unsigned max_wqe_blocks_per_packet(const struct verbs_queue *queue, const struct verbs_queue_attr *attr)
{
	const unsigned header = attr->tso ? MLX5_TSO_HEADER_MAX : MLX5_INLINE_HEADER;
	const unsigned listed = 1 + mlx5_eth_segs(header) + attr->tx_sges;
	const unsigned in_line = 1 + mlx5_eth_segs(MLX5_INLINE_HEADER) + mlx5_inline_segs(queue->inline_max);

	return mlx5_wqe_blocks_of_segs(listed > in_line ? listed : in_line);
}

static bool mlx5_qp_layout_is_supported(const struct mlx5dv_qp *dv, const struct verbs_queue *queue,
                                        const struct verbs_queue_attr *attr)
{
	return dv->dbrec != NULL && dv->bf.reg != NULL && (dv->bf.size == 0 || is_power_of_2(dv->bf.size)) &&
	       dv->sq.buf != NULL && dv->sq.stride == MLX5_SEND_WQE_BB && is_power_of_2(dv->sq.wqe_cnt) &&
	       dv->sq.wqe_cnt <= WQES_MAX &&
	       (uint64_t)attr->tx_packets * max_wqe_blocks_per_packet(queue, attr) <= dv->sq.wqe_cnt &&
	       dv->rq.buf != NULL && is_power_of_2(dv->rq.stride) && dv->rq.stride >= attr->rx_sges * MLX5_SEG_BYTES &&
	       is_power_of_2(dv->rq.wqe_cnt) && dv->rq.wqe_cnt <= WQES_MAX && dv->rq.wqe_cnt >= attr->rx_packets;
}

static bool mlx5_cq_layout_is_supported(const struct mlx5dv_cq *dv, uint32_t packets, bool armed)
{
	return dv->buf != NULL && dv->dbrec != NULL && (!armed || dv->cq_uar != NULL) && is_power_of_2(dv->cqe_cnt) &&
	       dv->cqe_cnt >= packets && dv->cqe_cnt <= CQES_MAX && (dv->cqe_size == 64 || dv->cqe_size == 128);
}

static void mlx5_copy_cq_ring_layout(struct mlx5_cq *cq, const struct mlx5dv_cq *dv, bool armed)
{
	cq->cqes = (const char *)dv->buf + dv->cqe_size - MLX5_CQE_BYTES;
	cq->mask = dv->cqe_cnt - 1;
	cq->entry_shift = (uint8_t)__builtin_ctz(dv->cqe_size);
	cq->count_shift = (uint8_t)__builtin_ctz(dv->cqe_cnt);
	cq->record = (_Atomic uint32_t *)dv->dbrec;
	cq->arm_reg = armed ? (volatile uint64_t *)((char *)dv->cq_uar + MLX5_CQ_DOORBELL) : NULL;
	cq->number = dv->cqn;
}

/* What a receive does not need of its WQE ends the list, once for all times. */
static void rq_write_sge_list_terminators(const struct verbs_mlx5 *mlx5, uint32_t sges)
{
	const uint32_t most = (UINT32_C(1) << mlx5->rq_shift) / MLX5_SEG_BYTES;

	for (uint32_t i = 0; i <= mlx5->rq_mask; i++)
		for (uint32_t at = sges; at < most; at++)
			mlx5_write_data_seg(mlx5->rq + ((size_t)i << mlx5->rq_shift) + at * MLX5_SEG_BYTES, 0, 0,
			                    MLX5_INVALID_LKEY);
}

static void mlx5_copy_qp_ring_layout(struct verbs_mlx5 *mlx5, const struct mlx5dv_qp *dv,
                                     const struct verbs_queue *queue)
{
	mlx5->rq = dv->rq.buf;
	mlx5->rq_mask = dv->rq.wqe_cnt - 1;
	mlx5->rq_shift = (uint32_t)__builtin_ctz(dv->rq.stride);
	mlx5->rq_record = (_Atomic uint32_t *)&dv->dbrec[MLX5_RCV_DBR];
	mlx5->sq = dv->sq.buf;
	mlx5->sq_end = mlx5->sq + (size_t)dv->sq.wqe_cnt * MLX5_SEND_WQE_BB;
	mlx5->sq_mask = dv->sq.wqe_cnt - 1;
	mlx5->sq_number = queue->qp->qp_num << 8;
	mlx5->sq_plain = htobe32(mlx5->sq_number | MLX5_PLAIN_SEGS);
	mlx5->sq_record = (_Atomic uint32_t *)&dv->dbrec[MLX5_SND_DBR];
	mlx5->bf = dv->bf.reg;
	mlx5->bf_size = env_is_set("MLX5_SHUT_UP_BF") ? 0 : dv->bf.size;
}

static struct verbs_mlx5 *rings_alloc(uint32_t receives, uint32_t blocks)
{
	struct verbs_mlx5 *mlx5 = aligned_alloc(_Alignof(struct verbs_mlx5), sizeof(*mlx5));

	if (mlx5 == NULL)
		return NULL;
	memset(mlx5, 0, sizeof(*mlx5));
	mlx5->rq_bufs = calloc(receives, sizeof(mlx5->rq_bufs[0]));
	mlx5->sq_places = calloc(blocks, sizeof(mlx5->sq_places[0]));
	if (mlx5->rq_bufs == NULL || mlx5->sq_places == NULL) {
		mlx5_queue_close_rings(mlx5);
		return NULL;
	}
	return mlx5;
}

int mlx5_queue_open_rings(struct verbs_queue *queue, const struct verbs_queue_attr *attr, const char **what)
{
	const struct verbs_device *device = queue->device;
	struct mlx5dv_qp qp = {.comp_mask = 0};
	struct mlx5dv_cq rx = {.comp_mask = 0}, tx = {.comp_mask = 0};
	struct mlx5dv_obj of_qp = {.qp = {.in = queue->qp, .out = &qp}};
	struct mlx5dv_obj of_rx = {.cq = {.in = queue->rx_cq, .out = &rx}};
	struct mlx5dv_obj of_tx = {.cq = {.in = queue->tx_cq, .out = &tx}};
	struct verbs_mlx5 *mlx5;

	/* Without a domain of its own, other queues might ring by the same register, and take turns by a lock that is
	 * the provider's. */
	*what = "it has no thread domain";
	if (queue->td == NULL)
		return -EOPNOTSUPP;
	*what = "mlx5dv_init_obj has failed";
	if (device->mlx5->init_obj(&of_qp, MLX5DV_OBJ_QP) != 0 || device->mlx5->init_obj(&of_rx, MLX5DV_OBJ_CQ) != 0 ||
	    device->mlx5->init_obj(&of_tx, MLX5DV_OBJ_CQ) != 0)
		return -EOPNOTSUPP;
	*what = "its rings are of another form";
	if (!mlx5_qp_layout_is_supported(&qp, queue, attr) ||
	    !mlx5_cq_layout_is_supported(&rx, attr->rx_packets, true) ||
	    !mlx5_cq_layout_is_supported(&tx, attr->tx_packets, false))
		return -EOPNOTSUPP;
	*what = "memory";
	mlx5 = rings_alloc(qp.rq.wqe_cnt, qp.sq.wqe_cnt);
	if (mlx5 == NULL)
		return -ENOMEM;
	mlx5->lib = device->mlx5;
	mlx5->context = device->context;
	mlx5->checksum_mask = device->limits.has_checksum ? MLX5_CHECKSUM_MASK : 0;
	mlx5_copy_qp_ring_layout(mlx5, &qp, queue);
	mlx5_copy_cq_ring_layout(&mlx5->rx_cq, &rx, true);
	mlx5_copy_cq_ring_layout(&mlx5->tx_cq, &tx, false);
	rq_write_sge_list_terminators(mlx5, attr->rx_sges);
	queue->mlx5 = mlx5;
	queue->rx_cq_ex = queue->tx_cq_ex = NULL;
	queue->qp_ex = NULL;
	return 0;
}

void mlx5_queue_close_rings(struct verbs_mlx5 *mlx5)
{
	if (mlx5 == NULL)
		return;
	free(mlx5->rq_bufs);
	free(mlx5->sq_places);
	free(mlx5);
}
