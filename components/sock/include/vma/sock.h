/*
 * sock - the descriptor table, and the *file* behind an offloaded descriptor: an object with a socket of the kernel,
 * its shadow.
 *
 *   fd ── one load ──┬─ NULL: not ours, the kernel's call
 *                    └─ struct vma_file ── ops ──> udp, stream, epoll sets
 *
 * A shadow is the kernel's socket of the same number, bound to the same address. It reserves the port, carries what
 * cannot be offloaded, and answers every question that the library has no better answer to. A file may have several
 * numbers (dup); ops get the one that the application used. Functions return 0, a count, or a negative errno.
 *
 * Threads: any. Slots are read without a lock inside vma_enter; a file is freed when no thread that could see it is
 *          inside any more. A thread that sleeps or spins holds a reference (vma_file_get).
 * Progress: lookups do not wait. Control calls (bind, connect, setsockopt, ...) take the file's lock.
 * Memory: the table costs its used part only, however large RLIMIT_NOFILE is.
 * Example: test/test_fd_table.c.
 */
#ifndef VMA_SOCK_H
#define VMA_SOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <vma/log.h>
#include <vma/sock_name.h>
#include <vma/sock_thread.h>

struct sockaddr_in;
struct vma_file;
struct vma_recv_zcopy_call;
struct vma_ring_ctx;
struct vma_recv_callback;
struct vma_xtreme_poll;
struct iovec;

/*
 * VMA_FILE_EXEC: a socket that the program has inherited through exec, and has not used (engine/inherited.c);
 * VMA_FILE_RING: a ring, as the Extra API shows it (engine/ring_file.c).
 */
enum vma_file_kind { VMA_FILE_UDP, VMA_FILE_TCP, VMA_FILE_EPOLL, VMA_FILE_EXEC, VMA_FILE_RING, VMA_FILE_INTERNAL };

/* X(NAME, "text"): why a socket is (not) offloaded; the texts are shown to users and named in parity tests. */
#define VMA_SOCK_REASONS(X)                                                                                            \
	X(OFFLOADED, "offloaded")                                                                                      \
	X(NEW, "not bound or connected yet")                                                                           \
	X(DEFERRED, "it has sent little yet, and those before it were closed after that")                              \
	X(DISABLED, "offloading is switched off")                                                                      \
	X(IO_URING, "the program has an io_uring (VMA_IO_URING=1)")                                                    \
	X(RULE, "a rule leaves it to the kernel")                                                                      \
	X(IPV6, "bound or connected to an IPv6 address, or IPV6_V6ONLY: only IPv4 is offloaded")                       \
	X(TYPE, "only UDP and TCP sockets are offloaded")                                                              \
	X(LOCAL, "its address is only reachable on this host")                                                         \
	X(NO_DEVICE, "the interface cannot be offloaded (the log says why)")                                           \
	X(NO_MEMBERSHIP, "bound to a group that it has not joined")                                                    \
	X(PORT_SHARED, "another process or a plain kernel socket receives on this address and port, too")              \
	X(OPTION, "an option is set that only the kernel serves")                                                      \
	X(INHERITED, "inherited by fork and not taken up in this process yet")                                         \
	X(FORKED, "handed over to the kernel, because a forked process uses it, too")                                  \
	X(HANDS_OVER, "its connections are used by other processes: all of the last ones were handed over unused")     \
	X(EXEC, "inherited through exec")                                                                              \
	X(PASSED_ON, "handed over to the kernel, because it became 0, 1 or 2, or was passed on to another process")    \
	X(REROUTED,                                                                                                    \
	  "handed over to the kernel, because its route no longer leads through the interface that it began on")       \
	X(NO_MEMORY, "out of memory or flow table entries")                                                            \
	X(ENGINE, "the library could not start (the log says why)")

enum vma_sock_reason {
#define X(name, text) VMA_SOCK_##name,
	VMA_SOCK_REASONS(X)
#undef X
};
const char *vma_sock_reason_text(enum vma_sock_reason reason);
/* Of a device, ring context or flow that was not to be had: its -errno, or 0. */
enum vma_sock_reason vma_sock_reason_of_errno(int error);

