/* Descriptors: duplicates, fork, exec, passing, closing by other means, stdio, numbers used again, many of them. */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

static int fds_open_offloaded_udp_socket_and_peer(void)
{
	int s = udp_socket_bound_to(here, 0);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	return s;
}

static void fds_make_one_datagram_arrive(int s, int seed)
{
	peer_send(far(), 0, here, port_of(s), 20, seed);
}

static int send_to_peer(int s, int seed)
{
	struct sockaddr_in to = ipv4_sockaddr_of(there, atoi(peer(far(), "port 0")));
	char bytes[20];

	fill(bytes, sizeof(bytes), seed);
	return (int)sendto(s, bytes, sizeof(bytes), 0, (struct sockaddr *)&to, sizeof(to));
}

static void wait_and_print_child_status(pid_t pid)
{
	int status = -1;

	if (waitpid(pid, &status, 0) != pid)
		die_with_message("waitpid");
	say("the child ended with %s %d", WIFEXITED(status) ? "status" : "signal",
	    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

CASE(dup_every_way, "dup, dup2, dup3 and F_DUPFD give the same socket, offloaded, until the last is closed")
{
	int s = fds_open_offloaded_udp_socket_and_peer(), copies[5];

	SAY_OK_OR_ERROR(copies[0] = dup(s));
	SAY_OK_OR_ERROR(copies[1] = dup2(s, 200));
	SAY_OK_OR_ERROR(copies[2] = dup3(s, 201, O_CLOEXEC));
	SAY_OK_OR_ERROR(copies[3] = fcntl(s, F_DUPFD, 300));
	SAY_OK_OR_ERROR(copies[4] = fcntl(s, F_DUPFD_CLOEXEC, 301));
	say("%d %d %d %d", copies[1], copies[2], copies[3], copies[4]);
	SAY_RESULT(fcntl(copies[2], F_GETFD));
	SAY_RESULT(fcntl(copies[4], F_GETFD));
	warm_up_until_offloaded_send(s, there, atoi(peer(far(), "port 0")));
	save_kernel_udp_counters();
	for (int i = 0; i < 5; i++) {
		expect_offloaded(copies[i]);
		fds_make_one_datagram_arrive(copies[i], i);
		take(copies[4 - i], 2000, 0);
		SAY_RESULT(send_to_peer(copies[i], i));
		say_peer_received(far(), 0, 2000);
	}
	SAY_RESULT(close(s));
	for (int i = 0; i < 4; i++)
		SAY_RESULT(close(copies[i]));
	fds_make_one_datagram_arrive(copies[4], 9);
	take(copies[4], 2000, 0);
	check_kernel_udp_was_bypassed(6, 5);
	SAY_RESULT(dup2(copies[4], copies[4]));
	SAY_RESULT(dup3(copies[4], copies[4], 0));
	SAY_RESULT(dup(9999));
	SAY_RESULT(dup2(9999, 1));
	SAY_RESULT(dup2(copies[4], 99999));
	SAY_RESULT(fcntl(copies[4], F_DUPFD, 99999999));
}

CASE(dup_over, "dup2 over a socket closes it; dup2 of a file over it, too")
{
	int s = fds_open_offloaded_udp_socket_and_peer(), other = udp_socket_bound_to(here, 7400), ends[2];

	expect_offloaded(other);
	SAY_RESULT(dup2(s, other) == other);
	fds_make_one_datagram_arrive(s, 1);
	take(other, 2000, 0);
	other = udp_socket_bound_to(here, 7400);
	SAY_RESULT(pipe(ends));
	SAY_RESULT(dup2(ends[0], other) == other);
	SAY_RESULT(write(ends[1], "hello", 5));
	SAY_RESULT(recv(other, ends, 4, 0));
	say("read %zd", read(other, ends, 5));
	other = udp_socket_bound_to(here, 7400);
	expect_offloaded(other);
	SAY_RESULT(dup2(other, 90));
	expect_offloaded(90);
}

CASE(dup_shares_flags, "duplicates share O_NONBLOCK and options, as the socket is one")
{
	int s = fds_open_offloaded_udp_socket_and_peer(), copy = dup(s), value = 0;
	socklen_t len = sizeof(value);
	char byte;

	SAY_RESULT(fcntl(copy, F_SETFL, O_NONBLOCK));
	SAY_RESULT(recv(s, &byte, 1, 0));
	SAY_RESULT(set_int(copy, IPPROTO_IP, IP_TTL, 9));
	SAY_RESULT(getsockopt(s, IPPROTO_IP, IP_TTL, &value, &len));
	say("ttl %d", value);
	SAY_RESULT(send_to_peer(s, 1));
	say_peer_received(far(), 0, 2000);
}

CASE(fork_child_receives, "a forked child receives on the parent's socket, and so does the parent afterwards")
{
	int s = fds_open_offloaded_udp_socket_and_peer();
	pid_t pid;

	fds_make_one_datagram_arrive(s, 1);
	take(s, 2000, 0);
	pid = fork();
	if (pid == 0) {
		for (int i = 2; i < 4; i++) {
			peer_ask_to_send_after_ms(far(), 150, 0, here, port_of(s), 20, i);
			take(s, 3000, 0);
		}
		_exit(7);
	}
	wait_and_print_child_status(pid);
	fds_make_one_datagram_arrive(s, 4);
	take(s, 3000, 0);
	expect_offloaded(s);
	fds_make_one_datagram_arrive(s, 5);
	take(s, 3000, 0);
}

CASE(fork_children_leave, "what comes right after a child has ended is there for its parent")
{
	int s = fds_open_offloaded_udp_socket_and_peer();
	pid_t pid;

	for (int child = 0; child < 50; child++) {
		pid = fork();
		if (pid == 0) {
			for (int i = 0; i < 2; i++) {
				fds_make_one_datagram_arrive(s, i);
				take(s, 3000, 0);
			}
			_exit(7);
		}
		wait_and_print_child_status(pid);
		fds_make_one_datagram_arrive(s, 3);
		take(s, 3000, 0);
	}
}

CASE(fork_child_receives_at_once, "what comes right after the fork is there for a child that is the only one to ask")
{
	int s = fds_open_offloaded_udp_socket_and_peer();
	pid_t pid = fork();

	if (pid == 0) {
		for (int i = 0; i < 5; i++)
			fds_make_one_datagram_arrive(s, i);
		for (int i = 0; i < 5; i++)
			take(s, 1000, 0);
		_exit(7);
	}
	wait_and_print_child_status(pid);
	receive_all_until_empty(s);
}

CASE(fork_parent_receives, "while a forked child holds the socket, the parent still receives")
{
	int s = fds_open_offloaded_udp_socket_and_peer(), ends[2];
	pid_t pid;
	char byte;

	SAY_RESULT(pipe(ends));
	pid = fork();
	if (pid == 0) {
		close(ends[1]);
		_exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
	}
	for (int i = 0; i < 5; i++) {
		fds_make_one_datagram_arrive(s, i);
		take(s, 3000, 0);
	}
	close(ends[1]);
	close(ends[0]);
	wait_and_print_child_status(pid);
	fds_make_one_datagram_arrive(s, 9);
	take(s, 3000, 0);
	receive_all_until_empty(s);
}

CASE(fork_both_send, "parent and child send on one socket, from one port")
{
	int s = fds_open_offloaded_udp_socket_and_peer();
	pid_t pid = fork();

	if (pid == 0) {
		for (int i = 0; i < 20; i++)
			if (send_to_peer(s, i) != 20)
				_exit(1);
		_exit(0);
	}
	wait_and_print_child_status(pid);
	for (int i = 20; i < 40; i++)
		if (send_to_peer(s, i) != 20)
			say("failed: %s", error_name(errno));
	say("the peer counted %s", peer(far(), "count 0 40 0 2000"));
}

CASE(fork_child_has_its_own, "a forked child opens sockets of its own, offloaded; so may its child")
{
	int s = fds_open_offloaded_udp_socket_and_peer(), port = port_of(s), status;
	pid_t pid = fork();

	if (pid == 0) {
		int own = udp_socket_bound_to(here, 7401);

		expect_offloaded(own);
		peer(far(), "send 0 %s 7401 20 1", here);
		take(own, 3000, 0);
		pid = fork();
		if (pid == 0) {
			int third = udp_socket_bound_to(here, 7402);

			expect_offloaded(third);
			peer(far(), "send 0 %s 7402 20 2", here);
			take(third, 3000, 0);
			_exit(3);
		}
		waitpid(pid, &status, 0);
		_exit(WEXITSTATUS(status) + 1);
	}
	wait_and_print_child_status(pid);
	peer(far(), "send 0 %s %d 20 3", here, port);
	take(s, 3000, 0);
}

CASE(fork_closed_by_child, "a child that closes the socket or exits takes nothing from its parent")
{
	int s = fds_open_offloaded_udp_socket_and_peer();

	for (int i = 0; i < 3; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			if (i == 0)
				close(s);
			if (i == 2)
				exit(0);
			_exit(0);
		}
		wait_and_print_child_status(pid);
		fds_make_one_datagram_arrive(s, i);
		take(s, 3000, 0);
		expect_offloaded(s);
	}
	SAY_RESULT(system("exit 5") >> 8);
	fds_make_one_datagram_arrive(s, 9);
	take(s, 3000, 0);
}

CASE(fork_parent_closes, "a daemon: the parent exits, the child goes on with the socket")
{
	int s = fds_open_offloaded_udp_socket_and_peer();
	pid_t pid = fork(), grandchild;

	if (pid == 0) {
		grandchild = fork();
		if (grandchild > 0)
			_exit(0);
		pause_ms(50);
		for (int i = 0; i < 3; i++) {
			fds_make_one_datagram_arrive(s, i);
			take(s, 3000, 0);
		}
		SAY_RESULT(send_to_peer(s, 9));
		say_peer_received(far(), 0, 2000);
		_exit(0);
	}
	wait_and_print_child_status(pid);
	close(s);
	pause_ms(400);
}

/* What a program does that gets a socket by exec. */
static void use_inherited_udp_socket(int s)
{
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	register_port_name_of_fd(s, "us");
	say_local_address("inherited", s);
	fds_make_one_datagram_arrive(s, 1);
	take(s, 3000, 0);
	SAY_RESULT(send_to_peer(s, 2));
	say_peer_received(far(), 0, 2000);
}

/* `parity CASE` again, with PARITY_INHERITED. */
CASE(exec_inherits, "a program gets its socket by exec and uses it")
{
	const char *inherited = getenv("PARITY_INHERITED");
	char number[16];
	char *const args[] = {(char *)this_program, "exec_inherits", NULL};
	char *const nothing[] = {(char *)this_program, "exec_inherited_nothing", NULL};
	int s;

	if (inherited != NULL) {
		s = atoi(inherited);
		pause_ms(100); /* what was the old program's ends in this time */
		use_inherited_udp_socket(s);
		SAY_RESULT(fcntl(s, F_SETFD, FD_CLOEXEC));
		execv(this_program, nothing);
		_exit(9);
	}
	s = fds_open_offloaded_udp_socket_and_peer();
	snprintf(number, sizeof(number), "%d", s);
	setenv("PARITY_INHERITED", number, 1);
	execv(this_program, args);
	_exit(9);
}

CASE(exec_in_child, "a child gets the socket by fork and exec, or posix_spawn; its parent has closed it")
{
	const char *inherited = getenv("PARITY_INHERITED");
	char number[16];
	char *const args[] = {(char *)this_program, "exec_in_child", NULL};
	pid_t pid;
	int s;

	if (inherited != NULL) {
		pause_ms(100);
		use_inherited_udp_socket(atoi(inherited));
		return;
	}
	for (int i = 0; i < 2; i++) {
		s = fds_open_offloaded_udp_socket_and_peer();
		snprintf(number, sizeof(number), "%d", s);
		setenv("PARITY_INHERITED", number, 1);
		if (i == 0) {
			pid = fork();
			if (pid == 0) {
				execv(this_program, args);
				_exit(9);
			}
		} else {
			SAY_RESULT(posix_spawn(&pid, this_program, NULL, NULL, args, environ));
		}
		close(s);
		wait_and_print_child_status(pid);
	}
}

CASE(exec_inherited_nothing, "a descriptor with FD_CLOEXEC is closed by exec")
{
	const char *inherited = getenv("PARITY_INHERITED");

	if (inherited == NULL)
		say("not by exec");
	else
		SAY_RESULT(fcntl(atoi(inherited), F_GETFD));
}

CASE(pass_by_message, "a socket that is passed by SCM_RIGHTS works where it arrives")
{
	int s = fds_open_offloaded_udp_socket_and_peer(), pair[2], got = -1;
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {.iov_base = "x", .iov_len = 1};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	char byte;

	SAY_RESULT(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &s, sizeof(s));
	SAY_RESULT(sendmsg(pair[0], &msg, 0));
	iov.iov_base = &byte;
	SAY_RESULT(recvmsg(pair[1], &msg, 0));
	memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(got));
	SAY_RESULT(send_to_peer(got, 1));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(close(s));
	fds_make_one_datagram_arrive(got, 2);
	take(got, 3000, 0);
}

