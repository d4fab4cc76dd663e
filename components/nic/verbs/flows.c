/*
 * flows - the flows of all queue pairs of a nic, and their rules in the card.
 *
 * They are in one table, because a card would take the same rule for two queue pairs, and give each packet to both. The
 * file claims.c sees to it that no other process has a flow from any peer, or of UDP. The file conflicts.c sees to it
 * that no kernel sock has a right to its packets.
 *
 * A move is: the new rule, then the end of the old one. The two have different priorities, so at each moment one of
 * them has all packets.
 *
 * A listener's flow that is revoked leaves the table, and its user is told. Its rule lingers in the card: connections
 * without rules of their own come by it, and the kernel would reset them. It ends when the user gives the flow back,
 * or after LINGER_MS. Meanwhile the flow keeps its claim.
 *
 *   in the table ── revoked ──> nic->revoked ── told ──> nic->lingering ── verbs_flow_del, LINGER_MS ──> freed
 *                                                 └──── without a rule in the card ────────────────────────^
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "../os.h"
#include "verbs.h"

#define BUCKETS_FIRST 64
#define LINGER_MS 1000

/* ---- the table ---- */

static struct verbs_flow **flow_bucket_of_key(const struct nic_verbs *nic, const struct vma_flow_key *key)
{
	uint64_t words[sizeof(*key) / 8], hash = 0;

	memcpy(words, key, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15U;
		hash ^= hash >> 29;
	}
	return &nic->flow_buckets[hash & (nic->flow_buckets_n - 1)];
}

/* The place that points to it; its content is NULL if there is none. Only with a table. */
static struct verbs_flow **flow_find_link(const struct nic_verbs *nic, const struct vma_flow_key *key)
{
	struct verbs_flow **place = flow_bucket_of_key(nic, key);

	while (*place != NULL && memcmp(&(*place)->rule.key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	return place;
}

static struct verbs_flow *flow_find(const struct nic_verbs *nic, const struct vma_flow_key *key)
{
	return nic->flow_buckets_n != 0 ? *flow_find_link(nic, key) : NULL;
}

static void flow_insert(struct nic_verbs *nic, struct verbs_flow *flow)
{
	struct verbs_flow **bucket = flow_bucket_of_key(nic, &flow->rule.key);

	flow->next = *bucket;
	*bucket = flow;
}

/* Without memory the chains become longer; only the first table must be had. */
static int flow_table_grow_if_full(struct nic_verbs *nic)
{
	const uint32_t old_n = nic->flow_buckets_n, n = old_n == 0 ? BUCKETS_FIRST : old_n * 2;
	struct verbs_flow **old = nic->flow_buckets, **bigger;

	if (nic->flows_n < old_n)
		return 0;
	bigger = calloc(n, sizeof(struct verbs_flow *));
	if (bigger == NULL)
		return old_n == 0 ? -ENOMEM : 0;
	nic->flow_buckets = bigger;
	nic->flow_buckets_n = n;
	for (uint32_t i = 0; i < old_n; i++) {
		while (old[i] != NULL) {
			struct verbs_flow *flow = old[i];

			old[i] = flow->next;
			flow_insert(nic, flow);
		}
	}
	free(old);
	return 0;
}

static struct verbs_flow *flow_unlink(struct nic_verbs *nic, struct verbs_flow **place)
{
	struct verbs_flow *flow = *place;

	*place = flow->next;
	nic->flows_n--;
	return flow;
}

/* Of TCP; only if there are flows of addresses, whose users ask (nic.h). */
static void count_flow_of_tcp_port(const struct verbs_flow *flow, uint32_t by)
{
	_Atomic uint32_t *ports = flow->qp->nic->tcp_port_flows;

	if (ports != NULL && flow->rule.key.proto == IPPROTO_TCP)
		atomic_fetch_add(&ports[ntohs(flow->rule.key.local_port_be)], by);
}

bool verbs_tcp_port_has_flow(const struct vma_nic_qp *base, uint16_t local_port_be)
{
	const _Atomic uint32_t *ports = verbs_qp_of((struct vma_nic_qp *)base)->nic->tcp_port_flows;

	return ports == NULL || atomic_load(&ports[ntohs(local_port_be)]) != 0;
}

static void flow_free(struct verbs_flow *flow)
{
	count_flow_of_tcp_port(flow, UINT32_MAX);
	if (flow->is_noted)
		verbs_peers_report_conn_end_to_vmad(flow->qp->nic, flow);
	if (flow->claim_fd >= 0)
		nic_fd_close(flow->claim_fd);
	nic_cookies_fini(&flow->shadows);
	free(flow);
}

static void stats_count_ended_flow(const struct verbs_qp *qp)
{
	vma_stats_set(&qp->stats->flows, vma_stats_read_counter(&qp->stats->flows) - 1);
}

static void publish_flow_count(const struct verbs_qp *qp)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < qp->nic->flow_buckets_n; i++)
		for (const struct verbs_flow *flow = qp->nic->flow_buckets[i]; flow != NULL; flow = flow->next)
			n += flow->qp == qp;
	vma_stats_set(&qp->stats->flows, n);
}

