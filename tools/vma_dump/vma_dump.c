/*
 * vma_dump - the packets of programs on libvma.so, as pcapng.
 *
 *   request, twice a second ──> each process copies packets into its ring (capture.h)       source.h
 *   rings ──> held for a moment, put into order, told why they were dropped                 merge.h
 *         ──> filter ──> pcapng
 */
#include <errno.h>
#include <net/if.h>
#include <signal.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <vma/conf_version.h>

#include "checksum.h"
#include "options.h"
#include "packet_filter.h"
#include "pcapng.h"
#include "processes.h"
#include "socket_filter.h"
#include "source.h"

#define LOOK_NS UINT64_C(200000000) /* for processes that have come */
#define STUCK_SECONDS 2             /* for which an output may hold up the end */

struct dump {
	const struct options *options;
	uint32_t snap; /* bytes of a frame that processes are asked for */
	struct packet_filter filter;
	struct pcapng pcapng;
	bool failed;
	struct merge merge;
	struct source *sources;
	uint64_t looked_ns;
	uint64_t seen, written, lost;
	unsigned interruptions;
};

static volatile sig_atomic_t ended;

/* A write that is under way goes on; if it is stuck, the alarm ends it (EINTR), and every one after it. */
static void on_signal_end_capture(int number)
{
	(void)number;
	ended = 1;
	alarm(STUCK_SECONDS);
}

static void on_alarm_rearm(int number)
{
	(void)number;
	alarm(1);
}

