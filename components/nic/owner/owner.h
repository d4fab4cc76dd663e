/*
 * owner - the owner object of one interface, shared by these files:
 *
 *   owner.c         life of owner and slots              ../kernel_sock.c   the kernel's list of sockets
 *   frames.c        packet memory and its division       conflicts.c        kernel socks in the way of a flow
 *   flows.c         flow table, attachment               resets.c           resets for peers of dead processes
 *   claims.c        flows that clients claim             minisocks.h        what these peers still send
 *   entitled.c      flows that a client may ask for      parked.c           connections not accepted by the dead
 *   flow_waiters.c  flows that two clients want          groups.c           listeners that several slots serve
 *   processes.c     slots of one process                 spread.c           UDP flows that these have together
 *
 *   window of one device queue (16 MB: 8192 frames)
 *   +-- receive part, 5/8 ------------------------------------+-- transmit part, 3/8 -----------------+
 *   | base 1/6 | shares of the slots: RX ring + what may be   | one contiguous range per slot, in     |
 *   |          | held                                         | blocks of 32 frames                   |
 *   +---------------------------------------------------------+---------------------------------------+
 *
 * The receive part is one population: every frame of it circulates through the fill ring, for all slots. Shares only
 * bound how much of it a slot can hold. So no slot can starve the others by not polling or by hoarding. The first slot
 * gets more. Of 16 slots on a device queue of the default window the first has 256 frames to send from and an RX ring
 * of 1024. The last has 64 and 64. About 32 fit; then rent says -ENOSPC.
 *
 *              rent                 return              return (all put), or the client died
 *   FREE ------------> RENTED ------------> LEAVING ------------> DRAINING ------------> FREE
 *                        |                    flows and             sockets closed after       (tick)
 *                        +---- client died ------------------------> 20 ms, frames taken back,
 *                                                                    slot free when in flight is 0 or after 1 s
 *
 * Threads: one at a time (the nic's lock, or the only thread of vmad).
 */
#ifndef VMA_NIC_OWNER_OWNER_H
#define VMA_NIC_OWNER_OWNER_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "fdstore.h"
#include "minisocks.h"
#include "record.h"
#include "../sock_cookies.h"
#include "../kernel_sock.h"
#include "../xdp/owner.h"
#include "../xdp/xdp.h"

#define OWNER_TX_BLOCK 32 /* frames: granularity of TX ranges */
#define OWNER_RX_MIN 64   /* least RX ring */
#define OWNER_RX_MAX 4096
#define OWNER_FLOWS_MAX 65536 /* as the program's map */
#define OWNER_FLOW_WAITERS_MAX 65536
#define OWNER_FLOW_WAITERS_EACH 4096       /* of one slot */
#define OWNER_FLOW_WAITER_NS 3000000000ull /* a waiter counts for so long after its client last said it */

/*
 * A block whose tenant has gone while the kernel still had a frame of it waits until that frame completes: a completion
 * names a frame and not a sending, so a late one would tell the next tenant that its own was over.
 */
enum owner_tx_block_state { BLOCK_FREE, BLOCK_RENTED, BLOCK_WAITS };

enum owner_slot_state { SLOT_FREE, SLOT_RENTED, SLOT_LEAVING, SLOT_DRAINING };

struct owner_slot {
	enum owner_slot_state state;
	uint32_t rx_size, rx_quota, rx_promised, tx_size; /* rx_promised: received frames that it need not share */
	uint32_t tx_first, tx_count;
	uint32_t flows, waiters; /* flows: of a group's, those that it has been in for longest */
	uint64_t drain_since_ns;
	bool sockets_open;
	int socket_fd[XDP_QUEUES_MAX];
	struct xdp_ring rx[XDP_QUEUES_MAX], tx[XDP_QUEUES_MAX]; /* to see what a dead client left there */
};

/* See groups.c: what a slot's member has shown. */
struct owner_slot_accept_progress {
	uint32_t accept_calls, accepted;         /* as last seen, */
	uint32_t rx_consumed;                    /* and of its receive rings, all together */
	uint64_t accept_call_ns, rx_progress_ns; /* when they changed, or there was nothing to take */
	uint64_t accepted_ns;
	uint64_t joined_ns;        /* a group, the last time */
	bool stuck;                /* connections were taken from it since it has asked last */
	bool late;                 /* connections wait there for longer than they should */
	uint64_t backoff_until_ns; /* it asks, and did not accept: gets nothing until then, or until it has accepted */
	uint32_t moves, sent; /* the number of the last connection that was moved to it, and that its client was told */
	struct owner_pending_move *moving, *last_move; /* of these, those that it has not made yet; the oldest first */
};

