/* validate.h - whether a segment is acceptable to a connection. If it is not, it is answered here. */
#ifndef VMA_TCP_RX_VALIDATE_H
#define VMA_TCP_RX_VALIDATE_H

#include "segment.h"

/* Within lwip_enter. True: it is for lwIP. False: it is done with; perhaps the connection is, too. */
bool tcp_validate(struct vma_tcp_conn *conn, struct segment *s);

/* urgent.c: what an acceptable segment says of urgent data, and the byte itself. */
void urgent_update(struct vma_tcp_conn *conn, const struct segment *s);

#endif
