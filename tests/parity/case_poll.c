/* poll, ppoll, select and pselect over offloaded sockets and all else. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "parity.h"

static int offloaded_udp_socket_with_peer(void)
{
	int s = udp_socket_bound_to(here, 0);

	register_port_name(peer_ask_to_open_socket(far(), 0, there, 0), "peer");
	expect_offloaded(s);
	return s;
}

static void poll_one(const char *what, int fd, int events, int wait_ms)
{
	struct pollfd p = {.fd = fd, .events = (short)events, .revents = 0x7777};
	uint64_t start = now_ms();
	int n = poll(&p, 1, wait_ms);

	say("%s: %d, events %x", what, n, (unsigned)(unsigned short)p.revents);
	if (n == 0 && wait_ms > 0)
		say_took_about("it waited", start, (unsigned)wait_ms);
}

CASE(poll_events, "poll of one socket: every event, asked for or not")
{
	static const short events[] = {0,          POLLIN,     POLLOUT,    POLLIN | POLLOUT, POLLPRI,   POLLRDNORM,
	                               POLLRDBAND, POLLWRNORM, POLLWRBAND, POLLERR,          POLLRDHUP, 0x7fff};
	int s = offloaded_udp_socket_with_peer(), unbound = udp_socket();

	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
		poll_one("empty", s, events[i], 0);
	peer_send(far(), 0, here, port_of(s), 20, 1);
	wait_until_readable(s, 2000);
	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
		poll_one("readable", s, events[i], 0);
	take(s, 0, 0);
	poll_one("read", s, POLLIN, 30);
	poll_one("unbound", unbound, POLLIN | POLLOUT, 0);
	poll_one("unbound", unbound, POLLIN, 30);
	close(s);
	poll_one("closed", s, POLLIN, 1000);
	poll_one("negative", -1, POLLIN, 30);
}

CASE(poll_errors, "poll: bad vectors, too many entries, odd timeouts")
{
	static struct pollfd many[2000];
	struct rlimit limit = {.rlim_cur = 1024, .rlim_max = 4096};
	int s = offloaded_udp_socket_with_peer();
	struct pollfd p[2] = {{.fd = s, .events = POLLIN}, {.fd = s, .events = POLLOUT}};
	struct timespec odd = {.tv_nsec = -1};

	SAY_RESULT(poll(bad_pointer(), 1, 0));
	SAY_RESULT(poll(NULL, 0, 10));
	SAY_RESULT(poll(p, 2, -5));
	say("events %x %x", p[0].revents, p[1].revents);
	SAY_RESULT(ppoll(p, 1, &odd, NULL));
	odd.tv_nsec = 1000000000;
	SAY_RESULT(ppoll(p, 1, &odd, NULL));
	SAY_RESULT(ppoll(p, 2, NULL, bad_pointer()));
	setrlimit(RLIMIT_NOFILE, &limit);
	for (int i = 0; i < 2000; i++)
		many[i].fd = s;
	SAY_RESULT(poll(many, 2000, 0));
	SAY_RESULT(poll(many, 1024, 0));
}

CASE(poll_mixed, "poll over sockets, pipes, timers and eventfds: each wakes it up")
{
	int s = offloaded_udp_socket_with_peer(), pipes[2], event = eventfd(0, 0),
	    timer = timerfd_create(CLOCK_MONOTONIC, 0);
	struct itimerspec in_50_ms = {.it_value = {.tv_nsec = 50000000}};
	struct pollfd p[5] = {
	        {.events = POLLIN}, {.events = POLLIN}, {.events = POLLIN}, {.events = POLLIN}, {.fd = -1}};
	uint64_t start, value = 1;
	int seen[4] = {0};

	SAY_RESULT(pipe(pipes));
	p[0].fd = pipes[0];
	p[1].fd = s;
	p[2].fd = event;
	p[3].fd = timer;
	SAY_RESULT(poll(p, 5, 30));
	timerfd_settime(timer, 0, &in_50_ms, NULL);
	start = now_ms();
	SAY_RESULT(poll(p, 5, 2000));
	say_took_about("the timer", start, 50);
	say("events %x %x %x %x", p[0].revents, p[1].revents, p[2].revents, p[3].revents);
	SAY_RESULT(read(timer, &value, sizeof(value)));
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	start = now_ms();
	SAY_RESULT(poll(p, 5, 2000));
	say_took_about("the socket", start, 50);
	say("events %x %x %x %x", p[0].revents, p[1].revents, p[2].revents, p[3].revents);
	SAY_RESULT(write(event, &value, sizeof(value)));
	SAY_RESULT(write(pipes[1], "x", 1));
	/* A call may leave out the OS's descriptors when others are ready (VMA_SELECT_SKIP_OS), but not for long. */
	for (int turn = 0; turn < 6; turn++) {
		poll(p, 5, 2000);
		for (int i = 0; i < 4; i++)
			seen[i] |= p[i].revents;
	}
	say("events %x %x %x %x", seen[0], seen[1], seen[2], seen[3]);
	close(pipes[1]);
	take(s, 0, 0);
	SAY_RESULT(poll(p, 5, 2000));
	say("events %x %x %x %x", p[0].revents, p[1].revents, p[2].revents, p[3].revents);
}

