/* connect, and what it answers. */
#include "../../rules/test/rules_fixture.h"
#include "fixture.h"

static void test_a_connection_goes_past_the_kernel(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);

	(void)state;
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_OFFLOADED);
	assert_int_equal(do_poll(fd), EPOLLOUT | EPOLLWRNORM);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EISCONN);
	fixture_close_conn_pair(fd, listener, peer);
}

static void test_an_attempt_is_under_way_until_the_peer_answers(void **state)
{
	struct vma_tcp_listener *listener = fixture_peer_listen(7000);
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	(void)state;
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EALREADY);
	assert_int_equal(do_poll(fd), 0);
	assert_int_equal(fixture_getsockopt_int(fd, SOL_SOCKET, SO_ERROR), 0);
	fixture_until(do_poll(fd) & EPOLLOUT);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), 0);
	fixture_until(atomic_load(&fixture.n_accepted) == 1);
	fixture_close_conn_pair(fd, listener, &fixture.accepted[0]);
}

static void test_a_blocking_connect_waits(void **state)
{
	struct vma_tcp_listener *listener = fixture_peer_listen(7000);
	int fd = fixture_stream_socket(0);

	(void)state;
	fixture_peer_thread_start();
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), 0);
	fixture_peer_thread_stop();
	fixture_until(atomic_load(&fixture.n_accepted) == 1);
	fixture_close_conn_pair(fd, listener, &fixture.accepted[0]);
}

static void test_nobody_listens_is_refused_and_told_once(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	struct vma_flow nobody;

	(void)state;
	fixture_peer_refuse_connections_to_port(&nobody, 7001);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7001), -EINPROGRESS);
	fixture_until(do_poll(fd) & EPOLLERR);
	assert_int_equal(do_poll(fd) & (EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP),
	                 EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP);
	assert_int_equal(fixture_getsockopt_int(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
	assert_int_equal(fixture_getsockopt_int(fd, SOL_SOCKET, SO_ERROR), 0);
	assert_false(do_poll(fd) & EPOLLERR);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7001),
	                 -ECONNABORTED); /* as the kernel, when the error was taken */
	do_close(fd);
	vma_ring_detach_flow(fixture.peer_ring, &nobody);
}

static void test_a_socket_that_was_refused_connects_again(void **state)
{
	struct vma_tcp_listener *listener;
	int fd = fixture_stream_socket(0);
	struct vma_flow nobody;

	(void)state;
	fixture_peer_refuse_connections_to_port(&nobody, 7001);
	fixture_peer_thread_start();
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7001), -ECONNREFUSED);
	fixture_peer_thread_stop();
	vma_ring_detach_flow(fixture.peer_ring, &nobody);
	assert_int_equal(do_poll(fd), EPOLLOUT | EPOLLWRNORM | EPOLLHUP);
	listener = fixture_peer_listen(7000);
	fixture_peer_thread_start();
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), 0);
	fixture_peer_thread_stop();
	fixture_until(atomic_load(&fixture.n_accepted) == 1);
	fixture_close_conn_pair(fd, listener, &fixture.accepted[0]);
}

static void test_a_neighbour_that_does_not_answer_is_unreachable(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	(void)state;
	fixture.path.state = VMA_NET_RESOLVING;
	fixture.path.len = 0;
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	assert_true(fixture.resolves > 0);
	fixture_set_path_state_and_notify(VMA_NET_FAILED, EHOSTUNREACH);
	fixture_until(do_poll(fd) & EPOLLERR);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EHOSTUNREACH);
	fixture_reset();
	do_close(fd);
}

static void test_an_attempt_that_has_failed_already_is_told_later(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	(void)state;
	fixture_set_path_state_and_notify(VMA_NET_FAILED, EHOSTUNREACH);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	assert_true(do_poll(fd) & EPOLLERR);
	assert_int_equal(fixture_getsockopt_int(fd, SOL_SOCKET, SO_ERROR), EHOSTUNREACH);
	fixture_reset();
	do_close(fd);
	fixture_wait_until_no_connections();
}

