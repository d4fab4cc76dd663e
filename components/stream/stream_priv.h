/*
 * stream_priv - the socket; shared by the files of stream.
 *
 *   phase        the kernel's state       conn
 *   FRESH        CLOSE                    NULL
 *   CONNECTING   SYN_SENT                 on its way
 *   CONNECTED    ESTABLISHED and later    made; its own state says what is left of it
 *   FAILED       CLOSE, both ways shut    the attempt's, or NULL; connect() has told no thread yet
 *   LISTENING    LISTEN                   NULL
 *
 * Threads: any, inside. The order of locks is: file.lock, then the one of endpoint.c. `io_lock`s are leaves: they are
 * held for a copy and never in a wait. Functions that run under a ring's flag (events, accepted) take none of them.
 * Fields of the control path need file.lock; all others are atomic, or belong to the holder of a turn.
 */
#ifndef VMA_STREAM_PRIV_H
#define VMA_STREAM_PRIV_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include <vma/inet.h>
#include <vma/inet_iov_iter.h>
#include <vma/mpsc.h>
#include <vma/net.h>
#include <vma/sock.h>
#include <vma/sock_engine.h>
#include <vma/sock_migrate.h>
#include <vma/sock_os.h>
#include <vma/stream.h>
#include <vma/tcp.h>

enum stream_sock_phase { STREAM_FRESH, STREAM_CONNECTING, STREAM_CONNECTED, STREAM_FAILED, STREAM_LISTENING };
/* As the kernel's sock->state: what connect() has answered. */
enum stream_connect_state { STREAM_UNCONNECTED, STREAM_ATTEMPT, STREAM_REPORTED };

/* After close: the shadow waits for the end of the connection; that has come. */
enum stream_close_state { STREAM_OPEN, STREAM_CLOSING, STREAM_CLOSED };

/* Held by the thread that reads (writes, accepts): one at a time. */
struct stream_io_lock {
	_Atomic bool taken;
	pthread_mutex_t queue; /* waiting room */
};

struct stream_early;         /* rings.c */
struct stream_fork_owner;    /* fork_owner.c: through which a forked child asks for its parent's connections */
struct stream_fork_queue;    /* fork_queue.c: connections that waited for accept when a process forked */
struct stream_listen;        /* endpoint.c: what is attached for a listener */
struct stream_passed_state;  /* passed.c: who has a listener that was passed on */
struct stream_forking_tally; /* forking.c: how many connections of a listener were handed over unused */

/* An option that was set, for sockets that inherit it. */
struct stream_recorded_option {
	struct stream_recorded_option *next;
	int level, name;
	socklen_t len;
	uint8_t value[32];
};

struct stream_extra_api;
struct stream_xtreme_state;

struct stream_sock {
	struct vma_file file;

	/* read by every call */
	_Alignas(64) struct vma_tcp_conn *_Atomic conn; /* held: stream_conn_end */
	_Atomic uint8_t phase;                          /* enum stream_sock_phase */
	_Atomic bool nonblocking;                       /* O_NONBLOCK as last set through us */
	_Atomic bool shut_rd, shut_wr;                  /* by this side */
	_Atomic bool fin_seen;                          /* the peer's, after what is queued */
	_Atomic uint8_t close_state;                    /* enum stream_close_state */
	_Atomic bool drained;                           /* closed, and all is acknowledged */
	_Atomic bool inherited;                         /* by fork, and not taken up in this process */
	_Atomic bool oob_inline;
	bool polls_on_send;    /* VMA_RX_POLL_ON_TX_TCP */
	_Atomic bool async;    /* O_ASYNC, of a connection */
	_Atomic bool zerocopy; /* SO_ZEROCOPY: sends with MSG_ZEROCOPY are answered on the error queue */
	_Atomic bool inq;      /* TCP_INQ: a message that is read says how many bytes are left */
	_Atomic int so_error;  /* sk_err: told once */
	_Atomic uint32_t rcvlowat;
	_Atomic uint64_t rcvtimeo_ns, sndtimeo_ns; /* UINT64_MAX: none */
	_Atomic uint64_t rings;                    /* bits */
	struct stream_io_lock reader;
	struct vma_spin rx_spin;
	const struct vma_stream_inspector *_Atomic inspector; /* zcopy.c; NULL: none */
	struct stream_extra_api *_Atomic extra;               /* extra.h; NULL: not made */
	struct stream_xtreme_state *_Atomic xtreme;           /* xtreme.h; NULL: not made */
	_Atomic uint32_t waiting;    /* calls that wait: the socket outlives its last descriptor for them */
	_Atomic bool close_due;      /* it is closed when the last of them leaves */
	_Atomic int lingering_fd;    /* the shadow after close, a number of the library's; 0: none */
	_Atomic uint64_t zerocopies; /* told up to here << 32 | sent up to here */
	struct vma_inet_drain drain; /* this and the next are read by stream_recvmsg_polling_now_and_then alone */
	uint8_t skips_looks;         /* enum vma_conf_skip_poll */

