/*
 * passed_on: sockets at 0, 1 and 2, where the C library's streams read and write by themselves, and sockets that other
 * programs get without a fork.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

static int passed_on_connected_udp(void)
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port);

	register_port_name(port, "peer");
	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	return s;
}

static void passed_on_wait_and_print_status(pid_t pid)
{
	int status = -1;

	if (waitpid(pid, &status, 0) != pid)
		die_with_message("waitpid");
	say("the program ended with %d", status);
}

/* The program copies what it reads to what it writes: cat. */
static void talk_to_cat(pid_t pid)
{
	for (int i = 1; i <= 3; i++) {
		far_peer_writes(1, 1000, i, 1);
		say_far_peer_reads(1, 1000, i, 1);
	}
	far_peer_shuts_down(1, SHUT_WR);
	say_far_peer_reads(1, 1, 0, 1);
	passed_on_wait_and_print_status(pid);
}

static pid_t spawn(posix_spawn_file_actions_t *actions, const char *path, char *const args[])
{
	pid_t pid = -1;

	SAY_RESULT(posix_spawn(&pid, path, actions, NULL, args, environ));
	posix_spawn_file_actions_destroy(actions);
	return pid;
}

static char *const cat[] = {"cat", NULL},
                   *const dd_one_block_argv[] = {"dd", "bs=4096", "count=1", "status=none", NULL},
                   *const hello[] = {"echo", "hello", NULL};

/* ---- other programs ---- */

CASE(pass_spawn, "posix_spawn of a program whose input and output is a connection")
{
	int s = tcp_connected_to_far_peer();
	posix_spawn_file_actions_t actions;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	SAY_RESULT(posix_spawn_file_actions_adddup2(&actions, s, 0));
	SAY_RESULT(posix_spawn_file_actions_adddup2(&actions, s, 1));
	SAY_RESULT(posix_spawn_file_actions_adddup2(&actions, -1, 1));
	pid = spawn(&actions, "/bin/cat", cat);
	SAY_RESULT(close(s));
	talk_to_cat(pid);
}

