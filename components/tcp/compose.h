/* compose.h - the segment that nearly all are which leave. */
#ifndef VMA_TCP_COMPOSE_H
#define VMA_TCP_COMPOSE_H

#include "lwip_port.h"
#include "tcp_priv.h"

/*
 * The next n bytes of the send fifo, of which the window lets n go, leave in a segment of their own, which is then the
 * last of pcb->unacked; push: nothing is behind them. NULL: it is not as simple as that, and nothing has happened.
 * Within lwip_enter.
 */
struct tcp_seg *tcp_compose(struct vma_tcp_conn *conn, uint32_t n, bool push);

#endif
