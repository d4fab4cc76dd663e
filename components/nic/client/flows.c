/*
 * flows - the flows of a queue pair: asked for at the owner, and kept for the next owner.
 *
 * A server has as many flows as connections, so they are in a hash table. If the owner takes a flow back, the flow
 * leaves the table at once and waits, in a list, to be reported. Deleting it, or getting it again, takes it out of that
 * list.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "../os.h"
#include "../xdp/claims.h"
#include "../xdp/shared.h"

#define BUCKETS_FIRST 16
#define TRIES 3 /* of a request, while one vmad after the other ends */

/* ---- the table ---- */

static struct xdp_flow **xdp_flow_bucket_of(const struct xdp_flows *flows, const struct vma_flow_key *key)
{
	uint64_t word, hash = 0;

	for (size_t i = 0; i < sizeof(*key); i += sizeof(word)) {
		memcpy(&word, (const char *)key + i, sizeof(word));
		hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
		hash ^= hash >> 32;
	}
	return &flows->bucket[hash & (flows->buckets - 1)];
}

static struct xdp_flow **flow_find_in_bucket(struct xdp_flow **place, const struct vma_flow_key *key)
{
	while (*place != NULL && memcmp(&(*place)->rule.key, key, sizeof(*key)) != 0)
		place = &(*place)->next;
	return place;
}

static struct xdp_flow *xdp_flow_find(const struct xdp_flows *flows, const struct vma_flow_key *key)
{
	return flows->buckets == 0 ? NULL : *flow_find_in_bucket(xdp_flow_bucket_of(flows, key), key);
}

static void xdp_flow_insert(struct xdp_flows *flows, struct xdp_flow *flow)
{
	struct xdp_flow **bucket = xdp_flow_bucket_of(flows, &flow->rule.key);

	flow->next = *bucket;
	*bucket = flow;
	flows->used++;
}

/* Without memory the chains become longer; only the first table must be had. */
static int xdp_flows_grow(struct xdp_flows *flows)
{
	struct xdp_flows bigger = {.buckets = flows->buckets == 0 ? BUCKETS_FIRST : flows->buckets * 2,
	                           .revoked = flows->revoked};

	if (flows->used < flows->buckets)
		return 0;
	bigger.bucket = calloc(bigger.buckets, sizeof(struct xdp_flow *));
	if (bigger.bucket == NULL)
		return flows->buckets == 0 ? -ENOMEM : 0;
	for (uint32_t i = 0; i < flows->buckets; i++) {
		while (flows->bucket[i] != NULL) {
			struct xdp_flow *flow = flows->bucket[i];

			flows->bucket[i] = flow->next;
			xdp_flow_insert(&bigger, flow);
		}
	}
	free(flows->bucket);
	*flows = bigger;
	return 0;
}

static struct xdp_flow *flow_unlink_at(struct xdp_flow **place)
{
	struct xdp_flow *flow = *place;

	if (flow != NULL)
		*place = flow->next;
	return flow;
}

static struct xdp_flow *xdp_flow_remove(struct xdp_flows *flows, const struct vma_flow_key *key)
{
	struct xdp_flow *flow =
	        flows->buckets == 0 ? NULL : flow_unlink_at(flow_find_in_bucket(xdp_flow_bucket_of(flows, key), key));

	if (flow != NULL)
		flows->used--;
	return flow;
}

static void xdp_flow_free(struct xdp_flow *flow)
{
	if (flow == NULL)
		return;
	nic_cookies_fini(&flow->shadows);
	free(flow);
}

static void free_xdp_flow_list(struct xdp_flow *flow)
{
	while (flow != NULL) {
		struct xdp_flow *next = flow->next;

		xdp_flow_free(flow);
		flow = next;
	}
}

void nic_xdp_flows_fini(struct xdp_flows *flows)
{
	for (uint32_t i = 0; i < flows->buckets; i++)
		free_xdp_flow_list(flows->bucket[i]);
	free(flows->bucket);
	free_xdp_flow_list(flows->revoked);
	*flows = (struct xdp_flows){0};
}

/* ---- what the owner takes back ---- */

static void flow_list_push_revoked(struct xdp_flows *flows, struct xdp_flow *flow)
{
	flow->next = flows->revoked;
	flows->revoked = flow;
}

/* nic->lock. */
static void qp_publish_flow_count(const struct xdp_qp *qp)
{
	vma_stats_set(&qp->stats->flows, qp->flows.used);
}

