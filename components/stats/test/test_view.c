/* The reader's side: what it sees of an honest file, and that a dishonest one is harmless. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/test.h>

#include "../stats_priv.h"

static char dir[64], path[128];
static struct vma_stats *stats;

static int view_make_stats(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/vma_stats_test.XXXXXX");
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, getpid());
	return vma_stats_create(dir, &stats);
}

static int view_remove_stats(void **state)
{
	(void)state;
	vma_stats_destroy(stats);
	stats = NULL;
	return rmdir(dir);
}

static void test_blocks_are_seen_with_type_name_and_values(void **state)
{
	struct vma_stats_ring *ring = vma_stats_block_alloc(stats, VMA_STATS_TYPE_RING, "ring 0");
	struct vma_stats_nic *nic = vma_stats_block_alloc(stats, VMA_STATS_TYPE_NIC, "eth0");
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block, *first;
	size_t cursor = 0;

	(void)state;
	vma_stats_add(&ring->rx.rx_packets, 11);
	vma_stats_add(&ring->tx.tx_drop_queue, 12);
	vma_stats_add(&nic->flows, 13);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(vma_stats_view_pid(view), getpid());
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(type, VMA_STATS_TYPE_RING);
	assert_string_equal(name, "ring 0");
	assert_int_equal(vma_stats_read_counter(&((const struct vma_stats_ring *)block)->rx.rx_packets), 11);
	assert_int_equal(vma_stats_read_counter(&((const struct vma_stats_ring *)block)->tx.tx_drop_queue), 12);
	first = block;
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(type, VMA_STATS_TYPE_NIC);
	assert_string_equal(name, "eth0");
	assert_int_equal(vma_stats_read_counter(&((const struct vma_stats_nic *)block)->flows), 13);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(vma_stats_read_counter(&((const struct vma_stats_ring *)first)->rx.rx_packets), 11);

	vma_stats_add(&ring->rx.rx_packets, 1); /* and again, later */
	vma_stats_block_free(stats, nic);
	cursor = 0;
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(vma_stats_read_counter(&((const struct vma_stats_ring *)block)->rx.rx_packets), 12);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	vma_stats_view_close(view);
	vma_stats_block_free(stats, ring);
}

static void test_long_name_is_cut(void **state)
{
	void *cq = vma_stats_block_alloc(stats, VMA_STATS_TYPE_CQ, "a name of more than thirty-one bytes, surely");
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = 0;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_string_equal(name, "a name of more than thirty-one ");
	vma_stats_view_close(view);
	vma_stats_block_free(stats, cq);
}

static void test_view_of_a_file_that_was_made_anew_is_not_current(void **state)
{
	struct vma_stats_view *view;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_true(vma_stats_view_is_current(view, path));
	vma_stats_destroy(stats);
	assert_false(vma_stats_view_is_current(view, path));
	assert_int_equal(vma_stats_create(dir, &stats), 0);
	assert_false(vma_stats_view_is_current(view, path));
	vma_stats_view_close(view);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_true(vma_stats_view_is_current(view, path));
	assert_int_equal(truncate(path, 5), 0);
	assert_false(vma_stats_view_is_current(view, path));
	vma_stats_view_close(view);
}

static void test_cursor_beyond_the_end_finds_nothing(void **state)
{
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = SIZE_MAX;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	vma_stats_view_close(view);
}

static void test_what_is_not_a_segment_is_refused(void **state)
{
	struct vma_stats_view *view;
	char other[128], zeros[4096] = "";
	int fd;

	(void)state;
	snprintf(other, sizeof(other), "%s/other", dir);
	assert_int_equal(vma_stats_view_open(other, &view), -ENOENT);
	assert_int_equal(vma_stats_view_open(dir, &view), -EPROTO);
	assert_int_equal(mkfifo(other, 0600), 0);
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO); /* and does not wait for a writer */
	unlink(other);
	assert_int_equal(symlink(path, other), 0);
	assert_int_equal(vma_stats_view_open(other, &view), -ELOOP);
	unlink(other);
	fd = open(other, O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO);
	assert_int_equal(write(fd, zeros, sizeof(zeros)), sizeof(zeros));
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO);
	assert_int_equal(ftruncate(fd, sizeof(struct stats_segment)), 0);
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO);
	close(fd);
	unlink(other);
}

