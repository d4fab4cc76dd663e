/* Answers for nobody: how many of them there are. */
#include "raw.h"

static unsigned answers_to(unsigned segments)
{
	unsigned answers = 0;

	raw.peer_port = htons(PORT);
	for (unsigned i = 0; i < segments; i++) {
		raw.count = raw.seen = 0;
		raw_send(i, 1, TCP_ACK, "", 0);
		answers += raw.count;
	}
	return answers;
}

static void test_a_flood_of_strays_is_not_answered_by_a_flood_of_resets(void **state)
{
	(void)state;
	listen_on(0);
	assert_int_equal(answers_to(100), 100);
	assert_int_equal(answers_to(1500), 900);
	run(MS);
	assert_int_equal(answers_to(100), 50);
	run(SEC);
	assert_int_equal(answers_to(1500), 1000);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_flood_of_strays_is_not_answered_by_a_flood_of_resets, raw_open,
                                        raw_close),
};
VMA_TEST_MAIN(tests)
