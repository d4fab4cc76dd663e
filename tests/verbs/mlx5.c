/*
 * Preloaded in tests that set VMASOFT_MLX5 (with_card): this card's queue pairs as an mlx5 card's. mlx5dv_init_obj
 * hands out rings in the form of <infiniband/mlx5dv.h>. For each queue pair a thread does what the card would: it reads
 * WQEs when the doorbell records say so, sends and receives by the queue pair itself, and writes completions. So a
 * library that drives such rings is run over whole cards: with rules, with sleeping threads, with queues that end.
 *
 * The registers are memory that the thread looks at. Completion channels are eventfds: the card knows nothing of them.
 * And there are thread domains, which the library asks for before it drives a ring.
 * components/nic/test/mlx5_model.h is the strict one of the two; here a ring that makes no sense ends the program, too.
 */
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "driver.h"

#define EXPORT __attribute__((visibility("default")))
#define FRAME_MAX (CARD_MAX_TSO_HEADER + CARD_MAX_TSO)
#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "mlx5.c:%d: the card objects: %s (errno %d)\n", __LINE__, #condition, errno);  \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

struct mlx5_soft_cq {
	struct ibv_cq *cq;
	char *entries;
	uint32_t count;
	_Atomic uint32_t produced;
	_Atomic uint32_t *record;
};

struct mlx5_soft_sent {
	uint16_t counter;
	bool asked;
};

struct rings {
	struct rings *next;
	struct ibv_qp *qp;
	struct ibv_qp_cap cap;
	struct mlx5_soft_cq rx, tx;
	char *sq, *rq, *uar, *cq_uar;
	_Atomic uint32_t *records;
	uint32_t sq_blocks, rq_count, rq_stride;
	uint32_t sq_index;
	uint32_t rq_index, rq_done; /* under lock; rq_done: completed */
	pthread_mutex_t lock;
	struct mlx5_soft_sent *sent;
	uint32_t sent_from, sent_to;
	char *frames; /* registered: one for each send that is on its way */
	struct ibv_mr *mr;
	pthread_t thread;
	atomic_bool stop;
	bool is_armed;
	uint32_t armed_at;
};

static struct rings *mlx5_soft_all_rings;
static pthread_mutex_t mlx5_soft_rings_lock = PTHREAD_MUTEX_INITIALIZER;

static void *mlx5_soft_alloc_ring_memory(size_t bytes)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(map != MAP_FAILED);
	return map;
}

static uint32_t mlx5_soft_round_up_to_power_of_2(uint32_t n)
{
	uint32_t power = 1;

	while (power < n)
		power *= 2;
	return power;
}

/* ---- completions ---- */

static struct mlx5_cqe64 *mlx5_soft_next_cqe(const struct mlx5_soft_cq *cq)
{
	return (struct mlx5_cqe64 *)(void *)(cq->entries + (size_t)(cq->produced & (cq->count - 1)) * 64);
}

static void mlx5_soft_write_cqe(struct mlx5_soft_cq *cq, uint8_t opcode)
{
	MUST(((cq->produced - be32toh(atomic_load(cq->record))) & 0xffffff) < cq->count);
	__atomic_store_n(&mlx5_soft_next_cqe(cq)->op_own, (uint8_t)(opcode << 4 | (cq->produced / cq->count & 1)),
	                 __ATOMIC_RELEASE);
	cq->produced++;
}

static void mlx5_soft_write_error_cqe(struct mlx5_soft_cq *cq, uint8_t opcode, uint16_t counter,
                                      enum ibv_wc_status status)
{
	struct mlx5_err_cqe *cqe = (struct mlx5_err_cqe *)mlx5_soft_next_cqe(cq);

	cqe->wqe_counter = htobe16(counter);
	cqe->syndrome = status == IBV_WC_WR_FLUSH_ERR   ? MLX5_CQE_SYNDROME_WR_FLUSH_ERR
	                : status == IBV_WC_LOC_LEN_ERR  ? MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR
	                : status == IBV_WC_LOC_PROT_ERR ? MLX5_CQE_SYNDROME_LOCAL_PROT_ERR
	                                                : MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
	mlx5_soft_write_cqe(cq, opcode);
}

