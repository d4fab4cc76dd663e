/*
 * loop_card - an RDMA card in this process, as a table of libibverbs' functions: what its queue pairs send comes back to
 * those that have a rule for it. It breaks when the test says so.
 *
 * Threads: any. Between a card and the program's memory there is no lock, and no order but that of the queues. So all
 * that the card does is hidden from ThreadSanitizer (LOOP): it neither sees the card's accesses nor takes its lock for
 * one that orders threads. (clang's instruments atomics all the same; then less is found.) What a provider asks of its
 * users is shown to it: each half of a queue counts its calls in a plain variable (loop_note_call).
 * Progress: a send is delivered within wr_complete. Waits for other threads' sends, as the lock is one for all.
 * Memory: only what is registered is read and written; a key is never used again.
 *
 * Strict: a break of the verbs' rules ends the program (loop_must).
 */
#ifndef VMA_NIC_TEST_LOOP_CARD_H
#define VMA_NIC_TEST_LOOP_CARD_H

#include <errno.h>
#include <linux/capability.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/test.h>

#include "../verbs/verbs.h"

#define LOOP __attribute__((noinline, unused, no_sanitize_thread)) static
#define LOOP_DEVICE "loop0"
#define LOOP_QPS 64
#define LOOP_REGIONS 1024
#define LOOP_EVENTS 256 /* of a device, not yet read */
#define LOOP_INLINE 128
#define LOOP_FRAME 2048

struct loop_device {
	struct verbs_context verbs;
	bool is_removed;
	struct ibv_async_event events[LOOP_EVENTS];
	uint32_t events_from, events_to;
};

struct loop_region {
	struct ibv_mr mr;
	uintptr_t from, to;
};

struct loop_channel {
	struct ibv_comp_channel channel;
	struct ibv_cq *cq;
};

struct loop_completion {
	uint64_t wr_id;
	enum ibv_wc_status status;
	uint32_t len;
	struct loop_qp *sender; /* NULL: of a receive */
	uint32_t sq_at;         /* the sender's count after this entry */
};

struct loop_cq {
	struct ibv_cq_ex ex;
	struct loop_channel *channel;
	struct loop_completion *ring;
	uint32_t depth, from, to;
	uint32_t len; /* of the completion at hand */
	bool is_armed;
	unsigned calls;
};

struct loop_receive {
	uint64_t wr_id;
	struct ibv_sge sge;
};

struct loop_send {
	uint64_t wr_id;
	unsigned flags;
	size_t pieces;
	struct ibv_sge sge[VERBS_SEGS_MAX];
	uint32_t inline_len;
	uint8_t data[LOOP_INLINE];
};

struct loop_qp {
	struct ibv_qp_ex ex;
	struct loop_device *device;
	struct loop_cq *tx_cq, *rx_cq;
	enum ibv_qp_state state;
	struct loop_receive *receives;
	uint32_t rq_depth, rq_from, rq_to;
	struct loop_send *sends; /* between wr_start and wr_complete */
	uint32_t sq_depth, built, sq_posted, sq_freed;
	uint32_t rules;
	enum ibv_wc_status next_send, next_receive; /* once */
	unsigned rx_calls, tx_calls;
};

struct loop_rule {
	struct ibv_flow flow;
	struct loop_rule *next;
	struct loop_qp *qp;
	uint16_t priority, dst_port_be, src_port_be; /* src_port_be 0: any */
	uint8_t proto;
};

static struct {
	int lock;
	struct loop_qp *qps[LOOP_QPS];
	struct loop_region *regions[LOOP_REGIONS];
	struct loop_rule *rules;
	uint32_t next_key;
	bool refuses_open, refuses_memory;
	uint32_t
	        calls_to_go; /* the device goes with the call of this number that makes or changes something; 0: it stays */
	bool goes_unannounced;         /* ... and no event tells of it */
	bool hides_its_going;          /* a query finds it there, once it has gone */
	void (*in_open)(void);         /* of a device; NULL: nothing */
	int alive;                     /* objects */
	uint64_t delivered, unposted;  /* frames */
	uint64_t registered, bad_keys; /* regions, in all; accesses that no key covers */
} loop;

static void loop_must(bool kept, const char *rule)
{
	if (kept)
		return;
	fprintf(stderr, "loop_card: rule broken: %s\n", rule);
	abort();
}

/* For ThreadSanitizer: calls of one half of a queue, and its end, follow each other. */
static void loop_note_call(unsigned *calls)
{
	(*calls)++;
}