/* A connection on its way to a member. */
struct owner_pending_move {
	struct owner_pending_move *next;
	uint32_t place; /* in the record */
	struct vma_pending pending;
};

/* A number that no client has, in a lock of the shared object; 0: the lock is free, or a client's. */
struct owner_suspect_lock {
	uint32_t holder;
	uint64_t since_ns;
};

struct owner_device_queue {
	int base_fd;
	struct xdp_ring fill, comp;
	uint32_t *spare; /* frames that the owner holds because the fill ring was taken at the time */
	uint32_t spares;
	struct owner_suspect_lock lock[XDP_LOCKS];
};

struct owner_flow {
	struct owner_flow *next;
	struct vma_flow_rule rule;
	uint32_t slot;   /* of a group: the member that has been in it for longest */
	uint32_t group;  /* as the program knows it; 0: the slot has the flow alone */
	uint32_t spread; /* the same of a UDP flow that slots of one process have: spread.c */
	uint64_t members,
	        retired;     /* of a group, or spread: a bit for each slot; retired: of those that are about to leave */
	uint64_t grouped_ns; /* of a group: when it began */
	struct nic_cookies shadows; /* of this flow's members, the rule's own among them */
	uint64_t grace_end_ns;      /* in `in_grace`: so long */
	uint64_t unannounced;       /* of an adopted one: slots whose clients have not named it yet, a bit each */
	struct kernel_sock_suspected_before suspect; /* if it is seen again, the flow is revoked */
};

/* See flow_waiters.c. */
struct owner_flow_waiter {
	struct owner_flow_waiter *next;
	struct vma_flow_key key;
	uint32_t slot;
	struct nic_cookies shadows;
	uint64_t refreshed_ns;
};

/* Of a table of the record those places that are taken, a bit each. */
struct owner_place_bitmap {
	uint32_t words, next; /* next: where the last one was found */
	uint64_t *used;
};

/* See resets.c. */
#define OWNER_RESET_LISTS 3
struct owner_pending_reset;
struct owner_reset_queue {
	struct owner_pending_reset *first[OWNER_RESET_LISTS],
	        *last[OWNER_RESET_LISTS]; /* last: only where there is a first */
	uint32_t count, seq;
	uint64_t pace_ns; /* not before */
	bool is_open;
	int fd;
};

typedef bool owner_send_adoption_fn(uint32_t slot, const struct vma_pending *pending, void *arg);

struct xdp_owner {
	owner_send_adoption_fn *on_adopt; /* NULL: nobody can be told */
	void *adopt_arg;
	unsigned ifindex;
	char name[IF_NAMESIZE];
	uint32_t mtu, queues;
	bool generic, multi_buffer, tx_csum;

	/* frames.c */
	int umem_fd, shared_fd;
	void *umem;
	size_t umem_bytes;
	struct xdp_shared *shared;
	size_t shared_bytes;
	uint32_t nframes, queue_frames, rx_frames; /* all; of one device queue; of these in the receive part */
	uint32_t rx_free;                          /* receive frames not promised to a slot, per device queue */
	uint8_t *tx_used;                          /* enum owner_tx_block_state, one per block of the transmit parts */
	bool *is_spare; /* in the record, if there is one. For each frame: it is among the spares of its queue */
	struct owner_device_queue queue[XDP_QUEUES_MAX];
	struct xdp_shared_rings_user driver[XDP_QUEUES_MAX];

	/* flows.c */
	struct xdp_prog *prog;
	struct owner_flow *flow[OWNER_FLOW_BUCKETS]; /* but for TCP's 5-tuples: what is looked through twice a second */
	struct owner_flow *connection[OWNER_FLOW_BUCKETS]; /* TCP's 5-tuples */
	uint32_t flows;
	struct owner_flow *revoke_pending; /* out of the table, and their clients not told yet */
	struct owner_flow *in_grace; /* listeners' out of the table, and still in the program's map; the oldest first */
	uint64_t kernel_sock_check_ns,
	        kernel_sock_pause_ns; /* the last look for kernel socks; the pause before the next one */
	uint32_t looks;               /* for kernel socks: so many were made */
	uint64_t unused_since_ns;     /* attached without a flow; 0: not so */

