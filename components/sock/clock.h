/* clock.h - the time, for code that asks at each packet. */
#ifndef SOCK_CLOCK_H
#define SOCK_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC, to a microsecond, by which it may also go back from one call to the next. Any thread. */
uint64_t clock_ns(void);

#endif
