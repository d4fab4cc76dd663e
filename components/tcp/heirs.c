/*
 * heirs.c - minisocks: what connections leave to the owner of the device when their process ends.
 *
 * The process that the peer speaks to next is gone. A kernel that never knew of the connection would answer the peer's
 * FIN, and what it has on its way. So the owner is told how far each connection has come, before the flows end. No
 * thread holds the receive flag while the owner listens. If something changes meanwhile, that is lost, as the segment
 * that changed it might have been; the peer sends it again.
 */
#include <string.h>

#include "tcp_priv.h"
#include "lwip_port.h"

struct will {
	struct vma_flow_heir *heirs;
	uint32_t count, most;
};

static void write_down(struct will *will, const struct vma_flow_key *key, enum vma_heir_state state, uint32_t snd_nxt,
                       uint32_t rcv_nxt)
{
	if (will->count < will->most)
		will->heirs[will->count++] =
		        (struct vma_flow_heir){.key = *key, .state = state, .snd_nxt = snd_nxt, .rcv_nxt = rcv_nxt};
}

static enum vma_heir_state heir_state_of(const struct vma_tcp_conn *conn)
{
	switch (conn->pcb->state) {
	case FIN_WAIT_2:
		return conn->closing ? VMA_HEIR_FIN_WAIT : VMA_HEIR_RESET;
	case TIME_WAIT:
		return VMA_HEIR_TIME_WAIT;
	default:
		return VMA_HEIR_RESET; /* something of ours has not arrived, and will not */
	}
}

static uint32_t tcp_connections(const struct vma_tcp *tcp)
{
	uint32_t count = 0;

	for (const struct vma_tcp_conn *conn = tcp->all; conn != NULL; conn = conn->next_all)
		count++;
	return count;
}

static void leave_time_wait(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt, void *arg)
{
	write_down(arg, key, VMA_HEIR_TIME_WAIT, snd_nxt, rcv_nxt);
}

static void write_heirs(const struct vma_tcp *tcp, struct will *will)
{
	for (const struct vma_tcp_conn *conn = tcp->all; conn != NULL; conn = conn->next_all)
		if (!conn->is_over && conn->pcb != NULL && conn->attached)
			write_down(will, &conn->key, heir_state_of(conn), conn->pcb->snd_nxt, conn->pcb->rcv_nxt);
	timewait_each(tcp, leave_time_wait, will);
}

void tcp_heirs_bequeath(struct vma_tcp *tcp, uint32_t most)
{
	struct will will = {.most = 0};

	if (!vma_ring_acquire(tcp->ring))
		return;
	will.most = tcp_connections(tcp) + timewait_count(tcp);
	will.most = will.most < most ? will.most : most;
	if (will.most > 0)
		will.heirs = tcp->host.alloc_bytes(will.most * sizeof(*will.heirs));
	if (will.heirs != NULL)
		write_heirs(tcp, &will);
	vma_ring_release(tcp->ring);
	if (will.count > 0)
		vma_nic_flows_bequeath(vma_ring_qp(tcp->ring), will.heirs, will.count);
	if (will.heirs != NULL)
		tcp->host.free(will.heirs);
}
