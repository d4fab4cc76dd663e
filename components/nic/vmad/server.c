/*
 * server - the sockets of vmad: one loop over clients, their processes, and the owner's clock.
 */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/stats.h>

#include "../os.h"
#include "../owner/owner.h"
#include "card.h"
#include "server.h"
#include "watches.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define NEW_MS 5000   /* to say HELLO */
#define OWNER_MS 6000 /* to get the interface from those who still hold it */
#define OWNER_RETRY_MS 20
#define IDLE_MS 1000    /* without a client, after the last one */
#define UNUSED_MS 10000 /* without a client ever */
#define REPLACE_TRIES 5
#define CHECK_INTERVAL_MS 1000 /* at the interface */
#define ACCEPT_PAUSE_MS 100    /* out of descriptors, say: who waits in the queue waits on */
#define CLOSE_SIGNAL_MS 100    /* between signals to threads that close something for too long */
#define CLOSE_PAUSE_MS 10      /* no place is free for a connection, but soon will be */
#define MESSAGES_PER_POLL 16   /* of one client, so that the others get theirs */
#define LAST_READS_MAX 32      /* of who has ended */
#define FDSTORE_RETRY_MS 1000  /* one that was killed has a successor */
#define SWEEP_MS 1000          /* at least, between sweeps: a directory may be a long one, and clients many */

/* ---- peers ---- */

static unsigned peer_close_job_index(const struct vmad_server *server, const struct vmad_peer *peer, unsigned what)
{
	return (unsigned)(peer - server->peer) * CLOSE_JOBS + what;
}

static bool peer_fd_is_closing(const struct vmad_server *server, const struct vmad_peer *peer, unsigned what)
{
	return vmad_fd_closer_job_is_running(server->closer, peer_close_job_index(server, peer, what));
}

static bool peer_any_fd_is_closing(const struct vmad_server *server, const struct vmad_peer *peer)
{
	return peer_fd_is_closing(server, peer, CLOSE_PASSED) || peer_fd_is_closing(server, peer, CLOSE_CONNECTION) ||
	       peer_fd_is_closing(server, peer, CLOSE_RIGHT);
}

/* What it has sent and nobody has read goes with it. */
static void server_close_connection(struct vmad_server *server, struct vmad_peer *peer)
{
	vmad_fd_closer_submit(server->closer, peer_close_job_index(server, peer, CLOSE_CONNECTION), &peer->fd, 1);
	peer->fd = -1;
	server->held[peer - server->peer].any = false;
	vmad_repair_close(peer);
}

static void peer_clear(struct vmad_peer *peer)
{
	*peer = (struct vmad_peer){.state = PEER_NONE, .fd = -1, .pidfd = -1, .right_fd = -1, .repair_fd = -1};
}

static void peer_release(struct vmad_server *server, struct vmad_peer *peer)
{
	server_close_connection(server, peer);
	if (peer->pidfd >= 0)
		close(peer->pidfd);
	peer->pidfd = -1;
	vmad_fd_closer_submit(server->closer, peer_close_job_index(server, peer, CLOSE_RIGHT), &peer->right_fd, 1);
	peer->right_fd = -1;
	peer->slots = 0;
	peer->state = PEER_CLOSING;
	if (!peer_any_fd_is_closing(server, peer))
		peer_clear(peer);
}

static bool peer_process_has_ended(const struct vmad_peer *peer)
{
	struct pollfd process = {.fd = peer->pidfd, .events = POLLIN};

	return peer->pidfd < 0 || poll(&process, 1, 0) > 0;
}

/* The connection is over. */
static void peer_drop(struct vmad_server *server, struct vmad_peer *peer, const char *why)
{
	const bool ended = peer_process_has_ended(peer);

	if (why != NULL)
		vma_log_once(VMA_LOG_WARN, "vmad: %s: client of user %u dropped: %s", server->attr->interface,
		             peer->uid, why);
	vma_log_debug("vmad: %s: pid %d %s", server->attr->interface, peer->pid, ended ? "has ended" : "has left");
	server->ended = server->ended || ended;
	if (server->watches != NULL)
		vmad_watches_probe_all_of_client(server->watches, (unsigned)(peer - server->peer));
	vmad_reclaim_slots_of_peer(server, peer, ended);
	if (peer->slots == 0) {
		peer_release(server, peer);
		return;
	}
	server_close_connection(server, peer);
	peer->state = PEER_GHOST;
}

