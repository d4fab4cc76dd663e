/* Posting: checks an entry, writes it where the card looks, and counts what is free. */
#include "driver.h"
#include <errno.h>
#include <string.h>

static struct card_wqe *sq_entry(struct soft_qp *qp, uint32_t at)
{
	return &card_qp_entries(qp->head)[at % qp->cap.max_send_wr];
}

static struct card_wqe *rq_entry(struct soft_qp *qp, uint32_t at)
{
	return &card_qp_entries(qp->head)[qp->cap.max_send_wr + at % qp->cap.max_recv_wr];
}

/* ---- sends, under sq_lock ---- */

/* 0, or what is wrong with one more entry at the count `at`. */
static int sq_check_room(struct soft_qp *qp, uint32_t at, uint32_t signals_at)
{
	struct soft_context *context = soft_context(qp->vqp.qp.context);
	uint32_t freed = atomic_load(&qp->sq_freed), state = atomic_load(&qp->head->state);

	if (state != IBV_QPS_RTS && state != IBV_QPS_ERR)
		return soft_report_broken_rule(context, "queue pair 0x%x: a send is posted in state %u",
		                               qp->vqp.qp.qp_num, state);
	if (at - freed < qp->cap.max_send_wr)
		return 0;
	if ((int32_t)(signals_at - freed) <= 0)
		soft_report_broken_rule(
		        context,
		        "queue pair 0x%x: the send queue is full, and none of its %u entries will complete: "
		        "nothing was signalled",
		        qp->vqp.qp.qp_num, qp->cap.max_send_wr);
	else
		soft_report_broken_rule(context, "queue pair 0x%x: overrun of the send queue of %u entries",
		                        qp->vqp.qp.qp_num, qp->cap.max_send_wr);
	return ENOMEM;
}

static int sq_check_flags(struct soft_qp *qp, unsigned int flags)
{
	const unsigned int known =
	        IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE | IBV_SEND_IP_CSUM;

	return flags & ~known
	               ? soft_report_broken_rule(soft_context(qp->vqp.qp.context),
	                                         "queue pair 0x%x: unknown send flags 0x%x", qp->vqp.qp.qp_num, flags)
	               : 0;
}

static int wqe_set_list(struct soft_qp *qp, struct card_wqe *wqe, const struct ibv_sge *list, size_t n, uint32_t max)
{
	if (n > max)
		return soft_report_broken_rule(soft_context(qp->vqp.qp.context),
		                               "queue pair 0x%x: %zu pieces, it was made for %u", qp->vqp.qp.qp_num, n,
		                               max);
	for (size_t i = 0; i < n; i++)
		wqe->sge[i] = (struct card_sge){.addr = list[i].addr, .length = list[i].length, .lkey = list[i].lkey};
	wqe->num_sge = (uint32_t)n;
	return 0;
}

static int wqe_add_inline(struct soft_qp *qp, struct card_wqe *wqe, const void *data, size_t len)
{
	if (len > qp->cap.max_inline_data - wqe->inline_bytes)
		return soft_report_broken_rule(
		        soft_context(qp->vqp.qp.context),
		        "queue pair 0x%x: more inline data than the %u bytes that it was made for", qp->vqp.qp.qp_num,
		        qp->cap.max_inline_data);
	memcpy(wqe->data + wqe->inline_bytes, data, len);
	wqe->inline_bytes += (uint32_t)len;
	return 0;
}

/* A packet that is to be cut. The header is copied; the list has the rest. */
static int wqe_set_tso(struct soft_qp *qp, struct card_wqe *wqe, const void *header, size_t header_bytes, unsigned mss)
{
	struct soft_context *context = soft_context(qp->vqp.qp.context);

	if (qp->max_tso_header == 0)
		return soft_report_broken_rule(context, "queue pair 0x%x: it was not made for segmentation offload",
		                               qp->vqp.qp.qp_num);
	if (header_bytes == 0 || header_bytes > qp->max_tso_header)
		return soft_report_broken_rule(
		        context, "queue pair 0x%x: a header of %zu bytes to be repeated, it was made for %u",
		        qp->vqp.qp.qp_num, header_bytes, qp->max_tso_header);
	if (mss == 0 || mss > UINT16_MAX)
		return soft_report_broken_rule(context, "queue pair 0x%x: segments of %u bytes", qp->vqp.qp.qp_num,
		                               mss);
	if (!(wqe->flags & IBV_SEND_IP_CSUM))
		return soft_report_broken_rule(context, "queue pair 0x%x: segmentation offload without checksums",
		                               qp->vqp.qp.qp_num);
	if (wqe->flags & IBV_SEND_INLINE)
		return soft_report_broken_rule(context, "queue pair 0x%x: segmentation offload of inline data",
		                               qp->vqp.qp.qp_num);
	memcpy(wqe->header, header, header_bytes);
	wqe->header_bytes = (uint16_t)header_bytes;
	wqe->mss = (uint16_t)mss;
	return 0;
}

