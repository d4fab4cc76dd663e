/*
 * lease - the mappings of a rented queue pair: how they are let go. Its pools live on until the user has put every
 * buffer.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/log.h>

#include "../os.h"
#include "client.h"
#include "../xdp/claims.h"
#include "../xdp/shared.h"

/* ---- the window ---- */

static int check_file_size(int fd, size_t bytes)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	return (uint64_t)st.st_size >= bytes ? 0 : -EPROTO; /* touching what is not there would be SIGBUS */
}

static int lease_map_window(struct nic_xdp *nic, const struct xdp_rental *rental, struct xdp_window **out)
{
	const uint32_t queue_frames = rental->nframes / rental->queues;
	struct xdp_window *window = calloc(1, sizeof(*window));
	int rc;

	if (window == NULL)
		return -ENOMEM;
	window->refs = 1;
	window->arena = nic->base.arena;
	window->nframes = rental->nframes;
	window->queue_shift = (uint32_t)__builtin_ctz(queue_frames);
	window->shared_bytes = xdp_shared_bytes(rental->nframes);
	rc = check_file_size(rental->umem_fd, (size_t)rental->nframes << XDP_FRAME_SHIFT);
	if (rc == 0)
		rc = check_file_size(rental->shared_fd, window->shared_bytes);
	if (rc < 0)
		goto fail;
	window->shared = mmap(NULL, window->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
	                      rental->shared_fd, 0);
	if (window->shared == MAP_FAILED) {
		rc = -errno;
		goto fail;
	}
	madvise(window->shared, window->shared_bytes, MADV_DONTFORK);
	rc = xdp_shared_check(window->shared, window->shared_bytes);
	if (rc == 0)
		rc = vma_bufarena_map_fd(window->arena, rental->umem_fd, 0, window->nframes, &window->first);
	if (rc < 0) {
		munmap(window->shared, window->shared_bytes);
		goto fail;
	}
	window->claims = rental->claims_fd >= 0 ? xdp_claims_map(rental->claims_fd) : NULL;
	window->alive_fd = rental->alive_fd >= 0 ? nic_fd_dup(rental->alive_fd) : -1;
	*out = window;
	return 0;
fail:
	free(window);
	return rc;
}

void nic_xdp_window_put(struct xdp_window *window)
{
	if (window == NULL || --window->refs > 0)
		return;
	vma_bufarena_unmap(window->arena, window->first, window->nframes);
	munmap(window->shared, window->shared_bytes);
	xdp_claims_unmap(window->claims);
	if (window->alive_fd >= 0)
		nic_fd_close(window->alive_fd);
	free(window);
}

/* ---- ports: the rings of each device queue ---- */

static void unmap_xdp_queue_rings(struct xdp_qp_queue *port)
{
	xdp_ring_unmap(&port->rx);
	xdp_ring_unmap(&port->tx);
	xdp_ring_unmap(&port->fill);
	xdp_ring_unmap(&port->comp);
}

static int map_xdp_queue_rings(struct xdp_qp_queue *port, struct xdp_window *window, const struct xdp_rental *rental,
                               uint32_t queue)
{
	int rc;

	port->fd = rental->socket_fd[queue];
	port->driver = (struct xdp_shared_rings_user){
	        .shared = window->shared,
	        .fill = &port->fill,
	        .comp = &port->comp,
	        .queue = queue,
	        .self = (uint16_t)(rental->slot + 1),
	};
	rc = xdp_sock_map_queue_rings(port->fd, rental->rx_size, rental->tx_size, &port->rx, &port->tx);
	if (rc == 0)
		rc = xdp_sock_map_umem_rings(port->fd, &port->fill, &port->comp);
	port->rx_much = rental->rx_size / 2;
	return rc;
}

static int map_rings_of_all_device_queues(struct xdp_window *window, const struct xdp_rental *rental,
                                          struct xdp_qp_queue **out)
{
	struct xdp_qp_queue *ports = aligned_alloc(_Alignof(struct xdp_qp_queue), rental->queues * sizeof(*ports));
	int rc = 0;

