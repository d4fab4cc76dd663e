/*
 * recheck - looks twice a second for kernel socks that have come up since a flow was added, and would receive what it
 * takes (conflicts.c).
 *
 * A host has many sockets, and a client may make more. So the kernel passes over those whose ports no flow has. For
 * each that is left, two tables tell whether it is some flow's shadow, and which flows its port has. Both are made anew
 * for each look. A look that took long is followed by a long pause: at most RECHECK_SHARE of vmad's time goes into
 * this, however many sockets there are. A conflicting socket then gets its packets that much later.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vma/log.h>

#include "owner.h"

#define RECHECK_NS 500000000ull
#define RECHECK_SHARE 50 /* one part in so many */

/* ---- the two tables ---- */

struct entry {
	struct owner_flow *flow; /* NULL: it was given up meanwhile */
	uint32_t next;           /* of the same port, or hash; 0: the last one */
};

struct recheck {
	struct xdp_owner *owner;
	void (*revoked)(uint32_t slot, const struct vma_flow_key *key, void *arg);
	void *arg;
	uint8_t proto;
	uint32_t flows;
	uint8_t ports[65536 / 8];
	uint32_t first[65536]; /* by port: its first entry */
	struct entry *entry;   /* from 1 on */
	uint64_t *cookie;      /* open addressing, 0: free */
	uint32_t cookies;      /* places, a power of two */
};

static uint32_t recheck_cookie_hash(const struct recheck *check, uint64_t cookie)
{
	return (uint32_t)(cookie * 0x9e3779b97f4a7c15ull >> 32) & (check->cookies - 1);
}

static void recheck_add_cookies(struct recheck *check, const struct nic_cookies *set)
{
	for (uint32_t i = 0; i < set->n; i++) {
		uint32_t at = recheck_cookie_hash(check, set->list[i]);

		while (check->cookie[at] != 0 && check->cookie[at] != set->list[i])
			at = (at + 1) & (check->cookies - 1);
		check->cookie[at] = set->list[i];
	}
}

static bool cookie_is_of_known_shadow_socket(const struct recheck *check, uint64_t cookie)
{
	uint32_t at = recheck_cookie_hash(check, cookie);

	while (check->cookie[at] != 0 && check->cookie[at] != cookie)
		at = (at + 1) & (check->cookies - 1);
	return check->cookie[at] != 0;
}

static void recheck_each_flow(struct xdp_owner *owner,
                              void (*see)(struct recheck *, struct owner_flow *, bool connection),
                              struct recheck *check)
{
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++) {
		for (struct owner_flow *flow = owner->flow[b]; flow != NULL; flow = flow->next)
			see(check, flow, false);
		for (struct owner_flow *flow = owner->connection[b]; flow != NULL; flow = flow->next)
			see(check, flow, true);
	}
}

static void recheck_count_flow(struct recheck *check, struct owner_flow *flow, bool connection)
{
	check->flows += !connection;
	check->cookies += flow->shadows.n;
}

static void recheck_add_flow_cookies(struct recheck *check, struct owner_flow *flow, bool connection)
{
	(void)connection;
	recheck_add_cookies(check, &flow->shadows);
}

static uint32_t power_of_two_above(uint32_t n)
{
	uint32_t power = 16;

	while (power <= n)
		power *= 2;
	return power;
}

/* A table of cookies is never more than half full, so each search ends. */
static struct recheck *recheck_new_from_all_flows(struct xdp_owner *owner)
{
	struct recheck *check = calloc(1, sizeof(*check));

	if (check == NULL)
		return NULL;
	check->owner = owner;
	recheck_each_flow(owner, recheck_count_flow, check);
	check->cookies = power_of_two_above(check->cookies * 2);
	check->entry = malloc((check->flows + 1) * sizeof(*check->entry));
	check->cookie = calloc(check->cookies, sizeof(*check->cookie));
	if (check->entry != NULL && check->cookie != NULL) {
		recheck_each_flow(owner, recheck_add_flow_cookies, check);
		return check;
	}
	free(check->entry);
	free(check->cookie);
	free(check);
	return NULL;
}

