/*
 * engine - the engine's parts. engine.c starts and ends it. device.c and ring_ctx.c make devices and ring contexts on
 *          demand. internal.c has the thread (with its parts, see internal.h).
 *
 * Locks, in the order in which they may be taken: start (engine.c), devices (device.c), ring contexts (ring_ctx.c).
 * None is held around a call of ops. All are made anew in a forked child, which abandons everything that they guard.
 *
 * Threads: any. Functions named _fork_child run in a forked child's only thread. Functions that are said to be `inside`
 * need vma_enter.
 */
#ifndef VMA_SOCK_ENGINE_ENGINE_H
#define VMA_SOCK_ENGINE_ENGINE_H

#include <vma/sock_engine.h>

struct vma_engine_priv {
	struct vma_device *devices;     /* under the lock of devices */
	_Atomic uint32_t stats_counted; /* sockets that are one of VMA_STATS_FD_NUM */
	_Atomic uint32_t stats_in_use;  /* blocks of sockets: theirs, and those of closed ones that live on */
	_Atomic int stats_log_fd;       /* VMA_STATS_FILE; -1: none */
	char vmad_path[4096];           /* "": there is none */
};

struct vma_device_priv {
	struct vma_device *next;
	struct vma_ring_ctx *ring_ctxs; /* under the lock of ring_ctx.c */
	uint32_t ring_ctxs_made;
	int refused;         /* 0: it is open; else why not */
	uint64_t refused_ns; /* when */
	uint64_t generation; /* of net, then */
};

/* banner.c */
void engine_log_startup_banner(const struct vma_conf *conf);

/* rules.c */
int engine_read_rules_once(struct vma_engine *engine);
const char *engine_rules_file(void); /* its name; "": there are no rules */
/* Where a rule stands: FILE:LINE, or which of the added rules it is. Until the thread asks again. */
const char *engine_name_of_rule(uint32_t line);
/* Sockets of which a rule's line has been told, by kind. tells_now: it is, from now on; the answer is of before. */
enum engine_rules_kind { ENGINE_RULES_UDP, ENGINE_RULES_TCP, ENGINE_RULES_SENDERS, ENGINE_RULES_KINDS };
bool engine_rule_was_logged_or_mark_logged(unsigned kind, uint32_t line, bool tells_now);

/* thread/thread.c: in a forked child, before anything else of the library; the calling thread is the only one there is.
 */
void vma_threads_reset_in_forked_child(void);

/* device.c */
void device_record_parents_devices_in_child(struct vma_engine *engine); /* the parent's; NULL: it had none */
/* Those that the process had which forked this one. */
void devices_open_those_parent_had(struct vma_engine *engine);

/* ring_ctx.c */
void ring_ctxs_forget_in_fork_child(void);
/* Every ring context; inside. */
void ring_ctxs_each(void (*fn)(struct vma_ring_ctx *ring_ctx, void *arg), void *arg);
struct vma_ring_ctx *ring_ctx_of_id(uint32_t id);                    /* inside */
void ring_ctx_put_and_retire_if_last(struct vma_ring_ctx *ring_ctx); /* without regard to connections */

/* ring_file.c */
void ring_file_detach_and_close_of_ended_ring(
        struct vma_ring_ctx *ring_ctx); /* the last reference has gone; no lock of engine held */
void ring_files_reset_in_fork_child(void);

/* maker.c: which logic is the side's */
enum vma_ring_logic conf_ring_allocation_logic_of_side(const struct vma_conf *conf, enum vma_ring_ctx_side side);
struct vma_ring_key ring_ctx_key(const struct vma_conf *conf, enum vma_ring_ctx_side side,
                                 const struct vma_ring_requester *where);

/* ring_ctx_tcp.c */
void ring_ctx_tcp_end(struct vma_ring_ctx *ring_ctx); /* its stack, if it has one */
void ring_ctx_tcp_reset_in_fork_child(void);

