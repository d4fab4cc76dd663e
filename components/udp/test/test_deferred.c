/* Sockets that begin as the kernel's, because those before them lived for a question each. */
#include "control_fixture.h"

#include "../deferred.h"
#include "../recv.h"

/* Closed after its first datagram, as many times. */
static void deferred_make_short_lived_sockets(unsigned times)
{
	while (times-- > 0) {
		int fd = fixture_open_offloaded_udp_socket();

		control_fixture_bind_to(fd, "10.77.0.1", 0);
		udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd);
		control_fixture_close(fd);
	}
}

static void use_socket_until_not_short_lived(void)
{
	int fd = fixture_open_offloaded_udp_socket();

	control_fixture_bind_to(fd, "10.77.0.1", 0);
	for (int i = 0; i < UDP_FEW_SENDS; i++)
		assert_false(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd));
	control_fixture_close(fd);
}

/* What the kernel does within the first sendto. */
static void bind_shadow(int fd)
{
	const struct sockaddr_in name = {.sin_family = AF_INET,
	                                 .sin_addr.s_addr = control_fixture_parse_ip("10.77.0.1")};

	assert_int_equal(vma_os.bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
}

static int setup_without_short_lived_socket_history(void **state)
{
	(void)state;
	fixture_reset();
	use_socket_until_not_short_lived(); /* nothing is remembered of the test before */
	return 0;
}

static void test_after_many_short_lives_a_socket_is_the_kernels_until_its_third_send(void **state)
{
	int fd;

	(void)state;
	deferred_make_short_lived_sockets(UDP_SHORT_LIVED_SOCKETS_MIN);
	fd = fixture_open_offloaded_udp_socket();
	bind_shadow(fd);
	assert_true(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd));
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_DEFERRED);
	assert_true(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd));
	assert_null(control_fixture_sock_of(fd)->flows);
	assert_false(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd));
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	assert_int_equal(control_fixture_sock_of(fd)->flows->members->flow.flags, VMA_FLOW_PORT_EXCLUSIVE);
	assert_true(atomic_load(&control_fixture_sock_of(fd)->os_attention)); /* answers of before are in the shadow */
	control_fixture_close(fd);
}

static void test_one_less_is_not_many_and_a_long_life_starts_anew(void **state)
{
	int fd;

	(void)state;
	deferred_make_short_lived_sockets(UDP_SHORT_LIVED_SOCKETS_MIN - 1);
	fd = fixture_open_offloaded_udp_socket();
	assert_false(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd));
	control_fixture_close(fd);
	deferred_make_short_lived_sockets(1);
	use_socket_until_not_short_lived();
	deferred_make_short_lived_sockets(UDP_SHORT_LIVED_SOCKETS_MIN - 1);
	fd = fixture_open_offloaded_udp_socket();
	assert_false(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd));
	control_fixture_close(fd);
}

static void test_sockets_that_sent_nothing_or_have_a_port_of_their_own_say_nothing(void **state)
{
	int fd;

	(void)state;
	for (int i = 0; i < 2 * UDP_SHORT_LIVED_SOCKETS_MIN; i++) {
		fd = fixture_open_offloaded_udp_socket();
		control_fixture_bind_to(fd, "10.77.0.1", i % 2 == 0 ? 0 : 36740);
		if (i % 2 != 0)
			udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd);
		control_fixture_close(fd);
	}
	fd = fixture_open_offloaded_udp_socket();
	assert_false(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd));
	control_fixture_close(fd);
}

static void test_it_grows_up_with_the_fifth_receive_but_not_while_somebody_is_in_the_kernels(void **state)
{
	struct udp_sock *sock;
	int fd;

	(void)state;
	deferred_make_short_lived_sockets(UDP_SHORT_LIVED_SOCKETS_MIN);
	fd = fixture_open_offloaded_udp_socket();
	sock = control_fixture_sock_of(fd);
	bind_shadow(fd);
	assert_true(udp_deferred_count_send_and_may_offload(sock, fd));
	assert_true(udp_deferred_begin_recv_or_offload(sock, fd));
	assert_true(udp_deferred_count_send_and_may_offload(sock, fd));
	assert_true(udp_deferred_count_send_and_may_offload(sock, fd)); /* its third */
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_DEFERRED);
	udp_deferred_end_kernel_recv(sock);
	for (int i = 1; i < UDP_FEW_RECEIVES; i++) {
		assert_true(udp_deferred_begin_recv_or_offload(sock, fd));
		udp_deferred_end_kernel_recv(sock);
	}
	assert_false(udp_deferred_begin_recv_or_offload(sock, fd));
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	assert_int_equal(atomic_load(&sock->in_kernel), 0);
	control_fixture_close(fd);
}

