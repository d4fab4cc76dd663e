/*
 * socketxtreme_server - an echo server that makes no receive call: datagrams and connections come as completions.
 *
 *   socketxtreme_server ADDRESS PORT [ANSWERS]
 *
 *   socketxtreme_poll ──┬─ a packet ──> sent back from where it lies, and given back
 *                       ├─ a connection, accepted by itself ──> counted
 *                       └─ the peer's end, or an error ──> closed
 *
 * It serves UDP and TCP on the same port, and ends after so many answers. It runs with the library preloaded, and
 * VMA_SOCKETXTREME=1.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mellanox/vma_extra.h>

enum { BATCH = 16 };

static struct vma_api_t *api;
static int udp_fd, listen_fd;
static unsigned long answers, connections, refused;

static int open_server(int type, const struct sockaddr_in *address)
{
	const int fd = socket(AF_INET, type, 0), on = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
	    bind(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 ||
	    (type == SOCK_STREAM && listen(fd, 64) != 0)) {
		perror(type == SOCK_STREAM ? "TCP" : "UDP");
		exit(1);
	}
	return fd;
}

/* A peer that does not read is not waited for: it loses what does not fit. */
static bool send_back(int fd, const struct vma_buff_t *buff, const struct sockaddr_in *to)
{
	const ssize_t sent = fd == udp_fd
	                             ? sendto(fd, buff->payload, buff->len, 0, (const struct sockaddr *)to, sizeof(*to))
	                             : send(fd, buff->payload, buff->len, MSG_DONTWAIT | MSG_NOSIGNAL);

	return sent == buff->len;
}

static void serve(struct vma_completion_t *completion)
{
	const int fd = (int)completion->user_data;

	if (completion->events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) {
		connections++;
		return;
	}
	if (completion->events & VMA_SOCKETXTREME_PACKET) {
		for (const struct vma_buff_t *buff = completion->packet.buff_lst; buff != NULL; buff = buff->next)
			refused += !send_back(fd, buff, &completion->src);
		api->socketxtreme_free_vma_packets(&completion->packet, 1);
		answers++;
	}
	if (completion->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) && fd != udp_fd && fd != listen_fd)
		close(fd);
}

/* The rings of both sockets are polled, each once: mostly they have the same one. */
static void poll_rings_of_both_sockets(void)
{
	struct vma_completion_t completions[BATCH];
	const int fds[] = {udp_fd, listen_fd};

	for (unsigned k = 0; k < 2; k++) {
		const int n = api->socketxtreme_poll(fds[k], completions, BATCH, 0);

		if (n < 0) {
			perror("socketxtreme_poll");
			exit(1);
		}
		for (int i = 0; i < n; i++)
			serve(&completions[i]);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	unsigned long most;

	if (argc < 3 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) {
		fprintf(stderr, "usage: socketxtreme_server ADDRESS PORT [ANSWERS]\n");
		return 2;
	}
	address.sin_port = htons((uint16_t)atoi(argv[2]));
	most = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
	api = vma_get_api();
	if (api == NULL || (api->vma_extra_supported_mask & VMA_EXTRA_API_SOCKETXTREME_POLL) == 0) {
		fprintf(stderr, "socketxtreme_server: preload the library, with VMA_SOCKETXTREME=1\n");
		return 1;
	}
	udp_fd = open_server(SOCK_DGRAM, &address);
	listen_fd = open_server(SOCK_STREAM, &address);
	printf("serving\n");
	fflush(stdout);
	while (most == 0 || answers < most)
		poll_rings_of_both_sockets();
	printf("answers %lu connections %lu refused %lu\n", answers, connections, refused);
	return 0;
}
