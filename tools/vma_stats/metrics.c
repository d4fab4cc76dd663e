/* metrics - rows of values, and the families that are printed of them. */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vma/sock.h>

#include "metrics.h"
#include "metrics_name.h"
#include "processes.h"
#include "view.h"

#define ITEM_WORDS ((sizeof(struct vma_stats_item) - offsetof(struct vma_stats_item, words)) / sizeof(uint64_t))
#define LABELS_BYTES 128

enum offload { OFFLOAD_YES, OFFLOAD_NO, OFFLOAD_UNDECIDED, OFFLOADS };
static const char *const offload_names[] = {"yes", "no", "undecided"};
enum protocol { PROTOCOL_UDP, PROTOCOL_TCP, PROTOCOLS };
static const char *const protocol_names[] = {"udp", "tcp"};

struct metrics_process {
	char labels[LABELS_BYTES]; /* pid and comm */
	uint64_t sockets[PROTOCOLS][OFFLOADS];
	uint64_t queued_packets, queued_bytes;
};

struct metrics_row {
	enum vma_stats_type type;
	size_t process;
	char labels[LABELS_BYTES]; /* of the object, with a comma before; "": of the process */
	uint64_t words[ITEM_WORDS];
};

void metrics_fini(struct metrics *metrics)
{
	free(metrics->processes);
	free(metrics->rows);
	*metrics = (struct metrics){0};
}

/* ---- rows ---- */

static const char *escape_label_value(char *to, size_t bytes, const char *value)
{
	size_t n = 0;

	for (; *value != '\0' && n + 2 < bytes; value++) {
		if (*value == '"' || *value == '\\' || *value == '\n')
			to[n++] = '\\';
		to[n++] = *value == '\n' ? 'n' : *value;
	}
	to[n] = '\0';
	return to;
}

static enum protocol metrics_protocol(const struct vma_stats_socket *socket)
{
	return view_read_counter(&socket->protocol) == IPPROTO_TCP ? PROTOCOL_TCP : PROTOCOL_UDP;
}

static void metrics_label_of_object(char labels[LABELS_BYTES], const struct vma_stats_item *item, bool retired)
{
	char escaped[2 * VMA_STATS_NAME_MAX + 2];

	labels[0] = '\0';
	if (item->type == VMA_STATS_TYPE_PROCESS)
		return;
	if (item->type == VMA_STATS_TYPE_SOCKET && retired)
		snprintf(labels, LABELS_BYTES, ",fd=\"closed\"");
	else if (item->type == VMA_STATS_TYPE_SOCKET)
		snprintf(labels, LABELS_BYTES, ",fd=\"%" PRIu64 "\",proto=\"%s\"", view_read_counter(&item->socket.fd),
		         protocol_names[metrics_protocol(&item->socket)]);
	else
		snprintf(labels, LABELS_BYTES, ",%s=\"%s\"", vma_stats_type_name(item->type),
		         retired ? "closed" : escape_label_value(escaped, sizeof(escaped), item->name));
}

/* Of the last process: the row with these labels, zero if it is new; NULL: no memory. */
static struct metrics_row *metrics_find_or_add_row(struct metrics *metrics, enum vma_stats_type type,
                                                   const char *labels)
{
	const size_t process = metrics->process_count - 1;
	struct metrics_row *row;

	for (size_t i = metrics->row_count; i > 0 && metrics->rows[i - 1].process == process; i--)
		if (metrics->rows[i - 1].type == type && strcmp(metrics->rows[i - 1].labels, labels) == 0)
			return &metrics->rows[i - 1];
	if (metrics->row_count == metrics->row_room) {
		const size_t room = 2 * metrics->row_room + 16;
		struct metrics_row *rows = realloc(metrics->rows, room * sizeof(*rows));

		if (rows == NULL)
			return NULL;
		metrics->rows = rows;
		metrics->row_room = room;
	}
	row = &metrics->rows[metrics->row_count++];
	*row = (struct metrics_row){.type = type, .process = process};
	strcpy(row->labels, labels);
	return row;
}

/* An object that has a row of its own is its sum, and its maximum. */
static void add_item_fields_to_row(struct metrics_row *row, const struct vma_stats_item *item)
{
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(item->type, &count);

	for (size_t i = 0; i < count; i++) {
		const size_t word = fields[i].offset / sizeof(uint64_t);
		const uint64_t value = vma_stats_read_counter(&item->words[word]);

		if (metrics_aggregation_of_field(item->type, &fields[i]) == METRICS_AGGREGATE_MAX)
			row->words[word] = value > row->words[word] ? value : row->words[word];
		else
			row->words[word] += value;
	}
}

