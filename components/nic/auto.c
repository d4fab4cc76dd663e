/*
 * auto - chooses the backend of an interface: verbs if the interface has a usable RDMA device, else xdp.
 *
 * It has no queue pairs of its own: open returns a nic of the other backend.
 */
#include <errno.h>
#include <stddef.h>

#include "backends.h"

/* If it has a device that cannot be used, verbs has said why. */
static int nic_open_verbs_or_xdp(const char *name, const struct vma_nic_attr *attr, struct vma_nic **out)
{
	const int rc = nic_verbs_open(name, attr, true, out);

	return rc == 0 ? 0 : vma_nic_xdp_ops.open(name, attr, out);
}

static int nic_auto_probe(const char *name, const struct vma_nic_attr *attr)
{
	const int rc = vma_nic_verbs_ops.look(name, attr);

	return rc >= 0 ? rc : vma_nic_xdp_ops.look(name, attr);
}

const struct vma_nic_ops vma_nic_auto_ops = {.name = "auto", .open = nic_open_verbs_or_xdp, .look = nic_auto_probe};
