/*
 * mlx5_model - the rings of an mlx5 card in memory, and a card that is strict about them: mlx5dv_init_obj hands them
 * out over a queue pair of fake_provider.h, and the test tells the card when to look.
 *
 * Each ring ends at a page that cannot be touched. The registers' page cannot be written until somebody writes it: then
 * the card notes what the doorbell records say at that moment (`traps`). What a card would answer with an error, or
 * read wrong without a word, ends the program: an index that is not the next one, a length that does not fit, bytes
 * outside registered memory, a ring that overruns, a register before its record.
 *
 * Threads: the test's only one. Written from <infiniband/mlx5dv.h>, without code of verbs/mlx5_wqe.h.
 */
#ifndef VMA_NIC_TEST_MLX5_MODEL_H
#define VMA_NIC_TEST_MLX5_MODEL_H

#include <endian.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../verbs/mlx5.h"
#include "fake_provider.h"

#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: the card objects: %s\n", __FILE__, __LINE__, #condition);              \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

enum {
	MODEL_PAGE = 4096,
	MODEL_QPN = 0x1234,
	MODEL_RX_CQN = 0x51,
	MODEL_TX_CQN = 0x52,
	MODEL_SENT = 4096,       /* frames that are remembered */
	MODEL_FRAME = 40960,     /* bytes of the longest */
	MODEL_WQE = 64 * 63 / 4, /* bytes of the longest */
	MODEL_BF = 256,
};

struct mlx5_model_sent_frame {
	uint32_t len;
	uint16_t mss, header; /* of one to be cut; else 0 */
	bool checksum, is_inline;
	uint8_t *bytes;
};

struct mlx5_model_config {
	uint32_t cqe_bytes, bf_bytes;
	uint32_t start; /* of all indices, which count on from here */
	bool traps;
};

struct mlx5_model_cq {
	char *entries;
	uint32_t count, bytes;
	uint32_t produced;
	uint32_t *record;
};

struct model {
	struct mlx5_model_config config;
	struct mlx5_lib lib;
	uint32_t sq_blocks, rq_count, rq_stride;
	char *sq, *rq;
	struct mlx5_model_cq rx, tx;
	uint32_t *records; /* of the queue pair: receive, send */
	char *uar, *cq_uar;
	/* the card */
	uint32_t sq_index, sq_free, rq_index; /* sq_free: blocks before it may be written over */
	uint32_t bf_at;
	uint32_t record_at_ring, record_at_arm; /* network order */
	unsigned rings, arms, events;
	bool is_armed;
	uint32_t arm_index;
	struct {
		uint16_t counter;
		bool asked; /* for a completion */
		uint32_t blocks_end;
	} due[MODEL_SENT]; /* WQEs that have not completed */
	uint32_t due_from, due_to;
	struct mlx5_model_sent_frame sent[MODEL_SENT];
	uint32_t sent_n, blueflames;
	uint8_t *scratch;
};

static struct model model;

/* ---- memory ---- */

