/* What a vfork child passes on is handed over by the parent's internal thread, in the time of the call; and if that
 * cannot be reached, the child goes on. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/test.h>

#include "fake_file.h"
#include "small_engine.h"

static _Atomic unsigned handed_over;
static _Atomic pid_t by;

static void fake_hand_over_record_pid(struct vma_file *file)
{
	(void)file;
	atomic_store(&by, getpid());
	atomic_fetch_add(&handed_over, 1);
}

static struct vma_file_ops ops;

/* Its child does as a program's would that is about to exec. */
static int hand_over_by_a_child(struct vma_file *file, bool closes_all)
{
	int status = -1;
	pid_t child = vfork();

	if (child == 0) {
		if (closes_all)
			syscall(SYS_close_range, 3, ~0U, 0);
		vma_engine_hand_over_from_vfork_child(file);
		_exit(0);
	}
	waitpid(child, &status, 0);
	return status;
}

static struct fake_file *create_fake_file_with_fd(int *fd)
{
	struct fake_file *fake = fake_file_create();

	fake->file.ops = &ops;
	*fd = open("/dev/null", O_RDONLY);
	assert_int_equal(vma_fd_install(*fd, &fake->file), 0);
	return fake;
}

static void vfork_handoff_remove_and_close_fd(int fd)
{
	vma_fd_remove(fd);
	close(fd);
	fake_poll_until_retired_are_freed();
}

static void skip_if_tsan_makes_vfork_a_fork(void)
{
#ifdef VMA_TSAN
	vma_test_skip("ThreadSanitizer makes a fork of vfork");
#endif
}

static void test_the_parent_s_thread_hands_over_while_the_child_waits(void **state)
{
	struct fake_file *fake;
	int fd, other_fd;

	(void)state;
	skip_if_tsan_makes_vfork_a_fork();
	fake = create_fake_file_with_fd(&fd);
	create_fake_file_with_fd(&other_fd); /* nobody asks for it */
	for (unsigned i = 1; i <= 100; i++) {
		assert_int_equal(hand_over_by_a_child(&fake->file, false), 0);
		assert_int_equal(atomic_load(&handed_over), i);
		assert_int_equal(atomic_load(&by), getpid());
		assert_false(atomic_load(&fake->file.handoff));
	}
	vfork_handoff_remove_and_close_fd(other_fd);
	vfork_handoff_remove_and_close_fd(fd);
}

static void test_a_child_that_has_closed_the_way_there_does_not_wait(void **state)
{
	const unsigned before = atomic_load(&handed_over);
	struct fake_file *fake;
	uint64_t begin_ns;
	int fd;

	(void)state;
	skip_if_tsan_makes_vfork_a_fork();
	fake = create_fake_file_with_fd(&fd);
	begin_ns = vma_now_ns();
	assert_int_equal(hand_over_by_a_child(&fake->file, true), 0);
	assert_true(vma_now_ns() - begin_ns < 2000000000ULL);
	assert_int_equal(atomic_load(&handed_over), before);
	assert_false(atomic_load(&fake->file.handoff));
	/* And who asks after it is heard. */
	assert_int_equal(hand_over_by_a_child(&fake->file, false), 0);
	assert_int_equal(atomic_load(&handed_over), before + 1);
	vfork_handoff_remove_and_close_fd(fd);
}

static void test_a_file_that_is_closed_meanwhile_is_not_waited_for(void **state)
{
	uint64_t begin_ns = vma_now_ns();
	int fd;
	struct fake_file *fake = create_fake_file_with_fd(&fd);

	(void)state;
	vma_file_get(&fake->file);
	vfork_handoff_remove_and_close_fd(fd);
	assert_int_equal(hand_over_by_a_child(&fake->file, false), 0);
	assert_true(vma_now_ns() - begin_ns < 2000000000ULL);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
}

static int setup_engine_for_vfork_handoff(void **state)
{
	(void)state;
	ops = fake_ops;
	ops.hand_over = fake_hand_over_record_pid;
	return start_engine_with_few_buffers("1024", "128") != NULL ? 0 : -1;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_the_parent_s_thread_hands_over_while_the_child_waits),
	        cmocka_unit_test(test_a_child_that_has_closed_the_way_there_does_not_wait),
	        cmocka_unit_test(test_a_file_that_is_closed_meanwhile_is_not_waited_for),
	};

	return cmocka_run_group_tests_name("vfork_handoff", tests, setup_engine_for_vfork_handoff, NULL);
}
