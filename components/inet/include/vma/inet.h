/*
 * inet - the common part of UDP and TCP sockets.
 *
 *   interpose ──┬─> udp ────┬─> inet ──> sock
 *               └─> stream ─┘
 *
 * Threads: any, inside.
 * Progress: no call waits for another thread.
 * Memory: the caller's.
 * Example: test/test_flush.c.
 */
#ifndef VMA_INET_H
#define VMA_INET_H

#include <netinet/in.h>

#include <vma/rules.h>
#include <vma/sock.h>
#include <vma/sock_engine.h>

/*
 * A thread that sends in a row may have left up to eight frames for one kick to share. Every other call of the library
 * makes them leave first: interpose says so after vma_enter (receives and sends do it themselves). Costs a store and a
 * load when there is nothing.
 */
void vma_inet_flush_sends_slow(struct vma_thread *self) __attribute__((cold));
static inline void vma_inet_flush_sends(struct vma_thread *self)
{
	self->tx_burst = 0;
	if (__builtin_expect(self->tx_ring != NULL, 0))
		vma_inet_flush_sends_slow(self);
}

/* ---- shadow.c: the kernel's socket. Its answer, or -errno. ---- */

int vma_inet_os_ioctl(int fd, unsigned long request, void *arg);
/* The application's call, outside meanwhile, since it may block. */
ssize_t vma_inet_os_recv(int fd, struct msghdr *msg, int flags);
/* The application's call; it may block, so the caller is outside. */
ssize_t vma_inet_os_send(int fd, const struct msghdr *msg, int flags);
/*
 * The shadow's descriptor: the application's number, unless that has been closed, or given to something else, while
 * this call waited. After the last close the library's (*lingering_fd, 0: none). -1: the socket has ended.
 */
int vma_inet_shadow_fd(struct vma_file *file, int fd, const _Atomic int *lingering_fd);
/* The shadow lives on under a number of the library's, the answer. -ESTALE: fd is not the socket of this cookie. */
int vma_inet_dup_shadow_fd(int fd, uint64_t cookie);

/* ---- object.c: the object behind a descriptor ---- */

/* Whether a call of socket() makes an IPv4 or IPv6 socket of this type and protocol. */
bool vma_inet_socket_type_is(int domain, int type, int protocol, int wanted_type, int wanted_protocol);
/* Of a new one: VMA_SOCK_NEW, or why it is the kernel's for good. */
enum vma_sock_reason vma_inet_initial_offload_reason(const struct vma_engine *engine);
/* What the statistics say of a socket beside its counts. */
struct vma_inet_sock_description {
	const struct vma_file *file;
	enum vma_sock_reason reason;
	int protocol;
	bool nonblocking;
	const struct sockaddr_in *local, *peer;
	uint64_t rx_limit_bytes;
	const struct vma_ring_ctx *ring_ctx; /* NULL: none */
};
/* `stats` may be NULL. The file's lock is held. */
void vma_inet_stats_describe(struct vma_stats_socket *stats, const struct vma_inet_sock_description *described);
/*
 * ---- dump.c: the same, and the counts (stats may be NULL), in lines of the log at `level`, whatever the log's own is.
 * The file's lock is held. Between the two calls a protocol may add lines of its own.
 */
void vma_inet_dump_begin(const struct vma_engine *engine, const struct vma_stats_socket *stats, int fd,
                         const struct vma_inet_sock_description *described, enum vma_log_level level);
void vma_inet_dump_end(enum vma_log_level level);
/*
 * With the last descriptor, and with the object: vma_engine_uncount_socket_stats_at_close and
 * vma_engine_free_socket_stats, unless the engine is not this process's any more.
 */
