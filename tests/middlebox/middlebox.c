/*
 * middlebox - a bridge of two interfaces that loses, delays, reorders and duplicates frames; for tests and benchmarks
 *             of protocols that must live with such a network.
 *
 *   middlebox IF_A IF_B [--loss PPM] [--delay-us N] [--reorder PPM] [--duplicate PPM] [--queue FRAMES] [--seed N]
 *
 * Each direction by itself: loss and the rest by a generator of its own from the seed, so the n-th frame of a direction
 * always has the same fate. A reordered frame is held 1 ms longer than the others. --delay-us is of one way. A full
 * queue drops what comes, as a router does, and counts it.
 *
 * Interfaces must leave checksums and segmentation finished (ethtool -K IF tx off tso off gso off gro off on the far
 * ends). Needs CAP_NET_RAW. Prints "forwarding" when it works, and its counters at SIGTERM or SIGINT.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_MAX = 9232, BATCH = 64, REORDERED_FRAMES_MAX = 256 };
#define REORDER_NS 1000000ULL

struct frame {
	uint64_t due_ns;
	uint32_t len;
	uint8_t bytes[FRAME_MAX];
};

struct direction {
	const char *from_name, *to_name;
	int from, to;
	uint64_t random;
	struct frame *queue; /* in order of due_ns: the delay is the same for all */
	uint32_t size, head, count;
	struct frame *late; /* held longer, in order as well */
	uint32_t late_head, late_count;
	uint64_t forwarded, lost, reordered, duplicated, overflowed, refused;
};

static struct {
	uint32_t loss, reorder, duplicate, queue;
	uint64_t delay_ns, seed;
} request = {.queue = 4096, .seed = 1};
static volatile sig_atomic_t ended;

static void middlebox_die(const char *what)
{
	fprintf(stderr, "middlebox: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void middlebox_on_end_signal(int sig)
{
	(void)sig;
	ended = 1;
}

static uint64_t middlebox_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* splitmix64 */
static uint64_t middlebox_next_random(struct direction *d)
{
	uint64_t z = d->random += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static bool random_hits_ppm(struct direction *d, uint32_t ppm)
{
	return ppm != 0 && middlebox_next_random(d) % 1000000 < ppm;
}

static int middlebox_open_packet_socket(const char *name)
{
	struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	struct packet_mreq promiscuous = {.mr_type = PACKET_MR_PROMISC};
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1, bytes = 32 << 20;

	if (fd < 0)
		middlebox_die("AF_PACKET socket");
	address.sll_ifindex = (int)if_nametoindex(name);
	promiscuous.mr_ifindex = address.sll_ifindex;
	if (address.sll_ifindex == 0)
		middlebox_die(name);
	if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)) < 0 ||
	    setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof(promiscuous)) < 0)
		middlebox_die("packet options");
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes));
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		middlebox_die("bind");
	return fd;
}

static void middlebox_queue_frame(struct direction *d, struct frame *queue, uint32_t size, uint32_t head,
                                  uint32_t *count, const uint8_t *bytes, uint32_t len, uint64_t due_ns)
{
	struct frame *frame;

	if (*count == size) {
		d->overflowed++;
		return;
	}
	frame = &queue[(head + *count) % size];
	frame->due_ns = due_ns;
	frame->len = len;
	memcpy(frame->bytes, bytes, len);
	++*count;
}

static void middlebox_lose_or_queue_frame(struct direction *d, const uint8_t *bytes, uint32_t len, uint64_t now)
{
	uint64_t due = now + request.delay_ns;

	if (random_hits_ppm(d, request.loss)) {
		d->lost++;
		return;
	}
	if (random_hits_ppm(d, request.reorder)) {
		d->reordered++;
		middlebox_queue_frame(d, d->late, REORDERED_FRAMES_MAX, d->late_head, &d->late_count, bytes, len,
		                      due + REORDER_NS);
		return;
	}
	middlebox_queue_frame(d, d->queue, d->size, d->head, &d->count, bytes, len, due);
	if (random_hits_ppm(d, request.duplicate)) {
		d->duplicated++;
		middlebox_queue_frame(d, d->queue, d->size, d->head, &d->count, bytes, len, due);
	}
}

