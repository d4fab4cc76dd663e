/*
 * verbs - the backend for interfaces with an RDMA device: open, close, queue pairs and their rebind.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/nic_reinject.h>

#include "../backends.h"
#include "../os.h"
#include "mlx5.h"
#include "verbs.h"

static struct nic_verbs *verbs_nic_of(struct vma_nic *base)
{
	return (struct nic_verbs *)base;
}

/* ---- the interface ---- */

struct interface_facts {
	unsigned ifindex;
	uint8_t mac[6];
	uint32_t mtu;
};

/* 0 or -errno; then some of them may be missing. */
static int interface_ask(int fd, const char *name, struct interface_facts *facts)
{
	struct ifreq req = {0};

	snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
	if (os_ioctl(fd, SIOCGIFINDEX, &req) < 0)
		return -ENODEV;
	facts->ifindex = (unsigned)req.ifr_ifindex;
	if (os_ioctl(fd, SIOCGIFHWADDR, &req) < 0)
		return -errno;
	memcpy(facts->mac, req.ifr_hwaddr.sa_data, sizeof(facts->mac));
	if (os_ioctl(fd, SIOCGIFMTU, &req) < 0)
		return -errno;
	facts->mtu = (uint32_t)req.ifr_mtu;
	return 0;
}

/* On failure the nic keeps all that it knows: other queue pairs go on by it. Lock held. The raw socket will
 * do, if there is one, as a process may have no free descriptor. */
static int nic_read_interface(struct nic_verbs *nic)
{
	const int fd = nic->raw_fd >= 0 ? nic->raw_fd : os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct interface_facts facts = {.ifindex = 0};
	int rc;

	if (fd < 0)
		return -errno;
	rc = interface_ask(fd, nic->name, &facts);
	if (fd != nic->raw_fd)
		os_close(fd);
	if (rc < 0)
		return rc;
	nic->base.info.ifindex = facts.ifindex;
	nic->base.info.mtu = facts.mtu;
	memcpy(nic->mac, facts.mac, sizeof(nic->mac));
	return 0;
}

static uint32_t longest_frame(const struct vma_nic_info *info)
{
	return info->mtu + VERBS_L2_BYTES;
}

/* Buffers for the longest received packet, with a tag. */
static uint32_t bufs_per_rx_packet(const struct nic_verbs *nic)
{
	const uint32_t frame = 1u << nic->base.arena->frame_shift;

	return (longest_frame(&nic->base.info) + VERBS_TAG_BYTES + frame - 1) / frame;
}

static void nic_set_info_from_device(struct nic_verbs *nic)
{
	const struct verbs_limits *limits = &nic->device->limits;
	struct vma_nic_info *info = &nic->base.info;

	info->device_queues = 1;
	info->tx_segs_max = limits->sge_max;
	info->tso_max_bytes = limits->tso_max;
	info->caps = (limits->sge_max > 1 ? VMA_NIC_CAP_SG : 0) | (limits->tso_max != 0 ? VMA_NIC_CAP_TSO : 0) |
	             (limits->has_checksum ? VMA_NIC_CAP_TX_CSUM | VMA_NIC_CAP_RX_CSUM : 0) |
	             (limits->has_moderation ? VMA_NIC_CAP_MODERATION : 0) | VMA_NIC_CAP_TO_KERNEL |
	             (limits->pace_max != 0 ? VMA_NIC_CAP_PACING : 0) |
	             (nic->stamps != VERBS_STAMPS_NONE ? VMA_NIC_CAP_HW_TIMESTAMP : 0);
}

/* ---- open and close ---- */

static size_t lkeys_bytes(const struct nic_verbs *nic)
{
	return ((nic->base.arena->capacity >> VERBS_UNIT_SHIFT) + 1) * sizeof(*nic->lkeys);
}

/* Copies of any descriptor. Those that cannot be had now are asked for again by the nic's thread. */
void verbs_nic_fill_spare_fds(struct nic_verbs *nic)
{
	for (unsigned i = 0; i < VERBS_SPARE_FDS; i++)
		if (nic->spare_fds[i] < 0)
			nic->spare_fds[i] = nic_fd_dup(nic->wake_fd);
}

static void nic_free_spare_fds(struct nic_verbs *nic)
{
	for (unsigned i = 0; i < VERBS_SPARE_FDS; i++)
		nic_fd_close_and_forget(&nic->spare_fds[i]);
}

/*
 * Under the lock and before the nic leaves the list of those that a child gives up: see ../fork.h. Otherwise a child
 * would keep names of claims.
 */
