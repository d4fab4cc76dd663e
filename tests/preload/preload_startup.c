/*
 * preload_startup LIBRARY RUNS COMMAND...: what the library adds to a command: to the time from its start to its end,
 * in microseconds, and to its page faults. Both are differences of the medians of RUNS with and without the library,
 * taken in turns.
 */
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define RUNS_MAX 1000

static uint64_t preload_startup_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

struct cost {
	int64_t us[RUNS_MAX], faults[RUNS_MAX];
};

static void preload_startup_run_and_measure(char **argv, char **environment, struct cost *cost, int i)
{
	uint64_t begin_us = preload_startup_now_us();
	struct rusage usage;
	int status;
	pid_t pid;

	if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environment) != 0 || wait4(pid, &status, 0, &usage) != pid ||
	    status != 0) {
		fprintf(stderr, "%s does not run\n", argv[0]);
		exit(1);
	}
	cost->us[i] = (int64_t)(preload_startup_now_us() - begin_us);
	cost->faults[i] = usage.ru_minflt;
}

static int preload_startup_compare_int64(const void *a, const void *b)
{
	const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static long startup_median(int64_t *values, int n)
{
	qsort(values, (size_t)n, sizeof(values[0]), preload_startup_compare_int64);
	return (long)values[n / 2];
}

int main(int argc, char **argv)
{
	static struct cost with, without;
	char preload[4096], *loaded[] = {preload, "PATH=/usr/bin:/bin", NULL}, *plain[] = {"PATH=/usr/bin:/bin", NULL};
	int runs = argc > 3 ? atoi(argv[2]) : 0;

	if (runs < 1 || runs > RUNS_MAX) {
		fprintf(stderr, "usage: %s LIBRARY RUNS COMMAND...\n", argv[0]);
		return 2;
	}
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", argv[1]);
	preload_startup_run_and_measure(argv + 3, plain, &without, 0);
	preload_startup_run_and_measure(argv + 3, loaded, &with, 0);
	for (int i = 0; i < runs; i++) {
		preload_startup_run_and_measure(argv + 3, plain, &without, i);
		preload_startup_run_and_measure(argv + 3, loaded, &with, i);
	}
	printf("%ld %ld\n", startup_median(with.us, runs) - startup_median(without.us, runs),
	       startup_median(with.faults, runs) - startup_median(without.faults, runs));
	return 0;
}
