/* The flow table against a plain list of what was inserted. */
#include <netinet/in.h>

#include <vma/test.h>

#include "../flow_table.h"
#include "frames.h"

enum { FLOWS = 5000 };

static struct vma_flow flows[FLOWS];

static void set_flow_key_by_index(struct vma_flow *flow, uint32_t i)
{
	const uint8_t local[4] = {10, 0, (uint8_t)(i >> 8), (uint8_t)i};

	memset(flow, 0, sizeof(*flow));
	flow->key = flow_key(IPPROTO_UDP, local, (uint16_t)(1 + i % 3), (uint16_t)(i % 2 ? 1000 + i : 0));
}

static struct vma_flow *flow_table_first_flow_of_key(const struct flow_table *table, const struct vma_flow_key *key)
{
	struct flow_words words = flow_words_of(key);
	struct flow_entry *entry = flow_table_find(table, &words);

	return entry == NULL ? NULL : entry->head;
}

static void test_word_of_a_packet_equals_word_of_a_key(void **state)
{
	struct vma_flow_key key = flow_key(IPPROTO_TCP, frame_dst_ip, 80, 40000);

	(void)state;
	key.vlan = 9;
	assert_int_equal(flow_words_of(&key).w[0],
	                 flow_word0(AF_INET, IPPROTO_TCP, 9, key.local_port_be, key.peer_port_be));
}

static void test_flows_come_and_go_in_any_order(void **state)
{
	static bool there[FLOWS];
	struct flow_table table;
	struct flow_entry *entry;
	uint32_t random = 12345, used = 0;

	(void)state;
	assert_int_equal(flow_table_init(&table), 0);
	memset(there, 0, sizeof(there));
	for (uint32_t i = 0; i < FLOWS; i++)
		set_flow_key_by_index(&flows[i], i);
	for (int step = 0; step < 60000; step++) {
		uint32_t i = (random = random * 1664525 + 1013904223) % FLOWS;

		if (there[i]) {
			assert_true(flow_table_remove(&table, &flows[i]));
			used--;
		} else {
			assert_int_equal(flow_table_insert(&table, &flows[i], &entry), 0);
			assert_ptr_equal(entry->head, &flows[i]);
			used++;
		}
		there[i] = !there[i];
		assert_int_equal(table.used, used);
		if (step % 10000 == 0) {
			for (uint32_t j = 0; j < FLOWS; j++)
				assert_ptr_equal(flow_table_first_flow_of_key(&table, &flows[j].key),
				                 there[j] ? &flows[j] : NULL);
		}
	}
	flow_table_fini(&table);
}

static void test_members_of_a_key_stay_in_order_of_attachment(void **state)
{
	struct vma_flow member[3];
	struct flow_table table;
	struct flow_entry *entry;

	(void)state;
	assert_int_equal(flow_table_init(&table), 0);
	for (int i = 0; i < 3; i++) {
		set_flow_key_by_index(&member[i], 1);
		assert_int_equal(flow_table_insert(&table, &member[i], &entry), 0);
		assert_ptr_equal(entry->head, &member[0]);
	}
	assert_ptr_equal(member[0].next, &member[1]);
	assert_ptr_equal(member[1].next, &member[2]);
	assert_false(flow_table_remove(&table, &member[0]));
	assert_ptr_equal(flow_table_first_flow_of_key(&table, &member[1].key), &member[1]);
	assert_false(flow_table_remove(&table, &member[2]));
	assert_null(member[1].next);
	assert_true(flow_table_remove(&table, &member[1]));
	assert_int_equal(table.used, 0);
	flow_table_fini(&table);
}

/* The cost of a lookup, counted in probes, does not grow with the number of flows. */
static void test_mean_probe_length_stays_short(void **state)
{
	static const uint32_t sizes[] = {10, 100, 1000, FLOWS};

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct flow_table table;
		struct flow_entry *entry;
		uint64_t probes = 0;

		assert_int_equal(flow_table_init(&table), 0);
		for (uint32_t i = 0; i < sizes[s]; i++) {
			set_flow_key_by_index(&flows[i], i);
			assert_int_equal(flow_table_insert(&table, &flows[i], &entry), 0);
		}
		for (uint32_t i = 0; i <= table.mask; i++) {
			if (table.entries[i].head != NULL)
				probes += 1 + ((i - table.entries[i].hash) & table.mask);
		}
		assert_true(probes <= sizes[s] * 2);
		flow_table_fini(&table);
	}
}

static void test_two_tables_hash_the_same_key_differently(void **state)
{
	struct vma_flow_key key = flow_key(IPPROTO_UDP, frame_dst_ip, 80, 40000);
	struct flow_words words = flow_words_of(&key);
	struct flow_table a, b;

	(void)state;
	assert_int_equal(flow_table_init(&a), 0);
	assert_int_equal(flow_table_init(&b), 0);
	assert_int_not_equal(flow_hash(&a, &words), flow_hash(&b, &words));
	flow_table_fini(&a);
	flow_table_fini(&b);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_word_of_a_packet_equals_word_of_a_key),
        cmocka_unit_test(test_flows_come_and_go_in_any_order),
        cmocka_unit_test(test_members_of_a_key_stay_in_order_of_attachment),
        cmocka_unit_test(test_mean_probe_length_stays_short),
        cmocka_unit_test(test_two_tables_hash_the_same_key_differently),
};
VMA_TEST_MAIN(tests)
