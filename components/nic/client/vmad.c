/*
 * vmad - requests to vmad, their answers, and vmad's messages without a request.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../os.h"
#include "vmad_priv.h"

static void client_close_fds(const int *fds, unsigned nfds)
{
	for (unsigned i = 0; i < nfds; i++)
		os_close(fds[i]);
}

/* Waits for one message: 1, or -EPIPE. fds are closed unless the caller wants them. */
static int wait_message(struct vmad_client *client, uint64_t until_ms, struct vmad_msg *msg, int *fds, unsigned *nfds)
{
	struct pollfd fds_to_poll[2] = {{.fd = client->fd, .events = POLLIN},
	                                {.fd = client->over_fd, .events = POLLIN}};
	size_t bytes;
	int rc;

	for (;;) {
		const uint64_t now = os_now_ms();

		rc = vmad_receive_message(client->fd, msg, &bytes, fds, nfds);
		if ((rc == 1 || rc == -EMSGSIZE) && vmad_msg_ok(msg, bytes))
			return 1; /* without its fds if they are too many for this process: rent sees that */
		if (rc == 1)
			client_close_fds(fds, *nfds);
		if (rc != -EAGAIN || now >= until_ms || fds_to_poll[1].revents != 0)
			return -EPIPE;
		os_poll(fds_to_poll, 2, (int)(until_ms - now));
	}
}

static int queue_revoked_flow(struct vmad_client *client, const struct vmad_msg *msg)
{
	if (client->revoked == VMAD_REVOKED_MAX)
		return -EPIPE;
	client->revoked_flow[client->revoked++] = msg->flow;
	return 0;
}

/* What vmad says unasked. False: it is nothing that it may say. */
static bool queue_vmad_event(struct vmad_client *client, const struct vmad_msg *msg)
{
	if (msg->type == VMAD_REVOKED)
		return queue_revoked_flow(client, msg) == 0;
	if (msg->type != VMAD_ADOPT)
		return false;
	if (client->adoptions < VMAD_ADOPTS_MAX)
		memcpy(&client->adopt[client->adoptions++], &msg->adopt, sizeof(msg->adopt));
	return true;
}

int vmad_client_request(struct vmad_client *client, struct vmad_msg *msg, const int *send_fds, unsigned nsend, int *fds,
                        unsigned *nfds, uint64_t until_ms)
{
	const uint32_t seq = ++client->seq;
	const uint16_t type = msg->type;

	msg->magic = VMAD_MAGIC;
	msg->version = VMAD_VERSION;
	msg->seq = seq;
	if (vmad_client_broken(client))
		return -EPIPE;
	if (vmad_send_message_with_fds(client->fd, msg, send_fds, nsend) < 0) {
		atomic_store(&client->broken, true);
		return -EPIPE;
	}
	for (;;) {
		if (wait_message(client, until_ms, msg, fds, nfds) < 0)
			break;
		if (msg->type == type && msg->seq == seq)
			return msg->result <= 0 ? msg->result : -EPROTO;
		client_close_fds(fds, *nfds);
		if (!queue_vmad_event(client, msg))
			break;
	}
	/* A late answer would be taken for another one's. The connection stays: its end would say that this client has
	 * left, and it may come back on another one. */
	atomic_store(&client->broken, true);
	return -EPIPE;
}

static int request_with_fds(struct vmad_client *client, struct vmad_msg *msg, const int *proof_fds,
                            unsigned n_proof_fds, int *fds, unsigned *nfds)
{
	int own_fds[VMAD_FDS_MAX];
	unsigned own_nfds = 0;
	int rc = vmad_client_request(client, msg, proof_fds, n_proof_fds, fds != NULL ? fds : own_fds,
	                             fds != NULL ? nfds : &own_nfds, os_now_ms() + VMAD_REPLY_TIMEOUT_MS);

	if (rc != -EPIPE)
		client_close_fds(own_fds, own_nfds);
	return rc;
}

static int vmad_client_exchange(struct vmad_client *client, struct vmad_msg *msg, int *fds, unsigned *nfds)
{
	return request_with_fds(client, msg, NULL, 0, fds, nfds);
}

/* ---- requests ---- */

