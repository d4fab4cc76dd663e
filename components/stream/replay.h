/*
 * replay - segments of a connection's peer are said to the kernel once more: what the peer has sent to us, and the
 *          kernel, which has the connection now, should have heard.
 */
#ifndef VMA_STREAM_REPLAY_H
#define VMA_STREAM_REPLAY_H

#include "stream_priv.h"

struct replay {
	struct vma_tcp_late late; /* first */
	struct sockaddr_in name, peer;
	struct vma_bufarena *arena;
	struct vma_nic *by; /* its vmad says them; NULL: this process */
	bool to_loopback;   /* the socket is bound to the loopback interface */
	uint32_t snd_una;   /* what the peer has acknowledged, and its window as a header says it */
	uint16_t window;
	int fd;    /* -1: not needed yet */
	int error; /* why it is not to be had */
};

/* Inside. The connection has been handed over; late: for vma_tcp_export_end. */
void replay_begin(struct replay *replay, const struct sockaddr_in *name, const struct sockaddr_in *peer,
                  struct vma_bufarena *arena, const struct vma_tcp_export *what, struct vma_nic *by);
void replay_end(struct replay *replay);
/* The peer's FIN, which we have acknowledged. -EPERM, ... */
int replay_fin(struct replay *replay, uint32_t seq);
/* What came out of order. The peer will say again what cannot be said. */
void replay_early(struct replay *replay, struct vma_tcp_conn *conn);

#endif