static int metrics_add_stats_item(struct metrics *metrics, bool rows_of_its_own, const struct vma_stats_item *item,
                                  bool retired)
{
	char labels[LABELS_BYTES] = "";
	struct metrics_row *row;

	if (rows_of_its_own)
		metrics_label_of_object(labels, item, retired);
	row = metrics_find_or_add_row(metrics, item->type, labels);
	if (row == NULL)
		return -ENOMEM;
	add_item_fields_to_row(row, item);
	return 0;
}

static enum offload metrics_offload_state(const struct vma_stats_socket *socket)
{
	const uint64_t reason = view_read_counter(&socket->reason);

	if (view_read_counter(&socket->offloaded) != 0)
		return OFFLOAD_YES;
	return reason == VMA_SOCK_NEW || reason == VMA_SOCK_DEFERRED ? OFFLOAD_UNDECIDED : OFFLOAD_NO;
}

static void metrics_add_socket_to_process_sums(struct metrics_process *process, const struct view_input *in,
                                               const struct vma_stats_socket *socket)
{
	uint64_t packets, bytes;

	process->sockets[metrics_protocol(socket)][metrics_offload_state(socket)]++;
	view_queued_packets_and_bytes(in, socket, &packets, &bytes);
	process->queued_packets += packets;
	process->queued_bytes += bytes;
}

/* A row of each type is always there for a process. */
static bool metrics_has_room_for(const struct metrics *metrics, const struct vma_stats_snapshot *snapshot)
{
	return metrics->row_count + snapshot->count + VMA_STATS_TYPE_COUNT + metrics->rows_kept <= METRICS_ROWS_MAX;
}

int metrics_add_process(struct metrics *metrics, const struct options *options, pid_t pid, const char *comm,
                        const struct vma_stats_snapshot *snapshot)
{
	const struct view_input in = {.options = options, .now = snapshot, .total = snapshot};
	const bool each = options->per_socket && metrics_has_room_for(metrics, snapshot);
	struct metrics_process *process;
	char escaped[LABELS_BYTES - 32];
	int rc = 0;

	process = realloc(metrics->processes, (metrics->process_count + 1) * sizeof(*process));
	if (process == NULL)
		return -ENOMEM;
	metrics->processes = process;
	process += metrics->process_count++;
	*process = (struct metrics_process){0};
	snprintf(process->labels, sizeof(process->labels), "pid=\"%d\",comm=\"%s\"", (int)pid,
	         escape_label_value(escaped, sizeof(escaped), comm));
	/* First those that have gone: each type has a row, so a metric does not come and go. */
	for (unsigned type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT && rc == 0; type++)
		if (snapshot->retired[type].type == type && (type != VMA_STATS_TYPE_SOCKET || options->fds.count == 0))
			rc = metrics_add_stats_item(metrics, each, &snapshot->retired[type], true);
	for (size_t i = 0; i < snapshot->count && rc == 0; i++) {
		const struct vma_stats_item *item = &snapshot->items[i];

		if (item->type == VMA_STATS_TYPE_SOCKET && !view_is_selected_socket(&in, item))
			continue;
		if (item->type == VMA_STATS_TYPE_SOCKET)
			metrics_add_socket_to_process_sums(process, &in, &item->socket);
		rc = metrics_add_stats_item(metrics, each, item, false);
	}
	metrics->summed += options->per_socket && !each;
	return rc;
}

/* ---- text ---- */

static void metrics_write_family_header(FILE *out, enum metrics_format format, const char *family, const char *suffix,
                                        const char *kind, const char *unit, const char *help)
{
	const char *const end = format == METRICS_TEXT ? suffix : "";

	fprintf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", family, end, help, family, end, kind);
	if (unit != NULL && format == METRICS_OPENMETRICS)
		fprintf(out, "# UNIT %s %s\n", family, unit);
}

static void metrics_write_scaled_value(FILE *out, uint64_t value, double scale)
{
	if (scale == 1)
		fprintf(out, " %" PRIu64 "\n", value);
	else
		fprintf(out, " %.9g\n", (double)value * scale);
}

