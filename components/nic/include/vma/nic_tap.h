/*
 * nic_tap - every packet that queue pairs receive and send is copied into a capture (<vma/capture.h>), for a while.
 *
 * Without a capture, a packet costs nothing. For a capture, a queue pair gets another table of operations: its poll_rx
 * and tx call the backend's, and copy.
 *
 * Threads: any. Progress: a tap ends by itself when its time is over; the thread that notices only tries the lock.
 * Memory: a capture outlives its tap (it lasts as long as the process).
 * Example: tests/e2e/vma_dump.sh.
 */
#ifndef VMA_NIC_TAP_H
#define VMA_NIC_TAP_H

#include <vma/nic.h>

struct vma_capture;
/* On for all queue pairs, those to come as well, until the capture is not wanted any more. Control path. */
void vma_nic_tap_start_capture(struct vma_capture *capture);
/* In a forked child: its parent's capture is not its own. */
void vma_nic_tap_stop_in_child(void);

extern struct vma_capture *_Atomic vma_nic_tap_capture; /* for the two below */
void vma_nic_tap_note_drop(const struct vma_nic_qp *qp, const struct vma_buf *packet, const char *reason)
        __attribute__((cold));
/* The packet, which the caller holds, is dropped for that reason. */
static inline void vma_nic_tap_on_drop(const struct vma_nic_qp *qp, const struct vma_buf *packet, const char *reason)
{
	if (__builtin_expect(atomic_load_explicit(&vma_nic_tap_capture, memory_order_relaxed) != NULL, 0))
		vma_nic_tap_note_drop(qp, packet, reason);
}
void vma_nic_tap_note_copy(const struct vma_nic_qp *qp, const struct vma_buf *packet, const struct vma_buf *copy)
        __attribute__((cold));
/* The packet, which the caller still holds, goes on as its copy. */
static inline void vma_nic_tap_on_copy(const struct vma_nic_qp *qp, const struct vma_buf *packet,
                                       const struct vma_buf *copy)
{
	if (__builtin_expect(atomic_load_explicit(&vma_nic_tap_capture, memory_order_relaxed) != NULL, 0))
		vma_nic_tap_note_copy(qp, packet, copy);
}

#endif
