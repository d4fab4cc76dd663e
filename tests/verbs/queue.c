/* Queue pairs and completion queues: takes entries, moves frames, completes. */
#include "card.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	CARD_QUEUE_BURST = 64,               /* entries of one queue before the others get their turn */
	CARD_DELAYED_COMPLETIONS_MAX = 8192, /* completions that a fault holds back */
	QUEUE_PACE_BURST_NS = 2000000,       /* of a paced queue: the loop sleeps in milliseconds */
};

/* A packet that is cut: some of its frames may have left, when the wire was full or the pace had to be kept. */
struct card_tso_packet {
	struct card_wqe wqe;
	size_t bytes, at;
	uint8_t payload[CARD_MAX_TSO];
};

struct delayed {
	uint64_t due_ns;
	struct card_cq *cq;
	struct card_cqe cqe;
	bool is_solicited;
};
static struct delayed delayed[CARD_DELAYED_COMPLETIONS_MAX];
static uint32_t delayed_completions_head, delayed_completions_tail;
static uint32_t next_qp_number = 0x100, next_cq_number = 1;

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Memory that both sides map; the reply carries its descriptor, which the caller closes. */
static void *create_and_map_memfd(const char *name, uint64_t bytes, int *fd)
{
	void *memory;

	*fd = memfd_create(name, MFD_CLOEXEC);
	if (*fd < 0)
		return NULL;
	memory = MAP_FAILED;
	if (ftruncate(*fd, (off_t)bytes) == 0)
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (memory != MAP_FAILED)
		return memory;
	close(*fd);
	*fd = -1;
	return NULL;
}

/* ---- completion queues ---- */

static struct card_cq *cq_find(struct card_client *client, uint32_t number)
{
	struct card_cq *cq = &card.cqs[number % CARD_MAX_CQS];

	return number != 0 && cq->number == number && cq->client == client ? cq : NULL;
}

int cq_create(struct card_client *client, const struct card_request *request, struct card_reply *reply, int *fd)
{
	uint32_t tries = 0;
	struct card_cq *cq;

	if (request->cq.depth == 0 || request->cq.depth > CARD_MAX_CQE)
		return EINVAL;
	while (card.cqs[next_cq_number % CARD_MAX_CQS].number && ++tries < CARD_MAX_CQS)
		next_cq_number++;
	if (tries == CARD_MAX_CQS)
		return ENOMEM;
	cq = &card.cqs[next_cq_number % CARD_MAX_CQS];
	*cq = (struct card_cq){
	        .client = client,
	        .depth = request->cq.depth,
	        .handle = request->cq.handle,
	        .channel = request->cq.channel,
	        .ignores_overrun = request->cq.ignores_overrun,
	        .bytes = card_cq_bytes(request->cq.depth),
	};
	cq->head = create_and_map_memfd("card-cq", cq->bytes, fd);
	if (!cq->head)
		return ENOMEM;
	cq->number = next_cq_number++;
	reply->object = cq->number;
	reply->memory_bytes = cq->bytes;
	return 0;
}

static void cq_free(struct card_cq *cq)
{
	for (uint32_t i = delayed_completions_head; i != delayed_completions_tail; i++)
		if (delayed[i % CARD_DELAYED_COMPLETIONS_MAX].cq == cq)
			delayed[i % CARD_DELAYED_COMPLETIONS_MAX].cq = NULL;
	munmap(cq->head, cq->bytes);
	cq->number = 0;
}

int cq_destroy(struct card_client *client, uint32_t number)
{
	struct card_cq *cq = cq_find(client, number);

	if (!cq)
		return EINVAL;
	if (cq->users)
		return EBUSY;
	cq_free(cq);
	return 0;
}

/*
 * The driver arms, and then looks at `produced` once more; the card moves `produced`, and then looks whether it is
 * armed. Both are sequentially consistent, so one of the two sees the other: no completion stays without its event.
 */
