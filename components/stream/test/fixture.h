/*
 * fixture.h - sockets on a link in memory: real engine, ring contexts, stacks and kernel sockets; routes, neighbours,
 * interfaces and devices are as the test says, because route.c and listen.c are compiled into the test with these in
 * place of net's and sock's.
 *
 *   sock ── ring_ctx ── end 0 ════ end 1 ── peer: a stack of its own, whose connections the test reads and writes
 *     └── shadow: bound to 10.77.0.1, which this host does not have (IP_FREEBIND)
 *
 * Time is real. The peer's ring is driven by the test (fixture_until), or by a thread (fixture_peer_thread_start) while
 * a call blocks.
 */
#ifndef VMA_STREAM_TEST_FIXTURE_H
#define VMA_STREAM_TEST_FIXTURE_H

#include "../stream_priv.h"
#include "../../sock/test/small_engine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/test.h>

enum { FIXTURE_IFINDEX = 4711, FIXTURE_CONNS = 64 };
#define FIXTURE_LOCAL "10.77.0.1"
#define FIXTURE_PEER "10.77.0.2"
#define FIXTURE_TIMEOUT_NS 5000000000ULL

/* What the peer knows of a connection. */
struct fixture_conn {
	struct vma_tcp_conn *conn;
	_Atomic uint32_t events; /* all that have come */
};

static struct {
	struct vma_nic *end[2];
	struct vma_ring *peer_ring;
	struct vma_tcp *peer;
	struct vma_device device;
	struct fixture_conn accepted[FIXTURE_CONNS];
	_Atomic unsigned n_accepted;
	pthread_t thread;
	_Atomic bool runs;
	/* net's answers */
	struct vma_net_template path;
	struct vma_net_path path_front;
	struct vma_net_watch *watches;
	void (*on_unwatch)(void); /* called before a watch is taken back */
	pthread_mutex_t net_lock;
	int address_count;
	bool no_device;
	unsigned probes, resolves;
	struct sigaction on_segv, on_bus; /* the library's */
} fixture = {.net_lock = PTHREAD_MUTEX_INITIALIZER};
static struct {
	_Alignas(64) uint8_t bytes[256];
} fixture_device_priv; /* what engine/ring_ctx.c keeps of a device: its list of ring contexts */

static inline uint32_t fixture_ipv4_from_text(const char *text)
{
	struct in_addr address;

	assert_int_equal(inet_pton(AF_INET, text, &address), 1);
	return address.s_addr;
}

/* ---- net ---- */

static int fixture_path_get(struct vma_net *net, const struct vma_net_key *key, struct vma_net_path **out)
{
	(void)net, (void)key;
	*out = &fixture.path_front;
	return 0;
}

static void fixture_path_put(struct vma_net *net, struct vma_net_path *path)
{
	(void)net, (void)path;
}

static void fixture_path_read(const struct vma_net_path *path, struct vma_net_template *out)
{
	(void)path;
	pthread_mutex_lock(&fixture.net_lock);
	*out = fixture.path;
	pthread_mutex_unlock(&fixture.net_lock);
}

static int fixture_count_path_resolve(struct vma_net *net, struct vma_net_path *path)
{
	(void)net, (void)path;
	fixture.resolves++;
	return 0;
}

static void fixture_count_path_probe(struct vma_net *net, struct vma_net_path *path)
{
	(void)net, (void)path;
	fixture.probes++;
}

static void fake_net_watch_path(struct vma_net *net, struct vma_net_path *path, struct vma_net_watch *watch)
{
	(void)net, (void)path;
	pthread_mutex_lock(&fixture.net_lock);
	watch->next = fixture.watches;
	fixture.watches = watch;
	pthread_mutex_unlock(&fixture.net_lock);
}

static void fake_net_unwatch(struct vma_net *net, struct vma_net_watch *watch)
{
	struct vma_net_watch **place = &fixture.watches;

	(void)net;
	if (fixture.on_unwatch != NULL)
		fixture.on_unwatch();
	pthread_mutex_lock(&fixture.net_lock);
	while (*place != NULL && *place != watch)
		place = &(*place)->next;
	if (*place != NULL)
		*place = watch->next;
	pthread_mutex_unlock(&fixture.net_lock);
}

