/*
 * udp_priv - the socket, its queues and its destinations; shared by the files of udp.
 *
 * Threads: a queue has one producer, the thread that drives its ring, and one consumer, the thread that takes a
 * datagram (udp_receive_lock_acquire). The data path reads attachments, destinations and options inside, without a
 * lock; they are replaced whole and retired. Fields of the control path need file.lock. dst_lock is a leaf. Locks are
 * taken in this order: file.lock, the one of flows.c, the engine's, the rings'.
 */
#ifndef VMA_UDP_PRIV_H
#define VMA_UDP_PRIV_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/inet.h>
#include <vma/inet_iov_iter.h>
#include <vma/net.h>
#include <vma/packet.h>
#include <vma/sock.h>
#include <vma/sock_engine.h>
#include <vma/sock_migrate.h>
#include <vma/sock_os.h>
#include <vma/udp.h>

/* ---- queue (queue.c): one per socket and ring, so there is one producer, who drives the ring's receive side ---- */

/*
 * What is remembered of a datagram beside its buffers, whose descriptors are shared between the members of a group and
 * so hold nothing of ours. 40 bytes.
 */
struct udp_datagram {
	struct vma_buf *packet;
	uint64_t arrival_ns; /* CLOCK_REALTIME, 0: not stamped (nobody asked) */
	uint32_t src, dst;   /* network order */
	uint16_t src_port_be, len;
	uint8_t ttl, tos;
	uint16_t dst_port_be;
	uint32_t ifindex; /* where it came in: IP_PKTINFO */
	uint32_t drops;   /* that the socket had seen before it: SO_RXQ_OVFL */
};
_Static_assert(sizeof(struct udp_datagram) == 40, "no padding");
enum { UDP_BYTES_AT_LEAST = 64 }; /* that a datagram counts for */
struct udp_queue_chunk;           /* a ring of datagrams; full: the producer goes on in one of double size */
struct udp_queue {
	/* producer's line */
	_Alignas(64) struct udp_queue_chunk *tail;
	_Atomic uint64_t pushed, pushed_bytes, dropped;
	uint64_t cached_popped_bytes; /* popped_bytes as last read: looked up again only when the limit seems reached */
	/* consumer's line: under the socket's reader lock */
	_Alignas(64) struct udp_queue_chunk *head;
	_Atomic uint64_t popped, popped_bytes;
	bool has_front;            /* front is taken out of its ring, but not popped */
	struct udp_datagram front; /* ck_ring has no look without taking */
};
int udp_queue_init(struct udp_queue *queue);
void udp_queue_fini(struct udp_queue *queue,
                    struct vma_bufarena *arena); /* nobody produces or consumes; puts what is left */
/* Producer. limit_bytes: what may be queued, each datagram counting at least 64 and never refused when it is alone. */
bool udp_queue_push(struct udp_queue *queue, const struct udp_datagram *datagram, uint64_t limit_bytes);
/* Consumer. NULL: empty. The datagram stays where it is until pop. */
const struct udp_datagram *udp_queue_front(struct udp_queue *queue);
void udp_queue_pop(struct udp_queue *queue);
/* Anybody. */
static inline bool udp_queue_is_empty(const struct udp_queue *queue)
{
	return atomic_load_explicit(&queue->pushed, memory_order_acquire) ==
	       atomic_load_explicit(&queue->popped, memory_order_relaxed);
}

/* ---- attachment: a socket on a ring (flows.c makes them, recv.c reads) ---- */

struct udp_sock;
struct vma_xtreme;
struct vma_xtreme_source;
struct udp_attachment {
	struct udp_queue queue;
	struct udp_queue *_Atomic undecided; /* of a socket with a receive callback: extra.h; NULL: none */
	struct vma_xtreme_source *xtreme;    /* SocketXtreme: xtreme.h; NULL: none */
	struct vma_ring_ctx *ring_ctx;
	struct udp_sock *sock;
	struct vma_retired retired;
	uint32_t ifindex; /* of the interface that packets come in by: the ring context's device, or a VLAN on it */
	uint32_t flows;   /* that lead here; 0: it is kept for what is queued */
	bool left; /* its flows have moved to another ring, and none will come: what is queued is older than all else */
	struct udp_attachment *next; /* flows.c: of this socket */
};
static inline bool udp_attachment_is_empty(const struct udp_attachment *at)
{
	const struct udp_queue *undecided = atomic_load_explicit(&at->undecided, memory_order_acquire);

	return (undecided == NULL || udp_queue_is_empty(undecided)) && udp_queue_is_empty(&at->queue);
}
/* Immutable, replaced under file.lock and retired. The first `left` ones are emptied before all others, in order. */
struct udp_attachments {
	struct vma_retired retired;
	uint64_t rings; /* bits */
	uint32_t n, left;
	struct udp_attachment *at[];
};