/* One message of the application, its pointers not yet checked (vma_memcpy_or_efault does that). */
struct vma_file_ops {
	const char *name;
	/*
	 * As the calls of the same name. Called inside, with the descriptor that the application used; -errno where the
	 * call sets errno. NULL: the kernel's own call is made on the descriptor.
	 */
	int (*bind)(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len);
	int (*connect)(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len);
	int (*listen)(struct vma_file *file, int fd, int backlog);
	int (*accept4)(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len, int flags);
	int (*shutdown)(struct vma_file *file, int fd, int how);
	int (*setsockopt)(struct vma_file *file, int fd, int level, int name, const void *value, socklen_t len);
	int (*getsockopt)(struct vma_file *file, int fd, int level, int name, void *value, socklen_t *len);
	int (*getsockname)(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len);
	int (*getpeername)(struct vma_file *file, int fd, struct sockaddr *addr, socklen_t *len);
	int (*ioctl)(struct vma_file *file, int fd, unsigned long request, void *arg);
	/* F_SETFL and whatever else touches the socket; duplicating is not its business. */
	int (*fcntl)(struct vma_file *file, int fd, int cmd, void *arg);
	/*
	 * read, recv, recvfrom and the like come as messages too; msg is the library's own copy, what it points to is
	 * not, but for one case: an iov that lies right behind msg is the library's as well (the application's call had
	 * none), and may be read as it is.
	 */
	ssize_t (*recvmsg)(struct vma_file *file, int fd, struct msghdr *msg, int flags);
	ssize_t (*sendmsg)(struct vma_file *file, int fd, const struct msghdr *msg, int flags);
	/*
	 * The Extra API's (<mellanox/vma_extra.h>): recvfrom_zcopy, with a message of <vma/inet_held.h>, whose
	 * `packets` says whether packets were given or bytes were copied; register_recv_callback; the headers of the
	 * next message, of which at most `size` bytes are written, and how many there are (-ENOTCONN). -errno. NULL:
	 * -EOPNOTSUPP.
	 */
	ssize_t (*recv_lent)(struct vma_file *file, int fd, struct vma_recv_zcopy_call *lend, int flags);
	int (*set_callback)(struct vma_file *file, const struct vma_recv_callback *callback);
	ssize_t (*network_header)(struct vma_file *file, void *to, size_t size);
	/*
	 * SocketXtreme: writes completions of what is queued, as many as there is room for (<vma/inet_xtreme.h>).
	 * *events (in): EPOLL* bits that it has told of itself since the last call; (out): those that are still to be
	 * told. True: there is more. The thread has the turn of the poll's ring bit. NULL: the file is no source.
	 */
	bool (*complete)(struct vma_file *file, struct vma_xtreme_poll *poll, uint32_t *events);
	/*
	 * Also the Extra API's. The ring contexts by which it receives, each once: as many of them as there is room for
	 * in `out`, and how many there are. The one by which it sends to `to` (AF_INET), NULL: to its peer; *out NULL:
	 * none is known. Both valid until vma_leave; -errno. NULL: none.
	 */
	int (*ring_ctxs)(struct vma_file *file, struct vma_ring_ctx **out, unsigned max);
	int (*tx_ring_ctx)(struct vma_file *file, const struct sockaddr_in *to, struct vma_ring_ctx **out);
	/*
	 * The offloaded half of readiness as EPOLL* bits, without lock or system call. For sockets EPOLLOUT and what
	 * else the shadow is not to be asked for is in `own`. VMA_POLL_OWN_OUT: also if it is not writable, the shadow
	 * is not to be asked whether it is. When it is, all in the wait queue are woken, and EPOLLOUT is told.
	 */
	uint32_t (*poll)(struct vma_file *file);
	/* Rings that poll's answer may depend on. */
	uint64_t (*rings)(struct vma_file *file);
	/*
	 * Of these, those on which it listens: who calls accept on it, or waits for it to be readable, serves what
	 * comes there (vma_ring_ctxs_count_accept). NULL: none.
	 */
	uint64_t (*accept_rings)(struct vma_file *file);
	/* The last descriptor has gone: flows end now. The memory lives until the last reference is put. */
	void (*close)(struct vma_file *file);
	void (*destroy)(struct vma_file *file);
	/*
	 * In a forked child, its only thread: forget what was the parent's (rings, flows, queues, locks, waiters); the
	 * shadow is shared with the parent. The socket may be taken up anew later.
	 */
	void (*forked)(struct vma_file *file);
	/* Interfaces, addresses or routes have changed, or a device has come or gone. Internal thread, inside. */
	void (*net_changed)(struct vma_file *file);
	/* What is meant by VMA_SOCK_OPTION: the option's name, or NULL. Inside, without the file's lock. */
	const char *(*reason_detail)(struct vma_file *file);
	/* What is known of it goes to the log (vma_stats -S): lines at `level`, whatever the log's own is. Inside, the
	 * internal thread. NULL: nothing. */
	void (*dump)(struct vma_file *file, int fd, enum vma_log_level level);
	/* Why (not): for vma_sock_get_offload_reason and the statistics. */
	enum vma_sock_reason (*reason)(struct vma_file *file);
	/*
	 * The C library is about to read from the descriptor by itself (fdopen): from now on all goes through the
	 * shadow. Inside. NULL: nothing to give up.
	 */
	void (*to_os)(struct vma_file *file, int fd);
	/*
	 * The descriptor stands where the C library and other programs look for theirs (0, 1, 2), or is passed on to
	 * another process: what goes through it is the kernel's from now on, if that is possible. Any thread, inside,
	 * no lock. NULL: nothing to give up.
	 */
	void (*hand_over)(struct vma_file *file);
	/*
	 * The same, because a program that has inherited the socket through exec uses it. A descriptor for that
	 * program, which is the file's: what waits for accept here comes there, in messages; or -1. The internal
	 * thread, inside. NULL: hand_over.
	 */
	int (*exec_export)(struct vma_file *file);
	/*
	 * A file that is os_only may be another process's socket: a call on number fd of it is about to use it. Another
	 * file may stand under the number afterwards. Inside, no lock; NULL: it never is.
	 */
	void (*touch)(struct vma_file *file, int fd);
};
/* Some file of this process may want to be touched. */
extern _Atomic bool vma_any_file_needs_touch __attribute__((visibility("hidden")));