void nic_xdp_flow_revoke(struct xdp_qp *qp, const struct vma_flow_key *key)
{
	struct xdp_flow *flow = xdp_flow_remove(&qp->flows, key);

	if (flow != NULL)
		flow_list_push_revoked(&qp->flows, flow);
	qp_publish_flow_count(qp);
}

bool nic_xdp_flow_pop_revoked(struct xdp_qp *qp, struct vma_flow_key *key)
{
	struct xdp_flow *flow = flow_unlink_at(&qp->flows.revoked);

	if (flow == NULL)
		return false;
	*key = flow->rule.key;
	xdp_flow_free(flow);
	return true;
}

/* ---- the owner ---- */

static bool process_has_flow_key(const struct xdp_qp *qp, const struct vma_flow_key *key)
{
	for (const struct xdp_qp *other = qp->nic->qps; other != NULL; other = other->next)
		if (xdp_flow_find(&other->flows, key) != NULL)
			return true;
	return false;
}

/*
 * A connection that vmad grants without a socket: a listener or block of this process has its port. A client that has
 * the claims mapped has CAP_NET_RAW, and vmad knows that. Lock held.
 */
static bool qp_is_entitled_to_connection(const struct xdp_qp *qp, const struct vma_flow_key *key)
{
	struct vma_flow_key wildcard = *key;

	if (qp->lease->window->claims != NULL)
		return true;
	wildcard.peer_port_be = 0;
	memset(wildcard.peer, 0, sizeof(wildcard.peer));
	if (process_has_flow_key(qp, &wildcard))
		return true;
	wildcard.proto = VMA_FLOW_TCP_PORTS;
	wildcard.local_port_be &= htons((uint16_t) ~(VMA_FLOW_PORTS - 1));
	return process_has_flow_key(qp, &wildcard);
}

static int request_flow_add_with_proof(struct xdp_qp *qp, const struct vma_flow_rule *rule, struct xdp_shadows *shadows)
{
	const struct xdp_proof_fd proof =
	        nic_xdp_get_proof_socket(shadows, rule, qp_is_entitled_to_connection(qp, &rule->key));
	struct vma_flow_rule asked = *rule;
	bool generic = qp->nic->base.info.generic;
	int rc;

	if (proof.fd < 0)
		asked.shadow_cookie = 0; /* it is closed */
	rc = vmad_client_flow_add(qp->nic->vmad, qp->slot, &asked, proof.fd, &generic);
	qp->nic->base.info.generic = generic;
	nic_xdp_put_proof_socket(&proof);
	return rc;
}

/* VMA_FLOW_PORT_EXCLUSIVE is not the owner's business: who asks him wants to have it looked at. He looks for each
 * connection, so VMA_FLOW_PORT_BOUND tells him nothing. */
static int request_flow_add(struct xdp_qp *qp, const struct vma_flow_rule *rule, struct xdp_shadows *shadows)
{
	struct nic_xdp *nic = qp->nic;
	struct vma_flow_rule asked = *rule;
	int rc = -EPIPE;

	asked.flags &= ~(uint32_t)(VMA_FLOW_PORT_EXCLUSIVE | VMA_FLOW_PORT_BOUND);
	if (nic->owner != NULL) {
		rc = xdp_owner_flow_add(nic->owner, qp->slot, &asked);
		nic->base.info.generic = xdp_owner_uses_generic_xdp(nic->owner);
	} else if (nic->vmad != NULL) {
		rc = request_flow_add_with_proof(qp, &asked, shadows);
	}
	return rc;
}

static void request_flow_del(struct nic_xdp *nic, const struct xdp_qp *qp, const struct vma_flow_key *key)
{
	if (nic->owner != NULL)
		xdp_owner_flow_del(nic->owner, qp->slot, key);
	else if (nic->vmad != NULL && !vma_nic_qp_lost(&qp->base))
		vmad_client_flow_del(nic->vmad, qp->slot, key);
}

static int send_flow_shadows_to_vmad(struct xdp_qp *qp, const struct xdp_flow *flow, struct xdp_shadows *shadows)
{
	const size_t n = flow->shadows.n;
	uint64_t *cookies = malloc(n * (sizeof(*cookies) + sizeof(int)));
	int *fds, rc;

	if (cookies == NULL)
		return -ENOMEM;
	fds = (int *)(cookies + n);
	rc = vmad_client_send_flow_shadow_cookies(
	        qp->nic->vmad, qp->slot, &flow->rule.key, cookies, fds,
	        nic_xdp_find_shadow_fds_still_open(shadows, &flow->shadows, flow->rule.shadow_fd, cookies, fds));
	free(cookies);
	return rc;
}

