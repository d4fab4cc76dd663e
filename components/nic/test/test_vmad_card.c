/*
 * vmad's own queue pair of a card (vmad/card.h), with a card, an owner, a kernel and a raw socket that are the test's:
 * when it is open, which connections have a rule, what is answered to which frame, and who has the connection next.
 * seconds: 6
 */
#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <netinet/tcp.h>

#include <vma/log.h>
#include <vma/test.h>

#include "../kernel_sock.h"
#include "../os.h"
#include "../owner/minisocks.h"
#include "../route_type.h"
#include "../vmad/card.h"
#include "../vmad/server.h"
#include "../vmad/watches.h"
#include "../xdp/flow.h"
#include "fake_card_nic.h"
#include "fake_owner.h"

#define OUR_NXT 5000u
#define THEIR_NXT 9000u
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10

/* ---- in place of the kernel; of ../owner/owner.h, which knows another struct xdp_owner ---- */

int owner_open_raw_ip_socket(void);
int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq);
int owner_send_raw_segment(int fd, unsigned ifindex, const struct vma_flow_key *key,
                           const struct owner_tcp_segment *segment);

static unsigned probes, answers;
static struct owner_tcp_segment answer;
static struct vma_flow_key answer_key;
static uint8_t kernel_state; /* of the socket that the kernel has for any connection; 0: none */

int owner_open_raw_ip_socket(void)
{
	return os_socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq)
{
	(void)fd, (void)ifindex, (void)key, (void)seq;
	probes += syn;
	return 0;
}

int owner_send_raw_segment(int fd, unsigned ifindex, const struct vma_flow_key *key,
                           const struct owner_tcp_segment *segment)
{
	(void)fd, (void)ifindex;
	answers++;
	answer_key = *key;
	answer = *segment;
	return 0;
}

int kernel_sock_visit_sockets_of_connection(int *kept, const struct vma_flow_key *key, unsigned ifindex,
                                            void (*see)(const struct kernel_sock *socket, void *arg), void *arg)
{
	struct kernel_sock found = {.state = kernel_state, .peer_port_be = key->peer_port_be};

	(void)kept, (void)ifindex;
	memcpy(found.peer, key->peer, 4);
	if (kernel_state != 0)
		see(&found, arg);
	return 0;
}

int nic_route_type(int fd, const uint8_t address[4])
{
	(void)fd;
	return address[3] == 1 ? RTN_LOCAL : RTN_UNICAST;
}

/* ---- the fixture: two clients of a vmad, who may use a card ---- */

static const struct vma_vmad_attr attr = {.interface = "test"};
static struct vmad_server server;

static int setup(void **state)
{
	(void)state;
	fake_owner_reset();
	memset(&card_nic, 0, sizeof(card_nic));
	memset(&server, 0, sizeof(server));
	card_nic.exists = true;
	probes = answers = 0;
	kernel_state = 0;
	server.attr = &attr;
	server.ifindex = 1;
	server.owner = &fake;
	for (int i = 0; i < 2; i++)
		server.peer[i] = (struct vmad_peer){
		        .state = PEER_READY, .fd = -1, .pidfd = -1, .right_fd = -1, .repair_fd = -1, .raw = true};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vmad_card_destroy(server.card);
	vmad_watches_destroy(server.watches);
	assert_int_equal(card_nic.opens, card_nic.closes);
	assert_int_equal(card_nic.rules, 0);
	return 0;
}

static struct vmad_watched vmad_card_make_watched_connection(uint16_t peer_port)
{
	return (struct vmad_watched){.local = {10, 0, 0, 1},
	                             .peer = {10, 0, 0, 2},
	                             .local_port_be = htons(80),
	                             .peer_port_be = htons(peer_port)};
}

static struct vma_flow_key flow_key_of_card_connection(uint16_t peer_port)
{
	const struct vmad_watched of = vmad_card_make_watched_connection(peer_port);

	return vmad_watched_key(&of);
}

/* The answer's result. */
static int vmad_card_message_result(unsigned client, struct vmad_msg *msg)
{
	struct vmad_reply reply;

	msg->magic = VMAD_MAGIC;
	msg->version = VMAD_VERSION;
	return vmad_handle_message(&server, &server.peer[client], msg, sizeof(*msg), NULL, 0, &reply) == 1
	               ? reply.msg.result
	               : 0;
}

