/*
 * arp - confirms stale neighbours that are in use by ARP requests of the library's own, as VMA_NEIGH_UC_ARP_QUATA and
 * VMA_NEIGH_UC_ARP_DELAY_MSEC say. If these are not set, the kernel does it in its way (neigh.c).
 *
 *   a sender finds it stale ──> unicast ──delay──> unicast ... ──delay──> broadcast ──delay──> the kernel's way
 *
 * The answers go to the kernel, which takes them for its own entry (RFC 826), and its event ends the sequence. If no
 * answer comes, the kernel resolves anew, and finds that the neighbour has gone.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_arp.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/neighbour.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "net_priv.h"
#include "netlink.h"

struct arp_request { /* RFC 826, of Ethernet and IPv4 */
	uint16_t hw_type_be, protocol_be;
	uint8_t hw_len, protocol_len;
	uint16_t operation_be;
	uint8_t own_mac[6], own[4], mac[6], target[4];
} __attribute__((packed));
_Static_assert(sizeof(struct arp_request) == 28, "as on the wire");

int net_arp_open(void)
{
	return net_move_fd_to_high_number(
	        (int)syscall(SYS_socket, AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/* The source is that of a path: an address of this host's. */
static int arp_send_request(struct vma_net *net, const struct neigh *neigh, bool to_all)
{
	struct sockaddr_ll to = {.sll_family = AF_PACKET,
	                         .sll_protocol = htons(ETH_P_ARP),
	                         .sll_ifindex = (int)neigh->neigh.ifindex,
	                         .sll_halen = 6};
	struct arp_request request = {.hw_type_be = htons(ARPHRD_ETHER),
	                              .protocol_be = htons(ETH_P_IP),
	                              .hw_len = 6,
	                              .protocol_len = 4,
	                              .operation_be = htons(ARPOP_REQUEST)};
	const struct vma_net_link *link = net_tables_find_link(net, neigh->neigh.ifindex);
	const struct path *path = LIST_FIRST(&neigh->paths);

	if (link == NULL || link->hw_type != ARPHRD_ETHER || path == NULL || neigh->neigh.mac_len != 6)
		return -EOPNOTSUPP;
	memcpy(request.own_mac, link->mac, 6);
	memcpy(request.own, path->plan.src, 4);
	memcpy(request.target, neigh->neigh.address, 4);
	if (to_all)
		memset(to.sll_addr, 0xff, 6);
	else
		memcpy(to.sll_addr, neigh->neigh.mac, 6);
	return syscall(SYS_sendto, net->arp_fd, &request, sizeof(request), MSG_DONTWAIT | MSG_NOSIGNAL, &to,
	               sizeof(to)) < 0
	               ? -errno
	               : 0;
}

static void arp_send_next_request(struct vma_net *net, struct neigh *neigh, uint64_t now_ns)
{
	const bool to_all = neigh->arps >= net->attr.uc_arps;
	const int rc = arp_send_request(net, neigh, to_all);

	if (rc < 0)
		vma_log_debug("net: an ARP request is not sent on interface %u: %s", neigh->neigh.ifindex,
		              strerror(-rc));
	neigh->arps++;
	neigh->arp_ns = now_ns + (uint64_t)net->attr.uc_arp_delay_msec * 1000000;
}

void net_arp_stop_for_neigh(struct neigh *neigh)
{
	if (neigh->arp_ns != 0)
		LIST_REMOVE(neigh, arping);
	neigh->arp_ns = 0;
}

bool net_arp_start_confirming_neigh(struct vma_net *net, struct neigh *neigh)
{
	if (net->arp_fd < 0 || neigh->neigh.state != NUD_STALE)
		return false;
	if (neigh->arp_ns != 0)
		return true;
	neigh->arps = 0;
	LIST_INSERT_HEAD(&net->arping, neigh, arping);
	arp_send_next_request(net, neigh, net_now_ns());
	return true;
}

/* The last request was to all, and has had its time. */
static void arp_stop_and_let_kernel_probe(struct vma_net *net, struct neigh *neigh)
{
	net_arp_stop_for_neigh(neigh);
	net_neigh_make_kernel_resolve(net, neigh->neigh.ifindex, neigh->neigh.family, neigh->neigh.address);
	net_neigh_refresh_from_kernel(net, neigh);
	neigh->probed_ns = neigh->neigh.state == NUD_STALE ? net_now_ns() : 0;
}

void net_arp_process_due_neighs(struct vma_net *net, uint64_t now_ns)
{
	struct neigh *neigh, *next;

	for (neigh = LIST_FIRST(&net->arping); neigh != NULL; neigh = next) {
		next = LIST_NEXT(neigh, arping);
		if (now_ns < neigh->arp_ns)
			continue;
		net_neigh_refresh_from_kernel(net, neigh);
		if (neigh->neigh.state != NUD_STALE)
			net_arp_stop_for_neigh(neigh);
		else if (neigh->arps > net->attr.uc_arps)
			arp_stop_and_let_kernel_probe(net, neigh);
		else
			arp_send_next_request(net, neigh, now_ns);
		net_paths_republish_for_neigh(neigh);
	}
}

uint64_t net_arp_next_due_ns(const struct vma_net *net)
{
	const struct neigh *neigh;
	uint64_t due = 0;

	LIST_FOREACH(neigh, &net->arping, arping)
	if (due == 0 || neigh->arp_ns < due)
		due = neigh->arp_ns;
	return due;
}