static void nic_close_descriptors(struct nic_verbs *nic)
{
	pthread_mutex_lock(&nic->lock);
	verbs_flows_fini(nic);
	verbs_peers_disconnect_from_vmad(nic);
	verbs_device_put(nic->device);
	nic->device = NULL;
	nic_fd_close_and_forget(&nic->wake_fd);
	nic_fd_close_and_forget(&nic->claims_fd);
	nic_fd_close_and_forget(&nic->raw_fd);
	nic_fd_close_and_forget(&nic->diag_fd);
	nic_free_spare_fds(nic);
	pthread_mutex_unlock(&nic->lock);
}

static void free_nic(struct nic_verbs *nic)
{
	nic_close_descriptors(nic);
	nic_fork_unregister(&nic->forked);
	pthread_mutex_destroy(&nic->events);
	pthread_mutex_destroy(&nic->lock);
	verbs_wipeonfork_free(nic->lkeys, 2 * lkeys_bytes(nic));
	vma_bufpool_retire(nic->empty_pool, NULL, NULL);
	free(nic->tcp_port_flows);
	free(nic);
}

static size_t send_table_bytes(const struct verbs_qp *qp)
{
	return ((size_t)qp->sent_mask + 1) * sizeof(*qp->sent);
}

static void verbs_nic_close_in_child(struct nic_fork_entry *forked)
{
	struct nic_verbs *nic = (struct nic_verbs *)((char *)forked - offsetof(struct nic_verbs, forked));
	const struct verbs_device *closed = nic->device;

	if (closed != NULL)
		verbs_device_close_in_child(closed);
	for (struct verbs_qp *qp = nic->qps; qp != NULL; qp = qp->next) {
		if (qp->queue.channel != NULL)
			os_close(qp->queue.channel->fd);
		if (qp->before.channel != NULL)
			os_close(qp->before.channel->fd);
		if (qp->queue.device != NULL && qp->queue.device != closed) { /* of before a fatal error */
			closed = qp->queue.device;
			verbs_device_close_in_child(closed);
		}
		if (qp->before.device != NULL && qp->before.device != closed && qp->before.device != nic->device) {
			closed = qp->before.device;
			verbs_device_close_in_child(closed);
		}
		os_close(qp->epoll_fd);
		os_close(qp->wake_fd);
		os_close(qp->addrs.fd);
		if (nic->wipe_in_child && qp->sent != NULL)
			memset(qp->sent, 0, send_table_bytes(qp));
	}
	if (nic->wipe_in_child)
		memset((void *)nic->lkeys, 0, lkeys_bytes(nic));
	verbs_flows_close_claims_in_child(nic);
	verbs_peers_child_close(nic);
	for (unsigned i = 0; i < VERBS_SPARE_FDS; i++)
		os_close(nic->spare_fds[i]);
	os_close(nic->claims_fd);
	os_close(nic->raw_fd);
	if (nic->diag_fd >= 0)
		os_close(nic->diag_fd);
	os_close(nic->wake_fd);
}

/* -ENODEV: the interface has no RDMA device, which is no reason for a line. */
static int open_device(struct nic_verbs *nic, const struct verbs_device_port *place)
{
	int rc = verbs_device_open(nic->name, place, ++nic->generations, &nic->device);

	if (rc < 0)
		return rc;
	if (nic->mlx5_direct)
		mlx5_enable_direct_rings_if_supported(nic->device, nic->name);
	if (bufs_per_rx_packet(nic) <= nic->device->limits.sge_max) {
		verbs_nic_init_timestamps_from_device(nic);
		nic_set_info_from_device(nic);
		return 0;
	}
	vma_log_once(VMA_LOG_WARN,
	             "%s: RDMA device %s is not used: its MTU of %u takes %u buffers, and it has %u for a packet",
	             nic->name, place->device, nic->base.info.mtu, bufs_per_rx_packet(nic),
	             nic->device->limits.sge_max);
	return -EOPNOTSUPP;
}

/* After the device, which says what it means to lack the capability. */
static int nic_open_reinject_socket(struct nic_verbs *nic)
{
	int fd = vma_reinject_open_raw_socket(false);

	if (fd >= 0)
		fd = nic->raw_fd = nic_fd_move_high(fd);
	if (fd < 0)
		vma_log_once(VMA_LOG_WARN, "%s: it cannot be opened: a raw socket: %s", nic->name, strerror(-fd));
	return fd < 0 ? fd : 0;
}

/* At open, as a queue pair that has lost its memory is no place to find out that there is none. */
static int nic_create_empty_pool(struct nic_verbs *nic)
{
	const struct vma_bufpool_attr attr = {.arena = nic->base.arena, .name = "verbs none", .stats = nic->stats};

	return vma_bufpool_create(&attr, &nic->empty_pool);
}

