/*
 * watch - a connection to vmad of a process that owns no queue pair of vmad's. The process only tells which TCP
 * connections it has by rules of an RDMA card. If the process is killed, vmad probes their peers (vmad/watches.h). When
 * it ends in good order, vmad answers for them (vmad/card.h).
 *
 * Nothing depends on it: without a vmad, or with an old one, all calls are in vain.
 *
 * Threads: one at a time. `begin` is exempt: it touches only memory that no other thread knows yet.
 * Progress: begin waits for vmad's answer, VMAD_WATCH_BEGIN_MS at most, and export longer; the others never wait.
 * Memory: begin allocates, end frees.
 * Example: verbs/peers.c.
 */
#ifndef VMA_NIC_CLIENT_WATCH_H
#define VMA_NIC_CLIENT_WATCH_H

#include <stdbool.h>

#include <vma/nic.h>

#include "connecting.h"

#define VMAD_WATCH_BEGIN_MS 200

int vmad_watch_create_right_fd(unsigned ifindex,
                               const char *ifname); /* the proof for begin: a descriptor to keep, or -errno */
/* 0, and the list still has it; -ECONNREFUSED: none runs; -EPERM, -EOPNOTSUPP: it does not take this process, or does
 * not know of watches. Without the list's lock held. */
int vmad_watch_connect(unsigned ifindex, const char *ifname, int right_fd, struct vmad_connecting *connecting,
                       struct vmad_client **out);
void vmad_watch_disconnect(struct vmad_client *client);
int vmad_watch_fd(const struct vmad_client *client); /* readable: vmad has gone, or breaks the protocol */
/* A connection of TCP (5-tuple). False: vmad has no room for the message now, or has gone; it is not told. */
bool vmad_watch_add(struct vmad_client *client, const struct vma_flow_key *key);
bool vmad_watch_del(struct vmad_client *client, const struct vma_flow_key *key);
bool vmad_watch_forget_all(struct vmad_client *client); /* all that was added */
/* Connections for which vmad answers from now on, by rules of its own: the caller's may end. 0; -EOPNOTSUPP: it does
 * not, or has gone. Waits for its answers, three seconds at most. */
int vmad_export_minisocks_of_verbs_card(struct vmad_client *client, const struct vma_flow_minisock *minisocks,
                                        unsigned n);

#endif