CASE(close_ranges, "close_range and closefrom close sockets, and no more than they should")
{
	int s = udp_socket_bound_to(here, 7403), low = dup2(s, 50), high = dup2(s, 400);
	char byte;

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	close(s);
	expect_offloaded(low);
	SAY_RESULT(close_range(60, 70, 0));
	SAY_RESULT(close_range(50, 399, 0));
	SAY_RESULT(recv(low, &byte, 1, MSG_DONTWAIT));
	peer(far(), "send 0 %s 7403 20 1", here);
	take(high, 2000, 0);
	SAY_RESULT(close_range(400, 300, 0));
	closefrom(400);
	SAY_RESULT(recv(high, &byte, 1, MSG_DONTWAIT));
	s = udp_socket_bound_to(here, 7403);
	expect_offloaded(s);
	SAY_RESULT(close_range((unsigned)s, ~0U, CLOSE_RANGE_CLOEXEC));
	SAY_RESULT(fcntl(s, F_GETFD));
}

CASE(stdio_on_sockets, "fdopen, dprintf, fprintf, fgets and fclose on a socket")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port), number;
	char line[64];
	FILE *file;

	register_port_name_of_fd(s, "us");
	register_port_name(port, "peer");
	expect_offloaded(s);
	SAY_RESULT(dprintf(s, "hello %d", 5));
	say_peer_received(far(), 0, 2000);
	file = fdopen(s, "r+");
	say("%s", file != NULL ? "a stream" : "no stream");
	if (file == NULL)
		return;
	SAY_RESULT(fprintf(file, "abc"));
	SAY_RESULT(fflush(file));
	say_peer_received(far(), 0, 2000);
	peer(far(), "line 0 %s %d", here, port_of(s));
	say("%s", fgets(line, sizeof(line), file) != NULL ? "a line" : "no line");
	SAY_RESULT(fclose(file));
	SAY_RESULT(fcntl(s, F_GETFD));
	number = udp_socket_bound_to(here, 7404);
	say("the same number: %d", number == s);
	peer(far(), "send 0 %s 7404 20 1", here);
	take(number, 2000, 0);
	expect_offloaded(number);
}

