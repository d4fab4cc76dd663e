/*
 * kernel_sock - the kernel's sockets from which a flow would take packets: listed by sock_diag, and compared with the
 * flow as the kernel would deliver.
 *
 *   UDP, any peer (unicast)    a socket bound to that port, on the address or on none
 *   UDP, any peer (multicast)  the same: every such socket may get a copy
 *   UDP or TCP, one peer       a socket connected to exactly that peer; a less specific one would not be asked
 *   UDP, one peer (multicast)  also one that is connected to nobody
 *   TCP listener               a listening socket; connections are safe, the program leaves them to the kernel
 *   TCP, any peer              any socket on that port
 *
 * A socket bound to another device never sees this one's packets. IPv6 sockets on [::] receive IPv4 unless IPV6_V6ONLY.
 *
 * Making a netlink socket costs more than a question. vmad has one thread and asks for each connection, so it keeps its
 * socket.
 */
#include <errno.h>
#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <string.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os.h"
#include "kernel_sock.h"

#define BOUND_INACTIVE 13 /* TCP_BOUND_INACTIVE: the kernel's name for bound sockets when it is asked for them */

struct walk {
	const struct port_ranges *ranges; /* of local ports; NULL: all */
	const struct vma_flow_key *peer;  /* whose peer they have, then without ranges; NULL: any */
	uint32_t states;
	void (*visit)(const struct kernel_sock *socket, void *arg);
	void *arg;
};

#define OPS_EACH 5 /* of a range: two comparisons of two, and a jump */

struct request {
	struct nlmsghdr head;
	struct inet_diag_req_v2 diag;
	struct nlattr attr;
	struct inet_diag_bc_op op[PORT_RANGES_MAX * OPS_EACH];
};

/*
 * For each range: "port >= first, else the next range; port <= last, else the next range; jump to the end". A
 * comparison is followed by an op that carries the port. The end accepts a socket, and four bytes behind it refuse it.
 */
static void diag_filter_add_range(struct inet_diag_bc_op *op, uint16_t first, uint16_t last, uint16_t bytes_left)
{
	const uint16_t refused = bytes_left == OPS_EACH * sizeof(*op) ? sizeof(*op) : 0;

	op[0] = (struct inet_diag_bc_op){
	        .code = INET_DIAG_BC_S_GE, .yes = 8, .no = (uint16_t)(OPS_EACH * sizeof(*op) + refused)};
	op[1] = (struct inet_diag_bc_op){.no = first};
	op[2] = (struct inet_diag_bc_op){
	        .code = INET_DIAG_BC_S_LE, .yes = 8, .no = (uint16_t)(3 * sizeof(*op) + refused)};
	op[3] = (struct inet_diag_bc_op){.no = last};
	op[4] = (struct inet_diag_bc_op){
	        .code = INET_DIAG_BC_JMP, .yes = 4, .no = (uint16_t)(bytes_left - 4 * sizeof(*op))};
}

/* One peer, and no ranges: these ops are the last, and what is behind them refuses a socket. */
struct peer_ops {
	struct inet_diag_bc_op op;
	uint8_t host[sizeof(struct inet_diag_hostcond)];
	uint32_t address;
};

/* Returns how many bytes it has. */
static uint16_t diag_filter_set_peer(struct request *request, const struct vma_flow_key *key)
{
	const struct inet_diag_hostcond host = {.family = AF_INET, .prefix_len = 32, .port = ntohs(key->peer_port_be)};
	struct peer_ops ops = {
	        .op = {.code = INET_DIAG_BC_D_COND, .yes = sizeof(ops), .no = sizeof(ops) + sizeof(ops.op)}};

	memcpy(ops.host, &host, sizeof(ops.host));
	memcpy(&ops.address, key->peer, sizeof(ops.address));
	memcpy(request->op, &ops, sizeof(ops));
	return sizeof(ops);
}

