/* output - what a connection sends, and when. Driver. */
#ifndef VMA_TCP_TX_OUTPUT_H
#define VMA_TCP_TX_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

struct tcp_seg;
struct vma_tcp_conn;

/* Within lwip_enter, and the pcb is there: feeds lwIP from the send fifo as far as windows, Nagle, cork and MSS allow,
 * and sends; also ACKs that are due. */
void tcp_output_conn_data(struct vma_tcp_conn *conn);
/* The same where it comes to one message, with nothing else to send and no FIN: not within lwip_enter. False: it is
 * something else, and nothing has been done. */
bool tcp_output_sole_message(struct vma_tcp_conn *conn);
/* Sends one segment of pcb->unacked again, as it is. -ENOBUFS: no frame now. */
int tcp_output_retransmit(struct vma_tcp_conn *conn, struct tcp_seg *seg);
void tcp_output_ack(struct vma_tcp_conn *conn); /* an empty ACK now; within lwip_enter or not */
/* The MSS has become smaller: segments that are too long are cut. */
void tcp_split_queued_segments_to_mss(struct vma_tcp_conn *conn);
bool tcp_output_split_to_mss(struct vma_tcp_conn *conn,
                             struct tcp_seg *seg); /* one that is unacknowledged; lwip_enter */
/* All that is not SACKed is to be sent again: short segments become long ones. Then recovery forgets its notes. */
void tcp_output_join_short_segments(struct vma_tcp_conn *conn);
/* The stream offset below which nothing is in lwIP's hands any more: what may be released of tx. */
uint64_t tcp_tx_first_unacked_offset(const struct vma_tcp_conn *conn);
/* For a timer: sends one segment of what waits whatever Nagle, cork and silly windows say, as far as the peer's window
 * allows. 1 sent, 0 nothing could be (the window is closed, or nothing waits), -ENOBUFS no frame now. */
int tcp_output_one_segment_despite_limits(struct vma_tcp_conn *conn);
/* What the application has written leaves as far as windows and Nagle's rule allow, and nothing behind it. */
void tcp_output_fifo_data_if_none_unsent(struct vma_tcp_conn *conn);
/* An empty segment below the window (RFC 1122 4.2.3.6, 9293 3.8.6.1), which the peer answers with an ACK. -ENOBUFS. */
int tcp_output_probe(struct vma_tcp_conn *conn);

#endif