static int sq_write_wqe_of_send_wr(struct soft_qp *qp, uint32_t at, const struct ibv_send_wr *wr)
{
	struct card_wqe *wqe;
	int error = sq_check_room(qp, at, qp->sq_signals_at);

	if (!error)
		error = sq_check_flags(qp, wr->send_flags);
	if (!error && wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_TSO)
		error = soft_report_broken_rule(soft_context(qp->vqp.qp.context),
		                                "queue pair 0x%x: operation %d on raw frames", qp->vqp.qp.qp_num,
		                                wr->opcode);
	if (error)
		return error;
	wqe = sq_entry(qp, at);
	wqe->wr_id = wr->wr_id;
	wqe->flags = wr->send_flags;
	wqe->num_sge = wqe->inline_bytes = 0;
	wqe->mss = wqe->header_bytes = 0;
	if (wr->opcode == IBV_WR_TSO)
		error = wqe_set_tso(qp, wqe, wr->tso.hdr, wr->tso.hdr_sz, wr->tso.mss);
	if (error)
		return error;
	if (!(wr->send_flags & IBV_SEND_INLINE))
		error = wqe_set_list(qp, wqe, wr->sg_list, (size_t)wr->num_sge, qp->cap.max_send_sge);
	else
		for (int i = 0; i < wr->num_sge && !error; i++)
			error = wqe_add_inline(qp, wqe, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
	if (!error && (qp->signals_all || wr->send_flags & IBV_SEND_SIGNALED))
		qp->sq_signals_at = at + 1;
	return error;
}

int soft_post_send(struct ibv_qp *ibv_qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct soft_qp *qp = soft_qp(ibv_qp);
	struct soft_context *context = soft_context(ibv_qp->context);
	int error = soft_check_context_and_object(context, &qp->object);

	if (error) {
		*bad_wr = wr;
		return error;
	}
	pthread_mutex_lock(&qp->sq_lock);
	for (; wr && !error; wr = error ? wr : wr->next) {
		error = sq_write_wqe_of_send_wr(qp, qp->sq_posted, wr);
		if (error) {
			*bad_wr = wr;
			break;
		}
		qp->sq_posted++;
	}
	/* What precedes a bad entry is sent. */
	atomic_store(&qp->head->sq_posted, qp->sq_posted);
	pthread_mutex_unlock(&qp->sq_lock);
	soft_ring_card_doorbell(context);
	return error;
}

/* ---- receives ---- */

int soft_post_recv(struct ibv_qp *ibv_qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct soft_qp *qp = soft_qp(ibv_qp);
	struct soft_context *context = soft_context(ibv_qp->context);
	int error = soft_check_context_and_object(context, &qp->object);

	if (!error && atomic_load(&qp->head->state) == IBV_QPS_RESET)
		error = soft_report_broken_rule(context, "queue pair 0x%x: a receive is posted in state RESET",
		                                ibv_qp->qp_num);
	if (error) {
		*bad_wr = wr;
		return error;
	}
	pthread_mutex_lock(&qp->rq_lock);
	for (; wr; wr = wr->next) {
		struct card_wqe *wqe;

		if (qp->rq_posted - atomic_load(&qp->rq_freed) >= qp->cap.max_recv_wr) {
			soft_report_broken_rule(context, "queue pair 0x%x: overrun of the receive queue of %u entries",
			                        ibv_qp->qp_num, qp->cap.max_recv_wr);
			error = ENOMEM;
			break;
		}
		wqe = rq_entry(qp, qp->rq_posted);
		wqe->wr_id = wr->wr_id;
		wqe->flags = 0;
		error = wqe_set_list(qp, wqe, wr->sg_list, (size_t)wr->num_sge, qp->cap.max_recv_sge);
		if (error)
			break;
		qp->rq_posted++;
	}
	if (error)
		*bad_wr = wr;
	atomic_store(&qp->head->rq_posted, qp->rq_posted);
	pthread_mutex_unlock(&qp->rq_lock);
	/* In other states the card looks when a frame comes. */
	if (atomic_load(&qp->head->state) == IBV_QPS_ERR)
		soft_ring_card_doorbell(context);
	return error;
}

/* ---- ibv_wr_*: entries are written from build_from on, and posted by wr_complete ---- */

static struct soft_qp *qp_of_ex(struct ibv_qp_ex *qp)
{
	return (struct soft_qp *)qp;
}

/* The entry that is being built; NULL: there is none, or an error was met before. */
static struct card_wqe *wr_entry_being_built(struct soft_qp *qp)
{
	if (!qp->is_building) {
		soft_report_broken_rule(soft_context(qp->vqp.qp.context),
		                        "queue pair 0x%x: ibv_wr_* outside ibv_wr_start and "
		                        "ibv_wr_complete",
		                        qp->vqp.qp.qp_num);
		return NULL;
	}
	if (qp->build_error)
		return NULL;
	if (qp->build_from == qp->sq_posted) {
		qp->build_error = soft_report_broken_rule(
		        soft_context(qp->vqp.qp.context),
		        "queue pair 0x%x: data before the operation that it belongs to", qp->vqp.qp.qp_num);
		return NULL;
	}
	return sq_entry(qp, qp->sq_posted - 1);
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct soft_qp *qp = qp_of_ex(ex);

	pthread_mutex_lock(&qp->sq_lock);
	qp->build_error = soft_check_context_and_object(soft_context(ex->qp_base.context), &qp->object);
	qp->build_from = qp->sq_posted;
	qp->build_signals_at = qp->sq_signals_at;
	qp->is_building = true;
}

/* A new entry; NULL: none, and the error is noted. */
static struct card_wqe *wr_begin_entry(struct ibv_qp_ex *ex)
{
	struct soft_qp *qp = qp_of_ex(ex);
	struct card_wqe *wqe;

	if (!qp->is_building) {
		soft_report_broken_rule(soft_context(ex->qp_base.context),
		                        "queue pair 0x%x: ibv_wr_send without ibv_wr_start", ex->qp_base.qp_num);
		return NULL;
	}
	if (!qp->build_error)
		qp->build_error = sq_check_room(qp, qp->sq_posted, qp->sq_signals_at);
	if (!qp->build_error)
		qp->build_error = sq_check_flags(qp, ex->wr_flags);
	if (qp->build_error)
		return NULL;
	wqe = sq_entry(qp, qp->sq_posted++);
	wqe->wr_id = ex->wr_id;
	wqe->flags = ex->wr_flags & ~(unsigned int)IBV_SEND_INLINE;
	wqe->num_sge = wqe->inline_bytes = 0;
	wqe->mss = wqe->header_bytes = 0;
	if (qp->signals_all || ex->wr_flags & IBV_SEND_SIGNALED)
		qp->sq_signals_at = qp->sq_posted;
	return wqe;
}

static void wr_send(struct ibv_qp_ex *ex)
{
	wr_begin_entry(ex);
}

static void wr_send_tso(struct ibv_qp_ex *ex, void *header, uint16_t header_bytes, uint16_t mss)
{
	struct card_wqe *wqe = wr_begin_entry(ex);

	if (wqe)
		qp_of_ex(ex)->build_error = wqe_set_tso(qp_of_ex(ex), wqe, header, header_bytes, mss);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t num_sge, const struct ibv_sge *list)
{
	struct soft_qp *qp = qp_of_ex(ex);
	struct card_wqe *wqe = wr_entry_being_built(qp);

	if (wqe)
		qp->build_error = wqe_set_list(qp, wqe, list, num_sge, qp->cap.max_send_sge);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};

	wr_set_sge_list(ex, 1, &sge);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t num_buf, const struct ibv_data_buf *list)
{
	struct soft_qp *qp = qp_of_ex(ex);
	struct card_wqe *wqe = wr_entry_being_built(qp);

	if (!wqe)
		return;
	if (wqe->mss)
		qp->build_error = soft_report_broken_rule(soft_context(ex->qp_base.context),
		                                          "queue pair 0x%x: segmentation offload of inline data",
		                                          ex->qp_base.qp_num);
	wqe->flags |= IBV_SEND_INLINE;
	for (size_t i = 0; i < num_buf && !qp->build_error; i++)
		qp->build_error = wqe_add_inline(qp, wqe, list[i].addr, list[i].length);
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf buf = {.addr = addr, .length = length};

	wr_set_inline_data_list(ex, 1, &buf);
}

