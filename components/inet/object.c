/* object.c - the object behind a descriptor: whether it becomes one of ours, and its entry in the statistics. */
#include <netinet/in.h>
#include <string.h>

#include <vma/inet.h>

bool vma_inet_socket_type_is(int domain, int type, int protocol, int wanted_type, int wanted_protocol)
{
	return (domain == AF_INET || domain == AF_INET6) && (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == wanted_type &&
	       (protocol == 0 || protocol == wanted_protocol);
}

enum vma_sock_reason vma_inet_initial_offload_reason(const struct vma_engine *engine)
{
	if (engine == NULL)
		return VMA_SOCK_ENGINE;
	if (!vma_thread_offloads(engine->conf.offloaded_sockets))
		return VMA_SOCK_DISABLED;
	return atomic_load(&vma_sockets_stay) ? VMA_SOCK_IO_URING : VMA_SOCK_NEW;
}

/* ---- statistics ---- */

/* The name in two numbers, as readers take it; a process in another network namespace has no use for an index. */
static void socket_stats_set_interface(struct vma_stats_socket *stats, const struct vma_ring_ctx *ring_ctx)
{
	uint64_t words[2] = {0, 0};

	if (ring_ctx != NULL)
		memcpy(words, vma_nic_info(ring_ctx->device->nic)->name,
		       strnlen(vma_nic_info(ring_ctx->device->nic)->name, sizeof(words)));
	vma_stats_set(&stats->interface_0, words[0]);
	vma_stats_set(&stats->interface_1, words[1]);
	vma_stats_set(&stats->ring, ring_ctx != NULL ? (uint64_t)ring_ctx->id + 1 : 0);
}

void vma_inet_stats_describe(struct vma_stats_socket *stats, const struct vma_inet_sock_description *described)
{
	const enum vma_sock_reason reason = described->reason;

	if (stats == NULL)
		return;
	vma_stats_set(&stats->offloaded, reason == VMA_SOCK_OFFLOADED);
	vma_stats_set(&stats->reason, reason);
	vma_stats_set(&stats->rule_line, atomic_load_explicit(&described->file->rule_line, memory_order_relaxed));
	vma_stats_set(&stats->protocol, (uint64_t)described->protocol);
	vma_stats_set(&stats->nonblocking, described->nonblocking);
	vma_stats_set(&stats->local_addr, ntohl(described->local->sin_addr.s_addr));
	vma_stats_set(&stats->local_port, ntohs(described->local->sin_port));
	vma_stats_set(&stats->peer_addr, ntohl(described->peer->sin_addr.s_addr));
	vma_stats_set(&stats->peer_port, ntohs(described->peer->sin_port));
	vma_stats_set(&stats->rx_limit_bytes, described->rx_limit_bytes);
	socket_stats_set_interface(stats, described->ring_ctx);
}

static bool engine_is_current_engine(const struct vma_engine *engine)
{
	return engine == atomic_load_explicit(&vma_engine_now, memory_order_acquire);
}

void vma_inet_stats_count_closed_socket(struct vma_engine *engine, _Atomic bool *counts)
{
	if (engine != NULL && engine_is_current_engine(engine))
		vma_engine_uncount_socket_stats_at_close(engine, counts);
}

void vma_inet_stats_put(struct vma_engine *engine, struct vma_stats_socket *stats, _Atomic bool *counts)
{
	if (stats != NULL && engine_is_current_engine(engine))
		vma_engine_free_socket_stats(engine, stats, counts);
}
