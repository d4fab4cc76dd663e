/*
 * nic - the only way to reach a device: open an interface, rent queue pairs, steer flows, move bursts of buffers.
 *
 *   backend   spec            device
 *   xdp       "xdp:IFNAME"    any Linux interface, through AF_XDP
 *   wire      "wire:FILE"     one end of a link in memory, between processes (nic_wire.h also makes pairs in one)
 *   verbs     "verbs:IFNAME"  RAW_PACKET queue pairs of an RDMA card; of a VLAN's interface: its lower interface
 *   auto      "auto:IFNAME"   verbs if the interface has an RDMA device that can be used, else xdp
 *
 * Calls return 0 or a count, or a negative errno.
 *
 * Threads: any thread makes control calls (a lock inside, per nic). Of one queue pair, at most one thread at a time
 *          calls the receive half (post_rx, poll_rx, arm). At most one calls the transmit half (tx, kick, reap_tx). The
 *          two halves may run at the same time. ring's drive flags see to that.
 * Progress: the data calls never wait. They return how many buffers they took. That is 0 if the queue is full or empty,
 *           or if another process has the shared part of a device queue at the moment.
 * Memory: buffers are vma_bufs of the arena given at open. A buffer posted or sent belongs to the NIC until poll_rx or
 *         reap_tx gives it back.
 * Example: test/test_conformance.c runs the same cases against every backend.
 */
#ifndef VMA_NIC_H
#define VMA_NIC_H

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/bufpool.h>
#include <vma/nic_group.h>
#include <vma/stats.h>

enum vma_nic_caps {
	VMA_NIC_CAP_TX_CSUM = 1 << 0, /* VMA_NIC_SEG_CSUM is honoured */
	VMA_NIC_CAP_RX_CSUM = 1 << 1, /* received buffers may carry VMA_BUF_RX_*_CSUM_* */
	VMA_NIC_CAP_TSO = 1 << 2,     /* VMA_NIC_SEG_TSO is honoured */
	VMA_NIC_CAP_SG = 1 << 3,      /* a packet may have several segments, on either side */
	VMA_NIC_CAP_HW_TIMESTAMP = 1 << 4,
	VMA_NIC_CAP_DEVICE_MEMORY = 1 << 5,
	VMA_NIC_CAP_PACING = 1 << 6,
	VMA_NIC_CAP_DUMMY_SEND = 1 << 7,  /* VMA_NIC_SEG_DUMMY warms the path and sends nothing */
	VMA_NIC_CAP_MODERATION = 1 << 8,  /* moderate works */
	VMA_NIC_CAP_MEMORY_LINK = 1 << 9, /* no wire: a checksum field may hold just the pseudo-header sum */
	VMA_NIC_CAP_FLOW_TAG = 1 << 10,
	VMA_NIC_CAP_TO_KERNEL =
	        1 << 11, /* rules match headers only, and bring what is the kernel's: vma_nic_pass_packet_to_kernel */
};

/* A rebind of any queue pair may change the atomic fields, while any thread reads them. Each is a value by itself: no
 * order between two of them is kept, and none publishes other memory. */
struct vma_nic_info {
	char name[IF_NAMESIZE * 4];     /* interface, or the wire's name */
	_Atomic unsigned ifindex;       /* 0: not an interface */
	uint8_t mac[6];                 /* at the time of open */
	_Atomic uint32_t mtu;           /* largest L3 packet, bytes */
	_Atomic uint32_t caps;          /* enum vma_nic_caps */
	_Atomic uint32_t device_queues; /* hardware receive queues covered by each queue pair */
	_Atomic uint32_t inline_max;    /* bytes sent inline, 0: not a notion of this device */
	_Atomic uint32_t tx_segs_max;   /* segments of one packet, at least 1 (0 counts as 1) */
	_Atomic uint32_t tso_max_bytes; /* payload of one TSO packet, 0: no TSO */
	uint64_t device_memory;         /* bytes to be had for tx_device_memory, 0: none */
	_Atomic bool generic;           /* xdp: generic (skb) mode */
};

enum vma_nic_owner {
	VMA_NIC_OWNER_SELF, /* the device objects live in this process */
	VMA_NIC_OWNER_VMAD, /* rent from vmad; start it if vmad_path is set and it does not run */
};

