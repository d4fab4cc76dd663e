/* The driver: a device of libibverbs whose card is a process. Devices, contexts, memory, and the way to the card. */
#include "driver.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/ib_user_verbs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* What libibverbs exports for drivers. context_at is an offset in the shape of a pointer. */
void verbs_register_driver_34(const struct verbs_device_ops *ops);
void *_verbs_init_and_alloc_context(struct ibv_device *device, int cmd_fd, size_t size,
                                    struct verbs_context *context_at, uint32_t driver_id);
void verbs_uninit_context(struct verbs_context *context);
void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops);

#define NODE_BYTES 4096

/* ---- rules ---- */

static void soft_print_broken_rule_and_maybe_abort(struct soft_context *context, const char *text)
{
	fprintf(stderr, "vmasoft: rule broken: %s\n", text);
	if (!context->is_lenient)
		abort();
}

int soft_report_broken_rule(struct soft_context *context, const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	soft_print_broken_rule_and_maybe_abort(context, text);
	return EINVAL;
}

int soft_check_context_and_object(struct soft_context *context, const struct soft_object *object)
{
	uint32_t violations = atomic_load(&context->page->violations);

	/* What the card has seen, told by the next call. */
	if (violations != atomic_exchange(&context->violations_told, violations))
		soft_print_broken_rule_and_maybe_abort(context, context->page->violation);
	if (getpid() != context->pid)
		return soft_report_broken_rule(context, "process %d uses a context that process %d has opened",
		                               getpid(), context->pid);
	if (object && !atomic_load(&object->is_alive))
		return soft_report_broken_rule(context, "a %s is used after it was destroyed", object->kind);
	return 0;
}

void *soft_object_new(struct soft_context *context, size_t size, size_t object_at, const char *kind)
{
	char *memory = calloc(1, size);
	struct soft_object *object;

	if (!memory)
		return NULL;
	object = (struct soft_object *)(memory + object_at);
	object->kind = kind;
	atomic_store(&object->is_alive, true);
	pthread_mutex_lock(&context->lock);
	object->next = context->objects;
	context->objects = object;
	pthread_mutex_unlock(&context->lock);
	return memory;
}

void soft_object_mark_dead(struct soft_object *object)
{
	atomic_store(&object->is_alive, false);
}

/* ---- the way to the card: the command descriptor ---- */

/* Programs may set it not to wait; commands are answered within the call all the same. */
static bool can_retry_after_waiting_for_socket(int socket, short events)
{
	struct pollfd what = {.fd = socket, .events = events};

	return errno == EINTR ||
	       (errno == EAGAIN && (syscall(SYS_ppoll, &what, 1, NULL, NULL, 0) > 0 || errno == EINTR));
}

