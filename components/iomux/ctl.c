/*
 * ctl - epoll_ctl: registrations of offloaded descriptors are items, with their shadows in S; those of the OS are E's.
 *
 * S has the shadow under the same number and with the same flags. So the kernel says of the shadow's registration what
 * it would say of the application's: EEXIST, ENOENT, EPERM, EINVAL of flags, ENOSPC. A set in a set is in E, too (with
 * no events), so the kernel judges loops and depths. If a file has no shadow in S, its flags are judged here.
 */
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock_os.h>

#include "iomux_priv.h"

static int kernel_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	return vma_os.epoll_ctl(epfd, op, fd, event) < 0 ? -errno : 0;
}

/* ---- shadows in S ---- */

/* What the kernel has to say of the flags of a registration that it does not get. */
static int epoll_check_event_flags(uint32_t events)
{
	const uint32_t beside = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

	return events & EPOLLEXCLUSIVE && events & ~beside ? -EINVAL : 0;
}

/* What the shadow is asked for: not whether it is writable, if the file knows that by itself. */
static uint32_t epoll_item_events_to_ask_kernel_for(struct epoll_item *item)
{
	uint32_t events = item->events;

	if (atomic_load_explicit(&item->wanted, memory_order_relaxed) == 0)
		return EPOLLONESHOT; /* shot */
	return item->file->ops->poll(item->file) & (EPOLLOUT | VMA_POLL_OWN_OUT) ? events & ~(uint32_t)IOMUX_OUT
	                                                                         : events;
}

/* The inner set is in S already, under another number of the application's. */
static int epoll_add_inner_set_by_dup(struct epoll_set *set, struct epoll_item *item, struct epoll_event *event)
{
	long copy = syscall(SYS_fcntl, item->os_fd, F_DUPFD_CLOEXEC, 0);
	int fd = copy >= 0 ? vma_fd_move_high_and_guard((int)copy) : -errno, rc;

	if (fd < 0)
		return fd;
	rc = kernel_epoll_ctl(set->members_epfd, EPOLL_CTL_ADD, fd, event);
	if (rc < 0) {
		vma_fd_unguard_close(fd);
		return rc;
	}
	item->os_fd = fd;
	item->os_fd_own = true;
	return 0;
}

/*
 * S is changed, and is asked at the next chance whether it has something. A file that knows all by itself (own_poll)
 * has no shadow there: no system call, whatever the program does with its registration. Of a change of that the watcher
 * is told under the lock, after whatever was done here.
 *
 * A forked process that has not used the set yet has its parent's S, and a change would be the parent's: what the
 * process closes, the kernel would go on to tell its parent of. So S stays as it is, and epoll_set_recreate_inner_epfd
 * makes one of the process's own from the items.
 */
int epoll_update_item_in_kernel_shadow_set(struct epoll_set *set, int op, struct epoll_item *item)
{
	struct epoll_event event = {.data.u64 = epoll_item_key(item)};
	bool is_set = item->file->kind == VMA_FILE_EPOLL, was_in_s = item->in_s;
	int rc;

	item->in_s = op == EPOLL_CTL_MOD ? was_in_s : op == EPOLL_CTL_ADD && !atomic_load(&item->file->own_poll);
	item->out_unpolled = false;
	if (set->forked || (op == EPOLL_CTL_ADD ? !item->in_s : !was_in_s))
		return epoll_check_event_flags(item->events);
	set->os_polled.tsc = 0;
	if (op != EPOLL_CTL_DEL)
		event.events = is_set ? item->events : epoll_item_events_to_ask_kernel_for(item);
	item->out_unpolled = op != EPOLL_CTL_DEL && (item->events & ~event.events & IOMUX_OUT) != 0;
	if (op == EPOLL_CTL_ADD && is_set) {
		if (item->os_fd_own)
			vma_fd_unguard_close(item->os_fd);
		item->os_fd_own = false;
		item->os_fd = epoll_set_of_file(item->file)->members_epfd;
	}
	rc = kernel_epoll_ctl(set->members_epfd, op, item->os_fd, &event);
	return rc == -EEXIST && op == EPOLL_CTL_ADD && is_set ? epoll_add_inner_set_by_dup(set, item, &event) : rc;
}

/* ---- ours ---- */