static void install_signal_handlers(void)
{
	const struct sigaction stop = {.sa_handler = on_signal_end_capture, .sa_flags = SA_RESTART};
	const struct sigaction stuck = {.sa_handler = on_alarm_rearm};

	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGALRM, &stuck, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void pause_ns(long ns)
{
	const struct timespec pause = {.tv_nsec = ns};

	nanosleep(&pause, NULL);
}

/* ---- packets ---- */

/* A process that is captured for one interface may have others. */
static bool is_of_interface(const struct dump *dump, const struct merge_packet *packet)
{
	return dump->options->interface == NULL || strcmp(packet->info.text, dump->options->interface) == 0;
}

static void write_packet(struct dump *dump, struct merge_packet *packet)
{
	const struct source *source = packet->queue->of;
	char process[128], dropped[64], gap[64];
	const char *comments[4];
	unsigned n = 0;

	if (dump->options->interface != NULL) {
		snprintf(process, sizeof(process), "process %d: %s", (int)source->pid, source->name);
		comments[n++] = process;
	}
	if (packet->reason[0] != '\0') {
		snprintf(dropped, sizeof(dropped), "dropped: %s", packet->reason);
		comments[n++] = dropped;
	}
	if (packet->lost != 0) {
		snprintf(gap, sizeof(gap), "gap before: %llu lost", (unsigned long long)packet->lost);
		comments[n++] = gap;
	}
	if (packet->interrupted)
		comments[n++] = "gap before: the capture was interrupted";
	if (packet->info.flags & VMA_CAPTURE_CSUM_OPEN && packet->info.captured == packet->info.len)
		checksum_complete_l4_if_pseudo_only(packet->data, packet->info.captured);
	if (!pcapng_write_packet(&dump->pcapng, &packet->info, packet->data, comments, n))
		dump->failed = true;
	dump->written++;
}

static bool dump_is_finished(const struct dump *dump)
{
	return dump->failed || (dump->options->count != 0 && dump->written >= dump->options->count);
}

static void write_merged_packets(struct dump *dump, bool all)
{
	const uint64_t now = now_ns(CLOCK_MONOTONIC);
	struct merge_packet *packet;

	while (!dump_is_finished(dump) && (packet = merge_pop_oldest_packet(&dump->merge, now, all)) != NULL) {
		if (is_of_interface(dump, packet)) {
			dump->seen++;
			if (packet_filter_passes(&dump->filter, packet->data, packet->info.captured, packet->info.len))
				write_packet(dump, packet);
		}
		free(packet);
	}
}

/* ---- processes ---- */

/* All that it has copied is in the merge, and stays there for its time. */
static void stop_source_of_ended_process(struct dump *dump, struct source *source)
{
	source_read_remaining_records(source, &dump->merge, now_ns(CLOCK_MONOTONIC));
	source->has_ended = true;
	dump->lost += source_lost_packet_count(source);
	dump->interruptions += source->interruptions;
}

static void remove_ended_sources(struct dump *dump)
{
	struct source **place = &dump->sources, *source;

	while ((source = *place) != NULL) {
		if (source->has_ended && source->queue.first == NULL) {
			*place = source->next;
			source_destroy(source, &dump->merge);
		} else {
			place = &source->next;
		}
	}
}

static struct source *add_source_of_process(struct dump *dump, struct vma_stats_view *view, pid_t pid)
{
	struct source *source = source_create(view, pid, &dump->merge);

	if (source == NULL)
		return NULL;
	source->next = dump->sources;
	dump->sources = source;
	return source;
}

static bool is_captured(const struct dump *dump, pid_t pid)
{
	for (const struct source *source = dump->sources; source != NULL; source = source->next)
		if (source->pid == pid && !source->has_ended)
			return true;
	return false;
}

static void add_new_processes_to_capture(struct dump *dump)
{
	static pid_t pids[PROCESSES_MAX];
	const uint64_t now = now_ns(CLOCK_MONOTONIC);
	char path[PATH_MAX];
	int n;

	if (dump->looked_ns != 0 && now - dump->looked_ns < LOOK_NS)
		return;
	dump->looked_ns = now;
	n = vma_stats_list_live_pids(dump->options->directory, false, pids, PROCESSES_MAX);
	for (int i = 0; i < n; i++) {
		struct vma_stats_view *view;

		if (is_captured(dump, pids[i]) || !processes_path(dump->options->directory, pids[i], path) ||
		    vma_stats_view_open(path, &view) < 0)
			continue; /* another user's, or it has just gone */
		if (process_has_ring_on_interface(view, pids[i], dump->options->interface))
			add_source_of_process(dump, view, pids[i]);
		else
			vma_stats_view_close(view);
	}
}

/* Whether there was anything. */
static bool poll_all_sources(struct dump *dump)
{
	bool any = false;

	for (struct source *source = dump->sources; source != NULL && !ended; source = source->next) {
		const bool captured = source->captures;
		int rc;

		if (source->has_ended)
			continue;
		rc = source_keep_capture_requested(source, dump->snap, &dump->merge, now_ns(CLOCK_MONOTONIC));
		if (rc == -ETIMEDOUT)
			fprintf(stderr, "vma_dump: process %d does not capture\n", (int)source->pid);
		if (!captured && source->captures)
			fprintf(stderr, "vma_dump: capturing, process %d: %s\n", (int)source->pid, source->name);
		if (rc < 0)
			stop_source_of_ended_process(dump, source);
		else
			any |= source_move_packets_to_merge(source, &dump->merge, now_ns(CLOCK_MONOTONIC));
	}
	return any;
}

static void capture_packets_until_stopped(struct dump *dump)
{
	while (!ended && !dump_is_finished(dump) && (dump->sources != NULL || dump->options->interface != NULL)) {
		bool any;

		if (dump->options->interface != NULL)
			add_new_processes_to_capture(dump);
		any = poll_all_sources(dump);
		write_merged_packets(dump, false);
		remove_ended_sources(dump);
		if (!any) {
			fflush(dump->pcapng.out);
			pause_ns(1000000);
		}
	}
	for (struct source *source = dump->sources; source != NULL; source = source->next)
		if (!source->has_ended)
			stop_source_of_ended_process(dump, source);
	write_merged_packets(dump, true);
}

/* ---- before and after ---- */

static bool dump_compile_packet_filter(struct dump *dump, struct vma_stats_view *view)
{
	char of_socket[512], text[sizeof(dump->options->filter) + sizeof(of_socket) + 16];
	const char *const asked = dump->options->filter;
	uint32_t bytes;

	snprintf(text, sizeof(text), "%s", asked);
	if (dump->options->fd >= 0) {
		if (!socket_filter(view, dump->options->fd, of_socket, sizeof(of_socket))) {
			fprintf(stderr, "vma_dump: fd %d is no bound socket of the process\n", dump->options->fd);
			return false;
		}
		snprintf(text, sizeof(text), asked[0] != '\0' ? "(%s) and (%s)" : "%s%s", of_socket, asked);
	}
	if (!packet_filter_init(&dump->filter, text))
		return false;
	bytes = packet_filter_bytes_needed(&dump->filter);
	dump->snap = dump->options->snap > bytes ? dump->options->snap : bytes;
	return true;
}

static FILE *open_output(const char *file)
{
	FILE *out = stdout;
	int fd;

	if (strcmp(file, "-") != 0) {
		fd = vma_stats_open_output(file);
		errno = fd < 0 ? -fd : 0;
		out = fd >= 0 ? fdopen(fd, "w") : NULL;
	}
	if (out == NULL)
		fprintf(stderr, "vma_dump: %s: %s\n", file, strerror(errno));
	return out;
}

/* Until packets come for certain. */
static int await_capture(struct dump *dump, struct source *source)
{
	int rc = 0;

	while (rc == 0 && !source->captures && !ended) {
		rc = source_keep_capture_requested(source, dump->snap, &dump->merge, now_ns(CLOCK_MONOTONIC));
		pause_ns(1000000);
	}
	return rc == 0 && !source->captures ? -EINTR : rc;
}

static int finish_pcapng_and_print_summary(struct dump *dump)
{
	FILE *out = dump->pcapng.out;

	if (!dump->failed)
		dump->failed = !pcapng_write_statistics_and_flush(&dump->pcapng, dump->seen, dump->lost,
		                                                  now_ns(CLOCK_REALTIME));
	if (dump->failed)
		__fpurge(out); /* it would be tried again, and may be stuck */
	dump->failed |= fclose(out) != 0;
	fprintf(stderr, "%llu packets written, %llu seen, %llu lost\n", (unsigned long long)dump->written,
	        (unsigned long long)dump->seen, (unsigned long long)dump->lost);
	if (dump->interruptions != 0)
		fprintf(stderr, "vma_dump: the capture was interrupted %u times, as the output took too long\n",
		        dump->interruptions);
	return dump->failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run_capture(struct dump *dump, FILE *out, const char *comment)
{
	dump->failed = !pcapng_write_section_header(&dump->pcapng, out, dump->options->snap, comment);
	fflush(out);
	fprintf(stderr, "vma_dump: capturing, %s\n", comment);
	capture_packets_until_stopped(dump);
	return finish_pcapng_and_print_summary(dump);
}

static int capture_process(struct dump *dump, struct source *source)
{
	FILE *out = open_output(dump->options->file);
	char comment[128];
	int rc;

	if (out == NULL)
		return EXIT_FAILURE;
	rc = await_capture(dump, source);
	if (rc < 0) {
		fprintf(stderr, "vma_dump: process %d does not capture: %s\n", (int)source->pid, strerrordesc_np(-rc));
		fclose(out);
		return EXIT_FAILURE;
	}
	snprintf(comment, sizeof(comment), "process %d: %s", (int)source->pid, source->name);
	return run_capture(dump, out, comment);
}

static int dump_process(struct dump *dump, pid_t pid)
{
	struct vma_stats_view *view = NULL;
	struct source *source;
	char path[PATH_MAX];
	int rc = processes_path(dump->options->directory, pid, path) ? vma_stats_view_open(path, &view) : -ENAMETOOLONG;

	if (rc < 0) {
		fprintf(stderr, "vma_dump: %s: %s\n", path, strerrordesc_np(-rc));
		return EXIT_FAILURE;
	}
	if (!dump_compile_packet_filter(dump, view)) {
		vma_stats_view_close(view);
		return EXIT_FAILURE;
	}
	source = add_source_of_process(dump, view, pid);
	return source != NULL ? capture_process(dump, source) : EXIT_FAILURE;
}

static int dump_interface(struct dump *dump)
{
	const char *const interface = dump->options->interface;
	char comment[128];
	FILE *out;

	if (if_nametoindex(interface) == 0) {
		fprintf(stderr, "vma_dump: there is no interface %s here\n", interface);
		return EXIT_FAILURE;
	}
	if (!dump_compile_packet_filter(dump, NULL))
		return EXIT_FAILURE;
	out = open_output(dump->options->file);
	if (out == NULL)
		return EXIT_FAILURE;
	snprintf(comment, sizeof(comment), "interface %s", interface);
	return run_capture(dump, out, comment);
}

static void dump_free(struct dump *dump)
{
	struct merge_packet *packet;
	struct source *source;

	while ((packet = merge_pop_oldest_packet(&dump->merge, 0, true)) != NULL)
		free(packet);
	while ((source = dump->sources) != NULL) {
		dump->sources = source->next;
		source_destroy(source, &dump->merge);
	}
	packet_filter_fini(&dump->filter);
}

int main(int argc, char **argv)
{
	static struct options options;
	static struct dump dump = {.options = &options};
	int rc = EXIT_FAILURE;
	pid_t pid;

	switch (options_parse(&options, argc, argv)) {
	case OPTIONS_HELP:
		fputs(options_help, stdout);
		return EXIT_SUCCESS;
	case OPTIONS_VERSION:
		puts("vma_dump " VMA_VERSION);
		return EXIT_SUCCESS;
	case OPTIONS_WRONG:
		return 64; /* EX_USAGE */
	case OPTIONS_RUN:
		break;
	}
	if (options.list) {
		processes_print(options.directory);
		return EXIT_SUCCESS;
	}
	install_signal_handlers();
	if (options.interface != NULL) {
		rc = dump_interface(&dump);
	} else {
		pid = options.pid != 0 ? options.pid : processes_find_sole_pid_or_print_error(options.directory);
		if (pid != 0)
			rc = dump_process(&dump, pid);
	}
	dump_free(&dump);
	return rc;
}
