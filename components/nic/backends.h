/* backends - the table of backends; a new one is one line in backends.c. */
#ifndef VMA_NIC_BACKENDS_H
#define VMA_NIC_BACKENDS_H

#include <stddef.h>

#include <vma/nic.h>

extern const struct vma_nic_ops vma_nic_xdp_ops;  /* client/client.c */
extern const struct vma_nic_ops vma_nic_wire_ops; /* wire/wire.c */

/* The backend whose name is the first `len` bytes of `spec`, or NULL. */
const struct vma_nic_ops *nic_backend_find(const char *spec, size_t len);

#endif