/* Whether each thread keeps a cache of a queue pair's buffers (VMA_BUFFER_BATCHING_MODE). */
enum vma_nic_thread_caches {
	VMA_NIC_CACHES_RECLAIMED, /* until other threads lack buffers */
	VMA_NIC_CACHES_NONE,
	VMA_NIC_CACHES_KEPT,
};
struct vma_nic_attr {
	struct vma_bufarena *arena;
	struct vma_stats *stats; /* may be NULL */
	enum vma_nic_owner owner;
	const char *vmad_path; /* program to start when no vmad owns the interface; NULL: do not start one */
	uint32_t window_bytes; /* xdp: packet memory per device queue; 0: 16 MB */
	bool huge_pages;       /* xdp: VMA_MEM_ALLOC_TYPE=2 for the window */
	enum vma_nic_thread_caches caches; /* not the wire's */
	/* VMA_HW_TS_CONVERSION, verbs: in which time the card's stamps are given, once vma_nic_enable_hw_timestamps
	 * asks for them: 0 there are none, 1 the card's own, in ns; 2 as 3, else 1; 3 CLOCK_REALTIME; 4 the clock that
	 * PTP disciplines, else 3 */
	unsigned hw_ts_conversion;
	bool mlx5_direct;       /* VMA_MLX5_DIRECT, verbs: drive the rings of an mlx5 card without libibverbs */
	bool tcp_address_flows; /* VMA_TCP_2T_RULES, verbs: there are flows of all TCP of an address */
	bool unwatched;         /* verbs: no vmad is told of its connections, nor gets any; vmad itself sets it */
	const char *stats_dir;  /* where a vmad that is started sweeps (nic_owner.h); NULL: its default */
};

struct vma_nic;
struct vma_nic_qp;

/*
 * A flow: packets whose destination is local:local_port and, unless peer_port_be is 0, whose source is peer:peer_port.
 * Addresses are 16 bytes in network order; IPv4 uses the first four, the rest is zero.
 */
struct vma_flow_key {
	uint8_t family; /* AF_INET (AF_INET6: -EAFNOSUPPORT for now) */
	uint8_t proto;  /* IPPROTO_UDP, IPPROTO_TCP */
	uint16_t vlan;  /* VLAN id in host order, 0: untagged */
	uint16_t local_port_be;
	uint16_t peer_port_be; /* 0: any peer (3-tuple) */
	uint8_t local[16];     /* unicast address or multicast group */
	uint8_t peer[16];
};
_Static_assert(sizeof(struct vma_flow_key) == 40, "no padding: compared and hashed as bytes");

/*
 * A block of local ports is a key, too: proto VMA_FLOW_TCP_PORTS, local_port_be the first of VMA_FLOW_PORTS ports, a
 * multiple of that, any peer. It takes the segments of TCP for these ports that no other flow takes and for which the
 * kernel has no socket, so that connections which begin here need no rules of their own while they are new. One queue
 * pair has a block (-EADDRINUSE for others). It reserves nothing: whoever uses a port of it sees to it that nobody else
 * does, by a kernel socket that is bound to it alone, and looks at vma_nic_port_has_rule after that. A wire has none.
 */
#define VMA_FLOW_TCP_PORTS 0xfd
#define VMA_FLOW_PORTS 256
/*
 * The same of a NIC with VMA_NIC_CAP_TO_KERNEL: all ports of a local address, as its rules know no ranges of ports.
 * Both ports and the peer are 0. It takes all segments of TCP to the address that no other flow of anybody's takes,
 * also those of the kernel's sockets: its user gives the kernel what it does not know. The first process that asks has
 * it (-EADDRINUSE for others). -EOPNOTSUPP: another NIC, or it was opened without attr.tcp_address_flows.
 */
#define VMA_FLOW_TCP_ADDRESS 0xfe

enum vma_flow_flags {
	/*
	 * A TCP listener, any peer: all segments that no flow of one peer takes, so that what the listener has accepted
	 * needs no rule of its own; but not those of a 5-tuple for which the kernel has a socket that is more than a
	 * listener. (A wire has no kernel.)
	 */
	VMA_FLOW_LISTENER = 1 << 0,
	VMA_FLOW_RING_ONLY =
	        1 << 1, /* of a ring's flow: no rule in the NIC, where another flow of the ring covers it */
	/*
	 * UDP: until the flow is deleted a kernel socket of this process's has the local port for itself, as it is
	 * bound to it without SO_REUSEADDR and SO_REUSEPORT, and no other process has that socket. So nobody else can
	 * have a right to the flow, and the backend need not ask. Whoever adds it again without this takes it back.
	 */
	VMA_FLOW_PORT_EXCLUSIVE = 1 << 2,
	/*
	 * With VMA_FLOW_LISTENER: this process has the listener's socket from one that forked it. What waits for accept
	 * here when the process dies is kept for the next one that serves the listener, while the socket lives.
	 */
	VMA_FLOW_INHERITED = 1 << 3,
	/*
	 * Of UDP from any peer: other queue pairs of this process may have the flow, too, with this flag. The NIC
	 * spreads it over them by a hash of addresses and ports, in equal shares.
	 */
	VMA_FLOW_REUSEPORT = 1 << 4,
	/*
	 * TCP, one peer: the connection begins here, from a port that the program has chosen. By SO_REUSEADDR and
	 * SO_REUSEPORT a socket of another process may have the same port, and ask for the same flow.
	 */
	VMA_FLOW_PORT_BOUND = 1 << 5,
};

