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
extern struct more more_table;
extern _Atomic bool more_loaded;
void more_load(void);

/* Looked up on first use, of which none is on a data path. */
static inline const struct more *thread_more(void)
{
	if (__builtin_expect(!atomic_load_explicit(&more_loaded, memory_order_acquire), 0))
		more_load();
	return &more_table;
}

#endif
