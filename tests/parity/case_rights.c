/*
 * rights: sockets that go to other processes in a message (SCM_RIGHTS), or are taken by pidfd_getfd.
 *
 * A taker is this program once more, started by exec, so it has nothing of its giver's but what it is given. It is
 * preloaded as the giver is, or plain. It does what it is told, by lines that come with or without descriptors, and
 * prints what it sees.
 */
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/raw_call.h>

#include "parity.h"

enum { TAKER_FD = 60, RIGHTS_MAX = 253, LINE = 128 };

union rights {
	struct cmsghdr head;
	char bytes[CMSG_SPACE((RIGHTS_MAX + 1) * sizeof(int))];
};

/* ---- messages ---- */

static void msghdr_put_scm_rights(struct msghdr *msg, union rights *rights, const int *fds, int n)
{
	memset(rights, 0, sizeof(*rights));
	rights->head = (struct cmsghdr){
	        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN((size_t)n * sizeof(int))};
	memcpy(CMSG_DATA(&rights->head), fds, (size_t)n * sizeof(int));
	msg->msg_control = rights;
	msg->msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
}

static ssize_t send_line_with_fds(int to, const char *line, const int *fds, int n)
{
	union rights rights;
	struct iovec piece = {.iov_base = (char *)line, .iov_len = strlen(line) + 1};
	struct msghdr msg = {.msg_iov = &piece, .msg_iovlen = 1};

	msghdr_put_scm_rights(&msg, &rights, fds, n);
	return sendmsg(to, &msg, 0);
}

/* What has come with a line is put into fds[at] and further; how many. */
static int receive_line_and_fds(int from, char *line, int *fds, int at, int flags)
{
	union rights rights;
	struct iovec piece = {.iov_base = line, .iov_len = LINE};
	struct msghdr msg = {
	        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof(rights)};
	ssize_t len = recvmsg(from, &msg, flags);
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int n = 0;

	if (len <= 0)
		return -1;
	line[len < LINE ? len : LINE - 1] = 0;
	if (c != NULL && c->cmsg_type == SCM_RIGHTS) {
		n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds + at, CMSG_DATA(c), (size_t)n * sizeof(int));
	}
	return n;
}

/* ---- the taker ---- */

static int had[RIGHTS_MAX + 1], n_had;

/* So many bytes in pieces of 1000, of the seeds from `seed` on; each is answered with as many, if wanted. */
static void recv_pieces_and_maybe_echo(int s, int pieces, int seed, int answers)
{
	char bytes[1000];
	int good = 0;

	for (int i = 0; i < pieces; i++) {
		if (recv(s, bytes, sizeof(bytes), MSG_WAITALL) != sizeof(bytes))
			break;
		good += seed_of_payload(bytes, sizeof(bytes)) == (seed + i) % 64;
		if (answers && send(s, bytes, sizeof(bytes), MSG_NOSIGNAL) != sizeof(bytes))
			break;
	}
	say("%d pieces are as they were sent", good);
}

static void rights_say_options(int s)
{
	static const int names[][2] = {{SOL_SOCKET, SO_KEEPALIVE},  {SOL_SOCKET, SO_RCVBUF},
	                               {SOL_SOCKET, SO_SNDBUF},     {IPPROTO_TCP, TCP_NODELAY},
	                               {IPPROTO_TCP, TCP_KEEPIDLE}, {IPPROTO_TCP, TCP_MAXSEG},
	                               {IPPROTO_IP, IP_TOS},        {IPPROTO_IP, IP_TTL},
	                               {IPPROTO_TCP, TCP_LINGER2},  {SOL_SOCKET, SO_RCVLOWAT}};
	struct linger linger = {0};
	socklen_t len = sizeof(linger);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		int value = -1;

		len = sizeof(value);
		getsockopt(s, names[i][0], names[i][1], &value, &len);
		say("option %d of level %d: %d", names[i][1], names[i][0], value);
	}
	len = sizeof(linger);
	getsockopt(s, SOL_SOCKET, SO_LINGER, &linger, &len);
	say("linger: %d, %d s", linger.l_onoff, linger.l_linger);
}

/* As a debugger or a supervisor takes it: what it has of a process is its number. */
static void steal_fd_by_pidfd(int pid, int fd, bool by_number)
{
	const int pidfd = pidfd_open(pid, 0);

	if (by_number)
		SAY_OK_OR_ERROR(had[n_had++] = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0));
	else
		SAY_OK_OR_ERROR(had[n_had++] = pidfd_getfd(pidfd, fd, 0));
	close(pidfd);
}

static void taker_do_command(const char *line)
{
	char verb[16] = "";
	int slot = 0, a = 0, b = 0, s;

	sscanf(line, "%15s %d %d %d", verb, &slot, &a, &b);
	s = had[slot];
	if (strcmp(verb, "have") == 0)
		return;
	if (strcmp(verb, "read") == 0)
		recv_and_print_result(s, (size_t)a, MSG_WAITALL);
	else if (strcmp(verb, "quick") == 0)
		recv_and_print_result(s, (size_t)a, MSG_DONTWAIT);
	else if (strcmp(verb, "write") == 0)
		send_pattern_and_print_result(s, (size_t)a, b, 0);
	else if (strcmp(verb, "pieces") == 0)
		recv_pieces_and_maybe_echo(s, a, b, 0);
	else if (strcmp(verb, "echo") == 0)
		recv_pieces_and_maybe_echo(s, a, b, 1);
	else if (strcmp(verb, "take") == 0)
		take(s, a, 0);
	else if (strcmp(verb, "all") == 0)
		receive_all_until_empty(s);
	else if (strcmp(verb, "steal") == 0)
		steal_fd_by_pidfd(a, b, slot != 0);
	else if (strcmp(verb, "listen") == 0)
		SAY_RESULT(listen(s, 5));
	else if (strcmp(verb, "accept") == 0)
		SAY_OK_OR_ERROR(had[n_had++] = wait_until_readable(s, 3000) ? accept(s, NULL, NULL) : -1);
	else if (strcmp(verb, "options") == 0)
		rights_say_options(s);
	else if (strcmp(verb, "flags") == 0)
		say("non-blocking: %d", (fcntl(s, F_GETFL) & O_NONBLOCK) != 0);
	else if (strcmp(verb, "close") == 0)
		SAY_RESULT(close(s));
	else if (strcmp(verb, "names") == 0) {
		say_local_address("its own name", s);
		say_peer_address("its peer", s);
	} else if (strcmp(verb, "connected") == 0) {
		wait_and_print_poll_events("after connect", s, POLLOUT, 3000);
		say_so_error(s);
	} else
		say("the taker does not know how to %s", verb);
}

