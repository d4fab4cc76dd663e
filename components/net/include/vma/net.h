/*
 * net - the kernel's answers about how to reach a destination, followed live, as header templates.
 *
 *   key (dst, src, oif, tos, mark, uid, ports)
 *     │ RTM_GETROUTE: rules, tables, source, multipath are the kernel's own decision
 *     v
 *   route ── oif ──> link (MAC, MTU, flags)          events of links, addresses, routes, rules, next hops
 *     └── gateway or dst ──> neighbour (MAC, state)   and neighbours make the paths concerned anew
 *     v
 *   path: Ethernet [VLAN] IPv4 template, state, MTU, version ──> data path, without locks
 *
 * Functions return 0 or a count, or a negative errno. Addresses are 16 bytes in network order with a family. IPv4 uses
 * the first four, the rest is zero. AF_INET6 gives -EAFNOSUPPORT for now.
 *
 * Threads: any thread may call anything but create and destroy. One lock guards the tables. Calls of the data path
 *          (changed, read, find, want, ask, probe, recheck) take no lock, and a signal handler may make them. While a
 *          thread holds the lock, its signals (but see `callers_hold_signals`) and its cancellation are put off.
 *          Watches are called with the lock held.
 * Progress: control calls (get, route, link, neigh, ...) ask the kernel, a few microseconds each. Calls of the data
 *           path do not wait; a read that meets two updates of the same path starts again. One thread (the internal
 *           one) polls vma_net_fd and calls vma_net_process_events. Events, requests of the data path and due timers are
 *           handled there and in the control calls.
 * Memory: create allocates. A path without a holder stays in the cache, and is reused after a minute without use. Its
 *         memory stays mapped until destroy, so find needs no reclamation scheme. fork: a child has inherited the
 *         sockets and would steal its parent's events. It destroys its copy and creates its own. Destroying touches
 *         nothing of the parent's, if no thread of the parent was inside.
 * Example: test/test_live.c; test/priv_net.c.
 */
#ifndef VMA_NET_H
#define VMA_NET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vma_net;

struct vma_net_attr {
	uint32_t event_bytes; /* socket buffer for events, 0: 1 MB; when it overruns, everything is read anew */
	/*
	 * All who call hold signal handlers that would call in, or jump away, back themselves: the lock is then taken
	 * without the two system calls that block them, which would be most of what a path costs that is known already.
	 */
	bool callers_hold_signals;
	uint32_t mtu_max; /* no path has more (VMA_MTU); 0: as link and route say */
	/*
	 * A stale neighbour in use is confirmed by ARP requests of ours, `uc_arps` to itself and then one to all, so
	 * far apart; that needs CAP_NET_RAW. Else by the kernel.
	 */
	bool sends_arps;
	uint32_t uc_arps, uc_arp_delay_msec;
	uint32_t failed_retries; /* a resolution that fails is begun again so often, before senders are told */
};

/* Of the network namespace that the calling thread is in. No privileges needed. attr may be NULL. */
int vma_net_create(const struct vma_net_attr *attr, struct vma_net **out);
void vma_net_destroy(struct vma_net *net); /* no other thread inside; paths held are gone */

/* All that it holds open, for who must know them. Fills up to max, returns how many there are. */
unsigned vma_net_fds(const struct vma_net *net, int *fds, unsigned max);
/* Readable when vma_net_process_events has something to do. */
int vma_net_fd(const struct vma_net *net);
/* Takes in what has happened; never waits. The number of events and requests, or -errno of a failed resync. */
int vma_net_process_events(struct vma_net *net);

/* Moves with every change of links, addresses, routes or rules (not of neighbours). Any thread, no lock. */
uint64_t vma_net_generation(const struct vma_net *net);
/* How often the event socket overran and everything was read anew. */
uint64_t vma_net_resyncs(const struct vma_net *net);

/* ---- interfaces and addresses ---- */

