/*
 * verbs - what the parts of the verbs backend share.
 *
 *   lib.c, symbol.c   the functions of libibverbs   device.c   an opened device: context, protection domain, limits
 *   find.c     interface to device              memory.c   registered windows, pools, the table of local keys
 *   mappings.c a device's mappings, not inherited
 *   rule.c     a key as a rule of the card      queue.c    what one queue pair has in the device
 *   plan.h     depths, completions to ask for   data.c     the hot path; data.h what it shares with the next
 *   mlx5.c     the rings of an mlx5 card        mlx5_data.c   the hot path over them; mlx5_wqe.h their layouts
 *   flows.c    rules of all queue pairs         thread.c   windows to come, broken queues, events
 *   claims.c   flows that two processes want    verbs.c    open, close, queue pairs, rebind
 *   conflicts.c   flows that kernel sockets want   exempts.c   connections that the card leaves to the kernel
 *   clock.h    the card's clock as the system's stamps.c   time stamps of what is received
 *
 *   struct nic_verbs       one vma_nic_open, with a thread of its own
 *     verbs_device         one opening of the RDMA device; after a fatal error another one
 *     verbs_qp             one queue pair
 *       verbs_queue        its objects in the device
 *       verbs_pool         its memory; a rebind exchanges both
 *
 * A queue or device that has failed: the thread that meets the error says so (verbs_qp_note_maybe_broken) and goes on.
 * The nic's thread asks the device, marks the queue pair as lost and tells its user. Device objects end in rebind and
 * destroy only, when both halves are held, so the hot path may be anywhere until then.
 *
 * A device may go while a call on the control path uses it, and its event comes later. So a call that fails asks
 * whether the device has failed (verbs_device_failure_explains_error). If it has, nothing is concluded from the error:
 * no flow is given up, no limit is noted, and the log has no line but the one for the lost queue.
 *
 * Threads: the receive half and the transmit half of a queue pair belong to one thread each, as nic.h says. The control
 * path has two locks: `events` (held while a callback runs, and to add or remove queue pairs) before `lock` (everything
 * else). A callback may call anything but vma_nic_qp_destroy and vma_nic_close.
 */
#ifndef VMA_NIC_VERBS_VERBS_H
#define VMA_NIC_VERBS_VERBS_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>
#include <vma/nic_reinject.h>

#include "../client/connecting.h"
#include "../fork.h"
#include "../kernel_sock.h"
#include "../sock_cookies.h"
#include "clock.h"
#include "exempts.h"
#include "find.h"
#include "lib.h"
#include "plan.h"
#include "rule.h"

#define VERBS_MEMORY_MAX (64u << 20) /* registered, per nic */
#define VERBS_SEGS_MAX 16            /* of one packet, on either side */
#define VERBS_BURST 32
#define VERBS_UNIT_SHIFT 6 /* the arena maps whole units of so many frames */
#define VERBS_BUF_SHIFT 6  /* of the size of a vma_buf, which no frame is below */
#define VERBS_L2_BYTES 14
#define VERBS_SPARE_FDS 2 /* a new queue's channel, and what is open for a moment while it is made */
#define VERBS_TAG_BYTES 4

struct nic_verbs;
struct verbs_qp;
struct verbs_mlx5;
struct mlx5_lib;

/* ---- device.c ---- */

struct verbs_limits {
	uint32_t wr_max, cqe_max, sge_max;
	uint32_t tso_max;  /* 0: none */
	bool has_checksum; /* both ways */
	bool has_moderation;
	uint64_t clock_mask, clock_khz; /* of the counter in completions; 0: none */
	bool has_clock;                 /* and it can be read at any time */
	bool has_wall;                  /* completions also have the time of the clock that PTP disciplines */
	uint32_t pace_min, pace_max;    /* kbit/s; pace_max 0: it does not pace raw packet queue pairs */
};

struct verbs_device {
	const struct verbs_lib *lib;
	const struct mlx5_lib *mlx5; /* NULL: its rings are libibverbs' business (mlx5.h) */
	unsigned refs;               /* under the nic's lock: the nic, and each queue pair */
	uint32_t generation;         /* of the nic's openings; 1 or more */
	struct verbs_device_port place;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct verbs_limits limits;
	struct verbs_exempts exempts; /* under the nic's lock, as the next */
	bool broken;
};

