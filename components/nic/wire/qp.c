/*
 * qp - the two halves of a queue pair on the wire, and its making and ending.
 *
 * Sending copies into the lane at once, so a buffer is complete when its burst is kicked. Receiving hands posted
 * buffers to the engine, which fills them and gives them back through `done`.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <vma/log.h>

#include "wire.h"

#define DEPTH_MIN 16
#define DEPTH_MAX 65536
#define DEPTH_DEFAULT 512
#define POOL_SPARE 128 /* buffers that threads' caches may keep from us */
#define SEGS_MAX 64
#define ADOPT_BURST 32

/* ---- transmit half ---- */

/* The link is another one than before (or gone): what was not kicked is lost with it. */
static void qp_restart_on_new_link(struct wire_qp *qp, uint32_t nonce)
{
	struct wire_producer *tx = &qp->tx;

	vma_stats_add(&qp->count_lost, tx->produced - tx->kicked);
	tx->nonce = nonce;
	qp->answered_arm_seq = 0;
	tx->produced = tx->kicked = tx->consumed_cached = qp->end->index_start;
	qp->full_since_ns = 0;
}

/* The number of segments of the packet that starts at segs[0], its length in *len; 0: it can never be sent. */
static unsigned packet_segments_and_length(const struct wire_qp *qp, const struct vma_nic_seg *segs, unsigned n,
                                           uint32_t *len)
{
	uint32_t lane_space = 1U << qp->qp.arena->frame_shift;
	uint16_t refused = VMA_NIC_SEG_TSO | VMA_NIC_SEG_DUMMY | (qp->end->checksum_offload ? 0 : VMA_NIC_SEG_CSUM);

	*len = 0;
	for (unsigned i = 0; i < n && i < SEGS_MAX; i++) {
		if (segs[i].off > lane_space || segs[i].len > lane_space - segs[i].off ||
		    (segs[i].flags & refused) != 0)
			return 0;
		*len += segs[i].len;
		if ((segs[i].flags & VMA_NIC_SEG_MORE) == 0)
			return *len >= WIRE_FRAME_MIN && *len <= qp->end->layout.frame_max ? i + 1 : 0;
	}
	return 0;
}

/* The same of one that is to be cut. */
static __attribute__((noinline)) unsigned wire_check_tso_packet_and_plan(const struct wire_qp *qp,
                                                                         const struct vma_nic_seg *segs, unsigned n,
                                                                         struct wire_cut *cut)
{
	const uint32_t lane_space = 1U << qp->qp.arena->frame_shift;
	unsigned i = 0;

	for (; i < n && i < SEGS_MAX; i++) {
		if (segs[i].off > lane_space || segs[i].len > lane_space - segs[i].off ||
		    (segs[i].flags & VMA_NIC_SEG_DUMMY) != 0 || (i > 0 && (segs[i].flags & VMA_NIC_SEG_TSO) != 0))
			return 0;
		if ((segs[i].flags & VMA_NIC_SEG_MORE) == 0)
			break;
	}
	if (i == n || i == SEGS_MAX || !qp->end->segmentation_offload ||
	    !wire_plan_tso_split(qp->qp.arena, segs, i + 1, qp->end->layout.frame_max, cut))
		return 0;
	return cut->bytes <= qp->end->nic.info.tso_max_bytes && cut->frames <= qp->tx.bound ? i + 1 : 0;
}

static void wire_gather(const struct wire_qp *qp, const struct vma_nic_seg *segs, unsigned n, char *to)
{
	for (unsigned i = 0; i < n; i++) {
		memcpy(to, vma_buf_frame(qp->qp.arena, segs[i].buf) + segs[i].off, segs[i].len);
		to += segs[i].len;
	}
}

/* Over the MTU? Only a tagged frame may use the four bytes of the tag. */
static bool frame_exceeds_mtu(const struct wire_qp *qp, const char *frame, uint32_t len)
{
	return len > qp->end->layout.frame_max - 4 && !((uint8_t)frame[12] == 0x81 && frame[13] == 0);
}

enum lane_space { LANE_HAS_SPACE, LANE_FULL, LANE_CLOSED };

