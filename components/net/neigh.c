/* neigh - neighbours that paths go through: asked for, watched, and resolved by the kernel. */
#include <errno.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <vma/log.h>

#include "message.h"
#include "net_priv.h"
#include "netlink.h"

#define DISCARD_PORT 9

static struct neigh_bucket *neigh_bucket_of(struct vma_net *net, uint32_t ifindex, const uint8_t address[16])
{
	uint32_t words[4], hash = ifindex;

	memcpy(words, address, sizeof(words));
	for (int i = 0; i < 4; i++)
		hash = (hash ^ words[i]) * 0x9e3779b1u;
	return &net->neighs[(hash >> 16) % NET_NEIGH_BUCKETS];
}

struct neigh *net_neigh_find(struct vma_net *net, const struct vma_net_neigh *like)
{
	struct neigh *neigh;

	LIST_FOREACH(neigh, neigh_bucket_of(net, like->ifindex, like->address), bucket)
	if (neigh->neigh.ifindex == like->ifindex && neigh->neigh.family == like->family &&
	    memcmp(neigh->neigh.address, like->address, 16) == 0)
		return neigh;
	return NULL;
}

struct neigh *net_neigh_find_or_add(struct vma_net *net, uint32_t ifindex, uint8_t family, const uint8_t address[16])
{
	struct vma_net_neigh like = {.ifindex = ifindex, .family = family};
	struct neigh *neigh;

	memcpy(like.address, address, 16);
	neigh = net_neigh_find(net, &like);
	if (neigh != NULL)
		return neigh;
	neigh = calloc(1, sizeof(*neigh));
	if (neigh == NULL)
		return NULL;
	neigh->neigh = like;
	LIST_INSERT_HEAD(neigh_bucket_of(net, ifindex, address), neigh, bucket);
	net_neigh_refresh_from_kernel(net, neigh);
	return neigh;
}

void net_neigh_drop_if_unused(struct neigh *neigh)
{
	if (!LIST_EMPTY(&neigh->paths))
		return;
	net_arp_stop_for_neigh(neigh);
	LIST_REMOVE(neigh, bucket);
	free(neigh);
}

/* ---- asking ---- */

struct neigh_reply {
	struct vma_net_neigh *neigh;
	bool found;
};

static void neigh_copy_from_netlink_reply(struct nlmsghdr *message, void *arg)
{
	struct neigh_reply *neigh_reply = arg;
	struct vma_net_neigh received;

	if (message->nlmsg_type != RTM_NEWNEIGH || net_msg_parse_neigh(message, &received) < 0 ||
	    received.ifindex != neigh_reply->neigh->ifindex ||
	    memcmp(received.address, neigh_reply->neigh->address, 16) != 0)
		return;
	*neigh_reply->neigh = received;
	neigh_reply->found = true;
}

static int neigh_refresh_state_from_kernel(struct vma_net *net, struct vma_net_neigh *neigh)
{
	struct neigh_reply neigh_reply = {.neigh = neigh};
	int rc = net_nl_send_request_and_read_replies(net->query,
	                                              net_msg_getneigh(neigh->ifindex, neigh->family, neigh->address),
	                                              neigh_copy_from_netlink_reply, &neigh_reply);

	if (rc == 0 && neigh_reply.found)
		return 0;
	neigh->state = 0;
	neigh->mac_len = 0;
	memset(neigh->mac, 0, sizeof(neigh->mac));
	return rc < 0 ? rc : -ENOENT;
}

void net_neigh_refresh_from_kernel(struct vma_net *net, struct neigh *neigh)
{
	neigh_refresh_state_from_kernel(net, &neigh->neigh);
	if (neigh->neigh.state != NUD_STALE)
		neigh->probed_ns = 0;
}

static int check_neigh_family(uint8_t family)
{
	if (family == AF_INET6)
		return -EAFNOSUPPORT;
	return family == AF_INET ? 0 : -EINVAL;
}

int vma_net_read_neigh_from_kernel(struct vma_net *net, uint32_t ifindex, uint8_t family, const void *address,
                                   struct vma_net_neigh *out)
{
	struct net_hold hold;
	int rc = check_neigh_family(family);

	if (rc < 0)
		return rc;
	memset(out, 0, sizeof(*out));
	out->ifindex = ifindex;
	out->family = family;
	memcpy(out->address, address, 4);
	net_lock(net, &hold);
	rc = neigh_refresh_state_from_kernel(net, out);
	net_unlock(net, &hold);
	return rc;
}

/* ---- probing ---- */

/* In the namespace of the tables, like the netlink sockets; therefore made at the start and kept. */
int net_open_neigh_probe_udp_socket(void)
{
	return net_move_fd_to_high_number(
	        (int)syscall(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/*
 * An empty datagram straight to the neighbour. IP_PKTINFO names the interface, MSG_DONTROUTE keeps it on the link, and
 * no privilege is needed for either; the kernel resolves as for any packet, and confirms a stale entry afterwards. What
 * comes back (port unreachable) is nobody's.
 */
static int send_empty_udp_to_resolve_neigh(int fd, uint32_t ifindex, const uint8_t address[4])
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(DISCARD_PORT)};
	const struct in_pktinfo via = {.ipi_ifindex = (int)ifindex};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
	} control = {0};
	struct msghdr message = {
	        .msg_name = &to,
	        .msg_namelen = sizeof(to),
	        .msg_control = &control,
	        .msg_controllen = sizeof(control),
	};

	memcpy(&to.sin_addr, address, 4);
	control.header.cmsg_level = IPPROTO_IP;
	control.header.cmsg_type = IP_PKTINFO;
	control.header.cmsg_len = CMSG_LEN(sizeof(via));
	memcpy(CMSG_DATA(&control.header), &via, sizeof(via));
	return syscall(SYS_sendmsg, fd, &message, MSG_DONTROUTE | MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int net_neigh_make_kernel_resolve(struct vma_net *net, uint32_t ifindex, uint8_t family, const uint8_t address[16])
{
	int rc = net_nl_send_request_and_read_replies(
	        net->query, net_msg_build_neigh_probe_request(ifindex, family, address), NULL, NULL);

	if (rc == -EPERM && net->probe_fd >= 0)
		rc = send_empty_udp_to_resolve_neigh(net->probe_fd, ifindex, address);
	if (rc < 0)
		vma_log_debug("net: the kernel does not resolve %u.%u.%u.%u on interface %u: %s", address[0],
		              address[1], address[2], address[3], ifindex, strerror(-rc));
	return rc;
}

void net_neigh_reprobe_if_failed(struct vma_net *net, struct neigh *neigh)
{
	const uint16_t valid = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;

	if ((neigh->neigh.state & valid) != 0)
		neigh->failures = 0;
	if ((neigh->neigh.state & NUD_FAILED) == 0 || neigh->failures >= net->attr.failed_retries)
		return;
	neigh->failures++;
	net_neigh_make_kernel_resolve(net, neigh->neigh.ifindex, neigh->neigh.family, neigh->neigh.address);
	net_neigh_refresh_from_kernel(net, neigh);
}

int vma_net_make_kernel_resolve_neigh(struct vma_net *net, uint32_t ifindex, uint8_t family, const void *address)
{
	struct net_hold hold;
	uint8_t padded[16] = {0};
	int rc = check_neigh_family(family);

	if (rc < 0)
		return rc;
	memcpy(padded, address, 4);
	net_lock(net, &hold);
	rc = net_neigh_make_kernel_resolve(net, ifindex, family, padded);
	net_unlock(net, &hold);
	return rc;
}
