/*
 * fork - a child after fork has nothing of its parent's nics.
 *
 * There are two safeguards. The kernel wipes a page in every child (MADV_WIPEONFORK), even after a raw clone. By it the
 * hot path and every control call see that they are in a child, and return at once. And after fork() the child closes
 * what it inherited, so a dead parent's descriptors do not live on in it. Rings and packet memory are MADV_DONTFORK.
 *
 * A nic's lock is held while its device is asked, and a device may not answer for long, or ever. So a fork waits
 * LOCKS_MS at most, for all locks together, and for a lock that it did not get no later fork waits until one has had it.
 * A thread that forks in a signal handler may hold such a lock itself. Then it does not wait. The child of a fork without
 * a lock does not read that nic's lists, and keeps its descriptors until it ends or executes a program: all of them are
 * close-on-exec.
 */
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "fork.h"
#include "os.h"

#ifndef LOCKS_MS /* a test has another */
#define LOCKS_MS 5000
#endif
#define LOCK_SLICE_MS 100 /* by CLOCK_REALTIME, which may be set meanwhile */

static pthread_mutex_t registry_lock = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static struct nic_fork_entry *registry;
static bool registry_is_locked; /* by a fork; none of a signal handler in the middle of a registration */
static _Atomic(_Atomic uint32_t *) fork_guard;
static bool fork_guard_is_wipeonfork; /* by the kernel, in a child */
static bool hooked;

static int mutex_lock_within_slice(pthread_mutex_t *lock)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += LOCK_SLICE_MS * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	return pthread_mutex_timedlock(lock, &until);
}

static void forked_lock_until(struct nic_fork_entry *forked, uint64_t until_ms)
{
	int rc = pthread_mutex_trylock(forked->lock);

	while (rc != 0 && rc != EDEADLK && !forked->is_stuck && os_now_ms() < until_ms)
		rc = mutex_lock_within_slice(forked->lock);
	forked->is_locked = rc == 0;
	forked->is_stuck = rc != 0 && rc != EDEADLK;
}

/* Every lock, so that the child finds whole lists. Order: the registry's before any nic's. */
static void nic_lock_registry_before_fork(void)
{
	const int saved = errno;
	uint64_t until_ms;

	registry_is_locked = pthread_mutex_lock(&registry_lock) == 0;
	if (!registry_is_locked)
		return;
	until_ms = registry != NULL ? os_now_ms() + LOCKS_MS : 0;
	for (struct nic_fork_entry *forked = registry; forked != NULL; forked = forked->next)
		forked_lock_until(forked, until_ms);
	errno = saved;
}

static void nic_unlock_after_fork_in_parent(void)
{
	bool has_missed = false;

	if (!registry_is_locked)
		return;
	for (struct nic_fork_entry *forked = registry; forked != NULL; forked = forked->next) {
		if (forked->is_locked)
			pthread_mutex_unlock(forked->lock);
		forked->is_locked = false;
		has_missed |= forked->is_stuck;
	}
	pthread_mutex_unlock(&registry_lock);
	if (has_missed)
		vma_log_once(VMA_LOG_WARN,
		             "nic: a device has not answered for %d s: a forked child has its "
		             "descriptors",
		             LOCKS_MS / 1000);
}

static __attribute__((cold)) void nic_give_up_all_in_fork_child(void)
{
	for (struct nic_fork_entry *forked = registry; forked != NULL; forked = forked->next)
		if (forked->is_locked)
			forked->give_up(forked);
	registry = NULL;
	if (fork_guard != NULL && !fork_guard_is_wipeonfork)
		atomic_store_explicit(fork_guard, 0, memory_order_relaxed);
	fork_guard = NULL; /* what the child opens itself gets a page of its own */
	registry_lock = (pthread_mutex_t)
	        PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP; /* without a call, which each child would bind anew */
}

/*
 * Before anybody else's, whoever opens a nic when: prepare handlers run from the last registered to the first, and who
 * calls us with locks of his own held takes those first in fork(), too.
 */
static __attribute__((constructor(101))) void register_fork_handlers(void)
{
	hooked = pthread_atfork(nic_lock_registry_before_fork, nic_unlock_after_fork_in_parent,
	                        nic_give_up_all_in_fork_child) == 0;
}

/* A copy that nobody announced (raw clone) opens a nic: its first thread does now what its fork would have done. */
static void give_up_nics_if_raw_clone_child(void)
{
	if (fork_guard == NULL || atomic_load_explicit(fork_guard, memory_order_relaxed) != 0)
		return;
	for (struct nic_fork_entry *forked = registry; forked != NULL; forked = forked->next)
		forked->is_locked = true; /* no more than a guess: nobody has waited for a lock */
	nic_give_up_all_in_fork_child();
}

const _Atomic uint32_t *nic_get_fork_detection_page(void)
{
	const _Atomic uint32_t *page;

	give_up_nics_if_raw_clone_child();
	pthread_mutex_lock(&registry_lock);
	if (fork_guard == NULL && hooked) {
		const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
		void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (map != MAP_FAILED) {
			fork_guard_is_wipeonfork = madvise(map, bytes, MADV_WIPEONFORK) == 0;
			fork_guard = map;
			atomic_store_explicit(fork_guard, 1, memory_order_relaxed);
		}
	}
	page = fork_guard;
	pthread_mutex_unlock(&registry_lock);
	return page;
}

void nic_fork_lock_init(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(lock, &attr);
	pthread_mutexattr_destroy(&attr);
}

void nic_fork_register(struct nic_fork_entry *forked)
{
	pthread_mutex_lock(&registry_lock);
	forked->next = registry;
	registry = forked;
	pthread_mutex_unlock(&registry_lock);
}

void nic_fork_unregister(struct nic_fork_entry *forked)
{
	struct nic_fork_entry **place = &registry;

	pthread_mutex_lock(&registry_lock);
	while (*place != NULL && *place != forked)
		place = &(*place)->next;
	if (*place != NULL)
		*place = forked->next;
	pthread_mutex_unlock(&registry_lock);
}
