/*
 * Threads on connections that keep frames, in real time: readers hold pieces, which other threads give back, also after
 * the connection was closed; two threads inspect what comes, whichever is told first. No byte is lost or seen twice, no
 * piece is forgotten, every frame comes back (under the sanitizers: nothing is used after it was freed).
 * STRESS_SECONDS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <vma/test.h>
#include <vma/nic_wire.h>
#include <vma/tcp.h>

#include "../tcp_priv.h"

enum { PAIRS = 2, PORT = 80, FIRST_PORT = 1000, TIMEOUT_S = 60, PARKED = 1024 };

struct zcopy_stress_end {
	struct vma_tcp_conn *conn;
	_Atomic uint32_t events;
	/* judged */
	uint64_t seen, dropped; /* the inspector's */
	_Atomic uint64_t received;
	_Atomic bool done;
	uint32_t seed;
};

/* A piece that somebody holds, and the connection's reference that goes with it. */
struct parked {
	struct vma_tcp_conn *conn;
	struct vma_buf *buf;
	uint64_t number, at;
	uint32_t len;
	const uint8_t *data;
};

static struct vma_bufarena *zcopy_stress_arena;
static struct vma_bufpool *zcopy_stress_spill;
static struct vma_nic *zcopy_stress_nics[2];
static struct vma_ring *zcopy_stress_rings[2];
static struct vma_tcp *zcopy_stress_stacks[2];
static const uint8_t zcopy_stress_addresses[2][16] = {{10, 0, 0, 1}, {10, 0, 0, 2}};
static struct vma_tcp_listener *zcopy_stress_listener;
static struct zcopy_stress_end *_Atomic zcopy_stress_accepted_ends[PAIRS * 2];
static _Atomic bool zcopy_stress_should_stop, zcopy_pairs_done; /* pairs may wait for what holders give back */
static _Atomic uint64_t zcopy_stress_connections_n, zcopy_stress_held_n;
static struct vma_tcp_memory zcopy_stress_memory;
static pthread_mutex_t parked_lock = PTHREAD_MUTEX_INITIALIZER;
static struct parked parked[PARKED];
static unsigned parked_count;

static uint64_t zcopy_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static uint32_t zcopy_random(uint32_t *seed)
{
	return (*seed = *seed * 1664525 + 1013904223) >> 8;
}

static void zcopy_on_event(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	struct zcopy_stress_end *end = arg;

	(void)conn;
	atomic_fetch_or(&end->events, events);
}
static const struct vma_tcp_conn_ops zcopy_stress_conn_ops = {.event = zcopy_on_event};

static bool zcopy_admit(struct vma_tcp_listener *l, void *arg)
{
	(void)l, (void)arg;
	return true;
}

static bool zcopy_on_accepted(struct vma_tcp_listener *l, void *arg, struct vma_tcp_conn *conn)
{
	struct vma_flow_key names;
	struct zcopy_stress_end *end = calloc(1, sizeof(*end));

	(void)l, (void)arg;
	vma_tcp_conn_key(conn, &names);
	end->conn = conn;
	end->seed = names.peer_port_be;
	vma_tcp_conn_set_owner_and_replay_events(conn, &zcopy_stress_conn_ops, end);
	atomic_store(&zcopy_stress_accepted_ends[(ntohs(names.peer_port_be) - FIRST_PORT) % (PAIRS * 2)], end);
	return true;
}
static const struct vma_tcp_listener_ops zcopy_listener_owner = {.admit = zcopy_admit, .accepted = zcopy_on_accepted};

static void zcopy_drive_or_time_out(uint64_t *since)
{
	for (int i = 0; i < 2; i++)
		vma_ring_progress(zcopy_stress_rings[i]);
	sched_yield();
	if (*since == 0)
		*since = zcopy_now_ns();
	else if (zcopy_now_ns() - *since > TIMEOUT_S * 1000000000ULL) {
		fprintf(stderr, "somebody waits for ever\n");
		abort();
	}
}

static uint8_t zcopy_pattern_byte_at(uint64_t position)
{
	return (uint8_t)(position * 7 + (position >> 8) * 31);
}