/* For so many frames. */
static inline __attribute__((always_inline)) enum lane_space lane_space_state(struct wire_qp *qp, uint32_t frames)
{
	struct wire_producer *tx = &qp->tx;
	uint32_t seen = tx->consumed_cached;

	if (wire_producer_has_room(tx, frames))
		return LANE_HAS_SPACE;
	if (!wire_producer_read_consumed(tx))
		vma_stats_add(&qp->count_bad, 1);
	if (wire_producer_has_room(tx, frames)) {
		qp->full_since_ns = 0;
		return LANE_HAS_SPACE;
	}
	if (qp->end->pair != NULL)
		return LANE_FULL;
	uint64_t now = wire_now_ns(qp->end);
	if (qp->full_since_ns == 0 || tx->consumed_cached != seen)
		qp->full_since_ns = now;
	return now - qp->full_since_ns < WIRE_STUCK_NS ? LANE_FULL : LANE_CLOSED;
}

static inline __attribute__((always_inline)) void push_frame(struct wire_qp *qp, struct wire_slot *slot, uint32_t len)
{
	struct wire_producer *tx = &qp->tx;
	struct wire_end *other = wire_other_end(qp->end);

	if (other != NULL && other->engine.delay.active)
		qp->end->sent_ns[qp->lane][tx->produced & tx->mask] = wire_now_ns(qp->end);
	wire_producer_push(tx, slot, len);
}

static bool wire_send_one(struct wire_qp *qp, const struct vma_nic_seg *segs, unsigned n, uint32_t len)
{
	struct wire_slot *slot = wire_producer_next_slot(&qp->tx);

	wire_gather(qp, segs, n, slot->bytes);
	if (frame_exceeds_mtu(qp, slot->bytes, len))
		return false;
	if ((segs[0].flags & VMA_NIC_SEG_CSUM) != 0)
		wire_checksum_fill(slot->bytes, len);
	push_frame(qp, slot, len);
	vma_stats_add(&qp->stats->tx_frames, 1);
	vma_stats_add(&qp->stats->tx_bytes, len);
	return true;
}

static __attribute__((noinline)) void wire_send_tso_packet_as_frames(struct wire_qp *qp, const struct vma_nic_seg *segs,
                                                                     const struct wire_cut *cut)
{
	for (uint32_t i = 0; i < cut->frames; i++) {
		struct wire_slot *slot = wire_producer_next_slot(&qp->tx);
		const uint32_t len = wire_build_tso_segment_frame(qp->qp.arena, segs, cut, i, slot->bytes);

		wire_checksum_fill(slot->bytes, len);
		push_frame(qp, slot, len);
	}
	vma_stats_add(&qp->stats->tx_frames, 1);
	vma_stats_add(&qp->stats->tx_tso, 1);
	vma_stats_add(&qp->stats->tx_bytes, cut->hdr_len + cut->bytes);
}

/* The packet that starts at segs[0]: how many segments were taken. is_tso: a constant of each caller. */
static inline __attribute__((always_inline)) unsigned send_packet(struct wire_qp *qp, const struct vma_nic_seg *segs,
                                                                  unsigned n, uint32_t nonce, bool is_tso)
{
	enum lane_space lane_space = LANE_CLOSED;
	struct wire_cut cut = {.frames = 1};
	uint32_t len = 0;
	unsigned nsegs = is_tso ? wire_check_tso_packet_and_plan(qp, segs, n, &cut)
	                        : packet_segments_and_length(qp, segs, n, &len);

	if (nsegs == 0 || qp->sent_queued - qp->sent_reaped + nsegs > qp->qp.tx_depth)
		return 0;
	if (nonce != 0)
		lane_space = lane_space_state(qp, is_tso ? cut.frames : 1);
	if (lane_space == LANE_FULL)
		return 0;
	if (lane_space == LANE_CLOSED)
		vma_stats_add(nonce == 0 ? &qp->count_lost : &qp->count_full, 1);
	else if (is_tso)
		wire_send_tso_packet_as_frames(qp, segs, &cut);
	else if (!wire_send_one(qp, segs, nsegs, len))
		return 0;
	for (unsigned i = 0; i < nsegs; i++)
		qp->sent[qp->sent_queued++ & qp->sent_mask] = segs[i].buf;
	return nsegs;
}

static __attribute__((noinline)) unsigned send_tso_packet(struct wire_qp *qp, const struct vma_nic_seg *segs,
                                                          unsigned n, uint32_t nonce)
{
	return send_packet(qp, segs, n, nonce, true);
}

