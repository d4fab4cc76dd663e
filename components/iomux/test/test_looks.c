/* How often poll and epoll_wait ask the OS, while they look and while offloaded members are ready: as the user says. */
#include "backends.h"

#include "../../sock/test/count_calls.h"
#include "../../sock/test/small_engine.h"

enum { CALLS = 120, WAIT_MSEC = 30, LOOKS_BREATH = 8 /* one in so many yields */ };

static struct backend backend = {.kind = OFFLOADED};
static int ours, os, os_socket_peer_end, set;

/* Of the parameters that the tests are about, none of which the internal thread reads. */
static void set_polling_conf_defaults(struct vma_conf *conf)
{
	conf->select_poll = 100000;
	conf->select_poll_os_ratio = 10;
	conf->select_skip_os = 4;
	conf->rx_poll_yield = false;
}

/* A socket that is offloaded, and a descriptor of the OS's on which nothing ever comes. */
static int setup(void **state)
{
	int ends[2];

	(void)state;
	set_polling_conf_defaults(&vma_engine_get_or_start()->conf);
	ours = backend_socket(&backend);
	atomic_store(&fake_file_of_fd(ours)->rings, 1ULL << 63);
	assert_int_equal(pipe(ends), 0);
	os = ends[0];
	os_socket_peer_end = ends[1];
	set = epoll_create1(0);
	assert_int_equal(backend_epoll_ctl(&backend, set, EPOLL_CTL_ADD, ours, EPOLLIN, 1), 0);
	assert_int_equal(backend_epoll_ctl(&backend, set, EPOLL_CTL_ADD, os, EPOLLIN, 2), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	backend_close(&backend, set);
	backend_close(&backend, ours);
	close(os);
	close(os_socket_peer_end);
	return 0;
}

static int wait_by_poll_ms(int msec)
{
	struct pollfd fds[2] = {{.fd = ours, .events = POLLIN}, {.fd = os, .events = POLLIN}};

	return backend_poll(&backend, fds, 2, msec);
}

static int wait_by_epoll_ms(int msec)
{
	struct epoll_event events[2];

	return backend_epoll_wait(&backend, set, events, 2, msec);
}

static const struct iomux_wait_way {
	int (*call)(int msec);
	long asks_by;
} ways[] = {{wait_by_poll_ms, SYS_ppoll}, {wait_by_epoll_ms, SYS_epoll_pwait}};

/* While something is there. */
static unsigned count_os_polls_while_ready(const struct iomux_wait_way *iomux_wait_way, int64_t skip)
{
	unsigned before;

	vma_engine_get_or_start()->conf.select_skip_os = skip;
	calls_asked = iomux_wait_way->asks_by;
	/* Until it has been asked, from when on it is counted; where it is never, no more than it takes to know. */
	before = calls.asks;
	for (int i = 0; i < 20 && calls.asks == before; i++)
		assert_int_equal(iomux_wait_way->call(0), 1);
	before = calls.asks;
	for (int i = 0; i < CALLS; i++)
		assert_int_equal(iomux_wait_way->call(0), 1);
	return calls.asks - before;
}

static void test_while_ours_are_ready_the_os_is_asked_once_in_so_many_calls(void **state)
{
	(void)state;
	fake_queue_datagram_and_wake(fake_file_of_fd(ours));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(count_os_polls_while_ready(&ways[i], 1), CALLS);
		assert_int_equal(count_os_polls_while_ready(&ways[i], 4), CALLS / 4);
		assert_int_equal(count_os_polls_while_ready(&ways[i], 10), CALLS / 10);
		assert_int_equal(count_os_polls_while_ready(&ways[i], 0), 0);
	}
}

/* A call that waits in vain. It looks until its time is over: how often, its yields tell. */
static struct calls count_polls_of_wait_that_times_out(const struct iomux_wait_way *iomux_wait_way)
{
	struct calls before = calls;

	assert_int_equal(iomux_wait_way->call(WAIT_MSEC), 0);
	return (struct calls){.yields = calls.yields - before.yields, .asks = calls.asks - before.asks};
}

/* The same of one that has looked, if there is any: without a core its time may be over before that. */
static struct calls count_polls_of_wait_that_did_poll(const struct iomux_wait_way *iomux_wait_way)
{
	struct calls made = count_polls_of_wait_that_times_out(iomux_wait_way);