struct vma_flow_rule {
	struct vma_flow_key key;
	uint32_t flags;         /* enum vma_flow_flags */
	uint32_t tag;           /* with VMA_NIC_CAP_FLOW_TAG: vma_buf.flow_tag of what this rule receives; 0: none */
	uint64_t shadow_cookie; /* SO_COOKIE of the kernel socket that shadows this flow, 0: none; all others
	                           conflict */
	int shadow_fd; /* where that socket was seen last in this process: where it is not there any more, it is looked
	                  for */
};

/*
 * What a process that ends leaves of a TCP connection to who owns the device, who answers the peer from then on, as a
 * kernel would that had kept the connection.
 */
enum vma_minisock_state {
	VMA_MINISOCK_RESET = 1,     /* it was cut: RST for whatever comes, for 3 s */
	VMA_MINISOCK_FIN_WAIT = 2,  /* its FIN has been acknowledged: the peer's FIN is, too, if it comes within 60 s */
	VMA_MINISOCK_TIME_WAIT = 3, /* both FINs have been: what is repeated is acknowledged again, for 2 s */
};
struct vma_flow_minisock {
	struct vma_flow_key key; /* one peer */
	uint32_t state;          /* enum vma_minisock_state */
	uint32_t snd_nxt, rcv_nxt;
};

/* What became of a queue pair or flow behind its user's back. */
enum vma_nic_event {
	VMA_NIC_EVENT_LOST,         /* the owner has gone; call vma_nic_qp_rebind with both halves held */
	VMA_NIC_EVENT_FLOW_REVOKED, /* `key` is the kernel's again: a kernel sock or a second process wants it, too, the
	                             * card has no room for its rule again after a rebind, or the
	                             * queue pair is lost and cannot be had again */
};

struct vma_nic_qp_attr {
	uint32_t rx_wre;           /* requested receive depth (VMA_RX_WRE); granted: qp->rx_depth */
	uint32_t tx_wre;           /* requested transmit depth and buffers (VMA_TX_WRE); granted: qp->tx_depth */
	uint32_t tx_inline;        /* requested inline bytes (VMA_TX_MAX_INLINE); granted: info.inline_max at most */
	uint32_t tx_batching;      /* packets for which one completion is enough (VMA_TX_WRE_BATCHING); 0: each kick's
	                            * last packet has one */
	uint32_t tx_device_memory; /* requested bytes of device memory to send from; 0: none. Less is no error */
	const char *name;
	/* Called from a thread of the nic's own, never from a data call. May be NULL: then vma_nic_qp_lost tells. */
	void (*event)(struct vma_nic_qp *qp, enum vma_nic_event event, const struct vma_flow_key *key, void *arg);
	/* In the same way: a connection that another member of a listener's group has not accepted, to be made here
	 * (nic_group.h). NULL: this user cannot. */
	void (*adopt)(struct vma_nic_qp *qp, const struct vma_pending *pending, void *arg);
	void *event_arg;
};

/* One segment to send. The segments of a packet follow each other; all but its last carry VMA_NIC_SEG_MORE. */
enum vma_nic_seg_flags {
	VMA_NIC_SEG_MORE = 1 << 0,
	/* First segment: finish the checksum of UDP or TCP over IPv4, whose field holds the pseudo header's sum. */
	VMA_NIC_SEG_CSUM = 1 << 1,
	/*
	 * First segment, with VMA_NIC_SEG_CSUM: TCP over IPv4, hdr_len bytes of headers, from Ethernet's on, and some
	 * of the payload at least. The device cuts the payload of all segments of the packet into frames of mss bytes,
	 * the last may be shorter. Each frame has the headers with lengths and checksums of its own. Sequence numbers
	 * grow by mss and IP ids by one; FIN and PSH are the last frame's, CWR is the first one's. The header's length
	 * is that of the packet as a whole; at most info.tso_max_bytes of payload.
	 */
	VMA_NIC_SEG_TSO = 1 << 2,
	VMA_NIC_SEG_DUMMY = 1 << 3,
};
struct vma_nic_seg {
	struct vma_buf *buf; /* one reference passes to the NIC */
	uint32_t off;        /* from the start of the frame */
	uint32_t len;
	uint16_t flags;
	uint16_t mss;
	uint16_t hdr_len;
	uint16_t reserved;
};

