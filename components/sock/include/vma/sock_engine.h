/*
 * sock_engine - the engine, of which a process has one. It consists of configuration, packet memory, the kernel's
 * answers, devices, ring contexts, and the internal thread that looks after them.
 *
 *   engine ─┬─ conf, stats, arena, spill pool, net
 *           ├─ device per interface: nic (rented from vmad), ring contexts by allocation logic
 *           └─ internal thread: net events, rings that no thread drives, LATER frames, retired memory
 *
 * Functions return 0 or a negative errno.
 *
 * Threads: any; devices and ring contexts are made under one lock each, control path.
 * Progress: starting takes milliseconds, and may start vmad. The internal thread sleeps if there is nothing to do.
 * Memory: the process's. fork: the child starts an engine of its own when it first needs one; files are told (forked).
 * Example: test/test_engine.c.
 */
#ifndef VMA_SOCK_ENGINE_H
#define VMA_SOCK_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/bufpool.h>
#include <vma/conf.h>
#include <vma/net.h>
#include <vma/nic.h>
#include <vma/ring.h>
#include <vma/rules.h>
#include <vma/sock.h>

struct vma_tcp;
struct vma_tcp_conn;

struct vma_engine {
	struct vma_conf conf;
	const struct vma_rules *_Atomic rules; /* which sockets are the kernel's; NULL: none is by a rule */
	struct vma_stats *stats;
	struct vma_stats_process *process_stats;           /* the process's own; never NULL, as the next */
	struct vma_stats_iomux *select_stats, *poll_stats; /* by whoever calls: what two count at a time may be lost */
	struct vma_bufarena *arena;
	struct vma_bufpool *spill;
	struct vma_net *net;
	bool latency;   /* VMA_SPEC is a latency profile: no frame waits for a batch */
	unsigned cores; /* that this process may run on */
	struct vma_engine_priv *priv;
};
extern struct vma_engine *_Atomic vma_engine_now __attribute__((visibility("hidden")));
/* New sockets are the kernel's: the program may use them where no call shows it (io_uring). Never taken back. */
extern _Atomic bool vma_sockets_stay __attribute__((visibility("hidden")));
/*
 * A rule in a line of libvma.conf goes before all others, for sockets that are decided from now on, of this process and
 * of those that it forks. 0, -EINVAL (the log says why), -ENOMEM.
 */
int vma_engine_add_rule(struct vma_engine *engine, const char *line);
struct vma_engine *vma_engine_start(void); /* NULL: it cannot, and the log has said why, once */
/* The process's engine, started on first use. */
static inline struct vma_engine *vma_engine_get_or_start(void)
{
	struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return __builtin_expect(engine != NULL, 1) ? engine : vma_engine_start();
}
/*
 * A forked process that has listeners or UDP sockets of its parent's starts its engine, and opens the interfaces that
 * its parent had, if it has not done so: it is about to give up what that takes. Outside.
 */
void vma_engine_start_if_open_files_need_it(void);
/* At exit, after stream's: LATER frames leave, TIME_WAIT is over, the statistics file goes. Others may still be
 * running. */
void vma_engine_flush_and_log_at_exit(void);
/* Around fork (pthread_atfork's three). */
void vma_engine_fork_prepare(void);
void vma_engine_after_fork_in_parent(void);
void vma_engine_reset_in_fork_child(void);

/*
 * A block of counters for a socket, of which other processes see at most VMA_STATS_FD_NUM; NULL: there are as many
 * already. Put it back before the file is destroyed; in a forked child, forget it: it is the parent's. *counts says
 * whether the socket is one of that number: until it is closed, or its block is put back. A connection whose descriptor
 * is closed may live on for a minute, and is not to keep the next sockets from being counted.
 */
struct vma_stats_socket *vma_engine_alloc_socket_stats(struct vma_engine *engine, int fd, _Atomic bool *counts);
void vma_engine_uncount_socket_stats_at_close(struct vma_engine *engine, _Atomic bool *counts);
void vma_engine_free_socket_stats(struct vma_engine *engine, struct vma_stats_socket *block, _Atomic bool *counts);