LOOP void loop_lock(void)
{
	while (__atomic_exchange_n(&loop.lock, 1, __ATOMIC_ACQUIRE) != 0)
		sched_yield();
}

LOOP void loop_unlock(void)
{
	__atomic_store_n(&loop.lock, 0, __ATOMIC_RELEASE);
}

/* memcpy is the sanitizer's. */
LOOP void loop_copy(void *to, const void *from, size_t len)
{
	volatile uint8_t *out = to;
	const volatile uint8_t *in = from;

	for (size_t i = 0; i < len; i++)
		out[i] = in[i];
}

/* For libibverbs, making something is a write: a cancellation point. */
LOOP void *loop_alloc_object(size_t size)
{
	void *object;

	pthread_testcancel();
	object = calloc(1, size);
	loop_must(object != NULL, "memory");
	loop_lock();
	loop.alive++;
	loop_unlock();
	return object;
}

LOOP int loop_free_object(void *object)
{
	loop_lock();
	loop.alive--;
	loop_unlock();
	free(object);
	return 0;
}

/* The C library's calls for descriptors are the sanitizer's, too. */
LOOP void loop_fd_signal(int fd)
{
	const uint64_t one = 1;

	loop_must(syscall(SYS_write, fd, &one, sizeof(one)) == (long)sizeof(one), "events are read");
}

LOOP bool loop_fd_take(int fd)
{
	uint64_t one;

	return syscall(SYS_read, fd, &one, sizeof(one)) == (long)sizeof(one);
}