struct vma_nic_ops;

/* The common head of every backend's queue pair. */
struct vma_nic_qp {
	const struct vma_nic_ops *_Atomic ops; /* while packets are captured (nic_tap.h): the tap's */
	struct vma_nic *nic;
	struct vma_bufarena *arena;
	/* Each names a pool that lives, or one without buffers, whatever comes of a rebind: it changes before its pool
	 * ends. A thread without the transmit half may look tx_pool up, and get from it later, until the queue pair is
	 * destroyed: its pools have vma_bufpool_attr.named_by. */
	struct vma_bufpool *_Atomic rx_pool; /* received frames' home; its buffers are what post_rx wants */
	struct vma_bufpool *_Atomic tx_pool; /* registered memory to build frames in */
	uint32_t rx_depth, tx_depth;         /* granted */
	uint32_t rx_quota;    /* received frames the user may hold at a time before others run short; 0: rx_depth. With
	                       * half as much again (64 more at least) it may receive nothing until it posts. */
	uint32_t tx_headroom; /* bytes to leave free before a frame to send; one without is dropped */
	bool rx_self_fill;    /* the owner keeps the receive queue's first fill: post only what was polled (xdp) */
	_Atomic bool lost;
	struct vma_nic_accept_page *member; /* nic_group.h, always at the same place; NULL: there are no groups here */
	const struct vma_nic_ops *backend_ops;         /* the front's: constant after create */
	struct vma_nic_qp *next_of_all;                /* under the tap's lock */
	struct tap_partial_packet *tap_partial_packet; /* receive half: nic_tap.h's; NULL: nobody has captured yet */
};
static inline const struct vma_nic_ops *vma_nic_qp_ops(const struct vma_nic_qp *qp)
{
	/* Acquire: pairs with the store of a tap's table. Either table will do at any time. */
	return atomic_load_explicit(&qp->ops, memory_order_acquire);
}

