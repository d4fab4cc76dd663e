/*
 * steer - the XDP program: packets of our flows go to their AF_XDP socket, everything else goes to the kernel,
 * untouched.
 *
 * Never ours: anything but Ethernet (with at most one visible 802.1Q tag) + IPv4 + UDP or TCP; fragments of segments; a
 * packet that matches no flow. A tag that the driver has taken out of the packet is invisible here: such a packet
 * counts as untagged.
 *
 * A TCP listener's flow takes every segment that no flow of one peer takes. Two kinds of segments are left to the
 * kernel. The first are of a 5-tuple for which the kernel itself has a socket that is more than a listener. The others
 * bring the kernel's SYN cookie back, so their connection is the kernel's.
 *
 * A listener's flow may be a group's: its slots share new connections by a hash, and each keeps what it has been given.
 *
 * A listener's flow that *is in grace* has been taken back. The kernel gets the SYNs, and so all connections to come.
 * Existing connections that have no flows of their own yet go on.
 *
 * A block of local ports takes what is left of TCP for these ports. It takes nothing for which the kernel has a socket,
 * even a listener. The client that has the block has no rules for its new connections. If only the block covers a
 * connection's own flow, the client has shown no socket for the port. So the flow gives way to a connection of the
 * kernel's.
 *
 * A UDP flow of any peer may be spread over several slots of one process by a hash.
 *
 * UDP ports that clients have claimed (claims.h) are looked for behind the flows of one peer and before those of any.
 *
 * Fragments of a datagram follow its first one, which has the ports. So what is sent in order arrives in order
 * (ring_fragments.c puts them together). If a later one comes before the first, all of that datagram are the kernel's.
 *
 * A *minisock* is the flow that is left of a process, or of a connection, that has gone. The kernel knows nothing of it
 * and would answer with RST. The owner is told what has come and answers in its place (owner/minisocks.c). Segments of
 * a new beginning are not the minisock's. These are a SYN for which there is a listener, and segments of a connection
 * that the kernel has. A SYN without a listener is the minisock's as well: it may be the probe of the peer's owner
 * (owner/resets.c).
 *
 * The kernel may not take a packet for its own, by its MAC, its source or its IP options. Such a packet is not ours
 * either, even if there is a flow for it: packet_owner_of() has the list. The kernel refuses it, and may be told
 * otherwise (route_localnet, accept_local). But the kernel knows nothing of TCP's connections and listeners here. It
 * might take such a segment all the same, and would answer with RST. A MAC may have just become the interface's, or the
 * kernel may allow a source route. Such a segment is dropped.
 *
 * All headers of interest lie in the first fragment of a multi-buffer packet, the only one that may be read directly.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

struct ports {
	__be16 source, dest;
};

struct tcp_head {
	struct ports ports;
	__be32 seq, ack;
	__u8 words; /* of the header, in the upper four bits */
	__u8 flags;
	__be16 window, sum, urgent;
};

struct tcp_stamps { /* as nearly everybody sends them: alone, behind two NOPs */
	__be32 kind, val, ecr;
};

#define TCP_SYN 0x02
#define TCP_ACK 0x10
#define TCP_STAMPS_KIND 0x0101080a

/* What the search for a flow needs of a packet besides its key. */
struct packet {
	const struct iphdr *ip;
	const void *l4, *end;
	__u32 l4_bytes; /* as the IP header says; 0: it says less than its own length */
	int is_tcp;
};

/*
 * Not preallocated: the kernel then pays for the flows that exist (65536 preallocated ones are 6 MB on every
 * interface), lookups cost the same, and elements are allocated in the bpf(2) call of user space only, never by a
 * packet.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct xdp_flow_key);
	__type(value, struct xdp_flow_value);
} flows SEC(".maps");

/* Socket of (slot, device queue) at slot * queues + queue; sized by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sockets SEC(".maps");

/* Mapped by every client. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, XDP_CLAIM_BUCKETS);
	__type(key, __u32);
	__type(value, struct xdp_claim_bucket);
} claims SEC(".maps");

/* Datagrams of which fragments are under way. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct xdp_fragment_key);
	__type(value, struct xdp_fragment_value);
} fragments SEC(".maps");

/* Listener groups, and which of their slots has got the SYN of a connection that has no flow yet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, XDP_GROUPS);
	__type(key, __u32);
	__type(value, struct xdp_group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, XDP_RECENT_LINES);
	__type(key, __u32);
	__type(value, struct xdp_recent_connections);
} recents SEC(".maps");

/* Segments that met a minisock. When it is full they are lost, as on a wire. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} segments SEC(".maps");

/* By what the kernel looks at before it asks for ports. */
enum packet_owner { OURS, OF_KERNEL, OF_NOBODY };

