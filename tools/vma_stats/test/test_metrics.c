/* Metrics of snapshots: names, sums, labels, both formats. */
#include <ctype.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <vma/sock.h>
#include <vma/test.h>

#include "../metrics.h"
#include "../metrics_name.h"

static struct vma_stats_snapshot snapshot;
static struct options options;
static char *text;

static void begin(bool per_socket)
{
	memset(&snapshot, 0, sizeof(snapshot));
	for (int type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT; type++)
		snapshot.retired[type].type = (enum vma_stats_type)type;
	options = (struct options){.per_socket = per_socket};
}

static struct vma_stats_item *item(enum vma_stats_type type, const char *name)
{
	struct vma_stats_item *new = &snapshot.items[snapshot.count++];

	new->type = type;
	strcpy(new->name, name);
	return new;
}

static struct vma_stats_socket *stats_add_socket_item(uint64_t fd, uint64_t protocol, uint64_t packets)
{
	struct vma_stats_socket *socket = &item(VMA_STATS_TYPE_SOCKET, "fd")->socket;

	vma_stats_set(&socket->fd, fd);
	vma_stats_set(&socket->protocol, protocol);
	vma_stats_set(&socket->rx_packets, packets);
	return socket;
}

/* Of two processes that have counted the same. */
static const char *write_metrics_text(enum metrics_format format, const char *comm)
{
	struct metrics metrics = {0};
	size_t bytes;
	FILE *out;

	free(text);
	out = open_memstream(&text, &bytes);
	assert_non_null(out);
	assert_int_equal(metrics_add_process(&metrics, &options, 7, comm, &snapshot), 0);
	assert_int_equal(metrics_add_process(&metrics, &options, 8, "other", &snapshot), 0);
	metrics_write(&metrics, &options, format, out);
	fclose(out);
	metrics_fini(&metrics);
	return text;
}

static void assert_text_has_line(const char *line)
{
	const size_t len = strlen(line);

	for (const char *at = text; (at = strstr(at, line)) != NULL; at += len)
		if ((at == text || at[-1] == '\n') && at[len] == '\n')
			return;
	fail_msg("no line '%s'", line);
}

static bool is_lower_name(const char *name)
{
	for (; *name != '\0'; name++)
		if (!islower((unsigned char)*name) && !isdigit((unsigned char)*name) && *name != '_')
			return false;
	return true;
}

static void test_every_counter_is_a_metric_of_its_own(void **state)
{
	static char names[512][128];
	unsigned known = 0;

	(void)state;
	for (int type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT; type++) {
		size_t count;
		const struct vma_stats_field *fields = vma_stats_fields_of_type((enum vma_stats_type)type, &count);

		for (size_t i = 0; i < count; i++) {
			struct metrics_name name;
			const bool is_metric = metrics_name((enum vma_stats_type)type, &fields[i], &name);

			if (!is_metric && fields[i].kind == VMA_STATS_COUNT)
				assert_true(strncmp(fields[i].name, "wake_", 5) == 0); /* of the histogram */
			if (!is_metric)
				continue;
			assert_true(is_lower_name(name.family));
			snprintf(names[known], sizeof(names[0]), "%s %s", name.family,
			         name.reason != NULL ? name.reason : "");
			for (unsigned other = 0; other < known; other++)
				assert_string_not_equal(names[other], names[known]);
			known++;
		}
	}
	assert_true(known > 100);
}

static void test_process_has_the_sum_of_its_sockets_with_those_that_were_closed(void **state)
{
	(void)state;
	begin(false);
	vma_stats_set(&stats_add_socket_item(3, IPPROTO_UDP, 100)->tcp_rtt_usec, 250);
	vma_stats_set(&stats_add_socket_item(4, IPPROTO_TCP, 20)->tcp_rtt_usec, 7);
	vma_stats_set(&snapshot.retired[VMA_STATS_TYPE_SOCKET].socket.rx_packets, 3);
	write_metrics_text(METRICS_OPENMETRICS, "prog");
	assert_text_has_line("# TYPE vma_socket_rx_packets counter");
	assert_text_has_line("# UNIT vma_socket_rx_packets packets");
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"7\",comm=\"prog\"} 123");
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"8\",comm=\"other\"} 123");
	assert_text_has_line(
	        "vma_socket_tcp_rtt_seconds{pid=\"7\",comm=\"prog\"} 0.00025");     /* the largest, in seconds */
	assert_text_has_line("vma_ring_rx_bytes_total{pid=\"7\",comm=\"prog\"} 0"); /* also before there is a ring */
	assert_text_has_line("vma_processes 2");
	assert_null(strstr(text, "fd=\""));
	assert_null(strstr(text, "_migrations"));
}