struct vma_nic_ops {
	const char *name;
	int (*open)(const char *arg, const struct vma_nic_attr *attr, struct vma_nic **out);
	int (*look)(const char *arg, const struct vma_nic_attr *attr); /* NULL: this backend cannot tell */
	void (*close)(struct vma_nic *nic);
	int (*qp_create)(struct vma_nic *nic, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out);
	void (*qp_destroy)(struct vma_nic_qp *qp);
	int (*qp_rebind)(struct vma_nic_qp *qp);
	int (*flow_add)(struct vma_nic_qp *qp, const struct vma_flow_rule *rule);
	int (*flow_del)(struct vma_nic_qp *qp, const struct vma_flow_key *key);
	int (*flow_move)(struct vma_nic_qp *from, struct vma_nic_qp *to,
	                 const struct vma_flow_key *key);                   /* NULL: a rule stays */
	int (*exempt)(struct vma_nic *nic, const struct vma_flow_key *key); /* NULL: the kernel's packets come here */
	void (*unexempt)(struct vma_nic *nic, const struct vma_flow_key *key);
	int (*flow_retire)(struct vma_nic_qp *qp, const struct vma_flow_key *key);  /* NULL: there are no groups */
	bool (*port_is_named)(const struct vma_nic_qp *qp, uint16_t local_port_be); /* NULL: may be */
	bool (*is_alone)(const struct vma_nic_qp *qp);                              /* NULL: it is */
	int (*minisock_export)(struct vma_nic_qp *qp, const struct vma_flow_minisock *minisocks,
	                       unsigned n);                                               /* NULL: none */
	int (*mem_register)(struct vma_nic *nic, uint32_t first, uint32_t count);         /* NULL: windows only */
	void (*mem_unregister)(struct vma_nic *nic, uint32_t first, uint32_t count);      /* NULL with mem_register */
	int (*moderate)(struct vma_nic_qp *qp, uint32_t count, uint32_t period_usec);     /* NULL: none */
	int (*pace)(struct vma_nic_qp *qp, uint64_t bytes_per_sec, uint32_t burst_bytes); /* NULL: none */
	int (*stamp)(struct vma_nic *nic);                                                /* NULL: none */
	unsigned (*post_rx)(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
	unsigned (*poll_rx)(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
	bool (*rx_is_empty)(const struct vma_nic_qp *qp); /* NULL: never known */
	unsigned (*tx)(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n);
	int (*kick)(struct vma_nic_qp *qp);
	unsigned (*reap_tx)(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
	bool (*tx_is_idle)(struct vma_nic_qp *qp); /* NULL: never known */
	int (*arm)(struct vma_nic_qp *qp);
	int (*arm_next)(struct vma_nic_qp *qp);        /* NULL: it cannot tell of more than the first */
	unsigned (*rx_waiting)(struct vma_nic_qp *qp); /* NULL: it cannot be counted */
	bool (*rx_has_packet)(struct vma_nic_qp *qp);  /* NULL: rx_waiting tells; a backend has one of the two */
	void (*unarm)(struct vma_nic_qp *qp);          /* NULL: an arm costs nothing later */
	int (*fd)(const struct vma_nic_qp *qp);
	int (*to_kernel)(struct vma_nic_qp *qp,
	                 const struct vma_buf *packet); /* NULL: what comes is never the kernel's */
	uint64_t (*now_ns)(const struct vma_nic *nic);
};

/* The common head of every backend's nic. */
struct vma_nic {
	const struct vma_nic_ops *ops;
	struct vma_bufarena *arena;
	struct vma_nic_info info;
};

/* ---- control path ---- */

/*
 * Told of every descriptor that a nic keeps open in this process: after it was made, and (on false) before it is
 * closed. All of them are 1000 or above, as far as RLIMIT_NOFILE allows, so that the program gets the numbers that it
 * would get without us; and close-on-exec. Set it before the first nic is opened. It is called by any thread, with
 * locks of the nic held, and must not call back. In a forked child those of the parent's nics are closed untold.
 */
extern void (*vma_nic_fd_hook)(int fd, bool on);

/*
 * Opens "BACKEND:ARG". -ENODEV no such interface or backend, -EPERM a capability is missing (CAP_NET_RAW, CAP_BPF,
 * CAP_PERFMON or CAP_NET_ADMIN for xdp with owner SELF; the one line in the log names it), -EOPNOTSUPP the interface
 * cannot (the line says why), -EBUSY somebody else owns it, -ECONNREFUSED no vmad.
 */
int vma_nic_open(const char *spec, const struct vma_nic_attr *attr, struct vma_nic **out);
/*
 * What vma_nic_open with owner VMAD would meet: for a look that changes nothing. No vmad is started and nothing is
 * owned or rented. A vmad that runs is asked whether it takes this process. A refusal is open's, with its line in the
 * log;
 * -EOPNOTSUPP also for a backend that cannot tell. Only owning the interface shows whether another program has its
 * queues, and whether its driver takes the program. attr->arena is not used.
 */
enum vma_nic_probe_result {
	VMA_NIC_VMAD_ADMITS, /* a vmad runs and takes this process */
	VMA_NIC_MAY_START,   /* none runs; this process may start it, or own the interface itself */
};
int vma_nic_probe(const char *spec, const struct vma_nic_attr *attr);
/* Whether this process lacks what owning an xdp interface takes: " CAP_NAME" for each of these; "": it lacks none. */
#define VMA_NIC_LACKS_MAX 64
bool vma_nic_lacks_capabilities(char missing[VMA_NIC_LACKS_MAX]);
/* Whether the kernel has, and allows this process, what owning takes: 0; -errno of the call that *what names. */
int vma_nic_check_kernel_supports_xdp(const char **what);
void vma_nic_close(struct vma_nic *nic); /* after all its queue pairs */

int vma_nic_qp_create(struct vma_nic *nic, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out);
/* Flows end and sockets close at once; what the NIC still holds (posted, polled by nobody, sent but not reaped) goes
 * home; buffers still held by the user stay readable until they are put. */
void vma_nic_qp_destroy(struct vma_nic_qp *qp);
/* After EVENT_LOST, both halves held by the caller: new device objects, new pools, all flows added again. 0, or
 * -EAGAIN when there is no owner yet (the nic's thread goes on trying and will send EVENT_LOST again). */
int vma_nic_qp_rebind(struct vma_nic_qp *qp);

/* -EEXIST this queue pair has it already, -EADDRINUSE another queue pair, another process or a kernel sock (a kernel
 * socket that is no flow's shadow) has it (the log says which), -ENOSPC the table is full, -EINVAL a bad key or flag
 * (vma_flow_key_check says what is bad), -EAFNOSUPPORT. del: -ENOENT. Packets received before del returned may still be
 * polled. */
int vma_nic_flow_add(struct vma_nic_qp *qp, const struct vma_flow_rule *rule);
int vma_nic_flow_del(struct vma_nic_qp *qp, const struct vma_flow_key *key);
/*
 * A rule of UDP, or of a TCP connection, goes from one queue pair of a nic to another in one step: no packet meets
 * neither. When it returns, what the rule of UDP has steered to `from` is in the receive queue of `from`, so that one
 * look finds all of it. That may take some ten milliseconds. A connection's has a batch of the driver's to come yet, if
 * the packets are just on their way: it shows in their numbers, and a stream cannot stand still for so long. -ENOENT:
 * `from` has no such rule; -EOPNOTSUPP: the backend, its owner or the kernel cannot; -EINVAL: two nics, or one queue
 * pair, or another flow (vma_flow_may_move_to_other_qp); -EPIPE: the owner has gone, perhaps in the middle.
 */
int vma_nic_flow_move(struct vma_nic_qp *from, struct vma_nic_qp *to, const struct vma_flow_key *key);
/* A listener's flow is about to be deleted: from now on new connections go to the other members of its group, if there
 * are any (nic_group.h): 0; -ENOENT: there are none. */
int vma_nic_flow_stop_new_connections(struct vma_nic_qp *qp, const struct vma_flow_key *key);
/* Whether a rule of anybody's, or what is left of one, names this local port for TCP (blocks are none). With the
 * receive half held, as a rebind needs that, too. */
bool vma_nic_port_has_rule(const struct vma_nic_qp *qp, uint16_t local_port_be);
/* Whether no other process has a queue pair of the interface in use; with the receive half held. */
bool vma_nic_qp_is_only_tenant(const struct vma_nic_qp *qp);
/*
 * Connections that end with this process: their flows are the queue pair's no longer, and what has come for them and
 * was not polled may be lost. Also of connections that a listener's flow or a block covers. -EOPNOTSUPP: nobody
 * outlives this process (a wire; an owner in the process itself; verbs without a vmad, or one that has no card), and
 * nothing has changed; -EPIPE: vmad has gone. Waits for vmad's answer, three seconds at most.
 */
int vma_nic_export_tcp_states_to_daemon(struct vma_nic_qp *qp, const struct vma_flow_minisock *minisocks, unsigned n);

/*
 * For a NIC with VMA_NIC_CAP_TO_KERNEL. The connections of TCP that the kernel has at the local end of `key` (any
 * peer; port 0: all ports of the address), and which of n 5-tuples it has: has[i]. Not those in TIME_WAIT, nor sockets that are only bound. `see` must
 * not call back. 0 or -errno: the kernel does not say. Asks the kernel, so it may take two seconds.
 */
int vma_nic_for_each_kernel_connection(const struct vma_nic *nic, const struct vma_flow_key *key,
                                       void (*see)(const struct vma_flow_key *connection, void *arg), void *arg);
int vma_nic_kernel_has_connections(const struct vma_nic *nic, const struct vma_flow_key *keys, unsigned n, bool *has);

/*
 * The same NIC, if its device can: from now on it leaves what comes for a connection of TCP to the kernel by itself,
 * although a flow from any peer takes it. Each exempt that succeeds asks for an unexempt. A flow that is added with
 * this key ends the exemption, and so does the device's end: then packets come here again. May take as long as a rule.
 * 0; -EOPNOTSUPP: the device cannot; -EEXIST: there is a flow with this key; -ENOSPC, -EINVAL or the device's error.
 */
int vma_nic_leave_connection_to_kernel(struct vma_nic *nic, const struct vma_flow_key *key);
void vma_nic_end_leave_connection_to_kernel(struct vma_nic *nic, const struct vma_flow_key *key);

/* Interrupt moderation: an armed queue reports after `count` packets or `period_usec` from the first. -EOPNOTSUPP
 * where the device has none. Receive half. */
int vma_nic_set_interrupt_moderation(struct vma_nic_qp *qp, uint32_t count, uint32_t period_usec);
/* Limits what this queue pair sends; 0 bytes_per_sec: no limit. A device rounds to what it can, and may choose the
 * burst itself. -EOPNOTSUPP without VMA_NIC_CAP_PACING, or the device's error. */
int vma_nic_set_tx_pacing_rate(struct vma_nic_qp *qp, uint64_t bytes_per_sec, uint32_t burst_bytes);

/* From now on received buffers have the NIC's time stamps (VMA_BUF_RX_HW_TIMESTAMP), on all queue pairs, those to come
 * too. Until then nobody pays for them. -EOPNOTSUPP without VMA_NIC_CAP_HW_TIMESTAMP. */
int vma_nic_enable_hw_timestamps(struct vma_nic *nic);

/*
 * Frames [first, first + count) of the arena may be sent from and received into, until unregister (or close); do it
 * before the first use and end it before the arena unmaps them. -EOPNOTSUPP: this device takes only the buffers of its
 * queue pairs' own pools; copy.
 */
int vma_nic_mem_register(struct vma_nic *nic, uint32_t first, uint32_t count);
void vma_nic_mem_unregister(struct vma_nic *nic, uint32_t first, uint32_t count);

/*
 * What every backend demands of a flow key, checked by vma_nic_flow_add before the backend is asked: AF_INET, UDP or
 * TCP, a VLAN id below 4095, a local port, a local address that is not 0.0.0.0, zeros after the fourth byte of an
 * address, peer address and peer port both set or both zero. 0, -EINVAL, -EAFNOSUPPORT.
 */
int vma_flow_key_check(const struct vma_flow_key *key);
/* Of these flows nothing but the queue pair depends: UDP, and a TCP connection. A listener's is its group's. */
static inline bool vma_flow_may_move_to_other_qp(const struct vma_flow_key *key)
{
	return key->proto == IPPROTO_UDP || (key->proto == IPPROTO_TCP && key->peer_port_be != 0);
}
/* The same of a rule's flags: VMA_FLOW_LISTENER of TCP from any peer, also inherited; VMA_FLOW_PORT_EXCLUSIVE of UDP,
 * VMA_FLOW_REUSEPORT of UDP from any peer, VMA_FLOW_PORT_BOUND of TCP with one. */
static inline bool vma_flow_flags_ok(const struct vma_flow_rule *rule)
{
	const uint32_t inherited = rule->flags & VMA_FLOW_LISTENER ? VMA_FLOW_INHERITED : 0;
	const uint32_t flags = rule->flags & ~inherited;

	return flags == 0 || (flags == VMA_FLOW_PORT_EXCLUSIVE && rule->key.proto == IPPROTO_UDP) ||
	       (flags == VMA_FLOW_REUSEPORT && rule->key.proto == IPPROTO_UDP && rule->key.peer_port_be == 0) ||
	       (flags == VMA_FLOW_PORT_BOUND && rule->key.proto == IPPROTO_TCP && rule->key.peer_port_be != 0) ||
	       (flags == VMA_FLOW_LISTENER && rule->key.proto == IPPROTO_TCP && rule->key.peer_port_be == 0);
}

static inline const struct vma_nic_info *vma_nic_info(const struct vma_nic *nic)
{
	return &nic->info;
}
static inline uint64_t vma_nic_now_ns(const struct vma_nic *nic)
{
	return nic->ops->now_ns(nic); /* CLOCK_MONOTONIC, or the wire's virtual clock */
}

/* ---- hot path: each call is one indirect call, for a whole burst ---- */

/* Posts up to n receive buffers of rx_pool, each with one reference that passes to the NIC; returns how many. The
 * others are still the caller's, and so is the debt: it posts as many later, or its receive queue runs dry. */
static inline unsigned vma_nic_post_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	return vma_nic_qp_ops(qp)->post_rx(qp, bufs, n);
}
/* Received buffers in arrival order, refs = 1, home = rx_pool; data_off, len and flags set. */
static inline unsigned vma_nic_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	return vma_nic_qp_ops(qp)->poll_rx(qp, bufs, n);
}
/* Any thread, no half held, also while it rebinds: true if the receive queue is empty at this moment; false also where
 * that cannot be said so cheaply. */
static inline bool vma_nic_rx_is_empty(const struct vma_nic_qp *qp)
{
	return vma_nic_qp_ops(qp)->rx_is_empty != NULL && vma_nic_qp_ops(qp)->rx_is_empty(qp);
}
/* Queues up to n segments, whole packets only; returns the number of segments taken. Nothing leaves before kick. A
 * buffer that does not belong to the queue pair's memory (it was rebound meanwhile) is taken and dropped. A packet that
 * can never be sent (longer than the MTU, too many segments, bytes outside its frame) ends the burst, not taken; one
 * that only became too long, because a rebind found a smaller MTU, is taken and dropped. */
static inline unsigned vma_nic_tx(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n)
{
	return vma_nic_qp_ops(qp)->tx(qp, segs, n);
}
/* Makes the device look at what was queued. 0 or -errno; -EAGAIN: kick again later. */
static inline int vma_nic_kick(struct vma_nic_qp *qp)
{
	return vma_nic_qp_ops(qp)->kick(qp);
}
/* Buffers whose sending is complete; the NIC's reference passes to the caller, who puts them. */
static inline unsigned vma_nic_reap_tx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	return vma_nic_qp_ops(qp)->reap_tx(qp, bufs, n);
}
/* Transmit half, after a kick and a reap, not in a hurry: nothing that was sent is still on its way out of this host,
 * so that what another queue pair sends from now on comes behind it. */