static int vmad_card_export_minisock(unsigned client, uint16_t peer_port, uint16_t state)
{
	const struct vmad_watched of = vmad_card_make_watched_connection(peer_port);
	struct vmad_msg msg = {.type = VMAD_MINISOCK_EXPORT, .minisocks = {.slot = VMAD_SLOT_CARD, .count = 1}};
	struct vmad_msg_minisock *minisock = &msg.minisocks.minisock[0];

	*minisock = (struct vmad_msg_minisock){.local_port_be = of.local_port_be,
	                                       .peer_port_be = of.peer_port_be,
	                                       .state = state,
	                                       .snd_nxt = OUR_NXT,
	                                       .rcv_nxt = THEIR_NXT};
	memcpy(minisock->local, of.local, 4);
	memcpy(minisock->peer, of.peer, 4);
	return vmad_card_message_result(client, &msg);
}

static void vmad_card_send_watch_message(unsigned client, enum vmad_watch_op op, uint16_t peer_port)
{
	struct vmad_msg msg = {
	        .type = VMAD_WATCH,
	        .watch = {.op = (uint16_t)op, .count = 1, .watched = {vmad_card_make_watched_connection(peer_port)}}};

	assert_int_equal(vmad_card_message_result(client, &msg), 0);
}

struct frame {
	uint8_t bytes[128];
	uint32_t len;
};

/* With a VLAN's tag if there is one, and time stamps. */
static struct frame make_tcp_frame_with_timestamps(uint16_t peer_port, uint8_t flags, uint32_t seq, uint16_t payload,
                                                   uint16_t vlan)
{
	struct frame frame = {.len = vlan != 0 ? 18 : 14};
	const uint16_t type = htons(0x0800), tag[2] = {htons(0x8100), htons((uint16_t)(0xe000 | vlan))};
	uint8_t *ip = frame.bytes + frame.len, *tcp = ip + 20;
	const uint32_t stamps[3] = {htonl(0x0101080a), htonl(77), htonl(88)};
	const uint16_t total = htons((uint16_t)(20 + 32 + payload)), ports[2] = {htons(peer_port), htons(80)};
	const uint32_t numbers[2] = {htonl(seq), htonl(OUR_NXT)};

	if (vlan != 0)
		memcpy(frame.bytes + 12, tag, 4);
	memcpy(ip - 2, &type, 2);
	ip[0] = 0x45;
	memcpy(ip + 2, &total, 2);
	ip[9] = IPPROTO_TCP;
	memcpy(ip + 12, "\x0a\0\0\2\x0a\0\0\1", 8);
	memcpy(tcp, ports, 4);
	memcpy(tcp + 4, numbers, 8);
	tcp[12] = 8 << 4;
	tcp[13] = flags;
	memcpy(tcp + 20, stamps, sizeof(stamps));
	frame.len += 20u + 32u + payload;
	return frame;
}

static void fake_card_queue_received_frame(const struct frame *frame)
{
	struct vma_buf *buf = card_nic.posted[--card_nic.posted_n];

	memcpy(vma_buf_data(card_nic.qp.arena, buf), frame->bytes, frame->len);
	buf->len = buf->packet_len = frame->len;
	buf->flags = 0;
	card_nic.waiting[card_nic.waiting_n++] = buf;
}

/* RST, ACK; 0: nothing is answered. */
static uint8_t vmad_card_answer_kind_to_segment(uint16_t peer_port, uint8_t flags, uint32_t seq, uint16_t payload)
{
	const struct frame frame = make_tcp_frame_with_timestamps(peer_port, flags, seq, payload, 0);
	const unsigned before = answers;

	fake_card_queue_received_frame(&frame);
	assert_true(vmad_card_receive(server.card));
	vmad_card_handle_received_packets(server.card);
	assert_int_equal(card_nic.waiting_n, 0);
	if (answers == before)
		return 0;
	assert_int_equal(answers, before + 1);
	assert_int_equal(ntohs(answer_key.peer_port_be), peer_port);
	return answer.rst ? RST : ACK;
}

/* ---- cases ---- */

