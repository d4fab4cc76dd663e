/*
 * exec: sockets that a program inherits from the one that executed it.
 *
 * A successor is this program once more, started by fork and exec, with the socket under its number SUCCESSOR_FD (a
 * copy, as supervisors make it) or under the number that it had. It is preloaded as its parent is, or plain. Lines of a
 * script say what it does; it prints what it sees, and is waited for.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

enum { SUCCESSOR_FD = 70, SUCCESSOR_WAIT_MS = 5000 };

/* ---- the successor ---- */

static void successor_accept(int *s, int from)
{
	SAY_OK_OR_ERROR(*s = accept(from, NULL, NULL));
}

static void say_epoll_wait_of_fd(int fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	const int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	say("epoll: %d", epoll_wait(set, &event, 1, SUCCESSOR_WAIT_MS));
	close(set);
}

static void successor_do_step(char verb, int *s, int fd)
{
	switch (verb) {
	case 'a':
		successor_accept(s, fd);
		break;
	case 'p':
		wait_and_print_poll_events("the successor's poll", fd, POLLIN, SUCCESSOR_WAIT_MS);
		break;
	case 'e':
		say_epoll_wait_of_fd(fd);
		break;
	case 'n':
		say_local_address("its own name", fd);
		break;
	case 'u': /* the inherited one itself */
		*s = fd;
		break;
	case 'r':
		recv_and_print_result(*s, 100, MSG_WAITALL);
		break;
	case 'w':
		send_pattern_and_print_result(*s, 100, 2, MSG_NOSIGNAL);
		break;
	case 't':
		take(*s, SUCCESSOR_WAIT_MS, 0);
		break;
	case 'c':
		SAY_RESULT(close(*s));
		break;
	case 'k': /* the kernel's, and the state says why */
		expect_kernel_socket_for_reason(fd, VMA_SOCK_EXEC);
		break;
	default:
		say("a successor does not know how to %c", verb);
	}
}

static bool run_if_successor(void)
{
	const char *script = getenv("PARITY_SUCCESSOR"), *number = getenv("PARITY_SUCCESSOR_FD");
	int s = -1;

	if (script == NULL || number == NULL)
		return false;
	for (; *script != '\0'; script++)
		successor_do_step(*script, &s, atoi(number));
	return true;
}

/* ---- the parent ---- */

static void exec_as_successor(const char *name, const char *script, int fd, bool preloaded)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", fd);
	setenv("PARITY_SUCCESSOR", script, 1);
	setenv("PARITY_SUCCESSOR_FD", number, 1);
	if (!preloaded) {
		unsetenv("LD_PRELOAD");
		unsetenv("PARITY_PRELOAD");
	}
	execl(this_program, this_program, name, (char *)NULL);
	_exit(99);
}

/* keep: it has the number that the socket has here. */
static pid_t successor_start(const char *name, const char *script, int fd, bool preloaded, bool keep)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid != 0)
		return pid;
	if (!keep && dup2(fd, SUCCESSOR_FD) != SUCCESSOR_FD)
		_exit(98);
	exec_as_successor(name, script, keep ? fd : SUCCESSOR_FD, preloaded);
	return -1;
}

static void wait_for_successor_and_say_status(pid_t pid)
{
	int status = -1;

	if (waitpid(pid, &status, 0) != pid)
		die_with_message("waitpid");
	say("the successor ended with %d", status);
}

static int open_offloaded_listener(void)
{
	const int at = tcp_listener(here, 0, 16);

	expect_offloaded(at);
	say("readable: %d", wait_until_readable(at, 50));
	return at;
}

static void exec_far_peer_dials(int slot, int at)
{
	peer(far(), "dial %d %s %d", slot, here, port_of(at));
}

/* Waits until the successor is there and sleeps: nothing that can be seen tells it. */
static void pause_until_exec_successor_sleeps(void)
{
	pause_ms(400);
}

/* The successor answers; what it prints comes first. */
static void exchange_data_with_successor(int slot, pid_t successor)
{
	far_peer_writes(slot, 100, 1, 1);
	wait_for_successor_and_say_status(successor);
	say_far_peer_reads(slot, 100, 2, 1);
}

/* A connection that comes when the program runs is accepted there, by these steps. */
static void say_accepts_in_successor(const char *name, const char *steps)
{
	pid_t successor;
	int at;

	if (run_if_successor())
		return;
	at = open_offloaded_listener();
	successor = successor_start(name, steps, at, true, true);
	pause_until_exec_successor_sleeps();
	exec_far_peer_dials(1, at);
	exchange_data_with_successor(1, successor);
	close(at);
}

CASE(exec_listener, "a program accepts from the listener that its parent has polled and still polls")
{
	pid_t successor;
	int at;

	if (run_if_successor())
		return;
	at = open_offloaded_listener();
	successor = successor_start("exec_listener", "akrwc", at, true, false);
	pause_until_exec_successor_sleeps();
	exec_far_peer_dials(1, at);
	exchange_data_with_successor(1, successor);
	say("readable: %d", wait_until_readable(at, 50));
	expect_kernel_socket_for_reason(at, VMA_SOCK_EXEC);
	close(at);
}