/* ---- rules ---- */

/*
 * The routes know which addresses are broadcast: connect refuses them, unless the socket may send there. (A route that
 * prohibits refuses either way.)
 */
static bool is_broadcast(const struct vma_flow_key *key)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = key->local_port_be};
	const int fd = os_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
	bool is;

	memcpy(&to.sin_addr, key->local, 4);
	if (to.sin_addr.s_addr == INADDR_BROADCAST || fd < 0) {
		if (fd >= 0)
			os_close(fd);
		return to.sin_addr.s_addr == INADDR_BROADCAST;
	}
	is = os_connect(fd, (const struct sockaddr *)&to, sizeof(to)) < 0 && errno == EACCES &&
	     os_setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof(on)) == 0 &&
	     os_connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0;
	os_close(fd);
	return is;
}

/* 0 or -errno. */
static int card_rule_create(const struct verbs_qp *qp, const struct verbs_flow *flow, uint16_t priority,
                            struct ibv_flow **out)
{
	const struct verbs_rule_port at = {.mac = qp->nic->mac,
	                                   .port = qp->queue.device->place.port,
	                                   .priority = priority,
	                                   .is_broadcast = flow->is_broadcast};
	struct verbs_rule_spec rule;

	verbs_rule_build(&flow->rule.key, &at, &rule);
	errno = 0;
	*out = ibv_create_flow(qp->queue.qp, &rule.attr);
	if (*out != NULL)
		return 0;
	return errno == ENOMEM ? -ENOSPC : errno != 0 ? -errno : -EIO;
}

static int card_rule_create_for_flow(struct verbs_flow *flow)
{
	return card_rule_create(flow->qp, flow, flow->priority, &flow->of_card);
}

static void card_rule_destroy(struct verbs_flow *flow)
{
	if (flow->of_card != NULL)
		ibv_destroy_flow(flow->of_card);
	flow->of_card = NULL;
}

/* The next binding's, before that of the last one goes, if it is still there. */
static int card_rule_recreate(struct verbs_flow *flow)
{
	struct ibv_flow *old = flow->of_card;
	int rc = card_rule_create_for_flow(flow);

	if (old == NULL)
		return rc;
	ibv_destroy_flow(old);
	return rc < 0 ? card_rule_create_for_flow(flow) : 0; /* a device may take a rule only once */
}

int verbs_probe_flow_rules(const struct verbs_device *device, struct ibv_qp *qp)
{
	/* RFC 5737: addresses that nobody has. */
	const struct vma_flow_key key = {.family = AF_INET,
	                                 .proto = IPPROTO_UDP,
	                                 .local_port_be = htons(9),
	                                 .peer_port_be = htons(9),
	                                 .local = {192, 0, 2, 1},
	                                 .peer = {192, 0, 2, 2}};
	const uint8_t mac[6] = {0x02, 0, 0, 0, 0, 0x01};
	const struct verbs_rule_port at = {.mac = mac, .port = device->place.port, .priority = VERBS_PRIORITY_PEER};
	struct verbs_rule_spec rule;
	struct ibv_flow *made;

	verbs_rule_build(&key, &at, &rule);
	errno = 0;
	made = ibv_create_flow(qp, &rule.attr);
	if (made == NULL)
		return errno != 0 ? -errno : -EIO;
	ibv_destroy_flow(made);
	return 0;
}

/* ---- calls ---- */

