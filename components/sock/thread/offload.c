/*
 * offload - threads of which the program has said whether their sockets are offloaded (thread_offload).
 *
 * A thread is known by its name (pthread_t). When it ends, its setting ends with it. A name is kept with the kernel's
 * number of its thread, and counts no more if the thread of that name has another number.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "thread.h"

enum { OFFLOAD_SETTINGS_MAX = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct said {
	pthread_t thread;
	pid_t tid; /* 0: its own first socket tells */
	bool offload;
} * said;
static unsigned thread_offload_settings_n;
static _Atomic bool any;

/* 0: the thread has not called in yet. */
static pid_t tid_of_pthread(pthread_t thread)
{
	const unsigned count = vma_thread_table_size();

	if (pthread_equal(thread, pthread_self()))
		return (pid_t)syscall(SYS_gettid);
	for (unsigned i = 0; i < count; i++) {
		const struct vma_thread *other = vma_thread_at(i);

		if (other != NULL && pthread_equal(other->posix, thread))
			return (pid_t)atomic_load_explicit(&other->tid, memory_order_relaxed);
	}
	return 0;
}

/* With the lock. Its place, or a new one, or that of a thread that has ended. */
static struct said *thread_offload_setting_slot(pthread_t thread)
{
	const pid_t process = (pid_t)syscall(SYS_getpid);

	for (unsigned i = 0; i < thread_offload_settings_n; i++)
		if (pthread_equal(said[i].thread, thread))
			return &said[i];
	for (unsigned i = 0; i < thread_offload_settings_n; i++)
		if (said[i].tid != 0 && syscall(SYS_tgkill, process, said[i].tid, 0) != 0 && errno == ESRCH)
			return &said[i];
	return thread_offload_settings_n < OFFLOAD_SETTINGS_MAX ? &said[thread_offload_settings_n++] : NULL;
}

int vma_thread_set_offload(pthread_t thread, bool offload)
{
	const pid_t tid = tid_of_pthread(thread);
	struct said *place = NULL;
	int rc = -pthread_kill(thread, 0);

	if (rc != 0)
		return rc;
	pthread_mutex_lock(&lock);
	if (said == NULL)
		said = vma_alloc(OFFLOAD_SETTINGS_MAX * sizeof(*said));
	if (said != NULL)
		place = thread_offload_setting_slot(thread);
	if (place != NULL)
		*place = (struct said){.thread = thread, .tid = tid, .offload = offload};
	atomic_store(&any, thread_offload_settings_n != 0);
	pthread_mutex_unlock(&lock);
	return place != NULL ? 0 : -ENOMEM;
}

bool vma_thread_offloads(bool otherwise)
{
	bool offloads = otherwise;
	pid_t tid;

	if (!atomic_load_explicit(&any, memory_order_relaxed))
		return otherwise;
	tid = (pid_t)syscall(SYS_gettid);
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < thread_offload_settings_n; i++) {
		if (!pthread_equal(said[i].thread, pthread_self()))
			continue;
		if (said[i].tid == 0)
			said[i].tid = tid;
		if (said[i].tid == tid)
			offloads = said[i].offload;
	}
	pthread_mutex_unlock(&lock);
	return offloads;
}

/* The child's only thread keeps what was said of it: by its name, as its number is another one. */
__attribute__((cold)) void thread_offload_keep_own_in_forked_child(void)
{
	pthread_mutex_init(&lock, NULL);
	for (unsigned i = 0; i < thread_offload_settings_n; i++)
		said[i].tid = pthread_equal(said[i].thread, pthread_self()) ? (pid_t)syscall(SYS_gettid) : -1;
}