/* ---- sends ---- */

static void mlx5_soft_read_sq_bytes(const struct rings *rings, uint32_t *at, uint32_t end, void *to, uint32_t n)
{
	MUST(n <= end - *at);
	for (uint32_t i = 0; i < n; i++, ++*at)
		((char *)to)[i] = rings->sq[*at % (rings->sq_blocks * 64)];
}

/* One WQE as a frame, and as a request of the queue pair; returns its blocks. */
static uint32_t mlx5_soft_wqe_to_frame(struct rings *rings, char *frame, struct ibv_send_wr *wr, bool *asked)
{
	const uint32_t begin = (rings->sq_index & (rings->sq_blocks - 1)) * 64;
	struct mlx5_wqe_ctrl_seg ctrl;
	struct mlx5_wqe_eth_seg eth;
	struct ibv_sge *sge = wr->sg_list;
	uint32_t at = begin, end = begin + 16, segs, opcode, len;

	mlx5_soft_read_sq_bytes(rings, &at, end, &ctrl, sizeof(ctrl));
	segs = be32toh(ctrl.qpn_ds) & 0x3f;
	opcode = be32toh(ctrl.opmod_idx_opcode) & 0xff;
	MUST(opcode == MLX5_OPCODE_SEND || opcode == MLX5_OPCODE_TSO);
	MUST(be32toh(ctrl.opmod_idx_opcode) == ((rings->sq_index & 0xffff) << 8 | opcode));
	MUST(be32toh(ctrl.qpn_ds) >> 8 == rings->qp->qp_num && segs >= 3);
	end = begin + segs * 16;
	mlx5_soft_read_sq_bytes(rings, &at, end, &eth, 14);
	len = be16toh(eth.inline_hdr_sz);
	MUST(len >= 18 && len <= 128);
	mlx5_soft_read_sq_bytes(rings, &at, end, frame, len);
	while (at < end) {
		uint32_t word, lkey;
		uint64_t addr;

		at = (at + 15) & ~15u;
		if (at == end)
			break;
		mlx5_soft_read_sq_bytes(rings, &at, end, &word, 4);
		word = be32toh(word);
		MUST((word & ~MLX5_INLINE_SEG) <= FRAME_MAX - len);
		if (word & MLX5_INLINE_SEG) {
			word &= ~MLX5_INLINE_SEG;
			mlx5_soft_read_sq_bytes(rings, &at, end, frame + len, word);
		} else {
			mlx5_soft_read_sq_bytes(rings, &at, end, &lkey, 4);
			mlx5_soft_read_sq_bytes(rings, &at, end, &addr, 8);
			memcpy(frame + len, (const void *)(uintptr_t)be64toh(addr), word);
		}
		len += word;
	}
	*sge = (struct ibv_sge){.addr = (uintptr_t)frame, .length = len, .lkey = rings->mr->lkey};
	wr->opcode = IBV_WR_SEND;
	wr->send_flags = IBV_SEND_SIGNALED | (eth.cs_flags != 0 ? IBV_SEND_IP_CSUM : 0);
	if (opcode == MLX5_OPCODE_TSO) {
		const uint16_t header = be16toh(eth.inline_hdr_sz);

		wr->opcode = IBV_WR_TSO;
		wr->tso.hdr = frame;
		wr->tso.hdr_sz = header;
		wr->tso.mss = be16toh(eth.mss);
		sge->addr += header;
		sge->length -= header;
	}
	*asked = ctrl.fm_ce_se != 0;
	return (segs + 3) / 4;
}

/* ---- posts ---- */

