/* What is attached, and who gets what comes. */
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "../fork_queue.h"
#include "../recv.h"
#include "../../rules/test/rules_fixture.h"
#include "control_fixture.h"

/* The group's queues are filled by whoever drives: here, whoever receives first. */
static void drive_rings_of_socket(int fd)
{
	vma_ring_ctxs_progress(udp_socket_rings_mask(vma_fd_lookup(fd)));
}

static void test_a_bound_socket_receives_what_comes_to_its_port(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_NEW);
	assert_int_equal(control_fixture_bind_to(fd, "10.77.0.1", 0), 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), "hello");
	assert_string_equal(control_fixture_receive(fd), "hello");
	assert_string_equal(control_fixture_receive(fd), "");
	control_fixture_close(fd);
}

static void test_a_new_flow_makes_the_next_receive_look_at_the_shadow_first(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 36700);
	assert_true(atomic_load(&control_fixture_sock_of(fd)->os_attention));
	control_fixture_close(fd);
}

static void test_nothing_has_come_to_a_port_that_was_chosen_just_now(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	assert_false(atomic_load(&control_fixture_sock_of(fd)->os_attention));
	control_fixture_update_flows(fd);
	control_fixture_close(fd);
}

static uint32_t first_flow_flags_of_fd(int fd)
{
	return control_fixture_sock_of(fd)->flows->members->flow.flags;
}

static void test_a_chosen_port_is_the_sockets_alone_until_it_may_be_shared(void **state)
{
	int chosen = fixture_open_offloaded_udp_socket(), own = fixture_open_offloaded_udp_socket(),
	    shares = fixture_open_offloaded_udp_socket(), forked = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(shares, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_bind_to(chosen, "10.77.0.1", 0);
	control_fixture_bind_to(own, "10.77.0.1", 36730);
	control_fixture_bind_to(shares, "10.77.0.1", 0);
	control_fixture_bind_to(forked, "10.77.0.1", 0);
	assert_int_equal(first_flow_flags_of_fd(chosen), VMA_FLOW_PORT_EXCLUSIVE);
	assert_int_equal(first_flow_flags_of_fd(own), 0);
	assert_int_equal(first_flow_flags_of_fd(shares), 0);
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(chosen), "before");
	drive_rings_of_socket(chosen);
	control_fixture_setsockopt_int(chosen, SOL_SOCKET, SO_REUSEADDR, 1);
	assert_int_equal(first_flow_flags_of_fd(chosen), 0);
	control_fixture_setsockopt_int(chosen, SOL_SOCKET, SO_REUSEADDR, 0);
	control_fixture_update_flows(chosen);
	assert_int_equal(first_flow_flags_of_fd(chosen), 0);
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(chosen), "after");
	assert_string_equal(control_fixture_receive(chosen), "before");
	assert_string_equal(control_fixture_receive(chosen), "after");
	pthread_mutex_lock(&control_fixture_sock_of(forked)->file.lock);
	udp_flows_leave_to_kernel_for_a_while(control_fixture_sock_of(forked));
	control_fixture_sock_of(forked)->flows->paused_ns = 0;
	pthread_mutex_unlock(&control_fixture_sock_of(forked)->file.lock);
	control_fixture_update_flows(forked);
	assert_int_equal(first_flow_flags_of_fd(forked), 0);
	control_fixture_close(chosen);
	control_fixture_close(own);
	control_fixture_close(shares);
	control_fixture_close(forked);
}

static void test_the_wildcard_hears_unicast_and_broadcast(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_bind_to(fd, "0.0.0.0", 36701);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36701, "one");
	peer_send("10.77.0.2", 7000, "10.77.0.255", 36701, "all here");
	peer_send("10.77.0.2", 7000, "255.255.255.255", 36701, "all");
	assert_string_equal(control_fixture_receive(fd), "one");
	assert_string_equal(control_fixture_receive(fd), "all here");
	assert_string_equal(control_fixture_receive(fd), "all");
	control_fixture_close(fd);
}

static int flows_connect_to(int fd, const char *address, uint16_t port)
{
	struct sockaddr_in to = {
	        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = control_fixture_parse_ip(address)};
	struct vma_thread *self = vma_enter();
	const int rc = udp_connect(vma_fd_lookup(fd), fd, (struct sockaddr *)&to, sizeof(to));

	vma_leave(self);
	return rc;
}

