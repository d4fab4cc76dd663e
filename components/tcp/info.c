/* info.c - TCP_INFO: the state and counters of a connection, in the kernel's units. */
#include <string.h>

#include "tcp_priv.h"
#include "lwip/port.h"

static uint32_t ns_to_usec(uint64_t ns)
{
	return (uint32_t)(ns / 1000);
}

static uint32_t segments_of_bytes(uint32_t bytes, uint32_t mss)
{
	return mss != 0 ? (bytes + mss - 1) / mss : 0;
}

static uint32_t msec_since(const struct vma_tcp *tcp, uint64_t then_ns)
{
	return then_ns != 0 ? (uint32_t)((tcp->now_ns - then_ns) / TCP_NS_PER_MS) : 0;
}

/* What the peer takes is not known yet: RFC 9293 3.7.1's default, or what this side wants, less the time stamps. */
static uint32_t initial_mss_for_tcp_info(const struct vma_tcp_conn *conn)
{
	uint32_t wanted = (uint32_t)tcp_option(conn, VMA_TCP_OPT_MAXSEG);

	return (wanted != 0 ? wanted : 536) - (conn->tcp->attr.no_timestamps ? 0 : LWIP_TCP_OPT_LEN_TS_OUT);
}

static void fill_tcp_info_options(const struct tcp_pcb *pcb, struct tcp_info *info)
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
static uint8_t recovery_to_tcpi_ca_state(const struct tcp_recovery *recovery)
{
	static const uint8_t names[] = {[TCP_RECOVERY_OPEN] = TCP_CA_Open,
	                                [TCP_RECOVERY_DISORDER] = TCP_CA_Disorder,
	                                [TCP_RECOVERY_FAST] = TCP_CA_Recovery,
	                                [TCP_RECOVERY_LOSS] = TCP_CA_Loss};

	return names[recovery->state];
}

static void fill_tcp_info_tx(const struct vma_tcp_conn *conn, struct tcp_info *info)
{
	const struct tcp_recovery *recovery = &conn->recovery;
	uint32_t mss = info->tcpi_snd_mss;

	info->tcpi_ca_state = recovery_to_tcpi_ca_state(recovery);
	info->tcpi_retransmits = (uint8_t)(recovery->timeouts < 255 ? recovery->timeouts : 255);
	info->tcpi_probes = (uint8_t)(recovery->probes < 255 ? recovery->probes : 255);
	info->tcpi_backoff = (uint8_t)(recovery->backoff < 255 ? recovery->backoff : 255);
	info->tcpi_rto = ns_to_usec(rtt_rto_ns(&conn->rtt, recovery->backoff));
	info->tcpi_unacked = segments_of_bytes(conn->pcb->snd_nxt - conn->pcb->lastack, mss);
	info->tcpi_sacked = recovery->sacked_segments;
	info->tcpi_lost = segments_of_bytes(recovery->lost_bytes, mss);
	info->tcpi_retrans = segments_of_bytes(recovery->retransmitted_bytes, mss);
	info->tcpi_total_retrans = (uint32_t)recovery->total_retransmits;
	info->tcpi_snd_cwnd = mss != 0 ? conn->cc.cwnd / mss : 0;
	info->tcpi_snd_ssthresh = conn->cc.ssthresh == UINT32_MAX || mss == 0 ? INT32_MAX : conn->cc.ssthresh / mss;
	info->tcpi_rtt = ns_to_usec(conn->rtt.srtt_ns);
	info->tcpi_rttvar = ns_to_usec(conn->rtt.rttvar_ns);
	info->tcpi_reordering = recovery->dup_threshold;
}

