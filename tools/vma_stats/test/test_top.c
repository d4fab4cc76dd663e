/* --top without a terminal: rates of two readings, order, filter, widths, text, and what keys do. */
#include <ncurses.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include <vma/sock.h>
#include <vma/test.h>

#include "../top_keys.h"
#include "../top_rows.h"
#include "../top_table.h"
#include "../top_text.h"

#define SECOND 1000000000ULL

static struct vma_stats_snapshot snapshot;
static struct options options;
static struct top_rows rows;
static struct top_process processes[2];
static struct top_host host;
static struct top_table table;
static struct top_state state;

/* ---- readings ---- */

static void begin_snapshot_at(uint64_t ns)
{
	memset(&snapshot, 0, sizeof(snapshot));
	snapshot.taken_ns = ns;
}

static struct vma_stats_socket *add_socket_item_at(uint32_t place, uint32_t sequence, uint64_t fd)
{
	struct vma_stats_item *item = &snapshot.items[snapshot.count++];

	item->type = VMA_STATS_TYPE_SOCKET;
	item->place = place;
	item->sequence = sequence;
	vma_stats_set(&item->socket.fd, fd);
	vma_stats_set(&item->socket.protocol, IPPROTO_UDP);
	vma_stats_set(&item->socket.offloaded, 1);
	return &item->socket;
}

static int setup_reset_options_and_rows(void **unused)
{
	(void)unused;
	memset(&options, 0, sizeof(options));
	top_rows_fini(&rows);
	return 0;
}

static void top_rows_update_with_rx_packets(uint64_t ns, uint32_t sequence, uint64_t packets)
{
	begin_snapshot_at(ns);
	vma_stats_set(&add_socket_item_at(5, sequence, 3)->rx_packets, packets);
	assert_int_equal(top_rows_update(&rows, &options, &snapshot, 100), 0);
	assert_int_equal(rows.count, 1);
}

static void assert_rx_packet_rate(double wanted)
{
	assert_float_equal(rows.rows[0].rates[TOP_RX_PACKETS], wanted, 1e-6);
}

static void test_rate_is_of_the_time_between_two_readings(void **unused)
{
	(void)unused;
	top_rows_update_with_rx_packets(10 * SECOND, 2, 1000000);
	assert_rx_packet_rate(0); /* it has counted for as long as nobody knows */
	assert_int_equal(rows.rows[0].samples, 0);
	top_rows_update_with_rx_packets(12 * SECOND, 2, 1000500);
	assert_rx_packet_rate(250);
	top_rows_update_with_rx_packets(12 * SECOND + SECOND / 2, 2, 1000600);
	assert_rx_packet_rate(200);
	assert_int_equal(rows.rows[0].samples, 2);
	assert_float_equal(rows.rows[0].history[TOP_SAMPLES - 1], 200, 1e-6);
	assert_float_equal(rows.rows[0].history[TOP_SAMPLES - 2], 250, 1e-6);
}

static void test_rate_of_counters_that_go_backwards_is_zero(void **unused)
{
	(void)unused;
	top_rows_update_with_rx_packets(10 * SECOND, 2, 1000);
	top_rows_update_with_rx_packets(11 * SECOND, 2, 10);
	assert_rx_packet_rate(0);
	top_rows_update_with_rx_packets(12 * SECOND, 2, 40);
	assert_rx_packet_rate(30);
	top_rows_update_with_rx_packets(12 * SECOND, 2, 90); /* no time has passed */
	assert_rx_packet_rate(0);
	top_rows_update_with_rx_packets(11 * SECOND, 2, 190); /* nor if it goes backwards */
	assert_rx_packet_rate(0);
}

static void test_rate_of_a_block_that_is_reused_is_zero(void **unused)
{
	(void)unused;
	top_rows_update_with_rx_packets(10 * SECOND, 2, 1000);
	top_rows_update_with_rx_packets(11 * SECOND, 2, 1100);
	top_rows_update_with_rx_packets(12 * SECOND, 6, 4000000);
	assert_rx_packet_rate(0);
	assert_int_equal(rows.rows[0].samples, 0);
	top_rows_update_with_rx_packets(13 * SECOND, 6, 4000007);
	assert_rx_packet_rate(7);
}

