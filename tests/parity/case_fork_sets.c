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

struct family {
	int set, outer; /* outer holds set */
	int socket, copy, port;
	bool listens;
};

static struct family udp_family(int port)
{
	struct family f = {.set = epoll_create1(0), .outer = -1, .copy = -1, .port = port};

	f.socket = udp_at("0.0.0.0", port);
	expect_offloaded(f.socket);
	return f;
}

static struct family tcp_family(int port)
{
	struct family f = {.set = epoll_create1(0), .outer = -1, .copy = -1, .port = port, .listens = true};

	f.socket = tcp_listener("0.0.0.0", port, 8);
	return f;
}

static void fork_sets_add(int set, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.u32 = 7};

	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
		give_up("epoll_ctl");
}

static int wait_for_one(int set, int timeout_ms)
{
	struct epoll_event event = {0};
	int n = epoll_wait(set, &event, 1, timeout_ms);

	return n == 1 ? (int)event.events : n;
}

/* Something comes by loopback: the set tells of it. */
static void look_at_loopback(struct family *f)
{
	struct sockaddr_in to = address_of("127.0.0.1", f->port);
	int s = f->listens ? tcp_socket() : udp_socket(), set = f->outer >= 0 ? f->outer : f->set, taken;

	fcntl(s, F_SETFL, O_NONBLOCK);
	say("before: %d", wait_for_one(set, 0));
	if (connect(s, (struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS)
		give_up("connect to loopback");
	if (!f->listens && send(s, "loopback", 8, 0) != 8)
		give_up("send to loopback");
	say("by loopback: events %d", wait_for_one(set, 3000));
	if (f->listens) {
		taken = accept(f->socket, NULL, NULL);
		say("accept: %s", taken >= 0 ? "ok" : error_name(errno));
		close(taken);
	} else {
		char bytes[16];

		RES(recv(f->socket, bytes, sizeof(bytes), MSG_DONTWAIT));
	}
	close(s);
}

/* The same from the other end of the wire. */
static void look_at_wire(struct family *f)
{
	int set = f->outer >= 0 ? f->outer : f->set;

	if (f->listens) {
		peer(far(), "dial 1 %s %d", here, f->port);
		say("by the wire: events %d", wait_for_one(set, 3000));
		close(accept(f->socket, NULL, NULL));
		peer(far(), "close 1");
		return;
	}
	name_port(peer_open(far(), 0, there, 0), "far");
	peer_send(far(), 0, here, f->port, 20, 1);
	say("by the wire: events %d", wait_for_one(set, 3000));
	take(f->socket, 0, 0);
}

static void fork_sets_await(pid_t child)
{
	int status = 0;

	if (child < 0 || waitpid(child, &status, 0) != child)
		give_up("waitpid");
	say("the child: status %d", status);
}

/* What the child does, and then the parent: twice, so that what is made anew holds as well. */
static void go(struct family *f, int (*child)(struct family *))
{
	look_at_loopback(f);
	for (int i = 0; i < 2; i++) {
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0)
			_exit(child(f));
		fork_sets_await(pid);
		look_at_loopback(f);
		look_at_wire(f);
	}
	look_at_loopback(f);
}

static void go_both(int port, uint32_t events, int (*child)(struct family *))
{
	struct family udp = udp_family(port), tcp = tcp_family(port);

	fork_sets_add(udp.set, udp.socket, events);
	fork_sets_add(tcp.set, tcp.socket, events);
	go(&udp, child);
	go(&tcp, child);
}

static int closes(struct family *f)
{
	return close(f->socket);
}

CASE(fork_set_close, "a child closes a member and ends: its parent is told of what comes")
{
	go_both(7440, EPOLLIN, closes);
}

CASE(fork_set_close_edge, "the same, and the member is told of by edges")
{
	go_both(7441, EPOLLIN | EPOLLET, closes);
}

static int closes_all(struct family *f)
{
	return close_range((unsigned)f->socket, (unsigned)f->socket, 0) | close_range(3, ~0U, 0);
}

CASE(fork_set_close_range, "a child closes the member by close_range, and then all that it has")
{
	go_both(7442, EPOLLIN, closes_all);
}

static int closes_set(struct family *f)
{
	return close(f->set);
}

CASE(fork_set_close_set, "a child closes the set only")
{
	go_both(7443, EPOLLIN, closes_set);
}

static int closes_set_first(struct family *f)
{
	return close(f->set) | close(f->socket);
}

CASE(fork_set_close_set_first, "a child closes the set, and then the member")
{
	go_both(7444, EPOLLIN, closes_set_first);
}

static int closes_and_waits(struct family *f)
{
	return close(f->socket) | wait_for_one(f->set, 0);
}

CASE(fork_set_close_and_wait, "a child closes a member, and then looks at the set")
{
	go_both(7445, EPOLLIN, closes_and_waits);
}

static int waits_and_closes(struct family *f)
{
	return wait_for_one(f->set, 0) | close(f->socket) | wait_for_one(f->set, 0);
}

CASE(fork_set_wait_and_close, "a child looks at the set, closes a member, and looks again")
{
	go_both(7446, EPOLLIN, waits_and_closes);
}

static int has_its_own(struct family *f)
{
	int set = epoll_create1(0);

	fork_sets_add(set, f->socket, EPOLLIN);
	return wait_for_one(set, 0) | close(f->socket) | close(set);
}

CASE(fork_set_of_its_own, "a child has the member in a set of its own, and closes it")
{
	go_both(7447, EPOLLIN, has_its_own);
}

static int closes_grandchild(struct family *f)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0)
		_exit(close(f->socket));
	if (waitpid(pid, &status, 0) != pid)
		return 1;
	return status | wait_for_one(f->set, 0);
}