/* The common head of every object behind a descriptor. */
struct vma_file {
	const struct vma_file_ops *ops;
	uint8_t kind;           /* enum vma_file_kind */
	_Atomic uint8_t family; /* of a socket's names: AF_INET or AF_INET6 (sock_name.h); IPV6_ADDRFORM changes it */
	/*
	 * Every call goes to the kernel, only readiness and close are ours. Set (and, before anybody was told, cleared)
	 * under `lock`, read without: a call that still reads false does what it would have done a moment before. Who
	 * sets it while calls may be under way sets it before the object ends on our side; so a call that finds it
	 * ended, and then reads this, knows whether that end is one. All accesses are sequentially consistent: what it
	 * has to be ordered with is several other flags.
	 */
	_Atomic bool os_only;
	/*
	 * ops->poll answers all by itself: the shadow is not what the file is (a TCP socket that is connected past the
	 * kernel), and is not asked. See vma_file_set_poll_without_shadow.
	 */
	_Atomic bool own_poll;
	_Atomic bool handoff;   /* a vfork child waits for ops->hand_over: engine/vfork_handoff.c */
	bool from_parent;       /* a process that forked this one made it */
	bool is_copied;         /* then: this one has made a copy for its next program */
	_Atomic bool retry;     /* offloaded in part: net_changed is wanted once a second, whatever `reason` says */
	_Atomic uint32_t refs;  /* one for all descriptors together, one for each holder; two bits: fd/file.c */
	_Atomic uint32_t slots; /* descriptors that lead here; VMA_FILE_ENDED: the last one has gone */
	_Atomic int fd;         /* one of them: the shadow's number for calls that have none from the application */
	uint64_t id;            /* never used twice in a process */
	uint32_t forks;         /* vma_fork_count when it was made */
	pthread_mutex_t lock;   /* control path */
	struct vma_waitq waitq;
	/*
	 * Who is told of readiness besides sleepers: the epoll sets that hold the file. An immutable array, replaced
	 * under `lock` and retired. Called by whoever delivers, perhaps under a ring's flag: must not wait.
	 */
	struct vma_watchers *_Atomic watchers;
	/* The list of all files with a descriptor, for forked and net_changed: read inside, changed under its lock. */
	struct vma_file *_Atomic next_all;
	struct vma_file *prev_all;
	/* An errno that ended a call of several messages after the first: the next call's, as the kernel's sk_err. */
	_Atomic int deferred_error;
	_Atomic uint32_t rule_line; /* of the rule that is the reason (VMA_SOCK_RULE), or leaves sends to the kernel */
	_Atomic uint32_t maker_thread,
	        maker_core; /* that made the socket, or accepted it: vma_file_record_creating_thread_and_core */
	_Atomic uint64_t ring_requests[2]; /* for receiving, for sending: vma_file_set_ring_request; 0: none */
	struct vma_retired retired;
};
#define VMA_FILE_ENDED (1U << 31)
static inline bool vma_file_is_closed(const struct vma_file *file)
{
	return (atomic_load(&file->slots) & VMA_FILE_ENDED) != 0;
}

