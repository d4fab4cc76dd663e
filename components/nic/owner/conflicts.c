/*
 * conflicts - kernel socks that would receive what a flow takes. They are looked for before a flow is added, and they
 * win: only the kernel can give several sockets their packets. recheck.c looks for those that come up later.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "owner.h"

struct search {
	const struct xdp_owner *owner;
	const struct vma_flow_rule *rule;
	const struct owner_flow_waiter *waiter; /* names shadows of its own */
	struct kernel_sock found;
	bool any;
};

static void search_check_socket(const struct kernel_sock *socket, void *arg)
{
	struct search *search = arg;

	if (search->waiter != NULL && nic_cookies_has(&search->waiter->shadows, socket->cookie))
		return;
	if (!search->any && kernel_sock_conflicts(search->rule, socket, search->owner->ifindex) &&
	    socket->cookie != search->rule->shadow_cookie && !owner_flows_has_cookie(search->owner, socket->cookie)) {
		search->found = *socket;
		search->any = true;
	}
}

/* ---- listeners of one service ---- */

struct service_match {
	const struct vma_flow_rule *rule;
	struct kernel_sock mine;
	bool listens; /* `mine` was found */
	const struct nic_cookies *others;
	unsigned alike, unlike; /* of others */
	/* of those that stand in the way */
	const struct xdp_owner *owner;
	struct kernel_sock found;
	bool any;
};

static void find_mine(const struct kernel_sock *socket, void *arg)
{
	struct service_match *service_match = arg;

	if (socket->cookie == service_match->rule->shadow_cookie && socket->state == TCP_LISTEN) {
		service_match->mine = *socket;
		service_match->listens = true;
	}
}

/* The kernel has let both listen, so both have SO_REUSEPORT; in one group are those of the same address and device. */
static bool are_alike(const struct kernel_sock *a, const struct kernel_sock *b)
{
	return a->uid == b->uid && a->family == b->family && a->ifindex == b->ifindex && a->v6only == b->v6only &&
	       memcmp(a->local, b->local, sizeof(a->local)) == 0;
}

static void compare_service(const struct kernel_sock *socket, void *arg)
{
	struct service_match *service_match = arg;

	if (socket->state != TCP_LISTEN || !nic_cookies_has(service_match->others, socket->cookie))
		return;
	if (service_match->listens && are_alike(&service_match->mine, socket))
		service_match->alike++;
	else
		service_match->unlike++;
}

static int walk_listeners(struct xdp_owner *owner, const struct vma_flow_key *key,
                          void (*each)(const struct kernel_sock *, void *), struct service_match *service_match)
{
	return kernel_sock_walk(&owner->diag_fd, IPPROTO_TCP, ntohs(key->local_port_be), true, each, service_match);
}

int owner_conflicts_related(struct xdp_owner *owner, const struct vma_flow_rule *rule, const struct nic_cookies *others)
{
	struct service_match service_match = {.rule = rule, .others = others};
	int rc;

	if (rule->shadow_cookie != 0 && nic_cookies_has(others, rule->shadow_cookie))
		return 0;
	rc = walk_listeners(owner, &rule->key, find_mine, &service_match);
	if (rc == 0)
		rc = walk_listeners(owner, &rule->key, compare_service, &service_match);
	if (rc < 0)
		return rc;
	if (!service_match.listens)
		return rule->shadow_cookie != 0 && service_match.unlike > 0 ? -EAGAIN : -EADDRINUSE;
	return service_match.alike > 0 && service_match.unlike == 0 ? 0 : -EADDRINUSE;
}

static void check_other_socket(const struct kernel_sock *socket, void *arg)
{
	struct service_match *service_match = arg;
	const struct vma_flow_rule *rule = service_match->rule;

	if (service_match->any || socket->cookie == rule->shadow_cookie ||
	    !kernel_sock_conflicts(rule, socket, service_match->owner->ifindex) ||
	    owner_flows_has_cookie(service_match->owner, socket->cookie))
		return;
	if (owner_flow_waiter_names(service_match->owner, &rule->key, socket->cookie) &&
	    are_alike(&service_match->mine, socket))
		return;
	service_match->found = *socket;
	service_match->any = true;
}

/* There is one in the way besides listeners that other clients want to share this one's flow with. */
static bool has_stranger(struct xdp_owner *owner, const struct vma_flow_rule *rule, struct kernel_sock *found)
{
	struct service_match service_match = {.rule = rule, .owner = owner};

	if (walk_listeners(owner, &rule->key, find_mine, &service_match) < 0 || !service_match.listens ||
	    walk_listeners(owner, &rule->key, check_other_socket, &service_match) < 0)
		return true;
	*found = service_match.found;
	return service_match.any;
}

/* ---- before a flow is added ---- */

int owner_conflicts_refuse(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	struct search search = {
	        .owner = owner, .rule = rule, .waiter = owner_flow_waiter_find(owner, slot, &rule->key)};
	char text[96];
	const bool listener = rule->flags & VMA_FLOW_LISTENER;
	int rc;

	if (owner_flow_is_connection(&rule->key))
		rc = kernel_sock_connection(&owner->diag_fd, &rule->key, owner->ifindex, search_check_socket, &search);
	else
		rc = kernel_sock_walk(&owner->diag_fd, rule->key.proto, ntohs(rule->key.local_port_be), listener,
		                      search_check_socket, &search);
	owner_flow_describe(&rule->key, text, sizeof(text));
	if (rc < 0) {
		/* Not knowing is no licence to rob. */
		vma_log_once(VMA_LOG_WARN,
		             "%s: the kernel's sockets cannot be listed (error %d): %s stays with the kernel",
		             owner->name, -rc, text);
		return rc;
	}
	if (!search.any || (listener && !has_stranger(owner, rule, &search.found)))
		return 0;
	vma_log_once(VMA_LOG_WARN,
	             "%s: %s stays with the kernel: another socket (inode %u of user %u) receives on that port",
	             owner->name, text, search.found.inode, search.found.uid);
	return -EADDRINUSE;
}
