/* Mappings of a device's file are not inherited by a forked child; all others are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/test.h>

#include "../verbs/verbs.h"

#define PAGE ((size_t)sysconf(_SC_PAGESIZE))
#define OTHERS 200 /* mappings in between: the list is longer than one read of it */

/* Of one page and of two pages of the file, and of all pages of it with a longer name. */
static void *of_device[2], *of_neighbour;

static void *map_file(const char *path, size_t pages)
{
	FILE *file = fopen(path, "w+");
	void *map;

	assert_non_null(file);
	assert_int_equal(ftruncate(fileno(file), (off_t)(2 * PAGE)), 0);
	map = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	assert_true(map != MAP_FAILED);
	fclose(file);
	return map;
}

static bool is_mapped(void *map, size_t pages)
{
	unsigned char in_core[2];

	return mincore(map, pages * PAGE, in_core) == 0;
}

static int child_counts_wrong_mappings(void)
{
	return is_mapped(of_device[0], 1) + 2 * is_mapped(of_device[1], 1) + 4 * !is_mapped(of_neighbour, 2);
}

static void test_a_child_has_no_mapping_of_the_file_and_all_others(void **state)
{
	char folder[] = "/tmp/vma-mappings.XXXXXX", path[64], neighbour[64];
	void *others[OTHERS];
	int status;
	pid_t pid;

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/a device", folder);
	snprintf(neighbour, sizeof(neighbour), "%s/a device1", folder);
	of_device[0] = map_file(path, 1);
	of_neighbour = map_file(neighbour, 2);
	for (int i = 0; i < OTHERS; i++) /* with different rights, or they become one */
		others[i] = mmap(NULL, PAGE, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	of_device[1] = map_file(path, 2);
	verbs_mappings_of_file_set_dontfork(path);
	pid = fork();
	if (pid == 0)
		_exit(child_counts_wrong_mappings());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_true(is_mapped(of_device[0], 1) && is_mapped(of_device[1], 2));
	for (int i = 0; i < OTHERS; i++)
		munmap(others[i], PAGE);
	munmap(of_device[0], PAGE);
	munmap(of_device[1], 2 * PAGE);
	munmap(of_neighbour, 2 * PAGE);
	unlink(path);
	unlink(neighbour);
	rmdir(folder);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_has_no_mapping_of_the_file_and_all_others),
};
VMA_TEST_MAIN(tests)
