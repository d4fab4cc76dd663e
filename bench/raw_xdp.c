/*
 * raw_xdp - ping-pong and rate of AF_XDP as libxdp gives it: the limit of the xdp NIC. Nothing of ours is linked.
 *
 * One socket on queue 0 with a UMEM of its own; libxdp's default program redirects every packet to it. The lower half
 * of the frames is for receiving, the upper half for sending. A pong turns the received frame itself round.
 * libxdp's program stays on the interface after exit: measure in fresh namespaces.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_link.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <bpf/libbpf.h>
#include <xdp/libxdp.h>
#include <xdp/xsk.h>

#include "loops.h"
#include "measure.h"

#define FRAME_BYTES 2048U
#define FRAMES 4096U
#define TX_FRAMES 2048U
#define BATCH 64U

static struct xsk_ring_prod fill, tx;
static struct xsk_ring_cons completion, rx;
static struct xsk_socket *sock;
static char *umem_area;
static uint64_t tx_free[FRAMES];
static unsigned tx_free_count;
static unsigned tx_in_flight;
static uint32_t frame_bytes;
static uint16_t port_be;

static uint16_t raw_xdp_ip_checksum(const void *header)
{
	const uint16_t *words = header;
	uint32_t sum = 0;

	for (unsigned i = 0; i < sizeof(struct iphdr) / 2; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~(sum + (sum >> 16));
}

/* The same frame in every send buffer, so that sending writes nothing but the number. */
static void raw_xdp_build_frame(char *frame, const struct bench_opts *opts)
{
	struct ether_header *eth = (struct ether_header *)frame;
	struct iphdr *ip = (struct iphdr *)(eth + 1);
	struct udphdr *udp = (struct udphdr *)(ip + 1);

	memcpy(eth->ether_dhost, opts->peer_mac, sizeof(opts->peer_mac));
	memcpy(eth->ether_shost, opts->local_mac, sizeof(opts->local_mac));
	eth->ether_type = htons(ETHERTYPE_IP);
	*ip = (struct iphdr){.version = 4,
	                     .ihl = 5,
	                     .ttl = 64,
	                     .protocol = IPPROTO_UDP,
	                     .tot_len = htons((uint16_t)(opts->frame_bytes - sizeof(*eth))),
	                     .saddr = opts->local_be,
	                     .daddr = opts->peer_be};
	ip->check = raw_xdp_ip_checksum(ip);
	udp->source = udp->dest = opts->port_be;
	udp->len = htons((uint16_t)(opts->frame_bytes - sizeof(*eth) - sizeof(*ip)));
	udp->check = 0; /* none, which UDP over IPv4 allows: the raw limit spends nothing on it */
}

/* Gives frames back by the batch: the fill ring's lines are read by the sender's core, and each hand-over costs. */
static void fill_ring_give_frames(const __u64 *addrs, unsigned n)
{
	static __u64 owed[2 * BATCH];
	static unsigned count;
	uint32_t slot;

	for (unsigned i = 0; i < n; i++)
		owed[count++] = addrs[i] & ~(__u64)(FRAME_BYTES - 1);
	/* There is room: the ring has an entry for every frame. */
	if (count < BATCH || xsk_ring_prod__reserve(&fill, count, &slot) != count)
		return;
	for (unsigned i = 0; i < count; i++)
		*xsk_ring_prod__fill_addr(&fill, slot + i) = owed[i];
	xsk_ring_prod__submit(&fill, count);
	count = 0;
}

