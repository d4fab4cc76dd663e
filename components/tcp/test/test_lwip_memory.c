/* lwIP's objects come from lists of free ones, which are bounded; nothing is lost when there is no memory. */
#include "lwip_fixture.h"

#include <errno.h>

#include <lwip/mem.h>
#include <lwip/memp.h>

static struct fixture w;
static size_t lwip_allocations_n, lwip_frees_n;
static bool allocator_is_exhausted;

static void *counting_alloc(size_t size)
{
	if (allocator_is_exhausted)
		return NULL;
	lwip_allocations_n++;
	return calloc(1, size);
}

static void counting_free(void *memory)
{
	lwip_frees_n++;
	free(memory);
}

static const struct vma_tcp_host_ops counting = {.alloc = counting_alloc, .free = counting_free};

static int setup_lwip_with_counting_allocator(void **state)
{
	(void)state;
	lwip_allocations_n = lwip_frees_n = 0;
	allocator_is_exhausted = false;
	lwip_fixture_open(&w, &counting);
	lwip_enter(&w.tcp, &w.conn);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	lwip_leave();
	lwip_fixture_close(&w);
	assert_int_equal(lwip_allocations_n, lwip_frees_n);
	return 0;
}

static uint64_t no_memory_count(void)
{
	return atomic_load(&w.tcp.count[offsetof(struct vma_tcp_counts, no_memory) / sizeof(uint64_t)]);
}

/* A peer with a small MSS has many made: what is more than may lie idle counts as bytes do. */
static void test_many_segments_count_like_bytes(void **state)
{
	enum { MANY = 20000 };
	static struct tcp_seg *made[MANY];
	struct vma_tcp_memory memory = {.limit = INT64_MAX};

	(void)state;
	w.tcp.attr.memory = &memory;
	for (unsigned i = 0; i < MANY; i++) {
		made[i] = memory_get_segment_of_bytes(&w.tcp, NULL, 48, 0);
		assert_non_null(made[i]);
		if (i == 1000)
			assert_int_equal(atomic_load(&memory.used), 0);
	}
	assert_in_range(atomic_load(&memory.used), MANY / 4 * 200, MANY * 400);
	for (unsigned i = 0; i < MANY; i++)
		memory_segment_free(&w.tcp, made[i]);
	assert_int_equal(atomic_load(&memory.used), 0);
	w.tcp.attr.memory = NULL;
}

static void test_every_kind_is_usable_to_its_end(void **state)
{
	struct {
		memp_t type;
		size_t size;
	} kinds[] = {
	        {MEMP_TCP_PCB, sizeof(struct tcp_pcb)},
	        {MEMP_TCP_PCB_LISTEN, sizeof(struct tcp_pcb_listen)},
	        {MEMP_TCP_SEG, sizeof(struct tcp_seg)},
	        {MEMP_PBUF, sizeof(struct pbuf)},
	};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		void *a = memp_malloc(kinds[i].type), *b = memp_malloc(kinds[i].type);

		memset(a, 0xaa, kinds[i].size);
		memset(b, 0xbb, kinds[i].size);
		assert_int_equal(((uint8_t *)a)[kinds[i].size - 1], 0xaa);
		memp_free(kinds[i].type, a);
		memp_free(kinds[i].type, b);
	}
}

static void test_header_memory_of_any_size_is_aligned_and_usable(void **state)
{
	static const size_t sizes[] = {1, 104, 120, 121, 128, 1000, 65535};

	(void)state;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint8_t *bytes = mem_malloc(sizes[i]);

		assert_int_equal((uintptr_t)bytes % MEM_ALIGNMENT, 0);
		memset(bytes, 0xcc, sizes[i]);
		assert_int_equal(port_memory_in_use(&w.tcp), 1);
		assert_ptr_equal(mem_trim(bytes, 1), bytes);
		mem_free(bytes);
		assert_int_equal(port_memory_in_use(&w.tcp), 0);
	}
	mem_free(NULL);
}

static void test_what_was_freed_serves_again_without_the_hosts_memory(void **state)
{
	void *segment = memp_malloc(MEMP_TCP_SEG);
	size_t before;

	(void)state;
	memp_free(MEMP_TCP_SEG, segment);
	if (lwip_frees_n)
		vma_test_skip("under AddressSanitizer nothing is kept");
	before = lwip_allocations_n;
	for (unsigned i = 0; i < 100; i++) {
		segment = memp_malloc(MEMP_TCP_SEG);
		memp_free(MEMP_TCP_SEG, segment);
	}
	assert_int_equal(lwip_allocations_n, before);
}

static void test_no_more_than_half_a_megabyte_of_free_segments_is_kept(void **state)
{
	enum { MANY = (1 << 20) / sizeof(struct tcp_seg) };
	static void *segments[MANY];

	(void)state;
	for (unsigned i = 0; i < MANY; i++)
		segments[i] = memp_malloc(MEMP_TCP_SEG);
	assert_int_equal(lwip_frees_n, 0);
	for (unsigned i = 0; i < MANY; i++)
		memp_free(MEMP_TCP_SEG, segments[i]);
	assert_true((MANY - lwip_frees_n) * sizeof(struct tcp_seg) <= 512 << 10);
}