/* In the taker: does what it is told, to the end. */
static bool serve_commands_if_taker_process(void)
{
	char line[LINE];
	int n;

	if (getenv("PARITY_TAKER") == NULL)
		return false;
	while ((n = receive_line_and_fds(TAKER_FD, line, had, n_had, 0)) >= 0) {
		n_had += n;
		taker_do_command(line);
		if (write(TAKER_FD, "done", 4) != 4)
			break;
	}
	return true;
}

/* ---- the giver ---- */

struct taker {
	pid_t pid;
	int fd;
};

extern char **environ;

static struct taker taker_start(const char *name, bool preloaded)
{
	static char *environment[256];
	char *const args[] = {(char *)this_program, (char *)name, NULL};
	posix_spawn_file_actions_t actions;
	struct taker taker;
	int ends[2], n = 0;

	for (char **e = environ; *e != NULL && n < 250; e++)
		if (preloaded || (strncmp(*e, "LD_PRELOAD=", 11) != 0 && strncmp(*e, "PARITY_PRELOAD=", 15) != 0))
			environment[n++] = *e;
	environment[n++] = (char *)"PARITY_TAKER=1";
	environment[n] = NULL;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
		die_with_message("socketpair");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], TAKER_FD);
	if (posix_spawn(&taker.pid, this_program, &actions, NULL, args, environment) != 0)
		die_with_message("posix_spawn");
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	taker.fd = ends[0];
	return taker;
}

static void wait_for_taker_answer(const struct taker *taker)
{
	char done[8];

	if (recv(taker->fd, done, sizeof(done), 0) <= 0)
		die_with_message("the taker has ended");
}

static void taker_give_fds(const struct taker *taker, const int *fds, int n)
{
	if (send_line_with_fds(taker->fd, "have", fds, n) < 0)
		die_with_message("sendmsg");
	wait_for_taker_answer(taker);
}

static void taker_give_one_fd(const struct taker *taker, int fd)
{
	taker_give_fds(taker, &fd, 1);
}

static void taker_send_command(const struct taker *taker, const char *line)
{
	if (send(taker->fd, line, strlen(line) + 1, 0) < 0)
		die_with_message("send to the taker");
}

static void taker_run_command(const struct taker *taker, const char *line)
{
	taker_send_command(taker, line);
	wait_for_taker_answer(taker);
}

/* The taker gets it by pidfd_getfd. */
static void taker_get_fd_by_pidfd_getfd(const struct taker *taker, int s, bool by_number)
{
	char line[LINE];

	snprintf(line, sizeof(line), "steal %d %d %d", by_number, (int)getpid(), s);
	taker_run_command(taker, line);
}

static void taker_end(const struct taker *taker)
{
	int status = -1;

	close(taker->fd);
	if (waitpid(taker->pid, &status, 0) != taker->pid)
		die_with_message("waitpid");
	say("the taker ended with %d", status);
}

static int rights_connected_udp(void)
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port);

	register_port_name(port, "peer");
	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	return s;
}

/* ---- connections ---- */

static void rights_case_accepted(const char *name, bool preloaded)
{
	struct taker taker = taker_start(name, preloaded);
	int s = tcp_accepted_from_far_peer(NULL);

	taker_give_one_fd(&taker, s);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	SAY_RESULT(close(s));
	far_peer_writes(1, 100, 1, 1);
	taker_run_command(&taker, "read 0 100");
	taker_run_command(&taker, "write 0 100 2");
	say_far_peer_reads(1, 100, 2, 1);
	taker_run_command(&taker, "close 0");
	say_far_peer_reads(1, 1, 0, 1);
	taker_end(&taker);
}

CASE(rights_accepted, "an accepted connection is given to another process, and closed by the giver")
{
	if (!serve_commands_if_taker_process())
		rights_case_accepted("rights_accepted", true);
}

CASE(rights_accepted_plain, "the same, to a process without the library")
{
	if (!serve_commands_if_taker_process())
		rights_case_accepted("rights_accepted_plain", false);
}

