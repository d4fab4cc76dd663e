/*
 * tcp - connections on a ring: lwIP's state machine, with timers, recovery, congestion control and buffers of our own.
 *
 *   application's threads                       the thread that drives the ring (receive flag)
 *     tx_reserve, tx_commit ── send fifo ──────> segments ──> ring ──> NIC
 *     rx_front, rx_consume  <── receive fifo ── lwIP <── burst of packets <── sink
 *     shutdown, close, ...  ── posted work ────>          timers: wheel
 *                                                event() ──> the owner
 *
 * A *stack* (struct vma_tcp) is what the connections of one ring share: it is the ring's protocol
 * (vma_ring_attach_proto). It has no thread. The ring must be driven when packets come, and when vma_tcp_next_due_ns
 * says so.
 *
 * Functions return 0 or a count, or a negative errno. Addresses are IPv4 in 16 bytes as in struct vma_flow_key.
 * Standards: RFC 9293 (TCP), 7323 (windows, time stamps), 2018 and 6675 (SACK), 6298 (timeout), 5681, 6582, 9438
 * (congestion control). Also 6928 (initial window), 5961 (challenge ACKs), 6528 (sequence numbers), 1122 4.2.3. BBR is
 * draft-cardwell-iccrg-bbr-congestion-control-00.
 *
 * Threads: any thread may call anything that is not marked. At most one thread at a time writes a connection (tx_*),
 *          and one reads it (rx_*). Owners' callbacks run in the thread that drives, with the receive flag held. They
 *          must not wait and must not call the functions marked "control path" of the same ring.
 * Progress: the data calls never wait: they move bytes between the caller and a fifo and post what is left to do.
 * Memory: connections, fifo chunks and lwIP's objects come from host->alloc. An idle connection holds about 3 KB, half
 *         a KB of it for each fifo that was used. A connection lives until its owner has put it and the protocol is
 *         done with it.
 * Example: test/test_connection.c; examples/tcp_echo.c.
 */
#ifndef VMA_TCP_H
#define VMA_TCP_H

#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <vma/bufpool.h>
#include <vma/ring.h>
#include <vma/stats.h>

struct vma_tcp;
struct vma_tcp_conn;
struct vma_tcp_listener;

/* ---- the stack ---- */

/* What a stack asks of its surroundings; every pointer may be NULL for the default. */
struct vma_tcp_host_ops {
	uint64_t (*now_ns)(void *arg);     /* CLOCK_MONOTONIC, to a microsecond; any thread */
	void *(*alloc)(size_t size);       /* zeroed; calloc. NULL: out of memory */
	void *(*alloc_bytes)(size_t size); /* for bytes under way, need not be zeroed; as alloc */
	void (*free)(void *memory);        /* of both; free */
	/*
	 * The time of vma_tcp_next_due_ns has become earlier, or a connection has become busy (vma_tcp_is_busy) when
	 * none was: somebody has to see to it that the ring is driven. Receive flag held.
	 */
	void (*due)(void *arg);
	/*
	 * The last reference to a connection has gone: call vma_tcp_conn_free when nobody can look at it any more. At
	 * once by default.
	 */
	void (*retire)(struct vma_tcp_conn *conn, void *arg);
	/*
	 * A connection has ended whose rule of the NIC is to be deleted: call vma_ring_delete_stale_nic_rules of its
	 * ring soon, without the flag. Receive flag held. NULL: the stack has the rule deleted at once, and waits for
	 * that.
	 */
	void (*prune)(void *arg);
	/*
	 * The last connection has ended, also of those in TIME_WAIT, and the ring has blocks of ports: call
	 * vma_tcp_release_port_blocks_if_unused, once no new ones have come for a while, without the flag. Receive flag
	 * held. May be NULL.
	 */
	void (*idle)(void *arg);
	/*
	 * Segments that ask a listener for a connection, or make one, wait: call vma_tcp_run_control_queue, in a thread
	 * of the host's choice, without the flag. Receive flag held. NULL: the thread that drives does that work
	 * itself.
	 */
	void (*control)(void *arg);
	void *arg;
};

/* VMA_TCP_CC_ALGO; LWIP: NewReno */
/* X(NAME, number, "as TCP_CONGESTION has it") */
#define VMA_TCP_CCS(X) X(LWIP, 0, "reno") X(CUBIC, 1, "cubic") X(NONE, 2, "none") X(BBR, 3, "bbr")
enum vma_tcp_cc {
#define X(name, number, text) VMA_TCP_CC_##name = number,
	VMA_TCP_CCS(X)
#undef X
};
/* By its name: as TCP_CONGESTION has it; "lwip" and "newreno" are NewReno, too. -ENOENT */
int vma_tcp_cc_by_name(const char *name);
/* As TCP_CONGESTION has it: "reno", "cubic", "bbr", and "none"; NULL: there is no such algorithm. */
const char *vma_tcp_cc_name(int algorithm);

/* The retransmission timeout (RFC 6298) of a smoothed round-trip time, 0: none is known; doubled `backoff` times. */
#define VMA_TCP_RTO_INIT_NS 1000000000ULL
#define VMA_TCP_RTO_MIN_NS                                                                                             \
	200000000ULL /* the kernel's, in place of the clock's granularity (2.3) and the second (2.4) */
