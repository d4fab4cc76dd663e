/* Urgent data, as the kernel has it: MSG_OOB on both sides, the mark, and reading around it. */
#include "raw.h"

/* "abcX" with X urgent, and "def" behind it. */
static struct app *app_with_urgent_byte_received(void)
{
	struct app *app = stack_connects_to_raw_peer();

	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG | TCP_PSH, "", 0, 4, "abcX", 4);
	raw_send_segment(5, 1, TCP_ACK | TCP_PSH, "def", 3);
	return app;
}

static size_t read_received_text(struct app *app, char *out, size_t n)
{
	struct iovec spans[4];
	unsigned count = vma_tcp_peek_rx_spans(app->conn, 0, spans, 4);
	size_t done = 0;

	for (unsigned i = 0; i < count && done < n; i++) {
		size_t take = spans[i].iov_len < n - done ? spans[i].iov_len : n - done;

		memcpy(out + done, spans[i].iov_base, take);
		done += take;
	}
	vma_tcp_rx_consume(app->conn, done);
	out[done] = '\0';
	return done;
}

static void test_reading_stops_at_the_mark_and_steps_over_the_urgent_byte(void **state)
{
	struct app *app = app_with_urgent_byte_received();
	char text[16];

	(void)state;
	assert_true(app->events & VMA_TCP_URGENT);
	assert_true(fixture_poll_events_of_app(app) & EPOLLPRI);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 3);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 3);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "abc");
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 0);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 3);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "def");
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), -1);
	app_free(app);
}

static void test_urgent_byte_is_read_by_itself_once(void **state)
{
	struct app *app = app_with_urgent_byte_received();
	uint8_t byte = 0;

	(void)state;
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, true), 1);
	assert_int_equal(byte, 'X');
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), 1);
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), -EINVAL);
	assert_false(fixture_poll_events_of_app(app) & EPOLLPRI);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 3); /* the mark stays */
	app_free(app);
}

static void test_inline_the_urgent_byte_is_one_of_the_stream(void **state)
{
	struct app *app;
	uint8_t byte;
	char text[16];

	(void)state;
	side[0].options.oobinline = 1;
	app = app_with_urgent_byte_received();
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), -EINVAL);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "abc"); /* the mark still parts reads */
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 0);
	assert_int_equal(read_received_text(app, text, 15), 4);
	assert_string_equal(text, "Xdef");
	app_free(app);
}

static void test_announced_urgent_byte_is_waited_for(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint8_t byte;

	(void)state;
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), -EINVAL);
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 10, "abc", 3);
	assert_true(fixture_take_app_events(app) & VMA_TCP_URGENT);
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), 0);
	raw_send_segment(4, 1, TCP_ACK, "defghiZ", 7);
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), 1);
	assert_int_equal(byte, 'Z');
	app_free(app);
}

static void test_lone_urgent_byte_is_nothing_to_read(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 1, "X", 1);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	assert_false(fixture_poll_events_of_app(app) & EPOLLIN);
	assert_int_equal(read_received_text(app, text, 15), 0);
	raw_send_segment(2, 1, TCP_ACK, "abc", 3);
	assert_true(fixture_poll_events_of_app(app) & EPOLLIN);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "abc");
	app_free(app);
}

static void test_urgent_byte_arrives_at_the_other_stack(void **state)
{
	struct app *client, *server;
	uint8_t byte;

	(void)state;
	fixture_establish_connection_pair(&client, &server);
	send_flags(client, 5, VMA_TCP_TX_URGENT);
	send_flags(client, 5, 0);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_read_urgent_byte(server->conn, &byte, false), 1);
	assert_int_equal(byte, fixture_pattern_byte_at(4));
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(server->conn), 4);
	assert_int_equal(read_bytes(server, 4), 4);
	assert_int_equal(vma_tcp_readable_bytes(server->conn), 5);
	app_free(client);
}

