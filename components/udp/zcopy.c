/*
 * zcopy.c - recvfrom_zcopy: as recv, but the application gets the packet where it lies, if that can be.
 *
 * The call goes the ways of recv (recv.c, recv_wait.c) with VMA_LEND_FLAG, which differ in the last step only. A queued
 * packet is lent (udp_take_lendable). A packet of the kernel's is copied, or refused
 * (vma_zcopy_call_recv_from_os_nonblocking).
 */
#include <errno.h>

#include "extra.h"
#include "recv.h"

ssize_t udp_recv_zero_copy(struct vma_file *file, int fd, struct vma_recv_zcopy_call *lend, int flags)
{
	struct udp_sock *sock = udp_sock(file);
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);
	ssize_t len;

	flags = (flags & ~(MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE)) | VMA_LEND_FLAG;
	vma_inet_flush_sends(vma_thread_self());
	if (all != NULL && !(flags & (MSG_ERRQUEUE | MSG_PEEK)) && !file->os_only &&
	    !atomic_load_explicit(&sock->os_attention, memory_order_relaxed)) {
		len = udp_receive_queued(sock, &lend->msg, flags);
		if (len == -ENODATA && vma_ring_ctxs_progress(all->rings) > 0)
			len = udp_receive_queued(sock, &lend->msg, flags);
		if (len != -ENODATA)
			return len;
	}
	return udp_recv_slow_path(sock, fd, &lend->msg, flags);
}
