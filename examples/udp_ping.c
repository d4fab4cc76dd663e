/*
 * udp_ping - a custom stack that sends numbered datagrams to an echo and checks every byte that comes back.
 *
 *   udp_ping --local 10.9.0.1 --peer 10.9.0.2 --peer-mac 02:00:00:00:00:02 [OPTIONS] xdp:veth1
 *
 * By default the next datagram leaves when the last one is back; with --rate it leaves when its time has come. Status 0
 * means: all came back, once, and as they were.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "probes.h"
#include "stack.h"

#define LOST_NS 200000000ULL /* an answer that takes longer does not come any more */
#define SLEEP_NS 50000000ULL /* so that a signal just before the sleep is seen soon, too */
#define COUNT_MAX 50000000
#define HEADERS_BYTES 28 /* IPv4 and UDP */

static struct stack stack;
static struct probes probes;
static struct vma_pkt_udp headers;
static struct vma_pkt_udp_attr to = {.dst_mac = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}};
static uint64_t count = 10000, bytes = 22, rate;
static const char *dump_path;

/* Runs inside vma_ring_progress, once per datagram. A chain is longer than one frame: nothing we have
 * sent. */
static bool ping_take_answer(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	const char *payload = vma_buf_data(stack.arena, packet) + packet->payload_off;

	(void)flow;
	if (memcmp(info->src, to.dst_ip, sizeof(to.dst_ip)) != 0 || packet->next != NULL)
		return false; /* the ring takes the packet back and counts it */
	probes_record_answer(&probes, (const uint8_t *)payload, packet->payload_len);
	vma_buf_put(stack.arena, packet);
	return true;
}

static bool udp_ping_send_next(void)
{
	struct vma_buf *buf;
	uint32_t room;
	char *payload = stack_alloc_tx_buf_get_payload(&stack, &headers, &buf, &room);

	if (payload == NULL)
		return false;
	probes_fill_next_payload(&probes,
	                         (uint8_t *)payload); /* before it leaves: the answer may be here before send returns */
	if (stack_send(&stack, &headers, buf, (uint32_t)bytes))
		return true;
	probes_unsend_last(&probes);
	return false;
}

/* Receives until `wanted` answers are here or the time has come. */
static void receive_until_answers_or_deadline(uint64_t wanted, uint64_t deadline_ns)
{
	while (probes.answered < wanted && !stack_stop) {
		uint64_t now;

		if (vma_ring_progress(stack.ring) > 0)
			continue;
		now = probes_now_ns();
		if (now >= deadline_ns)
			return;
		stack_wait_for_packets(&stack, deadline_ns - now < SLEEP_NS ? deadline_ns - now : SLEEP_NS);
	}
}

static bool udp_ping_run(void)
{
	uint64_t begin = probes_now_ns();

	while (probes.sent < count && !stack_stop) {
		uint64_t before = probes.answered;

		if (!udp_ping_send_next()) /* full: receive, which also makes room */
			receive_until_answers_or_deadline(UINT64_MAX, probes_now_ns() + 1000);
		else if (rate != 0)
			receive_until_answers_or_deadline(UINT64_MAX, begin + probes.sent * 1000000000ULL / rate);
		else
			receive_until_answers_or_deadline(before + 1, probes_now_ns() + LOST_NS);
	}
	receive_until_answers_or_deadline(probes.sent, probes_now_ns() + LOST_NS);
	return probes_report(&probes, (double)(probes_now_ns() - begin) / 1e9);
}

static int udp_ping_usage(int status)
{
	fputs("usage: udp_ping --local ADDRESS --peer ADDRESS [OPTIONS] xdp:IFNAME|wire:FILE|IFNAME\n" STACK_USAGE
	      "  --peer ADDRESS      IPv4 address of the echo\n"
	      "  --peer-mac MAC      its Ethernet address (default: broadcast)\n"
	      "  --peer-port PORT    its port (7000)\n"
	      "  --count N           datagrams to send (10000)\n"
	      "  --bytes N           payload of each (22: a frame of 64)\n"
	      "  --rate N            per second; 0: the next one when the last is back (default)\n"
	      "  --dump FILE         every round trip in nanoseconds, one per line\n",
	      stderr);
	return status;
}

static bool udp_ping_take_option(int letter, const char *value)
{
	uint8_t *mac = to.dst_mac;

	switch (letter) {
	case 'p':
		return inet_pton(AF_INET, value, to.dst_ip) == 1;
	case 'm':
		return sscanf(value, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4],
		              &mac[5]) == 6;
	case 'P':
		to.dst_port_be = htons((uint16_t)stack_parse_number_or_exit("--peer-port", value, 65535));
		return true;
	case 'c':
		count = stack_parse_number_or_exit("--count", value, COUNT_MAX);
		return true;
	case 'b':
		bytes = stack_parse_number_or_exit("--bytes", value, UINT16_MAX);
		return true;
	case 'r':
		rate = stack_parse_number_or_exit("--rate", value, 100000000);
		return true;
	case 'd':
		dump_path = value;
		return true;
	default:
		return stack_handle_cli_option(&stack, letter, value);
	}
}

static bool open_stack_and_prepare_probes(void)
{
	if (stack_open(&stack, ping_take_answer, NULL) != 0)
		return false;
	if (bytes < PROBES_BYTES_MIN || bytes + HEADERS_BYTES > vma_nic_info(stack.nic)->mtu) {
		fprintf(stderr, "--bytes %llu: want %u to %u\n", (unsigned long long)bytes, PROBES_BYTES_MIN,
		        vma_nic_info(stack.nic)->mtu - HEADERS_BYTES);
		return false;
	}
	memcpy(to.src_mac, vma_nic_info(stack.nic)->mac, sizeof(to.src_mac));
	memcpy(to.src_ip, stack.local, sizeof(to.src_ip));
	to.src_port_be = stack.port_be;
	vma_pkt_udp_init(&headers, &to);
	return probes_init(&probes, count, (uint32_t)bytes) == 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {STACK_OPTIONS,
	                                        {"peer", required_argument, NULL, 'p'},
	                                        {"peer-mac", required_argument, NULL, 'm'},
	                                        {"peer-port", required_argument, NULL, 'P'},
	                                        {"count", required_argument, NULL, 'c'},
	                                        {"bytes", required_argument, NULL, 'b'},
	                                        {"rate", required_argument, NULL, 'r'},
	                                        {"dump", required_argument, NULL, 'd'},
	                                        {"help", no_argument, NULL, 'h'},
	                                        {0}};
	int letter;
	bool ok = false;

	stack.port_be = to.dst_port_be = htons(7000);
	while ((letter = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (letter == 'h' || !udp_ping_take_option(letter, optarg))
			return udp_ping_usage(letter == 'h' ? 0 : 2);
	if (optind + 1 != argc || stack.local[0] == 0 || to.dst_ip[0] == 0)
		return udp_ping_usage(2);
	stack.device = argv[optind];

	if (open_stack_and_prepare_probes()) {
		ok = udp_ping_run();
		stack_print_ring_stats(&stack);
		if (dump_path != NULL && probes_write_rtts_to_file(&probes, dump_path) != 0)
			ok = false;
	}
	stack_close(&stack);
	probes_fini(&probes);
	return ok ? 0 : 1;
}
