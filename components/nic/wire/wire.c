/*
 * wire - the ends of a wire: the common part of both forms, and the pair in one process.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <vma/log.h>

#include "../backends.h"
#include "wire.h"

#define QUEUE_FRAMES_DEFAULT 1024
#define MTU_DEFAULT 1500
#define TSO_MAX 65536 /* as most cards */
#define TSO_MSS 500

uint64_t wire_now_ns(const struct wire_end *end)
{
	struct timespec now;

	if (end->virtual_now_ns != NULL)
		return *end->virtual_now_ns;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

char *wire_memory_map(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return memory != MAP_FAILED ? memory : NULL;
}

/* ---- an end ---- */

static void lanes_init(struct wire_end *end, uint32_t bound)
{
	const struct wire_layout *layout = &end->layout;

	for (uint32_t i = 0; i < WIRE_LANES; i++) {
		struct wire_producer *tx = &end->idle_lanes[i];
		tx->slots = wire_lane(end->memory, layout, end->side, i);
		tx->consumed = &wire_side_page(end->memory, 1 - end->side)->consumed[i].value;
		tx->mask = layout->slots - 1;
		tx->slot_bytes = layout->slot_bytes;
		tx->bound = bound;
		struct wire_consumer *rx = &end->engine.lanes[i];
		rx->slots = wire_lane(end->memory, layout, 1 - end->side, i);
		rx->consumed_at = &wire_side_page(end->memory, end->side)->consumed[i].value;
		rx->mask = layout->slots - 1;
		rx->slot_bytes = layout->slot_bytes;
	}
}

int wire_end_init(struct wire_end *end, int side, char *memory, const struct wire_layout *layout, uint32_t bound,
                  uint32_t index_start, struct vma_bufarena *arena)
{
	memset(end, 0, sizeof(*end));
	end->nic.ops = &vma_nic_wire_ops;
	end->nic.arena = arena;
	end->nic.info.mac[0] = 0x02; /* locally administered */
	end->nic.info.mac[1] = 'w';
	end->nic.info.mac[5] = (uint8_t)(side + 1);
	end->nic.info.mtu = layout->frame_max - WIRE_L2_BYTES;
	end->nic.info.device_queues = 1;
	end->nic.info.tx_segs_max = 64;
	end->nic.info.caps = VMA_NIC_CAP_SG | VMA_NIC_CAP_FLOW_TAG;
	end->side = side;
	end->memory = memory;
	end->layout = *layout;
	end->queue_frames = bound;
	end->index_start = index_start;
	atomic_init(&end->doorbell_fd, -1);
	pthread_mutex_init(&end->control, NULL);
	lanes_init(end, bound);
	return wire_flows_init(&end->engine.flows);
}

void wire_end_fini(struct wire_end *end)
{
	wire_flows_fini(&end->engine.flows);
	wire_fault_delay_fini(&end->engine.delay);
	for (uint32_t i = 0; i < WIRE_LANES; i++)
		free(end->sent_ns[i]);
	pthread_mutex_destroy(&end->control);
}

/*
 * Own page first, then the nonce: a thread that sees the nonce may use the page. arm_seq starts at one, unanswered, so
 * that queue pairs that were armed before hear of the first frame.
 */
void wire_end_set_link(struct wire_end *end, uint32_t nonce)
{
	struct wire_side_page *page = wire_side_page(end->memory, end->side);

	atomic_store_explicit(&page->lanes_in_use, end->lanes_in_use, memory_order_release);
	atomic_store_explicit(&page->arm_seq, 1, memory_order_seq_cst);
	atomic_store_explicit(&end->nonce, nonce, memory_order_seq_cst);
}

/* ---- the pair ---- */

static void wire_pair_free(struct wire_pair *pair)
{
	munmap(pair->end[0].memory, pair->end[0].layout.bytes);
	wire_end_fini(&pair->end[0]);
	wire_end_fini(&pair->end[1]);
	pthread_mutex_destroy(&pair->lock);
	free(pair);
}

static void wire_pair_close(struct wire_end *end)
{
	struct wire_pair *pair = end->pair;
	bool last;

	pthread_mutex_lock(&pair->lock);
	wire_end_set_link(&pair->end[1 - end->side], 0); /* what the other end sends from now on is lost */
	last = --pair->open == 0;
	pthread_mutex_unlock(&pair->lock);
	if (last)
		wire_pair_free(pair);
}

static int pair_end_init(struct wire_pair *pair, int side, char *memory, const struct wire_layout *layout,
                         const struct vma_wire_pair_attr *attr, uint32_t bound, uint32_t index_start)
{
	struct wire_end *end = &pair->end[side];
	int rc = wire_end_init(end, side, memory, layout, bound, index_start, attr->arena[side]);

	end->pair = pair;
	end->virtual_now_ns = attr->virtual_now_ns;
	end->memory_link = attr->memory_link;
	end->checksum_offload = attr->checksum_offload;
	end->segmentation_offload = attr->checksum_offload && attr->segmentation_offload;
	end->nic.info.caps |= VMA_NIC_CAP_MODERATION | (attr->memory_link ? VMA_NIC_CAP_MEMORY_LINK : 0) |
	                      (attr->checksum_offload ? VMA_NIC_CAP_TX_CSUM | VMA_NIC_CAP_RX_CSUM : 0) |
	                      (end->segmentation_offload ? VMA_NIC_CAP_TSO : 0);
	/* A lane has room for a packet's frames, unless they are very small. */
	if (end->segmentation_offload)
		end->nic.info.tso_max_bytes = bound < TSO_MAX / TSO_MSS ? bound * TSO_MSS : TSO_MAX;
	snprintf(end->nic.info.name, sizeof(end->nic.info.name), "wire-pair.%d", side);
	wire_end_set_link(end, 1);
	return rc;
}

int wire_pair_create(const struct vma_wire_pair_attr *attr, uint32_t index_start, struct vma_nic *out[2])
{
	uint32_t bound = attr->queue_frames != 0 ? attr->queue_frames : QUEUE_FRAMES_DEFAULT, slots = 2;
	uint32_t mtu = attr->mtu != 0 ? attr->mtu : MTU_DEFAULT;
	struct wire_layout layout;
	struct wire_pair *pair = NULL;

	out[0] = out[1] = NULL;
	if (attr->arena[0] == NULL || attr->arena[1] == NULL || bound > 65536 || mtu < WIRE_MTU_MIN ||
	    mtu > WIRE_MTU_MAX)
		return -EINVAL;
	while (slots < bound)
		slots *= 2;
	wire_layout_init(&layout, slots, mtu);
	char *memory = wire_memory_map(layout.bytes);
	if (memory == NULL)
		return -ENOMEM;
	if (posix_memalign((void **)&pair, WIRE_LINE, sizeof(*pair)) != 0) {
		munmap(memory, layout.bytes);
		return -ENOMEM;
	}
	pthread_mutex_init(&pair->lock, NULL);
	pair->open = 2;
	int rc = 0;
	for (int side = 0; side < 2; side++) {
		int r = pair_end_init(pair, side, memory, &layout, attr, bound, index_start);
		rc = rc != 0 ? rc : r;
	}
	for (int side = 0; side < 2 && rc == 0; side++)
		rc = vma_wire_set_faults(&pair->end[side].nic, &attr->faults[side]);
	if (rc != 0) {
		wire_pair_free(pair);
		return rc;
	}
	out[0] = &pair->end[0].nic;
	out[1] = &pair->end[1].nic;
	return 0;
}

int vma_wire_create_pair(const struct vma_wire_pair_attr *attr, struct vma_nic *out[2])
{
	return wire_pair_create(attr, 0, out);
}

int vma_wire_set_faults(struct vma_nic *nic, const struct vma_wire_faults *faults)
{
	struct wire_end *end = wire_end_of_nic(nic), *other = wire_other_end(end);
	int rc = 0;

	if (other == NULL)
		return -EOPNOTSUPP;
	wire_engine_lock(other);
	if (wire_faults_are_set(faults))
		rc = wire_fault_delay_init(&other->engine.delay, end->queue_frames, other->layout.frame_max);
	if (rc == 0)
		wire_fault_delay_set_plan(&other->engine.delay, faults);
	wire_engine_unlock(other);
	return rc;
}

void vma_wire_drive_both_ends(struct vma_nic *nic)
{
	struct wire_end *end = wire_end_of_nic(nic), *other = wire_other_end(end);

	wire_engine_process_frames_or_request(end);
	if (other != NULL)
		wire_engine_process_frames_or_request(other);
}

uint64_t vma_wire_next_arrival_ns(struct vma_nic *nic)
{
	struct wire_end *other = wire_other_end(wire_end_of_nic(nic));
	uint64_t due;

	if (other == NULL)
		return UINT64_MAX;
	wire_engine_lock(other);
	due = wire_fault_delay_next_due_ns(&other->engine.delay);
	wire_engine_unlock(other);
	return due;
}

/* ---- counters ---- */

static uint64_t wire_stats_total(const struct wire_end *end, uint64_t gone, size_t offset)
{
	for (uint32_t i = 0; i < WIRE_LANES; i++)
		if (end->engine.qps[i] != NULL)
			gone += vma_stats_read_counter(
			        (_Atomic uint64_t *)(void *)((char *)end->engine.qps[i] + offset));
	return gone;
}

void vma_wire_read_counters(const struct vma_nic *nic, struct vma_wire_counts *out)
{
	struct wire_end *end = wire_end_of_nic(nic), *receiver = end->pair != NULL ? wire_other_end(end) : end;

#define X(name, text) out->name = vma_stats_read_counter(&receiver->engine.counts[WIRE_COUNT_##name]);
	VMA_WIRE_COUNTS(X)
#undef X
	pthread_mutex_lock(&end->control);
	out->sent +=
	        wire_stats_total(end, vma_stats_read_counter(&end->total_sent), offsetof(struct wire_qp, count_sent));
	out->lost +=
	        wire_stats_total(end, vma_stats_read_counter(&end->total_lost), offsetof(struct wire_qp, count_lost));
	out->queue_full +=
	        wire_stats_total(end, vma_stats_read_counter(&end->total_full), offsetof(struct wire_qp, count_full));
	out->bad_peer += wire_stats_total(end, 0, offsetof(struct wire_qp, count_bad));
	pthread_mutex_unlock(&end->control);
}

/* ---- the backend ---- */

static void wire_close(struct vma_nic *nic)
{
	struct wire_end *end = wire_end_of_nic(nic);

	if (end->pair != NULL)
		wire_pair_close(end);
	else
		wire_file_close(end);
}

static int wire_rebind(struct vma_nic_qp *qp)
{
	(void)qp; /* a wire's queue pair outlives its links: nothing is ever lost */
	return 0;
}

static int wire_flow_add(struct vma_nic_qp *qp, const struct vma_flow_rule *rule)
{
	struct wire_end *end = wire_qp_of_nic_qp(qp)->end;

	if (rule->key.proto == VMA_FLOW_TCP_PORTS)
		return -EOPNOTSUPP;
	wire_engine_lock(end);
	int rc = wire_flows_add(&end->engine.flows, wire_qp_of_nic_qp(qp), rule);
	wire_engine_unlock(end);
	return rc;
}

static int wire_flow_del(struct vma_nic_qp *qp, const struct vma_flow_key *key)
{
	struct wire_end *end = wire_qp_of_nic_qp(qp)->end;

	wire_engine_lock(end);
	int rc = wire_flows_del(&end->engine.flows, wire_qp_of_nic_qp(qp), key);
	wire_engine_unlock(end);
	return rc;
}

/* Frames go from the lanes to queue pairs under the same lock: what came before is in the queue of `from`. */
static int wire_flow_move(struct vma_nic_qp *from, struct vma_nic_qp *to, const struct vma_flow_key *key)
{
	struct wire_end *end = wire_qp_of_nic_qp(from)->end;

	wire_engine_lock(end);
	int rc = wire_flows_move(&end->engine.flows, wire_qp_of_nic_qp(from), wire_qp_of_nic_qp(to), key);
	wire_engine_unlock(end);
	return rc;
}

static int wire_mem_register(struct vma_nic *nic, uint32_t first, uint32_t count)
{
	(void)nic, (void)first, (void)count; /* every frame of the arena can be copied */
	return 0;
}

static void wire_mem_unregister(struct vma_nic *nic, uint32_t first, uint32_t count)
{
	(void)nic, (void)first, (void)count;
}

/* What the peer has sent and no thread has moved is moved first. */
static unsigned wire_rx_waiting(struct vma_nic_qp *base)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);

	wire_engine_process_frames_or_request(qp->end);
	return wire_ring_count(&qp->done);
}