/* 0, or -errno: another process has it, or no claim can be had. */
static int flow_claim(struct verbs_flow *flow)
{
	struct nic_verbs *nic = flow->qp->nic;
	int fd = verbs_flow_contest_take_back_claim(nic, &flow->rule.key);

	if (fd == -ENOENT)
		fd = verbs_claim_flow_address(nic, &flow->rule.key);
	flow->claim_fd = fd < 0 ? -1 : fd;
	return fd < 0 ? fd : 0;
}

/* Of a new flow. */
static int flow_claim_and_create_rule(struct verbs_flow *flow)
{
	struct nic_verbs *nic = flow->qp->nic;
	int rc = 0;

	if (verbs_flow_needs_claim(&flow->rule))
		rc = flow_claim(flow);
	if (rc == 0)
		rc = verbs_refuse_flow_on_kernel_conflict(nic, &flow->rule);
	if (rc < 0)
		return rc;
	rc = card_rule_create_for_flow(flow);
	if (rc < 0 && verbs_device_failure_explains_error(nic, flow->qp->queue.device))
		return -EPIPE; /* as of a queue pair that is lost, which it soon is */
	if (rc < 0)
		vma_log_once(VMA_LOG_WARN, "%s: the card takes no more rules (%s): the kernel has what comes on",
		             nic->name, strerror(-rc));
	return rc;
}

/* A later member of the ring's: its socket is no kernel sock, and may share the port. If another process has the claim
 * that the flow needs from now on, the next look for conflicts revokes it. */
static void flow_add_member_shadow(struct verbs_flow *flow, const struct vma_flow_rule *rule)
{
	if (!(rule->flags & VMA_FLOW_PORT_EXCLUSIVE))
		flow->rule.flags &= ~(uint32_t)VMA_FLOW_PORT_EXCLUSIVE;
	if (verbs_flow_needs_claim(&flow->rule) && flow->claim_fd < 0 && flow_claim(flow) < 0)
		flow->is_contested = true;
	if (nic_cookies_add(&flow->shadows, &rule->key, rule->shadow_cookie) < 0)
		vma_log_debug("%s: a flow has more shadows than are kept", flow->qp->nic->name);
}

static bool flow_rule_is_lingering(const struct nic_verbs *nic, const struct vma_flow_key *key)
{
	const struct verbs_flow *flow = nic->lingering;

	while (flow != NULL && memcmp(&flow->rule.key, key, sizeof(*key)) != 0)
		flow = flow->next;
	return flow != NULL;
}

static int flow_add_locked(struct verbs_qp *qp, const struct vma_flow_rule *rule)
{
	struct nic_verbs *nic = qp->nic;
	struct verbs_flow *flow = flow_find(nic, &rule->key);
	int rc;

	if (flow != NULL && flow->qp == qp)
		flow_add_member_shadow(flow, rule);
	if (flow != NULL)
		return flow->qp == qp ? -EEXIST : -EADDRINUSE;
	if (vma_nic_qp_lost(&qp->base))
		return -EPIPE;
	if (flow_rule_is_lingering(nic, &rule->key))
		return -EADDRINUSE;
	verbs_exempt_rule_remove(nic, &rule->key); /* the kernel has had such a connection */
	rc = flow_table_grow_if_full(nic);
	flow = rc == 0 ? calloc(1, sizeof(*flow)) : NULL;
	if (flow == NULL)
		return -ENOMEM;
	*flow = (struct verbs_flow){.rule = *rule,
	                            .qp = qp,
	                            .priority = verbs_rule_priority(&rule->key),
	                            .is_broadcast = rule->key.proto == IPPROTO_UDP && is_broadcast(&rule->key),
	                            .claim_fd = -1};
	count_flow_of_tcp_port(flow, 1);
	rc = nic_cookies_add(&flow->shadows, &rule->key, rule->shadow_cookie);
	if (rc == 0)
		rc = flow_claim_and_create_rule(flow);
	if (rc < 0) {
		flow_free(flow);
		return rc;
	}
	flow_insert(nic, flow);
	nic->flows_n++;
	verbs_peers_report_connection_to_vmad(nic, flow);
	vma_stats_add(&qp->stats->flows, 1);
	return 0;
}

