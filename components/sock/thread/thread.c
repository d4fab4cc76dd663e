/*
 * thread - the table of threads, and the memory that waits until none of them can see it.
 *
 * A structure belongs to a thread from its first call to its end, and then to the next new one; it is never freed. So a
 * thread may hold a stale pointer to one, from a wait queue for example. At worst it wakes a thread that has nothing to
 * do with it.
 */
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock.h>
#include <vma/sock_callback.h>
#include <vma/sock_os.h>

#include "thread.h"

#define THREADS_MAX 65536 /* at a time; pages of the table that are not used cost nothing */

__thread struct vma_thread *vma_thread_cache;
#ifdef VMA_TSAN
char vma_tsan_inside;
#endif

static struct vma_thread *_Atomic table[THREADS_MAX] __attribute__((section(".bss.far")));
static _Atomic unsigned thread_table_used;
static pthread_mutex_t thread_table_lock =
        PTHREAD_MUTEX_INITIALIZER; /* taken inside, or before the thread is anything */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static ck_epoch_t epoch;
/*
 * What was retired waits on a record of its own, which is in no section: any thread may put something there, under the
 * lock, and the record of a thread that has ended holds nothing back.
 */
static ck_epoch_record_t retired_record;
static pthread_mutex_t retired_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned retired_left_by_last_poll; /* by the last poll, which found somebody inside */
bool vma_epoch_sections_need_no_fence;

/* False: the kernel has none, or is not to be asked; ThreadSanitizer does not know it. */
static bool membarrier_register_private(void)
{
#ifdef VMA_TSAN
	return false;
#else
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
#endif
}

__attribute__((cold, noinline)) void vma_leave_to_block(void)
{
	vma_leave(vma_thread_self());
}

/* The thread ends. A later destructor of the application that calls us makes it a thread again, with this run anew. */
static void thread_on_exit(void *arg)
{
	struct vma_thread *self = arg;

	vma_enter();
	vma_wait_clean_up_abandoned(self);
	while (self->inside > 0) /* this, and when cancelled inside, in a cancellation point of the C library's */
		vma_leave(self);
	vma_thread_cache = NULL;
	thread_core_release(self);
	atomic_store_explicit(&self->state, VMA_THREAD_AWAKE, memory_order_relaxed);
	atomic_store_explicit(&self->tid, 0, memory_order_release);
}

static void threads_init_epoch_and_exit_key(void)
{
	ck_epoch_init(&epoch);
	ck_epoch_register(&epoch, &retired_record, NULL);
	vma_epoch_sections_need_no_fence = membarrier_register_private(); /* no thread has begun one before this */
	if (pthread_key_create(&key, thread_on_exit) != 0)
		vma_log_once(VMA_LOG_WARN, "no thread-specific key is left: what ended threads used is not used again");
}

static struct vma_thread *thread_claim_free_entry(uint32_t tid)
{
	unsigned used = atomic_load_explicit(&thread_table_used, memory_order_acquire);

	for (unsigned i = 0; i < used; i++) {
		struct vma_thread *thread = atomic_load_explicit(&table[i], memory_order_acquire);
		uint32_t free_tid = 0;

		if (atomic_compare_exchange_strong(&thread->tid, &free_tid, tid))
			return thread;
	}
	return NULL;
}

static struct vma_thread *thread_state_create_and_register(uint32_t tid)
{
	struct vma_thread *thread = vma_alloc(sizeof(*thread));
	unsigned index;

	pthread_mutex_lock(&thread_table_lock);
	index = atomic_load_explicit(&thread_table_used, memory_order_relaxed);
	if (thread == NULL || index == THREADS_MAX) {
		vma_log_panic("no memory for a thread's state, or %u threads", index);
		abort(); /* there is no call through which this could be told */
	}
	thread->index = index;
	atomic_store_explicit(&thread->wake_fd, -1, memory_order_relaxed);
	atomic_store_explicit(&thread->tid, tid, memory_order_relaxed);
	ck_epoch_register(&epoch, &thread->epoch, NULL);
	atomic_store_explicit(&table[index], thread, memory_order_release);
	atomic_store_explicit(&thread_table_used, index + 1, memory_order_release);
	pthread_mutex_unlock(&thread_table_lock);
	return thread;
}

