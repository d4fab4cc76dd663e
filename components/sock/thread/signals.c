/*
 * signals - the application's handlers, wrapped: they do not run while the thread is inside, and a fault in
 * vma_memcpy_or_efault is an answer.
 *
 * If a signal meets a thread inside, it is put back, not kept. The wrapper has all signals blocked in the context to
 * which it returns. It queues the same signal, with the same siginfo, to the thread again. When the thread leaves, its
 * mask is restored and the kernel delivers the waiting signals. Their order, masks and stack are the right ones.
 *
 * A signal that a fault raises (SIGSEGV and its relatives with a positive si_code) cannot be put back. It goes to the
 * application's handler at once, or to the default action. If another process or thread sends the same signal, it must
 * wait, but it cannot be blocked, or a fault would kill. One signal of each number is kept in the thread, as the kernel
 * keeps one, and queued at the end.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock_callback.h>
#include <vma/sock_os.h>

#include "thread.h"

#define SIGNALS 65
#define CHECK_INTERVAL_NSEC 10000000 /* between two looks for handlers that were installed unseen */
#define KERNEL_MASK_BYTES 8          /* what the kernel has of a sigset_t */

typedef void (*signal_handler_fn)(int sig, siginfo_t *info, void *context);
#define DEFAULT ((signal_handler_fn)(void *)SIG_DFL)
#define IGNORE ((signal_handler_fn)(void *)SIG_IGN)

/* What the application has installed. Read by the wrapper without a lock: handler and flags need not be of one moment,
 * since every handler may be called with three arguments. */
static struct {
	_Atomic(signal_handler_fn) handler;
	_Atomic int flags;
	sigset_t mask; /* under the lock */
	bool wrapped;  /* under the lock */
} signals[SIGNALS] __attribute__((section(".bss.far")));
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool started;
bool signals_are_not_intercepted;
static bool log_fault_signals, log_interrupt_signals; /* constant after the start */

static bool sigaction_is_dfl_or_ign(signal_handler_fn handler)
{
	return handler == DEFAULT || handler == IGNORE;
}

/* Those that vma_memcpy_or_efault may raise. */
static bool is_fault_signal(int sig)
{
	return sig == SIGSEGV || sig == SIGBUS;
}

/* What an instruction may raise. */
static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
#define FAULTS ((int)(sizeof(faults) / sizeof(*faults)))
_Static_assert(sizeof(((struct vma_thread *)0)->deferred_siginfo) / sizeof(siginfo_t) == FAULTS, "a place for each");

/* Its index, -1: none of them. */
static int fault_signal_index(int sig)
{
	int i = FAULTS - 1;

	while (i >= 0 && faults[i] != sig)
		i--;
	return i;
}

static bool is_raised_by_instruction(int sig, const siginfo_t *info)
{
	return info->si_code > 0 && fault_signal_index(sig) >= 0;
}

static void rt_sigqueue_to_self(int sig, siginfo_t *info)
{
	syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), sig, info);
}

static uint64_t sigset_bit_of(int sig)
{
	return UINT64_C(1) << (sig - 1);
}

/* What must come through even now: faults are answers (vma_memcpy_or_efault), and two signals are the C library's own.
 * */
static void fill_mask_of_signals_to_block(sigset_t *mask)
{
	uint64_t bits = ~(sigset_bit_of(32) | sigset_bit_of(33));

	for (int i = 0; i < FAULTS; i++)
		bits &= ~sigset_bit_of(faults[i]);
	memcpy(mask, &bits, KERNEL_MASK_BYTES);
}

static void defer_signal(struct vma_thread *self, int index, const siginfo_t *info)
{
	if (self->deferred_signals & 1U << index)
		return;
	self->deferred_siginfo[index] = *info;
	self->deferred_signals |= 1U << index;
}

/* With everything blocked, so that they come when the mask is given back. */
static void requeue_deferred_signals(struct vma_thread *self)
{
	const uint64_t all = UINT64_MAX;

	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, NULL, KERNEL_MASK_BYTES);
	for (int i = 0; i < FAULTS; i++)
		if (self->deferred_signals & 1U << i)
			rt_sigqueue_to_self(faults[i], &self->deferred_siginfo[i]);
	self->deferred_signals = 0;
}

/*
 * Inside: all signals wait until the thread leaves. Several may have been delivered on top of each other, this one in
 * the middle of another's wrapper. With everything blocked first, whatever comes on top has ended before the mask is
 * kept, so the outermost, which returns to the library, is the last to keep it, and has the application's.
 */
