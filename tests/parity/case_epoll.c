/* epoll: sets that hold offloaded sockets, alone and with all else. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "parity.h"

static volatile int minus_one = -1; /* which the compiler would warn of */

static int epoll_open_offloaded_udp_socket(void)
{
	int s = udp_socket_bound_to(here, 0);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	return s;
}

static int epoll_control(int set, int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = {.events = events, .data.u64 = data};

	return epoll_ctl(set, op, fd, &event);
}

static void say_epoll_events(const char *what, int set, int wait_ms)
{
	struct epoll_event got[8] = {0};
	int n = epoll_wait(set, got, 8, wait_ms);

	say("%s: %d", what, n);
	/* The order of several is nobody's promise. */
	for (uint64_t data = 0; data < 100; data++)
		for (int i = 0; i < n; i++)
			if (got[i].data.u64 == data)
				say("  events %x of %lu", got[i].events, (unsigned long)data);
}

/* All that are ready, in a few turns: one may leave out the OS's descriptors (VMA_SELECT_SKIP_OS). */
static void say_all_epoll_events(const char *what, int set, int wanted)
{
	uint32_t seen[100] = {0};
	int ready = 0;

	for (int turn = 0; turn < 6; turn++) {
		struct epoll_event got[8] = {0};
		int n = epoll_wait(set, got, 8, 1000);

		for (int i = 0; i < n; i++)
			seen[got[i].data.u64 % 100] |= got[i].events;
	}
	for (int i = 0; i < 100; i++)
		if (seen[i] != 0) {
			say("  events %x of %d", seen[i], i);
			ready++;
		}
	say("%s: %s", what, ready == wanted ? "all" : "not all");
}

static void epoll_make_one_datagram_arrive(int s, int seed)
{
	peer_send(far(), 0, here, port_of(s), 20, seed);
	if (!wait_until_readable(s, 2000))
		say("nothing came");
}

CASE(epoll_level, "level-triggered: as long as something is there")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0);

	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	say_epoll_events("empty", set, 20);
	epoll_make_one_datagram_arrive(s, 1);
	epoll_make_one_datagram_arrive(s, 2);
	say_epoll_events("two there", set, 1000);
	say_epoll_events("again", set, 1000);
	take(s, 0, 0);
	say_epoll_events("one there", set, 1000);
	take(s, 0, 0);
	pause_ms(20);
	say_epoll_events("read", set, 20);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLOUT, 2));
	say_epoll_events("writable", set, 20);
	say_epoll_events("writable", set, 20);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, 0, 2));
	epoll_make_one_datagram_arrive(s, 3);
	say_epoll_events("nothing asked", set, 20);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN, 3));
	say_epoll_events("asked again", set, 1000);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_DEL, s, 0, 0));
	say_epoll_events("taken out", set, 20);
}

CASE(epoll_edge, "edge-triggered: once for each arrival, and again after MOD")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0);

	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLET, 1));
	say_epoll_events("empty", set, 20);
	epoll_make_one_datagram_arrive(s, 1);
	wait_until_sent_packets_arrived(20);
	say_epoll_events("one came", set, 1000);
	say_epoll_events("no events", set, 20);
	epoll_make_one_datagram_arrive(s, 2);
	wait_until_sent_packets_arrived(20);
	say_epoll_events("another", set, 1000);
	take(s, 0, 0);
	say_epoll_events("one read, one left", set, 20);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLET, 2));
	say_epoll_events("modified", set, 1000);
	receive_all_until_empty(s);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLOUT | EPOLLET, 3));
	say_epoll_events("writable", set, 1000);
	say_epoll_events("writable once", set, 20);
	SAY_RESULT(send(s, "x", 1, 0));
	say_epoll_events("after a send that failed", set, 20);
	epoll_make_one_datagram_arrive(s, 3);
	wait_until_sent_packets_arrived(20);
	say_epoll_events("both", set, 1000);
}

CASE(epoll_edge_with_data, "edge-triggered: added while something is there")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0);

	epoll_make_one_datagram_arrive(s, 1);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLET, 1));
	say_epoll_events("added", set, 1000);
	say_epoll_events("told", set, 20);
	receive_all_until_empty(s);
	peer(far(), "send 0 %s %d 20 0 50", here, port_of(s));
	wait_until_sent_packets_arrived(50);
	say_epoll_events("fifty came", set, 1000);
	say_epoll_events("told", set, 20);
}

