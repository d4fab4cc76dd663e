/*
 * repair.c - hands connections over to the kernel for clients that have no CAP_NET_ADMIN, by a process for each client.
 *
 *   client ── channel ── its process ── control ── vmad
 *             sockets,                  "may it have this connection?" ──> the owner's flows
 *             segments
 *
 * It is a process, because a client can make calls on its socket wait for as long as it likes. A thread of the client's
 * that sends from memory that is never filled holds the socket's lock, and a close may linger. So vmad never touches
 * such a descriptor, and the process holds up only its own client. The process has no descriptor of vmad's but the
 * control socket, and only the capabilities that a repair needs.
 *
 * It ends with its client's connection to vmad, also if vmad is killed. But it finishes what it has begun first. A
 * socket whose repair vmad has allowed is repaired and answered for. The connection's segments are taken until the
 * client says END, for ALONE_MS at most. The process leaves sockets that it has not begun. The client sees the channel
 * end without an answer, and asks the next vmad (client/repair.c).
 *
 * These checks are made. The flow of the connection, or of its listener, is the client's in the owner's table. The
 * socket is one of TCP in this network namespace, bound to the connection's port or to none. The bytes are in a sealed
 * memfd, at most VMAD_REPAIR_QUEUE_MAX each way. The numbers are such as the kernel takes. The client can make calls on
 * the socket while it is being repaired. So afterwards its names are compared with what was allowed, and a socket that
 * is connected otherwise is disconnected. Sequence numbers and bytes are believed: they are of the client's own
 * connection. A segment gets the addresses and ports of the last connection that was repaired, not those that it names
 * itself.
 */
#include <errno.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <vma/log.h>

#include "../os.h"
#include "../xdp/repair.h"
#include "server.h"

#define REPLY_TIMEOUT_MS 2000 /* of vmad to its process */
#define REPLIES_MAX 8         /* looked at, until one is to the question */
#define ALONE_MS 3000         /* without vmad, for what is under way: longer than a client takes to say the segments */
#define TRIES 100             /* to part a socket from a connection that it must not have */

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

/* On the control socket; as an answer: result. With a descriptor: the client's new channel. */
struct repair_control_request {
	struct vma_flow_key key;
	int32_t result;
};

/* ---- vmad ---- */

void vmad_repair_close(struct vmad_peer *peer)
{
	if (peer->repair_fd >= 0)
		close(peer->repair_fd);
	peer->repair_fd = -1;
}

static bool repair_client_has_flow(const struct vmad_server *server, const struct vmad_peer *peer,
                                   const struct vma_flow_key *key)
{
	for (uint32_t slot = 0; slot < XDP_SLOTS_MAX && server->owner != NULL; slot++)
		if ((peer->slots >> slot & 1) && xdp_owner_slot_is_entitled_to_connection(server->owner, slot, key))
			return true;
	return false;
}