/* 0; -EPERM, -EOPNOTSUPP, ...: the log has the line, `name` is the interface's. */
int verbs_device_open(const char *name, const struct verbs_device_port *place, uint32_t generation,
                      struct verbs_device **out);
/* The device is asked: it has gone, or nothing can be had of it. Its event may come later. */
bool verbs_device_is_gone(const struct verbs_device *device);
void verbs_device_put(struct verbs_device *device);
bool verbs_has_capability(unsigned number); /* this process, CAP_... of <linux/capability.h> */
void verbs_device_close_in_child(const struct verbs_device *device);
/* A descriptor in an object of libibverbs: under a number of our own, and never waited for. 0 or -errno. */
int verbs_fd_move_high_nonblock(int *fd);
void verbs_fd_forget(int fd); /* libibverbs closes it next */

/* ---- mappings.c ---- */

/* A forked child does not inherit the mappings of the device that exist by now. */
void verbs_device_mappings_set_dontfork(const struct verbs_device *device);
void verbs_mappings_of_file_set_dontfork(const char *path);

/* ---- memory.c ---- */

struct verbs_registered_memory {
	struct verbs_registered_memory *next;
	uint32_t first, count;
	struct ibv_mr *mr;
};

/* A pool and its windows. Outlives the queue pair until the last buffer has been put. */
struct verbs_pool {
	struct vma_bufarena *arena;
	struct vma_bufpool *pool;
	struct verbs_registered_memory *windows;
	uint32_t frames, wanted; /* registered; the nic's thread adds the rest */
};

/* Lock held, all of them. With a first window of at most that; 0 or -errno. */
int verbs_pool_create(struct nic_verbs *nic, struct verbs_device *device, const char *name, const void *named_by,
                      uint32_t wanted, struct verbs_pool **out);
/* One more window. False: it has all it wants, or there is no more memory for it. */
bool verbs_pool_grow(struct nic_verbs *nic, struct verbs_device *device, struct verbs_pool *pool);
/* The device lets go of its memory; NULL is allowed. */
void verbs_pool_deregister_and_retire(struct nic_verbs *nic, const struct verbs_device *device,
                                      struct verbs_pool *pool);
/* Memory that was refused may be asked for again. How long until then, ms; -1: none was refused. */
int verbs_memory_end_pause_if_due(struct nic_verbs *nic);
uint32_t verbs_frames_max(const struct vma_bufarena *arena); /* 64 MB, or what RLIMIT_MEMLOCK says */
/* All 0, and all 0 again in a forked child. A kernel that does not see to that makes *is_wiped false: the child has to.
 * NULL: no memory. */
void *verbs_wipeonfork_alloc(size_t bytes, bool *is_wiped);
void verbs_wipeonfork_free(void *memory, size_t bytes); /* NULL is allowed */

/* ---- queue.c ---- */

struct verbs_queue {
	struct verbs_device *device; /* NULL: there is none */
	struct verbs_mlx5 *mlx5;     /* its rings, if the library drives them itself (mlx5.h); NULL: libibverbs does */
	struct ibv_td *td;
	struct ibv_pd *domain; /* NULL: the device's; else one for a single thread */
	struct ibv_comp_channel *channel;
	struct ibv_cq *rx_cq, *tx_cq;
	struct ibv_cq_ex *rx_cq_ex, *tx_cq_ex; /* NULL: the provider has only ibv_poll_cq; or with mlx5 */
	struct ibv_qp *qp;
	struct ibv_qp_ex *qp_ex; /* NULL: the provider has only ibv_post_send; or with mlx5 */
	uint32_t inline_max;
	enum verbs_timestamp_kind rx_stamps; /* that completions of receives have */
};

struct verbs_queue_attr {
	uint32_t rx_packets, rx_sges;
	uint32_t tx_packets, tx_sges;
	uint32_t inline_bytes;
	bool tso;
	enum verbs_timestamp_kind rx_stamps; /* without them, if they cannot be had */
};
/* The device's objects, without pools; 0 or -errno, *what: the call that failed. */
int verbs_queue_open(struct verbs_device *device, const struct verbs_queue_attr *attr, struct verbs_queue *queue,
                     const char **what);
