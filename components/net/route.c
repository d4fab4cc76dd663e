/* route - the kernel's decision for one key. */
#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>

#include "message.h"
#include "net_priv.h"
#include "netlink.h"

struct route_reply {
	const struct vma_net_key *key;
	struct vma_net_route *route;
	int rc;
};

static void route_parse_netlink_reply(struct nlmsghdr *message, void *arg)
{
	struct route_reply *route_reply = arg;

	if (message->nlmsg_type == RTM_NEWROUTE)
		route_reply->rc = net_msg_parse_route(message, route_reply->key, route_reply->route);
}

static int route_query_once(struct vma_net *net, const struct vma_net_key *key, struct vma_net_route *out)
{
	struct route_reply route_reply = {.key = key, .route = out, .rc = -EIO};
	const int rc = net_nl_send_request_and_read_replies(net->query, net_msg_getroute(key),
	                                                    route_parse_netlink_reply, &route_reply);

	if (rc < 0)
		return rc;
	return route_reply.rc < 0 ? PLAN_NOT_ASKED : 0;
}

int net_route_query(struct vma_net *net, const struct vma_net_key *key, struct vma_net_route *out)
{
	static const uint8_t zero[16];
	struct vma_net_key again;
	int rc = route_query_once(net, key, out);

	if (rc < 0 || (key->flags & VMA_NET_KEY_CONNECT) == 0 || memcmp(key->src, zero, 16) != 0)
		return rc;
	/* As ip_route_connect(): the first lookup finds the source, the second one the way. */
	again = *key;
	memcpy(again.src, out->src, 16);
	return route_query_once(net, &again, out);
}

static int check_route_key(const struct vma_net_key *key)
{
	if (key->family == AF_INET6)
		return -EAFNOSUPPORT;
	return key->family == AF_INET && key->zero == 0 ? 0 : -EINVAL;
}

int vma_net_query_route(struct vma_net *net, const struct vma_net_key *key, struct vma_net_route *out)
{
	struct net_hold hold;
	int rc = check_route_key(key);

	if (rc < 0)
		return rc;
	net_lock(net, &hold);
	rc = net_route_query(net, key, out);
	net_unlock(net, &hold);
	return rc;
}
