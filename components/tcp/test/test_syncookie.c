/* Requests beyond the backlog are answered by a cookie: what it remembers, whom it lets in, what it costs. */
#include "raw.h"
#include "../lwip/port.h"
#include "../syncookie.h"

static const uint8_t secret[16] = {1, 2, 3};

static struct syncookie_tuple syncookie_tuple_of_test(void)
{
	return (struct syncookie_tuple){.addresses = {10, 0, 0, 1, 10, 0, 0, 2}, .ports = {1, 2, 3, 4}, .isn = 77};
}

/* ---- the number ---- */

static void test_cookie_brings_back_the_largest_size_that_fits(void **state)
{
	static const uint16_t snd_max[] = {48, 64, 536, 1219, 1448, 1460, 8959, 8960, 65535};
	static const uint16_t back[] = {64, 64, 536, 536, 1440, 1460, 1460, 8960, 8960};
	struct syncookie_tuple names = syncookie_tuple_of_test();

	(void)state;
	for (unsigned i = 0; i < sizeof(snd_max) / sizeof(snd_max[0]); i++)
		assert_int_equal(syncookie_check(secret, &names, syncookie_make(secret, &names, snd_max[i], SEC), SEC),
		                 back[i]);
}

static void test_cookie_is_good_for_a_minute_at_least_and_two_at_most(void **state)
{
	struct syncookie_tuple names = syncookie_tuple_of_test();

	(void)state;
	for (uint64_t at = 0; at < 4000 * SEC; at += 13 * SEC) { /* over the wrap of its time, too */
		uint32_t cookie = syncookie_make(secret, &names, 1460, at);

		assert_int_equal(syncookie_check(secret, &names, cookie, at + 64 * SEC), 1460);
		assert_int_equal(syncookie_check(secret, &names, cookie, at + 128 * SEC), 0);
	}
}

static void test_cookie_of_another_is_none(void **state)
{
	struct syncookie_tuple names = syncookie_tuple_of_test(), other;
	uint32_t cookie = syncookie_make(secret, &names, 1460, SEC), good = 0;
	const uint8_t another[16] = {9};

	(void)state;
	other = names;
	other.addresses[3]++;
	assert_int_equal(syncookie_check(secret, &other, cookie, SEC), 0);
	other = names;
	other.ports[0]++;
	assert_int_equal(syncookie_check(secret, &other, cookie, SEC), 0);
	other = names;
	other.isn++;
	assert_int_equal(syncookie_check(secret, &other, cookie, SEC), 0);
	assert_int_equal(syncookie_check(another, &names, cookie, SEC), 0);
	for (uint32_t i = 1; i < 100000; i++) /* guessing */
		good += syncookie_check(secret, &names, cookie + i * 2654435761u, SEC) != 0;
	assert_true(good <= 1);
}

/* ---- the listener ---- */

static unsigned count_open_connections(void)
{
	unsigned n = 0;

	for (const struct vma_tcp_conn *conn = side[0].tcp->all; conn != NULL; conn = conn->next_all)
		n++;
	return n;
}

/* Its backlog is taken by requests that nobody completes. */
static void fixture_open_with_full_backlog(void)
{
	fixture_listen_with(0, &side[0].options, 4);
	for (uint16_t i = 1; i <= 4; i++) {
		raw.port = (uint16_t)(RAW_PORT + i);
		raw_send_syn_to_listener(0);
	}
	raw.port = RAW_PORT;
	raw_mark_all_segments_seen();
}

static void test_client_gets_in_during_a_flood(void **state)
{
	const struct raw_segment *s;

	(void)state;
	fixture_open_with_full_backlog();
	raw_send_syn_to_listener(0);
	s = raw_next_segment();
	assert_int_equal(s->flags, TCP_SYN | TCP_ACK);
	assert_int_equal(s->ack, 1);
	assert_int_equal(s->options_len, 4);
	assert_int_equal(s->options[2] << 8 | s->options[3], 1460);
	assert_int_equal(count_open_connections(), 4); /* nothing is kept of it */
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
	assert_int_equal(raw_unseen_count(), 0); /* its SYN-ACK is not said again */
	raw_send_bytes(1, 1, 100);
	assert_int_equal(read_bytes(fixture_last_accepted(), 1000), 100);
	raw_mark_all_segments_seen();
	assert_int_equal(fixture_send_bytes(fixture_last_accepted(), 3000), 3000);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->len, 536); /* the largest that is known to fit into 1000 */
	assert_int_equal(fixture_stack_counts(0).cookies_sent, 1);
	assert_int_equal(fixture_stack_counts(0).cookies_received, 1);
}

