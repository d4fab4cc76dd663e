/*
 * tcp_load - plain TCP sockets, as any program uses them, for what sockperf, redis and iperf3 do not measure; run as it
 * is and with the library preloaded.
 *
 *   serve      answers each connection as its first byte asks; until SIGTERM
 *   bulk       one stream for --msec: bytes that have arrived at the server, over the time until it says so
 *   transfers  one connection, a request for --bytes after the other: how long each takes
 *   bursts     1 MB written at a time, then 50 ms of computing, for --msec
 *   pauses     reads 1 MB of an endless stream at a time, then computes for 50 ms, for --msec
 *   connect    connects and closes, for --msec; with --threads N as many threads do, and their rates are added
 *   closed     connects, is closed by the server, and closes, for --msec
 *   idle       --count connections that are made and left alone, half a second and then for --msec: memory, CPU
 *
 * Output as measure.h says.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "measure.h"

enum { CHUNK = 1 << 20, EVENTS = 256 };

static struct {
	struct in_addr peer, local;
	uint16_t port;
	unsigned msec, bytes, count;
	unsigned threads;
} opts = {.port = 7400, .msec = 1000, .bytes = 65536, .count = 10000, .threads = 1};
static char bytes[CHUNK];
static volatile sig_atomic_t ended;

static void tcp_load_on_end(int sig)
{
	(void)sig;
	ended = 1;
}

/* ---- the server ---- */

enum kind {
	UNKNOWN,
	CONNECTION_COUNTS_RECEIVED = 'B',  /* counts until the end, then tells how much */
	CONNECTION_REQUEST_RESPONSE = 'T', /* 4 bytes: a size; then for every byte so many bytes */
	CONNECTION_SENDS_FOR_EVER = 'G',   /* sends without end */
	CONNECTION_STAYS_IDLE = 'I',
	CLOSED = 'C', /* at once */
};

struct connection {
	int fd;
	char kind;
	uint32_t size, have_size;
	uint64_t received, owed;
};

static void end_connection(struct connection *c)
{
	close(c->fd);
	free(c);
}

static void tcp_load_send_received_count(struct connection *c)
{
	uint64_t sum = c->received;

	if (send(c->fd, &sum, sizeof(sum), MSG_NOSIGNAL) != sizeof(sum))
		fprintf(stderr, "tcp_load: the sum could not be told\n");
	end_connection(c);
}

/* False: the connection has ended. */
static int send_owed_bytes(struct connection *c)
{
	while (c->owed > 0) {
		size_t piece = c->owed < sizeof(bytes) && c->kind != CONNECTION_SENDS_FOR_EVER ? (size_t)c->owed
		                                                                               : sizeof(bytes);
		ssize_t n = send(c->fd, bytes, piece, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			return 1;
		if (n <= 0) {
			end_connection(c);
			return 0;
		}
		if (c->kind != CONNECTION_SENDS_FOR_EVER)
			c->owed -= (uint64_t)n;
	}
	return 1;
}

static void tcp_load_handle_received(struct connection *c, const char *at, size_t n)
{
	if (c->kind == UNKNOWN && n > 0) {
		c->kind = *at++;
		n--;
		if (c->kind == CONNECTION_SENDS_FOR_EVER)
			c->owed = 1;
	}
	while (c->kind == CONNECTION_REQUEST_RESPONSE && n > 0 && c->have_size < 4) {
		c->size |= (uint32_t)(unsigned char)*at++ << 8 * c->have_size++;
		n--;
	}
	if (c->kind == CONNECTION_COUNTS_RECEIVED)
		c->received += n;
	else if (c->kind == CONNECTION_REQUEST_RESPONSE)
		c->owed += n * (uint64_t)c->size;
}

static void tcp_load_on_readable(struct connection *c)
{
	for (;;) {
		ssize_t n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0) {
			if (n == 0 && c->kind == CONNECTION_COUNTS_RECEIVED)
				tcp_load_send_received_count(c);
			else
				end_connection(c);
			return;
		}
		tcp_load_handle_received(c, bytes, (size_t)n);
		if (c->kind == CLOSED) {
			end_connection(c);
			return;
		}
	}
	send_owed_bytes(c);
}

static void tcp_load_accept_all(int listener, int set)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
	int fd;

	while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
		struct connection *c = calloc(1, sizeof(*c));

		if (c == NULL)
			bench_die("memory");
		c->fd = fd;
		event.data.ptr = c;
		if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
			bench_die("epoll_ctl");
	}
	if (errno != EAGAIN && errno != ECONNABORTED)
		bench_die("accept");
}

static struct sockaddr_in tcp_load_address_of(struct in_addr addr)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(opts.port), .sin_addr = addr};
}

