/*
 * extra_tcp - the Extra API on TCP connections, for tests/e2e/extra_tcp.sh.
 *
 *   send ADDRESS PORT BYTES           connects, and sends so many bytes, by plain calls
 *   zcopy ADDRESS PORT BYTES          accepts; receives without a copy, a second thread gives back
 *   force ADDRESS PORT BYTES          the same with MSG_VMA_ZCOPY_FORCE: nothing is copied to the program
 *   mixed ADDRESS PORT BYTES          zero copy and recv in turns
 *   callback ADDRESS PORT BYTES       of the pieces one third is dropped, one received, one held and freed later
 *   fork ADDRESS PORT BYTES           the same, and a callback forks: the child comes back from it, and ends
 *   hold ADDRESS PORT BYTES           frees nothing until nothing comes for a second, then all; and receives the rest
 *   keep ADDRESS PORT BYTES           frees nothing until nothing comes for a second; waits to be killed
 *   copies ADDRESS PORT BYTES         receives when all has come, by MSG_VMA_ZCOPY_FORCE, and frees at the end
 *   closed ADDRESS PORT BYTES         holds what comes, closes the socket, reads and frees afterwards
 *   misuse ADDRESS PORT BYTES         a callback that frees twice, receives, registers another, and closes its socket
 *
 * Byte number i of the stream is byte_at(i). After "ready" a peer may connect. The last line says what was seen.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

enum { TEST_WAIT_LIMIT_MS = 60000, HELD_MAX = 65536, KEPT_MIN = 16 };

static struct vma_api_t *api;
static struct sockaddr_in address;
static uint64_t total, at, wrong;

struct held {
	void *id;
	const uint8_t *bytes;
	size_t len;
	uint64_t at;
};
static struct held held[HELD_MAX];
static _Atomic unsigned held_n, freed_n;
static _Atomic bool held_ends;

static uint8_t byte_at(uint64_t i)
{
	return (uint8_t)(i ^ (i >> 8) * 5 ^ (i >> 16) * 11);
}

static void fail(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

static void check_bytes_against_pattern(const uint8_t *bytes, size_t len, uint64_t from)
{
	for (size_t i = 0; i < len; i++)
		wrong += bytes[i] != byte_at(from + i);
}

static bool wait_readable(int fd, int ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, ms) > 0;
}

static int accept_one_connection(void)
{
	const int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	int fd;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(listener, 5) != 0)
		fail("listen");
	printf("ready\n");
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		fail("accept");
	close(listener);
	return fd;
}

/* ---- send ---- */

static int connect_and_send_pattern(void)
{
	const int fd = socket(AF_INET, SOCK_STREAM, 0);
	static uint8_t bytes[30000];
	uint8_t go;

	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail("connect");
	if (recv(fd, &go, 1, 0) != 1)
		fail("recv");
	while (at < total) {
		/* small and large messages in turns */
		size_t len = at % 3 == 0 ? sizeof(bytes) : 1 + at % 700;

		len = len < total - at ? len : (size_t)(total - at);
		for (size_t i = 0; i < len; i++)
			bytes[i] = byte_at(at + i);
		if (send(fd, bytes, len, MSG_NOSIGNAL) != (ssize_t)len)
			fail("send");
		at += len;
	}
	shutdown(fd, SHUT_WR);
	while (recv(fd, &go, 1, 0) > 0)
		;
	return 0;
}

static void tell_peer_to_send(int fd)
{
	if (send(fd, "g", 1, 0) != 1)
		fail("send");
}

/* ---- packets that are held ---- */

static void release_held_zcopy_packet(int fd, void *id)
{
	struct vma_packet_t packet = {.packet_id = id};

	if (api->free_packets(fd, &packet, 1) != 0)
		fail("free_packets");
}

static void remember_held_packet(void *id, const uint8_t *bytes, size_t len, uint64_t from)
{
	const unsigned n = held_n;

	while (n - freed_n >= HELD_MAX)
		usleep(100);
	held[n % HELD_MAX] = (struct held){.id = id, .bytes = bytes, .len = len, .at = from};
	held_n = n + 1;
}