static void write_samples(const struct metrics *metrics, enum vma_stats_type type, size_t word,
                          const struct metrics_name *name, FILE *out)
{
	for (size_t i = 0; i < metrics->row_count; i++) {
		const struct metrics_row *row = &metrics->rows[i];

		if (row->type != type)
			continue;
		fprintf(out, "%s%s{%s%s", name->family, name->counter ? "_total" : "",
		        metrics->processes[row->process].labels, row->labels);
		if (name->reason != NULL)
			fprintf(out, ",reason=\"%s\"", name->reason);
		fputc('}', out);
		metrics_write_scaled_value(out, row->words[word], name->scale);
	}
}

/* Counters of one family follow each other in the lists. */
static void metrics_write_families_of_type(const struct metrics *metrics, const struct options *options,
                                           enum vma_stats_type type, enum metrics_format format, FILE *out)
{
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);
	struct metrics_name last = {.family = ""}, name;

	for (size_t i = 0; i < count; i++) {
		if (!metrics_name(type, &fields[i], &name) ||
		    (name.over == METRICS_NOT_AGGREGATED && !options->per_socket))
			continue;
		if (strcmp(last.family, name.family) != 0)
			metrics_write_family_header(out, format, name.family, name.counter ? "_total" : "",
			                            name.counter ? "counter" : "gauge", name.unit, name.help);
		last = name;
		write_samples(metrics, type, fields[i].offset / sizeof(uint64_t), &name, out);
	}
}

static void metrics_write_socket_counts(const struct metrics *metrics, enum metrics_format format, FILE *out)
{
	metrics_write_family_header(out, format, "vma_sockets", "", "gauge", NULL,
	                            "sockets with counters, by protocol and whether they are offloaded");
	for (size_t i = 0; i < metrics->process_count; i++)
		for (unsigned protocol = 0; protocol < PROTOCOLS; protocol++)
			for (unsigned offload = 0; offload < OFFLOADS; offload++)
				fprintf(out, "vma_sockets{%s,proto=\"%s\",offloaded=\"%s\"} %" PRIu64 "\n",
				        metrics->processes[i].labels, protocol_names[protocol], offload_names[offload],
				        metrics->processes[i].sockets[protocol][offload]);
	metrics_write_family_header(out, format, "vma_sockets_queued_packets", "", "gauge", "packets",
	                            "datagrams that wait to be received");
	for (size_t i = 0; i < metrics->process_count; i++)
		fprintf(out, "vma_sockets_queued_packets{%s} %" PRIu64 "\n", metrics->processes[i].labels,
		        metrics->processes[i].queued_packets);
	metrics_write_family_header(out, format, "vma_sockets_queued_bytes", "", "gauge", "bytes",
	                            "bytes that wait to be received");
	for (size_t i = 0; i < metrics->process_count; i++)
		fprintf(out, "vma_sockets_queued_bytes{%s} %" PRIu64 "\n", metrics->processes[i].labels,
		        metrics->processes[i].queued_bytes);
}

/* Bucket i ends at 1024 ns times 2 to the i; the last has no end. There is no sum: it is not counted. */
static void metrics_write_wakeup_latency_histogram(const struct metrics *metrics, enum metrics_format format, FILE *out)
{
	const size_t first = offsetof(struct vma_stats_process, wake_0) / sizeof(uint64_t);

	metrics_write_family_header(out, format, "vma_process_wake_latency_seconds", "", "histogram", "seconds",
	                            "wake-ups of sleepers, by the time from the call to the sleeper");
	for (size_t i = 0; i < metrics->row_count; i++) {
		const struct metrics_row *row = &metrics->rows[i];
		uint64_t below = 0;

		if (row->type != VMA_STATS_TYPE_PROCESS)
			continue;
		for (unsigned bucket = 0; bucket < VMA_STATS_WAKES; bucket++) {
			below += row->words[first + bucket];
			fprintf(out, "vma_process_wake_latency_seconds_bucket{%s,le=\"",
			        metrics->processes[row->process].labels);
			if (bucket + 1 < VMA_STATS_WAKES)
				fprintf(out, "%.9g", 1024e-9 * (double)(1u << bucket));
			else
				fputs("+Inf", out);
			fprintf(out, "\"} %" PRIu64 "\n", below);
		}
	}
}

