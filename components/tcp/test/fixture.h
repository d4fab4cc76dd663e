/*
 * fixture - two stacks in one process, on a wire in memory, with a clock that the test moves.
 *
 *   side 0: 10.0.0.1 ── ring ══ wire ══ ring ── 10.0.0.2: side 1
 *
 * One thread. fixture_run_for_ns(ns) lets time pass: frames travel and timers fire, each at its time. What sockets do
 * is done by the tests themselves, through the calls of <vma/tcp.h>; an app is a connection's owner that notes what it
 * is told.
 */
#ifndef VMA_TCP_TEST_FIXTURE_H
#define VMA_TCP_TEST_FIXTURE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <vma/test.h>
#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/tcp.h>

#include "../tcp_priv.h"
#include "../lwip/port.h"

#define MS 1000000ULL
#define SEC 1000000000ULL
enum { PORT = 80, APPS = 64 };

struct app {
	struct vma_tcp_conn *conn;
	uint32_t events; /* told since it was looked at */
	unsigned told;
};

struct side {
	struct vma_nic *nic;
	struct vma_ring *ring;
	struct vma_tcp *tcp;
	uint8_t ip[16];
	struct vma_tcp_options options;
	unsigned alive; /* allocations */
	unsigned refuse_memory;
};

static struct vma_bufarena *fixture_arena;
static struct vma_bufpool *fixture_spill;
static struct side side[2];
static uint64_t fixture_now_ns;
static unsigned fixture_allocated;
static bool fixture_alloc_fails, fixture_alloc_bytes_fails;
static struct vma_tcp_listener *fixture_listener;
static struct app *fixture_accepted[APPS];
static unsigned fixture_accepted_count;
static bool fixture_listener_admits, fixture_listener_accepts;
static bool fixture_wire_offloads,
        fixture_stack_uses_no_tso; /* of what is opened next: the wire sums and cuts; stacks do not ask it to */

static uint64_t fixture_clock(void *arg)
{
	(void)arg;
	return fixture_now_ns;
}

static void *fixture_alloc(size_t size)
{
	void *memory = fixture_alloc_fails ? NULL : calloc(1, size);

	fixture_allocated += memory != NULL;
	return memory;
}

/* Promises nothing about what is in it. */
static void *fixture_alloc_bytes(size_t size)
{
	void *memory = fixture_alloc_bytes_fails ? NULL : fixture_alloc(size);

	return memory != NULL ? memset(memory, 0xa5, size) : NULL;
}

static void fixture_free(void *memory)
{
	fixture_allocated -= memory != NULL;
	free(memory);
}

/* ---- apps ---- */

static void fixture_app_on_event(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	struct app *app = arg;

	assert_ptr_equal(app->conn != NULL ? app->conn : conn, conn);
	app->events |= events;
	app->told++;
}
static const struct vma_tcp_conn_ops fixture_app_conn_ops = {.event = fixture_app_on_event};

static bool fixture_admit(struct vma_tcp_listener *listener, void *arg)
{
	(void)listener, (void)arg;
	return fixture_listener_admits;
}

static bool fixture_accept(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	struct app *app;

	(void)listener, (void)arg;
	if (!fixture_listener_accepts)
		return false;
	assert_true(fixture_accepted_count < APPS);
	app = calloc(1, sizeof(*app));
	app->conn = conn;
	fixture_accepted[fixture_accepted_count++] = app;
	vma_tcp_conn_set_owner_and_replay_events(conn, &fixture_app_conn_ops, app);
	return true;
}
static const struct vma_tcp_listener_ops fixture_listener_owner = {.admit = fixture_admit, .accepted = fixture_accept};

/* ---- time ---- */

static uint64_t fixture_next_event_ns(void)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < 2; i++) {
		uint64_t due = vma_tcp_next_due_ns(side[i].tcp), frame = vma_wire_next_arrival_ns(side[i].nic);

		next = due < next ? due : next;
		next = frame < next ? frame : next;
	}
	return next;
}

