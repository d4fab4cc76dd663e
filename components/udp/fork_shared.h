/*
 * fork_shared.h - processes that share a socket by fork: if one changes it, the others follow (fork_shared.c).
 *
 *   setsockopt, connect, ... ── the kernel's socket ── `changes` moves (A)        in one process
 *   recv, send ── has `changes` moved? (B) ── no: go on
 *                     └─ yes: the kernel is asked for everything                  in the others
 *
 * The kernel's socket is the same in all of them, so it is the truth. Memory that they share says when to look, and
 * holds what the kernel does not tell. A (release) comes after the kernel has been told; B (acquire) comes before the
 * kernel is asked. So a process that has seen a number finds at least what was changed before it.
 *
 * A socket that no fork has seen has none of this, and its sends and receives do not look for it. They look only if a
 * bit is set among others that they test anyway (UDP_SHARED, UDP_RX_OPT_FORK_SHARED).
 *
 * Threads: any thread of any of the processes, inside. Changes are made under the file's lock of the process that makes
 * them; several processes may change at once.
 */
#ifndef VMA_UDP_FORK_SHARED_H
#define VMA_UDP_FORK_SHARED_H

#include "udp_priv.h"

struct udp_fork_shared {
	_Alignas(64) _Atomic uint32_t changes;
	/* What the kernel does not tell; stored after it has taken the call, and before `changes` moves. */
	_Atomic uint32_t mc_ifindex;
	_Atomic uint64_t os_options, rcvtimeo_ns, sndtimeo_ns; /* as in udp_sock */
	_Atomic uint8_t ttl;                                   /* 0: the system's, which may change */
	_Atomic bool shut_rd, shut_wr, corked;
	_Atomic bool handed_over; /* to a process that follows nothing: the socket is the kernel's, for all */
};
_Static_assert(sizeof(struct udp_fork_shared) == 64, "a line each");

/* One mapping for all sockets that a fork finds without; the kernel counts the processes that have it. */
struct udp_fork_shared_batch {
	_Atomic uint32_t refs; /* sockets of this process */
	uint32_t used, capacity;
	struct udp_fork_shared *at;
};

/*
 * Inside, before a fork: every socket that has no such record yet gets one. Without memory it does not, and follows
 * nobody.
 */
void udp_share_all_sockets_state_before_fork(void);
/* Nobody sees the socket any more. */
void udp_fork_shared_destroy(struct udp_sock *sock);

/* Any thread, inside; NULL: no fork has seen the socket. */
static inline struct udp_fork_shared *udp_fork_shared(const struct udp_sock *sock)
{
	return atomic_load_explicit(&sock->fork_shared, memory_order_acquire);
}

static inline bool udp_fork_shared_has_changed(const struct udp_sock *sock)
{
	const struct udp_fork_shared *fork_shared = udp_fork_shared(sock);

	return __builtin_expect(fork_shared != NULL, 0) &&
	       atomic_load_explicit(&fork_shared->changes, memory_order_acquire) !=
	               atomic_load_explicit(&sock->fork_shared_seen, memory_order_acquire);
}

/* The others have changed something: the mirror is made anew. Inside; the first takes file.lock, the second has it. */
void udp_apply_changes_of_forked_processes(struct udp_sock *sock) __attribute__((cold));
void udp_apply_changes_of_forked_processes_locked(struct udp_sock *sock) __attribute__((cold));

/* file.lock. This process has changed something. Its own mirror is right, unless others have been here as well. */
static inline void udp_tell_forked_processes_of_change(struct udp_sock *sock)
{
	struct udp_fork_shared *fork_shared = udp_fork_shared(sock);
	uint32_t seen;

	if (fork_shared == NULL)
		return;
	seen = atomic_fetch_add(&fork_shared->changes, 1);
	if (seen == atomic_load_explicit(&sock->fork_shared_seen, memory_order_relaxed))
		atomic_store_explicit(&sock->fork_shared_seen, seen + 1, memory_order_relaxed);
}

/* A call of the control path: what it changes it changes on top of what others have. */
static inline void udp_lock_and_apply_changes_of_forked(struct udp_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (udp_fork_shared_has_changed(sock))
		udp_apply_changes_of_forked_processes_locked(sock);
}

static inline void udp_tell_forked_of_change_and_unlock(struct udp_sock *sock)
{
	udp_tell_forked_processes_of_change(sock);
	pthread_mutex_unlock(&sock->file.lock);
}

/*
 * Sink: others have changed something that this process has not followed yet, as it may wait, or do something else.
 * Whether the kernel's socket, as it is now, gets this datagram. It is followed soon, by the internal thread.
 */
bool udp_datagram_matches_shared_socket_names(struct udp_sock *sock, const struct udp_datagram *datagram)
        __attribute__((cold));

#endif
