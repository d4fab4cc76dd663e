/* The list of LD_PRELOAD, and the programs on which it has no effect. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/test.h>

#include "../preload.h"

static const char *preload_list_with_library(const char *list)
{
	static char out[256];

	assert_int_equal(preload_list_add_library(list, "/usr/lib/libvma.so", out, sizeof(out)), 0);
	return out;
}

static void test_library_is_alone_if_there_was_no_list(void **state)
{
	(void)state;
	assert_string_equal(preload_list_with_library(NULL), "/usr/lib/libvma.so");
	assert_string_equal(preload_list_with_library(""), "/usr/lib/libvma.so");
	assert_string_equal(preload_list_with_library(" :: "), "/usr/lib/libvma.so");
}

static void test_library_comes_behind_what_was_there(void **state)
{
	(void)state;
	assert_string_equal(preload_list_with_library("libasan.so.8"), "libasan.so.8:/usr/lib/libvma.so");
	assert_string_equal(preload_list_with_library("/a/x.so /b/y.so:z.so"),
	                    "/a/x.so:/b/y.so:z.so:/usr/lib/libvma.so");
}

static void test_another_copy_of_library_is_replaced(void **state)
{
	(void)state;
	assert_string_equal(preload_list_with_library("libvma.so"), "/usr/lib/libvma.so");
	assert_string_equal(preload_list_with_library("/opt/libvma-debug.so:x.so"), "x.so:/usr/lib/libvma.so");
	assert_string_equal(preload_list_with_library("/opt/mylibvma.so"), "/opt/mylibvma.so:/usr/lib/libvma.so");
	assert_string_equal(preload_list_with_library("libvma.so.d/x.so"), "libvma.so.d/x.so:/usr/lib/libvma.so");
}

static void test_path_with_separator_is_refused(void **state)
{
	char out[64];

	(void)state;
	assert_int_equal(preload_list_add_library(NULL, "/a b/libvma.so", out, sizeof(out)), -EINVAL);
	assert_int_equal(preload_list_add_library(NULL, "/a:b/libvma.so", out, sizeof(out)), -EINVAL);
}

static void test_list_that_does_not_fit_is_refused(void **state)
{
	char out[16];

	(void)state;
	assert_int_equal(preload_list_add_library("/a/long/one.so", "/libvma.so", out, sizeof(out)), -E2BIG);
	assert_int_equal(preload_list_add_library("a.so", "/libvma.so", out, sizeof(out)), 0);
	assert_int_equal(preload_list_add_library("ab.so", "/libvma.so", out, sizeof(out)), -E2BIG);
}

static void test_program_is_found_as_execvp_finds_it(void **state)
{
	char *before = strdup(getenv("PATH")), dir[] = "/tmp/vma-test-XXXXXX", file[64], path[256];

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(file, sizeof(file), "%s/tool", dir);
	fclose(fopen(file, "w"));
	snprintf(path, sizeof(path), "/nonexistent:%s:/bin", dir);
	setenv("PATH", path, 1);
	assert_int_equal(preload_find_program("tool", path, sizeof(path)), -ENOENT); /* it is not executable */
	chmod(file, 0755);
	assert_int_equal(preload_find_program("tool", path, sizeof(path)), 0);
	assert_string_equal(path, file);
	assert_int_equal(preload_find_program("sh", path, sizeof(path)), 0);
	assert_string_equal(path, "/bin/sh");
	assert_int_equal(preload_find_program("./tool", path, sizeof(path)), -ENOENT);
	unlink(file);
	rmdir(dir);
	setenv("PATH", before, 1);
	free(before);
}

static void test_ordinary_program_and_script_are_not_refused(void **state)
{
	char file[] = "/tmp/vma-test-XXXXXX";
	const int fd = mkstemp(file);

	(void)state;
	assert_null(preload_refusal_reason("/proc/self/exe"));
	assert_int_equal(write(fd, "#!/bin/sh\n", 10), 10);
	close(fd);
	assert_null(preload_refusal_reason(file));
	assert_null(preload_refusal_reason("/nonexistent"));
	unlink(file);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_library_is_alone_if_there_was_no_list),
        cmocka_unit_test(test_library_comes_behind_what_was_there),
        cmocka_unit_test(test_another_copy_of_library_is_replaced),
        cmocka_unit_test(test_path_with_separator_is_refused),
        cmocka_unit_test(test_list_that_does_not_fit_is_refused),
        cmocka_unit_test(test_program_is_found_as_execvp_finds_it),
        cmocka_unit_test(test_ordinary_program_and_script_are_not_refused),
};
VMA_TEST_MAIN(tests)
