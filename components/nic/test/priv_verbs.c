/*
 * priv_verbs - what only a card can show of the verbs backend beside the conformance suite: errors, rebinds, full
 * tables, completions that are asked for, providers of the old kind, forked children.
 *
 *   VMA_CONFORMANCE, VMA_CONFORMANCE_NETNS    two ends, as test_conformance.c takes them
 *   CARD, CARD_A, CARD_B                      the program of the cards, and where each one's commands go
 *
 * tests/e2e/verbs.sh runs it.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <vma/log.h>

#include "../verbs/verbs.h"
#include "fixture.h"
#include "repost.h"

#define PORT 21000
#define PEER_PORT 22000
#define DEPTH 256
#define FILLERS_MAX 4096

static char end_specs[2][256], netns[2][256];
static bool provider_lacks_extended_verbs; /* as it were of the old kind */

/* ---- libibverbs, in place of lib.c's ---- */

static struct ibv_context *(*real_open_device)(struct ibv_device *device);

static struct ibv_qp_ex *fake_ibv_qp_to_qp_ex_null(struct ibv_qp *qp)
{
	(void)qp;
	return NULL;
}

static struct ibv_context *open_device_without_create_cq_ex(struct ibv_device *device)
{
	struct ibv_context *context = real_open_device(device);

	if (context != NULL)
		verbs_get_ctx(context)->create_cq_ex = NULL;
	return context;
}

const struct verbs_lib *verbs_lib(void)
{
	static struct verbs_lib libs[2];
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);

	if (library == NULL)
		return NULL;
#define X(type, name, parameters)                                                                                      \
	*(void **)&libs[0].name = dlsym(RTLD_DEFAULT, #name);                                                          \
	if (libs[0].name == NULL)                                                                                      \
		*(void **)&libs[0].name = dlsym(library, #name);
	VERBS_SYMBOLS(X)
#undef X
	libs[1] = libs[0];
	libs[1].ibv_qp_to_qp_ex = fake_ibv_qp_to_qp_ex_null;
	real_open_device = libs[0].ibv_open_device;
	libs[1].ibv_open_device = open_device_without_create_cq_ex;
	return &libs[provider_lacks_extended_verbs];
}

/* ---- two ends ---- */

static bool address_flows; /* the nics are opened so */

static void open_nic_of_end(struct fixture *w, int end)
{
	struct vma_nic_attr attr = {.arena = w->arena, .tcp_address_flows = address_flows};

	fixture_enter_netns(w, end);
	assert_int_equal(vma_nic_open(end_specs[end], &attr, &w->nic[end]), 0);
}

static int setup_nics_and_qps_of_both_ends(void **state)
{
	struct fixture *w = calloc(1, sizeof(*w));

	w->arena = fixture_arena();
	w->kernel_sock = true;
	for (int end = 0; end < 2; end++) {
		w->netns[end] = open(netns[end], O_RDONLY | O_CLOEXEC);
		assert_true(w->netns[end] >= 0);
		open_nic_of_end(w, end);
	}
	fixture_create_qp_with_posted_rx(w, 0, 0, DEPTH);
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
	*state = w;
	return 0;
}

static int setup(void **state)
{
	provider_lacks_extended_verbs = false;
	return setup_nics_and_qps_of_both_ends(state);
}

static int fixture_setup_plain_verbs(void **state)
{
	provider_lacks_extended_verbs = true;
	return setup_nics_and_qps_of_both_ends(state);
}

static int fixture_setup_address_flows(void **state)
{
	address_flows = true;
	return setup(state);
}

static int teardown(void **state)
{
	struct fixture *w = *state;

	address_flows = false;
	for (int end = 0; end < 2; end++) {
		fixture_nic_close(w, end);
		close(w->netns[end]);
	}
	vma_bufpool_flush_thread(w->arena);
	vma_bufarena_destroy(w->arena);
	free(w);
	return 0;
}

static void run_card_control_command(int end, const char *command)
{
	char line[512];

	snprintf(line, sizeof(line), "\"$CARD\" --control \"$CARD_%c\" \"%s\" >/dev/null", "AB"[end], command);
	assert_int_equal(system(line), 0);
}

static int count_rules_of_card_on_port(unsigned port)
{
	char command[256], number[16] = "";
	FILE *pipe;

	snprintf(command, sizeof(command),
	         "\"$CARD\" --control \"$CARD_B\" rules | awk '$10 ~ /:%u$/ { n++ } END { print n + 0 }'", port);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	assert_non_null(fgets(number, sizeof(number), pipe));
	assert_int_equal(pclose(pipe), 0);
	return atoi(number);
}

static void assert_packet_crosses_wire(struct fixture *w, int from, uint32_t number, uint32_t len)
{
	fixture_send(w, from, 0, udp(PEER_PORT, PORT, len, number));
	fixture_assert_receives(w, 1 - from, 0, udp(PEER_PORT, PORT, len, number));
}

static void add_flows_on_both_ends(struct fixture *w)
{
	fixture_add_flow(w, 0, 0, IPPROTO_UDP, PORT, 0, 0);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
}

/* ---- a user that is told ---- */

struct listener {
	pthread_mutex_t halves; /* of the queue pair */
	_Atomic unsigned lost, revoked;
};

static void count_revokes_and_rebind_lost_qp(struct vma_nic_qp *qp, enum vma_nic_event event,
                                             const struct vma_flow_key *key, void *arg)
{
	struct listener *listener = arg;

	(void)key;
	if (event == VMA_NIC_EVENT_FLOW_REVOKED)
		atomic_fetch_add(&listener->revoked, 1);
	else if (atomic_fetch_add(&listener->lost, 1) == 0) {
		pthread_mutex_lock(&listener->halves);
		(void)vma_nic_qp_rebind(qp);
		pthread_mutex_unlock(&listener->halves);
	}
}

/* ---- the ways of a provider ---- */

static void test_a_provider_without_extended_queues_sends_and_receives(void **state)
{
	struct fixture *w = *state;
	uint32_t received = 0;

	add_flows_on_both_ends(w);
	for (uint32_t len = 60; len < 1500; len += 131)
		assert_packet_crosses_wire(w, len % 2, len, len);
	for (uint32_t sent = 0; sent < 3000;) {
		for (uint32_t i = 0; i < 64 && sent < 3000; i++, sent++)
			fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 60 + sent % 600, sent));
		for (; received < sent; received++)
			fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 60 + received % 600, received));
	}
}

