/* net - start, stop, and the pump: events, requests and timers in, fresh paths out. */
#include <errno.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "message.h"
#include "net_priv.h"
#include "netlink.h"

#define EVENT_BYTES (1u << 20)
#define ROUTE_EVENTS_EACH 64 /* of one call, that are told apart by prefix */

uint64_t net_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void net_lock(struct vma_net *net, struct net_hold *hold)
{
	sigset_t all;

	if (!net->attr.callers_hold_signals) {
		sigfillset(&all);
		pthread_sigmask(SIG_BLOCK, &all, &hold->signals);
	}
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &hold->cancel);
	pthread_mutex_lock(&net->lock);
}

void net_unlock(struct vma_net *net, const struct net_hold *hold)
{
	pthread_mutex_unlock(&net->lock);
	pthread_setcancelstate(hold->cancel, NULL);
	if (!net->attr.callers_hold_signals)
		pthread_sigmask(SIG_SETMASK, &hold->signals, NULL);
}

void net_wake(const struct vma_net *net)
{
	const uint64_t one = 1;
	const int saved = errno;

	syscall(SYS_write, net->wake_fd, &one, sizeof(one));
	errno = saved;
}

/* ---- events ---- */

/*
 * The kernel tells of a link that went down before it removes the routes through it, and of those it says nothing: a
 * lookup made right now may still find them. So all is asked for at once, and once more a moment later.
 */
static void net_mark_all_paths_dirty(struct vma_net *net)
{
	net_paths_mark_all_dirty(net);
	net->settle_ns = net_now_ns() + NET_SETTLE_NS;
}

static void net_mark_paths_dirty_on_route_event(struct vma_net *net, struct nlmsghdr *message)
{
	struct net_msg_prefix prefix;
	struct path *path;

	if (net_msg_parse_prefix(message, &prefix) < 0)
		return;
	if (net->route_events++ >=
	    ROUTE_EVENTS_EACH) { /* a storm: looking for whom each concerns costs more than asking */
		if (net->route_events == ROUTE_EVENTS_EACH + 1)
			net_paths_mark_all_dirty(net);
		return;
	}
	atomic_fetch_add_explicit(&net->generation, 1, memory_order_relaxed);
	TAILQ_FOREACH(path, &net->paths, all)
	{
		if (net_msg_prefix_covers(&prefix, path->key.dst))
			path->dirty = net->any_dirty = true;
	}
}

static void net_refresh_neigh_on_netlink_event(struct vma_net *net, struct nlmsghdr *message)
{
	struct vma_net_neigh told;
	struct neigh *neigh;

	if (net_msg_parse_neigh(message, &told) < 0)
		return;
	neigh = net_neigh_find(net, &told);
	if (neigh == NULL)
		return;
	/* What the event says may be older than an answer that we have: it only says what to ask again. */
	net_neigh_refresh_from_kernel(net, neigh);
	net_neigh_reprobe_if_failed(net, neigh);
	net_paths_republish_for_neigh(neigh);
}

static void net_apply_event(struct nlmsghdr *message, void *arg)
{
	struct vma_net *net = arg;
	struct vma_net_link link;
	struct vma_net_addr addr;

	switch (message->nlmsg_type) {
	case RTM_NEWLINK:
	case RTM_DELLINK:
		if (net_msg_parse_link(message, &link) == 0 &&
		    net_tables_apply_link(net, &link, message->nlmsg_type == RTM_DELLINK))
			net_mark_all_paths_dirty(net);
		break;
	case RTM_NEWADDR:
	case RTM_DELADDR:
		if (net_msg_parse_addr(message, &addr) == 0 &&
		    net_tables_apply_addr(net, &addr, message->nlmsg_type == RTM_DELADDR))
			net_mark_all_paths_dirty(net);
		break;
	case RTM_NEWROUTE:
	case RTM_DELROUTE:
		net_mark_paths_dirty_on_route_event(net, message);
		break;
	case RTM_NEWNEIGH:
	case RTM_DELNEIGH:
		net_refresh_neigh_on_netlink_event(net, message);
		break;
	case RTM_NEWRULE:
	case RTM_DELRULE:
		net_update_whether_routing_uses_ports(net);
		net_paths_mark_all_dirty(net);
		break;
	default: /* next hops, an interface's IPv4 settings: any destination may be concerned */
		net_paths_mark_all_dirty(net);
	}
}

