/*
 * internal - the internal thread's parts: internal.c sleeps and wakes, ring_housekeeping.c and tcp_housekeeping.c do
 * the housekeeping of ring contexts, notify.c tells files.
 *
 * A *turn* runs in the internal thread, inside, after every wake-up.
 *
 * Threads: functions named _turn, _again, _take_event, _arm and _disarm run in the internal thread. Functions that say
 * so may be called by any thread. _fork_child runs in a forked child's only thread.
 */
#ifndef VMA_SOCK_ENGINE_INTERNAL_H
#define VMA_SOCK_ENGINE_INTERNAL_H

#include "engine.h"

#define MS 1000000ULL
#define NO_DEADLINE UINT64_MAX /* when a part wants its next turn, CLOCK_MONOTONIC; 0: at once */
/* When the thread wakes for what is due at that time: VMA_TIMER_RESOLUTION_MSEC. Any thread. */
uint64_t round_up_to_timer_resolution(uint64_t at_ns);

/* What an event of the thread's epoll set is of: the kind in the upper bits, and a number below. */
enum internal_source { INTERNAL_NET, INTERNAL_WAKE, INTERNAL_RING_CTX, INTERNAL_ERROR };
#define INTERNAL_SOURCE_SHIFT 62
#define INTERNAL_WAKE_WATCHED 1 /* numbers of INTERNAL_WAKE from here on: see vma_engine_watch_fd_with_task */
#define INTERNAL_NET_ICMP 1     /* the number of INTERNAL_NET: ICMP errors; 0: interfaces, routes, neighbours */

/* Any thread. add: -ENODEV without a thread; a descriptor that is in the set already gets the new meaning. */
int internal_epoll_add_fd(int fd, uint32_t events, enum internal_source source, uint64_t number);
void internal_epoll_remove_fd(int fd);

/* vfork_handoff.c: files that a vfork child passes on to its next program. */
void vfork_handoffs_run(void);
/* The thread begins a turn; from a vfork child, whose descriptors are copies. False: it has none any more. */
bool internal_thread_wake_from_vfork_child(void);

/*
 * ring_housekeeping.c: frames sent LATER, ring contexts that nobody drives, retired ring contexts. Each returns its
 * deadline.
 */
uint64_t ring_housekeeping_run(struct vma_engine *engine, uint64_t now);
uint64_t ring_housekeeping_reclaim_due_with_backoff(uint64_t now); /* after retired memory was ended */
/*
 * When the next turn is to be, for what was sent LATER since the last one, or for a thread that has begun to busy-poll;
 * after internal_thread_wake_no_later_than knows that.
 */
uint64_t ring_housekeeping_next_due_ns(void);
void ring_housekeeping_handle_ring_readable(struct vma_engine *engine, uint64_t number);
/*
 * The thread sleeps on the ring context's descriptor from now on. False: it does not, there is something, or another
 * thread drives.
 */
bool ring_housekeeping_arm_and_watch_ring(struct vma_ring_ctx *ring_ctx);
void ring_housekeeping_unwatch_ring_fd(struct vma_ring_ctx *ring_ctx);
/*
 * Drives until nothing is left, or about so many packets were taken. False: there may be more, or another thread has
 * the flag.
 */
bool ring_housekeeping_drain(struct vma_ring_ctx *ring_ctx, int64_t max);
void ring_housekeeping_reset_in_fork_child(void);
/* Whether the thread drives ring contexts that nobody else does: the user may have switched that off. */
bool ring_housekeeping_drives(void);
/* Any thread, as it begins to busy-poll (wait/busy_poller.c). */
void ring_housekeeping_wake_for_busy_poller(void);
/* Any thread: a ring context that the internal thread has armed sends much. */
void ring_housekeeping_wake_for_sending_ring(struct vma_ring_ctx *ring_ctx);

/* tcp_housekeeping.c: ring contexts with a stack, connections to be steered, connections that have ended. */
uint64_t tcp_housekeeping_run(const struct vma_conf *conf, uint64_t now);
/* When the next turn is to be, for what has come since the last one; after internal_thread_wake_no_later_than knows
 * when that will be. */
uint64_t tcp_housekeeping_next_due_ns(void);
bool tcp_housekeeping_handle_ring_readable(struct vma_ring_ctx *ring_ctx,
                                           const struct vma_conf *conf); /* false: it has no stack */
void tcp_housekeeping_count_abandoned_stack(void);
struct vma_conf;
/* With VMA_TCP_3T_RULES or VMA_TCP_2T_RULES: every connection without a rule of its own gets one. Control path. */
void tcp_steer_all_conns_under_wide_rules(const struct vma_conf *conf);
void tcp_housekeeping_begin(void);                            /* there is a stack */
void tcp_housekeeping_wake_for_earlier_timer(void *ring_ctx); /* struct vma_tcp_host_ops's */
void tcp_housekeeping_queue_ended_conn_to_free(struct vma_tcp_conn *conn, void *ring_ctx);
void tcp_housekeeping_schedule_rule_deletion(void *ring_ctx);
void tcp_housekeeping_on_stack_idle(void *ring_ctx);
void tcp_housekeeping_schedule_control_conns(void *ring_ctx);
/* Before the tasks: a shadow that gives its port back does so when the NIC has forgotten the connection. */
void tcp_housekeeping_delete_stale_rules(void);
void tcp_housekeeping_reset_in_fork_child(void);

/* icmp_housekeeping.c: ICMP errors about connections. */
void icmp_open_and_watch_raw_socket_once(void); /* there is a stack; any thread */
void icmp_receive_errors_for_tcp_stacks(struct vma_engine *engine);
void icmp_housekeeping_close_in_fork_child(void);

/* notify.c: changes of the network, refused offloads, errors of shadows. */
void notify_init(struct vma_engine *engine);
uint64_t notify_files_of_changes_when_due(struct vma_engine *engine, uint64_t now);
void notify_file_of_socket_error(uint64_t number);
void notify_reset_in_fork_child(void);

#endif