static void fill_tcp_info_rx(const struct vma_tcp_conn *conn, struct tcp_info *info)
{
	info->tcpi_ato = ns_to_usec(conn->window.ato_ns);
	info->tcpi_rcv_mss = conn->window.rcv_mss;
	info->tcpi_rcv_rtt = ns_to_usec(conn->window.rcv_rtt_ns);
	info->tcpi_rcv_space = conn->window.rcv_space;
	info->tcpi_rcv_ssthresh = (uint32_t)atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed);
	info->tcpi_advmss = tcp_mss_advertised(conn);
	if (conn->pcb != NULL && conn->pcb->flags & TF_TIMESTAMP)
		info->tcpi_advmss -= LWIP_TCP_OPT_LEN_TS_OUT; /* what is left of it for data, as the kernel says */
	info->tcpi_pmtu = conn->path.mtu;
}

/* ---- what the C library's header does not know ---- */

static uint32_t clip_u32(uint64_t number)
{
	return number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
}

/* Of this side's stream. Without a pcb the connection is over, and its end has been acknowledged unless it failed. */
static bool fin_is_acked(const struct vma_tcp_conn *conn)
{
	if (!conn->fin_queued)
		return false;
	if (conn->pcb == NULL)
		return atomic_load_explicit(&conn->error, memory_order_relaxed) == 0;
	return tcp_tx_offset(conn, conn->pcb->lastack) > conn->lwip_end;
}

/* Segments of data that have been sent once, less those that are on their way still; and what came twice, so far as
 * told. */
static uint32_t delivered_segments(const struct vma_tcp_conn *conn, const struct vma_tcp_info *info)
{
	const struct tcp_info *kernel = &info->kernel;
	uint64_t sent = info->data_segs_out;

	sent -= kernel->tcpi_total_retrans < sent ? kernel->tcpi_total_retrans : sent;
	sent += fin_is_acked(conn);
	if (kernel->tcpi_unacked > kernel->tcpi_sacked)
		sent -= kernel->tcpi_unacked - kernel->tcpi_sacked < sent ? kernel->tcpi_unacked - kernel->tcpi_sacked
		                                                          : sent;
	return clip_u32(sent + conn->connected + info->dsack_dups);
}

static void fill_tcp_info_rates(const struct vma_tcp_conn *conn, struct vma_tcp_info *info)
{
	const struct tcp_cc *cc = &conn->cc;

	info->pacing_rate = cc->pacing_rate != 0 ? cc->pacing_rate : UINT64_MAX;
	info->max_pacing_rate = UINT64_MAX;
	if (cc_is_model_based(cc))
		info->delivery_rate = cc->bbr.rate[cc->bbr.rate_round % BBR_RATE_ROUNDS]; /* the last round's best */
}

/* Of a connection that the peer began the kernel counts the peer's SYN, but not the answer, which is the listener's. */
static void fill_tcp_info_counts(const struct vma_tcp_conn *conn, struct vma_tcp_info *info)
{
	const struct vma_tcp_counts *counts = &conn->counts;
	uint64_t snd_max = atomic_load_explicit(&conn->snd_max, memory_order_relaxed);
	uint64_t acked = atomic_load_explicit(&conn->acked, memory_order_relaxed);
	uint8_t mode = atomic_load_explicit(&conn->rx_mode, memory_order_relaxed);
	uint32_t syns = conn->passive ? 1 : 0;

	info->bytes_acked = acked + fin_is_acked(conn) + (conn->connected && !conn->passive);
	info->bytes_received = counts->bytes_in + ((mode & RX_FIN) != 0);
	info->segs_out = clip_u32(counts->segments_out > syns ? counts->segments_out - syns : 0);
	info->segs_in = clip_u32(counts->segments_in + syns);
	info->data_segs_in = conn->data_segments_in;
	info->data_segs_out = conn->data_segments_out;
	info->bytes_sent = counts->bytes_out;
	info->bytes_retrans = counts->bytes_out > snd_max ? counts->bytes_out - snd_max : 0;
	info->dsack_dups = clip_u32(conn->recovery.dsacks);
	info->reord_seen = conn->recovery.reordering_seen;
	info->rcv_ooopack = clip_u32(counts->out_of_order_in);
	info->total_rto = (uint16_t)(counts->timeouts < UINT16_MAX ? counts->timeouts : UINT16_MAX);
}

