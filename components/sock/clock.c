/*
 * clock - CLOCK_MONOTONIC for code that asks at each packet. A thread reads it once a millisecond, and in between adds
 * the time that the processor's counter has counted since.
 *
 * The C library's clock reads that counter, too, but only after all that comes before it in the program is done. That
 * is a good part of what a small message costs. The counter's rate follows from two readings of both clocks. A reading
 * that took long (READ_TICKS) is good for itself only. Either it was interrupted, or the kernel uses another clock,
 * since it finds that the counter cannot be relied on. A reading of a thread that knows no rate yet is good for itself
 * only, too. If a counter has gone back, or far ahead (another core's, a machine that was stopped), the clock is read.
 *
 * Accepted: within the millisecond the two may part by a microsecond, and the clocks of two threads by as much.
 */
#include "clock.h"

#include <vma/sock_thread.h>

#define GOOD_NS UINT64_C(1000000)        /* how long a reading serves; and it takes as long to know the rate at first */
#define CALIBRATE_NS UINT64_C(500000000) /* then it is looked at anew */
#define READ_TICKS 512
#define FRACTION 32 /* bits of `rate` behind the point */
#define RATE_MIN ((UINT64_C(1) << FRACTION) / 16)

struct clock {
	uint64_t ticks, ns;             /* of the last reading */
	uint64_t good;                  /* ticks that may be added to it; 0: none */
	uint64_t rate;                  /* nanoseconds per tick; 0: not known */
	uint64_t since_ticks, since_ns; /* of the reading from which it is learned */
};
static __thread struct clock tsc_clock_of_thread __attribute__((tls_model("initial-exec")));

/* What is far from what it was, or from what any counter does, says that one of the two stood still meanwhile. */
static uint64_t tsc_ns_per_tick_or_zero_if_implausible(uint64_t ns, uint64_t ticks, uint64_t before)
{
	const uint64_t rate = ticks != 0 ? (uint64_t)(((unsigned __int128)ns << FRACTION) / ticks) : 0;
	const bool differs = before != 0 && (rate > before + before / 256 || rate < before - before / 256);

	return differs || rate < RATE_MIN ? 0 : rate;
}

static void clock_calibrate(struct clock *clock)
{
	const uint64_t ns = clock->ns - clock->since_ns;

	if (ns < (clock->rate != 0 ? CALIBRATE_NS : GOOD_NS))
		return;
	if (ns < 2 * CALIBRATE_NS) /* in a longer time much may have happened */
		clock->rate =
		        tsc_ns_per_tick_or_zero_if_implausible(ns, clock->ticks - clock->since_ticks, clock->rate);
	clock->since_ticks = clock->ticks;
	clock->since_ns = clock->ns;
}

static __attribute__((noinline)) uint64_t clock_read_and_calibrate(struct clock *clock)
{
	const uint64_t before = vma_tsc();

	clock->ns = vma_now_ns();
	clock->ticks = vma_tsc();
	clock->good = 0;
	if (clock->ticks - before > READ_TICKS)
		return clock->ns;
	clock_calibrate(clock);
	if (clock->rate != 0)
		clock->good = (GOOD_NS << FRACTION) / clock->rate;
	return clock->ns;
}

uint64_t clock_ns(void)
{
	struct clock *clock = &tsc_clock_of_thread;
	const uint64_t ticks = vma_tsc() - clock->ticks;

	if (__builtin_expect(ticks < clock->good, 1))
		return clock->ns + (uint64_t)((unsigned __int128)ticks * clock->rate >> FRACTION);
	return clock_read_and_calibrate(clock);
}
