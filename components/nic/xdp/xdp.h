/*
 * xdp - the structures and functions that the parts of the xdp backend share.
 *
 *                      +-- owner (owner/owner.c: in this process, or inside vmad) ------------------+
 *                      |  xdp_prog   program, bpf_link, flow map, socket map      (prog.c)          |
 *   interface -------->|  per device queue: base AF_XDP socket = UMEM + fill + completion ring      |
 *                      |  packet memory: one memfd        shared object: one memfd  (shared.c)      |
 *                      +------+-------------------------------------------------+-------------------+
 *        a queue pair (slot)  |  one AF_XDP socket per device queue, handed over by SCM_RIGHTS
 *                      +------v------ client (client/client.c) ------+
 *                      | maps packet memory, shared object, the fill and completion rings, its own
 *                      | RX and TX rings; drives all of them with plain loads and stores
 *
 * Frames. The window has `nframes` frames. At any time a frame is in exactly one of five places. It is free with the
 * owner, in a fill ring, in an RX ring, held by slot s (`holder[f] == s`), or in a slot's TX range. RX frames belong to
 * the device queue, not to a client. The client that polled a frame holds it and gives it back to a fill ring. TX
 * ranges are rented with the slot and come back through the completion ring, which is shared. The client that drains
 * the completion ring marks each frame completed, where its slot finds it.
 *
 * Crash safety. A client may be killed between any two instructions. holder[] and the redo records of xdp_shared make
 * every multi-step change either visible whole or repeatable by the owner's recovery.
 *
 * Threads: the owner's functions by one thread at a time (the nic's lock, or vmad's only thread). RX and TX rings by
 * the thread that has that half of the queue pair. Fill and completion rings by the holder of their lock in shared.h,
 * of any process.
 */
#ifndef VMA_NIC_XDP_XDP_H
#define VMA_NIC_XDP_XDP_H

#include <linux/if_xdp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vma/nic.h>

/* Newer than the oldest <linux/if_xdp.h> that we build with. */
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4) /* bind flag of the base socket: packets may span several frames */
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0) /* desc.options: the packet goes on in the next descriptor */
#endif

#define XDP_SLOTS_MAX 64  /* queue pairs of one interface at a time */
#define XDP_QUEUES_MAX 64 /* device queues */
#define XDP_FRAME_SHIFT 11
#define XDP_FRAMES_MAX 524288 /* of all device queues together: 1 GB */
#define XDP_FILL_SIZE 8192    /* entries of a fill ring: room for every RX frame of a device queue, so never full */
#define XDP_COMP_SIZE 4096
#define XDP_HOLDER_NONE 0      /* holder[] and lock values: 0 nobody, slot + 1, or XDP_HOLDER_OWNER */
#define XDP_HOLDER_FILL 0xfffe /* in a fill ring or on its way through the kernel */
#define XDP_HOLDER_OWNER 0xffff

/* ---- sock.c: AF_XDP sockets and their rings ---- */

/* A ring of addresses (fill, completion) or descriptors (RX, TX) as the kernel maps it. */
struct xdp_ring {
	_Atomic uint32_t *producer, *consumer, *flags;
	union {
		uint64_t *addrs;
		struct xdp_desc *descs;
	};
	uint32_t size, mask;
	uint32_t cached_producer, cached_consumer; /* RX and TX only: private to the one thread that drives */
	void *map;
	size_t map_bytes;
};

/* What an owner cannot do without, and this kernel has not, or lets this process not have: -errno, and *what names the
 * call; 0: all is there. What the capabilities of the process do not cover is told as EPERM, too. */
int xdp_sock_check_kernel(const char **what);
/* Whether frames of several buffers can be had (Linux 6.6). Needs CAP_NET_RAW, and says no without. */
bool xdp_sock_supports_multi_buffer(void);
#define XDP_LACKS_MEMFD "memfd_create()"
/*
 * The first device queue's base socket: registers `umem` and binds with `bind_flags` (XDP_USE_SG where the MTU needs
 * it; XDP_USE_NEED_WAKEUP is always added). fd or -errno; -ENOBUFS: RLIMIT_MEMLOCK does not cover umem_bytes. *tx_csum
 * becomes whether a frame to send may have struct xdp_tx_metadata before it; then every one needs the room for it, be
 * it asked for anything or not. NULL: not wanted.
 */