/* A flow outlives the socket that it was made for, if there are others. */
static void flow_choose_open_shadow(struct xdp_flow *flow, struct xdp_shadows *shadows)
{
	const struct nic_cookies *cookies = &flow->shadows;
	struct xdp_proof_fd proof = nic_xdp_get_proof_socket(shadows, &flow->rule, true);

	for (uint32_t i = 0; proof.fd < 0 && i < cookies->n; i++) {
		const struct vma_flow_rule other = {.key = flow->rule.key, .shadow_cookie = cookies->list[i]};

		proof = nic_xdp_get_proof_socket(shadows, &other, true);
		if (proof.fd < 0)
			continue;
		flow->rule.shadow_cookie = other.shadow_cookie;
		flow->rule.shadow_fd = proof.fd;
	}
}

/* First the shadows: the check that comes with the flow must not take those of later members for strangers. */
static int restore_flow(struct xdp_qp *qp, struct xdp_flow *flow, struct xdp_shadows *shadows)
{
	int rc = 0;

	if (qp->nic->vmad != NULL && flow->shadows.n > 1) {
		flow_choose_open_shadow(flow, shadows);
		rc = send_flow_shadows_to_vmad(qp, flow, shadows);
	}
	return rc < 0 ? rc : request_flow_add(qp, &flow->rule, shadows);
}

/*
 * vmad has ended while it moved the flow, and had done it: the next one finds the flow with the other queue pair. There
 * is room for it in that one's table.
 */
static bool flow_was_moved_by_old_vmad(struct xdp_flow *flow, struct xdp_shadows *shadows)
{
	int rc;

	if (flow->moves_to == NULL || vma_nic_qp_lost(&flow->moves_to->base))
		return false;
	rc = restore_flow(flow->moves_to, flow, shadows);
	return rc == 0 || rc == -EEXIST;
}

static bool flow_is_connection(const struct xdp_flow *flow)
{
	return flow->rule.key.proto == IPPROTO_TCP && flow->rule.key.peer_port_be != 0;
}

static void qp_readd_flows_of_kind(struct xdp_qp *qp, bool discard_state, bool connections, struct xdp_shadows *shadows)
{
	struct xdp_flows *flows = &qp->flows;

	for (uint32_t i = 0; i < flows->buckets; i++) {
		struct xdp_flow **place = &flows->bucket[i];

		while (*place != NULL) {
			struct xdp_flow *flow;
			int rc = 0;

			if (discard_state)
				(*place)->claim = NULL; /* of an owner that has gone */
			if (flow_is_connection(*place) == connections && (*place)->claim == NULL)
				rc = restore_flow(qp, *place, shadows);
			/* EPIPE: lost again, and then restored again */
			if (rc == 0 || rc == -EEXIST || rc == -EPIPE) {
				place = &(*place)->next;
				continue;
			}
			flow = flow_unlink_at(place);
			flows->used--;
			if (rc == -EADDRINUSE && !discard_state && flow_was_moved_by_old_vmad(flow, shadows))
				xdp_flow_insert(&flow->moves_to->flows, flow);
			else
				flow_list_push_revoked(flows, flow);
		}
	}
}

/* Listeners and blocks give the right to the connections that they cover. */
static void qp_readd_all_flows(struct xdp_qp *qp, bool discard_state)
{
	struct xdp_shadows shadows = {0};

	qp_readd_flows_of_kind(qp, discard_state, false, &shadows);
	qp_readd_flows_of_kind(qp, discard_state, true, &shadows);
	nic_xdp_shadows_fini(&shadows);
}

void nic_xdp_flows_restore(struct xdp_qp *qp)
{
	qp_readd_all_flows(qp, true);
}

void nic_xdp_flows_reannounce(struct xdp_qp *qp)
{
	qp_readd_all_flows(qp, false);
}

/* ---- add and delete ---- */

