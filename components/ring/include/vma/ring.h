/*
 * ring - a driven queue pair: its flows, its two drive flags, its command queue.
 *
 *   any thread ── send ──> own frame ──┬─ got the transmit flag: NIC, kick
 *                                      └─ else: command queue ──> the thread that has the flag sends it
 *   any thread ── progress ──> got the receive flag: poll, check headers, dispatch to flows, drain commands
 *                              └─ else: another thread is doing exactly this; look at your own queue
 *
 * Threads: any thread may call anything; at most one drives each direction (try-acquire). Sinks run in the thread that
 *          drives, with the receive flag held. They must not wait, and must not call progress of the same ring. A sink
 *          may attach and detach flows of its ring. A signal handler may call progress, send and flush at any moment,
 *          but not attach and detach. If it has interrupted a drive, the answer is as if another thread drives. A sink
 *          must return: leaving it by siglongjmp would leave the flag taken.
 * Progress: in the data path no call waits for another thread. attach and detach are control path: they wait for the
 *           receive flag as VMA_THREAD_MODE says (spin, then futex; futex; spin, then yield). With VMA_THREAD_SINGLE
 *           the thread that makes the ring is to be the only one that uses it: its flags cost it no atomic
 *           read-modify-write. Another thread may use it, and pays for that (drive.h). If several do so often, it is as
 *           SPIN.
 * Memory: create allocates; flows are the caller's memory and outlive their attachment.
 * Example: test/test_dispatch.c; examples/udp_echo.c.
 */
#ifndef VMA_RING_H
#define VMA_RING_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/bufpool.h>
#include <vma/cq.h>
#include <vma/nic.h>
#include <vma/stats.h>

struct vma_ring;
struct vma_flow;

/* A received packet's addresses, valid during the sink's call. Network byte order. */
struct vma_rx_info {
	uint8_t family, proto;
	uint16_t vlan;
	uint8_t src[16], dst[16];
	uint16_t src_port_be, dst_port_be;
	uint8_t ttl, tos;
	uint8_t tcp_flags; /* TCP only */
};

/*
 * Takes one packet for one flow. buf's l3_off, l4_off, payload_off, payload_len are set. Returning true keeps the
 * reference (put the chain later); false gives it back, counted as rx_drop_sink. A packet for a group is shared by all
 * its members, one reference each: neither its bytes nor its descriptors (user, next) may be written.
 */
typedef bool (*vma_flow_sink)(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info);
/*
 * Takes packets that came in a row: UDP datagrams for one socket, each in one buffer, and info is true of all of them.
 * Returns how many, the first ones: a sink that returned true for each would have done the same. The others go to the
 * sink, one by one.
 */
typedef unsigned (*vma_flow_train)(struct vma_flow *flow, struct vma_buf *const *packets, unsigned n,
                                   const struct vma_rx_info *info);

/* Each may be NULL. */
struct vma_flow_ops {
	/*
	 * The NIC has given the flow back to the kernel (see VMA_NIC_EVENT_FLOW_REVOKED): called once, by the thread
	 * that drives or by the NIC's own, with the receive flag held, as a sink. The flow stays attached.
	 */
	void (*revoked)(struct vma_flow *flow);
	vma_flow_train take_train; /* NULL: the sink gets all packets */
};

struct vma_flow {
	struct vma_flow_key key;
	uint32_t flags; /* enum vma_flow_flags */
	int shadow_fd;  /* as in struct vma_flow_rule */
	uint64_t shadow_cookie;
	vma_flow_sink sink;
	void *owner;                    /* for the sink */
	struct vma_flow *next;          /* ring's own: members of the same key */
	struct vma_ring *ring;          /* ring's own: where it is attached, NULL: nowhere */
	const struct vma_flow_ops *ops; /* NULL: it has none of them */
};

enum vma_thread_mode { VMA_THREAD_SINGLE = 0, VMA_THREAD_SPIN = 1, VMA_THREAD_MUTEX = 2, VMA_THREAD_YIELD = 3 };