struct vma_net_link {
	uint32_t ifindex;
	uint32_t flags;   /* IFF_UP, IFF_RUNNING, IFF_LOOPBACK, IFF_BROADCAST, IFF_MULTICAST, ... of <net/if.h> */
	uint32_t mtu;     /* largest L3 packet, bytes */
	uint32_t master;  /* bridge or bond that it is a port of, 0: none */
	uint32_t lower;   /* interface below it in this namespace (vlan, macvlan), 0: none */
	uint16_t hw_type; /* ARPHRD_*; MACs are valid for ARPHRD_ETHER (and LOOPBACK) */
	uint16_t vlan;    /* kind "vlan" with 802.1Q tags: the id, else 0 */
	uint8_t mac[6];
	uint8_t broadcast[6];
	char name[16], kind[16]; /* "veth", "macvlan", ...; "": a device of its own, or not told */
};

/* -ENODEV: there is none. link_known: as of what was heard by the last control call or process, for who has just made
 * one. */
int vma_net_link_cached(struct vma_net *net, uint32_t ifindex, struct vma_net_link *out);
int vma_net_get_link(struct vma_net *net, uint32_t ifindex, struct vma_net_link *out);
int vma_net_link_by_name(struct vma_net *net, const char *name, struct vma_net_link *out);
/* Fills up to max, returns how many there are. */
int vma_net_links(struct vma_net *net, struct vma_net_link *out, unsigned max);

struct vma_net_addr {
	uint32_t ifindex;
	uint8_t family, prefix_len, scope; /* RT_SCOPE_* */
	bool secondary;
	uint8_t address[16];
	uint8_t peer[16]; /* point to point: the other end; else the address itself */
};

/* Addresses of one interface, or of all (ifindex 0); fills up to max, returns how many there are. */
int vma_net_addrs(struct vma_net *net, uint32_t ifindex, struct vma_net_addr *out, unsigned max);

/* ---- routes ---- */

/*
 * What a socket asks with; all that the kernel's decision may depend on. Equal keys share a path, and of UDP those that
 * differ in ports alone, while no rule looks at ports and no route is chosen by them; bytes that are not used are zero.
 * The caller translates its socket: oif from SO_BINDTODEVICE or IP_UNICAST_IF, for multicast oif and src also from
 * IP_MULTICAST_IF, src from bind or IP_PKTINFO (zero: the kernel chooses), mark from SO_MARK. Sockets with
 * SO_DONTROUTE, IP_TRANSPARENT or IP options belong to the OS: their lookups cannot be asked for.
 */
struct vma_net_key {
	uint8_t dst[16];
	uint8_t src[16];
	uint32_t oif, mark, uid;
	uint16_t sport_be, dport_be;
	uint8_t family, proto; /* AF_INET; IPPROTO_UDP or IPPROTO_TCP, 0: any */
	uint8_t tos;
	uint8_t flags; /* enum vma_net_key_flags */
	uint32_t zero;
};
_Static_assert(sizeof(struct vma_net_key) == 56, "no padding: compared and hashed as bytes");

enum vma_net_key_flags {
	/*
	 * As connect() looks up, not as an unconnected sendto(): with src zero the kernel looks up twice, the second
	 * time with the source that the first one chose, so rules and multipath hashes see it.
	 */
	VMA_NET_KEY_CONNECT = 1 << 0,
};

struct vma_net_route {
	uint8_t type; /* RTN_UNICAST, RTN_LOCAL, RTN_BROADCAST, RTN_MULTICAST */
	uint8_t family;
	uint8_t gateway_family; /* 0: on-link; AF_INET6 is possible for an IPv4 route */
	bool encap;             /* the kernel would put the packet into a tunnel */
	uint32_t oif, table;
	uint32_t mtu;              /* the route's metric or what path MTU discovery found, 0: the link's */
	uint16_t advmss, initcwnd; /* metrics for TCP, 0: none; bytes, segments */
	bool quickack;
	uint8_t src[16];
	uint8_t gateway[16];
};

/*
 * Asks the kernel, now. Its refusals come back as the errno that connect() or sendto() of its own socket would give:
 * -ENETUNREACH (no route; src is not an address of this host), -EHOSTUNREACH (unreachable), -EACCES (prohibit), -EINVAL
 * (blackhole), -ENODEV (no such oif). A lookup is not remembered; paths are what remembers.
 */
int vma_net_query_route(struct vma_net *net, const struct vma_net_key *key, struct vma_net_route *out);

/* ---- neighbours ---- */

struct vma_net_neigh {
	uint32_t ifindex;
	uint16_t state; /* NUD_* of <linux/neighbour.h>; 0: the kernel has no entry */
	uint8_t family;
	uint8_t mac_len; /* 0: not known, else 6 */
	uint8_t address[16];
	uint8_t mac[6];
};

