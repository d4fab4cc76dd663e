/*
 * Threads that wait for one set and take one event each: as many come out as there are events, however their coming,
 * each other's collecting and the events meet.
 *
 * A round: each thread of the crew waits once, with room for one event, and each of as many members gets a datagram,
 * edge-triggered or one-shot, so that what is told is told once. Nobody comes back before the round is over; so a
 * wake-up that was spent on a thread which leaves with another event is never made good.
 */
#include "backends.h"

#define CREW 4                 /* no more than a queue has places, or everybody is woken anyway */
#define LATE_NS 20000000000ULL /* a lost one is never seen; a busy machine takes its time */

static struct backend backend = {.kind = OFFLOADED};
static int ep, fd[CREW];
static struct vma_thread *_Atomic thread_of_crew_member[CREW];
static _Atomic unsigned round_now, members_out_of_wait_n, told[CREW];
static _Atomic bool stop;

static double stress_crew_seconds_from_env(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return text != NULL ? atof(text) : 1.0;
}

/* Who collects may lose its core meanwhile: then the others come, find the set taken, and sleep again. */
static uint32_t file_poll_yielding_core(struct vma_file *file)
{
	static _Atomic unsigned times;
	const unsigned time = atomic_fetch_add(&times, 1) * 2654435761U >> 24;

	if (time < 64)
		usleep(time);
	return fake_poll(file);
}
static const struct vma_file_ops slow_poll_file_ops = {
        .name = "slow", .poll = file_poll_yielding_core, .rings = fake_rings, .destroy = backends_count_destroyed_fake};

static uint32_t crew_epoll_mode_of_member(unsigned member)
{
	return EPOLLIN | (member % 2 != 0 ? EPOLLET : EPOLLONESHOT);
}

static void crew_wait_for_round(unsigned round)
{
	for (unsigned tries = 0; atomic_load(&round_now) < round && !atomic_load(&stop); tries++)
		if (tries > 100)
			sched_yield();
}

static void *crew_epoll_wait_each_round_thread(void *arg)
{
	const unsigned me = *(unsigned *)arg;
	struct epoll_event event;
	unsigned seed = me;

	atomic_store(&thread_of_crew_member[me], vma_thread_self());
	for (unsigned round = 1; crew_wait_for_round(round), !atomic_load(&stop); round++) {
		seed = seed * 1103515245 + 12345;
		for (unsigned i = seed >> 16 & 1023; i > 0; i--)
			atomic_signal_fence(memory_order_seq_cst);
		if (backend_epoll_wait(&backend, ep, &event, 1, -1) == 1)
			atomic_fetch_add(&told[event.data.u64], 1);
		atomic_fetch_add(&members_out_of_wait_n, 1);
	}
	return NULL;
}

/* What a wake-up depends on, for who looks for one that is missing. */
static void crew_dump_wait_state(unsigned round)
{
	struct vma_thread *thread = vma_enter();
	struct epoll_set *set = epoll_set_find(ep);

	fprintf(stderr, "round %u: %u came out; queue used %u, pending %u, ready list %s\n", round,
	        atomic_load(&members_out_of_wait_n), atomic_load(&set->file.waitq.used), atomic_load(&set->n_pending),
	        ready_list_is_empty(&set->ready) ? "empty" : "not empty");
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++)
		fprintf(stderr, "  place %u: %p\n", i, (void *)atomic_load(&set->file.waitq.slot[i]));
	for (unsigned i = 0; i < CREW; i++)
		fprintf(stderr, "  thread %p: state %u; member %u: told %u times\n",
		        (void *)atomic_load(&thread_of_crew_member[i]),
		        atomic_load(&atomic_load(&thread_of_crew_member[i])->state), i, atomic_load(&told[i]));
	vma_leave(thread);
}

static bool crew_await_all_out_of_wait(unsigned round)
{
	const uint64_t until = vma_now_ns() + LATE_NS;
	bool well = true;

	while (atomic_load(&members_out_of_wait_n) < round * CREW && vma_now_ns() < until)
		sched_yield();
	for (unsigned i = 0; i < CREW; i++)
		well = well && atomic_load(&told[i]) == round;
	if (well && atomic_load(&members_out_of_wait_n) == round * CREW)
		return true;
	crew_dump_wait_state(round);
	return false;
}

/* Taken, and one-shot members armed again: nothing of the round is left. */
static void receive_all_and_rearm_oneshot(void)
{
	struct epoll_event event;

	for (unsigned i = 0; i < CREW; i++) {
		backend_recv(&backend, fd[i]);
		backend_epoll_ctl(&backend, ep, EPOLL_CTL_MOD, fd[i], crew_epoll_mode_of_member(i), i);
	}
	assert_int_equal(backend_epoll_wait(&backend, ep, &event, 1, 0), 0);
}

static unsigned crew_run_wakeup_rounds(unsigned *seed, uint64_t until)
{
	unsigned round = 0;
	bool well = true;

	while (well && vma_now_ns() < until) {
		atomic_store(&round_now, ++round);
		*seed = *seed * 1103515245 + 12345;
		if (*seed >> 16 & 1) /* all of them sleep, or are about to */
			usleep(*seed >> 17 & 127);
		for (unsigned i = 0; i < CREW; i++)
			fake_queue_datagram_and_wake(fake_file_of_fd(fd[(i + *seed / 65536) % CREW]));
		well = crew_await_all_out_of_wait(round);
		if (well)
			receive_all_and_rearm_oneshot();
	}
	return well ? round : 0;
}

static void crew_stop_and_join_threads(pthread_t *threads)
{
	atomic_store(&stop, true);
	for (unsigned i = 0; i < CREW; i++) {
		struct vma_thread *thread = vma_enter();

		vma_file_wake_sleepers_and_watchers(vma_fd_lookup(ep), EPOLLIN);
		vma_leave(thread);
	}
	for (int i = 0; i < CREW; i++)
		pthread_join(threads[i], NULL);
}

static void test_as_many_come_out_as_there_are_events(void **state)
{
	static unsigned number[CREW];
	pthread_t threads[CREW];
	unsigned seed = 3, rounds;

	(void)state;
	ep = epoll_create1(0);
	for (unsigned i = 0; i < CREW; i++) {
		fd[i] = backend_socket(&backend);
		fake_file_of_fd(fd[i])->file.ops = &slow_poll_file_ops;
		assert_int_equal(backend_epoll_ctl(&backend, ep, EPOLL_CTL_ADD, fd[i], crew_epoll_mode_of_member(i), i),
		                 0);
		number[i] = i;
		assert_int_equal(pthread_create(&threads[i], NULL, crew_epoll_wait_each_round_thread, &number[i]), 0);
	}
	rounds = crew_run_wakeup_rounds(&seed, vma_now_ns() + (uint64_t)(stress_crew_seconds_from_env() * 1e9));
	assert_int_not_equal(rounds, 0);
	print_message("%u rounds\n", rounds);
	crew_stop_and_join_threads(threads);
	for (int i = 0; i < CREW; i++)
		backend_close(&backend, fd[i]);
	backend_close(&backend, ep);
	backends_free_retired_objects();
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_many_come_out_as_there_are_events)};

	return run_backends(__FILE__, tests, 1);
}
