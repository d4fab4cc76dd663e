/*
 * handlers - sigaction and all that the C library builds upon it.
 *
 * The C library's signal() and its relatives call its own sigaction inside, where the wrapping of handlers (sock) does
 * not see them. So they are here once more, by way of our sigaction. Their meaning is that of signal(2),
 * sysv_signal(3), sigset(3) and siginterrupt(3).
 */
#include <signal.h>
#include <string.h>

#include <vma/sock_engine.h>

#include "call.h"
#include "more.h"

/* Signals whose handlers interrupt system calls: siginterrupt(sig, 1). */
static _Atomic uint64_t signals_that_interrupt_calls;

/* A vfork child has dispositions of its own, but our record of handlers is its parent's. */
static int set_signal_action(int sig, const struct sigaction *action, struct sigaction *old)
{
	struct vma_thread *self;
	int rc;

	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) == NULL || process_is_vfork_child())
		return vma_os.sigaction(sig, action, old);
	self = vma_enter();
	vma_inet_flush_sends(self);
	rc = vma_sigaction(sig, action, old); /* sets errno itself */
	vma_leave(self);
	return rc;
}

EXPORT(int, sigaction, (int sig, const struct sigaction *action, struct sigaction *old))
{
	return set_signal_action(sig, action, old);
}
ALIAS(int, __sigaction, sigaction, (int sig, const struct sigaction *action, struct sigaction *old))

static uint64_t signal_bit_of(int sig)
{
	return sig > 0 && sig < NSIG ? 1ULL << (sig - 1) : 0;
}

static sighandler_t set_signal_handler(int sig, sighandler_t handler, int flags, bool blocks_itself)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, old;

	sigemptyset(&action.sa_mask);
	if (handler == SIG_ERR || (blocks_itself && sigaddset(&action.sa_mask, sig) < 0)) {
		errno = EINVAL;
		return SIG_ERR;
	}
	return set_signal_action(sig, &action, &old) < 0 ? SIG_ERR : old.sa_handler;
}

EXPORT(sighandler_t, signal, (int sig, sighandler_t handler))
{
	const bool interrupts = (atomic_load(&signals_that_interrupt_calls) & signal_bit_of(sig)) != 0;

	return set_signal_handler(sig, handler, interrupts ? 0 : SA_RESTART, true);
}
ALIAS(sighandler_t, bsd_signal, signal, (int sig, sighandler_t handler))
ALIAS(sighandler_t, ssignal, signal, (int sig, sighandler_t handler))

EXPORT(sighandler_t, sysv_signal, (int sig, sighandler_t handler))
{
	return set_signal_handler(sig, handler, (int)(SA_RESETHAND | SA_NODEFER), false);
}
ALIAS(sighandler_t, __sysv_signal, sysv_signal, (int sig, sighandler_t handler))

EXPORT(int, sigignore, (int sig))
{
	return set_signal_handler(sig, SIG_IGN, 0, false) == SIG_ERR ? -1 : 0;
}

EXPORT(sighandler_t, sigset, (int sig, sighandler_t handler))
{
	struct sigaction old;
	sigset_t set, was;

	sigemptyset(&set);
	if (handler == SIG_ERR || sigaddset(&set, sig) < 0) {
		errno = EINVAL;
		return SIG_ERR;
	}
	if (handler == SIG_HOLD) {
		if (sigprocmask(SIG_BLOCK, &set, &was) < 0 || set_signal_action(sig, NULL, &old) < 0)
			return SIG_ERR;
		return sigismember(&was, sig) ? SIG_HOLD : old.sa_handler;
	}
	handler = set_signal_handler(sig, handler, 0, false);
	if (handler == SIG_ERR || sigprocmask(SIG_UNBLOCK, &set, &was) < 0)
		return SIG_ERR;
	return sigismember(&was, sig) ? SIG_HOLD : handler;
}

EXPORT(int, siginterrupt, (int sig, int interrupt))
{
	struct sigaction action;

	if (set_signal_action(sig, NULL, &action) < 0)
		return -1;
	if (interrupt) {
		atomic_fetch_or(&signals_that_interrupt_calls, signal_bit_of(sig));
		action.sa_flags &= ~SA_RESTART;
	} else {
		atomic_fetch_and(&signals_that_interrupt_calls, ~signal_bit_of(sig));
		action.sa_flags |= SA_RESTART;
	}
	return set_signal_action(sig, &action, NULL);
}
