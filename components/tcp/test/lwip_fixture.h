/*
 * lwip_fixture - what the tests of lwIP's port share: a stack that is nothing but memory, frames to receive, and a peer
 * made of calls. What other files of tcp implement for lwIP (lwip/port.h) is here as simple as can be.
 */
#ifndef VMA_TCP_TEST_LWIP_FIXTURE_H
#define VMA_TCP_TEST_LWIP_FIXTURE_H

#include <arpa/inet.h>
#include <string.h>

#include <vma/bufpool.h>
#include <vma/test.h>

#include "../lwip/objects.h"
#include "../lwip/port.h"
#include "../tcp_priv.h"

enum { LOCAL_PORT = 1111, PEER_PORT = 2222, FIXTURE_ISN = 1000, FIXTURE_BUFS = 64, FIXTURE_HEADROOM = 64 };
static const uint8_t fixture_local[4] = {10, 0, 0, 1}, fixture_peer[4] = {10, 0, 0, 2};

/* A segment as lwIP gave it to ip4_output_if. */
struct sent {
	uint32_t count;
	uint8_t flags;
	uint32_t seq, ack, payload;
	uint16_t window;
	uint8_t bytes[256]; /* of the segment, headers first */
	uint32_t len;
};
struct fixture {
	struct vma_tcp tcp;
	struct vma_tcp_conn conn;
	struct tcp_pcb_listen *listener;
	struct vma_bufarena *arena;
	struct vma_bufpool *pool;
	uint32_t headroom;
	struct sent sent;
	err_t err_told; /* by pcb->errf */
	uint32_t errs, received_bytes;
	bool pcb_was_there;      /* when errf was called */
	err_t inpacket, passive; /* the hooks' answers */
	uint32_t rcv_wnd_max;    /* given to a passive connection, unless 0 */
};
static __thread struct fixture *fixture; /* of this thread */

err_t ip4_output_if(struct pbuf *p, const ip4_addr_t *src, const ip4_addr_t *dest, u8_t ttl, u8_t tos, u8_t proto,
                    struct netif *netif)
{
	const struct tcp_hdr *hdr = p->payload;
	struct sent *sent = &fixture->sent;

	(void)src, (void)dest, (void)ttl, (void)tos, (void)proto, (void)netif;
	sent->count++;
	sent->flags = TCPH_FLAGS(hdr);
	sent->seq = ntohl(hdr->seqno);
	sent->ack = ntohl(hdr->ackno);
	sent->window = ntohs(hdr->wnd);
	sent->payload = p->tot_len - TCPH_HDRLEN_BYTES(hdr);
	sent->len = pbuf_copy_partial(p, sent->bytes, sizeof(sent->bytes), 0);
	return ERR_OK;
}

err_t tcp_hook_inpacket(struct tcp_pcb *pcb, struct tcp_hdr *hdr, u16_t optlen, u16_t opt1len, u8_t *opt2,
                        struct pbuf *p)
{
	(void)pcb, (void)hdr, (void)optlen, (void)opt1len, (void)opt2, (void)p;
	return fixture->inpacket;
}

u32_t tcp_hook_isn(const ip_addr_t *local_ip, u16_t local_port, const ip_addr_t *remote_ip, u16_t remote_port)
{
	(void)local_ip, (void)local_port, (void)remote_ip, (void)remote_port;
	return lwip_at.conn ? FIXTURE_ISN + 1 : FIXTURE_ISN; /* a SYN of lwIP's own has the number before it */
}

static inline err_t lwip_recv_callback_count_and_free(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
	(void)arg, (void)err;
	if (!p)
		return ERR_OK;
	fixture->received_bytes += p->tot_len;
	tcp_recved(pcb, p->tot_len);
	pbuf_free(p);
	return ERR_OK;
}

static inline void lwip_err_callback_count(void *arg, err_t err)
{
	(void)arg;
	fixture->errs++;
	fixture->err_told = err;
	fixture->pcb_was_there = fixture->conn.pcb != NULL;
}

static inline err_t lwip_accept_callback_ignore(void *arg, struct tcp_pcb *pcb, err_t err)
{
	(void)arg, (void)pcb, (void)err;
	return ERR_OK;
}

err_t tcp_hook_passive(struct tcp_pcb_listen *listener, struct tcp_pcb *pcb)
{
	(void)listener;
	lwip_at.conn = &fixture->conn;
	fixture->conn.pcb = pcb;
	tcp_recv(pcb, lwip_recv_callback_count_and_free);
	tcp_err(pcb, lwip_err_callback_count);
	if (fixture->rcv_wnd_max)
		pcb->rcv_wnd_max = pcb->rcv_wnd = pcb->rcv_ann_wnd = fixture->rcv_wnd_max;
	return fixture->passive;
}

static inline void lwip_fixture_open(struct fixture *w, const struct vma_tcp_host_ops *host)
{
	struct vma_bufarena_attr arena = {.capacity = 4 * FIXTURE_BUFS + 256};
	struct vma_bufpool_attr pool = {.name = "fixture"};
	uint32_t first;

	memset(w, 0, sizeof(*w));
	fixture = w;
	w->headroom = FIXTURE_HEADROOM;
	assert_int_equal(vma_bufarena_create(&arena, &w->arena), 0);
	pool.arena = w->arena;
	assert_int_equal(vma_bufpool_create(&pool, &w->pool), 0);
	assert_int_equal(vma_bufarena_map_memory(w->arena, FIXTURE_BUFS, &first), 0);
	assert_int_equal(vma_bufpool_add_frames(w->pool, first, FIXTURE_BUFS), 0);
	w->tcp.arena = w->arena;
	w->tcp.now_ns = 5 * TCP_NS_PER_S;
	if (host)
		w->tcp.host = *host;
	assert_int_equal(port_memory_create(&w->tcp), 0);
}

