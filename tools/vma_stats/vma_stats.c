/*
 * vma_stats - shows the counters of a program on libvma.so while it runs. It also asks the program to zero its
 * counters, to log them, or to log more.
 *
 *   options ──> processes: which one ──> view of its memory ──┬─> requests: -z -l -D -S
 *                                                             └─> every interval: a snapshot, printed by a view
 *           ├─> metrics, of all of them: printed once, or served
 *           └─> top, of all of them: a screen that is drawn again and again
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include <vma/conf_version.h>
#include <vma/log.h>

#include "listen.h"
#include "metrics.h"
#include "processes.h"
#include "report.h"
#include "top.h"
#include "view.h"
#include "view_json.h"
#include "vmad_state.h"

static struct vma_stats_snapshot totals[2], deltas; /* the last reading, and the one before; their difference */

struct report {
	unsigned shown, by_kernel;    /* sockets, for --assert-offloaded */
	struct json_object *document; /* NULL: the report is text */
};

static void print_view(const struct view_input *in, struct report *report)
{
	switch (in->options->view) {
	case VIEW_BASIC:
	case VIEW_EXTRA:
		view_basic(in);
		break;
	case VIEW_FULL:
		view_full(in);
		break;
	case VIEW_GROUPS:
		view_groups(in);
		break;
	case VIEW_NETSTAT:
		view_netstat(in);
		break;
	case VIEW_WHY:
		view_why(in, &report->shown, &report->by_kernel);
		break;
	case VIEW_TCP:
		view_tcp(in);
		break;
	case VIEW_ALL: /* of JSON only */
		break;
	}
}

static void begin_stats_output_with_header(const struct options *options, struct report *report)
{
	*report = (struct report){.document = options->json ? view_json_new_document(options) : NULL};
	if (options->view == VIEW_NETSTAT && !options->json)
		view_print_netstat_header(stdout);
	if (options->view == VIEW_TCP)
		print_tcp_table_header(stdout);
}

/* out NULL: nothing more is printed. */
static void end_json_report(struct report *report, FILE *out)
{
	if (report->document != NULL)
		view_json_print_and_free(report->document, out);
	report->document = NULL;
}

static void print_stats_of_process_once(const struct options *options, const struct vma_stats_view *view,
                                        unsigned cycle, struct report *report)
{
	struct vma_stats_snapshot *now = &totals[cycle % 2];
	struct view_input in = {.options = options, .now = now, .total = now, .out = stdout};

	vma_stats_view_read(view, now);
	if (options->deltas) {
		deltas = *now;
		vma_stats_snapshot_subtract(&deltas, &totals[(cycle + 1) % 2]);
		in.now = &deltas;
	}
	if (report->document != NULL)
		view_json_add_process(report->document, &in, &report->shown, &report->by_kernel);
	else
		print_view(&in, report);
	fflush(stdout);
}

/* The process's file goes when it ends in an orderly way, the process in any. */
static bool watched_process_is_alive(const char *path, pid_t pid)
{
	return access(path, F_OK) == 0 && process_is_alive(pid);
}

static void print_reports_periodically(const struct options *options, const struct vma_stats_view *view,
                                       const char *path, pid_t pid, struct report *report)
{
	if (options->deltas) {
		vma_stats_view_read(view, &totals[1]);
		sleep(options->interval);
	}
	for (unsigned cycle = 0; !ferror(stdout); cycle++) {
		begin_stats_output_with_header(options, report);
		print_stats_of_process_once(options, view, cycle, report);
		end_json_report(report, stdout);
		if (options->cycles != 0 && cycle + 1 == options->cycles)
			return;
		sleep(options->interval);
		if (!watched_process_is_alive(path, pid))
			return;
	}
}

