/*
 * nic_wire - the link in memory: a pair of ends in one process, seeded faults, virtual time.
 *
 * Threads: as nic.h; a fault plan or the clock is changed only while nobody drives either end.
 * Progress: the two ends share no lock; each direction is one single-producer single-consumer queue.
 * Memory: frames are copied through the link's own memory, so a peer never sees the arena of the other.
 * Example: test/test_wire.c.
 *
 * The two-process form ("wire:FILE", vma_nic_open) uses the same queues in a file: whatever the other side writes
 * into it, this side neither crashes nor waits; what makes no sense is dropped and counted.
 */
#ifndef VMA_NIC_WIRE_H
#define VMA_NIC_WIRE_H

#include <stdint.h>

#include <vma/nic.h>

/* Probabilities are per million frames; delays in nanoseconds of the link's clock. Same seed, same faults. */
struct vma_wire_faults {
	uint64_t seed;
	uint32_t loss_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm;
	uint64_t delay_ns, jitter_ns;
	uint32_t reorder_depth; /* a reordered frame is overtaken by up to this many */
};

struct vma_wire_pair_attr {
	struct vma_bufarena *arena[2]; /* may be the same */
	uint32_t queue_frames;	       /* bound of each direction; 0: 1024 */
	uint32_t mtu;		       /* 0: 1500 */
	uint64_t *virtual_now_ns;      /* NULL: CLOCK_MONOTONIC; else the test moves this clock */
	struct vma_wire_faults faults[2]; /* of the direction that starts at end i */
	bool memory_link;	       /* VMA_NIC_CAP_MEMORY_LINK */
};

/* Two nics, one end each. Close both. Several queue pairs per end; flows steer between them as on a device. */
int vma_wire_pair(const struct vma_wire_pair_attr *attr, struct vma_nic *out[2]);
void vma_wire_set_faults(struct vma_nic *nic, const struct vma_wire_faults *faults);

struct vma_wire_counts {
	uint64_t sent, delivered, lost, duplicated, reordered, corrupted, queue_full, no_flow, no_buffer, bad_peer;
};
void vma_wire_counts(const struct vma_nic *nic, struct vma_wire_counts *out); /* of the direction from this end */

#endif