#define VMA_TCP_RTO_MAX_NS 120000000000ULL
#define VMA_TCP_BACKOFF_MAX 16 /* 200 ms doubled that often is far above the maximum */
static inline uint64_t vma_tcp_rto_ns(uint64_t srtt_ns, uint64_t rttvar_ns, uint64_t backoff)
{
	const uint64_t margin_ns = 4 * rttvar_ns > VMA_TCP_RTO_MIN_NS ? 4 * rttvar_ns : VMA_TCP_RTO_MIN_NS;
	uint64_t rto_ns = srtt_ns != 0 ? srtt_ns + margin_ns : VMA_TCP_RTO_INIT_NS;

	if (rto_ns > VMA_TCP_RTO_MAX_NS)
		rto_ns = VMA_TCP_RTO_MAX_NS;
	rto_ns <<= backoff < VMA_TCP_BACKOFF_MAX ? backoff : VMA_TCP_BACKOFF_MAX;
	return rto_ns < VMA_TCP_RTO_MAX_NS ? rto_ns : VMA_TCP_RTO_MAX_NS;
}

/*
 * Bytes that fifos may hold together, as net.ipv4.tcp_mem: from `pressure` on buffers do not grow and windows become
 * small; from `limit` on what comes is not taken (the peer says it again), and writers wait. A few KB for each
 * connection come on top. Shared by the stacks of a process; the limits are constant.
 */
struct vma_tcp_memory {
	_Atomic int64_t used;
	int64_t pressure, limit;
	_Atomic bool was_exhausted; /* once; driver's and writers' */
	/* VMA_TX_SEGS_TCP: while so many segments are allocated, a connection gets another one only when all that it
	 * has sent is acknowledged. 0: no bound. */
	int64_t segments_max;
	_Atomic int64_t segments; /* in use, or kept by a stack for its next */
	/* Frames that zero-copy receive keeps: unread, and held. 0: 4096 at most. */
	int64_t frames_max;
	_Atomic int64_t frames;
};

struct vma_tcp_attr {
	struct vma_ring *ring;
	struct vma_bufarena *arena;
	struct vma_tcp_host_ops host;
	uint8_t secret[16];       /* random: initial sequence numbers, RFC 6528 */
	bool no_timestamps;       /* VMA_TCP_TIMESTAMP_OPTION says off */
	bool no_sack;             /* net.ipv4.tcp_sack is 0, */
	bool no_window_scaling;   /* tcp_window_scaling, */
	bool no_idle_restart;     /* tcp_slow_start_after_idle, */
	bool no_rcvbuf_growth;    /* tcp_moderate_rcvbuf */
	bool no_tso;              /* VMA_TSO: no packet of several segments, even if the NIC cuts them */
	uint32_t gro_streams_max; /* VMA_GRO_STREAMS_MAX: connections whose segments of one burst are merged; 0: none */
	bool quickack;            /* VMA_TCP_QUICKACK: no ACK is delayed, unless TCP_QUICKACK is set to 0 */
	uint32_t
	        quickack_threshold; /* VMA_TCP_QUICKACK_THRESHOLD: so short segments are acknowledged at once; 0: none */
	uint32_t max_syn_rate;      /* VMA_TCP_MAX_SYN_RATE: connection requests per second and listener; 0: no limit */
	uint32_t orphans_max;       /* closed connections that go on without an owner; 0: 16384 */
	uint32_t time_wait_max;     /* 0: 262144 */
	uint32_t min_snd_mss;       /* tcp_min_snd_mss: segments are not smaller, options included; below 48: 48 */
	uint32_t mtu_max;           /* VMA_MTU: what answers a request has no larger MTU; 0: the device's */
	uint32_t
	        tx_buf_bytes; /* VMA_TX_BUF_SIZE: what a connection is to send lies in pieces of so many; 0: as needed */
	uint64_t timer_resolution_ns;  /* VMA_TCP_TIMER_RESOLUTION_MSEC: timers end at multiples of that; 0: exactly */
	struct vma_tcp_memory *memory; /* is there until the last connection is freed; NULL: no limit */
	const char *name;
};

int vma_tcp_create(const struct vma_tcp_attr *attr, struct vma_tcp **out); /* control path */
/* Control path. Connections and listeners are gone without a word to their peers; nobody may call for them any more. */
void vma_tcp_destroy(struct vma_tcp *tcp);
struct vma_ring *vma_tcp_ring(const struct vma_tcp *tcp);
/* Control path. No connection and no listener is left; what waits in TIME_WAIT does not count. */
bool vma_tcp_is_empty(struct vma_tcp *tcp);

/* Control path. A connection that was closed has not ended yet: bytes, or the peer's FIN, are on their way. */
bool vma_tcp_has_orphans(struct vma_tcp *tcp);
/*
 * Control path, does nothing in a sink: the process is about to end. The owner of the device is told of all
 * connections and answers for them from now on, where there is one (vma_nic_export_tcp_states_to_daemon). What has
 * nothing left to say (TIME_WAIT, and FIN_WAIT_2 of closed connections) is over, or its rules of the NIC would look
 * like connections of a process that died, whose peers are to be reset; peers of other connections that have no rule
 * yet are reset, and all of them if the device has no such owner, or it could not be told.
 */
void vma_tcp_end_all_connections_at_exit(struct vma_tcp *tcp);

/* When the ring has to be driven at the latest, in host->now_ns' time; UINT64_MAX: no timer runs. Any thread. */
uint64_t vma_tcp_next_due_ns(const struct vma_tcp *tcp);
/*
 * host->control has said that something waits, and it has not been run. run: does that work, in this thread: 0, or
 * -EBUSY if another thread drives. Any thread; run not in a sink.
 */
bool vma_tcp_has_control_work(const struct vma_tcp *tcp);
int vma_tcp_run_control_queue(struct vma_tcp *tcp);
/* Something is queued or unacknowledged: an ACK may come any moment and should be served quickly. Any thread. */
bool vma_tcp_is_busy(const struct vma_tcp *tcp);

/* ---- options: each has a default as the kernel's; may be set before and during a connection ---- */

