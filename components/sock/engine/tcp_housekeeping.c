/*
 * tcp_housekeeping - housekeeping for TCP, by the internal thread. Timers are kept and packets answered whether or not
 * the program looks. Accepted connections are steered, and ended ones are freed.
 *
 * A ring context with a stack is in one of two states:
 *
 *   armed ── a packet, and no other thread is at it: drive at once, arm again
 *     ^  └── a packet, and others are at it ──> watched: looked at 0.1 ms later, then, as long as others have driven
 *     └──────── no other has driven since ─────          it between two looks, twice as late, up to 1 ms
 *
 * Some ring contexts are driven by other threads again soon after the internal thread armed them. An example is a
 * server that works for a part of a millisecond between two calls. Such a ring context is looked at a millisecond later
 * from the first packet on. Otherwise each of its packets would wake the internal thread, for what the server is about
 * to do itself.
 *
 * So a packet waits for at most about a millisecond if the thread that drove has just stopped, and else is answered at
 * once. A thread that spins or sleeps on the ring costs the internal thread one look per millisecond; an idle ring
 * context costs nothing.
 *
 * If VMA_PROGRESS_ENGINE_INTERVAL is set, a packet waits for that time. The ring context is watched after each packet,
 * and looked at when the time is over. If the interval is 0, it is never looked at. VMA_INTERNAL_THREAD_ARM_CQ goes
 * before that: a packet is taken at once, even if other threads drive, and the ring is armed again.
 *
 * The stack's timers are kept: the thread sleeps no longer than until vma_tcp_next_due_ns. But while a ring context is
 * watched, and no thread sleeps on it, the threads that drive it keep its timers. Then it is enough to come when the
 * ring context is to be looked at. A server with many connections has something due every few microseconds, most of
 * which has moved on when its time comes. A thread that goes to sleep on the ring makes itself known
 * (ring_ctx->watcher), then asks for what is due (tcp_housekeeping_wake_for_earlier_timer). If the user's interval is
 * long, the thread comes a millisecond after what is due instead. With VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING=1 the
 * internal thread comes in time, even if other threads drive.
 */
#include <errno.h>
#include <string.h>

#include <vma/log.h>
#include <vma/mpsc.h>
#include <vma/tcp.h>

#include "internal.h"
#include "../wait/wait.h"

#define CHECK_INTERVAL_MIN_NS (MS / 10)
#define CHECK_INTERVAL_MAX_NS MS
#define ALWAYS_DRIVEN_NS                                                                                               \
	(5 * MS)           /* a thread that drives the ring context so soon after it was armed drives it all the time */
#define STEER_NS (50 * MS) /* an accepted connection waits for one to two of these */
#define STEER_AT_ONCE 16   /* each may cost a conversation with vmad; timers are to be kept meanwhile */
#define PRUNE_NS MS        /* rules that nobody needs any more: so many as end in this time are deleted together */
#define PRUNE_AT_ONCE 64   /* as for steering */
#define PRUNE_LATE_AT_ONCE 4
#define RULES_NS MS /* and no more of either once they have taken so long */
/* Of a device that has no block of ports: what comes late for a connection that has ended is the rule's for so long,
 * and not the kernel's to reset. */
#define PRUNE_LATE_NS (200 * MS)
#define RETIRE_NS (10 * MS)
#define RETIRE_TIMES 3 /* so many turns after an end, nobody inside has seen it */
#define ABANDONED_NS (100 * MS)
#define SWEEP_NS (1000 * MS)
#define IDLE_NS (1000 * MS) /* without connections: who makes one now and then keeps his blocks of ports */

/* A connection that waits to be steered. */
struct pending_steer {
	struct vma_internal_task link; /* first */
	struct vma_tcp_conn *conn;
};

/* A connection that has ended, in its own memory. */
struct ended {
	union {
		struct vma_internal_task link;
		struct vma_retired retired;
	}; /* first */
	struct vma_tcp_conn *conn;
};
_Static_assert(sizeof(struct ended) <= VMA_TCP_HOST_SPACE, "what a connection has room for");

