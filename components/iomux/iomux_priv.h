/*
 * iomux_priv - one call of select, poll or epoll_wait, and the sets; shared by the files of iomux.
 *
 * Threads: a struct members belongs to the thread of its call. A set's `lock` guards collecting (which only tries it)
 * and epoll_ctl; `leaf` guards an item's rings. A thread that delivers takes no lock: it pushes to `ready` and wakes.
 * All functions run inside.
 */
#ifndef VMA_IOMUX_PRIV_H
#define VMA_IOMUX_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <vma/iomux.h>
#include <vma/sock.h>
#include <vma/sock_engine.h>

#include "ready_list.h"

/* ---- what every call has (policy.c, timeout.c, sigmask.c) ---- */

#define IOMUX_IN (EPOLLIN | EPOLLRDNORM)
#define IOMUX_OUT (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)
#define IOMUX_ALWAYS (EPOLLERR | EPOLLHUP)                                    /* told whether asked for or not */
#define EPOLL_PRIVATE (EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE) /* flags among the events */

/* The user's parameters; the defaults before the engine runs. */
struct iomux_policy {
	int64_t spin_nsec; /* -1: for ever */
	uint32_t os_ratio; /* looks per question to the OS */
	uint32_t skip_os;  /* questions left out in a row, while offloaded members are ready */
	bool yield;
	bool os_force; /* looks also where nothing is offloaded: the OS is asked all the time then */
};
void iomux_policy_get(struct iomux_policy *policy);
bool iomux_conf_forces_os_poll(void);

/*
 * When the OS was asked last. A question costs a system call and says nothing new when the last one is only a few
 * microseconds old: a program that calls without waiting asks as often as it would if a call took that long.
 */
struct iomux_os_polled {
	uint64_t tsc;
	uint32_t skipped; /* since then */
};
void iomux_note_os_polled_now(struct iomux_os_polled *os_polled);
bool iomux_os_poll_is_long_ago(const struct iomux_os_polled *os_polled);

/*
 * Whether a call, before it answers, drives on after so many steps, the last of which has handled so many packets. What
 * has come is to be told of in one answer, and once, as by the kernel, as far as that may be had at a small price and
 * without filling sockets that the program would have emptied in between: so much fits into the default buffer.
 */
#define IOMUX_STEPS 8U /* full frames of so many steps are 192,000 bytes */
static inline bool iomux_may_poll_rings_again(unsigned steps, int driven, bool found)
{
	return driven >= VMA_RING_CTXS_FULL && steps < (found ? IOMUX_STEPS : VMA_RING_CTXS_STEPS);
}

/* Events of a bit are events for all who want it under one of its names. */
static inline uint32_t iomux_with_event_aliases(uint32_t mask)
{
	return mask | (mask & EPOLLIN ? IOMUX_IN : 0) | (mask & EPOLLOUT ? IOMUX_OUT : 0);
}
/* A bit says the same under its two names, as in the kernel's answer for a socket; of the band a file speaks itself: in
 * the kernel a datagram socket has one to write to, and a stream has not. */
static inline uint32_t iomux_file_poll(struct vma_file *file)
{
	uint32_t events = file->ops->poll(file);

	return events | (events & EPOLLIN ? EPOLLRDNORM : 0) | (events & EPOLLOUT ? EPOLLWRNORM : 0);
}
static inline uint64_t iomux_file_rings(struct vma_file *file)
{
	return file->ops->rings != NULL ? file->ops->rings(file) : 0;
}
static inline uint64_t iomux_file_accept_rings(struct vma_file *file)
{
	return file->ops->accept_rings != NULL ? file->ops->accept_rings(file) : 0;
}
/*
 * The OS has told of events of a shadow. An error is passed on at once: the internal thread hears of it as well, but
 * perhaps later than the application's next send or receive, which is to return it.
 */
static inline void iomux_pass_os_error(struct vma_file *file, uint32_t events)
{
	if (__builtin_expect(events & EPOLLERR, 0) && file->kind != VMA_FILE_EPOLL && vma_engine_on_error != NULL)
		vma_engine_on_error(file);
}
/* Whether there is more to ask of it than the kernel knows. */
static inline bool iomux_file_is_ours(const struct vma_file *file)
{
	return file != NULL && file->kind != VMA_FILE_INTERNAL;
}

