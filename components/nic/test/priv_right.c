/*
 * priv_right - what the right to be a client of vmad is good for in a child's hands, for tests/hostile/rights.sh.
 *
 *   priv_right INTERFACE
 *
 * Run as root; children become nobody. A line for each answer.
 */
#include <errno.h>
#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../xdp/proto.h"

enum { NOBODY_UID = 65534 };

static unsigned ifindex;

static void right_exit_with_error(const char *what)
{
	perror(what);
	exit(2);
}

static int connect_to_vmad_address(void)
{
	struct sockaddr_un address;
	const socklen_t len = vmad_address(ifindex, &address);
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&address, len) < 0)
		right_exit_with_error("connect");
	return fd;
}

/* vmad's answer to who shows this; the connection stays. */
static int vmad_hello_result_with_right(int fd, int right)
{
	struct vmad_msg msg = {.magic = VMAD_MAGIC, .version = VMAD_VERSION, .type = VMAD_HELLO};
	struct pollfd answer = {.fd = fd, .events = POLLIN};
	int fds[VMAD_FDS_MAX], rc;
	unsigned nfds;
	size_t bytes;

	rc = vmad_send_message_with_fds(fd, &msg, &right, 1);
	if (rc == 0 && poll(&answer, 1, 5000) == 1)
		rc = vmad_receive_message(fd, &msg, &bytes, fds, &nfds);
	return rc < 0 ? rc : rc == 0 ? -EPIPE : msg.result;
}

static void right_print_result(const char *what, int rc)
{
	printf("%s: %s\n", what, rc < 0 ? strerrordesc_np(-rc) : "ok");
	fflush(stdout);
}

static void show_right_and_print_answer(const char *what, int right)
{
	const int fd = connect_to_vmad_address();

	right_print_result(what, vmad_hello_result_with_right(fd, right));
	close(fd);
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0};

	if (syscall(SYS_capset, &head, none) < 0)
		right_exit_with_error("capset");
}

static void switch_to_user_nobody(void)
{
	if (setresgid(NOBODY_UID, NOBODY_UID, NOBODY_UID) < 0 || setresuid(NOBODY_UID, NOBODY_UID, NOBODY_UID) < 0)
		right_exit_with_error("setresuid");
}

static void run_in_child_as_user(void (*become)(void), void (*what)(int right), int right)
{
	pid_t child = fork();

	if (child == 0) {
		become();
		what(right);
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static void right_of_same_user_case(int right)
{
	show_right_and_print_answer("a child of the same user without capabilities", right);
}

static void right_is_passed_to_other_user_case(int right)
{
	const uint32_t mark = 0x76800000u | ifindex; /* MARK_ANY_USER */

	show_right_and_print_answer("a child that became nobody", right);
	right_print_result("it makes the right good for all", vmad_permission_socket_set_mark(right, ifindex, true));
	right_print_result(
	        "it marks a socket of its own",
	        setsockopt(socket(AF_UNIX, SOCK_DGRAM, 0), SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) < 0 ? -errno : 0);
}

static void right_for_any_user_case(int right)
{
	show_right_and_print_answer("a child that became nobody, with a right for all", right);
}

static void right_of_other_interface_case(int right)
{
	show_right_and_print_answer("with a right of another interface", right);
}

/* And again, after it has been thrown out. */
static void break_vmad_protocol_and_show_right_again(int right)
{
	const int fd = connect_to_vmad_address();
	char end;

	right_print_result("a child that breaks the protocol, at first", vmad_hello_result_with_right(fd, right));
	if (send(fd, "nonsense", 8, 0) != 8)
		right_exit_with_error("send");
	while (recv(fd, &end, 1, 0) > 0)
		;
	show_right_and_print_answer("it shows its right again", right);
}

int main(int argc, char **argv)
{
	int right;

	ifindex = argc == 2 ? if_nametoindex(argv[1]) : 0;
	if (ifindex == 0)
		return 1;
	right = vmad_permission_socket_create(ifindex, argv[1]);
	if (right < 0)
		right_exit_with_error("a right");
	run_in_child_as_user(drop_capabilities, right_of_same_user_case, right);
	run_in_child_as_user(switch_to_user_nobody, right_is_passed_to_other_user_case, right);
	if (vmad_permission_socket_set_mark(right, ifindex, true) < 0)
		right_exit_with_error("for all");
	run_in_child_as_user(switch_to_user_nobody, right_for_any_user_case, right);
	run_in_child_as_user(switch_to_user_nobody, right_of_other_interface_case,
	                     vmad_permission_socket_create(ifindex + 1, argv[1]));
	run_in_child_as_user(switch_to_user_nobody, break_vmad_protocol_and_show_right_again, right);
	run_in_child_as_user(switch_to_user_nobody, right_for_any_user_case, right);
	return 0;
}
