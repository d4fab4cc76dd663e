/* spin.h - how long a wait spins: within the user's bound, as long as it pays, and not when cores are scarce. */
#ifndef SOCK_SPIN_H
#define SOCK_SPIN_H

#include <vma/sock_thread.h>

struct spin_state {
	uint64_t until_tsc; /* UINT64_MAX: the user wants it for ever */
	bool crowded;       /* more threads of this process spin than it has cores */
};
void spin_begin(struct spin_state *state, const struct vma_wait *wait);
void spin_end(struct spin_state *state);
static inline bool spin_is_over(const struct spin_state *state)
{
	return state->until_tsc != UINT64_MAX && vma_tsc() >= state->until_tsc;
}
/* The wait is over and took so long: the next one of this socket or set learns from it. */
void spin_learn(struct vma_wait *wait, uint64_t ticks);

static inline void spin_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#endif