int vmad_client_rent(struct vmad_client *client, uint32_t rx_wre, uint32_t tx_wre, struct xdp_rental *out)
{
	struct vmad_msg msg = {.type = VMAD_RENT, .rent = {.rx_wre = rx_wre, .tx_wre = tx_wre}};
	const struct vmad_msg_rental *rental = &msg.rental;
	int fds[VMAD_FDS_MAX];
	unsigned nfds = 0;
	int rc = vmad_client_exchange(client, &msg, fds, &nfds);

	if (rc == -EPIPE)
		return rc;
	if (rc == 0 && nfds == 0) { /* at the limit of open files; the connection and what it has are none the worse */
		rc = vmad_client_return(client, rental->slot, true);
		return rc < 0 ? rc : -EMFILE;
	}
	if (rc == 0 && (rental->queues == 0 || rental->queues > XDP_QUEUES_MAX || rental->has_claims > 1 ||
	                rental->has_alive > 1 || nfds != rental->queues + 2 + rental->has_claims + rental->has_alive))
		rc = -EPROTO;
	if (rc < 0) {
		client_close_fds(fds, nfds);
		return rc;
	}
	*out = (struct xdp_rental){
	        .slot = rental->slot,
	        .queues = rental->queues,
	        .nframes = rental->nframes,
	        .rx_size = rental->rx_size,
	        .tx_size = rental->tx_size,
	        .tx_first = rental->tx_first,
	        .tx_count = rental->tx_count,
	        .rx_quota = rental->rx_quota,
	        .mtu = rental->mtu,
	        .generic = rental->generic != 0,
	        .multi_buffer = rental->multi_buffer != 0,
	        .tx_csum = rental->tx_csum != 0,
	        .umem_fd = fds[0],
	        .shared_fd = fds[1],
	        .claims_fd = rental->has_claims ? fds[rental->queues + 2] : -1,
	        .alive_fd = rental->has_alive ? fds[nfds - 1] : -1,
	        .ticket = rental->ticket,
	};
	memcpy(out->socket_fd, fds + 2, rental->queues * sizeof(int));
	return 0;
}

int vmad_client_return(struct vmad_client *client, uint32_t slot, bool frames_too)
{
	struct vmad_msg msg = {.type = VMAD_RETURN, .ret = {.slot = slot, .frames_too = frames_too}};

	return vmad_client_exchange(client, &msg, NULL, NULL);
}

/* What was taken back before it was granted anew: messages keep their order, so all of that is here by now. */
static void drop_stale_revocations(struct vmad_client *client, uint32_t slot, const struct vma_flow_key *key)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < client->revoked; i++) {
		const struct vmad_msg_flow flow = client->revoked_flow[i];

		if (flow.slot != slot || memcmp(&flow.key, key, sizeof(*key)) != 0)
			client->revoked_flow[kept++] = flow;
	}
	client->revoked = kept;
}

int vmad_client_flow_add(struct vmad_client *client, uint32_t slot, const struct vma_flow_rule *rule, int proof_fds,
                         bool *generic)
{
	struct vmad_msg msg = {
	        .type = VMAD_FLOW_ADD,
	        .flow = {.slot = slot, .flags = rule->flags, .shadow_cookie = rule->shadow_cookie, .key = rule->key},
	};
	int rc = request_with_fds(client, &msg, &proof_fds, proof_fds >= 0, NULL, NULL);

	if (rc == 0) {
		*generic = msg.rental.generic != 0;
		drop_stale_revocations(client, slot, &rule->key);
	}
	return rc;
}

int vmad_client_send_flow_shadow_cookies(struct vmad_client *client, uint32_t slot, const struct vma_flow_key *key,
                                         const uint64_t *cookies, const int *proof_fds, unsigned n)
{
	for (unsigned done = 0; done < n;) {
		const unsigned count = n - done < VMAD_SHADOWS_MAX ? n - done : VMAD_SHADOWS_MAX;
		struct vmad_msg msg = {.type = VMAD_FLOW_SHADOWS,
		                       .shadows = {.slot = slot, .count = count, .key = *key}};
		int rc;

		memcpy(msg.shadows.cookie, cookies + done, count * sizeof(*cookies));
		rc = request_with_fds(client, &msg, proof_fds + done, count, NULL, NULL);
		if (rc < 0)
			return rc == -EOPNOTSUPP ? 0 : rc;
		done += count;
	}
	return 0;
}

int vmad_client_flow_del(struct vmad_client *client, uint32_t slot, const struct vma_flow_key *key)
{
	struct vmad_msg msg = {.type = VMAD_FLOW_DEL, .flow = {.slot = slot, .key = *key}};

	return vmad_client_exchange(client, &msg, NULL, NULL);
}

int vmad_client_flow_move(struct vmad_client *client, uint32_t from, uint32_t to, const struct vma_flow_key *key)
{
	struct vmad_msg msg = {.type = VMAD_FLOW_MOVE, .move = {.from = from, .to = to, .key = *key}};

	return vmad_client_exchange(client, &msg, NULL, NULL);
}

int vmad_client_flow_stop_new_conns(struct vmad_client *client, uint32_t slot, const struct vma_flow_key *key)
{
	struct vmad_msg msg = {.type = VMAD_FLOW_RETIRE, .flow = {.slot = slot, .key = *key}};

	return vmad_client_exchange(client, &msg, NULL, NULL);
}

static struct vmad_msg_minisock pack_minisock(const struct vma_flow_minisock *minisock)
{
	struct vmad_msg_minisock out = {.local_port_be = minisock->key.local_port_be,
	                                .peer_port_be = minisock->key.peer_port_be,
	                                .vlan = minisock->key.vlan,
	                                .state = (uint16_t)minisock->state,
	                                .snd_nxt = minisock->snd_nxt,
	                                .rcv_nxt = minisock->rcv_nxt};

	memcpy(out.local, minisock->key.local, sizeof(out.local));
	memcpy(out.peer, minisock->key.peer, sizeof(out.peer));
	return out;
}

