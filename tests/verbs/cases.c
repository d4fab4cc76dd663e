/*
 * cases NAME: one case of a program that uses two cards, vmasoft0 and vmasoft1, which one wire joins. Exit status 0:
 * all was as expected. Without a name it lists them, "NAME: sentence". tests/e2e/verbs_card.sh runs them.
 *
 * A case whose name begins with break_ breaks a rule: its process is to be aborted by the driver, with a message.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	DEPTH = 16,
	ROOM = 2048, /* for one frame */
	PORT = 7000,
};

#define EXPECT(condition)                                                                                              \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: not so: %s (errno %s)\n", __func__, __LINE__, #condition,              \
			        strerror(errno));                                                                      \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* One side: a card with everything that it takes to send and receive. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory; /* DEPTH places of ROOM bytes, sends; then as many, receives */
	uint8_t mac[6];
};
static struct side a, b;

/* ---- what cases are made of ---- */

static uint8_t *memory_slot_of_side(struct side *side, int i)
{
	return side->memory + (size_t)i * ROOM;
}

static struct ibv_sge sge_of_memory(struct side *side, const void *at, uint32_t length)
{
	return (struct ibv_sge){.addr = (uintptr_t)at, .length = length, .lkey = side->mr->lkey};
}

static void side_open_device_and_create_objects(struct side *side, const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	union ibv_gid gid;

	EXPECT(list);
	for (int i = 0; list[i]; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			side->context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	EXPECT(side->context);
	EXPECT(ibv_query_gid(side->context, 1, 0, &gid) == 0);
	memcpy(side->mac, (uint8_t[]){gid.raw[8] ^ 2, gid.raw[9], gid.raw[10], gid.raw[13], gid.raw[14], gid.raw[15]},
	       6);
	side->pd = ibv_alloc_pd(side->context);
	side->channel = ibv_create_comp_channel(side->context);
	EXPECT(side->pd && side->channel);
	side->memory = aligned_alloc(4096, 2 * DEPTH * ROOM);
	EXPECT(side->memory);
	memset(side->memory, 0, 2 * DEPTH * ROOM);
	side->mr = ibv_reg_mr(side->pd, side->memory, 2 * DEPTH * ROOM, IBV_ACCESS_LOCAL_WRITE);
	side->cq = ibv_create_cq(side->context, 4 * DEPTH, NULL, side->channel, 0);
	EXPECT(side->mr && side->cq);
}

static void qp_move_through_states(struct ibv_qp *qp, enum ibv_qp_state last)
{
	struct ibv_qp_attr attr = {.port_num = 1};

	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= last; state++) {
		attr.qp_state = state;
		EXPECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | (state == IBV_QPS_INIT ? IBV_QP_PORT : 0)) == 0);
	}
}

static int qp_set_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static struct ibv_qp_init_attr qp_attr(struct side *side)
{
	return (struct ibv_qp_init_attr){
	        .send_cq = side->cq,
	        .recv_cq = side->cq,
	        .cap = {.max_send_wr = DEPTH,
	                .max_recv_wr = DEPTH,
	                .max_send_sge = 4,
	                .max_recv_sge = 4,
	                .max_inline_data = 128},
	        .qp_type = IBV_QPT_RAW_PACKET,
	};
}

static struct ibv_qp *qp_new(struct side *side)
{
	struct ibv_qp_init_attr attr = qp_attr(side);
	struct ibv_qp *qp = ibv_create_qp(side->pd, &attr);

	EXPECT(qp);
	return qp;
}

static void cards_open_both_sides(void)
{
	side_open_device_and_create_objects(&a, "vmasoft0");
	side_open_device_and_create_objects(&b, "vmasoft1");
	a.qp = qp_new(&a);
	b.qp = qp_new(&b);
	qp_move_through_states(a.qp, IBV_QPS_RTS);
	qp_move_through_states(b.qp, IBV_QPS_RTS);
}

static void side_destroy_verbs_objects(struct side *side)
{
	if (side->qp)
		EXPECT(ibv_destroy_qp(side->qp) == 0);
	EXPECT(ibv_destroy_cq(side->cq) == 0);
	EXPECT(ibv_destroy_comp_channel(side->channel) == 0);
	EXPECT(ibv_dereg_mr(side->mr) == 0);
	EXPECT(ibv_dealloc_pd(side->pd) == 0);
	EXPECT(ibv_close_device(side->context) == 0);
	free(side->memory);
}

static void cards_close_both_sides(void)
{
	side_destroy_verbs_objects(&a);
	side_destroy_verbs_objects(&b);
}

struct headers {
	struct ether_header eth;
	struct iphdr ip;
	struct udphdr udp;
} __attribute__((packed));

/* A datagram from a to b without its sums; its bytes count up. The length of the frame. */
static uint32_t frame_build_udp(uint8_t *at, uint16_t port, uint16_t bytes)
{
	struct headers *headers = (struct headers *)at;

	*headers = (struct headers){
	        .eth = {.ether_type = htons(ETHERTYPE_IP)},
	        .ip = {.version = 4,
	               .ihl = 5,
	               .ttl = 64,
	               .protocol = IPPROTO_UDP,
	               .tot_len = htons((uint16_t)(28 + bytes)),
	               .saddr = inet_addr("10.9.0.1"),
	               .daddr = inet_addr("10.9.0.2")},
	        .udp = {.source = htons(4000),
	                .dest = htons(port),
	                .len = htons((uint16_t)(8 + bytes)),
	                .check = 0x1234},
	};
	memcpy(headers->eth.ether_dhost, b.mac, 6);
	memcpy(headers->eth.ether_shost, a.mac, 6);
	for (int i = 0; i < bytes; i++)
		at[sizeof(*headers) + (size_t)i] = (uint8_t)(i * 7);
	return (uint32_t)sizeof(*headers) + bytes;
}