	for (int i = 0; i < 20 && made.yields == 0; i++)
		made = count_polls_of_wait_that_times_out(iomux_wait_way);
	return made;
}

static void test_a_wait_asks_the_os_once_in_so_many_looks(void **state)
{
	static const unsigned ratios[] = {1, 10, 100};

	(void)state;
	vma_engine_get_or_start()->conf.select_poll = -1;
	vma_engine_get_or_start()->conf.rx_poll_yield = true;
	for (int i = 0; i < 2; i++) {
		calls_asked = ways[i].asks_by;
		for (unsigned k = 0; k < sizeof(ratios) / sizeof(ratios[0]); k++) {
			struct calls made;
			unsigned looks;

			vma_engine_get_or_start()->conf.select_poll_os_ratio = ratios[k];
			made = count_polls_of_wait_that_did_poll(&ways[i]);
			looks = made.yields * LOOKS_BREATH;
			assert_true(looks >= LOOKS_BREATH);
			assert_in_range(made.asks, looks / ratios[k], looks / ratios[k] + 3); /* and at its end */
		}
		vma_engine_get_or_start()->conf.select_poll_os_ratio = 0;
		assert_in_range(count_polls_of_wait_that_times_out(&ways[i]).asks, 0, 2);
	}
}

static void test_a_wait_that_is_not_to_look_sleeps_at_once(void **state)
{
	(void)state;
	vma_engine_get_or_start()->conf.select_poll = 0;
	vma_engine_get_or_start()->conf.select_poll_os_ratio = 1;
	vma_engine_get_or_start()->conf.rx_poll_yield = true;
	for (int i = 0; i < 2; i++) {
		calls_asked = ways[i].asks_by;
		assert_int_equal(count_polls_of_wait_that_times_out(&ways[i]).yields, 0);
		assert_in_range(count_polls_of_wait_that_times_out(&ways[i]).asks, 0, 2);
	}
}

static void test_what_is_all_the_oss_is_looked_at_if_forced(void **state)
{
	struct pollfd fd = {.fd = os, .events = POLLIN};
	const int all_os = epoll_create1(0);
	struct epoll_event event;
	struct calls before;
	fd_set bits;

	(void)state;
	FD_ZERO(&bits);
	FD_SET(os, &bits);
	assert_int_equal(backend_epoll_ctl(&backend, all_os, EPOLL_CTL_ADD, os, EPOLLIN, 3), 0);
	vma_engine_get_or_start()->conf.select_poll = -1;
	vma_engine_get_or_start()->conf.rx_poll_yield = true;
	vma_engine_get_or_start()->conf.select_poll_os_ratio = 1;
	for (int force = 0; force < 2; force++) {
		vma_engine_get_or_start()->conf.select_poll_os_force = force;
		assert_int_equal(vma_iomux_poll_has_offloaded_fd(&fd, 1), force);
		assert_int_equal(vma_iomux_must_handle_select(os + 1, &bits, NULL, NULL), force);
		before = calls;
		for (int i = 0; i < (force ? 20 : 1) && calls.yields == before.yields; i++)
			assert_int_equal(backend_poll(&backend, &fd, 1, WAIT_MSEC), 0);
		assert_true(force == (calls.yields > before.yields));
		before = calls;
		for (int i = 0; i < (force ? 20 : 1) && calls.yields == before.yields; i++)
			assert_int_equal(backend_epoll_wait(&backend, all_os, &event, 1, WAIT_MSEC), 0);
		assert_true(force == (calls.yields > before.yields));
	}
	assert_int_equal(write(os_socket_peer_end, "x", 1), 1);
	assert_int_equal(backend_epoll_wait(&backend, all_os, &event, 1, WAIT_MSEC), 1);
	assert_int_equal(event.data.u64, 3);
	backend_close(&backend, all_os);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CASE(test_while_ours_are_ready_the_os_is_asked_once_in_so_many_calls),
	        CASE(test_a_wait_asks_the_os_once_in_so_many_looks),
	        CASE(test_a_wait_that_is_not_to_look_sleeps_at_once),
	        CASE(test_what_is_all_the_oss_is_looked_at_if_forced),
	};

	make_tsc_clock_seem_slow();
	if (start_engine_with_few_buffers("1024", "64") == NULL)
		return 1;
	return run_backends(__FILE__, tests, sizeof(tests) / sizeof(tests[0]));
}
