/* options - getopt_long, and the check of each value. */
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vma/capture.h>

#include "options.h"

static const struct option names[] = {
        {"pid", required_argument, NULL, 'p'},
        {"interface", required_argument, NULL, 'i'},
        {"fd", required_argument, NULL, 'd'},
        {"write", required_argument, NULL, 'w'},
        {"snapshot-length", required_argument, NULL, 's'},
        {"count", required_argument, NULL, 'c'},
        {"directory", required_argument, NULL, 'k'},
        {"list-processes", no_argument, NULL, 'D'},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
};

const char options_help[] =
        "Usage: vma_dump -w FILE [-p PID] [-d FD] [-s BYTES] [-c COUNT] [-k DIRECTORY] [FILTER]\n"
        "       vma_dump -w FILE -i INTERFACE [-s BYTES] [-c COUNT] [-k DIRECTORY] [FILTER]\n"
        "       vma_dump -D\n"
        "\n"
        "Writes the packets that programs on libvma.so receive and send, as pcapng.\n"
        "\n"
        "Options:\n"
        "  -p, --pid=PID\t\t\tOf this process; without it, of the only one there is\n"
        "  -i, --interface=INTERFACE\tOf all processes on this interface, those that start later, too\n"
        "  -d, --fd=FD\t\t\tOnly packets with the addresses of this socket\n"
        "  -w, --write=FILE\t\tTo this file; -: to standard output, for example for wireshark -k -i -\n"
        "  -s, --snapshot-length=BYTES\tThe first BYTES of each packet (1 to 65535, the default)\n"
        "  -c, --count=COUNT\t\tEnd after COUNT packets\n"
        "  -k, --directory=DIRECTORY\tThe directory of the statistics files (VMA_STATS_SHMEM_DIR)\n"
        "  -D, --list-processes\t\tList the processes that can be captured\n"
        "  -V, --version\t\t\tPrint version\n"
        "  -h, --help\t\t\tPrint this help message\n"
        "\n"
        "FILTER is in the language of pcap-filter(7).\n";

static bool options_parse_number_in_range(const char *text, long long least, long long most, long long *value)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	*value = strtoll(text, &end, 10);
	return *end == '\0' && *value >= least && *value <= most;
}

static bool apply_command_line_option(struct options *options, int key)
{
	long long value = 0;
	bool right = true;

	switch (key) {
	case 'p':
		right = options_parse_number_in_range(optarg, 1, INT_MAX, &value);
		options->pid = (pid_t)value;
		break;
	case 'i':
		right = *optarg != '\0' && strlen(optarg) < VMA_CAPTURE_TEXT_MAX;
		options->interface = optarg;
		break;
	case 'd':
		right = options_parse_number_in_range(optarg, 0, INT_MAX, &value);
		options->fd = (int)value;
		break;
	case 'w':
		options->file = optarg;
		break;
	case 's':
		right = options_parse_number_in_range(optarg, 1, VMA_CAPTURE_DATA_MAX, &value);
		options->snap = (uint32_t)value;
		break;
	case 'c':
		right = options_parse_number_in_range(optarg, 1, LLONG_MAX, &value);
		options->count = (uint64_t)value;
		break;
	case 'k':
		options->directory = optarg;
		break;
	default:
		options->list = true;
		break;
	}
	if (!right)
		fprintf(stderr, "vma_dump: '%.64s' is no value of -%c\n", optarg, key);
	return right;
}

/* The words that are no options, joined. */
static bool join_filter_words(struct options *options, char **words)
{
	size_t used = 0;

	for (; *words != NULL; words++) {
		const int n = snprintf(options->filter + used, sizeof(options->filter) - used, "%s%s",
		                       used != 0 ? " " : "", *words);

		if (n < 0 || (size_t)n >= sizeof(options->filter) - used) {
			fputs("vma_dump: the filter is too long\n", stderr);
			return false;
		}
		used += (size_t)n;
	}
	return true;
}

enum options_result options_parse(struct options *options, int argc, char **argv)
{
	const char *const directory = getenv("VMA_STATS_SHMEM_DIR");
	int key;

	*options = (struct options){.fd = -1,
	                            .directory = directory != NULL && *directory != '\0' ? directory : "/tmp",
	                            .snap = VMA_CAPTURE_DATA_MAX};
	optind = 0; /* as if it was never called */
	while ((key = getopt_long(argc, argv, "p:i:d:w:s:c:k:DVh", names, NULL)) != -1) {
		if (key == 'h')
			return OPTIONS_HELP;
		if (key == 'V')
			return OPTIONS_VERSION;
		if (key == '?' || !apply_command_line_option(options, key))
			return OPTIONS_WRONG;
	}
	if (!join_filter_words(options, argv + optind))
		return OPTIONS_WRONG;
	if (options->interface != NULL && (options->pid != 0 || options->fd >= 0)) {
		fputs("vma_dump: -i is of all processes: it does not go with -p and -d\n", stderr);
		return OPTIONS_WRONG;
	}
	if (options->file == NULL && !options->list) {
		fputs("vma_dump: -w says where the packets go\n", stderr);
		return OPTIONS_WRONG;
	}
	return OPTIONS_RUN;
}
