/* view_netstat - view 5: a line for each socket, like netstat's; and how names and states are written. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "view.h"

void view_format_ipv4_address(char text[VIEW_NAME_BYTES], uint64_t address)
{
	const struct in_addr in = {htonl((uint32_t)address)};

	inet_ntop(AF_INET, &in, text, VIEW_NAME_BYTES);
}

void view_format_address_and_port(char text[VIEW_NAME_BYTES], uint64_t address, uint64_t port)
{
	size_t len;

	view_format_ipv4_address(text, address);
	len = strlen(text);
	if (port == 0)
		snprintf(text + len, VIEW_NAME_BYTES - len, ":*");
	else
		snprintf(text + len, VIEW_NAME_BYTES - len, ":%u", (unsigned)(uint16_t)port);
}

const char *view_tcp_state_name(uint64_t state)
{
	static const char *const names[] = {"",           "ESTABLISHED", "SYN_SENT",  "SYN_RECV",
	                                    "FIN_WAIT1",  "FIN_WAIT2",   "TIME_WAIT", "CLOSE",
	                                    "CLOSE_WAIT", "LAST_ACK",    "LISTEN",    "CLOSING"};

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

static uint64_t subtract_or_zero(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* What was queued, and has not been taken since. Both move while they are copied. */
void view_queued_packets_and_bytes(const struct view_input *in, const struct vma_stats_socket *socket,
                                   uint64_t *packets, uint64_t *bytes)
{
	const size_t place = (size_t)((const char *)socket - (const char *)in->now);
	const struct vma_stats_socket *s = (const struct vma_stats_socket *)((const char *)in->total + place);
	const uint64_t taken = view_read_counter(&s->rx_packets) + view_read_counter(&s->rx_lost);
	const uint64_t taken_bytes = view_read_counter(&s->rx_bytes) + view_read_counter(&s->rx_lost_bytes);

	if (view_read_counter(&s->protocol) == IPPROTO_TCP) {
		*packets = 0;
		*bytes = subtract_or_zero(view_read_counter(&s->tcp_bytes_in) + view_read_counter(&s->rx_peek_bytes),
		                          taken_bytes);
		return;
	}
	*packets = subtract_or_zero(view_read_counter(&s->rx_queued) + view_read_counter(&s->rx_peeks), taken);
	*bytes = *packets != 0 ? subtract_or_zero(view_read_counter(&s->rx_queued_bytes) +
	                                                  view_read_counter(&s->rx_peek_bytes),
	                                          taken_bytes)
	                       : 0;
}

unsigned long view_socket_inode_of_fd(int pid, uint64_t fd)
{
	char path[64], link[64];
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/%d/fd/%" PRIu64, pid, fd);
	len = readlink(path, link, sizeof(link) - 1);
	link[len > 0 ? len : 0] = '\0';
	return strncmp(link, "socket:[", 8) == 0 ? strtoul(link + 8, NULL, 10) : 0;
}

void view_print_netstat_header(FILE *out)
{
	fputs("Proto Offloaded Local Address          Foreign Address       State       Inode      PID\n", out);
}

void view_netstat(const struct view_input *in)
{
	for (size_t i = 0; i < in->now->count; i++) {
		const struct vma_stats_socket *socket = &in->now->items[i].socket;
		char local[VIEW_NAME_BYTES], peer[VIEW_NAME_BYTES];
		bool tcp;

		if (!view_is_selected_socket(in, &in->now->items[i]))
			continue;
		tcp = view_read_counter(&socket->protocol) == IPPROTO_TCP;
		view_format_address_and_port(local, view_read_counter(&socket->local_addr),
		                             view_read_counter(&socket->local_port));
		view_format_address_and_port(peer, view_read_counter(&socket->peer_addr),
		                             view_read_counter(&socket->peer_port));
		fprintf(in->out, "%-5s %-9s %-22s %-21s %-11s %-10lu %d\n", tcp ? "tcp" : "udp",
		        view_read_counter(&socket->offloaded) != 0 ? "Yes" : "No", local, peer,
		        tcp ? view_tcp_state_name(view_read_counter(&socket->tcp_state)) : "",
		        view_socket_inode_of_fd(in->now->pid, view_read_counter(&socket->fd)), in->now->pid);
	}
}