/* Lock held: no child has a part of what is opened here. */
static int nic_open_descriptors(struct nic_verbs *nic, const struct verbs_device_port *place, bool unwatched)
{
	int rc = nic_read_interface(nic);
	bool is_wiped = true;

	if (rc < 0) {
		vma_log_once(VMA_LOG_ERROR, "verbs: interface \"%s\": %s", nic->name, strerror(-rc));
		return rc;
	}
	snprintf(nic->base.info.name, sizeof(nic->base.info.name), "%s", nic->name);
	memcpy(nic->base.info.mac, nic->mac, sizeof(nic->mac));
	nic->wake_fd = nic_fd_move_high(os_eventfd());
	nic->claims_fd = nic_fd_move_high(os_epoll_create());
	nic->lkeys = verbs_wipeonfork_alloc(2 * lkeys_bytes(nic), &is_wiped);
	nic->wipe_in_child = !is_wiped;
	rc = nic_create_empty_pool(nic);
	if (nic->wake_fd < 0 || nic->claims_fd < 0)
		rc = -EMFILE;
	else if (nic->fork_guard == NULL || nic->lkeys == NULL)
		rc = -ENOMEM;
	if (rc < 0) {
		vma_log_once(VMA_LOG_WARN, "%s: it cannot be opened: %s", nic->name, strerror(-rc));
		return rc;
	}
	nic->no_lkeys = nic->lkeys + lkeys_bytes(nic) / sizeof(*nic->lkeys);
	rc = open_device(nic, place);
	if (rc == 0)
		rc = nic_open_reinject_socket(nic);
	if (rc < 0)
		return rc;
	verbs_nic_fill_spare_fds(nic);
	verbs_peers_get_vmad_permission(nic, unwatched);
	return 0;
}

/* -ENODEV and the like, with a line unless `silent` says that this is no reason for one: xdp comes next, and if it lacks
 * the same, it says so. */
static int nic_find_device(struct nic_verbs *nic, const char *name, bool silent, struct verbs_device_port *place)
{
	int rc;

	verbs_vlan_lower_interface(name, nic->name);
	rc = verbs_find_device_of_interface(verbs_sysfs_path(), nic->name, place);
	if (rc == -EXDEV)
		vma_log_once(VMA_LOG_WARN,
		             "%s: RDMA devices are not used: it is a bond that no card carries itself (LAG)",
		             nic->name);
	else if (rc < 0 && silent)
		vma_log_debug("%s: no RDMA device: %s", name, strerror(-rc));
	else if (rc < 0 && rc != -ENODEV)
		vma_log_once(VMA_LOG_WARN, "%s: RDMA devices are not used: they cannot be looked for: %s", name,
		             strerror(-rc));
	else if (rc < 0)
		vma_log_once(VMA_LOG_WARN, "%s: no RDMA device has this interface", name);
	return rc;
}

/* The page first: in a copy that nobody announced it gives up all that is registered. */
static int open_nic(struct nic_verbs *nic, const char *name, bool silent, bool unwatched)
{
	struct verbs_device_port place;
	int rc;

	nic->fork_guard = nic_get_fork_detection_page();
	nic->forked = (struct nic_fork_entry){.lock = &nic->lock, .give_up = verbs_nic_close_in_child};
	nic_fork_register(&nic->forked);
	pthread_mutex_lock(&nic->lock);
	rc = nic_find_device(nic, name, silent, &place);
	if (rc == 0)
		rc = nic_open_descriptors(nic, &place, unwatched);
	pthread_mutex_unlock(&nic->lock);
	if (rc == 0)
		rc = verbs_thread_start(nic);
	if (rc == 0)
		vma_log_info("%s: by RDMA device %s, port %u", nic->name, place.device, place.port);
	return rc;
}

int nic_verbs_open(const char *name, const struct vma_nic_attr *attr, bool silent, struct vma_nic **out)
{
	struct nic_verbs *nic;
	int rc;

	/* Before anything else: nearly all interfaces have no such device, and are to pay nothing for the question. */
	if (strlen(name) >= IF_NAMESIZE)
		return -ENODEV;
	if (silent && !verbs_has_any_device(verbs_sysfs_path()))
		return -ENODEV;
	nic = calloc(1, sizeof(*nic));
	if (nic == NULL)
		return -ENOMEM;
	nic->base.ops = &vma_nic_verbs_ops;
	nic->base.arena = attr->arena;
	nic->stats = attr->stats;
	nic->caches = attr->caches;
	nic->conversion = attr->hw_ts_conversion;
	nic->mlx5_direct = attr->mlx5_direct;
	if (attr->tcp_address_flows)
		nic->tcp_port_flows = calloc(65536, sizeof(*nic->tcp_port_flows)); /* NULL: there are none */
	nic->frames_max = verbs_frames_max(attr->arena);
	nic->wake_fd = nic->claims_fd = nic->raw_fd = nic->diag_fd = nic->peers.right_fd = -1;
	for (unsigned i = 0; i < VERBS_SPARE_FDS; i++)
		nic->spare_fds[i] = -1;
	pthread_mutex_init(&nic->events, NULL);
	nic_fork_lock_init(&nic->lock);
	nic->peers.connecting.lock = &nic->lock;
	rc = open_nic(nic, name, silent, attr->unwatched);
	if (rc < 0) {
		free_nic(nic);
		return rc;
	}
	*out = &nic->base;
	return 0;
}