unsigned wire_tx(struct vma_nic_qp *base, const struct vma_nic_seg *segs, unsigned n)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);
	uint32_t nonce = atomic_load_explicit(&qp->end->nonce, memory_order_acquire);
	unsigned taken = 0, nsegs = 1;

	if (qp->tx.nonce != nonce)
		qp_restart_on_new_link(qp, nonce);
	for (; taken < n && nsegs != 0; taken += nsegs)
		nsegs = __builtin_expect((segs[taken].flags & VMA_NIC_SEG_TSO) != 0, 0)
		                ? send_tso_packet(qp, segs + taken, n - taken, nonce)
		                : send_packet(qp, segs + taken, n - taken, nonce, false);
	return taken;
}

/* The other end may sleep: see the argument in engine.c. */
static void wake_other_end_if_sleeping(struct wire_qp *qp)
{
	struct wire_end *end = qp->end, *other = wire_other_end(end);

	if (other != NULL) {
		if (atomic_load_explicit(&other->engine.sleepers, memory_order_seq_cst) != 0)
			wire_engine_process_frames_or_request(other);
		return;
	}
	uint64_t seq = atomic_load_explicit(&wire_side_page(end->memory, 1 - end->side)->arm_seq, memory_order_seq_cst);
	int bell = atomic_load_explicit(&end->doorbell_fd, memory_order_relaxed);
	if (seq == qp->answered_arm_seq || bell < 0)
		return;
	/* MSG_DONTWAIT belongs to the call: the peer cannot take it away as it could an eventfd's O_NONBLOCK. */
	if (send(bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 || errno == EAGAIN)
		qp->answered_arm_seq = seq;
}

int wire_kick(struct vma_nic_qp *base)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);
	struct wire_producer *tx = &qp->tx;
	uint32_t nonce = atomic_load_explicit(&qp->end->nonce, memory_order_acquire);

	qp->sent_kicked = qp->sent_queued;
	if (tx->nonce != nonce)
		qp_restart_on_new_link(qp, nonce);
	if (tx->produced == tx->kicked)
		return 0;
	vma_stats_add(&qp->count_sent, tx->produced - tx->kicked);
	vma_stats_add(&qp->stats->kicks, 1);
	wire_producer_publish(tx);
	wake_other_end_if_sleeping(qp);
	return 0;
}

unsigned wire_reap_tx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);
	unsigned got = 0;

	while (got < n && qp->sent_reaped != qp->sent_kicked)
		bufs[got++] = qp->sent[qp->sent_reaped++ & qp->sent_mask];
	if (got != 0)
		vma_stats_add(&qp->stats->completions, got);
	return got;
}

/* The other end has taken it from the lane. What was sent over a link that has gone goes nowhere. */
bool wire_tx_is_idle(struct vma_nic_qp *base)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);
	struct wire_producer *tx = &qp->tx;

	if (tx->nonce != atomic_load_explicit(&qp->end->nonce, memory_order_acquire))
		return true;
	wire_producer_read_consumed(tx);
	return tx->produced == tx->consumed_cached;
}

/* ---- receive half ---- */

unsigned wire_post_rx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);
	unsigned lane_space = base->rx_depth - qp->rx_outstanding;

	if (n > lane_space)
		n = lane_space;
	if (n == 0)
		return 0;
	vma_bufpool_uncount_bufs_given_to_nic(atomic_load_explicit(&base->rx_pool, memory_order_relaxed), bufs, n);
	for (unsigned i = 0; i < n; i++)
		wire_ring_push(&qp->posted, bufs[i]);
	qp->rx_outstanding += n;
	vma_stats_add(&qp->stats->fill_posted, n);
	return n;
}

/* The buffers are the user's: from_nic makes them new, what the engine said of the frames is kept. */
static void wire_hand_received_to_user(struct wire_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct vma_bufpool *pool = atomic_load_explicit(&qp->qp.rx_pool, memory_order_relaxed);
	uint16_t flags[ADOPT_BURST];
	uint32_t tags[ADOPT_BURST];
	uint64_t bytes = 0;

	vma_stats_add(&qp->stats->rx_frames, n);
	for (unsigned part; n != 0; bufs += part, n -= part) {
		part = n < ADOPT_BURST ? n : ADOPT_BURST;
		for (unsigned i = 0; i < part; i++) {
			flags[i] = bufs[i]->flags;
			tags[i] = bufs[i]->flow_tag;
		}
		vma_bufpool_init_bufs_taken_from_nic(pool, bufs, part);
		for (unsigned i = 0; i < part; i++) {
			bufs[i]->flags = flags[i];
			bufs[i]->flow_tag = tags[i];
			bytes += bufs[i]->len;
		}
	}
	vma_stats_add(&qp->stats->rx_bytes, bytes);
}

