/* Bytes both ways. */
#include "fixture.h"
#include "../../sock/test/internal_thread.h"

#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <sys/mman.h>
#include <sys/time.h>

static uint8_t out[262144], in[262144];

static void data_fill_with_pattern(uint8_t *to, size_t size)
{
	for (size_t i = 0; i < size; i++)
		to[i] = (uint8_t)(i * 7 + i / 251);
}

struct pair {
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd;
};

static struct pair open_conn_pair(int flags)
{
	struct pair p;

	p.fd = fixture_open_conn_pair(&p.listener, &p.peer, flags);
	return p;
}

static void close_conn_pair(struct pair *p)
{
	fixture_close_conn_pair(p->fd, p->listener, p->peer);
}

static size_t queued(int fd)
{
	return (size_t)vma_tcp_readable_bytes(stream_tcp_conn(fixture_sock_of(fd)));
}

static void test_bytes_come_in_order_whatever_the_pieces(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	size_t done = 0;

	(void)state;
	data_fill_with_pattern(out, 10000);
	fixture_peer_send(p.peer, out, 10000);
	for (size_t piece = 1; done < 10000; piece = piece * 3 % 977 + 1) {
		size_t want = piece < 10000 - done ? piece : 10000 - done;

		fixture_until(queued(p.fd) >= want);
		assert_int_equal(do_recv(p.fd, in + done, want, 0), want);
		done += want;
	}
	assert_memory_equal(in, out, 10000);
	assert_int_equal(do_recv(p.fd, in, 1, 0), -EAGAIN);
	close_conn_pair(&p);
}

static void test_what_is_sent_arrives(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	size_t sent = 0, got = 0;
	uint64_t end_ns = vma_now_ns() + FIXTURE_TIMEOUT_NS;

	(void)state;
	data_fill_with_pattern(out, sizeof(out));
	while (got < sizeof(out) && vma_now_ns() < end_ns) {
		ssize_t rc = sent < sizeof(out) ? do_send(p.fd, out + sent, sizeof(out) - sent, 0) : 0;

		assert_true(rc >= 0 || rc == -EAGAIN);
		sent += rc > 0 ? (size_t)rc : 0;
		fixture_progress_all_rings();
		got += fixture_peer_recv(p.peer, in + got, sizeof(in) - got);
	}
	assert_int_equal(got, sizeof(out));
	assert_memory_equal(in, out, sizeof(out));
	close_conn_pair(&p);
}

static void test_peeking_takes_nothing(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5);
	assert_int_equal(do_recv(p.fd, in, 3, MSG_PEEK), 3);
	assert_int_equal(do_recv(p.fd, in, 100, MSG_PEEK), 5);
	assert_memory_equal(in, "hello", 5);
	assert_int_equal(do_recv(p.fd, in, 100, 0), 5);
	assert_int_equal(do_recv(p.fd, in, 100, MSG_PEEK), -EAGAIN);
	close_conn_pair(&p);
}

static void test_trunc_throws_away(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5);
	memset(in, 'x', 5);
	assert_int_equal(do_recv(p.fd, in, 4, MSG_TRUNC), 4);
	assert_memory_equal(in, "xxxx", 4);
	assert_int_equal(do_recv(p.fd, in, 4, 0), 1);
	assert_int_equal(in[0], 'o');
	close_conn_pair(&p);
}

static void *peer_send_later_thread(void *arg)
{
	usleep(50000);
	fixture_peer_send(arg, "world", 5);
	return NULL;
}

static void test_a_blocking_read_waits_and_waitall_for_all(void **state)
{
	struct pair p = open_conn_pair(0);
	pthread_t thread;

	(void)state;
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5);
	pthread_create(&thread, NULL, peer_send_later_thread, p.peer);
	fixture_peer_thread_start();
	assert_int_equal(do_recv(p.fd, in, 10, MSG_WAITALL), 10);
	assert_memory_equal(in, "helloworld", 10);
	fixture_peer_thread_stop();
	pthread_join(thread, NULL);
	close_conn_pair(&p);
}

/* The last byte and the end come together, at any moment of the read: it has all of them. */
static void *peer_send_rest_and_fin_thread(void *arg)
{
	struct fixture_conn *peer = arg;

	fixture_peer_send(peer, "el", 2);
	fixture_peer_send(peer, "lo", 2);
	vma_tcp_shutdown(peer->conn, SHUT_WR);
	for (int i = 0; i < 50; i++)
		fixture_progress_all_rings();
	return NULL;
}

static void test_waitall_has_the_bytes_that_came_with_the_end(void **state)
{
	(void)state;
	for (int i = 0; i < 300; i++) {
		struct pair p = open_conn_pair(0);
		pthread_t thread;

		fixture_peer_send(p.peer, "h", 1);
		pthread_create(&thread, NULL, peer_send_rest_and_fin_thread, p.peer);
		assert_int_equal(do_recv(p.fd, in, 5, MSG_WAITALL), 5);
		assert_memory_equal(in, "hello", 5);
		pthread_join(thread, NULL);
		close_conn_pair(&p);
	}
}

