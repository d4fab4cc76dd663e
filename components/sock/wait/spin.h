/* spin.h - how long a wait spins: within the user's bound, as long as it pays, and not when cores are scarce. */
#ifndef VMA_SOCK_WAIT_SPIN_H
#define VMA_SOCK_WAIT_SPIN_H

#include <vma/sock_thread.h>

struct spin_state {
	uint64_t until_tsc; /* UINT64_MAX: the user wants it for ever */
	uint64_t last_tsc;
	const struct vma_thread *yielding_to; /* whom it has woken and gives the core to, NULL: nobody; since when */
	uint64_t yielding_since_tsc;
	uint32_t polls;
	bool too_many_spinners; /* for ever, and more threads of this process spin than should: yield between looks */
};
/* False: it should sleep at once. */
bool spin_begin(struct spin_state *state, const struct vma_wait *wait);
bool spin_may_continue(struct spin_state *state, struct vma_thread *self);
/* Inside. Twice is as good as once: also for a spin that may be left by a jump, or was. */
void spin_leave(struct vma_thread *self);
/* In a forked child, whose only thread is here. */
void spin_reset_in_fork_child(void);
/* The wait took so long, and (`paid`) ended because what it waited for came: the next one learns from it. */
void spin_adapt(struct vma_spin *spin, bool paid, uint64_t ticks);
/* It was mixed, and the OS has ended it. */
void spin_budget_reduce_after_os_wakeup(struct vma_spin *spin);

#endif