	/* claims.c; NULL: clients take no ports by themselves */
	struct xdp_claim_bucket *claims;
	int claims_fd;
	uint32_t claims_made; /* as last seen */

	/* flow_waiters.c */
	struct owner_flow_waiter *waiter[OWNER_FLOW_BUCKETS];
	uint32_t waiters;

	/* groups.c */
	struct vma_nic_accept_page *members; /* by slot; NULL: there are no groups */
	uint32_t groups;                     /* that there are */
	uint8_t group_used[256];             /* by number */
	uint64_t groups_checked_ns;          /* the last */
	uint32_t clock_ms;                   /* what clients' clocks of TCP time stamps begin with */
	uint32_t isn_key[4];                 /* nic_group.h */
	struct owner_slot_accept_progress worker[XDP_SLOTS_MAX];

	/* parked.c */
	struct owner_parked_listener *parked_listeners;
	uint32_t parked; /* connections at all of them */
	uint64_t parked_checked_ns;

	struct owner_reset_queue resets;
	struct owner_minisocks minisocks;

	int link_fd;             /* netlink: interfaces change; -1: the clock has to do */
	int diag_fd;             /* netlink: the kernel's sockets; -1: not asked for yet */
	int route_fd;            /* netlink: the kernel's routes; the same */
	uint64_t mac_checked_ns; /* the last */

	uint32_t slots_used;
	int32_t process[XDP_SLOTS_MAX]; /* processes.c; 0: this one */
	struct owner_slot slot[XDP_SLOTS_MAX];

	/* record.c */
	struct owner_record *record; /* NULL: nobody can take this owner's place */
	int record_fd, alive_fd, alive_read_fd;
	struct fdstore *fdstore; /* NULL: none yet */
	int stored_link_fd;      /* that the fdstore holds; -1 */
	uint64_t reset_used[OWNER_RECORD_RESETS / 64], listener_used[OWNER_RECORD_LISTENERS / 64];
	uint64_t waiting_used[OWNER_RECORD_WAITING / 64];
	struct owner_place_bitmap reset_places, listener_places, waiting_places;
	int process_fd[XDP_SLOTS_MAX]; /* pidfds of the tenants; -1 */
	uint32_t unannounced;          /* flows that some slot has not named */
	uint64_t adopted_ns;           /* 0: it was not */
};

uint64_t owner_now_ns(void);

/* ---- owner.c ---- */
struct xdp_owner *owner_new(unsigned ifindex); /* NULL: no memory */
int owner_read_mtu_and_queue_count(struct xdp_owner *owner);
int owner_open_link_events(void);
void owner_close_slot_xdp_sockets(struct xdp_owner *owner, uint32_t slot);

/* ---- processes.c ---- */
bool owner_same_process(const struct xdp_owner *owner, uint32_t a, uint32_t b);
void owner_count_client_processes(struct xdp_owner *owner); /* slots have been rented, or are free */
void owner_set_process_of_slot(struct xdp_owner *owner, uint32_t slot, int32_t pid);

/* ---- spread.c ---- */
/* Another slot has the flow: whether this one may have it as well. */
bool owner_spread_allows_slot(const struct xdp_owner *owner, const struct owner_flow *flow, uint32_t slot,
                              const struct vma_flow_rule *rule);
int owner_add_slot_to_spread_udp_flow(struct xdp_owner *owner, struct owner_flow *flow,
                                      uint32_t slot); /* -ENOSPC: too many groups */
void owner_remove_slot_from_spread_udp_flow(struct xdp_owner *owner, struct owner_flow *flow,
                                            uint32_t slot);              /* others have it still */
void owner_spread_end(struct xdp_owner *owner, struct owner_flow *flow); /* it is out of the map */
/* An adopted one; of its slots those that are rented go on. */
void owner_restore_spread_udp_flow(struct xdp_owner *owner, struct owner_flow *flow, uint32_t number, uint64_t rented);

/* ---- record.c ---- */
int owner_record_create_memfd(
        struct xdp_owner *owner); /* the record, and the pipe by which clients see that it is there */