static void zcopy_check_pattern(const uint8_t *data, uint64_t at, size_t len)
{
	for (size_t k = 0; k < len; k++)
		if (data[k] != zcopy_pattern_byte_at(at + k))
			abort();
}

/* ---- pieces that are held ---- */

static void check_and_return_piece(const struct parked *p)
{
	zcopy_check_pattern(p->data, p->at, p->len);
	vma_buf_put(zcopy_stress_arena, p->buf);
	vma_tcp_held_bytes_returned(p->conn, &zcopy_stress_memory, p->number, p->len, 1);
	vma_tcp_conn_put(p->conn);
}

static void keep_piece_for_later_return(struct vma_tcp_conn *conn, const struct vma_tcp_rx_stream_piece *piece,
                                        uint64_t at)
{
	struct parked p = {conn, piece->buf, vma_tcp_zcopy_conn_id(conn), at, piece->len, piece->data};
	bool full;

	vma_tcp_conn_get(conn);
	pthread_mutex_lock(&parked_lock);
	full = parked_count == PARKED;
	if (!full)
		parked[parked_count++] = p;
	pthread_mutex_unlock(&parked_lock);
	if (full)
		check_and_return_piece(&p);
	atomic_fetch_add(&zcopy_stress_held_n, 1);
}

static bool return_random_parked_piece(uint32_t random)
{
	struct parked p;

	pthread_mutex_lock(&parked_lock);
	if (parked_count == 0) {
		pthread_mutex_unlock(&parked_lock);
		return false;
	}
	random %= parked_count;
	p = parked[random];
	parked[random] = parked[--parked_count];
	pthread_mutex_unlock(&parked_lock);
	check_and_return_piece(&p);
	return true;
}

static void *return_parked_pieces_thread(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg;

	while (!atomic_load(&zcopy_pairs_done)) {
		if (zcopy_random(&seed) % 4 == 0 || !return_random_parked_piece(zcopy_random(&seed)))
			sched_yield();
	}
	return NULL;
}

/* ---- what a connection is read by ---- */

static void zcopy_stress_write_all_bytes(struct zcopy_stress_end *end, uint64_t total)
{
	uint64_t done = 0, since = 0;

	while (done < total) {
		struct iovec spans[4];
		uint64_t request = 1 + (done * 2654435761U) % 9000, part = 0;
		int n = vma_tcp_tx_reserve(end->conn, request < total - done ? request : total - done, spans, 4);

		assert_true(n >= 0);
		if (n == 0) {
			zcopy_drive_or_time_out(&since);
			continue;
		}
		for (int i = 0; i < n; i++)
			for (size_t k = 0; k < spans[i].iov_len; k++)
				((uint8_t *)spans[i].iov_base)[k] = zcopy_pattern_byte_at(done + part++);
		vma_tcp_tx_commit(end->conn, part, 0);
		done += part;
		since = 0;
	}
}

struct zcopy_stress_writer_job {
	struct zcopy_stress_end *end;
	uint64_t bytes;
};

static void *zcopy_writer(void *arg)
{
	const struct zcopy_stress_writer_job *job = arg;

	zcopy_stress_write_all_bytes(job->end, job->bytes);
	return NULL;
}

/* Some bytes are read, some pieces are held. */
static void zcopy_read_or_hold_all_pieces(struct zcopy_stress_end *end, uint64_t total)
{
	uint64_t done = 0, since = 0;

	while (done < total) {
		struct vma_tcp_rx_stream_piece piece;
		uint32_t r = zcopy_random(&end->seed);

		if (!vma_tcp_peek_first_rx_piece(end->conn, &piece)) {
			assert_int_equal(vma_tcp_error(end->conn), 0);
			zcopy_drive_or_time_out(&since);
			continue;
		}
		zcopy_check_pattern(piece.data, done, piece.len);
		if (piece.buf != NULL && r % 4 != 0) {
			vma_buf_ref(piece.buf);
			keep_piece_for_later_return(end->conn, &piece, done);
			vma_tcp_rx_hold_piece(end->conn, &piece);
		} else {
			piece.len = 1 + r % piece.len;
			vma_tcp_rx_consume(end->conn, piece.len);
		}
		done += piece.len;
		since = 0;
	}
}

