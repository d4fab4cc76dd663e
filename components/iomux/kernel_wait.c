/*
 * kernel_wait - threads that wait in the kernel for a set that becomes ours meanwhile.
 *
 * The common order of things: one thread waits for an empty set, another makes sockets and adds them. The first sits in
 * the kernel's epoll_wait, which knows nothing of offloaded sockets. So threads leave a note of the set they wait for.
 * The thread that adopts a set kicks them out: it puts an eventfd into E, readable until the last of them has come out.
 * They find that the set is ours, drop the kick's event, and go on waiting here.
 *
 * A waiter leaves its note (A), looks whether the set is ours (B), and waits. The adopter makes the set ours (C), looks
 * at the notes (D), and kicks. All are sequentially consistent: either B finds the set ours or D finds the note.
 *
 * A thread that was cancelled or jumped out of its wait leaves its note until it waits again. So a kick lasts a second
 * at most. A thread that is later than that waits only for the OS's members, until it comes back the next time.
 */
#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock_os.h>

#include "iomux_priv.h"

#define KERNEL_WAITERS_PER_CHUNK 64
#define CHUNKS 1024
#define SEC 1000000000ULL
#define KICK_NSEC SEC

struct kernel_waiter {
	_Alignas(64) _Atomic int fd; /* that it waits for, plus one; 0: none */
};
/*
 * By the index of the thread; once made they stay. Most processes have few threads, and a forked child need not
 * allocate for its first wait.
 */
static struct kernel_waiter kernel_waiters_first_chunk[KERNEL_WAITERS_PER_CHUNK] __attribute__((section(".bss.far")));
static struct kernel_waiter *_Atomic kernel_waiters[CHUNKS]
        __attribute__((section(".data.far"))) = {kernel_waiters_first_chunk};

static struct kernel_waiter *kernel_waiter_of(unsigned index)
{
	return index / KERNEL_WAITERS_PER_CHUNK < CHUNKS &&
	                       atomic_load(&kernel_waiters[index / KERNEL_WAITERS_PER_CHUNK]) != NULL
	               ? &atomic_load(
	                         &kernel_waiters[index / KERNEL_WAITERS_PER_CHUNK])[index % KERNEL_WAITERS_PER_CHUNK]
	               : NULL;
}

static struct kernel_waiter *kernel_waiter_create(const struct vma_thread *self)
{
	struct kernel_waiter *fresh, *none = NULL;

	if (self->index / KERNEL_WAITERS_PER_CHUNK >= CHUNKS || kernel_waiter_of(self->index) != NULL)
		return kernel_waiter_of(self->index);
	fresh = vma_alloc(KERNEL_WAITERS_PER_CHUNK * sizeof(*fresh));
	if (fresh != NULL &&
	    !atomic_compare_exchange_strong(&kernel_waiters[self->index / KERNEL_WAITERS_PER_CHUNK], &none, fresh))
		vma_free(fresh);
	return kernel_waiter_of(self->index);
}

/* Whether a thread still waits in the kernel for this set. Inside. */
static bool epoll_set_has_kernel_waiters(const struct epoll_set *set)
{
	for (unsigned i = 0; i < vma_thread_table_size(); i++) {
		struct kernel_waiter *kernel_waiter = kernel_waiter_of(i);
		int fd = kernel_waiter != NULL ? atomic_load(&kernel_waiter->fd) - 1 : -1;

		if (fd >= 0 && epoll_set_find(fd) == set)
			return true;
	}
	return false;
}

/* ---- who adopts ---- */

static uint64_t epoll_set_wakeup_event_data(const struct epoll_set *set)
{
	return (uintptr_t)set | 1; /* no pointer of the application's */
}

void epoll_wake_kernel_waiters(struct epoll_set *set, int epfd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = epoll_set_wakeup_event_data(set)};
	int fd;

	atomic_thread_fence(memory_order_seq_cst);
	if (!epoll_set_has_kernel_waiters(set))
		return;
	fd = (int)syscall(SYS_eventfd2, 1, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return;
	pthread_mutex_lock(&set->lock);
	set->kick = vma_fd_move_high_and_guard(fd);
	set->kick_until_ns = vma_now_ns() + KICK_NSEC;
	if (set->kick < 0)
		syscall(SYS_close, fd);
	else
		vma_os.epoll_ctl(epfd, EPOLL_CTL_ADD, set->kick, &event);
	epoll_set_unlock_and_wake_waiter(set);
}