static void test_the_syn_waits_for_the_neighbour(void **state)
{
	struct vma_tcp_listener *listener = fixture_peer_listen(7000);
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	(void)state;
	fixture.path.state = VMA_NET_RESOLVING;
	fixture.path.len = 0;
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	fixture_never(do_poll(fd) != 0);
	fixture_set_path_state_and_notify(VMA_NET_READY, 0);
	fixture_until(do_poll(fd) & EPOLLOUT);
	fixture_until(atomic_load(&fixture.n_accepted) == 1);
	fixture_close_conn_pair(fd, listener, &fixture.accepted[0]);
}

static void test_the_names_are_the_connection_s(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	struct sockaddr_in name;
	struct vma_flow_key key;
	socklen_t len = sizeof(name);

	(void)state;
	vma_tcp_conn_key(peer->conn, &key);
	assert_int_equal(CALL(int, stream_getsockname(vma_fd_lookup(fd), fd, (struct sockaddr *)&name, &len)), 0);
	assert_int_equal(name.sin_addr.s_addr, fixture_ipv4_from_text(FIXTURE_LOCAL));
	assert_int_equal(name.sin_port, key.peer_port_be);
	assert_int_equal(CALL(int, stream_getpeername(vma_fd_lookup(fd), fd, (struct sockaddr *)&name, &len)), 0);
	assert_int_equal(name.sin_addr.s_addr, fixture_ipv4_from_text(FIXTURE_PEER));
	assert_int_equal(name.sin_port, htons(7000));
	fixture_close_conn_pair(fd, listener, peer);
}

static void test_the_shadow_has_the_port(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	struct sockaddr_in name;
	socklen_t len = sizeof(name);

	(void)state;
	assert_int_equal(vma_os.getsockname(fd, (struct sockaddr *)&name, &len), 0);
	assert_int_equal(name.sin_port, fixture_sock_of(fd)->name.sin_port);
	assert_int_equal(name.sin_addr.s_addr, fixture_ipv4_from_text(FIXTURE_LOCAL));
	fixture_close_conn_pair(fd, listener, peer);
}

static void test_a_bound_port_is_kept(void **state)
{
	struct vma_tcp_listener *listener = fixture_peer_listen(7000);
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	(void)state;
	assert_int_equal(do_bind(fd, FIXTURE_LOCAL, 7123), 0);
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	assert_int_equal(fixture_sock_of(fd)->name.sin_port, htons(7123));
	fixture_until(atomic_load(&fixture.n_accepted) == 1);
	fixture_close_conn_pair(fd, listener, &fixture.accepted[0]);
}

/* To loopback the route is not even looked up: here it says that a device of ours leads there. */
static void connect_to_loopback_is_left_to_kernel(bool asked)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	int server = vma_os.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in name = fixture_sockaddr_of("127.0.0.1", 0);
	socklen_t len = sizeof(name);

	assert_int_equal(vma_os.bind(server, (struct sockaddr *)&name, sizeof(name)), 0);
	assert_int_equal(vma_os.listen(server, 1), 0);
	assert_int_equal(vma_os.getsockname(server, (struct sockaddr *)&name, &len), 0);
	if (asked) {
		fixture.path.state = VMA_NET_USE_OS;
		fixture.path.reason = VMA_NET_REASON_LOCAL;
	}
	assert_int_equal(do_connect(fd, "127.0.0.1", ntohs(name.sin_port)), -EINPROGRESS);
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_LOCAL);
	assert_true(fixture_sock_of(fd)->file.os_only);
	assert_false(atomic_load(&fixture_sock_of(fd)->file.own_poll));
	fixture_reset();
	do_close(fd);
	vma_os.close(server);
}

static void test_without_a_device_the_kernel_connects(void **state)
{
	(void)state;
	connect_to_loopback_is_left_to_kernel(true);
}

static void *connect_thread(void *arg)
{
	const struct sockaddr_in *name = arg;
	const int fd = name->sin_zero[0];

	do_connect(fd, "127.0.0.1", ntohs(name->sin_port));
	return NULL;
}

