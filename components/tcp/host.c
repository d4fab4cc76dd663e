/* host.c - what only those need who keep stacks: is one still used, and where to note a connection that has ended. */
#include <string.h>

#include "tcp_priv.h"

bool vma_tcp_is_empty(struct vma_tcp *tcp)
{
	bool acquired = vma_ring_acquire(tcp->ring), empty = tcp->all == NULL && tcp->listeners == NULL;

	if (acquired)
		vma_ring_release(tcp->ring);
	return empty;
}

bool vma_tcp_has_port(struct vma_tcp *tcp, const uint8_t *local, uint16_t port_be)
{
	bool acquired = vma_ring_acquire(tcp->ring), found = false;

	for (const struct vma_tcp_conn *conn = tcp->all; conn != NULL && !found; conn = conn->next_all)
		found = !conn->is_over && conn->key.local_port_be == port_be &&
		        (local == NULL || memcmp(conn->key.local, local, 4) == 0);
	found = found || timewait_has_port(tcp, local, port_be);
	if (acquired)
		vma_ring_release(tcp->ring);
	return found;
}

/* Each may cost a conversation with the owner of the device: no exit takes long for it. */
#define LEAVE_MOST 4096

void vma_tcp_leave(struct vma_tcp *tcp)
{
	if (!vma_ring_acquire(tcp->ring))
		return;
	timewait_end(tcp, LEAVE_MOST);
	vma_ring_release(tcp->ring);
}

/* Recovery is over by then. */
void *vma_tcp_conn_space(struct vma_tcp_conn *conn)
{
	_Static_assert(sizeof(conn->recovery) >= VMA_TCP_HOST_SPACE, "recovery is as large as what is promised");
	return &conn->recovery;
}
