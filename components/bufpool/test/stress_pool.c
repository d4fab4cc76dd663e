/*
 * Eight threads take, pass on, share and give back the buffers of one pool. Each buffer carries its holder's mark:
 * nothing is handed out twice, and in the end every buffer is at home.
 */
#include "fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#define THREADS 8
#define COUNT 512
#define HOLD 24
#define BOXES 16

struct worker {
	unsigned number;
	uint64_t seed, dry, passed;
	_Atomic uint64_t got;
	pthread_t thread;
};

static struct fixture f;
static _Atomic uint32_t owner[4096]; /* by buffer index: 0 free, else thread number + 1 */
static struct vma_buf *_Atomic shared_buf_boxes[BOXES];
static _Atomic bool stop;
static _Atomic uint32_t faults;

static double stress_now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double pool_stress_seconds(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return text == NULL ? 0.4 : atof(text) / 3;
}

static uint32_t stress_random_below(struct worker *w, uint32_t below)
{
	w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(w->seed >> 33) % below;
}

/* The mark changes from `from` to `to`; anything else means that two threads have the buffer. */
static void exchange_buffer_owner_mark(struct vma_buf *buf, uint32_t from, uint32_t to)
{
	uint32_t old = atomic_exchange(&owner[vma_buf_index(f.arena, buf)], to);

	if (old != from)
		atomic_fetch_add(&faults, 1);
}

static void stress_put_some_bufs(struct worker *w, struct vma_buf **bufs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct vma_buf *in_box = NULL;

		exchange_buffer_owner_mark(bufs[i], w->number + 1, 0);
		if (stress_random_below(w, 4) == 0) { /* a second holder: whoever finds it in the box */
			vma_buf_ref(bufs[i]);
			w->passed++;
			in_box = atomic_exchange(&shared_buf_boxes[stress_random_below(w, BOXES)], bufs[i]);
		}
		if (in_box != NULL)
			vma_buf_put(f.arena, in_box);
	}
	if (n > 1 && stress_random_below(w, 2) == 0) {
		vma_buf_put_burst(f.arena, bufs, n);
		return;
	}
	for (unsigned i = 0; i < n; i++)
		vma_buf_put(f.arena, bufs[i]);
}

static void *stress_pool_thread(void *arg)
{
	struct worker *w = arg;
	struct vma_buf *bufs[HOLD];

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		unsigned n = vma_bufpool_get(f.pool, bufs, 1 + stress_random_below(w, HOLD));

		atomic_store_explicit(&w->got, atomic_load_explicit(&w->got, memory_order_relaxed) + n,
		                      memory_order_relaxed); /* which orders nothing that is tested */
		w->dry += n == 0;
		for (unsigned i = 0; i < n; i++) {
			exchange_buffer_owner_mark(bufs[i], 0, w->number + 1);
			*(uint32_t *)vma_buf_frame(f.arena, bufs[i]) = w->number;
		}
		if (stress_random_below(w, 64) == 0)
			sched_yield();
		for (unsigned i = 0; i < n; i++)
			if (*(uint32_t *)vma_buf_frame(f.arena, bufs[i]) != w->number)
				atomic_fetch_add(&faults, 1);
		if (n > 0 && stress_random_below(w, 8) == 0) { /* out to the NIC and in again */
			for (unsigned i = 0; i < n; i++)
				exchange_buffer_owner_mark(bufs[i], w->number + 1, 0);
			vma_bufpool_uncount_bufs_given_to_nic(f.pool, bufs, n);
			vma_bufpool_init_bufs_taken_from_nic(f.pool, bufs, n);
			for (unsigned i = 0; i < n; i++)
				exchange_buffer_owner_mark(bufs[i], 0, w->number + 1);
		}
		stress_put_some_bufs(w, bufs, n);
		if (stress_random_below(w, 4096) == 0)
			vma_bufpool_flush_thread(f.arena);
	}
	return NULL;
}

static uint64_t stress_sum_taken(struct worker *workers)
{
	uint64_t got = 0;

	for (unsigned i = 0; i < THREADS; i++)
		got += atomic_load_explicit(&workers[i].got, memory_order_relaxed);
	return got;
}