static void test_a_burst_above_one_list_is_sent_as_a_whole(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_seg segs[100];

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < 100; i++) {
		struct frame_spec spec = udp(PEER_PORT, PORT, 100 + i, i);

		segs[i] = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);
	}
	assert_int_equal(vma_nic_tx(w->qp[0][0], segs, 100), 100);
	assert_int_equal(vma_nic_kick(w->qp[0][0]), 0);
	for (uint32_t i = 0; i < 100; i++)
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100 + i, i));
}

/* ---- completions ---- */

static struct vma_nic_qp *fixture_recreate_qp_with_batching(struct fixture *w, uint32_t batching, uint32_t inline_bytes)
{
	struct vma_nic_qp_attr attr = {.rx_wre = DEPTH,
	                               .tx_wre = DEPTH,
	                               .tx_batching = batching,
	                               .tx_inline = inline_bytes,
	                               .name = "batching"};

	fixture_qp_destroy(w, 0, 0);
	fixture_enter_netns(w, 0);
	assert_int_equal(vma_nic_qp_create(w->nic[0], &attr, &w->qp[0][0]), 0);
	fixture_post_rx_bufs(w->qp[0][0]);
	return w->qp[0][0];
}

/* What has completed until now. */
static unsigned reap_completed_in_batches_of_32(struct vma_nic_qp *qp)
{
	struct vma_buf *bufs[DEPTH];
	const unsigned n = vma_nic_reap_tx(qp, bufs, DEPTH);

	assert_int_equal(n % 32, 0);
	vma_buf_put_burst(qp->arena, bufs, n);
	return n;
}

static void test_a_completion_is_asked_for_every_so_many_packets(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = fixture_recreate_qp_with_batching(w, 32, 0);
	unsigned reaped = 0;
	uint64_t give_up;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < 10 * 32 + 5; i++) {
		struct frame_spec spec = udp(PEER_PORT, PORT, 100, i);
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);

		assert_int_equal(vma_nic_tx(qp, &seg, 1), 1);
		assert_int_equal(vma_nic_kick(qp), 0);
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, i));
		reaped += reap_completed_in_batches_of_32(qp);
	}
	give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;
	while (reaped < 10 * 32) {
		reaped += reap_completed_in_batches_of_32(qp);
		assert_true(fixture_now_ns() < give_up);
	}
	usleep(20000); /* for a completion that nobody has asked for */
	assert_int_equal(reap_completed_in_batches_of_32(qp), 0);
	assert_false(vma_nic_tx_is_idle(qp));
}

static void test_small_packets_go_inline_and_keep_no_buffer(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = fixture_recreate_qp_with_batching(w, 64, 128);
	const uint32_t most = vma_nic_info(w->nic[0])->inline_max;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	assert_int_equal(most, 128);
	for (uint32_t len = most - 3; len <= most + 3; len++) {
		struct frame_spec spec = udp(PEER_PORT, PORT, len, len);
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);

		vma_buf_ref(seg.buf);
		assert_int_equal(vma_nic_tx(qp, &seg, 1), 1);
		assert_int_equal(vma_nic_kick(qp), 0);
		assert_int_equal(atomic_load(&seg.buf->refs), len <= most ? 1 : 2);
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, len, len));
		vma_buf_put(w->arena, seg.buf);
	}
	for (uint32_t i = 0; i < 3 * DEPTH; i++)
		assert_packet_crosses_wire(w, 0, i, 60);
}

/* ---- rules ---- */

static void test_a_full_table_is_told_and_nothing_else_changes(void **state)
{
	struct fixture *w = *state;
	struct vma_flow_rule more = make_flow_rule(1, IPPROTO_UDP, PORT + 1, 0, 0);

	add_flows_on_both_ends(w);
	run_card_control_command(1, "rules fail ENOMEM");
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &more), -ENOSPC);
	assert_packet_crosses_wire(w, 0, 1, 100);
	run_card_control_command(1, "rules ok");
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &more), 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT + 1, 100, 2));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT + 1, 100, 2));
}

static void test_a_block_of_ports_is_refused(void **state)
{
	struct fixture *w = *state;
	struct vma_flow_rule rule = make_flow_rule(1, VMA_FLOW_TCP_PORTS, VMA_FLOW_PORTS * 9, 0, 0);

	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), -EOPNOTSUPP);
}

static void test_all_tcp_of_an_address_is_for_nics_that_were_opened_so(void **state)
{
	struct fixture *w = *state;
	const struct vma_flow_rule address = make_flow_rule(1, VMA_FLOW_TCP_ADDRESS, 0, 0, 0);

	assert_int_equal(fixture_try_add_flow(w, 1, 0, &address), -EOPNOTSUPP);
	assert_true(vma_nic_port_has_rule(w->qp[1][0], htons(PORT)));
}

