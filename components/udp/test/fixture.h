/*
 * fixture.h - a socket on a link in memory: a real engine, real rings, a kernel socket on the loopback as shadow, and
 * the control path's few answers given by the test.
 *
 *   sock ── ring_ctx 0 ── end 0 ════ end 1 ── peer: a ring whose frames the test reads and writes
 *     └── shadow: bound to 127.0.0.1:PORT of the kernel's choice
 */
#ifndef VMA_UDP_TEST_FIXTURE_H
#define VMA_UDP_TEST_FIXTURE_H

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/test.h>

#include "../extra.h"
#include "../flows.h"
#include "../recv.h"
#include "../udp_priv.h"
#include "../xtreme.h"
#include "../../sock/test/small_engine.h"

enum { FIXTURE_IFINDEX = 4711, FIXTURE_TIMEOUT_MS = 2000 };

/* `what` is evaluated until it is true, and not once more. */
#define fixture_wait_until(what)                                                                                       \
	do {                                                                                                           \
		bool is_so = false;                                                                                    \
		for (int ms = 0; ms < FIXTURE_TIMEOUT_MS && !(is_so = (what)); ms++)                                   \
			usleep(1000);                                                                                  \
		assert_true(is_so);                                                                                    \
	} while (0)

static struct {
	struct vma_nic *end[2];
	struct vma_ring *peer;
	struct vma_flow peer_flow;
	struct vma_ring_ctx *ring_ctx;
	uint8_t frame[2048]; /* the last one that came to the peer */
	uint32_t frame_len;
	unsigned frames;
	/* the control path's answers */
	bool group_accepts, local_members;
	unsigned binds, takes_up;
	struct sigaction on_segv, on_bus; /* the library's */
} fixture;

static const uint8_t fixture_local[4] = {10, 0, 0, 1}, fixture_remote[4] = {10, 0, 0, 2};

void udp_flows_update(struct udp_sock *sock)
{
	(void)sock;
	fixture.takes_up++;
}

void udp_schedule_offload_of_inherited(struct udp_sock *sock)
{
	(void)sock;
	fixture.takes_up++;
}

void udp_apply_changes_of_forked_processes(struct udp_sock *sock)
{
	(void)sock;
}

void udp_apply_changes_of_forked_processes_locked(struct udp_sock *sock)
{
	(void)sock;
}

bool udp_datagram_matches_shared_socket_names(struct udp_sock *sock, const struct udp_datagram *datagram)
{
	(void)sock, (void)datagram;
	return true;
}

void udp_finish_close(struct udp_sock *sock)
{
	(void)sock;
}

void udp_give_to_kernel(struct udp_sock *sock, enum vma_sock_reason reason)
{
	sock->file.os_only = true;
	atomic_store(&sock->reason, reason);
}

bool udp_multicast_filter_accepts_source(const struct udp_sock *sock, uint32_t group, uint32_t src, uint32_t ifindex)
{
	(void)sock, (void)group, (void)src, (void)ifindex;
	return fixture.group_accepts;
}

bool udp_group_has_local_members(uint32_t group, uint32_t ifindex)
{
	(void)group, (void)ifindex;
	return fixture.local_members;
}

/* ---- the peer ---- */

static bool fixture_sink_save_frame(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_engine *engine = vma_engine_get_or_start();

	(void)flow, (void)info;
	fixture.frame_len = packet->len;
	memcpy(fixture.frame, vma_buf_data(engine->arena, packet), packet->len);
	fixture.frames++;
	vma_buf_put(engine->arena, packet);
	return true;
}

/* How many frames have come since the last call. */
static inline unsigned fixture_peer_receive(void)
{
	unsigned before = fixture.frames;

	while (vma_ring_progress(fixture.peer) > 0)
		;
	return fixture.frames - before;
}

static inline uint32_t fixture_payload_len(void)
{
	return fixture.frame_len - 42;
}

