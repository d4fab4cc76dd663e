/* tcp_fork: connections that two processes have: who uses them, closes them, and ends first. */
#include <fcntl.h>
#include <linux/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

#define BLOCK 65536

static char bytes[BLOCK];

/* What children say is said when they have ended, so that it comes in the same order every time. */
static FILE *said;

static pid_t clone_by_number(void)
{
	return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static pid_t fork_with_child_stdout_to_file(pid_t (*copy)(void))
{
	pid_t child;

	if (said == NULL)
		said = tmpfile();
	fflush(stdout);
	child = copy();
	if (said == NULL || child < 0)
		die_with_message("fork");
	if (child == 0)
		dup2(fileno(said), STDOUT_FILENO);
	return child;
}

static pid_t tcp_fork_child_stdout_to_file(void)
{
	return fork_with_child_stdout_to_file(fork);
}

static void say_output_of_children(void)
{
	char line[256];

	rewind(said);
	while (fgets(line, sizeof(line), said) != NULL)
		say("  %s", strtok(line, "\n"));
	rewind(said);
	if (ftruncate(fileno(said), 0) != 0)
		die_with_message("ftruncate");
}

static void wait_for_child_and_say_output(pid_t child)
{
	int status = 0;

	if (waitpid(child, &status, 0) != child)
		die_with_message("waitpid");
	say_output_of_children();
	say("the child: status %d", status);
}

/* One question of 100 bytes, one answer of 50. */
static void read_100_bytes_and_answer_50(int s, int seed)
{
	recv_and_print_result(s, 100, MSG_WAITALL);
	send_pattern_and_print_result(s, 50, seed, 0);
}

static void far_peer_ask_100_and_read_50(int seed)
{
	far_peer_writes(1, 100, seed, 1);
	say_far_peer_reads(1, 50, seed + 1, 1);
}

static void say_conversation_by_children(pid_t (*copy)(void))
{
	int at, s = tcp_accepted_from_far_peer(&at);
	pid_t child;

	for (int i = 0; i < 3; i++) {
		child = fork_with_child_stdout_to_file(copy);
		if (child == 0) {
			close(at);
			read_100_bytes_and_answer_50(s, 2);
			read_100_bytes_and_answer_50(s, 4);
			recv_and_print_result(s, 1, 0);
			exit(0);
		}
		SAY_RESULT(close(s));
		far_peer_ask_100_and_read_50(1);
		far_peer_ask_100_and_read_50(3);
		far_peer_shuts_down(1, SHUT_WR);
		wait_for_child_and_say_output(child);
		say_far_peer_reads(1, 1, 0, 1);
		if (i == 2)
			break;
		peer(far(), "close 1");
		peer(far(), "dial 1 %s %d", here, port_of(at));
		s = accept(at, NULL, NULL);
		expect_offloaded(s);
	}
	close(at);
}

CASE(tcp_fork_server, "accept, fork, close in the parent: the child serves, in one connection after the other")
{
	say_conversation_by_children(fork);
}

CASE(tcp_fork_server_by_syscall, "the same, and the children are made by syscall(SYS_clone), as vsftpd does it")
{
	say_conversation_by_children(clone_by_number);
}

CASE(tcp_fork_child_goes_on, "a client forks, and the child goes on with the connection; the parent then, too")
{
	int s = tcp_connected_to_far_peer();
	pid_t child;

	far_peer_writes(1, 100, 1, 1);
	read_100_bytes_and_answer_50(s, 2);
	say_far_peer_reads(1, 50, 2, 1);
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		read_100_bytes_and_answer_50(s, 4);
		read_100_bytes_and_answer_50(s, 6);
		SAY_RESULT(close(s));
		exit(0);
	}
	far_peer_ask_100_and_read_50(3);
	far_peer_ask_100_and_read_50(5);
	wait_for_child_and_say_output(child);
	expect_kernel_socket_for_reason(s, VMA_SOCK_FORKED);
	far_peer_writes(1, 100, 7, 1);
	read_100_bytes_and_answer_50(s, 8);
	say_far_peer_reads(1, 50, 8, 1);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

static void say_segment_size(int s)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info), options_len = 40;
	uint8_t options[40];

	if (getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
		die_with_message("TCP_INFO");
	if (getsockopt(s, IPPROTO_IP, IP_OPTIONS, options, &options_len) != 0)
		die_with_message("IP_OPTIONS");
	say("segments of %u bytes, %u bytes of IP options", info.tcpi_snd_mss, (unsigned)options_len);
}