int verbs_flow_add(struct vma_nic_qp *base, const struct vma_flow_rule *rule)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	int rc;

	if (rule->key.proto == VMA_FLOW_TCP_PORTS ||
	    (rule->key.proto == VMA_FLOW_TCP_ADDRESS && qp->nic->tcp_port_flows == NULL))
		return -EOPNOTSUPP;
	if (!verbs_opened_by_this_process(qp->nic))
		return -ENODEV;
	pthread_mutex_lock(&qp->nic->lock);
	rc = flow_add_locked(qp, rule);
	pthread_mutex_unlock(&qp->nic->lock);
	if ((rc == 0 || rc == -EEXIST) && verbs_flow_may_get_conflict(rule))
		verbs_thread_wake(qp->nic); /* which looks for conflicts from now on */
	return rc;
}

int verbs_flow_begin_kernel_exemption(struct vma_nic *base, const struct vma_flow_key *key)
{
	struct nic_verbs *nic = (struct nic_verbs *)base;
	int rc;

	if (!verbs_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	rc = flow_find(nic, key) == NULL ? verbs_exempt_rule_ref_or_create(nic, key) : -EEXIST;
	pthread_mutex_unlock(&nic->lock);
	return rc;
}

void verbs_flow_end_kernel_exemption(struct vma_nic *base, const struct vma_flow_key *key)
{
	struct nic_verbs *nic = (struct nic_verbs *)base;

	if (!verbs_opened_by_this_process(nic))
		return;
	pthread_mutex_lock(&nic->lock);
	verbs_exempt_rule_unref(nic, key);
	pthread_mutex_unlock(&nic->lock);
}

/* The first of a list that is this queue pair's, key NULL: whatever its key, is ended. */
static bool end_flow_of_qp_in_list(struct verbs_flow **place, const struct verbs_qp *qp, const struct vma_flow_key *key)
{
	struct verbs_flow *flow;

	while (*place != NULL &&
	       ((*place)->qp != qp || (key != NULL && memcmp(&(*place)->rule.key, key, sizeof(*key)) != 0)))
		place = &(*place)->next;
	flow = *place;
	if (flow == NULL)
		return false;
	*place = flow->next;
	card_rule_destroy(flow);
	flow_free(flow);
	return true;
}

static bool end_revoked_or_lingering_flow(struct nic_verbs *nic, const struct verbs_qp *qp,
                                          const struct vma_flow_key *key)
{
	return end_flow_of_qp_in_list(&nic->revoked, qp, key) || end_flow_of_qp_in_list(&nic->lingering, qp, key);
}

int verbs_flow_del(struct vma_nic_qp *base, const struct vma_flow_key *key)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct nic_verbs *nic = qp->nic;
	struct verbs_flow *flow;
	int rc = -ENOENT;

	if (!verbs_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	end_revoked_or_lingering_flow(nic, qp, key);
	flow = flow_find(nic, key);
	if (flow != NULL && flow->qp == qp) {
		card_rule_destroy(flow);
		flow_free(flow_unlink(nic, flow_find_link(nic, key)));
		stats_count_ended_flow(qp);
		rc = 0;
	}
	pthread_mutex_unlock(&nic->lock);
	return rc;
}

void verbs_flow_remove_handed_to_vmad(struct verbs_qp *qp, const struct vma_flow_key *key)
{
	struct nic_verbs *nic = qp->nic;
	struct verbs_flow *flow = flow_find(nic, key);

	if (flow == NULL || flow->qp != qp)
		return;
	flow->is_told = false; /* vmad forgets it by itself */
	card_rule_destroy(flow);
	flow_free(flow_unlink(nic, flow_find_link(nic, key)));
	stats_count_ended_flow(qp);
}

/* 0 or -errno, and nothing has changed. */
static int flow_move_card_rule(struct verbs_flow *flow, struct verbs_qp *to)
{
	const uint16_t priority = flow->priority ^ VERBS_PRIORITY_MOVED;
	struct ibv_flow *rule;
	int rc;

	if (flow->of_card == NULL || vma_nic_qp_lost(&to->base))
		return -EPIPE;
	rc = card_rule_create(to, flow, priority, &rule);
	if (rc < 0 && verbs_device_failure_explains_error(to->nic, to->queue.device))
		return -EPIPE;
	if (rc < 0)
		return rc == -EEXIST || rc == -EBUSY ? -EOPNOTSUPP : rc;
	card_rule_destroy(flow);
	flow->of_card = rule;
	flow->priority = priority;
	flow->qp = to;
	return 0;
}

int verbs_flow_move(struct vma_nic_qp *from, struct vma_nic_qp *to, const struct vma_flow_key *key)
{
	struct nic_verbs *nic = verbs_qp_of(from)->nic;
	struct verbs_flow *flow;
	int rc = -ENOENT;

	if (!verbs_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	flow = flow_find(nic, key);
	if (flow != NULL && flow->qp == verbs_qp_of(from))
		rc = flow_move_card_rule(flow, verbs_qp_of(to));
	if (rc == 0) {
		publish_flow_count(verbs_qp_of(from));
		publish_flow_count(verbs_qp_of(to));
	}
	pthread_mutex_unlock(&nic->lock);
	return rc;
}

/* ---- a binding's end, and the next one; lock held ---- */

void verbs_flows_destroy_rules(struct verbs_qp *qp)
{
	for (uint32_t i = 0; i < qp->nic->flow_buckets_n; i++)
		for (struct verbs_flow *flow = qp->nic->flow_buckets[i]; flow != NULL; flow = flow->next)
			if (flow->qp == qp)
				card_rule_destroy(flow);
	verbs_flows_end_revoked_rules(qp);
}

void verbs_flows_end_revoked_rules(struct verbs_qp *qp)
{
	for (struct verbs_flow *flow = qp->nic->revoked; flow != NULL; flow = flow->next)
		if (flow->qp == qp)
			card_rule_destroy(flow);
	while (end_flow_of_qp_in_list(&qp->nic->lingering, qp, NULL))
		;
}

/* 0; -ENODEV: the device has gone, and with it those rules that it had. */
static int recreate_rules_of_qp(struct verbs_qp *qp, bool of_any)
{
	struct nic_verbs *nic = qp->nic;

	for (uint32_t i = 0; i < nic->flow_buckets_n; i++) {
		struct verbs_flow **place = &nic->flow_buckets[i], *flow;

		while ((flow = *place) != NULL) {
			if (flow->qp != qp || (flow->rule.key.peer_port_be == 0) != of_any ||
			    card_rule_recreate(flow) == 0) {
				place = &flow->next;
				continue;
			}
			if (verbs_device_failure_explains_error(nic, qp->queue.device))
				return -ENODEV;
			flow_unlink(nic, place);
			flow->next = nic->revoked;
			nic->revoked = flow;
		}
	}
	return 0;
}

/* What lingers in the device goes on lingering there; what the next queue cannot have has ended. */
static void recreate_rules_of_revoked(struct verbs_qp *qp, struct verbs_flow *flow)
{
	for (; flow != NULL; flow = flow->next)
		if (flow->qp == qp && flow->of_card != NULL)
			card_rule_recreate(flow);
}

/* Connections before their listener: it would give their packets to the kernel. */
int verbs_flows_restore(struct verbs_qp *qp)
{
	int rc = recreate_rules_of_qp(qp, false);

	if (rc == 0)
		rc = recreate_rules_of_qp(qp, true);
	if (rc < 0)
		return rc;
	recreate_rules_of_revoked(qp, qp->nic->revoked);
	recreate_rules_of_revoked(qp, qp->nic->lingering);
	publish_flow_count(qp);
	return 0;
}

void verbs_flows_end_of_qp(struct verbs_qp *qp)
{
	struct nic_verbs *nic = qp->nic;

	for (uint32_t i = 0; i < nic->flow_buckets_n; i++) {
		struct verbs_flow **place = &nic->flow_buckets[i];

		while (*place != NULL) {
			if ((*place)->qp != qp) {
				place = &(*place)->next;
				continue;
			}
			card_rule_destroy(*place);
			flow_free(flow_unlink(nic, place));
		}
	}
	while (end_revoked_or_lingering_flow(nic, qp, NULL))
		;
}

static struct verbs_flow **flow_find_link_by_claim(struct nic_verbs *nic, int fd)
{
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++)
		for (struct verbs_flow **place = &nic->flow_buckets[i]; *place != NULL; place = &(*place)->next)
			if ((*place)->claim_fd == fd)
				return place;
	return NULL;
}

/* lingers: the name is kept that long. */
static void flow_revoke_to_kernel(struct nic_verbs *nic, struct verbs_flow **place, bool lingers)
{
	struct verbs_flow *flow = flow_unlink(nic, place);

	if (!lingers || !(flow->rule.flags & VMA_FLOW_LISTENER))
		card_rule_destroy(flow);
	flow->until_ms = os_now_ms() + LINGER_MS;
	flow->next = nic->revoked;
	nic->revoked = flow;
	if (flow->of_card == NULL && flow->claim_fd >= 0) {
		nic_fd_close(flow->claim_fd);
		flow->claim_fd = -1;
	}
	stats_count_ended_flow(flow->qp);
}

void verbs_flows_revoke_all_of_qp(struct verbs_qp *qp)
{
	for (uint32_t i = 0; i < qp->nic->flow_buckets_n; i++) {
		struct verbs_flow **place = &qp->nic->flow_buckets[i];

		while (*place != NULL) {
			if ((*place)->qp == qp)
				flow_revoke_to_kernel(qp->nic, place, false);
			else
				place = &(*place)->next;
		}
	}
}

void verbs_flows_revoke_wanted_by_other_process(struct nic_verbs *nic)
{
	int fd;

	while ((fd = verbs_next_contested_claim(nic)) >= 0) {
		struct verbs_flow **place = flow_find_link_by_claim(nic, fd);

		if (place == NULL) {
			verbs_flow_contest_extend_or_drop_claim(nic, fd);
			continue;
		}
		(*place)->claim_fd = -1;
		flow_revoke_to_kernel(nic, place, verbs_flow_contest_begin(nic, &(*place)->rule.key, fd));
	}
}

/* Ends those whose time is over. How long it is to the next, ms; -1: there is none. */
int verbs_flows_end_lingering(struct nic_verbs *nic)
{
	const uint64_t now_ms = os_now_ms();
	struct verbs_flow **place = &nic->lingering, *flow;
	uint64_t next_ms = UINT64_MAX;

	while ((flow = *place) != NULL) {
		if (flow->until_ms <= now_ms) {
			*place = flow->next;
			card_rule_destroy(flow);
			flow_free(flow);
			continue;
		}
		next_ms = flow->until_ms < next_ms ? flow->until_ms : next_ms;
		place = &flow->next;
	}
	return next_ms != UINT64_MAX ? (int)(next_ms - now_ms) : -1;
}

void verbs_flows_revoke_contested(struct nic_verbs *nic)
{
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++) {
		struct verbs_flow **place = &nic->flow_buckets[i];

		while (*place != NULL) {
			if ((*place)->is_contested)
				flow_revoke_to_kernel(nic, place, true);
			else
				place = &(*place)->next;
		}
	}
}

