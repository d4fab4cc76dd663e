/* listen and accept. */
#include "../../rules/test/rules_fixture.h"
#include "../../sock/test/internal_thread.h"
#include "fixture.h"

#include <sys/wait.h>

static int open_listener_at(uint16_t port, int backlog)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);

	assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR, 1), 0);
	assert_int_equal(do_bind(fd, FIXTURE_LOCAL, port), 0);
	assert_int_equal(do_listen(fd, backlog), 0);
	return fd;
}

static bool peer_is_connected(const struct fixture_conn *peer)
{
	return atomic_load(&peer->events) & VMA_TCP_CONNECTED;
}

static void listen_drop_all_peer_conns(struct fixture_conn *peers, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		fixture_peer_reset_and_free_conn(&peers[i]);
	fixture_wait_until_no_connections();
}

static void test_exception_handling_2_makes_a_listen_fail_that_would_be_the_kernel_s(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	int fd = fixture_stream_socket(SOCK_NONBLOCK), listens = 1;
	socklen_t len = sizeof(listens);

	(void)state;
	assert_int_equal(do_bind(fd, FIXTURE_LOCAL, 7190), 0);
	conf->exception_handling = VMA_EXCEPTION_RETURN;
	vma_log_set_level(VMA_LOG_NONE);
	fixture.no_device = true;
	assert_int_equal(do_listen(fd, 4), -EOPNOTSUPP);
	assert_int_equal(vma_os.getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len), 0);
	assert_int_equal(listens, 0);
	fixture.no_device = false;
	assert_int_equal(do_listen(fd, 4), 0);
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_OFFLOADED);
	vma_log_set_level(VMA_LOG_WARN);
	conf->exception_handling = VMA_EXCEPTION_DEBUG;
	do_close(fd);
	fixture_wait_until_no_connections();
}

/* What was offloaded is given away without a call: told, at level error, and it goes on. */
static void test_exception_handling_3_ends_a_program_whose_listener_is_given_away(void **state)
{
	int fd = open_listener_at(7191, 4), status;
	struct stream_sock *sock = fixture_sock_of(fd);
	pid_t child;

	(void)state;
	vma_log_set_level(VMA_LOG_NONE);
	child = fork();
	if (child == 0) {
		signal(SIGABRT, SIG_DFL);
		vma_engine_get_or_start()->conf.exception_handling = VMA_EXCEPTION_ABORT;
		vma_enter();
		stream_listen_leave_to_kernel(sock, VMA_SOCK_HANDS_OVER);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	vma_log_set_level(VMA_LOG_WARN);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	do_close(fd);
	fixture_wait_until_no_connections();
}

static void test_a_listener_is_offloaded_and_its_shadow_listens(void **state)
{
	int fd = open_listener_at(7100, 4), on = 0;
	socklen_t len = sizeof(on);

	(void)state;
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_OFFLOADED);
	assert_int_equal(vma_os.getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len), 0);
	assert_int_equal(on, 1);
	assert_false(atomic_load(&fixture_sock_of(fd)->file.own_poll));
	assert_int_equal(do_poll(fd), 0);
	assert_int_equal(do_accept(fd, NULL, 0), -EAGAIN);
	do_close(fd);
}

static void test_a_rule_of_its_port_leaves_a_listener_to_the_kernel(void **state)
{
	struct vma_rules *const rules = rules_fixture_parse("use os tcp_server *:7101-7102\n");
	int ruled, other;

	(void)state;
	vma_engine_get_or_start()->rules = rules;
	ruled = open_listener_at(7102, 4);
	other = open_listener_at(7103, 4);
	assert_int_equal(fixture_offload_reason_of_fd(ruled), VMA_SOCK_RULE);
	assert_int_equal(atomic_load(&fixture_sock_of(ruled)->file.rule_line), 1);
	assert_int_equal(atomic_load(&fixture_sock_of(ruled)->rings), 0);
	assert_int_equal(fixture_offload_reason_of_fd(other), VMA_SOCK_OFFLOADED);
	do_close(ruled);
	do_close(other);
	vma_engine_get_or_start()->rules = NULL;
	vma_rules_destroy(rules);
}

static __typeof__(vma_os.listen) real_listen;
static enum vma_sock_reason reason_meanwhile;
static bool refuse_listen;