/* gives_way: there is none, but soon will be. */
static struct vmad_peer *find_free_peer_entry(struct vmad_server *server, bool *gives_way)
{
	struct vmad_peer *free_one = NULL, *oldest = NULL;
	unsigned strangers = 0;

	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++) {
		if (peer->state == PEER_NONE && free_one == NULL)
			free_one = peer;
		if (peer->state != PEER_NEW)
			continue;
		strangers++;
		if (oldest == NULL || peer->since_ms < oldest->since_ms)
			oldest = peer;
	}
	if (oldest != NULL && (free_one == NULL || strangers >= VMAD_NEW_MAX)) {
		peer_release(server, oldest); /* it holds nothing */
		*gives_way = free_one == NULL;
	}
	return free_one;
}

static bool user_at_peer_quota(const struct vmad_server *server, uid_t uid)
{
	unsigned n = 0;

	for (const struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX && uid != 0; peer++)
		n += peer->state != PEER_NONE && peer->uid == uid;
	if (n < VMAD_USER_PEERS)
		return false;
	vma_log_once(VMA_LOG_WARN, "vmad: %s: user %u has %u clients: the others stay with the kernel",
	             server->attr->interface, uid, n);
	return true;
}

static int open_pidfd_of_socket_peer(int fd, pid_t pid)
{
	socklen_t len = sizeof(int);
	int pidfd = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
		return pidfd; /* of the very process that connected, close-on-exec */
	/* A kernel before 6.5: a moment in which the number could have been used again. */
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* The socket stays readable, and would wake at once again. */
static void pause_accept(struct vmad_server *server, int error)
{
	if (error == EAGAIN || error == ECONNABORTED || error == EINTR)
		return;
	server->accept_paused_until_ms = os_now_ms() + ACCEPT_PAUSE_MS;
	vma_log_once(VMA_LOG_WARN, "vmad: %s: new clients have to wait: %s", server->attr->interface,
	             strerrordesc_np(error));
}

/* A job for a connection that gets no place. */
static bool find_idle_close_job(const struct vmad_server *server, unsigned *job)
{
	for (*job = VMAD_PEERS_MAX * CLOSE_JOBS; *job < VMAD_PEERS_MAX * CLOSE_JOBS + VMAD_CLOSE_REFUSED; ++*job)
		if (!vmad_fd_closer_job_is_running(server->closer, *job))
			return true;
	return false;
}

static void accept_connection(struct vmad_server *server, int listen_fd)
{
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);
	bool gives_way = false;
	struct vmad_peer *peer = find_free_peer_entry(server, &gives_way);
	unsigned job;
	int fd;

	if (gives_way || !find_idle_close_job(server, &job)) {
		server->accept_paused_until_ms = os_now_ms() + CLOSE_PAUSE_MS;
		return;
	}
	fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		pause_accept(server, errno);
		return;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0 || user_at_peer_quota(server, cred.uid)) {
		vmad_fd_closer_submit(server->closer, job, &fd, 1);
		return;
	}
	if (peer == NULL) {
		vma_log_once(VMA_LOG_WARN, "vmad: %s: more than %d clients: the others stay with the kernel",
		             server->attr->interface, VMAD_PEERS_MAX);
		vmad_fd_closer_submit(server->closer, job, &fd, 1);
		return;
	}
	*peer = (struct vmad_peer){
	        .state = PEER_NEW,
	        .fd = fd,
	        .pidfd = open_pidfd_of_socket_peer(fd, cred.pid),
	        .right_fd = -1,
	        .repair_fd = -1,
	        .pid = cred.pid,
	        .uid = cred.uid,
	        .gid = cred.gid,
	        .since_ms = os_now_ms(),
	};
}

/* False: the peer is dropped. */
static bool send_reply(struct vmad_server *server, struct vmad_peer *peer, const struct vmad_msg *msg, const int *fds,
                       unsigned nfds)
{
	if (vmad_send_message_with_fds(peer->fd, msg, fds, nfds) == 0)
		return true;
	peer_drop(server, peer, "it does not read its answers");
	return false;
}

