/*
 * wait - select, poll and epoll: iomux's as soon as one descriptor among them is ours, else the kernel's.
 *
 * The calls differ in the form of their timeout: here all become a struct timespec, or none.
 */
#include <time.h>

#include <vma/iomux.h>
#include <vma/stream.h>

#include "call.h"
#include "more.h"

struct blocking_call {
	struct vma_thread *self;
	int saved_errno;
};

static void blocking_call_enter_and_flush_sends(struct blocking_call *call)
{
	pthread_testcancel();
	process_check_for_raw_clone_child();
	call->saved_errno = errno;
	call->self = vma_enter();
	vma_inet_flush_sends(call->self);
}

static int blocking_end(struct blocking_call *call, int rc)
{
	vma_leave(call->self);
	errno = rc < 0 ? -rc : call->saved_errno;
	return rc < 0 ? -1 : rc;
}

/* Before the thread may sleep in the kernel for whatever is not ours. */
static inline void flush_held_back_sends(void)
{
	struct vma_thread *self = vma_thread_cache;

	if (__builtin_expect(self != NULL && self->tx_ring != NULL && self->inside == 0, 0)) {
		vma_enter();
		vma_inet_flush_sends(self);
		vma_leave(self);
	}
}

static struct timespec *timespec_of_msec(struct timespec *own, int msec)
{
	if (msec < 0)
		return NULL;
	own->tv_sec = msec / 1000;
	own->tv_nsec = msec % 1000 * 1000000L;
	return own;
}

/* Inside. *own is the application's timeout, or NULL: 0, -EFAULT, -EINVAL. */
static int copy_and_check_app_timeout(struct timespec **own, const struct timespec *timeout)
{
	if (timeout == NULL) {
		*own = NULL;
		return 0;
	}
	if (vma_memcpy_or_efault(*own, timeout, sizeof(**own)) != 0)
		return -EFAULT;
	return (*own)->tv_sec < 0 || (*own)->tv_nsec < 0 || (*own)->tv_nsec > 999999999 ? -EINVAL : 0;
}

/* ---- sockets of another process, whose forked child or program this one is ---- */

static inline bool has_inherited_sockets(void)
{
	return __builtin_expect(atomic_load_explicit(&vma_any_file_needs_touch, memory_order_relaxed), 0);
}

static __attribute__((noinline)) void take_over_inherited_in_pollfds(const struct pollfd *fds, nfds_t n)
{
	struct pollfd one;
	struct blocking_call call;

	blocking_call_enter_and_flush_sends(&call);
	for (nfds_t i = 0; i < n && vma_memcpy_or_efault(&one, &fds[i], sizeof(one)) == 0; i++)
		vma_fd_call_before_use_hook(one.fd);
	blocking_end(&call, 0);
}

static void register_inherited_fds_of_fd_set(int n, const fd_set *set)
{
	unsigned long word;

	for (int fd = 0; set != NULL && fd < n; fd++) {
		const int bits = (int)sizeof(word) * 8;

		if (vma_memcpy_or_efault(&word, (const char *)set + fd / bits * (int)sizeof(word), sizeof(word)) != 0)
			return;
		if (word >> fd % bits & 1)
			vma_fd_call_before_use_hook(fd);
	}
}

static __attribute__((noinline)) void take_over_inherited_in_fd_sets(int n, const fd_set *r, const fd_set *w,
                                                                     const fd_set *e)
{
	struct blocking_call call;

	blocking_call_enter_and_flush_sends(&call);
	register_inherited_fds_of_fd_set(n, r);
	register_inherited_fds_of_fd_set(n, w);
	register_inherited_fds_of_fd_set(n, e);
	blocking_end(&call, 0);
}

/* ---- poll ---- */

EXPORT(int, poll, (struct pollfd * fds, nfds_t n, int timeout))
{
	struct timespec own;
	struct blocking_call call;

	if (has_inherited_sockets())
		take_over_inherited_in_pollfds(fds, n);
	if (!vma_iomux_poll_has_offloaded_fd(fds, n)) {
		flush_held_back_sends();
		return vma_os.poll(fds, n, timeout);
	}
	blocking_call_enter_and_flush_sends(&call);
	return blocking_end(&call, vma_iomux_poll(fds, n, timespec_of_msec(&own, timeout), NULL));
}
ALIAS(int, __poll, poll, (struct pollfd * fds, nfds_t n, int timeout))