/* Announced from afar; the segments that bring it do not mention it, and come in one burst. */
static void test_urgent_byte_is_found_in_the_second_of_two_segments(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	uint8_t byte = 0, data[1000] = {0};

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 1502, "a", 1);
	fixture_set_wire_faults(1, (struct vma_wire_faults){.delay_ns = MS});
	raw_send_segment(2, 1, TCP_ACK, data, 1000);
	data[500] = 'X'; /* 1002 + 500 */
	raw_send_segment(1002, 1, TCP_ACK | TCP_PSH, data, 1000);
	fixture_run_for_ns(2 * MS);
	assert_int_equal(fifo_queued_bytes(&app->conn->rx), 2001);
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), 1);
	assert_int_equal(byte, 'X');
	app_free(app);
}

/* Between a look at the front, which steps over an urgent byte, and taking out what was found, the next one comes. */
static void test_byte_that_was_stepped_over_does_not_come_again_with_the_next_mark(void **state)
{
	struct app *app = app_with_urgent_byte_received();
	struct iovec span;
	char text[16];

	(void)state;
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_int_equal(vma_tcp_peek_rx_spans(app->conn, 0, &span, 1), 1);
	assert_memory_equal(span.iov_base, "def", 3);
	raw_send_segment_with_options(8, 1, TCP_ACK | TCP_URG | TCP_PSH, "", 0, 4, "ghiY", 4);
	vma_tcp_rx_consume(app->conn, 3);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 3);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "ghi");
	app_free(app);
}

static void test_mark_is_where_it_belongs_when_there_was_no_memory_for_what_came_before(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];

	(void)state;
	fixture_alloc_bytes_fails = true;
	raw_send_segment(1, 1, TCP_ACK | TCP_PSH, "abc", 3);
	raw_send_segment_with_options(4, 1, TCP_ACK | TCP_URG | TCP_PSH, "", 0, 4, "defX", 4);
	fixture_alloc_bytes_fails = false;
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 6);
	fixture_run_for_ns(2 * MS);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "abc");
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 3);
	app_free(app);
}

/* As the kernel: who stands before an urgent byte when another comes does not get it as data. */
static void test_new_mark_steps_over_the_old_one_for_who_stands_before_it(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];
	uint8_t byte;

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 4, "abcX", 4);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 0);
	raw_send_segment_with_options(5, 1, TCP_ACK | TCP_URG, "", 0, 3, "deY", 3);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 2);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 2);
	assert_int_equal(read_received_text(app, text, 15), 2);
	assert_string_equal(text, "de");
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), 1);
	assert_int_equal(byte, 'Y');
	app_free(app);
}

static void test_mark_that_nobody_reached_becomes_data(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 4, "abcX", 4);
	raw_send_segment_with_options(5, 1, TCP_ACK | TCP_URG, "", 0, 3, "deY", 3);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 6);
	assert_int_equal(read_received_text(app, text, 15), 6);
	assert_string_equal(text, "abcXde");
	app_free(app);
}

/* As the kernel: each new one has the reader stand before the one ahead of it, and so leave that out as well. */
static void test_marks_in_a_row_are_all_stepped_over(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];
	uint8_t byte;

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 4, "abcX", 4);
	assert_int_equal(read_received_text(app, text, 15), 3);
	raw_send_segment_with_options(5, 1, TCP_ACK | TCP_URG, "", 0, 1, "Y", 1);
	raw_send_segment_with_options(6, 1, TCP_ACK | TCP_URG, "", 0, 1, "Z", 1);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 0);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	assert_false(fixture_poll_events_of_app(app) & EPOLLIN);
	raw_send_segment(7, 1, TCP_ACK, "de", 2);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 2);
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), 1);
	assert_int_equal(byte, 'Z');
	assert_int_equal(read_received_text(app, text, 15), 2);
	assert_string_equal(text, "de");
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), -1);
	app_free(app);
}

