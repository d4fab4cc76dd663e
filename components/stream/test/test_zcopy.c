/* Receive without copying, and owners that inspect what comes, through descriptors. */
#include "fixture.h"
#include "../../sock/test/internal_thread.h"

#include <fcntl.h>
#include <sys/time.h>

static uint8_t out[262144], in[262144];

/* What the test holds of sockets' pieces. */
enum { HELD = 256 };
static struct {
	struct vma_buf *buf;
	const uint8_t *data;
	uint64_t number;
	uint32_t len;
} held[HELD];
static _Atomic unsigned held_count;
static unsigned room; /* pieces that are taken at most */

static int zcopy_hold_piece_if_room(void *arg, uint64_t number, struct vma_buf *buf, uint32_t off, uint32_t len)
{
	(void)arg;
	if (room == 0)
		return 1;
	room--;
	vma_buf_ref(buf);
	held[held_count].buf = buf;
	held[held_count].data = (uint8_t *)vma_buf_data(vma_engine_get_or_start()->arena, buf) + off;
	held[held_count].number = number;
	held[held_count++].len = len;
	return 0;
}
static const struct vma_stream_zcopy_taker zcopy_taker = {.take = zcopy_hold_piece_if_room};

/* Through number fd, whatever socket it is. */
static void zcopy_give_back(int fd, unsigned i)
{
	struct vma_thread *self = vma_enter();

	vma_buf_put(vma_engine_get_or_start()->arena, held[i].buf);
	vma_stream_return_held_zcopy_bytes(vma_fd_lookup(fd), held[i].number, held[i].len, 1);
	vma_leave(self);
	held[i] = held[--held_count];
}

static void zcopy_give_back_all(int fd)
{
	while (held_count > 0)
		zcopy_give_back(fd, held_count - 1);
}

static ssize_t do_recv_zcopy_pieces(int fd, size_t size, int flags, bool *taken)
{
	struct fixture_message m = {.iov = {.iov_base = in, .iov_len = size}};

	m.msg.msg_iov = &m.iov;
	m.msg.msg_iovlen = 1;
	return CALL(ssize_t, vma_stream_recv_zcopy_pieces(vma_fd_lookup(fd), fd, &m.msg, flags, &zcopy_taker, taken));
}

static void zcopy_fill_out_with_pattern(void)
{
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (uint8_t)(i * 7 + i / 251);
}

static void check_held_zcopy_data(size_t from)
{
	for (unsigned i = 0; i < held_count; i++) {
		assert_memory_equal(held[i].data, out + from, held[i].len);
		from += held[i].len;
	}
}

struct zcopy_conn_pair {
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd;
};

static struct zcopy_conn_pair zcopy_open_conn_pair(int flags)
{
	struct zcopy_conn_pair p;

	zcopy_fill_out_with_pattern();
	room = HELD;
	p.fd = fixture_open_conn_pair(&p.listener, &p.peer, flags);
	return p;
}

static void zcopy_close_conn_pair(struct zcopy_conn_pair *p)
{
	fixture_close_conn_pair(p->fd, p->listener, p->peer);
}

static size_t zcopy_rx_queued_bytes(int fd)
{
	return (size_t)vma_tcp_readable_bytes(stream_tcp_conn(fixture_sock_of(fd)));
}

static int64_t frames_kept(void)
{
	return atomic_load(&vma_tcp_memory_of_process()->frames);
}

/* The first call makes the connection keep its frames. */
static void zcopy_make_conn_keep_frames(int fd)
{
	bool taken;

	assert_int_equal(do_recv_zcopy_pieces(fd, sizeof(in), 0, &taken), -EAGAIN);
	assert_false(taken);
	fixture_progress_all_rings();
}

static void test_pieces_are_taken_where_they_lie(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	bool taken;

	(void)state;
	zcopy_make_conn_keep_frames(p.fd);
	fixture_peer_send(p.peer, out, 4000);
	fixture_until(zcopy_rx_queued_bytes(p.fd) == 4000);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 4000);
	assert_true(taken);
	check_held_zcopy_data(0);
	assert_int_equal(frames_kept(), held_count);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), -EAGAIN);
	zcopy_give_back_all(p.fd);
	assert_int_equal(frames_kept(), 0);
	zcopy_close_conn_pair(&p);
}

static void test_bytes_of_before_are_copied(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	bool taken;

	(void)state;
	fixture_peer_send(p.peer, out, 1000);
	fixture_until(zcopy_rx_queued_bytes(p.fd) == 1000);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 1000);
	assert_false(taken);
	assert_memory_equal(in, out, 1000);
	zcopy_close_conn_pair(&p);
}

