/*
 * extra_xtreme - SocketXtreme, for tests/e2e/extra_xtreme.sh.
 *
 *   send ADDRESS PORT COUNT           numbered datagrams to an echo server, each answer compared; by plain calls
 *   udp ADDRESS PORT COUNT            echoes so many datagrams
 *   flood ADDRESS PORT COUNT          receives so many, and says by how much its memory grew meanwhile
 *   hold ADDRESS PORT COUNT           frees nothing; waits to be killed
 *   misuse ADDRESS PORT COUNT         frees twice, frees strangers', polls what is closed, ...
 *   group ADDRESS PORT COUNT          receives so many datagrams, by polls of the ring only
 *   mixed ADDRESS PORT COUNT          receives so many datagrams, by polls and by receive calls in turn
 *   keep_tcp ADDRESS PORT COUNT       a server that frees nothing; when nothing comes for a second, it waits to be killed
 *   off ADDRESS PORT COUNT            without VMA_SOCKETXTREME
 *   shutdown ADDRESS PORT COUNT       echoes so many datagrams, gives the next to the kernel, echoes as many by recv
 *   tcp ADDRESS PORT COUNT            a server that echoes so many connections
 *   client ADDRESS PORT COUNT         a client of an echo server: connects, sends so many bytes, compares
 *   greedy ADDRESS PORT COUNT         a server that frees nothing until its peer stands still, then all
 *   reset ADDRESS PORT COUNT          a server whose peer resets
 *   fork_udp, fork_tcp ADDRESS PORT COUNT  a child that makes no call but socketxtreme_poll on its parent's socket gets so
 *                                     many datagrams; or connections, each until its end
 * After "ready" packets may come. The last line says what was seen.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

#include "datagram.h"

/* RESIDENT_GROWTH_LIMIT_KIB: frames that a busy machine lets fill for the first time; 100000 packets that leak are 200
 * MB. */
enum {
	KEPT_STREAM_MIN = 16000, /* bytes: frames of them all lie in the process's hands */
	BATCH = 16,
	TEST_WAIT_LIMIT_S = 60,
	HELD_MAX = 16384,
	FDS_MAX = 4096,
	RESIDENT_GROWTH_LIMIT_KIB = 32768
};

#define XTREME_BITS                                                                                                    \
	(VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |                               \
	 VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF)

static struct vma_api_t *api;
static unsigned count, wrong;
static struct sockaddr_in address;
static const char *why = "";

static void fail(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

static void expect_that(bool is_so, const char *what)
{
	if (!is_so) {
		printf("not so: %s (errno %s)\n", what, strerror(errno));
		wrong++;
		why = what;
	}
}

static void expect_errno(int rc, int wanted, const char *what)
{
	if (rc != -1 || errno != wanted)
		printf("%s: %d, %s\n", what, rc, strerror(errno));
	expect_that(rc == -1 && errno == wanted, what);
}

static double now_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int open_socket(int type)
{
	const int fd = socket(AF_INET, type, 0), on = 1, large = 1 << 20;

	if (fd < 0)
		fail("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (type == SOCK_DGRAM)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof(large));
	return fd;
}

/* GROUP_AT=ADDRESS: its address is a multicast group, which it joins on the interface of that address. */
static int open_bound_or_listening_socket(int type)
{
	struct ip_mreq group = {.imr_multiaddr = address.sin_addr};
	const int fd = open_socket(type);

	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("bind");
	if (getenv("GROUP_AT") != NULL && (inet_pton(AF_INET, getenv("GROUP_AT"), &group.imr_interface) != 1 ||
	                                   setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof(group)) != 0))
		fail("IP_ADD_MEMBERSHIP");
	if (type == SOCK_STREAM && listen(fd, 64) != 0)
		fail("listen");
	return fd;
}

static void say_ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static int xtreme_poll_or_fail(int fd, struct vma_completion_t *completions, unsigned n)
{
	const int got = api->socketxtreme_poll(fd, completions, n, 0);

	if (got < 0)
		fail("socketxtreme_poll");
	return got;
}

/* ---- UDP ---- */

static void run_udp_sender_checking_echoes(void)
{
	const int fd = open_socket(SOCK_DGRAM);
	struct timeval receive_timeout = {.tv_sec = 10};
	unsigned answers = 0;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive_timeout, sizeof(receive_timeout));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("connect");
	for (unsigned i = 0; i < count; i++) {
		struct datagram datagram;
		char room[256];
		ssize_t len;

		fill_datagram(&datagram, i);
		if (send(fd, &datagram, sizeof(datagram), 0) != sizeof(datagram))
			fail("send");
		if (i % 8 != 7 && i + 1 != count)
			continue;
		for (; answers <= i; answers++) {
			len = recv(fd, room, sizeof(room), 0);
			wrong += !is_datagram_intact(room, (size_t)len);
		}
	}
	printf("answers %u wrong %u\n", answers, wrong);
}

