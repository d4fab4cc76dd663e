/* shutdown, close, SO_LINGER, and the ends of sockets that are in use. */
#include "fixture.h"

#include <sys/wait.h>

#include "../fork_rpc.h"

static bool peer_has_events(const struct fixture_conn *peer, uint32_t events)
{
	return (atomic_load(&peer->events) & events) == events;
}

static void test_close_delivers_and_says_the_end(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	char text[8];

	(void)state;
	assert_int_equal(do_send(fd, "bye", 3, 0), 3);
	do_close(fd);
	fixture_until(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	assert_int_equal(fixture_peer_recv(peer, text, 8), 3);
	assert_memory_equal(text, "bye", 3);
	assert_true(vma_tcp_rx_eof(peer->conn));
	fixture_close_conn_pair(-1, listener, peer);
}

static void test_close_with_unread_bytes_resets(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);

	(void)state;
	fixture_peer_send(peer, "x", 1);
	fixture_until(do_poll(fd) & EPOLLIN);
	do_close(fd);
	fixture_until(peer_has_events(peer, VMA_TCP_FAILED));
	assert_int_equal(vma_tcp_error(peer->conn), ECONNRESET);
	fixture_close_conn_pair(-1, listener, peer);
}

static void set_linger(int fd, int seconds)
{
	struct linger linger = {.l_onoff = 1, .l_linger = seconds};

	assert_int_equal(
	        CALL(int, stream_setsockopt(vma_fd_lookup(fd), fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger))), 0);
}

static void test_linger_zero_resets(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);

	(void)state;
	set_linger(fd, 0);
	do_close(fd);
	fixture_until(peer_has_events(peer, VMA_TCP_FAILED));
	fixture_close_conn_pair(-1, listener, peer);
}

