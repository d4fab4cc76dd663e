/* Memory for all connections together is bounded: windows close, writers wait, and nothing is lost. */
#include "fixture.h"
#include "../tcp_priv.h"

enum { CONNS = 24, EACH = 300000 };
#define LIMIT (400 * 1024)
/* A few KB for each connection's two fifos, in chunks that double, come on top; and what a window had promised. */
#define SLACK (CONNS * 2 * 16384)

static struct vma_tcp_memory memory;
static struct app *client[CONNS];
static size_t sent[CONNS], got[CONNS];

static int fixture_open_memory_bounded(void **state)
{
	struct vma_tcp_attr requests = {.gro_streams_max = 16, .memory = &memory};

	(void)state;
	memory = (struct vma_tcp_memory){.pressure = LIMIT / 2, .limit = LIMIT};
	memset(sent, 0, sizeof(sent));
	memset(got, 0, sizeof(got));
	fixture_open_with(&requests, 0);
	fixture_listen_with(1, &side[1].options, CONNS);
	for (unsigned i = 0; i < CONNS; i++)
		client[i] = fixture_connect_from(0, (uint16_t)(2000 + i));
	fixture_run_for_ns(10 * MS);
	assert_int_equal(fixture_accepted_count, CONNS);
	return 0;
}

static int teardown_memory_bounded(void **state)
{
	int rc;

	for (unsigned i = 0; i < CONNS; i++)
		app_free(client[i]);
	rc = fixture_close(state);
	assert_int_equal(atomic_load(&memory.used), 0);
	assert_int_equal(atomic_load(&memory.segments), 0);
	return rc;
}

/* Accepted in another order than asked for, perhaps. */
static struct app *server_end_of_client(unsigned i)
{
	struct vma_flow_key theirs, ours;

	vma_tcp_conn_key(client[i]->conn, &ours);
	for (unsigned k = 0; k < fixture_accepted_count; k++) {
		vma_tcp_conn_key(fixture_accepted[k]->conn, &theirs);
		if (theirs.peer_port_be == ours.local_port_be)
			return fixture_accepted[k];
	}
	fail();
	return NULL;
}

static void budget_write_all(void)
{
	for (unsigned i = 0; i < CONNS; i++) {
		size_t n;

		do {
			n = fixture_send_bytes(client[i], EACH - sent[i]);
			sent[i] += n;
		} while (n != 0 && sent[i] < EACH);
	}
}

static bool budget_read_all(void)
{
	bool done = true;

	for (unsigned i = 0; i < CONNS; i++) {
		got[i] += read_bytes(server_end_of_client(i), EACH);
		done &= got[i] == EACH;
	}
	return done;
}

static void test_memory_is_bounded_when_nobody_reads_and_nothing_is_lost(void **state)
{
	uint64_t end;

	(void)state;
	for (unsigned i = 0; i < 200; i++) {
		budget_write_all();
		fixture_run_for_ns(50 * MS);
		assert_true(atomic_load(&memory.used) < LIMIT + SLACK);
	}
	assert_true(atomic_load(&memory.used) > LIMIT / 2);
	end = fixture_now_ns + 600 * SEC;
	while (!budget_read_all()) {
		budget_write_all();
		fixture_run_for_ns(20 * MS);
		assert_true(fixture_now_ns < end);
		assert_true(atomic_load(&memory.used) < LIMIT + SLACK);
	}
}

static void test_writer_that_waits_for_memory_is_told(void **state)
{
	unsigned waiting = 0, told = 0;

	(void)state;
	atomic_store(&memory.used, LIMIT); /* somebody else's */
	for (unsigned i = 0; i < CONNS; i++) {
		while (fixture_send_bytes(client[i], EACH) != 0)
			;
		assert_true(vma_tcp_tx_unacked_bytes(client[i]->conn) <= 4608);
		waiting += (fixture_poll_events_of_app(client[i]) & EPOLLOUT) == 0;
		fixture_take_app_events(client[i]);
	}
	assert_int_equal(waiting, CONNS);
	atomic_fetch_sub(&memory.used, LIMIT);
	fixture_run_for_ns(100 * MS); /* all is acknowledged */
	for (unsigned i = 0; i < CONNS; i++)
		told += (fixture_take_app_events(client[i]) & VMA_TCP_WRITABLE) != 0;
	assert_int_equal(told, CONNS);
}