/* X(NAME, field, default): setsockopt's meaning and units. */
#define VMA_TCP_OPTIONS(X)                                                                                             \
	X(NODELAY, nodelay, 0)                                                                                         \
	X(CORK, cork, 0)                                                                                               \
	X(QUICKACK, quickack, 1) /* until the next time that delaying pays, as the kernel */                           \
	X(MAXSEG, maxseg, 0)     /* bytes, 0: from the path */                                                         \
	X(KEEPALIVE, keepalive, 0)                                                                                     \
	X(KEEPIDLE, keepidle_sec, 7200)                                                                                \
	X(KEEPINTVL, keepintvl_sec, 75)                                                                                \
	X(KEEPCNT, keepcnt, 9)                                                                                         \
	X(USER_TIMEOUT, user_timeout_msec, 0)                                                                          \
	X(SYNCNT, syncnt, 6)                                                                                           \
	X(SYNACK_RETRIES, synack_retries, 5) /* tcp_synack_retries */                                                  \
	X(RETRIES2, retries2, 15)            /* tcp_retries2: how long unacknowledged data is repeated */              \
	X(ORPHAN_RETRIES, orphan_retries, 8)                                                                           \
	X(LINGER2, linger2_sec, 60)  /* FIN_WAIT_2 of a connection without owner; -1: none */                          \
	X(SYNCOOKIES, syncookies, 1) /* tcp_syncookies: of a listener */                                               \
	X(DEFER_ACCEPT, defer_accept_sec, 0)                                                                           \
	X(SNDBUF, sndbuf, 0)               /* bytes, 0: grown as the kernel grows tcp_wmem */                          \
	X(RCVBUF, rcvbuf, 0)               /* bytes, 0: grown as the kernel grows tcp_rmem */                          \
	X(SNDBUF_INIT, sndbuf_init, 16384) /* tcp_wmem[1], [2], tcp_rmem[1], [2] */                                    \
	X(SNDBUF_MAX, sndbuf_max, 4194304)                                                                             \
	X(RCVBUF_INIT, rcvbuf_init, 131072)                                                                            \
	X(RCVBUF_MAX, rcvbuf_max, 6291456)                                                                             \
	X(WINDOW_CLAMP, window_clamp, 0)                                                                               \
	X(NOTSENT_LOWAT, notsent_lowat, -1)                                                                            \
	X(CONGESTION, congestion, VMA_TCP_CC_CUBIC) /* enum vma_tcp_cc */                                              \
	X(TOS, tos, 0)                                                                                                 \
	X(TTL, ttl, 64)                                                                                                \
	X(OOBINLINE, oobinline, 0)                                                                                     \
	X(PMTUDISC, pmtudisc, 1) /* IP_PMTUDISC_*: DF unless IP_PMTUDISC_DONT */

enum vma_tcp_option {
#define X(name, field, value) VMA_TCP_OPT_##name,
	VMA_TCP_OPTIONS(X)
#undef X
	        VMA_TCP_OPT_COUNT
};
struct vma_tcp_options {
#define X(name, field, value) int32_t field;
	VMA_TCP_OPTIONS(X)
#undef X
};
void vma_tcp_options_init(struct vma_tcp_options *options);

/* ---- the way to the peer ---- */

/* A header template as vma_net gives it: Ethernet, perhaps a VLAN tag, IPv4 with both addresses, all else zero. */
struct vma_tcp_path {
	uint8_t bytes[40];
	uint8_t len; /* 0: not known (yet): segments wait, timers run */
	uint8_t ip_off;
	uint32_t mtu; /* of the path, IP header included */
	/* The route's metrics: bytes that the peer's segments may have at most, and the initial window in segments; 0:
	 * none. And whether no ACK is delayed. */
	uint16_t advmss, initcwnd;
	bool quickack;
};

/* ---- connections ---- */

enum vma_tcp_event {
	VMA_TCP_READABLE = 1 << 0, /* bytes have come */
	VMA_TCP_WRITABLE = 1 << 1, /* there is room again, for who found none (as the kernel: a third of the buffer) */
	VMA_TCP_CONNECTED = 1 << 2,
	VMA_TCP_PEER_CLOSED = 1 << 3, /* its FIN: end of stream after what is queued */
	VMA_TCP_FAILED =
	        1 << 4, /* vma_tcp_error says why: reset, timeout, refused, unreachable; the connection is over */
	VMA_TCP_URGENT = 1 << 5,
	VMA_TCP_CLOSED = 1 << 6,  /* both directions have ended: nothing comes any more */
	VMA_TCP_DRAINED = 1 << 7, /* after close: all is acknowledged, FIN included (SO_LINGER waits for it) */
	VMA_TCP_STEERED =
	        1 << 8, /* it has a rule of its own now (vma_tcp_conn_add_own_nic_rule): others may share its port */
	VMA_TCP_ARRIVED = 1 << 9, /* bytes have come that are to be inspected: vma_tcp_inspect_received */
};

struct vma_tcp_rx_stream_piece;
struct vma_tcp_conn_ops {
	/* `events` are new. Receive flag held. */
	void (*event)(struct vma_tcp_conn *conn, void *arg, uint32_t events);
	/*
	 * After vma_tcp_offer_arriving_pieces: a piece has come in order, and nothing is queued before it. True: the
	 * reference to its buffer is the owner's, which was the reader and has called vma_tcp_rx_hold_arriving_piece;
	 * READABLE is not told of it. False: it is queued. Receive flag held. May be NULL.
	 */
	bool (*take)(struct vma_tcp_conn *conn, void *arg, const struct vma_tcp_rx_stream_piece *piece);
};