/* The kernel's entry, asked now. -ENOENT: there is none. */
int vma_net_read_neigh_from_kernel(struct vma_net *net, uint32_t ifindex, uint8_t family, const void *address,
                                   struct vma_net_neigh *out);
/*
 * Makes the kernel resolve the neighbour, or confirm it when its entry is stale, as if it had a packet for it. With
 * CAP_NET_ADMIN by NTF_USE: nothing but ARP goes out. Without, by an empty UDP datagram to the neighbour's discard port
 * (9), on that interface: the kernel queues it, resolves, and sends it. Does not wait for the result.
 */
int vma_net_make_kernel_resolve_neigh(struct vma_net *net, uint32_t ifindex, uint8_t family, const void *address);

/* ---- paths ---- */

enum vma_net_path_state {
	VMA_NET_READY,     /* the template is complete */
	VMA_NET_RESOLVING, /* the neighbour's MAC is not known (yet): see below */
	VMA_NET_FAILED,    /* the neighbour does not answer; error is EHOSTUNREACH */
	VMA_NET_USE_OS,    /* send through the OS; reason says why */
	VMA_NET_ERROR,     /* the kernel's socket would refuse with `error` */
};

/* X(NAME, "text"): why traffic on a path is the OS's. */
#define VMA_NET_REASONS(X)                                                                                             \
	X(NONE, "")                                                                                                    \
	X(LOCAL, "the destination is this host")                                                                       \
	X(NO_LINK, "the interface is not in this network namespace")                                                   \
	X(LINK_DOWN, "the interface is down or has no carrier")                                                        \
	X(NOT_ETHERNET, "the interface is not Ethernet")                                                               \
	X(ENCAP, "the route puts packets into a tunnel")                                                               \
	X(GATEWAY_FAMILY, "the gateway is of another address family")                                                  \
	X(ROUTE_TYPE, "the route is of a kind that only the kernel serves")                                            \
	X(NOT_ASKED, "the kernel could not be asked for the route")

enum vma_net_reason {
#define X(name, text) VMA_NET_REASON_##name,
	VMA_NET_REASONS(X)
#undef X
};
const char *vma_net_reason_text(enum vma_net_reason reason);

enum vma_net_template_flags {
	VMA_NET_CONFIRM = 1 << 0,  /* the neighbour is stale: usable, but who sends calls vma_net_path_probe */
	VMA_NET_QUICKACK = 1 << 1, /* the route's metric */
};

/*
 * Everything a sender needs, in one consistent copy. While RESOLVING or FAILED the first packet is not lost if the
 * sender does as the kernel's own socket: a datagram goes through the OS shadow (the kernel queues it, resolves, and
 * reports failures to sockets that want them), a TCP segment is kept by its sender, who calls
 * vma_net_path_start_neigh_resolution (in the data path: _probe) and sends when a watch tells READY, or gives up with
 * `error` on FAILED.
 */
struct vma_net_template {
	uint8_t bytes[40]; /* Ethernet, perhaps a VLAN tag, IPv4 header with source and destination, all else zero */
	uint8_t len;       /* of these bytes; 0 unless READY */
	uint8_t ip_off;    /* where the IPv4 header starts */
	uint8_t state;     /* enum vma_net_path_state */
	uint8_t reason;    /* enum vma_net_reason */
	uint8_t type;      /* RTN_*: RTN_BROADCAST needs SO_BROADCAST */
	uint8_t flags;     /* enum vma_net_template_flags */
	uint16_t vlan;     /* id of the tag, 0: none */
	uint32_t ifindex;  /* the route's interface */
	uint32_t nic;      /* the interface to send the frame through: below a VLAN interface the one it lies on */
	uint32_t mtu;      /* largest L3 packet: the route's or the link's, whichever is smaller */
	int32_t error;     /* positive errno, 0: none */
	uint8_t src[16];   /* source: the key's, or the kernel's choice */
	uint8_t next_hop[16];
	uint32_t version;          /* of the path, when this was read */
	uint16_t advmss, initcwnd; /* the route's metrics, 0: none */
};
#define VMA_NET_TEMPLATE_WORDS (sizeof(struct vma_net_template) / 8)
#define VMA_NET_KEY_WORDS (sizeof(struct vma_net_key) / 8)
_Static_assert(sizeof(struct vma_net_template) == 104, "whole words, no padding");