static void test_linger_waits_until_all_is_acknowledged(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	uint64_t begun;

	(void)state;
	set_linger(fd, 5);
	assert_int_equal(do_send(fd, "bye", 3, 0), 3);
	fixture_peer_thread_start();
	begun = vma_now_ns();
	do_close(fd);
	assert_true(vma_now_ns() - begun < 2000000000);
	fixture_peer_thread_stop();
	assert_int_equal(vma_tcp_readable_bytes(peer->conn), 3);
	assert_true(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	fixture_close_conn_pair(-1, listener, peer);
}

static void test_linger_waits_no_longer_than_it_is_told(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	uint64_t begun, took;

	(void)state;
	set_linger(fd, 1);
	assert_int_equal(do_send(fd, "bye", 3, 0), 3);
	begun = vma_now_ns();
	do_close(fd); /* the peer is not driven */
	took = vma_now_ns() - begun;
	assert_true(took > 900000000 && took < 2500000000);
	fixture_until(peer_has_events(peer, VMA_TCP_PEER_CLOSED)); /* and is delivered all the same */
	fixture_close_conn_pair(-1, listener, peer);
}

static void *close_socket_thread(void *arg)
{
	do_close(*(int *)arg);
	return NULL;
}

/* It is delivered all the same, and nothing is left of the socket. */
static void test_cancelled_in_its_linger_a_close_goes_on_in_the_background(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	struct stream_sock *sock = fixture_sock_of(fd);
	pthread_t thread;
	void *how = NULL;

	(void)state;
	vma_file_get(&sock->file);
	set_linger(fd, 3600);
	assert_int_equal(do_send(fd, "bye", 3, 0), 3);
	pthread_create(&thread, NULL, close_socket_thread, &fd); /* the peer is not driven */
	fixture_wait_ms_until(atomic_load(&sock->waiting) != 0);
	pthread_cancel(thread);
	pthread_join(thread, &how);
	assert_ptr_equal(how, PTHREAD_CANCELED);
	assert_int_equal(atomic_load(&sock->waiting), 0);
	fixture_until(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	assert_int_equal(vma_tcp_readable_bytes(peer->conn), 3);
	fixture_close_conn_pair(-1, listener, peer);
	fixture_until(atomic_load(&sock->file.refs) == 1);
	CALL(int, (vma_file_put(&sock->file), 0));
}

static void test_half_closed_it_reads_on(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	char text[8];

	(void)state;
	assert_int_equal(do_shutdown(fd, SHUT_WR), 0);
	fixture_until(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	assert_true(do_poll(fd) & EPOLLOUT); /* a write would not wait: EPIPE */
	assert_false(do_poll(fd) & EPOLLHUP);
	fixture_peer_send(peer, "more", 4);
	fixture_until(do_poll(fd) & EPOLLIN);
	assert_int_equal(do_recv(fd, text, 8, 0), 4);
	vma_tcp_close(peer->conn, false);
	fixture_until(do_poll(fd) & EPOLLHUP);
	assert_int_equal(do_recv(fd, text, 8, 0), 0);
	assert_int_equal(do_shutdown(fd, SHUT_WR), -ENOTCONN);
	fixture_close_conn_pair(fd, listener, peer);
}

static void test_shut_for_reading_it_says_the_end(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	char text[8];

	(void)state;
	assert_int_equal(do_shutdown(fd, SHUT_RD), 0);
	assert_true(do_poll(fd) & EPOLLIN && do_poll(fd) & EPOLLRDHUP);
	assert_int_equal(do_recv(fd, text, 8, 0), 0);
	assert_int_equal(do_shutdown(fd, 77), -EINVAL);
	fixture_close_conn_pair(fd, listener, peer);
}

struct closer {
	int fd;
	struct vma_thread *reader;
	struct fixture_conn *peer;
};

/* Once the read waits; what it waits for comes thereafter. */
static void *close_fd_then_peer_sends_thread(void *arg)
{
	struct closer *closer = arg;

	for (int ms = 0; ms < 10000 && atomic_load(&closer->reader->state) != VMA_THREAD_ASLEEP; ms++)
		usleep(1000);
	do_close(closer->fd);
	usleep(50000);
	fixture_peer_send(closer->peer, "late", 4);
	return NULL;
}

static void test_closed_by_another_thread_a_read_goes_on(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, 0);
	struct closer closer = {.fd = fd, .reader = vma_thread_self(), .peer = peer};
	pthread_t thread;
	char text[8];

	(void)state;
	fixture_peer_thread_start();
	pthread_create(&thread, NULL, close_fd_then_peer_sends_thread, &closer);
	assert_int_equal(do_recv(fd, text, 8, 0), 4); /* as with the kernel: it holds the socket */
	pthread_join(thread, NULL);
	fixture_peer_thread_stop();
	fixture_until(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	fixture_close_conn_pair(-1, listener, peer);
}

/* Another thread had looked the descriptor up before it was closed, and comes too late. */
static void test_a_call_that_finds_it_closed_is_ebadf(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	struct vma_file *file = vma_fd_lookup(fd);
	struct fixture_message m = {.iov = {.iov_base = "late", .iov_len = 4}};
	const struct sockaddr none = {.sa_family = AF_UNSPEC};

	(void)state;
	m.msg.msg_iov = &m.iov;
	m.msg.msg_iovlen = 1;
	vma_file_get(file);
	do_close(fd);
	assert_int_equal(CALL(ssize_t, stream_sendmsg(file, fd, &m.msg, MSG_NOSIGNAL)), -EBADF);
	assert_int_equal(CALL(ssize_t, stream_recvmsg(file, fd, &m.msg, 0)), -EBADF);
	assert_int_equal(CALL(int, stream_connect(file, fd, &none, sizeof(none))), -EBADF);
	fixture_until(peer_has_events(peer, VMA_TCP_PEER_CLOSED)); /* and is not reset: it ends in order */
	assert_false(peer_has_events(peer, VMA_TCP_FAILED));
	assert_int_equal(vma_tcp_readable_bytes(peer->conn), 0);
	fixture_close_conn_pair(-1, listener, peer);
	CALL(int, (vma_file_put(file), 0));
}

static void *send_on_found_file_thread(void *arg)
{
	struct fixture_message m = {.iov = {.iov_base = "sent", .iov_len = 4}};

	m.msg.msg_iov = &m.iov;
	m.msg.msg_iovlen = 1;
	return (void *)(intptr_t)CALL(ssize_t, stream_sendmsg(arg, -1, &m.msg, 0)); /* SIGPIPE would end the test */
}

/* A send that is cancelled while it waits for its turn would keep the mutex, and no thread could send any more. */
static void test_a_send_that_waits_for_its_turn_is_not_cancelled_there(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, 0);
	struct stream_sock *sock = fixture_sock_of(fd);
	pthread_t sender;
	void *sent = NULL;

	(void)state;
	stream_io_lock_acquire(&sock->writer);
	pthread_create(&sender, NULL, send_on_found_file_thread, &sock->file);
	fixture_wait_ms_until(pthread_mutex_trylock(&sock->writer.queue) != 0 ||
	                      pthread_mutex_unlock(&sock->writer.queue) != 0);
	pthread_cancel(sender);
	usleep(50000); /* many naps */
	stream_io_lock_release(&sock->writer);
	pthread_join(sender, &sent);
	assert_int_equal((intptr_t)sent, 4);
	assert_int_equal(do_send(fd, "more", 4, 0), 4);
	fixture_close_conn_pair(fd, listener, peer);
}

/* A send that does not wait has the writer's turn, and who closes waits for that; what comes after it is EBADF. */
static void test_closed_by_another_thread_a_send_goes_first_or_not_at_all(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, 0);
	struct vma_file *file = vma_fd_lookup(fd);
	pthread_t closer, sender;
	void *sent;

	(void)state;
	vma_file_get(file);
	stream_io_lock_acquire(&stream_sock(file)->writer); /* a send is copying */
	pthread_create(&sender, NULL, send_on_found_file_thread, file);
	usleep(20000);
	pthread_create(&closer, NULL, close_socket_thread, &fd);
	fixture_never(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	stream_io_lock_release(&stream_sock(file)->writer);
	pthread_join(sender, &sent);
	pthread_join(closer, NULL);
	assert_true((intptr_t)sent == 4 || (intptr_t)sent == -EBADF);
	fixture_until(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	assert_int_equal(vma_tcp_readable_bytes(peer->conn), (intptr_t)sent == 4 ? 4 : 0);
	assert_false(peer_has_events(peer, VMA_TCP_FAILED));
	fixture_close_conn_pair(-1, listener, peer);
	CALL(int, (vma_file_put(file), 0));
}

static void *shutdown_later_thread(void *arg)
{
	usleep(50000);
	do_shutdown(*(int *)arg, SHUT_RDWR);
	return NULL;
}

static void test_shut_by_another_thread_a_read_ends(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, 0);
	pthread_t thread;
	char text[8];

	(void)state;
	pthread_create(&thread, NULL, shutdown_later_thread, &fd);
	assert_int_equal(do_recv(fd, text, 8, 0), 0);
	pthread_join(thread, NULL);
	fixture_close_conn_pair(fd, listener, peer);
}

static void test_a_duplicate_keeps_it_open(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK), copy = vma_os.dup(fd);

	(void)state;
	assert_int_equal(CALL(int, vma_fd_install(copy, vma_fd_lookup(fd))), 0);
	do_close(fd);
	fixture_never(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	assert_int_equal(do_send(copy, "x", 1, 0), 1);
	do_close(copy);
	fixture_until(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	fixture_close_conn_pair(-1, listener, peer);
}

static void test_what_a_child_does_with_its_copy_is_no_matter(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK), status;
	char text[8];
	pid_t child;

	(void)state;
	vma_engine_fork_prepare();
	child = fork();
	if (child == 0) {
		ssize_t rc;

		vma_engine_reset_in_fork_child();
		rc = do_send(fd, "no", 2, MSG_NOSIGNAL);

		do_close(fd);
		_exit(rc == -EPIPE ? 7 : 8);
	}
	vma_engine_after_fork_in_parent();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 7);
	fixture_never(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	fixture_peer_send(peer, "still", 5);
	fixture_until(do_poll(fd) & EPOLLIN);
	assert_int_equal(do_recv(fd, text, 8, 0), 5);
	fixture_close_conn_pair(fd, listener, peer);
}

static pid_t fork_child_that_takes_over_socket(int fd)
{
	pid_t child;

	vma_stream_fork_prepare();
	vma_engine_fork_prepare();
	child = fork();
	if (child == 0) {
		vma_engine_reset_in_fork_child();
		vma_stream_reset_in_fork_child();
		vma_enter();
		vma_stream_take_from_fork_owner(vma_fd_lookup(fd));
		_exit(7);
	}
	vma_engine_after_fork_in_parent();
	return child;
}

/* Its last descriptor has gone, but the thread that closes has not come to the hand-over: the child is not told that
 * there will be none. */
static void test_a_child_waits_for_what_its_parent_is_closing(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK), status;
	struct vma_file *file = vma_fd_lookup(fd);
	uint32_t slots = atomic_exchange(&file->slots, VMA_FILE_ENDED);
	pid_t child = fork_child_that_takes_over_socket(fd);

	(void)state;
	fixture_never(waitpid(child, &status, WNOHANG) == child);
	stream_mark_hand_over_begin(stream_sock(file));
	stream_mark_hand_over_end(stream_sock(file), -EPERM);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 7);
	atomic_store(&file->slots, slots);
	fixture_close_conn_pair(fd, listener, peer);
}