/* As an event: every watch is told, with the lock held. */
static inline void fixture_set_path_state_and_notify(enum vma_net_path_state state, int error)
{
	struct vma_net_watch *next;

	pthread_mutex_lock(&fixture.net_lock);
	fixture.path.state = state;
	fixture.path.error = error;
	fixture.path.len = state == VMA_NET_READY ? 34 : 0;
	for (struct vma_net_watch *w = fixture.watches; w != NULL; w = next) {
		next = w->next;
		w->changed(w, &fixture.path_front);
	}
	pthread_mutex_unlock(&fixture.net_lock);
}

static int fake_net_link(struct vma_net *net, uint32_t ifindex, struct vma_net_link *out)
{
	(void)net;
	if (ifindex != FIXTURE_IFINDEX)
		return -ENODEV;
	*out = (struct vma_net_link){.ifindex = ifindex, .flags = IFF_UP, .mtu = 1500, .hw_type = ARPHRD_ETHER};
	return 0;
}

static int fixture_addrs(struct vma_net *net, uint32_t ifindex, struct vma_net_addr *out, unsigned max)
{
	uint32_t address = fixture_ipv4_from_text(FIXTURE_LOCAL);

	(void)net, (void)ifindex;
	if (max > 0 && fixture.address_count > 0) {
		out[0] = (struct vma_net_addr){.ifindex = FIXTURE_IFINDEX, .family = AF_INET, .prefix_len = 24};
		memcpy(out[0].address, &address, 4);
	}
	return fixture.address_count;
}

static int fixture_device_get(struct vma_engine *engine, uint32_t ifindex, struct vma_device **out)
{
	(void)engine;
	if (fixture.no_device || ifindex != FIXTURE_IFINDEX)
		return -EOPNOTSUPP;
	*out = &fixture.device;
	return 0;
}

#define vma_net_path_get fixture_path_get
#define vma_net_path_put fixture_path_put
#define vma_net_path_read_template fixture_path_read
#define vma_net_path_start_neigh_resolution fixture_count_path_resolve
#define vma_net_path_probe fixture_count_path_probe
#define vma_net_watch(...) fake_net_watch_path(__VA_ARGS__)
#define vma_net_unwatch fake_net_unwatch
#define vma_net_get_link(...) fake_net_link(__VA_ARGS__)
#define vma_net_addrs fixture_addrs
#define vma_device_find_or_open fixture_device_get
#include "../route.c"
#include "../endpoint.c"
#include "../listen.c"
#include "../connect.c"
#undef vma_net_watch
#undef vma_net_get_link

/* ---- the peer ---- */

static void fixture_fill_peer_path_headers(struct vma_tcp_path *path)
{
	static const uint8_t head[] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45};
	uint32_t src = fixture_ipv4_from_text(FIXTURE_PEER), dst = fixture_ipv4_from_text(FIXTURE_LOCAL);

	*path = (struct vma_tcp_path){.len = 34, .ip_off = 14, .mtu = 1500};
	memcpy(path->bytes, head, sizeof(head));
	memcpy(path->bytes + 26, &src, 4);
	memcpy(path->bytes + 30, &dst, 4);
}

static void fixture_peer_record_events(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	struct fixture_conn *peer = arg;

	(void)conn;
	atomic_fetch_or(&peer->events, events);
}

static const struct vma_tcp_conn_ops fixture_peer_owner = {.event = fixture_peer_record_events};

static bool fixture_peer_admits_always(struct vma_tcp_listener *listener, void *arg)
{
	(void)listener, (void)arg;
	return true;
}

static bool fixture_on_peer_accept(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	unsigned n = atomic_load(&fixture.n_accepted);

	(void)listener, (void)arg;
	assert_true(n < FIXTURE_CONNS);
	fixture.accepted[n].conn = conn;
	atomic_store(&fixture.accepted[n].events, 0);
	vma_tcp_conn_set_owner_and_replay_events(conn, &fixture_peer_owner, &fixture.accepted[n]);
	atomic_store(&fixture.n_accepted, n + 1);
	return true;
}

static const struct vma_tcp_listener_ops fixture_listener_owner = {.admit = fixture_peer_admits_always,
                                                                   .accepted = fixture_on_peer_accept};