CASE(epoll_one_shot, "one-shot: once, then silent until MOD")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0);

	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLONESHOT, 1));
	epoll_make_one_datagram_arrive(s, 1);
	say_epoll_events("one came", set, 1000);
	say_epoll_events("silent", set, 20);
	epoll_make_one_datagram_arrive(s, 2);
	wait_until_sent_packets_arrived(20);
	say_epoll_events("still silent", set, 20);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLONESHOT, 2));
	say_epoll_events("armed again", set, 1000);
	receive_all_until_empty(s);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLONESHOT | EPOLLET, 3));
	say_epoll_events("armed, nothing there", set, 20);
	epoll_make_one_datagram_arrive(s, 3);
	wait_until_sent_packets_arrived(20);
	say_epoll_events("one more", set, 1000);
	say_epoll_events("silent", set, 20);
}

CASE(epoll_errors, "epoll calls: what is refused, and with what errno")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0), other = epoll_create(1), pipes[2];
	struct epoll_event event = {.events = EPOLLIN};

	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_DEL, s, 0, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 0));
	SAY_RESULT(epoll_control(set, 17, s, EPOLLIN, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, set, EPOLLIN, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, 9999, EPOLLIN, 0));
	SAY_RESULT(epoll_control(9999, EPOLL_CTL_ADD, s, EPOLLIN, 0));
	SAY_RESULT(epoll_control(s, EPOLL_CTL_ADD, s, EPOLLIN, 0));
	SAY_RESULT(epoll_control(s, EPOLL_CTL_ADD, set, EPOLLIN, 0));
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_MOD, s, bad_pointer()));
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_MOD, s, NULL));
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLEXCLUSIVE, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLEXCLUSIVE, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_DEL, s, 0, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 0));
	SAY_RESULT(epoll_wait(set, &event, 0, 0));
	SAY_RESULT(epoll_wait(set, &event, minus_one, 0));
	SAY_RESULT(epoll_wait(s, &event, 1, 0));
	SAY_RESULT(epoll_wait(9999, &event, 1, 0));
	SAY_RESULT(epoll_wait(set, bad_pointer(), 1, 0));
	epoll_make_one_datagram_arrive(s, 1);
	SAY_RESULT(epoll_wait(set, bad_pointer(), 1, 0));
	SAY_RESULT(epoll_wait(set, &event, 1, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, other, EPOLLIN, 0));
	SAY_RESULT(epoll_control(other, EPOLL_CTL_ADD, set, EPOLLIN, 0));
	SAY_RESULT(pipe(pipes));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 0));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 0));
	SAY_RESULT(epoll_create1(0x1234));
	SAY_RESULT(epoll_create(0));
	SAY_RESULT(read(set, &event, 1));
}

CASE(epoll_mixed, "a set of sockets, pipes, timers and eventfds: each wakes it up, with its data")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(EPOLL_CLOEXEC), pipes[2], event = eventfd(0, 0);
	int timer = timerfd_create(CLOCK_MONOTONIC, 0);
	struct itimerspec in_50_ms = {.it_value = {.tv_nsec = 50000000}};
	uint64_t value = 1;

	SAY_RESULT(pipe(pipes));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 1));
	say_epoll_events("before there is a socket", set, 10);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 2));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, event, EPOLLIN, 3));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, timer, EPOLLIN | EPOLLET, 4));
	say_epoll_events("nothing", set, 20);
	SAY_RESULT(write(pipes[1], "x", 1));
	say_epoll_events("pipe", set, 1000);
	SAY_RESULT(read(pipes[0], &value, 1));
	timerfd_settime(timer, 0, &in_50_ms, NULL);
	say_epoll_events("timer", set, 1000);
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	say_epoll_events("socket", set, 1000);
	value = 1;
	SAY_RESULT(write(event, &value, sizeof(value)));
	SAY_RESULT(write(pipes[1], "x", 1));
	say_all_epoll_events("three", set, 3);
	take(s, 0, 0);
	SAY_RESULT(read(event, &value, sizeof(value)));
	SAY_RESULT(close(pipes[1]));
	say_epoll_events("pipe with its end", set, 1000);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_DEL, pipes[0], 0, 0));
	say_epoll_events("nothing", set, 20);
}

