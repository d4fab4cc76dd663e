/* Each view, of numbers of the field's manual, is what the manual shows, to the column. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vma/rules.h>
#include <vma/sock.h>
#include <vma/test.h>

#include "../view.h"

static struct vma_stats_snapshot now, total;
static struct options options;
static char *printed;
static size_t printed_bytes;

static struct vma_stats_item *add_stats_item_named(enum vma_stats_type type, const char *name)
{
	struct vma_stats_item *new = &now.items[now.count];

	new->type = type;
	new->place = (uint32_t)now.count++;
	strcpy(new->name, name);
	return new;
}

static struct vma_stats_socket *make_udp_stats_socket(uint64_t fd)
{
	struct vma_stats_socket *socket = &add_stats_item_named(VMA_STATS_TYPE_SOCKET, "fd")->socket;

	vma_stats_set(&socket->fd, fd);
	vma_stats_set(&socket->protocol, IPPROTO_UDP);
	vma_stats_set(&socket->offloaded, 1);
	vma_stats_set(&socket->mc_loop, 1);
	return socket;
}

static struct view_input begin(enum options_view view, bool deltas)
{
	memset(&now, 0, sizeof(now));
	now.pid = 1576;
	options = (struct options){.view = view, .deltas = deltas, .interval = 1};
	free(printed);
	printed = NULL;
	return (struct view_input){.options = &options, .now = &now, .total = &total, .out = NULL};
}

static const char *print_view_to_string(struct view_input *in, void (*view)(const struct view_input *in))
{
	free(printed);
	in->out = open_memstream(&printed, &printed_bytes);
	assert_non_null(in->out);
	total = now;
	view(in);
	fclose(in->out);
	return printed;
}

static void test_totals_are_in_the_fields_columns(void **state)
{
	struct view_input in = begin(VIEW_BASIC, false);
	struct vma_stats_socket *socket = make_udp_stats_socket(14);

	(void)state;
	vma_stats_set(&socket->rx_packets, 140479898);
	vma_stats_set(&socket->rx_bytes, 274374 * 1024ULL + 5);
	vma_stats_set(&socket->rx_poll_hits, 140479898);
	vma_stats_set(&socket->tx_packets, 140479902);
	vma_stats_set(&socket->tx_bytes, 274502 * 1024ULL);
	assert_string_equal(print_view_to_string(&in, view_basic),
	                    "fd      ------------ total offloaded -------------   ----- total os ------\n"
	                    "               pkt  Kbyte   eagain   error   poll%     pkt   Kbyte   error\n"
	                    "14  Rx:  140479898 274374        0       0   100.0       0       0       0\n"
	                    "    Tx:  140479902 274502        0       0               0       0       0\n"
	                    "--------------------------------------------------------------------------\n");
}

static void test_deltas_are_in_the_fields_columns(void **state)
{
	struct view_input in = begin(VIEW_BASIC, true);
	struct vma_stats_iomux *select;

	(void)state;
	for (uint64_t fd = 15; fd <= 19; fd += 4) {
		struct vma_stats_socket *socket = make_udp_stats_socket(fd);

		vma_stats_set(&socket->rx_packets, 15186);
		vma_stats_set(&socket->rx_bytes, 29 * 1024);
		vma_stats_set(&socket->tx_packets, 15186);
		vma_stats_set(&socket->tx_bytes, 29 * 1024);
	}
	vma_stats_set(&make_udp_stats_socket(23)->rx_os_packets, 15185);
	vma_stats_set(&now.items[2].socket.rx_os_bytes, 22 * 1024);
	vma_stats_set(&now.items[2].socket.tx_os_packets, 15185);
	vma_stats_set(&now.items[2].socket.tx_os_bytes, 22 * 1024);
	select = &add_stats_item_named(VMA_STATS_TYPE_IOMUX, "select")->iomux;
	vma_stats_set(&select->os_ready, 15185);
	vma_stats_set(&select->ready, 30372);
	vma_stats_set(&select->poll_hits, 45557);
	vma_stats_set(&select->polling_cpu, 70);
	assert_string_equal(print_view_to_string(&in, view_basic),
	                    "fd     --------------- offloaded ---------------- ---------- os ----------\n"
	                    "             pkt/s Kbyte/s eagain/s error/s  poll%   pkt/s Kbyte/s error/s\n"
	                    " 15  Rx:     15186      29        0       0    0.0       0       0       0\n"
	                    "     Tx:     15186      29        0       0              0       0       0\n"
	                    " 19  Rx:     15186      29        0       0    0.0       0       0       0\n"
	                    "     Tx:     15186      29        0       0              0       0       0\n"
	                    " 23  Rx:         0       0        0       0    0.0   15185      22       0\n"
	                    "     Tx:         0       0        0       0          15185      22       0\n"
	                    "select() Rx Ready:15185/30372 [os/offload] \n"
	                    "Timeouts:0 Errors:0 Poll:100.00% Polling CPU:70%\n"
	                    "--------------------------------------------------------------------------\n");
}

static void test_deltas_are_of_a_second_whatever_the_interval(void **state)
{
	struct view_input in = begin(VIEW_BASIC, true);

	(void)state;
	options.interval = 10;
	vma_stats_set(&make_udp_stats_socket(15)->rx_packets, 1000);
	assert_non_null(strstr(print_view_to_string(&in, view_basic), " 15  Rx:       100       0"));
}

#define RULE "======================================================\n"

static void test_everything_of_a_socket_and_what_is_below(void **state)
{
	struct view_input in = begin(VIEW_FULL, true);
	struct vma_stats_socket *socket = make_udp_stats_socket(14);
	struct vma_stats_bufpool *pool;
	struct vma_stats_ring *ring;
	struct vma_stats_cq *cq;

	(void)state;
	vma_stats_set(&socket->local_port, 11111);
	vma_stats_set(&socket->groups, 1);
	vma_stats_set(&socket->group_0, 0xe0070707);
	vma_stats_set(&socket->rx_bytes, 1128530 * 1024ULL);
	vma_stats_set(&socket->rx_packets, 786133);
	vma_stats_set(&socket->rx_queued, 786134);
	vma_stats_set(&socket->rx_queued_bytes, 1128530 * 1024ULL + 1470);
	vma_stats_set(&socket->rx_queue_max, 16);
	vma_stats_set(&socket->rx_queue_max_bytes, 23520);
	vma_stats_set(&socket->rx_limit_bytes, 16777216);
	vma_stats_set(&socket->rx_poll_misses, 10);
	vma_stats_set(&socket->rx_poll_hits, 276077);
	cq = &add_stats_item_named(VMA_STATS_TYPE_CQ, "eth0#0")->cq;
	vma_stats_set(&cq->poll_max, 511);
	vma_stats_set(&cq->spare_buffers, 500);
	vma_stats_set(&cq->arms, 786137);
	vma_stats_set(&cq->wakeups, 78613);
	vma_stats_set(&cq->moderation_count, 10);
	vma_stats_set(&cq->moderation_period_usec, 181);
	ring = &add_stats_item_named(VMA_STATS_TYPE_RING, "eth0#0")->ring;
	vma_stats_set(&ring->rx.rx_bytes, 1192953 * 1024ULL);
	vma_stats_set(&ring->rx.rx_packets, 786133);
	pool = &add_stats_item_named(VMA_STATS_TYPE_BUFPOOL, "rx")->bufpool;
	vma_stats_set(&pool->buffers, 168000);
	pool = &add_stats_item_named(VMA_STATS_TYPE_BUFPOOL, "tx")->bufpool;
	vma_stats_set(&pool->buffers, 199488);
	assert_string_equal(print_view_to_string(&in, view_full),
	                    RULE "        Fd=[14]\n"
	                         "- Blocked, MC Loop Enabled\n"
	                         "- Bound IF  = [0.0.0.0:11111]\n"
	                         "- Member of = [224.7.7.7]\n"
	                         "Rx Offload: 1128530 / 786133 / 0 / 0 [kilobytes/packets/eagains/errors]\n"
	                         "Rx byte: cur 1470 / max 23520 / dropped/s 0 / limit 16777216\n"
	                         "Rx pkt : cur 1 / max 16 / dropped/s 0\n"
	                         "Rx poll: 10 / 276077 (100.00%) [miss/hit]\n" //
	                    RULE "        CQ=[0]\n"
	                         "Packets dropped:              0\n"
	                         "Packets queue len:            0\n"
	                         "Drained max:                511\n"
	                         "Buffer pool size:           500\n" //
	                    RULE                                     //
	                            RULE "        RING_ETH=[0]\n"
	                         "Rx Offload:    1192953 / 786133 [kilobytes/packets]\n"
	                         "Interrupts:    786137 / 78613      [requests/received]\n"
	                         "Moderation:    10 / 181            [frame count/usec period]\n" //
	                    RULE                                                                  //
	                            RULE "        BUFFER_POOL(RX)=[0]\n"
	                         "Size:                    168000\n"
	                         "No buffers error:             0\n" //
	                    RULE "        BUFFER_POOL(TX)=[1]\n"
	                         "Size:                    199488\n"
	                         "No buffers error:             0\n" //
	                    RULE);
}

static void test_groups_have_their_sockets(void **state)
{
	struct view_input in = begin(VIEW_GROUPS, false);
	struct vma_stats_socket *socket;

	(void)state;
	for (uint64_t i = 0; i < 2; i++) {
		socket = make_udp_stats_socket(15 + 4 * i);
		vma_stats_set(&socket->groups, 1);
		vma_stats_set(&socket->group_0, 0xe0040103 - i);
	}
	assert_string_equal(print_view_to_string(&in, view_groups), "VMA Group Membership Information\n"
	                                                            "Group                fd number\n"
	                                                            "------------------------------\n"
	                                                            "[224.4.1.3]           15\n"
	                                                            "[224.4.1.2]           19\n");
	vma_stats_set(&now.items[1].socket.group_0, 0xe0040103);
	assert_non_null(strstr(print_view_to_string(&in, view_groups), "[224.4.1.3]           15 19\n"));
}

static void test_table_of_sockets_is_like_netstats(void **state)
{
	struct view_input in = begin(VIEW_NETSTAT, false);
	struct vma_stats_socket *socket = make_udp_stats_socket(1000000000);

	(void)state;
	now.pid = 1;
	vma_stats_set(&socket->local_port, 44522);
	socket = make_udp_stats_socket(1000000001);
	vma_stats_set(&socket->protocol, IPPROTO_TCP);
	vma_stats_set(&socket->local_port, 11111);
	vma_stats_set(&socket->tcp_state, TCP_LISTEN);
	assert_string_equal(print_view_to_string(&in, view_netstat),
	                    "udp   Yes       0.0.0.0:44522          0.0.0.0:*                         0          1\n"
	                    "tcp   Yes       0.0.0.0:11111          0.0.0.0:*             LISTEN      0          1\n");
}

static void test_why_names_the_first_reason(void **state)
{
	struct view_input in = begin(VIEW_WHY, false);
	struct vma_stats_socket *socket = make_udp_stats_socket(3);
	unsigned shown = 0, by_kernel = 0;

	(void)state;
	memcpy(&socket->interface_0, "eth0\0\0\0\0", 8);
	vma_stats_set(&socket->ring, 1);
	socket = make_udp_stats_socket(4);
	vma_stats_set(&socket->offloaded, 0);
	vma_stats_set(&socket->reason, VMA_SOCK_RULE);
	vma_stats_set(&socket->rule_line, 12);
	vma_stats_set(&socket->last_error, 111);
	socket = make_udp_stats_socket(5);
	vma_stats_set(&socket->offloaded, 0);
	vma_stats_set(&socket->reason, VMA_SOCK_NEW);
	socket = make_udp_stats_socket(6);
	vma_stats_set(&socket->offloaded, 0);
	vma_stats_set(&socket->reason, VMA_SOCK_RULE);
	vma_stats_set(&socket->rule_line, VMA_RULES_ADDED + 3);
	socket = make_udp_stats_socket(7);
	vma_stats_set(&socket->rule_line, VMA_RULES_ADDED + 4);
	in.out = open_memstream(&printed, &printed_bytes);
	total = now;
	view_why(&in, &shown, &by_kernel);
	fclose(in.out);
	assert_int_equal(shown, 5);
	assert_int_equal(by_kernel, 2); /* what is not bound yet is no failure */
	assert_non_null(strstr(printed, "fd 3 udp 0.0.0.0:* -> 0.0.0.0:*: offloaded, interface eth0, ring 0\n"));
	assert_non_null(strstr(printed, "kernel: a rule leaves it to the kernel (line 12 of libvma.conf)\n"));
	assert_non_null(strstr(printed, "kernel: a rule leaves it to the kernel (added rule 3)\n"));
	assert_non_null(strstr(printed, "; what it sends to names of added rule 4 is the kernel's\n"));
	assert_non_null(strstr(printed, "last error: ECONNREFUSED\n"));
}