static bool mlx5_soft_take_posted_receives(struct rings *rings)
{
	uint32_t record, end;
	bool any = false;

	pthread_mutex_lock(&rings->lock);
	record = be32toh(atomic_load(&rings->records[MLX5_RCV_DBR]));
	end = rings->rq_index + ((record - rings->rq_index) & 0xffff);
	MUST(end - rings->rq_done <= rings->rq_count);
	for (; rings->rq_index != end; rings->rq_index++) {
		const struct mlx5_wqe_data_seg *seg =
		        (const void *)(rings->rq +
		                       (size_t)(rings->rq_index & (rings->rq_count - 1)) * rings->rq_stride);
		struct ibv_sge sge[16];
		struct ibv_recv_wr wr = {.sg_list = sge}, *bad;

		for (; (uint32_t)wr.num_sge < rings->rq_stride / 16; wr.num_sge++, seg++) {
			if (be32toh(seg->lkey) == MLX5_INVALID_LKEY)
				break;
			sge[wr.num_sge] =
			        (struct ibv_sge){be64toh(seg->addr), be32toh(seg->byte_count), be32toh(seg->lkey)};
		}
		if (ibv_post_recv(rings->qp, &wr, &bad) != 0)
			break;
		any = true;
	}
	pthread_mutex_unlock(&rings->lock);
	return any;
}

/* A card that receives looks for receives then. So what is posted in this process is, before anything is sent. */
static void mlx5_soft_take_all_posted_receives(void)
{
	pthread_mutex_lock(&mlx5_soft_rings_lock);
	for (struct rings *rings = mlx5_soft_all_rings; rings != NULL; rings = rings->next)
		mlx5_soft_take_posted_receives(rings);
	pthread_mutex_unlock(&mlx5_soft_rings_lock);
}

/* ---- sends that wait ---- */

static bool mlx5_soft_take_posted_sends(struct rings *rings)
{
	const uint32_t record = be32toh(atomic_load(&rings->records[MLX5_SND_DBR]));
	const uint32_t end = rings->sq_index + ((record - rings->sq_index) & 0xffff);
	bool any = false;

	MUST(end - rings->sq_index <= rings->sq_blocks);
	if (rings->sq_index != end)
		mlx5_soft_take_all_posted_receives();
	while (rings->sq_index != end) {
		const uint32_t place = rings->sent_to % rings->cap.max_send_wr;
		char *frame = rings->frames + (size_t)place * FRAME_MAX;
		struct ibv_sge sge;
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
		bool asked;
		uint32_t blocks;

		MUST(rings->sent_to - rings->sent_from < rings->cap.max_send_wr);
		blocks = mlx5_soft_wqe_to_frame(rings, frame, &wr, &asked);
		rings->sent[place] = (struct mlx5_soft_sent){(uint16_t)rings->sq_index, asked};
		if (ibv_post_send(rings->qp, &wr, &bad) != 0)
			break; /* the device has gone */
		rings->sent_to++;
		rings->sq_index += blocks;
		any = true;
	}
	return any;
}

static bool mlx5_soft_take_send_completions(struct rings *rings)
{
	struct ibv_wc wc[16];
	const int n = ibv_poll_cq(rings->tx.cq, 16, wc);

	for (int i = 0; i < n; i++) {
		const struct mlx5_soft_sent *sent = &rings->sent[rings->sent_from++ % rings->cap.max_send_wr];

		if (wc[i].status != IBV_WC_SUCCESS) {
			mlx5_soft_write_error_cqe(&rings->tx, MLX5_CQE_REQ_ERR, sent->counter, wc[i].status);
		} else if (sent->asked) {
			mlx5_soft_next_cqe(&rings->tx)->wqe_counter = htobe16(sent->counter);
			mlx5_soft_write_cqe(&rings->tx, MLX5_CQE_REQ);
		}
	}
	return n > 0;
}

/* ---- receives ---- */

static bool mlx5_soft_take_received(struct rings *rings)
{
	struct ibv_wc wc[16];
	int n;

	pthread_mutex_lock(&rings->lock);
	n = ibv_poll_cq(rings->rx.cq, 16, wc);
	for (int i = 0; i < n; i++) {
		struct mlx5_cqe64 *cqe = mlx5_soft_next_cqe(&rings->rx);
		const uint16_t counter = (uint16_t)rings->rq_done++;

		if (wc[i].status != IBV_WC_SUCCESS) {
			mlx5_soft_write_error_cqe(&rings->rx, MLX5_CQE_RESP_ERR, counter, wc[i].status);
			continue;
		}
		cqe->byte_cnt = htobe32(wc[i].byte_len);
		cqe->hds_ip_ext = wc[i].wc_flags & IBV_WC_IP_CSUM_OK ? MLX5_CQE_L3_OK | MLX5_CQE_L4_OK : 0;
		cqe->l4_hdr_type_etc = MLX5_CQE_L3_HDR_TYPE_IPV4 << 2;
		cqe->wqe_counter = htobe16(counter);
		mlx5_soft_write_cqe(&rings->rx, MLX5_CQE_RESP_SEND);
	}
	pthread_mutex_unlock(&rings->lock);
	return n > 0;
}

