/*
 * recv_threads - plain sockets, as any program uses them, for what sockperf does not measure; run as it is and with the
 * library preloaded.
 *
 *   recv      one socket and one thread for each port, all in a blocking receive loop; until SIGTERM
 *   send      as many datagrams as go out, to each port in turn
 *   ping      one datagram to each port in turn, and the answer waited for; far end: recv --echo
 *   idle      one socket, nothing arrives: waits in --how recv, select, poll or epoll for --msec
 *   one       one bound socket: what it costs
 *
 * Output as measure.h says.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "measure.h"

#define THREADS_MAX 64

static struct {
	struct in_addr local, peer;
	uint16_t port;
	unsigned threads, msec, bytes;
	const char *how;
	int echo;
} opts = {.port = 7300, .threads = 8, .msec = 1000, .bytes = 64, .how = "recv"};

static struct sockaddr_in recv_threads_address_of(struct in_addr addr, unsigned i)
{
	return (struct sockaddr_in){
	        .sin_family = AF_INET, .sin_port = htons((uint16_t)(opts.port + i)), .sin_addr = addr};
}

static int recv_threads_bound_socket(unsigned i)
{
	struct sockaddr_in local = recv_threads_address_of(opts.local, i);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&local, sizeof(local)) < 0)
		bench_die("socket");
	return fd;
}

static int connected_socket(unsigned i)
{
	struct sockaddr_in peer = recv_threads_address_of(opts.peer, i);
	int fd = recv_threads_bound_socket(i);

	if (connect(fd, (struct sockaddr *)&peer, sizeof(peer)) < 0)
		bench_die("connect");
	return fd;
}

/* ---- recv ---- */

static struct receiver {
	pthread_t thread;
	int fd;
	_Atomic uint64_t received;
} __attribute__((aligned(64))) receivers[THREADS_MAX];

static void *recv_threads_receive(void *arg)
{
	struct receiver *self = arg;
	struct sockaddr_in from;
	char packet[65536];

	for (;;) {
		socklen_t len = sizeof(from);
		const ssize_t bytes = recvfrom(self->fd, packet, sizeof(packet), 0,
		                               opts.echo ? (struct sockaddr *)&from : NULL, opts.echo ? &len : NULL);

		if (bytes < 0)
			return NULL;
		atomic_store_explicit(&self->received, atomic_load_explicit(&self->received, memory_order_relaxed) + 1,
		                      memory_order_relaxed);
		if (opts.echo)
			sendto(self->fd, packet, (size_t)bytes, 0, (struct sockaddr *)&from, len);
	}
}

static int recv_main(void)
{
	uint64_t sum = 0, least = UINT64_MAX;
	sigset_t stop;
	int sig;

	sigemptyset(&stop);
	sigaddset(&stop, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &stop, NULL);
	for (unsigned i = 0; i < opts.threads; i++) {
		receivers[i].fd = recv_threads_bound_socket(i);
		if (pthread_create(&receivers[i].thread, NULL, recv_threads_receive, &receivers[i]) != 0)
			bench_die("thread");
	}
	printf("ready\n");
	fflush(stdout);
	sigwait(&stop, &sig);
	for (unsigned i = 0; i < opts.threads; i++) {
		const uint64_t n = atomic_load(&receivers[i].received);

		sum += n;
		least = n < least ? n : least;
	}
	bench_print("received", (double)sum);
	bench_print("least", (double)least);
	bench_print("cpu_sec", bench_cpu_sec());
	fflush(stdout);
	return 0;
}

/* ---- send, ping ---- */

static int send_main(void)
{
	const uint64_t start = bench_now_ns(), end = start + opts.msec * 1000000ull;
	char packet[65536] = {0};
	uint64_t sent = 0, now;
	int fd[THREADS_MAX];

	for (unsigned i = 0; i < opts.threads; i++)
		fd[i] = connected_socket(i);
	do {
		for (int n = 0; n < 64; n++)
			sent += send(fd[sent % opts.threads], packet, opts.bytes, 0) == (ssize_t)opts.bytes;
		now = bench_now_ns();
	} while (now < end);
	bench_print("sent", (double)sent);
	bench_print("sec", (double)(now - start) / 1e9);
	bench_print("cpu_sec", bench_cpu_sec());
	return 0;
}