struct vma_ring_attr {
	struct vma_nic *nic;
	struct vma_bufpool *spill_pool; /* for cq */
	struct vma_cq_attr cq;          /* qp, spill_pool, stats and name are filled in by create */
	uint32_t rx_wre, tx_wre;
	uint32_t tx_wre_batching; /* VMA_TX_WRE_BATCHING: completions collected before they are reaped */
	uint32_t tx_inline;       /* VMA_TX_MAX_INLINE: bytes of a packet that the NIC may copy into its send queue */
	enum vma_thread_mode thread_mode;
	bool rx_sw_csum; /* VMA_RX_SW_CSUM: check what the NIC did not */
	struct vma_stats *stats;
	const char *name;
};

/*
 * What the VMA_* parameters decide of these attrs, written into them; all else stays as the caller set it. conf_memory:
 * the arena, and the pool of ordinary memory behind the windows. conf_device: "BACKEND:ifname" as VMA_NIC says, for
 * vma_nic_open; -EOPNOTSUPP when it says none, -ENAMETOOLONG.
 */
struct vma_conf;
void vma_ring_conf_to_memory_attrs(const struct vma_conf *conf, struct vma_bufarena_attr *arena,
                                   struct vma_bufpool_attr *spill);
void vma_ring_conf_to_nic_attr(const struct vma_conf *conf, struct vma_nic_attr *nic);
int vma_ring_conf_to_device_spec(const struct vma_conf *conf, const char *ifname, char *spec, size_t size);
void vma_ring_conf_to_ring_attr(const struct vma_conf *conf, struct vma_ring_attr *ring);
/* Logs once if this queue pair has fewer frames than VMA_RX_WRE or VMA_TX_WRE asks for; a default asks for none. */
void vma_ring_conf_log_granted_depths(const struct vma_conf *conf, const char *ifname, const struct vma_nic_qp *qp);

int vma_ring_create(const struct vma_ring_attr *attr, struct vma_ring **out);
void vma_ring_destroy(struct vma_ring *ring); /* every flow must be detached */

/*
 * attach: -EEXIST (this flow is attached), -EINVAL (no sink; a key that no packet can match; flags that contradict it),
 * -EAFNOSUPPORT, -EADDRINUSE (the key was revoked and old members are still attached), -EAGAIN (in a sink only: the
 * rule that the key had is being deleted, see vma_ring_delete_stale_nic_rules), else as vma_nic_flow_add. Several flows
 * of one ring may have the same key: a multicast or broadcast packet goes to all of them, a unicast one to the first
 * attached, 5-tuples before 3-tuples. With VMA_FLOW_RING_ONLY the NIC is not told: the flow gets what the rule of
 * another flow of the ring (a listener's) brings in. detach returns when no sink of this flow runs or will run; called
 * from that very sink, it will not run again.
 */
int vma_ring_attach_flow(struct vma_ring *ring, struct vma_flow *flow);
void vma_ring_detach_flow(struct vma_ring *ring, struct vma_flow *flow);
/*
 * Control path, not in a sink. Before a listener's flow is detached. True: other processes serve it, too, from now on
 * what begins anew is theirs, and what the NIC had received by then has been delivered.
 */
bool vma_ring_stop_new_conns_of_listener(struct vma_ring *ring, const struct vma_flow *flow);
/*
 * Has the NIC steer a flow that was attached with VMA_FLOW_RING_ONLY, so that it outlives the one that covered it; once
 * it does, 0 again. The receive flag is not held while the owner of the device is asked: packets go on. Errors as
 * vma_nic_flow_add, and the flow stays as it was; -EINVAL: it is not attached to this ring, or was detached meanwhile
 * (by another thread, or a sink: nothing is left of it then, and its memory is not touched any more); -EDEADLK: in a
 * sink.
 */
int vma_ring_request_nic_rule_of_flow(struct vma_ring *ring, struct vma_flow *flow);
/*
 * Control path, not in a sink. Whether the ring receives what comes for the local port of this 5-tuple of TCP without a
 * rule of the flow's own (VMA_FLOW_RING_ONLY): 1, if the NIC has, or now gives, the ring the port's block
 * (VMA_FLOW_TCP_PORTS, VMA_FLOW_TCP_ADDRESS), and no rule names the port; 0, a rule is needed; -EADDRINUSE, so it is, and
 * the block is another's, or may be. For who has the port for himself by then: ring_ports.c says why. Segments to the block that no
 * flow takes are the protocol's unmatched segments.
 */
