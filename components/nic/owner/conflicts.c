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

static void conflict_search_check_socket(const struct kernel_sock *socket, void *arg)
{
	struct search *search = arg;

	if (search->waiter != NULL && nic_cookies_has(&search->waiter->shadows, socket->cookie))
		return;
	if (!search->any && kernel_sock_conflicts(search->rule, socket, search->owner->ifindex) &&
	    socket->cookie != search->rule->shadow_cookie && !owner_has_shadow_cookie(search->owner, socket->cookie)) {
		search->found = *socket;
		search->any = true;
	}
}

/* ---- listeners of one service ---- */

struct service_listener_match {
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

static void service_find_own_listener(const struct kernel_sock *socket, void *arg)
{
	struct service_listener_match *service_listener_match = arg;

	if (socket->cookie == service_listener_match->rule->shadow_cookie && socket->state == TCP_LISTEN) {
		service_listener_match->mine = *socket;
		service_listener_match->listens = true;
	}
}

/* The kernel has let both listen, so both have SO_REUSEPORT; in one group are those of the same address and device. */
static bool listeners_are_of_one_service(const struct kernel_sock *a, const struct kernel_sock *b)
{
	return a->uid == b->uid && a->family == b->family && a->ifindex == b->ifindex && a->v6only == b->v6only &&
	       memcmp(a->local, b->local, sizeof(a->local)) == 0;
}

static void count_listener_alike_or_unlike_service(const struct kernel_sock *socket, void *arg)
{
	struct service_listener_match *service_listener_match = arg;

	if (socket->state != TCP_LISTEN || !nic_cookies_has(service_listener_match->others, socket->cookie))
		return;
	if (service_listener_match->listens && listeners_are_of_one_service(&service_listener_match->mine, socket))
		service_listener_match->alike++;
	else
		service_listener_match->unlike++;
}

static int walk_kernel_listeners_of_port(struct xdp_owner *owner, const struct vma_flow_key *key,
                                         void (*each)(const struct kernel_sock *, void *),
                                         struct service_listener_match *service_listener_match)
{
	return kernel_sock_visit_sockets_of_port(&owner->diag_fd, IPPROTO_TCP, ntohs(key->local_port_be), true, each,
	                                         service_listener_match);
}

int owner_check_same_service(struct xdp_owner *owner, const struct vma_flow_rule *rule,
                             const struct nic_cookies *others)
{
	struct service_listener_match service_listener_match = {.rule = rule, .others = others};
	int rc;

	if (rule->shadow_cookie != 0 && nic_cookies_has(others, rule->shadow_cookie))
		return 0;
	rc = walk_kernel_listeners_of_port(owner, &rule->key, service_find_own_listener, &service_listener_match);
	if (rc == 0)
		rc = walk_kernel_listeners_of_port(owner, &rule->key, count_listener_alike_or_unlike_service,
		                                   &service_listener_match);
	if (rc < 0)
		return rc;
	if (!service_listener_match.listens)
		return rule->shadow_cookie != 0 && service_listener_match.unlike > 0 ? -EAGAIN : -EADDRINUSE;
	return service_listener_match.alike > 0 && service_listener_match.unlike == 0 ? 0 : -EADDRINUSE;
}

static void note_conflicting_other_listener(const struct kernel_sock *socket, void *arg)
{
	struct service_listener_match *service_listener_match = arg;
	const struct vma_flow_rule *rule = service_listener_match->rule;

	if (service_listener_match->any || socket->cookie == rule->shadow_cookie ||
	    !kernel_sock_conflicts(rule, socket, service_listener_match->owner->ifindex) ||
	    owner_has_shadow_cookie(service_listener_match->owner, socket->cookie))
		return;
	if (owner_cookie_is_shadow_of_flow_waiter(service_listener_match->owner, &rule->key, socket->cookie) &&
	    listeners_are_of_one_service(&service_listener_match->mine, socket))
		return;
	service_listener_match->found = *socket;
	service_listener_match->any = true;
}

/* There is one in the way besides listeners that other clients want to share this one's flow with. */
static bool listener_conflicts_with_other_service(struct xdp_owner *owner, const struct vma_flow_rule *rule,
                                                  struct kernel_sock *found)
{
	struct service_listener_match service_listener_match = {.rule = rule, .owner = owner};

	if (walk_kernel_listeners_of_port(owner, &rule->key, service_find_own_listener, &service_listener_match) < 0 ||
	    !service_listener_match.listens ||
	    walk_kernel_listeners_of_port(owner, &rule->key, note_conflicting_other_listener, &service_listener_match) <
	            0)
		return true;
	*found = service_listener_match.found;
	return service_listener_match.any;
}

/* ---- before a flow is added ---- */

int owner_refuse_flow_if_conflict(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	struct search search = {
	        .owner = owner, .rule = rule, .waiter = owner_flow_waiter_find(owner, slot, &rule->key)};
	char text[96];
	const bool listener = rule->flags & VMA_FLOW_LISTENER;
	int rc;

	if (owner_flow_is_connection(&rule->key))
		rc = kernel_sock_visit_sockets_of_connection(&owner->diag_fd, &rule->key, owner->ifindex,
		                                             conflict_search_check_socket, &search);
	else
		rc = kernel_sock_visit_sockets_of_port(&owner->diag_fd, rule->key.proto, ntohs(rule->key.local_port_be),
		                                       listener, conflict_search_check_socket, &search);
	owner_flow_describe(&rule->key, text, sizeof(text));
	if (rc < 0) {
		/* Not knowing is no licence to rob. */
		vma_log_once(VMA_LOG_WARN,
		             "%s: the kernel's sockets cannot be listed (error %d): %s stays with the kernel",
		             owner->name, -rc, text);
		return rc;
	}
	if (!search.any || (listener && !listener_conflicts_with_other_service(owner, rule, &search.found)))
		return 0;
	vma_log_once(VMA_LOG_WARN,
	             "%s: %s stays with the kernel: another socket (inode %u of user %u) receives on that port",
	             owner->name, text, search.found.inode, search.found.uid);
	return -EADDRINUSE;
}
