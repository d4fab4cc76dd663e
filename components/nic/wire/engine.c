/*
 * engine - the receiving side of an end: lanes -> (fault plan) -> flow table -> posted buffers -> done.
 *
 * One thread at a time drives, by try-acquire of `busy`; a thread that fails goes on. Two arguments carry the sleeping:
 *
 * 1. A run after mine (poke). A thread that needs a run that begins after now sets `again`, then tries `busy`. The
 *    holder clears `busy`, then looks at `again`. All four are seq_cst, so either the try succeeds or the holder sees
 *    `again`.
 * 2. No lost wake-up. A sleeper sets armed, counts itself in `sleepers` (pair) or moves its page's arm_seq (two-process
 *    form), then has a run made and looks at `done`. A sender stores the slot's seq, then loads sleepers or arm_seq.
 *    All are seq_cst: either the sender sees the sleeper and pokes or rings, or the sleeper's run sees the slot. An
 *    arm_seq is answered once per sender: a frame that comes later than the ring finds the sleeper awake or with a new
 *    one. Another queue pair's thread may take frames for a sleeper from a lane. Then that thread reports them. A run
 *    ends with a look at every armed queue pair, and the sleeper's own run (1) comes after it was armed.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

struct run {
	struct wire_end *end;
	struct wire_qp *self; /* polls or arms now; NULL: a run for others */
	struct vma_buf **bufs;
	unsigned n, out;
	uint64_t now_ns; /* 0: not asked yet */
};

enum engine_run_step { RUN_DONE, RUN_WAITS };

static uint64_t engine_run_now_ns(struct run *run)
{
	if (run->now_ns == 0) /* a virtual clock may stand at 0: asking again does no harm */
		run->now_ns = wire_now_ns(run->end);
	return run->now_ns;
}

/* ---- one frame into posted buffers ---- */

static void engine_run_deliver_buf(struct run *run, struct wire_qp *qp, struct vma_buf *buf)
{
	/* Order holds: when a run begins, self's done is drained into bufs first, and is only used once bufs is full.
	 */
	if (qp == run->self && run->out < run->n)
		run->bufs[run->out++] = buf;
	else
		wire_ring_push(&qp->done, buf);
}

/* `head` is the private copy of the first head_len bytes; the rest is read from `bytes`. */
static void engine_run_fill_bufs(struct run *run, const struct wire_flow *flow, const char *head, uint32_t head_len,
                                 const char *bytes, uint32_t len)
{
	struct vma_bufarena *arena = run->end->nic.arena;
	struct wire_qp *qp = flow->qp;
	uint32_t room = 1U << arena->frame_shift, at = 0;
	struct vma_buf *buf;

	do {
		uint32_t part = len - at < room ? len - at : room;
		buf = wire_ring_pop(&qp->posted);
		char *frame = vma_buf_frame(arena, buf);
		uint32_t from_head = at < head_len ? head_len - at : 0;
		if (from_head > part)
			from_head = part;
		memcpy(frame, head + at, from_head);
		memcpy(frame + from_head, bytes + at + from_head, part - from_head);
		buf->data_off = 0;
		buf->len = part;
		buf->packet_len = at == 0 ? len : 0;
		buf->flow_tag = flow->tag;
		buf->timestamp_ns = 0;
		buf->flags = at + part < len ? VMA_BUF_RX_MORE : 0;
		if (run->end->checksum_offload && part == len)
			buf->flags |= wire_rx_checksum_flags_of_frame(frame, len, run->end->memory_link);
		at += part;
		engine_run_deliver_buf(run, qp, buf);
	} while (at < len);
}

