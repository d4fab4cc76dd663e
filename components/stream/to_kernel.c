/*
 * to_kernel.c - a connection becomes the kernel's, in the middle of a conversation, and nobody notices: its shadow is
 *               given all that the connection knows (TCP_REPAIR), and is connected from then on.
 *
 *   a rule of its own at the NIC
 *   nobody drives ─┬─ shadow: sequence numbers, addresses, options, both queues, windows     undone if one fails
 *                  ├─ it lives: answers come from the kernel's stack; it is told what had come out of order
 *                  └─ the connection is over here, without a word
 *   the rule goes, and what had come for it until then is said to the kernel (replay.c)
 *
 * With the rule, because a socket that is being repaired looks connected: a segment that came to it by way of a
 * listener's rule, which leaves the kernel's connections to the kernel, would be taken into half of a connection. And
 * the rule goes last, because a kernel without a connection would answer with RST. So nothing is lost: the peer would
 * repeat it, but the kernel has not measured the way yet, and waits a second for what it has to repeat itself.
 *
 * Other processes do not touch the shadow before all is done: family.c.
 */
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "replay.h"

#define SPANS 8
#define CHUNK 32768   /* of a queue's bytes in one call */
#define OVERHEAD 4096 /* what the kernel counts at most for a chunk besides its bytes */

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

/* The kernel's struct tcp_repair_opt. */
struct repair_option {
	uint32_t code, value;
};

/* ---- the shadow's options, for the time of the repair ---- */

struct kept {
	int reuse, sndbuf, rcvbuf, locks, ifindex;
	bool has_locks;
};

static int get_int(int fd, int level, int name, int *value)
{
	socklen_t len = sizeof(*value);

	return vma_os.getsockopt(fd, level, name, value, &len) != 0 ? -errno : 0;
}

static int set_int(int fd, int level, int name, int value)
{
	return vma_os.setsockopt(fd, level, name, &value, sizeof(value)) != 0 ? -errno : 0;
}

static void keep(int fd, struct kept *kept)
{
	memset(kept, 0, sizeof(*kept));
	get_int(fd, SOL_SOCKET, SO_REUSEADDR, &kept->reuse);
	get_int(fd, SOL_SOCKET, SO_SNDBUF, &kept->sndbuf);
	get_int(fd, SOL_SOCKET, SO_RCVBUF, &kept->rcvbuf);
	get_int(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &kept->ifindex);
	kept->has_locks = get_int(fd, SOL_SOCKET, SO_BUF_LOCK, &kept->locks) == 0;
}

/* Buffers are told doubled. Those that grew with the connection here grow in the kernel by themselves. */
static void give_back(int fd, const struct kept *kept)
{
	set_int(fd, SOL_SOCKET, SO_REUSEADDR, kept->reuse); /* the end of a repair takes it away */
	set_int(fd, SOL_SOCKET, SO_SNDBUFFORCE, kept->sndbuf / 2);
	set_int(fd, SOL_SOCKET, SO_RCVBUFFORCE, kept->rcvbuf / 2);
	if (kept->has_locks)
		set_int(fd, SOL_SOCKET, SO_BUF_LOCK, kept->locks);
}

static void make_room(int fd, const struct kept *kept, int name, uint64_t bytes)
{
	uint64_t wanted = bytes + (bytes / CHUNK + 2) * OVERHEAD;
	uint64_t now = (uint64_t)(name == SO_SNDBUFFORCE ? kept->sndbuf : kept->rcvbuf);

	if (bytes != 0 && now < 2 * wanted)
		set_int(fd, SOL_SOCKET, name, wanted < INT_MAX / 4 ? (int)wanted : INT_MAX / 4);
}

/* ---- what the kernel is told ---- */

struct move {
	struct stream_sock *sock;
	struct vma_tcp_conn *conn;
	int fd;
	struct vma_tcp_export what;
	struct kept kept;
	struct replay replay;
};

static int set_seq(int fd, int queue, uint32_t seq)
{
	int rc = set_int(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, queue);

	return rc < 0 ? rc : set_int(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, (int)seq);
}

