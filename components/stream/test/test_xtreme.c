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

/* They were received before the connection's pieces could stay in frames. */
static void test_bytes_that_were_copied_come_while_others_are_held(void **state)
{
	struct fixture_conn peer;
	struct vma_completion_t held[16];
	int listener = open_xtreme_listener(7312), conn;
	unsigned n = 0;

	(void)state;
	fixture_peer_connect(&peer, 6312, 7312);
	conn = await_connection(listener, 6312);
	fixture_peer_send(&peer, out, 8000);
	fixture_until(vma_tcp_readable_bytes(stream_tcp_conn(stream_sock(vma_fd_lookup(conn)))) == 8000 ||
	              (do_poll(conn) & 0));
	while (seen_bytes < 8000) {
		assert_true(n < 16);
		held[n++] = await_packet(listener, conn);
	}
	assert_true(n > 1);
	while (n > 0)
		assert_int_equal(free_packet(&held[--n]), 0);
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

/*
 * What another thread does while a poll gives a connection's bytes: between its look at the state and its report. The
 * counters are written to then. They lie alone on a page that is not accessible at first.
 */
static struct during_look {
	struct fixture_conn peer;
	struct stream_sock *sock;
	struct vma_stats_socket *counters, *own_counters;
	struct sigaction before;
	void (*other_thread_does)(void);
} during_look;

static void run_at_first_access_to_counters(int signo)
{
	(void)signo;
	if (mprotect(during_look.counters, sizeof(*during_look.counters), PROT_READ | PROT_WRITE) != 0)
		abort();
	during_look.other_thread_does();
}

/* The connection; 100 bytes have been received, and the next poll gives them. */
static int during_look_begin(int listener, uint16_t port, void (*other_thread_does)(void))
{
	const struct sigaction catch = {.sa_handler = run_at_first_access_to_counters};
	struct vma_completion_t c;
	int conn;

	fixture_peer_connect(&during_look.peer, port, 7308);
	conn = await_connection(listener, port);
	for (unsigned i = 0; i < 20; i++)
		assert_false(poll_one(listener, &c));
	fixture_peer_send(&during_look.peer, out, 100);
	fixture_until((do_poll(conn) & EPOLLIN) != 0);
	during_look.counters = mmap(NULL, sizeof(*during_look.counters), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(during_look.counters != MAP_FAILED);
	during_look.other_thread_does = other_thread_does;
	during_look.sock = stream_sock(vma_fd_lookup(conn));
	during_look.own_counters = during_look.sock->stats;
	assert_int_equal(sigaction(SIGSEGV, &catch, &during_look.before), 0);
	return conn;
}

/* The poll that gives the 100 bytes. */
static struct vma_completion_t during_look_poll(int listener)
{
	struct vma_completion_t c;

	during_look.sock->stats = during_look.counters;
	assert_true(poll_one(listener, &c));
	during_look.sock->stats = during_look.own_counters;
	assert_int_equal(sigaction(SIGSEGV, &during_look.before, NULL), 0);
	assert_int_equal(mprotect(during_look.counters, sizeof(*during_look.counters), PROT_READ), 0);
	assert_true(during_look.counters->rx_bytes == 100); /* it was run */
	assert_true((c.events & VMA_SOCKETXTREME_PACKET) != 0);
	assert_int_equal(c.packet.total_len, 100);
	seen_bytes = 100;
	free_packet(&c);
	return c;
}

static void during_look_end(int conn)
{
	do_close(conn);
	fixture_peer_reset_and_free_conn(&during_look.peer);
	munmap(during_look.counters, sizeof(*during_look.counters));
}

static void receive_further_bytes_and_end(void)
{
	fixture_peer_send(&during_look.peer, out + 100, 100);
	vma_tcp_close(during_look.peer.conn, false);
	for (unsigned i = 0; i < 20; i++) {
		vma_ring_progress(fixture.peer_ring);
		vma_ring_ctxs_progress(UINT64_MAX);
	}
}

static void test_end_comes_after_bytes_that_are_received_during_a_look(void **state)
{
	int listener = open_xtreme_listener(7308), conn;
	struct vma_completion_t c;

	(void)state;
	conn = during_look_begin(listener, 6308, receive_further_bytes_and_end);
	c = during_look_poll(listener);
	assert_true((do_poll(conn) & EPOLLRDHUP) != 0);
	assert_true((c.events & EPOLLRDHUP) == 0);
	c = await_packet(listener, conn);
	assert_int_equal(seen_bytes, 200);
	if ((c.events & EPOLLRDHUP) == 0)
		await_xtreme_events(listener, EPOLLRDHUP);
	free_packet(&c);
	during_look_end(conn);
	do_close(listener);
}

static void read_zerocopy_notification(void)
{
	struct msghdr msg = {0};

	if (stream_recv_zerocopy_notification(during_look.sock, &msg) < 0)
		abort();
}

/* A notification of MSG_ZEROCOPY is an EPOLLERR for poll, and no end. */
static void test_end_is_told_although_a_notification_was_read_during_a_look(void **state)
{
	int listener = open_xtreme_listener(7308), conn;
	struct vma_completion_t c;

	(void)state;
	conn = during_look_begin(listener, 6309, read_zerocopy_notification);
	stream_queue_zerocopy_notification(during_look.sock);
	c = during_look_poll(listener);
	assert_true((c.events & (EPOLLERR | EPOLLHUP)) == 0);
	vma_tcp_close(during_look.peer.conn, false);
	await_xtreme_events(listener, EPOLLRDHUP);
	during_look_end(conn);
	do_close(listener);
}

static void begin_another_attempt(void)
{
	stream_xtreme_on_connect_attempt(during_look.sock);
}

/* How the connection before has ended is no word about the next one. */
static void test_end_of_a_new_attempt_is_told_although_it_began_during_a_look(void **state)
{
	int listener = open_xtreme_listener(7308), conn;
	struct vma_completion_t c;

	(void)state;
	conn = during_look_begin(listener, 6310, begin_another_attempt);
	vma_tcp_close(during_look.peer.conn, false);
	fixture_until((do_poll(conn) & EPOLLRDHUP) != 0);
	c = during_look_poll(listener);
	assert_true((c.events & EPOLLRDHUP) != 0);
	stream_xtreme_watch_and_post_events(during_look.sock, 0);
	await_xtreme_events(listener, EPOLLRDHUP);
	during_look_end(conn);
	do_close(listener);
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
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7303), 0); /* as the kernel: once, that it has been made */
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7303), -EISCONN);
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
        CASE(test_bytes_that_were_copied_come_while_others_are_held),
        CASE(test_end_comes_after_the_bytes_and_once),
        CASE(test_end_comes_after_bytes_that_are_received_during_a_look),
        CASE(test_end_is_told_although_a_notification_was_read_during_a_look),
        CASE(test_end_of_a_new_attempt_is_told_although_it_began_during_a_look),
        CASE(test_hangup_comes_after_the_bytes),
        CASE(test_reset_is_an_error_and_a_hangup),
        CASE(test_connect_is_told_as_room),
        CASE(test_second_connect_tells_as_the_first),
        CASE(test_what_is_held_outlives_the_close),
        CASE(test_user_data_of_a_connection),
};

FIXTURE_MAIN("xtreme", tests)
