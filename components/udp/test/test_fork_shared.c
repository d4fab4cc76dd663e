/* Processes that have a socket in common: what one changes the others find when they look, and nobody looks in vain. */
#include <fcntl.h>
#include <linux/filter.h>
#include <sys/time.h>

#include "fork_shared_fixture.h"

static int fd, other;

static int setup_two_sockets_shared_by_fork(void **state)
{
	(void)state;
	fixture_reset();
	fd = fixture_open_offloaded_udp_socket();
	forks();
	other = create_fork_relative_socket(fd);
	fork_shared_follow_peer_changes_of_fd(other);
	return 0;
}

static int teardown_close_two_shared_sockets(void **state)
{
	(void)state;
	control_fixture_close(other);
	control_fixture_close(fd);
	return 0;
}

static int fork_shared_connect_to(int socket, const struct sockaddr *name, socklen_t len)
{
	struct vma_thread *self = vma_enter();
	int rc = udp_connect(vma_fd_lookup(socket), socket, name, len);

	vma_leave(self);
	return rc;
}

static int shutdown_shared_socket(int socket, int how)
{
	struct vma_thread *self = vma_enter();
	int rc = udp_shutdown(vma_fd_lookup(socket), socket, how);

	vma_leave(self);
	return rc;
}

static void test_what_no_fork_has_seen_looks_for_nothing(void **state)
{
	int alone = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(alone, IPPROTO_IP, IP_TTL, 9);
	assert_null(udp_fork_shared(control_fixture_sock_of(alone)));
	assert_false(udp_fork_shared_has_changed(control_fixture_sock_of(alone)));
	assert_int_equal(atomic_load(&control_fixture_sock_of(alone)->unplain), 0);
	assert_int_equal(atomic_load(&control_fixture_sock_of(alone)->rx_opts), 0);
	control_fixture_close(alone);
}

static void test_memory_is_made_once_and_lives_as_long_as_the_last_socket_in_it(void **state)
{
	int first = fixture_open_offloaded_udp_socket(), second = fixture_open_offloaded_udp_socket();
	struct udp_fork_shared *fork_shared;

	(void)state;
	forks();
	fork_shared = udp_fork_shared(control_fixture_sock_of(second));
	assert_ptr_equal(control_fixture_sock_of(first)->fork_shared_batch,
	                 control_fixture_sock_of(second)->fork_shared_batch);
	assert_ptr_not_equal(udp_fork_shared(control_fixture_sock_of(first)), fork_shared);
	assert_ptr_not_equal(control_fixture_sock_of(fd)->fork_shared_batch,
	                     control_fixture_sock_of(second)->fork_shared_batch);
	forks();
	assert_ptr_equal(udp_fork_shared(control_fixture_sock_of(second)), fork_shared);
	control_fixture_close(first);
	for (int i = 0; i < 10; i++)
		vma_run_due_deferred_frees();
	control_fixture_setsockopt_int(second, IPPROTO_IP, IP_TTL, 9);
	assert_int_equal(atomic_load(&fork_shared->changes), 1);
	control_fixture_close(second);
}

static void test_who_changes_something_does_not_look_but_the_others_do_once(void **state)
{
	(void)state;
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_TOS, 0x10);
	assert_false(udp_fork_shared_has_changed(control_fixture_sock_of(fd)));
	assert_true(udp_fork_shared_has_changed(control_fixture_sock_of(other)));
	fork_shared_follow_peer_changes_of_fd(other);
	assert_false(udp_fork_shared_has_changed(control_fixture_sock_of(other)));
	assert_int_equal(control_fixture_sock_of(other)->tos, 0x10);
}

static void test_who_changes_something_on_top_of_others_has_looked_first(void **state)
{
	(void)state;
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_TOS, 0x10);
	control_fixture_setsockopt_int(other, IPPROTO_IP, IP_TTL, 9);
	assert_false(udp_fork_shared_has_changed(control_fixture_sock_of(other)));
	assert_int_equal(control_fixture_sock_of(other)->tos, 0x10);
	fork_shared_follow_peer_changes_of_fd(fd);
	assert_int_equal(control_fixture_sock_of(fd)->ttl, 9);
}

