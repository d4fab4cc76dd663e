/*
 * A socket is received from by two threads in turns, while numbered datagrams come without a pause: at each turn it
 * moves to the ring of the thread that has it. None is lost or overtaken, and each move comes within three ratios.
 * STRESS_SECONDS; make soak.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "control_fixture.h"

enum { RATIO = 10, MOVES = 100, UNREAD = 300, PORT = 36900 };

static int fd;
static _Atomic uint64_t received, sent, wrong, late_moves;
static _Atomic bool stop;
static _Atomic int whose; /* turn it is; -1: the end */

static uint64_t count_rx_migrations(void)
{
	return vma_stats_read_counter(&control_fixture_sock_of(fd)->stats->rx_migrations);
}

/* False: there is none. */
static bool receive_number(uint64_t *number)
{
	const char *text = control_fixture_receive(fd);

	*number = strtoull(text, NULL, 10);
	return text[0] != '\0';
}

static void count_received_and_check_order(uint64_t number)
{
	if (number != atomic_load(&received))
		atomic_fetch_add(&wrong, 1);
	atomic_fetch_add(&received, 1);
}

/* It has moved in one of the first three ratios of calls, whether they found something or not; and received RATIO. */
static void receive_own_turn_and_check_migration(void)
{
	const uint64_t before = count_rx_migrations();
	unsigned calls = 0, got = 0;
	uint64_t number;

	while ((got < RATIO && !atomic_load(&stop)) || calls < 3 * RATIO) {
		calls++;
		if (receive_number(&number)) {
			count_received_and_check_order(number);
			got++;
		}
		if (calls == 3 * RATIO && count_rx_migrations() == before)
			atomic_fetch_add(&late_moves, 1);
	}
}

static void *receive_in_turns(void *arg)
{
	const int me = *(int *)arg;

	for (int at; (at = atomic_load(&whose)) >= 0;) {
		if (at != me) {
			sched_yield();
			continue;
		}
		receive_own_turn_and_check_migration();
		atomic_store(&whose, atomic_load(&stop) ? -1 : 1 - me);
	}
	return NULL;
}

static void *peer_send_numbers_until_stop_thread(void *arg)
{
	char text[32];

	(void)arg;
	while (!atomic_load(&stop)) {
		if (atomic_load(&sent) - atomic_load(&received) > UNREAD) {
			sched_yield();
			continue;
		}
		snprintf(text, sizeof(text), "%llu", (unsigned long long)atomic_load(&sent));
		peer_send("10.77.0.2", 7000, "10.77.0.1", PORT, text);
		atomic_fetch_add(&sent, 1);
	}
	return NULL;
}

static void test_a_socket_moves_a_hundred_times_and_no_datagram_is_lost_or_overtaken(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	const uint64_t until_ns = vma_now_ns() + (seconds != NULL ? strtoull(seconds, NULL, 10) : 1) * 1000000000;
	pthread_t receivers[2], sender;
	int numbers[2] = {0, 1};
	uint64_t number;

	(void)state;
	fd = fixture_open_offloaded_udp_socket();
	assert_int_equal(control_fixture_bind_to(fd, "10.77.0.1", PORT), 0);
	assert_non_null(control_fixture_sock_of(fd)->stats);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&receivers[i], NULL, receive_in_turns, &numbers[i]), 0);
	assert_int_equal(pthread_create(&sender, NULL, peer_send_numbers_until_stop_thread, NULL), 0);
	while (vma_test_goes_on(vma_now_ns(), until_ns, count_rx_migrations() >= MOVES))
		usleep(1000);
	atomic_store(&stop, true);
	pthread_join(sender, NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(receivers[i], NULL);
	while (receive_number(&number))
		count_received_and_check_order(number);
	assert_int_equal(atomic_load(&wrong), 0);
	assert_int_equal(atomic_load(&late_moves), 0);
	assert_true(count_rx_migrations() >= MOVES);
	assert_int_equal(atomic_load(&received), atomic_load(&sent));
	print_message("%lu moves, %lu datagrams\n", (unsigned long)count_rx_migrations(),
	              (unsigned long)atomic_load(&sent));
	control_fixture_close(fd);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_socket_moves_a_hundred_times_and_no_datagram_is_lost_or_overtaken)};

int main(void)
{
	setenv("VMA_RING_ALLOCATION_LOGIC_RX", "20", 1);
	setenv("VMA_RING_MIGRATION_RATIO_RX", "10", 1);
	return control_fixture_run_tests("migrate", tests, sizeof(tests) / sizeof(tests[0]));
}
