/*
 * instr_ring - moves packets of 64 bytes through ring over a wire in memory, for callgrind to count instructions.
 *
 *   instr_ring PACKETS [PHASE single]    single: VMA_THREAD_MODE=0
 *
 * Each phase is a function of its own: `valgrind --tool=callgrind --toggle-collect=phase_NAME` counts that one and
 * nothing else. All phases always run, and on the same packets, so a count is what that phase costs in a steady state.
 *
 *   phase_send_one       a buffer, headers and checksum, one send that kicks
 *   phase_send_burst     the same sixteen times, one send for all
 *   phase_receive_one    one packet: poll, checks, dispatch, a sink that returns the buffer
 *   phase_receive_burst  sixteen packets in one poll
 *   phase_poll_empty     a poll that finds nothing
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/ring.h>

enum { BURST = 16, PAYLOAD = 64 - VMA_PKT_ETH_HLEN - VMA_PKT_IP4_HLEN - VMA_PKT_UDP_HLEN, WARM_UP = 4096 };

static struct vma_bufarena *arena;
static struct vma_nic *nic[2];
static struct vma_ring *ring[2];
static struct vma_pkt_udp headers;
static struct vma_flow flow;
static enum vma_thread_mode thread_mode = VMA_THREAD_MUTEX;
static uint64_t delivered;

static void ring_exit_on_error(int rc, const char *what)
{
	if (rc < 0) {
		fprintf(stderr, "%s: %s\n", what, strerror(-rc));
		exit(1);
	}
}

static bool count_and_free_received_packet(struct vma_flow *member, struct vma_buf *packet,
                                           const struct vma_rx_info *info)
{
	(void)member;
	(void)info;
	delivered += packet->payload_len == PAYLOAD;
	vma_buf_put(arena, packet);
	return true;
}

static struct vma_nic_seg ring_build_udp_packet(void)
{
	struct vma_buf *buf = vma_ring_tx_buf(ring[0]);
	struct vma_nic_seg seg = {.buf = buf};

	if (buf == NULL) {
		fputs("no transmit buffer\n", stderr);
		exit(1);
	}
	seg.off = buf->data_off;
	seg.len = vma_pkt_udp_write(&headers, vma_buf_data(arena, buf), PAYLOAD, VMA_PKT_CSUM_FULL);
	return seg;
}

/* ---- the phases: never inlined, called from the measured rounds only ---- */

__attribute__((noinline)) void phase_send_one(void);
__attribute__((noinline)) void phase_send_burst(void);
__attribute__((noinline)) void phase_receive_one(void);
__attribute__((noinline)) void phase_receive_burst(void);
__attribute__((noinline)) void phase_poll_empty(void);

void phase_send_one(void)
{
	struct vma_nic_seg seg = ring_build_udp_packet();

	vma_ring_send(ring[0], &seg, 1, 0);
}

void phase_send_burst(void)
{
	struct vma_nic_seg segs[BURST];

	for (int i = 0; i < BURST; i++)
		segs[i] = ring_build_udp_packet();
	vma_ring_send(ring[0], segs, BURST, 0);
}

void phase_receive_one(void)
{
	vma_ring_progress(ring[1]);
}

void phase_receive_burst(void)
{
	vma_ring_progress(ring[1]);
}

void phase_poll_empty(void)
{
	vma_ring_progress(ring[1]);
}

/* The same calls, under names that nothing is toggled at. */
static void ring_send_udp_uninstrumented(unsigned n)
{
	struct vma_nic_seg segs[BURST];

	for (unsigned i = 0; i < n; i++)
		segs[i] = ring_build_udp_packet();
	vma_ring_send(ring[0], segs, n, 0);
}

static void ring_receive_all_uninstrumented(void)
{
	while (vma_ring_progress(ring[1]) > 0)
		;
}

static void ring_run(unsigned packets)
{
	for (unsigned i = 0; i < packets; i++) {
		phase_send_one();
		phase_receive_one();
	}
	for (unsigned i = 0; i < packets / BURST; i++) {
		phase_send_burst();
		phase_receive_burst();
	}
	for (unsigned i = 0; i < packets; i++)
		phase_poll_empty();
}

static void open_ring_pair_on_wire(void)
{
	struct vma_bufarena_attr memory = {.capacity = 16384};
	struct vma_wire_pair_attr wire = {0};
	struct vma_ring_attr attr = {
	        .rx_wre = 512, .tx_wre = 512, .thread_mode = thread_mode, .rx_sw_csum = true, .name = "instr"};

	ring_exit_on_error(vma_bufarena_create(&memory, &arena), "arena");
	wire.arena[0] = wire.arena[1] = arena;
	ring_exit_on_error(vma_wire_create_pair(&wire, nic), "wire");
	for (int i = 0; i < 2; i++) {
		attr.nic = nic[i];
		ring_exit_on_error(vma_ring_create(&attr, &ring[i]), "ring");
	}
}

/* As a server has it: a listening 3-tuple, a connected 5-tuple beside it, and the packets are for the former. */
static void attach_listening_and_connected_udp_flows(void)
{
	static struct vma_flow connected;
	const struct vma_pkt_udp_attr to = {.src_ip = {10, 0, 0, 1},
	                                    .dst_ip = {10, 0, 0, 2},
	                                    .src_port_be = htons(1000),
	                                    .dst_port_be = htons(2000)};

	vma_pkt_udp_init(&headers, &to);
	flow.key = (struct vma_flow_key){.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = to.dst_port_be};
	memcpy(flow.key.local, to.dst_ip, 4);
	flow.sink = count_and_free_received_packet;
	connected = flow;
	connected.key.peer_port_be = htons(1001);
	memcpy(connected.key.peer, to.src_ip, 4);
	ring_exit_on_error(vma_ring_attach_flow(ring[1], &flow), "attach");
	ring_exit_on_error(vma_ring_attach_flow(ring[1], &connected), "attach");
}

int main(int argc, char **argv)
{
	unsigned packets = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) / BURST * BURST : 4096;

	if (argc > 3)
		thread_mode = VMA_THREAD_SINGLE;

	open_ring_pair_on_wire();
	attach_listening_and_connected_udp_flows();
	for (unsigned i = 0; i < WARM_UP; i += BURST) {
		ring_send_udp_uninstrumented(BURST);
		ring_receive_all_uninstrumented();
	}
	delivered = 0;
	ring_run(packets);
	if (packets == 0 || delivered != 2 * (uint64_t)packets) {
		fprintf(stderr, "%lu of %u packets were delivered\n", (unsigned long)delivered, 2 * packets);
		return 1;
	}
	printf("delivered %lu\n", (unsigned long)delivered);
	return 0;
}