void owner_record_mark_complete(struct xdp_owner *owner);
void owner_record_fini(struct xdp_owner *owner);
void owner_record_write_slot(struct xdp_owner *owner, uint32_t slot);
/* A group's members, shadows and whether it was inherited, as they are now. */
void owner_record_write_group(struct xdp_owner *owner, const struct owner_flow *flow);
/* A member deletes the flow, and what waits there has not been moved yet. */
void owner_record_set_group_leaving(struct xdp_owner *owner, uint32_t group, uint32_t slot, bool leaves);
bool owner_record_slot_leaves_group(const struct xdp_owner *owner, uint32_t group, uint32_t slot);
/* The same of an adopted flow, into it; its members. */
uint64_t owner_record_load_group(const struct xdp_owner *owner, struct owner_flow *flow, uint32_t number);
void owner_record_write_minisock(struct xdp_owner *owner, const struct owner_minisock *minisock);
void owner_record_free_minisock(struct xdp_owner *owner, uint32_t number);
const struct owner_record_minisock *owner_record_find_minisock(const struct xdp_owner *owner,
                                                               uint32_t number); /* or NULL */
/* A place, or OWNER_NO_PLACE: there is no record. Other functions do nothing with that. */
uint32_t owner_record_add_pending_reset(struct xdp_owner *owner, const struct vma_flow_key *key, uint32_t slot,
                                        unsigned list);
void owner_record_set_reset_list(struct xdp_owner *owner, uint32_t place, unsigned list);
void owner_record_free_reset(struct xdp_owner *owner, uint32_t place);
uint32_t owner_place_bitmap_take_free_place(struct owner_place_bitmap *places); /* OWNER_NO_PLACE: all are taken */
void owner_place_bitmap_set(struct owner_place_bitmap *places, uint32_t place); /* that it is taken */
void owner_place_bitmap_clear(struct owner_place_bitmap *places, uint32_t place);
/* The same of parked listeners and of connections that wait (parked.c, groups.c). */
uint32_t owner_record_add_listener(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key,
                                   const struct nic_cookies *shadows);
void owner_record_set_listener_closed(struct xdp_owner *owner, uint32_t place);
void owner_record_free_listener(struct xdp_owner *owner, uint32_t place);
int owner_record_load_listener_shadows(const struct xdp_owner *owner, uint32_t place, struct nic_cookies *shadows);
/* A new entry, whose state is stored last, and its place. NULL: OWNER_NO_PLACE. */
struct owner_record_pending *owner_record_alloc_pending(struct xdp_owner *owner, uint32_t *place);
struct owner_record_pending *owner_record_pending_at(const struct xdp_owner *owner, uint32_t place);
void owner_record_free_pending(struct xdp_owner *owner, uint32_t place);
void owner_fdstore_keep_xdp_link(struct xdp_owner *owner);
void owner_fdstore_keep_slot_sockets(struct xdp_owner *owner, uint32_t slot);
void owner_fdstore_drop_slot_sockets(struct xdp_owner *owner, uint32_t slot);

/* ---- adopt.c ---- */
#define OWNER_REANNOUNCE_NS 10000000000ull /* an adopted flow is named by its client within this time, or ends */
/* The slot's client has named the flow. */
void owner_adopted_flow_mark_reclaimed_by_slot(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot);

/* ---- frames.c ---- */
int owner_frames_init(struct xdp_owner *owner, uint32_t window_bytes, bool huge_pages);
int owner_frames_probe_memlock(const struct xdp_owner *owner); /* whether RLIMIT_MEMLOCK leaves room: 0, -ENOBUFS */
void owner_frames_fini(struct xdp_owner *owner);
/* The same from what is there: `hand` has it, the slots have their shares. */
int owner_frames_take_over_from_fdstore(struct xdp_owner *owner, struct fdstore_fds *hand);
/* Divides: sets rx_size, rx_quota, tx_size, tx_first and tx_count of the slot. -ENOSPC. */
int owner_frames_grant(struct xdp_owner *owner, uint32_t slot, uint32_t rx_wanted, uint32_t tx_wanted);
void owner_frames_ungrant(struct xdp_owner *owner, uint32_t slot);
/* The slot's client is dead: who comes now has the share that it had to receive; its frames come back soon. */
void owner_slot_drop_frame_quota(struct xdp_owner *owner, uint32_t slot);
/* What a slot still holds becomes the owner's and goes back to the fill rings. */
void owner_reclaim_frames_of_slot(struct xdp_owner *owner, uint32_t slot);
/* Spare frames into the fill rings, as far as these can be had now; completions out of the kernel's rings. */
void owner_refill_and_drain_umem_rings(struct xdp_owner *owner);
bool owner_has_suspect_ring_locks(const struct xdp_owner *owner); /* one may be to be freed soon */
bool owner_has_spare_frames(const struct xdp_owner *owner);
uint32_t owner_missing_frame_count(const struct xdp_owner *owner); /* see xdp_owner_log_summary */