static inline bool iomux_is_in_wait_queue(struct vma_waitq *q, const struct vma_thread *self)
{
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++)
		if (atomic_load(&q->slot[i]) == self)
			return true;
	return false;
}
/*
 * Out of a queue, in the middle of a wait: who is not in its place any more was woken, and comes to see what for. The
 * wake-up is passed on when it leaves for good, and there is something to leave: were it always passed on, two sleepers
 * with nothing to do would wake each other for ever. A handler may jump out of the wait, so before one runs (signals,
 * counted since the wait began) it is passed on. False: it was not in its place.
 */
static inline bool iomux_remove_from_wait_queue_unless_woken(struct vma_waitq *q, struct vma_thread *self,
                                                             uint32_t signals)
{
	return (self->signals != signals || iomux_is_in_wait_queue(q, self)) && vma_waitq_remove(q, self);
}

struct iomux_timeout {
	uint64_t nsec;     /* UINT64_MAX: for ever */
	uint64_t deadline; /* CLOCK_MONOTONIC; set by iomux_timeout_start */
};
/* Reads the application's: -EFAULT, -EINVAL. */
int iomux_timeout_from_timespec(struct iomux_timeout *timeout, const struct timespec *from);
void iomux_timeout_start(struct iomux_timeout *timeout);
void iomux_timeout_left(const struct iomux_timeout *timeout, struct timespec *left);

/* The application's signal mask for the time of a call. */
struct iomux_sigmask {
	bool set;
	sigset_t before;
};
int iomux_sigmask_set(struct iomux_sigmask *mask, const sigset_t *from, struct vma_thread *self); /* -EFAULT */
void iomux_sigmask_restore(struct iomux_sigmask *mask, struct vma_thread *self);
/* Nothing is ready: lets handlers run that are held back. -EINTR if any did, else 0. */
int iomux_run_held_signals_return_eintr(struct vma_thread *self);

/* ---- count.c: what readers of the statistics see of the calls ---- */

struct iomux_call {
	uint64_t begun_tsc; /* 0: the time is not measured */
	bool slept;
};
/* Before a call: VMA_CPU_USAGE_STATS. */
static inline void iomux_call_begin_timing(struct iomux_call *call)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	*call = (struct iomux_call){.begun_tsc = engine != NULL && engine->conf.cpu_usage_stats ? vma_tsc() : 0};
}
/* It has found rc descriptors ready, or failed; `stats` may be NULL. */
void iomux_count_call_result(const struct iomux_call *call, struct vma_stats_iomux *stats, int rc);

/* Of the kernel, at once, and never a cancellation point: -errno. */
int iomux_os_poll_nonblocking(struct pollfd *fds, nfds_t n);
int iomux_os_epoll_nonblocking(int epfd, struct epoll_event *events, int max);

/* ---- poll and select (members.c) ---- */

struct members_offloaded {
	struct vma_file *file; /* found again by fd, and the same if id is */
	uint64_t id;
	bool queued;    /* stands in its queue, and holds it */
	bool own_poll;  /* the file answered all by itself when it was looked at last: the OS is not asked */
	short events;   /* as they were asked for */
	uint32_t index; /* in fds */
	int fd;         /* the application's */
	uint32_t accept, got;
};
struct members {
	struct pollfd *fds; /* as the OS is asked: a set appears as its inner descriptor; revents as the OS said */
	struct members_offloaded *ours;
	nfds_t n;
	unsigned n_ours, n_os, n_shadows; /* the OS's; shadows of ours that are to be asked */
	bool select;
	void *memory[2]; /* freed if the thread is cancelled in its sleep */
	/* private */
	bool bad; /* select: one is not open */
	uint32_t signals;
	uint64_t request_hash;        /* what is asked, as a hash */
	bool os_ready;                /* the OS has found one when it was asked last */
	uint64_t rings, accept_rings; /* accept_rings: where listeners that are polled for EPOLLIN listen */
	struct vma_thread *self;
	int count; /* members that are ready */
	unsigned polls;
	struct iomux_call call;
};
/* What of an answer counts for a member that was asked for `events`. */
uint32_t members_events_that_count(const struct members *members, uint32_t events);
/* fds[].fd and events are filled in, room for as many `ours`: finds which are ours. */
void members_split_offloaded_and_kernel_fds(struct members *members);
/* Members ready (revents of fds are the answer), 0, -errno. */
int members_wait_for_ready_and_count_stats(struct members *members, struct iomux_timeout *timeout,
                                           struct vma_thread *self);

