/* priv_bed - see priv_bed.h. */
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

#include "priv_bed.h"

void bed_fail(const char *file, int line, const char *condition, const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s:%d: not true: %s: ", file, line, condition);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

int bed_peer_socket(const char *peer_netns, int domain, int type, int protocol)
{
	char path[128];
	int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), there, fd;

	snprintf(path, sizeof(path), "/run/netns/%s", peer_netns);
	there = open(path, O_RDONLY | O_CLOEXEC);
	bed_must(home >= 0 && there >= 0, "%s", path);
	bed_must(setns(there, CLONE_NEWNET) == 0, "setns: %m");
	fd = socket(domain, type | SOCK_CLOEXEC, protocol);
	bed_must(fd >= 0, "socket: %m");
	bed_must(setns(home, CLONE_NEWNET) == 0, "setns back: %m");
	close(there);
	close(home);
	return fd;
}

static void bind_packet(int fd, int ifindex)
{
	const struct sockaddr_ll addr = {
	        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = ifindex};

	bed_must(bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0, "bind: %m");
}

static int peer_ifindex(int fd, const char *name)
{
	struct ifreq request = {0};
	const int any = 1;

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	bed_must(ioctl(fd, SIOCGIFINDEX, &request) == 0, "%s: %m", name);
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &any, sizeof(any));
	return request.ifr_ifindex;
}

static void find_mac(struct bed *bed, const char *name)
{
	struct ifreq request = {0};

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	bed_must(ioctl(bed->tap, SIOCGIFHWADDR, &request) == 0, "%s: %m", name);
	memcpy(bed->mac, request.ifr_hwaddr.sa_data, sizeof(bed->mac));
}

/* Each device queue has its share of the frames. */
static void fill_all(struct bed *bed, uint32_t queue)
{
	const uint32_t share = BED_FRAMES / bed->queues;
	struct xdp_ring *fill = &bed->fill[queue];

	for (uint32_t i = 0; i < share; i++)
		fill->addrs[i & fill->mask] = (uint64_t)(queue * share + i) << XDP_FRAME_SHIFT;
	atomic_store_explicit(fill->producer, share, memory_order_release);
}

static void open_queue(struct bed *bed, uint32_t queue, uint16_t bind_flags)
{
	int rc, fd = queue == 0 ? xdp_sock_umem(bed->umem, bed->umem_bytes, bed->ifindex, 0, bind_flags, NULL)
	                        : xdp_sock_base(bed->base_fd[0], bed->ifindex, queue, bind_flags);

	bed_must(fd >= 0, "base socket of queue %u: %d", queue, fd);
	bed->base_fd[queue] = fd;
	rc = xdp_sock_map_umem_rings(fd, &bed->fill[queue], &bed->comp[queue]);
	bed_must(rc == 0, "map rings: %d", rc);
	fill_all(bed, queue);
	for (uint32_t i = 0; i < BED_SLOTS; i++) {
		fd = xdp_sock_queue(bed->base_fd[queue], bed->ifindex, queue, BED_RING, BED_RING);
		bed_must(fd >= 0, "slot %u: %d", i, fd);
		bed->slot[i].fd[queue] = fd;
		rc = xdp_sock_map_queue_rings(fd, BED_RING, BED_RING, &bed->slot[i].rx[queue], &bed->slot[i].tx[queue]);
		bed_must(rc == 0, "slot %u: map rings: %d", i, rc);
		rc = xdp_prog_set_socket(bed->prog, i, queue, fd);
		bed_must(rc == 0, "slot %u: socket map: %d", i, rc);
	}
}

