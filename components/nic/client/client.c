/*
 * client - the xdp backend: AF_XDP queue pairs rented from an owner in this process or from vmad.
 */
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "../backends.h"
#include "client.h"
#include "../xdp/proto.h"

#define VMAD_TIMEOUT_MS 8000

static struct nic_xdp *nic_xdp_of_base(struct vma_nic *base)
{
	return (struct nic_xdp *)base;
}

static struct xdp_qp *xdp_qp_of(struct vma_nic_qp *base)
{
	return (struct xdp_qp *)base;
}

/* ---- the interface ---- */

/* A veth's peer hands over packets whose checksum nobody has finished, and none is needed: both ends are memory. */
static bool driver_is_veth(const char *driver)
{
	return strcmp(driver, "veth") == 0;
}

/* For want of descriptors or memory: everything else that is missing has a line of its own. */
static int log_nic_open_failure(const char *name, int rc)
{
	vma_log_once(VMA_LOG_WARN, "%s: it cannot be opened: %s", name, strerror(-rc));
	return rc;
}

static int xdp_client_read_interface(struct nic_xdp *nic, const char *name)
{
	struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
	struct ethtool_channels channels = {.cmd = ETHTOOL_GCHANNELS};
	struct vma_nic_info *info = &nic->base.info;
	struct ifreq req = {0};
	int fd, rc = 0;

	fd = os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return log_nic_open_failure(name, -errno);
	if (strlen(name) < IF_NAMESIZE)
		strcpy(req.ifr_name, name);
	if (os_ioctl(fd, SIOCGIFINDEX, &req) < 0) {
		vma_log_once(VMA_LOG_ERROR, "xdp: no interface \"%s\"", name);
		os_close(fd);
		return -ENODEV;
	}
	info->ifindex = (uint32_t)req.ifr_ifindex;
	strcpy(info->name, req.ifr_name);
	if (os_ioctl(fd, SIOCGIFHWADDR, &req) < 0)
		rc = -errno;
	memcpy(info->mac, req.ifr_hwaddr.sa_data, sizeof(info->mac));
	if (rc == 0 && os_ioctl(fd, SIOCGIFMTU, &req) < 0)
		rc = -errno;
	info->mtu = (uint32_t)req.ifr_mtu;
	req.ifr_data = (void *)&driver;
	if (os_ioctl(fd, SIOCETHTOOL, &req) == 0 && driver_is_veth(driver.driver))
		info->caps |= VMA_NIC_CAP_MEMORY_LINK;
	req.ifr_data = (void *)&channels;
	nic->tx_queues = 1;
	if (os_ioctl(fd, SIOCETHTOOL, &req) == 0 && channels.tx_count + channels.combined_count > 0)
		nic->tx_queues = channels.tx_count + channels.combined_count;
	info->tx_segs_max = 1;
	info->device_queues = 1;
	os_close(fd);
	return rc;
}

/* ---- open and close ---- */

static int nic_open_own_owner(struct nic_xdp *nic, const struct vma_nic_attr *attr)
{
	const struct xdp_owner_attr owner = {
	        .ifindex = nic->base.info.ifindex,
	        .window_bytes = attr->window_bytes,
	        .huge_pages = attr->huge_pages,
	};
	int rc;

	pthread_mutex_lock(&nic->lock);
	rc = xdp_owner_create(&owner, &nic->owner);
	pthread_mutex_unlock(&nic->lock);
	if (rc == -EBUSY)
		vma_log_once(VMA_LOG_ERROR,
		             "%s: another process uses its queues for AF_XDP: to share an interface, let vmad own it",
		             nic->base.info.name);
	return rc;
}