static enum engine_run_step engine_run_deliver_frame(struct run *run, const char *head, uint32_t head_len,
                                                     const char *bytes, uint32_t len)
{
	struct wire_end *end = run->end;
	struct wire_headers headers;
	const struct wire_flow *flow = NULL;
	uint32_t room = 1U << end->nic.arena->frame_shift;

	if (wire_parse_packet_headers(head, head_len, len, &headers))
		flow = wire_flows_find(&end->engine.flows, &headers);
	if (flow == NULL) {
		wire_count_add(end, WIRE_COUNT_no_flow, 1);
		return RUN_DONE;
	}
	if (wire_ring_count(&flow->qp->posted) * (uint64_t)room < len) {
		if (flow->qp == run->self || end->engine.nqps == 1) {
			atomic_store_explicit(&flow->qp->starved, true, memory_order_relaxed);
			return RUN_WAITS;
		}
		wire_count_add(end, WIRE_COUNT_no_buffer, 1);
		return RUN_DONE;
	}
	engine_run_fill_bufs(run, flow, head, head_len, bytes, len);
	wire_count_add(end, WIRE_COUNT_delivered, 1);
	return RUN_DONE;
}

/* ---- lanes ---- */

/* A lane whose link is another than before starts anew. */
static void lane_restart_if_new_link(struct wire_end *end, struct wire_consumer *lane, uint32_t nonce)
{
	if (atomic_load_explicit(&lane->nonce, memory_order_relaxed) == nonce)
		return;
	atomic_store_explicit(&lane->nonce, nonce, memory_order_relaxed);
	atomic_store_explicit(&lane->consumed, end->index_start, memory_order_relaxed);
	lane->published = end->index_start;
}

/* The pair only, so the bytes are trusted. */
static void wire_apply_faults_to_lane_frame(struct wire_end *end, uint32_t number, const char *bytes, uint32_t len,
                                            uint32_t index)
{
	struct wire_consumer *lane = &end->engine.lanes[number];

	wire_fault_delay_add_frame(end, number, lane->frame_number++, bytes, len,
	                           wire_other_end(end)->sent_ns[number][index & lane->mask]);
}

/*
 * The frame of one slot. Length and headers are copied before they are looked at, and only the copies count: the peer
 * may change the slot meanwhile. The barrier keeps the compiler from reading the slot again in place of the copy.
 */
static enum engine_run_step wire_receive_frame_of_slot(struct run *run, uint32_t number, struct wire_slot *slot,
                                                       uint32_t index)
{
	struct wire_end *end = run->end;
	uint32_t len = atomic_load_explicit(&slot->len, memory_order_relaxed);
	uint32_t head_len = len < WIRE_SNAP ? len : WIRE_SNAP;
	char head[WIRE_SNAP];

	if (len < WIRE_FRAME_MIN || len > end->layout.frame_max) {
		wire_count_add(end, WIRE_COUNT_bad_peer, 1);
		return RUN_DONE;
	}
	if (end->engine.delay.active) {
		wire_apply_faults_to_lane_frame(end, number, slot->bytes, len, index);
		return RUN_DONE;
	}
	if (head_len == WIRE_SNAP)
		memcpy(head, slot->bytes, WIRE_SNAP);
	else
		memcpy(head, slot->bytes, head_len);
	__asm__ volatile("" : : "r"(head) : "memory");
	return engine_run_deliver_frame(run, head, head_len, slot->bytes, len);
}

/* Bounded by one lap, however fast the peer writes. */
static void wire_receive_all_frames_of_lane(struct run *run, uint32_t number)
{
	struct wire_consumer *lane = &run->end->engine.lanes[number];
	struct wire_slot *slot;

	for (uint32_t left = run->end->layout.slots; left > 0; left--) {
		if ((run->n != 0 && run->out == run->n) || (slot = wire_consumer_next_readable_slot(lane)) == NULL)
			break;
		uint32_t index = atomic_load_explicit(&lane->consumed, memory_order_relaxed);
		__builtin_prefetch(wire_slot_at(lane->slots, index + 1, lane->mask, lane->slot_bytes));
		if (wire_receive_frame_of_slot(run, number, slot, index) == RUN_WAITS)
			break;
		wire_consumer_pop(lane);
	}
	wire_consumer_release_slots(lane);
}

