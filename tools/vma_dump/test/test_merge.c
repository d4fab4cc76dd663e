/* Packets of several processes: their order, how long they are held, and what is learnt of them meanwhile. */
#include <stdlib.h>
#include <string.h>

#include <vma/test.h>

#include "../merge.h"

#define MS UINT64_C(1000000)
#define T0 (UINT64_C(1) << 60)

static struct merge merge;
static struct merge_queue queues[2];

static int setup_merge_of_two_queues(void **state)
{
	(void)state;
	merge = (struct merge){.queues = NULL};
	memset(queues, 0, sizeof(queues));
	merge_add_queue(&merge, &queues[0]);
	merge_add_queue(&merge, &queues[1]);
	return 0;
}

static int teardown_merge(void **state)
{
	struct merge_packet *packet;

	(void)state;
	while ((packet = merge_pop_oldest_packet(&merge, 0, true)) != NULL)
		free(packet);
	assert_int_equal(merge.bytes, 0);
	merge_remove_queue(&merge, &queues[0]);
	merge_remove_queue(&merge, &queues[1]);
	assert_null(merge.queues);
	return 0;
}

static void merge_push_record_of_eth0(unsigned queue, uint8_t kind, uint32_t id, uint64_t time_ns, uint64_t now_ns,
                                      const uint8_t *data, uint16_t len)
{
	struct vma_capture_info info = {.time_ns = T0 + time_ns, .len = len, .captured = len, .id = id, .kind = kind};

	strcpy(info.text, "eth0");
	assert_true(merge_push_record(&merge, &queues[queue], &info, data, now_ns));
}

static void merge_push_zeroed_record(unsigned queue, uint8_t kind, uint32_t id, uint64_t time_ns, uint64_t now_ns)
{
	static const uint8_t data[60];

	merge_push_record_of_eth0(queue, kind, id, time_ns, now_ns, data, sizeof(data));
}

static void merge_push_drop_record(unsigned queue, uint32_t id, const char *reason)
{
	struct vma_capture_info info = {.id = id, .kind = VMA_CAPTURE_DROP};

	strcpy(info.text, reason);
	assert_true(merge_push_record(&merge, &queues[queue], &info, NULL, 0));
}

static void merge_push_moved_record(unsigned queue, uint32_t id, uint32_t to)
{
	const struct vma_capture_info info = {.id = id, .len = to, .kind = VMA_CAPTURE_MOVED};

	assert_true(merge_push_record(&merge, &queues[queue], &info, NULL, 0));
}

/* The next packet is this one, for that reason. */
static void assert_next_packet_has_drop_reason(uint32_t id, const char *reason)
{
	struct merge_packet *packet = merge_pop_oldest_packet(&merge, 0, true);

	assert_non_null(packet);
	assert_int_equal(packet->info.id, id);
	assert_string_equal(packet->reason, reason);
	free(packet);
}

static void assert_merge_pops_packet_id(uint32_t id, uint64_t now_ns)
{
	struct merge_packet *packet = merge_pop_oldest_packet(&merge, now_ns, false);

	assert_non_null(packet);
	assert_int_equal(packet->info.id, id);
	free(packet);
}

/* An IPv4 fragment; id: of its datagram. */
static void merge_push_ip_fragment(uint32_t buffer, uint16_t id, uint16_t offset, uint16_t len, bool more,
                                   uint64_t time_ns)
{
	uint8_t frame[34] = {[12] = 0x08, [14] = 0x45, [23] = 17};
	const uint16_t bits = (uint16_t)(offset / 8 | (more ? 0x2000 : 0)), total = (uint16_t)(20 + len);

	frame[16] = (uint8_t)(total >> 8);
	frame[17] = (uint8_t)total;
	frame[18] = (uint8_t)(id >> 8);
	frame[19] = (uint8_t)id;
	frame[20] = (uint8_t)(bits >> 8);
	frame[21] = (uint8_t)bits;
	merge_push_record_of_eth0(0, VMA_CAPTURE_IN, buffer, time_ns, time_ns, frame, sizeof(frame));
}