/*
 * What a connected socket holds. The front is read by every send, the slots after a change only. Version v's template
 * lies in slot v % 2; see path_slot.h for the argument.
 */
struct vma_net_path {
	_Atomic uint32_t version;
	_Atomic uint32_t requested; /* what the data path wants: the first to ask leaves the request */
	_Atomic uint32_t used;      /* found since the cache was last swept */
	_Alignas(64) struct {
		_Atomic uint64_t words[VMA_NET_TEMPLATE_WORDS + VMA_NET_KEY_WORDS];
	} slot[2];
};
_Static_assert(offsetof(struct vma_net_path, slot) == 64, "updates of the slots leave the front's line alone");

/*
 * The path for this key, shared with others of the same key; asks the kernel if it is new. Always succeeds in telling
 * what is: a refusal is a path in state VMA_NET_ERROR, which becomes READY when a route appears. -EAFNOSUPPORT,
 * -ENOMEM, -EINVAL (unused bytes that are not zero).
 */
int vma_net_path_get(struct vma_net *net, const struct vma_net_key *key, struct vma_net_path **out);
/* The path remains in the cache for a while. */
void vma_net_path_put(struct vma_net *net, struct vma_net_path *path);

/*
 * A probe at once, by the caller: a FAILED or RESOLVING that is read afterwards tells of this attempt, not of an
 * earlier one. For connect() of TCP: watch, resolve, read, and wait for the watch unless the path is READY.
 */
int vma_net_path_start_neigh_resolution(struct vma_net *net, struct vma_net_path *path);

/*
 * For senders to many destinations. find: a cached path's template; false: not there. want: have it made by whoever
 * processes; this packet goes through the OS shadow meanwhile. False: not noted (too many at once, or no such key); the
 * next packet tries again. Neither takes a lock nor allocates, so both are for signal handlers too, which get is not.
 */
bool vma_net_find_template(struct vma_net *net, const struct vma_net_key *key, struct vma_net_template *out);
bool vma_net_request_path(struct vma_net *net, const struct vma_net_key *key);
/* As find, for a sender of what find told: ask for a probe or a recheck by key (VMA_NET_ASK_*). No lock. */
enum vma_net_request { VMA_NET_REQUEST_PROBE = 1 << 0, VMA_NET_REQUEST_RECHECK = 1 << 1 };
void vma_net_request_path_check(struct vma_net *net, const struct vma_net_key *key, unsigned what);

/* A consistent copy. */
void vma_net_path_read_template(const struct vma_net_path *path, struct vma_net_template *out);

/* Whether the template with this version is no longer the path's: one relaxed load. */
static inline bool vma_net_path_changed(const struct vma_net_path *path, uint32_t version)
{
	return __builtin_expect(atomic_load_explicit(&path->version, memory_order_relaxed) != version, 0);
}

/*
 * Requests from the data path: leaves them for vma_net_process_events and wakes it; repeated ones cost a load. probe:
 * as vma_net_make_kernel_resolve_neigh for the path's next hop, after VMA_NET_CONFIRM or while resolving. recheck: ask
 * for the route again, after an ICMP error (path MTU and redirects come without an event; paths in use are rechecked
 * twice a minute anyway).
 */
void vma_net_path_probe(struct vma_net *net, struct vma_net_path *path);
void vma_net_path_recheck(struct vma_net *net, struct vma_net_path *path);

/*
 * Called after each change of a path, by the thread that processes, with the lock held: it may read the path and wake
 * somebody, but not call other functions of net. After unwatch returns it does not run and will not.
 * Who watches holds the path.
 */
struct vma_net_watch {
	void (*changed)(struct vma_net_watch *watch, struct vma_net_path *path);
	struct vma_net_watch *next, **prev_next; /* net's own */
};
void vma_net_watch(struct vma_net *net, struct vma_net_path *path, struct vma_net_watch *watch);
void vma_net_unwatch(struct vma_net *net, struct vma_net_watch *watch);

/* One line that says all of it, for logs and tests: "unicast via 10.0.0.1 dev 3 src 10.0.0.2 mtu 1500 ready". */
void vma_net_template_text(const struct vma_net_template *t, char *text, size_t bytes);

#endif
