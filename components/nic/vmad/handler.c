/*
 * handler - one message in, one answer out. Everything in a message is untrusted.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <vma/log.h>

#include "../owner/record.h"
#include "card.h"
#include "server.h"
#include "watches.h"

/* ---- who may be a client ---- */

static bool attr_admits_group(const struct vma_vmad_attr *attr, gid_t gid)
{
	for (unsigned i = 0; i < attr->ngroups; i++)
		if (attr->groups[i] == gid)
			return true;
	return false;
}

static bool peer_is_admitted_user(const struct vma_vmad_attr *attr, const struct vmad_peer *peer)
{
	gid_t groups[64];
	socklen_t len = sizeof(groups);

	for (unsigned i = 0; i < attr->nusers; i++)
		if (attr->users[i] == peer->uid)
			return true;
	if (attr_admits_group(attr, peer->gid))
		return true;
	/* Supplementary groups as they were at connect(); more than 64 of them are not looked at. */
	if (getsockopt(peer->fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
		return false;
	for (unsigned i = 0; i < len / sizeof(groups[0]); i++)
		if (attr_admits_group(attr, groups[i]))
			return true;
	return false;
}

/* The right that was shown stays here: it is taken away from a client that breaks the protocol. */
static int admit_client(const struct vmad_server *server, struct vmad_peer *peer, const int *fds, unsigned nfds)
{
	const struct ucred who = {.pid = peer->pid, .uid = peer->uid, .gid = peer->gid};
	int rc = nfds == 1 ? vmad_permission_socket_check(fds[0], server->ifindex, &who) : -EPERM;

	if (rc == 0) {
		peer->right_fd = fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
		peer->raw = vmad_permission_socket_made_by_sender(fds[0], &who);
	} else if (peer_is_admitted_user(server->attr, peer)) {
		rc = 0;
	}
	if (rc != -EPERM)
		return rc;
	vma_log_once(VMA_LOG_WARN,
	             "vmad: %s: user %u refused: it shows neither CAP_NET_RAW nor a right that a parent has passed on "
	             "for this user (VMA_CHILDREN_ANY_USER=1 of the parent: for all), and neither --allow-user nor "
	             "--allow-group names it",
	             server->attr->interface, peer->uid);
	return rc;
}

/* ---- requests ---- */

static bool peer_has_slot(const struct vmad_peer *peer, uint32_t slot)
{
	return slot < XDP_SLOTS_MAX && (peer->slots >> slot & 1);
}

/* What a user has, of all clients together; root may have all. */
static bool user_is_at_slot_or_flow_quota(const struct vmad_server *server, const struct vmad_peer *of, bool slots)
{
	uint32_t count = 0;

	if (of->uid == 0)
		return false;
	for (const struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++) {
		if (peer->state == PEER_NONE || peer->uid != of->uid)
			continue;
		for (uint64_t left = peer->slots; left != 0; left &= left - 1)
			count += slots ? 1 : xdp_owner_slot_flow_count(server->owner, (uint32_t)__builtin_ctzll(left));
	}
	if (count < (slots ? VMAD_USER_SLOTS : VMAD_USER_FLOWS))
		return false;
	vma_log_once(VMA_LOG_WARN, "vmad: %s: user %u has %u %s: no more, others may need them",
	             server->attr->interface, of->uid, count, slots ? "queue pairs" : "flows");
	return true;
}

/* What another vmad will know this client by. */
static uint64_t record_slot_tenant(struct vmad_server *server, const struct vmad_peer *peer, uint32_t slot)
{
	struct owner_slot_tenant tenant = {.pid = peer->pid, .uid = peer->uid, .gid = peer->gid};

	if (getrandom(&tenant.ticket, sizeof(tenant.ticket), 0) != sizeof(tenant.ticket))
		tenant.ticket = 0; /* good for nothing: see resume */
	xdp_owner_record_tenant_of_slot(server->owner, slot, &tenant, peer->pidfd);
	return tenant.ticket;
}

static int handle_rent_slot(struct vmad_server *server, struct vmad_peer *peer, const struct vmad_msg_rent_slot *wanted,
                            struct vmad_reply *reply)
{
	struct xdp_rental rental;
	int rc = user_is_at_slot_or_flow_quota(server, peer, true)
	                 ? -ENOSPC
	                 : xdp_owner_rent_queue_pair_slot(server->owner, wanted->rx_wre, wanted->tx_wre, &rental);

	if (rc < 0)
		return rc;
	peer->slots |= 1ull << rental.slot;
	rental.ticket = record_slot_tenant(server, peer, rental.slot);
	reply->msg.rental = (struct vmad_msg_rental){
	        .slot = rental.slot,
	        .queues = rental.queues,
	        .nframes = rental.nframes,
	        .rx_size = rental.rx_size,
	        .tx_size = rental.tx_size,
	        .tx_first = rental.tx_first,
	        .tx_count = rental.tx_count,
	        .rx_quota = rental.rx_quota,
	        .mtu = rental.mtu,
	        .generic = rental.generic,
	        .multi_buffer = rental.multi_buffer,
	        .tx_csum = rental.tx_csum,
	        .has_claims = rental.claims_fd >= 0 && peer->raw,
	        .has_alive = rental.alive_fd >= 0,
	        .ticket = rental.ticket,
	};
	reply->fds[0] = rental.umem_fd;
	reply->fds[1] = rental.shared_fd;
	memcpy(reply->fds + 2, rental.socket_fd, rental.queues * sizeof(int));
	reply->nfds = rental.queues + 2;
	/* Whoever writes there takes any port of UDP: like a raw socket. */
	if (rental.claims_fd >= 0 && peer->raw)
		reply->fds[reply->nfds++] = rental.claims_fd;
	if (rental.alive_fd >= 0)
		reply->fds[reply->nfds++] = rental.alive_fd;
	return 0;
}

/* The connection that has the slot by now, of the same process: the one before, or what stands for it. */
static struct vmad_peer *peer_that_holds_slot(struct vmad_server *server, uint32_t slot,
                                              const struct vmad_peer *accept_calls)
{
	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++)
		if (peer->state >= PEER_READY && peer->state != PEER_GHOST && peer_has_slot(peer, slot))
			return peer->pid == accept_calls->pid ? peer : NULL;
	return NULL;
}

/*
 * The ticket is what only the process knows that has rented the slot, and its children, who have other numbers. Its
 * user may have changed meanwhile.
 */
static int handle_resume_slot_by_ticket(struct vmad_server *server, struct vmad_peer *peer,
                                        const struct vmad_msg_resume_slot *what)
{
	struct vmad_peer *holder = peer_that_holds_slot(server, what->slot, peer);
	struct owner_slot_tenant tenant;
	bool leaves;

	if (holder == NULL || !xdp_owner_tenant(server->owner, what->slot, &tenant, &leaves) || tenant.ticket == 0 ||
	    tenant.ticket != what->ticket || tenant.pid != peer->pid)
		return -ENOENT;
	holder->slots &= ~(1ull << what->slot);
	peer->slots |= 1ull << what->slot;
	xdp_owner_resend_moved_conns_to_slot(server->owner, what->slot);
	return 0;
}

static int handle_return_slot(struct vmad_server *server, struct vmad_peer *peer,
                              const struct vmad_msg_return_slot *what)
{
	if (!peer_has_slot(peer, what->slot))
		return -ENOENT;
	xdp_owner_take_back_slot(server->owner, what->slot, what->frames_too != 0);
	if (what->frames_too)
		peer->slots &= ~(1ull << what->slot);
	return 0;
}

static int getsockopt_int_or_minus_1(int fd, int option)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, option, &value, &len) == 0 ? value : -1;
}