static int send_stats_requests(const struct options *options, const struct vma_stats_view *view)
{
	const struct {
		bool wanted;
		struct vma_stats_request request;
	} requests[] = {
	        {options->zero, {.type = VMA_STATS_REQUEST_ZERO}},
	        {options->log_level != OPTIONS_NONE,
	         {.type = VMA_STATS_REQUEST_LOG_LEVEL, .value = options->log_level}},
	        {options->details_level != OPTIONS_NONE,
	         {.type = VMA_STATS_REQUEST_DETAILS, .value = options->details_level}},
	        {options->dump_fd != OPTIONS_NONE,
	         {.type = VMA_STATS_REQUEST_DUMP, .fd = options->dump_fd, .value = options->dump_level}},
	};
	int rc = 0;

	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]) && rc == 0; i++)
		if (requests[i].wanted)
			rc = vma_stats_view_request(view, &requests[i].request);
	if (rc < 0)
		fprintf(stderr, "vmastat: the process cannot be asked: %s\n", strerrordesc_np(-rc));
	return rc;
}

static int fail_if_any_socket_is_not_offloaded(const struct report *report)
{
	if (report->shown != 0 && report->by_kernel == 0)
		return EXIT_SUCCESS;
	fprintf(stderr, "vmastat: %u of %u sockets are not offloaded\n", report->by_kernel, report->shown);
	return EXIT_FAILURE;
}

static const char *stats_open_error_text(int rc)
{
	switch (rc) {
	case -EPROTO:
		return "it is of another version, or is no statistics file";
	case -ESRCH:
		return "its process is not to be found here";
	default:
		return strerrordesc_np(-rc);
	}
}