/* One message. False: there is none, or it cannot be answered now, or the peer is dropped. */
static bool server_handle_message_of_peer(struct vmad_server *server, struct vmad_peer *peer)
{
	struct vmad_reply reply = {.nfds = 0};
	struct vmad_msg msg;
	int fds[VMAD_FDS_CAPACITY];
	unsigned nfds;
	size_t bytes;
	int rc = vmad_receive_message_with_fds(peer->fd, &msg, &bytes, fds, &nfds), said = 0;
	bool goes_on = false;

	if (rc == -EAGAIN)
		return false;
	if (rc > 0)
		said = vmad_handle_message(server, peer, &msg, bytes, fds, nfds, &reply);
	vmad_fd_closer_submit(server->closer, peer_close_job_index(server, peer, CLOSE_PASSED), fds, nfds);
	if (rc <= 0) {
		peer_drop(server, peer, rc == -EMSGSIZE ? "too many fds" : NULL);
		return false;
	}
	if (said < 0) {
		vmad_permission_socket_revoke(peer->right_fd);
		peer_drop(server, peer, "not a message of this protocol");
		return false;
	}
	if (said > 0 && nfds > 0)
		server->held[peer - server->peer] =
		        (struct vmad_held_reply){.reply = reply.msg, .flow = msg.flow, .any = true};
	else
		goes_on = said == 0 || send_reply(server, peer, &reply.msg, reply.fds, reply.nfds);
	for (unsigned k = 0; k < reply.nfds && reply.made_for_it; k++)
		close(reply.fds[k]);
	return goes_on;
}

static void serve_peer(struct vmad_server *server, struct vmad_peer *peer)
{
	for (int i = 0; i < MESSAGES_PER_POLL && !peer_fd_is_closing(server, peer, CLOSE_PASSED); i++)
		if (!server_handle_message_of_peer(server, peer))
			return;
}

/* Closes have ended. */
static void finish_closing_peers(struct vmad_server *server)
{
	vmad_fd_closer_drain_done_fd(server->closer);
	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++) {
		struct vmad_held_reply *held = &server->held[peer - server->peer];

		if (peer->state == PEER_CLOSING && !peer_any_fd_is_closing(server, peer))
			peer_clear(peer);
		if (!held->any || peer_fd_is_closing(server, peer, CLOSE_PASSED))
			continue;
		held->any = false;
		send_reply(server, peer, &held->reply, NULL, 0);
	}
}

/* Its end has to wait: what it has said last is not heard before what it has passed is closed. Not for ever. */
static bool peer_end_must_wait(const struct vmad_server *server, const struct vmad_peer *peer)
{
	return peer_fd_is_closing(server, peer, CLOSE_PASSED) &&
	       !vmad_fd_closer_job_is_late(server->closer, peer_close_job_index(server, peer, CLOSE_PASSED),
	                                   os_now_ms());
}

/* What it has said last, its minisocks, may still be in the socket, which holds about as much as LAST_READS_MAX take. A
 * child may hold that, too, and go on. */
static void receive_last_and_drop_peer(struct vmad_server *server, struct vmad_peer *peer)
{
	for (int i = 0; i < LAST_READS_MAX && peer->fd >= 0 && !peer_fd_is_closing(server, peer, CLOSE_PASSED); i++)
		serve_peer(server, peer);
	if (peer->state == PEER_NONE || peer->state == PEER_CLOSING || peer_end_must_wait(server, peer))
		return;
	peer_drop(server, peer, NULL);
}

/* ---- the owner ---- */

static void reply_to_waiting_hellos(struct vmad_server *server, int result)
{
	struct vmad_reply reply;

	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++) {
		if (peer->state != PEER_WAITING)
			continue;
		vmad_fill_hello_reply(peer, result, &reply);
		peer->state = PEER_READY;
		if (vmad_send_message_with_fds(peer->fd, &reply.msg, NULL, 0) < 0)
			peer_drop(server, peer, "it does not read its answers");
	}
}