/*
 * The program asks for something that is not offloaded, as the text says: 0, the kernel shall do it; or -error, the
 * call shall fail with it. VMA_EXCEPTION_HANDLING decides, also how loudly it is said; it may end the program.
 */
int vma_engine_apply_offload_failure_policy(int error, const char *fmt, ...)
        __attribute__((format(printf, 2, 3), cold));
/*
 * The same for a socket (`what`, such as "a TCP listener") that the kernel gets, or has got, for this reason. 0 also if
 * nobody need be told: the user, a rule or the address wants it so. Where no call can fail (a connection that goes to
 * the kernel on its way), the answer is ignored. Any lock may be held.
 */
int vma_engine_report_kernel_fallback(enum vma_sock_reason reason, int error, const char *what) __attribute__((cold));

/* A rule leaves what this UDP socket sends to certain names to the kernel: for vma_sock_get_offload_reason, and once in
 * the log. */
void vma_sock_record_and_log_kernel_send_rule(struct vma_file *file, const struct vma_rule *rule);

/* ---- devices ---- */

struct vma_device {
	uint32_t ifindex;
	struct vma_nic *nic;
	struct vma_engine *engine;
	struct vma_device_priv *priv;
};
/*
 * The device of an interface, opened on first use: vmad (started if there is none), else owned by this process. A
 * refusal is remembered for a while and has been logged: -EOPNOTSUPP (loopback, not Ethernet, no XDP, VMA_NIC=none),
 * -EPERM, -ENODEV, ... Devices stay until the process ends.
 */
int vma_device_find_or_open(struct vma_engine *engine, uint32_t ifindex, struct vma_device **out);
/* A socket wants time stamps: from now on all devices, those to come too, give them if they can. */
void vma_devices_enable_hw_timestamps(struct vma_engine *engine);
/* Whether the interface has a device, opened for the question, whose received packets have stamps of the hardware. */
bool vma_device_has_hw_timestamps(struct vma_engine *engine, uint32_t ifindex);
/*
 * Whether an interface may be opened at all, by what the kernel says of it: 0, -ENETDOWN (not while it is down), or
 * -EOPNOTSUPP; *why is a sentence without its subject. Needs no engine.
 */
int vma_device_check_link(const struct vma_conf *conf, const struct vma_net_link *link, const char **why);
/*
 * The program vmad for this file of the library: beside it, else where the system keeps such programs; "": there is
 * none. Needs no engine.
 */
void vma_engine_find_vmad(const char *library, char *path, size_t size);

/*
 * A ring with what sockets need around it. Lives as long as somebody holds it; the one of a whole interface is kept by
 * its device. Its flags are safe for several threads whatever VMA_THREAD_MODE says, as the internal thread drives it,
 * too.
 */
struct vma_ring_ctx {
	struct vma_ring *ring;
	struct vma_device *device;
	struct vma_nic_accept_page *member; /* of its queue pair, NULL: none */
	struct ring_file *file;             /* its descriptor, held; NULL: none. Under the lock of ring_file.c */
	uint32_t id;                        /* of the process; its bit is 1 << id % 64 */
	_Atomic uint32_t refs;
	struct vma_ring_ctx *_Atomic next; /* with the same bit */
	struct vma_ring_key key;
	struct vma_ring_ctx *next_of_device;
	struct vma_retired retired;

	/* by sleepers */
	_Alignas(64) _Atomic(struct vma_thread *) watcher; /* who sleeps on its descriptor for all; see wait/sleep.c */

	_Atomic uint32_t arms; /* moves with each arm of the ring: engine/ring_disarm.c */

	/* by the watcher, see wait/hold.c */
	struct vma_ring_hold {
		_Atomic bool is_asked_for; /* else it never holds back; never taken back */
		_Atomic uint64_t until_ns; /* packets do not wake it before; 0: they do. Any thread may read it */
		uint32_t count;            /* or as soon as so many are there; 0: no count ends it */
		uint64_t look_ns;          /* it counts no earlier */
		uint64_t due_ns;           /* when its last wake-up was due */
	} hold;