static void test_taker_without_room_gets_a_copy_or_the_rest_later(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	bool taken;

	(void)state;
	zcopy_make_conn_keep_frames(p.fd);
	fixture_peer_send(p.peer, out, 4000);
	fixture_until(zcopy_rx_queued_bytes(p.fd) == 4000);
	room = 0;
	assert_int_equal(do_recv_zcopy_pieces(p.fd, 100, 0, &taken), 100);
	assert_false(taken);
	assert_memory_equal(in, out, 100);
	room = 1;
	assert_in_range(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 1, 1460);
	assert_true(taken);
	check_held_zcopy_data(100);
	assert_int_equal(do_recv(p.fd, in, sizeof(in), 0), 3900 - held[0].len);
	assert_memory_equal(in, out + 100 + held[0].len, 3900 - held[0].len);
	zcopy_give_back_all(p.fd);
	zcopy_close_conn_pair(&p);
}

static void test_peeking_copies(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	bool taken;

	(void)state;
	zcopy_make_conn_keep_frames(p.fd);
	fixture_peer_send(p.peer, out, 500);
	fixture_until(zcopy_rx_queued_bytes(p.fd) == 500);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), MSG_PEEK, &taken), 500);
	assert_false(taken);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 500);
	assert_true(taken);
	zcopy_give_back_all(p.fd);
	zcopy_close_conn_pair(&p);
}

static void *zcopy_peer_send_late_thread(void *arg)
{
	usleep(20000);
	fixture_peer_send(arg, out, 300);
	return NULL;
}

static void test_blocking_receive_waits_for_pieces(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	pthread_t thread;
	bool taken;

	(void)state;
	zcopy_make_conn_keep_frames(p.fd);
	assert_int_equal(CALL(int, stream_fcntl(vma_fd_lookup(p.fd), p.fd, F_SETFL, NULL)), 0);
	fixture_peer_thread_start();
	assert_int_equal(pthread_create(&thread, NULL, zcopy_peer_send_late_thread, p.peer), 0);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 300);
	assert_true(taken);
	pthread_join(thread, NULL);
	fixture_peer_thread_stop();
	check_held_zcopy_data(0);
	zcopy_give_back_all(p.fd);
	zcopy_close_conn_pair(&p);
}

static void test_end_of_stream_and_errors_are_told_as_by_recv(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	bool taken;

	(void)state;
	zcopy_make_conn_keep_frames(p.fd);
	fixture_peer_send(p.peer, out, 300);
	vma_tcp_shutdown(p.peer->conn, SHUT_WR);
	fixture_until(do_poll(p.fd) & EPOLLRDHUP);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 300);
	assert_true(taken);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 0);
	assert_false(taken);
	zcopy_give_back_all(p.fd);
	fixture_peer_reset_and_free_conn(p.peer);
	fixture_until(do_poll(p.fd) & EPOLLHUP);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 0); /* the end was told: no error follows */
	zcopy_close_conn_pair(&p);
}

static void test_pieces_outlive_the_socket_and_count_in_no_other(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	struct vma_tcp_conn *conn;
	bool taken;
	unsigned before;

	(void)state;
	zcopy_make_conn_keep_frames(p.fd);
	fixture_peer_send(p.peer, out, 4000);
	fixture_until(zcopy_rx_queued_bytes(p.fd) == 4000);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 4000);
	before = held_count;
	zcopy_close_conn_pair(&p);
	check_held_zcopy_data(0);
	assert_int_equal(frames_kept(), before);

	p = zcopy_open_conn_pair(SOCK_NONBLOCK); /* most likely the same number */
	zcopy_make_conn_keep_frames(p.fd);
	fixture_peer_send(p.peer, out, 300);
	fixture_until(zcopy_rx_queued_bytes(p.fd) == 300);
	assert_int_equal(do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken), 300);
	assert_int_not_equal(held[before].number, held[0].number);
	assert_int_equal(CALL(uint64_t, vma_stream_zcopy_number(vma_fd_lookup(p.fd))), held[before].number);
	conn = stream_tcp_conn(fixture_sock_of(p.fd));
	while (before > 0)
		zcopy_give_back(p.fd, --before);
	assert_int_equal(held_count, 1);
	assert_int_equal(frames_kept(), 1);
	(void)conn;
	zcopy_give_back_all(p.fd);
	assert_int_equal(frames_kept(), 0);
	zcopy_close_conn_pair(&p);
}

