/*
 * A flow goes to and fro between two rings of one NIC while numbered datagrams come without a pause and a thread drives
 * each ring. Each stay of the flow gets what follows the stay before, to the last number. STRESS_SECONDS.
 *
 *   peer ring ══ wire ══╦═ ring 0 ── thread
 *                       ╚═ ring 1 ── thread
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/ring.h>
#include <vma/test.h>

#include "frames.h"

enum { PORT = 7, MOVES = 100, UNREAD = 100 };
static const uint8_t here[4] = {10, 0, 0, 1}, there[4] = {10, 0, 0, 2};

/* What the flow has received on one ring. */
struct stay {
	struct vma_flow flow; /* first */
	_Atomic uint64_t first, next;
	_Atomic bool begun, wrong;
};

static struct vma_bufarena *arena;
static struct vma_bufpool *spill;
static struct vma_nic *nic[2];
static struct vma_ring *rings[2], *peer;
static struct stay ring_stays_of_flow[MOVES + 1];
static _Atomic uint64_t received;
static _Atomic bool stop;

static bool move_sink_check_packet_order(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct stay *stay = (struct stay *)flow;
	uint64_t number;

	(void)info;
	memcpy(&number, vma_buf_data(arena, packet) + packet->payload_off, sizeof(number));
	if (!atomic_load(&stay->begun)) {
		atomic_store(&stay->first, number);
		atomic_store(&stay->next, number);
		atomic_store(&stay->begun, true);
	}
	if (atomic_load(&stay->next) != number)
		atomic_store(&stay->wrong, true);
	atomic_store(&stay->next, number + 1);
	atomic_fetch_add(&received, 1);
	return false;
}

static void move_init_udp_flow_with_sink(struct stay *stay)
{
	*stay = (struct stay){.flow = {.key = {.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = htons(PORT)},
	                               .sink = move_sink_check_packet_order}};
	memcpy(stay->flow.key.local, here, 4);
}

static struct vma_ring *move_test_create_ring(int end)
{
	struct vma_ring_attr attr = {.nic = nic[end],
	                             .spill_pool = spill,
	                             .rx_wre = 512,
	                             .tx_wre = 512,
	                             .thread_mode = VMA_THREAD_SPIN,
	                             .name = end == 0 ? "here" : "peer"};
	struct vma_ring *ring;

	assert_int_equal(vma_ring_create(&attr, &ring), 0);
	return ring;
}

static int setup(void **state)
{
	struct vma_bufarena_attr arena_attr = {.capacity = 1 << 16};
	struct vma_wire_pair_attr pair = {0};
	struct vma_bufpool_attr pool = {.name = "spill", .max_bufs = 4096};

	(void)state;
	assert_int_equal(vma_bufarena_create(&arena_attr, &arena), 0);
	pool.arena = arena;
	assert_int_equal(vma_bufpool_create(&pool, &spill), 0);
	pair.arena[0] = pair.arena[1] = arena;
	assert_int_equal(vma_wire_create_pair(&pair, nic), 0);
	rings[0] = move_test_create_ring(0);
	rings[1] = move_test_create_ring(0);
	peer = move_test_create_ring(1);
	atomic_store(&received, 0);
	atomic_store(&stop, false);
	move_init_udp_flow_with_sink(&ring_stays_of_flow[0]);
	assert_int_equal(vma_ring_attach_flow(rings[0], &ring_stays_of_flow[0].flow), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_destroy(rings[0]);
	vma_ring_destroy(rings[1]);
	vma_ring_destroy(peer);
	vma_nic_close(nic[0]);
	vma_nic_close(nic[1]);
	vma_bufpool_retire(spill, NULL, NULL);
	vma_bufpool_flush_thread(arena);
	vma_bufarena_destroy(arena);
	return 0;
}

static void move_send_numbered_datagram(uint64_t number)
{
	struct vma_pkt_udp_attr attr = {.src_port_be = htons(9), .dst_port_be = htons(PORT)};
	struct vma_buf *buf;
	struct vma_nic_seg seg;
	struct vma_pkt_udp pkt;
	char *frame;

	memcpy(attr.src_ip, there, 4);
	memcpy(attr.dst_ip, here, 4);
	vma_pkt_udp_init(&pkt, &attr);
	while ((buf = vma_ring_tx_buf(peer)) == NULL)
		sched_yield();
	frame = vma_buf_data(arena, buf);
	memcpy(frame + pkt.len, &number, sizeof(number));
	seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off};
	seg.len = vma_pkt_udp_write(&pkt, (uint8_t *)frame, sizeof(number), VMA_PKT_CSUM_FULL);
	while (vma_ring_send(peer, &seg, 1, 0) == 0)
		sched_yield();
}

static void *progress_ring_until_stop_thread(void *ring)
{
	while (!atomic_load(&stop)) {
		if (vma_ring_progress(ring) <= 0)
			sched_yield();
	}
	return NULL;
}