void vmad_answer_repair_permission_request(struct vmad_server *server, struct vmad_peer *peer)
{
	struct repair_control_request repair_control_request;
	ssize_t n = os_recv(peer->repair_fd, &repair_control_request, sizeof(repair_control_request), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n == sizeof(repair_control_request)) {
		repair_control_request.result =
		        repair_client_has_flow(server, peer, &repair_control_request.key) ? 0 : -EPERM;
		n = os_send(peer->repair_fd, &repair_control_request, sizeof(repair_control_request),
		            MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	if (n != sizeof(repair_control_request))
		vmad_repair_close(peer);
}

static int send_fd(int to, int fd)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct repair_control_request nothing = {.result = -EPERM};
	struct iovec iov = {.iov_base = &nothing, .iov_len = sizeof(nothing)};
	const struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	return os_sendmsg(to, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static void repair_process_main(int control) __attribute__((noreturn));

/* It is nobody's child, so nobody has to wait for it. */
static int start_repair_process(struct vmad_peer *peer)
{
	int pair[2], rc = 0;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		return -errno;
	child = fork();
	if (child == 0) {
		child = fork();
		if (child == 0)
			repair_process_main(pair[1]);
		_exit(child < 0);
	}
	if (child < 0)
		rc = -errno;
	else
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
	close(pair[1]);
	if (rc < 0)
		close(pair[0]);
	else
		peer->repair_fd = pair[0];
	return rc;
}

int vmad_open_repair_channel_for_client(struct vmad_server *server, struct vmad_peer *peer)
{
	int pair[2], rc = 0;

	if (!server->repairs)
		return -EOPNOTSUPP;
	if (peer->slots == 0)
		return -EPERM;
	if (peer->repair_fd < 0)
		rc = vmad_fd_closer_wait_all_closed(server->closer) ? start_repair_process(peer) : -EBUSY;
	if (rc == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		rc = -errno;
	if (rc < 0) {
		vma_log_once(VMA_LOG_WARN, "vmad: %s: connections cannot be handed over to the kernel for clients: %s",
		             server->attr->interface, strerrordesc_np(-rc));
		return rc;
	}
	rc = send_fd(peer->repair_fd, pair[1]);
	close(pair[1]);
	if (rc < 0)
		close(pair[0]);
	return rc < 0 ? rc : pair[0];
}

/* ---- the process of a client ---- */

struct service {
	int control; /* -1: vmad is gone, or its connection to the client */
	int channel, raw;
	int fd; /* the socket that was repaired last, until END; -1: none */
	int ifindex;
	uint64_t until_ms; /* without vmad */
	struct vma_repair what;
};

static void repair_restore_device_and_close_socket(struct service *service)
{
	if (service->fd < 0)
		return;
	if (service->ifindex != 0)
		os_setsockopt(service->fd, SOL_SOCKET, SO_BINDTOIFINDEX, &service->ifindex, sizeof(int));
	os_close(service->fd);
	service->fd = -1;
}

/* The length, 0: the end. Up to two descriptors, -1: none. */
static ssize_t repair_receive_message_and_fds(int from, void *to, size_t room, int fds[2], unsigned *nfds)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = to, .iov_len = room};
	struct msghdr msg = {
	        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	const ssize_t n = os_recvmsg(from, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);

	*nfds = 0;
	if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		*nfds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), *nfds * sizeof(int));
	}
	return n < 0 && (errno == EAGAIN || errno == EINTR) ? -EAGAIN : n < 0 ? 0 : n;
}

static void service_close_fds(const int *fds, unsigned nfds)
{
	for (unsigned i = 0; i < nfds; i++)
		if (fds[i] >= 0)
			os_close(fds[i]);
}

/* ---- its socket ---- */

static bool repair_socket_option_equals(int fd, int option, int wanted)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return os_getsockopt(fd, SOL_SOCKET, option, &value, &len) == 0 && value == wanted;
}

static int check_repair_state(const struct vma_repair *what)
{
	if (what->unread > VMAD_REPAIR_QUEUE_MAX || what->unacked > VMAD_REPAIR_QUEUE_MAX || what->sent > what->unacked)
		return -EINVAL;
	if (what->snd_scale > 14 || what->rcv_scale > 14 || what->mss < 48 || what->fin_received > 1)
		return -EINVAL;
	return 0;
}

static int check_repair_socket(int fd)
{
	if (!(repair_socket_option_equals(fd, SO_DOMAIN, AF_INET) ||
	      repair_socket_option_equals(fd, SO_DOMAIN, AF_INET6)) ||
	    !repair_socket_option_equals(fd, SO_TYPE, SOCK_STREAM) ||
	    !repair_socket_option_equals(fd, SO_PROTOCOL, IPPROTO_TCP))
		return -EINVAL;
	return vmad_check_socket_in_same_netns(fd);
}

/* Sealed, so it is memory, and stays as it is. */
static int check_repair_memfd_is_sealed(int fd, const struct vma_repair *what)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_WRITE;
	const int seals = os_fcntl(fd, F_GET_SEALS, 0);
	struct stat st;

	if (what->unread == 0 && what->unacked == 0)
		return 0;
	if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &st) != 0 ||
	    st.st_size < (off_t)what->unread + (off_t)what->unacked)
		return -EINVAL;
	return 0;
}

/*
 * What else comes meanwhile is the answer to an earlier question, or a new channel for a client that does not wait for
 * this one's: it has to ask again.
 */
static int repair_receive_permission_reply(const struct service *service, const struct vma_flow_key *key)
{
	struct pollfd reply = {.fd = service->control, .events = POLLIN};
	struct repair_control_request repair_control_request;
	int fds[2];
	unsigned nfds;

	for (int i = 0; i < REPLIES_MAX && os_poll(&reply, 1, REPLY_TIMEOUT_MS) > 0; i++) {
		const ssize_t n = repair_receive_message_and_fds(service->control, &repair_control_request,
		                                                 sizeof(repair_control_request), fds, &nfds);

		service_close_fds(fds, nfds);
		if (n == 0)
			break;
		if (n == sizeof(repair_control_request) && nfds == 0 &&
		    memcmp(&repair_control_request.key, key, sizeof(*key)) == 0)
			return repair_control_request.result;
	}
	return -EPIPE;
}