static struct {
	/* The internal thread's. Times are 0 when there is none. */
	ck_stack_entry_t *older, *younger; /* connections accepted before the last period, and in it */
	uint64_t steer_due_ns, retire_due_ns, abandoned_due_ns, idle_due_ns, sweep_due_ns;
	uint64_t last_run_ns; /* when its last turn looked */
	unsigned retire_times;

	_Alignas(64) ck_stack_t accepted; /* struct pending_steer */
	ck_stack_t ended;                 /* struct ended */
	_Atomic bool steer_all_now;       /* all that wait are to be steered now */
	_Atomic bool steers;              /* some that were taken from `accepted` wait still */
	_Atomic bool idle;                /* a stack has blocks of ports and no connection, or had none */
	_Atomic bool sweeps;              /* a ring has exemptions */
	_Atomic bool used;                /* there has been a stack */
	_Atomic uint32_t abandoned;       /* ring contexts that nobody holds but for the connections that end on them */
} housekeeping;

static struct vma_tcp *tcp_stack_of_ring_ctx(const struct vma_ring_ctx *ring_ctx)
{
	return atomic_load_explicit(&ring_ctx->tcp, memory_order_acquire);
}

/* ---- ring contexts ---- */

enum { CTL_BY_TIMER = 2 };     /* VMA_TCP_CTL_THREAD */
enum { TIMERS_IMMEDIATE = 1 }; /* VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING */

static const struct vma_conf *conf_of_ring_ctx(const struct vma_ring_ctx *ring_ctx)
{
	return &ring_ctx->device->engine->conf;
}

/* The user's interval, and not ours, says when the thread looks. */
static bool user_sets_progress_interval(const struct vma_conf *conf)
{
	return !conf->internal_thread_arm_cq &&
	       (conf->given[VMA_CONF_AT_progress_engine_interval] || conf->progress_engine_wce_max == 0);
}

/* How long it is to the next look; NO_DEADLINE: there is none. */
static uint64_t tcp_timer_check_interval(const struct vma_conf *conf, uint64_t ours)
{
	if (!user_sets_progress_interval(conf))
		return ours;
	return conf->progress_engine_interval != 0 && conf->progress_engine_wce_max != 0
	               ? (uint64_t)conf->progress_engine_interval * MS
	               : NO_DEADLINE;
}

static void housekeeping_schedule_check_of_ring(struct vma_ring_ctx *ring_ctx, uint64_t now, uint64_t step)
{
	const uint64_t interval = tcp_timer_check_interval(conf_of_ring_ctx(ring_ctx), step);

	ring_ctx->driven_seen = atomic_load_explicit(&ring_ctx->driven, memory_order_relaxed);
	ring_ctx->check_interval_ns = step;
	ring_ctx->check_ns = interval != NO_DEADLINE ? now + interval : NO_DEADLINE;
}

static bool ring_is_driven_by_others(const struct vma_ring_ctx *ring_ctx)
{
	return atomic_load_explicit(&ring_ctx->driven, memory_order_relaxed) != ring_ctx->driven_seen ||
	       ring_ctx_has_timed_sleeper(ring_ctx);
}

/* Others are at it. */
static void housekeeping_unarm_and_check_ring_later(struct vma_ring_ctx *ring_ctx, uint64_t now, uint64_t step)
{
	ring_housekeeping_unwatch_ring_fd(ring_ctx);
	housekeeping_schedule_check_of_ring(ring_ctx, now, step);
}

/* Nobody else is. */
static void housekeeping_drive_undriven_ring(struct vma_ring_ctx *ring_ctx, uint64_t now, int64_t max)
{
	if (ring_housekeeping_drain(ring_ctx, max) && ring_housekeeping_arm_and_watch_ring(ring_ctx)) {
		ring_ctx->driven_seen = atomic_load_explicit(&ring_ctx->driven, memory_order_relaxed);
		ring_ctx->armed_ns = now;
	} else {
		housekeeping_unarm_and_check_ring_later(ring_ctx, now, CHECK_INTERVAL_MIN_NS);
	}
}