CASE(rights_connected, "a connection that was made here is given away with what was written and not read, and kept")
{
	struct taker taker;
	int s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_connected", true);
	s = tcp_connected_to_far_peer();
	send_pattern_and_print_result(s, 1000, 1, 0);
	far_peer_writes(1, 1000, 5, 3);
	wait_until_sent_packets_arrived(30);
	recv_and_print_result(s, 1000, MSG_WAITALL);
	taker_give_one_fd(&taker, s);
	taker_run_command(&taker, "names 0");
	taker_run_command(&taker, "read 0 1000");
	recv_and_print_result(s, 1000, MSG_WAITALL);
	taker_run_command(&taker, "write 0 1000 2");
	send_pattern_and_print_result(s, 1000, 3, 0);
	say_far_peer_reads(1, 1000, 1, 3);
	taker_run_command(&taker, "close 0");
	far_peer_writes(1, 100, 9, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
	taker_end(&taker);
}

CASE(rights_before_data, "given away before anything has come, and again to a second process; three have it")
{
	struct taker one, two;
	int s;

	if (serve_commands_if_taker_process())
		return;
	one = taker_start("rights_before_data", true);
	two = taker_start("rights_before_data", false);
	s = tcp_accepted_from_far_peer(NULL);
	taker_give_one_fd(&one, s);
	taker_give_one_fd(&two, s);
	for (int i = 1; i <= 3; i++) {
		far_peer_writes(1, 100, i, 1);
		if (i == 1)
			taker_run_command(&one, "read 0 100");
		else if (i == 2)
			taker_run_command(&two, "read 0 100");
		else
			recv_and_print_result(s, 100, MSG_WAITALL);
	}
	SAY_RESULT(close(s));
	taker_run_command(&one, "write 0 100 4");
	taker_run_command(&one, "close 0");
	taker_run_command(&two, "write 0 100 5");
	say_far_peer_reads(1, 100, 4, 2);
	taker_run_command(&two, "close 0");
	say_far_peer_reads(1, 1, 0, 1);
	taker_end(&one);
	taker_end(&two);
}

CASE(rights_streaming, "given away and closed while bytes stream in; the taker answers each piece")
{
	struct taker taker;
	char answers[LINE];
	int s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_streaming", true);
	s = tcp_accepted_from_far_peer(NULL);
	peer(far(), "later 1 write 1 1000 0 300 100");
	pause_ms(8);
	taker_give_one_fd(&taker, s);
	close(s);
	taker_send_command(&taker, "echo 0 300 0");
	snprintf(answers, sizeof(answers), "%s", peer(far(), "read 1 1000 0 300"));
	wait_for_taker_answer(&taker);
	say("the peer: %s", answers);
	taker_end(&taker);
}

CASE(rights_unsent, "given away and closed while more waits to be sent than the peer takes")
{
	struct taker taker;
	int s, pieces = 0;
	char bytes[1000];

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_unsent", true);
	s = tcp_connected_to_far_peer();
	set_int(s, SOL_SOCKET, SO_SNDBUF, 300000);
	for (; pieces < 500; pieces++) {
		fill(bytes, sizeof(bytes), pieces % 64);
		if (send(s, bytes, sizeof(bytes), MSG_DONTWAIT) != sizeof(bytes))
			break;
	}
	if (pieces < 100)
		die_with_message("only %d pieces fit", pieces);
	taker_give_one_fd(&taker, s);
	SAY_RESULT(close(s));
	taker_run_command(&taker, "close 0");
	say("the peer: %s", strncmp(peer(far(), "read 1 1000 0 %d", pieces), "failed", 6) == 0 ? "failed" : "has read");
	say_far_peer_reads(1, 1, 0, 1);
	taker_end(&taker);
}

CASE(rights_self, "given to the same process, by sendmmsg; the first number is closed")
{
	int s = tcp_accepted_from_far_peer(NULL), file = open("/dev/null", O_RDONLY), ends[2], fds[3], n;
	const int given[2] = {file, s};
	union rights rights;
	struct iovec piece = {.iov_base = "x", .iov_len = 1};
	struct mmsghdr msgs[2] = {{.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}},
	                          {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}}};
	char line[LINE];

	SAY_RESULT(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
	msghdr_put_scm_rights(&msgs[1].msg_hdr, &rights, given, 2);
	SAY_RESULT(sendmmsg(ends[0], msgs, 2, 0));
	SAY_RESULT(close(s));
	SAY_RESULT(receive_line_and_fds(ends[1], line, fds, 0, 0));
	SAY_RESULT(n = receive_line_and_fds(ends[1], line, fds, 0, MSG_CMSG_CLOEXEC));
	SAY_RESULT(fcntl(fds[1], F_GETFD));
	far_peer_writes(1, 100, 1, 1);
	recv_and_print_result(fds[1], 100, MSG_WAITALL);
	send_pattern_and_print_result(fds[1], 100, 2, 0);
	say_far_peer_reads(1, 100, 2, 1);
	SAY_RESULT(close(fds[1]));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(rights_peek, "a control message is looked at with MSG_PEEK, and brings the connection each time")
{
	int s = tcp_accepted_from_far_peer(NULL), ends[2], fds[2];
	char line[LINE];

	SAY_RESULT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	SAY_RESULT(send_line_with_fds(ends[0], "one", &s, 1));
	SAY_RESULT(close(s));
	SAY_RESULT(receive_line_and_fds(ends[1], line, fds, 0, MSG_PEEK));
	SAY_RESULT(receive_line_and_fds(ends[1], line, fds, 1, 0));
	far_peer_writes(1, 100, 1, 2);
	recv_and_print_result(fds[0], 100, MSG_WAITALL);
	SAY_RESULT(close(fds[0]));
	recv_and_print_result(fds[1], 100, MSG_WAITALL);
	send_pattern_and_print_result(fds[1], 100, 2, 0);
	say_far_peer_reads(1, 100, 2, 1);
	SAY_RESULT(close(fds[1]));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(rights_left, "given away, and the giver closes it and its socket before anybody has received it")
{
	int s = tcp_accepted_from_far_peer(NULL), ends[2];

	SAY_RESULT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	SAY_RESULT(send_line_with_fds(ends[0], "one", &s, 1));
	SAY_RESULT(close(s));
	SAY_RESULT(close(ends[0]));
	far_peer_writes(1, 100, 1, 1);
	SAY_RESULT(close(ends[1]));
	say("the peer: %s", peer(far(), "read 1 1 0 1"));
}

CASE(rights_several, "a file, a connection, a UDP socket, a pipe and a listener in one message")
{
	struct taker taker;
	int fds[5], ends[2];

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_several", true);
	SAY_RESULT(pipe(ends));
	fds[0] = open("/dev/zero", O_RDONLY);
	fds[1] = tcp_connected_to_far_peer();
	fds[2] = udp_socket_bound_to(here, 0);
	expect_offloaded(fds[2]);
	fds[3] = ends[0];
	fds[4] = tcp_listener(here, 0, 5);
	expect_offloaded(fds[4]);
	taker_give_fds(&taker, fds, 5);
	far_peer_writes(1, 100, 1, 1);
	taker_run_command(&taker, "read 1 100");
	peer_ask_to_open_socket(far(), 2, there, 7412);
	peer_send(far(), 2, here, port_of(fds[2]), 100, 2);
	taker_run_command(&taker, "take 2 2000");
	peer(far(), "dial 3 %s %d", here, port_of(fds[4]));
	taker_run_command(&taker, "accept 4");
	taker_run_command(&taker, "write 5 100 3");
	say_far_peer_reads(3, 100, 3, 1);
	taker_end(&taker);
}

CASE(rights_epoll, "a connection in an epoll set of the giver, which keeps it")
{
	struct taker taker;
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
	int s, set;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_epoll", true);
	s = tcp_accepted_from_far_peer(NULL);
	SAY_RESULT(set = epoll_create1(EPOLL_CLOEXEC) >= 0 ? 0 : -1);
	set = epoll_create1(EPOLL_CLOEXEC);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	taker_give_one_fd(&taker, s);
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	far_peer_writes(1, 200, 1, 1);
	SAY_RESULT(epoll_wait(set, &event, 1, 2000));
	recv_and_print_result(s, 100, MSG_WAITALL);
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	taker_run_command(&taker, "quick 0 200");
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL));
	SAY_RESULT(close(s));
	taker_run_command(&taker, "write 0 100 2");
	say_far_peer_reads(1, 100, 2, 1);
	taker_end(&taker);
}