static void test_any_other_layout_is_refused(void **state)
{
	struct stats_header *header = &stats->segment->header;
	unsigned char *bytes = (unsigned char *)header;
	size_t checked = 0;
	struct vma_stats_view *view;

	(void)state;
	for (size_t i = 0; i < offsetof(struct stats_header, pid); i++) {
		bytes[i] ^= 0x10;
		assert_int_equal(vma_stats_view_open(path, &view), -EPROTO);
		bytes[i] ^= 0x10;
		checked++;
	}
	assert_true(checked > 40);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	vma_stats_view_close(view);
}

static void test_file_that_is_cut_short_is_refused(void **state)
{
	struct vma_stats_view *view;

	(void)state;
	assert_int_equal(truncate(path, sizeof(struct stats_locator) - 1), 0);
	assert_int_equal(vma_stats_view_open(path, &view), -EPROTO);
	assert_int_equal(truncate(path, 0), 0);
	assert_int_equal(vma_stats_view_open(path, &view), -EPROTO);
}

/* What a SIGBUS would come from: the memory becomes shorter under a writer, or under a reader. */
static void test_no_truncation_reaches_the_counters(void **state)
{
	struct vma_stats_cq *cq = vma_stats_block_alloc(stats, VMA_STATS_TYPE_CQ, "x");
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	char memory[64];
	size_t cursor = 0;
	int fd;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(truncate(path, 0), 0);
	snprintf(memory, sizeof(memory), "/proc/self/fd/%d", stats->memory.fd);
	assert_int_equal(truncate(memory, 4096), -1);
	assert_int_equal(errno, EPERM);
	fd = open(memory, O_RDWR | O_CLOEXEC);
	if (fd >= 0) { /* and nobody writes there, or gives its pages back */
		assert_int_equal(pwrite(fd, "x", 1, 0), -1);
		assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
		assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
		close(fd);
	}
	vma_stats_add(&cq->polls, 3);
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(vma_stats_read_counter(&((const struct vma_stats_cq *)block)->polls), 3);
	vma_stats_view_close(view);
	vma_stats_block_free(stats, cq);
}

/* The file as its process has written it, and put back when a test has changed it. */
static struct stats_locator load_locator(void)
{
	struct stats_locator locator;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_int_equal(pread(fd, &locator, sizeof(locator), 0), sizeof(locator));
	close(fd);
	return locator;
}

static int write_locator_and_try_open_view(const struct stats_locator *locator)
{
	struct vma_stats_view *view;
	int fd = open(path, O_WRONLY | O_CLOEXEC), rc;

	assert_int_equal(pwrite(fd, locator, sizeof(*locator), 0), sizeof(*locator));
	close(fd);
	rc = vma_stats_view_open(path, &view);
	if (rc == 0)
		vma_stats_view_close(view);
	return rc;
}

/* What is written there is not for other users. */
static void test_output_is_for_its_user_only(void **state)
{
	char name[256], link_name[256];
	struct stat st;
	int fd;

	(void)state;
	snprintf(name, sizeof(name), "%s/output", dir);
	snprintf(link_name, sizeof(link_name), "%s/link", dir);
	fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	assert_int_equal(write(fd, "old", 3), 3);
	close(fd);
	fd = vma_stats_open_output(name);
	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(st.st_size, 0);
	assert_int_equal(write(fd, "new", 3), 3);
	close(fd);
	assert_int_equal(link(name, link_name), 0);
	assert_int_equal(vma_stats_open_output(name), -EPERM);
	assert_int_equal(stat(name, &st), 0);
	assert_int_equal(st.st_size, 3); /* nothing is lost */
	unlink(link_name);
	assert_int_equal(symlink(name, link_name), 0);
	assert_int_equal(vma_stats_open_output(link_name), -ELOOP);
	unlink(link_name);
	unlink(name);
	fd = vma_stats_open_output(name);
	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	close(fd);
	unlink(name);
	fd = vma_stats_open_output("/dev/null");
	assert_true(fd >= 0);
	close(fd);
}

