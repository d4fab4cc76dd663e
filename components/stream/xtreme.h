/*
 * xtreme.h - SocketXtreme on a socket: pieces of the stream, ends and connections as completions of a poll
 * (<vma/inet_xtreme.h>).
 *
 *   a piece ── its thread polls, nothing is queued ──> packet, held in the window
 *
 *   an event ── watcher ── post ──> lists of the socket's rings ── complete ──┬─ bytes ──> packets, held in the window
 *                                                                             ├─ listener ──> accepts by itself
 *                                                                             └─ end, error, room ──> EPOLL* bits
 *
 * A socket is watched from connect, listen or accept on. Whatever an event says, the poll looks at the socket: so what
 * came before the watcher, or is seen twice, makes no difference.
 *
 * Memory: made when it is first needed, ends with the socket.
 */
#ifndef VMA_STREAM_XTREME_H
#define VMA_STREAM_XTREME_H

#include <vma/inet_xtreme.h>

#include "stream_priv.h"

struct stream_xtreme_state {
	struct vma_watcher watcher;
	struct stream_sock *sock;
	struct vma_xtreme *xtreme;
	_Atomic bool watched;
	/* Of each ring that it has, or had: what arrives by a list of another ring is told there. */
	struct vma_xtreme_source *_Atomic source[64];
	_Atomic uint64_t bits; /* of sources; 0: it has closed */
	struct sockaddr_in peer;
	_Atomic uint32_t attempt;                /* to connect, the last; from 1 on */
	_Atomic uint32_t end_told, failure_told; /* of which attempt; 0: of none */
};

/* Whether the mode is on. */
static inline bool stream_xtreme_is_on(const struct stream_sock *sock)
{
	return sock->engine != NULL && sock->engine->conf.socketxtreme;
}
/* NULL: no memory, or the mode is off. Any thread. */
struct stream_xtreme_state *stream_xtreme_get_or_create_state(struct stream_sock *sock);
/*
 * After connect, listen or accept: its events are told from now on, and what is there. events: EPOLLOUT, if it is new
 * that there is room. Without file.lock.
 */
void stream_xtreme_watch_and_post_events(struct stream_sock *sock, uint32_t events);
static inline void stream_xtreme_watch(struct stream_sock *sock, uint32_t events)
{
	if (__builtin_expect(stream_xtreme_is_on(sock), 0))
		stream_xtreme_watch_and_post_events(sock, events);
}
/* file.lock. A connection is asked for: how the one before has ended does not matter to it. */
void stream_xtreme_on_connect_attempt(struct stream_sock *sock);
void stream_xtreme_close(struct stream_sock *sock);
void stream_xtreme_reset_in_fork_child(struct stream_sock *sock);
void stream_xtreme_destroy(struct stream_sock *sock);
int stream_xtreme_setsockopt(struct stream_sock *sock, int name, const void *value, socklen_t len);
int stream_xtreme_getsockopt(struct stream_sock *sock, int name, void *value, socklen_t *len);
/* vma_tcp_conn_ops.take */
bool stream_xtreme_take_arriving_piece(struct vma_tcp_conn *conn, void *arg,
                                       const struct vma_tcp_rx_stream_piece *piece);
/* ops */
bool stream_xtreme_complete(struct vma_file *file, struct vma_xtreme_poll *poll, uint32_t *events);
/* accept.c: accepts a connection that waits in the queue of ours: its descriptor; -EAGAIN: none waits; -errno. */
int stream_accept_queued_conn(struct stream_sock *listener);

#endif
