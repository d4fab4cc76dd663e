/* info.c - TCP_INFO: what can be said of a connection, in the kernel's units. */
#include <string.h>

#include "tcp_priv.h"
#include "lwip_port.h"

static uint32_t usec(uint64_t ns)
{
	return (uint32_t)(ns / 1000);
}

static uint32_t segments_of(uint32_t bytes, uint32_t mss)
{
	return mss != 0 ? (bytes + mss - 1) / mss : 0;
}

static uint32_t msec_since(const struct vma_tcp *tcp, uint64_t then_ns)
{
	return then_ns != 0 ? (uint32_t)((tcp->now_ns - then_ns) / TCP_NS_PER_MS) : 0;
}

static void fill_options(const struct tcp_pcb *pcb, struct tcp_info *info)
{
	if (pcb->flags & TF_TIMESTAMP)
		info->tcpi_options |= TCPI_OPT_TIMESTAMPS;
	if (pcb->flags & TF_SACK)
		info->tcpi_options |= TCPI_OPT_SACK;
	if (pcb->flags & TF_WND_SCALE) {
		info->tcpi_options |= TCPI_OPT_WSCALE;
		info->tcpi_snd_wscale = pcb->snd_scale & 15;
		info->tcpi_rcv_wscale = pcb->rcv_scale & 15;
	}
}

/* The kernel's names for where recovery is. */
static uint8_t ca_state(const struct tcp_recovery *recovery)
{
	static const uint8_t names[] = {[TCP_RECOVERY_OPEN] = TCP_CA_Open,
	                                [TCP_RECOVERY_DISORDER] = TCP_CA_Disorder,
	                                [TCP_RECOVERY_FAST] = TCP_CA_Recovery,
	                                [TCP_RECOVERY_LOSS] = TCP_CA_Loss};

	return names[recovery->state];
}

static void fill_sending(const struct vma_tcp_conn *conn, struct tcp_info *info)
{
	const struct tcp_recovery *recovery = &conn->recovery;
	uint32_t mss = info->tcpi_snd_mss;

	info->tcpi_ca_state = ca_state(recovery);
	info->tcpi_retransmits = (uint8_t)(recovery->timeouts < 255 ? recovery->timeouts : 255);
	info->tcpi_probes = (uint8_t)(recovery->probes < 255 ? recovery->probes : 255);
	info->tcpi_backoff = (uint8_t)(recovery->backoff < 255 ? recovery->backoff : 255);
	info->tcpi_rto = usec(rtt_rto_ns(&conn->rtt, recovery->backoff));
	info->tcpi_unacked = segments_of(conn->pcb->snd_nxt - conn->pcb->lastack, mss);
	info->tcpi_sacked = recovery->sacked_segments;
	info->tcpi_lost = segments_of(recovery->lost_bytes, mss);
	info->tcpi_retrans = segments_of(recovery->retransmitted_bytes, mss);
	info->tcpi_total_retrans = (uint32_t)recovery->total_retransmits;
	info->tcpi_snd_cwnd = mss != 0 ? conn->cc.cwnd / mss : 0;
	info->tcpi_snd_ssthresh = conn->cc.ssthresh == UINT32_MAX || mss == 0 ? INT32_MAX : conn->cc.ssthresh / mss;
	info->tcpi_rtt = usec(conn->rtt.srtt_ns);
	info->tcpi_rttvar = usec(conn->rtt.rttvar_ns);
	info->tcpi_reordering = recovery->dup_threshold;
}

static void fill_receiving(const struct vma_tcp_conn *conn, struct tcp_info *info)
{
	info->tcpi_ato = usec(conn->ato_ns);
	info->tcpi_rcv_mss = conn->rcv_mss;
	info->tcpi_rcv_rtt = usec(conn->rcv_rtt_ns);
	info->tcpi_rcv_space = conn->rcv_space;
	info->tcpi_rcv_ssthresh = (uint32_t)atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed);
	info->tcpi_advmss = tcp_mss_announced(conn);
	info->tcpi_pmtu = conn->path.mtu;
}

void vma_tcp_info(struct vma_tcp_conn *conn, struct tcp_info *info)
{
	struct vma_tcp *tcp = conn->tcp;
	bool acquired = vma_ring_acquire(tcp->ring);

	memset(info, 0, sizeof(*info));
	tcp->now_ns = tcp->host.now_ns(tcp->host.arg);
	info->tcpi_state = (uint8_t)atomic_load_explicit(&conn->state, memory_order_relaxed);
	info->tcpi_snd_mss = conn->mss; /* also when it is over */
	fill_receiving(conn, info);
	info->tcpi_last_data_sent = msec_since(tcp, conn->last_data_out_ns);
	info->tcpi_last_data_recv = msec_since(tcp, conn->last_data_in_ns);
	info->tcpi_last_ack_recv = msec_since(tcp, conn->last_in_ns);
	if (conn->pcb != NULL) {
		fill_options(conn->pcb, info);
		fill_sending(conn, info);
	}
	if (acquired)
		vma_ring_release(tcp->ring);
}
