/* backends - which backends this build has. */
#include <string.h>

#include "backends.h"

static const struct vma_nic_ops *const backends[] = {&vma_nic_wire_ops, &vma_nic_xdp_ops, &vma_nic_verbs_ops,
                                                     &vma_nic_auto_ops};

const struct vma_nic_ops *nic_backend_find(const char *spec, size_t len)
{
	for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
		const struct vma_nic_ops *ops = backends[i];
		if (ops != NULL && strncmp(ops->name, spec, len) == 0 && ops->name[len] == '\0')
			return ops;
	}
	return NULL;
}