static void test_a_timeout_ends_a_read_with_what_there_is(void **state)
{
	struct pair p = open_conn_pair(0);
	struct timeval timeout = {.tv_usec = 20000};

	(void)state;
	assert_int_equal(CALL(int, stream_setsockopt(vma_fd_lookup(p.fd), p.fd, SOL_SOCKET, SO_RCVTIMEO, &timeout,
	                                             sizeof(timeout))),
	                 0);
	assert_int_equal(do_recv(p.fd, in, 10, 0), -EAGAIN);
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5);
	assert_int_equal(do_recv(p.fd, in, 10, MSG_WAITALL), 5);
	close_conn_pair(&p);
}

static void test_rcvlowat_is_what_readable_means(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_RCVLOWAT, 6), 0);
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5);
	assert_false(do_poll(p.fd) & EPOLLIN);
	fixture_peer_send(p.peer, "!", 1);
	fixture_until(do_poll(p.fd) & EPOLLIN);
	assert_int_equal(do_recv(p.fd, in, 10, 0), 6);
	close_conn_pair(&p);
}

static void test_the_end_comes_after_the_bytes(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	fixture_peer_send(p.peer, "bye", 3);
	vma_tcp_shutdown(p.peer->conn, SHUT_WR);
	fixture_until(do_poll(p.fd) & EPOLLRDHUP);
	assert_int_equal(do_recv(p.fd, in, 10, 0), 3);
	assert_int_equal(do_recv(p.fd, in, 10, 0), 0);
	assert_int_equal(do_recv(p.fd, in, 10, 0), 0);
	assert_int_equal(do_send(p.fd, "x", 1, 0), 1);
	close_conn_pair(&p);
}

static void test_a_reset_is_told_once_and_after_what_is_queued(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	fixture_peer_send(p.peer, "bye", 3);
	fixture_until(queued(p.fd) == 3);
	vma_tcp_close(p.peer->conn, true);
	fixture_until(do_poll(p.fd) & EPOLLHUP);
	assert_true(do_poll(p.fd) & EPOLLERR);
	assert_int_equal(do_recv(p.fd, in, 10, 0), 3);
	assert_int_equal(do_recv(p.fd, in, 10, 0), -ECONNRESET);
	assert_false(do_poll(p.fd) & EPOLLERR);
	assert_int_equal(do_recv(p.fd, in, 10, 0), 0);
	assert_int_equal(do_send(p.fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	close_conn_pair(&p);
}

static volatile sig_atomic_t pipes;

static void count_sigpipe(int sig)
{
	(void)sig;
	pipes++;
}

static void test_a_write_after_the_end_raises_sigpipe(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	struct sigaction action = {.sa_handler = count_sigpipe}, before;

	(void)state;
	vma_sigaction(SIGPIPE, &action, &before);
	assert_int_equal(do_shutdown(p.fd, SHUT_WR), 0);
	assert_int_equal(do_send(p.fd, "x", 1, MSG_NOSIGNAL), -EPIPE);
	assert_int_equal(pipes, 0);
	assert_int_equal(do_send(p.fd, "x", 1, 0), -EPIPE);
	assert_int_equal(pipes, 1);
	vma_sigaction(SIGPIPE, &before, NULL);
	close_conn_pair(&p);
}

static void test_a_full_buffer_is_eagain_and_then_there_is_room(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	size_t sent = 0, got = 0;
	ssize_t rc;
	uint64_t end_ns = vma_now_ns() + FIXTURE_TIMEOUT_NS;

	(void)state;
	data_fill_with_pattern(out, sizeof(out));
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_SNDBUF, 20000), 0);
	while ((rc = do_send(p.fd, out, sizeof(out), 0)) > 0) {
		sent += (size_t)rc;
		fixture_progress_all_rings();
		assert_true(vma_now_ns() < end_ns);
	}
	assert_int_equal(rc, -EAGAIN);
	assert_false(do_poll(p.fd) & EPOLLOUT);
	while (got < sent && vma_now_ns() < end_ns) {
		got += fixture_peer_recv(p.peer, in, sizeof(in));
		fixture_progress_all_rings();
	}
	assert_int_equal(got, sent);
	fixture_until(do_poll(p.fd) & EPOLLOUT);
	close_conn_pair(&p);
}

static void *peer_read_all_thread(void *arg)
{
	struct pair *p = arg;
	size_t got = 0;
	uint64_t end_ns = vma_now_ns() + FIXTURE_TIMEOUT_NS;

	while (got < sizeof(out) && vma_now_ns() < end_ns) {
		got += fixture_peer_recv(p->peer, in + got, sizeof(in) - got);
		usleep(100);
	}
	return (void *)got;
}

static void test_a_blocking_write_sends_everything(void **state)
{
	struct pair p = open_conn_pair(0);
	pthread_t thread;
	void *got;

	(void)state;
	data_fill_with_pattern(out, sizeof(out));
	memset(in, 0, sizeof(in));
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_SNDBUF, 20000), 0);
	fixture_peer_thread_start();
	pthread_create(&thread, NULL, peer_read_all_thread, &p);
	assert_int_equal(do_send(p.fd, out, sizeof(out), 0), sizeof(out));
	pthread_join(thread, &got);
	fixture_peer_thread_stop();
	assert_int_equal((size_t)got, sizeof(out));
	assert_memory_equal(in, out, sizeof(out));
	close_conn_pair(&p);
}