/* To a listener whose queue is full, so that the kernel waits. */
static void test_cancelled_in_the_kernel_a_connect_gives_back_what_it_holds(void **state)
{
	int fd = fixture_stream_socket(0), server = vma_os.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), queued[3];
	struct sockaddr_in name = fixture_sockaddr_of("127.0.0.1", 0);
	struct stream_sock *sock = fixture_sock_of(fd);
	socklen_t len = sizeof(name);
	pthread_t thread;
	void *how = NULL;
	uint32_t refs;

	(void)state;
	assert_int_equal(vma_os.bind(server, (struct sockaddr *)&name, sizeof(name)), 0);
	assert_int_equal(vma_os.listen(server, 0), 0);
	assert_int_equal(vma_os.getsockname(server, (struct sockaddr *)&name, &len), 0);
	for (int i = 0; i < 3; i++) {
		queued[i] = vma_os.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		vma_os.connect(queued[i], (struct sockaddr *)&name, sizeof(name));
	}
	fixture.path.state = VMA_NET_USE_OS;
	fixture.path.reason = VMA_NET_REASON_LOCAL;
	refs = atomic_load(&sock->file.refs);
	name.sin_zero[0] = (unsigned char)fd;
	assert_int_equal(pthread_create(&thread, NULL, connect_thread, &name), 0);
	fixture_wait_ms_until(atomic_load(&sock->file.refs) > refs);
	assert_int_equal(pthread_cancel(thread), 0);
	assert_int_equal(pthread_join(thread, &how), 0);
	assert_ptr_equal(how, PTHREAD_CANCELED);
	assert_int_equal(atomic_load(&sock->file.refs), refs);
	fixture_reset();
	do_close(fd);
	for (int i = 0; i < 3; i++)
		vma_os.close(queued[i]);
	vma_os.close(server);
}

/* Nothing was begun by then: with a device it connects. */
static void test_exception_handling_2_makes_a_connect_fail_that_would_be_the_kernel_s(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	struct vma_tcp_listener *listener = fixture_peer_listen(7180);

	(void)state;
	conf->exception_handling = VMA_EXCEPTION_RETURN;
	vma_log_set_level(VMA_LOG_NONE);
	connect_to_loopback_is_left_to_kernel(true); /* there is nothing to offload */
	fixture.no_device = true;
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7180), -ENETUNREACH);
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_NO_DEVICE);
	assert_false(fixture_sock_of(fd)->file.os_only);
	fixture.no_device = false;
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7180), -EINPROGRESS);
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_OFFLOADED);
	vma_log_set_level(VMA_LOG_WARN);
	conf->exception_handling = VMA_EXCEPTION_DEBUG;
	do_close(fd);
	vma_tcp_listener_close(listener);
	fixture_wait_until_no_connections();
}

static void test_a_rule_of_the_peer_leaves_the_connection_to_the_kernel(void **state)
{
	struct vma_rules *const rules =
	        rules_fixture_parse("use vma tcp_client *:*:*:7170\nuse os tcp_client *:7100-7199:*:*\n");
	int ruled = fixture_stream_socket(SOCK_NONBLOCK), bound = fixture_stream_socket(SOCK_NONBLOCK);

	(void)state;
	vma_engine_get_or_start()->rules = rules;
	do_connect(ruled, FIXTURE_PEER, 7170);
	assert_int_equal(do_bind(bound, FIXTURE_LOCAL, 7170), 0);
	do_connect(bound, FIXTURE_PEER, 7170);
	vma_engine_get_or_start()->rules = NULL;
	assert_null(stream_tcp_conn(fixture_sock_of(ruled))); /* whatever the kernel thinks of 10.77.0.2 */
	assert_int_equal(atomic_load(&fixture_sock_of(ruled)->file.rule_line), 2);
	assert_int_equal(fixture_offload_reason_of_fd(bound), VMA_SOCK_OFFLOADED);
	do_close(ruled);
	do_close(bound);
	fixture_wait_until_no_connections();
	vma_rules_destroy(rules);
}

static void test_loopback_is_the_kernel_s_without_a_question(void **state)
{
	(void)state;
	connect_to_loopback_is_left_to_kernel(false);
}

