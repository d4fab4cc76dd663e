/*
 * control_fixture.h - the control path on a link in memory: real engine, rings, kernel sockets and memberships; the
 * interfaces, addresses and routes are as the test says, because flows.c, targets.c and multicast.c are compiled into
 * the test with these in place of net's.
 *
 *   fixture: interface 1 (the loopback, which here is said to be Ethernet) with 10.77.0.1/24
 *   sock ── endpoints ── ring_ctxs ── end 0 ════ end 1 ── peer: a ring that the test sends from
 *
 * Sockets are bound to addresses that this host does not have (IP_FREEBIND), so no privilege is needed.
 */
#ifndef VMA_UDP_TEST_CONTROL_FIXTURE_H
#define VMA_UDP_TEST_CONTROL_FIXTURE_H

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <vma/nic_wire.h>
#include <vma/test.h>

#include "../control.h"
#include "../endpoint.h"
#include "../flows.h"
#include "../groups.h"
#include "../../sock/test/small_engine.h"

enum { FIXTURE_LINKS = 4, FIXTURE_ADDRS = 8 };
#define LAN 1 /* the loopback's number in every network namespace: real memberships are made there */

static struct {
	struct vma_net_link link[FIXTURE_LINKS];
	struct vma_net_addr addr[FIXTURE_ADDRS];
	int links, addrs;
	struct vma_net_route route;
	int route_error;
	bool no_device;
	struct vma_device device;
	struct vma_nic *end[2];
	struct vma_ring *peer;
	struct sigaction on_segv, on_bus; /* the library's */
} fixture;

static struct {
	_Alignas(64) uint8_t bytes[256];
} fixture_device_priv; /* what sock's ring_ctx.c keeps of a device: its list of ring contexts */

static inline uint32_t control_fixture_parse_ip(const char *text)
{
	struct in_addr address;

	assert_int_equal(inet_pton(AF_INET, text, &address), 1);
	return address.s_addr;
}

static inline void fixture_add_link(uint32_t ifindex, uint32_t flags, uint16_t hw_type)
{
	fixture.link[fixture.links++] =
	        (struct vma_net_link){.ifindex = ifindex, .flags = flags, .mtu = 1500, .hw_type = hw_type};
}

static inline void fixture_add_addr(uint32_t ifindex, const char *address, uint8_t prefix_len)
{
	struct vma_net_addr *addr = &fixture.addr[fixture.addrs++];
	uint32_t bytes = control_fixture_parse_ip(address);

	*addr = (struct vma_net_addr){.ifindex = ifindex, .family = AF_INET, .prefix_len = prefix_len};
	memcpy(addr->address, &bytes, 4);
}

static inline void fixture_reset(void)
{
	fixture.links = fixture.addrs = 0;
	fixture.route = (struct vma_net_route){.type = RTN_UNICAST, .family = AF_INET, .oif = LAN};
	fixture.route_error = 0;
	fixture.no_device = false;
	fixture_add_link(LAN, IFF_UP | IFF_BROADCAST | IFF_MULTICAST, ARPHRD_ETHER);
	fixture_add_addr(LAN, "10.77.0.1", 24);
}

static int fake_net_find_link(struct vma_net *net, uint32_t ifindex, struct vma_net_link *out)
{
	(void)net;
	for (int i = 0; i < fixture.links; i++) {
		if (fixture.link[i].ifindex == ifindex) {
			*out = fixture.link[i];
			return 0;
		}
	}
	return -ENODEV;
}

static int fake_net_get_links(struct vma_net *net, struct vma_net_link *out, unsigned max)
{
	(void)net;
	for (int i = 0; i < fixture.links && i < (int)max; i++)
		out[i] = fixture.link[i];
	return fixture.links;
}

static int fake_net_get_addrs(struct vma_net *net, uint32_t ifindex, struct vma_net_addr *out, unsigned max)
{
	(void)net, (void)ifindex;
	for (int i = 0; i < fixture.addrs && i < (int)max; i++)
		out[i] = fixture.addr[i];
	return fixture.addrs;
}

static int control_fixture_fake_path_get(struct vma_net *net, const struct vma_net_key *key, struct vma_net_path **out)
{
	static struct vma_net_path path;

	(void)net, (void)key;
	*out = &path;
	return 0;
}