static int verbs_open(const char *name, const struct vma_nic_attr *attr, struct vma_nic **out)
{
	return nic_verbs_open(name, attr, false, out);
}

/* A process that is not admitted finds out when it makes its first queue pair, as open does. */
static int nic_verbs_probe(const char *name, const struct vma_nic_attr *attr)
{
	char lower[IF_NAMESIZE];
	struct verbs_device_port place;
	int rc = -ENODEV;

	(void)attr;
	if (strlen(name) < IF_NAMESIZE) {
		verbs_vlan_lower_interface(name, lower);
		rc = verbs_find_device_of_interface(verbs_sysfs_path(), lower, &place);
	}
	if (rc == 0 && verbs_lib() == NULL)
		rc = -EOPNOTSUPP;
	return rc == 0 ? VMA_NIC_MAY_START : rc;
}

static void verbs_close(struct vma_nic *base)
{
	struct nic_verbs *nic = verbs_nic_of(base);

	if (!verbs_opened_by_this_process(nic))
		return; /* in a child: its parent's, and closed already */
	atomic_store(&nic->closing, true);
	verbs_thread_wake(nic);
	pthread_join(nic->thread, NULL);
	free_nic(nic);
}

/* ---- a binding: device objects, memory, and what the hot path needs of them; lock held ---- */

static int qp_alloc_memory(struct verbs_qp *qp, const struct verbs_queue_sizes *plan)
{
	struct nic_verbs *nic = qp->nic;
	int rc = verbs_pool_create(nic, qp->queue.device, "verbs rx", NULL, plan->rx_frames, &qp->rx_memory);

	if (rc == 0)
		rc = verbs_pool_create(nic, qp->queue.device, "verbs tx", &qp->base.tx_pool, plan->tx_frames,
		                       &qp->tx_memory);
	return rc;
}

/* If its rings cannot be driven, it is made anew, for libibverbs. 0 or -errno. */
static int qp_open_mlx5_rings_or_fall_back(struct verbs_qp *qp, const struct verbs_queue_attr *attr, const char **what)
{
	struct verbs_device *device = qp->nic->device;
	const char *why;

	if (mlx5_queue_open_rings(&qp->queue, attr, &why) == 0) {
		vma_log_debug("%s: RDMA device %s: its rings are driven directly", qp->name, device->place.device);
		return 0;
	}
	vma_log_once(VMA_LOG_WARN, "%s: VMA_MLX5_DIRECT has no effect on RDMA device %s: %s", qp->nic->name,
	             device->place.device, why);
	verbs_queue_close(&qp->queue);
	return verbs_queue_open(device, attr, &qp->queue, what);
}

static int qp_open_queue(struct verbs_qp *qp, const struct verbs_queue_sizes *plan, const char **what)
{
	struct verbs_device *device = qp->nic->device;
	const struct verbs_queue_attr attr = {
	        .rx_packets = plan->rx_depth / qp->rx_bufs,
	        .rx_sges = qp->rx_bufs,
	        .tx_packets = plan->tx_depth,
	        .tx_sges = device->limits.sge_max,
	        .inline_bytes = qp->attr.tx_inline,
	        .tso = device->limits.tso_max != 0,
	        .rx_stamps = qp->nic->stamps,
	};

	int rc = verbs_queue_open(device, &attr, &qp->queue, what);

	return rc == 0 && qp->nic->mlx5_direct && device->mlx5 != NULL
	               ? qp_open_mlx5_rings_or_fall_back(qp, &attr, what)
	               : rc;
}

static int qp_alloc_send_places(struct verbs_qp *qp, uint32_t tx_depth)
{
	uint32_t places = VERBS_DEPTH_MIN;
	bool is_wiped = true;

	while (places < tx_depth)
		places *= 2;
	qp->sent_mask = places - 1;
	qp->sent = verbs_wipeonfork_alloc(send_table_bytes(qp), &is_wiped);
	return qp->sent != NULL ? 0 : -ENOMEM;
}

static void qp_unwatch_completion_channel(struct verbs_qp *qp)
{
	if (qp->rx_watched)
		os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_DEL, qp->queue.channel->fd, NULL);
	qp->rx_watched = false;
}

static void qp_name_pools(struct verbs_qp *qp, struct vma_bufpool *rx, struct vma_bufpool *tx)
{
	atomic_store_explicit(&qp->base.rx_pool, rx, memory_order_release);
	atomic_store_explicit(&qp->base.tx_pool, tx, memory_order_release);
}

