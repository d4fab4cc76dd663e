/*
 * stats - counters that another process can read while they are written.
 *
 * Threads: a block has one writer at a time (the driver of that ring, the owner of that cache). So has half of a block
 *          that has a line of its own. Readers, in this process or another, need only the mapping. Any thread takes
 *          blocks and puts them back, under a lock-free bitmap.
 * Progress: a counter update is a relaxed load, an add and a relaxed store; no fence, no system call.
 * Memory: one shared mapping of a memfd, which no other process can shorten or write (seals). The small file
 *         VMA_STATS_SHMEM_DIR/vmastat.PID names it; with an empty directory there is neither. Blocks are cache-line
 *         aligned and padded, so two writers never share a line. The file is for the same user (0600), and a lock on it
 *         tells a live one from a leftover. The call `destroy` removes it. After a fork, parent and child see the same
 *         blocks. A child that counts creates a segment of its own and leaves its parent's alone. If the child destroys
 *         the inherited one, it is unmapped there and nothing is removed.
 * Example: test/test_segment.c.
 */
#ifndef VMA_STATS_H
#define VMA_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Each list gives fields, names and printout: X(name, "text"). Append only: the layout version counts changes. A list
 * whose name ends in _NOW has values that hold now, one that ends in _MAX has maxima; all others count.
 */
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
	X(rx_drop_chain, "dropped: broken or oversized multi-buffer frame")                                            \
	X(rx_drop_martian, "dropped: for the kernel, but it refuses such a source or destination")                     \
	X(rx_to_kernel, "given to the kernel: a rule of the device had taken what may be its")

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
	X(wakeups, "wake-ups from a wait")

#define VMA_STATS_CQ_MAX(X) X(poll_max, "most packets of one poll")

#define VMA_STATS_CQ_NOW(X)                                                                                            \
	X(moderation_count, "moderation in force: packets")                                                            \
	X(moderation_period_usec, "moderation in force: microseconds")                                                 \
	X(spare_buffers, "buffers that wait to be posted")

#define VMA_STATS_BUFPOOL_NOW(X) X(buffers, "buffers that exist")

#define VMA_STATS_BUFPOOL(X)                                                                                           \
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
	X(fill_posted, "receive buffers posted")                                                                       \
	X(rx_errors, "receives that the device ended with an error")

#define VMA_STATS_NIC_TX(X)                                                                                            \
	X(tx_frames, "frames sent")                                                                                    \
	X(tx_bytes, "bytes sent, with headers")                                                                        \
	X(tx_foreign, "dropped: buffers of an older binding")                                                          \
	X(completion_busy, "reaps put off: the shared part was in another's hands")                                    \
	X(completions, "transmit completions")                                                                         \
	X(kicks, "kicks")                                                                                              \
	X(kick_errors, "kicks that failed")                                                                            \
	X(tx_errors, "sends that the device ended with an error")                                                      \
	X(tx_tso, "of the frames, those that the device cuts into several (TSO)")

/* Under the nic's lock. */
#define VMA_STATS_NIC_CTL(X) X(rebinds, "times bound again after the owner had gone")
#define VMA_STATS_NIC_NOW(X) X(flows, "flows installed now")

/*
 * Of one socket. The first list is what it is, under its lock; the other two are counted by whoever receives and by
 * whoever sends. A socket may be used by several threads at once, who do not wait for each other to count: then an
 * update may be lost, and the counters are a little less than the truth.
 */
