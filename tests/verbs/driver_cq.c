/* Completion queues of the driver. */
#include "driver.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* The socket of a channel has a number that no other socket of the machine has: the card knows the channel by it. */
static uint64_t comp_channel_socket_cookie(const struct ibv_comp_channel *channel)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	if (channel)
		getsockopt(channel->fd, SOL_SOCKET, SO_COOKIE, &cookie, &len);
	return cookie;
}

static struct soft_cq *cq_create(struct ibv_context *ibv_context, uint32_t depth, struct ibv_comp_channel *channel,
                                 uint32_t vector, bool ignores_overrun)
{
	struct soft_context *context = soft_context(ibv_context);
	struct card_request request = {.type = CARD_CQ_CREATE};
	struct card_reply reply;
	struct soft_cq *cq;
	int fd = -1, error;

	if (depth == 0 || depth > CARD_MAX_CQE || vector >= (uint32_t)ibv_context->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	cq = soft_object_new(context, sizeof(*cq), offsetof(struct soft_cq, object), "completion queue");
	if (!cq) {
		errno = ENOMEM;
		return NULL;
	}
	cq->channel = comp_channel_socket_cookie(channel);
	request.cq.handle = (uintptr_t)&cq->vcq.cq;
	request.cq.channel = cq->channel;
	request.cq.depth = depth;
	request.cq.ignores_overrun = ignores_overrun;
	error = soft_ask_card(context, &request, &reply, &fd);
	if (!error) {
		cq->bytes = reply.memory_bytes;
		cq->head = soft_map_shared_and_close_fd(fd, cq->bytes);
		if (!cq->head) {
			soft_ask_card_about_object(context, CARD_CQ_DESTROY, reply.object);
			error = ENOMEM;
		}
	}
	if (error) {
		soft_object_mark_dead(&cq->object);
		errno = error;
		return NULL;
	}
	cq->depth = depth;
	cq->ignores_overrun = ignores_overrun;
	pthread_mutex_init(&cq->lock, NULL);
	cq->vcq.cq.context = ibv_context;
	cq->vcq.cq.handle = reply.object;
	cq->vcq.cq.cqe = (int)depth;
	return cq;
}

struct ibv_cq *soft_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel, int comp_vector)
{
	struct soft_cq *cq = NULL;

	if (cqe > 0 && comp_vector >= 0)
		cq = cq_create(context, (uint32_t)cqe, channel, (uint32_t)comp_vector, false);
	else
		errno = EINVAL;
	return cq ? &cq->vcq.cq : NULL;
}

int soft_destroy_cq(struct ibv_cq *ibv_cq)
{
	struct soft_cq *cq = soft_cq(ibv_cq);
	struct soft_context *context = soft_context(ibv_cq->context);
	int error = soft_check_context_and_object(context, &cq->object);

	if (!error)
		error = soft_ask_card_about_object(context, CARD_CQ_DESTROY, ibv_cq->handle);
	if (error)
		return error;
	if (cq->channel)
		soft_drop_events_of_object(context, ibv_cq->channel->fd, cq->channel, (uintptr_t)ibv_cq);
	soft_drop_events_of_object(context, ibv_cq->context->async_fd, 0, (uintptr_t)ibv_cq);
	pthread_mutex_lock(&ibv_cq->mutex);
	while (ibv_cq->comp_events_completed != cq->events_read || ibv_cq->async_events_completed != cq->async_read)
		pthread_cond_wait(&ibv_cq->cond, &ibv_cq->mutex);
	pthread_mutex_unlock(&ibv_cq->mutex);
	soft_object_mark_dead(&cq->object);
	return 0;
}

int soft_req_notify_cq(struct ibv_cq *ibv_cq, int solicited_only)
{
	struct soft_cq *cq = soft_cq(ibv_cq);
	uint32_t none = CARD_ARM_NONE;
	int error = soft_check_context_and_object(soft_context(ibv_cq->context), &cq->object);

	if (error)
		return error;
	/* What is armed for all stays so. */
	if (solicited_only)
		atomic_compare_exchange_strong(&cq->head->armed, &none, CARD_ARM_SOLICITED);
	else
		atomic_store(&cq->head->armed, CARD_ARM_ANY);
	return 0;
}

/* ibv_get_cq_event has read one. */
void soft_cq_count_event_read(struct ibv_cq *ibv_cq)
{
	struct soft_cq *cq = soft_cq(ibv_cq);

	if (soft_check_context_and_object(soft_context(ibv_cq->context), &cq->object) == 0)
		cq->events_read++;
}

/* ---- polling; under the queue's lock ---- */