bool verbs_queue_stop(struct verbs_queue *queue);  /* it neither sends nor receives from now on */
void verbs_queue_close(struct verbs_queue *queue); /* accepts a half-built one */
int verbs_queue_set_rate_limit(struct verbs_queue *queue, uint32_t kbps); /* 0: no limit */

/* ---- queue pairs ---- */

struct verbs_flow {
	struct verbs_flow *next;
	struct vma_flow_rule rule;  /* as it was asked for first */
	struct nic_cookies shadows; /* of all that have asked for it */
	struct verbs_qp *qp;
	struct ibv_flow *of_card; /* NULL: its queue pair is lost */
	uint16_t priority;
	bool is_broadcast, is_contested;
	bool is_noted, is_told;                      /* peers.c: it counts; vmad knows it */
	uint64_t until_ms;                           /* revoked: its rule lingers so long */
	int claim_fd;                                /* -1: it needs none (verbs_flow_needs_claim) */
	struct kernel_sock_suspected_before suspect; /* conflicts.c */
};

/* Of a unit of the arena. */
struct verbs_lkey {
	_Atomic uint32_t key;
	_Atomic uint32_t generation; /* of the device that knows it; 0: none does */
};

/* A segment that waits to be sent or is on its way. */
struct verbs_send_segment {
	struct vma_buf *buf; /* NULL: given back before */
	uint64_t addr;
	uint32_t len;
	uint16_t flags, mss; /* of the vma_nic_seg; nothing with SENT_PLAIN */
	uint32_t lkey;
	uint16_t hdr_len;
	uint16_t how; /* IBV_SEND_IP_CSUM; SENT_PLAIN; in a forked child 0 */
};
#define SENT_PLAIN (1 << 8) /* all of a packet, with at most a checksum to be done */
_Static_assert(sizeof(struct verbs_send_segment) == 32, "two in a cache line");

/*
 * Three fields stand for questions that no packet pays for:
 *   lkeys          a table without keys, once the queue pair is lost; and in a forked child
 *   rx_ex, tx_ex   NULL, once it is lost; and rx_mlx5, tx_mlx5, one pair of which is always NULL
 *   sent           no entry is SENT_PLAIN in a forked child
 * Who finds no key, NULL or nothing plain asks all that is to be asked (qp_is_usable_in_this_process).
 */
struct verbs_qp {
	struct vma_nic_qp base;
	const _Atomic uint32_t *fork_guard; /* 0 in a forked child */
	struct nic_verbs *nic;
	struct verbs_queue queue;
	struct verbs_pool *rx_memory, *tx_memory;
	const struct verbs_lkey *_Atomic lkeys; /* the nic's */
	uint32_t generation;                    /* of the device */
	uint32_t frame_shift;                   /* the arena's, as the next three */
	uintptr_t bufs;
	char *frames;
	uint32_t frame_of_buf_shift; /* a frame is so much longer than its descriptor */
	_Atomic bool broken;         /* an error was met; for the nic's thread */
	struct vma_stats_nic *stats;

	/* receive half */
	struct ibv_cq_ex *_Atomic rx_ex __attribute__((aligned(64))); /* with packets of one buffer and no stamps */
	uint32_t rx_bufs;                                             /* buffers of one posted receive */
	uint32_t rx_with_nic;   /* buffers posted and not polled, also those in rx_open */
	uint32_t rx_single_max; /* as many may be posted one at a time; 0: with several to a receive */
	uint32_t rx_open_n, rx_pending_at, rx_pending_n;
	bool rx_armed, rx_watched;
	bool rx_sleeps;                              /* armed and not unarmed since: somebody may sleep on epoll_fd */
	_Atomic uint8_t rx_stamps;                   /* enum verbs_timestamp_kind that are read */
	struct verbs_mlx5 *_Atomic rx_mlx5;          /* with packets of one buffer and no stamps */
	struct vma_buf *rx_open[2 * VERBS_SEGS_MAX]; /* the NIC's, and not enough for one more receive */
	struct vma_buf *rx_pending[2 * VERBS_SEGS_MAX]; /* polled, and not asked for yet */
	struct verbs_clock rx_last;                     /* with the line as last read whole */
	struct verbs_clock rx_clock;                    /* of the device: how its counter runs */
	uint64_t rx_stamp_last;
	struct ibv_recv_wr rx_one; /* the list of a single buffer */
	struct ibv_sge rx_one_sge;
	struct ibv_recv_wr rx_wr[VERBS_BURST];
	struct ibv_sge rx_sge[VERBS_BURST * VERBS_SEGS_MAX];
	struct vma_reinject_addrs addrs; /* of what is given to the kernel */

