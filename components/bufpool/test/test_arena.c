/* An arena maps ranges of frames where they are asked for, and takes address space and memory back. */
#include <vma/bufpool.h>
#include <vma/log.h>
#include <vma/test.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct vma_bufarena *create_test_arena(uint32_t capacity, uint32_t frame_size, enum vma_mem_alloc_type type)
{
	struct vma_bufarena_attr attr = {.capacity = capacity, .frame_size = frame_size, .alloc_type = type};
	struct vma_bufarena *arena = NULL;

	assert_int_equal(vma_bufarena_create(&attr, &arena), 0);
	return arena;
}

static char *arena_frame(struct vma_bufarena *arena, uint32_t index)
{
	return vma_buf_frame(arena, vma_buf_at(arena, index));
}

static size_t resident_pages(const void *addr, size_t bytes)
{
	static unsigned char pages[1 << 16];
	size_t count = (bytes + 4095) / 4096, resident = 0;

	assert_in_range(count, 1, sizeof(pages));
	if (mincore((void *)addr, bytes, pages) != 0)
		return 0;
	for (size_t i = 0; i < count; i++)
		resident += pages[i] & 1;
	return resident;
}

static void test_defaults_hold_all_buffers_that_the_parameters_allow(void **state)
{
	struct vma_bufarena *arena = create_test_arena(0, 0, VMA_MEM_CONTIG);

	(void)state;
	assert_true(arena->capacity >= 400000 + 8 * 8192);
	assert_int_equal(arena->frame_shift, 11);
	vma_bufarena_destroy(arena);
}

static void test_bad_attributes_are_refused(void **state)
{
	struct vma_bufarena_attr odd = {.frame_size = 3000}, small = {.frame_size = 1024},
	                         large = {.frame_size = 1 << 17};
	struct vma_bufarena_attr type = {.alloc_type = 3};
	struct vma_bufarena *arena;

	(void)state;
	assert_int_equal(vma_bufarena_create(&odd, &arena), -EINVAL);
	assert_int_equal(vma_bufarena_create(&small, &arena), -EINVAL);
	assert_int_equal(vma_bufarena_create(&large, &arena), -EINVAL);
	assert_int_equal(vma_bufarena_create(&type, &arena), -EINVAL);
}

static void test_every_alloc_type_and_frame_size_gives_writable_frames(void **state)
{
	static const uint32_t sizes[] = {2048, 4096, 16384, 65536};

	(void)state;
	for (int type = VMA_MEM_ANON; type <= VMA_MEM_HUGE; type++) {
		for (unsigned s = 0; s < 4; s++) {
			struct vma_bufarena *arena = create_test_arena(4096, sizes[s], (enum vma_mem_alloc_type)type);
			uint32_t first;

			assert_int_equal(vma_bufarena_map_memory(arena, 100, &first), 0);
			memset(arena_frame(arena, first), 1, sizes[s]);
			memset(arena_frame(arena, first + 99), 2, sizes[s]);
			assert_int_equal(arena_frame(arena, first)[sizes[s] - 1], 1);
			assert_int_equal(arena_frame(arena, first + 99)[sizes[s] - 1], 2);
			vma_bufarena_unmap(arena, first, 100);
			vma_bufarena_destroy(arena);
		}
	}
}

static void test_ranges_do_not_overlap_and_are_used_again(void **state)
{
	struct vma_bufarena *arena = create_test_arena(64 * 8, 0, VMA_MEM_ANON);
	uint32_t first[8], again, big;

	(void)state;
	for (int i = 0; i < 8; i++) {
		assert_int_equal(vma_bufarena_map_memory(arena, 64, &first[i]), 0);
		memset(arena_frame(arena, first[i]), i, 64 * 2048);
	}
	assert_int_equal(vma_bufarena_map_memory(arena, 1, &again), -ENOMEM);
	for (int i = 0; i < 8; i++)
		for (int b = 0; b < 64 * 2048; b++)
			if (arena_frame(arena, first[i])[b] != i)
				fail_msg("range %d, byte %d is another's", i, b);
	vma_bufarena_unmap(arena, first[2], 64);
	vma_bufarena_unmap(arena, first[3], 64);
	assert_int_equal(vma_bufarena_map_memory(arena, 128, &big), 0);
	assert_int_equal(big, first[2] < first[3] ? first[2] : first[3]);
	assert_int_equal(arena_frame(arena, big)[0], 0); /* nothing of the range's former life */
	vma_bufarena_destroy(arena);
}

static void test_a_huge_count_is_refused_not_truncated(void **state)
{
	struct vma_bufarena *arena = create_test_arena(1024, 0, VMA_MEM_ANON);
	uint32_t first;

	(void)state;
	assert_int_equal(vma_bufarena_map_memory(arena, 0, &first), -EINVAL);
	assert_int_equal(vma_bufarena_map_memory(arena, 1025, &first), -ENOMEM);
	assert_int_equal(vma_bufarena_map_memory(arena, UINT32_MAX, &first), -ENOMEM);
	assert_int_equal(vma_bufarena_map_memory(arena, 1024, &first), 0);
	vma_bufarena_destroy(arena);
}

