/* O_NONBLOCK and O_ASYNC of a kernel's socket, and what a protocol is told of them. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vma/inet_flags.h>
#include <vma/test.h>

#include "fixture.h"

static struct vma_file file;
static int refusal, nonblocking, async, locks, changes;

static int refuse_async(struct vma_file *of)
{
	(void)of;
	return refusal;
}
static void count_lock(struct vma_file *of)
{
	pthread_mutex_lock(&of->lock);
	locks++;
}
static void note_nonblocking(struct vma_file *of, bool on)
{
	assert_int_equal(pthread_mutex_trylock(&of->lock), EBUSY);
	nonblocking = on;
}
static void note_async(struct vma_file *of, bool on)
{
	(void)of;
	async = on;
}
static void count_change(struct vma_file *of)
{
	(void)of;
	changes++;
}
static const struct vma_inet_flags_ops ops = {.check_async = refuse_async,
                                              .lock = count_lock,
                                              .set_nonblocking = note_nonblocking,
                                              .set_async = note_async,
                                              .changed = count_change};

static int make_socket(void **state)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	setup_vma_enter(state);
	pthread_mutex_init(&file.lock, NULL);
	nonblocking = async = -1;
	refusal = locks = changes = 0;
	*state = (void *)(intptr_t)fd;
	return fd < 0 ? -1 : 0;
}

static int close_socket(void **state)
{
	close((int)(intptr_t)*state);
	return teardown_vma_leave(state);
}

static void test_ioctl_sets_the_one_flag_that_it_names(void **state)
{
	int fd = (int)(intptr_t)*state, on = 7;

	assert_int_equal(vma_inet_ioctl_flag(&ops, &file, fd, FIONBIO, &on), 0);
	assert_int_equal(nonblocking, 1);
	assert_int_equal(async, -1);
	assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
	assert_int_equal(vma_inet_ioctl_flag(&ops, &file, fd, FIOASYNC, &on), 0);
	assert_int_equal(async, 1);
	assert_int_equal(changes, 2);
	assert_int_equal(pthread_mutex_trylock(&file.lock), 0); /* and gave the lock back */
	pthread_mutex_unlock(&file.lock);
}

static void test_fcntl_sets_both(void **state)
{
	int fd = (int)(intptr_t)*state;

	assert_int_equal(vma_inet_fcntl(&ops, &file, fd, F_SETFL, (void *)(long)(O_NONBLOCK | O_ASYNC)), 0);
	assert_int_equal(nonblocking, 1);
	assert_int_equal(async, 1);
	assert_int_equal(vma_inet_fcntl(&ops, &file, fd, F_SETFL, NULL), 0);
	assert_int_equal(nonblocking, 0);
	assert_int_equal(async, 0);
	assert_int_equal(changes, 2);
}

static void test_other_commands_change_nothing(void **state)
{
	int fd = (int)(intptr_t)*state;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	assert_true((vma_inet_fcntl(&ops, &file, fd, F_GETFL, NULL) & O_NONBLOCK) != 0);
	assert_int_equal(changes, 0);
	assert_int_equal(nonblocking, -1);
}

static void test_refused_async_does_not_reach_the_kernel(void **state)
{
	int fd = (int)(intptr_t)*state, on = 1;

	refusal = -EINVAL;
	assert_int_equal(vma_inet_ioctl_flag(&ops, &file, fd, FIOASYNC, &on), -EINVAL);
	assert_int_equal(vma_inet_fcntl(&ops, &file, fd, F_SETFL, (void *)(long)(O_NONBLOCK | O_ASYNC)), -EINVAL);
	assert_int_equal(fcntl(fd, F_GETFL) & (O_NONBLOCK | O_ASYNC), 0);
	assert_int_equal(locks, 0);
	assert_int_equal(vma_inet_fcntl(&ops, &file, fd, F_SETFL, (void *)(long)O_NONBLOCK), 0);
}

static void test_what_the_kernel_refuses_changes_nothing(void **state)
{
	int fd = (int)(intptr_t)*state, on = 1;

	assert_int_equal(vma_inet_ioctl_flag(&ops, &file, fd, FIONBIO, (void *)8), -EFAULT);
	assert_int_equal(vma_inet_ioctl_flag(&ops, &file, -1, FIONBIO, &on), -EBADF);
	assert_int_equal(vma_inet_fcntl(&ops, &file, -1, F_SETFL, NULL), -EBADF);
	assert_int_equal(changes, 0);
	assert_int_equal(locks, 3);
	assert_int_equal(pthread_mutex_trylock(&file.lock), 0);
	pthread_mutex_unlock(&file.lock);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ioctl_sets_the_one_flag_that_it_names, make_socket, close_socket),
        cmocka_unit_test_setup_teardown(test_fcntl_sets_both, make_socket, close_socket),
        cmocka_unit_test_setup_teardown(test_other_commands_change_nothing, make_socket, close_socket),
        cmocka_unit_test_setup_teardown(test_refused_async_does_not_reach_the_kernel, make_socket, close_socket),
        cmocka_unit_test_setup_teardown(test_what_the_kernel_refuses_changes_nothing, make_socket, close_socket),
};

VMA_TEST_MAIN(tests)
