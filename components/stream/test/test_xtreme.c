/* SocketXtreme on TCP: connections, pieces and ends as completions of a poll. */
#include "fixture.h"

#include <signal.h>
#include <sys/mman.h>

#include "../xtreme.h"

static uint8_t out[65536];
static size_t seen_bytes;

static int setup(void **state)
{
	(void)state;
	vma_engine_get_or_start()->conf.socketxtreme = true;
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (uint8_t)(i * 7 + i / 251);
	seen_bytes = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vma_engine_get_or_start()->conf.socketxtreme = false;
	fixture_wait_until_no_connections();
	return 0;
}

/* The peer is driven as well, so what it has to say comes. */
static bool poll_one(int fd, struct vma_completion_t *completion)
{
	struct vma_thread *self = vma_enter();
	const int n = vma_xtreme_poll(stream_ring_bits(vma_fd_lookup(fd)), completion, 1);

	vma_leave(self);
	fixture_peer_ring_progress();
	assert_true(n >= 0);
	return n == 1;
}

static int free_packet(const struct vma_completion_t *completion)
{
	struct vma_thread *self = vma_enter();
	const int rc = vma_xtreme_free_packets(&completion->packet, 1);

	vma_leave(self);
	return rc;
}

static int64_t count_tcp_frames_held(void)
{
	return atomic_load(&vma_tcp_memory_of_process()->frames);
}

static int open_xtreme_listener(uint16_t port)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR, 1), 0);
	assert_int_equal(do_bind(fd, FIXTURE_LOCAL, port), 0);
	assert_int_equal(do_listen(fd, 8), 0);
	return fd;
}

/* Its descriptor, as a completion has told it. */
static int await_connection(int listener, uint16_t from)
{
	struct vma_completion_t c;

	fixture_until(poll_one(listener, &c));
	assert_true(c.events == VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED);
	assert_int_equal(c.listen_fd, listener);
	assert_int_equal(c.src.sin_port, htons(from));
	assert_int_equal(c.src.sin_addr.s_addr, fixture_ipv4_from_text(FIXTURE_PEER));
	return (int)c.user_data;
}

/* The next packet; completions of other kinds are passed. */
static struct vma_completion_t await_packet(int fd, int conn)
{
	struct vma_completion_t c;

	do
		fixture_until(poll_one(fd, &c));
	while ((c.events & VMA_SOCKETXTREME_PACKET) == 0);
	assert_int_equal((int)c.user_data, conn);
	assert_memory_equal(c.packet.buff_lst->payload, out + seen_bytes, c.packet.total_len);
	seen_bytes += c.packet.total_len;
	return c;
}

static uint64_t await_xtreme_events(int fd, uint64_t wanted)
{
	struct vma_completion_t c;
	uint64_t all = 0;

	while ((all & wanted) != wanted) {
		fixture_until(poll_one(fd, &c));
		if (c.events & VMA_SOCKETXTREME_PACKET)
			free_packet(&c);
		all |= c.events;
	}
	return all;
}

static void test_connection_is_accepted_by_itself_and_gives_pieces_in_frames(void **state)
{
	struct fixture_conn peer;
	struct vma_completion_t c;
	int listener = open_xtreme_listener(7300), conn;
	bool in_frame = false;

	(void)state;
	fixture_peer_connect(&peer, 6300, 7300);
	conn = await_connection(listener, 6300);
	assert_int_equal(do_poll(listener) & EPOLLIN, 0);
	for (unsigned i = 0; i < 8; i++) {
		fixture_peer_send(&peer, out + i * 1000, 1000);
		c = await_packet(listener, conn);
		in_frame |= count_tcp_frames_held() == 1;
		assert_int_equal(free_packet(&c), 0);
		assert_int_equal(free_packet(&c), -ENOENT);
	}
	assert_int_equal(seen_bytes, 8000);
	assert_true(in_frame);
	assert_int_equal(count_tcp_frames_held(), 0);
	do_close(conn);
	do_close(listener);
	fixture_peer_reset_and_free_conn(&peer);
}

static void test_end_comes_after_the_bytes_and_once(void **state)
{
	struct fixture_conn peer;
	struct vma_completion_t c;
	int listener = open_xtreme_listener(7301), conn;

	(void)state;
	fixture_peer_connect(&peer, 6301, 7301);
	conn = await_connection(listener, 6301);
	fixture_peer_send(&peer, out, 5000);
	vma_tcp_close(peer.conn, false);
	while (seen_bytes < 5000) {
		c = await_packet(listener, conn);
		if (seen_bytes < 5000)
			assert_int_equal(c.events & EPOLLRDHUP, 0);
		free_packet(&c);
	}
	if ((c.events & EPOLLRDHUP) == 0)
		assert_true((await_xtreme_events(listener, EPOLLRDHUP) & EPOLLIN) != 0);
	for (unsigned i = 0; i < 20; i++)
		assert_false(poll_one(listener, &c));
	do_close(conn);
	do_close(listener);
	fixture_peer_reset_and_free_conn(&peer);
}

