/*
 * tcp_fixture - a ring context of the engine with a stack, and a peer at the other end of a link in memory.
 *
 *   ring_ctx, stack of the engine ── end 0 ════ end 1 ── peer: a ring and a stack of the test, which a thread of its
 *                                                        own drives
 *
 * The test's own thread drives nothing unless it says so: what moves is moved by the internal thread.
 */
#ifndef SOCK_TCP_FIXTURE_H
#define SOCK_TCP_FIXTURE_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/nic_wire.h>
#include <vma/tcp.h>
#include <vma/test.h>

#include "../engine/engine.h"
#include "small_engine.h"

#define TIMEOUT_MS 10000
#define PORT 5000
#define MSEC 1000000ULL

static struct vma_nic *ends[2];
static struct vma_device device;
static struct vma_device_priv device_priv;
static const uint8_t address[2][16] = {{10, 0, 0, 1}, {10, 0, 0, 2}};

static struct {
	struct vma_ring *ring;
	struct vma_tcp *tcp;
	struct vma_tcp_listener *listener;
	struct vma_tcp_conn *_Atomic accepted;
	pthread_t thread;
	_Atomic bool stop, paused, is_paused;
} peer;

/* `what` is evaluated until it is true, and not once more. */
#define wait_until(what)                                                                                               \
	do {                                                                                                           \
		bool is_so = false;                                                                                    \
		for (int ms = 0; ms < TIMEOUT_MS && !(is_so = (what)); ms++)                                           \
			usleep(1000);                                                                                  \
		assert_true(is_so);                                                                                    \
	} while (0)

/* ---- the link ---- */

static void *peer_main(void *arg)
{
	(void)arg;
	while (!atomic_load(&peer.stop)) {
		const bool paused = atomic_load(&peer.paused);

		atomic_store(&peer.is_paused, paused);
		if (paused || vma_ring_progress(peer.ring) <= 0)
			usleep(50);
	}
	return NULL;
}

static inline void pause_peer(bool on)
{
	atomic_store(&peer.paused, on);
	wait_until(atomic_load(&peer.is_paused) == on);
}

static void ignore_tcp_event(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	(void)conn, (void)arg, (void)events;
}
static const struct vma_tcp_conn_ops silent = {.event = ignore_tcp_event};

static bool tcp_fixture_admit(struct vma_tcp_listener *listener, void *arg)
{
	(void)listener, (void)arg;
	return true;
}

static bool tcp_fixture_on_accept_store_conn(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	(void)listener;
	vma_tcp_conn_set_owner_and_replay_events(conn, &silent, NULL);
	atomic_store((struct vma_tcp_conn * _Atomic *)arg, conn);
	return true;
}
static const struct vma_tcp_listener_ops listens = {.admit = tcp_fixture_admit,
                                                    .accepted = tcp_fixture_on_accept_store_conn};

static inline struct vma_tcp_listener *tcp_fixture_listen_on(struct vma_tcp *tcp, int side, uint16_t port,
                                                             struct vma_tcp_conn *_Atomic *where)
{
	struct vma_tcp_options options;
	struct vma_tcp_listen_attr attr = {.owner = &listens,
	                                   .arg = where,
	                                   .options = &options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(port),
	                                   .backlog = 16};
	struct vma_tcp_listener *listener = NULL;

	vma_tcp_options_init(&options);
	memcpy(attr.local, address[side], 16);
	assert_int_equal(vma_tcp_listen(tcp, &attr, &listener), 0);
	return listener;
}

static inline int tcp_fixture_start(void **state)
{
	struct vma_ring_attr ring = {.name = "peer", .rx_wre = 256, .tx_wre = 256, .thread_mode = VMA_THREAD_SPIN};
	struct vma_wire_pair_attr connection_pair = {0};
	struct vma_tcp_attr tcp = {.name = "peer"};
	struct vma_engine *engine;

	(void)state;
	setenv("VMA_RING_ALLOCATION_LOGIC_RX", "10", 1); /* a ring per socket: ring contexts come and go */
	engine = start_engine_with_few_buffers("4096", "256");
	if (engine == NULL)
		return -1;
	connection_pair.arena[0] = connection_pair.arena[1] = engine->arena;
	if (vma_wire_create_pair(&connection_pair, ends) != 0)
		return -1;
	device = (struct vma_device){.nic = ends[0], .engine = engine, .priv = &device_priv};
	ring.nic = ends[1];
	ring.spill_pool = engine->spill;
	if (vma_ring_create(&ring, &peer.ring) != 0)
		return -1;
	tcp.ring = peer.ring;
	tcp.arena = engine->arena;
	if (vma_tcp_create(&tcp, &peer.tcp) != 0)
		return -1;
	peer.listener = tcp_fixture_listen_on(peer.tcp, 1, PORT, &peer.accepted);
	return pthread_create(&peer.thread, NULL, peer_main, NULL);
}

