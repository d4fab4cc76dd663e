/* The application's handlers: none runs inside, and outside all is as if they were not wrapped. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/sock_os.h>
#include <vma/test.h>

#include "../thread/thread.h"

#define RT (SIGRTMIN + 3)
#define TIMEOUT_MS 10000 /* with a child */

/* What the handlers have seen, in order. */
static struct seen {
	int sig, code, value;
	pid_t from;
	sigset_t mask;
	uint32_t inside;
	char *stack;
} seen[32];
static volatile sig_atomic_t n_seen;
static sigjmp_buf back;

static void handler_record_signal(int sig, siginfo_t *info, void *context)
{
	struct seen *now = &seen[n_seen % 32];
	char here;

	(void)context;
	*now = (struct seen){.sig = sig, .code = info->si_code, .from = info->si_pid};
	now->value = info->si_value.sival_int;
	now->inside = vma_thread_self()->inside;
	now->stack = &here + 0;
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &now->mask, 8);
	n_seen++;
}

static void handler_record_signal_number(int sig)
{
	siginfo_t none = {0};

	handler_record_signal(sig, &none, NULL);
}

static void handler_longjmp_back(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

static void set_handler_by_vma_sigaction(int sig, void (*handler)(int sig, siginfo_t *info, void *context), int flags)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};

	sigemptyset(&action.sa_mask);
	assert_int_equal(vma_sigaction(sig, &action, NULL), 0);
}

/* Raised for this thread, as raise() does, but the C library blocks no signals meanwhile. */
static void raise_by_tgkill(int sig)
{
	assert_int_equal(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), sig), 0);
}

static void sigqueue_to_this_thread(int sig, int value)
{
	assert_int_equal(pthread_sigqueue(pthread_self(), sig, (union sigval){.sival_int = value}), 0);
}

static bool signal_is_blocked(int sig)
{
	sigset_t now;

	assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &now), 0);
	return sigismember(&now, sig) == 1;
}

static sigset_t sigset_of_two(int a, int b)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, a);
	sigaddset(&set, b);
	return set;
}

static int setup_reset_seen_signals(void **state)
{
	(void)state;
	n_seen = 0;
	memset(seen, 0, sizeof(seen));
	return 0;
}

static int teardown_expect_signals_unblocked(void **state)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	const int used[] = {SIGUSR1, SIGUSR2, SIGHUP, RT};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(vma_sigaction(used[i], &action, NULL), 0);
		assert_false(signal_is_blocked(used[i]));
	}
	assert_int_equal(vma_thread_self()->inside, 0);
	assert_false(vma_thread_has_deferred_work(vma_thread_self(), VMA_HELD_SIGNALS));
	return 0;
}

/* ---- held back ---- */

static void test_handler_runs_when_the_thread_leaves(void **state)
{
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	assert_int_equal(n_seen, 0);
	vma_leave(self);
	assert_int_equal(n_seen, 1);
	assert_int_equal(seen[0].sig, SIGUSR1);
	assert_int_equal(seen[0].inside, 0);
}

static void test_handler_runs_at_once_outside(void **state)
{
	(void)state;
	vma_leave(vma_enter());
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	raise_by_tgkill(SIGUSR1);
	assert_int_equal(n_seen, 1);
}

static void test_handler_waits_for_the_outermost_leave(void **state)
{
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	self = vma_enter();
	vma_enter();
	raise_by_tgkill(SIGUSR1);
	vma_leave(self);
	assert_int_equal(n_seen, 0);
	vma_leave(self);
	assert_int_equal(n_seen, 1);
}