static void test_sockets_that_were_not_asked_for_are_left_out(void **state)
{
	struct view_input in = begin(VIEW_BASIC, false);

	(void)state;
	make_udp_stats_socket(3);
	make_udp_stats_socket(14);
	assert_true(fd_list_parse(&options.fds, "4-16"));
	assert_null(strstr(print_view_to_string(&in, view_basic), "\n3 "));
	assert_non_null(strstr(printed, "\n14 "));
}

/* Whatever another process has in its memory: no view reads beyond its own. */
static void test_absurd_numbers_are_printed_and_harmless(void **state)
{
	static void (*const views[])(const struct view_input *in) = {view_basic, view_full, view_groups, view_netstat};
	struct view_input in = begin(VIEW_EXTRA, false);
	unsigned shown = 0, by_kernel = 0;

	(void)state;
	for (int type = VMA_STATS_TYPE_FREE + 1; type < VMA_STATS_TYPE_COUNT; type++) {
		struct vma_stats_item *bad = add_stats_item_named((enum vma_stats_type)type, "bad");

		memset(bad->words, 0xff, sizeof(*bad) - offsetof(struct vma_stats_item, words));
	}
	for (unsigned i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
		assert_true(strlen(print_view_to_string(&in, views[i])) > 0);
	}
	in.out = fopen("/dev/null", "w");
	view_why(&in, &shown, &by_kernel);
	fclose(in.out);
	assert_int_equal(shown, 1);
}