unsigned wire_poll_rx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);
	unsigned got = 0;
	struct vma_buf *buf;

	while (got < n && (buf = wire_ring_pop(&qp->done)) != NULL)
		bufs[got++] = buf;
	got += wire_engine_poll(qp->end, qp, bufs + got, n - got);
	if (got == 0)
		return 0;
	qp->rx_outstanding -= got;
	wire_hand_received_to_user(qp, bufs, got);
	return got;
}

/* Takes back what an earlier arm was told. Bounded: one read each; what is left only wakes once more for nothing. */
static void qp_clear_own_wakeup_event(struct wire_qp *qp)
{
	uint64_t count;

	(void)!read(qp->event_fd, &count, sizeof(count));
	if (qp->timer_fd >= 0)
		(void)!read(qp->timer_fd, &count, sizeof(count));
}

static void qp_clear_wakeup_events(struct wire_qp *qp)
{
	char bytes[256];
	int bell = atomic_load_explicit(&qp->end->doorbell_fd, memory_order_relaxed);

	qp_clear_own_wakeup_event(qp);
	if (bell >= 0)
		(void)!recv(bell, bytes, sizeof(bytes), MSG_DONTWAIT);
}

static void wire_disarm(struct wire_qp *qp)
{
	if (atomic_exchange_explicit(&qp->armed, 0, memory_order_seq_cst) != 0)
		atomic_fetch_sub_explicit(&qp->end->engine.sleepers, 1, memory_order_relaxed);
}

int wire_arm(struct vma_nic_qp *base)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);
	struct wire_end *end = qp->end;

	qp_clear_wakeup_events(qp);
	atomic_store_explicit(&qp->starved, false, memory_order_relaxed);
	if (atomic_exchange_explicit(&qp->armed, 1, memory_order_seq_cst) == 0)
		atomic_fetch_add_explicit(&end->engine.sleepers, 1, memory_order_seq_cst);
	if (end->pair == NULL)
		atomic_fetch_add_explicit(&wire_side_page(end->memory, end->side)->arm_seq, 1, memory_order_seq_cst);
	wire_engine_process_frames_or_request(end);
	if (wire_ring_count(&qp->done) == 0 && !atomic_load_explicit(&qp->starved, memory_order_relaxed))
		return 0;
	wire_disarm(qp);
	return 1;
}

/*
 * What an arm was told is taken back as well: who sleeps on beside one that polls is not to be rung by the past. But
 * not the bell, on which other queue pairs of this end sleep: it has rung once for all of them.
 */
void wire_unarm(struct vma_nic_qp *base)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);

	wire_disarm(qp);
	qp_clear_own_wakeup_event(qp);
}

/* ---- making and ending ---- */

/* A pool's frames, unmapped when the last one that the user holds has come home. */
struct range {
	struct vma_bufarena *arena;
	uint32_t first, count;
};

static void pool_unmap_drained_range(void *arg)
{
	struct range *range = arg;

	vma_bufarena_unmap(range->arena, range->first, range->count);
	free(range);
}

static int pool_create(struct wire_qp *qp, const char *name, uint32_t count, struct vma_bufpool *_Atomic *out,
                       struct range **range_out)
{
	struct vma_bufpool_attr attr = {
	        .arena = qp->qp.arena, .name = name, .batch = 16, .batching_mode = 1, .stats = qp->end->stats};
	struct range *range = calloc(1, sizeof(*range));
	struct vma_bufpool *pool = NULL;
	int rc = -ENOMEM;

	if (range == NULL)
		return rc;
	range->arena = qp->qp.arena;
	range->count = count;
	rc = vma_bufarena_map_memory(range->arena, count, &range->first);
	if (rc != 0)
		goto fail;
	rc = vma_bufpool_create(&attr, &pool);
	if (rc != 0)
		goto fail_map;
	rc = vma_bufpool_add_frames(pool, range->first, count);
	if (rc != 0)
		goto fail_pool;
	atomic_store_explicit(out, pool, memory_order_release);
	*range_out = range;
	return 0;
fail_pool:
	vma_bufpool_retire(pool, NULL, NULL);
fail_map:
	vma_bufarena_unmap(range->arena, range->first, count);
fail:
	free(range);
	return rc;
}

