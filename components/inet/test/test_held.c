/* The table of held packets: each is given back once, by whom it belongs to, whatever else is asked for. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include <vma/inet_held.h>
#include <vma/sock_engine.h>
#include <vma/test.h>

#include "../../sock/test/fake_file.h"
#include "../../sock/test/small_engine.h"

enum { FD = 77, THREADS = 3, ROUNDS = 3000 };

static struct fake_file *fake, *other;
static struct vma_held_packets_owner holder, others;
static _Atomic unsigned returned;

static void on_returned(struct vma_held_packets_owner *of, uint64_t connection, uint32_t bytes)
{
	(void)of, (void)bytes;
	assert_int_equal(connection, 7);
	atomic_fetch_add(&returned, 1);
}

static int setup(void **state)
{
	(void)state;
	start_engine_with_few_buffers("4096", "256");
	fake = fake_file_create();
	other = fake_file_create();
	holder = (struct vma_held_packets_owner){.file = &fake->file, .returned = on_returned};
	others = (struct vma_held_packets_owner){.file = &other->file};
	atomic_store(&returned, 0);
	vma_enter();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_int_equal(atomic_load(&holder.bytes), 0);
	assert_int_equal(atomic_load(&holder.packets), 0);
	assert_int_equal(atomic_load(&fake->file.refs), 1);
	vma_file_put(&fake->file);
	vma_file_put(&other->file);
	vma_leave(vma_thread_self());
	fake_poll_until_retired_are_freed();
	return 0;
}

static struct vma_buf *get_buf(void)
{
	struct vma_buf *buf = NULL;

	assert_int_equal(vma_bufpool_get(vma_engine_get_or_start()->spill, &buf, 1), 1);
	return buf;
}

static uint64_t hold_test_packet(unsigned n, uint32_t bytes, uint64_t limit, int wanted)
{
	struct vma_fragment fragments[8];
	uint64_t id = 0;
	int rc;

	for (unsigned i = 0; i < n; i++)
		fragments[i] = (struct vma_fragment){.buf = get_buf(), .len = 1};
	rc = vma_held_packet_add(&holder, FD, fragments, n, bytes, limit, 7, &id);
	assert_int_equal(rc, wanted);
	for (unsigned i = 0; rc != 0 && i < n; i++)
		vma_buf_put(vma_engine_get_or_start()->arena, fragments[i].buf);
	return id;
}

static void test_packet_is_freed_once_by_its_own_socket(void **state)
{
	const uint64_t id = hold_test_packet(1, 100, 1000, 0);

	(void)state;
	assert_int_equal(atomic_load(&holder.bytes), 100);
	assert_int_equal(vma_held_packet_free(&other->file, FD, id), -ENOENT);
	assert_int_equal(vma_held_packet_free(NULL, FD, id), -ENOENT);
	assert_int_equal(vma_held_packet_free(&fake->file, FD + 1, id), 0); /* a copy of its descriptor */
	assert_int_equal(vma_held_packet_free(&fake->file, FD, id), -ENOENT);
	assert_int_equal(atomic_load(&returned), 1);
}

static void test_old_identifier_finds_nothing_when_its_place_is_taken_anew(void **state)
{
	const uint64_t old = hold_test_packet(1, 1, 1000, 0);
	uint64_t now;

	(void)state;
	assert_int_equal(vma_held_packet_free(&fake->file, FD, old), 0);
	now = hold_test_packet(1, 1, 1000, 0);
	assert_int_not_equal(now, old);
	assert_int_equal(vma_held_packet_free(&fake->file, FD, old), -ENOENT);
	assert_int_equal(vma_held_packet_free(&fake->file, FD, now), 0);
}

static void test_numbers_that_nobody_was_given(void **state)
{
	uint64_t seed = 88172645463325252ULL;

	(void)state;
	for (unsigned i = 0; i < 100000; i++) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		assert_int_equal(vma_held_packet_free(&fake->file, FD, i % 2 ? seed : seed >> 40), -ENOENT);
	}
	assert_int_equal(vma_held_packet_free(&fake->file, FD, 0), -ENOENT);
	assert_int_equal(vma_held_packet_free(&fake->file, FD, UINT64_MAX), -ENOENT);
}

static void test_limit_holds_but_for_a_packet_alone(void **state)
{
	const uint64_t large = hold_test_packet(1, 5000, 1000, 0);

	(void)state;
	hold_test_packet(1, 1, 1000, -ENOBUFS);
	assert_int_equal(vma_held_packet_free(&fake->file, FD, large), 0);
	assert_int_equal(vma_held_packet_free(&fake->file, FD, hold_test_packet(8, 1, 1000, 0)),
	                 0); /* more fragments than a place has */
}

static void test_packet_that_is_taken_back_is_the_callers(void **state)
{
	struct vma_fragment fragment = {.buf = get_buf(), .len = 1};
	uint64_t id;

	(void)state;
	assert_int_equal(vma_held_packet_add(&holder, FD, &fragment, 1, 10, 1000, 7, &id), 0);
	assert_true(vma_held_packet_undo_add(&holder, id));
	assert_false(vma_held_packet_undo_add(&holder, id));
	assert_int_equal(atomic_load(&returned), 0);
	assert_int_equal(atomic_load(&fragment.buf->refs), 1);
	vma_buf_put(vma_engine_get_or_start()->arena, fragment.buf);
}

static void test_packet_outlives_its_socket(void **state)
{
	const uint64_t id = hold_test_packet(1, 10, 1000, 0);

	(void)state;
	atomic_fetch_or(&fake->file.slots, VMA_FILE_ENDED);
	assert_int_equal(vma_held_packet_free(NULL, FD + 1, id), -ENOENT);
	assert_int_equal(vma_held_packet_free(&other->file, FD, id), 0); /* the number is another socket's now */
	assert_int_equal(vma_held_packet_free(NULL, FD, id), -ENOENT);
}

static void *hold_and_free(void *arg)
{
	static _Atomic uint64_t swap;
	struct vma_thread *self;
	_Atomic unsigned *freed = arg;

	for (unsigned i = 0; i < ROUNDS; i++) {
		uint64_t id;

		self = vma_enter();
		id = atomic_exchange(&swap, hold_test_packet(1, 1, UINT64_MAX, 0));
		if (id != 0 && vma_held_packet_free(&fake->file, FD, id) == 0)
			atomic_fetch_add(freed, 1);
		assert_int_equal(id == 0 ? -ENOENT : vma_held_packet_free(&fake->file, FD, id), -ENOENT);
		vma_leave(self);
	}
	self = vma_enter();
	if (vma_held_packet_free(&fake->file, FD, atomic_exchange(&swap, 0)) == 0)
		atomic_fetch_add(freed, 1);
	vma_leave(self);
	return NULL;
}

static void test_threads_that_hold_and_free_each_others(void **state)
{
	pthread_t thread[THREADS];
	_Atomic unsigned freed = 0;

	(void)state;
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, hold_and_free, &freed), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(freed, THREADS * ROUNDS);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_packet_is_freed_once_by_its_own_socket),
        CASE(test_old_identifier_finds_nothing_when_its_place_is_taken_anew),
        CASE(test_numbers_that_nobody_was_given),
        CASE(test_limit_holds_but_for_a_packet_alone),
        CASE(test_packet_that_is_taken_back_is_the_callers),
        CASE(test_packet_outlives_its_socket),
        CASE(test_threads_that_hold_and_free_each_others),
};

VMA_TEST_MAIN(tests)