static void test_exception_handling_2_makes_calls_fail_that_leave_the_socket_to_the_os(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	conf->exception_handling = VMA_EXCEPTION_RETURN;
	vma_log_set_level(VMA_LOG_NONE);
	fixture.no_device = true;
	assert_int_equal(control_fixture_bind_to(fd, "10.77.0.1", 36741), -EADDRNOTAVAIL);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_NO_DEVICE);
	assert_int_equal(flows_connect_to(fd, "127.0.0.1", 36742), -ENETUNREACH);
	assert_int_equal(control_fixture_sock_of(fd)->peer.sin_family, 0); /* undone, in the kernel as well */
	fixture.no_device = false;
	control_fixture_close(fd);
	fd = fixture_open_offloaded_udp_socket();
	assert_int_equal(control_fixture_bind_to(fd, "10.77.0.1", 36741), 0);
	vma_log_set_level(VMA_LOG_WARN);
	conf->exception_handling = VMA_EXCEPTION_DEBUG;
	control_fixture_close(fd);
}

static void test_without_a_device_the_socket_is_the_os_s(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	fixture.no_device = true;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_NO_DEVICE);
	assert_null(atomic_load(&control_fixture_sock_of(fd)->attachments));
	fixture.no_device = false;
	control_fixture_update_flows(fd);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	control_fixture_close(fd);
}

static void test_of_two_that_reuse_the_address_the_newest_wins_until_it_closes(void **state)
{
	int a = fixture_open_offloaded_udp_socket(), b = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(a, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(b, SOL_SOCKET, SO_REUSEADDR, 1);
	assert_int_equal(control_fixture_bind_to(a, "10.77.0.1", 36702), 0);
	assert_int_equal(control_fixture_bind_to(b, "10.77.0.1", 36702), 0);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36702, "new");
	assert_string_equal(control_fixture_receive(a), "");
	assert_string_equal(control_fixture_receive(b), "new");
	control_fixture_close(b);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36702, "old");
	assert_string_equal(control_fixture_receive(a), "old");
	control_fixture_close(a);
}

static void test_a_socket_bound_to_the_address_wins_over_the_wildcard(void **state)
{
	int exact = fixture_open_offloaded_udp_socket(), any = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(exact, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(any, SOL_SOCKET, SO_REUSEADDR, 1);
	assert_int_equal(control_fixture_bind_to(exact, "10.77.0.1", 36703), 0);
	assert_int_equal(control_fixture_bind_to(any, "0.0.0.0", 36703), 0);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36703, "exact");
	assert_string_equal(control_fixture_receive(any), "");
	assert_string_equal(control_fixture_receive(exact), "exact");
	control_fixture_close(exact);
	control_fixture_close(any);
}

static void test_reuseport_spreads_flows_and_keeps_each_with_one_socket(void **state)
{
	int fd[3];
	unsigned got[3] = {0};

	(void)state;
	for (int i = 0; i < 3; i++) {
		fd[i] = fixture_open_offloaded_udp_socket();
		control_fixture_setsockopt_int(fd[i], SOL_SOCKET, SO_REUSEPORT, 1);
		assert_int_equal(control_fixture_bind_to(fd[i], "10.77.0.1", 36704), 0);
	}
	for (uint16_t port = 7000; port < 7060; port++) {
		int to = -1;

		for (int twice = 0; twice < 2; twice++) {
			peer_send("10.77.0.2", port, "10.77.0.1", 36704, "x");
			for (int i = 0; i < 3; i++) {
				if (strcmp(control_fixture_receive(fd[i]), "x") != 0)
					continue;
				assert_true(to == -1 || to == i);
				to = i;
				got[i]++;
			}
		}
		assert_true(to >= 0);
	}
	assert_int_equal(got[0] + got[1] + got[2], 120);
	for (int i = 0; i < 3; i++) {
		assert_in_range(got[i], 10, 80);
		control_fixture_close(fd[i]);
	}
}

