/*
 * udp_market_data - a receiver of market data by receive callback: quotes of a multicast group, no copy, no system call
 * per packet.
 *
 *   udp_market_data GROUP PORT INTERFACE_ADDRESS [SYMBOL]
 *
 * A datagram is a sequence number (4 bytes, network order), a symbol (8 bytes, padded with blanks) and a price (8
 * bytes, network order, in ten-thousandths). Without SYMBOL all are wanted. The callback looks at each packet in the
 * frame that the device has filled, drops what is not wanted, and prints the rest. Gaps in the numbers are told.
 *
 * With the library preloaded (vma udp_market_data ...) the callback does the work. Without it the same function gets
 * what recv has copied.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

struct __attribute__((packed)) quote {
	uint32_t number_be;
	char symbol[8];
	uint64_t price_be;
};

struct feed {
	char wanted[9]; /* symbol, padded; "": all */
	uint32_t next;  /* number that comes next */
	int has_begun;
	uint64_t seen, shown, lost;
};

/* ---- one packet ---- */

static void feed_check_sequence_number(struct feed *feed, uint32_t number)
{
	if (feed->has_begun && number != feed->next) {
		printf("gap: %" PRIu32 " to %" PRIu32 "\n", feed->next, number - 1);
		feed->lost += number - feed->next;
	}
	feed->has_begun = 1;
	feed->next = number + 1;
}

static void feed_handle_quote(struct feed *feed, const void *bytes, size_t len)
{
	struct quote quote;

	if (len < sizeof(quote))
		return;
	memcpy(&quote, bytes, sizeof(quote));
	feed->seen++;
	feed_check_sequence_number(feed, ntohl(quote.number_be));
	if (feed->wanted[0] != '\0' && memcmp(feed->wanted, quote.symbol, sizeof(quote.symbol)) != 0)
		return;
	feed->shown++;
	printf("%.8s %.4f\n", quote.symbol, (double)be64toh(quote.price_be) / 10000);
	fflush(stdout);
}

/* In a thread of this program, when epoll_wait is about to return or to sleep. The packet is over with it. */
static vma_recv_callback_retval_t on_packet(int fd, size_t sz_iov, struct iovec iov[], struct vma_info_t *info,
                                            void *context)
{
	(void)fd, (void)info;
	if (sz_iov == 1)
		feed_handle_quote(context, iov[0].iov_base, iov[0].iov_len);
	return VMA_PACKET_DROP;
}

/* ---- the socket ---- */

static int open_multicast_receiver_socket(const char *group, const char *port, const char *interface)
{
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), on = 1;
	struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	struct ip_mreq membership;

	if (fd < 0 || inet_pton(AF_INET, group, &local.sin_addr) != 1 ||
	    inet_pton(AF_INET, interface, &membership.imr_interface) != 1)
		return -1;
	membership.imr_multiaddr = local.sin_addr;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
	    bind(fd, (struct sockaddr *)&local, sizeof(local)) != 0 ||
	    setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof(membership)) != 0)
		return -1;
	return fd;
}

/* What no callback has taken: without the library, or what came by the kernel. */
static void feed_recv_and_handle_quotes(struct feed *feed, int fd)
{
	char bytes[2048];
	ssize_t len;

	while ((len = recv(fd, bytes, sizeof(bytes), 0)) >= 0)
		feed_handle_quote(feed, bytes, (size_t)len);
}

int main(int argc, char **argv)
{
	struct vma_api_t *api = vma_get_api();
	struct feed feed = {0};
	struct epoll_event event = {.events = EPOLLIN};
	int fd, set;

	if (argc < 4) {
		fprintf(stderr, "usage: %s GROUP PORT INTERFACE_ADDRESS [SYMBOL]\n", argv[0]);
		return 2;
	}
	if (argc > 4)
		snprintf(feed.wanted, sizeof(feed.wanted), "%-8.8s", argv[4]);
	fd = open_multicast_receiver_socket(argv[1], argv[2], argv[3]);
	set = epoll_create1(0);
	if (fd < 0 || set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) {
		perror("the feed");
		return 1;
	}
	if (api != NULL && api->vma_extra_supported_mask & VMA_EXTRA_API_REGISTER_RECV_CALLBACK &&
	    api->register_recv_callback(fd, on_packet, &feed) != 0) {
		perror("register_recv_callback");
		return 1;
	}
	printf("listening, %s\n", api != NULL ? "by callback" : "by recv");
	fflush(stdout);
	/* A second without a quote ends it. */
	for (int quiet = 0; !quiet || feed.seen == 0;) {
		const uint64_t before = feed.seen;
		const int n = epoll_wait(set, &event, 1, 1000);

		if (n < 0 && errno != EINTR)
			return 1;
		if (n > 0)
			feed_recv_and_handle_quotes(&feed, fd);
		quiet = feed.seen == before;
	}
	printf("seen %" PRIu64 " shown %" PRIu64 " lost %" PRIu64 "\n", feed.seen, feed.shown, feed.lost);
	return 0;
}