/* Whether a child that has the connection finds the hand-over of a file noted. */
static bool forked_child_sees_hand_over_in_progress(int fd, uint64_t id)
{
	int status;
	pid_t child;

	vma_stream_fork_prepare();
	vma_engine_fork_prepare();
	child = fork();
	if (child == 0) {
		vma_engine_reset_in_fork_child();
		/* The page is the first field of struct stream_fork_owner. */
		_exit(fork_rpc_hand_over_in_progress(
		              *(struct fork_rpc_page **)stream_sock(vma_fd_lookup(fd))->fork_owner, id)
		              ? 7
		              : 8);
	}
	vma_engine_after_fork_in_parent();
	assert_int_equal(waitpid(child, &status, 0), child);
	return WEXITSTATUS(status) == 7;
}

/*
 * The process's first fork finds a hand-over under way: its child is not to use a socket that is half told of. The
 * end of that hand-over leaves the note of another one. The first of the tests: before it, nothing has forked.
 */
static void test_a_child_sees_a_hand_over_that_began_before_the_first_fork(void **state)
{
	static struct stream_sock other = {.file.id = UINT64_MAX};
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	struct stream_sock *sock = stream_sock(vma_fd_lookup(fd));

	(void)state;
	stream_mark_hand_over_begin(sock);
	assert_true(forked_child_sees_hand_over_in_progress(fd, sock->file.id));
	stream_mark_hand_over_begin(&other);
	stream_mark_hand_over_end(sock, -ENOTCONN);
	assert_true(forked_child_sees_hand_over_in_progress(fd, other.file.id));
	assert_false(forked_child_sees_hand_over_in_progress(fd, sock->file.id));
	stream_mark_hand_over_end(&other, -ENOTCONN);
	assert_false(forked_child_sees_hand_over_in_progress(fd, other.file.id));
	fixture_close_conn_pair(fd, listener, peer);
}