	/* transmit half: [reaped, completed) may be reaped, [completed, kicked) is on its way, [kicked, queued) waits
	 * */
	struct ibv_qp_ex *_Atomic tx_ex
	        __attribute__((aligned(64))); /* NULL also: the provider has only ibv_post_send */
	struct verbs_send_segment *sent;
	uint32_t sent_mask, sent_reaped, sent_completed, sent_kicked, sent_queued;
	uint32_t sent_end;                                 /* no place from here on: sent_reaped and the depth */
	uint32_t tx_segs_max, tx_longest, tx_longest_ever; /* bytes of an untagged frame, without FCS */
	uint32_t tx_plain_most;                            /* bytes of a packet in one buffer, behind VERBS_L2_BYTES */
	uint64_t tx_frame_bytes;                           /* of a frame of the arena */
	uint16_t tx_not_plain;                             /* flags that make a packet more than that */
	struct verbs_signal_interval signals;
	struct verbs_mlx5 *_Atomic tx_mlx5;

	/* any thread, of a queue with mlx5: whether the receive queue is empty */
	struct verbs_mlx5 *_Atomic rx_look __attribute__((aligned(64))); /* NULL: it is not known */
	_Atomic uint32_t lookers;                                        /* that may be using rx_look */
	_Atomic bool rx_keeps; /* receive half: rx_pending has something, or may have in a moment */

	/* control */
	struct verbs_qp *next __attribute__((aligned(64)));
	struct vma_nic_qp_attr attr;
	struct verbs_queue before; /* while a rebind lacks memory: it has the rules still, and receives nothing */
	bool lacks_memory;         /* the last bind */
	uint64_t failed_ns;        /* since when rebinds fail; 0: the last one did not */
	uint32_t pace_kbps;        /* 0: no limit */
	char name[64];
	int epoll_fd, wake_fd; /* wake_fd: readable when a rebind is due */
};

/* What of nic_verbs.clock the receive halves read; stamps.c. */
struct verbs_clock_conversion {
	_Atomic uint32_t seq; /* odd: it is being written; 0: never was */
	_Atomic uint64_t ticks, ns, slope;
};

struct vmad_client;

/* peers.c; under the lock. */
struct verbs_peers {
	struct vmad_client *vmad; /* NULL: none; only the nic's thread changes it */
	struct vmad_connecting connecting;
	int right_fd;         /* -1: none */
	uint32_t connections; /* flows of TCP with a peer */
	bool behind, stale;
	bool off;               /* no vmad is told */
	uint64_t look_ms;       /* for a vmad, not before */
	uint32_t room_ms;       /* the next pause until vmad has read; 0: it had room the last time */
	uint64_t room_until_ms; /* the end of this pause */
};