static void test_the_device_is_open_while_there_are_minisocks_and_two_seconds_longer(void **state)
{
	const struct vma_flow_key key = flow_key_of_card_connection(1000);
	int fds[VMAD_CARD_FDS];

	(void)state;
	assert_int_equal(vmad_card_fds(server.card, fds), 0);
	assert_int_equal(vmad_card_tick(server.card), -1);
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(card_nic.opens, 1);
	assert_true(fake_card_find_rule(&key) >= 0);
	assert_int_equal(vmad_card_fds(server.card, fds), 2);
	assert_int_equal(vmad_card_export_minisock(1, 1001, VMA_MINISOCK_TIME_WAIT), 0);
	assert_int_equal(card_nic.opens, 1);
	assert_int_equal(vmad_card_minisock_count(server.card), 2);
	vmad_card_end_minisock(server.card, &key);
	while (vmad_card_minisock_count(server.card) > 0)
		os_poll_one_fd(-1, 0, vmad_card_tick(server.card)); /* of TIME_WAIT */
	assert_int_equal(card_nic.rules, 0);
	assert_int_equal(card_nic.closes, 0);
	for (int ms = 0; ms >= 0; ms = vmad_card_tick(server.card))
		os_poll_one_fd(-1, 0, ms);
	assert_int_equal(card_nic.closes, 1);
	assert_int_equal(vmad_card_fds(server.card, fds), 0);
	assert_false(vmad_card_receive(server.card));
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(card_nic.opens, 2);
}

static void test_without_a_card_nothing_is_taken(void **state)
{
	(void)state;
	card_nic.exists = false;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), -EOPNOTSUPP);
	card_nic.exists = true;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT),
	                 -EOPNOTSUPP); /* it was not there just now */
	assert_int_equal(card_nic.opens, 0);
}

static void test_only_a_client_with_cap_net_raw_leaves_anything(void **state)
{
	(void)state;
	server.peer[0].raw = false;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), -EPERM);
	assert_null(server.card);
}

static void test_a_late_fin_is_acknowledged_and_acknowledged_again(void **state)
{
	(void)state;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, ACK, THEIR_NXT, 0), 0);
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, FIN | ACK, THEIR_NXT, 0), ACK);
	assert_int_equal(answer.seq, OUR_NXT);
	assert_int_equal(answer.ack, THEIR_NXT + 1);
	assert_true(answer.has_ts);
	assert_int_equal(answer.ts_val, 88);
	assert_int_equal(answer.ts_ecr, 77);
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, FIN | ACK, THEIR_NXT, 0), ACK);
	assert_int_equal(answer.ack, THEIR_NXT + 1);
}

static void test_data_that_nobody_will_read_is_reset(void **state)
{
	(void)state;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, ACK, THEIR_NXT, 10), RST);
	assert_int_equal(answer.seq, OUR_NXT);
	assert_int_equal(vmad_card_answer_kind_to_segment(1001, ACK, THEIR_NXT, 10), 0); /* of nobody here */
}

static void test_the_peer_of_a_connection_that_was_cut_is_probed_and_reset(void **state)
{
	(void)state;
	vmad_card_send_watch_message(0, VMAD_WATCH_BEGIN, 0);
	vmad_card_send_watch_message(0, VMAD_WATCH_ADD, 1000);
	vmad_card_send_watch_message(0, VMAD_WATCH_ADD, 1001);
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_RESET), 0);
	assert_int_equal(vmad_card_export_minisock(0, 1001, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_watches_count(server.watches),
	                 1); /* of one that ended in order nothing is left to probe */
	vmad_watches_probe_all_of_client(server.watches, 0);
	for (int ms = 0; ms >= 0 && probes == 0; ms = vmad_watches_tick(server.watches, &fake))
		os_poll_one_fd(-1, 0, ms);
	assert_int_equal(probes, 1);
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, ACK, THEIR_NXT, 0), RST);
}

static void test_what_is_anybody_elses_is_not_taken(void **state)
{
	(void)state;
	vmad_card_send_watch_message(1, VMAD_WATCH_BEGIN, 0);
	vmad_card_send_watch_message(1, VMAD_WATCH_ADD, 1000);
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	kernel_state = TCP_ESTABLISHED;
	assert_int_equal(vmad_card_export_minisock(0, 1001, VMA_MINISOCK_RESET), 0);
	assert_int_equal(vmad_card_minisock_count(server.card), 0);
	assert_int_equal(vmad_watches_count(server.watches), 1);
}

static void test_if_the_card_has_no_room_the_kernel_gets_what_comes(void **state)
{
	(void)state;
	card_nic.room = 1;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_card_export_minisock(0, 1001, VMA_MINISOCK_RESET), 0);
	assert_int_equal(vmad_card_minisock_count(server.card), 1);
	assert_int_equal(vmad_watches_count(server.watches), 1); /* which is probed all the same */
}

