/*
 * The last look of a release. Threads leave frames and commands all at once and then do nothing more: whatever lost the
 * race for the flag must have been done by whoever won it, without any further call. STRESS_SECONDS.
 */
#include <netinet/in.h>
#include <time.h>

#include "../ring_priv.h"
#include "fake_nic.h"

enum { THREADS = 4, PER_ROUND = 8 };

static struct fake_nic fake;
static struct vma_ring *ring;
static pthread_barrier_t gate;
static _Atomic bool stop;
static _Atomic unsigned runs;

struct job {
	struct vma_ring_command command; /* first */
	unsigned ran;                    /* with the flag */
};

struct command_poster {
	pthread_t thread;
	struct job jobs[PER_ROUND];
	struct vma_nic_seg segs[PER_ROUND];
};

static struct command_poster parties[THREADS];

static void count_job_run(struct vma_ring_command *command)
{
	((struct job *)command)->ran++;
	atomic_fetch_add_explicit(&runs, 1, memory_order_relaxed);
}

static void *post_commands_and_wait_thread(void *arg)
{
	struct command_poster *p = arg;

	for (;;) {
		pthread_barrier_wait(&gate);
		if (atomic_load(&stop))
			return NULL;
		for (int i = 0; i < PER_ROUND; i++) {
			vma_ring_queue_command_and_try_run(ring, &p->jobs[i].command);
			if (vma_ring_send(ring, &p->segs[i], 1, i % 2 ? VMA_RING_SEND_LATER : 0) != 1)
				abort();
		}
		vma_ring_flush_tx(ring);
		pthread_barrier_wait(&gate);
	}
}

static void prepare_frames_and_commands_of_round(void)
{
	for (int t = 0; t < THREADS; t++) {
		for (int i = 0; i < PER_ROUND; i++) {
			struct vma_buf *buf = vma_ring_tx_buf(ring);

			assert_non_null(buf);
			parties[t].segs[i] = (struct vma_nic_seg){.buf = buf, .off = buf->data_off, .len = 60};
			memset(vma_buf_frame(fake.arena, buf) + buf->data_off, t * PER_ROUND + i, 60);
			parties[t].jobs[i] = (struct job){.command.run = count_job_run};
		}
	}
	fake.sent_count = 0;
	atomic_store(&runs, 0);
}

static void check_all_commands_ran_and_frames_sent(void)
{
	unsigned next[THREADS] = {0};

	assert_int_equal(atomic_load(&runs), THREADS * PER_ROUND);
	assert_int_equal(fake.sent_count, THREADS * PER_ROUND);
	assert_int_equal(fake.queued_count, 0); /* and all of it kicked */
	for (unsigned i = 0; i < fake.sent_count; i++) {
		unsigned t = fake.sent[i].bytes[0] / PER_ROUND;

		assert_int_equal(fake.sent[i].bytes[0] % PER_ROUND, next[t]); /* each thread's in its order */
		next[t]++;
	}
	for (int t = 0; t < THREADS; t++) {
		for (int i = 0; i < PER_ROUND; i++)
			assert_int_equal(parties[t].jobs[i].ran, 1);
	}
}

static void test_nothing_is_left_behind_when_all_have_returned(void **state)
{
	const char *text = getenv("STRESS_SECONDS");
	time_t end = time(NULL) + 2 + (text != NULL ? (time_t)atof(text) : 0);
	unsigned rounds = 0;

	(void)state;
	fake_init(&fake, VMA_NIC_CAP_SG);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	pthread_barrier_init(&gate, NULL, THREADS + 1);
	for (int t = 0; t < THREADS; t++)
		assert_int_equal(pthread_create(&parties[t].thread, NULL, post_commands_and_wait_thread, &parties[t]),
		                 0);
	for (; vma_test_goes_on((uint64_t)time(NULL) * 1000000000, (uint64_t)end * 1000000000, rounds > 10); rounds++) {
		prepare_frames_and_commands_of_round();
		pthread_barrier_wait(&gate);
		pthread_barrier_wait(&gate);
		check_all_commands_ran_and_frames_sent();
	}
	atomic_store(&stop, true);
	pthread_barrier_wait(&gate);
	for (int t = 0; t < THREADS; t++)
		pthread_join(parties[t].thread, NULL);
	print_message("%u rounds, %lu frames by other threads\n", rounds,
	              (unsigned long)vma_stats_read_counter(&vma_ring_stats(ring)->tx.tx_commands));
	assert_true(rounds > 10);
	vma_ring_destroy(ring);
	fake_fini(&fake);
	pthread_barrier_destroy(&gate);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_left_behind_when_all_have_returned),
};
VMA_TEST_MAIN(tests)
