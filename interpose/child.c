/*
 * child - calls that make processes.
 *
 * fork runs the handlers of process.c, and so do the C library's functions on top of it (daemon, forkpty). A clone
 * without CLONE_VM is a fork without handlers: they are run around it. vfork, clone with CLONE_VM, posix_spawn, system
 * and popen borrow our memory until they call exec. Nothing is done for them, and calls of such a child leave our
 * tables alone (process_is_vfork_child).
 */
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <vma/sock_engine.h>

#include "call.h"
#include "more.h"

/* The child will end or execute: what it calls for that is looked up here, once, and not in each child. */
EXPORT(pid_t, fork, (void))
{
	libc_functions_get();
	return vma_os.fork();
}
ALIAS(pid_t, __fork, fork, (void))

/*
 * Returns twice on one stack, so nothing of ours may be on it: a jump. The pointer is looked up before the process
 * splits.
 */
__typeof__(pid_t(*)(void)) child_real_vfork __attribute__((visibility("hidden")));
void child_resolve_real_vfork(void) __attribute__((visibility("hidden")));
void child_resolve_real_vfork(void)
{
	child_real_vfork = (pid_t(*)(void))dlsym(RTLD_NEXT, "vfork");
}

#if defined(__x86_64__)
__asm__(".pushsection .text\n"
        ".globl vfork, __vfork\n"
        ".type vfork, @function\n"
        ".type __vfork, @function\n"
        "vfork:\n"
        "__vfork:\n"
        "	endbr64\n"
        "	cmpq $0, child_real_vfork(%rip)\n"
        "	jne 1f\n"
        "	subq $8, %rsp\n"
        "	call child_resolve_real_vfork\n"
        "	addq $8, %rsp\n"
        "1:	jmp *child_real_vfork(%rip)\n"
        ".size vfork, . - vfork\n"
        ".size __vfork, . - __vfork\n"
        ".popsection\n");
#elif defined(__aarch64__)
__asm__(".pushsection .text\n"
        ".globl vfork, __vfork\n"
        ".type vfork, %function\n"
        ".type __vfork, %function\n"
        "vfork:\n"
        "__vfork:\n"
        "	adrp x16, child_real_vfork\n"
        "	ldr x16, [x16, :lo12:child_real_vfork]\n"
        "	cbnz x16, 1f\n"
        "	stp x29, x30, [sp, -16]!\n"
        "	bl child_resolve_real_vfork\n"
        "	ldp x29, x30, [sp], 16\n"
        "	adrp x16, child_real_vfork\n"
        "	ldr x16, [x16, :lo12:child_real_vfork]\n"
        "1:	br x16\n"
        ".size vfork, . - vfork\n"
        ".size __vfork, . - __vfork\n"
        ".popsection\n");
#else
/* A fork does all that a program may expect of vfork. */
EXPORT(pid_t, vfork, (void))
{
	return vma_os.fork();
}
ALIAS(pid_t, __vfork, vfork, (void))
#endif

/* The C library puts /dev/null under 0, 1 and 2 itself. */
EXPORT(int, daemon, (int nochdir, int noclose))
{
	int rc = libc_functions_get()->daemon(nochdir, noclose);

	if (rc == 0 && !noclose)
		for (int fd = 0; fd <= 2; fd++)
			return_new_fd_forget_old_file(fd);
	return rc;
}

/*
 * The child of posix_spawn copies and executes inside the C library. Whatever number it is told to copy a socket to,
 * the new program gets it: the connection goes to the kernel here, before the child is made, and in the process whose
 * it is.
 */
EXPORT(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t * actions, int fd, int to))
{
	int rc = libc_functions_get()->posix_spawn_file_actions_adddup2(actions, fd, to);

	if (rc == 0 && !FD_IS_NOT_OURS(fd))
		hand_over_fd_to_kernel(fd);
	return rc;
}

/* ---- clone ---- */

struct clone_call {
	int (*run)(void *arg);
	void *arg;
};

/*
 * The child's first function, on its copy of this process's memory. When it returns, the C library ends this thread
 * only: threads of an engine that the child has made would keep the process.
 */
static int run_clone_child_function(void *arg)
{
	struct clone_call clone_call = *(struct clone_call *)arg;
	int rc;

	process_after_fork_in_child();
	rc = clone_call.run(clone_call.arg);
	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) != NULL)
		_exit(rc);
	return rc;
}

EXPORT(int, clone,
       (int (*run)(void *), void *stack, int flags, void *arg, void *parent_tid, void *tls, void *child_tid))
{
	struct clone_call clone_call = {.run = run, .arg = arg};
	int rc, saved;

	if (run == NULL || stack == NULL || (flags & CLONE_VM) != 0 || !library_is_started_in_process())
		return libc_functions_get()->clone(run, stack, flags, arg, parent_tid, tls, child_tid);
	process_before_fork();
	rc = libc_functions_get()->clone(run_clone_child_function, stack, flags, &clone_call, parent_tid, tls,
	                                 child_tid);
	saved = errno;
	process_after_fork_in_parent();
	errno = saved;
	return rc;
}
ALIAS(int, __clone, clone,
      (int (*run)(void *), void *stack, int flags, void *arg, void *parent_tid, void *tls, void *child_tid))