/* Lock held. `flow` joins the table (then it is NULL), or its shadow the flow that is there. */
static int qp_insert_flow_or_shadow(struct xdp_qp *qp, struct xdp_flow **flow, int rc)
{
	const struct vma_flow_rule *rule = &(*flow)->rule;
	struct xdp_flow *known = xdp_flow_find(&qp->flows, &rule->key);

	if (rc == -EEXIST && known != NULL) {
		const int added = nic_cookies_add(&known->shadows, &rule->key, rule->shadow_cookie);

		return added < 0 ? added : rc;
	}
	if (rc == 0)
		rc = xdp_flows_grow(&qp->flows);
	if (rc == 0)
		rc = nic_cookies_add(&(*flow)->shadows, &rule->key, rule->shadow_cookie);
	if (rc < 0)
		return rc;
	xdp_flow_free(flow_unlink_at(flow_find_in_bucket(&qp->flows.revoked, &rule->key)));
	xdp_flow_insert(&qp->flows, *flow);
	qp_publish_flow_count(qp);
	*flow = NULL;
	return 0;
}

/*
 * The owner's clock starts with the first flow. vmad keeps its own; but what it took back may have come in with an
 * answer, and nobody polls for that one. Lock held.
 */
static void nic_wake_thread_if_events(struct nic_xdp *nic)
{
	if (nic->owner != NULL ||
	    (nic->vmad != NULL && (vmad_client_has_event(nic->vmad) || vmad_client_broken(nic->vmad))))
		nic_xdp_thread_wake(nic);
}

/* ---- without asking ---- */

/* Lock held, not lost. NULL: it has to be asked for. */
static struct xdp_claim *create_claim(struct xdp_qp *qp, const struct vma_flow_rule *rule)
{
	const struct xdp_window *window = qp->lease->window;

	if (!(rule->flags & VMA_FLOW_PORT_EXCLUSIVE) || window->claims == NULL ||
	    xdp_flow_find(&qp->flows, &rule->key) != NULL)
		return NULL;
	return xdp_claims_add_flow(window->claims, window->shared, qp->slot, &rule->key);
}

/* What was claimed is shared from now on: it becomes a rule like others, or nobody's. 0: there is no such flow. */
static int convert_claim_to_vmad_flow_rule(struct xdp_qp *qp, const struct vma_flow_rule *rule)
{
	struct xdp_flow *flow = xdp_flow_find(&qp->flows, &rule->key);
	struct xdp_shadows shadows = {0};
	int rc;

	if (flow == NULL || flow->claim == NULL || rule->flags & VMA_FLOW_PORT_EXCLUSIVE)
		return 0;
	rc = restore_flow(qp, flow, &shadows);
	nic_xdp_shadows_fini(&shadows);
	xdp_claims_remove_flow(flow->claim);
	flow->claim = NULL;
	if (rc == 0 || rc == -EEXIST)
		return 0;
	nic_xdp_flow_revoke(qp, &rule->key);
	return rc;
}

/* Lock held, not lost. */
static int flow_add_as_claim_or_request(struct xdp_qp *qp, struct xdp_flow *flow)
{
	struct xdp_shadows shadows = {0};
	int rc = convert_claim_to_vmad_flow_rule(qp, &flow->rule);

	if (rc < 0)
		return rc;
	flow->claim = create_claim(qp, &flow->rule);
	rc = flow->claim != NULL ? 0 : request_flow_add(qp, &flow->rule, &shadows);
	nic_xdp_shadows_fini(&shadows);
	return rc;
}

static void remove_flow_claim_or_rule(const struct xdp_qp *qp, struct xdp_claim *claim, const struct vma_flow_key *key)
{
	if (claim == NULL)
		request_flow_del(qp->nic, qp, key);
	else if (!vma_nic_qp_lost(&qp->base))
		xdp_claims_remove_flow(claim);
}

/*
 * If vmad ends while it is asked, another one is, and may find that it has the flow: the one before had put it there
 * and was not heard any more.
 */
static int flow_add_retrying(struct xdp_qp *qp, struct xdp_flow *flow)
{
	int rc = flow_add_as_claim_or_request(qp, flow);

	for (int tries = 0; rc == -EPIPE && tries < TRIES && nic_xdp_await_vmad(qp->nic); tries++) {
		rc = vma_nic_qp_lost(&qp->base) ? -EPIPE : flow_add_as_claim_or_request(qp, flow);
		if (rc == -EEXIST && xdp_flow_find(&qp->flows, &flow->rule.key) == NULL)
			rc = 0;
	}
	return rc;
}