static int ppoll_by_iomux(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec space, *own = &space;
	struct blocking_call call;
	int rc;

	blocking_call_enter_and_flush_sends(&call);
	rc = copy_and_check_app_timeout(&own, timeout);
	return blocking_end(&call, rc < 0 ? rc : vma_iomux_poll(fds, n, own, mask));
}

EXPORT(int, ppoll, (struct pollfd * fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask))
{
	if (has_inherited_sockets())
		take_over_inherited_in_pollfds(fds, n);
	if (vma_iomux_poll_has_offloaded_fd(fds, n))
		return ppoll_by_iomux(fds, n, timeout, mask);
	flush_held_back_sends();
	return vma_os.ppoll(fds, n, timeout, mask);
}

EXPORT(int, __poll_chk, (struct pollfd * fds, nfds_t n, int timeout, size_t room))
{
	if (room / sizeof(*fds) < n)
		return vma_os.__poll_chk(fds, n, timeout, room);
	return call_poll(fds, n, timeout);
}

EXPORT(int, __ppoll_chk,
       (struct pollfd * fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t room))
{
	if (room / sizeof(*fds) < n)
		return vma_os.__ppoll_chk(fds, n, timeout, mask, room);
	return call_ppoll(fds, n, timeout, mask);
}

/* ---- select ---- */

/* As the C library and the kernel take it: microseconds beyond a second count, negative ones do not. */
static int timespec_from_app_timeval(struct timespec **own, const struct timeval *timeout)
{
	struct timeval given;

	if (timeout == NULL) {
		*own = NULL;
		return 0;
	}
	if (vma_memcpy_or_efault(&given, timeout, sizeof(given)) != 0)
		return -EFAULT;
	if (given.tv_sec < 0 || given.tv_usec < 0)
		return -EINVAL;
	if (__builtin_add_overflow(given.tv_sec, given.tv_usec / 1000000, &(*own)->tv_sec))
		(*own)->tv_sec = INT64_MAX;
	(*own)->tv_nsec = given.tv_usec % 1000000 * 1000;
	return 0;
}

static int select_by_iomux(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	struct timespec space, left = {0}, *own = &space;
	struct blocking_call call;
	int rc;

	blocking_call_enter_and_flush_sends(&call);
	rc = timespec_from_app_timeval(&own, timeout);
	if (rc == 0)
		rc = vma_iomux_select(n, r, w, e, own, NULL, own != NULL ? &left : NULL);
	/* Not written when it cannot be, as poll_select_finish. */
	if (own != NULL && (rc >= 0 || rc == -EINTR)) {
		struct timeval given = {.tv_sec = left.tv_sec, .tv_usec = left.tv_nsec / 1000};

		vma_memcpy_or_efault(timeout, &given, sizeof(given));
	}
	return blocking_end(&call, rc);
}

EXPORT(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout))
{
	if (has_inherited_sockets())
		take_over_inherited_in_fd_sets(n, r, w, e);
	if (vma_iomux_must_handle_select(n, r, w, e))
		return select_by_iomux(n, r, w, e, timeout);
	flush_held_back_sends();
	return vma_os.select(n, r, w, e, timeout);
}
ALIAS(int, __select, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout))

static int pselect_by_iomux(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout,
                            const sigset_t *mask)
{
	struct timespec space, *own = &space;
	struct blocking_call call;
	int rc;

	blocking_call_enter_and_flush_sends(&call);
	rc = copy_and_check_app_timeout(&own, timeout);
	return blocking_end(&call, rc < 0 ? rc : vma_iomux_select(n, r, w, e, own, mask, NULL));
}

EXPORT(int, pselect, (int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask))
{
	if (has_inherited_sockets())
		take_over_inherited_in_fd_sets(n, r, w, e);
	if (vma_iomux_must_handle_select(n, r, w, e))
		return pselect_by_iomux(n, r, w, e, timeout, mask);
	flush_held_back_sends();
	return vma_os.pselect(n, r, w, e, timeout, mask);
}

/* ---- epoll ---- */

static int epoll_record_new_set(int epfd)
{
	vma_iomux_record_epoll_fd(epfd);
	return return_new_fd_forget_old_file(epfd);
}

EXPORT(int, epoll_create, (int size))
{
	return epoll_record_new_set(vma_os.epoll_create(size));
}

