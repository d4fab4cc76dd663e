/*
 * migrate.c - a socket moves to the ring of the thread or core that uses it (VMA_RING_MIGRATION_RATIO_RX and _TX).
 *
 *   recv or send ── counts (<vma/sock_migrate.h>) ── its place has changed for good ──> moved here, by this very call
 *
 * Receiving. Each of the socket's flows goes to the new ring in one step (vma_ring_move_flow), and brings its datagrams
 * into a new queue. Readers do not see that queue yet. When the move is over, the old ring has been emptied into the
 * old queue, which gets nothing any more. Then both are published: the old queue as one that is *left*, which readers
 * empty before they look at the new one (attachment.c, recv.c). So nothing is lost between the two, or overtaken.
 *
 * A reader of the old array sees no gap: it finds the old queue there, as ever. It finds the contents of the new one
 * after the publication, which wakes sleepers. A reader of the new array sees no older datagram after a newer one. The
 * old queue's last push happens before the release of the old ring's receive flag by the thread that emptied it. That
 * happens before the exchange of the array, and that before the reader's look at the queue. So a reader that finds the
 * old queue empty has seen all pushes.
 *
 * Sending. The old ring is drained first: this socket's frames there have left this host before the first datagram goes
 * the other way. If others keep it busy all the time, the socket stays, and tries again two rounds later. A datagram
 * that another thread sends at this very moment, after all these rounds of one thread's, may be overtaken.
 *
 * A socket stays where it is in three cases. In the first, a key of it has other members (the choice among them is one
 * ring's), or may have endpoints on several rings (SO_REUSEPORT). In the second, other processes have the socket. In
 * the third, the kernel cannot say when older packets have arrived. It counts as at home then, until another thread or
 * core takes over.
 *
 * Accepted weaknesses. A datagram in fragments is lost if the move comes between them. If the device's owner ends in
 * the middle of several flows, those that have moved are not ordered behind what is queued.
 */
#include <errno.h>
#include <string.h>

#include <vma/log.h>

#include "deferred.h"
#include "dst.h"
#include "endpoint.h"
#include "fork_shared.h"
#include "recv.h"

#define DRAIN_NS 2000000

static bool udp_sock_may_migrate(const struct udp_sock *sock)
{
	return !sock->file.os_only && !vma_file_has_ring_request(&sock->file) && !vma_file_is_closed(&sock->file) &&
	       !atomic_load(&sock->inherited) && udp_fork_shared(sock) == NULL && !sock->left &&
	       !udp_offload_is_deferred(sock);
}

/* ---- receiving ---- */

/* Of these keys nobody else wants to have a part. */
static bool flows_have_no_other_members(const struct udp_flows *flows)
{
	for (const struct udp_member *m = flows->members; m != NULL; m = m->next) {
		if (m->guest || m->endpoint->members != m || m->next_of_endpoint != NULL ||
		    (m->flow.flags & VMA_FLOW_REUSEPORT) != 0 ||
		    atomic_load_explicit(&m->revoked, memory_order_acquire))
			return false;
	}
	return true;
}

/* 1: it has moved; 0: it is on that place's ring already. */
static int udp_member_move_to_ring_of(struct udp_member *member, struct vma_ring_requester where)
{
	struct udp_flows *flows = member->flows;
	struct udp_attachment *from = member->at, *to;
	struct vma_ring_ctx *ring_ctx;
	int rc;

	memcpy(where.local, member->endpoint->key.local, sizeof(where.local));
	rc = vma_ring_ctx_find_or_create(member->endpoint->ring_ctx->device, VMA_RING_CTX_RX, &where, &ring_ctx);
	if (rc < 0)
		return rc;
	if (ring_ctx != member->endpoint->ring_ctx) {
		to = udp_attachment_find_or_create(flows, ring_ctx, member->ifindex);
		rc = to != NULL ? udp_member_move_flow_to_other_ring(member, ring_ctx, to) : -ENOMEM;
		if (rc == 0 && from->flows == 0)
			udp_attachment_mark_left(flows, from);
		if (rc == 0)
			rc = 1;
	}
	vma_ring_ctx_put(ring_ctx);
	return rc;
}

/* The lock of flows.c. How many have moved; why the first that could not has not. */
static int udp_flows_move_to_rings_of(struct udp_flows *flows, const struct vma_ring_requester *where)
{
	struct udp_member *next;
	int moved = 0, rc = 0;

	for (struct udp_member *m = flows->members; m != NULL && rc >= 0; m = next) {
		next = m->next; /* m's place in the list is another's then */
		rc = udp_member_move_to_ring_of(m, *where);
		moved += rc > 0;
	}
	return moved != 0 ? moved : rc;
}

