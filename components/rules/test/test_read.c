/* A file's text, and files that have none. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/test.h>

#include "../rules_priv.h"

static char folder[] = "/tmp/vma-test-rules-XXXXXX";
static char path[sizeof(folder) + 8];

static int setup_temp_folder(void **state)
{
	(void)state;
	if (mkdtemp(folder) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/conf", folder);
	return 0;
}

static int teardown_temp_folder(void **state)
{
	(void)state;
	return rmdir(folder);
}

static void write_rules_file(const char *text, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, len), len);
	close(fd);
}

static int read_rules_and_check_out_params(char **text, size_t *size)
{
	int rc = vma_rules_read(path, text, size);

	assert_true(rc == 0 || (*text == NULL && *size == 0));
	return rc;
}

static void test_a_file_is_read_whole(void **state)
{
	char *text;
	size_t size;

	(void)state;
	write_rules_file("use os\0x", 8);
	assert_int_equal(read_rules_and_check_out_params(&text, &size), 0);
	assert_int_equal(size, 8);
	assert_memory_equal(text, "use os\0x", 8);
	vma_rules_text_unmap(text);
	unlink(path);
	vma_rules_text_unmap(NULL);
}

static void test_an_empty_file_has_no_text(void **state)
{
	char *text;
	size_t size;

	(void)state;
	write_rules_file("", 0);
	assert_int_equal(read_rules_and_check_out_params(&text, &size), 0);
	assert_null(text);
	assert_int_equal(size, 0);
	unlink(path);
}

static void test_a_file_of_proc_has_a_text_though_its_size_is_zero(void **state)
{
	char *text;
	size_t size;

	(void)state;
	assert_int_equal(vma_rules_read("/proc/self/status", &text, &size), 0);
	assert_true(size > 10);
	assert_memory_equal(text, "Name:", 5);
	vma_rules_text_unmap(text);
}

static void test_what_is_no_file_is_refused_without_waiting(void **state)
{
	char *text;
	size_t size;

	(void)state;
	assert_int_equal(read_rules_and_check_out_params(&text, &size), -ENOENT);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(read_rules_and_check_out_params(&text, &size), -EINVAL);
	unlink(path);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(read_rules_and_check_out_params(&text, &size), -EISDIR);
	rmdir(path);
	assert_int_equal(vma_rules_read("/dev/zero", &text, &size), -EINVAL);
	assert_int_equal(symlink("conf", path), 0);
	assert_int_equal(read_rules_and_check_out_params(&text, &size), -ELOOP);
	unlink(path);
}

static void test_a_huge_file_is_refused(void **state)
{
	char *text;
	size_t size;

	(void)state;
	write_rules_file("#", 1);
	assert_int_equal(truncate(path, VMA_RULES_FILE_MAX), 0);
	assert_int_equal(read_rules_and_check_out_params(&text, &size), 0);
	assert_int_equal(size, VMA_RULES_FILE_MAX);
	vma_rules_text_unmap(text);
	assert_int_equal(truncate(path, VMA_RULES_FILE_MAX + 1), 0);
	assert_int_equal(read_rules_and_check_out_params(&text, &size), -EFBIG);
	unlink(path);
}

static void test_errno_and_descriptors_stay(void **state)
{
	const int before = dup(0);
	char *text;
	size_t size;

	(void)state;
	close(before);
	errno = EXDEV;
	read_rules_and_check_out_params(&text, &size);
	vma_rules_read("/dev/zero", &text, &size);
	assert_int_equal(errno, EXDEV);
	assert_int_equal(dup(0), before);
	close(before);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_is_read_whole),
        cmocka_unit_test(test_an_empty_file_has_no_text),
        cmocka_unit_test(test_a_file_of_proc_has_a_text_though_its_size_is_zero),
        cmocka_unit_test(test_what_is_no_file_is_refused_without_waiting),
        cmocka_unit_test(test_a_huge_file_is_refused),
        cmocka_unit_test(test_errno_and_descriptors_stay),
};

VMA_TEST_MAIN_WITH(tests, setup_temp_folder, teardown_temp_folder)