void metrics_write(const struct metrics *metrics, const struct options *options, enum metrics_format format, FILE *out)
{
	metrics_write_family_header(out, format, "vma_processes", "", "gauge", NULL,
	                            "processes on libvma that are shown");
	fprintf(out, "vma_processes %zu\n", metrics->process_count);
	metrics_write_family_header(out, format, "vma_processes_unreadable", "", "gauge", NULL,
	                            "processes whose counters cannot be read");
	fprintf(out, "vma_processes_unreadable %u\n", metrics->unreadable);
	metrics_write_family_header(out, format, "vma_processes_put_off", "", "gauge", NULL,
	                            "processes for which the scrape had no time; the next one begins with them");
	fprintf(out, "vma_processes_put_off %u\n", metrics->put_off);
	metrics_write_family_header(out, format, "vma_processes_summed", "", "gauge", NULL,
	                            "processes whose objects have no series of their own, because there are too many");
	fprintf(out, "vma_processes_summed %u\n", metrics->summed);
	if (metrics->process_count != 0) {
		metrics_write_socket_counts(metrics, format, out);
		for (int type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT; type++)
			metrics_write_families_of_type(metrics, options, (enum vma_stats_type)type, format, out);
		metrics_write_wakeup_latency_histogram(metrics, format, out);
	}
	if (format == METRICS_OPENMETRICS)
		fputs("# EOF\n", out);
}

/* ---- now ---- */

_Static_assert(VMA_STATS_TYPE_COUNT *PROCESSES_MAX <= METRICS_ROWS_MAX, "sums of all processes have their rows");

#define ROUNDS_WHOLE 20 /* a millisecond apart: a thread that drops a block may be without its core */

static uint64_t scrape_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* 0, -ENOMEM, or 1: its blocks are being dropped, so it is to be read again, unless this is the last round. */
static int scrape_process(struct metrics *metrics, const struct options *options, pid_t pid, bool last_round)
{
	static struct vma_stats_snapshot snapshot;
	char path[PATH_MAX], comm[PROCESSES_NAME_BYTES];
	struct vma_stats_view *view;
	int rc;

	rc = processes_path(options, pid, path, sizeof(path)) ? vma_stats_view_open(path, &view) : -ENAMETOOLONG;
	if (rc == -ENOENT || rc == -ESRCH || rc == -ENOMEM)
		return rc == -ENOMEM ? rc : 0; /* else it has just gone */
	if (rc < 0) {
		metrics->unreadable++;
		return 0;
	}
	vma_stats_view_read(view, &snapshot);
	vma_stats_view_close(view);
	if (!snapshot.whole && !last_round)
		return 1;
	return processes_name(pid, comm) ? metrics_add_process(metrics, options, pid, comm, &snapshot) : 0;
}

/* Once each, then those that are to be read again, so that none holds the others up. The pid that had no time, or 0. */
static int scrape_processes(struct metrics *metrics, const struct options *options, pid_t *pids, unsigned count,
                            uint64_t until_ns, pid_t *put_off)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	int rc = 0;

	for (unsigned round = 0; count != 0; round++) {
		unsigned again = 0;

		for (unsigned i = 0; i < count; i++) {
			if ((round != 0 || i != 0) && scrape_now_ns() >= until_ns) {
				metrics->put_off = again + count - i;
				*put_off = pids[i];
				return 0;
			}
			metrics->rows_kept = (size_t)(again + count - i - 1) * VMA_STATS_TYPE_COUNT;
			rc = scrape_process(metrics, options, pids[i], round == ROUNDS_WHOLE);
			if (rc < 0)
				return rc;
			if (rc > 0)
				pids[again++] = pids[i];
		}
		count = again;
		if (count != 0)
			nanosleep(&pause, NULL);
	}
	return 0;
}

/* Those from `first` on come first; the list is in order. */
static void rotate_pids_to_begin_at(pid_t *pids, unsigned count, pid_t first)
{
	static pid_t turned[PROCESSES_MAX];
	unsigned at = 0;

	while (at < count && pids[at] < first)
		at++;
	for (unsigned i = 0; i < count; i++)
		turned[i] = pids[(at + i) % count];
	memcpy(pids, turned, count * sizeof(*pids));
}

int metrics_scrape(const struct options *options, enum metrics_format format, uint64_t budget_ns, FILE *out)
{
	static pid_t pids[PROCESSES_MAX], first;
	const uint64_t until_ns = scrape_now_ns() + budget_ns;
	const unsigned count = processes_find(options, pids);
	struct metrics metrics = {0};
	int rc;

	rotate_pids_to_begin_at(pids, count, first);
	first = 0;
	rc = scrape_processes(&metrics, options, pids, count, until_ns, &first);
	if (rc == 0)
		metrics_write(&metrics, options, format, out);
	metrics_fini(&metrics);
	return rc;
}
