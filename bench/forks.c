/*
 * forks - what a process costs: plain calls, run as they are and with the library preloaded.
 *
 *   fork      forks that end at once, one after the other
 *   exec      forks that execute --program (/bin/true)
 *   serve     a process for each connection: accept, fork, the child answers one message and ends; until SIGTERM
 *   load      connections one after the other, a message and its answer on each, for --msec
 *
 * --mb so much memory is touched before, as a database has it; --sockets: a listener and a UDP socket are open
 * meanwhile, on --local. Output as measure.h says.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

#define FIRST 50 /* of a measurement, not counted: pages and caches, and a listener that changes hands meanwhile */

static struct {
	struct in_addr local, peer;
	uint16_t port;
	unsigned rounds, mb, msec;
	bool sockets;
	char *program;
} opts = {.port = 7400, .rounds = 1000, .mb = 32, .msec = 1000, .program = "/bin/true"};

static void allocate_and_touch_memory(void)
{
	const size_t bytes = (size_t)opts.mb << 20;
	char *memory = malloc(bytes + 1);

	if (memory == NULL)
		bench_die("malloc");
	for (size_t i = 0; i < bytes; i += 4096)
		*(volatile char *)(memory + i) = 1;
}

static int forks_bound_socket(int type)
{
	const struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons(opts.port), .sin_addr = opts.local};
	const int on = 1;
	int fd = socket(AF_INET, type, 0);

	if (fd < 0 || (type == SOCK_STREAM && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0) ||
	    bind(fd, (const struct sockaddr *)&local, sizeof(local)) < 0 ||
	    (type == SOCK_STREAM && listen(fd, 128) < 0))
		bench_die("socket");
	return fd;
}

/* How many of them the library carries. */
static void open_sockets_and_print_offloaded_count(void)
{
	int (*state)(int fd, const char **text) =
	        (int (*)(int, const char **))dlsym(RTLD_DEFAULT, "vma_get_socket_state");
	int fds[2] = {forks_bound_socket(SOCK_STREAM), forks_bound_socket(SOCK_DGRAM)}, offloaded = 0;
	const char *text;

	for (int i = 0; state != NULL && i < 2; i++)
		offloaded += state(fds[i], &text) == 1;
	printf("offloaded %d\n", offloaded);
}

/* Of this process and of its children that have ended: what a fork costs beside the call. */
static uint64_t page_faults(void)
{
	struct rusage own, children;

	getrusage(RUSAGE_SELF, &own);
	getrusage(RUSAGE_CHILDREN, &children);
	return (uint64_t)(own.ru_minflt + children.ru_minflt);
}

/* ---- fork, exec ---- */

static void fork_one_child_and_wait(bool exec)
{
	char *argv[] = {opts.program, NULL};
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		if (exec)
			execv(opts.program, argv);
		_exit(exec ? 127 : 0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
		bench_die("child");
}

static int bench_measure_children_time_and_faults(bool exec)
{
	uint64_t begun = 0, faults = 0;

	allocate_and_touch_memory();
	if (opts.sockets)
		open_sockets_and_print_offloaded_count();
	for (unsigned i = 0; i < opts.rounds + FIRST; i++) {
		if (i == FIRST) {
			faults = page_faults();
			begun = bench_now_ns();
		}
		fork_one_child_and_wait(exec);
	}
	printf("usec_each %.1f\n", (double)(bench_now_ns() - begun) / 1e3 / opts.rounds);
	printf("faults_each %.1f\n", (double)(page_faults() - faults) / opts.rounds);
	return 0;
}

static int bench_measure_fork(void)
{
	return bench_measure_children_time_and_faults(false);
}

static int bench_measure_fork_and_exec(void)
{
	return bench_measure_children_time_and_faults(true);
}

/* ---- a process for each connection ---- */

static void child_echo_one_message_and_exit(int fd)
{
	char message[64];
	ssize_t len = recv(fd, message, sizeof(message), 0);

	_exit(len > 0 && send(fd, message, (size_t)len, 0) == len ? 0 : 1);
}

static int bench_serve_with_fork_per_connection(void)
{
	int listener, fd;

	allocate_and_touch_memory();
	listener = forks_bound_socket(SOCK_STREAM);
	signal(SIGCHLD, SIG_IGN);
	printf("ready 1\n");
	fflush(stdout);
	for (;;) {
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			bench_die("accept");
		switch (fork()) {
		case -1:
			bench_die("fork");
			break;
		case 0:
			child_echo_one_message_and_exit(fd);
		}
		close(fd);
	}
}

static void connect_and_exchange_once(void)
{
	const struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(opts.port), .sin_addr = opts.peer};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char byte = 'x';

	if (fd < 0 || connect(fd, (const struct sockaddr *)&peer, sizeof(peer)) < 0 || send(fd, &byte, 1, 0) != 1 ||
	    recv(fd, &byte, 1, MSG_WAITALL) != 1)
		bench_die("connection");
	close(fd);
}

static int bench_connect_repeatedly_and_print_time(void)
{
	uint64_t begun, until, n = 0;

	for (unsigned i = 0; i < FIRST; i++)
		connect_and_exchange_once();
	begun = bench_now_ns();
	until = begun + opts.msec * 1000000ULL;
	for (; bench_now_ns() < until; n++)
		connect_and_exchange_once();
	printf("usec_each %.1f\n", (double)(bench_now_ns() - begun) / 1e3 / (double)n);
	return 0;
}

static const struct mode {
	const char *name;
	int (*run)(void);
} modes[] = {{"fork", bench_measure_fork},
             {"exec", bench_measure_fork_and_exec},
             {"serve", bench_serve_with_fork_per_connection},
             {"load", bench_connect_repeatedly_and_print_time}};

int main(int argc, char **argv)
{
	static const struct option longs[] = {
	        {"local", required_argument, NULL, 'l'},  {"peer", required_argument, NULL, 'p'},
	        {"rounds", required_argument, NULL, 'n'}, {"mb", required_argument, NULL, 'm'},
	        {"msec", required_argument, NULL, 't'},   {"program", required_argument, NULL, 'x'},
	        {"sockets", no_argument, NULL, 's'},      {NULL, 0, NULL, 0},
	};
	const char *name;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'l':
			inet_pton(AF_INET, optarg, &opts.local);
			break;
		case 'p':
			inet_pton(AF_INET, optarg, &opts.peer);
			break;
		case 'n':
			opts.rounds = (unsigned)atoi(optarg);
			break;
		case 'm':
			opts.mb = (unsigned)atoi(optarg);
			break;
		case 't':
			opts.msec = (unsigned)atoi(optarg);
			break;
		case 'x':
			opts.program = optarg;
			break;
		case 's':
			opts.sockets = true;
			break;
		default:
			return 2;
		}
	}
	name = optind < argc ? argv[optind] : "";
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (strcmp(modes[i].name, name) == 0)
			return modes[i].run();
	fprintf(stderr, "forks fork|exec|serve|load OPTION...\n");
	return 2;
}
