/*
 * wakeups: how often a thread that waits for datagrams is woken, and how late it gets them.
 *
 *   wakeups recv|tcp|poll|select|epoll IP PORT SETTLE SECONDS  "PACKETS WAKEUPS" per second, SETTLE seconds after the
 *                                                           first datagram: those received, and the thread's voluntary
 *                                                           context switches
 *   wakeups delays recv|poll|... IP PORT N                  N lines: microseconds from the send of a datagram
 *   wakeups send IP PORT RATE SECONDS                       so many datagrams per second, if it can
 *   wakeups burst IP PORT N GAP                             N datagrams, GAP microseconds apart
 *   wakeups stream IP PORT N GAP                            N segments of a connection; to a receiver of "tcp"
 *
 * A datagram has the time at which it was sent (CLOCK_MONOTONIC, which all processes of a host share).
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>

#define SEC 1000000000ULL

static uint64_t wakeups_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SEC + (uint64_t)now.tv_nsec;
}

static long thread_voluntary_switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

static struct sockaddr_in sockaddr_of_ip_and_port(const char *ip, const char *port)
{
	return (struct sockaddr_in){
	        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr.s_addr = inet_addr(ip)};
}

/* ---- receiving ---- */

struct receiver {
	const char *how;
	bool blocks; /* in recv */
	int fd, epfd;
};

static int listen_and_accept(int listener)
{
	puts("listening");
	fflush(stdout);
	return listen(listener, 1) < 0 ? -1 : accept(listener, NULL, NULL);
}

static bool receiver_open(struct receiver *receiver, const char *how, const char *ip, const char *port)
{
	const struct sockaddr_in address = sockaddr_of_ip_and_port(ip, port);
	struct epoll_event event = {.events = EPOLLIN};

	const bool tcp = strcmp(how, "tcp") == 0;

	receiver->how = how;
	receiver->blocks = tcp || strcmp(how, "recv") == 0;
	receiver->fd = socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
	receiver->epfd = epoll_create1(0);
	if (bind(receiver->fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return false;
	if (tcp)
		return (receiver->fd = listen_and_accept(receiver->fd)) >= 0;
	if (epoll_ctl(receiver->epfd, EPOLL_CTL_ADD, receiver->fd, &event) < 0)
		return false;
	puts("listening");
	fflush(stdout);
	return true;
}

static void receiver_wait(const struct receiver *receiver)
{
	struct pollfd pfd = {.fd = receiver->fd, .events = POLLIN};
	struct epoll_event event;
	fd_set set;

	if (strcmp(receiver->how, "poll") == 0) {
		poll(&pfd, 1, -1);
	} else if (strcmp(receiver->how, "epoll") == 0) {
		epoll_wait(receiver->epfd, &event, 1, -1);
	} else if (strcmp(receiver->how, "select") == 0) {
		FD_ZERO(&set);
		FD_SET(receiver->fd, &set);
		select(receiver->fd + 1, &set, NULL, NULL, NULL);
	}
}

/* When it was sent; 0: nothing was there after all. */
static uint64_t receive_one(const struct receiver *receiver)
{
	const int flags = receiver->blocks ? 0 : MSG_DONTWAIT;
	uint64_t sent = 0;

	return recv(receiver->fd, &sent, sizeof(sent), flags) == (ssize_t)sizeof(sent) ? sent : 0;
}

static int print_packet_and_wakeup_rates(const struct receiver *receiver, double settle, double seconds)
{
	uint64_t begin = 0, end = 0, packets = 0, now = 0;
	long switches = 0;

	while (end == 0 || now < end) {
		receiver_wait(receiver);
		while (receive_one(receiver) != 0) {
			packets++;
			now = wakeups_now_ns();
			if (begin == 0)
				begin = now + (uint64_t)(settle * SEC);
			if (receiver->blocks)
				break;
		}
		if (end == 0 && begin != 0 && now >= begin) {
			begin = now;
			end = begin + (uint64_t)(seconds * SEC);
			packets = 0;
			switches = thread_voluntary_switches();
		}
	}
	printf("%.0f %.0f\n", (double)packets * SEC / (double)(now - begin),
	       (double)(thread_voluntary_switches() - switches) * SEC / (double)(now - begin));
	return 0;
}

static int print_wakeup_delays(const struct receiver *receiver, int n)
{
	while (n > 0) {
		uint64_t sent;

		receiver_wait(receiver);
		sent = receive_one(receiver);
		if (sent == 0)
			continue;
		printf("%llu\n", (unsigned long long)((wakeups_now_ns() - sent) / 1000));
		fflush(stdout);
		n--;
	}
	return 0;
}

/* ---- sending ---- */

static int send_current_time(int fd)
{
	const uint64_t now = wakeups_now_ns();

	return send(fd, &now, sizeof(now), 0) == (ssize_t)sizeof(now) ? 0 : -1;
}

static void wait_until(uint64_t at_ns)
{
	const struct timespec at = {.tv_sec = (time_t)(at_ns / SEC), .tv_nsec = (long)(at_ns % SEC)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	while (wakeups_now_ns() < at_ns)
		;
}

/* No two are closer to each other than that, however late the first one was. */
static int send_paced(int fd, uint64_t n, uint64_t gap_ns)
{
	for (uint64_t i = 0; i < n; i++) {
		const uint64_t now = wakeups_now_ns();

		send_current_time(fd);
		wait_until(now + gap_ns);
	}
	return 0;
}

/* Behind its time it sends without a break, but never for longer than it was to. */
static int send_at_rate(int fd, double rate, double seconds)
{
	const uint64_t begin = wakeups_now_ns(), end = begin + (uint64_t)(seconds * SEC);
	uint64_t now, sent = 0;

	while ((now = wakeups_now_ns()) < end)
		if ((double)sent < (double)(now - begin) * rate / SEC) {
			send_current_time(fd);
			sent++;
		}
	return 0;
}

int main(int argc, char **argv)
{
	struct receiver receiver;
	struct sockaddr_in to;
	int fd;

	if (argc != 6)
		return 2;
	if (strcmp(argv[1], "send") == 0 || strcmp(argv[1], "burst") == 0 || strcmp(argv[1], "stream") == 0) {
		to = sockaddr_of_ip_and_port(argv[2], argv[3]);
		fd = socket(AF_INET, strcmp(argv[1], "stream") == 0 ? SOCK_STREAM : SOCK_DGRAM, 0);
		if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) < 0)
			return 1;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
		if (strcmp(argv[1], "send") == 0)
			return send_at_rate(fd, atof(argv[4]), atof(argv[5]));
		return send_paced(fd, strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10) * 1000);
	}
	if (strcmp(argv[1], "delays") == 0)
		return receiver_open(&receiver, argv[2], argv[3], argv[4])
		               ? print_wakeup_delays(&receiver, atoi(argv[5]))
		               : 1;
	return receiver_open(&receiver, argv[1], argv[2], argv[3])
	               ? print_packet_and_wakeup_rates(&receiver, atof(argv[4]), atof(argv[5]))
	               : 1;
}