CASE(epoll_two_sets, "one socket in two sets: both tell, each its own data")
{
	int s = epoll_open_offloaded_udp_socket(), one = epoll_create1(0), two = epoll_create1(0);

	SAY_RESULT(epoll_control(one, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	SAY_RESULT(epoll_control(two, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLET, 2));
	epoll_make_one_datagram_arrive(s, 1);
	say_epoll_events("one", one, 1000);
	say_epoll_events("two", two, 1000);
	say_epoll_events("one", one, 1000);
	say_epoll_events("two", two, 20);
	SAY_RESULT(close(one));
	epoll_make_one_datagram_arrive(s, 2);
	wait_until_sent_packets_arrived(20);
	say_epoll_events("two", two, 1000);
}

CASE(epoll_nested, "a set in a set, polled and selected as well")
{
	int s = epoll_open_offloaded_udp_socket(), inner = epoll_create1(0), outer = epoll_create1(0);
	struct pollfd p = {.fd = inner, .events = POLLIN};

	SAY_RESULT(epoll_control(inner, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	SAY_RESULT(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 2));
	say_epoll_events("outer", outer, 20);
	SAY_RESULT(poll(&p, 1, 0));
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	say_epoll_events("outer", outer, 1000);
	say_epoll_events("outer", outer, 1000);
	SAY_RESULT(poll(&p, 1, 1000));
	say("events %x", p.revents);
	say("readable %d", wait_until_readable(outer, 0));
	say_epoll_events("inner", inner, 1000);
	take(s, 0, 0);
	say_epoll_events("outer, read", outer, 20);
	SAY_RESULT(poll(&p, 1, 0));
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 2);
	SAY_RESULT(poll(&p, 1, 1000));
	SAY_RESULT(epoll_control(outer, EPOLL_CTL_DEL, inner, 0, 0));
	say_epoll_events("outer, alone", outer, 20);
}

CASE(epoll_filled_later, "a set gets its socket after it was put into another set, or is being waited for")
{
	int s = epoll_open_offloaded_udp_socket(), inner = epoll_create1(0), outer = epoll_create1(0);

	SAY_RESULT(epoll_control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 2));
	SAY_RESULT(epoll_control(inner, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	say_epoll_events("outer", outer, 1000);
	say_epoll_events("inner", inner, 1000);
}

CASE(epoll_duplicates, "a duplicated descriptor keeps its registration; the last close ends it")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0), copy, other_set;

	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	SAY_OK_OR_ERROR(copy = dup(s));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, copy, EPOLLIN, 2));
	epoll_make_one_datagram_arrive(s, 1);
	say_epoll_events("both", set, 1000);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_DEL, copy, 0, 0));
	say_epoll_events("one", set, 1000);
	SAY_RESULT(close(s));
	say_epoll_events("closed, but for its copy", set, 1000);
	SAY_OK_OR_ERROR(other_set = dup(set));
	say_epoll_events("by the copy of the set", other_set, 1000);
	SAY_RESULT(close(set));
	say_epoll_events("the set is closed", other_set, 1000);
	take(copy, 0, 0);
	SAY_RESULT(close(copy));
	say_epoll_events("all closed", other_set, 20);
}

CASE(epoll_copied_while_empty, "a set that was copied before it got its first socket is one set under all its numbers")
{
	int s = epoll_open_offloaded_udp_socket(), other = udp_socket_bound_to(here, 0), set = epoll_create1(0),
	    copies[4];

	SAY_OK_OR_ERROR(copies[0] = dup(set));
	SAY_OK_OR_ERROR(copies[1] = fcntl(set, F_DUPFD_CLOEXEC, 0));
	SAY_RESULT(copies[2] = dup2(copies[0], 200));
	SAY_RESULT(copies[3] = dup3(set, 201, O_CLOEXEC));
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	epoll_make_one_datagram_arrive(s, 1);
	for (int i = 0; i < 4; i++)
		say_epoll_events("by a copy", copies[i], 1000);
	SAY_RESULT(epoll_control(copies[1], EPOLL_CTL_ADD, s, EPOLLIN, 1));
	SAY_RESULT(epoll_control(copies[2], EPOLL_CTL_ADD, other, EPOLLIN, 2));
	take(s, 0, 0);
	epoll_make_one_datagram_arrive(other, 2);
	say_epoll_events("by its first number", set, 1000);
	say_epoll_events("by the last one", copies[3], 1000);
}

CASE(epoll_closed_member, "a closed socket leaves its sets; its number, used again, is another one")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0), again;

	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	epoll_make_one_datagram_arrive(s, 1);
	SAY_RESULT(close(s));
	say_epoll_events("closed", set, 20);
	again = udp_socket_bound_to(here, 0);
	say("the same number: %d", again == s);
	expect_offloaded(again);
	epoll_make_one_datagram_arrive(again, 2);
	say_epoll_events("not a member", set, 20);
	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, again, EPOLLIN, 3));
	say_epoll_events("a member", set, 1000);
}