static void signal_requeue_while_inside(struct vma_thread *self, int sig, siginfo_t *info, ucontext_t *context)
{
	const int index = fault_signal_index(sig);
	sigset_t mask;

	fill_mask_of_signals_to_block(&mask);
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, NULL, KERNEL_MASK_BYTES);
	memcpy(&self->mask, &context->uc_sigmask, KERNEL_MASK_BYTES);
	atomic_fetch_or_explicit(&self->held, VMA_HELD_SIGNALS, memory_order_relaxed);
	fill_mask_of_signals_to_block(&context->uc_sigmask);
	if (index >= 0)
		defer_signal(self, index, info);
	else
		rt_sigqueue_to_self(sig, info);
}

static void signals_requeue_deferred_and_unblock(struct vma_thread *self)
{
	sigset_t mask;
	int saved = errno;

	if (self->deferred_signals != 0)
		requeue_deferred_signals(self);
	memcpy(&mask, &self->mask, KERNEL_MASK_BYTES);
	atomic_fetch_and_explicit(&self->held, (uint8_t)~VMA_HELD_SIGNALS, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, KERNEL_MASK_BYTES);
	errno = saved;
}

/* Signals first: a callback may take long. */
void vma_leave_run_deferred(struct vma_thread *self)
{
	if (vma_thread_has_deferred_work(self, VMA_HELD_SIGNALS))
		signals_requeue_deferred_and_unblock(self);
	if (vma_thread_has_deferred_work(self, VMA_HELD_CALLBACKS))
		vma_callbacks_run(self);
}

/* The default action, by the kernel's own hand. It is installed first: a fault in what is told then ends the process.
 * */
static void signal_take_default_action(int sig, siginfo_t *info)
{
	struct sigaction action = {.sa_handler = SIG_DFL};

	vma_os.sigaction(sig, &action, NULL);
	if (sig == SIGSEGV && log_fault_signals)
		backtrace_log_signal(sig, info);
	if (!is_raised_by_instruction(sig, info)) /* else the instruction runs again, and raises it again */
		rt_sigqueue_to_self(sig, info);
}

/*
 * SA_RESETHAND, which is not given to the kernel: a signal put back would meet the default action. False: another
 * thread's signal was the one, and this one is for the default action.
 */
static bool signal_reset_one_shot_handler(int sig, signal_handler_fn handler)
{
	struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = atomic_load(&signals[sig].flags)};

	if (!atomic_compare_exchange_strong(&signals[sig].handler, &handler, DEFAULT))
		return false;
	if (!is_fault_signal(sig))
		vma_os.sigaction(sig, &action, NULL);
	return true;
}

/* What a thread of ours had to say for the kernel, of a descriptor that is ready (stream, F_SETSIG). */
static void restore_sigio_si_code(siginfo_t *info)
{
	if (info->si_code == SI_SIGIO)
		info->si_code = info->si_band & POLLERR ? POLL_ERR : info->si_band & POLLIN ? POLL_IN : POLL_OUT;
}

static void call_app_handler(int sig, siginfo_t *info, void *context)
{
	signal_handler_fn handler = atomic_load(&signals[sig].handler);
	int flags = atomic_load(&signals[sig].flags);

	if (handler == IGNORE && !is_raised_by_instruction(sig, info))
		return;
	if (sig == SIGINT && log_interrupt_signals)
		vma_log_info("interrupted by SIGINT, sent by process %d", (int)info->si_pid);
	if (sigaction_is_dfl_or_ign(handler) ||
	    ((flags & SA_RESETHAND) && !signal_reset_one_shot_handler(sig, handler))) {
		signal_take_default_action(sig, info);
		return;
	}
	restore_sigio_si_code(info);
	handler(sig, info, context);
}

static void handler_wrapper(int sig, siginfo_t *info, void *context)
{
	struct vma_thread *self = vma_thread_cache;
	int saved = errno;

	if (self == NULL || is_raised_by_instruction(sig, info)) {
		call_app_handler(sig, info, context);
		return;
	}
	if (self->inside != 0) {
		signal_requeue_while_inside(self, sig, info, context);
		errno = saved;
		return;
	}
	self->signals++;
	if ((atomic_load(&signals[sig].flags) & SA_RESTART) == 0)
		self->interrupts++;
	vma_wait_suspend_for_signal_handler(self);
	errno = saved;
	call_app_handler(sig, info, context);
	vma_wait_wake_after_signal_handler(self);
}

