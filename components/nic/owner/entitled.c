/*
 * entitled - whether a client may have a flow at all: the flow of a port belongs to a client that can show the kernel's
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
 * The kernel is asked by sock_diag, and not by getsockname. getsockname waits for the socket's lock, which the socket's
 * owner can keep for as long as it likes, in the middle of a send from memory that does not come.
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

static int open_routes(struct xdp_owner *owner)
{
	const struct timeval timeout = {.tv_sec = 2}; /* the kernel answers within the call */

	if (owner->route_fd >= 0)
		return owner->route_fd;
	owner->route_fd = nic_fd_keep(os_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
	if (owner->route_fd >= 0)
		os_setsockopt(owner->route_fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	return owner->route_fd;
}

static bool is_of_this_host(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	const int fd = open_routes(owner);
	const int type = fd >= 0 ? nic_route_type(fd, key->local) : fd;

	if (type == -EAGAIN && fd >= 0) { /* an answer that comes late would be taken for the next one's */
		nic_fd_close(fd);
		owner->route_fd = -1;
	}
	return type == RTN_LOCAL || type == RTN_BROADCAST || type == RTN_MULTICAST;
}

/* ---- sockets ---- */

struct socket_search {
	const struct vma_flow_key *key;
	uint64_t cookie;
	bool seen;
};

static void entitled_check_socket(const struct kernel_sock *socket, void *arg)
{
	static const uint8_t none[16];
	struct socket_search *socket_search = arg;

	if (socket->cookie == socket_search->cookie && socket->port_be == socket_search->key->local_port_be &&
	    (memcmp(socket->local, none, sizeof(none)) == 0 ||
	     memcmp(socket->local, socket_search->key->local, sizeof(none)) == 0))
		socket_search->seen = true;
}

/* A socket that has been shown is bound to the flow's port. */
static bool is_bound(struct xdp_owner *owner, const struct vma_flow_key *key, const struct xdp_proof *proof)
{
	struct socket_search socket_search = {.key = key, .cookie = proof->cookie};

	return proof->cookie != 0 &&
	       kernel_sock_bound(&owner->diag_fd, proof->family, key->proto, ntohs(key->local_port_be),
	                         entitled_check_socket, &socket_search) == 0 &&
	       socket_search.seen;
}

struct cookie_search {
	const struct vma_flow_key *key;
	const uint64_t *cookies;
	unsigned n;
	bool any;
};

static void match_any_cookie(const struct kernel_sock *socket, void *arg)
{
	struct cookie_search *cookie_search = arg;

	for (unsigned i = 0; i < cookie_search->n && !cookie_search->any; i++) {
		struct socket_search socket_search = {.key = cookie_search->key, .cookie = cookie_search->cookies[i]};

		entitled_check_socket(socket, &socket_search);
		cookie_search->any = socket_search.seen;
	}
}

bool owner_any_is_bound(struct xdp_owner *owner, const struct vma_flow_key *key, const uint64_t *cookies, unsigned n)
{
	static const uint8_t families[] = {AF_INET, AF_INET6};
	struct cookie_search cookie_search = {.key = key, .cookies = cookies, .n = n};

	for (size_t i = 0; i < sizeof(families) && !cookie_search.any; i++)
		kernel_sock_bound(&owner->diag_fd, families[i], key->proto, ntohs(key->local_port_be), match_any_cookie,
		                  &cookie_search);
	return cookie_search.any;
}

static void check_listener(const struct kernel_sock *socket, void *arg)
{
	bool *any = arg;

	*any = *any || socket->state == TCP_LISTEN;
}

/* The kernel would give the connection's first segment to a socket that listens. */
static bool has_listener(struct xdp_owner *owner, const struct vma_flow_key *key)
{
	bool any = false;

	return kernel_sock_connection(&owner->diag_fd, key, owner->ifindex, check_listener, &any) < 0 || any;
}

/* ---- flows ---- */

static int may_have_connection(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key,
                               const struct xdp_proof *proof)
{
	switch (owner_flow_covers(owner, slot, key)) {
	case OWNER_COVERED_BY_LISTENER:
		return 0;
	case OWNER_COVERED_BY_ANOTHER:
		return -EADDRINUSE;
	case OWNER_COVERED_BY_BLOCK:
		if (is_bound(owner, key, proof))
			return 0;
		return has_listener(owner, key) ? -EPERM : 1;
	case OWNER_NOT_COVERED:
		break;
	}
	return is_bound(owner, key, proof) ? 0 : -EPERM;
}

static int may_have_block(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key)
{
	if (ntohs(key->local_port_be) < PRIVILEGED_PORTS)
		return -EPERM;
	return owner_flow_blocks(owner, slot) < OWNER_BLOCKS_EACH ? 0 : -ENOSPC;
}

int owner_entitled(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule,
                   const struct xdp_proof *proof)
{
	const struct vma_flow_key *key = &rule->key;
	const bool connection = owner_flow_is_connection(key);

	if (!connection && rule->shadow_cookie != proof->cookie)
		return -EPERM;
	if (proof->raw)
		return 0;
	if (!is_of_this_host(owner, key))
		return -EADDRNOTAVAIL;
	if (connection)
		return may_have_connection(owner, slot, key, proof);
	if (key->proto == VMA_FLOW_TCP_PORTS)
		return may_have_block(owner, slot, key);
	return is_bound(owner, key, proof) ? 0 : -EPERM;
}