static void test_data_brings_the_cookie_when_the_ack_was_lost(void **state)
{
	(void)state;
	fixture_open_with_full_backlog();
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_bytes(1, 1, 10);
	assert_int_equal(fixture_accepted_count, 1);
	assert_int_equal(read_bytes(fixture_last_accepted(), 100), 10);
}

/* A flood has taken the ACK and the first data: what comes behind them is no reason for a reset yet. */
static void test_segments_behind_the_one_with_the_cookie_may_come_first(void **state)
{
	(void)state;
	fixture_open_with_full_backlog();
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_bytes(11, 1, 10);
	raw_send_bytes(21, 1, 10);
	assert_int_equal(raw_unseen_count(), 0);
	raw_send_bytes(1, 1, 10);
	raw_send_bytes(11, 1, 20);
	assert_int_equal(fixture_accepted_count, 1);
	assert_int_equal(read_bytes(fixture_last_accepted(), 100), 30);
}

static void test_wrong_or_old_cookie_is_reset_when_it_comes_again(void **state)
{
	(void)state;
	fixture_open_with_full_backlog();
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_segment(1, 2, TCP_ACK, "", 0);
	fixture_run_for_ns(200 * MS);
	raw_mark_all_segments_seen();
	raw_send_segment(1, 2, TCP_ACK, "", 0);
	assert_int_equal(raw_next_segment()->flags, TCP_RST);
	raw_send_segment(2, 1, TCP_ACK, "", 0);
	assert_int_equal(raw_next_segment()->flags, TCP_RST);
	fixture_run_for_ns(129 * SEC);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(raw_next_segment()->flags, TCP_RST);
	assert_int_equal(fixture_accepted_count, 0);
}

/* MSS, SACK, time stamps, scaling by 9. */
static void send_syn_with_all_options(void)
{
	uint8_t options[20] = {2, 4, 1460 >> 8, 1460 & 255, 4, 2, 8, 10, 0, 0, 0, 5, 0, 0, 0, 0, 1, 3, 3, 9};

	raw.peer_port = htons(PORT);
	raw_send_segment_with_options(0, 0, TCP_SYN, options, sizeof(options), 0, "", 0);
}

static void test_time_stamps_bring_back_scaling_and_sack(void **state)
{
	const struct raw_segment *s;
	struct vma_tcp_info info;
	uint32_t stamp;

	(void)state;
	fixture_open_with_full_backlog();
	send_syn_with_all_options();
	s = raw_next_segment();
	assert_int_equal(s->options_len, 20);
	assert_int_equal(s->options[4], 4); /* SACK */
	assert_int_equal(s->options[6], 8);
	assert_int_equal(raw_load_be32(s->options + 12), 5);
	assert_int_equal(s->options[17], 3);
	assert_int_equal(s->options[19], 7);
	stamp = raw_load_be32(s->options + 8);
	assert_true((int32_t)(port_clock_ms(side[0].tcp) - stamp) >= 0);
	assert_true((int32_t)(port_clock_ms(side[0].tcp) - stamp) < 64);
	raw.ts = 6;
	raw.ts_ecr = stamp;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
	vma_tcp_info(fixture_last_accepted()->conn, &info);
	assert_int_equal(info.kernel.tcpi_options & 7, TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE);
	assert_int_equal(info.kernel.tcpi_snd_wscale, 9);
	assert_int_equal(info.kernel.tcpi_snd_mss, 1448);
	raw_send_bytes(1, 1, 100);
	assert_int_equal(read_bytes(fixture_last_accepted(), 1000), 100);
}

static bool ring_has_flow_of_peer(void)
{
	struct vma_flow_key key = {
	        .family = AF_INET, .proto = IPPROTO_TCP, .local_port_be = htons(PORT), .peer_port_be = htons(RAW_PORT)};

	memcpy(key.local, side[0].ip, 16);
	memcpy(key.peer, side[1].ip, 16);
	return vma_ring_find_first_flow_of_key(side[0].ring, &key) != NULL;
}