/*
 * Has the interrupted code go on at the __builtin_setjmp of `resume` (frame pointer, label, stack pointer) when the
 * handler returns. So the handler does return: the kernel takes back what it set up for it, and ThreadSanitizer, which
 * counts handlers, sees this one end.
 */
static void signal_resume_at_setjmp(ucontext_t *uc, void *const *resume)
{
#if defined(__x86_64__)
	uc->uc_mcontext.gregs[REG_RBP] = (greg_t)resume[0];
	uc->uc_mcontext.gregs[REG_RIP] = (greg_t)resume[1];
	uc->uc_mcontext.gregs[REG_RSP] = (greg_t)resume[2];
#elif defined(__aarch64__)
	uc->uc_mcontext.regs[29] = (uint64_t)resume[0];
	uc->uc_mcontext.pc = (uint64_t)resume[1];
	uc->uc_mcontext.sp = (uint64_t)resume[2];
#else
	(void)uc;
	__builtin_longjmp((void **)resume, 1);
#endif
}

/* SIGSEGV and SIGBUS, always ours. */
static void fault_handler(int sig, siginfo_t *info, void *context)
{
	struct vma_thread *self = vma_thread_cache;
	ucontext_t *uc = context;
	sigset_t mask;

	if (self != NULL && self->copying && is_raised_by_instruction(sig, info)) {
		signal_resume_at_setjmp(uc, self->copy_resume);
		return;
	}
	mask = signals[sig].mask;
	if ((atomic_load(&signals[sig].flags) & SA_NODEFER) == 0)
		sigaddset(&mask, sig);
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, NULL, KERNEL_MASK_BYTES);
	handler_wrapper(sig, info, context);
}

static int install_fault_signal_handler(int sig, int user_flags)
{
	struct sigaction action = {.sa_sigaction = fault_handler};

	sigemptyset(&action.sa_mask);
	action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK | (user_flags & SA_RESTART);
	return vma_os.sigaction(sig, &action, NULL);
}

static void record_app_sigaction(int sig, const struct sigaction *action)
{
	atomic_store(&signals[sig].flags, action->sa_flags);
	atomic_store(&signals[sig].handler, action->sa_sigaction);
	signals[sig].mask = action->sa_mask;
}

/* Under the lock. What the application wants, in the form in which the kernel is to have it. */
static int install_wrapped_sigaction(int sig, const struct sigaction *wanted)
{
	struct sigaction action = *wanted;
	int rc;

	if (is_fault_signal(sig)) {
		record_app_sigaction(sig, wanted);
		signals[sig].wrapped = true;
		return install_fault_signal_handler(sig, wanted->sa_flags);
	}
	/* If it is to be told, the default action is acted by the wrapper. */
	if (action.sa_sigaction == IGNORE ||
	    (action.sa_sigaction == DEFAULT && !(sig == SIGINT && log_interrupt_signals))) {
		rc = vma_os.sigaction(sig, &action, NULL);
		if (rc == 0)
			signals[sig].wrapped = false;
		return rc;
	}
	action.sa_sigaction = handler_wrapper;
	action.sa_flags = (action.sa_flags | SA_SIGINFO) & ~SA_RESETHAND;
	if (!signals[sig].wrapped)
		record_app_sigaction(sig, wanted); /* before the wrapper can run */
	rc = vma_os.sigaction(sig, &action, NULL);
	if (rc == 0) {
		record_app_sigaction(sig, wanted);
		signals[sig].wrapped = true;
	}
	return rc;
}

/* Under the lock. */
static int signal_current_sigaction(int sig, struct sigaction *out)
{
	int rc = vma_os.sigaction(sig, NULL, out);

	if (rc != 0 || (out->sa_sigaction != handler_wrapper && out->sa_sigaction != fault_handler))
		return rc;
	out->sa_sigaction = atomic_load(&signals[sig].handler);
	out->sa_flags = atomic_load(&signals[sig].flags);
	out->sa_mask = signals[sig].mask;
	return 0;
}

/*
 * Under the lock. Wraps handlers that were installed unseen: by the C library's own sigaction in a program that has
 * opened this library by name, or by a system call. How many of them there were, and how many restart calls.
 */
static void wrap_new_handlers(unsigned *found, unsigned *restarting)
{
	struct sigaction action;

	*found = *restarting = 0;
	for (int sig = 1; sig < SIGNALS; sig++) {
		if (vma_os.sigaction(sig, NULL, &action) != 0 || action.sa_sigaction == handler_wrapper ||
		    action.sa_sigaction == fault_handler ||
		    (sigaction_is_dfl_or_ign(action.sa_sigaction) && !is_fault_signal(sig)))
			continue;
		install_wrapped_sigaction(sig, &action);
		if (sigaction_is_dfl_or_ign(action.sa_sigaction))
			continue;
		++*found;
		*restarting += (action.sa_flags & SA_RESTART) != 0;
	}
}