static int get_ring_fd_of_socket(int fd)
{
	int ring = -1;

	if (api->get_socket_rings_fds(fd, &ring, 1) != 1)
		fail("get_socket_rings_fds");
	return ring;
}

/* Its ring, the socket and an epoll set are polled in turn. */
static void run_udp_echo_server_by_xtreme(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_DGRAM), set = epoll_create1(0),
	          ring = get_ring_fd_of_socket(fd);
	struct epoll_event event = {.events = EPOLLIN};
	struct vma_completion_t completions[BATCH];
	unsigned echoed = 0, turns = 0;
	double until;

	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
		fail("epoll_ctl");
	say_ready();
	until = now_seconds() + TEST_WAIT_LIMIT_S;
	while (echoed < count && (++turns % 1024 != 0 || now_seconds() < until)) {
		const int n = xtreme_poll_or_fail(turns % 3 == 0   ? ring
		                                  : turns % 3 == 1 ? fd
		                                                   : set,
		                                  completions, turns % 5 != 0 ? BATCH : 1);

		for (int i = 0; i < n; i++) {
			struct vma_completion_t *c = &completions[i];

			expect_that(c->events == VMA_SOCKETXTREME_PACKET, "a packet, and nothing else");
			expect_that((int)c->user_data == fd, "user_data is the descriptor");
			expect_that(c->packet.num_bufs == 1, "one buffer");
			wrong += !is_datagram_intact(c->packet.buff_lst->payload, c->packet.total_len);
			if (sendto(fd, c->packet.buff_lst->payload, c->packet.total_len, 0, (struct sockaddr *)&c->src,
			           sizeof(c->src)) != c->packet.total_len)
				fail("sendto");
			if (api->socketxtreme_free_vma_packets(&c->packet, 1) != 0)
				fail("free");
			echoed++;
		}
	}
	expect_that(xtreme_poll_or_fail(ring, completions, BATCH) == 0 &&
	                    poll(&(struct pollfd){.fd = ring, .events = POLLIN}, 1, 0) == 0,
	            "a ring whose packets were polled is not readable");
	printf("echoed %u wrong %u\n", echoed, wrong);
}

static long resident_kib(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (file == NULL || fscanf(file, "%*s %ld", &pages) != 1)
		fail("statm");
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void run_xtreme_bulk_receiver(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_DGRAM);
	struct vma_completion_t completions[BATCH];
	struct vma_packet_desc_t packets[BATCH];
	unsigned seen = 0, turns = 0;
	long before = 0;
	double until;

	say_ready();
	until = now_seconds() + TEST_WAIT_LIMIT_S;
	while (seen < count && (++turns % 1024 != 0 || now_seconds() < until)) {
		const int n = xtreme_poll_or_fail(fd, completions, BATCH);

		for (int i = 0; i < n; i++) {
			wrong += !is_datagram_intact(completions[i].packet.buff_lst->payload,
			                             completions[i].packet.total_len);
			packets[i] = completions[i].packet;
		}
		if (n != 0 && api->socketxtreme_free_vma_packets(packets, n) != 0)
			fail("free");
		seen += (unsigned)n;
		if (before == 0 && seen >= count / 10)
			before = resident_kib();
	}
	printf("seen %u wrong %u grown %s\n", seen, wrong,
	       resident_kib() - before < RESIDENT_GROWTH_LIMIT_KIB ? "no" : "yes");
}

static void run_receiver_holding_packets(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_DGRAM);
	struct vma_completion_t completions[BATCH];
	unsigned held = 0, turns = 0;
	double until, last = now_seconds();
	const int small = 100000;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	say_ready();
	until = now_seconds() + TEST_WAIT_LIMIT_S;
	while (held < count && (++turns % 1024 != 0 || (now_seconds() < until && now_seconds() < last + 3))) {
		const int n = xtreme_poll_or_fail(fd, completions, BATCH);

		held += (unsigned)n;
		if (n != 0)
			last = now_seconds();
	}
	printf("held %u\n", held);
	fflush(stdout);
	for (;;)
		pause();
}