/* ---- events ---- */

/* The register is written after its record, and says the same. */
static void mlx5_soft_take_cq_arm(struct rings *rings)
{
	_Atomic uint64_t *reg = (_Atomic uint64_t *)(void *)(rings->cq_uar + MLX5_CQ_DOORBELL);
	const uint64_t word = be64toh(atomic_exchange(reg, 0));

	if (word == 0)
		return;
	MUST((word >> 32) == be32toh(atomic_load(&rings->rx.record[1])));
	rings->is_armed = true;
	rings->armed_at = (uint32_t)(word >> 32) & 0xffffff;
}

static void signal_cq_channel_if_armed(struct rings *rings)
{
	const uint64_t one = 1;

	if (!rings->is_armed || ((rings->rx.produced - rings->armed_at) & 0xffffff) == 0)
		return;
	rings->is_armed = false;
	MUST(syscall(SYS_write, rings->rx.cq->channel->fd, &one, sizeof(one)) == sizeof(one));
}

static void *mlx5_soft_card_thread(void *arg)
{
	struct rings *rings = arg;

	while (!atomic_load(&rings->stop)) {
		const struct timespec idle = {.tv_nsec = 50000};
		bool any = mlx5_soft_take_posted_receives(rings);

		any |= mlx5_soft_take_posted_sends(rings);
		if (rings->rx.cq != NULL && rings->tx.cq != NULL) {
			any |= mlx5_soft_take_send_completions(rings);
			any |= mlx5_soft_take_received(rings);
			mlx5_soft_take_cq_arm(rings);
			signal_cq_channel_if_armed(rings);
		}
		if (!any)
			nanosleep(&idle, NULL);
	}
	return NULL;
}

/* ---- libmlx5 ---- */

static void mlx5_soft_cq_init(struct mlx5_soft_cq *cq, uint32_t packets)
{
	cq->count = mlx5_soft_round_up_to_power_of_2(packets);
	cq->entries = mlx5_soft_alloc_ring_memory((size_t)cq->count * 64);
	cq->record = mlx5_soft_alloc_ring_memory(4096);
	for (uint32_t i = 0; i < cq->count; i++)
		cq->entries[(size_t)i * 64 + 63] = (char)(MLX5_CQE_INVALID << 4);
}

static struct rings *mlx5_soft_make_rings(struct ibv_qp *qp)
{
	struct rings *rings = calloc(1, sizeof(*rings));
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	uint32_t listed, in_line;
	sigset_t every, before;

	MUST(rings != NULL && ibv_query_qp(qp, &attr, IBV_QP_CAP, &init) == 0);
	rings->qp = qp;
	rings->cap = init.cap;
	pthread_mutex_init(&rings->lock, NULL);
	listed = 16 + 160 + 16 * init.cap.max_send_sge;
	in_line = 48 + ((4 + init.cap.max_inline_data + 15) & ~15u);
	rings->sq_blocks = mlx5_soft_round_up_to_power_of_2(init.cap.max_send_wr *
	                                                    (((listed > in_line ? listed : in_line) + 63) / 64));
	rings->rq_count = mlx5_soft_round_up_to_power_of_2(init.cap.max_recv_wr);
	rings->rq_stride = 16 * mlx5_soft_round_up_to_power_of_2(init.cap.max_recv_sge);
	rings->sq = mlx5_soft_alloc_ring_memory((size_t)rings->sq_blocks * 64);
	rings->rq = mlx5_soft_alloc_ring_memory((size_t)rings->rq_count * rings->rq_stride);
	rings->records = mlx5_soft_alloc_ring_memory(4096);
	rings->uar = mlx5_soft_alloc_ring_memory(4096);
	rings->cq_uar = mlx5_soft_alloc_ring_memory(4096);
	rings->sent = calloc(init.cap.max_send_wr, sizeof(rings->sent[0]));
	rings->frames = mlx5_soft_alloc_ring_memory((size_t)init.cap.max_send_wr * FRAME_MAX);
	rings->mr = ibv_reg_mr(qp->pd, rings->frames, (size_t)init.cap.max_send_wr * FRAME_MAX, IBV_ACCESS_LOCAL_WRITE);
	MUST(rings->sent != NULL && rings->mr != NULL);
	mlx5_soft_cq_init(&rings->rx, init.cap.max_recv_wr);
	mlx5_soft_cq_init(&rings->tx, init.cap.max_send_wr);
	rings->rx.cq = qp->recv_cq;
	rings->tx.cq = qp->send_cq;
	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, &every, &before);
	MUST(pthread_create(&rings->thread, NULL, mlx5_soft_card_thread, rings) == 0);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_mutex_lock(&mlx5_soft_rings_lock);
	rings->next = mlx5_soft_all_rings;
	mlx5_soft_all_rings = rings;
	pthread_mutex_unlock(&mlx5_soft_rings_lock);
	return rings;
}