/* How much a socket takes that nobody reads from: the peer's ring is not driven. */
static size_t bytes_accepted_until_full(void)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	size_t sent = 0;
	ssize_t rc;

	while ((rc = do_send(p.fd, out, sizeof(out), 0)) > 0)
		sent += (size_t)rc;
	assert_int_equal(rc, -EAGAIN);
	close_conn_pair(&p);
	return sent;
}

static void test_the_send_buffer_is_as_large_as_the_environment_says(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	size_t usual = bytes_accepted_until_full(), small, large;

	(void)state;
	conf->given[VMA_CONF_AT_tcp_send_buffer_size] = true;
	conf->tcp_send_buffer_size = 5000;
	small = bytes_accepted_until_full();
	conf->tcp_send_buffer_size = 1000000;
	large = bytes_accepted_until_full();
	conf->given[VMA_CONF_AT_tcp_send_buffer_size] = false;
	assert_in_range(small, 5000, 9999);
	assert_in_range(large, 1000000, 1100000);
	assert_true(small < usual && usual < large);
}

/* What has come of the peer's before a send, and is queued after it. */
static size_t rx_bytes_queued_after_send(void)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	size_t found;

	hold_internal_thread();
	fixture_peer_send(p.peer, "hello", 5);
	assert_int_equal(do_send(p.fd, "x", 1, 0), 1);
	found = queued(p.fd);
	release_internal_thread();
	close_conn_pair(&p);
	return found;
}

static void test_a_send_looks_for_what_has_come_if_the_environment_says_so(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;

	(void)state;
	conf->rx_poll_on_tx_tcp = true;
	assert_int_equal(rx_bytes_queued_after_send(), 5);
	conf->rx_poll_on_tx_tcp = false;
	assert_int_equal(rx_bytes_queued_after_send(), 0);
}

static struct {
	int (*setsockopt)(int fd, int level, int name, const void *value, socklen_t len);
	int (*getsockopt)(int fd, int level, int name, void *value, socklen_t *len);
	unsigned calls;
	bool refuses; /* for want of a privilege */
} os_options;

static int count_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	os_options.calls++;
	if (os_options.refuses) {
		errno = EPERM;
		return -1;
	}
	return os_options.setsockopt(fd, level, name, value, len);
}

static int count_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	os_options.calls++;
	return os_options.getsockopt(fd, level, name, value, len);
}

static void hook_os_sockopt_calls_to_count(bool on)
{
	if (on) {
		os_options.setsockopt = vma_os.setsockopt;
		os_options.getsockopt = vma_os.getsockopt;
	}
	os_options.calls = 0;
	vma_os.setsockopt = on ? count_setsockopt : os_options.setsockopt;
	vma_os.getsockopt = on ? count_getsockopt : os_options.getsockopt;
}

static int current_sockopt_int(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	assert_int_equal(CALL(int, stream_getsockopt(vma_fd_lookup(fd), fd, level, name, &value, &len)), 0);
	return value;
}

static int shadow_sockopt_int(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	assert_int_equal(vma_os.getsockopt(fd, level, name, &value, &len), 0);
	return value;
}

static void test_options_of_a_connection_do_without_the_kernel_if_the_environment_says_so(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	unsigned calls;

	(void)state;
	hook_os_sockopt_calls_to_count(true);
	assert_int_equal(fixture_setsockopt_int(p.fd, IPPROTO_TCP, TCP_KEEPIDLE, 77), 0);
	assert_int_equal(current_sockopt_int(p.fd, IPPROTO_TCP, TCP_KEEPIDLE), 77);
	assert_true(os_options.calls >= 2);
	conf->avoid_sys_calls_on_tcp_fd = true;
	os_options.calls = 0;
	assert_int_equal(fixture_setsockopt_int(p.fd, IPPROTO_TCP, TCP_NODELAY, 7), 0);
	assert_int_equal(fixture_setsockopt_int(p.fd, IPPROTO_TCP, TCP_KEEPIDLE, 78), 0);
	assert_int_equal(fixture_setsockopt_int(p.fd, IPPROTO_TCP, TCP_KEEPIDLE, 32768), -EINVAL);
	assert_int_equal(current_sockopt_int(p.fd, IPPROTO_TCP, TCP_NODELAY), 1);
	assert_int_equal(current_sockopt_int(p.fd, IPPROTO_TCP, TCP_KEEPIDLE), 78);
	calls = os_options.calls;
	hook_os_sockopt_calls_to_count(false);
	assert_int_equal(calls, 0);
	assert_int_equal(vma_tcp_get_option(stream_tcp_conn(fixture_sock_of(p.fd)), VMA_TCP_OPT_NODELAY), 1);
	assert_int_equal(vma_tcp_get_option(stream_tcp_conn(fixture_sock_of(p.fd)), VMA_TCP_OPT_KEEPIDLE), 78);
	assert_int_equal(shadow_sockopt_int(p.fd, IPPROTO_TCP, TCP_KEEPIDLE), 77);
	current_sockopt_int(p.fd, IPPROTO_TCP, TCP_SYNCNT); /* another one, so the shadow gets them */
	assert_int_equal(shadow_sockopt_int(p.fd, IPPROTO_TCP, TCP_KEEPIDLE), 78);
	assert_int_equal(shadow_sockopt_int(p.fd, IPPROTO_TCP, TCP_NODELAY), 1);
	conf->avoid_sys_calls_on_tcp_fd = false;
	close_conn_pair(&p);
}

