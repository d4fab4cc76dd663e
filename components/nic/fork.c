/*
 * fork - a child after fork has nothing of its parent's nics.
 *
 * There are two safeguards. The kernel wipes a page in every child (MADV_WIPEONFORK), even after a raw clone. By it the
 * hot path and every control call see that they are in a child, and return at once. And after fork() the child closes
 * what it inherited, so a dead parent's descriptors do not live on in it. Rings and packet memory are MADV_DONTFORK.
 */
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fork.h"

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nic_fork_entry *registry;
static _Atomic(_Atomic uint32_t *) fork_guard;
static bool fork_guard_is_wipeonfork; /* by the kernel, in a child */
static bool hooked;

/* Every lock, so that the child finds whole lists. Order: the registry's before any nic's. */
static void nic_lock_registry_before_fork(void)
{
	pthread_mutex_lock(&registry_lock);
	for (struct nic_fork_entry *forked = registry; forked != NULL; forked = forked->next)
		pthread_mutex_lock(forked->lock);
}

static void nic_unlock_after_fork_in_parent(void)
{
	for (struct nic_fork_entry *forked = registry; forked != NULL; forked = forked->next)
		pthread_mutex_unlock(forked->lock);
	pthread_mutex_unlock(&registry_lock);
}

static __attribute__((cold)) void nic_give_up_all_in_fork_child(void)
{
	for (struct nic_fork_entry *forked = registry; forked != NULL; forked = forked->next)
		forked->give_up(forked);
	registry = NULL;
	if (fork_guard != NULL && !fork_guard_is_wipeonfork)
		atomic_store_explicit(fork_guard, 0, memory_order_relaxed);
	fork_guard = NULL; /* what the child opens itself gets a page of its own */
	registry_lock =
	        (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* without a call, which each child would bind anew */
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
	if (fork_guard != NULL && atomic_load_explicit(fork_guard, memory_order_relaxed) == 0)
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