int vma_ring_reserve_port_block_of_key(struct vma_ring *ring, const struct vma_flow_key *key);
bool vma_ring_has_port_blocks(const struct vma_ring *ring); /* any thread: it has blocks */
/* True, once: the ring has got an address (VMA_FLOW_TCP_ADDRESS) that it did not have. The caller has the kernel's
 * connections of the address exempted (vma_ring_exempt_kernel_connections). */
bool vma_ring_take_new_address_mark(struct vma_ring *ring);
/*
 * Control path, not in a sink. Gives all blocks back if unused(arg), called with the receive flag, says that no flow
 * relies on one. Who attaches such a flow asks vma_ring_reserve_port_block_of_key after that (once more), so none is
 * forgotten.
 */
void vma_ring_release_unused_port_blocks(struct vma_ring *ring, bool (*unused)(void *arg), void *arg);
/* As detach; `with` is called in the same hold of the receive flag as takes the flow out of the table. The NIC is asked
 * afterwards, without the flag. */
void vma_ring_detach_flow_and_call_back(struct vma_ring *ring, struct vma_flow *flow, void (*with)(void *arg),
                                        void *arg);
/*
 * As detach, but what the NIC had received for the flow by then is delivered first: the NIC gives the flow back, then
 * the queue is emptied, by the caller, in whom sinks (also of other flows) run now; then the flow is detached. No sink
 * may attach a flow of the same key meanwhile.
 */
void vma_ring_drain_and_detach_flow(struct vma_ring *ring, struct vma_flow *flow);

/*
 * Control path, not in a sink, nothing of this ring or the other held. `moved`, attached nowhere, takes the place of
 * `flow` on another ring of the same NIC: the same key, of UDP or of a TCP connection. Packets go on to one of the two
 * sinks without a gap. When it returns, `flow` is detached, and what was received before the move has been delivered to
 * it. Meanwhile the sink of `moved` may run already: who must have the order kept looks there only afterwards. Else
 * `moved` is detached again, and `flow` as it was: -EBUSY, its key has other members, or no rule; errors of attach and
 * of vma_nic_flow_move.
 */
int vma_ring_move_flow(struct vma_ring *ring, struct vma_flow *flow, struct vma_ring *to, struct vma_flow *moved);
/*
 * The same, but `flow` stays attached, without a rule: for a caller that has to see what is still to come by the old
 * one (vma_nic_flow_move), and then drains and detaches it.
 */
int vma_ring_move_rule(struct vma_ring *ring, struct vma_flow *flow, struct vma_ring *to, struct vma_flow *moved);

/*
 * As detach, but for a flow that was steered (vma_ring_request_nic_rule_of_flow) the NIC is not asked: true, its rule
 * waits for prune. What the rule brings in until then goes to who covers the key, and a flow that is attached under the
 * same key inherits it.
 */
bool vma_ring_detach_flow_keep_stale_rule(struct vma_ring *ring, struct vma_flow *flow);
/*
 * Control path. Has the NIC delete rules that detach_later has left, at most `most`, the oldest first; the receive flag
 * is not held while it is asked. If the NIC takes what is the kernel's (VMA_NIC_CAP_TO_KERNEL), only those of flows
 * that had left by until_ns (CLOCK_MONOTONIC; UINT64_MAX: all). *deleted: how many (NULL: it does not matter). True:
 * some are left, or another thread is deleting some, or this is a sink.
 */
bool vma_ring_delete_stale_nic_rules(struct vma_ring *ring, unsigned most, uint64_t until_ns, unsigned *deleted);

/*
 * In a sink: the kernel gets a packet for which the NIC should have had no rule (vma_nic_pass_packet_to_kernel). The
 * caller keeps its reference. False: the NIC does not do that, or it has failed.
 */
