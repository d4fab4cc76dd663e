/*
 * owner - the objects of which an interface has one: device, packet memory, program; and the slots that are rented from
 * it.
 */
#include <errno.h>
#include <dirent.h>
#include <linux/ethtool.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "owner.h"
#include "../xdp/shared.h"

#define SETTLE_NS 20000000ull /* after it left the maps, a socket may get packets of a NAPI poll that was under way */
#define DRAIN_TIMEOUT_NS 1000000000ull
#define KERNEL_SOCK_NS 500000000ull
#define MAC_NS 500000000ull
#define HEADERS 18 /* Ethernet and one VLAN tag */

uint64_t owner_now_ns(void)
{
	return os_now_ns();
}

/* ---- the device ---- */

static uint32_t count_receive_queues(int fd, const char *name)
{
	struct ethtool_channels channels = {.cmd = ETHTOOL_GCHANNELS};
	struct ifreq req = {0};
	uint32_t queues = 0;

	memcpy(req.ifr_name, name, IF_NAMESIZE);
	req.ifr_data = (void *)&channels;
	if (os_ioctl(fd, SIOCETHTOOL, &req) == 0)
		queues = channels.rx_count + channels.combined_count;
	return queues > 0 ? queues : 1;
}

/* Name and MTU: both may change while we own it. */
static int read_mtu(struct xdp_owner *owner)
{
	struct ifreq req = {0};
	int fd = os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc = 0;

	if (fd < 0)
		return -errno;
	if (if_indextoname(owner->ifindex, req.ifr_name) == NULL)
		rc = -ENODEV;
	else if (os_ioctl(fd, SIOCGIFMTU, &req) < 0)
		rc = -errno;
	os_close(fd);
	if (rc < 0)
		return rc;
	memcpy(owner->name, req.ifr_name, IF_NAMESIZE);
	owner->mtu = (uint32_t)req.ifr_mtu;
	return 0;
}

int owner_read_mtu_and_queue_count(struct xdp_owner *owner)
{
	int fd = os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;
	uint32_t queues;

	if (fd < 0)
		return -errno;
	rc = read_mtu(owner);
	if (rc < 0)
		goto out;
	queues = count_receive_queues(fd, owner->name);
	if (queues > XDP_QUEUES_MAX) {
		vma_log_error("%s: %u receive queues, at most %u can be covered: reduce them with ethtool -L",
		              owner->name, queues, XDP_QUEUES_MAX);
		rc = -EOPNOTSUPP;
		goto out;
	}
	owner->queues = queues; /* what unwinding goes by: never more than there are places for */
out:
	os_close(fd);
	return rc;
}

/* ---- its MAC, while it is ours ---- */

/* Without, changes are seen twice a second. */
int owner_open_link_events(void)
{
	const struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
	int fd = os_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);

	if (fd >= 0 && os_bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		os_close(fd);
		return -1;
	}
	return fd < 0 ? -1 : nic_fd_move_high(fd);
}

/* What has happened is not read: that something has is enough. */
static bool links_have_changed(const struct xdp_owner *owner)
{
	char some;
	bool any = false;

	while (owner->link_fd >= 0 &&
	       (os_recv(owner->link_fd, &some, sizeof(some), MSG_DONTWAIT) >= 0 || errno == ENOBUFS))
		any = true;
	return any;
}

static void owner_poll_links_and_refresh_mac(struct xdp_owner *owner, uint64_t now)
{
	const bool changed = links_have_changed(owner);

	if (!xdp_prog_attached(owner->prog) || (!changed && now - owner->mac_checked_ns < MAC_NS))
		return;
	owner->mac_checked_ns = now;
	xdp_prog_refresh_mac(owner->prog);
}

int xdp_owner_link_fd(const struct xdp_owner *owner)
{
	return owner->link_fd;
}

/* ---- life of the owner ---- */

