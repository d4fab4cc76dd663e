/*
 * lib - libibverbs, opened when an interface is first found to have an RDMA device.
 *
 * It is not linked: each process that is executed would pay for its mapping, and few have a device.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include <vma/log.h>

#include "lib.h"

static struct verbs_lib lib;
static bool lib_found;

/* The name is that of its binary interface, which the header of this build describes. It stays open. */
static void verbs_lib_load(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (library == NULL) {
		vma_log_debug("verbs: %s", dlerror());
		return;
	}
	lib_found = true;
#define X(type, name, parameters)                                                                                      \
	*(void **)&lib.name = verbs_lib_symbol(library, #name);                                                        \
	if (lib.name == NULL) {                                                                                        \
		vma_log_warn("verbs: libibverbs.so.1 has no " #name ": it is not used");                               \
		lib_found = false;                                                                                     \
	}
	VERBS_SYMBOLS(X)
#undef X
}

const struct verbs_lib *verbs_lib(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, verbs_lib_load);
	return lib_found ? &lib : NULL;
}