const volatile __u32 queues = 1; /* set before loading: a constant to the verifier and the JIT */
struct xdp_flow_counts counts;   /* written by user space, and so is */
volatile struct xdp_single_flow_fast_path front;
__u32 rentals[XDP_FLOW_SLOTS]; /* how often each slot was rented */
volatile __u64 mac;            /* the interface's, mac_bytes_to_u64(); 0: not known, everybody's is */

/* To which the kernel would give a segment of this 5-tuple: to be released. */
static __always_inline struct bpf_sock *kernel_socket_of_key(struct xdp_md *ctx, const struct xdp_flow_key *key)
{
	struct bpf_sock_tuple tuple = {
	        .ipv4.saddr = key->peer,
	        .ipv4.daddr = key->local,
	        .ipv4.sport = key->peer_port,
	        .ipv4.dport = key->local_port,
	};

	return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* Its state; 0: there is none. */
static __always_inline __u32 kernel_socket_state(struct xdp_md *ctx, const struct xdp_flow_key *key)
{
	struct bpf_sock *sk = kernel_socket_of_key(ctx, key);
	__u32 state;

	if (!sk)
		return 0;
	state = sk->state;
	bpf_sk_release(sk);
	return state;
}

static __always_inline int is_connection_state(__u32 state)
{
	return state != 0 && state != BPF_TCP_LISTEN;
}

/* The kernel has what a yielding flow is for. Its last one in TIME_WAIT keeps nobody from the next. */
static __always_inline int kernel_has_connection(struct xdp_md *ctx, const struct xdp_flow_key *key)
{
	const __u32 state = kernel_socket_state(ctx, key);

	return is_connection_state(state) && state != BPF_TCP_TIME_WAIT;
}

/*
 * The kernel has a connection of this 5-tuple, or will have by this segment: it brings back a SYN cookie, which is all
 * that there is of a request that was answered so while the kernel's listener had the SYNs. Who has sent none for two
 * minutes says no at once; else one segment of ours in some hundred million looks like a cookie, and is lost.
 */
static __always_inline int segment_is_of_kernel_connection(struct xdp_md *ctx, const struct xdp_flow_key *key,
                                                           const struct packet *packet)
{
	const struct tcp_head *tcp = packet->l4;
	struct bpf_sock *sk = kernel_socket_of_key(ctx, key);
	int is;

	if (!sk)
		return 0;
	is = sk->state != BPF_TCP_LISTEN;
	if (!is && (const void *)(tcp + 1) <= packet->end)
		is = bpf_tcp_check_syncookie(sk, (void *)packet->ip, sizeof(*packet->ip), (void *)tcp, sizeof(*tcp)) ==
		     0;
	bpf_sk_release(sk);
	return is;
}

/* What becomes of it where no socket is in the map (any more) is `otherwise`. */
static __always_inline int redirect_to_slot(struct xdp_md *ctx, __u32 slot, __u32 otherwise)
{
	return (int)bpf_redirect_map(&sockets, slot * queues + ctx->rx_queue_index, otherwise);
}

static __always_inline int match_fast_path_flow(const struct xdp_flow_key *key, __u32 *slot)
{
	const __u64 version = front.version;

	if (!version || front.local != key->local || front.local_port != key->local_port || front.vlan != key->vlan)
		return 0;
	*slot = front.slot;
	return front.version == version;
}

/*
 * The slot that has taken the port, if it is to have this packet. Between two looks that find the same name,
 * `peer_and_slot` was that name's: it is written after the name of before has gone and before the name comes (as for
 * the front, that takes loads in program order). A slot that was there a moment ago may be the answer; it drops what it
 * has no flow for.
 */
static __always_inline int match_claimed_flow(const struct xdp_flow_key *key, __u32 *slot)
{
	const __u64 name = xdp_claim_pack_local_name(key->local, key->local_port, key->vlan);
	const __u64 peer = xdp_claim_pack_peer_and_slot(key->peer, key->peer_port, 0);
	const __u32 index = xdp_claim_bucket_of(key->local, key->local_port);
	const volatile struct xdp_claim_bucket *bucket;

	if (!counts.claims)
		return 0;
	bucket = bpf_map_lookup_elem(&claims, &index);
	if (!bucket)
		return 0;
	for (int i = 0; i < XDP_CLAIM_WAYS; i++) {
		__u64 peer_and_slot;

		if (bucket->way[i].name != name)
			continue;
		peer_and_slot = bucket->way[i].peer_and_slot;
		*slot = (__u16)peer_and_slot;
		peer_and_slot -= *slot;
		if (bucket->way[i].name == name && (peer_and_slot == 0 || peer_and_slot == peer))
			return 1;
	}
	return 0;
}

/* The flow that takes what no flow of one peer does. */
static __always_inline struct xdp_flow_value *find_flow_of_any_peer(struct xdp_flow_key *key, int is_tcp)
{
	const __u32 peer = key->peer;
	const __u16 peer_port = key->peer_port;
	struct xdp_flow_value *flow;

	if (!counts.wildcard[is_tcp])
		return 0;
	key->peer = 0;
	key->peer_port = 0;
	flow = bpf_map_lookup_elem(&flows, key);
	key->peer = peer;
	key->peer_port = peer_port;
	return flow;
}

static __always_inline struct xdp_flow_value *find_port_block_flow(const struct xdp_flow_key *key)
{
	struct xdp_flow_key first = {
	        .local = key->local,
	        .local_port = key->local_port & bpf_htons((__u16) ~(XDP_FLOW_PORTS - 1)),
	        .vlan = key->vlan,
	        .proto = XDP_FLOW_TCP_PORTS,
	};

	return counts.blocks ? bpf_map_lookup_elem(&flows, &first) : 0;
}

/* ---- minisocks ---- */

static __always_inline int is_initial_syn(const struct tcp_head *tcp)
{
	return (tcp->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* The same of a segment that may be cut. */
static __always_inline int may_be_syn_or_truncated(const struct packet *packet)
{
	const struct tcp_head *tcp = packet->l4;

	return (const void *)(tcp + 1) > packet->end || is_initial_syn(tcp);
}

static __always_inline void fill_minisock_segment(struct xdp_minisock_segment *out, const struct packet *packet,
                                                  const struct tcp_head *tcp)
{
	const struct tcp_stamps *stamps = (const void *)(tcp + 1);
	const __u32 head_bytes = (tcp->words >> 4) * 4;

	out->seq = bpf_ntohl(tcp->seq);
	out->ack = bpf_ntohl(tcp->ack);
	out->tcp_flags = tcp->flags;
	if (head_bytes < packet->l4_bytes)
		out->payload_bytes = packet->l4_bytes - head_bytes;
	if (head_bytes >= sizeof(*tcp) + sizeof(*stamps) && (const void *)(stamps + 1) <= packet->end &&
	    stamps->kind == bpf_htonl(TCP_STAMPS_KIND)) {
		out->has_ts = 1;
		out->ts_val = bpf_ntohl(stamps->val);
		out->ts_ecr = bpf_ntohl(stamps->ecr);
	}
}

/* `tcp` NULL: the minisock is over. */
static __always_inline void report_minisock_segment(const struct xdp_flow_key *key, __u32 number,
                                                    const struct packet *packet, const struct tcp_head *tcp)
{
	struct xdp_minisock_segment *out = bpf_ringbuf_reserve(&segments, sizeof(*out), 0);

	if (!out)
		return;
	__builtin_memset(out, 0, sizeof(*out));
	out->key = *key;
	out->number = number;
	if (tcp)
		fill_minisock_segment(out, packet, tcp);
	else
		out->is_over = 1;
	bpf_ringbuf_submit(out, 0);
}

/* A connection of the kernel's, or a SYN for one who listens, in the kernel or here. */
static __always_inline int segment_belongs_to_other_socket(struct xdp_md *ctx, struct xdp_flow_key *key,
                                                           const struct tcp_head *tcp)
{
	const __u32 state = kernel_socket_state(ctx, key);
	const struct xdp_flow_value *wildcard;

	if (!is_initial_syn(tcp) || state != 0)
		return is_initial_syn(tcp) || is_connection_state(state);
	wildcard = find_flow_of_any_peer(key, 1);
	return wildcard && !(wildcard->flags & XDP_FLOW_MINISOCK);
}

/*
 * True: the segment is the minisock's. A SYN that carries an ACK begins nothing by itself: who is answered by it has a
 * socket in the kernel, or a flow that has taken the minisock's place before its SYN left.
 *
 * The minisock's end is written into the value, where it lies: deleting the entry could hit the flow that the owner is
 * just putting in its place. `flow` may have left the map meanwhile, and its memory may be another entry's already.
 * That does no harm: user space replaces entries whole and never changes them; `over` is nobody's to write but the
 * program's, means nothing to a flow that is no minisock, and to another minisock only if it is its own number.
 */
static __always_inline int match_minisock(struct xdp_md *ctx, struct xdp_flow_key *key, struct xdp_flow_value *flow,
                                          const struct packet *packet)
{
	const struct tcp_head *tcp = packet->l4;
	const __u32 number = flow->slot;

	if (flow->over == number)
		return 0;
	if ((const void *)(tcp + 1) > packet->end)
		return 1; /* and cut: nobody is told */
	if (segment_belongs_to_other_socket(ctx, key, tcp)) {
		flow->over = number;
		report_minisock_segment(key, number, packet, 0);
		return 0;
	}
	report_minisock_segment(key, number, packet, tcp);
	return 1;
}

/*
 * The same of a listener's minisock, which stays as it is. A kernel's listener on its port may use SYN cookies, and
 * know more connections than it has sockets. A SYN is the kernel's in any case: with no listener its answer is RST,
 * too, and comes at once; what the owner is told of would be lost if a new listener took the minisock's place
 * meanwhile.
 */
static __always_inline int handle_segment_of_listener_minisock(struct xdp_md *ctx, const struct xdp_flow_key *key,
                                                               const struct xdp_flow_value *flow,
                                                               const struct packet *packet)
{
	const struct tcp_head *tcp = packet->l4;

	if ((const void *)(tcp + 1) > packet->end)
		return 1;
	if (is_initial_syn(tcp) || kernel_socket_state(ctx, key))
		return 0;
	report_minisock_segment(key, flow->slot, packet, tcp);
	return 1;
}

/* ---- listener groups ---- */

/* The slot that got the connection's SYN, or XDP_NO_SLOT. */
static __always_inline __u32 recent_connections_find(const volatile struct xdp_recent_connections *line, __u64 hash)
{
	for (int i = 0; i < XDP_RECENT_WAYS; i++) {
		const __u64 recent = line->at[i];
		const __u32 slot = xdp_recent_unpack_slot(recent);

		if (xdp_recent_has_hash(recent, hash) && (recent >> 6 & 0x3ff) == (rentals[slot] & 0x3ff))
			return slot;
	}
	return XDP_NO_SLOT;
}

static __always_inline void recent_connections_add(volatile struct xdp_recent_connections *line, __u64 hash, __u32 slot)
{
	const __u32 now = xdp_recent_time_units(bpf_ktime_get_ns());
	const __u32 place = xdp_recent_find_or_oldest(line, hash, now) & (XDP_RECENT_WAYS - 1);

	line->at[place] = xdp_recent_connection_pack(hash, rentals[slot & (XDP_FLOW_SLOTS - 1)], slot, now);
}

/*
 * A SYN goes to the slot that has got it before, if that slot still takes new connections, so that a repeated one finds
 * what the first has made. A slot without socket has just ended: its connections' segments go where new ones would. If
 * that is the same slot, because the owner has not heard of its end yet, a SYN is the kernel's listener's. Any other
 * segment is dropped and comes again: the kernel has no connection for it, and would answer with RST.
 */
static __noinline int steer_to_group_member(struct xdp_md *ctx, const struct xdp_flow_key *key, __u32 index, int begins)
{
	const __u64 hash = xdp_flow_key_hash(key);
	const __u32 at = xdp_recent_line_of_hash(hash), bucket = xdp_group_bucket(hash);
	const volatile struct xdp_group *group = bpf_map_lookup_elem(&groups, &index);
	volatile struct xdp_recent_connections *line = bpf_map_lookup_elem(&recents, &at);
	__u32 noted, slot;

	if (!group || !line)
		return XDP_PASS;
	noted = recent_connections_find(line, hash);
	if (noted == XDP_NO_SLOT && !begins)
		noted = group->default_slot;
	if (noted < XDP_FLOW_SLOTS && (!begins || (group->eligible >> noted & 1)) &&
	    redirect_to_slot(ctx, noted, XDP_ABORTED) == XDP_REDIRECT)
		return XDP_REDIRECT;
	slot = group->slot[bucket] & (XDP_FLOW_SLOTS - 1);
	if (begins)
		recent_connections_add(line, hash, slot);
	return redirect_to_slot(ctx, slot, begins ? XDP_PASS : XDP_DROP);
}

/* ---- UDP flows that several slots of one process have ---- */

static __always_inline __u32 slot_by_flow_hash(const struct xdp_flow_key *key, const struct xdp_flow_value *flow)
{
	const volatile struct xdp_group *group;
	__u32 index = flow->group;

	if (!(flow->flags & XDP_FLOW_SPREAD))
		return flow->slot;
	group = bpf_map_lookup_elem(&groups, &index);
	return group ? group->slot[xdp_group_bucket(xdp_flow_key_hash(key))] & (XDP_FLOW_SLOTS - 1) : flow->slot;
}

/* ---- all flows ---- */

static __always_inline int steer_packet(struct xdp_md *ctx, struct xdp_flow_key *key, const struct packet *packet)
{
	struct xdp_flow_value *flow;
	__u32 slot;

	if (counts.exact[packet->is_tcp]) {
		flow = bpf_map_lookup_elem(&flows, key);
		if (flow && flow->flags & XDP_FLOW_YIELDS && kernel_has_connection(ctx, key))
			return XDP_PASS;
		if (flow && !(flow->flags & XDP_FLOW_MINISOCK))
			/* Of a connection the kernel knows nothing: whose socket goes in this moment has a minisock. */
			return redirect_to_slot(ctx, flow->slot, packet->is_tcp ? XDP_DROP : XDP_PASS);
		if (flow && match_minisock(ctx, key, flow, packet))
			return XDP_DROP;
	}
	if (!packet->is_tcp && (match_fast_path_flow(key, &slot) || match_claimed_flow(key, &slot)))
		return redirect_to_slot(ctx, slot, XDP_PASS);
	flow = find_flow_of_any_peer(key, packet->is_tcp);
	if (!flow && packet->is_tcp) {
		flow = find_port_block_flow(key);
		return flow && !kernel_socket_state(ctx, key) ? redirect_to_slot(ctx, flow->slot, XDP_PASS) : XDP_PASS;
	}
	if (!flow)
		return XDP_PASS;
	if (flow->flags & XDP_FLOW_MINISOCK)
		return handle_segment_of_listener_minisock(ctx, key, flow, packet) ? XDP_DROP : XDP_PASS;
	if (flow->flags & XDP_FLOW_IN_GRACE && may_be_syn_or_truncated(packet))
		return XDP_PASS;
	if (flow->flags & XDP_FLOW_LISTENER && segment_is_of_kernel_connection(ctx, key, packet))
		return XDP_PASS;
	if (flow->flags & XDP_FLOW_GROUP)
		return steer_to_group_member(ctx, key, flow->group, may_be_syn_or_truncated(packet));
	return redirect_to_slot(ctx, slot_by_flow_hash(key, flow), XDP_PASS);
}

/* ---- what is nobody's, whatever its ports ---- */

static __always_inline __u32 ipv4_first_octet(__be32 address)
{
	return bpf_ntohl(address) >> 24;
}

static __always_inline __u64 dest_mac(const struct ethhdr *eth)
{
	return bpf_be64_to_cpu(*(const __u64 *)eth) >> 16;
}

/* What nearly all packets are. */
static __always_inline int frame_has_usual_addresses(const struct ethhdr *eth, const struct iphdr *ip)
{
	const __u32 first = ipv4_first_octet(ip->saddr);

	return dest_mac(eth) == mac && first - 1 < 223 && first != 127 && ip->saddr != ip->daddr && ip->ihl == 5;
}

/* As the kernel, from 5.3 on. That of another address of this host is not seen. */
static __always_inline int is_martian(const struct iphdr *ip)
{
	const __u32 first = ipv4_first_octet(ip->saddr);

	return ip->saddr == 0 || ip->saddr == 0xffffffff || first == 127 || first >> 4 == 0xe || ip->saddr == ip->daddr;
}

/*
 * The kernel drops source routes, unless accept_source_route is set, and answers what it cannot read by ICMP. Byte
 * after byte, and not option after option: with each at a place that it knows, the verifier is soon through.
 */
static __always_inline enum packet_owner packet_owner_by_ip_options(const struct iphdr *ip, const void *end)
{
	const __u32 total = ip->ihl * 4;
	__u32 next = 0;

#pragma clang loop unroll(disable)
	for (__u32 at = sizeof(*ip); at < sizeof(*ip) + MAX_IPOPTLEN; at++) {
		const __u8 *option = (const void *)ip + at;

		if (at >= total)
			return OURS;
		if ((const void *)(option + 2) > end) /* never: ports are behind them */
			return OF_KERNEL;
		if (at < next)
			continue;
		next = at + 1;
		if (option[0] == IPOPT_END)
			return OURS;
		if (option[0] == IPOPT_NOOP)
			continue;
		next = at + option[1];
		if (option[1] < 2 || next > total)
			return OF_KERNEL;
		if (option[0] == IPOPT_LSRR || option[0] == IPOPT_SSRR)
			return OF_NOBODY;
	}
	return OURS;
}

/*
 * A datagram in a frame to several is taken, as by the kernel (drop_unicast_in_l2_multicast unset), but no segment. The
 * interface of a VLAN may have a MAC of its own, which is not known here.
 *
 * Not static: so the verifier goes through it once, and not for each way that leads here. The result is enum whose.
 */
__noinline int packet_owner_of(struct xdp_md *ctx, __u32 ip_off)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	const struct iphdr *ip = data + (ip_off & 31);

	if ((const void *)(eth + 1) > end || (const void *)(ip + 1) > end || is_martian(ip))
		return OF_KERNEL;
	if (eth->h_dest[0] & 1) {
		if (ip->protocol == IPPROTO_TCP)
			return OF_KERNEL;
	} else if (ip_off == sizeof(*eth) && mac && dest_mac(eth) != mac) {
		return OF_NOBODY;
	}
	return packet_owner_by_ip_options(ip, end);
}

/* ---- fragments of datagrams ---- */

/* As steer_packet(), of what carries no segment. */
static __always_inline int find_slot_of_datagram(struct xdp_flow_key *key, __u32 *slot)
{
	struct xdp_flow_value *flow = counts.exact[0] ? bpf_map_lookup_elem(&flows, key) : 0;

	if (!flow && (match_fast_path_flow(key, slot) || match_claimed_flow(key, slot)))
		return 1;
	if (!flow)
		flow = find_flow_of_any_peer(key, 0);
	if (flow)
		*slot = slot_by_flow_hash(key, flow);
	return flow != 0;
}

/* The first fragment: its ports are looked for as a whole datagram's. */
static __always_inline int slot_of_first_fragment(const struct iphdr *ip, const void *end, __u16 vlan, __u32 *slot)
{
	struct xdp_flow_key key = {.peer = ip->saddr, .local = ip->daddr, .vlan = vlan, .proto = IPPROTO_UDP};
	const __u32 ip_bytes = ip->ihl * 4;
	const struct ports *ports;

	if (ip_bytes < sizeof(*ip))
		return 0;
	ports = (const void *)ip + ip_bytes;
	if ((const void *)(ports + 1) > end)
		return 0;
	key.peer_port = ports->source;
	key.local_port = ports->dest;
	return find_slot_of_datagram(&key, slot);
}

/*
 * A slot that has another user since the first fragment came may get the rest, which it drops: it has no flow for it.
 * An entry that makes room for others before its time leaves the rest to the kernel, and the datagram is lost, as when
 * the kernel has no room for its fragments.
 */
static __noinline int steer_fragment(struct xdp_md *ctx, __u32 ip_off, __u16 vlan)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	const struct iphdr *ip = data + (ip_off & 31);
	struct xdp_fragment_value *known, fresh = {.slot = XDP_FRAGMENT_KERNELS};
	struct xdp_fragment_key key = {.vlan = vlan};

	if ((const void *)(eth + 1) > end || (const void *)(ip + 1) > end || ip->protocol != IPPROTO_UDP ||
	    !(counts.exact[0] | counts.wildcard[0] | counts.claims))
		return XDP_PASS;
	if (!frame_has_usual_addresses(eth, ip) && packet_owner_of(ctx, ip_off) != OURS)
		return XDP_PASS;
	key.peer = ip->saddr;
	key.local = ip->daddr;
	key.id = ip->id;
	fresh.since_ns = bpf_ktime_get_ns();
	known = bpf_map_lookup_elem(&fragments, &key);
	if (known && fresh.since_ns - known->since_ns > XDP_FRAGMENT_NS)
		known = 0;
	if (known && known->slot == XDP_FRAGMENT_KERNELS)
		return XDP_PASS;
	if (ip->frag_off & bpf_htons(0x1fff)) {
		if (known)
			return redirect_to_slot(ctx, known->slot, XDP_PASS);
	} else if (!slot_of_first_fragment(ip, end, vlan, &fresh.slot)) {
		if (!known)
			return XDP_PASS; /* and the rest finds nothing */
		fresh.slot = XDP_FRAGMENT_KERNELS;
	}
	if (bpf_map_update_elem(&fragments, &key, &fresh, BPF_ANY) != 0 || fresh.slot == XDP_FRAGMENT_KERNELS)
		return XDP_PASS;
	return redirect_to_slot(ctx, fresh.slot, XDP_PASS);
}

/* A segment that neither is to have: the kernel gets what no flow has to do with. */
static __noinline int drop_if_flow_exists(struct xdp_md *ctx, struct xdp_flow_key *key)
{
	const struct xdp_flow_value *flow = bpf_map_lookup_elem(&flows, key);

	if (flow && !(flow->flags & XDP_FLOW_YIELDS))
		return XDP_DROP;
	if (!flow && !find_flow_of_any_peer(key, 1) && !find_port_block_flow(key))
		return XDP_PASS;
	return is_connection_state(kernel_socket_state(ctx, key)) ? XDP_PASS : XDP_DROP;
}

SEC("xdp")
int vma_steer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	const struct iphdr *ip = data + sizeof(*eth);
	const struct ports *ports;
	struct xdp_flow_key key = {0};
	struct packet packet;
	__be16 proto;
	__u32 ip_bytes, total_bytes;

	/* A socket of another queue's number would make the redirect drop the packet instead of passing it. */
	if (ctx->rx_queue_index >= queues || (void *)(ip + 1) > end)
		return XDP_PASS;
	proto = eth->h_proto;
	if (proto == bpf_htons(ETH_P_8021Q)) {
		const struct vlan_tag *tag = (const void *)(eth + 1);

		ip = (const void *)(tag + 1);
		if ((void *)(ip + 1) > end)
			return XDP_PASS;
		proto = tag->proto;
		key.vlan = bpf_ntohs(tag->tci) & 0xfff;
	}
	if (proto != bpf_htons(ETH_P_IP) || ip->version != 4)
		return XDP_PASS;
	if (ip->frag_off & bpf_htons(0x3fff))
		return steer_fragment(ctx, (const void *)ip - data, key.vlan);
	if (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_TCP)
		return XDP_PASS;
	ip_bytes = ip->ihl * 4;
	total_bytes = bpf_ntohs(ip->tot_len);
	if (ip_bytes < sizeof(*ip))
		return XDP_PASS;
	ports = (const void *)ip + ip_bytes;
	if ((void *)(ports + 1) > end)
		return XDP_PASS;
	key.peer = ip->saddr;
	key.local = ip->daddr;
	key.peer_port = ports->source;
	key.local_port = ports->dest;
	key.proto = ip->protocol;
	packet.ip = ip;
	packet.l4 = ports;
	packet.end = end;
	packet.l4_bytes = total_bytes > ip_bytes ? total_bytes - ip_bytes : 0;
	packet.is_tcp = ip->protocol == IPPROTO_TCP;
	if (!frame_has_usual_addresses(eth, ip)) {
		const enum packet_owner packet_owner = packet_owner_of(ctx, (const void *)ip - data);

		if (packet_owner == OF_NOBODY && packet.is_tcp)
			return drop_if_flow_exists(ctx, &key);
		if (packet_owner != OURS)
			return XDP_PASS;
	}
	return steer_packet(ctx, &key, &packet);
}

char _license[] SEC("license") = "Dual BSD/GPL";