static void test_an_address_has_all_tcp_that_no_other_flow_takes(void **state)
{
	struct fixture *w = *state;
	const struct vma_flow_rule address = make_flow_rule(1, VMA_FLOW_TCP_ADDRESS, 0, 0, 0),
	                           listener = make_flow_rule(1, IPPROTO_TCP, PORT, 0, VMA_FLOW_LISTENER),
	                           connection = make_flow_rule(1, IPPROTO_TCP, PORT, PEER_PORT, 0);
	struct vma_flow_rule with_port = address;
	struct vma_nic *first = w->nic[1];

	with_port.key.local_port_be = htons(PORT);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &with_port), -EINVAL);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &address), 0);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &address), -EEXIST);
	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	assert_int_equal(fixture_try_add_flow(w, 1, 1, &address), -EADDRINUSE);
	fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x10, 1));
	fixture_assert_receives(w, 1, 0, tcp(PEER_PORT, PORT, 0x10, 1));
	fixture_send(w, 0, 0, tcp(PEER_PORT, 22, 0x02, 2));
	fixture_assert_receives(w, 1, 0, tcp(PEER_PORT, 22, 0x02, 2));
	assert_false(vma_nic_port_has_rule(w->qp[1][0], htons(PORT)));

	assert_int_equal(fixture_try_add_flow(w, 1, 1, &listener), 0);
	assert_true(vma_nic_port_has_rule(w->qp[1][0], htons(PORT)));
	fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x02, 3));
	fixture_assert_receives(w, 1, 1, tcp(PEER_PORT, PORT, 0x02, 3));
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &connection), 0);
	fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x10, 4));
	fixture_assert_receives(w, 1, 0, tcp(PEER_PORT, PORT, 0x10, 4));
	assert_int_equal(vma_nic_flow_del(w->qp[1][0], &connection.key), 0);
	assert_true(vma_nic_port_has_rule(w->qp[1][0], htons(PORT)));
	assert_int_equal(vma_nic_flow_del(w->qp[1][1], &listener.key), 0);
	assert_false(vma_nic_port_has_rule(w->qp[1][0], htons(PORT)));

	/* Another opening of the interface, as another process's, has it once the first one has given it back. */
	w->nic[1] = NULL;
	open_nic_of_end(w, 1);
	fixture_create_qp_with_posted_rx(w, 1, 2, DEPTH);
	assert_int_equal(fixture_try_add_flow(w, 1, 2, &address), -EADDRINUSE);
	assert_int_equal(vma_nic_flow_del(w->qp[1][0], &address.key), 0);
	assert_int_equal(fixture_try_add_flow(w, 1, 2, &address), 0);
	fixture_qp_destroy(w, 1, 0);
	fixture_qp_destroy(w, 1, 1);
	vma_nic_close(first);
}

static void fixture_send_udp_to_address_and_mac(struct fixture *w, uint32_t dst_be, const uint8_t mac[6],
                                                uint32_t number)
{
	struct frame_spec spec = udp(PEER_PORT, PORT, 100, number);
	struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);
	uint8_t *frame = (uint8_t *)vma_buf_frame(w->arena, seg.buf) + seg.off;

	memcpy(frame, mac, 6);
	memcpy(frame + 30, &dst_be, 4);
	assert_int_equal(vma_nic_tx(w->qp[0][0], &seg, 1), 1);
	assert_int_equal(vma_nic_kick(w->qp[0][0]), 0);
	fixture_reap_and_free_tx_bufs(w->qp[0][0]);
}

static void assert_received_frame_number(struct fixture *w, uint32_t number)
{
	struct packet *packet = malloc(sizeof(*packet));

	assert_true(fixture_recv(w->qp[1][0], packet, FIXTURE_TIMEOUT_NS));
	assert_int_equal(frame_number(packet->bytes, IPPROTO_UDP), number);
	free(packet);
}

static void test_groups_and_broadcasts_come_by_their_own_macs(void **state)
{
	static const uint8_t group_mac[6] = {0x01, 0x00, 0x5e, 0x01, 0x02, 0x03};
	static const uint8_t all[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
	struct fixture *w = *state;
	struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, PORT, 0, 0);
	const uint32_t group = htonl(0xef010203), subnet = htonl(0x0a4d00ff);

	memcpy(rule.key.local, &group, 4);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), 0);
	fixture_send_udp_to_address_and_mac(w, group, w->mac[1], 1); /* no host sends that */
	fixture_send_udp_to_address_and_mac(w, group, group_mac, 2);
	assert_received_frame_number(w, 2);
	memcpy(rule.key.local, &subnet, 4); /* 10.77.0.255: the script gives the interface 10.77.0.2/24 */
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), 0);
	fixture_send_udp_to_address_and_mac(w, subnet, w->mac[1], 3);
	fixture_send_udp_to_address_and_mac(w, subnet, all, 4);
	assert_received_frame_number(w, 4);
	memset(rule.key.local, 0xff, 4);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), 0);
	fixture_send_udp_to_address_and_mac(w, INADDR_BROADCAST, all, 5);
	assert_received_frame_number(w, 5);
}

static void test_a_packet_for_another_mac_is_not_taken(void **state)
{
	static const uint8_t other[6] = {0x02, 0, 0, 0, 0, 0x99};
	struct fixture *w = *state;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	fixture_send_udp_to_address_and_mac(w, test_ip(1), other, 1);
	assert_no_packet_arrives(w, 1, 0);
}

/* A second opening of the interface is as another process here. */
static void test_a_flow_that_two_processes_want_is_the_kernels(void **state)
{
	struct fixture *w = *state;
	struct listener listener = {.halves = PTHREAD_MUTEX_INITIALIZER};
	struct vma_nic_qp_attr attr = {.rx_wre = DEPTH,
	                               .tx_wre = DEPTH,
	                               .name = "told",
	                               .event = count_revokes_and_rebind_lost_qp,
	                               .event_arg = &listener};
	struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_TCP, PORT, 0, VMA_FLOW_LISTENER),
	                     one_peer = make_flow_rule(1, IPPROTO_TCP, PORT, PEER_PORT, 0);
	struct vma_nic *first = w->nic[1];
	struct vma_nic_qp *qp;
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_qp_create(first, &attr, &qp), 0);
	fixture_post_rx_bufs(qp);
	assert_int_equal(vma_nic_flow_add(qp, &rule), 0);
	assert_int_equal(vma_nic_flow_add(qp, &one_peer), 0);
	fixture_send(w, 0, 0, tcp(PEER_PORT + 1, PORT, 0x02, 1));
	while (!vma_nic_arm(qp))
		assert_true(fixture_now_ns() < give_up);
	w->nic[1] = NULL;
	fixture_qp_destroy(w, 1, 0);
	open_nic_of_end(w, 1);
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), -EADDRINUSE);
	while (atomic_load(&listener.revoked) == 0)
		assert_true(fixture_now_ns() < give_up);
	assert_int_equal(atomic_load(&listener.revoked), 1);
	assert_int_equal(vma_nic_flow_del(qp, &rule.key), -ENOENT);
	assert_int_equal(vma_nic_flow_del(qp, &one_peer.key), 0);
	vma_nic_qp_destroy(qp);
	vma_nic_close(first);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), 0); /* alone by now */
}

