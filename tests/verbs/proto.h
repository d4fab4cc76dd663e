/*
 * proto - what a driver and a card say to each other, and the memory that they share.
 *
 * A driver opens one connection (SOCK_SEQPACKET) for each context. A request is one message, its reply is one message;
 * descriptors travel with the reply. Two other kinds of connection have no context: a completion channel, on which the
 * card sends events to the program itself, and a control connection, on which a test sets faults.
 *
 * Threads: the driver allows one request at a time for each context; the card has one thread.
 * Progress: queues and completions need no request. A doorbell (eventfd) wakes a card that sleeps.
 * Memory: the card makes all shared memory. Each field below says which side writes it.
 */
#ifndef TESTS_VERBS_PROTO_H
#define TESTS_VERBS_PROTO_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define CARD_PROTO 3
#define CARD_NODE "/dev/zero" /* what the node of a device is one more of */

enum {
	CARD_MAX_SGE = 16,
	CARD_RATE_MIN_KBPS = 100,
	CARD_RATE_MAX_KBPS = 10000000,
	CARD_MAX_INLINE = 256,     /* bytes: as much as the entries of a list take */
	CARD_MAX_TSO = 131072,     /* bytes of a packet that is cut, without its header */
	CARD_MAX_TSO_HEADER = 192, /* rdma-core's tests ask for up to an 800th of CARD_MAX_TSO */
	CARD_MAX_QPS = 1024,
	CARD_MAX_CQS = 1024,
	CARD_MAX_WR = 16384,
	CARD_MAX_CQE = 65536,
	CARD_MAX_MRS = 4096,
	CARD_MAX_PDS = 1024,
	CARD_MAX_GIDS = 8, /* the table: entries from CARD_USED_GIDS on are empty, as most of a real card's */
	CARD_USED_GIDS = 2,
	CARD_MAX_RULES = 4096,
	CARD_MAX_TEXT = 2048,
	CARD_MAX_EVENTS = 64,
};

/* ---- shared memory ---- */

/* One for each context: the card tells what the driver must know between requests. */
struct card_page {
	_Atomic uint32_t sleeping;   /* 1: the card; 0: the driver that rings, or the card when it wakes */
	_Atomic uint32_t violations; /* the card: rules that this context has broken */
	char violation[248];         /* the card: the first of them, complete before violations is 1 */
};
static_assert(sizeof(struct card_page) == 256, "one page is enough");

struct card_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct card_wqe {
	uint64_t wr_id;
	uint32_t flags; /* IBV_SEND_* */
	uint32_t num_sge;
	uint32_t inline_bytes;
	uint16_t mss; /* not 0: the list is cut into so many bytes each, behind the header */
	uint16_t header_bytes;
	union {
		struct card_sge sge[CARD_MAX_SGE];
		uint8_t data[CARD_MAX_INLINE];
	};
	uint8_t header[CARD_MAX_TSO_HEADER];
};
static_assert(sizeof(struct card_wqe) == 24 + CARD_MAX_INLINE + CARD_MAX_TSO_HEADER,
              "list and inline data share their place");

/* The head of a queue pair's memory. The send queue's entries follow, then those of the receive queue. */
struct card_qp_head {
	_Alignas(64) _Atomic uint32_t sq_posted; /* the driver: counts up, entry N lies at N % depth */
	_Atomic uint32_t rq_posted;
	_Alignas(64) _Atomic uint32_t sq_taken; /* the card */
	_Atomic uint32_t rq_taken;
	_Atomic uint32_t state; /* the card: enum ibv_qp_state, which an error changes without a request */
};

struct card_cqe {
	uint64_t wr_id;
	uint64_t stamp_ns; /* CLOCK_MONOTONIC */
	uint64_t wall_ns;  /* CLOCK_REALTIME */
	uint32_t qp_num;
	uint32_t queue_at; /* the queue's count after this entry: what lies before it is free once this is polled */
	uint32_t byte_len;
	uint32_t wc_flags;
	uint32_t vendor_err;
	uint32_t flow_tag;
	uint8_t status;
	uint8_t is_receive;
	uint8_t is_dead; /* the driver: its queue pair was destroyed or reset */
	uint8_t reserved[3];
};

enum { CARD_ARM_NONE, CARD_ARM_SOLICITED, CARD_ARM_ANY };

struct card_cq_head {
	_Alignas(64) _Atomic uint32_t produced; /* the card */
	_Alignas(64) _Atomic uint32_t consumed; /* the driver */
	_Atomic uint32_t armed;                 /* the driver arms, the card disarms */
	_Alignas(64) struct card_cqe cqe[];
};