/* internal.c */
int internal_thread_setup_and_start(struct vma_engine *engine);
/* Has it look at everything. Never waits; a signal handler may call it. */
void internal_thread_wake(void);
/* Has it look no later than at_ns; does nothing if it will. */
void internal_thread_wake_no_later_than(uint64_t at_ns);
/* Until when it sleeps; 0: awake, and about to look. What is to be seen by it is published before. */
uint64_t internal_sleeps_until(void);
void internal_thread_reset_in_fork_child(void);

/* taken.c: other processes may ask for sockets that they have taken (pidfd_getfd). Again: nothing. */
void taken_open_hand_over_server(void);
void taken_server_close_in_fork_child(void);
/* Of /proc's text about a pidfd: the process's pid here, and in its own namespace; 0: it has none. */
int parse_pid_of_fdinfo(const char *fdinfo);
int parse_innermost_pid_of_fdinfo(const char *fdinfo);

/* stats_log.c: VMA_STATS_FILE. */
int stats_log_start(struct vma_engine *engine);
void stats_log_socket(const struct vma_engine *engine, const struct vma_stats_socket *block); /* it is closed */
void stats_log_all_open_sockets_at_exit(struct vma_engine *engine);
void stats_log_close_in_fork_child(struct vma_engine *engine);

/* stats_requests.c: vma_stats may ask for something from now on. */
int stats_requests_start(struct vma_engine *engine);

/* reason.c: vma_sock_log_why_not_offloaded, inside. */
void sock_log_why_not_offloaded_inside(int fd, bool serves);

/* notify.c: has ops->net_changed called for every file, soon. */
void schedule_notify_of_all_files(void);

/* ring_disarm.c: when nobody has armed a ring that is busy for a while, arrivals stop paying for it. */
#define RING_CTX_BUSY_DRIVES 256 /* between two looks; a power of two */
/* Each time, where the ring has a descriptor: it is told. */
void ring_ctx_schedule_disarm_if_busy(struct vma_ring_ctx *ring_ctx, uint32_t busy) __attribute__((cold));
static inline void ring_ctx_count_busy_poll(struct vma_ring_ctx *ring_ctx)
{
	uint32_t busy = atomic_load_explicit(&ring_ctx->busy, memory_order_relaxed) + 1;

	/* Between two drivers a step may be lost, which makes a look later. */
	atomic_store_explicit(&ring_ctx->busy, busy, memory_order_relaxed);
	if (__builtin_expect((busy & atomic_load_explicit(&ring_ctx->busy_mask, memory_order_relaxed)) == 0, 0))
		ring_ctx_schedule_disarm_if_busy(ring_ctx, busy);
}
/* Before an arm, by whoever sleeps on the ring's descriptor then, after what it is found by: watcher, armed. */
static inline void ring_ctx_count_arm(struct vma_ring_ctx *ring_ctx)
{
	atomic_fetch_add_explicit(&ring_ctx->arms, 1, memory_order_relaxed);
}
/* A thread sleeps there, on a timer, and looks when it is over: until then nobody else has to (wait/hold.c). */
static inline bool ring_ctx_has_timed_sleeper(const struct vma_ring_ctx *ring_ctx)
{
	const uint64_t until_ns = atomic_load_explicit(&ring_ctx->hold.until_ns, memory_order_relaxed);

	return __builtin_expect(until_ns != 0, 0) && until_ns > vma_now_ns() &&
	       atomic_load_explicit(&ring_ctx->watcher, memory_order_relaxed) != NULL;
}
/* Nobody sleeps there, perhaps: then it is unarmed. */
void ring_disarm_schedule(struct vma_ring_ctx *ring_ctx);
/* This thread, a busy poller, has driven it: once for each arm. */
void ring_disarm_busy_polled(struct vma_ring_ctx *ring_ctx);

/*
 * ring_housekeeping.c: a ring context has been retired, and is to end soon; forget: it ends now, its descriptor is
 * about to close.
 */
void ring_housekeeping_wake_to_reclaim_ring(void);
void ring_housekeeping_remove(struct vma_ring_ctx *ring_ctx);

/* task.c: the internal thread only, inside. */
void tasks_run(void);
uint64_t tasks_next_due_ns(void); /* before the thread sleeps: what was posted lazily */
void tasks_discard_in_fork_child(void);

#endif