static void *thread_freeing_xtreme_packet(void *arg)
{
	struct vma_packet_desc_t *packet = arg;

	if (api->socketxtreme_free_vma_packets(packet, 1) != 0)
		wrong++;
	return NULL;
}

static struct vma_completion_t await_packet(int fd)
{
	struct vma_completion_t completion = {.events = 0};
	const double until = now_seconds() + TEST_WAIT_LIMIT_S;

	while (xtreme_poll_or_fail(fd, &completion, 1) == 0)
		if (now_seconds() > until)
			fail("no packet");
	return completion;
}

static void run_xtreme_calls_with_bad_args(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_DGRAM), pipe_end = open("/dev/null", O_RDONLY);
	struct vma_buff_t own = {.len = 1}, *held;
	struct vma_packet_desc_t strange = {.buff_lst = &own};
	struct vma_completion_t completion, after;
	const uint64_t data = 0xfeedfacecafe;
	uint64_t got = 0;
	socklen_t len = sizeof(got);
	pthread_t thread;
	int ring;

	say_ready();
	completion = await_packet(fd);
	held = completion.packet.buff_lst;
	expect_that(api->socketxtreme_ref_vma_buff(held) == 2, "a second reference");
	expect_that(api->socketxtreme_free_vma_packets(&completion.packet, 1) == 0, "free the packet");
	expect_that(is_datagram_intact(held->payload, held->len), "a reference keeps the bytes");
	held->next = (void *)(uintptr_t)4096;
	held->len = 0;
	expect_that(api->socketxtreme_free_vma_buff(held) == 0, "free the buffer");
	expect_errno(api->socketxtreme_free_vma_buff(held), ENOENT, "free it twice");
	expect_errno(api->socketxtreme_ref_vma_buff(held), ENOENT, "a reference to what is free");
	expect_errno(api->socketxtreme_free_vma_packets(&completion.packet, 1), ENOENT, "free the packet twice");
	expect_errno(api->socketxtreme_free_vma_packets(&strange, 1), EINVAL, "free a stranger");
	expect_errno(api->socketxtreme_free_vma_buff(NULL), EINVAL, "free NULL");
	expect_errno(api->socketxtreme_free_vma_packets((void *)(uintptr_t)64, 1), EFAULT, "packets that are nowhere");
	expect_errno(api->socketxtreme_free_vma_packets(&strange, -1), EINVAL, "less than none");
	expect_errno(api->socketxtreme_poll(-1, &completion, 1, 0), EBADF, "poll -1");
	expect_errno(api->socketxtreme_poll(pipe_end, &completion, 1, 0), EBADF, "poll a file");
	expect_errno(api->socketxtreme_poll(fd, &completion, 1, 5), EINVAL, "flags");
	expect_errno(api->socketxtreme_poll(fd, NULL, 1, 0), EFAULT, "no array");
	expect_that(api->socketxtreme_poll(fd, NULL, 0, 0) == 0, "an array of nothing");
	expect_that((api->vma_extra_supported_mask & XTREME_BITS) == XTREME_BITS, "the mask");
	ring = get_ring_fd_of_socket(fd);
	expect_that(close(ring) == 0, "the program closes its ring's descriptor");
	expect_errno(api->socketxtreme_poll(ring, &completion, 1, 0), EBADF, "poll a ring's descriptor that is closed");
	ring = get_ring_fd_of_socket(fd);
	expect_that(api->socketxtreme_poll(ring, NULL, 0, 0) == 0, "ask for it anew");
	expect_errno(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 4), EINVAL, "half a number");
	expect_that(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 8) == 0, "user data");
	expect_that(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &got, &len) == 0 && got == data, "user data back");
	completion = await_packet(fd);
	expect_that(completion.user_data == data, "user data in a completion");
	pthread_create(&thread, NULL, thread_freeing_xtreme_packet, &completion.packet);
	pthread_join(thread, NULL);
	completion = await_packet(fd);
	/* An array that is not there takes nothing. */
	while (api->socketxtreme_poll(fd, (void *)(uintptr_t)64, 1, 0) == 0)
		;
	expect_that(errno == EFAULT, "a bad array when something is there");
	after = await_packet(fd);
	expect_that(is_datagram_intact(after.packet.buff_lst->payload, after.packet.total_len),
	            "and it is still there");
	close(fd);
	expect_errno(api->socketxtreme_poll(fd, &completion, 1, 0), EBADF, "poll what is closed");
	expect_that(is_datagram_intact(completion.packet.buff_lst->payload, completion.packet.total_len),
	            "bytes after the close");
	expect_that(api->socketxtreme_free_vma_packets(&completion.packet, 1) == 0, "free after the close");
	expect_that(api->socketxtreme_free_vma_packets(&after.packet, 1) == 0, "free another after the close");
	printf("wrong %u %s\n", wrong, why);
}

