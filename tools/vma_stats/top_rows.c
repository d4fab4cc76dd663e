/* top_rows - from snapshots to rates. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include "top_rows.h"
#include "view.h"

void top_rows_fini(struct top_rows *rows)
{
	free(rows->rows);
	*rows = (struct top_rows){0};
}

static enum top_offload top_offload_state_of_socket(const struct vma_stats_socket *socket)
{
	if (view_read_counter(&socket->offloaded) != 0)
		return TOP_OFFLOADED;
	return view_is_by_kernel(socket) ? TOP_BY_KERNEL : TOP_UNDECIDED;
}

static void top_row_fill_from_socket_stats(struct top_row *row, const struct view_input *in,
                                           const struct vma_stats_item *item)
{
	const struct vma_stats_socket *s = &item->socket;

	*row = (struct top_row){
	        .place = item->place,
	        .sequence = item->sequence,
	        .fd = view_read_counter(&s->fd),
	        .reason = view_read_counter(&s->reason),
	        .local_addr = view_read_counter(&s->local_addr),
	        .local_port = view_read_counter(&s->local_port),
	        .peer_addr = view_read_counter(&s->peer_addr),
	        .peer_port = view_read_counter(&s->peer_port),
	        .tcp = view_read_counter(&s->protocol) == IPPROTO_TCP,
	        .offload = top_offload_state_of_socket(s),
	        .counts =
	                {
	                        [TOP_RX_PACKETS] =
	                                view_read_counter(&s->rx_packets) + view_read_counter(&s->rx_os_packets),
	                        [TOP_TX_PACKETS] =
	                                view_read_counter(&s->tx_packets) + view_read_counter(&s->tx_os_packets),
	                        [TOP_RX_BYTES] = view_read_counter(&s->rx_bytes) + view_read_counter(&s->rx_os_bytes),
	                        [TOP_TX_BYTES] = view_read_counter(&s->tx_bytes) + view_read_counter(&s->tx_os_bytes),
	                        [TOP_DROPS] = view_read_counter(&s->rx_dropped) + view_read_counter(&s->tx_drops),
	                },
	};
	row->listens = row->tcp && view_read_counter(&s->tcp_state) == TCP_LISTEN;
	view_queued_packets_and_bytes(in, s, &row->ready_packets, &row->ready_bytes);
}

/* Both are in the order of places, so one pass finds all pairs. */
static const struct top_row *top_row_of_previous_reading(const struct top_rows *before,
                                                         const struct vma_stats_item *item, size_t *at)
{
	while (*at < before->count && before->rows[*at].place < item->place)
		++*at;
	return *at < before->count && before->rows[*at].place == item->place &&
	                       before->rows[*at].sequence == item->sequence
	               ? &before->rows[*at]
	               : NULL;
}

/* A counter that is less than before was zeroed meanwhile. */
static void top_row_compute_rates(struct top_row *row, const struct top_row *before, double seconds)
{
	for (unsigned i = 0; i < TOP_RATES; i++)
		if (row->counts[i] > before->counts[i] && seconds > 0)
			row->rates[i] = (double)(row->counts[i] - before->counts[i]) / seconds;
	memcpy(row->history, before->history + 1, sizeof(row->history) - sizeof(row->history[0]));
	row->history[TOP_SAMPLES - 1] = (float)(row->rates[TOP_RX_PACKETS] + row->rates[TOP_TX_PACKETS]);
	row->samples = before->samples < TOP_SAMPLES ? before->samples + 1 : TOP_SAMPLES;
}

static size_t count_socket_items(const struct view_input *in)
{
	size_t n = 0;

	for (size_t i = 0; i < in->now->count; i++)
		n += view_is_selected_socket(in, &in->now->items[i]);
	return n;
}

int top_rows_update(struct top_rows *rows, const struct options *options, const struct vma_stats_snapshot *now,
                    size_t most)
{
	const struct view_input in = {.options = options, .now = now, .total = now};
	const double seconds = now->taken_ns > rows->taken_ns ? (double)(now->taken_ns - rows->taken_ns) / 1e9 : 0;
	const size_t sockets = count_socket_items(&in), count = sockets < most ? sockets : most;
	struct top_row *fresh = calloc(count + 1, sizeof(*fresh));
	size_t n = 0, at = 0;

	if (fresh == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < now->count && n < count; i++) {
		const struct top_row *before;

		if (!view_is_selected_socket(&in, &now->items[i]))
			continue;
		top_row_fill_from_socket_stats(&fresh[n], &in, &now->items[i]);
		before = top_row_of_previous_reading(rows, &now->items[i], &at);
		if (before != NULL)
			top_row_compute_rates(&fresh[n], before, seconds);
		n++;
	}
	free(rows->rows);
	*rows = (struct top_rows){
	        .rows = fresh, .count = count, .left_out = sockets - count, .taken_ns = now->taken_ns};
	return 0;
}
