/* The descriptor of a ring: one at a time, readable while there are events, and what ends it. */
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "wait_fixture.h"

static int get_ring_fd(void)
{
	struct vma_thread *self = vma_enter();
	const int fd = vma_ring_ctx_get_or_open_fd(fixture.ring_ctx);

	vma_leave(self);
	return fd;
}

/* As interpose does it. */
static void remove_from_table_and_close_fd(int fd)
{
	vma_fd_remove(fd);
	syscall(SYS_close, fd);
}

static uint32_t poll_events_of_offloaded_fd(int fd)
{
	struct vma_thread *self = vma_enter();
	struct vma_file *file = vma_fd_lookup(fd);
	const uint32_t events = file->ops->poll(file);

	vma_leave(self);
	return events;
}

static void ring_file_mark_seen_by_fd(int fd)
{
	struct vma_thread *self = vma_enter();

	vma_ring_file_mark_all_seen(vma_fd_lookup(fd));
	vma_leave(self);
}

static void progress_ring_inside_library(void)
{
	struct vma_thread *self = vma_enter();

	vma_ring_ctxs_progress(fixture.bit);
	vma_leave(self);
}

static void test_a_ring_has_one_descriptor_until_it_is_closed(void **state)
{
	const int fd = get_ring_fd();
	struct vma_thread *self;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(get_ring_fd(), fd);
	assert_int_equal(vma_fd_lookup(fd)->kind, VMA_FILE_RING);
	self = vma_enter();
	assert_ptr_equal(vma_ring_file_ctx(vma_fd_lookup(fd)), fixture.ring_ctx);
	assert_ptr_equal(vma_ring_file_get_ring_ref(vma_fd_lookup(fd)), fixture.ring_ctx);
	vma_ring_ctx_put(fixture.ring_ctx);
	vma_leave(self);
	remove_from_table_and_close_fd(fd);
	assert_null(fixture.ring_ctx->file);
	assert_int_not_equal(atomic_load(&fixture.ring_ctx->busy_mask), 0);
	assert_int_equal(get_ring_fd(), fd); /* the number is free, and the lowest */
	assert_int_equal(poll_events_of_offloaded_fd(fd), 0);
	remove_from_table_and_close_fd(fd);
}

static void test_a_copy_of_the_number_is_the_same_descriptor(void **state)
{
	const int fd = get_ring_fd(), copy = dup(fd);

	(void)state;
	assert_int_equal(vma_fd_install(copy, vma_fd_lookup(fd)), 0);
	remove_from_table_and_close_fd(fd);
	assert_int_equal(get_ring_fd(), copy);
	remove_from_table_and_close_fd(copy);
	assert_null(fixture.ring_ctx->file);
}

static void test_it_is_readable_from_a_packet_to_the_next_look(void **state)
{
	const int fd = get_ring_fd();

	(void)state;
	hold_internal_thread();
	assert_int_equal(poll_events_of_offloaded_fd(fd), 0);
	fixture_send(0);
	progress_ring_inside_library();
	assert_int_equal(poll_events_of_offloaded_fd(fd), EPOLLIN); /* it was handled, by whoever */
	ring_file_mark_seen_by_fd(fd);
	assert_int_equal(poll_events_of_offloaded_fd(fd), 0);
	progress_ring_inside_library();
	assert_int_equal(poll_events_of_offloaded_fd(fd), 0);
	release_internal_thread();
	remove_from_table_and_close_fd(fd);
}

static void test_it_hears_of_what_the_internal_thread_handles(void **state)
{
	const int fd = get_ring_fd();

	(void)state;
	ring_file_mark_seen_by_fd(fd);
	fixture_send(0);
	fixture_wait_until(poll_events_of_offloaded_fd(fd) == EPOLLIN);
	remove_from_table_and_close_fd(fd);
}

static void test_it_hears_of_what_a_control_call_handles(void **state)
{
	const int fd = get_ring_fd();

	(void)state;
	hold_internal_thread();
	ring_file_mark_seen_by_fd(fd);
	fixture_send(0);
	assert_true(vma_ring_acquire(fixture.ring_ctx->ring));
	vma_ring_drain(fixture.ring_ctx->ring);
	vma_ring_release(fixture.ring_ctx->ring);
	assert_int_equal(poll_events_of_offloaded_fd(fd), EPOLLIN);
	release_internal_thread();
	remove_from_table_and_close_fd(fd);
}