static struct fixture_conn ending_peer;
static struct vma_stats_socket *counters; /* alone on a page, which is not accessible at first */

/* Counters are written to between a look for bytes and the next step: meanwhile further bytes and the end arrive. */
static void receive_bytes_and_end_at_access_to_counters(int signo)
{
	(void)signo;
	if (mprotect(counters, sizeof(*counters), PROT_READ | PROT_WRITE) != 0)
		abort();
	fixture_peer_send(&ending_peer, out + 100, 100);
	vma_tcp_close(ending_peer.conn, false);
	for (unsigned i = 0; i < 20; i++) {
		vma_ring_progress(fixture.peer_ring);
		vma_ring_ctxs_progress(UINT64_MAX);
	}
}

static void test_end_comes_after_bytes_that_are_received_during_a_look(void **state)
{
	const struct sigaction catch = {.sa_handler = receive_bytes_and_end_at_access_to_counters};
	struct vma_stats_socket *own;
	struct vma_completion_t c;
	struct sigaction before;
	int listener = open_xtreme_listener(7308), conn;
	struct stream_sock *sock;

	(void)state;
	fixture_peer_connect(&ending_peer, 6308, 7308);
	conn = await_connection(listener, 6308);
	for (unsigned i = 0; i < 20; i++)
		assert_false(poll_one(listener, &c));
	fixture_peer_send(&ending_peer, out, 100);
	fixture_until((do_poll(conn) & EPOLLIN) != 0);
	counters = mmap(NULL, sizeof(*counters), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(counters != MAP_FAILED);
	assert_int_equal(sigaction(SIGSEGV, &catch, &before), 0);
	sock = stream_sock(vma_fd_lookup(conn));
	own = sock->stats;
	sock->stats = counters;
	assert_true(poll_one(listener, &c));
	sock->stats = own;
	assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
	assert_true((do_poll(conn) & EPOLLRDHUP) != 0);
	assert_int_equal(c.packet.total_len, 100);
	assert_true((c.events & EPOLLRDHUP) == 0);
	free_packet(&c);
	seen_bytes = 100;
	c = await_packet(listener, conn);
	assert_int_equal(seen_bytes, 200);
	if ((c.events & EPOLLRDHUP) == 0)
		await_xtreme_events(listener, EPOLLRDHUP);
	free_packet(&c);
	do_close(conn);
	do_close(listener);
	fixture_peer_reset_and_free_conn(&ending_peer);
	munmap(counters, sizeof(*counters));
}

/* Both sides have ended: a hangup by what poll says, but not before the bytes that wait. */
static void test_hangup_comes_after_the_bytes(void **state)
{
	struct fixture_conn peer;
	struct vma_completion_t c;
	int listener = open_xtreme_listener(7306), conn;

	(void)state;
	fixture_peer_connect(&peer, 6306, 7306);
	conn = await_connection(listener, 6306);
	assert_int_equal(do_shutdown(conn, SHUT_WR), 0);
	for (unsigned i = 0; i < 20; i++)
		fixture_peer_send(&peer, out + i * 1000, 1000);
	vma_tcp_close(peer.conn, false);
	for (unsigned i = 0; i < 100; i++)
		fixture_progress_all_rings();
	while (seen_bytes < 20000) {
		c = await_packet(listener, conn);
		if (seen_bytes < 20000)
			assert_int_equal(c.events & (EPOLLHUP | EPOLLRDHUP), 0);
		free_packet(&c);
	}
	if ((c.events & EPOLLHUP) == 0)
		await_xtreme_events(listener, EPOLLHUP);
	do_close(conn);
	do_close(listener);
	fixture_peer_reset_and_free_conn(&peer);
}

static void test_reset_is_an_error_and_a_hangup(void **state)
{
	struct fixture_conn peer;
	int listener = open_xtreme_listener(7302), conn;
	uint64_t events;

	(void)state;
	fixture_peer_connect(&peer, 6302, 7302);
	conn = await_connection(listener, 6302);
	vma_tcp_close(peer.conn, true);
	events = await_xtreme_events(listener, EPOLLERR | EPOLLHUP);
	assert_int_equal(events & VMA_SOCKETXTREME_PACKET, 0);
	do_close(conn);
	do_close(listener);
	fixture_peer_reset_and_free_conn(&peer);
}

static void test_connect_is_told_as_room(void **state)
{
	struct vma_tcp_listener *listener = fixture_peer_listen(7303);
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	struct vma_completion_t c;

	(void)state;
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7303), -EINPROGRESS);
	fixture_until(poll_one(fd, &c));
	assert_true((c.events & EPOLLOUT) != 0);
	assert_int_equal((int)c.user_data, fd);
	for (unsigned i = 0; i < 20; i++)
		assert_false(poll_one(fd, &c));
	do_close(fd);
	fixture_until(fixture.accepted[0].conn != NULL);
	fixture_peer_reset_and_free_conn(&fixture.accepted[0]);
	atomic_store(&fixture.n_accepted, 0);
	vma_tcp_listener_close(listener);
}