static void raw_xdp_open_umem_and_socket(const struct bench_opts *opts)
{
	const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
	const struct xsk_umem_config umem_config = {
	        .fill_size = FRAMES, .comp_size = FRAMES, .frame_size = FRAME_BYTES};
	const struct xsk_socket_config config = {
	        .rx_size = 2048, .tx_size = 2048, .xdp_flags = XDP_FLAGS_DRV_MODE, .bind_flags = XDP_USE_NEED_WAKEUP};
	struct xsk_umem *umem;
	__u64 addr;

	libbpf_set_print(NULL);
	libxdp_set_print(NULL);
	frame_bytes = opts->frame_bytes;
	port_be = opts->port_be;
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	umem_area = mmap(NULL, (size_t)FRAMES * FRAME_BYTES, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (umem_area == MAP_FAILED)
		bench_die("mmap");
	errno = -xsk_umem__create(&umem, umem_area, (size_t)FRAMES * FRAME_BYTES, &fill, &completion, &umem_config);
	if (errno != 0)
		bench_die("xsk_umem__create");
	errno = -xsk_socket__create(&sock, opts->device, 0, umem, &rx, &tx, &config);
	if (errno != 0)
		bench_die("xsk_socket__create");
	for (unsigned i = 0; i < FRAMES; i++) {
		addr = (uint64_t)i * FRAME_BYTES;
		if (i < FRAMES - TX_FRAMES) {
			fill_ring_give_frames(&addr, 1);
			continue;
		}
		raw_xdp_build_frame(umem_area + addr, opts);
		tx_free[tx_free_count++] = addr;
	}
}

/* Copy mode sends from within the call, at most a few dozen packets in one: go on until the ring is empty. */
static void xsk_kick_until_tx_ring_empty(void)
{
	while (sendto(xsk_socket__fd(sock), NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 &&
	       (errno == EAGAIN || errno == EBUSY || errno == ENOBUFS) &&
	       __atomic_load_n(tx.consumer, __ATOMIC_ACQUIRE) != *tx.producer)
		;
}

/* Completed frames of the sending half are free to send, those that a pong turned round go back to the fill ring. */
static void raw_xdp_reap(void)
{
	__u64 back[BATCH];
	uint32_t slot;
	unsigned n = xsk_ring_cons__peek(&completion, BATCH, &slot), received = 0;

	for (unsigned i = 0; i < n; i++) {
		uint64_t addr = *xsk_ring_cons__comp_addr(&completion, slot + i);

		if (addr < (uint64_t)(FRAMES - TX_FRAMES) * FRAME_BYTES)
			back[received++] = addr;
		else
			tx_free[tx_free_count++] = addr;
	}
	xsk_ring_cons__release(&completion, n);
	tx_in_flight -= n;
	fill_ring_give_frames(back, received);
}

static unsigned raw_xdp_send_packets(uint64_t seq, unsigned n)
{
	uint32_t slot;

	while (tx_free_count < n && tx_in_flight > 0) {
		raw_xdp_reap();
		if (tx_free_count < n)
			xsk_kick_until_tx_ring_empty();
	}
	if (tx_free_count < n || xsk_ring_prod__reserve(&tx, n, &slot) != n)
		return 0;
	for (unsigned i = 0; i < n; i++, seq++) {
		uint64_t addr = tx_free[--tx_free_count];

		memcpy(umem_area + addr + BENCH_HEADERS_BYTES, &seq, sizeof(seq));
		*xsk_ring_prod__tx_desc(&tx, slot + i) = (struct xdp_desc){.addr = addr, .len = frame_bytes};
	}
	xsk_ring_prod__submit(&tx, n);
	tx_in_flight += n;
	xsk_kick_until_tx_ring_empty();
	raw_xdp_reap();
	return n;
}

/* The default program takes everything: leave out what is not ours (neighbour discovery, say). */
static bool raw_xdp_is_ours(const char *frame, uint32_t len)
{
	const struct udphdr *udp = (const struct udphdr *)(frame + sizeof(struct ether_header) + sizeof(struct iphdr));

	return len >= BENCH_HEADERS_BYTES + sizeof(uint64_t) && udp->dest == port_be;
}

static unsigned raw_xdp_receive_packets(uint64_t *seq)
{
	__u64 back[BATCH];
	uint32_t slot;
	unsigned n = xsk_ring_cons__peek(&rx, BATCH, &slot), ours = 0;

	if (n == 0)
		return 0;
	for (unsigned i = 0; i < n; i++) {
		const struct xdp_desc *desc = xsk_ring_cons__rx_desc(&rx, slot + i);
		const char *frame = umem_area + desc->addr;

		back[i] = desc->addr;
		if (!raw_xdp_is_ours(frame, desc->len))
			continue;
		memcpy(seq, frame + BENCH_HEADERS_BYTES, sizeof(*seq));
		ours++;
	}
	xsk_ring_cons__release(&rx, n);
	fill_ring_give_frames(back, n);
	return ours;
}

static void swap_frame_addresses(char *frame)
{
	struct ether_header *eth = (struct ether_header *)frame;
	struct iphdr *ip = (struct iphdr *)(eth + 1);
	uint8_t mac[ETH_ALEN];
	uint32_t addr = ip->saddr;

	memcpy(mac, eth->ether_shost, ETH_ALEN);
	memcpy(eth->ether_shost, eth->ether_dhost, ETH_ALEN);
	memcpy(eth->ether_dhost, mac, ETH_ALEN);
	ip->saddr = ip->daddr;
	ip->daddr = addr; /* both checksums stay right, and so do the ports, which are equal */
}

static unsigned raw_xdp_echo_packets(void)
{
	uint32_t slot, tx_slot;
	unsigned n = xsk_ring_cons__peek(&rx, BATCH, &slot), ours = 0;

	if (n == 0)
		return 0;
	for (unsigned i = 0; i < n; i++) {
		struct xdp_desc desc = *xsk_ring_cons__rx_desc(&rx, slot + i);

		if (!raw_xdp_is_ours(umem_area + desc.addr, desc.len) ||
		    xsk_ring_prod__reserve(&tx, 1, &tx_slot) != 1) {
			fill_ring_give_frames(&desc.addr, 1);
			continue;
		}
		swap_frame_addresses(umem_area + desc.addr);
		desc.options = 0;
		*xsk_ring_prod__tx_desc(&tx, tx_slot) = desc;
		ours++;
	}
	xsk_ring_cons__release(&rx, n);
	xsk_ring_prod__submit(&tx, ours);
	tx_in_flight += ours;
	xsk_kick_until_tx_ring_empty();
	raw_xdp_reap();
	return ours;
}

static void raw_xdp_close_socket(void)
{
	xsk_socket__delete(sock);
}

int main(int argc, char **argv)
{
	static const struct bench_port_ops ops = {raw_xdp_open_umem_and_socket, raw_xdp_send_packets,
	                                          raw_xdp_receive_packets, raw_xdp_echo_packets, raw_xdp_close_socket};

	return bench_main(argc, argv, &ops);
}