struct vma_tcp_conn_attr {
	const struct vma_tcp_conn_ops *owner;
	void *arg;
	const struct vma_tcp_options *options; /* copied */
	struct vma_tcp_path path;
	uint8_t family;
	uint16_t vlan;
	uint16_t local_port_be, peer_port_be;
	uint8_t local[16], peer[16];
	uint64_t shadow_cookie;
	int shadow_fd;
	bool covered; /* as vma_tcp_request_port_block says: it has no rule of its own before vma_tcp_conn_add_own_nic_rule */
	/* By the program: what is in TIME_WAIT makes way at once (RFC 6191), not after a second. The NIC is told
	 * (VMA_FLOW_PORT_BOUND). */
	bool port_is_bound;
	/*
	 * What has been in TIME_WAIT for 250 ms makes way also without time stamps: for who has no other port left.
	 * The new connection's numbers begin above all old ones of this side. Those of a peer that chooses them by a
	 * clock (RFC 9293 3.4.1) do, too, unless it sent faster than its clock runs, 250 kB/s by that RFC and 15 MB/s
	 * where the clock ticks as Linux's; nothing else would tell a late segment of then from one of now.
	 */
	bool time_wait_ends;
	bool inspected; /* from its first byte on: vma_tcp_enable_rx_inspection */
};

/*
 * Control path. Installs the flow, then has the SYN sent; the receive flag is not held while the NIC is asked for the
 * flow's rule, unless the caller holds it. *out has one reference, the owner's. -EADDRINUSE: the 4-tuple is in use (or
 * in TIME_WAIT, and may not be used again yet); -ENOMEM; else as vma_ring_attach_flow.
 */
int vma_tcp_connect(struct vma_tcp *tcp, const struct vma_tcp_conn_attr *attr, struct vma_tcp_conn **out);
/*
 * Control path, not in a sink. Whether a connection of these addresses and ports may do without a rule of its own while
 * it is new (attr.covered): 1; 0; -EADDRINUSE, it may not, and others may have the port. As
 * vma_ring_reserve_port_block_of_key: asked once more when a kernel socket has been bound to the port alone, it must
 * still be 1; otherwise vma_tcp_conn_add_own_nic_rule.
 */
int vma_tcp_request_port_block(struct vma_tcp *tcp, const struct vma_tcp_conn_attr *attr);
void vma_tcp_release_port_blocks_if_unused(
        struct vma_tcp *tcp); /* control path: gives blocks back, if there is no connection */
/* Control path. The local port, network order, whose connection with these addresses and this peer's port has been in
 * TIME_WAIT for longest, and for more than 250 ms; 0: none. */
uint16_t vma_tcp_oldest_timewait_port(struct vma_tcp *tcp, const struct vma_tcp_conn_attr *attr);
void vma_tcp_conn_get(struct vma_tcp_conn *conn);
/* The owner's last word: no event comes after it returned (control path) unless it is called in an event. A connection
 * that has not been closed is reset. */
void vma_tcp_conn_drop_owner_and_abort(struct vma_tcp_conn *conn);
void vma_tcp_conn_put(struct vma_tcp_conn *conn);
void vma_tcp_conn_free(struct vma_tcp_conn *conn); /* for host->retire */
/*
 * Control path. Whether a connection, perhaps in TIME_WAIT, has this local port, and the IPv4 address (NULL: any): what
 * bind() without SO_REUSEADDR asks. Takes time by their number.
 */
bool vma_tcp_has_port(struct vma_tcp *tcp, const uint8_t *local, uint16_t port_be);

/* What a TIME_WAIT of the kernel's needs to know of a connection. */
struct vma_tcp_closed {
	struct vma_flow_key key;
	uint32_t snd_nxt, rcv_nxt;
};
/*
 * Control path. Of the connections with this local port, and the IPv4 address (NULL: any), that this side has closed
 * first (TIME_WAIT, or on the way there): one for each local address, at most `most`. Looks at the latest 16,384.
 */
unsigned vma_tcp_list_one_closed_conn_per_address(struct vma_tcp *tcp, const uint8_t *local, uint16_t port_be,
                                                  struct vma_tcp_closed *out, unsigned most);
/* So many bytes of a connection, aligned as a pointer, are the host's own from retire on. */
#define VMA_TCP_HOST_SPACE 48
void *vma_tcp_conn_scratch_memory_for_host(struct vma_tcp_conn *conn);

/* Any thread, no lock. */
int vma_tcp_state(const struct vma_tcp_conn *conn);            /* TCP_ESTABLISHED ... of <netinet/tcp.h> */
int vma_tcp_error(const struct vma_tcp_conn *conn);            /* why it failed, an errno; 0 */
int vma_tcp_error_take(struct vma_tcp_conn *conn);             /* the same once, as SO_ERROR; EPOLLERR ends with it */
uint32_t vma_tcp_poll_events(const struct vma_tcp_conn *conn); /* EPOLL* bits that hold now, as the kernel's tcp_poll */
void vma_tcp_conn_key(const struct vma_tcp_conn *conn, struct vma_flow_key *out);
struct vma_tcp *vma_tcp_conn_current_stack(const struct vma_tcp_conn *conn);

/* ---- reading: one reader at a time ---- */

uint64_t vma_tcp_readable_bytes(const struct vma_tcp_conn *conn); /* queued */
bool vma_tcp_rx_eof(const struct vma_tcp_conn *conn);             /* nothing is queued, and nothing will be */
/*
 * Spans of the first bytes queued after `skip`, at most n; returns how many. They stay valid until they are consumed.
 */
unsigned vma_tcp_peek_rx_spans(struct vma_tcp_conn *conn, size_t skip, struct iovec *spans, unsigned n);
/* Takes out bytes that the last rx_front gave (0: a read that found none passes a lone urgent byte); opens the window
 * when it pays, as the kernel (posts, never waits). */
void vma_tcp_rx_consume(struct vma_tcp_conn *conn, size_t bytes);
/* The urgent byte (MSG_OOB): 1 there, and *byte; 0 none; -EINVAL none expected or inline. mark: bytes before it, for
 * SIOCATMARK; -1: none. */
