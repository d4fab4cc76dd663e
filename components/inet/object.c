/* object.c - the object behind a descriptor: whether it is one of ours to be, and what the statistics say of it. */
#include <netinet/in.h>

#include <vma/inet.h>

bool vma_inet_is(int domain, int type, int protocol, int wanted_type, int wanted_protocol)
{
	return (domain == AF_INET || domain == AF_INET6) && (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == wanted_type &&
	       (protocol == 0 || protocol == wanted_protocol);
}

enum vma_sock_reason vma_inet_first_reason(const struct vma_engine *engine)
{
	if (engine == NULL)
		return VMA_SOCK_ENGINE;
	if (!engine->conf.offloaded_sockets)
		return VMA_SOCK_DISABLED;
	return atomic_load(&vma_sockets_stay) ? VMA_SOCK_IO_URING : VMA_SOCK_NEW;
}

/* ---- statistics ---- */

void vma_inet_stats_describe(struct vma_stats_socket *stats, enum vma_sock_reason reason,
                             const struct sockaddr_in *local, const struct sockaddr_in *peer, uint64_t rx_limit_bytes)
{
	if (stats == NULL)
		return;
	vma_stats_set(&stats->offloaded, reason == VMA_SOCK_OFFLOADED);
	vma_stats_set(&stats->reason, reason);
	vma_stats_set(&stats->local_addr, ntohl(local->sin_addr.s_addr));
	vma_stats_set(&stats->local_port, ntohs(local->sin_port));
	vma_stats_set(&stats->peer_addr, ntohl(peer->sin_addr.s_addr));
	vma_stats_set(&stats->peer_port, ntohs(peer->sin_port));
	vma_stats_set(&stats->rx_limit_bytes, rx_limit_bytes);
}

void vma_inet_stats_put(struct vma_engine *engine, struct vma_stats_socket *stats)
{
	if (stats != NULL && engine == atomic_load_explicit(&vma_engine_now, memory_order_acquire))
		vma_engine_stats_put(engine, stats);
}
