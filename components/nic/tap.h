/* tap - for the front: queue pairs that a tap may have to be put on. */
#ifndef VMA_NIC_TAP_PRIV_H
#define VMA_NIC_TAP_PRIV_H

#include <vma/nic.h>

void nic_tap_register_queue_pair(struct vma_nic_qp *qp);
void nic_tap_unregister_queue_pair(struct vma_nic_qp *qp);

#endif
