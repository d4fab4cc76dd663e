/*
 * rare_sends - one message in 10 ms to an echo server, and how long its send and its round trip take.
 *
 *   rare_sends ADDRESS PORT COUNT plain|dummy
 *   rare_sends ADDRESS PORT serve             the echo server
 *
 * Between two messages the program works on memory of its own, 8 MB, as a strategy does: the library's code and data
 * leave the caches. With `dummy` it also sends a dummy message every 50 us (VMA_SND_FLAGS_DUMMY). Prints "p50_send_ns
 * N" and "p50_trip_ns N", from before the send to its end, and to the answer.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <mellanox/vma_extra.h>

enum { INTERVAL_NS = 10000000, DUMMY_NS = 50000, WORK_BYTES = 8 << 20, STEP_BYTES = 32768, BYTES = 64, MAX = 100000 };

static uint64_t send_ns[MAX], trip_ns[MAX];

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void touch_cache_between_sends(void)
{
	static unsigned char memory[WORK_BYTES];
	static size_t at;

	for (size_t i = 0; i < STEP_BYTES; i += 64)
		memory[at + i]++;
	at = (at + STEP_BYTES) % WORK_BYTES;
}

/* Works until it is time; false: a dummy was refused. */
static bool work_and_send_dummies_until(int fd, const void *bytes, uint64_t until, bool dummies)
{
	uint64_t next = 0, now;

	while ((now = now_ns()) < until) {
		touch_cache_between_sends();
		if (!dummies || now < next)
			continue;
		if (send(fd, bytes, BYTES, VMA_SND_FLAGS_DUMMY) != BYTES)
			return false;
		next = now + DUMMY_NS;
	}
	return true;
}

static bool udp_measure_send_and_round_trip(int fd, unsigned char *bytes, unsigned i)
{
	const uint64_t begin = now_ns();
	uint64_t sent;
	ssize_t n;

	if (send(fd, bytes, BYTES, 0) != BYTES)
		return false;
	sent = now_ns();
	do
		n = recv(fd, bytes, BYTES, MSG_DONTWAIT);
	while (n < 0 && errno == EAGAIN && now_ns() < begin + INTERVAL_NS * 100ULL);
	send_ns[i] = sent - begin;
	trip_ns[i] = now_ns() - begin;
	return n == BYTES;
}

static int compare_uint64_for_qsort(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t median(uint64_t *values, unsigned n)
{
	qsort(values, n, sizeof(*values), compare_uint64_for_qsort);
	return values[n / 2];
}

static int udp_echo_server_busy_loop(const struct sockaddr_in *address)
{
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in from;
	unsigned char bytes[BYTES];

	if (bind(fd, (const struct sockaddr *)address, sizeof(*address)) != 0) {
		perror("bind");
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		socklen_t len = sizeof(from);
		const ssize_t n = recvfrom(fd, bytes, sizeof(bytes), MSG_DONTWAIT, (struct sockaddr *)&from, &len);

		if (n >= 0)
			sendto(fd, bytes, (size_t)n, 0, (struct sockaddr *)&from, len);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	unsigned char bytes[BYTES] = {0};
	unsigned count;
	bool dummies;
	int fd;

	if (argc < 4 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) {
		fprintf(stderr, "usage: %s ADDRESS PORT serve|COUNT plain|dummy\n", argv[0]);
		return 2;
	}
	address.sin_port = htons((uint16_t)atoi(argv[2]));
	if (strcmp(argv[3], "serve") == 0)
		return udp_echo_server_busy_loop(&address);
	count = (unsigned)atoi(argv[3]);
	if (argc != 5 || count == 0 || count > MAX) {
		fprintf(stderr, "%s: COUNT is 1 to %d\n", argv[0], MAX);
		return 2;
	}
	dummies = strcmp(argv[4], "dummy") == 0;
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    !udp_measure_send_and_round_trip(fd, bytes, 0)) {
		perror(argv[1]);
		return 1;
	}
	for (unsigned i = 0; i < count; i++) {
		if (!work_and_send_dummies_until(fd, bytes, now_ns() + INTERVAL_NS, dummies) ||
		    !udp_measure_send_and_round_trip(fd, bytes, i)) {
			perror(dummies ? "a dummy, or its message" : "a message");
			return 1;
		}
	}
	printf("p50_send_ns %lu\np50_trip_ns %lu\n", median(send_ns, count), median(trip_ns, count));
	return 0;
}