/* ---- the pump ---- */

static int net_resync(struct vma_net *net)
{
	int rc = 0;

	for (int tries = 0; tries < 3; tries++) {
		rc = net_tables_sync(net);
		if (rc == 0)
			break;
	}
	net_update_whether_routing_uses_ports(net);
	net->resync_due = rc < 0; /* what could be read is in the tables; the next call tries again */
	for (unsigned i = 0; i < NET_NEIGH_BUCKETS; i++) {
		struct neigh *neigh;

		LIST_FOREACH(neigh, &net->neighs[i], bucket)
		{
			net_neigh_refresh_from_kernel(net, neigh);
			net_paths_republish_for_neigh(neigh);
		}
	}
	net_mark_all_paths_dirty(net);
	return rc;
}

static void run_timers(struct vma_net *net, uint64_t now)
{
	if (net->settle_ns != 0 && now >= net->settle_ns) {
		net->settle_ns = 0;
		net_paths_mark_all_dirty(net);
	}
	if (net->recheck_ns != 0 && now >= net->recheck_ns) {
		net->recheck_ns = 0;
		net_update_whether_routing_uses_ports(net);
		net_paths_sweep(net, now);
	}
	net_arp_process_due_neighs(net, now);
}

void net_arm_timer_for_next_work(struct vma_net *net)
{
	const uint64_t arp_ns = net_arp_next_due_ns(net);
	uint64_t due;
	struct itimerspec when = {0};

	if (net->recheck_ns == 0 && !TAILQ_EMPTY(&net->paths))
		net->recheck_ns = net_now_ns() + NET_RECHECK_NS;
	due = net->recheck_ns;
	if (net->settle_ns != 0 && (due == 0 || net->settle_ns < due))
		due = net->settle_ns;
	if (arp_ns != 0 && (due == 0 || arp_ns < due))
		due = arp_ns;
	if (due == net->armed_ns)
		return;
	when.it_value.tv_sec = (time_t)(due / 1000000000u);
	when.it_value.tv_nsec = (long)(due % 1000000000u);
	if (syscall(SYS_timerfd_settime, net->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) == 0)
		net->armed_ns = due;
}

static void drain_event_fd(int fd)
{
	uint64_t count;

	syscall(SYS_read, fd, &count, sizeof(count));
}

int net_process_events_and_timers(struct vma_net *net)
{
	int events, requests, rc = 0;

	net->route_events = 0;
	events = net_nl_read_pending_events(net->events, net_apply_event, net);
	if (events == -ENOBUFS) {
		atomic_fetch_add_explicit(&net->resyncs, 1, memory_order_relaxed);
		vma_log_debug("net: events were lost; reading links, addresses, routes and neighbours anew");
		net->resync_due = true;
		events = 1;
	}
	if (net->resync_due)
		rc = net_resync(net);
	requests = net_paths_process_requests(net) + net_paths_create_requested(net);
	run_timers(net, net_now_ns());
	net_paths_update_dirty(net);
	net_arm_timer_for_next_work(net);
	return rc < 0 ? rc : events + requests;
}

int vma_net_process_events(struct vma_net *net)
{
	struct net_hold hold;
	int rc;

	net_lock(net, &hold);
	drain_event_fd(net->wake_fd); /* before the requests are taken: one that comes later wakes again */
	drain_event_fd(net->timer_fd);
	rc = net_process_events_and_timers(net);
	net_unlock(net, &hold);
	return rc;
}