static int repair_ask_vmad_for_permission(const struct service *service, const struct vma_repair *what)
{
	struct repair_control_request repair_control_request = {.key = {.family = AF_INET,
	                                                                .proto = IPPROTO_TCP,
	                                                                .vlan = what->vlan,
	                                                                .local_port_be = what->local_port_be,
	                                                                .peer_port_be = what->peer_port_be}};

	memcpy(repair_control_request.key.local, what->local, 4);
	memcpy(repair_control_request.key.peer, what->peer, 4);
	if (os_send(service->control, &repair_control_request, sizeof(repair_control_request), MSG_NOSIGNAL) !=
	    sizeof(repair_control_request))
		return -EPIPE;
	return repair_receive_permission_reply(service, &repair_control_request.key);
}

struct repair_file_bytes {
	struct vma_repair_bytes base;
	int fd;
	char piece[32768];
};

static int repair_pread_piece(const struct vma_repair_bytes *base, uint64_t offset, size_t most, struct iovec *span)
{
	struct repair_file_bytes *bytes = (struct repair_file_bytes *)(uintptr_t)base;
	const size_t room = most < sizeof(bytes->piece) ? most : sizeof(bytes->piece);
	const ssize_t n = pread(bytes->fd, bytes->piece, room, (off_t)offset);

	*span = (struct iovec){.iov_base = bytes->piece, .iov_len = n > 0 ? (size_t)n : 0};
	return n > 0 ? 0 : n == 0 ? -EIO : -errno;
}

static bool sockaddr_equals(const struct sockaddr_storage *name, const uint8_t *ip, uint16_t port_be)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)name;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)name;

	if (name->ss_family == AF_INET)
		return in->sin_port == port_be && memcmp(&in->sin_addr, ip, 4) == 0;
	return name->ss_family == AF_INET6 && in6->sin6_port == port_be && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr) &&
	       memcmp(&in6->sin6_addr.s6_addr[12], ip, 4) == 0;
}

/* Not connected at all, or as it may be. */
static bool repair_socket_has_expected_addresses(int fd, const struct vma_repair *what)
{
	struct sockaddr_storage local = {0}, peer = {0};
	socklen_t local_len = sizeof(local), peer_len = sizeof(peer);

	if (syscall(SYS_getpeername, fd, &peer, &peer_len) != 0)
		return errno == ENOTCONN;
	return syscall(SYS_getsockname, fd, &local, &local_len) == 0 &&
	       sockaddr_equals(&local, what->local, what->local_port_be) &&
	       sockaddr_equals(&peer, what->peer, what->peer_port_be);
}

/* The client has connected it elsewhere while it was being repaired. Without a handshake it must not be. */
static void repair_disconnect_wrong_peer(int fd, const struct vma_repair *what)
{
	const struct sockaddr none = {.sa_family = AF_UNSPEC};

	for (int i = 0; i < TRIES && !repair_socket_has_expected_addresses(fd, what); i++)
		os_connect(fd, &none, sizeof(none));
}

/* ---- segments ---- */

static uint32_t checksum_add_bytes(uint32_t sum, const uint8_t *bytes, size_t len)
{
	for (; len > 1; bytes += 2, len -= 2)
		sum += (uint32_t)(bytes[0] << 8 | bytes[1]);
	return len != 0 ? sum + ((uint32_t)bytes[0] << 8) : sum;
}

static uint16_t fold_sum(uint32_t sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)(sum + (sum >> 16));
}

