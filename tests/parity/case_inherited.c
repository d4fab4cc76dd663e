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
static struct relative split(void)
{
	int down[2], up[2];
	struct relative r;

	if (pipe(down) != 0 || pipe(up) != 0)
		give_up("pipe");
	r.pid = fork();
	if (r.pid < 0)
		give_up("fork");
	r.from = r.pid == 0 ? down[0] : up[0];
	r.to = r.pid == 0 ? up[1] : down[1];
	close(r.pid == 0 ? down[1] : up[1]);
	close(r.pid == 0 ? up[0] : down[0]);
	return r;
}

static void wait_turn(const struct relative *r)
{
	char byte;

	if (read(r->from, &byte, 1) != 1)
		give_up("the relative has gone");
}

static void give_turn(const struct relative *r)
{
	if (write(r->to, "t", 1) != 1)
		give_up("the relative has gone");
}

/* The other one does something meanwhile. */
static void let(const struct relative *r)
{
	give_turn(r);
	wait_turn(r);
}

static void end_child(const struct relative *r)
{
	give_turn(r);
	_exit(0);
}

static void inherited_await(const struct relative *r)
{
	int status = -1;

	if (waitpid(r->pid, &status, 0) != r->pid)
		give_up("waitpid");
	say("the child ended with %d", status);
}

/* ---- sockets ---- */

/* Bound to a port of its own, which the kernel does not take away, with two peers. */
static int ours(int port, struct sockaddr_in *first, struct sockaddr_in *second)
{
	int ports[] = {peer_open(far(), 0, there, 0), peer_open(far(), 1, there, 0)};
	int s = udp_at(here, port);

	name_port(ports[0], "first");
	name_port(ports[1], "second");
	*first = address_of(there, ports[0]);
	*second = address_of(there, ports[1]);
	expect_offloaded(s);
	return s;
}

static int inherited_connected(int port)
{
	struct sockaddr_in first, second;
	int s = ours(port, &first, &second);

	if (connect(s, (struct sockaddr *)&first, sizeof(first)) != 0)
		give_up("connect");
	expect_offloaded(s);
	return s;
}

static int join_peer(int s, const struct sockaddr_in *peer)
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
	int s = ours(7420, &first, &second);
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		RES(join_peer(s, &first));
		end_child(&r);
	}
	expect_offloaded(s);
	peer_send(far(), 0, here, 7420, 100, 1);
	take(s, 2000, 0);
	peer_send(far(), 1, here, 7420, 100, 2);
	take(s, 2000, 0);
	RES(send(s, "x", 1, 0));
	let(&r);
	/* Nothing has called the socket here since. */
	peer_send(far(), 1, here, 7420, 100, 3);
	let_arrive(30);
	peer_send(far(), 0, here, 7420, 100, 4);
	take(s, 2000, 0);
	take_all(s);
	say_peer("the parent's peer", s);
	RES(send(s, "x", 1, 0));
	peer_take(far(), 0, 2000);
	inherited_await(&r);
	expect_offloaded(s);
	warm_up(s, NULL, 0);
	bypass_begin();
	RES(send(s, "y", 1, 0));
	peer_take(far(), 0, 2000);
	peer_send(far(), 0, here, 7420, 100, 5);
	take(s, 2000, 0);
	bypass_end(1, 1);
}

CASE(inherited_reconnect,
     "a child connects its parent's socket to another peer: sends and receives of the parent follow")
{
	struct sockaddr_in first, second;
	int s = ours(7421, &first, &second);
	struct relative r;

	RES(join_peer(s, &first));
	r = split();
	if (r.pid == 0) {
		wait_turn(&r);
		RES(join_peer(s, &second));
		end_child(&r);
	}
	expect_offloaded(s);
	warm_up(s, NULL, 0);
	let(&r);
	RES(send(s, "x", 1, 0));
	peer_take(far(), 1, 2000);
	peer_send(far(), 0, here, 7421, 100, 1);
	peer_send(far(), 1, here, 7421, 100, 2);
	take(s, 2000, 0);
	take_all(s);
	inherited_await(&r);
}

