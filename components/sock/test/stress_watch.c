/*
 * A ring with sleepers always has one that watches it: every datagram is received within milliseconds though no
 * internal thread helps.
 *
 * Meanwhile somebody wants the ring unarmed all the time, as who is busy with it does now and then
 * (engine/ring_disarm.c).
 *
 * Each receiver has a flow of its own on one ring and, when it got its datagram, does something else for a while, so
 * the watch goes round. Three of them spin before they sleep, and so busy-poll for the others
 * (wait/busy_poller.c). One of them is interrupted by handlers all the time, and one leaves
 * for short deadlines. Those two come back and would repair a loss; so now and then all keep still, get one datagram
 * each, and stay away after it: whoever watched, the next must have taken over.
 */
#include "wait_fixture.h"

#define RECEIVERS 6
#define LATE_NS (3000 * MSEC) /* a lost one is never seen; a busy machine takes its time */

static struct receiver {
	pthread_t thread;
	uint16_t thing;
	struct vma_thread *_Atomic self;
	_Atomic uint64_t sent_ns, worst_ns, received;
	_Atomic bool patient; /* waits for ever now */
	unsigned seed;
} receivers[RECEIVERS];
static _Atomic bool stop, calm, away;

static void watch_noop_signal_handler(int sig)
{
	(void)sig;
}

static void *thread_receive_and_measure_latency(void *arg)
{
	struct receiver *me = arg;
	struct thing *thing = &fixture.things[me->thing];
	struct thing_wait wait;

	atomic_store(&me->self, vma_thread_self());
	while (!atomic_load(&stop)) {
		atomic_store(&me->patient, me->thing != 2 || atomic_load(&calm));
		thing_wait_init(&wait, thing, fixture.bit, atomic_load(&me->patient) ? UINT64_MAX : MSEC / 5);
		wait.wait.spin_loops = me->thing >= 3 ? 1000 : 0; /* one at a time: see wait/spin.c */
		if (thing_wait_run(&wait) != 1 || !thing_try_take_one(thing))
			continue;
		if (atomic_load(&me->sent_ns) != 0) {
			uint64_t took = vma_now_ns() - atomic_load(&me->sent_ns);

			if (took > atomic_load(&me->worst_ns))
				atomic_store(&me->worst_ns, took);
		}
		atomic_fetch_add(&me->received, 1);
		while (atomic_load(&away))
			usleep(50);
		me->seed = me->seed * 1103515245 + 12345;
		if (me->seed >> 24 & 1)
			usleep(me->seed >> 20 & 127);
	}
	return NULL;
}

static void *thread_schedule_disarm_repeatedly(void *arg)
{
	while (!atomic_load(&stop)) {
		vma_enter();
		ring_disarm_schedule(fixture.ring_ctx);
		vma_leave(vma_thread_self());
		usleep(20);
	}
	return arg;
}

static double watch_stress_seconds(void)
{
	const char *seconds = getenv("STRESS_SECONDS");

	return seconds != NULL ? atof(seconds) : 1.5;
}

/* One at a time to each: the next one leaves when the last has come. */
static bool send_packet_and_wait_received(struct receiver *to, uint64_t *sent)
{
	uint64_t until;

	atomic_store(&to->sent_ns, vma_now_ns());
	fixture_send(to->thing);
	++*sent;
	until = vma_now_ns() + LATE_NS;
	while (atomic_load(&to->received) < *sent && vma_now_ns() < until)
		sched_yield();
	return atomic_load(&to->received) == *sent;
}

static bool receiver_is_asleep(struct receiver *receiver)
{
	struct vma_thread *self = atomic_load(&receiver->self);

	return self != NULL && atomic_load(&receiver->patient) && atomic_load(&self->state) == VMA_THREAD_ASLEEP;
}

/* All sleep, and nobody comes by himself. Returns what was lost. */
static uint64_t send_while_all_sleep_once(uint64_t *sent, unsigned first)
{
	uint64_t lost = 0;

	atomic_store(&calm, true);
	for (int i = 0; i < RECEIVERS; i++)
		while (!receiver_is_asleep(&receivers[i]))
			usleep(50);
	usleep(200);
	atomic_store(&away, true);
	for (int i = 0; i < RECEIVERS && lost == 0; i++)
		lost += !send_packet_and_wait_received(&receivers[(i + first) % RECEIVERS],
		                                       &sent[(i + first) % RECEIVERS]);
	atomic_store(&away, false);
	atomic_store(&calm, false);
	return lost;
}

static void test_every_datagram_is_received_soon(void **state)
{
	struct sigaction action = {.sa_handler = watch_noop_signal_handler};
	uint64_t sent[RECEIVERS] = {0}, until, total = 0, lost = 0, worst = 0;
	unsigned seed = 7;
	pthread_t unarmer;

	(void)state;
	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
	hold_internal_thread();
	assert_int_equal(pthread_create(&unarmer, NULL, thread_schedule_disarm_repeatedly, NULL), 0);
	for (uint16_t i = 0; i < RECEIVERS; i++) {
		receivers[i].thing = receivers[i].seed = i;
		assert_int_equal(
		        pthread_create(&receivers[i].thread, NULL, thread_receive_and_measure_latency, &receivers[i]),
		        0);
	}
	until = vma_now_ns() + (uint64_t)(watch_stress_seconds() * 1e9);
	while (vma_test_goes_on(vma_now_ns(), until, total > 100) && lost == 0) {
		unsigned to = (seed = seed * 1103515245 + 12345) >> 16 & 0x7fff;

		lost += !send_packet_and_wait_received(&receivers[to % RECEIVERS], &sent[to % RECEIVERS]);
		total++;
		if (to % 32 == 0)
			lost += send_while_all_sleep_once(sent, to / 32);
		if (to % 5 == 0)
			pthread_kill(receivers[1].thread, SIGUSR1);
		if (to % 3 == 0)
			usleep(to & 255);
	}
	for (int i = 0; i < RECEIVERS; i++)
		if (atomic_load(&receivers[i].worst_ns) > worst)
			worst = atomic_load(&receivers[i].worst_ns);
	print_message("%lu datagrams, the slowest took %lu us\n", (unsigned long)total, (unsigned long)(worst / 1000));
	assert_int_equal(lost, 0);
	assert_true(total > 100);
	atomic_store(&stop, true);
	assert_int_equal(pthread_join(unarmer, NULL), 0);
	for (int i = 0; i < RECEIVERS; i++) {
		thing_add_one_and_wake(&fixture.things[i]);
		assert_int_equal(pthread_join(receivers[i].thread, NULL), 0);
	}
	release_internal_thread();
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_datagram_is_received_soon),
};

VMA_TEST_MAIN_WITH(tests, wait_fixture_start, NULL)
