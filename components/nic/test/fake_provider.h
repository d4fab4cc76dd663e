/*
 * fake_provider - a queue pair of the verbs backend on a provider that does nothing: sends complete at once, and what
 * is posted comes back as received, in order, when `due` says so. No device, no interface, no thread.
 *
 * What the provider's own functions cost is theirs: their names begin with fake_.
 */
#ifndef VMA_NIC_TEST_FAKE_PROVIDER_H
#define VMA_NIC_TEST_FAKE_PROVIDER_H

#include <stdlib.h>
#include <string.h>

#include <vma/bufpool.h>

#include "../backends.h"
#include "../fork.h"
#include "../verbs/verbs.h"

#define FAKE_DEPTH 1024 /* of each queue; a power of two */
#define FAKE_FRAMES (1 << 14)
#define FAKE_LKEYS_BYTES (((FAKE_FRAMES >> VERBS_UNIT_SHIFT) + 1) * sizeof(struct verbs_lkey))

struct fake_provider {
	struct verbs_lib lib;
	struct verbs_device device;
	struct verbs_context context;
	struct ibv_qp qp;
	struct ibv_qp_ex qp_ex;
	struct ibv_cq_ex rx_cq, tx_cq;
	struct nic_verbs nic;
	struct verbs_qp *verbs;
	struct verbs_lkey *lkeys;
	struct vma_bufarena *arena;
	struct vma_bufpool *rx_pool, *tx_pool;
	/* what the device sees */
	uint64_t posted[FAKE_DEPTH];
	uint32_t posted_from, posted_to;
	uint32_t due; /* receives that may come */
	uint32_t byte_len;
	uint64_t signalled[FAKE_DEPTH];
	uint32_t signalled_from, signalled_to;
	uint64_t stamp; /* of the next completion */
	/* what was sent last */
	uint32_t sends, inlined, lkey, length;
	uint64_t addr;
	unsigned flags;
	int fails;       /* an errno for the next doorbell */
	int post_fails;  /* an errno for the next post */
	unsigned pieces; /* of what was sent last, or received */
	uint32_t hdr_len, mss;
	enum ibv_wc_status status; /* of the next completion of a receive; it is good again behind it */
	bool is_wiped;
};

static struct fake_provider fake;

#define FAKE __attribute__((noinline)) static

FAKE int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	const int rc = fake.post_fails;

	(void)qp, (void)bad;
	fake.post_fails = 0;
	if (rc != 0)
		return rc;
	for (; wr != NULL; wr = wr->next)
		fake.posted[fake.posted_to++ % FAKE_DEPTH] = wr->wr_id;
	return 0;
}

static inline int fake_next_receive_completion(struct ibv_cq_ex *cq)
{
	if (fake.due == 0 || fake.posted_from == fake.posted_to)
		return ENOENT;
	fake.due--;
	cq->wr_id = fake.posted[fake.posted_from++ % FAKE_DEPTH];
	cq->status = fake.status;
	fake.status = IBV_WC_SUCCESS;
	return 0;
}

FAKE int fake_rx_start(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	(void)attr;
	return fake_next_receive_completion(cq);
}

FAKE int fake_rx_next(struct ibv_cq_ex *cq)
{
	return fake_next_receive_completion(cq);
}

FAKE void fake_end_poll(struct ibv_cq_ex *cq)
{
	(void)cq;
}

FAKE uint32_t fake_byte_len(struct ibv_cq_ex *cq)
{
	(void)cq;
	return fake.byte_len;
}

FAKE unsigned fake_wc_flags(struct ibv_cq_ex *cq)
{
	(void)cq;
	return IBV_WC_IP_CSUM_OK;
}

FAKE uint64_t fake_read_completion_timestamp(struct ibv_cq_ex *cq)
{
	(void)cq;
	return fake.stamp;
}

static inline int fake_next_send_completion(struct ibv_cq_ex *cq)
{
	if (fake.signalled_from == fake.signalled_to)
		return ENOENT;
	cq->wr_id = fake.signalled[fake.signalled_from++ % FAKE_DEPTH];
	cq->status = IBV_WC_SUCCESS;
	return 0;
}