static void test_privileged_options_are_allowed_if_the_environment_says_so(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	struct vma_tcp_info info;

	(void)state;
	hook_os_sockopt_calls_to_count(true);
	os_options.refuses = true;
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_RCVBUFFORCE, 3000000),
	                 -EPERM); /* whatever the field's default is */
	conf->given[VMA_CONF_AT_allow_privileged_sock_opt] = true;
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_RCVBUFFORCE, 3000000), 0);
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_MARK, 9), 0);
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_DEBUG, 1), -EPERM);
	conf->allow_privileged_sock_opt = false;
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_MARK, 10), -EPERM);
	os_options.refuses = false;
	hook_os_sockopt_calls_to_count(false);
	conf->allow_privileged_sock_opt = true;
	conf->given[VMA_CONF_AT_allow_privileged_sock_opt] = false;
	fixture_progress_all_rings();
	vma_tcp_info(stream_tcp_conn(fixture_sock_of(p.fd)), &info);
	assert_int_equal(info.kernel.tcpi_rcv_ssthresh, 3000000);
	assert_int_equal(fixture_sock_of(p.fd)->mark, 9);
	close_conn_pair(&p);
}

/* Five bytes are queued, five more have come, and a receive takes the first: what is queued then. */
static size_t rx_bytes_queued_after_recv_of_first_five(bool has_looked_before)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	size_t found;

	if (has_looked_before)
		assert_int_equal(do_recv(p.fd, in, 5, 0), -EAGAIN);
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5);
	hold_internal_thread();
	fixture_peer_send(p.peer, "world", 5);
	fixture_peer_ring_progress();
	assert_int_equal(do_recv(p.fd, in, 5, 0), 5);
	found = queued(p.fd);
	release_internal_thread();
	close_conn_pair(&p);
	return found;
}

static void test_a_receive_with_data_looks_as_often_as_the_environment_says(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;

	(void)state;
	conf->rx_cq_drain_rate_nsec = 1;
	assert_int_equal(rx_bytes_queued_after_recv_of_first_five(false), 5);
	conf->rx_cq_drain_rate_nsec = 0;
	assert_int_equal(rx_bytes_queued_after_recv_of_first_five(false), 0);
	conf->rx_cq_drain_rate_nsec = 1000000000;
	assert_int_equal(rx_bytes_queued_after_recv_of_first_five(true), 0);
	conf->rx_cq_drain_rate_nsec = 0;
}

static void watcher_ignore_ready(struct vma_watcher *watcher, uint32_t events)
{
	(void)watcher, (void)events;
}

static void watcher_ignore_rings(struct vma_watcher *watcher, uint64_t rings)
{
	(void)watcher, (void)rings;
}

static void watcher_ignore_close(struct vma_watcher *watcher, int fd)
{
	(void)watcher, (void)fd;
}

static void watcher_ignore_shadow(struct vma_watcher *watcher)
{
	(void)watcher;
}

/* Whether one of twenty receives leaves what has come where it is. */
static bool recv_skips_ring_poll_sometimes(bool in_a_set)
{
	struct vma_watcher watcher = {.ready = watcher_ignore_ready,
	                              .rings = watcher_ignore_rings,
	                              .closed = watcher_ignore_close,
	                              .shadow = watcher_ignore_shadow};
	bool blind = false;

	for (int i = 0; i < 20 && !blind; i++) {
		struct pair p = open_conn_pair(SOCK_NONBLOCK);
		struct vma_file *file = &fixture_sock_of(p.fd)->file;

		if (in_a_set)
			assert_int_equal(CALL(int, vma_file_watch(file, &watcher)), 0);
		fixture_peer_send(p.peer, "hello", 5);
		fixture_peer_ring_progress();
		blind = do_recv(p.fd, in, 5, 0) == -EAGAIN;
		if (in_a_set)
			CALL(int, (vma_file_unwatch(file, &watcher), 0));
		close_conn_pair(&p);
	}
	return blind;
}

static void test_a_receive_is_blind_if_the_environment_says_so(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	struct pair p;
	pthread_t thread;

	(void)state;
	assert_false(recv_skips_ring_poll_sometimes(true));
	conf->skip_poll_in_rx = VMA_SKIP_POLL_IN_EPOLL;
	assert_false(recv_skips_ring_poll_sometimes(false));
	assert_true(recv_skips_ring_poll_sometimes(true));
	conf->skip_poll_in_rx = VMA_SKIP_POLL_ALWAYS;
	assert_true(recv_skips_ring_poll_sometimes(false));
	/* One that waits is not. */
	p = open_conn_pair(0);
	pthread_create(&thread, NULL, peer_send_later_thread, p.peer);
	fixture_peer_thread_start();
	assert_int_equal(do_recv(p.fd, in, 5, MSG_WAITALL), 5);
	fixture_peer_thread_stop();
	pthread_join(thread, NULL);
	close_conn_pair(&p);
	conf->skip_poll_in_rx = VMA_SKIP_POLL_NEVER;
}