static void test_window_closes_for_a_holder_and_opens_again(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	const uint64_t end_ns = vma_now_ns() + FIXTURE_TIMEOUT_NS;
	size_t sent = 0, got = 0;
	unsigned turns = 0; /* once much has come */
	bool taken;

	(void)state;
	zcopy_make_conn_keep_frames(p.fd);
	hold_internal_thread(); /* each turn drives both sides */
	while (turns < 1000 && vma_now_ns() < end_ns) {
		struct iovec span;

		if (sent < 250000 && vma_tcp_tx_space(p.peer->conn) > 1000 &&
		    vma_tcp_tx_reserve(p.peer->conn, 1, &span, 1) == 1) {
			fixture_peer_send(p.peer, out + sent, 1000);
			sent += 1000;
		}
		fixture_progress_all_rings();
		if (zcopy_rx_queued_bytes(p.fd) > 0) {
			ssize_t rc = do_recv_zcopy_pieces(p.fd, sizeof(in), 0, &taken);

			assert_true(rc > 0 && taken);
			got += (size_t)rc;
		}
		turns += got > 30000;
	}
	release_internal_thread();
	assert_in_range(got, 30001, 99999); /* the rest is the peer's */
	check_held_zcopy_data(0);
	zcopy_give_back_all(p.fd);
	fixture_until(zcopy_rx_queued_bytes(p.fd) > 0);
	zcopy_close_conn_pair(&p);
}

/* ---- inspection ---- */

static struct {
	enum vma_tcp_inspect_verdict verdict;
	_Atomic unsigned arrived;
	size_t seen;
	int fd, close_fd;
	bool recv_inside;
	ssize_t recv_rc;
} watch;

static void watch_count_arrival(struct vma_file *file)
{
	(void)file;
	atomic_fetch_add(&watch.arrived, 1);
}

static enum vma_tcp_inspect_verdict watch_check_and_return_verdict(struct vma_file *file, struct vma_tcp_conn *conn,
                                                                   const struct vma_tcp_rx_stream_piece *piece)
{
	enum vma_tcp_inspect_verdict verdict = watch.verdict;

	assert_memory_equal(piece->data, out + watch.seen, piece->len);
	watch.seen += piece->len;
	if (watch.close_fd >= 0) {
		const int fd = watch.close_fd;

		watch.close_fd = -1;
		vma_leave(vma_thread_self()); /* as a callback of the application's is run */
		do_close(fd);
		vma_enter();
	}
	if (watch.recv_inside)
		watch.recv_rc = do_recv(watch.fd, in, sizeof(in), MSG_DONTWAIT);
	if (verdict == VMA_TCP_HOLD && piece->buf != NULL) {
		vma_buf_ref(piece->buf);
		held[held_count].buf = piece->buf;
		held[held_count].data = piece->data;
		held[held_count].number = vma_tcp_zcopy_conn_id(conn);
		held[held_count++].len = piece->len;
	}
	(void)file;
	return verdict;
}
static const struct vma_stream_inspector watcher = {.arrived = watch_count_arrival,
                                                    .decide = watch_check_and_return_verdict};

static void watch_install_stream_inspector(int fd, enum vma_tcp_inspect_verdict verdict)
{
	memset(&watch, 0, sizeof(watch));
	watch.verdict = verdict;
	watch.fd = fd;
	watch.close_fd = -1;
	assert_int_equal(CALL(int, vma_stream_set_inspector(vma_fd_lookup(fd), &watcher)), 0);
}

static bool call_vma_stream_inspect(int fd)
{
	struct vma_file *file = vma_fd_lookup(fd);
	bool more;

	vma_file_get(file);
	more = CALL(bool, vma_stream_inspect_received(file, 64));
	vma_file_put(file);
	return more;
}

static void test_socket_is_readable_after_the_verdict(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	watch_install_stream_inspector(p.fd, VMA_TCP_RECV);
	fixture_progress_all_rings();
	fixture_peer_send(p.peer, out, 1000);
	fixture_until(atomic_load(&watch.arrived) != 0);
	assert_false(do_poll(p.fd) & EPOLLIN);
	assert_int_equal(do_recv(p.fd, in, sizeof(in), 0), -EAGAIN);
	call_vma_stream_inspect(p.fd);
	assert_true(do_poll(p.fd) & EPOLLIN);
	assert_int_equal(do_recv(p.fd, in, sizeof(in), 0), 1000);
	assert_memory_equal(in, out, 1000);
	zcopy_close_conn_pair(&p);
}