/* `packet` has the client's IPv4 header and segment: of the header nothing is kept, of the segment not the ports. */
static void repair_service_send_segment(struct service *service, uint8_t *packet, size_t len)
{
	const struct vma_repair *what = &service->what;
	const size_t ip_len = len >= 40 ? (size_t)(packet[0] & 15) * 4 : 0;
	struct sockaddr_in to = {.sin_family = AF_INET};
	uint8_t *ip, *tcp = packet + ip_len;
	const size_t tcp_len = ip_len <= len ? len - ip_len : 0;
	uint32_t sum;
	uint16_t folded;

	if (service->fd < 0 || service->raw < 0 || ip_len < 20 || tcp_len < 20 || (size_t)(tcp[12] >> 4) * 4 < 20 ||
	    (size_t)(tcp[12] >> 4) * 4 > tcp_len)
		return;
	ip = tcp - 20;
	memset(ip, 0, 20);
	ip[0] = 0x45;
	ip[8] = 255;
	ip[9] = IPPROTO_TCP;
	memcpy(ip + 12, what->peer, 4);
	memcpy(ip + 16, what->local, 4);
	memcpy(tcp, &what->peer_port_be, 2);
	memcpy(tcp + 2, &what->local_port_be, 2);
	memset(tcp + 16, 0, 2);
	sum = checksum_add_bytes(IPPROTO_TCP + (uint32_t)tcp_len, ip + 12, 8);
	folded = htons((uint16_t)~fold_sum(checksum_add_bytes(sum, tcp, tcp_len)));
	memcpy(tcp + 16, &folded, 2);
	memcpy(&to.sin_addr, what->local, 4);
	syscall(SYS_sendto, service->raw, ip, 20 + tcp_len, MSG_DONTWAIT, &to, sizeof(to));
}

/* The peer's FIN, which the client has acknowledged. With the answer the kernel has it: nobody sees the socket without.
 */
static void repair_send_peer_fin(struct service *service)
{
	const struct vma_repair *what = &service->what;
	const uint32_t window = what->snd_wnd >> what->snd_scale;
	const uint32_t seq_be = htonl(what->rcv_nxt), ack_be = htonl(what->snd_una);
	const uint16_t window_be = htons(window < 65535 ? (uint16_t)window : 65535);
	uint8_t packet[40] = {0x45}, *tcp = packet + 20;

	memcpy(tcp + 4, &seq_be, 4);
	memcpy(tcp + 8, &ack_be, 4);
	tcp[12] = 5 << 4;
	tcp[13] = 0x11; /* ACK, FIN */
	memcpy(tcp + 14, &window_be, 2);
	repair_service_send_segment(service, packet, sizeof(packet));
}

/*
 * Segments come by the loopback interface, and the kernel takes them for having come by the one that has the address:
 * the socket must be bound to none, or both sockets to the loopback interface.
 */
static void repair_bind_raw_socket(const struct service *service, int fd)
{
	const int by = service->ifindex == VMA_NIC_LOOPBACK ? VMA_NIC_LOOPBACK : 0;

	os_setsockopt(service->raw, SOL_SOCKET, SO_BINDTOIFINDEX, &by, sizeof(by));
	if (service->ifindex != by)
		os_setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &by, sizeof(by));
}

/* ---- a socket ---- */

static int repair_service_do_repair(struct service *service, const struct vma_repair *what, int *fds, unsigned nfds,
                                    int *incomplete)
{
	struct repair_file_bytes bytes = {.base = {.read = repair_pread_piece}, .fd = nfds > 1 ? fds[1] : -1};
	struct sockaddr_storage name;
	socklen_t len = sizeof(int), name_len = sizeof(name);
	struct vma_repair mine = *what;
	int rc = nfds >= 1 ? check_repair_state(what) : -EINVAL;

	mine.interface_gone = 0; /* a vmad has its interface: nobody is to get more than a route gives */
	if (rc == 0)
		rc = check_repair_socket(fds[0]);
	if (rc == 0)
		rc = check_repair_memfd_is_sealed(bytes.fd, what);
	if (rc == 0)
		rc = repair_ask_vmad_for_permission(service,
		                                    what); /* before any call that waits for the socket's lock */
	if (rc == 0 && syscall(SYS_getpeername, fds[0], &name, &name_len) == 0)
		rc = -EISCONN; /* an attempt would be undone, and so end that connection */
	if (rc < 0)
		return rc;
	service->ifindex = 0;
	os_getsockopt(fds[0], SOL_SOCKET, SO_BINDTOIFINDEX, &service->ifindex, &len);
	rc = vma_repair_restore_connection(fds[0], &mine, &bytes.base, incomplete);
	repair_disconnect_wrong_peer(fds[0], what);
	if (rc < 0)
		return rc;
	repair_bind_raw_socket(service, fds[0]);
	service->what = *what;
	service->fd = fds[0];
	fds[0] = -1;
	if (what->fin_received)
		repair_send_peer_fin(service);
	return 0;
}

/* ---- messages ---- */

struct message {
	struct vmad_repair_head head;
	uint8_t body[VMAD_REPAIR_PACKET_MAX];
};

