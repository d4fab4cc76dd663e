/*
 * pace.h - SO_MAX_PACING_RATE by software: a socket's frames leave at no more than its rate, where no card sees to
 * that.
 *
 * The kernel's fq gives each packet a time and lets it wait. Here nothing waits but the sender: a frame that is too
 * early finds no room, as with a full send buffer. So nothing is dropped, and no queue is needed. Each frame moves the
 * time at which the next one would be on time. The step is its length over the rate, a second at most (as fq does). A
 * sender may make up for a millisecond in which it was late. So no more than a millisecond's worth and one frame leave
 * in a burst (GCRA, ITU-T I.371).
 *
 * The internal thread tells that there is room again, to the millisecond, if a sender was refused or readiness asked
 * for.
 *
 * Threads: any, inside; udp_pace_set_rate with dst_lock.
 * Progress: no call waits.
 */
#ifndef VMA_UDP_PACE_H
#define VMA_UDP_PACE_H

#include "udp_priv.h"

/* Bytes per second of frames without preamble and FCS, 0: none. */
void udp_pace_set_rate(struct udp_sock *sock, uint64_t bytes_per_sec);
static inline bool udp_is_paced(const struct udp_sock *sock)
{
	return atomic_load_explicit(&sock->unplain, memory_order_relaxed) & UDP_PACED;
}
/* 0: a frame of len bytes may leave, and counts from now on: *taken_ns is for udp_pace_undo_delay_of_unsent_frame. Else
 * the time at which it may. */
uint64_t udp_pace_reserve_time_for_frame(struct udp_sock *sock, uint32_t len, uint64_t *taken_ns);
void udp_pace_undo_delay_of_unsent_frame(struct udp_sock *sock, uint64_t taken_ns); /* it did not leave */
/* EPOLLOUT is told when a frame may leave: after a refused send also if that is so by now, or an edge would be lost. */
void udp_pace_schedule_readiness(struct udp_sock *sock);
/* Whether a frame may leave now. If not, EPOLLOUT is told when one may. */
bool udp_pace_may_send_or_schedule_wakeup(struct udp_sock *sock);
void udp_pace_drop_scheduled_task_after_fork(struct udp_sock *sock);

#endif