LOOP int loop_fd_open(void)
{
	return (int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
}

LOOP uint64_t loop_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- completions and events; lock held ---- */

LOOP void loop_complete(struct loop_cq *cq, struct loop_completion what)
{
	loop_must(cq->to - cq->from < cq->depth, "a completion queue has room");
	cq->ring[cq->to++ % cq->depth] = what;
	if (!cq->is_armed)
		return;
	cq->is_armed = false;
	loop_fd_signal(cq->channel->channel.fd);
}

/* qp: NULL, if it is about the device. */
LOOP void loop_tell(struct loop_device *device, enum ibv_event_type type, struct loop_qp *qp)
{
	struct ibv_async_event *event = &device->events[device->events_to++ % LOOP_EVENTS];

	loop_must(device->events_to - device->events_from <= LOOP_EVENTS, "events are read");
	event->event_type = type;
	event->element.qp = qp != NULL ? &qp->ex.qp_base : NULL;
	loop_fd_signal(device->verbs.context.async_fd);
}

LOOP void loop_flush(struct loop_qp *qp)
{
	qp->state = IBV_QPS_ERR;
	for (; qp->rq_from != qp->rq_to; qp->rq_from++)
		loop_complete(qp->rx_cq,
		              (struct loop_completion){.wr_id = qp->receives[qp->rq_from % qp->rq_depth].wr_id,
		                                       .status = IBV_WC_WR_FLUSH_ERR});
}

/* ---- frames; lock held ---- */

/* NULL: no key covers it. */
LOOP void *loop_memory(const struct ibv_sge *sge)
{
	const struct loop_region *region = loop.regions[sge->lkey % LOOP_REGIONS];

	if (region != NULL && region->mr.lkey == sge->lkey && sge->addr >= region->from &&
	    sge->addr + sge->length <= region->to)
		return (void *)(uintptr_t)sge->addr;
	loop.bad_keys++;
	return NULL;
}

LOOP void loop_receive_frame(struct loop_qp *qp, const uint8_t *frame, uint32_t len)
{
	struct loop_receive *receive = &qp->receives[qp->rq_from % qp->rq_depth];
	enum ibv_wc_status status = qp->next_receive;
	void *memory;

	if (qp->state != IBV_QPS_RTS || qp->device->is_removed || qp->rq_from == qp->rq_to) {
		loop.unposted++;
		return;
	}
	loop_must(len <= receive->sge.length, "a receive has room for the frame");
	memory = loop_memory(&receive->sge);
	qp->rq_from++;
	qp->next_receive = IBV_WC_SUCCESS;
	if (memory == NULL)
		status = IBV_WC_LOC_PROT_ERR;
	if (status == IBV_WC_SUCCESS)
		loop_copy(memory, frame, len);
	loop_complete(qp->rx_cq, (struct loop_completion){.wr_id = receive->wr_id, .status = status, .len = len});
	loop.delivered += status == IBV_WC_SUCCESS;
}

LOOP bool loop_rule_takes(const struct loop_rule *rule, const uint8_t *frame)
{
	const uint16_t src = (uint16_t)(frame[35] << 8 | frame[34]), dst = (uint16_t)(frame[37] << 8 | frame[36]);

	return frame[23] == rule->proto && dst == rule->dst_port_be &&
	       (rule->src_port_be == 0 || src == rule->src_port_be);
}

/* To all rules of the best priority that takes it: a queue that is about to end, and the next one. */
LOOP void loop_route_frame(const uint8_t *frame, uint32_t len)
{
	uint32_t best = UINT32_MAX;

	for (struct loop_rule *rule = loop.rules; rule != NULL; rule = rule->next)
		if (loop_rule_takes(rule, frame) && rule->priority < best)
			best = rule->priority;
	for (struct loop_rule *rule = loop.rules; rule != NULL; rule = rule->next)
		if (rule->priority == best && loop_rule_takes(rule, frame))
			loop_receive_frame(rule->qp, frame, len);
}

LOOP enum ibv_wc_status loop_send_frame(const struct loop_send *send)
{
	uint8_t frame[LOOP_FRAME];
	uint32_t len = send->inline_len;

	loop_copy(frame, send->data, len);
	for (size_t i = 0; i < send->pieces; i++) {
		const void *memory = loop_memory(&send->sge[i]);

		if (memory == NULL)
			return IBV_WC_LOC_PROT_ERR;
		loop_must(len + send->sge[i].length <= LOOP_FRAME, "a frame keeps to the MTU");
		loop_copy(frame + len, memory, send->sge[i].length);
		len += send->sge[i].length;
	}
	loop_must(len >= 46, "a frame has headers");
	loop_route_frame(frame, len);
	return IBV_WC_SUCCESS;
}

/* ---- data calls ---- */

LOOP int loop_post_one_receive(struct loop_qp *qp, const struct ibv_recv_wr *wr)
{
	loop_must(qp->rq_to - qp->rq_from < qp->rq_depth && wr->num_sge == 1, "a receive queue has room");
	qp->receives[qp->rq_to++ % qp->rq_depth] = (struct loop_receive){.wr_id = wr->wr_id, .sge = wr->sg_list[0]};
	if (qp->state == IBV_QPS_ERR)
		loop_flush(qp);
	return 0;
}

LOOP int loop_post_receives(struct loop_qp *qp, const struct ibv_recv_wr *wr)
{
	int rc = 0;

	loop_lock();
	if (qp->device->is_removed)
		rc = EIO;
	for (; rc == 0 && wr != NULL; wr = wr->next)
		rc = loop_post_one_receive(qp, wr);
	loop_unlock();
	return rc;
}

static int loop_post_recv(struct ibv_qp *of, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct loop_qp *qp = (struct loop_qp *)of;

	(void)bad;
	loop_note_call(&qp->rx_calls);
	return loop_post_receives(qp, wr);
}

static void loop_wr_start(struct ibv_qp_ex *ex)
{
	struct loop_qp *qp = (struct loop_qp *)ex;

	loop_note_call(&qp->tx_calls);
	qp->built = 0;
}

LOOP void loop_wr_send(struct ibv_qp_ex *ex)
{
	struct loop_qp *qp = (struct loop_qp *)ex;
	struct loop_send *send = &qp->sends[qp->built];

	loop_must(qp->built < qp->sq_depth, "a send queue has room");
	qp->built++;
	send->wr_id = ex->wr_id;
	send->flags = ex->wr_flags;
	send->pieces = send->inline_len = 0;
}

LOOP void loop_wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct loop_qp *qp = (struct loop_qp *)ex;
	struct loop_send *send = &qp->sends[qp->built - 1];

	loop_must(n <= VERBS_SEGS_MAX, "a send has no more pieces than the queue was made for");
	for (send->pieces = 0; send->pieces < n; send->pieces++)
		send->sge[send->pieces] = list[send->pieces];
}

LOOP void loop_wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	const struct ibv_sge sge = {.lkey = lkey, .addr = addr, .length = length};

	loop_wr_set_sge_list(ex, 1, &sge);
}

LOOP void loop_wr_set_inline_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	struct loop_qp *qp = (struct loop_qp *)ex;
	struct loop_send *send = &qp->sends[qp->built - 1];

	for (size_t i = 0; i < n; i++) {
		loop_must(send->inline_len + list[i].length <= LOOP_INLINE, "inline data has room");
		loop_copy(send->data + send->inline_len, list[i].addr, list[i].length);
		send->inline_len += (uint32_t)list[i].length;
	}
}

