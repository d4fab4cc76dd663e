/*
 * starts - what it costs a program to start: its own calls are few.
 *
 *   one       makes a UDP socket, connects it to --peer, sends a datagram, and ends
 *   compare   executes "one" over and over with --library preloaded, in turn with VMA_NIC=xdp, auto, and xdp once more
 *
 * The second xdp shows what the figures are worth. Each of --rounds has all three, and begins with the next one. Output as
 * measure.h says: medians in microseconds from fork to wait, and of the CPU time.
 */
#include <arpa/inet.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

#define ROUNDS_MOST 10000
#define FIRST 2 /* rounds that are not counted: files and caches */
#define WAYS 3

static struct {
	struct in_addr peer;
	unsigned rounds;
	const char *library;
} opts = {.rounds = 51, .library = ""};

static const struct {
	const char *name, *nic;
} ways[WAYS] = {{"xdp", "xdp"}, {"auto", "auto"}, {"xdp_again", "xdp"}};
static double wall_usec[WAYS][ROUNDS_MOST], cpu_usec[WAYS][ROUNDS_MOST];

static void send_one_datagram(void)
{
	const struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(7500), .sin_addr = opts.peer};
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0 || connect(fd, (const struct sockaddr *)&peer, sizeof(peer)) < 0 || send(fd, "x", 1, 0) != 1)
		bench_die("a datagram");
}

static double timeval_usec(struct timeval time)
{
	return (double)time.tv_sec * 1e6 + (double)time.tv_usec;
}

static void execute_one(unsigned way, char *program)
{
	char peer[INET_ADDRSTRLEN];
	char *args[] = {program, "one", "--peer", peer, NULL};

	inet_ntop(AF_INET, &opts.peer, peer, sizeof(peer));
	setenv("VMA_NIC", ways[way].nic, 1);
	setenv("LD_PRELOAD", opts.library, 1);
	execv(program, args);
	_exit(127);
}

static void measure_start(unsigned way, unsigned round, char *program)
{
	const uint64_t begun = bench_now_ns();
	struct rusage used;
	int status;
	const pid_t pid = fork();

	if (pid == 0)
		execute_one(way, program);
	if (pid < 0 || wait4(pid, &status, 0, &used) < 0)
		bench_die("fork");
	if (status != 0)
		exit(1);
	wall_usec[way][round] = (double)(bench_now_ns() - begun) / 1e3;
	cpu_usec[way][round] = timeval_usec(used.ru_utime) + timeval_usec(used.ru_stime);
}

static int compare_doubles(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void print_median(const char *what, unsigned way, double *values)
{
	char key[64];

	qsort(values, opts.rounds, sizeof(*values), compare_doubles);
	snprintf(key, sizeof(key), "%s_%s_usec", ways[way].name, what);
	bench_print(key, values[opts.rounds / 2]);
}

static void compare_ways(char *program)
{
	for (unsigned i = 0; i < opts.rounds + FIRST; i++)
		for (unsigned j = 0; j < WAYS; j++)
			measure_start((i + j) % WAYS, i < FIRST ? 0 : i - FIRST, program);
	for (unsigned way = 0; way < WAYS; way++) {
		print_median("wall", way, wall_usec[way]);
		print_median("cpu", way, cpu_usec[way]);
	}
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
	        {"peer", required_argument, NULL, 'p'},
	        {"rounds", required_argument, NULL, 'r'},
	        {"library", required_argument, NULL, 'l'},
	        {0},
	};
	const char *what = argc > 1 ? argv[1] : "";
	int option;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (option == 'p')
			opts.peer = bench_parse_ipv4_option_or_exit("--peer", optarg);
		else if (option == 'r')
			opts.rounds = bench_parse_number_or_exit("--rounds", optarg, 1, ROUNDS_MOST);
		else if (option == 'l')
			opts.library = optarg;
		else
			return 2;
	}
	if (strcmp(what, "one") == 0)
		send_one_datagram();
	else if (strcmp(what, "compare") == 0)
		compare_ways(argv[0]);
	else
		return 2;
	return 0;
}