static void test_packets_of_two_processes_are_in_the_order_of_their_times(void **state)
{
	(void)state;
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 1, 10, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_OUT, 4, 40, 0);
	merge_push_zeroed_record(1, VMA_CAPTURE_IN, 2, 20, 0);
	merge_push_zeroed_record(1, VMA_CAPTURE_OUT, 3, 30, 0);
	merge_push_zeroed_record(1, VMA_CAPTURE_OUT, 5, 50, 0);
	for (uint32_t id = 1; id <= 5; id++)
		assert_next_packet_has_drop_reason(id, "");
	assert_null(merge_pop_oldest_packet(&merge, 0, true));
}

static void test_a_packet_is_held_for_its_time_and_no_longer(void **state)
{
	(void)state;
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 1, 100, 5 * MS);
	assert_null(merge_pop_oldest_packet(&merge, 5 * MS, false));
	assert_null(merge_pop_oldest_packet(&merge, 5 * MS + MERGE_HOLD_NS - 1, false));
	merge_push_zeroed_record(1, VMA_CAPTURE_IN, 2, 90,
	                         5 * MS + MERGE_HOLD_NS - 1); /* older, read later: it goes first, and is held */
	assert_null(merge_pop_oldest_packet(&merge, 5 * MS + MERGE_HOLD_NS, false));
	assert_merge_pops_packet_id(2, 5 * MS + 2 * MERGE_HOLD_NS);
	assert_merge_pops_packet_id(1, 5 * MS + 2 * MERGE_HOLD_NS);
}

static void test_a_packet_that_is_put_a_little_late_finds_its_place(void **state)
{
	(void)state;
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 1, 10 * MS, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 3, 12 * MS, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_OUT, 2, 11 * MS, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_OUT, 0, 9 * MS, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_OUT, 4, 12 * MS, 0);
	for (uint32_t id = 0; id <= 4; id++)
		assert_next_packet_has_drop_reason(id, "");
}

static void test_a_clock_that_was_set_back_leaves_the_order_of_a_process(void **state)
{
	(void)state;
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 1, 5000 * MS, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 2, 1 * MS, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 3, 2 * MS, 0);
	for (uint32_t id = 1; id <= 3; id++)
		assert_next_packet_has_drop_reason(id, "");
	/* Nor does it hold another process's packets for ever. */
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 4, 5000 * MS, 0);
	merge_push_zeroed_record(1, VMA_CAPTURE_IN, 5, 1 * MS, MERGE_STARVED_NS);
	assert_merge_pops_packet_id(4, MERGE_STARVED_NS + 1);
}

static void test_a_reason_is_of_the_newest_packet_that_came_in_with_the_buffer(void **state)
{
	(void)state;
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 7, 1, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 7, 2, 0); /* the buffer once more */
	merge_push_zeroed_record(0, VMA_CAPTURE_OUT, 7, 3, 0);
	merge_push_zeroed_record(1, VMA_CAPTURE_IN, 7, 4, 0); /* another process's */
	merge_push_drop_record(0, 7, "rx_drop_sink");
	merge_push_drop_record(0, 8, "rx_drop_no_flow"); /* of no packet that is held */
	assert_next_packet_has_drop_reason(7, "");
	assert_next_packet_has_drop_reason(7, "rx_drop_sink");
	assert_next_packet_has_drop_reason(7, "");
	assert_next_packet_has_drop_reason(7, "");
}

static void test_a_reason_finds_a_packet_that_was_copied(void **state)
{
	(void)state;
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 7, 1, 0);
	merge_push_moved_record(0, 7, 900);
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 7, 2, 0); /* the buffer is free for this one */
	merge_push_moved_record(0, 55, 901);                  /* of no packet that is held */
	merge_push_drop_record(0, 900, "rx_drop_sink");
	assert_next_packet_has_drop_reason(900, "rx_drop_sink");
	assert_next_packet_has_drop_reason(7, "");
}

static void test_fragments_are_held_until_the_library_gives_them_up(void **state)
{
	(void)state;
	merge_push_ip_fragment(1, 100, 0, 1480, true, 10 * MS);
	merge_push_zeroed_record(1, VMA_CAPTURE_IN, 2, 11 * MS, 11 * MS);
	assert_null(merge_pop_oldest_packet(&merge, 10 * MS + MERGE_HOLD_FRAGMENT_NS - 1, false));
	merge_push_drop_record(0, 1, "rx_drop_ip_fragment");
	assert_merge_pops_packet_id(1, 10 * MS + MERGE_HOLD_FRAGMENT_NS);
	assert_merge_pops_packet_id(2, 10 * MS + MERGE_HOLD_FRAGMENT_NS);
}

