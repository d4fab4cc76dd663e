/* stack.c - the connections of one ring in common: the runs of the protocol, its clock, gathered frames, due times. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "small_mss_quota.h"
#include "lwip/port.h"
#include "tx/tso.h"

#define MIN_SND_MSS 48 /* the least that tcp_min_snd_mss of the kernel may be */
#define RETRY_NS TCP_NS_PER_MS
#define LOST_NS (100 * TCP_NS_PER_MS) /* nothing leaves before a rebind, which has all connections looked at */

/* ---- surroundings ---- */

static uint64_t host_default_now_ns(void *arg)
{
	struct timespec now;

	(void)arg;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * TCP_NS_PER_S + (uint64_t)now.tv_nsec;
}

static void *host_default_alloc(size_t size)
{
	return calloc(1, size);
}

static void host_default_ignore_due(void *arg)
{
	(void)arg;
}

static void host_default_free_retired_conn(struct vma_tcp_conn *conn, void *arg)
{
	(void)arg;
	vma_tcp_conn_free(conn);
}

static struct vma_tcp_host_ops host_ops_fill_defaults(const struct vma_tcp_host_ops *given)
{
	struct vma_tcp_host_ops host = *given;

	host.now_ns = host.now_ns != NULL ? host.now_ns : host_default_now_ns;
	if (host.alloc == NULL) {
		host.alloc = host_default_alloc;
		host.alloc_bytes = malloc;
		host.free = free;
	}
	host.alloc_bytes = host.alloc_bytes != NULL ? host.alloc_bytes : host.alloc;
	host.due = host.due != NULL ? host.due : host_default_ignore_due;
	host.retire = host.retire != NULL ? host.retire : host_default_free_retired_conn;
	return host;
}

/* The start of what was allocated lies before what is given, which begins a cache line. */
static void *align_to_cache_line(void *base)
{
	uintptr_t start = ((uintptr_t)base + sizeof(void *) + 63) & ~(uintptr_t)63;

	if (base == NULL)
		return NULL;
	((void **)start)[-1] = base;
	return (void *)start;
}

static size_t alloc_size_with_alignment(size_t size)
{
	return size + sizeof(void *) + 63;
}

void *tcp_alloc_zeroed(struct vma_tcp *tcp, size_t size)
{
	return align_to_cache_line(tcp->host.alloc(alloc_size_with_alignment(size)));
}

void *tcp_allocated_base(void *memory)
{
	return ((void **)memory)[-1];
}

void tcp_free_memory(struct vma_tcp *tcp, void *memory)
{
	if (memory != NULL)
		tcp->host.free(tcp_allocated_base(memory));
}

/* ---- frames ---- */

uint64_t stack_retry_time_ns(const struct vma_tcp *tcp)
{
	return tcp->now_ns + (vma_nic_qp_lost(vma_ring_qp(tcp->ring)) ? LOST_NS : RETRY_NS);
}

/*
 * With one kick. If the peer is near, in another network namespace for example, the answers are there when the kick
 * returns: ACKs of what was sent, and data for what was acknowledged. Each lets more go, so they are read before more
 * is sent, or the receive queue would run over. If nothing has come, there is nothing to read, and output goes on.
 *
 * What the NIC does not take stays at the front, until it is tried again.
 */
static void __attribute__((cold, noinline)) keep_unsent_frames_and_set_retry_timer(struct vma_tcp *tcp, unsigned sent)
{
	tcp->frames_count -= sent;
	memmove(tcp->frames, tcp->frames + sent, tcp->frames_count * sizeof(*tcp->frames));
	if (!wheel_is_set(&tcp->retry_timer))
		wheel_set(&tcp->wheel, &tcp->retry_timer, stack_retry_time_ns(tcp));
}

static inline void send_frames(struct vma_tcp *tcp)
{
	unsigned count = tcp->frames_count, sent;

	if (count == 0)
		return;
	sent = vma_ring_send(tcp->ring, tcp->frames, count, 0);
	if (__builtin_expect(sent == count, 1))
		tcp->frames_count = 0;
	else
		keep_unsent_frames_and_set_retry_timer(tcp, sent);
}