/*
 * Into `proof`, if it is a socket of this network namespace, and of that protocol. None of these questions waits for
 * the socket's lock, which its owner may be keeping.
 */
static bool fill_proof_from_client_socket(int fd, uint8_t proto, struct xdp_proof_socket *proof)
{
	uint64_t cookie;
	socklen_t len = sizeof(cookie);
	const int family = getsockopt_int_or_minus_1(fd, SO_DOMAIN);

	if ((family != AF_INET && family != AF_INET6) || getsockopt_int_or_minus_1(fd, SO_PROTOCOL) != proto ||
	    vmad_check_socket_in_same_netns(fd) < 0 || getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		return false;
	proof->family = (uint8_t)family;
	proof->cookie = cookie;
	return true;
}

static void log_flow_not_entitled(const struct vmad_server *server, const struct vmad_peer *peer,
                                  const struct vma_flow_key *key)
{
	vma_log_once(VMA_LOG_WARN,
	             "vmad: %s: user %u has no right to a flow of port %u: it has shown no socket that is bound to it",
	             server->attr->interface, peer->uid, ntohs(key->local_port_be));
}

static int handle_flow_add(struct vmad_server *server, const struct vmad_peer *peer, const struct vmad_msg_flow *flow,
                           const int *fds, unsigned nfds, struct vmad_reply *reply)
{
	struct xdp_proof_socket proof = {.raw = peer->raw};
	const struct vma_flow_rule rule = {
	        .key = flow->key,
	        .flags = flow->flags,
	        .shadow_cookie = flow->shadow_cookie,
	};
	int rc;

	if (!peer_has_slot(peer, flow->slot))
		return -ENOENT;
	if (user_is_at_slot_or_flow_quota(server, peer, false))
		return -ENOSPC;
	if (nfds == 1)
		fill_proof_from_client_socket(fds[0], flow->key.proto, &proof);
	rc = xdp_owner_flow_request(server->owner, flow->slot, &rule, &proof);
	if (rc == -EPERM)
		log_flow_not_entitled(server, peer, &flow->key);
	reply->msg.rental.generic = xdp_owner_uses_generic_xdp(server->owner);
	return rc;
}

static int handle_flow_del(struct vmad_server *server, const struct vmad_peer *peer, const struct vmad_msg_flow *flow)
{
	if (!peer_has_slot(peer, flow->slot))
		return -ENOENT;
	return xdp_owner_flow_del(server->owner, flow->slot, &flow->key);
}

/* What is named is what has been shown, in the same order. */
static int handle_set_flow_shadows(struct vmad_server *server, const struct vmad_peer *peer,
                                   const struct vmad_msg_flow_shadows *shadows, const int *fds, unsigned nfds)
{
	if (!peer_has_slot(peer, shadows->slot))
		return -ENOENT;
	if (shadows->count > VMAD_SHADOWS_MAX)
		return -EINVAL;
	for (unsigned i = 0; i < shadows->count; i++) {
		struct xdp_proof_socket proof = {0};

		if (i >= nfds || !fill_proof_from_client_socket(fds[i], shadows->key.proto, &proof) ||
		    proof.cookie != shadows->cookie[i])
			return -EPERM;
	}
	return xdp_owner_flow_shadows(server->owner, shadows->slot, &shadows->key, shadows->cookie, shadows->count);
}

/*
 * A connection by rules of a card, of a client that says when these end. What cannot be had here is the kernel's then,
 * and the peer of one that was cut is probed in either case.
 */
static void card_take_over_conn_as_minisock(struct vmad_server *server, const struct vmad_peer *peer,
                                            const struct vmad_msg_minisock *from)
{
	const unsigned client = (unsigned)(peer - server->peer);
	struct vmad_watched watched = {
	        .local_port_be = from->local_port_be, .peer_port_be = from->peer_port_be, .vlan = from->vlan};
	struct vma_flow_minisock minisock = {.state = from->state, .snd_nxt = from->snd_nxt, .rcv_nxt = from->rcv_nxt};

	memcpy(watched.local, from->local, sizeof(watched.local));
	memcpy(watched.peer, from->peer, sizeof(watched.peer));
	minisock.key = vmad_watched_key(&watched);
	if (!vmad_watches_may_take_over_conn(server->watches, server->owner, client, &watched)) {
		vmad_watches_del(server->watches, client, &watched);
		return;
	}
	vmad_card_minisock_create(server->card, &minisock);
	if (from->state == VMA_MINISOCK_RESET)
		vmad_watches_add_and_probe_now(server->watches, client, peer->uid, &watched);
	else
		vmad_watches_del(server->watches, client, &watched);
}

/* Believed as the clients of handle_tcp_watch_request: such a client could make the same rules itself. */
static int handle_card_minisocks(struct vmad_server *server, const struct vmad_peer *peer,
                                 const struct vmad_msg_minisocks *minisocks)
{
	if (!peer->raw)
		return -EPERM;
	if (minisocks->count > VMAD_MINISOCKS_MAX)
		return -EINVAL;
	if (server->watches == NULL)
		server->watches = vmad_watches_create(server->ifindex, server->attr->interface);
	if (server->card == NULL)
		server->card = vmad_card_create(server->ifindex, server->attr->interface);
	if (server->watches == NULL || server->card == NULL || vmad_card_open(server->card) < 0)
		return -EOPNOTSUPP;
	for (unsigned i = 0; i < minisocks->count; i++)
		card_take_over_conn_as_minisock(server, peer, &minisocks->minisock[i]);
	return 0;
}

/* One that is refused (another process has the flow by now) is none the less over for its client. */
static int handle_minisock_export(struct vmad_server *server, const struct vmad_peer *peer,
                                  const struct vmad_msg_minisocks *minisocks)
{
	if (minisocks->slot == VMAD_SLOT_CARD)
		return handle_card_minisocks(server, peer, minisocks);
	if (!peer_has_slot(peer, minisocks->slot))
		return -ENOENT;
	if (minisocks->count > VMAD_MINISOCKS_MAX)
		return -EINVAL;
	for (unsigned i = 0; i < minisocks->count; i++) {
		const struct vmad_msg_minisock *from = &minisocks->minisock[i];
		struct vma_flow_minisock minisock = {.key = {.family = AF_INET,
		                                             .proto = IPPROTO_TCP,
		                                             .vlan = from->vlan,
		                                             .local_port_be = from->local_port_be,
		                                             .peer_port_be = from->peer_port_be},
		                                     .state = from->state,
		                                     .snd_nxt = from->snd_nxt,
		                                     .rcv_nxt = from->rcv_nxt};

		memcpy(minisock.key.local, from->local, sizeof(from->local));
		memcpy(minisock.key.peer, from->peer, sizeof(from->peer));
		xdp_owner_take_over_conn_as_minisock(server->owner, minisocks->slot, &minisock);
	}
	return 0;
}

/*
 * Of an RDMA card's connections nobody can be asked, so whoever may send raw packets anyway is believed: a probe is no
 * more than such a client could send itself.
 */
static int handle_tcp_watch_request(struct vmad_server *server, const struct vmad_peer *peer,
                                    const struct vmad_watch *watch)
{
	const unsigned client = (unsigned)(peer - server->peer);

	if (!peer->raw)
		return -EPERM;
	if (watch->count > VMAD_WATCHED_MAX)
		return -EINVAL;
	if (server->watches == NULL && watch->op == VMAD_WATCH_BEGIN)
		server->watches = vmad_watches_create(server->ifindex, server->attr->interface);
	if (server->watches == NULL)
		return -ENOMEM;
	if (watch->op == VMAD_WATCH_BEGIN || watch->op == VMAD_WATCH_FORGET)
		vmad_watches_del_all_of_client(server->watches, client);
	for (unsigned i = 0; i < watch->count && watch->op == VMAD_WATCH_ADD; i++) {
		const struct vma_flow_key key = vmad_watched_key(&watch->watched[i]);

		vmad_watches_add(server->watches, client, peer->uid, &watch->watched[i]);
		vmad_card_end_minisock(server->card, &key);
	}
	for (unsigned i = 0; i < watch->count && watch->op == VMAD_WATCH_DEL; i++)
		vmad_watches_del(server->watches, client, &watch->watched[i]);
	return 0;
}

static int handle_open_repair_channel(struct vmad_server *server, struct vmad_peer *peer, struct vmad_reply *reply)
{
	const int fd = vmad_open_repair_channel_for_client(server, peer);

	if (fd < 0)
		return fd;
	reply->fds[0] = fd;
	reply->nfds = 1;
	reply->made_for_it = true;
	return 0;
}

static int handle_request(struct vmad_server *server, struct vmad_peer *peer, const struct vmad_msg *msg,
                          const int *fds, unsigned nfds, struct vmad_reply *reply)
{
	switch (msg->type) {
	case VMAD_RENT:
		return handle_rent_slot(server, peer, &msg->rent, reply);
	case VMAD_RETURN:
		return handle_return_slot(server, peer, &msg->ret);
	case VMAD_FLOW_ADD:
		return handle_flow_add(server, peer, &msg->flow, fds, nfds, reply);
	case VMAD_FLOW_DEL:
		return handle_flow_del(server, peer, &msg->flow);
	case VMAD_FLOW_MOVE:
		return peer_has_slot(peer, msg->move.from) && peer_has_slot(peer, msg->move.to)
		               ? xdp_owner_flow_move(server->owner, msg->move.from, msg->move.to, &msg->move.key)
		               : -ENOENT;
	case VMAD_FLOW_RETIRE:
		return peer_has_slot(peer, msg->flow.slot)
		               ? xdp_owner_flow_stop_new_conns(server->owner, msg->flow.slot, &msg->flow.key)
		               : -ENOENT;
	case VMAD_FLOW_SHADOWS:
		return handle_set_flow_shadows(server, peer, &msg->shadows, fds, nfds);
	case VMAD_MINISOCK_EXPORT:
		return handle_minisock_export(server, peer, &msg->minisocks);
	case VMAD_RESUME:
		return handle_resume_slot_by_ticket(server, peer, &msg->resume);
	case VMAD_RESUMED:
		if (!peer_has_slot(peer, msg->resume.slot))
			return -ENOENT;
		xdp_owner_end_unannounced_flows_of_slot(server->owner, msg->resume.slot);
		return 0;
	case VMAD_STATE: /* who the others are, and it takes a look at all frames */
		if (peer->uid != 0 && peer->uid != geteuid())
			return -EPERM;
		return vmad_fill_next_state_entry(server, peer, msg->state.place, &reply->msg.state);
	case VMAD_WATCH:
		return handle_tcp_watch_request(server, peer, &msg->watch);
	case VMAD_REPAIR:
		return handle_open_repair_channel(server, peer, reply);
	default:
		return -EOPNOTSUPP;
	}
}

/* ---- messages ---- */

static void init_reply(struct vmad_reply *reply, uint16_t type, uint32_t seq)
{
	*reply = (struct vmad_reply){.msg = {.magic = VMAD_MAGIC, .version = VMAD_VERSION, .type = type, .seq = seq}};
}

void vmad_fill_hello_reply(const struct vmad_peer *peer, int result, struct vmad_reply *reply)
{
	init_reply(reply, VMAD_HELLO, peer->hello_seq);
	reply->msg.result = result;
}

static bool vmad_message_needs_reply(const struct vmad_msg *msg)
{
	switch (msg->type) {
	case VMAD_MINISOCK_EXPORT:
		return !msg->minisocks.more;
	case VMAD_WATCH:
		return msg->watch.op == VMAD_WATCH_BEGIN;
	default:
		return true;
	}
}

static unsigned max_fds_of_message(uint16_t type)
{
	switch (type) {
	case VMAD_HELLO:
	case VMAD_FLOW_ADD:
		return 1;
	case VMAD_FLOW_SHADOWS:
		return VMAD_SHADOWS_MAX;
	default:
		return 0;
	}
}

int vmad_handle_message(struct vmad_server *server, struct vmad_peer *peer, const struct vmad_msg *msg, size_t bytes,
                        const int *fds, unsigned nfds, struct vmad_reply *reply)
{
	int rc;

	if (!vmad_msg_ok(msg, bytes) || nfds > max_fds_of_message(msg->type))
		return -EPROTO;
	if (peer->state == PEER_NEW) {
		if (msg->type != VMAD_HELLO)
			return -EPROTO;
		peer->hello_seq = msg->seq;
		rc = admit_client(server, peer, fds, nfds);
		if (rc < 0) {
			vmad_fill_hello_reply(peer, rc, reply);
			return 1; /* it stays NEW, and goes when its time is over or it hangs up */
		}
		peer->state = server->owner != NULL ? PEER_READY : PEER_WAITING;
		server->served = true;
		vmad_fill_hello_reply(peer, 0, reply);
		return peer->state == PEER_READY;
	}
	if (peer->state != PEER_READY || msg->type == VMAD_HELLO)
		return -EPROTO;
	init_reply(reply, msg->type, msg->seq);
	reply->msg.result = handle_request(server, peer, msg, fds, nfds, reply);
	return vmad_message_needs_reply(msg);
}

void vmad_reclaim_slots_of_peer(struct vmad_server *server, struct vmad_peer *peer, bool frames_too)
{
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX && server->owner != NULL; slot++)
		if (peer_has_slot(peer, slot))
			xdp_owner_take_back_slot(server->owner, slot, frames_too);
	if (frames_too)
		peer->slots = 0;
}