static void fill_sock_diag_dump_request(struct request *request, uint8_t family, uint8_t proto, const struct walk *walk)
{
	const uint32_t ranges = walk->ranges != NULL ? walk->ranges->n : 0;
	const uint16_t each = OPS_EACH * sizeof(struct inet_diag_bc_op);
	uint16_t bytes = (uint16_t)(ranges * each);

	_Static_assert(sizeof(struct peer_ops) <= sizeof(request->op), "there is room");
	memset(request, 0, offsetof(struct request, op));
	request->head = (struct nlmsghdr){
	        .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP, .nlmsg_seq = 1};
	request->diag.sdiag_family = family;
	request->diag.sdiag_protocol = proto;
	request->diag.idiag_states = walk->states;
	request->head.nlmsg_len = offsetof(struct request, attr);
	for (uint32_t i = 0; i < ranges; i++)
		diag_filter_add_range(request->op + i * OPS_EACH, walk->ranges->first[i], walk->ranges->last[i],
		                      (uint16_t)((ranges - i) * each));
	if (walk->peer != NULL)
		bytes = diag_filter_set_peer(request, walk->peer);
	if (bytes == 0)
		return;
	request->attr = (struct nlattr){.nla_len = (uint16_t)(sizeof(request->attr) + bytes),
	                                .nla_type = INET_DIAG_REQ_BYTECODE};
	request->head.nlmsg_len += request->attr.nla_len;
}

/* ---- ranges of ports ---- */

/* Those of the set, and up to `gap` others between two of them. False: there are too many. */
static bool port_bitmap_to_ranges(const uint8_t ports[65536 / 8], uint32_t gap, struct port_ranges *out)
{
	out->n = 0;
	for (uint32_t port = 0; port < 65536; port++) {
		if (port % 8 == 0 && ports[port / 8] == 0) {
			port += 7;
			continue;
		}
		if (!(ports[port / 8] >> port % 8 & 1))
			continue;
		if (out->n > 0 && port - out->last[out->n - 1] <= gap + 1) {
			out->last[out->n - 1] = (uint16_t)port;
			continue;
		}
		if (out->n == PORT_RANGES_MAX)
			return false;
		out->first[out->n] = out->last[out->n] = (uint16_t)port;
		out->n++;
	}
	return true;
}

void port_ranges_covering_bitmap(const uint8_t ports[65536 / 8], struct port_ranges *out)
{
	uint32_t gap = 0;

	while (!port_bitmap_to_ranges(ports, gap, out))
		gap = gap * 4 + 3;
}

/* ---- the kernel's answers ---- */

static bool is_zero(const void *bytes, size_t n)
{
	static const uint8_t zero[16];

	return memcmp(bytes, zero, n) == 0;
}

/* IPv4 addresses of an IPv6 socket lie behind ::ffff:. Returns false for one that is IPv6 for good. */
static bool kernel_sock_unmap_v4mapped_address(uint8_t address[16])
{
	static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

	if (is_zero(address, 16))
		return true;
	if (memcmp(address, prefix, sizeof(prefix)) != 0)
		return false;
	memmove(address, address + 12, 4);
	memset(address + 4, 0, 12);
	return true;
}

/* A kernel that cannot filter would list all. */
static bool kernel_sock_port_is_in_walk_ranges(const struct walk *walk, uint16_t port)
{
	bool asked = walk->ranges == NULL;

	for (uint32_t i = 0; !asked && i < walk->ranges->n; i++)
		asked = port >= walk->ranges->first[i] && port <= walk->ranges->last[i];
	return asked;
}

static void visit_socket_of_diag_message(const struct walk *walk, uint8_t proto, const struct nlmsghdr *head)
{
	const struct inet_diag_msg *msg = NLMSG_DATA(head);
	struct kernel_sock socket = {.proto = proto};
	int left = (int)head->nlmsg_len - (int)NLMSG_LENGTH(sizeof(*msg));

	/* What remains of a closed connection (TIME_WAIT, or FIN_WAIT2 without a socket) has no reader to rob. */
	if (left < 0 || msg->idiag_state == TCP_TIME_WAIT ||
	    (msg->idiag_state == TCP_FIN_WAIT2 && msg->idiag_inode == 0))
		return;
	socket.cookie = (uint64_t)msg->id.idiag_cookie[1] << 32 | msg->id.idiag_cookie[0];
	socket.inode = msg->idiag_inode;
	socket.uid = msg->idiag_uid;
	socket.family = msg->idiag_family;
	socket.state = msg->idiag_state;
	socket.ifindex = msg->id.idiag_if;
	socket.port_be = msg->id.idiag_sport;
	socket.peer_port_be = msg->id.idiag_dport;
	memcpy(socket.local, msg->id.idiag_src, msg->idiag_family == AF_INET ? 4 : 16);
	memcpy(socket.peer, msg->id.idiag_dst, msg->idiag_family == AF_INET ? 4 : 16);
	for (const struct rtattr *attr = (const struct rtattr *)(msg + 1); RTA_OK(attr, left);
	     attr = RTA_NEXT(attr, left))
		if (attr->rta_type == INET_DIAG_SKV6ONLY && RTA_PAYLOAD(attr) >= 1)
			socket.v6only = *(const uint8_t *)RTA_DATA(attr) != 0;
	if (socket.family == AF_INET6 && (socket.v6only || !kernel_sock_unmap_v4mapped_address(socket.local) ||
	                                  !kernel_sock_unmap_v4mapped_address(socket.peer)))
		return;
	if (kernel_sock_port_is_in_walk_ranges(walk, ntohs(socket.port_be)))
		walk->visit(&socket, walk->arg);
}