	/* writers' */
	_Alignas(64) struct stream_io_lock writer;
	struct vma_spin tx_spin;

	/* listening */
	_Alignas(64) ck_stack_t arrived; /* of stream_sock.link; pushed by who drives */
	_Atomic uint32_t n_queued, backlog;
	_Atomic uint8_t rank;                         /* among those that have its port: endpoint.c */
	struct stream_io_lock accepter;               /* of the next */
	ck_stack_entry_t *queue;                      /* taken from `arrived`, oldest first */
	ck_stack_entry_t link;                        /* a connection that waits in its listener's queue */
	struct stream_listen *listen;                 /* under file.lock */
	_Atomic bool os_accept;                       /* the shadow's queue is asked by one thread at a time */
	_Atomic uint32_t accept_calls;                /* which queue comes first */
	_Atomic bool was_polled;                      /* accepted from, or polled, in this process */
	_Atomic bool has_takers;                      /* it was passed on in a message */
	struct stream_fork_queue *_Atomic fork_queue; /* made at a fork, or with exec_exported; NULL: not made */
	struct vma_internal_task fork_queue_task;     /* something waits there */
	bool fork_queue_watched;                      /* under file.lock */
	bool waits_at_fork;                 /* the parent had connections in the queue, and has accepted none */
	_Atomic bool exec_exported;         /* a program has it by exec: what comes here is left to all who have it */
	struct stream_forking_tally *tally; /* shared with what was accepted; NULL: nothing is counted */
	uint64_t accepted_ns;               /* with a tally */
	bool hands_over; /* under file.lock: the kernel's for good, as others use it, or its connections */
	bool paused;     /* hands_over until all who have it are known: passed.c */
	struct stream_passed_state *passed; /* NULL: it was not passed on; under file.lock */
	uint64_t drain_until_ns;            /* then: what is half open has so much time */

	/* control path, under file.lock */
	/* Family 0: not bound (by the application), not connected; AF_INET6: only the port is kept. */
	_Alignas(64) struct sockaddr_in local, peer;
	struct sockaddr_in reserved; /* what the shadow was bound to by us; family 0: it was not */
	struct sockaddr_in name;     /* with a connection: its local address */
	enum stream_connect_state attempt;
	uint32_t bound_ifindex; /* SO_BINDTODEVICE */
	uint32_t mark;
	bool reuse_port, reuse_addr;
	bool linger_on, ended;
	bool own_congestion; /* options.congestion is ours, and not the shadow's: congestion.c */
	uint32_t linger_sec;
	struct vma_tcp_options options;
	struct stream_recorded_option *sets; /* in order */
	bool sets_due;                       /* an accepted socket whose shadow has not got them yet */
	uint64_t os_options;                 /* options.c: a bit for each that is set and that only the kernel serves */
	struct vma_engine *engine;           /* that the socket was made in */
	struct vma_ring_ctx *ring_ctx;       /* held */
	struct stream_early *early;          /* rings.c: those of a socket that is bound only; NULL: nobody has asked */
	struct vma_net_path *path;           /* held, and watched */
	struct vma_net_watch watch;
	struct vma_tcp_path route; /* as last given to the connection */
	struct vma_internal_task path_task;
	_Atomic bool path_scheduled;          /* the task is posted, and holds a reference */
	bool was_unrouted;                    /* when the kernel got it: it may wait for a route */
	struct vma_internal_task end_task;    /* holds the connection's reference */
	struct stream_sock *next_lingering;   /* of this thread's */
	_Atomic uint64_t cookie;              /* the shadow's, 0: not asked yet */
	_Atomic bool forked;                  /* a child was forked while it was connected, and may use it */
	_Atomic bool is_parents;              /* a connection of the process that forked this one */
	struct stream_fork_owner *fork_owner; /* then: where to ask for it */
	_Atomic uint32_t move;                /* while it is handed over: of stream_mark_hand_over_begin */
	struct vma_internal_task update_task;
	_Atomic bool has_port_alone;  /* the shadow, until the connection has a rule of its own: port.c */
	_Atomic bool share_scheduled; /* the task was posted; it holds a reference until has_port_alone is false */
	struct vma_internal_task share_task;
	_Atomic bool update_scheduled;
	_Atomic bool stats_count; /* vma_engine_alloc_socket_stats */
	_Atomic enum vma_sock_reason reason;
	struct vma_stats_socket *stats;

