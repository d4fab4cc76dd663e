/*
 * fork_shared_fixture.h - relatives without a fork: a second object for the same kernel socket, by a copy of its
 * descriptor, with the memory that a child would have from its parent.
 */
#ifndef VMA_UDP_TEST_FORK_SHARED_FIXTURE_H
#define VMA_UDP_TEST_FORK_SHARED_FIXTURE_H

#include "control_fixture.h"

#include "../fork_shared.h"

static inline void forks(void)
{
	struct vma_thread *self = vma_enter();

	udp_share_all_sockets_state_before_fork();
	vma_leave(self);
}

/* Of a socket that a fork has seen. It has not looked at anything yet. */
static inline int create_fork_relative_socket(int fd)
{
	struct udp_sock *sock = control_fixture_sock_of(fd), *relative;
	int copy = vma_os.dup(fd);

	assert_true(copy >= 0);
	assert_int_equal(vma_udp_socket(copy, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), 0);
	relative = control_fixture_sock_of(copy);
	relative->fork_shared_batch = sock->fork_shared_batch;
	atomic_fetch_add(&sock->fork_shared_batch->refs, 1);
	atomic_store(&relative->fork_shared_seen, atomic_load(&sock->fork_shared->changes) - 1);
	atomic_store(&relative->fork_shared, sock->fork_shared);
	return copy;
}

static inline void fork_shared_follow_peer_changes_of_fd(int fd)
{
	struct vma_thread *self = vma_enter();

	if (udp_fork_shared_has_changed(control_fixture_sock_of(fd)))
		udp_apply_changes_of_forked_processes(control_fixture_sock_of(fd));
	vma_leave(self);
}

static inline int fork_shared_fixture_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	struct vma_thread *self = vma_enter();
	int rc = udp_setsockopt(vma_fd_lookup(fd), fd, level, name, value, len);

	vma_leave(self);
	return rc;
}

static inline int fork_shared_fixture_set_flags(int fd, int flags)
{
	struct vma_thread *self = vma_enter();
	int rc = udp_fcntl(vma_fd_lookup(fd), fd, F_SETFL, (void *)(long)flags);

	vma_leave(self);
	return rc;
}

#endif
