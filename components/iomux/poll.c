/* poll - poll and ppoll: the application's array in, its revents out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <vma/sock_os.h>

#include "iomux_priv.h"

#define CHUNK 64     /* descriptors read at a time */
#define ON_STACK 64U /* descriptors of a call that needs no memory */
#define FDS_ALWAYS_ALLOWED 64

bool vma_iomux_poll_has_offloaded_fd(const struct pollfd *fds, nfds_t n)
{
	struct pollfd chunk[CHUNK];
	struct vma_thread *self;
	bool wants = false;

	if (n != 0 && iomux_conf_forces_os_poll())
		return true;
	if (n == 0 || vma_fd_highest() < 0)
		return false;
	self = vma_enter();
	for (nfds_t done = 0; done < n && !wants; done += CHUNK) {
		nfds_t part = n - done < CHUNK ? n - done : CHUNK;

		if (vma_memcpy_or_efault(chunk, fds + done, part * sizeof(*fds)) < 0)
			break; /* the kernel's call says EFAULT */
		for (nfds_t i = 0; i < part && !wants; i++)
			wants = chunk[i].fd >= 0 && iomux_file_is_ours(vma_fd_lookup(chunk[i].fd));
	}
	vma_leave(self);
	return wants;
}

/* The kernel refuses more than the process may have descriptors. */
static int check_poll_count(nfds_t n)
{
	struct rlimit limit;

	if (n <= FDS_ALWAYS_ALLOWED)
		return 0;
	if (n > INT32_MAX || (getrlimit(RLIMIT_NOFILE, &limit) == 0 && n > limit.rlim_cur))
		return -EINVAL;
	return 0;
}

/* Written whenever the wait took place, also when it was interrupted. */
static int poll_store_revents(const struct members *members, struct pollfd *to)
{
	for (unsigned i = 0; i < members->n_ours; i++) {
		struct pollfd *pfd = &members->fds[members->ours[i].index];

		pfd->revents = (short)((uint16_t)pfd->revents | members->ours[i].got);
	}
	for (nfds_t i = 0; i < members->n; i++)
		if (vma_memcpy_or_efault(&to[i].revents, &members->fds[i].revents, sizeof(to[i].revents)) < 0)
			return -EFAULT;
	return 0;
}

static int poll_wait_and_store(struct members *members, struct pollfd *app, struct iomux_timeout *timeout,
                               struct vma_thread *self)
{
	int rc, fault;

	if (vma_memcpy_or_efault(members->fds, app, members->n * sizeof(*app)) < 0)
		return -EFAULT;
	members_split_offloaded_and_kernel_fds(members);
	rc = members_wait_for_ready_and_count_stats(members, timeout, self);
	if (rc < 0 && rc != -EINTR)
		return rc;
	fault = poll_store_revents(members, app);
	return fault < 0 ? fault : rc;
}

static int poll_run(struct pollfd *app, nfds_t n, struct iomux_timeout *timeout, struct vma_thread *self)
{
	struct pollfd fds[ON_STACK];
	struct members_offloaded ours[ON_STACK];
	struct members members = {.fds = fds, .ours = ours, .n = n};
	int rc = check_poll_count(n);

	if (rc < 0)
		return rc;
	if (n > ON_STACK) {
		members.memory[0] = members.ours = vma_alloc(n * (sizeof(*ours) + sizeof(*fds)));
		if (members.ours == NULL)
			return -ENOMEM;
		members.fds = (struct pollfd *)(members.ours + n);
	}
	rc = poll_wait_and_store(&members, app, timeout, self);
	vma_free(members.memory[0]);
	return rc;
}

int vma_iomux_poll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct vma_thread *self = vma_thread_self();
	struct iomux_timeout time;
	struct iomux_sigmask before;
	int rc = iomux_timeout_from_timespec(&time, timeout);

	if (rc < 0)
		return rc;
	rc = iomux_sigmask_set(&before, mask, self);
	if (rc < 0)
		return rc;
	rc = poll_run(fds, n, &time, self);
	vma_thread_set_tx_batch(self, rc);
	iomux_sigmask_restore(&before, self);
	return rc;
}
