/*
 * io_lock.c - a thread that finds the lock taken waits for it: one behind the other. The first of them tries it now and
 * then.
 */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "stream_priv.h"

void stream_io_lock_init(struct stream_io_lock *io_lock)
{
	pthread_mutex_init(&io_lock->queue, NULL);
	atomic_store_explicit(&io_lock->taken, false, memory_order_relaxed);
}

/*
 * A turn is held for the copying of what one call moves, by a thread that is inside: no handler and no sleep comes
 * between, only the scheduler may. Naps also work when the waiter has a higher real-time priority than the holder. They
 * are no cancellation points, as the C library's are: the mutex would stay taken.
 */
void stream_io_lock_acquire_slow(struct stream_io_lock *io_lock)
{
	struct timespec nap = {.tv_nsec = 10000};
	unsigned tries = 0;

	pthread_mutex_lock(&io_lock->queue);
	while (atomic_exchange_explicit(&io_lock->taken, true, memory_order_acquire)) {
		if (++tries > 100)
			syscall(SYS_nanosleep, &nap, NULL);
	}
	pthread_mutex_unlock(&io_lock->queue);
}