/* ---- flows.c ---- */
/* Into the table: an adopted one, whose entry the map has; or one that is in grace there. */
void owner_insert_restored_flow(struct xdp_owner *owner, struct owner_flow *flow);
void owner_insert_restored_flow_in_grace(struct xdp_owner *owner, struct owner_flow *flow);
/* All of a slot's, whose client has given it back, has left, or is dead. */
void owner_slot_release_flows_and_claims(struct xdp_owner *owner, uint32_t slot, bool dead);
bool owner_flow_exists(struct xdp_owner *owner, const struct vma_flow_key *key);
/* Those given up since the last call, by a client that wants the same. */
void owner_report_revoked_flows(struct xdp_owner *owner, void (*revoked)(uint32_t, const struct vma_flow_key *, void *),
                                void *arg);
/* The program is attached without a flow, and is to be detached when its time is over. */
bool owner_has_unused_program_attached(const struct xdp_owner *owner);
void owner_detach_xdp_program_if_unused(struct xdp_owner *owner, uint64_t now_ns);
bool owner_has_shadow_cookie(const struct xdp_owner *owner, uint64_t cookie);
bool owner_flow_is_connection(const struct vma_flow_key *key); /* TCP's 5-tuple */
void owner_flow_describe(const struct vma_flow_key *key, char *text, size_t bytes);
/*
 * Out of the table, in which `place` points to it: the kernel gets its packets; but of a listener's what begins anew
 * only, until its client has had time to ask for flows of the connections that it has accepted.
 */
void owner_flow_end_with_grace(struct xdp_owner *owner, struct owner_flow **place);
void owner_flows_end_grace(struct xdp_owner *owner, uint64_t now_ns); /* those whose time is over */

struct owner_flow *owner_find_listener_flow(struct xdp_owner *owner,
                                            const struct vma_flow_key *key); /* of a connection */
/* A connection's flow, if the slot has one: the program does not have it any more, and nobody answers for it. */
void owner_remove_connection_flow(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key);

/* Another than an exact flow that brings a connection to a client. */
enum owner_connection_cover {
	OWNER_NOT_COVERED,
	OWNER_COVERED_BY_LISTENER, /* a flow of the slot's own, also one that is in grace */
	OWNER_COVERED_BY_BLOCK,    /* the same */
	OWNER_COVERED_BY_ANOTHER   /* the listener is another slot's alone */
};
enum owner_connection_cover owner_connection_covered_by(struct xdp_owner *owner, uint32_t slot,
                                                        const struct vma_flow_key *key);
uint32_t owner_slot_port_block_count(const struct xdp_owner *owner, uint32_t slot); /* blocks that the slot has */

/* ---- entitled.c ---- */

/* 0; 1: the slot may have the flow as long as the kernel has no such connection; or why not: -EPERM, -EADDRNOTAVAIL,
 * -EADDRINUSE, -ENOSPC. */
int owner_slot_is_entitled_to_flow(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule,
                                   const struct xdp_proof_socket *proof);
/* One of these sockets is bound to the flow's port. */
bool owner_any_socket_is_bound_to_key(struct xdp_owner *owner, const struct vma_flow_key *key, const uint64_t *cookies,
                                      unsigned n);

/* ---- groups.c ---- */

bool owner_flow_has_slot(const struct owner_flow *flow, uint32_t slot); /* the slot has it, or a share of it */
/* The slot shares the listener's flow from now on. -ENOSPC: there are too many groups. */
int owner_group_join(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot);
/*
 * The flow's only slot has inherited the listener: what waits there is described as if others served it, too. If there
 * are too many groups it is not, and lost with the process.
 */
