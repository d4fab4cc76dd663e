/*
 * inet - what sockets of UDP and of TCP have in common, whatever they carry.
 *
 *   interpose ──┬─> udp ────┬─> inet ──> sock
 *               └─> stream ─┘
 *
 * Threads: any, inside.
 * Progress: no call waits for another thread.
 * Memory: the caller's.
 * Example: test/test_flush.c.
 */
#ifndef VMA_INET_H
#define VMA_INET_H

#include <vma/sock.h>

/*
 * A thread that sends in a row may have left up to eight frames for one kick to share. Every other call of the library
 * makes them leave first: interpose says so after vma_enter (receives and sends do it themselves). Costs a store and a
 * load when there is nothing.
 */
void vma_inet_flush_sends_slow(struct vma_thread *self) __attribute__((cold));
static inline void vma_inet_flush_sends(struct vma_thread *self)
{
	self->tx_burst = 0;
	if (__builtin_expect(self->tx_ring != NULL, 0))
		vma_inet_flush_sends_slow(self);
}

#endif
