/*
 * metrics_name - the metric of each counter of <vma/stats.h>. Names follow from the lists there, so a new counter is a
 * metric by itself. A value that holds now (a gauge) is a metric only if it is in the table of metrics_name.c.
 *
 *   ring.rx_bytes              vma_ring_rx_bytes_total, a counter in bytes
 *   ring.rx_drop_runt          vma_ring_rx_dropped_packets_total{reason="runt"}
 *   socket.tcp_rtt_usec        vma_socket_tcp_rtt_seconds, a gauge
 *
 * Threads: any.
 */
#ifndef VMA_STATS_TOOL_METRICS_NAME_H
#define VMA_STATS_TOOL_METRICS_NAME_H

#include <vma/stats_read.h>

/* How the values of several objects become one of their process. */
enum metrics_over {
	METRICS_AGGREGATE_SUM,
	METRICS_AGGREGATE_MAX,
	METRICS_NOT_AGGREGATED /* they do not: it is shown of each object only */
};

struct metrics_name {
	char family[64];         /* without the counter's "_total" */
	const char *help, *unit; /* unit NULL: it has none */
	const char *reason;      /* of the label "reason"; NULL: it has no such label */
	bool counter;            /* else a gauge */
	enum metrics_over over;
	double scale; /* the metric is so many times the counter */
};
enum metrics_over metrics_aggregation_of_field(enum vma_stats_type type, const struct vma_stats_field *field);
/* False: the counter is no metric (an address, for example, or a bucket of a histogram). */
bool metrics_name(enum vma_stats_type type, const struct vma_stats_field *field, struct metrics_name *out);

#endif