CASE(fork_set_grandchild, "a child of the child closes the member")
{
	go_both(7448, EPOLLIN, closes_grandchild);
}

static int waits_forks_and_closes(struct family *f)
{
	return wait_for_one(f->set, 0) | closes_grandchild(f) | close(f->socket);
}

CASE(fork_set_grandchild_late, "a child looks at the set, has a child that closes the member, and closes it itself")
{
	go_both(7449, EPOLLIN, waits_forks_and_closes);
}

static int closes_numbers(struct family *f)
{
	return close(f->copy) | close(f->socket);
}

CASE(fork_set_copies, "the member has two numbers, both of them in the set, and a child closes them")
{
	struct family udp = udp_family(7450), tcp = tcp_family(7450);

	udp.copy = dup(udp.socket);
	tcp.copy = dup(tcp.socket);
	fork_sets_add(udp.set, udp.socket, EPOLLIN | EPOLLET);
	fork_sets_add(udp.set, udp.copy, EPOLLIN | EPOLLET | EPOLLONESHOT);
	fork_sets_add(tcp.set, tcp.copy, EPOLLIN);
	go(&udp, closes_numbers);
	go(&tcp, closes_numbers);
}

CASE(fork_set_nested, "the set is in another set, and a child closes the member")
{
	struct family udp = udp_family(7451), tcp = tcp_family(7451);

	fork_sets_add(udp.set, udp.socket, EPOLLIN);
	fork_sets_add(tcp.set, tcp.socket, EPOLLIN);
	udp.outer = epoll_create1(0);
	tcp.outer = epoll_create1(0);
	fork_sets_add(udp.outer, udp.set, EPOLLIN);
	fork_sets_add(tcp.outer, tcp.set, EPOLLIN);
	go(&udp, closes);
	go(&tcp, closes_set_first);
}

/* Children that the C library makes no fork of. */
static int closes_of_clone(void *arg)
{
	_exit(closes(arg));
}

static void go_cloned(struct family *f)
{
	static char stack[65536] __attribute__((aligned(16)));

	look_at_loopback(f);
	fflush(stdout);
	fork_sets_await(clone(closes_of_clone, stack + sizeof(stack), SIGCHLD, f));
	look_at_loopback(f);
	look_at_wire(f);
}