static void owner_log_open_failure(const struct xdp_owner *owner, int rc)
{
	const char *what = "";
	const int lack = xdp_sock_check_kernel(&what);

	/* No capability allows what a sandbox forbids to everybody. */
	if ((rc == -EPERM || rc == -EACCES) && !(lack < 0 && strcmp(what, XDP_LACKS_MEMFD) == 0))
		vma_log_once(VMA_LOG_ERROR,
		             "%s: %s%sXDP needs CAP_NET_RAW (AF_XDP sockets), CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN "
		             "(the program), "
		             "or a vmad that has them",
		             owner->name, lack < 0 ? what : "", lack < 0 ? " is not permitted: " : "");
	else if (rc != -EBUSY && rc != -EOPNOTSUPP && rc != -ENOBUFS) /* busy may pass: the caller decides */
		vma_log_once(VMA_LOG_ERROR, "%s: no XDP: %s%s%s", owner->name, lack < 0 ? what : "",
		             lack < 0 ? ": " : "", strerror(-rc));
}

struct xdp_owner *owner_new(unsigned ifindex)
{
	struct xdp_owner *owner = calloc(1, sizeof(*owner));

	if (owner == NULL)
		return NULL;
	owner->ifindex = ifindex;
	owner->umem_fd = owner->shared_fd = owner->claims_fd = owner->link_fd = owner->diag_fd = -1;
	owner->route_fd = -1;
	owner->record_fd = owner->alive_fd = owner->alive_read_fd = -1;
	owner->reset_places = (struct owner_place_bitmap){.words = OWNER_RECORD_RESETS / 64, .used = owner->reset_used};
	owner->listener_places =
	        (struct owner_place_bitmap){.words = OWNER_RECORD_LISTENERS / 64, .used = owner->listener_used};
	owner->waiting_places =
	        (struct owner_place_bitmap){.words = OWNER_RECORD_WAITING / 64, .used = owner->waiting_used};
	for (uint32_t queue = 0; queue < XDP_QUEUES_MAX; queue++)
		owner->queue[queue].base_fd = -1;
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		owner->process_fd[slot] = -1;
	return owner;
}

static int check_mtu(const struct xdp_owner *owner)
{
	/* What the kernel leaves of a frame after XDP_PACKET_HEADROOM. */
	const uint32_t longest = (1u << XDP_FRAME_SHIFT) - 256;

	if (owner->multi_buffer || owner->mtu + HEADERS <= longest)
		return 0;
	vma_log_once(VMA_LOG_ERROR,
	             "%s: MTU %u is beyond one packet buffer, and this kernel has no multi-buffer AF_XDP: the largest "
	             "that works is %u",
	             owner->name, owner->mtu, longest - HEADERS);
	return -EOPNOTSUPP;
}

int xdp_owner_check_interface_usable(unsigned ifindex)
{
	struct xdp_owner *owner = owner_new(ifindex);
	int rc;

	if (owner == NULL)
		return -ENOMEM;
	rc = owner_read_mtu_and_queue_count(owner);
	if (rc == 0) {
		owner->multi_buffer = xdp_sock_supports_multi_buffer();
		rc = check_mtu(owner);
	}
	if (rc == 0)
		rc = owner_frames_probe_memlock(owner);
	xdp_owner_destroy(owner);
	return rc;
}

int xdp_owner_create(const struct xdp_owner_attr *attr, struct xdp_owner **out)
{
	struct xdp_owner *owner = owner_new(attr->ifindex);
	int rc;

	if (owner == NULL)
		return -ENOMEM;
	rc = owner_read_mtu_and_queue_count(owner);
	/* The program first: it fails at once where the sockets would have to be waited for. */
	if (rc == 0)
		rc = xdp_prog_load(owner->ifindex, owner->queues, &owner->prog);
	if (rc == 0 && attr->minisocks)
		rc = owner_minisocks_open(owner);
	if (rc == 0 && attr->persistent)
		rc = owner_record_create_memfd(owner);
	if (rc == 0)
		rc = owner_frames_init(owner, attr->window_bytes, attr->huge_pages);
	if (rc == 0) {
		xdp_prog_set_port_bitmap(owner->prog, owner->shared->named);
		owner_claims_init(owner);
		owner->link_fd = owner_open_link_events();
		owner_record_mark_complete(owner);
	}
	if (rc == 0)
		rc = check_mtu(owner);
	if (rc < 0) {
		owner_log_open_failure(owner, rc);
		xdp_owner_destroy(owner);
		return rc;
	}
	*out = owner;
	return 0;
}

