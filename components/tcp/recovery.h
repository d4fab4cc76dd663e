/*
 * recovery - what recovery.c, its two neighbours, undo.c and retransmit.c, and message.c want of each other; see
 * tcp_priv.h for what the rest of tcp calls.
 *
 * Threads: the driver.
 */
#ifndef VMA_TCP_RECOVERY_H
#define VMA_TCP_RECOVERY_H

#include "scoreboard.h"

/* undo.c: true if this ACK has shown that the recovery was spurious, and it has been taken back. */
bool recovery_undo(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
/* undo.c: after a timeout, RFC 5682: new data instead of what is thought lost, to see whether that is needed. */
void recovery_frto(struct vma_tcp_conn *conn);
/*
 * recovery.c, for message.c: both halves of what an ACK means where it is one for all that is out, recovery is OPEN
 * with nothing left to decide, and the connection has SACK and no model. Any such ACK:
 */
static inline void recovery_answered(struct vma_tcp_conn *conn)
{
	conn->recovery.probes = 0;
	conn->recovery.blocks = 0;
	conn->recovery.pipe_bytes = 0;
}
/* And if something was out, namely seg, unmarked, sent once; `acked` bytes of it are new. It is still there. */
void recovery_acked_last(struct vma_tcp_conn *conn, const struct tcp_seg *seg, uint32_t acked);
/* retransmit.c: RFC 8985 7.4. */
void recovery_tail_probe_answer(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
/* retransmit.c: a full segment waits, and the receiver's window has room for it. */
bool recovery_has_new(const struct vma_tcp_conn *conn);

#endif