static void test_inspector_of_before_sees_the_first_byte(void **state)
{
	struct vma_tcp_listener *listener = fixture_peer_listen(7000);
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	unsigned before = atomic_load(&fixture.n_accepted);

	(void)state;
	zcopy_fill_out_with_pattern();
	watch_install_stream_inspector(fd, VMA_TCP_DROP);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	fixture_until(atomic_load(&fixture.n_accepted) > before && do_poll(fd) & EPOLLOUT);
	fixture_peer_send(&fixture.accepted[before], out, 500);
	fixture_until(atomic_load(&watch.arrived) != 0);
	call_vma_stream_inspect(fd);
	assert_int_equal(watch.seen, 500);
	assert_false(do_poll(fd) & EPOLLIN);
	fixture_close_conn_pair(fd, listener, &fixture.accepted[before]);
}

static void test_calls_on_the_socket_work_in_a_verdict(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	watch_install_stream_inspector(p.fd, VMA_TCP_RECV);
	fixture_progress_all_rings();
	watch.recv_inside = true;
	fixture_peer_send(p.peer, out, 100);
	fixture_until(atomic_load(&watch.arrived) != 0);
	call_vma_stream_inspect(p.fd);
	assert_int_equal(watch.recv_rc, -EAGAIN); /* the piece at hand is not queued yet */
	fixture_peer_send(p.peer, out + 100, 100);
	fixture_until(atomic_load(&watch.arrived) > 1);
	call_vma_stream_inspect(p.fd);
	assert_int_equal(watch.recv_rc, 100); /* the one before */
	zcopy_close_conn_pair(&p);
}

static void check_close_in_inspect_callback(enum vma_tcp_inspect_verdict verdict, uint32_t event)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);

	watch_install_stream_inspector(p.fd, verdict);
	fixture_progress_all_rings();
	fixture_peer_send(p.peer, out, 100);
	fixture_until(atomic_load(&watch.arrived) != 0);
	watch.close_fd = p.fd;
	call_vma_stream_inspect(p.fd);
	fixture_until(atomic_load(&p.peer->events) & (VMA_TCP_PEER_CLOSED | VMA_TCP_FAILED));
	fixture_never(false);
	assert_int_equal(atomic_load(&p.peer->events) & (VMA_TCP_PEER_CLOSED | VMA_TCP_FAILED), event);
	p.fd = -1;
	if (held_count > 0) {
		vma_buf_put(vma_engine_get_or_start()->arena, held[0].buf);
		vma_tcp_held_bytes_returned(NULL, vma_tcp_memory_of_process(), held[0].number, held[0].len, 1);
		held_count = 0;
	}
	zcopy_close_conn_pair(&p);
	assert_int_equal(frames_kept(), 0);
}

static void test_close_in_a_verdict_sends_fin_if_the_bytes_were_seen(void **state)
{
	(void)state;
	check_close_in_inspect_callback(VMA_TCP_DROP, VMA_TCP_PEER_CLOSED);
	check_close_in_inspect_callback(VMA_TCP_HOLD, VMA_TCP_PEER_CLOSED);
}

static void test_close_in_a_verdict_sends_rst_if_they_are_left_unread(void **state)
{
	(void)state;
	check_close_in_inspect_callback(VMA_TCP_RECV, VMA_TCP_FAILED);
}

static void test_what_waits_is_received_when_the_inspector_goes(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	watch_install_stream_inspector(p.fd, VMA_TCP_DROP);
	fixture_progress_all_rings();
	fixture_peer_send(p.peer, out, 100);
	fixture_until(atomic_load(&watch.arrived) != 0);
	assert_int_equal(CALL(int, vma_stream_set_inspector(vma_fd_lookup(p.fd), NULL)), 0);
	assert_true(do_poll(p.fd) & EPOLLIN);
	fixture_peer_send(p.peer, out + 100, 100);
	fixture_until(zcopy_rx_queued_bytes(p.fd) == 200);
	assert_int_equal(do_recv(p.fd, in, sizeof(in), 0), 200);
	assert_memory_equal(in, out, 200);
	assert_int_equal(watch.seen, 0);
	zcopy_close_conn_pair(&p);
}

