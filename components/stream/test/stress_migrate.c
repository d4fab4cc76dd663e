/*
 * Two threads use the same connections in turns, while bytes flow both ways without a pause: at each turn each
 * connection moves to the ring of the thread that has it. A third thread asks for its state and sets options all the
 * time. Every byte comes, in its place, and moves come within three ratios: all but those that met a thread which had
 * lost its core in the middle of a call for the connection. So it is on a good link, and on one that loses, repeats and
 * reorders frames. STRESS_SECONDS each; make soak.
 */
#include "fixture.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdlib.h>

enum { RATIO = 10, MOVES = 100, CONNS = 3, PORT = 7000, CHUNK = 700 };

/* One direction of one connection: how far it has come. */
struct direction_progress {
	_Atomic uint64_t sent, received;
};

static struct {
	int fd;
	struct fixture_conn *peer;
	struct direction_progress out, in; /* as the socket sees it */
} conns[CONNS];
static _Atomic uint64_t wrong, migrations_due, migrations_after_deadline;
static _Atomic bool stop, peer_stop;
static _Atomic int thread_whose_turn_it_is; /* turn it is; -1: the end */

static uint64_t migration_count_of_conn(int i)
{
	return vma_stats_read_counter(&fixture_sock_of(conns[i].fd)->stats->rx_migrations);
}

static uint8_t stream_pattern_byte_at(uint64_t position)
{
	return (uint8_t)(position * 7 + (position >> 8) * 31 + (position >> 16));
}

static void fill_with_stream_pattern(uint8_t *bytes, size_t n, uint64_t at)
{
	for (size_t i = 0; i < n; i++)
		bytes[i] = stream_pattern_byte_at(at + i);
}

static void check_bytes(struct direction_progress *direction_progress, const uint8_t *bytes, size_t n)
{
	const uint64_t at = atomic_load(&direction_progress->received);

	for (size_t i = 0; i < n; i++) {
		if (bytes[i] != stream_pattern_byte_at(at + i))
			atomic_fetch_add(&wrong, 1);
	}
	atomic_store(&direction_progress->received, at + n);
}

/* ---- the sockets ---- */

