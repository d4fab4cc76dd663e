/* flows.h - flows.c's functions for udp.c, and those that it needs of options.c and udp.c, besides udp_priv.h. */
#ifndef VMA_UDP_FLOWS_H
#define VMA_UDP_FLOWS_H

#include "udp_priv.h"

/* The shadow's, if the socket has been bound; 0: not yet. */
uint64_t udp_flows_cookie(const struct udp_sock *sock);
void udp_flows_task_init(struct udp_flows *flows);
/*
 * file.lock. Before a fork: child and parent will share the kernel's socket, and either may receive. So the kernel gets
 * everything back, for a second; then the flows are asked for again, and are refused where the other one has come to
 * want them. What is queued becomes a fork queue, which either may read.
 */
void udp_flows_leave_to_kernel_for_a_while(struct udp_sock *sock);
/* Nobody sees the socket any more. */
void udp_flows_destroy(struct udp_sock *sock);
/* In a forked child, its only thread: of each socket, and once. */
void udp_flows_forget_parents_in_fork_child(struct udp_sock *sock);
void udp_flows_reset_ports_in_fork_child(void);

/* options.c: an option is set that only the kernel's receive path serves. file.lock. */
bool udp_receives_by_os(const struct udp_sock *sock);
/* udp.c: into the shared statistics. file.lock. */
void udp_stats_describe(struct udp_sock *sock);
void udp_give_to_kernel(struct udp_sock *sock, enum vma_sock_reason reason); /* file.lock */

#endif