static int nic_open_by_vmad(struct nic_xdp *nic, const struct vma_nic_attr *attr)
{
	struct vmad_connect_attr how = {
	        .ifindex = nic->base.info.ifindex,
	        .ifname = nic->base.info.name,
	        .vmad_path = attr->vmad_path,
	        .window_bytes = attr->window_bytes,
	        .huge_pages = attr->huge_pages,
	        .timeout_ms = VMAD_TIMEOUT_MS,
	        .connecting = &nic->connecting,
	};
	struct vmad_client *client;
	int rc;

	if (attr->vmad_path != NULL) {
		nic->vmad_path = strdup(attr->vmad_path);
		if (nic->vmad_path == NULL)
			return -ENOMEM;
	}
	if (attr->stats_dir != NULL && *attr->stats_dir != '\0')
		how.stats_dir = nic->stats_dir = realpath(attr->stats_dir, NULL); /* vmad's directory is another one */
	pthread_mutex_lock(&nic->lock);
	rc = vmad_permission_socket_create(nic->base.info.ifindex, nic->base.info.name);
	nic->right_fd = rc >= 0 ? nic_fd_move_high(rc) : nic_xdp_find_inherited_right(nic->base.info.ifindex);
	pthread_mutex_unlock(&nic->lock);
	/* Whatever else is in the way, vmad may know the user by name and want no proof. */
	if (nic->right_fd < 0 && (rc == -EMFILE || rc == -ENFILE))
		return log_nic_open_failure(nic->base.info.name, rc);
	how.right_fd = nic->right_fd;
	rc = vmad_client_connect(&how, &client);
	if (rc == 0) {
		pthread_mutex_lock(&nic->lock);
		vmad_connecting_remove(&nic->connecting, client);
		nic->vmad = client;
		pthread_mutex_unlock(&nic->lock);
	}
	return rc;
}

static int nic_xdp_probe(const char *name, const struct vma_nic_attr *attr)
{
	struct nic_xdp *nic = calloc(1, sizeof(*nic));
	struct vmad_connect_attr how = {.timeout_ms = VMAD_TIMEOUT_MS};
	int rc;

	(void)attr;
	if (nic == NULL)
		return -ENOMEM;
	rc = xdp_client_read_interface(nic, name);
	if (rc < 0)
		goto out;
	how.ifindex = nic->base.info.ifindex;
	how.ifname = nic->base.info.name;
	how.right_fd = vmad_permission_socket_create(how.ifindex, how.ifname);
	rc = vmad_client_probe(&how);
	if (how.right_fd >= 0)
		os_close(how.right_fd);
	if (rc == 0) {
		rc = VMA_NIC_VMAD_ADMITS;
	} else if (rc == -ECONNREFUSED) {
		rc = xdp_owner_check_interface_usable(how.ifindex);
		rc = rc < 0 ? rc : VMA_NIC_MAY_START;
	}
out:
	free(nic);
	return rc;
}

/* Under the lock and before the nic leaves the list of those that a child gives up: see ../fork.h. */
static void nic_close_descriptors(struct nic_xdp *nic)
{
	int repair_fd;

	pthread_mutex_lock(&nic->lock);
	repair_fd = atomic_exchange(&nic->repair_fd, -1);
	nic_xdp_window_put(nic->window);
	nic->window = NULL;
	xdp_owner_destroy(nic->owner);
	nic->owner = NULL;
	vmad_client_close(nic->vmad);
	vmad_client_close(nic->old_vmad);
	nic->vmad = nic->old_vmad = NULL;
	nic_fd_close_and_forget(&nic->right_fd);
	nic_fd_close_and_forget(&repair_fd);
	nic_fd_close_and_forget(&nic->wake_fd);
	nic_fd_close_and_forget(&nic->dead_fd);
	pthread_mutex_unlock(&nic->lock);
}

void nic_xdp_free(struct nic_xdp *nic)
{
	nic_close_descriptors(nic);
	nic_fork_unregister(&nic->forked);
	pthread_cond_destroy(&nic->vmad_found_cond);
	pthread_mutex_destroy(&nic->events);
	pthread_mutex_destroy(&nic->lock);
	pthread_mutex_destroy(&nic->repair_lock);
	free(nic->stats_dir);
	free(nic->vmad_path);
	free(nic);
}

