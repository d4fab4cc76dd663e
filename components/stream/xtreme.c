/*
 * xtreme.c - SocketXtreme on TCP.
 *
 * A piece that lies in a frame is held as by zero-copy receive (zcopy.c): it fills the receive buffer until it is
 * freed, so a program that frees nothing stops its peer. A piece that tcp had to copy is copied once more, into a
 * buffer of the library's; the account has at most a receive buffer of those. What cannot be given stays where it is,
 * and the source on its list.
 *
 * The short way: a piece that comes while this thread polls its ring is given at once, and never queued. Nothing
 * overtakes: nothing is queued before it, nothing of the socket waits to be told, and no other thread is reading.
 */
#include "xtreme.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the object ---- */

static struct stream_xtreme_state *stream_get_xtreme_state(const struct stream_sock *sock)
{
	return atomic_load_explicit(&sock->xtreme, memory_order_acquire);
}

static void stream_xtreme_on_bytes_returned(struct vma_file *file, uint64_t connection, uint32_t bytes)
{
	if (connection != 0)
		vma_stream_return_held_zcopy_bytes(file, connection, bytes, 1);
}

static struct stream_xtreme_state *xtreme_of_watcher(struct vma_watcher *watcher)
{
	return (struct stream_xtreme_state *)((char *)watcher - offsetof(struct stream_xtreme_state, watcher));
}

static void xtreme_post_to_rings(struct stream_xtreme_state *x, uint32_t events)
{
	for (uint64_t bits = atomic_load(&x->bits); bits != 0; bits &= bits - 1)
		vma_xtreme_queue_source_events(
		        atomic_load_explicit(&x->source[__builtin_ctzll(bits)], memory_order_acquire), events);
}

/*
 * Two threads may come with the same ring: one of them is first. A file is marked as ended before stream_xtreme_close
 * looks for sources: it finds this one, or the mark is seen here.
 */
static void xtreme_add_ring_source(struct stream_xtreme_state *x, unsigned bit)
{
	struct vma_xtreme_source *fresh = vma_xtreme_source_create(&x->sock->file, bit), *none = NULL;

	if (fresh == NULL)
		return;
	if (atomic_compare_exchange_strong(&x->source[bit], &none, fresh)) {
		atomic_fetch_or(&x->bits, 1ULL << bit);
		if (vma_file_is_closed(&x->sock->file))
			vma_xtreme_source_end(fresh);
	} else {
		vma_xtreme_source_end(fresh);
		vma_xtreme_source_put(fresh);
	}
}

static void xtreme_add_ring_sources(struct stream_xtreme_state *x, uint64_t rings)
{
	for (rings &= ~atomic_load(&x->bits); rings != 0; rings &= rings - 1)
		xtreme_add_ring_source(x, (unsigned)__builtin_ctzll(rings));
}

/* Bytes that the thread itself has just received go into the completions of the poll that it is in. */
static void stream_xtreme_on_ready(struct vma_watcher *watcher, uint32_t events)
{
	struct stream_xtreme_state *x = xtreme_of_watcher(watcher);

	if (events != VMA_FILE_READABLE) {
		xtreme_post_to_rings(x, events);
		return;
	}
	for (uint64_t bits = atomic_load(&x->bits); bits != 0; bits &= bits - 1)
		vma_xtreme_complete_or_post(
		        atomic_load_explicit(&x->source[__builtin_ctzll(bits)], memory_order_acquire), events);
}

static void stream_xtreme_on_rings_changed(struct vma_watcher *watcher, uint64_t rings)
{
	struct stream_xtreme_state *x = xtreme_of_watcher(watcher);

	uint32_t untold = 0;

	if (vma_file_is_closed(&x->sock->file))
		return;
	/* A poll by the socket does not look at the rings that it has left. */
	for (uint64_t bits = atomic_load(&x->bits); bits != 0; bits &= bits - 1)
		untold |= vma_xtreme_source_queued_events(
		        atomic_load_explicit(&x->source[__builtin_ctzll(bits)], memory_order_acquire));
	xtreme_add_ring_sources(x, rings);
	xtreme_post_to_rings(x, untold);
}