int vma_tcp_read_urgent_byte(struct vma_tcp_conn *conn, uint8_t *byte, bool peek);
int64_t vma_tcp_bytes_before_urgent_mark(const struct vma_tcp_conn *conn);

/* ---- zero-copy receive ---- */

/*
 * A piece of the stream, where the device put it. Who wants to keep it takes a reference to the buffer, and says that
 * it is held. Held bytes count as read, but fill the receive buffer until they are said to be back: the window closes
 * for a holder that gives none back. Other clients of the device can write to a frame at any time, as to any other.
 */
struct vma_tcp_rx_stream_piece {
	void *data;
	uint32_t len;
	struct vma_buf *buf; /* in whose frame it lies; NULL: it was copied, and cannot be held */
};
/*
 * Any thread. What comes in order stays in its frames from soon on, within bounds: 512 frames of a connection, 64 if
 * they are small, vma_tcp_memory.frames_max of a process. What is beyond, and what came out of order, is copied.
 * Reading is as before, and may be mixed with what follows. It stays so until the connection ends. -ENOMEM.
 */
int vma_tcp_enable_rx_zcopy(struct vma_tcp_conn *conn);
uint64_t vma_tcp_zcopy_conn_id(const struct vma_tcp_conn *conn); /* never used twice in a process; 0: not begun */
/* Reader. The first bytes queued, up to the urgent one; they stay queued. False: there are none. */
bool vma_tcp_peek_first_rx_piece(struct vma_tcp_conn *conn, struct vma_tcp_rx_stream_piece *piece);
/* Reader. That piece, whose buf is not NULL, is held from now on, and no longer queued. */
void vma_tcp_rx_hold_piece(struct vma_tcp_conn *conn, const struct vma_tcp_rx_stream_piece *piece);
/*
 * Any thread. The same as vma_tcp_enable_rx_zcopy, and from soon on pieces are offered to the owner while they come, if
 * each is a packet of its own in one frame: take of vma_tcp_conn_ops.
 */
int vma_tcp_offer_arriving_pieces(struct vma_tcp_conn *conn);
/* Reader, within take: the piece is held, and was never queued. */
void vma_tcp_rx_hold_arriving_piece(struct vma_tcp_conn *conn, const struct vma_tcp_rx_stream_piece *piece);
/*
 * Any thread: so many bytes, in so many pieces, are held no longer, of the connection with that number. conn: any, or
 * NULL; if it is that one, its window may open. memory: that of its stack.
 */
void vma_tcp_held_bytes_returned(struct vma_tcp_conn *conn, struct vma_tcp_memory *memory, uint64_t number,
                                 uint64_t bytes, unsigned pieces);
struct vma_tcp_memory *vma_tcp_memory_limits_of(const struct vma_tcp_conn *conn);

/*
 * An owner that inspects what comes, in order, before a reader sees it. VMA_TCP_ARRIVED is told in place of READABLE;
 * then vma_tcp_inspect_received asks `decide` of each piece, in the calling thread, without a flag or lock of this
 * component. DROP: the bytes count as read. RECV: they are queued, and the owner tells its readers. HOLD: `decide` has
 * taken a reference, and the piece is held; a piece that was copied is received instead. It may call anything of this
 * connection's: the piece at hand stays as it is. GONE: it has forked, and this is the child, whose the connection is
 * not: nothing is touched. A FIN is told, and a close carried out, only after the verdict about what came before it. If
 * the connection has ended meanwhile, the owner looks by itself whether this was the last piece (vma_tcp_rx_eof). With
 * inspection the urgent byte is a byte of the stream like others, and has no mark.
 */
enum vma_tcp_inspect_verdict { VMA_TCP_DROP, VMA_TCP_RECV, VMA_TCP_HOLD, VMA_TCP_GONE };
struct vma_tcp_inspector {
	enum vma_tcp_inspect_verdict (*decide)(struct vma_tcp_conn *conn, const struct vma_tcp_rx_stream_piece *piece,
	                                       void *arg);
	void *arg;
};
/* Any thread, no lock: bytes wait to be inspected, and may be queued then. */
bool vma_tcp_rx_awaits_inspection(const struct vma_tcp_conn *conn);
struct vma_tcp_inspected {
	uint64_t received; /* bytes that are queued now */
	unsigned pieces;
	bool more; /* waits, since `most` was reached */
	bool gone; /* VMA_TCP_GONE: the connection is not to be touched any more */
};
/* Any thread. Begins vma_tcp_enable_rx_zcopy, too. Off: as soon as nothing waits any more; until then the owner goes
 * on. */
int vma_tcp_enable_rx_inspection(struct vma_tcp_conn *conn, bool on);
/*
 * Any thread; not with the receive flag. Inspects what waits, at most so many pieces, unless another thread does so
 * now: that one inspects what has come until now, too, or says that there is more.
 */
struct vma_tcp_inspected vma_tcp_inspect_received(struct vma_tcp_conn *conn, const struct vma_tcp_inspector *inspector,
                                                  unsigned most);
/*
 * The inspecting thread has ended within `decide`, and does not come back from it: from there, in its stead. The piece
 * at hand gets this verdict, and any thread may inspect again. The owner has one do so: there may be more.
 */
void vma_tcp_inspector_has_ended(struct vma_tcp_conn *conn, enum vma_tcp_inspect_verdict verdict) __attribute__((cold));

/* ---- writing: one writer at a time ---- */