/*
 * An accepted connection's shadow is first looked at when the process forks. Another thread may have the socket's lock
 * for long, if it has lost its processor; yet the hand-over that follows knows the shadow.
 */
static void test_a_fork_knows_the_shadow_of_a_socket_whose_lock_is_taken(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	struct stream_sock *sock = stream_sock(vma_fd_lookup(fd));

	(void)state;
	atomic_store(&sock->cookie, 0); /* as accept leaves it */
	pthread_mutex_lock(&sock->file.lock);
	vma_stream_fork_prepare();
	pthread_mutex_unlock(&sock->file.lock);
	assert_true(atomic_load(&sock->forked));
	assert_true(stream_fd_is_own_shadow(sock, fd));
	fixture_close_conn_pair(fd, listener, peer);
}

static void test_at_exit_what_was_sent_arrives(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	static char bytes[60000];
	size_t got = 0;

	(void)state;
	assert_true(do_send(fd, bytes, 16000, 0) == 16000);
	fixture_peer_thread_start();
	vma_stream_close_and_flush_at_exit();
	fixture_peer_thread_stop();
	assert_true(peer_has_events(peer, VMA_TCP_PEER_CLOSED));
	got = fixture_peer_recv(peer, bytes, sizeof(bytes));
	assert_int_equal(got, 16000);
	fixture_close_conn_pair(fd, listener, peer);
}

