/* route - the kernel's decision for one key. */
#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>

#include "message.h"
#include "net_priv.h"
#include "netlink.h"

struct answer {
	const struct vma_net_key *key;
	struct vma_net_route *route;
	int rc;
};

static void route_take_answer(struct nlmsghdr *message, void *arg)
{
	struct answer *answer = arg;

	if (message->nlmsg_type == RTM_NEWROUTE)
		answer->rc = net_msg_route(message, answer->key, answer->route);
}

static int ask_once(struct vma_net *net, const struct vma_net_key *key, struct vma_net_route *out)
{
	struct answer answer = {.key = key, .route = out, .rc = -EIO};
	const int rc = net_nl_ask(net->ask, net_msg_ask_route(key), route_take_answer, &answer);

	if (rc < 0)
		return rc;
	return answer.rc < 0 ? PLAN_NOT_ASKED : 0;
}

int net_route_ask(struct vma_net *net, const struct vma_net_key *key, struct vma_net_route *out)
{
	static const uint8_t zero[16];
	struct vma_net_key again;
	int rc = ask_once(net, key, out);

	if (rc < 0 || (key->flags & VMA_NET_KEY_CONNECT) == 0 || memcmp(key->src, zero, 16) != 0)
		return rc;
	/* As ip_route_connect(): the first lookup finds the source, the second one the way. */
	again = *key;
	memcpy(again.src, out->src, 16);
	return ask_once(net, &again, out);
}

static int check_route_key(const struct vma_net_key *key)
{
	if (key->family == AF_INET6)
		return -EAFNOSUPPORT;
	return key->family == AF_INET && key->zero == 0 ? 0 : -EINVAL;
}

int vma_net_route(struct vma_net *net, const struct vma_net_key *key, struct vma_net_route *out)
{
	struct net_hold hold;
	int rc = check_route_key(key);

	if (rc < 0)
		return rc;
	net_lock(net, &hold);
	rc = net_route_ask(net, key, out);
	net_unlock(net, &hold);
	return rc;
}
