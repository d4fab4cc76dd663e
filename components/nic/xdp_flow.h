/*
 * xdp_flow - what the XDP program and user space say to each other: the flow map's keys and values, and the counters
 * that spare a lookup. Included by the BPF program too, so plain kernel types only.
 */
#ifndef VMA_XDP_FLOW_H
#define VMA_XDP_FLOW_H

#include <linux/types.h>

/*
 * A flow as a packet shows it. A 3-tuple has peer and peer_port 0. 16 bytes without padding, so that the hash of the
 * map runs over few words; IPv6 will have a map of its own.
 */
struct xdp_flow_key {
	__u32 peer;       /* source address of the packet, network order */
	__u32 local;      /* destination address: unicast or multicast group */
	__u16 peer_port;  /* network order */
	__u16 local_port; /* network order */
	__u16 vlan;       /* VLAN id in host order, 0: untagged */
	__u8 proto;
	__u8 reserved;
};

/* `proto` of a block of local ports of TCP; local_port is its first, a multiple of their number. */
#define XDP_FLOW_TCP_PORTS 0xfd
#define XDP_FLOW_PORTS 256

#define XDP_FLOW_LISTENER 1u
#define XDP_FLOW_HEIR 2u   /* of TCP: nobody receives any more; what comes is told to the owner, and goes nowhere */
#define XDP_FLOW_FADING 4u /* of a listener: what begins anew is the kernel's, and what has begun is not yet */

struct xdp_flow_value {
	__u32 slot; /* of a heir: its number, never 0, and never that of another */
	__u32 flags;
	__u32 over; /* the program's: the number of a heir that is over */
};

/* What the program tells the owner of a segment that met a heir. Numbers in host order. */
struct xdp_heir_segment {
	struct xdp_flow_key key; /* the segment's own, also where the heir is a 3-tuple */
	__u32 number;            /* the heir's */
	__u32 seq, ack;
	__u32 ts_val, ts_ecr; /* with has_ts */
	__u16 payload_bytes;
	__u8 tcp_flags;
	__u8 has_ts : 1;
	__u8 is_over : 1; /* no segment: another connection has begun under the heir's key */
};

/* A MAC as one number, the first byte uppermost. */
static inline __attribute__((always_inline)) __u64 xdp_flow_mac(const __u8 bytes[6])
{
	return (__u64)bytes[0] << 40 | (__u64)bytes[1] << 32 | (__u64)bytes[2] << 24 | (__u64)bytes[3] << 16 |
	       (__u64)bytes[4] << 8 | bytes[5];
}

/* How many flows of each kind there are, [0] UDP, [1] TCP: the program does not look for what does not exist. */
struct xdp_flow_counts {
	__u32 exact[2]; /* 5-tuples */
	__u32 wild[2];  /* 3-tuples */
	__u32 blocks;   /* of local ports */
	__u32 claims;   /* 1: there may be some (xdp_claims.h) */
};

/*
 * Flows of UDP that clients put there by themselves, without a question to the owner: xdp_claims.h says when, and in
 * which order the two words are written. A bucket is looked through by address, port and VLAN.
 */
struct xdp_claim {
	__u64 name; /* local address, port, VLAN; 0: free; below 2^16: being taken, by slot + 1 */
	__u64 who;  /* peer and its port (0: any), slot */
};

#define XDP_CLAIM_WAYS 2
#define XDP_CLAIM_BUCKETS 8192
struct xdp_claim_bucket {
	struct xdp_claim way[XDP_CLAIM_WAYS];
};

/* Addresses and ports in network order. The address is never 0. */
static inline __attribute__((always_inline)) __u64 xdp_claim_name(__u32 local, __u16 local_port, __u16 vlan)
{
	return (__u64)local << 32 | (__u64)local_port << 16 | vlan;
}

static inline __attribute__((always_inline)) __u64 xdp_claim_who(__u32 peer, __u16 peer_port, __u16 slot)
{
	return (__u64)peer << 32 | (__u64)peer_port << 16 | slot;
}

/* Of one address, ports that follow each other have buckets of their own. */
static inline __attribute__((always_inline)) __u32 xdp_claim_bucket_of(__u32 local, __u16 local_port)
{
	return ((__u32)(__u16)(local_port << 8 | local_port >> 8) + (local * 0x9e3779b1u >> 19)) % XDP_CLAIM_BUCKETS;
}

/*
 * One UDP 3-tuple, compared before the map is asked: most interfaces have just one flow that matters at a time, and a
 * comparison costs a tenth of a hashed lookup. `version` is 0 while there is none or it is being written, and never
 * the same twice; a reader that finds it unchanged after its look has read one entry whole. That takes loads in program
 * order, which a BPF program cannot ask for: so user space fills it in on x86 only.
 */
struct xdp_flow_front {
	__u64 version;
	__u32 local;
	__u16 local_port;
	__u16 vlan;
	__u32 slot;
	__u32 reserved;
};

#endif