static void cq_write_completion(struct card_cq *cq, const struct card_cqe *cqe, bool is_solicited)
{
	uint32_t used = cq->produced - atomic_load(&cq->head->consumed), armed;

	if (cq->has_overrun)
		return;
	if (used >= cq->depth && !cq->ignores_overrun) {
		cq->has_overrun = true;
		card_client_report_violation(cq->client,
		                             "completion queue %u: overrun, all of its %u entries are unread",
		                             cq->number, cq->depth);
		card_send_async_event_to_client(cq->client, cq->handle, IBV_EVENT_CQ_ERR);
		return;
	}
	cq->head->cqe[cq->produced % cq->depth] = *cqe;
	cq->produced++;
	atomic_store(&cq->head->produced, cq->produced);
	card.counts.completions++;
	armed = atomic_load(&cq->head->armed);
	if (armed == CARD_ARM_NONE || (armed == CARD_ARM_SOLICITED && !is_solicited))
		return;
	atomic_store(&cq->head->armed, CARD_ARM_NONE);
	if (cq->channel)
		card_send_completion_event(cq->channel, cq->handle);
}

static void cq_complete_or_delay(struct card_cq *cq, struct card_cqe *cqe, bool is_solicited)
{
	cqe->stamp_ns = clock_ns(CLOCK_MONOTONIC);
	cqe->wall_ns = clock_ns(CLOCK_REALTIME);
	/* Those that are held back stay before those that are not. */
	if (card.faults.cq_us == 0 && delayed_completions_head == delayed_completions_tail) {
		cq_write_completion(cq, cqe, is_solicited);
		return;
	}
	if (delayed_completions_tail - delayed_completions_head == CARD_DELAYED_COMPLETIONS_MAX) {
		cq_write_completion(delayed[delayed_completions_head % CARD_DELAYED_COMPLETIONS_MAX].cq,
		                    &delayed[delayed_completions_head % CARD_DELAYED_COMPLETIONS_MAX].cqe,
		                    delayed[delayed_completions_head % CARD_DELAYED_COMPLETIONS_MAX].is_solicited);
		delayed_completions_head++;
	}
	delayed[delayed_completions_tail++ % CARD_DELAYED_COMPLETIONS_MAX] = (struct delayed){
	        .due_ns = cqe->stamp_ns + card.faults.cq_us * 1000ull,
	        .cq = cq,
	        .cqe = *cqe,
	        .is_solicited = is_solicited,
	};
}

int64_t cqs_next_delayed_completion_ns(void)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC), due;

	if (delayed_completions_head == delayed_completions_tail)
		return -1;
	due = delayed[delayed_completions_head % CARD_DELAYED_COMPLETIONS_MAX].due_ns;
	return due > now ? (int64_t)(due - now) : 0;
}

void cqs_deliver_delayed(void)
{
	while (cqs_next_delayed_completion_ns() == 0) {
		struct delayed *first = &delayed[delayed_completions_head++ % CARD_DELAYED_COMPLETIONS_MAX];

		if (first->cq)
			cq_write_completion(first->cq, &first->cqe, first->is_solicited);
	}
}

/* ---- queue pairs ---- */

struct card_qp *qp_find(struct card_client *client, uint32_t number)
{
	struct card_qp *qp = &card.qps[number % CARD_MAX_QPS];

	return number != 0 && qp->number == number && qp->client == client ? qp : NULL;
}

bool qp_uses_pd(const struct card_client *client, uint32_t pd)
{
	for (int i = 0; i < CARD_MAX_QPS; i++)
		if (card.qps[i].number && card.qps[i].client == client && card.qps[i].pd == pd)
			return true;
	return false;
}

static void qp_drop_tso_packet(struct card_qp *qp)
{
	free(qp->cut);
	qp->cut = NULL;
}

static void qp_set_state(struct card_qp *qp, enum ibv_qp_state state)
{
	if (state != IBV_QPS_RTS)
		qp_drop_tso_packet(qp);
	qp->state = state;
	atomic_store(&qp->head->state, state);
}

