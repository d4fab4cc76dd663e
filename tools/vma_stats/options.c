/* options - getopt_long, and the check of each value. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "listen.h"
#include "options.h"

enum { KEY_ASSERT = 256, KEY_OPENMETRICS, KEY_LISTEN, KEY_PER_SOCKET, KEY_JSON, KEY_VMAD, KEY_REPORT, KEY_TOP };

static const struct option names[] = {
        {"pid", required_argument, NULL, 'p'},
        {"directory", required_argument, NULL, 'k'},
        {"name", required_argument, NULL, 'n'},
        {"find_pid", no_argument, NULL, 'f'},
        {"forbid_clean", no_argument, NULL, 'F'},
        {"interval", required_argument, NULL, 'i'},
        {"cycles", required_argument, NULL, 'c'},
        {"view", required_argument, NULL, 'v'},
        {"tcp", no_argument, NULL, 't'},
        {"details", required_argument, NULL, 'd'},
        {"zero", no_argument, NULL, 'z'},
        {"log_level", required_argument, NULL, 'l'},
        {"fd_dump", required_argument, NULL, 'S'},
        {"details_level", required_argument, NULL, 'D'},
        {"sockets", required_argument, NULL, 's'},
        {"assert-offloaded", no_argument, NULL, KEY_ASSERT},
        {"openmetrics", no_argument, NULL, KEY_OPENMETRICS},
        {"listen", required_argument, NULL, KEY_LISTEN},
        {"per-socket", no_argument, NULL, KEY_PER_SOCKET},
        {"vmad", required_argument, NULL, KEY_VMAD},
        {"report", no_argument, NULL, KEY_REPORT},
        {"output", required_argument, NULL, 'o'},
        {"json", no_argument, NULL, KEY_JSON},
        {"top", no_argument, NULL, KEY_TOP},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}, /* last; the comment keeps one entry a line */
};

const char options_help[] =
        "Usage: vma_stats [-p pid] [-k directory] [-v view] [-d details] [-i interval]\n"
        "\n"
        "Shows what programs on libvma.so have counted.\n"
        "\n"
        "Defaults:\n"
        "\tfind_pid=enabled, directory=\"/tmp/\", view=1, details=1, interval=1,\n"
        "\n"
        "Options:\n"
        "  -p, --pid=<pid>\t\tShow statistics of the process with pid <pid>\n"
        "  -k, --directory=<directory>\tThe directory of the statistics files (VMA_STATS_SHMEM_DIR)\n"
        "  -n, --name=<application>\tShow statistics of the program <application>\n"
        "  -f, --find_pid\t\tFind the process, and show its statistics (default)\n"
        "  -F, --forbid_clean\t\tDo not remove files of processes that have gone\n"
        "  -i, --interval=<n>\t\tPrint a report every <n> seconds\n"
        "  -c, --cycles=<n>\t\tPrint <n> reports and exit; 0: for ever (default)\n"
        "  -v, --view=<1|2|3|4|5|6>\t1 basic info, 2 extra info, 3 full info, 4 multicast groups,\n"
        "\t\t\t\t5 like 'netstat -tunaep', 6 why sockets are offloaded or not\n"
        "  -t, --tcp\t\t\tOffloaded TCP sockets, as 'ss -tin' shows those of the kernel\n"
        "  -d, --details=<1|2>\t\t1 totals, 2 deltas\n"
        "  -z, --zero\t\t\tCounters begin at zero\n"
        "  -l, --log_level=<level>\tSet the log level to <level> (1 <= level <= 7)\n"
        "  -S, --fd_dump=<fd> [<level>]\tThe program logs the counters of socket <fd> at log level <level>;\n"
        "\t\t\t\t0: of all sockets\n"
        "  -D, --details_level=<level>\tSet the log detail level to <level> (0 <= level <= 3)\n"
        "  -s, --sockets=<list|range>\tShow only these sockets: 4-16 or 1,9 (or combination)\n"
        "      --assert-offloaded\tExit status 1 unless all sockets shown are offloaded (view 6)\n"
        "      --openmetrics\t\tPrint the counters of all processes, or of those chosen, as OpenMetrics\n"
        "      --listen=<[addr:]port>\tServe them by HTTP, at /metrics; without <addr> on 127.0.0.1\n"
        "      --per-socket\t\tMetrics of each socket, ring, queue and pool, not sums of their process\n"
        "      --vmad=<interface>\tWhat the vmad of <interface> has: clients, queue pairs, flows, frames\n"
        "      --report\t\t\tAll of it as one text, for a bug report\n"
        "  -o, --output=<file>\t\tThe file of the report\n"
        "      --json\t\t\tEach report is a JSON document on a line of its own; without -v, of all views\n"
        "      --top\t\t\tSockets of all processes on a full screen, with their rates; h shows its keys\n"
        "  -V, --version\t\t\tPrint version\n"
        "  -h, --help\t\t\tPrint this help message\n"
        "\n"
        "-z, -l, -S and -D act on the process. Without -v, -t, -d, -i, -c or --json beside them, nothing is shown.\n";