/*
 * What the device had goes home; the pools end when their last buffer has been put. Their places may be other pools' at
 * once, and the next binding may be long in coming. So `base` names one that never has a buffer, before they end.
 */
static void qp_free_memory(struct verbs_qp *qp, const struct verbs_device *device)
{
	qp_name_pools(qp, qp->nic->empty_pool, qp->nic->empty_pool);
	verbs_data_reclaim_bufs(qp);
	verbs_pool_deregister_and_retire(qp->nic, device, qp->rx_memory);
	verbs_pool_deregister_and_retire(qp->nic, device, qp->tx_memory);
	qp->rx_memory = qp->tx_memory = NULL;
	verbs_wipeonfork_free(qp->sent, send_table_bytes(qp));
	qp->sent = NULL;
}

static void qp_close_queue_and_free_memory(struct verbs_qp *qp)
{
	struct verbs_device *device = qp->queue.device;

	if (device == NULL)
		return;
	device->refs++;
	qp_unwatch_completion_channel(qp);
	verbs_queue_close(&qp->queue);
	qp_free_memory(qp, device);
	verbs_device_put(device);
}

static void qp_unbind(struct verbs_qp *qp)
{
	verbs_flows_destroy_rules(qp);
	qp_close_queue_and_free_memory(qp);
	verbs_queue_close(&qp->before);
}

/* After qp_close_queue_and_free_memory, or of a new queue pair. On failure it has nothing. */
static int qp_bind(struct verbs_qp *qp)
{
	static const char memory[] = "memory";
	struct nic_verbs *nic = qp->nic;
	const char *what = memory;
	struct verbs_queue_sizes_wanted in = {
	        .frames_left = nic->frames_max > nic->frames ? nic->frames_max - nic->frames : 0,
	        .rx_wre = qp->attr.rx_wre,
	        .tx_wre = qp->attr.tx_wre,
	        .wr_max = nic->device->limits.wr_max,
	        .rx_bufs = bufs_per_rx_packet(nic),
	};
	struct verbs_queue_sizes plan;
	bool is_told = false; /* memory.c says it of the interface; or the line for the lost queue does */
	int rc = verbs_compute_queue_sizes(&in, &plan) ? 0 : -ENOMEM;

	/* The MTU may have grown since the device was opened: a packet has no more pieces than there are places for. */
	if (in.rx_bufs > nic->device->limits.sge_max) {
		rc = -EOPNOTSUPP;
		what = "receives for its MTU";
	}
	qp->rx_bufs = in.rx_bufs;
	atomic_store(&qp->broken, false); /* what is noted from here on is of this binding: mark_qp_lost */
	if (rc == 0)
		rc = qp_open_queue(qp, &plan, &what);
	if (rc == 0 && qp->pace_kbps != 0 && verbs_queue_set_rate_limit(&qp->queue, qp->pace_kbps) != 0 &&
	    !verbs_device_failure_explains_error(nic, nic->device)) {
		/* A device that has changed may have no pacing, or other limits. */
		vma_log_once(VMA_LOG_WARN, "%s: RDMA device %s paces this queue no longer", qp->name,
		             nic->device->place.device);
		qp->pace_kbps = 0;
	}
	if (rc == 0) {
		what = memory;
		rc = qp_alloc_memory(qp, &plan);
		is_told = rc < 0;
	}
	if (rc == 0)
		rc = qp_alloc_send_places(qp, plan.tx_depth);
	if (rc < 0 && verbs_device_failure_explains_error(nic, nic->device)) {
		if (what == memory)
			what = "registered memory";
		is_told = vma_nic_qp_lost(&qp->base);
	}
	qp->lacks_memory = rc < 0 && what == memory;
	if (rc < 0) {
		if (!is_told)
			vma_log_once(VMA_LOG_WARN, "%s: RDMA device %s: %s: %s", qp->name, nic->device->place.device,
			             what, strerror(-rc));
		qp_close_queue_and_free_memory(qp);
		return rc;
	}
	qp->generation = nic->device->generation;
	qp->base.rx_depth = plan.rx_depth;
	qp->base.tx_depth = plan.tx_depth;
	qp->base.rx_quota = plan.rx_quota;
	qp->tx_segs_max = nic->device->limits.sge_max;
	qp->tx_longest = longest_frame(&nic->base.info);
	if (qp->tx_longest_ever < qp->tx_longest)
		qp->tx_longest_ever = qp->tx_longest;
	if (nic->base.info.inline_max < qp->queue.inline_max)
		nic->base.info.inline_max = qp->queue.inline_max;
	qp->rx_clock = nic->clock;
	qp->rx_clock.sampled = false;
	qp->rx_last = qp->rx_clock;
	verbs_qp_data_path_init(qp);
	verbs_timestamps_start_on_qp(qp);
	qp_name_pools(qp, qp->rx_memory->pool, qp->tx_memory->pool);
	return 0;
}