	/* by who drives */
	_Alignas(64) _Atomic uint64_t driven; /* moves with every drive: the internal thread looks */
	_Atomic uint32_t busy;                /* moves with every drive that found something; */
	_Atomic uint32_t busy_mask;           /* a look when it moves to a multiple of this and one: ring_disarm.c */
	_Atomic uint32_t arms_seen, arms_taken_down;
	struct vma_ring_command disarm;
	_Atomic bool disarm_scheduled; /* and posted */

	struct vma_tcp *_Atomic tcp; /* NULL: nobody has asked for it */
	_Atomic bool abandoned;      /* the last reference is the internal thread's, for connections that end on it */
	_Atomic bool to_prune;       /* rules of the NIC wait to be deleted */
	_Atomic uint64_t prune_ns;   /* and not before */
	_Atomic bool to_sweep;       /* its ring has exemptions */
	_Atomic uint64_t control_ns; /* when vma_tcp_run_control_queue is to be called, if something waits for it */

	/* the internal thread's */
	_Alignas(64) uint64_t driven_seen, sent_seen;
	_Atomic uint64_t check_ns;  /* with a stack, see engine/tcp_housekeeping.c; a test stops the looks by it */
	uint64_t check_interval_ns; /* so far that is from the last look; */
	uint64_t armed_ns;          /* when it last was armed, after it was looked at */
	_Atomic bool armed;         /* it sleeps on the ring's descriptor, or is about to */

	/* by who sends while `armed` */
	_Alignas(64) _Atomic uint32_t sends;
};
/*
 * maker.c: a thread of the program has made the socket, or accepts it. The socket keeps this thread and this core for
 * the allocation logic, whichever thread attaches its flows later. With logic 31 the thread is bound to a core here,
 * the first time. Not for the internal thread.
 */
void vma_file_record_creating_thread_and_core(struct vma_file *file);
/* Another thread or core uses it now, and it has moved to that one's ring: it counts as its maker from now on. */
void vma_file_record_ring_move(struct vma_file *file, const struct vma_ring_requester *where);
/*
 * What the socket asks for in place of the configured logic, for a side (VMA_RING_CTX_RX or _TX); under `lock`, before
 * it has a ring context of that side. Logics of thread and core mean the calling thread's. profile: below 2^24.
 */
enum vma_ring_ctx_side { VMA_RING_CTX_RX, VMA_RING_CTX_TX, VMA_RING_CTX_TCP };
void vma_file_set_ring_request(struct vma_file *file, enum vma_ring_ctx_side side,
                               const struct vma_ring_request *request);
struct vma_ring_request vma_file_get_ring_alloc_request(const struct vma_file *file, enum vma_ring_ctx_side side);
void vma_file_inherit_ring_requests(struct vma_file *file, const struct vma_file *from);
static inline bool vma_file_has_ring_request(const struct vma_file *file)
{
	return (atomic_load_explicit(&file->ring_requests[0], memory_order_relaxed) |
	        atomic_load_explicit(&file->ring_requests[1], memory_order_relaxed)) != 0;
}
/* What the allocation logic goes by, for a socket on the local address of 4 bytes. */
struct vma_ring_requester vma_file_get_ring_requester(const struct vma_file *file, const void *local);
/*
 * The one that VMA_RING_ALLOCATION_LOGIC_RX or _TX says for this socket, or what it has asked for itself, made if need
 * be. TCP: a connection has one ring, for both directions. It goes by the logic for receiving, or by the one for
 * sending if that for receiving is configured to be 0. A listener is RX. -ENOMEM, or why the device has
 * no more queue pairs.
 */
int vma_ring_ctx_find_or_create(struct vma_device *device, enum vma_ring_ctx_side side,
                                const struct vma_ring_requester *where, struct vma_ring_ctx **out);