static void test_an_option_of_the_kernel_s_only_keeps_it_there(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	(void)state;
	assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_DONTROUTE, 1), 0);
	assert_true(stream_has_kernel_only_option(fixture_sock_of(fd)));
	assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_DONTROUTE, 0), 0);
	assert_false(stream_has_kernel_only_option(fixture_sock_of(fd)));
	do_close(fd);
}

static int do_set_congestion(int fd, const char *name)
{
	return CALL(int, stream_setsockopt(vma_fd_lookup(fd), fd, IPPROTO_TCP, TCP_CONGESTION, name,
	                                   (socklen_t)strlen(name)));
}

/* As long as the kernel makes it: cut to the room that there is, filled up with zeroes. */
static void assert_congestion_control_name(int fd, const char *expected)
{
	char name[20];
	socklen_t len = sizeof(name), two = 2;

	memset(name, 'x', sizeof(name));
	assert_int_equal(CALL(int, stream_getsockopt(vma_fd_lookup(fd), fd, IPPROTO_TCP, TCP_CONGESTION, name, &len)),
	                 0);
	assert_int_equal(len, 16);
	assert_string_equal(name, expected);
	assert_int_equal(name[15], 0);
	assert_int_equal(name[16], 'x');
	assert_int_equal(CALL(int, stream_getsockopt(vma_fd_lookup(fd), fd, IPPROTO_TCP, TCP_CONGESTION, name, &two)),
	                 0);
	assert_int_equal(two, 2);
}

static void test_congestion_control_is_the_kernel_s_by_default(void **state)
{
	int kernel = vma_os.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = fixture_stream_socket(SOCK_NONBLOCK),
	    known;
	char name[16] = "";
	socklen_t len = sizeof(name) - 1;

	(void)state;
	assert_int_equal(vma_os.getsockopt(kernel, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
	known = vma_tcp_cc_by_name(name);
	assert_int_equal(fixture_sock_of(fd)->options.congestion, known >= 0 ? known : VMA_TCP_CC_CUBIC);
	do_close(fd);
	vma_os.close(kernel);
}

static void test_congestion_control_is_what_the_socket_says(void **state)
{
	static const char *const names[] = {"reno", "cubic", "bbr"};
	static const int ours[] = {VMA_TCP_CC_LWIP, VMA_TCP_CC_CUBIC, VMA_TCP_CC_BBR};
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;

	(void)state;
	assert_int_equal(do_set_congestion(fd, "nosuch"), -ENOENT);
	do_close(fd);
	fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(do_set_congestion(fd, names[i]), 0);
		assert_int_equal(vma_tcp_get_option(stream_tcp_conn(fixture_sock_of(fd)), VMA_TCP_OPT_CONGESTION),
		                 ours[i]);
		assert_congestion_control_name(fd, names[i]);
	}
	assert_int_equal(do_set_congestion(fd, "nosuch"), -ENOENT);
	assert_int_equal(do_set_congestion(fd, "newreno"), -ENOENT); /* the parameter's word, not an algorithm's name */
	assert_congestion_control_name(fd, "bbr");
	fixture_close_conn_pair(fd, listener, peer);
}

/* Which of our own the kernel's socket never heard of. */
static void test_congestion_control_says_the_algorithm_in_force(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK), again;
	struct vma_conf *conf = &fixture_sock_of(fd)->engine->conf;
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;

	(void)state;
	assert_int_equal(do_set_congestion(fd, "none"), -ENOENT);
	assert_int_equal(do_set_congestion(fd, "reno"), 0);
	assert_congestion_control_name(fd, "reno");
	do_close(fd);
	conf->given[VMA_CONF_AT_tcp_cc_algo] = true;
	conf->tcp_cc_algo = VMA_TCP_CC_NONE;
	again = fixture_stream_socket(SOCK_NONBLOCK);
	assert_int_equal(fixture_sock_of(again)->options.congestion, VMA_TCP_CC_NONE);
	assert_congestion_control_name(again, "none");
	assert_int_equal(do_set_congestion(again, "reno"), 0);
	assert_int_equal(do_set_congestion(again, "none"), 0);
	assert_congestion_control_name(again, "none");
	conf->tcp_cc_algo = VMA_TCP_CC_BBR;
	fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	conf->given[VMA_CONF_AT_tcp_cc_algo] = false;
	conf->tcp_cc_algo = VMA_TCP_CC_LWIP;
	assert_int_equal(vma_tcp_get_option(stream_tcp_conn(fixture_sock_of(fd)), VMA_TCP_OPT_CONGESTION),
	                 VMA_TCP_CC_BBR);
	assert_congestion_control_name(fd, "bbr");
	do_close(again);
	fixture_close_conn_pair(fd, listener, peer);
}

