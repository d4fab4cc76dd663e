/*
 * spin - how long a wait spins.
 *
 * Each socket or set has a budget, between 10 and 1000 microseconds. A wait that spinning could have covered doubles
 * it, any other halves it. So a socket with a message every microsecond is always met spinning, and an idle one costs
 * ten microseconds per wait. The user's bound (VMA_RX_POLL, VMA_SELECT_POLL) holds beside it; "for ever" is obeyed as
 * it stands.
 *
 * A wait may be for OS descriptors as well (`mixed`). If one of these has ended it, the budget falls to a quarter, down
 * to one microsecond. Their data comes from programs on this host, a proxy's backend for example, which need the cores.
 * Each look there is a system call. If packets and the OS end waits in turn, the budget must come to next to no
 * spinning, and not stay where it is.
 *
 * Spinning must not take the core from the threads that it waits for. So one core is left to them. Beyond that many
 * spinners a thread sleeps at once, or, if it is to spin for ever, yields between looks. A spinner that delivered to a
 * sleeping thread yields until that one is up, since it may be queued behind the spinner. A yield need not give it the
 * core, so the spinner sleeps if that takes long. A spinner that finds that it was descheduled has seen that cores are
 * scarce. For a while no thread of the process spins then, except for ever. Cores are scarce, too, if more threads are
 * runnable on the host than it has cores (load.h). Then no thread begins to spin whose bound is the default. A bound
 * that was set asks for so much spinning.
 */
#include <sched.h>

#include <vma/sock_engine.h>

#include "load.h"
#include "spin.h"
#include "wait.h"

#define BUDGET_MIN_NSEC 10000u
#define BUDGET_OS_NSEC 1000u
#define BUDGET_MAX_NSEC 1000000u
#define BUDGET_FIRST_NSEC 500000u
#define GAP_NSEC 100000 /* between two looks: a descheduled spinner */
#define YIELD_TO_WOKEN_NSEC 10000
#define SCARCE_TIMES 16
#define SCARCE_MAX_NSEC 50000000

static _Atomic uint32_t spinners;
static _Atomic uint64_t cores_scarce_until_tsc;
static struct load load;

/* How many may spin at a time. */
static uint32_t max_spinning_threads(void)
{
	struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return engine == NULL || engine->cores <= 2 ? 1 : engine->cores - 1;
}

static bool cores_are_scarce(uint64_t now_tsc)
{
	return now_tsc < atomic_load_explicit(&cores_scarce_until_tsc, memory_order_relaxed);
}

/* How long it may spin is what the user has said: a wait has one bound, of time (VMA_SELECT_POLL) or of looks. */
static bool spin_is_configured(const struct vma_wait *wait)
{
	struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	if (engine == NULL)
		return false;
	if (wait->spin_nsec >= 0)
		return engine->conf.given[VMA_CONF_AT_select_poll];
	return engine->conf.given[VMA_CONF_AT_rx_poll] || engine->conf.given[VMA_CONF_AT_rx_poll_init];
}

_Atomic uint64_t vma_tsc_per_1024_usec;

uint64_t vma_tsc_measure(void)
{
	uint64_t ns = vma_now_ns(), tsc = vma_tsc(), passed, rate;

	do
		passed = vma_now_ns() - ns;
	while (passed < 200000);
	rate = (vma_tsc() - tsc) * 1024000 / passed;
	atomic_store_explicit(&vma_tsc_per_1024_usec, rate, memory_order_relaxed);
	return rate;
}

bool spin_begin(struct spin_state *state, const struct vma_wait *wait)
{
	bool for_ever = wait->spin_loops < 0 && wait->spin_nsec < 0;
	uint64_t nsec;

	*state = (struct spin_state){.until_tsc = UINT64_MAX, .last_tsc = vma_tsc()};
	if (!for_ever) {
		if (cores_are_scarce(state->last_tsc) ||
		    atomic_load_explicit(&spinners, memory_order_relaxed) >= max_spinning_threads())
			return false;
		if (loadavg_is_high(&load, state->last_tsc) && !spin_is_configured(wait))
			return false;
		nsec = atomic_load_explicit(&wait->spin->budget_nsec, memory_order_relaxed);
		if (nsec == 0)
			nsec = BUDGET_FIRST_NSEC;
		if (wait->spin_nsec >= 0 && (uint64_t)wait->spin_nsec < nsec)
			nsec = (uint64_t)wait->spin_nsec;
		state->until_tsc = state->last_tsc + vma_tsc_of_nsec(nsec);
	}
	atomic_fetch_add_explicit(&spinners, 1, memory_order_relaxed);
	wait->self->spinning = true;
	return true;
}

