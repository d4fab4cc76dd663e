/*
 * kernel_sock - the kernel's sockets, as sock_diag lists them, and whether a flow would take what one receives.
 *
 * Threads: any; a descriptor that is kept for the next call is one caller's.
 * Progress: a call waits for the kernel's answer, two seconds at most.
 * Memory: the caller's.
 * Example: test/test_owner.c.
 */
#ifndef VMA_NIC_KERNEL_SOCK_H
#define VMA_NIC_KERNEL_SOCK_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>

/* A kernel socket that would receive what `key` asks for. */
struct kernel_sock {
	uint64_t cookie;
	uint32_t inode, uid;
	uint8_t family, proto, state;
	bool v6only;
	unsigned ifindex; /* SO_BINDTODEVICE, 0: none */
	uint16_t port_be, peer_port_be;
	uint8_t local[16], peer[16]; /* IPv4 in the first four bytes, also when it came as a mapped IPv6 address */
};

/* Every UDP (TCP) socket of this network namespace, or only those of one local port (host order; 0: all), or of these
 * only the TCP listeners: a list of all connections costs the kernel a walk over a large table. -errno. Asked by the
 * netlink socket *kept, which is opened if it is -1, and stays open: the program would see its number come and go.
 * NULL: one for this question. */
int kernel_sock_visit_sockets_of_port(int *kept, uint8_t proto, uint16_t port, bool listeners,
                                      void (*see)(const struct kernel_sock *socket, void *arg), void *arg);
/* The same of ranges of local ports, which the kernel looks at: of any set of ports as few ranges as there is room for,
 * with ports between them that are not in the set. */
#define PORT_RANGES_MAX 16
struct port_ranges {
	uint32_t n;
	uint16_t first[PORT_RANGES_MAX], last[PORT_RANGES_MAX];
};
void port_ranges_covering_bitmap(const uint8_t ports[65536 / 8], struct port_ranges *out);
int kernel_sock_visit_sockets_in_port_ranges(int *kept, uint8_t proto, const struct port_ranges *ranges, bool listeners,
                                             void (*see)(const struct kernel_sock *socket, void *arg), void *arg);
/* The same of those that are connected with the key's peer, at any local address. */
int kernel_sock_walk_connected(int *kept, const struct vma_flow_key *key,
                               void (*see)(const struct kernel_sock *socket, void *arg), void *arg);
/* The sockets of one family that are bound to a local port (host order): all of UDP; of TCP those that listen or have
 * no connection yet (Linux 6.8: kernels before that do not tell of these). -errno. */
int kernel_sock_visit_sockets_bound_to_port(int *kept, uint8_t family, uint8_t proto, uint16_t port,
                                            void (*see)(const struct kernel_sock *socket, void *arg), void *arg);
/* The one TCP socket that the kernel would ask first for a packet of this 5-tuple, if there is one. -errno. */
int kernel_sock_visit_sockets_of_connection(int *kept, const struct vma_flow_key *key, unsigned ifindex,
                                            void (*see)(const struct kernel_sock *socket, void *arg), void *arg);
/* Every socket that receives there gets a copy. */
static inline bool kernel_sock_flow_is_multicast(const struct vma_flow_key *key)
{
	return key->proto == IPPROTO_UDP && (key->local[0] & 0xf0) == 0xe0;
}
/* Would the kernel give `socket` packets that the rule takes? */
bool kernel_sock_conflicts(const struct vma_flow_rule *rule, const struct kernel_sock *socket, unsigned ifindex);

/*
 * A socket conflicts with a flow for certain only if two looks in a row have seen it: between bind() of a shadow and the
 * call that names it to its flow it looks like one, too. A flow suspects one socket at a time, and no other during the
 * same look: of several one is seen again.
 */
struct kernel_sock_suspected_before {
	uint64_t cookie; /* 0: none */
	uint32_t look;   /* that saw it first */
};
/* `look`: the number of this look. True: the socket was suspected at an earlier one. */
static inline bool kernel_sock_suspected_before(struct kernel_sock_suspected_before *suspect,
                                                const struct kernel_sock *socket, uint32_t look)
{
	if (suspect->cookie == socket->cookie)
		return suspect->look != look;
	if (suspect->cookie == 0 || suspect->look != look)
		*suspect = (struct kernel_sock_suspected_before){.cookie = socket->cookie, .look = look};
	return false;
}

#endif