int xdp_sock_open_with_umem(void *umem, size_t umem_bytes, unsigned ifindex, uint32_t queue, uint16_t bind_flags,
                            bool *tx_csum);

/* As the kernel has it (linux/if_xdp.h, Linux 6.8), without what only later ones know. */
struct xdp_tx_metadata {
	uint64_t flags;
	uint16_t csum_start, csum_offset; /* from the frame's begin; from there to the field */
	uint32_t rest;
};
#define XDP_TX_METADATA_BYTES 16
#define XDP_TX_METADATA_CSUM (1 << 1)
#define XDP_DESC_TX_METADATA (1 << 1) /* of a descriptor: there is some */
_Static_assert(sizeof(struct xdp_tx_metadata) == XDP_TX_METADATA_BYTES, "registered with this length");
/* Base socket of another device queue, sharing the UMEM of `umem_fd`, with fill and completion rings of its own. The
 * kernel takes the mode from the first one; `bind_flags` is accepted for symmetry and not passed on. */
int xdp_sock_open_on_shared_umem(int umem_fd, unsigned ifindex, uint32_t queue, uint16_t bind_flags);
/* A queue pair's socket on a device queue whose base socket is `base_fd`: RX and TX ring of its own. fd or -errno;
 * EBUSY is retried for 100 ms. */
int xdp_sock_open_for_slot(int base_fd, unsigned ifindex, uint32_t queue, uint32_t rx_size, uint32_t tx_size);
/* Map what is behind fd; 0 or -errno. Mappings are MADV_DONTFORK. */
int xdp_sock_map_umem_rings(int fd, struct xdp_ring *fill, struct xdp_ring *comp);
int xdp_sock_map_queue_rings(int fd, uint32_t rx_size, uint32_t tx_size, struct xdp_ring *rx, struct xdp_ring *tx);
void xdp_ring_unmap(struct xdp_ring *ring);

/* ---- prog.c and steer.bpf.c: program, flow map, socket map ---- */

struct xdp_prog;
int xdp_prog_load(unsigned ifindex, uint32_t queues, struct xdp_prog **out);
/* What keeps the program and its maps: for an fdstore, and from one. The link has a descriptor of its own, -1: not
 * attached. Adoption takes the descriptors over (they become -1) also if it fails. */
#define XDP_PROG_FDS 8
void xdp_prog_fds(const struct xdp_prog *prog, int fds[XDP_PROG_FDS]);
int xdp_prog_link_fd(const struct xdp_prog *prog);
size_t xdp_prog_variables_bytes(void); /* of the layout that both sides must have */
int xdp_prog_adopt(unsigned ifindex, uint32_t queues, int fds[XDP_PROG_FDS], int *link_fd, bool generic,
                   struct xdp_prog **out);
struct xdp_flow_map_entry {
	struct vma_flow_key key;
	uint32_t slot; /* of a minisock: its number */
	bool is_listener, is_minisock, in_grace;
	uint32_t group, spread;
};
#define XDP_PROG_ENTRIES 65536
/* Every entry of an adopted program's map, whose counters are right from then on. `see` changes nothing there; not 0:
 * it ends, and that is its result. */
int xdp_prog_for_each_flow(struct xdp_prog *prog, int (*see)(void *arg, const struct xdp_flow_map_entry *entry),
                           void *arg);