static int wire_moderate(struct vma_nic_qp *base, uint32_t count, uint32_t period_usec)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);

	wire_engine_lock(qp->end);
	qp->moderation_count = count;
	qp->moderation_ns = (uint64_t)period_usec * 1000;
	wire_engine_unlock(qp->end);
	return 0;
}

static int wire_fd(const struct vma_nic_qp *qp)
{
	return wire_qp_of_nic_qp(qp)->epoll_fd;
}

static uint64_t wire_nic_now(const struct vma_nic *nic)
{
	return wire_now_ns(wire_end_of_nic(nic));
}

const struct vma_nic_ops vma_nic_wire_ops = {
        .name = "wire",
        .open = wire_file_open_nic,
        .close = wire_close,
        .qp_create = wire_qp_create,
        .qp_destroy = wire_qp_destroy,
        .qp_rebind = wire_rebind,
        .flow_add = wire_flow_add,
        .flow_del = wire_flow_del,
        .flow_move = wire_flow_move,
        .mem_register = wire_mem_register,
        .mem_unregister = wire_mem_unregister,
        .moderate = wire_moderate,
        .rx_waiting = wire_rx_waiting,
        .post_rx = wire_post_rx,
        .poll_rx = wire_poll_rx,
        .tx = wire_tx,
        .kick = wire_kick,
        .reap_tx = wire_reap_tx,
        .tx_is_idle = wire_tx_is_idle,
        .arm = wire_arm,
        .unarm = wire_unarm,
        .fd = wire_fd,
        .now_ns = wire_nic_now,
};