static int receive_reply(int socket, struct card_reply *reply, int fds[3])
{
	struct iovec iov = {.iov_base = reply, .iov_len = sizeof(*reply)};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
	struct cmsghdr *cmsg;
	ssize_t len;

	do
		len = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
	while (len < 0 && can_retry_after_waiting_for_socket(socket, POLLIN));
	cmsg = CMSG_FIRSTHDR(&msg);
	if (len > 0 && cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
		memcpy(fds, CMSG_DATA(cmsg), cmsg->cmsg_len - CMSG_LEN(0));
	return len == sizeof(*reply) ? 0 : EIO;
}

/* A card that has ended answers as a removed device does. */
static int card_request_and_receive_reply(int socket, const struct card_request *request, struct card_reply *reply,
                                          int fds[3])
{
	ssize_t len;

	do
		len = send(socket, request, sizeof(*request), MSG_NOSIGNAL);
	while (len < 0 && can_retry_after_waiting_for_socket(socket, POLLOUT));
	if (len != sizeof(*request))
		return EIO;
	return receive_reply(socket, reply, fds) ? EIO : reply->error;
}

int soft_ask_card(struct soft_context *context, struct card_request *request, struct card_reply *reply, int *fd)
{
	int fds[3] = {-1, -1, -1}, error = soft_check_context_and_object(context, NULL);

	if (error)
		return error;
	pthread_mutex_lock(&context->lock);
	error = card_request_and_receive_reply(context->ibv.context.cmd_fd, request, reply, fds);
	pthread_mutex_unlock(&context->lock);
	if (fd)
		*fd = fds[0];
	return error;
}

int soft_ask_card_about_object(struct soft_context *context, enum card_request_type type, uint32_t object)
{
	struct card_request request = {.type = type, .object = object};
	struct card_reply reply;

	return soft_ask_card(context, &request, &reply, NULL);
}

void *soft_map_shared_and_close_fd(int fd, uint64_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	close(fd);
	return memory == MAP_FAILED ? NULL : memory;
}

/* After the post, in this order: card/client.c says what it meets. Not the C library's write: a real card has no cancellation
 * point here, and who is inside the library would leave its locks taken. */
void soft_ring_card_doorbell(struct soft_context *context)
{
	uint64_t one = 1;

	if (atomic_load(&context->page->sleeping) && atomic_exchange(&context->page->sleeping, 0) &&
	    syscall(SYS_write, context->doorbell, &one, sizeof(one)) < 0 && errno != EAGAIN)
		perror("vmasoft: doorbell");
}

void soft_drop_events_of_object(struct soft_context *context, int fd, uint64_t channel, uint64_t handle)
{
	struct card_request request = {.type = CARD_REQUEUE_EVENTS};
	struct ib_uverbs_async_event_desc event; /* one of a channel is its first field */
	struct card_reply reply;

	request.again.channel = channel;
	while (request.again.count < CARD_MAX_EVENTS && recv(fd, &event, sizeof(event), MSG_DONTWAIT) > 0) {
		if (event.element == handle)
			continue;
		request.again.element[request.again.count] = event.element;
		request.again.event_type[request.again.count++] = channel ? 0 : event.event_type;
	}
	if (request.again.count)
		soft_ask_card(context, &request, &reply, NULL);
}

/* ---- queries ---- */

static int soft_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                                struct ibv_device_attr_ex *attr, size_t attr_size)
{
	struct card_request request = {.type = CARD_QUERY};
	struct card_reply reply;
	struct ibv_device_attr_ex full = {0};
	struct ibv_device_attr *device = &full.orig_attr;
	int error = soft_ask_card(soft_context(context), &request, &reply, NULL);
	uint8_t *guid = (uint8_t *)&device->node_guid;
	const uint8_t *mac = reply.query.mac;

	if (error)
		return error;
	if (input && input->comp_mask)
		return EINVAL;
	snprintf(device->fw_ver, sizeof(device->fw_ver), "1.0.0");
	memcpy(guid, (uint8_t[]){mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}, 8);
	device->sys_image_guid = device->node_guid;
	device->max_mr_size = UINT64_MAX;
	device->page_size_cap = 0xfffff000;
	device->vendor_id = SOFT_VENDOR_ID;
	device->vendor_part_id = 1;
	device->hw_ver = 1;
	device->max_qp = CARD_MAX_QPS;
	device->max_qp_wr = CARD_MAX_WR;
	device->device_cap_flags =
	        IBV_DEVICE_RAW_IP_CSUM | IBV_DEVICE_MANAGED_FLOW_STEERING | IBV_DEVICE_PORT_ACTIVE_EVENT;
	device->max_sge = CARD_MAX_SGE;
	device->max_cq = CARD_MAX_CQS;
	device->max_cqe = CARD_MAX_CQE;
	device->max_mr = CARD_MAX_MRS;
	device->max_pd = CARD_MAX_PDS;
	device->max_raw_ethy_qp = CARD_MAX_QPS;
	device->max_pkeys = 1;
	device->phys_port_cnt = 1;
	full.completion_timestamp_mask = SOFT_CLOCK_MASK;
	full.hca_core_clock = SOFT_CLOCK_KHZ;
	full.packet_pacing_caps = (struct ibv_packet_pacing_caps){.qp_rate_limit_min = CARD_RATE_MIN_KBPS,
	                                                          .qp_rate_limit_max = CARD_RATE_MAX_KBPS,
	                                                          .supported_qpts = 1u << IBV_QPT_RAW_PACKET};
	full.tso_caps = (struct ibv_tso_caps){.max_tso = CARD_MAX_TSO, .supported_qpts = 1u << IBV_QPT_RAW_PACKET};
	full.device_cap_flags_ex = device->device_cap_flags;
	full.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
	full.phys_port_cnt_ex = 1;
	memcpy(attr, &full, attr_size < sizeof(full) ? attr_size : sizeof(full));
	return 0;
}

static enum ibv_mtu mtu_of_bytes(uint32_t bytes)
{
	return bytes >= 4096 ? IBV_MTU_4096 : bytes >= 2048 ? IBV_MTU_2048 : bytes >= 1024 ? IBV_MTU_1024 : IBV_MTU_512;
}