CASE(rights_nonblocking, "a non-blocking connection, accepted so; nothing has come")
{
	struct taker taker;
	int at, s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_nonblocking", true);
	at = tcp_listener(here, 0, 5);
	expect_offloaded(at);
	peer(far(), "dial 1 %s %d", here, port_of(at));
	if (!wait_until_readable(at, 2000) || (s = accept4(at, NULL, NULL, SOCK_NONBLOCK)) < 0)
		die_with_message("accept");
	expect_offloaded(s);
	taker_give_one_fd(&taker, s);
	taker_run_command(&taker, "flags 0");
	taker_run_command(&taker, "quick 0 100");
	SAY_RESULT(close(s));
	far_peer_shuts_down(1, SHUT_WR);
	pause_ms(30);
	taker_run_command(&taker, "quick 0 100");
	taker_run_command(&taker, "write 0 100 1");
	say_far_peer_reads(1, 100, 1, 1);
	taker_end(&taker);
}

CASE(rights_half_closed, "a connection that the peer has closed, and one that the giver has shut for writing")
{
	struct taker taker;
	int s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_half_closed", true);
	s = tcp_accepted_from_far_peer(NULL);
	far_peer_writes(1, 100, 1, 1);
	far_peer_shuts_down(1, SHUT_WR);
	wait_until_sent_packets_arrived(30);
	taker_give_one_fd(&taker, s);
	close(s);
	taker_run_command(&taker, "read 0 100");
	taker_run_command(&taker, "read 0 100");
	taker_run_command(&taker, "write 0 100 2");
	taker_run_command(&taker, "close 0");
	say_far_peer_reads(1, 100, 2, 1);
	say_far_peer_reads(1, 1, 0, 1);
	peer(far(), "close 1");
	s = tcp_connected_to_far_peer();
	send_pattern_and_print_result(s, 100, 3, 0);
	SAY_RESULT(shutdown(s, SHUT_WR));
	taker_give_one_fd(&taker, s);
	close(s);
	say_far_peer_reads(1, 100, 3, 1);
	say_far_peer_reads(1, 1, 0, 1);
	far_peer_writes(1, 100, 4, 1);
	taker_run_command(&taker, "read 1 100");
	taker_end(&taker);
}