CASE(poll_as_many_as_allowed, "poll of as many as the process may have descriptors waits, and each wakes it up")
{
	struct itimerspec in_50_ms = {.it_value = {.tv_nsec = 50000000}};
	int s = offloaded_udp_socket_with_peer(), timer = timerfd_create(CLOCK_MONOTONIC, 0);
	struct pollfd p[100];
	struct rlimit limit;

	for (int i = 0; i < 100; i++)
		p[i] = (struct pollfd){.fd = i == 5 ? s : i == 99 ? timer : -1, .events = POLLIN};
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = 100;
	setrlimit(RLIMIT_NOFILE, &limit);
	SAY_RESULT(poll(p, 100, 30));
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	SAY_RESULT(poll(p, 100, 2000));
	say("events %x %x", p[5].revents, p[99].revents);
	take(s, 0, 0);
	timerfd_settime(timer, 0, &in_50_ms, NULL);
	SAY_RESULT(poll(p, 100, -1));
	say("events %x %x", p[5].revents, p[99].revents);
}

CASE(poll_many, "poll of 300 sockets: the right ones are ready")
{
	static struct pollfd p[300];
	int ready = 0, wrong = 0;

	peer_ask_to_open_socket(far(), 0, there, 0);
	for (int i = 0; i < 300; i++) {
		p[i].fd = udp_socket_bound_to(here, 8000 + i);
		p[i].events = POLLIN;
	}
	expect_offloaded(p[0].fd);
	expect_offloaded(p[299].fd);
	SAY_RESULT(poll(p, 300, 20));
	for (int i = 0; i < 300; i += 7)
		peer_send(far(), 0, here, 8000 + i, 20, 1);
	wait_until_sent_packets_arrived(50);
	SAY_RESULT(poll(p, 300, 1000));
	for (int i = 0; i < 300; i++) {
		ready += p[i].revents == POLLIN;
		wrong += (p[i].revents != 0) != (i % 7 == 0);
	}
	say("%d ready, %d wrong", ready, wrong);
}

CASE(poll_timeouts, "poll, ppoll, select, pselect and epoll wait as long as they should, with nothing to wait for, too")
{
	int s = offloaded_udp_socket_with_peer();
	struct pollfd p = {.fd = s, .events = POLLIN};
	struct timespec ts = {.tv_nsec = 40000000};
	struct timeval tv = {.tv_usec = 40000};
	uint64_t start = now_ms();
	fd_set set;

	SAY_RESULT(poll(&p, 1, 40));
	say_took_about("poll", start, 40);
	start = now_ms();
	SAY_RESULT(ppoll(&p, 1, &ts, NULL));
	say_took_about("ppoll", start, 40);
	say("left %ld", ts.tv_nsec);
	start = now_ms();
	FD_ZERO(&set);
	FD_SET(s, &set);
	SAY_RESULT(select(s + 1, &set, NULL, NULL, &tv));
	say_took_about("select", start, 40);
	say("left %ld, set %d", (long)tv.tv_usec, FD_ISSET(s, &set));
	start = now_ms();
	FD_SET(s, &set);
	SAY_RESULT(pselect(s + 1, &set, NULL, NULL, &ts, NULL));
	say_took_about("pselect", start, 40);
	say("left %ld", ts.tv_nsec);
	start = now_ms();
	tv.tv_usec = 40000;
	SAY_RESULT(select(0, NULL, NULL, NULL, &tv));
	say_took_about("select as a sleep", start, 40);
	start = now_ms();
	SAY_RESULT(poll(NULL, 0, 40));
	say_took_about("poll as a sleep", start, 40);
	start = now_ms();
	tv = (struct timeval){0};
	SAY_RESULT(select(s + 1, &set, NULL, NULL, &tv));
	say_took_about("select at once", start, 0);
	tv = (struct timeval){.tv_sec = 2};
	peer_ask_to_send_after_ms(far(), 50, 0, here, port_of(s), 20, 1);
	FD_SET(s, &set);
	SAY_RESULT(select(s + 1, &set, NULL, NULL, &tv));
	say("%s left, set %d", tv.tv_sec == 1 ? "most" : "not most", FD_ISSET(s, &set));
}

