/*
 * listener - half-open connections, the work that the host's thread takes over, and what waits for accept.
 *
 * Threads: the driver, unless a function says "any thread".
 */
#ifndef VMA_TCP_LISTENER_H
#define VMA_TCP_LISTENER_H

#include "stack.h"

/* ---- listener.c: driver ---- */

void tcp_listeners_free(struct vma_tcp *tcp);
/* A half-open connection is no longer that; whether it was accepted. */
void tcp_half_open_end(struct vma_tcp_conn *conn);
/* Its handshake is complete: the owner of the listener gets it, or refuses it. */
void tcp_half_open_established(struct vma_tcp_conn *conn);
bool tcp_listener_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info);
/*
 * control.c: driver, if host.control is there. hold: the segment is left for later; false: it is to be handled now.
 * takes: so is the step of this connection. end_run: at the end of each run. flush handles what is held; forget drops
 * what is held for a listener. fini, flush and forget do nothing if host.control is not there.
 */
int tcp_control_queue_init(struct vma_tcp *tcp);
void tcp_control_fini(struct vma_tcp *tcp);
bool tcp_control_queue_syn(struct vma_tcp *tcp, struct vma_flow *listener, struct vma_buf *packet,
                           const struct vma_rx_info *info);
bool tcp_control_queue_conn(struct vma_tcp_conn *conn);
void tcp_control_request_run_if_queued(struct vma_tcp *tcp);
void tcp_control_deliver_queued_syns(struct vma_tcp *tcp);
void tcp_control_drop_syns_of_listener(struct vma_tcp *tcp, const struct vma_flow *listener);
/* Of a listener's flow: a SYN would be answered by a cookie, or not at all; an ACK brings a cookie back. */
bool tcp_listener_sends_cookies(const struct vma_flow *flow);
bool tcp_listener_packet_has_valid_syn_cookie(const struct vma_flow *flow, struct vma_buf *packet);

/* ---- pending.c: driver, but for the end, which is any thread's ---- */

void tcp_pending_init(struct vma_tcp *tcp);
bool tcp_pending_is_shared(const struct vma_tcp *tcp); /* other processes serve a listener of this stack's, too */
/* What a SYN-ACK begins with, the same in each process of a group, whenever it finds the SYN; 0: anything. */
uint32_t tcp_isn_same_in_all_processes(const struct vma_tcp *tcp, const struct vma_flow_key *key, uint32_t irs);
void tcp_pending_publish_half_open(struct vma_tcp_conn *conn); /* its SYN has come, and the SYN-ACK has not left */
bool tcp_pending_mark_queued(struct vma_tcp_conn *conn); /* the handshake is done; false: another process has it */
bool tcp_pending_withdraw(struct vma_tcp_conn *conn);    /* it is accepted, or over; false: as before */
bool tcp_pending_was_adopted(const struct vma_tcp_conn *conn);
bool tcp_pending_outlives_process(const struct vma_tcp_conn *conn); /* another process may accept it */
bool tcp_has_pending_conns(const struct vma_tcp *tcp);              /* there are some, of any listener */
bool tcp_pending_delay_ack(struct vma_tcp_conn *conn);
struct vma_buf *tcp_pending_make_peer_segment(struct vma_tcp *tcp, const struct vma_pending *pending, bool syn);
void tcp_pending_to_rx_info(const struct vma_pending *pending, struct vma_rx_info *info);
void tcp_listener_adopt_pending_conn(struct vma_flow *flow, const struct vma_pending *pending); /* listener.c */

#endif