void xdp_prog_destroy(struct xdp_prog *prog);
/* From now on, a bit for each local port that an entry of the map has for TCP, blocks left out. */
void xdp_prog_set_port_bitmap(struct xdp_prog *prog, _Atomic uint64_t *named);
/* Where clients put ports that they take (claims.h), and what they map it by; NULL and -1: nowhere. */
struct xdp_claim_bucket;
struct xdp_claim_bucket *xdp_prog_claims(const struct xdp_prog *prog, int *fd);
void xdp_prog_enable_claims_if_mapped(struct xdp_prog *prog); /* from now on the program does */
/* Native mode, else generic (one warning); 0 or -errno. *generic tells. Idempotent. */
int xdp_prog_attach(struct xdp_prog *prog, bool *generic);
/* What is sent to another MAC is not ours: to be called when the interface's may have changed, since attach. */
void xdp_prog_refresh_mac(struct xdp_prog *prog);
void xdp_prog_detach(struct xdp_prog *prog);
/* In a child after fork: closes the fds that it inherited and nothing else; the parent's objects live on. */
void xdp_prog_close_in_child(struct xdp_prog *prog);
bool xdp_prog_attached(const struct xdp_prog *prog);
int xdp_prog_set_socket(struct xdp_prog *prog, uint32_t slot, uint32_t queue, int xsk_fd);
void xdp_prog_clear_socket(struct xdp_prog *prog, uint32_t slot, uint32_t queue);
#define XDP_PROG_YIELDS (1u << 31) /* a flag besides a rule's own: XDP_FLOW_YIELDS */
int xdp_prog_flow_add(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t flags);
int xdp_prog_flow_replace(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot,
                          uint32_t flags); /* in place of a minisock, or of what is in grace */
/* From another slot, and with the flags that it has; vma_flow_may_move_to_other_qp. */
int xdp_prog_flow_move(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot);
/* A listener's flow becomes a group's, or one slot's again (group 0). Group 0 is none. */
int xdp_prog_flow_set_listener_group(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot,
                                     uint32_t group);
/* A UDP flow from any peer goes to the slots in the buckets of this group; `slot` is one of them. */
int xdp_prog_flow_spread(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot, uint32_t group);
struct xdp_group;
/* Groups as the program sees them, XDP_GROUPS; NULL: there can be none. */
struct xdp_group *xdp_prog_groups(const struct xdp_prog *prog);
void xdp_prog_count_slot_rental(struct xdp_prog *prog, uint32_t slot); /* anew: what was noted of it is void */
/* Segments of this connection, which has no flow, go to `slot`, as long as its listener is a group's. */
void xdp_prog_add_recent_connection(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot);
int xdp_prog_flow_begin_grace(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t slot,
                              uint32_t group);                                /* of a listener's, that is there */
int xdp_prog_flow_del(struct xdp_prog *prog, const struct vma_flow_key *key); /* or minisock */
/* `number`: not 0, and of no other minisock. in_place: of a flow, or a minisock, that is there. */
int xdp_prog_minisock_set(struct xdp_prog *prog, const struct vma_flow_key *key, uint32_t number, bool in_place);
/* Segments that met a minisock (struct xdp_minisock_segment), one call each from read; see returns 0, or -errno to end
 * this read, whose result it is: the rest waits. fd is readable when there are some; -1: not open. */
int xdp_prog_open_minisock_segment_ring(struct xdp_prog *prog, int (*see)(void *arg, void *segment, size_t bytes),
                                        void *arg);
int xdp_prog_minisock_segments_fd(const struct xdp_prog *prog);
int xdp_prog_consume_minisock_segments(struct xdp_prog *prog);

/* ---- shared.c: the fill/completion object of each device queue, driven by try-acquire by whoever needs it ---- */

struct xdp_shared; /* lives in a memfd; layout in shared.h */
/* A fixed size, most of it never touched; 0: more than XDP_FRAMES_MAX. */
size_t xdp_shared_bytes(uint32_t nframes);
/* In zeroed memory. The owner holds all frames. A client may overwrite `nframes` in there: the owner goes by its own.
 */
void xdp_shared_init(struct xdp_shared *shared, uint32_t nframes, uint32_t queues);
int xdp_shared_check(const struct xdp_shared *shared, size_t bytes); /* magic, version, sizes; -EPROTO */

/* Who drives: one per client and device queue. `fill` and `comp` map the same kernel rings in every client. */
struct xdp_shared_rings_user {
	struct xdp_shared *shared;
	struct xdp_ring *fill, *comp;
	uint32_t queue;
	uint16_t self; /* slot + 1, or XDP_HOLDER_OWNER */
};