static int listen_recording_reason(int fd, int backlog)
{
	reason_meanwhile = fixture_offload_reason_of_fd(fd);
	if (!refuse_listen)
		return real_listen(fd, backlog);
	errno = EADDRINUSE;
	return -1;
}

/* Who finds the shadow listening would have a connection of the kernel's. */
static void test_connections_are_taken_before_the_shadow_listens(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK);
	struct fixture_conn peer;

	(void)state;
	real_listen = vma_os.listen;
	vma_os.listen = listen_recording_reason;
	refuse_listen = false;
	assert_int_equal(do_bind(fd, FIXTURE_LOCAL, 7150), 0);
	assert_int_equal(do_listen(fd, 4), 0);
	assert_int_equal(reason_meanwhile, VMA_SOCK_OFFLOADED);
	do_close(fd);

	refuse_listen = true;
	fd = fixture_stream_socket(SOCK_NONBLOCK);
	assert_int_equal(do_bind(fd, FIXTURE_LOCAL, 7151), 0);
	assert_int_equal(do_listen(fd, 4), -EADDRINUSE);
	assert_int_equal(reason_meanwhile, VMA_SOCK_OFFLOADED);
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_NEW);
	assert_int_equal(do_poll(fd) & EPOLLHUP, EPOLLHUP);
	vma_os.listen = real_listen;
	fixture_peer_connect(&peer, 8150, 7151); /* nobody takes it */
	fixture_wait_until_no_connections();
	assert_false(peer_is_connected(&peer));
	assert_int_equal(atomic_load(&fixture_sock_of(fd)->n_queued), 0);
	assert_int_equal(do_listen(fd, 4), 0);
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_OFFLOADED);
	do_close(fd);
	listen_drop_all_peer_conns(&peer, 1);
}

static void test_a_connection_is_accepted_with_its_names(void **state)
{
	int fd = open_listener_at(7101, 4), child;
	struct sockaddr_in from, name;
	socklen_t len = sizeof(name);
	struct fixture_conn peer;

	(void)state;
	fixture_peer_connect(&peer, 8101, 7101);
	fixture_until(peer_is_connected(&peer) && do_poll(fd) == (EPOLLIN | EPOLLRDNORM));
	child = do_accept(fd, &from, SOCK_NONBLOCK);
	assert_true(child >= 0);
	assert_int_equal(from.sin_addr.s_addr, fixture_ipv4_from_text(FIXTURE_PEER));
	assert_int_equal(from.sin_port, htons(8101));
	assert_int_equal(fixture_offload_reason_of_fd(child), VMA_SOCK_OFFLOADED);
	assert_int_equal(CALL(int, stream_getsockname(vma_fd_lookup(child), child, (struct sockaddr *)&name, &len)), 0);
	assert_int_equal(name.sin_port, htons(7101));
	assert_int_equal(do_poll(fd), 0);
	assert_int_equal(do_accept(fd, NULL, 0), -EAGAIN);
	do_close(child);
	do_close(fd);
	listen_drop_all_peer_conns(&peer, 1);
}

static uint64_t tcp_segments_sent_by_stack_of_fd(int fd)
{
	struct vma_tcp_counts counts;

	vma_tcp_read_counters(vma_tcp_conn_current_stack(stream_tcp_conn(fixture_sock_of(fd))), &counts);
	return counts.segments_out;
}

/* What the thread holds back for longer than its 20 us, however slow the machine is. */
static void answer_in_two_sends(int child)
{
	assert_int_equal(do_send(child, "header", 6, 0), 6);
	vma_thread_self()->tx_batched_tsc = vma_tsc() + vma_tsc_of_nsec(1000000000);
	assert_int_equal(do_send(child, "body", 4, 0), 4);
}