CASE(tcp_fork_segment_size, "a connection that was handed over sends segments as long as before")
{
	int s = tcp_connected_to_far_peer();
	pid_t child;

	say_segment_size(s);
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		read_100_bytes_and_answer_50(s, 2);
		say_segment_size(s);
		exit(0);
	}
	far_peer_ask_100_and_read_50(1);
	wait_for_child_and_say_output(child);
	say_segment_size(s);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(tcp_fork_both_write, "parent and child both write; the end comes when both have closed")
{
	int s = tcp_connected_to_far_peer();
	pid_t child;

	send_pattern_and_print_result(s, 100, 1, 0);
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		send_pattern_and_print_result(s, 100, 2, 0);
		exit(0);
	}
	wait_for_child_and_say_output(child);
	send_pattern_and_print_result(s, 100, 3, 0);
	for (int i = 1; i <= 3; i++)
		say_far_peer_reads(1, 100, i, 1);
	wait_and_print_poll_events("still open", s, POLLOUT, 100);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(tcp_fork_parent_ends_first, "the parent exits at once: the child has the connection")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there));
	pid_t parent = tcp_fork_child_stdout_to_file();

	if (parent == 0) {
		int s = tcp_socket_connected_to(there, port);
		pid_t child = tcp_fork_child_stdout_to_file();

		if (child != 0)
			exit(0);
		pause_ms(200);
		read_100_bytes_and_answer_50(s, 2);
		recv_and_print_result(s, 1, 0);
		exit(0);
	}
	peer(far(), "accept 0 1 3000");
	wait_for_child_and_say_output(parent);
	far_peer_ask_100_and_read_50(1);
	far_peer_shuts_down(1, SHUT_WR);
	say_far_peer_reads(1, 1, 0, 1);
	pause_ms(100);
	say_output_of_children();
}

CASE(tcp_fork_child_ends, "a child that closes the connection, or only ends, costs the parent nothing")
{
	int s = tcp_connected_to_far_peer();
	pid_t child;

	kernel_segments_wait_idle_and_start_count();
	for (int i = 0; i < 3; i++) {
		child = tcp_fork_child_stdout_to_file();
		if (child == 0) {
			if (i == 1)
				close(s);
			fcntl(s, F_SETFD, FD_CLOEXEC);
			if (i == 2)
				_exit(0);
			exit(0);
		}
		wait_for_child_and_say_output(child);
		expect_offloaded(s);
		far_peer_writes(1, 100, 1, 1);
		read_100_bytes_and_answer_50(s, 2);
		say_far_peer_reads(1, 50, 2, 1);
	}
	expect_offloaded(s);
	check_kernel_segments_were_bypassed();
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(tcp_fork_programs, "system, popen, fork and exec in between leave the connection offloaded")
{
	int s = tcp_connected_to_far_peer();
	char line[32] = "";
	pid_t child;
	FILE *pipe;

	fflush(stdout);
	SAY_RESULT(system("exit 3") >> 8);
	pipe = popen("echo hello", "r");
	if (pipe == NULL || fgets(line, sizeof(line), pipe) == NULL)
		die_with_message("popen");
	pclose(pipe);
	say("popen: %s", strtok(line, "\n"));
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	wait_for_child_and_say_output(child);
	expect_offloaded(s);
	far_peer_writes(1, 100, 1, 1);
	read_100_bytes_and_answer_50(s, 2);
	say_far_peer_reads(1, 50, 2, 1);
	SAY_RESULT(close(s));
}

CASE(tcp_fork_exec, "the child's next program has the connection as its standard input and output")
{
	int at, s = tcp_accepted_from_far_peer(&at);
	pid_t child = tcp_fork_child_stdout_to_file();

	if (child == 0) {
		dup2(s, 0);
		dup2(s, 1);
		close(s);
		close(at);
		execl("/bin/cat", "cat", NULL);
		_exit(1);
	}
	SAY_RESULT(close(s));
	for (int i = 1; i <= 3; i++) {
		far_peer_writes(1, 1000, i, 1);
		say_far_peer_reads(1, 1000, i, 1);
	}
	far_peer_shuts_down(1, SHUT_WR);
	say_far_peer_reads(1, 1, 0, 1);
	wait_for_child_and_say_output(child);
	close(at);
}

CASE(tcp_exec, "the process itself becomes another program, and its connection goes along")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s;
	pid_t child = tcp_fork_child_stdout_to_file();

	if (child == 0) {
		s = tcp_socket_connected_to(there, port);
		dup2(s, 0);
		dup2(s, 1);
		close(s);
		execl("/bin/cat", "cat", NULL);
		_exit(1);
	}
	peer(far(), "accept 0 1 3000");
	for (int i = 1; i <= 3; i++) {
		far_peer_writes(1, 1000, i, 1);
		say_far_peer_reads(1, 1000, i, 1);
	}
	far_peer_shuts_down(1, SHUT_WR);
	say_far_peer_reads(1, 1, 0, 1);
	wait_for_child_and_say_output(child);
}

