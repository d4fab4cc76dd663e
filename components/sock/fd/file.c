/* file - the common head: references, the list of all files, and the question of a user whether one is offloaded. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock.h>

#include "file.h"

static pthread_mutex_t all_files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vma_file *_Atomic all;
static _Atomic uint64_t file_last_id;
_Atomic uint32_t vma_fork_count;
_Atomic bool vma_any_file_needs_touch;

void vma_file_init(struct vma_file *file, enum vma_file_kind kind, const struct vma_file_ops *ops)
{
	file->ops = ops;
	file->kind = (uint8_t)kind;
	file->id = atomic_fetch_add_explicit(&file_last_id, 1, memory_order_relaxed) + 1;
	file->forks = atomic_load_explicit(&vma_fork_count, memory_order_relaxed);
	atomic_init(&file->refs, 1);
	atomic_init(&file->slots, 0);
	atomic_init(&file->fd, -1);
	atomic_init(&file->watchers, NULL);
	atomic_init(&file->next_all, NULL);
	pthread_mutex_init(&file->lock, NULL);
}

/*
 * The word of references: a count, and two bits that the count's end sets. A thread inside may have found the file before
 * its end, and may take a reference after it: accept on a listener that is being closed, a packet held beside close.
 *
 * Argument: the put that leaves no reference, and the bits, change in one step, so one put retires the file and no other
 * does until the grace period is over. The end of that period looks at the word again. If references have come
 * meanwhile, it takes the bits back, in one step: the last of these retires the file again. If references have come and
 * gone (REFS_PUT_AGAIN), the file waits for one more period: threads inside may know it from those holders. Else it ends:
 * no thread that could find it is inside, and no holder is left that could take a reference for another.
 */
#define REFS_RETIRED (1U << 31)   /* waits until no reader is inside */
#define REFS_PUT_AGAIN (1U << 30) /* while it waited, the last of later references was given back */
#define REFS_COUNT (REFS_PUT_AGAIN - 1)

static void file_free(struct vma_file *file)
{
	struct vma_watchers *watchers = atomic_load_explicit(&file->watchers, memory_order_relaxed);

	if (file->ops->destroy != NULL)
		file->ops->destroy(file);
	vma_free(watchers);
	pthread_mutex_destroy(&file->lock);
	vma_free(file);
}

static void file_end_grace_period(struct vma_retired *retired)
{
	struct vma_file *file = (struct vma_file *)((char *)retired - offsetof(struct vma_file, retired));
	uint32_t refs = atomic_load_explicit(&file->refs, memory_order_acquire), next;

	do {
		if (refs == REFS_RETIRED) {
			file_free(file);
			return;
		}
		next = (refs & REFS_COUNT) != 0 ? refs & REFS_COUNT : REFS_RETIRED;
	} while (!atomic_compare_exchange_weak_explicit(&file->refs, &refs, next, memory_order_acq_rel,
	                                                memory_order_acquire));
	if (next == REFS_RETIRED)
		vma_defer_free_until_no_readers(&file->retired, file_end_grace_period);
}

/*
 * The last put comes after all others (acquire pairs with their release), and after the last descriptor: only a thread
 * that found the file earlier, and is inside, can still take a reference.
 */
void vma_file_put(struct vma_file *file)
{
	uint32_t refs = atomic_load_explicit(&file->refs, memory_order_relaxed), next;

	do {
		next = refs - 1;
		if ((next & REFS_COUNT) == 0)
			next |= (refs & REFS_RETIRED) != 0 ? REFS_PUT_AGAIN : REFS_RETIRED;
	} while (!atomic_compare_exchange_weak_explicit(&file->refs, &refs, next, memory_order_acq_rel,
	                                                memory_order_relaxed));
	if (next == REFS_RETIRED)
		vma_defer_free_until_no_readers(&file->retired, file_end_grace_period);
}

/* ---- the list of all ---- */

/*
 * Readers walk it inside, without the lock. A file is taken out when its last descriptor goes, and keeps its own
 * `next`: a reader who stands on it gets on. What follows it there can only be freed after it was taken out as well,
 * and after that reader has left. New files come in at the front: the release store shows them whole.
 */
void file_list_add(struct vma_file *file)
{
	struct vma_file *first;

	pthread_mutex_lock(&all_files_lock);
	first = atomic_load_explicit(&all, memory_order_relaxed);
	atomic_store_explicit(&file->next_all, first, memory_order_relaxed);
	file->prev_all = NULL;
	if (first != NULL)
		first->prev_all = file;
	atomic_store_explicit(&all, file, memory_order_release);
	pthread_mutex_unlock(&all_files_lock);
}

void file_list_remove(struct vma_file *file)
{
	struct vma_file *next;

	pthread_mutex_lock(&all_files_lock);
	next = atomic_load_explicit(&file->next_all, memory_order_relaxed);
	atomic_store_explicit(file->prev_all != NULL ? &file->prev_all->next_all : &all, next, memory_order_release);
	if (next != NULL)
		next->prev_all = file->prev_all;
	pthread_mutex_unlock(&all_files_lock);
}

void vma_file_each(void (*fn)(struct vma_file *file, void *arg), void *arg)
{
	struct vma_file *file = atomic_load_explicit(&all, memory_order_acquire);

	for (; file != NULL; file = atomic_load_explicit(&file->next_all, memory_order_acquire))
		fn(file, arg);
}

void files_lock_before_fork(void)
{
	atomic_fetch_add_explicit(&vma_fork_count, 1, memory_order_relaxed);
	pthread_mutex_lock(&all_files_lock);
}

void files_unlock_after_fork_in_parent(void)
{
	pthread_mutex_unlock(&all_files_lock);
}

/*
 * A thread that is not in the child may have held the file's lock, so it is made anew before the file's own code runs;
 * what that thread was changing is for ops->forked to put right. Sleepers stayed with the parent.
 */
static __attribute__((cold)) void file_reset_in_fork_child(struct vma_file *file, void *arg)
{
	(void)arg;
	pthread_mutex_init(&file->lock, NULL);
	memset(&file->waitq, 0, sizeof(file->waitq));
	atomic_store(&file->handoff, false); /* of a child of the parent's */
	file->from_parent = true;
	file->maker_thread = atomic_load_explicit(&vma_thread_self()->tid, memory_order_relaxed);
	if (file->ops->forked != NULL)
		file->ops->forked(file);
}

/* A copy that nobody announced (raw clone) may find the list in the middle of a change: forwards it is whole always. */
static void rebuild_prev_links(void)
{
	struct vma_file *before = NULL, *file = atomic_load_explicit(&all, memory_order_relaxed);

	for (; file != NULL; file = atomic_load_explicit(&file->next_all, memory_order_relaxed)) {
		file->prev_all = before;
		before = file;
	}
}

__attribute__((cold)) void files_reset_in_fork_child(void)
{
	pthread_mutex_init(&all_files_lock, NULL);
	rebuild_prev_links();
	fd_guards_close_parents_in_fork_child();
	vma_file_each(file_reset_in_fork_child, NULL);
}
