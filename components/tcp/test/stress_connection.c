/*
 * Threads on connections, in real time: writers, readers and closers of many connections at once, on both ends of a
 * wire, all of whom drive. Nothing is lost, nothing waits for ever, nothing is used after it was freed (under the
 * sanitizers). STRESS_SECONDS.
 */
#include <errno.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <vma/test.h>
#include <vma/nic_wire.h>
#include <vma/tcp.h>

enum { WORKERS = 4, PORT = 80, FIRST_PORT = 1000, TIMEOUT_S = 60 };

struct end {
	struct vma_tcp_conn *conn;
	_Atomic uint32_t events;
};

static struct vma_bufarena *arena;
static struct vma_bufpool *spill;
static struct vma_nic *nic[2];
static struct vma_ring *ring[2];
static struct vma_tcp *tcp[2];
static const uint8_t ip[2][16] = {{10, 0, 0, 1}, {10, 0, 0, 2}};
static struct vma_tcp_listener *listener;
static struct end *_Atomic waiting[WORKERS * 2]; /* accepted, by the worker whose port it is */
static _Atomic bool stop;
static _Atomic uint64_t bytes_moved, connections;
static _Atomic long allocated;
static struct vma_tcp_memory memory; /* limit 0: as much as there is */

static void *connection_counted_alloc(size_t size)
{
	atomic_fetch_add(&allocated, 1);
	return calloc(1, size);
}
static void connection_counted_free(void *memory)
{
	atomic_fetch_sub(&allocated, memory != NULL);
	free(memory);
}

static uint64_t connection_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void connection_on_event(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	struct end *end = arg;

	(void)conn;
	atomic_fetch_or(&end->events, events);
}
static const struct vma_tcp_conn_ops owner = {.event = connection_on_event};

static bool connection_admit(struct vma_tcp_listener *l, void *arg)
{
	(void)l, (void)arg;
	return true;
}

static bool store_accepted_end_for_worker(struct vma_tcp_listener *l, void *arg, struct vma_tcp_conn *conn)
{
	struct vma_flow_key names;
	struct end *end = calloc(1, sizeof(*end));

	(void)l, (void)arg;
	vma_tcp_conn_key(conn, &names);
	end->conn = conn;
	vma_tcp_conn_set_owner_and_replay_events(conn, &owner, end);
	atomic_store(&waiting[(ntohs(names.peer_port_be) - FIRST_PORT) % (WORKERS * 2)], end);
	return true;
}
static const struct vma_tcp_listener_ops listener_owner = {.admit = connection_admit,
                                                           .accepted = store_accepted_end_for_worker};

static void connection_poll_both_rings(void)
{
	for (int i = 0; i < 2; i++)
		vma_ring_progress(ring[i]);
}

/* The timeout is long: two cores may have much else to do. */
static void connection_drive_or_time_out(uint64_t *since)
{
	connection_poll_both_rings();
	sched_yield();
	if (*since == 0)
		*since = connection_now_ns();
	else if (connection_now_ns() - *since > TIMEOUT_S * 1000000000ULL) {
		fprintf(stderr, "somebody waits for ever\n");
		abort();
	}
}

static uint8_t connection_pattern_byte_at(uint64_t position)
{
	return (uint8_t)(position * 7 + (position >> 8) * 31);
}

static void connection_write_all(struct end *end, uint64_t total)
{
	uint64_t done = 0, since = 0;

	while (done < total) {
		struct iovec spans[4];
		uint64_t request = 1 + (done * 2654435761U) % 9000, part = 0;
		int n = vma_tcp_tx_reserve(end->conn, request < total - done ? request : total - done, spans, 4);

		assert_true(n >= 0);
		if (n == 0) {
			/* Only what was told says that there is room again. */
			while (!(atomic_exchange(&end->events, 0) & VMA_TCP_WRITABLE) &&
			       (memory.limit != 0 || vma_tcp_tx_space(end->conn) == 0))
				connection_drive_or_time_out(&since);
			continue;
		}
		for (int i = 0; i < n; i++)
			for (size_t k = 0; k < spans[i].iov_len; k++)
				((uint8_t *)spans[i].iov_base)[k] = connection_pattern_byte_at(done + part++);
		vma_tcp_tx_commit(end->conn, part, 0);
		done += part;
		since = 0;
	}
}

