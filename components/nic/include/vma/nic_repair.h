/*
 * nic_repair - makes a socket of the kernel one end of a TCP connection that exists already (TCP_REPAIR). This process
 * does it if it has CAP_NET_ADMIN; else the interface's vmad does it for its client.
 *
 *   client ── begin ── a channel to a process of vmad's own for this client, made at the first time
 *          ── socket: the descriptor (SCM_RIGHTS), the state, the bytes (sealed memfd) ──> checked, repaired, answered
 *          ── segment: what the peer has sent meanwhile ──> reinjected, if it is that connection's
 *          ── end
 *
 * The descriptor stays the client's: both name the same socket, and so do the copies that other processes have of it.
 *
 * Threads: any. From begin to end one thread at a time; the others wait in begin. Any thread may call
 *          vma_nic_repair_send_segment_to_vmad meanwhile.
 * Progress: begin, and vma_nic_repair_socket, wait for vmad, for at most VMA_NIC_REPAIR_MS each. If vmad ends
 *           meanwhile, they wait as long for the next one, and go on with that; so for five of them at most.
 * Memory: the caller's; vmad reads the bytes piece by piece, and keeps none.
 * Example: components/stream/to_kernel.c.
 */
#ifndef VMA_NIC_REPAIR_H
#define VMA_NIC_REPAIR_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <vma/nic.h>

#define VMA_NIC_REPAIR_MS 3000
#define VMA_NIC_LOOPBACK 1 /* the index of a namespace's loopback interface */

/* The connection, in host order but for addresses and ports. */
struct vma_repair {
	uint8_t local[4], peer[4];
	uint16_t local_port_be, peer_port_be;
	uint16_t vlan;                          /* of the flow that the client has for it, or for its listener */
	uint16_t mss;                           /* as the peer announced it */
	uint32_t snd_una;                       /* of the first byte that is not acknowledged */
	uint32_t rcv_nxt;                       /* behind the last byte that is not read; without the peer's FIN */
	uint32_t unread, sent, unacked;         /* bytes: received; of those to send, sent already, and all */
	uint32_t snd_wl1, snd_wnd, snd_wnd_max; /* the peer's window */
	uint32_t rcv_wup, rcv_wnd;              /* the last ACK sent, and how far beyond it the peer may send */
	uint32_t ts_now;                        /* what time stamps of ours say */
	uint8_t snd_scale, rcv_scale;
	uint8_t has_scale, has_sack, has_ts; /* 0 or 1 */
	uint8_t fin_received;                /* at rcv_nxt: vmad says it, vma_repair_restore_connection does not */
	uint8_t rerouted;                    /* what was sent is lost: to be sent again at once, if that can be */
	uint8_t interface_gone;              /* with the route, and the address: vmad takes it for 0 */
};

/* The bytes: the unread ones, then those to send. One span that begins at `offset`, of at most `most` bytes. */
struct vma_repair_bytes {
	int (*read)(const struct vma_repair_bytes *bytes, uint64_t offset, size_t most, struct iovec *span);
};

/*
 * By this process. The socket is closed (not connected, not listening), and bound to the connection's port or to none.
 * 0: it is connected, and alive: everything is in its queues, and it may be used at once. -EPERM: CAP_NET_ADMIN is
 * missing, and nothing has changed; else -errno, and it is not connected, as before. *incomplete: why bytes that were
 * not sent yet could not be queued (-errno), which ends the connection's use; 0.
 */
int vma_repair_restore_connection(int fd, const struct vma_repair *what, const struct vma_repair_bytes *bytes,
                                  int *incomplete);

/* ---- by vmad ---- */

/* 0; -EOPNOTSUPP: there is no vmad, or one that cannot; -EPIPE: it has gone; -EPERM; -EMFILE, ... */
int vma_nic_repair_lock_and_open_channel(struct vma_nic *nic);
/* As vma_repair_restore_connection. -EPERM: this client has no flow for the connection; -EINVAL: it makes no sense. */
int vma_nic_repair_socket(struct vma_nic *nic, int fd, const struct vma_repair *what,
                          const struct vma_repair_bytes *bytes, int *incomplete);
/*
 * An IPv4 packet of the peer's to this connection, which the kernel is to receive: by the loopback interface if the
 * socket is bound to that, else by any; the socket's binding to another one is taken away until the end. Never waits;
 * it may be lost.
 */
int vma_nic_repair_send_segment_to_vmad(struct vma_nic *nic, const void *packet, size_t len);
void vma_nic_repair_send_end_and_unlock(struct vma_nic *nic);

/* setsockopt, as vma_repair_restore_connection calls it: tests have it fail. */
extern int (*vma_repair_setsockopt)(int fd, int level, int name, const void *value, socklen_t len);

#endif