static inline int tcp_fixture_stop(void **state)
{
	(void)state;
	atomic_store(&peer.stop, true);
	pthread_join(peer.thread, NULL);
	return 0;
}

static inline bool ring_ctx_of_id_still_exists(const struct vma_ring_ctx *ring_ctx, uint32_t id)
{
	struct vma_thread *self = vma_enter();
	bool is_there = ring_ctx_of_id(id) == ring_ctx;

	vma_leave(self);
	return is_there;
}

static inline struct vma_ring_ctx *new_ring_ctx(struct vma_tcp **tcp)
{
	static uint64_t socket;
	struct vma_ring_requester where = {.socket_id = ++socket};
	struct vma_ring_ctx *ring_ctx = NULL;

	assert_int_equal(vma_ring_ctx_find_or_create(&device, VMA_RING_CTX_RX, &where, &ring_ctx), 0);
	assert_int_equal(vma_ring_ctx_get_or_create_tcp_stack(ring_ctx, tcp), 0);
	return ring_ctx;
}

/* From `from` to the other side's port. */
static inline struct vma_tcp_conn *tcp_fixture_connect_from(struct vma_tcp *tcp, int from, uint16_t port)
{
	static uint16_t local_port = 30000;
	struct vma_tcp_options options;
	struct vma_tcp_conn_attr attr = {.owner = &silent,
	                                 .options = &options,
	                                 .path = {.len = 34, .ip_off = 14, .mtu = 1500},
	                                 .family = AF_INET,
	                                 .local_port_be = htons(++local_port),
	                                 .peer_port_be = htons(port)};
	struct vma_tcp_conn *conn = NULL;

	vma_tcp_options_init(&options);
	memcpy(attr.local, address[from], 16);
	memcpy(attr.peer, address[1 - from], 16);
	memcpy(attr.path.bytes, ends[1 - from]->info.mac, 6);
	memcpy(attr.path.bytes + 6, ends[from]->info.mac, 6);
	attr.path.bytes[12] = 8;
	attr.path.bytes[14] = 0x45;
	memcpy(attr.path.bytes + 26, address[from], 4);
	memcpy(attr.path.bytes + 30, address[1 - from], 4);
	assert_int_equal(vma_tcp_connect(tcp, &attr, &conn), 0);
	return conn;
}

static inline void tcp_fixture_send_bytes(struct vma_tcp_conn *conn, size_t bytes)
{
	while (bytes > 0) {
		struct iovec span;
		size_t taken;
		int n = vma_tcp_tx_reserve(conn, bytes, &span, 1);

		assert_true(n >= 0);
		if (n == 0) {
			usleep(100);
			continue;
		}
		taken = span.iov_len < bytes ? span.iov_len : bytes;
		memset(span.iov_base, 'x', taken);
		vma_tcp_tx_commit(conn, taken, 0);
		vma_tcp_send_committed(conn);
		bytes -= taken;
	}
}

static inline void consume_all(struct vma_tcp_conn *conn)
{
	vma_tcp_rx_consume(conn, vma_tcp_readable_bytes(conn));
}

static inline void close_disown_and_put_conn(struct vma_tcp_conn *conn)
{
	vma_tcp_close(conn, true);
	vma_tcp_conn_drop_owner_and_abort(conn);
	vma_tcp_conn_put(conn);
}

/* A connection from a ring context of its own to the peer, both ends known. */
struct connection_pair {
	struct vma_ring_ctx *ring_ctx;
	struct vma_tcp *tcp;
	struct vma_tcp_conn *here, *there;
};

static inline struct connection_pair tcp_fixture_connect_pair(void)
{
	struct connection_pair connection_pair;

	pause_peer(false); /* a test that failed may have left it so */
	atomic_store(&peer.accepted, NULL);
	connection_pair.ring_ctx = new_ring_ctx(&connection_pair.tcp);
	connection_pair.here = tcp_fixture_connect_from(connection_pair.tcp, 0, PORT);
	wait_until(vma_tcp_state(connection_pair.here) == TCP_ESTABLISHED);
	wait_until(atomic_load(&peer.accepted) != NULL);
	connection_pair.there = atomic_load(&peer.accepted);
	return connection_pair;
}

static inline void tcp_fixture_close_pair(struct connection_pair *connection_pair)
{
	close_disown_and_put_conn(connection_pair->here);
	close_disown_and_put_conn(connection_pair->there);
	vma_ring_ctx_put(connection_pair->ring_ctx);
}

#endif
