/*
 * device - one opening of an RDMA device, and whether it can be used at all.
 *
 * Whether a device can be used is not asked but tried once, by a raw packet queue pair and a rule. So VMA_NIC=auto
 * knows at the time of open that it has to take another backend.
 */
#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>

#include "../os.h"
#include "verbs.h"

#define PROBE_PACKETS 16

bool verbs_has_capability(unsigned number)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};

	return syscall(SYS_capget, &head, data) == 0 &&
	       (data[CAP_TO_INDEX(number)].effective & CAP_TO_MASK(number)) != 0;
}

int verbs_fd_move_high_nonblock(int *fd)
{
	const int kept = nic_fd_move_high(*fd), flags = os_fcntl(kept, F_GETFL, 0);

	*fd = kept;
	return flags < 0 || os_fcntl(kept, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

void verbs_fd_forget(int fd)
{
	nic_fd_report_not_internal(fd);
}

static struct ibv_context *open_ibv_context_by_name(const struct verbs_lib *lib, const char *name, int *error)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list;

	errno = 0;
	list = lib->ibv_get_device_list(NULL);
	*error = errno != 0 ? -errno : -ENODEV;
	if (list == NULL)
		return NULL;
	for (struct ibv_device **at = list; *at != NULL && context == NULL; at++) {
		if (strcmp((*at)->name, name) != 0)
			continue;
		errno = 0;
		context = lib->ibv_open_device(*at);
		*error = context != NULL ? 0 : errno != 0 ? -errno : -ENODEV;
	}
	lib->ibv_free_device_list(list);
	return context;
}

static int query_rdma_device(const struct verbs_device *device, struct ibv_device_attr_ex *attr)
{
	const struct verbs_context *extended = verbs_get_ctx_op(device->context, query_device_ex);
	int rc = ENOSYS;

	*attr = (struct ibv_device_attr_ex){.comp_mask = 0};
	if (extended != NULL)
		rc = extended->query_device_ex(device->context, NULL, attr, sizeof(*attr));
	if (rc == 0)
		return 0;
	*attr = (struct ibv_device_attr_ex){.comp_mask = 0};
	return device->lib->ibv_query_device(device->context, &attr->orig_attr);
}

bool verbs_device_is_gone(const struct verbs_device *device)
{
	struct ibv_device_attr_ex attr;

	return query_rdma_device(device, &attr) != 0;
}

static int query_rdma_device_limits(struct verbs_device *device)
{
	struct verbs_limits *limits = &device->limits;
	struct ibv_device_attr_ex attr;
	uint64_t ticks;
	const int rc = query_rdma_device(device, &attr);

	if (rc != 0)
		return -rc;
	limits->wr_max = attr.orig_attr.max_qp_wr > 0 ? (uint32_t)attr.orig_attr.max_qp_wr : 0;
	limits->cqe_max = attr.orig_attr.max_cqe > 0 ? (uint32_t)attr.orig_attr.max_cqe : 0;
	limits->sge_max = attr.orig_attr.max_sge > 0 ? (uint32_t)attr.orig_attr.max_sge : 1;
	if (limits->wr_max > limits->cqe_max)
		limits->wr_max = limits->cqe_max;
	if (limits->sge_max > VERBS_SEGS_MAX)
		limits->sge_max = VERBS_SEGS_MAX;
	if (attr.tso_caps.supported_qpts & 1u << IBV_QPT_RAW_PACKET)
		limits->tso_max = attr.tso_caps.max_tso;
	limits->has_checksum = attr.orig_attr.device_cap_flags & IBV_DEVICE_RAW_IP_CSUM ||
	                       attr.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM;
	limits->has_moderation =
	        attr.cq_mod_caps.max_cq_count != 0 && verbs_get_ctx_op(device->context, modify_cq) != NULL;
	if (attr.packet_pacing_caps.supported_qpts & 1u << IBV_QPT_RAW_PACKET) {
		limits->pace_min = attr.packet_pacing_caps.qp_rate_limit_min;
		limits->pace_max = attr.packet_pacing_caps.qp_rate_limit_max;
	}
	limits->clock_mask = attr.completion_timestamp_mask;
	limits->clock_khz = attr.hca_core_clock;
	limits->has_clock = limits->clock_mask != 0 && verbs_read_device_clock_ticks(device->context, &ticks);
	return 0;
}

/* Segmentation offload is used if the driver also makes queue pairs for it. */
static int open_probe_queue(struct verbs_device *device, struct verbs_queue *queue, const char **what)
{
	struct verbs_queue_attr attr = {.rx_packets = PROBE_PACKETS,
	                                .rx_sges = 1,
	                                .tx_packets = PROBE_PACKETS,
	                                .tx_sges = 1,
	                                .tso = device->limits.tso_max != 0,
	                                .rx_stamps = VERBS_STAMPS_WALL};
	int rc = verbs_queue_open(device, &attr, queue, what);

	if (rc == 0 || rc == -EPERM || !attr.tso || queue->tx_cq == NULL || queue->qp != NULL)
		return rc;
	verbs_queue_close(queue);
	attr.tso = false;
	device->limits.tso_max = 0;
	return verbs_queue_open(device, &attr, queue, what);
}

/* 0; -errno and what was in vain. */
static int probe_device_queues(struct verbs_device *device, const char **what)
{
	struct verbs_queue queue = {0};
	int rc = open_probe_queue(device, &queue, what);

	device->limits.has_wall = rc == 0 && queue.rx_stamps == VERBS_STAMPS_WALL;
	if (rc == 0) {
		*what = "a flow rule";
		rc = verbs_probe_flow_rules(device, queue.qp);
	}
	verbs_queue_close(&queue);
	return rc;
}

static void log_device_not_used(const char *name, const struct verbs_device_port *place, const char *what, int rc)
{
	vma_log_once(VMA_LOG_WARN, "%s: RDMA device %s is not used: %s: %s", name, place->device, what, strerror(-rc));
}

static void close_device(struct verbs_device *device)
{
	verbs_exempts_fini(&device->exempts);
	if (device->pd != NULL)
		device->lib->ibv_dealloc_pd(device->pd);
	if (device->context != NULL) {
		verbs_fd_forget(device->context->cmd_fd);
		verbs_fd_forget(device->context->async_fd);
		device->lib->ibv_close_device(device->context);
	}
	free(device);
}

int verbs_device_open(const char *name, const struct verbs_device_port *place, uint32_t generation,
                      struct verbs_device **out)
{
	const struct verbs_lib *lib = verbs_lib();
	const char *what = "opening it";
	struct verbs_device *device;
	int rc;

	if (lib == NULL) {
		vma_log_once(VMA_LOG_INFO, "%s: RDMA device %s is not used: there is no libibverbs.so.1", name,
		             place->device);
		return -ENODEV;
	}
	if (!verbs_has_capability(CAP_NET_RAW)) {
		log_device_not_used(name, place, "without CAP_NET_RAW there are no raw packet queue pairs", -EPERM);
		return -EPERM;
	}
	device = calloc(1, sizeof(*device));
	if (device == NULL)
		return -ENOMEM;
	*device = (struct verbs_device){.lib = lib, .refs = 1, .generation = generation, .place = *place};
	device->context = open_ibv_context_by_name(lib, place->device, &rc);
	if (rc < 0)
		goto fail;
	verbs_device_mappings_set_dontfork(device);
	verbs_exempts_init(&device->exempts, device->context->device);
	/* Commands are answered at once whatever the flags say; only events are waited for. */
	rc = verbs_fd_move_high_nonblock(&device->context->cmd_fd);
	if (rc == 0)
		rc = verbs_fd_move_high_nonblock(&device->context->async_fd);
	if (rc < 0)
		goto fail;
	what = "asking for its limits";
	rc = query_rdma_device_limits(device);
	if (rc < 0)
		goto fail;
	what = "a protection domain";
	errno = 0;
	device->pd = lib->ibv_alloc_pd(device->context);
	rc = device->pd != NULL ? probe_device_queues(device, &what) : errno != 0 ? -errno : -EIO;
	if (rc < 0)
		goto fail;
	*out = device;
	return 0;
fail:
	log_device_not_used(name, place, what, rc);
	close_device(device);
	return rc;
}

void verbs_device_put(struct verbs_device *device)
{
	if (device != NULL && --device->refs == 0)
		close_device(device);
}

void verbs_device_close_in_child(const struct verbs_device *device)
{
	os_close(device->context->cmd_fd);
	os_close(device->context->async_fd);
}