/* Sources end in stream_xtreme_close. */
static void stream_xtreme_on_fd_closed(struct vma_watcher *watcher, int fd)
{
	if (fd == -1)
		vma_file_unwatch(&xtreme_of_watcher(watcher)->sock->file, watcher);
}

static void stream_xtreme_ignore_shadow(struct vma_watcher *watcher)
{
	(void)watcher;
}

struct stream_xtreme_state *stream_xtreme_get_or_create_state(struct stream_sock *sock)
{
	struct stream_xtreme_state *x = stream_get_xtreme_state(sock), *none = NULL;

	if (x != NULL || !stream_xtreme_is_on(sock))
		return x;
	x = vma_alloc(sizeof(*x));
	if (x == NULL)
		return NULL;
	x->sock = sock;
	atomic_store_explicit(&x->attempt, 1, memory_order_relaxed);
	x->watcher = (struct vma_watcher){.ready = stream_xtreme_on_ready,
	                                  .rings = stream_xtreme_on_rings_changed,
	                                  .closed = stream_xtreme_on_fd_closed,
	                                  .shadow = stream_xtreme_ignore_shadow};
	x->xtreme = vma_xtreme_create(&sock->file, stream_xtreme_on_bytes_returned);
	if (x->xtreme != NULL && atomic_compare_exchange_strong(&sock->xtreme, &none, x)) {
		if (vma_file_is_closed(
		            &sock->file)) /* as in xtreme_add_ring_source: else its account would keep the socket */
			vma_xtreme_close(x->xtreme);
		return x;
	}
	vma_xtreme_destroy(x->xtreme);
	vma_free(x);
	return none;
}

void stream_xtreme_watch_and_post_events(struct stream_sock *sock, uint32_t events)
{
	struct stream_xtreme_state *x = sock->file.os_only ? NULL : stream_xtreme_get_or_create_state(sock);

	if (x == NULL || stream_ring_bits(&sock->file) == 0)
		return;
	if (!atomic_load(&x->watched)) {
		pthread_mutex_lock(&sock->file.lock);
		x->peer = sock->peer;
		pthread_mutex_unlock(&sock->file.lock);
		if (!atomic_exchange(&x->watched, true) && vma_file_watch(&sock->file, &x->watcher) != 0)
			atomic_store(&x->watched, false);
	}
	xtreme_add_ring_sources(x, stream_ring_bits(&sock->file));
	xtreme_post_to_rings(x, events);
}

void stream_xtreme_on_connect_attempt(struct stream_sock *sock)
{
	struct stream_xtreme_state *x = stream_get_xtreme_state(sock);

	if (x == NULL)
		return;
	x->peer = sock->peer;
	atomic_fetch_add(&x->attempt, 1);
}

/* Sources stay until nobody who is inside can see them: until the end of the object. */
void stream_xtreme_close(struct stream_sock *sock)
{
	struct stream_xtreme_state *x = stream_get_xtreme_state(sock);

	if (x == NULL)
		return;
	for (unsigned bit = 0; bit < 64; bit++) {
		struct vma_xtreme_source *source = atomic_load(&x->source[bit]);

		if (source != NULL)
			vma_xtreme_source_end(source);
	}
	vma_xtreme_close(x->xtreme);
}

/* Lists and places are the parent's: sources of new rings are made when the socket is taken up. */
__attribute__((cold)) void stream_xtreme_reset_in_fork_child(struct stream_sock *sock)
{
	struct stream_xtreme_state *x = stream_get_xtreme_state(sock);

	if (x == NULL)
		return;
	atomic_store(&x->bits, 0);
	for (unsigned bit = 0; bit < 64; bit++)
		atomic_store(&x->source[bit], NULL);
	vma_xtreme_reset_account_in_fork_child(x->xtreme);
}

void stream_xtreme_destroy(struct stream_sock *sock)
{
	struct stream_xtreme_state *x = atomic_exchange(&sock->xtreme, NULL);

	if (x == NULL)
		return;
	for (unsigned bit = 0; bit < 64; bit++)
		vma_xtreme_source_put(atomic_load(&x->source[bit]));
	vma_xtreme_destroy(x->xtreme);
	vma_free(x);
}

/* ---- bytes ---- */

struct giving {
	struct stream_sock *sock;
	struct stream_xtreme_state *x;
	struct vma_tcp_conn *conn;
	struct vma_xtreme_poll *poll;
	uint64_t number;
	size_t bytes;
};

