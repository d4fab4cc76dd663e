/*
 * driver - what the parts of the driver share.
 *
 * Threads: as the verbs: any thread may call. A queue has a lock of its own; a context has one for its requests.
 * Rules: a call that breaks a rule of the verbs goes to soft_report_broken_rule, which aborts, or gives EINVAL if
 * VMASOFT_RULES is "error". Objects stay in memory until their context is closed, so that the use of a destroyed one is
 * seen.
 */
#ifndef TESTS_VERBS_DRIVER_H
#define TESTS_VERBS_DRIVER_H

#include <pthread.h>
#include <sys/types.h>
#include "driver_abi.h"
#include "proto.h"

#define SOFT_VENDOR_ID 0x020000 /* an OUI that is locally administered, so no vendor has it */

/* The card's clock, as that of many ConnectX: 6.4 ns a tick, counted in 48 bits. */
#define SOFT_CLOCK_KHZ 156250
#define SOFT_CLOCK_MASK ((UINT64_C(1) << 48) - 1)
static inline uint64_t soft_clock_ticks_of_ns(uint64_t ns)
{
	return ns * 5 / 32 & SOFT_CLOCK_MASK;
}

struct soft_object {
	struct soft_object *next; /* of the context */
	const char *kind;         /* "queue pair" */
	_Atomic bool is_alive;
};

struct soft_context {
	struct verbs_context ibv;
	pid_t pid; /* that has opened it: the card copies from and to this process */
	int doorbell;
	struct card_page *page;
	void *node_page; /* of the device's node, as the registers of a real card are */
	bool is_lenient;
	pthread_mutex_t lock; /* requests, and the list of objects */
	struct soft_object *objects;
	struct soft_qp *_Atomic qps[CARD_MAX_QPS]; /* number N is at N % CARD_MAX_QPS */
	_Atomic uint32_t violations_told;
};

struct soft_pd {
	struct ibv_pd pd;
	struct soft_object object;
};

struct soft_mr {
	struct verbs_mr mr;
	struct soft_object object;
};

struct soft_cq {
	struct verbs_cq vcq;
	struct soft_object object;
	pthread_mutex_t lock;
	struct card_cq_head *head;
	uint64_t bytes;
	uint32_t depth, consumed;
	uint64_t channel, wc_flags;
	bool ignores_overrun;
	bool is_polling; /* between start_poll and end_poll */
	struct card_cqe current;
	uint32_t events_read, async_read;
};

struct soft_qp {
	struct verbs_qp vqp;
	struct soft_object object;
	struct card_qp_head *head;
	uint64_t bytes;
	struct ibv_qp_cap cap;
	uint32_t max_tso_header; /* 0: it was not made for IBV_WR_TSO */
	bool signals_all;
	/* the send queue */
	pthread_mutex_t sq_lock;
	uint32_t sq_posted, sq_signals_at; /* the count after the last entry that will complete */
	_Atomic uint32_t sq_freed;         /* by completions that were polled */
	/* of ibv_wr_start to ibv_wr_complete, under sq_lock */
	bool is_building;
	uint32_t build_from, build_signals_at;
	int build_error;
	/* the receive queue */
	pthread_mutex_t rq_lock;
	uint32_t rq_posted;
	_Atomic uint32_t rq_freed;
	uint32_t events_read;
};

struct soft_flow {
	struct ibv_flow flow;
	struct soft_object object;
};

static inline struct soft_context *soft_context(struct ibv_context *context)
{
	return (struct soft_context *)((char *)context - offsetof(struct soft_context, ibv.context));
}

static inline struct soft_cq *soft_cq(struct ibv_cq *cq)
{
	return (struct soft_cq *)cq;
}

static inline struct soft_qp *soft_qp(struct ibv_qp *qp)
{
	return (struct soft_qp *)qp;
}

/* ---- driver.c ---- */
int soft_report_broken_rule(struct soft_context *context, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
/* 0, or what soft_report_broken_rule gives: the object was destroyed, or the process is not the one that opened the
 * context. */
int soft_check_context_and_object(struct soft_context *context, const struct soft_object *object);
void *soft_object_new(struct soft_context *context, size_t size, size_t object_at, const char *kind);
void soft_object_mark_dead(struct soft_object *object);
/* One request. 0 or an errno; *fd, if not NULL, gets a descriptor of the reply. */
int soft_ask_card(struct soft_context *context, struct card_request *request, struct card_reply *reply, int *fd);
int soft_ask_card_about_object(struct soft_context *context, enum card_request_type type, uint32_t object);
void *soft_map_shared_and_close_fd(int fd, uint64_t bytes);
void soft_ring_card_doorbell(struct soft_context *context);
/* Events about one object that nobody has read yet: taken off the descriptor, the others are put back. */
void soft_drop_events_of_object(struct soft_context *context, int fd, uint64_t channel, uint64_t handle);

/* ---- driver_cq.c ---- */
struct ibv_cq *soft_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int comp_vector);
struct ibv_cq_ex *soft_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int soft_destroy_cq(struct ibv_cq *cq);
int soft_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
int soft_req_notify_cq(struct ibv_cq *cq, int solicited_only);
void soft_cq_count_event_read(struct ibv_cq *cq);
void soft_cq_discard_completions_of_qp(struct soft_cq *cq, uint32_t qp_num);

/* ---- driver_qp.c ---- */
struct ibv_qp *soft_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *soft_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
int soft_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
int soft_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr);
int soft_destroy_qp(struct ibv_qp *qp);

/* ---- driver_post.c ---- */
int soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
void soft_set_wr_functions(struct ibv_qp_ex *qp);

/* ---- driver_flow.c ---- */
struct ibv_flow *soft_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr);
int soft_destroy_flow(struct ibv_flow *flow);
#endif