/* A handler that ran in the middle would make a second structure: signals wait, as they do inside. */
struct vma_thread *vma_thread_self_slow(void)
{
	uint32_t tid = (uint32_t)syscall(SYS_gettid);
	struct vma_thread *self;
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	self = vma_thread_cache;
	if (self == NULL) {
		pthread_once(&once, threads_init_epoch_and_exit_key);
		self = thread_claim_free_entry(tid);
		if (self == NULL)
			self = thread_state_create_and_register(tid);
		self->inside = 0;
		self->copying = false;
		self->held = 0;
		self->in_callback = NULL;
		self->tx_ring = NULL;
		self->tx_burst = self->tx_batched = self->tx_batch = 0;
		self->wakeup_unused = self->gathers = self->tx_short_lived = false;
		self->woke = NULL;
		self->busy_polls = self->accept_rings = 0;
		self->readable = NULL;
		self->sleeps = 0;
		self->overdue_rings = 0;
		self->is_internal = false;
		self->bound_core = 0;
		self->posix = pthread_self();
		pthread_setspecific(key, self);
		vma_thread_cache = self;
		vma_callbacks_mark_new_thread(self);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return self;
}

unsigned vma_thread_table_size(void)
{
	return atomic_load_explicit(&thread_table_used, memory_order_acquire);
}

struct vma_thread *vma_thread_at(unsigned index)
{
	struct vma_thread *thread = atomic_load_explicit(&table[index], memory_order_acquire);

