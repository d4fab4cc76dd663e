/*
 * net_priv.h - the tables of one namespace.
 *
 * Threads: everything is touched with `lock`. The exceptions are the fields at the end of struct vma_net, which are
 * marked: any thread reads or writes them without it. Functions of this header need the lock, unless they say "any
 * thread".
 */
#ifndef VMA_NET_PRIV_H
#define VMA_NET_PRIV_H

#include <pthread.h>
#include <signal.h>
#include <sys/queue.h>

#include "request_queue.h"
#include "path_table.h"
#include "plan.h"
#include "want_board.h"

struct nl_sock;
struct net_msg_prefix;

#define NET_NEIGH_BUCKETS 1024
#define NET_PATHS_IDLE_MAX 16384          /* cached without a holder; beyond this the least used is replaced */
#define NET_PATH_IDLE_NS 60000000000u     /* a path that nobody held or found for so long leaves the cache */
#define NET_RECHECK_NS 30000000000u       /* paths in use are asked for again: path MTU, redirects, sysctls */
#define NET_SETTLE_NS 20000000u           /* see net_mark_all_paths_dirty in net.c */
#define NET_PROBE_TIMEOUT_NS 10000000000u /* a stale neighbour is probed again when nothing came of it */

struct link {
	struct vma_net_link link;
	LIST_ENTRY(link) all;
	bool seen; /* by the dump that is running */
};

struct addr {
	struct vma_net_addr addr;
	LIST_ENTRY(addr) all;
	bool seen;
};

LIST_HEAD(path_list, path);

/* A neighbour that paths go through. The kernel's entry as of the last answer. */
struct neigh {
	struct vma_net_neigh neigh;
	LIST_ENTRY(neigh) bucket;
	struct path_list paths;
	uint64_t probed_ns;
	uint32_t failures; /* resolutions that have failed and were begun again */
	uint32_t arps;     /* arp.c: requests sent */
	uint64_t arp_ns;   /* when the next is due; 0: none */
	LIST_ENTRY(neigh) arping;
};

struct path {
	struct vma_net_path pub; /* first: the two are one object */
	ck_stack_entry_t request_entry;
	struct vma_net_key key;
	struct vma_net_template plan; /* without the neighbour's part */
	struct vma_net_template now;  /* as published, for published_key */
	struct vma_net_key published_key;
	enum plan_need need;
	struct neigh *neigh;
	LIST_ENTRY(path) same_neigh;
	TAILQ_ENTRY(path) all; /* in use, or free */
	struct vma_net_watch *watches;
	uint32_t refs;
	bool in_table;
	bool dirty; /* the route is to be asked for again */
	uint64_t idle_since_ns;
};
TAILQ_HEAD(path_queue, path);

struct vma_net {
	pthread_mutex_t lock;
	struct vma_net_attr attr;
	struct nl_sock *query, *events;
	int epoll_fd, wake_fd, timer_fd;
	int probe_fd;  /* UDP, for probes without CAP_NET_ADMIN; -1: none */
	int arp_fd;    /* for ARP requests of our own; -1: the kernel makes them */
	int policy_fd; /* fib_multipath_hash_policy; -1: none */

	LIST_HEAD(link_list, link) links;
	LIST_HEAD(addr_list, addr) addrs;
	LIST_HEAD(neigh_bucket, neigh) neighs[NET_NEIGH_BUCKETS];
	struct neigh_bucket arping; /* stale neighbours that ARP requests are being sent to */
	struct path_queue paths, free_paths;
	uint32_t paths_idle;
	bool any_dirty;
	bool resync_due;
	uint32_t route_events;          /* taken in by the present call */
	uint64_t settle_ns, recheck_ns; /* when due, 0: not; CLOCK_MONOTONIC */
	uint64_t armed_ns;              /* what the timer is set to */

