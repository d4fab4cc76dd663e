/* Connections: contexts of drivers, completion channels, tests that set faults. */
#include "card.h"
#include <errno.h>
#include <fcntl.h>
#include <rdma/ib_user_verbs.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int listener = -1, node = -1;

#define MAPPED_LOOK_MS 5

void card_client_report_violation(struct card_client *client, const char *format, ...)
{
	char text[sizeof(client->page->violation)];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "card: process %d: %s\n", (int)client->pid, text);
	card.counts.violations++;
	if (!client->page)
		return;
	if (atomic_load(&client->page->violations) == 0)
		memcpy(client->page->violation, text, sizeof(text));
	atomic_fetch_add(&client->page->violations, 1);
}

/* ---- events ---- */

void card_send_async_event_to_client(struct card_client *client, uint64_t element, enum ibv_event_type type)
{
	struct ib_uverbs_async_event_desc event = {.element = element, .event_type = (uint32_t)type};

	if (send(client->async_fd, &event, sizeof(event), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		fprintf(stderr, "card: process %d does not read its asynchronous events\n", (int)client->pid);
}

/* About the device or its port, which has the number 1. */
void card_send_async_event_to_all(enum ibv_event_type type)
{
	for (struct card_client *client = card.clients; client; client = client->next)
		if (client->is_context && !client->is_closing && !client->is_of_removed)
			card_send_async_event_to_client(client, 1, type);
}

/* The device has gone, and their rules with it. */
void card_detach_contexts(void)
{
	for (struct card_client *client = card.clients; client; client = client->next) {
		if (!client->is_context)
			continue;
		client->is_of_removed = true;
		card_rules_remove_of_client(client);
	}
}

static void channel_send_completion_event(struct card_client *channel, uint64_t handle)
{
	struct ib_uverbs_comp_event_desc event = {.cq_handle = handle};

	if (send(channel->fd, &event, sizeof(event), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EAGAIN)
		fprintf(stderr, "card: process %d does not read its completion channel\n", (int)channel->pid);
}

void card_send_completion_event(uint64_t channel, uint64_t handle)
{
	for (struct card_client *client = card.clients; client; client = client->next) {
		if (client->is_channel && !client->is_closing && client->cookie == channel) {
			channel_send_completion_event(client, handle);
			card.counts.events++;
			return;
		}
	}
}

/* What the driver took from a descriptor while it looked for the events of something that it destroys. */
static int card_client_requeue_events(struct card_client *client, const struct card_request *request)
{
	struct card_client *channel = card.clients;

	if (request->again.count > CARD_MAX_EVENTS)
		return EINVAL;
	while (channel && !(channel->is_channel && channel->cookie == request->again.channel))
		channel = channel->next;
	for (uint32_t i = 0; i < request->again.count; i++) {
		if (request->again.channel == 0)
			card_send_async_event_to_client(client, request->again.element[i],
			                                (enum ibv_event_type)request->again.event_type[i]);
		else if (channel)
			channel_send_completion_event(channel, request->again.element[i]);
	}
	return 0;
}

/* ---- sleep ---- */

/*
 * The card says that it sleeps, and then looks at the queues once more; a driver posts, and then looks whether the card
 * sleeps. Both are sequentially consistent, so one of the two sees the other.
 */
bool card_prepare_sleep(void)
{
	for (struct card_client *client = card.clients; client; client = client->next)
		if (client->page)
			atomic_store(&client->page->sleeping, 1);
	return !qps_have_work() && !port_has_looped_frames();
}

void card_end_sleep(void)
{
	for (struct card_client *client = card.clients; client; client = client->next)
		if (client->page)
			atomic_store(&client->page->sleeping, 0);
}

static void card_doorbell_on_readable(void *owner, uint32_t events)
{
	struct card_client *client = owner;
	uint64_t rings;

	(void)events;
	if (read(client->doorbell, &rings, sizeof(rings)) < 0 && errno != EAGAIN)
		fprintf(stderr, "card: doorbell: %s\n", strerror(errno));
}

/* ---- requests ---- */

/* fds: descriptors for the reply. What the program gets is closed here, except for the doorbell. */
static int card_client_open_context(struct card_client *client, const struct card_request *request, int fds[3])
{
	int pair[2], page_fd;

	if (request->open.proto != CARD_PROTO || client->is_context)
		return EPROTO;
	if (card.faults.is_removed)
		return ENODEV;
	page_fd = memfd_create("card-page", MFD_CLOEXEC);
	if (page_fd < 0 || ftruncate(page_fd, sizeof(*client->page)) ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		if (page_fd >= 0)
			close(page_fd);
		return ENOMEM;
	}
	client->async_fd = pair[0];
	client->doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	client->page = mmap(NULL, sizeof(*client->page), PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
	fds[0] = page_fd;
	fds[1] = pair[1];
	if (client->page == MAP_FAILED)
		client->page = NULL;
	if (!client->page || client->doorbell < 0 || loop_add_fd(client->doorbell, card_doorbell_on_readable, client))
		return ENOMEM;
	fds[2] = dup(client->doorbell);
	client->is_context = true;
	client->node_byte = request->open.node_byte;
	port_read_tap_mac_and_mtu();
	return 0;
}

static int card_client_alloc_pd(struct card_client *client, uint32_t *pd)
{
	for (uint32_t i = 0; i < CARD_MAX_PDS; i++) {
		*pd = client->next_pd++ % CARD_MAX_PDS;
		if (!client->pds[*pd]) {
			client->pds[*pd] = true;
			return 0;
		}
	}
	return ENOMEM;
}

static int card_client_free_pd(struct card_client *client, uint32_t pd)
{
	if (pd >= CARD_MAX_PDS || !client->pds[pd])
		return EINVAL;
	if (memory_region_exists_in_pd(client, pd) || qp_uses_pd(client, pd))
		return EBUSY;
	client->pds[pd] = false;
	return 0;
}

static void card_client_query_port(struct card_reply *reply)
{
	port_read_tap_mac_and_mtu();
	memcpy(reply->query.mac, card.mac, sizeof(card.mac));
	reply->query.port_up = port_is_up();
	reply->query.mtu = card.mtu;
}

/* A queue pair of raw frames takes CAP_NET_RAW, as with the kernel. */
static bool card_client_may_send_raw(const struct card_client *client)
{
	char path[64], line[256];
	unsigned long long effective = 0;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)client->pid);
	status = fopen(path, "re");
	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "CapEff: %llx", &effective) == 1)
			break;
	if (status)
		fclose(status);
	return effective & (1ull << 13); /* CAP_NET_RAW of linux/capability.h */
}

