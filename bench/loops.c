/* loops - see loops.h. */
#include "loops.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"

#define WARMUP_ROUNDS 5000
#define RESEND_NS 50000000ULL    /* a round trip that takes this long is lost, or the peer is not there yet */
#define GIVE_UP_NS 5000000000ULL /* without any answer */
#define LOOK_AT_CLOCK 256        /* empty polls between looks, in the loops that do not time each packet */

volatile int bench_stop;

static void bench_on_stop_signal(int sig)
{
	(void)sig;
	bench_stop = 1;
}

/* One round trip; false when none came within GIVE_UP_NS. A lost packet is sent again under a new number. */
static bool round_trip(const struct bench_port_ops *ops, uint64_t *seq, uint64_t *lost)
{
	uint64_t begin = bench_now_ns(), sent = begin, got;
	unsigned spins = 0;

	while (ops->send(++*seq, 1) == 0)
		if (bench_now_ns() - begin > GIVE_UP_NS)
			return false;
	while (!bench_stop) {
		if (ops->receive(&got) > 0 && got == *seq)
			return true;
		if (++spins % LOOK_AT_CLOCK != 0 || bench_now_ns() - sent < RESEND_NS)
			continue;
		if (bench_now_ns() - begin > GIVE_UP_NS)
			return false;
		(*lost)++;
		ops->send(++*seq, 1);
		sent = bench_now_ns();
	}
	return false;
}

static int bench_loop_ping(const struct bench_opts *opts, const struct bench_port_ops *ops)
{
	static struct bench_hist hist;
	uint64_t seq = 0, lost = 0, before, now;

	for (uint32_t i = 0; i < WARMUP_ROUNDS && i < opts->rounds; i++)
		if (!round_trip(ops, &seq, &lost))
			return 1;
	lost = 0;
	before = bench_now_ns();
	for (uint32_t i = 0; i < opts->rounds; i++) {
		if (!round_trip(ops, &seq, &lost))
			return 1;
		now = bench_now_ns();
		bench_hist_add(&hist, (now - before) / 2);
		before = now;
	}
	bench_print("packets", 2.0 * opts->rounds);
	bench_print("lost", (double)lost);
	bench_hist_print(&hist);
	return 0;
}

static int bench_loop_echo_packets(const struct bench_opts *opts, const struct bench_port_ops *ops)
{
	(void)opts;
	while (!bench_stop)
		ops->echo();
	return 0;
}

static int bench_loop_send(const struct bench_opts *opts, const struct bench_port_ops *ops)
{
	uint64_t seq = 0, end = bench_now_ns() + opts->msec * 1000000ULL;

	while (!bench_stop && bench_now_ns() < end)
		seq += ops->send(seq, opts->burst);
	bench_print("sent", (double)seq);
	return 0;
}

/* Counts until the clock has passed `until`; *last becomes the time of the last look. */
static uint64_t bench_count_received_until(const struct bench_port_ops *ops, uint64_t until, uint64_t *last)
{
	uint64_t packets = 0, seq;

	do {
		for (unsigned i = 0; i < LOOK_AT_CLOCK; i++)
			packets += ops->receive(&seq);
		*last = bench_now_ns();
	} while (*last < until && !bench_stop);
	return packets;
}

static int bench_loop_receive_and_count(const struct bench_opts *opts, const struct bench_port_ops *ops)
{
	uint64_t begin = bench_now_ns(), end, packets, seq, length = opts->msec * 1000000ULL;

	while (ops->receive(&seq) == 0)
		if (bench_stop || bench_now_ns() - begin > GIVE_UP_NS)
			return 1;
	bench_count_received_until(ops, bench_now_ns() + length / 4, &begin);
	packets = bench_count_received_until(ops, begin + length, &end);
	bench_print("packets", (double)packets);
	bench_print("pps", (double)packets * 1e9 / (double)(end - begin));
	fflush(stdout);
	/* The sender may still be at it: take the rest as well, or the kernel would get it after all. */
	while (!bench_stop)
		ops->receive(&seq);
	return packets == 0;
}