static void test_segments_are_as_small_as_the_environment_says(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	struct vma_tcp_info info;
	int fd;

	(void)state;
	conf->mss = 600;
	fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	vma_tcp_info(stream_tcp_conn(fixture_sock_of(fd)), &info);
	assert_int_equal(info.kernel.tcpi_snd_mss, 600);
	fixture_close_conn_pair(fd, listener, peer);
	conf->mss = 10;
	fd = fixture_stream_socket(SOCK_NONBLOCK);
	assert_int_equal(fixture_sock_of(fd)->options.maxseg, 88);
	do_close(fd);
	conf->mss = 0;
}

static void test_disconnected_it_is_fresh_again(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK);
	struct sockaddr none = {.sa_family = AF_UNSPEC};

	(void)state;
	assert_int_equal(CALL(int, stream_connect(vma_fd_lookup(fd), fd, &none, sizeof(none))), 0);
	assert_int_equal(do_poll(fd), EPOLLOUT | EPOLLWRNORM | EPOLLHUP | EPOLLERR);
	fixture_until(atomic_load(&peer->events) & VMA_TCP_FAILED);
	fixture_close_conn_pair(fd, listener, peer);
}

/* Both sides are driven for long enough. */
static void progress_both_sides_for_20ms(void)
{
	uint64_t end_ns = vma_now_ns() + 20000000;

	while (vma_now_ns() < end_ns) {
		vma_ring_progress(fixture.peer_ring);
		vma_ring_ctxs_progress(UINT64_MAX);
		usleep(100);
	}
}

static void test_an_answer_that_comes_while_it_is_disconnected_connects_nothing(void **state)
{
	struct vma_tcp_listener *listener = fixture_peer_listen(7000);
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	(void)state;
	assert_int_equal(do_connect(fd, FIXTURE_PEER, 7000), -EINPROGRESS);
	fixture.on_unwatch = progress_both_sides_for_20ms;
	assert_int_equal(CALL(int, stream_connect(vma_fd_lookup(fd), fd, &none, sizeof(none))), 0);
	fixture.on_unwatch = NULL;
	assert_null(stream_tcp_conn(fixture_sock_of(fd)));
	assert_int_equal(do_poll(fd), EPOLLOUT | EPOLLWRNORM | EPOLLHUP | EPOLLERR);
	do_close(fd);
	vma_tcp_listener_close(listener);
	fixture_wait_until_no_connections();
}

static void test_after_close_the_port_is_free_when_the_connection_is_over(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK),
	    other = vma_os.socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in name = fixture_sock_of(fd)->name;
	const int on = 1;

	(void)state;
	assert_int_equal(vma_os.setsockopt(other, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on)), 0);
	do_close(fd);
	fixture_until(atomic_load(&peer->events) & VMA_TCP_PEER_CLOSED);
	assert_int_equal(vma_os.bind(other, (struct sockaddr *)&name, sizeof(name)), -1);
	vma_tcp_close(peer->conn, false);
	fixture_until(vma_os.bind(other, (struct sockaddr *)&name, sizeof(name)) == 0);
	vma_os.close(other);
	fixture_close_conn_pair(-1, listener, peer);
}

static int (*os_bind)(int fd, const struct sockaddr *addr, socklen_t len);
static uint16_t first_choice_be; /* 0: chosen already */

