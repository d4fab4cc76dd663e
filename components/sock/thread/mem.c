/*
 * mem - control objects: jemalloc with an arena of our own, beside the application's malloc.
 *
 * A signal handler that calls the library may interrupt the application's malloc. Ours is only called inside, where
 * handlers do not run. A sanitizer's build uses libc's, or the sanitizer would see nothing.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <vma/sock_thread.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#define LINE 64

#ifdef SANITIZED
void *vma_alloc_bytes(size_t size)
{
	return aligned_alloc(LINE, (size + LINE - 1) / LINE * LINE);
}

void *vma_alloc(size_t size)
{
	void *memory = vma_alloc_bytes(size);

	return memory == NULL ? NULL : memset(memory, 0, size);
}

void vma_free(void *memory)
{
	free(memory);
}
#else
void *vma_je_mallocx(size_t size, int flags);
void vma_je_dallocx(void *memory, int flags);
/* Read by jemalloc at its start: few arenas, and what is unused goes back to the kernel soon. */
extern const char *vma_je_malloc_conf;
const char *vma_je_malloc_conf = "narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0,tcache_max:4096";

#define LOG2_LINE 6
#define ZERO 0x40 /* MALLOCX_ZERO */

/*
 * Held for reading by who is inside jemalloc, and for writing by fork. So at a fork no thread has one of jemalloc's own
 * locks or is in the middle of a change, and the child may use what it finds: jemalloc's handlers, which write to every
 * page that has a lock of its own, in parent and child, are left out (mk/sources.mk).
 *
 * Argument: every way into jemalloc goes through here. These are the calls below, and the end of a thread
 * (vma_je_key_create); it has no thread of its own (background_thread is off). What it keeps for a thread lies in its
 * own memory, not in the thread's, so what belonged to the parent's other threads stays valid in the child, unused.
 * The lock is the innermost one: nothing is called from inside jemalloc that takes another of ours.
 */
static pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static void (*jemalloc_tsd_destructor)(void *);

static void mem_before_fork(void)
{
	pthread_rwlock_wrlock(&gate);
}

static void mem_after_fork_parent(void)
{
	pthread_rwlock_unlock(&gate);
}

/* Who waited at the gate is not in the child. */
static __attribute__((cold)) void mem_after_fork_child(void)
{
	gate = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
}

static void mem_thread_ended(void *arg)
{
	pthread_rwlock_rdlock(&gate);
	jemalloc_tsd_destructor(arg);
	pthread_rwlock_unlock(&gate);
}

static pthread_once_t mem_atfork_once = PTHREAD_ONCE_INIT;
static bool mem_has_atfork_handlers;

static void mem_register_atfork(void)
{
	mem_has_atfork_handlers = pthread_atfork(mem_before_fork, mem_after_fork_parent, mem_after_fork_child) == 0;
}

/*
 * When the library is loaded, and not when jemalloc starts: that is the first call here, during which another thread
 * may fork. A constructor of another library may call before this one has run.
 */
static __attribute__((constructor)) void mem_register_atfork_on_load(void)
{
	pthread_once(&mem_atfork_once, mem_register_atfork);
}

/* What jemalloc calls for pthread_key_create, once, when it starts. */
int vma_je_key_create(pthread_key_t *key, void (*end)(void *));
int vma_je_key_create(pthread_key_t *key, void (*end)(void *))
{
	jemalloc_tsd_destructor = end;
	return pthread_key_create(key, mem_thread_ended);
}

static void *mem_allocate(size_t size, int flags)
{
	void *memory;

	pthread_once(&mem_atfork_once, mem_register_atfork);
	if (!mem_has_atfork_handlers)
		return NULL;
	pthread_rwlock_rdlock(&gate);
	memory = vma_je_mallocx(size == 0 ? 1 : size, flags);
	pthread_rwlock_unlock(&gate);
	return memory;
}

void *vma_alloc(size_t size)
{
	return mem_allocate(size, LOG2_LINE | ZERO);
}

void *vma_alloc_bytes(size_t size)
{
	return mem_allocate(size, LOG2_LINE);
}

void vma_free(void *memory)
{
	if (memory == NULL)
		return;
	pthread_rwlock_rdlock(&gate);
	vma_je_dallocx(memory, 0);
	pthread_rwlock_unlock(&gate);
}
#endif