	/* by calls that count: migrate.c */
	_Alignas(64) struct vma_migration rx_migration;
	_Alignas(64) struct vma_migration tx_migration;
};
static inline struct stream_sock *stream_sock(struct vma_file *file)
{
	return (struct stream_sock *)file;
}
static inline enum stream_sock_phase stream_sock_phase(const struct stream_sock *sock)
{
	return (enum stream_sock_phase)atomic_load_explicit(&sock->phase, memory_order_acquire);
}
static inline struct vma_tcp_conn *stream_tcp_conn(const struct stream_sock *sock)
{
	return atomic_load_explicit(&sock->conn, memory_order_acquire);
}
/* The connection's state as the kernel's socket would have it: one in TIME_WAIT has left the socket. */
static inline int stream_kernel_view_of_state(const struct vma_tcp_conn *conn)
{
	int state = vma_tcp_state(conn);

	return state == TCP_TIME_WAIT ? TCP_CLOSE : state;
}
static inline bool stream_has_ended(const struct stream_sock *sock)
{
	return vma_file_is_closed(&sock->file);
}
/*
 * When the program ends, by exit or exec, until when a lock is waited for: CLOCK_REALTIME, as pthread_mutex_timedlock
 * has it. The internal thread has a file's lock for moments. A thread that is inside may never give it back.
 */
struct timespec exit_lock_deadline_of_realtime(void);
/* Everybody who waits: readers and writers wait for different things. */
static inline void stream_wake_waiters(struct stream_sock *sock, uint32_t events)
{
	vma_waitq_wake(&sock->file.waitq, true);
	vma_file_wake_sleepers_and_watchers(&sock->file, events);
}

/* ---- io_lock.c ---- */

void stream_io_lock_init(struct stream_io_lock *io_lock);
void stream_io_lock_acquire_slow(struct stream_io_lock *io_lock) __attribute__((cold));
static inline void stream_io_lock_acquire(struct stream_io_lock *io_lock)
{
	if (__builtin_expect(atomic_exchange_explicit(&io_lock->taken, true, memory_order_acquire), 0))
		stream_io_lock_acquire_slow(io_lock);
}
static inline bool stream_io_lock_try_acquire(struct stream_io_lock *io_lock)
{
	return !atomic_exchange_explicit(&io_lock->taken, true, memory_order_acquire);
}
static inline void stream_io_lock_release(struct stream_io_lock *io_lock)
{
	atomic_store_explicit(&io_lock->taken, false, memory_order_release);
}

/* ---- stream.c ---- */

struct stream_sock *stream_create(struct vma_engine *engine, int family, bool nonblocking);
void stream_describe_for_stats(struct stream_sock *sock); /* into the statistics; file.lock */
struct vma_inet_sock_description stream_stats_description(struct stream_sock *sock); /* the same; file.lock */
void stream_dump(struct vma_file *file, int fd, enum vma_log_level level);           /* dump.c: ops->dump */
/* The shadow's descriptor: the application's number, or the library's after close; -1: the socket has ended. */
static inline int stream_shadow_fd(struct stream_sock *sock, int fd)
{
	return vma_inet_shadow_fd(&sock->file, fd, &sock->lingering_fd);
}
bool stream_fd_is_own_shadow(const struct stream_sock *sock,
                             int fd);                        /* the number has not been given to something else */
