/*
 * clock - the card's clock in nanoseconds: its own, or the system's. Arithmetic only.
 *
 * A line goes through the newest sample, a moment that was read on both clocks. Its slope is that between the two
 * newest samples. If this slope does not fit the rate that the device gives, the system's clock was set meanwhile. Then
 * the device's rate counts until the next sample.
 *
 * Threads: none of its own. Memory: the caller's.
 * Example: test/test_verbs_clock.c.
 */
#ifndef VMA_NIC_VERBS_CLOCK_H
#define VMA_NIC_VERBS_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define VERBS_CLOCK_SHIFT 32
#define VERBS_CLOCK_PPM_MAX 1000 /* a crystal is better than that; what is worse is no rate */

struct verbs_clock {
	uint64_t mask;    /* of the device's counter: a power of two, less one; 0: no clock */
	uint64_t nominal; /* ns << VERBS_CLOCK_SHIFT of one tick, as the device says */
	/* the line */
	uint64_t ticks, ns;
	uint64_t slope; /* ns << VERBS_CLOCK_SHIFT of one tick */
	bool sampled;
};

/* `khz`: of the counter, not 0. Until the first sample the line begins at 0: nanoseconds of the device's own time. */
static inline struct verbs_clock verbs_clock_init(uint64_t mask, uint64_t khz)
{
	const uint64_t nominal = (uint64_t)(((unsigned __int128)1000000 << VERBS_CLOCK_SHIFT) / khz);

	return (struct verbs_clock){.mask = mask, .nominal = nominal, .slope = nominal};
}

/* Ticks from one moment to another, which may be before it by less than half of the counter's range. */
static inline int64_t verbs_clock_ticks_between(const struct verbs_clock *clock, uint64_t from, uint64_t to)
{
	const uint64_t forward = (to - from) & clock->mask;

	return forward > clock->mask / 2 ? -(int64_t)((from - to) & clock->mask) : (int64_t)forward;
}

/* In the time of the samples; without any, since the counter was 0. */
static inline uint64_t verbs_clock_ticks_to_ns(const struct verbs_clock *clock, uint64_t ticks)
{
	if (!clock->sampled)
		return (uint64_t)((unsigned __int128)(ticks & clock->mask) * clock->nominal >> VERBS_CLOCK_SHIFT);
	return clock->ns + (uint64_t)(int64_t)((__int128)verbs_clock_ticks_between(clock, clock->ticks, ticks) *
	                                               (__int128)clock->slope >>
	                                       VERBS_CLOCK_SHIFT);
}

/* A moment that was read on both clocks, later than the one before by less than half of the counter's range. */
static inline void verbs_clock_add_sample(struct verbs_clock *clock, uint64_t ticks, uint64_t ns)
{
	const int64_t passed = verbs_clock_ticks_between(clock, clock->ticks, ticks);
	const uint64_t tolerance = clock->nominal / 1000000 * VERBS_CLOCK_PPM_MAX;
	uint64_t slope = 0;

	if (clock->sampled && passed > 0 && ns > clock->ns)
		slope = (uint64_t)(((unsigned __int128)(ns - clock->ns) << VERBS_CLOCK_SHIFT) / (uint64_t)passed);
	if (slope < clock->nominal - tolerance || slope > clock->nominal + tolerance)
		slope = clock->nominal;
	clock->slope = slope;
	clock->ticks = ticks;
	clock->ns = ns;
	clock->sampled = true;
}

/* ---- which stamps ---- */

enum verbs_timestamp_kind {
	VERBS_STAMPS_NONE,
	VERBS_STAMPS_RAW,    /* the device's own time in ns */
	VERBS_STAMPS_SYSTEM, /* CLOCK_REALTIME */
	VERBS_STAMPS_WALL,   /* the clock that PTP disciplines, in ns: the provider's business */
};

/* What VMA_HW_TS_CONVERSION means on a device. */
static inline enum verbs_timestamp_kind verbs_timestamp_kind_for(unsigned conversion, bool has_counter, bool can_sample,
                                                                 bool has_wall)
{
	const enum verbs_timestamp_kind raw = has_counter ? VERBS_STAMPS_RAW : VERBS_STAMPS_NONE;
	const enum verbs_timestamp_kind system = has_counter && can_sample ? VERBS_STAMPS_SYSTEM : VERBS_STAMPS_NONE;

	switch (conversion) {
	case 1:
		return raw;
	case 2:
		return system != VERBS_STAMPS_NONE ? system : raw;
	case 3:
		return system;
	case 4:
		return has_wall ? VERBS_STAMPS_WALL : system;
	default:
		return VERBS_STAMPS_NONE;
	}
}

#endif
