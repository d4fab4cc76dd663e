/* fork_sets: epoll sets that came by a fork. What a child closes, its parent is still told of. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

struct epoll_set_family {
	int set, outer; /* outer holds set */
	int socket, copy, port;
	bool listens;
};

static struct epoll_set_family open_udp_socket_and_epoll_set(int port)
{
	struct epoll_set_family f = {.set = epoll_create1(0), .outer = -1, .copy = -1, .port = port};

	f.socket = udp_socket_bound_to("0.0.0.0", port);
	expect_offloaded(f.socket);
	return f;
}

static struct epoll_set_family open_tcp_listener_with_epoll_set(int port)
{
	struct epoll_set_family f = {.set = epoll_create1(0), .outer = -1, .copy = -1, .port = port, .listens = true};

	f.socket = tcp_listener("0.0.0.0", port, 8);
	return f;
}

static void epoll_add_or_die(int set, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u32 = 7};

	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
		die_with_message("epoll_ctl");
}

static int wait_for_one_epoll_event(int set, int timeout_ms)
{
	struct epoll_event event = {0};
	int n = epoll_wait(set, &event, 1, timeout_ms);

	return n == 1 ? (int)event.events : n;
}

/* Something comes by loopback: the set tells of it. */
static void say_epoll_after_loopback_send(struct epoll_set_family *f)
{
	struct sockaddr_in to = ipv4_sockaddr_of("127.0.0.1", f->port);
	int s = f->listens ? tcp_socket() : udp_socket(), set = f->outer >= 0 ? f->outer : f->set, taken;

	fcntl(s, F_SETFL, O_NONBLOCK);
	say("before: %d", wait_for_one_epoll_event(set, 0));
	if (connect(s, (struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS)
		die_with_message("connect to loopback");
	if (!f->listens && send(s, "loopback", 8, 0) != 8)
		die_with_message("send to loopback");
	say("by loopback: events %d", wait_for_one_epoll_event(set, 3000));
	if (f->listens) {
		taken = accept(f->socket, NULL, NULL);
		say("accept: %s", taken >= 0 ? "ok" : error_name(errno));
		close(taken);
	} else {
		char bytes[16];

		SAY_RESULT(recv(f->socket, bytes, sizeof(bytes), MSG_DONTWAIT));
	}
	close(s);
}

/* The same from the other end of the wire. */
static void say_epoll_after_peer_send(struct epoll_set_family *f)
{
	int set = f->outer >= 0 ? f->outer : f->set;

	if (f->listens) {
		peer(far(), "dial 1 %s %d", here, f->port);
		say("by the wire: events %d", wait_for_one_epoll_event(set, 3000));
		close(accept(f->socket, NULL, NULL));
		peer(far(), "close 1");
		return;
	}
	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "far");
	peer_send(far(), 0, here, f->port, 20, 1);
	say("by the wire: events %d", wait_for_one_epoll_event(set, 3000));
	take(f->socket, 0, 0);
}

static void wait_for_child_and_print_status(pid_t child)
{
	int status = 0;

	if (child < 0 || waitpid(child, &status, 0) != child)
		die_with_message("waitpid");
	say("the child: status %d", status);
}

/* What the child does, and then the parent: twice, so that what is made anew holds as well. */
static void fork_child_twice_and_print_epoll_events(struct epoll_set_family *f, int (*child)(struct epoll_set_family *))
{
	say_epoll_after_loopback_send(f);
	for (int i = 0; i < 2; i++) {
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0)
			_exit(child(f));
		wait_for_child_and_print_status(pid);
		say_epoll_after_loopback_send(f);
		say_epoll_after_peer_send(f);
	}
	say_epoll_after_loopback_send(f);
}

static void print_epoll_after_child_of_udp_and_tcp(int port, uint32_t events, int (*child)(struct epoll_set_family *))
{
	struct epoll_set_family udp = open_udp_socket_and_epoll_set(port), tcp = open_tcp_listener_with_epoll_set(port);

	epoll_add_or_die(udp.set, udp.socket, events);
	epoll_add_or_die(tcp.set, tcp.socket, events);
	fork_child_twice_and_print_epoll_events(&udp, child);
	fork_child_twice_and_print_epoll_events(&tcp, child);
}

static int child_closes_socket(struct epoll_set_family *f)
{
	return close(f->socket);
}

CASE(fork_set_close, "a child closes a member and ends: its parent is told of what comes")
{
	print_epoll_after_child_of_udp_and_tcp(7440, EPOLLIN, child_closes_socket);
}

CASE(fork_set_close_edge, "the same, and the member is told of by edges")
{
	print_epoll_after_child_of_udp_and_tcp(7441, EPOLLIN | EPOLLET, child_closes_socket);
}

static int child_closes_all_fds(struct epoll_set_family *f)
{
	return close_range((unsigned)f->socket, (unsigned)f->socket, 0) | close_range(3, ~0U, 0);
}

CASE(fork_set_close_range, "a child closes the member by close_range, and then all that it has")
{
	print_epoll_after_child_of_udp_and_tcp(7442, EPOLLIN, child_closes_all_fds);
}

