/*
 * port - the functions that lwIP is given here (memory, time, output, hooks), and those of lwIP that the rest of tcp
 * uses.
 *
 * lwIP's own lists and scratch variables are thread-local (adapted at build time). While a driver works on a
 * connection, tcp_active_pcbs holds only its pcb (or, for a handshake, tcp_listen_pcbs the listener's). lwip_enter and
 * lwip_leave see to that. Outside them no function of lwIP is called. The exception is code that only frees its
 * objects, between lwip_set_cursor_for_free and lwip_cursor_reset.
 *
 * Threads: the driver. Several drivers, of different rings, may run lwIP at the same time.
 */
#ifndef VMA_TCP_LWIP_PORT_H
#define VMA_TCP_LWIP_PORT_H

#include <sys/uio.h>

#include <lwip/priv/tcp_priv.h>
#include <lwip/pbuf.h>
#include <lwip/tcp.h>

struct vma_bufarena;
struct vma_tcp;
struct vma_tcp_conn;
struct vma_buf;

/* lwIP's objects, and the clock's offset from attr.secret: before anything else here, after attr and host are set. */
int port_memory_create(struct vma_tcp *tcp);
void port_memory_destroy(struct vma_tcp *tcp);
uint64_t port_memory_in_use(const struct vma_tcp *tcp); /* objects: pcbs, segments, pbufs */

/* Who is being worked on, in this thread, for lwIP's callbacks. */
struct lwip_at {
	struct vma_tcp *tcp;
	struct vma_tcp_conn *conn; /* NULL: a listener, or nobody */
};
extern __thread struct lwip_at lwip_at __attribute__((tls_model("initial-exec"), visibility("hidden")));
/*
 * Between enter and leave lwIP's lists hold conn->pcb, if there is one, or the listener, and nothing else. They do not
 * nest. When lwIP frees the pcb, conn->pcb is NULL from that moment on (which pcb->errf may learn before it). A pcb
 * that lwIP has put into TIME_WAIT is still conn->pcb afterwards; its state tells. A pcb that a SYN has made belongs to
 * whoever tcp_hook_passive gave it to: that hook sets lwip_at.conn, to the connection whose pcb it is.
 */
void lwip_enter(struct vma_tcp *tcp, struct vma_tcp_conn *conn);
void lwip_enter_listener(struct vma_tcp *tcp, struct tcp_pcb_listen *listener);
void lwip_leave(void);
/* Instead of both around what frees objects of lwIP's, and does nothing else: its lists stay empty. */
static inline void lwip_set_cursor_for_free(struct vma_tcp *tcp, struct vma_tcp_conn *conn)
{
	lwip_at = (struct lwip_at){.tcp = tcp, .conn = conn};
}
static inline void lwip_cursor_reset(void)
{
	lwip_at = (struct lwip_at){0};
}
/* Within: a segment, from its TCP header on, of a packet between these IPv4 addresses. Takes p. */
void lwip_tcp_input_segment(const void *src, const void *dst, struct pbuf *p);

/* What time stamps of the stack say now (RFC 7323: milliseconds), and how far that is from host.now_ns' milliseconds:
 * a peer does not learn how long the machine has been up. */
uint32_t port_clock_ms(const struct vma_tcp *tcp);
uint32_t port_clock_offset(const uint8_t secret[16]);

/* The payload of the packets, one after the other, into the spans; there is room. */
void port_copy_payload(const struct vma_bufarena *arena, struct vma_buf *const *packets, unsigned n,
                       const struct iovec *spans);
/*
 * Pbufs for a received packet: one for `header` (its TCP header as it was read, 20 to 60 bytes, copied), unless
 * header_len is 0, and a chain for the payload, which stays in its frames. Takes the packet's reference, which
 * pbuf_free gives back; NULL: no memory, and the packet remains the caller's. A packet without payload has ended with
 * this call. Within lwip_enter.
 */
struct pbuf *port_pbuf_chain_from_packet(struct vma_tcp *tcp, struct vma_buf *packet, const uint8_t *header,
                                         uint8_t header_len);
/* The same of n packets in a row that have `len` bytes, 65,475 at most, which are copied: no frame is kept. Counts in
 * tcp->ooo_bytes until it is freed. NULL: no memory, and the packets remain the caller's. */
struct pbuf *port_pbuf_chain_with_copied_payload(struct vma_tcp *tcp, struct vma_buf *const *packets, unsigned n,
                                                 uint32_t len, const uint8_t *header, uint8_t header_len);
struct vma_buf *port_buf_of_pbuf(const struct pbuf *p); /* in which its bytes lie; NULL: in none */
/* How many objects of a stack's kinds the chain has; *ooo_bytes grows by what its copies count in tcp->ooo_bytes. */
unsigned port_pbufs_count(const struct pbuf *p, uint64_t *ooo_bytes);

/*
 * Hooks in the adapted source, implemented by the files in brackets; driver.
 *   hook_inpacket   before a segment is processed: ERR_OK, or anything else to drop it     [callbacks.c]
 *   hook_isn        the initial sequence number of a connection; lwIP sends the SYN of
 *                   tcp_connect with the number before it, a SYN-ACK with this one        [connect.c]
 *   hook_passive    a SYN has made pcb, its options are parsed, the answer comes next:
 *                   ERR_OK, or anything else to give it up (pcb->errf, and pcb is freed)  [listener.c]
 *   ip4_output_if   a finished segment, p->payload at the TCP header                      [tx/frame.c]
 */
err_t tcp_hook_inpacket(struct tcp_pcb *pcb, struct tcp_hdr *hdr, u16_t optlen, u16_t opt1len, u8_t *opt2,
                        struct pbuf *p);
u32_t tcp_hook_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port);
err_t tcp_hook_passive(struct tcp_pcb_listen *listener, struct tcp_pcb *pcb);

/* tx/frame.c: a finished segment leaves. */
err_t tcp_frame_build_and_queue(struct vma_tcp_conn *conn, const struct pbuf *p);

/* Made visible by the adaptation. */
err_t tcp_output_segment(struct tcp_seg *seg, struct tcp_pcb *pcb, struct netif *netif);
/* The one interface that lwIP sees; its mtu is to be set for each connection before use. */
extern LWIP_TLS struct netif port_netif;

#endif