static inline bool vma_nic_tx_is_idle(struct vma_nic_qp *qp)
{
	return vma_nic_qp_ops(qp)->tx_is_idle != NULL && vma_nic_qp_ops(qp)->tx_is_idle(qp);
}
/* Asks for one readable event at the next arrival and takes back an event that was reported before, so the fd is not
 * readable because of the past. 0 armed; 1 something is already there: poll instead of sleeping. */
static inline int vma_nic_arm(struct vma_nic_qp *qp)
{
	return vma_nic_qp_ops(qp)->arm(qp);
}
/*
 * For who holds back until a number of packets has come, on a device that does not moderate. rx_waiting: so many
 * buffers have been received and not polled. arm_next: the same number, and the fd is readable once more buffers have
 * come than these, until the next arm, arm_next or unarm. -EOPNOTSUPP: this device does not tell. Receive half.
 */
static inline int vma_nic_rx_waiting_count(struct vma_nic_qp *qp)
{
	return vma_nic_qp_ops(qp)->rx_waiting != NULL ? (int)vma_nic_qp_ops(qp)->rx_waiting(qp) : -EOPNOTSUPP;
}
/*
 * Receive half: true if something has been received and not polled. Unlike vma_nic_rx_is_empty it knows on every backend:
 * a device that tells only if it is polled is polled, and the next poll_rx returns what was found. False if the device
 * is lost, or is the parent's.
 */