static enum vma_tcp_inspect_verdict zcopy_give_random_verdict(struct vma_tcp_conn *conn,
                                                              const struct vma_tcp_rx_stream_piece *piece, void *arg)
{
	struct zcopy_stress_end *end = arg;
	const uint32_t r = zcopy_random(&end->seed) % 3;

	zcopy_check_pattern(piece->data, end->seen, piece->len);
	if (r == VMA_TCP_HOLD && piece->buf != NULL) {
		vma_buf_ref(piece->buf);
		keep_piece_for_later_return(conn, piece, end->seen);
	} else if (r != VMA_TCP_DROP) {
		atomic_fetch_add(&end->received, piece->len);
	}
	end->seen += piece->len;
	return (enum vma_tcp_inspect_verdict)r;
}

/* Who takes the event inspects, and nobody else would. */
static bool zcopy_inspect_arrived_pieces(struct zcopy_stress_end *end)
{
	const struct vma_tcp_inspector inspector = {.decide = zcopy_give_random_verdict, .arg = end};

	if (!(atomic_fetch_and(&end->events, ~(uint32_t)VMA_TCP_ARRIVED) & VMA_TCP_ARRIVED))
		return false;
	while (vma_tcp_inspect_received(end->conn, &inspector, 3).more)
		;
	return true;
}

static void *thread_inspect_until_done(void *arg)
{
	struct zcopy_stress_end *end = arg;

	while (!atomic_load(&end->done)) {
		if (!zcopy_inspect_arrived_pieces(end))
			sched_yield();
	}
	return NULL;
}

/* The peer's end comes only after the last verdict. */
static void zcopy_read_inspected(struct zcopy_stress_end *end, uint64_t total)
{
	uint64_t read = 0, since = 0;
	pthread_t other;

	assert_int_equal(pthread_create(&other, NULL, thread_inspect_until_done, end), 0);
	while (!vma_tcp_rx_eof(end->conn)) {
		struct iovec span;

		zcopy_inspect_arrived_pieces(end);
		if (vma_tcp_peek_rx_spans(end->conn, 0, &span, 1) == 0) {
			assert_int_equal(vma_tcp_error(end->conn), 0);
			zcopy_drive_or_time_out(&since);
			continue;
		}
		vma_tcp_rx_consume(end->conn, span.iov_len);
		read += span.iov_len;
		since = 0;
	}
	atomic_store(&end->done, true);
	pthread_join(other, NULL);
	assert_int_equal(end->seen, total);
	assert_int_equal(read, atomic_load(&end->received));
}

/* ---- connections, one after the other ---- */

static struct zcopy_stress_end *zcopy_connect(uint16_t port)
{
	struct zcopy_stress_end *end = calloc(1, sizeof(*end));
	struct vma_tcp_options options;
	struct vma_tcp_conn_attr attr = {.owner = &zcopy_stress_conn_ops,
	                                 .arg = end,
	                                 .options = &options,
	                                 .path = {.len = 34, .ip_off = 14, .mtu = 1500},
	                                 .family = AF_INET,
	                                 .local_port_be = htons(port),
	                                 .peer_port_be = htons(PORT)};
	uint64_t since = 0;

	memcpy(attr.path.bytes, zcopy_stress_nics[1]->info.mac, 6);
	memcpy(attr.path.bytes + 6, zcopy_stress_nics[0]->info.mac, 6);
	attr.path.bytes[12] = 8;
	attr.path.bytes[14] = 0x45;
	memcpy(attr.path.bytes + 26, zcopy_stress_addresses[0], 4);
	memcpy(attr.path.bytes + 30, zcopy_stress_addresses[1], 4);
	vma_tcp_options_init(&options);
	memcpy(attr.local, zcopy_stress_addresses[0], 16);
	memcpy(attr.peer, zcopy_stress_addresses[1], 16);
	while (vma_tcp_connect(zcopy_stress_stacks[0], &attr, &end->conn) == -EADDRINUSE)
		zcopy_drive_or_time_out(&since);
	since = 0;
	while (vma_tcp_state(end->conn) == TCP_SYN_SENT)
		zcopy_drive_or_time_out(&since);
	assert_int_equal(vma_tcp_state(end->conn), TCP_ESTABLISHED);
	return end;
}

