/* A connection between two stacks: how it begins, and data both ways. */
#include "pair.h"

static void test_handshake_makes_a_connection_on_both_sides(void **state)
{
	struct app *client, *server;

	(void)state;
	establish(&client, &server);
	assert_true(take_events(client) & VMA_TCP_CONNECTED);
	assert_true(take_events(server) & VMA_TCP_CONNECTED);
	assert_int_equal(frames_sent(0), 2); /* SYN, ACK */
	assert_int_equal(frames_sent(1), 1); /* SYN-ACK */
	assert_int_equal(ready(client), EPOLLOUT | EPOLLWRNORM);
	app_free(client);
}

static void test_bytes_go_both_ways(void **state)
{
	struct app *client, *server;

	(void)state;
	establish(&client, &server);
	transfer(client, server, 100000, SEC);
	transfer(server, client, 100000, SEC);
	transfer(client, server, 1, SEC);
	app_free(client);
}

static const struct CMUnitTest tests[] = {
        CASE(test_handshake_makes_a_connection_on_both_sides),
        CASE(test_bytes_go_both_ways),
};
VMA_TEST_MAIN(tests)