CASE(select_sets, "select: readable, writable and exceptional sets of sockets and pipes")
{
	int s = offloaded_udp_socket_with_peer(), quiet = udp_socket_bound_to(here, 0), pipes[2], top;
	fd_set r, sets[3];
	struct timeval tv = {.tv_sec = 1};

	SAY_RESULT(pipe(pipes));
	top = pipes[1] + 1;
	peer_send(far(), 0, here, port_of(s), 20, 1);
	wait_until_readable(s, 2000);
	for (int round = 0; round < 2; round++) {
		int seen[7] = {0};

		/* A call may leave out the OS's descriptors when others are ready (VMA_SELECT_SKIP_OS), but not for
		 * long. */
		for (int turn = 0; turn < 6; turn++) {
			const int is[7][2] = {{s, 0},        {quiet, 0}, {pipes[0], 0}, {quiet, 1},
			                      {pipes[1], 1}, {s, 2},     {pipes[0], 2}};

			for (int i = 0; i < 3; i++)
				FD_ZERO(&sets[i]);
			for (int i = 0; i < 7; i++)
				FD_SET(is[i][0], &sets[is[i][1]]);
			if (select(top, &sets[0], &sets[1], &sets[2], &tv) < 1)
				say("nothing");
			for (int i = 0; i < 7; i++)
				seen[i] |= FD_ISSET(is[i][0], &sets[is[i][1]]) != 0;
		}
		say("readable %d %d %d, writable %d %d, exceptional %d %d", seen[0], seen[1], seen[2], seen[3], seen[4],
		    seen[5], seen[6]);
		SAY_RESULT(write(pipes[1], "x", 1));
		take(s, 0, 0);
	}
	FD_ZERO(&r);
	FD_SET(s, &r);
	SAY_RESULT(select(s, &r, NULL, NULL, &(struct timeval){0}));
	say("beyond the number: %d", FD_ISSET(s, &r));
}

CASE(select_errors, "select: closed descriptors, bad numbers, bad pointers, odd timeouts")
{
	int s = offloaded_udp_socket_with_peer(), closed = udp_socket_bound_to(here, 0);
	fd_set r;
	struct timeval odd = {.tv_sec = -1};
	struct timespec odd_ts = {.tv_nsec = 1000000000};

	close(closed);
	FD_ZERO(&r);
	FD_SET(s, &r);
	FD_SET(closed, &r);
	SAY_RESULT(select(closed + 1, &r, NULL, NULL, &(struct timeval){0}));
	FD_CLR(closed, &r);
	SAY_RESULT(select(-1, &r, NULL, NULL, &(struct timeval){0}));
	SAY_RESULT(select(s + 1, bad_pointer(), NULL, NULL, &(struct timeval){0}));
	SAY_RESULT(select(s + 1, &r, bad_pointer(), NULL, &(struct timeval){0}));
	SAY_RESULT(select(s + 1, &r, NULL, NULL, &odd));
	SAY_RESULT(select(s + 1, &r, NULL, NULL, &(struct timeval){.tv_usec = -1}));
	FD_SET(s, &r);
	SAY_RESULT(pselect(s + 1, &r, NULL, NULL, &odd_ts, NULL));
}

CASE(select_large_descriptors, "select of a descriptor above FD_SETSIZE, with sets that are large enough")
{
	struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
	int s = offloaded_udp_socket_with_peer(), high;
	fd_set *large = calloc(1, 4096 / 8);
	struct timeval tv = {.tv_sec = 2};

	setrlimit(RLIMIT_NOFILE, &limit);
	high = dup2(s, 3000);
	say("%d", high);
	expect_offloaded(high);
	peer_send(far(), 0, here, port_of(s), 20, 1);
	((unsigned char *)large)[high / 8] |= (unsigned char)(1 << high % 8);
	SAY_RESULT(select(high + 1, large, NULL, NULL, &tv));
	say("set %d", ((unsigned char *)large)[high / 8]);
	take(high, 0, 0);
	free(large);
}

static void say_poll_writable_band(const char *what, int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT | POLLWRNORM | POLLWRBAND};

	poll(&p, 1, 1000);
	say("%s: %x", what, (unsigned)p.revents);
}

CASE(poll_band, "a socket for datagrams has a band to write to, and a stream has not")
{
	int s = udp_socket_bound_to(here, 0), stream = tcp_connected_to_far_peer();

	expect_offloaded(s);
	say_poll_writable_band("datagrams", s);
	say_poll_writable_band("stream", stream);
}