static void recheck_free(struct recheck *check)
{
	free(check->entry);
	free(check->cookie);
	free(check);
}

/* Those of one protocol, by port: how many. */
static uint32_t recheck_index_flows_by_port(struct recheck *check)
{
	uint32_t n = 0;

	memset(check->ports, 0, sizeof(check->ports));
	memset(check->first, 0, sizeof(check->first));
	for (uint32_t b = 0; b < OWNER_FLOW_BUCKETS; b++) {
		for (struct owner_flow *flow = check->owner->flow[b]; flow != NULL; flow = flow->next) {
			const uint16_t port = ntohs(flow->rule.key.local_port_be);

			if (flow->rule.key.proto != check->proto)
				continue;
			check->ports[port / 8] |= (uint8_t)(1u << port % 8);
			check->entry[++n] = (struct entry){.flow = flow, .next = check->first[port]};
			check->first[port] = n;
		}
	}
	return n;
}

/* ---- the look ---- */

static void revoke_conflicting_flow_to_kernel(struct recheck *check, struct owner_flow *flow,
                                              const struct kernel_sock *socket)
{
	const struct vma_flow_key key = flow->rule.key;
	const uint64_t slots = flow->members != 0 ? flow->members : 1ull << flow->slot;
	struct owner_flow **place = &check->owner->flow[owner_flow_key_bucket(&key)];
	char text[96];

	while (*place != flow)
		place = &(*place)->next;
	owner_flow_end_with_grace(check->owner, place);
	owner_flow_describe(&key, text, sizeof(text));
	vma_log_warn("%s: %s goes back to the kernel: another socket (inode %u of user %u) receives on that port now",
	             check->owner->name, text, socket->inode, socket->uid);
	for (uint64_t left = slots; left != 0 && check->revoked != NULL; left &= left - 1)
		check->revoked((uint32_t)__builtin_ctzll(left), &key, check->arg);
}

static void revoke_flows_conflicting_with_socket(const struct kernel_sock *socket, void *arg)
{
	struct recheck *check = arg;
	const uint32_t first = check->first[ntohs(socket->port_be)];

	if (first == 0 || cookie_is_of_known_shadow_socket(check, socket->cookie))
		return;
	for (uint32_t at = first; at != 0; at = check->entry[at].next) {
		struct owner_flow *flow = check->entry[at].flow;

		if (flow == NULL || !kernel_sock_conflicts(&flow->rule, socket, check->owner->ifindex) ||
		    !kernel_sock_suspected_before(&flow->suspect, socket, check->owner->looks))
			continue;
		revoke_conflicting_flow_to_kernel(check, flow, socket);
		check->entry[at].flow = NULL;
	}
}

/* Of TCP the listeners only: a connection on a port that our shadow holds cannot come up. Nor is a listener in the way
 * of a connection of ours: `flow` has none of those. */
static void recheck_conflicts_of_protocol(struct recheck *check, uint8_t proto)
{
	struct port_ranges ranges;

	check->proto = proto;
	if (recheck_index_flows_by_port(check) == 0)
		return;
	port_ranges_covering_bitmap(check->ports, &ranges);
	kernel_sock_visit_sockets_in_port_ranges(&check->owner->diag_fd, proto, &ranges, proto == IPPROTO_TCP,
	                                         revoke_flows_conflicting_with_socket, check);
}

static uint64_t thread_cpu_time_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void owner_revoke_flows_in_conflict(struct xdp_owner *owner,
                                    void (*revoked)(uint32_t, const struct vma_flow_key *, void *), void *arg)
{
	const uint64_t begun = thread_cpu_time_ns();
	struct recheck *check = recheck_new_from_all_flows(owner);
	uint64_t pause;

	if (check == NULL)
		return;
	owner->looks++;
	check->revoked = revoked;
	check->arg = arg;
	recheck_conflicts_of_protocol(check, IPPROTO_UDP);
	recheck_conflicts_of_protocol(check, IPPROTO_TCP);
	recheck_free(check);
	pause = (thread_cpu_time_ns() - begun) * RECHECK_SHARE;
	owner->kernel_sock_pause_ns = pause > RECHECK_NS ? pause : RECHECK_NS;
}
