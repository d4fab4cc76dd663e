/* priv_fixture - see priv_fixture.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "priv_fixture.h"

void fixture_fail_condition(const char *file, int line, const char *condition, const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s:%d: not true: %s: ", file, line, condition);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

int fixture_open_socket_in_peer_netns(const char *peer_netns, int domain, int type, int protocol)
{
	char path[128];
	int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), there, fd;

	snprintf(path, sizeof(path), "/run/netns/%s", peer_netns);
	there = open(path, O_RDONLY | O_CLOEXEC);
	fixture_must(home >= 0 && there >= 0, "%s", path);
	fixture_must(setns(there, CLONE_NEWNET) == 0, "setns: %m");
	fd = socket(domain, type | SOCK_CLOEXEC, protocol);
	fixture_must(fd >= 0, "socket: %m");
	fixture_must(setns(home, CLONE_NEWNET) == 0, "setns back: %m");
	close(there);
	close(home);
	return fd;
}

static void bind_packet_socket_to_interface(int fd, int ifindex)
{
	const struct sockaddr_ll addr = {
	        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = ifindex};

	fixture_must(bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0, "bind: %m");
}

static int peer_ifindex_and_set_qdisc_bypass(int fd, const char *name)
{
	struct ifreq request = {0};
	const int any = 1;

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	fixture_must(ioctl(fd, SIOCGIFINDEX, &request) == 0, "%s: %m", name);
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &any, sizeof(any));
	return request.ifr_ifindex;
}

static void fixture_read_interface_mac(struct fixture *fixture, const char *name)
{
	struct ifreq request = {0};

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	fixture_must(ioctl(fixture->tap, SIOCGIFHWADDR, &request) == 0, "%s: %m", name);
	memcpy(fixture->mac, request.ifr_hwaddr.sa_data, sizeof(fixture->mac));
}

/* Each device queue has its share of the frames. */
static void put_frames_in_fill_ring_of_queue(struct fixture *fixture, uint32_t queue)
{
	const uint32_t share = FIXTURE_FRAMES / fixture->queues;
	struct xdp_ring *fill = &fixture->fill[queue];

	for (uint32_t i = 0; i < share; i++)
		fill->addrs[i & fill->mask] = (uint64_t)(queue * share + i) << XDP_FRAME_SHIFT;
	atomic_store_explicit(fill->producer, share, memory_order_release);
}

static void open_xdp_sockets_of_queue(struct fixture *fixture, uint32_t queue, uint16_t bind_flags)
{
	int rc, fd = queue == 0
	                     ? xdp_sock_open_with_umem(fixture->umem, fixture->umem_bytes, fixture->ifindex, 0,
	                                               bind_flags, NULL)
	                     : xdp_sock_open_on_shared_umem(fixture->base_fd[0], fixture->ifindex, queue, bind_flags);

	fixture_must(fd >= 0, "base socket of queue %u: %d", queue, fd);
	fixture->base_fd[queue] = fd;
	rc = xdp_sock_map_umem_rings(fd, &fixture->fill[queue], &fixture->comp[queue]);
	fixture_must(rc == 0, "map rings: %d", rc);
	put_frames_in_fill_ring_of_queue(fixture, queue);
	for (uint32_t i = 0; i < FIXTURE_SLOTS; i++) {
		fd = xdp_sock_open_for_slot(fixture->base_fd[queue], fixture->ifindex, queue, FIXTURE_RING,
		                            FIXTURE_RING);
		fixture_must(fd >= 0, "slot %u: %d", i, fd);
		fixture->slot[i].fd[queue] = fd;
		rc = xdp_sock_map_queue_rings(fd, FIXTURE_RING, FIXTURE_RING, &fixture->slot[i].rx[queue],
		                              &fixture->slot[i].tx[queue]);
		fixture_must(rc == 0, "slot %u: map rings: %d", i, rc);
		rc = xdp_prog_set_socket(fixture->prog, i, queue, fd);
		fixture_must(rc == 0, "slot %u: socket map: %d", i, rc);
	}
}