	if (ports == NULL)
		return -ENOMEM;
	memset(ports, 0, rental->queues * sizeof(*ports));
	for (uint32_t queue = 0; queue < rental->queues && rc == 0; queue++)
		rc = map_xdp_queue_rings(&ports[queue], window, rental, queue);
	if (rc == 0) {
		*out = ports;
		return 0;
	}
	for (uint32_t queue = 0; queue < rental->queues; queue++)
		unmap_xdp_queue_rings(&ports[queue]);
	free(ports);
	return rc;
}

/* ---- leases ---- */

static void lease_drop_share_and_wake_on_last(void *arg)
{
	struct xdp_lease *lease = arg;
	const uint64_t one = 1;

	if (atomic_fetch_sub_explicit(&lease->pending, 1, memory_order_acq_rel) > 1)
		return;
	/* Perhaps inside somebody's put: no lock, no waiting. The nic lives until it has seen `done`. */
	if (os_write(lease->nic->wake_fd, &one, sizeof(one)) < 0)
		vma_log_debug("xdp: eventfd: error %d", errno); /* it is full, so the thread wakes anyway */
	atomic_store_explicit(&lease->done, true, memory_order_release);
}

bool nic_xdp_has_lease_to_finish(const struct nic_xdp *nic)
{
	for (const struct xdp_lease *lease = nic->leases; lease != NULL; lease = lease->next)
		if (atomic_load_explicit(&lease->pending, memory_order_relaxed) == 0 &&
		    (nic->vmad != NULL || nic->owner != NULL || lease->orphan || nic->closing))
			return true;
	return false;
}

/* False: vmad is away, and is to be told when it is there again. */
static bool lease_return_slot(struct nic_xdp *nic, const struct xdp_lease *lease)
{
	if (lease->orphan)
		return true;
	if (nic->owner != NULL) {
		xdp_owner_take_back_slot(nic->owner, lease->slot, true);
		return true;
	}
	return (nic->vmad != NULL && vmad_client_return(nic->vmad, lease->slot, true) != -EPIPE) || nic->closing;
}

void nic_xdp_return_slots_of_done_leases(struct nic_xdp *nic)
{
	struct xdp_lease **place = &nic->leases;

	while (*place != NULL) {
		struct xdp_lease *lease = *place;

		if (!atomic_load_explicit(&lease->done, memory_order_acquire) || !lease_return_slot(nic, lease)) {
			place = &lease->next;
			continue;
		}
		*place = lease->next;
		nic_xdp_window_put(lease->window);
		free(lease);
	}
}

/* ---- a queue pair's part ---- */

static int create_pools(struct xdp_qp *qp, const struct xdp_window *window, const struct xdp_rental *rental,
                        struct vma_bufpool *pools[2])
{
	char name[sizeof(qp->name) + 3];
	static const int modes[] = {
	        [VMA_NIC_CACHES_NONE] = 0, [VMA_NIC_CACHES_RECLAIMED] = 1, [VMA_NIC_CACHES_KEPT] = 2};
	struct vma_bufpool_attr attr = {
	        .arena = window->arena, .name = name, .batching_mode = modes[qp->nic->caches], .stats = qp->nic->stats};
	int rc;

	snprintf(name, sizeof(name), "rx %s", qp->name);
	rc = vma_bufpool_create(&attr, &pools[0]);
	if (rc < 0)
		return rc;
	snprintf(name, sizeof(name), "tx %s", qp->name);
	attr.named_by = &qp->base.tx_pool;
	rc = vma_bufpool_create(&attr, &pools[1]);
	if (rc == 0) {
		rc = vma_bufpool_add_frames(pools[1], window->first + rental->tx_first, rental->tx_count);
		if (rc == 0)
			return 0;
		vma_bufpool_retire(pools[1], NULL, NULL);
	}
	vma_bufpool_retire(pools[0], NULL, NULL);
	return rc;
}

