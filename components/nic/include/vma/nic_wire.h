/*
 * nic_wire - the link in memory: a pair of ends in one process, seeded faults, virtual time.
 *
 *   end 0                                                                 end 1
 *   qp tx ──copy──> lane of that qp (SPSC, fixed slots) ──> receive engine ──steer, copy──> posted buffers of a qp
 *
 * Each queue pair sends into a lane of its own. The receiving end has one engine; a thread that polls drives it, by
 * try-acquire. The engine takes frames from the lanes, applies faults and steers by flow (5-tuple before 3-tuple). It
 * fills the buffers that the queue pair has posted, as a device does. If no flow wants a frame, it is dropped and
 * counted (no_flow).
 *
 * The two-process form ("wire:FILE" or "wire:FILE,mtu=N", vma_nic_open) uses the same lanes in a sealed memfd. FILE is
 * a unix socket (mode 0600). The end that came first hands a new memfd to the second there. If an end's process dies,
 * another may take its place; the survivor goes on. A third gets -EBUSY. This side neither crashes nor waits for any
 * bytes that the other side writes into the memory. Frames and indices that make no sense are dropped and counted
 * (bad_peer). A hostile peer can send any frame, drop its own, and make this side ring or wake for nothing, one system
 * call per kick. Before the second end is there, and after it has gone, frames sent are dropped (lost). Faults, the
 * virtual clock and moderation belong to the pair.
 *
 * Threads: as nic.h. A fault plan or the virtual clock is changed only while no thread drives either end.
 * Progress: no data call waits. Without faults nothing is lost while an end has one queue pair. A full lane makes tx
 *           return short, and a frame without posted buffer waits in its lane. With several queue pairs, a frame for
 *           one that has no buffer is dropped (no_buffer), so it holds up no other. In the two-process form, a peer
 *           that has taken nothing from a full lane for 10 ms counts as gone until it moves. Frames to it are dropped
 *           (queue_full), so it cannot hold up this side.
 * Memory: frames are copied through the link's own memory, so a peer never sees the arena of the other. That memory is
 *         not inherited: a forked child must leave its parent's wires alone, and may open an end of its own.
 * Example: test/test_wire.c.
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
	uint32_t reorder_depth; /* a reordered frame is overtaken by 1 to this many (0: 4), or waits 1 ms for them */
};

struct vma_wire_pair_attr {
	struct vma_bufarena *arena[2];    /* may be the same */
	uint32_t queue_frames;            /* bound of each lane and of the delay line, 1 to 65536; 0: 1024 */
	uint32_t mtu;                     /* 0: 1500 */
	uint64_t *virtual_now_ns;         /* NULL: CLOCK_MONOTONIC; else the test moves this clock */
	struct vma_wire_faults faults[2]; /* of the direction that starts at end i */
	bool memory_link;                 /* VMA_NIC_CAP_MEMORY_LINK */
	bool checksum_offload;            /* VMA_NIC_CAP_TX_CSUM and VMA_NIC_CAP_RX_CSUM, done in software */
	bool segmentation_offload;        /* VMA_NIC_CAP_TSO, the same; with checksum_offload */
};

/* Two nics, one end each. Close both. Several queue pairs per end (16); flows steer between them as on a device. */
int vma_wire_create_pair(const struct vma_wire_pair_attr *attr, struct vma_nic *out[2]);

/* Of the direction that starts at `nic`, one end of a pair. 0, -ENOMEM, or -EOPNOTSUPP for the two-process form. The
 * fate of the n-th frame of a lane depends on the seed, the lane and n only. Frames that are delayed at the moment keep
 * their time. */
int vma_wire_set_faults(struct vma_nic *nic, const struct vma_wire_faults *faults);

/*
 * Looks at the clock for both ends of a pair: delivers delayed frames that are due, and reports to armed queue pairs
 * whose moderation period is over. A test calls it after it moved the virtual clock; with CLOCK_MONOTONIC timers do so.
 * poll_rx and arm look at the clock, too.
 */
void vma_wire_drive_both_ends(struct vma_nic *nic);
/* When the next frame that was sent from this end and is delayed on its way arrives, by the link's clock: where a test
 * moves the virtual clock to. UINT64_MAX: none is. Frames count from the tick (or poll) after they were kicked off. */
uint64_t vma_wire_next_arrival_ns(struct vma_nic *nic);

/*
 * X(name, text). Of a pair: the direction that starts at this end. Of the two-process form: sent, lost, queue_full of
 * what this end sent, the rest of what it received (the other end's counters are in the other process).
 */
#define VMA_WIRE_COUNTS(X)                                                                                             \
	X(sent, "frames kicked off")                                                                                   \
	X(delivered, "frames written into posted buffers")                                                             \
	X(lost, "lost by the fault plan, or sent while there was no other end")                                        \
	X(duplicated, "sent twice by the fault plan")                                                                  \
	X(reordered, "held back by the fault plan until later frames had overtaken")                                   \
	X(corrupted, "one bit turned by the fault plan")                                                               \
	X(queue_full, "dropped: the delay line was full, or a peer that does not take")                                \
	X(no_flow, "dropped: no flow wants it")                                                                        \
	X(no_buffer, "dropped: its queue pair, one of several, had no buffer posted")                                  \
	X(bad_peer, "dropped: what the peer wrote makes no sense")

struct vma_wire_counts {
#define X(name, text) uint64_t name;
	VMA_WIRE_COUNTS(X)
#undef X
};
void vma_wire_read_counters(const struct vma_nic *nic, struct vma_wire_counts *out);

#endif