static inline struct vma_tcp_listener *fixture_peer_listen(uint16_t port)
{
	struct vma_tcp_options options;
	struct vma_tcp_listen_attr attr = {.owner = &fixture_listener_owner,
	                                   .options = &options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(port),
	                                   .backlog = 64};
	struct vma_tcp_listener *listener;
	uint32_t local = fixture_ipv4_from_text(FIXTURE_PEER);

	vma_tcp_options_init(&options);
	memcpy(attr.local, &local, 4);
	assert_int_equal(vma_tcp_listen(fixture.peer, &attr, &listener), 0);
	return listener;
}

/*
 * There is no kernel behind the peer's end: a port where nobody listens has a flow that answers as one does, RST with
 * the number that it refuses (RFC 9293 3.10.7.1).
 */
static bool fixture_sink_answer_with_rst(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_bufarena *arena = vma_engine_get_or_start()->arena;
	struct vma_buf *buf = vma_ring_tx_buf(fixture.peer_ring);
	const uint8_t *in = (const uint8_t *)vma_buf_data(arena, packet), *in_tcp = in + packet->l4_off;
	struct vma_nic_seg seg = {.buf = buf};
	uint8_t *out;
	uint32_t number;
	uint16_t sum;

	(void)flow, (void)info;
	assert_non_null(buf);
	out = (uint8_t *)vma_buf_data(arena, buf);
	memset(out, 0, 54);
	memcpy(out, in + 6, 6);
	memcpy(out + 6, in, 6);
	memcpy(out + 12, (uint8_t[]){8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6}, 12);
	memcpy(out + 26, in + packet->l3_off + 16, 4);
	memcpy(out + 30, in + packet->l3_off + 12, 4);
	sum = (uint16_t)~vma_csum_fold(vma_csum_add(0, out + 14, 20));
	memcpy(out + 24, &sum, 2);
	memcpy(out + 34, in_tcp + 2, 2);
	memcpy(out + 36, in_tcp, 2);
	memcpy(&number, in_tcp + 4, 4);
	number = htonl(ntohl(number) + 1);
	memcpy(out + 42, &number, 4);
	out[46] = 0x50;
	out[47] = 0x14;
	sum = (uint16_t)~vma_csum_fold(vma_csum_pseudo4(out + 26, out + 30, IPPROTO_TCP, 20) +
	                               vma_csum_add(0, out + 34, 20));
	memcpy(out + 50, &sum, 2);
	seg.off = buf->data_off;
	seg.len = 54;
	assert_int_equal(vma_ring_send(fixture.peer_ring, &seg, 1, 0), 1);
	return false;
}

static inline void fixture_peer_refuse_connections_to_port(struct vma_flow *flow, uint16_t port)
{
	uint32_t local = fixture_ipv4_from_text(FIXTURE_PEER);

	*flow = (struct vma_flow){.sink = fixture_sink_answer_with_rst, .flags = VMA_FLOW_LISTENER};
	flow->key = (struct vma_flow_key){.family = AF_INET, .proto = IPPROTO_TCP, .local_port_be = htons(port)};
	memcpy(flow->key.local, &local, 4);
	assert_int_equal(vma_ring_attach_flow(fixture.peer_ring, flow), 0);
}

/* Connects to the socket under test. */
static inline void fixture_peer_connect(struct fixture_conn *peer, uint16_t from, uint16_t to)
{
	struct vma_tcp_options options;
	struct vma_tcp_conn_attr attr = {.owner = &fixture_peer_owner,
	                                 .arg = peer,
	                                 .options = &options,
	                                 .family = AF_INET,
	                                 .local_port_be = htons(from),
	                                 .peer_port_be = htons(to)};
	uint32_t local = fixture_ipv4_from_text(FIXTURE_PEER), other = fixture_ipv4_from_text(FIXTURE_LOCAL);

	vma_tcp_options_init(&options);
	memcpy(attr.local, &local, 4);
	memcpy(attr.peer, &other, 4);
	fixture_fill_peer_path_headers(&attr.path);
	atomic_store(&peer->events, 0);
	assert_int_equal(vma_tcp_connect(fixture.peer, &attr, &peer->conn), 0);
}

static inline void fixture_peer_ring_progress(void)
{
	struct vma_thread *self = vma_enter();

	vma_ring_progress(fixture.peer_ring);
	vma_leave(self);
}

