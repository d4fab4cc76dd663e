/*
 * tcp_zcopy_echo - a server that sends back each byte it receives, and receives without a copy.
 *
 *   tcp_zcopy_echo ADDRESS PORT [CONNECTIONS]
 *
 * Each piece of the stream is sent from the frame in which the device has put it, and given back afterwards. It is
 * given back at once, so a peer that does not read its answers stops itself: what it sends fills the receive buffer.
 * After so many CONNECTIONS have ended the server ends, and says how many bytes came without a copy, and how many by
 * one.
 *
 * With the library preloaded (vma tcp_zcopy_echo ...) recvfrom_zcopy does the work. Without it, recv.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

enum { ROOM = 16384, EVENTS = 64 };

struct server {
	struct vma_api_t *api; /* NULL: without the library */
	int set, listener;
	uint64_t ended, zero_copied, copied;
};

/* A peer that is slow to read makes the server wait here: an example has one thing to do at a time. */
static int send_all(int fd, const char *bytes, size_t len)
{
	while (len > 0) {
		const ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR)
			return -1;
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

/* Sends the pieces of a packet; the next packet's description lies behind them. */
static int send_packet(int fd, const struct vma_packet_t *packet)
{
	for (size_t i = 0; i < packet->sz_iov; i++) {
		if (send_all(fd, packet->iov[i].iov_base, packet->iov[i].iov_len) != 0)
			return -1;
	}
	return 0;
}

static struct vma_packet_t *next_packet(struct vma_packet_t *packet)
{
	return (struct vma_packet_t *)((char *)packet + sizeof(*packet) + packet->sz_iov * sizeof(struct iovec));
}

/* Every packet is given back, also if the peer has gone. */
static int echo_packets(struct server *server, int fd, struct vma_packets_t *packets)
{
	struct vma_packet_t *packet = packets->pkts;
	int rc = 0;

	for (size_t i = 0; i < packets->n_packet_num; i++, packet = next_packet(packet)) {
		if (rc == 0)
			rc = send_packet(fd, packet);
	}
	if (server->api->free_packets(fd, packets->pkts, packets->n_packet_num) != 0)
		perror("free_packets");
	return rc;
}

static ssize_t receive_zcopy_or_copy(const struct server *server, int fd, void *room, int *flags)
{
	*flags = MSG_DONTWAIT;
	return server->api != NULL ? server->api->recvfrom_zcopy(fd, room, ROOM, flags, NULL, NULL)
	                           : recv(fd, room, ROOM, *flags);
}

/* 0: there may be more. */
static int echo_zcopy_packets(struct server *server, int fd)
{
	static union {
		struct vma_packets_t packets;
		char bytes[ROOM];
	} room;
	int flags;
	const ssize_t n = receive_zcopy_or_copy(server, fd, &room, &flags);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	if (n == 0)
		return -1;
	if (server->api == NULL || !(flags & MSG_VMA_ZCOPY)) {
		server->copied += (uint64_t)n;
		return send_all(fd, room.bytes, (size_t)n);
	}
	server->zero_copied += (uint64_t)n;
	return echo_packets(server, fd, &room.packets);
}

static int epoll_add_readable_fd(const struct server *server, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	return epoll_ctl(server->set, EPOLL_CTL_ADD, fd, &event);
}

static void accept_or_echo_on_readable_fd(struct server *server, int fd)
{
	int connection;

	if (fd != server->listener) {
		if (echo_zcopy_packets(server, fd) != 0) {
			close(fd);
			server->ended++;
		}
		return;
	}
	connection = accept(server->listener, NULL, NULL);
	if (connection >= 0 && epoll_add_readable_fd(server, connection) != 0)
		close(connection);
}

static int open_tcp_listener_and_epoll_set(struct server *server, const char *address, const char *port)
{
	const int one = 1;
	struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	server->listener = socket(AF_INET, SOCK_STREAM, 0);
	server->set = epoll_create1(0);
	if (server->listener < 0 || server->set < 0)
		return -1;
	if (inet_pton(AF_INET, address, &local.sin_addr) != 1) {
		errno = EINVAL;
		return -1;
	}
	if (setsockopt(server->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
	    bind(server->listener, (struct sockaddr *)&local, sizeof(local)) != 0 || listen(server->listener, 64) != 0)
		return -1;
	return epoll_add_readable_fd(server, server->listener);
}

int main(int argc, char **argv)
{
	struct server server = {.api = vma_get_api()};
	struct epoll_event events[EVENTS];
	uint64_t connections;

	if (argc < 3) {
		fprintf(stderr, "usage: %s ADDRESS PORT [CONNECTIONS]\n", argv[0]);
		return 2;
	}
	connections = argc > 3 ? strtoull(argv[3], NULL, 10) : UINT64_MAX;
	if (server.api != NULL && !(server.api->vma_extra_supported_mask & VMA_EXTRA_API_RECVFROM_ZCOPY))
		server.api = NULL;
	if (open_tcp_listener_and_epoll_set(&server, argv[1], argv[2]) != 0) {
		perror(argv[1]);
		return 1;
	}
	printf("listening, %s\n", server.api != NULL ? "without copies" : "by recv");
	fflush(stdout);
	while (server.ended < connections) {
		const int n = epoll_wait(server.set, events, EVENTS, -1);

		for (int i = 0; i < n; i++)
			accept_or_echo_on_readable_fd(&server, events[i].data.fd);
	}
	printf("%" PRIu64 " connections, %" PRIu64 " bytes without a copy, %" PRIu64 " copied\n", server.ended,
	       server.zero_copied, server.copied);
	return 0;
}
