/*
 * watches - connections of clients that have rules of their own in an RDMA card. vmad only notes them, and probes their
 * peers if the client ends without having named their end.
 *
 *   WATCH ──> noted ──UNWATCH──> forgotten
 *               │
 *         client has gone ── 50 ms ──> SYN ── 0.6 s ──> two ACKs outside the window ──> forgotten
 *
 * The card's rules end with their process. So the peer's answer to a probe comes to the kernel, which has no such
 * connection and resets it. The file owner/probe.c says why peers answer; owner/resets.c does the same for flows of the
 * owner's. The first delay is for the rules, which may end a little later than the connection to vmad.
 *
 * No probe is sent if the connection has a user by then: a kernel socket, a flow of the owner's, or another client's
 * watch. None is sent either if its local address is not this host's, or its peer's is.
 *
 * Threads: vmad's only one. Progress: no call waits, but for the kernel's answers about sockets and routes.
 * Memory: 3 MB from the first watch on.
 * Bounds: VMAD_WATCHES_MAX in all, and VMAD_USER_FLOWS of the living clients of a user who is not root; 32 probes each
 * millisecond.
 * Example: test/test_vmad_watches.c.
 */
#ifndef VMA_NIC_VMAD_WATCHES_H
#define VMA_NIC_VMAD_WATCHES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../xdp/owner.h"
#include "../xdp/proto.h"

#define VMAD_WATCHES_MAX 65536

struct vmad_watches;

/* NULL: no memory. */
struct vmad_watches *vmad_watches_create(unsigned ifindex, const char *interface);
void vmad_watches_destroy(struct vmad_watches *watches); /* NULL is allowed */

/* `client`: the place of a peer of the server. Beyond the bounds a connection is not noted, with one line. */
void vmad_watches_add(struct vmad_watches *watches, unsigned client, uid_t uid, const struct vmad_watched *watched);
void vmad_watches_del(struct vmad_watches *watches, unsigned client, const struct vmad_watched *watched);
void vmad_watches_del_all_of_client(struct vmad_watches *watches,
                                    unsigned client); /* all of the client: nobody is probed */
void vmad_watches_probe_all_of_client(struct vmad_watches *watches,
                                      unsigned client); /* it has gone: peers of all are probed */
/* The same of one connection, noted or not. */
void vmad_watches_add_and_probe_now(struct vmad_watches *watches, unsigned client, uid_t uid,
                                    const struct vmad_watched *watched);
/* It is nobody's but that client's, as before a probe. */
bool vmad_watches_may_take_over_conn(struct vmad_watches *watches, struct xdp_owner *owner, unsigned client,
                                     const struct vmad_watched *watched);
/* 0 in what a minisock's key does not have. */
struct vma_flow_key vmad_watched_key(const struct vmad_watched *watched);
/* What is due. `owner`: whose flows are looked at. How long to the next, ms; -1: nothing is to come. */
int vmad_watches_tick(struct vmad_watches *watches, struct xdp_owner *owner);
uint32_t vmad_watches_count(const struct vmad_watches *watches); /* noted, or still to be probed */

#endif