static inline void fixture_peer_send(struct fixture_conn *peer, const void *data, size_t size)
{
	struct iovec spans[4];
	const uint8_t *from = data;
	size_t done = 0;
	int n = vma_tcp_tx_reserve(peer->conn, size, spans, 4);

	assert_true(n > 0);
	for (int i = 0; i < n && done < size; i++) {
		size_t here = spans[i].iov_len < size - done ? spans[i].iov_len : size - done;

		memcpy(spans[i].iov_base, from + done, here);
		done += here;
	}
	assert_int_equal(done, size);
	vma_tcp_tx_commit(peer->conn, size, 0);
}

/* What has come, at most size bytes, taken out. */
static inline size_t fixture_peer_recv(struct fixture_conn *peer, void *data, size_t size)
{
	struct iovec spans[8];
	size_t done = 0;
	unsigned n = vma_tcp_peek_rx_spans(peer->conn, 0, spans, 8);

	for (unsigned i = 0; i < n && done < size; i++) {
		size_t here = spans[i].iov_len < size - done ? spans[i].iov_len : size - done;

		memcpy((uint8_t *)data + done, spans[i].iov_base, here);
		done += here;
	}
	vma_tcp_rx_consume(peer->conn, done);
	return done;
}

static inline void fixture_peer_reset_and_free_conn(struct fixture_conn *peer)
{
	vma_tcp_close(peer->conn, true);
	vma_tcp_conn_drop_owner_and_abort(peer->conn);
	vma_tcp_conn_put(peer->conn);
	peer->conn = NULL;
}

static void *fixture_peer_ring_thread(void *arg)
{
	(void)arg;
	while (atomic_load(&fixture.runs)) {
		fixture_peer_ring_progress();
		usleep(50);
	}
	return NULL;
}

/* From now on the peer answers by itself, until fixture_peer_thread_stop. */
static inline void fixture_peer_thread_start(void)
{
	atomic_store(&fixture.runs, true);
	assert_int_equal(pthread_create(&fixture.thread, NULL, fixture_peer_ring_thread, NULL), 0);
}

static inline void fixture_peer_thread_stop(void)
{
	atomic_store(&fixture.runs, false);
	pthread_join(fixture.thread, NULL);
}

static inline void fixture_progress_all_rings(void)
{
	struct vma_thread *self = vma_enter();

	vma_ring_ctxs_progress(UINT64_MAX);
	vma_leave(self);
	fixture_peer_ring_progress();
}

/* Both sides are driven until `what` is true; then it is not evaluated again. */
#define fixture_until(what) fixture_until_within(what, FIXTURE_TIMEOUT_NS)
#define fixture_until_within(what, ns)                                                                                 \
	do {                                                                                                           \
		uint64_t end_ns = vma_now_ns() + (ns);                                                                 \
		bool is_so = false;                                                                                    \
		while (!(is_so = (what)) && vma_now_ns() < end_ns) {                                                   \
			fixture_progress_all_rings();                                                                  \
			usleep(20);                                                                                    \
		}                                                                                                      \
		assert_true(is_so);                                                                                    \
	} while (0)
/* For a while nothing that both sides do makes it true. */
#define fixture_never(what)                                                                                            \
	do {                                                                                                           \
		uint64_t end_ns = vma_now_ns() + 20000000;                                                             \
		while (vma_now_ns() < end_ns) {                                                                        \
			fixture_progress_all_rings();                                                                  \
			assert_false(what);                                                                            \
			usleep(100);                                                                                   \
		}                                                                                                      \
	} while (0)

/* ---- calls, as interpose makes them ---- */

#define CALL(type, expression)                                                                                         \
	({                                                                                                             \
		struct vma_thread *call_self = vma_enter();                                                            \
		type call_rc = (expression);                                                                           \
		vma_leave(call_self);                                                                                  \
		call_rc;                                                                                               \
	})

/* Another thread's doing, while no ring is driven: `what` is evaluated until it is true, for ten seconds at most. */
#define fixture_wait_ms_until(what)                                                                                    \
	do {                                                                                                           \
		bool is_so = false;                                                                                    \
		for (int ms = 0; ms < 10000 && !(is_so = (what)); ms++)                                                \
			usleep(1000);                                                                                  \
		assert_true(is_so);                                                                                    \
	} while (0)

static inline struct stream_sock *fixture_sock_of(int fd)
{
	return stream_sock(vma_fd_lookup(fd));
}

static inline int fixture_stream_socket(int flags)
{
	int fd = vma_os.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
	const int on = 1;

	assert_true(fd >= 0);
	assert_int_equal(vma_stream_socket(fd, AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0), 0);
	assert_int_equal(vma_os.setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on)), 0);
	return fd;
}

