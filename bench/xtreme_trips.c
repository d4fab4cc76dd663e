/*
 * xtreme_trips - ping-pong by SocketXtreme, and by receive calls on the same sockets.
 *
 *   xtreme_trips pong|ping udp|tcp xtreme|recv LOCAL PEER PORT [ROUNDS]
 *
 * Both ends are at PORT. UDP: bound and connected. TCP: pong listens, ping connects; TCP_NODELAY. Messages have 22
 * bytes: 64 as an Ethernet frame over UDP, as ring_udp sends them. Both ends spin. ping prints half of each round trip
 * as a histogram (measure.h); pong ends by SIGTERM. With "xtreme" it runs preloaded, with VMA_SOCKETXTREME=1.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

#include "measure.h"

enum { BYTES = 22, BATCH = 16, WARM_UP = 5000, LOOK_AT_CLOCK = 256 };
#define RESEND_NS 50000000ULL /* a datagram that is not answered by then is lost */
#define GIVE_UP_NS 5000000000ULL

static struct vma_api_t *api;
static bool is_udp, receives_by_socketxtreme, echoes;
static int polled_fd, fd = -1; /* the connection; polled_fd: its listener, or itself */
static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static void send_message(int to, const void *bytes, size_t len)
{
	if (send(to, bytes, len, MSG_NOSIGNAL) != (ssize_t)len && errno != EAGAIN)
		bench_die("send");
}