static void test_handler_gets_the_siginfo_it_would_have_got(void **state)
{
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	set_handler_by_vma_sigaction(RT, handler_record_signal, 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	sigqueue_to_this_thread(RT, 4711);
	vma_leave(self);
	assert_int_equal(n_seen, 2);
	for (int i = 0; i < 2; i++) {
		bool queued = seen[i].sig == RT;

		assert_int_equal(seen[i].code, queued ? SI_QUEUE : SI_TKILL);
		assert_int_equal(seen[i].from, getpid());
		assert_int_equal(seen[i].value, queued ? 4711 : 0);
	}
}

static void test_realtime_signals_come_in_their_order(void **state)
{
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(RT, handler_record_signal, 0);
	self = vma_enter();
	for (int i = 0; i < 20; i++)
		sigqueue_to_this_thread(RT, i);
	assert_int_equal(n_seen, 0);
	vma_leave(self);
	assert_int_equal(n_seen, 20);
	for (int i = 0; i < 20; i++)
		assert_int_equal(seen[i].value, i);
}

/* They are delivered one on top of the other, the second in the middle of the first one's wrapper. */
static void test_signals_that_come_together_leave_the_mask_as_it_was(void **state)
{
	sigset_t both = sigset_of_two(SIGUSR1, SIGUSR2), before;
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	set_handler_by_vma_sigaction(SIGUSR2, handler_record_signal, 0);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, &both, &before), 0);
	raise_by_tgkill(SIGUSR1);
	raise_by_tgkill(SIGUSR2);
	self = vma_enter();
	assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
	assert_int_equal(n_seen, 0);
	vma_leave(self);
	assert_int_equal(n_seen, 2);
	assert_int_equal(seen[0].sig + seen[1].sig, SIGUSR1 + SIGUSR2);
	assert_false(signal_is_blocked(SIGUSR1));
	assert_false(signal_is_blocked(SIGUSR2));
}

static void test_blocked_signal_stays_blocked(void **state)
{
	sigset_t one = sigset_of_two(SIGUSR2, SIGUSR2), before;
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	set_handler_by_vma_sigaction(SIGUSR2, handler_record_signal, 0);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, &one, &before), 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR2);
	raise_by_tgkill(SIGUSR1);
	vma_leave(self);
	assert_int_equal(n_seen, 1);
	assert_true(signal_is_blocked(SIGUSR2));
	assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
	assert_int_equal(n_seen, 2);
}

static void test_leaving_keeps_errno(void **state)
{
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	errno = EXDEV;
	vma_leave(self);
	assert_int_equal(n_seen, 1);
	assert_int_equal(errno, EXDEV);
}

static void test_handlers_are_counted_with_those_that_interrupt(void **state)
{
	struct vma_thread *self = vma_thread_self();
	uint32_t signals = self->signals, interrupts = self->interrupts;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, SA_RESTART);
	set_handler_by_vma_sigaction(SIGUSR2, handler_record_signal, 0);
	raise_by_tgkill(SIGUSR1);
	assert_int_equal(self->signals, signals + 1);
	assert_int_equal(self->interrupts, interrupts);
	vma_enter();
	raise_by_tgkill(SIGUSR2);
	assert_int_equal(self->signals, signals + 1);
	vma_leave(self);
	assert_int_equal(self->signals, signals + 2);
	assert_int_equal(self->interrupts, interrupts + 1);
}

static void test_handler_may_jump_out_when_the_thread_leaves(void **state)
{
	struct sigaction action = {.sa_handler = handler_longjmp_back};
	volatile int jumped = 0;

	(void)state;
	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	while (jumped < 3) {
		if (sigsetjmp(back, 1) == 0) {
			struct vma_thread *self = vma_enter();

			raise_by_tgkill(SIGUSR1);
			vma_leave(self);
			fail();
		}
		jumped++;
		assert_int_equal(vma_thread_self()->inside, 0);
		assert_false(signal_is_blocked(SIGUSR1));
	}
}

/* A handler calls in as well, and is interrupted there by the next one. */
static void handler_enter_library_and_raise_another(int sig, siginfo_t *info, void *context)
{
	struct vma_thread *self = vma_enter();

	if (sig == SIGUSR1)
		raise_by_tgkill(SIGUSR2);
	vma_leave(self);
	handler_record_signal(sig, info, context);
}

static void test_handler_that_calls_in_is_interrupted_when_it_leaves(void **state)
{
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_enter_library_and_raise_another, 0);
	set_handler_by_vma_sigaction(SIGUSR2, handler_enter_library_and_raise_another, 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	vma_leave(self);
	assert_int_equal(n_seen, 2);
	assert_int_equal(seen[0].sig, SIGUSR2);
	assert_int_equal(seen[1].sig, SIGUSR1);
}

/* ---- as installed ---- */

static void test_mask_and_nodefer_hold_while_the_handler_runs(void **state)
{
	struct sigaction action = {.sa_sigaction = handler_record_signal, .sa_flags = SA_SIGINFO};

	(void)state;
	action.sa_mask = sigset_of_two(SIGUSR2, SIGHUP);
	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	for (int nodefer = 0; nodefer < 2; nodefer++) {
		struct vma_thread *self = vma_enter();
		int now = n_seen;

		raise_by_tgkill(SIGUSR1);
		vma_leave(self);
		assert_int_equal(n_seen, now + 1);
		assert_true(sigismember(&seen[now].mask, SIGUSR2));
		assert_true(sigismember(&seen[now].mask, SIGHUP));
		assert_int_equal(sigismember(&seen[now].mask, SIGUSR1), !nodefer);
		assert_false(sigismember(&seen[now].mask, SIGTERM));
		action.sa_flags |= SA_NODEFER;
		assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	}
}

