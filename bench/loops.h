/*
 * loops - the four things that every benchmark program does, whatever carries its packets.
 *
 *   ping   one packet there and back, again and again; half of each round trip goes into the histogram
 *   pong   sends back what arrives
 *   send   packets in bursts, one kick each, as fast as they are taken
 *   sink   counts what arrives: the rate is the receiver's
 *
 * Threads: one per process, pinned to its core.
 * Progress: all spin, but for a port whose receive sleeps in the kernel (kernel_udp without --spin).
 * Memory: a port is a static object of its program.
 * Example: kernel_udp.c is the shortest port.
 *
 * The calls through bench_port_ops are the same for all ports, so they cancel out of a comparison.
 */
#ifndef BENCH_LOOPS_H
#define BENCH_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

struct bench_opts {
	const char *device; /* interface, or the spec of a nic ("xdp:veth0", "wire:/dev/shm/x") */
	const char *owner;  /* ring_udp: "self" or "vmad" */
	uint8_t local_mac[6], peer_mac[6];
	uint32_t local_be, peer_be; /* IPv4 */
	uint16_t port_be;           /* the same on both sides */
	uint32_t frame_bytes;       /* with the Ethernet header, without its checksum */
	uint32_t burst;             /* send: packets per kick */
	uint32_t rounds;            /* ping */
	uint32_t msec;              /* send: how long; sink: how long to count, after a quarter of it to warm up */
	bool spin;
	int cpu;
};

#define BENCH_HEADERS_BYTES 42 /* Ethernet, IPv4, UDP; then a sequence number of 8 bytes, then a pattern */

struct bench_port_ops {
	void (*open)(const struct bench_opts *opts);
	/* Sends n packets with sequence numbers from seq on, with one kick; returns how many were taken. */
	unsigned (*send)(uint64_t seq, unsigned n);
	/* Packets that arrived, 0 if none; *seq becomes the last one's number. */
	unsigned (*receive)(uint64_t *seq);
	/* The same, and sends each of them back. */
	unsigned (*echo)(void);
	void (*close)(void);
};

/* Parses the command line, pins, opens, does what the first word says, prints the figures. Returns the exit status. */
int bench_main(int argc, char **argv, const struct bench_port_ops *ops);

/* Set by SIGTERM and SIGINT. */
extern volatile int bench_stop;

#endif
