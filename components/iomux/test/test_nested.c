/* Sets in sets, in poll and in select; sets that become ours while they are in others; and in a forked child. */
#include <sys/resource.h>

#include "backends.h"

static void nested_epoll_set_reports_member_events(struct backend *be)
{
	int outer = epoll_create1(0), inner = epoll_create1(0), fd = backend_socket(be), pipes[2];

	assert_int_equal(pipe(pipes), 0);
	backend_epoll_ctl(be, inner, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	say(be, "%d\n", backend_epoll_ctl(be, outer, EPOLL_CTL_ADD, inner, EPOLLIN, 2));
	say(be, "again %d, the other way %d\n", backend_epoll_ctl(be, outer, EPOLL_CTL_ADD, inner, EPOLLIN, 2),
	    backend_epoll_ctl(be, inner, EPOLL_CTL_ADD, outer, EPOLLIN, 2));
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, outer, 8, 50);
	backends_say_epoll_wait(be, inner, 8, 0);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_recv(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, inner, 8, 0);
	backend_epoll_ctl(be, inner, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 3);
	assert_int_equal(write(pipes[1], "x", 1), 1);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, inner, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, outer, EPOLL_CTL_DEL, inner, 0, 0));
	backends_say_epoll_wait(be, outer, 8, 0);
	close(pipes[0]);
	close(pipes[1]);
	backend_close(be, fd);
	backend_close(be, inner);
	backend_close(be, outer);
}
SAME_ON_ALL_BACKENDS(nested_epoll_set_reports_member_events)

static void edges_of_a_set_in_a_set(struct backend *be)
{
	int outer = epoll_create1(0), inner = epoll_create1(0), fd = backend_socket(be);

	backend_epoll_ctl(be, inner, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backend_epoll_ctl(be, outer, EPOLL_CTL_ADD, inner, EPOLLIN | EPOLLET, 2);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_epoll_ctl(be, outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT, 3);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_close(be, fd);
	backend_close(be, inner);
	backend_close(be, outer);
}
SAME_ON_ALL_BACKENDS(edges_of_a_set_in_a_set)

static void as_deep_as_the_kernel_allows_but_one(struct backend *be)
{
	int ep[5], fd = backend_socket(be);

	for (int i = 0; i < 4; i++)
		ep[i] = epoll_create1(0);
	backend_epoll_ctl(be, ep[0], EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	for (int i = 1; i < 4; i++)
		say(be, "%d\n", backend_epoll_ctl(be, ep[i], EPOLL_CTL_ADD, ep[i - 1], EPOLLIN, (uint64_t)i));
	backends_say_epoll_wait(be, ep[3], 8, 0);
	backend_make_datagram_arrive(be, fd);
	for (int i = 3; i >= 0; i--)
		backends_say_epoll_wait(be, ep[i], 8, 0);
	backend_recv(be, fd);
	backends_say_epoll_wait(be, ep[3], 8, 0);
	say(be, "loop %d\n", backend_epoll_ctl(be, ep[0], EPOLL_CTL_ADD, ep[3], EPOLLIN, 1));
	for (int i = 0; i < 4; i++)
		backend_close(be, ep[i]);
	backend_close(be, fd);
}
SAME_ON_ALL_BACKENDS(as_deep_as_the_kernel_allows_but_one)

static void one_set_under_two_numbers_in_another(struct backend *be)
{
	int outer = epoll_create1(0), inner = epoll_create1(0), copy, fd = backend_socket(be);

	backend_epoll_ctl(be, inner, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	copy = backend_dup(be, inner);
	say(be, "%d\n", backend_epoll_ctl(be, outer, EPOLL_CTL_ADD, inner, EPOLLIN, 2));
	say(be, "%d\n", backend_epoll_ctl(be, outer, EPOLL_CTL_ADD, copy, EPOLLIN, 3));
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_epoll_ctl(be, outer, EPOLL_CTL_DEL, inner, 0, 0);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_close(be, fd);
	backend_close(be, inner);
	backend_close(be, copy);
	backend_close(be, outer);
}
SAME_ON_ALL_BACKENDS(one_set_under_two_numbers_in_another)

/* The outer set was the kernel's, and held the inner one, before the inner one got its socket. */
static void an_outer_set_learns_that_its_member_became_ours(struct backend *be)
{
	int outer = epoll_create1(0), inner = epoll_create1(0), fd = backend_socket(be);
	struct later later;

	backend_epoll_ctl(be, outer, EPOLL_CTL_ADD, inner, EPOLLIN, 0x123456789abcdef0);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_epoll_ctl(be, inner, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backends_say_epoll_wait(be, outer, 8, 0);
	begin_delayed_send(&later, be, fd, 30);
	backends_say_epoll_wait(be, outer, 8, 2000);
	join_delayed_send_thread(&later);
	backend_recv(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLET, 5));
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_close(be, inner);
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_close(be, fd);
	backend_close(be, outer);
}
SAME_ON_ALL_BACKENDS(an_outer_set_learns_that_its_member_became_ours)

/* A copy was made before the set was ours; both numbers have been waited for. */
static void a_copy_of_a_set_is_recognised(struct backend *be)
{
	int ep = epoll_create1(0), copy = dup(ep), fd = backend_socket(be);

	backends_say_epoll_wait(be, copy, 8, 0);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, copy, 8, 0);
	backend_close(be, ep);
	backends_say_epoll_wait(be, copy, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, copy, EPOLL_CTL_DEL, fd, 0, 0));
	backends_say_epoll_wait(be, copy, 8, 0);
	backend_close(be, fd);
	backend_close(be, copy);
}
SAME_ON_ALL_BACKENDS(a_copy_of_a_set_is_recognised)

static void a_set_in_poll_and_select(struct backend *be)
{
	int ep = epoll_create1(0), fd = backend_socket(be), event = eventfd(0, 0);
	struct pollfd pfd = {.fd = ep, .events = POLLIN | POLLOUT | POLLRDNORM};
	struct timespec none = {0, 0};
	struct later later;
	fd_set set;

	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, event, EPOLLIN, 2);
	say(be, "%d\n", backend_poll(be, &pfd, 1, 0));
	begin_delayed_send(&later, be, fd, 30);
	say(be, "%d", backend_poll(be, &pfd, 1, 2000));
	join_delayed_send_thread(&later);
	say(be, " %x\n", pfd.revents);
	FD_ZERO(&set);
	FD_SET(ep, &set);
	say(be, "%d\n", backend_pselect(be, ep + 1, &set, NULL, NULL, &none, NULL));
	backend_recv(be, fd);
	say(be, "%d\n", backend_poll(be, &pfd, 1, 0));
	eventfd_write(event, 1);
	usleep(1000);
	say(be, "%d\n", backend_poll(be, &pfd, 1, 0));
	close(event);
	backend_close(be, fd);
	backend_close(be, ep);
}
SAME_ON_ALL_BACKENDS(a_set_in_poll_and_select)