uint64_t vma_tcp_tx_space(const struct vma_tcp_conn *conn);         /* bytes that fit now */
uint64_t vma_tcp_tx_unacked_bytes(const struct vma_tcp_conn *conn); /* not acknowledged: SIOCOUTQ */
uint64_t vma_tcp_tx_unsent(const struct vma_tcp_conn *conn);        /* SIOCOUTQNSD */
/*
 * Room for up to `bytes` at the end of the send fifo, in at most n spans; returns how many (0: none, and a WRITABLE
 * will come), -ENOMEM, -EPIPE (shut down or over). Nothing is sent before tx_commit, which may take less.
 */
int vma_tcp_tx_reserve(struct vma_tcp_conn *conn, size_t bytes, struct iovec *spans, unsigned n);
/*
 * A segment of these bytes (what one segment has room for) is made as the next one would be, and is not sent: no state
 * changes. Nothing is done while another thread drives the ring. Any thread, inside.
 */
void vma_tcp_tx_dummy(struct vma_tcp_conn *conn, const void *bytes, size_t n) __attribute__((cold));
/*
 * The headers of the next segment as if it were empty, from Ethernet's on: as many bytes as fit, and how many there are.
 * -ENOTCONN: not connected, or the path is not known. Any thread, inside, control path.
 */
ssize_t vma_tcp_copy_next_headers(struct vma_tcp_conn *conn, void *to, size_t size) __attribute__((cold));
enum vma_tcp_tx_flags {
	VMA_TCP_TX_MORE = 1 << 0,   /* MSG_MORE: more follows, do not send a short segment for it */
	VMA_TCP_TX_URGENT = 1 << 1, /* the last byte is urgent */
	VMA_TCP_TX_LATER = 1 << 2,  /* commit only; a vma_tcp_send_committed follows */
	VMA_TCP_TX_QUEUE = 1 << 3,  /* sent by whoever drives the ring next: vma_ring_queue_command */
};
void vma_tcp_tx_commit(struct vma_tcp_conn *conn, size_t bytes, unsigned flags);
/* Has sent what may be sent. Drives, or leaves it to whoever drives. */
void vma_tcp_send_committed(struct vma_tcp_conn *conn);

/* ---- ending ---- */

/*
 * SHUT_RD, SHUT_WR, SHUT_RDWR as the kernel; FIN follows what is queued. -ENOTCONN. Who ends writing, by this or by
 * close, is the writer of that moment: what another thread committed meanwhile would come after the FIN.
 */
int vma_tcp_shutdown(struct vma_tcp_conn *conn, int how);
/*
 * The application has closed it: what is queued is delivered, then FIN, without owner; RST if something received was
 * not read, or with abort. The owner disowns it afterwards, or waits for DRAINED first (SO_LINGER).
 */
void vma_tcp_close(struct vma_tcp_conn *conn, bool abort);

/* ---- control, of a connection ---- */

/* 0, -EINVAL (out of the option's range, as the kernel's). Takes effect now. */
int vma_tcp_set_option(struct vma_tcp_conn *conn, enum vma_tcp_option option, int32_t value);
int32_t vma_tcp_get_option(const struct vma_tcp_conn *conn, enum vma_tcp_option option);
/* What the receive buffer may hold now, bytes of the stream: set by VMA_TCP_OPT_RCVBUF, else grown to. Any thread. */
uint64_t vma_tcp_rcvbuf_bytes(const struct vma_tcp_conn *conn);
/*
 * The kernel's struct tcp_info to its end as of Linux 6.18, of which the C library's header knows the beginning. Zero
 * is what nobody here measures: busy_time_us, rwnd_limited_us, sndbuf_limited_us, rehash, the recoveries and the time
 * of total_rto, ECN (there is none), and delivery_rate without a congestion control that has a model.
 */
struct vma_tcp_info {
	struct tcp_info kernel;
	uint64_t pacing_rate, max_pacing_rate; /* bytes per second; UINT64_MAX: none */
	uint64_t bytes_acked, bytes_received;  /* with this side's SYN if it came first, and the FINs */
	uint32_t segs_out, segs_in;
	uint32_t notsent_bytes;
	uint32_t min_rtt_us; /* UINT32_MAX: not known */
	uint32_t data_segs_in, data_segs_out;
	uint64_t delivery_rate;
	uint64_t busy_time_us, rwnd_limited_us, sndbuf_limited_us;
	uint32_t delivered, delivered_ce; /* segments; the SYN is one */
	uint64_t bytes_sent, bytes_retrans;
	uint32_t dsack_dups, reord_seen; /* reord_seen: whether */
	uint32_t rcv_ooopack;
	uint32_t snd_wnd, rcv_wnd;
	uint32_t rehash;
	uint16_t total_rto, total_rto_recoveries;
	uint32_t total_rto_time_ms;
	uint32_t received_ce, delivered_ecn_bytes[3], received_ecn_bytes[3];
	uint16_t accecn_fail_mode, accecn_opt_seen;
};
_Static_assert(offsetof(struct vma_tcp_info, pacing_rate) == 104 && sizeof(struct vma_tcp_info) == 280,
               "the kernel's layout");
void vma_tcp_info(struct vma_tcp_conn *conn, struct vma_tcp_info *info); /* control path */
/*
 * Whoever drives keeps the block's tcp_* fields up to date from now on, until the connection is disowned. Any thread;
 * NULL is allowed.
 */
void vma_tcp_set_stats(struct vma_tcp_conn *conn, struct vma_stats_socket *stats);
/* The inside of a connection, for printing. Control path. */
struct vma_tcp_dump_segment {
	bool there;
	uint32_t seq, len;
};
struct vma_tcp_dump {
	int state; /* as vma_tcp_state */
	uint32_t flags, mss, advertised_mss, cwnd, rtt_usec, rto_msec, timeouts;
	bool wnd_scale;
	uint8_t rcv_scale, snd_scale;
	uint64_t rcv_queued, rcvbuf, sndbuf, snd_space; /* bytes */
	uint32_t rcv_wnd, rcv_ann_wnd, rcv_wnd_max, rcv_nxt, rcv_edge;
	uint32_t snd_wnd, snd_wnd_max, snd_nxt, snd_wl1, snd_wl2, lastack;
	struct vma_tcp_dump_segment unsent, unacked, unacked_last;
};
void vma_tcp_get_dump(struct vma_tcp_conn *conn, struct vma_tcp_dump *out);
/* What the congestion control says of itself, as TCP_CC_INFO (<linux/inet_diag.h>): how long it is, 0 but for one with
 * a model. Control path. */
