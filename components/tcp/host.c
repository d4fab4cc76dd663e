/* host.c - what only those need who keep stacks: is one still used, and where to note a connection that has ended. */
#include "tcp_priv.h"

bool vma_tcp_is_empty(struct vma_tcp *tcp)
{
	bool acquired = vma_ring_acquire(tcp->ring), empty = tcp->all == NULL && tcp->listeners == NULL;

	if (acquired)
		vma_ring_release(tcp->ring);
	return empty;
}

/* Recovery is over by then. */
void *vma_tcp_conn_space(struct vma_tcp_conn *conn)
{
	_Static_assert(sizeof(conn->recovery) >= VMA_TCP_HOST_SPACE, "recovery is as large as what is promised");
	return &conn->recovery;
}