static bool parse_decimal_in_range(const char *text, long least, long most, long *value)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	*value = strtol(text, &end, 10);
	return *end == '\0' && *value >= least && *value <= most;
}

/* A number of the log's levels, or a name. */
static bool parse_log_level(const char *text, int *level)
{
	enum vma_log_level named;
	long number;

	if (parse_decimal_in_range(text, 0, VMA_LOG_ALL, &number)) {
		*level = (int)number;
		return true;
	}
	if (vma_log_level_parse(text, &named) < 0)
		return false;
	*level = named;
	return true;
}

static bool parse_number_option(const char *text, long least, long most, int *to)
{
	long value;

	if (!parse_decimal_in_range(text, least, most, &value))
		return false;
	*to = (int)value;
	return true;
}

/* The level may be a word of its own behind the descriptor. */
static bool parse_dump_option(struct options *options, int argc, char **argv)
{
	if (!parse_number_option(optarg, 0, 1000000000, &options->dump_fd))
		return false;
	if (optind < argc && argv[optind][0] != '-' && parse_log_level(argv[optind], &options->dump_level))
		optind++;
	return true;
}

static bool parse_vma_stats_option(struct options *options, int key, int argc, char **argv)
{
	int number = 0;
	bool right = true;

	switch (key) {
	case 'p':
		right = parse_number_option(optarg, 1, INT32_MAX, &options->pid);
		break;
	case 'k':
		options->directory = optarg;
		right = *optarg != '\0';
		break;
	case 'n':
		options->name = optarg;
		break;
	case 'F':
		options->forbid_clean = true;
		break;
	case 'i':
		right = parse_number_option(optarg, 1, 1000000, &number);
		options->interval = (unsigned)number;
		break;
	case 'c':
		right = parse_number_option(optarg, 0, INT32_MAX, &number);
		options->cycles = (unsigned)number;
		break;
	case 'v':
		right = parse_number_option(optarg, VIEW_BASIC, VIEW_WHY, &number);
		options->view = (enum options_view)number;
		break;
	case 'd':
		right = parse_number_option(optarg, 1, 2, &number);
		options->deltas = number == 2;
		break;
	case 'z':
		options->zero = true;
		break;
	case 'l':
		right = parse_number_option(optarg, 1, 7, &options->log_level);
		break;
	case 'D':
		right = parse_number_option(optarg, 0, 3, &options->details_level);
		break;
	case 'S':
		right = parse_dump_option(options, argc, argv);
		break;
	case 's':
		right = fd_list_parse(&options->fds, optarg);
		break;
	case KEY_ASSERT:
		options->assert_offloaded = true;
		options->view = VIEW_WHY;
		options->cycles = 1;
		break;
	case KEY_OPENMETRICS:
		options->openmetrics = true;
		break;
	case KEY_LISTEN:
		options->listen = optarg;
		right = listen_address_parse(optarg, NULL);
		break;
	case KEY_PER_SOCKET:
		options->per_socket = true;
		break;
	case 't':
		options->tcp = true;
		break;
	case KEY_VMAD:
		options->vmad = optarg;
		right = *optarg != '\0';
		break;
	case KEY_REPORT:
		options->report = true;
		break;
	case 'o':
		options->output = optarg;
		right = *optarg != '\0';
		break;
	case KEY_JSON:
		options->json = true;
		break;
	case KEY_TOP:
		options->top = true;
		break;
	default: /* -f: it is found anyway */
		break;
	}
	options->has_view |= key == 'i' || key == 'c' || key == 'v' || key == 'd' || key == 't' || key == KEY_ASSERT ||
	                     key == KEY_JSON || key == KEY_TOP;
	return right;
}