static enum vma_xtreme_given xtreme_give_fragment(const struct giving *giving, const struct vma_fragment *fragment,
                                                  uint64_t limit, uint64_t connection)
{
	const struct vma_xtreme_packet packet = {.fragments = fragment,
	                                         .n = 1,
	                                         .len = fragment->len,
	                                         .cost = fragment->len,
	                                         .limit = limit,
	                                         .connection = connection,
	                                         .src = giving->x->peer.sin_addr.s_addr,
	                                         .src_port_be = giving->x->peer.sin_port};

	return vma_xtreme_poll_add_packet_completion(giving->poll, giving->x->xtreme, &packet);
}

static void xtreme_stats_count_given(const struct stream_sock *sock, size_t bytes)
{
	stream_count_received(sock, (ssize_t)bytes, 0);
	if (sock->stats != NULL)
		vma_stats_add(&sock->stats->rx_zcopy, 1);
}

static uint32_t piece_offset_in_frame(const struct vma_tcp_rx_stream_piece *piece)
{
	return (uint32_t)((const char *)piece->data - vma_buf_data(vma_engine_get_or_start()->arena, piece->buf));
}

static enum vma_xtreme_given xtreme_give_frame_piece(struct giving *giving, const struct vma_tcp_rx_stream_piece *piece)
{
	struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	const struct vma_fragment fragment = {
	        .buf = piece->buf, .off = piece_offset_in_frame(piece), .len = piece->len};
	enum vma_xtreme_given given;

	vma_buf_ref(piece->buf);
	given = xtreme_give_fragment(giving, &fragment, UINT64_MAX, giving->number);
	if (given == VMA_XTREME_GIVEN)
		vma_tcp_rx_hold_piece(giving->conn, piece);
	else
		vma_buf_put(arena, piece->buf);
	return given;
}

static enum vma_xtreme_given xtreme_give_copied_piece(struct giving *giving,
                                                      const struct vma_tcp_rx_stream_piece *piece)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	const uint64_t limit = vma_tcp_rcvbuf_bytes(giving->conn);
	struct vma_fragment fragment = {0};
	enum vma_xtreme_given given;
	size_t room;

	if (engine->spill == NULL || vma_bufpool_get(engine->spill, &fragment.buf, 1) == 0)
		return VMA_XTREME_REFUSED;
	room = vma_bufpool_frame_size(engine->spill) -
	       (size_t)(vma_buf_data(engine->arena, fragment.buf) - vma_buf_frame(engine->arena, fragment.buf));
	fragment.len = piece->len < room ? piece->len : (uint32_t)room;
	memcpy(vma_buf_data(engine->arena, fragment.buf), piece->data, fragment.len);
	given = xtreme_give_fragment(giving, &fragment, limit, 0);
	if (given != VMA_XTREME_GIVEN) {
		vma_buf_put(engine->arena, fragment.buf);
		return given;
	}
	vma_tcp_rx_consume(giving->conn, fragment.len);
	giving->bytes += fragment.len;
	return given;
}

bool stream_xtreme_take_arriving_piece(struct vma_tcp_conn *conn, void *arg,
                                       const struct vma_tcp_rx_stream_piece *piece)
{
	struct stream_sock *sock = arg;
	struct giving giving = {.sock = sock, .x = stream_get_xtreme_state(sock), .conn = conn};
	const struct vma_fragment fragment = {
	        .buf = piece->buf, .off = piece_offset_in_frame(piece), .len = piece->len};
	uint64_t bits = giving.x != NULL && !sock->file.os_only ? atomic_load(&giving.x->bits) : 0;
	bool taken;

	for (; bits != 0 && giving.poll == NULL; bits &= bits - 1)
		giving.poll = vma_xtreme_poll_that_may_take(
		        atomic_load_explicit(&giving.x->source[__builtin_ctzll(bits)], memory_order_acquire));
	if (giving.poll == NULL || !stream_io_lock_try_acquire(&sock->reader))
		return false;
	taken = xtreme_give_fragment(&giving, &fragment, UINT64_MAX, vma_tcp_zcopy_conn_id(conn)) == VMA_XTREME_GIVEN;
	if (taken)
		vma_tcp_rx_hold_arriving_piece(conn, piece);
	stream_io_lock_release(&sock->reader);
	if (taken)
		xtreme_stats_count_given(sock, piece->len);
	return taken;
}