/* Returns whether the answer of the nth connection was held back until its close. */
static bool answer_and_close_was_held_back(int fd, uint16_t from, bool peer_closes)
{
	struct fixture_conn peer;
	uint64_t before;
	bool held;
	int child;

	fixture_peer_connect(&peer, from, 7160);
	fixture_until(peer_is_connected(&peer) && do_poll(fd) != 0);
	child = do_accept(fd, NULL, SOCK_NONBLOCK);
	assert_true(child >= 0);
	before = tcp_segments_sent_by_stack_of_fd(child);
	answer_in_two_sends(child);
	held = tcp_segments_sent_by_stack_of_fd(child) == before;
	if (peer_closes) {
		vma_tcp_close(peer.conn, false);
		fixture_until((fixture_peer_ring_progress(), atomic_load(&fixture_sock_of(child)->fin_seen)));
	}
	do_close(child);
	vma_inet_flush_sends(vma_thread_self());
	fixture_until((fixture_peer_ring_progress(), peer_closes || vma_tcp_readable_bytes(peer.conn) == 10));
	fixture_peer_reset_and_free_conn(&peer); /* by a reset: there is no TIME_WAIT */
	return held;
}

static void test_answers_wait_for_the_close_that_follows_them_each_time(void **state)
{
	int fd = open_listener_at(7160, 4);

	(void)state;
	hold_internal_thread(); /* it sends nothing in this one's place, and nothing waits because it is at the ring */
	for (uint16_t i = 0; i < 16; i++)
		assert_false(answer_and_close_was_held_back(fd, 8160 + i, false));
	assert_true(answer_and_close_was_held_back(fd, 8180, false));
	/* One that the peer has ended first says that they stay. */
	answer_and_close_was_held_back(fd, 8201, true);
	for (uint16_t i = 0; i < 3; i++)
		assert_false(answer_and_close_was_held_back(fd, 8202 + i, false));
	release_internal_thread();
	do_close(fd);
	fixture_wait_until_no_connections();
}

static void test_a_listener_on_any_address_accepts(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK), child;
	struct fixture_conn peer;

	(void)state;
	assert_int_equal(do_bind(fd, "0.0.0.0", 7102), 0);
	assert_int_equal(do_listen(fd, 4), 0);
	fixture_peer_connect(&peer, 8102, 7102);
	fixture_until(do_poll(fd) & EPOLLIN);
	child = do_accept(fd, NULL, 0);
	assert_true(child >= 0);
	do_close(child);
	do_close(fd);
	listen_drop_all_peer_conns(&peer, 1);
}

static void test_the_shadow_s_connections_are_accepted_as_well(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK), client = vma_os.socket(AF_INET, SOCK_STREAM, 0), child = -1;
	struct sockaddr_in to = fixture_sockaddr_of("127.0.0.1", 7103), from;

	(void)state;
	assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_REUSEADDR, 1), 0);
	assert_int_equal(do_bind(fd, "0.0.0.0", 7103), 0);
	assert_int_equal(do_listen(fd, 4), 0);
	assert_int_equal(vma_os.connect(client, (struct sockaddr *)&to, sizeof(to)), 0);
	fixture_until((child = do_accept(fd, &from, 0)) >= 0);
	assert_int_equal(from.sin_addr.s_addr, fixture_ipv4_from_text("127.0.0.1"));
	assert_null(vma_fd_lookup(child));
	vma_os.close(child);
	vma_os.close(client);
	do_close(fd);
}

static void test_connections_come_in_the_order_of_their_arrival(void **state)
{
	int fd = open_listener_at(7104, 16);
	struct fixture_conn peer[8];
	struct sockaddr_in from;

	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		fixture_peer_connect(&peer[i], (uint16_t)(8110 + i), 7104);
		fixture_until(atomic_load(&fixture_sock_of(fd)->n_queued) == i + 1);
	}
	for (unsigned i = 0; i < 8; i++) {
		int child = do_accept(fd, &from, 0);

		assert_true(child >= 0);
		assert_int_equal(ntohs(from.sin_port), 8110 + i);
		do_close(child);
	}
	do_close(fd);
	listen_drop_all_peer_conns(peer, 8);
}

static void test_beyond_the_backlog_requests_are_dropped(void **state)
{
	int fd = open_listener_at(7105, 1);
	struct fixture_conn peer[4];

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		fixture_peer_connect(&peer[i], (uint16_t)(8120 + i), 7105);
		fixture_progress_all_rings();
	}
	fixture_until(atomic_load(&fixture_sock_of(fd)->n_queued) == 2); /* as the kernel: one more than the backlog */
	fixture_never(atomic_load(&fixture_sock_of(fd)->n_queued) > 2);
	do_close(fd);
	listen_drop_all_peer_conns(peer, 4);
}

