/* pingpong.h - the messages of a conversation of questions and answers, by the fastest path (pingpong.c). */
#ifndef VMA_TCP_RX_PINGPONG_H
#define VMA_TCP_RX_PINGPONG_H

#include "segment.h"
#include "../timer/timers.h"

/*
 * Whether conn->burst, which there is, was one such segment: then all is done that tcp_input_burst does. False: nothing
 * has been done. Not within lwip_enter: but for the segment that it frees, lwIP has no part in it.
 */
bool tcp_pingpong_input(struct vma_tcp_conn *conn);

/*
 * After it: whether there is nothing to send, no frame of others that waits for this step's end, and no FIN to come
 * (asked first: nothing is produced after it). As nothing is unacknowledged either, all that tcp_output_conn_data and
 * the timers would do is what is done here. A writer who comes later posts a step of his own.
 */
static inline bool tcp_pingpong_finish_if_nothing_to_send(struct vma_tcp_conn *conn)
{
	if (atomic_load_explicit(&conn->shut_wr, memory_order_acquire) || fifo_produced(&conn->tx) != conn->lwip_end ||
	    conn->pcb->flags & TF_ACK_NOW || conn->tcp->frames_count != 0)
		return false;
	conn->push_once = conn->ack_received = conn->recovery.probe_wanted = false;
	if (cc_is_model_based(&conn->cc))
		recovery_note_app_limited_or_set_pacing(conn);
	persist_end(conn);
	return true;
}

#endif