static int card_client_create_qp(struct card_client *client, const struct card_request *request,
                                 struct card_reply *reply, int *fd)
{
	if (!card_client_may_send_raw(client)) {
		card_client_report_violation(client, "a queue pair of raw frames takes CAP_NET_RAW");
		return EPERM;
	}
	return qp_create(client, request, reply, fd);
}

/* Of a rule to be made, or to be ended. */
static bool card_must_hold_rule_back(const struct card_request *request, struct card_reply *reply)
{
	if (card.faults.rules_are_held) {
		card.counts.rules_held += !request->flow.has_waited;
		reply->wait_ms = 5;
	} else if (request->type == CARD_FLOW_CREATE && !request->flow.has_waited) {
		reply->wait_ms = card.faults.rules_ms;
	}
	return reply->wait_ms != 0;
}

static int card_client_change_rules(struct card_client *client, const struct card_request *request,
                                    struct card_reply *reply)
{
	if (client->is_of_removed) /* an end: its rules have ended */
		return 0;
	if (card_must_hold_rule_back(request, reply))
		return EAGAIN;
	if (request->type == CARD_FLOW_DESTROY)
		return card_rules_remove(client, request->object);
	return card_rules_add(client, &request->flow.rule, &reply->object);
}

static int card_client_do_context_request(struct card_client *client, const struct card_request *request,
                                          struct card_reply *reply, int fds[3])
{
	bool asks = request->type == CARD_QUERY;
	bool makes = request->type == CARD_PD_ALLOC || request->type == CARD_MR_REG ||
	             request->type == CARD_CQ_CREATE || request->type == CARD_QP_CREATE ||
	             request->type == CARD_QP_MODIFY || request->type == CARD_FLOW_CREATE;

	/* What a card that is gone had is given back all the same. */
	if ((makes || asks) && client->is_of_removed)
		return EIO;
	switch (request->type) {
	case CARD_QUERY:
		card_client_query_port(reply);
		return 0;
	case CARD_PD_ALLOC:
		return card_client_alloc_pd(client, &reply->object);
	case CARD_PD_FREE:
		return card_client_free_pd(client, request->object);
	case CARD_MR_REG:
		return memory_register_region(client, request, &reply->object);
	case CARD_MR_DEREG:
		return memory_deregister(client, request->object);
	case CARD_CQ_CREATE:
		return cq_create(client, request, reply, &fds[0]);
	case CARD_CQ_DESTROY:
		return cq_destroy(client, request->object);
	case CARD_QP_CREATE:
		return card_client_create_qp(client, request, reply, &fds[0]);
	case CARD_QP_MODIFY:
		return qp_modify(client, request);
	case CARD_QP_DESTROY:
		return qp_destroy(client, request->object);
	case CARD_FLOW_CREATE:
	case CARD_FLOW_DESTROY:
		return card_client_change_rules(client, request, reply);
	case CARD_REQUEUE_EVENTS:
		return card_client_requeue_events(client, request);
	}
	return ENOSYS;
}