#define VMA_STATS_SOCKET_NOW(X)                                                                                        \
	X(fd, "descriptor")                                                                                            \
	X(offloaded, "offloaded: 1, by the kernel: 0")                                                                 \
	X(reason, "why (not), as a number of the library's list")                                                      \
	X(local_addr, "local IPv4 address, as a number")                                                               \
	X(local_port, "local port")                                                                                    \
	X(peer_addr, "peer's IPv4 address, as a number")                                                               \
	X(peer_port, "peer's port")                                                                                    \
	X(rx_limit_bytes, "receive queue's limit, bytes")                                                              \
	X(protocol, "IPPROTO_UDP or IPPROTO_TCP")                                                                      \
	X(nonblocking, "O_NONBLOCK: 1, else: 0")                                                                       \
	X(mc_loop, "IP_MULTICAST_LOOP: 1, else: 0")                                                                    \
	X(rule_line, "the line of libvma.conf that has decided; 2147483648 and more: an added rule; 0: none has")      \
	X(ring, "the number of its ring, and 1; 0: it has none")                                                       \
	X(interface_0, "its interface: the name's first eight bytes")                                                  \
	X(interface_1, "its interface: the name's last eight bytes")                                                   \
	X(groups, "multicast groups that it has joined")                                                               \
	X(group_0, "a group's IPv4 address, as a number")                                                              \
	X(group_1, "another's")                                                                                        \
	X(group_2, "another's")                                                                                        \
	X(group_3, "another's")                                                                                        \
	X(group_4, "another's")                                                                                        \
	X(group_5, "another's")                                                                                        \
	X(group_6, "another's")                                                                                        \
	X(group_7, "another's")                                                                                        \
	X(group_8, "another's")                                                                                        \
	X(group_9, "another's")                                                                                        \
	X(group_10, "another's")                                                                                       \
	X(group_11, "another's")                                                                                       \
	X(group_12, "another's")                                                                                       \
	X(group_13, "another's")                                                                                       \
	X(group_14, "another's")                                                                                       \
	X(group_15, "another's")                                                                                       \
	X(last_error, "the errno of the last call that failed, but for EAGAIN; 0: none has")                           \
	X(rx_migrations, "times that its receiving moved to another ring")                                             \
	X(tx_migrations, "times that its sending moved to another ring")                                               \
	X(migrations_refused, "times that it was to move to another ring, and stayed")

#define VMA_STATS_SOCKET_RX(X)                                                                                         \
	X(rx_packets, "datagrams received offloaded")                                                                  \
	X(rx_bytes, "bytes received offloaded")                                                                        \
	X(rx_os_packets, "datagrams received through the kernel")                                                      \
	X(rx_os_bytes, "bytes received through the kernel")                                                            \
	X(rx_eagain, "receives that found nothing and did not wait")                                                   \
	X(rx_errors, "receives that failed")                                                                           \
	X(rx_poll_hits, "waits that ended while looking")                                                              \
	X(rx_poll_misses, "waits that slept")                                                                          \
	X(rx_peeks, "receives that left their datagram in the queue (MSG_PEEK)")                                       \
	X(rx_peek_bytes, "bytes of those")                                                                             \
	X(rx_lost, "datagrams taken from the queue that no receive has got (EFAULT, or given to the kernel)")          \
	X(rx_lost_bytes, "bytes of those, and what was cut from datagrams")                                            \
	X(rx_os_errors, "receives through the kernel that failed")                                                     \
	X(rx_zcopy, "datagrams received without a copy (Extra API); they are received ones as well")                   \
	X(rx_callbacks, "packets that a receive callback was asked about")                                             \
	X(rx_hold_refused, "packets dropped before a receive callback: the socket held as many as it may")

/* Receivers', as the list before. */
#define VMA_STATS_SOCKET_RX_MAX(X)                                                                                     \
	X(rx_queue_max, "most datagrams queued at a time")                                                             \
	X(rx_queue_max_bytes, "most bytes queued at a time")

/* The sink's: who drives the ring. */
#define VMA_STATS_SOCKET_QUEUE(X)                                                                                      \
	X(rx_dropped, "dropped: the receive queue was full")                                                           \
	X(rx_dropped_bytes, "bytes of those")                                                                          \
	X(rx_queued, "datagrams queued so far")                                                                        \
	X(rx_queued_bytes, "bytes queued so far")

/* Of a TCP connection, by who drives the ring: what TCP_INFO says. */
#define VMA_STATS_SOCKET_TCP(X)                                                                                        \
	X(tcp_segments_in, "segments received")                                                                        \
	X(tcp_segments_out, "segments sent")                                                                           \
	X(tcp_bytes_in, "bytes received in order")                                                                     \
	X(tcp_bytes_acked, "bytes sent and acknowledged")                                                              \
	X(tcp_retransmits, "segments sent again")                                                                      \
	X(tcp_timeouts, "retransmission timeouts")                                                                     \
	X(tcp_out_of_order, "segments received out of order")                                                          \
	X(tcp_bytes_out, "bytes sent, with those that were sent again")                                                \
	X(tcp_zcopy_bytes, "bytes received in order that zero-copy receive left in their frames")                      \
	X(tcp_zcopy_copied_bytes, "bytes copied although it was asked for: out of order, or more frames than a bound " \
	                          "allows")