static void udp_migrate_rx_flows_to_place(struct udp_sock *sock, uint64_t place)
{
	const struct vma_ring_requester where =
	        vma_migration_requester_of_place(&sock->rx_migration, place, sock->file.id);
	int rc;

	udp_flows_lock();
	rc = flows_have_no_other_members(sock->flows) ? udp_flows_move_to_rings_of(sock->flows, &where) : 0;
	if (rc >= 0)
		vma_file_record_ring_move(&sock->file, &where); /* flows that it gets later go there, too */
	udp_attachments_publish(sock->flows, false);
	udp_flows_unlock();
	if (rc != 0 && sock->stats != NULL)
		vma_stats_add(rc > 0 ? &sock->stats->rx_migrations : &sock->stats->migrations_refused, 1);
	if (rc == -EOPNOTSUPP)
		vma_log_once(VMA_LOG_WARN, "VMA_RING_MIGRATION_RATIO_RX has no effect: neither the kernel nor vmad can "
		                           "tell when packets of before have arrived");
	/* After the queues were made, which forgets it. Any other error may pass. */
	if (rc >= 0 || rc == -EOPNOTSUPP || rc == -EBUSY)
		vma_migration_set_home(&sock->rx_migration, place);
}

static void __attribute__((cold, noinline)) rx_migrate_to_changed_place(struct udp_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (sock->flows != NULL && udp_sock_may_migrate(sock))
		udp_migrate_rx_flows_to_place(sock, vma_migration_current_thread_or_core(&sock->rx_migration));
	pthread_mutex_unlock(&sock->file.lock);
	vma_run_due_deferred_frees();
}

/* What the old rings had is read: the socket lets go of them. */
static void __attribute__((cold, noinline)) udp_rx_drop_drained_old_queues(struct udp_sock *sock)
{
	pthread_mutex_lock(&sock->file.lock);
	if (sock->flows != NULL && !vma_file_is_closed(&sock->file)) {
		udp_flows_lock();
		udp_attachments_publish(sock->flows, false);
		udp_flows_unlock();
	}
	pthread_mutex_unlock(&sock->file.lock);
	vma_run_due_deferred_frees();
}

static bool udp_old_queues_are_drained(const struct udp_sock *sock)
{
	const struct udp_attachments *all = atomic_load_explicit(&sock->attachments, memory_order_acquire);

	return all != NULL && all->left != 0 && udp_attachment_is_empty(all->at[0]);
}

static inline void udp_rx_count_and_migrate_if_due(struct udp_sock *sock)
{
	if (__builtin_expect(vma_migration_count_access_and_decide(&sock->rx_migration), 0))
		rx_migrate_to_changed_place(sock);
	if (__builtin_expect(udp_old_queues_are_drained(sock), 0))
		udp_rx_drop_drained_old_queues(sock);
}

ssize_t udp_recvmsg_and_count_migration(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	udp_rx_count_and_migrate_if_due(udp_sock(file));
	return udp_recvmsg(file, fd, msg, flags);
}

ssize_t udp_recvmsg_draining_and_count_migration(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	udp_rx_count_and_migrate_if_due(udp_sock(file));
	return udp_recvmsg_after_periodic_ring_drain(file, fd, msg, flags);
}

/* ---- sending ---- */

/* No sender that has found it is inside any more. In a forked child it is nobody's. */
static void tx_ring_ctxs_free_retired(struct vma_retired *retired)
{
	struct udp_tx_ring_ctxs *old = (struct udp_tx_ring_ctxs *)retired;

	for (uint32_t i = 0; i < old->n; i++) {
		if (old->at[i].left &&
		    old->at[i].ring_ctx->device->engine == atomic_load_explicit(&vma_engine_now, memory_order_acquire))
			vma_ring_ctx_put(old->at[i].ring_ctx);
	}
	vma_free(old);
}
_Static_assert(offsetof(struct udp_tx_ring_ctxs, retired) == 0, "tx_ring_ctxs_end");

/* dst_lock. In *now the ring contexts of that place, each held. How many are others than in `old`, or -errno. */
static int tx_ring_ctxs_get_for_place(const struct udp_tx_ring_ctxs *old, const struct vma_ring_requester *where,
                                      struct udp_tx_ring_ctxs *now)
{
	int rc = 0, others = 0;

