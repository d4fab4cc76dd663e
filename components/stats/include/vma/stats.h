/*
 * stats - counters that another process can read while they are written.
 *
 * Threads: a block, or half of a block that has a line of its own, has one writer at a time (the driver of that ring,
 *          the owner of that cache). Readers, in this process or another, need only the mapping. Any thread takes
 *          blocks and puts them back, under a lock-free bitmap.
 * Progress: a counter update is a relaxed load, an add and a relaxed store; no fence, no system call.
 * Memory: one shared mapping, file VMA_STATS_SHMEM_DIR/vmastat.PID (anonymous if the directory is empty), removed by
 *         destroy. Blocks are cache-line aligned and padded, so two writers never share a line. The file is for the
 *         same user (0600), its space is reserved at creation, and a lock on it tells a live one from a leftover. fork:
 *         parent and child see the same blocks. A child that counts creates a segment of its own and leaves its
 *         parent's alone. If the child destroys the inherited one, it is unmapped there and nothing is removed.
 * Example: test/test_segment.c.
 */
#ifndef VMA_STATS_H
#define VMA_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each list gives fields, names and printout: X(name, "text"). Append only: the layout version counts changes. */
#define VMA_STATS_RING_RX(X)                                                                                           \
	X(rx_packets, "packets received")                                                                              \
	X(rx_bytes, "bytes received, with headers")                                                                    \
	X(rx_delivered, "deliveries to flows (a multicast packet counts once per member)")                             \
	X(rx_commands, "commands drained for other threads")                                                           \
	X(rx_drop_runt, "dropped: shorter than its headers")                                                           \
	X(rx_drop_ethertype, "dropped: neither IPv4 nor VLAN with IPv4")                                               \
	X(rx_drop_ip_version, "dropped: IP version or header length")                                                  \
	X(rx_drop_ip_length, "dropped: IP total length beyond the frame")                                              \
	X(rx_drop_ip_checksum, "dropped: IP header checksum")                                                          \
	X(rx_drop_ip_fragment, "dropped: fragment")                                                                    \
	X(rx_drop_protocol, "dropped: neither UDP nor TCP")                                                            \
	X(rx_drop_l4_length, "dropped: UDP or TCP header or length")                                                   \
	X(rx_drop_l4_checksum, "dropped: UDP or TCP checksum")                                                         \
	X(rx_drop_no_flow, "dropped: no flow wants it")                                                                \
	X(rx_drop_sink, "dropped: the flow refused it")                                                                \
	X(rx_drop_chain, "dropped: broken or oversized multi-buffer frame")

#define VMA_STATS_RING_TX(X)                                                                                           \
	X(tx_packets, "packets handed to the NIC")                                                                     \
	X(tx_bytes, "bytes handed to the NIC")                                                                         \
	X(tx_kicks, "kicks")                                                                                           \
	X(tx_full, "times the NIC took nothing")                                                                       \
	X(tx_commands, "frames sent for other threads")                                                                \
	X(tx_drop_too_long, "refused: longer than the MTU")                                                            \
	X(tx_drop_queue, "refused: send queue full")                                                                   \
	X(tx_drop_bad, "refused: not a whole frame, or an offload that the NIC lacks")

#define VMA_STATS_CQ(X)                                                                                                \
	X(polls, "polls")                                                                                              \
	X(polls_empty, "polls that found nothing")                                                                     \
	X(packets, "packets polled")                                                                                   \
	X(buffers_posted, "receive buffers posted")                                                                    \
	X(refill_short, "refills that had to post less than wanted")                                                   \
	X(copied_out, "frames moved to ordinary memory to free the window")                                            \
	X(drop_no_memory, "dropped: no ordinary memory left for a long-held frame")                                    \
	X(drop_chain, "dropped: more buffers to one packet than the longest packet can need")                          \
	X(arms, "arms")                                                                                                \
	X(wakeups, "wake-ups from a wait")                                                                             \
	X(moderation_count, "moderation in force: packets")                                                            \
	X(moderation_period_usec, "moderation in force: microseconds")

#define VMA_STATS_BUFPOOL(X)                                                                                           \
	X(buffers, "buffers that exist")                                                                               \
	X(grown, "times the pool grew")                                                                                \
	X(exhausted, "requests that found nothing")                                                                    \
	X(batches_out, "batches taken from the shared ring")                                                           \
	X(batches_in, "batches put back to the shared ring")

/* Of one queue pair. The receive half's user writes the first line, the transmit half's the second. */
#define VMA_STATS_NIC_RX(X)                                                                                            \
	X(rx_frames, "frames received")                                                                                \
	X(rx_bytes, "bytes received, with headers")                                                                    \
	X(rx_ring_full, "times the receive queue stood full")                                                          \
	X(rx_dropped, "dropped by the device or the kernel for lack of buffers")                                       \
	X(rx_bad_descriptor, "dropped: a descriptor outside our memory")                                               \
	X(fill_busy, "fills put off: the shared part was in another's hands")                                          \
	X(fill_posted, "receive buffers posted")