static void test_all_fragments_of_a_dropped_datagram_have_its_reason(void **state)
{
	(void)state;
	merge_push_ip_fragment(1, 100, 0, 1480, true, 1);
	merge_push_ip_fragment(2, 101, 0, 1480, true, 2); /* another datagram */
	merge_push_ip_fragment(3, 100, 2960, 500, false, 3);
	merge_push_ip_fragment(4, 100, 2960, 500, false, 4); /* it comes twice */
	merge_push_drop_record(0, 4, "rx_drop_ip_fragment");
	merge_push_ip_fragment(5, 100, 1480, 1480, true, 5);
	merge_push_drop_record(0, 1, "rx_drop_sink"); /* the whole, under its first buffer */
	assert_next_packet_has_drop_reason(1, "rx_drop_sink");
	assert_next_packet_has_drop_reason(2, "");
	assert_next_packet_has_drop_reason(3, "rx_drop_sink");
	assert_next_packet_has_drop_reason(4, "rx_drop_ip_fragment");
	assert_next_packet_has_drop_reason(5, "rx_drop_sink");
}

static void test_an_earlier_datagram_of_the_same_number_keeps_its_own(void **state)
{
	(void)state;
	merge_push_ip_fragment(1, 100, 0, 1480, true, 1);
	merge_push_ip_fragment(2, 100, 1480, 20, false, 2); /* delivered */
	merge_push_ip_fragment(3, 100, 0, 1480, true, 3);
	merge_push_ip_fragment(4, 100, 1480, 20, false, 4);
	merge_push_drop_record(0, 3, "rx_drop_l4_checksum");
	assert_next_packet_has_drop_reason(1, "");
	assert_next_packet_has_drop_reason(2, "");
	assert_next_packet_has_drop_reason(3, "rx_drop_l4_checksum");
	assert_next_packet_has_drop_reason(4, "rx_drop_l4_checksum");
}

static void test_what_is_held_is_bounded(void **state)
{
	static const uint8_t data[60000];
	uint32_t n = 0;

	(void)state;
	for (; merge.bytes <= MERGE_BYTES_MAX; n++) {
		assert_null(merge_pop_oldest_packet(&merge, 0, false));
		merge_push_record_of_eth0(0, VMA_CAPTURE_IN, n, n, 0, data, sizeof(data));
	}
	assert_true(n > 1000);
	assert_merge_pops_packet_id(0, 0);
	assert_null(merge_pop_oldest_packet(&merge, 0, false));
}

static void test_a_gap_is_told_to_the_packet_behind_it(void **state)
{
	struct merge_packet *packet;

	(void)state;
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 1, 1, 0);
	queues[0].lost = 5;
	queues[0].interrupted = true;
	merge_push_zeroed_record(1, VMA_CAPTURE_IN, 2, 2, 0);
	merge_push_drop_record(0, 1, "rx_drop_sink");
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 3, 3, 0);
	merge_push_zeroed_record(0, VMA_CAPTURE_IN, 4, 4, 0);
	for (uint32_t id = 1; id <= 4; id++) {
		packet = merge_pop_oldest_packet(&merge, 0, true);
		assert_int_equal(packet->info.id, id);
		assert_int_equal(packet->lost, id == 3 ? 5 : 0);
		assert_int_equal(packet->interrupted, id == 3);
		free(packet);
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_merge_of_two_queues, teardown_merge)

static const struct CMUnitTest tests[] = {
        CASE(test_packets_of_two_processes_are_in_the_order_of_their_times),
        CASE(test_a_packet_is_held_for_its_time_and_no_longer),
        CASE(test_a_packet_that_is_put_a_little_late_finds_its_place),
        CASE(test_a_clock_that_was_set_back_leaves_the_order_of_a_process),
        CASE(test_a_reason_is_of_the_newest_packet_that_came_in_with_the_buffer),
        CASE(test_a_reason_finds_a_packet_that_was_copied),
        CASE(test_fragments_are_held_until_the_library_gives_them_up),
        CASE(test_all_fragments_of_a_dropped_datagram_have_its_reason),
        CASE(test_an_earlier_datagram_of_the_same_number_keeps_its_own),
        CASE(test_what_is_held_is_bounded),
        CASE(test_a_gap_is_told_to_the_packet_behind_it),
};

VMA_TEST_MAIN(tests)
