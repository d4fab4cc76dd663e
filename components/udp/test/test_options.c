/* What setsockopt, ioctl and fcntl leave in the mirror. */
#include "control_fixture.h"

#include <asm/socket.h>
#include <fcntl.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/time.h>

static int fd;
static struct udp_sock *sock;

static int setup_options_udp_socket(void **state)
{
	(void)state;
	fixture_reset();
	fd = fixture_open_offloaded_udp_socket();
	sock = control_fixture_sock_of(fd);
	return 0;
}

static int teardown_close_options_socket(void **state)
{
	(void)state;
	control_fixture_close(fd);
	return 0;
}

static int options_setsockopt(int level, int name, const void *value, socklen_t len)
{
	struct vma_thread *self = vma_enter();
	int rc = udp_setsockopt(&sock->file, fd, level, name, value, len);

	vma_leave(self);
	return rc;
}

static int options_ioctl(unsigned long request, void *arg)
{
	struct vma_thread *self = vma_enter();
	int rc = udp_ioctl(&sock->file, fd, request, arg);

	vma_leave(self);
	return rc;
}

static int options_set_flags(int flags)
{
	struct vma_thread *self = vma_enter();
	int rc = udp_fcntl(&sock->file, fd, F_SETFL, (void *)(long)flags);

	vma_leave(self);
	return rc;
}

static void test_the_limit_of_the_queue_is_so_rcvbuf_but_not_below_the_parameter(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	int now;
	socklen_t len = sizeof(now);

	(void)state;
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_RCVBUF, 100000);
	vma_os.getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &now, &len);
	assert_int_equal(atomic_load(&sock->rcvbuf), now);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_RCVBUF, 1);
	assert_int_equal(atomic_load(&sock->rcvbuf), engine->conf.rx_bytes_min);
}

static void test_timeouts_by_old_and_new_names(void **state)
{
	const struct timeval timeout = {.tv_sec = 2, .tv_usec = 500000}, none = {0};

	(void)state;
	assert_true(atomic_load(&sock->rcvtimeo_ns) == UINT64_MAX);
	assert_int_equal(options_setsockopt(SOL_SOCKET, SO_RCVTIMEO_OLD, &timeout, sizeof(timeout)), 0);
	assert_int_equal(options_setsockopt(SOL_SOCKET, SO_SNDTIMEO_NEW, &timeout, sizeof(timeout)), 0);
	assert_int_equal(atomic_load(&sock->rcvtimeo_ns), 2500000000);
	assert_int_equal(atomic_load(&sock->sndtimeo_ns), 2500000000);
	assert_int_equal(options_setsockopt(SOL_SOCKET, SO_RCVTIMEO_NEW, &none, sizeof(none)), 0);
	assert_true(atomic_load(&sock->rcvtimeo_ns) == UINT64_MAX);
}

static void test_time_stamps_exclude_each_other_as_in_the_kernel(void **state)
{
	(void)state;
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMP_OLD, 1);
	assert_int_equal(atomic_load(&sock->rx_opts), UDP_RX_OPT_TIMESTAMP);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPNS_OLD, 1);
	assert_int_equal(atomic_load(&sock->rx_opts), UDP_RX_OPT_TIMESTAMPNS);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPNS_NEW, 1);
	assert_int_equal(atomic_load(&sock->rx_opts), UDP_RX_OPT_TIMESTAMPNS | UDP_RX_OPT_STAMP_NEW);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPNS_NEW, 0);
	assert_int_equal(atomic_load(&sock->rx_opts), 0);
}

static void test_software_stamps_of_reception_are_ours_and_those_of_sending_the_kernel_s(void **state)
{
	const int received = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;

	(void)state;
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPING_OLD, received);
	assert_int_equal(atomic_load(&sock->rx_opts), UDP_RX_OPT_TIMESTAMPING);
	assert_false(atomic_load(&sock->os_send));
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPING_NEW, received | SOF_TIMESTAMPING_TX_SOFTWARE);
	assert_int_equal(atomic_load(&sock->rx_opts), UDP_RX_OPT_TIMESTAMPING | UDP_RX_OPT_STAMP_NEW);
	assert_true(atomic_load(&sock->os_send));
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPING_OLD, 0);
	assert_false(atomic_load(&sock->os_send));
}