static void test_sockets_that_come_and_go_leave_the_others_alone(void **unused)
{
	(void)unused;
	begin_snapshot_at(SECOND);
	add_socket_item_at(1, 2, 3);
	vma_stats_set(&add_socket_item_at(4, 2, 4)->tx_bytes, 100);
	add_socket_item_at(9, 2, 5);
	assert_int_equal(top_rows_update(&rows, &options, &snapshot, 100), 0);
	begin_snapshot_at(2 * SECOND);
	add_socket_item_at(2, 2, 6);
	vma_stats_set(&add_socket_item_at(4, 2, 4)->tx_bytes, 150);
	vma_stats_set(&add_socket_item_at(4 + 6, 2, 7)->tx_bytes, 1 << 30);
	assert_int_equal(top_rows_update(&rows, &options, &snapshot, 100), 0);
	assert_int_equal(rows.count, 3);
	assert_float_equal(rows.rows[0].rates[TOP_TX_BYTES], 0, 0);
	assert_float_equal(rows.rows[1].rates[TOP_TX_BYTES], 50, 1e-6);
	assert_float_equal(rows.rows[2].rates[TOP_TX_BYTES], 0, 0);
}

static void test_what_the_kernel_moves_counts_too(void **unused)
{
	struct vma_stats_socket *socket;

	(void)unused;
	for (uint64_t i = 1; i <= 2; i++) {
		begin_snapshot_at(i * SECOND);
		socket = add_socket_item_at(1, 2, 3);
		vma_stats_set(&socket->rx_packets, 10 * i);
		vma_stats_set(&socket->rx_os_packets, 5 * i);
		vma_stats_set(&socket->tx_os_bytes, 700 * i);
		vma_stats_set(&socket->rx_dropped, 2 * i);
		vma_stats_set(&socket->tx_drops, i);
		assert_int_equal(top_rows_update(&rows, &options, &snapshot, 100), 0);
	}
	assert_float_equal(rows.rows[0].rates[TOP_RX_PACKETS], 15, 1e-6);
	assert_float_equal(rows.rows[0].rates[TOP_TX_BYTES], 700, 1e-6);
	assert_float_equal(rows.rows[0].rates[TOP_DROPS], 3, 1e-6);
}

static void test_rows_beyond_the_most_are_counted_only(void **unused)
{
	(void)unused;
	begin_snapshot_at(SECOND);
	for (uint32_t i = 0; i < 10; i++)
		add_socket_item_at(i, 2, i);
	assert_int_equal(top_rows_update(&rows, &options, &snapshot, 4), 0);
	assert_int_equal(rows.count, 4);
	assert_int_equal(rows.left_out, 6);
	assert_true(fd_list_parse(&options.fds, "2-3"));
	assert_int_equal(top_rows_update(&rows, &options, &snapshot, 4), 0);
	assert_int_equal(rows.count, 2);
	assert_int_equal(rows.left_out, 0);
	assert_int_equal(rows.rows[1].fd, 3);
}

/* ---- the table ---- */

/* Two processes: "alpha" (7) has fds 3 and 4, "beta" (9) has fd 3. */
static int setup_two_processes(void **unused)
{
	(void)setup_reset_options_and_rows(unused);
	for (unsigned i = 0; i < 2; i++)
		top_rows_fini(&processes[i].sockets);
	top_table_fini(&table);
	memset(processes, 0, sizeof(processes));
	processes[0].pid = 7;
	processes[1].pid = 9;
	strcpy(processes[0].name, "alpha");
	strcpy(processes[1].name, "beta");
	for (unsigned i = 0; i < 2; i++)
		processes[i].view = (struct vma_stats_view *)&processes[i]; /* not NULL: it can be read */
	for (uint64_t n = 1; n <= 2; n++) {
		begin_snapshot_at(n * SECOND);
		vma_stats_set(&add_socket_item_at(0, 2, 3)->rx_packets, 100 * n);
		vma_stats_set(&add_socket_item_at(1, 2, 4)->tx_packets, 300 * n);
		vma_stats_set(&snapshot.items[1].socket.offloaded, 0);
		vma_stats_set(&snapshot.items[1].socket.reason, VMA_SOCK_RULE);
		top_rows_update(&processes[0].sockets, &options, &snapshot, 100);
		begin_snapshot_at(n * SECOND);
		vma_stats_set(&add_socket_item_at(0, 2, 3)->rx_packets, 200 * n);
		vma_stats_set(&snapshot.items[0].socket.offloaded, 0); /* and its reason is that it is new */
		vma_stats_set(&snapshot.items[0].socket.reason, VMA_SOCK_NEW);
		top_rows_update(&processes[1].sockets, &options, &snapshot, 100);
	}
	host = (struct top_host){.processes = processes, .count = 2};
	state = (struct top_state){.interval = 1, .choice.sort = TOP_TREND};
	return top_table_fill(&table, &host, &state.choice);
}