static void say_received_fd_after_giver_exit(int signal_number)
{
	int ends[2], fd, status, port = atoi(peer(far(), "listen 0 %s 0", there));
	char line[LINE];
	pid_t child;

	SAY_RESULT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	child = fork();
	if (child == 0) {
		int s = tcp_socket_connected_to(there, port);

		if (send_line_with_fds(ends[0], "have", &s, 1) < 0)
			_exit(1);
		if (signal_number != 0)
			kill(getpid(), signal_number);
		exit(0);
	}
	close(ends[0]);
	if (receive_line_and_fds(ends[1], line, &fd, 0, 0) != 1)
		die_with_message("nothing was given");
	peer(far(), "accept 0 1 2000");
	waitpid(child, &status, 0);
	say("the giver: %d", status);
	send_pattern_and_print_result(fd, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
	far_peer_writes(1, 100, 2, 1);
	recv_and_print_result(fd, 100, MSG_WAITALL);
	SAY_RESULT(close(fd));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(rights_giver_ends, "the giver ends after it has given a connection away")
{
	say_received_fd_after_giver_exit(0);
}

CASE(rights_giver_killed, "the giver is killed after it has given a connection away")
{
	say_received_fd_after_giver_exit(SIGKILL);
}

CASE(rights_forked_taker, "a forked child has the receiving end, and takes what its parent gives away and closes")
{
	int ends[2], s, status = -1;
	pid_t child;

	SAY_RESULT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	s = tcp_accepted_from_far_peer(NULL);
	child = fork();
	if (child == 0) {
		char line[LINE];
		int fds[2];

		close(s);
		if (receive_line_and_fds(ends[1], line, fds, 0, 0) != 1)
			_exit(1);
		recv_pieces_and_maybe_echo(fds[0], 5, 1, 1);
		_exit(0);
	}
	SAY_RESULT(send_line_with_fds(ends[0], "have", &s, 1));
	SAY_RESULT(close(s));
	far_peer_writes(1, 1000, 1, 5);
	waitpid(child, &status, 0);
	say("the child ended with %d", status);
	say_far_peer_reads(1, 1000, 1, 5);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(rights_lengths_beyond_all,
     "control messages with lengths up to the greatest number there is: refused, and nothing is given")
{
	static const size_t lens[] = {(size_t)INT_MAX + 1, SIZE_MAX - 8, SIZE_MAX - 7, SIZE_MAX - 6, SIZE_MAX};
	union rights rights;
	struct iovec piece = {.iov_base = "x", .iov_len = 1};
	struct msghdr msg = {.msg_iov = &piece, .msg_iovlen = 1};
	int ends[2], s = tcp_accepted_from_far_peer(NULL);

	SAY_RESULT(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		msghdr_put_scm_rights(&msg, &rights, &s, 1);
		rights.head.cmsg_type = SCM_RIGHTS + 1;
		rights.head.cmsg_len = lens[i];
		msg.msg_controllen = lens[i];
		SAY_RESULT(sendmsg(ends[0], &msg, 0));
		msghdr_put_scm_rights(&msg, &rights, &s, 1);
		msg.msg_controllen = lens[i];
		SAY_RESULT(sendmsg(ends[0], &msg, 0));
	}
	expect_offloaded(s);
	far_peer_writes(1, 100, 1, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
	SAY_RESULT(close(s));
}

CASE(rights_inherited, "a forked child gives away a connection that it has from its parent, and both close it")
{
	struct taker taker;
	int s, status = -1;
	pid_t child;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_inherited", true);
	s = tcp_accepted_from_far_peer(NULL);
	child = fork();
	if (child == 0) {
		taker_give_one_fd(&taker, s);
		_exit(0);
	}
	waitpid(child, &status, 0);
	say("the child ended with %d", status);
	SAY_RESULT(close(s));
	far_peer_writes(1, 100, 1, 1);
	taker_run_command(&taker, "read 0 100");
	taker_run_command(&taker, "write 0 100 2");
	say_far_peer_reads(1, 100, 2, 1);
	taker_end(&taker);
}

CASE(rights_connecting, "a connection on its way is given away")
{
	struct taker taker;
	struct sockaddr_in address;
	int s, port;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_connecting", true);
	port = atoi(peer(far(), "listen 0 %s 0", there));
	address = ipv4_sockaddr_of(there, port);
	s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	taker_give_one_fd(&taker, s);
	SAY_RESULT(close(s));
	taker_run_command(&taker, "connected 0");
	peer(far(), "accept 0 1 3000");
	taker_run_command(&taker, "write 0 100 1");
	say_far_peer_reads(1, 100, 1, 1);
	taker_end(&taker);
}

CASE(rights_attempt, "a connection on its way is given away before the peer answers")
{
	struct taker taker;
	struct sockaddr_in address;
	int first, s, port;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_attempt", true);
	port = atoi(peer(far(), "listen 0 %s 0 0", there));
	address = ipv4_sockaddr_of(there, port);
	first = socket(AF_INET, SOCK_STREAM, 0);
	SAY_RESULT(connect(first, (struct sockaddr *)&address, sizeof(address)));
	/* The queue of the listener is full: it drops the SYN, which comes again after a second. */
	s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	taker_give_one_fd(&taker, s);
	SAY_RESULT(close(s));
	peer(far(), "accept 0 1 3000");
	taker_run_command(&taker, "connected 0");
	peer(far(), "accept 0 2 3000");
	taker_run_command(&taker, "write 0 100 1");
	say_far_peer_reads(2, 100, 1, 1);
	taker_end(&taker);
}

/* ---- listeners ---- */

CASE(rights_listener, "a listener that was accepted from is given away, and kept; then the giver closes it")
{
	struct taker taker;
	int at, s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_listener", true);
	s = tcp_accepted_from_far_peer(&at);
	taker_give_one_fd(&taker, at);
	peer(far(), "dial 2 %s %d", here, port_of(at));
	taker_run_command(&taker, "accept 0");
	taker_run_command(&taker, "write 1 100 1");
	say_far_peer_reads(2, 100, 1, 1);
	send_pattern_and_print_result(s, 100, 2, 0); /* as it was */
	say_far_peer_reads(1, 100, 2, 1);
	expect_offloaded(s);
	peer(far(), "dial 3 %s %d", here, port_of(at));
	close(s);
	s = wait_until_readable(at, 2000) ? accept(at, NULL, NULL) : -1;
	send_pattern_and_print_result(s, 100, 3, 0);
	say_far_peer_reads(3, 100, 3, 1);
	peer(far(), "close 2");
	peer(far(), "dial 2 %s %d", here, port_of(at));
	SAY_RESULT(close(at));
	taker_run_command(&taker, "accept 0");
	taker_run_command(&taker, "write 2 100 4");
	say_far_peer_reads(2, 100, 4, 1);
	taker_end(&taker);
}

/* One after the other: who does not wait in accept leaves what comes to who does. */
CASE(rights_listener_served, "giver and taker serve a listener for a while; then the giver closes it")
{
	struct taker taker;
	int at, port, s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_listener_served", true);
	s = tcp_accepted_from_far_peer(&at);
	taker_give_one_fd(&taker, at);
	peer(far(), "dial 2 %s %d", here, port_of(at));
	taker_run_command(&taker, "accept 0"); /* it serves it from here on, and so does the giver soon */
	pause_ms(1500);
	close(s);
	for (int i = 1; i <= 4; i++) {
		peer(far(), "dial 3 %s %d", here, port_of(at));
		s = wait_until_readable(at, 3000) ? accept(at, NULL, NULL) : -1;
		send_pattern_and_print_result(s, 100, i, 0);
		say_far_peer_reads(3, 100, i, 1);
		expect_offloaded(s);
		close(s);
		peer(far(), "close 3");
		pause_ms(250);
		peer(far(), "dial 3 %s %d", here, port_of(at));
		taker_run_command(&taker, "accept 0");
		taker_run_command(&taker, i == 1   ? "write 2 100 9"
		                          : i == 2 ? "write 3 100 9"
		                          : i == 3 ? "write 4 100 9"
		                                   : "write 5 100 9");
		say_far_peer_reads(3, 100, 9, 1);
		peer(far(), "close 3");
		pause_ms(250);
	}
	port = port_of(at);
	SAY_RESULT(close(at));
	peer(far(), "dial 3 %s %d", here, port);
	taker_run_command(&taker, "accept 0");
	taker_run_command(&taker, "write 6 100 9");
	say_far_peer_reads(3, 100, 9, 1);
	taker_end(&taker);
}

CASE(rights_listener_options, "what a taker accepts has the options that the giver has set, and those of its own")
{
	static const struct linger linger = {.l_onoff = 1, .l_linger = 7};
	struct taker taker;
	int at;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_listener_options", true);
	at = tcp_socket_bound_to(here, 0);
	SAY_OK_OR_ERROR(setsockopt(at, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	for (unsigned i = 0; i < 8; i++) {
		static const int set[][3] = {{SOL_SOCKET, SO_KEEPALIVE, 1},    {SOL_SOCKET, SO_RCVBUF, 60000},
		                             {SOL_SOCKET, SO_SNDBUF, 70000},   {IPPROTO_TCP, TCP_NODELAY, 1},
		                             {IPPROTO_TCP, TCP_KEEPIDLE, 321}, {IPPROTO_TCP, TCP_MAXSEG, 1000},
		                             {IPPROTO_IP, IP_TOS, 16},         {IPPROTO_IP, IP_TTL, 33}};

		SAY_RESULT(setsockopt(at, set[i][0], set[i][1], &set[i][2], sizeof(int)));
	}
	SAY_RESULT(listen(at, 5));
	taker_give_one_fd(&taker, at);
	taker_run_command(&taker, "options 0");
	peer(far(), "dial 1 %s %d", here, port_of(at)); /* the kernel's, perhaps */
	taker_run_command(&taker, "accept 0");
	pause_ms(300);
	peer(far(), "dial 2 %s %d", here, port_of(at));
	taker_run_command(&taker, "accept 0");
	taker_run_command(&taker, "options 2");
	taker_run_command(&taker, "write 2 100 1");
	say_far_peer_reads(2, 100, 1, 1);
	SAY_RESULT(close(at));
	taker_end(&taker);
}

CASE(rights_listener_plain_later, "a process that serves a listener is joined by one without the library")
{
	struct taker one, two;
	int at, s;

	if (serve_commands_if_taker_process())
		return;
	one = taker_start("rights_listener_plain_later", true);
	two = taker_start("rights_listener_plain_later", false);
	s = tcp_accepted_from_far_peer(&at);
	taker_give_one_fd(&one, at);
	peer(far(), "dial 2 %s %d", here, port_of(at));
	taker_run_command(&one, "accept 0");
	pause_ms(1200);
	taker_give_one_fd(&two, at);
	pause_ms(50);
	for (int i = 0; i < 3; i++) {
		peer(far(), "dial 3 %s %d", here, port_of(at));
		taker_run_command(&two, "accept 0");
		taker_run_command(&two, i == 0 ? "write 1 100 1" : i == 1 ? "write 2 100 1" : "write 3 100 1");
		say_far_peer_reads(3, 100, 1, 1);
		peer(far(), "close 3");
	}
	peer(far(), "dial 3 %s %d", here, port_of(at));
	taker_run_command(&one, "accept 0");
	taker_run_command(&one, "write 2 100 1");
	say_far_peer_reads(3, 100, 1, 1);
	SAY_RESULT(close(at));
	close(s);
	taker_end(&one);
	taker_end(&two);
}

CASE(rights_listener_to_itself, "a listener that a process sends to itself is one, under two numbers")
{
	int ends[2], at, s, copy = -1;
	char line[LINE];

	SAY_RESULT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	s = tcp_accepted_from_far_peer(&at);
	SAY_RESULT(send_line_with_fds(ends[0], "have", &at, 1));
	SAY_RESULT(receive_line_and_fds(ends[1], line, &copy, 0, 0));
	peer(far(), "dial 2 %s %d", here, port_of(at));
	SAY_RESULT(wait_until_readable(at, 2000));
	SAY_RESULT(wait_until_readable(copy, 2000));
	close(s);
	s = accept(copy, NULL, NULL);
	send_pattern_and_print_result(s, 100, 1, 0);
	say_far_peer_reads(2, 100, 1, 1);
	SAY_RESULT(close(at));
	peer(far(), "dial 3 %s %d", here, port_of(copy));
	SAY_RESULT(wait_until_readable(copy, 2000));
	SAY_OK_OR_ERROR(accept(copy, NULL, NULL));
	SAY_RESULT(close(copy));
}

CASE(rights_bound, "a bound socket is given away, and listens there")
{
	struct taker taker;
	int at, port;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_bound", true);
	at = tcp_socket_bound_to(here, 0);
	port = port_of(at);
	taker_give_one_fd(&taker, at);
	taker_run_command(&taker, "listen 0");
	peer(far(), "dial 2 %s %d", here, port);
	taker_run_command(&taker, "accept 0");
	taker_run_command(&taker, "write 1 100 1");
	say_far_peer_reads(2, 100, 1, 1);
	SAY_RESULT(close(at));
	taker_end(&taker);
}

CASE(rights_listener_waiting,
     "connections wait in the giver's epoll set when it gives the listener away; it takes them")
{
	struct taker taker;
	struct epoll_event event = {.events = EPOLLIN};
	int at, set, s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_listener_waiting", false);
	at = tcp_listener(here, 0, 5);
	set = epoll_create1(EPOLL_CLOEXEC);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, at, &event));
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	expect_offloaded(at);
	peer(far(), "dial 1 %s %d", here, port_of(at));
	wait_until_sent_packets_arrived(30);
	taker_give_one_fd(&taker, at);
	SAY_RESULT(epoll_wait(set, &event, 1, 2000));
	s = accept(at, NULL, NULL);
	send_pattern_and_print_result(s, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	peer(far(), "dial 2 %s %d", here, port_of(at));
	SAY_RESULT(epoll_wait(set, &event, 1, 2000));
	taker_run_command(&taker, "accept 0");
	taker_run_command(&taker, "write 1 100 2");
	say_far_peer_reads(2, 100, 2, 1);
	taker_end(&taker);
}

/* ---- UDP ---- */

CASE(rights_udp, "a UDP socket with unread datagrams is given away; it is kept, and closed then")
{
	struct taker taker;
	int s, port;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_udp", true);
	s = udp_socket_bound_to(here, 0);
	port = port_of(s);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	for (int i = 1; i <= 4; i++)
		peer_send(far(), 0, here, port, 300 * i, i);
	wait_until_sent_packets_arrived(30);
	take(s, 2000, 0);
	taker_give_one_fd(&taker, s);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	taker_run_command(&taker, "take 0 2000");
	take(s, 2000, 0);
	taker_run_command(&taker, "take 0 2000");
	peer_send(far(), 0, here, port, 100, 5);
	taker_run_command(&taker, "take 0 2000");
	SAY_RESULT(close(s));
	peer_send(far(), 0, here, port, 100, 6);
	taker_run_command(&taker, "take 0 2000");
	taker_run_command(&taker, "all 0");
	taker_end(&taker);
}

CASE(rights_udp_group, "a UDP socket that is a member of a group is given away, and kept")
{
	struct taker taker;
	struct ip_mreqn member = {0};
	int s, port;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_udp_group", false);
	s = udp_socket_bound_to("0.0.0.0", 0);
	port = port_of(s);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	member.imr_multiaddr = ipv4_sockaddr_of("239.1.2.3", 0).sin_addr;
	member.imr_address = ipv4_sockaddr_of(here, 0).sin_addr;
	SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof(member)));
	expect_offloaded(s);
	peer(far(), "mcif 0 %s", there);
	peer_send(far(), 0, "239.1.2.3", port, 100, 1);
	take(s, 2000, 0);
	taker_give_one_fd(&taker, s);
	peer_send(far(), 0, "239.1.2.3", port, 100, 2);
	taker_run_command(&taker, "take 0 2000");
	peer_send(far(), 0, here, port, 100, 3);
	taker_run_command(&taker, "take 0 2000");
	SAY_RESULT(close(s));
	peer_send(far(), 0, "239.1.2.3", port, 100, 4);
	taker_run_command(&taker, "take 0 2000");
	taker_end(&taker);
}

CASE(rights_udp_connected, "a connected UDP socket sends and receives in both processes")
{
	struct taker taker;
	int s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_udp_connected", true);
	s = rights_connected_udp();
	taker_give_one_fd(&taker, s);
	taker_run_command(&taker, "write 0 100 1");
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	peer_send(far(), 0, here, port_of(s), 100, 2);
	taker_run_command(&taker, "take 0 2000");
	peer_send(far(), 0, here, port_of(s), 100, 3);
	take(s, 2000, 0);
	taker_end(&taker);
}

CASE(rights_udp_inherited, "a forked child gives away a UDP socket that it has from its parent, which keeps it")
{
	struct taker taker;
	int s, port, status = -1;
	pid_t child;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_udp_inherited", true);
	s = udp_socket_bound_to(here, 0);
	port = port_of(s);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	child = fork();
	if (child == 0) {
		taker_give_one_fd(&taker, s);
		_exit(0);
	}
	waitpid(child, &status, 0);
	say("the child ended with %d", status);
	pause_ms(1300);
	for (int i = 1; i <= 3; i++) {
		peer_send(far(), 0, here, port, 100, i);
		taker_run_command(&taker, "take 0 2000");
	}
	taker_end(&taker);
}

/* ---- what is wrong, and what is near ---- */

CASE(rights_wrong, "bad pointers, a closed descriptor, too many and cut control messages; nothing has happened")
{
	int s = tcp_connected_to_far_peer(), ends[2], fds[RIGHTS_MAX + 1];
	union rights rights;
	struct iovec piece = {.iov_base = "x", .iov_len = 1};
	struct msghdr msg = {.msg_iov = &piece, .msg_iovlen = 1};
	struct mmsghdr row;

	SAY_RESULT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends));
	SAY_RESULT(sendmsg(ends[0], bad_pointer(), 0));
	SAY_RESULT(sendmmsg(ends[0], bad_pointer(), 1, 0));
	msghdr_put_scm_rights(&msg, &rights, &s, 1);
	msg.msg_control = bad_pointer();
	SAY_RESULT(sendmsg(ends[0], &msg, 0));
	row.msg_hdr = msg;
	SAY_RESULT(sendmmsg(ends[0], &row, 1, 0));
	msghdr_put_scm_rights(&msg, &rights, &s, 1);
	rights.head.cmsg_len += 8;
	SAY_RESULT(sendmsg(ends[0], &msg, 0));
	for (int i = 0; i <= RIGHTS_MAX; i++)
		fds[i] = ends[0];
	msghdr_put_scm_rights(&msg, &rights, fds, RIGHTS_MAX + 1);
	SAY_RESULT(sendmsg(ends[0], &msg, 0));
	fds[0] = 999;
	msghdr_put_scm_rights(&msg, &rights, fds, 1);
	SAY_RESULT(sendmsg(ends[0], &msg, 0));
	SAY_RESULT(recvmsg(ends[1], bad_pointer(), 0));
	expect_offloaded(s);
	far_peer_writes(1, 100, 1, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
}

CASE(rights_full, "a connection goes on after a message that was refused because the socket is full")
{
	int s = tcp_connected_to_far_peer(), ends[2], fd;
	char line[LINE];

	SAY_RESULT(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends));
	while (send(ends[0], "x", 1, 0) == 1)
		;
	SAY_RESULT(send_line_with_fds(ends[0], "have", &s, 1));
	send_pattern_and_print_result(s, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
	while (recv(ends[1], line, sizeof(line), 0) > 0)
		;
	SAY_RESULT(send_line_with_fds(ends[0], "have", &s, 1));
	SAY_RESULT(close(s));
	SAY_RESULT(receive_line_and_fds(ends[1], line, &fd, 0, 0));
	far_peer_writes(1, 100, 2, 1);
	recv_and_print_result(fd, 100, MSG_WAITALL);
}

CASE(rights_unseen_number, "what arrives gets the number of a socket that was closed unseen")
{
	int s = tcp_connected_to_far_peer(), ends[2], file = open("/dev/zero", O_RDONLY), fd = -1;
	char line[LINE], byte = 1;

	SAY_RESULT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	SAY_RESULT(send_line_with_fds(ends[0], "have", &file, 1));
	SAY_RESULT(raw_syscall(SYS_close, s, 0, 0, 0, 0));
	SAY_RESULT(receive_line_and_fds(ends[1], line, &fd, 0, 0));
	say("%s", fd == s ? "the same number" : "another number");
	SAY_RESULT(read(fd, &byte, 1));
	SAY_RESULT(byte);
	SAY_RESULT(close(fd));
}

CASE(rights_pidfd, "pidfd_getfd of the process's own connection is a copy of it, and of a child's what fork gave it")
{
	int s = tcp_connected_to_far_peer(), self, copy, other = udp_socket();

	self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	copy = pidfd_getfd(self, s, 0);
	SAY_OK_OR_ERROR(copy);
	SAY_RESULT(close(s));
	far_peer_writes(1, 100, 1, 1);
	recv_and_print_result(copy, 100, MSG_WAITALL);
	send_pattern_and_print_result(copy, 100, 2, 0);
	say_far_peer_reads(1, 100, 2, 1);
	expect_offloaded(copy);
	SAY_RESULT(pidfd_getfd(self, 999, 0));
	SAY_RESULT(close(other));
	SAY_RESULT(close(copy));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(rights_pidfd_connection, "another process takes a connection with what was written and not read; both go on")
{
	struct taker taker;
	int s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_pidfd_connection", true);
	s = tcp_connected_to_far_peer();
	send_pattern_and_print_result(s, 1000, 1, 0);
	far_peer_writes(1, 1000, 5, 3);
	wait_until_sent_packets_arrived(30);
	recv_and_print_result(s, 1000, MSG_WAITALL);
	expect_offloaded(s);
	taker_get_fd_by_pidfd_getfd(&taker, s, false);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	taker_run_command(&taker, "names 0");
	taker_run_command(&taker, "read 0 1000");
	recv_and_print_result(s, 1000, MSG_WAITALL);
	taker_run_command(&taker, "write 0 1000 2");
	send_pattern_and_print_result(s, 1000, 3, 0);
	say_far_peer_reads(1, 1000, 1, 3);
	taker_get_fd_by_pidfd_getfd(&taker, s, true);
	taker_run_command(&taker, "close 0");
	far_peer_writes(1, 100, 9, 2);
	recv_and_print_result(s, 100, MSG_WAITALL);
	SAY_RESULT(close(s));
	taker_run_command(&taker, "read 1 100");
	taker_run_command(&taker, "close 1");
	say_far_peer_reads(1, 1, 0, 1);
	taker_end(&taker);
}

CASE(rights_pidfd_by_number, "another process takes an accepted connection by syscall(); the owner closes it")
{
	struct taker taker;
	int s;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_pidfd_by_number", true);
	s = tcp_accepted_from_far_peer(NULL);
	taker_get_fd_by_pidfd_getfd(&taker, s, true);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	SAY_RESULT(close(s));
	far_peer_writes(1, 100, 1, 1);
	taker_run_command(&taker, "read 0 100");
	taker_run_command(&taker, "write 0 100 2");
	say_far_peer_reads(1, 100, 2, 1);
	taker_run_command(&taker, "close 0");
	say_far_peer_reads(1, 1, 0, 1);
	taker_end(&taker);
}

CASE(rights_pidfd_unsent, "another process takes a connection while more waits to be sent than the peer takes")
{
	struct taker taker;
	int s, pieces = 0;
	char bytes[1000];

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_pidfd_unsent", true);
	s = tcp_connected_to_far_peer();
	set_int(s, SOL_SOCKET, SO_SNDBUF, 300000);
	for (; pieces < 500; pieces++) {
		fill(bytes, sizeof(bytes), pieces % 64);
		if (send(s, bytes, sizeof(bytes), MSG_DONTWAIT) != sizeof(bytes))
			break;
	}
	if (pieces < 100)
		die_with_message("only %d pieces fit", pieces);
	taker_get_fd_by_pidfd_getfd(&taker, s, false);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	SAY_RESULT(close(s));
	taker_run_command(&taker, "close 0");
	say("the peer: %s", strncmp(peer(far(), "read 1 1000 0 %d", pieces), "failed", 6) == 0 ? "failed" : "has read");
	say_far_peer_reads(1, 1, 0, 1);
	taker_end(&taker);
}

CASE(rights_pidfd_listener, "another process takes a listener, and both serve it; then the owner closes it")
{
	struct taker taker;
	int at, s, port;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_pidfd_listener", true);
	s = tcp_accepted_from_far_peer(&at);
	taker_get_fd_by_pidfd_getfd(&taker, at, false);
	peer(far(), "dial 2 %s %d", here, port_of(at));
	taker_run_command(&taker, "accept 0"); /* it serves it from here on, and so does the owner soon */
	taker_run_command(&taker, "write 1 100 1");
	say_far_peer_reads(2, 100, 1, 1);
	send_pattern_and_print_result(s, 100, 2, 0); /* as it was */
	say_far_peer_reads(1, 100, 2, 1);
	expect_offloaded(s);
	pause_ms(1500);
	expect_offloaded(at);
	peer(far(), "dial 3 %s %d", here, port_of(at));
	close(s);
	s = wait_until_readable(at, 3000) ? accept(at, NULL, NULL) : -1;
	send_pattern_and_print_result(s, 100, 3, 0);
	say_far_peer_reads(3, 100, 3, 1);
	expect_offloaded(s);
	peer(far(), "close 2");
	port = port_of(at);
	SAY_RESULT(close(at));
	peer(far(), "dial 2 %s %d", here, port);
	taker_run_command(&taker, "accept 0");
	taker_run_command(&taker, "write 2 100 4");
	say_far_peer_reads(2, 100, 4, 1);
	taker_end(&taker);
}

CASE(rights_pidfd_udp, "another process takes a UDP socket with unread datagrams; then its owner closes it")
{
	struct taker taker;
	int s, port;

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_pidfd_udp", true);
	s = udp_socket_bound_to(here, 0);
	port = port_of(s);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	for (int i = 1; i <= 4; i++)
		peer_send(far(), 0, here, port, 300 * i, i);
	wait_until_sent_packets_arrived(30);
	take(s, 2000, 0);
	taker_get_fd_by_pidfd_getfd(&taker, s, true);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	taker_run_command(&taker, "take 0 2000");
	take(s, 2000, 0);
	taker_run_command(&taker, "take 0 2000");
	peer_send(far(), 0, here, port, 100, 5);
	taker_run_command(&taker, "take 0 2000");
	SAY_RESULT(close(s));
	peer_send(far(), 0, here, port, 100, 6);
	taker_run_command(&taker, "take 0 2000");
	taker_run_command(&taker, "all 0");
	taker_end(&taker);
}

CASE(rights_pidfd_others,
     "another process takes what there is nothing to hand over of; the owner's sockets stay as they are")
{
	struct taker taker;
	int s, ends[2];

	if (serve_commands_if_taker_process())
		return;
	taker = taker_start("rights_pidfd_others", true);
	s = tcp_connected_to_far_peer();
	SAY_RESULT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	taker_get_fd_by_pidfd_getfd(&taker, ends[1], false);
	taker_run_command(&taker, "write 0 100 1");
	recv_and_print_result(ends[0], 100, MSG_WAITALL);
	taker_get_fd_by_pidfd_getfd(&taker, 999, false);
	taker_get_fd_by_pidfd_getfd(&taker, -1, true);
	expect_offloaded(s);
	far_peer_writes(1, 100, 1, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
	taker_end(&taker);
}