/* All that can be done at this moment. */
static inline void fixture_run_until_idle(void)
{
	unsigned quiet = 0;

	while (quiet < 3) {
		int moved = 0;

		vma_wire_drive_both_ends(side[0].nic);
		for (int i = 0; i < 2; i++)
			moved += vma_ring_progress(side[i].ring) > 0;
		quiet = moved ? 0 : quiet + 1;
	}
}

static inline void fixture_run_for_ns(uint64_t ns)
{
	uint64_t end = fixture_now_ns + ns;

	for (;;) {
		uint64_t next;

		fixture_run_until_idle();
		next = fixture_next_event_ns();
		if (next > end)
			break;
		fixture_now_ns = next > fixture_now_ns ? next : fixture_now_ns + 1000;
	}
	fixture_now_ns = end;
	fixture_run_until_idle();
}

/* ---- the fixture ---- */

static void side_open(struct side *s, int i, const struct vma_tcp_attr *requests)
{
	struct vma_ring_attr attr = {.nic = s->nic,
	                             .spill_pool = fixture_spill,
	                             .thread_mode = VMA_THREAD_SPIN,
	                             .rx_sw_csum = true,
	                             .name = "pair"};
	struct vma_tcp_attr tcp = *requests;

	assert_int_equal(vma_ring_create(&attr, &s->ring), 0);
	tcp.ring = s->ring;
	tcp.no_tso = fixture_stack_uses_no_tso;
	tcp.arena = fixture_arena;
	tcp.host = (struct vma_tcp_host_ops){.now_ns = fixture_clock,
	                                     .alloc = fixture_alloc,
	                                     .alloc_bytes = fixture_alloc_bytes,
	                                     .free = fixture_free};
	tcp.secret[0] = (uint8_t)(i + 1);
	assert_int_equal(vma_tcp_create(&tcp, &s->tcp), 0);
	memset(s->ip, 0, sizeof(s->ip));
	memcpy(s->ip, (uint8_t[]){10, 0, 0, (uint8_t)(i + 1)}, 4);
	vma_tcp_options_init(&s->options);
}

static inline void fixture_open_with(const struct vma_tcp_attr *requests, uint32_t mtu)
{
	const bool jumbo = mtu > 1500;
	struct vma_bufarena_attr arena = {.capacity = jumbo ? 1 << 13 : 1 << 16, .frame_size = jumbo ? 16384 : 2048};
	struct vma_bufpool_attr spill = {.name = "spill", .max_bufs = 1 << 14};
	struct vma_wire_pair_attr wire = {.virtual_now_ns = &fixture_now_ns,
	                                  .mtu = mtu,
	                                  .checksum_offload = fixture_wire_offloads,
	                                  .segmentation_offload = fixture_wire_offloads};
	struct vma_nic *nics[2];

	fixture_now_ns = 1000 * SEC;
	fixture_accepted_count = 0;
	fixture_listener_admits = fixture_listener_accepts = true;
	assert_int_equal(vma_bufarena_create(&arena, &fixture_arena), 0);
	spill.arena = fixture_arena;
	assert_int_equal(vma_bufpool_create(&spill, &fixture_spill), 0);
	wire.arena[0] = wire.arena[1] = fixture_arena;
	assert_int_equal(vma_wire_create_pair(&wire, nics), 0);
	for (int i = 0; i < 2; i++) {
		side[i].nic = nics[i];
		side_open(&side[i], i, requests);
	}
}

static inline int fixture_open(void **state)
{
	struct vma_tcp_attr requests = {.gro_streams_max = 16};

	(void)state;
	fixture_open_with(&requests, 0);
	return 0;
}

static inline void app_free(struct app *app)
{
	if (app->conn != NULL) {
		vma_tcp_conn_drop_owner_and_abort(app->conn);
		vma_tcp_conn_put(app->conn);
	}
	free(app);
}

