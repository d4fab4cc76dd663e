/* socket_filter - a socket's names, taken from the statistics of its process. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

#include "socket_filter.h"

static void filter_text_of_host(char text[32], const char *direction, uint64_t address)
{
	const struct in_addr in = {htonl((uint32_t)address)};
	char name[INET_ADDRSTRLEN];

	text[0] = '\0';
	if (address != INADDR_ANY && inet_ntop(AF_INET, &in, name, sizeof(name)) != NULL)
		snprintf(text, 32, "%s host %s and ", direction, name);
}

static bool filter_text_of_socket(const struct vma_stats_socket *socket, char *text, size_t bytes)
{
	const bool tcp = vma_stats_read_counter(&socket->protocol) == IPPROTO_TCP;
	const unsigned local_port = (uint16_t)vma_stats_read_counter(&socket->local_port);
	const unsigned peer_port = (uint16_t)vma_stats_read_counter(&socket->peer_port);
	char in[32], out[32], peer_in[32] = "", peer_out[32] = "", port_in[32] = "", port_out[32] = "";

	if (local_port == 0)
		return false;
	filter_text_of_host(in, "dst", vma_stats_read_counter(&socket->local_addr));
	filter_text_of_host(out, "src", vma_stats_read_counter(&socket->local_addr));
	if (peer_port != 0) {
		filter_text_of_host(peer_in, "src", vma_stats_read_counter(&socket->peer_addr));
		filter_text_of_host(peer_out, "dst", vma_stats_read_counter(&socket->peer_addr));
		snprintf(port_in, sizeof(port_in), " and src port %u", peer_port);
		snprintf(port_out, sizeof(port_out), " and dst port %u", peer_port);
	}
	snprintf(text, bytes, "%s and ((%s%sdst port %u%s) or (%s%ssrc port %u%s))", tcp ? "tcp" : "udp", in, peer_in,
	         local_port, port_in, out, peer_out, local_port, port_out);
	return true;
}

bool socket_filter(struct vma_stats_view *view, int fd, char *text, size_t bytes)
{
	enum vma_stats_type type;
	const void *block;
	const char *name;
	size_t cursor = 0;

	while (vma_stats_view_next(view, &cursor, &type, &name, &block)) {
		const struct vma_stats_socket *socket = block;

		if (type == VMA_STATS_TYPE_SOCKET && vma_stats_read_counter(&socket->fd) == (uint64_t)fd)
			return filter_text_of_socket(socket, text, bytes);
	}
	return false;
}