static void connection_read_all(struct end *end, uint64_t total)
{
	uint64_t done = 0, since = 0;

	while (done < total) {
		struct iovec span;

		if (vma_tcp_peek_rx_spans(end->conn, 0, &span, 1) == 0) {
			assert_int_equal(vma_tcp_error(end->conn), 0);
			connection_drive_or_time_out(&since);
			continue;
		}
		for (size_t k = 0; k < span.iov_len; k++)
			if (((uint8_t *)span.iov_base)[k] != connection_pattern_byte_at(done + k))
				abort();
		vma_tcp_rx_consume(end->conn, span.iov_len);
		done += span.iov_len;
		since = 0;
	}
	atomic_fetch_add(&bytes_moved, total);
}

static struct vma_tcp_path path_between(int from)
{
	struct vma_tcp_path path = {.len = 34, .ip_off = 14, .mtu = 1500};

	memcpy(path.bytes, nic[!from]->info.mac, 6);
	memcpy(path.bytes + 6, nic[from]->info.mac, 6);
	path.bytes[12] = 8;
	path.bytes[14] = 0x45;
	memcpy(path.bytes + 26, ip[from], 4);
	memcpy(path.bytes + 30, ip[!from], 4);
	return path;
}

static struct end *stress_connect_and_wait_established(uint16_t port)
{
	struct end *end = calloc(1, sizeof(*end));
	struct vma_tcp_options options;
	struct vma_tcp_conn_attr attr = {.owner = &owner,
	                                 .arg = end,
	                                 .options = &options,
	                                 .path = path_between(0),
	                                 .family = AF_INET,
	                                 .local_port_be = htons(port),
	                                 .peer_port_be = htons(PORT)};
	uint64_t since = 0;

	vma_tcp_options_init(&options);
	memcpy(attr.local, ip[0], 16);
	memcpy(attr.peer, ip[1], 16);
	while (vma_tcp_connect(tcp[0], &attr, &end->conn) == -EADDRINUSE)
		connection_drive_or_time_out(&since); /* its last life ends within a second */
	since = 0;
	while (vma_tcp_state(end->conn) == TCP_SYN_SENT)
		connection_drive_or_time_out(&since);
	assert_int_equal(vma_tcp_state(end->conn), TCP_ESTABLISHED);
	return end;
}

static void connection_close_and_disown(struct end *end, bool abort)
{
	vma_tcp_close(end->conn, abort);
	vma_tcp_conn_drop_owner_and_abort(end->conn);
	vma_tcp_conn_put(end->conn);
	free(end);
}

struct job {
	struct end *end;
	uint64_t bytes;
};

static void *thread_write_all_bytes(void *arg)
{
	struct job *job = arg;

	connection_write_all(job->end, job->bytes);
	return NULL;
}

/* Both directions at once, two threads per end; then closed in one of four ways. */
static void stress_connection_both_ways(struct end *client, struct end *server, uint64_t round)
{
	uint64_t bytes = 1 + (round * 7919) % 60000;
	struct job jobs[2] = {{client, bytes}, {server, bytes / 2}};
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_write_all_bytes, &jobs[i]), 0);
	connection_read_all(server, bytes);
	connection_read_all(client, bytes / 2);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

static void *stress_connection_thread(void *arg)
{
	unsigned number = (unsigned)(uintptr_t)arg;

	for (uint64_t round = number; !atomic_load(&stop); round++) {
		unsigned slot = number + WORKERS * (round & 1);
		uint16_t port = (uint16_t)(FIRST_PORT + slot + WORKERS * 2 * (round % 1000));
		struct end *client, *server;
		uint64_t since = 0;

		atomic_store(&waiting[slot], NULL);
		client = stress_connect_and_wait_established(port);
		while ((server = atomic_load(&waiting[slot])) == NULL)
			connection_drive_or_time_out(&since);
		stress_connection_both_ways(client, server, round);
		connection_close_and_disown(client, round % 4 == 1);
		connection_close_and_disown(server, round % 4 == 2);
		atomic_fetch_add(&connections, 1);
	}
	return NULL;
}