void owner_group_begin_with_one_slot(struct xdp_owner *owner, struct owner_flow *flow);
/* The slot has left; others have not. */
void owner_group_leave(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot);
/* It is about to leave: the others get what begins anew. -ENOENT: so are all others. */
int owner_group_stop_new_conns_to_slot(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot);
uint32_t
owner_find_free_group_number(const struct xdp_owner *owner); /* a place in the program's map that is free; 0: none is */
/* An adopted flow, which the program knows to be a group's. */
void owner_restore_group_of_flow(struct xdp_owner *owner, struct owner_flow *flow, uint32_t group, uint64_t members);
/* The flow is out of the program's map. */
void owner_group_end(struct xdp_owner *owner, struct owner_flow *flow);
void owner_reset_accept_page(struct xdp_owner *owner,
                             uint32_t slot); /* anew: forgets what the slot's client before was */
/*
 * What waits for accept in a slot that nobody serves any more is given to others who serve the listener, through
 * owner->on_adopt. `key`: of this listener only; NULL: of all.
 */
void owner_group_move_unaccepted_conns_off_slot(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key);
struct vma_flow_key pending_connection_key(const struct vma_pending *pending);
bool owner_connection_is_of_listener(const struct vma_flow_key *connection, const struct vma_flow_key *listener);
typedef void owner_pending_visit_fn(const struct vma_pending *pending, void *arg);
/* What waits in the slot, or is on its way there: copies. */
void owner_each_pending_of_slot(struct xdp_owner *owner, uint32_t slot, owner_pending_visit_fn *each, void *arg);
/*
 * The same of one listener, whose process is dead: it is moved. `take` hears of each connection before that, and then
 * that it has it now, or that the process has accepted it.
 */
enum pending_take_stage { PENDING_TAKE_BEGINS, PENDING_TAKE_DONE, PENDING_TAKE_LOST };
typedef void owner_pending_take_fn(const struct vma_pending *pending, enum pending_take_stage taking, void *arg);
void owner_take_pending_of_dead_worker(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *listener,
                                       owner_pending_take_fn *take, void *arg);
/* It waits for accept in the slot's page. */
bool owner_slot_has_waiting_connection(const struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key);
/* What the owner before has left on its way to members. After owner_restore_parked_from_record. */
void owner_restore_pending_moves_from_record(struct xdp_owner *owner);
/* The slot's client is told what is on its way to it, and it was not told yet. */
void owner_send_moved_conns_to_client(struct xdp_owner *owner, uint32_t slot);
/* To a member; its minisock ends. False: that one has not made `most` of those before yet. */
bool owner_group_hand_to_any_member(struct xdp_owner *owner, const struct owner_flow *flow, struct vma_pending *pending,
                                    uint32_t most, uint64_t now_ns);
void owner_groups_check_and_rebalance(struct xdp_owner *owner, uint64_t now_ns);
void owner_groups_fini(struct xdp_owner *owner);
#define OWNER_GROUPS_NS 40000000ull /* between two looks at them */

/* ---- claims.c: ports of UDP that clients take by themselves (xdp/claims.h) ---- */

void owner_claims_init(struct xdp_owner *owner);
void owner_claims_publish_and_enable(struct xdp_owner *owner); /* the program is attached */
/* It is about to be detached. False: some are made, or were lately. */
bool owner_claims_close_if_unused(struct xdp_owner *owner);
void owner_claims_free_of_slot(struct xdp_owner *owner, uint32_t slot);

/* ---- conflicts.c, recheck.c ---- */

/* 0, or -EADDRINUSE: a socket that is nobody's shadow would receive this; -errno: not to be known. The log has it. */
int owner_refuse_flow_if_conflict(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule);
/*
 * Whether a listener with this rule may share a flow with those whose shadows are `others`: 0, they are one kernel
 * socket, or of one SO_REUSEPORT group, which the kernel lets one user's sockets form; -EADDRINUSE: no; -EAGAIN: the
 * rule's socket does not listen yet, and others' do; -errno: not to be known.
 */
int owner_check_same_service(struct xdp_owner *owner, const struct vma_flow_rule *rule,
                             const struct nic_cookies *others);
/* Flows that such a socket has come up for since they were added end, and `revoked` tells. */
void owner_revoke_flows_in_conflict(struct xdp_owner *owner,
                                    void (*revoked)(uint32_t, const struct vma_flow_key *, void *), void *arg);

/* ---- flow_waiters.c ---- */

