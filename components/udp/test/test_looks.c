/* How long a receive looks, how often it asks the OS meanwhile, and whether others get the core: as the user says. */
#include "fixture.h"

#include "../../sock/test/count_calls.h"

enum { LOOKS = 200, LOOKS_BREATH = 8 /* one in so many may yield */ };
#define ANY UINT32_MAX

static struct udp_sock *sock;
static struct fixture_attached attached;
/* What the internal thread does not read. */
static struct {
	int64_t poll, poll_init, ratio;
	bool yield;
} saved_conf_values;

static int setup(void **state)
{
	const struct vma_conf *conf = &vma_engine_get_or_start()->conf;

	(void)state;
	saved_conf_values.poll = conf->rx_poll;
	saved_conf_values.poll_init = conf->rx_poll_init;
	saved_conf_values.ratio = conf->rx_udp_poll_os_ratio;
	saved_conf_values.yield = conf->rx_poll_yield;
	sock = udp_fixture_socket(true);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
	return 0;
}

static int teardown_socket_and_restore_rx_poll_conf(void **state)
{
	struct vma_conf *conf = &vma_engine_get_or_start()->conf;

	(void)state;
	fixture_detach_udp_flow(&attached);
	fixture_close(sock);
	conf->rx_poll = saved_conf_values.poll;
	conf->rx_poll_init = saved_conf_values.poll_init;
	conf->rx_udp_poll_os_ratio = saved_conf_values.ratio;
	conf->rx_poll_yield = saved_conf_values.yield;
	return 0;
}

/* What a number of receives call, of which none gets anything. */
static struct calls count_calls_of_empty_receives(int times)
{
	char data[8];
	struct iovec iov = {.iov_base = data, .iov_len = sizeof(data)};
	const struct calls before = calls;

	for (int i = 0; i < times; i++) {
		struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
		struct vma_thread *self = vma_enter();

		assert_int_equal(udp_recvmsg(&sock->file, fixture_fd(sock), &msg, 0), -EAGAIN);
		vma_leave(self);
	}
	return (struct calls){.yields = calls.yields - before.yields, .asks = calls.asks - before.asks};
}

/* One that looks, and then sleeps until its time is over. */
static struct calls udp_wait_until_timeout_and_count_calls(void)
{
	atomic_store(&sock->nonblocking, false);
	atomic_store(&sock->rcvtimeo_ns, 100000000);
	return count_calls_of_empty_receives(1);
}

/*
 * Whether a wait yields, or asks the OS, so many times: one of some waits, as one that has no core for as long as it
 * may take has looked less often. ANY: however often.
 */
static bool udp_wait_makes_yields_and_os_polls(unsigned yields, unsigned asks)
{
	bool so = false;

	for (int i = 0; i < 20 && !so; i++) {
		const struct calls made = udp_wait_until_timeout_and_count_calls();

		so = (yields == ANY || made.yields == yields) &&
		     (asks == ANY || made.asks - 1 == asks); /* of which one is for the end of its time */
	}
	return so;
}

static bool wait_with_poll_conf_makes_os_polls(int64_t looks, int64_t ratio, unsigned asks)
{
	vma_engine_get_or_start()->conf.rx_poll = looks;
	vma_engine_get_or_start()->conf.rx_udp_poll_os_ratio = ratio;
	return udp_wait_makes_yields_and_os_polls(ANY, asks);
}

static unsigned os_polls_of_nonblocking_receives(int64_t ratio)
{
	vma_engine_get_or_start()->conf.rx_udp_poll_os_ratio = ratio;
	atomic_store(&sock->nonblocking, true);
	atomic_store(&sock->os_countdown, 0); /* now it counts from the new one */
	count_calls_of_empty_receives(1);
	return count_calls_of_empty_receives(LOOKS).asks;
}

static void test_a_wait_asks_the_os_once_in_so_many_looks(void **state)
{
	(void)state;
	assert_true(wait_with_poll_conf_makes_os_polls(0, 1, 0));
	assert_true(wait_with_poll_conf_makes_os_polls(LOOKS, 1, LOOKS));
	assert_true(wait_with_poll_conf_makes_os_polls(LOOKS, 10, LOOKS / 10));
	assert_true(wait_with_poll_conf_makes_os_polls(LOOKS, 100, LOOKS / 100));
	assert_true(wait_with_poll_conf_makes_os_polls(LOOKS, 0, 0));
}

static void test_who_does_not_wait_asks_the_os_once_in_so_many_calls(void **state)
{
	(void)state;
	assert_int_equal(os_polls_of_nonblocking_receives(1), LOOKS);
	assert_int_equal(os_polls_of_nonblocking_receives(10), LOOKS / 10);
	assert_int_equal(os_polls_of_nonblocking_receives(100), LOOKS / 100);
	assert_int_equal(os_polls_of_nonblocking_receives(0), 0);
}

static void test_the_core_is_given_to_others_if_that_is_requested(void **state)
{
	(void)state;
	vma_engine_get_or_start()->conf.rx_poll = LOOKS;
	assert_int_equal(udp_wait_until_timeout_and_count_calls().yields, 0);
	vma_engine_get_or_start()->conf.rx_poll_yield = true;
	assert_true(udp_wait_makes_yields_and_os_polls(LOOKS / LOOKS_BREATH, ANY));
}

/* Nothing of it is offloaded yet: it can look at its shadow only. */
static void test_a_socket_that_has_nothing_offloaded_has_a_bound_of_its_own(void **state)
{
	(void)state;
	vma_engine_get_or_start()->conf.rx_poll_yield = true;
	vma_engine_get_or_start()->conf.rx_poll = 0;
	vma_engine_get_or_start()->conf.rx_poll_init = LOOKS;
	assert_int_equal(udp_wait_until_timeout_and_count_calls().yields, 0);
	fixture_detach_udp_flow(&attached);
	vma_engine_get_or_start()->conf.rx_udp_poll_os_ratio = 10;
	assert_true(udp_wait_makes_yields_and_os_polls(LOOKS / LOOKS_BREATH, LOOKS / 10));
	vma_engine_get_or_start()->conf.rx_poll_init = 0;
	vma_engine_get_or_start()->conf.rx_poll = LOOKS;
	assert_int_equal(udp_wait_until_timeout_and_count_calls().yields, 0);
	fixture_attach_udp_flow(&attached, sock, fixture_local);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown_socket_and_restore_rx_poll_conf)

static const struct CMUnitTest tests[] = {
        CASE(test_a_wait_asks_the_os_once_in_so_many_looks),
        CASE(test_who_does_not_wait_asks_the_os_once_in_so_many_calls),
        CASE(test_the_core_is_given_to_others_if_that_is_requested),
        CASE(test_a_socket_that_has_nothing_offloaded_has_a_bound_of_its_own),
};

int main(void)
{
	calls_asked = SYS_recvmsg;
	make_tsc_clock_seem_slow();
	return udp_fixture_run_tests(tests, sizeof(tests) / sizeof(tests[0]));
}
