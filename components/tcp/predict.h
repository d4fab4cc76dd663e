/* predict.h - the segment that nearly all are. */
#ifndef VMA_TCP_PREDICT_H
#define VMA_TCP_PREDICT_H

#include "segment.h"

/*
 * Whether the segment (n packets in a row, *s as one) is one that an undisturbed, established connection expects, which
 * tcp_judge would not object to: then it is done with but for what recovery_ack_after and conclude do, and the packets
 * are gone. False: nothing has been done. Within lwip_enter; conn->tcp->ack is filled in.
 */
bool tcp_predict(struct vma_tcp_conn *conn, const struct segment *s, struct vma_buf *const *packets, unsigned n);

#endif