/* The reader's turn is held. True: there is more than could be given. */
static bool xtreme_give_stream_bytes(struct giving *giving)
{
	struct vma_tcp_rx_stream_piece piece;
	enum vma_xtreme_given given;

	while (vma_tcp_readable_bytes(giving->conn) != 0) {
		if (vma_xtreme_next_completion(giving->poll) == NULL)
			return true;
		if (!vma_tcp_peek_first_rx_piece(giving->conn, &piece)) {
			vma_tcp_rx_consume(giving->conn, 0); /* a lone urgent byte, which is not in the stream */
			if (!vma_tcp_peek_first_rx_piece(giving->conn, &piece))
				return false;
		}
		if (piece.buf != NULL) {
			given = xtreme_give_frame_piece(giving, &piece);
			giving->bytes += given == VMA_XTREME_GIVEN ? piece.len : 0;
		} else {
			given = xtreme_give_copied_piece(giving, &piece);
		}
		if (given != VMA_XTREME_GIVEN)
			return true;
	}
	return false;
}

static bool xtreme_give_received_data(struct stream_sock *sock, struct stream_xtreme_state *x,
                                      struct vma_tcp_conn *conn, struct vma_xtreme_poll *poll)
{
	struct giving giving = {.sock = sock, .x = x, .conn = conn, .poll = poll};
	bool more;

	/* As soon as it can be: what is queued by then is copied. */
	if (vma_tcp_offer_arriving_pieces(conn) != 0 || vma_tcp_readable_bytes(conn) == 0)
		return vma_tcp_readable_bytes(conn) != 0;
	giving.number = vma_tcp_zcopy_conn_id(conn);
	stream_io_lock_acquire(&sock->reader);
	more = xtreme_give_stream_bytes(&giving);
	stream_io_lock_release(&sock->reader);
	if (giving.bytes != 0)
		xtreme_stats_count_given(sock, giving.bytes);
	return more;
}

/* ---- events ---- */

/* What a poll has found the socket in. */
struct seen_state {
	uint32_t attempt; /* of which connection it was: read before `events` */
	uint32_t events;  /* as poll(2) has them */
};

/*
 * What is to be told of the state that the socket was in before its bytes were taken, and was not told yet. So an end
 * comes after all bytes: those before an end that was seen were there by then. An end that comes later posts the source
 * again.
 */
static uint32_t xtreme_unreported_events(const struct stream_sock *sock, const struct stream_xtreme_state *x,
                                         struct seen_state seen, uint32_t events, bool more)
{
	uint32_t now = seen.events, untold = 0;

	/* Else it is MSG_ZEROCOPY that has something to tell, or had when this was seen: that is no end. */
	if (atomic_load_explicit(&sock->so_error, memory_order_relaxed) == 0 && (now & EPOLLHUP) == 0)
		now &= ~(uint32_t)EPOLLERR;

	if (now & (EPOLLERR | EPOLLHUP) && (!more || now & EPOLLERR) &&
	    atomic_load_explicit(&x->failure_told, memory_order_relaxed) != seen.attempt)
		untold |= now & (EPOLLERR | EPOLLHUP);
	if ((now & (EPOLLERR | EPOLLHUP)) == 0 && events & EPOLLOUT)
		untold |= now & EPOLLOUT;
	if (now & EPOLLRDHUP && (now & EPOLLERR) == 0 && !more &&
	    atomic_load_explicit(&x->end_told, memory_order_relaxed) != seen.attempt)
		untold |= EPOLLIN | EPOLLRDHUP;
	return untold;
}

/* Of two polls, of two of its rings, one tells. What is left for this one. */
static uint32_t xtreme_claim_events_to_report(struct stream_xtreme_state *x, uint32_t untold, uint32_t attempt)
{
	if (untold & (EPOLLERR | EPOLLHUP) && atomic_exchange(&x->failure_told, attempt) == attempt)
		untold &= ~(uint32_t)(EPOLLERR | EPOLLHUP);
	if (untold & (EPOLLRDHUP | EPOLLERR) && atomic_exchange(&x->end_told, attempt) == attempt)
		untold &= ~(uint32_t)(EPOLLIN | EPOLLRDHUP);
	return untold;
}