static void fill_tcp_info_without_pcb(const struct vma_tcp_conn *conn, struct vma_tcp_info *info)
{
	fill_tcp_info_counts(conn, info);
	fill_tcp_info_rates(conn, info);
	info->notsent_bytes = clip_u32(vma_tcp_tx_unsent(conn));
	info->min_rtt_us = conn->rtt.min_ns != 0 ? ns_to_usec(conn->rtt.min_ns) : UINT32_MAX;
	info->delivered = delivered_segments(conn, info);
	if (conn->pcb != NULL)
		info->snd_wnd = conn->pcb->snd_wnd;
	info->rcv_wnd = conn->window.rcv_edge - conn->window.rcv_wup;
}

void vma_tcp_info(struct vma_tcp_conn *conn, struct vma_tcp_info *info)
{
	struct tcp_info *kernel = &info->kernel;
	bool acquired;
	struct vma_tcp *tcp = tcp_conn_acquire_ring_of_stack(conn, &acquired);

	memset(info, 0, sizeof(*info));
	tcp_conn_apply_path(conn); /* told, but perhaps while somebody else had the flag */
	tcp_update_now(tcp);
	kernel->tcpi_state = (uint8_t)atomic_load_explicit(&conn->state, memory_order_relaxed);
	kernel->tcpi_snd_mss = kernel->tcpi_state == TCP_SYN_SENT ? initial_mss_for_tcp_info(conn)
	                                                          : conn->mss; /* also when it is over */
	fill_tcp_info_rx(conn, kernel);
	kernel->tcpi_last_data_sent = msec_since(tcp, conn->window.last_data_out_ns);
	kernel->tcpi_last_data_recv = msec_since(tcp, conn->window.last_data_in_ns);
	kernel->tcpi_last_ack_recv = msec_since(tcp, conn->last_in_ns);
	if (conn->pcb != NULL) {
		fill_tcp_info_options(conn->pcb, kernel);
		fill_tcp_info_tx(conn, kernel);
	}
	fill_tcp_info_without_pcb(conn, info);
	if (acquired)
		vma_ring_release(tcp->ring);
}

/* ---- the statistics ---- */

/* Behind a hole: rare, and then a handful of segments. */
static uint64_t __attribute__((cold, noinline)) bytes_out_of_order(const struct tcp_pcb *pcb)
{
	uint64_t bytes = 0;

	for (const struct tcp_seg *seg = pcb->ooseq; seg != NULL; seg = seg->next)
		bytes += seg->len;
	return bytes;
}

/* What changes with the state only. */
static void __attribute__((cold, noinline))
fill_tcp_state_stats(const struct vma_tcp_conn *conn, int state, struct vma_stats_socket *stats)
{
	const struct tcp_pcb *pcb = conn->pcb;

	vma_stats_set(&stats->tcp_state, (uint64_t)state);
	vma_stats_set(&stats->tcp_cc, (uint64_t)tcp_option(conn, VMA_TCP_OPT_CONGESTION) + 1);
	if (pcb != NULL && state != TCP_SYN_SENT && pcb->flags & TF_WND_SCALE) {
		vma_stats_set(&stats->tcp_snd_wscale, (pcb->snd_scale & 15u) + 1);
		vma_stats_set(&stats->tcp_rcv_wscale, (pcb->rcv_scale & 15u) + 1);
	}
}