void fixture_open(struct fixture *fixture, const char *name, const char *peer_netns, const char *peer_name,
                  uint32_t queues, uint16_t bind_flags)
{
	int rc;

	memset(fixture, 0, sizeof(*fixture));
	fixture->queues = queues;
	fixture->ifindex = if_nametoindex(name);
	fixture_must(fixture->ifindex != 0, "%s: no such interface", name);
	fixture->peer_raw = fixture_open_socket_in_peer_netns(peer_netns, AF_PACKET, SOCK_RAW, 0);
	bind_packet_socket_to_interface(fixture->peer_raw,
	                                peer_ifindex_and_set_qdisc_bypass(fixture->peer_raw, peer_name));
	fixture->tap = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	bind_packet_socket_to_interface(fixture->tap, (int)fixture->ifindex);
	fixture_read_interface_mac(fixture, name);

	fixture->umem_bytes = (size_t)FIXTURE_FRAMES << XDP_FRAME_SHIFT;
	fixture->umem = mmap(NULL, fixture->umem_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fixture_must(fixture->umem != MAP_FAILED, "mmap: %m");
	rc = xdp_prog_load(fixture->ifindex, queues, &fixture->prog);
	fixture_must(rc == 0, "xdp_prog_load: %d", rc);
	for (uint32_t queue = 0; queue < queues; queue++)
		open_xdp_sockets_of_queue(fixture, queue, bind_flags);
	rc = xdp_prog_attach(fixture->prog, &fixture->generic);
	fixture_must(rc == 0, "xdp_prog_attach: %d", rc);
}

void fixture_close(struct fixture *fixture)
{
	for (uint32_t queue = 0; queue < fixture->queues; queue++) {
		for (uint32_t i = 0; i < FIXTURE_SLOTS; i++) {
			xdp_ring_unmap(&fixture->slot[i].rx[queue]);
			xdp_ring_unmap(&fixture->slot[i].tx[queue]);
			close(fixture->slot[i].fd[queue]);
		}
		xdp_ring_unmap(&fixture->fill[queue]);
		xdp_ring_unmap(&fixture->comp[queue]);
		close(fixture->base_fd[queue]);
	}
	xdp_prog_destroy(fixture->prog);
	munmap(fixture->umem, fixture->umem_bytes);
	close(fixture->tap);
	close(fixture->peer_raw);
}

/* ---- frames ---- */

static void fixture_put_be16(uint8_t *at, uint16_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static void fixture_put_be32(uint8_t *at, uint32_t value)
{
	fixture_put_be16(at, (uint16_t)(value >> 16));
	fixture_put_be16(at + 2, (uint16_t)value);
}

static uint16_t fixture_ip_checksum(const uint8_t *header, uint32_t bytes)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < bytes; i += 2)
		sum += (uint32_t)header[i] << 8 | header[i + 1];
	sum = (sum >> 16) + (sum & 0xffff);
	return (uint16_t) ~(sum + (sum >> 16));
}

static uint32_t fixture_build_frame(uint8_t *frame, const uint8_t *mac, const struct fixture_packet *packet)
{
	const uint32_t l4_bytes = packet->proto == IPPROTO_TCP ? 20 : 8, ip_bytes = 20 + packet->option_words * 4u;
	uint8_t *at = frame + 12;

	memset(frame, 0, 128);
	memcpy(frame, packet->mac != NULL ? packet->mac : mac, 6);
	frame[6] = 2;
	if (packet->vlan != 0) {
		fixture_put_be16(at, ETH_P_8021Q);
		fixture_put_be16(at + 2, packet->vlan | 0x2000); /* with a priority, which is no part of the flow */
		at += 4;
	}
	fixture_put_be16(at, packet->ether_type != 0 ? packet->ether_type : ETH_P_IP);
	at += 2;
	at[0] = (uint8_t)(0x40 | (ip_bytes / 4));
	fixture_put_be16(at + 2, (uint16_t)(ip_bytes + l4_bytes + packet->payload_bytes));
	fixture_put_be16(at + 4, packet->id);
	fixture_put_be16(at + 6, packet->frag);
	at[8] = 64;
	at[9] = packet->proto;
	fixture_put_be32(at + 12, packet->source);
	fixture_put_be32(at + 16, packet->dest);
	memset(at + 20, 1, packet->option_words * 4u); /* no-operation */
	if (packet->options != NULL)
		memcpy(at + 20, packet->options, 4);
	fixture_put_be16(at + 10, fixture_ip_checksum(at, ip_bytes));
	at += ip_bytes;
	fixture_put_be16(at, packet->source_port);
	fixture_put_be16(at + 2, packet->dest_port);
	if (packet->proto == IPPROTO_TCP) {
		at[12] = 5 << 4;
		at[13] = packet->tcp_flags;
	} else {
		fixture_put_be16(at + 4, (uint16_t)(l4_bytes + packet->payload_bytes));
	}
	at += l4_bytes;
	for (uint32_t i = 0; i < packet->payload_bytes; i++)
		*at++ = (uint8_t)(i * 7);
	if (packet->only_bytes != 0 && packet->only_bytes < at - frame)
		return packet->only_bytes;
	return (uint32_t)(at - frame);
}

struct vma_flow_key fixture_key_with_peer(const struct fixture_packet *packet)
{
	struct vma_flow_key key = fixture_key_of_any_peer(packet);

	key.peer_port_be = htons(packet->source_port);
	fixture_put_be32(key.peer, packet->source);
	return key;
}

struct vma_flow_key fixture_key_of_any_peer(const struct fixture_packet *packet)
{
	struct vma_flow_key key = {
	        .family = AF_INET,
	        .proto = packet->proto,
	        .vlan = packet->vlan,
	        .local_port_be = htons(packet->dest_port),
	};

	fixture_put_be32(key.local, packet->dest);
	return key;
}

/* ---- where a packet comes out ---- */