static void *receive_in_kernel_thread(void *arg)
{
	const int fd = *(const int *)arg;
	struct vma_thread *self = vma_enter();
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	udp_recv_slow_path(control_fixture_sock_of(fd), fd, &msg, 0);
	vma_leave(self);
	return NULL;
}

static void test_cancelled_in_the_kernels_a_receive_gives_back_what_it_holds(void **state)
{
	struct udp_sock *sock;
	pthread_t thread;
	void *how = NULL;
	uint32_t refs;
	int fd;

	(void)state;
	deferred_make_short_lived_sockets(UDP_SHORT_LIVED_SOCKETS_MIN);
	fd = fixture_open_offloaded_udp_socket();
	sock = control_fixture_sock_of(fd);
	bind_shadow(fd);
	assert_true(udp_deferred_count_send_and_may_offload(sock, fd));
	assert_int_equal(vma_os.fcntl(fd, F_SETFL, NULL), 0); /* it waits */
	refs = atomic_load(&sock->file.refs);
	assert_int_equal(pthread_create(&thread, NULL, receive_in_kernel_thread, &fd), 0);
	for (int ms = 0; ms < 10000 && atomic_load(&sock->in_kernel) == 0; ms++)
		usleep(1000);
	assert_int_equal(atomic_load(&sock->in_kernel), 1);
	assert_int_equal(pthread_cancel(thread), 0);
	assert_int_equal(pthread_join(thread, &how), 0);
	assert_ptr_equal(how, PTHREAD_CANCELED);
	assert_int_equal(atomic_load(&sock->in_kernel), 0);
	assert_int_equal(atomic_load(&sock->file.refs), refs);
	control_fixture_close(fd);
}

static void test_bind_ends_it(void **state)
{
	int fd;

	(void)state;
	deferred_make_short_lived_sockets(UDP_SHORT_LIVED_SOCKETS_MIN);
	fd = fixture_open_offloaded_udp_socket();
	assert_true(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd),
	                                                    fd)); /* which the kernel has refused, say */
	assert_int_equal(control_fixture_bind_to(fd, "10.77.0.1", 36741), 0);
	assert_int_equal(control_fixture_reason(fd), VMA_SOCK_OFFLOADED);
	assert_int_equal(control_fixture_sock_of(fd)->flows->members->flow.flags, 0);
	control_fixture_close(fd);
}

static void test_under_the_latency_profile_nobody_is_deferred(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	int fd;

	(void)state;
	deferred_make_short_lived_sockets(UDP_SHORT_LIVED_SOCKETS_MIN);
	engine->latency = true;
	fd = fixture_open_offloaded_udp_socket();
	assert_false(udp_deferred_count_send_and_may_offload(control_fixture_sock_of(fd), fd));
	engine->latency = false;
	control_fixture_close(fd);
}

#define T(name) cmocka_unit_test_setup(test_##name, setup_without_short_lived_socket_history)
static const struct CMUnitTest tests[] = {
        T(after_many_short_lives_a_socket_is_the_kernels_until_its_third_send),
        T(one_less_is_not_many_and_a_long_life_starts_anew),
        T(sockets_that_sent_nothing_or_have_a_port_of_their_own_say_nothing),
        T(it_grows_up_with_the_fifth_receive_but_not_while_somebody_is_in_the_kernels),
        T(cancelled_in_the_kernels_a_receive_gives_back_what_it_holds),
        T(bind_ends_it),
        T(under_the_latency_profile_nobody_is_deferred),
};

FIXTURE_MAIN("deferred", tests)