static void send_stream_pattern_chunk(int i)
{
	const uint64_t at = atomic_load(&conns[i].out.sent);
	uint8_t bytes[CHUNK];
	ssize_t n;

	fill_with_stream_pattern(bytes, sizeof(bytes), at);
	n = do_send(conns[i].fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	if (n > 0)
		atomic_store(&conns[i].out.sent, at + (uint64_t)n);
	else if (n != -EAGAIN)
		atomic_fetch_add(&wrong, 1);
}

static void receive_and_check_stream_bytes(int i)
{
	uint8_t bytes[2 * CHUNK];
	const ssize_t n = do_recv(conns[i].fd, bytes, sizeof(bytes), MSG_DONTWAIT);

	if (n > 0)
		check_bytes(&conns[i].in, bytes, (size_t)n);
	else if (n != -EAGAIN)
		atomic_fetch_add(&wrong, 1);
}

static void use_all_conns_until_migrated(void)
{
	uint64_t before[CONNS];

	for (int i = 0; i < CONNS; i++)
		before[i] = migration_count_of_conn(i);
	for (int calls = 0; calls < 3 * RATIO; calls++) {
		for (int i = 0; i < CONNS; i++) {
			send_stream_pattern_chunk(i);
			receive_and_check_stream_bytes(i);
		}
	}
	for (int i = 0; i < CONNS; i++) {
		atomic_fetch_add(&migrations_due, 1);
		if (migration_count_of_conn(i) == before[i])
			atomic_fetch_add(&migrations_after_deadline, 1);
	}
}

static void *use_conns_in_turns_thread(void *arg)
{
	const int me = *(int *)arg;

	for (int at; (at = atomic_load(&thread_whose_turn_it_is)) >= 0;) {
		if (at != me) {
			sched_yield();
			continue;
		}
		use_all_conns_until_migrated();
		atomic_store(&thread_whose_turn_it_is, atomic_load(&stop) ? -1 : 1 - me);
	}
	return NULL;
}

static void *set_options_and_query_until_stop(void *arg)
{
	(void)arg;
	for (unsigned n = 0; !atomic_load(&stop); n++) {
		const int fd = conns[n % CONNS].fd;

		fixture_setsockopt_int(fd, IPPROTO_TCP, TCP_NODELAY, n / CONNS % 2);
		fixture_getsockopt_int(fd, SOL_SOCKET, SO_SNDBUF);
		do_poll(fd);
		CALL(int, ({
			     struct tcp_info info;
			     socklen_t len = sizeof(info);
			     stream_getsockopt(vma_fd_lookup(fd), fd, IPPROTO_TCP, TCP_INFO, &info, &len);
		     }));
		sched_yield();
	}
	return NULL;
}

/* ---- the peer: one thread ---- */

static void peer_send_stream_pattern_chunk(int i)
{
	const uint64_t at = atomic_load(&conns[i].in.sent);
	uint8_t bytes[CHUNK];

	if (atomic_load(&stop) || vma_tcp_tx_space(conns[i].peer->conn) < sizeof(bytes) ||
	    at - atomic_load(&conns[i].in.received) > 100 * CHUNK)
		return;
	fill_with_stream_pattern(bytes, sizeof(bytes), at);
	fixture_peer_send(conns[i].peer, bytes, sizeof(bytes));
	atomic_store(&conns[i].in.sent, at + sizeof(bytes));
}

static void peer_receive_and_check_stream_bytes(int i)
{
	uint8_t bytes[4 * CHUNK];
	const size_t n = fixture_peer_recv(conns[i].peer, bytes, sizeof(bytes));

	check_bytes(&conns[i].out, bytes, n);
}

static void *run_peer(void *arg)
{
	(void)arg;
	while (!atomic_load(&peer_stop)) {
		for (int i = 0; i < CONNS; i++) {
			peer_send_stream_pattern_chunk(i);
			peer_receive_and_check_stream_bytes(i);
		}
		fixture_peer_ring_progress();
		sched_yield();
	}
	return NULL;
}

/* ---- the test ---- */

static void connect_all(void)
{
	for (int i = 0; i < CONNS; i++) {
		const unsigned before = atomic_load(&fixture.n_accepted);

		conns[i].fd = fixture_stream_socket(SOCK_NONBLOCK);
		assert_non_null(fixture_sock_of(conns[i].fd)->stats);
		assert_int_equal(do_connect(conns[i].fd, FIXTURE_PEER, PORT), -EINPROGRESS);
		fixture_until(atomic_load(&fixture.n_accepted) > before && do_poll(conns[i].fd) & EPOLLOUT);
		assert_int_equal(do_connect(conns[i].fd, FIXTURE_PEER, PORT), 0);
		conns[i].peer = &fixture.accepted[before];
	}
}

static bool all_streams_received(void)
{
	for (int i = 0; i < CONNS; i++) {
		if (atomic_load(&conns[i].in.received) != atomic_load(&conns[i].in.sent) ||
		    atomic_load(&conns[i].out.received) != atomic_load(&conns[i].out.sent))
			return false;
	}
	return true;
}

static void receive_until_all_streams_complete(void)
{
	const uint64_t end_ns = vma_now_ns() + 6 * FIXTURE_TIMEOUT_NS; /* a segment may be lost several times */

	while (!all_streams_received() && vma_now_ns() < end_ns) {
		for (int i = 0; i < CONNS; i++)
			receive_and_check_stream_bytes(i);
		sched_yield();
	}
	assert_true(all_streams_received());
}

static bool all_conns_have_migrated(void)
{
	for (int i = 0; i < CONNS; i++) {
		if (migration_count_of_conn(i) < MOVES)
			return false;
	}
	return true;
}

/* What the case before has left. */
static void stress_reset_state(void)
{
	memset(conns, 0, sizeof(conns));
	atomic_store(&stop, false);
	atomic_store(&peer_stop, false);
	atomic_store(&thread_whose_turn_it_is, 0);
	atomic_store(&migrations_due, 0);
	atomic_store(&migrations_after_deadline, 0);
}

static void set_wire_faults_on_both_ends(const struct vma_wire_faults *faults)
{
	for (int i = 0; i < 2; i++)
		assert_int_equal(vma_wire_set_faults(fixture.end[i], faults), 0);
}

static void close_all(void)
{
	uint64_t moves = 0, bytes = 0;

	for (int i = 0; i < CONNS; i++) {
		assert_true(atomic_load(&conns[i].in.sent) > 100 * CHUNK);
		moves += migration_count_of_conn(i);
		bytes += atomic_load(&conns[i].in.received) + atomic_load(&conns[i].out.received);
	}
	print_message("%lu moves, %lu bytes\n", (unsigned long)moves, (unsigned long)bytes);
	for (int i = 0; i < CONNS; i++) {
		do_close(conns[i].fd);
		fixture_peer_reset_and_free_conn(conns[i].peer);
	}
	atomic_store(&fixture.n_accepted, 0);
}

static void stress_migrate_by_use_in_turns(const struct vma_wire_faults *faults)
{
	const char *seconds = getenv("STRESS_SECONDS");
	const uint64_t until_ns = vma_now_ns() + (seconds != NULL ? strtoull(seconds, NULL, 10) : 1) * 1000000000;
	struct vma_tcp_listener *listener = fixture_peer_listen(PORT);
	pthread_t users[2], meddler, peer;
	int numbers[2] = {0, 1};
	bool moved;

	stress_reset_state();
	connect_all();
	set_wire_faults_on_both_ends(faults);
	assert_int_equal(pthread_create(&peer, NULL, run_peer, NULL), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&users[i], NULL, use_conns_in_turns_thread, &numbers[i]), 0);
	assert_int_equal(pthread_create(&meddler, NULL, set_options_and_query_until_stop, NULL), 0);
	while (vma_test_goes_on(vma_now_ns(), until_ns, all_conns_have_migrated()))
		usleep(1000);
	moved = all_conns_have_migrated();
	atomic_store(&stop, true);
	pthread_join(meddler, NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(users[i], NULL);
	receive_until_all_streams_complete();
	atomic_store(&peer_stop, true);
	pthread_join(peer, NULL);
	set_wire_faults_on_both_ends(&(struct vma_wire_faults){0});
	assert_int_equal(atomic_load(&wrong), 0);
	assert_true(atomic_load(&migrations_after_deadline) <= atomic_load(&migrations_due) / 20);
	assert_true(moved);
	close_all();
	vma_tcp_listener_close(listener);
}

static void test_connections_move_a_hundred_times_and_no_byte_is_lost(void **state)
{
	(void)state;
	stress_migrate_by_use_in_turns(&(struct vma_wire_faults){0});
}

static void test_on_a_bad_link_no_byte_is_lost_either(void **state)
{
	(void)state;
	stress_migrate_by_use_in_turns(&(struct vma_wire_faults){
	        .seed = 1, .loss_ppm = 2000, .duplicate_ppm = 2000, .reorder_ppm = 5000, .reorder_depth = 3});
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connections_move_a_hundred_times_and_no_byte_is_lost),
        cmocka_unit_test(test_on_a_bad_link_no_byte_is_lost_either),
};

int main(void)
{
	setenv("VMA_RING_ALLOCATION_LOGIC_RX", "20", 1);
	setenv("VMA_RING_MIGRATION_RATIO_RX", "10", 1);
	return fixture_run_tests("migrate", tests, sizeof(tests) / sizeof(tests[0]));
}