/* Its rule at the device would go with it, before the cookie is back, and the owner of the device resets what comes. */
static void test_a_connection_of_before_stays_until_the_cookie_is_back(void **state)
{
	struct app *server;

	(void)state;
	fixture_listen_with(0, &side[0].options, 4);
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	server = fixture_last_accepted();
	vma_tcp_close(server->conn, false);
	fixture_run_until_idle();
	raw_next_segment();
	raw_send_segment(1, 2, TCP_FIN | TCP_ACK, "", 0);
	assert_int_equal(fixture_stack_counts(0).time_waits, 1);
	for (uint16_t i = 1; i <= 4; i++) {
		raw.port = (uint16_t)(RAW_PORT + i);
		raw_send_syn_to_listener(0);
	}
	raw.port = RAW_PORT;
	raw_mark_all_segments_seen();
	raw_send_syn_to_listener(1000);
	assert_int_equal(raw_next_segment()->flags, TCP_SYN | TCP_ACK);
	assert_int_equal(fixture_stack_counts(0).cookies_sent, 1);
	assert_true(ring_has_flow_of_peer());
	raw_send_segment(1001, 5, TCP_ACK, "", 0); /* no cookie */
	assert_int_equal(raw_next_segment()->flags, TCP_ACK);
	assert_int_equal(fixture_accepted_count, 1);
	raw_send_segment(1001, 1, TCP_ACK, (uint8_t[]){fixture_pattern_byte_at(0)}, 1);
	assert_int_equal(fixture_accepted_count, 2);
	assert_int_equal(fixture_stack_counts(0).cookies_received, 1);
	assert_true(ring_has_flow_of_peer());
	assert_int_equal(read_bytes(fixture_last_accepted(), 100), 1);
}

static void test_full_queue_of_the_owner_takes_the_cookie_later(void **state)
{
	(void)state;
	fixture_open_with_full_backlog();
	raw_send_syn_to_listener(0);
	raw_next_segment();
	fixture_listener_admits = false;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(raw_unseen_count(), 0);
	assert_int_equal(fixture_accepted_count, 0);
	fixture_listener_admits = true;
	raw_send_bytes(1, 1, 10);
	assert_int_equal(fixture_accepted_count, 1);
}

static void test_no_cookie_is_sent_or_taken_where_there_are_to_be_none(void **state)
{
	(void)state;
	side[0].options.syncookies = 0;
	fixture_open_with_full_backlog();
	raw_send_syn_to_listener(0);
	assert_int_equal(raw_unseen_count(), 0);
	assert_int_equal(fixture_stack_counts(0).syns_dropped, 1);
}

static void test_cookies_always_if_so_requested(void **state)
{
	(void)state;
	side[0].options.syncookies = 2;
	fixture_listen_with(0, &side[0].options, 4);
	raw_send_syn_to_listener(0);
	raw_next_segment();
	assert_int_equal(count_open_connections(), 0);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
}

static void test_flood_takes_no_memory(void **state)
{
	(void)state;
	fixture_open_with_full_backlog();
	for (uint32_t i = 0; i < 20000; i++) {
		raw.port = (uint16_t)(20000 + i % 40000);
		raw_send_syn_to_listener(0);
	}
	assert_int_equal(count_open_connections(), 4);
	assert_int_equal(fixture_stack_counts(0).cookies_sent, 20000);
	raw.port = RAW_PORT;
	raw_mark_all_segments_seen();
	raw_send_syn_to_listener(0);
	raw_next_segment();
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(fixture_accepted_count, 1);
}

/* Out of memory, the peer asks or says its data again. */
static void test_cookie_without_memory_is_as_good_as_lost(void **state)
{
	(void)state;
	fixture_open_with_full_backlog();
	raw_send_syn_to_listener(0);
	raw_next_segment();
	fixture_alloc_fails = true;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	fixture_alloc_fails = false;
	assert_int_equal(fixture_accepted_count, 0);
	raw_send_bytes(1, 1, 10);
	assert_int_equal(fixture_accepted_count, 1);
	assert_int_equal(read_bytes(fixture_last_accepted(), 100), 10);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cookie_brings_back_the_largest_size_that_fits),
        cmocka_unit_test(test_cookie_is_good_for_a_minute_at_least_and_two_at_most),
        cmocka_unit_test(test_cookie_of_another_is_none),
        RAW_CASE(test_client_gets_in_during_a_flood),
        RAW_CASE(test_data_brings_the_cookie_when_the_ack_was_lost),
        RAW_CASE(test_segments_behind_the_one_with_the_cookie_may_come_first),
        RAW_CASE(test_wrong_or_old_cookie_is_reset_when_it_comes_again),
        RAW_CASE(test_time_stamps_bring_back_scaling_and_sack),
        RAW_CASE(test_a_connection_of_before_stays_until_the_cookie_is_back),
        RAW_CASE(test_full_queue_of_the_owner_takes_the_cookie_later),
        RAW_CASE(test_no_cookie_is_sent_or_taken_where_there_are_to_be_none),
        RAW_CASE(test_cookies_always_if_so_requested),
        RAW_CASE(test_flood_takes_no_memory),
        RAW_CASE(test_cookie_without_memory_is_as_good_as_lost),
};
VMA_TEST_MAIN(tests)