/* Else a user could have its own counters, and packets, taken for those of any process. */
static void test_file_under_another_number_is_refused(void **state)
{
	struct vma_stats_view *view;
	char other[256];

	(void)state;
	snprintf(other, sizeof(other), "%s/vmastat.1", dir);
	assert_int_equal(link(path, other), 0);
	assert_int_equal(vma_stats_view_open(other, &view), -EPROTO);
	unlink(other);
	snprintf(other, sizeof(other), "%s/renamed", dir);
	assert_int_equal(link(path, other), 0);
	assert_int_equal(vma_stats_view_open(other, &view), 0); /* it says nothing of a number */
	vma_stats_view_close(view);
	unlink(other);
}

static void test_file_that_names_something_else_is_refused(void **state)
{
	const struct stats_locator good = load_locator();
	struct stats_locator bad = good;
	struct stat st;
	int fd;

	(void)state;
	assert_int_equal(write_locator_and_try_open_view(&good), 0);
	bad.cookie++;
	assert_int_equal(write_locator_and_try_open_view(&bad),
	                 -ESRCH); /* of a process that has the pid, and counts, too */
	bad = good;
	bad.memory_ino++;
	assert_int_equal(write_locator_and_try_open_view(&bad), -ESRCH);
	bad = good;
	bad.memory_fd = 999999;
	assert_int_equal(write_locator_and_try_open_view(&bad), -ESRCH);
	bad = good;
	bad.pid = INT32_MAX; /* the file has another number in its name */
	assert_int_equal(write_locator_and_try_open_view(&bad), -EPROTO);
	bad.pid = -1;
	assert_int_equal(write_locator_and_try_open_view(&bad), -EPROTO);

	/* Memory that its owner can shorten would raise SIGBUS here. */
	fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, sizeof(struct stats_segment)), 0);
	assert_int_equal(fstat(fd, &st), 0);
	bad = good;
	bad.memory_fd = fd;
	bad.memory_ino = st.st_ino;
	assert_int_equal(write_locator_and_try_open_view(&bad), -EPROTO);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_int_equal(write_locator_and_try_open_view(&bad), -EPROTO); /* sealed, but empty */
	close(fd);

	/* Short memory, and a pipe in its place. */
	fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_int_equal(fstat(fd, &st), 0);
	bad.memory_fd = fd;
	bad.memory_ino = st.st_ino;
	assert_int_equal(write_locator_and_try_open_view(&bad), -EPROTO);
	close(fd);
	bad.memory_fd = good.request_fd;
	bad.memory_ino = good.request_ino;
	assert_int_equal(write_locator_and_try_open_view(&bad), -ESRCH);
}

static void test_requests_come_through_in_order(void **state)
{
	const struct vma_stats_request bad = {.type = VMA_STATS_REQUEST_COUNT};
	const struct vma_stats_request sent[] = {
	        {VMA_STATS_REQUEST_ZERO, 0, 0}, {VMA_STATS_REQUEST_DUMP, 7, 3}, {VMA_STATS_REQUEST_LOG_LEVEL, 0, 5}};
	struct vma_stats_request got;
	struct vma_stats_view *view;

	(void)state;
	assert_false(vma_stats_next_request(stats, &got));
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(vma_stats_view_request(view, &bad), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(vma_stats_view_request(view, &sent[i]), 0);
	vma_stats_view_close(view);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(vma_stats_next_request(stats, &got));
		assert_memory_equal(&got, &sent[i], sizeof(got));
	}
	assert_false(vma_stats_next_request(stats, &got));
}