static void zcopy_close_and_disown(struct zcopy_stress_end *end, bool abort)
{
	vma_tcp_close(end->conn, abort);
	vma_tcp_conn_drop_owner_and_abort(end->conn);
	vma_tcp_conn_put(end->conn);
	free(end);
}

static void zcopy_transfer_from_client_to_server(struct zcopy_stress_end *client, struct zcopy_stress_end *server,
                                                 uint64_t round)
{
	struct zcopy_stress_writer_job job = {client, 1 + (round * 7919) % 90000};
	const bool inspected = round % 2 != 0;
	uint64_t since = 0;
	pthread_t writer;

	assert_int_equal(inspected ? vma_tcp_enable_rx_inspection(server->conn, true)
	                           : vma_tcp_enable_rx_zcopy(server->conn),
	                 0);
	while (!(atomic_load(&server->conn->rx_mode) & RX_ZCOPY)) /* or the first bytes would not be */
		zcopy_drive_or_time_out(&since);
	assert_int_equal(pthread_create(&writer, NULL, zcopy_writer, &job), 0);
	if (!inspected)
		zcopy_read_or_hold_all_pieces(server, job.bytes);
	if (inspected) {
		pthread_join(writer, NULL);
		vma_tcp_shutdown(client->conn, SHUT_WR);
		zcopy_read_inspected(server, job.bytes);
	} else {
		pthread_join(writer, NULL);
	}
}

static void *thread_connect_transfer_close_repeatedly(void *arg)
{
	unsigned number = (unsigned)(uintptr_t)arg;

	for (uint64_t round = number; !atomic_load(&zcopy_stress_should_stop); round++) {
		unsigned slot = number + PAIRS * (round & 1);
		uint16_t port = (uint16_t)(FIRST_PORT + slot + PAIRS * 2 * (round % 1000));
		struct zcopy_stress_end *client, *server;
		uint64_t since = 0;

		atomic_store(&zcopy_stress_accepted_ends[slot], NULL);
		client = zcopy_connect(port);
		while ((server = atomic_load(&zcopy_stress_accepted_ends[slot])) == NULL)
			zcopy_drive_or_time_out(&since);
		zcopy_transfer_from_client_to_server(client, server, round);
		zcopy_close_and_disown(client, round % 4 == 1);
		zcopy_close_and_disown(server, round % 4 == 2);
		atomic_fetch_add(&zcopy_stress_connections_n, 1);
	}
	return NULL;
}

static void zcopy_open_fixture(void)
{
	struct vma_bufarena_attr arena_attr = {.capacity = 1 << 16, .frame_size = 2048};
	struct vma_bufpool_attr spill_attr = {.name = "spill", .max_bufs = 1 << 14};
	struct vma_wire_pair_attr wire = {0};
	struct vma_tcp_listen_attr attr = {
	        .owner = &zcopy_listener_owner, .family = AF_INET, .local_port_be = htons(PORT), .backlog = 64};
	struct vma_tcp_options options;

	assert_int_equal(vma_bufarena_create(&arena_attr, &zcopy_stress_arena), 0);
	spill_attr.arena = zcopy_stress_arena;
	assert_int_equal(vma_bufpool_create(&spill_attr, &zcopy_stress_spill), 0);
	wire.arena[0] = wire.arena[1] = zcopy_stress_arena;
	assert_int_equal(vma_wire_create_pair(&wire, zcopy_stress_nics), 0);
	zcopy_stress_memory = (struct vma_tcp_memory){.pressure = INT64_MAX, .limit = INT64_MAX};
	for (int i = 0; i < 2; i++) {
		struct vma_ring_attr r = {.nic = zcopy_stress_nics[i],
		                          .spill_pool = zcopy_stress_spill,
		                          .thread_mode = VMA_THREAD_YIELD,
		                          .rx_sw_csum = true,
		                          .name = "stress"};
		struct vma_tcp_attr t = {
		        .arena = zcopy_stress_arena, .gro_streams_max = 8, .memory = &zcopy_stress_memory};

		assert_int_equal(vma_ring_create(&r, &zcopy_stress_rings[i]), 0);
		t.ring = zcopy_stress_rings[i];
		t.secret[0] = (uint8_t)i;
		assert_int_equal(vma_tcp_create(&t, &zcopy_stress_stacks[i]), 0);
	}
	vma_tcp_options_init(&options);
	attr.options = &options;
	memcpy(attr.local, zcopy_stress_addresses[1], 16);
	assert_int_equal(vma_tcp_listen(zcopy_stress_stacks[1], &attr, &zcopy_stress_listener), 0);
}