static void test_a_receive_buffer_is_no_smaller_than_the_environment_says(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	struct vma_tcp_info info;
	struct pair p;

	(void)state;
	for (int given = 0; given < 2; given++) {
		conf->given[VMA_CONF_AT_rx_bytes_min] = given != 0;
		p = open_conn_pair(SOCK_NONBLOCK);
		assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_RCVBUF, 4000), 0);
		fixture_progress_all_rings();
		vma_tcp_info(stream_tcp_conn(fixture_sock_of(p.fd)), &info);
		assert_int_equal(info.kernel.tcpi_rcv_ssthresh, given ? conf->rx_bytes_min : 4000);
		close_conn_pair(&p);
	}
	conf->given[VMA_CONF_AT_rx_bytes_min] = false;
}

static void test_bad_pointers_are_faults_and_cost_no_byte(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	uint8_t *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	fixture_restore_fault_handlers();
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5);
	assert_int_equal(do_recv(p.fd, page, 10, 0), -EFAULT);
	assert_int_equal(do_recv(p.fd, (void *)-4096L, 10, 0), -EFAULT);
	assert_int_equal(do_recv(p.fd, in, 10, 0), 5);
	assert_int_equal(do_send(p.fd, page, 10, 0), -EFAULT);
	assert_int_equal(do_send(p.fd, "x", 1, 0), 1);
	fixture_until(vma_tcp_readable_bytes(p.peer->conn) == 1);
	munmap(page, 4096);
	close_conn_pair(&p);
}

static void test_several_pieces_are_one_stream(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	struct iovec pieces[3] = {{"ab", 2}, {NULL, 0}, {"cde", 3}}, into[2] = {{in, 1}, {in + 1, 10}};
	struct msghdr msg = {.msg_iov = pieces, .msg_iovlen = 3};

	(void)state;
	assert_int_equal(CALL(ssize_t, stream_sendmsg(vma_fd_lookup(p.fd), p.fd, &msg, 0)), 5);
	fixture_until(vma_tcp_readable_bytes(p.peer->conn) == 5);
	assert_int_equal(fixture_peer_recv(p.peer, in, 10), 5);
	assert_memory_equal(in, "abcde", 5);
	fixture_peer_send(p.peer, "12345", 5);
	fixture_until(queued(p.fd) == 5);
	msg = (struct msghdr){.msg_iov = into, .msg_iovlen = 2};
	assert_int_equal(CALL(ssize_t, stream_recvmsg(vma_fd_lookup(p.fd), p.fd, &msg, 0)), 5);
	assert_memory_equal(in, "12345", 5);
	close_conn_pair(&p);
}

static int ioctl_get_int(int fd, unsigned long request)
{
	int value = -1;

	assert_int_equal(CALL(int, stream_ioctl(vma_fd_lookup(fd), fd, request, &value)), 0);
	return value;
}

static void test_queues_tell_their_sizes(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5);
	assert_int_equal(ioctl_get_int(p.fd, FIONREAD), 5);
	assert_int_equal(do_send(p.fd, "abc", 3, 0), 3);
	assert_int_equal(ioctl_get_int(p.fd, SIOCOUTQ), 3);
	fixture_until(ioctl_get_int(p.fd, SIOCOUTQ) == 0);
	close_conn_pair(&p);
}

static void test_a_file_s_bytes_are_sent(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	int file = memfd_create("bytes", 0);

	(void)state;
	data_fill_with_pattern(out, 5000);
	assert_int_equal(write(file, out, 5000), 5000);
	assert_int_equal(CALL(ssize_t, vma_stream_sendfile(vma_fd_lookup(p.fd), file, 1000, 100000, 0)), 4000);
	fixture_until(vma_tcp_readable_bytes(p.peer->conn) == 4000);
	assert_int_equal(fixture_peer_recv(p.peer, in, sizeof(in)), 4000);
	assert_memory_equal(in, out + 1000, 4000);
	assert_int_equal(CALL(ssize_t, vma_stream_sendfile(vma_fd_lookup(p.fd), file, 5000, 10, 0)), 0);
	vma_os.close(file);
	close_conn_pair(&p);
}

static void test_a_pipe_s_bytes_are_sent_as_far_as_it_has_any(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	int ends[2];

	(void)state;
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(CALL(ssize_t, vma_stream_sendfile(vma_fd_lookup(p.fd), ends[0], -1, 10, 0)), -EAGAIN);
	assert_int_equal(write(ends[1], "abc", 3), 3);
	assert_int_equal(CALL(ssize_t, vma_stream_sendfile(vma_fd_lookup(p.fd), ends[0], -1, 10, 0)), 3);
	fixture_until(vma_tcp_readable_bytes(p.peer->conn) == 3);
	vma_os.close(ends[0]);
	vma_os.close(ends[1]);
	close_conn_pair(&p);
}