/* Who sleeps on it wakes as well: it is that thread's packet, and it will go on driving. */
bool tcp_housekeeping_handle_ring_readable(struct vma_ring_ctx *ring_ctx, const struct vma_conf *conf)
{
	const uint64_t now = vma_now_ns();

	if (tcp_stack_of_ring_ctx(ring_ctx) == NULL)
		return false;
	if (conf->internal_thread_arm_cq)
		housekeeping_drive_undriven_ring(ring_ctx, now, conf->progress_engine_wce_max);
	else if (user_sets_progress_interval(conf))
		housekeeping_unarm_and_check_ring_later(ring_ctx, now, CHECK_INTERVAL_MAX_NS);
	else if (atomic_load_explicit(&ring_ctx->watcher, memory_order_relaxed) != NULL)
		housekeeping_unarm_and_check_ring_later(ring_ctx, now, CHECK_INTERVAL_MAX_NS);
	else if (ring_is_driven_by_others(ring_ctx))
		housekeeping_unarm_and_check_ring_later(
		        ring_ctx, now,
		        now - ring_ctx->armed_ns < ALWAYS_DRIVEN_NS ? CHECK_INTERVAL_MAX_NS : CHECK_INTERVAL_MIN_NS);
	else
		housekeeping_drive_undriven_ring(ring_ctx, now, conf->progress_engine_wce_max);
	return true;
}

static void tcp_watch_or_poll_stack_for_timers(struct vma_ring_ctx *ring_ctx, uint64_t now, int64_t max)
{
	uint64_t step = ring_ctx->check_interval_ns * 2;

	if (ring_is_driven_by_others(ring_ctx) && !conf_of_ring_ctx(ring_ctx)->internal_thread_arm_cq)
		housekeeping_schedule_check_of_ring(ring_ctx, now,
		                                    step < CHECK_INTERVAL_MAX_NS ? step : CHECK_INTERVAL_MAX_NS);
	else
		housekeeping_drive_undriven_ring(ring_ctx, now, max);
}

struct round {
	uint64_t now, next;
	int64_t max;
};

static void min_deadline_update(uint64_t *next, uint64_t at)
{
	if (at < *next)
		*next = at;
}

/* When the thread is to drive the stack for its timers; NO_DEADLINE: others keep them. See the top. */
static uint64_t stack_timers_due_ns(const struct vma_ring_ctx *ring_ctx, const struct vma_tcp *tcp)
{
	const struct vma_conf *conf = conf_of_ring_ctx(ring_ctx);
	const uint64_t due = vma_tcp_next_due_ns(tcp);

	if (due == NO_DEADLINE || ring_ctx->armed || atomic_load(&ring_ctx->watcher) != NULL ||
	    conf->internal_thread_tcp_timer_handling == TIMERS_IMMEDIATE)
		return due;
	return user_sets_progress_interval(conf) ? due + CHECK_INTERVAL_MAX_NS : NO_DEADLINE;
}

/* The same, after the stack was driven if that was due. */
static uint64_t tcp_poll_stack_if_timers_due(struct vma_ring_ctx *ring_ctx, const struct vma_tcp *tcp, uint64_t now)
{
	uint64_t due = stack_timers_due_ns(ring_ctx, tcp);

	if (due > now)
		return due;
	vma_ring_progress_and_notify(ring_ctx->ring);
	due = stack_timers_due_ns(ring_ctx, tcp);
	return due > now ? due : now + CHECK_INTERVAL_MIN_NS; /* somebody is at it at this moment */
}

/* When connections that wait to be made are due, after they were made if they were. */
static uint64_t housekeeping_run_control_conns_when_due(struct vma_ring_ctx *ring_ctx, struct vma_tcp *tcp,
                                                        uint64_t now)
{
	const uint64_t due = atomic_load_explicit(&ring_ctx->control_ns, memory_order_relaxed);

	if (!vma_tcp_has_control_work(tcp))
		return NO_DEADLINE;
	if (due > now)
		return due;
	return vma_tcp_run_control_queue(tcp) == -EBUSY ? now + CHECK_INTERVAL_MIN_NS : NO_DEADLINE;
}