/* Every frame has come back. */
static inline void lwip_fixture_assert_all_frames_returned(struct fixture *w)
{
	struct vma_buf *bufs[FIXTURE_BUFS];

	assert_int_equal(vma_bufpool_get(w->pool, bufs, FIXTURE_BUFS), FIXTURE_BUFS);
	vma_buf_put_burst(w->arena, bufs, FIXTURE_BUFS);
}

/* Nothing of lwIP may be left, and every frame has come back. */
static inline void lwip_fixture_close(struct fixture *w)
{
	assert_int_equal(port_memory_in_use(&w->tcp), 0);
	lwip_fixture_assert_all_frames_returned(w);
	port_memory_destroy(&w->tcp);
	vma_bufpool_retire(w->pool, NULL, NULL);
	vma_bufarena_destroy(w->arena);
	fixture = NULL;
}

/* A received packet: Ethernet and IPv4 headers (left blank: the ring has read them), TCP with `options`, payload. */
static inline struct vma_buf *lwip_fixture_make_received_packet(struct fixture *w, const struct tcp_hdr *hdr,
                                                                const void *options, uint32_t options_len,
                                                                const void *payload, uint32_t payload_len)
{
	struct vma_buf *buf;
	char *at;

	assert_int_equal(vma_bufpool_get(w->pool, &buf, 1), 1);
	buf->data_off = w->headroom;
	buf->l3_off = 14;
	buf->l4_off = 34;
	buf->payload_off = (uint16_t)(34 + 20 + options_len);
	buf->payload_len = (uint16_t)payload_len;
	buf->len = buf->packet_len = buf->payload_off + payload_len;
	at = vma_buf_data(w->arena, buf) + 34;
	memcpy(at, hdr, sizeof(*hdr));
	if (options_len)
		memcpy(at + 20, options, options_len);
	if (payload_len)
		memcpy(at + 20 + options_len, payload, payload_len);
	return buf;
}

struct segment {
	uint8_t flags;
	uint32_t seq, ack;
	const char *payload;
	const uint8_t *options;
	uint32_t options_len;
	uint16_t window, src_port, dst_port; /* 0: 65535, the peer's, the local one */
};

/* The peer sends a segment: lwIP gets it. Within lwip_enter. */
static inline void lwip_fixture_input(struct fixture *w, struct segment s)
{
	struct tcp_hdr hdr = {
	        .src = htons(s.src_port ? s.src_port : PEER_PORT),
	        .dest = htons(s.dst_port ? s.dst_port : LOCAL_PORT),
	        .seqno = htonl(s.seq),
	        .ackno = htonl(s.ack),
	        .wnd = htons(s.window ? s.window : 65535),
	};
	uint8_t header[60];
	struct pbuf *p;

	TCPH_HDRLEN_FLAGS_SET(&hdr, 5 + s.options_len / 4, s.flags);
	memcpy(header, &hdr, sizeof(hdr));
	if (s.options_len)
		memcpy(header + sizeof(hdr), s.options, s.options_len);
	p = port_pbuf_chain_from_packet(&w->tcp,
	                                lwip_fixture_make_received_packet(w, &hdr, s.options, s.options_len, s.payload,
	                                                                  s.payload ? (uint32_t)strlen(s.payload) : 0),
	                                header, (uint8_t)(20 + s.options_len));
	assert_non_null(p);
	lwip_tcp_input_segment(fixture_peer, fixture_local, p);
}

static inline void lwip_fixture_receive_segment(struct fixture *w, struct segment s)
{
	lwip_enter(&w->tcp, &w->conn);
	lwip_fixture_input(w, s);
	lwip_leave();
}

/* The connection is being made: its SYN is out. */
static inline void lwip_fixture_connect(struct fixture *w)
{
	ip_addr_t local, peer;
	struct tcp_pcb *pcb;

	memcpy(&local, fixture_local, 4);
	memcpy(&peer, fixture_peer, 4);
	lwip_enter(&w->tcp, &w->conn);
	port_netif.mtu = 1500;
	pcb = tcp_new();
	assert_non_null(pcb);
	w->conn.pcb = pcb;
	tcp_recv(pcb, lwip_recv_callback_count_and_free);
	tcp_err(pcb, lwip_err_callback_count);
	assert_int_equal(tcp_bind(pcb, &local, LOCAL_PORT), ERR_OK);
	assert_int_equal(tcp_connect(pcb, &peer, PEER_PORT, NULL), ERR_OK);
	lwip_leave();
}

static const uint8_t fixture_syn_options[] = {2, 4, 0x05, 0xb4, 1, 3, 3, 7}; /* MSS 1460, window scale 7 */

/* Established: the peer's next byte is 5001, ours FIXTURE_ISN + 1. */
static inline void lwip_fixture_establish(struct fixture *w)
{
	lwip_fixture_connect(w);
	lwip_fixture_receive_segment(w, (struct segment){.flags = TCP_SYN | TCP_ACK,
	                                                 .seq = 5000,
	                                                 .ack = FIXTURE_ISN + 1,
	                                                 .options = fixture_syn_options,
	                                                 .options_len = sizeof(fixture_syn_options)});
	assert_int_equal(w->conn.pcb->state, ESTABLISHED);
}

/* Output as the stack would do it after input. */
static inline void lwip_fixture_output(struct fixture *w)
{
	lwip_enter(&w->tcp, &w->conn);
	tcp_output(w->conn.pcb);
	lwip_leave();
}

static inline void lwip_fixture_abort(struct fixture *w)
{
	lwip_enter(&w->tcp, &w->conn);
	tcp_abort(w->conn.pcb);
	lwip_leave();
	assert_null(w->conn.pcb);
}

#endif
