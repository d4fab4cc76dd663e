/*
 * thread - the nic's own thread: it sleeps on the connection to vmad and on its wake-up.
 *
 *   owner in this process   does the owner's periodic work
 *   vmad                    reports flows that were taken back; when vmad is gone, gives up its sockets, looks for a
 *                           new vmad (and starts one) until there is one, and then asks the users for a rebind
 *
 * It runs no callback with `lock` held, and is the only caller of callbacks.
 */
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "client.h"

#define RETRY_FIRST_MS 5
#define RETRY_LAST_MS 250
#define TIMEOUT_MS 2000     /* of one attempt: the thread must also see vma_nic_close */
#define REBIND_RETRY_MS 100 /* a queue pair that was not rebound is asked again */
#define BUSY_MS 5           /* between two looks at a connection that is in use */

void nic_xdp_thread_wake(struct nic_xdp *nic)
{
	const uint64_t one = 1;

	if (os_write(nic->wake_fd, &one, sizeof(one)) < 0)
		vma_log_debug("xdp: eventfd: error %d", errno); /* full: it wakes anyway */
}

static void nic_drain_wake(struct nic_xdp *nic)
{
	uint64_t count;

	if (os_read(nic->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		vma_log_debug("xdp: eventfd: error %d", errno);
}

/* ---- events; `events` is held ---- */

static void qp_report_event(struct xdp_qp *qp, enum vma_nic_event event, const struct vma_flow_key *key)
{
	if (qp->attr.event != NULL)
		qp->attr.event(&qp->base, event, key, qp->attr.event_arg);
}

static struct xdp_qp *qp_of_slot(struct nic_xdp *nic, uint32_t slot)
{
	struct xdp_qp *qp = nic->qps;

	while (qp != NULL && (qp->slot != slot || vma_nic_qp_lost(&qp->base)))
		qp = qp->next;
	return qp;
}

static void on_owner_flow_revoked(uint32_t slot, const struct vma_flow_key *key, void *arg)
{
	struct xdp_qp *qp = qp_of_slot(arg, slot);

	if (qp != NULL)
		nic_xdp_flow_revoke(qp, key);
}

/* Takes one revoked flow out of the queue pair; false when there is none. */
static bool pop_revoked_flow_key(struct nic_xdp *nic, struct xdp_qp *qp, struct vma_flow_key *key)
{
	bool any;

	pthread_mutex_lock(&nic->lock);
	any = nic_xdp_flow_pop_revoked(qp, key);
	pthread_mutex_unlock(&nic->lock);
	return any;
}

static void nic_report_revoked_flows(struct nic_xdp *nic)
{
	struct vma_flow_key key;

	for (struct xdp_qp *qp = nic->qps; qp != NULL; qp = qp->next)
		while (pop_revoked_flow_key(nic, qp, &key))
			qp_report_event(qp, VMA_NIC_EVENT_FLOW_REVOKED, &key);
}

static bool pop_adopted_connection(struct nic_xdp *nic, uint32_t *slot, struct vma_pending *pending)
{
	bool any;

	pthread_mutex_lock(&nic->lock);
	any = nic->vmad != NULL && vmad_client_next_adoption(nic->vmad, slot, pending);
	pthread_mutex_unlock(&nic->lock);
	return any;
}

static void report_adopted_connections(struct nic_xdp *nic)
{
	struct vma_pending pending;
	uint32_t slot;

	while (pop_adopted_connection(nic, &slot, &pending)) {
		struct xdp_qp *qp = qp_of_slot(nic, slot);

		if (qp == NULL || (int32_t)(pending.number - qp->adopt_seen) <= 0)
			continue; /* another vmad tells again what may not have come */
		qp->adopt_seen = pending.number;
		if (qp->attr.adopt != NULL)
			qp->attr.adopt(&qp->base, &pending, qp->attr.event_arg);
	}
}

/* Under the lock that a rebind drains the fd under, or a queue pair that has just been rebound would stay ready. */
static bool wake_lost_qp(struct nic_xdp *nic, struct xdp_qp *qp, bool wake)
{
	const uint64_t one = 1;
	bool lost;

	pthread_mutex_lock(&nic->lock);
	lost = vma_nic_qp_lost(&qp->base);
	if (lost && wake && os_write(qp->wake_fd, &one, sizeof(one)) < 0)
		vma_log_debug("xdp: eventfd: error %d", errno);
	pthread_mutex_unlock(&nic->lock);
	return lost;
}

/* Lost queue pairs hear it again once there is somebody to rebind to; their fd wakes a sleeper for that. */
static bool report_lost_qps(struct nic_xdp *nic, bool wake)
{
	bool any = false;

	for (struct xdp_qp *qp = nic->qps; qp != NULL; qp = qp->next) {
		if (!wake_lost_qp(nic, qp, wake))
			continue;
		any = true;
		qp_report_event(qp, VMA_NIC_EVENT_LOST, NULL);
	}
	return any;
}

/* ---- vmad ---- */

/* The owner's things have gone, and so have its fdstore's, if there was one. */
static bool owner_has_ended(const struct nic_xdp *nic)
{
	const struct xdp_window *window = nic->window;

	return window == NULL || window->alive_fd < 0 || os_poll_one_fd(window->alive_fd, POLLIN, 0) > 0;
}

/* Lock held. */
static void nic_mark_all_qps_lost(struct nic_xdp *nic)
{
	for (struct xdp_qp *qp = nic->qps; qp != NULL; qp = qp->next)
		if (!vma_nic_qp_lost(&qp->base))
			nic_xdp_detach_lost_qp(qp);
	for (struct xdp_lease *lease = nic->leases; lease != NULL; lease = lease->next)
		lease->orphan = true;
	nic_xdp_window_put(nic->window);
	nic->window = NULL;
	pthread_cond_broadcast(&nic->vmad_found_cond);
}

static void nic_drop_vmad_and_report_lost_qps(struct nic_xdp *nic)
{
	char name[IF_NAMESIZE];

	if (if_indextoname(nic->base.info.ifindex, name) == NULL)
		vma_log_info("%s: the interface has gone", nic->base.info.name);
	else
		vma_log_warn("%s: vmad has gone: traffic is the kernel's until there is a new one",
		             nic->base.info.name);
	pthread_mutex_lock(&nic->lock);
	vmad_client_close(nic->vmad);
	vmad_client_close(nic->old_vmad);
	nic->vmad = nic->old_vmad = NULL;
	nic_mark_all_qps_lost(nic);
	pthread_mutex_unlock(&nic->lock);
	report_lost_qps(nic, false);
}

/* It does not answer, or has ended: what it owns is there, and another one will come. */
static void nic_drop_vmad_connection(struct nic_xdp *nic)
{
	pthread_mutex_lock(&nic->lock);
	vmad_client_close(nic->old_vmad);
	nic->old_vmad = nic->vmad;
	nic->vmad = NULL;
	nic->vmad_lost_ms = os_now_ms();
	pthread_mutex_unlock(&nic->lock);
	vma_log_info("%s: vmad does not answer: what its clients have stays, and another one is looked for",
	             nic->base.info.name);
}

static bool vmad_is_connected(const struct nic_xdp *nic)
{
	return nic->vmad != NULL && !vmad_client_broken(nic->vmad);
}

bool nic_xdp_await_vmad(struct nic_xdp *nic)
{
	const uint64_t until = (nic->vmad != NULL ? os_now_ms() : nic->vmad_lost_ms) + VMAD_REPLY_TIMEOUT_MS;
	const struct timespec at = {.tv_sec = (time_t)(until / 1000), .tv_nsec = (long)(until % 1000) * 1000000};

	if (nic->kind != VMA_NIC_OWNER_VMAD || pthread_equal(pthread_self(), nic->thread))
		return false;
	nic_xdp_thread_wake(nic);
	while (!vmad_is_connected(nic) && nic->window != NULL && !nic->closing &&
	       pthread_cond_timedwait(&nic->vmad_found_cond, &nic->lock, &at) == 0)
		;
	return vmad_is_connected(nic);
}

static void nic_handle_vmad_events(struct nic_xdp *nic)
{
	struct vma_flow_key key;
	uint32_t slot;
	int rc;

	pthread_mutex_lock(&nic->lock);
	while ((rc = vmad_client_next_revoked_flow(nic->vmad, &slot, &key)) > 0)
		on_owner_flow_revoked(slot, &key, nic);
	pthread_mutex_unlock(&nic->lock);
	if (rc < 0 || vmad_client_broken(nic->vmad)) {
		if (owner_has_ended(nic))
			nic_drop_vmad_and_report_lost_qps(nic);
		else
			nic_drop_vmad_connection(nic);
	}
}

/* ---- a vmad that goes on where another has ended, or that has not answered for a while ---- */

static bool lease_has_qp(const struct nic_xdp *nic, const struct xdp_lease *lease)
{
	for (const struct xdp_qp *qp = nic->qps; qp != NULL; qp = qp->next)
		if (qp->lease == lease)
			return true;
	return false;
}

/* 0; -EPIPE: it has ended again; -ENOENT: it does not know us. */
static int resume_rented_slots(struct nic_xdp *nic, struct vmad_client *client)
{
	int rc = 0;

	for (const struct xdp_lease *lease = nic->leases; lease != NULL && rc == 0; lease = lease->next) {
		if (!lease->orphan)
			rc = vmad_client_resume_slot_by_ticket(client, lease->slot, lease->ticket);
		if (rc == 0 && !lease->orphan && !lease_has_qp(nic, lease)) /* destroyed meanwhile */
			rc = vmad_client_return(client, lease->slot, false);
	}
	return rc == -EPIPE ? rc : rc < 0 ? -ENOENT : 0;
}

/* Lock held. False: vmad has ended again. */
static bool nic_reclaim_leases_from_new_vmad(struct nic_xdp *nic, struct vmad_client *client)
{
	const int rc = nic->window != NULL ? resume_rented_slots(nic, client) : 0;

	if (rc == -EPIPE)
		return false;
	vmad_client_close(nic->old_vmad);
	nic->old_vmad = NULL;
	nic->vmad = client;
	if (rc == -ENOENT) {
		vma_log_warn("%s: vmad does not know its queue pairs: they are rented anew", nic->base.info.name);
		nic_mark_all_qps_lost(nic);
	}
	/* All flows before the first word that this was all of a slot: one may be in the middle of a move to that slot.
	 * */
	for (struct xdp_qp *qp = nic->qps; qp != NULL; qp = qp->next)
		if (!vma_nic_qp_lost(&qp->base))
			nic_xdp_flows_reannounce(qp);
	for (struct xdp_qp *qp = nic->qps; qp != NULL; qp = qp->next)
		if (!vma_nic_qp_lost(&qp->base))
			vmad_client_tell_resumed(client, qp->slot);
	pthread_cond_broadcast(&nic->vmad_found_cond);
	return true;
}

/* Without any lock: it waits, and nobody else knows the new connection yet. */
static bool nic_connect_to_next_vmad(struct nic_xdp *nic)
{
	char name[IF_NAMESIZE];
	const struct vmad_connect_attr how = {
	        .ifindex = nic->base.info.ifindex,
	        .ifname = name,
	        .vmad_path = nic->vmad_path,
	        .right_fd = nic->right_fd,
	        .window_bytes = nic->window_bytes,
	        .huge_pages = nic->huge_pages,
	        .stats_dir = nic->stats_dir,
	        /* A vmad cannot own the interface before this client has let go of what is over. */
	        .over_fd = nic->window != NULL && nic->window->alive_fd >= 0 ? &nic->window->alive_fd : NULL,
	        .timeout_ms = TIMEOUT_MS,
	        .connecting = &nic->connecting,
	};
	struct vmad_client *client;
	bool resumed;

	/* An interface that has gone needs none; another one of the same name has its own. */
	if (if_indextoname(nic->base.info.ifindex, name) == NULL || vmad_client_connect(&how, &client) < 0)
		return false;
	pthread_mutex_lock(&nic->lock);
	vmad_connecting_remove(&nic->connecting, client);
	resumed = nic_reclaim_leases_from_new_vmad(nic, client);
	if (!resumed)
		vmad_client_close(client);
	pthread_mutex_unlock(&nic->lock);
	return resumed;
}

/* ---- the loop ---- */

/* Under `events`: everything that is due. Returns how long to sleep at most, ms; -1: until something happens. */
static int nic_thread_work(struct nic_xdp *nic)
{
	int sleep_ms = -1;

	if (nic->vmad != NULL)
		nic_handle_vmad_events(nic);
	else if (nic->window != NULL && nic->kind == VMA_NIC_OWNER_VMAD && owner_has_ended(nic))
		nic_drop_vmad_and_report_lost_qps(nic);
	pthread_mutex_lock(&nic->lock);
	if (nic->owner != NULL) {
		xdp_owner_tick(nic->owner, on_owner_flow_revoked, nic);
		sleep_ms = xdp_owner_next_tick_ms(nic->owner);
	}
	nic_xdp_return_slots_of_done_leases(nic);
	if (nic_xdp_has_lease_to_finish(nic))
		sleep_ms = 1; /* a drained() is on its last instruction */
	pthread_mutex_unlock(&nic->lock);
	nic_report_revoked_flows(nic);
	report_adopted_connections(nic);
	if (nic->kind == VMA_NIC_OWNER_VMAD && nic->vmad != NULL && report_lost_qps(nic, true)) {
		sleep_ms = REBIND_RETRY_MS;
		/* What was asked for in there has its answer, and is no use of the connection: see
		 * vmad_was_asked_since_last_look. */
		nic->requests_seen = vmad_client_request_count(nic->vmad);
	}
	return sleep_ms;
}

/*
 * Each answer to a request wakes whoever sleeps on the connection, for nothing: a program that connects often would pay
 * two changes of thread for each. So while there are requests, the connection is looked at now and then instead.
 */
static bool vmad_was_asked_since_last_look(struct nic_xdp *nic)
{
	const uint32_t before = nic->requests_seen;

	nic->requests_seen = nic->vmad != NULL ? vmad_client_request_count(nic->vmad) : 0;
	return nic->vmad != NULL && nic->requests_seen != before;
}

static void sleep_until_due(struct nic_xdp *nic, int sleep_ms)
{
	const bool in_use = vmad_was_asked_since_last_look(nic);
	struct pollfd fds[4] = {
	        {.fd = nic->wake_fd, .events = POLLIN},
	        {.fd = nic->vmad != NULL && !in_use ? vmad_client_fd(nic->vmad) : -1, .events = POLLIN},
	        {.fd = nic->owner != NULL ? xdp_owner_link_fd(nic->owner) : -1, .events = POLLIN},
	        {.fd = nic->vmad == NULL && nic->window != NULL ? nic->window->alive_fd : -1},
	};

	if (in_use && (sleep_ms < 0 || sleep_ms > BUSY_MS))
		sleep_ms = BUSY_MS;
	os_poll(fds, 4, sleep_ms);
	nic_drain_wake(nic);
}

static bool nic_thread_may_end(struct nic_xdp *nic)
{
	bool yes;

	pthread_mutex_lock(&nic->lock);
	yes = nic->closing && nic->leases == NULL;
	pthread_mutex_unlock(&nic->lock);
	return yes;
}

static void *nic_thread_main(void *arg)
{
	struct nic_xdp *nic = arg;
	int retry_ms = RETRY_FIRST_MS;

	while (!nic_thread_may_end(nic)) {
		int sleep_ms;

		pthread_mutex_lock(&nic->events);
		sleep_ms = nic_thread_work(nic);
		pthread_mutex_unlock(&nic->events);
		if (nic->kind == VMA_NIC_OWNER_VMAD && nic->vmad == NULL && !nic->closing) {
			if (nic_connect_to_next_vmad(nic)) {
				retry_ms = RETRY_FIRST_MS;
				continue;
			}
			sleep_ms = retry_ms;
			retry_ms = retry_ms * 2 < RETRY_LAST_MS ? retry_ms * 2 : RETRY_LAST_MS;
		}
		if (!nic_thread_may_end(nic))
			sleep_until_due(nic, sleep_ms);
	}
	if (!nic->joined)
		nic_xdp_free(nic);
	return NULL;
}

int nic_xdp_thread_start(struct nic_xdp *nic)
{
	sigset_t all, before;
	int rc;

	/* The program's signals are not for this thread. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&nic->thread, NULL, nic_thread_main, nic);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}