static void test_a_connected_socket_wins_for_its_peer(void **state)
{
	int open = fixture_open_offloaded_udp_socket(), bound = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(open, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(bound, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_bind_to(bound, "10.77.0.1", 36705);
	control_fixture_bind_to(open, "10.77.0.1", 36705);
	set_socket_as_if_connected(bound, "10.77.0.2", 7000);
	peer_send("10.77.0.2", 7000, "10.77.0.1", 36705, "peer");
	peer_send("10.77.0.3", 7000, "10.77.0.1", 36705, "other");
	assert_string_equal(control_fixture_receive(bound), "peer");
	assert_string_equal(control_fixture_receive(bound), "");
	assert_string_equal(control_fixture_receive(open), "other");
	set_socket_as_if_connected(bound, "", 0);
	assert_int_equal(control_fixture_reason(bound), VMA_SOCK_OFFLOADED);
	control_fixture_close(open);
	peer_send("10.77.0.3", 7000, "10.77.0.1", 36705, "again");
	assert_string_equal(control_fixture_receive(bound), "again");
	control_fixture_close(bound);
}

static void test_connecting_keeps_what_is_queued(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	peer_send("10.77.0.3", 7000, "10.77.0.1", port_of(fd), "before");
	drive_rings_of_socket(fd);
	set_socket_as_if_connected(fd, "10.77.0.2", 7000);
	assert_string_equal(control_fixture_receive(fd), "before");
	control_fixture_close(fd);
}

static void test_every_member_of_a_group_gets_a_copy_and_after_leaving_none(void **state)
{
	int a = fixture_open_offloaded_udp_socket(), b = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(a, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(b, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_bind_to(a, "239.1.1.1", 36706);
	control_fixture_bind_to(b, "239.1.1.1", 36706);
	assert_int_equal(control_fixture_reason(a), VMA_SOCK_NO_MEMBERSHIP);
	assert_int_equal(control_fixture_set_membership(a, IP_ADD_MEMBERSHIP, "239.1.1.1"), 0);
	assert_int_equal(control_fixture_set_membership(b, IP_ADD_MEMBERSHIP, "239.1.1.1"), 0);
	assert_int_equal(control_fixture_reason(a), VMA_SOCK_OFFLOADED);
	peer_send("10.77.0.2", 7000, "239.1.1.1", 36706, "both");
	assert_string_equal(control_fixture_receive(a), "both");
	assert_string_equal(control_fixture_receive(b), "both");
	control_fixture_setsockopt_int(a, IPPROTO_IP, IP_MULTICAST_ALL, 0);
	assert_int_equal(control_fixture_set_membership(a, IP_DROP_MEMBERSHIP, "239.1.1.1"), 0);
	assert_int_equal(control_fixture_reason(a), VMA_SOCK_NO_MEMBERSHIP);
	peer_send("10.77.0.2", 7000, "239.1.1.1", 36706, "b only");
	assert_string_equal(control_fixture_receive(b), "b only");
	assert_string_equal(control_fixture_receive(a), "");
	control_fixture_close(a);
	control_fixture_close(b);
}

static void test_a_socket_that_has_not_joined_hears_groups_that_others_joined_unless_it_says_no(void **state)
{
	int member = fixture_open_offloaded_udp_socket(), guest = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(member, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(guest, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_bind_to(guest, "0.0.0.0", 36707);
	control_fixture_bind_to(member, "0.0.0.0", 36707);
	control_fixture_set_membership(member, IP_ADD_MEMBERSHIP, "239.1.1.2");
	peer_send("10.77.0.2", 7000, "239.1.1.2", 36707, "both");
	assert_string_equal(control_fixture_receive(member), "both");
	assert_string_equal(control_fixture_receive(guest), "both");
	control_fixture_setsockopt_int(guest, IPPROTO_IP, IP_MULTICAST_ALL, 0);
	peer_send("10.77.0.2", 7000, "239.1.1.2", 36707, "member");
	assert_string_equal(control_fixture_receive(member), "member");
	assert_string_equal(control_fixture_receive(guest), "");
	control_fixture_setsockopt_int(guest, IPPROTO_IP, IP_MULTICAST_ALL, 1);
	control_fixture_set_membership(member, IP_DROP_MEMBERSHIP, "239.1.1.2");
	/* Nobody is a member any more. */
	peer_send("10.77.0.2", 7000, "239.1.1.2", 36707, "nobody");
	assert_string_equal(control_fixture_receive(guest), "");
	control_fixture_close(member);
	control_fixture_close(guest);
}

static void test_a_guest_stays_when_it_joins_and_goes_when_the_last_host_closes(void **state)
{
	int first = fixture_open_offloaded_udp_socket(), second = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_setsockopt_int(first, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_setsockopt_int(second, SOL_SOCKET, SO_REUSEADDR, 1);
	control_fixture_bind_to(first, "239.1.1.3", 36708);
	control_fixture_bind_to(second, "239.1.1.3", 36708);
	control_fixture_set_membership(first, IP_ADD_MEMBERSHIP, "239.1.1.3");
	control_fixture_set_membership(second, IP_ADD_MEMBERSHIP, "239.1.1.3");
	control_fixture_close(first);
	peer_send("10.77.0.2", 7000, "239.1.1.3", 36708, "host now");
	assert_string_equal(control_fixture_receive(second), "host now");
	control_fixture_set_membership(second, IP_DROP_MEMBERSHIP, "239.1.1.3");
	peer_send("10.77.0.2", 7000, "239.1.1.3", 36708, "nobody");
	assert_string_equal(control_fixture_receive(second), "");
	control_fixture_close(second);
}

static bool sink_that_refuses_all_packets(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)flow, (void)packet, (void)info;
	return false;
}

static void test_a_key_that_another_has_leaves_the_socket_to_the_os_until_it_is_free(void **state)
{
	struct vma_ring_attr attr = {.name = "other",
	                             .nic = fixture.end[0],
	                             .spill_pool = vma_engine_get_or_start()->spill,
	                             .rx_wre = 64,
	                             .tx_wre = 64,
	                             .thread_mode = VMA_THREAD_SPIN};
	struct vma_flow flow = {.sink = sink_that_refuses_all_packets,
	                        .key = {.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = htons(36709)}};
	uint32_t local = control_fixture_parse_ip("10.77.0.1");
	struct vma_ring *other;
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	memcpy(flow.key.local, &local, 4);
	assert_int_equal(vma_ring_create(&attr, &other), 0);
	assert_int_equal(vma_ring_attach_flow(other, &flow), 0);
	control_fixture_bind_to(fd, "10.77.0.1", 36709);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_PORT_SHARED);
	assert_true(atomic_load(&control_fixture_sock_of(fd)->file.retry));
	vma_ring_detach_flow(other, &flow);
	control_fixture_update_flows(fd);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	assert_false(atomic_load(&control_fixture_sock_of(fd)->file.retry));
	vma_ring_destroy(other);
	control_fixture_close(fd);
}

static bool has_scheduled_flows_task(int fd)
{
	return atomic_load(&control_fixture_sock_of(fd)->flows->task_scheduled);
}

static void test_a_revoked_flow_leaves_what_is_queued_readable_and_is_asked_for_again(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();
	struct udp_member *member;

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	control_fixture_receive(fd); /* the shadow has been looked at */
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), "queued");
	drive_rings_of_socket(fd);
	member = control_fixture_sock_of(fd)->flows->members;
	member->flow.ops->revoked(&member->flow);
	for (int ms = 0; ms < 2000 && has_scheduled_flows_task(fd); ms++)
		usleep(1000);
	assert_false(has_scheduled_flows_task(fd));
	pthread_mutex_lock(&control_fixture_sock_of(fd)->file.lock); /* the task has it while it runs */
	pthread_mutex_unlock(&control_fixture_sock_of(fd)->file.lock);
	assert_false(atomic_load(&control_fixture_sock_of(fd)->flows->members->revoked));
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	assert_string_equal(control_fixture_receive(fd), "queued");
	control_fixture_close(fd);
}

static void test_an_address_that_goes_takes_its_flow_along(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	fixture.addrs = 0;
	control_fixture_update_flows(fd);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_LOCAL);
	assert_null(atomic_load(&control_fixture_sock_of(fd)->attachments));
	fixture_reset();
	control_fixture_update_flows(fd);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	control_fixture_close(fd);
}

static void test_datagrams_left_in_a_queue_outlive_its_flows(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	control_fixture_receive(fd);
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), "late");
	drive_rings_of_socket(fd);
	fixture.addrs = 0;
	control_fixture_update_flows(fd);
	assert_string_equal(control_fixture_receive(fd), "late");
	control_fixture_update_flows(fd);
	assert_null(atomic_load(&control_fixture_sock_of(fd)->attachments));
	fixture_reset();
	control_fixture_close(fd);
}

