/* callbacks.c - lwIP's messages to a connection: bytes in order, the end of them, its handshake, its end. */
#include <errno.h>
#include <string.h>

#include "../tcp_priv.h"
#include "../zcopy.h"
#include "port.h"

/* One hook of lwIP's is not needed: rx/input.c has validated the segment before. */
err_t tcp_hook_inpacket(struct tcp_pcb *pcb, struct tcp_hdr *hdr, u16_t optlen, u16_t opt1len, u8_t *opt2,
                        struct pbuf *p)
{
	(void)pcb;
	(void)hdr;
	(void)optlen;
	(void)opt1len;
	(void)opt2;
	(void)p;
	return ERR_OK;
}

/* Fills the span from where *p and *off are. */
static void pbuf_copy_to_span(struct pbuf **p, u16_t *off, const struct iovec *span)
{
	size_t done = 0;

	while (*p != NULL && done < span->iov_len) {
		size_t left = (size_t)(*p)->len - *off, take = span->iov_len - done;

		take = take < left ? take : left;
		memcpy((char *)span->iov_base + done, (const char *)(*p)->payload + *off, take);
		done += take;
		*off = (u16_t)(*off + take);
		if (*off == (*p)->len) {
			*p = (*p)->next;
			*off = 0;
		}
	}
}

static bool pbuf_copy_to_fifo(struct tcp_fifo *fifo, struct pbuf *p)
{
	struct iovec spans[8];
	size_t room = 0, total = p->tot_len;
	unsigned n = fifo_reserve(fifo, total, spans, 8);
	u16_t off = 0;

	for (unsigned i = 0; i < n; i++)
		room += spans[i].iov_len;
	if (room < total)
		return false;
	for (unsigned i = 0; i < n; i++)
		pbuf_copy_to_span(&p, &off, &spans[i]);
	fifo_commit(fifo, total);
	return true;
}

static bool fifo_take_in_order_pbufs(struct vma_tcp_conn *conn, struct pbuf *p)
{
	if ((atomic_load_explicit(&conn->rx_mode, memory_order_relaxed) & RX_ZCOPY) != 0)
		return zcopy_queue_received_pbufs(conn, p);
	if (!pbuf_copy_to_fifo(&conn->rx, p))
		return false;
	conn->counts.bytes_in += p->tot_len;
	TCP_COUNT(conn->tcp, bytes_in, p->tot_len);
	conn->data_received = true;
	return true;
}

/* All of it, or none: then lwIP keeps it, and the next step tries again. */
static err_t lwip_on_recv(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
	struct vma_tcp_conn *conn = arg;

	(void)pcb;
	(void)err;
	if (p == NULL) {
		if (!zcopy_defer_fin_while_data_waits(conn))
			tcp_conn_fin_received(conn);
		return ERR_OK;
	}
	if (!fifo_take_in_order_pbufs(conn, p)) {
		TCP_COUNT(conn->tcp, no_memory, 1);
		conn_enqueue_retry(conn);
		return ERR_MEM;
	}
	pbuf_free(p);
	return ERR_OK;
}

static err_t on_connected(void *arg, struct tcp_pcb *pcb, err_t err)
{
	(void)pcb;
	(void)err;
	tcp_conn_established(arg);
	return ERR_OK;
}

/* lwIP frees the pcb: for a RST, or since both sides are closed. The errors are the kernel's. */
static void lwip_on_error(void *arg, err_t err)
{
	struct vma_tcp_conn *conn = arg;
	int state = atomic_load_explicit(&conn->state, memory_order_relaxed);

	conn->fatal_error = 0;
	if (err == ERR_RST)
		conn->fatal_error = state == TCP_SYN_SENT ? ECONNREFUSED : state == TCP_CLOSE_WAIT ? EPIPE : ECONNRESET;
}

/* Where lwIP looks for whom to tell of a handshake that this side has not begun, or not alone. */
static struct tcp_pcb_listen accepting = {.accept = on_connected};

void tcp_pcb_attach(struct vma_tcp_conn *conn, struct tcp_pcb *pcb)
{
	uint64_t rcvbuf = atomic_load_explicit(&conn->rcvbuf, memory_order_relaxed);

	pcb->callback_arg = conn;
	pcb->recv = lwip_on_recv;
	pcb->errf = lwip_on_error;
	pcb->connected = on_connected;
	pcb->listener = &accepting;
	pcb->rcv_wnd_max = pcb->rcv_wnd = pcb->rcv_ann_wnd = rcvbuf < 65535 ? (uint32_t)rcvbuf : 65535;
	tcp_set_flags(pcb, TF_NODELAY); /* Nagle's rule is tx/output.c's */
}