/* ---- kernel sockets ---- */

static int open_kernel_udp_socket_in_flows_way(struct fixture *w, int end)
{
	const struct sockaddr_in name = {
	        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = test_ip(end)};
	int fd;

	fixture_enter_netns(w, end);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
	return fd;
}

static uint64_t sock_cookie_of_fd(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len), 0);
	return cookie;
}

static void test_a_flow_whose_packets_a_kernel_socket_has_a_right_to_is_refused(void **state)
{
	struct fixture *w = *state;
	const struct vma_flow_rule one = make_flow_rule(1, IPPROTO_UDP, PORT, PEER_PORT, 0);
	struct vma_flow_rule any = make_flow_rule(1, IPPROTO_UDP, PORT, 0, 0);
	const int fd = open_kernel_udp_socket_in_flows_way(w, 1);

	assert_int_equal(fixture_try_add_flow(w, 1, 0, &any), -EADDRINUSE);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &one), 0);
	any.shadow_cookie = sock_cookie_of_fd(fd); /* it is the flow's own */
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &any), 0);
	usleep(1300000);
	assert_packet_crosses_wire(w, 0, 1, 100);
	close(fd);
}

static void test_a_kernel_socket_that_comes_later_gets_its_packets(void **state)
{
	struct fixture *w = *state;
	static struct listener listener = {.halves = PTHREAD_MUTEX_INITIALIZER};
	struct vma_nic_qp_attr attr = {.rx_wre = DEPTH,
	                               .tx_wre = DEPTH,
	                               .name = "told",
	                               .event = count_revokes_and_rebind_lost_qp,
	                               .event_arg = &listener};
	const uint64_t give_up = fixture_now_ns() + 20 * 1000000000ull;
	struct timeval soon = {.tv_sec = 3};
	struct vma_flow_rule rule;
	struct vma_nic_qp *qp;
	uint8_t bytes[100];
	int fd;

	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_qp_create(w->nic[1], &attr, &qp), 0);
	w->qp[1][1] = qp;
	fixture_post_rx_bufs(qp);
	fixture_add_flow(w, 1, 1, IPPROTO_UDP, PORT, 0, 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 1));
	fixture_assert_receives(w, 1, 1, udp(PEER_PORT, PORT, 100, 1));
	fd = open_kernel_udp_socket_in_flows_way(w, 1);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)), 0);
	while (atomic_load(&listener.revoked) == 0) {
		assert_true(fixture_now_ns() < give_up);
		usleep(10000);
	}
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 2));
	assert_int_equal(recv(fd, bytes, sizeof(bytes), 0), 100 - FRAME_UDP_HEADERS);
	rule = make_flow_rule(1, IPPROTO_UDP, PORT, 0, 0);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), -EADDRINUSE);
	close(fd);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
}

/* ---- moves ---- */

struct mover {
	struct fixture *w;
	struct vma_flow_key key;
	_Atomic bool is_over;
};

static void *flow_moving_thread_main(void *arg)
{
	struct mover *mover = arg;

	for (unsigned i = 0; i < 6; i++)
		if (vma_nic_flow_move(mover->w->qp[1][i % 2], mover->w->qp[1][1 - i % 2], &mover->key) < 0)
			abort();
	atomic_store(&mover->is_over, true);
	return NULL;
}

static unsigned poll_and_repost_all_rx_of_two_qps(struct fixture *w)
{
	struct vma_buf *bufs[16];
	unsigned n, all = 0;

	for (unsigned i = 0; i < 2; i++) {
		while ((n = vma_nic_poll_rx(w->qp[1][i], bufs, 16)) > 0) {
			all += n;
			assert_true(repost_rx_bufs_until_taken(w->qp[1][i], bufs, n));
		}
	}
	return all;
}

static void test_packets_of_one_peer_come_once_while_their_flow_moves(void **state)
{
	struct fixture *w = *state;
	struct mover mover = {.w = w, .key = make_flow_rule(1, IPPROTO_UDP, PORT, PEER_PORT, 0).key};
	const uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;
	unsigned sent = 0, received = 0;
	pthread_t thread;

	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, PEER_PORT, 0);
	run_card_control_command(1, "rules slow 20");
	assert_int_equal(pthread_create(&thread, NULL, flow_moving_thread_main, &mover), 0);
	while (!atomic_load(&mover.is_over) || sent < 50) {
		if ((int)(sent - received) < 64)
			fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, sent++));
		received += poll_and_repost_all_rx_of_two_qps(w);
	}
	pthread_join(thread, NULL);
	run_card_control_command(1, "rules slow 0");
	while (received < sent) {
		assert_true(fixture_now_ns() < give_up);
		received += poll_and_repost_all_rx_of_two_qps(w);
	}
	usleep(20000);
	assert_int_equal(received + poll_and_repost_all_rx_of_two_qps(w), sent);
}

/* ---- listeners whose port another socket gets ---- */

/* Of the second card, for TCP from any peer to PORT. */
static int count_listener_rules_of_card(void)
{
	char number[16] = "";
	FILE *pipe = popen("\"$CARD\" --control \"$CARD_B\" rules | "
	                   "awk '$9 == \"0.0.0.0:0\" && $10 ~ /:21000$/ { n++ } END { print n + 0 }'",
	                   "r");

	assert_non_null(pipe);
	assert_non_null(fgets(number, sizeof(number), pipe));
	assert_int_equal(pclose(pipe), 0);
	return atoi(number);
}

static int open_kernel_listener_in_flows_way(struct fixture *w, int end)
{
	const struct sockaddr_in name = {
	        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = test_ip(end)};
	int fd;

	fixture_enter_netns(w, end);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
	assert_int_equal(listen(fd, 1), 0);
	return fd;
}

/* Another socket comes; the time at which the user was seen to be told. */
static uint64_t await_revoke_by_kernel_listener(struct fixture *w, struct listener *listener, int *other_fd)
{
	const uint64_t give_up = fixture_now_ns() + 20 * 1000000000ull;

	atomic_store(&listener->revoked, 0);
	*other_fd = open_kernel_listener_in_flows_way(w, 1);
	while (atomic_load(&listener->revoked) == 0) {
		assert_true(fixture_now_ns() < give_up);
		usleep(1000);
	}
	return fixture_now_ns();
}

