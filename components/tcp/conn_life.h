/*
 * conn_life - what the files of a connection's life call of each other: conn.c, connect.c, close.c, options.c, icmp.c,
 * state.c, rx/read.c.
 *
 * Threads: the driver, unless a function says "any thread".
 */
#ifndef VMA_TCP_CONN_LIFE_H
#define VMA_TCP_CONN_LIFE_H

#include "stack.h"

/* state.c: the handshake is over, and TIME_WAIT has not begun (RFC 9293 3.3.2): another stack can go on with it. */
bool tcp_is_synchronized(const struct tcp_pcb *pcb);

/* Where a sequence number not far from what was fed last lies in the stream; the SYN and the FIN count as bytes. */
static inline uint64_t tcp_tx_offset(const struct vma_tcp_conn *conn, uint32_t seq)
{
	int32_t back = (int32_t)(conn->tx_seq + (uint32_t)conn->lwip_end - seq);

	return conn->lwip_end - (uint64_t)(int64_t)back;
}

/* ---- conn.c: driver ---- */

struct vma_tcp_conn *tcp_conn_new(struct vma_tcp *tcp, const struct vma_flow_key *key,
                                  const struct vma_tcp_options *options);
void conn_clean_up_after_pcb_freed(struct vma_tcp_conn *conn,
                                   int error); /* the pcb has gone: publish, tell, detach, put the stack's reference */
/* Ends it: the pcb is given up, with or without RST to the peer, then conn_clean_up_after_pcb_freed(conn, error).
 * Within lwip_enter or not. Nothing of the pcb may be used afterwards. */
void conn_fail_with_error(struct vma_tcp_conn *conn, int error, bool reset);
void tcp_conn_publish_state_and_events(struct vma_tcp_conn *conn); /* state and readiness from the pcb */
void tcp_pingpong_publish(
        struct vma_tcp_conn *conn); /* the same after tcp_pingpong_finish_if_nothing_to_send, and what is new is told */
static inline bool tcp_conn_is_orphan(const struct vma_tcp_conn *conn) /* closed by its application */
{
	return conn->is_orphan;
}
void tcp_conn_schedule_work(struct vma_tcp_conn *conn, uint32_t work);
/* info.c: what readers of the statistics see of a connection. */
void tcp_conn_fill_stats(struct vma_tcp_conn *conn, struct vma_stats_socket *stats) __attribute__((noinline));
static inline void tcp_conn_fill_stats_if_attached(struct vma_tcp_conn *conn)
{
	struct vma_stats_socket *stats = atomic_load_explicit(&conn->stats, memory_order_acquire);

	if (stats != NULL)
		tcp_conn_fill_stats(conn, stats);
}
void tcp_conn_run_step(struct vma_tcp_conn *conn);      /* what is posted, input, output, publication, events */
void tcp_conn_receive_burst(struct vma_tcp_conn *conn); /* what has come; its step is still to follow */
void tcp_conns_abandon_at_destroy(struct vma_tcp *tcp); /* the stack ends: all are over, */
void tcp_conns_free(struct vma_tcp *tcp);               /* and freed */
static inline int32_t tcp_option(const struct vma_tcp_conn *conn, enum vma_tcp_option option)
{
	return atomic_load_explicit(&conn->option[option], memory_order_relaxed);
}

/* ---- connect.c, close.c: driver ---- */

uint32_t tcp_isn(struct vma_tcp *tcp, const struct vma_flow_key *key);
void tcp_conn_move_to_stack(struct vma_tcp_conn *conn,
                            struct vma_tcp *to); /* from the list of its stack into another's */
/* A new pcb is the connection's: its callbacks, its windows for the SYN. Within lwip_enter. */
void tcp_pcb_attach(struct vma_tcp_conn *conn, struct tcp_pcb *pcb);
uint32_t tcp_mss_advertised(const struct vma_tcp_conn *conn);
void tcp_drop_unagreed_options(
        struct vma_tcp_conn *conn); /* the peer's SYN has been read: those that this side does not offer */
void tcp_conn_established(struct vma_tcp_conn *conn); /* the handshake is complete: sizes, windows, first samples */
void tcp_conn_apply_path(struct vma_tcp_conn *conn);  /* what was told, if anything; flag held */
void tcp_conn_mss_update(struct vma_tcp_conn *conn);  /* from path, options, the peer's SYN */
void conn_do_close_work(struct vma_tcp_conn *conn, uint32_t todo);
void tcp_close_fin(struct vma_tcp_conn *conn); /* everything is in segments: the FIN behind it */

/* ---- options.c, icmp.c: driver ---- */

void tcp_apply_changed_options(struct vma_tcp_conn *conn);
void tcp_handle_posted_icmp_error(struct vma_tcp_conn *conn);

/* ---- state.c, rx/read.c ---- */

void conn_set_ended(struct vma_tcp_conn *conn, int error);
uint64_t tcp_sndbuf_now(const struct vma_tcp_conn *conn); /* any thread: as far as there is memory */
bool tcp_request_writable_event_if_full(
        const struct vma_tcp_conn *conn);                       /* any thread: no room, and WRITABLE will be told */
bool conn_has_rx_bytes(const struct vma_tcp_conn *conn);        /* any thread */
void rx_consume_bytes(struct vma_tcp_conn *conn, size_t bytes); /* reader; whether the window opens is not asked */
/* Driver, before it makes room: whether a writer can be waiting for some. */
static inline bool tcp_may_have_waiting_writer(const struct vma_tcp_conn *conn)
{
	uint64_t sndbuf = atomic_load_explicit(&conn->sndbuf, memory_order_relaxed);

	return 3 * fifo_queued_bytes(&conn->tx) > sndbuf || tcp_option(conn, VMA_TCP_OPT_NOTSENT_LOWAT) != -1;
}
void tcp_conn_fin_received(struct vma_tcp_conn *conn); /* and all that came before it has been told */
/* conn->urgent_byte, but for the byte itself. */
enum { URGENT_NONE = -1, URGENT_EXPECTED = -2 };

/* Old urgent bytes from this stream offset on, which a reader there steps over. */
static inline size_t urgent_passed_from(const struct vma_tcp_conn *conn, uint64_t offset)
{
	int64_t passed = atomic_load_explicit(&conn->urgent_passed, memory_order_relaxed);

	return passed > (int64_t)offset ? (size_t)((uint64_t)passed - offset) : 0;
}

#endif