static void test_whoever_is_told_nothing_of_packets_may_tell(void **state)
{
	const int fd = get_ring_fd();

	(void)state;
	ring_file_mark_seen_by_fd(fd);
	vma_ring_notify_listener(fixture.ring_ctx->ring);
	assert_int_equal(poll_events_of_offloaded_fd(fd), EPOLLIN);
	remove_from_table_and_close_fd(fd);
	vma_ring_notify_listener(fixture.ring_ctx->ring); /* nobody listens */
}

/* ---- watchers ---- */

static _Atomic unsigned watched_ready, watched_ended;

static void watcher_count_ready_and_hangup(struct vma_watcher *watcher, uint32_t events)
{
	(void)watcher;
	if (events & EPOLLIN)
		atomic_fetch_add(&watched_ready, 1);
	if (events & EPOLLHUP)
		atomic_fetch_add(&watched_ended, 1);
}
static void watcher_ignore_closed(struct vma_watcher *watcher, int fd)
{
	(void)watcher, (void)fd;
}
static struct vma_watcher watcher = {.ready = watcher_count_ready_and_hangup, .closed = watcher_ignore_closed};

static void test_watchers_are_told_of_each_drive_that_found_something(void **state)
{
	const int fd = get_ring_fd();

	(void)state;
	hold_internal_thread();
	assert_int_equal(vma_file_watch(vma_fd_lookup(fd), &watcher), 0);
	for (unsigned i = 1; i <= 5; i++) {
		fixture_send(0);
		progress_ring_inside_library();
		assert_int_equal(atomic_load(&watched_ready), i);
	}
	release_internal_thread();
	vma_file_unwatch(vma_fd_lookup(fd), &watcher);
	remove_from_table_and_close_fd(fd);
}

/* ---- ends ---- */

static void test_the_end_of_the_ring_hangs_up_and_closes_the_number(void **state)
{
	struct vma_ring_requester where = {.socket_id = 77};
	struct vma_ring_ctx *ring_ctx;
	struct vma_thread *self;
	struct vma_file *file;
	int fd, copy;

	(void)state;
	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_RX, &where, &ring_ctx), 0);
	self = vma_enter();
	fd = vma_ring_ctx_get_or_open_fd(ring_ctx);
	vma_leave(self);
	copy = dup(fd);
	file = vma_fd_lookup(fd);
	assert_int_equal(vma_fd_install(copy, file), 0);
	assert_int_equal(vma_file_watch(file, &watcher), 0);
	hold_internal_thread();
	vma_ring_ctx_put(ring_ctx);
	assert_int_equal(poll_events_of_offloaded_fd(copy), EPOLLHUP); /* at once */
	assert_int_equal(file->ops->rings(file), 0);
	assert_null(vma_ring_file_ctx(file));
	assert_null(vma_ring_file_get_ring_ref(file));
	release_internal_thread();
	fixture_wait_until(fcntl(fd, F_GETFD) < 0);
	assert_null(vma_fd_lookup(fd));
	assert_int_equal(atomic_load(&watched_ended), 1);
	assert_ptr_equal(vma_fd_lookup(copy), file); /* the program's own */
	assert_true(fcntl(copy, F_GETFD) >= 0);
	vma_file_unwatch(file, &watcher);
	remove_from_table_and_close_fd(copy);
}

static void test_a_number_that_leads_elsewhere_by_the_end_of_the_ring_is_left_alone(void **state)
{
	struct vma_ring_requester where = {.socket_id = 78};
	struct vma_ring_ctx *ring_ctx;
	struct vma_thread *self;
	int fd;

	(void)state;
	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_RX, &where, &ring_ctx), 0);
	self = vma_enter();
	fd = vma_ring_ctx_get_or_open_fd(ring_ctx);
	vma_leave(self);
	hold_internal_thread();
	vma_ring_ctx_put(ring_ctx); /* the number is to be closed */
	vma_fd_remove(fd);
	assert_int_equal(dup2(STDERR_FILENO, fd), fd); /* the program has, and the number is another file's */
	release_internal_thread();
	hold_internal_thread(); /* the task has run */
	release_internal_thread();
	assert_true(fcntl(fd, F_GETFD) >= 0);
	close(fd);
}