/*
 * It may be ready now. If not it stays out of the queue, or events that come while a wait looks at it would be told by
 * that and, queued once more, by the next: edges twice. `wanted` was stored before the look, and a file's events are
 * visible before its watchers are told (with full fences between the two, here and there): of a file that becomes ready
 * at this moment either the look sees the events or the watcher the request.
 */
static void epoll_item_enqueue_if_ready(struct epoll_set *set, struct epoll_item *item)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (iomux_file_poll(item->file) & atomic_load_explicit(&item->wanted, memory_order_relaxed))
		epoll_item_enqueue(set, item, false);
}

static int epoll_set_add_item(struct epoll_set *set, struct vma_file *file, int fd, const struct epoll_event *event)
{
	struct epoll_item *item = epoll_item_find(set, file, fd);
	int rc;

	if (item != NULL)
		return -EEXIST;
	rc = epoll_item_add(set, file, fd, &item);
	if (rc < 0)
		return rc;
	epoll_item_set_events(item, event->events, event->data.u64);
	rc = epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_ADD, item);
	if (rc < 0) {
		epoll_item_remove(set, item);
		return rc;
	}
	epoll_item_update_rings_and_notify(item);
	epoll_item_enqueue_if_ready(set, item);
	return 0;
}

static int epoll_set_modify_item(struct epoll_set *set, struct epoll_item *item, const struct epoll_event *event)
{
	uint32_t events = item->events, shot = atomic_load_explicit(&item->wanted, memory_order_relaxed);
	uint64_t data = item->data;
	int rc;

	if ((events | event->events) & EPOLLEXCLUSIVE)
		return -EINVAL;
	epoll_item_set_events(item, event->events, event->data.u64);
	rc = epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_MOD, item);
	if (rc < 0) {
		epoll_item_set_events(item, events, data);
		atomic_store_explicit(&item->wanted, shot, memory_order_relaxed);
	}
	if (iomux_file_accept_rings(item->file) != 0)
		epoll_item_update_rings_and_notify(item);
	epoll_item_enqueue_if_ready(set, item);
	return rc;
}

static int epoll_ctl_remove_item(struct epoll_set *set, int epfd, struct epoll_item *item)
{
	const bool had_shadow = item->in_s;
	int rc = epoll_update_item_in_kernel_shadow_set(set, EPOLL_CTL_DEL, item);

	if (item->file->kind == VMA_FILE_EPOLL)
		kernel_epoll_ctl(epfd, EPOLL_CTL_DEL, item->fd, NULL);
	if (had_shadow || item->file->kind == VMA_FILE_EPOLL)
		epoll_item_remove(set, item);
	else
		epoll_item_keep_after_delete(set, item);
	return rc == -ENOENT ? 0 : rc; /* S was renewed without it: a number of a file that had another */
}

/* E is first to judge a set in a set. */
static int epoll_ctl_add_offloaded_fd(struct epoll_set *set, int epfd, struct vma_file *file, int fd,
                                      const struct epoll_event *event)
{
	struct epoll_event nothing = {.events = event->events & EPOLLEXCLUSIVE};
	bool is_set = file->kind == VMA_FILE_EPOLL;
	int rc = is_set ? kernel_epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &nothing) : 0;

	if (rc < 0)
		return rc;
	rc = epoll_set_add_item(set, file, fd, event);
	if (rc < 0 && is_set)
		kernel_epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL);
	return rc;
}

static int epoll_ctl_offloaded_fd(struct epoll_set *set, int epfd, int op, struct vma_file *file, int fd,
                                  const struct epoll_event *event)
{
	struct epoll_item *item;
	int rc;

	if (file == &set->file)
		return -EINVAL;
	pthread_mutex_lock(&set->lock);
	if (atomic_load(&set->stale))
		epoll_set_recreate_inner_epfd(set);
	item = epoll_item_find(set, file, fd);
	if (vma_file_is_closed(&set->file))
		rc = -EBADF; /* its items have gone: nobody would remove this one */
	else if (op == EPOLL_CTL_ADD)
		rc = epoll_ctl_add_offloaded_fd(set, epfd, file, fd, event);
	else if (item == NULL)
		rc = -ENOENT;
	else if (op == EPOLL_CTL_MOD)
		rc = epoll_set_modify_item(set, item, event);
	else
		rc = epoll_ctl_remove_item(set, epfd, item);
	epoll_set_unlock_and_wake_waiter(set);
	if (rc == 0 && op != EPOLL_CTL_DEL && epoll_set_has_pending_events(set))
		vma_file_wake_sleepers_and_watchers(&set->file, EPOLLIN);
	return rc;
}