static void epoll_close_wakeup_fd_if_unneeded(struct epoll_set *set, int epfd)
{
	if (set->kick < 0 || (epoll_set_has_kernel_waiters(set) && vma_now_ns() < set->kick_until_ns))
		return;
	vma_os.epoll_ctl(epfd, EPOLL_CTL_DEL, set->kick, NULL);
	vma_fd_unguard_close(set->kick);
	set->kick = -1;
}

static int epoll_drop_wakeup_event(const struct epoll_set *set, struct epoll_event *events, int n)
{
	int kept = 0;

	for (int i = 0; i < n; i++)
		if (events[i].data.u64 != epoll_set_wakeup_event_data(set))
			events[kept++] = events[i];
	return kept;
}

/* The events are where the kernel has just written them. */
int epoll_drop_and_clear_wakeup_fd(struct epoll_set *set, int epfd, struct epoll_event *events, int n)
{
	n = epoll_drop_wakeup_event(set, events, n);
	epoll_close_wakeup_fd_if_unneeded(set, epfd);
	return n;
}

/* ---- who waits ---- */

struct kernel_epoll_wait_call {
	int epfd;
	struct epoll_event *events;
	int max;
	const struct timespec *timeout;
	const sigset_t *mask;
	struct kernel_waiter *kernel_waiter;
	uint64_t begun_ns;
};

static void kernel_waiter_clear(void *arg)
{
	struct kernel_epoll_wait_call *wait = arg;

	if (wait->kernel_waiter != NULL)
		atomic_store(&wait->kernel_waiter->fd, 0);
}

/* Whole milliseconds go by the older call, which every kernel and every sandbox knows; others do as far as it can. */
static bool timespec_is_whole_msec(const struct timespec *timeout, int *msec)
{
	*msec = -1;
	if (timeout == NULL)
		return true;
	*msec = timeout->tv_sec >= INT32_MAX / 1000
	                ? INT32_MAX
	                : (int)(timeout->tv_sec * 1000 + (timeout->tv_nsec + 999999) / 1000000);
	return timeout->tv_sec >= 0 && timeout->tv_sec < INT32_MAX / 1000 && timeout->tv_nsec >= 0 &&
	       timeout->tv_nsec < 1000000000 && timeout->tv_nsec % 1000000 == 0;
}

static int epoll_pwait_syscall(const struct kernel_epoll_wait_call *wait)
{
	int msec, rc = -1;
	bool exact = timespec_is_whole_msec(wait->timeout, &msec);

	if (!exact)
		rc = vma_os.epoll_pwait2(wait->epfd, wait->events, wait->max, wait->timeout, wait->mask);
	if (exact || (rc < 0 && errno == ENOSYS))
		rc = vma_os.epoll_pwait(wait->epfd, wait->events, wait->max, msec, wait->mask);
	return rc < 0 ? -errno : rc;
}

/* Outside, and in a cancellation point. */
static int epoll_wait_in_kernel(struct kernel_epoll_wait_call *wait)
{
	int rc;

	pthread_cleanup_push(kernel_waiter_clear, wait);
	rc = epoll_pwait_syscall(wait);
	pthread_cleanup_pop(1);
	return rc;
}

/* Inside. What is left of the application's timeout, which the kernel has found good. */
static int epoll_wait_in_library(const struct kernel_epoll_wait_call *wait, struct epoll_set *set, bool left_only)
{
	struct timespec left = {0, 0};
	uint64_t now;

	if (!left_only || wait->timeout == NULL)
		return vma_iomux_epoll_wait(&set->file, wait->epfd, wait->events, wait->max, wait->timeout, wait->mask);
	now = vma_now_ns() - wait->begun_ns;
	left = *wait->timeout;
	left.tv_sec -= (time_t)(now / SEC);
	left.tv_nsec -= (long)(now % SEC);
	if (left.tv_nsec < 0) {
		left.tv_sec--;
		left.tv_nsec += (long)SEC;
	}
	if (left.tv_sec < 0)
		left = (struct timespec){0, 0};
	return vma_iomux_epoll_wait(&set->file, wait->epfd, wait->events, wait->max, &left, wait->mask);
}

