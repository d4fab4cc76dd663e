/*
 * shared - the layout of the object that the owner and the clients of an interface share; its functions are in xdp.h.
 *
 *   queue[q].fill      lock word, redo record         its holder may write the fill ring of device queue q
 *   queue[q].comp      lock word, position, tags      its holder may read the queue's completion ring
 *   slot[s]            TX range, rescan flag          what slot s rents
 *   hints[s][q]        a ring of frames               "look at this frame's state", from queue q to slot s
 *   holder[frame]      RX side: the holder of the frame
 *   state[frame]       TX side: idle, in flight, or completed
 *   route[frame]       TX side: the slot that rents the frame
 *   named[port / 64]   a bit for each local port that an entry of the program's map names for TCP, blocks left out
 *   tenants            processes that have slots
 *   claims_open        flows may be claimed (claims.h); claims_made: how often they were
 *   then, on pages of their own, struct vma_nic_accept_page of each slot (nic_group.h)
 *
 * Threads: any process that has it mapped, by the locks and the single-writer rules below.
 * Progress: no call waits; a lock that is taken makes the call return 0.
 * Memory: one sparse memfd of a fixed size. So every index is bounded by a constant of the program and not by a number
 *         that a client could overwrite. Pages that no frame of the window uses are never touched.
 * Example: test/test_xdp_shared.c; test/stress_xdp_shared.c kills the holders.
 *
 * Writers:
 *   named[]     the owner: a port's bit is set before its first entry comes, and cleared after its last one has gone
 *   tenants     the owner: before a slot's client knows that it has it, and after all that it left is cleared up
 *   claims_*    open: the owner; made: every client
 *   holder[f]   SELF by the client that polled f, FILL by the holder of the fill lock; OWNER and NONE by the owner
 *   state[f]    IDLE -> IN_FLIGHT and COMPLETED -> IDLE by the slot that rents f; IN_FLIGHT -> COMPLETED by the holder
 *               of the completion lock of the queue on which f was sent; the owner when the slot's client is dead
 *   a lock      the caller's number by compare-and-swap from 0; 0 by the holder, or by the owner for a dead holder
 *
 * Accepted weakness: a holder may be stopped (SIGSTOP, a debugger) in one of the few dozen instructions under a lock.
 * Then refill and completions of that device queue stop for all clients until it goes on or is killed. If it has lost
 * the processor there, they stop until it has it again. Each client then receives as many frames as it may hold
 * (rx_quota in nic.h), and the next ones wait in its RX ring. The alternative is to take a lock over from the living.
 * Then every store under it would have to be fenced against the sleeper's late ones.
 *
 * A client that breaks these rules can make frames leak or packets mix among the clients of the interface. They share
 * its packet memory anyway. It cannot make the owner or a client loop or leave an array.
 */
#ifndef VMA_NIC_XDP_SHARED_H
#define VMA_NIC_XDP_SHARED_H

#include "xdp.h"

#define XDP_SHARED_MAGIC 0x70647873u /* "sxdp" */
#define XDP_SHARED_VERSION 5u

/*
 * state[f]: what the frame is doing and, when it is or was in flight, which sending of it this is. The triple (epoch,
 * queue, index) is never used twice for one frame: the index counts the descriptors of one socket (a frame is not in
 * flight for 2^32 of them), and each renting of the frame, which is when sockets change, has a new epoch.
 */
#define XDP_TX_INDEX_MASK 0xffffffffull
#define XDP_TX_QUEUE_SHIFT 32
#define XDP_TX_QUEUE_MASK (0x3full << XDP_TX_QUEUE_SHIFT)
#define XDP_TX_STATE_MASK (3ull << 38)
#define XDP_TX_IDLE (0ull << 38)
#define XDP_TX_IN_FLIGHT (1ull << 38)
#define XDP_TX_COMPLETED (2ull << 38)
#define XDP_TX_EPOCH_SHIFT 40
#define XDP_TX_EPOCH_ONE (1ull << XDP_TX_EPOCH_SHIFT)
#define XDP_TX_EPOCH_MASK (~0ull << XDP_TX_EPOCH_SHIFT)
_Static_assert(XDP_QUEUES_MAX <= 64, "six bits of state");

/* redo of the fill side: how many entries beyond `producer` were being published; 0: none. */
#define XDP_REDO(producer, count) ((uint64_t)(count) << 32 | (producer))
/* position of the completion side: the entry being routed, and which of the two tags belongs to it; 0: none. */
#define XDP_POSITION_VALID (1ull << 63)
#define XDP_POSITION_TAG (1ull << 32)

struct xdp_shared_fill_side {
	_Atomic uint32_t lock;
	_Atomic uint64_t redo;
} __attribute__((aligned(64)));

struct xdp_shared_comp_side {
	_Atomic uint32_t lock;
	_Atomic uint64_t position;
	_Atomic uint64_t tag[2]; /* state word that the entry's frame had before */
} __attribute__((aligned(64)));

