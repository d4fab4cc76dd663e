/*
 * queue - the objects of one queue pair in the device, made by the best way that the provider has.
 *
 *   thread domain       or the device's domain, with the provider's own locks
 *   completion queue    extended and for a single thread; extended; plain
 *   queue pair          extended (ibv_wr_*); plain (ibv_post_send). With segmentation offload, if it is asked for
 */
#include <errno.h>
#include <string.h>

#include <vma/log.h>

#include "../os.h"
#include "mlx5.h"
#include "verbs.h"

#define TSO_HEADER_MAX 128 /* Ethernet with a tag, IPv4 and TCP with all options: 138; ours are shorter */

static int errno_or_eio(void)
{
	return errno != 0 ? -errno : -EIO;
}

/* One thread at a time has each half, and the two halves have nothing in common that a lock would be for. */
static void alloc_thread_and_parent_domain(struct verbs_queue *queue)
{
	struct ibv_context *context = queue->device->context;
	struct ibv_td_init_attr td = {.comp_mask = 0};
	struct ibv_parent_domain_init_attr attr = {.pd = queue->device->pd};

	queue->td = ibv_alloc_td(context, &td);
	if (queue->td == NULL)
		return;
	attr.td = queue->td;
	queue->domain = ibv_alloc_parent_domain(context, &attr);
	if (queue->domain == NULL) {
		ibv_dealloc_td(queue->td);
		queue->td = NULL;
	}
}

static uint64_t wc_flags_for_timestamp_kind(enum verbs_timestamp_kind stamps)
{
	switch (stamps) {
	case VERBS_STAMPS_RAW:
	case VERBS_STAMPS_SYSTEM:
		return IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
	case VERBS_STAMPS_WALL:
		return IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	default:
		return 0;
	}
}

static struct ibv_cq_ex *create_cq_with_timestamps(struct ibv_context *context, uint32_t entries,
                                                   struct ibv_comp_channel *channel, enum verbs_timestamp_kind stamps)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = entries,
	                                   .channel = channel,
	                                   .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | wc_flags_for_timestamp_kind(stamps),
	                                   .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
	                                   .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
	struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &attr);

	if (ex != NULL)
		return ex;
	attr.comp_mask = attr.flags = 0;
	return ibv_create_cq_ex(context, &attr);
}

/* *stamps: those that it is to have, and then those that it has. */
static struct ibv_cq *open_cq(struct verbs_queue *queue, uint32_t entries, struct ibv_comp_channel *channel,
                              enum verbs_timestamp_kind *stamps, struct ibv_cq_ex **ex)
{
	struct ibv_context *context = queue->device->context;

	*ex = create_cq_with_timestamps(context, entries, channel, *stamps);
	if (*ex == NULL && *stamps != VERBS_STAMPS_NONE) {
		*stamps = VERBS_STAMPS_NONE;
		*ex = create_cq_with_timestamps(context, entries, channel, *stamps);
	}
	if (*ex != NULL)
		return ibv_cq_ex_to_cq(*ex);
	*stamps = VERBS_STAMPS_NONE;
	errno = 0;
	return queue->device->lib->ibv_create_cq(context, (int)entries, NULL, channel, 0);
}

/* posts: by ibv_wr_*; else by ibv_post_send, as which mlx4 has segmentation offload. */
static struct ibv_qp *open_qp_ex(struct verbs_queue *queue, const struct ibv_qp_init_attr *plain, bool tso, bool posts)
{
	struct ibv_qp_init_attr_ex attr = {
	        .send_cq = plain->send_cq,
	        .recv_cq = plain->recv_cq,
	        .cap = plain->cap,
	        .qp_type = plain->qp_type,
	        .comp_mask = IBV_QP_INIT_ATTR_PD | (posts ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0) |
	                     (tso ? IBV_QP_INIT_ATTR_MAX_TSO_HEADER : 0),
	        .pd = queue->domain != NULL ? queue->domain : queue->device->pd,
	        .max_tso_header = tso ? TSO_HEADER_MAX : 0,
	        .send_ops_flags = posts ? IBV_QP_EX_WITH_SEND | (tso ? IBV_QP_EX_WITH_TSO : 0) : 0,
	};
	struct verbs_context *extended = verbs_get_ctx_op(queue->device->context, create_qp_ex);
	struct ibv_qp *qp = extended != NULL ? extended->create_qp_ex(queue->device->context, &attr) : NULL;

	if (qp == NULL)
		return NULL;
	queue->qp_ex = posts ? queue->device->lib->ibv_qp_to_qp_ex(qp) : NULL;
	queue->inline_max = attr.cap.max_inline_data;
	return qp;
}