CASE(numbers_again, "a descriptor number is used 1,000 times, by sockets, files and pipes in turn")
{
	int wrong = 0, first = -1, other_socket = udp_socket_bound_to(here, 7406);

	/* The first flow of an interface takes its time: this one stays. */
	expect_offloaded(other_socket);

	for (int i = 0; i < 1000; i++) {
		int fd, other = -1, ends[2];
		char byte = 0;

		if (i % 3 == 0) {
			fd = udp_socket_bound_to(here, 7405);
			wrong += recv(fd, &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN;
		} else if (i % 3 == 1) {
			fd = open("/dev/zero", O_RDWR);
			wrong += read(fd, &byte, 1) != 1 || send(fd, &byte, 1, 0) != -1 || errno != ENOTSOCK;
		} else {
			wrong += pipe(ends) != 0;
			fd = ends[0];
			other = ends[1];
			wrong += write(other, &byte, 1) != 1 || read(fd, &byte, 1) != 1;
		}
		if (first < 0)
			first = fd;
		wrong += fd != first;
		close(fd);
		if (other >= 0)
			close(other);
	}
	say("%d wrong", wrong);
}

CASE(many_sockets, "2,000 sockets, each with one descriptor; when they are out, EMFILE, and then all works on")
{
	struct rlimit limit = {.rlim_cur = 2100, .rlim_max = 2100};
	int fds[2200], n = 0, lowest;

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	/* The library may use some, but not with each socket. */
	setrlimit(RLIMIT_NOFILE, &limit);
	while (n < 2000 && (fds[n] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0) {
		struct sockaddr_in address = ipv4_sockaddr_of(here, 9000 + n);

		if (bind(fds[n], (struct sockaddr *)&address, sizeof(address)) != 0)
			break;
		n++;
	}
	say("%d sockets", n);
	expect_offloaded(fds[0]);
	if (n > 0)
		expect_offloaded(fds[n - 1]);
	for (int i = 0; i < n; i += 111) {
		peer(far(), "send 0 %s %d 20 %d", here, 9000 + i, i % 64);
		take(fds[i], 2000, 0);
	}
	while (n < 2200 && (fds[n] = socket(AF_INET, SOCK_DGRAM, 0)) >= 0)
		n++;
	say("%s", n < 2200 ? error_name(errno) : "no end");
	SAY_RESULT(dup(fds[0]));
	lowest = fds[1];
	SAY_RESULT(close(fds[1]));
	fds[1] = udp_socket_bound_to(here, 9001);
	say("the number again: %d", fds[1] == lowest);
	peer(far(), "send 0 %s 9001 20 1", here);
	take(fds[1], 2000, 0);
}