/* Without waiting for an answer, but for room in the socket. */
static int client_send_msg(struct vmad_client *client, struct vmad_msg *msg)
{
	struct pollfd poll_fd = {.fd = client->fd, .events = POLLOUT};
	const uint64_t until_ms = os_now_ms() + VMAD_REPLY_TIMEOUT_MS;
	int rc;

	msg->magic = VMAD_MAGIC;
	msg->version = VMAD_VERSION;
	msg->seq = ++client->seq;
	while ((rc = vmad_send_message_with_fds(client->fd, msg, NULL, 0)) == -EAGAIN && os_now_ms() < until_ms)
		os_poll(&poll_fd, 1, (int)(until_ms - os_now_ms()));
	return rc < 0 ? -EPIPE : 0;
}

/* The first message is answered, lest an older vmad answers all of them; and the last one, so that all is done. */
int vmad_client_minisock_export(struct vmad_client *client, uint32_t slot, const struct vma_flow_minisock *minisocks,
                                unsigned n)
{
	int rc = 0;

	for (unsigned done = 0; done < n && rc == 0;) {
		const unsigned count = n - done < VMAD_MINISOCKS_MAX ? n - done : VMAD_MINISOCKS_MAX;
		const bool more = done != 0 && done + count < n;
		struct vmad_msg msg = {.type = VMAD_MINISOCK_EXPORT,
		                       .minisocks = {.slot = slot, .count = (uint16_t)count, .more = more}};

		for (unsigned i = 0; i < count; i++)
			msg.minisocks.minisock[i] = pack_minisock(&minisocks[done + i]);
		rc = more ? client_send_msg(client, &msg) : vmad_client_exchange(client, &msg, NULL, NULL);
		done += count;
	}
	return rc;
}

int vmad_client_resume_slot_by_ticket(struct vmad_client *client, uint32_t slot, uint64_t ticket)
{
	struct vmad_msg msg = {.type = VMAD_RESUME, .resume = {.slot = slot, .ticket = ticket}};

	return vmad_client_exchange(client, &msg, NULL, NULL);
}

int vmad_client_tell_resumed(struct vmad_client *client, uint32_t slot)
{
	struct vmad_msg msg = {.type = VMAD_RESUMED, .resume = {.slot = slot}};

	return vmad_client_exchange(client, &msg, NULL, NULL);
}

int vmad_client_open_repair(struct vmad_client *client, int *fd)
{
	struct vmad_msg msg = {.type = VMAD_REPAIR};
	int fds[VMAD_FDS_MAX];
	unsigned nfds = 0;
	int rc = vmad_client_exchange(client, &msg, fds, &nfds);

	if (rc == -EPIPE)
		return rc;
	if (rc == 0 && nfds != 1)
		rc = nfds == 0 ? -EMFILE : -EPROTO;
	if (rc == 0)
		*fd = fds[0];
	else
		client_close_fds(fds, nfds);
	return rc;
}

bool vmad_client_broken(const struct vmad_client *client)
{
	return atomic_load_explicit(&client->broken, memory_order_acquire);
}

uint32_t vmad_client_request_count(const struct vmad_client *client)
{
	return atomic_load_explicit(&client->seq, memory_order_relaxed);
}

bool vmad_client_has_event(const struct vmad_client *client)
{
	return client->revoked > 0 || client->adoptions > 0;
}

/* Takes in what has come: 0, -EPIPE. */
static int client_receive_events(struct vmad_client *client)
{
	while (client->revoked < VMAD_REVOKED_MAX && client->adoptions < VMAD_ADOPTS_MAX) {
		struct vmad_msg msg;
		int fds[VMAD_FDS_MAX];
		unsigned nfds;
		size_t bytes;
		int rc = vmad_receive_message(client->fd, &msg, &bytes, fds, &nfds);

		if (rc == -EAGAIN)
			return 0;
		if (rc == 1)
			client_close_fds(fds, nfds);
		if (rc != 1 || !vmad_msg_ok(&msg, bytes) || !queue_vmad_event(client, &msg))
			return -EPIPE;
	}
	return 0;
}

int vmad_client_next_revoked_flow(struct vmad_client *client, uint32_t *slot, struct vma_flow_key *key)
{
	const int rc = client->revoked == 0 ? client_receive_events(client) : 0;

	if (client->revoked == 0)
		return rc;
	*slot = client->revoked_flow[0].slot;
	*key = client->revoked_flow[0].key;
	memmove(client->revoked_flow, client->revoked_flow + 1, --client->revoked * sizeof(client->revoked_flow[0]));
	return 1;
}

bool vmad_client_next_adoption(struct vmad_client *client, uint32_t *slot, struct vma_pending *pending)
{
	if (client->adoptions == 0)
		return false;
	*slot = client->adopt[0].slot;
	memcpy(pending, &client->adopt[0].pending, sizeof(*pending));
	memmove(client->adopt, client->adopt + 1, --client->adoptions * sizeof(client->adopt[0]));
	return true;
}

/* ---- connection ---- */

int vmad_client_fd(const struct vmad_client *client)
{
	return client->fd;
}

void vmad_client_close(struct vmad_client *client)
{
	if (client == NULL)
		return;
	nic_fd_close(client->fd);
	free(client);
}
