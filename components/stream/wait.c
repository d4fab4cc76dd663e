/* wait.c - a call waits: for its connection, or for a listener's two queues. */
#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stream_priv.h"

struct waiting {
	struct vma_wait wait;
	struct stream_sock *sock;
	const struct stream_wait_condition *condition;
	struct pollfd shadow;
};

static struct waiting *stream_waiter_of(struct vma_wait *wait)
{
	return (struct waiting *)wait->arg;
}

static int stream_wait_ready(struct vma_wait *wait)
{
	struct waiting *w = stream_waiter_of(wait);

	return w->condition->ready(w->sock, w->condition);
}

/* By syscall: the C library's is a cancellation point. */
bool fd_is_readable_now(int fd)
{
	struct pollfd now = {.fd = fd, .events = POLLIN};
	struct timespec none = {0, 0};

	return fd >= 0 && syscall(SYS_ppoll, &now, 1, &none, NULL, 0) > 0;
}

/* The descriptor is looked up again: a closed one would wake for ever. */
static int stream_wait_poll_os(struct vma_wait *wait)
{
	struct waiting *w = stream_waiter_of(wait);

	w->shadow.fd = stream_shadow_fd(w->sock, w->condition->shadow_fd);
	return fd_is_readable_now(w->shadow.fd);
}

static uint64_t stream_wait_rings(struct vma_wait *wait)
{
	return stream_ring_bits(&stream_waiter_of(wait)->sock->file);
}

static void stream_wait_join_or_leave_wait_queue(struct vma_wait *wait, bool on)
{
	struct vma_waitq *q = &stream_waiter_of(wait)->sock->file.waitq;

	if (on)
		vma_waitq_add(q, wait->self);
	else
		vma_waitq_remove(q, wait->self);
}

static void stream_wait_abandon(struct vma_wait *wait)
{
	struct stream_sock *sock = stream_waiter_of(wait)->sock;

	vma_free(stream_waiter_of(wait)->condition->iov_memory);
	stream_call_leave(sock);
	vma_file_put(&sock->file);
}

static const struct vma_wait_ops conn_ops = {.ready = stream_wait_ready,
                                             .rings = stream_wait_rings,
                                             .set_queued = stream_wait_join_or_leave_wait_queue,
                                             .abandon = stream_wait_abandon};
static const struct vma_wait_ops listener_ops = {.ready = stream_wait_ready,
                                                 .poll_os = stream_wait_poll_os,
                                                 .rings = stream_wait_rings,
                                                 .accept_rings = stream_wait_rings,
                                                 .set_queued = stream_wait_join_or_leave_wait_queue,
                                                 .abandon = stream_wait_abandon};

int stream_wait(struct stream_sock *sock, const struct stream_wait_condition *condition)
{
	const struct vma_engine *engine = vma_engine_get_or_start();
	struct waiting w = {.sock = sock, .condition = condition};
	bool listens = condition->shadow_fd >= 0;
	int rc;

	w.shadow = (struct pollfd){.fd = condition->shadow_fd, .events = POLLIN};
	w.wait = (struct vma_wait){.ops = listens ? &listener_ops : &conn_ops,
	                           .arg = &w,
	                           .self = vma_thread_self(),
	                           .spin = condition->spin,
	                           .deadline_ns = condition->deadline_ns,
	                           .spin_loops = condition->spin_loops,
	                           .spin_nsec = -1,
	                           .fds = listens ? &w.shadow : NULL,
	                           .nfds = listens ? 1 : 0};
	if (engine != NULL) {
		w.wait.os_ratio = listens ? (uint32_t)engine->conf.rx_udp_poll_os_ratio : 0;
		w.wait.yield = engine->conf.rx_poll_yield;
	}
	vma_file_get(&sock->file); /* a wait goes outside */
	do
		rc = vma_wait(&w.wait);
	while (rc == -EINTR && w.wait.restart && condition->deadline_ns == UINT64_MAX);
	vma_inet_count_wait_poll_hit_or_miss(sock->stats, &w.wait);
	vma_file_put(&sock->file);
	return rc;
}