CASE(fork_set_clone, "a child of clone closes the member")
{
	struct family udp = udp_family(7452), tcp = tcp_family(7452);

	fork_sets_add(udp.set, udp.socket, EPOLLIN);
	fork_sets_add(tcp.set, tcp.socket, EPOLLIN);
	go_cloned(&udp);
	go_cloned(&tcp);
}

static void go_raw(struct family *f)
{
	pid_t pid;

	look_at_loopback(f);
	fflush(stdout);
	pid = _Fork();
	if (pid == 0)
		_exit(close(f->socket));
	fork_sets_await(pid);
	look_at_loopback(f);
	look_at_wire(f);
}

CASE(fork_set_raw, "a child of _Fork closes the member")
{
	struct family udp = udp_family(7453), tcp = tcp_family(7453);

	fork_sets_add(udp.set, udp.socket, EPOLLIN);
	fork_sets_add(tcp.set, tcp.socket, EPOLLIN);
	go_raw(&udp);
	go_raw(&tcp);
}

static void go_vfork(struct family *f)
{
	pid_t pid;

	look_at_loopback(f);
	fflush(stdout);
	pid = vfork();
	if (pid == 0) {
		close(f->socket);
		_exit(0);
	}
	fork_sets_await(pid);
	look_at_loopback(f);
	look_at_wire(f);
}

CASE(fork_set_vfork, "a child of vfork closes the member")
{
	struct family udp = udp_family(7454), tcp = tcp_family(7454);

	fork_sets_add(udp.set, udp.socket, EPOLLIN);
	fork_sets_add(tcp.set, tcp.socket, EPOLLIN);
	go_vfork(&udp);
	go_vfork(&tcp);
}

CASE(fork_set_parent_closes, "the parent closes the member, of which a child has a copy, and opens the port again")
{
	struct family udp = udp_family(7455);
	int pipes[2];
	pid_t pid;

	if (pipe(pipes) != 0)
		give_up("pipe");
	fork_sets_add(udp.set, udp.socket, EPOLLIN);
	look_at_loopback(&udp);
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
	fork_sets_await(pid);
	udp.socket = udp_at("0.0.0.0", 7455);
	fork_sets_add(udp.set, udp.socket, EPOLLIN);
	look_at_loopback(&udp);
	look_at_wire(&udp);
}

static int changes_nothing(struct family *f)
{
	struct epoll_event event = {.events = EPOLLOUT, .data.u32 = 9};

	return epoll_ctl(f->set, EPOLL_CTL_ADD, f->socket, &event) == -1 && errno == EEXIST ? 0 : 1;
}

CASE(fork_set_exists, "a child that adds the member once more is told that it is there")
{
	go_both(7456, EPOLLIN, changes_nothing);
}

/* A daemon: the parent ends, and the child goes on with the set, of which it closes one member. */
CASE(fork_set_daemon, "the child goes on with the set when its parent has ended, and closes one of two members")
{
	struct family udp = udp_family(7457), tcp = tcp_family(7457);
	int pipes[2], status = 0;
	pid_t pid;
	char byte;

	tcp.set = udp.set;
	fork_sets_add(udp.set, udp.socket, EPOLLIN);
	fork_sets_add(udp.set, tcp.socket, EPOLLIN);
	look_at_loopback(&tcp);
	if (pipe(pipes) != 0)
		give_up("pipe");
	fflush(stdout);
	pid = fork(); /* which is the first parent */
	if (pid != 0) {
		close(pipes[1]);
		if (read(pipes[0], &byte, 1) != 0 || waitpid(pid, &status, 0) != pid)
			give_up("the child went away");
		return;
	}
	if (fork() != 0)
		_exit(0);
	look_at_loopback(&udp);
	look_at_wire(&udp);
	RES(close(udp.socket));
	look_at_loopback(&tcp);
	look_at_wire(&tcp);
	fflush(stdout);
	_exit(0);
}