/* A pipe that is full of what is no request. */
static void test_requests_after_nonsense_come_through(void **state)
{
	const struct vma_stats_request zero = {.type = VMA_STATS_REQUEST_ZERO};
	struct vma_stats_request got;
	struct vma_stats_view *view;
	char name[64], nonsense[sizeof(struct stats_message)];
	int fd;

	(void)state;
	memset(nonsense, 'x', sizeof(nonsense));
	snprintf(name, sizeof(name), "/proc/self/fd/%d", stats->requests.fd);
	fd = open(name, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	for (int i = 0; i < 100; i++)
		assert_int_equal(write(fd, nonsense, sizeof(nonsense)), sizeof(nonsense));
	close(fd);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(vma_stats_view_request(view, &zero), 0);
	vma_stats_view_close(view);
	assert_true(vma_stats_next_request(stats, &got));
	assert_int_equal(got.type, VMA_STATS_REQUEST_ZERO);
}

static const struct vma_stats_socket *read_snapshot_and_find_socket(struct vma_stats_view *view,
                                                                    struct vma_stats_snapshot *into)
{
	vma_stats_view_read(view, into);
	return &vma_stats_snapshot_find(into, VMA_STATS_TYPE_SOCKET, "fd 5")->socket;
}

static void test_zeroed_counters_begin_at_zero_and_go_on(void **state)
{
	static struct vma_stats_snapshot snapshot;
	struct vma_stats_socket *sock = vma_stats_block_alloc(stats, VMA_STATS_TYPE_SOCKET, "fd 5"), copy;
	const struct vma_stats_socket *seen;
	struct vma_stats_view *view;

	(void)state;
	vma_stats_set(&sock->fd, 5);
	vma_stats_add(&sock->rx_packets, 100);
	vma_stats_set(&sock->rx_queue_max, 9);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(vma_stats_zero(stats), 0);
	seen = read_snapshot_and_find_socket(view, &snapshot);
	assert_int_equal(vma_stats_read_counter(&seen->rx_packets), 0);
	assert_int_equal(vma_stats_read_counter(&seen->rx_queue_max), 0);
	assert_int_equal(vma_stats_read_counter(&seen->fd), 5); /* what holds now is no count */
	vma_stats_add(&sock->rx_packets, 7);
	assert_int_equal(vma_stats_read_counter(&read_snapshot_and_find_socket(view, &snapshot)->rx_packets), 7);
	vma_stats_copy_block(stats, VMA_STATS_TYPE_SOCKET, sock, &copy);
	assert_int_equal(vma_stats_read_counter(&copy.rx_packets), 7);
	assert_int_equal(vma_stats_read_counter(&sock->rx_packets), 107); /* the writer was not disturbed */

	/* The next owner of the place has nothing to do with it. */
	vma_stats_block_free(stats, sock);
	sock = vma_stats_block_alloc(stats, VMA_STATS_TYPE_SOCKET, "fd 5");
	vma_stats_add(&sock->rx_packets, 200);
	assert_int_equal(vma_stats_read_counter(&read_snapshot_and_find_socket(view, &snapshot)->rx_packets), 200);
	vma_stats_view_close(view);
	vma_stats_block_free(stats, sock);
}

static void test_difference_of_snapshots_is_what_was_counted_between(void **state)
{
	static struct vma_stats_snapshot before, now;
	struct vma_stats_socket *sock = vma_stats_block_alloc(stats, VMA_STATS_TYPE_SOCKET, "fd 5"), *next;
	struct vma_stats_view *view;

	(void)state;
	vma_stats_add(&sock->rx_packets, 100);
	vma_stats_set(&sock->rx_queue_max, 9);
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	vma_stats_view_read(view, &before);
	vma_stats_add(&sock->rx_packets, 11);
	next = vma_stats_block_alloc(stats, VMA_STATS_TYPE_SOCKET, "fd 6");
	vma_stats_add(&next->rx_packets, 3);
	vma_stats_view_read(view, &now);
	vma_stats_snapshot_subtract(&now, &before);
	assert_int_equal(now.count, 2);
	assert_int_equal(vma_stats_read_counter(&now.items[0].socket.rx_packets), 11);
	assert_int_equal(vma_stats_read_counter(&now.items[0].socket.rx_queue_max), 9);
	assert_int_equal(vma_stats_read_counter(&now.items[1].socket.rx_packets), 3);
	vma_stats_view_close(view);
	vma_stats_block_free(stats, sock);
	vma_stats_block_free(stats, next);
}

static uint64_t read_rx_packets_of_freed_sockets(struct vma_stats_view *view)
{
	static struct vma_stats_snapshot snapshot;

	vma_stats_view_read(view, &snapshot);
	assert_true(snapshot.whole);
	assert_int_equal(snapshot.retired[VMA_STATS_TYPE_SOCKET].type, VMA_STATS_TYPE_SOCKET);
	assert_int_equal(vma_stats_read_counter(&snapshot.retired[VMA_STATS_TYPE_RING].ring.rx.rx_packets), 0);
	assert_int_equal(vma_stats_read_counter(&snapshot.retired[VMA_STATS_TYPE_SOCKET].socket.fd), 0); /* no count */
	assert_int_equal(vma_stats_read_counter(&snapshot.retired[VMA_STATS_TYPE_SOCKET].socket.rx_queue_max), 0);
	return vma_stats_read_counter(&snapshot.retired[VMA_STATS_TYPE_SOCKET].socket.rx_packets);
}

static void free_socket_block_with_counted_packets(uint64_t packets, bool zero, uint64_t more)
{
	struct vma_stats_socket *sock = vma_stats_block_alloc(stats, VMA_STATS_TYPE_SOCKET, "fd 5");

	vma_stats_set(&sock->fd, 5);
	vma_stats_set(&sock->rx_queue_max, 9);
	vma_stats_add(&sock->rx_packets, packets);
	if (zero)
		assert_int_equal(vma_stats_zero(stats), 0);
	vma_stats_add(&sock->rx_packets, more);
	vma_stats_block_free(stats, sock);
}

static void test_what_a_dropped_block_has_counted_is_kept(void **state)
{
	static struct vma_stats_snapshot before, now;
	struct vma_stats_view *view;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(read_rx_packets_of_freed_sockets(view), 0);
	free_socket_block_with_counted_packets(100, false, 7);
	assert_int_equal(read_rx_packets_of_freed_sockets(view), 107);
	free_socket_block_with_counted_packets(10, false, 0);
	assert_int_equal(read_rx_packets_of_freed_sockets(view), 117);
	free_socket_block_with_counted_packets(1000, true,
	                                       3); /* all that came before was zeroed, and of this one a part */
	assert_int_equal(read_rx_packets_of_freed_sockets(view), 3);
	vma_stats_view_read(view, &before);
	free_socket_block_with_counted_packets(40, false, 2);
	vma_stats_view_read(view, &now);
	vma_stats_snapshot_subtract(&now, &before);
	assert_int_equal(vma_stats_read_counter(&now.retired[VMA_STATS_TYPE_SOCKET].socket.rx_packets), 42);
	vma_stats_view_close(view);
}

static void test_drop_that_is_under_way_is_told(void **state)
{
	static struct vma_stats_snapshot snapshot;
	struct vma_stats_view *view;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	stats->segment->drops.begun++;
	vma_stats_view_read(view, &snapshot);
	assert_false(snapshot.whole);
	stats->segment->drops.done++;
	vma_stats_view_read(view, &snapshot);
	assert_true(snapshot.whole);
	vma_stats_view_close(view);
}

static void test_list_has_the_living_and_cleans_up_after_the_dead_if_it_may(void **state)
{
	char dead[128];
	pid_t pids[4];
	int fd;

	(void)state;
	snprintf(dead, sizeof(dead), "%s/vmastat.1", dir);
	fd = open(dead, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	close(fd);
	assert_int_equal(vma_stats_list_live_pids(dir, false, pids, 4), 1);
	assert_int_equal(pids[0], getpid());
	assert_int_equal(access(dead, F_OK), 0);
	assert_int_equal(vma_stats_list_live_pids(dir, true, pids, 4), 1);
	assert_int_equal(access(dead, F_OK), -1);
	assert_int_equal(vma_stats_list_live_pids("/nowhere", true, pids, 4), -ENOENT);
}

static void test_name_cannot_move_a_terminals_cursor(void **state)
{
	void *cq = vma_stats_block_alloc(stats, VMA_STATS_TYPE_CQ, "\033[2Jx\n\377");
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = 0;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_string_equal(name, "?[2Jx??");
	vma_stats_view_close(view);
	vma_stats_block_free(stats, cq);
}

static void test_corrupt_entries_are_passed_over_or_made_harmless(void **state)
{
	void *cq = vma_stats_block_alloc(stats, VMA_STATS_TYPE_CQ, "x");
	struct stats_entry *entries = stats->segment->entries;
	struct vma_stats_view *view;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = 0;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	entries[1].type = 0xffffffff;
	entries[2].type = VMA_STATS_TYPE_COUNT;
	entries[3].type = VMA_STATS_TYPE_RING;
	entries[3].sequence = 1; /* a writer that died while it changed it */
	entries[4].type = VMA_STATS_TYPE_RING;
	for (unsigned i = 0; i < STATS_NAME_WORDS; i++)
		entries[4].name[i] = 0x4141414141414141u; /* no end */
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(cursor, 1);
	assert_true(vma_stats_view_next(view, &cursor, &type, &name, &block));
	assert_int_equal(cursor, 5);
	assert_int_equal(strlen(name), VMA_STATS_NAME_MAX - 1);
	assert_false(vma_stats_view_next(view, &cursor, &type, &name, &block));
	vma_stats_view_close(view);
	vma_stats_block_free(stats, cq);
}

static void test_every_counter_has_a_place_of_its_own_in_its_block(void **state)
{
	(void)state;
	for (int t = VMA_STATS_TYPE_FREE + 1; t < VMA_STATS_TYPE_COUNT; t++) {
		enum vma_stats_type type = (enum vma_stats_type)t;
		size_t count;
		const struct vma_stats_field *fields = vma_stats_fields_of_type(type, &count);

		assert_non_null(vma_stats_type_name(type));
		assert_true(count > 0);
		for (size_t i = 0; i < count; i++) {
			assert_true(fields[i].offset + 8 <= stats_type_block_size(type));
			assert_int_equal(fields[i].offset % 8, 0);
			assert_true(i == 0 || fields[i].offset > fields[i - 1].offset); /* in the order of the lists */
			assert_true(fields[i].name[0] != '\0' && fields[i].text[0] != '\0');
		}
	}
}

static void test_unknown_type_has_no_counters(void **state)
{
	size_t count = 7;

	(void)state;
	assert_null(vma_stats_fields_of_type(VMA_STATS_TYPE_FREE, &count));
	assert_int_equal(count, 0);
	assert_null(vma_stats_fields_of_type((enum vma_stats_type) - 1, &count));
	assert_null(vma_stats_type_name(VMA_STATS_TYPE_COUNT));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_blocks_are_seen_with_type_name_and_values, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test_setup_teardown(test_long_name_is_cut, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_view_of_a_file_that_was_made_anew_is_not_current, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test_setup_teardown(test_cursor_beyond_the_end_finds_nothing, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_what_is_not_a_segment_is_refused, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_any_other_layout_is_refused, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_file_that_is_cut_short_is_refused, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_no_truncation_reaches_the_counters, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_output_is_for_its_user_only, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_file_under_another_number_is_refused, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_file_that_names_something_else_is_refused, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test_setup_teardown(test_requests_come_through_in_order, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_requests_after_nonsense_come_through, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_zeroed_counters_begin_at_zero_and_go_on, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test_setup_teardown(test_difference_of_snapshots_is_what_was_counted_between, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test_setup_teardown(test_what_a_dropped_block_has_counted_is_kept, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test_setup_teardown(test_drop_that_is_under_way_is_told, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_list_has_the_living_and_cleans_up_after_the_dead_if_it_may,
                                        view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_name_cannot_move_a_terminals_cursor, view_make_stats, view_remove_stats),
        cmocka_unit_test_setup_teardown(test_corrupt_entries_are_passed_over_or_made_harmless, view_make_stats,
                                        view_remove_stats),
        cmocka_unit_test(test_every_counter_has_a_place_of_its_own_in_its_block),
        cmocka_unit_test(test_unknown_type_has_no_counters),
};

VMA_TEST_MAIN(tests)