/* So many bytes, of which the last is before a page that cannot be touched. */
static char *mlx5_model_alloc_before_guard_page(size_t bytes)
{
	const size_t pages = (bytes + MODEL_PAGE - 1) & ~(size_t)(MODEL_PAGE - 1);
	char *map = mmap(NULL, pages + 2 * MODEL_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(map != MAP_FAILED);
	MUST(mprotect(map, MODEL_PAGE, PROT_NONE) == 0);
	MUST(mprotect(map + MODEL_PAGE + pages, MODEL_PAGE, PROT_NONE) == 0);
	return map + MODEL_PAGE + pages - bytes;
}

static void mlx5_model_unmap_guarded_memory(char *memory, size_t bytes)
{
	const size_t pages = (bytes + MODEL_PAGE - 1) & ~(size_t)(MODEL_PAGE - 1);

	if (memory != NULL)
		munmap(memory + bytes - pages - MODEL_PAGE, pages + 2 * MODEL_PAGE);
}

static bool mlx5_model_protect_registers(int how)
{
	return mprotect(model.uar, MODEL_PAGE, how) == 0 && mprotect(model.cq_uar, MODEL_PAGE, how) == 0;
}

/* The first store to a register since the card has looked. */
static void mlx5_model_on_register_store(int number, siginfo_t *info, void *context)
{
	const char *at = info->si_addr;

	(void)context;
	if (at >= model.uar && at < model.uar + MODEL_PAGE)
		model.record_at_ring = model.records[MLX5_SND_DBR];
	else if (at >= model.cq_uar && at < model.cq_uar + MODEL_PAGE)
		model.record_at_arm = model.rx.record[1];
	else
		signal(number, SIG_DFL); /* not ours: it happens again, and ends the program */
	mlx5_model_protect_registers(PROT_READ | PROT_WRITE);
}

/* cmocka takes the signal for itself when a case begins: so in the case, before the first store to a register. */
static void mlx5_model_trap_register_stores(void)
{
	const struct sigaction action = {.sa_sigaction = mlx5_model_on_register_store, .sa_flags = SA_SIGINFO};

	if (model.config.traps)
		MUST(sigaction(SIGSEGV, &action, NULL) == 0);
}

static void mlx5_model_cq_init(struct mlx5_model_cq *cq, uint32_t count)
{
	cq->count = count;
	cq->bytes = model.config.cqe_bytes;
	cq->entries = mlx5_model_alloc_before_guard_page((size_t)count * cq->bytes);
	cq->record = (uint32_t *)(void *)mlx5_model_alloc_before_guard_page(64);
	cq->produced = model.config.start;
	cq->record[0] = htobe32(model.config.start & 0xffffff);
	memset(cq->entries, 0, (size_t)count * cq->bytes);
	for (uint32_t i = 0; i < count; i++)
		cq->entries[(i + 1) * cq->bytes - 1] = (char)(MLX5_CQE_INVALID << 4);
}

static void mlx5_model_cq_free(struct mlx5_model_cq *cq)
{
	mlx5_model_unmap_guarded_memory(cq->entries, (size_t)cq->count * cq->bytes);
	mlx5_model_unmap_guarded_memory((char *)cq->record, 64);
}

static void mlx5_model_free_queues_and_registers(void)
{
	if (model.sq == NULL)
		return;
	mlx5_model_unmap_guarded_memory(model.sq, (size_t)model.sq_blocks * 64);
	mlx5_model_unmap_guarded_memory(model.rq, (size_t)model.rq_count * model.rq_stride);
	mlx5_model_cq_free(&model.rx);
	mlx5_model_cq_free(&model.tx);
	mlx5_model_unmap_guarded_memory((char *)model.records, 64);
	mlx5_model_unmap_guarded_memory(model.uar, MODEL_PAGE);
	mlx5_model_unmap_guarded_memory(model.cq_uar, MODEL_PAGE);
	for (uint32_t i = 0; i < model.sent_n; i++)
		free(model.sent[i].bytes);
	free(model.scratch);
	memset(&model, 0, sizeof(model));
}

/* ---- what libmlx5 says of them ---- */

static bool mlx5_model_is_supported(struct ibv_device *device)
{
	(void)device;
	return true;
}

static void mlx5_model_describe_cq(const struct mlx5_model_cq *cq, uint32_t number, struct mlx5dv_cq *out)
{
	*out = (struct mlx5dv_cq){.buf = cq->entries,
	                          .dbrec = (__be32 *)cq->record,
	                          .cqe_cnt = cq->count,
	                          .cqe_size = cq->bytes,
	                          .cq_uar = model.cq_uar,
	                          .cqn = number};
}

static int mlx5_model_init_obj(struct mlx5dv_obj *obj, uint64_t type)
{
	if (type == MLX5DV_OBJ_CQ && obj->cq.in == ibv_cq_ex_to_cq(&fake.rx_cq)) {
		mlx5_model_describe_cq(&model.rx, MODEL_RX_CQN, obj->cq.out);
		return 0;
	}
	if (type == MLX5DV_OBJ_CQ) {
		mlx5_model_describe_cq(&model.tx, MODEL_TX_CQN, obj->cq.out);
		return 0;
	}
	*obj->qp.out = (struct mlx5dv_qp){.dbrec = (__be32 *)model.records,
	                                  .sq = {model.sq, model.sq_blocks, 64},
	                                  .rq = {model.rq, model.rq_count, model.rq_stride},
	                                  .bf = {model.uar, model.config.bf_bytes}};
	return 0;
}

static struct mlx5dv_clock_info mlx5_model_clock = {.mult = 1, .shift = 0, .mask = UINT64_MAX};

static int mlx5_model_get_clock_info(struct ibv_context *context, struct mlx5dv_clock_info *info)
{
	(void)context;
	*info = mlx5_model_clock;
	return 0;
}

static uint32_t mlx5_model_round_up_to_power_of_two(uint32_t n)
{
	uint32_t power = 1;

	while (power < n)
		power *= 2;
	return power;
}

/* The queue of fake.verbs becomes one of this card's; as large as libmlx5 makes it for these packets. */
static inline void mlx5_model_replace_qp_rings(const struct mlx5_model_config *config)
{
	struct verbs_qp *qp = fake.verbs;
	static struct ibv_td td;
	const struct verbs_queue_attr attr = {.rx_packets = qp->base.rx_depth / qp->rx_bufs,
	                                      .rx_sges = qp->rx_bufs,
	                                      .tx_packets = qp->base.tx_depth,
	                                      .tx_sges = qp->tx_segs_max,
	                                      .tso = true};
	const uint32_t listed = 16 + 160 + 16 * attr.tx_sges, in_line = 48 + ((4 + qp->queue.inline_max + 15) & ~15u);
	const uint32_t longest = ((listed > in_line ? listed : in_line) + 63) / 64;
	const char *what;

	mlx5_model_free_queues_and_registers();
	model.config = *config;
	model.lib = (struct mlx5_lib){mlx5_model_is_supported, mlx5_model_init_obj, mlx5_model_get_clock_info};
	model.sq_blocks = mlx5_model_round_up_to_power_of_two(attr.tx_packets * longest);
	model.rq_count = mlx5_model_round_up_to_power_of_two(attr.rx_packets);
	model.rq_stride = 16 * mlx5_model_round_up_to_power_of_two(attr.rx_sges);
	model.sq = mlx5_model_alloc_before_guard_page((size_t)model.sq_blocks * 64);
	model.rq = mlx5_model_alloc_before_guard_page((size_t)model.rq_count * model.rq_stride);
	model.records = (uint32_t *)(void *)mlx5_model_alloc_before_guard_page(64);
	model.uar = mlx5_model_alloc_before_guard_page(MODEL_PAGE);
	model.cq_uar = mlx5_model_alloc_before_guard_page(MODEL_PAGE);
	model.scratch = malloc(MODEL_FRAME);
	mlx5_model_cq_init(&model.rx, mlx5_model_round_up_to_power_of_two(attr.rx_packets));
	mlx5_model_cq_init(&model.tx, mlx5_model_round_up_to_power_of_two(attr.tx_packets));
	model.sq_index = model.sq_free = model.rq_index = config->start;
	model.records[MLX5_RCV_DBR] = model.records[MLX5_SND_DBR] = htobe32(config->start & 0xffff);
	fake.device.mlx5 = &model.lib;
	fake.device.limits.has_checksum = true;
	fake.qp.qp_num = MODEL_QPN;
	qp->queue.rx_cq = ibv_cq_ex_to_cq(&fake.rx_cq);
	qp->queue.tx_cq = ibv_cq_ex_to_cq(&fake.tx_cq);
	qp->queue.td = &td;
	MUST(mlx5_queue_open_rings(&qp->queue, &attr, &what) == 0);
	qp->queue.mlx5->sq_index = config->start;
	qp->queue.mlx5->rq_head = qp->queue.mlx5->rq_tail = config->start;
	atomic_store(&qp->queue.mlx5->rx_cq.index, config->start);
	atomic_store(&qp->queue.mlx5->tx_cq.index, config->start);
	qp->base.ops = qp->base.backend_ops = &vma_nic_mlx5_ops;
	mlx5_model_trap_register_stores();
	if (config->traps)
		MUST(mlx5_model_protect_registers(PROT_READ));
	verbs_qp_data_path_init(qp);
}

/* Before fake_provider_free_qp. */
static inline void mlx5_model_detach(void)
{
	if (fake.verbs != NULL)
		mlx5_queue_close_rings(fake.verbs->queue.mlx5);
	if (model.sq != NULL && model.config.traps)
		signal(SIGSEGV, SIG_DFL);
	mlx5_model_free_queues_and_registers();
}

/* ---- completions ---- */

static inline struct mlx5_cqe64 *mlx5_model_next_cqe(struct mlx5_model_cq *cq)
{
	const uint32_t at = cq->produced & (cq->count - 1);

	return (struct mlx5_cqe64 *)(void *)(cq->entries + (size_t)(at + 1) * cq->bytes - 64);
}

/* The byte that makes it count, last. */
static inline void mlx5_model_push_cqe(struct mlx5_model_cq *cq, uint8_t opcode)
{
	const uint32_t read = be32toh(cq->record[0]);

	MUST(read <= 0xffffff);
	MUST(((cq->produced - read) & 0xffffff) < cq->count); /* the software has read what is written over */
	__atomic_store_n(&mlx5_model_next_cqe(cq)->op_own,
	                 (uint8_t)(opcode << 4 | (cq->produced / cq->count & MLX5_CQE_OWNER_MASK)), __ATOMIC_RELEASE);
	cq->produced++;
}

static inline void mlx5_model_push_error_cqe(struct mlx5_model_cq *cq, uint8_t opcode, uint16_t counter,
                                             uint8_t syndrome)
{
	struct mlx5_err_cqe *cqe = (struct mlx5_err_cqe *)mlx5_model_next_cqe(cq);

	memset(cqe, 0xee, sizeof(*cqe) - 1);
	cqe->wqe_counter = htobe16(counter);
	cqe->syndrome = syndrome;
	mlx5_model_push_cqe(cq, opcode);
}

/* ---- what is sent ---- */

/* Whether the card knows these bytes by this key: the frames of one unit (fake_provider.h). */
static inline void mlx5_model_check_memory_key(uint32_t lkey, uint64_t addr, uint32_t len)
{
	const uint32_t unit = lkey - 100, shift = fake.arena->frame_shift + VERBS_UNIT_SHIFT;
	const uint64_t first = (uint64_t)(uintptr_t)fake.arena->frames + ((uint64_t)unit << shift);

	MUST(unit < FAKE_FRAMES >> VERBS_UNIT_SHIFT && fake.lkeys[unit].key == lkey);
	MUST(len != 0 && addr >= first && addr - first <= (UINT64_C(1) << shift) - len);
}

struct mlx5_model_wqe_reader {
	uint32_t block;   /* of the WQE's begin */
	uint32_t at, end; /* bytes from there */
};

static inline void mlx5_model_read_wqe_bytes(struct mlx5_model_wqe_reader *reader, void *to, uint32_t n)
{
	MUST(n <= reader->end - reader->at);
	for (uint32_t i = 0; i < n; i++, reader->at++)
		((uint8_t *)to)[i] =
		        (uint8_t)model.sq[((size_t)reader->block * 64 + reader->at) % (model.sq_blocks * 64)];
}

static inline void mlx5_model_check_and_read_wqe_eth_segment(struct mlx5_model_wqe_reader *reader,
                                                             struct mlx5_model_sent_frame *frame, uint8_t opcode)
{
	struct mlx5_wqe_eth_seg eth;
	uint32_t header;

	mlx5_model_read_wqe_bytes(reader, &eth, offsetof(struct mlx5_wqe_eth_seg, inline_hdr_start));
	header = be16toh(eth.inline_hdr_sz);
	MUST(eth.rsvd0 == 0 && eth.rsvd1 == 0 && eth.rsvd2 == 0);
	MUST(eth.cs_flags == 0 || eth.cs_flags == (MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM));
	MUST(header >= 18 || opcode == MLX5_OPCODE_TSO); /* a card of any inline mode */
	MUST(header >= 14 && header <= 128);
	MUST((opcode == MLX5_OPCODE_TSO) == (eth.mss != 0));
	mlx5_model_read_wqe_bytes(reader, model.scratch, header);
	reader->at = (reader->at + 15) & ~15u;
	MUST(reader->at <= reader->end);
	frame->len = header;
	frame->checksum = eth.cs_flags != 0;
	frame->mss = be16toh(eth.mss);
	frame->header = eth.mss != 0 ? (uint16_t)header : 0;
}

static inline void mlx5_model_read_data_segments(struct mlx5_model_wqe_reader *reader,
                                                 struct mlx5_model_sent_frame *frame)
{
	while (reader->at < reader->end) {
		uint32_t word, lkey;
		uint64_t addr;

		mlx5_model_read_wqe_bytes(reader, &word, sizeof(word));
		word = be32toh(word);
		if (word & MLX5_INLINE_SEG) {
			word &= ~MLX5_INLINE_SEG;
			MUST(word != 0 && word <= MODEL_FRAME - frame->len);
			mlx5_model_read_wqe_bytes(reader, model.scratch + frame->len, word);
			reader->at = (reader->at + 15) & ~15u;
			MUST(reader->at == reader->end); /* it is the last one */
			frame->is_inline = true;
		} else {
			mlx5_model_read_wqe_bytes(reader, &lkey, sizeof(lkey));
			mlx5_model_read_wqe_bytes(reader, &addr, sizeof(addr));
			MUST(word <= MODEL_FRAME - frame->len);
			mlx5_model_check_memory_key(be32toh(lkey), be64toh(addr), word);
			memcpy(model.scratch + frame->len, (const void *)(uintptr_t)be64toh(addr), word);
		}
		frame->len += word;
	}
}

static inline uint32_t mlx5_model_read_send_wqe(bool *signal)
{
	struct mlx5_model_wqe_reader reader = {.block = model.sq_index & (model.sq_blocks - 1), .end = 16};
	struct mlx5_model_sent_frame frame = {.len = 0};
	struct mlx5_wqe_ctrl_seg ctrl;
	uint32_t segs, head;

	mlx5_model_read_wqe_bytes(&reader, &ctrl, sizeof(ctrl));
	head = be32toh(ctrl.opmod_idx_opcode);
	segs = be32toh(ctrl.qpn_ds) & 0x3f;
	MUST(head >> 8 == (model.sq_index & 0xffff)); /* and no modifier */
	MUST((head & 0xff) == MLX5_OPCODE_SEND || (head & 0xff) == MLX5_OPCODE_TSO);
	MUST(be32toh(ctrl.qpn_ds) >> 8 == MODEL_QPN && (be32toh(ctrl.qpn_ds) & 0xc0) == 0 && segs >= 3);
	MUST(ctrl.signature == 0 && ctrl.dci_stream_channel_id == 0 && ctrl.imm == 0);
	MUST(ctrl.fm_ce_se == 0 || ctrl.fm_ce_se == MLX5_WQE_CTRL_CQ_UPDATE);
	reader.end = segs * 16;
	mlx5_model_check_and_read_wqe_eth_segment(&reader, &frame, head & 0xff);
	mlx5_model_read_data_segments(&reader, &frame);
	MUST(model.sent_n < MODEL_SENT);
	frame.bytes = malloc(frame.len);
	memcpy(frame.bytes, model.scratch, frame.len);
	model.sent[model.sent_n++] = frame;
	*signal = ctrl.fm_ce_se != 0;
	return (segs + 3) / 4;
}

/* The register holds the begin of the last WQE, or all of the only one. */
static inline void mlx5_model_check_bf_register(uint32_t last, uint32_t blocks, bool is_alone)
{
	const char *at = model.uar + model.bf_at;
	uint32_t written = 0;

	for (uint32_t i = 0; i < MODEL_PAGE; i++)
		if (model.uar[i] != 0)
			MUST(i >= model.bf_at &&
			     i < model.bf_at + (model.config.bf_bytes != 0 ? model.config.bf_bytes : 8));
	for (uint32_t i = 0; i < model.config.bf_bytes; i++)
		if (at[i] != 0)
			written = i + 1;
	MUST(memcmp(at, model.sq + (size_t)(last & (model.sq_blocks - 1)) * 64, 8) == 0);
	if (written > 8) {
		MUST(is_alone && blocks * 64 <= model.config.bf_bytes);
		for (uint32_t i = 0; i < blocks; i++)
			MUST(memcmp(at + (size_t)i * 64, model.sq + (size_t)((last + i) & (model.sq_blocks - 1)) * 64,
			            64) == 0);
		model.blueflames++;
	}
}

/* Somebody has kicked: the card takes all that the record says. Returns the number of frames. */
static inline unsigned mlx5_model_take_sends(void)
{
	const uint32_t record = be32toh(model.records[MLX5_SND_DBR]), first = model.sent_n;
	const uint32_t blocks = (record - model.sq_index) & 0xffff;
	uint32_t last = model.sq_index, last_blocks = 0;
	const uint32_t end = model.sq_index + blocks;

	MUST(record <= 0xffff);
	MUST(end - model.sq_free <= model.sq_blocks);
	while (model.sq_index != end) {
		bool signal;

		last = model.sq_index;
		last_blocks = mlx5_model_read_send_wqe(&signal);
		model.sq_index += last_blocks;
		MUST(end - model.sq_index <= blocks);
		model.due[model.due_to % MODEL_SENT].counter = (uint16_t)last;
		model.due[model.due_to % MODEL_SENT].asked = signal;
		model.due[model.due_to++ % MODEL_SENT].blocks_end = model.sq_index;
	}
	if (model.sent_n == first)
		return 0;
	if (model.config.traps)
		MUST(model.record_at_ring == model.records[MLX5_SND_DBR]);
	mlx5_model_check_bf_register(last, last_blocks, model.sent_n - first == 1);
	model.bf_at ^= model.config.bf_bytes;
	memset(model.uar, 0, MODEL_PAGE);
	model.rings++;
	if (model.config.traps)
		MUST(mlx5_model_protect_registers(PROT_READ));
	return model.sent_n - first;
}

static inline void mlx5_model_write_send_cqe(uint8_t syndrome)
{
	const uint32_t at = model.due_from++ % MODEL_SENT;
	struct mlx5_cqe64 *cqe = mlx5_model_next_cqe(&model.tx);

	if (syndrome != 0) {
		mlx5_model_push_error_cqe(&model.tx, MLX5_CQE_REQ_ERR, model.due[at].counter, syndrome);
	} else {
		memset(cqe, 0xee, 63);
		cqe->wqe_counter = htobe16(model.due[at].counter);
		mlx5_model_push_cqe(&model.tx, MLX5_CQE_REQ);
	}
	model.sq_free = model.due[at].blocks_end;
}

/* The next completion that was asked for; syndrome 0: it has been sent. False: there is none. */
static inline bool mlx5_model_complete_send(uint8_t syndrome)
{
	uint32_t next = model.due_from;

	while (next != model.due_to && !model.due[next % MODEL_SENT].asked)
		next++;
	if (next == model.due_to)
		return false;
	model.due_from = next;
	mlx5_model_write_send_cqe(syndrome);
	return true;
}

/* The queue has stopped: each WQE that is in it completes. */
static inline void mlx5_model_flush_sends(void)
{
	while (model.due_from != model.due_to)
		mlx5_model_write_send_cqe(MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
}

/* ---- what is received ---- */

static inline uint32_t mlx5_model_posted_receives(void)
{
	const uint32_t record = be32toh(model.records[MLX5_RCV_DBR]);
	const uint32_t posted = (record - model.rq_index) & 0xffff;

	MUST(record <= 0xffff && posted <= model.rq_count);
	return posted;
}

/* Into the buffers of the next receive, all of which are checked. */
static inline void mlx5_model_write_frame_to_posted_bufs(const uint8_t *bytes, uint32_t len)
{
	const struct mlx5_wqe_data_seg *seg =
	        (const void *)(model.rq + (size_t)(model.rq_index & (model.rq_count - 1)) * model.rq_stride);
	const uint32_t most = model.rq_stride / 16, frame = 1u << fake.arena->frame_shift;
	uint32_t parts = 0;

	for (; parts < most && be32toh(seg[parts].lkey) != MLX5_INVALID_LKEY; parts++) {
		const uint64_t addr = be64toh(seg[parts].addr);
		const uint32_t part = len < frame ? len : frame;
		const struct vma_buf *buf =
		        vma_buf_at(fake.arena, (uint32_t)((addr - (uintptr_t)fake.arena->frames) / frame));

		MUST(be32toh(seg[parts].byte_count) == frame);
		mlx5_model_check_memory_key(be32toh(seg[parts].lkey), addr, frame);
		MUST((addr - (uintptr_t)fake.arena->frames) % frame == 0 && atomic_load(&buf->refs) == 0);
		memcpy((void *)(uintptr_t)addr, bytes, part);
		bytes += part;
		len -= part;
	}
	MUST(parts == fake.verbs->rx_bufs && len == 0);
	for (; parts < most; parts++)
		MUST(be32toh(seg[parts].lkey) == MLX5_INVALID_LKEY && seg[parts].byte_count == 0);
}

static inline void mlx5_model_report_to_owner(void)
{
	if (!model.is_armed)
		return;
	model.is_armed = false;
	model.events++;
}

/* A frame comes. False: nothing is posted for it. */
static inline bool mlx5_model_receive_frame(const uint8_t *bytes, uint32_t len, bool checksums_ok, uint64_t ticks)
{
	struct mlx5_cqe64 *cqe = mlx5_model_next_cqe(&model.rx);

	if (mlx5_model_posted_receives() == 0)
		return false;
	mlx5_model_write_frame_to_posted_bufs(bytes, len);
	memset(cqe, 0xee, 63);
	cqe->byte_cnt = htobe32(len);
	cqe->timestamp = htobe64(ticks);
	cqe->hds_ip_ext = checksums_ok ? MLX5_CQE_L3_OK | MLX5_CQE_L4_OK : MLX5_CQE_L3_OK;
	cqe->l4_hdr_type_etc = MLX5_CQE_L3_HDR_TYPE_IPV4 << 2;
	cqe->wqe_counter = htobe16((uint16_t)model.rq_index++);
	mlx5_model_push_cqe(&model.rx, MLX5_CQE_RESP_SEND);
	mlx5_model_report_to_owner();
	return true;
}

static inline bool mlx5_model_complete_receive_with_error(uint8_t syndrome)
{
	if (mlx5_model_posted_receives() == 0)
		return false;
	mlx5_model_push_error_cqe(&model.rx, MLX5_CQE_RESP_ERR, (uint16_t)model.rq_index++, syndrome);
	mlx5_model_report_to_owner();
	return true;
}

/* Somebody has armed: the card believes the register, and tells at once of what lies behind the index in it. */
static inline void mlx5_model_take_cq_arm(void)
{
	uint64_t word;
	uint32_t command;

	memcpy(&word, model.cq_uar + MLX5_CQ_DOORBELL, sizeof(word));
	word = be64toh(word);
	command = (uint32_t)(word >> 32);
	MUST((uint32_t)word == MODEL_RX_CQN);
	MUST(command == be32toh(model.rx.record[1]));
	if (model.config.traps)
		MUST(model.record_at_arm == model.rx.record[1]);
	MUST(command >> 28 == (model.events & 3) && (command >> 24 & 0xf) == 0);
	MUST((command & 0xffffff) == be32toh(model.rx.record[0]));
	memset(model.cq_uar, 0, MODEL_PAGE);
	model.arms++;
	model.is_armed = true;
	if (((model.rx.produced - command) & 0xffffff) != 0)
		mlx5_model_report_to_owner();
	if (model.config.traps)
		MUST(mlx5_model_protect_registers(PROT_READ));
}

#endif