/* While the owner is gone a flow is only noted: rebind adds it. */
int nic_xdp_flow_add(struct vma_nic_qp *base, const struct vma_flow_rule *rule)
{
	struct xdp_qp *qp = (struct xdp_qp *)base;
	struct nic_xdp *nic = qp->nic;
	struct xdp_flow *flow;
	struct xdp_claim *claim;
	int rc, kept;

	if (!nic_xdp_opened_by_this_process(nic))
		return -ENODEV;
	flow = malloc(sizeof(*flow)); /* calloc passes the thread's own cache by */
	if (flow == NULL)
		return -ENOMEM;
	*flow = (struct xdp_flow){.rule = *rule};
	pthread_mutex_lock(&nic->lock);
	rc = vma_nic_qp_lost(base) ? -EPIPE : flow_add_retrying(qp, flow);
	if (rc == -EPIPE && vma_nic_qp_lost(base))
		rc = xdp_flow_find(&qp->flows, &rule->key) != NULL ? -EEXIST : 0;
	else if (rc == -EPIPE)
		rc = -ETIMEDOUT; /* vmad stands still, or is long away */
	claim = flow->claim;
	kept = qp_insert_flow_or_shadow(qp, &flow, rc);
	if (rc == 0 && kept < 0)
		remove_flow_claim_or_rule(qp, claim, &rule->key);
	nic_wake_thread_if_events(nic);
	pthread_mutex_unlock(&nic->lock);
	xdp_flow_free(flow);
	return kept;
}

