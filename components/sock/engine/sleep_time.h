/*
 * sleep_time - until when a thread sleeps. A thread that wants it earlier wakes it only if it would come too late.
 *
 * A waker publishes something that is due at a time, then asks (A). The sleeper says when it wakes (B), then looks at
 * what is published (C), and sleeps no longer than that allows. When it has woken, it says that it is awake (D), and
 * looks at everything before it comes to B again. A, B and D are read-modify-writes of one variable, and therefore in
 * an order. If A comes before a B or D, that one takes over what A released, and the look that follows finds it. If A
 * comes after B, it reads the time and knows whether that is early enough. After D it reads 0, and a B is still to
 * come.
 */
#ifndef VMA_SOCK_ENGINE_SLEEP_TIME_H
#define VMA_SOCK_ENGINE_SLEEP_TIME_H

#include <stdatomic.h>
#include <stdint.h>

struct sleep_time {
	_Atomic uint64_t until; /* 0: awake */
};

/* A. If that is after the time, wake it. */
static inline uint64_t sleep_time_load(struct sleep_time *time)
{
	return atomic_fetch_or(&time->until, 0);
}
/* B, and D with 0. */
static inline void sleep_time_publish(struct sleep_time *time, uint64_t until)
{
	atomic_exchange(&time->until, until);
}

#endif