/* False: the channel is over. Without vmad no socket is begun with: nobody could say whose its connection is. */
static bool repair_handle_client_message(struct service *service)
{
	static struct message message;
	struct vmad_repair_reply reply = {.head = {VMAD_REPAIR_MAGIC, VMAD_REPAIR_SOCKET}};
	int fds[2];
	unsigned nfds;
	const ssize_t n = repair_receive_message_and_fds(service->channel, &message, sizeof(message), fds, &nfds);
	bool goes_on = true;

	if (n == -EAGAIN)
		return true;
	if (n < (ssize_t)sizeof(message.head) || message.head.magic != VMAD_REPAIR_MAGIC) {
		goes_on = false;
	} else if (message.head.type == VMAD_REPAIR_SOCKET && service->control < 0) {
		goes_on = false;
	} else if (message.head.type == VMAD_REPAIR_SOCKET && n == sizeof(struct vmad_repair_socket)) {
		struct vma_repair what;

		memcpy(&what, message.body, sizeof(what));
		repair_restore_device_and_close_socket(service);
		reply.result = repair_service_do_repair(service, &what, fds, nfds, &reply.incomplete);
		goes_on = os_send(service->channel, &reply, sizeof(reply), MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
	} else if (message.head.type == VMAD_REPAIR_SEGMENT) {
		repair_service_send_segment(service, message.body, (size_t)n - sizeof(message.head));
	} else {
		repair_restore_device_and_close_socket(service);
	}
	service_close_fds(fds, nfds);
	return goes_on;
}

/* A new channel, in place of the one before. False: vmad is gone, or its connection to the client. */
static bool repair_take_new_channel_from_vmad(struct service *service)
{
	struct repair_control_request repair_control_request;
	int fds[2];
	unsigned nfds;
	const ssize_t n = repair_receive_message_and_fds(service->control, &repair_control_request,
	                                                 sizeof(repair_control_request), fds, &nfds);

	if (n == -EAGAIN)
		return true;
	if (nfds == 1) {
		repair_restore_device_and_close_socket(service);
		if (service->channel >= 0)
			os_close(service->channel);
		service->channel = fds[0];
	}
	return n != 0;
}

static void reduce_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};

	data[0].effective = data[0].permitted =
	        CAP_TO_MASK(CAP_NET_ADMIN) | CAP_TO_MASK(CAP_NET_RAW) | CAP_TO_MASK(CAP_NET_BIND_SERVICE);
	syscall(SYS_capset, &head, data);
	prctl(PR_SET_DUMPABLE, 0);
}

static uint64_t clock_ms(void)
{
	struct timespec now;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void repair_note_vmad_gone(struct service *service)
{
	os_close(service->control);
	service->control = -1;
	service->until_ms = clock_ms() + ALONE_MS;
}

static void repair_service_end_client(struct service *service)
{
	repair_restore_device_and_close_socket(service);
	os_close(service->channel);
	service->channel = -1;
}

/* Until something comes, or without vmad no longer than it may be there. False: that is over, or nothing is under way.
 */
static bool repair_poll_control_and_channel(const struct service *service, struct pollfd fds[2])
{
	int ms = -1;

	fds[0] = (struct pollfd){.fd = service->control, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = service->channel, .events = POLLIN};
	if (service->control < 0) {
		const uint64_t now = clock_ms();

		if (service->fd < 0 || now >= service->until_ms)
			return false;
		ms = (int)(service->until_ms - now);
	}
	return os_poll(fds, 2, ms) >= 0 || errno == EINTR;
}

/* Only system calls: this is the child of a fork that nobody has prepared for. */
static void repair_process_main(int control)
{
	struct service service = {.control = control, .channel = -1, .fd = -1};
	struct pollfd fds[2];

	if (control != 3 && os_dup3(control, 3, O_CLOEXEC) == 3)
		service.control = 3;
	syscall(SYS_close_range, service.control + 1, ~0U, 0);
	prctl(PR_SET_NAME, "vmad-repair");
	reduce_capabilities();
	service.raw = os_socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
	while (repair_poll_control_and_channel(&service, fds)) {
		if (fds[0].revents != 0 && !repair_take_new_channel_from_vmad(&service))
			repair_note_vmad_gone(&service);
		else if (fds[0].revents == 0 && fds[1].revents != 0 && !repair_handle_client_message(&service))
			repair_service_end_client(&service);
	}
	repair_restore_device_and_close_socket(&service);
	_exit(0);
}
