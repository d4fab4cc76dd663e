/*
 * udp_echo - a custom stack of thirty lines: every datagram for one address and port goes back to its sender.
 *
 *   udp_echo --local 10.9.0.2 [--port 7000] [OPTIONS] xdp:veth0
 *
 * The peer's MAC, address and port are those of the packet itself, so there is neither ARP nor routing.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "stack.h"

#define SLEEP_NS 100000000ULL /* so that a signal that comes just before the sleep is seen soon, too */

static struct stack stack;
static uint64_t echoed, refused;

/*
 * Runs inside vma_ring_progress, once per datagram. Frames of the receive side are few and belong to
 * it, so the payload moves into a frame of the transmit side, and the received one goes back at once.
 */
static bool udp_echo_packet(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	const char *frame = vma_buf_data(stack.arena, packet);
	struct vma_pkt_udp headers;
	struct vma_buf *reply;
	uint32_t room;
	char *payload;

	(void)flow;
	vma_pkt_udp_init_reply_headers(&headers, frame, info);
	payload = stack_alloc_tx_buf_get_payload(&stack, &headers, &reply, &room);
	if (payload == NULL)
		goto drop;
	if (packet->payload_len > room || packet->next != NULL) {
		vma_buf_put(stack.arena, reply); /* longer than one frame: not for this example */
		goto drop;
	}
	memcpy(payload, frame + packet->payload_off, packet->payload_len);
	if (!stack_send(&stack, &headers, reply, packet->payload_len))
		goto drop;
	echoed++;
	vma_buf_put_chain(stack.arena, packet);
	return true;
drop:
	refused++;
	return false; /* the ring takes the packet back, and counts it */
}

static const struct option options[] = {STACK_OPTIONS, {"help", no_argument, NULL, 'h'}, {0}};

static int udp_echo_usage(int status)
{
	fputs("usage: udp_echo --local ADDRESS [OPTIONS] xdp:IFNAME|wire:FILE|IFNAME\n" STACK_USAGE, stderr);
	return status;
}

int main(int argc, char **argv)
{
	int letter;

	stack.port_be = htons(7000);
	while ((letter = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (letter == 'h' || !stack_handle_cli_option(&stack, letter, optarg))
			return udp_echo_usage(letter == 'h' ? 0 : 2);
	if (optind + 1 != argc || stack.local[0] == 0)
		return udp_echo_usage(2);
	stack.device = argv[optind];

	if (stack_open(&stack, udp_echo_packet, NULL) != 0) {
		stack_close(&stack);
		return 1;
	}
	printf("listening on %s, port %u\n", stack.device, ntohs(stack.port_be));
	fflush(stdout);
	while (!stack_stop)
		if (vma_ring_progress(stack.ring) <= 0)
			stack_wait_for_packets(&stack, SLEEP_NS);

	printf("echoed %llu, refused %llu\n", (unsigned long long)echoed, (unsigned long long)refused);
	stack_print_ring_stats(&stack);
	stack_close(&stack);
	return 0;
}
