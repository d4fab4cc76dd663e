/* inherited: what one process changes of a UDP socket that it shares with others by fork holds for all of them. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parity.h"

#define GROUP "239.7.7.9"

/* ---- two processes in turn ---- */

struct relative {
	int to, from;
	pid_t pid; /* 0: the parent */
};

/* In the child `pid` is 0, and it waits for its turn. */
static struct relative fork_child_with_turn_pipes(void)
{
	int down[2], up[2];
	struct relative r;

	if (pipe(down) != 0 || pipe(up) != 0)
		die_with_message("pipe");
	r.pid = fork();
	if (r.pid < 0)
		die_with_message("fork");
	r.from = r.pid == 0 ? down[0] : up[0];
	r.to = r.pid == 0 ? up[1] : down[1];
	close(r.pid == 0 ? down[1] : up[1]);
	close(r.pid == 0 ? up[0] : down[0]);
	return r;
}

static void relative_wait_for_turn(const struct relative *r)
{
	char byte;

	if (read(r->from, &byte, 1) != 1)
		die_with_message("the relative has gone");
}

static void relative_hand_over_turn(const struct relative *r)
{
	if (write(r->to, "t", 1) != 1)
		die_with_message("the relative has gone");
}

/* The other one does something meanwhile. */
static void let_relative_run(const struct relative *r)
{
	relative_hand_over_turn(r);
	relative_wait_for_turn(r);
}

static void hand_over_turn_and_exit(const struct relative *r)
{
	relative_hand_over_turn(r);
	_exit(0);
}

static void wait_for_child_and_say_status(const struct relative *r)
{
	int status = -1;

	if (waitpid(r->pid, &status, 0) != r->pid)
		die_with_message("waitpid");
	say("the child ended with %d", status);
}

/* ---- sockets ---- */

/* Bound to a port of its own, which the kernel does not take away, with two peers. */
static int open_offloaded_udp_socket_and_two_peers(int port, struct sockaddr_in *first, struct sockaddr_in *second)
{
	int ports[] = {peer_ask_to_open_socket(far(), 0, there, 0), peer_ask_to_open_socket(far(), 1, there, 0)};
	int s = udp_socket_bound_to(here, port);

	register_port_name(ports[0], "first");
	register_port_name(ports[1], "second");
	*first = ipv4_sockaddr_of(there, ports[0]);
	*second = ipv4_sockaddr_of(there, ports[1]);
	expect_offloaded(s);
	return s;
}

static int open_connected_offloaded_udp_socket(int port)
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(port, &first, &second);

	if (connect(s, (struct sockaddr *)&first, sizeof(first)) != 0)
		die_with_message("connect");
	expect_offloaded(s);
	return s;
}

static int connect_to_peer(int s, const struct sockaddr_in *peer)
{
	return connect(s, (const struct sockaddr *)peer, sizeof(*peer));
}

static int set_timeout(int s, int name, int ms)
{
	const struct timeval timeout = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

	return setsockopt(s, SOL_SOCKET, name, &timeout, sizeof(timeout));
}

static void say_recv(const char *who, int s, int flags)
{
	char bytes[2000];
	ssize_t len = recv(s, bytes, sizeof(bytes), flags);

	say("%s: recv %zd %s", who, len, len < 0 ? error_name(errno) : "");
}

/* ---- names ---- */

CASE(inherited_connect,
     "a child connects its parent's socket: the parent sends to that peer, and hears from nobody else")
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(7420, &first, &second);
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(connect_to_peer(s, &first));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	peer_send(far(), 0, here, 7420, 100, 1);
	take(s, 2000, 0);
	peer_send(far(), 1, here, 7420, 100, 2);
	take(s, 2000, 0);
	SAY_RESULT(send(s, "x", 1, 0));
	let_relative_run(&r);
	/* Nothing has called the socket here since. */
	peer_send(far(), 1, here, 7420, 100, 3);
	wait_until_sent_packets_arrived(30);
	peer_send(far(), 0, here, 7420, 100, 4);
	take(s, 2000, 0);
	receive_all_until_empty(s);
	say_peer_address("the parent's peer", s);
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	wait_for_child_and_say_status(&r);
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, NULL, 0);
	save_kernel_udp_counters();
	SAY_RESULT(send(s, "y", 1, 0));
	say_peer_received(far(), 0, 2000);
	peer_send(far(), 0, here, 7420, 100, 5);
	take(s, 2000, 0);
	check_kernel_udp_was_bypassed(1, 1);
}