union tcp_cc_info;
size_t vma_tcp_cc_info(struct vma_tcp_conn *conn, union tcp_cc_info *info);
/* A new way to the peer (route, neighbour, MTU). Posts. -ENOMEM: the old one goes on; say it again later, for a
 * connection that has none would wait for ever. */
int vma_tcp_set_path(struct vma_tcp_conn *conn, const struct vma_tcp_path *path);
/* An ICMP error about this connection has come: type, code and next-hop MTU of RFC 792/1191, seq of the inner header.
 * Posts. Hard errors end a connection that is being made; others are remembered for SO_ERROR's soft error. */
void vma_tcp_post_icmp_error(struct vma_tcp_conn *conn, uint8_t type, uint8_t code, uint16_t mtu, uint32_t seq);
/* Control path. The same with a whole ICMP message, from its header on, which quotes a packet of the connection. False:
 * it is about none of this stack's, or it is not whole. */
bool vma_tcp_icmp_packet(struct vma_tcp *tcp, uint16_t vlan, const void *message, size_t len);
/*
 * Has the NIC steer this connection by itself (vma_ring_request_nic_rule_of_flow); before its listener ends. Control
 * path. -EINVAL: it has ended, or changes stacks at this moment.
 */
int vma_tcp_conn_add_own_nic_rule(struct vma_tcp_conn *conn);
/* The same for all connections that another rule covers: a listener's, or a block of ports'. Control path. */
void vma_tcp_steer_all_conns_to_own_rules(struct vma_tcp *tcp);

/* ---- listeners ---- */

struct vma_tcp_listener_ops {
	/* A connection request: false drops it (the queue of the owner is full). Receive flag held, as the next. */
	bool (*admit)(struct vma_tcp_listener *listener, void *arg);
	/*
	 * A handshake is complete. The owner takes the reference, and names itself the connection's owner by
	 * vma_tcp_conn_set_owner_and_replay_events before it returns; or returns false, and the connection is reset.
	 */
	bool (*accepted)(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn);
	/*
	 * May be NULL. The NIC no longer steers to the listener (see VMA_NIC_EVENT_FLOW_REVOKED): requests are the
	 * kernel's, and connections that are not steered by themselves are to be, now. Receive flag held.
	 */
	void (*revoked)(struct vma_tcp_listener *listener, void *arg);
};
/*
 * A connection of a listener that other processes serve, too (<vma/nic_group.h>), is pending until it is accepted: it
 * may become another process's. accept: any thread; false, it has, and is to be dropped
 * (vma_tcp_drop_adopted_elsewhere), which is control path: it is over, and the peer is told nothing. A pending one is
 * not to be steered.
 */
bool vma_tcp_is_pending(const struct vma_tcp_conn *conn);
bool vma_tcp_claim_accepted_conn(struct vma_tcp_conn *conn);
void vma_tcp_drop_adopted_elsewhere(struct vma_tcp_conn *conn);
struct vma_tcp_listen_attr {
	const struct vma_tcp_listener_ops *owner;
	void *arg;
	const struct vma_tcp_options *options; /* of the connections; copied */
	uint8_t family;
	uint16_t vlan, local_port_be;
	uint8_t local[16];
	uint64_t shadow_cookie;
	int shadow_fd;
	uint32_t backlog; /* half-open connections at a time */
	bool inherited;   /* VMA_FLOW_INHERITED */
};
/* Control path. One per ring, address and port. */
int vma_tcp_listen(struct vma_tcp *tcp, const struct vma_tcp_listen_attr *attr, struct vma_tcp_listener **out);
/*
 * Control path, before a close. New SYNs are dropped, so that their peers repeat them. Half-open connections may become
 * established, for max_ns at most. Drives the ring. If other processes serve the listener as well, new SYNs are theirs,
 * and with the close the half-open connections, too.
 */
void vma_tcp_listener_drain(struct vma_tcp_listener *listener, uint64_t max_ns);
/*
 * Control path. The listener's flow goes back to the kernel at once, for whoever listens there. Connections go on with
 * rules of their own, and those half open may still be accepted until the listener is closed. Drives the ring.
 */
void vma_tcp_listener_withdraw(struct vma_tcp_listener *listener);
bool vma_tcp_listener_has_no_half_open(struct vma_tcp_listener *listener); /* none is half open */
/*
 * Control path. Half-open connections end with RST; those accepted live on, steered by themselves. Requests on their
 * way are refused; after vma_tcp_listener_drain they are dropped, for another listener to be asked.
 */
void vma_tcp_listener_close(struct vma_tcp_listener *listener);
/*
 * Control path. Another kernel socket of this process, which listens on the same port, stands for the listener, too:
 * the device's owner does not take it for a stranger's. Before it listens. -EADDRINUSE, ...: the device does not know
 * it.
 */
int vma_tcp_listener_share_rule(struct vma_tcp_listener *listener, uint64_t shadow_cookie, int shadow_fd);
void vma_tcp_listener_set_options(struct vma_tcp_listener *listener, const struct vma_tcp_options *options,
                                  uint32_t backlog);
/* From accepted, or later by whoever holds the connection. Events that came before are told again at once. */
void vma_tcp_conn_set_owner_and_replay_events(struct vma_tcp_conn *conn, const struct vma_tcp_conn_ops *owner,
                                              void *arg);