/* Metrics are neither a view nor a request. NULL: the options go together. */
static const char *incompatible_options_error_text(const struct options *options)
{
	if (options->report && (options->has_view || options_ask_for_action(options) || options->fds.count != 0 ||
	                        options->openmetrics || options->listen != NULL))
		return "--report goes with -p, -n, -k, -F and -o only";
	if (options->output != NULL && !options->report)
		return "-o goes with --report only";
	if (options->openmetrics && options->listen != NULL)
		return "--openmetrics and --listen do not go together";
	if (options->openmetrics || options->listen != NULL)
		return options->has_view || options_ask_for_action(options)
		               ? "metrics go with -p, -n, -k, -F and -s only"
		               : NULL;
	if (options->tcp && (options->view != 0 || options->deltas || options->json))
		return "--tcp does not go with a view, deltas, --json or --assert-offloaded";
	if (options->top &&
	    (options->view != 0 || options->deltas || options->json || options->tcp || options_ask_for_action(options)))
		return "--top goes with -p, -n, -k, -F, -s, -i and -c only";
	return options->per_socket ? "--per-socket goes with --openmetrics or --listen only" : NULL;
}

static const char *long_option_name_of_key(int key)
{
	for (const struct option *option = names; option->name != NULL; option++)
		if (option->val == key)
			return option->name;
	return "?";
}

enum options_result options_parse(struct options *options, int argc, char **argv, char *wrong, unsigned wrong_bytes)
{
	const char *const directory = getenv("VMA_STATS_SHMEM_DIR");
	int key;

	*options = (struct options){.directory = directory != NULL && *directory != '\0' ? directory : "/tmp/",
	                            .interval = 1,
	                            .log_level = OPTIONS_NONE,
	                            .details_level = OPTIONS_NONE,
	                            .dump_fd = OPTIONS_NONE,
	                            .dump_level = VMA_LOG_INFO};
	optind = 0; /* as if it was never called */
	opterr = 0;
	while ((key = getopt_long(argc, argv, ":p:k:n:fFi:c:v:td:zl:S:D:s:o:Vh", names, NULL)) != -1) {
		if (key == 'h')
			return OPTIONS_HELP;
		if (key == 'V')
			return OPTIONS_VERSION;
		if (key == '?' || key == ':') {
			snprintf(wrong, wrong_bytes, "'%.64s' %s", argv[optind - 1],
			         key == ':' ? "has no value" : "is not understood");
			return OPTIONS_WRONG;
		}
		if (!parse_vma_stats_option(options, key, argc, argv)) {
			snprintf(wrong, wrong_bytes, "'%.64s' is no value of --%s", optarg,
			         long_option_name_of_key(key));
			return OPTIONS_WRONG;
		}
	}
	if (optind < argc) {
		snprintf(wrong, wrong_bytes, "'%.64s' is not understood", argv[optind]);
		return OPTIONS_WRONG;
	}
	if (incompatible_options_error_text(options) != NULL) {
		snprintf(wrong, wrong_bytes, "%s", incompatible_options_error_text(options));
		return OPTIONS_WRONG;
	}
	if (options->vmad != NULL && (strncmp(argv[1], "--vmad", 6) != 0 || argc != (argv[1][6] == '=' ? 2 : 3))) {
		snprintf(wrong, wrong_bytes, "--vmad does not go with other options");
		return OPTIONS_WRONG;
	}
	if (options->tcp)
		options->view = VIEW_TCP;
	if (options->view == 0)
		options->view = options->json ? VIEW_ALL : VIEW_BASIC;
	return OPTIONS_RUN;
}

bool options_ask_for_action(const struct options *options)
{
	return options->zero || options->log_level != OPTIONS_NONE || options->details_level != OPTIONS_NONE ||
	       options->dump_fd != OPTIONS_NONE;
}