static void parse_mac(const char *text, uint8_t mac[6])
{
	if (sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]) == 6)
		return;
	errno = EINVAL;
	bench_die(text);
}

static const struct option options[] = {
        {"device", required_argument, NULL, 'd'},    {"owner", required_argument, NULL, 'o'},
        {"local-mac", required_argument, NULL, 'm'}, {"peer-mac", required_argument, NULL, 'M'},
        {"local", required_argument, NULL, 'l'},     {"peer", required_argument, NULL, 'p'},
        {"port", required_argument, NULL, 'P'},      {"bytes", required_argument, NULL, 'b'},
        {"burst", required_argument, NULL, 'B'},     {"rounds", required_argument, NULL, 'r'},
        {"msec", required_argument, NULL, 't'},      {"spin", no_argument, NULL, 's'},
        {"cpu", required_argument, NULL, 'c'},       {0},
};

static bool bench_take_option(struct bench_opts *opts, int letter, const char *name, const char *value)
{
	switch (letter) {
	case 'd':
		opts->device = value;
		break;
	case 'o':
		opts->owner = value;
		break;
	case 'm':
		parse_mac(value, opts->local_mac);
		break;
	case 'M':
		parse_mac(value, opts->peer_mac);
		break;
	case 'l':
		opts->local_be = bench_parse_ipv4_option_or_exit(name, value).s_addr;
		break;
	case 'p':
		opts->peer_be = bench_parse_ipv4_option_or_exit(name, value).s_addr;
		break;
	case 'P':
		opts->port_be = htons((uint16_t)bench_parse_number_or_exit(name, value, 1, UINT16_MAX));
		break;
	case 'b':
		opts->frame_bytes = bench_parse_number_or_exit(name, value, BENCH_HEADERS_BYTES + 8, UINT16_MAX);
		break;
	case 'B':
		opts->burst = bench_parse_number_or_exit(name, value, 1, 64);
		break;
	case 'r':
		opts->rounds = bench_parse_number_or_exit(name, value, 0, INT32_MAX);
		break;
	case 't':
		opts->msec = bench_parse_number_or_exit(name, value, 0, 3600000);
		break;
	case 's':
		opts->spin = true;
		break;
	case 'c':
		opts->cpu = (int)bench_parse_number_or_exit(name, value, 0, INT32_MAX);
		break;
	default:
		return false;
	}
	return true;
}

static const struct {
	const char *name;
	int (*run)(const struct bench_opts *, const struct bench_port_ops *);
} bench_loops[] = {{"ping", bench_loop_ping},
                   {"pong", bench_loop_echo_packets},
                   {"send", bench_loop_send},
                   {"sink", bench_loop_receive_and_count}};

int bench_main(int argc, char **argv, const struct bench_port_ops *ops)
{
	struct bench_opts opts = {.device = "",
	                          .owner = "self",
	                          .frame_bytes = 64,
	                          .burst = 1,
	                          .rounds = 100000,
	                          .msec = 500,
	                          .port_be = htons(7000)};
	struct sigaction action = {.sa_handler = bench_on_stop_signal};
	int (*what)(const struct bench_opts *, const struct bench_port_ops *) = NULL;
	int letter, status, index = 0;

	while ((letter = getopt_long(argc, argv, "", options, &index)) != -1)
		if (!bench_take_option(&opts, letter, options[index].name, optarg))
			return 2;
	for (size_t i = 0; optind + 1 == argc && i < sizeof(bench_loops) / sizeof(bench_loops[0]); i++)
		if (strcmp(argv[optind], bench_loops[i].name) == 0)
			what = bench_loops[i].run;
	if (what == NULL) {
		if (optind + 1 == argc)
			fprintf(stderr, "%s: there is no \"%s\"\n", program_invocation_short_name, argv[optind]);
		fprintf(stderr, "usage: %s ping|pong|send|sink [OPTIONS]\n", program_invocation_short_name);
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	bench_pin(opts.cpu);
	ops->open(&opts);
	printf("ready\n"); /* the driver starts the other side now: from here on no packet is the kernel's */
	fflush(stdout);
	status = what(&opts, ops);
	ops->close();
	return status;
}