/* The slot says (again) that it wants the flow. NULL: no memory, or too many waiters. */
struct owner_flow_waiter *owner_flow_waiter_get_or_create(struct xdp_owner *owner, uint32_t slot,
                                                          const struct vma_flow_key *key);
struct owner_flow_waiter *owner_flow_waiter_find(const struct xdp_owner *owner, uint32_t slot,
                                                 const struct vma_flow_key *key);
/* Does another slot want this flow, too, and may not share it? One whose shadows are all closed does not. */
bool owner_flow_has_conflicting_waiter(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule);
bool owner_cookie_is_shadow_of_flow_waiter(const struct xdp_owner *owner, const struct vma_flow_key *key,
                                           uint64_t cookie); /* any slot's */
bool owner_flow_waiter_remove(struct xdp_owner *owner, uint32_t slot,
                              const struct vma_flow_key *key);                  /* there was one */
void owner_flow_waiters_remove_of_slot(struct xdp_owner *owner, uint32_t slot); /* all of a slot's */
void owner_flow_waiters_expire(struct xdp_owner *owner);

/* ---- resets.c, probe.c ---- */

/* A connection's flow has ended, and its client did not end it: it is dead, or has only left and may come back. */
void owner_resets_add(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key, bool dead);
void owner_resets_send_now_for_dead_slot(struct xdp_owner *owner, uint32_t slot); /* who had only left */
void owner_resets_send_due(struct xdp_owner *owner, uint64_t now);
uint64_t owner_resets_due_ns(const struct xdp_owner *owner); /* of the next tick; UINT64_MAX: there is nothing to do */
void owner_resets_fini(struct xdp_owner *owner);
void owner_resets_load_record(struct xdp_owner *owner); /* those that the owner before has left */
int owner_open_raw_ip_socket(void);                     /* a descriptor, or -errno */
/* From the connection's own side to its peer. 0, or -errno. */
int owner_send_raw_segment(int fd, unsigned ifindex, const struct vma_flow_key *key,
                           const struct owner_tcp_segment *segment);
/* One segment in the name of `key`: SYN, or else ACK. 0, or -errno. */
int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq);

/* ---- minisock_map.c: the minisocks of the program's map; minisocks.h has the rest ---- */

int owner_minisocks_open(struct xdp_owner *owner);
void owner_minisocks_read_segments_and_expire(struct xdp_owner *owner, uint64_t now);
/* The map has it already. */
void owner_restore_minisock_from_record(struct xdp_owner *owner, const struct vma_flow_key *key, uint32_t number);

/* ---- parked.c ---- */

/* The listener's flow is about to end, as its last slot's client has left, or is dead: the kernel gets nothing of what
 * waits for accept there. */
void owner_listener_end_prepare_parking(struct xdp_owner *owner, struct owner_flow *flow, uint32_t slot);
void owner_park_pending_of_dead_slot(struct xdp_owner *owner,
                                     uint32_t slot); /* it is dead: what waits is kept for others */
/* The same of one listener, which a living client has closed: what it has accepted by now is its own. */
void owner_park_closed_listener(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key);
void owner_parked_reset_connection(struct xdp_owner *owner, struct owner_minisock *minisock,
                                   uint64_t now);                                             /* nobody has come */
void owner_free_parked_of_minisock(struct xdp_owner *owner, struct owner_minisock *minisock); /* is about to end */
void owner_parked_hand_over_or_expire(struct xdp_owner *owner, uint64_t now);
uint64_t owner_parked_due_ns(const struct xdp_owner *owner); /* UINT64_MAX: there is nothing to do */
void owner_parked_fini(struct xdp_owner *owner);             /* after the minisocks */
/* What the owner before has left: after the minisocks; and after what is on its way to members. */
void owner_restore_parked_from_record(struct xdp_owner *owner);
void owner_park_listeners_of_dead_clients(struct xdp_owner *owner);
/*
 * The record says that the connection is being given to slot `to`. True: it is parked at that slot's listener, whose
 * process has died. If it is parked at another slot's listener, its minisock ends; false.
 */
bool owner_connection_is_parked_at_slot(struct xdp_owner *owner, const struct vma_flow_key *key, uint32_t to);
/* The slot's client lives, and has named its listeners: what it has closed meanwhile is kept for others. */
void owner_park_listeners_closed_by_live_client(struct xdp_owner *owner, uint32_t slot);

#endif