/* As if just connected, with nothing in its queues. One that is bound already is bound to the right port. */
static int join(const struct move *m)
{
	const struct stream_sock *sock = m->sock;
	const struct sockaddr *local = (const struct sockaddr *)&sock->name,
	                      *peer = (const struct sockaddr *)&sock->peer;
	struct sockaddr_in bound = {0};
	socklen_t len = sizeof(bound);
	int rc = set_seq(m->fd, TCP_SEND_QUEUE, m->what.snd_una);

	if (rc == 0)
		rc = set_seq(m->fd, TCP_RECV_QUEUE, m->what.rcv_nxt - (uint32_t)m->what.unread);
	if (rc < 0)
		return rc;
	if (vma_os.getsockname(m->fd, (struct sockaddr *)&bound, &len) != 0)
		return -errno;
	if (bound.sin_port == 0 && vma_os.bind(m->fd, local, sizeof(sock->name)) != 0)
		return -errno;
	return syscall(SYS_connect, m->fd, peer, sizeof(sock->peer)) != 0 ? -errno : 0;
}

static int tell_options(const struct move *m)
{
	const struct vma_tcp_export *what = &m->what;
	struct repair_option options[4];
	unsigned n = 0;
	int rc;

	options[n++] = (struct repair_option){TCPOPT_MAXSEG, what->mss};
	if (what->has_scale)
		options[n++] = (struct repair_option){TCPOPT_WINDOW, what->snd_scale | (uint32_t)what->rcv_scale << 16};
	if (what->has_sack)
		options[n++] = (struct repair_option){TCPOPT_SACK_PERMITTED, 0};
	if (what->has_ts)
		options[n++] = (struct repair_option){TCPOPT_TIMESTAMP, 0};
	rc = vma_os.setsockopt(m->fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, options, (socklen_t)(n * sizeof(options[0])));
	if (rc != 0)
		return -errno;
	/* Even: the lowest bit asks for stamps of microseconds. */
	return what->has_ts ? set_int(m->fd, IPPROTO_TCP, TCP_TIMESTAMP, (int)((what->ts_now + 1) & ~1U)) : 0;
}

static int tell_windows(const struct move *m)
{
	const struct vma_tcp_export *what = &m->what;
	const struct tcp_repair_window window = {.snd_wl1 = what->snd_wl1,
	                                         .snd_wnd = what->snd_wnd,
	                                         .max_window = what->snd_wnd_max,
	                                         .rcv_wnd = what->rcv_wnd + what->fin_received, /* for the FIN */
	                                         .rcv_wup = what->rcv_wup};

	return vma_os.setsockopt(m->fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &window, sizeof(window)) != 0 ? -errno : 0;
}

/* ---- queues ---- */

typedef unsigned (*spans_of)(struct vma_tcp_conn *conn, size_t skip, struct iovec *spans, unsigned n);