static void test_zero_copy_sends_are_answered(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	uint8_t control[128];
	struct msghdr msg = {.msg_control = control, .msg_controllen = sizeof(control)};
	struct sock_extended_err error;

	(void)state;
	assert_int_equal(fixture_setsockopt_int(p.fd, SOL_SOCKET, SO_ZEROCOPY, 1), 0);
	assert_int_equal(do_send(p.fd, "a", 1, MSG_ZEROCOPY), 1);
	assert_int_equal(do_send(p.fd, "b", 1, MSG_ZEROCOPY), 1);
	assert_true(do_poll(p.fd) & EPOLLERR);
	assert_int_equal(CALL(ssize_t, stream_recvmsg(vma_fd_lookup(p.fd), p.fd, &msg, MSG_ERRQUEUE)), 0);
	assert_int_equal(CMSG_FIRSTHDR(&msg)->cmsg_type, IP_RECVERR);
	memcpy(&error, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(error));
	assert_int_equal(error.ee_origin, SO_EE_ORIGIN_ZEROCOPY);
	assert_int_equal(error.ee_info, 0);
	assert_int_equal(error.ee_data, 1);
	assert_false(do_poll(p.fd) & EPOLLERR);
	msg.msg_controllen = sizeof(control);
	assert_int_equal(CALL(ssize_t, stream_recvmsg(vma_fd_lookup(p.fd), p.fd, &msg, MSG_ERRQUEUE)), -EAGAIN);
	close_conn_pair(&p);
}

static void test_an_urgent_byte_ends_a_read_and_is_read_by_itself(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	struct iovec span;

	(void)state;
	fixture_peer_send(p.peer, "abc", 3);
	assert_int_equal(vma_tcp_tx_reserve(p.peer->conn, 1, &span, 1), 1);
	*(char *)span.iov_base = 'X';
	vma_tcp_tx_commit(p.peer->conn, 1, VMA_TCP_TX_URGENT);
	fixture_peer_send(p.peer, "def", 3);
	fixture_until(do_poll(p.fd) & EPOLLPRI &&
	              vma_tcp_bytes_before_urgent_mark(stream_tcp_conn(fixture_sock_of(p.fd))) == 3);
	fixture_progress_all_rings();
	assert_int_equal(do_recv(p.fd, in, 10, 0), 3);
	assert_int_equal(ioctl_get_int(p.fd, SIOCATMARK), 1);
	assert_int_equal(do_recv(p.fd, in, 1, MSG_OOB), 1);
	assert_int_equal(in[0], 'X');
	assert_int_equal(do_recv(p.fd, in, 1, MSG_OOB), -EINVAL);
	fixture_until(queued(p.fd) == 3);
	assert_int_equal(do_recv(p.fd, in, 10, 0), 3);
	assert_memory_equal(in, "def", 3);
	close_conn_pair(&p);
}

static volatile sig_atomic_t sigio_count;

static void count_sigio(int sig)
{
	(void)sig;
	sigio_count++;
}

static void test_o_async_signals_what_comes(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	struct sigaction action = {.sa_handler = count_sigio}, before;
	struct vma_file *file = vma_fd_lookup(p.fd);

	(void)state;
	vma_sigaction(SIGIO, &action, &before);
	assert_int_equal(CALL(int, stream_fcntl(file, p.fd, F_SETOWN, (void *)(long)getpid())), 0);
	assert_int_equal(CALL(int, stream_fcntl(file, p.fd, F_SETFL, (void *)(long)(O_NONBLOCK | O_ASYNC))), 0);
	assert_int_equal(sigio_count, 0);
	fixture_peer_send(p.peer, "hello", 5);
	fixture_until(queued(p.fd) == 5 && sigio_count > 0);
	CALL(int, stream_fcntl(file, p.fd, F_SETFL, (void *)(long)O_NONBLOCK));
	vma_sigaction(SIGIO, &before, NULL);
	close_conn_pair(&p);
}

enum { READERS = 3, NUMBERS = 20000 };
static _Atomic uint8_t seen[NUMBERS];

static void *recv_numbers_and_count_thread(void *arg)
{
	int fd = *(int *)arg;
	uint32_t number;

	while (do_recv(fd, &number, sizeof(number), MSG_WAITALL) == sizeof(number)) {
		assert_true(number < NUMBERS);
		atomic_fetch_add(&seen[number], 1);
	}
	return NULL;
}

static void test_several_readers_get_every_byte_once(void **state)
{
	struct pair p = open_conn_pair(0);
	pthread_t thread[READERS];
	uint32_t sent = 0;

	(void)state;
	fixture_peer_thread_start();
	for (unsigned i = 0; i < READERS; i++)
		pthread_create(&thread[i], NULL, recv_numbers_and_count_thread, &p.fd);
	while (sent < NUMBERS) {
		if (vma_tcp_tx_space(p.peer->conn) < sizeof(sent)) {
			usleep(100);
			continue;
		}
		fixture_peer_send(p.peer, &sent, sizeof(sent));
		sent++;
	}
	vma_tcp_shutdown(p.peer->conn, SHUT_WR);
	for (unsigned i = 0; i < READERS; i++)
		pthread_join(thread[i], NULL);
	fixture_peer_thread_stop();
	for (unsigned i = 0; i < NUMBERS; i++)
		assert_int_equal(atomic_load(&seen[i]), 1);
	close_conn_pair(&p);
}