struct nic_verbs {
	struct vma_nic base;
	struct nic_fork_entry forked;
	pthread_mutex_t events, lock;
	const _Atomic uint32_t *fork_guard;
	struct vma_stats *stats;
	enum vma_nic_thread_caches caches;
	char name[IF_NAMESIZE]; /* of the interface */
	uint8_t mac[6];         /* of the interface now; under the lock */
	struct verbs_device *device;
	uint32_t generations;
	struct verbs_lkey *lkeys;          /* by unit of the arena */
	const struct verbs_lkey *no_lkeys; /* a table of the same size, all 0 */
	uint32_t frames_max, frames;
	uint64_t memory_again_ms;       /* memory.c: frames_max holds until then; 0: for good */
	uint32_t memory_pause_ms;       /* the next pause; 0: the first one */
	struct vma_bufpool *empty_pool; /* without a buffer, of queue pairs that have no memory */
	struct verbs_qp *qps;
	struct verbs_flow **flow_buckets;
	uint32_t flow_buckets_n, flows_n;
	_Atomic uint32_t *tcp_port_flows; /* of each local port of TCP; NULL: there are no flows of addresses */
	struct verbs_flow *revoked;       /* to be reported by the nic's thread */
	struct verbs_flow *lingering;     /* reported, with a rule in the card still */
	bool mlx5_direct;                 /* VMA_MLX5_DIRECT; false once a card has not kept to what mlx5.h says */
	unsigned conversion;              /* VMA_HW_TS_CONVERSION */
	enum verbs_timestamp_kind stamps; /* that this device can give for it */
	bool stamped;                     /* somebody wants them */
	unsigned samples;                 /* of this device, up to 2 */
	uint64_t sampled_ns;              /* when the last one was taken; 0: none was */
	struct verbs_clock clock;
	struct verbs_clock_conversion line;
	int wake_fd, claims_fd;         /* claims_fd: the epoll set of all claims */
	int raw_fd;                     /* to the kernel (nic_reinject.h) */
	int diag_fd;                    /* -1: not asked yet; under the lock */
	int spare_fds[VERBS_SPARE_FDS]; /* -1: missing; under the lock */
	uint64_t look_ms;               /* conflicts.c: the next look */
	uint32_t looks;                 /* so many were made */
	struct verbs_peers peers;
	struct verbs_flow_contest *contests;
	uint32_t contests_n;
	bool port_is_down;  /* thread.c: the log has said so */
	bool wipe_in_child; /* the kernel does not wipe lkeys and the queue pairs' sent */
	_Atomic bool closing;
	pthread_t thread;
};

static inline struct verbs_qp *verbs_qp_of(struct vma_nic_qp *base)
{
	return (struct verbs_qp *)base;
}

static inline bool verbs_opened_by_this_process(const struct nic_verbs *nic)
{
	return atomic_load_explicit(nic->fork_guard, memory_order_relaxed) != 0;
}

/*
 * The local key of a buffer. False: it is in no window of this binding's device; or the queue pair is lost, or this is
 * a forked child.
 *
 * Relaxed, in two loads, in either order:
 * - An entry gets its key before its window's buffers reach anybody through a pool, which orders the two. It gets
 * another
 *   key only as part of a later window, when all buffers of this one have come home, so nobody asks about one of them.
 *   So whoever asks about a buffer finds the key of that buffer's window, and no half of another.
 * - When a window ends, its generation alone becomes 0. If the buffer is of this queue pair's memory, both halves were
 *   held then, and whoever asks later sees it. If it is of another queue pair's, it may be seen late: then the key is one
 *   that the device does not know any more, as if the packet had been queued a moment before. Its send fails.
 */
static inline bool verbs_lkey(const struct verbs_qp *qp, const struct vma_buf *buf, uint32_t *lkey)
{
	const struct verbs_lkey *entry = atomic_load_explicit(&qp->lkeys, memory_order_relaxed);

	entry += ((uintptr_t)buf - qp->bufs) / (sizeof(*buf) << VERBS_UNIT_SHIFT);
	if (atomic_load_explicit(&entry->generation, memory_order_relaxed) != qp->generation)
		return false;
	*lkey = atomic_load_explicit(&entry->key, memory_order_relaxed);
	return true;
}

static inline char *verbs_frame_of_buf(const struct verbs_qp *qp, const struct vma_buf *buf)
{
	return qp->frames + (((uintptr_t)buf - qp->bufs) << qp->frame_of_buf_shift);
}

/* ---- exempts.c; lock held ---- */
int verbs_exempt_rule_ref_or_create(struct nic_verbs *nic, const struct vma_flow_key *key);
void verbs_exempt_rule_unref(struct nic_verbs *nic, const struct vma_flow_key *key);
void verbs_exempt_rule_remove(struct nic_verbs *nic, const struct vma_flow_key *key); /* whoever has asked for it */
void verbs_exempts_fini(struct verbs_exempts *exempts);                               /* its device is closed next */
/* No lock, as the loader has one. */
void verbs_exempts_init(struct verbs_exempts *exempts, struct ibv_device *device);