uint64_t stream_so_cookie(struct stream_sock *sock, int fd); /* the shadow's; file.lock */
/*
 * A call that may wait begins, and ends: the last one ends a socket that was closed meanwhile. False: the last
 * descriptor has gone before, and the answer is -EBADF. The memory is safe for as long as the caller is inside; who
 * goes outside in between takes a reference for that time.
 */
bool stream_call_enter(struct stream_sock *sock);
void stream_call_leave(struct stream_sock *sock);
void stream_finish_close(struct stream_sock *sock);

/* ---- conn.c: the connection of a socket ---- */

extern const struct vma_tcp_conn_ops stream_owner;
/* file.lock. The connection is the socket's no more: reset if it was not closed. Also its path and ring context. */
void stream_conn_end(struct stream_sock *sock);
/* The last descriptor has gone: FIN or RST; what is left lives until the peer has agreed. file.lock. */
void stream_conn_close(struct stream_sock *sock, bool may_linger);
/* The shadow under a number of the library's, while the application's is being closed; and no longer. file.lock. */
void stream_dup_shadow_at_close(struct stream_sock *sock);
void stream_close_lingering_shadow(struct stream_sock *sock);

/* ---- migrate.c: the same calls, which count ---- */

ssize_t stream_recvmsg_counting_for_migration(struct vma_file *file, int fd, struct msghdr *msg, int flags);
ssize_t stream_recvmsg_counting_with_polls(struct vma_file *file, int fd, struct msghdr *msg, int flags);
void stream_count_send_for_migration(struct stream_sock *sock); /* of a send that is no message: sendfile, splice */
ssize_t stream_sendmsg_counting_for_migration(struct vma_file *file, int fd, const struct msghdr *msg, int flags);

/* ---- to_kernel.c ---- */

/* file.lock. The connection goes on as the kernel's, on this descriptor of the shadow's, and all calls go there. Then,
 * without the lock, stream_wake_waiters_after_hand_over. -ENOTCONN, -EPERM, ...: it goes on here as before. */
int stream_hand_over_conn_to_kernel(struct stream_sock *sock, int fd, enum vma_sock_reason why);
void stream_wake_waiters_after_hand_over(struct stream_sock *sock); /* tells who waits */
/* file.lock. A socket that is not connected becomes the kernel's; then, without the lock, its own_poll ends. */
bool stream_leave_unconnected_to_kernel(struct stream_sock *sock, enum vma_sock_reason reason);
void stream_file_hand_over_to_kernel(
        struct vma_file *file); /* ops->hand_over: what it can be, in whatever state it is */

/* ---- fork_owner.c ---- */

bool stream_hand_over_to_kernel(struct stream_sock *sock); /* file.lock: to_kernel, if a child may use it */
void stream_conn_set_fork_owner(struct stream_sock *sock); /* in the child */
/* exit.c: the process ends, and its connections are closed by that. */
extern _Atomic bool stream_process_is_exiting __attribute__((visibility("hidden")));
void stream_sleep_until_exit_deadline(void) __attribute__((cold));
void stream_fork_owner_close_rpc_page(void); /* at exit: there is nobody to ask any more */
/* Children do not touch the shadow between the two. rc: what has come of it. file.lock. */
void stream_mark_hand_over_begin(struct stream_sock *sock);
void stream_mark_hand_over_end(struct stream_sock *sock, int rc);

/* ---- forking.c ---- */

void stream_forking_tally_init(struct stream_sock *listener); /* file.lock */
void stream_tally_put(struct stream_sock *sock);              /* at its end */
void stream_forking_tally_add_accepted_conn(struct stream_sock *child,
                                            const struct stream_sock *listener); /* accepted; both locks */
