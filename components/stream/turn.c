/*
 * turn.c - a thread that finds a turn taken waits for it: one behind the other, the first of them looking now and then.
 */
#include <time.h>

#include "stream_priv.h"

void stream_turn_init(struct stream_turn *turn)
{
	pthread_mutex_init(&turn->queue, NULL);
	atomic_store_explicit(&turn->taken, false, memory_order_relaxed);
}

/*
 * A turn is held for the copying of what one call moves, by a thread that is inside: no handler and no sleep comes
 * between, only the scheduler may. Naps also work when the waiter has a higher real-time priority than the holder.
 */
void stream_turn_slow(struct stream_turn *turn)
{
	struct timespec nap = {.tv_nsec = 10000};
	unsigned tries = 0;

	pthread_mutex_lock(&turn->queue);
	while (atomic_exchange_explicit(&turn->taken, true, memory_order_acquire)) {
		if (++tries > 100)
			nanosleep(&nap, NULL);
	}
	pthread_mutex_unlock(&turn->queue);
}