void tcp_send_frames_if_no_ready_conn(struct vma_tcp *tcp)
{
	if (tcp->ready == NULL)
		send_frames(tcp);
}

bool tcp_frames_send_all(struct vma_tcp *tcp)
{
	send_frames(tcp);
	tcp->acked_since_kick = 0;
	tcp->output_deferred = vma_nic_rx_has_packet(vma_ring_qp(tcp->ring));
	return tcp->frames_count < TCP_FRAMES;
}

/* ---- who is to be looked at ---- */

void conn_enqueue_ready(struct vma_tcp_conn *conn)
{
	struct vma_tcp *tcp = conn->tcp;

	if (conn->in_ready)
		return;
	conn->in_ready = true;
	conn->next_ready = NULL;
	*tcp->ready_tail = conn;
	tcp->ready_tail = &conn->next_ready;
}

static struct vma_tcp_conn *next_ready(struct vma_tcp *tcp)
{
	struct vma_tcp_conn *conn = tcp->ready;

	if (conn == NULL)
		return NULL;
	tcp->ready = conn->next_ready;
	if (tcp->ready == NULL)
		tcp->ready_tail = &tcp->ready;
	conn->in_ready = false;
	return conn;
}

void conn_enqueue_retry(struct vma_tcp_conn *conn)
{
	struct vma_tcp *tcp = conn->tcp;

	if (conn->in_retry)
		return;
	conn->in_retry = true;
	conn->next_retry = tcp->retry;
	tcp->retry = conn;
	if (!wheel_is_set(&tcp->retry_timer))
		wheel_set(&tcp->wheel, &tcp->retry_timer, stack_retry_time_ns(tcp));
}

void tcp_conn_remove_from_all_queues(struct vma_tcp_conn *conn)
{
	struct vma_tcp *tcp = conn->tcp;
	struct vma_tcp_conn **place;

	if (conn->in_ready) {
		for (place = &tcp->ready; *place != conn; place = &(*place)->next_ready)
			;
		*place = conn->next_ready;
		if (*place == NULL)
			tcp->ready_tail = place;
		conn->in_ready = false;
	}
	if (conn->in_retry) {
		for (place = &tcp->retry; *place != conn; place = &(*place)->next_retry)
			;
		*place = conn->next_retry;
		conn->in_retry = false;
	}
	if (conn->in_small_mss_queue)
		small_mss_quota_dequeue_conn(conn);
}

static void stack_retry_waiting_conns(struct vma_tcp *tcp)
{
	struct vma_tcp_conn *conn = tcp->retry;

	tcp->retry = NULL;
	while (conn != NULL) {
		struct vma_tcp_conn *next = conn->next_retry;

		conn->in_retry = false;
		conn_enqueue_ready(conn);
		conn = next;
	}
}

/*
 * From any thread. The bits are set before the command is posted, and the command takes all bits at once: whoever finds
 * them all clear posts it, so it is never queued twice, and what is set while it is queued or before it takes them is
 * taken with the rest. release: what the poster has written (bytes, options) is seen by who takes the bits.
 *
 * The memory is there when the command runs: a connection is given up only with no bit set, and by setting one
 * (TCP_WORK_FREED), so that nobody finds them all clear any more. A call that has found the connection before its last
 * reference went may still come here after that: its memory is the host's by then, who keeps it for such calls.
 */
void tcp_run_conn_work_now_or_queue(struct vma_tcp_conn *conn, uint32_t work)
{
	struct vma_tcp *tcp = tcp_stack_now(conn);

	/* Nobody drives: the same without the queue. What was posted before is taken first, by the release. */
	if (__builtin_expect(vma_ring_try_acquire(tcp->ring), 1)) {
		const bool is_there = tcp == tcp_stack_now(conn);

		if (__builtin_expect(is_there, 1))
			tcp_conn_schedule_work(conn, work);
		vma_ring_release(tcp->ring);
		if (__builtin_expect(is_there, 1))
			return;
	}
	if (atomic_fetch_or_explicit(&conn->work, work, memory_order_acq_rel) == 0)
		tcp_queue_conn_command_for_ring_driver(conn, false);
}