/* A polled completion frees the entries of its queue up to its own: that is how a program knows that they are free. */
static void cqe_free_entries(struct soft_context *context, const struct card_cqe *cqe)
{
	struct soft_qp *qp = atomic_load(&context->qps[cqe->qp_num % CARD_MAX_QPS]);

	if (!qp || qp->vqp.qp.qp_num != cqe->qp_num)
		return;
	atomic_store(cqe->is_receive ? &qp->rq_freed : &qp->sq_freed, cqe->queue_at);
}

static bool soft_cq_take_next_completion(struct soft_cq *cq)
{
	struct card_cq_head *head = cq->head;

	for (;;) {
		uint32_t produced = atomic_load(&head->produced);

		if (produced == cq->consumed)
			return false;
		if (cq->ignores_overrun && produced - cq->consumed > cq->depth)
			cq->consumed = produced - cq->depth;
		cq->current = head->cqe[cq->consumed % cq->depth];
		cq->consumed++;
		atomic_store(&head->consumed, cq->consumed);
		if (cq->current.is_dead)
			continue;
		cqe_free_entries(soft_context(cq->vcq.cq.context), &cq->current);
		return true;
	}
}

/* Of an error only these fields are valid; the others are filled with what a reader stumbles over. */
static void wc_fill(struct ibv_wc *wc, const struct card_cqe *cqe)
{
	memset(wc, cqe->status ? 0xee : 0, sizeof(*wc));
	wc->wr_id = cqe->wr_id;
	wc->status = cqe->status;
	wc->vendor_err = cqe->vendor_err;
	wc->qp_num = cqe->qp_num;
	if (cqe->status)
		return;
	wc->opcode = cqe->is_receive ? IBV_WC_RECV : IBV_WC_SEND;
	wc->byte_len = cqe->byte_len;
	wc->wc_flags = cqe->wc_flags;
}

int soft_poll_cq(struct ibv_cq *ibv_cq, int num_entries, struct ibv_wc *wc)
{
	struct soft_cq *cq = soft_cq(ibv_cq);
	int n = 0;

	if (soft_check_context_and_object(soft_context(ibv_cq->context), &cq->object))
		return -1;
	pthread_mutex_lock(&cq->lock);
	while (n < num_entries && soft_cq_take_next_completion(cq))
		wc_fill(&wc[n++], &cq->current);
	pthread_mutex_unlock(&cq->lock);
	return n;
}

void soft_cq_discard_completions_of_qp(struct soft_cq *cq, uint32_t qp_num)
{
	pthread_mutex_lock(&cq->lock);
	for (uint32_t i = cq->consumed; i != atomic_load(&cq->head->produced); i++)
		if (cq->head->cqe[i % cq->depth].qp_num == qp_num)
			cq->head->cqe[i % cq->depth].is_dead = 1;
	pthread_mutex_unlock(&cq->lock);
}

/* ---- the extended form ---- */

static struct soft_cq *cq_of_ex(struct ibv_cq_ex *cq)
{
	return (struct soft_cq *)cq;
}

static int soft_cq_ex_take_next(struct soft_cq *cq)
{
	if (!soft_cq_take_next_completion(cq))
		return ENOENT;
	cq->vcq.cq_ex.status = cq->current.status;
	cq->vcq.cq_ex.wr_id = cq->current.wr_id;
	return 0;
}

static int cq_ex_start_poll(struct ibv_cq_ex *cq_ex, struct ibv_poll_cq_attr *attr)
{
	struct soft_cq *cq = cq_of_ex(cq_ex);
	int error = soft_check_context_and_object(soft_context(cq_ex->context), &cq->object);

	if (error || attr->comp_mask)
		return EINVAL;
	pthread_mutex_lock(&cq->lock);
	error = soft_cq_ex_take_next(cq);
	cq->is_polling = error == 0;
	if (error)
		pthread_mutex_unlock(&cq->lock);
	return error;
}

static int cq_ex_next_poll(struct ibv_cq_ex *cq_ex)
{
	struct soft_cq *cq = cq_of_ex(cq_ex);

	if (!cq->is_polling)
		return soft_report_broken_rule(soft_context(cq_ex->context),
		                               "ibv_next_poll without an ibv_start_poll that gave 0");
	return soft_cq_ex_take_next(cq);
}

static void cq_ex_end_poll(struct ibv_cq_ex *cq_ex)
{
	struct soft_cq *cq = cq_of_ex(cq_ex);

	if (!cq->is_polling) {
		soft_report_broken_rule(soft_context(cq_ex->context),
		                        "ibv_end_poll without an ibv_start_poll that gave 0");
		return;
	}
	cq->is_polling = false;
	pthread_mutex_unlock(&cq->lock);
}