int nic_xdp_flow_del(struct vma_nic_qp *base, const struct vma_flow_key *key)
{
	struct xdp_qp *qp = (struct xdp_qp *)base;
	struct nic_xdp *nic = qp->nic;
	struct xdp_flow *flow;
	bool known;

	if (!nic_xdp_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	flow = xdp_flow_remove(&qp->flows, key);
	if (flow == NULL)
		flow = flow_unlink_at(flow_find_in_bucket(&qp->flows.revoked, key));
	if (flow != NULL)
		remove_flow_claim_or_rule(qp, flow->claim, key);
	qp_publish_flow_count(qp);
	nic_wake_thread_if_events(nic);
	pthread_mutex_unlock(&nic->lock);
	known = flow != NULL;
	xdp_flow_free(flow);
	return known ? 0 : -ENOENT;
}

/* ---- move ---- */

/* -1: not known yet. */
static _Atomic int xdp_program_await_state = -1;

/*
 * The program may have read the flow's slot before it was changed, and its packet reaches the old socket only when the
 * driver has gone through its batch. All of that is one section of RCU, and MEMBARRIER_CMD_GLOBAL returns when every
 * such section that had begun has ended. It is refused by a kernel with nohz_full, and perhaps by a sandbox.
 */
static bool can_await_running_xdp_program(void)
{
	int can = atomic_load_explicit(&xdp_program_await_state, memory_order_relaxed);

	if (can < 0) {
		const int commands = os_membarrier(MEMBARRIER_CMD_QUERY);

		can = commands > 0 && (commands & MEMBARRIER_CMD_GLOBAL) != 0;
		atomic_store_explicit(&xdp_program_await_state, can, memory_order_relaxed);
	}
	return can != 0;
}

/* Lock held. A claim's word names its slot, and is the client's to change: the program reads it at once. */
static int move_flow_rule_to_other_qp(struct xdp_qp *from, struct xdp_qp *to, struct xdp_flow *flow)
{
	struct nic_xdp *nic = from->nic;

	if (vma_nic_qp_lost(&from->base) || vma_nic_qp_lost(&to->base))
		return -EPIPE;
	if (flow->claim != NULL) {
		xdp_claims_move_to_slot(flow->claim, to->slot);
		return 0;
	}
	if (nic->owner != NULL)
		return xdp_owner_flow_move(nic->owner, from->slot, to->slot, &flow->rule.key);
	return nic->vmad != NULL ? vmad_client_flow_move(nic->vmad, from->slot, to->slot, &flow->rule.key) : -EPIPE;
}

/*
 * Lock held, and given up while another vmad is awaited. The one that has ended may have moved the flow or not. The
 * next one is told of it as `from`'s; if it knows it as `to`'s, it is told so (flow_was_moved_by_old_vmad). Else it is
 * asked to move it.
 */
static int move_rule_retrying(struct xdp_qp *from, struct xdp_qp *to, const struct vma_flow_key *key)
{
	struct xdp_flow *flow = xdp_flow_find(&from->flows, key);
	int rc = flow != NULL ? xdp_flows_grow(&to->flows) : -ENOENT;

	if (rc < 0)
		return rc;
	flow->moves_to = to;
	rc = move_flow_rule_to_other_qp(from, to, flow);
	for (int tries = 0; rc == -EPIPE && tries < TRIES && nic_xdp_await_vmad(from->nic); tries++) {
		flow = xdp_flow_find(&from->flows, key);
		if (flow == NULL)
			break;
		rc = move_flow_rule_to_other_qp(from, to, flow);
	}
	flow = xdp_flow_find(&from->flows, key);
	if (rc == 0 && flow != NULL)
		xdp_flow_insert(&to->flows, xdp_flow_remove(&from->flows, key));
	if (flow == NULL)
		flow = xdp_flow_find(&to->flows, key);
	if (flow == NULL)
		return -ENOENT; /* taken back */
	flow->moves_to = NULL;
	return xdp_flow_find(&to->flows, key) != NULL ? 0 : rc;
}

/* If vmad ends in the middle and none comes, the flow stays `from`'s here, and what the next one knows decides. */
int nic_xdp_flow_move(struct vma_nic_qp *from_base, struct vma_nic_qp *to_base, const struct vma_flow_key *key)
{
	struct xdp_qp *from = (struct xdp_qp *)from_base, *to = (struct xdp_qp *)to_base;
	const bool awaits = key->proto != IPPROTO_TCP; /* its segments have numbers */
	struct nic_xdp *nic = from->nic;
	int rc;

	if (!nic_xdp_opened_by_this_process(nic))
		return -ENODEV;
	if (awaits && !can_await_running_xdp_program())
		return -EOPNOTSUPP;
	pthread_mutex_lock(&nic->lock);
	rc = move_rule_retrying(from, to, key);
	nic_wake_thread_if_events(nic);
	pthread_mutex_unlock(&nic->lock);
	if (rc == 0 && awaits)
		os_membarrier(MEMBARRIER_CMD_GLOBAL);
	return rc;
}

int nic_xdp_flow_stop_new_connections(struct vma_nic_qp *base, const struct vma_flow_key *key)
{
	struct xdp_qp *qp = (struct xdp_qp *)base;
	struct nic_xdp *nic = qp->nic;
	int rc = -ENOENT;

	if (!nic_xdp_opened_by_this_process(nic) || base->member == NULL || atomic_load(&base->member->groups) == 0)
		return -ENOENT;
	pthread_mutex_lock(&nic->lock);
	if (nic->owner != NULL)
		rc = xdp_owner_flow_stop_new_conns(nic->owner, qp->slot, key);
	else if (nic->vmad != NULL && !vma_nic_qp_lost(base))
		rc = vmad_client_flow_stop_new_conns(nic->vmad, qp->slot, key);
	nic_wake_thread_if_events(nic);
	pthread_mutex_unlock(&nic->lock);
	return rc;
}

bool nic_xdp_port_has_rule(const struct vma_nic_qp *base, uint16_t local_port_be)
{
	const struct xdp_qp *qp = (const struct xdp_qp *)base;
	const uint16_t port = ntohs(local_port_be);

	return vma_nic_qp_lost(base) || qp->shared == NULL ||
	       (atomic_load(&qp->shared->named[port / 64]) >> port % 64 & 1) != 0;
}

bool nic_xdp_qp_is_only_tenant(const struct vma_nic_qp *base)
{
	const struct xdp_qp *qp = (const struct xdp_qp *)base;

	return !vma_nic_qp_lost(base) && qp->shared != NULL && atomic_load(&qp->shared->tenants) == 1;
}

/* An owner in this process ends with it: there is nobody to leave anything to. */
int nic_xdp_minisock_export(struct vma_nic_qp *base, const struct vma_flow_minisock *minisocks, unsigned n)
{
	struct xdp_qp *qp = (struct xdp_qp *)base;
	struct nic_xdp *nic = qp->nic;
	int rc = -EOPNOTSUPP;

	if (!nic_xdp_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	for (int tries = 0; nic->kind == VMA_NIC_OWNER_VMAD && tries < TRIES; tries++) {
		rc = nic->vmad != NULL && !vma_nic_qp_lost(base)
		             ? vmad_client_minisock_export(nic->vmad, qp->slot, minisocks, n)
		             : -EPIPE;
		if (rc != -EPIPE || vma_nic_qp_lost(base) || !nic_xdp_await_vmad(nic))
			break;
	}
	for (unsigned i = 0; i < n && rc == 0; i++)
		xdp_flow_free(xdp_flow_remove(&qp->flows, &minisocks[i].key));
	qp_publish_flow_count(qp);
	pthread_mutex_unlock(&nic->lock);
	return rc;
}
