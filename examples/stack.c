/* stack - see stack.h. docs/custom-stack.md explains it step by step. */
#include "stack.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

volatile sig_atomic_t stack_stop;

static void stack_on_signal(int sig)
{
	(void)sig;
	stack_stop = 1;
}

uint64_t stack_parse_number_or_exit(const char *option, const char *value, uint64_t max)
{
	char *end;
	unsigned long long number;

	errno = 0;
	number = strtoull(value, &end, 10);
	if (errno == 0 && *value >= '0' && *value <= '9' && *end == '\0' && number <= max)
		return number;
	fprintf(stderr, "%s %s: want a number from 0 to %llu\n", option, value, (unsigned long long)max);
	exit(2);
}

static bool stack_set_owner_option(struct stack *stack, const char *value)
{
	stack->use_vmad = strcmp(value, "vmad") == 0;
	if (!stack->use_vmad && strcmp(value, "self") != 0)
		return fprintf(stderr, "--owner %s: want self or vmad\n", value) < 0;
	return true;
}

bool stack_handle_cli_option(struct stack *stack, int letter, const char *value)
{
	switch (letter) {
	case 1001:
		if (inet_pton(AF_INET, value, stack->local) == 1)
			return true;
		fprintf(stderr, "--local %s: not an IPv4 address\n", value);
		return false;
	case 1002:
		stack->port_be = htons((uint16_t)stack_parse_number_or_exit("--port", value, 65535));
		return true;
	case 1003:
		return stack_set_owner_option(stack, value);
	case 1004:
		stack->vmad_path = value;
		return true;
	case 1005:
		stack->wait = true;
		return true;
	case 1006:
		stack->window_bytes = stack_parse_number_or_exit("--window", value, 1024) << 20;
		return true;
	default:
		return false;
	}
}

static int stack_print_failure(const char *step, int rc)
{
	fprintf(stderr, "%s: %s\n", step, strerror(-rc));
	return rc;
}

/* Descriptors and address space for every frame, and ordinary memory for packets that are held for long. */
static int stack_create_arena_and_spill_pool(struct stack *stack)
{
	struct vma_bufarena_attr arena = {.stats = stack->stats};
	struct vma_bufpool_attr spill = {.name = "spill", .stats = stack->stats};
	int rc;

	vma_ring_conf_to_memory_attrs(&stack->conf, &arena, &spill);
	rc = vma_bufarena_create(&arena, &stack->arena);
	if (rc != 0)
		return stack_print_failure("vma_bufarena_create", rc);
	spill.arena = stack->arena;
	rc = vma_bufpool_create(&spill, &stack->spill);
	return rc == 0 ? 0 : stack_print_failure("vma_bufpool_create", rc);
}

static int stack_open_nic(struct stack *stack)
{
	struct vma_nic_attr attr = {.arena = stack->arena,
	                            .stats = stack->stats,
	                            .owner = stack->use_vmad ? VMA_NIC_OWNER_VMAD : VMA_NIC_OWNER_SELF,
	                            .vmad_path = stack->vmad_path,
	                            .window_bytes = (uint32_t)stack->window_bytes};
	const char *device = stack->device;
	char spec[64];
	int rc = 0;

	vma_ring_conf_to_nic_attr(&stack->conf, &attr);
	if (strchr(device, ':') == NULL) { /* just an interface: VMA_NIC says how to reach it */
		rc = vma_ring_conf_to_device_spec(&stack->conf, device, spec, sizeof(spec));
		device = spec;
	}
	if (rc == 0)
		rc = vma_nic_open(device, &attr, &stack->nic);
	return rc == 0 ? 0 : stack_print_failure(stack->device, rc);
}

static int open_ring(struct stack *stack)
{
	struct vma_ring_attr attr = {.nic = stack->nic, .spill_pool = stack->spill, .stats = stack->stats};
	int rc;

	vma_ring_conf_to_ring_attr(&stack->conf, &attr);
	rc = vma_ring_create(&attr, &stack->ring);
	return rc == 0 ? 0 : stack_print_failure("vma_ring_create", rc);
}

