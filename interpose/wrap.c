/*
 * wrap - our own code calls the C library, not what we interpose.
 *
 * The components are linked with --wrap for every exported function, so a close() of nic or a poll() of net arrives
 * here, whatever order the objects of the process have been loaded in (in a library that was opened with dlopen, it
 * would reach the C library; in a preloaded one, this library again, which must neither count it as the application's
 * nor refuse it a descriptor of the library itself).
 */
#include "more.h"

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
		return more()->name arguments;                                                                         \
	}
VMA_MORE_CALLS(X)
#undef X