static void free_oldest_held_packet(int fd)
{
	const struct held *next = &held[freed_n % HELD_MAX];

	check_bytes_against_pattern(next->bytes, next->len, next->at);
	release_held_zcopy_packet(fd, next->id);
	freed_n++;
}

static void *free_held_in_thread(void *arg)
{
	const int fd = *(int *)arg;

	while (!held_ends || freed_n != held_n) {
		if (freed_n != held_n)
			free_oldest_held_packet(fd);
		else
			usleep(100);
	}
	return NULL;
}

/* ---- zero copy ---- */

union room {
	struct vma_packets_t packets;
	char bytes[2048];
};
static uint64_t zcopy_received_bytes, copied;

static void hold_packets_of_zcopy_recv(const union room *room, size_t bytes)
{
	const char *next = (const char *)&room->packets.pkts[0];
	size_t sum = 0;

	for (size_t i = 0; i < room->packets.n_packet_num; i++) {
		const struct vma_packet_t *packet = (const struct vma_packet_t *)next;

		wrong += packet->sz_iov != 1;
		remember_held_packet(packet->packet_id, packet->iov[0].iov_base, packet->iov[0].iov_len, at);
		at += packet->iov[0].iov_len;
		sum += packet->iov[0].iov_len;
		next += sizeof(*packet) + packet->sz_iov * sizeof(struct iovec);
	}
	wrong += sum != bytes;
	zcopy_received_bytes += bytes;
}

/* What recvfrom_zcopy answers. */
static int receive_some(int fd, int flags)
{
	union room room;
	const int n = api->recvfrom_zcopy(fd, &room, sizeof(room), &flags, NULL, NULL);

	if (n <= 0)
		return n;
	if (flags & MSG_VMA_ZCOPY) {
		hold_packets_of_zcopy_recv(&room, (size_t)n);
	} else {
		check_bytes_against_pattern((const uint8_t *)room.bytes, (size_t)n, at);
		at += (uint64_t)n;
		copied += (uint64_t)n;
	}
	return n;
}

static void receive_and_check_with_plain_recv(int fd)
{
	uint8_t bytes[3000];
	const ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);

	if (n <= 0)
		return;
	check_bytes_against_pattern(bytes, (size_t)n, at);
	at += (uint64_t)n;
	copied += (uint64_t)n;
}

static int receive_with_recvfrom_zcopy(int flags, bool mixed)
{
	int fd = accept_one_connection(), n;
	pthread_t thread;

	pthread_create(&thread, NULL, free_held_in_thread, &fd);
	tell_peer_to_send(fd);
	for (unsigned turn = 0;; turn++) {
		if (mixed && turn % 3 == 1)
			receive_and_check_with_plain_recv(fd);
		n = receive_some(fd, flags);
		if (n == 0)
			break;
		if (n < 0 && errno != EIO)
			fail("recvfrom_zcopy");
		if (n < 0)
			usleep(1000); /* the other thread is to free first */
	}
	held_ends = true;
	pthread_join(thread, NULL);
	close(fd);
	printf("bytes %lu zcopy %s copied %s wrong %lu\n", at,
	       zcopy_received_bytes > total / 4 ? "most"
	       : zcopy_received_bytes           ? "some"
	                                        : "none",
	       copied == 0 ? "none" : "some", wrong);
	return 0;
}

static int receive_holding_packets_until_stopped(void)
{
	const int room = 200000; /* frames that are held fill it; a larger buffer has room for more than may be held */
	const int fd = accept_one_connection();
	uint64_t before;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
	tell_peer_to_send(fd);
	while (wait_readable(fd, 1000) && receive_some(fd, MSG_DONTWAIT) != 0)
		;
	before = at;
	printf("held\n");
	fflush(stdout);
	while (freed_n != held_n)
		free_oldest_held_packet(fd);
	while (wait_readable(fd, TEST_WAIT_LIMIT_MS) && receive_some(fd, MSG_DONTWAIT) != 0) {
		while (freed_n != held_n)
			free_oldest_held_packet(fd);
	}
	close(fd);
	printf("stopped %d bytes %lu wrong %lu\n", before < total, at, wrong);
	return 0;
}