static int soft_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr)
{
	struct card_request request = {.type = CARD_QUERY};
	struct card_reply reply;
	int error;

	if (port_num != 1)
		return EINVAL;
	error = soft_ask_card(soft_context(context), &request, &reply, NULL);
	if (error)
		return error;
	memset(attr, 0, sizeof(*attr));
	attr->state = reply.query.port_up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
	attr->phys_state = reply.query.port_up ? 5 : 3; /* link up; disabled */
	attr->max_mtu = IBV_MTU_4096;
	attr->active_mtu = mtu_of_bytes(reply.query.mtu);
	attr->gid_tbl_len = CARD_MAX_GIDS;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = 1u << 30;
	attr->max_vl_num = 1;
	attr->active_width = 1;  /* 1X */
	attr->active_speed = 32; /* 25 Gb/s */
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

static int soft_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	struct timespec now;

	(void)context;
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EOPNOTSUPP;
	clock_gettime(CLOCK_MONOTONIC, &now);
	/* As mlx5 does: the count of ticks is all in the nanoseconds. */
	values->raw_clock = (struct timespec){
	        .tv_nsec = (long)soft_clock_ticks_of_ns((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec)};
	return 0;
}

/* ---- protection domains and memory ---- */

static struct ibv_pd *soft_alloc_pd(struct ibv_context *ibv_context)
{
	struct soft_context *context = soft_context(ibv_context);
	struct card_request request = {.type = CARD_PD_ALLOC};
	struct card_reply reply;
	struct soft_pd *pd;

	errno = soft_ask_card(context, &request, &reply, NULL);
	if (errno)
		return NULL;
	pd = soft_object_new(context, sizeof(*pd), offsetof(struct soft_pd, object), "protection domain");
	if (!pd) {
		soft_ask_card_about_object(context, CARD_PD_FREE, reply.object);
		errno = ENOMEM;
		return NULL;
	}
	pd->pd.context = ibv_context;
	pd->pd.handle = reply.object;
	return &pd->pd;
}

static int soft_dealloc_pd(struct ibv_pd *ibv_pd)
{
	struct soft_pd *pd = (struct soft_pd *)ibv_pd;
	struct soft_context *context = soft_context(ibv_pd->context);
	int error = soft_check_context_and_object(context, &pd->object);

	if (!error)
		error = soft_ask_card_about_object(context, CARD_PD_FREE, ibv_pd->handle);
	if (!error)
		soft_object_mark_dead(&pd->object);
	return error;
}

static struct ibv_mr *soft_reg_mr(struct ibv_pd *ibv_pd, void *addr, size_t length, uint64_t iova, int access)
{
	struct soft_context *context = soft_context(ibv_pd->context);
	struct card_request request = {.type = CARD_MR_REG};
	struct card_reply reply;
	struct soft_mr *mr;

	errno = soft_check_context_and_object(context, &((struct soft_pd *)ibv_pd)->object);
	if (errno)
		return NULL;
	request.mr.addr = (uintptr_t)addr;
	request.mr.length = length;
	request.mr.iova = iova;
	request.mr.access = (uint32_t)access;
	request.mr.pd = ibv_pd->handle;
	errno = soft_ask_card(context, &request, &reply, NULL);
	if (errno)
		return NULL;
	mr = soft_object_new(context, sizeof(*mr), offsetof(struct soft_mr, object), "memory region");
	if (!mr) {
		soft_ask_card_about_object(context, CARD_MR_DEREG, reply.object);
		errno = ENOMEM;
		return NULL;
	}
	mr->mr.mr_type = VERBS_MR_ORDINARY;
	mr->mr.access = access;
	mr->mr.ibv_mr.context = ibv_pd->context;
	mr->mr.ibv_mr.handle = mr->mr.ibv_mr.lkey = mr->mr.ibv_mr.rkey = reply.object;
	return &mr->mr.ibv_mr;
}

static int soft_dereg_mr(struct verbs_mr *verbs_mr)
{
	struct soft_mr *mr = (struct soft_mr *)verbs_mr;
	struct soft_context *context = soft_context(verbs_mr->ibv_mr.context);
	int error = soft_check_context_and_object(context, &mr->object);

	if (!error)
		error = soft_ask_card_about_object(context, CARD_MR_DEREG, verbs_mr->ibv_mr.lkey);
	if (!error)
		soft_object_mark_dead(&mr->object);
	return error;
}

/* ---- asynchronous events ---- */

static void soft_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	(void)context;
	if (event->event_type == IBV_EVENT_QP_FATAL)
		soft_qp(event->element.qp)->events_read++;
	else if (event->event_type == IBV_EVENT_CQ_ERR)
		soft_cq(event->element.cq)->async_read++;
}

