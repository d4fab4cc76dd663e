/* path_update - making a path anew when the kernel's answers have changed. */
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netlink/route/neighbour.h>
#include <netlink/route/rtnl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <arpa/inet.h>

#include <vma/log.h>

#include "net_priv.h"
#include "path_slot.h"

/* ---- publishing ---- */

static void log_new_path(const struct path *path)
{
	char dst[INET_ADDRSTRLEN], text[256];

	if (!vma_log_level_is_enabled(VMA_LOG_DEBUG))
		return;
	inet_ntop(AF_INET, path->key.dst, dst, sizeof(dst));
	vma_net_template_text(&path->now, text, sizeof(text));
	vma_log_debug("net: to %s: %s", dst, text);
}

/* Publishes what differs, and tells the watches. */
static void publish_path_template_if_changed(struct path *path, struct vma_net_template *t)
{
	struct vma_net_watch *watch, *next;
	const bool fresh = memcmp(&path->published_key, &path->key, sizeof(path->key)) != 0;

	t->version = path->now.version;
	if (!fresh && memcmp(t, &path->now, sizeof(*t)) == 0)
		return;
	path_slot_publish_template(&path->pub, t, &path->key);
	path->now = *t;
	path->published_key = path->key;
	log_new_path(path);
	for (watch = path->watches; watch != NULL; watch = next) {
		next = watch->next;
		watch->changed(watch, &path->pub);
	}
}

/* The plan, completed by what is known of the neighbour. */
static void publish_path_template_from_plan_and_neigh(struct path *path)
{
	static const struct vma_net_neigh unknown;
	struct vma_net_template t = path->plan;

	if (path->need != PLAN_NOTHING)
		plan_apply_neigh_to_template(&t, path->need, path->neigh != NULL ? &path->neigh->neigh : &unknown);
	if (path->neigh != NULL && path->neigh->probed_ns != 0) /* asked already, the answer is to come */
		t.flags &= (uint8_t)~VMA_NET_CONFIRM;
	publish_path_template_if_changed(path, &t);
}

void net_paths_republish_for_neigh(struct neigh *neigh)
{
	struct path *path;

	LIST_FOREACH(path, &neigh->paths, same_neigh)
	publish_path_template_from_plan_and_neigh(path);
}

/* ---- updating ---- */

void net_path_drop_neigh(struct path *path)
{
	if (path->neigh == NULL)
		return;
	LIST_REMOVE(path, same_neigh);
	net_neigh_drop_if_unused(path->neigh);
	path->neigh = NULL;
}

static void path_set_neigh(struct vma_net *net, struct path *path)
{
	struct neigh *neigh = NULL;

	if (path->need != PLAN_NOTHING)
		neigh = net_neigh_find_or_add(net, path->plan.ifindex, path->key.family, path->plan.next_hop);
	if (neigh == path->neigh)
		return;
	net_path_drop_neigh(path);
	path->neigh = neigh;
	if (neigh != NULL)
		LIST_INSERT_HEAD(&neigh->paths, path, same_neigh);
}

void net_path_update(struct vma_net *net, struct path *path)
{
	struct vma_net_route route = {0};
	struct plan_facts facts = {.key = &path->key, .route = &route, .mtu_max = net->attr.mtu_max};

	path->dirty = false;
	facts.refused = net_route_query(net, &path->key, &route);
	facts.link = facts.refused == 0 ? net_tables_find_link(net, route.oif) : NULL;
	facts.lower =
	        facts.link != NULL && facts.link->lower != 0 ? net_tables_find_link(net, facts.link->lower) : NULL;
	path->need = plan_fill_path_template_from_facts(&facts, &path->plan);
	path_set_neigh(net, path);
	publish_path_template_from_plan_and_neigh(path);
}

void net_paths_mark_all_dirty(struct vma_net *net)
{
	struct path *path;

	atomic_fetch_add_explicit(&net->generation, 1, memory_order_relaxed);
	TAILQ_FOREACH(path, &net->paths, all)
	path->dirty = true;
	net->any_dirty = true;
}

void net_paths_update_dirty(struct vma_net *net)
{
	struct path *path;

	if (!net->any_dirty)
		return;
	net->any_dirty = false;
	TAILQ_FOREACH(path, &net->paths, all)
	if (path->dirty)
		net_path_update(net, path);
}

/* ---- requests of the data path ---- */