bool vma_ring_reinject_packet(struct vma_ring *ring, const struct vma_buf *packet);
/*
 * Control path, not in a sink. With such a NIC: what comes here for a connection that the kernel has is given to the
 * kernel from now on: of this 5-tuple of TCP, or of all that the kernel has at the local end of a listener's key, whose
 * flow is attached; with local port 0 of all that it has at an address (VMA_FLOW_TCP_ADDRESS). At most RING_EXEMPTS_MAX. True: there are some, and sweep is to be called now and then. It asks the
 * kernel which connections it still has, and lets go of the others; false: none is left.
 */
#define RING_EXEMPTS_MAX 1024
bool vma_ring_exempt_kernel_connections(struct vma_ring *ring, const struct vma_flow_key *key);
bool vma_ring_remove_exempts_of_ended_conns(struct vma_ring *ring);
/* With the receive flag: the flow that gets the packets of this key, NULL: none is attached under just this key. */
struct vma_flow *vma_ring_find_first_flow_of_key(struct vma_ring *ring, const struct vma_flow_key *key);
/* With the receive flag: whether the NIC has a rule of the flow's key, which is this flow's alone. */
bool vma_ring_flow_is_alone_with_nic_rule(struct vma_ring *ring, const struct vma_flow *flow);

/*
 * Drives the receive side if nobody else does: returns the number of packets handled (delivered or dropped under a
 * reason), 0 if there was none, or -EBUSY if another thread drives at the moment, or this one does already (in a sink,
 * or under a signal handler). Also kicks and sends what waits on the transmit side. vma_ring_wait sleeps until
 * something may have arrived: 1 look again, 0 timeout, -EINTR, -EDEADLK (in a sink).
 */
int vma_ring_progress(struct vma_ring *ring);
/* The same, but the protocol is not asked whether it is due, which costs a look at the clock: for who looks without a
 * break, and asks every few times. */
int vma_ring_poll(struct vma_ring *ring);
/*
 * A listener is told that packets have been handled, whatever became of them. heard(listener) may be called with the
 * receive flag held, so it obeys the rules of sinks. Who calls progress or poll tells it by vma_ring_notify_listener if
 * the answer is above 0, progress_told does so by itself, and all that drives aside from these calls tells, too.
 *
 * listen: one listener for each ring, NULL ends it; never waits. A drive that begins after its caller has had the
 * receive flag once is told to this one. The memory of the one before must outlive the calls that are under way.
 */
struct vma_ring_listener {
	void (*heard)(struct vma_ring_listener *listener);
};
void vma_ring_set_listener(struct vma_ring *ring, struct vma_ring_listener *listener);
void vma_ring_notify_listener(struct vma_ring *ring); /* any thread; nothing if no listener is there */
int vma_ring_progress_and_notify(struct vma_ring *ring);
int vma_ring_wait(struct vma_ring *ring, uint64_t timeout_ns);
int vma_ring_fd(const struct vma_ring *ring);
/*
 * Arms for vma_ring_fd: 0 sleep now, 1 look again first. -EBUSY: another thread drives, or this one does already (in a
 * sink): nothing is armed, and the fd may stay silent when a packet comes; try again (vma_ring_wait_for_holder), as
 * wait does.
 */
int vma_ring_arm(struct vma_ring *ring);

/*
 * What to do after -EBUSY, or after a send that came back short because the holder does not come to it: waits a little,
 * for longer the longer one and the same hold lasts (pauses of together a few microseconds, then yields, then sleeps
 * until the flag is released), at most timeout_ns. True: try again; false: timeout_ns is over, or a signal ended the
 * sleep, and the flag is still taken by the same hold. `backoff` starts zeroed, and again when the caller got what it
 * wanted.
 */
enum vma_ring_side { VMA_RING_RX, VMA_RING_TX };
struct vma_ring_backoff {
	uint32_t hold, tries;
};
bool vma_ring_wait_for_holder(struct vma_ring *ring, enum vma_ring_side side, struct vma_ring_backoff *backoff,
                              uint64_t timeout_ns);