static uint64_t stale_rules_prune_due_ns(const struct vma_ring_ctx *ring_ctx, uint64_t now)
{
	const uint64_t due = atomic_load(&ring_ctx->prune_ns), soon = now + PRUNE_NS;

	return due > soon ? due : soon;
}

static void housekeeping_poll_stack_timers_of_ring(struct vma_ring_ctx *ring_ctx, void *arg)
{
	struct round *round = arg;
	struct vma_tcp *tcp = tcp_stack_of_ring_ctx(ring_ctx);

	if (tcp == NULL)
		return;
	if (!ring_ctx->armed && ring_ctx->check_ns == 0)
		housekeeping_schedule_check_of_ring(ring_ctx, round->now, CHECK_INTERVAL_MIN_NS);
	if (ring_ctx->check_ns > round->now + CHECK_INTERVAL_MAX_NS && busy_poller_exists(ring_ctx->id % 64))
		ring_ctx->check_ns = round->now + CHECK_INTERVAL_MAX_NS; /* it may lose its core: wait/busy_poller.c */
	if (!ring_ctx->armed && round->now >= ring_ctx->check_ns)
		tcp_watch_or_poll_stack_for_timers(ring_ctx, round->now, round->max);
	min_deadline_update(&round->next, tcp_poll_stack_if_timers_due(ring_ctx, tcp, round->now));
	min_deadline_update(&round->next, housekeeping_run_control_conns_when_due(ring_ctx, tcp, round->now));
	if (!ring_ctx->armed)
		min_deadline_update(&round->next, ring_ctx->check_ns);
	if (atomic_load(&ring_ctx->to_prune))
		min_deadline_update(&round->next, stale_rules_prune_due_ns(ring_ctx, round->now));
}

/*
 * A time has become earlier, with the receive flag: the stack has published it. Or somebody goes to sleep on the ring.
 * The thread is woken if it would come too late, unless the timers are others' until its next look. It says when it
 * wakes (B) after it has armed the ring, if it has, and before it looks at what is due: so if it was asked first, it
 * sees what is due now, and if it was asked later, what it has armed is seen here. For who goes to sleep it is the same
 * with a driver who still found nobody asleep: he asked before, and what he has published is seen.
 */
void tcp_housekeeping_wake_for_earlier_timer(void *arg)
{
	struct vma_ring_ctx *ring_ctx = arg;
	struct vma_tcp *tcp = tcp_stack_of_ring_ctx(ring_ctx);
	uint64_t until;

	if (tcp == NULL)
		return;
	until = internal_sleeps_until();
	if (until > vma_tcp_next_due_ns(tcp) &&
	    until > round_up_to_timer_resolution(stack_timers_due_ns(ring_ctx, tcp)))
		internal_thread_wake();
}

/* With the receive flag. */
void tcp_housekeeping_schedule_control_conns(void *arg)
{
	struct vma_ring_ctx *ring_ctx = arg;
	const struct vma_conf *conf = conf_of_ring_ctx(ring_ctx);
	const uint64_t step = (uint64_t)conf->timer_resolution_msec * MS;
	const uint64_t due = conf->tcp_ctl_thread == CTL_BY_TIMER ? (vma_now_ns() / step + 1) * step : 0;

	atomic_store_explicit(&ring_ctx->control_ns, due, memory_order_relaxed);
	internal_thread_wake_no_later_than(due);
}

/*
 * What was due when the turn looked is being driven by somebody else, or was left to them
 * (tcp_poll_stack_if_timers_due): not to sleep until they have done it would take the core from them, if they have none
 * at this moment.
 */
static void housekeeping_min_next_due_of_ring(struct vma_ring_ctx *ring_ctx, void *arg)
{
	struct vma_tcp *tcp = tcp_stack_of_ring_ctx(ring_ctx);
	uint64_t due = tcp != NULL ? stack_timers_due_ns(ring_ctx, tcp) : NO_DEADLINE;

	min_deadline_update(arg,
	                    due > housekeeping.last_run_ns ? due : housekeeping.last_run_ns + CHECK_INTERVAL_MIN_NS);
	if (tcp != NULL && vma_tcp_has_control_work(tcp))
		min_deadline_update(arg, atomic_load_explicit(&ring_ctx->control_ns, memory_order_relaxed));
	if (atomic_load(&ring_ctx->to_prune))
		min_deadline_update(arg, stale_rules_prune_due_ns(ring_ctx, vma_now_ns()));
}

