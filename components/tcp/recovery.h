/*
 * recovery - what recovery.c and its two neighbours, undo.c and retransmit.c, want of each other; see tcp_priv.h for
 * what the rest of tcp calls.
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
/* retransmit.c: RFC 8985 7.4. */
void recovery_tail_probe_answer(struct vma_tcp_conn *conn, const struct tcp_ack *ack);
/* retransmit.c: a full segment waits, and the receiver's window has room for it. */
bool recovery_has_new(const struct vma_tcp_conn *conn);

#endif