void vma_ring_ctx_put(struct vma_ring_ctx *ring_ctx);
/* Whether vma_ring_ctx_find_or_create would answer with this one, which the caller holds. Makes none. */
bool vma_ring_ctx_is_that_of_requester(const struct vma_ring_ctx *ring_ctx, enum vma_ring_ctx_side side,
                                       const struct vma_ring_requester *where);
/* By its logic for receiving the socket may have another ring than others on its address. */
bool vma_ring_depends_on_creating_thread(const struct vma_engine *engine, const struct vma_file *file);
/* Whether a connection may belong to another ring than the listener that it came to. */
bool vma_conn_ring_may_differ_from_listener(const struct vma_engine *engine, const struct vma_file *conn,
                                            const struct vma_file *listener);
static inline uint64_t vma_ring_ctx_bit(const struct vma_ring_ctx *ring_ctx)
{
	return 1ULL << ring_ctx->id % 64;
}
/* One more reference, by whoever has found it inside. False: the last one has gone, and it ends. */
bool vma_ring_ctx_try_add_ref(struct vma_ring_ctx *ring_ctx);

/*
 * Interrupt moderation of this ring, in place of the configured one (vma_cq_set_moderation). Control path, not in a
 * sink (-EDEADLK).
 */
int vma_ring_ctx_set_moderation(struct vma_ring_ctx *ring_ctx, uint32_t count, uint32_t period_usec);

/*
 * The descriptor of a ring (engine/ring_file.c), an open file of the kernel's under a file of kind VMA_FILE_RING: the
 * one it has, else a new one. Inside, control path, no lock held that a sink, a watcher or a ring context's end may
 * want. -EMFILE, -ENFILE, -ENOMEM; -ENODEV: the ring context ends.
 *
 * The library closes it when the ring context ends. If the program closes it, the next call makes another one. In a
 * forked child it leads to nothing: EPOLLHUP.
 *
 * It is readable if packets were handled, or the ring was told (vma_ring_notify_listener), since the last look. A look
 * comes before its caller looks for what it wants: then nothing is missed.
 */
int vma_ring_ctx_get_or_open_fd(struct vma_ring_ctx *ring_ctx);
/* What stands behind a file of this kind: valid until vma_leave; NULL: nothing any more. Data path. */
struct vma_ring_ctx *vma_ring_file_ctx(const struct vma_file *file);
/* The same, and a reference with it: vma_ring_ctx_put. */
struct vma_ring_ctx *vma_ring_file_get_ring_ref(const struct vma_file *file);
/* What was told so far is known: not readable for its sake any more. Data path, no lock. */
void vma_ring_file_mark_all_seen(struct vma_file *file);
/* The same in two steps: what it had heard of before a poll, and that the poll has found all of it. */
uint64_t vma_ring_file_activity_count(struct vma_file *file);
void vma_ring_file_mark_seen(struct vma_file *file, uint64_t heard);

/*
 * A socket has been closed. Where rings have descriptors, what it held of them is put soon, and not only when the
 * internal thread has something else to do.
 */
extern _Atomic uint32_t vma_ring_files __attribute__((visibility("hidden")));
void vma_ring_files_wake_reclaim_slow(void) __attribute__((cold));
static inline void vma_ring_files_wake_reclaim_of_rings(void)
{
	if (__builtin_expect(atomic_load_explicit(&vma_ring_files, memory_order_relaxed) != 0, 0))
		vma_ring_files_wake_reclaim_slow();
}

/* Ring contexts by bit, read inside; NULL: none. */
extern struct vma_ring_ctx *_Atomic vma_ring_ctxs[64] __attribute__((visibility("hidden")));
/*
 * The ring context's stack of TCP connections, made when it is first asked for. The internal thread keeps its timers
 * and answers its packets when nobody else drives; a ring context that is put while connections still end on it lives
 * on until they have ended. Control path, not with the receive flag of the ring. -ENOMEM.
 */