/* Connections that have no rules of their own come by it. If this thread has had no core for so long, once more. */
static void test_the_rule_of_a_revoked_listener_stays_until_its_user_gives_it_back_or_for_a_second(void **state)
{
	struct fixture *w = *state;
	static struct listener listener = {.halves = PTHREAD_MUTEX_INITIALIZER};
	struct vma_nic_qp_attr attr = {.rx_wre = DEPTH,
	                               .tx_wre = DEPTH,
	                               .name = "told",
	                               .event = count_revokes_and_rebind_lost_qp,
	                               .event_arg = &listener};
	const struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_TCP, PORT, 0, VMA_FLOW_LISTENER);
	int other_fd, rules;
	unsigned misses = 0;
	uint64_t told_ns, late_ns;

	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_qp_create(w->nic[1], &attr, &w->qp[1][1]), 0);
	fixture_post_rx_bufs(w->qp[1][1]);
	do {
		assert_int_equal(fixture_try_add_flow(w, 1, 1, &rule), 0);
		told_ns = await_revoke_by_kernel_listener(w, &listener, &other_fd);
		rules = count_listener_rules_of_card();
		late_ns = fixture_now_ns() - told_ns;
		if (rules == 0)
			assert_true(late_ns > 900 * 1000000ull);
		assert_int_equal(fixture_try_add_flow(w, 1, 1, &rule), -EADDRINUSE);
		assert_int_equal(vma_nic_flow_del(w->qp[1][1], &rule.key), -ENOENT);
		assert_int_equal(count_listener_rules_of_card(), 0);
		close(other_fd);
	} while (rules == 0 && vma_test_remeasure(__func__, &misses, 3, "looked after %lu ms, wanted less than 900",
	                                          late_ns / 1000000));
	assert_int_equal(rules, 1);
	assert_int_equal(fixture_try_add_flow(w, 1, 1, &rule), 0);
	told_ns = await_revoke_by_kernel_listener(w, &listener, &other_fd);
	while (count_listener_rules_of_card() != 0)
		assert_true(fixture_now_ns() - told_ns < 20 * 1000000000ull);
	close(other_fd);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), 0); /* its claim has ended, too */
}

/* ---- memory ---- */

static void test_without_registered_memory_there_is_no_queue_pair(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp_attr attr = {.rx_wre = DEPTH, .tx_wre = DEPTH, .name = "none"};
	const uint64_t give_up = fixture_now_ns() + 20 * 1000000000ull;
	struct vma_nic_qp *qp;

	run_card_control_command(1, "registration fail ENOMEM");
	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_qp_create(w->nic[1], &attr, &qp), -ENOMEM);
	run_card_control_command(1, "registration ok");
	/* It is asked for again by itself. */
	while (vma_nic_qp_create(w->nic[1], &attr, &qp) == -ENOMEM)
		assert_true(fixture_now_ns() < give_up);
	vma_nic_qp_destroy(qp);
	add_flows_on_both_ends(w);
	assert_packet_crosses_wire(w, 0, 1, 100);
}

static void test_windows_come_until_the_queue_has_its_depth(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp_attr attr = {.rx_wre = 8000, .tx_wre = DEPTH, .name = "deep"};
	struct vma_nic_qp *qp;
	uint32_t posted = 0;
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_qp_create(w->nic[1], &attr, &qp), 0);
	assert_true(qp->rx_depth > 4096);
	while (posted < qp->rx_depth) {
		struct vma_buf *bufs[FIXTURE_BURST];
		unsigned n = vma_bufpool_get(atomic_load(&qp->rx_pool), bufs, FIXTURE_BURST), took;

		took = vma_nic_post_rx(qp, bufs, n);
		vma_buf_put_burst(w->arena, bufs + took, n - took);
		posted += took;
		assert_true(fixture_now_ns() < give_up);
	}
	assert_int_equal(posted, qp->rx_depth);
	vma_nic_qp_destroy(qp);
}

/* ---- errors ---- */

static void await_qp_lost(struct vma_nic_qp *qp)
{
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;
	struct vma_buf *bufs[FIXTURE_BURST];

	while (!vma_nic_qp_lost(qp)) {
		unsigned n = vma_nic_poll_rx(qp, bufs, FIXTURE_BURST);

		vma_buf_put_burst(qp->arena, bufs, n);
		fixture_reap_and_free_tx_bufs(qp);
		assert_true(fixture_now_ns() < give_up);
		sched_yield();
	}
	assert_true(wait_fd_readable(vma_nic_fd(qp), 3000));
}

static void rebind_qp_of_end(struct fixture *w, int end)
{
	const int fd = vma_nic_fd(w->qp[end][0]);

	fixture_enter_netns(w, end);
	assert_int_equal(vma_nic_qp_rebind(w->qp[end][0]), 0);
	assert_false(vma_nic_qp_lost(w->qp[end][0]));
	assert_int_equal(vma_nic_fd(w->qp[end][0]), fd);
	assert_false(wait_fd_readable(fd, 0));
	fixture_post_rx_bufs(w->qp[end][0]);
}

static void assert_lost_qp_does_nothing(struct fixture *w, int end)
{
	struct vma_nic_qp *qp = w->qp[end][0];
	struct vma_flow_rule rule = make_flow_rule(end, IPPROTO_UDP, PORT + 7, 0, 0);
	struct vma_buf *buf;

	assert_int_equal(vma_nic_poll_rx(qp, &buf, 1), 0);
	assert_int_equal(vma_nic_reap_tx(qp, &buf, 1), 0);
	assert_int_equal(vma_nic_kick(qp), -ENODEV);
	assert_int_equal(vma_nic_arm(qp), 0);
	assert_int_equal(fixture_try_add_flow(w, end, 0, &rule), -EPIPE);
}