static void run_pool_stress(void)
{
	struct worker workers[THREADS];
	uint64_t got = 0, dry = 0, passed = 0;
	double end = stress_now_seconds() + pool_stress_seconds();

	atomic_store(&stop, false);
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){.number = i, .seed = i + 1};
		assert_int_equal(pthread_create(&workers[i].thread, NULL, stress_pool_thread, &workers[i]), 0);
	}
	while (vma_test_goes_on((uint64_t)(stress_now_seconds() * 1e9), (uint64_t)(end * 1e9),
	                        stress_sum_taken(workers) > 1000))
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		dry += workers[i].dry;
		passed += workers[i].passed;
	}
	got = stress_sum_taken(workers);
	for (int i = 0; i < BOXES; i++) {
		struct vma_buf *buf = atomic_exchange(&shared_buf_boxes[i], NULL);
		if (buf != NULL)
			vma_buf_put(f.arena, buf);
	}
	print_message("%lu buffers handed out, %lu shared, %lu times dry\n", (unsigned long)got, (unsigned long)passed,
	              (unsigned long)dry);
	assert_int_equal(atomic_load(&faults), 0);
	assert_true(got > 1000);
}

static void assert_all_bufs_returned(uint32_t count)
{
	static struct vma_buf *bufs[4096];
	unsigned got = vma_bufpool_get(f.pool, bufs, 4096);

	assert_int_equal(got, count);
	for (unsigned i = 0; i < got; i++)
		exchange_buffer_owner_mark(bufs[i], 0, 1);
	for (unsigned i = 0; i < got; i++)
		exchange_buffer_owner_mark(bufs[i], 1, 0);
	assert_int_equal(atomic_load(&faults), 0);
	vma_buf_put_burst(f.arena, bufs, got);
}

static void test_nothing_is_lost_or_handed_out_twice_with_reclaim(void **state)
{
	(void)state;
	open_fixed_pool(&f, COUNT / 4, 1); /* fewer than the threads want: dry, with reclaim all the time */
	run_pool_stress();
	assert_all_bufs_returned(COUNT / 4);
	close_fixture(&f);
}

static void test_nothing_is_lost_or_handed_out_twice_without_caches(void **state)
{
	(void)state;
	open_fixed_pool(&f, COUNT, 0);
	run_pool_stress();
	assert_all_bufs_returned(COUNT);
	close_fixture(&f);
}

static void test_nothing_is_lost_or_handed_out_twice_while_growing(void **state)
{
	(void)state;
	open_arena(&f, 4096);
	f.pool = pool_fixture_create_pool(f.arena, "growing", 2000, 2);
	run_pool_stress();
	assert_all_bufs_returned(2000);
	close_fixture(&f);
}

static void test_a_burst_is_cheaper_than_one_by_one(void **state)
{
	double best = 1e9, burst = 1e9;
	struct vma_buf *bufs[32];

	(void)state;
	open_fixed_pool(&f, COUNT, 1);
	for (int round = 0; round < 50; round++) {
		double start = stress_now_seconds(), mid;

		for (int i = 0; i < 2000; i++) {
			assert_true(vma_bufpool_get(f.pool, bufs, 1) == 1);
			vma_buf_put(f.arena, bufs[0]);
		}
		mid = stress_now_seconds();
		best = mid - start < best ? mid - start : best;
		for (int i = 0; i < 100; i++) {
			assert_true(vma_bufpool_get(f.pool, bufs, 32) == 32);
			vma_buf_put_burst(f.arena, bufs, 32);
		}
		burst = stress_now_seconds() - mid < burst ? stress_now_seconds() - mid : burst;
	}
	print_message("get and put of one: %.1f ns; in bursts of 32: %.1f ns each\n", best / 2000 * 1e9,
	              burst / 3200 * 1e9);
	assert_true(burst / 3200 < best / 2000); /* what a burst is for */
	close_fixture(&f);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost_or_handed_out_twice_with_reclaim),
        cmocka_unit_test(test_nothing_is_lost_or_handed_out_twice_without_caches),
        cmocka_unit_test(test_nothing_is_lost_or_handed_out_twice_while_growing),
        cmocka_unit_test(test_a_burst_is_cheaper_than_one_by_one),
};

VMA_TEST_MAIN(tests)