int vma_ring_ctx_get_or_create_tcp_stack(struct vma_ring_ctx *ring_ctx, struct vma_tcp **out);
struct vma_tcp_memory *vma_tcp_memory_of_process(void); /* of all stacks; for the life of the process */
/* A frame was sent: see engine/ring_disarm.c. */
void vma_ring_ctx_count_send_armed(struct vma_ring_ctx *ring_ctx) __attribute__((cold));
static inline void vma_ring_ctx_count_send(struct vma_ring_ctx *ring_ctx)
{
	if (__builtin_expect(atomic_load_explicit(&ring_ctx->armed, memory_order_relaxed), 0))
		vma_ring_ctx_count_send_armed(ring_ctx);
}
/* Drives all rings of a mask once: packets handled, 0, or -EBUSY if all of them are driven by others. */
int vma_ring_ctxs_progress(uint64_t rings);
/*
 * The same for a call that does not wait: a ring that another thread drives is driven once that drive has ended, as
 * what came before the call may be in the hands of a thread that was descheduled. -EBUSY: it still is.
 */
int vma_ring_ctxs_catch_up(uint64_t rings);
/*
 * The program has called accept on a listener of these rings, or waits for one of its listeners there: its process gets
 * its share of new connections (<vma/nic_group.h>). Of a ring, not of a listener: where a process has several on one
 * ring, whoever serves one of them is taken to serve all, and what it does not accept goes to others somewhat later.
 */
void vma_ring_ctxs_count_accept_slow(uint64_t rings);
static inline void vma_ring_ctxs_count_accept(uint64_t rings)
{
	if (rings != 0)
		vma_ring_ctxs_count_accept_slow(rings);
}
/*
 * A step that has handled so many packets (VMA_CQ_POLL_BATCH_MAX as it is by default) may have left some. After such a
 * one a call that would say that nothing is there drives on, for so many steps at most: what it looks for may lie in
 * the ring behind what is others'.
 */
#define VMA_RING_CTXS_FULL 16
#define VMA_RING_CTXS_STEPS 64U

/*
 * A thread that was told of several descriptors works through them: what its rings have got meanwhile waits, until the
 * internal thread is woken for every packet of it, on this core or one that the program at the other end of the OS's
 * descriptors needs. So calls that do not drive, those that go to the kernel and those that find at once what they want
 * of a connection, look in when the last look is a while ago. Inside, with no lock; the rings are those of the thread's
 * last wait.
 */
void vma_ring_ctxs_drive_overdue_slow(struct vma_thread *self);
#define VMA_DRIVE_OVERDUE_NSEC 50000
static inline void vma_ring_ctxs_drive_overdue(struct vma_thread *self)
{
	if (__builtin_expect(self->overdue_rings != 0, 0) &&
	    vma_tsc() - self->overdue_tsc > vma_tsc_of_nsec(VMA_DRIVE_OVERDUE_NSEC))
		vma_ring_ctxs_drive_overdue_slow(self);
}

/* ---- the internal thread ---- */

/* Has fn(arg) run there soon, inside; repeated requests of the same object before it ran are one. Never waits. */
struct vma_internal_task {
	struct vma_internal_task *next;
	_Atomic bool queued;
	void (*run)(struct vma_internal_task *task);
};
void vma_engine_post_task_to_internal_thread(struct vma_internal_task *task);
/* The same within a millisecond or so, with others: a thread that posts often does not wake the other one each time. */
void vma_engine_post_task_within_1ms(struct vma_internal_task *task);
/* The internal thread runs the task, which is never posted, at these events of epoll on fd: EPOLLIN, where the task has
 * to read it empty, and may find it so, or with EPOLLET. 64 for a process; 0, -EBUSY, -ENODEV (no thread). */
int vma_engine_watch_fd_with_task(int fd, uint32_t events, struct vma_internal_task *task);
/* It may be running until all sections that have begun are over: what it uses is retired after this. */
void vma_engine_unwatch_fd(int fd, struct vma_internal_task *task);
/*
 * From a child that borrows this process's memory (vfork), outside, with a reference: the internal thread calls the
 * file's ops->hand_over, which has happened when this returns; or it could not be reached, or took five seconds.
 */