static void test_a_receive_queue_that_has_failed_is_bound_again_with_its_flows(void **state)
{
	struct fixture *w = *state;

	add_flows_on_both_ends(w);
	for (uint32_t round = 0; round < 3; round++) {
		assert_packet_crosses_wire(w, 0, round, 100);
		run_card_control_command(1, "receives fail 1");
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 77));
		await_qp_lost(w->qp[1][0]);
		assert_lost_qp_does_nothing(w, 1);
		rebind_qp_of_end(w, 1);
		assert_packet_crosses_wire(w, 0, 100 + round, 100);
		assert_packet_crosses_wire(w, 1, 200 + round, 1400);
	}
}

static void test_a_send_queue_that_has_failed_gives_its_buffers_back(void **state)
{
	struct fixture *w = *state;
	struct vma_buf *sent[20];

	add_flows_on_both_ends(w);
	assert_packet_crosses_wire(w, 0, 1, 100);
	run_card_control_command(0, "sends fail 1");
	for (uint32_t i = 0; i < 20; i++) {
		struct frame_spec spec = udp(PEER_PORT, PORT, 100, i);
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);

		sent[i] = seg.buf;
		vma_buf_ref(seg.buf);
		assert_int_equal(vma_nic_tx(w->qp[0][0], &seg, 1), 1);
	}
	vma_nic_kick(w->qp[0][0]);
	await_qp_lost(w->qp[0][0]);
	rebind_qp_of_end(w, 0);
	for (uint32_t i = 0; i < 20; i++) {
		assert_int_equal(atomic_load(&sent[i]->refs), 1); /* ours */
		vma_buf_put(w->arena, sent[i]);
	}
	assert_packet_crosses_wire(w, 0, 2, 100);
	assert_packet_crosses_wire(w, 1, 3, 100);
}

/* As if it had gone: there is no interface of that name. */
static void test_a_rebind_without_its_interface_leaves_what_other_queue_pairs_go_by(void **state)
{
	struct fixture *w = *state;
	const struct vma_nic_info *info = vma_nic_info(w->nic[1]);
	struct nic_verbs *nic = (struct nic_verbs *)w->nic[1];
	char name[sizeof(nic->name)];
	const unsigned ifindex = info->ifindex, mtu = info->mtu;
	const struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, PORT + 1, 0, 0);

	add_flows_on_both_ends(w);
	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	run_card_control_command(1, "receives fail 1");
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 77));
	await_qp_lost(w->qp[1][0]);
	memcpy(name, nic->name, sizeof(name));
	strcpy(nic->name, "gone");
	assert_int_equal(vma_nic_qp_rebind(w->qp[1][0]), -EAGAIN);
	memcpy(nic->name, name, sizeof(name));
	assert_int_equal(info->ifindex, ifindex);
	assert_int_equal(info->mtu, mtu);
	fixture_enter_netns(w, 1);
	assert_int_equal(fixture_try_add_flow(w, 1, 1, &rule), 0); /* with the interface's MAC */
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT + 1, 100, 78));
	fixture_assert_receives(w, 1, 1, udp(PEER_PORT, PORT + 1, 100, 78));
	rebind_qp_of_end(w, 1);
	assert_packet_crosses_wire(w, 0, 1, 100);
}

/* As a thread that was stopped there. Its flows do not wait for it longer than for a queue that cannot be had. */
static void test_a_look_that_does_not_return_keeps_the_flows_for_a_second_only(void **state)
{
	struct fixture *w = *state;
	struct verbs_qp *qp = (struct verbs_qp *)w->qp[1][0];
	const uint64_t give_up = fixture_now_ns() + 20 * 1000000000ull;

	add_flows_on_both_ends(w);
	run_card_control_command(1, "receives fail 1");
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 77));
	await_qp_lost(w->qp[1][0]);
	atomic_fetch_add(&qp->lookers, 1);
	assert_int_equal(vma_nic_qp_rebind(w->qp[1][0]), -EAGAIN);
	while (count_rules_of_card_on_port(PORT) != 0) {
		assert_int_equal(vma_nic_qp_rebind(w->qp[1][0]), -EAGAIN);
		assert_true(fixture_now_ns() < give_up);
	}
	atomic_fetch_sub(&qp->lookers, 1);
	rebind_qp_of_end(w, 1);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	assert_packet_crosses_wire(w, 0, 1, 100);
}

/* A process may open no more from now on; *limit: what it might before. */
static void forbid_descriptors(struct rlimit *limit, rlim_t most)
{
	struct rlimit none;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, limit), 0);
	none = (struct rlimit){.rlim_cur = most, .rlim_max = limit->rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
}

static void take_all_descriptors(int *fds, unsigned *n)
{
	*n = 0;
	while (*n < FILLERS_MAX && (fds[*n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		++*n;
	assert_true(*n < FILLERS_MAX);
	assert_int_equal(errno, EMFILE);
}

static void test_a_process_without_a_free_descriptor_has_a_new_queue_all_the_same(void **state)
{
	struct fixture *w = *state;
	static int fds[FILLERS_MAX];
	struct rlimit limit;
	unsigned n;
	int rc;

	add_flows_on_both_ends(w);
	run_card_control_command(1, "receives fail 1");
	forbid_descriptors(&limit, FILLERS_MAX);
	take_all_descriptors(fds, &n);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 77));
	await_qp_lost(w->qp[1][0]);
	rc = vma_nic_qp_rebind(w->qp[1][0]);
	while (n > 0)
		close(fds[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(rc, 0);
	fixture_post_rx_bufs(w->qp[1][0]);
	assert_packet_crosses_wire(w, 0, 1, 100);
	assert_packet_crosses_wire(w, 1, 2, 100);
}

/* Until there are descriptors again: a connection whose packets the kernel got meanwhile would be reset. */
static void test_without_any_descriptor_the_old_queue_keeps_its_rules(void **state)
{
	struct fixture *w = *state;
	static int fds[FILLERS_MAX];
	struct rlimit limit;
	int rc, rules;
	unsigned n;

	add_flows_on_both_ends(w);
	run_card_control_command(1, "receives fail 1");
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 77));
	await_qp_lost(w->qp[1][0]);
	forbid_descriptors(&limit, 16); /* below those that the nic has spared; not 0, which poll minds */
	take_all_descriptors(fds, &n);
	rc = vma_nic_qp_rebind(w->qp[1][0]);
	while (n > 0)
		close(fds[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(rc, -EAGAIN);
	rules = count_rules_of_card_on_port(PORT);
	rebind_qp_of_end(w, 1);
	assert_int_equal(rules, 1);
	assert_packet_crosses_wire(w, 0, 1, 100);
}

/* Who went to sleep before the failure sleeps on. */
static void test_a_sleeper_is_woken_after_a_rebind(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = w->qp[1][0];

	add_flows_on_both_ends(w);
	assert_int_equal(vma_nic_arm(qp), 0);
	run_card_control_command(1, "receives fail 1");
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 77));
	await_qp_lost(qp);
	rebind_qp_of_end(w, 1);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 78));
	assert_true(wait_fd_readable(vma_nic_fd(qp), 3000));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 78));
}

