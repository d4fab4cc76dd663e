/*
 * preload_startup LIBRARY RUNS COMMAND...: what the library adds to the time from start to end of a command, in
 * microseconds: the difference of the medians of RUNS with and without it, taken in turns.
 */
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define RUNS_MAX 1000

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static int64_t run(char **argv, char **environment)
{
	uint64_t begin_us = now_us();
	int status;
	pid_t pid;

	if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environment) != 0 || waitpid(pid, &status, 0) != pid ||
	    status != 0) {
		fprintf(stderr, "%s does not run\n", argv[0]);
		exit(1);
	}
	return (int64_t)(now_us() - begin_us);
}

static int compare(const void *a, const void *b)
{
	const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static int64_t with[RUNS_MAX], without[RUNS_MAX];
	char preload[4096], *loaded[] = {preload, "PATH=/usr/bin:/bin", NULL}, *plain[] = {"PATH=/usr/bin:/bin", NULL};
	int runs = argc > 3 ? atoi(argv[2]) : 0;

	if (runs < 1 || runs > RUNS_MAX) {
		fprintf(stderr, "usage: %s LIBRARY RUNS COMMAND...\n", argv[0]);
		return 2;
	}
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", argv[1]);
	run(argv + 3, plain);
	run(argv + 3, loaded);
	for (int i = 0; i < runs; i++) {
		without[i] = run(argv + 3, plain);
		with[i] = run(argv + 3, loaded);
	}
	qsort(with, (size_t)runs, sizeof(with[0]), compare);
	qsort(without, (size_t)runs, sizeof(without[0]), compare);
	printf("%ld\n", (long)(with[runs / 2] - without[runs / 2]));
	return 0;
}