static int receive_and_keep_until_killed(void)
{
	const int fd = accept_one_connection();

	tell_peer_to_send(fd);
	while (wait_readable(fd, held_n > KEPT_MIN ? 1000 : TEST_WAIT_LIMIT_MS) && receive_some(fd, MSG_DONTWAIT) != 0)
		;
	printf("kept %u\n", held_n);
	fflush(stdout);
	for (;;)
		pause();
	return 0;
}

/* What came before the first call lies in no frame: it is given as copies. */
static int receive_copies_and_free_at_end(void)
{
	const int fd = accept_one_connection();
	int there = 0;

	tell_peer_to_send(fd);
	for (int ms = 0; ms < TEST_WAIT_LIMIT_MS && (uint64_t)there < total; ms++) {
		usleep(1000);
		ioctl(fd, FIONREAD, &there);
	}
	while (at < total && receive_some(fd, MSG_DONTWAIT | MSG_VMA_ZCOPY_FORCE) > 0)
		;
	printf("bytes %lu copied %s held %s wrong %lu\n", at, copied == 0 ? "none" : "some",
	       held_n > 1 ? "some" : "few", wrong);
	while (freed_n != held_n)
		free_oldest_held_packet(fd);
	close(fd);
	return 0;
}

static int free_held_packets_after_close(void)
{
	const int fd = accept_one_connection();
	unsigned n = 0;

	receive_some(fd, MSG_DONTWAIT); /* from the first one on the connection keeps its frames */
	tell_peer_to_send(fd);
	while (at < total && wait_readable(fd, TEST_WAIT_LIMIT_MS) && receive_some(fd, MSG_DONTWAIT) != 0)
		;
	close(fd);
	for (; freed_n != held_n; n++)
		free_oldest_held_packet(fd);
	printf("bytes %lu freed %s wrong %lu\n", at, n != 0 ? "some" : "none", wrong);
	return 0;
}

/* ---- callbacks ---- */

static pid_t child = -1;
static bool forks, is_child;
static uint64_t seen, dropped, received, kept, expected_n;
static struct {
	uint64_t at;
	size_t len;
} expected[HELD_MAX];

static vma_recv_callback_retval_t recv_callback_on_stream_bytes(int fd, size_t n, struct iovec iov[],
                                                                struct vma_info_t *info, void *context)
{
	const uint64_t from = at;
	const size_t len = iov[0].iov_len;

	(void)fd;
	wrong += context != &at || n != 1 || info->payload_sz != len ||
	         ((struct sockaddr_in *)info->dst)->sin_port != address.sin_port;
	check_bytes_against_pattern(iov[0].iov_base, len, from);
	at += len;
	if (forks && seen == 20) {
		child = fork();
		is_child = child == 0;
	}
	switch (seen++ % 3) {
	case 0:
		dropped += len;
		return VMA_PACKET_DROP;
	case 1:
		break;
	default:
		if (info->packet_id == NULL)
			break; /* it was copied */
		kept += len;
		remember_held_packet(info->packet_id, iov[0].iov_base, len, from);
		return VMA_PACKET_HOLD;
	}
	expected[expected_n % HELD_MAX].at = from;
	expected[expected_n++ % HELD_MAX].len = len;
	return VMA_PACKET_RECV;
}

static uint64_t taken_n, taken_of;

/* Bytes of RECV come in order, and no others. */
static void check_received(const uint8_t *bytes, size_t n)
{
	while (n > 0) {
		size_t here;

		if (taken_n == expected_n) {
			/* the child may have asked for the connection, which is the kernel's then, without callbacks */
			wrong += forks ? 0 : n;
			check_bytes_against_pattern(bytes, n, at);
			at += n;
			received += n;
			return;
		}
		here = expected[taken_n % HELD_MAX].len - taken_of;
		here = here < n ? here : n;
		check_bytes_against_pattern(bytes, here, expected[taken_n % HELD_MAX].at + taken_of);
		received += here;
		taken_of += here;
		if (taken_of == expected[taken_n % HELD_MAX].len)
			taken_n++, taken_of = 0;
		bytes += here;
		n -= here;
	}
}

