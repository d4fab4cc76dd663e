/*
 * count_calls.h - a test program's own sched_yield and syscall, which count what its threads call, each for itself; and
 * clocks so slow that no bound of time, to spin or to ask again, is ever reached.
 */
#ifndef VMA_SOCK_TEST_COUNT_CALLS_H
#define VMA_SOCK_TEST_COUNT_CALLS_H

#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock_thread.h>

struct calls {
	unsigned yields;
	unsigned asks; /* system calls of number calls_asked */
};
static __thread struct calls calls;
static __thread long calls_asked;

int sched_yield(void)
{
	calls.yields++;
	return 0;
}

/* Of six arguments, whatever the caller has given: what lies in their place goes to nobody. */
__attribute__((no_sanitize("address"))) long syscall(long number, ...)
{
	static long (*real)(long number, ...);
	va_list list;
	long arg[6];

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arg[i] = va_arg(list, long);
	va_end(list);
	if (real == NULL)
		*(void **)&real = dlsym(RTLD_NEXT, "syscall");
	calls.asks += number == calls_asked;
	return real(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

/* A microsecond takes as long as a tenth of a second. */
static inline void make_tsc_clock_seem_slow(void)
{
	atomic_store(&vma_tsc_per_1024_usec, vma_tsc_measure() * 100000);
}

#endif