static void test_an_option_of_the_kernel_s_ends_the_flows_as_long_as_it_is_set(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_PEEK_OFF, 0), 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OPTION);
	assert_null(control_fixture_sock_of(fd)->flows->members);
	assert_int_equal(control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_PEEK_OFF, -1), 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	control_fixture_close(fd);
}

static void test_before_a_fork_the_kernel_gets_everything_and_a_second_later_we_ask_again(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();
	struct udp_sock *sock = control_fixture_sock_of(fd);
	struct vma_thread *self = vma_enter();

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	control_fixture_receive(fd);
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), "on its way");
	pthread_mutex_lock(&sock->file.lock);
	udp_flows_leave_to_kernel_for_a_while(sock);
	pthread_mutex_unlock(&sock->file.lock);
	assert_null(sock->flows->members);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_PORT_SHARED);
	control_fixture_update_flows(fd); /* whatever happens meanwhile */
	assert_null(sock->flows->members);
	assert_string_equal(control_fixture_receive(fd), "on its way");
	vma_leave(self);
	for (int ms = 0; ms < 4000 && control_fixture_reason(fd) != VMA_SOCK_OFFLOADED; ms += 10)
		usleep(10000);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	control_fixture_close(fd);
}

struct attacher {
	struct udp_sock *sock;
	_Atomic bool has_lock;
};

