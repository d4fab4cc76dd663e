/* The common head: watchers, the list of all, what a child makes of it, and the question whether one is offloaded. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/test.h>

#include "../fd/file.h"
#include "fake_file.h"

struct listener {
	struct vma_watcher watcher; /* first */
	struct vma_file *file;
	int ready, closed, last_fd;
	uint32_t events;
	bool leaves; /* when it is told of the end */
};

static void count_watcher_ready_events(struct vma_watcher *watcher, uint32_t events)
{
	struct listener *listener = (struct listener *)watcher;

	listener->ready++;
	listener->events |= events;
}

static void count_watcher_closed_calls(struct vma_watcher *watcher, int fd)
{
	struct listener *listener = (struct listener *)watcher;

	listener->closed++;
	listener->last_fd = fd;
	if (listener->leaves)
		vma_file_unwatch(listener->file, watcher);
}

static struct listener make_counting_watcher_of_file(struct vma_file *file)
{
	return (struct listener){.watcher = {.ready = count_watcher_ready_events, .closed = count_watcher_closed_calls},
	                         .file = file,
	                         .last_fd = -2};
}

static void test_every_watcher_is_told_until_it_leaves(void **state)
{
	struct fake_file *fake = fake_file_create();
	struct listener a = make_counting_watcher_of_file(&fake->file), b = a, c = a;

	(void)state;
	assert_int_equal(vma_fd_install(5, &fake->file), 0);
	vma_file_wake_sleepers_and_watchers(&fake->file, 1); /* nobody: no harm */
	assert_int_equal(vma_file_watch(&fake->file, &a.watcher), 0);
	assert_int_equal(vma_file_watch(&fake->file, &b.watcher), 0);
	assert_int_equal(vma_file_watch(&fake->file, &c.watcher), 0);
	vma_file_wake_sleepers_and_watchers(&fake->file, 1);
	vma_file_unwatch(&fake->file, &a.watcher);
	vma_file_wake_sleepers_and_watchers(&fake->file, 4);
	vma_file_unwatch(&fake->file, &a.watcher); /* twice: no harm */
	assert_int_equal(a.ready, 1);
	assert_int_equal(a.events, 1);
	assert_int_equal(b.ready, 2);
	assert_int_equal(b.events, 5);
	assert_int_equal(c.ready, 2);
	vma_file_unwatch(&fake->file, &c.watcher);
	vma_file_unwatch(&fake->file, &b.watcher);
	vma_file_wake_sleepers_and_watchers(&fake->file, 1);
	assert_int_equal(b.ready, 2);
	vma_fd_remove(5);
	assert_int_equal(b.closed, 0);
	fake_poll_until_retired_are_freed();
}

static void test_watchers_hear_of_each_number_and_of_the_end(void **state)
{
	struct fake_file *fake = fake_file_create();
	struct listener a = make_counting_watcher_of_file(&fake->file), b = a;

	(void)state;
	a.leaves = true;
	vma_file_get(&fake->file);
	assert_int_equal(vma_fd_install(5, &fake->file), 0);
	assert_int_equal(vma_fd_install(6, &fake->file), 0);
	assert_int_equal(vma_file_watch(&fake->file, &b.watcher), 0);
	vma_fd_remove(5);
	assert_int_equal(b.closed, 1);
	assert_int_equal(b.last_fd, 5);
	assert_int_equal(vma_file_watch(&fake->file, &a.watcher), 0);
	vma_fd_remove(6);
	assert_int_equal(b.closed, 2);
	assert_int_equal(b.last_fd, -1);
	assert_int_equal(a.closed, 1);
	assert_int_equal(a.last_fd, -1);
	vma_file_wake_sleepers_and_watchers(&fake->file, 1);
	assert_int_equal(a.ready, 0);
	assert_int_equal(b.ready, 1);
	assert_int_equal(vma_file_watch(&fake->file, &a.watcher), -EBADF);
	vma_file_put(&fake->file);
	fake_poll_until_retired_are_freed();
}

static void collect_file_reason_bits(struct vma_file *file, void *arg)
{
	*(uint64_t *)arg |= 1ULL << fake_of(file)->reason;
}

static void test_list_has_the_files_that_have_a_number(void **state)
{
	struct fake_file *fakes[4];
	uint64_t seen = 0;

	(void)state;
	for (int i = 0; i < 4; i++) {
		fakes[i] = fake_file_create();
		fakes[i]->reason = i;
		if (i != 3)
			assert_int_equal(vma_fd_install(50 + i, &fakes[i]->file), 0);
	}
	assert_int_equal(vma_fd_install(60, &fakes[0]->file), 0);
	vma_file_each(collect_file_reason_bits, &seen);
	assert_int_equal(seen, 7);
	vma_fd_remove(51); /* from the middle */
	seen = 0;
	vma_file_each(collect_file_reason_bits, &seen);
	assert_int_equal(seen, 5);
	vma_fd_remove(50);
	vma_fd_remove(52);
	seen = 0;
	vma_file_each(collect_file_reason_bits, &seen);
	assert_int_equal(seen, 1);
	vma_fd_remove(60);
	vma_file_put(&fakes[3]->file);
	seen = 0;
	vma_file_each(collect_file_reason_bits, &seen);
	assert_int_equal(seen, 0);
	fake_poll_until_retired_are_freed();
}

