/*
 * fork - a child after fork closes some descriptors of its parent's clients, and keeps others: ../fork.h.
 *
 * If a parent wants its children to be clients in their own right, it says so beforehand
 * (vma_nic_set_children_inherit_right). They keep a copy of its right, see xdp/right.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

#include <vma/nic_owner.h>

#include "../os.h"
#include "../backends.h"
#include "client.h"
#include "../xdp/proto.h"

#define RIGHTS_MAX 16

/* Written in a child that has one thread, and constant from then on. */
static struct {
	unsigned ifindex;
	int fd;
} rights[RIGHTS_MAX];
static unsigned nrights;

void nic_xdp_close_in_child(struct nic_fork_entry *forked)
{
	struct nic_xdp *nic = (struct nic_xdp *)((char *)forked - offsetof(struct nic_xdp, forked));

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
	vmad_connecting_close_in_child(&nic->connecting);
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

int nic_xdp_find_inherited_right(unsigned ifindex)
{
	int fd = -1;

	for (unsigned i = 0; i < nrights && fd < 0; i++)
		if (rights[i].ifindex == ifindex)
			fd = nic_fd_dup(rights[i].fd);
	return fd;
}

int vma_nic_set_children_inherit_right(struct vma_nic *base, enum vma_nic_inherit_right to)
{
	struct nic_xdp *nic = (struct nic_xdp *)base;
	int rc = 0;

	if (base->ops != &vma_nic_xdp_ops)
		return -EOPNOTSUPP;
	if (!nic_xdp_opened_by_this_process(nic))
		return -ENODEV;
	if (to != VMA_NIC_INHERIT_NOBODY)
		rc = vmad_permission_socket_set_mark(nic->right_fd, base->info.ifindex, to == VMA_NIC_INHERIT_ANY_USER);
	nic->inherited_right = to != VMA_NIC_INHERIT_NOBODY && rc == 0;
	return rc;
}