static int child_closes_set(struct epoll_set_family *f)
{
	return close(f->set);
}

CASE(fork_set_close_set, "a child closes the set only")
{
	print_epoll_after_child_of_udp_and_tcp(7443, EPOLLIN, child_closes_set);
}

static int child_closes_set_then_socket(struct epoll_set_family *f)
{
	return close(f->set) | close(f->socket);
}

CASE(fork_set_close_set_first, "a child closes the set, and then the member")
{
	print_epoll_after_child_of_udp_and_tcp(7444, EPOLLIN, child_closes_set_then_socket);
}

static int child_closes_socket_and_waits(struct epoll_set_family *f)
{
	return close(f->socket) | wait_for_one_epoll_event(f->set, 0);
}

CASE(fork_set_close_and_wait, "a child closes a member, and then looks at the set")
{
	print_epoll_after_child_of_udp_and_tcp(7445, EPOLLIN, child_closes_socket_and_waits);
}

static int child_waits_and_closes_socket(struct epoll_set_family *f)
{
	return wait_for_one_epoll_event(f->set, 0) | close(f->socket) | wait_for_one_epoll_event(f->set, 0);
}

CASE(fork_set_wait_and_close, "a child looks at the set, closes a member, and looks again")
{
	print_epoll_after_child_of_udp_and_tcp(7446, EPOLLIN, child_waits_and_closes_socket);
}

static int child_makes_own_epoll_set(struct epoll_set_family *f)
{
	int set = epoll_create1(0);

	epoll_add_or_die(set, f->socket, EPOLLIN);
	return wait_for_one_epoll_event(set, 0) | close(f->socket) | close(set);
}

CASE(fork_set_of_its_own, "a child has the member in a set of its own, and closes it")
{
	print_epoll_after_child_of_udp_and_tcp(7447, EPOLLIN, child_makes_own_epoll_set);
}

static int grandchild_closes_socket(struct epoll_set_family *f)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0)
		_exit(close(f->socket));
	if (waitpid(pid, &status, 0) != pid)
		return 1;
	return status | wait_for_one_epoll_event(f->set, 0);
}

CASE(fork_set_grandchild, "a child of the child closes the member")
{
	print_epoll_after_child_of_udp_and_tcp(7448, EPOLLIN, grandchild_closes_socket);
}

static int child_waits_forks_and_closes_socket(struct epoll_set_family *f)
{
	return wait_for_one_epoll_event(f->set, 0) | grandchild_closes_socket(f) | close(f->socket);
}

CASE(fork_set_grandchild_late, "a child looks at the set, has a child that closes the member, and closes it itself")
{
	print_epoll_after_child_of_udp_and_tcp(7449, EPOLLIN, child_waits_forks_and_closes_socket);
}

static int child_closes_both_fds(struct epoll_set_family *f)
{
	return close(f->copy) | close(f->socket);
}

CASE(fork_set_copies, "the member has two numbers, both of them in the set, and a child closes them")
{
	struct epoll_set_family udp = open_udp_socket_and_epoll_set(7450), tcp = open_tcp_listener_with_epoll_set(7450);

	udp.copy = dup(udp.socket);
	tcp.copy = dup(tcp.socket);
	epoll_add_or_die(udp.set, udp.socket, EPOLLIN | EPOLLET);
	epoll_add_or_die(udp.set, udp.copy, EPOLLIN | EPOLLET | EPOLLONESHOT);
	epoll_add_or_die(tcp.set, tcp.copy, EPOLLIN);
	fork_child_twice_and_print_epoll_events(&udp, child_closes_both_fds);
	fork_child_twice_and_print_epoll_events(&tcp, child_closes_both_fds);
}

CASE(fork_set_nested, "the set is in another set, and a child closes the member")
{
	struct epoll_set_family udp = open_udp_socket_and_epoll_set(7451), tcp = open_tcp_listener_with_epoll_set(7451);

	epoll_add_or_die(udp.set, udp.socket, EPOLLIN);
	epoll_add_or_die(tcp.set, tcp.socket, EPOLLIN);
	udp.outer = epoll_create1(0);
	tcp.outer = epoll_create1(0);
	epoll_add_or_die(udp.outer, udp.set, EPOLLIN);
	epoll_add_or_die(tcp.outer, tcp.set, EPOLLIN);
	fork_child_twice_and_print_epoll_events(&udp, child_closes_socket);
	fork_child_twice_and_print_epoll_events(&tcp, child_closes_set_then_socket);
}

/* Children that the C library makes no fork of. */
static int clone_closes_socket(void *arg)
{
	_exit(child_closes_socket(arg));
}

static void print_epoll_after_clone_child_closes(struct epoll_set_family *f)
{
	static char stack[65536] __attribute__((aligned(16)));

	say_epoll_after_loopback_send(f);
	fflush(stdout);
	wait_for_child_and_print_status(clone(clone_closes_socket, stack + sizeof(stack), SIGCHLD, f));
	say_epoll_after_loopback_send(f);
	say_epoll_after_peer_send(f);
}