	_Atomic bool by_ports;                /* lookups may depend on ports; read by any thread */
	_Atomic uint64_t generation, resyncs; /* read by any thread */
	struct path_table table;              /* read by any thread */
	struct request_queue requests;        /* pushed by any thread */
	struct want_board wants;              /* written by any thread */
};

/*
 * Whoever holds the lock is not interrupted: a signal handler that called in again would wait for itself, one that
 * jumped away, or a cancellation, would leave the lock taken.
 */
struct net_hold {
	sigset_t signals;
	int cancel;
};
void net_lock(struct vma_net *net, struct net_hold *hold);
void net_unlock(struct vma_net *net, const struct net_hold *hold);

/* net.c */
uint64_t net_now_ns(void);
void net_wake(const struct vma_net *net); /* any thread, also a signal handler */
/* What the kernel has announced so far, and what follows from it for the paths. Events and requests handled. */
int net_process_events_and_timers(struct vma_net *net);
void net_arm_timer_for_next_work(struct vma_net *net); /* the timer, after what may need it earlier */

/* tables.c: true if something changed */
bool net_tables_apply_link(struct vma_net *net, const struct vma_net_link *link, bool gone);
bool net_tables_apply_addr(struct vma_net *net, const struct vma_net_addr *addr, bool gone);
const struct vma_net_link *net_tables_find_link(struct vma_net *net, uint32_t ifindex);
int net_tables_sync(struct vma_net *net); /* dumps both */
void net_tables_fini(struct vma_net *net);

/* route.c */
int net_route_query(struct vma_net *net, const struct vma_net_key *key, struct vma_net_route *out);

/* rules.c */
int net_open_multipath_hash_policy_file(void); /* policy_fd */
void net_update_whether_routing_uses_ports(
        struct vma_net *net); /* whether ports matter: after a change of rules, and now and then */
struct vma_net_key net_route_key_without_unused_ports(const struct vma_net *net,
                                                      const struct vma_net_key *key); /* without what does not */

/* neigh.c */
struct neigh *net_neigh_find_or_add(struct vma_net *net, uint32_t ifindex, uint8_t family, const uint8_t address[16]);
struct neigh *net_neigh_find(struct vma_net *net, const struct vma_net_neigh *like);
void net_neigh_drop_if_unused(struct neigh *neigh);
void net_neigh_refresh_from_kernel(struct vma_net *net, struct neigh *neigh); /* asks the kernel */
int net_neigh_make_kernel_resolve(struct vma_net *net, uint32_t ifindex, uint8_t family, const uint8_t address[16]);
int net_open_neigh_probe_udp_socket(void); /* probe_fd */
/* A resolution that has failed is begun again, as often as VMA_NEIGH_NUM_ERR_RETRIES says. */
void net_neigh_reprobe_if_failed(struct vma_net *net, struct neigh *neigh);

/* arp.c */
int net_arp_open(void); /* arp_fd; -EPERM */
/* False: the kernel is to confirm it. */
bool net_arp_start_confirming_neigh(struct vma_net *net, struct neigh *neigh);
void net_arp_stop_for_neigh(struct neigh *neigh);
void net_arp_process_due_neighs(struct vma_net *net, uint64_t now_ns);
uint64_t net_arp_next_due_ns(const struct vma_net *net); /* 0: never */

/* path.c */
void net_path_free(struct vma_net *net, struct path *path); /* nobody holds it */
int net_paths_create_requested(struct vma_net *net);
void net_paths_fini(struct vma_net *net);

/* path_update.c */
void net_path_update(struct vma_net *net, struct path *path); /* asks for the route */
void net_paths_republish_for_neigh(struct neigh *neigh);      /* publishes for all its paths */
void net_path_drop_neigh(struct path *path);
void net_paths_mark_all_dirty(struct vma_net *net);
void net_paths_update_dirty(struct vma_net *net);
int net_paths_process_requests(struct vma_net *net);
void net_paths_sweep(struct vma_net *net, uint64_t now_ns);

#endif