#define VMA_STATS_SOCKET_TCP_NOW(X)                                                                                    \
	X(tcp_state, "state, as TCP_INFO numbers it; 0: no connection and no listener")                                \
	X(tcp_rtt_usec, "smoothed round-trip time, microseconds")                                                      \
	X(tcp_rttvar_usec, "its variation, microseconds")                                                              \
	X(tcp_mss, "bytes of a segment")                                                                               \
	X(tcp_cwnd_bytes, "congestion window, bytes")                                                                  \
	X(tcp_ssthresh_bytes, "slow start threshold, bytes; 4294967295: none")                                         \
	X(tcp_send_window, "the peer's window, bytes")                                                                 \
	X(tcp_unacked_bytes, "bytes sent and not acknowledged")                                                        \
	X(tcp_out_of_order_bytes, "bytes held behind a hole")                                                          \
	X(tcp_backoff, "times that the retransmission timeout was doubled")                                            \
	X(tcp_retransmitting_bytes, "bytes sent again and not acknowledged")                                           \
	X(tcp_cc, "the number of its congestion control, and 1; 0: not known")                                         \
	X(tcp_snd_wscale, "the shift of the peer's windows, and 1; 0: they are not scaled")                            \
	X(tcp_rcv_wscale, "the shift of the windows of this side, and 1; 0: they are not scaled")

#define VMA_STATS_SOCKET_TX(X)                                                                                         \
	X(tx_packets, "datagrams sent offloaded")                                                                      \
	X(tx_bytes, "bytes sent offloaded")                                                                            \
	X(tx_os_packets, "datagrams sent through the kernel")                                                          \
	X(tx_os_bytes, "bytes sent through the kernel")                                                                \
	X(tx_eagain, "sends refused: queue full")                                                                      \
	X(tx_drops, "datagrams dropped: queue full")                                                                   \
	X(tx_errors, "sends that failed")                                                                              \
	X(tx_waits, "sends that waited for room")                                                                      \
	X(tx_os_errors, "sends through the kernel that failed")                                                        \
	X(tx_dummies, "dummy messages (VMA_SND_FLAGS_DUMMY)")

/* One per process. What several threads may count at a time is added atomically: it is rare. */
#define VMA_STATS_PROCESS(X)                                                                                           \
	X(sockets_unseen, "sockets that have had no block: VMA_STATS_FD_NUM had been reached")                         \
	X(wake_0, "wake-ups of a sleeper that took less than 1024 ns, from the call to the sleeper")                   \
	X(wake_1, "less than 2 us")                                                                                    \
	X(wake_2, "less than 4 us")                                                                                    \
	X(wake_3, "less than 8 us")                                                                                    \
	X(wake_4, "less than 16 us")                                                                                   \
	X(wake_5, "less than 33 us")                                                                                   \
	X(wake_6, "less than 66 us")                                                                                   \
	X(wake_7, "less than 131 us")                                                                                  \
	X(wake_8, "less than 262 us")                                                                                  \
	X(wake_9, "less than 524 us")                                                                                  \
	X(wake_10, "less than 1 ms")                                                                                   \
	X(wake_11, "less than 2 ms")                                                                                   \
	X(wake_12, "less than 4 ms")                                                                                   \
	X(wake_13, "less than 8 ms")                                                                                   \
	X(wake_14, "less than 17 ms")                                                                                  \
	X(wake_15, "longer")

/* Of select, of poll, and of each epoll set. */
#define VMA_STATS_IOMUX(X)                                                                                             \
	X(os_ready, "descriptors of the kernel's that were ready")                                                     \
	X(ready, "offloaded descriptors that were ready")                                                              \
	X(timeouts, "calls that found nothing")                                                                        \
	X(errors, "calls that failed")                                                                                 \
	X(poll_hits, "calls that found something without a sleep")                                                     \
	X(poll_misses, "calls that slept")