CASE(fork_set_clone, "a child of clone closes the member")
{
	struct epoll_set_family udp = open_udp_socket_and_epoll_set(7452), tcp = open_tcp_listener_with_epoll_set(7452);

	epoll_add_or_die(udp.set, udp.socket, EPOLLIN);
	epoll_add_or_die(tcp.set, tcp.socket, EPOLLIN);
	print_epoll_after_clone_child_closes(&udp);
	print_epoll_after_clone_child_closes(&tcp);
}

static void print_epoll_after_raw_fork_child_closes(struct epoll_set_family *f)
{
	pid_t pid;

	say_epoll_after_loopback_send(f);
	fflush(stdout);
	pid = _Fork();
	if (pid == 0)
		_exit(close(f->socket));
	wait_for_child_and_print_status(pid);
	say_epoll_after_loopback_send(f);
	say_epoll_after_peer_send(f);
}

CASE(fork_set_raw, "a child of _Fork closes the member")
{
	struct epoll_set_family udp = open_udp_socket_and_epoll_set(7453), tcp = open_tcp_listener_with_epoll_set(7453);

	epoll_add_or_die(udp.set, udp.socket, EPOLLIN);
	epoll_add_or_die(tcp.set, tcp.socket, EPOLLIN);
	print_epoll_after_raw_fork_child_closes(&udp);
	print_epoll_after_raw_fork_child_closes(&tcp);
}

static void print_epoll_after_vfork_child_closes(struct epoll_set_family *f)
{
	pid_t pid;

	say_epoll_after_loopback_send(f);
	fflush(stdout);
	pid = vfork();
	if (pid == 0) {
		close(f->socket);
		_exit(0);
	}
	wait_for_child_and_print_status(pid);
	say_epoll_after_loopback_send(f);
	say_epoll_after_peer_send(f);
}

CASE(fork_set_vfork, "a child of vfork closes the member")
{
	struct epoll_set_family udp = open_udp_socket_and_epoll_set(7454), tcp = open_tcp_listener_with_epoll_set(7454);

	epoll_add_or_die(udp.set, udp.socket, EPOLLIN);
	epoll_add_or_die(tcp.set, tcp.socket, EPOLLIN);
	print_epoll_after_vfork_child_closes(&udp);
	print_epoll_after_vfork_child_closes(&tcp);
}

CASE(fork_set_parent_closes, "the parent closes the member, of which a child has a copy, and opens the port again")
{
	struct epoll_set_family udp = open_udp_socket_and_epoll_set(7455);
	int pipes[2];
	pid_t pid;

	if (pipe(pipes) != 0)
		die_with_message("pipe");
	epoll_add_or_die(udp.set, udp.socket, EPOLLIN);
	say_epoll_after_loopback_send(&udp);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		char byte;

		close(pipes[1]);
		_exit((int)read(pipes[0], &byte, 1));
	}
	epoll_ctl(udp.set, EPOLL_CTL_DEL, udp.socket, NULL);
	close(udp.socket);
	close(pipes[1]);
	wait_for_child_and_print_status(pid);
	udp.socket = udp_socket_bound_to("0.0.0.0", 7455);
	epoll_add_or_die(udp.set, udp.socket, EPOLLIN);
	say_epoll_after_loopback_send(&udp);
	say_epoll_after_peer_send(&udp);
}

static int child_adds_existing_fd_to_set(struct epoll_set_family *f)
{
	struct epoll_event event = {.events = EPOLLOUT, .data.u32 = 9};

	return epoll_ctl(f->set, EPOLL_CTL_ADD, f->socket, &event) == -1 && errno == EEXIST ? 0 : 1;
}

CASE(fork_set_exists, "a child that adds the member once more is told that it is there")
{
	print_epoll_after_child_of_udp_and_tcp(7456, EPOLLIN, child_adds_existing_fd_to_set);
}

/* A daemon: the parent ends, and the child goes on with the set, of which it closes one member. */
CASE(fork_set_daemon, "the child goes on with the set when its parent has ended, and closes one of two members")
{
	struct epoll_set_family udp = open_udp_socket_and_epoll_set(7457), tcp = open_tcp_listener_with_epoll_set(7457);
	int pipes[2], status = 0;
	pid_t pid;
	char byte;

	tcp.set = udp.set;
	epoll_add_or_die(udp.set, udp.socket, EPOLLIN);
	epoll_add_or_die(udp.set, tcp.socket, EPOLLIN);
	say_epoll_after_loopback_send(&tcp);
	if (pipe(pipes) != 0)
		die_with_message("pipe");
	fflush(stdout);
	pid = fork(); /* which is the first parent */
	if (pid != 0) {
		close(pipes[1]);
		if (read(pipes[0], &byte, 1) != 0 || waitpid(pid, &status, 0) != pid)
			die_with_message("the child went away");
		return;
	}
	if (fork() != 0)
		_exit(0);
	say_epoll_after_loopback_send(&udp);
	say_epoll_after_peer_send(&udp);
	SAY_RESULT(close(udp.socket));
	say_epoll_after_loopback_send(&tcp);
	say_epoll_after_peer_send(&tcp);
	fflush(stdout);
	_exit(0);
}