/* file.lock. What became of the connection: handed over to the kernel because another process uses it, or closed. */
void stream_tally_count_hand_over(struct stream_sock *sock, bool moved_bytes);
void stream_tally_count_short_lived_close(struct stream_sock *sock);
/* Whether a connection that has just been accepted is likely to be closed once it is answered. */
bool stream_listener_conns_are_short_lived(const struct stream_sock *child);
void stream_tally_force_hand_over(struct stream_sock *sock); /* it could not be handed over: CAP_NET_ADMIN */
/* Whether the listener is to become the kernel's; and that it does so, without a lock. */
bool stream_listener_is_due_for_hand_over(const struct stream_sock *listener);
void stream_leave_forking_listener_to_kernel(struct stream_sock *listener) __attribute__((cold));

/* ---- fork_queue.c ---- */

/* Before a fork, which a handler may make in any place: it does not wait for the lock. */
void stream_listener_release_flows_and_conns(struct stream_sock *listener);
void stream_note_if_never_accepted_before_fork(struct stream_sock *listener);
bool stream_fork_queue_has_conns(const struct stream_sock *listener);
int stream_fork_queue_accept(struct stream_sock *listener, struct sockaddr *addr, socklen_t *len, int flags);
/*
 * Another program has got the listener by exec, and it is the kernel's: what is queued is left where all processes that
 * have it find it, now and whenever something comes. Internal thread, without the lock. The descriptor for that
 * program, -1: none.
 */
int stream_export_conn_queue_fd_for_exec(struct stream_sock *listener);
void stream_fork_queue_hand_over_queued_conns(struct stream_sock *listener);
/* The process is about to become another program, or has not become it. No lock. */
void stream_listener_offer_conns_before_exec(struct stream_sock *listener, const struct timespec *until);
void stream_fork_queue_set_cloexec_again(struct stream_sock *listener);
/* That program's listener: the descriptor passes. file.lock. False: no memory. */
bool stream_listener_use_conn_queue_fd(struct stream_sock *listener, int waiting_fd);
void stream_fork_queue_watch(struct stream_sock *listener); /* file.lock */
void stream_fork_queue_unwatch(struct stream_sock *listener);
void stream_fork_queue_free(struct stream_sock *listener);
int stream_file_give_to_kernel_before_exec(struct vma_file *file); /* ops->exec_export */

/* ---- route.c: routes and paths ---- */

struct stream_route {
	struct vma_net_path *path;     /* held */
	struct vma_ring_ctx *ring_ctx; /* held */
	struct vma_tcp *tcp;
	struct vma_net_template template;
};
struct stream_device_and_vlan { /* where the packets of an interface are to be had */
	uint32_t device;
	uint16_t vlan;
};
/* Of an interface. */
enum vma_sock_reason stream_find_device_and_vlan(struct vma_net *net, uint32_t ifindex,
                                                 struct stream_device_and_vlan *place);
/* To the peer; -ENOTSUP: through the kernel, and *reason says why. */
int stream_route_lookup(struct stream_sock *sock, struct vma_engine *engine, const struct sockaddr_in *peer,
                        struct stream_route *route, enum vma_sock_reason *reason);
void stream_route_put(struct vma_engine *engine, struct stream_route *route);
/* file.lock. The socket holds `path` and follows it; the caller's reference passes. */
void stream_route_watch_path(struct stream_sock *sock, struct vma_net_path *path);
void stream_route_unwatch_path(struct stream_sock *sock);
/* file.lock. Tells the connection what the path is now. */
void stream_route_update_path(struct stream_sock *sock);
/* file.lock, internal thread. True: the connection is the kernel's from now on, since its route leads elsewhere; then,
 * without the lock, stream_wake_waiters_after_hand_over. */
bool stream_route_hand_over_if_moved(struct stream_sock *sock);
/* The connection's device has been deleted. */
bool stream_route_interface_is_gone(const struct stream_sock *sock);
void stream_route_kick_kernel_retransmit(struct stream_sock *sock);
/* All that a connection has to know of a path but how it is written into frames. */
struct vma_tcp_path stream_path_without_header(const struct vma_net_template *t);
/* An accepted connection: the kernel's route to its peer. file.lock. */
void stream_route_find_for_accepted(struct stream_sock *sock, struct vma_engine *engine);

