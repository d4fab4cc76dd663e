/* kernel_udp - ping-pong and rate of the kernel's own UDP sockets, blocking or spinning: what we are compared with. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "loops.h"
#include "measure.h"

static int fd;
static int receive_flags;
static size_t payload_bytes;
static char packet[65536];

static void kernel_udp_open_port(const struct bench_opts *opts)
{
	struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = opts->port_be, .sin_addr = {opts->local_be}};
	struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = opts->port_be, .sin_addr = {opts->peer_be}};
	struct timeval timeout = {.tv_usec = 1000};
	int room = 4 << 20;

	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&local, sizeof(local)) != 0 ||
	    connect(fd, (struct sockaddr *)&peer, sizeof(peer)) != 0)
		bench_die("kernel UDP socket");
	/* So that a burst is not lost for want of room: the rate is to be the path's, not the default buffer's. */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) != 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	receive_flags = opts->spin ? MSG_DONTWAIT : 0;
	payload_bytes = opts->frame_bytes - BENCH_HEADERS_BYTES;
}

static unsigned kernel_udp_send_packets(uint64_t seq, unsigned n)
{
	for (unsigned i = 0; i < n; i++, seq++) {
		memcpy(packet, &seq, sizeof(seq));
		/* ECONNREFUSED: the peer's socket is not there yet. */
		if (send(fd, packet, payload_bytes, 0) < 0)
			return i;
	}
	return n;
}

static unsigned receive_packet(uint64_t *seq)
{
	if (recv(fd, packet, sizeof(packet), receive_flags) < (ssize_t)sizeof(*seq))
		return 0;
	memcpy(seq, packet, sizeof(*seq));
	return 1;
}

static unsigned echo_packet(void)
{
	ssize_t bytes = recv(fd, packet, sizeof(packet), receive_flags);

	return bytes > 0 && send(fd, packet, (size_t)bytes, 0) == bytes;
}

static void kernel_udp_close_port(void)
{
}

int main(int argc, char **argv)
{
	static const struct bench_port_ops ops = {kernel_udp_open_port, kernel_udp_send_packets, receive_packet,
	                                          echo_packet, kernel_udp_close_port};

	return bench_main(argc, argv, &ops);
}
