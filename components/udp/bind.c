/*
 * bind.c - bind, connect, shutdown: the kernel's answer, then its addresses, then flows and destinations that fit.
 *
 * The address and port of a socket are never computed. The kernel is asked after each call, also after one that failed,
 * because a refused connect() may have undone an earlier one.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control.h"
#include "flows.h"
#include "fork_shared.h"
#include "deferred.h"

static bool sockaddr_names_are_same(const struct sockaddr_in *a, const struct sockaddr_in *b)
{
	return a->sin_family == b->sin_family && a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
}

/* True: something has changed. A socket that could be bound is not connected. */
static bool sock_read_shadow_names(struct udp_sock *sock, int fd, bool bound)
{
	union vma_name name;
	struct sockaddr_in local, peer = {0};
	int family = sock->file.family;
	bool changed;

	if (vma_shadow_getsockname(fd, &name, &family) != 0)
		name = (union vma_name){0};
	local = vma_name_to_sockaddr_in(&name);
	if (family != sock->file.family)
		sock->file.family = (uint8_t)family;
	if (!bound && vma_shadow_getpeername(fd, &name) == 0)
		peer = vma_name_to_sockaddr_in(&name);
	changed = !sockaddr_names_are_same(&sock->local, &local) || !sockaddr_names_are_same(&sock->peer, &peer);
	sock->local = local;
	sock->peer = peer;
	atomic_store_explicit(&sock->connected, peer.sin_family != 0, memory_order_relaxed);
	return changed;
}

/*
 * A rule leaves the socket to the kernel, for good: by its peer if it is connected, else by its port. What had come to
 * it before is given along.
 */
static bool udp_give_to_kernel_if_rule_says(struct udp_sock *sock)
{
	const bool connected = sock->peer.sin_family == AF_INET;
	const struct vma_engine *engine = vma_engine_get_or_start();
	const struct vma_rule *rule;

	if (engine == NULL || sock->file.os_only || sock->local.sin_port == 0 || udp_is_ipv6(sock))
		return false;
	if (connected)
		rule = vma_inet_find_transport_rule(engine, VMA_RULES_UDP_CONNECT, &sock->peer, &sock->local);
	else
		rule = vma_inet_find_transport_rule(engine, VMA_RULES_UDP_RECEIVER, &sock->local, NULL);
	if (rule == NULL)
		return false;
	atomic_store(&sock->file.rule_line, rule->line);
	udp_give_to_kernel(sock, VMA_SOCK_RULE);
	return true;
}

/* A port that the kernel has chosen just now is known to nobody, so what is in the shadow need not be looked for. */
static void udp_update_flows_after_bind(struct udp_sock *sock, int fd, bool bound)
{
	const bool had_port = sock->local.sin_port != 0;

	if (!sock_read_shadow_names(sock, fd, bound) || udp_give_to_kernel_if_rule_says(sock))
		return;
	sock->port_fresh = !had_port && sock->port_chosen && sock->flows == NULL;
	udp_flows_update(sock);
	sock->port_fresh = false;
	udp_dst_rebuild_after_change(sock);
}

void udp_follow_shared_changes(struct udp_sock *sock, int fd)
{
	udp_update_flows_after_bind(sock, fd, false);
}

/* The port is in the same place in both families' names. */
static bool sockaddr_port_is_zero(const struct sockaddr *addr, socklen_t len)
{
	struct sockaddr_in name;

	return len >= sizeof(name) && vma_memcpy_or_efault(&name, addr, sizeof(name)) == 0 && name.sin_port == 0;
}

/*
 * A call has decided whose the socket is: it fails where VMA_EXCEPTION_HANDLING says so, and is undone if it can be. A
 * socket stays bound.
 */
static int udp_apply_exception_handling(struct udp_sock *sock, int fd, bool connects)
{
	const struct sockaddr none = {.sa_family = AF_UNSPEC};
	int rc = 0;

	if (!sock->file.os_only)
		rc = vma_engine_report_kernel_fallback(atomic_load(&sock->reason),
		                                       connects ? ENETUNREACH : EADDRNOTAVAIL,
		                                       connects ? "a connected UDP socket" : "a bound UDP socket");
	if (rc < 0 && connects && syscall(SYS_connect, fd, &none, sizeof(none)) == 0)
		udp_update_flows_after_bind(sock, fd, false);
	return rc;
}

int udp_bind(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len)
{
	struct udp_sock *sock = udp_sock(file);
	int rc = 0;

	udp_lock_and_apply_changes_of_forked(sock);
	sock->is_decided = true;
	if (vma_os.bind(fd, addr, len) != 0) {
		rc = -errno;
	} else {
		sock->port_chosen = sockaddr_port_is_zero(addr, len);
		if (udp_offload_is_deferred(sock))
			udp_deferred_end_unless_in_kernel_call(sock, fd);
		else
			udp_update_flows_after_bind(sock, fd, true);
		rc = udp_apply_exception_handling(sock, fd, false);
	}
	sock->is_decided = false;
	udp_tell_forked_of_change_and_unlock(sock);
	return rc;
}

