/* view_tcp - -t: offloaded TCP sockets, in the columns and words of `ss -tin`. What is not known is left out. */
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <vma/tcp.h>

#include "processes.h"
#include "view.h"

static const char *ss_state(uint64_t state)
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

static void print_count(FILE *out, const char *name, uint64_t count)
{
	if (count != 0)
		fprintf(out, " %s:%" PRIu64, name, count);
}

static uint64_t bytes_in_segments(uint64_t bytes, uint64_t mss)
{
	return (bytes + mss - 1) / mss;
}

static void print_timing(FILE *out, const struct vma_stats_socket *s)
{
	const uint64_t rtt = view_count(&s->tcp_rtt_usec), var = view_count(&s->tcp_rttvar_usec);

	print_ms(out, " rto:", (double)(vma_tcp_rto_ns(rtt * 1000, var * 1000, view_count(&s->tcp_backoff)) / 1000));
	print_count(out, "backoff", view_count(&s->tcp_backoff));
	if (rtt != 0) {
		print_ms(out, " rtt:", (double)rtt);
		print_ms(out, "/", (double)var);
	}
}

static void print_window(FILE *out, const struct vma_stats_socket *s, uint64_t mss)
{
	fprintf(out, " mss:%" PRIu64 " cwnd:%" PRIu64, mss, view_count(&s->tcp_cwnd_bytes) / mss);
	if (view_count(&s->tcp_ssthresh_bytes) != UINT32_MAX)
		fprintf(out, " ssthresh:%" PRIu64, view_count(&s->tcp_ssthresh_bytes) / mss);
}

static void print_amounts(FILE *out, const struct vma_stats_socket *s, uint64_t mss)
{
	const uint64_t rtt = view_count(&s->tcp_rtt_usec);

	print_count(out, "bytes_sent", view_count(&s->tcp_bytes_out));
	print_count(out, "bytes_acked", view_count(&s->tcp_bytes_acked));
	print_count(out, "bytes_received", view_count(&s->tcp_bytes_in));
	print_count(out, "segs_out", view_count(&s->tcp_segments_out));
	print_count(out, "segs_in", view_count(&s->tcp_segments_in));
	if (rtt != 0)
		fprintf(out, " send %.0fbps", (double)(view_count(&s->tcp_cwnd_bytes) / mss * mss) * 8e6 / (double)rtt);
	print_count(out, "unacked", bytes_in_segments(view_count(&s->tcp_unacked_bytes), mss));
	if (view_count(&s->tcp_retransmits) != 0)
		fprintf(out, " retrans:%" PRIu64 "/%" PRIu64,
		        bytes_in_segments(view_count(&s->tcp_retransmitting_bytes), mss),
		        view_count(&s->tcp_retransmits));
	print_count(out, "rcv_ooopack", view_count(&s->tcp_out_of_order));
	print_count(out, "snd_wnd", view_count(&s->tcp_send_window));
}

/* Of a connection whose handshake has begun. */
static void print_info(FILE *out, const struct vma_stats_socket *s)
{
	const uint64_t mss = view_count(&s->tcp_mss);

	fprintf(out, "\t %s", view_count(&s->tcp_cc) != 0 ? cc_name(view_count(&s->tcp_cc) - 1) : "");
	if (view_count(&s->tcp_snd_wscale) != 0 && view_count(&s->tcp_rcv_wscale) != 0)
		fprintf(out, " wscale:%" PRIu64 ",%" PRIu64, view_count(&s->tcp_snd_wscale) - 1,
		        view_count(&s->tcp_rcv_wscale) - 1);
	print_timing(out, s);
	print_window(out, s, mss);
	print_amounts(out, s, mss);
	fputc('\n', out);
}

/* What was written and is not acknowledged. Senders and the driver count apart, so the two never fit exactly. */
static uint64_t socket_unacked_bytes(const struct view_input *in, const struct vma_stats_socket *socket)
{
	const size_t place = (size_t)((const char *)socket - (const char *)in->now);
	const struct vma_stats_socket *s = (const struct vma_stats_socket *)((const char *)in->total + place);
	const uint64_t written = view_count(&s->tx_bytes), acked = view_count(&s->tcp_bytes_acked);
	const uint64_t unacked = view_count(&s->tcp_unacked_bytes);

	return written > acked && written - acked > unacked ? written - acked : unacked;
}

void view_tcp_head(FILE *out)
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

		if (!view_is_socket(in, &in->now->items[i]) || view_count(&s->protocol) != IPPROTO_TCP ||
		    view_count(&s->offloaded) == 0)
			continue;
		view_name(local, view_count(&s->local_addr), view_count(&s->local_port));
		view_name(peer, view_count(&s->peer_addr), view_count(&s->peer_port));
		if (view_count(&s->tcp_state) != TCP_LISTEN) { /* its queues are of connections, and are not known */
			view_queue(in, s, &packets, &bytes);
			snprintf(receives, sizeof(receives), "%" PRIu64, bytes);
			snprintf(sends, sizeof(sends), "%" PRIu64, socket_unacked_bytes(in, s));
		}
		fprintf(in->out, "%-10s %-6s %-6s %22s %22s  users:((\"%s\",pid=%d,fd=%" PRIu64 "))\n",
		        ss_state(view_count(&s->tcp_state)), receives, sends, local, peer, named ? name : "?",
		        in->now->pid, view_count(&s->fd));
		if (view_count(&s->tcp_mss) != 0)
			print_info(in->out, s);
	}
}