struct vma_watcher {
	void (*ready)(struct vma_watcher *watcher, uint32_t events);
	/* The file's rings have changed. */
	void (*rings)(struct vma_watcher *watcher, uint64_t rings);
	/* Descriptor fd of the file is being closed (-1: the last one, and so the file): the registration ends. */
	void (*closed)(struct vma_watcher *watcher, int fd);
	/* The file's own_poll has changed. */
	void (*shadow)(struct vma_watcher *watcher);
};
struct vma_watchers {
	struct vma_retired retired;
	uint32_t n;
	struct vma_watcher *_Atomic watcher[];
};
/* -ENOMEM, -EBADF (the file's last descriptor has been closed). After unwatch returned, and all who are inside now have
 * left, it is not called any more. */
int vma_file_watch(struct vma_file *file, struct vma_watcher *watcher);
void vma_file_unwatch(struct vma_file *file, struct vma_watcher *watcher);

/* Inside, without the file's lock. */
void vma_file_set_poll_without_shadow(struct vma_file *file, bool own);
#define VMA_POLL_OWN_OUT (1u << 24) /* of ops->poll; no event of epoll's */
#define VMA_FILE_READABLE 0x0041u   /* EPOLLIN | EPOLLRDNORM */
void vma_file_wake_watchers(struct vma_file *file, struct vma_watchers *watchers, uint32_t events);
/* After readiness has come: sleepers and epoll sets. events: what is new, EPOLL* bits. */
static inline void vma_file_wake_sleepers_and_watchers(struct vma_file *file, uint32_t events)
{
	struct vma_watchers *watchers;

	vma_waitq_wake(&file->waitq, false);
	watchers = atomic_load_explicit(&file->watchers, memory_order_acquire);
	if (__builtin_expect(watchers != NULL, 0))
		vma_file_wake_watchers(file, watchers, events);
}

/*
 * The same for a sink, of a datagram: EPOLLIN. Where the ring is driven by vma_ring_ctxs_progress, the thread
 * remembers the file, and tells once the burst is over and the ring's receive flag given back: that is the fence
 * between what was queued and the look for sleepers, for all of a burst and at no cost of its own. One file is
 * remembered: that of a datagram for another one is told then.
 */
void vma_file_notify_readable(struct vma_file *file, uint32_t datagrams);
static inline void vma_file_wake_readers_or_batch(struct vma_file *file)
{
	struct vma_thread *self = vma_thread_cache;

	if (__builtin_expect(self == NULL || !self->gathers, 0)) {
		vma_file_wake_sleepers_and_watchers(file, VMA_FILE_READABLE);
		return;
	}
	if (__builtin_expect(self->readable != file, 0)) {
		if (self->readable != NULL)
			vma_file_notify_readable(self->readable, self->datagrams);
		self->readable = file;
		self->datagrams = 0;
	}
	self->datagrams++;
}

/* Forks that the process has announced: a file that has seen none since it was made is known to no other process. */
extern _Atomic uint32_t vma_fork_count __attribute__((visibility("hidden")));

