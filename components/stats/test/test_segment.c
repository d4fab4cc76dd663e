/* The writer's side: the file's life, and blocks taken and put back. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/stats_read.h>
#include <vma/test.h>

static char dir[64], path[128];

static int setup_empty_stats_dir(void **state)
{
	(void)state;
	vma_log_set_level(VMA_LOG_ERROR); /* the warnings are wanted, but not on the screen */
	snprintf(dir, sizeof(dir), "/tmp/vma_stats_test.XXXXXX");
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, getpid());
	return 0;
}

static int teardown_empty_stats_dir(void **state)
{
	(void)state;
	return rmdir(dir); /* fails if a test left a file behind */
}

static bool stats_file_exists(const char *name)
{
	struct stat st;

	return lstat(name, &st) == 0;
}

static void segment_write_file(const char *name, const char *text)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void test_file_is_the_users_own_and_goes_with_the_segment(void **state)
{
	struct vma_stats *stats;
	struct stat st;

	(void)state;
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(st.st_mode & 0777, 0600);
	vma_stats_destroy(stats);
	assert_false(stats_file_exists(path));
}

static void test_no_directory_means_no_file(void **state)
{
	struct vma_stats *stats;
	struct vma_stats_cq *cq;

	(void)state;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(vma_stats_create(i == 0 ? "" : NULL, &stats), 0);
		cq = vma_stats_block_alloc(stats, VMA_STATS_TYPE_CQ, "x");
		vma_stats_add(&cq->polls, 5);
		assert_int_equal(vma_stats_read_counter(&cq->polls), 5);
		vma_stats_block_free(stats, cq);
		vma_stats_destroy(stats);
	}
	assert_false(stats_file_exists(path));
}

static void test_directory_that_does_not_exist_only_costs_the_file(void **state)
{
	struct vma_stats *stats;
	struct vma_stats_cq *cq;

	(void)state;
	assert_int_equal(vma_stats_create("/nonexistent/dir", &stats), 0);
	cq = vma_stats_block_alloc(stats, VMA_STATS_TYPE_CQ, "x");
	vma_stats_add(&cq->polls, 1);
	vma_stats_block_free(stats, cq);
	vma_stats_destroy(stats);
}

static void test_leftover_of_a_dead_process_is_replaced(void **state)
{
	struct vma_stats *stats;
	struct stat st;

	(void)state;
	segment_write_file(path, "from a process that had this pid once");
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_true(st.st_size < 4096); /* the new one */
	vma_stats_destroy(stats);
	assert_false(stats_file_exists(path));
}

static void test_leftover_of_a_killed_process_is_replaced_by_its_namesake(void **state)
{
	struct vma_stats *stats;
	char left[128];
	int status;
	pid_t child = fork();

	(void)state;
	if (child == 0) {
		_exit(vma_stats_create(dir, &stats) == 0 ? 7 : 1); /* no destroy */
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 7);
	snprintf(left, sizeof(left), "%s/vmastat.%d", dir, child);
	assert_true(stats_file_exists(left));
	assert_int_equal(rename(left, path), 0); /* as if we had got its pid */
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	vma_stats_destroy(stats);
	assert_false(stats_file_exists(path));
}

static void test_live_file_is_left_alone(void **state)
{
	struct vma_stats *first, *second;
	struct stat before, after;

	(void)state;
	assert_int_equal(vma_stats_create(dir, &first), 0);
	assert_int_equal(stat(path, &before), 0);
	assert_int_equal(vma_stats_create(dir, &second), 0); /* works, without file */
	vma_stats_destroy(second);
	assert_int_equal(stat(path, &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	vma_stats_destroy(first);
	assert_false(stats_file_exists(path));
}

static void test_link_in_the_way_is_neither_followed_nor_removed(void **state)
{
	char target[128];
	struct vma_stats *stats;
	struct stat st;

	(void)state;
	snprintf(target, sizeof(target), "%s/precious", dir);
	segment_write_file(target, "precious");
	assert_int_equal(symlink(target, path), 0);
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	vma_stats_destroy(stats);
	assert_int_equal(stat(target, &st), 0);
	assert_int_equal(st.st_size, 8);
	assert_true(stats_file_exists(path));
	unlink(path);
	unlink(target);
}

static void test_fifo_in_the_way_does_not_hang_the_start(void **state)
{
	struct vma_stats *stats;

	(void)state;
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	vma_stats_destroy(stats);
	assert_true(stats_file_exists(path));
	unlink(path);
}

static void test_sweep_takes_what_killed_processes_left_and_nothing_else(void **state)
{
	static const char *const kept[] = {"vmastat.", "vmastat.12x", "vmastat.1.old", "xvmastat.12", "vmastat"};
	char name[sizeof(kept) / sizeof(kept[0])][128], dead[128], link[128];
	struct vma_stats *stats;
	long at = 0;
	pid_t child;

	(void)state;
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	child = fork();
	if (child == 0) {
		struct vma_stats *own;

		vma_stats_detach_from_parent_after_fork(stats);
		_exit(vma_stats_create(dir, &own)); /* as if killed: nothing is destroyed */
	}
	assert_int_equal(waitpid(child, NULL, 0), child);
	snprintf(dead, sizeof(dead), "%s/vmastat.%d", dir, (int)child);
	assert_true(stats_file_exists(dead));
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		snprintf(name[i], sizeof(name[i]), "%s/%s", dir, kept[i]);
		segment_write_file(name[i], "not ours");
	}
	snprintf(link, sizeof(link), "%s/vmastat.1", dir);
	assert_int_equal(symlink(name[0], link), 0);

	assert_int_equal(vma_stats_remove_leftover_files(dir, &at), 1);
	assert_int_equal(at, 0);
	assert_false(stats_file_exists(dead));
	assert_true(stats_file_exists(path)); /* of a living process */
	assert_true(stats_file_exists(link));
	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		assert_true(stats_file_exists(name[i]));
		unlink(name[i]);
	}
	unlink(link);
	vma_stats_destroy(stats);
	assert_int_equal(vma_stats_remove_leftover_files(dir, &at), 0);
	assert_int_equal(vma_stats_remove_leftover_files("", &at), 0);
	assert_int_equal(vma_stats_remove_leftover_files(NULL, &at), 0);
	assert_int_equal(vma_stats_remove_leftover_files("/nowhere", &at), -ENOENT);
}

