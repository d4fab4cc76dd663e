/* The real kernel, as an ordinary user: what every machine has is its loopback. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/test.h>

#include "../net_priv.h"

static struct vma_net *net;

static int setup_net(void **state)
{
	(void)state;
	return vma_net_create(NULL, &net);
}

static int teardown_net(void **state)
{
	(void)state;
	vma_net_destroy(net);
	return 0;
}

static struct vma_net_key make_udp_key_to(const char *address)
{
	struct vma_net_key key = {
	        .family = AF_INET, .proto = IPPROTO_UDP, .dport_be = htons(9), .uid = (uint32_t)geteuid()};

	assert_int_equal(inet_pton(AF_INET, address, key.dst), 1);
	return key;
}

static bool loopback_is_up(void)
{
	struct vma_net_link link;

	return vma_net_link_by_name(net, "lo", &link) == 0 && (link.flags & IFF_UP) != 0;
}

static void test_loopback_interface_is_known_by_name_and_number(void **state)
{
	struct vma_net_link by_name, by_number;

	(void)state;
	assert_int_equal(vma_net_link_by_name(net, "lo", &by_name), 0);
	assert_true((by_name.flags & IFF_LOOPBACK) != 0);
	assert_int_equal(vma_net_get_link(net, by_name.ifindex, &by_number), 0);
	assert_memory_equal(&by_name, &by_number, sizeof(by_name));
	assert_true(vma_net_links(net, NULL, 0) >= 1);
	assert_int_equal(vma_net_link_by_name(net, "no such one", &by_name), -ENODEV);
	assert_int_equal(vma_net_get_link(net, 0x7fffffff, &by_number), -ENODEV);
}

static bool sigusr1_is_blocked_under_net_lock(struct vma_net *of)
{
	struct net_hold hold;
	sigset_t now;

	net_lock(of, &hold);
	pthread_sigmask(SIG_BLOCK, NULL, &now);
	net_unlock(of, &hold);
	return sigismember(&now, SIGUSR1);
}

static void test_signals_wait_for_the_lock_unless_its_users_hold_them_back(void **state)
{
	const struct vma_net_attr attr = {.callers_hold_signals = true};
	struct vma_net *callers_hold_signals;

	(void)state;
	assert_int_equal(vma_net_create(&attr, &callers_hold_signals), 0);
	assert_true(sigusr1_is_blocked_under_net_lock(net));
	assert_false(sigusr1_is_blocked_under_net_lock(callers_hold_signals));
	vma_net_destroy(callers_hold_signals);
}

static void test_own_address_is_local_and_the_os_serves_it(void **state)
{
	const struct vma_net_key key = make_udp_key_to("127.0.0.1");
	const uint8_t loopback[16] = {127, 0, 0, 1};
	struct vma_net_route route;
	struct vma_net_path *path;
	struct vma_net_template t;
	char text[256];

	(void)state;
	if (!loopback_is_up())
		vma_test_skip("the loopback is down here");
	assert_int_equal(vma_net_query_route(net, &key, &route), 0);
	assert_int_equal(route.type, RTN_LOCAL);
	assert_memory_equal(route.src, loopback, 16);
	assert_int_equal(vma_net_path_get(net, &key, &path), 0);
	vma_net_path_read_template(path, &t);
	assert_int_equal(t.state, VMA_NET_USE_OS);
	assert_int_equal(t.reason, VMA_NET_REASON_LOCAL);
	vma_net_template_text(&t, text, sizeof(text));
	assert_non_null(strstr(text, "local via 127.0.0.1"));
	vma_net_path_put(net, path);
}

/* The errno changed with the kernels: 0 if it is sent. */
static int errno_of_send_to_loopback_from(const uint8_t src[4])
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct in_pktinfo))] = {0};
	struct sockaddr_in to = {
	        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct iovec iov = {.iov_base = "x", .iov_len = 1};
	struct msghdr msg = {.msg_name = &to,
	                     .msg_namelen = sizeof(to),
	                     .msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control,
	                     .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct in_pktinfo info = {0};
	int error;

	memcpy(&info.ipi_spec_dst, src, 4);
	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(info)), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO};
	memcpy(CMSG_DATA(c), &info, sizeof(info));
	error = sendmsg(fd, &msg, 0) < 0 ? errno : 0;
	close(fd);
	return error;
}

