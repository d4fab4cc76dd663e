/*
 * Sockets of several threads connect, talk, and end in all the ways there are, while others poll them, set their
 * options, shut and disconnect them under their feet: every byte that is answered is right, and in the end nothing is
 * left.
 * alone: what is lost while a core is away comes again by timers, and the end does not wait that long
 */
#include "fixture.h"

#include <linux/sockios.h>
#include <stdlib.h>

enum { WORKERS = 3, SHARERS = 2, PORT = 7400, OWN_PORT = 7401, SHARED_PORT = 7402, CALLS = 48 };

static _Atomic bool stop;
static _Atomic unsigned long rounds, served, shared, echoed;
static _Atomic int shared_fd = -1, attempt_fd = -1;

/* ---- the peer: echoes, calls in, resets now and then. One thread. ---- */

struct echo {
	struct vma_tcp_conn *conn;
	_Atomic uint32_t events;
	struct echo *next;
	bool calls; /* it has called in */
};
static struct echo *echoes;
static struct echo *_Atomic fresh_echoes;
static uint32_t peer_random_seed = 12345;

static uint32_t stream_random(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

static void on_echo_event(struct vma_tcp_conn *conn, void *arg, uint32_t events)
{
	(void)conn;
	atomic_fetch_or(&((struct echo *)arg)->events, events);
}
static const struct vma_tcp_conn_ops echo_owner = {.event = on_echo_event};

/* In the thread that drives the peer's ring, which is the only one that looks at the list. */
static bool on_echo_accepted(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	struct echo *echo = calloc(1, sizeof(*echo));

	(void)listener, (void)arg;
	echo->conn = conn;
	echo->next = atomic_load(&fresh_echoes);
	atomic_store(&fresh_echoes, echo);
	vma_tcp_conn_set_owner_and_replay_events(conn, &echo_owner, echo);
	return true;
}
static const struct vma_tcp_listener_ops echo_listener = {.admit = fixture_peer_admits_always,
                                                          .accepted = on_echo_accepted};

static void stream_echo_bytes(struct echo *echo)
{
	struct iovec from[4], to[4];
	unsigned n = vma_tcp_peek_rx_spans(echo->conn, 0, from, 1);
	int m = n > 0 ? vma_tcp_tx_reserve(echo->conn, from[0].iov_len, to, 1) : 0;

	if (m <= 0)
		return;
	if (to[0].iov_len > from[0].iov_len)
		to[0].iov_len = from[0].iov_len;
	memcpy(to[0].iov_base, from[0].iov_base, to[0].iov_len);
	vma_tcp_tx_commit(echo->conn, to[0].iov_len, 0);
	vma_tcp_rx_consume(echo->conn, to[0].iov_len);
}

/* True: it has ended. */
static bool echo_or_close_conn(struct echo *echo, bool all)
{
	uint32_t events = atomic_load(&echo->events);

	stream_echo_bytes(echo);
	if (!all && stream_random(&peer_random_seed) % 4096 != 0 && !(events & (VMA_TCP_FAILED | VMA_TCP_CLOSED)) &&
	    !(events & VMA_TCP_PEER_CLOSED && vma_tcp_readable_bytes(echo->conn) == 0))
		return false;
	vma_tcp_close(echo->conn, stream_random(&peer_random_seed) % 8 == 0);
	vma_tcp_conn_drop_owner_and_abort(echo->conn);
	vma_tcp_conn_put(echo->conn);
	return true;
}

static void peer_echo_on_all_conns(bool all)
{
	struct echo *fresh = atomic_exchange(&fresh_echoes, NULL), **place = &echoes, *next;

	for (; fresh != NULL; fresh = next) {
		next = fresh->next;
		fresh->next = echoes;
		echoes = fresh;
	}
	while (*place != NULL) {
		struct echo *echo = *place;

		if (!echo_or_close_conn(echo, all)) {
			place = &echo->next;
			continue;
		}
		*place = echo->next;
		free(echo);
	}
}

/* Calls a listener of the sockets'. */
static void peer_connects_to_listener(uint16_t port, uint16_t to)
{
	struct echo *echo = calloc(1, sizeof(*echo));
	struct vma_tcp_options options;
	struct vma_tcp_conn_attr attr = {.owner = &echo_owner,
	                                 .arg = echo,
	                                 .options = &options,
	                                 .family = AF_INET,
	                                 .local_port_be = htons(port),
	                                 .peer_port_be = htons(to)};
	uint32_t local = fixture_ipv4_from_text(FIXTURE_PEER), other = fixture_ipv4_from_text(FIXTURE_LOCAL);

	vma_tcp_options_init(&options);
	memcpy(attr.local, &local, 4);
	memcpy(attr.peer, &other, 4);
	fixture_fill_peer_path_headers(&attr.path);
	if (vma_tcp_connect(fixture.peer, &attr, &echo->conn) != 0) {
		free(echo);
		return;
	}
	echo->next = echoes;
	echoes = echo;
}

static void *peer_echo_and_connect_thread(void *arg)
{
	uint16_t port = 20000;
	unsigned n = 0;

	(void)arg;
	while (!atomic_load(&stop)) {
		fixture_peer_ring_progress();
		peer_echo_on_all_conns(false);
		if (++n % 64 == 0) {
			peer_connects_to_listener(port, OWN_PORT);
			peer_connects_to_listener(port, SHARED_PORT);
			port = port < 60000 ? port + 1 : 20000;
		}
		usleep(20);
	}
	return NULL;
}

/* ---- the sockets ---- */

/* Sends, reads back, compares as far as the connection lives. False: the answer may go on, or will not come. */
static bool echo_exchange(int fd, uint32_t *seed)
{
	uint8_t out[600], in[600];
	size_t size = stream_random(seed) % sizeof(out) + 1, got = 0;
	ssize_t rc;

	for (size_t i = 0; i < size; i++)
		out[i] = (uint8_t)stream_random(seed);
	rc = do_send(fd, out, size, MSG_NOSIGNAL);
	if (rc != (ssize_t)size)
		return false;
	while (got < size && (rc = do_recv(fd, in + got, size - got, 0)) > 0)
		got += (size_t)rc;
	assert_memory_equal(in, out, got);
	atomic_fetch_add(&echoed, got);
	return got == size;
}

static void end_socket_randomly(int fd, uint32_t *seed)
{
	switch (stream_random(seed) % 4) {
	case 0:
		do_shutdown(fd, SHUT_WR);
		break;
	case 1:
		do_shutdown(fd, SHUT_RDWR);
		break;
	case 2: {
		struct linger linger = {.l_onoff = 1, .l_linger = 0};

		CALL(int, stream_setsockopt(vma_fd_lookup(fd), fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
		break;
	}
	default:
		break;
	}
	do_close(fd);
}

static void *connect_and_echo_until_stop_thread(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg * 7919 + 1;
	struct timeval timeout = {.tv_sec = 1};

	while (!atomic_load(&stop)) {
		int fd = fixture_stream_socket(0);

		CALL(int, stream_setsockopt(vma_fd_lookup(fd), fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)));
		atomic_store(&attempt_fd, fd);
		if (do_connect(fd, FIXTURE_PEER, PORT) == 0) {
			atomic_store(&shared_fd, fd);
			for (unsigned i = stream_random(&seed) % 4; i > 0 && echo_exchange(fd, &seed);)
				i--;
			atomic_store(&shared_fd, -1);
		}
		atomic_store(&attempt_fd, -1);
		end_socket_randomly(fd, &seed);
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

/* Looks at whatever socket another thread uses at the moment, which may be closed meanwhile. */
static void *query_shared_socket_thread(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		int fd = atomic_load(&shared_fd);
		struct vma_thread *self = vma_enter();
		struct vma_file *file = fd >= 0 ? vma_fd_lookup(fd) : NULL;

		if (file != NULL && file->kind == VMA_FILE_TCP) {
			struct tcp_info info;
			socklen_t len = sizeof(info);

			stream_poll(file);
			stream_getsockopt(file, fd, IPPROTO_TCP, TCP_INFO, &info, &len);
			file->ops->net_changed(file);
		}
		vma_leave(self);
		usleep(100);
	}
	return NULL;
}

static void recv_peek_nonblocking(struct vma_file *file, int fd)
{
	uint8_t bytes[64];
	struct iovec iov = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	stream_recvmsg(file, fd, &msg, MSG_PEEK | MSG_DONTWAIT);
}

static void query_socket_names(struct vma_file *file, int fd)
{
	struct sockaddr_in name;
	socklen_t len = sizeof(name);
	int bytes;

	stream_ioctl(file, fd, FIONREAD, &bytes);
	stream_ioctl(file, fd, SIOCOUTQ, &bytes);
	stream_getsockname(file, fd, (struct sockaddr *)&name, &len);
	len = sizeof(name);
	stream_getpeername(file, fd, (struct sockaddr *)&name, &len);
	len = sizeof(bytes);
	stream_getsockopt(file, fd, SOL_SOCKET, SO_ERROR, &bytes, &len);
}

static void set_some_options(struct vma_file *file, int fd, int value)
{
	stream_setsockopt(file, fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof(value));
	stream_setsockopt(file, fd, IPPROTO_TCP, TCP_CORK, &value, sizeof(value));
	stream_setsockopt(file, fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof(value));
	value = 20000 << value;
	stream_setsockopt(file, fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value));
	stream_setsockopt(file, fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof(value));
}

/* Ends it, while its owner is in the middle of a call; seldom, so that there is something to end. */
static void end_socket_during_call(struct vma_file *file, int fd, uint32_t *seed)
{
	const struct sockaddr none = {.sa_family = AF_UNSPEC};

	switch (stream_random(seed) % 24) {
	case 0:
		stream_shutdown(file, fd, SHUT_RD);
		break;
	case 1:
		stream_shutdown(file, fd, SHUT_WR);
		break;
	case 2:
		stream_shutdown(file, fd, SHUT_RDWR);
		break;
	case 3:
		stream_connect(file, fd, &none, sizeof(none));
		break;
	default:
		break;
	}
}

/* Does with it what its owner does not expect. */
static void *disturb_sockets_of_others_thread(void *arg)
{
	uint32_t seed = 4711;

	(void)arg;
	while (!atomic_load(&stop)) {
		int fd = atomic_load(&attempt_fd);
		struct vma_thread *self = vma_enter();
		struct vma_file *file = fd >= 0 ? vma_fd_lookup(fd) : NULL;

		if (file != NULL && file->kind == VMA_FILE_TCP) {
			recv_peek_nonblocking(file, fd);
			query_socket_names(file, fd);
			set_some_options(file, fd, stream_random(&seed) % 2);
			end_socket_during_call(file, fd, &seed);
		}
		vma_leave(self);
		usleep(stream_random(&seed) % 200);
	}
	return NULL;
}

static void *accept_and_end_conns_thread(void *arg)
{
	int listener = *(int *)arg, child;
	uint32_t seed = 99;

	while ((child = do_accept(listener, NULL, 0)) >= 0) {
		atomic_fetch_add(&served, 1);
		if (stream_random(&seed) % 2 == 0)
			do_send(child, "hello", 5, MSG_NOSIGNAL | MSG_DONTWAIT);
		end_socket_randomly(child, &seed);
	}
	return NULL;
}

/* Listeners that share a port come and go; what waits in their queues is accepted, or goes with them. */
static void *open_and_close_listeners_thread(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg;

	while (!atomic_load(&stop)) {
		int fd = fixture_stream_socket(SOCK_NONBLOCK), child;

		assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR, 1), 0);
		assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_REUSEPORT, 1), 0);
		assert_int_equal(do_bind(fd, FIXTURE_LOCAL, SHARED_PORT), 0);
		assert_int_equal(do_listen(fd, 4), 0);
		for (unsigned i = stream_random(&seed) % 4; i > 0; i--) {
			usleep(stream_random(&seed) % 4000);
			child = do_accept(fd, NULL, 0);
			if (child >= 0) {
				atomic_fetch_add(&shared, 1);
				end_socket_randomly(child, &seed);
			}
		}
		if (stream_random(&seed) % 4 == 0)
			do_shutdown(fd, SHUT_RDWR);
		do_close(fd);
	}
	return NULL;
}

