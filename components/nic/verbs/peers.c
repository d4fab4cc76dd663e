/*
 * peers - vmad is told which connections have rules here, if a vmad runs. If this process is killed, vmad makes their
 * peers speak, and the kernel resets them (../vmad/watches.h). Without a vmad a peer learns when it next sends.
 *
 * A rule's maker and its end tell vmad themselves, without waiting. If vmad has no room for that, or is another one by
 * now, the nic's thread tells it of all connections anew:
 *
 *   behind: some are not told ──────────────> they are told
 *   stale: vmad was not told of some end ───> FORGET, and all are told
 *
 * While there are connections and no vmad, the thread looks for one each second. No vmad is started for this.
 *
 * A process that ends in good order says how far its connections have come, and vmad answers for them (../vmad/card.h).
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include "../client/watch.h"
#include "../os.h"
#include "verbs.h"

#define FORGET_TRIES 20  /* a millisecond apart */
#define LOOK_MS 1000     /* for a vmad */
#define REFUSED_MS 10000 /* there is one, which does not take this process */
#define ROOM_MS 5        /* for vmad to read: at first, */
#define ROOM_MAX_MS 250  /* and at last: it may be stopped */

static bool flow_is_tcp_connection(const struct verbs_flow *flow)
{
	return flow->rule.key.proto == IPPROTO_TCP && flow->rule.key.peer_port_be != 0;
}

void verbs_peers_get_vmad_permission(struct nic_verbs *nic, bool unwatched)
{
	nic->peers.off = unwatched;
	if (unwatched)
		return;
	/* Now, as a process may lose CAP_NET_RAW later. Without it vmad will say no. */
	nic->peers.right_fd = vmad_watch_create_right_fd(nic->base.info.ifindex, nic->name);
}

void verbs_peers_report_connection_to_vmad(struct nic_verbs *nic, struct verbs_flow *flow)
{
	struct verbs_peers *peers = &nic->peers;

	if (!flow_is_tcp_connection(flow) || peers->off)
		return;
	flow->is_noted = true;
	if (peers->connections++ == 0 && peers->vmad == NULL)
		verbs_thread_wake(nic);
	if (peers->vmad == NULL || peers->behind)
		return;
	flow->is_told = vmad_watch_add(peers->vmad, &flow->rule.key);
	if (flow->is_told)
		return;
	peers->behind = true;
	verbs_thread_wake(nic);
}

void verbs_peers_report_conn_end_to_vmad(struct nic_verbs *nic, struct verbs_flow *flow)
{
	struct verbs_peers *peers = &nic->peers;

	peers->connections--;
	if (!flow->is_told || peers->vmad == NULL || peers->stale || vmad_watch_del(peers->vmad, &flow->rule.key))
		return;
	peers->stale = true;
	verbs_thread_wake(nic);
}

static void peers_mark_all_flows_untold_to_vmad(struct nic_verbs *nic)
{
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++)
		for (struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next)
			flow->is_told = false;
	nic->peers.stale = false;
	nic->peers.behind = true;
}

/* False: vmad has to read first. */
static bool peers_tell_vmad_untold_connections(struct nic_verbs *nic)
{
	for (uint32_t i = 0; i < nic->flow_buckets_n; i++) {
		for (struct verbs_flow *flow = nic->flow_buckets[i]; flow != NULL; flow = flow->next) {
			if (!flow_is_tcp_connection(flow) || flow->is_told)
				continue;
			flow->is_told = vmad_watch_add(nic->peers.vmad, &flow->rule.key);
			if (!flow->is_told)
				return false;
		}
	}
	nic->peers.behind = false;
	return true;
}

/* vmad says nothing on this connection, so whatever comes is its end. */
static void peers_drop_vmad_if_disconnected(struct verbs_peers *peers)
{
	if (peers->vmad == NULL || os_poll_one_fd(vmad_watch_fd(peers->vmad), POLLIN, 0) <= 0)
		return;
	vmad_watch_disconnect(peers->vmad);
	peers->vmad = NULL;
	peers->room_ms = 0;
	peers->room_until_ms = 0;
	peers->look_ms = os_now_ms() + LOOK_MS / 10;
}

/* Without the lock: vmad may take its time to answer. */
static void peers_connect_to_vmad(struct nic_verbs *nic)
{
	struct verbs_peers *peers = &nic->peers;
	struct vmad_client *vmad;
	int rc = vmad_watch_connect(nic->base.info.ifindex, nic->name, peers->right_fd, &peers->connecting, &vmad);

	pthread_mutex_lock(&nic->lock);
	/* -EAGAIN: there is one, with too many at its door. */
	peers->look_ms = os_now_ms() + (rc == -ECONNREFUSED || rc == -ENOENT || rc == -EAGAIN ? LOOK_MS : REFUSED_MS);
	if (rc == 0) {
		vmad_connecting_remove(&peers->connecting, vmad);
		peers->vmad = vmad;
		peers_mark_all_flows_untold_to_vmad(nic);
	}
	pthread_mutex_unlock(&nic->lock);
}