/* ---- rules of the NIC that outlive their connections ---- */

static bool stale_rules_are_pruned_late(const struct vma_ring_ctx *ring_ctx)
{
	return ring_ctx->device->nic->info.caps & VMA_NIC_CAP_TO_KERNEL;
}

/* With the receive flag. Cleared before the thread looks for them: what comes after that sets it again. */
void tcp_housekeeping_schedule_rule_deletion(void *arg)
{
	struct vma_ring_ctx *ring_ctx = arg;
	uint64_t due;

	if (atomic_load_explicit(&ring_ctx->to_prune, memory_order_relaxed))
		return;
	due = vma_now_ns() + (stale_rules_are_pruned_late(ring_ctx) ? PRUNE_LATE_NS : PRUNE_NS);
	atomic_store(&ring_ctx->prune_ns, due); /* before it counts */
	if (!atomic_exchange(&ring_ctx->to_prune, true))
		internal_thread_wake_no_later_than(due);
}

/* Each rule stays its own time: what is not due is looked at again a tenth of that later. */
static void housekeeping_delete_stale_rules_of_ring(struct vma_ring_ctx *ring_ctx, void *arg)
{
	const bool late = stale_rules_are_pruned_late(ring_ctx);
	const unsigned burst = late ? PRUNE_LATE_AT_ONCE : PRUNE_AT_ONCE;
	const uint64_t now = vma_now_ns();
	unsigned n = 0, deleted;
	bool more;

	(void)arg;
	if (!atomic_load_explicit(&ring_ctx->to_prune, memory_order_relaxed) ||
	    (late && now < atomic_load(&ring_ctx->prune_ns)) || !atomic_exchange(&ring_ctx->to_prune, false))
		return;
	do {
		more = vma_ring_delete_stale_nic_rules(ring_ctx->ring, burst, late ? now - PRUNE_LATE_NS : UINT64_MAX,
		                                       &deleted);
		n += deleted;
	} while (more && deleted == burst && n < PRUNE_AT_ONCE && vma_now_ns() < now + RULES_NS);
	if (!more)
		return;
	if (late)
		atomic_store(&ring_ctx->prune_ns, now + PRUNE_LATE_NS / 10);
	atomic_store(&ring_ctx->to_prune, true);
}

void tcp_housekeeping_delete_stale_rules(void)
{
	if (atomic_load(&housekeeping.used))
		ring_ctxs_each(housekeeping_delete_stale_rules_of_ring, NULL);
}

/* ---- connections that are the kernel's ---- */

static void ring_ctx_leave_flow_to_kernel(struct vma_ring_ctx *ring_ctx, const struct vma_flow_key *key)
{
	if (!vma_ring_exempt_kernel_connections(ring_ctx->ring, key))
		return;
	atomic_store(&ring_ctx->to_sweep, true);
	if (!atomic_exchange(&housekeeping.sweeps, true))
		internal_thread_wake_no_later_than(vma_now_ns() + SWEEP_NS);
}

struct exemption {
	const struct vma_device *device;
	const struct vma_flow_key *key;
};

static void ring_ctx_leave_flow_to_kernel_if_on_device(struct vma_ring_ctx *ring_ctx, void *arg)
{
	const struct exemption *exemption = arg;

	if (ring_ctx->device == exemption->device && tcp_stack_of_ring_ctx(ring_ctx) != NULL)
		ring_ctx_leave_flow_to_kernel(ring_ctx, exemption->key);
}

/* The listener of a connection that has moved is on another ring. A ring without it refuses. */
void vma_ring_ctx_leave_flow_to_kernel(struct vma_ring_ctx *ring_ctx, const struct vma_flow_key *key)
{
	struct exemption exemption = {.device = ring_ctx->device, .key = key};

	if (key->peer_port_be == 0)
		ring_ctx_leave_flow_to_kernel(ring_ctx, key);
	else
		ring_ctxs_each(ring_ctx_leave_flow_to_kernel_if_on_device, &exemption);
}

