/* ICMP messages find their connection by the packet that they quote. */
#include "raw.h"

/* About a segment that side 0 has sent from LOCAL_PORT to the raw peer: a header, the quote, the next hop's mtu. */
static size_t icmp_message_about_segment(const struct app *app, uint8_t *bytes, uint8_t code, uint16_t mtu,
                                         uint32_t seq)
{
	struct vma_flow_key key;
	uint32_t seq_be = htonl(seq);

	vma_tcp_conn_key(app->conn, &key);
	memset(bytes, 0, 36);
	bytes[0] = 3;
	bytes[1] = code;
	bytes[6] = (uint8_t)(mtu >> 8);
	bytes[7] = (uint8_t)mtu;
	bytes[8] = 0x45;
	bytes[17] = IPPROTO_TCP;
	memcpy(bytes + 20, key.local, 4);
	memcpy(bytes + 24, key.peer, 4);
	memcpy(bytes + 28, &key.local_port_be, 2);
	memcpy(bytes + 30, &key.peer_port_be, 2);
	memcpy(bytes + 32, &seq_be, 4);
	return 36;
}

static void test_unreachable_ends_the_attempt_that_it_quotes(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	uint8_t bytes[64];
	size_t len = icmp_message_about_segment(app, bytes, 1, 0, raw.their_isn);

	(void)state;
	assert_true(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, len));
	fixture_run_until_idle();
	assert_int_equal(vma_tcp_error(app->conn), EHOSTUNREACH);
	app_free(app);
}

static void test_smaller_mtu_cuts_segments(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint8_t bytes[64];
	size_t len;

	(void)state;
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	raw_mark_all_segments_seen();
	len = icmp_message_about_segment(app, bytes, 4, 700, raw.their_isn + 1);
	assert_true(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, len));
	fixture_run_until_idle();
	assert_true(raw_unseen_count() > 0);
	while (raw_unseen_count() > 0)
		assert_true(raw_next_segment()->len <= 660);
	app_free(app);
}

static void test_what_quotes_no_connection_is_nobodys(void **state)
{
	struct app *app = stack_sends_syn_to_raw_peer();
	uint8_t bytes[64];
	const size_t len = icmp_message_about_segment(app, bytes, 1, 0, raw.their_isn);

	(void)state;
	for (size_t shorter = 0; shorter < len; shorter++)
		assert_false(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, shorter));
	assert_false(vma_tcp_icmp_packet(side[0].tcp, 5, bytes, len)); /* of another VLAN */
	assert_false(vma_tcp_icmp_packet(side[1].tcp, 0, bytes, len));
	bytes[8] = 0x46; /* options, for which there is no room */
	assert_false(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, len));
	bytes[8] = 0x44;
	assert_false(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, len));
	bytes[8] = 0x65;
	assert_false(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, len));
	bytes[8] = 0x45;
	bytes[17] = IPPROTO_UDP;
	assert_false(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, len));
	bytes[17] = IPPROTO_TCP;
	bytes[15] = 1; /* a later fragment has no TCP header */
	assert_false(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, len));
	bytes[15] = 0;
	bytes[28] ^= 1; /* another port */
	assert_false(vma_tcp_icmp_packet(side[0].tcp, 0, bytes, len));
	fixture_run_until_idle();
	assert_int_equal(vma_tcp_error(app->conn), 0);
	app_free(app);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        RAW_CASE(test_unreachable_ends_the_attempt_that_it_quotes),
	        RAW_CASE(test_smaller_mtu_cuts_segments),
	        RAW_CASE(test_what_quotes_no_connection_is_nobodys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