static void wr_drop_built_entries(struct soft_qp *qp)
{
	qp->sq_posted = qp->build_from;
	qp->sq_signals_at = qp->build_signals_at;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct soft_qp *qp = qp_of_ex(ex);
	struct soft_context *context = soft_context(ex->qp_base.context);
	int error;

	if (!qp->is_building)
		return soft_report_broken_rule(context, "queue pair 0x%x: ibv_wr_complete without ibv_wr_start",
		                               ex->qp_base.qp_num);
	error = qp->build_error;
	if (error)
		wr_drop_built_entries(qp);
	qp->is_building = false;
	atomic_store(&qp->head->sq_posted, qp->sq_posted);
	pthread_mutex_unlock(&qp->sq_lock);
	soft_ring_card_doorbell(context);
	return error;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	struct soft_qp *qp = qp_of_ex(ex);

	if (!qp->is_building) {
		soft_report_broken_rule(soft_context(ex->qp_base.context),
		                        "queue pair 0x%x: ibv_wr_abort without ibv_wr_start", ex->qp_base.qp_num);
		return;
	}
	wr_drop_built_entries(qp);
	qp->is_building = false;
	pthread_mutex_unlock(&qp->sq_lock);
}

void soft_set_wr_functions(struct ibv_qp_ex *ex)
{
	ex->wr_start = wr_start;
	ex->wr_send = wr_send;
	ex->wr_send_tso = wr_send_tso;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
}