static void pool_retire(struct vma_bufpool *_Atomic *pool, struct range *range)
{
	struct vma_bufpool *old = atomic_exchange_explicit(pool, NULL, memory_order_acq_rel);

	if (old != NULL)
		vma_bufpool_retire(old, pool_unmap_drained_range, range);
}

static int qp_create_wakeup_eventfds(struct wire_qp *qp)
{
	struct epoll_event event = {.events = EPOLLIN};
	bool timers = qp->end->pair != NULL && qp->end->virtual_now_ns == NULL;
	int bell = atomic_load_explicit(&qp->end->doorbell_fd, memory_order_relaxed);

	qp->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	qp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (timers)
		qp->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (qp->event_fd < 0 || qp->epoll_fd < 0 || (timers && qp->timer_fd < 0))
		return -errno;
	if (epoll_ctl(qp->epoll_fd, EPOLL_CTL_ADD, qp->event_fd, &event) != 0)
		return -errno;
	if (timers && epoll_ctl(qp->epoll_fd, EPOLL_CTL_ADD, qp->timer_fd, &event) != 0)
		return -errno;
	if (bell >= 0 && epoll_ctl(qp->epoll_fd, EPOLL_CTL_ADD, bell, &event) != 0)
		return -errno;
	return 0;
}

static void qp_free(struct wire_qp *qp)
{
	pool_retire(&qp->qp.rx_pool, qp->rx_range);
	pool_retire(&qp->qp.tx_pool, qp->tx_range);
	if (qp->epoll_fd >= 0)
		close(qp->epoll_fd);
	if (qp->timer_fd >= 0)
		close(qp->timer_fd);
	if (qp->event_fd >= 0)
		close(qp->event_fd);
	wire_ring_fini(&qp->posted);
	wire_ring_fini(&qp->done);
	free(qp->sent);
	vma_stats_block_free(qp->end->stats, qp->stats);
	free(qp);
}

/* What is requested, and never so little that the longest frame would wait for ever for room. */
static uint32_t wire_queue_depth_of_request(const struct wire_end *end, uint32_t wanted)
{
	uint32_t longest = (end->layout.frame_max >> end->nic.arena->frame_shift) + 1, size = DEPTH_MIN;

	if (wanted == 0)
		wanted = DEPTH_DEFAULT;
	while ((size < wanted || size < 2 * longest) && size < DEPTH_MAX)
		size *= 2;
	return size;
}

static int wire_qp_init(struct wire_qp *qp, const struct vma_nic_qp_attr *attr)
{
	struct wire_end *end = qp->end;
	const char *name = attr->name != NULL ? attr->name : end->nic.info.name;
	int rc;

	qp->qp.rx_depth = wire_queue_depth_of_request(end, attr->rx_wre);
	qp->qp.tx_depth = wire_queue_depth_of_request(end, attr->tx_wre);
	qp->qp.rx_quota =
	        qp->qp.rx_depth / 2; /* beyond it the user gets copies, or nothing would be left to receive into */
	qp->sent_mask = qp->qp.tx_depth - 1;
	qp->sent = calloc(qp->qp.tx_depth, sizeof(*qp->sent));
	qp->stats = vma_stats_block_alloc(end->stats, VMA_STATS_TYPE_NIC, name);
	if (qp->sent == NULL || qp->stats == NULL)
		return -ENOMEM;
	if (wire_ring_init(&qp->posted, qp->qp.rx_depth, end->index_start) != 0 ||
	    wire_ring_init(&qp->done, qp->qp.rx_depth, end->index_start) != 0)
		return -ENOMEM;
	rc = pool_create(qp, "wire rx", qp->qp.rx_depth * 2 + POOL_SPARE, &qp->qp.rx_pool, &qp->rx_range);
	if (rc == 0)
		rc = pool_create(qp, "wire tx", qp->qp.tx_depth * 2 + POOL_SPARE, &qp->qp.tx_pool, &qp->tx_range);
	return rc != 0 ? rc : qp_create_wakeup_eventfds(qp);
}