/* ---- destination: a template that is complete but for lengths and payload (dst.c) ---- */

struct udp_dst {
	struct vma_retired retired;
	struct sockaddr_in to;
	uint32_t version;              /* of the path when this was made, 0: never valid */
	struct vma_net_path *path;     /* held */
	struct vma_ring_ctx *ring_ctx; /* held by the socket's ring contexts; NULL: by the OS */
	uint32_t mtu;
	uint8_t state; /* enum vma_net_path_state: all but READY go through the shadow */
	uint8_t headers_len;
	uint8_t ip_off;
	uint8_t bytes[VMA_PKT_UDP_HEADERS_MAX + 2];
	uint32_t ip_sum, udp_sum, pseudo_sum;
	uint32_t nic_sums_from;  /* payload from which the NIC finishes the checksum; UINT32_MAX: never */
	uint32_t options_seq;    /* udp_sock.options_seq when this was made */
	uint32_t max_payload;    /* in one frame: by MTU and by buffer */
	uint32_t ifindex;        /* the route's */
	bool confirm;            /* who sends asks for a probe */
	bool by_rule;            /* that leaves it to the kernel: no ring context is wanted */
	bool members_matter;     /* a group, and IP_MULTICAST_LOOP: where it has members here, the OS sends */
	bool df;                 /* don't fragment, and so IP id 0 (RFC 6864) */
	_Atomic uint32_t *ip_id; /* else: of the next datagram to such a destination */
	struct vma_engine *engine;
};
/*
 * What sending depends on, as one immutable copy of the control path's fields (dst.c): made by
 * udp_dst_rebuild_after_change, read by senders without a lock.
 */
struct udp_tx_options;
struct udp_tx_ring_ctxs;

/* ---- the socket ---- */

enum udp_rx_opt { /* what recv has to produce beside the bytes; set by setsockopt */
	          UDP_RX_OPT_TIMESTAMP = 1 << 0,
	          UDP_RX_OPT_TIMESTAMPNS = 1 << 1,
	          UDP_RX_OPT_TIMESTAMPING = 1 << 2, /* SOF_TIMESTAMPING_RX_SOFTWARE with SOF_TIMESTAMPING_SOFTWARE */
	          UDP_RX_OPT_PKTINFO = 1 << 3,
	          UDP_RX_OPT_RECVTTL = 1 << 4,
	          UDP_RX_OPT_RECVTOS = 1 << 5,
	          UDP_RX_OPT_ORIGDST = 1 << 6,
	          UDP_RX_OPT_RXQ_OVFL = 1 << 7,
	          /* The time stamps were asked for by their _NEW names: so are the answers' types. */
	          UDP_RX_OPT_STAMP_NEW = 1 << 8,
	          UDP_RX_OPT_LAST_STAMP = 1 << 9, /* SIOCGSTAMP has been used */
	          UDP_RX_OPT_FORK_SHARED =
	                  1 << 10, /* to look first for what other processes have changed: fork_shared.h */
	          UDP_RX_OPT_PKTINFO6 = 1 << 11, /* IPV6_RECVPKTINFO, which tells of IPv4, too */
	          UDP_RX_OPT_HW_STAMP = 1 << 12, /* SOF_TIMESTAMPING_RAW_HARDWARE, or RX_HARDWARE alone: options.c */
	          UDP_RX_OPT_STAMP_PKTINFO = 1 << 13, /* SOF_TIMESTAMPING_OPT_PKTINFO: with a stamp of the hardware */
	          UDP_RX_OPT_CALLBACK = 1 << 14,      /* a receive callback is, or was, set: extra.h */
	          UDP_RX_OPT_XTREME = 1 << 15,        /* VMA_SOCKETXTREME: xtreme.h */
	          /* All that ask for a stamp by software. */
	          UDP_RX_OPT_STAMPS = UDP_RX_OPT_TIMESTAMP | UDP_RX_OPT_TIMESTAMPNS | UDP_RX_OPT_TIMESTAMPING,
};

