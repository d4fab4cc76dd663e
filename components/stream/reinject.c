/*
 * reinject.c - segments in the peer's place, by a raw socket, to an address of this host (nic_reinject.h).
 *
 *   FIN, acknowledged ───────────┐                              the peer does not repeat it: there is no other way
 *   out of order, but SACKed ────┼── raw socket ── kernel       the peer would find out by a timeout (RFC 2018, 8)
 *   came while it was moving ────┘                              the peer would repeat it, after a timeout if it is the
 *                                                               last
 *
 * The kernel takes the segments to the connection as if they had come over the loopback interface. So if a socket is
 * bound to an interface, it is set free for that time (to_kernel.c). If a socket is bound to the loopback interface
 * itself, the raw socket is, too. Otherwise the kernel would choose the interface of the address, as if the segment had
 * come by that. The TTL is the highest, for IP_MINTTL.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/nic_reinject.h>
#include <vma/nic_repair.h>
#include <vma/packet.h>

#include "reinject.h"

#define HEADERS 40
#define PACKET_MAX 65535

/* ---- out ---- */

static int reinject_open_socket(struct reinject *reinject)
{
	if (reinject->fd < 0 && reinject->error == 0) {
		reinject->fd = vma_reinject_open_raw_socket(reinject->to_loopback);
		reinject->error = reinject->fd < 0 ? reinject->fd : 0;
	}
	return reinject->error;
}

/* An IPv4 packet from its header on. */
static int reinject_packet_to_kernel(struct reinject *reinject, const void *packet, size_t len)
{
	int rc = reinject->by != NULL ? 0 : reinject_open_socket(reinject);

	if (reinject->by != NULL)
		return vma_nic_repair_send_segment_to_vmad(reinject->by, packet, len);
	return rc < 0 ? rc : vma_reinject_ip_packet_to_kernel(reinject->fd, packet, len);
}

/* ---- segments that are made here ---- */

static int reinject_send_segment(struct reinject *reinject, uint8_t *packet, uint32_t seq, size_t len, uint8_t flags)
{
	uint8_t *tcp = packet + 20;
	uint16_t sum;

	memset(packet, 0, HEADERS);
	packet[0] = 0x45;
	packet[8] = 255;
	packet[9] = IPPROTO_TCP;
	memcpy(packet + 12, &reinject->peer.sin_addr, 4);
	memcpy(packet + 16, &reinject->name.sin_addr, 4);
	memcpy(tcp, &reinject->peer.sin_port, 2);
	memcpy(tcp + 2, &reinject->name.sin_port, 2);
	vma_pkt_put32(tcp + 4, seq);
	vma_pkt_put32(tcp + 8, reinject->snd_una);
	tcp[12] = 5 << 4;
	tcp[13] = flags;
	vma_pkt_put16(tcp + 14, reinject->window);
	sum = (uint16_t)~vma_csum_fold(vma_csum_add(
	        vma_csum_pseudo4(packet + 12, packet + 16, IPPROTO_TCP, (uint32_t)(20 + len)), tcp, 20 + len));
	memcpy(tcp + 16, &sum, 2);
	return reinject_packet_to_kernel(reinject, packet, HEADERS + len);
}

int reinject_fin_to_kernel(struct reinject *reinject, uint32_t seq)
{
	uint8_t packet[HEADERS];

	return reinject_send_segment(reinject, packet, seq, 0, 0x11); /* ACK, FIN */
}

void reinject_ooo_data_to_kernel(struct reinject *reinject, struct vma_tcp_conn *conn)
{
	uint8_t *packet = vma_alloc(PACKET_MAX);
	uint32_t seq;
	ssize_t len;
	bool fin;

	if (packet == NULL)
		return;
	for (unsigned i = 0;; i++) {
		len = vma_tcp_export_copy_ooo_segment(conn, i, &seq, &fin, packet + HEADERS, PACKET_MAX - HEADERS);
		if (len == -ENOENT ||
		    (len >= 0 && reinject_send_segment(reinject, packet, seq, (size_t)len, fin ? 0x11 : 0x10) < 0))
			break;
	}
	vma_free(packet);
}

/* ---- segments that have come ---- */

/* From the IPv4 header on. 0: it is none that fits, and cannot be. */
static size_t reinject_copy_packet(const struct vma_bufarena *arena, const struct vma_buf *packet, uint8_t *to,
                                   size_t room)
{
	size_t skip = packet->l3_off, len = 0;

	for (const struct vma_buf *buf = packet; buf != NULL; buf = buf->next) {
		if (buf->len < skip || len + buf->len - skip > room)
			return 0;
		memcpy(to + len, (const uint8_t *)vma_buf_data(arena, buf) + skip, buf->len - skip);
		len += buf->len - skip;
		skip = 0;
	}
	return len;
}

/* The ring has checked all lengths. Over a link that is memory the sum has not been finished; and Ethernet pads. */
static void reinject_late_packet_to_kernel(struct vma_tcp_late_sink *late, struct vma_buf *packet)
{
	struct reinject *reinject = (struct reinject *)late;
	const size_t l4 = (size_t)packet->l4_off - packet->l3_off,
	             wanted = (size_t)packet->payload_off - packet->l3_off + packet->payload_len;
	uint8_t *copy = vma_alloc(packet->packet_len);
	uint16_t sum;

	if (copy == NULL)
		return;
	if (reinject_copy_packet(reinject->arena, packet, copy, packet->packet_len) >= wanted) {
		memset(copy + l4 + 16, 0, 2);
		sum = (uint16_t)~vma_csum_fold(
		        vma_csum_add(vma_csum_pseudo4(copy + 12, copy + 16, IPPROTO_TCP, (uint32_t)(wanted - l4)),
		                     copy + l4, wanted - l4));
		memcpy(copy + l4 + 16, &sum, 2);
		copy[8] = 255;
		reinject_packet_to_kernel(reinject, copy, wanted);
	}
	vma_free(copy);
}

/* ---- the life of it ---- */

void reinject_init_from_tcp_export(struct reinject *reinject, const struct sockaddr_in *name,
                                   const struct sockaddr_in *peer, struct vma_bufarena *arena,
                                   const struct vma_tcp_export *what, struct vma_nic *by)
{
	const uint32_t window = what->snd_wnd >> what->snd_scale;

	*reinject = (struct reinject){.late = {.packet = reinject_late_packet_to_kernel},
	                              .name = *name,
	                              .peer = *peer,
	                              .arena = arena,
	                              .by = by,
	                              .snd_una = what->snd_una,
	                              .window = window < 65535 ? (uint16_t)window : 65535,
	                              .fd = -1};
}

void reinject_end(struct reinject *reinject)
{
	if (reinject->fd >= 0)
		syscall(SYS_close, reinject->fd);
}
