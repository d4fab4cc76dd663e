/* The debug build catches misuse of buffers, names it in the log, and ends the program. */
#include "fixture.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef VMA_DEBUG

/* Runs `misuse` in a child; true if it died by abort() and its log has `text`. */
static bool child_aborts_with_log_text(void (*misuse)(void), const char *text)
{
	static char log[8192];
	size_t used = 0;
	int out[2], status;
	ssize_t n;
	pid_t child;

	assert_int_equal(pipe(out), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		dup2(out[1], STDERR_FILENO);
		close(out[0]);
		close(out[1]);
		signal(SIGABRT, SIG_DFL); /* cmocka's own handler would go on */
		misuse();
		_exit(0);
	}
	close(out[1]);
	while (used < sizeof(log) - 1 && (n = read(out[0], log + used, sizeof(log) - 1 - used)) > 0)
		used += (size_t)n;
	log[used] = '\0';
	close(out[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(log, text) != NULL)
		return true;
	print_message("status %#x, log: %s\n", (unsigned)status, log);
	return false;
}

static struct fixture f;

static struct vma_buf *open_pool_and_take_one_buffer(void)
{
	struct vma_buf *buf = NULL;

	open_fixed_pool(&f, 64, 1);
	vma_bufpool_get(f.pool, &buf, 1);
	return buf;
}

static void put_buffer_twice(void)
{
	struct vma_buf *buf = open_pool_and_take_one_buffer();

	vma_buf_put(f.arena, buf);
	vma_buf_put(f.arena, buf);
}

static void put_twice_in_a_burst(void)
{
	struct vma_buf *bufs[2];

	bufs[0] = bufs[1] = open_pool_and_take_one_buffer();
	vma_buf_put_burst(f.arena, bufs, 2);
}

static void put_outside_the_arena(void)
{
	static struct vma_buf own;

	open_pool_and_take_one_buffer();
	vma_buf_put(f.arena, &own);
}

static void put_inside_a_descriptor(void)
{
	struct vma_buf *buf = open_pool_and_take_one_buffer();

	vma_buf_put(f.arena, (struct vma_buf *)((uintptr_t)buf + 8));
}

static void put_of_an_unmapped_range(void)
{
	open_pool_and_take_one_buffer();
	vma_buf_put(f.arena, vma_buf_at(f.arena, f.arena->capacity - 1));
}

static void put_to_the_wrong_pool(void)
{
	struct vma_buf *buf = open_pool_and_take_one_buffer();

	buf->pool = vma_bufpool_id(pool_fixture_create_pool(f.arena, "wrong", 0, 1));
	vma_buf_put(f.arena, buf);
}

static void put_of_a_lent_buffer(void)
{
	struct vma_buf *buf = open_pool_and_take_one_buffer();

	vma_bufpool_uncount_bufs_given_to_nic(f.pool, &buf, 1);
	vma_buf_put(f.arena, buf);
}

static void to_nic_of_a_shared_buffer(void)
{
	struct vma_buf *buf = open_pool_and_take_one_buffer();

	vma_buf_ref(buf);
	vma_bufpool_uncount_bufs_given_to_nic(f.pool, &buf, 1);
}

static void from_nic_of_a_held_buffer(void)
{
	struct vma_buf *buf = open_pool_and_take_one_buffer();

	vma_bufpool_init_bufs_taken_from_nic(f.pool, &buf, 1);
}

static void reference_to_a_free_buffer(void)
{
	struct vma_buf *buf = open_pool_and_take_one_buffer();

	vma_buf_put(f.arena, buf);
	vma_buf_ref(buf);
}

static void unmap_of_a_held_buffer(void)
{
	open_pool_and_take_one_buffer();
	vma_bufarena_unmap(f.arena, f.first, 64);
}

static void write_after_put(void)
{
	struct vma_buf *buf = open_pool_and_take_one_buffer();
	char *frame = vma_buf_frame(f.arena, buf);

	vma_buf_put(f.arena, buf);
	frame[1234] = 1;
	vma_bufpool_get(f.pool, &buf, 1);
}

static void test_misuse_is_named_and_ends_the_program(void **state)
{
	static const struct {
		void (*misuse)(void);
		const char *text;
	} cases[] = {
	        {put_buffer_twice, "double free"},
	        {put_twice_in_a_burst, "double free"},
	        {put_outside_the_arena, "not in the arena"},
	        {put_inside_a_descriptor, "inside buffer"},
	        {put_of_an_unmapped_range, "in no mapped range"},
	        {put_to_the_wrong_pool, "to the wrong pool"},
	        {put_of_a_lent_buffer, "with the NIC"},
	        {to_nic_of_a_shared_buffer, "has other holders"},
	        {from_nic_of_a_held_buffer, "from_nic of buffer"},
	        {reference_to_a_free_buffer, "nobody holds"},
	        {unmap_of_a_held_buffer, "while its memory is unmapped"},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (!child_aborts_with_log_text(cases[i].misuse, cases[i].text))
			fail_msg("case %u should have said \"%s\"", i, cases[i].text);
}

static void test_a_write_after_the_put_is_found(void **state)
{
	(void)state;
#ifdef __SANITIZE_ADDRESS__
	/* poisoned memory: AddressSanitizer ends the program itself, at the write */
	fflush(NULL);
	pid_t child = fork();
	int status;
	if (child == 0) {
		if (freopen("/dev/null", "w", stderr) == NULL)
			_exit(2);
		write_after_put();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 2);
#else
	assert_true(child_aborts_with_log_text(write_after_put, "was written at offset 1234 after it was freed"));
#endif
}

static void retire_with_a_held_buffer(void)
{
	open_pool_and_take_one_buffer();
	fixture_retire_pool(&f);
	abort();
}

static void destroy_with_a_held_buffer(void)
{
	open_pool_and_take_one_buffer();
	vma_bufarena_destroy(f.arena);
	abort();
}

static void test_what_is_still_held_at_the_end_is_named(void **state)
{
	(void)state;
	assert_true(child_aborts_with_log_text(retire_with_a_held_buffer, "bufpool fixed: buffer "));
	assert_true(child_aborts_with_log_text(destroy_with_a_held_buffer, "is still held"));
}

static void test_correct_use_is_let_pass(void **state)
{
	struct vma_buf *bufs[64];

	(void)state;
	open_fixed_pool(&f, 64, 1);
	for (int round = 0; round < 3; round++) {
		assert_int_equal(vma_bufpool_get(f.pool, bufs, 64), 64);
		for (int i = 0; i < 64; i++)
			memset(vma_buf_frame(f.arena, bufs[i]), i, 2048);
		vma_bufpool_uncount_bufs_given_to_nic(f.pool, bufs, 32);
		for (int i = 0; i < 32; i++)
			memset(vma_buf_frame(f.arena, bufs[i]), i, 2048); /* the NIC may write */
		vma_bufpool_init_bufs_taken_from_nic(f.pool, bufs, 32);
		vma_buf_put_burst(f.arena, bufs, 64);
	}
	close_fixture(&f);
}
#else
static void test_debug_checks_need_a_debug_build(void **state)
{
	(void)state;
	vma_test_skip("this build has no buffer checks: make test-bufpool VARIANT=debug");
}
#endif

static const struct CMUnitTest tests[] = {
#ifdef VMA_DEBUG
        cmocka_unit_test(test_misuse_is_named_and_ends_the_program),
        cmocka_unit_test(test_a_write_after_the_put_is_found),
        cmocka_unit_test(test_what_is_still_held_at_the_end_is_named),
        cmocka_unit_test(test_correct_use_is_let_pass),
#else
        cmocka_unit_test(test_debug_checks_need_a_debug_build),
#endif
};

VMA_TEST_MAIN(tests)