/* The same, left to whoever drives next: what is queued is taken before, or with, what is posted later. */
void tcp_queue_conn_work_for_next_driver(struct vma_tcp_conn *conn, uint32_t work)
{
	if (atomic_fetch_or_explicit(&conn->work, work, memory_order_acq_rel) == 0)
		tcp_queue_conn_command_for_ring_driver(conn, true);
}

/*
 * A connection that moves takes nothing along that is queued. So the command is told where it was queued: that driver
 * has the flag without which the connection cannot leave, and sees whether it has.
 */
void tcp_queue_conn_command_for_ring_driver(struct vma_tcp_conn *conn, bool deferred)
{
	struct vma_tcp *tcp = tcp_stack_now(conn);

	conn->posted_to = tcp;
	if (!deferred) {
		vma_ring_queue_command_and_try_run(tcp->ring, &conn->command);
		return;
	}
	vma_ring_queue_command(tcp->ring, &conn->command);
	/* The next driver of a stack that the connection has left may be a long time coming. If it left after this
	 * look, whoever moved it looks at the queue when the flag is released. */
	if (__builtin_expect(tcp != tcp_stack_now(conn), 0) && vma_ring_try_acquire(tcp->ring))
		vma_ring_release(tcp->ring);
}

struct vma_tcp *tcp_conn_acquire_ring_of_stack(const struct vma_tcp_conn *conn, bool *acquired)
{
	struct vma_tcp *tcp;

	for (;;) {
		tcp = tcp_stack_now(conn);
		*acquired = vma_ring_acquire(tcp->ring);
		if (tcp == tcp_stack_now(conn))
			return tcp;
		if (*acquired)
			vma_ring_release(tcp->ring);
	}
}

/* The NIC is not asked now, with the receive flag, if there is somebody to do it later. */
void tcp_detach_flow_now_or_later(struct vma_tcp *tcp, struct vma_flow *flow)
{
	if (tcp->host.prune == NULL)
		vma_ring_detach_flow(tcp->ring, flow);
	else if (vma_ring_detach_flow_keep_stale_rule(tcp->ring, flow))
		tcp->host.prune(tcp->host.arg);
}

/* ---- what is published ---- */

static uint64_t stack_host_now_ns(const struct vma_tcp *tcp)
{
	return tcp->host.now_ns(tcp->host.arg);
}

/*
 * A time that has become later is not published until the earlier one is reached: a conversation would otherwise tell
 * the host of a new, earlier time with every message. It costs one run in vain now and then.
 */
static __attribute__((noinline)) bool stack_publish_next_timer_due(struct vma_tcp *tcp, uint64_t said)
{
	uint64_t next = wheel_next_due_ns(&tcp->wheel);

	tcp->wheel.changed = false;
	tcp->wheel_due_ns = next;
	if (tcp->ready != NULL)
		next = tcp->now_ns;
	if (next < said || said <= tcp->now_ns)
		atomic_store_explicit(&tcp->due_ns, next, memory_order_release);
	return next < said;
}

/*
 * Most runs leave the wheel alone, and as long as it says what it said when it was asked last, so is what was
 * published then, or before: no later than that. (With a connection left ready it was that very moment, which has been
 * reached.)
 */
static inline void stack_publish_due_time(struct vma_tcp *tcp)
{
	uint64_t said = atomic_load_explicit(&tcp->due_ns, memory_order_relaxed);
	bool was_busy = atomic_load_explicit(&tcp->busy, memory_order_relaxed), busy = tcp->busy_count != 0;
	bool earlier = false;

	if (tcp->wheel.changed || tcp->ready != NULL || said <= tcp->now_ns)
		earlier = stack_publish_next_timer_due(tcp, said);
	if (busy != was_busy)
		atomic_store_explicit(&tcp->busy, busy, memory_order_release);
	if (earlier || (busy && !was_busy))
		tcp->host.due(tcp->host.arg);
}

