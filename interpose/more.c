/* more - looks up what the C library (or a library that is preloaded after us) has under the same names. */
#include <dlfcn.h>
#include <errno.h>

#include "more.h"

struct more libc_functions_table;
_Atomic bool libc_functions_are_resolved;

/* A C library without one of them: a program that calls it nevertheless was made for another one. */
#define X(type, name, parameters, arguments)                                                                           \
	static type missing_##name parameters                                                                          \
	{                                                                                                              \
		errno = ENOSYS;                                                                                        \
		return (type)(sizeof(type) == sizeof(int) ? -1L : 0L); /* or no stream */                              \
	}
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wint-to-pointer-cast"
VMA_MORE_CALLS(X)
#pragma GCC diagnostic pop
#undef X

/* Threads that come at the same time write the same pointers. */
void more_load(void)
{
	void *found;

#define X(type, name, parameters, arguments)                                                                           \
	found = dlsym(RTLD_NEXT, #name);                                                                               \
	__atomic_store_n(&libc_functions_table.name, found != NULL ? (type(*) parameters)found : missing_##name,       \
	                 __ATOMIC_RELAXED);
	VMA_MORE_CALLS(X)
#undef X
	atomic_store_explicit(&libc_functions_are_resolved, true, memory_order_release);
}