static void *move_send_numbers_until_stop_thread(void *arg)
{
	_Atomic uint64_t *sent = arg;

	for (uint64_t number = 0; !atomic_load(&stop); number++) {
		while (number - atomic_load(&received) > UNREAD && !atomic_load(&stop))
			sched_yield();
		move_send_numbered_datagram(number);
		atomic_store(sent, number + 1);
	}
	return NULL;
}

/* Each stay gets something. */
static void move_flow_between_two_rings(void)
{
	for (unsigned i = 0; i < MOVES; i++) {
		while (!atomic_load(&ring_stays_of_flow[i].begun))
			sched_yield();
		move_init_udp_flow_with_sink(&ring_stays_of_flow[i + 1]);
		assert_int_equal(vma_ring_move_flow(rings[i % 2], &ring_stays_of_flow[i].flow, rings[(i + 1) % 2],
		                                    &ring_stays_of_flow[i + 1].flow),
		                 0);
	}
}

static void check_received_on_each_ring(uint64_t sent)
{
	uint64_t next = 0;

	for (unsigned i = 0; i <= MOVES; i++) {
		assert_false(atomic_load(&ring_stays_of_flow[i].wrong));
		if (!atomic_load(&ring_stays_of_flow[i].begun))
			continue;
		assert_int_equal(atomic_load(&ring_stays_of_flow[i].first), next);
		next = atomic_load(&ring_stays_of_flow[i].next);
	}
	assert_int_equal(next, sent);
}

static void move_flow_under_load_and_check(void)
{
	_Atomic uint64_t sent = 0;
	pthread_t sender, drivers[2];

	assert_int_equal(pthread_create(&sender, NULL, move_send_numbers_until_stop_thread, &sent), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&drivers[i], NULL, progress_ring_until_stop_thread, rings[i]), 0);
	move_flow_between_two_rings();
	atomic_store(&stop, true);
	pthread_join(sender, NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(drivers[i], NULL);
	while (vma_ring_progress(rings[0]) + vma_ring_progress(rings[1]) != 0)
		;
	vma_ring_detach_flow(rings[MOVES % 2], &ring_stays_of_flow[MOVES].flow);
	check_received_on_each_ring(atomic_load(&sent));
}

static void test_a_flow_moves_a_hundred_times_and_no_datagram_is_lost_or_overtaken(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	const time_t end = time(NULL) + (seconds != NULL ? atoi(seconds) : 1);

	for (move_flow_under_load_and_check(); time(NULL) < end; move_flow_under_load_and_check()) {
		teardown(state);
		setup(state);
	}
}

static void test_a_flow_stays_whose_key_has_another_member_or_no_rule(void **state)
{
	struct stay *other = &ring_stays_of_flow[1], *moved = &ring_stays_of_flow[2];

	(void)state;
	move_init_udp_flow_with_sink(other);
	move_init_udp_flow_with_sink(moved);
	assert_int_equal(vma_ring_attach_flow(rings[0], &other->flow), 0);
	assert_int_equal(vma_ring_move_flow(rings[0], &ring_stays_of_flow[0].flow, rings[1], &moved->flow), -EBUSY);
	assert_int_equal(vma_ring_move_flow(rings[1], &ring_stays_of_flow[0].flow, rings[0], &moved->flow), -EBUSY);
	assert_null(moved->flow.ring);
	vma_ring_detach_flow(rings[0], &other->flow);
	move_send_numbered_datagram(1);
	while (vma_ring_progress(rings[0]) <= 0)
		;
	assert_int_equal(atomic_load(&ring_stays_of_flow[0].next), 2);
	vma_ring_detach_flow(rings[0], &ring_stays_of_flow[0].flow);
}

static void test_a_flow_that_the_nic_does_not_move_stays(void **state)
{
	struct stay *moved = &ring_stays_of_flow[1];

	(void)state;
	move_init_udp_flow_with_sink(moved);
	assert_int_equal(vma_ring_move_flow(rings[0], &ring_stays_of_flow[0].flow, peer, &moved->flow), -EINVAL);
	assert_null(moved->flow.ring);
	move_send_numbered_datagram(1);
	while (vma_ring_progress(rings[0]) <= 0)
		;
	assert_int_equal(atomic_load(&ring_stays_of_flow[0].next), 2);
	vma_ring_detach_flow(rings[0], &ring_stays_of_flow[0].flow);
}

static void test_sends_are_drained_when_the_other_end_has_them(void **state)
{
	(void)state;
	assert_true(vma_ring_drain_sends(peer, 0));
	move_send_numbered_datagram(1);
	assert_false(vma_ring_drain_sends(peer, 1000000));
	while (vma_ring_progress(rings[0]) <= 0)
		;
	assert_true(vma_ring_drain_sends(peer, 1000000));
	vma_ring_detach_flow(rings[0], &ring_stays_of_flow[0].flow);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_flow_moves_a_hundred_times_and_no_datagram_is_lost_or_overtaken, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_flow_stays_whose_key_has_another_member_or_no_rule, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_flow_that_the_nic_does_not_move_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sends_are_drained_when_the_other_end_has_them, setup, teardown),
};

VMA_TEST_MAIN(tests)