/* ---- fork: the fakes' queues are copied as they are, the kernel's are shared ---- */

static void child_sees(struct backend *be, int ep, int outer, int fd)
{
	backends_say_epoll_wait(be, outer, 8, 0);
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	say(be, "%d\n", backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 9));
	backend_recv(be, fd);
	backends_say_epoll_wait(be, ep, 8, 0);
	fflush(be->log);
}

static void call_forked_op_of_file(struct vma_file *file, void *arg)
{
	(void)arg;
	if (file->ops->forked != NULL)
		file->ops->forked(file);
}

static void forked_child_uses_inherited_epoll_set(struct backend *be)
{
	int ep = epoll_create1(0), outer = epoll_create1(0), fd = backend_socket(be), results[2], status;
	char text[512] = "";
	pid_t pid;

	assert_int_equal(pipe(results), 0);
	backend_epoll_ctl(be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backend_epoll_ctl(be, outer, EPOLL_CTL_ADD, ep, EPOLLIN, 2);
	backends_say_epoll_wait(be, outer, 8, 0);
	fflush(be->log);
	pid = fork();
	if (pid == 0) {
		size_t from = be->size;
		struct vma_thread *self = vma_enter();

		if (be->kind != KERNEL)
			vma_file_each(call_forked_op_of_file, NULL);
		vma_leave(self);
		child_sees(be, ep, outer, fd);
		_exit(write(results[1], be->seen + from, be->size - from) == (ssize_t)(be->size - from) ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(read(results[0], text, sizeof(text) - 1) > 0);
	say(be, "%s", text);
	backends_say_epoll_wait(be, outer, 8, 0); /* the parent's is as it was */
	backend_make_datagram_arrive(be, fd);
	backends_say_epoll_wait(be, outer, 8, 0);
	backends_say_epoll_wait(be, ep, 8, 0);
	close(results[0]);
	close(results[1]);
	backend_close(be, fd);
	backend_close(be, ep);
	backend_close(be, outer);
}
SAME_ON_ALL_BACKENDS(forked_child_uses_inherited_epoll_set)

/*
 * A child keeps the socket open that the parent closes last under another number: the kernel's registration stays in S,
 * and must neither be told nor keep anybody awake.
 */
static void test_what_another_process_keeps_alive_is_forgotten(void **state)
{
	struct backend be = {.kind = SHADOW};
	int ep = epoll_create1(0), fd = backend_socket(&be), copy = backend_dup(&be, fd), other = backend_socket(&be),
	    go[2], status;
	struct epoll_event event;
	struct rusage before, after;
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(go), 0);
	backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	backend_epoll_ctl(&be, ep, EPOLL_CTL_ADD, other, EPOLLIN, 2);
	backend_make_datagram_arrive(&be, fd);
	pid = fork();
	if (pid == 0) {
		close(go[1]);
		_exit(read(go[0], &byte, 1) == 0 ? 0 : 1);
	}
	backend_close(&be, fd);
	backend_close(&be, copy);
	getrusage(RUSAGE_SELF, &before);
	assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 200), 0);
	getrusage(RUSAGE_SELF, &after);
	assert_true((after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
	             before.ru_stime.tv_usec + 2000000) %
	                    1000000 <
	            100000);
	backend_make_datagram_arrive(&be, other);
	assert_int_equal(backend_epoll_wait(&be, ep, &event, 1, 200), 1);
	assert_int_equal(event.data.u64, 2);
	close(go[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(go[0]);
	backend_close(&be, other);
	backend_close(&be, ep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_nested_epoll_set_reports_member_events),
	        cmocka_unit_test(test_edges_of_a_set_in_a_set),
	        cmocka_unit_test(test_as_deep_as_the_kernel_allows_but_one),
	        cmocka_unit_test(test_one_set_under_two_numbers_in_another),
	        cmocka_unit_test(test_an_outer_set_learns_that_its_member_became_ours),
	        cmocka_unit_test(test_a_copy_of_a_set_is_recognised),
	        cmocka_unit_test(test_a_set_in_poll_and_select),
	        cmocka_unit_test(test_forked_child_uses_inherited_epoll_set),
	        cmocka_unit_test(test_what_another_process_keeps_alive_is_forgotten),
	};

	return run_backends(__FILE__, tests, sizeof(tests) / sizeof(tests[0]));
}
