/*
 * lwip_memory - objects of lwIP's kinds, from lists of free ones that a stack keeps.
 *
 * Threads: the driver. Progress: no call waits; only growth calls host.alloc. Memory: at most 512 KB of free objects of
 *          each kind (none under AddressSanitizer); all of them go with the stack.
 * Example: test/test_lwip_memory.c.
 */
#ifndef VMA_TCP_LWIP_MEMORY_H
#define VMA_TCP_LWIP_MEMORY_H

#include <stdint.h>

struct vma_tcp;

enum memory_kind {
	MEMORY_PCB,
	MEMORY_LISTENER,
	MEMORY_SEGMENT,
	MEMORY_PBUF,
	MEMORY_HEADER,     /* pbufs that hold the headers of a segment to be sent */
	MEMORY_FRAME_PBUF, /* pbufs of frames that have no room for them; 64 bytes */
	MEMORY_KINDS
};
void *memory_get(struct vma_tcp *tcp, enum memory_kind kind); /* NULL: none, counted */
void memory_put(struct vma_tcp *tcp, enum memory_kind kind, void *memory);

#endif