static int xdp_open(const char *name, const struct vma_nic_attr *attr, struct vma_nic **out)
{
	struct nic_xdp *nic = calloc(1, sizeof(*nic));
	pthread_condattr_t clock;
	int rc;

	if (nic == NULL)
		return -ENOMEM;
	nic->base.ops = &vma_nic_xdp_ops;
	nic->base.arena = attr->arena;
	nic->kind = attr->owner;
	nic->stats = attr->stats;
	nic->right_fd = nic->wake_fd = nic->dead_fd = -1;
	nic->window_bytes = attr->window_bytes;
	nic->huge_pages = attr->huge_pages;
	nic->caches = attr->caches;
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&nic->vmad_found_cond, &clock);
	pthread_condattr_destroy(&clock);
	pthread_mutex_init(&nic->events, NULL);
	nic_fork_lock_init(&nic->lock);
	pthread_mutex_init(&nic->repair_lock, NULL);
	atomic_store(&nic->repair_fd, -1);
	nic->connecting.lock = &nic->lock;
	nic->fork_guard = nic_get_fork_detection_page();
	nic->forked = (struct nic_fork_entry){.lock = &nic->lock, .give_up = nic_xdp_close_in_child};
	nic_fork_register(&nic->forked);
	pthread_mutex_lock(&nic->lock);
	nic->wake_fd = nic_fd_move_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	nic->dead_fd = nic_fd_move_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); /* sendto() on it: ENOTSOCK */
	rc = nic->wake_fd < 0 || nic->dead_fd < 0 ? -errno : 0;
	pthread_mutex_unlock(&nic->lock);
	if (rc == 0 && nic->fork_guard == NULL)
		rc = -ENOMEM;
	if (rc < 0)
		log_nic_open_failure(name, rc);
	if (rc == 0 && attr->arena->frame_shift != XDP_FRAME_SHIFT) {
		vma_log_error("xdp: %s: needs an arena with frames of %u bytes", name, 1u << XDP_FRAME_SHIFT);
		rc = -EINVAL;
	}
	if (rc == 0)
		rc = xdp_client_read_interface(nic, name);
	if (rc == 0)
		rc = nic->kind == VMA_NIC_OWNER_SELF ? nic_open_own_owner(nic, attr) : nic_open_by_vmad(nic, attr);
	if (rc == 0) {
		rc = nic_xdp_thread_start(nic);
		if (rc < 0)
			log_nic_open_failure(name, rc);
	}
	if (rc < 0) {
		nic_xdp_free(nic);
		return rc;
	}
	*out = &nic->base;
	return 0;
}

/* The thread frees the nic if a buffer is still out: when the last one has been put. */
static void xdp_close(struct vma_nic *base)
{
	struct nic_xdp *nic = nic_xdp_of_base(base);
	const pthread_t thread = nic->thread;
	bool join;

	if (!nic_xdp_opened_by_this_process(nic))
		return; /* in a child: its parent's, and closed already */
	pthread_mutex_lock(&nic->lock);
	nic_xdp_return_slots_of_done_leases(nic);
	join = nic->leases == NULL;
	nic->joined = join;
	atomic_store(&nic->closing, true);
	nic_xdp_thread_wake(nic); /* within the lock: after it, the nic may be gone */
	pthread_mutex_unlock(&nic->lock);
	if (!join) {
		pthread_detach(thread);
		return;
	}
	pthread_join(thread, NULL);
	nic_xdp_free(nic);
}

/* ---- queue pairs ---- */

static void xdp_client_free_qp(struct xdp_qp *qp)
{
	while (qp->old_rings != NULL) {
		struct xdp_replaced_rx_ring *old = qp->old_rings;

		qp->old_rings = old->next;
		xdp_ring_unmap(&old->ring);
		free(old);
	}
	if (qp->base.member != NULL)
		munmap(qp->base.member, sizeof(*qp->base.member));
	nic_xdp_flows_fini(&qp->flows);
	vma_bufpool_release_places(qp->base.arena, &qp->base.tx_pool);
	vma_stats_block_free(qp->nic->stats, qp->stats);
	if (qp->epoll_fd >= 0)
		nic_fd_close(qp->epoll_fd);
	if (qp->wake_fd >= 0)
		nic_fd_close(qp->wake_fd);
	free(qp);
}