/* Who reads goes on, a few segments at a time, although another one holds all the memory. */
static void test_connection_that_reads_goes_on_while_memory_is_spent(void **state)
{
	(void)state;
	atomic_store(&memory.used, LIMIT);
	fixture_transfer_and_check_bytes(client[3], server_end_of_client(3), 100000, 60 * SEC);
	atomic_fetch_sub(&memory.used, LIMIT);
}

static void test_buffers_do_not_grow_under_pressure(void **state)
{
	uint64_t rcvbuf = atomic_load(&server_end_of_client(0)->conn->rcvbuf),
	         sndbuf = atomic_load(&client[0]->conn->sndbuf);

	(void)state;
	atomic_store(&memory.used, LIMIT / 2);
	fixture_transfer_and_check_bytes(client[0], server_end_of_client(0), 2000000, 60 * SEC);
	assert_int_equal(atomic_load(&server_end_of_client(0)->conn->rcvbuf), rcvbuf);
	assert_int_equal(atomic_load(&client[0]->conn->sndbuf), sndbuf);
	atomic_fetch_sub(&memory.used, LIMIT / 2);
}

static void run_until_all_bytes_read(void)
{
	const uint64_t end = fixture_now_ns + 600 * SEC;
	bool done = false;

	while (!done && fixture_now_ns < end) {
		fixture_run_for_ns(1 * MS);
		done = true;
		for (unsigned k = 0; k < CONNS; k++) {
			read_bytes(server_end_of_client(k), EACH);
			done &= vma_tcp_tx_unacked_bytes(client[k]->conn) == 0;
		}
	}
	assert_true(done);
}

/* Right after all have written: what left at once is not acknowledged yet. */
static int64_t most_segments_queued_in_bursts(int64_t max)
{
	int64_t most = 0;

	memory.limit = memory.pressure = INT64_MAX;
	memory.segments_max = max;
	for (unsigned i = 0; i < 20; i++) {
		for (unsigned k = 0; k < CONNS; k++)
			fixture_send_bytes(client[k], 10000);
		if (atomic_load(&memory.segments) > most)
			most = atomic_load(&memory.segments);
		fixture_run_for_ns(20 * MS);
		for (unsigned k = 0; k < CONNS; k++)
			read_bytes(server_end_of_client(k), EACH);
	}
	run_until_all_bytes_read();
	return most;
}

/* One for each connection comes on top, so that none waits for another one for ever. */
static void test_segments_are_as_many_as_the_environment_says(void **state)
{
	(void)state;
	assert_in_range(most_segments_queued_in_bursts(40), 30, 40 + 2 * CONNS);
	fixture_transfer_and_check_bytes(client[3], server_end_of_client(3), 100000, 60 * SEC);
	assert_true(most_segments_queued_in_bursts(0) > 40 + 2 * CONNS);
}

#define MEMORY_BOUNDED_CASE(f) cmocka_unit_test_setup_teardown(f, fixture_open_memory_bounded, teardown_memory_bounded)
static const struct CMUnitTest tests[] = {
        MEMORY_BOUNDED_CASE(test_memory_is_bounded_when_nobody_reads_and_nothing_is_lost),
        MEMORY_BOUNDED_CASE(test_writer_that_waits_for_memory_is_told),
        MEMORY_BOUNDED_CASE(test_connection_that_reads_goes_on_while_memory_is_spent),
        MEMORY_BOUNDED_CASE(test_buffers_do_not_grow_under_pressure),
        MEMORY_BOUNDED_CASE(test_segments_are_as_many_as_the_environment_says),
};
VMA_TEST_MAIN(tests)
