/* more - the originals of exported functions that vma_os does not list: interpose only. */
#ifndef VMA_INTERPOSE_MORE_H
#define VMA_INTERPOSE_MORE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "exports.h"

struct more {
#define X(type, name, parameters, arguments) type(*name) parameters;
	VMA_MORE_CALLS(X)
#undef X
};
extern struct more libc_functions_table;
extern _Atomic bool libc_functions_are_resolved;
void more_load(void);

/* Looked up on first use, of which none is on a data path. */
static inline const struct more *libc_functions_get(void)
{
	if (__builtin_expect(!atomic_load_explicit(&libc_functions_are_resolved, memory_order_acquire), 0))
		more_load();
	return &libc_functions_table;
}

#endif
