/*
 * owner - the owner object of an interface, for its users: a client in the owner's own process, and the server of vmad.
 *         Its inside is in ../owner/owner.h.
 *
 * Threads: one at a time (the nic's lock, or the only thread of vmad).
 */
#ifndef VMA_NIC_XDP_OWNER_H
#define VMA_NIC_XDP_OWNER_H

#include <vma/nic_state.h>

#include "xdp.h"

struct xdp_owner;
struct xdp_owner_attr {
	unsigned ifindex;
	uint32_t window_bytes; /* per device queue; 0: 16 MB; less where RLIMIT_MEMLOCK does not allow it (one line) */
	bool huge_pages;
	bool minisocks;  /* it outlives its clients, and answers in their place: owner/minisocks.c */
	bool persistent; /* it has a record, and another owner may take its place: owner/adopt.c */
};
int xdp_owner_create(const struct xdp_owner_attr *attr, struct xdp_owner **out);
void xdp_owner_destroy(struct xdp_owner *owner);
/* What create would refuse that can be seen without owning anything: 0, or -errno with create's line in the log. */
int xdp_owner_check_interface_usable(unsigned ifindex);

/* ---- owner/record.c, owner/adopt.c: from one vmad to the next ---- */

struct fdstore;
struct fdstore_fds;
struct owner_slot_tenant;
/* The fdstore gets everything that the owner has, and from now on what changes. */
void xdp_owner_put_all_fds_in_fdstore(struct xdp_owner *owner, struct fdstore *fdstore);
/*
 * From what an fdstore has handed over, whose descriptors it takes. -EPROTO: another layout; else why it is not whole.
 */
int xdp_owner_take_over_from_fdstore(const struct xdp_owner_attr *attr, struct fdstore *fdstore,
                                     struct fdstore_fds *hand, struct xdp_owner **out);
/* The slot's client, from now on (pidfd: a copy is kept), and for who adopts: false, the slot is free. */
void xdp_owner_record_tenant_of_slot(struct xdp_owner *owner, uint32_t slot, const struct owner_slot_tenant *tenant,
                                     int pidfd);
int xdp_owner_get_tenant_pidfd(const struct xdp_owner *owner, uint32_t slot); /* its pidfd, the owner's; -1 */
bool xdp_owner_tenant(const struct xdp_owner *owner, uint32_t slot, struct owner_slot_tenant *tenant, bool *leaves);
/* The slot's client has named all flows that it has: the others end. */
void xdp_owner_end_unannounced_flows_of_slot(struct xdp_owner *owner, uint32_t slot);
/* The slot's client has come on another connection: what it was told on the one before may be lost. */
void xdp_owner_resend_moved_conns_to_slot(struct xdp_owner *owner, uint32_t slot);

/* What a client needs to drive a rented queue pair; fds are the owner's, a client in another process gets duplicates.
 */
struct xdp_rental {
	uint32_t slot;
	uint32_t queues;
	uint32_t nframes;
	uint32_t rx_size, tx_size;   /* ring entries of each socket */
	uint32_t tx_first, tx_count; /* rented TX frames */
	uint32_t rx_quota;           /* RX frames the client may hold before others run short */
	uint32_t mtu;
	bool generic, multi_buffer, tx_csum;
	int umem_fd, shared_fd;
	int claims_fd;   /* -1: none, see claims.h */
	int alive_fd;    /* hung up when nobody holds the owner's things any more; -1: none. See owner/fdstore.h */
	uint64_t ticket; /* of a slot rented from vmad */
	int socket_fd[XDP_QUEUES_MAX];
};
int xdp_owner_rent_queue_pair_slot(struct xdp_owner *owner, uint32_t rx_wre, uint32_t tx_wre, struct xdp_rental *out);
/* The slot's flows and sockets end now. Its frames stay the client's until the call with `frames_too`: the client has
 * put them all, or is dead. */
void xdp_owner_take_back_slot(struct xdp_owner *owner, uint32_t slot, bool frames_too);
/* For a client in the owner's own process. */
int xdp_owner_flow_add(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule);
/* What a client of vmad has shown: CAP_NET_RAW; a socket of this network namespace and of the flow's protocol (its
 * cookie, 0: none; and its family). */