/* A datagram from the peer's port to the socket's, on its way when this returns. */
static inline void fixture_peer_send_to(const uint8_t dst_ip[4], uint16_t sport, uint16_t dport, const void *data,
                                        uint32_t len)
{
	struct vma_pkt_udp_attr attr = {
	        .src_port_be = htons(sport), .dst_port_be = htons(dport), .ttl = 33, .tos = 0x20};
	struct vma_buf *buf = vma_ring_tx_buf(fixture.peer);
	struct vma_nic_seg seg = {.buf = buf};
	struct vma_pkt_udp pkt;
	uint8_t *frame;

	assert_non_null(buf);
	memcpy(attr.src_ip, fixture_remote, 4);
	memcpy(attr.dst_ip, dst_ip, 4);
	vma_pkt_udp_init(&pkt, &attr);
	frame = (uint8_t *)vma_buf_data(vma_engine_get_or_start()->arena, buf);
	memcpy(frame + pkt.len, data, len);
	seg.off = buf->data_off;
	seg.len = vma_pkt_udp_write(&pkt, frame, len, VMA_PKT_CSUM_FULL);
	assert_int_equal(vma_ring_send(fixture.peer, &seg, 1, 0), 1);
}

static inline void udp_fixture_peer_send(uint16_t sport, uint16_t dport, const void *data, uint32_t len)
{
	fixture_peer_send_to(fixture_local, sport, dport, data, len);
}

/* ---- the socket ---- */

static int fixture_bind(struct vma_file *file, int fd, const struct sockaddr *addr, socklen_t len)
{
	struct udp_sock *sock = udp_sock(file);
	socklen_t local_len = sizeof(sock->local);

	fixture.binds++;
	if (vma_os.bind(fd, addr, len) != 0)
		return -errno;
	pthread_mutex_lock(&file->lock);
	vma_os.getsockname(fd, (struct sockaddr *)&sock->local, &local_len);
	udp_dst_rebuild_after_change(sock);
	pthread_mutex_unlock(&file->lock);
	return 0;
}

static void fixture_destroy_sock(struct vma_file *file)
{
	udp_tx_state_destroy(udp_sock(file));
	udp_extra_api_state_free(udp_sock(file));
	vma_free(udp_sock(file)->stats);
}

static const struct vma_file_ops fixture_ops = {.name = "udp",
                                                .bind = fixture_bind,
                                                .destroy = fixture_destroy_sock,
                                                .complete = udp_xtreme_complete_queued_datagrams};

/* bind_it: the shadow to 127.0.0.1, the socket (as far as sending goes) to 10.0.0.1, same port. */
static inline struct udp_sock *udp_fixture_socket(bool bind_it)
{
	struct udp_sock *sock = vma_alloc(sizeof(*sock));
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);

	assert_non_null(sock);
	assert_true(fd >= 0);
	vma_file_init(&sock->file, VMA_FILE_UDP, &fixture_ops);
	udp_dst_init(sock);
	pthread_mutex_init(&sock->reader, NULL);
	atomic_store(&sock->rcvbuf, 212992);
	atomic_store(&sock->rcvtimeo_ns, UINT64_MAX);
	atomic_store(&sock->sndtimeo_ns, UINT64_MAX);
	sock->mc_ttl = 1;
	sock->mc_loop = true;
	sock->pmtu_discover = IP_PMTUDISC_WANT;
	sock->stats = vma_alloc(sizeof(*sock->stats));
	assert_int_equal(vma_fd_install(fd, &sock->file), 0);
	if (bind_it) {
		assert_int_equal(vma_os.bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
		assert_int_equal(vma_os.getsockname(fd, (struct sockaddr *)&addr, &len), 0);
		sock->local = addr;
		memcpy(&sock->local.sin_addr, fixture_local, 4);
	}
	return sock;
}

static inline int fixture_fd(struct udp_sock *sock)
{
	return atomic_load(&sock->file.fd);
}

static inline uint16_t fixture_port(struct udp_sock *sock)
{
	return ntohs(sock->local.sin_port);
}

static inline void fixture_close(struct udp_sock *sock)
{
	struct vma_thread *self = vma_enter();
	int fd = fixture_fd(sock);

	udp_dst_fini(sock);
	vma_fd_remove(fd);
	vma_leave(self);
	vma_os.close(fd);
}

/* ---- receiving: one attachment, whose flow is the socket's port ---- */

struct fixture_attached {
	struct vma_flow flow;
	struct udp_attachment at;
	struct udp_attachments *all;
};

static bool sink_deliver_to_udp_socket(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	return udp_deliver(flow->owner, packet, info);
}