CASE(tcp_fork_unread, "what had come before the child has the connection, and was not read, is the child's")
{
	int at, s = tcp_accepted_from_far_peer(&at);
	pid_t child;

	far_peer_writes(1, BLOCK, 1, 2);
	wait_until_sent_packets_arrived(100);
	recv_and_print_result(s, 1000, MSG_WAITALL | MSG_PEEK);
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		close(at);
		for (int i = 0; i < 6; i++)
			recv_and_print_result(s, BLOCK, MSG_WAITALL);
		recv_and_print_result(s, 1, 0);
		exit(0);
	}
	SAY_RESULT(close(s));
	far_peer_writes(1, BLOCK, 3, 4);
	far_peer_shuts_down(1, SHUT_WR);
	wait_for_child_and_say_output(child);
	say_far_peer_reads(1, 1, 0, 1);
	close(at);
}

/* The peer does not read: all buffers are full when the connection is handed over. */
CASE(tcp_fork_unsent, "what was written and has not left yet arrives, and after it what the child writes")
{
	int s = tcp_connected_to_far_peer(), blocks = 0;
	pid_t child;
	ssize_t n;

	fill(bytes, sizeof(bytes), 5);
	set_int(s, SOL_SOCKET, SO_SNDBUF, 2 << 20);
	for (int i = 0; i < 16; i++) {
		for (size_t done = 0; done < sizeof(bytes); done += (size_t)n) {
			n = send(s, bytes + done, sizeof(bytes) - done, 0);
			if (n <= 0)
				die_with_message("send");
		}
		blocks++;
	}
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		pause_ms(100);
		send_pattern_and_print_result(s, 100, 6, 0);
		exit(0);
	}
	SAY_RESULT(close(s));
	for (int i = 0; i < blocks; i++)
		say_far_peer_reads(1, BLOCK, 5, 1);
	say_far_peer_reads(1, 100, 6, 1);
	say_far_peer_reads(1, 1, 0, 1);
	wait_for_child_and_say_output(child);
}

CASE(tcp_fork_bulk, "a connection is handed over while megabytes go through it, both ways")
{
	enum { BLOCKS = 64 };
	int s = tcp_connected_to_far_peer(), got = 0;
	pid_t child, writer;

	peer(far(), "later 1 write 1 %d 1 %d", BLOCK, BLOCKS);
	for (int i = 0; i < 3; i++)
		got += recv(s, bytes, sizeof(bytes), MSG_WAITALL) == BLOCK && seed_of_payload(bytes, BLOCK) == i + 1;
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		writer = tcp_fork_child_stdout_to_file();
		for (int i = 3; i < BLOCKS; i++) {
			if (writer == 0) {
				fill(bytes, sizeof(bytes), i);
				if (send(s, bytes, sizeof(bytes), 0) != BLOCK)
					die_with_message("send");
			} else {
				got += recv(s, bytes, sizeof(bytes), MSG_WAITALL) == BLOCK &&
				       seed_of_payload(bytes, BLOCK) == i + 1;
			}
		}
		if (writer == 0)
			_exit(0);
		say("%d blocks", got);
		waitpid(writer, NULL, 0);
		exit(0);
	}
	SAY_RESULT(close(s));
	for (int i = 3; i < BLOCKS; i++)
		say_far_peer_reads(1, BLOCK, i, 1);
	say_far_peer_reads(1, 1, 0, 1);
	wait_for_child_and_say_output(child);
}