static int receive_with_recv_callback(void)
{
	int status = 0;
	int fd = accept_one_connection();
	static uint8_t bytes[65536];
	pthread_t thread;
	ssize_t n;

	pthread_create(&thread, NULL, free_held_in_thread, &fd);
	if (api->register_recv_callback(fd, recv_callback_on_stream_bytes, &at) != 0)
		fail("register_recv_callback");
	tell_peer_to_send(fd);
	while (wait_readable(fd, TEST_WAIT_LIMIT_MS)) {
		if (is_child)
			_exit(7); /* what it reads would be missing here */
		n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (n == 0)
			break;
		if (n > 0)
			check_received(bytes, (size_t)n);
		else if (errno != EAGAIN)
			fail("recv");
	}
	held_ends = true;
	pthread_join(thread, NULL);
	close(fd);
	if (forks && (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7))
		printf("child %d: status %x\n", (int)child, (unsigned)status), wrong++;
	printf("bytes %lu sum %lu each %d wrong %lu\n", at, dropped + received + kept,
	       dropped != 0 && received != 0 && kept != 0, wrong);
	return 0;
}

/* ---- misuse ---- */

static unsigned calls;

static void expect(bool is_so, const char *what)
{
	if (!is_so) {
		printf("not so: %s (%s)\n", what, strerror(errno));
		wrong++;
	}
}

static vma_recv_callback_retval_t recv_callback_closing_fd(int fd, size_t n, struct iovec iov[],
                                                           struct vma_info_t *info, void *context)
{
	(void)n, (void)iov, (void)info, (void)context;
	calls++;
	expect(close(fd) == 0, "a callback closes its socket");
	return VMA_PACKET_RECV;
}

static vma_recv_callback_retval_t recv_callback_breaking_rules(int fd, size_t n, struct iovec iov[],
                                                               struct vma_info_t *info, void *context)
{
	struct vma_packet_t packet = {.packet_id = info->packet_id};
	char byte;

	(void)n, (void)iov, (void)context;
	calls++;
	expect(recv(fd, &byte, 1, 0) < 0 && errno == EDEADLK, "a blocking receive of what is not there: EDEADLK");
	if (info->packet_id != NULL) {
		expect(api->free_packets(fd, &packet, 1) == 0, "a packet is freed before its verdict");
		expect(api->free_packets(fd, &packet, 1) < 0 && errno == ENOENT, "twice: ENOENT");
	}
	packet.packet_id = &byte;
	expect(api->free_packets(fd, &packet, 1) < 0 && errno == ENOENT, "a stranger's: ENOENT");
	expect(api->register_recv_callback(fd, recv_callback_closing_fd, NULL) == 0, "a callback registers another");
	return VMA_PACKET_DROP;
}

static int run_misuse_of_recv_callback(void)
{
	const int fd = accept_one_connection();

	if (api->register_recv_callback(fd, recv_callback_breaking_rules, NULL) != 0)
		fail("register_recv_callback");
	tell_peer_to_send(fd);
	for (int i = 0; i < 600 && calls < 2; i++)
		wait_readable(fd, 100);
	printf("calls %u wrong %lu\n", calls, wrong);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
		return 2;
	total = strtoull(argv[4], NULL, 10);
	if (strcmp(argv[1], "send") == 0)
		return connect_and_send_pattern();
	api = vma_get_api();
	if (api == NULL)
		fail("vma_get_api");
	if (strcmp(argv[1], "zcopy") == 0)
		return receive_with_recvfrom_zcopy(0, false);
	if (strcmp(argv[1], "force") == 0)
		return receive_with_recvfrom_zcopy(MSG_VMA_ZCOPY_FORCE, false);
	if (strcmp(argv[1], "mixed") == 0)
		return receive_with_recvfrom_zcopy(0, true);
	if (strcmp(argv[1], "callback") == 0)
		return receive_with_recv_callback();
	forks = strcmp(argv[1], "fork") == 0;
	if (forks)
		return receive_with_recv_callback();
	if (strcmp(argv[1], "hold") == 0)
		return receive_holding_packets_until_stopped();
	if (strcmp(argv[1], "keep") == 0)
		return receive_and_keep_until_killed();
	if (strcmp(argv[1], "copies") == 0)
		return receive_copies_and_free_at_end();
	if (strcmp(argv[1], "closed") == 0)
		return free_held_packets_after_close();
	if (strcmp(argv[1], "misuse") == 0)
		return run_misuse_of_recv_callback();
	return 2;
}