struct xdp_proof_socket {
	bool raw;
	uint8_t family;
	uint64_t cookie;
};
/* For such a client: -EPERM, -EADDRNOTAVAIL, -EADDRINUSE besides, as owner/entitled.c says. */
int xdp_owner_flow_request(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_rule *rule,
                           const struct xdp_proof_socket *proof);
/* Kernel sockets that shadow a flow of this slot besides the one that flow_add names; before or after it. They have
 * been shown. -EPERM: before it, and none of them is bound to its port. */
int xdp_owner_flow_shadows(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key,
                           const uint64_t *cookies, unsigned n);
bool xdp_owner_uses_generic_xdp(const struct xdp_owner *owner); /* known once a flow was added */
int xdp_owner_flow_del(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key);
/*
 * A flow goes from one slot of a client to another: no packet meets neither. -ENOENT: `from` has no such flow;
 * -EINVAL: neither UDP nor a connection (vma_flow_may_move_to_other_qp), or a slot that is not rented; -EBUSY: several
 * slots have it (SO_REUSEPORT); else the map's error. It stays where it is then.
 */
int xdp_owner_flow_move(struct xdp_owner *owner, uint32_t from, uint32_t to, const struct vma_flow_key *key);
/* A listener's flow that the slot shares with others: they get what begins anew. -ENOENT: it shares none. */
int xdp_owner_flow_stop_new_conns(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key);
/* It is a TCP connection that the slot has a flow for, or a listener's flow, or a block. */
bool xdp_owner_slot_is_entitled_to_connection(struct xdp_owner *owner, uint32_t slot, const struct vma_flow_key *key);
/* Any slot has a flow of exactly that key. */
bool xdp_owner_has_flow(struct xdp_owner *owner, const struct vma_flow_key *key);
/* A connection of the slot's, with a flow or covered by a listener's or a block, is the owner's from now on.
 * -EOPNOTSUPP: the owner has no minisocks; -EINVAL, -EAFNOSUPPORT, -ENOENT: the slot has no such connection. */
int xdp_owner_take_over_conn_as_minisock(struct xdp_owner *owner, uint32_t slot,
                                         const struct vma_flow_minisock *minisock);
/* Readable: call tick. -1: none. */
int xdp_owner_get_minisock_segment_fd(const struct xdp_owner *owner);
int xdp_owner_link_fd(const struct xdp_owner *owner); /* of the same use: interfaces have changed */
/* Periodic work: quarantined frames, kernel socks that came up later. Flows that had to be given up are reported
 * through `revoked`. next_tick_ms: when it wants to be called next, -1: not before the next other call. */
void xdp_owner_tick(struct xdp_owner *owner, void (*revoked)(uint32_t slot, const struct vma_flow_key *key, void *arg),
                    void *arg);
/*
 * What waits for accept in a slot that does not serve it is given to another, whose client is to make it. False: that
 * one cannot be told now.
 */
void xdp_owner_set_adopt_callback(struct xdp_owner *owner,
                                  bool (*adopt)(uint32_t slot, const struct vma_pending *pending, void *arg),
                                  void *arg);
bool xdp_owner_device_gone(const struct xdp_owner *owner); /* the interface was deleted */
void xdp_owner_close_in_child(struct xdp_owner *owner);    /* only closes fds; async-signal-safe */
int xdp_owner_next_tick_ms(const struct xdp_owner *owner);
bool xdp_owner_has_minisocks(const struct xdp_owner *owner); /* of dead clients, or peers to tell: it should stay */
uint32_t xdp_owner_slot_flow_count(const struct xdp_owner *owner, uint32_t slot);
/* The same for readers, owner/state.c. False: the slot is free. */
void xdp_owner_fill_interface_report(const struct xdp_owner *owner, struct vma_vmad_interface *out);
bool xdp_owner_fill_slot_report(const struct xdp_owner *owner, uint32_t number, struct vma_vmad_queue_pair *out);
/* One line into the log: what clients have at this moment. Receive frames are missing if no client has them, and
 * neither the fill rings nor the owner; a driver that copies nothing has some of them, too. */
void xdp_owner_log_summary(const struct xdp_owner *owner);

#endif