static uint32_t lanes_in_use(const struct wire_end *end)
{
	/* The other end's word: any value is only a set of lanes to look at. */
	return atomic_load_explicit(&wire_side_page(end->memory, 1 - end->side)->lanes_in_use, memory_order_acquire) &
	       ((1U << WIRE_LANES) - 1);
}

static void wire_receive_frames_of_all_lanes(struct run *run)
{
	struct wire_engine *engine = &run->end->engine;
	uint32_t nonce = atomic_load_explicit(&run->end->nonce, memory_order_acquire);
	uint32_t lanes = lanes_in_use(run->end), first = engine->first_lane;

	if (lanes == 0 || nonce == 0)
		return;
	engine->first_lane = (first + 1) % WIRE_LANES; /* nobody's lane is always the first */
	uint32_t turned = (lanes >> first | lanes << (WIRE_LANES - first)) & ((1U << WIRE_LANES) - 1);
	for (; turned != 0; turned &= turned - 1) {
		uint32_t number = (first + (uint32_t)__builtin_ctz(turned)) % WIRE_LANES;
		lane_restart_if_new_link(run->end, &engine->lanes[number], nonce);
		wire_receive_all_frames_of_lane(run, number);
	}
}

static void engine_deliver_delayed_frames(struct run *run)
{
	struct wire_fault_delay *delay = &run->end->engine.delay;
	struct wire_held_frame *held;

	while ((run->n == 0 || run->out < run->n) &&
	       (held = wire_fault_delay_next_due_frame(delay, engine_run_now_ns(run))) != NULL) {
		uint32_t head_len = held->len < WIRE_SNAP ? held->len : WIRE_SNAP;
		if (engine_run_deliver_frame(run, held->bytes, head_len, held->bytes, held->len) == RUN_WAITS)
			break;
		wire_fault_delay_remove(delay, held);
	}
	atomic_store_explicit(&run->end->engine.has_delayed_frames, !wire_fault_delay_is_empty(delay),
	                      memory_order_relaxed);
}

/* ---- reports to sleepers ---- */

void wire_qp_wake(struct wire_qp *qp)
{
	uint64_t one = 1;

	qp->first_done_ns = UINT64_MAX;
	if (atomic_exchange_explicit(&qp->armed, 0, memory_order_seq_cst) == 0)
		return;
	atomic_fetch_sub_explicit(&qp->end->engine.sleepers, 1, memory_order_relaxed);
	(void)!write(qp->event_fd, &one, sizeof(one)); /* fails only when it is readable anyway */
}

/* When an armed queue pair's report is due: 0 now, UINT64_MAX nothing waits for it. */
static uint64_t qp_wakeup_due_ns(struct run *run, struct wire_qp *qp)
{
	uint32_t waiting = wire_ring_count(&qp->done);

	if (waiting == 0)
		qp->first_done_ns = UINT64_MAX;
	if (waiting == 0)
		return atomic_load_explicit(&qp->starved, memory_order_relaxed) ? 0 : UINT64_MAX;
	if (waiting >= qp->moderation_count || qp->moderation_ns == 0)
		return 0;
	if (qp->first_done_ns == UINT64_MAX)
		qp->first_done_ns = engine_run_now_ns(run);
	uint64_t due = qp->first_done_ns + qp->moderation_ns;
	return due <= engine_run_now_ns(run) ? 0 : due;
}