CASE(tcp_fork_peer_closed, "the peer has closed its side before the child comes to it")
{
	int at, s = tcp_accepted_from_far_peer(&at);
	pid_t child;

	far_peer_writes(1, 100, 1, 1);
	far_peer_shuts_down(1, SHUT_WR);
	wait_until_sent_packets_arrived(100);
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		close(at);
		wait_and_print_poll_events("in the child", s, POLLIN | POLLRDHUP, 1000);
		read_100_bytes_and_answer_50(s, 2);
		recv_and_print_result(s, 1, 0);
		exit(0);
	}
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 50, 2, 1);
	wait_for_child_and_say_output(child);
	say_far_peer_reads(1, 1, 0, 1);
	close(at);
}

CASE(tcp_fork_half_closed, "this side was shut down before the fork: the child reads on")
{
	int s = tcp_connected_to_far_peer();
	pid_t child;

	send_pattern_and_print_result(s, 100, 1, 0);
	SAY_RESULT(shutdown(s, SHUT_WR));
	say_far_peer_reads(1, 100, 1, 1);
	say_far_peer_reads(1, 1, 0, 1);
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		recv_and_print_result(s, 100, MSG_WAITALL);
		SAY_RESULT(send(s, "x", 1, MSG_NOSIGNAL));
		recv_and_print_result(s, 1, 0);
		exit(0);
	}
	SAY_RESULT(close(s));
	far_peer_writes(1, 100, 2, 1);
	far_peer_shuts_down(1, SHUT_WR);
	wait_for_child_and_say_output(child);
}

CASE(tcp_fork_waits, "the first thing that a child does with the connection is to wait for it: poll, select, epoll")
{
	int s = tcp_connected_to_far_peer(), ep;
	pid_t child;

	for (int how = 0; how < 3; how++) {
		child = tcp_fork_child_stdout_to_file();
		if (child == 0) {
			struct epoll_event event = {.events = EPOLLIN};
			struct timeval wait = {3, 0};
			fd_set set;

			FD_ZERO(&set);
			FD_SET(s, &set);
			ep = epoll_create1(0);
			if (how == 0)
				wait_and_print_poll_events("poll", s, POLLIN, 3000);
			else if (how == 1)
				SAY_RESULT(select(s + 1, &set, NULL, NULL, &wait));
			else if (epoll_ctl(ep, EPOLL_CTL_ADD, s, &event) == 0)
				SAY_RESULT(epoll_wait(ep, &event, 1, 3000));
			read_100_bytes_and_answer_50(s, 2);
			exit(0);
		}
		pause_ms(100);
		far_peer_ask_100_and_read_50(1);
		wait_for_child_and_say_output(child);
		close(s);
		peer(far(), "close 1");
		peer(far(), "close 0");
		s = tcp_connected_to_far_peer();
	}
	close(s);
}

CASE(tcp_fork_parent_waits,
     "the parent waits in epoll and in recv while the child uses the connection, and is woken by what comes")
{
	struct epoll_event event = {.events = EPOLLIN};
	int s = tcp_connected_to_far_peer(), ep = epoll_create1(0);
	pid_t child;

	if (epoll_ctl(ep, EPOLL_CTL_ADD, s, &event) != 0)
		die_with_message("epoll_ctl");
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		pause_ms(100);
		send_pattern_and_print_result(s, 100, 1, 0);
		exit(0);
	}
	peer(far(), "later 300 write 1 100 2 2");
	SAY_RESULT(epoll_wait(ep, &event, 1, 3000));
	recv_and_print_result(s, 100, MSG_WAITALL);
	recv_and_print_result(s, 100, MSG_WAITALL);
	SAY_RESULT(epoll_wait(ep, &event, 1, 50));
	wait_for_child_and_say_output(child);
	expect_kernel_socket_for_reason(s, VMA_SOCK_FORKED);
	say_far_peer_reads(1, 100, 1, 1);
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		send_pattern_and_print_result(s, 100, 3, 0);
		exit(0);
	}
	peer(far(), "later 100 write 1 100 4 1");
	recv_and_print_result(s, 100, MSG_WAITALL);
	wait_for_child_and_say_output(child);
	say_far_peer_reads(1, 100, 3, 1);
	close(s);
}

