/*
 * view_basic - views 1 and 2: a table of sockets, two lines each, then the calls that wait for several.
 *
 *   fd      ------------ total offloaded -------------   ----- total os ------
 *                  pkt  Kbyte   eagain   error   poll%     pkt   Kbyte   error
 *   14  Rx:  140479898 274374        0       0   100.0       0       0       0
 *       Tx:  140479902 274502        0       0               0       0       0
 *
 * Columns are those of the field's tool, where they are read by scripts. View 2 adds columns at the right.
 */
#include <string.h>

#include "view.h"

static const char totals_head[] = "fd      ------------ total offloaded -------------   ----- total os ------%s\n"
                                  "               pkt  Kbyte   eagain   error   poll%%     pkt   Kbyte   error%s\n";
static const char deltas_head[] = "fd     --------------- offloaded ---------------- ---------- os ----------%s\n"
                                  "             pkt/s Kbyte/s eagain/s error/s  poll%%   pkt/s Kbyte/s error/s%s\n";
static const char extra_head1[] = "   --------- ready queue ---------   ---- dropped ----";
static const char extra_head2[] = "     pkt      byte  max pkt  max byte      pkt     byte";

static void print_head(const struct view_input *in)
{
	const bool extra = in->options->view == VIEW_EXTRA;

	fprintf(in->out, in->options->deltas ? deltas_head : totals_head, extra ? extra_head1 : "",
	        extra ? extra_head2 : "");
}

static void print_extra_rx(const struct view_input *in, const struct vma_stats_socket *socket)
{
	uint64_t packets, bytes;

	view_queued_packets_and_bytes(in, socket, &packets, &bytes);
	fprintf(in->out, " %7" PRIu64 " %9" PRIu64 " %8" PRIu64 " %9" PRIu64 " %8" PRIu64 " %8" PRIu64, packets, bytes,
	        view_read_counter(&socket->rx_queue_max), view_read_counter(&socket->rx_queue_max_bytes),
	        view_rate(in, &socket->rx_dropped), view_rate(in, &socket->rx_dropped_bytes));
}

static void print_extra_tx(const struct view_input *in, const struct vma_stats_socket *socket)
{
	fprintf(in->out, " %7s %9s %8s %9s %8" PRIu64 " %8s", "", "", "", "", view_rate(in, &socket->tx_drops), "");
}

static void print_socket(const struct view_input *in, const struct vma_stats_socket *s)
{
	const bool deltas = in->options->deltas, extra = in->options->view == VIEW_EXTRA;
	const double poll = view_percent(view_read_counter(&s->rx_poll_hits), view_read_counter(&s->rx_poll_misses));

	fprintf(in->out,
	        deltas ? "%3" PRIu64 "  Rx: %9" PRIu64 " %7" PRIu64 " %8" PRIu64 " %7" PRIu64 " %6.1f %7" PRIu64
	                 " %7" PRIu64 " %7" PRIu64
	               : "%-3" PRIu64 " Rx: %10" PRIu64 " %6" PRIu64 " %8" PRIu64 " %7" PRIu64 " %7.1f %7" PRIu64
	                 " %7" PRIu64 " %7" PRIu64,
	        view_read_counter(&s->fd), view_rate(in, &s->rx_packets), view_rate(in, &s->rx_bytes) / 1024,
	        view_rate(in, &s->rx_eagain), view_rate(in, &s->rx_errors), poll, view_rate(in, &s->rx_os_packets),
	        view_rate(in, &s->rx_os_bytes) / 1024, view_rate(in, &s->rx_os_errors));
	if (extra)
		print_extra_rx(in, s);
	fprintf(in->out,
	        deltas ? "\n     Tx: %9" PRIu64 " %7" PRIu64 " %8" PRIu64 " %7" PRIu64 " %14" PRIu64 " %7" PRIu64
	                 " %7" PRIu64
	               : "\n    Tx: %10" PRIu64 " %6" PRIu64 " %8" PRIu64 " %7" PRIu64 " %15" PRIu64 " %7" PRIu64
	                 " %7" PRIu64,
	        view_rate(in, &s->tx_packets), view_rate(in, &s->tx_bytes) / 1024, view_rate(in, &s->tx_eagain),
	        view_rate(in, &s->tx_errors), view_rate(in, &s->tx_os_packets), view_rate(in, &s->tx_os_bytes) / 1024,
	        view_rate(in, &s->tx_os_errors));
	if (extra)
		print_extra_tx(in, s);
	fputc('\n', in->out);
}

/* Of one kind of call, all its blocks together: epoll has one for each set. */
struct calls {
	uint64_t os_ready, ready, timeouts, errors, hits, misses, polling_cpu;
};

static void iomux_calls_add(struct calls *calls, const struct vma_stats_iomux *iomux)
{
	const uint64_t cpu = view_read_counter(&iomux->polling_cpu);

	calls->os_ready += view_read_counter(&iomux->os_ready);
	calls->ready += view_read_counter(&iomux->ready);
	calls->timeouts += view_read_counter(&iomux->timeouts);
	calls->errors += view_read_counter(&iomux->errors);
	calls->hits += view_read_counter(&iomux->poll_hits);
	calls->misses += view_read_counter(&iomux->poll_misses);
	calls->polling_cpu = cpu > calls->polling_cpu ? cpu : calls->polling_cpu;
}

static void print_iomux_calls(const struct view_input *in, const char *name)
{
	struct calls calls = {0};
	const size_t len = strlen(name);

	for (size_t i = 0; i < in->now->count; i++)
		if (in->now->items[i].type == VMA_STATS_TYPE_IOMUX && strncmp(in->now->items[i].name, name, len) == 0)
			iomux_calls_add(&calls, &in->now->items[i].iomux);
	if (calls.os_ready + calls.ready + calls.timeouts + calls.errors + calls.hits + calls.misses == 0)
		return;
	fprintf(in->out,
	        "%s() Rx Ready:%" PRIu64 "/%" PRIu64 " [os/offload] \nTimeouts:%" PRIu64 " Errors:%" PRIu64
	        " Poll:%.2f%% Polling CPU:%" PRIu64 "%%\n",
	        name, calls.os_ready, calls.ready, calls.timeouts, calls.errors, view_percent(calls.hits, calls.misses),
	        calls.polling_cpu);
}

static void print_sockets_without_counters(const struct view_input *in)
{
	const struct vma_stats_item *process = vma_stats_snapshot_find(in->now, VMA_STATS_TYPE_PROCESS, "process");
	const uint64_t unseen = process != NULL ? view_read_counter(&process->process.sockets_unseen) : 0;

	if (unseen != 0)
		fprintf(in->out, "Sockets without counters: %" PRIu64 " (VMA_STATS_FD_NUM)\n", unseen);
}

void view_basic(const struct view_input *in)
{
	print_head(in);
	for (size_t i = 0; i < in->now->count; i++)
		if (view_is_selected_socket(in, &in->now->items[i]))
			print_socket(in, &in->now->items[i].socket);
	print_iomux_calls(in, "select");
	print_iomux_calls(in, "poll");
	print_iomux_calls(in, "epoll_wait");
	if (in->options->view == VIEW_EXTRA)
		print_sockets_without_counters(in);
	fputs("--------------------------------------------------------------------------\n", in->out);
}
