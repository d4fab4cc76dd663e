/* The table of vmad's answers, of numbers that no vmad has, too. */
#include <stdlib.h>
#include <string.h>

#include <vma/test.h>

#include "../vmad_state.h"

static char *print_state(const struct vma_vmad_state *state)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	vmad_state_print(state, "eth0", out);
	fclose(out);
	return text;
}

static void test_each_queue_pair_has_its_clients_pid(void **state)
{
	static struct vma_vmad_state seen = {
	        .interface = {.queues = 2, .mtu = 1500, .queue_pairs = 3, .flows = 4, .minisocks_parked = 5},
	        .clients = 2,
	        .client = {{.pid = 100, .uid = 0, .state = 3, .queue_pairs = 5}, {.pid = 200, .uid = 1000, .state = 2}},
	        .queue_pairs = 2,
	        .queue_pair = {{.number = 2, .state = 1, .flows = 4, .rx_held = 17}, {.number = 3, .state = 3}},
	};
	char *text = print_state(&seen);

	(void)state;
	assert_non_null(strstr(text, "interface eth0: 2 device queues, MTU 1500\n"));
	assert_non_null(strstr(text, "queue pairs 3; flows 4;"));
	assert_non_null(strstr(text, " parked 5;"));
	assert_non_null(strstr(text, "\n0      100        0          ready    0,2\n"));
	assert_non_null(strstr(text, "\n1      200        1000       waiting  -\n"));
	assert_non_null(strstr(text, "\n2          100        rented   4      0       0      0       17     0"));
	assert_non_null(strstr(text, "\n3          0          draining 0 "));
	free(text);
}

static void test_absurd_answers_are_printed_and_harmless(void **state)
{
	static struct vma_vmad_state seen;
	char *text;

	(void)state;
	memset(&seen, 0xff, sizeof(seen));
	seen.clients = seen.queue_pairs = 1;
	text = print_state(&seen);
	assert_non_null(strstr(text, " ? "));
	free(text);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_queue_pair_has_its_clients_pid),
        cmocka_unit_test(test_absurd_answers_are_printed_and_harmless),
};

VMA_TEST_MAIN(tests)