CASE(epoll_few_events, "more ready than asked for: each gets its turn")
{
	int s[6], set = epoll_create1(0), seen[6] = {0}, all = 0;
	struct epoll_event got[2];

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	for (int i = 0; i < 6; i++) {
		s[i] = udp_socket_bound_to(here, 0);
		expect_offloaded(s[i]);
		epoll_control(set, EPOLL_CTL_ADD, s[i], EPOLLIN, (uint64_t)i);
		epoll_make_one_datagram_arrive(s[i], i);
	}
	for (int round = 0; round < 9; round++) {
		int n = epoll_wait(set, got, 2, 1000);

		if (n != 2)
			say("%d events", n);
		for (int i = 0; i < n; i++)
			seen[got[i].data.u64 % 6] = 1;
	}
	for (int i = 0; i < 6; i++)
		all += seen[i];
	say("%d of 6 had a turn", all);
}

CASE(epoll_timeouts, "epoll_wait, epoll_pwait and epoll_pwait2 wait as long as they should")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0);
	struct epoll_event got;
	struct timespec ts = {.tv_nsec = 40000000};
	uint64_t start = now_ms();

	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	SAY_RESULT(epoll_wait(set, &got, 1, 40));
	say_took_about("epoll_wait", start, 40);
	start = now_ms();
	SAY_RESULT(epoll_pwait(set, &got, 1, 40, NULL));
	say_took_about("epoll_pwait", start, 40);
	start = now_ms();
	SAY_RESULT(epoll_pwait2(set, &got, 1, &ts, NULL));
	say_took_about("epoll_pwait2", start, 40);
	ts.tv_nsec = 500000;
	SAY_RESULT(epoll_pwait2(set, &got, 1, &ts, NULL));
	ts.tv_nsec = -1;
	SAY_RESULT(epoll_pwait2(set, &got, 1, &ts, NULL));
	SAY_RESULT(epoll_pwait2(set, &got, 1, bad_pointer(), NULL));
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	start = now_ms();
	SAY_RESULT(epoll_wait(set, &got, 1, -1));
	say_took_about("without a limit", start, 50);
	SAY_RESULT(epoll_pwait2(set, &got, 1, NULL, NULL));
}

CASE(epoll_exclusive, "EPOLLEXCLUSIVE: a datagram wakes at least one of two sets")
{
	int s = epoll_open_offloaded_udp_socket(), one = epoll_create1(0), two = epoll_create1(0);

	SAY_RESULT(epoll_control(one, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLEXCLUSIVE, 1));
	SAY_RESULT(epoll_control(two, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLEXCLUSIVE, 2));
	epoll_make_one_datagram_arrive(s, 1);
	say_epoll_events("one", one, 1000);
	say_epoll_events("two", two, 1000);
	take(s, 0, 0);
	say_epoll_events("one", one, 0);
}

CASE(epoll_bypass, "a set with an offloaded socket serves 1,000 datagrams around the kernel")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0), got = 0;
	struct epoll_event event;
	char bytes[64];

	SAY_RESULT(epoll_control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
	save_kernel_udp_counters();
	peer(far(), "later 0 send 0 %s %d 20 0 1000 100", here, port_of(s));
	while (got < 1000 && epoll_wait(set, &event, 1, 2000) == 1)
		while (recv(s, bytes, sizeof(bytes), MSG_DONTWAIT) == 20)
			got++;
	say("%d came", got);
	check_kernel_udp_was_bypassed(1000, 0);
}

static void say_one_epoll_event(const char *what, int set)
{
	struct epoll_event event = {0};
	int n = epoll_wait(set, &event, 1, 200);

	say("%s: %d %x", what, n, n == 1 ? event.events : 0);
}

CASE(epoll_room_of_one_that_goes_back, "a socket that goes back to the kernel is writable as before")
{
	const struct sockaddr unspec = {.sa_family = AF_UNSPEC};
	int port = peer_ask_to_open_socket(far(), 0, there, 0), s = udp_socket_connected_to(there, port),
	    set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLOUT};

	expect_offloaded(s);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	say_one_epoll_event("connected", set);
	SAY_RESULT(connect(s, &unspec, sizeof(unspec)));
	say_one_epoll_event("not any more", set);
	say_one_epoll_event("still", set);
}

CASE(epoll_room_after_a_fork, "a fork changes nothing of what is writable, in the parent and in the child")
{
	int s = epoll_open_offloaded_udp_socket(), set = epoll_create1(0), status = 0;
	struct epoll_event event = {.events = EPOLLOUT};
	pid_t child;

	expect_offloaded(s);
	SAY_RESULT(epoll_ctl(set, EPOLL_CTL_ADD, s, &event));
	say_one_epoll_event("before", set);
	child = fork();
	if (child == 0) {
		pause_ms(100);
		say_one_epoll_event("child", set);
		_exit(0);
	}
	say_one_epoll_event("parent", set);
	waitpid(child, &status, 0);
	pause_ms(1500);
	say_one_epoll_event("later", set);
	say_one_epoll_event("still", set);
}
