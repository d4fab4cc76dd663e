/* cq.c - creation, polling and packet assembly; cq_refill.c keeps the receive queue full. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cq_priv.h"
#include "cq_refill.h"

static uint32_t value_or_default(uint32_t value, uint32_t otherwise)
{
	return value != 0 ? value : otherwise;
}

static uint32_t at_most_u32(uint32_t value, uint32_t limit)
{
	return value < limit ? value : limit;
}

/* What depends on the queue pair's present binding. */
static void cq_set_queue_pair_limits(struct vma_cq *cq)
{
	cq->owed = cq->qp->rx_self_fill ? 0 : cq->qp->rx_depth;
	cq->quota = value_or_default(cq->qp->rx_quota, cq->qp->rx_depth);
	cq->idle_at =
	        at_most_u32(cq->refill_at,
	                    at_most_u32(IDLE_DEBT, value_or_default(at_most_u32(cq->quota, cq->qp->rx_depth) / 8, 1)));
	cq_refill_init(cq);
}

int vma_cq_create(const struct vma_cq_attr *attr, struct vma_cq **out)
{
	uint32_t level = value_or_default(attr->compensation_level, 256);
	uint32_t batching = value_or_default(attr->rx_wre_batching, 64);
	struct vma_cq *cq;

	if (attr->qp == NULL)
		return -EINVAL;
	cq = aligned_alloc(64, (sizeof(*cq) + 63) / 64 * 64);
	if (cq == NULL)
		return -ENOMEM;
	*cq = (struct vma_cq){
	        .qp = attr->qp,
	        .arena = attr->qp->arena,
	        .spill_pool = attr->spill_pool,
	        .batch_max = at_most_u32(value_or_default(attr->poll_batch_max, 16), BATCH_MAX),
	        .refill_at =
	                at_most_u32(attr->keep_qp_full ? batching : level, value_or_default(attr->qp->rx_depth / 2, 1)),
	        .prefetch_bytes = at_most_u32(attr->prefetch_bytes, VMA_CONF_RX_PREFETCH_MOST),
	        .must_keep_full = attr->keep_qp_full || attr->qp->rx_self_fill,
	        .spare_want = at_most_u32(level, SPARE_MAX),
	        .aim = attr->aim,
	        .stats = attr->stats,
	        .count = vma_stats_block_alloc(attr->stats, VMA_STATS_TYPE_CQ, attr->name),
	};
	if (cq->count == NULL) {
		free(cq);
		return -ENOMEM;
	}
	cq_set_queue_pair_limits(cq);
	cq_adapt_moderation_init(cq, attr->moderation_enable);
	*out = cq;
	return 0;
}

static void drop_chain(struct vma_cq *cq)
{
	if (cq->chain != NULL)
		vma_buf_put_chain(cq->arena, cq->chain);
	cq->chain = NULL;
	cq->chain_len = 0;
	cq->chain_bufs = 0;
}

void vma_cq_destroy(struct vma_cq *cq)
{
	if (cq == NULL)
		return;
	drop_chain(cq);
	cq_refill_fini(cq);
	vma_stats_block_free(cq->stats, cq->count);
	free(cq);
}

void vma_cq_drop_pending_and_refill_bufs(struct vma_cq *cq)
{
	drop_chain(cq);
	cq->chain_broken = false;
	cq_refill_fini(cq);
}

void vma_cq_take_up_rebound_qp(struct vma_cq *cq)
{
	vma_cq_drop_pending_and_refill_bufs(cq);
	cq_set_queue_pair_limits(cq);
	cq_reapply_moderation_after_rebind(cq);
}

/* Joins `buf` to the packet being assembled; the packet when it is whole, else NULL. */
static struct vma_buf *assemble_packet(struct vma_cq *cq, struct vma_buf *buf)
{
	bool more = buf->flags & VMA_BUF_RX_MORE;
	struct vma_buf *packet;

	if (cq->chain_bufs == CHAIN_MAX && !cq->chain_broken) {
		cq->chain_broken = true;
		vma_stats_add(&cq->count->drop_chain, 1);
		drop_chain(cq);
	}
	if (cq->chain_broken) {
		cq->chain_broken = more;
		cq->chain_bufs = 0;
		vma_buf_put(cq->arena, buf);
		return NULL;
	}
	if (cq->chain == NULL)
		cq->chain = buf;
	else
		cq->chain_tail->next = buf;
	cq->chain_tail = buf;
	cq->chain_len += buf->len;
	cq->chain_bufs++;
	if (more)
		return NULL;
	packet = cq->chain;
	packet->packet_len = cq->chain_len;
	cq->chain = NULL;
	cq->chain_len = 0;
	cq->chain_bufs = 0;
	return packet;
}

static void __attribute__((noinline)) prefetch_bufs(const struct vma_cq *cq, struct vma_buf *const *bufs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		const char *data = vma_buf_data(cq->arena, bufs[i]);

		for (uint32_t off = 0; off < cq->prefetch_bytes; off += 64)
			__builtin_prefetch(data + off);
	}
}