static struct vma_stats_socket *make_tcp_stats_socket(uint64_t fd, uint64_t tcp_state)
{
	struct vma_stats_socket *socket = make_udp_stats_socket(fd);

	vma_stats_set(&socket->protocol, IPPROTO_TCP);
	vma_stats_set(&socket->tcp_state, tcp_state);
	vma_stats_set(&socket->local_addr, 0x0a090002);
	vma_stats_set(&socket->local_port, 80);
	return socket;
}

static void test_connections_are_in_the_columns_of_ss(void **state)
{
	struct view_input in = begin(VIEW_TCP, false);
	struct vma_stats_socket *socket;

	(void)state;
	now.pid = getpid();
	make_tcp_stats_socket(3, TCP_LISTEN);
	make_udp_stats_socket(4);
	vma_stats_set(&make_tcp_stats_socket(5, TCP_ESTABLISHED)->offloaded, 0);
	socket = make_tcp_stats_socket(6, TCP_ESTABLISHED);
	vma_stats_set(&socket->peer_addr, 0x0a090001);
	vma_stats_set(&socket->peer_port, 34664);
	vma_stats_set(&socket->tcp_bytes_in, 1000);
	vma_stats_set(&socket->rx_bytes, 900);
	vma_stats_set(&socket->tx_bytes, 5000);
	vma_stats_set(&socket->tcp_bytes_out, 4500);
	vma_stats_set(&socket->tcp_bytes_acked, 3000);
	vma_stats_set(&socket->tcp_unacked_bytes, 1500);
	vma_stats_set(&socket->tcp_cc, 2);
	vma_stats_set(&socket->tcp_snd_wscale, 8);
	vma_stats_set(&socket->tcp_rcv_wscale, 1);
	vma_stats_set(&socket->tcp_rtt_usec, 250);
	vma_stats_set(&socket->tcp_rttvar_usec, 125);
	vma_stats_set(&socket->tcp_mss, 1000);
	vma_stats_set(&socket->tcp_cwnd_bytes, 10500);
	vma_stats_set(&socket->tcp_ssthresh_bytes, 7000);
	vma_stats_set(&socket->tcp_segments_in, 7);
	vma_stats_set(&socket->tcp_segments_out, 8);
	vma_stats_set(&socket->tcp_retransmits, 3);
	vma_stats_set(&socket->tcp_retransmitting_bytes, 1);
	vma_stats_set(&socket->tcp_send_window, 65536);
	print_view_to_string(&in, view_tcp);
	assert_non_null(
	        strstr(printed, "LISTEN     -      -                 10.9.0.2:80              0.0.0.0:*  users:((\""));
	assert_non_null(
	        strstr(printed, "ESTAB      100    2000              10.9.0.2:80         10.9.0.1:34664  users:((\""));
	assert_non_null(strstr(printed,
	                       "fd=6))\n\t cubic wscale:7,0 rto:200.25 rtt:0.25/0.125 mss:1000 cwnd:10 ssthresh:7 "
	                       "bytes_sent:4500 bytes_acked:3000 bytes_received:1000 segs_out:8 segs_in:7 "
	                       "send 320000000bps unacked:2 retrans:1/3 snd_wnd:65536\n"));
	assert_null(strstr(printed, "fd=4))"));
	assert_null(strstr(printed, "fd=5))"));
}