struct writer {
	int fd;
	_Atomic size_t written;
};

/* Small pieces, until there is no writing any more. */
static void *write_until_epipe_thread(void *arg)
{
	struct writer *writer = arg;
	ssize_t n;

	while ((n = do_send(writer->fd, "0123456789", 10, MSG_NOSIGNAL)) > 0 || n == -EAGAIN)
		atomic_fetch_add(&writer->written, n > 0 ? (size_t)n : 0);
	assert_int_equal(n, -EPIPE);
	return NULL;
}

static void test_shut_while_another_thread_writes_all_that_was_written_arrives(void **state)
{
	static char bytes[65536];

	(void)state;
	for (int i = 0; i < 100; i++) {
		struct vma_tcp_listener *listener;
		struct fixture_conn *peer;
		struct writer writer = {.fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK)};
		size_t got = 0;
		pthread_t thread;

		pthread_create(&thread, NULL, write_until_epipe_thread, &writer);
		for (int turn = i % 16 + 1; turn > 0 || atomic_load(&writer.written) == 0; turn--) {
			fixture_progress_all_rings();
			got += fixture_peer_recv(peer, bytes, sizeof(bytes));
		}
		assert_int_equal(do_shutdown(writer.fd, SHUT_WR), 0);
		pthread_join(thread, NULL);
		fixture_until((got += fixture_peer_recv(peer, bytes, sizeof(bytes)), vma_tcp_rx_eof(peer->conn)));
		assert_int_equal(got, atomic_load(&writer.written));
		fixture_close_conn_pair(writer.fd, listener, peer);
	}
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_sees_a_hand_over_that_began_before_the_first_fork),
        cmocka_unit_test(test_a_fork_knows_the_shadow_of_a_socket_whose_lock_is_taken),
        cmocka_unit_test(test_close_delivers_and_says_the_end),
        cmocka_unit_test(test_close_with_unread_bytes_resets),
        cmocka_unit_test(test_linger_zero_resets),
        cmocka_unit_test(test_linger_waits_until_all_is_acknowledged),
        cmocka_unit_test(test_linger_waits_no_longer_than_it_is_told),
        cmocka_unit_test(test_cancelled_in_its_linger_a_close_goes_on_in_the_background),
        cmocka_unit_test(test_half_closed_it_reads_on),
        cmocka_unit_test(test_shut_for_reading_it_says_the_end),
        cmocka_unit_test(test_closed_by_another_thread_a_read_goes_on),
        cmocka_unit_test(test_a_call_that_finds_it_closed_is_ebadf),
        cmocka_unit_test(test_a_send_that_waits_for_its_turn_is_not_cancelled_there),
        cmocka_unit_test(test_closed_by_another_thread_a_send_goes_first_or_not_at_all),
        cmocka_unit_test(test_shut_by_another_thread_a_read_ends),
        cmocka_unit_test(test_shut_while_another_thread_writes_all_that_was_written_arrives),
        cmocka_unit_test(test_a_duplicate_keeps_it_open),
        cmocka_unit_test(test_what_a_child_does_with_its_copy_is_no_matter),
        cmocka_unit_test(test_a_child_waits_for_what_its_parent_is_closing),
        cmocka_unit_test(test_at_exit_what_was_sent_arrives),
};
FIXTURE_MAIN("close", tests)
