/*
 * privileges - calls by which a process gives up what a start of the engine takes.
 *
 * A daemon opens its sockets and forks. Its child changes root and user and forbids itself new processes (RLIMIT_NPROC,
 * which counts threads) before it first uses the sockets. The engine's threads could not be started any more then. So
 * if a child has sockets of ours from its parent, it starts its engine before the first such call. So does a program
 * that has inherited a listener through exec: connections may wait for it with its parent.
 *
 * A limit of address space (RLIMIT_AS) is the program's estimate of what it needs itself. vsftpd's sessions allow
 * themselves 200 MB, and the library's reservations alone take more than a gigabyte. So the limit is widened by what
 * the library holds.
 */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/bufpool.h>

#include "call.h"
#include "more.h"

static void start_engine_before_privilege_drop(void)
{
	if (library_is_started_in_process() && !process_is_vfork_child())
		vma_engine_start_if_open_files_need_it();
}

#define EXPORT_PRIVILEGE_DROPPING_CALL(name, parameters, arguments)                                                    \
	EXPORT(int, name, parameters)                                                                                  \
	{                                                                                                              \
		start_engine_before_privilege_drop();                                                                  \
		return libc_functions_get()->name arguments;                                                           \
	}

EXPORT_PRIVILEGE_DROPPING_CALL(chroot, (const char *path), (path))
EXPORT_PRIVILEGE_DROPPING_CALL(initgroups, (const char *user, gid_t group), (user, group))
EXPORT_PRIVILEGE_DROPPING_CALL(setgroups, (size_t n, const gid_t *groups), (n, groups))
EXPORT_PRIVILEGE_DROPPING_CALL(setgid, (gid_t gid), (gid))
EXPORT_PRIVILEGE_DROPPING_CALL(setregid, (gid_t real, gid_t effective), (real, effective))
EXPORT_PRIVILEGE_DROPPING_CALL(setresgid, (gid_t real, gid_t effective, gid_t saved), (real, effective, saved))
EXPORT_PRIVILEGE_DROPPING_CALL(setuid, (uid_t uid), (uid))
EXPORT_PRIVILEGE_DROPPING_CALL(setreuid, (uid_t real, uid_t effective), (real, effective))
EXPORT_PRIVILEGE_DROPPING_CALL(setresuid, (uid_t real, uid_t effective, uid_t saved), (real, effective, saved))

/* Beside the arenas: the internal thread, queues, statistics, what starts later. */
#define OTHER_BYTES ((rlim_t)256 << 20)

static int set_resource_limit_by_syscall(int resource, const void *limit)
{
	return (int)syscall(SYS_prlimit64, 0, resource, limit, NULL);
}

static rlim_t limit_plus_library_address_space(rlim_t limit)
{
	const rlim_t own = vma_bufarena_reserved_bytes() + OTHER_BYTES;

	return limit > RLIM_INFINITY - own ? RLIM_INFINITY : limit + own;
}

/* A hard limit that may not be raised stays as the program gives it; the soft limit goes up to it. */
static int set_widened_address_space_limit(const void *given)
{
	struct vma_thread *self = vma_enter();
	struct rlimit limit, wide;
	const int rc = vma_memcpy_or_efault(&limit, given, sizeof(limit));

	vma_leave(self);
	if (rc != 0 || limit.rlim_cur > limit.rlim_max)
		return set_resource_limit_by_syscall(RLIMIT_AS, given); /* the kernel says what is wrong */
	wide = (struct rlimit){.rlim_cur = limit_plus_library_address_space(limit.rlim_cur),
	                       .rlim_max = limit_plus_library_address_space(limit.rlim_max)};
	if (set_resource_limit_by_syscall(RLIMIT_AS, &wide) == 0)
		return 0;
	wide.rlim_max = limit.rlim_max;
	if (wide.rlim_cur > wide.rlim_max)
		wide.rlim_cur = wide.rlim_max;
	return set_resource_limit_by_syscall(RLIMIT_AS, &wide);
}

/*
 * By number, as the C library does it, and without a look-up: a sanitizer's runtime sets limits before instrumented
 * code may run, and the look-up is such code in a build for it.
 */
#define EXPORT_SETRLIMIT_CALL(name)                                                                                    \
	EXPORT(int, name, (int resource, const void *limit))                                                           \
	{                                                                                                              \
		if (resource == RLIMIT_NPROC)                                                                          \
			start_engine_before_privilege_drop();                                                          \
		if (resource == RLIMIT_AS && limit != NULL && library_is_started_in_process())                         \
			return set_widened_address_space_limit(limit);                                                 \
		return set_resource_limit_by_syscall(resource, limit);                                                 \
	}

EXPORT_SETRLIMIT_CALL(setrlimit)
EXPORT_SETRLIMIT_CALL(setrlimit64)