void owner_close_slot_xdp_sockets(struct xdp_owner *owner, uint32_t index)
{
	struct owner_slot *slot = &owner->slot[index];

	for (uint32_t queue = 0; queue < owner->queues && slot->sockets_open; queue++) {
		xdp_ring_unmap(&slot->rx[queue]);
		xdp_ring_unmap(&slot->tx[queue]);
		if (slot->socket_fd[queue] >= 0)
			nic_fd_close(slot->socket_fd[queue]);
	}
	slot->sockets_open = false;
	owner_fdstore_drop_slot_sockets(owner, index);
}

void xdp_owner_destroy(struct xdp_owner *owner)
{
	if (owner == NULL)
		return;
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++) {
		if (owner->prog != NULL)
			owner_slot_release_flows_and_claims(owner, slot, false);
		owner_close_slot_xdp_sockets(owner, slot);
	}
	owner_groups_fini(owner);
	owner_resets_fini(owner);
	owner_minisocks_fini(&owner->minisocks);
	owner_parked_fini(owner);
	if (owner->link_fd >= 0)
		nic_fd_close(owner->link_fd);
	if (owner->diag_fd >= 0)
		nic_fd_close(owner->diag_fd);
	if (owner->route_fd >= 0)
		nic_fd_close(owner->route_fd);
	xdp_prog_destroy(owner->prog);
	owner_frames_fini(owner);
	owner_record_fini(owner);
	free(owner);
}

/* That it cannot be seen now, for want of a descriptor, says nothing. */
bool xdp_owner_device_gone(const struct xdp_owner *owner)
{
	char name[IF_NAMESIZE];

	return if_indextoname(owner->ifindex, name) == NULL && errno == ENXIO;
}

void xdp_owner_close_in_child(struct xdp_owner *owner)
{
	for (uint32_t index = 0; index < XDP_SLOTS_MAX; index++) {
		const struct owner_slot *slot = &owner->slot[index];

		for (uint32_t queue = 0; slot->sockets_open && queue < owner->queues; queue++)
			os_close(slot->socket_fd[queue]);
	}
	for (uint32_t queue = 0; queue < owner->queues; queue++)
		os_close(owner->queue[queue].base_fd);
	xdp_prog_close_in_child(owner->prog);
	os_close(owner->umem_fd);
	os_close(owner->shared_fd);
	if (owner->link_fd >= 0)
		os_close(owner->link_fd);
	if (owner->diag_fd >= 0)
		os_close(owner->diag_fd);
	if (owner->route_fd >= 0)
		os_close(owner->route_fd);
}

/* ---- slots ---- */

static int slot_open_xdp_sockets(struct xdp_owner *owner, uint32_t index)
{
	struct owner_slot *slot = &owner->slot[index];
	int rc = 0;

	for (uint32_t queue = 0; queue < owner->queues; queue++)
		slot->socket_fd[queue] = -1;
	slot->sockets_open = true;
	for (uint32_t queue = 0; queue < owner->queues && rc == 0; queue++) {
		int fd = xdp_sock_open_for_slot(owner->queue[queue].base_fd, owner->ifindex, queue, slot->rx_size,
		                                slot->tx_size);

		if (fd < 0)
			return fd;
		slot->socket_fd[queue] = fd;
		rc = xdp_sock_map_queue_rings(fd, slot->rx_size, slot->tx_size, &slot->rx[queue], &slot->tx[queue]);
		if (rc == 0)
			rc = xdp_prog_set_socket(owner->prog, index, queue, fd);
	}
	return rc;
}

static void fill_rental(const struct xdp_owner *owner, uint32_t index, struct xdp_rental *out)
{
	const struct owner_slot *slot = &owner->slot[index];

	*out = (struct xdp_rental){
	        .slot = index,
	        .queues = owner->queues,
	        .nframes = owner->nframes,
	        .rx_size = slot->rx_size,
	        .tx_size = slot->tx_size,
	        .tx_first = slot->tx_first,
	        .tx_count = slot->tx_count,
	        .rx_quota = slot->rx_quota,
	        .mtu = owner->mtu,
	        .generic = owner->generic,
	        .multi_buffer = owner->multi_buffer,
	        .tx_csum = owner->tx_csum,
	        .umem_fd = owner->umem_fd,
	        .shared_fd = owner->shared_fd,
	        .claims_fd = owner->claims_fd,
	        .alive_fd = owner->alive_read_fd,
	};
	memcpy(out->socket_fd, slot->socket_fd, owner->queues * sizeof(out->socket_fd[0]));
}