int qp_create(struct card_client *client, const struct card_request *request, struct card_reply *reply, int *fd)
{
	struct card_cq *send_cq = cq_find(client, request->qp.send_cq);
	struct card_cq *recv_cq = cq_find(client, request->qp.recv_cq);
	uint32_t tries = 0;
	struct card_qp *qp;

	if (!send_cq || !recv_cq || request->qp.pd >= CARD_MAX_PDS || !client->pds[request->qp.pd])
		return EINVAL;
	if (request->qp.sq_depth > CARD_MAX_WR || request->qp.rq_depth > CARD_MAX_WR ||
	    request->qp.max_send_sge > CARD_MAX_SGE || request->qp.max_recv_sge > CARD_MAX_SGE ||
	    request->qp.max_inline > CARD_MAX_INLINE || request->qp.max_tso_header > CARD_MAX_TSO_HEADER)
		return EINVAL;
	while (card.qps[next_qp_number % CARD_MAX_QPS].number && ++tries < CARD_MAX_QPS)
		next_qp_number++;
	if (tries == CARD_MAX_QPS)
		return ENOMEM;
	qp = &card.qps[next_qp_number % CARD_MAX_QPS];
	*qp = (struct card_qp){
	        .client = client,
	        .pd = request->qp.pd,
	        .handle = request->qp.handle,
	        .send_cq = send_cq,
	        .recv_cq = recv_cq,
	        .sq_depth = request->qp.sq_depth,
	        .rq_depth = request->qp.rq_depth,
	        .max_send_sge = request->qp.max_send_sge,
	        .max_recv_sge = request->qp.max_recv_sge,
	        .max_inline = request->qp.max_inline,
	        .max_tso_header = request->qp.max_tso_header,
	        .signals_all = request->qp.signals_all,
	        .bytes = card_qp_bytes(request->qp.sq_depth, request->qp.rq_depth),
	};
	qp->head = create_and_map_memfd("card-qp", qp->bytes, fd);
	if (!qp->head)
		return ENOMEM;
	qp->number = next_qp_number++;
	qp_set_state(qp, IBV_QPS_RESET);
	send_cq->users++;
	recv_cq->users++;
	reply->object = qp->number;
	reply->memory_bytes = qp->bytes;
	return 0;
}

static void qp_drop_delayed_completions(const struct card_qp *qp)
{
	for (uint32_t i = delayed_completions_head; i != delayed_completions_tail; i++)
		if (delayed[i % CARD_DELAYED_COMPLETIONS_MAX].cqe.qp_num == qp->number)
			delayed[i % CARD_DELAYED_COMPLETIONS_MAX].cq = NULL;
}

static void qp_free(struct card_qp *qp)
{
	qp_drop_tso_packet(qp);
	qp_drop_delayed_completions(qp);
	qp->send_cq->users--;
	qp->recv_cq->users--;
	munmap(qp->head, qp->bytes);
	qp->number = 0;
}

int qp_destroy(struct card_client *client, uint32_t number)
{
	struct card_qp *qp = qp_find(client, number);

	if (!qp)
		return EINVAL;
	if (card_rules_use_qp(number))
		return EBUSY;
	qp_free(qp);
	return 0;
}

/* The program is gone: its queue pairs first, then what they complete to. */
void qps_destroy_of_client(struct card_client *client)
{
	for (int i = 0; i < CARD_MAX_QPS; i++)
		if (card.qps[i].number && card.qps[i].client == client)
			qp_free(&card.qps[i]);
	for (int i = 0; i < CARD_MAX_CQS; i++)
		if (card.cqs[i].number && card.cqs[i].client == client)
			cq_free(&card.cqs[i]);
}

/* ---- work ---- */

/* The next posted entry as a private copy; false: there is none. A driver that posts more than fits has gone mad. */
static bool qp_next_posted_entry(struct card_qp *qp, bool is_send, struct card_wqe *wqe)
{
	uint32_t posted = atomic_load(is_send ? &qp->head->sq_posted : &qp->head->rq_posted);
	uint32_t taken = is_send ? qp->sq_taken : qp->rq_taken, depth = is_send ? qp->sq_depth : qp->rq_depth;

	if (posted == taken || depth == 0 || posted - taken > depth)
		return false;
	*wqe = card_qp_entries(qp->head)[is_send ? taken % depth : qp->sq_depth + taken % depth];
	wqe->num_sge = min_u32(wqe->num_sge, is_send ? qp->max_send_sge : qp->max_recv_sge);
	wqe->inline_bytes = min_u32(wqe->inline_bytes, qp->max_inline);
	wqe->header_bytes = (uint16_t)min_u32(wqe->header_bytes, qp->max_tso_header);
	return true;
}

