/*
 * wheel - timers of connections: set, moved and stopped in constant time for any number of them; microsecond ticks.
 *
 * Hierarchical: the lowest level's slot is one tick; a timer far away lies in a higher level and comes down as its time
 * comes near. Firing is never early, and at most one tick late as seen by advance.
 *
 * Threads: one at a time (the driver). Progress: advance costs the slots passed that are not empty. Memory: the wheel's
 * own; nodes are the users'.
 */
#ifndef VMA_TCP_TIMER_WHEEL_H
#define VMA_TCP_TIMER_WHEEL_H

#include <stdbool.h>
#include <stdint.h>

#define WHEEL_TICK_NS 1024ULL
#define WHEEL_BITS 6
#define WHEEL_LEVELS 8 /* 2^48 ticks of 1.024 us: nine years */

struct tcp_timer_node {
	struct tcp_timer_node *next, **prev; /* prev NULL: not set */
	uint64_t due_ns;
	uint8_t kind; /* user's */
	uint8_t level, slot;
};
struct tcp_wheel {
	uint64_t tick; /* all before it have fired */
	bool changed;  /* what wheel_next_due_ns says may be another time than before: for who asks it to clear */
	uint64_t occupied[WHEEL_LEVELS];
	struct tcp_timer_node *slot[WHEEL_LEVELS][1 << WHEEL_BITS];
	uint64_t slot_due_ns[WHEEL_LEVELS][1 << WHEEL_BITS]; /* of a slot that is occupied: nothing in it is earlier */
};

void wheel_init(struct tcp_wheel *wheel, uint64_t now_ns);
void wheel_set(struct tcp_wheel *wheel, struct tcp_timer_node *node, uint64_t due_ns); /* also moves one that is set */
void wheel_stop(struct tcp_wheel *wheel, struct tcp_timer_node *node);
static inline bool wheel_is_set(const struct tcp_timer_node *node)
{
	return node->prev != 0;
}
/* Calls fire for every node due at now; each is stopped before, and may be set again, or stop others, in fire. */
void wheel_advance(struct tcp_wheel *wheel, uint64_t now_ns, void (*fire)(struct tcp_timer_node *node, void *arg),
                   void *arg);
/* When advance has to be called at the latest: never later than the earliest node's time, perhaps earlier (one that
 * has been stopped); UINT64_MAX: nothing is set. */
uint64_t wheel_next_due_ns(const struct tcp_wheel *wheel);

#endif