static void test_handler_runs_on_the_alternate_stack(void **state)
{
	static char alternate[1 << 20];
	const stack_t mine = {.ss_sp = alternate, .ss_size = sizeof(alternate)};
	const stack_t none = {.ss_flags = SS_DISABLE};
	struct vma_thread *self;
	stack_t was;

	(void)state;
	assert_int_equal(sigaltstack(&mine, &was), 0);
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, SA_ONSTACK);
	set_handler_by_vma_sigaction(SIGUSR2, handler_record_signal, 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	vma_leave(self);
	raise_by_tgkill(SIGUSR1);
	raise_by_tgkill(SIGUSR2);
	assert_int_equal(n_seen, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(seen[i].stack >= alternate && seen[i].stack < alternate + sizeof(alternate), i < 2);
	assert_int_equal(sigaltstack((was.ss_flags & SS_DISABLE) ? &none : &was, NULL), 0);
}

static void test_resethand_is_for_one_signal(void **state)
{
	struct sigaction now;
	struct vma_thread *self;

	(void)state;
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, SA_RESETHAND);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	assert_int_equal(vma_sigaction(SIGUSR1, NULL, &now), 0);
	assert_ptr_equal(now.sa_sigaction, handler_record_signal);
	vma_leave(self);
	assert_int_equal(n_seen, 1);
	assert_int_equal(vma_sigaction(SIGUSR1, NULL, &now), 0);
	assert_ptr_equal(now.sa_handler, SIG_DFL);
}

static void test_old_action_is_the_applications_own(void **state)
{
	struct sigaction action = {.sa_sigaction = handler_record_signal, .sa_flags = SA_SIGINFO | SA_NODEFER}, old;

	(void)state;
	action.sa_mask = sigset_of_two(SIGHUP, SIGUSR2);
	assert_int_equal(vma_sigaction(SIGUSR1, &action, &old), 0);
	assert_ptr_equal(old.sa_handler, SIG_DFL);
	action.sa_handler = handler_record_signal_number;
	action.sa_flags = SA_RESTART;
	assert_int_equal(vma_sigaction(SIGUSR1, &action, &old), 0);
	assert_ptr_equal(old.sa_sigaction, handler_record_signal);
	assert_int_equal(old.sa_flags & (SA_SIGINFO | SA_NODEFER | SA_RESTART | SA_RESETHAND), SA_SIGINFO | SA_NODEFER);
	assert_true(sigismember(&old.sa_mask, SIGHUP) && sigismember(&old.sa_mask, SIGUSR2));
	assert_false(sigismember(&old.sa_mask, SIGTERM));
	action.sa_handler = SIG_IGN;
	action.sa_flags = 0;
	assert_int_equal(vma_sigaction(SIGUSR1, &action, &old), 0);
	assert_ptr_equal(old.sa_handler, handler_record_signal_number);
	assert_int_equal(old.sa_flags & (SA_SIGINFO | SA_RESTART), SA_RESTART);
	action.sa_handler = SIG_DFL;
	assert_int_equal(vma_sigaction(SIGUSR1, &action, &old), 0);
	assert_ptr_equal(old.sa_handler, SIG_IGN);
}

static void test_handler_of_one_argument_is_called(void **state)
{
	struct sigaction action = {.sa_handler = handler_record_signal_number};
	struct vma_thread *self;

	(void)state;
	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	vma_leave(self);
	assert_int_equal(n_seen, 1);
}