static void test_stamps_of_the_hardware_are_requested_for_by_either_flag(void **state)
{
	(void)state;
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPING_OLD, SOF_TIMESTAMPING_RX_HARDWARE);
	assert_int_equal(atomic_load(&sock->rx_opts), UDP_RX_OPT_HW_STAMP);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPING_OLD,
	                               SOF_TIMESTAMPING_RAW_HARDWARE | SOF_TIMESTAMPING_OPT_PKTINFO);
	assert_int_equal(atomic_load(&sock->rx_opts), UDP_RX_OPT_HW_STAMP | UDP_RX_OPT_STAMP_PKTINFO);
	assert_false(atomic_load(&sock->os_send));
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMPING_OLD, 0);
	assert_int_equal(atomic_load(&sock->rx_opts), 0);
}

static void test_hardware_stamps_cannot_be_switched_on_where_no_card_gives_them(void **state)
{
	struct hwtstamp_config config = {.rx_filter = HWTSTAMP_FILTER_ALL};
	struct ifreq req = {.ifr_name = "lo", .ifr_data = (char *)&config};

	(void)state;
	assert_int_equal(options_ioctl(SIOCSHWTSTAMP, &req), -EOPNOTSUPP);
	assert_int_equal(options_ioctl(SIOCGHWTSTAMP, &req), -EOPNOTSUPP);
	assert_int_equal(options_ioctl(SIOCSHWTSTAMP, NULL), -EFAULT);
}

static void test_each_control_message_is_requested_for_by_its_option(void **state)
{
	static const struct {
		int level, name;
		uint32_t rx_opt;
	} pairs[] = {{IPPROTO_IP, IP_PKTINFO, UDP_RX_OPT_PKTINFO},
	             {IPPROTO_IP, IP_RECVTTL, UDP_RX_OPT_RECVTTL},
	             {IPPROTO_IP, IP_RECVTOS, UDP_RX_OPT_RECVTOS},
	             {IPPROTO_IP, IP_RECVORIGDSTADDR, UDP_RX_OPT_ORIGDST},
	             {SOL_SOCKET, SO_RXQ_OVFL, UDP_RX_OPT_RXQ_OVFL}};

	(void)state;
	for (unsigned i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		assert_int_equal(control_fixture_setsockopt_int(fd, pairs[i].level, pairs[i].name, 1), 0);
		assert_int_equal(atomic_load(&sock->rx_opts), pairs[i].rx_opt);
		assert_int_equal(control_fixture_setsockopt_int(fd, pairs[i].level, pairs[i].name, 0), 0);
		assert_int_equal(atomic_load(&sock->rx_opts), 0);
	}
}

static void test_header_options_take_a_byte_as_well_and_end_the_templates(void **state)
{
	const uint8_t byte = 7;
	uint32_t before = atomic_load(&sock->options_seq);

	(void)state;
	assert_int_equal(options_setsockopt(IPPROTO_IP, IP_MULTICAST_TTL, &byte, 1), 0);
	assert_int_equal(sock->mc_ttl, 7);
	assert_int_not_equal(atomic_load(&sock->options_seq), before);
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0), 0);
	assert_false(sock->mc_loop);
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_TTL, 9), 0);
	assert_int_equal(sock->ttl, 9);
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_TOS, 0x10), 0);
	assert_int_equal(sock->tos, 0x10);
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT), 0);
	assert_int_equal(sock->pmtu_discover, IP_PMTUDISC_DONT);
}

static void test_what_the_kernel_refuses_is_not_mirrored(void **state)
{
	(void)state;
	fixture_restore_library_fault_handlers();
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_TTL, 300), -EINVAL);
	assert_int_equal(sock->ttl, 0);
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MULTICAST_TTL, 256), -EINVAL);
	assert_int_equal(sock->mc_ttl, 1);
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, 9999, 1), -ENOPROTOOPT);
	assert_int_equal(options_setsockopt(SOL_SOCKET, SO_RCVBUF, NULL, 4), -EFAULT);
}