void conn_tell_owner_events(struct vma_tcp_conn *conn, uint32_t events)
{
	const struct vma_tcp_conn_ops *owner = atomic_load_explicit(&conn->owner, memory_order_acquire);

	conn->past_events |= events;
	if (events != 0 && owner != NULL)
		owner->event(conn, atomic_load_explicit(&conn->owner_arg, memory_order_relaxed), events);
}

/* ---- the run ---- */

static void stack_fire_timer(struct tcp_timer_node *node, void *arg)
{
	struct vma_tcp *tcp = arg;

	if (node->kind == TCP_TIMER_RETRY) {
		stack_retry_waiting_conns(tcp); /* frames that wait go at the run's end */
	} else if (node->kind == TCP_TIMER_STRANGER) {
		tcp_strangers_probe(tcp);
	} else if (node->kind == TCP_TIMER_SMALL_MSS) {
		tcp_small_mss_quota_grant(tcp);
	} else if (node->kind == TCP_TIMER_TIMEWAIT) {
		timewait_expire(tcp);
	} else {
		struct tcp_timer_node *first = node - node->kind;
		struct vma_tcp_conn *conn =
		        (struct vma_tcp_conn *)((char *)first - offsetof(struct vma_tcp_conn, timer));

		timers_fire(conn, node->kind);
		conn_enqueue_ready(conn); /* its step sends, and sets what is due next */
	}
}

static void stack_free_dead_conns(struct vma_tcp *tcp)
{
	while (tcp->dead != NULL) {
		struct vma_tcp_conn *conn = tcp->dead;

		tcp->dead = conn->next_dead;
		tcp->host.retire(conn, tcp->host.arg);
	}
}

/* The run breaks off. What has come for the others is taken in now: its frames are wanted for what comes next. */
static void stack_receive_bursts_of_ready_conns(struct vma_tcp *tcp)
{
	for (struct vma_tcp_conn *conn = tcp->ready; conn != NULL; conn = conn->next_ready) {
		if (!tcp->defers_control || conn->listener == NULL)
			tcp_conn_receive_burst(conn);
	}
}

/* control: a constant of each caller, as most stacks have none. */
static inline __attribute__((always_inline)) bool stack_run_timers_and_ready_conns(struct vma_ring_proto_ops *proto_ops,
                                                                                   bool last, bool control)
{
	struct vma_tcp *tcp = (struct vma_tcp *)proto_ops;
	struct vma_tcp_conn *conn;

	tcp_update_now(tcp);
	tcp->gro_conns_left = tcp->attr.gro_streams_max;
	tcp->output_deferred = false;
	tcp->acked_since_kick = 0;
	if (tcp->now_ns >= tcp->wheel_due_ns) /* one that was set since is looked at by this run's end */
		wheel_advance(&tcp->wheel, tcp->now_ns, stack_fire_timer, tcp);
	while (!tcp->output_deferred && (conn = next_ready(tcp)) != NULL) {
		if (control && tcp->defers_control && tcp_control_queue_conn(conn))
			continue;
		tcp_conn_run_step(conn);
		tcp_conn_fill_stats_if_attached(conn);
	}
	stack_receive_bursts_of_ready_conns(tcp);
	if (tcp->frames_count != 0)
		send_frames(tcp);
	stack_free_dead_conns(tcp);
	if (tcp->ready != NULL && !last)
		return true;
	if (control)
		tcp_control_request_run_if_queued(tcp);
	stack_publish_due_time(tcp);
	return false;
}

static bool stack_run_pass(struct vma_ring_proto_ops *proto_ops, bool last)
{
	return stack_run_timers_and_ready_conns(proto_ops, last, false);
}

static bool stack_run_deferring_control_conns(struct vma_ring_proto_ops *proto_ops, bool last)
{
	return stack_run_timers_and_ready_conns(proto_ops, last, true);
}

