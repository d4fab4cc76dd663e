/*
 * thread - the calling thread's cache, the end of a thread, the child of a fork, and the heavy half of the asymmetric
 * barrier.
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "bufpool_priv.h"

#define THREAD_UNCACHED UINT32_MAX /* all indices taken, or the thread is ending: no cache */

__thread uint32_t bufpool_thread_index __attribute__((tls_model("initial-exec")));
bool bufpool_without_membarrier = true;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int thread_caches_init_rc;
static pthread_key_t thread_exit_tls_key;
static _Atomic uint64_t thread_index_bitmap[THREADS_MAX / 64];

/*
 * Arenas that a thread's end has to visit. Recursive: flushing may end a retired pool, whose `drained` may destroy its
 * arena. Control path only: creating and destroying arenas, the end of a thread, fork.
 */
static pthread_mutex_t registry_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct vma_bufarena *registry[ARENAS_MAX];

static bool membarrier_register(void)
{
#ifdef VMA_TSAN
	return false; /* which does not know it; the symmetric form is C11 throughout */
#else
	return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
#endif
}

/*
 * After this, for every other thread of the process: either all it did before some point in its program is visible
 * here, or all it does after that point sees what was written here before. With the light half (a compiler barrier
 * between a store and a load of the owner, bufpool_cache_acquire and _leave) this is Dekker's pattern with the whole
 * price on the visitor's side. In the symmetric form both sides use seq_cst accesses and there is nothing to do.
 */
void bufpool_heavy_barrier(void)
{
	if (bufpool_without_membarrier)
		return;
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
		vma_log_once(VMA_LOG_PANIC, "bufpool: membarrier failed after it was registered (errno %d)", errno);
}

static void bufpool_flush_thread_caches_at_thread_exit(void *arg)
{
	uint32_t index = bufpool_thread_index - 1;

	(void)arg;
	if (index >= THREADS_MAX)
		return;
	pthread_mutex_lock(&registry_lock);
	for (unsigned i = 0; i < ARENAS_MAX; i++)
		if (registry[i] != NULL)
			vma_bufpool_flush_thread(registry[i]);
	pthread_mutex_unlock(&registry_lock);
	/* Destructors that run later may still put buffers; they do without a cache, which nobody would flush again. */
	bufpool_thread_index = THREAD_UNCACHED;
	atomic_fetch_and_explicit(&thread_index_bitmap[index / 64], ~((uint64_t)1 << (index % 64)),
	                          memory_order_release);
}

uint32_t bufpool_thread_register(void)
{
	for (uint32_t w = 0; w < THREADS_MAX / 64; w++) {
		uint64_t used = atomic_load_explicit(&thread_index_bitmap[w], memory_order_relaxed);

		while (~used != 0) {
			uint32_t bit = (uint32_t)__builtin_ctzll(~used);
			/* acquire: the caches of this index were last used by a thread that is gone */
			if (atomic_compare_exchange_weak_explicit(&thread_index_bitmap[w], &used,
			                                          used | (uint64_t)1 << bit, memory_order_acquire,
			                                          memory_order_relaxed)) {
				bufpool_thread_index = w * 64 + bit + 1;
				pthread_setspecific(thread_exit_tls_key, &bufpool_thread_index);
				return bufpool_thread_index;
			}
		}
	}
	bufpool_thread_index = THREAD_UNCACHED;
	return bufpool_thread_index;
}

static void bufpool_lock_registry_before_fork(void)
{
	pthread_mutex_lock(&registry_lock);
}

static void bufpool_unlock_registry_in_fork_parent(void)
{
	pthread_mutex_unlock(&registry_lock);
}

/*
 * In the child only the forking thread lives. What other threads' caches held at that moment is lost to it (or
 * reclaimed, if they were not just at work); flags that they held stay taken, which costs speed and nothing else.
 */
static __attribute__((cold)) void bufpool_reset_after_fork_in_child(void)
{
	/* Held by the parent's thread of another id, which glibc does not let a child unlock. */
	registry_lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	if (!bufpool_without_membarrier && !membarrier_register())
		bufpool_without_membarrier = true; /* safe: one thread */
}

static void thread_caches_init(void)
{
	bufpool_without_membarrier = !membarrier_register();
	thread_caches_init_rc = -pthread_key_create(&thread_exit_tls_key, bufpool_flush_thread_caches_at_thread_exit);
	if (thread_caches_init_rc == 0)
		thread_caches_init_rc =
		        -pthread_atfork(bufpool_lock_registry_before_fork, bufpool_unlock_registry_in_fork_parent,
		                        bufpool_reset_after_fork_in_child);
}

int bufpool_thread_caches_init_once(void)
{
	pthread_once(&once, thread_caches_init);
	return thread_caches_init_rc;
}

int bufpool_register_arena(struct vma_bufarena *arena)
{
	int rc = -ENOSPC;

	pthread_mutex_lock(&registry_lock);
	for (unsigned i = 0; rc != 0 && i < ARENAS_MAX; i++) {
		if (registry[i] == NULL) {
			registry[i] = arena;
			rc = 0;
		}
	}
	pthread_mutex_unlock(&registry_lock);
	return rc;
}

void bufpool_unregister_arena(struct vma_bufarena *arena)
{
	pthread_mutex_lock(&registry_lock);
	for (unsigned i = 0; i < ARENAS_MAX; i++)
		if (registry[i] == arena)
			registry[i] = NULL;
	pthread_mutex_unlock(&registry_lock);
}
