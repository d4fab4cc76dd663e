/*
 * timer - the timers of a connection and of a stack, and the calls that set them.
 *
 * The header timers.h has the functions that only the files of this folder call.
 *
 * Threads: the driver.
 */
#ifndef VMA_TCP_TIMER_TIMER_H
#define VMA_TCP_TIMER_TIMER_H

#include <stdint.h>

struct vma_tcp_conn;

enum tcp_timer {                       /* each at most once per connection */
	         TCP_TIMER_RETRANSMIT, /* RTO, tail-loss probe, or persist: whichever is due next, see timers.c */
	         TCP_TIMER_DELACK,
	         TCP_TIMER_KEEPALIVE, /* also FIN_WAIT_2 without owner, and TCP_USER_TIMEOUT's end */
	         TCP_TIMER_PACE,      /* something may leave again */
	         TCP_TIMERS,
	         /* the stack's own, of no connection */
	         TCP_TIMER_RETRY = TCP_TIMERS, /* connections for which there was no frame, or no memory */
	         TCP_TIMER_TIMEWAIT,
	         TCP_TIMER_STRANGER,  /* a peer is asked whether it has a connection */
	         TCP_TIMER_SMALL_MSS, /* connections with a small MSS may send again */
};

void timers_init(struct vma_tcp_conn *conn);
void timers_stop_all(struct vma_tcp_conn *conn);
/* One of its timers (enum tcp_timer) is due. An output must follow (conn_enqueue_ready). Not within lwip_enter. */
void timers_fire(struct vma_tcp_conn *conn, unsigned which);
/* At the end of each output, and after each ACK or window change that none follows: RTO, probe or persist; also cork's
 * 200 ms. */
void timers_retransmit_update(struct vma_tcp_conn *conn);
void timers_expedite_syn(struct vma_tcp_conn *conn); /* again, to a peer that has been reset */
/* An output is to follow then. */
void timers_set_pacing(struct vma_tcp_conn *conn, uint64_t due_ns);
void timers_set_delack(struct vma_tcp_conn *conn, uint64_t in_ns); /* 0: none */
/* Keepalive, FIN_WAIT_2 without owner: when the connection is established or closed, or an option changes. */
void timers_keepalive_update(struct vma_tcp_conn *conn);
void keepalive_probe(struct vma_tcp_conn *conn); /* now, if nothing else is about to find out */

#endif