static void qp_count_taken_entry(struct card_qp *qp, bool is_send)
{
	if (is_send)
		atomic_store(&qp->head->sq_taken, ++qp->sq_taken);
	else
		atomic_store(&qp->head->rq_taken, ++qp->rq_taken);
}

static void qp_complete_entry(struct card_qp *qp, bool is_send, const struct card_wqe *wqe, struct card_cqe *cqe)
{
	cqe->wr_id = wqe->wr_id;
	cqe->qp_num = qp->number;
	cqe->queue_at = is_send ? qp->sq_taken : qp->rq_taken;
	cqe->is_receive = !is_send;
	cqe->vendor_err = cqe->status ? 0x50 + cqe->status : 0;
	/* A received frame is solicited; an error always is (IB specification, 11.4.2.2). */
	cq_complete_or_delay(is_send ? qp->send_cq : qp->recv_cq, cqe, !is_send || cqe->status);
}

/* Gives all that is posted back as flushed. */
static bool qp_flush_posted_entries(struct card_qp *qp)
{
	struct card_wqe wqe;
	bool any = false;

	for (int is_send = 0; is_send < 2; is_send++) {
		while (qp_next_posted_entry(qp, is_send, &wqe)) {
			struct card_cqe cqe = {.status = IBV_WC_WR_FLUSH_ERR};

			qp_count_taken_entry(qp, is_send);
			qp_complete_entry(qp, is_send, &wqe, &cqe);
			any = true;
		}
	}
	return any;
}

static void qp_fail_entry(struct card_qp *qp, bool is_send, const struct card_wqe *wqe, int status)
{
	struct card_cqe cqe = {.status = (uint8_t)status};

	qp_complete_entry(qp, is_send, wqe, &cqe);
	qp_set_state(qp, IBV_QPS_ERR);
	card_send_async_event_to_client(qp->client, qp->handle, IBV_EVENT_QP_FATAL);
	qp_flush_posted_entries(qp);
}

int qp_modify(struct card_client *client, const struct card_request *request)
{
	const enum ibv_qp_state state = (enum ibv_qp_state)request->modify.state;
	struct card_qp *qp = qp_find(client, request->object);
	bool is_next;

	if (!qp)
		return EINVAL;
	is_next = (qp->state == IBV_QPS_RESET && state == IBV_QPS_INIT) ||
	          (qp->state == IBV_QPS_INIT && (state == IBV_QPS_INIT || state == IBV_QPS_RTR)) ||
	          (qp->state == IBV_QPS_RTR && state == IBV_QPS_RTS) ||
	          (qp->state == IBV_QPS_RTS && state == IBV_QPS_RTS);
	if (state == IBV_QPS_ERR) {
		qp_set_state(qp, state);
		qp_flush_posted_entries(qp);
	} else if (state == IBV_QPS_RESET) {
		qp_set_state(qp, state);
		qp_drop_delayed_completions(qp);
		qp->sq_taken = atomic_load(&qp->head->sq_posted);
		qp->rq_taken = atomic_load(&qp->head->rq_posted);
	} else if (is_next) {
		qp_set_state(qp, state);
	} else {
		return EINVAL;
	}
	if (state == IBV_QPS_RESET || request->modify.has_rate)
		qp->rate_kbps = request->modify.has_rate ? request->modify.rate_kbps : 0;
	return 0;
}

/* ---- pacing ---- */

/* When the next frame may leave; what the loop has slept too long is made up for, as far as a burst goes. */
static void qp_pace_next_send(struct card_qp *qp, size_t len)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);

	if (qp->rate_kbps == 0)
		return;
	if (qp->send_due_ns + QUEUE_PACE_BURST_NS < now)
		qp->send_due_ns = now;
	qp->send_due_ns += len * 8 * 1000000u / qp->rate_kbps;
}