static struct ibv_flow *create_ibv_flow_to_qp(struct ibv_qp *qp, enum ibv_flow_spec_type type, uint16_t port,
                                              uint16_t priority)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_ipv4 ip;
		struct ibv_flow_spec_tcp_udp udp;
	} rule = {
	        .attr = {.type = IBV_FLOW_ATTR_NORMAL,
	                 .size = sizeof(rule),
	                 .priority = priority,
	                 .num_of_specs = 3,
	                 .port = 1},
	        .eth = {.type = IBV_FLOW_SPEC_ETH,
	                .size = sizeof(rule.eth),
	                .val.ether_type = htons(ETHERTYPE_IP),
	                .mask.ether_type = 0xffff},
	        .ip = {.type = IBV_FLOW_SPEC_IPV4,
	               .size = sizeof(rule.ip),
	               .val.dst_ip = inet_addr("10.9.0.2"),
	               .mask.dst_ip = 0xffffffff},
	        .udp = {.type = type, .size = sizeof(rule.udp), .val.dst_port = htons(port), .mask.dst_port = 0xffff},
	};

	memcpy(rule.eth.val.dst_mac, b.mac, 6);
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	return ibv_create_flow(qp, &rule.attr);
}

static struct ibv_flow *udp_port_rule_new(struct ibv_qp *qp, uint16_t port, uint16_t priority)
{
	return create_ibv_flow_to_qp(qp, IBV_FLOW_SPEC_UDP, port, priority);
}