LOOP void loop_wr_set_inline(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	const struct ibv_data_buf data = {.addr = addr, .length = length};

	loop_wr_set_inline_list(ex, 1, &data);
}

LOOP void loop_send_one(struct loop_qp *qp, const struct loop_send *send)
{
	enum ibv_wc_status status = qp->next_send;

	loop_must(qp->sq_posted - qp->sq_freed < qp->sq_depth, "a send queue has room");
	qp->sq_posted++;
	qp->next_send = IBV_WC_SUCCESS;
	if (qp->state == IBV_QPS_ERR)
		status = IBV_WC_WR_FLUSH_ERR;
	if (status == IBV_WC_SUCCESS)
		status = loop_send_frame(send);
	if (status == IBV_WC_SUCCESS && !(send->flags & IBV_SEND_SIGNALED))
		return;
	loop_complete(qp->tx_cq, (struct loop_completion){
	                                 .wr_id = send->wr_id, .status = status, .sender = qp, .sq_at = qp->sq_posted});
}

LOOP int loop_send_built(struct loop_qp *qp)
{
	int rc = 0;

	loop_lock();
	loop_must(qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_ERR, "a queue pair that sends was made ready");
	if (qp->device->is_removed)
		rc = EIO;
	for (uint32_t i = 0; rc == 0 && i < qp->built; i++)
		loop_send_one(qp, &qp->sends[i]);
	loop_unlock();
	return rc;
}

static int loop_wr_complete(struct ibv_qp_ex *ex)
{
	struct loop_qp *qp = (struct loop_qp *)ex;

	loop_note_call(&qp->tx_calls);
	return loop_send_built(qp);
}

LOOP int loop_take_completion(struct loop_cq *cq)
{
	int rc = ENOENT;

	loop_lock();
	if (cq->from != cq->to) {
		const struct loop_completion *what = &cq->ring[cq->from++ % cq->depth];

		cq->ex.wr_id = what->wr_id;
		cq->ex.status = what->status;
		cq->len = what->len;
		if (what->sender != NULL)
			what->sender->sq_freed = what->sq_at;
		rc = 0;
	}
	loop_unlock();
	return rc;
}

static int loop_next_poll(struct ibv_cq_ex *ex)
{
	struct loop_cq *cq = (struct loop_cq *)ex;

	loop_note_call(&cq->calls);
	return loop_take_completion(cq);
}

static int loop_start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	(void)attr;
	return loop_next_poll(ex);
}

static void loop_end_poll(struct ibv_cq_ex *ex)
{
	loop_note_call(&((struct loop_cq *)ex)->calls);
}

LOOP uint32_t loop_read_byte_len(struct ibv_cq_ex *ex)
{
	return ((struct loop_cq *)ex)->len;
}

LOOP unsigned loop_read_wc_flags(struct ibv_cq_ex *ex)
{
	(void)ex;
	return IBV_WC_IP_CSUM_OK;
}

LOOP uint64_t loop_read_completion_ts(struct ibv_cq_ex *ex)
{
	(void)ex;
	return loop_clock_ns();
}

LOOP void loop_arm(struct loop_cq *cq)
{
	loop_lock();
	cq->is_armed = true;
	loop_unlock();
}

static int loop_req_notify_cq(struct ibv_cq *of, int solicited)
{
	struct loop_cq *cq = (struct loop_cq *)of;

	(void)solicited;
	loop_note_call(&cq->calls);
	loop_arm(cq);
	return 0;
}

/* libibverbs reads here. */
LOOP int loop_get_cq_event(struct ibv_comp_channel *of, struct ibv_cq **cq, void **context)
{
	pthread_testcancel();
	*cq = ((struct loop_channel *)of)->cq;
	*context = NULL;
	return loop_fd_take(of->fd) ? 0 : -1;
}

LOOP void loop_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	(void)cq, (void)n;
}

/* ---- control calls ---- */

static struct ibv_device loop_device_of_list = {.name = LOOP_DEVICE};

LOOP struct ibv_device **loop_get_device_list(int *n)
{
	static struct ibv_device *list[] = {&loop_device_of_list, NULL};

	(void)n;
	return list;
}

LOOP void loop_free_device_list(struct ibv_device **list)
{
	(void)list;
}

LOOP struct loop_device *loop_device(struct ibv_context *context)
{
	return (struct loop_device *)((char *)context - offsetof(struct loop_device, verbs.context));
}

LOOP bool loop_answers_queries(struct ibv_context *context)
{
	bool answers;

	loop_lock();
	answers = !loop_device(context)->is_removed || loop.hides_its_going;
	loop_unlock();
	return answers;
}