/* ---- sets (set.c, item.c, ctl.c, collect.c, wait.c, adopt.c, kernel_wait.c) ---- */

struct epoll_set;
struct epoll_item {
	struct vma_watcher watcher;
	struct epoll_set *set;
	struct vma_file *file;   /* held */
	_Atomic uint32_t wanted; /* events that it is woken for; 0: shot, or removed */
	_Atomic bool queued;     /* see ready_list.h */
	_Atomic bool ended;      /* nobody calls the watcher any more */
	_Atomic bool removed;
	ck_stack_entry_t entry;

	/* under set->lock */
	TAILQ_ENTRY(epoll_item) pending;
	struct epoll_item *next; /* of the same bucket, or free */
	uint64_t data;
	uint32_t events;    /* as the application gave them */
	uint32_t os_events; /* the OS has said these, and they have not been told yet */
	uint32_t index, generation;
	int fd;
	int os_fd; /* in S: fd, or for a set in a set the inner one's S */
	bool live;
	bool parked;        /* deleted, and likely to come again: see epoll_item_keep_after_delete */
	bool is_pending;    /* taken from the ready list and waiting in set->pending */
	bool number_closed; /* fd has been closed, the file lives on under another number */
	bool os_fd_own;     /* a duplicate made for this item */
	bool in_s;          /* the shadow is, */
	bool out_unpolled;  /* but not asked whether it is writable: the file knew by itself */

	uint64_t rings, accept_rings; /* under set->leaf */
	struct vma_retired retired;
};
TAILQ_HEAD(epoll_pending, epoll_item);

/* Items never move and are not freed before the set: what S says of one that has gone is recognised by its generation.
 */
#define EPOLL_CHUNK_FIRST 16U
#define EPOLL_CHUNKS 28

struct epoll_set {
	struct vma_file file;
	struct ready_list ready;           /* written by who delivers */
	_Alignas(64) pthread_mutex_t lock; /* collecting (by trylock only) and epoll_ctl */
	int members_epfd;                  /* S (README.md) */
	_Atomic bool stale;                /* S does not hold what it should: made anew at the next use */
	bool forked;                       /* and so are the lists; until then S is the parent's, and is not changed */
	bool ours_first;                   /* the OS's events filled the last call */
	uint8_t stale_events;              /* questions in a row that S has answered with a member that has gone */
	int kick;                          /* see kernel_wait.c; -1 */
	uint64_t kick_until_ns;
	struct epoll_pending pending;
	_Atomic uint32_t n_pending;
	_Atomic uint32_t n_os;    /* members of E, at least, and sets */
	_Atomic bool drive_first; /* a member was told without events: its ring has not been looked at */
	struct iomux_os_polled os_polled;
	struct vma_spin spin;
	struct vma_stats_iomux *_Atomic stats; /* NULL: the set is not waited for yet; stored once, under the lock */
	struct vma_engine *engine;             /* whose they are */
	unsigned os_told;                      /* under the lock: by the call that collects */

	struct epoll_item *chunk[EPOLL_CHUNKS];
	uint32_t n_items; /* places used so far */
	uint32_t n_linked;
	struct epoll_item **bucket;
	uint32_t n_buckets;

