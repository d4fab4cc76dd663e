/*
 * timewait - what is left of a connection in TIME_WAIT.
 *
 * Threads: the driver.
 */
#ifndef VMA_TCP_TIMEWAIT_H
#define VMA_TCP_TIMEWAIT_H

#include "stack.h"

int timewait_init(struct vma_tcp *tcp);
void timewait_fini(struct vma_tcp *tcp);
void timewait_end_some(struct vma_tcp *tcp, uint32_t most); /* so many of them, if there are, now */
/* Takes over from a connection whose pcb is in TIME_WAIT: its flow goes on, the connection is over. */
void timewait_begin(struct vma_tcp_conn *conn);
/* For a record; also if there may be no more of them. False: later, or the peer's FIN, sent again, finds nobody. */
bool timewait_ensure_memory(struct vma_tcp *tcp);
/* Whether a new connection may use the 4-tuple now (RFC 6191; as the kernel, at once if the application asks for that
 * port, else after tcp_tw_reuse_delay): true ends the old one. LAST: see time_wait_ends in struct vma_tcp_conn_attr. */
enum timewait_reuse_rule { TIMEWAIT_USE_CHOSEN, TIMEWAIT_USE_BOUND, TIMEWAIT_USE_LAST };
bool timewait_end_if_reusable(struct vma_tcp *tcp, const struct vma_flow_key *key, enum timewait_reuse_rule use,
                              uint32_t *isn_above);
/* The local port, network order, of an old one with these addresses and this peer's port; 0: none is old enough, or
 * there are too many of others before it: who asks again looks further. */
uint16_t timewait_oldest_port(struct vma_tcp *tcp, const struct vma_flow_key *key);
/* The same for a connection that is there: one that was closed, and waits for the peer's end only. */
/* The peer has begun another connection, elsewhere. False: the flow is none of these. */
bool timewait_evict(struct vma_tcp *tcp, struct vma_flow *flow);
bool conn_end_for_tuple_reuse(struct vma_tcp_conn *conn, uint32_t *isn_above);
/* Whether one is there with this local port and address (NULL: any). As long as there are records. */
bool timewait_has_port(const struct vma_tcp *tcp, const uint8_t *local, uint16_t port_be);
void timewait_expire(struct vma_tcp *tcp); /* its timer has come */
uint32_t timewait_count(const struct vma_tcp *tcp);
/* The latest first, at most `most`, until `see` says true, which is the answer. */
bool timewait_for_each_latest(const struct vma_tcp *tcp, uint32_t most,
                              bool (*see)(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt,
                                          void *arg),
                              void *arg);
void timewait_for_each(const struct vma_tcp *tcp,
                       void (*see)(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt, void *arg),
                       void *arg);

#endif