/* The parent's lock is taken by a thread that the child does not have: here, by the parent itself. */
static void test_child_finds_files_unlocked_and_told(void **state)
{
	struct fake_file *fake = fake_file_create();
	int status;
	pid_t child;

	(void)state;
	assert_int_equal(vma_fd_install(70, &fake->file), 0);
	pthread_mutex_lock(&fake->file.lock);
	atomic_store(&fake->file.waitq.used, 1);
	files_lock_before_fork();
	child = fork();
	if (child == 0) {
		files_reset_in_fork_child();
		_exit(fake->forked == 1 && pthread_mutex_trylock(&fake->file.lock) == 0 &&
		                      atomic_load(&fake->file.waitq.used) == 0 && vma_fd_lookup(70) == &fake->file
		              ? 0
		              : 1);
	}
	files_unlock_after_fork_in_parent();
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(fake->forked, 0);
	pthread_mutex_unlock(&fake->file.lock);
	atomic_store(&fake->file.waitq.used, 0);
	vma_fd_remove(70);
	fake_poll_until_retired_are_freed();
}

static void test_query_tells_offloaded_the_reason_or_that_there_is_no_such_number(void **state)
{
	struct fake_file *fake = fake_file_create();
	const char *text = NULL;
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(vma_sock_get_offload_reason(fds[0], &text), 0);
	assert_string_equal(text, "only UDP and TCP sockets are offloaded");
	assert_int_equal(vma_fd_install(fds[0], &fake->file), 0);
	assert_int_equal(vma_sock_get_offload_reason(fds[0], &text), 0);
	assert_string_equal(text, "not bound or connected yet");
	fake->reason = VMA_SOCK_OFFLOADED;
	assert_int_equal(vma_sock_get_offload_reason(fds[0], &text), 1);
	assert_string_equal(text, "offloaded");
	assert_int_equal(vma_sock_get_offload_reason(fds[0], NULL), 1);
	vma_fd_remove(fds[0]);
	close(fds[0]);
	close(fds[1]);
	text = "untouched";
	assert_int_equal(vma_sock_get_offload_reason(fds[0], &text), -EBADF);
	assert_int_equal(vma_sock_get_offload_reason(-1, &text), -EBADF);
	assert_string_equal(text, "untouched");
	fake_poll_until_retired_are_freed();
}

static const char *fake_kernel_only_option(struct vma_file *file)
{
	(void)file;
	return "SO_EXAMPLE";
}

static void test_sentence_names_program_port_reason_and_remedy(void **state)
{
	static struct vma_file_ops ops;
	struct sockaddr_in6 any = {.sin6_family = AF_INET6}, local = any;
	struct fake_file *fake = fake_file_create();
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(local);
	const char *text;
	char wanted[256];

	(void)state;
	ops = *fake->file.ops;
	ops.reason_detail = fake_kernel_only_option;
	fake->file.ops = &ops;
	assert_int_equal(vma_fd_install(fd, &fake->file), 0);
	fake->reason = VMA_SOCK_IPV6;
	assert_int_equal(vma_sock_get_offload_reason(fd, &text), 0);
	snprintf(wanted, sizeof(wanted), "%s: a UDP socket is the kernel's: bound or connected to an IPv6 address, ",
	         program_invocation_short_name);
	assert_memory_equal(text, wanted, strlen(wanted));
	assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof(any)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&local, &len), 0);
	assert_int_equal(vma_sock_get_offload_reason(fd, &text), 0);
	snprintf(wanted, sizeof(wanted),
	         "%s: UDP port %u, bound to ::, is the kernel's: bound or connected to an IPv6 address, ",
	         program_invocation_short_name, ntohs(local.sin6_port));
	assert_memory_equal(text, wanted, strlen(wanted));
	fake->reason = VMA_SOCK_OPTION;
	assert_int_equal(vma_sock_get_offload_reason(fd, &text), 0);
	assert_non_null(strstr(text, "is the kernel's: an option is set that only the kernel serves (SO_EXAMPLE)"));
	local.sin6_addr = in6addr_loopback;
	assert_int_equal(connect(fd, (struct sockaddr *)&local, sizeof(local)), 0);
	assert_int_equal(vma_sock_get_offload_reason(fd, &text), 0);
	snprintf(wanted, sizeof(wanted), " to ::1 port %u is the kernel's: ", ntohs(local.sin6_port));
	assert_non_null(strstr(text, wanted));
	vma_fd_remove(fd);
	close(fd);
	fake_poll_until_retired_are_freed();
}

static void test_every_reason_has_a_text_of_its_own(void **state)
{
	(void)state;
	for (int i = VMA_SOCK_OFFLOADED; i <= VMA_SOCK_ENGINE; i++)
		for (int k = VMA_SOCK_OFFLOADED; k < i; k++)
			assert_string_not_equal(vma_sock_reason_text((enum vma_sock_reason)i),
			                        vma_sock_reason_text((enum vma_sock_reason)k));
	assert_string_equal(vma_sock_reason_text((enum vma_sock_reason)1000), "unknown");
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_watcher_is_told_until_it_leaves),
        cmocka_unit_test(test_watchers_hear_of_each_number_and_of_the_end),
        cmocka_unit_test(test_list_has_the_files_that_have_a_number),
        cmocka_unit_test(test_child_finds_files_unlocked_and_told),
        cmocka_unit_test(test_query_tells_offloaded_the_reason_or_that_there_is_no_such_number),
        cmocka_unit_test(test_sentence_names_program_port_reason_and_remedy),
        cmocka_unit_test(test_every_reason_has_a_text_of_its_own),
};

VMA_TEST_MAIN(tests)