static void qp_set_timer(const struct wire_qp *qp, uint64_t due_ns)
{
	struct itimerspec spec = {
	        .it_value = {.tv_sec = (time_t)(due_ns / 1000000000U), .tv_nsec = (long)(due_ns % 1000000000U)}};

	if (qp->timer_fd >= 0)
		timerfd_settime(qp->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

static void wire_wake_armed_qps_when_due(struct run *run)
{
	struct wire_engine *engine = &run->end->engine;

	for (uint32_t i = 0; i < WIRE_LANES; i++) {
		struct wire_qp *qp = engine->qps[i];
		if (qp == NULL || atomic_load_explicit(&qp->armed, memory_order_seq_cst) == 0)
			continue;
		uint64_t due = qp_wakeup_due_ns(run, qp), delay_due = wire_fault_delay_next_due_ns(&engine->delay);
		if (due == 0)
			wire_qp_wake(qp);
		else if (due != UINT64_MAX || delay_due != UINT64_MAX)
			qp_set_timer(qp, due < delay_due ? due : delay_due);
	}
}

/* ---- driving ---- */

static bool engine_try_acquire(struct wire_engine *engine)
{
	return atomic_load_explicit(&engine->busy, memory_order_seq_cst) == 0 &&
	       atomic_exchange_explicit(&engine->busy, 1, memory_order_seq_cst) == 0;
}

static void wire_engine_receive_pass(struct run *run)
{
	if (run->self != NULL) {
		struct vma_buf *buf;
		while (run->out < run->n && (buf = wire_ring_pop(&run->self->done)) != NULL)
			run->bufs[run->out++] = buf;
		if (run->out == run->n && run->n != 0)
			return;
	}
	wire_receive_frames_of_all_lanes(run);
	if (run->end->pair != NULL && !wire_fault_delay_is_empty(&run->end->engine.delay))
		engine_deliver_delayed_frames(run);
	if (atomic_load_explicit(&run->end->engine.sleepers, memory_order_seq_cst) != 0)
		wire_wake_armed_qps_when_due(run);
}

static void engine_run_pass_without_caller_bufs(struct wire_end *end)
{
	struct run run = {.end = end};

	wire_engine_receive_pass(&run);
}

static void wire_engine_release_and_rerun(struct wire_end *end)
{
	struct wire_engine *engine = &end->engine;

	for (;;) {
		atomic_store_explicit(&engine->busy, 0, memory_order_seq_cst);
		if (atomic_load_explicit(&engine->again, memory_order_seq_cst) == 0 || !engine_try_acquire(engine))
			return;
		atomic_store_explicit(&engine->again, 0, memory_order_seq_cst);
		engine_run_pass_without_caller_bufs(end);
	}
}

/* Is there anything to do? Without the engine, so it may be wrong for a moment; a poll that is wrong polls again. */
static bool wire_end_has_work(const struct wire_end *end)
{
	const struct wire_engine *engine = &end->engine;
	uint32_t nonce = atomic_load_explicit(&end->nonce, memory_order_relaxed);

	if (atomic_load_explicit(&engine->has_delayed_frames, memory_order_relaxed))
		return true;
	if (nonce == 0)
		return false;
	for (uint32_t lanes = lanes_in_use(end); lanes != 0; lanes &= lanes - 1) {
		const struct wire_consumer *lane = &engine->lanes[__builtin_ctz(lanes)];
		if (atomic_load_explicit(&lane->nonce, memory_order_relaxed) != nonce ||
		    wire_consumer_next_readable_slot(lane) != NULL)
			return true;
	}
	return false;
}

unsigned wire_engine_poll(struct wire_end *end, struct wire_qp *self, struct vma_buf **bufs, unsigned n)
{
	struct run run = {.end = end, .self = self, .bufs = bufs, .n = n};

	if (n == 0 || !wire_end_has_work(end) || !engine_try_acquire(&end->engine))
		return 0;
	wire_engine_receive_pass(&run);
	wire_engine_release_and_rerun(end);
	return run.out;
}

void wire_engine_process_frames_or_request(struct wire_end *end)
{
	atomic_store_explicit(&end->engine.again, 1, memory_order_seq_cst);
	if (!engine_try_acquire(&end->engine))
		return;
	atomic_store_explicit(&end->engine.again, 0, memory_order_seq_cst);
	engine_run_pass_without_caller_bufs(end);
	wire_engine_release_and_rerun(end);
}

void wire_engine_lock(struct wire_end *end)
{
	while (!engine_try_acquire(&end->engine))
		sched_yield();
}

void wire_engine_unlock(struct wire_end *end)
{
	wire_engine_release_and_rerun(end);
}