static void test_the_interface_of_groups_by_number_by_address_and_none(void **state)
{
	const struct ip_mreqn by_number = {.imr_ifindex = LAN};
	struct in_addr by_address = {.s_addr = htonl(INADDR_LOOPBACK)}, none = {0};

	(void)state;
	assert_int_equal(options_setsockopt(IPPROTO_IP, IP_MULTICAST_IF, &by_number, sizeof(by_number)), 0);
	assert_int_equal(sock->mc_ifindex, LAN);
	fixture_add_addr(LAN, "127.0.0.1", 8);
	assert_int_equal(options_setsockopt(IPPROTO_IP, IP_MULTICAST_IF, &none, sizeof(none)), 0);
	assert_int_equal(sock->mc_ifindex, 0);
	assert_int_equal(options_setsockopt(IPPROTO_IP, IP_MULTICAST_IF, &by_address, sizeof(by_address)), 0);
	assert_int_equal(sock->mc_ifindex, LAN);
	assert_int_equal(sock->mc_source.s_addr, by_address.s_addr);
}

static void test_the_kernel_sends_while_an_option_of_sending_is_set(void **state)
{
	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_UDP, UDP_CORK, 1), 0);
	assert_true(atomic_load(&sock->os_send));
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_DONTROUTE, 1), 0);
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_UDP, UDP_CORK, 0), 0);
	assert_true(atomic_load(&sock->os_send));
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED); /* it receives as before */
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_DONTROUTE, 0), 0);
	assert_false(atomic_load(&sock->os_send));
}

static void test_ip_options_count_by_their_length(void **state)
{
	const uint8_t nops[4] = {1, 1, 1, 1};

	(void)state;
	assert_int_equal(options_setsockopt(IPPROTO_IP, IP_OPTIONS, nops, sizeof(nops)), 0);
	assert_true(atomic_load(&sock->os_send));
	assert_int_equal(options_setsockopt(IPPROTO_IP, IP_OPTIONS, NULL, 0), 0);
	assert_false(atomic_load(&sock->os_send));
}

static int (*real_setsockopt)(int fd, int level, int name, const void *value, socklen_t len);

static int refuse_setsockopt(int refused, int level, int name, const void *value, socklen_t len)
{
	(void)refused, (void)level, (void)name, (void)value, (void)len;
	errno = EPERM;
	return -1;
}

static void test_privileged_options_are_allowed_if_the_environment_says_so(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();

	(void)state;
	real_setsockopt = vma_os.setsockopt;
	vma_os.setsockopt = refuse_setsockopt;
	sock->engine = engine;
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_RCVBUFFORCE, 5000000), -EPERM);
	engine->conf.given[VMA_CONF_AT_allow_privileged_sock_opt] = true;
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_RCVBUFFORCE, 5000000), 0);
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_MARK, 9), 0);
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_DEBUG, 1), -EPERM);
	engine->conf.given[VMA_CONF_AT_allow_privileged_sock_opt] = false;
	vma_os.setsockopt = real_setsockopt;
	assert_int_equal(atomic_load(&sock->rcvbuf), 5000000);
	assert_int_equal(sock->mark, 9);
}

static void test_exception_handling_2_makes_the_call_fail_and_leaves_the_kernel_alone(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	int now = 1;
	socklen_t len = sizeof(now);

	(void)state;
	engine->conf.exception_handling = VMA_EXCEPTION_RETURN;
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_UDP, UDP_CORK, 1), -ENOPROTOOPT);
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_UDP, UDP_CORK, 0), 0);
	engine->conf.exception_handling = VMA_EXCEPTION_DEBUG;
	vma_os.getsockopt(fd, IPPROTO_UDP, UDP_CORK, &now, &len);
	assert_int_equal(now, 0);
}

static void test_nonblocking_by_fcntl_and_by_ioctl(void **state)
{
	int on = 0;

	(void)state;
	fixture_restore_library_fault_handlers();
	assert_true(atomic_load(&sock->nonblocking)); /* the test's sockets are made so */
	assert_int_equal(options_ioctl(FIONBIO, &on), 0);
	assert_false(atomic_load(&sock->nonblocking));
	assert_int_equal(options_set_flags(O_NONBLOCK), 0);
	assert_true(atomic_load(&sock->nonblocking));
	assert_int_equal(options_set_flags(0), 0);
	assert_false(atomic_load(&sock->nonblocking));
	assert_int_equal(options_ioctl(FIONBIO, NULL), -EFAULT);
}