static void check_and_echo_datagram(int fd, const void *bytes, size_t len, const struct sockaddr_in *to)
{
	wrong += !is_datagram_intact(bytes, len);
	if (sendto(fd, bytes, len, 0, (const struct sockaddr *)to, sizeof(*to)) != (ssize_t)len)
		fail("sendto");
}

static void run_receiver_switching_xtreme_to_recv(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_DGRAM), stream = open_socket(SOCK_STREAM);
	struct timeval receive_timeout = {.tv_sec = TEST_WAIT_LIMIT_S};
	struct vma_completion_t completion;
	unsigned by_poll = 0, by_recv = 0;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive_timeout, sizeof(receive_timeout));
	say_ready();
	for (; by_poll < count; by_poll++) {
		completion = await_packet(fd);
		check_and_echo_datagram(fd, completion.packet.buff_lst->payload, completion.packet.total_len,
		                        &completion.src);
		if (api->socketxtreme_free_vma_packets(&completion.packet, 1) != 0)
			fail("free");
	}
	expect_that(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, NULL, 0) == 0, "SO_VMA_SHUTDOWN_RX");
	expect_errno(setsockopt(stream, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, NULL, 0), EOPNOTSUPP, "that of a connection");
	printf("shut\n");
	fflush(stdout);
	for (; by_recv < count; by_recv++) {
		struct sockaddr_in from;
		socklen_t from_len = sizeof(from);
		char room[256];
		const ssize_t len = recvfrom(fd, room, sizeof(room), 0, (struct sockaddr *)&from, &from_len);

		if (len < 0)
			fail("recvfrom");
		/* The socket may be on no ring now, and then there is nothing to poll. */
		expect_that(api->socketxtreme_poll(fd, &completion, 1, 0) <= 0, "no completion any more");
		check_and_echo_datagram(fd, room, (size_t)len, &from);
	}
	printf("polled %u received %u wrong %u %s\n", by_poll, by_recv, wrong, why);
}

static void run_xtreme_calls_when_disabled(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_DGRAM);
	struct vma_completion_t completion;
	const uint64_t data = 1;

	expect_that((api->vma_extra_supported_mask & XTREME_BITS) == 0, "the mask");
	expect_errno(api->socketxtreme_poll(fd, &completion, 1, 0), EOPNOTSUPP, "socketxtreme_poll");
	expect_errno(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 8), ENOPROTOOPT, "SO_VMA_USER_DATA");
	expect_errno(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, &data, 8), ENOPROTOOPT, "SO_VMA_SHUTDOWN_RX");
	printf("wrong %u %s\n", wrong, why);
}

/* ---- TCP ---- */

static uint8_t stream_byte(size_t at)
{
	return (uint8_t)(at * 7 + at / 251);
}

static bool is_stream_pattern(const struct vma_buff_t *buff, size_t at)
{
	const uint8_t *bytes = buff->payload;

	for (size_t i = 0; i < buff->len; i++)
		if (bytes[i] != stream_byte(at + i))
			return false;
	return true;
}

static void send_all(int fd, const void *bytes, size_t len)
{
	for (size_t done = 0; done < len;) {
		const ssize_t sent = send(fd, (const char *)bytes + done, len - done, MSG_NOSIGNAL);

		if (sent < 0)
			fail("send");
		done += (size_t)sent;
	}
}

