/* Queue pairs of the driver: their making, their states, their end. driver_post.c has their queues. */
#include "driver.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static bool qp_cap_fits_card(const struct ibv_qp_cap *cap)
{
	return cap->max_send_wr <= CARD_MAX_WR && cap->max_recv_wr <= CARD_MAX_WR &&
	       cap->max_send_sge <= CARD_MAX_SGE && cap->max_recv_sge <= CARD_MAX_SGE &&
	       cap->max_inline_data <= CARD_MAX_INLINE;
}

/* The queues are exactly as deep as was asked for: a real card gives more, and hides who counts wrong. */
static uint32_t max_tso_header_of_attr(const struct ibv_qp_init_attr_ex *attr)
{
	return attr->comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER ? attr->max_tso_header : 0;
}

static int qp_create_on_card(struct soft_context *context, struct soft_qp *qp, const struct ibv_qp_init_attr_ex *attr)
{
	struct card_request request = {.type = CARD_QP_CREATE};
	struct card_reply reply;
	int fd = -1, error;

	request.qp.handle = (uintptr_t)&qp->vqp.qp;
	request.qp.pd = attr->pd->handle;
	request.qp.send_cq = attr->send_cq->handle;
	request.qp.recv_cq = attr->recv_cq->handle;
	request.qp.sq_depth = attr->cap.max_send_wr;
	request.qp.rq_depth = attr->cap.max_recv_wr;
	request.qp.max_send_sge = attr->cap.max_send_sge;
	request.qp.max_recv_sge = attr->cap.max_recv_sge;
	request.qp.max_inline = attr->cap.max_inline_data;
	request.qp.max_tso_header = max_tso_header_of_attr(attr);
	request.qp.signals_all = attr->sq_sig_all != 0;
	error = soft_ask_card(context, &request, &reply, &fd);
	if (error)
		return error;
	qp->bytes = reply.memory_bytes;
	qp->head = soft_map_shared_and_close_fd(fd, qp->bytes);
	if (!qp->head) {
		soft_ask_card_about_object(context, CARD_QP_DESTROY, reply.object);
		return ENOMEM;
	}
	qp->vqp.qp.handle = qp->vqp.qp.qp_num = reply.object;
	return 0;
}

static int qp_check_attr(struct soft_context *context, const struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
	                       IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	const uint64_t known_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
	int error;

	if (attr->qp_type != IBV_QPT_RAW_PACKET || attr->srq || attr->comp_mask & ~known)
		return EOPNOTSUPP;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags & ~IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)
		return EOPNOTSUPP;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS && attr->send_ops_flags & ~known_ops)
		return EOPNOTSUPP;
	if (max_tso_header_of_attr(attr) > CARD_MAX_TSO_HEADER)
		return EINVAL;
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd || !attr->send_cq || !attr->recv_cq ||
	    !qp_cap_fits_card(&attr->cap))
		return EINVAL;
	error = soft_check_context_and_object(context, &((struct soft_pd *)attr->pd)->object);
	if (!error)
		error = soft_check_context_and_object(context, &soft_cq(attr->send_cq)->object);
	return error ? error : soft_check_context_and_object(context, &soft_cq(attr->recv_cq)->object);
}

struct ibv_qp *soft_create_qp_ex(struct ibv_context *ibv_context, struct ibv_qp_init_attr_ex *attr)
{
	struct soft_context *context = soft_context(ibv_context);
	struct soft_qp *qp;
	struct ibv_qp *ibv;

	errno = qp_check_attr(context, attr);
	if (errno)
		return NULL;
	qp = soft_object_new(context, sizeof(*qp), offsetof(struct soft_qp, object), "queue pair");
	if (!qp) {
		errno = ENOMEM;
		return NULL;
	}
	errno = qp_create_on_card(context, qp, attr);
	if (errno) {
		soft_object_mark_dead(&qp->object);
		return NULL;
	}
	qp->cap = attr->cap;
	qp->max_tso_header = max_tso_header_of_attr(attr);
	qp->signals_all = attr->sq_sig_all;
	pthread_mutex_init(&qp->sq_lock, NULL);
	pthread_mutex_init(&qp->rq_lock, NULL);
	ibv = &qp->vqp.qp;
	ibv->context = ibv_context;
	ibv->qp_context = attr->qp_context;
	ibv->pd = attr->pd;
	ibv->send_cq = attr->send_cq;
	ibv->recv_cq = attr->recv_cq;
	ibv->qp_type = attr->qp_type;
	ibv->state = IBV_QPS_RESET;
	pthread_mutex_init(&ibv->mutex, NULL);
	pthread_cond_init(&ibv->cond, NULL);
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
		qp->vqp.comp_mask |= VERBS_QP_HAS_EX;
		soft_set_wr_functions(&qp->vqp.qp_ex);
	}
	atomic_store(&context->qps[ibv->qp_num % CARD_MAX_QPS], qp);
	return ibv;
}

struct ibv_qp *soft_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = {
	        .qp_context = attr->qp_context,
	        .send_cq = attr->send_cq,
	        .recv_cq = attr->recv_cq,
	        .srq = attr->srq,
	        .cap = attr->cap,
	        .qp_type = attr->qp_type,
	        .sq_sig_all = attr->sq_sig_all,
	        .comp_mask = IBV_QP_INIT_ATTR_PD,
	        .pd = pd,
	};

	return soft_create_qp_ex(pd->context, &ex);
}