#define VMA_STATS_NIC_TX(X)                                                                                            \
	X(tx_frames, "frames sent")                                                                                    \
	X(tx_bytes, "bytes sent, with headers")                                                                        \
	X(tx_foreign, "dropped: buffers of an older binding")                                                          \
	X(completion_busy, "reaps put off: the shared part was in another's hands")                                    \
	X(completions, "transmit completions")                                                                         \
	X(kicks, "kicks")                                                                                              \
	X(kick_errors, "kicks that failed")

/* Under the nic's lock. */
#define VMA_STATS_NIC_CTL(X)                                                                                           \
	X(rebinds, "times bound again after the owner had gone")                                                       \
	X(flows, "flows installed now")

/* The whole list, for who wants it in one. */
#define VMA_STATS_NIC(X) VMA_STATS_NIC_RX(X) VMA_STATS_NIC_TX(X) VMA_STATS_NIC_CTL(X)

/*
 * Of one socket. The first list is what it is, under its lock; the other two are counted by whoever receives and by
 * whoever sends. A socket may be used by several threads at once, who do not wait for each other to count: then an
 * update may be lost, and the counters are a little less than the truth.
 */
#define VMA_STATS_SOCKET_CTL(X)                                                                                        \
	X(fd, "descriptor")                                                                                            \
	X(offloaded, "offloaded: 1, by the kernel: 0")                                                                 \
	X(reason, "why (not), as a number of the library's list")                                                      \
	X(local_addr, "local IPv4 address, as a number")                                                               \
	X(local_port, "local port")                                                                                    \
	X(peer_addr, "peer's IPv4 address, as a number")                                                               \
	X(peer_port, "peer's port")                                                                                    \
	X(rx_limit_bytes, "receive queue's limit, bytes")

#define VMA_STATS_SOCKET_RX(X)                                                                                         \
	X(rx_packets, "datagrams received offloaded")                                                                  \
	X(rx_bytes, "bytes received offloaded")                                                                        \
	X(rx_os_packets, "datagrams received through the kernel")                                                      \
	X(rx_os_bytes, "bytes received through the kernel")                                                            \
	X(rx_eagain, "receives that found nothing and did not wait")                                                   \
	X(rx_errors, "receives that failed")                                                                           \
	X(rx_poll_hits, "waits that ended while looking")                                                              \
	X(rx_poll_misses, "waits that slept")

/* The sink's: who drives the ring. */
#define VMA_STATS_SOCKET_QUEUE(X)                                                                                      \
	X(rx_dropped, "dropped: the receive queue was full")                                                           \
	X(rx_dropped_bytes, "bytes of those")                                                                          \
	X(rx_queue_max, "most datagrams queued at a time")                                                             \
	X(rx_queue_max_bytes, "most bytes queued at a time")

#define VMA_STATS_SOCKET_TX(X)                                                                                         \
	X(tx_packets, "datagrams sent offloaded")                                                                      \
	X(tx_bytes, "bytes sent offloaded")                                                                            \
	X(tx_os_packets, "datagrams sent through the kernel")                                                          \
	X(tx_os_bytes, "bytes sent through the kernel")                                                                \
	X(tx_eagain, "sends refused: queue full")                                                                      \
	X(tx_drops, "datagrams dropped: queue full")                                                                   \
	X(tx_errors, "sends that failed")                                                                              \
	X(tx_waits, "sends that waited for room")

#define VMA_STATS_SOCKET(X)                                                                                            \
	VMA_STATS_SOCKET_CTL(X) VMA_STATS_SOCKET_RX(X) VMA_STATS_SOCKET_QUEUE(X) VMA_STATS_SOCKET_TX(X)

