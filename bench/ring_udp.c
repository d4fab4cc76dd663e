/*
 * ring_udp - ping-pong and rate of the same packets as raw_xdp, through ring: on xdp as owner or as client of vmad, and
 * on the wire between two processes.
 *
 * Headers are built per packet and received ones are checked, as for an application; the UDP checksum is left out, as
 * raw_xdp leaves it out. At the end the ring's own counters say how many packets went by it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vma/conf.h>
#include <vma/packet.h>
#include <vma/ring.h>

#include "loops.h"
#include "measure.h"

static struct vma_conf conf;
static struct vma_bufarena *arena;
static struct vma_bufpool *spill;
static struct vma_nic *nic;
static struct vma_ring *ring;
static struct vma_flow flow;
static struct vma_pkt_udp headers;
static uint32_t payload_bytes;

static unsigned arrived;
static uint64_t last_seq;
static bool echoing;

static void ring_udp_exit_if_error(int rc, const char *what)
{
	errno = -rc;
	if (rc < 0)
		bench_die(what);
}

/* One packet in a transmit buffer; false: none free at the moment. */
static bool ring_udp_build_packet(struct vma_nic_seg *seg, const void *payload, uint32_t copy_bytes)
{
	struct vma_buf *buf = vma_ring_tx_buf(ring);
	char *frame;

	if (buf == NULL)
		return false;
	frame = vma_buf_data(arena, buf);
	memcpy(frame + headers.len, payload, copy_bytes);
	*seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off};
	seg->len = vma_pkt_udp_write(&headers, frame, payload_bytes, VMA_PKT_CSUM_NONE);
	return true;
}

static bool ring_udp_receive_packet(struct vma_flow *member, struct vma_buf *packet, const struct vma_rx_info *info)
{
	const char *payload = vma_buf_data(arena, packet) + packet->payload_off;
	struct vma_nic_seg seg;

	(void)member;
	(void)info;
	arrived++;
	if (packet->payload_len >= sizeof(last_seq))
		memcpy(&last_seq, payload, sizeof(last_seq));
	if (echoing && packet->payload_len == payload_bytes && ring_udp_build_packet(&seg, payload, payload_bytes) &&
	    vma_ring_send(ring, &seg, 1, 0) == 0)
		vma_buf_put(arena, seg.buf);
	vma_buf_put_chain(arena, packet);
	return true;
}

static void ring_udp_open_nic(const struct bench_opts *opts)
{
	const char *vmad = getenv("VMAD"); /* the daemon to start when none runs */
	struct vma_bufarena_attr arena_attr = {0};
	struct vma_bufpool_attr spill_attr = {.name = "spill"};
	struct vma_nic_attr nic_attr = {.owner = VMA_NIC_OWNER_SELF, .vmad_path = vmad};
	struct vma_ring_attr ring_attr = {0};

	vma_conf_load_and_init_log(&conf, environ); /* what is measured are the defaults, or what VMA_* says */
	vma_ring_conf_to_memory_attrs(&conf, &arena_attr, &spill_attr);
	vma_ring_conf_to_nic_attr(&conf, &nic_attr);
	vma_ring_conf_to_ring_attr(&conf, &ring_attr);
	ring_udp_exit_if_error(vma_bufarena_create(&arena_attr, &arena), "vma_bufarena_create");
	spill_attr.arena = nic_attr.arena = arena;
	ring_udp_exit_if_error(vma_bufpool_create(&spill_attr, &spill), "vma_bufpool_create");
	if (strcmp(opts->owner, "vmad") == 0)
		nic_attr.owner = VMA_NIC_OWNER_VMAD;
	ring_udp_exit_if_error(vma_nic_open(opts->device, &nic_attr, &nic), opts->device);
	ring_attr.nic = nic;
	ring_attr.spill_pool = spill;
	ring_udp_exit_if_error(vma_ring_create(&ring_attr, &ring), "vma_ring_create");
}

static void ring_udp_open_port(const struct bench_opts *opts)
{
	struct vma_pkt_udp_attr attr = {.src_port_be = opts->port_be, .dst_port_be = opts->port_be};

	ring_udp_open_nic(opts);
	flow = (struct vma_flow){.sink = ring_udp_receive_packet};
	flow.key.family = AF_INET;
	flow.key.proto = IPPROTO_UDP;
	flow.key.local_port_be = opts->port_be;
	memcpy(flow.key.local, &opts->local_be, sizeof(opts->local_be));
	ring_udp_exit_if_error(vma_ring_attach_flow(ring, &flow), "vma_ring_attach");
	memcpy(attr.src_mac, opts->local_mac, sizeof(attr.src_mac));
	memcpy(attr.dst_mac, opts->peer_mac, sizeof(attr.dst_mac));
	memcpy(attr.src_ip, &opts->local_be, sizeof(attr.src_ip));
	memcpy(attr.dst_ip, &opts->peer_be, sizeof(attr.dst_ip));
	vma_pkt_udp_init(&headers, &attr);
	payload_bytes = opts->frame_bytes - headers.len;
}

static unsigned ring_udp_send_packets(uint64_t seq, unsigned n)
{
	struct vma_nic_seg segs[64];
	unsigned built = 0, sent;

	while (built < n && ring_udp_build_packet(&segs[built], &seq, sizeof(seq))) {
		built++;
		seq++;
	}
	sent = built == 0 ? 0 : vma_ring_send(ring, segs, built, 0);
	for (unsigned i = sent; i < built; i++)
		vma_buf_put(arena, segs[i].buf);
	return sent;
}

static unsigned ring_udp_receive_packets(uint64_t *seq)
{
	arrived = 0;
	vma_ring_progress(ring);
	*seq = last_seq;
	return arrived;
}

static unsigned ring_udp_echo_packets(void)
{
	echoing = true;
	arrived = 0;
	vma_ring_progress(ring);
	return arrived;
}

static void ring_udp_close_port(void)
{
	const struct vma_stats_ring *stats = vma_ring_stats(ring);

	bench_print("ring_rx_packets", (double)vma_stats_read_counter(&stats->rx.rx_packets));
	bench_print("ring_tx_packets", (double)vma_stats_read_counter(&stats->tx.tx_packets));
	bench_print("ring_tx_kicks", (double)vma_stats_read_counter(&stats->tx.tx_kicks));
	vma_ring_detach_flow(ring, &flow);
	vma_ring_destroy(ring);
	vma_nic_close(nic);
	vma_bufpool_retire(spill, NULL, NULL);
	vma_bufarena_destroy(arena);
}

int main(int argc, char **argv)
{
	static const struct bench_port_ops ops = {ring_udp_open_port, ring_udp_send_packets, ring_udp_receive_packets,
	                                          ring_udp_echo_packets, ring_udp_close_port};

	return bench_main(argc, argv, &ops);
}