static void flow_close_names_in_child(const struct verbs_flow *flow)
{
	if (flow->claim_fd >= 0)
		os_close(flow->claim_fd);
}

void verbs_flows_close_claims_in_child(const struct nic_verbs *nic)
{
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++)
		for (const struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next)
			flow_close_names_in_child(flow);
	for (const struct verbs_flow *flow = nic->revoked; flow != NULL; flow = flow->next)
		flow_close_names_in_child(flow);
	for (const struct verbs_flow *flow = nic->lingering; flow != NULL; flow = flow->next)
		flow_close_names_in_child(flow);
	verbs_flow_contests_close_fds_in_child(nic);
}

bool verbs_flow_pop_revoked(struct nic_verbs *nic, struct verbs_qp **qp, struct vma_flow_key *key)
{
	struct verbs_flow *flow = nic->revoked;

	if (flow == NULL)
		return false;
	nic->revoked = flow->next;
	*qp = flow->qp;
	*key = flow->rule.key;
	if (flow->of_card != NULL) {
		flow->next = nic->lingering;
		nic->lingering = flow;
	} else {
		flow_free(flow);
	}
	return true;
}

/* All queue pairs have ended, and their flows with them. */
void verbs_flows_fini(struct nic_verbs *nic)
{
	verbs_flow_contests_fini(nic);
	free(nic->flow_buckets);
	nic->flow_buckets = NULL;
	nic->flow_buckets_n = 0;
}