/* ---- requests ---- */

enum card_request_type {
	CARD_OPEN = 1, /* a context; reply: descriptors of the page, of asynchronous events, of the doorbell */
	CARD_CHANNEL,  /* this connection is a completion channel from now on */
	CARD_CONTROL,  /* text; reply: text */
	CARD_QUERY,    /* reply: device and port */
	CARD_PD_ALLOC,
	CARD_PD_FREE,
	CARD_MR_REG,
	CARD_MR_DEREG,
	CARD_CQ_CREATE, /* reply: its memory */
	CARD_CQ_DESTROY,
	CARD_QP_CREATE, /* reply: its memory */
	CARD_QP_MODIFY,
	CARD_QP_DESTROY,
	CARD_FLOW_CREATE,
	CARD_FLOW_DESTROY,
	CARD_REQUEUE_EVENTS, /* events that the driver has taken from a descriptor while it looked for others */
};

/* What a rule compares, in the order of the wire. A bit counts if its bit in the mask is set. */
struct card_match {
	uint8_t dst_mac[6];
	uint8_t src_mac[6];
	uint16_t ether_type; /* behind a tag, if there is one */
	uint16_t vlan_tag;   /* without a tag: 0 */
	uint32_t src_ip4;
	uint32_t dst_ip4;
	uint8_t src_ip6[16];
	uint8_t dst_ip6[16];
	uint16_t src_port;
	uint16_t dst_port;
	uint8_t ip_version; /* 4 or 6 */
	uint8_t proto;
	uint8_t tos;
	uint8_t ttl;
	uint8_t has_tag; /* 1: tagged */
	uint8_t has_ports;
	uint8_t reserved[2];
};

struct card_rule {
	struct card_match value;
	struct card_match mask;
	uint32_t qp_num;
	uint32_t flow_tag;
	uint16_t priority;  /* 0 is looked at first */
	uint8_t is_default; /* IBV_FLOW_ATTR_ALL_DEFAULT: behind all others */
	uint8_t drops;
	uint8_t misses; /* to the kernel, as if no rule took it; of no queue pair */
	uint8_t reserved[3];
};

struct card_request {
	uint32_t type;
	uint32_t object; /* that the request is about */
	union {
		struct {
			uint32_t proto;
			uint64_t node_byte; /* of the device node, locked as long as the node is open or mapped */
		} open;
		struct {
			uint64_t cookie; /* SO_COOKIE of the program's end */
		} channel;
		char text[CARD_MAX_TEXT];
		struct {
			uint64_t addr, length, iova;
			uint32_t access, pd;
		} mr;
		struct {
			uint64_t handle;  /* what events carry: the driver's address of it */
			uint64_t channel; /* the cookie of its channel, 0: none */
			uint32_t depth;
			uint32_t ignores_overrun;
		} cq;
		struct {
			uint64_t handle;
			uint32_t pd, send_cq, recv_cq;
			uint32_t sq_depth, rq_depth, max_send_sge, max_recv_sge, max_inline;
			uint32_t max_tso_header; /* 0: it cuts nothing */
			uint32_t signals_all;
		} qp;
		struct {
			uint32_t state;
			uint32_t has_rate, rate_kbps; /* has_rate: of a queue pair that sends, 0: as fast as it can */
		} modify;
		struct {
			struct card_rule rule;
			uint32_t has_waited; /* the driver has waited as long as a slow card said; also of an end */
		} flow;
		struct {
			uint64_t channel; /* 0: asynchronous events */
			uint32_t count;
			uint64_t element[CARD_MAX_EVENTS];
			uint32_t event_type[CARD_MAX_EVENTS];
		} again;
	};
};

struct card_reply {
	int32_t error; /* 0, or an errno */
	uint32_t object;
	uint64_t memory_bytes;
	uint32_t wait_ms; /* with EAGAIN of a rule or its end: the request is to be made again after this */
	uint32_t reserved;
	union {
		struct {
			uint8_t mac[6];
			uint8_t port_up;
			uint32_t mtu;
		} query;
		char text[CARD_MAX_TEXT];
	};
};

static inline uint64_t card_cq_bytes(uint32_t depth)
{
	return sizeof(struct card_cq_head) + (uint64_t)depth * sizeof(struct card_cqe);
}

static inline uint64_t card_qp_bytes(uint32_t sq_depth, uint32_t rq_depth)
{
	return sizeof(struct card_qp_head) + ((uint64_t)sq_depth + rq_depth) * sizeof(struct card_wqe);
}

static inline struct card_wqe *card_qp_entries(struct card_qp_head *head)
{
	return (struct card_wqe *)(head + 1);
}
#endif