static int bind_choosing_first_port(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct sockaddr_in name = *(const struct sockaddr_in *)addr;

	if (name.sin_port != 0 || first_choice_be == 0)
		return os_bind(fd, addr, len);
	name.sin_port = first_choice_be;
	first_choice_be = 0;
	return os_bind(fd, (struct sockaddr *)&name, sizeof(name));
}

static void test_the_kernels_choice_of_a_port_is_none_that_rests_here(void **state)
{
	struct vma_tcp_listener *listener;
	struct fixture_conn *peer;
	int fd = fixture_open_conn_pair(&listener, &peer, SOCK_NONBLOCK),
	    other = vma_os.socket(AF_INET, SOCK_STREAM, 0), next;
	struct sockaddr_in name = fixture_sock_of(fd)->name;
	const uint16_t resting_be = name.sin_port;
	const int on = 1;

	(void)state;
	assert_int_equal(vma_os.setsockopt(other, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on)), 0);
	do_close(fd);
	fixture_until(atomic_load(&peer->events) & VMA_TCP_PEER_CLOSED);
	vma_tcp_close(peer->conn, false);
	fixture_until(vma_os.bind(other, (struct sockaddr *)&name, sizeof(name)) == 0); /* in TIME_WAIT */
	vma_os.close(other);
	next = fixture_stream_socket(SOCK_NONBLOCK);
	os_bind = vma_os.bind;
	vma_os.bind = bind_choosing_first_port;
	first_choice_be = resting_be;
	assert_int_equal(do_bind(next, "0.0.0.0", 0), 0);
	vma_os.bind = os_bind;
	assert_int_equal(first_choice_be, 0);
	assert_int_not_equal(fixture_sock_of(next)->local.sin_port, 0);
	assert_int_not_equal(fixture_sock_of(next)->local.sin_port, resting_be);
	do_close(next);
	fixture_close_conn_pair(-1, listener, peer);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_connection_goes_past_the_kernel),
        cmocka_unit_test(test_an_attempt_is_under_way_until_the_peer_answers),
        cmocka_unit_test(test_a_blocking_connect_waits),
        cmocka_unit_test(test_nobody_listens_is_refused_and_told_once),
        cmocka_unit_test(test_a_socket_that_was_refused_connects_again),
        cmocka_unit_test(test_a_neighbour_that_does_not_answer_is_unreachable),
        cmocka_unit_test(test_an_attempt_that_has_failed_already_is_told_later),
        cmocka_unit_test(test_the_syn_waits_for_the_neighbour),
        cmocka_unit_test(test_the_names_are_the_connection_s),
        cmocka_unit_test(test_the_shadow_has_the_port),
        cmocka_unit_test(test_a_bound_port_is_kept),
        cmocka_unit_test(test_without_a_device_the_kernel_connects),
        cmocka_unit_test(test_cancelled_in_the_kernel_a_connect_gives_back_what_it_holds),
        cmocka_unit_test(test_exception_handling_2_makes_a_connect_fail_that_would_be_the_kernel_s),
        cmocka_unit_test(test_loopback_is_the_kernel_s_without_a_question),
        cmocka_unit_test(test_a_rule_of_the_peer_leaves_the_connection_to_the_kernel),
        cmocka_unit_test(test_an_option_of_the_kernel_s_only_keeps_it_there),
        cmocka_unit_test(test_congestion_control_is_the_kernel_s_by_default),
        cmocka_unit_test(test_congestion_control_is_what_the_socket_says),
        cmocka_unit_test(test_congestion_control_says_the_algorithm_in_force),
        cmocka_unit_test(test_segments_are_as_small_as_the_environment_says),
        cmocka_unit_test(test_disconnected_it_is_fresh_again),
        cmocka_unit_test(test_an_answer_that_comes_while_it_is_disconnected_connects_nothing),
        cmocka_unit_test(test_after_close_the_port_is_free_when_the_connection_is_over),
        cmocka_unit_test(test_the_kernels_choice_of_a_port_is_none_that_rests_here),
};
FIXTURE_MAIN("connect", tests)
