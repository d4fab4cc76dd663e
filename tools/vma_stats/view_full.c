/* view_full - view 3: all of each socket, and the completion queues, rings and buffer pools below them. */
#include <netinet/in.h>
#include <string.h>

#include "view.h"

#define RULE "======================================================\n"

static void print_socket_addresses(FILE *out, const struct vma_stats_socket *socket)
{
	const _Atomic uint64_t *groups = &socket->group_0;
	const uint64_t count = view_read_counter(&socket->groups);
	char text[VIEW_NAME_BYTES];

	fprintf(out, "- %s", view_read_counter(&socket->nonblocking) != 0 ? "Non-blocked" : "Blocked");
	if (view_read_counter(&socket->protocol) == IPPROTO_UDP)
		fprintf(out, ", MC Loop %s", view_read_counter(&socket->mc_loop) != 0 ? "Enabled" : "Disabled");
	fputc('\n', out);
	if (view_read_counter(&socket->local_port) != 0 || view_read_counter(&socket->local_addr) != 0) {
		view_format_address_and_port(text, view_read_counter(&socket->local_addr),
		                             view_read_counter(&socket->local_port));
		fprintf(out, "- Bound IF  = [%s]\n", text);
	}
	if (view_read_counter(&socket->peer_port) != 0) {
		view_format_address_and_port(text, view_read_counter(&socket->peer_addr),
		                             view_read_counter(&socket->peer_port));
		fprintf(out, "- Connected = [%s]\n", text);
	}
	for (uint64_t i = 0; i < count && i < VMA_STATS_SOCKET_GROUPS; i++) {
		view_format_ipv4_address(text, view_read_counter(&groups[i]));
		fprintf(out, "- Member of = [%s]\n", text);
	}
}

static void print_socket_offload_counters(const struct view_input *in, const struct vma_stats_socket *s)
{
	FILE *out = in->out;

	if (view_read_counter(&s->tx_packets) + view_read_counter(&s->tx_drops) + view_read_counter(&s->tx_errors) != 0)
		fprintf(out,
		        "Tx Offload: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " / %" PRIu64
		        " [kilobytes/packets/drops/errors]\n",
		        view_read_bytes_as_kb(&s->tx_bytes), view_read_counter(&s->tx_packets),
		        view_read_counter(&s->tx_drops), view_read_counter(&s->tx_errors));
	if (view_read_counter(&s->tx_dummies) != 0)
		fprintf(out, "Tx Dummy messages : %" PRIu64 "\n", view_read_counter(&s->tx_dummies));
	if (view_read_counter(&s->tx_os_packets) + view_read_counter(&s->tx_os_errors) != 0)
		fprintf(out, "Tx OS info: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " [kilobytes/packets/errors]\n",
		        view_read_bytes_as_kb(&s->tx_os_bytes), view_read_counter(&s->tx_os_packets),
		        view_read_counter(&s->tx_os_errors));
	if (view_read_counter(&s->rx_packets) + view_read_counter(&s->rx_eagain) + view_read_counter(&s->rx_errors) !=
	    0)
		fprintf(out,
		        "Rx Offload: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " / %" PRIu64
		        " [kilobytes/packets/eagains/errors]\n",
		        view_read_bytes_as_kb(&s->rx_bytes), view_read_counter(&s->rx_packets),
		        view_read_counter(&s->rx_eagain), view_read_counter(&s->rx_errors));
	if (view_read_counter(&s->rx_os_packets) + view_read_counter(&s->rx_os_errors) != 0)
		fprintf(out, "Rx OS info: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " [kilobytes/packets/errors]\n",
		        view_read_bytes_as_kb(&s->rx_os_bytes), view_read_counter(&s->rx_os_packets),
		        view_read_counter(&s->rx_os_errors));
}

