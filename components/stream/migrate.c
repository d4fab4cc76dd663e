/*
 * migrate.c - a connection moves to the ring of the thread or core that uses it (VMA_RING_MIGRATION_RATIO_RX and _TX).
 *
 *   recv or send ── counts (<vma/sock_migrate.h>) ── its place has changed for good ──> moved here, by this very call
 *
 * A connection has one ring for both directions, and so one place. Receives and sends are counted apart. If both are
 * counted, each denies the other: a connection that one thread reads and another writes stays where it is. Otherwise it
 * would go to and fro.
 *
 * The move is vma_tcp_move_to_stack's: nothing is lost, and threads that are inside go on. Those that sleep for the old
 * ring are woken, and look for the new one. The old ring context is put; it is destroyed when no thread is inside that
 * has found it.
 *
 * Whether the connection may move is asked before a ring is made for it. A connection without a rule of its own is
 * given one then, as the internal thread would do it soon. If it is to have none (VMA_TCP_3T_RULES, VMA_TCP_2T_RULES),
 * it stays. It also stays if the kernel or vmad cannot move the rule. Then it counts as at home, until another thread
 * or core takes over. Any other obstacle may pass: the move is tried again two rounds later.
 */
#include <errno.h>
#include <string.h>

#include <vma/log.h>

#include "stream_priv.h"

/* Another process's part in it is no hindrance: a connection is one process's until it is the kernel's. */
static bool conn_may_migrate(const struct stream_sock *sock)
{
	return stream_sock_phase(sock) == STREAM_CONNECTED && stream_tcp_conn(sock) != NULL && sock->ring_ctx != NULL &&
	       !sock->file.os_only && !vma_file_has_ring_request(&sock->file) && !stream_has_ended(sock) &&
	       !atomic_load(&sock->inherited);
}

/* Why it stays, as far as that is known before a ring is made; 0: it may move. */
static int conn_migration_errno(const struct stream_sock *sock, struct vma_tcp_conn *conn)
{
	const struct vma_conf *conf = &sock->engine->conf;

	if ((conf->tcp_2t_rules || conf->tcp_3t_rules) && !vma_tcp_conn_has_own_nic_rule(conn))
		return -EPERM;
	return vma_tcp_is_movable(conn) ? 0 : -EBUSY;
}

static int conn_ensure_own_steering_rule(struct vma_tcp_conn *conn)
{
	const int rc = vma_tcp_conn_has_own_nic_rule(conn) ? 0 : vma_tcp_conn_add_own_nic_rule(conn);

	return rc == -EINVAL ? -ENOTCONN : rc; /* it has just ended */
}

static int conn_move_to_stack_of_ring(struct stream_sock *sock, struct vma_ring_ctx *ring_ctx)
{
	struct vma_tcp_conn *conn = stream_tcp_conn(sock);
	struct vma_tcp *tcp;
	int rc = conn_ensure_own_steering_rule(conn);

	if (rc == 0)
		rc = vma_ring_ctx_get_or_create_tcp_stack(ring_ctx, &tcp);
	return rc == 0 ? vma_tcp_move_to_stack(conn, tcp) : rc;
}

static void migrated_sock_set_ring_ctx(struct stream_sock *sock, struct vma_ring_ctx *ring_ctx)
{
	struct vma_ring_ctx *left = sock->ring_ctx;
	const uint64_t before = atomic_load(&sock->rings);

	sock->ring_ctx = ring_ctx;
	atomic_store(&sock->rings, vma_ring_ctx_bit(ring_ctx));
	stream_notify_rings_changed(sock, before);
	stream_describe_for_stats(sock);
	vma_ring_ctx_put(left);
}