struct xdp_shared_queue {
	struct xdp_shared_fill_side fill;
	struct xdp_shared_comp_side comp;
};

struct xdp_shared_slot {
	_Atomic uint32_t rescan; /* hints are missing: look at every frame of the range */
	_Atomic uint32_t tx_first, tx_count;
} __attribute__((aligned(64)));

/*
 * One producer, one consumer, and unlike a ck_ring nothing in it that an index into memory is made of without a mask
 * that is a constant of the program: either side may be another process, dead or worse.
 */
#define XDP_HINTS 512
struct xdp_completed_frame_hints {
	_Atomic uint32_t producer __attribute__((aligned(64)));
	_Atomic uint32_t frame[XDP_HINTS];
	_Atomic uint32_t consumer __attribute__((aligned(64)));
} __attribute__((aligned(64)));

struct xdp_shared {
	uint32_t magic, version, nframes, queues;
	struct xdp_shared_queue queue[XDP_QUEUES_MAX];
	struct xdp_shared_slot slot[XDP_SLOTS_MAX];
	struct xdp_completed_frame_hints hints[XDP_SLOTS_MAX][XDP_QUEUES_MAX];
	_Atomic uint64_t state[XDP_FRAMES_MAX];
	_Atomic uint16_t holder[XDP_FRAMES_MAX];
	_Atomic uint8_t route[XDP_FRAMES_MAX];
	_Atomic uint64_t named[65536 / 64]; /* the owner's */
	_Atomic uint32_t tenants;           /* the owner's */
	_Atomic uint32_t claims_open, claims_made;
};
/* Where the members lie in the object: no part of what a client maps to drive. */
#define XDP_MEMBERS_AT ((sizeof(struct xdp_shared) + 65535) / 65536 * 65536)
#define XDP_OBJECT_BYTES (XDP_MEMBERS_AT + XDP_SLOTS_MAX * sizeof(struct vma_nic_accept_page))
_Static_assert(offsetof(struct xdp_shared_queue, comp) == 64, "filling and completing share no cache line");
_Static_assert(sizeof(struct xdp_shared_slot) == 64, "slots share no cache line");

/* ---- what shared.c and recover.c have in common ---- */

#ifndef XDP_SHARED_STEP
#define XDP_SHARED_STEP() ((void)0) /* a test's hook between two steps */
#endif

#define xdp_load(at) atomic_load_explicit(at, memory_order_acquire)
#define xdp_store(at, value) atomic_store_explicit(at, value, memory_order_release)

/* Read once: others may write there, and what was checked must be what is used. */
static inline uint64_t xdp_addr_at(const struct xdp_ring *ring, uint32_t index)
{
	return __atomic_load_n(&ring->addrs[index & ring->mask], __ATOMIC_RELAXED);
}

static inline uint64_t xdp_frame_index_of_addr(uint64_t addr)
{
	return addr >> XDP_FRAME_SHIFT; /* RX and completion addresses may point into the frame */
}

static inline bool xdp_tx_frame_is_in_flight(uint64_t state, uint32_t queue)
{
	return (state & (XDP_TX_STATE_MASK | XDP_TX_QUEUE_MASK)) ==
	       (XDP_TX_IN_FLIGHT | (uint64_t)queue << XDP_TX_QUEUE_SHIFT);
}

/* xdp_shared_set_frame_holder and xdp_shared_set_tx_frame_in_flight for the hot path; `frame` is below XDP_FRAMES_MAX.
 * */
static inline void xdp_set_frame_holder(struct xdp_shared *shared, uint32_t frame, uint16_t self)
{
	xdp_store(&shared->holder[frame], self);
}

static inline void xdp_tx_frame_set_in_flight(struct xdp_shared *shared, uint32_t frame, uint32_t queue,
                                              uint32_t tx_index)
{
	const uint64_t state = atomic_load_explicit(&shared->state[frame], memory_order_relaxed);

	xdp_store(&shared->state[frame],
	          (state & XDP_TX_EPOCH_MASK) | XDP_TX_IN_FLIGHT | (uint64_t)queue << XDP_TX_QUEUE_SHIFT | tx_index);
}

struct xdp_tx_range {
	uint32_t first, end; /* bounded by XDP_FRAMES_MAX whatever the shared memory says */
};

static inline struct xdp_tx_range xdp_tx_range_of(const struct xdp_shared *shared, uint32_t slot)
{
	const uint32_t first = atomic_load_explicit(&shared->slot[slot].tx_first, memory_order_relaxed);
	const uint32_t count = atomic_load_explicit(&shared->slot[slot].tx_count, memory_order_relaxed);

	if (first >= XDP_FRAMES_MAX)
		return (struct xdp_tx_range){0, 0};
	return (struct xdp_tx_range){first, count < XDP_FRAMES_MAX - first ? first + count : XDP_FRAMES_MAX};
}

/* Under the fill lock: entries [producer, producer + count) of the ring, written before, become the kernel's. */
void xdp_shared_publish_fill_producer(struct xdp_shared_rings_user *driver, uint32_t producer, uint32_t count);

#endif