/* Cleared before the look: an exemption that comes after that sets it again. */
static void housekeeping_expire_exempt_flows_of_ring(struct vma_ring_ctx *ring_ctx, void *arg)
{
	bool *any = arg;

	if (!atomic_exchange(&ring_ctx->to_sweep, false))
		return;
	if (vma_ring_remove_exempts_of_ended_conns(ring_ctx->ring))
		atomic_store(&ring_ctx->to_sweep, true);
	*any |= atomic_load(&ring_ctx->to_sweep);
}

static uint64_t housekeeping_expire_exempt_flows_when_due(uint64_t now)
{
	bool any = false;

	if (!atomic_load(&housekeeping.sweeps))
		return NO_DEADLINE;
	if (housekeeping.sweep_due_ns == 0)
		housekeeping.sweep_due_ns = now + SWEEP_NS;
	if (now < housekeeping.sweep_due_ns)
		return housekeeping.sweep_due_ns;
	housekeeping.sweep_due_ns = 0;
	atomic_store(&housekeeping.sweeps, false);
	ring_ctxs_each(housekeeping_expire_exempt_flows_of_ring, &any);
	if (!any)
		return NO_DEADLINE;
	atomic_store(&housekeeping.sweeps, true);
	housekeeping.sweep_due_ns = now + SWEEP_NS;
	return housekeeping.sweep_due_ns;
}

/* ---- blocks of ports ---- */

/* With the receive flag. */
void tcp_housekeeping_on_stack_idle(void *ring_ctx)
{
	(void)ring_ctx;
	if (!atomic_exchange(&housekeeping.idle, true))
		internal_thread_wake_no_later_than(vma_now_ns() + IDLE_NS);
}

static void housekeeping_release_idle_ports(struct vma_ring_ctx *ring_ctx, void *arg)
{
	struct vma_tcp *tcp = tcp_stack_of_ring_ctx(ring_ctx);

	(void)arg;
	if (tcp != NULL)
		vma_tcp_release_port_blocks_if_unused(tcp);
}

/* Who has a connection again by then is left out, and says so when that has ended. */
static uint64_t housekeeping_release_idle_ports_when_due(uint64_t now)
{
	if (!atomic_load(&housekeeping.idle))
		return NO_DEADLINE;
	if (housekeeping.idle_due_ns == 0)
		housekeeping.idle_due_ns = now + IDLE_NS;
	if (now < housekeeping.idle_due_ns)
		return housekeeping.idle_due_ns;
	housekeeping.idle_due_ns = 0;
	atomic_store(&housekeeping.idle, false);
	ring_ctxs_each(housekeeping_release_idle_ports, NULL);
	return NO_DEADLINE;
}

/* ---- ring contexts that nobody holds ---- */

void tcp_housekeeping_count_abandoned_stack(void)
{
	atomic_fetch_add(&housekeeping.abandoned, 1);
	internal_thread_wake();
}

static void tcp_stack_end_if_unused(struct vma_ring_ctx *ring_ctx, void *arg)
{
	struct vma_tcp *tcp = tcp_stack_of_ring_ctx(ring_ctx);

	(void)arg;
	if (!atomic_load(&ring_ctx->abandoned) || !vma_tcp_is_empty(tcp))
		return;
	atomic_store(&ring_ctx->abandoned, false);
	atomic_fetch_sub(&housekeeping.abandoned, 1);
	ring_ctx_put_and_retire_if_last(ring_ctx);
}

static uint64_t housekeeping_free_abandoned_stacks_when_due(uint64_t now)
{
	if (atomic_load(&housekeeping.abandoned) == 0) {
		housekeeping.abandoned_due_ns = 0;
		return NO_DEADLINE;
	}
	if (housekeeping.abandoned_due_ns != 0 && now >= housekeeping.abandoned_due_ns)
		ring_ctxs_each(tcp_stack_end_if_unused, NULL);
	if (housekeeping.abandoned_due_ns <= now)
		housekeeping.abandoned_due_ns = now + ABANDONED_NS;
	return housekeeping.abandoned_due_ns;
}