CASE(tcp_fork_parent_reads, "the parent is in recv while the child takes the connection over")
{
	int s = tcp_connected_to_far_peer();
	pid_t child = tcp_fork_child_stdout_to_file();

	if (child == 0) {
		pause_ms(100);
		send_pattern_and_print_result(s, 100, 1, 0);
		exit(0);
	}
	peer(far(), "later 300 write 1 100 2 1");
	recv_and_print_result(s, 100, MSG_WAITALL);
	wait_for_child_and_say_output(child);
	say_far_peer_reads(1, 100, 1, 1);
	close(s);
}

/* Both ask: the names, an option, and what is to be read. */
CASE(tcp_fork_names, "both names and the options are the same in the child, before and after the parent has closed")
{
	int at, s = tcp_accepted_from_far_peer(&at), one = 1, to_child[2];
	pid_t child;

	SAY_RESULT(setsockopt(s, 6, 1, &one, sizeof(one)));
	if (pipe(to_child) != 0)
		die_with_message("pipe");
	child = tcp_fork_child_stdout_to_file();
	if (child == 0) {
		for (int i = 0; i < 2; i++) {
			socklen_t len = sizeof(one);

			say_peer_address("peer", s);
			say_local_address("name", s);
			one = 0;
			SAY_RESULT(getsockopt(s, 6, 1, &one, &len));
			say("no delay %d", one);
			if (i == 0 && read(to_child[0], &one, 1) != 1)
				die_with_message("read");
		}
		exit(0);
	}
	pause_ms(100);
	SAY_RESULT(close(s));
	if (write(to_child[1], "x", 1) != 1)
		die_with_message("write");
	wait_for_child_and_say_output(child);
	say_far_peer_reads(1, 1, 0, 1);
	close(at);
}

/* ---- by a signal handler, in a call that waits ---- */

static volatile pid_t forked_in_handler;

static void on_alarm_fork(int sig)
{
	(void)sig;
	forked_in_handler = fork();
}

/* The child, after its accept has ended. */
static _Noreturn void close_listener_and_stay(int listener, const int closed[2], const int ends[2])
{
	char byte;

	close(closed[0]);
	close(ends[1]);
	close(listener);
	close(closed[1]);
	_exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
}

CASE(tcp_fork_in_a_handler_in_accept, "a handler forks in accept: the child that closes the listener gives up its port")
{
	int listener = tcp_listener(here, 0, 4), port = port_of(listener), closed[2], ends[2], other, status;
	const struct sockaddr_in name = ipv4_sockaddr_of(here, port);
	struct sigaction action = {.sa_handler = on_alarm_fork};
	char byte;

	if (pipe(closed) != 0 || pipe(ends) != 0)
		die_with_message("pipe");
	sigaction(SIGALRM, &action, NULL);
	fflush(stdout);
	ualarm(200000, 0);
	status = accept(listener, NULL, NULL);
	if (forked_in_handler == 0)
		close_listener_and_stay(listener, closed, ends);
	result("accept", status);
	close(closed[1]);
	close(ends[0]);
	if (read(closed[0], &byte, 1) != 0)
		die_with_message("the child");
	close(listener);
	other = tcp_socket();
	SAY_RESULT(bind(other, (const struct sockaddr *)&name, sizeof(name)));
	SAY_RESULT(listen(other, 1));
	close(other);
	close(ends[1]);
	if (waitpid(forked_in_handler, &status, 0) < 0)
		die_with_message("waitpid");
	say("the child ended with %d", WEXITSTATUS(status));
}