/*
 * ICMP errors for what is sent offloaded come to the shadow, which shows them by EPOLLERR. To watch for that costs more
 * than a system call, and again when the socket is closed; who sends one question, and then waits for the answer at the
 * shadow, too, has no use for it. So it begins with the second send, which looks for the first one's error itself.
 */
static void watch_errors_from_second_send(struct udp_sock *sock)
{
	if (!sock->errors_watched)
		atomic_store_explicit(&sock->sends_remaining, UDP_FEW_SENDS, memory_order_relaxed);
}

/* An error of the shadow waits. It stays there: a send that is wrong in itself does not take it. */
static bool shadow_has_error(int fd)
{
	struct pollfd shadow = {.fd = fd};
	const struct timespec now = {0};

	return syscall(SYS_ppoll, &shadow, 1, &now, NULL, (size_t)8) > 0 && shadow.revents & POLLERR;
}

void udp_note_error_waiting_in_shadow(struct udp_sock *sock, int fd)
{
	if (shadow_has_error(fd) || atomic_load_explicit(&sock->file.deferred_error, memory_order_relaxed) != 0)
		udp_note_pending_os_error(sock);
}

void udp_watch_errors(struct udp_sock *sock, int fd)
{
	bool begins;

	if (!atomic_load_explicit(&sock->connected, memory_order_relaxed) ||
	    atomic_load_explicit(&sock->sends_remaining, memory_order_relaxed) == UDP_FEW_SENDS)
		return;
	pthread_mutex_lock(&sock->file.lock);
	begins = !sock->errors_watched && vma_engine_get_or_start() != NULL && !atomic_load(&sock->inherited);
	if (begins)
		sock->errors_watched = vma_engine_watch_errors(fd, &sock->file) == 0;
	pthread_mutex_unlock(&sock->file.lock);
	if (begins)
		udp_note_error_waiting_in_shadow(sock, fd);
}

/* What the kernel has chosen it takes away when the association is dissolved, and may give to another at once. */
static void unconnect_release_port(struct udp_sock *sock, const struct sockaddr *addr, socklen_t len)
{
	sa_family_t family;

	if (!sock->port_chosen || sock->flows == NULL || len < sizeof(family) ||
	    vma_memcpy_or_efault(&family, addr, sizeof(family)) != 0 || family != AF_UNSPEC)
		return;
	sock->port_is_released = true;
	udp_flows_update(sock);
}

int udp_connect(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len)
{
	struct udp_sock *sock = udp_sock(file);
	int rc = 0;

	udp_lock_and_apply_changes_of_forked(sock);
	sock->is_decided = true;
	unconnect_release_port(sock, addr, len);
	/* Not the C library's, which is a cancellation point: this is inside, with the lock held. */
	if (syscall(SYS_connect, fd, addr, len) != 0)
		rc = -errno;
	else if (!atomic_load(&sock->inherited) && vma_engine_get_or_start() != NULL)
		watch_errors_from_second_send(sock);
	if (sock->local.sin_port == 0)
		sock->port_chosen = true;
	if (udp_deferred_begin_after_short_lived_socks(sock)) {
		/* it is looked at when it grows up */
	} else if (sock->port_is_released) {
		sock->port_is_released = false;
		sock_read_shadow_names(sock, fd, false);
		udp_flows_update(sock);
		udp_dst_rebuild_after_change(sock);
	} else {
		udp_update_flows_after_bind(sock, fd, false);
		if (rc == 0 && sock->peer.sin_family != 0)
			rc = udp_apply_exception_handling(sock, fd, true);
	}
	sock->is_decided = false;
	udp_tell_forked_of_change_and_unlock(sock);
	return rc;
}

/*
 * Before the kernel: it wakes receivers in other processes, who then see why. What it refuses, which only a security
 * module does, stays said.
 */
static void publish_shutdown_to_fork_relatives(struct udp_sock *sock, int how)
{
	struct udp_fork_shared *fork_shared = udp_fork_shared(sock);

	if (fork_shared == NULL || how < SHUT_RD || how > SHUT_RDWR)
		return;
	if (how != SHUT_WR)
		atomic_store(&fork_shared->shut_rd, true);
	if (how != SHUT_RD)
		atomic_store(&fork_shared->shut_wr, true);
	udp_tell_forked_processes_of_change(sock);
}

/* On an unconnected socket the kernel says ENOTCONN, and shuts it down all the same. */
int udp_shutdown(struct vma_file *file, int fd, int how)
{
	struct udp_sock *sock = udp_sock(file);
	int rc = 0;

	udp_lock_and_apply_changes_of_forked(sock);
	publish_shutdown_to_fork_relatives(sock, how);
	if (vma_os.shutdown(fd, how) != 0)
		rc = -errno;
	if (rc == 0 || rc == -ENOTCONN) {
		if (how == SHUT_RD || how == SHUT_RDWR)
			atomic_store(&sock->shut_rd, true);
		if (how == SHUT_WR || how == SHUT_RDWR) {
			atomic_store(&sock->shut_wr, true);
			udp_dst_rebuild_after_change(sock);
		}
		vma_waitq_wake(&file->waitq, true);
		vma_file_wake_sleepers_and_watchers(file, EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP | EPOLLOUT);
	}
	pthread_mutex_unlock(&file->lock);
	return rc;
}