static bool send_pending_conn_to_slot_client(uint32_t slot, const struct vma_pending *pending, void *arg)
{
	struct vmad_server *server = arg;
	struct vmad_msg msg = {
	        .magic = VMAD_MAGIC, .version = VMAD_VERSION, .type = VMAD_ADOPT, .adopt = {.slot = slot}};

	memcpy(&msg.adopt.pending, pending, sizeof(*pending));
	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++)
		if (peer->state == PEER_READY && (peer->slots >> slot & 1))
			return vmad_send_message_with_fds(peer->fd, &msg, NULL, 0) == 0;
	return false;
}

/* ---- what the vmad before has left ---- */

/* One for all slots of a process. NULL: none is free. */
static struct vmad_peer *find_or_add_absent_client(struct vmad_server *server, const struct owner_slot_tenant *tenant,
                                                   uint32_t slot)
{
	const int pidfd = xdp_owner_get_tenant_pidfd(server->owner, slot);

	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++)
		if (peer->state == PEER_ABSENT && peer->pid == tenant->pid && tenant->pid != 0)
			return peer;
	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++) {
		if (peer->state != PEER_NONE)
			continue;
		*peer = (struct vmad_peer){
		        .state = PEER_ABSENT,
		        .fd = -1,
		        .pidfd = pidfd >= 0 ? fcntl(pidfd, F_DUPFD_CLOEXEC, 0) : -1,
		        .right_fd = -1,
		        .repair_fd = -1,
		        .pid = tenant->pid,
		        .uid = tenant->uid,
		        .gid = tenant->gid,
		        .since_ms = os_now_ms(),
		};
		return peer;
	}
	return NULL;
}

static void add_absent_clients_of_old_vmad(struct vmad_server *server)
{
	unsigned slots = 0;

	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++) {
		struct owner_slot_tenant tenant;
		struct vmad_peer *peer;
		bool leaves;

		if (!xdp_owner_tenant(server->owner, slot, &tenant, &leaves))
			continue;
		peer = find_or_add_absent_client(server, &tenant, slot);
		if (peer == NULL) {
			xdp_owner_take_back_slot(server->owner, slot, true);
			continue;
		}
		peer->slots |= 1ull << slot;
		slots++;
	}
	vma_log_info("vmad: %s: goes on where another vmad has ended, with %u queue pairs", server->attr->interface,
	             slots);
}

/* 0: the owner is there. Else there is none that could be taken over, and no fdstore. */
static int adopt_interface_from_fdstore(struct vmad_server *server, const struct xdp_owner_attr *attr)
{
	struct fdstore_fds *hand = malloc(sizeof(*hand));
	int rc;

	if (hand == NULL)
		return -ENOMEM;
	rc = fdstore_connect_and_take_fds(&server->fdstore, server->ifindex, hand);
	if (rc == 0)
		rc = server->attr->discard_state
		             ? -ECANCELED
		             : xdp_owner_take_over_from_fdstore(attr, &server->fdstore, hand, &server->owner);
	if (rc == 0)
		add_absent_clients_of_old_vmad(server);
	else if (rc != -ENOENT)
		vma_log_warn("vmad: %s: what another vmad has left is not taken over: %s", server->attr->interface,
		             strerror(-rc));
	if (rc != -ENOENT)
		fdstore_fds_close(hand);
	if (rc != 0)
		fdstore_ask_to_exit(&server->fdstore);
	free(hand);
	return rc;
}

static void start_fdstore(struct vmad_server *server)
{
	int rc;

	server->fdstore_ms = os_now_ms();
	rc = vmad_fd_closer_wait_all_closed(server->closer)
	             ? fdstore_start(&server->fdstore, server->ifindex, server->attr->keep_seconds)
	             : -EBUSY;
	if (rc == 0)
		xdp_owner_put_all_fds_in_fdstore(server->owner, &server->fdstore);
	else
		vma_log_once(VMA_LOG_WARN,
		             "vmad: %s: no process keeps its queue pairs if it is killed, and they end with it: %s",
		             server->attr->interface, strerror(-rc));
}