/* ---- states ---- */

static void qp_purge_completions(struct soft_qp *qp)
{
	soft_cq_discard_completions_of_qp(soft_cq(qp->vqp.qp.send_cq), qp->vqp.qp.qp_num);
	if (qp->vqp.qp.recv_cq != qp->vqp.qp.send_cq)
		soft_cq_discard_completions_of_qp(soft_cq(qp->vqp.qp.recv_cq), qp->vqp.qp.qp_num);
}

/* What a change to a state takes beside the state: a raw queue pair has a port and nothing else. */
static bool qp_modify_mask_is_allowed(enum ibv_qp_state from, const struct ibv_qp_attr *attr, int mask)
{
	int needs = from == IBV_QPS_RESET && attr->qp_state == IBV_QPS_INIT ? IBV_QP_PORT : 0;
	int may = attr->qp_state == IBV_QPS_INIT ? IBV_QP_PORT : attr->qp_state == IBV_QPS_RTS ? IBV_QP_RATE_LIMIT : 0;

	if ((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != from)
		return false;
	if ((mask & IBV_QP_PORT) && attr->port_num != 1)
		return false;
	return (mask & IBV_QP_STATE) && (mask & needs) == needs && !(mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE | may));
}

int soft_modify_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int attr_mask)
{
	struct soft_qp *qp = soft_qp(ibv_qp);
	struct soft_context *context = soft_context(ibv_qp->context);
	struct card_request request = {.type = CARD_QP_MODIFY, .object = ibv_qp->handle};
	struct card_reply reply;
	enum ibv_qp_state from;
	int error = soft_check_context_and_object(context, &qp->object);

	if (error)
		return error;
	from = atomic_load(&qp->head->state);
	if (!qp_modify_mask_is_allowed(from, attr, attr_mask))
		return soft_report_broken_rule(context,
		                               "queue pair 0x%x: ibv_modify_qp from state %d to %d with mask 0x%x",
		                               ibv_qp->qp_num, from, attr->qp_state, attr_mask);
	if (attr_mask & IBV_QP_RATE_LIMIT && attr->rate_limit != 0 &&
	    (attr->rate_limit < CARD_RATE_MIN_KBPS || attr->rate_limit > CARD_RATE_MAX_KBPS))
		return EINVAL;
	request.modify.state = attr->qp_state;
	request.modify.has_rate = (attr_mask & IBV_QP_RATE_LIMIT) != 0;
	request.modify.rate_kbps = request.modify.has_rate ? attr->rate_limit : 0;
	pthread_mutex_lock(&qp->sq_lock);
	pthread_mutex_lock(&qp->rq_lock);
	error = soft_ask_card(context, &request, &reply, NULL);
	if (!error && attr->qp_state == IBV_QPS_RESET) {
		qp_purge_completions(qp);
		qp->sq_signals_at = qp->sq_posted;
		atomic_store(&qp->sq_freed, qp->sq_posted);
		atomic_store(&qp->rq_freed, qp->rq_posted);
	}
	pthread_mutex_unlock(&qp->rq_lock);
	pthread_mutex_unlock(&qp->sq_lock);
	if (error == EINVAL)
		return soft_report_broken_rule(context, "queue pair 0x%x: no way from state %d to %d", ibv_qp->qp_num,
		                               from, attr->qp_state);
	return error;
}

int soft_query_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr)
{
	struct soft_qp *qp = soft_qp(ibv_qp);
	int error = soft_check_context_and_object(soft_context(ibv_qp->context), &qp->object);

	(void)attr_mask;
	if (error)
		return error;
	memset(attr, 0, sizeof(*attr));
	memset(init_attr, 0, sizeof(*init_attr));
	attr->qp_state = attr->cur_qp_state = atomic_load(&qp->head->state);
	attr->port_num = attr->qp_state == IBV_QPS_RESET ? 0 : 1;
	attr->cap = init_attr->cap = qp->cap;
	init_attr->qp_context = ibv_qp->qp_context;
	init_attr->send_cq = ibv_qp->send_cq;
	init_attr->recv_cq = ibv_qp->recv_cq;
	init_attr->qp_type = ibv_qp->qp_type;
	init_attr->sq_sig_all = qp->signals_all;
	return 0;
}

int soft_destroy_qp(struct ibv_qp *ibv_qp)
{
	struct soft_qp *qp = soft_qp(ibv_qp);
	struct soft_context *context = soft_context(ibv_qp->context);
	int error = soft_check_context_and_object(context, &qp->object);

	if (!error)
		error = soft_ask_card_about_object(context, CARD_QP_DESTROY, ibv_qp->handle);
	if (error)
		return error;
	qp_purge_completions(qp);
	soft_drop_events_of_object(context, ibv_qp->context->async_fd, 0, (uintptr_t)ibv_qp);
	pthread_mutex_lock(&ibv_qp->mutex);
	while (ibv_qp->events_completed != qp->events_read)
		pthread_cond_wait(&ibv_qp->cond, &ibv_qp->mutex);
	pthread_mutex_unlock(&ibv_qp->mutex);
	atomic_store(&context->qps[ibv_qp->qp_num % CARD_MAX_QPS], NULL);
	soft_object_mark_dead(&qp->object);
	return 0;
}