static void fake_path_read(const struct vma_net_path *path, struct vma_net_template *out)
{
	(void)path;
	*out = (struct vma_net_template){.type = fixture.route.type,
	                                 .ifindex = fixture.route.oif,
	                                 .state = fixture.route_error == 0 ? VMA_NET_READY : VMA_NET_ERROR};
}

static int control_fixture_fake_device_get(struct vma_engine *engine, uint32_t ifindex, struct vma_device **out)
{
	(void)engine;
	if (fixture.no_device || ifindex != LAN)
		return -EOPNOTSUPP;
	*out = &fixture.device;
	return 0;
}

#define vma_net_get_link(...) fake_net_find_link(__VA_ARGS__)
#define vma_net_link_cached(...) fake_net_find_link(__VA_ARGS__)
#define vma_net_links(...) fake_net_get_links(__VA_ARGS__)
#define vma_net_addrs(...) fake_net_get_addrs(__VA_ARGS__)
#define vma_net_path_get(...) control_fixture_fake_path_get(__VA_ARGS__)
#define vma_net_path_read_template(...) fake_path_read(__VA_ARGS__)
#define vma_net_path_put(...) ((void)0)
#define vma_device_find_or_open(...) control_fixture_fake_device_get(__VA_ARGS__)
#include "../targets.c"
#include "../multicast.c"
#include "../flows.c"
#include "../options.c"
#undef vma_net_get_link

/* ---- sockets ---- */

static inline int fixture_open_offloaded_udp_socket(void)
{
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const int on = 1;

	assert_true(fd >= 0);
	assert_int_equal(vma_udp_socket(fd, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), 0);
	assert_int_equal(vma_os.setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on)), 0);
	return fd;
}

static inline struct udp_sock *control_fixture_sock_of(int fd)
{
	return udp_sock(vma_fd_lookup(fd));
}

static inline int control_fixture_setsockopt_int(int fd, int level, int name, int value)
{
	struct vma_thread *self = vma_enter();
	int rc = udp_setsockopt(vma_fd_lookup(fd), fd, level, name, &value, sizeof(value));

	vma_leave(self);
	return rc;
}

static inline int control_fixture_bind_to(int fd, const char *address, uint16_t port)
{
	const struct sockaddr_in name = {
	        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = control_fixture_parse_ip(address)};
	struct vma_thread *self = vma_enter();
	int rc = udp_bind(vma_fd_lookup(fd), fd, (const struct sockaddr *)&name, sizeof(name));

	vma_leave(self);
	return rc;
}

static inline uint16_t port_of(int fd)
{
	return ntohs(control_fixture_sock_of(fd)->local.sin_port);
}

static inline int control_fixture_set_membership(int fd, int name, const char *group)
{
	const struct ip_mreqn request = {.imr_multiaddr.s_addr = control_fixture_parse_ip(group), .imr_ifindex = LAN};
	struct vma_thread *self = vma_enter();
	int rc = udp_setsockopt(vma_fd_lookup(fd), fd, IPPROTO_IP, name, &request, sizeof(request));

	vma_leave(self);
	return rc;
}

/* As connect(), which the kernel would refuse for an address that is not there. "": not connected any more. */
static inline void set_socket_as_if_connected(int fd, const char *peer, uint16_t port)
{
	struct udp_sock *sock = control_fixture_sock_of(fd);
	struct vma_thread *self = vma_enter();

	pthread_mutex_lock(&sock->file.lock);
	sock->peer = (struct sockaddr_in){0};
	if (*peer != '\0')
		sock->peer = (struct sockaddr_in){.sin_family = AF_INET,
		                                  .sin_port = htons(port),
		                                  .sin_addr.s_addr = control_fixture_parse_ip(peer)};
	udp_flows_update(sock);
	pthread_mutex_unlock(&sock->file.lock);
	vma_leave(self);
}

static inline void control_fixture_update_flows(int fd)
{
	struct udp_sock *sock = control_fixture_sock_of(fd);
	struct vma_thread *self = vma_enter();

	pthread_mutex_lock(&sock->file.lock);
	udp_flows_update(sock);
	pthread_mutex_unlock(&sock->file.lock);
	vma_leave(self);
}

static inline enum vma_sock_reason control_fixture_reason(int fd)
{
	return atomic_load(&control_fixture_sock_of(fd)->reason);
}