enum udp_send_slow_reasons {                      /* why a send is to look twice */
	                     UDP_CORKED = 1 << 0, /* the shadow holds a datagram begun with MSG_MORE */
	                     UDP_SHARED = 1 << 1, /* with other processes: fork_shared.h */
	                     UDP_PACED = 1 << 2,  /* by software: pace.h */
};

struct udp_extra_api_state;
struct udp_fork_queue;
struct udp_fork_shared;
struct udp_fork_shared_batch;
struct udp_sock {
	struct vma_file file;

	/* read by every recv */
	_Alignas(64) struct udp_attachments *_Atomic attachments; /* NULL: all comes through the shadow */
	struct udp_fork_queue *_Atomic fork_queue;                /* of a fork: read before all else; NULL: none */
	_Atomic uint32_t rx_opts;                                 /* enum udp_rx_opt */
	_Atomic bool nonblocking; /* O_NONBLOCK as last set through us; see recv.c for fds shared with others */
	_Atomic bool shut_rd, shut_wr;
	_Atomic bool os_attention;                 /* the shadow has an error or data that should be asked for next */
	_Atomic uint32_t rcvbuf;                   /* bytes */
	_Atomic uint64_t rcvtimeo_ns, sndtimeo_ns; /* UINT64_MAX: none */
	pthread_mutex_t reader;                    /* waiting room for `taking` */
	_Atomic bool taking;    /* the moment of taking a datagram: udp_receive_lock_acquire in recv.c */
	_Atomic bool inherited; /* by fork, and not taken up here: the first receive or send does */
	struct vma_spin spin;
	_Atomic uint32_t os_countdown; /* looks until the OS is asked again (racy, harmless) */
	_Atomic uint64_t os_polled_tsc;
	_Atomic uint64_t os_sends_seen;  /* of udp_sends_by_os_count, when the OS was last asked */
	_Atomic(uint64_t) last_stamp_ns; /* SIOCGSTAMP */
	_Atomic uint64_t peer_key;       /* connected: udp_peer_key of the peer, else 0; for sinks */
	_Atomic uint32_t waiting;        /* calls that wait in recv: the socket outlives its last descriptor for them */
	_Atomic int lingering_fd;        /* the shadow meanwhile, a number of the library's; 0: none */
	_Atomic uint32_t next_ring;      /* of several attachments: where the next look starts */
	struct vma_inet_drain drain;     /* read by udp_recvmsg_after_periodic_ring_drain alone */

	/* read by every send */
	_Alignas(64) struct udp_dst *_Atomic dst; /* connected: the peer's */
	struct udp_dst *_Atomic dst_more[8];      /* other destinations, by a hash of address and port */
	_Atomic uint32_t
	        options_seq; /* moves with every option that a template depends on: udp_dst_rebuild_after_change */
	_Atomic bool connected;
	_Atomic bool
	        os_send; /* an option is set that only the kernel's send path serves (then udp_dst_rebuild_after_change) */
	_Atomic uint8_t unplain;                    /* enum udp_send_slow_reasons */
	_Atomic bool os_error;                      /* the shadow has an error, which the next send is to tell */
	_Atomic uint8_t sends_remaining;            /* until the plain way is open: deferred.h, udp_watch_errors */
	_Atomic bool deferred;                      /* the kernel's for now: deferred.h */
	_Atomic uint8_t receives;                   /* while it was deferred */
	_Atomic uint32_t in_kernel;                 /* receivers, while it was deferred */
	struct udp_tx_options *_Atomic tx;          /* NULL: not made yet */
	_Atomic uint64_t dst_want[8];               /* destinations that dst_more should have: udp_peer_key, 0: none */
	struct udp_tx_ring_ctxs *_Atomic ring_ctxs; /* held, by interface; replaced under dst_lock */
	pthread_mutex_t dst_lock;                   /* a leaf: who replaces dst, dst_more, tx and ring contexts */
	uint64_t pacing_rate;                       /* SO_MAX_PACING_RATE, bytes per second, 0: none; dst_lock */
	_Atomic uint64_t pace_rate, pace_next_ns;   /* pace.h; the rate with dst_lock */
	struct vma_internal_task pace_task;         /* tells that there is room again */
	_Atomic bool pace_scheduled;                /* the task is posted, and holds a reference */
	struct vma_internal_task dst_task;          /* destinations made by the internal thread */
	_Atomic bool dst_scheduled;                 /* the task is posted, and holds a reference */
	_Atomic uint64_t dst_requested_tsc;
	_Atomic uint64_t dst_made_tsc; /* a sender has made one in the place of another */
	bool dst_ended;
	struct udp_fork_shared
	        *_Atomic fork_shared;      /* common to processes by fork; NULL: no fork has seen the socket */
	_Atomic uint32_t fork_shared_seen; /* fork_shared->changes as last followed; stored under file.lock */
	struct udp_fork_shared_batch *fork_shared_batch; /* the memory that fork_shared lies in */
	struct vma_internal_task
	        take_up_task; /* flows.c: an inherited socket has been polled, or there is something to follow */
	_Atomic bool take_up_scheduled; /* and holds a reference */