/* How long to wait until vmad has read: twice as long each time that it has not. */
static int peers_backoff_until_vmad_reads(struct verbs_peers *peers, uint64_t now_ms)
{
	const uint32_t ms = peers->room_ms != 0 ? peers->room_ms : ROOM_MS;

	peers->room_ms = 2 * ms < ROOM_MAX_MS ? 2 * ms : ROOM_MAX_MS;
	peers->room_until_ms = now_ms + ms;
	return (int)ms;
}

static int peers_report_pending_to_vmad(struct nic_verbs *nic)
{
	struct verbs_peers *peers = &nic->peers;
	const uint64_t now_ms = os_now_ms();

	if (peers->vmad == NULL)
		return peers->connections == 0 ? -1 : peers->look_ms <= now_ms ? 0 : (int)(peers->look_ms - now_ms);
	if (now_ms < peers->room_until_ms && (peers->stale || peers->behind))
		return (int)(peers->room_until_ms - now_ms); /* the thread was woken by something else */
	if (peers->stale) {
		if (!vmad_watch_forget_all(peers->vmad))
			return peers_backoff_until_vmad_reads(peers, now_ms);
		peers_mark_all_flows_untold_to_vmad(nic);
	}
	if (peers->behind && !peers_tell_vmad_untold_connections(nic))
		return peers_backoff_until_vmad_reads(peers, now_ms);
	peers->room_ms = 0;
	peers->room_until_ms = 0;
	return -1;
}

int verbs_peers_sync_with_vmad(struct nic_verbs *nic)
{
	int ms;

	pthread_mutex_lock(&nic->lock);
	peers_drop_vmad_if_disconnected(&nic->peers);
	ms = peers_report_pending_to_vmad(nic);
	pthread_mutex_unlock(&nic->lock);
	if (ms != 0)
		return ms;
	peers_connect_to_vmad(nic);
	pthread_mutex_lock(&nic->lock);
	ms = peers_report_pending_to_vmad(nic);
	pthread_mutex_unlock(&nic->lock);
	return ms;
}

/*
 * A process that has lived for a moment only may not know its vmad yet: then it has a connection for this alone. Its
 * flows stay in the table until vmad has rules for them, so that their packets meet one or the other.
 */
int verbs_export_minisocks_to_vmad(struct vma_nic_qp *base, const struct vma_flow_minisock *minisocks, unsigned n)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct nic_verbs *nic = qp->nic;
	struct vmad_client *own = NULL;
	int rc = -EOPNOTSUPP;

	if (!verbs_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	if (!nic->peers.off && nic->peers.vmad == NULL) {
		pthread_mutex_unlock(&nic->lock);
		if (vmad_watch_connect(nic->base.info.ifindex, nic->name, nic->peers.right_fd, &nic->peers.connecting,
		                       &own) < 0)
			return -EOPNOTSUPP;
		pthread_mutex_lock(&nic->lock);
	}
	if (!nic->peers.off && !vma_nic_qp_lost(base))
		rc = vmad_export_minisocks_of_verbs_card(nic->peers.vmad != NULL ? nic->peers.vmad : own, minisocks, n);
	for (unsigned i = 0; i < n && rc == 0; i++)
		verbs_flow_remove_handed_to_vmad(qp, &minisocks[i].key);
	if (own != NULL) {
		vmad_connecting_remove(&nic->peers.connecting, own);
		vmad_watch_disconnect(own);
	}
	pthread_mutex_unlock(&nic->lock);
	return rc;
}

int verbs_peers_vmad_fd(const struct nic_verbs *nic)
{
	return nic->peers.vmad != NULL ? vmad_watch_fd(nic->peers.vmad) : -1;
}

void verbs_peers_child_close(const struct nic_verbs *nic)
{
	if (nic->peers.vmad != NULL)
		os_close(vmad_watch_fd(nic->peers.vmad));
	vmad_connecting_close_in_child(&nic->peers.connecting);
	if (nic->peers.right_fd >= 0)
		os_close(nic->peers.right_fd);
}

/*
 * All flows have ended. If many ended at once, vmad's socket had no room for each. An end that vmad does not hear of
 * looks like a kill, so it has some milliseconds to make room for a last word.
 */
void verbs_peers_disconnect_from_vmad(struct nic_verbs *nic)
{
	if (nic->peers.vmad != NULL) {
		for (unsigned tries = 0; tries < FORGET_TRIES && !vmad_watch_forget_all(nic->peers.vmad); tries++)
			usleep(1000);
		vmad_watch_disconnect(nic->peers.vmad);
		nic->peers.vmad = NULL;
	}
	if (nic->peers.right_fd >= 0)
		nic_fd_close(nic->peers.right_fd);
	nic->peers.right_fd = -1;
}