LOOP int loop_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context, (void)attr;
	return ENOSYS;
}

LOOP int loop_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                              struct ibv_device_attr_ex *attr, size_t size)
{
	(void)input, (void)size;
	if (!loop_answers_queries(context))
		return EIO;
	attr->orig_attr.max_qp_wr = 1 << 14;
	attr->orig_attr.max_cqe = 1 << 16;
	attr->orig_attr.max_sge = VERBS_SEGS_MAX;
	attr->raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
	attr->packet_pacing_caps = (struct ibv_packet_pacing_caps){
	        .qp_rate_limit_min = 1, .qp_rate_limit_max = 1000000, .supported_qpts = 1u << IBV_QPT_RAW_PACKET};
	attr->cq_mod_caps.max_cq_count = 100;
	attr->completion_timestamp_mask = UINT64_MAX;
	attr->hca_core_clock = 1000000;
	return 0;
}

LOOP int loop_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	const uint64_t ns = loop_clock_ns();

	(void)context;
	values->raw_clock.tv_sec = (time_t)(ns / 1000000000u);
	values->raw_clock.tv_nsec = (long)(ns % 1000000000u);
	values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	return 0;
}

/* Lock held. */
LOOP void loop_count_call(struct loop_device *device)
{
	if (loop.calls_to_go == 0 || device->is_removed || --loop.calls_to_go != 0)
		return;
	device->is_removed = true;
	if (!loop.goes_unannounced)
		loop_tell(device, IBV_EVENT_DEVICE_FATAL, NULL);
}

/* At each call that makes something. */
LOOP bool loop_is_removed(struct ibv_context *context)
{
	bool is_removed;

	loop_lock();
	loop_count_call(loop_device(context));
	is_removed = loop_device(context)->is_removed;
	loop_unlock();
	errno = EIO;
	return is_removed;
}

LOOP struct ibv_pd *loop_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd;

	if (loop_is_removed(context))
		return NULL;
	pd = loop_alloc_object(sizeof(*pd));
	pd->context = context;
	return pd;
}

LOOP int loop_dealloc_pd(struct ibv_pd *pd)
{
	return loop_free_object(pd);
}

LOOP struct ibv_td *loop_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct ibv_td *td = loop_alloc_object(sizeof(*td));

	(void)attr;
	td->context = context;
	return td;
}

LOOP int loop_dealloc_td(struct ibv_td *td)
{
	return loop_free_object(td);
}

LOOP struct ibv_pd *loop_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	(void)attr;
	return loop_alloc_pd(context);
}

LOOP struct ibv_mr *loop_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct loop_region *region;

	(void)access;
	if (loop_is_removed(pd->context))
		return NULL;
	errno = ENOMEM;
	if (loop.refuses_memory)
		return NULL;
	region = loop_alloc_object(sizeof(*region));
	region->from = (uintptr_t)addr;
	region->to = region->from + length;
	loop_lock();
	do
		region->mr.lkey = ++loop.next_key;
	while (loop.regions[region->mr.lkey % LOOP_REGIONS] != NULL);
	loop.regions[region->mr.lkey % LOOP_REGIONS] = region;
	loop.registered++;
	loop_unlock();
	return &region->mr;
}

LOOP int loop_dereg_mr(struct ibv_mr *mr)
{
	loop_lock();
	loop_must(loop.regions[mr->lkey % LOOP_REGIONS] == (struct loop_region *)mr, "a region ends once");
	loop.regions[mr->lkey % LOOP_REGIONS] = NULL;
	loop_unlock();
	return loop_free_object(mr);
}

LOOP struct ibv_comp_channel *loop_create_channel(struct ibv_context *context)
{
	struct loop_channel *channel;

	if (loop_is_removed(context))
		return NULL;
	channel = loop_alloc_object(sizeof(*channel));
	channel->channel.context = context;
	channel->channel.fd = loop_fd_open();
	if (channel->channel.fd < 0) {
		loop_free_object(channel);
		errno = EMFILE;
		return NULL;
	}
	return &channel->channel;
}

LOOP int loop_destroy_channel(struct ibv_comp_channel *channel)
{
	syscall(SYS_close, channel->fd);
	return loop_free_object(channel);
}

