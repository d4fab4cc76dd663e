/* metrics_name - metrics and their counters: the rule, and its exceptions. */
#include <stdio.h>
#include <string.h>

#include "metrics_name.h"

/* Counters under names of their own, and all that holds now, or is a maximum. */
static const struct exception {
	enum vma_stats_type type;
	const char *field, *name;
	bool counter;
	enum metrics_over over;
	double scale;
} exceptions[] = {
        {VMA_STATS_TYPE_SOCKET, "tcp_bytes_in", "tcp_in_bytes", true, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_SOCKET, "tcp_bytes_acked", "tcp_acked_bytes", true, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_SOCKET, "rx_migrations", "rx_migrations", true, METRICS_NOT_AGGREGATED, 1},
        {VMA_STATS_TYPE_SOCKET, "tx_migrations", "tx_migrations", true, METRICS_NOT_AGGREGATED, 1},
        {VMA_STATS_TYPE_SOCKET, "rx_limit_bytes", "rx_limit_bytes", false, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_SOCKET, "rx_queue_max", "rx_queue_max_packets", false, METRICS_AGGREGATE_MAX, 1},
        {VMA_STATS_TYPE_SOCKET, "rx_queue_max_bytes", "rx_queue_max_bytes", false, METRICS_AGGREGATE_MAX, 1},
        {VMA_STATS_TYPE_SOCKET, "tcp_rtt_usec", "tcp_rtt_seconds", false, METRICS_AGGREGATE_MAX, 1e-6},
        {VMA_STATS_TYPE_SOCKET, "tcp_rttvar_usec", "tcp_rtt_variation_seconds", false, METRICS_AGGREGATE_MAX, 1e-6},
        {VMA_STATS_TYPE_SOCKET, "tcp_mss", "tcp_segment_max_bytes", false, METRICS_AGGREGATE_MAX, 1},
        {VMA_STATS_TYPE_SOCKET, "tcp_cwnd_bytes", "tcp_cwnd_bytes", false, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_SOCKET, "tcp_send_window", "tcp_send_window_bytes", false, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_SOCKET, "tcp_unacked_bytes", "tcp_unacked_bytes", false, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_SOCKET, "tcp_out_of_order_bytes", "tcp_out_of_order_bytes", false, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_CQ, "poll_max", "poll_max_packets", false, METRICS_AGGREGATE_MAX, 1},
        {VMA_STATS_TYPE_CQ, "moderation_count", "moderation_packets", false, METRICS_AGGREGATE_MAX, 1},
        {VMA_STATS_TYPE_CQ, "moderation_period_usec", "moderation_period_seconds", false, METRICS_AGGREGATE_MAX, 1e-6},
        {VMA_STATS_TYPE_CQ, "spare_buffers", "spare_buffers", false, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_BUFPOOL, "buffers", "buffers", false, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_NIC, "flows", "flows", false, METRICS_AGGREGATE_SUM, 1},
        {VMA_STATS_TYPE_IOMUX, "polling_cpu", "polling_ratio", false, METRICS_AGGREGATE_MAX, 0.01},
};

/* Counters of one family: what follows the prefix is the reason. */
static const struct reasons {
	enum vma_stats_type type;
	const char *prefix, *name, *help;
} reasons[] = {
        {VMA_STATS_TYPE_RING, "rx_drop_", "rx_dropped_packets", "packets received and dropped, by reason"},
        {VMA_STATS_TYPE_RING, "tx_drop_", "tx_dropped_packets", "packets not sent, by reason"},
        {VMA_STATS_TYPE_CQ, "drop_", "dropped_packets", "packets polled and dropped, by reason"},
};

static const struct exception *metrics_name_exception_of(enum vma_stats_type type, const char *field)
{
	for (unsigned i = 0; i < sizeof(exceptions) / sizeof(exceptions[0]); i++)
		if (exceptions[i].type == type && strcmp(exceptions[i].field, field) == 0)
			return &exceptions[i];
	return NULL;
}

static const struct reasons *metrics_reason_family_of(enum vma_stats_type type, const char *field)
{
	for (unsigned i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
		if (reasons[i].type == type && strncmp(field, reasons[i].prefix, strlen(reasons[i].prefix)) == 0)
			return &reasons[i];
	return NULL;
}

/* OpenMetrics: a family with a unit ends in it. */
static const char *metrics_unit_suffix_of(const char *family)
{
	static const char *const units[] = {"bytes", "seconds", "packets", "ratio"};
	const size_t len = strlen(family);

	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		const size_t unit_len = strlen(units[i]);

		if (len > unit_len && family[len - unit_len - 1] == '_' &&
		    strcmp(family + len - unit_len, units[i]) == 0)
			return units[i];
	}
	return NULL;
}

static bool is_wakeup_histogram_field(enum vma_stats_type type, const char *field)
{
	return type == VMA_STATS_TYPE_PROCESS && strncmp(field, "wake_", 5) == 0;
}

enum metrics_over metrics_aggregation_of_field(enum vma_stats_type type, const struct vma_stats_field *field)
{
	const struct exception *exception = metrics_name_exception_of(type, field->name);

	return exception != NULL ? exception->over : METRICS_AGGREGATE_SUM;
}

bool metrics_name(enum vma_stats_type type, const struct vma_stats_field *field, struct metrics_name *out)
{
	const struct exception *exception = metrics_name_exception_of(type, field->name);
	const struct reasons *family = metrics_reason_family_of(type, field->name);
	const char *name = field->name;

	if ((exception == NULL && field->kind != VMA_STATS_COUNT) || is_wakeup_histogram_field(type, field->name))
		return false;
	*out = (struct metrics_name){.help = field->text, .counter = true, .over = METRICS_AGGREGATE_SUM, .scale = 1};
	if (exception != NULL) {
		name = exception->name;
		out->counter = exception->counter;
		out->over = exception->over;
		out->scale = exception->scale;
	} else if (family != NULL) {
		name = family->name;
		out->help = family->help;
		out->reason = field->name + strlen(family->prefix);
	}
	snprintf(out->family, sizeof(out->family), "vma_%s_%s", vma_stats_type_name(type), name);
	out->unit = metrics_unit_suffix_of(out->family);
	return true;
}
