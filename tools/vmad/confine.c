/*
 * confine - see confine.h: the capabilities that vmad keeps, and a seccomp filter that lists the allowed system calls
 * by name.
 *
 * A call that is not in the list fails with EPERM. So a forgotten call costs vmad one feature, and not its life. If the
 * filter cannot be installed, vmad runs without it and logs that.
 */
#include "confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

/*
 * vmad keeps these of the capabilities that it was started with. Besides packets, the program and its maps, they are
 * for packet memory that is pinned, for ports below 1024 of connections that are handed over, and for files of
 * statistics that other users' killed processes have left. Before Linux 5.8 CAP_SYS_ADMIN stands for CAP_BPF and
 * CAP_PERFMON.
 */
static int vmad_drop_capabilities(void)
{
	static const unsigned needed[] = {CAP_NET_RAW,         CAP_NET_ADMIN, CAP_BPF,
	                                  CAP_PERFMON,         CAP_IPC_LOCK,  CAP_NET_BIND_SERVICE,
	                                  CAP_DAC_READ_SEARCH, CAP_FOWNER};
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct has[2] = {0}, keeps[2] = {0};
	const uint32_t split_off = CAP_TO_MASK(CAP_BPF) | CAP_TO_MASK(CAP_PERFMON);

	if (syscall(SYS_capget, &head, has) != 0)
		return -errno;
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		keeps[CAP_TO_INDEX(needed[i])].permitted |= CAP_TO_MASK(needed[i]);
	if ((has[1].effective & split_off) != split_off)
		keeps[0].permitted |= CAP_TO_MASK(CAP_SYS_ADMIN);
	for (int i = 0; i < 2; i++) {
		keeps[i].effective = keeps[i].permitted & has[i].effective;
		keeps[i].permitted &= has[i].permitted;
	}
	return syscall(SYS_capset, &head, keeps) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : -errno;
}

/*
 * By name, as a call that this machine's architecture has not is left out then. More than a trace shows: what the C
 * library may choose in another version, and what abort, a stack protector and the allocators do at the end.
 *
 * Not there, above all: to execute, to trace or write into another process, to mount, to change users, to load modules,
 * io_uring, user namespaces, and keys.
 */
static const char *const allowed[] = {
        /* the device, and its clients */
        "bpf", "socket", "socketpair", "bind", "connect", "listen", "accept", "accept4", "shutdown", "getsockname",
        "getpeername", "getsockopt", "setsockopt", "sendto", "sendmsg", "sendmmsg", "recvfrom", "recvmsg", "recvmmsg",
        "ioctl", "poll", "ppoll", "ppoll_time64", "select", "pselect6", "epoll_create1", "epoll_ctl", "epoll_wait",
        "epoll_pwait", "epoll_pwait2", "eventfd2", "timerfd_create", "timerfd_settime", "timerfd_gettime", "pidfd_open",
        "pidfd_send_signal", "kcmp",
        /* memory */
        "mmap", "munmap", "mremap", "mprotect", "madvise", "mlock", "mlock2", "munlock", "brk", "memfd_create",
        "membarrier", "get_mempolicy", "mbind",
        /* files: what /proc and /sys say, statistics, logs, the socket's folder */
        "open", "openat", "openat2", "close", "close_range", "read", "readv", "pread64", "preadv", "write", "writev",
        "pwrite64", "pwritev", "lseek", "ftruncate", "fallocate", "fcntl", "flock", "dup", "dup2", "dup3", "pipe",
        "pipe2", "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs", "access", "faccessat",
        "faccessat2", "readlink", "readlinkat", "getdents64", "unlink", "unlinkat", "rename", "renameat", "renameat2",
        "mkdir", "mkdirat", "rmdir", "chmod", "fchmod", "fchmodat", "fchown", "fchownat", "umask", "getcwd", "chdir",
        "fchdir", "fsync", "fdatasync",
        /* processes: the daemon, vmad-repair, threads */
        "fork", "vfork", "wait4", "waitid", "exit", "exit_group", "setsid", "getpgrp", "getpgid", "getsid", "getpid",
        "getppid", "gettid", "kill", "tgkill", "set_robust_list", "get_robust_list", "set_tid_address", "rseq", "futex",
        "futex_waitv", "arch_prctl", "prctl", "capget", "capset", "getuid", "geteuid", "getgid", "getegid", "getgroups",
        "getresuid", "getresgid", "sched_yield", "sched_getaffinity", "sched_setaffinity", "sched_getparam",
        "sched_getscheduler", "getpriority", "setpriority", "prlimit64", "getrlimit", "setrlimit", "getrusage",
        "getcpu", "sysinfo", "uname", "seccomp",
        /* signals and time */
        "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigtimedwait", "rt_sigsuspend",
        "rt_sigqueueinfo", "rt_tgsigqueueinfo", "sigaltstack", "signalfd4", "restart_syscall", "pause", "nanosleep",
        "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time", "times", "getrandom",
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        "ptrace", "personality", "process_vm_readv", /* of the leak checker */
#endif
};

/* clone, but for namespaces. A filter cannot see the arguments of clone3, without which the C library calls clone. */
static int seccomp_allow_clone(scmp_filter_ctx filter)
{
	const scmp_datum_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
	                                CLONE_NEWPID | CLONE_NEWNET;
	int rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
	                          SCMP_A0(SCMP_CMP_MASKED_EQ, namespaces, 0));

	return rc != 0 ? rc : seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
}

/* -EPERM, and not the process's end: a call that nobody has thought of costs one feature then. */
static int vmad_install_seccomp_filter(void)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	int rc = filter != NULL ? 0 : -ENOMEM;

	for (size_t i = 0; rc == 0 && i < sizeof(allowed) / sizeof(allowed[0]); i++) {
		const int call = seccomp_syscall_resolve_name(allowed[i]);

		if (call != __NR_SCMP_ERROR && call >= 0)
			rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0);
	}
	if (rc == 0)
		rc = seccomp_allow_clone(filter);
	if (rc == 0)
		rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a tree, and no list of 150 */
	if (rc == 0)
		rc = seccomp_load(filter);
	seccomp_release(filter);
	return rc;
}

int vmad_confine(void)
{
	int rc = vmad_drop_capabilities();

	if (rc < 0)
		return rc;
	rc = vmad_install_seccomp_filter();
	if (rc < 0)
		vma_log_info("vmad: system calls are not filtered: %s", strerror(-rc));
	return 0;
}