LOOP struct ibv_cq_ex *loop_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct loop_cq *cq;

	if (loop_is_removed(context))
		return NULL;
	cq = loop_alloc_object(sizeof(*cq));
	cq->depth = attr->cqe;
	cq->ring = calloc(cq->depth, sizeof(*cq->ring));
	cq->channel = (struct loop_channel *)attr->channel;
	if (cq->channel != NULL)
		cq->channel->cq = (struct ibv_cq *)&cq->ex;
	cq->ex.context = context;
	cq->ex.channel = attr->channel;
	cq->ex.start_poll = loop_start_poll;
	cq->ex.next_poll = loop_next_poll;
	cq->ex.end_poll = loop_end_poll;
	cq->ex.read_byte_len = loop_read_byte_len;
	cq->ex.read_wc_flags = loop_read_wc_flags;
	cq->ex.read_completion_ts = loop_read_completion_ts;
	cq->ex.read_completion_wallclock_ns = loop_read_completion_ts;
	return &cq->ex;
}

static int loop_destroy_cq(struct ibv_cq *of)
{
	struct loop_cq *cq = (struct loop_cq *)of;

	loop_note_call(&cq->calls);
	free(cq->ring);
	return loop_free_object(cq);
}

LOOP int loop_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	(void)cq, (void)attr;
	return 0;
}

LOOP struct ibv_qp *loop_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct loop_qp *qp;
	uint32_t at = 0;

	if (loop_is_removed(context))
		return NULL;
	errno = EINVAL;
	if (attr->cap.max_inline_data > LOOP_INLINE)
		return NULL;
	qp = loop_alloc_object(sizeof(*qp));
	qp->device = loop_device(context);
	qp->tx_cq = (struct loop_cq *)attr->send_cq;
	qp->rx_cq = (struct loop_cq *)attr->recv_cq;
	qp->sq_depth = attr->cap.max_send_wr;
	qp->rq_depth = attr->cap.max_recv_wr;
	qp->receives = calloc(qp->rq_depth, sizeof(*qp->receives));
	qp->sends = calloc(qp->sq_depth, sizeof(*qp->sends));
	qp->ex.qp_base.context = context;
	qp->ex.wr_start = loop_wr_start;
	qp->ex.wr_send = loop_wr_send;
	qp->ex.wr_set_sge = loop_wr_set_sge;
	qp->ex.wr_set_sge_list = loop_wr_set_sge_list;
	qp->ex.wr_set_inline_data = loop_wr_set_inline;
	qp->ex.wr_set_inline_data_list = loop_wr_set_inline_list;
	qp->ex.wr_complete = loop_wr_complete;
	loop_lock();
	while (at < LOOP_QPS && loop.qps[at] != NULL)
		at++;
	loop_must(at < LOOP_QPS, "queue pairs end");
	loop.qps[at % LOOP_QPS] = qp; /* cppcheck does not know that loop_must ends the program */
	loop_unlock();
	return &qp->ex.qp_base;
}

LOOP struct ibv_qp_ex *loop_qp_to_ex(struct ibv_qp *qp)
{
	return (struct ibv_qp_ex *)qp;
}

LOOP int loop_modify_qp(struct ibv_qp *of, struct ibv_qp_attr *attr, int mask)
{
	struct loop_qp *qp = (struct loop_qp *)of;
	int rc = 0;

	(void)mask;
	loop_lock();
	loop_count_call(qp->device);
	if (qp->device->is_removed)
		rc = EIO;
	else if (attr->qp_state == IBV_QPS_ERR)
		loop_flush(qp);
	else if (qp->state != IBV_QPS_ERR)
		qp->state = attr->qp_state;
	else
		rc = EINVAL;
	loop_unlock();
	return rc;
}

LOOP int loop_query_qp(struct ibv_qp *of, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct loop_qp *qp = (struct loop_qp *)of;
	int rc;

	(void)mask, (void)init;
	loop_lock();
	attr->qp_state = qp->state;
	rc = qp->device->is_removed ? EIO : 0;
	loop_unlock();
	return rc;
}

/* Nobody is told of it any more. */
LOOP void loop_forget_qp(struct loop_qp *qp)
{
	struct loop_device *device = qp->device;

	loop_lock();
	loop_must(qp->rules == 0, "rules end before their queue pair");
	for (uint32_t i = 0; i < LOOP_QPS; i++)
		if (loop.qps[i] == qp)
			loop.qps[i] = NULL;
	for (uint32_t at = device->events_from; at != device->events_to; at++)
		if (device->events[at % LOOP_EVENTS].element.qp == &qp->ex.qp_base)
			device->events[at % LOOP_EVENTS].event_type = IBV_EVENT_CLIENT_REREGISTER;
	loop_unlock();
}

