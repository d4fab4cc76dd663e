/*
 * conflicts - kernel socks that have a right to the packets of a flow from any peer, or of a flow of UDP
 * (kernel_sock.h). They are looked for before the rule is made, and twice a second from then on. They win: only the
 * kernel can give several sockets their packets.
 *
 * A look that took long is followed by a long pause. So at most LOOK_SHARE of the thread's time goes into this, even if
 * the host has very many sockets.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vma/log.h>

#include "../kernel_sock.h"
#include "../os.h"
#include "verbs.h"

#define LOOK_MS 500
#define LOOK_SHARE 50 /* one part in so many */

/* ---- own sockets ---- */

/* Cookies of the shadows of all flows of the nic, in order. */
struct shadow_index {
	uint64_t *cookies; /* NULL: not made yet, or there are none */
	uint32_t n;
	bool made;
};

static int compare_cookies(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* 0 or -ENOMEM. */
static int shadow_index_make(struct shadow_index *index, const struct nic_verbs *nic)
{
	uint32_t n = 0;

	if (index->made)
		return 0;
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++)
		for (const struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next)
			n += flow->shadows.n;
	index->cookies = n != 0 ? malloc(n * sizeof(*index->cookies)) : NULL;
	if (n != 0 && index->cookies == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++) {
		for (const struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next) {
			if (flow->shadows.n != 0)
				memcpy(index->cookies + index->n, flow->shadows.list,
				       flow->shadows.n * sizeof(*index->cookies));
			index->n += flow->shadows.n;
		}
	}
	if (n != 0)
		qsort(index->cookies, index->n, sizeof(*index->cookies), compare_cookies);
	index->made = true;
	return 0;
}

/* Some flow of this nic has named the socket, whose port is the flow's then. */
static bool shadow_index_has(const struct shadow_index *index, uint64_t cookie)
{
	return index->n != 0 && bsearch(&cookie, index->cookies, index->n, sizeof(cookie), compare_cookies) != NULL;
}

static void format_flow_rule_text(const struct vma_flow_rule *rule, char *text, size_t size)
{
	char address[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, rule->key.local, address, sizeof(address));
	snprintf(text, size, "%s %s:%u", rule->key.proto == IPPROTO_TCP ? "TCP" : "UDP", address,
	         ntohs(rule->key.local_port_be));
}

/* ---- before ---- */

struct search {
	struct nic_verbs *nic;
	const struct vma_flow_rule *rule;
	struct shadow_index own;
	struct kernel_sock found;
	bool any;
	int rc;
};

static void search_note_conflicting_socket(const struct kernel_sock *socket, void *arg)
{
	struct search *search = arg;

	if (search->any || search->rc < 0 || socket->cookie == search->rule->shadow_cookie ||
	    !kernel_sock_conflicts(search->rule, socket, search->nic->base.info.ifindex))
		return;
	search->rc = shadow_index_make(&search->own, search->nic);
	if (search->rc < 0 || shadow_index_has(&search->own, socket->cookie))
		return;
	search->found = *socket;
	search->any = true;
}

/* 0 or -errno: whether there is one, is not known. */
static int search_kernel_socks(struct search *search)
{
	const struct vma_flow_rule *rule = search->rule;
	int *diag_fd = &search->nic->diag_fd, rc;

	if (rule->flags & VMA_FLOW_PORT_BOUND)
		rc = kernel_sock_visit_sockets_of_connection(diag_fd, &rule->key, search->nic->base.info.ifindex,
		                                             search_note_conflicting_socket, search);
	else if (rule->key.peer_port_be != 0 && !kernel_sock_flow_is_multicast(&rule->key))
		rc = kernel_sock_walk_connected(diag_fd, &rule->key, search_note_conflicting_socket, search);
	else
		rc = kernel_sock_visit_sockets_of_port(diag_fd, rule->key.proto, ntohs(rule->key.local_port_be),
		                                       rule->flags & VMA_FLOW_LISTENER, search_note_conflicting_socket,
		                                       search);
	if (rc == 0)
		rc = search->rc;
	free(search->own.cookies);
	return rc;
}

