/*
 * xdp_steer - the XDP program: packets of our flows go to their AF_XDP socket, everything else to the kernel,
 * untouched.
 *
 * What is never ours: anything but Ethernet (with at most one visible 802.1Q tag) + IPv4 + UDP or TCP; every fragment,
 * because all but the first carry no ports and only the kernel can put them together; a packet that matches no flow.
 * A tag that the driver has taken out of the packet is invisible here: such a packet counts as untagged.
 *
 * A TCP listener's flow takes every segment that no flow of one peer takes, but not those of a 5-tuple for which the
 * kernel itself has a socket that is more than a listener: that connection is the kernel's.
 *
 * All headers of interest lie in the first fragment of a multi-buffer packet, the only one that may be read directly.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "xdp_flow.h"

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

struct ports {
	__be16 source, dest;
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

const volatile __u32 queues = 1; /* set before loading: a constant to the verifier and the JIT */
struct xdp_flow_counts counts;   /* written by user space, and so is */
volatile struct xdp_flow_front front;

/* Does the kernel have a connection (in any state but LISTEN) with exactly this 5-tuple? */
static __always_inline int kernel_has_connection(struct xdp_md *ctx, const struct xdp_flow_key *key)
{
	struct bpf_sock_tuple tuple = {
	        .ipv4.saddr = key->peer,
	        .ipv4.daddr = key->local,
	        .ipv4.sport = key->peer_port,
	        .ipv4.dport = key->local_port,
	};
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	int connection;

	if (!sk)
		return 0;
	connection = sk->state != BPF_TCP_LISTEN;
	bpf_sk_release(sk);
	return connection;
}

/* bpf_redirect_map falls back to XDP_PASS where no socket is in the map (any more). */
static __always_inline int to_slot(struct xdp_md *ctx, __u32 slot)
{
	return (int)bpf_redirect_map(&sockets, slot * queues + ctx->rx_queue_index, XDP_PASS);
}

static __always_inline int is_front(const struct xdp_flow_key *key, __u32 *slot)
{
	const __u64 version = front.version;

	if (!version || front.local != key->local || front.local_port != key->local_port || front.vlan != key->vlan)
		return 0;
	*slot = front.slot;
	return front.version == version;
}

static __always_inline int steer(struct xdp_md *ctx, struct xdp_flow_key *key, int is_tcp)
{
	const __u32 peer = key->peer;
	const __u16 peer_port = key->peer_port;
	const struct xdp_flow_value *flow;
	__u32 slot;

	if (counts.exact[is_tcp]) {
		flow = bpf_map_lookup_elem(&flows, key);
		if (flow)
			return to_slot(ctx, flow->slot);
	}
	if (!is_tcp && is_front(key, &slot))
		return to_slot(ctx, slot);
	if (!counts.wild[is_tcp])
		return XDP_PASS;
	key->peer = 0;
	key->peer_port = 0;
	flow = bpf_map_lookup_elem(&flows, key);
	if (!flow)
		return XDP_PASS;
	if (flow->flags & XDP_FLOW_LISTENER) {
		key->peer = peer;
		key->peer_port = peer_port;
		if (kernel_has_connection(ctx, key))
			return XDP_PASS;
	}
	return to_slot(ctx, flow->slot);
}

SEC("xdp")
int vma_steer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ethhdr *eth = data;
	const struct iphdr *ip = data + sizeof(*eth);
	const struct ports *ports;
	struct xdp_flow_key key = {0};
	__be16 proto;
	__u32 ip_bytes;

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
	if (proto != bpf_htons(ETH_P_IP) || ip->version != 4 || (ip->frag_off & bpf_htons(0x3fff)))
		return XDP_PASS;
	if (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_TCP)
		return XDP_PASS;
	ip_bytes = ip->ihl * 4;
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
	return steer(ctx, &key, ip->protocol == IPPROTO_TCP);
}

char _license[] SEC("license") = "Dual BSD/GPL";
