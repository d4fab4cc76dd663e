/*
 * privileges - calls by which a process gives up what a start of the engine takes.
 *
 * A daemon opens its sockets, forks, and its child changes root and user and forbids itself new processes
 * (RLIMIT_NPROC, which counts threads) before it first uses them. The engine's threads could not be started any more
 * then. So a child that has sockets of ours from its parent starts its engine before the first such call.
 */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "call.h"
#include "more.h"

static void before_drop(void)
{
	if (process_started() && !process_is_borrowed())
		vma_engine_start_early();
}

#define DROPPING(name, parameters, arguments)                                                                          \
	EXPORT(int, name, parameters)                                                                                  \
	{                                                                                                              \
		before_drop();                                                                                         \
		return more()->name arguments;                                                                         \
	}

DROPPING(chroot, (const char *path), (path))
DROPPING(initgroups, (const char *user, gid_t group), (user, group))
DROPPING(setgroups, (size_t n, const gid_t *groups), (n, groups))
DROPPING(setgid, (gid_t gid), (gid))
DROPPING(setregid, (gid_t real, gid_t effective), (real, effective))
DROPPING(setresgid, (gid_t real, gid_t effective, gid_t saved), (real, effective, saved))
DROPPING(setuid, (uid_t uid), (uid))
DROPPING(setreuid, (uid_t real, uid_t effective), (real, effective))
DROPPING(setresuid, (uid_t real, uid_t effective, uid_t saved), (real, effective, saved))

/*
 * By number, as the C library does it, and without a look-up: a sanitizer's runtime sets limits before instrumented
 * code may run, and the look-up is such code in a build for it.
 */
#define LIMITING(name)                                                                                                 \
	EXPORT(int, name, (int resource, const void *limit))                                                           \
	{                                                                                                              \
		if (resource == RLIMIT_NPROC)                                                                          \
			before_drop();                                                                                 \
		return (int)syscall(SYS_prlimit64, 0, resource, limit, NULL);                                          \
	}

LIMITING(setrlimit)
LIMITING(setrlimit64)
