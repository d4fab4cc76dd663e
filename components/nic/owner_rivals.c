/*
 * owner_rivals - sockets of the kernel's that would receive what a flow takes: looked for before a flow is added, and
 * twice a second among those that came up later. They win: only the kernel can give several sockets what is theirs.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "owner_priv.h"

struct search {
	const struct xdp_owner *owner;
	const struct vma_flow_rule *rule;
	const struct owner_wish *wish; /* names shadows of its own */
	struct owner_foreign found;
	bool any;
};

static void see(const struct owner_foreign *socket, void *arg)
{
	struct search *search = arg;

	if (search->wish != NULL && xdp_cookies_has(&search->wish->shadows, socket->cookie))
		return;
	if (!search->any && owner_foreign_conflicts(search->rule, socket, search->owner->ifindex) &&
	    socket->cookie != search->rule->shadow_cookie && !owner_flows_has_cookie(search->owner, socket->cookie)) {
		search->found = *socket;
		search->any = true;
	}
}

/* ---- listeners of one service ---- */

struct kinship {
	const struct vma_flow_rule *rule;
	struct owner_foreign mine;
	bool listens; /* `mine` was found */
	const struct xdp_cookies *others;
	unsigned alike, unlike; /* of others */
	/* of those that stand in the way */
	const struct xdp_owner *owner;
	struct owner_foreign found;
	bool any;
};

static void find_mine(const struct owner_foreign *socket, void *arg)
{
	struct kinship *kinship = arg;

	if (socket->cookie == kinship->rule->shadow_cookie && socket->state == TCP_LISTEN) {
		kinship->mine = *socket;
		kinship->listens = true;
	}
}

/* The kernel has let both listen, so both have SO_REUSEPORT; in one group are those of the same address and device. */
static bool are_alike(const struct owner_foreign *a, const struct owner_foreign *b)
{
	return a->uid == b->uid && a->family == b->family && a->ifindex == b->ifindex && a->v6only == b->v6only &&
	       memcmp(a->local, b->local, sizeof(a->local)) == 0;
}

static void compare(const struct owner_foreign *socket, void *arg)
{
	struct kinship *kinship = arg;

	if (socket->state != TCP_LISTEN || !xdp_cookies_has(kinship->others, socket->cookie))
		return;
	if (kinship->listens && are_alike(&kinship->mine, socket))
		kinship->alike++;
	else
		kinship->unlike++;
}

static int walk_listeners(struct xdp_owner *owner, const struct vma_flow_key *key,
                          void (*each)(const struct owner_foreign *, void *), struct kinship *kinship)
{
	return owner_foreign_walk(&owner->diag_fd, IPPROTO_TCP, ntohs(key->local_port_be), true, each, kinship);
}

int owner_rivals_related(struct xdp_owner *owner, const struct vma_flow_rule *rule, const struct xdp_cookies *others)
{
	struct kinship kinship = {.rule = rule, .others = others};
	int rc;

	if (rule->shadow_cookie != 0 && xdp_cookies_has(others, rule->shadow_cookie))
		return 0;
	rc = walk_listeners(owner, &rule->key, find_mine, &kinship);
	if (rc == 0)
		rc = walk_listeners(owner, &rule->key, compare, &kinship);
	if (rc < 0)
		return rc;
	if (!kinship.listens)
		return rule->shadow_cookie != 0 && kinship.unlike > 0 ? -EAGAIN : -EADDRINUSE;
	return kinship.alike > 0 && kinship.unlike == 0 ? 0 : -EADDRINUSE;
}

static void see_stranger(const struct owner_foreign *socket, void *arg)
{
	struct kinship *kinship = arg;
	const struct vma_flow_rule *rule = kinship->rule;

	if (kinship->any || socket->cookie == rule->shadow_cookie ||
	    !owner_foreign_conflicts(rule, socket, kinship->owner->ifindex) ||
	    owner_flows_has_cookie(kinship->owner, socket->cookie))
		return;
	if (owner_wish_names(kinship->owner, &rule->key, socket->cookie) && are_alike(&kinship->mine, socket))
		return;
	kinship->found = *socket;
	kinship->any = true;
}