static void return_slot_to_owner(struct nic_xdp *nic, uint32_t slot)
{
	if (nic->owner != NULL)
		xdp_owner_take_back_slot(nic->owner, slot, true);
	else if (nic->vmad != NULL)
		vmad_client_return(nic->vmad, slot, true);
}

static int request_rental(struct nic_xdp *nic, const struct vma_nic_qp_attr *attr, struct xdp_rental *rental)
{
	int rc;

	if (nic->owner != NULL)
		rc = xdp_owner_rent_queue_pair_slot(nic->owner, attr->rx_wre, attr->tx_wre, rental);
	else if (nic->vmad != NULL)
		rc = vmad_client_rent(nic->vmad, attr->rx_wre, attr->tx_wre, rental);
	else
		return -EAGAIN;
	if (rc == 0 && nic->owner == NULL)
		for (uint32_t queue = 0; queue < rental->queues; queue++)
			rental->socket_fd[queue] = nic_fd_move_high(rental->socket_fd[queue]);
	if (rc < 0 || nic->owner == NULL)
		return rc;
	/* The owner's own fds: take copies, so that closing works the same for both kinds. */
	for (uint32_t queue = 0; queue < rental->queues; queue++) {
		rental->socket_fd[queue] = nic_fd_dup(rental->socket_fd[queue]);
		if (rental->socket_fd[queue] < 0) {
			rc = -errno;
			return_slot_to_owner(nic, rental->slot);
			while (queue-- > 0)
				nic_fd_close(rental->socket_fd[queue]);
			break;
		}
	}
	return rc;
}

static void rental_close(const struct nic_xdp *nic, const struct xdp_rental *rental, bool sockets)
{
	for (uint32_t queue = 0; sockets && queue < rental->queues; queue++)
		if (rental->socket_fd[queue] >= 0)
			nic_fd_close(rental->socket_fd[queue]);
	if (nic->owner == NULL) {
		os_close(rental->umem_fd);
		os_close(rental->shared_fd);
		if (rental->claims_fd >= 0)
			os_close(rental->claims_fd);
		if (rental->alive_fd >= 0)
			os_close(rental->alive_fd);
	}
}

/*
 * The slot's member takes the place of the one before, with what that one says: any thread may look there at any time.
 * It can do without.
 */
static void qp_map_accept_page(struct xdp_qp *qp, const struct xdp_rental *rental)
{
	const size_t bytes = sizeof(struct vma_nic_accept_page);
	struct vma_nic_accept_page *before = qp->base.member, *member;

	if (check_file_size(rental->shared_fd, XDP_OBJECT_BYTES) < 0)
		return;
	member = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, rental->shared_fd,
	              (off_t)(XDP_MEMBERS_AT + rental->slot * bytes));
	if (member == MAP_FAILED)
		return;
	madvise(member, bytes, MADV_DONTFORK);
	if (before == NULL) {
		qp->base.member = member;
		return;
	}
	memcpy(member->pending, before->pending, sizeof(member->pending));
	if (mremap(member, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, before) == MAP_FAILED)
		munmap(member, bytes);
}

/* The queue pair's fields, after everything that can fail. */
static void qp_install_rental(struct xdp_qp *qp, const struct xdp_rental *rental, struct xdp_qp_queue *ports,
                              struct vma_bufpool *pools[2])
{
	const struct xdp_window *window = qp->lease->window;