/* The report is for who wrote the program, so a file of it is for this user only. */
static int write_full_report_to_output_file(const struct options *options, const struct vma_stats_view *view, pid_t pid)
{
	FILE *out = stdout;
	bool written;
	int rc = 0;

	if (options->output != NULL) {
		const int fd = vma_stats_open_output(options->output);

		out = fd >= 0 ? fdopen(fd, "w") : NULL;
		rc = fd < 0 ? fd : -ENOMEM;
	}
	if (out == NULL) {
		fprintf(stderr, "vmastat: %s: %s\n", options->output, strerrordesc_np(-rc));
		return EXIT_FAILURE;
	}
	vma_log_set_level(VMA_LOG_NONE); /* what vmad refuses is in the report */
	report_write(options, view, pid, out);
	written = fflush(out) == 0 && !ferror(out);
	if (out != stdout && (fclose(out) != 0 || !written)) {
		fprintf(stderr, "vmastat: %s cannot be written\n", options->output);
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}

static int show_process(const struct options *options, pid_t pid)
{
	struct report report = {0};
	struct vma_stats_view *view;
	char path[PATH_MAX];
	int rc;

	rc = processes_path(options, pid, path, sizeof(path)) ? vma_stats_view_open(path, &view) : -ENAMETOOLONG;
	if (rc < 0) {
		fprintf(stderr, "vmastat: %s: %s\n", path, stats_open_error_text(rc));
		return EXIT_FAILURE;
	}
	if (options->report) {
		rc = write_full_report_to_output_file(options, view, pid);
		vma_stats_view_close(view);
		return rc;
	}
	rc = options_ask_for_action(options) ? send_stats_requests(options, view) : 0;
	if (rc == 0 && (options->has_view || !options_ask_for_action(options)))
		print_reports_periodically(options, view, path, pid, &report);
	vma_stats_view_close(view);
	if (rc < 0)
		return EXIT_FAILURE;
	return options->assert_offloaded ? fail_if_any_socket_is_not_offloaded(&report) : EXIT_SUCCESS;
}

/* Another user's process or file, one of another version, or one that has just gone; in JSON nothing else. */
static bool process_may_be_left_out_of_output(const struct options *options, int rc)
{
	return !options->json || rc == -EPROTO || rc == -EACCES || rc == -EPERM || rc == -ENOENT || rc == -ESRCH;
}

/* View 5 and -t have the sockets of all processes in one table. */
static int print_socket_table_of_all_processes(const struct options *options, const pid_t *pids, unsigned count)
{
	struct report report;
	int rc = 0;

	begin_stats_output_with_header(options, &report);
	for (unsigned i = 0; i < count && rc == 0; i++) {
		struct vma_stats_view *view;
		char path[PATH_MAX];

		rc = processes_path(options, pids[i], path, sizeof(path)) ? vma_stats_view_open(path, &view)
		                                                          : -ENAMETOOLONG;
		if (rc == 0) {
			print_stats_of_process_once(options, view, 0, &report);
			vma_stats_view_close(view);
		} else if (process_may_be_left_out_of_output(options, rc)) {
			if (rc == -EPROTO)
				fprintf(stderr, "vmastat: %s is left out: %s\n", path, stats_open_error_text(rc));
			rc = 0;
		} else {
			fprintf(stderr, "vmastat: %s: %s\n", path, stats_open_error_text(rc));
		}
	}
	end_json_report(&report, rc == 0 ? stdout : NULL);
	return rc;
}

static int show_socket_table_periodically(struct options *options, pid_t *pids, unsigned count)
{
	options->deltas = false; /* there is nothing in it that counts */
	for (unsigned cycle = 1; count != 0 && !ferror(stdout); cycle++) {
		if (print_socket_table_of_all_processes(options, pids, count) < 0)
			return EXIT_FAILURE;
		if (options->cycles != 0 && cycle == options->cycles)
			break;
		sleep(options->interval);
		count = processes_find(options, pids);
	}
	return EXIT_SUCCESS;
}

/* What was printed has to be written, or the status says so. */
static int exit_status_of_output(int status)
{
	if (!ferror(stdout))
		return status;
	fputs("vmastat: the report cannot be written\n", stderr);
	return EXIT_FAILURE;
}

static int print_vmad_state_of_interface(const char *interface)
{
	int rc;

	vma_log_set_level(VMA_LOG_ERROR); /* says what a refused user lacks; the rest is said here */
	rc = vmad_state_show(interface, stdout);
	fflush(stdout);
	if (rc == 0)
		return EXIT_SUCCESS;
	fprintf(stderr, "vmastat: %s: %s\n", interface, vmad_state_error_text(rc));
	return EXIT_FAILURE;
}

static int print_metrics(const struct options *options)
{
	int rc = metrics_scrape(options, METRICS_OPENMETRICS, METRICS_SCRAPE_NS, stdout);

	if (rc == 0 && fflush(stdout) != 0)
		rc = -errno;
	if (rc < 0)
		fprintf(stderr, "vmastat: the metrics cannot be written: %s\n", strerrordesc_np(-rc));
	return rc == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	static pid_t pids[PROCESSES_MAX];
	struct options options;
	char wrong[256];
	unsigned count;
	pid_t pid;

	switch (options_parse(&options, argc, argv, wrong, sizeof(wrong))) {
	case OPTIONS_HELP:
		fputs(options_help, stdout);
		return EXIT_SUCCESS;
	case OPTIONS_VERSION:
		puts("vma_stats " VMA_VERSION);
		return EXIT_SUCCESS;
	case OPTIONS_WRONG:
		fprintf(stderr, "vmastat: %s: try vma_stats --help\n", wrong);
		return EX_USAGE;
	case OPTIONS_RUN:
		break;
	}
	if (options.listen != NULL)
		return http_listen_and_serve_metrics(&options);
	if (options.vmad != NULL)
		return exit_status_of_output(print_vmad_state_of_interface(options.vmad));
	count = processes_find(&options, pids);
	if (options.openmetrics && (count != 0 || (options.pid == 0 && options.name == NULL)))
		return print_metrics(&options);
	if (options.top && (count != 0 || (options.pid == 0 && options.name == NULL)))
		return top_run(&options);
	if (count == 0) {
		fputs("vmastat: Failed to identify process...\n", stderr);
		return EXIT_FAILURE;
	}
	if ((options.view == VIEW_NETSTAT || options.view == VIEW_TCP) && !options_ask_for_action(&options))
		return exit_status_of_output(show_socket_table_periodically(&options, pids, count));
	pid = count == 1 ? pids[0] : processes_ask_user_to_choose(pids, count);
	return pid != 0 ? exit_status_of_output(show_process(&options, pid)) : EXIT_FAILURE;
}
