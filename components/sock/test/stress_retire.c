/*
 * Nothing that somebody inside can see is ended: readers follow a pointer that a writer replaces, and find what it
 * leads to alive until they leave. Threads come and go meanwhile, and so do their records.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vma/test.h>

#include "../thread/thread.h"

#define READERS 3
#define ALIVE 0x51a1e0be11ULL

struct object {
	struct vma_retired retired; /* first */
	_Atomic uint64_t magic;
	_Atomic uint64_t copy; /* the same again, at the end of a line of its own */
};

static struct object *_Atomic current;
static _Atomic bool stop;
static _Atomic uint64_t made, ended, dead_seen, looks;

static void retired_object_count_and_free(struct vma_retired *retired)
{
	struct object *object = (struct object *)retired;

	atomic_store_explicit(&object->magic, 0, memory_order_relaxed);
	atomic_store_explicit(&object->copy, 0, memory_order_relaxed);
	atomic_fetch_add(&ended, 1);
	vma_free(object);
}

static struct object *alloc_counted_object(void)
{
	struct object *object = vma_alloc(sizeof(*object));

	assert_non_null(object);
	atomic_store_explicit(&object->magic, ALIVE, memory_order_relaxed);
	atomic_store_explicit(&object->copy, ALIVE, memory_order_relaxed);
	atomic_fetch_add(&made, 1);
	return object;
}

static void check_current_object_is_alive(unsigned times)
{
	struct vma_thread *self = vma_enter();
	struct object *object = atomic_load_explicit(&current, memory_order_acquire);

	for (unsigned i = 0; i < times; i++)
		if (atomic_load_explicit(&object->magic, memory_order_relaxed) != ALIVE ||
		    atomic_load_explicit(&object->copy, memory_order_relaxed) != ALIVE)
			atomic_fetch_add(&dead_seen, 1);
	vma_leave(self);
}

static void *thread_look_at_objects_for_a_while(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	for (int i = 0; i < 20000 && !atomic_load(&stop); i++) {
		check_current_object_is_alive((seed = seed * 1103515245 + 12345) >> 24);
		atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed);
	}
	return NULL;
}

/* Keeps readers coming: each is a thread anew. */
static void *thread_spawn_readers_repeatedly(void *arg)
{
	while (!atomic_load(&stop)) {
		pthread_t reader;

		if (pthread_create(&reader, NULL, thread_look_at_objects_for_a_while, arg) != 0)
			abort();
		pthread_join(reader, NULL);
	}
	return NULL;
}

static void *thread_replace_and_retire_objects(void *arg)
{
	struct object *old;

	for (unsigned i = 0; !atomic_load(&stop); i++) {
		old = atomic_exchange_explicit(&current, alloc_counted_object(), memory_order_acq_rel);
		vma_defer_free_until_no_readers(&old->retired, retired_object_count_and_free);
		if (i % 4 == (uintptr_t)arg)
			vma_run_due_deferred_frees();
		if (i % 64 == 0)
			sched_yield();
	}
	return NULL;
}

static double retire_stress_seconds(void)
{
	const char *seconds = getenv("STRESS_SECONDS");

	return seconds != NULL ? atof(seconds) : 1;
}

static void test_nobody_inside_sees_what_has_ended(void **state)
{
	pthread_t readers[READERS], writers[2];
	uint64_t until;

	(void)state;
	atomic_store(&current, alloc_counted_object());
	for (uintptr_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&readers[i], NULL, thread_spawn_readers_repeatedly, (void *)(i + 1)),
		                 0);
	for (uintptr_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&writers[i], NULL, thread_replace_and_retire_objects, (void *)i), 0);
	until = vma_now_ns() + (uint64_t)(retire_stress_seconds() * 1e9);
	while (vma_test_goes_on(vma_now_ns(), until, atomic_load(&ended) > 100 && atomic_load(&looks) > 100))
		usleep(1000);
	atomic_store(&stop, true);
	for (int i = 0; i < READERS; i++)
		assert_int_equal(pthread_join(readers[i], NULL), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_join(writers[i], NULL), 0);
	for (int i = 0; i < 8; i++)
		vma_run_due_deferred_frees();
	assert_int_equal(atomic_load(&dead_seen), 0);
	assert_int_equal(atomic_load(&ended), atomic_load(&made) - 1);
	assert_true(atomic_load(&ended) > 100 && atomic_load(&looks) > 100);
	vma_free(atomic_load(&current));
}

/*
 * The same where the processor has every reason to look before others see that the section has begun: that store waits
 * behind many that miss every cache. Objects go round, so that one that has ended stays so for a while.
 */
enum { ROUND = 256, LINES = 1 << 18, WAITING_STORES = 48 };
static struct object *round_of_objects;
static uint8_t *lines;

static void mark_retired_object_ended(struct vma_retired *retired)
{
	atomic_store_explicit(&((struct object *)retired)->magic, 0, memory_order_relaxed);
	atomic_fetch_add(&ended, 1);
}

static void *thread_read_object_after_many_stores(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		struct vma_thread *self;
		struct object *object;

		for (int i = 0; i < WAITING_STORES; i++) {
			seed = seed * 1664525 + 1013904223;
			*(volatile uint8_t *)&lines[(size_t)(seed >> 14) * 64] = 1;
		}
		self = vma_enter();
		object = atomic_load_explicit(&current, memory_order_acquire);
		for (int i = 0; i < 500; i++)
			if (atomic_load_explicit(&object->magic, memory_order_relaxed) != ALIVE)
				atomic_fetch_add(&dead_seen, 1);
		vma_leave(self);
		atomic_fetch_add_explicit(&looks, 1, memory_order_relaxed);
	}
	return NULL;
}

static void replace_retire_and_poll_until_ended(unsigned i)
{
	struct object *next = &round_of_objects[i % ROUND], *old;
	const uint64_t before = atomic_load(&ended);

	atomic_store(&next->magic, ALIVE);
	old = atomic_exchange(&current, next);
	vma_defer_free_until_no_readers(&old->retired, mark_retired_object_ended);
	while (atomic_load(&ended) == before)
		vma_run_due_deferred_frees();
}

static void test_a_section_has_begun_before_what_is_done_inside(void **state)
{
	const uint64_t until = vma_now_ns() + (uint64_t)(retire_stress_seconds() * 1e9);
	pthread_t reader;
	unsigned i = 1;

	(void)state;
	round_of_objects = calloc(ROUND, sizeof(*round_of_objects));
	lines = calloc(LINES, 64);
	assert_true(round_of_objects != NULL && lines != NULL);
	atomic_store(&stop, false);
	atomic_store(&looks, 0);
	atomic_store(&ended, 0);
	atomic_store(&round_of_objects[0].magic, ALIVE);
	atomic_store(&current, &round_of_objects[0]);
	assert_int_equal(pthread_create(&reader, NULL, thread_read_object_after_many_stores, (void *)1), 0);
	for (; vma_test_goes_on(vma_now_ns(), until, i > 100 && atomic_load(&looks) > 100); i++)
		replace_retire_and_poll_until_ended(i);
	atomic_store(&stop, true);
	assert_int_equal(pthread_join(reader, NULL), 0);
	assert_int_equal(atomic_load(&dead_seen), 0);
	assert_true(i > 100 && atomic_load(&looks) > 100);
	free(lines);
	free(round_of_objects);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_inside_sees_what_has_ended),
        cmocka_unit_test(test_a_section_has_begun_before_what_is_done_inside),
};
VMA_TEST_MAIN(tests)