	qp->port = ports;
	qp->shared = window->shared;
	qp->slot = rental->slot;
	qp->queues = rental->queues;
	qp->tx_queue = rental->slot % (qp->nic->tx_queues < rental->queues ? qp->nic->tx_queues : rental->queues);
	qp->first = window->first;
	qp->nframes = window->nframes;
	qp->queue_shift = window->queue_shift;
	qp->tx_first = rental->tx_first;
	qp->tx_count = rental->tx_count;
	qp->longest = rental->mtu + 14;
	qp->longest_ever = qp->longest > qp->longest_ever ? qp->longest : qp->longest_ever;
	qp->segs_max = qp->nic->base.info.tx_segs_max;
	qp->rx_at = qp->rx_in_chain = qp->rx_held = 0;
	qp->adopt_seen = 0;
	atomic_store_explicit(&qp->rx_seen, ports[0].rx.cached_consumer, memory_order_relaxed);
	atomic_store_explicit(&qp->rx_arrivals, rental->queues == 1 ? ports[0].rx.producer : NULL,
	                      memory_order_release);
	qp->rx_held_max = rental->rx_quota + (rental->rx_quota / 2 > 64 ? rental->rx_quota / 2 : 64);
	qp->base.rx_depth = rental->rx_size;
	qp->base.tx_depth = rental->tx_size;
	qp->base.rx_quota = rental->rx_quota;
	qp->base.rx_self_fill = true;
	qp->base.tx_headroom = rental->tx_csum ? XDP_TX_METADATA_BYTES : 0;
	atomic_store_explicit(&qp->base.rx_pool, pools[0], memory_order_release);
	atomic_store_explicit(&qp->base.tx_pool, pools[1], memory_order_release);
}

static void nic_set_info_from_rental(struct nic_xdp *nic, const struct xdp_rental *rental)
{
	nic->base.info.mtu = rental->mtu;
	nic->base.info.generic = rental->generic;
	nic->base.info.device_queues = rental->queues;
	nic->base.info.tx_segs_max = rental->multi_buffer ? 16 : 1; /* an skb of the kernel takes 17 fragments */
	/* In one store: a reader between two would not find an ability that stays. */
	nic->base.info.caps = (nic->base.info.caps & ~(uint32_t)(VMA_NIC_CAP_SG | VMA_NIC_CAP_TX_CSUM)) |
	                      (rental->multi_buffer ? VMA_NIC_CAP_SG : 0) | (rental->tx_csum ? VMA_NIC_CAP_TX_CSUM : 0);
}

static bool rental_is_sane(const struct xdp_rental *rental)
{
	const uint32_t queues = rental->queues, queue_frames = queues != 0 ? rental->nframes / queues : 0;
	const uint32_t rx = rental->rx_size, tx = rental->tx_size;

	return queues >= 1 && queues <= XDP_QUEUES_MAX && queue_frames > 0 && !(queue_frames & (queue_frames - 1)) &&
	       rental->nframes % queues == 0 && rental->nframes <= 1u << 24 && rental->slot < XDP_SLOTS_MAX && rx > 0 &&
	       tx > 0 && !(rx & (rx - 1)) && !(tx & (tx - 1)) && rental->tx_count > 0 &&
	       rental->tx_first < rental->nframes && rental->tx_count <= rental->nframes - rental->tx_first;
}