/* "7:3 9:3": processes and descriptors of the lines. */
static void assert_top_table_lines(const char *wanted)
{
	char text[128] = "";

	assert_int_equal(top_table_fill(&table, &host, &state.choice), 0);
	for (size_t i = 0; i < table.count; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d:%d", i != 0 ? " " : "",
		         (int)table.lines[i].process->pid, (int)table.lines[i].row->fd);
	assert_string_equal(text, wanted);
}

static void test_amounts_fall_and_names_rise_unless_reversed(void **unused)
{
	(void)unused;
	assert_top_table_lines("7:4 9:3 7:3");
	state.choice.sort = TOP_RX;
	assert_top_table_lines("9:3 7:3 7:4");
	state.choice.reverse = true;
	assert_top_table_lines("7:4 7:3 9:3");
	state.choice.sort = TOP_PROGRAM;
	assert_top_table_lines("9:3 7:3 7:4");
	state.choice.reverse = false;
	assert_top_table_lines("7:3 7:4 9:3");
	state.choice.sort = TOP_FD;
	assert_top_table_lines("7:3 9:3 7:4");
	state.choice.sort = TOP_OFFLOAD; /* new, rule, yes */
	assert_top_table_lines("9:3 7:4 7:3");
}

static void test_equal_lines_stay_in_the_order_of_processes(void **unused)
{
	(void)unused;
	for (enum top_column column = 0; column < TOP_COLUMNS; column++) {
		state.choice.sort = column;
		for (int reverse = 0; reverse < 2; reverse++) {
			state.choice.reverse = reverse;
			assert_int_equal(top_table_fill(&table, &host, &state.choice), 0);
			assert_int_equal(table.count, 3);
		}
	}
	state.choice.sort = TOP_DROPPED; /* all are 0 */
	assert_top_table_lines("7:3 7:4 9:3");
	state.choice.reverse = false;
	assert_top_table_lines("7:3 7:4 9:3");
}

static void test_sums_are_of_what_the_choice_leaves(void **unused)
{
	(void)unused;
	assert_top_table_lines("7:4 9:3 7:3");
	assert_int_equal(table.processes, 2);
	assert_int_equal(table.sockets[TOP_OFFLOADED], 1);
	assert_int_equal(table.sockets[TOP_BY_KERNEL], 1);
	assert_int_equal(table.sockets[TOP_UNDECIDED], 1);
	assert_float_equal(table.rates[TOP_RX_PACKETS], 300, 1e-6);
	assert_float_equal(table.rates[TOP_TX_PACKETS], 300, 1e-6);
	strcpy(state.choice.filter, "lph");
	assert_top_table_lines("7:4 7:3");
	assert_float_equal(table.rates[TOP_RX_PACKETS], 100, 1e-6);
	state.choice.only = 9;
	assert_top_table_lines("");
	assert_int_equal(table.processes, 0);
	state.choice.filter[0] = '\0';
	assert_top_table_lines("9:3");
	processes[1].view = NULL; /* it has become unreadable */
	assert_top_table_lines("");
}

/* ---- text ---- */

static void assert_top_number_text(double value, const char *wanted)
{
	char text[TOP_NUMBER_BYTES];

	top_format_number(text, value);
	assert_string_equal(text, wanted);
}

static void test_numbers_have_five_characters_at_most(void **unused)
{
	char text[TOP_NUMBER_BYTES];

	(void)unused;
	assert_top_number_text(0, "0");
	assert_top_number_text(99999.4, "99999");
	assert_top_number_text(99999.6, "100k");
	assert_top_number_text(9999400, "9999k");
	assert_top_number_text(9999600, "10.0M");
	assert_top_number_text(99940000, "99.9M");
	assert_top_number_text(99960000, "100M");
	assert_top_number_text(1.8e19, "18.0E");
	assert_top_number_text(1e30, "huge");
	for (double value = 0.001; value < 1e40; value *= 1.07) {
		top_format_number(text, value);
		assert_true(strlen(text) <= 5);
		top_format_megabytes(text, value);
		assert_true(strlen(text) <= 5);
	}
	top_format_megabytes(text, 583000);
	assert_string_equal(text, "0.583");
	top_format_megabytes(text, 12340000);
	assert_string_equal(text, "12.34");
	top_format_megabytes(text, 1.25e9);
	assert_string_equal(text, "1250");
	top_format_megabytes(text, 0);
	assert_string_equal(text, "0");
}