static void test_end_of_stream_comes_after_the_verdict(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	watch_install_stream_inspector(p.fd, VMA_TCP_DROP);
	fixture_progress_all_rings();
	fixture_peer_send(p.peer, out, 100);
	vma_tcp_shutdown(p.peer->conn, SHUT_WR);
	fixture_until(atomic_load(&watch.arrived) != 0);
	fixture_never(do_poll(p.fd) & (EPOLLIN | EPOLLRDHUP));
	call_vma_stream_inspect(p.fd);
	fixture_until(do_poll(p.fd) & EPOLLRDHUP);
	assert_int_equal(do_recv(p.fd, in, sizeof(in), 0), 0);
	zcopy_close_conn_pair(&p);
}

/* Here the kernel has no way to the peer, so the connection stays: with what the kernel would have got. */
static void test_what_waits_is_received_for_the_kernel(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	struct vma_file *file = vma_fd_lookup(p.fd);

	(void)state;
	watch_install_stream_inspector(p.fd, VMA_TCP_DROP);
	fixture_progress_all_rings();
	fixture_peer_send(p.peer, out, 100);
	fixture_until(atomic_load(&watch.arrived) != 0);
	CALL(int, (stream_file_hand_over_to_kernel(file), 0));
	assert_false(file->os_only);
	assert_int_equal(do_recv(p.fd, in, sizeof(in), 0), 100);
	assert_memory_equal(in, out, 100);
	assert_int_equal(watch.seen, 0);
	zcopy_close_conn_pair(&p);
}

static void *inspect_stream_after_delay_thread(void *arg)
{
	const int *fd = arg;

	usleep(20000);
	call_vma_stream_inspect(*fd);
	return NULL;
}

/* This side has ended first, so the peer's FIN is the connection's end: a reader still waits for the verdict. */
static void test_reader_hears_of_the_end_after_the_last_verdict(void **state)
{
	struct zcopy_conn_pair p = zcopy_open_conn_pair(SOCK_NONBLOCK);
	pthread_t thread;

	(void)state;
	watch_install_stream_inspector(p.fd, VMA_TCP_DROP);
	fixture_progress_all_rings();
	assert_int_equal(do_shutdown(p.fd, SHUT_WR), 0);
	fixture_until(atomic_load(&p.peer->events) & VMA_TCP_PEER_CLOSED);
	fixture_peer_send(p.peer, out, 100);
	vma_tcp_shutdown(p.peer->conn, SHUT_WR);
	fixture_until(atomic_load(&watch.arrived) != 0 &&
	              CALL(int, stream_kernel_view_of_state(stream_tcp_conn(fixture_sock_of(p.fd)))) == TCP_CLOSE);
	assert_int_equal(do_recv(p.fd, in, sizeof(in), 0), -EAGAIN);
	assert_int_equal(CALL(int, stream_fcntl(vma_fd_lookup(p.fd), p.fd, F_SETFL, NULL)), 0);
	assert_int_equal(pthread_create(&thread, NULL, inspect_stream_after_delay_thread, &p.fd), 0);
	assert_int_equal(do_recv(p.fd, in, sizeof(in), 0), 0);
	pthread_join(thread, NULL);
	assert_int_equal(watch.seen, 100);
	zcopy_close_conn_pair(&p);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_taken_where_they_lie),
        cmocka_unit_test(test_bytes_of_before_are_copied),
        cmocka_unit_test(test_taker_without_room_gets_a_copy_or_the_rest_later),
        cmocka_unit_test(test_peeking_copies),
        cmocka_unit_test(test_blocking_receive_waits_for_pieces),
        cmocka_unit_test(test_end_of_stream_and_errors_are_told_as_by_recv),
        cmocka_unit_test(test_pieces_outlive_the_socket_and_count_in_no_other),
        cmocka_unit_test(test_window_closes_for_a_holder_and_opens_again),
        cmocka_unit_test(test_socket_is_readable_after_the_verdict),
        cmocka_unit_test(test_inspector_of_before_sees_the_first_byte),
        cmocka_unit_test(test_calls_on_the_socket_work_in_a_verdict),
        cmocka_unit_test(test_close_in_a_verdict_sends_fin_if_the_bytes_were_seen),
        cmocka_unit_test(test_close_in_a_verdict_sends_rst_if_they_are_left_unread),
        cmocka_unit_test(test_what_waits_is_received_when_the_inspector_goes),
        cmocka_unit_test(test_end_of_stream_comes_after_the_verdict),
        cmocka_unit_test(test_what_waits_is_received_for_the_kernel),
        cmocka_unit_test(test_reader_hears_of_the_end_after_the_last_verdict),
};

FIXTURE_MAIN("zcopy", tests)