int stack_open(struct stack *stack, vma_flow_sink sink, void *owner)
{
	struct sigaction action = {.sa_handler = stack_on_signal};
	int rc;

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	vma_conf_load_and_init_log(&stack->conf, environ); /* the VMA_* variables, as the library reads them */
	vma_stats_create(stack->conf.stats_shmem_dir, &stack->stats);
	rc = stack_create_arena_and_spill_pool(stack);
	if (rc == 0)
		rc = stack_open_nic(stack);
	if (rc == 0)
		rc = open_ring(stack);
	if (rc != 0 || sink == NULL)
		return rc;
	/* 3-tuple: everything for this address and port, from whomever. The rest stays with the kernel. */
	stack->flow = (struct vma_flow){.sink = sink, .owner = owner};
	stack->flow.key.family = AF_INET;
	stack->flow.key.proto = IPPROTO_UDP;
	stack->flow.key.local_port_be = stack->port_be;
	memcpy(stack->flow.key.local, stack->local, sizeof(stack->local));
	rc = vma_ring_attach_flow(stack->ring, &stack->flow);
	return rc == 0 ? 0 : stack_print_failure("vma_ring_attach", rc);
}

void stack_close(struct stack *stack)
{
	if (stack->flow.ring != NULL)
		vma_ring_detach_flow(stack->ring, &stack->flow);
	vma_ring_destroy(stack->ring);
	if (stack->nic != NULL)
		vma_nic_close(stack->nic);
	if (stack->spill != NULL)
		vma_bufpool_retire(stack->spill, NULL, NULL);
	if (stack->arena != NULL)
		vma_bufarena_destroy(stack->arena);
	vma_stats_destroy(stack->stats);
}

char *stack_alloc_tx_buf_get_payload(struct stack *stack, const struct vma_pkt_udp *headers, struct vma_buf **buf,
                                     uint32_t *room)
{
	*buf = vma_ring_tx_buf(stack->ring);
	if (*buf == NULL)
		return NULL;
	*room = (1U << stack->arena->frame_shift) - (*buf)->data_off - headers->len;
	return vma_buf_data(stack->arena, *buf) + headers->len;
}

bool stack_send(struct stack *stack, struct vma_pkt_udp *headers, struct vma_buf *buf, uint32_t payload_bytes)
{
	struct vma_nic_seg segment = {.buf = buf, .off = buf->data_off};

	segment.len = vma_pkt_udp_write(headers, vma_buf_data(stack->arena, buf), payload_bytes, VMA_PKT_CSUM_FULL);
	if (vma_ring_send(stack->ring, &segment, 1, 0) == 1)
		return true;
	vma_buf_put(stack->arena, buf);
	return false;
}

void stack_wait_for_packets(struct stack *stack, uint64_t timeout_ns)
{
	if (stack->wait)
		vma_ring_wait(stack->ring, timeout_ns);
}

void stack_print_ring_stats(const struct stack *stack)
{
	const struct vma_stats_ring *stats = vma_ring_stats(stack->ring);

	printf("ring: %llu packets received, %llu delivered, %llu sent in %llu kicks\n",
	       (unsigned long long)vma_stats_read_counter(&stats->rx.rx_packets),
	       (unsigned long long)vma_stats_read_counter(&stats->rx.rx_delivered),
	       (unsigned long long)vma_stats_read_counter(&stats->tx.tx_packets),
	       (unsigned long long)vma_stats_read_counter(&stats->tx.tx_kicks));
	printf("ring: dropped %llu with a bad checksum, %llu without a flow, %llu for want of room to send\n",
	       (unsigned long long)vma_stats_read_counter(&stats->rx.rx_drop_l4_checksum),
	       (unsigned long long)vma_stats_read_counter(&stats->rx.rx_drop_no_flow),
	       (unsigned long long)vma_stats_read_counter(&stats->tx.tx_drop_queue));
}