void bed_open(struct bed *bed, const char *name, const char *peer_netns, const char *peer_name, uint32_t queues,
              uint16_t bind_flags)
{
	int rc;

	memset(bed, 0, sizeof(*bed));
	bed->queues = queues;
	bed->ifindex = if_nametoindex(name);
	bed_must(bed->ifindex != 0, "%s: no such interface", name);
	bed->peer_raw = bed_peer_socket(peer_netns, AF_PACKET, SOCK_RAW, 0);
	bind_packet(bed->peer_raw, peer_ifindex(bed->peer_raw, peer_name));
	bed->tap = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	bind_packet(bed->tap, (int)bed->ifindex);
	find_mac(bed, name);

	bed->umem_bytes = (size_t)BED_FRAMES << XDP_FRAME_SHIFT;
	bed->umem = mmap(NULL, bed->umem_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bed_must(bed->umem != MAP_FAILED, "mmap: %m");
	rc = xdp_prog_load(bed->ifindex, queues, &bed->prog);
	bed_must(rc == 0, "xdp_prog_load: %d", rc);
	for (uint32_t queue = 0; queue < queues; queue++)
		open_queue(bed, queue, bind_flags);
	rc = xdp_prog_attach(bed->prog, &bed->generic);
	bed_must(rc == 0, "xdp_prog_attach: %d", rc);
}

void bed_close(struct bed *bed)
{
	for (uint32_t queue = 0; queue < bed->queues; queue++) {
		for (uint32_t i = 0; i < BED_SLOTS; i++) {
			xdp_ring_unmap(&bed->slot[i].rx[queue]);
			xdp_ring_unmap(&bed->slot[i].tx[queue]);
			close(bed->slot[i].fd[queue]);
		}
		xdp_ring_unmap(&bed->fill[queue]);
		xdp_ring_unmap(&bed->comp[queue]);
		close(bed->base_fd[queue]);
	}
	xdp_prog_destroy(bed->prog);
	munmap(bed->umem, bed->umem_bytes);
	close(bed->tap);
	close(bed->peer_raw);
}

/* ---- frames ---- */

static void fixture_put16(uint8_t *at, uint16_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static void fixture_put32(uint8_t *at, uint32_t value)
{
	fixture_put16(at, (uint16_t)(value >> 16));
	fixture_put16(at + 2, (uint16_t)value);
}

static uint16_t fixture_ip_checksum(const uint8_t *header, uint32_t bytes)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < bytes; i += 2)
		sum += (uint32_t)header[i] << 8 | header[i + 1];
	sum = (sum >> 16) + (sum & 0xffff);
	return (uint16_t) ~(sum + (sum >> 16));
}

static uint32_t fixture_build_frame(uint8_t *frame, const uint8_t *mac, const struct bed_packet *packet)
{
	const uint32_t l4_bytes = packet->proto == IPPROTO_TCP ? 20 : 8, ip_bytes = 20 + packet->option_words * 4u;
	uint8_t *at = frame + 12;

	memset(frame, 0, 128);
	memcpy(frame, packet->mac != NULL ? packet->mac : mac, 6);
	frame[6] = 2;
	if (packet->vlan != 0) {
		fixture_put16(at, ETH_P_8021Q);
		fixture_put16(at + 2, packet->vlan | 0x2000); /* with a priority, which is no part of the flow */
		at += 4;
	}
	fixture_put16(at, packet->ether_type != 0 ? packet->ether_type : ETH_P_IP);
	at += 2;
	at[0] = (uint8_t)(0x40 | (ip_bytes / 4));
	fixture_put16(at + 2, (uint16_t)(ip_bytes + l4_bytes + packet->payload_bytes));
	fixture_put16(at + 4, packet->id);
	fixture_put16(at + 6, packet->frag);
	at[8] = 64;
	at[9] = packet->proto;
	fixture_put32(at + 12, packet->source);
	fixture_put32(at + 16, packet->dest);
	memset(at + 20, 1, packet->option_words * 4u); /* no-operation */
	if (packet->options != NULL)
		memcpy(at + 20, packet->options, 4);
	fixture_put16(at + 10, fixture_ip_checksum(at, ip_bytes));
	at += ip_bytes;
	fixture_put16(at, packet->source_port);
	fixture_put16(at + 2, packet->dest_port);
	if (packet->proto == IPPROTO_TCP) {
		at[12] = 5 << 4;
		at[13] = packet->tcp_flags;
	} else {
		fixture_put16(at + 4, (uint16_t)(l4_bytes + packet->payload_bytes));
	}
	at += l4_bytes;
	for (uint32_t i = 0; i < packet->payload_bytes; i++)
		*at++ = (uint8_t)(i * 7);
	if (packet->only_bytes != 0 && packet->only_bytes < at - frame)
		return packet->only_bytes;
	return (uint32_t)(at - frame);
}

struct vma_flow_key bed_exact(const struct bed_packet *packet)
{
	struct vma_flow_key key = bed_wildcard(packet);

	key.peer_port_be = htons(packet->source_port);
	fixture_put32(key.peer, packet->source);
	return key;
}

struct vma_flow_key bed_wildcard(const struct bed_packet *packet)
{
	struct vma_flow_key key = {
	        .family = AF_INET,
	        .proto = packet->proto,
	        .vlan = packet->vlan,
	        .local_port_be = htons(packet->dest_port),
	};

	fixture_put32(key.local, packet->dest);
	return key;
}