/* As the kernel: what counts is how it is read when the next one comes. */
static void test_byte_that_was_stepped_over_stays_so_if_reading_becomes_inline(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 1, "X", 1);
	raw_send_segment_with_options(2, 1, TCP_ACK | TCP_URG, "", 0, 3, "abY", 3);
	assert_int_equal(vma_tcp_set_option(app->conn, VMA_TCP_OPT_OOBINLINE, 1), 0);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 3);
	assert_int_equal(read_received_text(app, text, 15), 2);
	assert_string_equal(text, "ab");
	assert_int_equal(read_received_text(app, text, 15), 1);
	assert_string_equal(text, "Y");
	app_free(app);
}

/* The mark that is forgotten made it pass; what is said to be there is what is read. */
static void test_inspection_makes_what_was_stepped_over_data_again(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 1, "X", 1);
	raw_send_segment_with_options(2, 1, TCP_ACK | TCP_URG, "", 0, 100, "ab", 2);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 2);
	assert_int_equal(vma_tcp_enable_rx_inspection(app->conn, true), 0);
	fixture_run_for_ns(MS);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), -1);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 3);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "Xab");
	app_free(app);
}

/* As the kernel: what a segment says of urgent data counts though its bytes do not. */
static void test_mark_behind_the_fin_steps_over_the_old_one(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG | TCP_FIN, "", 0, 4, "abcXdef", 7);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "abc");
	raw_send_segment_with_options(9, 1, TCP_ACK | TCP_URG, "", 0, 2, "gh", 2);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 3);
	assert_int_equal(read_received_text(app, text, 15), 3);
	assert_string_equal(text, "def");
	assert_true(vma_tcp_rx_eof(app->conn));
	app_free(app);
}

/* Two in a row, and nothing else: both are passed by reads that find nothing. */
static void test_read_that_finds_nothing_else_passes_the_urgent_byte(void **state)
{
	struct app *app = stack_connects_to_raw_peer();
	char text[16];
	uint8_t byte;

	(void)state;
	raw_send_segment_with_options(1, 1, TCP_ACK | TCP_URG, "", 0, 1, "X", 1);
	raw_send_segment_with_options(2, 1, TCP_ACK | TCP_URG, "", 0, 1, "Y", 1);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), 0);
	assert_int_equal(vma_tcp_readable_bytes(app->conn), 0);
	assert_int_equal(read_received_text(app, text, 15), 0);
	assert_int_equal(vma_tcp_bytes_before_urgent_mark(app->conn), -1);
	assert_int_equal(vma_tcp_read_urgent_byte(app->conn, &byte, false), -EINVAL);
	assert_int_equal(fifo_queued_bytes(&app->conn->rx), 0);
	app_free(app);
}

static const struct CMUnitTest tests[] = {
        RAW_CASE(test_reading_stops_at_the_mark_and_steps_over_the_urgent_byte),
        RAW_CASE(test_urgent_byte_is_read_by_itself_once),
        RAW_CASE(test_inline_the_urgent_byte_is_one_of_the_stream),
        RAW_CASE(test_announced_urgent_byte_is_waited_for),
        RAW_CASE(test_lone_urgent_byte_is_nothing_to_read),
        RAW_CASE(test_byte_that_was_stepped_over_does_not_come_again_with_the_next_mark),
        RAW_CASE(test_mark_is_where_it_belongs_when_there_was_no_memory_for_what_came_before),
        RAW_CASE(test_urgent_byte_is_found_in_the_second_of_two_segments),
        CASE(test_urgent_byte_arrives_at_the_other_stack),
        RAW_CASE(test_new_mark_steps_over_the_old_one_for_who_stands_before_it),
        RAW_CASE(test_mark_that_nobody_reached_becomes_data),
        RAW_CASE(test_marks_in_a_row_are_all_stepped_over),
        RAW_CASE(test_byte_that_was_stepped_over_stays_so_if_reading_becomes_inline),
        RAW_CASE(test_inspection_makes_what_was_stepped_over_data_again),
        RAW_CASE(test_mark_behind_the_fin_steps_over_the_old_one),
        RAW_CASE(test_read_that_finds_nothing_else_passes_the_urgent_byte),
};
VMA_TEST_MAIN(tests)