#define VMA_STATS_IOMUX_NOW(X)                                                                                         \
	X(epfd, "of an epoll set: its descriptor")                                                                     \
	X(polling_cpu, "VMA_CPU_USAGE_STATS: the time spent looking, of the last second, in percent")

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
	VMA_STATS_CQ_MAX(X)
	VMA_STATS_CQ_NOW(X)
} __attribute__((aligned(VMA_STATS_ALIGN)));
struct vma_stats_bufpool {
	VMA_STATS_BUFPOOL_NOW(X)
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
		VMA_STATS_NIC_NOW(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
};
struct vma_stats_socket { /* the writers' lines; fields are reached as socket->rx_packets */
	struct {
		VMA_STATS_SOCKET_NOW(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
	struct {
		VMA_STATS_SOCKET_RX(X)
		VMA_STATS_SOCKET_RX_MAX(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
	struct {
		VMA_STATS_SOCKET_QUEUE(X)
		VMA_STATS_SOCKET_TCP(X)
		VMA_STATS_SOCKET_TCP_NOW(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
	struct {
		VMA_STATS_SOCKET_TX(X)
	} __attribute__((aligned(VMA_STATS_ALIGN)));
};
#define VMA_STATS_SOCKET_GROUPS 16
struct vma_stats_process {
	VMA_STATS_PROCESS(X)
} __attribute__((aligned(VMA_STATS_ALIGN)));
#define VMA_STATS_WAKES 16
struct vma_stats_iomux {
	VMA_STATS_IOMUX(X)
	VMA_STATS_IOMUX_NOW(X)
} __attribute__((aligned(VMA_STATS_ALIGN)));
#undef X
_Static_assert(offsetof(struct vma_stats_ring, tx) % VMA_STATS_ALIGN == 0, "two drivers, two lines");
_Static_assert(offsetof(struct vma_stats_nic, tx_frames) % VMA_STATS_ALIGN == 0, "two halves, two lines");
_Static_assert(offsetof(struct vma_stats_nic, rebinds) % VMA_STATS_ALIGN == 0, "control apart from the data path");
_Static_assert(offsetof(struct vma_stats_socket, rx_packets) % VMA_STATS_ALIGN == 0, "receivers apart from control");
_Static_assert(offsetof(struct vma_stats_socket, rx_dropped) % VMA_STATS_ALIGN == 0, "sinks apart from receivers");
_Static_assert(offsetof(struct vma_stats_socket, tx_packets) % VMA_STATS_ALIGN == 0, "senders apart from receivers");
_Static_assert(offsetof(struct vma_stats_socket, group_15) ==
                       offsetof(struct vma_stats_socket, group_0) + (VMA_STATS_SOCKET_GROUPS - 1) * sizeof(uint64_t),
               "groups are an array");
_Static_assert(offsetof(struct vma_stats_process, wake_15) ==
                       offsetof(struct vma_stats_process, wake_0) + (VMA_STATS_WAKES - 1) * sizeof(uint64_t),
               "wake-ups are an array");

/* X(TYPE, struct, "name"): the kinds of block. */
#define VMA_STATS_TYPES(X)                                                                                             \
	X(RING, vma_stats_ring, "ring")                                                                                \
	X(CQ, vma_stats_cq, "cq")                                                                                      \
	X(BUFPOOL, vma_stats_bufpool, "bufpool")                                                                       \
	X(NIC, vma_stats_nic, "nic")                                                                                   \
	X(SOCKET, vma_stats_socket, "socket")                                                                          \
	X(PROCESS, vma_stats_process, "process")                                                                       \
	X(IOMUX, vma_stats_iomux, "iomux")

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
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
	/* Of the load, the addition and the store gcc makes three instructions, and a packet has several counters. */
	__asm__("addq %1, %0" : "+m"(*(uint64_t *)counter) : "er"(n) : "cc");
#else
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
#endif
}
static inline void vma_stats_set(_Atomic uint64_t *counter, uint64_t value)
{
	atomic_store_explicit(counter, value, memory_order_relaxed);
}
static inline uint64_t vma_stats_read_counter(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* dir "" or NULL: no file. 0 or -errno (a directory that cannot be written: warns once and continues without file). */
int vma_stats_create(const char *dir, struct vma_stats **out);
/* Removes the file, if this process made it. All blocks have been dropped. NULL is allowed. */
void vma_stats_destroy(struct vma_stats *stats);
/* At exit, while others may still count: the file goes, the blocks stay. */
void vma_stats_remove_file(struct vma_stats *stats);
/*
 * In a forked child: the parent's file is not held open (and locked) any more. The blocks are memory of the child's own
 * from then on, all zero: what it counts there is its parent's no more. No malloc.
 */
void vma_stats_detach_from_parent_after_fork(struct vma_stats *stats);
/* What is held open as long as there is a file: the file, the memfd, the pipe of requests. How many. */
#define VMA_STATS_FDS 3
unsigned vma_stats_fds(const struct vma_stats *stats, int fds[VMA_STATS_FDS]);

/* ---- requests: what a reader asks of the process ---- */

enum vma_stats_request_type {
	VMA_STATS_REQUEST_ZERO,      /* counters begin at 0, for readers */
	VMA_STATS_REQUEST_LOG_LEVEL, /* value: enum vma_log_level */
	VMA_STATS_REQUEST_DETAILS,   /* value: 0 to 3 */
	VMA_STATS_REQUEST_DUMP,      /* the counters of fd (0: of all) go to the log, at the level `value` */
	VMA_STATS_REQUEST_CAPTURE, /* packets are copied for `value` seconds (capture.h); again: from then on; of each its
	                              * first `fd` bytes, 0: all */
	VMA_STATS_REQUEST_COUNT
};
struct vma_stats_request {
	uint32_t type; /* enum vma_stats_request_type */
	int32_t fd, value;
};
/*
 * The next request, as its sender wrote it: nothing in it is checked but `type`. False: there is none. One thread; the
 * pipe's descriptor (the last of vma_stats_fds) becomes readable, or hangs up, when a request comes or a sender leaves.
 */
bool vma_stats_next_request(struct vma_stats *stats, struct vma_stats_request *out);
/*
 * From now on readers count from here; maxima are zero. Writers are not disturbed: the present values lie beside the
 * counters, and readers subtract them. One thread at a time. -ENOMEM, -EFBIG.
 */
int vma_stats_zero(struct vma_stats *stats);
/*
 * Where packets are to be put for the next `seconds`. One thread. snap: bytes of each frame; of several readers' the
 * largest, as each of them asks at least every VMA_CAPTURE_LEASE_MAX seconds; else: all. The memory is made by the
 * first calls, a piece by each, so that none takes long. -EAGAIN: there is more to do, call again. -EINVAL: seconds is
 * not 1 to VMA_CAPTURE_LEASE_MAX, or there is no file by which others could find it. granted: from now on they are.
 */
struct vma_capture;
int vma_stats_enable_packet_capture(struct vma_stats *stats, int seconds, int snap, struct vma_capture **out);
void vma_stats_count_capture_grant(struct vma_stats *stats);
int vma_stats_capture_fd(const struct vma_stats *stats); /* the ring's memfd; -1: there has been no capture */
/* Calls fn with such a copy of each block of that type. */
void vma_stats_for_each_block(const struct vma_stats *stats, enum vma_stats_type type,
                              void (*fn)(void *arg, const void *block), void *arg);
/* A copy of a block as readers would see it now. */
void vma_stats_copy_block(const struct vma_stats *stats, enum vma_stats_type type, const void *block, void *out);

/*
 * Removes what killed processes left in `dir` (NULL or "": nothing), for who outlives them: how many files, or -errno.
 * A file is left over when nobody holds its lock, whatever the pid in its name says. Anybody may fill such a directory,
 * so one call looks at 4096 names at most: *at (0 at first) is where the next one goes on, 0 when all have been seen.
 */
int vma_stats_remove_leftover_files(const char *dir, long *at);

/*
 * A zeroed block of `type` named `name` (cut to VMA_STATS_NAME_MAX - 1 bytes). Never NULL: with stats == NULL or a full
 * segment it is a private block that no reader sees.
 */
#define VMA_STATS_NAME_MAX 32
void *vma_stats_block_alloc(struct vma_stats *stats, enum vma_stats_type type, const char *name);
/* `stats` as at the grab. What the block has counted stays in the sums of its type. NULL blocks are allowed. */
void vma_stats_block_free(struct vma_stats *stats, void *block);

/* The counters of a type in printing order; NULL and 0 for an unknown type. */
enum vma_stats_kind { VMA_STATS_COUNT, VMA_STATS_NOW, VMA_STATS_MAX };
struct vma_stats_field {
	const char *name, *text;
	size_t offset; /* of the counter in its block */
	enum vma_stats_kind kind;
};
const struct vma_stats_field *vma_stats_fields_of_type(enum vma_stats_type type, size_t *count);
const char *vma_stats_type_name(enum vma_stats_type type); /* "ring", ...; NULL: unknown */

#endif