static struct rings *mlx5_soft_rings_of_cq(const struct ibv_cq *cq)
{
	struct rings *rings;

	pthread_mutex_lock(&mlx5_soft_rings_lock);
	for (rings = mlx5_soft_all_rings; rings != NULL && rings->rx.cq != cq && rings->tx.cq != cq;
	     rings = rings->next)
		;
	pthread_mutex_unlock(&mlx5_soft_rings_lock);
	return rings;
}

EXPORT bool mlx5dv_is_supported(struct ibv_device *device)
{
	(void)device;
	return true;
}

EXPORT int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t type)
{
	struct rings *rings;
	struct mlx5_soft_cq *cq;

	if (type == MLX5DV_OBJ_QP) {
		if (getenv("VMASOFT_MLX5_REFUSES") != NULL)
			return EOPNOTSUPP;
		rings = mlx5_soft_make_rings(obj->qp.in);
		*obj->qp.out = (struct mlx5dv_qp){.dbrec = (__be32 *)rings->records,
		                                  .sq = {rings->sq, rings->sq_blocks, 64},
		                                  .rq = {rings->rq, rings->rq_count, rings->rq_stride},
		                                  .bf = {rings->uar, 256}};
		return 0;
	}
	rings = mlx5_soft_rings_of_cq(obj->cq.in);
	if (type != MLX5DV_OBJ_CQ || rings == NULL)
		return EINVAL;
	cq = rings->rx.cq == obj->cq.in ? &rings->rx : &rings->tx;
	*obj->cq.out = (struct mlx5dv_cq){.buf = cq->entries,
	                                  .dbrec = (__be32 *)cq->record,
	                                  .cqe_cnt = cq->count,
	                                  .cqe_size = 64,
	                                  .cq_uar = rings->cq_uar,
	                                  .cqn = 1};
	return 0;
}

EXPORT int mlx5dv_get_clock_info(struct ibv_context *context, struct mlx5dv_clock_info *info)
{
	(void)context, (void)info;
	return EOPNOTSUPP;
}

/* ---- libibverbs ---- */

/* Of a queue pair that ends: its card's thread first. The rings are unmapped, so that who looks at them is seen. */
EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	int (*next)(struct ibv_qp *) = (int (*)(struct ibv_qp *))dlsym(RTLD_NEXT, "ibv_destroy_qp");
	struct rings **place, *rings;
	int rc;

	pthread_mutex_lock(&mlx5_soft_rings_lock);
	for (place = &mlx5_soft_all_rings; *place != NULL && (*place)->qp != qp; place = &(*place)->next)
		;
	rings = *place;
	if (rings != NULL)
		*place = rings->next;
	pthread_mutex_unlock(&mlx5_soft_rings_lock);
	if (rings != NULL) {
		atomic_store(&rings->stop, true);
		pthread_join(rings->thread, NULL);
	}
	rc = next(qp);
	if (rings == NULL)
		return rc;
	ibv_dereg_mr(rings->mr);
	munmap(rings->sq, (size_t)rings->sq_blocks * 64);
	munmap(rings->rq, (size_t)rings->rq_count * rings->rq_stride);
	munmap(rings->rx.entries, (size_t)rings->rx.count * 64);
	munmap(rings->tx.entries, (size_t)rings->tx.count * 64);
	munmap((void *)rings->rx.record, 4096);
	munmap((void *)rings->tx.record, 4096);
	munmap((void *)rings->records, 4096);
	munmap(rings->uar, 4096);
	munmap(rings->cq_uar, 4096);
	munmap(rings->frames, (size_t)rings->cap.max_send_wr * FRAME_MAX);
	free(rings->sent);
	free(rings);
	return rc;
}