static void test_refusals_come_with_the_kernels_errno(void **state)
{
	struct vma_net_key key = make_udp_key_to("127.0.0.1");
	struct sockaddr_in nowhere = {.sin_family = AF_INET, .sin_port = htons(9)};
	struct vma_net_route route;
	const int fd = socket(AF_INET, SOCK_DGRAM, 0);
	int wanted;

	(void)state;
	/* whatever this machine's routes say of 0.1.2.3, both say the same */
	inet_pton(AF_INET, "0.1.2.3", &nowhere.sin_addr);
	wanted = connect(fd, (struct sockaddr *)&nowhere, sizeof(nowhere)) < 0 ? -errno : 0;
	close(fd);
	inet_pton(AF_INET, "0.1.2.3", key.dst);
	assert_int_equal(vma_net_query_route(net, &key, &route), wanted);
	key = make_udp_key_to("127.0.0.1");
	key.oif = 0x7fffffff;
	assert_int_equal(vma_net_query_route(net, &key, &route), -ENODEV);
	key = make_udp_key_to("127.0.0.1");
	inet_pton(AF_INET, "203.0.113.77", key.src); /* not an address of this host */
	wanted = -errno_of_send_to_loopback_from(key.src);
	assert_int_not_equal(wanted, 0);
	assert_int_equal(vma_net_query_route(net, &key, &route), wanted);
}

static void test_keys_that_cannot_be_are_refused(void **state)
{
	struct vma_net_key key = make_udp_key_to("127.0.0.1");
	struct vma_net_path *path;
	struct vma_net_route route;
	struct vma_net_neigh neigh;

	(void)state;
	key.family = AF_INET6;
	assert_int_equal(vma_net_path_get(net, &key, &path), -EAFNOSUPPORT);
	assert_int_equal(vma_net_query_route(net, &key, &route), -EAFNOSUPPORT);
	assert_int_equal(vma_net_read_neigh_from_kernel(net, 1, AF_INET6, key.dst, &neigh), -EAFNOSUPPORT);
	assert_int_equal(vma_net_make_kernel_resolve_neigh(net, 1, AF_INET6, key.dst), -EAFNOSUPPORT);
	key.family = AF_UNIX;
	assert_int_equal(vma_net_path_get(net, &key, &path), -EINVAL);
	key = make_udp_key_to("127.0.0.1");
	key.zero = 1;
	assert_int_equal(vma_net_path_get(net, &key, &path), -EINVAL);
	key = make_udp_key_to("127.0.0.1");
	key.dst[15] = 1;
	assert_int_equal(vma_net_path_get(net, &key, &path), -EINVAL);
}

static void test_equal_keys_share_a_path_and_find_sees_it(void **state)
{
	struct vma_net_key key = make_udp_key_to("127.0.0.5"), other = make_udp_key_to("127.0.0.6");
	struct vma_net_path *first, *second;
	struct vma_net_template t;

	(void)state;
	assert_false(vma_net_find_template(net, &key, &t));
	assert_int_equal(vma_net_path_get(net, &key, &first), 0);
	assert_int_equal(vma_net_path_get(net, &key, &second), 0);
	assert_ptr_equal(first, second);
	assert_true(vma_net_find_template(net, &key, &t));
	assert_false(vma_net_path_changed(first, t.version));
	assert_false(vma_net_find_template(net, &other, &t));
	vma_net_path_put(net, first);
	vma_net_path_put(net, second);
	assert_true(vma_net_find_template(net, &key, &t)); /* stays for a while */
}

static bool net_fd_is_readable(void)
{
	struct pollfd fd = {.fd = vma_net_fd(net), .events = POLLIN};

	return poll(&fd, 1, 0) == 1;
}

static void test_request_of_the_data_path_wakes_who_processes(void **state)
{
	struct vma_net_key key = make_udp_key_to("127.0.0.1");
	struct vma_net_path *path;

	(void)state;
	assert_int_equal(vma_net_path_get(net, &key, &path), 0);
	vma_net_process_events(net);
	vma_net_path_recheck(net, path);
	vma_net_path_recheck(net, path);
	assert_true(net_fd_is_readable());
	assert_true(vma_net_process_events(net) >= 1);
	vma_net_request_path_check(net, &key, VMA_NET_REQUEST_PROBE);
	assert_true(net_fd_is_readable());
	assert_true(vma_net_process_events(net) >= 1);
	vma_net_path_put(net, path);
}

