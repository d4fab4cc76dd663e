/*
 * exec - the process becomes another program, or makes one by posix_spawn.
 *
 * A program may be executed with an environment that does not name the library. It then has a listener by its number
 * (socket activation, inetd), and takes connections from the kernel only. Those that wait in this process or in its
 * parent would wait for ever: the kernel's listener cannot be given an established connection. So if a connection waits
 * for such a program, the library is named in its environment again. The name is the LD_PRELOAD that this program was
 * started with. There it asks for what waits (inherited.c). Every other program gets the environment that it was given.
 * The loader does not listen to LD_PRELOAD in a program with raised privileges, and a static program has no loader.
 *
 * Threads: exec in any thread, also in a child that borrows this process's memory (vfork). The environment is made on
 * the stack, as malloc may not be called there.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vma/stream.h>

#include "call.h"
#include "inherited.h"
#include "more.h"

/* ---- before, and after one that has failed ---- */

static bool exec_needs_preparation(void)
{
	const struct vma_thread *self = vma_thread_cache;

	return (self == NULL || self->inside == 0) && library_is_started_in_process();
}

static void process_prepare_sockets_for_exec(void)
{
	struct vma_thread *self = vma_thread_cache;
	const int saved = errno;

	if (!exec_needs_preparation() || process_is_vfork_child())
		return;
	inherited_prepare_sockets_for_exec();
	vma_stream_give_conns_to_kernel_before_exec();
	errno = saved;
	if (self == NULL || self->tx_ring == NULL)
		return;
	vma_enter();
	vma_inet_flush_sends(self);
	vma_leave(self);
}

static void process_undo_exec_preparation(void)
{
	const int saved = errno;

	if (exec_needs_preparation() && !process_is_vfork_child())
		vma_stream_exec_failed();
	errno = saved;
}

/* ---- the environment ---- */

#define PRELOAD "LD_PRELOAD="
enum { PRELOAD_MAX = 4096 };

/* As this program was started with it; empty: without. */
static char exec_preload[PRELOAD_MAX];

static __attribute__((constructor)) void exec_note_preload(void)
{
	const char *preload = getenv("LD_PRELOAD");

	if (preload != NULL && strlen(preload) < sizeof(exec_preload))
		strcpy(exec_preload, preload);
}

static const char *exec_find_preload(char *const *environment)
{
	for (; environment != NULL && *environment != NULL; environment++)
		if (strncmp(*environment, PRELOAD, sizeof(PRELOAD) - 1) == 0)
			return *environment + sizeof(PRELOAD) - 1;
	return NULL;
}

/* 0: the environment stays as it is. Else how many variables it has when the library is named there, with the NULL. */
static size_t exec_count_env_with_preload_if_needed(char *const *environment, bool beside)
{
	const char *given = exec_find_preload(environment);
	const int saved = errno;
	size_t n = 0;
	bool waits;

	if (exec_preload[0] == '\0' || !exec_needs_preparation() ||
	    (given != NULL && strstr(given, exec_preload) != NULL))
		return 0;
	if (given != NULL && strlen(given) + strlen(exec_preload) + sizeof(PRELOAD) + 1 > PRELOAD_MAX)
		return 0;
	waits = vma_stream_has_listener_with_conns_at_exec(beside);
	errno = saved;
	if (!waits)
		return 0;
	while (environment != NULL && environment[n] != NULL)
		n++;
	return n + 2;
}

/* `text` has PRELOAD_MAX bytes. */
static void exec_put_library_in_environment(char *const *environment, char **variables, char *text)
{
	const char *given = exec_find_preload(environment);

	strcpy(text, PRELOAD);
	strcat(text, exec_preload);
	if (given != NULL) {
		strcat(text, ":");
		strcat(text, given);
	}
	*variables++ = text;
	for (; environment != NULL && *environment != NULL; environment++)
		if (strncmp(*environment, PRELOAD, sizeof(PRELOAD) - 1) != 0)
			*variables++ = *environment;
	*variables = NULL;
}

/* `environment`, or a copy that names the library: it lives as long as the block in which this stands. */
#define EXEC_ENVIRONMENT(environment, beside)                                                                          \
	const size_t variables_n = exec_count_env_with_preload_if_needed(environment, beside);                         \
	char *variables[variables_n + 1], preload_text[variables_n != 0 ? PRELOAD_MAX : 1];                            \
	if (variables_n != 0) {                                                                                        \
		exec_put_library_in_environment(environment, variables, preload_text);                                 \
		(environment) = variables;                                                                             \
	}

/* ---- the calls ---- */

/* What fails leaves the process as it was. */
#define EXEC(type, name, parameters, arguments)                                                                        \
	EXPORT(type, name, parameters)                                                                                 \
	{                                                                                                              \
		process_prepare_sockets_for_exec();                                                                    \
		EXEC_ENVIRONMENT(environment, process_is_vfork_child())                                                \
		type rc = libc_functions_get()->name arguments;                                                        \
		process_undo_exec_preparation();                                                                       \
		return rc;                                                                                             \
	}
VMA_EXEC_CALLS(EXEC)
#undef EXEC

EXPORT(int, execv, (const char *path, char *const *argv))
{
	return call_execve(path, argv, environ);
}

EXPORT(int, execvp, (const char *file, char *const *argv))
{
	return call_execvpe(file, argv, environ);
}

/* The new process is made, and executes, inside the C library. */
#define SPAWN(type, name, parameters, arguments)                                                                       \
	EXPORT(type, name, parameters)                                                                                 \
	{                                                                                                              \
		EXEC_ENVIRONMENT(environment, true)                                                                    \
		return libc_functions_get()->name arguments;                                                           \
	}
VMA_SPAWN_CALLS(SPAWN)
#undef SPAWN

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