static int create_test_memfd(size_t bytes)
{
	int fd = memfd_create("window", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	return fd;
}

static void test_a_file_is_mapped_shared_at_its_offset(void **state)
{
	struct vma_bufarena *arena = create_test_arena(1024, 0, VMA_MEM_ANON);
	int fd = create_test_memfd(64 * 2048 + 8192);
	uint32_t first;
	char text[6];

	(void)state;
	assert_int_equal(vma_bufarena_map_fd(arena, fd, 8192, 64, &first), 0);
	strcpy(arena_frame(arena, first + 1), "hello");
	assert_int_equal(pread(fd, text, 6, 8192 + 2048), 6);
	assert_string_equal(text, "hello");
	vma_bufarena_unmap(arena, first, 64);
	assert_int_equal(vma_bufarena_map_fd(arena, fd, 8192, 64, &first), 0);
	assert_string_equal(arena_frame(arena, first + 1), "hello");
	vma_bufarena_destroy(arena);
	close(fd);
}

static void test_a_file_that_is_too_short_or_none_is_refused_and_costs_no_range(void **state)
{
	struct vma_bufarena *arena = create_test_arena(64, 0, VMA_MEM_ANON);
	int fd = create_test_memfd(64 * 2048);
	uint32_t first;

	(void)state;
	assert_int_equal(vma_bufarena_map_fd(arena, fd, 4096, 64, &first), -EINVAL);
	assert_int_equal(vma_bufarena_map_fd(arena, fd, 100, 32, &first), -EINVAL);
	assert_int_equal(vma_bufarena_map_fd(arena, -1, 0, 64, &first), -EINVAL);
	assert_int_equal(vma_bufarena_map_fd(arena, fd, 0, 64, &first), 0);
	vma_bufarena_destroy(arena);
	close(fd);
}

static void test_an_unmapped_range_costs_no_memory(void **state)
{
	struct vma_bufarena *arena = create_test_arena(4096, 0, VMA_MEM_ANON);
	size_t bufs_bytes = 4096 * sizeof(struct vma_buf);
	uint32_t first;

	(void)state;
	assert_int_equal(resident_pages(arena->bufs, bufs_bytes), 0);
	assert_int_equal(vma_bufarena_map_memory(arena, 2048, &first), 0);
	memset(vma_buf_at(arena, first), 0xff, 2048 * sizeof(struct vma_buf));
	memset(arena_frame(arena, first), 0xff, 2048 * 2048);
	assert_int_equal(resident_pages(arena->bufs, bufs_bytes), 2048 * sizeof(struct vma_buf) / 4096);
	assert_int_equal(resident_pages(arena_frame(arena, first), 2048 * 2048), 1024);
	vma_bufarena_unmap(arena, first, 2048);
	assert_int_equal(resident_pages(arena->bufs, bufs_bytes), 0);
	assert_int_equal(resident_pages(arena_frame(arena, first), 2048 * 2048), 0);
	vma_bufarena_destroy(arena);
}

static void test_limited_address_space_gives_a_smaller_arena(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	vma_test_skip("the sanitizer itself needs terabytes of address space");
#endif
	pid_t child;
	int status;

	(void)state;
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct rlimit limit = {512 << 20, 512 << 20};
		struct vma_bufarena_attr attr = {0};
		struct vma_bufarena *arena;
		uint32_t first;

		if (setrlimit(RLIMIT_AS, &limit) != 0 || vma_bufarena_create(&attr, &arena) != 0)
			_exit(1);
		if (arena->capacity < 4096 || arena->capacity >= 262144)
			_exit(2);
		if (vma_bufarena_map_memory(arena, 64, &first) != 0)
			_exit(3);
		memset(arena_frame(arena, first), 1, 64 * 2048);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* Ordinary memory is copied on write; a window must not be there at all. */
static void test_a_forked_child_keeps_ordinary_memory_and_loses_windows(void **state)
{
	struct vma_bufarena *arena = create_test_arena(1024, 0, VMA_MEM_ANON);
	int fd = create_test_memfd(64 * 2048), status, in_core[2];
	uint32_t memory, window;
	pid_t child;

	(void)state;
	assert_int_equal(vma_bufarena_map_memory(arena, 64, &memory), 0);
	assert_int_equal(vma_bufarena_map_fd(arena, fd, 0, 64, &window), 0);
	strcpy(arena_frame(arena, memory), "parent");
	assert_int_equal(pipe(in_core), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		bool kept = strcmp(arena_frame(arena, memory), "parent") == 0;

		strcpy(arena_frame(arena, memory), "child");
		/* an address that is not mapped gives EFAULT where a mapped one is written */
		_exit(!kept ? 1 : write(in_core[1], arena_frame(arena, window), 1) != -1 ? 2 : errno != EFAULT ? 3 : 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_string_equal(arena_frame(arena, memory), "parent");
	close(in_core[0]);
	close(in_core[1]);
	close(fd);
	vma_bufarena_destroy(arena);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_hold_all_buffers_that_the_parameters_allow),
        cmocka_unit_test(test_bad_attributes_are_refused),
        cmocka_unit_test(test_every_alloc_type_and_frame_size_gives_writable_frames),
        cmocka_unit_test(test_ranges_do_not_overlap_and_are_used_again),
        cmocka_unit_test(test_a_huge_count_is_refused_not_truncated),
        cmocka_unit_test(test_a_file_is_mapped_shared_at_its_offset),
        cmocka_unit_test(test_a_file_that_is_too_short_or_none_is_refused_and_costs_no_range),
        cmocka_unit_test(test_an_unmapped_range_costs_no_memory),
        cmocka_unit_test(test_limited_address_space_gives_a_smaller_arena),
        cmocka_unit_test(test_a_forked_child_keeps_ordinary_memory_and_loses_windows),
};

VMA_TEST_MAIN(tests)