	/* control path, under file.lock */
	/* As the kernel says. Family 0: not bound, not connected; AF_INET6: IPv6, and only the port is kept. */
	_Alignas(64) struct sockaddr_in local, peer;
	uint32_t bound_ifindex; /* SO_BINDTODEVICE */
	uint32_t mc_ifindex;    /* IP_MULTICAST_IF */
	struct in_addr mc_source;
	uint8_t ttl, mc_ttl, tos; /* ttl 0: the system's default */
	bool mc_loop, broadcast, reuse_addr, reuse_port, mc_all;
	int pmtu_discover;
	uint32_t mark;
	bool held_for_waiting;     /* closed while `waiting` was not 0: a reference, until it is */
	bool port_chosen;          /* by the kernel, so nobody sends there who has not heard from us */
	bool port_fresh;           /* it was chosen just now */
	bool port_is_released;     /* the kernel is about to take it away: connect to AF_UNSPEC */
	bool is_decided;           /* by a call that says itself what it has come to */
	bool left;                 /* to who else has it: this process ends, and asks for no flow any more */
	bool port_shared;          /* others may have it, too, or may have had it */
	bool errors_watched;       /* vma_engine_watch_errors */
	uint64_t net_generation;   /* of net, that destinations were last made anew for */
	struct vma_engine *engine; /* that the socket was made in: its statistics' */
	uint64_t os_options;       /* options.c: a bit for each that is set and that only the kernel serves */
	_Atomic enum vma_sock_reason reason;
	_Atomic bool stats_count; /* vma_engine_alloc_socket_stats */
	struct udp_flows *flows;  /* flows.c: what is attached, for which address or group, on which ring context */
	struct udp_groups *_Atomic groups; /* multicast.c: memberships and filters, immutable; NULL: none, and mc_all */
	struct vma_net_watch *watch;
	struct vma_stats_socket *stats;
	_Atomic uint64_t drops_ended;              /* of queues that have ended */
	struct udp_extra_api_state *_Atomic extra; /* the Extra API's; NULL: not used */
	struct vma_xtreme *xtreme;                 /* constant; NULL: VMA_SOCKETXTREME is off */

	/* by calls that count: migrate.c */
	_Alignas(64) struct vma_migration rx_migration;
	_Alignas(64) struct vma_migration tx_migration;
};
static inline struct udp_sock *udp_sock(struct vma_file *file)
{
	return (struct udp_sock *)file;
}

/* Bound or connected to IPv6, or IPV6_V6ONLY: the kernel's, as long as it is. file.lock. */
static inline bool udp_is_ipv6(const struct udp_sock *sock)
{
	return sock->local.sin_family == AF_INET6 || sock->peer.sin_family == AF_INET6;
}

/* flows.c, multicast.c, bind.c, options.c: control path. Each is called with file.lock held. */
void udp_flows_update(struct udp_sock *sock);     /* makes what is attached what it should be; sets reason */
void udp_flows_detach_all(struct udp_sock *sock); /* detaches everything */
/* Before a send that is one of the first few: if the one before has met an error, this one tells it. Takes file.lock.
 */