CASE(pass_spawn_kept, "posix_spawn of a program that writes to a connection, in front of and after its parent")
{
	int s = tcp_connected_to_far_peer();
	posix_spawn_file_actions_t actions;

	send_pattern_and_print_result(s, 100, 1, 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, s, 50);
	posix_spawn_file_actions_adddup2(&actions, 50, STDOUT_FILENO);
	passed_on_wait_and_print_status(spawn(&actions, "/bin/echo", hello));
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	send_pattern_and_print_result(s, 100, 2, 0);
	say_far_peer_reads(1, 100, 1, 1);
	say_far_peer_reads(1, 6, 0, 1);
	say_far_peer_reads(1, 100, 2, 1);
	far_peer_writes(1, 100, 3, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(pass_spawn_udp, "posix_spawn of a program whose input and output is a UDP socket, which its parent keeps")
{
	int s = passed_on_connected_udp();
	posix_spawn_file_actions_t actions;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, s, 0);
	posix_spawn_file_actions_adddup2(&actions, s, 1);
	pid = spawn(&actions, "/bin/dd", dd_one_block_argv);
	pause_ms(1500);
	peer_send(far(), 0, here, port_of(s), 100, 4);
	say_peer_received(far(), 0, 2000);
	passed_on_wait_and_print_status(pid);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
}

CASE(pass_spawn_listener, "posix_spawn of a program that accepts from a listener at 0; the parent closes it")
{
	int l, s;
	char *const args[] = {(char *)this_program, "pass_spawn_listener", NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid;

	if (getenv("PARITY_INHERITED") != NULL) {
		s = accept(0, NULL, NULL);
		recv_and_print_result(s, 100, MSG_WAITALL);
		send_pattern_and_print_result(s, 100, 2, 0);
		return;
	}
	l = tcp_listener(here, 0, 5);
	expect_offloaded(l);
	setenv("PARITY_INHERITED", "0", 1);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, l, 0);
	pid = spawn(&actions, this_program, args);
	peer(far(), "dial 1 %s %d", here, port_of(l));
	SAY_RESULT(close(l));
	far_peer_writes(1, 100, 1, 1);
	passed_on_wait_and_print_status(pid);
	say_far_peer_reads(1, 100, 2, 1);
}

CASE(pass_vfork, "vfork, dup2 onto 0 and 1, exec, as Python's subprocess does")
{
	int s = tcp_connected_to_far_peer();
	pid_t pid = vfork();

	if (pid == 0) {
		dup2(s, 0);
		dup2(s, 1);
		closefrom(3);
		execv("/bin/cat", cat);
		_exit(9);
	}
	SAY_RESULT(close(s));
	talk_to_cat(pid);
}

CASE(pass_vfork_closes_first, "a vfork child closes all but the connection before it passes that on, to any number")
{
	int s = tcp_connected_to_far_peer(), other = tcp_socket();
	char *const args[] = {"sh", "-c", "exec cat <&7 >&7", NULL};
	pid_t pid = vfork();

	if (pid == 0) {
		close_range((unsigned)other, ~0U, 0);
		dup3(s, 7, 0);
		execv("/bin/sh", args);
		_exit(9);
	}
	SAY_RESULT(close(s));
	SAY_RESULT(fcntl(other, F_GETFD));
	talk_to_cat(pid);
}

CASE(pass_vfork_cloexec, "a vfork child takes close-on-exec from a connection, and its program has it by its number")
{
	int s = tcp_connected_to_far_peer();
	char line[64];
	char *const args[] = {"sh", "-c", line, NULL};
	pid_t pid;

	dup2(s, 8);
	close(s);
	fcntl(8, F_SETFD, FD_CLOEXEC);
	snprintf(line, sizeof(line), "exec cat <&8 >&8");
	pid = vfork();
	if (pid == 0) {
		fcntl(8, F_SETFD, 0);
		execv("/bin/sh", args);
		_exit(9);
	}
	SAY_RESULT(fcntl(8, F_GETFD));
	SAY_RESULT(close(8));
	talk_to_cat(pid);
}

static pid_t vfork_dd_one_block(int s)
{
	pid_t pid = vfork();

	if (pid == 0) {
		dup2(s, 0);
		dup2(s, 1);
		execv("/bin/dd", dd_one_block_argv);
		_exit(9);
	}
	return pid;
}

CASE(pass_vfork_udp, "vfork, dup2 of a UDP socket onto 0 and 1, exec; the parent closes it, or goes on")
{
	for (int keeps = 0; keeps < 2; keeps++) {
		int s = passed_on_connected_udp(), port = port_of(s);
		pid_t pid = vfork_dd_one_block(s);

		if (!keeps)
			SAY_RESULT(close(s));
		peer_send(far(), 0, here, port, 100, 4);
		say_peer_received(far(), 0, 2000);
		passed_on_wait_and_print_status(pid);
		if (keeps) {
			peer_send(far(), 0, here, port, 100, 5);
			take(s, 2000, 0);
		}
		peer(far(), "close 0");
	}
}

/* ThreadSanitizer makes a fork of vfork, and what is queued at a fork does not outlive exec. */
#ifndef PARITY_TSAN
CASE(pass_vfork_udp_unread, "datagrams that had come and were not read are the program's")
{
	int s = passed_on_connected_udp();
	char *const dd_three_blocks_argv[] = {"dd", "bs=4096", "count=3", "status=none", NULL};
	pid_t pid;

	for (int i = 1; i <= 4; i++)
		peer_send(far(), 0, here, port_of(s), 300 * i, i);
	wait_until_sent_packets_arrived(50);
	take(s, 2000, 0);
	pid = vfork();
	if (pid == 0) {
		dup2(s, 0);
		dup2(s, 1);
		execv("/bin/dd", dd_three_blocks_argv);
		_exit(9);
	}
	passed_on_wait_and_print_status(pid);
	for (int i = 2; i <= 4; i++)
		say_peer_received(far(), 0, 2000);
	receive_all_until_empty(s);
}
#endif

CASE(pass_vfork_unread, "what had come and was not read, and what comes meanwhile, is the program's, and in order")
{
	int s = tcp_connected_to_far_peer();
	pid_t pid;

	far_peer_writes(1, 1000, 1, 5);
	wait_until_sent_packets_arrived(50);
	recv_and_print_result(s, 1000, MSG_WAITALL);
	peer(far(), "later 1 write 1 1000 6 45");
	pid = vfork();
	if (pid == 0) {
		dup2(s, 0);
		dup2(s, 1);
		execv("/bin/cat", cat);
		_exit(9);
	}
	SAY_RESULT(close(s));
	for (int i = 2; i <= 50; i++)
		say_far_peer_reads(1, 1000, i, 1);
	talk_to_cat(pid);
}

static void *vfork_five_times(void *arg)
{
	const int s = *(int *)arg;

	for (int i = 0; i < 5; i++) {
		pid_t pid = vfork();

		if (pid == 0) {
			dup2(s, 1);
			execv("/bin/echo", hello);
			_exit(9);
		}
		waitpid(pid, NULL, 0);
	}
	return NULL;
}

CASE(pass_vfork_threads, "the vfork children of four threads pass on one connection, all at the same time")
{
	enum { THREADS = 4 };
	int s = tcp_connected_to_far_peer();
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, vfork_five_times, &s) != 0)
			die_with_message("pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, THREADS * 5 * 6, 0, 1);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(pass_nothing, "programs that are started with other files cost a connection and a UDP socket nothing")
{
	int s = tcp_connected_to_far_peer(), u = passed_on_connected_udp(), ends[2];
	posix_spawn_file_actions_t actions;
	char line[16] = "";
	pid_t pid;

	SAY_RESULT(pipe(ends));
	pid = vfork();
	if (pid == 0) {
		dup2(ends[1], STDOUT_FILENO);
		close(s);
		closefrom(3);
		execv("/bin/echo", hello);
		_exit(9);
	}
	passed_on_wait_and_print_status(pid);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
	passed_on_wait_and_print_status(spawn(&actions, "/bin/echo", hello));
	SAY_RESULT(read(ends[0], line, 12));
	SAY_RESULT(system("exit 3") >> 8);
	expect_offloaded(s);
	expect_offloaded(u);
	far_peer_writes(1, 100, 1, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
	peer_send(far(), 0, here, port_of(u), 100, 2);
	take(u, 2000, 0);
}

/* ---- the process's own 0, 1 and 2 ---- */

/* What is said goes to where 1 was before. */
static int saved_stdout_fd, saved_stdin_fd;

static void dup_socket_onto_stdio(int s)
{
	saved_stdout_fd = dup(STDOUT_FILENO);
	saved_stdin_fd = dup(STDIN_FILENO);
	signal(SIGPIPE, SIG_IGN);
	if (saved_stdout_fd < 0 || dup2(s, STDIN_FILENO) != STDIN_FILENO || dup2(s, STDOUT_FILENO) != STDOUT_FILENO)
		die_with_message("dup2");
}

static void restore_stdin_and_stdout(void)
{
	dup2(saved_stdout_fd, STDOUT_FILENO);
	dup2(saved_stdin_fd, STDIN_FILENO);
}

CASE(standard_stream, "printf and fread on a connection that was put onto 0 and 1; its first number goes on as well")
{
	int s = tcp_connected_to_far_peer(), flushed;
	char line[128];
	size_t n;

	far_peer_writes(1, 50, 1, 1);
	wait_until_sent_packets_arrived(30);
	send_pattern_and_print_result(s, 10, 3, 0);
	dup_socket_onto_stdio(s);
	printf("hello");
	flushed = fflush(stdout);
	far_peer_writes(1, 50, 2, 1);
	n = fread(line, 1, 100, stdin);
	restore_stdin_and_stdout();
	say("fflush %d, fread %zu: %d %d", flushed, n, seed_of_payload(line, 50), seed_of_payload(line + 50, 50));
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	say_far_peer_reads(1, 10, 3, 1);
	say_far_peer_reads(1, 5, 0, 1);
	far_peer_writes(1, 100, 4, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
	send_pattern_and_print_result(s, 100, 5, 0);
	say_far_peer_reads(1, 100, 5, 1);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(standard_before_connect, "a socket is put onto 1 first, and connected then")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s = tcp_socket(), flushed, connected;
	struct sockaddr_in address = ipv4_sockaddr_of(there, port);

	dup_socket_onto_stdio(s);
	connected = connect(STDOUT_FILENO, (struct sockaddr *)&address, sizeof(address));
	peer(far(), "accept 0 1 2000");
	printf("hello");
	flushed = fflush(stdout);
	restore_stdin_and_stdout();
	say("connect %d, fflush %d", connected, flushed);
	say_far_peer_reads(1, 5, 0, 1);
	send_pattern_and_print_result(s, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
}

CASE(standard_epoll, "an epoll set goes on telling of a connection and a UDP socket that were put onto 0 and 1")
{
	int s = tcp_connected_to_far_peer(), u = passed_on_connected_udp(), set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = 1}, other = {.events = EPOLLIN, .data.fd = 2};

	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, u, &other));
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	dup_socket_onto_stdio(s);
	restore_stdin_and_stdout();
	dup_socket_onto_stdio(u);
	restore_stdin_and_stdout();
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	far_peer_writes(1, 100, 1, 1);
	SAY_RESULT(epoll_wait(set, &event, 1, 3000));
	say("of %d", event.data.fd);
	recv_and_print_result(s, 100, MSG_WAITALL);
	peer_send(far(), 0, here, port_of(u), 100, 2);
	SAY_RESULT(epoll_wait(set, &event, 1, 3000));
	say("of %d", event.data.fd);
	take(u, 0, 0);
	SAY_RESULT(epoll_wait(set, &event, 1, 50));
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(standard_lowest, "close(1), and dup finds the lowest number for a connection; then fcntl does")
{
	int s = tcp_connected_to_far_peer(), flushed[2], got[2];

	dup_socket_onto_stdio(s);
	restore_stdin_and_stdout();
	s = tcp_connected_to_far_peer();
	close(STDOUT_FILENO);
	got[0] = dup(s);
	printf("hello");
	flushed[0] = fflush(stdout);
	close(STDOUT_FILENO);
	got[1] = fcntl(s, F_DUPFD, 1);
	printf("again");
	flushed[1] = fflush(stdout);
	restore_stdin_and_stdout();
	say("%d %d, fflush %d %d", got[0], got[1], flushed[0], flushed[1]);
	say_far_peer_reads(1, 10, 0, 1);
}

CASE(standard_udp, "printf and fgets on a UDP socket that was put onto 0 and 1")
{
	int s = passed_on_connected_udp(), flushed, port = port_of(s);
	char line[64];
	bool got;

	dup_socket_onto_stdio(s);
	printf("hello");
	flushed = fflush(stdout);
	peer(far(), "line 0 %s %d", here, port);
	got = fgets(line, sizeof(line), stdin) != NULL;
	restore_stdin_and_stdout();
	say("fflush %d, %s", flushed, got ? "a line" : "no line");
	say_peer_received(far(), 0, 2000);
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	peer_send(far(), 0, here, port, 100, 1);
	take(s, 2000, 0);
}

CASE(standard_udp_unread, "what had come before a UDP socket was put onto 0, or got a stream, and was not read")
{
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_bound_to(here, 0),
	    other = udp_socket_bound_to(here, 7411);
	char line[64];
	FILE *file;

	register_port_name(port, "peer");
	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	expect_offloaded(other);
	for (int i = 1; i <= 5; i++)
		peer_send(far(), 0, here, port_of(s), i == 5 ? 1400 : i == 4 ? 0 : 300 * i, i);
	peer(far(), "line 0 %s 7411", here);
	wait_until_sent_packets_arrived(50);
	take(s, 2000, MSG_PEEK);
	dup_socket_onto_stdio(s);
	restore_stdin_and_stdout();
	expect_kernel_socket_for_reason(s, VMA_SOCK_PASSED_ON);
	peer_send(far(), 0, here, port_of(s), 100, 6);
	wait_until_sent_packets_arrived(50);
	for (int i = 1; i <= 6; i++)
		take(s, 2000, 0);
	receive_all_until_empty(s);
	file = fdopen(other, "r");
	say("%s", file != NULL && fgets(line, sizeof(line), file) != NULL ? "a line" : "no line");
}

CASE(standard_system, "a program that system starts writes to the connection that is standard output")
{
	int s = tcp_connected_to_far_peer(), rc;

	dup_socket_onto_stdio(s);
	rc = system("echo hello");
	restore_stdin_and_stdout();
	say("system %d", rc);
	say_far_peer_reads(1, 6, 0, 1);
}

CASE(standard_in_child, "a forked child puts its parent's connection onto 0 and 1, and uses stdio")
{
	int s = tcp_connected_to_far_peer();
	char line[64];
	size_t n;
	pid_t pid = fork();

	if (pid == 0) {
		dup_socket_onto_stdio(s);
		n = fread(line, 1, 50, stdin);
		printf("%zu bytes", n);
		_exit(fflush(stdout) == 0 && seed_of_payload(line, 50) == 1 ? 0 : 1);
	}
	far_peer_writes(1, 50, 1, 1);
	say_far_peer_reads(1, 8, 0, 1);
	passed_on_wait_and_print_status(pid);
	far_peer_writes(1, 100, 2, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
	SAY_RESULT(close(s));
	say_far_peer_reads(1, 1, 0, 1);
}

static void *passed_on_reader_thread(void *arg)
{
	static char bytes[100];

	*(long *)arg =
	        recv((int)*(long *)arg, bytes, sizeof(bytes), MSG_WAITALL) == 100 ? seed_of_payload(bytes, 100) : -1;
	return NULL;
}

CASE(standard_while_read, "a connection is put onto 0 while a thread waits in recv on it")
{
	int s = tcp_connected_to_far_peer();
	long what = s;
	pthread_t thread;

	if (pthread_create(&thread, NULL, passed_on_reader_thread, &what) != 0)
		die_with_message("pthread_create");
	pause_ms(100);
	dup_socket_onto_stdio(s);
	restore_stdin_and_stdout();
	far_peer_writes(1, 100, 7, 1);
	pthread_join(thread, NULL);
	say("the thread has read %ld", what);
}

/* While a thread waits in a call on it. */
static void hand_over_and_close_meanwhile(int s)
{
	pause_ms(200);
	dup_socket_onto_stdio(s);
	restore_stdin_and_stdout();
	pause_ms(200);
	SAY_RESULT(close(s));
}

static void *passed_on_piecewise_reader_thread(void *arg)
{
	static char bytes[100];
	struct iovec pieces[] = {{bytes, 30}, {bytes + 30, 30}, {bytes + 60, 40}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 3};

	if (recvmsg((int)*(long *)arg, &msg, MSG_WAITALL) == 100)
		*(long *)arg = seed_of_payload(bytes, 40) * 100 + seed_of_payload(bytes + 40, 60);
	else
		*(long *)arg = -1;
	return NULL;
}

CASE(standard_while_partly_read, "a connection is put onto 0 while a thread that has 40 of its 100 bytes waits for the "
                                 "rest; its numbers are closed")
{
	int s = tcp_connected_to_far_peer();
	long what = s;
	pthread_t thread;

	if (pthread_create(&thread, NULL, passed_on_piecewise_reader_thread, &what) != 0)
		die_with_message("pthread_create");
	far_peer_writes(1, 40, 7, 1);
	hand_over_and_close_meanwhile(s);
	far_peer_writes(1, 60, 8, 1);
	pthread_join(thread, NULL);
	say("the thread has read %ld", what);
	say_far_peer_reads(1, 1, 0, 1);
}

enum { PASSED_ON_CHUNK = 50000, PASSED_ON_CHUNKS = 20, PASSED_ON_PIECE = PASSED_ON_CHUNK * PASSED_ON_CHUNKS };

static void *passed_on_piecewise_writer_thread(void *arg)
{
	static char bytes[3 * PASSED_ON_PIECE];
	struct iovec pieces[3];

	for (int i = 0; i < 3; i++) {
		pieces[i] = (struct iovec){bytes + i * PASSED_ON_PIECE, PASSED_ON_PIECE};
		for (int j = 0; j < PASSED_ON_CHUNKS; j++)
			fill(bytes + i * PASSED_ON_PIECE + j * PASSED_ON_CHUNK, PASSED_ON_CHUNK, i + 1);
	}
	*(long *)arg = writev((int)*(long *)arg, pieces, 3);
	return NULL;
}

CASE(standard_while_partly_written,
     "a connection is put onto 0 while a thread waits in writev with more than the buffers have room for; it is closed")
{
	int s = tcp_connected_to_far_peer();
	long what = s;
	pthread_t thread;

	if (pthread_create(&thread, NULL, passed_on_piecewise_writer_thread, &what) != 0)
		die_with_message("pthread_create");
	hand_over_and_close_meanwhile(s);
	for (int i = 1; i <= 3; i++)
		say_far_peer_reads(1, PASSED_ON_CHUNK, i, PASSED_ON_CHUNKS);
	pthread_join(thread, NULL);
	say("the thread has written %ld", what);
	say_far_peer_reads(1, 1, 0, 1);
}

CASE(stream_before_connect, "fdopen for writing of a socket that is connected only then")
{
	int port = atoi(peer(far(), "listen 0 %s 0", there)), s = tcp_socket();
	struct sockaddr_in address = ipv4_sockaddr_of(there, port);
	FILE *file = fdopen(s, "w");

	signal(SIGPIPE, SIG_IGN);
	SAY_RESULT(connect(s, (struct sockaddr *)&address, sizeof(address)));
	peer(far(), "accept 0 1 2000");
	SAY_RESULT(fprintf(file, "hello"));
	SAY_RESULT(fflush(file));
	say_far_peer_reads(1, 5, 0, 1);
	send_pattern_and_print_result(s, 100, 1, 0);
	say_far_peer_reads(1, 100, 1, 1);
	SAY_RESULT(fclose(file));
	say_far_peer_reads(1, 1, 0, 1);
}