/* ---- port.c ---- */

/* The shadow is bound to this address and port, shared with other connections' shadows. -EADDRINUSE, ... */
int stream_port_reserve(struct stream_sock *sock, int fd, const struct sockaddr_in *local, bool alone);
/*
 * A kernel socket that has the port to itself but for sockets with SO_REUSEADDR: nobody has a new connection there
 * that has no rule, and nobody gets one until it is closed. -EADDRINUSE, ...
 */
int stream_port_reserve_in_kernel(const struct sockaddr_in *local);
void stream_port_schedule_sharing(
        struct stream_sock *sock);          /* one that is had alone; with the receive flag; never waits */
uint32_t stream_ephemeral_port_count(void); /* that a connection may be given */
/*
 * The next port to try for a connection on a ring context (its id), network order. `of_all`: on a walk of its own,
 * which goes on where it has found a port, and passes by no block.
 */
uint16_t stream_port_candidate(const struct sockaddr_in *local, const struct sockaddr_in *peer, uint32_t ring,
                               bool of_all);
/* The rest of that port's block is another's: the ring's next candidate lies behind it; not of those of all. */
void stream_port_skip_block(const struct sockaddr_in *local, const struct sockaddr_in *peer, uint32_t ring);
/* All of them were tried, for nothing: for a second, few are. */
void stream_port_set_scarce(const struct sockaddr_in *local, const struct sockaddr_in *peer);
bool stream_port_is_scarce(const struct sockaddr_in *local, const struct sockaddr_in *peer);

/* ---- placeholder.c ---- */

/* A listener is closed: the kernel is to know that connections of it are in TIME_WAIT. file.lock. */
void stream_create_timewait_sockets_of_listener(struct stream_sock *listener);
void stream_create_kernel_timewait_sockets_at_exit(
        void); /* the same of all listeners that there are and were; no lock is held */
void stream_timewait_sockets_lock_init_in_child(void);

/* ---- passed.c: listeners, and sockets that may become such, in other processes. file.lock. ---- */

/* Before a message carries it: its receiver is not known until it says that it has it. False: it cannot say so. */
bool stream_prepare_send_by_scm_rights(struct stream_sock *sock);
void stream_uncount_scm_rights_send(struct stream_sock *sock); /* the message was refused */
/* Somebody has it who accepts from the kernel only. */
void stream_passed_count_non_vma_receiver(struct stream_sock *sock);
/* Every receiver is known: each has the library, and asks for flows of its own. */
bool stream_all_passed_fds_were_received(const struct stream_sock *sock);
bool stream_passed_may_offload_again(const struct stream_sock *sock); /* of one that is paused */
void stream_passed_tell_sender_we_serve(
        struct stream_sock *sock); /* it has flows: who has passed it on may have them again */
bool stream_install_fd_of_own_file_by_cookie(
        int fd, uint64_t cookie);                        /* inside: this process has the socket under another number */
void stream_passed_watch_page(struct stream_sock *sock); /* a listener: it is told of changes */
void stream_passed_stop_answering_in_child(struct stream_sock *sock);
void stream_passed_free(struct stream_sock *sock);
void stream_passed_unwatch(const struct stream_sock *sock); /* at its end, before the last reference goes */

/* ---- connect.c, listen.c, accept.c, names.c, shutdown.c, options.c, getopt.c, congestion.c, ioctl.c: control path
 * ---- */

int stream_connect(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len);
/* The attempt has failed for a reason that the connection does not know. file.lock. */
void stream_fail_connect(struct stream_sock *sock, int error);
void stream_tcp_disconnect(struct stream_sock *sock);
bool stream_hand_connecting_to_kernel(
        struct stream_sock *sock); /* file.lock; then, without the lock, its own_poll ends */