CASE(exec_listener_by_number, "the same where it has the parent's number")
{
	say_accepts_in_successor("exec_listener_by_number", "arwc");
}

CASE(exec_listener_poll, "poll tells the program of a connection, then accept takes it")
{
	say_accepts_in_successor("exec_listener_poll", "parwc");
}

CASE(exec_listener_epoll, "the same of epoll")
{
	say_accepts_in_successor("exec_listener_epoll", "earwc");
}

CASE(exec_listener_waits, "a connection that has waited since before the program was started is accepted there")
{
	pid_t successor;
	int at;

	if (run_if_successor())
		return;
	at = open_offloaded_listener();
	exec_far_peer_dials(1, at);
	say("readable: %d", wait_until_readable(at, 2000));
	successor = successor_start("exec_listener_waits", "parwc", at, true, false);
	exchange_data_with_successor(1, successor);
	say("readable: %d", wait_until_readable(at, 50));
	exec_far_peer_dials(2, at);
	say("readable: %d", wait_until_readable(at, 2000));
	successor = successor_start("exec_listener_waits", "arwc", at, true, false);
	exchange_data_with_successor(2, successor);
	close(at);
}

CASE(exec_listener_plain, "a program without the library accepts from the listener that was copied for it")
{
	pid_t successor;
	int at;

	if (run_if_successor())
		return;
	at = open_offloaded_listener();
	successor = successor_start("exec_listener_plain", "arwc", at, false, false);
	pause_until_exec_successor_sleeps();
	exec_far_peer_dials(1, at);
	exchange_data_with_successor(1, successor);
	close(at);
}

CASE(exec_untouched, "a program that has the listener by its number, and does nothing, leaves it as it was")
{
	pid_t successor;
	int at, s;

	if (run_if_successor())
		return;
	at = open_offloaded_listener();
	successor = successor_start("exec_untouched", "nuc", at, true, true);
	wait_for_successor_and_say_status(successor);
	expect_offloaded(at);
	exec_far_peer_dials(1, at);
	SAY_OK_OR_ERROR(s = accept(at, NULL, NULL));
	expect_offloaded(s);
	far_peer_writes(1, 100, 1, 1);
	recv_and_print_result(s, 100, MSG_WAITALL);
	close(s);
	close(at);
}

CASE(exec_connection, "a connection goes on in the program, with what was not read, and in its parent after it")
{
	pid_t successor;
	int s;

	if (run_if_successor())
		return;
	s = tcp_accepted_from_far_peer(NULL);
	far_peer_writes(1, 100, 1, 1);
	wait_until_sent_packets_arrived(20);
	successor = successor_start("exec_connection", "urw", s, true, true);
	wait_for_successor_and_say_status(successor);
	say_far_peer_reads(1, 100, 2, 1);
	expect_kernel_socket_for_reason(s, VMA_SOCK_EXEC);
	send_pattern_and_print_result(s, 100, 3, 0);
	say_far_peer_reads(1, 100, 3, 1);
	close(s);
}

CASE(exec_connection_plain, "the same with a program without the library, for which it was copied")
{
	pid_t successor;
	int s;

	if (run_if_successor())
		return;
	s = tcp_accepted_from_far_peer(NULL);
	far_peer_writes(1, 100, 1, 1);
	wait_until_sent_packets_arrived(20);
	successor = successor_start("exec_connection_plain", "urw", s, false, false);
	wait_for_successor_and_say_status(successor);
	say_far_peer_reads(1, 100, 2, 1);
	close(s);
}

CASE(exec_udp, "a UDP socket goes on in the program, with what was not read")
{
	pid_t successor;
	int s, port;

	if (run_if_successor())
		return;
	s = udp_socket_bound_to(here, 0);
	expect_offloaded(s);
	port = port_of(s);
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "its");
	peer_send(far(), 0, here, port, 100, 1);
	take(s, 2000, 0);
	peer_send(far(), 0, here, port, 100, 2);
	wait_until_sent_packets_arrived(20);
	successor = successor_start("exec_udp", "utt", s, true, true);
	pause_until_exec_successor_sleeps();
	peer_send(far(), 0, here, port, 100, 3);
	wait_for_successor_and_say_status(successor);
	expect_kernel_socket_for_reason(s, VMA_SOCK_EXEC);
	close(s);
}

CASE(exec_of_oneself, "a listener, and a connection that waits, outlive the program that made them")
{
	int at, status = -1;
	pid_t pid;

	if (run_if_successor())
		return;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		at = open_offloaded_listener();
		exec_far_peer_dials(1, at);
		say("readable: %d", wait_until_readable(at, 2000));
		fflush(stdout);
		for (int i = 0; i < 2; i++)
			execl("/nowhere", "nowhere", (char *)NULL);
		say("readable after an exec that failed: %d", wait_until_readable(at, 2000));
		exec_far_peer_dials(2, at);
		peer(far(), "later 300 write 1 100 1 1");
		peer(far(), "later 300 write 2 100 1 1");
		fflush(stdout);
		exec_as_successor("exec_of_oneself", "arwcparwc", at, true);
	}
	waitpid(pid, &status, 0);
	say("it ended with %d", status);
}
