/* Migration: sequences of accesses from cores, and at which of them the socket moves. */
#include <string.h>

#include <vma/ring.h>
#include <vma/test.h>

static struct vma_ring_key on_core(uint32_t core)
{
	struct vma_ring_where where = {.core = core};

	return vma_ring_key(VMA_RING_LOGIC_PER_CORE, &where);
}

/* `cores` is one digit per access; `moves` has a '^' under each access at which the socket must move. It starts on 0.
 */
static const struct {
	int32_t ratio;
	const char *cores, *moves;
} table[] = {
        {-1, "1111111111111111", "                "}, /* off */
        {1, "0000000000000000", "                "},
        {1, "1100000000000000", " ^ ^            "},
        {1, "1010101010101010", "                "}, /* never twice the same in a row */
        {1, "0011110000", "   ^   ^  "},
        {1, "1231231231", "          "},
        {1, "1122112211", " ^ ^ ^ ^ ^"},
        {4, "111111111111", "       ^    "}, /* looks at the 4th and the 8th */
        {4, "000100010000", "       ^    "}, /* only what is there at a look counts */
        {4, "111011101110", "            "},
        {0, "11", " ^"}, /* as 1: every access is a look */
};

static void test_socket_moves_after_two_equal_looks_elsewhere(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct vma_ring_migration m;

		vma_ring_migration_init(&m, table[i].ratio, on_core(0));
		for (size_t j = 0; table[i].cores[j] != '\0'; j++) {
			bool moved = vma_ring_migration_step(&m, on_core((uint32_t)(table[i].cores[j] - '0')));

			if (moved != (table[i].moves[j] == '^'))
				fail_msg("row %zu, access %zu: moved %d", i, j, moved);
		}
	}
}

static void test_current_key_is_the_one_moved_to(void **state)
{
	struct vma_ring_key three = on_core(3);
	struct vma_ring_migration m;

	(void)state;
	vma_ring_migration_init(&m, 1, on_core(0));
	assert_false(vma_ring_migration_step(&m, three));
	assert_true(vma_ring_migration_step(&m, three));
	assert_memory_equal(&m.current, &three, sizeof(three));
	assert_false(vma_ring_migration_step(&m, three));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_socket_moves_after_two_equal_looks_elsewhere),
        cmocka_unit_test(test_current_key_is_the_one_moved_to),
};
VMA_TEST_MAIN(tests)