static void test_signal_driven_input_is_the_kernel_s(void **state)
{
	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	assert_int_equal(options_set_flags(O_NONBLOCK | O_ASYNC), 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OPTION);
	assert_int_equal(options_set_flags(O_NONBLOCK), 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
}

static void test_fionread_is_the_next_datagram_s_length_and_its_pointer_is_checked(void **state)
{
	int len = -1;

	(void)state;
	fixture_restore_library_fault_handlers();
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	assert_int_equal(options_ioctl(FIONREAD, &len), 0);
	assert_int_equal(len, 0);
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), "eleven byte");
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), "more");
	assert_int_equal(options_ioctl(FIONREAD, &len), 0);
	assert_int_equal(len, 11);
	assert_int_equal(options_ioctl(FIONREAD, NULL), -EFAULT);
	control_fixture_receive(fd);
	control_fixture_receive(fd);
}

static void test_the_last_stamp_is_that_of_the_last_datagram_read(void **state)
{
	struct timeval coarse;
	struct timespec fine;

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_TIMESTAMP_OLD, 1);
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), "x");
	assert_string_equal(control_fixture_receive(fd), "x");
	assert_int_equal(options_ioctl(SIOCGSTAMP_OLD, &coarse), 0);
	assert_int_equal(options_ioctl(SIOCGSTAMPNS_NEW, &fine), 0);
	assert_true(fine.tv_sec > 1600000000);
	assert_int_equal(fine.tv_nsec / 1000, coarse.tv_usec);
}

static void test_an_ioctl_of_the_kernel_s_is_the_kernel_s(void **state)
{
	int queued = -1;

	(void)state;
	assert_int_equal(options_ioctl(SIOCOUTQ, &queued), 0);
	assert_int_equal(queued, 0);
	assert_int_equal(options_ioctl(0x5499, NULL), -ENOTTY);
}

static void test_shutdown_of_an_unconnected_socket_fails_and_works_all_the_same(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	assert_int_equal(udp_shutdown(&sock->file, fd, SHUT_RD), -ENOTCONN);
	assert_true(atomic_load(&sock->shut_rd));
	assert_int_equal(udp_shutdown(&sock->file, fd, 77), -EINVAL);
	assert_false(atomic_load(&sock->shut_wr));
	vma_leave(self);
}