/* There is one in the way besides listeners that other clients want to share this one's flow with. */
static bool has_stranger(struct xdp_owner *owner, const struct vma_flow_rule *rule, struct owner_foreign *found)
{
	struct kinship kinship = {.rule = rule, .owner = owner};

	if (walk_listeners(owner, &rule->key, find_mine, &kinship) < 0 || !kinship.listens ||
	    walk_listeners(owner, &rule->key, see_stranger, &kinship) < 0)
		return true;
	*found = kinship.found;
	return kinship.any;
}

/* ---- before a flow is added ---- */

int owner_rivals_refuse(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule)
{
	struct search search = {.owner = owner, .rule = rule, .wish = owner_wish_find(owner, slot, &rule->key)};
	char text[96];
	const bool listener = rule->flags & VMA_FLOW_LISTENER;
	int rc;

	if (owner_flow_is_connection(&rule->key))
		rc = owner_foreign_connection(&owner->diag_fd, &rule->key, owner->ifindex, see, &search);
	else
		rc = owner_foreign_walk(&owner->diag_fd, rule->key.proto, ntohs(rule->key.local_port_be), listener, see,
		                        &search);
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

/* ---- sockets that come up later ---- */

struct recheck {
	struct xdp_owner *owner;
	void (*revoked)(uint32_t slot, const struct vma_flow_key *key, void *arg);
	void *arg;
	uint8_t proto;
	uint8_t ports[65536 / 8]; /* local ports of our flows: most sockets are dismissed by one bit */
};

/*
 * A socket is foreign for certain only when it is seen twice: between bind() of a shadow and the call that registers it
 * with its flow it looks foreign, too.
 */
static bool suspected_before(struct owner_flow *flow, const struct owner_foreign *socket)
{
	const bool before = flow->suspect_cookie == socket->cookie;

	flow->suspect_cookie = socket->cookie;
	return before;
}

static void revoke(struct recheck *check, struct owner_flow **place, const struct owner_foreign *socket)
{
	const struct vma_flow_key key = (*place)->rule.key;
	const uint64_t slots = (*place)->members != 0 ? (*place)->members : 1ull << (*place)->slot;
	char text[96];

	owner_flow_end(check->owner, place);
	owner_flow_describe(&key, text, sizeof(text));
	vma_log_warn("%s: %s goes back to the kernel: another socket (inode %u of user %u) receives on that port now",
	             check->owner->name, text, socket->inode, socket->uid);
	for (uint64_t left = slots; left != 0 && check->revoked != NULL; left &= left - 1)
		check->revoked((uint32_t)__builtin_ctzll(left), &key, check->arg);
}

static void see_again(const struct owner_foreign *socket, void *arg)
{
	struct recheck *check = arg;
	struct xdp_owner *owner = check->owner;

	if (!(check->ports[socket->port_be / 8] & (1u << socket->port_be % 8)) ||
	    owner_flows_has_cookie(owner, socket->cookie))
		return;
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++) {
		struct owner_flow **place = &owner->flow[b];

		while (*place != NULL) {
			struct owner_flow *flow = *place;

			if (flow->rule.key.proto == check->proto &&
			    owner_foreign_conflicts(&flow->rule, socket, owner->ifindex) &&
			    suspected_before(flow, socket))
				revoke(check, place, socket);
			else
				place = &flow->next;
		}
	}
}

void owner_rivals_recheck(struct xdp_owner *owner, void (*revoked)(uint32_t, const struct vma_flow_key *, void *),
                          void *arg)
{
	static const uint8_t protos[] = {IPPROTO_UDP, IPPROTO_TCP};
	struct recheck *check = malloc(sizeof(*check));

	if (check == NULL)
		return;
	for (size_t p = 0; p < sizeof(protos); p++) {
		uint32_t n = 0;

		*check = (struct recheck){.owner = owner, .revoked = revoked, .arg = arg, .proto = protos[p]};
		for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++) {
			for (const struct owner_flow *flow = owner->flow[b]; flow != NULL; flow = flow->next) {
				const uint16_t port = flow->rule.key.local_port_be;

				if (flow->rule.key.proto != protos[p])
					continue;
				check->ports[port / 8] |= (uint8_t)(1u << port % 8);
				n++;
			}
		}
		if (n > 0)
			/* Of TCP the listeners only: a connection on a port that our shadow holds cannot come up. Nor
			 * is a listener in the way of a connection of ours: `flow` has none of those. */
			owner_foreign_walk(&owner->diag_fd, protos[p], 0, protos[p] == IPPROTO_TCP, see_again, check);
	}
	free(check);
}