static void test_without_memory_the_answer_is_none_and_it_is_counted(void **state)
{
	uint64_t before = no_memory_count();

	(void)state;
	allocator_is_exhausted = true;
	assert_null(memp_malloc(MEMP_TCP_PCB));
	assert_null(mem_malloc(50));
	assert_null(mem_malloc(5000));
	assert_int_equal(no_memory_count(), before + 3);
	assert_int_equal(port_memory_in_use(&w.tcp), 0);
	allocator_is_exhausted = false;
	memp_free(MEMP_TCP_PCB, memp_malloc(MEMP_TCP_PCB));
	assert_int_equal(no_memory_count(), before + 3);
}

static void test_a_segment_that_was_freed_is_the_next_one_whatever_was_done_to_it(void **state)
{
	uint8_t bytes[200];
	struct tcp_seg *seg = memory_get_segment_of_bytes(&w.tcp, bytes, 100, 12), *next;
	size_t before;

	(void)state;
	assert_int_equal(port_memory_in_use(&w.tcp), 3);
	pbuf_remove_header(seg->p, 20);
	seg->p->flags = seg->p->next->flags = 7;
	seg->p->next->len = 50;
	seg->next = seg;
	seg->marks = SEG_LOST;
	seg->rate_marks = 1;
	assert_int_equal(memory_segment_free(&w.tcp, seg), MEMORY_SEGMENT_PBUFS);
	assert_int_equal(port_memory_in_use(&w.tcp), 0);
	before = lwip_allocations_n;
	next = memory_get_segment_of_bytes(&w.tcp, bytes + 1, 150, 0);
	assert_int_equal(port_memory_in_use(&w.tcp), 3);
	if (!lwip_frees_n) {
		assert_ptr_equal(next, seg);
		assert_int_equal(lwip_allocations_n, before);
	}
	assert_null(next->next);
	assert_int_equal(next->len, 150);
	assert_int_equal(next->flags | next->marks | next->rate_marks, 0);
	assert_ptr_equal(next->p->payload, next->tcphdr);
	assert_int_equal((uintptr_t)next->tcphdr % 4, 0);
	assert_int_equal(next->p->len, TCP_HLEN);
	assert_int_equal(next->p->tot_len, TCP_HLEN + 150);
	assert_int_equal(next->p->flags | next->p->next->flags, 0);
	assert_ptr_equal(next->p->next->payload, bytes + 1);
	assert_int_equal(next->p->next->len, 150);
	assert_int_equal(next->p->next->tot_len, 150);
	assert_null(next->p->next->next);
	assert_int_equal(pbuf_clen(next->p), MEMORY_SEGMENT_PBUFS);
	memory_segment_free(&w.tcp, next);
}

static void test_segments_kept_whole_serve_in_pieces_when_the_host_has_nothing(void **state)
{
	uint8_t bytes[100];
	struct tcp_seg *segments[2];
	void *pbuf, *header, *segment;

	(void)state;
	for (int i = 0; i < 2; i++)
		segments[i] = memory_get_segment_of_bytes(&w.tcp, bytes, 100, 0);
	for (int i = 0; i < 2; i++)
		memory_segment_free(&w.tcp, segments[i]);
	if (lwip_frees_n)
		vma_test_skip("under AddressSanitizer nothing is kept");
	allocator_is_exhausted = true;
	pbuf = memp_malloc(MEMP_PBUF);
	header = mem_malloc(100);
	segment = memp_malloc(MEMP_TCP_SEG);
	assert_true(pbuf && header && segment);
	assert_int_equal(no_memory_count(), 0);
	segments[0] = memory_get_segment_of_bytes(&w.tcp, bytes, 100, 0);
	assert_non_null(segments[0]);
	assert_null(memory_get_segment_of_bytes(&w.tcp, bytes, 100, 0));
	assert_int_equal(no_memory_count(), 1);
	assert_int_equal(port_memory_in_use(&w.tcp), 6);
	memory_segment_free(&w.tcp, segments[0]);
	memp_free(MEMP_TCP_SEG, segment);
	mem_free(header);
	memp_free(MEMP_PBUF, pbuf);
	assert_int_equal(port_memory_in_use(&w.tcp), 0);
}

static void test_a_stack_without_memory_is_not_made(void **state)
{
	static struct vma_tcp tcp;

	(void)state;
	tcp.host = counting;
	allocator_is_exhausted = true;
	assert_int_equal(port_memory_create(&tcp), -ENOMEM);
	port_memory_destroy(&tcp);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_lwip_with_counting_allocator, teardown)
static const struct CMUnitTest tests[] = {
        TEST(test_many_segments_count_like_bytes),
        TEST(test_every_kind_is_usable_to_its_end),
        TEST(test_header_memory_of_any_size_is_aligned_and_usable),
        TEST(test_what_was_freed_serves_again_without_the_hosts_memory),
        TEST(test_no_more_than_half_a_megabyte_of_free_segments_is_kept),
        TEST(test_without_memory_the_answer_is_none_and_it_is_counted),
        TEST(test_a_segment_that_was_freed_is_the_next_one_whatever_was_done_to_it),
        TEST(test_segments_kept_whole_serve_in_pieces_when_the_host_has_nothing),
        TEST(test_a_stack_without_memory_is_not_made),
};
VMA_TEST_MAIN(tests)