static int qp_open_fds(struct xdp_qp *qp)
{
	struct epoll_event event = {.events = EPOLLIN};

	qp->epoll_fd = nic_fd_move_high(os_epoll_create());
	qp->wake_fd = nic_fd_move_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (qp->epoll_fd < 0 || qp->wake_fd < 0 || os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_ADD, qp->wake_fd, &event) < 0)
		return -errno;
	return 0;
}

static int qp_rent_and_link(struct xdp_qp *qp)
{
	struct nic_xdp *nic = qp->nic;
	int rc;

	pthread_mutex_lock(&nic->events);
	pthread_mutex_lock(&nic->lock);
	rc = nic_xdp_rent(qp);
	if (rc == 0) {
		qp->next = nic->qps;
		nic->qps = qp;
	}
	pthread_mutex_unlock(&nic->lock);
	pthread_mutex_unlock(&nic->events);
	return rc;
}

/* Without `events`, which the nic's thread needs for that. */
static bool nic_open_await_vmad(struct nic_xdp *nic)
{
	bool is_there;

	pthread_mutex_lock(&nic->lock);
	is_there = nic_xdp_await_vmad(nic);
	pthread_mutex_unlock(&nic->lock);
	return is_there;
}

static int xdp_qp_create(struct vma_nic *base, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out)
{
	struct nic_xdp *nic = nic_xdp_of_base(base);
	struct xdp_qp *qp;
	int rc;

	if (!nic_xdp_opened_by_this_process(nic))
		return -ENODEV;
	qp = aligned_alloc(_Alignof(struct xdp_qp), sizeof(*qp));
	if (qp == NULL)
		return -ENOMEM;
	memset(qp, 0, sizeof(*qp));
	qp->base.ops = base->ops;
	qp->base.nic = base;
	qp->base.arena = base->arena;
	qp->nic = nic;
	qp->fork_guard = nic->fork_guard;
	qp->attr = *attr;
	snprintf(qp->name, sizeof(qp->name), "%.60s", attr->name != NULL ? attr->name : base->info.name);
	qp->attr.name = qp->name;
	rc = qp_open_fds(qp);
	qp->stats = vma_stats_block_alloc(nic->stats, VMA_STATS_TYPE_NIC, qp->name);
	if (rc == 0)
		rc = qp_rent_and_link(qp);
	if ((rc == -EPIPE || rc == -EAGAIN) && nic_open_await_vmad(nic))
		rc = qp_rent_and_link(qp);
	nic_xdp_thread_wake(nic); /* as after flow_del */
	if (rc < 0) {
		xdp_client_free_qp(qp);
		return rc;
	}
	*out = &qp->base;
	return 0;
}

static void xdp_qp_destroy(struct vma_nic_qp *base)
{
	struct xdp_qp *qp = xdp_qp_of(base), **place;
	struct nic_xdp *nic = qp->nic;

	if (!nic_xdp_opened_by_this_process(nic))
		return;
	pthread_mutex_lock(&nic->events);
	pthread_mutex_lock(&nic->lock);
	for (place = &nic->qps; *place != qp; place = &(*place)->next)
		;
	*place = qp->next;
	nic_xdp_unrent(qp);
	pthread_mutex_unlock(&nic->lock);
	pthread_mutex_unlock(&nic->events);
	nic_xdp_thread_wake(nic); /* as after flow_del */
	xdp_client_free_qp(qp);
}

/*
 * Somebody may be about to look at the old ring's index (nic_xdp_rx_is_empty). Without memory for a note the mapping
 * stays for ever: a few pages of address space.
 */
static void qp_keep_old_rx_ring(struct xdp_qp *qp, struct xdp_ring *ring)
{
	struct xdp_replaced_rx_ring *old = malloc(sizeof(*old));

	if (old != NULL) {
		*old = (struct xdp_replaced_rx_ring){.next = qp->old_rings, .ring = *ring};
		qp->old_rings = old;
	}
	*ring = (struct xdp_ring){0};
}