/* Into the last completion of this socket, if it has just got one. */
static bool xtreme_report_unreported_events(struct stream_xtreme_state *x, struct vma_xtreme_poll *poll, bool given,
                                            uint32_t untold, uint32_t attempt)
{
	if (!given && vma_xtreme_next_completion(poll) == NULL)
		return false;
	untold = xtreme_claim_events_to_report(x, untold, attempt);
	if (given)
		poll->at[-1].events |= untold;
	else if (untold != 0)
		vma_xtreme_poll_add_event_completion(poll, x->xtreme, untold, &x->peer, 0);
	return true;
}

static bool xtreme_complete_connection(struct stream_sock *sock, struct stream_xtreme_state *x,
                                       struct vma_xtreme_poll *poll, uint32_t *events)
{
	const struct vma_completion_t *before = poll->at;
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	struct seen_state seen = {.attempt = atomic_load(&x->attempt)};
	uint32_t untold;
	bool more;

	seen.events = stream_poll(&sock->file);
	more = conn != NULL && xtreme_give_received_data(sock, x, conn, poll);
	untold = xtreme_unreported_events(sock, x, seen, *events, more);
	if (untold == 0 || xtreme_report_unreported_events(x, poll, poll->at != before, untold, seen.attempt))
		*events = 0;
	else
		more = true;
	return more;
}

/* There was no memory for what tells of it. */
static void __attribute__((cold)) xtreme_close_untellable_conn(int fd)
{
	vma_fd_remove(fd);
	syscall(SYS_close, fd);
}

/* A process that has no descriptor left keeps the connection where it is, as the kernel does. */
static bool xtreme_complete_listener(struct stream_sock *listener, struct vma_xtreme_poll *poll)
{
	const int listen_fd = atomic_load_explicit(&listener->file.fd, memory_order_relaxed);

	while (atomic_load_explicit(&listener->n_queued, memory_order_acquire) != 0) {
		const struct stream_xtreme_state *child = NULL;
		struct vma_file *file;
		int fd;

		if (vma_xtreme_next_completion(poll) == NULL)
			return true;
		fd = stream_accept_queued_conn(listener);
		if (fd < 0)
			return fd != -EAGAIN;
		file = vma_fd_lookup(fd);
		if (file == NULL || file->kind != VMA_FILE_TCP)
			continue; /* another thread has closed the number */
		child = stream_xtreme_get_or_create_state(stream_sock(file));
		if (child != NULL && atomic_load(&child->watched) && atomic_load(&child->bits) != 0)
			vma_xtreme_poll_add_event_completion(
			        poll, child->xtreme, VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED, &child->peer, listen_fd);
		else
			xtreme_close_untellable_conn(fd);
	}
	return false;
}

bool stream_xtreme_complete(struct vma_file *file, struct vma_xtreme_poll *poll, uint32_t *events)
{
	struct stream_sock *sock = stream_sock(file);
	struct stream_xtreme_state *x = stream_get_xtreme_state(sock);
	bool more;

	if (file->os_only || x == NULL || !stream_call_enter(sock)) {
		*events = 0;
		return false;
	}
	if (stream_sock_phase(sock) == STREAM_LISTENING) {
		*events = 0;
		more = xtreme_complete_listener(sock, poll);
	} else {
		more = xtreme_complete_connection(sock, x, poll, events);
	}
	stream_call_leave(sock);
	return more;
}

/* ---- options ---- */

int stream_xtreme_setsockopt(struct stream_sock *sock, int name, const void *value, socklen_t len)
{
	struct stream_xtreme_state *x = stream_xtreme_get_or_create_state(sock);

	if (x == NULL)
		return -ENOMEM;
	return name == SO_VMA_SHUTDOWN_RX ? -EOPNOTSUPP : vma_xtreme_setsockopt(x->xtreme, name, value, len);
}

int stream_xtreme_getsockopt(struct stream_sock *sock, int name, void *value, socklen_t *len)
{
	const struct stream_xtreme_state *x = stream_xtreme_get_or_create_state(sock);

	return x == NULL ? -ENOMEM : vma_xtreme_getsockopt(x->xtreme, name, value, len);
}