static void test_sockets_have_series_of_their_own_if_asked_for(void **state)
{
	(void)state;
	begin(true);
	stats_add_socket_item(3, IPPROTO_UDP, 100);
	stats_add_socket_item(4, IPPROTO_TCP, 20);
	stats_add_socket_item(4, IPPROTO_TCP, 2); /* its number was given again while the old one still ends */
	vma_stats_set(&item(VMA_STATS_TYPE_RING, "eth\"0")->ring.rx.rx_drop_runt, 5);
	vma_stats_set(&snapshot.retired[VMA_STATS_TYPE_SOCKET].socket.rx_packets, 3);
	write_metrics_text(METRICS_OPENMETRICS, "prog");
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"7\",comm=\"prog\",fd=\"3\",proto=\"udp\"} 100");
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"7\",comm=\"prog\",fd=\"4\",proto=\"tcp\"} 22");
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"7\",comm=\"prog\",fd=\"closed\"} 3");
	assert_text_has_line(
	        "vma_ring_rx_dropped_packets_total{pid=\"7\",comm=\"prog\",ring=\"eth\\\"0\",reason=\"runt\"} 5");
	assert_text_has_line("# TYPE vma_socket_rx_migrations counter");
}

static void test_sockets_that_were_not_asked_for_are_left_out(void **state)
{
	(void)state;
	begin(false);
	stats_add_socket_item(3, IPPROTO_UDP, 100);
	stats_add_socket_item(14, IPPROTO_UDP, 20);
	vma_stats_set(&snapshot.retired[VMA_STATS_TYPE_SOCKET].socket.rx_packets, 3);
	assert_true(fd_list_parse(&options.fds, "4-16"));
	write_metrics_text(METRICS_OPENMETRICS, "prog");
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"7\",comm=\"prog\"} 20");
}

static void test_sockets_are_counted_by_protocol_and_offload(void **state)
{
	(void)state;
	begin(false);
	vma_stats_set(&stats_add_socket_item(3, IPPROTO_UDP, 0)->offloaded, 1);
	vma_stats_set(&stats_add_socket_item(4, IPPROTO_TCP, 0)->reason, VMA_SOCK_RULE);
	vma_stats_set(&stats_add_socket_item(5, IPPROTO_TCP, 0)->reason, VMA_SOCK_NEW);
	vma_stats_set(&stats_add_socket_item(6, IPPROTO_UDP, 0)->rx_queued, 9);
	write_metrics_text(METRICS_OPENMETRICS, "prog");
	assert_text_has_line("vma_sockets{pid=\"7\",comm=\"prog\",proto=\"udp\",offloaded=\"yes\"} 1");
	assert_text_has_line("vma_sockets{pid=\"7\",comm=\"prog\",proto=\"tcp\",offloaded=\"no\"} 1");
	assert_text_has_line("vma_sockets{pid=\"7\",comm=\"prog\",proto=\"tcp\",offloaded=\"undecided\"} 1");
	assert_text_has_line("vma_sockets_queued_packets{pid=\"7\",comm=\"prog\"} 9");
}

static void test_wakes_are_a_histogram_of_growing_buckets(void **state)
{
	struct vma_stats_process *process;

	(void)state;
	begin(false);
	process = &item(VMA_STATS_TYPE_PROCESS, "process")->process;
	vma_stats_set(&process->wake_0, 5);
	vma_stats_set(&process->wake_10, 3);
	vma_stats_set(&process->wake_15, 2);
	write_metrics_text(METRICS_OPENMETRICS, "prog");
	assert_text_has_line("# TYPE vma_process_wake_latency_seconds histogram");
	assert_text_has_line("vma_process_wake_latency_seconds_bucket{pid=\"7\",comm=\"prog\",le=\"1.024e-06\"} 5");
	assert_text_has_line("vma_process_wake_latency_seconds_bucket{pid=\"7\",comm=\"prog\",le=\"0.000524288\"} 5");
	assert_text_has_line("vma_process_wake_latency_seconds_bucket{pid=\"7\",comm=\"prog\",le=\"0.001048576\"} 8");
	assert_text_has_line("vma_process_wake_latency_seconds_bucket{pid=\"7\",comm=\"prog\",le=\"0.016777216\"} 8");
	assert_text_has_line("vma_process_wake_latency_seconds_bucket{pid=\"7\",comm=\"prog\",le=\"+Inf\"} 10");
}

static void test_label_cannot_end_its_quotes_or_its_line(void **state)
{
	(void)state;
	begin(false);
	write_metrics_text(METRICS_OPENMETRICS, "a\"b\\c\nd");
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"7\",comm=\"a\\\"b\\\\c\\nd\"} 0");
}

static void test_each_format_has_its_own_heads_and_end(void **state)
{
	(void)state;
	begin(false);
	write_metrics_text(METRICS_OPENMETRICS, "prog");
	assert_string_equal(text + strlen(text) - strlen("\n# EOF\n"), "\n# EOF\n");
	assert_text_has_line("# HELP vma_ring_rx_packets packets received");
	write_metrics_text(METRICS_TEXT, "prog");
	assert_text_has_line("# HELP vma_ring_rx_packets_total packets received");
	assert_text_has_line("# TYPE vma_ring_rx_packets_total counter");
	assert_null(strstr(text, "# UNIT"));
	assert_null(strstr(text, "# EOF"));
}