/* ---- batched sends ---- */

static uint64_t tcp_segments_sent_by_stack_of_pair(const struct pair *p)
{
	struct vma_tcp_counts counts;

	vma_tcp_read_counters(vma_tcp_conn_current_stack(stream_tcp_conn(fixture_sock_of(p->fd))), &counts);
	return counts.segments_out;
}

static bool peer_has_received_bytes(struct pair *p, size_t size)
{
	fixture_peer_ring_progress();
	return vma_tcp_readable_bytes(p->peer->conn) == size;
}

/* Of a thread that has n descriptors ready, and whose 20 us are not over however slow the machine is. */
static void send_into_tx_batch(struct pair *p, const char *text, int n)
{
	vma_thread_set_tx_batch(vma_thread_self(), n);
	assert_int_equal(do_send(p->fd, text, strlen(text), 0), strlen(text));
	vma_thread_self()->tx_batched_tsc = vma_tsc() + vma_tsc_of_nsec(1000000000);
}

static void test_answers_to_several_leave_as_a_batch(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	uint64_t before;

	(void)state;
	hold_internal_thread();
	before = tcp_segments_sent_by_stack_of_pair(&p);
	send_into_tx_batch(&p, "header", 2);
	assert_int_equal(do_send(p.fd, "body", 4, 0), 4);
	assert_int_equal(tcp_segments_sent_by_stack_of_pair(&p), before);
	assert_int_equal(do_recv(p.fd, in, 1, 0), -EAGAIN); /* the next call that is no send */
	assert_int_equal(tcp_segments_sent_by_stack_of_pair(&p), before + 1);
	fixture_until(peer_has_received_bytes(&p, 10));
	assert_int_equal(fixture_peer_recv(p.peer, in, 10), 10);
	assert_memory_equal(in, "headerbody", 10);
	release_internal_thread();
	close_conn_pair(&p);
}

static void test_what_has_come_already_is_read_before_they_leave(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	uint64_t before;

	(void)state;
	hold_internal_thread();
	fixture_peer_send(p.peer, out, 300);
	fixture_until(queued(p.fd) == 300);
	before = tcp_segments_sent_by_stack_of_pair(&p);
	send_into_tx_batch(&p, "answer", 2);
	assert_int_equal(do_recv(p.fd, in, 1, 0), 1);
	assert_int_equal(tcp_segments_sent_by_stack_of_pair(&p), before);
	vma_thread_self()->tx_batched_tsc = vma_tsc() - vma_tsc_of_nsec(20000); /* long enough */
	assert_int_equal(do_recv(p.fd, in, 1, 0), 1);
	assert_int_equal(tcp_segments_sent_by_stack_of_pair(&p), before + 1);
	release_internal_thread();
	close_conn_pair(&p);
}

static void test_eight_sends_are_a_full_batch(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	uint64_t before;

	(void)state;
	hold_internal_thread();
	before = tcp_segments_sent_by_stack_of_pair(&p);
	send_into_tx_batch(&p, "x", 100);
	for (int i = 1; i < 7; i++)
		assert_int_equal(do_send(p.fd, "x", 1, 0), 1);
	assert_int_equal(tcp_segments_sent_by_stack_of_pair(&p), before);
	assert_int_equal(do_send(p.fd, "x", 1, 0), 1);
	assert_int_equal(tcp_segments_sent_by_stack_of_pair(&p), before + 1);
	fixture_until(peer_has_received_bytes(&p, 8));
	assert_int_equal(fixture_peer_recv(p.peer, in, 8), 8);
	release_internal_thread();
	close_conn_pair(&p);
}

/*
 * Who finds at once what it wants, call after call, still looks in at its rings now and then: see
 * vma_ring_ctxs_drive_overdue.
 */
static void test_calls_that_need_no_look_take_one_when_the_last_is_a_while_ago(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	struct vma_thread *self = vma_thread_self();
	_Atomic uint64_t *driven = &vma_ring_ctxs[0]->driven;
	bool spared = false;
	uint64_t before;

	(void)state;
	fixture_peer_send(p.peer, out, 300);
	fixture_until(queued(p.fd) == 300);
	hold_internal_thread();
	vma_thread_set_tx_batch(self, 0);
	self->overdue_rings = 1;
	/* Not a while ago, unless this thread has lost its core since: then it looks, and that is right. */
	for (int i = 0; i < 100 && !spared; i++) {
		self->overdue_tsc = vma_tsc();
		before = atomic_load(driven);
		assert_int_equal(do_recv(p.fd, in, 1, 0), 1);
		spared = atomic_load(driven) == before;
	}
	assert_true(spared);
	self->overdue_tsc = 0;
	assert_int_equal(do_recv(p.fd, in, 1, 0), 1);
	assert_true(atomic_load(driven) > before);
	before = atomic_load(driven);
	self->overdue_tsc = 0;
	assert_int_equal(do_send(p.fd, "x", 1, 0), 1);
	assert_true(atomic_load(driven) > before);
	self->overdue_rings = 0;
	release_internal_thread();
	fixture_until(peer_has_received_bytes(&p, 1));
	close_conn_pair(&p);
}