/* ---- connections that were accepted ---- */

void vma_engine_schedule_steer_of_conn(struct vma_tcp_conn *conn)
{
	struct pending_steer *pending_steer = vma_alloc(sizeof(*pending_steer));

	if (pending_steer == NULL)
		return; /* its listener's rule goes on covering it */
	vma_tcp_conn_get(conn);
	pending_steer->conn = conn;
	vma_mpsc_push(&housekeeping.accepted, (ck_stack_entry_t *)&pending_steer->link);
	internal_thread_wake_no_later_than(vma_now_ns() + STEER_NS);
}

void vma_engine_steer_pending_now(void)
{
	atomic_store(&housekeeping.steer_all_now, true);
	internal_thread_wake();
}

/* With VMA_TCP_3T_RULES and VMA_TCP_2T_RULES connections wait for nothing else. */
static void ring_ctx_steer_all_conns(struct vma_ring_ctx *ring_ctx, void *arg)
{
	struct vma_tcp *tcp = tcp_stack_of_ring_ctx(ring_ctx);

	(void)arg;
	if (tcp != NULL)
		vma_tcp_steer_all_conns_to_own_rules(tcp);
}

void tcp_steer_all_conns_under_wide_rules(const struct vma_conf *conf)
{
	if (conf->tcp_3t_rules || conf->tcp_2t_rules)
		ring_ctxs_each(ring_ctx_steer_all_conns, NULL);
}

void vma_engine_steer_conns_under_wide_rules(void)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	if (engine != NULL && (engine->conf.tcp_3t_rules || engine->conf.tcp_2t_rules))
		vma_engine_steer_pending_now();
}

static void steer_pending_conn(struct pending_steer *pending_steer)
{
	const int state = vma_tcp_state(pending_steer->conn);
	int rc = 0;

	if (state != TCP_CLOSE && state != TCP_TIME_WAIT)
		rc = vma_tcp_conn_add_own_nic_rule(pending_steer->conn);
	if (rc < 0)
		vma_log_debug("tcp: a connection has no rule of its own: %s", strerrordesc_np(-rc));
	vma_tcp_conn_put(pending_steer->conn);
	vma_free(pending_steer);
}

static void ck_stack_list_append(ck_stack_entry_t **list, ck_stack_entry_t *more)
{
	while (*list != NULL)
		list = &(*list)->next;
	*list = more;
}

/* Those accepted since the last period become the younger ones, and those the older ones, who are steered. */
static void tcp_rotate_steer_candidates(uint64_t now)
{
	const bool steer_all_now = atomic_exchange(&housekeeping.steer_all_now, false);

	if (steer_all_now)
		tcp_steer_all_conns_under_wide_rules(&vma_engine_get_or_start()->conf);

	if (!steer_all_now && now < housekeeping.steer_due_ns)
		return;
	ck_stack_list_append(&housekeeping.older, housekeeping.younger);
	housekeeping.younger = vma_mpsc_take_all(&housekeeping.accepted);
	housekeeping.steer_due_ns = now + STEER_NS;
	if (steer_all_now) {
		ck_stack_list_append(&housekeeping.older, housekeeping.younger);
		housekeeping.younger = NULL;
	}
}

bool vma_engine_has_conns_to_steer(void)
{
	return atomic_load(&housekeeping.steers) || atomic_load(&housekeeping.steer_all_now) ||
	       ck_pr_load_ptr(&housekeeping.accepted.head) != NULL;
}

static uint64_t housekeeping_steer_pending_conns(uint64_t now)
{
	const uint64_t until = vma_now_ns() + RULES_NS; /* rings have been served since `now` */

	atomic_store(&housekeeping.steers, true); /* before they are taken: at each moment one of the two shows them */
	tcp_rotate_steer_candidates(now);
	for (unsigned i = 0; i < STEER_AT_ONCE && housekeeping.older != NULL && (i == 0 || vma_now_ns() < until); i++) {
		struct pending_steer *pending_steer = (struct pending_steer *)housekeeping.older;

		housekeeping.older = ck_pr_load_ptr(&housekeeping.older->next);
		steer_pending_conn(pending_steer);
	}
	atomic_store(&housekeeping.steers, housekeeping.older != NULL || housekeeping.younger != NULL);
	if (housekeeping.older != NULL)
		return 0;
	return housekeeping.younger != NULL ? housekeeping.steer_due_ns : NO_DEADLINE;
}