static void *reattach_flows_slowly_thread(void *arg)
{
	struct attacher *attacher = arg;

	pthread_mutex_lock(&attacher->sock->file.lock);
	udp_flows_detach_all(attacher->sock);
	atomic_store(&attacher->has_lock, true);
	usleep(100000);
	udp_flows_update(attacher->sock);
	pthread_mutex_unlock(&attacher->sock->file.lock);
	return NULL;
}

static void test_at_the_end_what_others_have_too_is_left_to_them_whoever_attaches_just_now(void **state)
{
	int shared = fixture_open_offloaded_udp_socket(), own;
	struct attacher attacher = {.sock = control_fixture_sock_of(shared)};
	pthread_t thread;

	(void)state;
	control_fixture_bind_to(shared, "10.77.0.1", 0);
	atomic_fetch_add(&vma_fork_count, 1);
	own = fixture_open_offloaded_udp_socket();
	control_fixture_bind_to(own, "10.77.0.1", 0);
	assert_int_equal(pthread_create(&thread, NULL, reattach_flows_slowly_thread, &attacher), 0);
	while (!atomic_load(&attacher.has_lock))
		usleep(1000);
	vma_udp_leave_forked_sockets_flows_at_exit();
	assert_null(attacher.sock->flows->members);
	control_fixture_update_flows(shared);
	assert_null(attacher.sock->flows->members);
	assert_non_null(control_fixture_sock_of(own)->flows->members);
	pthread_join(thread, NULL);
	control_fixture_close(shared);
	control_fixture_close(own);
}

/* Two forks before anybody reads; other processes would take from the same memory. */
static void test_what_is_queued_before_a_fork_is_taken_once_in_order_and_before_the_shadow_s(void **state)
{
	int fd = fixture_open_offloaded_udp_socket(), len = 0;
	struct udp_sock *sock = control_fixture_sock_of(fd);
	struct vma_thread *self = vma_enter();

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	for (int i = 0; i < 2; i++) {
		sock->flows->paused_ns = 0;
		control_fixture_update_flows(fd);
		peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), i == 0 ? "first" : "third");
		peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), i == 0 ? "second" : "and fourth");
		pthread_mutex_lock(&sock->file.lock);
		udp_flows_leave_to_kernel_for_a_while(sock);
		pthread_mutex_unlock(&sock->file.lock);
		assert_false(udp_has_datagram(atomic_load(&sock->attachments)));
	}
	assert_true(udp_poll(&sock->file) & EPOLLIN);
	assert_string_equal(control_fixture_receive(fd), "first");
	assert_string_equal(control_fixture_receive(fd), "second");
	assert_string_equal(control_fixture_receive(fd), "third");
	assert_int_equal(udp_ioctl(&sock->file, fd, FIONREAD, &len), 0);
	assert_int_equal(len, strlen("and fourth"));
	assert_string_equal(control_fixture_receive(fd), "and fourth");
	assert_string_equal(control_fixture_receive(fd), "");
	assert_false(udp_poll(&sock->file) & EPOLLIN);
	control_fixture_update_flows(fd);
	assert_null(atomic_load(&sock->fork_queue));
	vma_leave(self);
	control_fixture_close(fd);
}

static struct {
	struct vma_watcher watcher;
	struct udp_sock *sock;
	bool found_queued, found_moved; /* was told, and found something: in a queue, or with all queues empty */
} looker;