static void tcp_load_serve(void)
{
	const struct sigaction end = {.sa_handler = tcp_load_on_end};
	struct sockaddr_in local = tcp_load_address_of(opts.local);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), set = epoll_create1(0), one = 1;
	struct epoll_event event = {.events = EPOLLIN}, events[EVENTS];

	sigaction(SIGTERM, &end, NULL);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&local, sizeof(local)) < 0 || listen(listener, 4096) < 0 ||
	    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) < 0)
		bench_die("listen");
	printf("ready\n");
	fflush(stdout);
	while (!ended) {
		int n = epoll_wait(set, events, EVENTS, -1);

		for (int i = 0; i < n; i++) {
			struct connection *c = events[i].data.ptr;

			if (c == NULL)
				tcp_load_accept_all(listener, set);
			else if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
				tcp_load_on_readable(c);
			else
				send_owed_bytes(c);
		}
	}
	bench_print("cpu_sec", bench_cpu_sec());
}

/* ---- clients ---- */

static int tcp_load_connect(void)
{
	struct sockaddr_in peer = tcp_load_address_of(opts.peer);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&peer, sizeof(peer)) < 0)
		bench_die("connect");
	return fd;
}

static void tcp_load_send_all(int fd, const void *data, size_t size)
{
	const char *at = data;

	while (size > 0) {
		ssize_t n = send(fd, at, size, MSG_NOSIGNAL);

		if (n <= 0)
			bench_die("send");
		at += n;
		size -= (size_t)n;
	}
}

static void tcp_load_read_all(int fd, size_t size)
{
	while (size > 0) {
		ssize_t n = recv(fd, bytes, size < sizeof(bytes) ? size : sizeof(bytes), 0);

		if (n <= 0)
			bench_die("recv");
		size -= (size_t)n;
	}
}

static void burn_cpu_for_msec(unsigned msec)
{
	uint64_t end = bench_now_ns() + msec * 1000000ULL;

	while (bench_now_ns() < end)
		;
}

/* The server's sum, which comes after the last byte has. */
static void tcp_load_print_bulk_result(int fd, uint64_t sent, uint64_t start)
{
	uint64_t sum = 0;

	shutdown(fd, SHUT_WR);
	if (recv(fd, &sum, sizeof(sum), MSG_WAITALL) != sizeof(sum))
		bench_die("the server's sum");
	if (sum != sent) {
		fprintf(stderr, "tcp_load: %lu bytes were sent, %lu arrived\n", sent, sum);
		exit(1);
	}
	bench_print("bits_per_sec", (double)sum * 8e9 / (double)(bench_now_ns() - start));
	close(fd);
}

static void tcp_load_bulk(unsigned pause_msec)
{
	int fd = tcp_load_connect();
	uint64_t start = bench_now_ns(), end = start + opts.msec * 1000000ULL, sent = 0;

	tcp_load_send_all(fd, "B", 1);
	while (bench_now_ns() < end) {
		tcp_load_send_all(fd, bytes, sizeof(bytes));
		sent += sizeof(bytes);
		if (pause_msec != 0)
			burn_cpu_for_msec(pause_msec);
	}
	tcp_load_print_bulk_result(fd, sent, start);
}

static void bench_receive_with_pauses(void)
{
	int fd = tcp_load_connect();
	uint64_t start = bench_now_ns(), end = start + opts.msec * 1000000ULL, got = 0;

	tcp_load_send_all(fd, "G", 1);
	while (bench_now_ns() < end) {
		tcp_load_read_all(fd, CHUNK);
		got += CHUNK;
		burn_cpu_for_msec(50);
	}
	bench_print("bits_per_sec", (double)got * 8e9 / (double)(bench_now_ns() - start));
	close(fd);
}

static void bench_request_response_transfers(void)
{
	static struct bench_hist hist;
	int fd = tcp_load_connect(), one = 1;
	uint64_t end = bench_now_ns() + opts.msec * 1000000ULL;
	char ask[5] = {CONNECTION_REQUEST_RESPONSE, (char)opts.bytes, (char)(opts.bytes >> 8), (char)(opts.bytes >> 16),
	               (char)(opts.bytes >> 24)};

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	tcp_load_send_all(fd, ask, sizeof(ask));
	while (bench_now_ns() < end) {
		uint64_t start = bench_now_ns();

		tcp_load_send_all(fd, "?", 1);
		tcp_load_read_all(fd, opts.bytes);
		bench_hist_add(&hist, bench_now_ns() - start);
	}
	bench_print("transfers", (double)hist.count);
	bench_hist_print(&hist);
	close(fd);
}

static _Atomic uint64_t connections; /* of all threads */

static void *tcp_load_connect_thread(void *arg)
{
	const uint64_t *end = arg;

	while (bench_now_ns() < *end) {
		close(tcp_load_connect());
		connections++;
	}
	return NULL;
}

static void tcp_load_connects_by_threads(void)
{
	uint64_t start = bench_now_ns(), end = start + opts.msec * 1000000ULL;
	pthread_t thread[64];

	for (unsigned i = 0; i < opts.threads; i++)
		if (pthread_create(&thread[i], NULL, tcp_load_connect_thread, &end) != 0)
			bench_die("pthread_create");
	for (unsigned i = 0; i < opts.threads; i++)
		pthread_join(thread[i], NULL);
	bench_print("per_sec", (double)connections * 1e9 / (double)(bench_now_ns() - start));
}