FAKE int fake_tx_start(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	(void)attr;
	return fake_next_send_completion(cq);
}

FAKE int fake_tx_next(struct ibv_cq_ex *cq)
{
	return fake_next_send_completion(cq);
}

FAKE void fake_wr_start(struct ibv_qp_ex *qp)
{
	(void)qp;
}

FAKE void fake_wr_send(struct ibv_qp_ex *qp)
{
	fake.sends++;
	fake.flags = qp->wr_flags;
	if (qp->wr_flags & IBV_SEND_SIGNALED)
		fake.signalled[fake.signalled_to++ % FAKE_DEPTH] = qp->wr_id;
}

FAKE void fake_wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_len, uint16_t mss)
{
	(void)hdr;
	fake.hdr_len = hdr_len;
	fake.mss = mss;
	fake_wr_send(qp);
}

FAKE void fake_wr_set_sge_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *list)
{
	(void)qp;
	fake.pieces = (unsigned)n;
	fake.length = 0;
	for (size_t i = 0; i < n; i++)
		fake.length += list[i].length;
}

FAKE void fake_wr_set_inline_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_data_buf *list)
{
	(void)qp;
	fake.inlined++;
	fake.pieces = (unsigned)n;
	fake.length = 0;
	for (size_t i = 0; i < n; i++)
		fake.length += (uint32_t)list[i].length;
}

FAKE void fake_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	(void)qp;
	fake.lkey = lkey;
	fake.addr = addr;
	fake.length = length;
}

FAKE void fake_wr_set_inline(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	(void)qp;
	fake.inlined++;
	fake.addr = (uintptr_t)addr;
	fake.length = (uint32_t)length;
}

FAKE int fake_wr_complete(struct ibv_qp_ex *qp)
{
	const int rc = fake.fails;

	(void)qp;
	fake.fails = 0;
	return rc;
}

/* A device that is there. */
FAKE int fake_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context, (void)attr;
	return 0;
}

FAKE int fake_get_no_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	(void)context, (void)event;
	return -1;
}

/* ---- the queue pair, as verbs.c would bind it ---- */

static void fake_provider_create_pool(struct vma_bufpool **pool, const char *name)
{
	const struct vma_bufpool_attr attr = {.arena = fake.arena, .name = name, .batch = 16, .batching_mode = 1};
	uint32_t first;

	if (vma_bufpool_create(&attr, pool) != 0 || vma_bufarena_map_memory(fake.arena, 2 * FAKE_DEPTH, &first) != 0 ||
	    vma_bufpool_add_frames(*pool, first, 2 * FAKE_DEPTH) != 0)
		abort();
	for (uint32_t unit = first >> VERBS_UNIT_SHIFT; unit <= (first + 2 * FAKE_DEPTH - 1) >> VERBS_UNIT_SHIFT;
	     unit++)
		fake.lkeys[unit] = (struct verbs_lkey){.key = 100 + unit, .generation = 1};
}

/* Its pools and their arena stay. */
static inline void fake_provider_free_qp(void)
{
	if (fake.verbs != NULL) {
		verbs_wipeonfork_free(fake.verbs->sent, FAKE_DEPTH * sizeof(struct verbs_send_segment));
		vma_stats_block_free(NULL, fake.verbs->stats);
	}
	free(fake.verbs);
	verbs_wipeonfork_free(fake.lkeys, FAKE_LKEYS_BYTES);
	fake.verbs = NULL;
	fake.lkeys = NULL;
}