static void test_without_descriptors_the_connection_stays_queued(void **state)
{
	int fd = open_listener_at(7106, 4), child, fill[1024];
	struct fixture_conn peer;
	unsigned n = 0;
	struct rlimit limit, few;

	(void)state;
	fixture_peer_connect(&peer, 8106, 7106);
	fixture_until(do_poll(fd) & EPOLLIN);
	getrlimit(RLIMIT_NOFILE, &limit);
	few = limit;
	few.rlim_cur = 200;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while (n < 1024 && (fill[n] = vma_os.dup(0)) >= 0)
		n++;
	assert_int_equal(do_accept(fd, NULL, 0), -EMFILE);
	assert_int_equal(do_accept(fd, NULL, 0), -EMFILE);
	while (n > 0)
		vma_os.close(fill[--n]);
	setrlimit(RLIMIT_NOFILE, &limit);
	child = do_accept(fd, NULL, 0);
	assert_true(child >= 0);
	do_close(child);
	do_close(fd);
	listen_drop_all_peer_conns(&peer, 1);
}

static void test_a_closed_listener_resets_what_waits(void **state)
{
	int fd = open_listener_at(7107, 4);
	struct fixture_conn peer;

	(void)state;
	fixture_peer_connect(&peer, 8107, 7107);
	fixture_until(peer_is_connected(&peer) && do_poll(fd) & EPOLLIN);
	do_close(fd);
	fixture_until(atomic_load(&peer.events) & VMA_TCP_FAILED);
	assert_int_equal(vma_tcp_error(peer.conn), ECONNRESET);
	listen_drop_all_peer_conns(&peer, 1);
}

static void test_shut_down_it_does_not_listen_any_more(void **state)
{
	int fd = open_listener_at(7108, 4);

	(void)state;
	assert_int_equal(do_shutdown(fd, SHUT_RD), 0);
	assert_int_equal(do_accept(fd, NULL, 0), -EINVAL);
	assert_int_equal(do_listen(fd, 4), 0);
	assert_int_equal(do_accept(fd, NULL, 0), -EAGAIN);
	do_close(fd);
}

/* It and the connections that it had before share a tally, which goes with the last of them. */
static void test_it_listens_again_while_a_connection_of_before_lives(void **state)
{
	int fd = open_listener_at(7120, 4), old, newer;
	struct fixture_conn peers[2];

	(void)state;
	fixture_peer_connect(&peers[0], 8140, 7120);
	fixture_until(peer_is_connected(&peers[0]) && do_poll(fd) & EPOLLIN);
	old = do_accept(fd, NULL, 0);
	assert_true(old >= 0);
	assert_int_equal(do_shutdown(fd, SHUT_RD), 0);
	assert_int_equal(do_listen(fd, 4), 0);
	do_close(old);
	fixture_peer_connect(&peers[1], 8141, 7120);
	fixture_until(peer_is_connected(&peers[1]) && do_poll(fd) & EPOLLIN);
	newer = do_accept(fd, NULL, 0);
	assert_true(newer >= 0);
	do_close(newer);
	do_close(fd);
	listen_drop_all_peer_conns(peers, 2);
}

static void *shutdown_listener_later_thread(void *arg)
{
	usleep(50000);
	do_shutdown(*(int *)arg, SHUT_RDWR);
	return NULL;
}

static void test_shutdown_ends_an_accept_that_waits(void **state)
{
	int fd = open_listener_at(7109, 4);
	pthread_t thread;

	(void)state;
	CALL(int, stream_fcntl(vma_fd_lookup(fd), fd, F_SETFL, NULL));
	assert_int_equal(pthread_create(&thread, NULL, shutdown_listener_later_thread, &fd), 0);
	assert_int_equal(do_accept(fd, NULL, 0), -EINVAL);
	pthread_join(thread, NULL);
	do_close(fd);
}

static void *peer_connect_later_thread(void *arg)
{
	usleep(50000);
	fixture_peer_connect(arg, 8130, 7110);
	return NULL;
}