static void test_trend_is_beside_its_largest_sample(void **unused)
{
	const float samples[] = {1000, 0, 1, 50, 99, 100};
	char text[TOP_CELL_BYTES];

	(void)unused;
	top_format_trend_bars(text, samples + 1, 5, 7, false);
	assert_string_equal(text, "  _.=##");
	top_format_trend_bars(text, samples + 1, 5, 7, true);
	assert_string_equal(text, "  ▁▂▅██");
	top_format_trend_bars(text, samples, 6, 5, false); /* the newest ones */
	assert_string_equal(text, "_.=##");
	top_format_trend_bars(text, samples, 6, 6, false);
	assert_string_equal(text, "#_....");
	top_format_trend_bars(text, samples + 1, 1, 3, false); /* nothing but zero */
	assert_string_equal(text, "  _");
	top_format_trend_bars(text, samples, 0, 3, false);
	assert_string_equal(text, "   ");
}

static void test_columns_of_most_worth_stay_on_a_narrow_screen(void **unused)
{
	struct top_widths widths = {{0}};
	struct top_layout layout;
	char text[TOP_LINE_BYTES];

	(void)unused;
	top_widen_columns_to_fit_table(&widths, &table);
	top_layout_choose_columns_for_width(&layout, &widths, 0, 80);
	top_line_text(text, &layout, NULL, false);
	assert_string_equal(text, "  PID PROGRAM  FD TYPE LOCAL OFFLOAD  RX/s  TX/s RXMB/s TXMB/s DROP/s  READY");
	top_layout_choose_columns_for_width(&layout, &widths, 0, 40);
	top_line_text(text, &layout, NULL, false);
	assert_string_equal(text, "  PID PROGRAM  FD TYPE LOCAL  RX/s  TX/s");
	top_layout_choose_columns_for_width(&layout, &widths, 0, 3);
	top_line_text(text, &layout, NULL, false);
	assert_string_equal(text, "PID");
	for (unsigned columns = 1; columns < 300; columns++)
		for (unsigned skip = 0; skip <= TOP_SKIP_MAX; skip++) {
			top_layout_choose_columns_for_width(&layout, &widths, skip, columns);
			for (size_t i = 0; i <= table.count; i++) {
				top_line_text(text, &layout, i < table.count ? &table.lines[i] : NULL, false);
				assert_true(strlen(text) <= columns);
			}
		}
}

static void test_columns_at_the_left_give_way(void **unused)
{
	struct top_widths widths = {{0}};
	struct top_layout layout;
	char text[TOP_LINE_BYTES];

	(void)unused;
	top_widen_columns_to_fit_table(&widths, &table);
	top_layout_choose_columns_for_width(&layout, &widths, 3, 80);
	top_line_text(text, &layout, NULL, false);
	assert_string_equal(text, "  PID PROGRAM  FD TYPE  RX/s  TX/s RXMB/s TXMB/s DROP/s  READY           PACKETS");
	top_layout_choose_columns_for_width(&layout, &widths, 1, 30); /* the first one that is left has its place */
	top_line_text(text, &layout, NULL, false);
	assert_string_equal(text, "  PID PROGRAM PEER  RX/s  TX/s");
	top_layout_choose_columns_for_width(&layout, &widths, TOP_SKIP_MAX, 200);
	top_line_text(text, &layout, NULL, false);
	assert_string_equal(text, "  PID PROGRAM  FD TYPE                          PACKETS");
}

/* As the largest numbers and names that a process can write. */
static void test_no_text_is_wider_than_its_column(void **unused)
{
	struct top_row *row = &processes[0].sockets.rows[0];
	struct top_widths widths = {{0}};
	struct top_layout layout;
	char text[TOP_LINE_BYTES];

	(void)unused;
	memset(processes[0].name, '?', sizeof(processes[0].name) - 1);
	processes[0].pid = INT32_MAX;
	row->fd = row->reason = UINT64_MAX;
	row->local_addr = row->local_port = row->peer_addr = row->peer_port = UINT64_MAX;
	row->ready_packets = row->ready_bytes = UINT64_MAX;
	for (unsigned i = 0; i < TOP_RATES; i++)
		row->rates[i] = 1e30;
	top_table_fill(&table, &host, &state.choice);
	assert_int_equal(table.lines[0].row->fd, UINT64_MAX);
	top_widen_columns_to_fit_table(&widths, &table);
	top_layout_choose_columns_for_width(&layout, &widths, 0, 200);
	top_line_text(text, &layout, &table.lines[0], false);
	assert_string_equal(text, "2147483647 ???????????????   ? udp  255.255.255.255:65535 255.255.255.255:65535 "
	                          "yes      huge  huge   huge   huge   huge 18.4Ep "
	                          "                               #");
	row->offload = TOP_BY_KERNEL;
	top_layout_choose_columns_for_width(&layout, &widths, 2, 80);
	top_line_text(text, &layout, &table.lines[0], false);
	assert_non_null(strstr(text, " ?        huge  huge "));
}