static void test_the_user_is_told_of_losses_and_of_rules_that_do_not_come_back(void **state)
{
	struct fixture *w = *state;
	struct listener listener = {.halves = PTHREAD_MUTEX_INITIALIZER};
	struct vma_nic_qp_attr attr = {.rx_wre = DEPTH,
	                               .tx_wre = DEPTH,
	                               .name = "told",
	                               .event = count_revokes_and_rebind_lost_qp,
	                               .event_arg = &listener};
	struct vma_buf *bufs[FIXTURE_BURST];
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_qp_destroy(w, 1, 0);
	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_qp_create(w->nic[1], &attr, &w->qp[1][0]), 0);
	fixture_post_rx_bufs(w->qp[1][0]);
	add_flows_on_both_ends(w);
	run_card_control_command(1, "rules fail ENOMEM");
	run_card_control_command(1, "receives fail 1");
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 77));
	while (atomic_load(&listener.revoked) == 0) {
		pthread_mutex_lock(&listener.halves);
		vma_buf_put_burst(w->arena, bufs, vma_nic_poll_rx(w->qp[1][0], bufs, FIXTURE_BURST));
		pthread_mutex_unlock(&listener.halves);
		assert_true(fixture_now_ns() < give_up);
		sched_yield();
	}
	run_card_control_command(1, "rules ok");
	assert_int_equal(atomic_load(&listener.lost), 1);
	assert_int_equal(atomic_load(&listener.revoked), 1);
}

/* ---- processes ---- */

static int count_infiniband_fds_below_1000(void)
{
	DIR *dir = opendir("/proc/self/fd");
	const struct dirent *entry;
	char path[64], target[128];
	int n = 0;

	while ((entry = readdir(dir)) != NULL) {
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/self/fd/%.20s", entry->d_name);
		len = readlink(path, target, sizeof(target) - 1);
		target[len > 0 ? len : 0] = '\0';
		n += strstr(target, "/dev/infiniband/") != NULL && atoi(entry->d_name) < 1000;
	}
	closedir(dir);
	return n;
}

static unsigned made, closed;

static void assert_fd_above_1000_and_count(int fd, bool on)
{
	assert_true(fd >= 1000);
	if (on)
		made++;
	else
		closed++;
}

static void test_its_descriptors_have_numbers_from_1000_on_and_are_all_told_of(void **state)
{
	struct fixture *w = *state;

	fixture_add_flow(w, 0, 0, IPPROTO_UDP, PORT, 0, 0);
	fixture_nic_close(w, 1);
	made = closed = 0;
	vma_nic_fd_hook = assert_fd_above_1000_and_count;
	open_nic_of_end(w, 1);
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
	assert_int_equal(count_infiniband_fds_below_1000(), 0);
	assert_true(made >= closed + 7); /* wake-up, claims, device, its events; channel, epoll set, wake-up */
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	assert_packet_crosses_wire(w, 0, 1, 100);
	fixture_nic_close(w, 1);
	assert_int_equal(made, closed);
	vma_nic_fd_hook = NULL;
	open_nic_of_end(w, 1);
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
}

static struct nic_verbs *closing_nic;
static unsigned closed_unlocked;

/* As a fork does before it copies the process. */
static void try_lock_of_closing_nic(int fd, bool on)
{
	(void)fd;
	if (on || pthread_mutex_trylock(&closing_nic->lock) != 0)
		return;
	closed_unlocked++;
	pthread_mutex_unlock(&closing_nic->lock);
}

static void test_a_fork_has_all_descriptors_of_a_nic_that_closes_or_none(void **state)
{
	struct fixture *w = *state;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	closing_nic = (struct nic_verbs *)w->nic[1];
	closed_unlocked = 0;
	vma_nic_fd_hook = try_lock_of_closing_nic;
	fixture_nic_close(w, 1);
	vma_nic_fd_hook = NULL;
	assert_int_equal(closed_unlocked, 0);
	open_nic_of_end(w, 1);
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
}

static int child_opens_own_nic_not_the_inherited(struct fixture *w)
{
	struct vma_nic_qp_attr attr = {.rx_wre = DEPTH, .tx_wre = DEPTH, .name = "child"};
	struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, PORT + 5, 0, 0);
	struct vma_nic_qp *qp = w->qp[1][0], *own;
	struct vma_buf *buf;

	if (vma_nic_poll_rx(qp, &buf, 1) != 0 || vma_nic_kick(qp) == 0 || vma_nic_arm(qp) != -ENODEV ||
	    vma_nic_flow_add(qp, &rule) != -ENODEV || vma_nic_qp_create(w->nic[1], &attr, &own) != -ENODEV)
		return 1;
	vma_nic_qp_destroy(qp);
	vma_nic_close(w->nic[1]);
	open_nic_of_end(w, 1); /* of its own */
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
	if (fixture_try_add_flow(w, 1, 0, &rule) != 0)
		return 2;
	fixture_nic_close(w, 1);
	return 0;
}

static void test_a_forked_child_leaves_its_parents_queue_pairs_alone(void **state)
{
	struct fixture *w = *state;
	int status;
	pid_t pid;

	add_flows_on_both_ends(w);
	assert_packet_crosses_wire(w, 0, 1, 100);
	pid = fork();
	if (pid == 0)
		_exit(child_opens_own_nic_not_the_inherited(w));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_packet_crosses_wire(w, 0, 2, 100);
	assert_packet_crosses_wire(w, 1, 3, 100);
}