/*
 * The C library's own signals (setuid, pthread_cancel) end a sleep as well, and restart calls: so does what is not
 * found here. If several handlers are found, nobody knows which of them ran: then the call ends.
 */
void signals_wrap_new_and_count_interrupt(struct vma_thread *self)
{
	unsigned found, restarting;

	pthread_mutex_lock(&lock);
	wrap_new_handlers(&found, &restarting);
	pthread_mutex_unlock(&lock);
	if (found == 0)
		return;
	self->signals++;
	if (restarting < found)
		self->interrupts++;
}

void signals_wrap_new_handlers_if_due(void)
{
	static _Atomic uint64_t due_tsc;
	uint64_t now = vma_tsc(), due = atomic_load_explicit(&due_tsc, memory_order_relaxed);
	unsigned found, restarting;

	/* One of the threads that spin. */
	if (now < due || !atomic_compare_exchange_strong(&due_tsc, &due, now + vma_tsc_of_nsec(CHECK_INTERVAL_NSEC)))
		return;
	pthread_mutex_lock(&lock);
	wrap_new_handlers(&found, &restarting);
	pthread_mutex_unlock(&lock);
}

int vma_sigaction(int sig, const struct sigaction *action, struct sigaction *old)
{
	struct sigaction before = {0}, wanted = {0};
	struct vma_thread *self;
	int rc;

	if (!atomic_load_explicit(&started, memory_order_acquire) || sig <= 0 || sig >= SIGNALS)
		return vma_os.sigaction(sig, action, old);
	if (action != NULL)
		wanted = *action; /* here, where a bad pointer finds nothing locked */
	self = vma_enter();
	pthread_mutex_lock(&lock);
	rc = signal_current_sigaction(sig, &before);
	if (rc == 0 && action != NULL)
		rc = install_wrapped_sigaction(sig, &wanted);
	pthread_mutex_unlock(&lock);
	vma_leave(self);
	if (rc == 0 && old != NULL)
		*old = before;
	return rc;
}

void vma_signals_reinit_lock_in_forked_child(void)
{
	pthread_mutex_init(&lock, NULL);
}

void vma_signals_set_logging(bool faults, bool interrupts)
{
	log_fault_signals = faults;
	log_interrupt_signals = interrupts;
	if (faults)
		backtrace_load_unwinder();
}

void vma_signals_wrap_existing_handlers(void)
{
	struct vma_thread *self = vma_enter();
	struct sigaction action;

	pthread_mutex_lock(&lock);
	if (!atomic_load(&started)) {
		signals_are_not_intercepted = dlsym(RTLD_DEFAULT, "sigaction") == (void *)vma_os.sigaction;
		vma_tsc_of_nsec(1); /* measured now, not in somebody's first wait */
		for (int sig = 1; sig < SIGNALS; sig++)
			if (vma_os.sigaction(sig, NULL, &action) == 0 &&
			    (is_fault_signal(sig) || (sig == SIGINT && log_interrupt_signals) ||
			     !sigaction_is_dfl_or_ign(action.sa_sigaction)))
				install_wrapped_sigaction(sig, &action);
		atomic_store_explicit(&started, true, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	vma_leave(self);
}

/* Zero bytes are nowhere written to, but the address is looked at. */
bool vma_exceeds_user_space(const void *base, size_t size)
{
	const uintptr_t end = (uintptr_t)base + size;

	return end < size || (syscall(SYS_getrandom, end, (size_t)0, GRND_NONBLOCK) < 0 && errno == EFAULT);
}

/* The pointers are the application's, and may be anything. */
__attribute__((no_sanitize("undefined"))) int vma_memcpy_or_efault(void *to, const void *from, size_t size)
{
	vma_thread_self();
	if (size == 0) /* of nothing any address is good, but not for memcpy */
		return 0;
	if (__builtin_setjmp(vma_thread_cache->copy_resume) != 0) {
		vma_thread_cache->copying = false;
		return -EFAULT;
	}
	vma_thread_cache->copying = true;
	atomic_signal_fence(memory_order_seq_cst);
	memcpy(to, from, size);
	atomic_signal_fence(memory_order_seq_cst);
	vma_thread_cache->copying = false;
	return 0;
}