/* Everything has an end: no allocation is left, and every frame has come home (a pool is there until the last has). */
static inline int fixture_close(void **state)
{
	(void)state;
	fixture_alloc_fails = fixture_alloc_bytes_fails = false;
	for (unsigned i = 0; i < fixture_accepted_count; i++)
		app_free(fixture_accepted[i]);
	if (fixture_listener != NULL)
		vma_tcp_listener_close(fixture_listener);
	fixture_listener = NULL;
	fixture_run_for_ns(0);
	for (int i = 0; i < 2; i++)
		vma_tcp_destroy(side[i].tcp);
	assert_int_equal(fixture_allocated, 0);
	for (int i = 0; i < 2; i++)
		vma_ring_destroy(side[i].ring);
	for (int i = 0; i < 2; i++)
		vma_nic_close(side[i].nic);
	vma_bufpool_retire(fixture_spill, NULL, NULL);
	vma_bufpool_flush_thread(fixture_arena);
	for (int i = 0; i < VMA_BUFPOOL_MAX; i++)
		assert_null(atomic_load(&fixture_arena->pools[i]));
	vma_bufarena_destroy(fixture_arena);
	return 0;
}

/* ---- connections ---- */

static inline void fixture_listen_with(int i, const struct vma_tcp_options *options, uint32_t backlog)
{
	struct vma_tcp_listen_attr attr = {.owner = &fixture_listener_owner,
	                                   .options = options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(PORT),
	                                   .backlog = backlog};

	memcpy(attr.local, side[i].ip, 16);
	assert_int_equal(vma_tcp_listen(side[i].tcp, &attr, &fixture_listener), 0);
}
static inline void fixture_listen_on(int i)
{
	fixture_listen_with(i, &side[i].options, 16);
}

static inline struct vma_tcp_path fixture_path_to_peer_of(int i, uint32_t mtu)
{
	struct vma_tcp_path path = {.len = 34, .ip_off = 14, .mtu = mtu};

	memcpy(path.bytes, side[!i].nic->info.mac, 6);
	memcpy(path.bytes + 6, side[i].nic->info.mac, 6);
	path.bytes[12] = 8;
	path.bytes[14] = 0x45;
	memcpy(path.bytes + 26, side[i].ip, 4);
	memcpy(path.bytes + 30, side[!i].ip, 4);
	return path;
}

static inline int fixture_connect_rc(int i, uint16_t local_port, uint16_t peer_port, const struct vma_tcp_path *path,
                                     struct app *app)
{
	struct vma_tcp_conn_attr attr = {.owner = &fixture_app_conn_ops,
	                                 .arg = app,
	                                 .options = &side[i].options,
	                                 .path = *path,
	                                 .family = AF_INET,
	                                 .local_port_be = htons(local_port),
	                                 .peer_port_be = htons(peer_port)};

	memcpy(attr.local, side[i].ip, 16);
	memcpy(attr.peer, side[!i].ip, 16);
	return vma_tcp_connect(side[i].tcp, &attr, &app->conn);
}

static inline struct app *fixture_connect_from(int i, uint16_t local_port)
{
	struct vma_tcp_path path = fixture_path_to_peer_of(i, side[i].nic->info.mtu);
	struct app *app = calloc(1, sizeof(*app));

	assert_int_equal(fixture_connect_rc(i, local_port, PORT, &path, app), 0);
	return app;
}

/* The last that was accepted. */
static inline struct app *fixture_last_accepted(void)
{
	assert_true(fixture_accepted_count > 0);
	return fixture_accepted[fixture_accepted_count - 1];
}

/* From side 0 to a listener of side 1. */
static inline void fixture_establish_connection_pair(struct app **client, struct app **server)
{
	if (fixture_listener == NULL)
		fixture_listen_on(1);
	*client = fixture_connect_from(0, (uint16_t)(1000 + fixture_accepted_count));
	fixture_run_for_ns(1 * MS);
	*server = fixture_last_accepted();
	assert_int_equal(vma_tcp_state((*client)->conn), TCP_ESTABLISHED);
	assert_int_equal(vma_tcp_state((*server)->conn), TCP_ESTABLISHED);
}