static void test_second_connect_tells_as_the_first(void **state)
{
	struct vma_tcp_listener *listener;
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	struct vma_completion_t c;
	struct vma_flow nobody;
	uint64_t seen = 0;

	(void)state;
	fixture_peer_refuse_connections_to_port(&nobody, 7306);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7306), -EINPROGRESS);
	fixture_until(poll_one(fd, &c));
	assert_true((c.events & EPOLLERR) != 0);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7306), -ECONNREFUSED);
	vma_ring_detach_flow(fixture.peer_ring, &nobody);
	listener = fixture_peer_listen(7307);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7307), -EINPROGRESS);
	fixture_until(poll_one(fd, &c) && (c.events & EPOLLOUT) != 0);
	fixture_until(fixture.accepted[0].conn != NULL);
	vma_tcp_close(fixture.accepted[0].conn, false);
	fixture_until(poll_one(fd, &c) && ((seen |= c.events) & EPOLLRDHUP) != 0);
	do_close(fd);
	fixture_peer_reset_and_free_conn(&fixture.accepted[0]);
	atomic_store(&fixture.n_accepted, 0);
	vma_tcp_listener_close(listener);
}

static void test_what_is_held_outlives_the_close(void **state)
{
	struct fixture_conn peer;
	struct vma_completion_t held[4];
	int listener = open_xtreme_listener(7304), conn;

	(void)state;
	fixture_peer_connect(&peer, 6304, 7304);
	conn = await_connection(listener, 6304);
	for (unsigned i = 0; i < 4; i++) {
		fixture_peer_send(&peer, out + i * 500, 500);
		held[i] = await_packet(listener, conn);
	}
	do_close(conn);
	fixture_progress_all_rings();
	for (unsigned i = 0; i < 4; i++) {
		assert_memory_equal(held[i].packet.buff_lst->payload, out + i * 500, 500);
		assert_int_equal(free_packet(&held[i]), 0);
		assert_int_equal(free_packet(&held[i]), -ENOENT);
	}
	assert_int_equal(count_tcp_frames_held(), 0);
	do_close(listener);
	fixture_peer_reset_and_free_conn(&peer);
}

static void test_user_data_of_a_connection(void **state)
{
	struct fixture_conn peer;
	struct vma_completion_t c;
	const uint64_t data = 0xabcdef0123456789;
	int listener = open_xtreme_listener(7305), conn;

	(void)state;
	fixture_peer_connect(&peer, 6305, 7305);
	conn = await_connection(listener, 6305);
	assert_int_equal(CALL(int, stream_setsockopt(vma_fd_lookup(conn), conn, SOL_SOCKET, SO_VMA_USER_DATA, &data,
	                                             sizeof(data))),
	                 0);
	fixture_peer_send(&peer, out, 100);
	do
		fixture_until(poll_one(listener, &c));
	while ((c.events & VMA_SOCKETXTREME_PACKET) == 0);
	assert_true(c.user_data == data);
	free_packet(&c);
	do_close(conn);
	do_close(listener);
	fixture_peer_reset_and_free_conn(&peer);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_connection_is_accepted_by_itself_and_gives_pieces_in_frames),
        CASE(test_end_comes_after_the_bytes_and_once),
        CASE(test_end_comes_after_bytes_that_are_received_during_a_look),
        CASE(test_hangup_comes_after_the_bytes),
        CASE(test_reset_is_an_error_and_a_hangup),
        CASE(test_connect_is_told_as_room),
        CASE(test_second_connect_tells_as_the_first),
        CASE(test_what_is_held_outlives_the_close),
        CASE(test_user_data_of_a_connection),
};

FIXTURE_MAIN("xtreme", tests)