static void looker_poll_on_notify(struct vma_watcher *watcher, uint32_t events)
{
	(void)watcher;
	(void)events;
	if (udp_has_datagram(atomic_load(&looker.sock->attachments)))
		looker.found_queued = true;
	else if (udp_poll(&looker.sock->file) & EPOLLIN)
		looker.found_moved = true;
}

static void ignore_ring_change(struct vma_watcher *watcher, uint64_t rings)
{
	(void)watcher;
	(void)rings;
}

/* One datagram is sent to fd, which is watched from before it is driven. */
static void bind_watch_and_send_from_peer(int fd, const char *text)
{
	looker.sock = control_fixture_sock_of(fd);
	looker.watcher = (struct vma_watcher){.ready = looker_poll_on_notify, .rings = ignore_ring_change};
	looker.found_queued = looker.found_moved = false;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	control_fixture_update_flows(fd);
	peer_send("10.77.0.2", 7000, "10.77.0.1", port_of(fd), text);
	assert_int_equal(vma_file_watch(&looker.sock->file, &looker.watcher), 0);
}

/* An epoll set asks a file for its readiness when it is told, and forgets it when the answer is nothing. */
static void test_what_a_fork_moves_is_told_where_it_can_be_seen(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();
	struct vma_thread *self = vma_enter();

	(void)state;
	bind_watch_and_send_from_peer(fd, "queued");
	pthread_mutex_lock(&looker.sock->file.lock);
	udp_flows_leave_to_kernel_for_a_while(looker.sock);
	pthread_mutex_unlock(&looker.sock->file.lock);
	assert_true(looker.found_moved);
	vma_file_unwatch(&looker.sock->file, &looker.watcher);
	assert_string_equal(control_fixture_receive(fd), "queued");
	vma_leave(self);
	control_fixture_close(fd);
}

/* The first datagram of a flow may come before the socket shows where it is queued. */
static void test_what_is_queued_when_a_flow_is_shown_is_told(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();
	struct vma_thread *self = vma_enter();

	(void)state;
	bind_watch_and_send_from_peer(fd, "early");
	drive_rings_of_socket(fd);
	assert_true(udp_has_datagram(atomic_load(&looker.sock->attachments)));
	looker.found_queued = false;
	looker.sock->flows->moved = true;
	udp_attachments_publish(looker.sock->flows, false);
	assert_true(looker.found_queued);
	vma_file_unwatch(&looker.sock->file, &looker.watcher);
	assert_string_equal(control_fixture_receive(fd), "early");
	vma_leave(self);
	control_fixture_close(fd);
}

static void test_forks_that_follow_each_other_leave_the_port_with_the_kernel(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();
	struct udp_sock *sock = control_fixture_sock_of(fd);
	uint64_t first;

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	control_fixture_update_flows(fd);
	pthread_mutex_lock(&sock->file.lock);
	udp_flows_leave_to_kernel_for_a_while(sock);
	first = sock->flows->paused_ns;
	usleep(1000);
	udp_flows_leave_to_kernel_for_a_while(sock);
	assert_true(sock->flows->paused_ns > first);
	pthread_mutex_unlock(&sock->file.lock);
	control_fixture_close(fd);
}

static void test_a_closed_socket_lives_until_the_last_call_that_waits_has_left(void **state)
{
	int fd = fixture_open_offloaded_udp_socket();
	struct udp_sock *sock = control_fixture_sock_of(fd);
	uint16_t port;
	int other;

	(void)state;
	control_fixture_bind_to(fd, "10.77.0.1", 0);
	port = port_of(fd);
	vma_file_get(&sock->file);
	atomic_fetch_add(&sock->waiting, 1);
	control_fixture_close(fd);
	assert_int_not_equal(atomic_load(&sock->lingering_fd), 0);
	assert_non_null(sock->flows->members);
	other = fixture_open_offloaded_udp_socket();
	assert_int_equal(control_fixture_bind_to(other, "10.77.0.1", port), -EADDRINUSE);
	atomic_fetch_sub(&sock->waiting, 1);
	udp_finish_close(sock);
	assert_null(sock->flows->members);
	assert_int_equal(control_fixture_bind_to(other, "10.77.0.1", port), 0);
	vma_file_put(&sock->file);
	control_fixture_close(other);
}

