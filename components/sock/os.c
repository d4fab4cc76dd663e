/*
 * os - the C library's own functions behind vma_os.
 *
 * Each pointer starts at a boot function of the same signature, which looks up all of them and then calls the right
 * one. Several threads may boot at once: each writes the same values. If the library was loaded by LD_PRELOAD, or
 * linked into a program, the C library's functions come next in the search order. If it was loaded by dlopen, nothing
 * may come next, so the C library is asked by name.
 */
#include <dlfcn.h>
#include <errno.h>
#include <gnu/lib-names.h>
#include <stdatomic.h>

#include <vma/sock_os.h>

static void resolve_all_libc_functions(void);

#define X(type, name, parameters, arguments)                                                                           \
	static type lacking_##name parameters                                                                          \
	{                                                                                                              \
		errno = ENOSYS;                                                                                        \
		return (type)-1;                                                                                       \
	}                                                                                                              \
	static type boot_##name parameters                                                                             \
	{                                                                                                              \
		resolve_all_libc_functions();                                                                          \
		return vma_os.name arguments;                                                                          \
	}
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
VMA_OS_CALLS(X)
#pragma GCC diagnostic pop
#undef X

struct vma_os vma_os = {
#define X(type, name, parameters, arguments) .name = boot_##name,
        VMA_OS_CALLS(X)
#undef X
};

/* dlopen only where it is needed: it allocates, and an allocator may be what boots us. */
static void *find_libc_function_to_forward_to(const char *name)
{
	static _Atomic(void *) libc;
	void *found = dlsym(RTLD_NEXT, name), *handle;

	if (found != NULL)
		return found;
	handle = atomic_load_explicit(&libc, memory_order_acquire);
	if (handle == NULL) {
		handle = dlopen(LIBC_SO, RTLD_LAZY | RTLD_NOLOAD);
		atomic_store_explicit(&libc, handle, memory_order_release);
	}
	return handle == NULL ? NULL : dlsym(handle, name);
}

static void resolve_all_libc_functions(void)
{
	int saved = errno;

#define X(type, name, parameters, arguments)                                                                           \
	{                                                                                                              \
		void *found = find_libc_function_to_forward_to(#name);                                                 \
		__atomic_store_n((void **)&vma_os.name, found != NULL ? found : (void *)lacking_##name,                \
		                 __ATOMIC_RELEASE);                                                                    \
	}
	VMA_OS_CALLS(X)
#undef X
	errno = saved;
}