static struct vma_tcp_listener *open_peer_echo_listener(void)
{
	struct vma_tcp_options options;
	struct vma_tcp_listen_attr attr = {
	        .owner = &echo_listener,
	        .options = &options,
	        .family = AF_INET,
	        .local_port_be = htons(PORT),
	        .backlog = 4096}; /* attempts that were given up: no kernel refuses the answer */
	struct vma_tcp_listener *listener;
	uint32_t local = fixture_ipv4_from_text(FIXTURE_PEER);

	vma_tcp_options_init(&options);
	memcpy(attr.local, &local, 4);
	assert_int_equal(vma_tcp_listen(fixture.peer, &attr, &listener), 0);
	return listener;
}

static bool stress_has_covered_all_kinds(void)
{
	return atomic_load(&rounds) > 10 && atomic_load(&served) > 10 && atomic_load(&shared) > 1 &&
	       atomic_load(&echoed) > 100;
}

static void test_sockets_that_end_in_all_ways_leave_nothing_behind(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	uint64_t until;
	pthread_t peer, looker, meddler, server, worker[WORKERS], sharer[SHARERS];
	struct vma_tcp_listener *listener = open_peer_echo_listener();
	int fd = fixture_stream_socket(0);

	(void)state;
	assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR, 1), 0);
	assert_int_equal(do_bind(fd, FIXTURE_LOCAL, OWN_PORT), 0);
	assert_int_equal(do_listen(fd, CALLS), 0);
	pthread_create(&peer, NULL, peer_echo_and_connect_thread, NULL);
	pthread_create(&looker, NULL, query_shared_socket_thread, NULL);
	pthread_create(&meddler, NULL, disturb_sockets_of_others_thread, NULL);
	pthread_create(&server, NULL, accept_and_end_conns_thread, &fd);
	for (uintptr_t i = 0; i < WORKERS; i++)
		pthread_create(&worker[i], NULL, connect_and_echo_until_stop_thread, (void *)i);
	for (uintptr_t i = 0; i < SHARERS; i++)
		pthread_create(&sharer[i], NULL, open_and_close_listeners_thread, (void *)i);
	until = vma_now_ns() + (seconds != NULL ? (uint64_t)atoi(seconds) : 2) * 1000000000;
	while (vma_test_goes_on(vma_now_ns(), until, stress_has_covered_all_kinds()))
		usleep(1000);
	do_shutdown(fd, SHUT_RDWR);
	pthread_join(server, NULL);
	do_close(fd);
	atomic_store(&stop, true);
	pthread_join(looker, NULL);
	pthread_join(meddler, NULL);
	for (unsigned i = 0; i < SHARERS; i++)
		pthread_join(sharer[i], NULL);
	fixture_peer_thread_start(); /* somebody has to answer those who still wait */
	for (unsigned i = 0; i < WORKERS; i++)
		pthread_join(worker[i], NULL);
	fixture_peer_thread_stop();
	pthread_join(peer, NULL);
	peer_echo_on_all_conns(true);
	vma_tcp_listener_close(listener);
	/* What was lost while a core was away comes again by timers, which have doubled by now. */
	fixture_wait_for_no_connections_within(UINT64_C(60000000000));
	print_message("# %lu rounds, %lu served, %lu by sharers, %lu bytes echoed\n", rounds, served, shared, echoed);
	assert_true(stress_has_covered_all_kinds());
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sockets_that_end_in_all_ways_leave_nothing_behind),
};
FIXTURE_MAIN("stress", tests)