static inline void fixture_attach_udp_flow(struct fixture_attached *attached, struct udp_sock *sock,
                                           const uint8_t local_ip[4])
{
	*attached = (struct fixture_attached){0};
	attached->at.sock = sock;
	attached->at.ring_ctx = fixture.ring_ctx;
	attached->at.ifindex = FIXTURE_IFINDEX;
	assert_int_equal(udp_queue_init(&attached->at.queue), 0);
	attached->all = vma_alloc(sizeof(*attached->all) + sizeof(attached->all->at[0]));
	attached->all->n = 1;
	attached->all->rings = vma_ring_ctx_bit(fixture.ring_ctx);
	attached->all->at[0] = &attached->at;
	attached->flow.key =
	        (struct vma_flow_key){.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = sock->local.sin_port};
	memcpy(attached->flow.key.local, local_ip, 4);
	attached->flow.sink = sink_deliver_to_udp_socket;
	attached->flow.owner = &attached->at;
	assert_int_equal(vma_ring_attach_flow(fixture.ring_ctx->ring, &attached->flow), 0);
	atomic_store(&sock->attachments, attached->all);
}

static inline void fixture_detach_udp_flow(struct fixture_attached *attached)
{
	struct udp_sock *sock = attached->at.sock;

	atomic_store(&sock->attachments, NULL);
	vma_ring_detach_flow(fixture.ring_ctx->ring, &attached->flow);
	udp_queue_fini(&attached->at.queue, vma_engine_get_or_start()->arena);
	vma_free(attached->all);
}

/* ---- the whole ---- */

static struct vma_device_priv_space { /* what sock's ring_ctx.c keeps of a device: its list of ring contexts */
	_Alignas(64) uint8_t bytes[256];
} fixture_device_priv;
static struct vma_device fixture_device;

static int udp_fixture_setup_wire_and_two_rings(void **state)
{
	struct vma_ring_attr attr = {.name = "peer", .rx_wre = 512, .tx_wre = 512, .thread_mode = VMA_THREAD_SPIN};
	const struct vma_ring_requester where = {.socket_id = 1};
	struct vma_wire_pair_attr pair = {0};
	struct vma_engine *engine = vma_engine_get_or_start();

	(void)state;
	pair.arena[0] = pair.arena[1] = engine->arena;
	if (vma_wire_create_pair(&pair, fixture.end) != 0)
		return -1;
	fixture_device = (struct vma_device){.ifindex = FIXTURE_IFINDEX,
	                                     .nic = fixture.end[0],
	                                     .engine = engine,
	                                     .priv = (void *)&fixture_device_priv};
	if (vma_ring_ctx_find_or_create(&fixture_device, VMA_RING_CTX_RX, &where, &fixture.ring_ctx) != 0)
		return -1;
	attr.nic = fixture.end[1];
	attr.spill_pool = engine->spill;
	attr.rx_sw_csum = true;
	if (vma_ring_create(&attr, &fixture.peer) != 0)
		return -1;
	fixture.group_accepts = true;
	return 0;
}

/* What the peer gets: everything that is sent to one port of the remote address. */
static inline void udp_fixture_peer_listen(uint16_t port)
{
	fixture.peer_flow = (struct vma_flow){.sink = fixture_sink_save_frame};
	fixture.peer_flow.key =
	        (struct vma_flow_key){.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = htons(port)};
	memcpy(fixture.peer_flow.key.local, fixture_remote, 4);
	assert_int_equal(vma_ring_attach_flow(fixture.peer, &fixture.peer_flow), 0);
}

/* cmocka puts handlers of its own around each test: a test of bad pointers takes the library's back. */
static inline void udp_fixture_restore_fault_handlers(void)
{
	vma_os.sigaction(SIGSEGV, &fixture.on_segv, NULL);
	vma_os.sigaction(SIGBUS, &fixture.on_bus, NULL);
}

static inline int udp_fixture_run_tests(const struct CMUnitTest *tests, size_t count)
{

	if (start_engine_with_few_buffers("8192", "512") == NULL)
		return 1;
	vma_signals_wrap_existing_handlers();
	vma_os.sigaction(SIGSEGV, NULL, &fixture.on_segv);
	vma_os.sigaction(SIGBUS, NULL, &fixture.on_bus);
	vma_test_set_filter_from_env();
	return _cmocka_run_group_tests("udp", tests, count, udp_fixture_setup_wire_and_two_rings, NULL);
}
#define FIXTURE_MAIN(tests)                                                                                            \
	int main(void)                                                                                                 \
	{                                                                                                              \
		return udp_fixture_run_tests(tests, sizeof(tests) / sizeof((tests)[0]));                               \
	}

#endif