static int card_client_do_request(struct card_client *client, struct card_request *request, struct card_reply *reply,
                                  int fds[3])
{
	if (client->is_context)
		return card_client_do_context_request(client, request, reply, fds);
	switch (request->type) {
	case CARD_OPEN:
		return card_client_open_context(client, request, fds);
	case CARD_CHANNEL:
		client->is_channel = true;
		client->cookie = request->channel.cookie;
		return 0;
	case CARD_CONTROL:
		request->text[sizeof(request->text) - 1] = '\0';
		return card_control_execute_command(request->text, reply->text, sizeof(reply->text));
	}
	return EINVAL;
}

static void card_client_send_reply(struct card_client *client, struct card_reply *reply, const int fds[3])
{
	struct iovec iov = {.iov_base = reply, .iov_len = sizeof(*reply)};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	size_t n = 0;

	while (n < 3 && fds[n] >= 0)
		n++;
	if (n > 0) {
		struct cmsghdr *cmsg;

		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n * sizeof(int));
	}
	if (sendmsg(client->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		client->is_closing = true;
	for (size_t i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static void card_client_on_readable(void *owner, uint32_t events)
{
	struct card_client *client = owner;
	static struct card_request request;
	static struct card_reply reply;
	int fds[3] = {-1, -1, -1};
	ssize_t len = recv(client->fd, &request, sizeof(request), MSG_DONTWAIT);

	(void)events;
	if (len < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (len != sizeof(request)) {
		client->is_closing = true;
		return;
	}
	memset(&reply, 0, sizeof(reply));
	reply.error = card_client_do_request(client, &request, &reply, fds);
	card_client_send_reply(client, &reply, fds);
}

/* ---- coming and going ---- */

static void card_listener_on_readable(void *owner, uint32_t events)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	struct card_client *client;
	struct ucred peer = {0};
	socklen_t len = sizeof(peer);

	(void)owner, (void)events;
	if (fd < 0)
		return;
	client = calloc(1, sizeof(*client));
	if (!client || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) ||
	    loop_add_fd(fd, card_client_on_readable, client)) {
		free(client);
		close(fd);
		return;
	}
	client->fd = fd;
	client->pid = peer.pid;
	client->async_fd = client->doorbell = -1;
	client->next = card.clients;
	card.clients = client;
}

static void card_client_close_connection(struct card_client *client)
{
	loop_remove_fd(client->fd);
	close(client->fd);
	client->fd = -1;
}

/* Its process, or one that it has forked, has the device's node mapped: the driver's lock lasts as long. */
static bool card_client_has_node_mapped(const struct card_client *client)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = (off_t)client->node_byte, .l_len = 1};

	return client->node_byte != 0 && fcntl(node, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static void card_client_free(struct card_client *client)
{
	if (client->fd >= 0)
		card_client_close_connection(client);
	if (client->is_context) {
		card_rules_remove_of_client(client);
		qps_destroy_of_client(client);
	}
	if (client->page)
		munmap(client->page, sizeof(*client->page));
	if (client->async_fd >= 0)
		close(client->async_fd);
	if (client->doorbell >= 0) {
		loop_remove_fd(client->doorbell);
		close(client->doorbell);
	}
	free(client);
}

/* Here and nowhere else, so that no other function loses the client that it works on. A context that is still mapped
 * stays without its connection, as with the kernel. How long until it is looked at again, ms; -1: there is none. */
int card_free_closed_clients(void)
{
	struct card_client **at = &card.clients;
	int look_ms = -1;

	while (*at) {
		struct card_client *client = *at;

		if (client->is_closing && !card_client_has_node_mapped(client)) {
			*at = client->next;
			card_client_free(client);
			continue;
		}
		if (client->is_closing && client->fd >= 0)
			card_client_close_connection(client);
		if (client->is_closing)
			look_ms = MAPPED_LOOK_MS;
		at = &client->next;
	}
	return look_ms;
}

void card_close_all_clients(void)
{
	for (struct card_client *client = card.clients; client; client = client->next) {
		client->is_closing = true;
		client->node_byte = 0;
	}
	card_free_closed_clients();
}

int card_listen_for_clients(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	node = open(CARD_NODE, O_RDWR | O_CLOEXEC);
	if (node < 0 || listener < 0 || bind(listener, (struct sockaddr *)&addr, sizeof(addr)) || listen(listener, 64))
		return -1;
	return loop_add_fd(listener, card_listener_on_readable, NULL);
}