static void bench_connect_and_close_latency(int server_closes)
{
	static struct bench_hist hist, both;
	uint64_t start = bench_now_ns(), end = start + opts.msec * 1000000ULL, begin, made;

	while ((begin = bench_now_ns()) < end) {
		int fd = tcp_load_connect();

		made = bench_now_ns();
		bench_hist_add(&hist, made - begin);
		if (server_closes) {
			tcp_load_send_all(fd, "C", 1);
			if (recv(fd, bytes, 1, 0) != 0)
				bench_die("the server's end");
		}
		close(fd);
		bench_hist_add(&both, bench_now_ns() - begin);
	}
	bench_print("per_sec", (double)both.count * 1e9 / (double)(bench_now_ns() - start));
	bench_print("both_p50_ns", bench_hist_quantile(&both, 0.5));
	bench_hist_print(&hist);
}

static long resident_kb(void)
{
	char line[256];
	long kb = 0;
	FILE *file = fopen("/proc/self/status", "re");

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		if (sscanf(line, "VmRSS: %ld", &kb) == 1)
			break;
	if (file != NULL)
		fclose(file);
	return kb;
}

static void tcp_load_idle(void)
{
	const struct timespec rest = {.tv_sec = opts.msec / 1000, .tv_nsec = (long)(opts.msec % 1000) * 1000000};
	const struct timespec last_acks = {.tv_nsec = 500000000};
	long before = resident_kb();
	double cpu;

	for (unsigned i = 0; i < opts.count; i++)
		tcp_load_send_all(tcp_load_connect(), "I", 1);
	nanosleep(&last_acks, NULL); /* they are delayed, and as many as there are connections */
	cpu = bench_cpu_sec();
	nanosleep(&rest, NULL);
	bench_print("idle_percent", (bench_cpu_sec() - cpu) * 1e5 / opts.msec);
	bench_print("connections_kb", (double)(resident_kb() - before));
	bench_print("resident_kb", (double)resident_kb());
}

static void tcp_load_read_options(int argc, char **argv)
{
	static const struct option options[] = {
	        {"peer", required_argument, NULL, 'p'},    {"local", required_argument, NULL, 'l'},
	        {"port", required_argument, NULL, 'P'},    {"msec", required_argument, NULL, 'm'},
	        {"bytes", required_argument, NULL, 'b'},   {"count", required_argument, NULL, 'c'},
	        {"threads", required_argument, NULL, 't'}, {0}};
	int option, index = 0;

	while ((option = getopt_long(argc, argv, "", options, &index)) != -1) {
		const char *name = options[index].name;

		if (option == 'p')
			opts.peer = bench_parse_ipv4_option_or_exit(name, optarg);
		else if (option == 'l')
			opts.local = bench_parse_ipv4_option_or_exit(name, optarg);
		else if (option == 'P')
			opts.port = (uint16_t)bench_parse_number_or_exit(name, optarg, 1, UINT16_MAX);
		else if (option == 'm')
			opts.msec = bench_parse_number_or_exit(name, optarg, 0, 3600000);
		else if (option == 'b')
			opts.bytes = bench_parse_number_or_exit(name, optarg, 0, INT32_MAX);
		else if (option == 'c')
			opts.count = bench_parse_number_or_exit(name, optarg, 0, INT32_MAX);
		else if (option == 't')
			opts.threads = bench_parse_number_or_exit(name, optarg, 1, 64);
		else
			exit(2); /* getopt has named it */
	}
}

int main(int argc, char **argv)
{
	struct rlimit files = {65536, 65536};
	const char *role = argc > 1 ? argv[1] : "";

	tcp_load_read_options(argc - 1, argv + 1);
	setrlimit(RLIMIT_NOFILE, &files);
	signal(SIGPIPE, SIG_IGN);
	if (strcmp(role, "serve") == 0)
		tcp_load_serve();
	else if (strcmp(role, "bulk") == 0)
		tcp_load_bulk(0);
	else if (strcmp(role, "bursts") == 0)
		tcp_load_bulk(50);
	else if (strcmp(role, "pauses") == 0)
		bench_receive_with_pauses();
	else if (strcmp(role, "transfers") == 0)
		bench_request_response_transfers();
	else if (strcmp(role, "connect") == 0 && opts.threads > 1)
		tcp_load_connects_by_threads();
	else if (strcmp(role, "connect") == 0)
		bench_connect_and_close_latency(0);
	else if (strcmp(role, "closed") == 0)
		bench_connect_and_close_latency(1);
	else if (strcmp(role, "idle") == 0)
		tcp_load_idle();
	else {
		if (argc > 1)
			fprintf(stderr, "tcp_load: there is no \"%s\"\n", role);
		fprintf(stderr,
		        "usage: tcp_load serve|bulk|transfers|bursts|pauses|connect|closed|idle --peer IP --local IP "
		        "[--port N] [--msec N] [--bytes N] [--count N] [--threads N]\n");
		return 2;
	}
	return 0;
}