/* Whatever another process has in its memory. */
static void test_extreme_numbers_are_printed_and_harmless(void **state)
{
	(void)state;
	begin(true);
	for (int type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT; type++) {
		struct vma_stats_item *bad = item((enum vma_stats_type)type, "bad");

		memset(bad->words, 0xff, sizeof(*bad) - offsetof(struct vma_stats_item, words));
	}
	write_metrics_text(METRICS_OPENMETRICS, "prog");
	assert_text_has_line(
	        "vma_socket_rx_packets_total{pid=\"7\",comm=\"prog\",fd=\"18446744073709551615\",proto=\"udp\"} "
	        "18446744073709551615");
}

/* ---- budgets ---- */

static void test_objects_without_room_are_in_sums(void **state)
{
	struct metrics metrics = {0};
	size_t bytes;
	FILE *out;

	(void)state;
	begin(true);
	for (uint64_t fd = 0; fd < 1000; fd++)
		stats_add_socket_item(fd, IPPROTO_UDP, 2);
	for (pid_t pid = 1; pid <= 100; pid++) {
		metrics.rows_kept = (size_t)(100 - pid) * VMA_STATS_TYPE_COUNT;
		assert_int_equal(metrics_add_process(&metrics, &options, pid, "prog", &snapshot), 0);
	}
	assert_true(metrics.row_count <= METRICS_ROWS_MAX);
	assert_int_equal(metrics.process_count, 100);
	assert_true(metrics.summed > 60 && metrics.summed < 80);
	free(text);
	out = open_memstream(&text, &bytes);
	assert_non_null(out);
	metrics_write(&metrics, &options, METRICS_OPENMETRICS, out);
	fclose(out);
	metrics_fini(&metrics);
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"1\",comm=\"prog\",fd=\"999\",proto=\"udp\"} 2");
	assert_text_has_line("vma_socket_rx_packets_total{pid=\"100\",comm=\"prog\"} 2000");
}

/* A file that looks alive: somebody holds its lock. */
static int make_locked_empty_file(const char *dir, const char *name)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	return fd;
}

static void remove_locked_stats_file(const char *dir, const char *name, int fd)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_int_equal(unlink(path), 0);
	close(fd);
}

static void scrape_metrics_to_text(uint64_t budget_ns)
{
	size_t bytes;
	FILE *out;

	free(text);
	out = open_memstream(&text, &bytes);
	assert_non_null(out);
	assert_int_equal(metrics_scrape(&options, METRICS_OPENMETRICS, budget_ns, out), 0);
	fclose(out);
}

/* Between two files that are nonsense is the one of this process. */
static void test_processes_without_time_come_first_in_the_next_scrape(void **state)
{
	char dir[] = "/tmp/vma_metrics_test.XXXXXX";
	struct vma_stats *stats;
	int first, last;

	(void)state;
	assert_non_null(mkdtemp(dir));
	options = (struct options){.directory = dir};
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	first = make_locked_empty_file(dir, "vmastat.1");
	last = make_locked_empty_file(dir, "vmastat.4194300");
	for (unsigned scrape = 0; scrape < 4; scrape++) {
		scrape_metrics_to_text(0); /* time for one */
		assert_text_has_line("vma_processes_put_off 2");
		assert_text_has_line(scrape == 1 ? "vma_processes 1" : "vma_processes 0");
		assert_text_has_line(scrape == 1 ? "vma_processes_unreadable 0" : "vma_processes_unreadable 1");
	}
	scrape_metrics_to_text(METRICS_SCRAPE_NS);
	assert_text_has_line("vma_processes_put_off 0");
	assert_text_has_line("vma_processes 1");
	assert_text_has_line("vma_processes_unreadable 2");
	assert_text_has_line("vma_processes_summed 0");
	remove_locked_stats_file(dir, "vmastat.1", first);
	remove_locked_stats_file(dir, "vmastat.4194300", last);
	vma_stats_destroy(stats);
	assert_int_equal(rmdir(dir), 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_counter_is_a_metric_of_its_own),
        cmocka_unit_test(test_process_has_the_sum_of_its_sockets_with_those_that_were_closed),
        cmocka_unit_test(test_sockets_have_series_of_their_own_if_asked_for),
        cmocka_unit_test(test_sockets_that_were_not_asked_for_are_left_out),
        cmocka_unit_test(test_sockets_are_counted_by_protocol_and_offload),
        cmocka_unit_test(test_wakes_are_a_histogram_of_growing_buckets),
        cmocka_unit_test(test_label_cannot_end_its_quotes_or_its_line),
        cmocka_unit_test(test_each_format_has_its_own_heads_and_end),
        cmocka_unit_test(test_extreme_numbers_are_printed_and_harmless),
        cmocka_unit_test(test_objects_without_room_are_in_sums),
        cmocka_unit_test(test_processes_without_time_come_first_in_the_next_scrape),
};

VMA_TEST_MAIN(tests)