/* ---- contexts ---- */

static void soft_free_context(struct ibv_context *ibv_context)
{
	struct soft_context *context = soft_context(ibv_context);
	struct soft_object *object;

	while ((object = context->objects)) {
		context->objects = object->next;
		if (strcmp(object->kind, "queue pair") == 0) {
			struct soft_qp *qp = (struct soft_qp *)((char *)object - offsetof(struct soft_qp, object));

			munmap(qp->head, qp->bytes);
			free(qp);
		} else if (strcmp(object->kind, "completion queue") == 0) {
			struct soft_cq *cq = (struct soft_cq *)((char *)object - offsetof(struct soft_cq, object));

			munmap(cq->head, cq->bytes);
			free(cq);
		} else if (strcmp(object->kind, "memory region") == 0) {
			free((char *)object - offsetof(struct soft_mr, object));
		} else if (strcmp(object->kind, "protection domain") == 0) {
			free((char *)object - offsetof(struct soft_pd, object));
		} else {
			free((char *)object - offsetof(struct soft_flow, object));
		}
	}
	if (context->node_page)
		munmap(context->node_page, NODE_BYTES);
	if (context->page)
		munmap(context->page, sizeof(*context->page));
	if (context->doorbell >= 0)
		close(context->doorbell);
	verbs_uninit_context(&context->ibv);
	free(context);
}

static const struct verbs_context_ops soft_ops = {
        .alloc_pd = soft_alloc_pd,
        .async_event = soft_async_event,
        .cq_event = soft_cq_count_event_read,
        .create_cq = soft_create_cq,
        .create_cq_ex = soft_create_cq_ex,
        .create_flow = soft_create_flow,
        .create_qp = soft_create_qp,
        .create_qp_ex = soft_create_qp_ex,
        .dealloc_pd = soft_dealloc_pd,
        .dereg_mr = soft_dereg_mr,
        .destroy_cq = soft_destroy_cq,
        .destroy_flow = soft_destroy_flow,
        .destroy_qp = soft_destroy_qp,
        .free_context = soft_free_context,
        .modify_qp = soft_modify_qp,
        .poll_cq = soft_poll_cq,
        .post_recv = soft_post_recv,
        .post_send = soft_post_send,
        .query_device_ex = soft_query_device_ex,
        .query_port = soft_query_port,
        .query_qp = soft_query_qp,
        .query_rt_values = soft_query_rt_values,
        .reg_mr = soft_reg_mr,
        .req_notify_cq = soft_req_notify_cq,
};

/* The library has copied the operations to where programs of any age look for them: each has to be where ours says. */
static bool context_layout_is_as_expected(const struct verbs_context *context)
{
	const struct ibv_context_ops *ops = &context->context.ops;

	return context->sz == sizeof(*context) && (void *)ops->_compat_alloc_pd == (void *)soft_alloc_pd &&
	       (void *)ops->_compat_async_event == (void *)soft_async_event &&
	       (void *)ops->_compat_cq_event == (void *)soft_cq_count_event_read &&
	       (void *)ops->_compat_create_cq == (void *)soft_create_cq &&
	       (void *)ops->_compat_create_qp == (void *)soft_create_qp &&
	       (void *)ops->_compat_dereg_mr == (void *)soft_dereg_mr &&
	       (void *)ops->_compat_destroy_qp == (void *)soft_destroy_qp &&
	       (void *)ops->_compat_modify_qp == (void *)soft_modify_qp &&
	       (void *)ops->_compat_query_qp == (void *)soft_query_qp &&
	       (void *)ops->_compat_reg_mr == (void *)soft_reg_mr && ops->poll_cq == soft_poll_cq &&
	       ops->post_send == soft_post_send && ops->req_notify_cq == soft_req_notify_cq &&
	       context->ibv_create_flow == soft_create_flow && context->ibv_destroy_flow == soft_destroy_flow &&
	       context->create_qp_ex == soft_create_qp_ex && context->query_device_ex == soft_query_device_ex &&
	       context->query_rt_values == soft_query_rt_values;
}

/*
 * A mapping of a device's node holds the node open as a descriptor does, with what the process has in the card. So a
 * page of it is mapped, and one byte of it, which nobody else has, is locked: the lock ends with the last of both.
 */