CASE(inherited_reconnect,
     "a child connects its parent's socket to another peer: sends and receives of the parent follow")
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(7421, &first, &second);
	struct relative r;

	SAY_RESULT(connect_to_peer(s, &first));
	r = fork_child_with_turn_pipes();
	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(connect_to_peer(s, &second));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, NULL, 0);
	let_relative_run(&r);
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 1, 2000);
	peer_send(far(), 0, here, 7421, 100, 1);
	peer_send(far(), 1, here, 7421, 100, 2);
	take(s, 2000, 0);
	receive_all_until_empty(s);
	wait_for_child_and_say_status(&r);
}

CASE(inherited_dissolve, "a child dissolves an association: its parent hears from others, and has nobody to send to")
{
	int s = open_connected_offloaded_udp_socket(7422);
	struct sockaddr nobody = {.sa_family = AF_UNSPEC};
	struct sockaddr_in to = ipv4_sockaddr_of(there, atoi(peer(far(), "port 1")));
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(connect(s, &nobody, sizeof(nobody)));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, NULL, 0);
	let_relative_run(&r);
	peer_send(far(), 1, here, 7422, 100, 1);
	take(s, 2000, 0);
	SAY_RESULT(send(s, "x", 1, 0));
	SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)));
	say_peer_received(far(), 1, 2000);
	wait_for_child_and_say_status(&r);
}

CASE(inherited_parent_connects, "a parent connects the socket: its child, which has sent and received before, follows")
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(7423, &first, &second);
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		SAY_RESULT(sendto(s, "x", 1, 0, (struct sockaddr *)&second, sizeof(second)));
		say_peer_received(far(), 1, 2000);
		peer_send(far(), 1, here, 7423, 100, 1);
		take(s, 2000, 0);
		let_relative_run(&r);
		peer_send(far(), 1, here, 7423, 100, 2);
		wait_until_sent_packets_arrived(30);
		SAY_RESULT(send(s, "x", 1, 0));
		say_peer_received(far(), 0, 2000);
		receive_all_until_empty(s);
		hand_over_turn_and_exit(&r);
	}
	relative_wait_for_turn(&r);
	SAY_RESULT(connect_to_peer(s, &first));
	let_relative_run(&r);
	wait_for_child_and_say_status(&r);
}

CASE(inherited_grandchild, "a grandchild connects the socket of its parent's parent; a child in between follows, too")
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(7424, &first, &second);
	struct relative r = fork_child_with_turn_pipes(), younger;

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		younger = fork_child_with_turn_pipes();
		if (younger.pid == 0) {
			relative_wait_for_turn(&younger);
			SAY_RESULT(connect_to_peer(s, &first));
			SAY_RESULT(set_int(s, IPPROTO_IP, IP_TTL, 44));
			hand_over_turn_and_exit(&younger);
		}
		let_relative_run(&younger);
		wait_for_child_and_say_status(&younger);
		let_relative_run(&r);
		SAY_RESULT(send(s, "x", 1, 0));
		say_peer_received(far(), 0, 2000);
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	let_relative_run(&r);
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	peer_send(far(), 1, here, 7424, 100, 1);
	peer_send(far(), 0, here, 7424, 100, 2);
	take(s, 2000, 0);
	receive_all_until_empty(s);
	let_relative_run(&r);
	wait_for_child_and_say_status(&r);
}

struct udp_clone_argument {
	int s;
	struct sockaddr_in peer;
};

static int connect_after_pause_in_clone(void *arg)
{
	const struct udp_clone_argument *udp_clone_argument = arg;

	pause_ms(1500);
	return connect_to_peer(udp_clone_argument->s, &udp_clone_argument->peer) == 0 ? 0 : 1;
}

