/*
 * priv_fixture - what the privileged test programs of xdp stand on: packet memory, program, base socket and a few queue
 * pairs' sockets on an interface of this namespace, and a raw socket on the other end of its veth, in another one.
 *
 * A packet that the program redirects is seen in a slot's RX ring; one that it passes is seen by a packet socket on
 * the same interface. Each packet sent must show up in exactly one of these places.
 */
#ifndef VMA_PRIV_FIXTURE_H
#define VMA_PRIV_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "../xdp/xdp.h"

#define FIXTURE_SLOTS 3
#define FIXTURE_QUEUES_MAX 2
#define FIXTURE_FRAMES 1024
#define FIXTURE_RING 64
#define FIXTURE_PASSED (-1)
#define FIXTURE_NOWHERE (-2)

struct fixture {
	unsigned ifindex;
	int peer_raw;   /* sends frames from the other end */
	int tap;        /* sees what the kernel is given */
	uint8_t mac[6]; /* of the interface */
	char *umem;
	size_t umem_bytes;
	uint32_t queues;
	int base_fd[FIXTURE_QUEUES_MAX];
	struct xdp_ring fill[FIXTURE_QUEUES_MAX], comp[FIXTURE_QUEUES_MAX];
	struct xdp_prog *prog;
	bool generic;
	struct {
		int fd[FIXTURE_QUEUES_MAX];
		struct xdp_ring rx[FIXTURE_QUEUES_MAX], tx[FIXTURE_QUEUES_MAX];
	} slot[FIXTURE_SLOTS];
	char got[16384]; /* last packet that a slot received, its buffers put together */
	uint32_t got_bytes, got_buffers, got_queue;
};

/* A frame, described; fixture_build_frame makes its bytes. Addresses and ports in host order. */
struct fixture_packet {
	uint32_t source, dest;
	uint16_t source_port, dest_port;
	uint8_t proto, tcp_flags;
	uint16_t vlan;       /* 0: no tag */
	uint16_t id, frag;   /* the IP header's fields */
	uint16_t ether_type; /* 0: IPv4 */
	uint8_t option_words;
	const char *options; /* their first four bytes; NULL: no-operations, as are those behind */
	const uint8_t *mac;  /* NULL: the interface's own */
	uint32_t payload_bytes;
	uint32_t only_bytes; /* send no more than these of the frame; 0: all */
};

#define FIXTURE_SYN 0x02
#define FIXTURE_RST 0x04
#define FIXTURE_ACK 0x10

/* Interface of this namespace, the namespace and interface of the other end. Exits with a message on failure. */
void fixture_open(struct fixture *fixture, const char *name, const char *peer_netns, const char *peer_name,
                  uint32_t queues, uint16_t bind_flags);
void fixture_close(struct fixture *fixture);
/* Runs in the other end's namespace: an unconnected kernel socket of that namespace. */
int fixture_open_socket_in_peer_netns(const char *peer_netns, int domain, int type, int protocol);

/* Sends the packet from the other end and tells where it came out: a slot, FIXTURE_PASSED, or FIXTURE_NOWHERE. */
int fixture_send(struct fixture *fixture, const struct fixture_packet *packet);

/* Sends it without a pause while act(0), act(1), ... run, and tells how many of them the kernel was given. The slots'
 * rings are left full. *sent: how many there were. */
unsigned fixture_flood_and_count_kernel_packets(struct fixture *fixture, const struct fixture_packet *packet,
                                                void (*act)(unsigned), unsigned times, unsigned *sent);

struct vma_flow_key fixture_key_with_peer(const struct fixture_packet *packet);   /* the flow of exactly this packet */
struct vma_flow_key fixture_key_of_any_peer(const struct fixture_packet *packet); /* its 3-tuple */

/* Ends the test with a message unless `condition`. */
#define fixture_must(condition, ...)                                                                                   \
	((condition) ? (void)0 : fixture_fail_condition(__FILE__, __LINE__, #condition, __VA_ARGS__))
void fixture_fail_condition(const char *file, int line, const char *condition, const char *fmt, ...)
        __attribute__((noreturn, format(printf, 4, 5)));

#endif
