/*
 * flow - what the XDP program and user space say to each other: the flow map's keys and values, and the counters that
 * spare a lookup. The BPF program includes it too, so it uses plain kernel types only.
 *
 * Threads: the owner writes the maps, the program reads them on any core. The program also writes `recents` (the owner
 * does, too, for a connection that it moves), `fragments` and `over`. Clients write only the table of claims
 * (claims.h).
 */
#ifndef VMA_NIC_XDP_FLOW_H
#define VMA_NIC_XDP_FLOW_H

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
#define XDP_FLOW_MINISOCK 2u /* of TCP: nobody receives any more; what comes is told to the owner, and goes nowhere */
#define XDP_FLOW_IN_GRACE 4u /* of a listener: what begins anew is the kernel's, and what has begun is not yet */
#define XDP_FLOW_GROUP 8u    /* of a listener: several slots share it */
#define XDP_FLOW_YIELDS                                                                                                \
	16u /* of a connection that nothing but a block of ports covers: if the kernel has it, it is the               \
	       kernel's */
#define XDP_FLOW_SPREAD 32u /* of UDP: several slots of one process have it, and `group` names them */

struct xdp_flow_value {
	__u32 slot; /* of a minisock: its number, never 0, and never that of another */
	__u32 flags;
	union {
		__u32 over;  /* of a minisock, the program's: the number of a minisock that is over */
		__u32 group; /* of a listener with XDP_FLOW_GROUP; with XDP_FLOW_SPREAD */
	};
};

/*
 * With XDP_FLOW_SPREAD only the buckets of a group count.
 *
 * Listener groups: a TCP listener that several slots serve (the workers of one service). The hash of a segment's
 * addresses and ports picks a bucket, and the bucket names the slot that gets a new connection. The owner writes the
 * buckets, the program reads them: each is one byte, so that a reader finds the old slot or the new one.
 *
 * Buckets change while connections are new, so the program notes in `recents` which slot has got a SYN: one cache
 * line of places per hash, in which the oldest makes way. A connection has a flow of its own within 0.1 s of its
 * accept; it loses its place earlier only if eight others with the same line have begun meanwhile, and goes by its
 * bucket then. A place is also void if the slot has been rented anew since.
 */
#define XDP_GROUPS 256
#define XDP_GROUP_BUCKETS 128
#define XDP_NO_SLOT 0xff
struct xdp_group {
	__u64 eligible;    /* slots that get new connections, a bit each */
	__u8 default_slot; /* slot of segments that `recents` does not know; XDP_NO_SLOT: by bucket */
	__u8 reserved[7];
	__u8 slot[XDP_GROUP_BUCKETS];
};

#define XDP_RECENT_WAYS 8
#define XDP_RECENT_LINES 4096
#define XDP_FLOW_SLOTS 64
struct xdp_recent_connections {
	__u64 at[XDP_RECENT_WAYS]; /* xdp_recent_connection_pack(); 0: free */
};

static inline __attribute__((always_inline)) __u64 xdp_flow_key_hash(const struct xdp_flow_key *key)
{
	__u64 hash = (__u64)key->peer << 32 | (__u64)key->peer_port << 16 | key->local_port;

	hash ^= ((__u64)key->local << 16 ^ key->vlan) * 0x9e3779b97f4a7c15ull;
	hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93ull;
	hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93ull;
	return hash ^ hash >> 32;
}

static inline __attribute__((always_inline)) __u32 xdp_recent_line_of_hash(__u64 hash)
{
	return (__u32)hash % XDP_RECENT_LINES;
}

static inline __attribute__((always_inline)) __u32 xdp_group_bucket(__u64 hash)
{
	return hash >> 16 & (XDP_GROUP_BUCKETS - 1);
}

/* Hash 32 bits, time 16, rental 10, slot 6. rental: counts how often the slot was rented; time: see
 * xdp_recent_time_units. */
static inline __attribute__((always_inline)) __u64 xdp_recent_connection_pack(__u64 hash, __u32 rental, __u32 slot,
                                                                              __u32 now)
{
	return hash >> 32 << 32 | (__u64)(now & 0xffff) << 16 | (rental & 0x3ff) << 6 | slot;
}

/* Units of 4 ms, which come again after four minutes: what is as old as that looks new, and makes way later. */
static inline __attribute__((always_inline)) __u32 xdp_recent_time_units(__u64 monotonic_ns)
{
	return monotonic_ns >> 22 & 0xffff;
}