void udp_watch_errors(struct udp_sock *sock, int fd) __attribute__((cold));
/* After a send that has failed: if an error still waits in the shadow, the next call tells it. */
void udp_note_error_waiting_in_shadow(struct udp_sock *sock, int fd) __attribute__((cold));
/* file.lock. Names, flows and destinations, as the kernel has the socket now. */
void udp_follow_shared_changes(struct udp_sock *sock, int fd);
/* recv has waited, on a socket whose last descriptor is closed by now: the last such call ends it. */
void udp_finish_close(struct udp_sock *sock);
/* An inherited socket is polled: the internal thread takes it up, and follows what other processes have changed. Never
 * waits, but for the start of an engine. */
void udp_schedule_offload_of_inherited(struct udp_sock *sock) __attribute__((cold));
/* The group's filter says whether a datagram from src on this interface is for the socket. Sink; no lock. */
bool udp_multicast_filter_accepts_source(const struct udp_sock *sock, uint32_t group, uint32_t src, uint32_t ifindex);
/* Whether a socket on this host wants a copy of what is sent to the group there (so the kernel must send it). No lock.
 */
bool udp_group_has_local_members(uint32_t group, uint32_t ifindex);

/* recv.c, cmsg.c, send.c, dst.c: data path. Inside. */
ssize_t udp_recvmsg(struct vma_file *file, int fd, struct msghdr *msg, int flags);
ssize_t udp_recvmsg_after_periodic_ring_drain(struct vma_file *file, int fd, struct msghdr *msg,
                                              int flags); /* sock->drain is set */
ssize_t udp_sendmsg(struct vma_file *file, int fd, const struct msghdr *msg, int flags);
/* migrate.c: the same calls, which count. */
ssize_t udp_recvmsg_and_count_migration(struct vma_file *file, int fd, struct msghdr *msg, int flags);
ssize_t udp_recvmsg_draining_and_count_migration(struct vma_file *file, int fd, struct msghdr *msg, int flags);
ssize_t udp_sendmsg_and_count_migration(struct vma_file *file, int fd, const struct msghdr *msg, int flags);
uint32_t udp_poll(struct vma_file *file);
uint64_t udp_socket_rings_mask(struct vma_file *file);
/* FIONREAD: bytes of the first datagram queued offloaded; -1: none. */
int udp_next_datagram_len(struct udp_sock *sock);
bool udp_deliver(struct udp_attachment *at, struct vma_buf *packet, const struct vma_rx_info *info); /* for sinks */
/* A datagram has left the queue, and is no receiver's here: for the statistics. */
void udp_count_datagram_as_dropped(const struct udp_sock *sock, const struct udp_datagram *datagram);
/* The shadow has an error (EPOLLERR): the next send or receive tells it. Any thread. */
static inline void udp_note_pending_os_error(struct udp_sock *sock)
{
	atomic_store_explicit(&sock->os_error, true, memory_order_relaxed);
	atomic_store_explicit(&sock->os_attention, true, memory_order_release);
}

/*
 * The data path's part of a socket's life, called by udp.c. init: after vma_file_init, of zeroed memory. end: when the
 * last descriptor has gone, after udp_flows_detach_all. destroy: with the object. forked: in the child, where the ring
 * contexts and paths of the parent are not to be touched; sets `inherited`.
 */
void udp_dst_init(struct udp_sock *sock);
void udp_dst_fini(struct udp_sock *sock);
void udp_tx_state_destroy(struct udp_sock *sock);
void udp_tx_state_reset_in_forked_child(struct udp_sock *sock);

/*
 * After bind, connect, shutdown(SHUT_WR), a change of os_send or of an option that the templates depend on, and after
 * interfaces or devices came or went. file.lock. Cheap: destinations are made when they are used; a connected
 * socket's at once, with its ring context.
 */
void udp_dst_rebuild_after_change(struct udp_sock *sock);

/* An IPv4 address and port as one number, 0: none. */
static inline uint64_t udp_peer_key(uint32_t addr, uint16_t port_be)
{
	return (uint64_t)addr << 16 | port_be;
}

#endif
