/*
 * conflicts - kernel socks that have a right to what a flow from any peer, or one of UDP, takes (kernel_sock.h): before
 * the rule is made, and twice a second from then on. They win: only the kernel can give several sockets their packets.
 *
 * A look that took long is followed by a long pause: at most LOOK_SHARE of the thread's time goes into this, however
 * many sockets the host has.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <vma/log.h>

#include "../kernel_sock.h"
#include "../os.h"
#include "verbs.h"

#define LOOK_MS 500
#define LOOK_SHARE 50 /* one part in so many */

/* Some flow of this nic at the same port has named the socket. */
static bool socket_is_shadow_of_flow(const struct nic_verbs *nic, const struct kernel_sock *socket)
{
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++)
		for (const struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next)
			if (flow->rule.key.local_port_be == socket->port_be && flow->rule.key.proto == socket->proto &&
			    nic_cookies_has(&flow->shadows, socket->cookie))
				return true;
	return false;
}

static void describe_rule(const struct vma_flow_rule *rule, char *text, size_t size)
{
	char address[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, rule->key.local, address, sizeof(address));
	snprintf(text, size, "%s %s:%u", rule->key.proto == IPPROTO_TCP ? "TCP" : "UDP", address,
	         ntohs(rule->key.local_port_be));
}

/* ---- before ---- */

struct search {
	const struct nic_verbs *nic;
	const struct vma_flow_rule *rule;
	struct kernel_sock found;
	bool any;
};

static void search_check(const struct kernel_sock *socket, void *arg)
{
	struct search *search = arg;

	if (search->any || socket->cookie == search->rule->shadow_cookie ||
	    !kernel_sock_conflicts(search->rule, socket, search->nic->base.info.ifindex) ||
	    socket_is_shadow_of_flow(search->nic, socket))
		return;
	search->found = *socket;
	search->any = true;
}

int verbs_conflicts_refuse(struct nic_verbs *nic, const struct vma_flow_rule *rule)
{
	struct search search = {.nic = nic, .rule = rule};
	char text[64];
	int rc;

	if (!verbs_flow_may_get_conflict(rule))
		return 0;
	rc = kernel_sock_walk(&nic->diag_fd, rule->key.proto, ntohs(rule->key.local_port_be),
	                      rule->flags & VMA_FLOW_LISTENER, search_check, &search);
	if (rc == 0 && !search.any)
		return 0;
	describe_rule(rule, text, sizeof(text));
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

static void conflict_look_check_socket(const struct kernel_sock *socket, void *arg)
{
	struct look *look = arg;
	struct nic_verbs *nic = look->nic;
	const uint16_t port = ntohs(socket->port_be);
	char text[64];

	if (!(look->ports[port / 8] >> port % 8 & 1) || socket_is_shadow_of_flow(nic, socket))
		return;
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++) {
		for (struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next) {
			if (flow->is_contested || !flow_is_looked_for(look, flow) ||
			    !kernel_sock_conflicts(&flow->rule, socket, nic->base.info.ifindex) ||
			    !kernel_sock_suspected_before(&flow->suspect, socket, nic->looks))
				continue;
			flow->is_contested = true;
			describe_rule(&flow->rule, text, sizeof(text));
			vma_log_warn("%s: %s goes back to the kernel: another socket (inode %u of user %u) receives on "
			             "that port now",
			             nic->name, text, socket->inode, socket->uid);
		}
	}
}

/* How many flows there are that may get a rival. */
static uint32_t conflict_look_walk_sockets(struct look *look, uint8_t proto)
{
	struct port_ranges ranges;

	look->proto = proto;
	conflict_look_index_ports(look);
	if (look->flows == 0)
		return 0;
	port_ranges_of(look->ports, &ranges);
	kernel_sock_walk_ranges(&look->nic->diag_fd, proto, &ranges, proto == IPPROTO_TCP && look->listeners,
	                        conflict_look_check_socket, look);
	return look->flows;
}

static uint64_t thread_cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int verbs_conflicts_search(struct nic_verbs *nic)
{
	const uint64_t now_ms = os_now_ms(), begun = thread_cpu_ns();
	struct look look = {.nic = nic};
	uint64_t pause_ms;

	if (nic->flows_n == 0)
		return -1;
	if (now_ms < nic->look_ms)
		return (int)(nic->look_ms - now_ms);
	nic->looks++;
	if (conflict_look_walk_sockets(&look, IPPROTO_UDP) + conflict_look_walk_sockets(&look, IPPROTO_TCP) == 0)
		return -1;
	verbs_flows_revoke_contested(nic);
	pause_ms = (thread_cpu_ns() - begun) * LOOK_SHARE / 1000000;
	pause_ms = pause_ms > LOOK_MS ? pause_ms : LOOK_MS;
	nic->look_ms = os_now_ms() + pause_ms;
	return (int)pause_ms;
}