static void test_a_connection_of_a_message_that_makes_no_sense_is_left_out(void **state)
{
	struct vmad_msg msg = {.type = VMAD_MINISOCK_EXPORT, .minisocks = {.slot = VMAD_SLOT_CARD, .count = 5}};

	(void)state;
	assert_int_equal(vmad_card_message_result(0, &msg), -EINVAL);
	assert_int_equal(vmad_card_export_minisock(0, 0, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_card_export_minisock(0, 1000, 0), 0);
	assert_int_equal(vmad_card_export_minisock(0, 1000, 4), 0);
	assert_int_equal(vmad_card_minisock_count(server.card), 0);
}

static void test_a_syn_that_the_kernel_has_a_socket_for_is_given_to_it(void **state)
{
	const struct vma_flow_key key = flow_key_of_card_connection(1000);

	(void)state;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, SYN, THEIR_NXT + 100, 0), RST); /* nobody listens */
	kernel_state = TCP_LISTEN;
	assert_int_equal(card_nic.to_kernel, 0);
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, SYN, THEIR_NXT + 100, 0), 0);
	assert_int_equal(card_nic.to_kernel, 1);
	assert_int_equal(fake_card_find_rule(&key), -1);
	kernel_state = 0;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_TIME_WAIT), 0);
	kernel_state = TCP_SYN_SENT;
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, SYN | ACK, THEIR_NXT + 100, 0), 0);
	assert_int_equal(card_nic.to_kernel, 2);
	assert_int_equal(vmad_card_minisock_count(server.card), 0);
}

/* The message is older than the frame, and is heard later. */
static void test_a_client_that_has_the_connection_anew_gets_no_reset(void **state)
{
	const struct frame frame = make_tcp_frame_with_timestamps(1000, SYN | ACK, THEIR_NXT + 100, 0, 0);

	(void)state;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	fake_card_queue_received_frame(&frame);
	assert_true(vmad_card_receive(server.card));
	vmad_card_send_watch_message(1, VMAD_WATCH_BEGIN, 0);
	vmad_card_send_watch_message(1, VMAD_WATCH_ADD, 1000);
	vmad_card_handle_received_packets(server.card);
	assert_int_equal(answers, 0);
	assert_int_equal(card_nic.rules, 0);
}

/* As that of a process that has not found vmad yet. */
static void test_the_answer_to_a_syn_ends_it_without_a_word(void **state)
{
	(void)state;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_TIME_WAIT), 0);
	kernel_state = TCP_LISTEN; /* which has sent no SYN */
	assert_int_equal(vmad_card_answer_kind_to_segment(1000, SYN | ACK, THEIR_NXT + 100, 0), 0);
	assert_int_equal(card_nic.to_kernel, 0);
	assert_int_equal(card_nic.rules, 0);
}

static void test_the_same_connection_left_twice_has_one_rule(void **state)
{
	(void)state;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_TIME_WAIT), 0);
	assert_int_equal(card_nic.rules, 1);
	assert_int_equal(vmad_card_minisock_count(server.card), 1);
}