static void test_what_the_kernel_refuses_is_refused(void **state)
{
	struct sigaction action = {.sa_handler = handler_record_signal_number}, old;

	(void)state;
	errno = 0;
	assert_int_equal(vma_sigaction(SIGKILL, &action, NULL), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(vma_sigaction(0, &action, NULL), -1);
	assert_int_equal(vma_sigaction(65, &action, NULL), -1);
	assert_int_equal(vma_sigaction(-1, NULL, &old), -1);
}

static void test_ignored_signal_is_nothing(void **state)
{
	struct sigaction action = {.sa_handler = SIG_IGN};
	struct vma_thread *self;
	uint32_t signals;

	(void)state;
	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	self = vma_enter();
	signals = self->signals;
	raise_by_tgkill(SIGUSR1);
	vma_leave(self);
	assert_int_equal(self->signals, signals);
}

static void test_handler_of_before_the_start_is_wrapped(void **state)
{
	struct sigaction now;
	struct vma_thread *self;

	(void)state;
	assert_int_equal(vma_sigaction(SIGWINCH, NULL, &now), 0);
	assert_ptr_equal(now.sa_sigaction, handler_record_signal);
	self = vma_enter();
	raise_by_tgkill(SIGWINCH);
	assert_int_equal(n_seen, 0);
	vma_leave(self);
	assert_int_equal(n_seen, 1);
}

/* ---- death ---- */

/* How a child ends that does this; one that does not end is killed, which is no expected end. */
static int run_in_child_get_status(void (*what)(void))
{
	int status = 0;
	pid_t child = fork(), ended = 0;

	if (child == 0) {
		what();
		_exit(0);
	}
	for (int ms = 0; ms < TIMEOUT_MS && ended == 0; ms++) {
		ended = waitpid(child, &status, WNOHANG);
		usleep(ended == 0 ? 1000 : 0);
	}
	if (ended == 0) {
		kill(child, SIGKILL);
		ended = waitpid(child, &status, 0);
	}
	assert_int_equal(ended, child);
	return status;
}

static void assert_killed_by(int sig, int status)
{
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), sig);
}

static void child_raise_twice_with_resethand(void)
{
	struct vma_thread *self;

	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, SA_RESETHAND);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	vma_leave(self);
	if (n_seen != 1)
		_exit(1);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	vma_leave(self);
}

static void set_default_while_signal_is_held(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	struct vma_thread *self;

	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	vma_sigaction(SIGUSR1, &action, NULL);
	vma_leave(self);
}

static void set_ignore_while_signal_is_held(void)
{
	struct sigaction action = {.sa_handler = SIG_IGN};
	struct vma_thread *self;

	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	self = vma_enter();
	raise_by_tgkill(SIGUSR1);
	vma_sigaction(SIGUSR1, &action, NULL);
	vma_leave(self);
	_exit(n_seen);
}

static void segv_by_kill(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};

	vma_sigaction(SIGSEGV, &action, NULL);
	raise_by_tgkill(SIGSEGV);
}

static void test_second_signal_after_resethand_kills(void **state)
{
	(void)state;
	assert_killed_by(SIGUSR1, run_in_child_get_status(child_raise_twice_with_resethand));
}

static void test_action_that_changes_meanwhile_holds(void **state)
{
	(void)state;
	assert_killed_by(SIGUSR1, run_in_child_get_status(set_default_while_signal_is_held));
	assert_int_equal(run_in_child_get_status(set_ignore_while_signal_is_held), 0);
}

static void test_sigsegv_by_kill_kills(void **state)
{
	(void)state;
	assert_killed_by(SIGSEGV, run_in_child_get_status(segv_by_kill));
}

/* ---- what is told of them ---- */

static int signal_log_fd;
static char told[8192];

/* As with VMA_HANDLE_SIGSEGV and VMA_HANDLE_SIGINTR. */
static void log_all_signals_of_process(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", signal_log_fd);
	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = path});
	vma_signals_set_logging(true, true);
	vma_sigaction(SIGINT, &action, NULL);
	vma_sigaction(SIGSEGV, &action, NULL); /* cmocka's, until now */
}

/* How a child ends that does this, and what it has told. */
static int run_in_child_get_status_and_log(void (*what)(void))
{
	int status;
	ssize_t n;

	signal_log_fd = memfd_create("told", 0);
	status = run_in_child_get_status(what);
	n = pread(signal_log_fd, told, sizeof(told) - 1, 0);
	told[n > 0 ? n : 0] = '\0';
	close(signal_log_fd);
	return status;
}

#ifndef __SANITIZE_ADDRESS__ /* which has a handler of its own */
static int *volatile bad_place = (int *)16;

static void child_write_bad_address_with_signal_log(void)
{
	log_all_signals_of_process();
	*bad_place = 1;
}

static void child_write_bad_address_without_log(void)
{
	log_all_signals_of_process();
	vma_signals_set_logging(false, false);
	*bad_place = 1;
}
#endif