static inline uint32_t fixture_take_app_events(struct app *app)
{
	uint32_t events = app->events;

	app->events = 0;
	return events;
}

/* ---- bytes: position-dependent, so that nothing can be in the wrong place unseen ---- */

static inline uint8_t fixture_pattern_byte_at(uint64_t position)
{
	return (uint8_t)(position * 7 + (position >> 8) * 31 + (position >> 16));
}

/* As much as there is room for, at most n; returns how much. */
static inline size_t send_flags(struct app *app, size_t n, unsigned flags)
{
	uint64_t at = fifo_produced(&app->conn->tx);
	struct iovec spans[8];
	size_t done = 0;
	int count = vma_tcp_tx_reserve(app->conn, n, spans, 8);

	if (count < 0)
		return 0;
	for (int i = 0; i < count; i++)
		for (size_t k = 0; k < spans[i].iov_len; k++)
			((uint8_t *)spans[i].iov_base)[k] = fixture_pattern_byte_at(at + done++);
	if (done != 0)
		vma_tcp_tx_commit(app->conn, done, flags);
	return done;
}
static inline size_t fixture_send_bytes(struct app *app, size_t n)
{
	return send_flags(app, n, 0);
}

/* Reads and checks at most n bytes. */
static inline size_t read_bytes(struct app *app, size_t n)
{
	size_t done = 0;

	while (done < n) {
		uint64_t at = fifo_consumed(&app->conn->rx);
		struct iovec span;
		size_t take;

		if (vma_tcp_peek_rx_spans(app->conn, 0, &span, 1) == 0)
			break;
		take = span.iov_len < n - done ? span.iov_len : n - done;
		for (size_t k = 0; k < take; k++)
			assert_int_equal(((uint8_t *)span.iov_base)[k], fixture_pattern_byte_at(at + k));
		vma_tcp_rx_consume(app->conn, take);
		done += take;
	}
	return done;
}

/* n bytes from one to the other, who reads all the time; at most `timeout_ns`. */
static inline void fixture_transfer_and_check_bytes(struct app *from, struct app *to, size_t n, uint64_t timeout_ns)
{
	uint64_t end = fixture_now_ns + timeout_ns;
	size_t sent = 0, got = 0;

	while (got < n) {
		if (sent < n)
			sent += fixture_send_bytes(from, n - sent);
		fixture_run_until_idle();
		got += read_bytes(to, n);
		if (got < n) {
			uint64_t next;

			fixture_run_until_idle();
			next = fixture_next_event_ns();
			if (sent < n && vma_tcp_tx_space(from->conn) != 0)
				continue;
			if (vma_tcp_readable_bytes(to->conn) != 0)
				continue;
			assert_true(next != UINT64_MAX);
			assert_true(fixture_now_ns < end);
			fixture_now_ns = next > fixture_now_ns ? next : fixture_now_ns + 1000;
		}
	}
	assert_int_equal(got, n);
}

static inline void fixture_set_wire_faults(int i, struct vma_wire_faults faults)
{
	assert_int_equal(vma_wire_set_faults(side[i].nic, &faults), 0);
}

static inline uint64_t fixture_wire_frames_sent(int i)
{
	struct vma_wire_counts counts;

	vma_wire_read_counters(side[i].nic, &counts);
	return counts.sent;
}

static inline struct vma_tcp_counts fixture_stack_counts(int i)
{
	struct vma_tcp_counts counts;

	vma_tcp_read_counters(side[i].tcp, &counts);
	return counts;
}

static inline uint32_t fixture_poll_events_of_app(const struct app *app)
{
	return vma_tcp_poll_events(app->conn);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, fixture_open, fixture_close)

#endif
