/*
 * server - the inside of vmad: server.c has the sockets and the life of clients, handler.c the messages.
 *
 *   accept --> NEW --HELLO, may be a client--> WAITING --interface ready--> READY --+--> gone: slots back
 *               |                                                                   |
 *               +-- anything else, or nothing within 5 s: dropped                   +--> socket closed, process alive:
 *                                                                                        GHOST until the process ends
 *
 * A ghost's flows end at once. Memory that it may still touch (frames, the shared object) is taken back only when its
 * process is gone. Taking a lock from a living process would harm the others.
 *
 * The descriptors of a client's message are closed before the next message is heard, or this one answered. So a client
 * that has its answer can bind the socket's port again. All such closes are the closer's (closer.h). CLOSING: the
 * connection is over, and the place is free when everything is closed.
 *
 * ABSENT: a client of the vmad before, whose slots were adopted. It comes back on a connection of its own (RESUME), and
 * each slot goes over to that one. If it does not come back within ten seconds, it becomes a ghost.
 *
 * Threads: one. Nothing here waits for a client.
 */
#ifndef VMA_NIC_VMAD_SERVER_H
#define VMA_NIC_VMAD_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <vma/nic_owner.h>

#include "../owner/fdstore.h"
#include "closer.h"
#include "../xdp/proto.h"
#include "../xdp/owner.h"
#include "../xdp/xdp.h"

#define VMAD_PEERS_MAX 128
/* Of each, one user who is not root has at most half, so that others find room. */
#define VMAD_USER_PEERS (VMAD_PEERS_MAX / 2)
#define VMAD_USER_SLOTS (XDP_SLOTS_MAX / 2)
#define VMAD_USER_FLOWS 32768
#define VMAD_NEW_MAX 32 /* of these, connections that have not said HELLO: the oldest gives way */

#define VMAD_ABSENT_MS 10000 /* so long a client of the vmad before has to come back */

enum vmad_peer_state { PEER_NONE, PEER_NEW, PEER_WAITING, PEER_READY, PEER_ABSENT, PEER_GHOST, PEER_CLOSING };

/* Jobs of the closer for each place; and for connections that get no place. */
enum { CLOSE_PASSED, CLOSE_CONNECTION, CLOSE_RIGHT, CLOSE_JOBS };
#define VMAD_CLOSE_REFUSED 8

struct vmad_peer {
	enum vmad_peer_state state;
	int fd, pidfd; /* pidfd -1: the process is not to be seen from here (another pid namespace) */
	pid_t pid;
	uid_t uid;
	gid_t gid;
	uint64_t since_ms;
	uint32_t hello_seq;
	uint64_t slots; /* bit per slot */
	int right_fd;   /* that it has shown; -1: none */
	bool raw;       /* it has made that itself: CAP_NET_RAW */
	int repair_fd;  /* to the process that repairs sockets for it, repair.c; -1: none */
};
_Static_assert(XDP_SLOTS_MAX <= 64, "slots of a peer are one word");

/* Where it listens: in root's folder, and at the abstract name; -1: not there. */
struct vmad_listen_socks {
	int path_fd, name_fd;
};

struct vmad_card;
struct vmad_watches;

struct vmad_server {
	const struct vma_vmad_attr *attr;
	unsigned ifindex;
	struct xdp_owner *owner; /* NULL until the interface could be had */
	struct vmad_listen_socks listen_fds;
	uint64_t accept_paused_until_ms; /* no connection could be taken: the next attempt */
	bool ended;                      /* a client has, since the last sweep of the statistics */
	uint64_t swept_ms;               /* that one */
	long swept_to;                   /* and where it has stopped, 0: at the end */
	struct fdstore fdstore;          /* owner/fdstore.h; fd -1: none */
	uint64_t fdstore_ms;             /* the last attempt to start one */
	bool resume_tried;               /* for what another vmad has left */
	bool persistent;                 /* the owner outlives this vmad, if there is an fdstore */
	bool repairs;                    /* processes may be started for clients */
	bool served;                  /* a client, since the last look at the time: it may have gone within one turn */
	struct vmad_watches *watches; /* NULL: no client has watched anything */
	struct vmad_card *card;       /* NULL: no client over verbs has left anything */
	struct vmad_fd_closer *closer;
	struct vmad_peer peer[VMAD_PEERS_MAX];
	/* Answers, until what came with the question is closed. A flow that is taken back meanwhile is refused: the
	 * client takes an event before an answer for one of an earlier grant. */
	struct vmad_held_reply {
		struct vmad_msg reply;
		struct vmad_msg_flow flow; /* of FLOW_ADD */
		bool any;
	} held[VMAD_PEERS_MAX];
};

/* An answer and the fds to send with it; these remain the owner's, but for those that were made for it. */
struct vmad_reply {
	struct vmad_msg msg;
	int fds[VMAD_FDS_MAX];
	unsigned nfds;
	bool made_for_it; /* the fds are closed when they have been sent */
};

/* One message of a peer and its fds (they remain the caller's). 1: send the answer, 0: nothing to say now, -errno:
 * drop the peer. Whatever the bytes are, nothing but this peer's own state changes for the worse. */
int vmad_handle_message(struct vmad_server *server, struct vmad_peer *peer, const struct vmad_msg *msg, size_t bytes,
                        const int *fds, unsigned nfds, struct vmad_reply *reply);
/* The answer to HELLO, once the interface is there (result 0) or is known not to come. */
void vmad_fill_hello_reply(const struct vmad_peer *peer, int result, struct vmad_reply *reply);
/* The loop, on the listen_fds that vmad_listen has opened, until stop_fd; ends with the owner destroyed. */
int vmad_run_event_loop(struct vmad_server *server);
/*
 * 0: one of them is open at least. -EADDRINUSE: another vmad lives, of root's or of this user's. -EEXIST: there is no
 * folder of root's, and another process has the abstract name. -errno. The log says who has the name, and what is
 * wrong with the folder.
 */
int vmad_listen(unsigned ifindex, const char *interface, struct vmad_listen_socks *listen_fds);
void vmad_listen_fds_close(unsigned ifindex, struct vmad_listen_socks *listen_fds);
/* Ends the vmad that has the interface and waits for its end: 0, also if there is none; -errno, and the log has a line.
 */
int vmad_end_running_instance(unsigned ifindex, const char *interface);
/* Whether the abstract name belongs to root, or to this user. If not, the log says whose it is, as far as it shows. */
bool vmad_name_holder_is_trusted_user(unsigned ifindex, const char *interface);
/* Flows and sockets of every slot of the peer end; with `frames_too` the slots are free again. */
void vmad_reclaim_slots_of_peer(struct vmad_server *server, struct vmad_peer *peer, bool frames_too);

/* state.c: the first place from `from` on that has something. -ENOENT: there is none. */
int vmad_fill_next_state_entry(const struct vmad_server *server, const struct vmad_peer *asks, uint32_t from,
                               struct vmad_msg_state *out);

/* ---- repair.c ---- */

/* A process for this peer, if there is none yet, and the peer's end of a channel to it: fd, or -errno. */
int vmad_open_repair_channel_for_client(struct vmad_server *server, struct vmad_peer *peer);
/* It asks: may this peer have that connection? */
void vmad_answer_repair_permission_request(struct vmad_server *server, struct vmad_peer *peer);
void vmad_repair_close(struct vmad_peer *peer);

#endif