static void print_socket_rx_queue(const struct view_input *in, const struct vma_stats_socket *s)
{
	const char *const dropped = in->options->deltas ? "dropped/s" : "dropped";
	const uint64_t hits = view_read_counter(&s->rx_poll_hits), misses = view_read_counter(&s->rx_poll_misses);
	uint64_t packets, bytes;

	view_queued_packets_and_bytes(in, s, &packets, &bytes);
	if (view_read_counter(&s->rx_packets) + view_read_counter(&s->rx_queue_max) +
	            view_read_counter(&s->rx_queue_max_bytes) + view_read_counter(&s->rx_dropped) !=
	    0) {
		fprintf(in->out, "Rx byte: cur %" PRIu64 " / max %" PRIu64 " / %s %" PRIu64 " / limit %" PRIu64 "\n",
		        bytes, view_read_counter(&s->rx_queue_max_bytes), dropped, view_rate(in, &s->rx_dropped_bytes),
		        view_read_counter(&s->rx_limit_bytes));
		fprintf(in->out, "Rx pkt : cur %" PRIu64 " / max %" PRIu64 " / %s %" PRIu64 "\n", packets,
		        view_read_counter(&s->rx_queue_max), dropped, view_rate(in, &s->rx_dropped));
	}
	if (hits + misses != 0)
		fprintf(in->out, "Rx poll: %" PRIu64 " / %" PRIu64 " (%.2f%%) [miss/hit]\n", misses, hits,
		        view_percent(hits, misses));
}

static void print_tcp(const struct view_input *in, const struct vma_stats_socket *s)
{
	if (view_read_counter(&s->protocol) != IPPROTO_TCP || view_read_counter(&s->tcp_segments_in) == 0)
		return;
	fprintf(in->out,
	        "TCP    : %s, rtt %" PRIu64 " / rttvar %" PRIu64 " / cwnd %" PRIu64 " / mss %" PRIu64
	        " [usec/usec/bytes/bytes]\n",
	        view_tcp_state_name(view_read_counter(&s->tcp_state)), view_read_counter(&s->tcp_rtt_usec),
	        view_read_counter(&s->tcp_rttvar_usec), view_read_counter(&s->tcp_cwnd_bytes),
	        view_read_counter(&s->tcp_mss));
	fprintf(in->out,
	        "TCP seg: %" PRIu64 " / %" PRIu64 " / %" PRIu64 " / %" PRIu64
	        " [received/sent/retransmitted/out of order]\n",
	        view_read_counter(&s->tcp_segments_in), view_read_counter(&s->tcp_segments_out),
	        view_read_counter(&s->tcp_retransmits), view_read_counter(&s->tcp_out_of_order));
}

static void print_full_socket(const struct view_input *in, const struct vma_stats_socket *socket)
{
	fprintf(in->out, RULE "        Fd=[%" PRIu64 "]\n", view_read_counter(&socket->fd));
	print_socket_addresses(in->out, socket);
	print_socket_offload_counters(in, socket);
	print_socket_rx_queue(in, socket);
	print_tcp(in, socket);
}

static void print_labelled_number(FILE *out, const char *label, uint64_t amount)
{
	fprintf(out, "%-18s%13" PRIu64 "\n", label, amount);
}

/* The block of another type that belongs to the same ring: they have one name. */
static const struct vma_stats_item *
stats_block_of_same_ring(const struct view_input *in, const struct vma_stats_item *item, enum vma_stats_type type)
{
	return vma_stats_snapshot_find(in->now, type, item->name);
}

static void print_cq(const struct view_input *in, const struct vma_stats_item *item, unsigned number)
{
	const struct vma_stats_item *nic = stats_block_of_same_ring(in, item, VMA_STATS_TYPE_NIC);
	const struct vma_stats_cq *cq = &item->cq;
	uint64_t dropped = view_read_counter(&cq->drop_no_memory) + view_read_counter(&cq->drop_chain);

	if (nic != NULL)
		dropped += view_read_counter(&nic->nic.rx_dropped);
	fprintf(in->out, RULE "        CQ=[%u]\n", number);
	print_labelled_number(in->out, "Packets dropped:", dropped);
	print_labelled_number(in->out, "Packets queue len:", 0); /* what is polled goes on at once */
	print_labelled_number(in->out, "Drained max:", view_read_counter(&cq->poll_max));
	print_labelled_number(in->out, "Buffer pool size:", view_read_counter(&cq->spare_buffers));
	fputs(RULE, in->out);
}

