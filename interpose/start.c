/*
 * start - the library comes with its first socket, so there is no beginning; this is its end.
 *
 * It is never unloaded (-z nodelete): handlers of signals and of fork, and a thread, refer to it. When the process
 * ends, other threads may still be inside: nothing is taken down, only what waits to be sent leaves.
 */
#include <vma/sock_engine.h>

#include "process.h"

static __attribute__((destructor)) void end(void)
{
	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) != NULL && !process_is_borrowed())
		vma_engine_exit();
}