EXPORT(int, epoll_create1, (int flags))
{
	return epoll_record_new_set(vma_os.epoll_create1(flags));
}

static __attribute__((noinline)) int epoll_ctl_by_iomux(int epfd, int op, int fd, struct epoll_event *event)
{
	struct blocking_call call;

	blocking_call_enter_and_flush_sends(&call);
	if (has_inherited_sockets() && op != EPOLL_CTL_DEL)
		vma_fd_call_before_use_hook(fd);
	return blocking_end(&call, vma_iomux_epoll_ctl(epfd, op, fd, event));
}

EXPORT(int, epoll_ctl, (int epfd, int op, int fd, struct epoll_event *event))
{
	if (FD_IS_NOT_OURS(epfd) && FD_IS_NOT_OURS(fd)) {
		vma_iomux_record_epoll_fd(epfd);
		return vma_os.epoll_ctl(epfd, op, fd, event);
	}
	return epoll_ctl_by_iomux(epfd, op, fd, event);
}

/* A set of the kernel's: another thread may make it ours while this one waits for it. */
static __attribute__((noinline)) int epoll_pwait_by_kernel(int epfd, struct epoll_event *events, int max,
                                                           const struct timespec *timeout, const sigset_t *mask)
{
	int saved = errno, rc;

	process_check_for_raw_clone_child();
	flush_held_back_sends();
	rc = vma_iomux_epoll_wait_os(epfd, events, max, timeout, mask);
	errno = rc < 0 ? -rc : saved;
	return rc < 0 ? -1 : rc;
}

static __attribute__((noinline)) int epoll_pwait_os_msec(int epfd, struct epoll_event *events, int max, int timeout,
                                                         const sigset_t *mask)
{
	struct timespec own;

	return epoll_pwait_by_kernel(epfd, events, max, timespec_of_msec(&own, timeout), mask);
}

/* A set that is ours, inside; false: the kernel's, outside. */
static bool epoll_set_call_begin(struct blocking_call *call, int epfd, struct vma_file **set)
{
	blocking_call_enter_and_flush_sends(call);
	*set = vma_fd_lookup(epfd);
	if (*set != NULL && (*set)->kind == VMA_FILE_EPOLL)
		return true;
	blocking_end(call, 0);
	return false;
}

static __attribute__((noinline)) int epoll_pwait_by_iomux(int epfd, struct epoll_event *events, int max, int timeout,
                                                          const sigset_t *mask)
{
	struct timespec own;
	struct vma_file *set;
	struct blocking_call call;

	if (!epoll_set_call_begin(&call, epfd, &set))
		return vma_os.epoll_pwait(epfd, events, max, timeout, mask);
	return blocking_end(&call, vma_iomux_epoll_wait(set, epfd, events, max, timespec_of_msec(&own, timeout), mask));
}

EXPORT(int, epoll_wait, (int epfd, struct epoll_event *events, int max, int timeout))
{
	if (!FD_IS_NOT_OURS(epfd))
		return epoll_pwait_by_iomux(epfd, events, max, timeout, NULL);
	return epoll_pwait_os_msec(epfd, events, max, timeout, NULL);
}

EXPORT(int, epoll_pwait, (int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask))
{
	if (!FD_IS_NOT_OURS(epfd))
		return epoll_pwait_by_iomux(epfd, events, max, timeout, mask);
	return epoll_pwait_os_msec(epfd, events, max, timeout, mask);
}

static __attribute__((noinline)) int epoll_pwait2_by_iomux(int epfd, struct epoll_event *events, int max,
                                                           const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec space, *own = &space;
	struct vma_file *set;
	struct blocking_call call;
	int rc;

	if (!epoll_set_call_begin(&call, epfd, &set))
		return vma_os.epoll_pwait2(epfd, events, max, timeout, mask);
	rc = copy_and_check_app_timeout(&own, timeout);
	return blocking_end(&call, rc < 0 ? rc : vma_iomux_epoll_wait(set, epfd, events, max, own, mask));
}

EXPORT(int, epoll_pwait2,
       (int epfd, struct epoll_event *events, int max, const struct timespec *timeout, const sigset_t *mask))
{
	if (!FD_IS_NOT_OURS(epfd))
		return epoll_pwait2_by_iomux(epfd, events, max, timeout, mask);
	return epoll_pwait_by_kernel(epfd, events, max, timeout, mask);
}
