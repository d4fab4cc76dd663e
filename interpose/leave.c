/*
 * leave - the ends of a process: exit, _exit. exec is in exec.c.
 *
 * There is no beginning: the library starts with its first socket. It is never unloaded (-z nodelete), because handlers
 * of signals and of fork, and a thread, refer to it. At the end nothing is taken down, since other threads may still be
 * inside. But bytes that were sent have to leave. Frames that wait for a batch are the process's, and go with it. So do
 * connections, whose peers are waited for a little while (vma_stream_close_and_flush_at_exit). A vfork child that ends
 * or becomes another program leaves its parent's frames alone.
 */
#include <stdlib.h>
#include <unistd.h>

#include <vma/sock_callback.h>
#include <vma/sock_engine.h>
#include <vma/stream.h>
#include <vma/udp.h>

#include "call.h"
#include "more.h"

static void sockets_end_at_exit(void)
{
	struct vma_thread *self = vma_thread_cache;

	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) != NULL &&
	    (self == NULL || self->inside == 0) && !process_is_vfork_child()) {
		vma_callbacks_end();
		vma_udp_leave_forked_sockets_flows_at_exit();
		vma_stream_close_and_flush_at_exit();
		vma_engine_flush_and_log_at_exit();
	}
}

/* exit, also by return from main. */
static __attribute__((destructor)) void close_sockets_at_process_exit(void)
{
	sockets_end_at_exit();
}

#define EXPORT_EXIT_CALL(name)                                                                                         \
	EXPORT(void, name, (int status))                                                                               \
	{                                                                                                              \
		sockets_end_at_exit();                                                                                 \
		libc_functions_get()->name(status);                                                                    \
		__builtin_trap(); /* it does not return */                                                             \
	}
EXPORT_EXIT_CALL(_exit)
EXPORT_EXIT_CALL(_Exit)
EXPORT_EXIT_CALL(quick_exit)
#undef EXPORT_EXIT_CALL