static int post_receive(struct side *side, struct ibv_qp *qp, int i, uint32_t length)
{
	struct ibv_sge sge = sge_of_memory(side, memory_slot_of_side(side, DEPTH + i), length);
	struct ibv_recv_wr wr = {.wr_id = 100 + (uint64_t)i, .sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

static int post_send(struct ibv_qp *qp, uint64_t wr_id, struct ibv_sge *list, int n, unsigned int flags)
{
	struct ibv_send_wr wr = {
	        .wr_id = wr_id, .sg_list = list, .num_sge = n, .opcode = IBV_WR_SEND, .send_flags = flags};
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static int send_frame(uint64_t wr_id, uint16_t port, uint16_t bytes, unsigned int flags)
{
	uint8_t *frame = memory_slot_of_side(&a, (int)(wr_id % DEPTH));
	struct ibv_sge sge = sge_of_memory(&a, frame, frame_build_udp(frame, port, bytes));

	return post_send(a.qp, wr_id, &sge, 1, flags);
}

/* Waits for one completion, 10 s at most. */
static struct ibv_wc await_completion(struct side *side)
{
	struct timespec pause = {.tv_nsec = 100000};
	struct ibv_wc wc;
	int n = 0;

	for (int i = 0; i < 100000 && n == 0; i++) {
		n = ibv_poll_cq(side->cq, 1, &wc);
		if (n == 0)
			nanosleep(&pause, NULL);
	}
	EXPECT(n == 1);
	return wc;
}

/* Nothing within a time in which a card does much more. */
static void expect_no_completion(struct side *side)
{
	struct ibv_wc wc;

	usleep(100000);
	EXPECT(ibv_poll_cq(side->cq, 1, &wc) == 0);
}

/* What the control of a card is asked. */
static void card_control_command(struct side *side, const char *command)
{
	char path[512], socket[128] = "", line[1024];
	FILE *file;

	snprintf(path, sizeof(path), "%s/card", side->context->device->ibdev_path);
	file = fopen(path, "re");
	EXPECT(file && fscanf(file, "%127s", socket) == 1);
	fclose(file);
	snprintf(line, sizeof(line), "LD_PRELOAD= %s --control %s '%s'", getenv("VERBS_CARD"), socket, command);
	EXPECT(system(line) == 0);
}

static enum ibv_event_type await_async_event(struct side *side)
{
	struct pollfd fd = {.fd = side->context->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	EXPECT(poll(&fd, 1, 10000) == 1);
	EXPECT(ibv_get_async_event(side->context, &event) == 0);
	ibv_ack_async_event(&event);
	return event.event_type;
}

/* ---- the way of a frame ---- */

static void scatter_gather_frame_is_sent_and_received(void)
{
	uint8_t *frame, *got;
	struct ibv_flow *rule;
	struct ibv_sge parts[3], room[2];
	struct ibv_recv_wr wr = {.wr_id = 5, .sg_list = room, .num_sge = 2}, *bad;
	struct ibv_wc wc;
	uint32_t len;

	cards_open_both_sides();
	frame = memory_slot_of_side(&a, 0), got = memory_slot_of_side(&b, DEPTH);
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(rule);
	len = frame_build_udp(frame, PORT, 1000);
	parts[0] = sge_of_memory(&a, frame, 14);
	parts[1] = sge_of_memory(&a, frame + 14, 28);
	parts[2] = sge_of_memory(&a, frame + 42, len - 42);
	room[0] = sge_of_memory(&b, got, 100);
	room[1] = sge_of_memory(&b, got + 100, ROOM - 100);
	EXPECT(ibv_post_recv(b.qp, &wr, &bad) == 0);
	EXPECT(post_send(a.qp, 9, parts, 3, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM) == 0);
	wc = await_completion(&a);
	EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == 9 && wc.opcode == IBV_WC_SEND && wc.qp_num == a.qp->qp_num);
	wc = await_completion(&b);
	EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.opcode == IBV_WC_RECV && wc.byte_len == len);
	EXPECT(wc.wc_flags & IBV_WC_IP_CSUM_OK);
	/* The sums are the card's, everything else is as it was sent. */
	EXPECT(memcmp(got, frame, 24) == 0 && memcmp(got + 26, frame + 26, 14) == 0);
	EXPECT(memcmp(got + 42, frame + 42, len - 42) == 0);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void wrong_rx_checksum_clears_csum_ok_flag(void)
{
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0 && send_frame(1, PORT, 100, IBV_SEND_SIGNALED) == 0);
	EXPECT(await_completion(&a).status == IBV_WC_SUCCESS);
	EXPECT((await_completion(&b).wc_flags & IBV_WC_IP_CSUM_OK) == 0);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void inline_send_data_may_change_after_post(void)
{
	uint8_t data[64];
	struct ibv_sge sge = {.addr = (uintptr_t)data, .lkey = 0};
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0);
	sge.length = frame_build_udp(data, PORT, 22);
	EXPECT(post_send(a.qp, 1, &sge, 1, IBV_SEND_SIGNALED | IBV_SEND_INLINE) == 0);
	memset(data, 0xff, sizeof(data));
	EXPECT(await_completion(&b).byte_len == 64);
	EXPECT(memory_slot_of_side(&b, DEPTH)[63] == (uint8_t)(21 * 7));
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void short_frame_is_padded(void)
{
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0 && send_frame(1, PORT, 1, IBV_SEND_SIGNALED) == 0);
	EXPECT(await_completion(&b).byte_len == 60);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void only_signalled_sends_complete(void)
{
	cards_open_both_sides();
	for (uint64_t i = 0; i < 8; i++)
		EXPECT(send_frame(i, PORT + 1, 20, i % 4 == 3 ? IBV_SEND_SIGNALED : 0) == 0);
	EXPECT(await_completion(&a).wr_id == 3);
	EXPECT(await_completion(&a).wr_id == 7);
	expect_no_completion(&a);
	cards_close_both_sides();
}

static void queues_wrap_around_often(void)
{
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	for (int i = 0; i < DEPTH; i++)
		EXPECT(post_receive(&b, b.qp, i, ROOM) == 0);
	for (uint64_t i = 0; i < 20 * DEPTH; i++) {
		struct ibv_wc wc;

		EXPECT(send_frame(i, PORT, (uint16_t)(20 + i), i % 8 == 7 ? IBV_SEND_SIGNALED : 0) == 0);
		wc = await_completion(&b);
		EXPECT(wc.wr_id == 100 + i % DEPTH && wc.byte_len == 62 + i);
		EXPECT(post_receive(&b, b.qp, (int)(i % DEPTH), ROOM) == 0);
		if (i % 8 == 7)
			EXPECT(await_completion(&a).wr_id == i);
	}
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void post_by_wr_builder_calls(void)
{
	struct ibv_qp_init_attr_ex attr = {
	        .qp_type = IBV_QPT_RAW_PACKET,
	        .cap = {.max_send_wr = DEPTH,
	                .max_recv_wr = 1,
	                .max_send_sge = 2,
	                .max_recv_sge = 1,
	                .max_inline_data = 128},
	        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
	        .send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	struct ibv_flow *rule;
	uint8_t data[128], *frame;
	uint32_t len;

	cards_open_both_sides();
	attr.pd = a.pd, attr.send_cq = attr.recv_cq = a.cq;
	qp = ibv_create_qp_ex(a.context, &attr);
	EXPECT(qp);
	qp_move_through_states(qp, IBV_QPS_RTS);
	ex = ibv_qp_to_qp_ex(qp);
	EXPECT(ex && !ibv_qp_to_qp_ex(a.qp));
	rule = udp_port_rule_new(b.qp, PORT, 0);
	for (int i = 0; i < 2; i++)
		EXPECT(post_receive(&b, b.qp, i, ROOM) == 0);
	/* What is taken back is not sent. */
	ibv_wr_start(ex);
	ex->wr_id = 1, ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, data, frame_build_udp(data, PORT, 80));
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	ex->wr_id = 2, ex->wr_flags = 0;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, data, frame_build_udp(data, PORT, 50));
	frame = memory_slot_of_side(&a, 0);
	len = frame_build_udp(frame, PORT, 60);
	ex->wr_id = 3, ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 2,
	                    (struct ibv_sge[]){sge_of_memory(&a, frame, 42), sge_of_memory(&a, frame + 42, len - 42)});
	EXPECT(ibv_wr_complete(ex) == 0);
	EXPECT(await_completion(&a).wr_id == 3);
	EXPECT(await_completion(&b).byte_len == 92);
	EXPECT(await_completion(&b).byte_len == 102);
	EXPECT(ibv_destroy_flow(rule) == 0 && ibv_destroy_qp(qp) == 0);
	cards_close_both_sides();
}

/* ---- rules ---- */

static void two_equal_flow_rules_copy_frame_to_both(void)
{
	struct ibv_qp *second;
	struct ibv_flow *one, *two;
	struct ibv_wc first, other;

	cards_open_both_sides();
	second = qp_new(&b);
	qp_move_through_states(second, IBV_QPS_RTS);
	one = udp_port_rule_new(b.qp, PORT, 3), two = udp_port_rule_new(second, PORT, 3);
	EXPECT(one && two);
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0 && post_receive(&b, second, 1, ROOM) == 0);
	EXPECT(send_frame(1, PORT, 200, IBV_SEND_SIGNALED) == 0);
	first = await_completion(&b), other = await_completion(&b);
	EXPECT(first.qp_num != other.qp_num);
	EXPECT(memcmp(memory_slot_of_side(&b, DEPTH), memory_slot_of_side(&b, DEPTH + 1), 242) == 0);
	EXPECT(ibv_destroy_flow(one) == 0 && ibv_destroy_flow(two) == 0 && ibv_destroy_qp(second) == 0);
	cards_close_both_sides();
}

static void lower_priority_number_wins(void)
{
	struct ibv_qp *second;
	struct ibv_flow *late, *early;

	cards_open_both_sides();
	second = qp_new(&b);
	qp_move_through_states(second, IBV_QPS_RTS);
	late = udp_port_rule_new(b.qp, PORT, 5), early = udp_port_rule_new(second, PORT, 4);
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0 && post_receive(&b, second, 1, ROOM) == 0);
	EXPECT(send_frame(1, PORT, 200, IBV_SEND_SIGNALED) == 0);
	EXPECT(await_completion(&b).qp_num == second->qp_num);
	expect_no_completion(&b);
	EXPECT(ibv_destroy_flow(early) == 0);
	EXPECT(send_frame(2, PORT, 200, IBV_SEND_SIGNALED) == 0);
	EXPECT(await_completion(&b).qp_num == b.qp->qp_num);
	EXPECT(ibv_destroy_flow(late) == 0 && ibv_destroy_qp(second) == 0);
	cards_close_both_sides();
}