/* E holds it with the events that it told until now; from now on the item does. */
int epoll_ctl_move_fd_from_kernel_to_set(struct epoll_set *set, int epfd, struct vma_file *file, int fd,
                                         struct epoll_event *event)
{
	struct epoll_event nothing = {.events = 0};
	int rc;

	pthread_mutex_lock(&set->lock);
	if (vma_file_is_closed(&set->file))
		rc = -EBADF;
	else
		rc = epoll_item_find(set, file, fd) == NULL ? epoll_set_add_item(set, file, fd, event) : -EEXIST;
	if (rc == 0)
		kernel_epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &nothing);
	epoll_set_unlock_and_wake_waiter(set);
	if (rc == 0)
		vma_file_wake_sleepers_and_watchers(&set->file, EPOLLIN);
	return rc;
}

/* ---- the OS's ---- */

static int epoll_ctl_kernel_member(struct epoll_set *set, int epfd, int op, int fd, struct epoll_event *event)
{
	int rc = kernel_epoll_ctl(epfd, op, fd, event);

	if (rc < 0 || op == EPOLL_CTL_MOD)
		return rc;
	if (set == NULL)
		vma_iomux_record_epoll_fd(epfd);
	else if (op == EPOLL_CTL_ADD)
		atomic_fetch_add(&set->n_os, 1);
	return rc;
}

/* ---- the first of ours in a set ---- */

/*
 * The kernel says whether epfd is a set that could take a member: asked for nothing, for a moment. Another thread may
 * sleep in the set, and the kernel tells EPOLLHUP and EPOLLERR unasked: the shadow of a connection, which is not
 * connected, would end its wait with an event that has the probe's data. So an eventfd stands for it, which has
 * neither. An inner set has neither, too, and stands for itself: loops and depths are the kernel's to judge.
 */
static int epoll_try_add_in_kernel_then_remove(int epfd, int fd)
{
	struct epoll_event nothing = {.events = EPOLLET};
	int rc = kernel_epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &nothing);

	if (rc == 0)
		kernel_epoll_ctl(epfd, EPOLL_CTL_DEL, fd, NULL);
	return rc;
}

static int epoll_check_kernel_would_accept_add(int epfd, const struct vma_file *file, int fd)
{
	long quiet;
	int rc;

	if (file->kind == VMA_FILE_EPOLL)
		return epoll_try_add_in_kernel_then_remove(epfd, fd);
	quiet = syscall(SYS_eventfd2, 0, EFD_CLOEXEC);
	if (quiet < 0)
		return -errno;
	rc = epoll_try_add_in_kernel_then_remove(epfd, (int)quiet);
	syscall(SYS_close, quiet);
	return rc;
}

static int epoll_take_over_set_at_first_offloaded_fd(int epfd, const struct vma_file *file, int fd,
                                                     struct epoll_set **set)
{
	int rc = epoll_check_kernel_would_accept_add(epfd, file, fd);

	return rc < 0 ? rc : epoll_set_find_or_adopt(epfd, set);
}

int vma_iomux_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	struct vma_file *file = vma_fd_lookup(fd);
	struct epoll_set *set = epoll_set_find(epfd);
	struct epoll_event wanted = {.events = 0};
	int rc = 0;

	if (!iomux_file_is_ours(file) || (set == NULL && op != EPOLL_CTL_ADD) || op < EPOLL_CTL_ADD ||
	    op > EPOLL_CTL_MOD)
		return epoll_ctl_kernel_member(set, epfd, op, fd, event);
	if (op != EPOLL_CTL_DEL && vma_memcpy_or_efault(&wanted, event, sizeof(wanted)) < 0)
		return -EFAULT;
	if (set == NULL)
		rc = epoll_take_over_set_at_first_offloaded_fd(epfd, file, fd, &set);
	return rc < 0 ? rc : epoll_ctl_offloaded_fd(set, epfd, op, file, fd, &wanted);
}
