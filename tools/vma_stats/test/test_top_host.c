/* The processes of --top: files that come and go, that are cut short or somebody's nonsense, and budgets. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <vma/test.h>

#include "../top_host.h"

#define LONG_NS 10000000000ULL

static char dir[64], path[128];
static struct vma_stats *stats;
static struct options options;
static struct top_host host;

static int setup_stats_in_temp_dir(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/vma_top_test.XXXXXX");
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, getpid());
	options = (struct options){.directory = dir, .interval = 1};
	return vma_stats_create(dir, &stats);
}

static int teardown_destroy_stats_and_dir(void **state)
{
	(void)state;
	top_host_fini(&host);
	vma_stats_destroy(stats);
	stats = NULL;
	return rmdir(dir);
}

static struct vma_stats_socket *alloc_stats_block_of_socket(uint64_t fd)
{
	struct vma_stats_socket *socket = vma_stats_block_alloc(stats, VMA_STATS_TYPE_SOCKET, "fd");

	vma_stats_set(&socket->fd, fd);
	return socket;
}

static void top_read_all_processes(void)
{
	assert_int_equal(top_host_read(&host, &options, LONG_NS), 0);
}

/* A file that looks alive: somebody holds its lock. */
static int make_locked_garbage_file(const char *name)
{
	char other[160];
	int fd;

	snprintf(other, sizeof(other), "%s/%s", dir, name);
	fd = open(other, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, other, sizeof(other)), sizeof(other));
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	return fd;
}

static void remove_locked_garbage_file(const char *name, int fd)
{
	char other[160];

	snprintf(other, sizeof(other), "%s/%s", dir, name);
	assert_int_equal(unlink(other), 0);
	close(fd);
}

static void test_sockets_of_a_process_are_read_again_and_again(void **state)
{
	struct vma_stats_socket *socket;

	(void)state;
	top_read_all_processes();
	assert_int_equal(host.count, 1);
	assert_int_equal(host.processes[0].pid, getpid());
	assert_int_equal(host.processes[0].sockets.count, 0);
	socket = alloc_stats_block_of_socket(3);
	top_read_all_processes();
	vma_stats_add(&socket->rx_packets, 1000);
	top_read_all_processes();
	assert_int_equal(host.processes[0].sockets.count, 1);
	assert_int_equal(host.processes[0].sockets.rows[0].fd, 3);
	assert_true(host.processes[0].sockets.rows[0].rates[TOP_RX_PACKETS] > 0);
	top_read_all_processes();
	assert_true(host.processes[0].sockets.rows[0].rates[TOP_RX_PACKETS] == 0);
	vma_stats_block_free(stats, socket);
	top_read_all_processes();
	assert_int_equal(host.processes[0].sockets.count, 0);
}

static void test_process_that_has_ended_is_there_no_more(void **state)
{
	(void)state;
	vma_stats_block_free(stats, alloc_stats_block_of_socket(3));
	top_read_all_processes();
	assert_int_equal(host.count, 1);
	vma_stats_destroy(stats);
	stats = NULL;
	top_read_all_processes();
	assert_int_equal(host.count, 0);
	assert_int_equal(host.unreadable, 0);
	assert_int_equal(vma_stats_create(dir, &stats), 0); /* as after an exec */
	top_read_all_processes();
	assert_int_equal(host.count, 1);
}

static void test_process_with_a_new_file_begins_anew(void **state)
{
	struct vma_stats_socket *socket = alloc_stats_block_of_socket(3);

	(void)state;
	top_read_all_processes();
	top_read_all_processes();
	assert_int_equal(host.processes[0].sockets.rows[0].samples, 1);
	vma_stats_block_free(stats, socket);
	vma_stats_destroy(stats);
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	socket = alloc_stats_block_of_socket(3);
	vma_stats_add(&socket->rx_packets, 1000000);
	top_read_all_processes();
	assert_int_equal(host.processes[0].sockets.rows[0].samples, 0);
	assert_true(host.processes[0].sockets.rows[0].rates[TOP_RX_PACKETS] == 0);
	vma_stats_block_free(stats, socket);
}

static void test_file_that_is_cut_short_is_not_readable_until_it_is_whole(void **state)
{
	char whole[4096];
	const int fd = open(path, O_RDWR | O_CLOEXEC);
	ssize_t bytes;

	(void)state;
	assert_true(fd >= 0);
	top_read_all_processes();
	assert_int_equal(host.unreadable, 0);
	bytes = read(fd, whole, sizeof(whole));
	assert_true(bytes > 8);
	assert_int_equal(ftruncate(fd, 5), 0);
	top_read_all_processes();
	assert_int_equal(host.unreadable, 1);
	assert_null(host.processes[0].view);
	assert_int_equal(pwrite(fd, whole, (size_t)bytes, 0), bytes);
	top_read_all_processes();
	assert_int_equal(host.unreadable, 0);
	assert_non_null(host.processes[0].view);
	close(fd);
}

static void test_nonsense_is_counted_and_harmless(void **state)
{
	const int first = make_locked_garbage_file("vmastat.1"), last = make_locked_garbage_file("vmastat.4194300");

	(void)state;
	top_read_all_processes();
	assert_int_equal(host.count, 3);
	assert_int_equal(host.unreadable, 2);
	assert_non_null(host.processes[1].view);
	remove_locked_garbage_file("vmastat.1", first);
	remove_locked_garbage_file("vmastat.4194300", last);
	top_read_all_processes();
	assert_int_equal(host.count, 1);
	assert_int_equal(host.unreadable, 0);
}

static void test_processes_without_time_come_first_in_the_next_reading(void **state)
{
	struct vma_stats_socket *socket = alloc_stats_block_of_socket(3);
	const int first = make_locked_garbage_file("vmastat.1"), last = make_locked_garbage_file("vmastat.4194300");

	(void)state;
	for (unsigned reading = 0; reading < 3; reading++) {
		assert_int_equal(top_host_read(&host, &options, 0), 0); /* time for one */
		assert_int_equal(host.count, 3);
		assert_int_equal(host.put_off, 2);
		assert_int_equal(host.unreadable, reading != 1);
		assert_int_equal(host.processes[1].sockets.count, reading >= 1);
	}
	remove_locked_garbage_file("vmastat.1", first);
	remove_locked_garbage_file("vmastat.4194300", last);
	top_read_all_processes();
	assert_int_equal(host.put_off, 0);
	vma_stats_block_free(stats, socket);
}

#define STATS_FIXTURE_CASE(case)                                                                                       \
	cmocka_unit_test_setup_teardown(case, setup_stats_in_temp_dir, teardown_destroy_stats_and_dir)

static const struct CMUnitTest tests[] = {
        STATS_FIXTURE_CASE(test_sockets_of_a_process_are_read_again_and_again),
        STATS_FIXTURE_CASE(test_process_that_has_ended_is_there_no_more),
        STATS_FIXTURE_CASE(test_process_with_a_new_file_begins_anew),
        STATS_FIXTURE_CASE(test_file_that_is_cut_short_is_not_readable_until_it_is_whole),
        STATS_FIXTURE_CASE(test_nonsense_is_counted_and_harmless),
        STATS_FIXTURE_CASE(test_processes_without_time_come_first_in_the_next_reading),
};

VMA_TEST_MAIN(tests)