static inline void control_fixture_close(int fd)
{
	struct vma_thread *self = vma_enter();

	vma_fd_remove(fd);
	vma_leave(self);
	vma_os.close(fd);
}

/* ---- datagrams ---- */

static inline void peer_send(const char *from, uint16_t sport, const char *to, uint16_t dport, const char *text)
{
	struct vma_pkt_udp_attr attr = {.src_port_be = htons(sport), .dst_port_be = htons(dport)};
	struct vma_buf *buf = vma_ring_tx_buf(fixture.peer);
	uint32_t src = control_fixture_parse_ip(from), dst = control_fixture_parse_ip(to);
	struct vma_nic_seg seg = {.buf = buf};
	struct vma_pkt_udp pkt;
	unsigned sent = 0;
	uint8_t *frame;

	assert_non_null(buf);
	memcpy(attr.src_ip, &src, 4);
	memcpy(attr.dst_ip, &dst, 4);
	memset(attr.dst_mac, dst == INADDR_BROADCAST || ntohl(dst) % 256 == 255 ? 0xff : 2, 6);
	vma_pkt_udp_init(&pkt, &attr);
	frame = (uint8_t *)vma_buf_data(vma_engine_get_or_start()->arena, buf);
	memcpy(frame + pkt.len, text, strlen(text));
	seg.off = buf->data_off;
	seg.len = vma_pkt_udp_write(&pkt, frame, (uint32_t)strlen(text), VMA_PKT_CSUM_FULL);
	/* Full while whoever drives the other end is kept from it. */
	for (int turn = 0; turn < 2000 && sent == 0; turn++) {
		if (turn > 0)
			usleep(1000);
		sent = vma_ring_send(fixture.peer, &seg, 1, 0);
	}
	assert_int_equal(sent, 1);
}

/* The socket's next datagram, as text, by the call that the socket has now; "": there is none. */
static inline const char *control_fixture_receive(int fd)
{
	static __thread char text[64];
	struct iovec iov = {.iov_base = text, .iov_len = sizeof(text) - 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct vma_thread *self = vma_enter();
	struct vma_file *file = vma_fd_lookup(fd);
	ssize_t len = file->ops->recvmsg(file, fd, &msg, MSG_DONTWAIT);

	vma_leave(self);
	assert_true(len >= 0 || len == -EAGAIN);
	text[len > 0 ? len : 0] = '\0';
	return text;
}

/* ---- the whole ---- */

static int setup_wire_pair_and_peer_ring(void **state)
{
	struct vma_ring_attr attr = {.name = "peer", .rx_wre = 512, .tx_wre = 512, .thread_mode = VMA_THREAD_SPIN};
	struct vma_wire_pair_attr pair = {0};
	struct vma_engine *engine = vma_engine_get_or_start();

	(void)state;
	pair.arena[0] = pair.arena[1] = engine->arena;
	if (vma_wire_create_pair(&pair, fixture.end) != 0)
		return -1;
	fixture.device = (struct vma_device){
	        .ifindex = LAN, .nic = fixture.end[0], .engine = engine, .priv = (void *)&fixture_device_priv};
	attr.nic = fixture.end[1];
	attr.spill_pool = engine->spill;
	return vma_ring_create(&attr, &fixture.peer);
}

/* cmocka puts handlers of its own around each test: a test of bad pointers takes the library's back. */
static inline void fixture_restore_library_fault_handlers(void)
{
	sigaction(SIGSEGV, &fixture.on_segv, NULL);
	sigaction(SIGBUS, &fixture.on_bus, NULL);
}

static inline int control_fixture_run_tests(const char *name, const struct CMUnitTest *tests, size_t count)
{

	if (start_engine_with_few_buffers("8192", "512") == NULL)
		return 1;
	vma_signals_wrap_existing_handlers();
	sigaction(SIGSEGV, NULL, &fixture.on_segv);
	sigaction(SIGBUS, NULL, &fixture.on_bus);
	fixture_reset();
	vma_test_set_filter_from_env();
	return _cmocka_run_group_tests(name, tests, count, setup_wire_pair_and_peer_ring, NULL);
}
#define FIXTURE_MAIN(name, tests)                                                                                      \
	int main(void)                                                                                                 \
	{                                                                                                              \
		return control_fixture_run_tests(name, tests, sizeof(tests) / sizeof((tests)[0]));                     \
	}

#endif
