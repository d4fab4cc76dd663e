/*
 * vma_api - what a program may ask of libvma.so beyond <mellanox/vma_extra.h>: names of this library's own.
 *
 *   vma_get_own_api() ──┬─ NULL: the library is not preloaded, or is older than this header
 *                       └─ struct vma_own_api: functions
 *
 * A program needs this header only, and no library to link with. The table only grows: `version` says how far it goes, and
 * a function that came later is behind those that came earlier. Functions return -1 and set errno, as calls of POSIX do.
 *
 * Threads: any thread may call any function.
 * Progress: no function waits.
 * Example: tests/extra/extra_udp.c, role `state`.
 */
#ifndef VMA_API_H
#define VMA_API_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define VMA_OWN_API_VERSION 1

/* Socket option of SOL_SOCKET, of no socket (-1): vma_get_own_api's. */
#define SO_VMA_GET_OWN_API 2899

struct vma_own_api {
	uint32_t version; /* VMA_OWN_API_VERSION of the library */
	uint32_t size;    /* bytes of its table */

	/* ---- version 1 ---- */

	/* The library's version, as text. Valid until the process ends. */
	const char *(*get_version)(void);

	/*
	 * Whether fd is offloaded: 1, and *text is "offloaded"; 0: it is the kernel's, and *text is a sentence that says
	 * why, as the log has it. The sentence is valid until the same thread asks again. text may be NULL.
	 * EBADF: fd is no open descriptor.
	 */
	int (*get_socket_state)(int fd, const char **text);
};

/* The answer is valid until the process ends, and never changes. */
static inline const struct vma_own_api *vma_get_own_api(void)
{
	const struct vma_own_api *api = NULL;
	socklen_t len = sizeof(api);

	return getsockopt(-1, SOL_SOCKET, SO_VMA_GET_OWN_API, &api, &len) == 0 && api->version >= VMA_OWN_API_VERSION
	               ? api
	               : NULL;
}

#endif