/* Control lock held: a free lane, its producer where the former user stopped. */
static int qp_take_free_lane(struct wire_qp *qp)
{
	struct wire_end *end = qp->end;
	struct wire_engine *engine = &end->engine;
	uint32_t lane = 0;

	while (lane < WIRE_LANES && engine->qps[lane] != NULL)
		lane++;
	if (lane == WIRE_LANES)
		return -ENOSPC;
	if (end->pair != NULL && end->sent_ns[lane] == NULL) {
		end->sent_ns[lane] = calloc(end->layout.slots, sizeof(uint64_t));
		if (end->sent_ns[lane] == NULL)
			return -ENOMEM;
	}
	qp->lane = lane;
	qp->tx = end->idle_lanes[lane];
	wire_engine_lock(end);
	engine->qps[lane] = qp;
	engine->nqps++;
	wire_engine_unlock(end);
	/* After sent_ns: the engine of the other end looks there for every lane in use. The bit stays for good, so that
	 * frames of a queue pair that has gone still arrive. */
	end->lanes_in_use |= 1U << lane;
	atomic_store_explicit(&wire_side_page(end->memory, end->side)->lanes_in_use, end->lanes_in_use,
	                      memory_order_release);
	return 0;
}

int wire_qp_create(struct vma_nic *nic, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out)
{
	struct wire_end *end = wire_end_of_nic(nic);
	struct wire_qp *qp = NULL;
	int rc;

	if (posix_memalign((void **)&qp, WIRE_LINE, sizeof(*qp)) != 0)
		return -ENOMEM;
	memset(qp, 0, sizeof(*qp));
	qp->qp.ops = nic->ops;
	qp->qp.nic = nic;
	qp->qp.arena = nic->arena;
	qp->end = end;
	qp->first_done_ns = UINT64_MAX;
	qp->event_fd = qp->timer_fd = qp->epoll_fd = -1;
	pthread_mutex_lock(&end->control);
	rc = wire_qp_init(qp, attr);
	if (rc == 0)
		rc = qp_take_free_lane(qp);
	pthread_mutex_unlock(&end->control);
	if (rc != 0) {
		qp_free(qp);
		return rc;
	}
	*out = &qp->qp;
	return 0;
}

static void ring_put_bufs_to_pool(struct vma_bufpool *pool, struct wire_ring *ring)
{
	struct vma_bufarena *arena = vma_bufpool_arena(pool);
	struct vma_buf *buf;

	while ((buf = wire_ring_pop(ring)) != NULL) {
		vma_bufpool_init_bufs_taken_from_nic(pool, &buf, 1);
		vma_buf_put(arena, buf);
	}
}

/*
 * In this order: no flow leads here and no engine knows us (lock), so nothing reaches posted or done any more; then the
 * lane's state is kept for the next user; then buffers go home; then the pools may end.
 */
void wire_qp_destroy(struct vma_nic_qp *base)
{
	struct wire_qp *qp = wire_qp_of_nic_qp(base);
	struct wire_end *end = qp->end;

	pthread_mutex_lock(&end->control);
	wire_engine_lock(end);
	wire_flows_del_qp(&end->engine.flows, qp);
	end->engine.qps[qp->lane] = NULL;
	end->engine.nqps--;
	if (atomic_exchange_explicit(&qp->armed, 0, memory_order_seq_cst) != 0)
		atomic_fetch_sub_explicit(&end->engine.sleepers, 1, memory_order_relaxed);
	/* The bell may have been meant for others, and cleared by our last arm. */
	for (uint32_t i = 0; i < WIRE_LANES; i++)
		if (end->engine.qps[i] != NULL)
			wire_qp_wake(end->engine.qps[i]);
	wire_count_add(end, WIRE_COUNT_bad_peer, vma_stats_read_counter(&qp->count_bad));
	vma_stats_add(&end->total_sent, vma_stats_read_counter(&qp->count_sent));
	vma_stats_add(&end->total_lost, vma_stats_read_counter(&qp->count_lost));
	vma_stats_add(&end->total_full, vma_stats_read_counter(&qp->count_full));
	wire_engine_unlock(end);
	qp->tx.produced = qp->tx.kicked;
	end->idle_lanes[qp->lane] = qp->tx;
	pthread_mutex_unlock(&end->control);

	ring_put_bufs_to_pool(atomic_load(&base->rx_pool), &qp->posted);
	ring_put_bufs_to_pool(atomic_load(&base->rx_pool), &qp->done);
	while (qp->sent_reaped != qp->sent_queued)
		vma_buf_put(base->arena, qp->sent[qp->sent_reaped++ & qp->sent_mask]);
	qp_free(qp);
}
