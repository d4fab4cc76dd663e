/* tables - interfaces and their addresses. */
#include <errno.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "message.h"
#include "net_priv.h"
#include "netlink.h"

static struct link *find_link(struct vma_net *net, uint32_t ifindex)
{
	struct link *link;

	LIST_FOREACH(link, &net->links, all)
	if (link->link.ifindex == ifindex)
		return link;
	return NULL;
}

const struct vma_net_link *net_tables_find_link(struct vma_net *net, uint32_t ifindex)
{
	struct link *link = find_link(net, ifindex);

	return link != NULL ? &link->link : NULL;
}

bool net_tables_apply_link(struct vma_net *net, const struct vma_net_link *received, bool gone)
{
	struct link *link = find_link(net, received->ifindex);

	if (gone) {
		if (link != NULL) {
			LIST_REMOVE(link, all);
			free(link);
		}
		return link != NULL;
	}
	if (link == NULL) {
		link = calloc(1, sizeof(*link));
		if (link == NULL)
			return false;
		LIST_INSERT_HEAD(&net->links, link, all);
	}
	link->seen = true;
	if (memcmp(&link->link, received, sizeof(*received)) == 0)
		return false;
	link->link = *received;
	return true;
}

/* An interface may have the same address twice, with different prefixes. */
static struct addr *find_addr(struct vma_net *net, const struct vma_net_addr *like)
{
	struct addr *addr;

	LIST_FOREACH(addr, &net->addrs, all)
	if (addr->addr.ifindex == like->ifindex && addr->addr.family == like->family &&
	    addr->addr.prefix_len == like->prefix_len && memcmp(addr->addr.address, like->address, 16) == 0 &&
	    memcmp(addr->addr.peer, like->peer, 16) == 0)
		return addr;
	return NULL;
}

bool net_tables_apply_addr(struct vma_net *net, const struct vma_net_addr *received, bool gone)
{
	struct addr *addr = find_addr(net, received);

	if (gone) {
		if (addr != NULL) {
			LIST_REMOVE(addr, all);
			free(addr);
		}
		return addr != NULL;
	}
	if (addr == NULL) {
		addr = calloc(1, sizeof(*addr));
		if (addr == NULL)
			return false;
		LIST_INSERT_HEAD(&net->addrs, addr, all);
	}
	addr->seen = true;
	if (memcmp(&addr->addr, received, sizeof(*received)) == 0)
		return false;
	addr->addr = *received;
	return true;
}

/* ---- reading everything ---- */

static void net_tables_on_netlink_reply(struct nlmsghdr *message, void *arg)
{
	struct vma_net_link link;
	struct vma_net_addr addr;

	if (message->nlmsg_type == RTM_NEWLINK && net_msg_parse_link(message, &link) == 0)
		net_tables_apply_link(arg, &link, false);
	else if (message->nlmsg_type == RTM_NEWADDR && net_msg_parse_addr(message, &addr) == 0)
		net_tables_apply_addr(arg, &addr, false);
}

static void remove_unseen_links_and_addrs(struct vma_net *net)
{
	struct link *link, *next_link;
	struct addr *addr, *next_addr;

	for (link = LIST_FIRST(&net->links); link != NULL; link = next_link) {
		next_link = LIST_NEXT(link, all);
		if (!link->seen)
			net_tables_apply_link(net, &link->link, true);
	}
	for (addr = LIST_FIRST(&net->addrs); addr != NULL; addr = next_addr) {
		next_addr = LIST_NEXT(addr, all);
		if (!addr->seen)
			net_tables_apply_addr(net, &addr->addr, true);
	}
}

int net_tables_sync(struct vma_net *net)
{
	struct link *link;
	struct addr *addr;
	int rc;

	LIST_FOREACH(link, &net->links, all)
	link->seen = false;
	LIST_FOREACH(addr, &net->addrs, all)
	addr->seen = false;
	rc = net_nl_send_request_and_read_replies(net->query, net_msg_build_link_dump_request(),
	                                          net_tables_on_netlink_reply, net);
	if (rc == 0)
		rc = net_nl_send_request_and_read_replies(net->query, net_msg_build_addr_dump_request(),
		                                          net_tables_on_netlink_reply, net);
	if (rc < 0) {
		vma_log_once(VMA_LOG_WARN, "net: the kernel's interfaces and addresses cannot be read: %s",
		             strerror(-rc));
		return rc;
	}
	remove_unseen_links_and_addrs(net);
	return 0;
}

void net_tables_fini(struct vma_net *net)
{
	while (!LIST_EMPTY(&net->links))
		net_tables_apply_link(net, &LIST_FIRST(&net->links)->link, true);
	while (!LIST_EMPTY(&net->addrs))
		net_tables_apply_addr(net, &LIST_FIRST(&net->addrs)->addr, true);
}

/* ---- for others ---- */

static int net_find_and_copy_link(struct vma_net *net, uint32_t ifindex, struct vma_net_link *out, bool known)
{
	struct net_hold hold;
	const struct link *link;

	net_lock(net, &hold);
	if (!known)
		net_process_events_and_timers(net);
	link = find_link(net, ifindex);
	if (link != NULL)
		*out = link->link;
	net_unlock(net, &hold);
	return link != NULL ? 0 : -ENODEV;
}

int vma_net_get_link(struct vma_net *net, uint32_t ifindex, struct vma_net_link *out)
{
	return net_find_and_copy_link(net, ifindex, out, false);
}

int vma_net_link_cached(struct vma_net *net, uint32_t ifindex, struct vma_net_link *out)
{
	return net_find_and_copy_link(net, ifindex, out, true);
}

int vma_net_link_by_name(struct vma_net *net, const char *name, struct vma_net_link *out)
{
	struct net_hold hold;
	const struct link *link;

	net_lock(net, &hold);
	net_process_events_and_timers(net);
	LIST_FOREACH(link, &net->links, all)
	if (strcmp(link->link.name, name) == 0)
		break;
	if (link != NULL)
		*out = link->link;
	net_unlock(net, &hold);
	return link != NULL ? 0 : -ENODEV;
}

int vma_net_links(struct vma_net *net, struct vma_net_link *out, unsigned max)
{
	struct net_hold hold;
	const struct link *link;
	unsigned n = 0;

	net_lock(net, &hold);
	net_process_events_and_timers(net);
	LIST_FOREACH(link, &net->links, all)
	{
		if (n < max)
			out[n] = link->link;
		n++;
	}
	net_unlock(net, &hold);
	return (int)n;
}

int vma_net_addrs(struct vma_net *net, uint32_t ifindex, struct vma_net_addr *out, unsigned max)
{
	struct net_hold hold;
	const struct addr *addr;
	unsigned n = 0;

	net_lock(net, &hold);
	net_process_events_and_timers(net);
	LIST_FOREACH(addr, &net->addrs, all)
	{
		if (ifindex != 0 && addr->addr.ifindex != ifindex)
			continue;
		if (n < max)
			out[n] = addr->addr;
		n++;
	}
	net_unlock(net, &hold);
	return (int)n;
}