	return atomic_load_explicit(&thread->tid, memory_order_acquire) == 0 ? NULL : thread;
}

/*
 * What a thread of the parent's was in the middle of. Written only where it differs: each page that a child writes to
 * is copied. Its section of ck_epoch ends; the list of records and the epoch are whole at any time, and stay.
 */
static void thread_state_reset_in_forked_child(struct vma_thread *thread)
{
	int fd = atomic_load(&thread->wake_fd);

	if (fd >= 0) {
		atomic_store(&thread->wake_fd, -1);
		vma_fd_unguard_close(fd); /* our copy of the parent's */
	}
	if (atomic_load(&thread->state) != VMA_THREAD_AWAKE)
		atomic_store(&thread->state, VMA_THREAD_AWAKE);
	if (atomic_load(&thread->rings) != 0)
		atomic_store(&thread->rings, 0);
	if (thread->spinning || thread->accept_rings != 0 || thread->busy_polls != 0 || thread->woke != NULL) {
		thread->spinning = false;
		thread->accept_rings = thread->busy_polls = 0;
		thread->woke = NULL;
	}
	if (thread->tx_ring != NULL || thread->tx_batched != 0) {
		thread->tx_ring = NULL;
		thread->tx_batched = 0;
	}
}

static void thread_state_forget_in_forked_child(struct vma_thread *thread)
{
	thread_state_reset_in_forked_child(thread);
	if (thread->inside != 0)
		thread->inside = 0;
	if (thread->epoch.active != 0)
		thread->epoch.active = 0;
	if (atomic_load(&thread->tid) != 0)
		atomic_store(&thread->tid, 0);
}

/* What waited there is lost to the child: its end may touch what is the parent's. */
static void retired_list_drop_in_forked_child(void)
{
	bool empty = retired_record.n_pending == 0;

	for (unsigned i = 0; i < CK_EPOCH_LENGTH; i++)
		empty = empty && CK_STACK_ISEMPTY(&retired_record.pending[i]);
	if (empty)
		return;
	retired_record.n_pending = 0;
	atomic_store_explicit(&retired_left_by_last_poll, 0, memory_order_relaxed);
	for (unsigned i = 0; i < CK_EPOCH_LENGTH; i++)
		ck_stack_init(&retired_record.pending[i]);
}

__attribute__((cold)) void vma_threads_reset_in_forked_child(void)
{
	struct vma_thread *self = vma_thread_cache;
	unsigned used = atomic_load(&thread_table_used);

	pthread_mutex_init(&thread_table_lock, NULL);
	pthread_mutex_init(&retired_lock, NULL);
	vma_signals_reinit_lock_in_forked_child();
	vma_callbacks_reset_in_forked_child();
	vma_wait_reset_in_fork_child();
	thread_cores_unbind_in_forked_child(self);
	thread_offload_keep_own_in_forked_child();
	if (used == 0)
		return;
	vma_epoch_sections_need_no_fence = vma_epoch_sections_need_no_fence && membarrier_register_private();
	retired_list_drop_in_forked_child();
	for (unsigned i = 0; i < used; i++) {
		struct vma_thread *thread = atomic_load(&table[i]);

		if (thread != self)
			thread_state_forget_in_forked_child(thread);
	}
	if (self != NULL) {
		thread_state_reset_in_forked_child(self);
		atomic_store(&self->tid, (uint32_t)syscall(SYS_gettid));
	}
}

/* ---- retired memory ---- */

static void retired_object_call_end(ck_epoch_entry_t *entry)
{
	struct vma_retired *retired = (struct vma_retired *)entry; /* its first member */

	retired->end(retired);
}
_Static_assert(offsetof(struct vma_retired, entry) == 0, "an entry is its retired object");

void vma_defer_free_until_no_readers(struct vma_retired *retired, void (*end)(struct vma_retired *retired))
{
	struct vma_thread *self = vma_enter();

	retired->end = end;
	/* The unlinking store of the caller comes before the epoch that the entry is put under is read. */
#ifndef VMA_TSAN /* which does not know fences, and has the lock */
	atomic_thread_fence(memory_order_seq_cst);
#endif
	pthread_mutex_lock(&retired_lock);
	ck_epoch_call(&retired_record, &retired->entry, retired_object_call_end);
	pthread_mutex_unlock(&retired_lock);
	vma_leave(self);
}

/*
 * The heavy half of what vma_epoch_section_begin leaves out. After it, for each other thread: all that it did before
 * some point of its program is visible here, and all that it does after that point sees what was written before here.
 *
 * Argument: what may end by this poll was unlinked before it was retired, and retired before the lock was taken. A
 * thread that has found it before that point began its section before it, too, so that is seen as if it had made ck's
 * own barrier. One that comes to look for it after that point, seen or not, does not find it any more. Of one whose
 * point lies between its two stores, `active` is seen with the epoch of its last section: if that is the present one,
 * so is that of this section, since epochs only grow; if not, it holds this poll back for nothing.
 *
 * False: nothing may end now.
 */
static bool retire_membarrier_other_threads(void)
{
	return !vma_epoch_sections_need_no_fence ||
	       syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

/*
 * The barrier costs a system call. A caller that opens or closes sockets one after the other pays for it once for
 * RETIRED_POLL_MIN that were retired since the last poll: the internal thread ends the rest at its next turn. The look
 * is without the lock; what it misses is counted by the next one.
 */
enum { RETIRED_POLL_MIN = 32 };

void vma_run_deferred_frees_if_many(void)
{
	const unsigned left = atomic_load_explicit(&retired_left_by_last_poll, memory_order_relaxed);

	if (ck_pr_load_uint(&retired_record.n_pending) >= left + RETIRED_POLL_MIN)
		vma_run_due_deferred_frees();
}

/* The ends run after the lock is given back: they may retire more. */
void vma_run_due_deferred_frees(void)
{
	struct vma_thread *self = vma_enter();
	ck_stack_entry_t *entry, *next;
	ck_stack_t due;

	ck_stack_init(&due);
	pthread_mutex_lock(&retired_lock);
	if (retired_record.n_pending != 0 && retire_membarrier_other_threads())
		ck_epoch_poll_deferred(&retired_record, &due);
	atomic_store_explicit(&retired_left_by_last_poll, retired_record.n_pending, memory_order_relaxed);
	pthread_mutex_unlock(&retired_lock);
	__tsan_acquire(&vma_tsan_inside);
	for (entry = CK_STACK_FIRST(&due); entry != NULL; entry = next) {
		ck_epoch_entry_t *ended = (ck_epoch_entry_t *)((char *)entry - offsetof(ck_epoch_entry_t, stack_entry));

		next = CK_STACK_NEXT(entry);
		ended->function(ended);
	}
	vma_leave(self);
}