int stream_listen(struct vma_file *file, int fd, int backlog);
void stream_listener_update_flows(struct stream_sock *sock); /* file.lock */
void stream_listen_apply_options(struct stream_sock *sock);  /* one has changed; file.lock */
void stream_listen_end(struct stream_sock *sock);            /* file.lock; what was not accepted is reset */
void stream_listen_reset_in_forked_child(struct stream_sock *sock);
/* The flows are given back until the listener is used; what is queued stays. file.lock. */
void stream_listen_release_flows(struct stream_sock *sock);
/* The same for good: hands_over. file.lock. */
void stream_listen_leave_to_kernel(struct stream_sock *sock, enum vma_sock_reason reason);
void stream_endpoints_reset_in_fork_child(void);
/* A listener's ring contexts, each once: at most `max` of them, and how many there are. file.lock. */
unsigned stream_listen_ring_ctxs(const struct stream_sock *sock, struct vma_ring_ctx **out, unsigned max);
/* Those that it would have, of a socket that is bound: at most `max`, held for the caller. file.lock. */
unsigned stream_listen_hold_ring_ctxs(const struct stream_sock *sock, struct vma_ring_ctx **out, unsigned max);
/* A socket that another process has made: file.lock. */
bool stream_listener_can_be_offloaded(struct stream_sock *sock); /* a device would serve it, and admits this process */
void stream_init_listener_received_by_message(struct stream_sock *sock,
                                              int fd); /* it listens already: its flows wait until it is used */
/* A listener that was inherited, or whose flows were revoked, asks for them. */
void stream_use_inherited_socket(struct stream_sock *sock);
void stream_schedule_listen_update(struct stream_sock *sock); /* by the internal thread; never waits */
int stream_accept4(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len, int flags);
/* By whoever drives: a new connection of this listener. False: no memory. */
bool stream_enqueue_accepted(struct stream_sock *listener, struct vma_tcp_conn *conn, struct vma_ring_ctx *ring_ctx);
bool stream_accept_queue_is_full(const struct stream_sock *listener);
int stream_accept_one_offloaded(struct stream_sock *listener); /* a descriptor; -EAGAIN */
void stream_drop_unaccepted(struct stream_sock *listener);     /* resets what is queued; file.lock */
int stream_bind(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len);
int stream_getsockname(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len);
int stream_getpeername(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len);
void stream_read_local_name(struct stream_sock *sock, int fd); /* what the kernel says that it is bound to */
int stream_shutdown(struct vma_file *file, int fd, int how);
int stream_setsockopt(struct vma_file *file, int fd, int level, int name, const void *value, socklen_t len);
int stream_getsockopt(struct vma_file *file, int fd, int level, int name, void *value, socklen_t *len);
void stream_options_init(struct stream_sock *sock, int fd);
void stream_options_of_new_socket(struct stream_sock *sock, int fd); /* the same of a shadow that has just been made */
void stream_options_read_from_shadow(struct stream_sock *sock,
                                     int fd); /* of a shadow that another process has set; inside */
/* What an accepted socket inherits; both locks. */
void stream_options_inherit(struct stream_sock *child, struct stream_sock *listener);
void stream_options_apply_to_shadow(struct stream_sock *sock, int fd); /* file.lock: the shadow gets what it inherits */
/* VMA_AVOID_SYS_CALLS_ON_TCP_FD: true: the option's value, without the kernel. file.lock. */
bool stream_get_option_without_shadow(struct stream_sock *sock, int level, int name, int *number);
void stream_options_free(struct stream_sock *sock);
const char *stream_kernel_only_option_name(struct vma_file *file);  /* its name, NULL: none is set; takes file.lock */
bool stream_has_kernel_only_option(const struct stream_sock *sock); /* an option is set that only the kernel serves */
void stream_set_async(struct stream_sock *sock, bool on);
void stream_set_tcp_option(struct stream_sock *sock, enum vma_tcp_option option, int32_t value); /* file.lock */
void stream_set_congestion_is_kernel_only(struct stream_sock *sock,
                                          bool on); /* an algorithm of the kernel's alone; file.lock */
int stream_congestion_set(struct stream_sock *sock, int fd, const void *value, socklen_t len); /* file.lock */
const char *stream_congestion_name(const struct stream_sock *sock); /* NULL: as the shadow says; file.lock */
int stream_ioctl(struct vma_file *file, int fd, unsigned long request, void *arg);
int stream_fcntl(struct vma_file *file, int fd, int cmd, void *arg);

