/* port.c - lwIP's surroundings: whose turn it is, the clock, the one interface, pbufs of received frames. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lwip/sys.h>

#include "objects.h"
#include "port.h"
#include "../siphash.h"
#include "../tcp_priv.h"
#include "../budget.h"

__thread struct lwip_at lwip_at __attribute__((tls_model("initial-exec"), visibility("hidden")));
LWIP_TLS struct netif port_netif;

#ifdef VMA_DEBUG
void port_assertion_failed(const char *message, const char *file, int line)
{
	fprintf(stderr, "lwIP: %s (%s:%d)\n", message, file, line);
	abort();
}
#endif

/* ---- whose turn it is ---- */

static void lwip_enter_any(struct vma_tcp *tcp, struct vma_tcp_conn *conn)
{
	LWIP_ASSERT("lwip_enter does not nest", !lwip_at.tcp);
	lwip_at = (struct lwip_at){.tcp = tcp, .conn = conn};
	ip_data.current_netif = ip_data.current_input_netif = &port_netif;
}

void lwip_enter(struct vma_tcp *tcp, struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn ? conn->pcb : NULL;

	lwip_enter_any(tcp, conn);
	if (!pcb)
		return;
	pcb->next = NULL;
	if (pcb->state == TIME_WAIT)
		tcp_tw_pcbs = pcb;
	else if (pcb->state != CLOSED)
		tcp_active_pcbs = pcb;
	else if (pcb->local_port)
		tcp_bound_pcbs = pcb;
}

void lwip_enter_listener(struct vma_tcp *tcp, struct tcp_pcb_listen *listener)
{
	lwip_enter_any(tcp, NULL);
	tcp_listen_pcbs.listen_pcbs = listener;
	if (listener)
		listener->next = NULL;
}

void lwip_leave(void)
{
	struct tcp_pcb *pcb = lwip_at.conn ? lwip_at.conn->pcb : NULL;

	LWIP_ASSERT("lwip_leave without lwip_enter", lwip_at.tcp);
	LWIP_ASSERT("a pcb in a list is the connection's", (!tcp_active_pcbs || tcp_active_pcbs == pcb) &&
	                                                           (!tcp_tw_pcbs || tcp_tw_pcbs == pcb) &&
	                                                           (!tcp_bound_pcbs || tcp_bound_pcbs == pcb));
	LWIP_ASSERT("one pcb at a time", !pcb || !pcb->next);
	(void)pcb;
	tcp_active_pcbs = tcp_tw_pcbs = tcp_bound_pcbs = NULL;
	tcp_listen_pcbs.listen_pcbs = NULL;
	lwip_at = (struct lwip_at){0};
}

void lwip_tcp_input_segment(const void *src, const void *dst, struct pbuf *p)
{
	memcpy(&ip_data.current_iphdr_src, src, sizeof(ip_data.current_iphdr_src));
	memcpy(&ip_data.current_iphdr_dest, dst, sizeof(ip_data.current_iphdr_dest));
	tcp_input(p, &port_netif);
}

/* ---- the clock ---- */

uint32_t port_clock_offset(const uint8_t secret[16])
{
	return (uint32_t)siphash(secret, "time stamps", 11);
}

uint32_t port_clock_ms(const struct vma_tcp *tcp)
{
	return tcp_clock_ms(tcp);
}

u32_t sys_now(void)
{
	return port_clock_ms(lwip_at.tcp) + (lwip_at.conn != NULL ? lwip_at.conn->clock_shift_ms : 0);
}

void tcp_timer_needed(void)
{
	/* lwIP's timers never run: timer/timers.c has all of them. */
}

/* ---- the one interface ---- */

struct netif *ip4_route(const ip4_addr_t *dest)
{
	(void)dest;
	return &port_netif;
}

struct netif *netif_get_by_index(u8_t index)
{
	(void)index;
	return &port_netif;
}