static void child_raise_segv_expect_handler_runs(void)
{
	log_all_signals_of_process();
	set_handler_by_vma_sigaction(SIGSEGV, handler_record_signal, 0);
	raise_by_tgkill(SIGSEGV);
	_exit(n_seen == 1 ? 0 : 1);
}

static void child_raise_sigint_default_action(void)
{
	log_all_signals_of_process();
	raise_by_tgkill(SIGINT);
}

static void child_raise_sigint_inside_library(void)
{
	struct vma_thread *self;

	log_all_signals_of_process();
	self = vma_enter();
	raise_by_tgkill(SIGINT);
	vma_leave(self);
}

static void child_raise_sigint_expect_handler_runs(void)
{
	struct sigaction old;

	log_all_signals_of_process();
	if (vma_sigaction(SIGINT, NULL, &old) != 0 || old.sa_handler != SIG_DFL)
		_exit(1);
	set_handler_by_vma_sigaction(SIGINT, handler_record_signal, 0);
	raise_by_tgkill(SIGINT);
	_exit(n_seen == 1 ? 0 : 2);
}

static void child_raise_ignored_sigint(void)
{
	struct sigaction action = {.sa_handler = SIG_IGN};

	log_all_signals_of_process();
	vma_sigaction(SIGINT, &action, NULL);
	raise_by_tgkill(SIGINT);
}

static void test_a_fault_that_kills_is_told_with_its_calls(void **state)
{
	(void)state;
#ifndef __SANITIZE_ADDRESS__
	assert_killed_by(SIGSEGV, run_in_child_get_status_and_log(child_write_bad_address_with_signal_log));
	assert_ptr_equal(strstr(told, "VMA ERROR: signal 11 at address 0x10, after these calls:\n"), told);
	assert_non_null(strstr(told, "test_signals("));
	assert_non_null(strstr(told, "libc.so"));
	assert_killed_by(SIGSEGV, run_in_child_get_status_and_log(child_write_bad_address_without_log));
	assert_string_equal(told, "");
#endif
	assert_int_equal(run_in_child_get_status_and_log(child_raise_segv_expect_handler_runs), 0);
	assert_string_equal(told, "");
}

static void test_an_interrupt_is_told_and_acts_as_before(void **state)
{
	(void)state;
	assert_killed_by(SIGINT, run_in_child_get_status_and_log(child_raise_sigint_default_action));
	assert_ptr_equal(strstr(told, "VMA INFO: interrupted by SIGINT, sent by process "), told);
	assert_killed_by(SIGINT, run_in_child_get_status_and_log(child_raise_sigint_inside_library));
	assert_ptr_equal(strstr(told, "VMA INFO: interrupted by SIGINT, sent by process "), told);
	assert_int_equal(run_in_child_get_status_and_log(child_raise_sigint_expect_handler_runs), 0);
	assert_ptr_equal(strstr(told, "VMA INFO: interrupted by SIGINT, sent by process "), told);
	assert_int_equal(run_in_child_get_status_and_log(child_raise_ignored_sigint), 0);
	assert_string_equal(told, "");
}

/* ---- faults, and signals of their numbers that are none ---- */

static void segv_by_kill_inside(void)
{
	struct vma_thread *self;
	char byte = 0;

	set_handler_by_vma_sigaction(SIGSEGV, handler_record_signal, 0);
	set_handler_by_vma_sigaction(SIGTRAP, handler_record_signal, 0);
	self = vma_enter();
	raise_by_tgkill(SIGSEGV);
	raise_by_tgkill(SIGTRAP);
	if (n_seen != 0)
		_exit(1);
	if (vma_memcpy_or_efault(&byte, (void *)8, 1) != -EFAULT || vma_memcpy_or_efault(&byte, "x", 1) != 0)
		_exit(2);
	vma_leave(self);
	if (n_seen != 2 || seen[0].code != SI_TKILL || seen[1].code != SI_TKILL || seen[0].from != getpid())
		_exit(3);
	self = vma_enter();
	vma_leave(self);
	if (n_seen != 2 || signal_is_blocked(SIGSEGV) || signal_is_blocked(SIGTRAP))
		_exit(4);
}

static void test_sigsegv_by_kill_waits_until_the_thread_leaves(void **state)
{
	(void)state;
	assert_int_equal(run_in_child_get_status(segv_by_kill_inside), 0);
}

static void handler_record_fault_and_longjmp(int sig, siginfo_t *info, void *context)
{
	handler_record_signal(sig, info, context);
	siglongjmp(back, 1);
}