#define VMA_STATS_ALIGN 64
#define X(name, text) _Atomic uint64_t name;
struct vma_stats_ring_rx {
	VMA_STATS_RING_RX(X)
} __attribute__((aligned(VMA_STATS_ALIGN)));
struct vma_stats_ring_tx {
	VMA_STATS_RING_TX(X)
} __attribute__((aligned(VMA_STATS_ALIGN)));
struct vma_stats_ring {
	struct vma_stats_ring_rx rx; /* written by who holds the receive drive flag */
	struct vma_stats_ring_tx tx; /* written by who holds the transmit drive flag */
};
struct vma_stats_cq {
	VMA_STATS_CQ(X)
} __attribute__((aligned(VMA_STATS_ALIGN)));
struct vma_stats_bufpool {
	VMA_STATS_BUFPOOL(X)
} __attribute__((aligned(VMA_STATS_ALIGN)));
struct vma_stats_nic { /* the three writers' lines; fields are reached as nic->rx_frames */
	struct {
		VMA_STATS_NIC_RX(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
	struct {
		VMA_STATS_NIC_TX(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
	struct {
		VMA_STATS_NIC_CTL(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
};
struct vma_stats_socket { /* the four writers' lines; fields are reached as socket->rx_packets */
	struct {
		VMA_STATS_SOCKET_CTL(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
	struct {
		VMA_STATS_SOCKET_RX(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
	struct {
		VMA_STATS_SOCKET_QUEUE(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
	struct {
		VMA_STATS_SOCKET_TX(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
};
#undef X
_Static_assert(offsetof(struct vma_stats_ring, tx) % VMA_STATS_ALIGN == 0, "two drivers, two lines");
_Static_assert(offsetof(struct vma_stats_nic, tx_frames) % VMA_STATS_ALIGN == 0, "two halves, two lines");
_Static_assert(offsetof(struct vma_stats_nic, rebinds) % VMA_STATS_ALIGN == 0, "control apart from the data path");
_Static_assert(offsetof(struct vma_stats_socket, rx_packets) % VMA_STATS_ALIGN == 0, "receivers apart from control");
_Static_assert(offsetof(struct vma_stats_socket, rx_dropped) % VMA_STATS_ALIGN == 0, "sinks apart from receivers");
_Static_assert(offsetof(struct vma_stats_socket, tx_packets) % VMA_STATS_ALIGN == 0, "senders apart from receivers");

/* X(TYPE, struct, "name"): the kinds of block. */
#define VMA_STATS_TYPES(X)                                                                                             \
	X(RING, vma_stats_ring, "ring")                                                                                \
	X(CQ, vma_stats_cq, "cq")                                                                                      \
	X(BUFPOOL, vma_stats_bufpool, "bufpool")                                                                       \
	X(NIC, vma_stats_nic, "nic")                                                                                   \
	X(SOCKET, vma_stats_socket, "socket")

enum vma_stats_type {
	VMA_STATS_TYPE_FREE,
#define X(name, ...) VMA_STATS_TYPE_##name,
	VMA_STATS_TYPES(X)
#undef X
	        VMA_STATS_TYPE_COUNT /* not a type: one more than the last */
};

struct vma_stats; /* one process's segment */

/* One writer: no lock prefix, and a reader never sees a torn value. */
static inline void vma_stats_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}
static inline void vma_stats_set(_Atomic uint64_t *counter, uint64_t value)
{
	atomic_store_explicit(counter, value, memory_order_relaxed);
}
static inline uint64_t vma_stats_read(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* dir "" or NULL: no file. 0 or -errno (a directory that cannot be written: warns once and continues without file). */
int vma_stats_create(const char *dir, struct vma_stats **out);
/* Removes the file, if this process made it. All blocks have been dropped. NULL is allowed. */
void vma_stats_destroy(struct vma_stats *stats);
/* At exit, while others may still count: the file goes, the blocks stay. */
void vma_stats_hide(struct vma_stats *stats);
/*
 * In a forked child: the parent's file is not held open (and locked) any more. The blocks are memory of the child's own
 * from then on, all zero: what it counts there is its parent's no more. No malloc.
 */
void vma_stats_forked(struct vma_stats *stats);
int vma_stats_fd(const struct vma_stats *stats); /* held open as long as there is a file; -1: none */
/*
 * Removes what killed processes left in `dir` (NULL or "": nothing), for who outlives them: how many files, or -errno.
 * A file is left over when nobody holds its lock, whatever the pid in its name says. Anybody may fill such a directory,
 * so one call looks at 4096 names at most: *at (0 at first) is where the next one goes on, 0 when all have been seen.
 */
int vma_stats_sweep(const char *dir, long *at);

/*
 * A zeroed block of `type` named `name` (cut to VMA_STATS_NAME_MAX - 1 bytes). Never NULL: with stats == NULL or a full
 * segment it is a private block that no reader sees.
 */
#define VMA_STATS_NAME_MAX 32
void *vma_stats_grab(struct vma_stats *stats, enum vma_stats_type type, const char *name);
/* `stats` as at the grab. NULL blocks are allowed. */
void vma_stats_drop(struct vma_stats *stats, void *block);

/* The counters of a type in printing order; NULL and 0 for an unknown type. */
struct vma_stats_field {
	const char *name, *text;
	size_t offset; /* of the counter in its block */
};
const struct vma_stats_field *vma_stats_fields(enum vma_stats_type type, size_t *count);
const char *vma_stats_type_name(enum vma_stats_type type); /* "ring", ...; NULL: unknown */

/*
 * Reader side: maps another process's file read-only after checking magic, version, names and sizes; -EPROTO if they
 * differ. A view is used by one thread at a time. Whatever the file holds, the reader only ever copies within it; the
 * size is checked again before every block. Accepted weakness: a file that its writer truncates in the very moment of
 * a copy raises SIGBUS in the reader, as with every mapping of a foreign file.
 */
struct vma_stats_view;
int vma_stats_view_open(const char *path, struct vma_stats_view **out);
void vma_stats_view_close(struct vma_stats_view *view);
int vma_stats_view_pid(const struct vma_stats_view *view); /* of the writer, as it sees itself */
/*
 * Next used block after *cursor (start with 0): type, name, and a copy of the block taken now; each is valid until the
 * same block is visited again or the view closed. False at the end, and when the file has been truncated.
 */
bool vma_stats_view_next(const struct vma_stats_view *view, size_t *cursor, enum vma_stats_type *type,
                         const char **name, const void **block);

#endif