CASE(inherited_dissolve, "a child dissolves an association: its parent hears from others, and has nobody to send to")
{
	int s = inherited_connected(7422);
	struct sockaddr nobody = {.sa_family = AF_UNSPEC};
	struct sockaddr_in to = address_of(there, atoi(peer(far(), "port 1")));
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		RES(connect(s, &nobody, sizeof(nobody)));
		end_child(&r);
	}
	expect_offloaded(s);
	warm_up(s, NULL, 0);
	let(&r);
	peer_send(far(), 1, here, 7422, 100, 1);
	take(s, 2000, 0);
	RES(send(s, "x", 1, 0));
	RES(sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)));
	peer_take(far(), 1, 2000);
	inherited_await(&r);
}

CASE(inherited_parent_connects, "a parent connects the socket: its child, which has sent and received before, follows")
{
	struct sockaddr_in first, second;
	int s = ours(7423, &first, &second);
	struct relative r = split();

	if (r.pid == 0) {
		RES(sendto(s, "x", 1, 0, (struct sockaddr *)&second, sizeof(second)));
		peer_take(far(), 1, 2000);
		peer_send(far(), 1, here, 7423, 100, 1);
		take(s, 2000, 0);
		let(&r);
		peer_send(far(), 1, here, 7423, 100, 2);
		let_arrive(30);
		RES(send(s, "x", 1, 0));
		peer_take(far(), 0, 2000);
		take_all(s);
		end_child(&r);
	}
	wait_turn(&r);
	RES(join_peer(s, &first));
	let(&r);
	inherited_await(&r);
}

CASE(inherited_grandchild, "a grandchild connects the socket of its parent's parent; a child in between follows, too")
{
	struct sockaddr_in first, second;
	int s = ours(7424, &first, &second);
	struct relative r = split(), younger;

	if (r.pid == 0) {
		wait_turn(&r);
		younger = split();
		if (younger.pid == 0) {
			wait_turn(&younger);
			RES(join_peer(s, &first));
			RES(set_int(s, IPPROTO_IP, IP_TTL, 44));
			end_child(&younger);
		}
		let(&younger);
		inherited_await(&younger);
		let(&r);
		RES(send(s, "x", 1, 0));
		peer_take(far(), 0, 2000);
		end_child(&r);
	}
	expect_offloaded(s);
	let(&r);
	RES(send(s, "x", 1, 0));
	peer_take(far(), 0, 2000);
	peer_send(far(), 1, here, 7424, 100, 1);
	peer_send(far(), 0, here, 7424, 100, 2);
	take(s, 2000, 0);
	take_all(s);
	let(&r);
	inherited_await(&r);
}

struct cloned {
	int s;
	struct sockaddr_in peer;
};

static int connect_cloned(void *arg)
{
	const struct cloned *cloned = arg;

	pause_ms(1500);
	return join_peer(cloned->s, &cloned->peer) == 0 ? 0 : 1;
}

CASE(inherited_clone, "a child of clone, with memory of its own, connects its parent's socket")
{
	static _Alignas(16) char stack[262144];
	struct sockaddr_in second;
	struct cloned cloned;
	struct relative r;

	cloned.s = ours(7437, &cloned.peer, &second);
	r.pid = clone(connect_cloned, stack + sizeof(stack), SIGCHLD, &cloned);
	expect_offloaded(cloned.s);
	inherited_await(&r);
	peer_send(far(), 1, here, 7437, 100, 1);
	let_arrive(30);
	peer_send(far(), 0, here, 7437, 100, 2);
	take(cloned.s, 2000, 0);
	take_all(cloned.s);
	RES(send(cloned.s, "x", 1, 0));
	peer_take(far(), 0, 2000);
}

/* ---- how calls wait ---- */

CASE(inherited_nonblocking,
     "O_NONBLOCK is set and taken away by one process, by fcntl and ioctl: recv of the other goes by it")
{
	struct sockaddr_in first, second;
	int s = ours(7425, &first, &second), off = 0;
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		say_recv("the child", s, 0);
		RES(ioctl(s, FIONBIO, &off));
		end_child(&r);
	}
	expect_offloaded(s);
	RES(fcntl(s, F_SETFL, O_NONBLOCK));
	/* Who waits all the same gets this. */
	peer_later(far(), 1000, 0, here, 7425, 100, 1);
	let(&r);
	say_recv("the parent", s, 0);
	inherited_await(&r);
}