static int context_map_and_lock_node(struct soft_context *context, int cmd_fd, uint64_t *node_byte)
{
	struct flock lock = {.l_type = F_WRLCK, .l_len = 1};

	if (getrandom(node_byte, sizeof(*node_byte), 0) != sizeof(*node_byte))
		return EIO;
	*node_byte = *node_byte >> 2 | 1;
	lock.l_start = (off_t)*node_byte;
	if (fcntl(cmd_fd, F_OFD_SETLK, &lock) != 0)
		return errno;
	context->node_page = mmap(NULL, NODE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, cmd_fd, 0);
	if (context->node_page != MAP_FAILED)
		return 0;
	context->node_page = NULL;
	return errno;
}

/*
 * The command descriptor becomes a connection to the card, whose socket is named by the device's folder in the tree. So
 * what a process has in the card ends as with the kernel: when nobody holds that descriptor any more, be it a child.
 */
static int card_connect(const struct ibv_device *device, int cmd_fd)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char path[IBV_SYSFS_PATH_MAX + 8], format[16];
	FILE *file;
	int fd, n;

	snprintf(path, sizeof(path), "%s/card", device->ibdev_path);
	snprintf(format, sizeof(format), "%%%zus", sizeof(addr.sun_path) - 1);
	file = fopen(path, "re");
	if (!file)
		return ENODEV;
	n = fscanf(file, format, addr.sun_path);
	fclose(file);
	fd = n == 1 ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		close(fd);
		fd = -1;
	}
	if (fd < 0)
		return ENODEV;
	n = dup3(fd, cmd_fd, O_CLOEXEC) < 0 ? errno : 0;
	close(fd);
	return n;
}

static int soft_context_open_on_card(struct soft_context *context, uint64_t node_byte)
{
	struct card_request request = {.type = CARD_OPEN, .open = {.proto = CARD_PROTO, .node_byte = node_byte}};
	struct card_reply reply;
	int fds[3] = {-1, -1, -1},
	    error = card_request_and_receive_reply(context->ibv.context.cmd_fd, &request, &reply, fds);

	if (fds[0] >= 0)
		context->page = soft_map_shared_and_close_fd(fds[0], sizeof(*context->page));
	context->ibv.context.async_fd = fds[1];
	context->doorbell = fds[2];
	return error ? error : context->page ? 0 : ENOMEM;
}

static struct verbs_context *soft_alloc_context(struct ibv_device *device, int cmd_fd, void *private_data)
{
	const char *rules = getenv("VMASOFT_RULES");
	struct soft_context *context;
	uint64_t node_byte;
	int error;

	(void)private_data;
	context = _verbs_init_and_alloc_context(device, cmd_fd, sizeof(*context),
	                                        (void *)offsetof(struct soft_context, ibv), 0);
	if (!context)
		return NULL;
	context->pid = getpid();
	context->is_lenient = rules && strcmp(rules, "error") == 0;
	context->doorbell = -1;
	context->ibv.context.num_comp_vectors = 1;
	pthread_mutex_init(&context->lock, NULL);
	verbs_set_ops(&context->ibv, &soft_ops);
	if (!context_layout_is_as_expected(&context->ibv)) {
		fprintf(stderr, "vmasoft: this libibverbs is laid out in another way than that of rdma-core 44\n");
		abort();
	}
	error = context_map_and_lock_node(context, cmd_fd, &node_byte);
	if (error == 0)
		error = card_connect(device, cmd_fd);
	if (error == 0)
		error = soft_context_open_on_card(context, node_byte);
	if (error == 0)
		return &context->ibv;
	soft_free_context(&context->ibv.context);
	errno = error;
	return NULL;
}

/* ---- devices ---- */

static struct verbs_device *soft_alloc_device(struct verbs_sysfs_dev *sysfs_dev)
{
	(void)sysfs_dev;
	return calloc(1, sizeof(struct verbs_device));
}

static void soft_uninit_device(struct verbs_device *device)
{
	free(device);
}

static const struct verbs_match_ent soft_matches[] = {
        {.u.modalias = "rdma_device:*Nvmasoft*", .kind = VERBS_MATCH_BY_NAME},
        {0},
};

static const struct verbs_device_ops soft_device_ops = {
        .name = "vmasoft",
        .match_min_abi_version = 1,
        .match_max_abi_version = 1,
        .match_table = soft_matches,
        .alloc_device = soft_alloc_device,
        .uninit_device = soft_uninit_device,
        .alloc_context = soft_alloc_context,
};

__attribute__((constructor)) static void soft_register_verbs_driver(void)
{
	verbs_register_driver_34(&soft_device_ops);
}
