/*
 * vmad - a connection to the vmad that owns an interface.
 *
 * Threads: one at a time (the nic's lock). connect and close need no lock if no other thread knows the client yet.
 * Progress: every call waits for the answer at most VMAD_REPLY_TIMEOUT_MS; a vmad that does not answer counts as gone.
 * Memory: connect allocates, close frees.
 * Example: test/test_vmad_proto.c.
 */
#ifndef VMA_NIC_CLIENT_VMAD_H
#define VMA_NIC_CLIENT_VMAD_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/nic_state.h>

#include "connecting.h"
#include "../xdp/owner.h"
#include "../xdp/xdp.h"

#define VMAD_REPLY_TIMEOUT_MS 3000

struct vmad_client;

struct vmad_connect_attr {
	unsigned ifindex;
	const char *ifname;
	const char *vmad_path; /* started when nobody answers; NULL: not */
	int right_fd;          /* shown as proof; -1: none */
	uint32_t window_bytes; /* for a vmad that is started */
	bool huge_pages;
	const char *stats_dir; /* NULL: its default */
	const int *over_fd;    /* readable: the attempt is over, -ECANCELED; NULL: none */
	unsigned timeout_ms;   /* for a vmad to come up and have the interface */
	/* Its list has the client from the start, and still if connect succeeds; without its lock held. NULL: a child
	 * that is forked meanwhile may have the connection. */
	struct vmad_connecting *connecting;
};

/* 0, -ECONNREFUSED (nobody there), -ECHILD (those that were started have ended; the next start is not yet due), -EPERM
 * (vmad does not let us), or why vmad cannot have the interface. */
int vmad_client_connect(const struct vmad_connect_attr *how, struct vmad_client **out);
/*
 * What connect would come to, for who only asks: 0, a vmad takes this process; -ECONNREFUSED, none runs and this
 * process may start one; else connect's refusal, which the log has.
 */
int vmad_client_probe(const struct vmad_connect_attr *how);
/* One attempt at a vmad that runs: as connect, but none is started, and the log has no line if there is none. */
int vmad_client_connect_once(const struct vmad_connect_attr *how, struct vmad_client **out);
void vmad_client_close(struct vmad_client *client);
int vmad_client_fd(const struct vmad_client *client); /* readable: call next_event */

/* As xdp_owner_*; the fds of a rental are the caller's to close. -EPIPE: vmad is gone. */
int vmad_client_rent(struct vmad_client *client, uint32_t rx_wre, uint32_t tx_wre, struct xdp_rental *out);
int vmad_client_return(struct vmad_client *client, uint32_t slot, bool frames_too);
/* `shown`: the socket that gives the right to it; -1: none. */
int vmad_client_flow_add(struct vmad_client *client, uint32_t slot, const struct vma_flow_rule *rule, int shown,
                         bool *generic);
/* Any number of cookies, and the socket of each. A vmad that does not know this request does without: 0. */
int vmad_client_send_flow_shadow_cookies(struct vmad_client *client, uint32_t slot, const struct vma_flow_key *key,
                                         const uint64_t *cookies, const int *shown, unsigned n);
int vmad_client_flow_del(struct vmad_client *client, uint32_t slot, const struct vma_flow_key *key);
/* -EOPNOTSUPP: this vmad cannot. */
int vmad_client_flow_move(struct vmad_client *client, uint32_t from, uint32_t to, const struct vma_flow_key *key);
int vmad_client_flow_stop_new_conns(struct vmad_client *client, uint32_t slot, const struct vma_flow_key *key);

/* Any number. -EOPNOTSUPP: this vmad has no minisocks. */
int vmad_client_minisock_export(struct vmad_client *client, uint32_t slot, const struct vma_flow_minisock *minisocks,
                                unsigned n);

/* A channel to hand over connections by: xdp/repair.h. -EOPNOTSUPP: this vmad cannot. */
int vmad_client_open_repair(struct vmad_client *client, int *fd);

/* Of a slot that another connection of this process had: it is this one's now. -ENOENT: vmad does not know it. */
int vmad_client_resume_slot_by_ticket(struct vmad_client *client, uint32_t slot, uint64_t ticket);
int vmad_client_tell_resumed(struct vmad_client *client, uint32_t slot); /* all its flows were added again */

/* What vmad has: <vma/nic_state.h>. -EOPNOTSUPP: this vmad cannot tell. */
int vmad_client_fetch_vmad_state(struct vmad_client *client, struct vma_vmad_state *out);

bool vmad_client_broken(const struct vmad_client *client);            /* every request is -EPIPE; any thread may ask */
uint32_t vmad_client_request_count(const struct vmad_client *client); /* so many were made; any thread may ask */
bool vmad_client_has_event(const struct vmad_client *client); /* one is here already: the fd does not tell of it */
/* A flow that vmad has taken back: 1 and what, 0 none now, -EPIPE. Never waits. */
int vmad_client_next_revoked_flow(struct vmad_client *client, uint32_t *slot, struct vma_flow_key *key);
/* A connection that the slot is to make, of those that next_event has found on its way. */
bool vmad_client_next_adoption(struct vmad_client *client, uint32_t *slot, struct vma_pending *pending);

/* start.c: runs `path` so that this program sees neither a child nor a signal. 0 or -errno of exec. */
int vmad_start(const char *path, char *const argv[]);

#endif