int nic_xdp_rent(struct xdp_qp *qp)
{
	struct nic_xdp *nic = qp->nic;
	struct xdp_lease *lease = calloc(1, sizeof(*lease));
	struct xdp_rental rental;
	struct vma_bufpool *pools[2];
	struct xdp_qp_queue *ports = NULL;
	uint8_t *in_flight = NULL;
	int rc;

	if (lease == NULL)
		return -ENOMEM;
	rc = request_rental(nic, &qp->attr, &rental);
	if (rc < 0)
		goto fail;
	rc = -EPROTO;
	if (!rental_is_sane(&rental) || (nic->window != NULL && nic->window->nframes != rental.nframes))
		goto fail_rental;
	rc = nic->window != NULL ? 0 : lease_map_window(nic, &rental, &nic->window);
	if (rc < 0)
		goto fail_rental;
	rc = -ENOMEM;
	in_flight = calloc(rental.tx_count, 1);
	if (in_flight == NULL)
		goto fail_rental;
	rc = map_rings_of_all_device_queues(nic->window, &rental, &ports);
	if (rc < 0)
		goto fail_rental;
	rc = create_pools(qp, nic->window, &rental, pools);
	if (rc < 0)
		goto fail_ports;
	*lease = (struct xdp_lease){.next = nic->leases,
	                            .nic = nic,
	                            .window = nic->window,
	                            .slot = rental.slot,
	                            .ticket = rental.ticket,
	                            .pending = 3};
	nic->window->refs++;
	nic->leases = lease;
	qp->lease = lease;
	qp->in_flight = in_flight;
	nic_set_info_from_rental(nic, &rental);
	qp_map_accept_page(qp, &rental);
	qp_install_rental(qp, &rental, ports, pools);
	rental_close(nic, &rental, false);
	return 0;
fail_ports:
	for (uint32_t queue = 0; queue < rental.queues; queue++)
		unmap_xdp_queue_rings(&ports[queue]);
	free(ports);
fail_rental:
	return_slot_to_owner(nic, rental.slot);
	rental_close(nic, &rental, true);
	free(in_flight);
fail:
	free(lease);
	return rc;
}

/* What was sent and not reaped: the kernel copied it or never will look at it, and the references go home. */
static void qp_put_in_flight_bufs(struct xdp_qp *qp)
{
	for (uint32_t i = 0; i < qp->tx_count; i++)
		if (qp->in_flight[i])
			vma_buf_put(qp->base.arena, vma_buf_at(qp->base.arena, qp->first + qp->tx_first + i));
}

void nic_xdp_unrent(struct xdp_qp *qp)
{
	struct nic_xdp *nic = qp->nic;
	struct xdp_lease *lease = qp->lease;
	const bool lost = lease->orphan;

	for (uint32_t queue = 0; queue < qp->queues; queue++) {
		if (!lost)
			nic_xdp_add_kernel_rx_drops_to_stats(qp, &qp->port[queue]);
		if (!lost && qp->port[queue].watched)
			os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_DEL, qp->port[queue].fd, NULL);
		unmap_xdp_queue_rings(&qp->port[queue]);
		nic_fd_close(qp->port[queue].fd);
	}
	free(qp->port);
	qp->port = NULL;
	qp->queues = 0;
	if (!lost && nic->owner != NULL)
		xdp_owner_take_back_slot(nic->owner, lease->slot, false);
	else if (!lost && nic->vmad != NULL)
		vmad_client_return(nic->vmad, lease->slot, false);
	qp_put_in_flight_bufs(qp);
	free(qp->in_flight);
	qp->in_flight = NULL;
	qp->lease = NULL;
	vma_bufpool_retire(atomic_load(&qp->base.rx_pool), lease_drop_share_and_wake_on_last, lease);
	vma_bufpool_retire(atomic_load(&qp->base.tx_pool), lease_drop_share_and_wake_on_last, lease);
	lease_drop_share_and_wake_on_last(
	        lease); /* the queue pair's own share: from here on the thread may end the lease */
}

static void ring_map_zero_pages(struct xdp_ring *ring)
{
	mmap(ring->map, ring->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

void nic_xdp_detach_lost_qp(struct xdp_qp *qp)
{
	atomic_store_explicit(&qp->base.lost, true, memory_order_release);
	qp->lease->orphan = true;
	for (uint32_t queue = 0; queue < qp->queues; queue++) {
		struct xdp_qp_queue *port = &qp->port[queue];

		os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_DEL, port->fd,
		             NULL); /* watched or not: see nic_xdp_add_to_epoll */
		/* Not close(): the number must stay ours while a kick may be about to use it. */
		os_dup3(qp->nic->dead_fd, port->fd, O_CLOEXEC);
		ring_map_zero_pages(&port->rx);
		ring_map_zero_pages(&port->tx);
		ring_map_zero_pages(&port->fill);
		ring_map_zero_pages(&port->comp);
	}
}
