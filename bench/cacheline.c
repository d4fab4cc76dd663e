/*
 * cacheline - one cache line handed to and fro between cores 0 and 1: the least that any exchange between them costs.
 *
 *   cacheline          two million round trips: percentiles and histogram of one way
 *   cacheline watch    beside a measurement, until SIGTERM: a look ten times a second, then what it has seen
 *
 * Two processes share one page; each waits for the other's number and writes the next. Nothing else happens.
 *
 * The host of a virtual machine moves its cores about, from under one cache to under two and back, at any moment at
 * which one of them halts; what two programs say to each other then costs four times as much. A figure is comparable
 * only to another one that was taken at the same distance, hence the watch: line_ns is the median of its looks,
 * line_low_ns and line_high_ns are the tenth and the ninetieth of a hundred of them. A look takes 10 to 30 us of both
 * cores, as a real-time task (CAP_SYS_NICE), so that it gets them at once from programs that spin.
 */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

#define ROUNDS 2000000U
#define WARMUP 100000U
#define BATCH 16U /* round trips between two looks at the clock, which costs about as much as one hand-over */

#define LOOK_EVERY_NS 100000000ULL
#define LOOK_ROUNDS 64U
#define LOOK_NUMBERS 256U /* more than a look uses: the numbers of the next one are other numbers */
#define TIMEOUT 200000U   /* looks at the line before the other end is given up: at most a millisecond */

static _Atomic uint32_t *line;
static volatile sig_atomic_t cacheline_should_stop;

/* release/acquire: the number is the message, and a real one would stand before it. */
static void cacheline_spin_until_number(uint32_t number)
{
	while (atomic_load_explicit(line, memory_order_acquire) != number)
		;
}

static bool cacheline_spin_for_number_or_timeout(uint32_t number)
{
	for (uint32_t i = 0; i < TIMEOUT; i++)
		if (atomic_load_explicit(line, memory_order_acquire) == number)
			return true;
	return false;
}

static void cacheline_answer_all_rounds(void)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		cacheline_spin_until_number(2 * i + 1);
		atomic_store_explicit(line, 2 * i + 2, memory_order_release);
	}
}

static void cacheline_measure_round_trips(struct bench_hist *hist)
{
	uint64_t before = bench_now_ns(), now;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		atomic_store_explicit(line, 2 * i + 1, memory_order_release);
		cacheline_spin_until_number(2 * i + 2);
		if (i % BATCH != BATCH - 1)
			continue;
		now = bench_now_ns();
		if (i >= WARMUP)
			bench_hist_add(hist, (now - before) / (2 * BATCH));
		before = now;
	}
}

/* ---- the watch ---- */

static void cacheline_stop(int sig)
{
	(void)sig;
	cacheline_should_stop = 1;
}

static void set_realtime_priority(void)
{
	struct sched_param priority = {.sched_priority = 1};

	sched_setscheduler(0, SCHED_FIFO, &priority); /* without it fewer looks succeed, which line_looks says */
}

static void sleep_until(uint64_t ns)
{
	struct timespec at = {.tv_sec = (time_t)(ns / 1000000000U), .tv_nsec = (long)(ns % 1000000000U)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* Both ends sleep until the same moment. The first exchange tells that the other one is up; the rest is timed. A look
 * that one of them gives up is given up by the other as well, for want of an answer; the next begins with new numbers.
 */
static void cacheline_answer_measure_briefly(uint32_t first)
{
	for (uint32_t i = 0; i <= LOOK_ROUNDS; i++) {
		if (!cacheline_spin_for_number_or_timeout(first + 2 * i + 1))
			return;
		atomic_store_explicit(line, first + 2 * i + 2, memory_order_release);
	}
}

static bool cacheline_measure_briefly(uint32_t first, uint64_t *ns)
{
	uint64_t before = 0;

	for (uint32_t i = 0; i <= LOOK_ROUNDS; i++) {
		atomic_store_explicit(line, first + 2 * i + 1, memory_order_release);
		if (!cacheline_spin_for_number_or_timeout(first + 2 * i + 2))
			return false;
		if (i == 0)
			before = bench_now_ns();
	}
	*ns = (bench_now_ns() - before) / (2 * LOOK_ROUNDS);
	return true;
}

static void cacheline_measure_now_and_then(bool asks, uint64_t begin_ns, struct bench_hist *hist)
{
	uint64_t ns;

	set_realtime_priority();
	for (uint32_t i = 1; !cacheline_should_stop; i++) {
		sleep_until(begin_ns + i * LOOK_EVERY_NS);
		if (!asks)
			cacheline_answer_measure_briefly(i * LOOK_NUMBERS);
		else if (cacheline_measure_briefly(i * LOOK_NUMBERS, &ns))
			bench_hist_add(hist, ns);
	}
}

static void cacheline_print_measured(const struct bench_hist *hist)
{
	bench_print("line_looks", (double)hist->count);
	if (hist->count == 0)
		return;
	bench_print("line_ns", bench_hist_quantile(hist, 0.5));
	bench_print("line_low_ns", bench_hist_quantile(hist, 0.1));
	bench_print("line_high_ns", bench_hist_quantile(hist, 0.9));
}

int main(int argc, char **argv)
{
	static struct bench_hist hist;
	bool watches = argc == 2 && strcmp(argv[1], "watch") == 0;
	struct sigaction stopping = {.sa_handler = cacheline_stop};
	uint64_t begin_ns = bench_now_ns();
	pid_t parent = getpid(), child;

	if (argc > 1 && !watches) {
		fprintf(stderr, "usage: cacheline [watch]\n");
		return 2;
	}
	if (watches)
		sigaction(SIGTERM, &stopping, NULL);
	line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (line == MAP_FAILED)
		bench_die("mmap");
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		bench_pin(1);
		if (watches)
			cacheline_measure_now_and_then(false, begin_ns, NULL);
		else
			cacheline_answer_all_rounds();
		_exit(0);
	}
	bench_pin(0);
	if (watches) {
		prctl(PR_SET_PDEATHSIG, SIGTERM); /* with the script that began it */
		cacheline_measure_now_and_then(true, begin_ns, &hist);
		kill(child, SIGKILL);
		cacheline_print_measured(&hist);
	} else {
		cacheline_measure_round_trips(&hist);
		bench_print("packets", 2.0 * ROUNDS);
		bench_hist_print(&hist);
	}
	waitpid(child, NULL, 0);
	return 0;
}
