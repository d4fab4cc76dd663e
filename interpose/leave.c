/*
 * leave - the ends of a process: exit, _exit, exec.
 *
 * There is no beginning, the library comes with its first socket; and it is never unloaded (-z nodelete), because
 * handlers of signals and of fork, and a thread, refer to it. At the end nothing is taken down, since other threads may
 * still be inside; but what was sent has to leave: frames that wait for a batch are the process's, and go with it, and
 * so do connections, whose peers are waited for a little while (vma_stream_exit). A vfork child that ends or becomes
 * another program leaves its parent's frames alone.
 */
#include <stdlib.h>
#include <unistd.h>

#include <vma/sock_engine.h>
#include <vma/stream.h>
#include <vma/udp.h>

#include "call.h"
#include "inherited.h"
#include "more.h"

static void sockets_end_at_exit(void)
{
	struct vma_thread *self = vma_thread_cache;

	if (atomic_load_explicit(&vma_engine_now, memory_order_acquire) != NULL &&
	    (self == NULL || self->inside == 0) && !process_is_borrowed()) {
		vma_udp_exit();
		vma_stream_exit();
		vma_engine_exit();
	}
}

/* exit, also by return from main. */
static __attribute__((destructor)) void end_of_library(void)
{
	sockets_end_at_exit();
}

#define LEAVING(name)                                                                                                  \
	EXPORT(void, name, (int status))                                                                               \
	{                                                                                                              \
		sockets_end_at_exit();                                                                                 \
		thread_more()->name(status);                                                                           \
		__builtin_trap(); /* it does not return */                                                             \
	}
LEAVING(_exit)
LEAVING(_Exit)
LEAVING(quick_exit)
#undef LEAVING

/* ---- exec, which may fail, so that the process goes on ---- */

static void process_before_exec(void)
{
	struct vma_thread *self = vma_thread_cache;
	const int saved = errno;

	if ((self != NULL && self->inside != 0) || !process_started() || process_is_borrowed())
		return;
	inherited_before_exec();
	vma_stream_before_exec();
	errno = saved;
	if (self == NULL || self->tx_ring == NULL)
		return;
	vma_enter();
	vma_inet_flush_sends(self);
	vma_leave(self);
}

static void leave_exec_failed(void)
{
	const int saved = errno;
	struct vma_thread *self = vma_thread_cache;

	if ((self == NULL || self->inside == 0) && process_started() && !process_is_borrowed())
		vma_stream_exec_failed();
	errno = saved;
}

#define X(type, name, parameters, arguments)                                                                           \
	EXPORT(type, name, parameters)                                                                                 \
	{                                                                                                              \
		process_before_exec();                                                                                 \
		type rc = thread_more()->name arguments;                                                               \
		leave_exec_failed();                                                                                   \
		return rc;                                                                                             \
	}
VMA_EXEC_CALLS(X)
#undef X

/* The arguments up to NULL as an array on the stack: exec is also called where malloc may not be. */
#define COUNT_ARGUMENTS(n, list, first)                                                                                \
	do {                                                                                                           \
		va_start(list, first);                                                                                 \
		for (n = 1; va_arg(list, char *) != NULL; n++)                                                         \
			;                                                                                              \
		va_end(list);                                                                                          \
	} while (0)
#define TAKE_ARGUMENTS(argv, n, list, first)                                                                           \
	do {                                                                                                           \
		(argv)[0] = (char *)(first);                                                                           \
		va_start(list, first);                                                                                 \
		for (size_t i = 1; i <= (n); i++)                                                                      \
			(argv)[i] = va_arg(list, char *);                                                              \
	} while (0)

EXPORT(int, execl, (const char *path, const char *first, ...))
{
	va_list list;
	size_t n;

	COUNT_ARGUMENTS(n, list, first);
	char *argv[n + 1];

	TAKE_ARGUMENTS(argv, n, list, first);
	va_end(list);
	return call_execv(path, argv);
}

EXPORT(int, execlp, (const char *file, const char *first, ...))
{
	va_list list;
	size_t n;

	COUNT_ARGUMENTS(n, list, first);
	char *argv[n + 1];

	TAKE_ARGUMENTS(argv, n, list, first);
	va_end(list);
	return call_execvp(file, argv);
}

EXPORT(int, execle, (const char *path, const char *first, ...))
{
	va_list list;
	size_t n;

	COUNT_ARGUMENTS(n, list, first);
	char *argv[n + 1], **environment;

	TAKE_ARGUMENTS(argv, n, list, first);
	environment = va_arg(list, char **);
	va_end(list);
	return call_execve(path, argv, environment);
}