static int recv_threads_ping_main(void)
{
	static struct bench_hist hist;
	const struct timeval timeout = {.tv_usec = 100000};
	const uint64_t start = bench_now_ns(), end = start + opts.msec * 1000000ull;
	char packet[65536] = {0};
	uint64_t rounds = 0, lost = 0, before, now = start;
	int fd[THREADS_MAX];

	for (unsigned i = 0; i < opts.threads; i++) {
		fd[i] = connected_socket(i);
		setsockopt(fd[i], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	}
	while (now < end) {
		const int at = fd[(rounds + lost) % opts.threads];

		before = now;
		send(at, packet, opts.bytes, 0);
		if (recv(at, packet, sizeof(packet), 0) < 0)
			lost++;
		else
			rounds++;
		now = bench_now_ns();
		bench_hist_add(&hist, (now - before) / 2);
	}
	bench_print("rounds", (double)rounds);
	bench_print("lost", (double)lost);
	bench_print("sec", (double)(now - start) / 1e9);
	bench_print("cpu_sec", bench_cpu_sec());
	bench_hist_print(&hist);
	return 0;
}

/* ---- idle, one ---- */

static void wait_until_timeout(int fd)
{
	const struct timeval limit = {.tv_sec = opts.msec / 1000, .tv_usec = opts.msec % 1000 * 1000};
	struct pollfd one = {.fd = fd, .events = POLLIN};
	struct epoll_event event = {.events = EPOLLIN};
	struct timeval left = limit;
	char packet[64];
	fd_set set;
	int epoll_fd;

	if (strcmp(opts.how, "poll") == 0) {
		poll(&one, 1, (int)opts.msec);
	} else if (strcmp(opts.how, "select") == 0) {
		FD_ZERO(&set);
		FD_SET(fd, &set);
		select(fd + 1, &set, NULL, NULL, &left);
	} else if (strcmp(opts.how, "epoll") == 0) {
		epoll_fd = epoll_create1(0);
		epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
		epoll_wait(epoll_fd, &event, 1, (int)opts.msec);
	} else {
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		recv(fd, packet, sizeof(packet), 0);
	}
}

static int measure_idle_wait(void)
{
	const int fd = recv_threads_bound_socket(0);
	const double cpu_before = bench_cpu_sec();
	const uint64_t before = bench_now_ns();

	wait_until_timeout(fd);
	bench_print("idle_percent", 100 * (bench_cpu_sec() - cpu_before) / ((double)(bench_now_ns() - before) / 1e9));
	return 0;
}

static int measure_memory_of_one_socket(void)
{
	char line[256];
	FILE *status;
	double kb;

	recv_threads_bound_socket(0);
	status = fopen("/proc/self/status", "r");
	while (status != NULL && fgets(line, sizeof(line), status) != NULL) {
		if (sscanf(line, "VmRSS: %lf", &kb) == 1)
			bench_print("resident_kb", kb);
		if (sscanf(line, "RssAnon: %lf", &kb) == 1)
			bench_print("anonymous_kb", kb);
	}
	bench_print("cpu_sec", bench_cpu_sec());
	return 0;
}

static const struct option options[] = {
        {"local", required_argument, NULL, 'l'},
        {"peer", required_argument, NULL, 'p'},
        {"port", required_argument, NULL, 'P'},
        {"threads", required_argument, NULL, 't'},
        {"msec", required_argument, NULL, 'm'},
        {"bytes", required_argument, NULL, 'b'},
        {"how", required_argument, NULL, 'h'},
        {"echo", no_argument, &opts.echo, 1},
        {0},
};

static void recv_threads_parse_options(int argc, char **argv)
{
	int option, index = 0;

	while ((option = getopt_long(argc, argv, "", options, &index)) != -1) {
		const char *name = options[index].name;

		switch (option) {
		case 'l':
			opts.local = bench_parse_ipv4_option_or_exit(name, optarg);
			break;
		case 'p':
			opts.peer = bench_parse_ipv4_option_or_exit(name, optarg);
			break;
		case 'P':
			opts.port = (uint16_t)bench_parse_number_or_exit(name, optarg, 1, UINT16_MAX);
			break;
		case 't':
			opts.threads = bench_parse_number_or_exit(name, optarg, 1, THREADS_MAX);
			break;
		case 'm':
			opts.msec = bench_parse_number_or_exit(name, optarg, 0, 3600000);
			break;
		case 'b':
			opts.bytes = bench_parse_number_or_exit(name, optarg, 0, 65507);
			break;
		case 'h':
			opts.how = optarg;
			break;
		case 0:
			break;
		default:
			exit(2); /* getopt has named it */
		}
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} roles[] = {{"recv", recv_main},
	             {"send", send_main},
	             {"ping", recv_threads_ping_main},
	             {"idle", measure_idle_wait},
	             {"one", measure_memory_of_one_socket}};

	for (size_t i = 0; argc > 1 && i < sizeof(roles) / sizeof(roles[0]); i++) {
		if (strcmp(argv[1], roles[i].name) != 0)
			continue;
		recv_threads_parse_options(argc - 1, argv + 1);
		return roles[i].run();
	}
	if (argc > 1)
		fprintf(stderr, "recv_threads: there is no \"%s\"\n", argv[1]);
	fprintf(stderr, "usage: recv_threads recv|send|ping|idle|one [--local A] [--peer A] [--port N] [--threads N]\n"
	                "                    [--msec N] [--bytes N] [--how recv|select|poll|epoll] [--echo]\n");
	return 1;
}