static inline struct verbs_qp *fake_provider_setup_qp(uint32_t batching, uint32_t inline_max)
{
	const struct vma_bufarena_attr arena = {.capacity = FAKE_FRAMES};
	static const struct verbs_lkey no_lkeys[(FAKE_FRAMES >> VERBS_UNIT_SHIFT) + 1];
	struct verbs_qp *qp = aligned_alloc(_Alignof(struct verbs_qp), sizeof(*qp));

	fake_provider_free_qp();
	memset(&fake, 0, sizeof(fake));
	fake.is_wiped = true;
	memset(qp, 0, sizeof(*qp));
	fake.byte_len = 64;
	if (vma_bufarena_create(&arena, &fake.arena) != 0)
		abort();
	fake.lkeys = verbs_wipeonfork_alloc(FAKE_LKEYS_BYTES, &fake.is_wiped);
	fake_provider_create_pool(&fake.rx_pool, "rx");
	fake_provider_create_pool(&fake.tx_pool, "tx");
	fake.context.context.ops.post_recv = fake_post_recv;
	fake.qp.context = &fake.context.context;
	fake.qp_ex.wr_start = fake_wr_start;
	fake.qp_ex.wr_send = fake_wr_send;
	fake.qp_ex.wr_set_sge = fake_wr_set_sge;
	fake.qp_ex.wr_set_inline_data = fake_wr_set_inline;
	fake.qp_ex.wr_set_inline_data_list = fake_wr_set_inline_list;
	fake.qp_ex.wr_set_sge_list = fake_wr_set_sge_list;
	fake.qp_ex.wr_send_tso = fake_wr_send_tso;
	fake.qp_ex.wr_complete = fake_wr_complete;
	fake.rx_cq.start_poll = fake_rx_start;
	fake.rx_cq.next_poll = fake_rx_next;
	fake.rx_cq.end_poll = fake_end_poll;
	fake.rx_cq.read_byte_len = fake_byte_len;
	fake.rx_cq.read_wc_flags = fake_wc_flags;
	fake.rx_cq.read_completion_ts = fake_read_completion_timestamp;
	fake.rx_cq.read_completion_wallclock_ns = fake_read_completion_timestamp;
	fake.tx_cq.start_poll = fake_tx_start;
	fake.tx_cq.next_poll = fake_tx_next;
	fake.tx_cq.end_poll = fake_end_poll;
	fake.lib.ibv_query_device = fake_query_device;
	fake.lib.ibv_get_async_event = fake_get_no_async_event;
	fake.device.lib = &fake.lib;
	fake.device.context = &fake.context.context;
	fake.nic.base.ops = &vma_nic_verbs_ops;
	fake.nic.base.arena = fake.arena;
	fake.nic.base.info = (struct vma_nic_info){.mtu = 1500, .caps = VMA_NIC_CAP_TX_CSUM | VMA_NIC_CAP_RX_CSUM};
	fake.nic.raw_fd = fake.nic.wake_fd = -1;
	for (unsigned i = 0; i < VERBS_SPARE_FDS; i++)
		fake.nic.spare_fds[i] = -1;
	fake.nic.fork_guard = qp->fork_guard = nic_get_fork_detection_page();
	fake.nic.lkeys = fake.lkeys;
	fake.nic.no_lkeys = no_lkeys;
	fake.nic.device = &fake.device;
	qp->base.ops = qp->base.backend_ops = &vma_nic_verbs_ops;
	qp->base.nic = &fake.nic.base;
	qp->base.arena = fake.arena;
	atomic_store(&qp->base.rx_pool, fake.rx_pool);
	atomic_store(&qp->base.tx_pool, fake.tx_pool);
	qp->base.rx_depth = qp->base.tx_depth = FAKE_DEPTH / 2;
	qp->nic = &fake.nic;
	qp->generation = 1;
	qp->stats = vma_stats_block_alloc(NULL, VMA_STATS_TYPE_NIC, "fake");
	qp->queue = (struct verbs_queue){.device = &fake.device,
	                                 .qp = &fake.qp,
	                                 .qp_ex = &fake.qp_ex,
	                                 .rx_cq_ex = &fake.rx_cq,
	                                 .tx_cq_ex = &fake.tx_cq,
	                                 .inline_max = inline_max};
	qp->rx_bufs = 1;
	qp->tx_segs_max = 1;
	qp->tx_longest = qp->tx_longest_ever = 1500 + VERBS_L2_BYTES;
	qp->attr.tx_batching = batching;
	qp->sent = verbs_wipeonfork_alloc(FAKE_DEPTH * sizeof(struct verbs_send_segment), &fake.is_wiped);
	qp->sent_mask = FAKE_DEPTH - 1;
	verbs_qp_data_path_init(qp);
	fake.verbs = qp;
	return qp;
}

#endif
