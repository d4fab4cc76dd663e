/*
 * Sockets that are read without copying, closed and made anew, while another thread gives their pieces back through
 * whatever socket has the number by then. The peer sends, and looks that no held byte changes. STRESS_SECONDS.
 */
#include "fixture.h"

#include <fcntl.h>

enum { PARKED = 512, BYTES = 60000 };

static struct parked_piece {
	struct vma_buf *buf;
	const uint8_t *data;
	uint64_t number;
	uint32_t len, at;
	int fd;
} parked[PARKED];
static unsigned parked_count;
static pthread_mutex_t parked_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool stress_ends;
static uint8_t sent_bytes[BYTES], read_bytes[BYTES];

struct stress_reader {
	int fd;
	uint32_t at;
};

static void stress_check_piece_data(const struct parked_piece *p)
{
	if (memcmp(p->data, sent_bytes + p->at, p->len) != 0)
		abort();
}

static void check_and_return_held_piece(const struct parked_piece *p)
{
	struct vma_thread *self = vma_enter();
	struct vma_file *file = vma_fd_lookup(p->fd);

	stress_check_piece_data(p);
	vma_buf_put(vma_engine_get_or_start()->arena, p->buf);
	if (file != NULL)
		vma_stream_return_held_zcopy_bytes(file, p->number, p->len, 1);
	else
		vma_tcp_held_bytes_returned(NULL, vma_tcp_memory_of_process(), p->number, p->len, 1);
	vma_leave(self);
}

static int hold_piece_of_zcopy_recv(void *arg, uint64_t number, struct vma_buf *buf, uint32_t off, uint32_t len)
{
	struct stress_reader *reader = arg;
	struct parked_piece p = {.buf = buf,
	                         .data = (uint8_t *)vma_buf_data(vma_engine_get_or_start()->arena, buf) + off,
	                         .number = number,
	                         .len = len,
	                         .at = reader->at,
	                         .fd = reader->fd};
	bool full;

	pthread_mutex_lock(&parked_lock);
	full = parked_count == PARKED;
	if (!full) {
		vma_buf_ref(buf);
		parked[parked_count++] = p;
	}
	pthread_mutex_unlock(&parked_lock);
	if (full)
		return 1;
	reader->at += len;
	return 0;
}

static bool stress_return_random_held_piece(uint32_t random)
{
	struct parked_piece p;

	pthread_mutex_lock(&parked_lock);
	if (parked_count == 0) {
		pthread_mutex_unlock(&parked_lock);
		return false;
	}
	random %= parked_count;
	p = parked[random];
	parked[random] = parked[--parked_count];
	pthread_mutex_unlock(&parked_lock);
	check_and_return_held_piece(&p);
	return true;
}

static void *stress_return_held_packets_thread(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg;

	while (!atomic_load(&stress_ends)) {
		seed = seed * 1664525 + 1013904223;
		if (seed >> 30 == 0 || !stress_return_random_held_piece(seed >> 8))
			sched_yield();
	}
	return NULL;
}

/* The peer sends, if it has room, and the reader takes or copies what is there. False: it has not all yet. */
static bool stress_send_and_read_zcopy_piece(struct stress_reader *reader, struct fixture_conn *peer, uint32_t *sent)
{
	const struct vma_stream_zcopy_taker taker = {.take = hold_piece_of_zcopy_recv, .arg = reader};
	struct fixture_message m = {.iov = {.iov_base = read_bytes, .iov_len = 100}};
	const uint32_t from = reader->at;
	struct iovec span;
	bool taken;
	ssize_t rc;

	if (*sent < BYTES && vma_tcp_tx_space(peer->conn) >= 2000 && vma_tcp_tx_reserve(peer->conn, 1, &span, 1) == 1) {
		fixture_peer_send(peer, sent_bytes + *sent, 1000);
		*sent += 1000;
	}
	m.msg.msg_iov = &m.iov;
	m.msg.msg_iovlen = 1;
	rc = CALL(ssize_t,
	          vma_stream_recv_zcopy_pieces(vma_fd_lookup(reader->fd), reader->fd, &m.msg, 0, &taker, &taken));
	if (rc > 0 && !taken) {
		assert_memory_equal(read_bytes, sent_bytes + from, (size_t)rc);
		reader->at += (uint32_t)rc;
	}
	assert_true(rc > 0 || rc == -EAGAIN);
	return false;
}

/* One socket's life: it reads some of what comes, perhaps not all. */
static void stress_read_some_of_one_conn_and_close(struct vma_tcp_listener *listener, uint32_t round)
{
	struct stress_reader reader = {.fd = fixture_stream_socket(SOCK_NONBLOCK)};
	const unsigned before = atomic_load(&fixture.n_accepted) % FIXTURE_CONNS;
	const uint32_t most = 1 + round * 7919 % BYTES;
	struct fixture_conn *peer = &fixture.accepted[before];
	uint32_t sent = 0;

	(void)listener;
	assert_int_equal(do_connect(reader.fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	fixture_until(atomic_load(&fixture.n_accepted) > before && do_poll(reader.fd) & EPOLLOUT);
	assert_int_equal(do_connect(reader.fd, FIXTURE_PEER, 7000), 0);
	fixture_until(reader.at >= most || stress_send_and_read_zcopy_piece(&reader, peer, &sent));
	do_close(reader.fd);
	fixture_peer_reset_and_free_conn(peer);
	if (before == FIXTURE_CONNS - 2)
		fixture_wait_until_no_connections();
}

static void test_pieces_come_back_while_sockets_come_and_go(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	uint64_t end_ns = vma_now_ns() + (uint64_t)((seconds != NULL ? atof(seconds) : 1.5) * 1e9);
	struct vma_tcp_listener *listener = fixture_peer_listen(7000);
	pthread_t threads[2];
	uint32_t round = 0;

	(void)state;
	for (uint32_t i = 0; i < BYTES; i++)
		sent_bytes[i] = (uint8_t)(i * 7 + i / 251);
	for (uintptr_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, stress_return_held_packets_thread, (void *)(i + 1)),
		                 0);
	do
		stress_read_some_of_one_conn_and_close(listener, ++round);
	while (vma_now_ns() < end_ns || round < 3);
	atomic_store(&stress_ends, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	while (stress_return_random_held_piece(0))
		;
	print_message("%u sockets\n", round);
	vma_tcp_listener_close(listener);
	fixture_wait_until_no_connections();
	fixture_until(({
		vma_run_due_deferred_frees(); /* connections that were closed with frames unread */
		atomic_load(&vma_tcp_memory_of_process()->frames) == 0;
	}));
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces_come_back_while_sockets_come_and_go)};

FIXTURE_MAIN("stress_zcopy", tests)
