/* Options: defaults, ranges as the kernel's, and that they take effect; TCP_INFO; frames and their sums. */
#include "../tx/copy_sum.h"
#include "raw.h"

static void test_options_begin_as_the_kernels(void **state)
{
	struct vma_tcp_options options;

	(void)state;
	memset(&options, 0xff, sizeof(options));
	vma_tcp_options_init(&options);
	assert_int_equal(options.nodelay, 0);
	assert_int_equal(options.keepidle_sec, 7200);
	assert_int_equal(options.keepcnt, 9);
	assert_int_equal(options.ttl, 64);
	assert_int_equal(options.congestion, VMA_TCP_CC_CUBIC);
	assert_int_equal(options.notsent_lowat, -1);
}

static void test_values_out_of_range_are_refused_or_brought_into_it(void **state)
{
	static const struct {
		enum vma_tcp_option option;
		int32_t value, rc, becomes;
	} cases[] = {
	        {VMA_TCP_OPT_KEEPIDLE, 0, -EINVAL, 7200},
	        {VMA_TCP_OPT_KEEPIDLE, 32768, -EINVAL, 7200},
	        {VMA_TCP_OPT_KEEPIDLE, 5, 0, 5},
	        {VMA_TCP_OPT_KEEPCNT, 128, -EINVAL, 9},
	        {VMA_TCP_OPT_SYNCNT, 0, -EINVAL, 6},
	        {VMA_TCP_OPT_USER_TIMEOUT, -1, -EINVAL, 0},
	        {VMA_TCP_OPT_MAXSEG, 87, -EINVAL, 0},
	        {VMA_TCP_OPT_MAXSEG, 88, 0, 88},
	        {VMA_TCP_OPT_MAXSEG, 40000, -EINVAL, 88},
	        {VMA_TCP_OPT_LINGER2, -7, 0, -1},
	        {VMA_TCP_OPT_LINGER2, 500, 0, 120},
	        {VMA_TCP_OPT_NODELAY, 17, 0, 1},
	        {VMA_TCP_OPT_TTL, 0, -EINVAL, 64},
	        {VMA_TCP_OPT_CONGESTION, 4, -EINVAL, VMA_TCP_CC_CUBIC},
	        {VMA_TCP_OPT_CONGESTION, VMA_TCP_CC_LWIP, 0, VMA_TCP_CC_LWIP},
	};
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		assert_int_equal(vma_tcp_set_option(app->conn, cases[i].option, cases[i].value), cases[i].rc);
		assert_int_equal(vma_tcp_get_option(app->conn, cases[i].option), cases[i].becomes);
	}
	assert_int_equal(vma_tcp_set_option(app->conn, VMA_TCP_OPT_COUNT, 1), -EINVAL);
	app_free(app);
}

static void test_maxseg_is_told_and_kept(void **state)
{
	struct app *app;
	const struct raw_segment *s;

	(void)state;
	side[0].options.maxseg = 500;
	app = stack_sends_syn_to_raw_peer();
	s = raw_next_segment();
	assert_int_equal(s->options[2] << 8 | s->options[3], 500);
	app_free(app);
	raw_mark_all_segments_seen();
	app = stack_connects_to_raw_peer();
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	assert_int_equal(raw_next_segment()->len, 500);
	app_free(app);
}

static void check_no_timestamps_sent_or_taken(struct app *app)
{
	raw_mark_all_segments_seen();
	fixture_send_bytes(app, 1000);
	fixture_run_until_idle();
	assert_int_equal(raw_last_segment()->options_len, 0);
	fixture_run_for_ns(100 * MS);
	raw_send_segment(1, 1001, TCP_ACK, "", 0); /* with a stamp from long ago */
	assert_false(side[0].tcp->ack.has_ts);
	app_free(app);
}

static void test_stack_without_time_stamps_offers_none(void **state)
{
	struct app *app;
	const struct raw_segment *s;

	(void)state;
	side[0].tcp->attr.no_timestamps = true;
	raw.ts = 1000;
	app = stack_connects_to_raw_peer(); /* the peer answers with some all the same */
	s = &raw.log[0];
	assert_int_equal(s->options_len, 4 + 4 + 4);
	assert_int_equal(s->options[5], 3);
	assert_int_equal(s->options[10], 4);
	check_no_timestamps_sent_or_taken(app);
}

