/* The pieces of a message: what of their list is refused, how they are cut, and copying across their borders. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include <vma/inet_iov_iter.h>
#include <vma/sock_os.h>
#include <vma/test.h>

#include "fixture.h"

static struct sigaction on_segv; /* the library's */

static int iov_iter_get_of_iov(struct vma_inet_iov_iter *iov_iter, const struct iovec *iov, size_t n)
{
	const struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = n};

	return vma_inet_iov_iter_init_from_msghdr(iov_iter, &msg);
}

static void test_bytes_go_across_pieces_and_empty_ones(void **state)
{
	char a[2], b[3], c[4];
	const struct iovec iov[] = {{a, 2}, {NULL, 0}, {b, 3}, {NULL, 0}, {c, 4}};
	struct vma_inet_iov_iter iov_iter;
	uint8_t back[9];

	(void)state;
	assert_int_equal(iov_iter_get_of_iov(&iov_iter, iov, 5), 0);
	assert_int_equal(iov_iter.left, 9);
	assert_int_equal(vma_inet_iov_iter_write(&iov_iter, (const uint8_t *)"abc", 3), 3);
	assert_int_equal(vma_inet_iov_iter_write(&iov_iter, (const uint8_t *)"defghijk", 8), 6);
	assert_int_equal(iov_iter.left, 0);
	assert_memory_equal(a, "ab", 2);
	assert_memory_equal(b, "cde", 3);
	assert_memory_equal(c, "fghi", 4);
	vma_inet_iov_iter_release(&iov_iter);

	assert_int_equal(iov_iter_get_of_iov(&iov_iter, iov, 5), 0);
	vma_inet_iov_iter_skip(&iov_iter, 4);
	assert_int_equal(iov_iter.left, 5);
	assert_int_equal(vma_inet_iov_iter_read(&iov_iter, back, sizeof(back)), 5);
	assert_memory_equal(back, "efghi", 5);
	vma_inet_iov_iter_release(&iov_iter);
}

static void test_long_list_is_copied_and_a_longer_one_refused(void **state)
{
	static struct iovec iov[VMA_INET_IOV_MAX + 1];
	struct vma_inet_iov_iter iov_iter;
	char byte;

	(void)state;
	for (size_t i = 0; i < VMA_INET_IOV_MAX; i++)
		iov[i] = (struct iovec){&byte, 1};
	assert_int_equal(iov_iter_get_of_iov(&iov_iter, iov, VMA_INET_IOV_MAX), 0);
	assert_int_equal(iov_iter.left, VMA_INET_IOV_MAX);
	iov[0].iov_len = 100; /* too late */
	assert_int_equal(iov_iter.iov[0].iov_len, 1);
	vma_inet_iov_iter_release(&iov_iter);
	assert_int_equal(iov_iter_get_of_iov(&iov_iter, iov, VMA_INET_IOV_MAX + 1), -EMSGSIZE);
	vma_inet_iov_iter_release(&iov_iter);
}

static void test_length_below_zero_comes_before_bad_pointers(void **state)
{
	const struct iovec iov[] = {{(void *)-1L, 1}, {NULL, (size_t)-1}};
	struct vma_inet_iov_iter iov_iter;

	(void)state;
	assert_int_equal(iov_iter_get_of_iov(&iov_iter, iov, 2), -EINVAL);
	vma_inet_iov_iter_release(&iov_iter);
	assert_int_equal(iov_iter_get_of_iov(&iov_iter, iov, 1), -EFAULT);
	vma_inet_iov_iter_release(&iov_iter);
}

static void test_pieces_beyond_the_bytes_of_one_call_are_cut(void **state)
{
	const struct iovec iov[] = {{NULL, 10}, {NULL, VMA_INET_BYTES_MAX - 5}, {NULL, 7}};
	struct vma_inet_iov_iter iov_iter;

	(void)state;
	assert_int_equal(iov_iter_get_of_iov(&iov_iter, iov, 3), 0);
	assert_int_equal(iov_iter.left, VMA_INET_BYTES_MAX);
	assert_int_equal(iov_iter.iov[1].iov_len, VMA_INET_BYTES_MAX - 10);
	assert_int_equal(iov_iter.iov[2].iov_len, 0);
	vma_inet_iov_iter_release(&iov_iter);
}

static void test_bad_list_and_bad_piece_are_faults(void **state)
{
	uint8_t *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const struct iovec iov = {page + 4090, 10};
	struct vma_inet_iov_iter iov_iter;

	(void)state;
	vma_os.sigaction(SIGSEGV, &on_segv, NULL); /* cmocka has put its own */
	assert_int_equal(munmap(page + 4096, 4096), 0);
	assert_int_equal(iov_iter_get_of_iov(&iov_iter, (const struct iovec *)(page + 4096), 1), -EFAULT);
	vma_inet_iov_iter_release(&iov_iter);
	assert_int_equal(iov_iter_get_of_iov(&iov_iter, &iov, 1), 0);
	assert_int_equal(vma_inet_iov_iter_write(&iov_iter, (const uint8_t *)"0123456789", 10), 0);
	assert_int_equal(iov_iter.left, 10);
	vma_inet_iov_iter_release(&iov_iter);
	munmap(page, 4096);
}

static void test_piece_behind_the_message_is_the_librarys(void **state)
{
	char byte;
	struct {
		struct msghdr msg;
		struct iovec iov;
	} own = {.iov = {&byte, 1}};
	struct vma_inet_iov_iter iov_iter;

	(void)state;
	own.msg.msg_iov = &own.iov;
	own.msg.msg_iovlen = 1;
	assert_true(vma_inet_iov_is_library_memory(&own.msg));
	assert_int_equal(vma_inet_iov_iter_init_from_msghdr(&iov_iter, &own.msg), 0);
	assert_ptr_equal(iov_iter.iov[0].iov_base, &byte);
	assert_int_equal(iov_iter.left, 1);
	vma_inet_iov_iter_release(&iov_iter);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(test_bytes_go_across_pieces_and_empty_ones, setup_vma_enter,
	                                        teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_long_list_is_copied_and_a_longer_one_refused, setup_vma_enter,
	                                        teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_length_below_zero_comes_before_bad_pointers, setup_vma_enter,
	                                        teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_pieces_beyond_the_bytes_of_one_call_are_cut, setup_vma_enter,
	                                        teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_bad_list_and_bad_piece_are_faults, setup_vma_enter,
	                                        teardown_vma_leave),
	        cmocka_unit_test_setup_teardown(test_piece_behind_the_message_is_the_librarys, setup_vma_enter,
	                                        teardown_vma_leave),
	};

	vma_signals_wrap_existing_handlers();
	vma_os.sigaction(SIGSEGV, NULL, &on_segv);
	vma_test_set_filter_from_env();
	return cmocka_run_group_tests_name("inet", tests, NULL, NULL);
}