static void test_wanted_destination_is_there_after_processing(void **state)
{
	const struct vma_net_key key = make_udp_key_to("127.0.0.9");
	struct vma_net_key impossible = key;
	struct vma_net_template t;
	int posted = 0;

	(void)state;
	vma_net_process_events(net);
	assert_true(vma_net_request_path(net, &key));
	assert_true(net_fd_is_readable());
	assert_false(vma_net_find_template(net, &key, &t));
	assert_true(vma_net_process_events(net) >= 1);
	assert_true(vma_net_find_template(net, &key, &t));
	impossible.family = AF_UNIX;
	assert_false(vma_net_request_path(net, &impossible));
	while (vma_net_request_path(net, &key)) /* one key does not fill the board for others */
		assert_true(++posted < 64);
	assert_true(vma_net_process_events(net) >= posted);
	assert_true(vma_net_request_path(net, &key));
}

static struct vma_net_key handlers_key;
static _Atomic int handled;

static void handler_request_path_in_signal(int number)
{
	struct vma_net_template t;
	struct net_hold hold;

	(void)number;
	if (!vma_net_find_template(net, &handlers_key, &t))
		vma_net_request_path(net, &handlers_key);
	vma_net_request_path_check(net, &handlers_key, VMA_NET_REQUEST_RECHECK);
	net_lock(net, &hold); /* would wait for ever, had it interrupted the holder */
	net_unlock(net, &hold);
	atomic_fetch_add(&handled, 1);
}

static void test_signal_handler_that_calls_in_waits_for_nobody(void **state)
{
	const struct sigaction action = {.sa_handler = handler_request_path_in_signal},
	                       ignore = {.sa_handler = SIG_IGN};
	const struct itimerval often = {{0, 500}, {0, 500}}, off = {0};

	(void)state;
	handlers_key = make_udp_key_to("127.0.0.10");
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 10000000 && atomic_load(&handled) < 100; i++)
		assert_true(vma_net_process_events(net) >= 0);
	setitimer(ITIMER_REAL, &off, NULL);
	sigaction(SIGALRM, &ignore, NULL);
	assert_true(atomic_load(&handled) >= 100);
}

static void test_descriptors_keep_out_of_small_numbers(void **state)
{
	struct rlimit limit;

	(void)state;
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur <= 1010)
		vma_test_skip("numbers above 1010 are not to be had here");
	assert_true(vma_net_fd(net) >= 1000);
}

static void test_forked_child_makes_its_own(void **state)
{
	struct vma_net_key key = make_udp_key_to("127.0.0.1");
	struct vma_net_route route;
	int status;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		vma_net_destroy(net);
		_exit(vma_net_create(NULL, &net) != 0 || vma_net_query_route(net, &key, &route) != 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(vma_net_query_route(net, &key, &route), 0);
	assert_true(vma_net_process_events(net) >= 0);
}

/* More destinations than the hash table holds at first, so that it grows, and each is still found. */
static void test_many_destinations_are_all_found(void **state)
{
	struct vma_net_template t;
	struct vma_net_key key = make_udp_key_to("127.1.0.0");
	struct vma_net_path *path;

	(void)state;
	for (unsigned i = 0; i < 1000; i++) {
		key.dst[2] = (uint8_t)(i >> 8);
		key.dst[3] = (uint8_t)i;
		assert_int_equal(vma_net_path_get(net, &key, &path), 0);
		vma_net_path_put(net, path);
	}
	for (unsigned i = 0; i < 1000; i++) {
		key.dst[2] = (uint8_t)(i >> 8);
		key.dst[3] = (uint8_t)i;
		assert_true(vma_net_find_template(net, &key, &t));
		assert_memory_equal(t.next_hop, key.dst, 16);
	}
}

#define EACH(test) cmocka_unit_test_setup_teardown(test, setup_net, teardown_net)
static const struct CMUnitTest tests[] = {
        EACH(test_loopback_interface_is_known_by_name_and_number),
        EACH(test_own_address_is_local_and_the_os_serves_it),
        EACH(test_refusals_come_with_the_kernels_errno),
        EACH(test_keys_that_cannot_be_are_refused),
        EACH(test_equal_keys_share_a_path_and_find_sees_it),
        EACH(test_request_of_the_data_path_wakes_who_processes),
        EACH(test_wanted_destination_is_there_after_processing),
        EACH(test_signal_handler_that_calls_in_waits_for_nobody),
        EACH(test_signals_wait_for_the_lock_unless_its_users_hold_them_back),
        EACH(test_descriptors_keep_out_of_small_numbers),
        EACH(test_forked_child_makes_its_own),
        EACH(test_many_destinations_are_all_found),
};

VMA_TEST_MAIN(tests)