/* A process with a flow on PORT + 6 that forks, says so in `ready`, and waits for its end; so does its child. */
static _Noreturn void own_a_flow_and_fork(struct fixture *w, int ready)
{
	const struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, PORT + 6, 0, 0);
	pid_t child;

	fixture_nic_close(w, 1);
	open_nic_of_end(w, 1);
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
	if (fixture_try_add_flow(w, 1, 0, &rule) != 0)
		_exit(1);
	child = fork();
	if (child != 0 && write(ready, &child, sizeof(child)) != sizeof(child))
		_exit(1);
	for (;;)
		pause();
}

static void test_the_rules_of_a_dead_parent_end_though_its_child_lives(void **state)
{
	struct fixture *w = *state;
	uint64_t give_up;
	int ready[2], left;
	pid_t parent, child;

	assert_int_equal(pipe(ready), 0);
	parent = fork();
	if (parent == 0)
		own_a_flow_and_fork(w, ready[1]);
	close(ready[1]);
	assert_int_equal(read(ready[0], &child, sizeof(child)), sizeof(child));
	close(ready[0]);
	assert_int_equal(count_rules_of_card_on_port(PORT + 6), 1);
	kill(parent, SIGKILL);
	assert_int_equal(waitpid(parent, NULL, 0), parent);
	give_up = fixture_now_ns() + 20 * 1000000000ull;
	do
		left = count_rules_of_card_on_port(PORT + 6);
	while (left != 0 && fixture_now_ns() < give_up);
	assert_int_equal(kill(child, 0), 0);
	kill(child, SIGKILL);
	assert_int_equal(left, 0);
}

/* ---- the end of a card; the last case ---- */

static void test_a_device_that_has_gone_is_looked_for_and_can_be_closed(void **state)
{
	struct fixture *w = *state;

	add_flows_on_both_ends(w);
	assert_packet_crosses_wire(w, 0, 1, 100);
	run_card_control_command(1, "remove");
	await_qp_lost(w->qp[1][0]);
	assert_lost_qp_does_nothing(w, 1);
	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_qp_rebind(w->qp[1][0]), -EAGAIN);
	assert_true(vma_nic_qp_lost(w->qp[1][0]));
	assert_int_equal(vma_nic_qp_rebind(w->qp[1][0]), -EAGAIN);
	assert_lost_qp_does_nothing(w, 1);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define VERBS_WITHOUT_EXTENDED_CASE(f) cmocka_unit_test_setup_teardown(f, fixture_setup_plain_verbs, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        VERBS_WITHOUT_EXTENDED_CASE(test_a_provider_without_extended_queues_sends_and_receives),
	        VERBS_WITHOUT_EXTENDED_CASE(test_a_burst_above_one_list_is_sent_as_a_whole),
	        VERBS_WITHOUT_EXTENDED_CASE(test_small_packets_go_inline_and_keep_no_buffer),
	        VERBS_WITHOUT_EXTENDED_CASE(test_a_send_queue_that_has_failed_gives_its_buffers_back),
	        VERBS_WITHOUT_EXTENDED_CASE(test_a_receive_queue_that_has_failed_is_bound_again_with_its_flows),
	        CASE(test_a_burst_above_one_list_is_sent_as_a_whole),
	        CASE(test_a_completion_is_asked_for_every_so_many_packets),
	        CASE(test_small_packets_go_inline_and_keep_no_buffer),
	        CASE(test_a_full_table_is_told_and_nothing_else_changes),
	        CASE(test_a_block_of_ports_is_refused),
	        CASE(test_all_tcp_of_an_address_is_for_nics_that_were_opened_so),
	        cmocka_unit_test_setup_teardown(test_an_address_has_all_tcp_that_no_other_flow_takes,
	                                        fixture_setup_address_flows, teardown),
	        CASE(test_groups_and_broadcasts_come_by_their_own_macs),
	        CASE(test_a_packet_for_another_mac_is_not_taken),
	        CASE(test_a_flow_that_two_processes_want_is_the_kernels),
	        CASE(test_packets_of_one_peer_come_once_while_their_flow_moves),
	        CASE(test_a_flow_whose_packets_a_kernel_socket_has_a_right_to_is_refused),
	        CASE(test_a_kernel_socket_that_comes_later_gets_its_packets),
	        CASE(test_the_rule_of_a_revoked_listener_stays_until_its_user_gives_it_back_or_for_a_second),
	        CASE(test_without_registered_memory_there_is_no_queue_pair),
	        CASE(test_windows_come_until_the_queue_has_its_depth),
	        CASE(test_a_receive_queue_that_has_failed_is_bound_again_with_its_flows),
	        CASE(test_a_send_queue_that_has_failed_gives_its_buffers_back),
	        CASE(test_a_rebind_without_its_interface_leaves_what_other_queue_pairs_go_by),
	        CASE(test_a_look_that_does_not_return_keeps_the_flows_for_a_second_only),
	        CASE(test_a_process_without_a_free_descriptor_has_a_new_queue_all_the_same),
	        CASE(test_without_any_descriptor_the_old_queue_keeps_its_rules),
	        CASE(test_a_sleeper_is_woken_after_a_rebind),
	        CASE(test_the_user_is_told_of_losses_and_of_rules_that_do_not_come_back),
	        CASE(test_its_descriptors_have_numbers_from_1000_on_and_are_all_told_of),
	        CASE(test_a_fork_has_all_descriptors_of_a_nic_that_closes_or_none),
	        CASE(test_a_forked_child_leaves_its_parents_queue_pairs_alone),
	        CASE(test_the_rules_of_a_dead_parent_end_though_its_child_lives),
	        CASE(test_a_device_that_has_gone_is_looked_for_and_can_be_closed),
	};

	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_ERROR});
	if (sscanf(getenv("VMA_CONFORMANCE"), "%255s %255s", end_specs[0], end_specs[1]) != 2 ||
	    sscanf(getenv("VMA_CONFORMANCE_NETNS"), "%255s %255s", netns[0], netns[1]) != 2)
		return 2;
	vma_test_set_filter_from_env();
	return cmocka_run_group_tests_name("verbs", tests, NULL, NULL);
}
