/*
 * proto - what vmad and its clients say to each other: one message per packet of a SOCK_SEQPACKET unix socket.
 *
 *   client                                vmad
 *   HELLO + a proof (SCM_RIGHTS)  ------>        may this process be a client? answered when the interface is ready
 *                                 <------ HELLO
 *   RENT wanted depths            ------>
 *                                 <------ RENT: the rental + packet memory, shared object, one socket per device queue,
 *                                              the table of claims, if it may have it, and the end of a pipe
 *                                              (owner/fdstore.h)
 *   FLOW_ADD + the shadow,        ------>        FLOW_ADD shows the socket by which the client has a right to the flow
 *   FLOW_DEL, RETURN                             (owner/entitled.c); none, if the flow takes none
 *   FLOW_RETIRE                   ------>        a listener's flow will be deleted: other members get new connections
 *   FLOW_MOVE                     ------>        a flow of UDP or a connection goes from one slot of the client to another
 *   FLOW_SHADOWS                  ------>        more shadows of a flow, before it is added again at a new vmad: as
 *                                                many sockets are shown as named
 *                                 <------ the same, with a result
 *   RESUME slot, ticket           ------>        the client's other connection has ended, or its vmad: the slot is
 *                                                still rented, and belongs to this connection from now on
 *   RESUMED slot                  ------>        all its flows were added again
 *   REPAIR                        ------>        a channel to have connections handed over to the kernel: repair.h
 *                                 <------ REPAIR: its end
 *   MINISOCK_EXPORT               ------>        what a process that ends leaves; answered unless more follows at once.
 *                                                Of VMAD_SLOT_CARD: connections by an RDMA card, vmad/card.h
 *   WATCH BEGIN                   ------>        connections by an RDMA card, to be probed after a kill: vmad/watches.h.
 *                                 <------ WATCH: -EPERM, the client has no CAP_NET_RAW
 *   WATCH ADD, DEL, FORGET        ------>        not answered
 *   STATE place                   ------>        what vmad has, one answer for each place: vmad/state.c. Each client may ask
 *                                 <------ STATE: the first place from there on that has something; -ENOENT: none has
 *                                 <------ REVOKED slot, flow: whenever it happens, answers nothing
 *                                 <------ ADOPT slot, a connection to make: the same
 *
 * Every message has the same length, so there is nothing to parse before it is copied. A message ends the connection if
 * it is shorter or longer, has another magic or version, or carries fds where none belong. An unknown type gets an
 * answer with -EOPNOTSUPP, so a newer client learns what an older vmad cannot do.
 *
 * There are two addresses, and clients try the first one first. The first address is a file in a folder where only root
 * writes (folder.c). The second one is in the abstract name space. It is for processes that do not see that folder, and
 * for a vmad that may not write there. Any local process can take that one before vmad does.
 *
 * Threads: pure functions and constants; a message is the caller's.
 */
#ifndef VMA_NIC_XDP_PROTO_H
#define VMA_NIC_XDP_PROTO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <vma/nic.h>
#include <vma/nic_state.h>

#include "owner.h"
#include "xdp.h"

#define VMAD_MAGIC 0x64616d76u /* "vmad" */
#define VMAD_VERSION 4
#define VMAD_FDS_MAX (XDP_QUEUES_MAX + 4)
#define VMAD_FDS_CAPACITY 253 /* the kernel's SCM_MAX_FD */

enum vmad_msg_type {
	VMAD_HELLO = 1,
	VMAD_RENT,
	VMAD_RETURN,
	VMAD_FLOW_ADD,
	VMAD_FLOW_DEL,
	VMAD_REVOKED,
	VMAD_FLOW_SHADOWS,
	VMAD_MINISOCK_EXPORT,
	VMAD_ADOPT,
	VMAD_FLOW_RETIRE,
	VMAD_RESUME,
	VMAD_RESUMED,
	VMAD_FLOW_MOVE,
	VMAD_STATE,
	VMAD_WATCH,
	VMAD_REPAIR = 32
};

struct vmad_msg_rent_slot {
	uint32_t rx_wre, tx_wre;
};

/* struct xdp_rental without its fds, which travel beside it: memory, shared, sockets, and ports and the end of a pipe
 * if it has them. */
struct vmad_msg_rental {
	uint32_t slot, queues, nframes, rx_size, tx_size, tx_first, tx_count, rx_quota, mtu;
	uint32_t generic, multi_buffer, tx_csum;
	uint32_t has_claims, has_alive;
	uint64_t ticket;
};

struct vmad_msg_resume_slot {
	uint32_t slot, reserved;
	uint64_t ticket;
};

/* Between vmad and its fdstore: owner/fdstore.c. */
struct vmad_msg_fdstore_keep {
	uint32_t place;
};

struct vmad_msg_return_slot {
	uint32_t slot, frames_too;
};

struct vmad_msg_flow {
	uint32_t slot, flags;
	uint64_t shadow_cookie;
	struct vma_flow_key key;
};

struct vmad_msg_move_flow {
	uint32_t from, to;
	struct vma_flow_key key;
};

#define VMAD_SHADOWS_MAX 8
_Static_assert(VMAD_SHADOWS_MAX <= VMAD_FDS_MAX, "each is shown");
struct vmad_msg_flow_shadows {
	uint32_t slot, count;
	struct vma_flow_key key;
	uint64_t cookie[VMAD_SHADOWS_MAX];
};

/* struct vma_flow_minisock of IPv4, TCP */
struct vmad_msg_minisock {
	uint8_t local[4], peer[4];
	uint16_t local_port_be, peer_port_be;
	uint16_t vlan, state;
	uint32_t snd_nxt, rcv_nxt;
};

