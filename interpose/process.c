/* process - fork, copies of the process that were not announced, and children that borrow its memory. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/inet_xtreme.h>
#include <vma/sock_callback.h>
#include <vma/sock_engine.h>
#include <vma/stream.h>
#include <vma/udp.h>

#include "more.h"
#include "process.h"

_Atomic(_Atomic char *) process_mark;
static _Atomic pid_t process_started_pid;

/* getpid() of the C library is no cache any more, but it may be interposed. */
static pid_t current_pid(void)
{
	return (pid_t)syscall(SYS_getpid);
}

static void mark_process_as_library_owner(void)
{
	_Atomic char *mark = atomic_load_explicit(&process_mark, memory_order_relaxed);

	atomic_store_explicit(&process_started_pid, current_pid(), memory_order_relaxed);
	if (mark != NULL)
		atomic_store_explicit(mark, 1, memory_order_release);
}

bool library_is_started_in_process(void)
{
	return atomic_load_explicit(&process_started_pid, memory_order_relaxed) != 0;
}

/*
 * The C library runs the handlers of two threads that fork at the same time beside each other. What the first is about
 * to note of a file the second would take for noted, and its child for told. No handler of a signal, which may fork as
 * well, interrupts who has the lock.
 */
static pthread_mutex_t fork_prepare_lock = PTHREAD_MUTEX_INITIALIZER;

void process_before_fork(void)
{
	struct vma_thread *self = vma_thread_self();
	sigset_t all, before;

	vma_callbacks_pause(self); /* the application's function may fork, too, or wait for another thread */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	pthread_mutex_lock(&fork_prepare_lock);
	vma_udp_fork_prepare();
	vma_stream_fork_prepare();
	pthread_mutex_unlock(&fork_prepare_lock);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	vma_engine_fork_prepare();
}

static void process_resume_callbacks_after_fork(void)
{
	if (vma_thread_cache != NULL)
		vma_callbacks_resume(vma_thread_cache);
}

void process_after_fork_in_parent(void)
{
	vma_engine_after_fork_in_parent();
	process_resume_callbacks_after_fork();
}

__attribute__((cold)) void process_after_fork_in_child(void)
{
	pthread_mutex_init(&fork_prepare_lock, NULL); /* perhaps held by a thread of the parent */
	vma_engine_reset_in_fork_child();
	vma_stream_reset_in_fork_child();
	vma_udp_fork_child();
	vma_xtreme_drop_tables_in_fork_child();
	process_resume_callbacks_after_fork();
	mark_process_as_library_owner();
}

/*
 * Registered as late as the first socket of ours, so after the handlers of the allocator: ours run while it still
 * works. vma_alloc makes sure that it has registered them.
 */
static void process_register_fork_handlers_once(void)
{
	void *page =
	        mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	libc_functions_get(); /* not looked up in a vfork child */
	vma_free(vma_alloc(1));
	pthread_atfork(process_before_fork, process_after_fork_in_parent, process_after_fork_in_child);
	if (page != MAP_FAILED && madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) != 0) {
		munmap(page, (size_t)sysconf(_SC_PAGESIZE));
		page = MAP_FAILED;
	}
	atomic_store_explicit(&process_started_pid, current_pid(), memory_order_relaxed);
	if (page == MAP_FAILED)
		return; /* copies without a word go unnoticed, fork and vfork do not */
	*(_Atomic char *)page = 1;
	atomic_store_explicit(&process_mark, page, memory_order_release);
}

void process_start_library_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, process_register_fork_handlers_once);
}

/* The only thread of a copy. The parent's other threads may have held the engine's locks: its child half forgets them.
 */
void process_after_copying_clone(void)
{
	process_after_fork_in_child();
}

bool process_is_vfork_child(void)
{
	pid_t pid = atomic_load_explicit(&process_started_pid, memory_order_relaxed);

	process_check_for_raw_clone_child();
	return pid != 0 && atomic_load_explicit(&process_started_pid, memory_order_relaxed) != current_pid();
}