/* ---- rings.c ---- */

int stream_ring_ctxs(struct vma_file *file, struct vma_ring_ctx **out, unsigned max);
int stream_tx_ring_ctx(struct vma_file *file, const struct sockaddr_in *to, struct vma_ring_ctx **out);
ssize_t stream_copy_next_headers(struct vma_file *file, void *to, size_t size);
int stream_set_ring_option(struct stream_sock *sock, int name, const void *value, socklen_t len);
void stream_put_ring_ctxs_held_before_connect(struct stream_sock *sock); /* file.lock */
void stream_forget_ring_ctxs_held_before_connect(struct stream_sock *sock);

/* ---- poll.c, wait.c, recv.c, send.c, errqueue.c: data path ---- */

uint32_t stream_poll(struct vma_file *file);
uint64_t stream_ring_bits(struct vma_file *file);
void stream_notify_rings_changed(struct stream_sock *sock,
                                 uint64_t before); /* tells who waits, if they have; file.lock */
uint64_t stream_listener_ring_bits(struct vma_file *file);

struct stream_wait_condition {
	bool (*ready)(struct stream_sock *sock, const struct stream_wait_condition *what);
	size_t seen; /* bytes queued that do not count */
	struct vma_spin *spin;
	uint64_t deadline_ns;
	int64_t spin_loops;
	int shadow_fd;    /* asked and slept on, too, for input; -1: not */
	void *iov_memory; /* of the call's pieces: freed if the thread is cancelled; or NULL */
};
/*
 * Inside, with the socket held by stream_call_enter. 1 ready; 0 the deadline passed; -EINTR a handler ran and the call
 * is not to be restarted (as SIGNAL(7) says of a call with this timeout).
 */
int stream_wait(struct stream_sock *sock, const struct stream_wait_condition *what);
void stream_send_dummy_byte_to_warm_tx_path(
        struct stream_sock *sock); /* send.c: one byte, if it is connected; inside, no lock */
bool fd_is_readable_now(int fd);   /* asks the kernel, once */

ssize_t stream_recvmsg(struct vma_file *file, int fd, struct msghdr *msg, int flags);
/* With VMA_RX_CQ_DRAIN_RATE_NSEC or VMA_SKIP_POLL_IN_RX. */
ssize_t stream_recvmsg_polling_now_and_then(struct vma_file *file, int fd, struct msghdr *msg, int flags);
ssize_t stream_sendmsg(struct vma_file *file, int fd, const struct msghdr *msg, int flags);
/* control.c: 0, -EINVAL, -EFAULT. */
int stream_check_send_cmsgs(const struct msghdr *msg);
/* The only control message of a received one, cut to the room there is. -EFAULT. */
int stream_put_cmsg(struct msghdr *msg, int level, int type, const void *data, size_t len);
/* The kernel's own call, outside, since it may block. */
ssize_t stream_send_by_kernel(int fd, const struct msghdr *msg, int flags);
/* The thread has a tx batch, which may wait a moment longer. */
bool stream_thread_has_batched_sends(const struct vma_thread *self);
/* After a call that has found at once what it wanted. Not while there is a tx batch: it would leave with a drive. */
static inline void stream_drive_rings_if_overdue(struct vma_thread *self)
{
	if (self->tx_batched == 0)
		vma_ring_ctxs_drive_overdue(self);
}

void stream_count_received(const struct stream_sock *sock, ssize_t len, int flags); /* in the socket's statistics */
/* zcopy.c. Under the ring's flag: bytes have come that are to be inspected. */
void stream_inspector_on_arrival(struct stream_sock *sock, struct vma_tcp_conn *conn);
/* What waits to be inspected is received, but for what an inspector has in hand. Also under the flag. Whether it was
 * anything. */
bool stream_receive_uninspected(struct vma_tcp_conn *conn);

/* errqueue.c: notices that zero-copy sends are done (they are copied, so at once). */
void stream_queue_zerocopy_notification(struct stream_sock *sock);
bool stream_has_zerocopy_notifications(const struct stream_sock *sock);
ssize_t stream_recv_zerocopy_notification(struct stream_sock *sock, struct msghdr *msg);

#endif