static inline struct sockaddr_in fixture_sockaddr_of(const char *address, uint16_t port)
{
	return (struct sockaddr_in){
	        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = fixture_ipv4_from_text(address)};
}

static inline int do_connect(int fd, const char *address, uint16_t port)
{
	struct sockaddr_in to = fixture_sockaddr_of(address, port);

	return CALL(int, stream_connect(vma_fd_lookup(fd), fd, (struct sockaddr *)&to, sizeof(to)));
}

static inline int do_bind(int fd, const char *address, uint16_t port)
{
	struct sockaddr_in to = fixture_sockaddr_of(address, port);

	return CALL(int, stream_bind(vma_fd_lookup(fd), fd, (struct sockaddr *)&to, sizeof(to)));
}

static inline int do_listen(int fd, int backlog)
{
	return CALL(int, stream_listen(vma_fd_lookup(fd), fd, backlog));
}

static inline int do_accept(int fd, struct sockaddr_in *from, int flags)
{
	socklen_t len = sizeof(*from);

	return CALL(int,
	            stream_accept4(vma_fd_lookup(fd), fd, (struct sockaddr *)from, from != NULL ? &len : NULL, flags));
}

struct fixture_message {
	struct msghdr msg;
	struct iovec iov;
};

static inline ssize_t do_recv(int fd, void *data, size_t size, int flags)
{
	struct fixture_message m = {.iov = {.iov_base = data, .iov_len = size}};

	m.msg.msg_iov = &m.iov;
	m.msg.msg_iovlen = 1;
	return CALL(ssize_t, vma_fd_lookup(fd)->ops->recvmsg(vma_fd_lookup(fd), fd, &m.msg, flags));
}

static inline ssize_t do_send(int fd, const void *data, size_t size, int flags)
{
	struct fixture_message m = {.iov = {.iov_base = (void *)data, .iov_len = size}};

	m.msg.msg_iov = &m.iov;
	m.msg.msg_iovlen = 1;
	return CALL(ssize_t, vma_fd_lookup(fd)->ops->sendmsg(vma_fd_lookup(fd), fd, &m.msg, flags));
}

static inline int do_shutdown(int fd, int how)
{
	return CALL(int, stream_shutdown(vma_fd_lookup(fd), fd, how));
}

static inline int fixture_setsockopt_int(int fd, int level, int name, int value)
{
	return CALL(int, stream_setsockopt(vma_fd_lookup(fd), fd, level, name, &value, sizeof(value)));
}

static inline int fixture_getsockopt_int(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	assert_int_equal(CALL(int, stream_getsockopt(vma_fd_lookup(fd), fd, level, name, &value, &len)), 0);
	return value;
}

static inline uint32_t do_poll(int fd)
{
	return CALL(uint32_t, stream_poll(vma_fd_lookup(fd)));
}

static inline enum vma_sock_reason fixture_offload_reason_of_fd(int fd)
{
	return atomic_load(&fixture_sock_of(fd)->reason);
}

/* By system call: some tests close what another thread is using, which the race detector reports of the C library's. */
static inline void do_close(int fd)
{
	struct vma_thread *self = vma_enter();

	vma_fd_remove(fd);
	vma_leave(self);
	syscall(SYS_close, fd);
	vma_stream_linger_after_close();
}

/* A connected pair: the socket (non-blocking calls at first), and what the peer has of it. */
static inline int fixture_open_conn_pair(struct vma_tcp_listener **listener, struct fixture_conn **peer, int flags)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	unsigned before = atomic_load(&fixture.n_accepted);

	*listener = fixture_peer_listen(7000);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	fixture_until(atomic_load(&fixture.n_accepted) > before && do_poll(fd) & EPOLLOUT);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), 0);
	if (!(flags & SOCK_NONBLOCK))
		CALL(int, stream_fcntl(vma_fd_lookup(fd), fd, F_SETFL, NULL));
	*peer = &fixture.accepted[before];
	return fd;
}

/* No connection of the sockets' is left. */
static inline void fixture_wait_for_no_connections_within(uint64_t ns)
{
	struct vma_tcp *tcp = atomic_load(&vma_ring_ctxs[0]->tcp);

	fixture_until_within(CALL(bool, tcp == NULL || vma_tcp_is_empty(tcp)), ns);
	atomic_store(&fixture.n_accepted, 0);
}