static void zcopy_close_fixture(void)
{
	vma_tcp_listener_close(zcopy_stress_listener);
	for (int i = 0; i < 2; i++)
		vma_tcp_destroy(zcopy_stress_stacks[i]);
	assert_int_equal(atomic_load(&zcopy_stress_memory.frames), 0);
	assert_int_equal(atomic_load(&zcopy_stress_memory.used), 0);
	for (int i = 0; i < 2; i++)
		vma_ring_destroy(zcopy_stress_rings[i]);
	for (int i = 0; i < 2; i++)
		vma_nic_close(zcopy_stress_nics[i]);
	vma_bufpool_retire(zcopy_stress_spill, NULL, NULL);
	vma_bufpool_flush_thread(zcopy_stress_arena);
	for (int i = 0; i < VMA_BUFPOOL_MAX; i++)
		assert_null(atomic_load(&zcopy_stress_arena->pools[i])); /* every frame has come home */
	vma_bufarena_destroy(zcopy_stress_arena);
}

static void test_held_and_inspected_pieces_are_neither_lost_nor_kept(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	uint64_t end = zcopy_now_ns() + (uint64_t)((seconds != NULL ? atof(seconds) : 1.5) * 1e9);
	pthread_t pairs[PAIRS], holders[2];

	(void)state;
	zcopy_open_fixture();
	for (uintptr_t i = 0; i < PAIRS; i++)
		assert_int_equal(pthread_create(&pairs[i], NULL, thread_connect_transfer_close_repeatedly, (void *)i),
		                 0);
	for (uintptr_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&holders[i], NULL, return_parked_pieces_thread, (void *)(i + 1)), 0);
	while (zcopy_now_ns() < end)
		poll(NULL, 0, 20);
	atomic_store(&zcopy_stress_should_stop, true);
	for (int i = 0; i < PAIRS; i++)
		pthread_join(pairs[i], NULL);
	atomic_store(&zcopy_pairs_done, true);
	for (int i = 0; i < 2; i++)
		pthread_join(holders[i], NULL);
	while (return_random_parked_piece(0))
		;
	print_message("%lu connections, %lu pieces held\n", (unsigned long)atomic_load(&zcopy_stress_connections_n),
	              (unsigned long)atomic_load(&zcopy_stress_held_n));
	assert_true(atomic_load(&zcopy_stress_connections_n) > 1 && atomic_load(&zcopy_stress_held_n) > 0);
	zcopy_close_fixture();
}

/* ---- a close just as the verdict comes ---- */

static struct {
	enum vma_tcp_inspect_verdict verdict;
	_Atomic bool begun;
	uint32_t seed;
} last_verdict_seen;

static void zcopy_spin(uint32_t loops)
{
	for (volatile uint32_t i = 0; i < loops; i++)
		;
}

static enum vma_tcp_inspect_verdict decide_slowly(struct vma_tcp_conn *conn,
                                                  const struct vma_tcp_rx_stream_piece *piece, void *arg)
{
	(void)arg;
	if (last_verdict_seen.verdict == VMA_TCP_HOLD) {
		vma_buf_ref(piece->buf);
		keep_piece_for_later_return(conn, piece, 0);
	}
	atomic_store(&last_verdict_seen.begun, true);
	zcopy_spin(zcopy_random(&last_verdict_seen.seed) % 2000);
	return last_verdict_seen.verdict;
}

