/*
 * fork - a child after fork has nothing of its parent's nics.
 *
 * There are two safeguards. A page that the kernel wipes in every child (MADV_WIPEONFORK, so raw clone is covered, too)
 * tells the hot path and every control call that they are in a child: they return at once. And after fork() the child
 * closes what it inherited, so a dead parent's sockets do not live on in it. Rings and packet memory are MADV_DONTFORK.
 *
 * If a parent wants its children to be clients in their own right, it says so beforehand (vma_nic_inherit). They keep a
 * copy of its right, see xdp/right.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vma/nic_owner.h>

#include "../os.h"
#include "../backends.h"
#include "client.h"
#include "../xdp/proto.h"

#define RIGHTS_MAX 16

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nic_xdp *registry;
static _Atomic(_Atomic uint32_t *) fork_guard;
static bool fork_guard_is_wiped; /* by the kernel, in a child */
static bool hooked;
static struct {
	unsigned ifindex;
	int fd;
} rights[RIGHTS_MAX];
static unsigned nrights;

/* Every lock, so that the child finds whole lists. Order: the registry's before any nic's. */
static void nic_before_fork(void)
{
	pthread_mutex_lock(&registry_lock);
	for (struct nic_xdp *nic = registry; nic != NULL; nic = nic->next)
		pthread_mutex_lock(&nic->lock);
}

static void nic_after_fork_parent(void)
{
	for (struct nic_xdp *nic = registry; nic != NULL; nic = nic->next)
		pthread_mutex_unlock(&nic->lock);
	pthread_mutex_unlock(&registry_lock);
}

static void nic_child_give_up(struct nic_xdp *nic)
{
	for (struct xdp_qp *qp = nic->qps; qp != NULL; qp = qp->next) {
		for (uint32_t queue = 0; queue < qp->queues; queue++)
			os_close(qp->port[queue].fd);
		os_close(qp->epoll_fd);
		os_close(qp->wake_fd);
	}
	if (nic->vmad != NULL)
		os_close(vmad_client_fd(nic->vmad));
	if (nic->old_vmad != NULL)
		os_close(vmad_client_fd(nic->old_vmad));
	if (nic->window != NULL && nic->window->alive_fd >= 0)
		os_close(nic->window->alive_fd);
	if (nic->owner != NULL)
		xdp_owner_close_in_child(nic->owner);
	if (atomic_load(&nic->repair_fd) >= 0)
		os_close(atomic_load(&nic->repair_fd));
	os_close(nic->wake_fd);
	os_close(nic->dead_fd);
	if (nic->right_fd >= 0 && nic->inherited_right && nrights < RIGHTS_MAX) {
		rights[nrights].ifindex = nic->base.info.ifindex;
		rights[nrights++].fd = nic->right_fd;
	} else if (nic->right_fd >= 0) {
		os_close(nic->right_fd);
	}
}

/* Only calls that are safe in the child of a program with threads: no malloc, no log. */
static __attribute__((cold)) void nic_after_fork_child(void)
{
	for (struct nic_xdp *nic = registry; nic != NULL; nic = nic->next)
		nic_child_give_up(nic);
	registry = NULL;
	if (fork_guard != NULL && !fork_guard_is_wiped)
		atomic_store_explicit(fork_guard, 0, memory_order_relaxed);
	fork_guard = NULL; /* what the child opens itself gets a page of its own */
	registry_lock =
	        (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* without a call, which each child would bind anew */
}

/*
 * Before anybody else's, whoever opens a nic when: prepare handlers run from the last registered to the first, and who
 * calls us with locks of his own held takes those first in fork(), too.
 */
static __attribute__((constructor(101))) void register_fork_handlers(void)
{
	hooked = pthread_atfork(nic_before_fork, nic_after_fork_parent, nic_after_fork_child) == 0;
}

/* A copy that nobody announced (raw clone) opens a nic: its first thread does now what its fork would have done. */
static void detect_raw_clone(void)
{
	if (fork_guard != NULL && atomic_load_explicit(fork_guard, memory_order_relaxed) == 0)
		nic_after_fork_child();
}

const _Atomic uint32_t *nic_xdp_fork_guard(void)
{
	const _Atomic uint32_t *page;

	detect_raw_clone();
	pthread_mutex_lock(&registry_lock);
	if (fork_guard == NULL && hooked) {
		const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
		void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (map != MAP_FAILED) {
			fork_guard_is_wiped = madvise(map, bytes, MADV_WIPEONFORK) == 0;
			fork_guard = map;
			atomic_store_explicit(fork_guard, 1, memory_order_relaxed);
		}
	}
	page = fork_guard;
	pthread_mutex_unlock(&registry_lock);
	return page;
}

void nic_xdp_register(struct nic_xdp *nic)
{
	pthread_mutex_lock(&registry_lock);
	nic->next = registry;
	registry = nic;
	pthread_mutex_unlock(&registry_lock);
}

void nic_xdp_unregister(struct nic_xdp *nic)
{
	struct nic_xdp **place = &registry;

	pthread_mutex_lock(&registry_lock);
	while (*place != NULL && *place != nic)
		place = &(*place)->next;
	if (*place != NULL)
		*place = nic->next;
	pthread_mutex_unlock(&registry_lock);
}

int nic_xdp_inherited_right(unsigned ifindex)
{
	int fd = -1;

	pthread_mutex_lock(&registry_lock);
	for (unsigned i = 0; i < nrights && fd < 0; i++)
		if (rights[i].ifindex == ifindex)
			fd = nic_fd_dup(rights[i].fd);
	pthread_mutex_unlock(&registry_lock);
	return fd;
}

int vma_nic_inherit(struct vma_nic *base, enum vma_nic_inherit to)
{
	struct nic_xdp *nic = (struct nic_xdp *)base;
	int rc = 0;

	if (base->ops != &vma_nic_xdp_ops)
		return -EOPNOTSUPP;
	if (!nic_xdp_opened_here(nic))
		return -ENODEV;
	if (to != VMA_NIC_INHERIT_NOBODY)
		rc = vmad_right_share(nic->right_fd, base->info.ifindex, to == VMA_NIC_INHERIT_ANY_USER);
	nic->inherited_right = to != VMA_NIC_INHERIT_NOBODY && rc == 0;
	return rc;
}