void vma_inet_stats_count_closed_socket(struct vma_engine *engine, _Atomic bool *counts);
void vma_inet_stats_put(struct vma_engine *engine, struct vma_stats_socket *stats, _Atomic bool *counts);
/* A call has failed: its errno, of which EAGAIN is none. Cold. */
static inline void vma_inet_count_failed_call(struct vma_stats_socket *stats, _Atomic uint64_t *counter, ssize_t rc)
{
	vma_stats_add(counter, 1);
	vma_stats_set(&stats->last_error, (uint64_t)-rc);
}
/* O_NONBLOCK has changed. */
static inline void vma_inet_stats_set_nonblocking(struct vma_stats_socket *stats, bool nonblocking)
{
	if (stats != NULL)
		vma_stats_set(&stats->nonblocking, nonblocking);
}
/* A wait has ended. */
static inline void vma_inet_count_wait_poll_hit_or_miss(struct vma_stats_socket *stats, const struct vma_wait *wait)
{
	if (stats != NULL)
		vma_stats_add(wait->slept ? &stats->rx_poll_misses : &stats->rx_poll_hits, 1);
}

/* ---- drain.c: receives that find data look for packets all the same ---- */

/* Of a socket. Two receives at a time may both look, or take one look for the other's. */
struct vma_inet_drain {
	uint64_t every_tsc; /* the time from one look to the next; UINT64_MAX: only where nothing is queued */
	_Atomic uint64_t looked_tsc;
};
/* VMA_RX_CQ_DRAIN_RATE_NSEC. */
void vma_inet_drain_init(struct vma_inet_drain *drain, const struct vma_conf *conf);
/* A receive begins. True: data is queued, and the caller looks now; if none is, the receive looks anyway. */
bool vma_inet_drain_is_due(struct vma_inet_drain *drain, bool has_data);

/* ---- rule.c: transport rules ---- */

/*
 * The rule that leaves a socket of these names to the kernel; NULL: there is none. `second`: the local name, of roles
 * that have two; else NULL.
 */
const struct vma_rule *vma_inet_find_kernel_only_rule(const struct vma_rules *rules, enum vma_rules_role role,
                                                      const struct sockaddr_in *first, const struct sockaddr_in *second)
        __attribute__((cold));
static inline const struct vma_rule *vma_inet_find_transport_rule(const struct vma_engine *engine,
                                                                  enum vma_rules_role role,
                                                                  const struct sockaddr_in *first,
                                                                  const struct sockaddr_in *second)
{
	return vma_rules_may_leave_to_os(engine->rules, role)
	               ? vma_inet_find_kernel_only_rule(engine->rules, role, first, second)
	               : NULL;
}

/* ---- calls that may wait ---- */

/* UINT64_MAX: never. */
static inline uint64_t vma_inet_deadline(uint64_t timeout_ns)
{
	return timeout_ns == UINT64_MAX ? UINT64_MAX : vma_now_ns() + timeout_ns;
}

/*
 * As the kernel's, a socket lives as long as a call waits in it, whatever is closed: `waiting` counts these calls. A
 * call that comes or goes changes the count (A), then looks whether the last descriptor has gone (B). The close has
 * taken that out (C) before it looks at the count (D), under the file's lock; if there is none, it ends the socket,
 * else it leaves that to the last call. All four are sequentially consistent.
 *   - D misses a call that comes: C comes before B, and the call is as if it had begun after the close.
 *   - D sees a call that goes: B comes after C, and the call looks after the end.
 * Between A and B the thread is inside, so the memory is there.
 *
 * enter: false: the last descriptor has gone, and the answer is -EBADF; the caller leaves all the same.
 * leave: true: the last descriptor has gone, and the caller, with the file's lock, ends the socket if that was left to
 * it and the count is 0.
 *
 * A forked child begins at 0, since its parent's calls are not its own. So a call that a handler has forked in finds 0
 * in the child when it leaves, and leaves it at that.
 */
static inline bool vma_inet_add_waiting_call(struct vma_file *file, _Atomic uint32_t *waiting)
{
	atomic_fetch_add(waiting, 1);
	return __builtin_expect(!vma_file_is_closed(file), 1);
}
static inline bool vma_inet_remove_waiting_call(struct vma_file *file, _Atomic uint32_t *waiting)
{
	uint32_t calls = atomic_load_explicit(waiting, memory_order_relaxed);

	while (calls != 0 && !atomic_compare_exchange_weak(waiting, &calls, calls - 1))
		;
	return __builtin_expect(vma_file_is_closed(file), 0);
}

#endif
