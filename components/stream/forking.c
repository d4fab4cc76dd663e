/*
 * forking.c - the usual fate of a listener's connections. If other processes use them, the listener becomes the
 * kernel's, after a while. If they are closed once they are answered, they are answered in a way of their own.
 *
 * A server that forks for each connection, or passes each on to a worker (SCM_RIGHTS), gains nothing from offload. Its
 * connections are handed over to the kernel before a byte of them was moved here. Each hand-over costs more than the
 * kernel's accept. The connections of such a listener are counted. After UNUSED_COUNT_MAX in a row it becomes the
 * kernel's, for good. A connection that moved bytes here before it was handed over, or was closed here, begins the
 * count anew.
 *
 *   accept ── the connection shares its listener's tally ──┬─ handed over, no byte moved ── one more ──> listener: the
 *                                                          └─ else ── none                               kernel's
 *
 * The listener also becomes the kernel's after the first hand-over that this process has no right to make: the
 * connection ends with its parent then.
 *
 * A connection is *brief* if this process closes it within SHORT_LIVED_NS, before the peer's end has come. After
 * SHORT_LIVED_COUNT_MAX brief ones in a row the listener's connections are expected to be brief. Then a thread that
 * accepts one holds back what it sends (send.c). Its close sends answer and FIN together, in one segment if they fit.
 * Each frame that is saved is one kick here, and one wake-up of the peer. Another connection's end begins the count
 * anew.
 *
 * Threads: any. The counter need not be exact: connections that end at the same time may be counted in any order.
 */
#include <arpa/inet.h>

#include <vma/log.h>

#include "stream_priv.h"

enum { UNUSED_COUNT_MAX = 8, SHORT_LIVED_COUNT_MAX = 16, SHORT_LIVED_NS = 20000000 };

struct stream_forking_tally {
	_Atomic uint32_t refs;
	_Atomic uint32_t unused_count;      /* handed over, none of which has moved a byte */
	_Atomic bool forbidden;             /* a hand-over was not possible here */
	_Atomic uint32_t short_lived_count; /* brief ones in a row, up to SHORT_LIVED_COUNT_MAX */
};

/* ---- the listener ---- */

void stream_forking_tally_init(struct stream_sock *listener)
{
	if (listener->tally != NULL) { /* it listens again, and connections of before may share it */
		atomic_store(&listener->tally->unused_count, 0);
		atomic_store(&listener->tally->short_lived_count, 0);
		return;
	}
	listener->tally = vma_alloc(sizeof(*listener->tally)); /* NULL: nothing is counted */
	if (listener->tally != NULL)
		atomic_store(&listener->tally->refs, 1);
}

void stream_tally_put(struct stream_sock *sock)
{
	struct stream_forking_tally *tally = sock->tally;

	sock->tally = NULL;
	if (tally != NULL && atomic_fetch_sub(&tally->refs, 1) == 1)
		vma_free(tally);
}

static bool tally_proves_forking_server(const struct stream_forking_tally *tally)
{
	return atomic_load_explicit(&tally->unused_count, memory_order_relaxed) >= UNUSED_COUNT_MAX ||
	       atomic_load_explicit(&tally->forbidden, memory_order_relaxed);
}

bool stream_listener_is_due_for_hand_over(const struct stream_sock *listener)
{
	return listener->tally != NULL && !listener->hands_over && tally_proves_forking_server(listener->tally);
}

void stream_leave_forking_listener_to_kernel(struct stream_sock *listener)
{
	char address[INET6_ADDRSTRLEN];
	union vma_name name;

	pthread_mutex_lock(&listener->file.lock);
	if (stream_sock_phase(listener) == STREAM_LISTENING && stream_listener_is_due_for_hand_over(listener)) {
		vma_name_fill_from_sockaddr_in(listener->file.family, &listener->local, &name);
		inet_ntop(name.any.sa_family,
		          name.any.sa_family == AF_INET6 ? (void *)&name.in6.sin6_addr : (void *)&name.in.sin_addr,
		          address, sizeof(address));
		if (atomic_load(&listener->tally->forbidden))
			vma_log_info("the listener on %s:%u is the kernel's from now on: its connections are used by "
			             "forked processes, and cannot be handed over",
			             address, ntohs(listener->local.sin_port));
		else
			vma_log_info("the listener on %s:%u is the kernel's from now on: the last %u connections were "
			             "all handed over to other processes unused",
			             address, ntohs(listener->local.sin_port), UNUSED_COUNT_MAX);
		stream_listen_leave_to_kernel(listener, VMA_SOCK_HANDS_OVER);
	}
	pthread_mutex_unlock(&listener->file.lock);
}

/* ---- its connections ---- */

void stream_forking_tally_add_accepted_conn(struct stream_sock *child, const struct stream_sock *listener)
{
	if (listener->tally == NULL || listener->hands_over)
		return;
	atomic_fetch_add(&listener->tally->refs, 1);
	child->tally = listener->tally;
	child->accepted_ns = vma_now_ns();
}

static void hand_over_listener_if_forking_server(struct vma_file *file, void *arg)
{
	(void)arg;
	if (file->kind == VMA_FILE_TCP && !file->os_only && stream_sock_phase(stream_sock(file)) == STREAM_LISTENING &&
	    stream_listener_is_due_for_hand_over(stream_sock(file)))
		stream_leave_forking_listener_to_kernel(stream_sock(file));
}

/* The internal thread's. */
static void task_hand_over_forking_listeners(struct vma_internal_task *task)
{
	(void)task;
	vma_file_each(hand_over_listener_if_forking_server, NULL);
}

/* A server may accept all that has come before it passes the first one on, and then nothing for long. */
void stream_tally_count_hand_over(struct stream_sock *sock, bool moved_bytes)
{
	static struct vma_internal_task task = {.run = task_hand_over_forking_listeners};

	if (sock->tally != NULL && moved_bytes)
		atomic_store(&sock->tally->unused_count, 0);
	else if (sock->tally != NULL && atomic_fetch_add(&sock->tally->unused_count, 1) + 1 == UNUSED_COUNT_MAX)
		vma_engine_post_task_to_internal_thread(&task);
	stream_tally_put(sock);
}

static bool conn_was_short_lived(const struct stream_sock *sock)
{
	return !atomic_load_explicit(&sock->fin_seen, memory_order_relaxed) &&
	       vma_now_ns() - sock->accepted_ns < SHORT_LIVED_NS;
}

void stream_tally_count_short_lived_close(struct stream_sock *sock)
{
	struct stream_forking_tally *tally = sock->tally;

	if (tally != NULL && !conn_was_short_lived(sock))
		atomic_store(&tally->short_lived_count, 0);
	else if (tally != NULL &&
	         atomic_load_explicit(&tally->short_lived_count, memory_order_relaxed) < SHORT_LIVED_COUNT_MAX)
		atomic_fetch_add(&tally->short_lived_count, 1);
	stream_tally_count_hand_over(sock, true);
}

bool stream_listener_conns_are_short_lived(const struct stream_sock *child)
{
	return child->tally != NULL &&
	       atomic_load_explicit(&child->tally->short_lived_count, memory_order_relaxed) >= SHORT_LIVED_COUNT_MAX;
}

void stream_tally_force_hand_over(struct stream_sock *sock)
{
	if (sock->tally != NULL)
		atomic_store(&sock->tally->forbidden, true);
}