/* Each call ends soon, and what lies between many other names is found in the end. */
static void test_sweep_of_many_names_goes_on_where_it_stopped(void **state)
{
	enum { NAMES = 5000 };
	char name[128];
	int calls = 0, removed = 0;
	long at = 0;

	(void)state;
	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "%s/%s%d", dir, i % 1000 == 999 ? "vmastat." : "other.", i);
		segment_write_file(name, "");
	}
	do {
		const int rc = vma_stats_remove_leftover_files(dir, &at);

		assert_true(rc >= 0);
		removed += rc;
		calls++;
	} while (at != 0 && calls < 10);
	assert_int_equal(calls, 2);
	assert_int_equal(removed, 5);
	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "%s/other.%d", dir, i);
		unlink(name);
	}
}

/* SIGXFSZ would end it. */
static void test_process_that_may_write_no_file_has_its_blocks_in_memory(void **state)
{
	struct vma_stats *stats;
	int status;
	pid_t child;

	(void)state;
	child = fork();
	if (child == 0) {
		const struct rlimit none = {0, 0};
		int fds[VMA_STATS_FDS];

		signal(SIGXFSZ, SIG_DFL);
		setrlimit(RLIMIT_FSIZE, &none);
		_exit(vma_stats_create(dir, &stats) != 0 || vma_stats_fds(stats, fds) != 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_false(stats_file_exists(path));
}

static void test_forked_child_does_not_remove_its_parents_file(void **state)
{
	struct vma_stats *stats;
	int status;
	pid_t child;

	(void)state;
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	child = fork();
	if (child == 0) {
		vma_stats_destroy(stats);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_true(stats_file_exists(path));
	vma_stats_destroy(stats);
	assert_false(stats_file_exists(path));
}

/* A process forks and becomes another program: its pid stays, and so does the child. */
static void test_forked_child_does_not_hold_its_parents_file(void **state)
{
	struct vma_stats *before, *after;
	int pipes[2], let_go[2], fds[VMA_STATS_FDS], status;
	pid_t child;
	char byte;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(pipe(let_go), 0);
	assert_int_equal(vma_stats_create(dir, &before), 0);
	child = fork();
	if (child == 0) {
		vma_stats_detach_from_parent_after_fork(before);
		close(pipes[1]);
		close(let_go[1]);
		_exit((int)read(pipes[0], &byte, 1));
	}
	close(let_go[1]);
	assert_int_equal(read(let_go[0], &byte, 1), 0); /* until then the child has the lock, too */
	close(let_go[0]);
	vma_stats_detach_from_parent_after_fork(before); /* as exec: nothing of it is left, and the file stays */
	assert_int_equal(vma_stats_create(dir, &after), 0);
	assert_int_equal(vma_stats_fds(after, fds), VMA_STATS_FDS);
	close(pipes[1]);
	close(pipes[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_true(stats_file_exists(path));
	vma_stats_destroy(after);
	vma_stats_destroy(before);
	assert_false(stats_file_exists(path));
}

static void test_file_is_found_again_after_chdir(void **state)
{
	struct vma_stats *stats;
	char here[PATH_MAX];

	(void)state;
	assert_non_null(getcwd(here, sizeof(here)));
	assert_int_equal(chdir(dir), 0);
	assert_int_equal(vma_stats_create(".", &stats), 0);
	assert_true(stats_file_exists(path));
	assert_int_equal(chdir("/"), 0);
	vma_stats_destroy(stats);
	assert_false(stats_file_exists(path));
	assert_int_equal(chdir(here), 0);
}

static void test_file_of_somebody_else_under_our_name_is_not_removed(void **state)
{
	struct vma_stats *stats;

	(void)state;
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	unlink(path);
	segment_write_file(path, "not ours");
	vma_stats_destroy(stats);
	assert_true(stats_file_exists(path));
	unlink(path);
}

static void test_block_is_zeroed_aligned_and_apart_from_its_neighbour(void **state)
{
	struct vma_stats *stats;
	struct vma_stats_nic *first, *second;

	(void)state;
	assert_int_equal(vma_stats_create("", &stats), 0);
	first = vma_stats_block_alloc(stats, VMA_STATS_TYPE_NIC, "a");
	second = vma_stats_block_alloc(stats, VMA_STATS_TYPE_NIC, "b");
	assert_int_equal((uintptr_t)first % VMA_STATS_ALIGN, 0);
	assert_int_equal((uintptr_t)second % VMA_STATS_ALIGN, 0);
	assert_true(labs((char *)second - (char *)first) >= (long)sizeof(*first));
	vma_stats_add(&first->rebinds, 9);
	vma_stats_block_free(stats, first);
	first = vma_stats_block_alloc(stats, VMA_STATS_TYPE_NIC, "c");
	assert_int_equal(vma_stats_read_counter(&first->rebinds), 0);
	vma_stats_block_free(stats, first);
	vma_stats_block_free(stats, second);
	vma_stats_destroy(stats);
}

static void test_full_segment_gives_private_blocks_that_count(void **state)
{
	enum { MANY = 2000 };
	static struct vma_stats_bufpool *blocks[MANY];
	struct vma_stats *stats;

	(void)state;
	assert_int_equal(vma_stats_create("", &stats), 0);
	for (int i = 0; i < MANY; i++) {
		blocks[i] = vma_stats_block_alloc(stats, VMA_STATS_TYPE_BUFPOOL, "many");
		vma_stats_add(&blocks[i]->grown, (uint64_t)i);
	}
	for (int i = 0; i < MANY; i++)
		assert_int_equal(vma_stats_read_counter(&blocks[i]->grown), i);
	for (int i = 0; i < MANY; i++)
		vma_stats_block_free(stats, blocks[i]);
	vma_stats_destroy(stats);
}

static void test_without_a_segment_counting_works(void **state)
{
	struct vma_stats_ring *ring = vma_stats_block_alloc(NULL, VMA_STATS_TYPE_RING, NULL);

	(void)state;
	assert_non_null(ring);
	assert_int_equal((uintptr_t)ring % VMA_STATS_ALIGN, 0);
	assert_int_equal(vma_stats_read_counter(&ring->tx.tx_full), 0);
	vma_stats_add(&ring->tx.tx_full, 2);
	vma_stats_set(&ring->rx.rx_bytes, UINT64_MAX);
	assert_int_equal(vma_stats_read_counter(&ring->tx.tx_full), 2);
	assert_true(vma_stats_read_counter(&ring->rx.rx_bytes) == UINT64_MAX);
	vma_stats_block_free(NULL, ring);
	vma_stats_block_free(NULL, NULL);
	vma_stats_destroy(NULL);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_is_the_users_own_and_goes_with_the_segment),
        cmocka_unit_test(test_no_directory_means_no_file),
        cmocka_unit_test(test_directory_that_does_not_exist_only_costs_the_file),
        cmocka_unit_test(test_leftover_of_a_dead_process_is_replaced),
        cmocka_unit_test(test_leftover_of_a_killed_process_is_replaced_by_its_namesake),
        cmocka_unit_test(test_live_file_is_left_alone),
        cmocka_unit_test(test_link_in_the_way_is_neither_followed_nor_removed),
        cmocka_unit_test(test_fifo_in_the_way_does_not_hang_the_start),
        cmocka_unit_test(test_sweep_takes_what_killed_processes_left_and_nothing_else),
        cmocka_unit_test(test_sweep_of_many_names_goes_on_where_it_stopped),
        cmocka_unit_test(test_process_that_may_write_no_file_has_its_blocks_in_memory),
        cmocka_unit_test(test_forked_child_does_not_remove_its_parents_file),
        cmocka_unit_test(test_forked_child_does_not_hold_its_parents_file),
        cmocka_unit_test(test_file_is_found_again_after_chdir),
        cmocka_unit_test(test_file_of_somebody_else_under_our_name_is_not_removed),
        cmocka_unit_test(test_block_is_zeroed_aligned_and_apart_from_its_neighbour),
        cmocka_unit_test(test_full_segment_gives_private_blocks_that_count),
        cmocka_unit_test(test_without_a_segment_counting_works),
};

VMA_TEST_MAIN_WITH(tests, setup_empty_stats_dir, teardown_empty_stats_dir)