/* file.lock. 1: it has moved; 0: it is there already; else why it stays. */
static int migrate_conn_to_ring_of_requester(struct stream_sock *sock, struct vma_ring_requester where)
{
	struct vma_ring_ctx *ring_ctx;
	int rc;

	memcpy(where.local, &sock->name.sin_addr, sizeof(sock->name.sin_addr));
	if (vma_ring_ctx_is_that_of_requester(sock->ring_ctx, VMA_RING_CTX_TCP, &where))
		return 0;
	rc = conn_migration_errno(sock, stream_tcp_conn(sock));
	if (rc < 0)
		return rc;
	rc = vma_ring_ctx_find_or_create(sock->ring_ctx->device, VMA_RING_CTX_TCP, &where, &ring_ctx);
	if (rc < 0)
		return rc;
	if (ring_ctx != sock->ring_ctx) /* it may be: the device has no more */
		rc = conn_move_to_stack_of_ring(sock, ring_ctx);
	if (ring_ctx == sock->ring_ctx || rc < 0) {
		vma_ring_ctx_put(ring_ctx);
		return rc;
	}
	migrated_sock_set_ring_ctx(sock, ring_ctx);
	vma_file_record_ring_move(&sock->file, &where);
	return 1;
}

static void count_migration(struct stream_sock *sock, int rc, bool rx)
{
	struct vma_stats_socket *stats = sock->stats;

	if (rc == -EOPNOTSUPP || rc == -EINVAL)
		vma_log_once(VMA_LOG_WARN,
		             "VMA_RING_MIGRATION_RATIO_%s has no effect for TCP: vmad moves no connections",
		             rx ? "RX" : "TX");
	if (stats == NULL || rc == 0)
		return;
	vma_stats_add(rc < 0 ? &stats->migrations_refused : rx ? &stats->rx_migrations : &stats->tx_migrations, 1);
}

/* -EINVAL is what a vmad says that moves no connections. */
static bool migration_error_is_permanent(int rc)
{
	return rc == -EOPNOTSUPP || rc == -EPERM || rc == -EINVAL;
}

static void __attribute__((cold, noinline)) conn_migrate_to_calling_thread_or_core(struct stream_sock *sock, bool rx)
{
	const struct vma_migration *migration = rx ? &sock->rx_migration : &sock->tx_migration;
	const uint64_t place = vma_migration_current_thread_or_core(migration);
	int rc;

	vma_inet_flush_sends(vma_thread_self());
	pthread_mutex_lock(&sock->file.lock);
	if (conn_may_migrate(sock)) {
		rc = migrate_conn_to_ring_of_requester(
		        sock, vma_migration_requester_of_place(migration, place, sock->file.id));
		count_migration(sock, rc, rx);
		if (rc >= 0 || migration_error_is_permanent(rc)) {
			vma_migration_set_home(&sock->rx_migration, place);
			vma_migration_set_home(&sock->tx_migration, place);
		}
	}
	pthread_mutex_unlock(&sock->file.lock);
	vma_run_due_deferred_frees();
}

static inline void stream_count_access_and_maybe_migrate(struct stream_sock *sock, bool rx)
{
	struct vma_migration *mine = rx ? &sock->rx_migration : &sock->tx_migration;

	if (mine->ratio == 0)
		return;
	if (__builtin_expect(vma_migration_count_access_and_decide(mine), 0))
		conn_migrate_to_calling_thread_or_core(sock, rx);
	vma_migration_drop_other_candidate(rx ? &sock->tx_migration : &sock->rx_migration);
}

void stream_count_send_for_migration(struct stream_sock *sock)
{
	stream_count_access_and_maybe_migrate(sock, false);
}

ssize_t stream_recvmsg_counting_for_migration(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	stream_count_access_and_maybe_migrate(stream_sock(file), true);
	return stream_recvmsg(file, fd, msg, flags);
}

ssize_t stream_recvmsg_counting_with_polls(struct vma_file *file, int fd, struct msghdr *msg, int flags)
{
	stream_count_access_and_maybe_migrate(stream_sock(file), true);
	return stream_recvmsg_polling_now_and_then(file, fd, msg, flags);
}

ssize_t stream_sendmsg_counting_for_migration(struct vma_file *file, int fd, const struct msghdr *msg, int flags)
{
	stream_count_access_and_maybe_migrate(stream_sock(file), false);
	return stream_sendmsg(file, fd, msg, flags);
}