	for (; rc == 0 && now->n < old->n; now->n += rc == 0) {
		now->at[now->n].ifindex = old->at[now->n].ifindex;
		rc = vma_ring_ctx_find_or_create(old->at[now->n].ring_ctx->device, VMA_RING_CTX_TX, where,
		                                 &now->at[now->n].ring_ctx);
		others += rc == 0 && now->at[now->n].ring_ctx != old->at[now->n].ring_ctx;
	}
	return rc < 0 ? rc : others;
}

static bool tx_drain_old_rings(const struct udp_tx_ring_ctxs *old, const struct udp_tx_ring_ctxs *now)
{
	for (uint32_t i = 0; i < old->n; i++) {
		if (old->at[i].ring_ctx != now->at[i].ring_ctx &&
		    !vma_ring_drain_sends(old->at[i].ring_ctx->ring, DRAIN_NS))
			return false;
	}
	return true;
}

static void tx_ring_ctxs_put_all(const struct udp_tx_ring_ctxs *ring_ctxs)
{
	for (uint32_t i = 0; i < ring_ctxs->n; i++)
		vma_ring_ctx_put(ring_ctxs->at[i].ring_ctx);
}

/* dst_lock. One reference of what stays is the old array's, which is the new one's from now on: the other goes. */
static void tx_ring_ctxs_replace(struct udp_sock *sock, struct udp_tx_ring_ctxs *old, struct udp_tx_ring_ctxs *now)
{
	for (uint32_t i = 0; i < old->n; i++) {
		old->at[i].left = old->at[i].ring_ctx != now->at[i].ring_ctx;
		if (!old->at[i].left)
			vma_ring_ctx_put(now->at[i].ring_ctx);
	}
	atomic_store_explicit(&sock->ring_ctxs, now, memory_order_release);
	udp_dst_rebuild_all(sock, vma_engine_get_or_start());
	vma_defer_free_until_no_readers(&old->retired, tx_ring_ctxs_free_retired);
}

/* dst_lock. 1: it has moved; 0: it is there; -EAGAIN: others keep the old ring busy. */
static int udp_tx_migrate_to_place(struct udp_sock *sock, uint64_t place)
{
	const struct vma_ring_requester where =
	        vma_migration_requester_of_place(&sock->tx_migration, place, sock->file.id);
	struct udp_tx_ring_ctxs *old = atomic_load_explicit(&sock->ring_ctxs, memory_order_relaxed), *now;
	int rc;

	if (old == NULL || sock->dst_ended)
		return 0;
	now = vma_alloc(sizeof(*now) + old->n * sizeof(now->at[0]));
	if (now == NULL)
		return -ENOMEM;
	rc = tx_ring_ctxs_get_for_place(old, &where, now);
	if (rc > 0 && !tx_drain_old_rings(old, now))
		rc = -EAGAIN;
	if (rc > 0) {
		tx_ring_ctxs_replace(sock, old, now);
		return 1;
	}
	tx_ring_ctxs_put_all(now);
	vma_free(now);
	return rc;
}

static void __attribute__((cold, noinline)) tx_migrate_to_changed_place(struct udp_sock *sock)
{
	const uint64_t place = vma_migration_current_thread_or_core(&sock->tx_migration);
	int rc = -EAGAIN;

	vma_inet_flush_sends(vma_thread_self());
	pthread_mutex_lock(&sock->file.lock);
	if (udp_sock_may_migrate(sock)) {
		pthread_mutex_lock(&sock->dst_lock);
		rc = udp_tx_migrate_to_place(sock, place);
		pthread_mutex_unlock(&sock->dst_lock);
	}
	if (rc != 0 && sock->stats != NULL)
		vma_stats_add(rc > 0 ? &sock->stats->tx_migrations : &sock->stats->migrations_refused, 1);
	if (rc >= 0)
		vma_migration_set_home(&sock->tx_migration, place);
	pthread_mutex_unlock(&sock->file.lock);
	vma_run_due_deferred_frees();
}

ssize_t udp_sendmsg_and_count_migration(struct vma_file *file, int fd, const struct msghdr *msg, int flags)
{
	struct udp_sock *sock = udp_sock(file);

	if (__builtin_expect(vma_migration_count_access_and_decide(&sock->tx_migration), 0))
		tx_migrate_to_changed_place(sock);
	return udp_sendmsg(file, fd, msg, flags);
}