void vma_engine_hand_over_from_vfork_child(struct vma_file *file);
/*
 * `copy` is what this process has taken by pidfd_getfd(pidfd, number): if the other process has this library, and
 * offloads the socket, it calls the file's ops->hand_over. 1: it has done so; 0: there is nothing to hand over there;
 * -EOPNOTSUPP: it could not; -ECONNREFUSED, -ETIMEDOUT (five seconds), ...: it could not be asked. Outside.
 */
int vma_engine_ask_process_to_hand_over_fd(int pidfd, int number, int copy) __attribute__((cold));
/*
 * Descriptor fd is a UDP or TCP socket that this program has had since it was executed: it gets a file, which asks for
 * the socket when it is used. Outside.
 */
void vma_inherited_fd_install_placeholder(int fd) __attribute__((cold));
/*
 * The processes of this network namespace that have the library are asked for the socket: who has it under a number of
 * its own, the same open file, calls ops->exec_export. Returns the first descriptor that one of them sends, or -1.
 * Waits until all have answered; no longer than a second, and five for those that have the socket. Makes no use of the
 * engine.
 */
int vma_inherited_ask_owners_for_conn_queue_fd(int fd) __attribute__((cold));
/*
 * Descriptor fd is a unix socket that this program has had since it was executed: if its name is of VMA_WAITS_FORMAT,
 * it is the library's, and what waited for accept on the listener with that cookie comes by it. Outside.
 */
#define VMA_WAITS_FORMAT "vma/waits/%llx"
#define VMA_WAITS_BYTES 32
void vma_inherited_record_conn_queue_fd(int fd) __attribute__((cold));
/*
 * What touch does with a listener that came by exec: the descriptor passes, unless it is false: then the listener
 * stays the kernel's, as it is. -1: only if this process has it under another number. Set once, by interpose.
 */
extern bool (*vma_inherited_listener)(int fd, int waiting_fd);
/*
 * A sender has left frames LATER with these ring contexts (by bit), or has queued a command there: the internal thread
 * flushes them within a millisecond or so. Cheap when repeated.
 */
void vma_engine_flush_rings_within_1ms(uint64_t ring_ctxs);
/*
 * A file's offload was refused for a reason that may pass without an event (PORT_SHARED, INHERITED, NO_MEMORY as
 * ops->reason tells): ops->net_changed is called for it once a second as long as the reason is one of these.
 */
void vma_engine_schedule_offload_retry(void);
/*
 * An accepted connection, or one that a block of ports covers: some 50 to 100 ms from now the NIC is to steer it by
 * itself (vma_tcp_conn_add_own_nic_rule), if it still exists then. The connection is held meanwhile. Never waits. now:
 * all that wait, at once, because their listener's flow has been revoked.
 */
void vma_engine_schedule_steer_of_conn(struct vma_tcp_conn *conn);
void vma_engine_steer_pending_now(void);
/* Any thread. False: all that were to be steered when vma_engine_steer_pending_now was called last have been. */
bool vma_engine_has_conns_to_steer(void);
/* The same for those that go without a rule of their own by VMA_TCP_3T_RULES or VMA_TCP_2T_RULES, if one is set. */
void vma_engine_steer_conns_under_wide_rules(void);
/*
 * Control path, inside. Connections that the kernel has are its own here, too, while it has them: see
 * vma_ring_exempt_kernel_connections. A listener's are exempt on its ring context; one connection is on each of the
 * device, as it may have moved.
 */
void vma_ring_ctx_leave_flow_to_kernel(struct vma_ring_ctx *ring_ctx, const struct vma_flow_key *key);
/* Watches a descriptor for errors (EPOLLERR, edge-triggered): a connected UDP shadow. ended by the descriptor's close.
 */
int vma_engine_watch_errors(int fd, struct vma_file *file);
/* What the internal thread does with it. Set once by udp. */
extern void (*vma_engine_on_error)(struct vma_file *file);

#endif