/* ---- queue pairs ---- */

static void free_qp(struct verbs_qp *qp)
{
	vma_bufpool_release_places(qp->base.arena, &qp->base.tx_pool);
	vma_stats_block_free(qp->nic->stats, qp->stats);
	if (qp->epoll_fd >= 0)
		nic_fd_close(qp->epoll_fd);
	if (qp->wake_fd >= 0)
		nic_fd_close(qp->wake_fd);
	if (qp->addrs.fd >= 0)
		nic_fd_close(qp->addrs.fd);
	free(qp);
}

static int qp_open_epoll_and_wake_fds(struct verbs_qp *qp)
{
	struct epoll_event event = {.events = EPOLLIN};

	qp->epoll_fd = nic_fd_move_high(os_epoll_create());
	qp->wake_fd = nic_fd_move_high(os_eventfd());
	vma_reinject_open_netlink_socket(&qp->addrs);
	qp->addrs.fd = nic_fd_move_high(qp->addrs.fd);
	if (qp->addrs.fd < 0 || qp->epoll_fd < 0 || qp->wake_fd < 0 ||
	    os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_ADD, qp->wake_fd, &event) < 0)
		return -errno;
	return 0;
}

/* All with the lock, see ../fork.h; on failure the queue pair has ended. */
static int qp_open_bind_and_link(struct verbs_qp *qp)
{
	struct nic_verbs *nic = qp->nic;
	int rc;

	pthread_mutex_lock(&nic->events);
	pthread_mutex_lock(&nic->lock);
	rc = nic->device->broken ? -EAGAIN : qp_open_epoll_and_wake_fds(qp);
	if (rc == 0)
		rc = qp_bind(qp);
	if (rc == 0) {
		qp->next = nic->qps;
		nic->qps = qp;
	} else {
		free_qp(qp);
	}
	pthread_mutex_unlock(&nic->lock);
	pthread_mutex_unlock(&nic->events);
	return rc;
}

static int verbs_qp_create(struct vma_nic *base, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out)
{
	struct nic_verbs *nic = verbs_nic_of(base);
	struct verbs_qp *qp;
	int rc;

	if (!verbs_opened_by_this_process(nic))
		return -ENODEV;
	qp = aligned_alloc(_Alignof(struct verbs_qp), sizeof(*qp));
	if (qp == NULL)
		return -ENOMEM;
	memset(qp, 0, sizeof(*qp));
	qp->base.ops = nic->mlx5_direct ? &vma_nic_mlx5_ops : base->ops;
	qp->base.nic = base;
	qp->base.arena = base->arena;
	qp->nic = nic;
	qp->fork_guard = nic->fork_guard;
	qp->attr = *attr;
	snprintf(qp->name, sizeof(qp->name), "%.60s", attr->name != NULL ? attr->name : base->info.name);
	qp->attr.name = qp->name;
	qp->epoll_fd = qp->wake_fd = qp->addrs.fd = -1;
	qp->stats = vma_stats_block_alloc(nic->stats, VMA_STATS_TYPE_NIC, qp->name);
	rc = qp_open_bind_and_link(qp);
	if (rc < 0)
		return rc;
	verbs_thread_wake(nic); /* for the windows that are still to come */
	*out = &qp->base;
	return 0;
}

static void verbs_qp_destroy(struct vma_nic_qp *base)
{
	struct verbs_qp *qp = verbs_qp_of(base), **place;
	struct nic_verbs *nic = qp->nic;

	if (!verbs_opened_by_this_process(nic))
		return;
	pthread_mutex_lock(&nic->events);
	pthread_mutex_lock(&nic->lock);
	for (place = &nic->qps; *place != qp; place = &(*place)->next)
		;
	*place = qp->next;
	verbs_flows_end_of_qp(qp);
	qp_unbind(qp);
	free_qp(qp); /* with the lock, see nic_close_descriptors */
	pthread_mutex_unlock(&nic->lock);
	pthread_mutex_unlock(&nic->events);
}

/* Of a device that has failed: another opening of it, or of the one that the interface has now. */
static int reopen_device(struct nic_verbs *nic)
{
	struct verbs_device *old = nic->device;
	struct verbs_device_port place;
	int rc = nic_read_interface(nic);

	if (rc == 0 && !old->broken)
		return 0;
	if (rc == 0)
		rc = verbs_find_device_of_interface(verbs_sysfs_path(), nic->name, &place);
	if (rc == 0)
		rc = open_device(nic, &place);
	if (rc == 0) {
		verbs_device_put(old);
		verbs_port_state_log_change(nic);
	} else if (nic->device != old) { /* opened, and of no use */
		verbs_device_put(nic->device);
		nic->device = old;
	}
	return rc;
}