static void test_closing_takes_everything_out_of_the_tables(void **state)
{
	(void)state;
	for (unsigned i = 0; i < UDP_PORTS; i++) {
		assert_null(udp_ports[i].endpoints);
		assert_null(udp_ports[i].flows);
	}
}

static int setup_reset_control_fixture(void **state)
{
	(void)state;
	fixture_reset();
	return 0;
}

#define T(name) cmocka_unit_test_setup(test_##name, setup_reset_control_fixture)
static void test_a_rule_of_its_port_leaves_a_socket_to_the_kernel_for_good(void **state)
{
	struct vma_rules *const rules = rules_fixture_parse("use os udp_receiver 10.77.0.0/24:36750-36751\n");
	int ruled = fixture_open_offloaded_udp_socket(), other = fixture_open_offloaded_udp_socket(),
	    any = fixture_open_offloaded_udp_socket();

	(void)state;
	vma_engine_get_or_start()->rules = rules;
	assert_int_equal(control_fixture_bind_to(ruled, "10.77.0.1", 36751), 0);
	assert_int_equal(control_fixture_bind_to(other, "10.77.0.1", 36752), 0);
	assert_int_equal(control_fixture_bind_to(any, "0.0.0.0", 36750), 0);
	vma_engine_get_or_start()->rules = NULL;
	assert_int_equal(control_fixture_reason(ruled), VMA_SOCK_RULE);
	assert_int_equal(atomic_load(&control_fixture_sock_of(ruled)->file.rule_line), 1);
	assert_true(control_fixture_sock_of(ruled)->file.os_only);
	assert_null(control_fixture_sock_of(ruled)->flows);
	control_fixture_update_flows(ruled);
	assert_int_equal(control_fixture_reason(ruled), VMA_SOCK_RULE);
	assert_int_equal(control_fixture_reason(other), VMA_SOCK_OFFLOADED);
	assert_int_equal(control_fixture_reason(any), VMA_SOCK_OFFLOADED);
	control_fixture_close(ruled);
	control_fixture_close(other);
	control_fixture_close(any);
	vma_rules_destroy(rules);
}

static const struct CMUnitTest tests[] = {
        T(a_bound_socket_receives_what_comes_to_its_port),
        T(a_new_flow_makes_the_next_receive_look_at_the_shadow_first),
        T(nothing_has_come_to_a_port_that_was_chosen_just_now),
        T(a_chosen_port_is_the_sockets_alone_until_it_may_be_shared),
        T(the_wildcard_hears_unicast_and_broadcast),
        T(a_rule_of_its_port_leaves_a_socket_to_the_kernel_for_good),
        T(without_a_device_the_socket_is_the_os_s),
        T(exception_handling_2_makes_calls_fail_that_leave_the_socket_to_the_os),
        T(of_two_that_reuse_the_address_the_newest_wins_until_it_closes),
        T(a_socket_bound_to_the_address_wins_over_the_wildcard),
        T(reuseport_spreads_flows_and_keeps_each_with_one_socket),
        T(a_connected_socket_wins_for_its_peer),
        T(connecting_keeps_what_is_queued),
        T(every_member_of_a_group_gets_a_copy_and_after_leaving_none),
        T(a_socket_that_has_not_joined_hears_groups_that_others_joined_unless_it_says_no),
        T(a_guest_stays_when_it_joins_and_goes_when_the_last_host_closes),
        T(a_key_that_another_has_leaves_the_socket_to_the_os_until_it_is_free),
        T(a_revoked_flow_leaves_what_is_queued_readable_and_is_asked_for_again),
        T(an_address_that_goes_takes_its_flow_along),
        T(datagrams_left_in_a_queue_outlive_its_flows),
        T(an_option_of_the_kernel_s_ends_the_flows_as_long_as_it_is_set),
        T(before_a_fork_the_kernel_gets_everything_and_a_second_later_we_ask_again),
        T(at_the_end_what_others_have_too_is_left_to_them_whoever_attaches_just_now),
        T(what_is_queued_before_a_fork_is_taken_once_in_order_and_before_the_shadow_s),
        T(what_a_fork_moves_is_told_where_it_can_be_seen),
        T(what_is_queued_when_a_flow_is_shown_is_told),
        T(forks_that_follow_each_other_leave_the_port_with_the_kernel),
        T(a_closed_socket_lives_until_the_last_call_that_waits_has_left),
        T(closing_takes_everything_out_of_the_tables),
};

FIXTURE_MAIN("flows", tests)