/*
 * Data path: until nobody has the receive flag, or it has changed hands often enough that a whole hold is over; at most
 * timeout_ns for each. What another thread had in hand is then in its sinks. False: the time is over, a signal ended
 * the sleep, or this thread has the flag itself (it is in a sink).
 */
bool vma_ring_wait_for_rx_driver(struct vma_ring *ring, uint64_t timeout_ns);
/*
 * The calling thread is the library's own, and not one of the program's that VMA_THREAD_SINGLE speaks of: what it does
 * to rings of that mode says nothing against it.
 */
void vma_ring_mark_thread_as_internal_driver(void);
/*
 * What other threads of the process did with a flag of VMA_THREAD_SINGLE before some point of their program is visible
 * here after this; what they do after that point sees what was written here before. Nothing if no ring has that mode: a
 * sequentially consistent access of both sides is enough then. A system call.
 */
void vma_ring_membarrier_if_any_biased(void);
/* The thread id of the one that drives this side, 0: nobody (or no longer). */
uint32_t vma_ring_drive_holder_tid(const struct vma_ring *ring, enum vma_ring_side side);

/*
 * Has run(command) called once with the receive flag held: here and now if nobody drives, else by whoever does. Never
 * waits. The memory is the caller's until run is called, which may free or post it again. Commands of one thread run in
 * the order in which it posted them. run obeys the rules of sinks.
 */
struct vma_ring_command {
	void *link; /* ring's own */
	void (*run)(struct vma_ring_command *command);
};
void vma_ring_queue_command_and_try_run(struct vma_ring *ring, struct vma_ring_command *command);
/* The same, by whoever drives next; the caller sees to it that somebody does. */
void vma_ring_queue_command(struct vma_ring *ring, struct vma_ring_command *command);

/*
 * Control path: the receive flag, waited for as VMA_THREAD_MODE says, for a caller that must see or change what sinks
 * see and change. False: this thread has it already (it is in a sink), and must not give it back.
 */
bool vma_ring_acquire(struct vma_ring *ring);
void vma_ring_release(struct vma_ring *ring);
/* With that flag, not in a sink: what the NIC has for the ring by now goes to its sinks. */
void vma_ring_drain(struct vma_ring *ring);
/* Data path: the same if nobody has it; never waits. False: somebody has, perhaps this thread. */
bool vma_ring_try_acquire(struct vma_ring *ring);

/*
 * A protocol that lives on the ring and has work of its own. run is called with the receive flag held, by whoever
 * drives: after a burst of packets, after posted commands, and when is_due says so. A thread that polls asks is_due
 * without the flag. run obeys the rules of sinks, and may send. It returns true when it has broken off, since so much
 * was sent that the receive queue may fill with the answers: these are read, and run is called again. If `last` says
 * that it will not be called again, what it leaves is due at once. There is one protocol per ring. NULL ends it: when
 * attach_proto returns, no run of it is under way or will begin; its memory must outlive the calls of progress that are
 * under way. A protocol that has a time to keep must see to it that somebody polls the ring at that time. rebound, or
 * NULL: the queue pair was lost and is there again, and what came meanwhile the kernel has answered in its own way. It
 * is called with both flags held, so it only notes that.
 */
struct vma_ring_proto_ops {
	bool (*run)(struct vma_ring_proto_ops *proto_ops, bool last);
	bool (*is_due)(struct vma_ring_proto_ops *proto_ops);
	void (*rebound)(struct vma_ring_proto_ops *proto_ops);
	/*
	 * May be NULL. A segment of TCP to a port of the ring's blocks (vma_ring_reserve_port_block_of_key) that no
	 * flow takes; as a sink, it takes the packet, or returns false.
	 */
	bool (*unmatched)(struct vma_ring_proto_ops *proto_ops, struct vma_buf *packet, const struct vma_rx_info *info);
	/* May be NULL. A connection that another process of a listener's group has not accepted is to be made here, by
	 * the listener of this flow (<vma/nic_group.h>). */
	void (*accept_pending)(struct vma_ring_proto_ops *proto_ops, struct vma_flow *listener,
	                       const struct vma_pending *pending);
};
void vma_ring_attach_proto(struct vma_ring *ring, struct vma_ring_proto_ops *proto_ops);
struct vma_ring_proto_ops *vma_ring_proto_ops(const struct vma_ring *ring);