/* Each connection's bytes go back from where they lie; its end is known by a completion. */
static void run_tcp_echo_server_by_xtreme(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_STREAM), ring = get_ring_fd_of_socket(fd);
	static size_t got[FDS_MAX];
	static bool is_open[FDS_MAX];
	static unsigned ended_by_poll[FDS_MAX];
	unsigned accepted = 0, ended = 0, turns = 0, pieces = 0;
	struct vma_completion_t completions[BATCH];
	double until;

	say_ready();
	until = now_seconds() + TEST_WAIT_LIMIT_S;
	while (ended < count && (++turns % 1024 != 0 || now_seconds() < until)) {
		const int n = xtreme_poll_or_fail(ring, completions, turns % 2 != 0 ? BATCH : 1);

		for (int i = 0; i < n; i++) {
			struct vma_completion_t *c = &completions[i];
			const int conn = (int)c->user_data;

			expect_that(conn > 0 && conn < FDS_MAX && conn != fd, "a connection's completion");
			if (c->events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) {
				expect_that(c->listen_fd == fd, "the listener is named");
				expect_that(c->src.sin_port != 0 && c->src.sin_family == AF_INET, "so is the peer");
				expect_that(!is_open[conn], "it is new");
				is_open[conn] = true;
				got[conn] = 0;
				accepted++;
			}
			/* Room that comes after the end is told after it, perhaps by the same poll. */
			if (!is_open[conn] && ended_by_poll[conn] == turns && c->events == EPOLLOUT)
				continue;
			expect_that(is_open[conn], c->events & VMA_SOCKETXTREME_PACKET
			                                   ? "its packet is of one that is known"
			                                   : "its event is of one that is known");
			if (c->events & VMA_SOCKETXTREME_PACKET) {
				pieces++;
				wrong += !is_stream_pattern(c->packet.buff_lst, got[conn]);
				got[conn] += c->packet.total_len;
				send_all(conn, c->packet.buff_lst->payload, c->packet.total_len);
				if (api->socketxtreme_free_vma_packets(&c->packet, 1) != 0)
					fail("free");
			}
			if (c->events & EPOLLRDHUP) {
				expect_that((c->events & EPOLLIN) != 0, "the end is EPOLLIN, too");
				is_open[conn] = false;
				ended_by_poll[conn] = turns;
				close(conn);
				ended++;
			}
		}
	}
	printf("accepted %u ended %u pieces %s wrong %u %s\n", accepted, ended, pieces != 0 ? "some" : "none", wrong,
	       why);
}

static void run_tcp_client_by_xtreme(void)
{
	const int fd = open_socket(SOCK_STREAM | SOCK_NONBLOCK);
	static uint8_t chunk[4096];
	size_t sent = 0, got = 0;
	bool connected = false, ended = false;
	const double until = now_seconds() + TEST_WAIT_LIMIT_S;

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 || errno != EINPROGRESS)
		fail("connect");
	while (!ended && now_seconds() < until) {
		struct vma_completion_t c;

		if (xtreme_poll_or_fail(fd, &c, 1) == 1) {
			expect_that((int)c.user_data == fd, "its own completion");
			connected |= (c.events & EPOLLOUT) != 0;
			if (c.events & VMA_SOCKETXTREME_PACKET) {
				wrong += !is_stream_pattern(c.packet.buff_lst, got);
				got += c.packet.total_len;
				api->socketxtreme_free_vma_packets(&c.packet, 1);
			}
			ended |= (c.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
		}
		if (connected && sent < count) {
			const size_t here = count - sent < sizeof(chunk) ? count - sent : sizeof(chunk);
			ssize_t rc;

			for (size_t i = 0; i < here; i++)
				chunk[i] = stream_byte(sent + i);
			rc = send(fd, chunk, here, MSG_DONTWAIT | MSG_NOSIGNAL);
			sent += rc > 0 ? (size_t)rc : 0;
			if (sent == count)
				shutdown(fd, SHUT_WR);
		}
	}
	printf("connected %d got %zu ended %d wrong %u %s\n", connected, got, ended, wrong, why);
}