static void test_queue_is_in_bytes_or_datagrams_or_not_known(void **unused)
{
	struct top_row *row = &processes[0].sockets.rows[0];
	const struct top_line line = {&processes[0], row};
	char text[TOP_CELL_BYTES];

	(void)unused;
	row->ready_packets = 12;
	row->ready_bytes = 300;
	top_format_cell(text, &line, TOP_READY, 6, false);
	assert_string_equal(text, "12p");
	row->tcp = true;
	top_format_cell(text, &line, TOP_READY, 6, false);
	assert_string_equal(text, "300B");
	row->listens = true;
	top_format_cell(text, &line, TOP_READY, 6, false);
	assert_string_equal(text, "-");
	row->listens = false;
	row->offload = TOP_BY_KERNEL;
	top_format_cell(text, &line, TOP_READY, 6, false);
	assert_string_equal(text, "-");
}

/* ---- keys ---- */

static void press_keys(const char *keys)
{
	for (; *keys != '\0'; keys++)
		top_handle_key(&state, *keys, &table, 2);
}

static void test_sort_keys_go_around(void **unused)
{
	(void)unused;
	press_keys(">");
	assert_int_equal(state.choice.sort, TOP_PID);
	press_keys("<<");
	assert_int_equal(state.choice.sort, TOP_READY);
	press_keys("rr");
	assert_false(state.choice.reverse);
	press_keys("r");
	assert_true(state.choice.reverse);
}

static void test_filter_and_interval_are_typed(void **unused)
{
	(void)unused;
	press_keys("/be\x1b");
	assert_string_equal(state.choice.filter, "");
	press_keys("/bexq\b\b\n");
	assert_string_equal(state.choice.filter, "be");
	assert_false(state.ended); /* the q was text */
	assert_top_table_lines("9:3");
	press_keys("/");
	for (int i = 0; i < 100; i++)
		press_keys("x");
	press_keys("\033/\n");
	assert_string_equal(state.choice.filter, "");
	press_keys("d15\n");
	assert_int_equal(state.interval, 15);
	press_keys("d0\nd\nd99999999999\ndx\n");
	assert_int_equal(state.interval, 15);
	press_keys("+--");
	assert_int_equal(state.interval, 14);
	state.interval = 1;
	press_keys("-");
	assert_int_equal(state.interval, 1);
}

static void test_enter_leaves_the_process_of_the_cursor(void **unused)
{
	(void)unused;
	top_handle_key(&state, KEY_DOWN, &table, 2);
	press_keys("\n");
	assert_int_equal(state.choice.only, 9);
	assert_top_table_lines("9:3");
	press_keys("\n");
	assert_top_table_lines("7:4 9:3 7:3");
	press_keys("\n\x1b");
	assert_int_equal(state.choice.only, 0);
}

static void test_cursor_stays_on_its_socket_and_on_the_screen(void **unused)
{
	(void)unused;
	top_handle_key(&state, KEY_END, &table, 2);
	top_place_cursor(&state, &table, 2);
	assert_int_equal(state.cursor, 2);
	assert_int_equal(state.first, 1);
	state.choice.reverse = true; /* 7:3 9:3 7:4 */
	assert_int_equal(top_table_fill(&table, &host, &state.choice), 0);
	top_place_cursor(&state, &table, 2);
	assert_int_equal(state.cursor, 0);
	assert_int_equal(state.first, 0);
	state.choice.only = 9; /* its socket is there no more */
	assert_int_equal(top_table_fill(&table, &host, &state.choice), 0);
	top_place_cursor(&state, &table, 2);
	assert_int_equal(state.cursor, 0);
	state.choice.only = 1;
	assert_int_equal(top_table_fill(&table, &host, &state.choice), 0);
	top_place_cursor(&state, &table, 0); /* no line, and no room for one */
	top_handle_key(&state, KEY_NPAGE, &table, 0);
	top_handle_key(&state, '\n', &table, 0);
	assert_int_equal(state.cursor, 0);
}