CASE(inherited_clone, "a child of clone, with memory of its own, connects its parent's socket")
{
	static _Alignas(16) char stack[262144];
	struct sockaddr_in second;
	struct udp_clone_argument udp_clone_argument;
	struct relative r;

	udp_clone_argument.s = open_offloaded_udp_socket_and_two_peers(7437, &udp_clone_argument.peer, &second);
	r.pid = clone(connect_after_pause_in_clone, stack + sizeof(stack), SIGCHLD, &udp_clone_argument);
	expect_offloaded(udp_clone_argument.s);
	wait_for_child_and_say_status(&r);
	peer_send(far(), 1, here, 7437, 100, 1);
	wait_until_sent_packets_arrived(30);
	peer_send(far(), 0, here, 7437, 100, 2);
	take(udp_clone_argument.s, 2000, 0);
	receive_all_until_empty(udp_clone_argument.s);
	SAY_RESULT(send(udp_clone_argument.s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
}

/* ---- how calls wait ---- */

CASE(inherited_nonblocking,
     "O_NONBLOCK is set and taken away by one process, by fcntl and ioctl: recv of the other goes by it")
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(7425, &first, &second), off = 0;
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		say_recv("the child", s, 0);
		SAY_RESULT(ioctl(s, FIONBIO, &off));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	SAY_RESULT(fcntl(s, F_SETFL, O_NONBLOCK));
	/* Who waits all the same gets this. */
	peer_ask_to_send_after_ms(far(), 1000, 0, here, 7425, 100, 1);
	let_relative_run(&r);
	say_recv("the parent", s, 0);
	wait_for_child_and_say_status(&r);
}

CASE(inherited_timeouts, "SO_RCVTIMEO is set by one process, and recv of the other one waits so long")
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(7426, &first, &second);
	uint64_t begun;
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		begun = now_ms();
		say_recv("the child", s, 0);
		say_took_about("the child has waited", begun, 300);
		SAY_RESULT(set_timeout(s, SO_RCVTIMEO, 150));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	SAY_RESULT(set_timeout(s, SO_RCVTIMEO, 300));
	let_relative_run(&r);
	begun = now_ms();
	peer_ask_to_send_after_ms(far(), 2000, 0, here, 7426, 100, 1);
	say_recv("the parent", s, 0);
	say_took_about("the parent has waited", begun, 150);
	wait_for_child_and_say_status(&r);
}

CASE(inherited_shutdown_read, "a child shuts down reading: its parent's recv, which waits, ends, and so do later ones")
{
	int s = open_connected_offloaded_udp_socket(7427);
	struct pollfd fd = {.fd = s, .events = POLLIN | POLLRDHUP};
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		pause_ms(200);
		if (shutdown(s, SHUT_RD) != 0) /* prints nothing: it wakes its parent */
			die_with_message("shutdown");
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	relative_hand_over_turn(&r);
	say_recv("the parent", s, 0);
	relative_wait_for_turn(&r);
	say_recv("the parent", s, 0);
	say_recv("the parent", s, MSG_DONTWAIT);
	SAY_RESULT(poll(&fd, 1, 0));
	say("events %x", (unsigned)fd.revents);
	wait_for_child_and_say_status(&r);
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
}

static void *recv_one_byte_thread(void *arg)
{
	char byte;

	*(long *)arg = recv((int)*(long *)arg, &byte, 1, 0);
	return NULL;
}

CASE(inherited_shutdown_threads, "a child shuts down reading while two threads of its parent wait in recv")
{
	int s = open_connected_offloaded_udp_socket(7428);
	long what[2] = {s, s};
	pthread_t threads[2];
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(shutdown(s, SHUT_RD));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, recv_one_byte_thread, &what[i]) != 0)
			die_with_message("pthread_create");
	pause_ms(200);
	let_relative_run(&r);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	say("%ld %ld", what[0], what[1]);
	wait_for_child_and_say_status(&r);
}

CASE(inherited_shutdown_write, "a child shuts down writing: sends of its parent fail, and its receives go on")
{
	int s = open_connected_offloaded_udp_socket(7429);
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(shutdown(s, SHUT_WR));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, NULL, 0);
	let_relative_run(&r);
	SAY_RESULT(send(s, "x", 1, MSG_NOSIGNAL));
	SAY_RESULT(send(s, "x", 1, MSG_NOSIGNAL));
	peer_send(far(), 0, here, 7429, 100, 1);
	take(s, 2000, 0);
	wait_for_child_and_say_status(&r);
}

/* ---- options ---- */

CASE(inherited_ttl_tos, "IP_TTL and IP_TOS are set by one process, and are on what the other one sends")
{
	int s = open_connected_offloaded_udp_socket(7430);
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_TTL, 33));
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_TOS, 0x10));
		let_relative_run(&r);
		SAY_RESULT(send(s, "x", 1, 0));
		say_peer_received(far(), 0, 2000);
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, NULL, 0);
	let_relative_run(&r);
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, "x", 1, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_TTL, 17));
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_TOS, 0xb8));
	let_relative_run(&r);
	wait_for_child_and_say_status(&r);
}

static int inherited_send_to(int s, const char *ip, int port)
{
	struct sockaddr_in to = ipv4_sockaddr_of(ip, port);

	return (int)sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to));
}