static void *close_during_verdict(void *arg)
{
	struct vma_tcp_conn *conn = arg;
	uint32_t seed = (uint32_t)(uintptr_t)conn + (uint32_t)zcopy_now_ns();

	while (!atomic_load(&last_verdict_seen.begun))
		;
	zcopy_spin(zcopy_random(&seed) % 2000);
	vma_tcp_close(conn, false);
	vma_tcp_conn_drop_owner_and_abort(conn);
	return NULL;
}

/* One piece: what came after it would not have been seen. */
static void zcopy_write_one_piece(struct zcopy_stress_end *client)
{
	struct iovec span;

	assert_int_equal(vma_tcp_tx_reserve(client->conn, 100, &span, 1), 1);
	assert_int_equal(span.iov_len, 100);
	for (size_t k = 0; k < 100; k++)
		((uint8_t *)span.iov_base)[k] = zcopy_pattern_byte_at(k);
	vma_tcp_tx_commit(client->conn, 100, 0);
}

static struct zcopy_stress_end *zcopy_accept_inspected(uint64_t *since)
{
	struct zcopy_stress_end *server;

	while ((server = atomic_load(&zcopy_stress_accepted_ends[0])) == NULL)
		zcopy_drive_or_time_out(since);
	assert_int_equal(vma_tcp_enable_rx_inspection(server->conn, true), 0);
	while (!(atomic_load(&server->conn->rx_mode) & RX_ZCOPY))
		zcopy_drive_or_time_out(since);
	return server;
}

static void zcopy_close_during_verdict_round(uint32_t round)
{
	const struct vma_tcp_inspector inspector = {.decide = decide_slowly};
	const bool resets = round % 3 == VMA_TCP_RECV;
	struct zcopy_stress_end *client, *server;
	uint64_t since = 0;
	pthread_t closer;

	last_verdict_seen.verdict = (enum vma_tcp_inspect_verdict)(round % 3);
	atomic_store(&last_verdict_seen.begun, false);
	atomic_store(&zcopy_stress_accepted_ends[0], NULL);
	client = zcopy_connect((uint16_t)(FIRST_PORT + PAIRS * 2 * (round % 5000)));
	server = zcopy_accept_inspected(&since);
	zcopy_write_one_piece(client);
	while (!(atomic_load(&server->events) & VMA_TCP_ARRIVED))
		zcopy_drive_or_time_out(&since);
	assert_int_equal(pthread_create(&closer, NULL, close_during_verdict, server->conn), 0);
	vma_tcp_inspect_received(server->conn, &inspector, 10);
	pthread_join(closer, NULL);
	while (!(atomic_load(&client->events) & (VMA_TCP_PEER_CLOSED | VMA_TCP_FAILED)))
		zcopy_drive_or_time_out(&since);
	for (int i = 0; i < 20; i++)
		zcopy_drive_or_time_out(&since); /* nothing follows */
	assert_int_equal(atomic_load(&client->events) & (VMA_TCP_PEER_CLOSED | VMA_TCP_FAILED),
	                 resets ? VMA_TCP_FAILED : VMA_TCP_PEER_CLOSED);
	vma_tcp_conn_put(server->conn);
	free(server);
	zcopy_close_and_disown(client, true);
	while (return_random_parked_piece(0))
		;
}

static void test_close_as_the_verdict_comes_sends_what_the_verdict_says(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	uint64_t end = zcopy_now_ns() + (uint64_t)((seconds != NULL ? atof(seconds) : 1.5) * 1e9);
	uint32_t round = 0;

	(void)state;
	zcopy_open_fixture();
	do
		zcopy_close_during_verdict_round(round++);
	while (zcopy_now_ns() < end || round < 30);
	print_message("%u closes\n", round);
	zcopy_close_fixture();
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held_and_inspected_pieces_are_neither_lost_nor_kept),
        cmocka_unit_test(test_close_as_the_verdict_comes_sends_what_the_verdict_says)};

VMA_TEST_MAIN(tests)