/* Whatever comes of a rebind, nobody who sleeps on the queue pair's fd is to find it ready until the next reminder. */
static void drain_qp_wake_eventfd(struct verbs_qp *qp)
{
	uint64_t drained;

	if (os_read(qp->wake_fd, &drained, sizeof(drained)) < 0 && errno != EAGAIN)
		vma_log_debug("verbs: %s: eventfd: error %d", qp->name, errno);
}

static int qp_rebind_to_device(struct verbs_qp *qp)
{
	struct nic_verbs *nic = qp->nic;
	int rc = reopen_device(nic);

	nic->frames_max = verbs_frames_max(nic->base.arena); /* what was met before need not be met again */
	if (rc == 0)
		rc = qp_bind(qp);
	if (rc < 0)
		return rc;
	rc = verbs_flows_restore(qp);
	if (rc < 0)
		qp_unbind(qp);
	return rc;
}

/*
 * Of a device that works. The queue of before keeps its rules until the next one has them, and receives nothing: a
 * packet that comes meanwhile is lost, and comes again. Without a rule the kernel would reset its connection. So it
 * stays as well if there is no memory or descriptor for the next one; but not for long, see verbs_qp_give_flows_to_kernel.
 */
static int qp_rebind_keeping_old_queue(struct verbs_qp *qp)
{
	struct verbs_device *device = qp->queue.device;
	int rc;

	if (device != NULL) {
		if (device->broken)
			return -EAGAIN;
		if (!verbs_queue_stop(&qp->queue)) {
			verbs_device_failure_explains_error(qp->nic, device);
			return -EAGAIN;
		}
		qp_unwatch_completion_channel(qp);
		qp->before = qp->queue;
		qp->queue = (struct verbs_queue){0};
		qp_free_memory(qp, device);
	}
	if (qp->before.device == NULL || qp->before.device->broken)
		return -EAGAIN;
	rc = qp_rebind_to_device(qp);
	if (rc == 0)
		verbs_queue_close(&qp->before);
	return rc;
}

/* Lock held. All its flows are the kernel's; rebinds may still come to something. */
void verbs_qp_give_flows_to_kernel(struct verbs_qp *qp)
{
	verbs_flows_revoke_all_of_qp(qp);
	verbs_flows_end_revoked_rules(qp);
	verbs_queue_close(&qp->before);
}

/* However often it is tried: the time of the first failure is what counts. */
static int qp_note_failed_rebind(struct verbs_qp *qp, int rc)
{
	vma_log_debug("verbs: %s: not rebound yet: error %d", qp->name, -rc);
	if (qp->failed_ns == 0)
		qp->failed_ns = os_now_ns();
	return -EAGAIN;
}

/* Memory or a descriptor, which others may give back soon. The device itself has refused nothing. */
static bool qp_lacks_what_may_come(const struct verbs_qp *qp, int rc)
{
	return qp->lacks_memory || rc == -EMFILE || rc == -ENFILE;
}

/* If there is no room beside it, or the device has failed, the old binding ends first. */
static int qp_rebind_locked(struct verbs_qp *qp)
{
	int rc;

	drain_qp_wake_eventfd(qp);
	/* At a ring that would end here: mlx5_rx_is_empty. A look that never returns keeps the ring, and no more. */
	if (atomic_load(&qp->lookers) != 0)
		return qp_note_failed_rebind(qp, -EBUSY);
	qp->lacks_memory = false;
	rc = qp_rebind_keeping_old_queue(qp);
	if (rc < 0 && !qp_lacks_what_may_come(qp, rc)) {
		qp_unbind(qp);
		rc = qp_rebind_to_device(qp);
	}
	if (rc < 0)
		return qp_note_failed_rebind(qp, rc);
	qp->failed_ns = 0;
	vma_stats_add(&qp->stats->rebinds, 1);
	atomic_store_explicit(&qp->base.lost, false, memory_order_release);
	verbs_data_select_paths(qp);
	if (qp->rx_sleeps && verbs_rx_arm(qp) < 0)
		vma_log_error("%s: its queue cannot be slept on", qp->name);
	vma_log_debug("verbs: %s: rebound", qp->name);
	return 0;
}

/* The queue of before keeps its descriptors, and its rules, until the next one has its own. */
static int qp_rebind_with_spare_fds(struct verbs_qp *qp)
{
	int rc;

	nic_free_spare_fds(qp->nic);
	rc = qp_rebind_locked(qp);
	verbs_nic_fill_spare_fds(qp->nic);
	return rc;
}

