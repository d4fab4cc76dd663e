/*
 * lwip_port - what lwIP is given here (memory, time, output, hooks), and what of it the rest of tcp uses.
 *
 * lwIP's own lists and scratch variables are thread-local (adapted at build time): while a driver works on a
 * connection, tcp_active_pcbs holds just its pcb (or, for a handshake, tcp_listen_pcbs the listener's). lwip_enter and
 * lwip_leave see to that; nothing of lwIP is called outside them.
 */
#ifndef VMA_TCP_LWIP_PORT_H
#define VMA_TCP_LWIP_PORT_H

#include <lwip/priv/tcp_priv.h>
#include <lwip/pbuf.h>
#include <lwip/tcp.h>

struct vma_tcp;
struct vma_tcp_conn;

struct tcp_port_memory; /* freelists by size, per stack; the driver's */
int port_memory_create(struct vma_tcp *tcp);
void port_memory_destroy(struct vma_tcp *tcp);

/* Who is being worked on, in this thread, for lwIP's callbacks. */
struct lwip_at {
	struct vma_tcp *tcp;
	struct vma_tcp_conn *conn; /* NULL: a listener */
};
extern __thread struct lwip_at lwip_at __attribute__((tls_model("initial-exec"), visibility("hidden")));
void lwip_enter(struct vma_tcp *tcp, struct vma_tcp_conn *conn); /* conn->pcb, if there is one, is the list */
void lwip_leave(void); /* takes a pcb that lwIP has put into (out of) its lists into account */

/* A pbuf (custom, in the frame's headroom or of the port's memory) for a received packet from its TCP header on; takes
 * the packet's reference, which pbuf_free gives back. NULL: no memory. A chain of buffers makes a chain. */
struct pbuf *port_pbuf_of(struct vma_tcp *tcp, struct vma_buf *packet);

/*
 * Hooks in the adapted source, implemented by the files in brackets; driver.
 *   hook_inpacket   before a segment is processed: ERR_OK, or anything else to drop it     [input.c]
 *   hook_isn        the initial sequence number of pcb                                    [conn.c]
 *   ip4_output_if   a finished segment, p->payload at the TCP header                      [output.c]
 */
err_t tcp_hook_inpacket(struct tcp_pcb *pcb, struct tcp_hdr *hdr, u16_t optlen, u16_t opt1len, u8_t *opt2,
                        struct pbuf *p);
u32_t tcp_hook_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port);

/* Made visible by the adaptation. */
err_t tcp_output_segment(struct tcp_seg *seg, struct tcp_pcb *pcb, struct netif *netif);
extern struct netif port_netif; /* the one netif that lwIP sees; its mtu is set per connection before use */

#endif
