/*
 * Two relatives change a socket without a pause, each something of its own, and two look, also while the others are at
 * it: who looks after a change has been made finds it, or a later one, and at the end all agree with the kernel.
 * STRESS_SECONDS, default 1.
 */
#include <fcntl.h>
#include <sched.h>

#include "fork_shared_fixture.h"

/* SO_RCVBUF only grows, from above VMA_RX_BYTES_MIN to what every kernel allows, and the kernel doubles it. */
enum { FIRST = 40000, LAST = 100000, LOOKERS = 2 };

static int changers[2], lookers[LOOKERS];
static _Atomic int made = FIRST;
static _Atomic uint64_t looks;
static _Atomic bool over;

static void *set_growing_rcvbuf_thread(void *arg)
{
	const int fd = *(int *)arg;

	for (int value = FIRST; value <= LAST && !atomic_load(&over); value++) {
		control_fixture_setsockopt_int(fd, SOL_SOCKET, SO_RCVBUF, value);
		atomic_store(&made, value);
		/* No other change hides from the lookers that they have missed this one. */
		for (uint64_t seen = atomic_load(&looks); atomic_load(&looks) < seen + LOOKERS && !atomic_load(&over);)
			sched_yield();
	}
	return NULL;
}

static void *change_shared_options_until_over_thread(void *arg)
{
	const int fd = *(int *)arg;

	for (int i = 0; !atomic_load(&over); i++) {
		control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_TTL, 1 + i % 250);
		fork_shared_fixture_set_flags(fd, i % 2 != 0 ? O_NONBLOCK : 0);
		usleep(100);
	}
	return NULL;
}

static void *check_rcvbuf_follows_fork_peer_thread(void *arg)
{
	const int fd = *(int *)arg;
	struct udp_sock *sock = control_fixture_sock_of(fd);

	while (!atomic_load(&over)) {
		const int at_least = atomic_load(&made) * 2;

		fork_shared_follow_peer_changes_of_fd(fd);
		if (at_least > FIRST * 2 && atomic_load(&sock->rcvbuf) < (uint32_t)at_least)
			abort();
		atomic_fetch_add(&looks, 1);
	}
	return NULL;
}

static unsigned fork_shared_stress_seconds_from_env(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return text != NULL ? (unsigned)atoi(text) : 1;
}

static int kernel_getsockopt_int(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	assert_int_equal(vma_os.getsockopt(fd, level, name, &value, &len), 0);
	return value;
}

static void assert_fork_relatives_agree_on_options(int fd)
{
	const struct udp_sock *sock = control_fixture_sock_of(fd);

	fork_shared_follow_peer_changes_of_fd(fd);
	assert_false(udp_fork_shared_has_changed(sock));
	assert_int_equal(sock->ttl, kernel_getsockopt_int(fd, IPPROTO_IP, IP_TTL));
	assert_int_equal(atomic_load(&sock->rcvbuf), kernel_getsockopt_int(fd, SOL_SOCKET, SO_RCVBUF));
	assert_int_equal(atomic_load(&sock->nonblocking), (vma_os.fcntl(fd, F_GETFL, NULL) & O_NONBLOCK) != 0);
}

static void test_who_looks_finds_what_was_changed_before(void **state)
{
	pthread_t threads[2 + LOOKERS];
	uint64_t until;

	(void)state;
	changers[0] = fixture_open_offloaded_udp_socket();
	forks();
	/* The counter passes its end on the way. */
	atomic_store(&udp_fork_shared(control_fixture_sock_of(changers[0]))->changes, UINT32_MAX - 1000);
	atomic_store(&control_fixture_sock_of(changers[0])->fork_shared_seen, UINT32_MAX - 1000);
	changers[1] = create_fork_relative_socket(changers[0]);
	for (int i = 0; i < LOOKERS; i++)
		lookers[i] = create_fork_relative_socket(changers[0]);
	pthread_create(&threads[0], NULL, set_growing_rcvbuf_thread, &changers[0]);
	pthread_create(&threads[1], NULL, change_shared_options_until_over_thread, &changers[1]);
	for (int i = 0; i < LOOKERS; i++)
		pthread_create(&threads[2 + i], NULL, check_rcvbuf_follows_fork_peer_thread, &lookers[i]);
	until = vma_now_ns() + fork_shared_stress_seconds_from_env() * 1000000000ULL;
	while (vma_test_goes_on(vma_now_ns(), until, atomic_load(&looks) > 0 && atomic_load(&made) > FIRST))
		usleep(1000);
	atomic_store(&over, true);
	for (int i = 0; i < 2 + LOOKERS; i++)
		pthread_join(threads[i], NULL);
	assert_true(atomic_load(&looks) > 0);
	assert_true(atomic_load(&made) > FIRST);
	for (int i = 0; i < 2; i++)
		assert_fork_relatives_agree_on_options(changers[i]);
	for (int i = 0; i < LOOKERS; i++)
		assert_fork_relatives_agree_on_options(lookers[i]);
	for (int i = 0; i < LOOKERS; i++)
		control_fixture_close(lookers[i]);
	control_fixture_close(changers[1]);
	control_fixture_close(changers[0]);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_who_looks_finds_what_was_changed_before)};

FIXTURE_MAIN("stress_fork_shared", tests)