	pthread_mutex_t leaf; /* rings and free places; nothing is called under it that takes a lock */
	struct epoll_item *free;
	uint32_t ring_users[64], acceptors[64];
	_Atomic uint64_t rings, accept_rings; /* accept_rings: where a member polled for EPOLLIN listens */
};
static inline struct epoll_set *epoll_set_of_file(struct vma_file *file)
{
	return (struct epoll_set *)file;
}
static inline bool epoll_set_has_pending_events(struct epoll_set *set)
{
	return atomic_load_explicit(&set->n_pending, memory_order_relaxed) != 0 || !ready_list_is_empty(&set->ready);
}

/* With the lock: from now on the set's calls are counted. */
void epoll_set_begin_stats(struct epoll_set *set) __attribute__((cold));
/* set.c. Gives the lock back, and wakes one more sleeper if something is left. */
void epoll_set_unlock_and_wake_waiter(struct epoll_set *set);
/* E is epfd's. NULL: no memory or descriptors. Not yet in the descriptor table. */
struct epoll_set *epoll_set_create_around_epfd(int epfd);
void epoll_set_recreate_inner_epfd(struct epoll_set *set);
/* The set behind epfd, or NULL. Inside. */
struct epoll_set *epoll_set_find(int epfd);

/* item.c. With set->lock, but for the last two. */
struct epoll_item *epoll_item_find(struct epoll_set *set, const struct vma_file *file, int fd);
struct epoll_item *epoll_item_of_key(struct epoll_set *set, uint64_t key);
uint64_t epoll_item_key(const struct epoll_item *item);
/* There must be none of the file and number. Takes a place, a reference to the file, and watches it: -ENOMEM, -EBADF.
 */
int epoll_item_add(struct epoll_set *set, struct vma_file *file, int fd, struct epoll_item **out);
void epoll_item_remove(struct epoll_set *set, struct epoll_item *item);
/* As remove, for an item without shadow in S; epoll_item_add of the same file and number finds it again. */
void epoll_item_keep_after_delete(struct epoll_set *set, struct epoll_item *item);
void epoll_item_rehash(struct epoll_set *set);
void epoll_item_enqueue(struct epoll_set *set, struct epoll_item *item, bool first);
void epoll_item_dequeue(struct epoll_set *set, struct epoll_item *item);
void epoll_item_set_events(struct epoll_item *item, uint32_t events, uint64_t data);
struct epoll_item *epoll_item_at(const struct epoll_set *set, uint32_t index);
void epoll_item_free_if_ended(struct epoll_set *set, struct epoll_item *item);
void epoll_item_update_rings_and_notify(struct epoll_item *item);
void epoll_item_mark_outer_set_stale(struct vma_watcher *watcher);

/* ctl.c: S, with set->lock. The member's shadow enters, changes, leaves. */
int epoll_update_item_in_kernel_shadow_set(struct epoll_set *set, int op, struct epoll_item *item);
/* A registration that E has held as one of the OS's becomes an item. */
int epoll_ctl_move_fd_from_kernel_to_set(struct epoll_set *set, int epfd, struct vma_file *file, int fd,
                                         struct epoll_event *event);

/* collect.c. With set->lock. Events told, 0, or -EFAULT. */
enum epoll_os_poll {
	/* S, and by it E, only in its turn, beside something of ours: the caller goes on to wait. */
	EPOLL_OS_POLL_IF_READY,
	EPOLL_OS_POLL_IF_DUE, /* the caller does not wait */
	EPOLL_OS_POLL_ALWAYS
};
int epoll_collect(struct epoll_set *set, int epfd, struct epoll_event *events, int max, enum epoll_os_poll ask,
                  const struct iomux_policy *policy);
uint32_t epoll_set_poll(struct vma_file *file);

/* adopt.c: the set behind epfd becomes ours, with what the kernel knows of it: -errno. Inside. */
int epoll_set_find_or_adopt(int epfd, struct epoll_set **out);

/* kernel_wait.c: threads that wait in the kernel for a set that has become ours. Inside. */
void epoll_wake_kernel_waiters(struct epoll_set *set, int epfd);
/* With set->lock: drops the kick from n events; ends it when nobody is left to be kicked. */
int epoll_drop_and_clear_wakeup_fd(struct epoll_set *set, int epfd, struct epoll_event *events, int n);

#endif
