/*
 * spin - how long a wait spins.
 *
 * Each socket or set has a budget. A wait that was over within what spinning could have covered doubles it, any other
 * halves it, between 10 and 1000 microseconds; so a socket with a message every microsecond is always met spinning, and
 * an idle one costs ten microseconds per wait. The user's bound (VMA_RX_POLL, VMA_SELECT_POLL) holds beside it; "for
 * ever" is obeyed as it stands. When more threads of the process spin than it may run on cores, spinning steals the
 * time of those for whom one waits: then the budget is the smallest, and who spins for ever yields between looks.
 */
#include <sched.h>

#include <vma/sock_engine.h>

#include "spin.h"

#define BUDGET_MIN_NSEC 10000u
#define BUDGET_MAX_NSEC 1000000u
#define BUDGET_FIRST_NSEC 500000u

static _Atomic uint32_t spinners;

static uint32_t cores(void)
{
	struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return engine == NULL || engine->cores == 0 ? 1 : engine->cores;
}

uint64_t vma_tsc_of_nsec(uint64_t nsec)
{
	static _Atomic uint64_t per_1024_usec; /* ticks */
	uint64_t rate = atomic_load_explicit(&per_1024_usec, memory_order_relaxed);

	if (__builtin_expect(rate == 0, 0)) {
		uint64_t ns = vma_now_ns(), tsc = vma_tsc(), passed;

		do
			passed = vma_now_ns() - ns;
		while (passed < 200000);
		rate = (vma_tsc() - tsc) * 1024000 / passed;
		atomic_store_explicit(&per_1024_usec, rate, memory_order_relaxed);
	}
	return nsec / 1024000 * rate + nsec % 1024000 * rate / 1024000;
}

void spin_begin(struct spin_state *state, const struct vma_wait *wait)
{
	bool for_ever = wait->spin_loops < 0 && wait->spin_nsec < 0;
	uint64_t nsec;

	state->crowded = atomic_fetch_add_explicit(&spinners, 1, memory_order_relaxed) + 1 > cores();
	state->until_tsc = UINT64_MAX;
	if (for_ever)
		return;
	nsec = atomic_load_explicit(&wait->spin->budget_nsec, memory_order_relaxed);
	if (nsec == 0)
		nsec = BUDGET_FIRST_NSEC;
	if (state->crowded)
		nsec = BUDGET_MIN_NSEC;
	if (wait->spin_nsec >= 0 && (uint64_t)wait->spin_nsec < nsec)
		nsec = (uint64_t)wait->spin_nsec;
	state->until_tsc = vma_tsc() + vma_tsc_of_nsec(nsec);
}

void spin_end(struct spin_state *state)
{
	(void)state;
	atomic_fetch_sub_explicit(&spinners, 1, memory_order_relaxed);
}

void spin_learn(struct vma_wait *wait, uint64_t ticks)
{
	uint32_t budget = atomic_load_explicit(&wait->spin->budget_nsec, memory_order_relaxed);

	if (budget == 0)
		budget = BUDGET_FIRST_NSEC;
	if (ticks <= vma_tsc_of_nsec(BUDGET_MAX_NSEC / 2))
		budget = budget * 2 > BUDGET_MAX_NSEC ? BUDGET_MAX_NSEC : budget * 2;
	else
		budget = budget / 2 < BUDGET_MIN_NSEC ? BUDGET_MIN_NSEC : budget / 2;
	atomic_store_explicit(&wait->spin->budget_nsec, budget, memory_order_relaxed);
}