static int loop_destroy_qp(struct ibv_qp *of)
{
	struct loop_qp *qp = (struct loop_qp *)of;

	loop_note_call(&qp->rx_calls);
	loop_note_call(&qp->tx_calls);
	loop_forget_qp(qp);
	free(qp->receives);
	free(qp->sends);
	return loop_free_object(qp);
}

LOOP struct ibv_flow *loop_create_flow(struct ibv_qp *of, struct ibv_flow_attr *attr)
{
	const struct verbs_rule_spec *spec = (const struct verbs_rule_spec *)attr;
	struct loop_rule *rule;

	if (loop_is_removed(of->context))
		return NULL;
	rule = loop_alloc_object(sizeof(*rule));
	rule->flow.context = of->context;
	rule->qp = (struct loop_qp *)of;
	rule->priority = attr->priority;
	rule->proto = spec->l4.type == IBV_FLOW_SPEC_TCP ? IPPROTO_TCP : IPPROTO_UDP;
	rule->dst_port_be = spec->l4.val.dst_port;
	rule->src_port_be = spec->l4.val.src_port & spec->l4.mask.src_port;
	loop_lock();
	rule->qp->rules++;
	rule->next = loop.rules;
	loop.rules = rule;
	loop_unlock();
	return &rule->flow;
}

LOOP int loop_destroy_flow(struct ibv_flow *flow)
{
	struct loop_rule *rule = (struct loop_rule *)flow, **place;

	loop_lock();
	for (place = &loop.rules; *place != NULL && *place != rule; place = &(*place)->next)
		;
	loop_must(*place == rule, "a rule ends once");
	*place = rule->next;
	rule->qp->rules--;
	loop_unlock();
	return loop_free_object(rule);
}

LOOP int loop_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct loop_device *device = loop_device(context);

	if (!loop_fd_take(context->async_fd))
		return -1;
	loop_lock();
	*event = device->events[device->events_from++ % LOOP_EVENTS];
	loop_unlock();
	return 0;
}

LOOP void loop_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

LOOP int loop_close_device(struct ibv_context *context)
{
	struct loop_device *device = loop_device(context);

	syscall(SYS_close, context->cmd_fd);
	syscall(SYS_close, context->async_fd);
	return loop_free_object(device);
}

LOOP struct ibv_context *loop_open_device(struct ibv_device *of_list)
{
	struct loop_device *device;
	struct verbs_context *verbs;

	if (loop.in_open != NULL)
		loop.in_open();
	errno = ENODEV;
	if (loop.refuses_open)
		return NULL;
	device = loop_alloc_object(sizeof(*device));
	verbs = &device->verbs;
	verbs->sz = sizeof(*verbs);
	verbs->query_device_ex = loop_query_device_ex;
	verbs->query_rt_values = loop_query_rt_values;
	verbs->alloc_td = loop_alloc_td;
	verbs->dealloc_td = loop_dealloc_td;
	verbs->alloc_parent_domain = loop_alloc_parent_domain;
	verbs->create_cq_ex = loop_create_cq_ex;
	verbs->modify_cq = loop_modify_cq;
	verbs->create_qp_ex = loop_create_qp_ex;
	verbs->ibv_create_flow = loop_create_flow;
	verbs->ibv_destroy_flow = loop_destroy_flow;
	verbs->context.device = of_list;
	verbs->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	verbs->context.ops.post_recv = loop_post_recv;
	verbs->context.ops.req_notify_cq = loop_req_notify_cq;
	verbs->context.cmd_fd = loop_fd_open();
	verbs->context.async_fd = loop_fd_open();
	if (verbs->context.cmd_fd < 0 || verbs->context.async_fd < 0) {
		loop_close_device(&verbs->context);
		errno = EMFILE;
		return NULL;
	}
	return &verbs->context;
}

/* The plain ones, which the backend tries if an extended one has failed. */
LOOP struct ibv_cq *loop_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                   struct ibv_comp_channel *channel, int vector)
{
	(void)context, (void)cqe, (void)cq_context, (void)channel, (void)vector;
	errno = EIO;
	return NULL;
}

LOOP struct ibv_qp *loop_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	(void)pd, (void)attr;
	errno = EIO;
	return NULL;
}