/* The peer speaks of both all the same. */
static void test_stack_without_sack_and_scaling_offers_and_takes_none(void **state)
{
	struct app *app;

	(void)state;
	side[0].tcp->attr.no_sack = side[0].tcp->attr.no_window_scaling = true;
	side[0].options.rcvbuf = 1 << 20;
	app = stack_connects_to_raw_peer_with_sack();
	assert_int_equal(raw.log[0].options_len, 4 + 12);
	assert_int_equal(raw.log[0].options[5 + 1], 8);
	assert_false(app->conn->pcb->flags & TF_SACK);
	raw.window = 3000;
	raw_send_bytes(1, 1, 1000);
	assert_int_equal(raw_next_segment()->window, 65535); /* not of units of 128 */
	assert_int_equal(app->conn->pcb->snd_wnd, 3000);
	raw_send_bytes(2001, 1, 1000);
	assert_int_equal(raw_last_segment()->options_len, 0);
	app_free(app);
}

static void test_listener_without_sack_and_scaling_agrees_to_none(void **state)
{
	const uint8_t options[12] = {2, 4, 1000 >> 8, 1000 & 255, 1, 3, 3, 7, 1, 1, 4, 2};

	(void)state;
	side[0].tcp->attr.no_sack = side[0].tcp->attr.no_window_scaling = true;
	fixture_listen_on(0);
	raw.peer_port = htons(PORT);
	raw_send_segment_with_options(0, 0, TCP_SYN, options, 12, 0, "", 0);
	assert_int_equal(raw_next_segment()->options_len, 4);
	raw.window = 3000;
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_false(fixture_last_accepted()->conn->pcb->flags & TF_SACK);
	raw_send_bytes(1, 1, 10);
	assert_int_equal(fixture_last_accepted()->conn->pcb->snd_wnd, 3000);
}

static void test_stack_without_time_stamps_takes_none_from_a_crossing_syn(void **state)
{
	struct app *app;

	(void)state;
	side[0].tcp->attr.no_timestamps = true;
	raw.ts = 1000;
	app = stack_sends_syn_to_raw_peer();
	raw_send_segment(0, 0, TCP_SYN, "", 0);
	raw_send_segment(1, 1, TCP_ACK, "", 0);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	check_no_timestamps_sent_or_taken(app);
}

static void test_keepalive_finds_out_that_the_peer_has_gone(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_KEEPIDLE, 10);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_KEEPINTVL, 2);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_KEEPCNT, 3);
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_KEEPALIVE, 1);
	fixture_run_for_ns(9 * SEC);
	assert_int_equal(raw_unseen_count(), 0);
	fixture_run_for_ns(8 * SEC);
	assert_int_equal(vma_tcp_error(app->conn), ETIMEDOUT);
	assert_int_equal(raw_unseen_count(), 4); /* three probes, and a RST */
	assert_true(raw_last_segment()->flags & TCP_RST);
	app_free(app);
}

static void test_user_timeout_ends_a_connection_without_answers(void **state)
{
	struct app *app = stack_connects_to_raw_peer();

	(void)state;
	vma_tcp_set_option(app->conn, VMA_TCP_OPT_USER_TIMEOUT, 3000);
	fixture_send_bytes(app, 10);
	fixture_run_for_ns(2 * SEC);
	assert_int_equal(vma_tcp_state(app->conn), TCP_ESTABLISHED);
	fixture_run_for_ns(4 * SEC);
	assert_int_equal(vma_tcp_error(app->conn), ETIMEDOUT);
	app_free(app);
}