static void test_keys_of_other_states(void **unused)
{
	(void)unused;
	press_keys("pp ");
	assert_true(state.paused);
	press_keys("hq");
	assert_false(state.ended || state.help); /* any key leaves the help */
	for (int i = 0; i < 2 * TOP_COLUMNS; i++)
		top_handle_key(&state, KEY_RIGHT, &table, 2);
	assert_int_equal(state.skip, TOP_SKIP_MAX);
	top_handle_key(&state, KEY_LEFT, &table, 2);
	assert_int_equal(state.skip, TOP_SKIP_MAX - 1);
	for (int key = 0; key < KEY_MAX; key++) /* none of all others matters */
		if (key != 'q')
			top_handle_key(&state, key, &table, 2);
	state.help = false;
	state.prompt = PROMPT_NONE;
	press_keys("q");
	assert_true(state.ended);
}

static void test_head_says_what_is_shown(void **unused)
{
	char text[TOP_LINE_BYTES];

	(void)unused;
	top_head_text(text, 0, &state, &host, &table);
	assert_string_equal(text, "vma_stats, every 1 s: processes 2; sockets offloaded 1, kernel 1, undecided 1");
	top_head_text(text, 1, &state, &host, &table);
	assert_string_equal(text, "rx 300/s, 0 MB/s   tx 300/s, 0 MB/s   drops 0/s");
	top_head_text(text, 2, &state, &host, &table);
	assert_string_equal(text, "sort PACKETS, falling");
	press_keys("/eta\nrp");
	state.choice.only = 9;
	host.unreadable = 1;
	host.put_off = 2;
	host.left_out = 3;
	top_head_text(text, 2, &state, &host, &table);
	assert_string_equal(text, "sort PACKETS, rising; paused; process 9 only; programs with 'eta'; processes not "
	                          "readable: 1; put off: 2; sockets left out: 3");
}

static int teardown_top_rows_and_table(void **unused)
{
	(void)unused;
	top_rows_fini(&rows);
	for (unsigned i = 0; i < 2; i++)
		top_rows_fini(&processes[i].sockets);
	top_table_fini(&table);
	return 0;
}

#define reading(case) cmocka_unit_test_setup_teardown(case, setup_reset_options_and_rows, teardown_top_rows_and_table)
#define TOP_SCREEN_CASE(case) cmocka_unit_test_setup_teardown(case, setup_two_processes, teardown_top_rows_and_table)

static const struct CMUnitTest tests[] = {
        reading(test_rate_is_of_the_time_between_two_readings),
        reading(test_rate_of_counters_that_go_backwards_is_zero),
        reading(test_rate_of_a_block_that_is_reused_is_zero),
        reading(test_sockets_that_come_and_go_leave_the_others_alone),
        reading(test_what_the_kernel_moves_counts_too),
        reading(test_rows_beyond_the_most_are_counted_only),
        TOP_SCREEN_CASE(test_amounts_fall_and_names_rise_unless_reversed),
        TOP_SCREEN_CASE(test_equal_lines_stay_in_the_order_of_processes),
        TOP_SCREEN_CASE(test_sums_are_of_what_the_choice_leaves),
        reading(test_numbers_have_five_characters_at_most),
        reading(test_trend_is_beside_its_largest_sample),
        TOP_SCREEN_CASE(test_columns_of_most_worth_stay_on_a_narrow_screen),
        TOP_SCREEN_CASE(test_columns_at_the_left_give_way),
        TOP_SCREEN_CASE(test_no_text_is_wider_than_its_column),
        TOP_SCREEN_CASE(test_queue_is_in_bytes_or_datagrams_or_not_known),
        TOP_SCREEN_CASE(test_sort_keys_go_around),
        TOP_SCREEN_CASE(test_filter_and_interval_are_typed),
        TOP_SCREEN_CASE(test_enter_leaves_the_process_of_the_cursor),
        TOP_SCREEN_CASE(test_cursor_stays_on_its_socket_and_on_the_screen),
        TOP_SCREEN_CASE(test_keys_of_other_states),
        TOP_SCREEN_CASE(test_head_says_what_is_shown),
};

VMA_TEST_MAIN(tests)