/* ---- moving to another stack ---- */

/*
 * Control path, not in a sink, no other ring's flag held. A connection goes on in a stack of another ring of the same
 * device, with a rule of its own there, in whatever it is doing: segments, timers, data out of order and all that waits
 * move along. Other threads may use it meanwhile, but not move or export it; the stack that it leaves has to outlive
 * their calls. A rule of its own moves in one step. -EBUSY: it is not established yet, closed by its owner, or another
 * process may still accept it; else as vma_ring_attach_flow and vma_ring_move_rule: it goes on where it is. -ENOTCONN:
 * it has ended meanwhile.
 */
int vma_tcp_move_to_stack(struct vma_tcp_conn *conn, struct vma_tcp *to);
bool vma_tcp_is_movable(struct vma_tcp_conn *conn); /* control path, not in a sink: not -EBUSY at this moment */
bool vma_tcp_conn_has_own_nic_rule(const struct vma_tcp_conn *conn); /* control path, not in a sink: one of its own */

/* All that another stack (the kernel's, by TCP_REPAIR) has to know to go on with a connection. */
struct vma_tcp_export {
	uint32_t snd_una; /* of the first byte of `unacked` */
	uint32_t rcv_nxt; /* behind the last byte of `unread`; the peer's FIN does not count */
	uint64_t sent;    /* how many of `unacked` have been sent */
	uint64_t unacked; /* bytes, see vma_tcp_export_peek_unacked_tx_bytes */
	uint64_t unread;  /* bytes, see vma_tcp_export_peek_rx_bytes */
	uint32_t snd_wl1, snd_wnd, snd_wnd_max;
	uint32_t rcv_wup, rcv_wnd; /* the last ACK sent, and how far beyond it the peer may send */
	uint32_t ts_now;           /* what time stamps of ours say */
	uint16_t mss;              /* as the peer announced it */
	uint8_t snd_scale, rcv_scale;
	bool has_scale, has_sack, has_ts;
	bool moved_bytes;      /* the owner has read or written some */
	bool fin_received;     /* at rcv_nxt */
	bool shut_rd, shut_wr; /* by this side: a FIN has been, or is to be, sent behind `unacked` */
};
/*
 * All but detach with the receive flag held (vma_ring_acquire) from the first to the last, and by who may read and
 * write the connection. begin changes nothing, and may be followed by nothing. -ENOTCONN: it is not established (any
 * more); -EBUSY: something of it cannot be told now (urgent data, bytes for which there was no memory).
 */
int vma_tcp_export_begin(struct vma_tcp_conn *conn, struct vma_tcp_export *out);
/* Spans of the bytes not acknowledged, or not read, from offset `skip` on. */
unsigned vma_tcp_export_peek_unacked_tx_bytes(struct vma_tcp_conn *conn, size_t skip, struct iovec *spans, unsigned n);
unsigned vma_tcp_export_peek_rx_bytes(struct vma_tcp_conn *conn, size_t skip, struct iovec *spans, unsigned n);
/*
 * The i-th piece of what came out of order, and has been told to the peer (SACK): copies at most `room` bytes, and says
 * where they belong and whether a FIN follows them. How many; -ENOENT: there are no more pieces, -EMSGSIZE.
 */
ssize_t vma_tcp_export_copy_ooo_segment(struct vma_tcp_conn *conn, unsigned i, uint32_t *seq, bool *fin, void *to,
                                        size_t room);
/*
 * The other stack has it: here it is over, without a word to the peer or an event for the owner. What the ring receives
 * of it from now on, `late` is given, for the other stack, with the receive flag held, until vma_tcp_export_detach has
 * come back. That comes soon after, without the receive flag, by who holds a reference: when it returns the NIC does
 * not steer to us any more, and all that it had was given. Control path. With late NULL it is dropped (the peer will
 * say it again), and detach is not called.
 */
struct vma_tcp_late_sink {
	void (*packet)(struct vma_tcp_late_sink *late, struct vma_buf *packet); /* as a sink's, which returns false */
};
void vma_tcp_export_end(struct vma_tcp_conn *conn, struct vma_tcp_late_sink *late);
void vma_tcp_export_detach(struct vma_tcp_conn *conn);

/* ---- counters ---- */

#define VMA_TCP_COUNTS(X)                                                                                              \
	X(segments_in)                                                                                                 \
	X(segments_out)                                                                                                \
	X(bytes_in)                                                                                                    \
	X(bytes_out)                                                                                                   \
	X(retransmits)                                                                                                 \
	X(fast_recoveries)                                                                                             \
	X(timeouts)                                                                                                    \
	X(tail_probes)                                                                                                 \
	X(spurious)                                                                                                    \
	X(dup_acks_in)                                                                                                 \
	X(out_of_order_in)                                                                                             \
	X(challenge_acks)                                                                                              \
	X(paws_drops)                                                                                                  \
	X(resets_in)                                                                                                   \
	X(resets_out)                                                                                                  \
	X(cookies_sent)                                                                                                \
	X(cookies_received)                                                                                            \
	X(syns_dropped)                                                                                                \
	X(handshakes)                                                                                                  \
	X(time_waits)                                                                                                  \
	X(no_memory)                                                                                                   \
	X(zero_windows)                                                                                                \
	X(zcopy_bytes)  /* in order, left in their frames, */                                                          \
	X(zcopy_copied) /* and copied, although the connection keeps frames */

struct vma_tcp_counts {
#define X(name) uint64_t name;
	VMA_TCP_COUNTS(X)
#undef X
};
void vma_tcp_read_counters(struct vma_tcp *tcp, struct vma_tcp_counts *out); /* any thread, each number for itself */

#endif