/* One message of a dump: 1 more to come, 0 the end, -errno. */
static int diag_receive_dump(int fd, const struct walk *walk, uint8_t proto)
{
	_Alignas(struct nlmsghdr) char buffer[16384];
	int left; /* of a message whose length is not aligned it may be less than nothing */
	ssize_t n;

	do
		n = os_recv(fd, buffer, sizeof(buffer), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	left = (int)n;
	for (const struct nlmsghdr *head = (const void *)buffer; left > 0 && NLMSG_OK(head, (uint32_t)left);
	     head = NLMSG_NEXT(head, left)) {
		if (head->nlmsg_type == NLMSG_DONE)
			return 0;
		if (head->nlmsg_type == NLMSG_ERROR) {
			const struct nlmsgerr *error = NLMSG_DATA(head);

			return head->nlmsg_len >= NLMSG_LENGTH(sizeof(*error)) && error->error != 0 ? error->error
			                                                                            : -EPROTO;
		}
		if (head->nlmsg_type == SOCK_DIAG_BY_FAMILY)
			visit_socket_of_diag_message(walk, proto, head);
	}
	return 1;
}

static int walk_sockets_of_family(int fd, const struct walk *walk, uint8_t family, uint8_t proto)
{
	struct request request;
	int rc;

	fill_sock_diag_dump_request(&request, family, proto, walk);
	if (os_send(fd, &request, request.head.nlmsg_len, 0) < 0)
		return -errno;
	do
		rc = diag_receive_dump(fd, walk, proto);
	while (rc > 0);
	return rc;
}

static int open_or_reuse_sock_diag_socket(int *kept)
{
	const struct timeval timeout = {.tv_sec = 2}; /* the kernel answers within the call; never hang on it */
	int fd;

	if (kept != NULL && *kept >= 0)
		return *kept;
	fd = nic_fd_move_high(os_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
	if (fd < 0)
		return -errno;
	os_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	if (kept != NULL)
		*kept = fd;
	return fd;
}

/* rc: of the conversation. What was not heard to its end may have left something to read: that one is not kept. */
static void diag_socket_close_unless_kept(int *kept, int fd, int rc)
{
	if (kept != NULL && (rc >= 0 || rc == -ENOENT))
		return;
	nic_fd_close(fd);
	if (kept != NULL)
		*kept = -1;
}

static int walk_sockets_of_both_families(int *kept, uint8_t proto, const struct walk *walk)
{
	int fd = open_or_reuse_sock_diag_socket(kept), rc;

	if (fd < 0)
		return fd;
	rc = walk_sockets_of_family(fd, walk, AF_INET, proto);
	if (rc == 0)
		rc = walk_sockets_of_family(fd, walk, AF_INET6, proto);
	diag_socket_close_unless_kept(kept, fd, rc);
	return rc == -ENOENT ? 0 : rc; /* a kernel without IPv6 */
}

/* TIME_WAIT owns no packets that a new connection would not get as well. */
static uint32_t diag_states_mask(bool listeners)
{
	return listeners ? 1u << TCP_LISTEN : ~(1u << TCP_TIME_WAIT);
}

int kernel_sock_visit_sockets_of_port(int *kept, uint8_t proto, uint16_t port, bool listeners,
                                      void (*visit)(const struct kernel_sock *socket, void *arg), void *arg)
{
	const struct port_ranges one = {.n = 1, .first = {port}, .last = {port}};
	const struct walk walk = {
	        .ranges = port != 0 ? &one : NULL, .states = diag_states_mask(listeners), .visit = visit, .arg = arg};

	return walk_sockets_of_both_families(kept, proto, &walk);
}

int kernel_sock_walk_connected(int *kept, const struct vma_flow_key *key,
                               void (*visit)(const struct kernel_sock *socket, void *arg), void *arg)
{
	const struct walk walk = {.peer = key, .states = diag_states_mask(false), .visit = visit, .arg = arg};

	return walk_sockets_of_both_families(kept, key->proto, &walk);
}

int kernel_sock_visit_sockets_in_port_ranges(int *kept, uint8_t proto, const struct port_ranges *ranges, bool listeners,
                                             void (*visit)(const struct kernel_sock *socket, void *arg), void *arg)
{
	const struct walk walk = {.ranges = ranges, .states = diag_states_mask(listeners), .visit = visit, .arg = arg};

	return walk_sockets_of_both_families(kept, proto, &walk);
}

int kernel_sock_visit_sockets_bound_to_port(int *kept, uint8_t family, uint8_t proto, uint16_t port,
                                            void (*visit)(const struct kernel_sock *socket, void *arg), void *arg)
{
	const uint32_t bound = 1u << TCP_LISTEN | 1u << BOUND_INACTIVE;
	const struct port_ranges one = {.n = 1, .first = {port}, .last = {port}};
	const struct walk walk = {
	        .ranges = &one, .states = proto == IPPROTO_TCP ? bound : ~0u, .visit = visit, .arg = arg};
	int fd = open_or_reuse_sock_diag_socket(kept), rc;

	if (fd < 0)
		return fd;
	rc = walk_sockets_of_family(fd, &walk, family, proto);
	diag_socket_close_unless_kept(kept, fd, rc);
	return rc;
}

int kernel_sock_visit_sockets_of_connection(int *kept, const struct vma_flow_key *key, unsigned ifindex,
                                            void (*visit)(const struct kernel_sock *socket, void *arg), void *arg)
{
	const struct walk walk = {.visit = visit, .arg = arg};
	struct request request = {
	        .head = {.nlmsg_len = offsetof(struct request, attr),
	                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
	                 .nlmsg_flags = NLM_F_REQUEST,
	                 .nlmsg_seq = 1},
	        .diag = {.sdiag_family = AF_INET, .sdiag_protocol = key->proto, .idiag_states = ~0u},
	};
	struct inet_diag_sockid *id = &request.diag.id;
	int fd = open_or_reuse_sock_diag_socket(kept), rc = 0;

	if (fd < 0)
		return fd;
	id->idiag_sport = key->local_port_be;
	id->idiag_dport = key->peer_port_be;
	memcpy(id->idiag_src, key->local, 4);
	memcpy(id->idiag_dst, key->peer, 4);
	id->idiag_if = ifindex;
	id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	if (os_send(fd, &request, request.head.nlmsg_len, 0) < 0)
		rc = -errno;
	while (rc == 0)
		rc = diag_receive_dump(fd, &walk, key->proto);
	diag_socket_close_unless_kept(kept, fd, rc);
	return rc == -ENOENT || rc > 0 ? 0 : rc;
}

bool kernel_sock_conflicts(const struct vma_flow_rule *rule, const struct kernel_sock *socket, unsigned ifindex)
{
	const struct vma_flow_key *key = &rule->key;
	const bool connected = socket->peer_port_be != 0;
	bool same_local;

	if (socket->proto != key->proto || socket->port_be != key->local_port_be ||
	    (socket->ifindex != 0 && socket->ifindex != ifindex))
		return false;
	same_local = is_zero(socket->local, 16) || memcmp(socket->local, key->local, 16) == 0;
	if (!same_local)
		return false;
	if (key->peer_port_be != 0)
		return connected ? socket->peer_port_be == key->peer_port_be && memcmp(socket->peer, key->peer, 16) == 0
		                 : kernel_sock_flow_is_multicast(key);
	if (rule->flags & VMA_FLOW_LISTENER)
		return socket->state == TCP_LISTEN;
	return true;
}