/* As the kernel answers for a port that nobody has; or by the kernel itself, if the NIC does not ask it. What became the
 * kernel's connection may still have been on its way. */
static bool stack_answer_unmatched(struct vma_ring_proto_ops *proto_ops, struct vma_buf *packet,
                                   const struct vma_rx_info *info)
{
	struct vma_tcp *tcp = (struct vma_tcp *)proto_ops;

	tcp_update_now(tcp);
	if (tcp->nic->caps & VMA_NIC_CAP_TO_KERNEL)
		return tcp_pass_foreign_segment_to_kernel(tcp, packet, info);
	if (tcp_exported_conn_remembered_until_ns(tcp, info) != 0 &&
	    tcp_stranger_gets_no_reset(tcp, packet, info, false))
		return false;
	tcp_reply_rst(tcp, packet);
	vma_buf_put_chain(tcp->arena, packet);
	return true;
}

static void stack_adopt_pending_conn_at_listener(struct vma_ring_proto_ops *proto_ops, struct vma_flow *listener,
                                                 const struct vma_pending *pending)
{
	tcp_update_now((struct vma_tcp *)proto_ops);
	tcp_listener_adopt_pending_conn(listener, pending);
}

static bool stack_is_due(struct vma_ring_proto_ops *proto_ops)
{
	const struct vma_tcp *tcp = (const struct vma_tcp *)proto_ops;
	uint64_t due = atomic_load_explicit(&tcp->due_ns, memory_order_relaxed);

	return due != UINT64_MAX && stack_host_now_ns(tcp) >= due;
}

/*
 * What came for our connections while the queue pair was lost the kernel has answered with RST, as it knows none of
 * them; and a peer that was reset says nothing more. So all are asked.
 */
static void stack_after_queue_pair_recovery(struct vma_ring_proto_ops *proto_ops)
{
	struct vma_tcp *tcp = (struct vma_tcp *)proto_ops;

	tcp_update_now(tcp);
	tcp_stack_set_tso_limits_from_nic(tcp, !tcp->attr.no_tso);
	for (struct vma_tcp_conn *conn = tcp->all; conn != NULL; conn = conn->next_all) {
		conn->todo |= TCP_WORK_KEEPALIVE;
		conn_enqueue_ready(conn);
	}
	stack_publish_due_time(tcp);
}

/* ---- life ---- */

static void stack_set_attr_with_defaults(struct vma_tcp *tcp, const struct vma_tcp_attr *attr)
{
	tcp->proto_ops = (struct vma_ring_proto_ops){
	        .run = attr->host.control != NULL ? stack_run_deferring_control_conns : stack_run_pass,
	        .is_due = stack_is_due,
	        .rebound = stack_after_queue_pair_recovery,
	        .unmatched = stack_answer_unmatched,
	        .accept_pending = stack_adopt_pending_conn_at_listener};
	tcp->ring = attr->ring;
	tcp->arena = attr->arena;
	tcp->host = host_ops_fill_defaults(&attr->host);
	tcp->attr = *attr;
	tcp->attr.orphans_max = attr->orphans_max != 0 ? attr->orphans_max : 16384;
	tcp->attr.time_wait_max = attr->time_wait_max != 0 ? attr->time_wait_max : 262144;
	tcp->attr.min_snd_mss = attr->min_snd_mss > MIN_SND_MSS ? attr->min_snd_mss : MIN_SND_MSS;
	tcp->nic = vma_nic_info(vma_ring_nic(attr->ring));
	tcp_stack_set_tso_limits_from_nic(tcp, !attr->no_tso);
	tcp->attr.no_tso = tcp->tso_bytes == 0;
	tcp->ready_tail = &tcp->ready;
	tcp_update_now(tcp);
	tcp->retry_timer.kind = TCP_TIMER_RETRY;
	tcp->stranger_timer.kind = TCP_TIMER_STRANGER;
	tcp->small_mss_quota.timer.kind = TCP_TIMER_SMALL_MSS;
	tcp->wheel_due_ns = UINT64_MAX;
	atomic_store(&tcp->due_ns, UINT64_MAX);
	wheel_init(&tcp->wheel, tcp->now_ns);
}

