/*
 * stack - what all examples need before the first packet: options, memory, a NIC, a ring.
 *
 * Threads: one. Progress: only stack_wait_for_packets sleeps, and only with --wait.
 * Memory: one static struct stack, zeroed; close accepts a half-open one.
 * Example: udp_echo.c, udp_ping.c, tcp_echo.c.
 */
#ifndef EXAMPLES_STACK_H
#define EXAMPLES_STACK_H

#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/bufpool.h>
#include <vma/conf.h>
#include <vma/nic.h>
#include <vma/packet.h>
#include <vma/ring.h>
#include <vma/stats.h>

struct stack {
	/* from the command line */
	const char *device; /* "xdp:IFNAME", "wire:FILE", or just IFNAME */
	const char *vmad_path;
	bool use_vmad;
	bool wait;
	uint8_t local[4];
	uint16_t port_be;
	uint64_t window_bytes;

	/* from open to close */
	struct vma_conf conf;
	struct vma_stats *stats;
	struct vma_bufarena *arena;
	struct vma_bufpool *spill;
	struct vma_nic *nic;
	struct vma_ring *ring;
	struct vma_flow flow;
};

/* Set by SIGINT and SIGTERM. */
extern volatile sig_atomic_t stack_stop;

/* The options of stack.c for getopt_long; letters below 128 are free for the example's own. */
#define STACK_OPTIONS                                                                                                  \
	{"local", required_argument, NULL, 1001}, {"port", required_argument, NULL, 1002},                             \
	        {"owner", required_argument, NULL, 1003}, {"vmad", required_argument, NULL, 1004},                     \
	        {"wait", no_argument, NULL, 1005},                                                                     \
	{                                                                                                              \
		"window", required_argument, NULL, 1006                                                                \
	}
#define STACK_USAGE                                                                                                    \
	"  --local ADDRESS     IPv4 address of this side\n"                                                            \
	"  --port PORT         port of this side (7000)\n"                                                             \
	"  --owner self|vmad   who owns the device: this process (default), or the daemon\n"                           \
	"  --vmad PROGRAM      start this one if no daemon owns the interface yet\n"                                   \
	"  --wait              sleep when there is nothing to do; without it, poll\n"                                  \
	"  --window MEGABYTES  packet memory to register per device queue (16)\n"

/* Takes one option; false if it is not of STACK_OPTIONS, or its value is bad (a message has been printed). */
bool stack_handle_cli_option(struct stack *stack, int letter, const char *value);
/* A number from 0 to max; anything else ends the process with a message. */
uint64_t stack_parse_number_or_exit(const char *option, const char *value, uint64_t max);

/* Everything up to the attached flow; without a sink, up to the ring. Returns 0 or a negative errno; a message names
 * the step that failed. */
int stack_open(struct stack *stack, vma_flow_sink sink, void *owner);
void stack_close(struct stack *stack);

/* A datagram's buffer: the payload goes to the returned place, at most *room bytes. NULL: none free at the moment. */
char *stack_alloc_tx_buf_get_payload(struct stack *stack, const struct vma_pkt_udp *headers, struct vma_buf **buf,
                                     uint32_t *room);
/* Writes the headers in front of the payload and sends. False: the queue is full, and the buffer was put back. */
bool stack_send(struct stack *stack, struct vma_pkt_udp *headers, struct vma_buf *buf, uint32_t payload_bytes);

/* Called when vma_ring_progress found nothing: sleeps until something arrives, at most for
 * timeout_ns. */
void stack_wait_for_packets(struct stack *stack, uint64_t timeout_ns);

/* What the ring received, sent and dropped, by its own counters. */
void stack_print_ring_stats(const struct stack *stack);

#endif