int xdp_owner_rent_queue_pair_slot(struct xdp_owner *owner, uint32_t rx_wre, uint32_t tx_wre, struct xdp_rental *out)
{
	uint32_t index = 0;
	int rc;

	while (index < XDP_SLOTS_MAX && owner->slot[index].state != SLOT_FREE)
		index++;
	if (index == XDP_SLOTS_MAX)
		return -ENOSPC;
	rc = owner_frames_grant(owner, index, rx_wre, tx_wre);
	if (rc < 0)
		return rc;
	read_mtu(owner); /* if it cannot be seen now, what was known before */
	rc = slot_open_xdp_sockets(owner, index);
	if (rc < 0) {
		for (uint32_t queue = 0; queue < owner->queues; queue++)
			xdp_prog_clear_socket(owner->prog, index, queue);
		owner_close_slot_xdp_sockets(owner, index);
		owner_frames_ungrant(owner, index);
		return rc;
	}
	owner_reset_accept_page(owner, index);
	xdp_shared_set_tx_range_of_slot(owner->shared, index, owner->slot[index].tx_first, owner->slot[index].tx_count);
	owner->slot[index].state = SLOT_RENTED;
	owner->slots_used++;
	owner->process[index] = 0; /* until it is named */
	owner_count_client_processes(owner);
	fill_rental(owner, index, out);
	return 0;
}

void xdp_owner_take_back_slot(struct xdp_owner *owner, uint32_t index, bool frames_too)
{
	struct owner_slot *slot = index < XDP_SLOTS_MAX ? &owner->slot[index] : NULL;

	if (slot == NULL || slot->state == SLOT_FREE || slot->state == SLOT_DRAINING)
		return;
	if (slot->state == SLOT_RENTED) {
		owner_slot_release_flows_and_claims(owner, index, frames_too);
		for (uint32_t queue = 0; queue < owner->queues; queue++)
			xdp_prog_clear_socket(owner->prog, index, queue);
		slot->state = SLOT_LEAVING;
		slot->drain_since_ns = owner_now_ns();
		owner_record_write_slot(owner, index);
	}
	if (!frames_too)
		return;
	owner_resets_send_now_for_dead_slot(owner, index);
	owner_group_move_unaccepted_conns_off_slot(owner, index, NULL);
	/* At once: what it had locked stands in everybody's way. Its frames come when its RX rings can be read for
	 * good: one that is held and still lies in a ring must not be taken twice. */
	xdp_shared_release_dead_locks(owner->driver, owner->queues, index);
	owner_slot_drop_frame_quota(owner, index);
	slot->state = SLOT_DRAINING;
	owner_record_write_slot(owner, index);
}

/* What lies in the rings of a slot that has left the maps for long enough; then the sockets may go. */
static void reclaim_frames_and_close_slot_sockets(struct xdp_owner *owner, uint32_t index)
{
	struct owner_slot *slot = &owner->slot[index];

	for (uint32_t queue = 0; queue < owner->queues; queue++) {
		xdp_shared_hold_frames_in_rx_ring(owner->shared, index, &slot->rx[queue]);
		xdp_shared_reset_unsent_tx_frames(owner->shared, slot->tx_first, slot->tx_count, queue,
		                                  atomic_load_explicit(slot->tx[queue].consumer, memory_order_acquire));
	}
	owner_close_slot_xdp_sockets(owner, index);
	owner_reclaim_frames_of_slot(owner, index);
}

static void slot_drain_step(struct xdp_owner *owner, uint32_t index, uint64_t now)
{
	struct owner_slot *slot = &owner->slot[index];

	if (slot->sockets_open) {
		if (now - slot->drain_since_ns < SETTLE_NS)
			return;
		reclaim_frames_and_close_slot_sockets(owner, index);
		slot->drain_since_ns = now;
	}
	if (xdp_shared_count_in_flight(owner->shared, slot->tx_first, slot->tx_count) > 0 &&
	    now - slot->drain_since_ns < DRAIN_TIMEOUT_NS)
		return;
	owner_frames_ungrant(owner, index);
	slot->state = SLOT_FREE;
	owner_record_write_slot(owner, index);
	owner->slots_used--;
	owner_count_client_processes(owner);
}

