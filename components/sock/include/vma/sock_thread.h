/*
 * sock_thread - the library's state of each thread: whether it is inside, which signals wait for it to come out, and
 * how others wake it.
 *
 *   application ── call ──> vma_enter ── data and control path ── vma_leave ──> application
 *                              │  signals are held back     │
 *                              └── about to wait: vma_leave, sleep, vma_enter
 *
 * Inside, the application's signal handlers do not run. Its handlers are wrapped (vma_signals_wrap_existing_handlers).
 * The wrapper blocks all signals and sends the signal to the thread again, and the kernel delivers it when the thread
 * leaves. So nothing inside is ever re-entered by the same thread, or abandoned by siglongjmp. If the instruction
 * itself raises SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP or SIGSYS, the signal is handed on at once.
 *
 * Inside also is a section of ck_epoch: memory given to vma_defer_free_until_no_readers is freed when every thread that
 * was inside then has left. No thread sleeps inside; a thread that spins leaves and enters again now and then.
 *
 * Threads: a struct vma_thread is its thread's own, but for the fields that are marked shared. The structures are never
 *          freed, only used again. So a stale pointer in a wait queue costs a needless wake-up and nothing else.
 * Progress: enter and leave never wait.
 * Memory: from vma_alloc, one per thread that ever called in.
 * Example: test/test_signals.c, test/stress_waitq.c.
 */
#ifndef VMA_SOCK_THREAD_H
#define VMA_SOCK_THREAD_H

#include <vma/ck_tsan.h> /* before ck's */

#include <ck_epoch.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

struct vma_ring;
struct vma_wait;
struct vma_file;
struct vma_callback_source;
struct vma_xtreme_poll;

#define VMA_THREAD_RING_CTXS                                                                                           \
	16 /* rings that one sleep watches; further ones are left to other sleepers and the internal thread            \
	    */

struct vma_thread {
	uint32_t inside;          /* depth */
	_Atomic uint8_t held;     /* enum vma_thread_deferred_work: what waits until the thread leaves */
	bool copying;             /* a fault now is EFAULT: see vma_memcpy_or_efault */
	uint32_t signals;         /* handlers that ran in this thread */
	uint32_t interrupts;      /* those of them without SA_RESTART */
	struct vma_ring *tx_ring; /* holds frames sent LATER, or sends queued, by this thread: vma_inet_flush_sends */
	uint32_t tx_batched;      /* so many sends, the first of them then: */
	uint64_t tx_batched_tsc;
	uint32_t tx_batch;   /* sends to come that may be queued: vma_thread_set_tx_batch */
	bool tx_short_lived; /* it accepts connections that are closed once they are answered: stream/forking.c */
	uint32_t tx_burst;   /* sends in a row with no other call between them */
	uint64_t tx_last_tsc;
	uint64_t overdue_rings; /* of its last select, poll or epoll_wait: driven while it works for the OS's members */
	uint64_t overdue_tsc;   /* when, last: vma_ring_ctxs_drive_overdue */
	bool gathers;           /* drives rings: vma_file_wake_readers_or_batch */
	struct vma_file *readable; /* has got so many datagrams meanwhile, of which nobody was told; NULL: none */
	uint32_t datagrams;
	void *copy_resume[5]; /* __builtin_setjmp's */
	sigset_t mask;
	/* Signals that wait here, since they may not be blocked: a bit each, see thread/signals.c. */
	uint32_t deferred_signals;
	siginfo_t deferred_siginfo[6]; /* theirs */
	struct vma_wait *waiting;      /* asleep, or about to: what for */
	uint32_t sleeps;               /* of this thread now, the last in a handler that interrupted the one before */
	bool wakeup_unused;  /* the wait ends with nothing: a wake-up spent on it goes to another (vma_waitq_remove) */
	bool spinning;       /* counted as a spinner */
	bool is_internal;    /* the library's own thread */
	pthread_t posix;     /* its name among the program's */
	uint32_t bound_core; /* and 1: vma_thread_bind_core; 0: it is not bound */
	struct vma_callback_source *in_callback;  /* runs a function of the application's: sock_callback.h */
	uint64_t accept_rings;                    /* asleep: the rings whose listeners it waits for, by bit */
	uint64_t busy_polls;                      /* rings, by bit, whose sleepers it drives for: wait/busy_poller.c */
	struct vma_thread *woke;                  /* the last whom it has woken, until that one is seen to be up */
	struct vma_xtreme_poll *xtreme;           /* drives a ring for it: inet_xtreme.h; NULL: for none */
	uintptr_t xtreme_array, xtreme_array_end; /* the last array of completions that was looked at, and is there */
	ck_epoch_record_t epoch;