/*
 * Who went to sleep before, or while the queue pair was lost, sleeps on: the wake-up for the rebind is over before such
 * a thread may have run. So the new sockets join the epoll set here, not at an arm that nobody may ever call. Not lost
 * any more, and nic->lock keeps it so.
 */
static void qp_epoll_add_queues_after_rebind(struct xdp_qp *qp)
{
	for (uint32_t queue = 0; queue < qp->queues && qp->armed; queue++)
		if (nic_xdp_add_to_epoll(qp, &qp->port[queue], false) < 0)
			vma_log_error("%s: its socket cannot be slept on: error %d", qp->name, errno);
}

/* Whatever comes of a rebind: where it failed, the nic's thread writes again with its next reminder, and until then
 * nobody who sleeps on the queue pair's fd is to find it ready. */
static void qp_drain_wake(struct xdp_qp *qp)
{
	uint64_t drained;

	if (os_read(qp->wake_fd, &drained, sizeof(drained)) < 0 && errno != EAGAIN)
		vma_log_debug("xdp: %s: eventfd: error %d", qp->name, errno);
}

/* New mappings and pools first, so that nobody ever sees a queue pair without; then the old ones go. */
static int xdp_qp_rebind(struct vma_nic_qp *base)
{
	struct xdp_qp *qp = xdp_qp_of(base), old;
	struct nic_xdp *nic = qp->nic;
	int rc = 0;

	if (!nic_xdp_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	if (!vma_nic_qp_lost(base))
		goto out;
	qp_drain_wake(qp);
	memcpy(&old, qp, sizeof(old));
	rc = nic->vmad == NULL ? -EAGAIN : nic_xdp_rent(qp);
	if (rc < 0) {
		vma_log_debug("xdp: %s: not rebound yet: error %d", qp->name, -rc);
		rc = -EAGAIN;
		goto out;
	}
	qp_keep_old_rx_ring(qp, &old.port[0].rx);
	nic_xdp_unrent(&old);
	nic_xdp_flows_restore(qp);
	atomic_store_explicit(&base->lost, false, memory_order_release);
	qp_epoll_add_queues_after_rebind(qp);
	vma_log_info("%s: offloaded again", qp->name);
out:
	pthread_mutex_unlock(&nic->lock);
	if (rc == 0)
		nic_xdp_thread_wake(nic); /* it reports flows that could not be had again */
	return rc;
}

static uint64_t xdp_now_ns(const struct vma_nic *nic)
{
	(void)nic;
	return os_now_ns();
}

const struct vma_nic_ops vma_nic_xdp_ops = {
        .name = "xdp",
        .open = xdp_open,
        .look = nic_xdp_probe,
        .close = xdp_close,
        .qp_create = xdp_qp_create,
        .qp_destroy = xdp_qp_destroy,
        .qp_rebind = xdp_qp_rebind,
        .flow_add = nic_xdp_flow_add,
        .flow_del = nic_xdp_flow_del,
        .flow_move = nic_xdp_flow_move,
        .flow_retire = nic_xdp_flow_stop_new_connections,
        .port_is_named = nic_xdp_port_has_rule,
        .is_alone = nic_xdp_qp_is_only_tenant,
        .minisock_export = nic_xdp_minisock_export,
        .post_rx = nic_xdp_post_rx,
        .poll_rx = nic_xdp_poll_rx,
        .rx_is_empty = nic_xdp_rx_is_empty,
        .tx = nic_xdp_tx,
        .kick = nic_xdp_kick,
        .reap_tx = nic_xdp_reap_tx,
        .tx_is_idle = nic_xdp_tx_is_idle,
        .arm = nic_xdp_arm,
        .arm_next = nic_xdp_arm_edge_triggered,
        .rx_waiting = nic_xdp_rx_waiting,
        .unarm = nic_xdp_unarm,
        .fd = nic_xdp_fd,
        .now_ns = xdp_now_ns,
};
