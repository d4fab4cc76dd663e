/*
 * minisocks - connections whose process has gone. The object's user answers for them until no more segments are to be
 * expected.
 *
 * minisocks.c has their states and lives, minisock_rx.c the answers. The look-up of a minisock for a segment is the
 * user's: the XDP program's map (minisock_map.c), or rules of a card (../vmad/card.c).
 *
 * Threads: one at a time. Progress: no call waits; `put` and `del` as the user's do.
 * Memory: a minisock is allocated, OWNER_MINISOCKS_MAX at most; the oldest of those with the shortest life make way.
 * Example: test/test_minisocks.c, test/test_vmad_card.c.
 */
#ifndef VMA_NIC_OWNER_MINISOCKS_H
#define VMA_NIC_OWNER_MINISOCKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <vma/nic.h>

#define OWNER_FLOW_BUCKETS 4096

static inline unsigned owner_flow_key_bucket(const struct vma_flow_key *key)
{
	const unsigned char *bytes = (const unsigned char *)key;
	uint32_t hash = 2166136261u; /* FNV-1a: control path, and its 40 bytes are soon read */

	for (size_t i = 0; i < sizeof(*key); i++)
		hash = (hash ^ bytes[i]) * 16777619u;
	return hash % OWNER_FLOW_BUCKETS;
}

/* Each state has a list of its own: in each the life is the same, so it is in order. */
enum owner_minisock_state {
	MINISOCK_DELETED,
	MINISOCK_WAITS,
	MINISOCK_PARKED,
	MINISOCK_RESET,
	MINISOCK_FIN_WAIT,
	MINISOCK_TIME_WAIT,
	MINISOCK_STATES
};
#define OWNER_PARKED_NS 10000000000ull /* for a service to start a process anew */
#define OWNER_MINISOCKS_MAX 32768      /* half of the program's map */
#define OWNER_MINISOCK_READS 512       /* segments of one look */

struct owner_parked;

struct owner_minisock {
	struct owner_minisock *next; /* in its bucket */
	TAILQ_ENTRY(owner_minisock) link;
	struct vma_flow_key key; /* of a listener: 3-tuple */
	enum owner_minisock_state state;
	uint32_t number; /* never 0, and never that of another */
	uint32_t snd_nxt, rcv_nxt;
	uint32_t rst_ack; /* of the last RST, and the peer's port */
	uint16_t rst_port_be;
	uint64_t rst_sent_ns, due_ns;
	struct owner_parked *parked; /* of PARKED, and before that: see parked.c */
};
TAILQ_HEAD(owner_minisock_list, owner_minisock);

struct owner_minisocks;
struct owner_minisocks_ops {
	/* What comes for it is told from now on (owner_minisocks_handle_segment): 0 or -errno. in_place: of a flow, or
	 * of another minisock, that is there. */
	int (*put)(struct owner_minisocks *minisocks, const struct owner_minisock *minisock, bool in_place);
	void (*del)(struct owner_minisocks *minisocks, const struct vma_flow_key *key);
	/* NULL where nobody goes on with them after this user: it begins, or its state has changed; it ends. */
	void (*record)(struct owner_minisocks *minisocks, const struct owner_minisock *minisock);
	void (*forget)(struct owner_minisocks *minisocks, struct owner_minisock *minisock);
	/* NULL where none is: a PARKED one's time is over, which is another state from now on. */
	void (*unpark)(struct owner_minisocks *minisocks, struct owner_minisock *minisock, uint64_t now);
};

struct owner_minisocks {
	bool on, is_open; /* on: between init and fini. Others than those ask, and last, only then */
	int fd;           /* raw socket, while is_open */
	unsigned ifindex;
	const char *name; /* of the interface */
	const struct owner_minisocks_ops *ops;
	uint32_t count, last_number;
	uint32_t tokens, reads; /* answers; and segments that one look may still take */
	uint64_t tokens_ns;
	struct owner_minisock_list list[MINISOCK_STATES];
	struct owner_minisock *bucket[OWNER_FLOW_BUCKETS];
};

/* All 0 before. `name` stays. */
void owner_minisocks_init(struct owner_minisocks *minisocks, const struct owner_minisocks_ops *ops, unsigned ifindex,
                          const char *name);
void owner_minisocks_fini(struct owner_minisocks *minisocks); /* none is taken from its place */
/*
 * A connection, or a listener, has a minisock from now on; the numbers are of FIN_WAIT and TIME_WAIT. in_place: its
 * flow has the place, and is not any more; so it is also where no minisock can be had. 0, -ENOMEM, or `put`'s -errno.
 */
int owner_minisock_create(struct owner_minisocks *minisocks, const struct vma_flow_minisock *what,
                          enum owner_minisock_state state, bool in_place, uint64_t now);
/* It has its place already: into the lists. */
void owner_minisock_insert(struct owner_minisocks *minisocks, struct owner_minisock *minisock, uint64_t now);
/* A flow is about to take a minisock's place: there was one. */
bool owner_minisock_end_for_key(struct owner_minisocks *minisocks, const struct vma_flow_key *key);
/* Has room made. False: no minisock is left. */
bool owner_minisock_evict_one(struct owner_minisocks *minisocks);
/* Who had only left has not come back. */
void owner_minisock_reset_waiting(struct owner_minisocks *minisocks, const struct vma_flow_key *key, uint64_t now);
/* The peer has not been heard to have ended it, nor begun anew. True as well without minisocks. */
bool owner_minisock_is_waiting_or_reset(struct owner_minisocks *minisocks, const struct vma_flow_key *key);
void owner_minisocks_expire(struct owner_minisocks *minisocks, uint64_t now);
uint64_t owner_minisocks_due_ns(const struct owner_minisocks *minisocks); /* UINT64_MAX: there is none */
struct owner_minisock *owner_minisock_find(struct owner_minisocks *minisocks, const struct vma_flow_key *key);
void owner_minisock_end(struct owner_minisocks *minisocks, struct owner_minisock *minisock);
uint32_t owner_minisocks_count_in_state(const struct owner_minisocks *minisocks, enum owner_minisock_state state);
/* What a client asks for (VMA_MINISOCK_*); -EINVAL: it may not ask for that. */
int owner_minisock_state_from_message(uint32_t state);
void owner_minisocks_end_all(struct owner_minisocks *minisocks);
void owner_minisock_set_state(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                              enum owner_minisock_state state, uint64_t now);
/* One that was parked before this user, and is so until then. */
void owner_minisock_set_parked_until(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                     uint64_t due_ns, uint64_t now);
/* One segment for a minisock: 0, or -EAGAIN, that was enough for now (`reads`). */
struct xdp_minisock_segment;
int owner_minisocks_handle_segment(struct owner_minisocks *minisocks, const struct xdp_minisock_segment *segment,
                                   uint64_t now);

/* What is answered; probe.c sends it. */
struct owner_tcp_segment {
	uint32_t seq, ack, ts_val, ts_ecr;
	bool syn, rst, has_ack, has_ts;
};

#endif
