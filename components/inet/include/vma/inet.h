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

/* ---- shadow.c: the kernel's socket. Its answer, or -errno. ---- */

int vma_inet_os_ioctl(int fd, unsigned long request, void *arg);
/* The application's call, outside meanwhile, since it may block. */
ssize_t vma_inet_os_recv(int fd, struct msghdr *msg, int flags);
/* The application's call; it may block, so the caller is outside. */
ssize_t vma_inet_os_send(int fd, const struct msghdr *msg, int flags);
/*
 * The shadow's descriptor: the application's number, unless that has been closed, or given to something else, while
 * this call waited. After the last close the library's (*lingering_fd, 0: none). -1: the socket has ended.
 */
int vma_inet_shadow(struct vma_file *file, int fd, const _Atomic int *lingering_fd);
/* The shadow lives on under a number of the library's, the answer. -ESTALE: fd is not the socket of this cookie. */
int vma_inet_keep_shadow(int fd, uint64_t cookie);

#endif