#define VMAD_MINISOCKS_MAX 4
#define VMAD_SLOT_CARD UINT32_MAX /* no slot: of connections by rules of an RDMA card, on the connection that watches */
struct vmad_msg_minisocks {
	uint32_t slot;
	uint16_t count, more; /* more: no answer */
	struct vmad_msg_minisock minisock[VMAD_MINISOCKS_MAX];
};

struct vmad_msg_adopt {
	uint32_t slot, reserved;
	struct vma_pending pending;
};

/* A connection of TCP over IPv4. */
struct vmad_watched {
	uint8_t local[4], peer[4];
	uint16_t local_port_be, peer_port_be;
	uint16_t vlan, reserved; /* 0 */
};
_Static_assert(sizeof(struct vmad_watched) == 16, "no padding: it is compared as bytes");

enum vmad_watch_op { VMAD_WATCH_BEGIN, VMAD_WATCH_ADD, VMAD_WATCH_DEL, VMAD_WATCH_FORGET };
#define VMAD_WATCHED_MAX 6
struct vmad_watch {
	uint16_t op, count;
	struct vmad_watched watched[VMAD_WATCHED_MAX];
};

#define VMAD_STATE_PLACES (1 + VMA_VMAD_CLIENTS_MAX + VMA_VMAD_QUEUE_PAIRS_MAX)
struct vmad_msg_state {
	uint32_t place, reserved;
	union { /* by place */
		struct vma_vmad_interface interface;
		struct vma_vmad_client client;
		struct vma_vmad_queue_pair queue_pair;
	};
};

struct vmad_msg {
	uint32_t magic;
	uint16_t version, type;
	uint32_t seq;   /* an answer carries that of its request */
	int32_t result; /* of an answer: 0 or -errno */
	union {
		struct vmad_msg_rent_slot rent;
		struct vmad_msg_rental rental;
		struct vmad_msg_return_slot ret;
		struct vmad_msg_flow flow;
		struct vmad_msg_move_flow move;
		struct vmad_msg_flow_shadows shadows;
		struct vmad_msg_minisocks minisocks;
		struct vmad_msg_adopt adopt;
		struct vmad_msg_resume_slot resume;
		struct vmad_msg_fdstore_keep keep;
		struct vmad_msg_state state;
		struct vmad_watch watch;
		uint8_t bytes[112];
	};
};
_Static_assert(sizeof(struct vmad_msg) == 128, "fixed length, no padding");

/* The abstract one: its length, to bind or connect to. */
socklen_t vmad_address(unsigned ifindex, struct sockaddr_un *out);

#define VMAD_PARENT "/run"
#define VMAD_FOLDER VMAD_PARENT "/vma"
/*
 * The file of this socket's network namespace, "vmad" or "fdstore": the length, or -errno. -ENOENT: there is no folder;
 * -EPERM: it is not root's, or a symlink, or others may write there.
 */
int vmad_socket_path_address(int fd, unsigned ifindex, const char *kind, struct sockaddr_un *out);
/* ---- folder.c, of vmad ---- */
/* Binds the socket there: 0, -EADDRINUSE: another one lives, or -errno. Makes the folder, and replaces a dead one. */
int vmad_bind_in_own_folder(int fd, unsigned ifindex, const char *kind, mode_t mode);
void vmad_remove_own_socket_file(unsigned ifindex, const char *kind); /* removes the file, unless a socket lives */
void vmad_remove_stale_socket_files(void);                            /* the same of all network namespaces */

/* 0 or -errno; whole messages only. */
int vmad_send_message_with_fds(int fd, const struct vmad_msg *msg, const int *fds, unsigned nfds);
/*
 * Receives what is there: 1 a message of whatever length (*bytes), 0 the other side has gone, -EAGAIN, -errno. Up to
 * VMAD_FDS_MAX fds become the caller's, O_CLOEXEC; -EMSGSIZE when there were more, or more than this process may have:
 * then the message is here, and none of its fds.
 */
int vmad_receive_message(int fd, struct vmad_msg *msg, size_t *bytes, int *fds, unsigned *nfds);
/* The same with all fds that there are, VMAD_FDS_CAPACITY at most: they are the caller's whatever it returns.
 * -EMSGSIZE: there were more than this process may have. */
int vmad_receive_message_with_fds(int fd, struct vmad_msg *msg, size_t *bytes, int *fds, unsigned *nfds);
bool vmad_msg_ok(const struct vmad_msg *msg, size_t bytes);

/* ---- right.c: the proof of a right to be a client ---- */
int vmad_permission_socket_create(unsigned ifindex,
                                  const char *ifname); /* fd, or -EPERM: this process lacks CAP_NET_RAW */
/* By vmad, on what came with HELLO from this process: 0, -EPERM, or that it cannot be looked at (-EMFILE). */
int vmad_permission_socket_check(int fd, unsigned ifindex, const struct ucred *who);
/* Copies are good for every user, or for who made it. -EPERM: this process may not say so, or it is not to be shared.
 */
int vmad_permission_socket_set_mark(int fd, unsigned ifindex, bool any_user);
void vmad_permission_socket_revoke(int fd); /* no copy of it is good any more */
/* The same of one that this very client, in its life so far, has made: not one that it has inherited. */
bool vmad_permission_socket_made_by_sender(int fd, const struct ucred *who);
int vmad_check_socket_in_same_netns(int fd); /* the socket is of this process's network namespace: 0, -EPERM, -errno */

#endif