/* 0: have it; -EBUSY: clients of the vmad before still hold their sockets, try again; else give up. */
static int vmad_adopt_or_create_owner(struct vmad_server *server)
{
	const struct xdp_owner_attr attr = {
	        .ifindex = server->ifindex,
	        .window_bytes = server->attr->window_bytes,
	        .huge_pages = server->attr->huge_pages,
	        .minisocks = true,
	        .persistent = server->persistent,
	};
	const bool first = !server->resume_tried;
	int rc = first && server->persistent ? adopt_interface_from_fdstore(server, &attr) : -ENOENT;

	server->resume_tried = true;
	if (rc != 0)
		rc = xdp_owner_create(&attr, &server->owner);
	if (rc == 0) {
		if (server->persistent && server->fdstore.fd < 0)
			start_fdstore(server);
		xdp_owner_set_adopt_callback(server->owner, send_pending_conn_to_slot_client, server);
		reply_to_waiting_hellos(server, 0);
		vma_log_info("vmad: owns %s", server->attr->interface);
		if (server->attr->owns != NULL)
			server->attr->owns();
	}
	return rc;
}

static void refuse_held_flow_reply(struct vmad_held_reply *held, uint32_t slot, const struct vma_flow_key *key)
{
	if (held->any && held->reply.type == VMAD_FLOW_ADD && held->flow.slot == slot && held->reply.result == 0 &&
	    memcmp(&held->flow.key, key, sizeof(*key)) == 0)
		held->reply.result = -EADDRINUSE;
}

static void server_tell_client_flow_revoked(uint32_t slot, const struct vma_flow_key *key, void *arg)
{
	struct vmad_server *server = arg;
	const struct vmad_msg msg = {
	        .magic = VMAD_MAGIC,
	        .version = VMAD_VERSION,
	        .type = VMAD_REVOKED,
	        .flow = {.slot = slot, .key = *key},
	};

	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++) {
		if (peer->state != PEER_READY || !(peer->slots >> slot & 1))
			continue;
		refuse_held_flow_reply(&server->held[peer - server->peer], slot, key);
		if (vmad_send_message_with_fds(peer->fd, &msg, NULL, 0) < 0)
			shutdown(peer->fd, SHUT_RDWR); /* dropped when its turn comes: the owner is at work here */
	}
}

/* ---- the loop ---- */

#define POLLED_MAX (7 + VMAD_CARD_FDS + 3 * VMAD_PEERS_MAX)

struct pollset {
	struct pollfd fds[POLLED_MAX];
	struct vmad_peer *peer[POLLED_MAX];
	unsigned n;
};

static void pollset_add(struct pollset *pollset, int fd, struct vmad_peer *peer)
{
	if (fd < 0)
		return;
	pollset->fds[pollset->n] = (struct pollfd){.fd = fd, .events = POLLIN};
	pollset->peer[pollset->n++] = peer;
}

static bool accept_is_paused(const struct vmad_server *server)
{
	return os_now_ms() < server->accept_paused_until_ms;
}

static void pollset_fill(struct vmad_server *server, struct pollset *pollset)
{
	int card_fds[VMAD_CARD_FDS];
	const unsigned n_card_fds = vmad_card_fds(server->card, card_fds);

	pollset->n = 0;
	pollset_add(pollset, server->attr->stop_fd, NULL);
	pollset_add(pollset, accept_is_paused(server) ? -1 : server->listen_fds.path_fd, NULL);
	pollset_add(pollset, accept_is_paused(server) ? -1 : server->listen_fds.name_fd, NULL);
	pollset_add(pollset, server->owner != NULL ? xdp_owner_get_minisock_segment_fd(server->owner) : -1,
	            NULL); /* its tick follows each turn */
	pollset_add(pollset, server->owner != NULL ? xdp_owner_link_fd(server->owner) : -1, NULL);
	pollset_add(pollset, server->fdstore.fd, NULL);
	pollset_add(pollset, vmad_fd_closer_done_fd(server->closer), NULL);
	for (unsigned i = 0; i < n_card_fds; i++)
		pollset_add(pollset, card_fds[i], NULL); /* its work is part of each turn */
	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++) {
		if (peer->state == PEER_NONE)
			continue;
		if (!peer_fd_is_closing(server, peer, CLOSE_PASSED))
			pollset_add(pollset, peer->fd, peer);
		if (!peer_end_must_wait(server, peer))
			pollset_add(pollset, peer->pidfd, peer);
		pollset_add(pollset, peer->repair_fd, peer);
	}
}