/* With less and less inline data: what a device can, it does not say. */
static int open_qp(struct verbs_queue *queue, const struct verbs_queue_attr *wanted)
{
	struct ibv_qp_init_attr attr = {
	        .send_cq = queue->tx_cq,
	        .recv_cq = queue->rx_cq,
	        .cap = {.max_send_wr = wanted->tx_packets,
	                .max_recv_wr = wanted->rx_packets,
	                .max_send_sge = wanted->tx_sges,
	                .max_recv_sge = wanted->rx_sges},
	        .qp_type = IBV_QPT_RAW_PACKET,
	};
	uint32_t inline_bytes = wanted->inline_bytes;

	for (;; inline_bytes /= 2) {
		struct ibv_qp_init_attr plain = attr;

		plain.cap.max_inline_data = inline_bytes;
		queue->qp = open_qp_ex(queue, &plain, wanted->tso, true);
		if (queue->qp == NULL && errno != EPERM && wanted->tso) {
			queue->qp = open_qp_ex(queue, &plain, true, false);
		} else if (queue->qp == NULL && errno != EPERM) {
			queue->qp = queue->device->lib->ibv_create_qp(queue->device->pd, &plain);
			queue->inline_max = plain.cap.max_inline_data;
		}
		if (queue->qp != NULL || inline_bytes == 0 || errno == EPERM)
			break;
	}
	if (queue->qp == NULL)
		return errno_or_eio();
	if (queue->inline_max > inline_bytes)
		queue->inline_max = inline_bytes;
	return 0;
}

/* RESET, INIT, RTR, RTS: a raw packet queue pair has no peer to be told of. */
static int qp_to_rts_state(struct verbs_queue *queue)
{
	static const enum ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
	int rc = 0;

	for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]) && rc == 0; i++) {
		struct ibv_qp_attr attr = {.qp_state = states[i], .port_num = queue->device->place.port};

		rc = queue->device->lib->ibv_modify_qp(queue->qp, &attr,
		                                       IBV_QP_STATE | (states[i] == IBV_QPS_INIT ? IBV_QP_PORT : 0));
	}
	return -rc;
}

/* Of one that sends: a rate is nothing that it has earlier. */
int verbs_queue_set_rate_limit(struct verbs_queue *queue, uint32_t kbps)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .rate_limit = kbps};

	return -queue->device->lib->ibv_modify_qp(queue->qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT);
}

int verbs_queue_open(struct verbs_device *device, const struct verbs_queue_attr *attr, struct verbs_queue *queue,
                     const char **what)
{
	enum verbs_timestamp_kind tx_stamps = VERBS_STAMPS_NONE;
	int rc;

	*queue = (struct verbs_queue){.device = device, .rx_stamps = attr->rx_stamps};
	device->refs++;
	alloc_thread_and_parent_domain(queue);
	errno = 0;
	*what = "a completion channel";
	queue->channel = device->lib->ibv_create_comp_channel(device->context);
	if (queue->channel == NULL)
		return errno_or_eio();
	rc = verbs_fd_move_high_nonblock(&queue->channel->fd);
	if (rc < 0)
		return rc;
	*what = "a completion queue";
	queue->rx_cq = open_cq(queue, attr->rx_packets, queue->channel, &queue->rx_stamps, &queue->rx_cq_ex);
	if (queue->rx_cq == NULL)
		return errno_or_eio();
	queue->tx_cq = open_cq(queue, attr->tx_packets, NULL, &tx_stamps, &queue->tx_cq_ex);
	if (queue->tx_cq == NULL)
		return errno_or_eio();
	*what = "a raw packet queue pair";
	rc = open_qp(queue, attr);
	verbs_device_mappings_set_dontfork(device); /* a thread domain has registers of its own */
	return rc < 0 ? rc : qp_to_rts_state(queue);
}

bool verbs_queue_stop(struct verbs_queue *queue)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	return queue->device->lib->ibv_modify_qp(queue->qp, &attr, IBV_QP_STATE) == 0;
}

/* The other way round. What a device that has failed refuses to end is gone with its context. */
void verbs_queue_close(struct verbs_queue *queue)
{
	struct verbs_device *device = queue->device;

	if (device == NULL)
		return;
	mlx5_queue_close_rings(queue->mlx5);
	if (queue->qp != NULL)
		device->lib->ibv_destroy_qp(queue->qp);
	if (queue->tx_cq != NULL)
		device->lib->ibv_destroy_cq(queue->tx_cq);
	if (queue->rx_cq != NULL)
		device->lib->ibv_destroy_cq(queue->rx_cq);
	if (queue->channel != NULL) {
		verbs_fd_forget(queue->channel->fd);
		device->lib->ibv_destroy_comp_channel(queue->channel);
	}
	if (queue->domain != NULL)
		device->lib->ibv_dealloc_pd(queue->domain);
	if (queue->td != NULL)
		ibv_dealloc_td(queue->td);
	*queue = (struct verbs_queue){0};
	verbs_device_put(device);
}