static inline void fixture_wait_until_no_connections(void)
{
	fixture_wait_for_no_connections_within(FIXTURE_TIMEOUT_NS);
}

static inline void fixture_close_conn_pair(int fd, struct vma_tcp_listener *listener, struct fixture_conn *peer)
{
	if (fd >= 0)
		do_close(fd);
	vma_tcp_listener_close(listener);
	if (peer->conn != NULL)
		fixture_peer_reset_and_free_conn(peer);
	fixture_wait_until_no_connections();
}

/* ---- the whole ---- */

static inline void fixture_reset(void)
{
	static const uint8_t head[] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45};
	uint32_t src = fixture_ipv4_from_text(FIXTURE_LOCAL), dst = fixture_ipv4_from_text(FIXTURE_PEER);

	fixture.path = (struct vma_net_template){.len = 34,
	                                         .ip_off = 14,
	                                         .state = VMA_NET_READY,
	                                         .type = RTN_UNICAST,
	                                         .ifindex = FIXTURE_IFINDEX,
	                                         .nic = FIXTURE_IFINDEX,
	                                         .mtu = 1500,
	                                         .version = 1};
	memcpy(fixture.path.bytes, head, sizeof(head));
	memcpy(fixture.path.bytes + 26, &src, 4);
	memcpy(fixture.path.bytes + 30, &dst, 4);
	memcpy(fixture.path.src, &src, 4);
	memcpy(fixture.path.next_hop, &dst, 4);
	fixture.address_count = 1;
	fixture.no_device = false;
}

static int fixture_set_up_peer(void **state)
{
	struct vma_ring_attr attr = {.name = "peer", .rx_wre = 512, .tx_wre = 512, .thread_mode = VMA_THREAD_SPIN};
	struct vma_tcp_attr tcp = {.name = "peer", .gro_streams_max = 32};
	struct vma_wire_pair_attr pair = {0};
	struct vma_engine *engine = vma_engine_get_or_start();

	(void)state;
	pair.arena[0] = pair.arena[1] = engine->arena;
	if (vma_wire_create_pair(&pair, fixture.end) != 0)
		return -1;
	fixture.device = (struct vma_device){.ifindex = FIXTURE_IFINDEX,
	                                     .nic = fixture.end[0],
	                                     .engine = engine,
	                                     .priv = (void *)&fixture_device_priv};
	attr.nic = fixture.end[1];
	attr.spill_pool = engine->spill;
	attr.rx_sw_csum = true;
	if (vma_ring_create(&attr, &fixture.peer_ring) != 0)
		return -1;
	tcp.ring = fixture.peer_ring;
	tcp.arena = engine->arena;
	return vma_tcp_create(&tcp, &fixture.peer);
}

/* cmocka puts handlers of its own around each test: a test of bad pointers takes the library's back. */
static inline void fixture_restore_fault_handlers(void)
{
	vma_os.sigaction(SIGSEGV, &fixture.on_segv, NULL);
	vma_os.sigaction(SIGBUS, &fixture.on_bus, NULL);
}

/* So that another run may be going on. Without the privilege (CAP_SYS_ADMIN) they are the host's. */
static inline void fixture_enter_own_net_namespace(void)
{
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int fd;

	if (unshare(CLONE_NEWNET) != 0)
		return;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &lo) != 0)
		print_message("# loopback does not come up\n");
	close(fd);
}

static inline int fixture_run_tests(const char *name, const struct CMUnitTest *tests, size_t count)
{

	if (start_engine_with_few_buffers("8192", "512") == NULL)
		return 1;
	vma_signals_wrap_existing_handlers();
	vma_os.sigaction(SIGSEGV, NULL, &fixture.on_segv);
	vma_os.sigaction(SIGBUS, NULL, &fixture.on_bus);
	fixture_reset();
	vma_test_set_filter_from_env();
	fixture_enter_own_net_namespace();
	return _cmocka_run_group_tests(name, tests, count, fixture_set_up_peer, NULL);
}
#define FIXTURE_MAIN(name, tests)                                                                                      \
	int main(void)                                                                                                 \
	{                                                                                                              \
		return fixture_run_tests(name, tests, sizeof(tests) / sizeof((tests)[0]));                             \
	}

#endif