/* A buffer of the ring's registered memory to build a frame in, data_off at the NIC's headroom; NULL: none now. */
struct vma_buf *vma_ring_tx_buf(struct vma_ring *ring);

/* Segments of one packet that go to the NIC as they are, at least 1. Constant. */
uint32_t vma_ring_segs_max(const struct vma_ring *ring);

enum vma_ring_send_flags {
	VMA_RING_SEND_LATER = 1 << 0, /* no kick now: at most 8 frames wait for the thread's next call or flush */
};
/*
 * Sends packets, n segments in all as vma_nic_tx takes them; complete frames from the Ethernet header on. Returns how
 * many segments were accepted: sent, queued behind the thread that drives transmit, or refused for good (a packet
 * beyond the MTU, of more than 32 segments, or of more than the NIC takes that do not fit one buffer together:
 * tx_drop_too_long; less than an Ethernet header, a segment beyond its buffer, a flag without its capability, a packet
 * that the NIC cannot cut: tx_drop_bad). The references of those pass to the ring. Fewer than n, always at a packet's
 * border, when the NIC and the queue are full: the rest remains the caller's. If a rebind has found a device that
 * cannot sum or cut any more what the one before could, the ring does it, at the cost of a copy.
 */
unsigned vma_ring_send(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n, unsigned flags);
/*
 * A frame that vma_ring_send would take goes the same way, as far as to the device's queue, and is not sent: what the
 * next one needs is in the caches then. The buffer stays the caller's. Nothing is done while another thread sends.
 */
void vma_ring_send_dummy(struct vma_ring *ring, const struct vma_nic_seg *seg);
/* Kicks what SEND_LATER left. */
void vma_ring_flush_tx(struct vma_ring *ring);
/*
 * Control path. Sends what waits, and waits until nothing that was sent is still under way in this host, at most
 * timeout_ns. True: what another ring sends from now on comes behind it. False also while others send without a break.
 */
bool vma_ring_drain_sends(struct vma_ring *ring, uint64_t timeout_ns);

struct vma_nic_qp *vma_ring_qp(struct vma_ring *ring);
struct vma_cq *vma_ring_cq(struct vma_ring *ring);
struct vma_stats_ring *vma_ring_stats(struct vma_ring *ring);
struct vma_nic *vma_ring_nic(struct vma_ring *ring);

/*
 * Which ring a socket uses: pure functions over numbers, see ring_alloc.c.
 */
enum vma_ring_logic {
	VMA_RING_LOGIC_PER_INTERFACE = 0,
	VMA_RING_LOGIC_PER_IP = 1,
	VMA_RING_LOGIC_PER_SOCKET = 10,
	VMA_RING_LOGIC_PER_USER_ID = 11,
	VMA_RING_LOGIC_PER_THREAD = 20,
	VMA_RING_LOGIC_PER_CORE = 30,
	VMA_RING_LOGIC_PER_CORE_ATTACH_THREADS = 31,
};
struct vma_ring_request { /* of one socket, in place of what is configured */
	bool is_set;
	enum vma_ring_logic logic;
	uint32_t user_id, profile;
};
struct vma_ring_requester { /* who asks */
	uint64_t socket_id, user_id;
	uint8_t local[16];
	uint64_t thread_id;
	uint32_t core;
	uint32_t profile; /* of rings, 0: none */
	struct vma_ring_request rx, tx;
};
struct vma_ring_key { /* equal keys share a ring */
	enum vma_ring_logic logic;
	uint32_t profile;
	uint8_t id[16];
};
struct vma_ring_key vma_ring_key(enum vma_ring_logic logic, const struct vma_ring_requester *where);
/*
 * For a key that has no ring yet, with `limit` rings per interface (0: no limit) and `existing` already there: -1 make
 * a new one, else the number of the one to share, 0..existing-1.
 */
int vma_ring_choose_existing_or_new(struct vma_ring_key key, uint32_t existing, uint32_t limit);

#endif