static void fragment_is_not_matched_by_port_rule(void)
{
	uint8_t *frame;
	struct ibv_sge sge;
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0);
	frame = memory_slot_of_side(&a, 0);
	sge = sge_of_memory(&a, frame, frame_build_udp(frame, PORT, 200));
	((struct headers *)frame)->ip.frag_off = htons(IP_MF);
	EXPECT(post_send(a.qp, 1, &sge, 1, IBV_SEND_SIGNALED) == 0);
	expect_no_completion(&b);
	((struct headers *)frame)->ip.frag_off = 0;
	EXPECT(post_send(a.qp, 2, &sge, 1, IBV_SEND_SIGNALED) == 0);
	EXPECT(await_completion(&b).byte_len == 242);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void qp_with_flow_rule_cannot_be_destroyed(void)
{
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(ibv_destroy_qp(b.qp) == EBUSY);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

/* Takes a port from the kernel of b, and ends when ten datagrams have come by it. */
static void card_hold_port_until_10_datagrams(void)
{
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(rule);
	for (int i = 0; i < DEPTH; i++)
		EXPECT(post_receive(&b, b.qp, i, ROOM) == 0);
	puts("holding");
	fflush(stdout);
	for (int i = 0; i < 10; i++) {
		struct ibv_wc wc = await_completion(&b);

		EXPECT(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_IP_CSUM_OK);
		EXPECT(memcmp(memory_slot_of_side(&b, DEPTH + i) + sizeof(struct headers), "datagram", 8) == 0);
	}
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void pd_and_cq_in_use_cannot_be_destroyed(void)
{
	cards_open_both_sides();
	EXPECT(ibv_dealloc_pd(a.pd) == EBUSY);
	EXPECT(ibv_destroy_cq(a.cq) == EBUSY);
	cards_close_both_sides();
}

/* ---- states and completions ---- */

static void qp_error_flushes_posted(void)
{
	cards_open_both_sides();
	for (int i = 0; i < 3; i++)
		EXPECT(post_receive(&b, b.qp, i, ROOM) == 0);
	EXPECT(qp_set_state(b.qp, IBV_QPS_ERR) == 0);
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc = await_completion(&b);

		EXPECT(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 100 + (uint64_t)i);
	}
	/* So is what is posted from then on. */
	EXPECT(post_receive(&b, b.qp, 7, ROOM) == 0);
	EXPECT(await_completion(&b).wr_id == 107);
	EXPECT(qp_set_state(b.qp, IBV_QPS_RESET) == 0);
	qp_move_through_states(b.qp, IBV_QPS_RTS);
	cards_close_both_sides();
}

static void destroyed_queue_pair_leaves_no_completion(void)
{
	struct ibv_qp *second;

	cards_open_both_sides();
	second = qp_new(&b);
	qp_move_through_states(second, IBV_QPS_INIT);
	EXPECT(post_receive(&b, second, 0, ROOM) == 0);
	EXPECT(qp_set_state(second, IBV_QPS_ERR) == 0);
	EXPECT(ibv_destroy_qp(second) == 0);
	expect_no_completion(&b);
	cards_close_both_sides();
}

static bool channel_has_event(struct side *side, int ms)
{
	struct pollfd fd = {.fd = side->channel->fd, .events = POLLIN};

	return poll(&fd, 1, ms) == 1;
}

static void completion_event_comes_once_per_arm(void)
{
	struct ibv_flow *rule;
	struct ibv_cq *cq;
	void *context;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	for (int i = 0; i < 4; i++)
		EXPECT(post_receive(&b, b.qp, i, ROOM) == 0);
	/* Not armed: no event. Armed after the completion: none either. */
	EXPECT(send_frame(1, PORT, 50, IBV_SEND_SIGNALED) == 0);
	EXPECT(!channel_has_event(&b, 200));
	EXPECT(ibv_req_notify_cq(b.cq, 0) == 0);
	EXPECT(!channel_has_event(&b, 200));
	EXPECT(await_completion(&b).wr_id == 100);
	EXPECT(send_frame(2, PORT, 50, IBV_SEND_SIGNALED) == 0 && send_frame(3, PORT, 50, IBV_SEND_SIGNALED) == 0);
	EXPECT(channel_has_event(&b, 10000));
	EXPECT(ibv_get_cq_event(b.channel, &cq, &context) == 0 && cq == b.cq);
	EXPECT(!channel_has_event(&b, 200));
	ibv_ack_cq_events(cq, 1);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void unread_event_dies_with_its_queue(void)
{
	struct ibv_cq *cq, *other;
	struct ibv_qp *qp;
	struct ibv_qp_init_attr attr;

	cards_open_both_sides();
	other = ibv_create_cq(b.context, 4, NULL, b.channel, 0);
	attr = qp_attr(&b);
	attr.send_cq = attr.recv_cq = other;
	qp = ibv_create_qp(b.pd, &attr);
	EXPECT(other && qp);
	qp_move_through_states(qp, IBV_QPS_INIT);
	EXPECT(ibv_req_notify_cq(other, 0) == 0 && ibv_req_notify_cq(b.cq, 0) == 0);
	EXPECT(post_receive(&b, qp, 0, ROOM) == 0 && post_receive(&b, b.qp, 1, ROOM) == 0);
	EXPECT(qp_set_state(qp, IBV_QPS_ERR) == 0 && qp_set_state(b.qp, IBV_QPS_ERR) == 0);
	EXPECT(channel_has_event(&b, 10000));
	EXPECT(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(other) == 0);
	/* The other one's event is still there. */
	EXPECT(channel_has_event(&b, 10000));
	EXPECT(ibv_get_cq_event(b.channel, &cq, &(void *){NULL}) == 0 && cq == b.cq);
	EXPECT(!channel_has_event(&b, 100));
	ibv_ack_cq_events(cq, 1);
	EXPECT(await_completion(&b).wr_id == 101);
	cards_close_both_sides();
}

/* ---- faults ---- */

static void fault_rules_fail(void)
{
	struct ibv_flow *rule;

	cards_open_both_sides();
	card_control_command(&b, "rules fail EOPNOTSUPP");
	errno = 0;
	EXPECT(!udp_port_rule_new(b.qp, PORT, 0) && errno == EOPNOTSUPP);
	card_control_command(&b, "rules ok");
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(rule && ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void fault_slow_rules(void)
{
	struct ibv_flow *rule;
	uint64_t begun;

	cards_open_both_sides();
	card_control_command(&b, "rules slow 300");
	begun = now_ms();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(rule && now_ms() - begun >= 300);
	card_control_command(&b, "rules slow 0");
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void fault_registration_fails(void)
{
	cards_open_both_sides();
	card_control_command(&a, "registration fail ENOMEM");
	errno = 0;
	EXPECT(!ibv_reg_mr(a.pd, a.memory, 4096, 0) && errno == ENOMEM);
	card_control_command(&a, "registration ok");
	cards_close_both_sides();
}

static void fault_failed_send(void)
{
	struct ibv_wc wc;

	cards_open_both_sides();
	card_control_command(&a, "sends fail 1");
	EXPECT(send_frame(1, PORT, 50, 0) == 0);
	wc = await_completion(&a);
	EXPECT(wc.status == IBV_WC_GENERAL_ERR && wc.wr_id == 1 && wc.qp_num == a.qp->qp_num);
	EXPECT(await_async_event(&a) == IBV_EVENT_QP_FATAL);
	EXPECT(send_frame(2, PORT, 50, 0) == 0);
	EXPECT(await_completion(&a).status == IBV_WC_WR_FLUSH_ERR);
	cards_close_both_sides();
}

static void fault_failed_receive(void)
{
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	card_control_command(&b, "receives fail 1");
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0 && post_receive(&b, b.qp, 1, ROOM) == 0);
	EXPECT(send_frame(1, PORT, 50, 0) == 0);
	EXPECT(await_completion(&b).status == IBV_WC_GENERAL_ERR);
	EXPECT(await_completion(&b).status == IBV_WC_WR_FLUSH_ERR);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

static void fault_slow_completions(void)
{
	uint64_t begun;

	cards_open_both_sides();
	card_control_command(&a, "completions slow 300000");
	begun = now_ms();
	EXPECT(send_frame(1, PORT, 50, IBV_SEND_SIGNALED) == 0);
	EXPECT(await_completion(&a).wr_id == 1 && now_ms() - begun >= 299);
	/* One that is still on its way goes with its queue pair. */
	EXPECT(send_frame(2, PORT, 50, IBV_SEND_SIGNALED) == 0);
	usleep(50000);
	EXPECT(ibv_destroy_qp(a.qp) == 0);
	a.qp = NULL;
	usleep(300000);
	expect_no_completion(&a);
	card_control_command(&a, "completions slow 0");
	cards_close_both_sides();
}

static void fault_port_goes_down(void)
{
	struct ibv_port_attr port;

	cards_open_both_sides();
	card_control_command(&a, "port down");
	EXPECT(await_async_event(&a) == IBV_EVENT_PORT_ERR);
	EXPECT(ibv_query_port(a.context, 1, &port) == 0 && port.state == IBV_PORT_DOWN);
	card_control_command(&a, "port up");
	EXPECT(await_async_event(&a) == IBV_EVENT_PORT_ACTIVE);
	EXPECT(ibv_query_port(a.context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
	cards_close_both_sides();
}

/* The last case of a pair of cards. */
static void last_removed_device_is_reported(void)
{
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	card_control_command(&b, "remove");
	EXPECT(await_async_event(&b) == IBV_EVENT_DEVICE_FATAL);
	errno = 0;
	EXPECT(!ibv_create_cq(b.context, 4, NULL, NULL, 0) && errno == EIO);
	errno = 0;
	EXPECT(!ibv_reg_mr(b.pd, b.memory, 4096, 0) && errno == EIO);
	EXPECT(qp_set_state(b.qp, IBV_QPS_ERR) == EIO);
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0);
	expect_no_completion(&b);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

/* What was opened before the device went stays without it. */
static void last_inserted_device_is_another_one(void)
{
	struct ibv_device_attr attr;
	struct ibv_flow *rule;

	cards_open_both_sides();
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(rule != NULL);
	card_control_command(&b, "remove");
	EXPECT(await_async_event(&b) == IBV_EVENT_DEVICE_FATAL);
	card_control_command(&b, "insert");
	EXPECT(ibv_query_device(b.context, &attr) == EIO);
	errno = 0;
	EXPECT(!ibv_create_cq(b.context, 4, NULL, NULL, 0) && errno == EIO);
	EXPECT(ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
	cards_open_both_sides();
	EXPECT(ibv_query_device(b.context, &attr) == 0);
	rule = udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(rule != NULL && ibv_destroy_flow(rule) == 0);
	cards_close_both_sides();
}

/* Uses the cards until that of b has ended: calls fail then, and none waits for ever. */
static void card_use_until_it_ends(void)
{
	struct ibv_port_attr port;
	struct timespec pause = {.tv_nsec = 10000000};
	int error = 0;

	cards_open_both_sides();
	puts("holding");
	fflush(stdout);
	for (int i = 0; i < 2000 && !error; i++) {
		error = ibv_query_port(b.context, 1, &port);
		nanosleep(&pause, NULL);
	}
	EXPECT(error == EIO);
	EXPECT(post_receive(&b, b.qp, 0, ROOM) == 0);
	expect_no_completion(&b);
	EXPECT(ibv_destroy_qp(b.qp) == EIO);
	EXPECT(ibv_close_device(b.context) == 0);
	EXPECT(ibv_query_port(a.context, 1, &port) == 0 && port.state == IBV_PORT_DOWN);
	side_destroy_verbs_objects(&a);
}

/* ---- broken rules ---- */

static void break_send_in_state(void)
{
	cards_open_both_sides();
	EXPECT(qp_set_state(a.qp, IBV_QPS_RESET) == 0);
	send_frame(1, PORT, 50, 0);
}

static void break_qp_state_transition(void)
{
	cards_open_both_sides();
	qp_set_state(a.qp, IBV_QPS_RTR);
}

static void break_send_outside_registered_memory(void)
{
	struct ibv_sge sge;

	cards_open_both_sides();
	sge = sge_of_memory(&a, a.memory + 2 * DEPTH * ROOM - 50, 60);
	post_send(a.qp, 1, &sge, 1, IBV_SEND_SIGNALED);
	await_completion(&a);
	await_completion(&a);
}

static void break_send_with_unregistered_lkey(void)
{
	struct ibv_sge sge;

	cards_open_both_sides();
	sge = sge_of_memory(&a, a.memory, 60);
	EXPECT(ibv_dereg_mr(a.mr) == 0);
	post_send(a.qp, 1, &sge, 1, IBV_SEND_SIGNALED);
	await_completion(&a);
	await_completion(&a);
}

static void break_send_queue_full_of_unsignalled(void)
{
	cards_open_both_sides();
	for (uint64_t i = 0; i <= DEPTH; i++)
		send_frame(i, PORT, 50, 0);
}

static void break_send_overrun(void)
{
	cards_open_both_sides();
	for (uint64_t i = 0; i <= DEPTH; i++)
		send_frame(i, PORT, 50, IBV_SEND_SIGNALED);
}

static void break_receive_overrun(void)
{
	cards_open_both_sides();
	for (int i = 0; i <= DEPTH; i++)
		post_receive(&b, b.qp, i % DEPTH, ROOM);
}

static void break_completion_overrun(void)
{
	struct ibv_cq *cq;
	struct ibv_qp_init_attr attr;
	struct ibv_qp *qp;

	cards_open_both_sides();
	cq = ibv_create_cq(b.context, 2, NULL, NULL, 0);
	attr = qp_attr(&b);
	attr.recv_cq = cq;
	qp = ibv_create_qp(b.pd, &attr);
	qp_move_through_states(qp, IBV_QPS_INIT);
	for (int i = 0; i < 3; i++)
		EXPECT(post_receive(&b, qp, i, ROOM) == 0);
	qp_set_state(qp, IBV_QPS_ERR);
	ibv_poll_cq(b.cq, 1, &(struct ibv_wc){0});
}

static void break_used_after_destroy(void)
{
	struct ibv_qp *qp;

	cards_open_both_sides();
	qp = qp_new(&a);
	EXPECT(ibv_destroy_qp(qp) == 0);
	qp_move_through_states(qp, IBV_QPS_INIT);
}

static void break_receive_buffer_too_small(void)
{
	cards_open_both_sides();
	udp_port_rule_new(b.qp, PORT, 0);
	EXPECT(post_receive(&b, b.qp, 0, 64) == 0);
	EXPECT(send_frame(1, PORT, 100, 0) == 0);
	await_completion(&b);
	await_completion(&b);
}

static void break_receive_into_read_only_memory(void)
{
	struct ibv_recv_wr wr = {.num_sge = 1}, *bad;
	struct ibv_mr *mr;
	struct ibv_sge sge;

	cards_open_both_sides();
	udp_port_rule_new(b.qp, PORT, 0);
	mr = ibv_reg_mr(b.pd, b.memory, ROOM, 0);
	EXPECT(mr);
	sge = (struct ibv_sge){.addr = (uintptr_t)b.memory, .length = ROOM, .lkey = mr->lkey};
	wr.sg_list = &sge;
	EXPECT(ibv_post_recv(b.qp, &wr, &bad) == 0);
	EXPECT(send_frame(1, PORT, 100, 0) == 0);
	await_completion(&b);
	await_completion(&b);
}

static void break_send_frame_over_mtu(void)
{
	cards_open_both_sides();
	EXPECT(send_frame(1, PORT, 1600, 0) == 0);
	await_completion(&a);
	await_completion(&a);
}

/* The child is what breaks the rule; this process ends as it did. */
static void break_use_of_qp_in_forked_child(void)
{
	int status;
	pid_t child;

	cards_open_both_sides();
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		post_receive(&b, b.qp, 0, ROOM);
		_exit(0);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	if (WIFSIGNALED(status))
		abort();
}

/* Run without CAP_NET_RAW. */
static void break_no_right(void)
{
	struct ibv_qp_init_attr attr;

	side_open_device_and_create_objects(&a, "vmasoft0");
	attr = qp_attr(&a);
	EXPECT(!ibv_create_qp(a.pd, &attr) && errno == EPERM);
	ibv_poll_cq(a.cq, 1, &(struct ibv_wc){0});
}

/* ---- segmentation offload ---- */

enum { TSO_MSS = 1000, TSO_BYTES = 2500, TSO_SEQ = 0xfffffe00, TSO_ID = 0xffff };

struct tcp_headers {
	struct ether_header eth;
	struct iphdr ip;
	struct tcphdr tcp;
	uint8_t options[12];
} __attribute__((packed));

/* A queue pair of a for it. */
static struct ibv_qp *create_tso_qp(uint32_t max_header)
{
	struct ibv_qp_init_attr_ex attr = {
	        .send_cq = a.cq,
	        .recv_cq = a.cq,
	        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 4, .max_recv_sge = 1},
	        .qp_type = IBV_QPT_RAW_PACKET,
	        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
	        .pd = a.pd,
	        .max_tso_header = (uint16_t)max_header,
	        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(a.context, &attr);

	EXPECT(qp);
	qp_move_through_states(qp, IBV_QPS_RTS);
	return qp;
}

/* Numbers that go round within it, each flag that is not every segment's, no sums. */
static struct tcp_headers tso_headers(void)
{
	struct tcp_headers headers = {
	        .eth = {.ether_type = htons(ETHERTYPE_IP)},
	        .ip = {.version = 4,
	               .ihl = 5,
	               .id = htons(TSO_ID),
	               .ttl = 64,
	               .protocol = IPPROTO_TCP,
	               .tot_len = htons(20 + 32 + TSO_BYTES),
	               .saddr = inet_addr("10.9.0.1"),
	               .daddr = inet_addr("10.9.0.2")},
	        .tcp = {.source = htons(4000),
	                .dest = htons(PORT),
	                .seq = htonl(TSO_SEQ),
	                .ack_seq = htonl(77),
	                .doff = 8,
	                .ack = 1,
	                .psh = 1,
	                .fin = 1,
	                .window = htons(1234)},
	        .options = {1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8},
	};

	((uint8_t *)&headers.tcp)[13] |= 0x80; /* CWR */
	memcpy(headers.eth.ether_dhost, b.mac, 6);
	memcpy(headers.eth.ether_shost, a.mac, 6);
	return headers;
}

/* The payload of TSO_BYTES in two pieces, in two places. */
static void tso_fill_payload_in_two_sges(struct ibv_sge list[2])
{
	for (int i = 0; i < TSO_BYTES; i++)
		memory_slot_of_side(&a, i < 1300 ? 0 : 1)[i < 1300 ? i : i - 1300] = (uint8_t)(i * 7 + (i >> 8));
	list[0] = sge_of_memory(&a, memory_slot_of_side(&a, 0), 1300);
	list[1] = sge_of_memory(&a, memory_slot_of_side(&a, 1), TSO_BYTES - 1300);
}

static int post_tso_send(struct ibv_qp *qp, struct tcp_headers *headers, size_t header_bytes, uint16_t mss,
                         unsigned int flags)
{
	struct ibv_sge list[2];
	struct ibv_send_wr wr = {.wr_id = 7,
	                         .sg_list = list,
	                         .num_sge = 2,
	                         .opcode = IBV_WR_TSO,
	                         .send_flags = IBV_SEND_SIGNALED | flags,
	                         .tso = {.hdr = headers, .hdr_sz = (uint16_t)header_bytes, .mss = mss}};
	struct ibv_send_wr *bad;

	tso_fill_payload_in_two_sges(list);
	return ibv_post_send(qp, &wr, &bad);
}

static void tso_expect_segment(uint32_t at)
{
	const uint32_t n = TSO_BYTES - at < TSO_MSS ? TSO_BYTES - at : TSO_MSS;
	const struct tcp_headers *got;
	const uint8_t *bytes;
	struct ibv_wc wc = await_completion(&b);
	const bool is_last = at + n == TSO_BYTES;

	EXPECT(wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof(*got) + n && wc.wc_flags & IBV_WC_IP_CSUM_OK);
	bytes = memory_slot_of_side(&b, (int)wc.wr_id - 100 + DEPTH);
	got = (const struct tcp_headers *)bytes;
	EXPECT(got->ip.tot_len == htons((uint16_t)(52 + n)) && got->ip.id == htons((uint16_t)(TSO_ID + at / TSO_MSS)));
	EXPECT(got->tcp.seq == htonl(TSO_SEQ + at) && got->tcp.ack_seq == htonl(77) && got->tcp.ack);
	EXPECT(got->tcp.psh == is_last && got->tcp.fin == is_last);
	EXPECT((((const uint8_t *)&got->tcp)[13] & 0x80) == (at == 0 ? 0x80 : 0));
	EXPECT(got->options[4] == 1 && got->options[11] == 8);
	for (uint32_t i = 0; i < n; i++)
		EXPECT(bytes[sizeof(*got) + i] == (uint8_t)((at + i) * 7 + ((at + i) >> 8)));
}

static void tso_send_is_cut_into_segments(void)
{
	struct tcp_headers headers;
	struct ibv_sge list[2];
	struct ibv_flow *rule;
	struct ibv_qp_ex *ex;
	struct ibv_qp *qp;

	cards_open_both_sides();
	headers = tso_headers();
	qp = create_tso_qp(sizeof(headers));
	rule = create_ibv_flow_to_qp(b.qp, IBV_FLOW_SPEC_TCP, PORT, 0);
	EXPECT(rule);
	for (int i = 0; i < 6; i++)
		EXPECT(post_receive(&b, b.qp, i, ROOM) == 0);
	EXPECT(post_tso_send(qp, &headers, sizeof(headers), TSO_MSS, IBV_SEND_IP_CSUM) == 0);
	EXPECT(await_completion(&a).status == IBV_WC_SUCCESS);
	for (uint32_t at = 0; at < TSO_BYTES; at += TSO_MSS)
		tso_expect_segment(at);
	tso_fill_payload_in_two_sges(list);
	ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	ex->wr_id = 8, ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
	ibv_wr_send_tso(ex, &headers, sizeof(headers), TSO_MSS);
	ibv_wr_set_sge_list(ex, 2, list);
	EXPECT(ibv_wr_complete(ex) == 0);
	EXPECT(await_completion(&a).wr_id == 8);
	for (uint32_t at = 0; at < TSO_BYTES; at += TSO_MSS)
		tso_expect_segment(at);
	expect_no_completion(&b);
	EXPECT(ibv_destroy_flow(rule) == 0 && ibv_destroy_qp(qp) == 0);
	cards_close_both_sides();
}

/* Whatever the card finds comes with the next call. */
static void post_tso_breaking_a_rule(uint32_t max_header, struct tcp_headers *headers, size_t header_bytes,
                                     uint16_t mss, unsigned int flags)
{
	if (post_tso_send(max_header != 0 ? create_tso_qp(max_header) : a.qp, headers, header_bytes, mss, flags) == 0) {
		await_completion(&a);
		await_completion(&a);
	}
}

static void break_tso_on_qp_without_tso(void)
{
	struct tcp_headers headers;

	cards_open_both_sides();
	headers = tso_headers();
	post_tso_breaking_a_rule(0, &headers, sizeof(headers), TSO_MSS, IBV_SEND_IP_CSUM);
}

static void break_tso_long_header(void)
{
	struct tcp_headers headers;

	cards_open_both_sides();
	headers = tso_headers();
	post_tso_breaking_a_rule(64, &headers, sizeof(headers), TSO_MSS, IBV_SEND_IP_CSUM);
}

static void break_tso_without_checksum_offload(void)
{
	struct tcp_headers headers;

	cards_open_both_sides();
	headers = tso_headers();
	post_tso_breaking_a_rule(128, &headers, sizeof(headers), TSO_MSS, 0);
}

static void break_tso_short_header(void)
{
	struct tcp_headers headers;

	cards_open_both_sides();
	headers = tso_headers();
	post_tso_breaking_a_rule(128, &headers, sizeof(headers) - 12, TSO_MSS, IBV_SEND_IP_CSUM);
}

static void break_tso_with_wrong_ip_length(void)
{
	struct tcp_headers headers;

	cards_open_both_sides();
	headers = tso_headers();
	headers.ip.tot_len = htons(1500);
	post_tso_breaking_a_rule(128, &headers, sizeof(headers), TSO_MSS, IBV_SEND_IP_CSUM);
}

static void break_tso_with_mss_too_large(void)
{
	struct tcp_headers headers;

	cards_open_both_sides();
	headers = tso_headers();
	post_tso_breaking_a_rule(128, &headers, sizeof(headers), 1449, IBV_SEND_IP_CSUM);
}

static void break_tso_urgent(void)
{
	struct tcp_headers headers;

	cards_open_both_sides();
	headers = tso_headers();
	headers.tcp.urg = 1;
	post_tso_breaking_a_rule(128, &headers, sizeof(headers), TSO_MSS, IBV_SEND_IP_CSUM);
}

#define CASES                                                                                                          \
	X(scatter_gather_frame_is_sent_and_received,                                                                   \
	  "a frame of three pieces arrives whole in two, with the sums that the card made")                            \
	X(wrong_rx_checksum_clears_csum_ok_flag, "a wrong checksum is not told as right")                              \
	X(inline_send_data_may_change_after_post, "inline data may change as soon as it is posted")                    \
	X(short_frame_is_padded, "a short frame is padded to 60 bytes")                                                \
	X(only_signalled_sends_complete, "only signalled sends complete")                                              \
	X(queues_wrap_around_often, "queues go round many times")                                                      \
	X(post_by_wr_builder_calls, "ibv_wr_*: lists and inline data are sent, what is aborted is not")                \
	X(tso_send_is_cut_into_segments,                                                                               \
	  "a large packet of TCP is cut into segments, by ibv_post_send and by ibv_wr_*")                              \
	X(two_equal_flow_rules_copy_frame_to_both, "the same rule of two queue pairs gives each a copy")               \
	X(lower_priority_number_wins, "the rule with the lower priority number gets the frame, alone")                 \
	X(fragment_is_not_matched_by_port_rule, "a rule with a port takes no fragment")                                \
	X(card_hold_port_until_10_datagrams, "a queue pair takes a port, and the kernel keeps the rest")               \
	X(card_use_until_it_ends, "a card that ends makes calls fail, and none wait")                                  \
	X(pd_and_cq_in_use_cannot_be_destroyed, "what is in use cannot be destroyed: a domain, a completion queue")    \
	X(qp_with_flow_rule_cannot_be_destroyed, "a queue pair with a rule cannot be destroyed")                       \
	X(qp_error_flushes_posted, "ERR flushes what is posted, in order, and what is posted later")                   \
	X(destroyed_queue_pair_leaves_no_completion, "a destroyed queue pair leaves no completion")                    \
	X(completion_event_comes_once_per_arm, "an armed queue gives one event, and none for what was there before")   \
	X(unread_event_dies_with_its_queue, "an unread event goes with its queue, others stay")                        \
	X(fault_rules_fail, "fault: no rules")                                                                         \
	X(fault_slow_rules, "fault: rules take long")                                                                  \
	X(fault_registration_fails, "fault: no registration")                                                          \
	X(fault_failed_send, "fault: a send fails, and the queue pair with it")                                        \
	X(fault_failed_receive, "fault: a receive fails, and the queue pair with it")                                  \
	X(fault_slow_completions, "fault: completions come late")                                                      \
	X(fault_port_goes_down, "fault: the port goes down and comes back")                                            \
	X(break_send_in_state, "a send is posted in state")                                                            \
	X(break_qp_state_transition, "ibv_modify_qp from state|no way from state")                                     \
	X(break_send_outside_registered_memory, "it is outside the registered memory")                                 \
	X(break_send_with_unregistered_lkey, "no memory is registered under this key")                                 \
	X(break_send_queue_full_of_unsignalled, "nothing was signalled")                                               \
	X(break_send_overrun, "overrun of the send queue")                                                             \
	X(break_receive_overrun, "overrun of the receive queue")                                                       \
	X(break_completion_overrun, "completion queue .*: overrun")                                                    \
	X(break_used_after_destroy, "a queue pair is used after it was destroyed")                                     \
	X(break_receive_buffer_too_small, "a frame of 142 bytes came, and 64 were posted")                             \
	X(break_receive_into_read_only_memory, "registered without IBV_ACCESS_LOCAL_WRITE")                            \
	X(break_send_frame_over_mtu, "a frame of 1642 bytes is sent")                                                  \
	X(break_tso_on_qp_without_tso, "it was not made for segmentation offload")                                     \
	X(break_tso_long_header, "a header of 66 bytes to be repeated, it was made for 64")                            \
	X(break_tso_without_checksum_offload, "segmentation offload without checksums")                                \
	X(break_tso_short_header, "the header does not end where TCP's does")                                          \
	X(break_tso_with_wrong_ip_length, "the length in the header is not that of the packet")                        \
	X(break_tso_with_mss_too_large, "its segments are longer than the interface's MTU")                            \
	X(break_tso_urgent, "SYN, RST or URG cannot be repeated")                                                      \
	X(break_use_of_qp_in_forked_child, "uses a context that process .* has opened")                                \
	X(break_no_right, "takes CAP_NET_RAW")                                                                         \
	X(last_removed_device_is_reported, "a removed device says so, makes nothing new, and lets go")                 \
	X(last_inserted_device_is_another_one, "a device that is back does nothing for those that had the one before")

static const struct {
	const char *name, *sentence;
	void (*run)(void);
} cases[] = {
#define X(name, sentence) {#name, sentence, name},
        CASES
#undef X
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (argc < 2) {
			printf("%s: %s\n", cases[i].name, cases[i].sentence);
		} else if (strcmp(cases[i].name, argv[1]) == 0) {
			cases[i].run();
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}