/* ---- pbufs of received packets ---- */

/*
 * The frame lies in memory that other clients of the interface can write to. So what lwIP follows and believes is kept
 * elsewhere: the pbufs, and the header in a pbuf of its own before the data.
 */
struct rx_data {
	struct pbuf_custom pbuf; /* first: lwIP hands it back as a struct pbuf */
	struct vma_buf *buf;
};
_Static_assert(sizeof(struct rx_data) <= 64, "MEMORY_RX_DATA");

struct rx_header {
	struct pbuf_custom pbuf;
	uint8_t bytes[60];
};
_Static_assert(sizeof(struct rx_header) <= 128, "MEMORY_RX_HEADER");

static void free_rx_data(struct pbuf *p)
{
	struct vma_buf *buf = ((struct rx_data *)p)->buf;

	lwip_object_free(lwip_at.tcp, MEMORY_RX_DATA, p);
	vma_buf_put(lwip_at.tcp->arena, buf);
}

static void free_rx_header(struct pbuf *p)
{
	lwip_object_free(lwip_at.tcp, MEMORY_RX_HEADER, p);
}

static struct pbuf *rx_header_pbuf_alloc(struct vma_tcp *tcp, const uint8_t *header, uint8_t header_len)
{
	struct rx_header *h = lwip_object_alloc(tcp, MEMORY_RX_HEADER);

	if (h == NULL)
		return NULL;
	memcpy(h->bytes, header, header_len);
	h->pbuf.custom_free_function = free_rx_header;
	return pbuf_alloced_custom(PBUF_RAW, header_len, PBUF_REF, &h->pbuf, h->bytes, header_len);
}

static struct pbuf *rx_data_pbuf_alloc(struct vma_tcp *tcp, struct vma_buf *buf, uint32_t skip, uint32_t len)
{
	struct rx_data *data = lwip_object_alloc(tcp, MEMORY_RX_DATA);

	if (data == NULL)
		return NULL;
	data->buf = buf;
	data->pbuf.custom_free_function = free_rx_data;
	return pbuf_alloced_custom(PBUF_RAW, (u16_t)len, PBUF_REF, &data->pbuf, vma_buf_data(tcp->arena, buf) + skip,
	                           (u16_t)len);
}

void port_copy_payload(const struct vma_bufarena *arena, struct vma_buf *const *packets, unsigned n,
                       const struct iovec *spans)
{
	size_t filled = 0;

	for (unsigned i = 0; i < n; i++) {
		uint32_t skip = packets[i]->payload_off, left = packets[i]->payload_len;

		for (const struct vma_buf *buf = packets[i]; left != 0; buf = buf->next) {
			uint32_t here = buf->len - skip < left ? buf->len - skip : left;
			const char *from = vma_buf_data(arena, buf) + skip;

			left -= here;
			skip = 0;
			while (here != 0) {
				size_t room = spans->iov_len - filled, take = here < room ? here : room;

				memcpy((char *)spans->iov_base + filled, from, take);
				filled += take;
				from += take;
				here -= (uint32_t)take;
				if (filled == spans->iov_len) {
					spans++;
					filled = 0;
				}
			}
		}
	}
}

/* Data that is not in order yet: of its own memory, as much as it needs. A frame would be 2 KB for each byte. */
struct rx_copy {
	struct pbuf_custom pbuf;
	uint32_t size;
	uint8_t bytes[];
};

static void free_rx_copy(struct pbuf *p)
{
	struct vma_tcp *tcp = lwip_at.tcp;

	tcp->ooo_bytes -= ((struct rx_copy *)p)->size;
	tcp->host.free(p);
}

static struct pbuf *rx_copy_pbuf_alloc(struct vma_tcp *tcp, struct vma_buf *const *packets, unsigned n, uint32_t len)
{
	const uint32_t size = (uint32_t)sizeof(struct rx_copy) + len;
	struct rx_copy *copy = tcp->host.alloc_bytes(size);

