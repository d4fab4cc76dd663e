/*
 * Pools are retired while eight threads take from them, give back, and pass buffers to and from the NIC: each ends
 * exactly once, not before its last buffer is home, and its memory can be unmapped then.
 */
#include "fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#define THREADS 8
#define COUNT 256
#define HOLD 16

struct round {
	struct fixture f;
	_Atomic uint32_t out;   /* buffers in the workers' hands */
	_Atomic bool retired;   /* set before retire is called */
	_Atomic uint32_t early; /* ended while buffers were out */
	_Atomic uint32_t start, done;
	bool growing;
};

static struct vma_bufarena *arena;
static struct round *_Atomic current;
static _Atomic uint64_t generation;
static _Atomic bool stop;

static void retire_stress_on_drained(void *arg)
{
	struct round *r = arg;

	if (atomic_load(&r->out) != 0)
		atomic_fetch_add(&r->early, 1);
	if (!r->growing)
		vma_bufarena_unmap(arena, r->f.first, COUNT);
	atomic_fetch_add(&r->f.drained, 1);
}

/* A worker's share of one pool's life: until it is retired, and a little beyond. Its own buffers keep the pool. */
static void retire_stress_use_pool(struct round *r, uint32_t *seed)
{
	struct vma_buf *bufs[HOLD];
	unsigned n;

	do {
		*seed = *seed * 1664525 + 1013904223;
		n = vma_bufpool_get(r->f.pool, bufs, 1 + (*seed >> 16) % HOLD);
		atomic_fetch_add(&r->out, n);
		if (n > 2 && (*seed >> 8) % 4 == 0) {
			vma_bufpool_uncount_bufs_given_to_nic(r->f.pool, bufs,
			                                      2); /* the others keep the pool meanwhile */
			vma_bufpool_init_bufs_taken_from_nic(r->f.pool, bufs, 2);
		}
		if ((*seed >> 24) % 16 == 0)
			sched_yield();
		atomic_fetch_sub(&r->out, n);
		if ((*seed >> 10) % 2 == 0) {
			vma_buf_put_burst(arena, bufs, n);
		} else {
			for (unsigned i = 0; i < n; i++)
				vma_buf_put(arena, bufs[i]);
		}
	} while (!atomic_load(&r->retired));
}

static void *retire_stress_thread(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg * 7919 + 1;
	uint64_t seen = 0;

	while (!atomic_load(&stop)) {
		uint64_t now = atomic_load(&generation);
		struct round *r = atomic_load(&current);

		if (now == seen || r == NULL) {
			sched_yield();
			continue;
		}
		seen = now;
		atomic_fetch_add(&r->start, 1);
		retire_stress_use_pool(r, &seed);
		atomic_fetch_add(&r->done, 1);
	}
	return NULL;
}

static void stress_pool_retire_round(uint32_t number, int mode)
{
	static struct round rounds[2];
	struct round *r = &rounds[number % 2];

	memset(r, 0, sizeof(*r));
	r->growing = number % 3 == 0;
	r->f.pool = pool_fixture_create_pool(arena, "mortal", r->growing ? COUNT : 0, mode);
	if (!r->growing) {
		assert_int_equal(vma_bufarena_map_memory(arena, COUNT, &r->f.first), 0);
		assert_int_equal(vma_bufpool_add_frames(r->f.pool, r->f.first, COUNT), 0);
	}
	atomic_store(&current, r);
	atomic_fetch_add(&generation, 1);
	while (atomic_load(&r->start) < THREADS)
		sched_yield();
	if (number % 4 != 0)
		nanosleep(&(struct timespec){.tv_nsec = 20000 * (number % 7)}, NULL);
	vma_bufpool_retire(r->f.pool, retire_stress_on_drained, r);
	atomic_store(&r->retired, true);
	while (atomic_load(&r->done) < THREADS)
		sched_yield();
	assert_int_equal(atomic_load(&r->f.drained), 1);
	assert_int_equal(atomic_load(&r->early), 0);
}

static void retire_stress_run(int mode)
{
	const char *text = getenv("STRESS_SECONDS");
	double length = text == NULL ? 0.5 : atof(text) / 3;
	struct vma_bufarena_attr attr = {.capacity = 4 * COUNT};
	pthread_t threads[THREADS];
	struct timespec begin, t;
	uint32_t rounds = 0;

	assert_int_equal(vma_bufarena_create(&attr, &arena), 0);
	atomic_store(&stop, false);
	atomic_store(&current, NULL);
	atomic_store(&generation, 0); /* what new threads have seen */
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, retire_stress_thread, (void *)i), 0);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		stress_pool_retire_round(rounds++, mode);
		clock_gettime(CLOCK_MONOTONIC, &t);
	} while ((double)(t.tv_sec - begin.tv_sec) + (double)(t.tv_nsec - begin.tv_nsec) * 1e-9 < length || rounds < 2);
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	print_message("mode %d: %u pools retired under load\n", mode, rounds);
	assert_true(rounds >= 2);
	vma_bufarena_destroy(arena);
}

static void test_a_pool_retired_under_load_ends_once_without_caches(void **state)
{
	(void)state;
	retire_stress_run(0);
}

static void test_a_pool_retired_under_load_ends_once_with_reclaim(void **state)
{
	(void)state;
	retire_stress_run(1);
}

static void test_a_pool_retired_under_load_ends_once_with_caches_kept(void **state)
{
	(void)state;
	retire_stress_run(2);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pool_retired_under_load_ends_once_without_caches),
        cmocka_unit_test(test_a_pool_retired_under_load_ends_once_with_reclaim),
        cmocka_unit_test(test_a_pool_retired_under_load_ends_once_with_caches_kept),
};

VMA_TEST_MAIN(tests)