static inline __attribute__((always_inline)) int xdp_recent_has_hash(__u64 recent, __u64 hash)
{
	return recent != 0 && recent >> 32 == hash >> 32;
}

static inline __attribute__((always_inline)) __u32 xdp_recent_connection_age(__u64 recent, __u32 now)
{
	return recent == 0 ? 0x10000 : (now - (__u32)(recent >> 16)) & 0xffff;
}

static inline __attribute__((always_inline)) __u32 xdp_recent_unpack_slot(__u64 recent)
{
	return recent & (XDP_FLOW_SLOTS - 1);
}

/* The place for a connection: its own, or the oldest. */
static inline __attribute__((always_inline)) __u32
xdp_recent_find_or_oldest(const volatile struct xdp_recent_connections *line, __u64 hash, __u32 now)
{
	__u32 place = 0, oldest = 0;

	for (__u32 i = 0; i < XDP_RECENT_WAYS; i++) {
		const __u64 recent = line->at[i];
		const __u32 age = xdp_recent_has_hash(recent, hash) ? 0x20000 : xdp_recent_connection_age(recent, now);

		if (age > oldest) {
			oldest = age;
			place = i;
		}
	}
	return place;
}

/* What the program tells the owner of a segment that met a minisock. Numbers in host order. */
struct xdp_minisock_segment {
	struct xdp_flow_key key; /* the segment's own, also where the minisock is a 3-tuple */
	__u32 number;            /* the minisock's */
	__u32 seq, ack;
	__u32 ts_val, ts_ecr; /* with has_ts */
	__u16 payload_bytes;
	__u8 tcp_flags;
	__u8 has_ts : 1;
	__u8 is_over : 1; /* no segment: another connection has begun under the minisock's key */
};

/*
 * The program's own: where the fragments of a datagram go, for the second in which they are waited for
 * (ring_fragments.h). The first fragment of another datagram with the same id takes the entry over.
 */
struct xdp_fragment_key {
	__u32 peer, local;
	__u16 id, vlan; /* id in network order */
};

#define XDP_FRAGMENT_KERNELS 0xffffffffu /* in place of a slot */
#define XDP_FRAGMENT_NS 1000000000ull
struct xdp_fragment_value {
	__u64 since_ns;
	__u32 slot;
	__u32 reserved;
};

/* A MAC as one number, the first byte uppermost. */
static inline __attribute__((always_inline)) __u64 mac_bytes_to_u64(const __u8 bytes[6])
{
	return (__u64)bytes[0] << 40 | (__u64)bytes[1] << 32 | (__u64)bytes[2] << 24 | (__u64)bytes[3] << 16 |
	       (__u64)bytes[4] << 8 | bytes[5];
}

/* How many flows of each kind there are, [0] UDP, [1] TCP: the program does not look for what does not exist. */
struct xdp_flow_counts {
	__u32 exact[2];    /* 5-tuples */
	__u32 wildcard[2]; /* 3-tuples */
	__u32 blocks;      /* of local ports */
	__u32 claims;      /* 1: there may be some (claims.h) */
};

/*
 * Flows of UDP that clients put there by themselves, without a question to the owner: claims.h says when, and in which
 * order the two words are written. A bucket is looked through by address, port and VLAN.
 */
struct xdp_claim {
	__u64 name;          /* local address, port, VLAN; 0: free; below 2^16: being taken, by slot + 1 */
	__u64 peer_and_slot; /* peer and its port (0: any), slot */
};

#define XDP_CLAIM_WAYS 2
#define XDP_CLAIM_BUCKETS 8192
struct xdp_claim_bucket {
	struct xdp_claim way[XDP_CLAIM_WAYS];
};

/* Addresses and ports in network order. The address is never 0. */
static inline __attribute__((always_inline)) __u64 xdp_claim_pack_local_name(__u32 local, __u16 local_port, __u16 vlan)
{
	return (__u64)local << 32 | (__u64)local_port << 16 | vlan;
}

static inline __attribute__((always_inline)) __u64 xdp_claim_pack_peer_and_slot(__u32 peer, __u16 peer_port, __u16 slot)
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
struct xdp_single_flow_fast_path {
	__u64 version;
	__u32 local;
	__u16 local_port;
	__u16 vlan;
	__u32 slot;
	__u32 reserved;
};

#endif
