/*
 * sigmask - the application's signal mask for the time of a call, as pselect, ppoll and epoll_pwait have it.
 *
 * The kernel sets the mask, waits, and gives the old one back: after -EINTR when the handlers have run, else before any
 * can. Here the thread is inside, where a signal that arrives is held back: all signals are then blocked, and
 * self->mask is what vma_leave will restore. So a change of mask is a change of self->mask while something is held. To
 * tell which of the two it is, all signals are blocked for a moment.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "iomux_priv.h"

#define KERNEL_BYTES (_NSIG / 8)

/* By syscall: pthread_sigmask leaves the C library's own signals out, which the kernel's calls do not. */
static void sigmask_syscall(int how, const sigset_t *mask, sigset_t *before)
{
	syscall(SYS_rt_sigprocmask, how, mask, before, KERNEL_BYTES);
}

static void replace_sigmask(const sigset_t *mask, sigset_t *before, struct vma_thread *self)
{
	sigset_t all, now;
	bool held;

	memset(&all, 0xff, sizeof(all));
	memset(&now, 0, sizeof(now));
	sigmask_syscall(SIG_SETMASK, &all, &now);
	held = vma_thread_has_deferred_work(self, VMA_HELD_SIGNALS);
	if (before != NULL)
		*before = held ? self->mask : now;
	if (held)
		memcpy(&self->mask, mask, KERNEL_BYTES);
	/* While something is held all is blocked but faults, which vma_memcpy_or_efault may need: so it stays. */
	sigmask_syscall(SIG_SETMASK, held ? &now : mask, NULL);
}

int iomux_sigmask_set(struct iomux_sigmask *mask, const sigset_t *from, struct vma_thread *self)
{
	sigset_t wanted;

	mask->set = from != NULL;
	if (from == NULL)
		return 0;
	memset(&wanted, 0, sizeof(wanted));
	if (vma_memcpy_or_efault(&wanted, from, KERNEL_BYTES) < 0)
		return -EFAULT;
	replace_sigmask(&wanted, &mask->before, self);
	return 0;
}

/* What is held back now stays so if the old mask blocks it: sent to the thread again, it is pending as before. */
void iomux_sigmask_restore(struct iomux_sigmask *mask, struct vma_thread *self)
{
	if (mask->set)
		replace_sigmask(&mask->before, NULL, self);
}

/* Nobody but the caller's own frame is inside this thread: leaving lets the handlers run now. */
int iomux_run_held_signals_return_eintr(struct vma_thread *self)
{
	uint32_t before = self->signals;

	if (!vma_thread_has_deferred_work(self, VMA_HELD_SIGNALS) || self->inside != 1)
		return 0;
	vma_leave(self);
	vma_enter();
	return self->signals != before ? -EINTR : 0;
}
