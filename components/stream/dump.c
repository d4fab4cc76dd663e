/*
 * dump.c - a TCP socket in lines of the log: vma_stats -S. Labels and order are those of the field. Times are in the
 * units of its stack: rto in half seconds, the round-trip time in microseconds. This stack counts no ticks of a running
 * timer (rtime), and keeps no list of packets beside the fifo. These stand as 0, which keeps the lines whole for
 * scripts.
 */
#include <inttypes.h>

#include "stream_priv.h"

#define RTO_UNIT_MSEC 500

static const char *dump_socket_state_name(const struct stream_sock *sock)
{
	const bool reads = !atomic_load(&sock->shut_rd), writes = !atomic_load(&sock->shut_wr);

	switch (stream_sock_phase(sock)) {
	case STREAM_FRESH:
		return sock->local.sin_port != 0 ? "TCP_SOCK_BOUND" : "TCP_SOCK_INITED";
	case STREAM_CONNECTING:
		return "TCP_SOCK_ASYNC_CONNECT";
	case STREAM_LISTENING:
		return "TCP_SOCK_ACCEPT_READY";
	case STREAM_FAILED:
		return "TCP_SOCK_INITED";
	case STREAM_CONNECTED:
		break;
	}
	return reads && writes ? "TCP_SOCK_CONNECTED_RDWR"
	       : reads         ? "TCP_SOCK_CONNECTED_RD"
	       : writes        ? "TCP_SOCK_CONNECTED_WR"
	                       : "TCP_SOCK_INITED";
}

static const char *dump_conn_state_name(const struct stream_sock *sock)
{
	switch (stream_sock_phase(sock)) {
	case STREAM_CONNECTING:
		return "TCP_CONN_CONNECTING";
	case STREAM_CONNECTED:
		return "TCP_CONN_CONNECTED";
	case STREAM_FAILED:
		return "TCP_CONN_FAILED";
	case STREAM_FRESH:
	case STREAM_LISTENING:
		break;
	}
	return "TCP_CONN_INIT";
}

static const char *pcb_state_text(int state)
{
	static const char *const names[] = {"CLOSED",     "ESTABLISHED", "SYN_SENT",  "SYN_RCVD",
	                                    "FIN_WAIT_1", "FIN_WAIT_2",  "TIME_WAIT", "CLOSED",
	                                    "CLOSE_WAIT", "LAST_ACK",    "LISTEN",    "CLOSING"};

	return (size_t)state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

static void dump_stream_segment(const char *label, const struct vma_tcp_dump_segment *segment, enum vma_log_level level)
{
	if (!segment->there)
		vma_log_write(level, "%s : NULL", label);
	else
		vma_log_write(level, "%s : seqno %u, len %u, seqno + len %u", label, segment->seq, segment->len,
		              segment->seq + segment->len);
}

static void dump_windows(const struct vma_tcp_dump *d, enum vma_log_level level)
{
	const unsigned rcv = d->rcv_scale, snd = d->snd_scale;

	if (d->wnd_scale)
		vma_log_write(level, "Window scaling : ENABLED, rcv_scale %u, snd_scale %u", rcv, snd);
	else
		vma_log_write(level, "Window scaling : DISABLED");
	vma_log_write(level,
	              "Receive window : rcv_wnd %u (%u), rcv_ann_wnd %u (%u), rcv_wnd_max %u (%u), "
	              "rcv_wnd_max_desired %" PRIu64 " (%" PRIu64 ")",
	              d->rcv_wnd, d->rcv_wnd >> rcv, d->rcv_ann_wnd, d->rcv_ann_wnd >> rcv, d->rcv_wnd_max,
	              d->rcv_wnd_max >> rcv, d->rcvbuf, d->rcvbuf >> rcv);
	vma_log_write(level, "Send window : snd_wnd %u (%u), snd_wnd_max %u (%u)", d->snd_wnd, d->snd_wnd >> snd,
	              d->snd_wnd_max, d->snd_wnd_max >> snd);
}

static void dump_conn(const struct vma_tcp_dump *d, enum vma_log_level level)
{
	vma_log_write(level, "PCB state : %s", pcb_state_text(d->state));
	vma_log_write(level, "PCB flags : 0x%x", d->flags);
	vma_log_write(level, "Segment size : mss %u, advtsd_mss %u", d->mss, d->advertised_mss);
	dump_windows(d, level);
	vma_log_write(level, "Congestion : cwnd %u", d->cwnd);
	vma_log_write(level, "Receiver data : rcv_nxt %u, rcv_ann_right_edge %u", d->rcv_nxt, d->rcv_edge);
	vma_log_write(level, "Sender data : snd_nxt %u, snd_wl1 %u, snd_wl2 %u", d->snd_nxt, d->snd_wl1, d->snd_wl2);
	vma_log_write(level, "Send buffer : snd_buf %" PRIu64 ", max_snd_buff %" PRIu64, d->snd_space, d->sndbuf);
	vma_log_write(level, "Retransmission : rtime 0, rto %u, nrtx %u",
	              (d->rto_msec + RTO_UNIT_MSEC - 1) / RTO_UNIT_MSEC, d->timeouts);
	vma_log_write(level, "RTT variables : rttest %u, rtseq %u", d->rtt_usec, d->lastack);
	dump_stream_segment("First unsent", &d->unsent, level);
	dump_stream_segment("First unacked", &d->unacked, level);
	dump_stream_segment("Last unacked", &d->unacked_last, level);
	vma_log_write(level, "Acknowledge : lastack %u", d->lastack);
}

void stream_dump(struct vma_file *file, int fd, enum vma_log_level level)
{
	struct stream_sock *sock = stream_sock(file);
	struct vma_inet_sock_description described;
	struct vma_tcp_dump dump = {0};
	struct vma_tcp_conn *conn;

	pthread_mutex_lock(&file->lock);
	described = stream_stats_description(sock);
	conn = stream_tcp_conn(sock);
	if (conn != NULL)
		vma_tcp_get_dump(conn, &dump);
	vma_inet_dump_begin(sock->engine, sock->stats, fd, &described, level);
	pthread_mutex_unlock(&file->lock);
	vma_log_write(level, "Socket state : %s", dump_socket_state_name(sock));
	vma_log_write(level, "Connection state : %s", dump_conn_state_name(sock));
	vma_log_write(level,
	              "Receive buffer : m_rcvbuff_current %" PRIu64 ", m_rcvbuff_max %" PRIu64
	              ", m_rcvbuff_non_tcp_recved 0",
	              dump.rcv_queued, conn != NULL ? dump.rcvbuf : described.rx_limit_bytes);
	vma_log_write(level, "Rx lists size : m_rx_pkt_ready_list 0, m_rx_ctl_packets_list 0, m_rx_ctl_reuse_list 0");
	if (conn != NULL)
		dump_conn(&dump, level);
	vma_inet_dump_end(level);
}