static inline bool vma_nic_rx_has_packet(struct vma_nic_qp *qp)
{
	const struct vma_nic_ops *ops = vma_nic_qp_ops(qp);

	if (ops->rx_has_packet != NULL)
		return ops->rx_has_packet(qp);
	return ops->rx_waiting != NULL && ops->rx_waiting(qp) != 0;
}
static inline int vma_nic_arm_for_next_packet(struct vma_nic_qp *qp)
{
	return vma_nic_qp_ops(qp)->arm_next != NULL ? vma_nic_qp_ops(qp)->arm_next(qp) : -EOPNOTSUPP;
}
/*
 * A received packet, which stays the caller's, goes to the kernel, as if no rule had taken it (nic_reinject.h): it
 * takes the packet or refuses it. Packets that are given one after the other come in order. A system call. 0;
 * -EOPNOTSUPP without VMA_NIC_CAP_TO_KERNEL; -EADDRNOTAVAIL: the kernel refuses its addresses (a martian); -EINVAL, or
 * -errno of the call: the packet is lost. Receive half.
 */
static inline int vma_nic_pass_packet_to_kernel(struct vma_nic_qp *qp, const struct vma_buf *packet)
{
	return vma_nic_qp_ops(qp)->to_kernel != NULL ? vma_nic_qp_ops(qp)->to_kernel(qp, packet) : -EOPNOTSUPP;
}
/* The fd may stay silent until the next arm: nobody sleeps on it, or somebody polls meanwhile; an event that was
 * reported before is taken back. For a device that pays for an arm at every arrival. Receive half. */
static inline void vma_nic_unarm(struct vma_nic_qp *qp)
{
	if (vma_nic_qp_ops(qp)->unarm != NULL)
		vma_nic_qp_ops(qp)->unarm(qp);
}
/* For poll/epoll: readable after arm when something arrived. Stays the same fd over a rebind. */
static inline int vma_nic_fd(const struct vma_nic_qp *qp)
{
	return vma_nic_qp_ops(qp)->fd(qp);
}
static inline bool vma_nic_qp_lost(const struct vma_nic_qp *qp)
{
	return __builtin_expect(atomic_load_explicit(&qp->lost, memory_order_relaxed), 0);
}

#endif