/* "12 / 34" and blanks up to what stands behind. */
static void print_pair(FILE *out, const char *label, uint64_t first, uint64_t second, const char *units)
{
	char pair[48];

	snprintf(pair, sizeof(pair), "%" PRIu64 " / %" PRIu64, first, second);
	fprintf(out, "%-15s%-20s%s\n", label, pair, units);
}

static void print_ring(const struct view_input *in, const struct vma_stats_item *item, unsigned number)
{
	const struct vma_stats_item *cq = stats_block_of_same_ring(in, item, VMA_STATS_TYPE_CQ);
	const struct vma_stats_ring *ring = &item->ring;

	fprintf(in->out, RULE "        RING_ETH=[%u]\n", number);
	if (view_read_counter(&ring->tx.tx_packets) != 0)
		fprintf(in->out, "Tx Offload:    %" PRIu64 " / %" PRIu64 " [kilobytes/packets]\n",
		        view_read_bytes_as_kb(&ring->tx.tx_bytes), view_read_counter(&ring->tx.tx_packets));
	if (view_read_counter(&ring->rx.rx_packets) != 0)
		fprintf(in->out, "Rx Offload:    %" PRIu64 " / %" PRIu64 " [kilobytes/packets]\n",
		        view_read_bytes_as_kb(&ring->rx.rx_bytes), view_read_counter(&ring->rx.rx_packets));
	if (cq != NULL) {
		print_pair(in->out, "Interrupts:", view_read_counter(&cq->cq.arms), view_read_counter(&cq->cq.wakeups),
		           "[requests/received]");
		print_pair(in->out, "Moderation:", view_read_counter(&cq->cq.moderation_count),
		           view_read_counter(&cq->cq.moderation_period_usec), "[frame count/usec period]");
	}
	fputs(RULE, in->out);
}

static void print_pool(const struct view_input *in, const struct vma_stats_item *item, unsigned number)
{
	const bool sends = strncmp(item->name, "tx", 2) == 0;

	fprintf(in->out, RULE "        BUFFER_POOL(%s)=[%u]\n", sends ? "TX" : "RX", number);
	print_labelled_number(in->out, "Size:", view_read_counter(&item->bufpool.buffers));
	print_labelled_number(in->out, "No buffers error:", view_read_counter(&item->bufpool.exhausted));
}

static void print_wakeup_histogram(const struct view_input *in)
{
	const struct vma_stats_item *item = vma_stats_snapshot_find(in->now, VMA_STATS_TYPE_PROCESS, "process");
	const _Atomic uint64_t *wakes = item != NULL ? &item->process.wake_0 : NULL;
	uint64_t sum = 0;

	for (unsigned i = 0; wakes != NULL && i < VMA_STATS_WAKES; i++)
		sum += view_read_counter(&wakes[i]);
	if (sum == 0)
		return;
	fputs(RULE "        WAKE-UPS\n", in->out);
	for (unsigned i = 0; i < VMA_STATS_WAKES; i++)
		if (view_read_counter(&wakes[i]) != 0)
			fprintf(in->out, "%s%7u usec:%13" PRIu64 "\n", i + 1 < VMA_STATS_WAKES ? "< " : ">=",
			        (1024U << (i + 1 < VMA_STATS_WAKES ? i : i - 1)) / 1000, view_read_counter(&wakes[i]));
}

void view_full(const struct view_input *in)
{
	static void (*const print[])(const struct view_input *, const struct vma_stats_item *,
	                             unsigned) = {print_cq, print_ring, print_pool};
	static const enum vma_stats_type types[] = {VMA_STATS_TYPE_CQ, VMA_STATS_TYPE_RING, VMA_STATS_TYPE_BUFPOOL};

	for (size_t i = 0; i < in->now->count; i++)
		if (view_is_selected_socket(in, &in->now->items[i]))
			print_full_socket(in, &in->now->items[i].socket);
	for (unsigned t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		unsigned number = 0;

		for (size_t i = 0; i < in->now->count; i++)
			if (in->now->items[i].type == types[t])
				print[t](in, &in->now->items[i], number++);
	}
	print_wakeup_histogram(in);
	fputs(RULE, in->out);
}
