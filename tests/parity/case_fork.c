/* UDP over a fork: what had come and was not read belongs to whoever reads first, and servers of a process per client.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

/* `n` datagrams are queued, offloaded. */
static int socket_with_queued_datagrams(int n)
{
	int s = udp_socket_bound_to(here, 0);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	register_port_name_of_fd(s, "us");
	expect_offloaded(s);
	for (int i = 1; i <= n; i++)
		peer_send(far(), 0, here, port_of(s), 20 * i, i);
	if (!wait_until_readable(s, 2000))
		die_with_message("nothing came");
	pause_ms(30);
	take(s, 0, MSG_PEEK);
	return s;
}

/* What a child prints is printed before its parent goes on. */
static pid_t fork_after_flushing_stdout(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		die_with_message("fork");
	return pid;
}

static void fork_wait_and_print_child_status(pid_t pid)
{
	int status = -1;

	if (waitpid(pid, &status, 0) != pid)
		die_with_message("waitpid");
	say("the child ended with %s %d", WIFEXITED(status) ? "status" : "signal",
	    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static void print_next_datagram_len(int s)
{
	int len = -1;

	ioctl(s, FIONREAD, &len);
	say("next: %d bytes", len);
}

CASE(fork_shares_what_is_queued,
     "of what was queued at a fork the child reads the first, the parent the rest, nobody twice")
{
	int s = socket_with_queued_datagrams(6);
	pid_t pid = fork_after_flushing_stdout();

	if (pid == 0) {
		print_next_datagram_len(s);
		take(s, 1000, MSG_PEEK);
		take(s, 1000, 0);
		receive_and_say_up_to(s, 1000, 0, 7);
		receive_and_say_up_to(s, 1000, MSG_TRUNC, 7);
		fflush(stdout);
		_exit(0);
	}
	fork_wait_and_print_child_status(pid);
	print_next_datagram_len(s);
	take(s, 1000, 0);
	peer_send(far(), 0, here, port_of(s), 20, 9);
	take(s, 1000, 0);
	take(s, 1000, 0);
	take(s, 1000, 0);
	receive_all_until_empty(s);
}

CASE(fork_twice_with_a_queue,
     "two forks, and the queue is there for the child of the child, and for the parent after it")
{
	int s = socket_with_queued_datagrams(3);
	pid_t pid = fork_after_flushing_stdout(), second;

	if (pid == 0) {
		take(s, 1000, 0);
		second = fork_after_flushing_stdout();
		if (second == 0) {
			take(s, 1000, 0);
			fflush(stdout);
			_exit(0);
		}
		fork_wait_and_print_child_status(second);
		fflush(stdout);
		_exit(0);
	}
	fork_wait_and_print_child_status(pid);
	take(s, 1000, 0);
	receive_all_until_empty(s);
	pause_ms(1200);
	expect_offloaded(s);
	peer_send(far(), 0, here, port_of(s), 20, 10);
	take(s, 1000, 0);
}

static void say_ready(const char *how, int n)
{
	say("%s: %s", how, n > 0 ? "readable" : "not readable");
}

CASE(fork_queue_is_readable, "select, poll and epoll in a child tell of what was queued before it was made")
{
	struct epoll_event event = {.events = EPOLLIN};
	int s = socket_with_queued_datagrams(1), set = epoll_create1(0);
	struct timeval second = {.tv_sec = 1};
	struct pollfd fd = {.fd = s, .events = POLLIN};
	fd_set fds;
	pid_t pid;

	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	pid = fork_after_flushing_stdout();
	if (pid == 0) {
		say_ready("poll", poll(&fd, 1, 1000));
		FD_ZERO(&fds);
		FD_SET(s, &fds);
		say_ready("select", select(s + 1, &fds, NULL, NULL, &second));
		say_ready("epoll", epoll_wait(set, &event, 1, 1000));
		fflush(stdout);
		_exit(0);
	}
	fork_wait_and_print_child_status(pid);
	say_ready("epoll", epoll_wait(set, &event, 1, 1000));
	take(s, 1000, 0);
	say_ready("epoll", epoll_wait(set, &event, 1, 50));
	say_ready("poll", poll(&fd, 1, 50));
}

/* A process for each client, as socat's UDP-LISTEN with fork has it. */
static int udp_socket_bound_to_port(int port)
{
	struct sockaddr_in address = ipv4_sockaddr_of(here, port);
	int s = udp_socket();

	set_int(s, SOL_SOCKET, SO_REUSEADDR, 1);
	if (bind(s, (struct sockaddr *)&address, sizeof(address)) != 0)
		die_with_message("bind");
	return s;
}

/* Prints nothing: its parent does meanwhile. */
static int fork_serve(int s, const struct sockaddr_in *client)
{
	char bytes[100];

	if (connect(s, (struct sockaddr *)client, sizeof(*client)) != 0)
		return 1;
	for (int i = 0; i < 2; i++) {
		if (!wait_until_readable(s, 3000) || recv(s, bytes, sizeof(bytes), MSG_DONTWAIT) != 40 + 10 * i)
			return 2 + i;
		fill(bytes, sizeof(bytes), 7 + i);
		if (send(s, bytes, sizeof(bytes), 0) != sizeof(bytes))
			return 4 + i;
	}
	return 0;
}

CASE(fork_per_client,
     "peek, fork, connect: each client's first datagram is answered, by a child, and the next ones, too")
{
	int s = udp_socket_bound_to_port(7410);

	for (int i = 0; i < 3; i++) {
		struct sockaddr_in client = {0};
		socklen_t len = sizeof(client);
		char byte;
		pid_t pid;

		register_port_name(peer_ask_to_open_socket(far(), i, there, 0), "client");
		peer_send(far(), i, here, 7410, 40, i);
		SAY_RESULT(recvfrom(s, &byte, 1, MSG_PEEK, (struct sockaddr *)&client, &len));
		pid = fork_after_flushing_stdout();
		if (pid == 0)
			_exit(fork_serve(s, &client));
		close(s);
		s = udp_socket_bound_to_port(7410);
		say_peer_received(far(), i, 3000);
		peer_send(far(), i, here, 7410, 50, i);
		say_peer_received(far(), i, 3000);
		fork_wait_and_print_child_status(pid);
	}
	receive_all_until_empty(s);
}

/* ---- a thread of the parent waits in the socket ---- */

static void *thread_receive_one(void *arg)
{
	char bytes[100];

	return (void *)(intptr_t)recv((int)(intptr_t)arg, bytes, sizeof(bytes), 0);
}

/* A child that says when it has begun, and lives until `ends[1]` is closed. It closes s first, unless that is -1. */
static pid_t fork_child_that_stays(int s, int ends[2])
{
	int begun[2];
	char bytes[100];
	pid_t pid;

	if (pipe(begun) != 0 || pipe(ends) != 0)
		die_with_message("pipe");
	pid = fork_after_flushing_stdout();
	if (pid == 0) {
		close(ends[1]);
		if (s >= 0) {
			recv(s, bytes, sizeof(bytes), MSG_DONTWAIT);
			close(s);
		}
		close(begun[1]);
		_exit(read(ends[0], bytes, 1) == 0 ? 0 : 1);
	}
	close(begun[1]);
	close(ends[0]);
	if (read(begun[0], bytes, 1) != 0)
		die_with_message("the child");
	close(begun[0]);
	return pid;
}

static void say_whether_port_is_free(int port)
{
	const struct sockaddr_in name = ipv4_sockaddr_of(here, port);
	int s = udp_socket();

	SAY_RESULT(bind(s, (const struct sockaddr *)&name, sizeof(name)));
	close(s);
}

CASE(fork_beside_a_waiting_thread, "a child that closes a socket in which its parent's thread waits gives up its port")
{
	int s = udp_socket_bound_to(here, 0), port = port_of(s), ends[2];
	pthread_t thread;
	void *len;
	pid_t pid;

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	pthread_create(&thread, NULL, thread_receive_one, (void *)(intptr_t)s);
	pause_ms(50);
	pid = fork_child_that_stays(s, ends);
	peer_send(far(), 0, here, port, 20, 1);
	pthread_join(thread, &len);
	say("the thread has received %d bytes", (int)(intptr_t)len);
	close(s);
	say_whether_port_is_free(port);
	close(ends[1]);
	fork_wait_and_print_child_status(pid);
}

CASE(fork_after_close_beside_a_waiting_thread,
     "a child does not hold the port of a socket that was closed before, though a thread of its parent waited in it")
{
	const struct timeval half = {.tv_usec = 500000};
	int s = udp_socket_bound_to(here, 0), port = port_of(s), ends[2];
	pthread_t thread;
	void *len;
	pid_t pid;

	expect_offloaded(s);
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &half, sizeof(half));
	pthread_create(&thread, NULL, thread_receive_one, (void *)(intptr_t)s);
	pause_ms(50);
	close_fd_in_use_without_tsan_report(s);
	pid = fork_child_that_stays(-1, ends);
	pthread_join(thread, &len);
	say("the thread has received %d bytes", (int)(intptr_t)len);
	say_whether_port_is_free(port);
	close(ends[1]);
	fork_wait_and_print_child_status(pid);
}
