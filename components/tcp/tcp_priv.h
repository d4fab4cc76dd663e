/*
 * tcp_priv - the stack and a connection, shared by the files of tcp.
 *
 *   file                   noun                                               calls
 *   stack.c                struct vma_tcp: runs, due, ready list, frames out  everything below
 *   conn.c                 a connection's life: made, owned, stepped, freed
 *   connect.c              the active open; initial sequence numbers
 *   close.c                how connections end: FIN, RST, orphans
 *   state.c                what is published: state, readiness, events
 *   rx/read.c, tx/write.c  the application's side of the two fifos
 *   rx/input.c             a burst's segments of one connection into lwIP     recovery_ack_*, rx/window.c
 *   rx/pingpong.c          the fastest path of a burst that is one message    recovery_sole_segment_acked, rx/window.c
 *   tx/output.c            from the send fifo into segments and frames        recovery_*
 *   rx/predict.c           the fast path of the usual segment that comes,
 *   tx/compose.c           and of the usual one that leaves
 *   loss/recovery.c        recovery begins and ends, retransmission, undo     loss/scoreboard.c, timer/rtt.c, cc/cc.c
 *   loss/scoreboard.c      marks on segments: SACKed, lost, sent again
 *   cc/rate.c              how fast what is sent is delivered, and leaves
 *   timer/timers.c         what each timer of a connection does               timer/persist.c, keepalive.c, wheel.c
 *   rx/window.c            receive window and buffer sizes, delayed ACKs
 *   listener.c             half-open connections, accept
 *   control.c              the same, left to a thread of the host's choice
 *   syncookie.c            a request that the peer keeps in our place
 *   pending.c              connections that wait for accept, and that another process may take
 *   timewait.c             what is left of a connection in TIME_WAIT
 *   export.c               a connection leaves for another stack
 *   move.c                 a connection changes to another stack of this process
 *   minisocks.c            what connections leave to the device's owner when their process ends
 *   fifo.c                 bytes from one thread to another
 *   zcopy.c                payload that stays in its frames, and an owner that inspects it
 *   lwip/port.c            what lwIP asks of its surroundings, and calls back
 *
 * conn.h has the connection, stack.h the stack; conn_life.h, listener.h, reply.h and timewait.h have what the files call
 * of each other. Headers of a folder belong to its files.
 *
 * Threads: the *driver* is the thread that holds the receive flag of the ring. Functions run in the driver, unless they
 * say "any thread". The sections of struct vma_tcp_conn and struct vma_tcp say which fields other threads read and
 * write. These are the shared section, by atomics, and one side of each fifo, by its reader or writer.
 */
#ifndef VMA_TCP_PRIV_H
#define VMA_TCP_PRIV_H

#include "conn.h"
#include "conn_life.h"
#include "listener.h"
#include "reply.h"
#include "stack.h"
#include "timewait.h"

#endif