CASE(inherited_timeouts, "SO_RCVTIMEO is set by one process, and recv of the other one waits so long")
{
	struct sockaddr_in first, second;
	int s = ours(7426, &first, &second);
	uint64_t begun;
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		begun = now_ms();
		say_recv("the child", s, 0);
		say_took_about("the child has waited", begun, 300);
		RES(set_timeout(s, SO_RCVTIMEO, 150));
		end_child(&r);
	}
	expect_offloaded(s);
	RES(set_timeout(s, SO_RCVTIMEO, 300));
	let(&r);
	begun = now_ms();
	peer_later(far(), 2000, 0, here, 7426, 100, 1);
	say_recv("the parent", s, 0);
	say_took_about("the parent has waited", begun, 150);
	inherited_await(&r);
}

CASE(inherited_shutdown_read, "a child shuts down reading: its parent's recv, which waits, ends, and so do later ones")
{
	int s = inherited_connected(7427);
	struct pollfd fd = {.fd = s, .events = POLLIN | POLLRDHUP};
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		pause_ms(200);
		if (shutdown(s, SHUT_RD) != 0) /* prints nothing: it wakes its parent */
			give_up("shutdown");
		end_child(&r);
	}
	expect_offloaded(s);
	give_turn(&r);
	say_recv("the parent", s, 0);
	wait_turn(&r);
	say_recv("the parent", s, 0);
	say_recv("the parent", s, MSG_DONTWAIT);
	RES(poll(&fd, 1, 0));
	say("events %x", (unsigned)fd.revents);
	inherited_await(&r);
	RES(send(s, "x", 1, 0));
	peer_take(far(), 0, 2000);
}

static void *receive_nothing(void *arg)
{
	char byte;

	*(long *)arg = recv((int)*(long *)arg, &byte, 1, 0);
	return NULL;
}

CASE(inherited_shutdown_threads, "a child shuts down reading while two threads of its parent wait in recv")
{
	int s = inherited_connected(7428);
	long what[2] = {s, s};
	pthread_t threads[2];
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		RES(shutdown(s, SHUT_RD));
		end_child(&r);
	}
	expect_offloaded(s);
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, receive_nothing, &what[i]) != 0)
			give_up("pthread_create");
	pause_ms(200);
	let(&r);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	say("%ld %ld", what[0], what[1]);
	inherited_await(&r);
}

CASE(inherited_shutdown_write, "a child shuts down writing: sends of its parent fail, and its receives go on")
{
	int s = inherited_connected(7429);
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		RES(shutdown(s, SHUT_WR));
		end_child(&r);
	}
	expect_offloaded(s);
	warm_up(s, NULL, 0);
	let(&r);
	RES(send(s, "x", 1, MSG_NOSIGNAL));
	RES(send(s, "x", 1, MSG_NOSIGNAL));
	peer_send(far(), 0, here, 7429, 100, 1);
	take(s, 2000, 0);
	inherited_await(&r);
}

/* ---- options ---- */

CASE(inherited_ttl_tos, "IP_TTL and IP_TOS are set by one process, and are on what the other one sends")
{
	int s = inherited_connected(7430);
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		RES(set_int(s, IPPROTO_IP, IP_TTL, 33));
		RES(set_int(s, IPPROTO_IP, IP_TOS, 0x10));
		let(&r);
		RES(send(s, "x", 1, 0));
		peer_take(far(), 0, 2000);
		end_child(&r);
	}
	expect_offloaded(s);
	warm_up(s, NULL, 0);
	let(&r);
	RES(send(s, "x", 1, 0));
	peer_take(far(), 0, 2000);
	RES(send(s, "x", 1, 0));
	peer_take(far(), 0, 2000);
	RES(set_int(s, IPPROTO_IP, IP_TTL, 17));
	RES(set_int(s, IPPROTO_IP, IP_TOS, 0xb8));
	let(&r);
	inherited_await(&r);
}

static int inherited_send_to(int s, const char *ip, int port)
{
	struct sockaddr_in to = address_of(ip, port);

	return (int)sendto(s, "x", 1, 0, (struct sockaddr *)&to, sizeof(to));
}