/* Frees nothing until the peer has stood still for a second. */
static void run_xtreme_freeing_nothing(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_STREAM);
	static struct vma_completion_t held[HELD_MAX];
	unsigned n_held = 0, turns = 0;
	bool was_still = false, ended = false;
	double until, last;
	size_t got = 0;

	say_ready();
	until = last = now_seconds();
	until += TEST_WAIT_LIMIT_S;
	while (!ended && (++turns % 64 != 0 || now_seconds() < until)) {
		struct vma_completion_t c;

		if (xtreme_poll_or_fail(fd, &c, 1) == 1) {
			last = now_seconds();
			if (c.events & VMA_SOCKETXTREME_PACKET) {
				wrong += !is_stream_pattern(c.packet.buff_lst, got);
				got += c.packet.total_len;
				if (was_still || n_held == HELD_MAX)
					api->socketxtreme_free_vma_packets(&c.packet, 1);
				else
					held[n_held++] = c;
			}
			ended = (c.events & EPOLLRDHUP) != 0;
		} else if (!was_still && got != 0 && now_seconds() > last + 1) {
			was_still = true;
			for (unsigned i = 0; i < n_held; i++)
				wrong += api->socketxtreme_free_vma_packets(&held[i].packet, 1) != 0;
		}
	}
	printf("still %d got %zu ended %d wrong %u %s\n", was_still, got, ended, wrong, why);
}

static void run_server_awaiting_tcp_reset(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_STREAM);
	struct vma_completion_t c;
	uint64_t events = 0;
	int conn = -1, error = 0;
	socklen_t len = sizeof(error);
	double until;

	say_ready();
	until = now_seconds() + TEST_WAIT_LIMIT_S;
	while ((events & EPOLLERR) == 0 && now_seconds() < until) {
		if (xtreme_poll_or_fail(fd, &c, 1) == 0)
			continue;
		if (c.events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED)
			conn = (int)c.user_data;
		if (c.events & VMA_SOCKETXTREME_PACKET)
			api->socketxtreme_free_vma_packets(&c.packet, 1);
		events |= c.events;
	}
	getsockopt(conn, SOL_SOCKET, SO_ERROR, &error, &len);
	printf("error %d hangup %d reason %s\n", (events & EPOLLERR) != 0, (events & EPOLLHUP) != 0,
	       error == ECONNRESET ? "ECONNRESET" : strerror(error));
}

/* ---- groups, mixed ways ---- */

static void receive_datagrams_by_poll(int fd)
{
	const int ring = get_ring_fd_of_socket(fd);
	const double until = now_seconds() + TEST_WAIT_LIMIT_S;
	struct vma_completion_t completions[BATCH];
	unsigned seen = 0, turns = 0;

	while (seen < count && (++turns % 1024 != 0 || now_seconds() < until)) {
		const int n = xtreme_poll_or_fail(ring, completions, BATCH);

		for (int i = 0; i < n; i++) {
			seen++;
			expect_that((int)completions[i].user_data == fd, "its own completion");
			wrong += !is_datagram_intact(completions[i].packet.buff_lst->payload,
			                             completions[i].packet.total_len);
			wrong += api->socketxtreme_free_vma_packets(&completions[i].packet, 1) != 0;
		}
	}
	printf("seen %u wrong %u %s\n", seen, wrong, why);
}

static void run_group_receiver_by_xtreme(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_DGRAM);

	say_ready();
	receive_datagrams_by_poll(fd);
}

/* Each datagram comes once, whichever way asks for it. */
static void run_receiver_by_poll_and_recv(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_DGRAM);
	const double until = now_seconds() + TEST_WAIT_LIMIT_S;
	static bool is_known[HELD_MAX];
	unsigned by_poll = 0, by_recv = 0, turns = 0;
	struct vma_completion_t c;
	struct datagram datagram;

	say_ready();
	while (by_poll + by_recv < count && (++turns % 1024 != 0 || now_seconds() < until)) {
		if (turns % 2 == 0 && xtreme_poll_or_fail(fd, &c, 1) == 1) {
			memcpy(&datagram, c.packet.buff_lst->payload, sizeof(datagram));
			wrong += api->socketxtreme_free_vma_packets(&c.packet, 1) != 0;
			by_poll++;
		} else if (turns % 2 != 0 && recv(fd, &datagram, sizeof(datagram), MSG_DONTWAIT) > 0) {
			by_recv++;
		} else {
			continue;
		}
		wrong += !is_datagram_intact(&datagram, sizeof(datagram)) || datagram.number >= HELD_MAX ||
		         is_known[datagram.number];
		is_known[datagram.number % HELD_MAX] = true;
	}
	printf("all %d poll %s recv %s wrong %u\n", by_poll + by_recv == count, by_poll != 0 ? "some" : "none",
	       by_recv != 0 ? "some" : "none", wrong);
}