static bool qp_may_send(const struct card_qp *qp)
{
	return qp->rate_kbps == 0 || qp->send_due_ns <= clock_ns(CLOCK_MONOTONIC);
}

int64_t qps_next_paced_send_ns(void)
{
	uint64_t now = clock_ns(CLOCK_MONOTONIC);
	int64_t next = -1;

	for (int i = 0; i < CARD_MAX_QPS; i++) {
		struct card_qp *qp = &card.qps[i];
		int64_t left = qp->send_due_ns > now ? (int64_t)(qp->send_due_ns - now) : 0;

		if (qp->number && qp->rate_kbps != 0 && qp->state == IBV_QPS_RTS &&
		    atomic_load(&qp->head->sq_posted) != qp->sq_taken && (next < 0 || left < next))
			next = left;
	}
	return next;
}

static size_t card_max_frame_bytes(const uint8_t *frame)
{
	bool is_tagged = frame[12] == 0x81 && frame[13] == 0;

	return card.mtu + FRAME_ETH + (is_tagged ? 4 : 0);
}

/* One entry of the send queue; a status, 0 if the frame is on its way. */
static int qp_send(struct card_qp *qp, const struct card_wqe *wqe)
{
	uint8_t frame[FRAME_MAX];
	size_t len = 0;
	int status = 0;

	if (wqe->flags & IBV_SEND_INLINE) {
		len = wqe->inline_bytes;
		memcpy(frame, wqe->data, len);
	} else {
		status = memory_read_frame_from_program(qp, wqe, frame, sizeof(frame), &len);
	}
	if (status)
		return status;
	if (len < FRAME_ETH || len > sizeof(frame) || len > card_max_frame_bytes(frame)) {
		card_client_report_violation(qp->client,
		                             "queue pair 0x%x: a frame of %zu bytes is sent, the interface's MTU is %u",
		                             qp->number, len, card.mtu);
		return IBV_WC_LOC_LEN_ERR;
	}
	if (card.faults.sends_to_fail) {
		card.faults.sends_to_fail--;
		return IBV_WC_GENERAL_ERR;
	}
	if (wqe->flags & IBV_SEND_IP_CSUM)
		frame_write_checksums(frame, len);
	for (; len < FRAME_MIN; len++)
		frame[len] = 0;
	card.counts.tx_frames++;
	qp_pace_next_send(qp, len);
	port_send_frame(frame, len);
	return 0;
}

/* ---- segmentation offload ---- */

/* The packet is read from the program's memory, as a whole; a status. */
static int qp_begin_tso_packet(struct card_qp *qp, const struct card_wqe *wqe)
{
	const char *fault;
	int status;

	qp->cut = malloc(sizeof(*qp->cut));
	if (!qp->cut)
		return IBV_WC_GENERAL_ERR;
	qp->cut->wqe = *wqe;
	qp->cut->at = 0;
	status = memory_read_frame_from_program(qp, wqe, qp->cut->payload, sizeof(qp->cut->payload), &qp->cut->bytes);
	if (status)
		return status;
	fault = qp->cut->bytes > sizeof(qp->cut->payload)
	                ? "it is more than the card can"
	                : tso_header_fault(wqe->header, wqe->header_bytes, qp->cut->bytes, wqe->mss, card.mtu);
	if (fault) {
		card_client_report_violation(qp->client, "queue pair 0x%x: a packet of %zu bytes to be cut by %u: %s",
		                             qp->number, qp->cut->bytes, wqe->mss, fault);
		return IBV_WC_LOC_LEN_ERR;
	}
	if (card.faults.sends_to_fail) {
		card.faults.sends_to_fail--;
		return IBV_WC_GENERAL_ERR;
	}
	card.counts.tx_cut++;
	return 0;
}