static int fill(const struct move *m, spans_of front, uint64_t from, uint64_t to)
{
	while (from < to) {
		struct iovec spans[SPANS];
		unsigned n = front(m->conn, (size_t)from, spans, 1);
		size_t bytes;
		ssize_t put;

		if (n == 0)
			return -EIO;
		bytes = spans[0].iov_len < to - from ? spans[0].iov_len : (size_t)(to - from);
		bytes = bytes < CHUNK ? bytes : CHUNK;
		put = syscall(SYS_sendto, m->fd, spans[0].iov_base, bytes, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
		if (put <= 0)
			return put == 0 ? -EIO : -errno;
		from += (uint64_t)put;
	}
	return 0;
}

/* While it is repaired, what is put into the send queue counts as sent. */
static int fill_repaired(const struct move *m)
{
	int rc = set_int(m->fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_RECV_QUEUE);

	if (rc == 0)
		rc = fill(m, vma_tcp_export_rx, 0, m->what.unread);
	if (rc == 0)
		rc = set_int(m->fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, TCP_SEND_QUEUE);
	if (rc == 0)
		rc = fill(m, vma_tcp_export_tx, 0, m->what.sent);
	return rc;
}

/* ---- moved ---- */

/* Not connected any more, and without a word about it. It stays bound. */
static void undo(const struct move *m)
{
	const struct sockaddr none = {.sa_family = AF_UNSPEC};

	syscall(SYS_connect, m->fd, &none, sizeof(none));
	set_int(m->fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
}

static int repair(const struct move *m)
{
	int rc;

	make_room(m->fd, &m->kept, SO_RCVBUFFORCE, m->what.unread);
	make_room(m->fd, &m->kept, SO_SNDBUFFORCE, m->what.unacked);
	rc = join(m);
	if (rc == 0)
		rc = tell_options(m);
	if (rc == 0)
		rc = fill_repaired(m);
	if (rc == 0)
		rc = tell_windows(m);
	return rc;
}

/* The kernel has it: what is left to do cannot be undone, and may fail as a connection may. */
static void begin_life(struct move *m)
{
	int rc = set_int(m->fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);

	if (m->kept.ifindex != 0)
		set_int(m->fd, SOL_SOCKET, SO_BINDTOIFINDEX, 0); /* for what is said by the loopback interface */
	if (rc == 0)
		rc = fill(m, vma_tcp_export_tx, m->what.sent, m->what.unacked);
	if (rc == 0 && m->what.fin_received)
		rc = replay_fin(&m->replay, m->what.rcv_nxt);
	if (rc < 0)
		vma_log_warn("fd %d: a connection that was handed over to the kernel is not whole: %s", m->fd,
		             strerrordesc_np(-rc));
	replay_early(&m->replay, m->conn);
	if (m->what.shut_rd)
		vma_os.shutdown(m->fd, SHUT_RD);
	if (m->what.shut_wr)
		vma_os.shutdown(m->fd, SHUT_WR);
}

/* Nobody drives, reads or writes. */
static int move(struct move *m)
{
	int rc = vma_tcp_export_begin(m->conn, &m->what);

	if (rc < 0)
		return rc;
	rc = set_int(m->fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON);
	if (rc < 0)
		return rc;
	keep(m->fd, &m->kept);
	rc = repair(m);
	if (rc < 0) {
		undo(m);
		give_back(m->fd, &m->kept);
		return rc;
	}
	replay_begin(&m->replay, m->sock, vma_engine()->arena, &m->what);
	begin_life(m);
	give_back(m->fd, &m->kept);
	m->sock->file.os_only = true;
	vma_tcp_export_end(m->conn, &m->replay.late);
	return 0;
}

static int move_alone(struct move *m)
{
	struct vma_ring *ring = vma_tcp_ring(vma_tcp_stack(m->conn));
	int rc = -EDEADLK;

	stream_turn_take(&m->sock->reader);
	stream_turn_take(&m->sock->writer);
	if (vma_ring_acquire(ring)) {
		rc = move(m);
		vma_ring_release(ring);
	}
	stream_turn_give(&m->sock->writer);
	stream_turn_give(&m->sock->reader);
	return rc;
}

/* The NIC's rule goes. */
static void part(struct move *m)
{
	vma_tcp_export_detach(m->conn);
	replay_end(&m->replay);
	if (m->kept.ifindex != 0)
		set_int(m->fd, SOL_SOCKET, SO_BINDTOIFINDEX, m->kept.ifindex);
}

/* For an option the caller says what that means. */
static void complain(const struct move *m, int rc, enum vma_sock_reason why)
{
	if (why != VMA_SOCK_FORKED)
		return;
	if (rc == -EPERM)
		vma_log_once(VMA_LOG_WARN, "connections that a forked process uses, too, cannot be handed over to the "
		                           "kernel without CAP_NET_ADMIN: they end with the process that made them");
	else if (rc != -ENOTCONN && rc != -EBADF)
		vma_log_warn("fd %d: a connection cannot be handed over to the kernel: %s", m->fd,
		             strerrordesc_np(-rc));
}

int stream_to_kernel(struct stream_sock *sock, int fd, enum vma_sock_reason why)
{
	struct move m = {.sock = sock, .conn = stream_conn(sock), .fd = fd};
	int rc;

	if (m.conn == NULL || stream_phase(sock) != STREAM_CONNECTED)
		return -ENOTCONN;
	if (!stream_is_shadow(sock, fd))
		return -EBADF;
	stream_options_settle(sock, fd);
	vma_tcp_steer(m.conn);                         /* without one (the NIC has no room) it is a matter of luck */
	vma_rails_progress(stream_rings(&sock->file)); /* what has come is taken, and need not be said again */
	stream_move_begin(sock);
	rc = move_alone(&m);
	if (rc == 0)
		part(&m);
	stream_move_end(sock, rc);
	if (rc < 0) {
		complain(&m, rc, why);
		return rc;
	}
	stream_conn_end(sock);
	atomic_store(&sock->reason, why);
	stream_describe(sock);
	return 0;
}

void stream_moved(struct stream_sock *sock)
{
	vma_file_set_own_poll(&sock->file, false);
	stream_ready(sock, EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM);
}