static void test_a_blocking_accept_waits_for_a_connection(void **state)
{
	int fd = open_listener_at(7110, 4), child;
	struct fixture_conn peer;
	pthread_t thread;

	(void)state;
	CALL(int, stream_fcntl(vma_fd_lookup(fd), fd, F_SETFL, NULL));
	assert_int_equal(pthread_create(&thread, NULL, peer_connect_later_thread, &peer), 0);
	fixture_peer_thread_start();
	child = do_accept(fd, NULL, 0);
	fixture_peer_thread_stop();
	pthread_join(thread, NULL);
	assert_true(child >= 0);
	do_close(child);
	do_close(fd);
	listen_drop_all_peer_conns(&peer, 1);
}

static void test_sockets_of_one_port_share_what_comes(void **state)
{
	struct fixture_conn peer[32];
	int fd[2];
	unsigned n[2] = {0};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		fd[i] = fixture_stream_socket(SOCK_NONBLOCK);
		assert_int_equal(fixture_setsockopt_int(fd[i], SOL_SOCKET, SO_REUSEPORT, 1), 0);
		assert_int_equal(do_bind(fd[i], FIXTURE_LOCAL, 7111), 0);
		assert_int_equal(do_listen(fd[i], 64), 0);
		assert_int_equal(fixture_offload_reason_of_fd(fd[i]), VMA_SOCK_OFFLOADED);
	}
	for (unsigned i = 0; i < 32; i++)
		fixture_peer_connect(&peer[i], (uint16_t)(8200 + i), 7111);
	for (unsigned i = 0; i < 2; i++)
		n[i] = 0;
	fixture_until(atomic_load(&fixture_sock_of(fd[0])->n_queued) + atomic_load(&fixture_sock_of(fd[1])->n_queued) ==
	              32);
	for (unsigned i = 0; i < 2; i++)
		n[i] = atomic_load(&fixture_sock_of(fd[i])->n_queued);
	assert_true(n[0] > 4 && n[1] > 4);
	do_close(fd[0]);
	fixture_peer_reset_and_free_conn(&peer[0]);
	fixture_peer_connect(&peer[0], 8300, 7111);
	fixture_until(atomic_load(&fixture_sock_of(fd[1])->n_queued) == n[1] + 1);
	do_close(fd[1]);
	listen_drop_all_peer_conns(peer, 32);
}

static void test_who_does_not_accept_gets_no_more_than_its_backlog(void **state)
{
	struct fixture_conn peer[24];
	unsigned accepted = 0;
	int fd[2];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		fd[i] = fixture_stream_socket(SOCK_NONBLOCK);
		assert_int_equal(fixture_setsockopt_int(fd[i], SOL_SOCKET, SO_REUSEPORT, 1), 0);
		assert_int_equal(do_bind(fd[i], FIXTURE_LOCAL, 7114), 0);
		assert_int_equal(do_listen(fd[i], 1), 0);
	}
	for (unsigned i = 0; i < 24; i++) {
		fixture_peer_connect(&peer[i], (uint16_t)(8400 + i), 7114);
		fixture_until(atomic_load(&fixture_sock_of(fd[0])->n_queued) +
		                      atomic_load(&fixture_sock_of(fd[1])->n_queued) + accepted ==
		              i + 1);
		for (int child; (child = do_accept(fd[1], NULL, SOCK_NONBLOCK)) >= 0; accepted++)
			do_close(child);
	}
	assert_int_equal(atomic_load(&fixture_sock_of(fd[0])->n_queued),
	                 2); /* the kernel's: one more than the backlog */
	assert_int_equal(accepted, 22);
	do_close(fd[0]);
	do_close(fd[1]);
	listen_drop_all_peer_conns(peer, 24);
}

static void test_an_address_that_comes_and_goes_is_followed(void **state)
{
	int fd = open_listener_at(7112, 4);
	struct vma_file *file = vma_fd_lookup(fd);

	(void)state;
	fixture.address_count = 0;
	CALL(int, (file->ops->net_changed(file), 0));
	assert_int_not_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_OFFLOADED);
	fixture.address_count = 1;
	CALL(int, (file->ops->net_changed(file), 0));
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_OFFLOADED);
	do_close(fd);
}