static void test_connect_and_disconnect_follow_the_kernel_s_names(void **state)
{
	struct sockaddr_in to = {
	        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
	struct vma_thread *self = vma_enter();

	(void)state;
	fixture.route.type = RTN_LOCAL;
	assert_int_equal(udp_connect(&sock->file, fd, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_true(atomic_load(&sock->connected));
	assert_int_equal(sock->local.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	assert_int_not_equal(sock->local.sin_port, 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_LOCAL);
	assert_int_equal(udp_connect(&sock->file, fd, (struct sockaddr *)&to, 3), -EINVAL);
	assert_true(atomic_load(&sock->connected));
	assert_int_equal(udp_connect(&sock->file, fd, &nobody, sizeof(nobody)), 0);
	assert_false(atomic_load(&sock->connected));
	assert_int_equal(sock->local.sin_port, 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_NEW);
	vma_leave(self);
}

static void test_what_is_not_offloaded_says_why(void **state)
{
	struct vma_thread *self;
	const char *text;
	int six = vma_os.socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), off;
	const struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};

	(void)state;
	assert_true(six >= 0);
	assert_int_equal(vma_udp_socket(six, AF_INET6, SOCK_DGRAM, 0), 0);
	assert_int_equal(control_fixture_reason(six), VMA_SOCK_NEW);
	self = vma_enter();
	assert_int_equal(udp_bind(vma_fd_lookup(six), six, (const struct sockaddr *)&loopback, sizeof(loopback)), 0);
	vma_leave(self);
	assert_int_equal(vma_sock_get_offload_reason(six, &text), 0);
	assert_non_null(strstr(text, vma_sock_reason_text(VMA_SOCK_IPV6)));
	control_fixture_close(six);
	off = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	vma_engine_get_or_start()->conf.offloaded_sockets = false;
	assert_int_equal(vma_udp_socket(off, AF_INET, SOCK_DGRAM, 0), 0);
	vma_engine_get_or_start()->conf.offloaded_sockets = true;
	assert_int_equal(vma_sock_get_offload_reason(off, &text), 0);
	assert_non_null(strstr(text, vma_sock_reason_text(VMA_SOCK_DISABLED)));
	control_fixture_close(off);
	assert_int_equal(vma_sock_get_offload_reason(fd, &text), 0);
	assert_string_equal(text, vma_sock_reason_text(VMA_SOCK_NEW));
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	assert_int_equal(vma_sock_get_offload_reason(fd, &text), 1);
}

static void test_which_sockets_are_udp_s(void **state)
{
	(void)state;
	assert_true(vma_udp_takes_socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
	assert_true(vma_udp_takes_socket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP));
	assert_false(vma_udp_takes_socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
	assert_false(vma_udp_takes_socket(AF_INET, SOCK_STREAM, 0));
	assert_false(vma_udp_takes_socket(AF_UNIX, SOCK_DGRAM, 0));
}

static void test_multicast_loop_starts_as_the_parameter_says(void **state)
{
	int other = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), loop = 1;
	socklen_t len = sizeof(loop);

	(void)state;
	vma_engine_get_or_start()->conf.tx_mc_loopback = false;
	assert_int_equal(vma_udp_socket(other, AF_INET, SOCK_DGRAM, 0), 0);
	vma_engine_get_or_start()->conf.tx_mc_loopback = true;
	assert_false(control_fixture_sock_of(other)->mc_loop);
	vma_os.getsockopt(other, IPPROTO_IP, IP_MULTICAST_LOOP, &loop, &len);
	assert_int_equal(loop, 0);
	assert_true(sock->mc_loop);
	control_fixture_close(other);
}

static void test_a_join_returns_after_the_time_that_the_parameter_says(void **state)
{
	uint64_t before = vma_now_ns();

	(void)state;
	vma_engine_get_or_start()->conf.wait_after_join_msec = 30;
	assert_int_equal(control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.5.0.1"), 0);
	assert_true(vma_now_ns() - before >= 30000000);
	vma_engine_get_or_start()->conf.wait_after_join_msec = 2000;
	before = vma_now_ns();
	assert_int_equal(control_fixture_set_membership(fd, IP_DROP_MEMBERSHIP, "239.5.0.1"), 0);
	vma_engine_get_or_start()->conf.wait_after_join_msec = 0;
	assert_true(vma_now_ns() - before < 2000000000);
}

#define T(name) cmocka_unit_test_setup_teardown(test_##name, setup_options_udp_socket, teardown_close_options_socket)
static const struct CMUnitTest tests[] = {
        T(the_limit_of_the_queue_is_so_rcvbuf_but_not_below_the_parameter),
        T(timeouts_by_old_and_new_names),
        T(time_stamps_exclude_each_other_as_in_the_kernel),
        T(software_stamps_of_reception_are_ours_and_those_of_sending_the_kernel_s),
        T(stamps_of_the_hardware_are_requested_for_by_either_flag),
        T(hardware_stamps_cannot_be_switched_on_where_no_card_gives_them),
        T(each_control_message_is_requested_for_by_its_option),
        T(header_options_take_a_byte_as_well_and_end_the_templates),
        T(what_the_kernel_refuses_is_not_mirrored),
        T(the_interface_of_groups_by_number_by_address_and_none),
        T(the_kernel_sends_while_an_option_of_sending_is_set),
        T(ip_options_count_by_their_length),
        T(privileged_options_are_allowed_if_the_environment_says_so),
        T(exception_handling_2_makes_the_call_fail_and_leaves_the_kernel_alone),
        T(nonblocking_by_fcntl_and_by_ioctl),
        T(signal_driven_input_is_the_kernel_s),
        T(fionread_is_the_next_datagram_s_length_and_its_pointer_is_checked),
        T(the_last_stamp_is_that_of_the_last_datagram_read),
        T(an_ioctl_of_the_kernel_s_is_the_kernel_s),
        T(shutdown_of_an_unconnected_socket_fails_and_works_all_the_same),
        T(connect_and_disconnect_follow_the_kernel_s_names),
        T(what_is_not_offloaded_says_why),
        T(which_sockets_are_udp_s),
        T(multicast_loop_starts_as_the_parameter_says),
        T(a_join_returns_after_the_time_that_the_parameter_says),
};

FIXTURE_MAIN("options", tests)
