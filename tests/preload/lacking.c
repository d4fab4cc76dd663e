/*
 * lacking - runs a program as on a kernel that lacks something: a system call fails, for it and all that it starts.
 *
 *   lacking af_xdp EAFNOSUPPORT|EPERM|ENOSYS PROGRAM [ARGUMENT...]    socket(AF_XDP, ...)
 *   lacking bpf    EAFNOSUPPORT|EPERM|ENOSYS PROGRAM [ARGUMENT...]    bpf()
 *   lacking memfd  EAFNOSUPPORT|EPERM|ENOSYS PROGRAM [ARGUMENT...]    memfd_create()
 *
 * As root: without CAP_SYS_ADMIN a filter is allowed only where no program gains privileges, which is to be tried too.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NONE 0xffffffffU /* no system call's number */

static int lacking_errno_by_name(const char *name)
{
	static const int known[] = {EAFNOSUPPORT, EPERM, ENOSYS};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(strerrorname_np(known[i]), name) == 0)
			return known[i];
	return 0;
}

/* The low half of the first argument: the machines that this is built for are little-endian. */
static int seccomp_fail_syscall(unsigned socket_of_xdp, unsigned call, int error)
{
	struct sock_filter code[] = {
	        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 3, 0),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, socket_of_xdp, 0, 3),
	        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_XDP, 0, 1),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
	const int error = argc > 3 ? lacking_errno_by_name(argv[2]) : 0;
	int rc = -1;

	if (error != 0 && strcmp(argv[1], "af_xdp") == 0)
		rc = seccomp_fail_syscall(SYS_socket, NONE, error);
	else if (error != 0 && strcmp(argv[1], "bpf") == 0)
		rc = seccomp_fail_syscall(NONE, SYS_bpf, error);
	else if (error != 0 && strcmp(argv[1], "memfd") == 0)
		rc = seccomp_fail_syscall(NONE, SYS_memfd_create, error);
	else
		fprintf(stderr, "usage: lacking af_xdp|bpf|memfd EAFNOSUPPORT|EPERM|ENOSYS PROGRAM...\n");
	if (rc != 0)
		return 2;
	execvp(argv[3], argv + 3);
	perror(argv[3]);
	return 2;
}