static void test_a_connection_inherits_the_listener_s_options(void **state)
{
	int fd = fixture_stream_socket(SOCK_NONBLOCK), child;
	struct fixture_conn peer;

	(void)state;
	assert_int_equal(fixture_setsockopt_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
	assert_int_equal(fixture_setsockopt_int(fd, IPPROTO_TCP, TCP_NODELAY, 1), 0);
	assert_int_equal(do_bind(fd, FIXTURE_LOCAL, 7113), 0);
	assert_int_equal(do_listen(fd, 4), 0);
	assert_int_equal(fixture_setsockopt_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77), 0);
	fixture_peer_connect(&peer, 8131, 7113);
	fixture_until(do_poll(fd) & EPOLLIN);
	child = do_accept(fd, NULL, SOCK_NONBLOCK);
	assert_true(child >= 0);
	assert_int_equal(fixture_getsockopt_int(child, SOL_SOCKET, SO_KEEPALIVE), 1);
	assert_int_equal(fixture_getsockopt_int(child, IPPROTO_TCP, TCP_NODELAY), 1);
	assert_int_equal(fixture_getsockopt_int(child, IPPROTO_TCP, TCP_KEEPIDLE), 77);
	assert_int_equal(vma_tcp_get_option(stream_tcp_conn(fixture_sock_of(child)), VMA_TCP_OPT_NODELAY), 1);
	assert_int_equal(vma_tcp_get_option(stream_tcp_conn(fixture_sock_of(child)), VMA_TCP_OPT_KEEPIDLE), 77);
	do_close(child);
	do_close(fd);
	listen_drop_all_peer_conns(&peer, 1);
}

/* The flows were revoked, or the network changed, and the process forked before the update was made. */
static void test_an_update_asked_for_before_a_fork_does_not_take_the_listener_up(void **state)
{
	int fd = open_listener_at(7160, 4);

	(void)state;
	stream_listener_release_flows_and_conns(fixture_sock_of(fd));
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_INHERITED);
	stream_schedule_listen_update(fixture_sock_of(fd));
	fixture_until(!atomic_load(&fixture_sock_of(fd)->update_scheduled));
	fixture_wait_until_no_connections();
	assert_int_equal(fixture_offload_reason_of_fd(fd), VMA_SOCK_INHERITED);
	assert_int_equal(do_poll(fd), 0);
	fixture_until(fixture_offload_reason_of_fd(fd) == VMA_SOCK_OFFLOADED);
	do_close(fd);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exception_handling_2_makes_a_listen_fail_that_would_be_the_kernel_s),
        cmocka_unit_test(test_exception_handling_3_ends_a_program_whose_listener_is_given_away),
        cmocka_unit_test(test_a_listener_is_offloaded_and_its_shadow_listens),
        cmocka_unit_test(test_a_rule_of_its_port_leaves_a_listener_to_the_kernel),
        cmocka_unit_test(test_connections_are_taken_before_the_shadow_listens),
        cmocka_unit_test(test_a_connection_is_accepted_with_its_names),
        cmocka_unit_test(test_answers_wait_for_the_close_that_follows_them_each_time),
        cmocka_unit_test(test_a_listener_on_any_address_accepts),
        cmocka_unit_test(test_the_shadow_s_connections_are_accepted_as_well),
        cmocka_unit_test(test_connections_come_in_the_order_of_their_arrival),
        cmocka_unit_test(test_beyond_the_backlog_requests_are_dropped),
        cmocka_unit_test(test_without_descriptors_the_connection_stays_queued),
        cmocka_unit_test(test_a_closed_listener_resets_what_waits),
        cmocka_unit_test(test_shut_down_it_does_not_listen_any_more),
        cmocka_unit_test(test_it_listens_again_while_a_connection_of_before_lives),
        cmocka_unit_test(test_shutdown_ends_an_accept_that_waits),
        cmocka_unit_test(test_a_blocking_accept_waits_for_a_connection),
        cmocka_unit_test(test_sockets_of_one_port_share_what_comes),
        cmocka_unit_test(test_who_does_not_accept_gets_no_more_than_its_backlog),
        cmocka_unit_test(test_an_address_that_comes_and_goes_is_followed),
        cmocka_unit_test(test_a_connection_inherits_the_listener_s_options),
        cmocka_unit_test(test_an_update_asked_for_before_a_fork_does_not_take_the_listener_up),
};
FIXTURE_MAIN("listen", tests)
