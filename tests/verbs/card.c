/* A network card made of software: its start and its end. README.md has the picture. */
#include "card.h"
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct card card = {.name = "vmasoft0"};

static const char usage[] =
        "usage: card --socket PATH --sysfs FOLDER --tap INTERFACE [--name DEVICE] [--index N] [WIRE]\n"
        "       card --control PATH COMMAND\n"
        "\n"
        "  --socket PATH     where drivers and tests connect\n"
        "  --sysfs FOLDER    the tree for SYSFS_PATH; several cards may write into one\n"
        "  --tap INTERFACE   the interface that the kernel gets; made here, in this network namespace\n"
        "  --name DEVICE     what libibverbs calls it (vmasoft0); begins with vmasoft\n"
        "  --index N         of its node, uverbsN (0)\n"
        "\n"
        "  --wire-listen PATH | --wire PATH   to another card; the one that listens is started first\n"
        "  --plug                             a plug that gives each frame back\n"
        "\n"
        "Commands: show; rules; rules fail ERROR|slow MS|ok; registration fail ERROR|ok; completions slow US;\n"
        "sends fail N; receives fail N; port down|up; remove; insert; replace. README.md says what each does.\n";

static void should_stop(int signal)
{
	(void)signal;
	card.should_stop = true;
}

static int print_errno_and_return_failure(const char *what)
{
	fprintf(stderr, "card: %s: %s\n", what, strerror(errno));
	return 1;
}

struct options {
	const char *socket, *sysfs, *tap, *wire_path, *control;
	enum card_wire_kind wire;
	int index;
};

static bool parse_command_line_options(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {
	        {"socket", required_argument, NULL, 's'},  {"sysfs", required_argument, NULL, 'f'},
	        {"tap", required_argument, NULL, 't'},     {"name", required_argument, NULL, 'n'},
	        {"index", required_argument, NULL, 'i'},   {"wire-listen", required_argument, NULL, 'l'},
	        {"wire", required_argument, NULL, 'w'},    {"plug", no_argument, NULL, 'p'},
	        {"control", required_argument, NULL, 'c'}, {0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (option == 's')
			options->socket = optarg;
		else if (option == 'f')
			options->sysfs = optarg;
		else if (option == 't')
			options->tap = optarg;
		else if (option == 'n')
			snprintf(card.name, sizeof(card.name), "%s", optarg);
		else if (option == 'i')
			options->index = atoi(optarg);
		else if (option == 'c')
			options->control = optarg;
		else if (option == 'p')
			options->wire = CARD_WIRE_LOOPS;
		else if (option == 'l' || option == 'w')
			options->wire = option == 'l' ? CARD_WIRE_LISTENS : CARD_WIRE_CONNECTS,
			options->wire_path = optarg;
		else
			return false;
	}
	if (options->control)
		return optind == argc - 1;
	return options->socket && options->sysfs && options->tap && optind == argc;
}

int main(int argc, char **argv)
{
	struct options options = {0};
	struct sigaction stop = {.sa_handler = should_stop};

	if (!parse_command_line_options(argc, argv, &options)) {
		fputs(usage, stderr);
		return 2;
	}
	if (options.control)
		return card_control_send_command(options.control, argv[optind]);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGINT, &stop, NULL);
	if (port_open_tap(options.tap))
		return print_errno_and_return_failure(options.tap);
	if (port_open_wire(options.wire, options.wire_path))
		return print_errno_and_return_failure(options.wire_path);
	if (card_listen_for_clients(options.socket))
		return print_errno_and_return_failure(options.socket);
	if (fake_sysfs_create_card_tree(options.sysfs, options.index, options.socket))
		return print_errno_and_return_failure(options.sysfs);
	printf("card: %s is ready, its interface is %s\n", card.name, card.tap_name);
	fflush(stdout);
	loop_run();
	card_close_all_clients();
	unlink(options.socket);
	return 0;
}
