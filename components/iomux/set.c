/*
 * set - an epoll set with an offloaded member: its object, its inner descriptor S, its end, and its copy in a child.
 *
 * S holds E (the application's own descriptor, with the OS's members). S also holds the shadow of every member that is
 * ours, with the flags that the application gave. So the kernel serves level, edge and one-shot for a shadow. A thread
 * in its sleep, or a set around this one, that waits for S waits for all that the kernel knows.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock_os.h>

#include "iomux_priv.h"

static void epoll_set_remove_all_items_on_close(struct vma_file *file);
static void epoll_set_destroy(struct vma_file *file);
static void epoll_set_reset_in_fork_child(struct vma_file *file);
static uint64_t epoll_set_rings(struct vma_file *file);
static uint64_t epoll_set_accept_rings(struct vma_file *file);

static const struct vma_file_ops epoll_set_ops = {
        .name = "epoll",
        .poll = epoll_set_poll,
        .rings = epoll_set_rings,
        .accept_rings = epoll_set_accept_rings,
        .close = epoll_set_remove_all_items_on_close,
        .destroy = epoll_set_destroy,
        .forked = epoll_set_reset_in_fork_child,
};

static uint64_t epoll_set_rings(struct vma_file *file)
{
	return atomic_load_explicit(&epoll_set_of_file(file)->rings, memory_order_relaxed);
}

static uint64_t epoll_set_accept_rings(struct vma_file *file)
{
	return atomic_load_explicit(&epoll_set_of_file(file)->accept_rings, memory_order_relaxed);
}

struct epoll_set *epoll_set_find(int epfd)
{
	struct vma_file *file = vma_fd_lookup(epfd);

	return file != NULL && file->kind == VMA_FILE_EPOLL ? epoll_set_of_file(file) : NULL;
}

/*
 * Who found the lock taken went away, perhaps to sleep, and what was left over is for one of them. The fence pairs with
 * the one that a sleeper passes between entering the queue and its last try of the lock: either it gets the lock, or
 * its place in the queue is seen here. The caller is inside, or holds the set.
 */
void epoll_set_unlock_and_wake_waiter(struct epoll_set *set)
{
	pthread_mutex_unlock(&set->lock);
	atomic_thread_fence(memory_order_seq_cst);
	if (epoll_set_has_pending_events(set))
		vma_waitq_wake(&set->file.waitq, false);
}

/* ---- S ---- */

/* E's key is 0, which is no item's. */
static int epoll_add_to_members_epfd(int members_epfd, int epfd)
{
	struct epoll_event event = {.events = EPOLLIN};

	return vma_os.epoll_ctl(members_epfd, EPOLL_CTL_ADD, epfd, &event) < 0 ? -errno : 0;
}

static int create_members_epfd(int epfd)
{
	int members_epfd = vma_os.epoll_create1(EPOLL_CLOEXEC), rc, up;

	if (members_epfd < 0)
		return -errno;
	rc = epoll_add_to_members_epfd(members_epfd, epfd);
	up = rc < 0 ? rc : vma_fd_move_high_and_guard(members_epfd);
	if (up < 0)
		syscall(SYS_close, members_epfd);
	return up;
}

struct epoll_set *epoll_set_create_around_epfd(int epfd)
{
	struct epoll_set *set = vma_alloc(sizeof(*set));

	if (set == NULL)
		return NULL;
	set->members_epfd = create_members_epfd(epfd);
	if (set->members_epfd < 0) {
		vma_log_warn("epoll set %d: cannot make its inner set: %s", epfd, strerrordesc_np(-set->members_epfd));
		vma_free(set);
		return NULL;
	}
	vma_file_init(&set->file, VMA_FILE_EPOLL, &epoll_set_ops);
	ready_list_init(&set->ready);
	pthread_mutex_init(&set->lock, NULL);
	pthread_mutex_init(&set->leaf, NULL);
	TAILQ_INIT(&set->pending);
	set->kick = -1;
	return set;
}

void epoll_set_begin_stats(struct epoll_set *set)
{
	struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	const int epfd = atomic_load_explicit(&set->file.fd, memory_order_relaxed);
	struct vma_stats_iomux *stats;
	char name[VMA_STATS_NAME_MAX];

	if (engine == NULL)
		return;
	snprintf(name, sizeof(name), "epoll_wait fd %d", epfd);
	stats = vma_stats_block_alloc(engine->stats, VMA_STATS_TYPE_IOMUX, name);
	vma_stats_set(&stats->epfd, (uint64_t)epfd);
	set->engine = engine;
	atomic_store_explicit(&set->stats, stats, memory_order_release);
}

/* ---- the end ---- */

/* Items go; who still waits in another thread sees no more of them. The kernel closes E. */
static void epoll_set_remove_all_items_on_close(struct vma_file *file)
{
	struct epoll_set *set = epoll_set_of_file(file);

	pthread_mutex_lock(&set->lock);
	for (uint32_t i = 0; i < set->n_items; i++)
		if (epoll_item_at(set, i)->live || epoll_item_at(set, i)->parked)
			epoll_item_remove(set, epoll_item_at(set, i));
	pthread_mutex_unlock(&set->lock);
}

