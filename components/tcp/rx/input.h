/* input - what comes for a connection, and how a burst of it is taken in. Driver. */
#ifndef VMA_TCP_RX_INPUT_H
#define VMA_TCP_RX_INPUT_H

#include <vma/tcp.h>

bool tcp_conn_flow_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info); /* a flow's */
/* Within lwip_enter, and the pcb is there. */
void tcp_input_burst(struct vma_tcp_conn *conn);

#endif
