/* SocketXtreme's functions: there in the mode only, and errors of whoever calls them wrongly. */
#include <errno.h>

#include <vma/extra.h>
#include <vma/inet_xtreme.h>
#include <vma/test.h>

#include "../../sock/test/fake_file.h"
#include "../../sock/test/small_engine.h"

enum { BIT = 3 };

static struct fake_file *fake;
static struct vma_file_ops ops;
static const uint64_t bits = VMA_EXTRA_API_SOCKETXTREME_POLL | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS |
                             VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF | VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF;

static uint64_t fake_rings_op_single_ring(struct vma_file *file)
{
	(void)file;
	return 1ULL << BIT;
}

static bool complete_with_one_event(struct vma_file *file, struct vma_xtreme_poll *poll, uint32_t *events)
{
	struct vma_xtreme *xtreme = vma_xtreme_create(file, NULL);
	const bool told = vma_xtreme_poll_add_event_completion(poll, xtreme, *events, NULL, 0);

	*events = 0;
	vma_xtreme_destroy(xtreme);
	return !told;
}

static int setup_fake_socketxtreme_file(void **state)
{
	(void)state;
	start_engine_with_few_buffers("4096", "256")->conf.socketxtreme = true;
	fake = fake_file_create();
	ops = *fake->file.ops;
	ops.rings = fake_rings_op_single_ring;
	ops.complete = complete_with_one_event;
	fake->file.ops = &ops;
	vma_enter();
	return 0;
}

static int teardown_fake_socketxtreme_file(void **state)
{
	(void)state;
	vma_engine_get_or_start()->conf.socketxtreme = false;
	vma_file_put(&fake->file);
	vma_leave(vma_thread_self());
	fake_poll_until_retired_are_freed();
	return 0;
}

static void test_without_the_mode_the_functions_are_missing(void **state)
{
	struct vma_completion_t completion;

	(void)state;
	assert_true((vma_extra_mask() & bits) == bits);
	vma_engine_get_or_start()->conf.socketxtreme = false;
	assert_true((vma_extra_mask() & bits) == 0);
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, &completion, 1, 0), -EOPNOTSUPP);
	assert_int_equal(vma_extra_xtreme_free_packets(&completion.packet, 0), -EOPNOTSUPP);
	assert_int_equal(vma_extra_xtreme_ref(NULL), -EOPNOTSUPP);
	assert_int_equal(vma_extra_xtreme_free_buff(NULL), -EOPNOTSUPP);
}

static void test_wrong_arguments_are_errors_and_take_nothing(void **state)
{
	struct vma_xtreme_source *source = vma_xtreme_source_create(&fake->file, BIT);
	struct vma_completion_t completion;

	(void)state;
	vma_xtreme_queue_source_events(source, 4);
	assert_int_equal(vma_extra_xtreme_poll(NULL, &completion, 1, 0), -EBADF);
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, &completion, 1, 1), -EINVAL);
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, &completion, UINT32_MAX, 0), -EINVAL);
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, NULL, 1, 0), -EFAULT);
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, NULL, 0, 0), 0);
	fake->file.os_only = true;
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, &completion, 1, 0), -EBADF);
	fake->file.os_only = false;
	ops.rings = NULL;
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, &completion, 1, 0), -EBADF);
	ops.rings = fake_rings_op_single_ring;
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, &completion, 1, 0), 1);
	assert_true(completion.events == 4);
	assert_int_equal(vma_extra_xtreme_poll(&fake->file, &completion, 1, 0), 0);
	vma_xtreme_source_end(source);
	vma_xtreme_source_put(source);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_fake_socketxtreme_file, teardown_fake_socketxtreme_file)
static const struct CMUnitTest tests[] = {
        CASE(test_without_the_mode_the_functions_are_missing),
        CASE(test_wrong_arguments_are_errors_and_take_nothing),
};

VMA_TEST_MAIN(tests)
