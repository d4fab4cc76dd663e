/*
 * vma_dump - the packets of a program on libvma.so, as pcapng.
 *
 *   request, once a second ──> the process copies packets into its ring (capture.h)
 *   ring ──> held for a moment: a drop's reason follows its packet ──> filter ──> pcapng
 *
 * The process is asked for two seconds of packets every half a second. So a capture ends by itself when this program
 * has gone, in whatever way; and this program cannot hold the other up.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pcap/pcap.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <vma/conf_version.h>
#include <vma/stats_read.h>

#include "checksum.h"
#include "options.h"
#include "pcapng.h"
#include "socket_filter.h"

#define PROCESSES_MAX 1024
#define LEASE_SECONDS 2
#define ASK_NS 500000000
#define HOLD_NS 20000000 /* a drop is known within the burst that the packet came in */
#define HELD 8192u
#define START_NS 5000000000

struct held {
	struct vma_capture_info info;
	uint64_t since_ns;
	char reason[VMA_CAPTURE_TEXT_MAX]; /* "": not dropped */
	uint8_t data[VMA_CAPTURE_DATA_MAX];
};

struct dump {
	const struct options *options;
	struct vma_stats_view *view;
	struct vma_capture_reader *reader;
	struct pcapng pcapng;
	struct bpf_program filter;
	bool filters, failed;
	struct held *held; /* HELD of them, used from `first` to `end` */
	uint64_t first, end;
	uint64_t seen, written, lost, asked_ns;
	unsigned interruptions; /* the process was not asked for so long that it had ended the capture */
};

static volatile sig_atomic_t ended;

static void on_signal(int number)
{
	(void)number;
	ended = 1;
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

static bool process_name(pid_t pid, char name[64])
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, name, 63);
	close(fd);
	name[n > 0 ? n - 1 : 0] = '\0';
	for (char *c = name; *c != '\0'; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return true;
}

static bool process_path(const struct options *options, pid_t pid, char path[PATH_MAX])
{
	return snprintf(path, PATH_MAX, "%s/vmastat.%d", options->directory, (int)pid) < PATH_MAX;
}

static int list_processes(const struct options *options)
{
	static pid_t pids[PROCESSES_MAX];
	const int n = vma_stats_list(options->directory, false, pids, PROCESSES_MAX);

	for (int i = 0; i < n; i++) {
		struct vma_stats_view *view;
		char path[PATH_MAX], name[64];

		if (!process_path(options, pids[i], path) || vma_stats_view_open(path, &view) < 0)
			continue; /* another user's, or it has just gone */
		vma_stats_view_close(view);
		printf("%d %s\n", (int)pids[i], process_name(pids[i], name) ? name : "?");
	}
	return EXIT_SUCCESS;
}

/* The only one there is; 0 after a message. */
static pid_t only_process(const struct options *options)
{
	static pid_t pids[PROCESSES_MAX];
	const int n = vma_stats_list(options->directory, false, pids, PROCESSES_MAX);

	if (n == 1)
		return pids[0];
	fputs(n <= 0 ? "vma_dump: no program on libvma.so runs here\n"
	             : "vma_dump: several programs run: -D lists them, -p chooses one\n",
	      stderr);
	return 0;
}

/* ---- the request ---- */

static int ask(struct dump *dump)
{
	const struct vma_stats_request request = {.type = VMA_STATS_REQUEST_CAPTURE, .value = LEASE_SECONDS};

	if (dump->asked_ns != 0 && now_ns(CLOCK_MONOTONIC) - dump->asked_ns > LEASE_SECONDS * 1000000000ull)
		dump->interruptions++;
	dump->asked_ns = now_ns(CLOCK_MONOTONIC);
	return vma_stats_view_request(dump->view, &request);
}