static const struct verbs_lib loop_lib = {
        .ibv_get_device_list = loop_get_device_list,
        .ibv_free_device_list = loop_free_device_list,
        .ibv_open_device = loop_open_device,
        .ibv_close_device = loop_close_device,
        .ibv_query_device = loop_query_device,
        .ibv_get_async_event = loop_get_async_event,
        .ibv_ack_async_event = loop_ack_async_event,
        .ibv_alloc_pd = loop_alloc_pd,
        .ibv_dealloc_pd = loop_dealloc_pd,
        .ibv_reg_mr = loop_reg_mr,
        .ibv_dereg_mr = loop_dereg_mr,
        .ibv_create_comp_channel = loop_create_channel,
        .ibv_destroy_comp_channel = loop_destroy_channel,
        .ibv_create_cq = loop_create_cq,
        .ibv_destroy_cq = loop_destroy_cq,
        .ibv_get_cq_event = loop_get_cq_event,
        .ibv_ack_cq_events = loop_ack_cq_events,
        .ibv_create_qp = loop_create_qp,
        .ibv_qp_to_qp_ex = loop_qp_to_ex,
        .ibv_modify_qp = loop_modify_qp,
        .ibv_query_qp = loop_query_qp,
        .ibv_destroy_qp = loop_destroy_qp,
};

/* In place of the one that opens libibverbs. */
const struct verbs_lib *verbs_lib(void)
{
	return &loop_lib;
}

/* ---- the interface of the card, "verbs:lo", before the first case and after the last ---- */

static char loop_sysfs[64]; /* "": it cannot be had here */

/* Loopback, with an MTU that buffers are made for, in a namespace of its own. */
static inline bool loop_make_interface(void)
{
	struct ifreq req = {.ifr_name = "lo", .ifr_mtu = 1500};
	const int fd = unshare(CLONE_NEWNET) == 0 ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
	bool made;

	if (fd < 0)
		return false;
	made = ioctl(fd, SIOCSIFMTU, &req) == 0;
	close(fd);
	return made;
}

static inline int loop_begin(void **state)
{
	char command[256];

	(void)state;
	if (!verbs_has_capability(CAP_NET_RAW) || !loop_make_interface())
		return 0;
	strcpy(loop_sysfs, "/tmp/vma-loop-card.XXXXXX");
	assert_non_null(mkdtemp(loop_sysfs));
	snprintf(command, sizeof(command),
	         "d=%s/class/infiniband/" LOOP_DEVICE "/ports/1/gid_attrs/ndevs && mkdir -p $d && echo lo >$d/0",
	         loop_sysfs);
	assert_int_equal(system(command), 0);
	setenv("SYSFS_PATH", loop_sysfs, 1);
	vma_log_set_level(VMA_LOG_ERROR); /* each failed queue is a warning */
	return 0;
}

static inline int loop_end(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", loop_sysfs);
	return loop_sysfs[0] != '\0' ? system(command) : 0;
}

/* As the setup of each case. */
static inline int loop_skip_without_interface(void **state)
{
	(void)state;
	if (loop_sysfs[0] == '\0')
		vma_test_skip("CAP_NET_RAW and a network namespace of its own are missing");
	return 0;
}

/* ---- faults ---- */

/* The n-th of those that receive; NULL: there is none. Lock held. */
LOOP struct loop_qp *loop_pick_qp(uint32_t n)
{
	for (uint32_t i = 0; i < LOOP_QPS; i++) {
		struct loop_qp *qp = loop.qps[(n + i) % LOOP_QPS];

		if (qp != NULL && qp->state == IBV_QPS_RTS && qp->rules != 0 && !qp->device->is_removed)
			return qp;
	}
	return NULL;
}

LOOP uint64_t loop_delivered(void)
{
	uint64_t delivered;

	loop_lock();
	delivered = loop.delivered;
	loop_unlock();
	return delivered;
}

enum loop_fault { LOOP_QUEUE_STOPS, LOOP_SEND_FAILS, LOOP_RECEIVE_FAILS, LOOP_DEVICE_GOES };

/* False: there was nothing that could break. */
LOOP bool loop_break(enum loop_fault fault, uint32_t n)
{
	struct loop_qp *qp;

	loop_lock();
	qp = loop_pick_qp(n);
	if (qp != NULL && fault == LOOP_DEVICE_GOES) {
		qp->device->is_removed = true;
		loop_tell(qp->device, IBV_EVENT_DEVICE_FATAL, NULL);
	} else if (qp != NULL && fault == LOOP_QUEUE_STOPS) {
		loop_flush(qp);
		loop_tell(qp->device, IBV_EVENT_QP_FATAL, qp);
	} else if (qp != NULL && fault == LOOP_SEND_FAILS) {
		qp->next_send = IBV_WC_GENERAL_ERR;
	} else if (qp != NULL) {
		qp->next_receive = IBV_WC_GENERAL_ERR;
	}
	loop_unlock();
	return qp != NULL;
}

#endif