static uint64_t tx_unsent_bytes(const struct pair *p)
{
	return vma_tcp_tx_unsent(stream_tcp_conn(fixture_sock_of(p->fd)));
}

/* Sends `before` bytes, told of `ready` ones, and whether one more was seen to have left when its send returned. */
static bool byte_leaves_at_once(const struct pair *p, int ready, int before, size_t *sent)
{
	bool left;

	vma_thread_set_tx_batch(vma_thread_self(), ready);
	for (int i = 0; i < before; i++)
		assert_int_equal(do_send(p->fd, "x", 1, 0), 1);
	assert_int_equal(do_send(p->fd, "x", 1, 0), 1);
	*sent += (size_t)before + 1;
	left = tx_unsent_bytes(p) == 0;
	fixture_until(tx_unsent_bytes(p) == 0);
	return left;
}

static void test_an_answer_to_one_leaves_at_once(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);
	size_t sent = 0;

	(void)state;
	assert_int_equal(fixture_setsockopt_int(p.fd, IPPROTO_TCP, TCP_NODELAY, 1), 0);
	hold_internal_thread();
	assert_true(byte_leaves_at_once(&p, 1, 0, &sent));
	/* So does what a thread sends long after it was told of two. */
	assert_true(byte_leaves_at_once(&p, 2, 8, &sent));
	release_internal_thread();
	fixture_until(peer_has_received_bytes(&p, sent));
	close_conn_pair(&p);
}

/* ... by the internal thread. */
static void test_who_sends_and_then_computes_is_not_forgotten(void **state)
{
	struct pair p = open_conn_pair(SOCK_NONBLOCK);

	(void)state;
	vma_thread_set_tx_batch(vma_thread_self(), 2);
	assert_int_equal(do_send(p.fd, "x", 1, 0), 1);
	for (uint64_t end_ns = vma_now_ns() + FIXTURE_TIMEOUT_NS;
	     !peer_has_received_bytes(&p, 1) && vma_now_ns() < end_ns;)
		;
	assert_true(peer_has_received_bytes(&p, 1));
	close_conn_pair(&p);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_in_order_whatever_the_pieces),
        cmocka_unit_test(test_what_is_sent_arrives),
        cmocka_unit_test(test_the_send_buffer_is_as_large_as_the_environment_says),
        cmocka_unit_test(test_a_send_looks_for_what_has_come_if_the_environment_says_so),
        cmocka_unit_test(test_options_of_a_connection_do_without_the_kernel_if_the_environment_says_so),
        cmocka_unit_test(test_privileged_options_are_allowed_if_the_environment_says_so),
        cmocka_unit_test(test_a_receive_with_data_looks_as_often_as_the_environment_says),
        cmocka_unit_test(test_a_receive_is_blind_if_the_environment_says_so),
        cmocka_unit_test(test_a_receive_buffer_is_no_smaller_than_the_environment_says),
        cmocka_unit_test(test_peeking_takes_nothing),
        cmocka_unit_test(test_trunc_throws_away),
        cmocka_unit_test(test_a_blocking_read_waits_and_waitall_for_all),
        cmocka_unit_test(test_waitall_has_the_bytes_that_came_with_the_end),
        cmocka_unit_test(test_a_timeout_ends_a_read_with_what_there_is),
        cmocka_unit_test(test_rcvlowat_is_what_readable_means),
        cmocka_unit_test(test_the_end_comes_after_the_bytes),
        cmocka_unit_test(test_a_reset_is_told_once_and_after_what_is_queued),
        cmocka_unit_test(test_a_write_after_the_end_raises_sigpipe),
        cmocka_unit_test(test_a_full_buffer_is_eagain_and_then_there_is_room),
        cmocka_unit_test(test_a_blocking_write_sends_everything),
        cmocka_unit_test(test_bad_pointers_are_faults_and_cost_no_byte),
        cmocka_unit_test(test_several_pieces_are_one_stream),
        cmocka_unit_test(test_queues_tell_their_sizes),
        cmocka_unit_test(test_a_file_s_bytes_are_sent),
        cmocka_unit_test(test_a_pipe_s_bytes_are_sent_as_far_as_it_has_any),
        cmocka_unit_test(test_zero_copy_sends_are_answered),
        cmocka_unit_test(test_an_urgent_byte_ends_a_read_and_is_read_by_itself),
        cmocka_unit_test(test_o_async_signals_what_comes),
        cmocka_unit_test(test_several_readers_get_every_byte_once),
        cmocka_unit_test(test_answers_to_several_leave_as_a_batch),
        cmocka_unit_test(test_what_has_come_already_is_read_before_they_leave),
        cmocka_unit_test(test_eight_sends_are_a_full_batch),
        cmocka_unit_test(test_calls_that_need_no_look_take_one_when_the_last_is_a_while_ago),
        cmocka_unit_test(test_an_answer_to_one_leaves_at_once),
        cmocka_unit_test(test_who_sends_and_then_computes_is_not_forgotten),
};
FIXTURE_MAIN("data", tests)
