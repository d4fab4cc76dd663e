/* lwIP's surroundings: whose turn it is, the clock, the one interface, pbufs of received frames. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lwip/sys.h>

#include "lwip_memory.h"
#include "lwip_port.h"
#include "siphash.h"
#include "tcp_priv.h"

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

static void enter(struct vma_tcp *tcp, struct vma_tcp_conn *conn)
{
	LWIP_ASSERT("lwip_enter does not nest", !lwip_at.tcp);
	lwip_at = (struct lwip_at){.tcp = tcp, .conn = conn};
	ip_data.current_netif = ip_data.current_input_netif = &port_netif;
}

void lwip_enter(struct vma_tcp *tcp, struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn ? conn->pcb : NULL;

	enter(tcp, conn);
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
	enter(tcp, NULL);
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

void lwip_input(const void *src, const void *dst, struct pbuf *p)
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
	return port_clock_ms(lwip_at.tcp);
}

void tcp_timer_needed(void)
{
	/* lwIP's timers never run: timers.c has all of them. */
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

/* ---- pbufs of received frames ---- */

/* In the frame itself, as close before its bytes as the alignment lets it. The buffer is found by arithmetic. */
static void free_in_frame(struct pbuf *p)
{
	struct vma_bufarena *arena = lwip_at.tcp->arena;
	size_t index = (size_t)((char *)p - arena->frames) >> arena->frame_shift;

	vma_buf_put(arena, vma_buf_at(arena, (uint32_t)index));
}

/* Beside the frame. */
struct beside {
	struct pbuf_custom pbuf; /* first: lwIP hands it back as a struct pbuf */
	struct vma_buf *buf;
};
_Static_assert(sizeof(struct beside) <= 64, "MEMORY_FRAME_PBUF");

static void free_beside(struct pbuf *p)
{
	struct beside *beside = (struct beside *)p;
	struct vma_buf *buf = beside->buf;

	memory_put(lwip_at.tcp, MEMORY_FRAME_PBUF, beside);
	vma_buf_put(lwip_at.tcp->arena, buf);
}

static struct pbuf_custom *room_for_pbuf(struct vma_tcp *tcp, struct vma_buf *buf, uint32_t off)
{
	char *frame = vma_buf_frame(tcp->arena, buf);
	struct pbuf_custom *pbuf;
	struct beside *beside;

	if (off >= sizeof(*pbuf)) {
		pbuf = (struct pbuf_custom *)(frame + ((off - sizeof(*pbuf)) & ~(_Alignof(struct pbuf_custom) - 1)));
		pbuf->custom_free_function = free_in_frame;
		return pbuf;
	}
	beside = memory_get(tcp, MEMORY_FRAME_PBUF);
	if (!beside)
		return NULL;
	beside->buf = buf;
	beside->pbuf.custom_free_function = free_beside;
	return &beside->pbuf;
}

struct pbuf *port_pbuf_of(struct vma_tcp *tcp, struct vma_buf *packet)
{
	uint32_t left = (uint32_t)(packet->payload_off - packet->l4_off) + packet->payload_len;
	uint32_t skip = packet->l4_off;
	struct vma_buf *buf, *next;
	struct pbuf *head = NULL, **link = &head;

	/* The references of the buffers are the pbufs' only when all of them have one. */
	for (buf = packet; buf && left; buf = buf->next) {
		uint32_t len = buf->len - skip < left ? buf->len - skip : left;
		uint32_t off = buf->data_off + skip;
		struct pbuf_custom *pbuf = room_for_pbuf(tcp, buf, off);

		if (!pbuf)
			goto no_memory;
		*link = pbuf_alloced_custom(PBUF_RAW, (u16_t)len, PBUF_REF, pbuf, vma_buf_frame(tcp->arena, buf) + off,
		                            (u16_t)len);
		(*link)->tot_len = (u16_t)left;
		link = &(*link)->next;
		left -= len;
		skip = 0;
	}
	for (; buf; buf = next) { /* padding only */
		next = buf->next;
		vma_buf_put(tcp->arena, buf);
	}
	return head;
no_memory:
	while (head) {
		struct pbuf *p = head;

		head = p->next;
		if (((struct pbuf_custom *)p)->custom_free_function == free_beside)
			memory_put(tcp, MEMORY_FRAME_PBUF, p);
	}
	return NULL;
}