	/* shared */
	_Alignas(64) _Atomic uint32_t state; /* enum vma_thread_state */
	_Atomic int wake_fd;                 /* eventfd, made at the first sleep; -1 */
	_Atomic uint64_t rings;              /* asleep: the rings that it waits for, a bit each */
	_Atomic uint64_t woken_tsc;          /* when somebody has ended its sleep; 0: nobody has */
	_Atomic uint32_t tid;                /* 0: the structure is free */
	uint32_t index;                      /* in the table of all */
};
/*
 * GOING: looks once more before it sleeps; who wakes it has only to change that. WOKEN: so it says from when somebody
 * has woken it until it is up; also of one that was awake, until it sleeps again or ends a wait.
 */
enum vma_thread_state { VMA_THREAD_AWAKE, VMA_THREAD_GOING, VMA_THREAD_ASLEEP, VMA_THREAD_WOKEN };

/* SIGNALS: leave gives `mask` back, and the kernel delivers what waits. CALLBACKS: set by any thread. */
enum vma_thread_deferred_work { VMA_HELD_SIGNALS = 1 << 0, VMA_HELD_CALLBACKS = 1 << 1 };

static inline bool vma_thread_has_deferred_work(const struct vma_thread *self, enum vma_thread_deferred_work what)
{
	return (atomic_load_explicit(&self->held, memory_order_relaxed) & what) != 0;
}

/* NULL until the thread's first vma_thread_self. */
extern __thread struct vma_thread *vma_thread_cache __attribute__((tls_model("initial-exec"), visibility("hidden")));
struct vma_thread *vma_thread_self_slow(void) __attribute__((cold));
static inline struct vma_thread *vma_thread_self(void)
{
	struct vma_thread *self = vma_thread_cache;

	return __builtin_expect(self != NULL, 1) ? self : vma_thread_self_slow();
}

/*
 * A select, poll or epoll_wait of this thread has found n descriptors ready, or none. With several in hand it is a
 * server that answers one after the other: four sends for each may wait for a batch, whatever is done about them. A
 * count and no state, since the thread may never wait that way again. If the thread's connections are closed once they
 * are answered, what follows an answer is the end of its connection, so one descriptor is enough.
 */
static inline void vma_thread_set_tx_batch(struct vma_thread *self, int n)
{
	self->tx_batch = n > 1 || (n == 1 && self->tx_short_lived) ? 4 * (uint32_t)n : 0;
}
/*
 * The calling thread stays on one core from now on: on the one that the fewest threads have which are bound so. Returns
 * that core; if the thread may not be bound, the one on which it runs. In a forked child the thread is bound no longer.
 */
uint32_t vma_thread_bind_core(struct vma_thread *self);
uint32_t vma_thread_current_core(void); /* on which the calling thread runs */
/*
 * offload.c: the sockets that a thread of this name makes from now on are offloaded, or the kernel's, whatever
 * VMA_OFFLOADED_SOCKETS says. -ESRCH: there is no such thread; -ENOMEM.
 */
int vma_thread_set_offload(pthread_t thread, bool offload);
/* Of the calling thread; `otherwise` if nothing was said. */
bool vma_thread_offloads(bool otherwise);
/* Threads that exist: index 0..count-1; NULL for one that is free. */
unsigned vma_thread_table_size(void);
struct vma_thread *vma_thread_at(unsigned index);
/* In a forked child: no thread but this one, and no section but its own. */
void vma_threads_reset_in_forked_child(void);

/* What was done inside happens before what was retired ends: named by this, which exists with VMA_TSAN only. */
extern char vma_tsan_inside;
#ifdef VMA_TSAN
#define VMA_SOCK_TSAN 1 /* the same, as stream calls it */
#endif

/*
 * A section of ck_epoch begins. ck_epoch_begin has a full barrier between `active` and all that is read inside, a
 * locked instruction in each call of the data path; in its place stands a compiler barrier, if those who end what was
 * retired have the other half of the pair: see vma_run_due_deferred_frees. Else, and for what nests, ck's own.
 */
extern bool vma_epoch_sections_need_no_fence __attribute__((visibility("hidden")));
static inline void vma_epoch_section_begin(ck_epoch_record_t *record)
{
	if (__builtin_expect(!vma_epoch_sections_need_no_fence || record->active != 0, 0)) {
		ck_epoch_begin(record, NULL);
		return;
	}
	ck_pr_store_uint(&record->active, 1);
	atomic_signal_fence(memory_order_seq_cst);
	ck_pr_store_uint(&record->epoch, ck_pr_load_uint(&record->global->epoch));
}