static bool middlebox_receive_frames(struct direction *d)
{
	static uint8_t bytes[BATCH][FRAME_MAX];
	struct mmsghdr messages[BATCH] = {0};
	struct iovec iov[BATCH];
	uint64_t now;
	int n;

	for (int i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){.iov_base = bytes[i], .iov_len = FRAME_MAX};
		messages[i].msg_hdr.msg_iov = &iov[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	n = recvmmsg(d->from, messages, BATCH, MSG_DONTWAIT, NULL);
	now = middlebox_now_ns();
	for (int i = 0; i < n; i++)
		middlebox_lose_or_queue_frame(d, bytes[i], messages[i].msg_len, now);
	return n > 0;
}

static bool middlebox_send_due_of_queue(struct direction *d, struct frame *queue, uint32_t size, uint32_t *head,
                                        uint32_t *count, uint64_t now)
{
	struct mmsghdr messages[BATCH] = {0};
	struct iovec iov[BATCH];
	uint32_t n = 0;
	int sent;

	for (; n < BATCH && n < *count && queue[(*head + n) % size].due_ns <= now; n++) {
		iov[n] = (struct iovec){.iov_base = queue[(*head + n) % size].bytes,
		                        .iov_len = queue[(*head + n) % size].len};
		messages[n].msg_hdr.msg_iov = &iov[n];
		messages[n].msg_hdr.msg_iovlen = 1;
	}
	if (n == 0)
		return false;
	sent = sendmmsg(d->to, messages, n, MSG_DONTWAIT);
	if (sent <= 0) {
		if (errno == EAGAIN || errno == ENOBUFS)
			return false;
		d->refused++; /* too long for the interface, or it is down: like a frame lost */
		sent = 1;
	} else {
		d->forwarded += (uint64_t)sent;
	}
	*head = (*head + (uint32_t)sent) % size;
	*count -= (uint32_t)sent;
	return true;
}

static bool middlebox_send_due_frames(struct direction *d)
{
	uint64_t now = middlebox_now_ns();
	bool late = middlebox_send_due_of_queue(d, d->late, REORDERED_FRAMES_MAX, &d->late_head, &d->late_count, now);

	return middlebox_send_due_of_queue(d, d->queue, d->size, &d->head, &d->count, now) || late;
}

static uint64_t middlebox_next_due_ns(const struct direction *d)
{
	uint64_t due = d->count == 0 ? UINT64_MAX : d->queue[d->head].due_ns;

	if (d->late_count != 0 && d->late[d->late_head].due_ns < due)
		due = d->late[d->late_head].due_ns;
	return due;
}

static void middlebox_wait_for_frame_or_due_time(struct direction d[2])
{
	struct pollfd fds[2] = {{.fd = d[0].from, .events = POLLIN}, {.fd = d[1].from, .events = POLLIN}};
	uint64_t a = middlebox_next_due_ns(&d[0]), b = middlebox_next_due_ns(&d[1]), due = a < b ? a : b,
	         now = middlebox_now_ns();
	uint64_t left = due > now ? due - now : 0;
	struct timespec timeout = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};

	ppoll(fds, 2, due == UINT64_MAX ? NULL : &timeout, NULL);
}

static void middlebox_print_counts(const struct direction *d)
{
	printf("%s -> %s: forwarded %lu lost %lu reordered %lu duplicated %lu overflowed %lu refused %lu\n",
	       d->from_name, d->to_name, d->forwarded, d->lost, d->reordered, d->duplicated, d->overflowed, d->refused);
}

static uint64_t parse_number_or_exit(const char *text, uint64_t max)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno != 0 || *end != 0 || end == text || *text == '-' || value > max) {
		fprintf(stderr, "middlebox: '%s' is not a number from 0 to %lu\n", text, max);
		exit(2);
	}
	return value;
}

static void middlebox_read_options(int argc, char **argv)
{
	static const struct option options[] = {{"loss", required_argument, NULL, 'l'},
	                                        {"delay-us", required_argument, NULL, 'd'},
	                                        {"reorder", required_argument, NULL, 'r'},
	                                        {"duplicate", required_argument, NULL, 'D'},
	                                        {"queue", required_argument, NULL, 'q'},
	                                        {"seed", required_argument, NULL, 's'},
	                                        {0}};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'l':
			request.loss = (uint32_t)parse_number_or_exit(optarg, 1000000);
			break;
		case 'd':
			request.delay_ns = parse_number_or_exit(optarg, 10000000) * 1000;
			break;
		case 'r':
			request.reorder = (uint32_t)parse_number_or_exit(optarg, 1000000);
			break;
		case 'D':
			request.duplicate = (uint32_t)parse_number_or_exit(optarg, 1000000);
			break;
		case 'q':
			request.queue = (uint32_t)parse_number_or_exit(optarg, 1 << 20);
			break;
		case 's':
			request.seed = parse_number_or_exit(optarg, UINT64_MAX);
			break;
		default:
			exit(2);
		}
	}
	if (argc - optind != 2 || request.queue == 0) {
		fprintf(stderr, "usage: middlebox IF_A IF_B [--loss PPM] [--delay-us N] [--reorder PPM] "
		                "[--duplicate PPM] [--queue FRAMES] [--seed N]\n");
		exit(2);
	}
}

static void middlebox_init_direction(struct direction *d, const char *from_name, const char *to_name, int from, int to,
                                     uint64_t seed)
{
	*d = (struct direction){.from_name = from_name,
	                        .to_name = to_name,
	                        .from = from,
	                        .to = to,
	                        .random = seed,
	                        .size = request.queue};
	d->queue = calloc(d->size, sizeof(*d->queue));
	d->late = calloc(REORDERED_FRAMES_MAX, sizeof(*d->late));
	if (d->queue == NULL || d->late == NULL)
		middlebox_die("queues");
}

int main(int argc, char **argv)
{
	const struct sigaction end = {.sa_handler = middlebox_on_end_signal};
	struct direction d[2];
	int a, b;

	middlebox_read_options(argc, argv);
	prctl(PR_SET_TIMERSLACK, 1UL);
	sigaction(SIGTERM, &end, NULL);
	sigaction(SIGINT, &end, NULL);
	a = middlebox_open_packet_socket(argv[optind]);
	b = middlebox_open_packet_socket(argv[optind + 1]);
	middlebox_init_direction(&d[0], argv[optind], argv[optind + 1], a, b, request.seed);
	middlebox_init_direction(&d[1], argv[optind + 1], argv[optind], b, a, ~request.seed);
	printf("forwarding\n");
	fflush(stdout);
	while (!ended) {
		bool moved = false;

		for (int i = 0; i < 2; i++) {
			moved |= middlebox_receive_frames(&d[i]);
			moved |= middlebox_send_due_frames(&d[i]);
		}
		if (!moved)
			middlebox_wait_for_frame_or_due_time(d);
	}
	middlebox_print_counts(&d[0]);
	middlebox_print_counts(&d[1]);
	return 0;
}