/* Came out of the kernel with n, and finds the set ours. Inside. */
static int epoll_finish_kernel_wait(const struct kernel_epoll_wait_call *wait, struct epoll_set *set, int n)
{
	int kept = n > 0 ? epoll_drop_wakeup_event(set, wait->events, n) : n;

	pthread_mutex_lock(&set->lock);
	epoll_close_wakeup_fd_if_unneeded(set, wait->epfd);
	epoll_set_unlock_and_wake_waiter(set);
	return kept == 0 && n > 0 ? epoll_wait_in_library(wait, set, true) : kept;
}

/* Inside. -EAGAIN: to be waited for in the kernel. */
static int kernel_waiter_register_or_wait_in_library(struct kernel_epoll_wait_call *wait, struct vma_thread *self)
{
	struct epoll_set *set;

	vma_iomux_record_epoll_fd(wait->epfd);
	wait->kernel_waiter = kernel_waiter_create(self);
	if (wait->kernel_waiter != NULL)
		atomic_store(&wait->kernel_waiter->fd, wait->epfd + 1);
	set = epoll_set_find(wait->epfd);
	if (set == NULL)
		return -EAGAIN;
	kernel_waiter_clear(wait);
	return epoll_wait_in_library(wait, set, false);
}

/*
 * VMA_SELECT_POLL_OS_FORCE: a set of which the kernel has nothing to say now becomes ours, which looks on. Outside,
 * with a note left; -EAGAIN: again, and it is to be waited for in the kernel.
 */
static int epoll_take_over_set_without_events(struct kernel_epoll_wait_call *wait)
{
	static const struct timespec none;
	struct kernel_epoll_wait_call now = *wait;
	struct vma_thread *self;
	struct epoll_set *set;
	int rc;

	now.timeout = &none;
	rc = epoll_wait_in_kernel(&now);
	self = vma_enter();
	set = epoll_set_find(wait->epfd);
	if (rc != 0)
		rc = set != NULL ? epoll_finish_kernel_wait(wait, set, rc) : rc;
	else if (epoll_set_find_or_adopt(wait->epfd, &set) == 0)
		rc = epoll_wait_in_library(wait, set, true);
	else
		rc = kernel_waiter_register_or_wait_in_library(wait, self);
	vma_leave(self);
	return rc;
}

static bool epoll_wait_is_forced_to_kernel(const struct kernel_epoll_wait_call *wait)
{
	return iomux_conf_forces_os_poll() &&
	       (wait->timeout == NULL || wait->timeout->tv_sec != 0 || wait->timeout->tv_nsec != 0);
}

int vma_iomux_epoll_wait_os(int epfd, struct epoll_event *events, int max, const struct timespec *timeout,
                            const sigset_t *mask)
{
	struct kernel_epoll_wait_call wait = {.epfd = epfd, .events = events, .max = max, .mask = mask};
	struct vma_thread *self = vma_enter();
	struct timespec own;
	struct epoll_set *set;
	int rc = timeout != NULL ? vma_memcpy_or_efault(&own, timeout, sizeof(own)) : 0;

	wait.timeout = timeout != NULL ? &own : NULL;
	rc = rc < 0 ? rc : kernel_waiter_register_or_wait_in_library(&wait, self);
	vma_leave(self);
	if (rc != -EAGAIN)
		return rc; /* it is ours */
	wait.begun_ns = timeout != NULL ? vma_now_ns() : 0;
	rc = epoll_wait_is_forced_to_kernel(&wait) ? epoll_take_over_set_without_events(&wait) : -EAGAIN;
	if (rc != -EAGAIN)
		return rc;
	rc = epoll_wait_in_kernel(&wait);
	self = vma_enter();
	set = epoll_set_find(epfd);
	if (set != NULL)
		rc = epoll_finish_kernel_wait(&wait, set, rc);
	vma_leave(self);
	return rc;
}