CASE(inherited_multicast_sender,
     "multicast TTL, interface and loop, and SO_BROADCAST, set by a child: its parent's sends")
{
	int s = udp_socket_bound_to("0.0.0.0", 7431);
	struct in_addr second = ipv4_sockaddr_of(here_second, 0).sin_addr;
	struct relative r;

	for (int i = 0; i < 2; i++) {
		peer_ask_to_open_socket(far(), i, "0.0.0.0", 7432 + i);
		peer(far(), "join %d %s %s", i, GROUP, i == 0 ? there : there_second);
	}
	SAY_RESULT(set_int(s, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
	r = fork_child_with_turn_pipes();
	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_MULTICAST_TTL, 9));
		SAY_RESULT(set_int(s, SOL_SOCKET, SO_BROADCAST, 1));
		let_relative_run(&r);
		SAY_RESULT(setsockopt(s, IPPROTO_IP, IP_MULTICAST_IF, &second, sizeof(second)));
		let_relative_run(&r);
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_MULTICAST_LOOP, 1));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	SAY_RESULT(inherited_send_to(s, "10.9.0.255", 7432));
	for (int i = 0; i < 3; i++) {
		SAY_RESULT(inherited_send_to(s, GROUP, 7432));
		say_peer_received(far(), 0, 2000);
	}
	let_relative_run(&r);
	SAY_RESULT(inherited_send_to(s, "10.9.0.255", 7432));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(inherited_send_to(s, GROUP, 7432));
	say_peer_received(far(), 0, 2000);
	let_relative_run(&r);
	for (int i = 0; i < 3; i++) {
		SAY_RESULT(inherited_send_to(s, GROUP, 7433));
		say_peer_received(far(), 1, 2000);
	}
	peer_ask_to_open_socket(near(), 0, "0.0.0.0", 7433);
	peer(near(), "join 0 %s %s", GROUP, here_second);
	SAY_RESULT(inherited_send_to(s, GROUP, 7433));
	say_peer_received(near(), 0, 200);
	let_relative_run(&r);
	SAY_RESULT(inherited_send_to(s, GROUP, 7433));
	say_peer_received(near(), 0, 2000);
	wait_for_child_and_say_status(&r);
}

static void say_received_cmsgs(int s)
{
	char bytes[100], control[256];
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};

	SAY_RESULT(wait_until_readable(s, 2000));
	SAY_RESULT(recvmsg(s, &msg, MSG_DONTWAIT));
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c))
		say("level %d, type %d, %zu bytes", c->cmsg_level, c->cmsg_type, (size_t)c->cmsg_len);
}

CASE(inherited_messages, "a child asks for control messages, and its parent gets them, also with what was queued")
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(7434, &first, &second);
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVTTL, 1));
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_PKTINFO, 1));
		let_relative_run(&r);
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVTTL, 0));
		SAY_RESULT(set_int(s, IPPROTO_IP, IP_RECVTOS, 1));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	peer_send(far(), 0, here, 7434, 100, 1);
	SAY_RESULT(wait_until_readable(s, 2000));
	let_relative_run(&r);
	say_received_cmsgs(s);
	let_relative_run(&r);
	peer_send(far(), 0, here, 7434, 100, 2);
	say_received_cmsgs(s);
	wait_for_child_and_say_status(&r);
}

CASE(inherited_cork, "a child begins a datagram with MSG_MORE, and its parent ends it")
{
	int s = open_connected_offloaded_udp_socket(7435);
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		SAY_RESULT(send(s, "abc", 3, MSG_MORE));
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	warm_up_until_offloaded_send(s, NULL, 0);
	let_relative_run(&r);
	SAY_RESULT(send(s, "de", 2, 0));
	say_peer_received(far(), 0, 2000);
	SAY_RESULT(send(s, "f", 1, 0));
	say_peer_received(far(), 0, 2000);
	wait_for_child_and_say_status(&r);
}

/* ---- who receives ---- */

CASE(inherited_late, "what comes long after a fork, and its parent does not read, is the child's when that first looks")
{
	struct sockaddr_in first, second;
	int s = open_offloaded_udp_socket_and_two_peers(7436, &first, &second);
	struct relative r = fork_child_with_turn_pipes();

	if (r.pid == 0) {
		relative_wait_for_turn(&r);
		for (int i = 0; i < 3; i++)
			take(s, 2000, 0);
		hand_over_turn_and_exit(&r);
	}
	expect_offloaded(s);
	for (int i = 1; i <= 3; i++)
		peer_send(far(), 0, here, 7436, 100 * i, i);
	wait_until_sent_packets_arrived(30);
	let_relative_run(&r);
	receive_all_until_empty(s);
	wait_for_child_and_say_status(&r);
}