static void serve_pollset(struct vmad_server *server, struct pollset *pollset)
{
	for (unsigned i = 0; i < pollset->n; i++) {
		struct vmad_peer *peer = pollset->peer[i];
		const int fd = pollset->fds[i].fd;

		if (pollset->fds[i].revents == 0)
			continue;
		if (peer == NULL && (fd == server->listen_fds.path_fd || fd == server->listen_fds.name_fd))
			accept_connection(server, fd);
		else if (peer == NULL && fd == vmad_fd_closer_done_fd(server->closer))
			finish_closing_peers(server);
		/* A place may have changed hands within this turn: then the fd is not the peer's any more. */
		else if (peer != NULL && fd == peer->pidfd)
			receive_last_and_drop_peer(server, peer);
		else if (peer != NULL && fd == peer->fd)
			serve_peer(server, peer);
		else if (peer != NULL && fd == peer->repair_fd)
			vmad_answer_repair_permission_request(server, peer);
	}
}

static bool drop_silent_peers(struct vmad_server *server, uint64_t now)
{
	bool clients = false;

	for (struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++) {
		if (peer->state == PEER_NEW && now - peer->since_ms > NEW_MS)
			peer_release(server, peer);
		if (peer->state == PEER_ABSENT && peer->slots == 0)
			peer_release(server, peer);
		else if (peer->state == PEER_ABSENT && now - peer->since_ms > VMAD_ABSENT_MS)
			peer_drop(server, peer, NULL);
		clients = clients || (peer->state > PEER_NEW && peer->state != PEER_CLOSING);
	}
	return clients;
}

static void server_sweep_stats_files(struct vmad_server *server)
{
	int removed = server->ended ? vma_stats_remove_leftover_files(server->attr->stats_dir, &server->swept_to) : 0;

	server->ended = server->swept_to != 0;
	if (removed > 0)
		vma_log_debug("vmad: %s: %d files of statistics were left over", server->attr->interface, removed);
}

struct clock {
	uint64_t start, idle_since, checked_ms;
	bool used;
};

/* What is due now. 1: end, 0: go on, -errno: cannot go on. */
static int server_run_due_work(struct vmad_server *server, struct clock *clock)
{
	const uint64_t now = os_now_ms();
	int rc;

	if (drop_silent_peers(server, now) || server->served) {
		clock->idle_since = now;
		clock->used = true;
		server->served = false;
	}
	if (server->ended && now - server->swept_ms >= SWEEP_MS) {
		server->swept_ms = now;
		server_sweep_stats_files(server);
	}
	if (server->owner == NULL) {
		rc = vmad_adopt_or_create_owner(server);
		if (rc == -EBUSY && now - clock->start < OWNER_MS)
			return 0;
		if (rc == -EBUSY)
			vma_log_error("vmad: %s: another process uses its queues for AF_XDP", server->attr->interface);
		if (rc < 0) {
			/* EPERM would tell the client that it was refused by us. */
			reply_to_waiting_hellos(server, rc == -EPERM ? -EACCES : rc);
			return rc;
		}
	}
	if (server->persistent && (fdstore_close_if_connection_lost(&server->fdstore) || server->fdstore.fd < 0) &&
	    now - server->fdstore_ms >= FDSTORE_RETRY_MS)
		start_fdstore(server);
	xdp_owner_tick(server->owner, server_tell_client_flow_revoked, server);
	if (now - clock->checked_ms > CHECK_INTERVAL_MS) {
		clock->checked_ms = now;
		if (xdp_owner_device_gone(server->owner)) {
			vma_log_warn("vmad: %s: the interface has gone", server->attr->interface);
			return -ENODEV;
		}
	}
	return server->attr->exit_when_idle && !xdp_owner_has_minisocks(server->owner) &&
	       (server->watches == NULL || vmad_watches_count(server->watches) == 0) &&
	       vmad_card_minisock_count(server->card) == 0 &&
	       now - clock->idle_since > (clock->used ? IDLE_MS : UNUSED_MS);
}

/* Everything stays as it is, also in memory that nobody frees: this process ends. */
static struct xdp_owner *left;