void xdp_owner_tick(struct xdp_owner *owner, void (*revoked)(uint32_t slot, const struct vma_flow_key *key, void *arg),
                    void *arg)
{
	const uint64_t now = owner_now_ns();

	owner_refill_and_drain_umem_rings(owner);
	owner_poll_links_and_refresh_mac(owner, now);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		if (owner->slot[slot].state == SLOT_DRAINING)
			slot_drain_step(owner, slot, now);
	owner_report_revoked_flows(owner, revoked, arg);
	owner_flows_end_grace(owner, now);
	owner_groups_check_and_rebalance(owner, now);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		if (owner->worker[slot].moving != NULL)
			owner_send_moved_conns_to_client(owner, slot);
	owner_parked_hand_over_or_expire(owner, now);
	owner_resets_send_due(owner, now);
	owner_minisocks_read_segments_and_expire(owner, now);
	owner_detach_xdp_program_if_unused(owner, now);
	/* What an adopted flow's shadows are is not known before its client has named them. */
	if (owner->unannounced > 0 && now - owner->adopted_ns < OWNER_REANNOUNCE_NS + KERNEL_SOCK_NS)
		return;
	if (owner->flows + owner->waiters > 0 && now - owner->kernel_sock_check_ns >= owner->kernel_sock_pause_ns) {
		owner->kernel_sock_check_ns = now;
		owner_flow_waiters_expire(owner);
		owner_revoke_flows_in_conflict(owner, revoked, arg);
	}
}

void xdp_owner_set_adopt_callback(struct xdp_owner *owner, bool (*adopt)(uint32_t, const struct vma_pending *, void *),
                                  void *arg)
{
	owner->on_adopt = adopt;
	owner->adopt_arg = arg;
}

bool xdp_owner_has_minisocks(const struct xdp_owner *owner)
{
	return owner->resets.count > 0 || owner->minisocks.count > 0;
}

uint32_t xdp_owner_slot_flow_count(const struct xdp_owner *owner, uint32_t slot)
{
	return owner->slot[slot].flows;
}

void xdp_owner_log_summary(const struct xdp_owner *owner)
{
	vma_log_info("%s: queue pairs: %u; flows: %u; connections of ended processes: %u; receive frames missing: %u "
	             "of %u",
	             owner->name, owner->slots_used, owner->flows, owner->minisocks.count + owner->resets.count,
	             owner_missing_frame_count(owner), owner->rx_frames * owner->queues);
}

int xdp_owner_get_minisock_segment_fd(const struct xdp_owner *owner)
{
	return xdp_prog_minisock_segments_fd(owner->prog);
}

static int ns_deadline_to_poll_ms(uint64_t at_ns)
{
	const uint64_t now = owner_now_ns();

	return at_ns <= now ? 0 : (int)((at_ns - now) / 1000000 + 1);
}

static int owner_next_client_work_ms(const struct xdp_owner *owner)
{
	if (owner->revoke_pending != NULL)
		return 0;
	if (owner_has_spare_frames(owner) || owner_has_suspect_ring_locks(owner))
		return 10;
	if (owner->groups > 0)
		return (int)(OWNER_GROUPS_NS / 1000000);
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX; slot++)
		if (owner->slot[slot].state == SLOT_DRAINING)
			return 25;
	return owner->flows + owner->waiters + owner->slots_used > 0 || owner_has_unused_program_attached(owner)
	               ? (int)(KERNEL_SOCK_NS / 1000000)
	               : -1;
}

int xdp_owner_next_tick_ms(const struct xdp_owner *owner)
{
	const int others = owner_next_client_work_ms(owner);
	const uint64_t resets_ns = owner_resets_due_ns(owner), minisocks_ns = owner_minisocks_due_ns(&owner->minisocks);
	const uint64_t parked_ns = owner_parked_due_ns(owner);
	uint64_t due_ns = resets_ns < minisocks_ns ? resets_ns : minisocks_ns;
	int of_the_dead;

	due_ns = due_ns < parked_ns ? due_ns : parked_ns;

	if (due_ns == UINT64_MAX)
		return others;
	of_the_dead = ns_deadline_to_poll_ms(due_ns);
	return others >= 0 && others < of_the_dead ? others : of_the_dead;
}
