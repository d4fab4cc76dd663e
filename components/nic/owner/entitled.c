/*
 * entitled - whether a client may have a flow at all. The flow of a port belongs to a client that can show the kernel's
 * socket of that port.
 *
 *   asks for                what it has to show
 *   UDP; TCP from any peer  a socket that is bound to the port, at the flow's address or at none; it is the shadow
 *   TCP from one peer       nothing, if its own listener's flow or its own block covers the port; else a socket, bound
 *                           to it. In another's block, too: a connection without a rule has its port alone, so no other
 *                           process's socket could have been bound beside it (ring_ports.c). Never what another's
 *                           listener covers
 *   a block of ports        nothing; no port below 1024 is in it, and there are OWNER_BLOCKS_EACH for a client
 *   any of these            nothing but CAP_NET_RAW, if it names no shadow
 *
 * The kernel is asked by sock_diag, and not by getsockname. getsockname waits for the socket's lock. The socket's owner
 * can keep that lock for as long as it likes, in the middle of a send from memory that does not come.
 *
 * The local address is one of this host's, as the kernel's table of routes says. Otherwise a client would get packets
 * that the kernel only forwards. CAP_NET_RAW is exempt: stacks with addresses of their own need it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "../os.h"
#include "../route_type.h"
#include "owner.h"

#define OWNER_BLOCKS_EACH 128 /* as a ring's at most: the ports that Linux gives to connections are in 111 */
#define PRIVILEGED_PORTS 1024

/* ---- addresses ---- */

static int get_or_open_route_netlink_socket(struct xdp_owner *owner)
{
	const struct timeval timeout = {.tv_sec = 2}; /* the kernel answers within the call */

	if (owner->route_fd >= 0)
		return owner->route_fd;
	owner->route_fd = nic_fd_move_high(os_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
	if (owner->route_fd >= 0)
		os_setsockopt(owner->route_fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	return owner->route_fd;
}

static bool flow_key_is_local_address(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	const int fd = get_or_open_route_netlink_socket(owner);
	const int type = fd >= 0 ? nic_route_type(fd, key->local) : fd;

	if (type == -EAGAIN && fd >= 0) { /* an answer that comes late would be taken for the next one's */
		nic_fd_close(fd);
		owner->route_fd = -1;
	}
	return type == RTN_LOCAL || type == RTN_BROADCAST || type == RTN_MULTICAST;
}

/* ---- sockets ---- */

struct bound_socket_search {
	const struct vma_flow_key *key;
	uint64_t cookie;
	bool seen;
};

static void note_if_socket_is_bound_to_key(const struct kernel_sock *socket, void *arg)
{
	static const uint8_t none[16];
	struct bound_socket_search *bound_socket_search = arg;

	if (socket->cookie == bound_socket_search->cookie &&
	    socket->port_be == bound_socket_search->key->local_port_be &&
	    (memcmp(socket->local, none, sizeof(none)) == 0 ||
	     memcmp(socket->local, bound_socket_search->key->local, sizeof(none)) == 0))
		bound_socket_search->seen = true;
}

/* A socket that has been shown is bound to the flow's port. */
static bool socket_is_bound_to_key(struct xdp_owner *owner, const struct vma_flow_key *key,
                                   const struct xdp_proof_socket *proof)
{
	struct bound_socket_search bound_socket_search = {.key = key, .cookie = proof->cookie};

	return proof->cookie != 0 &&
	       kernel_sock_visit_sockets_bound_to_port(&owner->diag_fd, proof->family, key->proto,
	                                               ntohs(key->local_port_be), note_if_socket_is_bound_to_key,
	                                               &bound_socket_search) == 0 &&
	       bound_socket_search.seen;
}

struct bound_cookie_search {
	const struct vma_flow_key *key;
	const uint64_t *cookies;
	unsigned n;
	bool any;
};

static void note_if_socket_is_bound_with_any_cookie(const struct kernel_sock *socket, void *arg)
{
	struct bound_cookie_search *bound_cookie_search = arg;

	for (unsigned i = 0; i < bound_cookie_search->n && !bound_cookie_search->any; i++) {
		struct bound_socket_search bound_socket_search = {.key = bound_cookie_search->key,
		                                                  .cookie = bound_cookie_search->cookies[i]};

		note_if_socket_is_bound_to_key(socket, &bound_socket_search);
		bound_cookie_search->any = bound_socket_search.seen;
	}
}

bool owner_any_socket_is_bound_to_key(struct xdp_owner *owner, const struct vma_flow_key *key, const uint64_t *cookies,
                                      unsigned n)
{
	static const uint8_t families[] = {AF_INET, AF_INET6};
	struct bound_cookie_search bound_cookie_search = {.key = key, .cookies = cookies, .n = n};

	for (size_t i = 0; i < sizeof(families) && !bound_cookie_search.any; i++)
		kernel_sock_visit_sockets_bound_to_port(&owner->diag_fd, families[i], key->proto,
		                                        ntohs(key->local_port_be),
		                                        note_if_socket_is_bound_with_any_cookie, &bound_cookie_search);
	return bound_cookie_search.any;
}

static void note_any_listener(const struct kernel_sock *socket, void *arg)
{
	bool *any = arg;

	*any = *any || socket->state == TCP_LISTEN;
}

/* The kernel would give the connection's first segment to a socket that listens. */
static bool port_has_kernel_listener(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	bool any = false;

	return kernel_sock_visit_sockets_of_connection(&owner->diag_fd, key, owner->ifindex, note_any_listener, &any) <
	               0 ||
	       any;
}

/* ---- flows ---- */

static int slot_may_have_connection_flow(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key,
                                         const struct xdp_proof_socket *proof)
{
	switch (owner_connection_covered_by(owner, slot, key)) {
	case OWNER_COVERED_BY_LISTENER:
		return 0;
	case OWNER_COVERED_BY_ANOTHER:
		return -EADDRINUSE;
	case OWNER_COVERED_BY_BLOCK:
		if (socket_is_bound_to_key(owner, key, proof))
			return 0;
		return port_has_kernel_listener(owner, key) ? -EPERM : 1;
	case OWNER_NOT_COVERED:
		break;
	}
	return socket_is_bound_to_key(owner, key, proof) ? 0 : -EPERM;
}

static int slot_may_have_port_block(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	if (ntohs(key->local_port_be) < PRIVILEGED_PORTS)
		return -EPERM;
	return owner_slot_port_block_count(owner, slot) < OWNER_BLOCKS_EACH ? 0 : -ENOSPC;
}

int owner_slot_is_entitled_to_flow(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule,
                                   const struct xdp_proof_socket *proof)
{
	const struct vma_flow_key *key = &rule->key;
	const bool connection = owner_flow_is_connection(key);

	if (!connection && rule->shadow_cookie != proof->cookie)
		return -EPERM;
	if (proof->raw)
		return 0;
	if (!flow_key_is_local_address(owner, key))
		return -EADDRNOTAVAIL;
	if (connection)
		return slot_may_have_connection_flow(owner, slot, key, proof);
	if (key->proto == VMA_FLOW_TCP_PORTS)
		return slot_may_have_port_block(owner, slot, key);
	return socket_is_bound_to_key(owner, key, proof) ? 0 : -EPERM;
}