/* Frames (indices) that `self` holds go into the fill ring; returns how many (0: taken by another, or full). One that
 * `self` does not hold is counted as taken and left alone. */
unsigned xdp_shared_put_in_fill_ring(struct xdp_shared_rings_user *driver, const uint32_t *frames, unsigned n);
/* Routes completions from the kernel's ring to their slots; returns how many, 0 if taken by another. */
unsigned xdp_shared_drain_completion_ring(struct xdp_shared_rings_user *driver);
/* `self` now holds `frame` that its RX ring gave. Order for crash safety: hold every frame of the batch, publish the RX
 * consumer index (release), and only then fill, hand on or otherwise use them. */
void xdp_shared_set_frame_holder(struct xdp_shared_rings_user *driver, uint32_t frame);
/* Completed TX frames of the caller's slot. Single consumer. */
unsigned xdp_shared_take_completed_tx(struct xdp_shared *shared, uint32_t slot, uint32_t *frames, unsigned n);
/* TX range of a slot, set by the owner before the slot is rented out. No frame of the range is in flight. */
void xdp_shared_set_tx_range_of_slot(struct xdp_shared *shared, uint32_t slot, uint32_t tx_first, uint32_t tx_count);
/* The client marks each TX frame before it publishes the TX producer index: `tx_index` is the index (not masked) that
 * the frame's descriptor has in the TX ring of device queue `queue`, by which the owner can tell after a crash whether
 * the kernel has ever seen it. */
void xdp_shared_set_tx_frame_in_flight(struct xdp_shared *shared, uint32_t frame, uint32_t queue, uint32_t tx_index);
/*
 * Owner, after the client of `slot` is known to be dead: finishes or undoes what it was in the middle of, on every
 * queue, frees locks that it held, puts its slot's completions to rest. Then next_held walks the frames it held.
 */
void xdp_shared_release_dead_locks(struct xdp_shared_rings_user *drivers, uint32_t queues, uint32_t slot);
/*
 * Owner: a lock that `nobody` holds, a number of no living client, is free again, as after a death. False: it has
 * another value now. A living client may have stored that number over the one of who holds the lock: so the owner waits
 * until the number has stood there for longer than anybody needs the lock.
 */
enum xdp_lock_kind { XDP_LOCK_FILL, XDP_LOCK_COMP, XDP_LOCKS };
bool xdp_shared_break_lock(struct xdp_shared_rings_user *driver, enum xdp_lock_kind which, uint32_t nobody);
/* How many frames below `end` the slot holds, as the record says. */
uint32_t xdp_shared_count_frames_held_by_slot(const struct xdp_shared *shared, uint32_t slot, uint32_t end);
/* Takes up to n frames that `slot` still holds over to the owner (holder becomes OWNER), from *at on and below `end`;
 * *at moves on, so that a living client which goes on writing there cannot keep the owner busy. */
unsigned xdp_shared_take_frames_of_slot(struct xdp_shared *shared, uint32_t slot, uint32_t *at, uint32_t end,
                                        uint32_t *frames, unsigned n);
/* Owner, for each RX ring of a dead client's sockets (out of the socket map by now): frames that lie in the ring become
 * held by `slot`, to be seized; the ring is left empty. */
unsigned xdp_shared_hold_frames_in_rx_ring(struct xdp_shared *shared, uint32_t slot, struct xdp_ring *rx);
/* Owner, for each TX ring of a dead client's sockets: frames of its range marked in flight at an index that the kernel
 * will never take are not in flight. `taken`: the ring's consumer index if nobody will kick that socket any more, else
 * its producer index. Without this call such frames count as in flight for ever. */
void xdp_shared_reset_unsent_tx_frames(struct xdp_shared *shared, uint32_t first, uint32_t count, uint32_t queue,
                                       uint32_t taken);
/* Of `count` TX frames those whose completion has not come yet. */
uint32_t xdp_shared_count_in_flight(const struct xdp_shared *shared, uint32_t first, uint32_t count);

#endif
