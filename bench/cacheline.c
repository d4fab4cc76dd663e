/*
 * cacheline - one cache line handed to and fro between two cores: the least that any exchange between them costs.
 *
 * Two processes share one page; each waits for the other's number and writes the next. Nothing else happens.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

#define ROUNDS 2000000U
#define WARMUP 100000U
#define BATCH 16U /* round trips between two looks at the clock, which costs about as much as one hand-over */

static _Atomic uint32_t *line;

/* release/acquire: the number is the message, and a real one would stand before it. */
static void wait_for(uint32_t number)
{
	while (atomic_load_explicit(line, memory_order_acquire) != number)
		;
}

static void answer(void)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		wait_for(2 * i + 1);
		atomic_store_explicit(line, 2 * i + 2, memory_order_release);
	}
}

static void ask(struct bench_hist *hist)
{
	uint64_t before = bench_now_ns(), now;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		atomic_store_explicit(line, 2 * i + 1, memory_order_release);
		wait_for(2 * i + 2);
		if (i % BATCH != BATCH - 1)
			continue;
		now = bench_now_ns();
		if (i >= WARMUP)
			bench_hist_add(hist, (now - before) / (2 * BATCH));
		before = now;
	}
}

int main(void)
{
	static struct bench_hist hist;
	pid_t child;

	line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (line == MAP_FAILED)
		bench_die("mmap");
	child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0) {
		bench_pin(1);
		answer();
		_exit(0);
	}
	bench_pin(0);
	ask(&hist);
	waitpid(child, NULL, 0);
	bench_print("packets", 2.0 * ROUNDS);
	bench_hist_print(&hist);
	return 0;
}