/* Not the stack's: connections give their memory back when it has gone. */
static struct vma_tcp_memory tcp_memory_no_limit = {.pressure = INT64_MAX, .limit = INT64_MAX};

int vma_tcp_create(const struct vma_tcp_attr *attr, struct vma_tcp **out)
{
	struct vma_tcp_host_ops host = host_ops_fill_defaults(&attr->host);
	struct vma_tcp *tcp;
	int rc;

	if (attr->ring == NULL || attr->arena == NULL || host.free == NULL)
		return -EINVAL;
	tcp = align_to_cache_line(host.alloc(alloc_size_with_alignment(sizeof(*tcp))));
	if (tcp == NULL)
		return -ENOMEM;
	stack_set_attr_with_defaults(tcp, attr);
	if (tcp->attr.memory == NULL)
		tcp->attr.memory = &tcp_memory_no_limit;
	rc = port_memory_create(tcp);
	if (rc != 0)
		goto no_memory;
	tcp_pending_init(tcp);
	rc = timewait_init(tcp);
	if (rc != 0)
		goto no_timewait;
	rc = tcp_control_queue_init(tcp);
	if (rc != 0)
		goto no_control;
	vma_ring_attach_proto(tcp->ring, &tcp->proto_ops);
	*out = tcp;
	return 0;

no_control:
	timewait_fini(tcp);
no_timewait:
	port_memory_destroy(tcp);
no_memory:
	tcp_free_memory(tcp, tcp);
	return rc;
}

/*
 * With the flag nothing of the stack runs. Releasing it runs what was posted before: commands of connections that are
 * over by then, and do nothing but mark them; so they are freed after it, when nobody posts any more.
 */
void vma_tcp_destroy(struct vma_tcp *tcp)
{
	if (tcp == NULL)
		return;
	if (vma_ring_acquire(tcp->ring)) {
		tcp_update_now(tcp);
		tcp_listeners_free(tcp);
		tcp_conns_abandon_at_destroy(tcp);
		timewait_fini(tcp);
		for (unsigned i = 0; i < tcp->frames_count; i++)
			vma_buf_put(tcp->arena, tcp->frames[i].buf);
		tcp->frames_count = 0;
		vma_ring_release(tcp->ring);
	}
	vma_ring_delete_stale_nic_rules(tcp->ring, UINT32_MAX, UINT64_MAX, NULL); /* those of TIME_WAIT, too */
	vma_ring_attach_proto(tcp->ring, NULL);
	tcp_conns_free(tcp);
	port_memory_destroy(tcp);
	tcp_control_fini(tcp);
	if (tcp->exported != NULL)
		tcp_free_memory(tcp, tcp->exported);
	if (tcp->ended != NULL)
		tcp_free_memory(tcp, tcp->ended);
	if (tcp->strangers != NULL)
		tcp_free_memory(tcp, tcp->strangers);
	tcp_free_memory(tcp, tcp);
}

/* ---- accessors ---- */

struct vma_ring *vma_tcp_ring(const struct vma_tcp *tcp)
{
	return tcp->ring;
}

uint64_t vma_tcp_next_due_ns(const struct vma_tcp *tcp)
{
	return atomic_load_explicit(&tcp->due_ns, memory_order_acquire);
}

bool vma_tcp_is_busy(const struct vma_tcp *tcp)
{
	return atomic_load_explicit(&tcp->busy, memory_order_acquire);
}

void vma_tcp_read_counters(struct vma_tcp *tcp, struct vma_tcp_counts *out)
{
	uint64_t values[sizeof(*out) / sizeof(uint64_t)];

	for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++)
		values[i] = vma_stats_read_counter(&tcp->count[i]);
	memcpy(out, values, sizeof(*out));
}
