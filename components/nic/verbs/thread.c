/*
 * thread - the nic's own thread: windows that are still to come, queues that have failed, and the device's events.
 *
 * It runs no callback with `lock` held, and is the only caller of callbacks.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "mlx5.h"
#include "verbs.h"

#define CLOSED_NAP_MS 100   /* of the thread, if its descriptors are closed */
#define REBIND_RETRY_MS 100 /* a queue pair that was not rebound is asked again */
#define REBIND_MS 1000      /* and if that has come to nothing for so long, the kernel gets its flows */

void verbs_thread_wake(struct nic_verbs *nic)
{
	const uint64_t one = 1;

	if (os_write(nic->wake_fd, &one, sizeof(one)) < 0)
		vma_log_debug("verbs: eventfd: error %d", errno); /* full: it wakes anyway */
}

void verbs_qp_note_maybe_broken(struct verbs_qp *qp)
{
	const int saved = errno;

	if (!atomic_exchange(&qp->broken, true))
		verbs_thread_wake(qp->nic);
	errno = saved;
}

static void drain_eventfd(int fd)
{
	uint64_t count;

	if (os_read(fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		vma_log_debug("verbs: eventfd: error %d", errno);
}

/* ---- lock held ---- */

/* True: there is more to do. One window at a time, so that others get the lock. */
static bool grow_one_pool(struct nic_verbs *nic)
{
	for (struct verbs_qp *qp = nic->qps; qp != NULL; qp = qp->next) {
		if (vma_nic_qp_lost(&qp->base) || qp->queue.device == NULL)
			continue;
		if (verbs_pool_grow(nic, qp->queue.device, qp->rx_memory) ||
		    verbs_pool_grow(nic, qp->queue.device, qp->tx_memory))
			return true;
	}
	return false;
}

/* A rebind handles events as well. Then the event may be of the new queue: the thread asks it when the rebind is over. */
static void mark_qp_lost(struct verbs_qp *qp)
{
	const uint64_t one = 1;

	if (vma_nic_qp_lost(&qp->base)) {
		atomic_store(&qp->broken, true);
		return;
	}
	vma_log_warn("%s: RDMA device %s has stopped its queue: traffic is the kernel's until there is a new one",
	             qp->name, qp->nic->device->place.device);
	atomic_store_explicit(&qp->base.lost, true, memory_order_release);
	verbs_data_select_paths(qp);
	if (os_write(qp->wake_fd, &one, sizeof(one)) < 0)
		vma_log_debug("verbs: eventfd: error %d", errno);
}

static struct verbs_qp *verbs_qp_find_by_ibv_qp(struct nic_verbs *nic, const struct ibv_qp *queue)
{
	struct verbs_qp *qp = nic->qps;

	while (qp != NULL && qp->queue.qp != queue)
		qp = qp->next;
	return qp;
}

static struct verbs_qp *qp_of_cq(struct nic_verbs *nic, const struct ibv_cq *cq)
{
	struct verbs_qp *qp = nic->qps;

	while (qp != NULL && qp->queue.rx_cq != cq && qp->queue.tx_cq != cq)
		qp = qp->next;
	return qp;
}

/* A device may tell of a state twice, and that a port is up which nobody has heard to be down: a change has one line. */
static void log_port_going_down_or_up(struct nic_verbs *nic, bool is_down)
{
	const struct verbs_device_port *place = &nic->device->place;

	if (is_down == nic->port_is_down)
		return;
	nic->port_is_down = is_down;
	if (is_down)
		vma_log_warn("%s: RDMA device %s, port %u is down: nothing comes or goes until it is up again",
		             nic->name, place->device, place->port);
	else
		vma_log_info("%s: RDMA device %s, port %u is up again", nic->name, place->device, place->port);
}

/* No event tells of it: the last device is gone, and this one's port may have changed before it was opened. */
void verbs_port_state_log_change(struct nic_verbs *nic)
{
	const struct verbs_context *extended = verbs_get_ctx_op(nic->device->context, query_port);
	struct ibv_port_attr attr = {.state = IBV_PORT_NOP};

	if (extended != NULL &&
	    extended->query_port(nic->device->context, nic->device->place.port, &attr, sizeof(attr)) == 0)
		log_port_going_down_or_up(nic, attr.state != IBV_PORT_ACTIVE);
}

static void handle_rdma_async_event(struct nic_verbs *nic, const struct ibv_async_event *event)
{
	struct verbs_qp *qp = NULL;

	switch (event->event_type) {
	case IBV_EVENT_DEVICE_FATAL:
		nic->device->broken = true;
		break;
	case IBV_EVENT_CQ_ERR:
		qp = qp_of_cq(nic, event->element.cq);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		qp = verbs_qp_find_by_ibv_qp(nic, event->element.qp);
		break;
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_PORT_ACTIVE:
		if (event->element.port_num == nic->device->place.port)
			log_port_going_down_or_up(nic, event->event_type == IBV_EVENT_PORT_ERR);
		break;
	default:
		break;
	}
	vma_log_debug("%s: RDMA device %s: event %d", nic->name, nic->device->place.device, event->event_type);
	if (qp != NULL)
		mark_qp_lost(qp);
}

/* True: there was one. */
static bool handle_pending_rdma_async_events(struct nic_verbs *nic)
{
	const struct verbs_lib *lib = nic->device->lib;
	struct ibv_async_event event;
	bool any = false;

	while (lib->ibv_get_async_event(nic->device->context, &event) == 0) {
		handle_rdma_async_event(nic, &event);
		lib->ibv_ack_async_event(&event);
		any = true;
	}
	return any;
}

bool verbs_device_failure_explains_error(struct nic_verbs *nic, struct verbs_device *device)
{
	bool is_news;

	if (device->broken)
		return true;
	is_news = device == nic->device && handle_pending_rdma_async_events(nic);
	if (!device->broken)
		device->broken = verbs_device_is_gone(device);
	if (is_news || device->broken)
		verbs_thread_wake(nic); /* for queue pairs that are lost by now */
	return device->broken;
}

/* A failed receive or send need not have stopped its queue. A card whose rings cannot be read stops it here. */
static bool queue_is_in_rts_state(struct verbs_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_UNKNOWN};

	if (mlx5_has_failed(&qp->queue)) {
		qp->nic->mlx5_direct = false;
		return false;
	}
	return qp->queue.device->lib->ibv_query_qp(qp->queue.qp, &attr, IBV_QP_STATE, &init) == 0 &&
	       attr.qp_state == IBV_QPS_RTS;
}

static void mark_broken_qps_lost(struct nic_verbs *nic)
{
	for (struct verbs_qp *qp = nic->qps; qp != NULL; qp = qp->next) {
		if (vma_nic_qp_lost(&qp->base))
			continue;
		if (qp->queue.device->broken || (atomic_exchange(&qp->broken, false) && !queue_is_in_rts_state(qp)))
			mark_qp_lost(qp);
	}
}

static void give_flows_of_lost_qps_to_kernel(struct nic_verbs *nic)
{
	const uint64_t now = os_now_ns();

	for (struct verbs_qp *qp = nic->qps; qp != NULL; qp = qp->next)
		if (qp->failed_ns != 0 && now - qp->failed_ns >= REBIND_MS * UINT64_C(1000000))
			verbs_qp_give_flows_to_kernel(qp);
}

static struct verbs_qp *next_lost_qp(struct nic_verbs *nic, struct verbs_qp *after)
{
	struct verbs_qp *qp;

	pthread_mutex_lock(&nic->lock);
	for (qp = after == NULL ? nic->qps : after->next; qp != NULL && !vma_nic_qp_lost(&qp->base); qp = qp->next)
		;
	pthread_mutex_unlock(&nic->lock);
	return qp;
}

/* ---- callbacks; `events` is held ---- */

static bool report_lost_verbs_qps(struct nic_verbs *nic)
{
	bool any = false;

	for (struct verbs_qp *qp = next_lost_qp(nic, NULL); qp != NULL; qp = next_lost_qp(nic, qp)) {
		any = true;
		if (qp->attr.event != NULL)
			qp->attr.event(&qp->base, VMA_NIC_EVENT_LOST, NULL, qp->attr.event_arg);
	}
	return any;
}

static bool pop_revoked_flow(struct nic_verbs *nic, struct verbs_qp **qp, struct vma_flow_key *key)
{
	bool any;

	pthread_mutex_lock(&nic->lock);
	any = verbs_flow_pop_revoked(nic, qp, key);
	pthread_mutex_unlock(&nic->lock);
	return any;
}

static void report_revoked_flows(struct nic_verbs *nic)
{
	struct vma_flow_key key;
	struct verbs_qp *qp;

	while (pop_revoked_flow(nic, &qp, &key))
		if (qp->attr.event != NULL)
			qp->attr.event(&qp->base, VMA_NIC_EVENT_FLOW_REVOKED, &key, qp->attr.event_arg);
}

/* ---- the loop ---- */

/* -1: never. */
static int min_timeout_ms(int a, int b)
{
	return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* How long to sleep at most, ms; -1: until something happens. */
static int verbs_nic_thread_run_once(struct nic_verbs *nic)
{
	int look_ms, linger_ms, peers_ms;
	bool more;

	pthread_mutex_lock(&nic->lock);
	handle_pending_rdma_async_events(nic);
	mark_broken_qps_lost(nic);
	verbs_flows_revoke_wanted_by_other_process(nic);
	give_flows_of_lost_qps_to_kernel(nic);
	look_ms = min_timeout_ms(verbs_conflicts_search_and_revoke(nic), verbs_flow_contests_expire(nic));
	more = grow_one_pool(nic);
	look_ms = min_timeout_ms(look_ms, verbs_memory_end_pause_if_due(nic));
	verbs_nic_fill_spare_fds(nic);
	look_ms = min_timeout_ms(look_ms, verbs_timestamps_sample_if_due(nic));
	pthread_mutex_unlock(&nic->lock);
	pthread_mutex_lock(&nic->events);
	report_revoked_flows(
	        nic); /* first: if a rebind comes to something, its user takes the reason for another one */
	if (report_lost_verbs_qps(nic))
		more = false;
	pthread_mutex_unlock(&nic->events);
	pthread_mutex_lock(&nic->lock);
	linger_ms = verbs_flows_end_lingering(nic);
	pthread_mutex_unlock(&nic->lock);
	peers_ms = verbs_peers_sync_with_vmad(nic);
	look_ms = min_timeout_ms(min_timeout_ms(look_ms, linger_ms), peers_ms);
	if (more)
		return 0;
	return next_lost_qp(nic, NULL) != NULL ? min_timeout_ms(look_ms, REBIND_RETRY_MS) : look_ms;
}

/* The number may change with the device, which only a callback of this very thread or a rebind exchanges: both wake. */
static int async_fd(struct nic_verbs *nic)
{
	int fd;

	pthread_mutex_lock(&nic->lock);
	fd = nic->device->broken ? -1 : nic->device->context->async_fd;
	pthread_mutex_unlock(&nic->lock);
	return fd;
}

/* By a program, with an instruction of its own: poll returns at once then, each time. */
static bool any_is_closed(const struct pollfd *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (fds[i].revents & POLLNVAL)
			return true;
	return false;
}

static void *verbs_nic_thread_main(void *arg)
{
	struct nic_verbs *nic = arg;

	while (!atomic_load(&nic->closing)) {
		const int sleep_ms = verbs_nic_thread_run_once(nic);
		struct pollfd fds[4] = {{.fd = nic->wake_fd, .events = POLLIN},
		                        {.fd = async_fd(nic), .events = POLLIN},
		                        {.fd = nic->claims_fd, .events = POLLIN},
		                        {.fd = verbs_peers_vmad_fd(nic), .events = POLLIN}};

		if (sleep_ms == 0 || atomic_load(&nic->closing))
			continue;
		os_poll(fds, 4, sleep_ms);
		drain_eventfd(nic->wake_fd);
		if (any_is_closed(fds, 4))
			os_poll(NULL, 0, CLOSED_NAP_MS);
	}
	return NULL;
}

int verbs_thread_start(struct nic_verbs *nic)
{
	sigset_t all, before;
	int rc;

	/* The program's signals are not for this thread. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&nic->thread, NULL, verbs_nic_thread_main, nic);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}
