/* measure - see measure.h. */
#include "measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

void bench_hist_bounds(uint32_t bucket, uint64_t *low_ns, uint64_t *high_ns)
{
	uint32_t octave = bucket / BENCH_HIST_STEPS, step = bucket % BENCH_HIST_STEPS;

	if (octave == 0) {
		*low_ns = step;
		*high_ns = step + 1;
		return;
	}
	*low_ns = (uint64_t)(BENCH_HIST_STEPS + step) << (octave - 1);
	*high_ns = (uint64_t)(BENCH_HIST_STEPS + step + 1) << (octave - 1);
}

double bench_hist_quantile(const struct bench_hist *hist, double fraction)
{
	uint64_t wanted = (uint64_t)(fraction * (double)hist->count), seen = 0, low_ns, high_ns;

	for (uint32_t i = 0; i < BENCH_HIST_BUCKETS; i++) {
		seen += hist->buckets[i];
		if (seen > wanted || (seen == hist->count && seen > 0)) {
			bench_hist_bounds(i, &low_ns, &high_ns);
			return (double)(low_ns + high_ns - 1) / 2;
		}
	}
	return 0;
}

void bench_hist_print(const struct bench_hist *hist)
{
	uint64_t low_ns, high_ns;

	bench_print("p50_ns", bench_hist_quantile(hist, 0.5));
	bench_print("p99_ns", bench_hist_quantile(hist, 0.99));
	bench_print("p99.9_ns", bench_hist_quantile(hist, 0.999));
	bench_print("max_ns", (double)hist->max_ns);
	for (uint32_t i = 0; i < BENCH_HIST_BUCKETS; i++) {
		if (hist->buckets[i] == 0)
			continue;
		bench_hist_bounds(i, &low_ns, &high_ns);
		printf("hist %llu %llu %u\n", (unsigned long long)low_ns, (unsigned long long)high_ns,
		       hist->buckets[i]);
	}
}

void bench_print(const char *key, double value)
{
	printf("%s %.1f\n", key, value);
}

void bench_pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		bench_die("pinning to the core");
}

double bench_cpu_sec(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

uint32_t bench_parse_number_or_exit(const char *option, const char *text, uint32_t least, uint32_t most)
{
	char *end;
	long long n;

	errno = 0;
	n = strtoll(text, &end, 10);
	if (*text != '\0' && *end == '\0' && errno == 0 && n >= least && n <= most)
		return (uint32_t)n;
	fprintf(stderr, "%s: --%s %s: a number from %u to %u is wanted\n", program_invocation_short_name, option, text,
	        least, most);
	exit(2);
}

struct in_addr bench_parse_ipv4_option_or_exit(const char *option, const char *text)
{
	struct in_addr addr;

	if (inet_pton(AF_INET, text, &addr) == 1)
		return addr;
	fprintf(stderr, "%s: --%s %s: not an IPv4 address\n", program_invocation_short_name, option, text);
	exit(2);
}

void bench_die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}