/* It has yielded to one whom it has woken: false if that one still is not up, after all the time that it was given. */
static bool woken_thread_runs_or_has_time_left(struct spin_state *state, struct vma_thread *self, uint64_t now)
{
	if (atomic_load_explicit(&self->woke->state, memory_order_relaxed) != VMA_THREAD_WOKEN) {
		self->woke = NULL;
		state->yielding_to = NULL;
		return true;
	}
	if (state->yielding_to != self->woke) {
		state->yielding_to = self->woke;
		state->yielding_since_tsc = now;
	}
	return now - state->yielding_since_tsc < vma_tsc_of_nsec(YIELD_TO_WOKEN_NSEC);
}

/* Looked at now and then only: it is a line that all spinners write. */
static void spin_update_crowded(struct spin_state *state)
{
	if (++state->polls % 64 == 0)
		state->too_many_spinners =
		        atomic_load_explicit(&spinners, memory_order_relaxed) > max_spinning_threads();
}

bool spin_may_continue(struct spin_state *state, struct vma_thread *self)
{
	uint64_t now, penalty;

	if (state->until_tsc == UINT64_MAX) { /* the time is not asked for: that takes as long as a look */
		self->woke = NULL;
		spin_update_crowded(state);
		return true;
	}
	now = vma_tsc();
	if (self->woke != NULL) {
		state->last_tsc = now; /* it was away of its own will */
		return woken_thread_runs_or_has_time_left(state, self, now) && now < state->until_tsc;
	}
	if (now - state->last_tsc > vma_tsc_of_nsec(GAP_NSEC)) {
		penalty = (now - state->last_tsc) * SCARCE_TIMES;
		if (penalty > vma_tsc_of_nsec(SCARCE_MAX_NSEC))
			penalty = vma_tsc_of_nsec(SCARCE_MAX_NSEC);
		atomic_store_explicit(&cores_scarce_until_tsc, now + penalty, memory_order_relaxed);
		return false;
	}
	state->last_tsc = now;
	return now < state->until_tsc;
}

void spin_leave(struct vma_thread *self)
{
	if (!self->spinning)
		return;
	if (__builtin_expect(self->busy_polls != 0, 0))
		busy_poller_end(self, UINT64_MAX, true);
	self->spinning = false;
	self->woke = NULL;
	atomic_fetch_sub_explicit(&spinners, 1, memory_order_relaxed);
}

void spin_reset_in_fork_child(void)
{
	atomic_store_explicit(&spinners, 0, memory_order_relaxed);
	loadavg_reset_in_fork_child(&load);
}

static uint32_t spin_budget_of(const struct vma_spin *spin)
{
	uint32_t budget = atomic_load_explicit(&spin->budget_nsec, memory_order_relaxed);

	return budget != 0 ? budget : BUDGET_FIRST_NSEC;
}

void spin_adapt(struct vma_spin *spin, bool paid, uint64_t ticks)
{
	uint32_t budget = spin_budget_of(spin);

	if (paid && ticks <= vma_tsc_of_nsec(BUDGET_MAX_NSEC / 2))
		budget = budget * 2 > BUDGET_MAX_NSEC ? BUDGET_MAX_NSEC : budget * 2;
	else if (budget > BUDGET_MIN_NSEC)
		budget = budget / 2 < BUDGET_MIN_NSEC ? BUDGET_MIN_NSEC : budget / 2;
	atomic_store_explicit(&spin->budget_nsec, budget, memory_order_relaxed);
}

void spin_budget_reduce_after_os_wakeup(struct vma_spin *spin)
{
	uint32_t budget = spin_budget_of(spin) / 4;

	atomic_store_explicit(&spin->budget_nsec, budget > BUDGET_OS_NSEC ? budget : BUDGET_OS_NSEC,
	                      memory_order_relaxed);
}