/* Asked to end, but not for good, while somebody needs the interface. */
static bool server_leaves_interface_to_successor(struct vmad_server *server)
{
	const bool asked = server->attr->stops_for_good != NULL && !server->attr->stops_for_good(server->attr->stop_fd);
	bool any = server->owner != NULL && xdp_owner_has_minisocks(server->owner);

	for (const struct vmad_peer *peer = server->peer; peer < server->peer + VMAD_PEERS_MAX; peer++)
		any = any || (peer->slots != 0 && peer->state != PEER_GHOST);
	return asked && any && server->owner != NULL && server->fdstore.fd >= 0 &&
	       !fdstore_close_if_connection_lost(&server->fdstore);
}

/* -1: never. */
static int earlier_ms(int a, int b)
{
	return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* What is due of watches and card; when the next of anything is. */
static int server_run_ticks_get_timeout_ms(struct vmad_server *server)
{
	const int owner_ms = xdp_owner_next_tick_ms(server->owner);
	const int watch_ms = server->watches != NULL ? vmad_watches_tick(server->watches, server->owner) : -1;
	const int card_ms = vmad_card_tick(server->card);

	return vmad_card_receive(server->card) ? 0 : earlier_ms(earlier_ms(owner_ms, watch_ms), card_ms);
}

int vmad_run_event_loop(struct vmad_server *server)
{
	bool leaves = false;
	struct clock clock = {.start = os_now_ms(), .idle_since = os_now_ms(), .checked_ms = os_now_ms()};
	struct pollset pollset;
	int rc;

	if (!server->persistent)
		server->fdstore.fd = -1;
	for (unsigned i = 0; i < VMAD_PEERS_MAX; i++)
		peer_clear(&server->peer[i]);
	rc = vmad_fd_closer_create(VMAD_PEERS_MAX * CLOSE_JOBS + VMAD_CLOSE_REFUSED, &server->closer);
	if (rc < 0) {
		vma_log_error("vmad: %s: %s", server->attr->interface, strerror(-rc));
		vmad_listen_fds_close(server->ifindex, &server->listen_fds);
		return rc;
	}
	while ((rc = server_run_due_work(server, &clock)) == 0) {
		const int ms = server->owner != NULL ? server_run_ticks_get_timeout_ms(server) : OWNER_RETRY_MS;
		const bool late = vmad_fd_closer_signal_late_jobs(server->closer, os_now_ms());
		const int longest = accept_is_paused(server) ? CLOSE_PAUSE_MS
		                    : late                   ? CLOSE_SIGNAL_MS
		                                             : CHECK_INTERVAL_MS;

		pollset_fill(server, &pollset);
		if (poll(pollset.fds, pollset.n, ms < 0 || ms > longest ? longest : ms) <= 0) {
			vmad_card_handle_received_packets(server->card);
			continue;
		}
		if (server->attr->stop_fd >= 0 && pollset.fds[0].revents != 0) {
			leaves = server_leaves_interface_to_successor(server);
			break;
		}
		serve_pollset(server, &pollset);
		vmad_card_handle_received_packets(server->card);
	}
	server_sweep_stats_files(server);
	vmad_listen_fds_close(server->ifindex, &server->listen_fds);
	if (server->owner != NULL)
		xdp_owner_log_summary(server->owner);
	if (leaves) {
		vma_log_info("vmad: %s: leaves it to the next vmad, for %u s", server->attr->interface,
		             server->attr->keep_seconds);
		left = server->owner;
		/* A thread that still closes something must not keep this from being noticed. */
		close(server->fdstore.fd);
		server->fdstore.fd = -1;
	} else {
		fdstore_ask_to_exit(&server->fdstore);
		xdp_owner_destroy(server->owner);
	}
	for (unsigned i = 0; i < VMAD_PEERS_MAX; i++)
		peer_release(server, &server->peer[i]);
	vmad_fd_closer_destroy(server->closer);
	server->closer = NULL;
	vmad_watches_destroy(server->watches);
	server->watches = NULL;
	vmad_card_destroy(server->card);
	server->card = NULL;
	return rc > 0 ? 0 : rc;
}

/* The file is the lock: of several that start at once, one gets it and the others end. */
static int server_listen_path(unsigned ifindex, const char *interface)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc;

	if (fd < 0)
		return -errno;
	rc = vmad_bind_in_own_folder(fd, ifindex, "vmad", 0666);
	if (rc == 0 && listen(fd, 256) == 0)
		return fd;
	if (rc == 0)
		rc = -errno;
	close(fd);
	/* Who is not root has no right to /run. */
	if (rc == -EPERM)
		vma_log_warn("vmad: %s: %s is not root's alone: any process can take vmad's name", interface,
		             VMAD_FOLDER);
	else if (rc != -EADDRINUSE && rc != -EMFILE && rc != -ENFILE && geteuid() == 0)
		vma_log_info("vmad: %s: no socket in %s, and any process can take vmad's name: %s", interface,
		             VMAD_FOLDER, strerror(-rc));
	return rc;
}

