/* deferred.c - sockets that begin as the kernel's, since those before them lived for a question each. */
#include <errno.h>

#include "control.h"
#include "deferred.h"

static _Atomic uint32_t udp_short_lived_in_row; /* in a row */

bool udp_deferred_begin_after_short_lived_socks(struct udp_sock *sock)
{
	const struct vma_engine *engine = vma_engine_get_or_start();

	if (udp_offload_is_deferred(sock))
		return true;
	if (atomic_load_explicit(&udp_short_lived_in_row, memory_order_relaxed) < UDP_SHORT_LIVED_SOCKETS_MIN ||
	    engine == NULL || engine->latency || engine->conf.socketxtreme || sock->file.os_only ||
	    sock->local.sin_port != 0 || sock->flows != NULL || atomic_load(&sock->inherited))
		return false;
	sock->port_chosen = true;
	atomic_store(&sock->deferred, true);
	atomic_store(&sock->reason, VMA_SOCK_DEFERRED);
	if (sock->stats != NULL)
		vma_stats_set(&sock->stats->reason, VMA_SOCK_DEFERRED);
	return true;
}

bool udp_deferred_end_unless_in_kernel_call(struct udp_sock *sock, int fd)
{
	atomic_store(&sock->deferred, false);
	if (atomic_load(&sock->in_kernel) != 0) {
		atomic_store(&sock->deferred, true);
		return false;
	}
	atomic_store(&sock->inherited, false);
	atomic_store(&sock->os_attention, true); /* answers of before are in the shadow */
	udp_follow_shared_changes(sock, fd);
	/* An error of before is told by the next send, which the kernel is asked for. */
	if (atomic_load(&sock->connected) && !sock->errors_watched && vma_engine_get_or_start() != NULL) {
		sock->errors_watched = vma_engine_watch_errors(fd, &sock->file) == 0;
		udp_note_pending_os_error(sock);
	}
	return true;
}

static bool udp_deferred_offload_now(struct udp_sock *sock, int fd)
{
	bool grown;

	pthread_mutex_lock(&sock->file.lock);
	grown = !udp_offload_is_deferred(sock) || udp_deferred_end_unless_in_kernel_call(sock, fd);
	pthread_mutex_unlock(&sock->file.lock);
	return grown;
}

/* ---- sends ---- */

static bool deferred_begin_locking_file(struct udp_sock *sock)
{
	bool deferred;

	if (udp_offload_is_deferred(sock))
		return true;
	if (atomic_load_explicit(&udp_short_lived_in_row, memory_order_relaxed) < UDP_SHORT_LIVED_SOCKETS_MIN)
		return false;
	pthread_mutex_lock(&sock->file.lock);
	deferred = udp_deferred_begin_after_short_lived_socks(sock);
	pthread_mutex_unlock(&sock->file.lock);
	return deferred;
}

/* Who cannot grow up yet tries it again with the next send. */
bool udp_deferred_count_send_and_may_offload(struct udp_sock *sock, int fd)
{
	const uint8_t left = atomic_load_explicit(&sock->sends_remaining, memory_order_relaxed);
	const bool deferred = deferred_begin_locking_file(sock);

	if (left > 1 || (deferred && !udp_deferred_offload_now(sock, fd))) {
		if (left > 1)
			atomic_store_explicit(&sock->sends_remaining, left - 1, memory_order_relaxed);
		return deferred;
	}
	atomic_store_explicit(&sock->sends_remaining, 0, memory_order_relaxed);
	if (sock->port_chosen)
		atomic_store_explicit(&udp_short_lived_in_row, 0, memory_order_relaxed);
	return false;
}

/* ---- receives ---- */

bool udp_deferred_begin_recv_or_offload(struct udp_sock *sock, int fd)
{
	if (atomic_load_explicit(&sock->receives, memory_order_relaxed) >= UDP_FEW_RECEIVES &&
	    udp_deferred_offload_now(sock, fd))
		return false;
	atomic_fetch_add(&sock->in_kernel, 1);
	if (atomic_load(&sock->deferred)) {
		vma_file_get(&sock->file);
		return true;
	}
	atomic_fetch_sub(&sock->in_kernel, 1);
	return false;
}

void udp_deferred_end_kernel_recv(struct udp_sock *sock)
{
	const uint8_t n = atomic_load_explicit(&sock->receives, memory_order_relaxed);

	atomic_store_explicit(&sock->receives, n < UDP_FEW_RECEIVES ? n + 1 : n, memory_order_relaxed);
	atomic_fetch_sub(&sock->in_kernel, 1);
	vma_file_put(&sock->file);
}

/* ---- the end ---- */

void udp_deferred_count_socket_at_close(const struct udp_sock *sock)
{
	const uint8_t left = atomic_load_explicit(&sock->sends_remaining, memory_order_relaxed);
	const uint32_t n = atomic_load_explicit(&udp_short_lived_in_row, memory_order_relaxed);

	if (sock->port_chosen && left != 0 && left != UDP_FEW_SENDS && n < UDP_SHORT_LIVED_SOCKETS_MIN)
		atomic_store_explicit(&udp_short_lived_in_row, n + 1, memory_order_relaxed);
}