static int verbs_qp_rebind(struct vma_nic_qp *base)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct nic_verbs *nic = qp->nic;
	int rc;

	if (!verbs_opened_by_this_process(nic))
		return -ENODEV;
	pthread_mutex_lock(&nic->lock);
	rc = vma_nic_qp_lost(base) ? qp_rebind_with_spare_fds(qp) : 0;
	pthread_mutex_unlock(&nic->lock);
	/* For windows, flows that could not be had again, another device's events. If it has failed, the thread, which often
	 * is the caller, is to keep its pause before it tries again. */
	if (rc == 0)
		verbs_thread_wake(nic);
	return rc;
}

static int verbs_set_cq_moderation(struct vma_nic_qp *base, uint32_t count, uint32_t period_usec)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct ibv_modify_cq_attr attr = {
	        .attr_mask = IBV_CQ_ATTR_MODERATE,
	        .moderate = {.cq_count = (uint16_t)(count < UINT16_MAX ? count : UINT16_MAX),
	                     .cq_period = (uint16_t)(period_usec < UINT16_MAX ? period_usec : UINT16_MAX)}};

	/* Without a lock, behind which rules are made: the queue stays until both halves are held. */
	if (!verbs_opened_by_this_process(qp->nic) || qp->queue.rx_cq == NULL)
		return -ENODEV;
	return -ibv_modify_cq(qp->queue.rx_cq, &attr);
}

static int verbs_reinject_packet_to_kernel(struct vma_nic_qp *base, const struct vma_buf *packet)
{
	struct verbs_qp *qp = verbs_qp_of(base);

	if (!verbs_opened_by_this_process(qp->nic))
		return -ENODEV;
	return vma_reinject_frame_to_kernel(qp->nic->raw_fd, &qp->addrs, base->arena, packet);
}

/* The card allows what it thinks fit for a burst: the same call for it has a minimum that is the firmware's secret. */
static int verbs_qp_set_pacing_rate(struct vma_nic_qp *base, uint64_t bytes_per_sec, uint32_t burst_bytes)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	const struct verbs_limits *limits;
	uint32_t kbps;
	int rc = 0;

	(void)burst_bytes;
	if (!verbs_opened_by_this_process(qp->nic))
		return -ENODEV;
	pthread_mutex_lock(&qp->nic->lock);
	limits = &qp->nic->device->limits;
	kbps = verbs_pace_kbps(bytes_per_sec, limits->pace_min, limits->pace_max);
	if (qp->queue.qp != NULL && !vma_nic_qp_lost(base))
		rc = verbs_queue_set_rate_limit(&qp->queue, kbps);
	if (rc != 0 && verbs_device_failure_explains_error(qp->nic, qp->queue.device))
		rc = 0;
	if (rc == 0)
		qp->pace_kbps = kbps; /* a rebind sets it again */
	pthread_mutex_unlock(&qp->nic->lock);
	return rc;
}

static uint64_t verbs_now_ns(const struct vma_nic *nic)
{
	(void)nic;
	return os_now_ns();
}

/* What the queue pairs of either have in common. */
#define VERBS_OPS                                                                                                      \
	.name = "verbs", .open = verbs_open, .look = nic_verbs_probe, .close = verbs_close,                            \
	.qp_create = verbs_qp_create, .qp_destroy = verbs_qp_destroy, .qp_rebind = verbs_qp_rebind,                    \
	.flow_add = verbs_flow_add, .flow_del = verbs_flow_del, .flow_move = verbs_flow_move,                          \
	.port_is_named = verbs_tcp_port_has_flow, .minisock_export = verbs_export_minisocks_to_vmad,                   \
	.exempt = verbs_flow_begin_kernel_exemption, .unexempt = verbs_flow_end_kernel_exemption,                      \
	.moderate = verbs_set_cq_moderation, .pace = verbs_qp_set_pacing_rate, .stamp = verbs_enable_timestamps,       \
	.tx = verbs_tx_queue_packets, .reap_tx = verbs_reap_tx, .tx_is_idle = verbs_tx_is_idle,                        \
	.arm = verbs_arm_rx_wakeup, .unarm = verbs_unarm_rx_wakeup, .rx_has_packet = verbs_rx_has_packet,              \
	.fd = verbs_qp_epoll_fd, .to_kernel = verbs_reinject_packet_to_kernel, .now_ns = verbs_now_ns

const struct vma_nic_ops vma_nic_verbs_ops = {
        VERBS_OPS,
        .post_rx = verbs_post_rx,
        .poll_rx = verbs_poll_rx,
        .kick = verbs_kick,
};

/* With VMA_MLX5_DIRECT; also while a queue pair has no rings of its own to drive. */
const struct vma_nic_ops vma_nic_mlx5_ops = {
        VERBS_OPS, .post_rx = mlx5_post_rx, .poll_rx = mlx5_poll_rx, .rx_is_empty = mlx5_rx_is_empty, .kick = mlx5_kick,
};