/* Every item that was ever live has held a reference until nobody could call it any more. */
static void epoll_set_destroy(struct vma_file *file)
{
	struct epoll_set *set = epoll_set_of_file(file);

	if (set->kick >= 0)
		vma_fd_unguard_close(set->kick);
	vma_fd_unguard_close(set->members_epfd);
	for (unsigned i = 0; i < EPOLL_CHUNKS; i++)
		vma_free(set->chunk[i]);
	vma_free(set->bucket);
	if (set->stats != NULL && set->engine == atomic_load_explicit(&vma_engine_now, memory_order_acquire))
		vma_stats_block_free(set->engine->stats, set->stats);
	pthread_mutex_destroy(&set->lock);
	pthread_mutex_destroy(&set->leaf);
}

/* ---- made anew ---- */

/*
 * In the child: S is the parent's, and its members are told there. Threads of the parent may have been anywhere in the
 * lists, so they are made anew from the items, at the first use (a child that only calls exec pays nothing).
 */
static void epoll_set_reset_in_fork_child(struct vma_file *file)
{
	struct epoll_set *set = epoll_set_of_file(file);

	pthread_mutex_init(&set->lock, NULL);
	pthread_mutex_init(&set->leaf, NULL);
	ready_list_init(&set->ready);
	TAILQ_INIT(&set->pending);
	atomic_store_explicit(&set->n_pending, 0, memory_order_relaxed);
	atomic_store(&set->stale, true);
	atomic_store_explicit(&set->stats, NULL, memory_order_relaxed);
	set->forked = true;
}

/* Everybody is told what is there now. Which ring serves a file is new as well. */
static void epoll_set_rebuild_lists(struct epoll_set *set)
{
	set->forked = false;
	set->free = NULL; /* may have been in the middle of a change; a few places are lost */
	memset(set->ring_users, 0, sizeof(set->ring_users));
	memset(set->acceptors, 0, sizeof(set->acceptors));
	atomic_store_explicit(&set->rings, 0, memory_order_relaxed);
	atomic_store_explicit(&set->accept_rings, 0, memory_order_relaxed);
	epoll_item_rehash(set);
	for (uint32_t i = 0; i < set->n_items; i++) {
		struct epoll_item *item = epoll_item_at(set, i);

		if (!item->live && !item->parked)
			continue;
		item->rings = item->accept_rings = 0;
		item->is_pending = false;
		atomic_store_explicit(&item->queued, false, memory_order_relaxed);
		epoll_item_update_rings_and_notify(item);
		epoll_item_enqueue(set, item, false);
	}
}

/* Before this one enters: it would mark this one as stale again. */
static void epoll_refresh_nested_set(const struct epoll_item *item)
{
	struct epoll_set *inner = epoll_set_of_file(item->file);

	if (!item->live || item->file->kind != VMA_FILE_EPOLL)
		return;
	pthread_mutex_lock(&inner->lock);
	if (atomic_load(&inner->stale))
		epoll_set_recreate_inner_epfd(inner);
	epoll_set_unlock_and_wake_waiter(inner);
}

static void epoll_item_readd_to_os_set(struct epoll_set *set, struct epoll_item *item)
{
	if (item->number_closed && item->file->kind != VMA_FILE_EPOLL)
		item->os_fd = atomic_load_explicit(&item->file->fd, memory_order_relaxed);
	epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_ADD, item);
}

/*
 * With the lock. S keeps its number, but is another set: who sleeps on the old one comes back to it, and sets around
 * this one have to take it in again.
 */
void epoll_set_recreate_inner_epfd(struct epoll_set *set)
{
	int epfd = atomic_load_explicit(&set->file.fd, memory_order_relaxed);
	int members_epfd = create_members_epfd(epfd);
	struct vma_watchers *watchers;

	if (members_epfd < 0) {
		vma_log_once(VMA_LOG_WARN, "epoll set %d: cannot renew its inner set: %s", epfd,
		             strerrordesc_np(-members_epfd));
		return;
	}
	for (uint32_t i = 0; i < set->n_items; i++)
		epoll_refresh_nested_set(epoll_item_at(set, i));
	atomic_store(&set->stale, false);
	syscall(SYS_dup3, members_epfd, set->members_epfd, O_CLOEXEC);
	vma_fd_unguard_close(members_epfd);
	if (set->forked)
		epoll_set_rebuild_lists(set);
	for (uint32_t i = 0; i < set->n_items; i++)
		if (epoll_item_at(set, i)->live)
			epoll_item_readd_to_os_set(set, epoll_item_at(set, i));
	vma_waitq_wake(&set->file.waitq, true);
	watchers = atomic_load_explicit(&set->file.watchers, memory_order_acquire);
	for (uint32_t i = 0; watchers != NULL && i < watchers->n; i++)
		epoll_item_mark_outer_set_stale(watchers->watcher[i]);
}