static void test_options_of_headers_are_followed(void **state)
{
	const struct ip_mreqn request = {.imr_ifindex = LAN};

	(void)state;
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_TTL, 7);
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MULTICAST_TTL, 5);
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0);
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_BROADCAST, 1);
	fork_shared_fixture_setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &request, sizeof(request));
	fork_shared_follow_peer_changes_of_fd(other);
	assert_int_equal(control_fixture_sock_of(other)->ttl, 7);
	assert_int_equal(control_fixture_sock_of(other)->mc_ttl, 5);
	assert_false(control_fixture_sock_of(other)->mc_loop);
	assert_int_equal(control_fixture_sock_of(other)->pmtu_discover, IP_PMTUDISC_DONT);
	assert_true(control_fixture_sock_of(other)->broadcast);
	assert_int_equal(control_fixture_sock_of(other)->mc_ifindex, LAN);
}

static void test_a_ttl_that_nobody_has_set_stays_the_systems(void **state)
{
	(void)state;
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_TOS, 0x10);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_int_equal(control_fixture_sock_of(other)->ttl, 0);
}

static void test_how_calls_wait_is_followed(void **state)
{
	const struct timeval timeout = {.tv_usec = 250000}, negative = {.tv_sec = -1};

	(void)state;
	fork_shared_fixture_set_flags(fd, 0);
	fork_shared_fixture_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	fork_shared_fixture_setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &negative, sizeof(negative));
	fork_shared_follow_peer_changes_of_fd(other);
	assert_false(atomic_load(&control_fixture_sock_of(other)->nonblocking));
	assert_true(atomic_load(&control_fixture_sock_of(other)->rcvtimeo_ns) ==
	            atomic_load(&control_fixture_sock_of(fd)->rcvtimeo_ns));
	assert_true(atomic_load(&control_fixture_sock_of(other)->rcvtimeo_ns) < 300000000);
	assert_true(atomic_load(&control_fixture_sock_of(other)->sndtimeo_ns) == 0);
	fork_shared_fixture_set_flags(fd, O_NONBLOCK);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_true(atomic_load(&control_fixture_sock_of(other)->nonblocking));
}

static void test_what_comes_along_with_data_is_followed_and_the_look_stays_requested(void **state)
{
	(void)state;
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_RECVTTL, 1);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_true(atomic_load(&control_fixture_sock_of(other)->rx_opts) & UDP_RX_OPT_RECVTTL);
	assert_true(atomic_load(&control_fixture_sock_of(other)->rx_opts) & UDP_RX_OPT_TIMESTAMPNS);
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_RECVTTL, 0);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPNS, 0);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_int_equal(atomic_load(&control_fixture_sock_of(other)->rx_opts), 0);
	assert_int_equal(atomic_load(&control_fixture_sock_of(fd)->rx_opts), UDP_RX_OPT_FORK_SHARED);
}

/* Whether there is a filter the kernel does not tell. */
static void test_an_option_of_the_kernels_ends_the_flows_everywhere_as_long_as_it_is_set(void **state)
{
	struct sock_filter accept_all = {BPF_RET | BPF_K, 0, 0, UINT32_MAX};
	const struct sock_fprog filter = {.len = 1, .filter = &accept_all};
	int none = 0;

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 36790);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_int_equal(control_fixture_reason(other), VMA_SOCK_OFFLOADED);
	assert_int_equal(fork_shared_fixture_setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)), 0);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_int_equal(control_fixture_reason(other), VMA_SOCK_OPTION);
	assert_int_equal(fork_shared_fixture_setsockopt(other, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none)), 0);
	fork_shared_follow_peer_changes_of_fd(fd);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	assert_int_equal(control_fixture_reason(other), VMA_SOCK_OFFLOADED);
}

static void test_memberships_that_another_one_gives_up_are_forgotten(void **state)
{
	(void)state;
	control_fixture_bind_to(fd, "0.0.0.0", 36791);
	control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.9.0.1");
	fork_shared_follow_peer_changes_of_fd(other);
	control_fixture_set_membership(other, IP_DROP_MEMBERSHIP, "239.9.0.1");
	assert_int_equal(atomic_load(&control_fixture_sock_of(fd)->groups)->n, 1);
	fork_shared_follow_peer_changes_of_fd(fd);
	assert_int_equal(atomic_load(&control_fixture_sock_of(fd)->groups)->n, 0);
}

