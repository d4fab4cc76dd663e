/*
 * measure - a clock, a histogram of nanoseconds in fixed memory, and the lines that the report reads.
 *
 * Threads: none of it is shared; every process measures for itself.
 * Progress: recording is an index and an increment: no call, no branch on the data.
 * Memory: one static-size struct; 64 steps per power of two, so a value is known to better than 1.6 %.
 * Example: loops.c, bench_loop_ping.
 *
 * Output is one line per fact on stdout, "KEY VALUE"; a histogram bucket is "hist LOW_NS HIGH_NS COUNT".
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <netinet/in.h>
#include <stdint.h>
#include <time.h>

#define BENCH_HIST_SHIFT 6
#define BENCH_HIST_STEPS (1U << BENCH_HIST_SHIFT)
#define BENCH_HIST_OCTAVES 32 /* up to 2^37 ns, more than two minutes; what is longer counts there */
#define BENCH_HIST_BUCKETS (BENCH_HIST_STEPS * BENCH_HIST_OCTAVES)

struct bench_hist {
	uint64_t count;
	uint64_t max_ns;
	uint32_t buckets[BENCH_HIST_BUCKETS];
};

static inline uint64_t bench_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* Values below 64 have a bucket each; then every power of two is cut into 64. */
static inline uint32_t bench_hist_bucket(uint64_t ns)
{
	unsigned octave;
	uint32_t bucket;

	if (ns < BENCH_HIST_STEPS)
		return (uint32_t)ns;
	octave = 63 - (unsigned)__builtin_clzll(ns) - BENCH_HIST_SHIFT;
	bucket = (octave + 1) * BENCH_HIST_STEPS + (uint32_t)((ns >> octave) - BENCH_HIST_STEPS);
	return octave + 1 < BENCH_HIST_OCTAVES ? bucket : BENCH_HIST_BUCKETS - 1;
}

static inline void bench_hist_add(struct bench_hist *hist, uint64_t ns)
{
	hist->buckets[bench_hist_bucket(ns)]++;
	hist->count++;
	if (ns > hist->max_ns)
		hist->max_ns = ns;
}

/* Bounds of a bucket: LOW <= value < HIGH. */
void bench_hist_bounds(uint32_t bucket, uint64_t *low_ns, uint64_t *high_ns);
/* The middle of the bucket that holds the given fraction (0 to 1) of all values; 0 when there are none. */
double bench_hist_quantile(const struct bench_hist *hist, double fraction);
/* p50_ns, p99_ns, p99.9_ns, max_ns and the buckets in use. */
void bench_hist_print(const struct bench_hist *hist);

void bench_print(const char *key, double value);

/* Of this process so far, user and system. */
double bench_cpu_sec(void);

/* The value of an option; one that cannot be taken ends the process with status 2 and a line that names it. */
uint32_t bench_parse_number_or_exit(const char *option, const char *text, uint32_t least, uint32_t most);
struct in_addr bench_parse_ipv4_option_or_exit(const char *option, const char *text);

/* Keeps this process on one core; ends it with a message when that core is not there. */
void bench_pin(int cpu);
/* Ends the process: "NAME: WHAT: reason of errno", status 1. */
void bench_die(const char *what) __attribute__((noreturn, cold));

#endif
