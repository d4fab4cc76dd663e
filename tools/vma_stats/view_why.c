/* view_why - view 6: of each socket whether it is offloaded, and if not, the first reason; and how it fares. */
#include <netinet/in.h>
#include <string.h>

#include <vma/rules.h>
#include <vma/sock.h>

#include "view.h"

static const char *const reasons[] = {
#define X(name, text) [VMA_SOCK_##name] = text,
        VMA_SOCK_REASONS(X)
#undef X
};

static const char *const reason_words[] = {
#define X(name, text) [VMA_SOCK_##name] = #name,
        VMA_SOCK_REASONS(X)
#undef X
};

void view_interface_name(const struct vma_stats_socket *socket, char text[VIEW_INTERFACE_BYTES])
{
	const uint64_t words[] = {view_read_counter(&socket->interface_0), view_read_counter(&socket->interface_1)};

	memcpy(text, words, 16);
	text[16] = '\0';
	for (char *c = text; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~')
			*c = '?';
}

const char *view_reason_to_text(uint64_t reason)
{
	return reason < sizeof(reasons) / sizeof(reasons[0]) ? reasons[reason] : "a reason of another version";
}

const char *view_reason_word(uint64_t reason)
{
	return reason < sizeof(reason_words) / sizeof(reason_words[0]) ? reason_words[reason] : "?";
}

bool view_is_by_kernel(const struct vma_stats_socket *socket)
{
	const uint64_t reason = view_read_counter(&socket->reason);

	return view_read_counter(&socket->offloaded) == 0 && reason != VMA_SOCK_NEW && reason != VMA_SOCK_DEFERRED;
}

const char *view_errno_name(uint64_t number)
{
	const char *const name = number < 4096 ? strerrorname_np((int)number) : NULL;

	return name != NULL ? name : "?";
}

static void print_rule_name(const struct view_input *in, uint64_t line)
{
	if (line & VMA_RULES_ADDED)
		fprintf(in->out, "added rule %" PRIu64, line & ~(uint64_t)VMA_RULES_ADDED);
	else
		fprintf(in->out, "line %" PRIu64 " of libvma.conf", line);
}

static void print_offload_reason(const struct view_input *in, const struct vma_stats_socket *socket)
{
	const uint64_t reason = view_read_counter(&socket->reason), line = view_read_counter(&socket->rule_line);
	char interface[VIEW_INTERFACE_BYTES];

	view_interface_name(socket, interface);
	if (view_read_counter(&socket->offloaded) != 0) {
		fputs("offloaded", in->out);
		if (interface[0] != '\0') /* a listener is on many */
			fprintf(in->out, ", interface %s", interface);
		if (view_read_counter(&socket->ring) != 0)
			fprintf(in->out, ", ring %" PRIu64, view_read_counter(&socket->ring) - 1);
		if (line != 0) {
			fputs("; what it sends to names of ", in->out);
			print_rule_name(in, line);
			fputs(" is the kernel's", in->out);
		}
		return;
	}
	fprintf(in->out, "kernel: %s", view_reason_to_text(reason));
	if (reason == VMA_SOCK_RULE) {
		fputs(" (", in->out);
		print_rule_name(in, line);
		fputc(')', in->out);
	}
}

static void print_socket_state(const struct view_input *in, const struct vma_stats_socket *s)
{
	uint64_t packets, bytes;

	view_queued_packets_and_bytes(in, s, &packets, &bytes);
	fprintf(in->out,
	        "    receive queue %" PRIu64 " packets, %" PRIu64 " bytes; most %" PRIu64 ", %" PRIu64
	        "; dropped %" PRIu64 "\n",
	        packets, bytes, view_read_counter(&s->rx_queue_max), view_read_counter(&s->rx_queue_max_bytes),
	        view_read_counter(&s->rx_dropped));
	if (view_read_counter(&s->protocol) == IPPROTO_TCP && view_read_counter(&s->tcp_segments_in) != 0)
		fprintf(in->out,
		        "    rtt %" PRIu64 " us; cwnd %" PRIu64 " bytes; unacknowledged %" PRIu64
		        " bytes; retransmissions %" PRIu64 "; out of order %" PRIu64 " bytes held\n",
		        view_read_counter(&s->tcp_rtt_usec), view_read_counter(&s->tcp_cwnd_bytes),
		        view_read_counter(&s->tcp_unacked_bytes), view_read_counter(&s->tcp_retransmits),
		        view_read_counter(&s->tcp_out_of_order_bytes));
	if (view_read_counter(&s->last_error) != 0)
		fprintf(in->out, "    last error: %s\n", view_errno_name(view_read_counter(&s->last_error)));
}

void view_why(const struct view_input *in, unsigned *shown, unsigned *by_kernel)
{
	for (size_t i = 0; i < in->now->count; i++) {
		const struct vma_stats_socket *socket = &in->now->items[i].socket;
		char local[VIEW_NAME_BYTES], peer[VIEW_NAME_BYTES];

		if (!view_is_selected_socket(in, &in->now->items[i]))
			continue;
		view_format_address_and_port(local, view_read_counter(&socket->local_addr),
		                             view_read_counter(&socket->local_port));
		view_format_address_and_port(peer, view_read_counter(&socket->peer_addr),
		                             view_read_counter(&socket->peer_port));
		fprintf(in->out, "fd %" PRIu64 " %s %s -> %s: ", view_read_counter(&socket->fd),
		        view_read_counter(&socket->protocol) == IPPROTO_TCP ? "tcp" : "udp", local, peer);
		print_offload_reason(in, socket);
		fputc('\n', in->out);
		print_socket_state(in, socket);
		++*shown;
		*by_kernel += view_is_by_kernel(socket);
	}
}