/* Asks the kernel to resolve or confirm; then for the entry, because a resolution that begins is no event. */
static void probe_path_neigh(struct vma_net *net, struct path *path)
{
	struct neigh *neigh = path->neigh;

	if (neigh == NULL)
		return;
	net_neigh_refresh_from_kernel(net, neigh); /* perhaps another path's probe has done it */
	if ((neigh->neigh.state & NUD_FAILED) != 0)
		neigh->failures = 0;
	if (net_arp_start_confirming_neigh(net, neigh)) {
		/* it is told again by the kernel's event */
	} else if ((neigh->neigh.state & (NUD_STALE | NUD_FAILED)) != 0 || neigh->neigh.state == 0) {
		net_neigh_make_kernel_resolve(net, neigh->neigh.ifindex, neigh->neigh.family, neigh->neigh.address);
		net_neigh_refresh_from_kernel(net, neigh);
	}
	/* Still stale: it did not take, so the next request waits a while. Else events tell how it went. */
	neigh->probed_ns = (neigh->neigh.state & NUD_STALE) != 0 ? net_now_ns() : 0;
	net_paths_republish_for_neigh(neigh);
}

int net_paths_process_requests(struct vma_net *net)
{
	ck_stack_entry_t *entry = request_queue_take_all(&net->requests), *next;
	int n = 0;

	for (; entry != NULL; entry = next, n++) {
		struct path *path = (struct path *)((char *)entry - offsetof(struct path, request_entry));
		uint32_t what;

		next = request_queue_next(entry);
		what = atomic_exchange(&path->pub.requested, 0);
		if (path->key.family == 0) /* left the cache meanwhile */
			continue;
		if ((what & VMA_NET_REQUEST_RECHECK) != 0)
			path->dirty = net->any_dirty = true;
		if ((what & VMA_NET_REQUEST_PROBE) != 0)
			probe_path_neigh(net, path);
	}
	return n;
}

int vma_net_path_start_neigh_resolution(struct vma_net *net, struct vma_net_path *path)
{
	struct net_hold hold;
	int rc;

	net_lock(net, &hold);
	rc = net_process_events_and_timers(net);
	probe_path_neigh(net, (struct path *)path);
	net_arm_timer_for_next_work(net);
	net_unlock(net, &hold);
	return rc < 0 ? rc : 0;
}

/* ---- twice a minute ---- */

/* Forgets what nobody uses; asks again for what is used, because not every change is announced. */
void net_paths_sweep(struct vma_net *net, uint64_t now_ns)
{
	struct path *path, *next;

	for (path = TAILQ_FIRST(&net->paths); path != NULL; path = next) {
		next = TAILQ_NEXT(path, all);
		if (atomic_exchange_explicit(&path->pub.used, 0, memory_order_relaxed) != 0)
			path->idle_since_ns = now_ns;
		if (path->refs == 0 && now_ns - path->idle_since_ns >= NET_PATH_IDLE_NS) {
			net_path_free(net, path);
			continue;
		}
		/* A probe that led to nothing: whoever sends next asks again. */
		if (path->neigh != NULL && path->neigh->probed_ns != 0 &&
		    now_ns - path->neigh->probed_ns >= NET_PROBE_TIMEOUT_NS)
			path->neigh->probed_ns = 0;
		path->dirty = net->any_dirty = true;
	}
}

/* ---- text ---- */

const char *vma_net_reason_text(enum vma_net_reason reason)
{
	static const char *const texts[] = {
#define X(name, text) [VMA_NET_REASON_##name] = (text),
	        VMA_NET_REASONS(X)
#undef X
	};

	return (unsigned)reason < sizeof(texts) / sizeof(texts[0]) ? texts[reason] : "?";
}

static void mac_text(const uint8_t mac[6], char text[18])
{
	snprintf(text, 18, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

void vma_net_template_text(const struct vma_net_template *t, char *text, size_t bytes)
{
	static const char *const states[] = {"ready", "resolving", "failed", "os", "error"};
	char type[32], via[INET_ADDRSTRLEN], src[INET_ADDRSTRLEN], mac[18] = "-", own[18] = "-";

	if (t->state == VMA_NET_ERROR) {
		snprintf(text, bytes, "error: %s", strerror(t->error));
		return;
	}
	if (t->state == VMA_NET_READY) {
		mac_text(t->bytes, mac);
		mac_text(t->bytes + 6, own);
	}
	inet_ntop(AF_INET, t->next_hop, via, sizeof(via));
	inet_ntop(AF_INET, t->src, src, sizeof(src));
	snprintf(text, bytes, "%s via %s dev %u nic %u vlan %u src %s mtu %u from %s to %s: %s%s%s%s",
	         nl_rtntype2str(t->type, type, sizeof(type)), via, t->ifindex, t->nic, t->vlan, src, t->mtu, own, mac,
	         t->state < sizeof(states) / sizeof(states[0]) ? states[t->state] : "?",
	         t->state == VMA_NET_USE_OS ? ", " : "",
	         t->state == VMA_NET_USE_OS ? vma_net_reason_text(t->reason) : "",
	         (t->flags & VMA_NET_CONFIRM) != 0 ? ", to be confirmed" : "");
}