static void run_server_keeping_stream_until_killed(void)
{
	const int fd = open_bound_or_listening_socket(SOCK_STREAM);
	const double until = now_seconds() + TEST_WAIT_LIMIT_S;
	uint64_t bytes = 0;
	double last = 0;

	say_ready();
	while (now_seconds() < (bytes >= KEPT_STREAM_MIN ? last + 1 : until)) {
		struct vma_completion_t c;

		if (xtreme_poll_or_fail(fd, &c, 1) == 1)
			last = now_seconds();
		else
			continue;
		bytes += (c.events & VMA_SOCKETXTREME_PACKET) != 0 ? c.packet.total_len : 0;
	}
	printf("kept %llu\n", (unsigned long long)bytes);
	fflush(stdout);
	for (;;)
		pause();
}

/* ---- fork ---- */

/* Packets may come when the child receives by a ring; what came before would be the kernel's. */
static void await_ring_of_inherited_socket(int fd)
{
	const double until = now_seconds() + TEST_WAIT_LIMIT_S / 3;
	struct vma_completion_t completion;

	while (api->get_socket_rings_num(fd) == 0) {
		expect_that(api->socketxtreme_poll(fd, &completion, 1, 0) == 0, "nothing has come yet");
		if (now_seconds() > until) {
			printf("the child has no ring\n");
			exit(1);
		}
	}
}

static void count_datagrams_or_connections_of_child(int fd)
{
	const double until = now_seconds() + TEST_WAIT_LIMIT_S;
	struct vma_completion_t c;
	unsigned packets = 0, accepted = 0, ended = 0, turns = 0;

	while ((packets < count || accepted != ended) && (++turns % 1024 != 0 || now_seconds() < until)) {
		if (xtreme_poll_or_fail(fd, &c, 1) == 0)
			continue;
		accepted += (c.events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) != 0;
		ended += (c.events & EPOLLRDHUP) != 0;
		if (c.events & VMA_SOCKETXTREME_PACKET) {
			packets++;
			wrong += !is_datagram_intact(c.packet.buff_lst->payload, c.packet.total_len);
			api->socketxtreme_free_vma_packets(&c.packet, 1);
		}
		if (c.events & EPOLLRDHUP)
			close((int)c.user_data);
	}
	printf("packets %u accepted %u ended %u wrong %u %s\n", packets, accepted, ended, wrong, why);
}

static void poll_parents_socket_in_child(int type)
{
	const int fd = open_bound_or_listening_socket(type);
	const pid_t child = fork();
	int status = 0;

	if (child != 0) {
		close(fd);
		waitpid(child, &status, 0);
		exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	await_ring_of_inherited_socket(fd);
	say_ready();
	count_datagrams_or_connections_of_child(fd);
	fflush(stdout);
}

static void run_child_polling_udp(void)
{
	poll_parents_socket_in_child(SOCK_DGRAM);
}

static void run_child_polling_tcp(void)
{
	poll_parents_socket_in_child(SOCK_STREAM);
}

/* ---- main ---- */

static const struct {
	const char *name;
	void (*run)(void);
	bool plain;
} roles[] = {
        {"send", run_udp_sender_checking_echoes, true},
        {"udp", run_udp_echo_server_by_xtreme, false},
        {"flood", run_xtreme_bulk_receiver, false},
        {"hold", run_receiver_holding_packets, false},
        {"misuse", run_xtreme_calls_with_bad_args, false},
        {"off", run_xtreme_calls_when_disabled, false},
        {"tcp", run_tcp_echo_server_by_xtreme, false},
        {"client", run_tcp_client_by_xtreme, false},
        {"greedy", run_xtreme_freeing_nothing, false},
        {"reset", run_server_awaiting_tcp_reset, false},
        {"shutdown", run_receiver_switching_xtreme_to_recv, false},
        {"group", run_group_receiver_by_xtreme, false},
        {"mixed", run_receiver_by_poll_and_recv, false},
        {"keep_tcp", run_server_keeping_stream_until_killed, false},
        {"fork_udp", run_child_polling_udp, false},
        {"fork_tcp", run_child_polling_tcp, false},
};

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
		return 2;
	count = (unsigned)strtoul(argv[4], NULL, 10);
	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
		if (strcmp(argv[1], roles[i].name) != 0)
			continue;
		api = vma_get_api();
		if (api == NULL && !roles[i].plain)
			fail("no API");
		roles[i].run();
		return 0;
	}
	return 2;
}