static void fill_stats_of_pcb(const struct vma_tcp_conn *conn, const struct tcp_pcb *pcb,
                              struct vma_stats_socket *stats)
{
	vma_stats_set(&stats->tcp_rtt_usec, ns_to_usec(conn->rtt.srtt_ns));
	vma_stats_set(&stats->tcp_rttvar_usec, ns_to_usec(conn->rtt.rttvar_ns));
	vma_stats_set(&stats->tcp_mss, conn->mss);
	vma_stats_set(&stats->tcp_cwnd_bytes, conn->cc.cwnd);
	vma_stats_set(&stats->tcp_ssthresh_bytes, conn->cc.ssthresh);
	vma_stats_set(&stats->tcp_send_window, pcb->snd_wnd);
	vma_stats_set(&stats->tcp_unacked_bytes, pcb->snd_nxt - pcb->lastack);
	vma_stats_set(&stats->tcp_backoff, conn->recovery.backoff);
	vma_stats_set(&stats->tcp_retransmitting_bytes, conn->recovery.retransmitted_bytes);
	if (__builtin_expect(pcb->ooseq != NULL || vma_stats_read_counter(&stats->tcp_out_of_order_bytes) != 0, 0))
		vma_stats_set(&stats->tcp_out_of_order_bytes, bytes_out_of_order(pcb));
}

/* Segments are counted as TCP_INFO says them: see fill_tcp_info_counts. */
void tcp_conn_fill_stats(struct vma_tcp_conn *conn, struct vma_stats_socket *stats)
{
	const struct vma_tcp_counts *counts = &conn->counts;
	const uint64_t syns = conn->passive ? 1 : 0, queued = fifo_queued_bytes(&conn->rx);
	const int state = atomic_load_explicit(&conn->state, memory_order_relaxed);

	vma_stats_set(&stats->tcp_segments_in, counts->segments_in + syns);
	vma_stats_set(&stats->tcp_segments_out, counts->segments_out > syns ? counts->segments_out - syns : 0);
	vma_stats_set(&stats->tcp_bytes_in, counts->bytes_in);
	vma_stats_set(&stats->tcp_bytes_out, counts->bytes_out);
	vma_stats_set(&stats->tcp_bytes_acked, atomic_load_explicit(&conn->acked, memory_order_relaxed));
	vma_stats_set(&stats->tcp_retransmits, conn->recovery.total_retransmits);
	vma_stats_set(&stats->tcp_timeouts, counts->timeouts);
	vma_stats_set(&stats->tcp_out_of_order, counts->out_of_order_in);
	vma_stats_set(&stats->tcp_zcopy_bytes, counts->zcopy_bytes);
	vma_stats_set(&stats->tcp_zcopy_copied_bytes, counts->zcopy_copied);
	if (__builtin_expect(vma_stats_read_counter(&stats->tcp_state) != (uint64_t)state ||
	                             vma_stats_read_counter(&stats->tcp_cc) == 0,
	                     0))
		fill_tcp_state_stats(conn, state, stats);
	if (queued > vma_stats_read_counter(&stats->rx_queue_max_bytes))
		vma_stats_set(&stats->rx_queue_max_bytes, queued);
	if (conn->pcb != NULL)
		fill_stats_of_pcb(conn, conn->pcb, stats);
}

/* Release: the block was zeroed before. Its values come with the connection's next step; the state is known now. */
void vma_tcp_set_stats(struct vma_tcp_conn *conn, struct vma_stats_socket *stats)
{
	if (stats != NULL && vma_stats_read_counter(&stats->tcp_state) == 0)
		vma_stats_set(&stats->tcp_state, (uint64_t)vma_tcp_state(conn));
	atomic_store_explicit(&conn->stats, stats, memory_order_release);
}

size_t vma_tcp_cc_info(struct vma_tcp_conn *conn, union tcp_cc_info *info)
{
	bool acquired;
	struct vma_tcp *tcp = tcp_conn_acquire_ring_of_stack(conn, &acquired);
	size_t size = conn->cc.ops->info != NULL ? conn->cc.ops->info(&conn->cc, info) : 0;

	if (acquired)
		vma_ring_release(tcp->ring);
	return size;
}
