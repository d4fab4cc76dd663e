/*
 * dst.h - what send.c asks of dst.c: destinations, and the options and ring contexts that they are made of.
 *
 *   control path ── udp_dst_rebuild_after_change ──> tx (options), dst (connected)  all are replaced whole, under dst_lock,
 *   internal thread ── dst_task ────> dst_more[], ring_ctxs                and read without a lock, inside
 *   sender: cached and current? ── yes ──> send
 *             └─ no: udp_dst_find makes the first of a slot, or one in another's place; else one on the stack, and asks
 *
 * Threads: any thread reads, inside. A thread that replaces holds dst_lock, which is a leaf.
 */
#ifndef VMA_UDP_DST_H
#define VMA_UDP_DST_H

#include "udp_priv.h"

struct udp_tx_options {
	struct vma_retired retired;
	uint32_t seq; /* udp_sock.options_seq that this one goes with */
	struct sockaddr_in local, peer;
	uint32_t oif, mc_oif, mark, uid;
	uint32_t mc_source;
	uint8_t ttl, mc_ttl, tos;
	bool mc_loop, df;
	bool by_os; /* nothing of this socket is sent offloaded */
};

struct udp_tx_ring_ctxs {
	struct vma_retired retired;
	uint32_t n;
	struct {
		uint32_t ifindex;
		bool left; /* the socket sends on another one from now on: it is put with this object */
		struct vma_ring_ctx *ring_ctx;
	} at[];
};

/* What the control messages of one datagram say in place of the socket's options. */
struct udp_tx_cmsgs {
	uint32_t source; /* IP_PKTINFO; 0: the route's, also for a socket that is bound to an address */
	uint32_t oif;    /* IP_PKTINFO; 0: the socket's */
	uint8_t ttl;     /* IP_TTL; 0: the socket's */
	uint8_t tos;     /* IP_TOS */
	bool has_source, has_tos;
};
/* False: there are others, or the kernel would refuse them: the kernel sends. */
bool udp_tx_cmsgs_read(struct udp_tx_cmsgs *out, int family, const struct msghdr *msg);

static inline struct sockaddr_in udp_sockaddr_of_peer_key(uint64_t key)
{
	return (struct sockaddr_in){
	        .sin_family = AF_INET, .sin_port = (uint16_t)key, .sin_addr.s_addr = (uint32_t)(key >> 16)};
}

enum { UDP_DST_SLOTS = 8 };
static inline unsigned udp_dst_cache_slot_of_key(uint64_t key)
{
	return (unsigned)(key * UINT64_C(0x9e3779b97f4a7c15) >> 61);
}
_Static_assert(UDP_DST_SLOTS == 1 << 3, "the upper three bits");

/* Whether the template is still right. */
static inline bool udp_dst_is_current(const struct udp_sock *sock, const struct udp_dst *dst)
{
	return dst->options_seq == atomic_load_explicit(&sock->options_seq, memory_order_relaxed) &&
	       !vma_net_path_changed(dst->path, dst->version);
}

/* A rule leaves what is sent to this address to the kernel. Not of a connected socket's peer: connect asks for that. */
bool udp_dst_is_left_to_os_by_rule_slow(struct udp_sock *sock, const struct vma_engine *engine,
                                        const struct sockaddr_in *to) __attribute__((cold));
static inline bool udp_dst_is_left_to_os_by_rule(struct udp_sock *sock, const struct vma_engine *engine,
                                                 const struct sockaddr_in *to)
{
	return vma_rules_may_leave_to_os(engine->rules, VMA_RULES_UDP_SENDER) &&
	       udp_dst_is_left_to_os_by_rule_slow(sock, engine, to);
}

static inline bool udp_dst_is_for_address_key(const struct udp_dst *dst, uint64_t key)
{
	return udp_peer_key(dst->to.sin_addr.s_addr, dst->to.sin_port) == key;
}

/* What the kernel would look the route up with. */
struct vma_net_key udp_dst_route_lookup_key(const struct udp_tx_options *tx, const struct sockaddr_in *to,
                                            bool connected);
/* dst_lock. What was made of options and ring contexts is made anew. */
void udp_dst_rebuild_all(struct udp_sock *sock, struct vma_engine *engine);
/* SO_MAX_PACING_RATE: bytes per second, 0: none. Not with dst_lock. */
void udp_set_pacing_rate(struct udp_sock *sock, uint64_t bytes_per_sec);
/* The ring context that the socket has for an interface, NULL: none yet. */
struct vma_ring_ctx *udp_tx_ring_ctx_of_ifindex(struct udp_sock *sock, uint32_t ifindex);
/* A destination of this path; ring context NULL: none is at hand, or the OS sends there. */
void udp_dst_build(struct udp_dst *dst, struct vma_engine *engine, const struct udp_tx_options *tx,
                   const struct sockaddr_in *to, const struct vma_net_template *path, struct vma_ring_ctx *ring_ctx);
/* dst_lock. A destination for one datagram, with its ring context made and its path not held. False: the OS sends. */
bool udp_dst_build_uncached(struct udp_sock *sock, struct vma_engine *engine, const struct udp_tx_options *tx,
                            const struct sockaddr_in *to, struct udp_dst *own);
/* dst_lock. Puts the destination into its slot, with its path held and its ring context made. */
void udp_dst_create_and_cache(struct udp_sock *sock, struct vma_engine *engine, const struct udp_tx_options *tx,
                              uint64_t key);

/*
 * The destination `key` (0: the peer that it is connected to), current: a cached one, or made in *own, whose path is
 * not held. NULL: the OS sends this one.
 */
const struct udp_dst *udp_dst_find(struct udp_sock *sock, uint64_t key, struct udp_dst *own);
/* The same for a datagram with control messages, always in *own: its neighbour needs no probe by the sender. */
const struct udp_dst *udp_dst_find_with_cmsgs(struct udp_sock *sock, uint64_t key, const struct udp_tx_cmsgs *cmsgs,
                                              struct udp_dst *own);
/* A stale neighbour is to be confirmed. */
void udp_dst_request_path_probe(struct udp_sock *sock, const struct udp_dst *dst) __attribute__((cold));

#endif