static struct ibv_td *mlx5_soft_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct ibv_td *td = calloc(1, sizeof(*td));

	(void)attr;
	if (td != NULL)
		td->context = context;
	return td;
}

static int mlx5_soft_dealloc_td(struct ibv_td *td)
{
	free(td);
	return 0;
}

static struct soft_pd *domains[64];

/* The same domain once more, as the driver knows it. */
static struct ibv_pd *mlx5_soft_alloc_parent_domain(struct ibv_context *context,
                                                    struct ibv_parent_domain_init_attr *attr)
{
	struct soft_pd *pd = malloc(sizeof(*pd));

	(void)context;
	MUST(pd != NULL);
	*pd = *(const struct soft_pd *)attr->pd;
	pthread_mutex_lock(&mlx5_soft_rings_lock);
	for (size_t i = 0; i < sizeof(domains) / sizeof(domains[0]); i++)
		if (domains[i] == NULL) {
			domains[i] = pd;
			pthread_mutex_unlock(&mlx5_soft_rings_lock);
			return &pd->pd;
		}
	MUST(!"room for another domain");
	return NULL;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	int (*next)(struct ibv_pd *) = (int (*)(struct ibv_pd *))dlsym(RTLD_NEXT, "ibv_dealloc_pd");
	bool ours = false;

	pthread_mutex_lock(&mlx5_soft_rings_lock);
	for (size_t i = 0; i < sizeof(domains) / sizeof(domains[0]) && !ours; i++)
		if ((void *)domains[i] == (void *)pd) {
			ours = true;
			domains[i] = NULL;
		}
	pthread_mutex_unlock(&mlx5_soft_rings_lock);
	if (!ours)
		return next(pd);
	free(pd);
	return 0;
}

static int (*next_destroy_flow)(struct ibv_flow *flow);

/* What a card has steered by a rule is in its ring when the rule has ended. */
static int mlx5_soft_destroy_flow(struct ibv_flow *flow)
{
	const int rc = next_destroy_flow(flow);

	pthread_mutex_lock(&mlx5_soft_rings_lock);
	for (struct rings *rings = mlx5_soft_all_rings; rings != NULL; rings = rings->next)
		while (mlx5_soft_take_received(rings))
			;
	pthread_mutex_unlock(&mlx5_soft_rings_lock);
	return rc;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *(*next)(struct ibv_device *) =
	        (struct ibv_context * (*)(struct ibv_device *)) dlsym(RTLD_NEXT, "ibv_open_device");
	struct ibv_context *context = next(device);
	struct verbs_context *extended = context != NULL ? verbs_get_ctx(context) : NULL;

	if (extended != NULL) {
		next_destroy_flow = extended->ibv_destroy_flow;
		extended->ibv_destroy_flow = mlx5_soft_destroy_flow;
		extended->alloc_td = mlx5_soft_alloc_td;
		extended->dealloc_td = mlx5_soft_dealloc_td;
		extended->alloc_parent_domain = mlx5_soft_alloc_parent_domain;
	}
	return context;
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));

	MUST(channel != NULL);
	channel->context = context;
	channel->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	MUST(channel->fd >= 0);
	return channel;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	syscall(SYS_close, channel->fd);
	free(channel);
	return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	uint64_t one;

	*cq = NULL;
	*context = NULL;
	return syscall(SYS_read, channel->fd, &one, sizeof(one)) == sizeof(one) ? 0 : -1;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	(void)cq, (void)n;
}