/* So is the name. */
static int server_listen_abstract_name(unsigned ifindex)
{
	struct sockaddr_un address;
	const socklen_t len = vmad_address(ifindex, &address);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc;

	if (fd < 0)
		return -errno;
	if (bind(fd, (const struct sockaddr *)&address, len) == 0 && listen(fd, 256) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

int vmad_listen(unsigned ifindex, const char *interface, struct vmad_listen_socks *listen_fds)
{
	int rc;

	*listen_fds = (struct vmad_listen_socks){.path_fd = server_listen_path(ifindex, interface), .name_fd = -1};
	if (listen_fds->path_fd == -EADDRINUSE)
		return -EADDRINUSE;
	listen_fds->name_fd = server_listen_abstract_name(ifindex);
	if (listen_fds->name_fd >= 0)
		return 0;
	rc = listen_fds->name_fd;
	/* Another vmad, which does not see this folder; or one that lets clients wait is no reason to end. */
	if (rc == -EADDRINUSE && !vmad_name_holder_is_trusted_user(ifindex, interface))
		rc = -EEXIST;
	if (rc != -EADDRINUSE && listen_fds->path_fd >= 0)
		return 0;
	vmad_listen_fds_close(ifindex, listen_fds);
	return rc;
}

void vmad_listen_fds_close(unsigned ifindex, struct vmad_listen_socks *listen_fds)
{
	if (listen_fds->name_fd >= 0)
		close(listen_fds->name_fd);
	if (listen_fds->path_fd >= 0) {
		close(listen_fds->path_fd);
		vmad_remove_own_socket_file(ifindex, "vmad");
	}
	*listen_fds = (struct vmad_listen_socks){.path_fd = -1, .name_fd = -1};
}

/* A program that uses the interface may start a vmad of its own as soon as the one before has ended: that one ends,
 * too. */
static int replace_vmad_and_listen(const struct vma_vmad_attr *attr, unsigned ifindex,
                                   struct vmad_listen_socks *listen_fds)
{
	const char *what;
	int rc = xdp_sock_check_kernel(&what);

	/* One that works is not ended for one that could not own the interface. */
	if (rc < 0) {
		vma_log_error("vmad: %s: %s: %s: the vmad that has it is left alone", attr->interface, what,
		              strerror(-rc));
		return rc;
	}
	rc = -EADDRINUSE;
	for (int tries = 0; rc == -EADDRINUSE && tries < REPLACE_TRIES; tries++) {
		rc = vmad_end_running_instance(ifindex, attr->interface);
		if (rc == 0)
			rc = vmad_listen(ifindex, attr->interface, listen_fds);
	}
	return rc;
}

int vma_vmad_serve(const struct vma_vmad_attr *attr)
{
	struct vmad_server *server = calloc(1, sizeof(*server));
	int rc;

	if (server == NULL)
		return -ENOMEM;
	server->attr = attr;
	server->repairs = true;
	server->fdstore.fd = -1;
	server->persistent = attr->keep_seconds > 0 && geteuid() == 0;
	server->ifindex = if_nametoindex(attr->interface);
	rc = server->ifindex == 0 ? -ENODEV : vmad_listen(server->ifindex, attr->interface, &server->listen_fds);
	if (rc == -EADDRINUSE && attr->replace)
		rc = replace_vmad_and_listen(attr, server->ifindex, &server->listen_fds);
	if (rc == 0) {
		vmad_remove_stale_socket_files();
		rc = vmad_run_event_loop(server);
	} else if (rc == -EADDRINUSE) {
		vma_log_info("vmad: %s has a vmad already (--replace ends it)", attr->interface);
	} else if (rc != -EEXIST) {
		vma_log_error("vmad: %s: %s", attr->interface, strerror(-rc));
	}
	free(server);
	return rc;
}