__attribute__((cold)) unsigned vma_net_fds(const struct vma_net *net, int *fds, unsigned max)
{
	const int all[] = {net_nl_fd(net->events), net_nl_fd(net->query), net->epoll_fd,  net->wake_fd,
	                   net->timer_fd,          net->probe_fd,         net->policy_fd, net->arp_fd};
	unsigned n = 0;

	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i] < 0)
			continue;
		if (n < max)
			fds[n] = all[i];
		n++;
	}
	return n;
}

int vma_net_fd(const struct vma_net *net)
{
	return net->epoll_fd;
}

uint64_t vma_net_generation(const struct vma_net *net)
{
	return atomic_load_explicit(&net->generation, memory_order_relaxed);
}

uint64_t vma_net_resyncs(const struct vma_net *net)
{
	return atomic_load_explicit(&net->resyncs, memory_order_relaxed);
}

/* ---- start and stop ---- */

static int net_open_fds(struct vma_net *net)
{
	const int fds[] = {
	        net_nl_fd(net->events),
	        net->wake_fd = net_move_fd_to_high_number((int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK)),
	        net->timer_fd = net_move_fd_to_high_number(
	                (int)syscall(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
	};

	net->epoll_fd = net_move_fd_to_high_number((int)syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
	net->probe_fd = net_open_neigh_probe_udp_socket();
	net->arp_fd = net->attr.sends_arps ? net_arp_open() : -1;
	net->policy_fd = net_open_multipath_hash_policy_file();
	for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};

		if (fds[i] < 0 || net->epoll_fd < 0 ||
		    syscall(SYS_epoll_ctl, net->epoll_fd, EPOLL_CTL_ADD, fds[i], &event) < 0)
			return -errno;
	}
	return 0;
}

static void net_close_fd(int fd)
{
	if (fd >= 0)
		syscall(SYS_close, fd);
}

static struct vma_net *net_allocate(void)
{
	struct vma_net *net = aligned_alloc(_Alignof(struct vma_net), sizeof(*net));

	if (net == NULL)
		return NULL;
	memset(net, 0, sizeof(*net));
	pthread_mutex_init(&net->lock, NULL);
	TAILQ_INIT(&net->paths);
	TAILQ_INIT(&net->free_paths);
	net->epoll_fd = net->wake_fd = net->timer_fd = net->probe_fd = net->policy_fd = net->arp_fd = -1;
	net->by_ports = true;
	return net;
}

int vma_net_create(const struct vma_net_attr *attr, struct vma_net **out)
{
	const uint32_t event_bytes = attr != NULL && attr->event_bytes != 0 ? attr->event_bytes : EVENT_BYTES;
	struct vma_net *net = net_allocate();
	int rc = net != NULL ? path_table_init(&net->table) : -ENOMEM;

	if (rc == 0 && attr != NULL)
		net->attr = *attr;
	/* Events first, tables then: what changes in between is told as well. */
	if (rc == 0)
		rc = net_nl_open_events(event_bytes, &net->events);
	if (rc == 0)
		rc = net_nl_open(&net->query);
	if (rc == 0)
		rc = net_open_fds(net);
	if (rc == 0)
		rc = net_resync(net);
	if (rc == -EAGAIN) /* the tables change faster than they can be read; the events will tell */
		rc = 0;
	if (rc < 0) {
		vma_net_destroy(net);
		return rc;
	}
	net_arm_timer_for_next_work(net);
	*out = net;
	return 0;
}

void vma_net_destroy(struct vma_net *net)
{
	if (net == NULL)
		return;
	net_paths_fini(net); /* and with the paths, the neighbours */
	net_tables_fini(net);
	path_table_fini(&net->table);
	net_close_fd(net->epoll_fd);
	net_close_fd(net->wake_fd);
	net_close_fd(net->timer_fd);
	net_close_fd(net->probe_fd);
	net_close_fd(net->policy_fd);
	net_nl_close(net->query);
	net_nl_close(net->events);
	pthread_mutex_destroy(&net->lock);
	free(net);
}