static void test_what_is_not_known_of_a_connection_is_left_out(void **state)
{
	struct view_input in = begin(VIEW_TCP, false);
	struct vma_stats_socket *socket = make_tcp_stats_socket(6, TCP_SYN_SENT);

	(void)state;
	now.pid = getpid();
	print_view_to_string(&in, view_tcp);
	assert_null(strchr(printed, '\t'));
	vma_stats_set(&socket->tcp_mss, 1460);
	vma_stats_set(&socket->tcp_cc, UINT64_MAX);
	vma_stats_set(&socket->tcp_backoff, 1);
	vma_stats_set(&socket->tcp_cwnd_bytes, 14600);
	vma_stats_set(&socket->tcp_ssthresh_bytes, UINT32_MAX);
	assert_non_null(strstr(print_view_to_string(&in, view_tcp), "\n\t ? rto:2000 backoff:1 mss:1460 cwnd:10\n"));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_totals_are_in_the_fields_columns),
        cmocka_unit_test(test_deltas_are_in_the_fields_columns),
        cmocka_unit_test(test_deltas_are_of_a_second_whatever_the_interval),
        cmocka_unit_test(test_everything_of_a_socket_and_what_is_below),
        cmocka_unit_test(test_groups_have_their_sockets),
        cmocka_unit_test(test_table_of_sockets_is_like_netstats),
        cmocka_unit_test(test_why_names_the_first_reason),
        cmocka_unit_test(test_sockets_that_were_not_asked_for_are_left_out),
        cmocka_unit_test(test_absurd_numbers_are_printed_and_harmless),
        cmocka_unit_test(test_connections_are_in_the_columns_of_ss),
        cmocka_unit_test(test_what_is_not_known_of_a_connection_is_left_out),
};

VMA_TEST_MAIN(tests)