int verbs_refuse_flow_on_kernel_conflict(struct nic_verbs *nic, const struct vma_flow_rule *rule)
{
	struct search search = {.nic = nic, .rule = rule};
	char text[64];
	int rc;

	if (!verbs_flow_may_get_conflict(rule) && !(rule->flags & VMA_FLOW_PORT_BOUND))
		return 0;
	rc = search_kernel_socks(&search);
	if (rc == 0 && !search.any)
		return 0;
	format_flow_rule_text(rule, text, sizeof(text));
	if (rc < 0) /* not knowing is no licence to rob */
		vma_log_once(VMA_LOG_WARN,
		             "%s: the kernel's sockets cannot be listed (error %d): %s stays with the kernel",
		             nic->name, -rc, text);
	else
		vma_log_once(VMA_LOG_WARN,
		             "%s: %s stays with the kernel: another socket (inode %u of user %u) receives on that port",
		             nic->name, text, search.found.inode, search.found.uid);
	return rc < 0 ? rc : -EADDRINUSE;
}

/* ---- later ---- */

struct look {
	struct nic_verbs *nic;
	uint8_t proto;
	bool listeners;
	uint32_t flows;
	uint8_t ports[65536 / 8];
	struct shadow_index own;
};

static bool flow_is_looked_for(const struct look *look, const struct verbs_flow *flow)
{
	return flow->rule.key.proto == look->proto && verbs_flow_may_get_conflict(&flow->rule);
}

static void conflict_look_index_ports(struct look *look)
{
	const struct nic_verbs *nic = look->nic;

	memset(look->ports, 0, sizeof(look->ports));
	look->flows = 0;
	look->listeners = true;
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++) {
		for (const struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next) {
			const uint16_t port = ntohs(flow->rule.key.local_port_be);

			if (!flow_is_looked_for(look, flow))
				continue;
			look->ports[port / 8] |= (uint8_t)(1u << port % 8);
			look->listeners &= (flow->rule.flags & VMA_FLOW_LISTENER) != 0;
			look->flows++;
		}
	}
}

static void flow_note_conflict(const struct look *look, struct verbs_flow *flow, const struct kernel_sock *socket)
{
	const struct nic_verbs *nic = look->nic;
	char text[64];

	if (flow->is_contested || !kernel_sock_suspected_before(&flow->suspect, socket, nic->looks))
		return;
	flow->is_contested = true;
	format_flow_rule_text(&flow->rule, text, sizeof(text));
	vma_log_warn("%s: %s goes back to the kernel: another socket (inode %u of user %u) receives on that port now",
	             nic->name, text, socket->inode, socket->uid);
}

static void mark_flows_contested_by_kernel_socket(const struct kernel_sock *socket, void *arg)
{
	struct look *look = arg;
	struct nic_verbs *nic = look->nic;
	const uint16_t port = ntohs(socket->port_be);

	/* Without memory for the index nothing is known of this socket: the next look comes soon. */
	if (!(look->ports[port / 8] >> port % 8 & 1) || shadow_index_make(&look->own, nic) < 0 ||
	    shadow_index_has(&look->own, socket->cookie))
		return;
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++) {
		for (struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next) {
			if (!flow->is_contested && flow_is_looked_for(look, flow) &&
			    kernel_sock_conflicts(&flow->rule, socket, nic->base.info.ifindex))
				flow_note_conflict(look, flow, socket);
		}
	}
}

/* How many flows there are that may get a conflict. */
static uint32_t conflict_look_walk_sockets(struct look *look, uint8_t proto)
{
	struct port_ranges ranges;

	look->proto = proto;
	conflict_look_index_ports(look);
	if (look->flows == 0)
		return 0;
	port_ranges_covering_bitmap(look->ports, &ranges);
	kernel_sock_visit_sockets_in_port_ranges(&look->nic->diag_fd, proto, &ranges,
	                                         proto == IPPROTO_TCP && look->listeners,
	                                         mark_flows_contested_by_kernel_socket, look);
	return look->flows;
}

static uint64_t thread_cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int verbs_conflicts_search_and_revoke(struct nic_verbs *nic)
{
	const uint64_t now_ms = os_now_ms(), begun = thread_cpu_ns();
	struct look look = {.nic = nic};
	uint64_t pause_ms;
	uint32_t flows;

	if (nic->flows_n == 0)
		return -1;
	if (now_ms < nic->look_ms)
		return (int)(nic->look_ms - now_ms);
	nic->looks++;
	flows = conflict_look_walk_sockets(&look, IPPROTO_UDP) + conflict_look_walk_sockets(&look, IPPROTO_TCP);
	free(look.own.cookies);
	if (flows == 0)
		return -1;
	verbs_flows_revoke_contested(nic);
	pause_ms = (thread_cpu_ns() - begun) * LOOK_SHARE / 1000000;
	pause_ms = pause_ms > LOOK_MS ? pause_ms : LOOK_MS;
	nic->look_ms = os_now_ms() + pause_ms;
	return (int)pause_ms;
}