/* Nests. signal_fence: only a handler in this very thread looks at inside. */
static inline struct vma_thread *vma_enter(void)
{
	struct vma_thread *self = vma_thread_self();

	self->inside++;
	atomic_signal_fence(memory_order_seq_cst);
	vma_epoch_section_begin(&self->epoch);
	return self;
}
void vma_leave_run_deferred(struct vma_thread *self) __attribute__((cold));
static inline void vma_leave(struct vma_thread *self)
{
	__tsan_release(&vma_tsan_inside);
	ck_epoch_end(&self->epoch, NULL);
	atomic_signal_fence(memory_order_seq_cst);
	self->inside--;
	/* Before this a signal is held, and seen here; after it, it is not held any more. Callbacks: sock_callback.h.
	 * */
	atomic_signal_fence(memory_order_seq_cst);
#ifdef VMA_TSAN
	if (__builtin_expect(atomic_load_explicit(&self->held, memory_order_relaxed) != 0, 0) && self->inside == 0)
#else /* as a plain byte: an atomic load would cost an instruction of its own */
	if (__builtin_expect(*(const uint8_t *)&self->held != 0, 0) && self->inside == 0)
#endif
		vma_leave_run_deferred(self);
}
/*
 * vma_leave before a call that may block, behind pthread_cleanup_push: the callbacks that run here may end the thread as
 * cancellation does there. Not inlined, since of what is inlined behind a clean-up's setjmp the compiler complains.
 */
void vma_leave_to_block(void);

/* ---- memory: control objects (jemalloc with arenas of our own; libc's malloc under a sanitizer) ---- */

void *vma_alloc(size_t size);       /* zeroed, cache-line aligned; NULL */
void *vma_alloc_bytes(size_t size); /* not zeroed */
void vma_free(void *memory);
/* Frees (or what `end` does) when nobody who is inside now can still see it. Any thread, inside or not. */
struct vma_retired {
	ck_epoch_entry_t entry;
	void (*end)(struct vma_retired *retired);
};
void vma_defer_free_until_no_readers(struct vma_retired *retired, void (*end)(struct vma_retired *retired));
/* Ends what is due; the internal thread and the control path call it now and then. */
void vma_run_due_deferred_frees(void);
/* The same, if much has been retired: for calls that are made for each short connection. */
void vma_run_deferred_frees_if_many(void);

/* ---- the application's memory ---- */

/*
 * memcpy, one side of which is the application's pointer: 0, or -EFAULT where the kernel would (part may be copied).
 * Only inside.
 */
int vma_memcpy_or_efault(void *to, const void *from, size_t size);
/*
 * Whether memory from `base` on, `size` bytes of it, reaches beyond what applications have, which the kernel refuses
 * before it does anything: its access_ok, by a system call. For lengths that nobody's memory has; of others
 * vma_memcpy_or_efault finds out.
 */
bool vma_exceeds_user_space(const void *base, size_t size) __attribute__((cold));
/*
 * An address to the application, as the kernel's move_addr_to_user: at most *len bytes of it, and its whole length into
 * *len. 0, -EFAULT, -EINVAL (*len is negative).
 */
int vma_copy_sockaddr_to_program(const void *own, socklen_t own_len, void *addr, socklen_t *len);
/*
 * After setsockopt of SO_RCVTIMEO or SO_SNDTIMEO (name; of either generation) with `value` on fd: the time in ns,
 * UINT64_MAX for ever, 0 not at all. Inside.
 */
uint64_t vma_sock_timeout_ns(int fd, int name, const void *value);

/* ---- signals ---- */

/* Wraps the handlers that are installed, and from now on those given to vma_sigaction. Once; later calls do nothing. */
void vma_signals_wrap_existing_handlers(void);
/*
 * What the log tells of signals: the calls that led to a segmentation fault that kills (VMA_HANDLE_SIGSEGV), and a
 * SIGINT, before the application's handler runs or the process ends (VMA_HANDLE_SIGINTR). Before
 * vma_signals_wrap_existing_handlers.
 */
void vma_signals_set_logging(bool faults, bool interrupts);
/* As the C library's, of the application's own handlers; the wrapping does not show. */
int vma_sigaction(int sig, const struct sigaction *action, struct sigaction *old);

/* ---- waking ---- */

/*
 * Threads that sleep for something. A sleeper adds itself, looks once more, and sleeps; a waker changes what is looked
 * at, then wakes. Both sides' steps are sequentially consistent (fence in wake, exchange in add): either the sleeper
 * sees the change or the waker sees the sleeper. A slot is taken out by whoever wakes; what a cancelled or
 * long-jumped sleeper leaves behind costs one needless wake-up. More sleepers than slots: wake looks at all threads.
 */
