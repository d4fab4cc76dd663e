/*
 * wrap - our own code calls the C library, not what we interpose.
 *
 * The components are linked with --wrap for every exported function. So a close() of nic or a poll() of net arrives
 * here, in any order in which the objects of the process have been loaded. In a library that was opened with dlopen, it
 * would reach the C library. In a preloaded one it would reach this library again. There it must not count as the
 * application's, nor be refused a descriptor of the library itself.
 */
#include <stdio.h>

#include "more.h"

/* libnl's archives are not position-independent: they reach these streams only if the library defines them itself. */
extern FILE *__real_stdin, *__real_stdout, *__real_stderr;
FILE *__wrap_stdin __attribute__((visibility("hidden")));
FILE *__wrap_stdout __attribute__((visibility("hidden")));
FILE *__wrap_stderr __attribute__((visibility("hidden")));
static __attribute__((constructor(101))) void init_wrapped_stdin_stdout_stderr(void)
{
	__wrap_stdin = __real_stdin;
	__wrap_stdout = __real_stdout;
	__wrap_stderr = __real_stderr;
}

#define X(type, name, parameters, arguments)                                                                           \
	type __wrap_##name parameters;                                                                                 \
	type __wrap_##name parameters                                                                                  \
	{                                                                                                              \
		return vma_os.name arguments;                                                                          \
	}
VMA_OS_CALLS(X)
#undef X

#define X(type, name, parameters, arguments)                                                                           \
	type __wrap_##name parameters;                                                                                 \
	type __wrap_##name parameters                                                                                  \
	{                                                                                                              \
		return libc_functions_get()->name arguments;                                                           \
	}
VMA_MORE_CALLS(X)
#undef X
