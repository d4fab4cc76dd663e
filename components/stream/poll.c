/* poll.c - readiness of a socket, as the kernel's tcp_poll gives it in the same state. */
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include "stream_priv.h"

#define IN (EPOLLIN | EPOLLRDNORM)
#define OUT (EPOLLOUT | EPOLLWRNORM)

/* An error is told by poll until a call has taken it: the connection only knows that there was one. */
static uint32_t poll_events_of_connection(const struct stream_sock *sock, const struct vma_tcp_conn *conn)
{
	uint32_t events = vma_tcp_poll_events(conn) & ~(uint32_t)EPOLLERR;
	uint32_t lowat = atomic_load_explicit(&sock->rcvlowat, memory_order_relaxed);

	if (__builtin_expect(lowat > 1, 0) && events & EPOLLIN && !(events & EPOLLRDHUP) &&
	    vma_tcp_readable_bytes(conn) < lowat)
		events &= ~(uint32_t)IN;
	return events;
}

static uint32_t poll_events_of_phase(struct stream_sock *sock)
{
	const struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	uint32_t events = 0;

	switch (stream_sock_phase(sock)) {
	case STREAM_CONNECTED:
		return conn != NULL ? poll_events_of_connection(sock, conn) : 0;
	case STREAM_FRESH:
		events = OUT | EPOLLHUP;
		break;
	case STREAM_FAILED:
		return IN | OUT | EPOLLRDHUP | EPOLLHUP;
	case STREAM_LISTENING:
		if (!atomic_load_explicit(&sock->was_polled, memory_order_relaxed))
			atomic_store(&sock->was_polled, true);
		if (atomic_load_explicit(&sock->inherited, memory_order_relaxed))
			stream_schedule_listen_update(sock);
		return atomic_load_explicit(&sock->n_queued, memory_order_acquire) != 0 ||
		                       stream_fork_queue_has_conns(sock)
		               ? IN
		               : 0;
	case STREAM_CONNECTING:
		break;
	}
	if (atomic_load_explicit(&sock->shut_rd, memory_order_relaxed))
		events |= IN | EPOLLRDHUP;
	return events;
}

/* The last look is for a connection that is handed over meanwhile, and looks ended: see sock.h, os_only. */
uint32_t stream_poll(struct vma_file *file)
{
	struct stream_sock *sock = stream_sock(file);
	uint32_t events = file->os_only ? 0 : poll_events_of_phase(sock);

	if (file->os_only)
		return 0;
	if (atomic_load_explicit(&sock->so_error, memory_order_relaxed) != 0 || stream_has_zerocopy_notifications(sock))
		events |= EPOLLERR;
	return events;
}

uint64_t stream_ring_bits(struct vma_file *file)
{
	return atomic_load_explicit(&stream_sock(file)->rings, memory_order_relaxed);
}

void stream_notify_rings_changed(struct stream_sock *sock, uint64_t before)
{
	struct vma_watchers *watchers = atomic_load_explicit(&sock->file.watchers, memory_order_acquire);
	uint64_t rings = atomic_load(&sock->rings);

	if (rings == before)
		return;
	for (uint32_t i = 0; watchers != NULL && i < watchers->n; i++)
		watchers->watcher[i]->rings(watchers->watcher[i], rings);
	vma_waitq_wake(&sock->file.waitq, true);
}

uint64_t stream_listener_ring_bits(struct vma_file *file)
{
	return stream_sock_phase(stream_sock(file)) == STREAM_LISTENING ? stream_ring_bits(file) : 0;
}
