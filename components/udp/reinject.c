/*
 * reinject.c - reinjection: queued datagrams are put into the shadow's queue. That happens when a socket becomes the
 * kernel's, or when another process that shares it by fork begins to receive as well. A raw socket sends it in the
 * sender's place to an address of this host, so it does not leave the host.
 *
 * Source, TTL and TOS are as they were. The datagram comes by the loopback interface, so IP_PKTINFO and time stamps are
 * not as they were. A socket that is bound to an interface does not get it. A datagram to a group or a broadcast
 * address is not reinjected: it would leave this host. Without CAP_NET_RAW nothing is reinjected. The kernel fills in
 * what depends on the header's fields. A checksum of the datagram is not needed (RFC 768): its path lies in this host's
 * memory.
 */
#include <arpa/inet.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/nic_reinject.h>

#include "fork_queue.h"
#include "recv.h"
#include "reinject.h"

enum { IP_HEADER = 20, HEADERS = IP_HEADER + 8, PACKET_MAX = 65535 };

struct udp_reinject {
	const struct udp_sock *sock; /* whose; NULL: nobody counts */
	int fd;
	uint8_t *packet;
};

static void build_ip_udp_headers(uint8_t *packet, const struct udp_datagram *datagram)
{
	memset(packet, 0, HEADERS);
	packet[0] = 0x45;
	packet[1] = datagram->tos;
	packet[8] = datagram->ttl;
	packet[9] = IPPROTO_UDP;
	memcpy(packet + 12, &datagram->src, 4);
	memcpy(packet + 16, &datagram->dst, 4);
	vma_pkt_store16(packet + IP_HEADER, datagram->src_port_be);
	vma_pkt_store16(packet + IP_HEADER + 2, datagram->dst_port_be);
	vma_pkt_store16(packet + IP_HEADER + 4, htons((uint16_t)(8 + datagram->len)));
}

static void copy_datagram_payload(uint8_t *to, const struct udp_datagram *datagram)
{
	const struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	uint32_t off = datagram->packet->payload_off;
	size_t left = datagram->len;

	for (const struct vma_buf *buf = datagram->packet; buf != NULL && left > 0; buf = buf->next, off = 0) {
		size_t here = buf->len - off < left ? buf->len - off : left;

		memcpy(to, vma_buf_data(arena, buf) + off, here);
		to += here;
		left -= here;
	}
}

static bool can_be_reinjected(const struct udp_datagram *datagram)
{
	return HEADERS + datagram->len <= PACKET_MAX && !IN_MULTICAST(ntohl(datagram->dst));
}

/* The bytes are in their place. */
static bool reinject_udp_packet_to_kernel(const struct udp_reinject *udp_reinject, const struct udp_datagram *datagram)
{
	build_ip_udp_headers(udp_reinject->packet, datagram);
	return vma_reinject_ip_packet_to_kernel(udp_reinject->fd, udp_reinject->packet,
	                                        (size_t)HEADERS + datagram->len) == 0;
}

static bool fork_queue_reinject_datagram(void *arg, const struct udp_datagram *datagram)
{
	const struct udp_reinject *udp_reinject = arg;

	if (!can_be_reinjected(datagram))
		return false;
	copy_datagram_payload(udp_reinject->packet + HEADERS, datagram);
	return reinject_udp_packet_to_kernel(udp_reinject, datagram);
}

static void reinject_datagram_and_count_dropped(void *arg, const struct udp_datagram *datagram)
{
	const struct udp_reinject *udp_reinject = arg;

	fork_queue_reinject_datagram(arg, datagram);
	udp_count_datagram_as_dropped(udp_reinject->sock, datagram);
}

static bool udp_reinject_open_raw_socket(struct udp_reinject *udp_reinject)
{
	udp_reinject->fd = vma_reinject_open_raw_socket(false);
	udp_reinject->packet = udp_reinject->fd >= 0 ? vma_alloc(PACKET_MAX) : NULL;
	return udp_reinject->packet != NULL;
}

static void udp_reinject_end(struct udp_reinject *udp_reinject)
{
	vma_free(udp_reinject->packet);
	if (udp_reinject->fd >= 0)
		syscall(SYS_close, udp_reinject->fd);
}

/* What was queued when the process forked is older. */
static void reinject_fork_queue_to_kernel(struct udp_sock *sock, const struct udp_reinject *udp_reinject)
{
	struct udp_datagram datagram;
	const uint8_t *bytes;

	while ((bytes = udp_fork_queue_take(sock, false, &datagram)) != NULL) {
		if (!can_be_reinjected(&datagram))
			continue;
		memcpy(udp_reinject->packet + HEADERS, bytes, datagram.len);
		reinject_udp_packet_to_kernel(udp_reinject, &datagram);
	}
}

void udp_reinject_queued_datagrams_to_kernel(struct udp_sock *sock)
{
	struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_relaxed);
	struct udp_reinject udp_reinject = {.sock = sock};

	if (all == NULL && !udp_has_nonempty_fork_queue(sock))
		return;
	if (udp_reinject_open_raw_socket(&udp_reinject)) {
		reinject_fork_queue_to_kernel(sock, &udp_reinject);
		if (all != NULL)
			udp_drain_queues_calling_each(sock, all, reinject_datagram_and_count_dropped, &udp_reinject);
	}
	udp_reinject_end(&udp_reinject);
}

/*
 * Where sockets share the port the kernel might give it to another one. A time stamp, and what IP_PKTINFO tells, would
 * not be what they were.
 */
static bool udp_may_reinject_datagrams(const struct udp_sock *sock)
{
	const uint32_t lost = UDP_RX_OPT_STAMPS | UDP_RX_OPT_HW_STAMP | UDP_RX_OPT_PKTINFO | UDP_RX_OPT_PKTINFO6;

	return !sock->reuse_addr && !sock->reuse_port && sock->bound_ifindex == 0 &&
	       (atomic_load_explicit(&sock->rx_opts, memory_order_relaxed) & lost) == 0;
}

void udp_move_queued_datagrams_to_fork_queue(struct udp_sock *sock)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_relaxed);
	struct udp_reinject udp_reinject;

	if (!udp_has_datagram(all) || !udp_may_reinject_datagrams(sock))
		return;
	if (udp_reinject_open_raw_socket(&udp_reinject))
		udp_fork_queue_create_from_received(sock, fork_queue_reinject_datagram, &udp_reinject);
	udp_reinject_end(&udp_reinject);
}