/* ---- connections that have ended ---- */

/* With the receive flag. Never waits: vma_defer_free_until_no_readers would, for a lock. */
void tcp_housekeeping_queue_ended_conn_to_free(struct vma_tcp_conn *conn, void *arg)
{
	struct ended *ended = vma_tcp_conn_scratch_memory_for_host(conn);

	(void)arg;
	ended->conn = conn;
	vma_mpsc_push(&housekeeping.ended, (ck_stack_entry_t *)&ended->link);
	internal_thread_wake_no_later_than(vma_now_ns() + STEER_NS);
}

static void free_conn(struct vma_retired *retired)
{
	vma_tcp_conn_free(((struct ended *)retired)->conn); /* its stack may be gone */
}

static uint64_t housekeeping_retire_ended_conns(uint64_t now)
{
	ck_stack_entry_t *entry = vma_mpsc_take_all(&housekeeping.ended);

	if (entry != NULL)
		housekeeping.retire_times = RETIRE_TIMES;
	while (entry != NULL) {
		struct ended *ended = (struct ended *)entry;

		entry = ck_pr_load_ptr(&entry->next);
		vma_defer_free_until_no_readers(&ended->retired, free_conn);
	}
	if (housekeeping.retire_times > 0 && now >= housekeeping.retire_due_ns) {
		housekeeping.retire_times--;
		housekeeping.retire_due_ns = now + RETIRE_NS;
	}
	return housekeeping.retire_times > 0 ? housekeeping.retire_due_ns : NO_DEADLINE;
}

/* ---- turns ---- */

uint64_t tcp_housekeeping_run(const struct vma_conf *conf, uint64_t now)
{
	struct round round = {
	        .now = now,
	        .next = NO_DEADLINE,
	        .max = conf->progress_engine_wce_max,
	};

	if (!atomic_load(&housekeeping.used))
		return NO_DEADLINE;
	housekeeping.last_run_ns = now;
	ring_ctxs_each(housekeeping_poll_stack_timers_of_ring, &round);
	min_deadline_update(&round.next, housekeeping_steer_pending_conns(now));
	min_deadline_update(&round.next, housekeeping_retire_ended_conns(now));
	min_deadline_update(&round.next, housekeeping_free_abandoned_stacks_when_due(now));
	min_deadline_update(&round.next, housekeeping_release_idle_ports_when_due(now));
	min_deadline_update(&round.next, housekeeping_expire_exempt_flows_when_due(now));
	return round.next;
}

uint64_t tcp_housekeeping_next_due_ns(void)
{
	uint64_t next = NO_DEADLINE;

	if (!atomic_load(&housekeeping.used))
		return NO_DEADLINE;
	ring_ctxs_each(housekeeping_min_next_due_of_ring, &next);
	if (ck_pr_load_ptr(&housekeeping.accepted.head) != NULL || ck_pr_load_ptr(&housekeeping.ended.head) != NULL)
		min_deadline_update(&next, vma_now_ns() + STEER_NS);
	if (atomic_load(&housekeeping.idle))
		min_deadline_update(&next,
		                    housekeeping.idle_due_ns != 0 ? housekeeping.idle_due_ns : vma_now_ns() + IDLE_NS);
	if (atomic_load(&housekeeping.sweeps))
		min_deadline_update(&next, housekeeping.sweep_due_ns != 0 ? housekeeping.sweep_due_ns
		                                                          : vma_now_ns() + SWEEP_NS);
	return next;
}

void tcp_housekeeping_begin(void)
{
	atomic_store(&housekeeping.used, true);
	icmp_open_and_watch_raw_socket_once();
	internal_thread_wake();
}

/* What waited here was the parent's. */
void tcp_housekeeping_reset_in_fork_child(void)
{
	memset(&housekeeping, 0, sizeof(housekeeping));
}