CASE(inherited_multicast_sender,
     "multicast TTL, interface and loop, and SO_BROADCAST, set by a child: its parent's sends")
{
	int s = udp_at("0.0.0.0", 7431);
	struct in_addr second = address_of(here_second, 0).sin_addr;
	struct relative r;

	for (int i = 0; i < 2; i++) {
		peer_open(far(), i, "0.0.0.0", 7432 + i);
		peer(far(), "join %d %s %s", i, GROUP, i == 0 ? there : there_second);
	}
	RES(set_int(s, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
	r = split();
	if (r.pid == 0) {
		wait_turn(&r);
		RES(set_int(s, IPPROTO_IP, IP_MULTICAST_TTL, 9));
		RES(set_int(s, SOL_SOCKET, SO_BROADCAST, 1));
		let(&r);
		RES(setsockopt(s, IPPROTO_IP, IP_MULTICAST_IF, &second, sizeof(second)));
		let(&r);
		RES(set_int(s, IPPROTO_IP, IP_MULTICAST_LOOP, 1));
		end_child(&r);
	}
	expect_offloaded(s);
	RES(inherited_send_to(s, "10.9.0.255", 7432));
	for (int i = 0; i < 3; i++) {
		RES(inherited_send_to(s, GROUP, 7432));
		peer_take(far(), 0, 2000);
	}
	let(&r);
	RES(inherited_send_to(s, "10.9.0.255", 7432));
	peer_take(far(), 0, 2000);
	RES(inherited_send_to(s, GROUP, 7432));
	peer_take(far(), 0, 2000);
	let(&r);
	for (int i = 0; i < 3; i++) {
		RES(inherited_send_to(s, GROUP, 7433));
		peer_take(far(), 1, 2000);
	}
	peer_open(near(), 0, "0.0.0.0", 7433);
	peer(near(), "join 0 %s %s", GROUP, here_second);
	RES(inherited_send_to(s, GROUP, 7433));
	peer_take(near(), 0, 200);
	let(&r);
	RES(inherited_send_to(s, GROUP, 7433));
	peer_take(near(), 0, 2000);
	inherited_await(&r);
}

static void say_messages(int s)
{
	char bytes[100], control[256];
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};

	RES(is_readable(s, 2000));
	RES(recvmsg(s, &msg, MSG_DONTWAIT));
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c))
		say("level %d, type %d, %zu bytes", c->cmsg_level, c->cmsg_type, (size_t)c->cmsg_len);
}

CASE(inherited_messages, "a child asks for control messages, and its parent gets them, also with what was queued")
{
	struct sockaddr_in first, second;
	int s = ours(7434, &first, &second);
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		RES(set_int(s, IPPROTO_IP, IP_RECVTTL, 1));
		RES(set_int(s, IPPROTO_IP, IP_PKTINFO, 1));
		let(&r);
		RES(set_int(s, IPPROTO_IP, IP_RECVTTL, 0));
		RES(set_int(s, IPPROTO_IP, IP_RECVTOS, 1));
		end_child(&r);
	}
	expect_offloaded(s);
	peer_send(far(), 0, here, 7434, 100, 1);
	RES(is_readable(s, 2000));
	let(&r);
	say_messages(s);
	let(&r);
	peer_send(far(), 0, here, 7434, 100, 2);
	say_messages(s);
	inherited_await(&r);
}

CASE(inherited_cork, "a child begins a datagram with MSG_MORE, and its parent ends it")
{
	int s = inherited_connected(7435);
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		RES(send(s, "abc", 3, MSG_MORE));
		end_child(&r);
	}
	expect_offloaded(s);
	warm_up(s, NULL, 0);
	let(&r);
	RES(send(s, "de", 2, 0));
	peer_take(far(), 0, 2000);
	RES(send(s, "f", 1, 0));
	peer_take(far(), 0, 2000);
	inherited_await(&r);
}

/* ---- who receives ---- */

CASE(inherited_late, "what comes long after a fork, and its parent does not read, is the child's when that first looks")
{
	struct sockaddr_in first, second;
	int s = ours(7436, &first, &second);
	struct relative r = split();

	if (r.pid == 0) {
		wait_turn(&r);
		for (int i = 0; i < 3; i++)
			take(s, 2000, 0);
		end_child(&r);
	}
	expect_offloaded(s);
	for (int i = 1; i <= 3; i++)
		peer_send(far(), 0, here, 7436, 100 * i, i);
	let_arrive(30);
	let(&r);
	take_all(s);
	inherited_await(&r);
}