static void child_segv_inside_runs_handler(void)
{
	void *nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	set_handler_by_vma_sigaction(SIGSEGV, handler_record_fault_and_longjmp, 0);
	vma_enter();
	if (sigsetjmp(back, 1) == 0)
		*(volatile char *)nothing = 1;
	if (n_seen != 1 || seen[0].code <= 0 || seen[0].inside != 1)
		_exit(1);
	vma_leave(vma_thread_self());
}

static void test_fault_of_an_instruction_is_handled_at_once(void **state)
{
	(void)state;
	assert_int_equal(run_in_child_get_status(child_segv_inside_runs_handler), 0);
}

/* ---- threads and children ---- */

static _Atomic bool stop;

static void *thread_install_sighup_handler_repeatedly(void *arg)
{
	struct sigaction action = {.sa_handler = handler_record_signal_number};

	while (!atomic_load(&stop))
		vma_sigaction(SIGHUP, &action, NULL);
	return arg;
}

static void child_install_handler_and_raise_signal(void)
{
	vma_threads_reset_in_forked_child();
	set_handler_by_vma_sigaction(SIGUSR1, handler_record_signal, 0);
	raise_by_tgkill(SIGUSR1);
	_exit(n_seen == 1 ? 0 : 1);
}

static void test_child_may_install_whatever_a_thread_was_doing_at_the_fork(void **state)
{
	pthread_t thread;

	(void)state;
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, thread_install_sighup_handler_repeatedly, NULL), 0);
	for (int i = 0; i < 100; i++)
		assert_int_equal(run_in_child_get_status(child_install_handler_and_raise_signal), 0);
	atomic_store(&stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

#ifdef VMA_TSAN
static void skip_under_thread_sanitizer(void **state)
{
	(void)state;
	vma_test_skip("ThreadSanitizer keeps handlers back, and gives them a copy of the kernel's context");
}
#define T(test)                                                                                                        \
	{                                                                                                              \
#test, 0 ? test : skip_under_thread_sanitizer, 0 ? setup_reset_seen_signals : NULL,                    \
		        0 ? teardown_expect_signals_unblocked : NULL, NULL                                             \
	}
#else
#define T(test) cmocka_unit_test_setup_teardown(test, setup_reset_seen_signals, teardown_expect_signals_unblocked)
#endif

static const struct CMUnitTest tests[] = {
        T(test_handler_runs_when_the_thread_leaves),
        T(test_handler_runs_at_once_outside),
        T(test_handler_waits_for_the_outermost_leave),
        T(test_handler_gets_the_siginfo_it_would_have_got),
        T(test_realtime_signals_come_in_their_order),
        T(test_signals_that_come_together_leave_the_mask_as_it_was),
        T(test_blocked_signal_stays_blocked),
        T(test_leaving_keeps_errno),
        T(test_handlers_are_counted_with_those_that_interrupt),
        T(test_handler_may_jump_out_when_the_thread_leaves),
        T(test_handler_that_calls_in_is_interrupted_when_it_leaves),
        T(test_mask_and_nodefer_hold_while_the_handler_runs),
        T(test_handler_runs_on_the_alternate_stack),
        T(test_resethand_is_for_one_signal),
        T(test_old_action_is_the_applications_own),
        T(test_handler_of_one_argument_is_called),
        T(test_what_the_kernel_refuses_is_refused),
        T(test_ignored_signal_is_nothing),
        T(test_handler_of_before_the_start_is_wrapped),
        T(test_second_signal_after_resethand_kills),
        T(test_action_that_changes_meanwhile_holds),
        T(test_sigsegv_by_kill_kills),
        T(test_a_fault_that_kills_is_told_with_its_calls),
        T(test_an_interrupt_is_told_and_acts_as_before),
        T(test_sigsegv_by_kill_waits_until_the_thread_leaves),
        T(test_fault_of_an_instruction_is_handled_at_once),
        T(test_child_may_install_whatever_a_thread_was_doing_at_the_fork),
};

static int setup_signal_wrapping(void **state)
{
	struct sigaction action = {.sa_sigaction = handler_record_signal, .sa_flags = SA_SIGINFO};

	(void)state;
	if (vma_os.sigaction(SIGWINCH, &action, NULL) != 0)
		return -1;
	vma_signals_wrap_existing_handlers();
	vma_signals_wrap_existing_handlers(); /* does nothing */
	return 0;
}

VMA_TEST_MAIN_WITH(tests, setup_signal_wrapping, NULL)
