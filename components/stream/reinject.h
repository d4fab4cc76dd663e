/*
 * reinject - segments of a connection's peer are given to the kernel: the peer has sent them to us, and the kernel has
 *            the connection now.
 */
#ifndef VMA_STREAM_REINJECT_H
#define VMA_STREAM_REINJECT_H

#include "stream_priv.h"

struct reinject {
	struct vma_tcp_late_sink late; /* first */
	struct sockaddr_in name, peer;
	struct vma_bufarena *arena;
	struct vma_nic *by; /* its vmad sends them; NULL: this process */
	bool to_loopback;   /* the socket is bound to the loopback interface */
	uint32_t snd_una;   /* what the peer has acknowledged, and its window as a header says it */
	uint16_t window;
	int fd;    /* -1: not needed yet */
	int error; /* why it is not to be had */
};

/* Inside. The connection has been handed over; late: for vma_tcp_export_end. */
void reinject_init_from_tcp_export(struct reinject *reinject, const struct sockaddr_in *name,
                                   const struct sockaddr_in *peer, struct vma_bufarena *arena,
                                   const struct vma_tcp_export *what, struct vma_nic *by);
void reinject_end(struct reinject *reinject);
/* The peer's FIN, which we have acknowledged. -EPERM, ... */
int reinject_fin_to_kernel(struct reinject *reinject, uint32_t seq);
/* What came out of order. The peer sends again what cannot be reinjected. */
void reinject_ooo_data_to_kernel(struct reinject *reinject, struct vma_tcp_conn *conn);

#endif