/* ---- flows.c; lock held but for the first five ---- */
int verbs_flow_begin_kernel_exemption(struct vma_nic *nic, const struct vma_flow_key *key);
void verbs_flow_end_kernel_exemption(struct vma_nic *nic, const struct vma_flow_key *key);
int verbs_flow_add(struct vma_nic_qp *qp, const struct vma_flow_rule *rule);
int verbs_flow_del(struct vma_nic_qp *qp, const struct vma_flow_key *key);
bool verbs_tcp_port_has_flow(const struct vma_nic_qp *qp, uint16_t local_port_be);
int verbs_flow_move(struct vma_nic_qp *from, struct vma_nic_qp *to, const struct vma_flow_key *key);
void verbs_flows_destroy_rules(struct verbs_qp *qp); /* its rules leave the device */
/* And come back; or those of its queue of before are this one's. -ENODEV: the device has gone, and all flows are kept. */
int verbs_flows_restore(struct verbs_qp *qp);
void verbs_flows_end_of_qp(struct verbs_qp *qp);
void verbs_flow_remove_handed_to_vmad(struct verbs_qp *qp,
                                      const struct vma_flow_key *key); /* vmad has it; if there is one */
void verbs_flows_revoke_all_of_qp(struct verbs_qp *qp);                /* all of them */
void verbs_flows_end_revoked_rules(
        struct verbs_qp *qp); /* what lingers in the device of those that were: its queue ends */
bool verbs_flow_pop_revoked(struct nic_verbs *nic, struct verbs_qp **qp, struct vma_flow_key *key);
void verbs_flows_fini(struct nic_verbs *nic);
void verbs_flows_revoke_wanted_by_other_process(struct nic_verbs *nic); /* those that another process wants, too */
/* Ends rules of revoked flows that have lingered long enough. How long to the next, ms; -1: none lingers. */
int verbs_flows_end_lingering(struct nic_verbs *nic);
void verbs_flows_close_claims_in_child(const struct nic_verbs *nic);
/* Whether the device takes rules at all: 0 or -errno. No lock. */
int verbs_probe_flow_rules(const struct verbs_device *device, struct ibv_qp *qp);

void verbs_flows_revoke_contested(struct nic_verbs *nic); /* those with is_contested */

/* ---- claims.c; lock held ---- */
/* Also UDP with one peer, unless the port is the socket's alone: others share both addresses by SO_REUSEADDR,
 * SO_REUSEPORT and fork. So does a connection of TCP that begins at a port which the program has chosen. */
static inline bool verbs_flow_needs_claim(const struct vma_flow_rule *rule)
{
	return rule->key.peer_port_be == 0 || (rule->flags & VMA_FLOW_PORT_BOUND) ||
	       (rule->key.proto == IPPROTO_UDP && !(rule->flags & VMA_FLOW_PORT_EXCLUSIVE));
}

int verbs_claim_flow_address(const struct nic_verbs *nic,
                             const struct vma_flow_key *key); /* a descriptor; -EADDRINUSE, ... */
int verbs_next_contested_claim(const struct nic_verbs *nic);
/* A flow has been given up since another process wants it. The claim, whose descriptor this is, is kept meanwhile;
 * false: it has ended. */
bool verbs_flow_contest_begin(struct nic_verbs *nic, const struct vma_flow_key *key, int fd);
void verbs_flow_contest_extend_or_drop_claim(struct nic_verbs *nic, int fd); /* it was wanted again */
int verbs_flow_contest_take_back_claim(struct nic_verbs *nic, const struct vma_flow_key *key);
int verbs_flow_contests_expire(struct nic_verbs *nic); /* how long to the next, ms; -1: there is none */
void verbs_flow_contests_close_fds_in_child(const struct nic_verbs *nic);
void verbs_flow_contests_fini(struct nic_verbs *nic);

/* ---- conflicts.c; lock held ---- */
/* For a connection of TCP no kernel socket is looked for later: its shadow, or its listener's, has the port. What an
 * address brings in for the kernel is given to it. */
static inline bool verbs_flow_may_get_conflict(const struct vma_flow_rule *rule)
{
	return verbs_flow_needs_claim(rule) && rule->key.proto != VMA_FLOW_TCP_ADDRESS &&
	       !(rule->flags & (VMA_FLOW_PORT_EXCLUSIVE | VMA_FLOW_PORT_BOUND));
}

int verbs_refuse_flow_on_kernel_conflict(struct nic_verbs *nic,
                                         const struct vma_flow_rule *rule); /* 0, -EADDRINUSE, -errno */