static void test_names_are_followed(void **state)
{
	const struct sockaddr_in peer = {
	        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct sockaddr nobody = {.sa_family = AF_UNSPEC};

	(void)state;
	assert_int_equal(fork_shared_connect_to(fd, (const struct sockaddr *)&peer, sizeof(peer)), 0);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_true(atomic_load(&control_fixture_sock_of(other)->connected));
	assert_int_equal(control_fixture_sock_of(other)->peer.sin_port, htons(9));
	assert_int_equal(control_fixture_sock_of(other)->local.sin_port, control_fixture_sock_of(fd)->local.sin_port);
	assert_int_equal(fork_shared_connect_to(fd, &nobody, sizeof(nobody)), 0);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_false(atomic_load(&control_fixture_sock_of(other)->connected));
	assert_int_equal(control_fixture_sock_of(other)->local.sin_port, 0);
}

static void test_shutting_down_is_followed(void **state)
{
	(void)state;
	shutdown_shared_socket(fd, SHUT_RD);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_true(atomic_load(&control_fixture_sock_of(other)->shut_rd));
	assert_false(atomic_load(&control_fixture_sock_of(other)->shut_wr));
	shutdown_shared_socket(fd, SHUT_WR);
	fork_shared_follow_peer_changes_of_fd(other);
	assert_true(atomic_load(&control_fixture_sock_of(other)->shut_wr));
	shutdown_shared_socket(fd, 17);
	assert_false(udp_fork_shared_has_changed(control_fixture_sock_of(other)));
}

/* Before its process has looked, a sink asks the kernel whom a datagram is for. */
static void test_a_datagram_is_judged_by_the_kernels_names(void **state)
{
	const struct sockaddr_in peer = {
	        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
	struct udp_datagram datagram = {.src = peer.sin_addr.s_addr, .src_port_be = peer.sin_port};
	struct vma_thread *self;

	(void)state;
	control_fixture_bind_to(fd, "127.0.0.1", 0);
	assert_int_equal(fork_shared_connect_to(fd, (const struct sockaddr *)&peer, sizeof(peer)), 0);
	datagram.dst_port_be = control_fixture_sock_of(fd)->local.sin_port;
	self = vma_enter();
	assert_true(udp_datagram_matches_shared_socket_names(control_fixture_sock_of(other), &datagram));
	datagram.src_port_be = htons(10);
	assert_false(udp_datagram_matches_shared_socket_names(control_fixture_sock_of(other), &datagram));
	vma_leave(self);
	assert_int_equal(fork_shared_connect_to(fd, &nobody, sizeof(nobody)), 0);
	self = vma_enter();
	assert_false(udp_datagram_matches_shared_socket_names(control_fixture_sock_of(other),
	                                                      &datagram)); /* the port has gone, too */
	vma_leave(self);
}

#define T(name)                                                                                                        \
	cmocka_unit_test_setup_teardown(test_##name, setup_two_sockets_shared_by_fork,                                 \
	                                teardown_close_two_shared_sockets)
static const struct CMUnitTest tests[] = {
        T(what_no_fork_has_seen_looks_for_nothing),
        T(memory_is_made_once_and_lives_as_long_as_the_last_socket_in_it),
        T(who_changes_something_does_not_look_but_the_others_do_once),
        T(who_changes_something_on_top_of_others_has_looked_first),
        T(options_of_headers_are_followed),
        T(a_ttl_that_nobody_has_set_stays_the_systems),
        T(how_calls_wait_is_followed),
        T(what_comes_along_with_data_is_followed_and_the_look_stays_requested),
        T(an_option_of_the_kernels_ends_the_flows_everywhere_as_long_as_it_is_set),
        T(memberships_that_another_one_gives_up_are_forgotten),
        T(names_are_followed),
        T(shutting_down_is_followed),
        T(a_datagram_is_judged_by_the_kernels_names),
};

FIXTURE_MAIN("fork_shared", tests)
