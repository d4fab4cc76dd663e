/* backends - the table of backends; a new one is one line in backends.c. */
#ifndef VMA_NIC_BACKENDS_H
#define VMA_NIC_BACKENDS_H

#include <stddef.h>

#include <vma/nic.h>

extern const struct vma_nic_ops vma_nic_xdp_ops;   /* client/client.c */
extern const struct vma_nic_ops vma_nic_wire_ops;  /* wire/wire.c */
extern const struct vma_nic_ops vma_nic_verbs_ops; /* verbs/verbs.c */
extern const struct vma_nic_ops vma_nic_auto_ops;  /* auto.c */

/* silent: -ENODEV of an interface without RDMA device gets no line in the log. */
int nic_verbs_open(const char *name, const struct vma_nic_attr *attr, bool silent, struct vma_nic **out);

/* The backend whose name is the first `len` bytes of `spec`, or NULL. */
const struct vma_nic_ops *nic_backend_find(const char *spec, size_t len);

#endif
