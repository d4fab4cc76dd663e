/*
 * wheel.c - the wheel of timers.
 *
 * A timer's place follows from the wheel's tick and the timer's. The highest group of WHEEL_BITS bits in which the two
 * differ is its level, and that group of its own tick is its slot. So
 *
 *   - A timer in level L shares all higher groups with the wheel's tick. Its slot is beyond the tick's own (equal only
 *     in level 0, for timers that are due in this very tick). Everything in level L is due before anything in L+1.
 *   - As the tick moves on, a place stays right until the tick reaches that slot. The call `advance` empties those
 *     slots. Their timers are due or find a new place, lower down.
 *
 * A slot also knows the earliest time that was ever placed in it since it was empty. That may be too early by now, if
 * the node has been stopped or moved. A thread that comes then finds the slot reached, and its nodes get new places,
 * lower down or with their own times. The answer of wheel_next_due_ns costs the same for one timer and for a million.
 *
 * The current tick's slot is looked at by the nanosecond, so nothing fires early and nothing waits for the tick's end.
 * Times further away than the levels reach lie in the last slot until everything is placed anew. That is at the latest
 * when the tick's higher bits change.
 */
#include <stddef.h>
#include <string.h>

#include "wheel.h"

#define SLOTS (1u << WHEEL_BITS)
#define FIRING WHEEL_LEVELS /* the level of a node that is about to be called: in no slot */

static unsigned wheel_slot_index(uint64_t tick, unsigned level)
{
	return (unsigned)(tick >> (level * WHEEL_BITS)) & (SLOTS - 1);
}

/* The level of the highest difference; 0 for equal ticks, up to WHEEL_LEVELS or above for those too far apart. */
static unsigned wheel_level_of(uint64_t tick, uint64_t other)
{
	uint64_t differ = tick ^ other;

	return differ ? (63 - (unsigned)__builtin_clzll(differ)) / WHEEL_BITS : 0;
}

static void timer_list_push_front(struct tcp_timer_node **head, struct tcp_timer_node *node)
{
	node->next = *head;
	if (node->next)
		node->next->prev = &node->next;
	node->prev = head;
	*head = node;
}

static void timer_unlink_node(struct tcp_timer_node *node)
{
	*node->prev = node->next;
	if (node->next)
		node->next->prev = node->prev;
	node->prev = NULL;
}

static void wheel_place(struct tcp_wheel *wheel, struct tcp_timer_node *node)
{
	uint64_t tick = node->due_ns / WHEEL_TICK_NS;
	unsigned level, slot;

	if (tick < wheel->tick)
		tick = wheel->tick;
	level = wheel_level_of(wheel->tick, tick);
	if (level < WHEEL_LEVELS) {
		slot = wheel_slot_index(tick, level);
	} else {
		level = WHEEL_LEVELS - 1;
		slot = SLOTS - 1;
	}
	node->level = (uint8_t)level;
	node->slot = (uint8_t)slot;
	if (!wheel->slot[level][slot] || node->due_ns < wheel->slot_due_ns[level][slot])
		wheel->slot_due_ns[level][slot] = node->due_ns;
	timer_list_push_front(&wheel->slot[level][slot], node);
	wheel->occupied[level] |= UINT64_C(1) << slot;
	wheel->changed = true;
}

void wheel_init(struct tcp_wheel *wheel, uint64_t now_ns)
{
	memset(wheel, 0, sizeof(*wheel));
	wheel->tick = now_ns / WHEEL_TICK_NS;
}

void wheel_stop(struct tcp_wheel *wheel, struct tcp_timer_node *node)
{
	if (!node->prev)
		return;
	timer_unlink_node(node);
	if (node->level != FIRING && !wheel->slot[node->level][node->slot]) {
		wheel->occupied[node->level] &= ~(UINT64_C(1) << node->slot);
		wheel->changed = true;
	}
}

void wheel_set(struct tcp_wheel *wheel, struct tcp_timer_node *node, uint64_t due_ns)
{
	wheel_stop(wheel, node);
	node->due_ns = due_ns;
	wheel_place(wheel, node);
}

/* The slots of a level that the tick reaches or passes on its way to `tick`, which differs highest in level `top`. */
static uint64_t wheel_slots_passed(const struct tcp_wheel *wheel, unsigned level, unsigned top, uint64_t tick)
{
	unsigned from = wheel_slot_index(wheel->tick, level), to = wheel_slot_index(tick, level);
	uint64_t up_to = to == SLOTS - 1 ? UINT64_MAX : (UINT64_C(1) << (to + 1)) - 1;

	if (level < top)
		return wheel->occupied[level];
	/* Of a higher level than 0 the tick's own slot has been emptied before; what it holds came from far beyond. */
	return wheel->occupied[level] & up_to & (UINT64_MAX << from << (level ? 1 : 0));
}

static void timer_list_move_all(struct tcp_timer_node **from, struct tcp_timer_node **to)
{
	struct tcp_timer_node *node;

	while ((node = *from)) {
		timer_unlink_node(node);
		timer_list_push_front(to, node);
	}
}

/* Takes the nodes of all slots reached into one list, then moves the tick. */
static void wheel_collect(struct tcp_wheel *wheel, uint64_t tick, struct tcp_timer_node **reached)
{
	unsigned top = wheel_level_of(wheel->tick, tick);

	for (unsigned level = 0; level < WHEEL_LEVELS && level <= top; level++) {
		uint64_t slots = wheel_slots_passed(wheel, level, top, tick);

		wheel->occupied[level] &= ~slots;
		wheel->changed |= slots != 0;
		for (; slots; slots &= slots - 1)
			timer_list_move_all(&wheel->slot[level][__builtin_ctzll(slots)], reached);
	}
	wheel->tick = tick;
}

void wheel_advance(struct tcp_wheel *wheel, uint64_t now_ns, void (*fire)(struct tcp_timer_node *node, void *arg),
                   void *arg)
{
	struct tcp_timer_node *reached = NULL, *firing = NULL, *node;
	uint64_t tick = now_ns / WHEEL_TICK_NS;

	if (tick < wheel->tick)
		return;
	wheel_collect(wheel, tick, &reached);
	while ((node = reached)) {
		timer_unlink_node(node);
		if (node->due_ns <= now_ns) {
			node->level = FIRING;
			timer_list_push_front(&firing, node);
		} else {
			wheel_place(wheel, node);
		}
	}
	/* What fire sets for now or earlier is not in this list: it is next advance's, so this loop ends. */
	while ((node = firing)) {
		timer_unlink_node(node);
		fire(node, arg);
	}
}

uint64_t wheel_next_due_ns(const struct tcp_wheel *wheel)
{
	for (unsigned level = 0; level < WHEEL_LEVELS; level++) {
		if (wheel->occupied[level])
			return wheel->slot_due_ns[level][__builtin_ctzll(wheel->occupied[level])];
	}
	return UINT64_MAX;
}