static int forked_child_expect_ring_file_hup(int fd)
{
	struct vma_file *file = vma_fd_lookup(fd);

	if (file == NULL || file->ops->poll(file) != EPOLLHUP || vma_ring_file_ctx(file) != NULL)
		return 1;
	remove_from_table_and_close_fd(fd);
	return vma_fd_lookup(fd) == NULL ? 0 : 2;
}

static void test_a_forked_child_has_a_number_that_leads_nowhere(void **state)
{
	const int fd = get_ring_fd();
	int status;
	pid_t child;

	(void)state;
	vma_engine_fork_prepare();
	child = fork();
	if (child == 0) {
		vma_engine_reset_in_fork_child();
		_exit(forked_child_expect_ring_file_hup(fd));
	}
	vma_engine_after_fork_in_parent();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(get_ring_fd(), fd);
	assert_int_equal(poll_events_of_offloaded_fd(fd), 0);
	remove_from_table_and_close_fd(fd);
}

static void test_without_a_number_there_is_an_error_and_nothing_is_left(void **state)
{
	struct rlimit limit, none;

	(void)state;
	getrlimit(RLIMIT_NOFILE, &limit);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(get_ring_fd(), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_null(fixture.ring_ctx->file);
	remove_from_table_and_close_fd(get_ring_fd());
}

/* ---- threads ---- */

enum { ASKERS = 4 };

/* Several may close one number, the later ones what the next has got meanwhile: the test has no others this low. */
static void *thread_get_poll_and_close_ring_fd(void *arg)
{
	const uint64_t until = vma_now_ns() + 300 * MSEC;

	(void)arg;
	while (vma_now_ns() < until) {
		struct vma_thread *self = vma_enter();
		const int fd = vma_ring_ctx_get_or_open_fd(fixture.ring_ctx);
		struct vma_file *file = fd >= 0 ? vma_fd_lookup(fd) : NULL;

		if (file != NULL) {
			file->ops->poll(file);
			vma_ring_file_mark_all_seen(file);
		}
		vma_leave(self);
		if (fd < 0 && fd != -EBADF)
			return (void *)1;
		if (fd >= 0)
			remove_from_table_and_close_fd(fd);
	}
	return NULL;
}

static void test_threads_may_ask_close_and_drive_at_a_time(void **state)
{
	pthread_t threads[ASKERS];
	void *failed;

	(void)state;
	for (int i = 0; i < ASKERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_get_poll_and_close_ring_fd, NULL), 0);
	for (int i = 0; i < 200; i++) {
		fixture_send(0);
		progress_ring_inside_library();
		usleep(1000);
	}
	for (int i = 0; i < ASKERS; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	remove_from_table_and_close_fd(get_ring_fd());
	assert_null(fixture.ring_ctx->file);
}

static int setup_ring_per_socket(void **state)
{
	setenv("VMA_RING_ALLOCATION_LOGIC_RX", "10", 1);
	return wait_fixture_start(state);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_ring_has_one_descriptor_until_it_is_closed),
        cmocka_unit_test(test_a_copy_of_the_number_is_the_same_descriptor),
        cmocka_unit_test(test_it_is_readable_from_a_packet_to_the_next_look),
        cmocka_unit_test(test_it_hears_of_what_the_internal_thread_handles),
        cmocka_unit_test(test_it_hears_of_what_a_control_call_handles),
        cmocka_unit_test(test_whoever_is_told_nothing_of_packets_may_tell),
        cmocka_unit_test(test_watchers_are_told_of_each_drive_that_found_something),
        cmocka_unit_test(test_the_end_of_the_ring_hangs_up_and_closes_the_number),
        cmocka_unit_test(test_a_number_that_leads_elsewhere_by_the_end_of_the_ring_is_left_alone),
        cmocka_unit_test(test_a_forked_child_has_a_number_that_leads_nowhere),
        cmocka_unit_test(test_without_a_number_there_is_an_error_and_nothing_is_left),
        cmocka_unit_test(test_threads_may_ask_close_and_drive_at_a_time),
};

VMA_TEST_FORKS_WITH_THREADS

VMA_TEST_MAIN_WITH(tests, setup_ring_per_socket, NULL)