/* The ring is there after the first request, and packets come for certain once another one has been served. */
static int start_capture(struct dump *dump)
{
	const uint64_t until = now_ns(CLOCK_MONOTONIC) + START_NS;
	int rc = ask(dump);
	uint64_t grants;

	while (rc == 0 && (rc = vma_capture_open(dump->view, &dump->reader)) == -EAGAIN) {
		if (now_ns(CLOCK_MONOTONIC) > until || ended)
			return -ETIMEDOUT;
		pause_ns(1000000);
		rc = 0;
	}
	if (rc == 0) {
		grants = vma_capture_grants(dump->reader);
		rc = ask(dump);
		while (rc == 0 && vma_capture_grants(dump->reader) == grants) {
			if (now_ns(CLOCK_MONOTONIC) > until || ended)
				return -ETIMEDOUT;
			pause_ns(1000000);
		}
	}
	return rc;
}

/* ---- packets ---- */

static bool passes_filter(const struct dump *dump, const struct held *held)
{
	const struct pcap_pkthdr head = {.caplen = held->info.captured, .len = held->info.len};

	return !dump->filters || pcap_offline_filter(&dump->filter, &head, held->data) != 0;
}

static void write_first(struct dump *dump)
{
	struct held *held = &dump->held[dump->first++ % HELD];
	char comment[64];

	dump->seen++;
	if (!passes_filter(dump, held))
		return;
	if (held->info.flags & VMA_CAPTURE_CSUM_OPEN && held->info.captured == held->info.len)
		checksum_finish(held->data, held->info.captured);
	snprintf(comment, sizeof(comment), "dropped: %s", held->reason);
	if (!pcapng_packet(&dump->pcapng, &held->info, held->data, held->reason[0] != '\0' ? comment : NULL))
		dump->failed = true;
	dump->written++;
}

static void note_drop(struct dump *dump, const struct vma_capture_info *info)
{
	for (uint64_t i = dump->end; i != dump->first; i--) {
		struct held *held = &dump->held[(i - 1) % HELD];

		if (held->info.kind == VMA_CAPTURE_IN && held->info.id == info->id) {
			memcpy(held->reason, info->text, sizeof(held->reason));
			return;
		}
	}
}

static bool is_full(const struct dump *dump)
{
	return dump->failed || (dump->options->count != 0 && dump->written >= dump->options->count);
}

/* Whether there was anything. A ring's length at a time: the process is to be asked again, however much comes. */
static bool take_records(struct dump *dump)
{
	const uint64_t now = now_ns(CLOCK_MONOTONIC);
	bool any = false;

	for (unsigned n = 0; n < VMA_CAPTURE_SLOTS; n++) {
		struct held *held = &dump->held[dump->end % HELD];

		if (dump->end - dump->first == HELD)
			write_first(dump);
		if (is_full(dump) || vma_capture_next(dump->reader, now, &held->info, held->data, &dump->lost) == 0)
			return any;
		any = true;
		if (held->info.kind == VMA_CAPTURE_DROP) {
			note_drop(dump, &held->info);
			continue;
		}
		held->since_ns = now;
		held->reason[0] = '\0';
		dump->end++;
	}
	return any;
}

static void write_held(struct dump *dump, bool all)
{
	const uint64_t now = now_ns(CLOCK_MONOTONIC);

	while (dump->first != dump->end && !is_full(dump) &&
	       (all || now - dump->held[dump->first % HELD].since_ns > HOLD_NS))
		write_first(dump);
}

static void copy_packets(struct dump *dump)
{
	bool lives = true;

	while (!ended && lives && !is_full(dump)) {
		const bool any = take_records(dump);

		write_held(dump, false);
		if (!any) {
			fflush(dump->pcapng.out);
			pause_ns(1000000);
		}
		if (now_ns(CLOCK_MONOTONIC) - dump->asked_ns > ASK_NS) {
			const int rc = ask(dump);

			lives = rc == 0 || rc == -EAGAIN;
		}
	}
	take_records(dump);
	write_held(dump, true);
}

/* ---- before and after ---- */