static void test_all_end_with_the_device_and_the_next_opens_it_anew(void **state)
{
	(void)state;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_card_export_minisock(0, 1001, VMA_MINISOCK_FIN_WAIT), 0);
	card_nic.attr.event(&card_nic.qp, VMA_NIC_EVENT_LOST, NULL, card_nic.attr.event_arg);
	assert_int_equal(vmad_card_export_minisock(0, 1002, VMA_MINISOCK_FIN_WAIT),
	                 -EOPNOTSUPP); /* nobody has seen to that yet */
	assert_false(vmad_card_receive(server.card));
	assert_int_equal(vmad_card_tick(server.card), -1);
	assert_int_equal(vmad_card_minisock_count(server.card), 0);
	assert_int_equal(card_nic.closes, 1);
	assert_int_equal(vmad_card_export_minisock(0, 1002, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(card_nic.opens, 2);
	assert_int_equal(vmad_card_answer_kind_to_segment(1002, FIN | ACK, THEIR_NXT, 0), ACK);
}

static void test_more_frames_than_the_queue_has_buffers_come_in_turn(void **state)
{
	(void)state;
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(vmad_card_answer_kind_to_segment(1000, FIN | ACK, THEIR_NXT, 0), ACK);
	assert_int_equal(card_nic.posted_n, card_nic.qp.rx_depth);
}

static void test_the_state_of_vmad_counts_them(void **state)
{
	struct vma_vmad_interface interface = {.minisocks_fin_wait = 1};

	(void)state;
	vmad_card_add_minisock_counts(server.card, &interface);
	assert_int_equal(vmad_card_export_minisock(0, 1000, VMA_MINISOCK_FIN_WAIT), 0);
	assert_int_equal(vmad_card_export_minisock(0, 1001, VMA_MINISOCK_RESET), 0);
	vmad_card_add_minisock_counts(server.card, &interface);
	assert_int_equal(interface.minisocks_fin_wait, 2);
	assert_int_equal(interface.minisocks_reset, 1);
	assert_int_equal(interface.minisocks_time_wait, 0);
}

static void test_a_frame_is_read_with_and_without_a_tag(void **state)
{
	struct xdp_minisock_segment segment;

	(void)state;
	for (uint16_t vlan = 0; vlan <= 7; vlan += 7) {
		const struct frame frame = make_tcp_frame_with_timestamps(1000, FIN | ACK, THEIR_NXT, 20, vlan);

		assert_true(vmad_card_parse_segment(frame.bytes, frame.len, true, &segment));
		assert_int_equal(segment.key.vlan, vlan);
		assert_int_equal(segment.key.peer_port, htons(1000));
		assert_int_equal(segment.key.local_port, htons(80));
		assert_memory_equal(&segment.key.peer, "\x0a\0\0\2", 4);
		assert_memory_equal(&segment.key.local, "\x0a\0\0\1", 4);
		assert_int_equal(segment.payload_bytes, 20);
		assert_int_equal(segment.tcp_flags, FIN | ACK);
		assert_int_equal(segment.seq, THEIR_NXT);
		assert_int_equal(segment.ack, OUR_NXT);
		assert_int_equal(segment.has_ts, 1);
		/* Cut in its payload: as if there were more buffers. */
		assert_false(vmad_card_parse_segment(frame.bytes, frame.len - 20, true, &segment));
		assert_true(vmad_card_parse_segment(frame.bytes, frame.len - 20, false, &segment));
		assert_int_equal(segment.payload_bytes, 20);
		for (uint32_t len = 0; len < frame.len - 20; len++) {
			uint8_t *cut = malloc(len + 1);

			memcpy(cut, frame.bytes, len);
			assert_false(vmad_card_parse_segment(cut, len, false, &segment));
			free(cut);
		}
	}
}

static void test_what_is_no_segment_is_not_read(void **state)
{
	static const struct {
		uint8_t at, value;
	} wrong[] = {
	        {12, 0x86},                 /* another protocol than IP */
	        {14, 0x65},                 /* IPv6 */
	        {14, 0x44},                 /* a header that is shorter than one */
	        {14, 0x4f},                 /* one that is longer than the packet */
	        {16, 0x40},                 /* a packet that is longer than the frame */
	        {17, 39},                   /* one that has no room for TCP's header */
	        {20, 0x20},        {21, 1}, /* fragments */
	        {23, IPPROTO_UDP},          /* UDP */
	        {46, 4 << 4},               /* TCP's header, too short */
	        {46, 15 << 4},              /* and too long */
	};
	struct xdp_minisock_segment segment;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct frame frame = make_tcp_frame_with_timestamps(1000, ACK, THEIR_NXT, 0, 0);

		frame.bytes[wrong[i].at] = wrong[i].value;
		if (vmad_card_parse_segment(frame.bytes, frame.len, true, &segment))
			fail_msg("byte %u: 0x%x is taken", wrong[i].at, wrong[i].value);
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const struct CMUnitTest tests[] = {
        CASE(test_the_device_is_open_while_there_are_minisocks_and_two_seconds_longer),
        CASE(test_without_a_card_nothing_is_taken),
        CASE(test_only_a_client_with_cap_net_raw_leaves_anything),
        CASE(test_a_late_fin_is_acknowledged_and_acknowledged_again),
        CASE(test_data_that_nobody_will_read_is_reset),
        CASE(test_the_peer_of_a_connection_that_was_cut_is_probed_and_reset),
        CASE(test_what_is_anybody_elses_is_not_taken),
        CASE(test_if_the_card_has_no_room_the_kernel_gets_what_comes),
        CASE(test_a_connection_of_a_message_that_makes_no_sense_is_left_out),
        CASE(test_a_syn_that_the_kernel_has_a_socket_for_is_given_to_it),
        CASE(test_a_client_that_has_the_connection_anew_gets_no_reset),
        CASE(test_the_answer_to_a_syn_ends_it_without_a_word),
        CASE(test_the_same_connection_left_twice_has_one_rule),
        CASE(test_all_end_with_the_device_and_the_next_opens_it_anew),
        CASE(test_more_frames_than_the_queue_has_buffers_come_in_turn),
        CASE(test_the_state_of_vmad_counts_them),
        CASE(test_a_frame_is_read_with_and_without_a_tag),
        CASE(test_what_is_no_segment_is_not_read),
};

VMA_TEST_MAIN(tests)