/* Its next frame. True: that was the last one. */
static bool qp_send_tso_segment(struct card_qp *qp)
{
	struct card_tso_packet *cut = qp->cut;
	uint8_t frame[FRAME_MAX];
	size_t len = tso_write_segment(cut->wqe.header, cut->wqe.header_bytes, cut->payload, cut->bytes, cut->wqe.mss,
	                               cut->at, frame);

	for (; len < FRAME_MIN; len++)
		frame[len] = 0;
	card.counts.tx_frames++;
	qp_pace_next_send(qp, len);
	port_send_frame(frame, len);
	cut->at += cut->wqe.mss;
	return cut->at >= cut->bytes;
}

/* The entry that is at hand is done; false: there is more of it. */
static bool qp_do_send_entry(struct card_qp *qp, const struct card_wqe *wqe, int *status)
{
	*status = 0;
	if (wqe->mss == 0) {
		*status = qp_send(qp, wqe);
		return true;
	}
	if (!qp->cut)
		*status = qp_begin_tso_packet(qp, wqe);
	if (*status == 0 && !qp_send_tso_segment(qp))
		return false;
	qp_drop_tso_packet(qp);
	return true;
}

static bool qp_run_sends(struct card_qp *qp)
{
	struct card_wqe wqe;
	int done = 0;

	while (done < CARD_QUEUE_BURST && qp->state == IBV_QPS_RTS && port_can_send() && qp_may_send(qp) &&
	       qp_next_posted_entry(qp, true, &wqe)) {
		int status;

		done++;
		if (!qp_do_send_entry(qp, &wqe, &status))
			continue;
		qp_count_taken_entry(qp, true);
		if (status) {
			qp_fail_entry(qp, true, &wqe, status);
		} else if (qp->signals_all || (wqe.flags & IBV_SEND_SIGNALED)) {
			struct card_cqe cqe = {.status = IBV_WC_SUCCESS};

			qp_complete_entry(qp, true, &wqe, &cqe);
		}
	}
	return done > 0;
}

void qp_deliver_frame(struct card_qp *qp, const uint8_t *frame, size_t len, uint32_t flow_tag)
{
	struct card_cqe cqe = {.byte_len = (uint32_t)len, .flow_tag = flow_tag};
	struct card_wqe wqe;
	int status;

	if (qp->client->is_of_removed || (qp->state != IBV_QPS_RTR && qp->state != IBV_QPS_RTS)) {
		card.counts.rx_not_ready++;
		return;
	}
	if (!qp_next_posted_entry(qp, false, &wqe)) {
		card.counts.rx_no_buffer++;
		return;
	}
	status = memory_write_frame_to_program(qp, &wqe, frame, len);
	qp_count_taken_entry(qp, false);
	if (status == 0 && card.faults.receives_to_fail) {
		card.faults.receives_to_fail--;
		status = IBV_WC_GENERAL_ERR;
	}
	if (status) {
		qp_fail_entry(qp, false, &wqe, status);
		return;
	}
	card.counts.rx_copies++;
	if (frame_checksums_are_right(frame, len))
		cqe.wc_flags |= IBV_WC_IP_CSUM_OK;
	qp_complete_entry(qp, false, &wqe, &cqe);
}

static bool qp_has_work(struct card_qp *qp)
{
	bool sends = atomic_load(&qp->head->sq_posted) != qp->sq_taken;

	if (qp->client->is_of_removed)
		return false;
	if (qp->state == IBV_QPS_ERR)
		return sends || atomic_load(&qp->head->rq_posted) != qp->rq_taken;
	return qp->state == IBV_QPS_RTS && sends && port_can_send() && qp_may_send(qp);
}

bool qps_have_work(void)
{
	for (int i = 0; i < CARD_MAX_QPS; i++)
		if (card.qps[i].number && qp_has_work(&card.qps[i]))
			return true;
	return false;
}

bool qps_run(void)
{
	bool any = false;

	for (int i = 0; i < CARD_MAX_QPS; i++) {
		struct card_qp *qp = &card.qps[i];

		if (!qp->number || qp->client->is_of_removed)
			continue;
		if (qp->state == IBV_QPS_RTS)
			any |= qp_run_sends(qp);
		if (qp->state == IBV_QPS_ERR)
			any |= qp_flush_posted_entries(qp);
	}
	return any;
}