static int compile_filter(struct dump *dump)
{
	char of_socket[512], text[sizeof(dump->options->filter) + sizeof(of_socket) + 16];
	const char *const asked = dump->options->filter;
	pcap_t *pcap;
	int rc = 0;

	snprintf(text, sizeof(text), "%s", asked);
	if (dump->options->fd >= 0) {
		if (!socket_filter(dump->view, dump->options->fd, of_socket, sizeof(of_socket))) {
			fprintf(stderr, "vma_dump: fd %d is no bound socket of the process\n", dump->options->fd);
			return -ENOENT;
		}
		snprintf(text, sizeof(text), asked[0] != '\0' ? "(%s) and (%s)" : "%s%s", of_socket, asked);
	}
	if (text[0] == '\0')
		return 0;
	pcap = pcap_open_dead(DLT_EN10MB, VMA_CAPTURE_DATA_MAX);
	if (pcap == NULL)
		return -ENOMEM;
	if (pcap_compile(pcap, &dump->filter, text, 1, PCAP_NETMASK_UNKNOWN) != 0) {
		fprintf(stderr, "vma_dump: %s: %s\n", text, pcap_geterr(pcap));
		rc = -EINVAL;
	}
	pcap_close(pcap);
	dump->filters = rc == 0;
	return rc;
}

static FILE *open_output(const char *file)
{
	int fd;

	if (strcmp(file, "-") == 0)
		return stdout;
	fd = vma_stats_open_output(file);
	errno = fd < 0 ? -fd : 0;
	return fd >= 0 ? fdopen(fd, "w") : NULL;
}

static int run_capture(struct dump *dump, pid_t pid)
{
	char name[64], application[128];
	FILE *out = open_output(dump->options->file);
	int rc;

	if (out == NULL) {
		fprintf(stderr, "vma_dump: %s: %s\n", dump->options->file, strerror(errno));
		return EXIT_FAILURE;
	}
	rc = start_capture(dump);
	if (rc < 0) {
		fprintf(stderr, "vma_dump: process %d does not capture: %s\n", (int)pid, strerrordesc_np(-rc));
		fclose(out);
		return EXIT_FAILURE;
	}
	snprintf(application, sizeof(application), "process %d: %s", (int)pid, process_name(pid, name) ? name : "?");
	dump->failed = !pcapng_begin(&dump->pcapng, out, dump->options->snap, application);
	fflush(out);
	fprintf(stderr, "vma_dump: capturing, %s\n", application);
	copy_packets(dump);
	if (!pcapng_end(&dump->pcapng, dump->seen, dump->lost, now_ns(CLOCK_REALTIME)))
		dump->failed = true;
	dump->failed |= fclose(out) != 0;
	fprintf(stderr, "%llu packets written, %llu seen, %llu lost\n", (unsigned long long)dump->written,
	        (unsigned long long)dump->seen, (unsigned long long)dump->lost);
	if (dump->interruptions != 0)
		fprintf(stderr, "vma_dump: the capture was interrupted %u times, as the output took too long\n",
		        dump->interruptions);
	return dump->failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int dump_process(const struct options *options, pid_t pid)
{
	struct dump dump = {.options = options, .held = calloc(HELD, sizeof(struct held))};
	char path[PATH_MAX];
	int rc = process_path(options, pid, path) ? vma_stats_view_open(path, &dump.view) : -ENAMETOOLONG;

	if (rc < 0 || dump.held == NULL) {
		fprintf(stderr, "vma_dump: %s: %s\n", path, strerrordesc_np(rc < 0 ? -rc : ENOMEM));
		free(dump.held);
		return EXIT_FAILURE;
	}
	rc = compile_filter(&dump) == 0 ? run_capture(&dump, pid) : EXIT_FAILURE;
	if (dump.filters)
		pcap_freecode(&dump.filter);
	vma_capture_close(dump.reader);
	vma_stats_view_close(dump.view);
	free(dump.held);
	return rc;
}

int main(int argc, char **argv)
{
	const struct sigaction stop = {.sa_handler = on_signal};
	static struct options options;
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
	if (options.list)
		return list_processes(&options);
	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGTERM, &stop, NULL);
	signal(SIGPIPE, SIG_IGN);
	pid = options.pid != 0 ? options.pid : only_process(&options);
	return pid != 0 ? dump_process(&options, pid) : EXIT_FAILURE;
}