/* ---- where a packet comes out ---- */

/* Takes one packet of a slot out of its RX ring into bed->got, and fills its frames again. */
static bool take_rx(struct bed *bed, uint32_t slot, uint32_t queue)
{
	struct xdp_ring *rx = &bed->slot[slot].rx[queue], *ring = &bed->fill[queue];
	uint32_t producer = atomic_load_explicit(rx->producer, memory_order_acquire);
	uint32_t consumer = atomic_load_explicit(rx->consumer, memory_order_relaxed);
	uint32_t fill = atomic_load_explicit(ring->producer, memory_order_relaxed);
	bool more = true;

	if (producer == consumer)
		return false;
	bed->got_bytes = bed->got_buffers = 0;
	while (more && consumer != producer) {
		const struct xdp_desc *desc = &rx->descs[consumer++ & rx->mask];

		bed_must(bed->got_bytes + desc->len <= sizeof(bed->got), "%u bytes", bed->got_bytes + desc->len);
		bed_must(desc->addr + desc->len <= bed->umem_bytes, "descriptor beyond the packet memory");
		memcpy(bed->got + bed->got_bytes, bed->umem + desc->addr, desc->len);
		bed->got_bytes += desc->len;
		bed->got_buffers++;
		more = desc->options & XDP_PKT_CONTD;
		ring->addrs[fill++ & ring->mask] = desc->addr >> XDP_FRAME_SHIFT << XDP_FRAME_SHIFT;
	}
	bed_must(!more, "the packet's last buffer is missing");
	atomic_store_explicit(rx->consumer, consumer, memory_order_release);
	atomic_store_explicit(ring->producer, fill, memory_order_release);
	bed->got_queue = queue;
	return true;
}

/* The packet socket of the interface: its incoming frames that begin with our source address 02:00:00:00:00:00. */
static bool take_tap(struct bed *bed)
{
	static char frame[16384];
	struct sockaddr_ll from;
	socklen_t from_bytes = sizeof(from);
	ssize_t n = recvfrom(bed->tap, frame, sizeof(frame), MSG_DONTWAIT, (struct sockaddr *)&from, &from_bytes);

	return n >= 12 && from.sll_pkttype != PACKET_OUTGOING && memcmp(frame + 6, "\2\0\0\0\0\0", 6) == 0;
}

static int take_any(struct bed *bed)
{
	for (uint32_t i = 0; i < BED_SLOTS * bed->queues; i++)
		if (take_rx(bed, i % BED_SLOTS, i / BED_SLOTS))
			return (int)(i % BED_SLOTS);
	return take_tap(bed) ? BED_PASSED : BED_NOWHERE;
}

int bed_send(struct bed *bed, const struct bed_packet *packet)
{
	static uint8_t frame[16384];
	const struct timespec pause = {.tv_nsec = 200000};
	uint32_t bytes = fixture_build_frame(frame, bed->mac, packet);
	int where = BED_NOWHERE, again;

	bed_must(send(bed->peer_raw, frame, bytes, 0) == (ssize_t)bytes, "send of %u bytes: %m", bytes);
	for (int i = 0; i < 2500 && where == BED_NOWHERE; i++) { /* half a second */
		where = take_any(bed);
		if (where == BED_NOWHERE)
			nanosleep(&pause, NULL);
	}
	again = take_any(bed);
	bed_must(again == BED_NOWHERE, "one packet came out at %d and at %d", where, again);
	if (where >= 0)
		bed_must(bed->got_bytes == bytes && memcmp(bed->got, frame, bytes) == 0, "%u of %u bytes, or changed",
		         bed->got_bytes, bytes);
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

unsigned bed_flood(struct bed *bed, const struct bed_packet *packet, void (*act)(unsigned), unsigned times,
                   unsigned *sent)
{
	static struct flood all;
	pthread_t thread;
	unsigned passed = 0;
	struct pollfd tap = {.fd = bed->tap, .events = POLLIN};

	all.fd = bed->peer_raw;
	all.sent = 0;
	atomic_store(&all.ends, false);
	all.bytes = fixture_build_frame(all.frame, bed->mac, packet);
	bed_must(pthread_create(&thread, NULL, flood, &all) == 0, "no thread");
	for (unsigned i = 0; i < times; i++)
		act(i);
	atomic_store(&all.ends, true);
	pthread_join(thread, NULL);
	while (poll(&tap, 1, 100) > 0)
		passed += take_tap(bed);
	*sent = all.sent;
	return passed;
}