/* Fills in the head: refs 1, no descriptor yet. The caller's object starts with it and came from vma_alloc. */
void vma_file_init(struct vma_file *file, enum vma_file_kind kind, const struct vma_file_ops *ops);
/* By a holder, or inside by a thread that found the file: also while its last descriptor is being closed. */
static inline void vma_file_get(struct vma_file *file)
{
	atomic_fetch_add_explicit(&file->refs, 1, memory_order_relaxed);
}
void vma_file_put(struct vma_file *file); /* the last one retires it: ops->destroy, then vma_free */
/*
 * Of a task, or whatever runs later and holds a reference: true: it was not scheduled, now it is, and the caller posts
 * it; the reference is given back by what runs. The reference comes before the mark: a fork between the two finds no
 * mark without it, which the child would give back.
 */
static inline bool vma_file_mark_scheduled(struct vma_file *file, _Atomic bool *is_scheduled)
{
	vma_file_get(file);
	if (!atomic_exchange(is_scheduled, true))
		return true;
	vma_file_put(file);
	return false;
}

/* ---- the descriptor table ---- */

#define VMA_FD_LOW 65536
extern struct vma_file *_Atomic vma_fd_low[VMA_FD_LOW] __attribute__((visibility("hidden")));
struct vma_file *vma_fd_lookup_high(unsigned fd) __attribute__((cold));

/* NULL: not ours. One load; valid until vma_leave. */
static inline struct vma_file *vma_fd_lookup(int fd)
{
	if (__builtin_expect((unsigned)fd < VMA_FD_LOW, 1))
		return atomic_load_explicit(&vma_fd_low[fd], memory_order_acquire);
	return vma_fd_lookup_high((unsigned)fd);
}
/* Inside. A call that is no data path's, or has found the file os_only, is about to use the socket. */
static inline void vma_fd_call_before_use_hook(int fd)
{
	struct vma_file *file = vma_fd_lookup(fd);

	if (file != NULL && file->ops->touch != NULL)
		file->ops->touch(file, fd);
}
/*
 * Puts a file under a number that the kernel has just given out; what stood there before has been closed unseen by us,
 * and is dropped. -ENOMEM; -EBADF: the file's last descriptor has been closed meanwhile (it was being duplicated), so
 * it has ended, and the new number is the kernel's only.
 */
int vma_fd_install(int fd, struct vma_file *file);
/*
 * The kernel is about to close fd, or has given the number out anew: the slot empties, watchers of that number are
 * told, the last slot closes the file (ops->close). Call before the kernel's close, so that nobody gets the number in
 * between. A number that is not ours is no error.
 */
void vma_fd_remove(int fd);
/* The library itself closes number fd, if it leads to this file; false, and nothing is done: it does not. */
bool vma_fd_close_file(int fd, struct vma_file *file);
/* The highest number that may be ours, for close_range and closefrom; -1: none. */
int vma_fd_highest(void);

/* Descriptors of the library itself are moved to 1000 and above and marked, so that the application cannot close them.
 */
int vma_fd_move_high_and_guard(int fd);    /* the new number, or -errno (fd stays as it was) */
int vma_fd_guard_same_number(int fd);      /* the same of one that cannot be moved any more */
void vma_fd_guard_only_until_fork(int fd); /* a guarded one: a forked child closes its copy */
void vma_fd_unguard_close(int fd);
static inline bool vma_fd_is_library_internal(int fd)
{
	struct vma_file *file = vma_fd_lookup(fd);

	return __builtin_expect(file != NULL, 0) && file->kind == VMA_FILE_INTERNAL;
}

/* Calls fn for every file of the process but guards; inside. */
void vma_file_each(void (*fn)(struct vma_file *file, void *arg), void *arg);

/* ---- for users: whether, and if not why not ---- */

/*
 * 1: fd is offloaded; 0: it is the OS's, and text says why; -EBADF. *text is valid until this thread's next question.
 * libvma.so exports this as vma_get_socket_state(fd, text).
 */
int vma_sock_get_offload_reason(int fd, const char **text);
/*
 * After a call by which it is decided: if fd is the OS's, the log says why, at INFO, once for each port that is served
 * and each other reason. `serves`: by bind or listen. Outside; keeps errno.
 */
void vma_sock_log_why_not_offloaded(int fd, bool serves) __attribute__((cold));

#endif