/* What it says; the bytes of its packet, which is given back. */
static size_t handle_xtreme_completion(struct vma_completion_t *completion, uint64_t *first)
{
	size_t len = 0;

	if (completion->events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) {
		const int on = 1;

		fd = (int)completion->user_data;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	}
	if (completion->events & VMA_SOCKETXTREME_PACKET) {
		len = completion->packet.total_len;
		if (len >= sizeof(*first))
			memcpy(first, completion->packet.buff_lst->payload, sizeof(*first));
		if (echoes)
			send_message(fd, completion->packet.buff_lst->payload, len);
		api->socketxtreme_free_vma_packets(&completion->packet, 1);
	}
	if (completion->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		stop = 1;
	return len;
}

static size_t receive_by_xtreme(uint64_t *first)
{
	struct vma_completion_t completions[BATCH];
	const int n = api->socketxtreme_poll(polled_fd, completions, BATCH, 0);
	size_t len = 0;

	if (n < 0)
		bench_die("socketxtreme_poll");
	for (int i = 0; i < n; i++)
		len += handle_xtreme_completion(&completions[i], first);
	return len;
}

/* Bytes that have come, echoed if this end does so; *first: how the last message begins. 0: nothing. */
static size_t receive_and_maybe_echo(uint64_t *first)
{
	char bytes[2048];
	ssize_t len;

	if (receives_by_socketxtreme)
		return receive_by_xtreme(first);
	len = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	if (len <= 0) {
		stop |= len == 0 && !is_udp;
		return 0;
	}
	if (len >= (ssize_t)sizeof(*first))
		memcpy(first, bytes, sizeof(*first));
	if (echoes)
		send_message(fd, bytes, (size_t)len);
	return (size_t)len;
}

/* TCP brings its bytes whole, if not in one piece; a datagram that is lost is sent anew, under another number. */
static void do_round_trip(uint64_t *number, uint64_t *lost)
{
	const uint64_t begin = bench_now_ns();
	uint64_t message[BYTES / 8 + 1] = {0}, sent = begin, first = 0, now;
	size_t got = 0;

	message[0] = ++*number;
	send_message(fd, message, BYTES);
	for (unsigned spins = 1; !stop; spins++) {
		got += receive_and_maybe_echo(&first);
		if (is_udp ? first == *number : got == BYTES)
			return;
		if (spins % LOOK_AT_CLOCK != 0)
			continue;
		now = bench_now_ns();
		if (now - begin > GIVE_UP_NS) {
			errno = ETIMEDOUT;
			bench_die("a round trip");
		}
		if (!is_udp || now - sent < RESEND_NS)
			continue;
		++*lost;
		message[0] = ++*number;
		send_message(fd, message, BYTES);
		sent = now;
	}
}

static void measure_round_trips(unsigned rounds)
{
	static struct bench_hist hist;
	uint64_t number = 0, lost = 0, before, now;

	for (unsigned i = 0; i < WARM_UP; i++)
		do_round_trip(&number, &lost);
	lost = 0;
	before = bench_now_ns();
	for (unsigned i = 0; i < rounds && !stop; i++) {
		do_round_trip(&number, &lost);
		now = bench_now_ns();
		bench_hist_add(&hist, (now - before) / 2);
		before = now;
	}
	bench_print("lost", (double)lost);
	bench_hist_print(&hist);
}

static int open_socket(const struct sockaddr_in *local)
{
	const int on = 1, opened = socket(AF_INET, is_udp ? SOCK_DGRAM : SOCK_STREAM, 0);

	if (opened < 0 || setsockopt(opened, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
	    bind(opened, (const struct sockaddr *)local, sizeof(*local)) != 0)
		bench_die("bind");
	if (!is_udp)
		setsockopt(opened, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return opened;
}

static void open_connected_socket(const struct sockaddr_in *local, const struct sockaddr_in *peer)
{
	polled_fd = fd = open_socket(local);
	if (connect(fd, (const struct sockaddr *)peer, sizeof(*peer)) != 0)
		bench_die("connect");
}

/* By SocketXtreme the connection accepts itself: the first completion tells its descriptor. */
static void listen_and_accept(const struct sockaddr_in *local)
{
	const int on = 1;

	polled_fd = open_socket(local);
	if (listen(polled_fd, 1) != 0)
		bench_die("listen");
	printf("ready\n");
	fflush(stdout);
	if (receives_by_socketxtreme)
		return;
	fd = accept(polled_fd, NULL, NULL);
	if (fd < 0)
		bench_die("accept");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int main(int argc, char **argv)
{
	struct sockaddr_in local = {.sin_family = AF_INET}, peer = {.sin_family = AF_INET};
	const struct sigaction action = {.sa_handler = on_signal};
	uint64_t first;

	if (argc < 7) {
		fprintf(stderr, "usage: %s pong|ping udp|tcp xtreme|recv LOCAL PEER PORT [ROUNDS]\n", argv[0]);
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	echoes = strcmp(argv[1], "pong") == 0;
	is_udp = strcmp(argv[2], "udp") == 0;
	receives_by_socketxtreme = strcmp(argv[3], "xtreme") == 0;
	local.sin_addr = bench_parse_ipv4_option_or_exit("LOCAL", argv[4]);
	peer.sin_addr = bench_parse_ipv4_option_or_exit("PEER", argv[5]);
	local.sin_port = peer.sin_port = htons((uint16_t)bench_parse_number_or_exit("PORT", argv[6], 1, UINT16_MAX));
	api = receives_by_socketxtreme ? vma_get_api() : NULL;
	if (receives_by_socketxtreme &&
	    (api == NULL || !(api->vma_extra_supported_mask & VMA_EXTRA_API_SOCKETXTREME_POLL))) {
		fprintf(stderr, "%s: preload the library, with VMA_SOCKETXTREME=1\n", argv[0]);
		return 1;
	}
	if (!is_udp && echoes) {
		listen_and_accept(&local);
	} else {
		open_connected_socket(&local, &peer);
		printf("ready\n");
		fflush(stdout);
	}
	if (!echoes) {
		measure_round_trips(argc > 7 ? bench_parse_number_or_exit("ROUNDS", argv[7], 1, INT32_MAX) : 100000);
		return 0;
	}
	while (!stop)
		receive_and_maybe_echo(&first);
	return 0;
}