/* The completion at hand, if its field `flag` was asked for when the queue was made. */
static const struct card_cqe *soft_cq_ex_current_completion(struct ibv_cq_ex *cq_ex, uint64_t flag)
{
	struct soft_cq *cq = cq_of_ex(cq_ex);

	if (!cq->is_polling)
		soft_report_broken_rule(soft_context(cq_ex->context),
		                        "a completion is read outside ibv_start_poll and ibv_end_poll");
	else if (flag && !(cq->wc_flags & flag))
		soft_report_broken_rule(soft_context(cq_ex->context),
		                        "a field (0x%llx) is read that the queue was not made for",
		                        (unsigned long long)flag);
	else if (flag && flag != IBV_WC_EX_WITH_QP_NUM && cq->current.status)
		soft_report_broken_rule(soft_context(cq_ex->context), "a field (0x%llx) of a failed completion is read",
		                        (unsigned long long)flag);
	return &cq->current;
}

static enum ibv_wc_opcode cq_ex_read_opcode(struct ibv_cq_ex *cq)
{
	return soft_cq_ex_current_completion(cq, 0)->is_receive ? IBV_WC_RECV : IBV_WC_SEND;
}

static uint32_t cq_ex_read_vendor_err(struct ibv_cq_ex *cq)
{
	return soft_cq_ex_current_completion(cq, 0)->vendor_err;
}

static uint32_t cq_ex_read_byte_len(struct ibv_cq_ex *cq)
{
	return soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_BYTE_LEN)->byte_len;
}

static uint32_t cq_ex_read_qp_num(struct ibv_cq_ex *cq)
{
	return soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_QP_NUM)->qp_num;
}

static unsigned int cq_ex_read_wc_flags(struct ibv_cq_ex *cq)
{
	return soft_cq_ex_current_completion(cq, 0)->wc_flags;
}

static uint64_t cq_ex_read_completion_ts(struct ibv_cq_ex *cq)
{
	return soft_clock_ticks_of_ns(soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)->stamp_ns);
}

static uint64_t cq_ex_read_wallclock_ns(struct ibv_cq_ex *cq)
{
	return soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)->wall_ns;
}

static uint32_t cq_ex_read_flow_tag(struct ibv_cq_ex *cq)
{
	return soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_FLOW_TAG)->flow_tag;
}

/* What a raw frame has not. */
static uint32_t cq_ex_read_src_qp(struct ibv_cq_ex *cq)
{
	(void)soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_SRC_QP);
	return 0;
}

static uint32_t cq_ex_read_slid(struct ibv_cq_ex *cq)
{
	(void)soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_SLID);
	return 0;
}

static uint8_t cq_ex_read_sl(struct ibv_cq_ex *cq)
{
	(void)soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_SL);
	return 0;
}

static uint8_t cq_ex_read_dlid_path_bits(struct ibv_cq_ex *cq)
{
	(void)soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_DLID_PATH_BITS);
	return 0;
}

static __be32 cq_ex_read_imm_data(struct ibv_cq_ex *cq)
{
	(void)soft_cq_ex_current_completion(cq, IBV_WC_EX_WITH_IMM);
	return 0;
}

struct ibv_cq_ex *soft_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	const uint64_t known = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_FLOW_TAG |
	                       IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	uint32_t flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	struct soft_cq *cq;
	struct ibv_cq_ex *ex;

	if (attr->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS || attr->wc_flags & ~known ||
	    flags & ~(uint32_t)(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	cq = cq_create(context, attr->cqe, attr->channel, attr->comp_vector, flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	if (!cq)
		return NULL;
	cq->wc_flags = attr->wc_flags;
	ex = &cq->vcq.cq_ex;
	ex->start_poll = cq_ex_start_poll;
	ex->next_poll = cq_ex_next_poll;
	ex->end_poll = cq_ex_end_poll;
	ex->read_opcode = cq_ex_read_opcode;
	ex->read_vendor_err = cq_ex_read_vendor_err;
	ex->read_byte_len = cq_ex_read_byte_len;
	ex->read_imm_data = cq_ex_read_imm_data;
	ex->read_qp_num = cq_ex_read_qp_num;
	ex->read_src_qp = cq_ex_read_src_qp;
	ex->read_wc_flags = cq_ex_read_wc_flags;
	ex->read_slid = cq_ex_read_slid;
	ex->read_sl = cq_ex_read_sl;
	ex->read_dlid_path_bits = cq_ex_read_dlid_path_bits;
	ex->read_completion_ts = cq_ex_read_completion_ts;
	ex->read_flow_tag = cq_ex_read_flow_tag;
	ex->read_completion_wallclock_ns = cq_ex_read_wallclock_ns;
	return ex;
}