#define VMA_WAITQ_SLOTS 6
struct vma_waitq {
	_Atomic(struct vma_thread *) slot[VMA_WAITQ_SLOTS];
	_Atomic uint32_t used;     /* a slot may be set, or overflow is */
	_Atomic uint32_t overflow; /* sleepers without a slot */
};
void vma_waitq_add(struct vma_waitq *q, struct vma_thread *self);
/* False: it was not in its place any more, somebody has spent a wake-up on it. */
bool vma_waitq_remove(struct vma_waitq *q, struct vma_thread *self);
void vma_waitq_wake_slow(struct vma_waitq *q, bool all) __attribute__((cold));
/* After the change. all: everybody (several may be interested); else one of them. */
static inline void vma_waitq_wake(struct vma_waitq *q, bool all)
{
#ifdef VMA_TSAN
	atomic_fetch_add(&q->used, 0); /* it knows no fences; a read-modify-write of the same word orders as well */
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
	if (__builtin_expect(atomic_load_explicit(&q->used, memory_order_relaxed) != 0, 0))
		vma_waitq_wake_slow(q, all);
}
/*
 * The same where a sequentially consistent store, that of a drive flag's release, stands between the change and this:
 * such a load is not taken before it.
 */
static inline bool vma_waitq_has_sleepers(const struct vma_waitq *q)
{
	return __builtin_expect(atomic_load(&q->used) != 0, 0);
}
/* A thread by itself; a system call only if it sleeps or is about to. */
void vma_thread_wake(struct vma_thread *thread);

/* ---- one wait: spin, then sleep ---- */

/*
 * The waiting loop that recv, send, select, poll and epoll_wait share: drives the rings concerned, looks, asks the OS
 * every os_ratio looks, for as long as spinning pays within the user's bound; then sleeps on the OS descriptors, the
 * thread's wake-up and, for one sleeper of each ring, the ring's descriptor. Called inside, with no lock held; leaves
 * and enters between. The caller holds a reference to whatever `arg` reaches.
 */
struct vma_wait;
struct vma_wait_ops {
	/* Something is there: 1, which may be said once only, and ends the wait; not yet: 0; -errno ends it, too. No
	 * system call. */
	int (*ready)(struct vma_wait *wait);
	/* As ready, by asking the OS. NULL: nothing to ask. */
	int (*poll_os)(struct vma_wait *wait);
	/* Rings to drive and to watch, one bit each (vma_ring_ctx_bit). */
	uint64_t (*rings)(struct vma_wait *wait);
	/* Those of them on whose listeners the thread waits, as ops.asks of files. NULL: it waits for none. */
	uint64_t (*accept_rings)(struct vma_wait *wait);
	/* Puts the thread into (out of) the wait queues of what it waits for. Out must be harmless when it is not in.
	 */
	void (*set_queued)(struct vma_wait *wait, bool on);
	/* The thread is cancelled in its sleep, and is outside: give up references. NULL: nothing to give up. */
	void (*abandon)(struct vma_wait *wait);
};
/* How spinning has paid, for one socket or set; see wait/wait.c. Relaxed: a lost update costs nothing. */
struct vma_spin {
	_Atomic uint32_t budget_nsec; /* 0: not used yet */
};
struct vma_wait {
	const struct vma_wait_ops *ops;
	void *arg;
	struct vma_thread *self;
	struct vma_spin *spin;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; UINT64_MAX: none */
	int64_t spin_loops;   /* at most so many looks before it sleeps; -1: no such bound */
	int64_t spin_nsec;    /* at most so long; -1: no such bound */
	uint32_t os_ratio;    /* looks per question to the OS; 0: only before sleeping */
	bool yield;           /* VMA_RX_POLL_YIELD */
	bool without_rings;   /* spins also where there is no ring to look at: asking the OS is all it does there */
	struct pollfd *fds;   /* OS descriptors to sleep on; revents are left as ppoll set them */
	unsigned nfds;
	bool mixed; /* for OS descriptors of any kind as well: see wait/spin.c */
	/* out */
	bool handled; /* a handler ran meanwhile, whatever has ended the wait */
	bool restart; /* every handler that ran had SA_RESTART */
	bool slept;
	bool by_os; /* poll_os has ended it */
};
/* 1 ready; 0 the deadline passed; -EINTR a handler ran; what ready or poll_os said. */
int vma_wait(struct vma_wait *wait);

uint64_t vma_now_ns(void); /* CLOCK_MONOTONIC */
static inline uint64_t vma_tsc(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t count;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
	return count;
#else
	return vma_now_ns();
#endif
}
/* How many ticks that is; measured once. */
extern _Atomic uint64_t vma_tsc_per_1024_usec __attribute__((visibility("hidden")));
uint64_t vma_tsc_measure(void) __attribute__((cold));
static inline uint64_t vma_tsc_of_nsec(uint64_t nsec)
{
	uint64_t rate = atomic_load_explicit(&vma_tsc_per_1024_usec, memory_order_relaxed);

	if (__builtin_expect(rate == 0, 0))
		rate = vma_tsc_measure();
	return nsec / 1024000 * rate + nsec % 1024000 * rate / 1024000;
}

#endif