static void test_info_says_what_the_connection_is_like(void **state)
{
	struct vma_wire_faults far = {.delay_ns = 5 * MS}, none = {0};
	struct app *client, *server;
	struct vma_tcp_info info;
	uint32_t sent;

	(void)state;
	fixture_set_wire_faults(0, far);
	fixture_set_wire_faults(1, far);
	fixture_listen_on(1);
	client = fixture_connect_from(0, 1000);
	fixture_run_for_ns(50 * MS);
	server = fixture_last_accepted();
	fixture_transfer_and_check_bytes(client, server, 100000, SEC);
	fixture_run_for_ns(100 * MS);
	vma_tcp_info(client->conn, &info);
	assert_int_equal(info.kernel.tcpi_state, TCP_ESTABLISHED);
	assert_int_equal(info.kernel.tcpi_ca_state, TCP_CA_Open);
	assert_int_equal(info.kernel.tcpi_snd_mss, 1448);
	assert_int_equal(info.kernel.tcpi_advmss, 1448);
	assert_int_equal(info.kernel.tcpi_pmtu, 1500);
	assert_in_range(info.kernel.tcpi_rtt, 9000, 60000);
	assert_true(info.kernel.tcpi_snd_cwnd > 10);
	assert_int_equal(info.kernel.tcpi_unacked, 0);
	assert_int_equal(info.kernel.tcpi_options, TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE);
	assert_int_equal(info.kernel.tcpi_snd_wscale, 7);
	assert_in_range(info.kernel.tcpi_last_data_sent, 50, 1000);
	assert_int_equal(info.bytes_acked, 100001); /* with the SYN */
	assert_int_equal(info.bytes_sent, 100000);
	assert_int_equal(info.bytes_retrans, 0);
	assert_in_range(info.data_segs_out, 100000 / 1448 + 1, 200);
	assert_int_equal(info.delivered, info.data_segs_out + 1);
	assert_in_range(info.min_rtt_us, 9000, 60000);
	sent = info.data_segs_out;
	vma_tcp_info(server->conn, &info);
	assert_int_equal(info.bytes_received, 100000);
	assert_int_equal(info.bytes_acked, 0); /* its SYN was the listener's */
	assert_int_equal(info.data_segs_in, sent);
	assert_true(info.rcv_wnd > 10000);
	assert_int_equal(info.kernel.tcpi_rcv_mss, 1448);
	assert_in_range(info.kernel.tcpi_rcv_rtt, 9000, 60000);
	fixture_set_wire_faults(0, none);
	fixture_set_wire_faults(1, none);
	app_free(client);
}

/* Against the plain sum, at all offsets and lengths, in up to three pieces of any length. */
static void test_copied_bytes_are_summed_right(void **state)
{
	uint8_t from[512], to[512];

	(void)state;
	for (unsigned i = 0; i < sizeof(from); i++)
		from[i] = (uint8_t)(i * 167 + (i >> 3));
	for (unsigned len = 0; len < 300; len++) {
		for (unsigned cut = 0; cut <= len; cut += 1 + len / 7) {
			struct copy_sum sum = {0};
			unsigned second = cut + (len - cut) / 3, off = len % 9;

			memset(to, 0, sizeof(to));
			copy_and_add_to_checksum(&sum, to, from + off, cut);
			copy_and_add_to_checksum(&sum, to + cut, from + off + cut, second - cut);
			copy_and_add_to_checksum(&sum, to + second, from + off + second, len - second);
			assert_memory_equal(to, from + off, len);
			assert_int_equal(to[len], 0);
			assert_int_equal(vma_csum_fold(sum.sum) % 0xffff,
			                 vma_csum_fold(vma_csum_add(0, from + off, len)) % 0xffff);
		}
	}
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_begin_as_the_kernels),
        RAW_CASE(test_values_out_of_range_are_refused_or_brought_into_it),
        RAW_CASE(test_maxseg_is_told_and_kept),
        RAW_CASE(test_stack_without_time_stamps_offers_none),
        RAW_CASE(test_stack_without_time_stamps_takes_none_from_a_crossing_syn),
        RAW_CASE(test_stack_without_sack_and_scaling_offers_and_takes_none),
        RAW_CASE(test_listener_without_sack_and_scaling_agrees_to_none),
        RAW_CASE(test_keepalive_finds_out_that_the_peer_has_gone),
        RAW_CASE(test_user_timeout_ends_a_connection_without_answers),
        CASE(test_info_says_what_the_connection_is_like),
        cmocka_unit_test(test_copied_bytes_are_summed_right),
};
VMA_TEST_MAIN(tests)
