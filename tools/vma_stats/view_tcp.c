/* view_tcp - -t: offloaded TCP sockets, in the columns and words of `ss -tin`. Unknown values are left out. */
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <vma/tcp.h>

#include "processes.h"
#include "view.h"

static const char *tcp_state_name_as_in_ss(uint64_t state)
{
	static const char *const names[] = {"",          "ESTAB",  "SYN-SENT",   "SYN-RECV", "FIN-WAIT-1", "FIN-WAIT-2",
	                                    "TIME-WAIT", "UNCONN", "CLOSE-WAIT", "LAST-ACK", "LISTEN",     "CLOSING"};

	return state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

static const char *cc_name(uint64_t number)
{
	static const char *const names[] = {
#define X(name, number, text) [number] = text,
	        VMA_TCP_CCS(X)
#undef X
	};

	return number < sizeof(names) / sizeof(names[0]) ? names[number] : "?";
}

/* As ss prints times: milliseconds, without zeros at the end. */
static void print_ms(FILE *out, const char *before, double usec)
{
	fprintf(out, "%s%g", before, usec / 1000);
}

static void print_count_unless_zero(FILE *out, const char *name, uint64_t count)
{
	if (count != 0)
		fprintf(out, " %s:%" PRIu64, name, count);
}

static uint64_t bytes_to_segment_count(uint64_t bytes, uint64_t mss)
{
	return (bytes + mss - 1) / mss;
}

static void print_rto_and_rtt(FILE *out, const struct vma_stats_socket *s)
{
	const uint64_t rtt = view_read_counter(&s->tcp_rtt_usec), var = view_read_counter(&s->tcp_rttvar_usec);

	print_ms(out,
	         " rto:", (double)(vma_tcp_rto_ns(rtt * 1000, var * 1000, view_read_counter(&s->tcp_backoff)) / 1000));
	print_count_unless_zero(out, "backoff", view_read_counter(&s->tcp_backoff));
	if (rtt != 0) {
		print_ms(out, " rtt:", (double)rtt);
		print_ms(out, "/", (double)var);
	}
}

static void print_mss_cwnd_ssthresh(FILE *out, const struct vma_stats_socket *s, uint64_t mss)
{
	fprintf(out, " mss:%" PRIu64 " cwnd:%" PRIu64, mss, view_read_counter(&s->tcp_cwnd_bytes) / mss);
	if (view_read_counter(&s->tcp_ssthresh_bytes) != UINT32_MAX)
		fprintf(out, " ssthresh:%" PRIu64, view_read_counter(&s->tcp_ssthresh_bytes) / mss);
}

static void print_tcp_byte_and_segment_counts(FILE *out, const struct vma_stats_socket *s, uint64_t mss)
{
	const uint64_t rtt = view_read_counter(&s->tcp_rtt_usec);

	print_count_unless_zero(out, "bytes_sent", view_read_counter(&s->tcp_bytes_out));
	print_count_unless_zero(out, "bytes_acked", view_read_counter(&s->tcp_bytes_acked));
	print_count_unless_zero(out, "bytes_received", view_read_counter(&s->tcp_bytes_in));
	print_count_unless_zero(out, "segs_out", view_read_counter(&s->tcp_segments_out));
	print_count_unless_zero(out, "segs_in", view_read_counter(&s->tcp_segments_in));
	if (rtt != 0)
		fprintf(out, " send %.0fbps",
		        (double)(view_read_counter(&s->tcp_cwnd_bytes) / mss * mss) * 8e6 / (double)rtt);
	print_count_unless_zero(out, "unacked", bytes_to_segment_count(view_read_counter(&s->tcp_unacked_bytes), mss));
	if (view_read_counter(&s->tcp_retransmits) != 0)
		fprintf(out, " retrans:%" PRIu64 "/%" PRIu64,
		        bytes_to_segment_count(view_read_counter(&s->tcp_retransmitting_bytes), mss),
		        view_read_counter(&s->tcp_retransmits));
	print_count_unless_zero(out, "rcv_ooopack", view_read_counter(&s->tcp_out_of_order));
	print_count_unless_zero(out, "snd_wnd", view_read_counter(&s->tcp_send_window));
}

/* Of a connection whose handshake has begun. */
static void print_tcp_info_line(FILE *out, const struct vma_stats_socket *s)
{
	const uint64_t mss = view_read_counter(&s->tcp_mss);

	fprintf(out, "\t %s", view_read_counter(&s->tcp_cc) != 0 ? cc_name(view_read_counter(&s->tcp_cc) - 1) : "");
	if (view_read_counter(&s->tcp_snd_wscale) != 0 && view_read_counter(&s->tcp_rcv_wscale) != 0)
		fprintf(out, " wscale:%" PRIu64 ",%" PRIu64, view_read_counter(&s->tcp_snd_wscale) - 1,
		        view_read_counter(&s->tcp_rcv_wscale) - 1);
	print_rto_and_rtt(out, s);
	print_mss_cwnd_ssthresh(out, s, mss);
	print_tcp_byte_and_segment_counts(out, s, mss);
	fputc('\n', out);
}

/* What was written and is not acknowledged. Senders and the driver count apart, so the two never fit exactly. */
static uint64_t socket_unacked_bytes(const struct view_input *in, const struct vma_stats_socket *socket)
{
	const size_t place = (size_t)((const char *)socket - (const char *)in->now);
	const struct vma_stats_socket *s = (const struct vma_stats_socket *)((const char *)in->total + place);
	const uint64_t written = view_read_counter(&s->tx_bytes), acked = view_read_counter(&s->tcp_bytes_acked);
	const uint64_t unacked = view_read_counter(&s->tcp_unacked_bytes);

	return written > acked && written - acked > unacked ? written - acked : unacked;
}

void print_tcp_table_header(FILE *out)
{
	fputs("State      Recv-Q Send-Q     Local Address:Port      Peer Address:Port  Process\n", out);
}

void view_tcp(const struct view_input *in)
{
	char name[PROCESSES_NAME_BYTES];
	const bool named = processes_name(in->now->pid, name);

	for (size_t i = 0; i < in->now->count; i++) {
		const struct vma_stats_socket *s = &in->now->items[i].socket;
		char local[VIEW_NAME_BYTES], peer[VIEW_NAME_BYTES], receives[24] = "-", sends[24] = "-";
		uint64_t packets, bytes;

		if (!view_is_selected_socket(in, &in->now->items[i]) ||
		    view_read_counter(&s->protocol) != IPPROTO_TCP || view_read_counter(&s->offloaded) == 0)
			continue;
		view_format_address_and_port(local, view_read_counter(&s->local_addr),
		                             view_read_counter(&s->local_port));
		view_format_address_and_port(peer, view_read_counter(&s->peer_addr), view_read_counter(&s->peer_port));
		if (view_read_counter(&s->tcp_state) !=
		    TCP_LISTEN) { /* its queues are of connections, and are not known */
			view_queued_packets_and_bytes(in, s, &packets, &bytes);
			snprintf(receives, sizeof(receives), "%" PRIu64, bytes);
			snprintf(sends, sizeof(sends), "%" PRIu64, socket_unacked_bytes(in, s));
		}
		fprintf(in->out, "%-10s %-6s %-6s %22s %22s  users:((\"%s\",pid=%d,fd=%" PRIu64 "))\n",
		        tcp_state_name_as_in_ss(view_read_counter(&s->tcp_state)), receives, sends, local, peer,
		        named ? name : "?", in->now->pid, view_read_counter(&s->fd));
		if (view_read_counter(&s->tcp_mss) != 0)
			print_tcp_info_line(in->out, s);
	}
}