/* Takes one packet of a slot out of its RX ring into fixture->got, and fills its frames again. */
static bool receive_from_slot(struct fixture *fixture, uint32_t slot, uint32_t queue)
{
	struct xdp_ring *rx = &fixture->slot[slot].rx[queue], *ring = &fixture->fill[queue];
	uint32_t producer = atomic_load_explicit(rx->producer, memory_order_acquire);
	uint32_t consumer = atomic_load_explicit(rx->consumer, memory_order_relaxed);
	uint32_t fill = atomic_load_explicit(ring->producer, memory_order_relaxed);
	bool more = true;

	if (producer == consumer)
		return false;
	fixture->got_bytes = fixture->got_buffers = 0;
	while (more && consumer != producer) {
		const struct xdp_desc *desc = &rx->descs[consumer++ & rx->mask];

		fixture_must(fixture->got_bytes + desc->len <= sizeof(fixture->got), "%u bytes",
		             fixture->got_bytes + desc->len);
		fixture_must(desc->addr + desc->len <= fixture->umem_bytes, "descriptor beyond the packet memory");
		memcpy(fixture->got + fixture->got_bytes, fixture->umem + desc->addr, desc->len);
		fixture->got_bytes += desc->len;
		fixture->got_buffers++;
		more = desc->options & XDP_PKT_CONTD;
		ring->addrs[fill++ & ring->mask] = desc->addr >> XDP_FRAME_SHIFT << XDP_FRAME_SHIFT;
	}
	fixture_must(!more, "the packet's last buffer is missing");
	atomic_store_explicit(rx->consumer, consumer, memory_order_release);
	atomic_store_explicit(ring->producer, fill, memory_order_release);
	fixture->got_queue = queue;
	return true;
}

/* The packet socket of the interface: its incoming frames that begin with our source address 02:00:00:00:00:00. */
static bool kernel_received_fixture_frame(struct fixture *fixture)
{
	static char frame[16384];
	struct sockaddr_ll from;
	socklen_t from_bytes = sizeof(from);
	ssize_t n = recvfrom(fixture->tap, frame, sizeof(frame), MSG_DONTWAIT, (struct sockaddr *)&from, &from_bytes);

	return n >= 12 && from.sll_pkttype != PACKET_OUTGOING && memcmp(frame + 6, "\2\0\0\0\0\0", 6) == 0;
}

static int fixture_receiver_of_next_packet(struct fixture *fixture)
{
	for (uint32_t i = 0; i < FIXTURE_SLOTS * fixture->queues; i++)
		if (receive_from_slot(fixture, i % FIXTURE_SLOTS, i / FIXTURE_SLOTS))
			return (int)(i % FIXTURE_SLOTS);
	return kernel_received_fixture_frame(fixture) ? FIXTURE_PASSED : FIXTURE_NOWHERE;
}

int fixture_send(struct fixture *fixture, const struct fixture_packet *packet)
{
	static uint8_t frame[16384];
	const struct timespec pause = {.tv_nsec = 200000};
	uint32_t bytes = fixture_build_frame(frame, fixture->mac, packet);
	int where = FIXTURE_NOWHERE, again;

	fixture_must(send(fixture->peer_raw, frame, bytes, 0) == (ssize_t)bytes, "send of %u bytes: %m", bytes);
	for (int i = 0; i < 2500 && where == FIXTURE_NOWHERE; i++) { /* half a second */
		where = fixture_receiver_of_next_packet(fixture);
		if (where == FIXTURE_NOWHERE)
			nanosleep(&pause, NULL);
	}
	again = fixture_receiver_of_next_packet(fixture);
	fixture_must(again == FIXTURE_NOWHERE, "one packet came out at %d and at %d", where, again);
	if (where >= 0)
		fixture_must(fixture->got_bytes == bytes && memcmp(fixture->got, frame, bytes) == 0,
		             "%u of %u bytes, or changed", fixture->got_bytes, bytes);
	return where;
}

/* ---- many ---- */

struct flood {
	int fd;
	uint8_t frame[16384];
	uint32_t bytes;
	unsigned sent;
	_Atomic bool ends;
};

static void *flood(void *arg)
{
	struct flood *flood = arg;

	while (!atomic_load(&flood->ends))
		flood->sent += send(flood->fd, flood->frame, flood->bytes, 0) == (ssize_t)flood->bytes;
	return NULL;
}

unsigned fixture_flood_and_count_kernel_packets(struct fixture *fixture, const struct fixture_packet *packet,
                                                void (*act)(unsigned), unsigned times, unsigned *sent)
{
	static struct flood all;
	pthread_t thread;
	unsigned passed = 0;
	struct pollfd tap = {.fd = fixture->tap, .events = POLLIN};

	all.fd = fixture->peer_raw;
	all.sent = 0;
	atomic_store(&all.ends, false);
	all.bytes = fixture_build_frame(all.frame, fixture->mac, packet);
	fixture_must(pthread_create(&thread, NULL, flood, &all) == 0, "no thread");
	for (unsigned i = 0; i < times; i++)
		act(i);
	atomic_store(&all.ends, true);
	pthread_join(thread, NULL);
	while (poll(&tap, 1, 100) > 0)
		passed += kernel_received_fixture_frame(fixture);
	*sent = all.sent;
	return passed;
}
