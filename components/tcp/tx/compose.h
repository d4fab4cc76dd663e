/* compose.h - the segment that nearly all are which leave. */
#ifndef VMA_TCP_TX_COMPOSE_H
#define VMA_TCP_TX_COMPOSE_H

#include "../lwip/port.h"
#include "../tcp_priv.h"

/*
 * The next n bytes of the send fifo, of which the window lets n go, leave in a segment of their own, which is then the
 * last of pcb->unacked; push: nothing is behind them. NULL: it is not as simple as that, and nothing has happened.
 * Within lwip_enter.
 */
struct tcp_seg *tcp_compose_segment_on_fast_path(struct vma_tcp_conn *conn, uint32_t n, bool push);

/*
 * The same for a NIC that cuts packets: in the packet that is open, if there is one with room, or in a new one. NULL:
 * as above, and the packet has been closed. Whoever feeds closes the last packet.
 */
struct tso_packet;
struct tcp_seg *tcp_compose_or_append_to_tso_packet(struct vma_tcp_conn *conn, struct tso_packet *packet, uint32_t n,
                                                    bool push);

/*
 * The same in two steps, for the last bytes that there are, and where a segment is kept for it: first the frame, which
 * may leave then, and while it is on its way what the connection has to know of it. Nothing else is done to the
 * connection in between. lwIP has no part in it, so it need not be within lwip_enter. False: nothing has happened, nor
 * been counted.
 */
struct compose_fields {
	uint32_t ports, seq, ack, flags, now, echo;
};
struct composed {
	struct tcp_seg *seg;
	void *bytes;
	struct compose_fields words;
};
bool tcp_compose_frame(struct vma_tcp_conn *conn, uint32_t n, struct composed *c);
struct tcp_seg *tcp_compose_segment(struct vma_tcp_conn *conn, uint32_t n, const struct composed *c);

#endif
