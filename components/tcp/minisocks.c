/*
 * minisocks.c - connections are left to the owner of the device when their process ends.
 *
 * When the peer speaks next, the process is gone. A kernel that never knew of the connection would answer the peer's
 * FIN and its segments on the way. So the owner is told how far each connection has come, before the flows end. No
 * thread holds the receive flag while the owner listens. If something changes meanwhile, that is lost, as the segment
 * that changed it might have been; the peer sends it again.
 */
#include <string.h>

#include "tcp_priv.h"
#include "lwip/port.h"

struct export_batch {
	struct vma_flow_minisock *minisocks;
	uint32_t count, most;
};

static void minisock_batch_add(struct export_batch *export_batch, const struct vma_flow_key *key,
                               enum vma_minisock_state state, uint32_t snd_nxt, uint32_t rcv_nxt)
{
	if (export_batch->count < export_batch->most)
		export_batch->minisocks[export_batch->count++] =
		        (struct vma_flow_minisock){.key = *key, .state = state, .snd_nxt = snd_nxt, .rcv_nxt = rcv_nxt};
}

static enum vma_minisock_state minisock_state_of(const struct vma_tcp_conn *conn)
{
	switch (conn->pcb->state) {
	case FIN_WAIT_2:
		return conn->closing ? VMA_MINISOCK_FIN_WAIT : VMA_MINISOCK_RESET;
	case TIME_WAIT:
		return VMA_MINISOCK_TIME_WAIT;
	default:
		return VMA_MINISOCK_RESET; /* something of ours has not arrived, and will not */
	}
}

static uint32_t tcp_count_connections(const struct vma_tcp *tcp)
{
	uint32_t count = 0;

	for (const struct vma_tcp_conn *conn = tcp->all; conn != NULL; conn = conn->next_all)
		count++;
	return count;
}

static void minisock_add_time_wait(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt, void *arg)
{
	minisock_batch_add(arg, key, VMA_MINISOCK_TIME_WAIT, snd_nxt, rcv_nxt);
}

static void collect_minisocks_of_all_conns(const struct vma_tcp *tcp, struct export_batch *export_batch)
{
	for (const struct vma_tcp_conn *conn = tcp->all; conn != NULL; conn = conn->next_all)
		if (!conn->is_over && conn->pcb != NULL && conn->attached && !tcp_pending_outlives_process(conn))
			minisock_batch_add(export_batch, &conn->key, minisock_state_of(conn), conn->pcb->snd_nxt,
			                   conn->pcb->rcv_nxt);
	timewait_for_each(tcp, minisock_add_time_wait, export_batch);
}

bool tcp_export_minisocks_to_nic_owner(struct vma_tcp *tcp, uint32_t most)
{
	struct export_batch export_batch = {.most = 0};
	bool exported = false;

	if (!vma_ring_acquire(tcp->ring))
		return false;
	export_batch.most = tcp_count_connections(tcp) + timewait_count(tcp);
	export_batch.most = export_batch.most < most ? export_batch.most : most;
	if (export_batch.most > 0)
		export_batch.minisocks = tcp->host.alloc_bytes(export_batch.most * sizeof(*export_batch.minisocks));
	if (export_batch.minisocks != NULL)
		collect_minisocks_of_all_conns(tcp, &export_batch);
	vma_ring_release(tcp->ring);
	if (export_batch.count > 0)
		exported = vma_nic_export_tcp_states_to_daemon(vma_ring_qp(tcp->ring), export_batch.minisocks,
		                                               export_batch.count) == 0;
	if (export_batch.minisocks != NULL)
		tcp->host.free(export_batch.minisocks);
	return exported;
}