/* Buffers that are not all packets of their own, or more than the user may hold: in place, for there are no fewer. */
static unsigned __attribute__((noinline))
cq_assemble_and_spill_packets(struct vma_cq *cq, struct vma_buf **bufs, unsigned n)
{
	unsigned out = 0;

	if (cq_over_quota(cq))
		vma_cq_refill(cq); /* once: nothing comes back while this goes on */
	for (unsigned i = 0; i < n; i++) {
		struct vma_buf *packet = bufs[i];

		if (cq->chain_bufs == 0 && !(packet->flags & VMA_BUF_RX_MORE) && !cq->chain_broken)
			packet->packet_len = packet->len;
		else if ((packet = assemble_packet(cq, packet)) == NULL)
			continue;
		if (cq_over_quota(cq) && (packet = cq_copy_packet_to_spill_pool(cq, packet)) == NULL)
			continue;
		bufs[out++] = packet;
	}
	return out;
}

static inline bool packet_is_incomplete(const struct vma_cq *cq)
{
	return cq->chain_bufs != 0 || cq->chain_broken;
}

static unsigned __attribute__((noinline)) cq_count_empty_poll_and_refill(struct vma_cq *cq)
{
	vma_stats_add(&cq->count->polls_empty, 1);
	if (cq->owed >= cq->idle_at && cq->idle_polls-- == 0) {
		vma_cq_refill(cq);
		cq->idle_polls = cq->owed >= cq->idle_at ? RETRY_POLLS : 0;
	}
	return 0;
}

unsigned vma_cq_poll(struct vma_cq *cq, struct vma_buf **packets, unsigned max)
{
	unsigned n = vma_nic_poll_rx(cq->qp, packets, at_most_u32(max, cq->batch_max)), out = 0;

	vma_stats_add(&cq->count->polls, 1);
	if (n == 0)
		return cq_count_empty_poll_and_refill(cq);
	cq->idle_polls = 0;
	cq->owed += n;
	if (cq->prefetch_bytes != 0)
		prefetch_bufs(cq, packets, n);
	if (__builtin_expect(!packet_is_incomplete(cq) && !cq_over_quota(cq), 1))
		for (; out < n && !(packets[out]->flags & VMA_BUF_RX_MORE); out++)
			packets[out]->packet_len = packets[out]->len;
	if (__builtin_expect(out < n, 0))
		out += cq_assemble_and_spill_packets(cq, packets + out, n - out);
	vma_stats_add(&cq->count->packets, out);
	if (__builtin_expect(out > vma_stats_read_counter(&cq->count->poll_max), 0))
		vma_stats_set(&cq->count->poll_max, out);
	if (cq->owed >= cq->refill_at)
		vma_cq_refill(cq);
	else
		cq_update_needs_refill(cq);
	return out;
}

bool vma_cq_needs_refill(const struct vma_cq *cq)
{
	return atomic_load_explicit(&cq->needs_refill, memory_order_relaxed);
}

unsigned vma_cq_reap_sent_bufs(struct vma_cq *cq)
{
	struct vma_buf *bufs[BATCH_MAX];
	unsigned n, total = 0;

	do {
		n = vma_nic_reap_tx(cq->qp, bufs, BATCH_MAX);
		vma_buf_put_burst(cq->arena, bufs, n);
		total += n;
	} while (n == BATCH_MAX);
	return total;
}

int vma_cq_arm(struct vma_cq *cq)
{
	vma_stats_add(&cq->count->arms, 1);
	vma_cq_prepare_sleep(cq);
	return vma_nic_arm(cq->qp);
}

void vma_cq_prepare_sleep(struct vma_cq *cq)
{
	vma_stats_set(&cq->count->wakeups, atomic_load_explicit(&cq->wakeups, memory_order_relaxed));
	if (cq->owed != 0)
		vma_cq_refill(cq);
	cq_adapt_moderation(cq);
}

void vma_cq_count_wakeup(struct vma_cq *cq)
{
	atomic_fetch_add_explicit(&cq->wakeups, 1, memory_order_relaxed);
}

/* By system call: the library that this archive may be part of interposes ppoll() itself. */
int vma_cq_wait(struct vma_cq *cq, uint64_t timeout_ns)
{
	struct pollfd fd = {.fd = vma_nic_fd(cq->qp), .events = POLLIN};
	struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
	long n = syscall(SYS_ppoll, &fd, 1, timeout_ns == UINT64_MAX ? NULL : &timeout, NULL, (size_t)_NSIG / 8);

	if (n < 0)
		return -errno;
	if (n > 0)
		vma_cq_count_wakeup(cq);
	return n > 0;
}

int vma_cq_fd(const struct vma_cq *cq)
{
	return vma_nic_fd(cq->qp);
}