	if (copy == NULL)
		return NULL;
	copy->size = size + OOO_OVERHEAD;
	tcp->ooo_bytes += copy->size;
	port_copy_payload(tcp->arena, packets, n, &(const struct iovec){copy->bytes, len});
	copy->pbuf.custom_free_function = free_rx_copy;
	return pbuf_alloced_custom(PBUF_RAW, (u16_t)len, PBUF_REF, &copy->pbuf, copy->bytes, (u16_t)len);
}

struct pbuf *port_pbuf_chain_with_copied_payload(struct vma_tcp *tcp, struct vma_buf *const *packets, unsigned n,
                                                 uint32_t len, const uint8_t *header, uint8_t header_len)
{
	struct pbuf *head = rx_header_pbuf_alloc(tcp, header, header_len), *data;

	if (head == NULL)
		return NULL;
	data = rx_copy_pbuf_alloc(tcp, packets, n, len);
	if (data == NULL) {
		lwip_object_free(tcp, MEMORY_RX_HEADER, head);
		return NULL;
	}
	head->next = data;
	head->tot_len = (u16_t)(header_len + len);
	for (unsigned i = 0; i < n; i++)
		vma_buf_put_chain(tcp->arena, packets[i]);
	return head;
}

struct vma_buf *port_buf_of_pbuf(const struct pbuf *p)
{
	if ((p->flags & PBUF_FLAG_IS_CUSTOM) == 0 ||
	    ((const struct pbuf_custom *)p)->custom_free_function != free_rx_data)
		return NULL;
	return ((const struct rx_data *)p)->buf;
}

unsigned port_pbufs_count(const struct pbuf *p, uint64_t *ooo_bytes)
{
	unsigned objects = 0;

	for (; p != NULL; p = p->next) {
		if ((p->flags & PBUF_FLAG_IS_CUSTOM) != 0 &&
		    ((const struct pbuf_custom *)p)->custom_free_function == free_rx_copy)
			*ooo_bytes += ((const struct rx_copy *)p)->size;
		else
			objects++;
	}
	return objects;
}

/* Of a packet that could not be had as a whole: the references of the buffers are not the pbufs' yet. */
static void free_pbuf_chain_without_bufs(struct vma_tcp *tcp, struct pbuf *head)
{
	while (head != NULL) {
		struct pbuf *p = head;

		head = p->next;
		lwip_object_free(tcp,
		                 ((struct pbuf_custom *)p)->custom_free_function == free_rx_data ? MEMORY_RX_DATA
		                                                                                 : MEMORY_RX_HEADER,
		                 p);
	}
}

struct pbuf *port_pbuf_chain_from_packet(struct vma_tcp *tcp, struct vma_buf *packet, const uint8_t *header,
                                         uint8_t header_len)
{
	uint32_t left = packet->payload_len, skip = packet->payload_off;
	struct vma_buf *buf, *next;
	struct pbuf *head = NULL, **link = &head;

	if (header_len != 0) {
		head = rx_header_pbuf_alloc(tcp, header, header_len);
		if (head == NULL)
			return NULL;
		head->tot_len = (u16_t)(header_len + left);
		link = &head->next;
	}
	/* A first buffer that ends with the header has a pbuf without bytes. */
	for (buf = packet; buf != NULL && left != 0; buf = buf->next) {
		uint32_t len = buf->len - skip < left ? buf->len - skip : left;

		*link = rx_data_pbuf_alloc(tcp, buf, skip, len);
		if (*link == NULL) {
			free_pbuf_chain_without_bufs(tcp, head);
			return NULL;
		}
		(*link)->tot_len = (u16_t)left;
		link = &(*link)->next;
		left -= len;
		skip = 0;
	}
	for (; buf != NULL; buf = next) { /* no data, or padding only */
		next = buf->next;
		vma_buf_put(tcp->arena, buf);
	}
	return head;
}
