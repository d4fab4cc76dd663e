/*
 * claims - flows of UDP that a client puts before the XDP program by itself, in a table that both have mapped.
 *
 * Asking the owner for a rule takes longer than the whole life of a socket that sends one question and hears one
 * answer. The owner would have to find out that no other client has the flow, and that no kernel socket would receive
 * it. It need not be asked if a socket of the client has the port for itself. Such a socket is bound to the port,
 * without SO_REUSEADDR and SO_REUSEPORT, and no other process knows it. The kernel gives such a port to no other
 * socket, so no other can have a right to the flow. The client sees to that from take to release
 * (VMA_FLOW_PORT_EXCLUSIVE).
 *
 *   client  take:     name 0 -> slot + 1 (compare-and-swap), who, name      then: is it open?   no: release, ask
 *           release:  name -> 0
 *   owner   close:    open -> 0                                             then: is any taken? yes: open -> 1
 *   program           name, who, name again
 *
 * Open: the program is attached, and stays so. Both sides write first and look then, all of it sequentially consistent.
 * If a take and a close meet, at least one sees the other. So no port is taken that the program does not look for.
 *
 * A client that dies in the middle leaves its number in the word. The owner sweeps a dead slot's claims before the slot
 * is rented again. Until then a packet for them finds no socket, and goes on to the kernel. A client that writes here
 * what is not true gets packets of others. So vmad hands the table only to clients with CAP_NET_RAW.
 *
 * Threads: any, of any process.
 * Progress: no call waits.
 * Memory: the program's map, mapped; XDP_CLAIM_BUCKETS buckets.
 * Example: test/test_xdp_claims.c.
 */
#ifndef VMA_NIC_XDP_CLAIMS_H
#define VMA_NIC_XDP_CLAIMS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>

#include "flow.h"

struct xdp_shared;

/* NULL: fd is no such map. */
struct xdp_claim_bucket *xdp_claims_map(int fd);
void xdp_claims_unmap(struct xdp_claim_bucket *claims);

/* The flow's place, which the slot has now; NULL: both are taken, or it is closed. `key` is UDP. */
struct xdp_claim *xdp_claims_add_flow(struct xdp_claim_bucket *claims, struct xdp_shared *shared, uint32_t slot,
                                      const struct vma_flow_key *key);
/* It is another slot's of this client from now on: a packet that comes meanwhile goes to one of the two. */
void xdp_claims_move_to_slot(struct xdp_claim *claim, uint32_t slot);
void xdp_claims_remove_flow(struct xdp_claim *claim);

/* The owner. close: false, some are taken, and it stays open. sweep: the slot's client is dead, or has left. */
void xdp_claims_allow(struct xdp_shared *shared);
bool xdp_claims_forbid_if_none_exist(struct xdp_claim_bucket *claims, struct xdp_shared *shared);
uint32_t xdp_claims_count_all(struct xdp_claim_bucket *claims);                    /* by any slot */
uint32_t xdp_claims_count_of_slot(struct xdp_claim_bucket *claims, uint32_t slot); /* those of the slot */
void xdp_claims_free_of_slot(struct xdp_claim_bucket *claims, uint32_t slot);

#endif
