/*
 * stats_reader - reads all counters of a process so many times a second, as vma_stats does, until it is ended.
 *
 *   stats_reader FILE PER_SECOND      prints "reads N" and "nsec_each N" at INT or TERM
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vma/stats_read.h>

static volatile sig_atomic_t ended;

static void on_signal(int number)
{
	(void)number;
	ended = 1;
}

static uint64_t reader_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t at_ns)
{
	const struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

int main(int argc, char **argv)
{
	const struct sigaction stop = {.sa_handler = on_signal};
	const long per_second = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
	static struct vma_stats_snapshot snapshot;
	struct vma_stats_view *view;
	uint64_t reads = 0, spent_ns = 0, next_ns;
	int rc;

	if (per_second < 1 || per_second > 1000000) {
		fputs("Usage: stats_reader FILE PER_SECOND\n", stderr);
		return 64; /* EX_USAGE */
	}
	rc = vma_stats_view_open(argv[1], &view);
	if (rc < 0) {
		fprintf(stderr, "stats_reader: %s: %s\n", argv[1], strerrordesc_np(-rc));
		return EXIT_FAILURE;
	}
	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGTERM, &stop, NULL);
	puts("ready");
	fflush(stdout);
	for (next_ns = reader_now_ns(); !ended; next_ns += 1000000000 / (uint64_t)per_second) {
		const uint64_t begin = reader_now_ns();

		vma_stats_view_read(view, &snapshot);
		spent_ns += reader_now_ns() - begin;
		reads++;
		sleep_until(next_ns);
	}
	vma_stats_view_close(view);
	printf("reads %llu\nnsec_each %llu\n", (unsigned long long)reads, (unsigned long long)(spent_ns / reads));
	return EXIT_SUCCESS;
}