/* If it is time, flows whose ports kernel socks have by now are given up. How long to the next look, ms; -1: none is
 * due. */
int verbs_conflicts_search_and_revoke(struct nic_verbs *nic);

/* ---- stamps.c; lock held but for verbs_enable_timestamps and the two reads ---- */
int verbs_enable_timestamps(struct vma_nic *nic);
void verbs_nic_init_timestamps_from_device(struct nic_verbs *nic); /* it has another one */
int verbs_timestamps_sample_if_due(
        struct nic_verbs *nic); /* a sample, if it is due; ms until the next one, -1: never */
void verbs_timestamps_start_on_qp(struct verbs_qp *qp);
bool verbs_read_device_clock_ticks(struct ibv_context *context, uint64_t *ticks);
/* Receive half, of the completion at hand. 0: none. */
uint64_t verbs_read_completion_timestamp_ns(struct verbs_qp *qp, enum verbs_timestamp_kind stamps)
        __attribute__((noinline));
/* The same of a counter's value; not for VERBS_STAMPS_WALL. */
uint64_t verbs_rx_ticks_to_timestamp_ns(struct verbs_qp *qp, enum verbs_timestamp_kind stamps, uint64_t ticks);

/* ---- peers.c; lock held but for get_vmad_permission, export and sync ---- */
void verbs_peers_get_vmad_permission(struct nic_verbs *nic, bool unwatched);
int verbs_export_minisocks_to_vmad(struct vma_nic_qp *qp, const struct vma_flow_minisock *minisocks,
                                   unsigned n);                                             /* no lock */
void verbs_peers_report_connection_to_vmad(struct nic_verbs *nic, struct verbs_flow *flow); /* it has its rule */
void verbs_peers_report_conn_end_to_vmad(struct nic_verbs *nic, struct verbs_flow *flow); /* of a flow that was added */
int verbs_peers_sync_with_vmad(struct nic_verbs *nic); /* the nic's thread: how long to the next, ms; -1: never */
int verbs_peers_vmad_fd(const struct nic_verbs *nic);  /* readable: follow; -1; for the nic's thread */
void verbs_peers_child_close(const struct nic_verbs *nic);
void verbs_peers_disconnect_from_vmad(struct nic_verbs *nic);

/* ---- data.c ---- */
unsigned verbs_post_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
unsigned verbs_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
/* The same, but what is found is kept for the next poll. */
bool verbs_rx_has_packet(struct vma_nic_qp *qp);
unsigned verbs_tx_queue_packets(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n);
int verbs_kick(struct vma_nic_qp *qp);
unsigned verbs_reap_tx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n);
bool verbs_tx_is_idle(struct vma_nic_qp *qp);
int verbs_arm_rx_wakeup(struct vma_nic_qp *qp);
void verbs_unarm_rx_wakeup(struct vma_nic_qp *qp);
int verbs_qp_epoll_fd(const struct vma_nic_qp *qp);
void verbs_qp_data_path_init(struct verbs_qp *qp); /* of a new binding, both halves held */
void verbs_data_select_paths(struct verbs_qp *qp); /* lock held: it is bound; its stamps have changed; or it is lost */
int verbs_rx_arm(struct verbs_qp *qp);             /* as verbs_arm_rx_wakeup, of a queue pair that works */
void verbs_data_reclaim_bufs(struct verbs_qp *qp); /* what the device had goes home; its queue has been closed */

/* ---- verbs.c ---- */
void verbs_nic_fill_spare_fds(struct nic_verbs *nic); /* lock held */
void verbs_qp_give_flows_to_kernel(struct verbs_qp *qp);

/* ---- thread.c ---- */
int verbs_thread_start(struct nic_verbs *nic);
void verbs_thread_wake(struct nic_verbs *nic);
void verbs_port_state_log_change(struct nic_verbs *nic); /* lock held: its device is another one */
/* Lock held, after a call of a device's has failed: whether the device has failed, and not the call alone. */
bool verbs_device_failure_explains_error(struct nic_verbs *nic, struct verbs_device *device) __attribute__((cold));
void verbs_qp_note_maybe_broken(struct verbs_qp *qp) __attribute__((cold));

#endif
