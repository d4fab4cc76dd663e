/*
 * dump.c - what is known of a socket, in lines of the log: vma_stats -S. Labels and order are those of the field, whose
 * scripts read them.
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>

#include <vma/inet.h>
#include <vma/stats.h>

#define RULE "=================================================="

static const char *bool_text(bool is)
{
	return is ? "true" : "false";
}

static double percent(uint64_t part, uint64_t whole)
{
	return whole != 0 ? 100.0 * (double)part / (double)whole : 0;
}

static void sockaddr_in_text(const struct sockaddr_in *name, char text[32])
{
	char address[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, &name->sin_addr, address, sizeof(address));
	snprintf(text, 32, "%s:%u", address, ntohs(name->sin_port));
}

static void dump_socket_addresses_and_offload_state(const struct vma_inet_sock_description *described,
                                                    enum vma_log_level level)
{
	char text[32];

	sockaddr_in_text(described->local, text);
	vma_log_write(level, "Bind info : %s", text);
	sockaddr_in_text(described->peer, text);
	vma_log_write(level, "Connection info : %s", text);
	vma_log_write(level, "Protocol : %s", described->protocol == IPPROTO_TCP ? "PROTO_TCP" : "PROTO_UDP");
	vma_log_write(level, "Is closed : %s", bool_text(vma_file_is_closed(described->file)));
	vma_log_write(level, "Is blocking : %s", bool_text(!described->nonblocking));
	/* A buffer goes back to its pool when it is read. */
	vma_log_write(level, "Rx reuse buffer pending : false");
	vma_log_write(level, "Rx reuse buffer postponed : false");
	vma_log_write(level, "Is offloaded : %s", bool_text(described->reason == VMA_SOCK_OFFLOADED));
	if (described->reason != VMA_SOCK_OFFLOADED)
		vma_log_write(level, "Reason : %s", vma_sock_reason_text(described->reason));
}

#define N(field) vma_stats_read_counter(&s->field)

static void dump_socket_counters(const struct vma_stats_socket *s, enum vma_log_level level)
{
	vma_log_write(level,
	              "Tx Offload : %" PRIu64 " / %" PRIu64 " / %" PRIu64 " / %" PRIu64
	              " [kilobytes/packets/drops/errors]",
	              N(tx_bytes) / 1024, N(tx_packets), N(tx_drops), N(tx_errors));
	if (N(tx_dummies) != 0)
		vma_log_write(level, "Tx Dummy messages : %" PRIu64, N(tx_dummies));
	if (N(tx_os_packets) + N(tx_os_errors) != 0)
		vma_log_write(level, "Tx OS info : %" PRIu64 " / %" PRIu64 " / %" PRIu64 " [kilobytes/packets/errors]",
		              N(tx_os_bytes) / 1024, N(tx_os_packets), N(tx_os_errors));
	vma_log_write(level,
	              "Rx Offload : %" PRIu64 " / %" PRIu64 " / %" PRIu64 " / %" PRIu64
	              " [kilobytes/packets/eagains/errors]",
	              N(rx_bytes) / 1024, N(rx_packets), N(rx_eagain), N(rx_errors));
	if (N(rx_os_packets) + N(rx_os_errors) != 0)
		vma_log_write(level, "Rx OS info : %" PRIu64 " / %" PRIu64 " / %" PRIu64 " [kilobytes/packets/errors]",
		              N(rx_os_bytes) / 1024, N(rx_os_packets), N(rx_os_errors));
	vma_log_write(level, "Rx byte : max %" PRIu64 " / dropped %" PRIu64 " (%.2f%%) / limit %" PRIu64,
	              N(rx_queue_max_bytes), N(rx_dropped_bytes),
	              percent(N(rx_dropped_bytes), N(rx_bytes) + N(rx_dropped_bytes)), N(rx_limit_bytes));
	vma_log_write(level, "Rx pkt : max %" PRIu64 " / dropped %" PRIu64 " (%.2f%%)", N(rx_queue_max), N(rx_dropped),
	              percent(N(rx_dropped), N(rx_packets) + N(rx_dropped)));
	vma_log_write(level, "Rx poll : %" PRIu64 " / %" PRIu64 " (%.2f%%) [miss/hit]", N(rx_poll_misses),
	              N(rx_poll_hits), percent(N(rx_poll_hits), N(rx_poll_hits) + N(rx_poll_misses)));
}

void vma_inet_dump_begin(const struct vma_engine *engine, const struct vma_stats_socket *stats, int fd,
                         const struct vma_inet_sock_description *described, enum vma_log_level level)
{
	struct vma_stats_socket counts;

	vma_log_write(level, "============ DUMPING FD %d STATISTICS ============", fd);
	vma_log_write(level, "==================== SOCKET FD ===================");
	vma_log_write(level, "Fd number : %d", fd);
	dump_socket_addresses_and_offload_state(described, level);
	if (stats == NULL || engine == NULL) {
		vma_log_write(level, "Counters : none (VMA_STATS_FD_NUM)");
		return;
	}
	vma_stats_copy_block(engine->stats, VMA_STATS_TYPE_SOCKET, stats, &counts);
	dump_socket_counters(&counts, level);
}

void vma_inet_dump_end(enum vma_log_level level)
{
	vma_log_write(level, RULE);
	vma_log_write(level, RULE);
}