static void connection_open_fixture(void)
{
	struct vma_bufarena_attr arena_attr = {.capacity = 1 << 16, .frame_size = 2048};
	struct vma_bufpool_attr spill_attr = {.name = "spill", .max_bufs = 1 << 14};
	struct vma_wire_pair_attr wire = {0};
	struct vma_tcp_listen_attr attr = {
	        .owner = &listener_owner, .family = AF_INET, .local_port_be = htons(PORT), .backlog = 64};
	struct vma_tcp_options options;

	assert_int_equal(vma_bufarena_create(&arena_attr, &arena), 0);
	spill_attr.arena = arena;
	assert_int_equal(vma_bufpool_create(&spill_attr, &spill), 0);
	wire.arena[0] = wire.arena[1] = arena;
	assert_int_equal(vma_wire_create_pair(&wire, nic), 0);
	for (int i = 0; i < 2; i++) {
		struct vma_ring_attr r = {.nic = nic[i],
		                          .spill_pool = spill,
		                          .thread_mode = VMA_THREAD_YIELD,
		                          .rx_sw_csum = true,
		                          .name = "stress"};
		struct vma_tcp_attr t = {.arena = arena,
		                         .host = {.alloc = connection_counted_alloc, .free = connection_counted_free},
		                         .gro_streams_max = 8,
		                         .memory = memory.limit != 0 ? &memory : NULL};

		assert_int_equal(vma_ring_create(&r, &ring[i]), 0);
		t.ring = ring[i];
		t.secret[0] = (uint8_t)i;
		assert_int_equal(vma_tcp_create(&t, &tcp[i]), 0);
	}
	vma_tcp_options_init(&options);
	attr.options = &options;
	memcpy(attr.local, ip[1], 16);
	assert_int_equal(vma_tcp_listen(tcp[1], &attr, &listener), 0);
}

static void connection_close_fixture(void)
{
	vma_tcp_listener_close(listener);
	for (int i = 0; i < 2; i++)
		vma_tcp_destroy(tcp[i]);
	assert_int_equal(atomic_load(&allocated), 0);
	for (int i = 0; i < 2; i++)
		vma_ring_destroy(ring[i]);
	for (int i = 0; i < 2; i++)
		vma_nic_close(nic[i]);
	vma_bufpool_retire(spill, NULL, NULL);
	vma_bufpool_flush_thread(arena);
	vma_bufarena_destroy(arena);
}

static void run_connection_workers_for_seconds(void)
{
	const char *seconds = getenv("STRESS_SECONDS");
	uint64_t end = connection_now_ns() + (uint64_t)((seconds != NULL ? atof(seconds) : 1.5) * 1e9);
	pthread_t threads[WORKERS];

	connection_open_fixture();
	atomic_store(&stop, false);
	for (uintptr_t i = 0; i < WORKERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, stress_connection_thread, (void *)i), 0);
	while (connection_now_ns() < end)
		poll(NULL, 0, 20);
	atomic_store(&stop, true);
	for (int i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	print_message("%lu connections, %lu bytes\n", (unsigned long)atomic_load(&connections),
	              (unsigned long)atomic_load(&bytes_moved));
	assert_true(atomic_load(&connections) > 0);
	connection_close_fixture();
}

static void test_many_threads_lose_and_leak_nothing(void **state)
{
	(void)state;
	memory = (struct vma_tcp_memory){0};
	run_connection_workers_for_seconds();
}

/* Memory is short for all most of the time: a writer that is not told of room would wait for ever. */
static void test_many_threads_share_little_memory(void **state)
{
	(void)state;
	memory = (struct vma_tcp_memory){.pressure = 1, .limit = WORKERS * 24576};
	atomic_store(&connections, 0);
	run_connection_workers_for_seconds();
	assert_true(atomic_load(&memory.was_exhausted));
	assert_int_equal(atomic_load(&memory.used), 0);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_threads_lose_and_leak_nothing),
                                          cmocka_unit_test(test_many_threads_share_little_memory)};
VMA_TEST_MAIN(tests)
