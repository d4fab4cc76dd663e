/* From an arrived frame to the sinks: who gets it, in which order, how often, and what is counted. */
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "fake_nic.h"
#include "frames.h"

struct listener {
	struct vma_flow flow; /* first */
	unsigned calls;
	bool refuse, detach_self;
	struct listener *detach_other;
	struct vma_flow *attach_other;
	struct vma_buf *kept[64];
	unsigned kept_count;
	struct vma_rx_info info;
	unsigned trains, take_most; /* of a train: the first ones */
};

static struct fake_nic fake;
static struct vma_ring *ring;
static const uint8_t group_ip[4] = {239, 0, 0, 7};

static bool dispatch_sink_keep_or_refuse_packet(struct vma_flow *flow, struct vma_buf *packet,
                                                const struct vma_rx_info *info)
{
	struct listener *l = (struct listener *)flow;

	l->calls++;
	l->info = *info;
	if (l->detach_self)
		vma_ring_detach_flow(ring, flow);
	if (l->detach_other != NULL)
		vma_ring_detach_flow(ring, &l->detach_other->flow);
	if (l->attach_other != NULL) {
		assert_int_equal(vma_ring_attach_flow(ring, l->attach_other), 0);
		l->attach_other = NULL;
	}
	if (l->refuse)
		return false;
	l->kept[l->kept_count++ % 64] = packet;
	return true;
}

static unsigned dispatch_take_train(struct vma_flow *flow, struct vma_buf *const *packets, unsigned n,
                                    const struct vma_rx_info *info)
{
	struct listener *l = (struct listener *)flow;
	unsigned i;

	l->trains++;
	l->info = *info;
	for (i = 0; i < n && i < l->take_most; i++)
		l->kept[l->kept_count++ % 64] = packets[i];
	return i;
}
static const struct vma_flow_ops train_ops = {.take_train = dispatch_take_train};

static void dispatch_attach_listener_flow(struct listener *l, struct vma_flow_key key, uint32_t flags)
{
	memset(l, 0, sizeof(*l));
	l->flow.key = key;
	l->flow.flags = flags;
	l->flow.sink = dispatch_sink_keep_or_refuse_packet;
	assert_int_equal(vma_ring_attach_flow(ring, &l->flow), 0);
}

static void dispatch_release_kept_packets(struct listener *l)
{
	for (unsigned i = 0; i < l->kept_count; i++)
		vma_buf_put_chain(fake.arena, l->kept[i]);
	l->kept_count = 0;
	if (l->flow.ring != NULL)
		vma_ring_detach_flow(ring, &l->flow);
}

static int setup(void **state)
{
	(void)state;
	fake_init(&fake, 0);
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	vma_ring_destroy(ring);
	fake_fini(&fake);
	return 0;
}

static uint64_t dispatch_rx_counter(size_t offset)
{
	return vma_stats_read_counter((_Atomic uint64_t *)((char *)&vma_ring_stats(ring)->rx + offset));
}
#define COUNT(name) dispatch_rx_counter(offsetof(struct vma_stats_ring_rx, name))

static void inject_udp_datagram(const uint8_t dst_ip[4], uint16_t src_port, uint16_t dst_port)
{
	uint8_t frame[128];

	fake_nic_receive_frame(&fake, frame, udp_frame_to(frame, dst_ip, 0, src_port, dst_port, "data", 4));
}

static void inject_tcp_segment(uint8_t flags)
{
	uint8_t frame[128];

	fake_nic_receive_frame(&fake, frame, tcp_frame(frame, 1000, 80, flags, "", 0));
}

static void test_datagram_reaches_its_flow_with_bytes_and_addresses(void **state)
{
	struct listener l;

	(void)state;
	dispatch_attach_listener_flow(&l, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(vma_ring_progress(ring), 0);
	assert_int_equal(l.calls, 1);
	assert_int_equal(l.info.src_port_be, htons(1000));
	assert_int_equal(l.kept[0]->payload_len, 4);
	assert_memory_equal(vma_buf_data(fake.arena, l.kept[0]) + l.kept[0]->payload_off, "data", 4);
	assert_int_equal(COUNT(rx_packets), 1);
	assert_int_equal(COUNT(rx_bytes), 46);
	assert_int_equal(COUNT(rx_delivered), 1);
	dispatch_release_kept_packets(&l);
}

static void test_five_tuple_wins_over_three_tuple(void **state)
{
	struct listener any, one;

	(void)state;
	dispatch_attach_listener_flow(&any, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	dispatch_attach_listener_flow(&one, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 1000), 0);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	inject_udp_datagram(frame_dst_ip, 1001, 53);
	assert_int_equal(vma_ring_progress(ring), 2);
	assert_int_equal(one.calls, 1);
	assert_int_equal(any.calls, 1);
	assert_int_equal(any.info.src_port_be, htons(1001));
	dispatch_release_kept_packets(&one);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(any.calls, 2);
	dispatch_release_kept_packets(&any);
}

static void test_protocol_port_address_and_vlan_all_count(void **state)
{
	const uint8_t other_ip[4] = {10, 0, 0, 3};
	uint8_t frame[128];
	struct listener l;

	(void)state;
	dispatch_attach_listener_flow(&l, flow_key(IPPROTO_UDP, frame_dst_ip, 80, 0), 0);
	inject_udp_datagram(frame_dst_ip, 1000, 81);
	inject_udp_datagram(other_ip, 1000, 80);
	inject_tcp_segment(TH_SYN);
	fake_nic_receive_frame(&fake, frame, udp_frame_to(frame, frame_dst_ip, 5, 1000, 80, "x", 1));
	assert_int_equal(vma_ring_progress(ring), 4);
	assert_int_equal(l.calls, 0);
	assert_int_equal(COUNT(rx_drop_no_flow), 4);
	dispatch_release_kept_packets(&l);
}

static void test_unicast_goes_to_the_first_attached_only(void **state)
{
	struct listener a, b;

	(void)state;
	dispatch_attach_listener_flow(&a, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	dispatch_attach_listener_flow(&b, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	inject_udp_datagram(frame_dst_ip, 1, 53);
	vma_ring_progress(ring);
	assert_int_equal(a.calls, 1);
	assert_int_equal(b.calls, 0);
	dispatch_release_kept_packets(&a);
	inject_udp_datagram(frame_dst_ip, 1, 53);
	vma_ring_progress(ring);
	assert_int_equal(b.calls, 1);
	dispatch_release_kept_packets(&b);
}

static void test_the_nic_learns_the_shadow_of_every_member(void **state)
{
	struct listener a = {0}, b = {0};

	(void)state;
	dispatch_attach_listener_flow(&a, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	b.flow = (struct vma_flow){.key = a.flow.key, .sink = a.flow.sink, .shadow_cookie = 4711};
	fake.flow_result = -EEXIST; /* as every NIC answers to a key that it has */
	assert_int_equal(vma_ring_attach_flow(ring, &b.flow), 0);
	assert_int_equal(fake.last_cookie, 4711);
	assert_int_equal(fake.flows_added, 1);
	vma_ring_detach_flow(ring, &b.flow);
	fake.flow_result = -EADDRINUSE; /* its socket brings the flow down: it does not get it */
	assert_int_equal(vma_ring_attach_flow(ring, &b.flow), -EADDRINUSE);
	fake.flow_result = 0;
	dispatch_release_kept_packets(&a);
}

static void test_a_drained_detach_delivers_what_had_come_and_nothing_later(void **state)
{
	struct listener a, b;

	(void)state;
	dispatch_attach_listener_flow(&a, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	dispatch_attach_listener_flow(&b, flow_key(IPPROTO_UDP, frame_dst_ip, 54, 0), 0);
	for (int i = 0; i < 40; i++) /* more than one burst */
		inject_udp_datagram(frame_dst_ip, 1, i % 2 == 0 ? 53 : 54);
	vma_ring_drain_and_detach_flow(ring, &a.flow);
	assert_int_equal(a.calls, 20);
	assert_int_equal(b.calls, 20);
	assert_null(a.flow.ring);
	inject_udp_datagram(frame_dst_ip, 1, 53);
	vma_ring_progress(ring);
	assert_int_equal(a.calls, 20);
	b.detach_self = true; /* while its queue is emptied */
	inject_udp_datagram(frame_dst_ip, 1, 54);
	vma_ring_drain_and_detach_flow(ring, &b.flow);
	assert_int_equal(b.calls, 21);
	assert_null(b.flow.ring);
	dispatch_release_kept_packets(&a);
	dispatch_release_kept_packets(&b);
}

static void test_multicast_goes_to_all_members_one_reference_each(void **state)
{
	struct listener l[4];

	(void)state;
	for (int i = 0; i < 3; i++)
		dispatch_attach_listener_flow(&l[i], flow_key(IPPROTO_UDP, group_ip, 53, 0), 0);
	dispatch_attach_listener_flow(&l[3], flow_key(IPPROTO_UDP, group_ip, 53, 1000),
	                              0); /* connected: a member as well */
	l[1].refuse = true;
	inject_udp_datagram(group_ip, 1000, 53);
	assert_int_equal(vma_ring_progress(ring), 1);
	for (int i = 0; i < 4; i++)
		assert_int_equal(l[i].calls, 1);
	assert_int_equal(COUNT(rx_delivered), 3);
	assert_int_equal(COUNT(rx_drop_sink), 1);
	assert_int_equal(atomic_load(&l[0].kept[0]->refs), 3);
	for (int i = 0; i < 4; i++)
		dispatch_release_kept_packets(&l[i]);
	inject_udp_datagram(group_ip, 1000, 53);
	vma_ring_progress(ring);
	assert_int_equal(COUNT(rx_drop_no_flow), 1);
}

static void test_multicast_in_pieces_is_shared_whole(void **state)
{
	uint8_t frame[1200], payload[1000] = {0};
	struct listener l[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		dispatch_attach_listener_flow(&l[i], flow_key(IPPROTO_UDP, group_ip, 53, 0), 0);
	fake_nic_receive_in_pieces(&fake, frame, udp_frame_to(frame, group_ip, 0, 1, 53, payload, sizeof(payload)),
	                           301);
	assert_int_equal(vma_ring_progress(ring), 1);
	for (const struct vma_buf *buf = l[0].kept[0]; buf != NULL; buf = buf->next)
		assert_int_equal(atomic_load(&buf->refs), 2);
	dispatch_release_kept_packets(&l[0]);
	dispatch_release_kept_packets(&l[1]);
}

static void test_refused_packet_is_given_back_and_counted(void **state)
{
	struct listener l;

	(void)state;
	dispatch_attach_listener_flow(&l, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	l.refuse = true;
	for (int i = 0; i < 2000; i++) { /* many more than there are buffers */
		inject_udp_datagram(frame_dst_ip, 1, 53);
		assert_int_equal(vma_ring_progress(ring), 1);
	}
	assert_int_equal(COUNT(rx_drop_sink), 2000);
	dispatch_release_kept_packets(&l);
}

static void test_dropped_packets_are_given_back(void **state)
{
	uint8_t frame[128];
	uint32_t len = udp_frame(frame, 1, 2, "data", 4);

	(void)state;
	frame[24] ^= 1;
	for (int i = 0; i < 2000; i++) {
		fake_nic_receive_frame(&fake, frame, len);
		assert_int_equal(vma_ring_progress(ring), 1);
	}
	assert_int_equal(COUNT(rx_drop_ip_checksum), 2000);
	assert_int_equal(COUNT(rx_packets), 2000);
}

static void test_listener_gets_what_no_connection_takes(void **state)
{
	struct listener l, established;

	(void)state;
	dispatch_attach_listener_flow(&l, flow_key(IPPROTO_TCP, frame_dst_ip, 80, 0), VMA_FLOW_LISTENER);
	inject_tcp_segment(TH_SYN);
	inject_tcp_segment(TH_ACK);
	inject_tcp_segment(TH_SYN | TH_ACK);
	inject_tcp_segment(TH_RST);
	assert_int_equal(vma_ring_progress(ring), 4);
	assert_int_equal(l.calls, 4);
	assert_int_equal(l.info.tcp_flags, TH_RST);
	dispatch_attach_listener_flow(&established, flow_key(IPPROTO_TCP, frame_dst_ip, 80, 1000), 0);
	inject_tcp_segment(TH_ACK);
	inject_tcp_segment(TH_SYN);
	vma_ring_progress(ring);
	assert_int_equal(established.calls, 2);
	assert_int_equal(l.calls, 4);
	dispatch_release_kept_packets(&established);
	inject_tcp_segment(TH_ACK);
	vma_ring_progress(ring);
	assert_int_equal(l.calls, 5);
	dispatch_release_kept_packets(&l);
}

static void test_nic_steers_once_per_key(void **state)
{
	struct listener a, b, c;

	(void)state;
	dispatch_attach_listener_flow(&a, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	dispatch_attach_listener_flow(&b, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	assert_int_equal(fake.flows_added, 1);
	dispatch_attach_listener_flow(&c, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 9), 0);
	assert_int_equal(fake.flows_added, 2);
	dispatch_release_kept_packets(&a);
	assert_int_equal(fake.flows_deleted, 0);
	dispatch_release_kept_packets(&b);
	assert_int_equal(fake.flows_deleted, 1);
	assert_memory_equal(&fake.last_deleted, &a.flow.key, sizeof(a.flow.key));
	dispatch_release_kept_packets(&c);
	assert_int_equal(fake.flows_deleted, 2);
}

static void test_attach_refuses_what_cannot_be_and_leaves_no_trace(void **state)
{
	struct listener l;
	struct vma_flow bad = {.key = flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0),
	                       .sink = dispatch_sink_keep_or_refuse_packet};

	(void)state;
	dispatch_attach_listener_flow(&l, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	assert_int_equal(vma_ring_attach_flow(ring, &l.flow), -EEXIST);
	dispatch_release_kept_packets(&l);
	bad.key.family = AF_INET6;
	assert_int_equal(vma_ring_attach_flow(ring, &bad), -EAFNOSUPPORT);
	bad.key.family = AF_INET;
	bad.key.proto = IPPROTO_ICMP;
	assert_int_equal(vma_ring_attach_flow(ring, &bad), -EINVAL);
	bad.key.proto = IPPROTO_UDP;
	bad.sink = NULL;
	assert_int_equal(vma_ring_attach_flow(ring, &bad), -EINVAL);
	bad.sink = dispatch_sink_keep_or_refuse_packet;
	fake.flow_result = -EADDRINUSE;
	assert_int_equal(vma_ring_attach_flow(ring, &bad), -EADDRINUSE);
	assert_null(bad.ring);
	fake.flow_result = 0;
	inject_udp_datagram(frame_dst_ip, 1, 53);
	vma_ring_progress(ring);
	assert_int_equal(COUNT(rx_drop_no_flow), 1);
}

static void test_sink_may_detach_itself_and_others(void **state)
{
	struct listener l[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		dispatch_attach_listener_flow(&l[i], flow_key(IPPROTO_UDP, group_ip, 53, 0), 0);
	l[0].detach_self = true;
	l[0].detach_other = &l[1]; /* the very next one */
	l[2].detach_other = &l[0]; /* not attached any more: nothing happens */
	inject_udp_datagram(group_ip, 1, 53);
	inject_udp_datagram(group_ip, 1, 53);
	assert_int_equal(vma_ring_progress(ring), 2);
	assert_int_equal(l[0].calls, 1);
	assert_int_equal(l[1].calls, 0);
	assert_int_equal(l[2].calls, 2);
	assert_int_equal(l[3].calls, 2);
	for (int i = 0; i < 4; i++)
		dispatch_release_kept_packets(&l[i]);
}

static void test_sink_may_attach_the_flow_of_the_next_packet(void **state)
{
	struct listener l, child = {.flow = {.key = flow_key(IPPROTO_TCP, frame_dst_ip, 80, 1000),
	                                     .sink = dispatch_sink_keep_or_refuse_packet}};

	(void)state;
	dispatch_attach_listener_flow(&l, flow_key(IPPROTO_TCP, frame_dst_ip, 80, 0), VMA_FLOW_LISTENER);
	l.attach_other = &child.flow;
	inject_tcp_segment(TH_SYN);
	inject_tcp_segment(TH_ACK);
	assert_int_equal(vma_ring_progress(ring), 2);
	assert_int_equal(l.calls, 1);
	assert_int_equal(child.calls, 1);
	dispatch_release_kept_packets(&child);
	dispatch_release_kept_packets(&l);
}

static bool sink_call_ring_progress(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)packet, (void)info;
	*(int *)flow->owner = vma_ring_progress(ring);
	return false;
}

/* The flow of the packet before is tried first: it must not outlive what made it the right one. */
static void test_a_train_of_packets_follows_every_attach_and_detach(void **state)
{
	struct listener any, peer;

	(void)state;
	dispatch_attach_listener_flow(&any, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	vma_ring_progress(ring);
	assert_int_equal(any.calls, 2);
	dispatch_attach_listener_flow(&peer, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 1000), 0);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	inject_udp_datagram(frame_dst_ip, 1001, 53);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	vma_ring_progress(ring);
	assert_int_equal(any.calls, 3);
	assert_int_equal(peer.calls, 2);
	peer.detach_self = true; /* in the middle of a train */
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	vma_ring_progress(ring);
	assert_int_equal(peer.calls, 3);
	assert_int_equal(any.calls, 4);
	dispatch_release_kept_packets(&peer);
	dispatch_release_kept_packets(&any);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	inject_udp_datagram(frame_dst_ip, 1000, 53); /* nobody's, twice */
	vma_ring_progress(ring);
	assert_int_equal(COUNT(rx_drop_no_flow), 2);
	dispatch_attach_listener_flow(&any, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	vma_ring_progress(ring);
	assert_int_equal(any.calls, 1);
	dispatch_release_kept_packets(&any);
}

static void inject_numbered_datagram(uint16_t src_port, uint8_t number)
{
	uint8_t frame[128], payload[40] = {number};

	fake_nic_receive_frame(&fake, frame,
	                       udp_frame_to(frame, frame_dst_ip, 0, src_port, 53, payload, 1 + number % 3 * 16u));
}

static void expect_kept_packets_numbered(const struct listener *l, uint8_t first, unsigned n)
{
	assert_int_equal(l->kept_count, n);
	for (unsigned i = 0; i < n; i++) {
		const uint8_t number = (uint8_t)(first + i);

		assert_int_equal((uint8_t)vma_buf_data(fake.arena, l->kept[i])[l->kept[i]->payload_off], number);
		assert_int_equal(l->kept[i]->payload_len, 1 + number % 3 * 16);
	}
}

static void attach_flow_with_train_sink(struct listener *l, unsigned take_most)
{
	dispatch_attach_listener_flow(l, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	l->flow.ops = &train_ops;
	l->take_most = take_most;
}

static void test_a_train_is_taken_as_a_whole_in_order(void **state)
{
	struct listener l;

	(void)state;
	attach_flow_with_train_sink(&l, UINT32_MAX);
	for (uint8_t i = 0; i < 10; i++)
		inject_numbered_datagram(1000, i);
	assert_int_equal(vma_ring_progress(ring), 10);
	assert_int_equal(l.calls, 1); /* the first one tells of no train yet */
	assert_int_equal(l.trains, 1);
	assert_int_equal(l.info.src_port_be, htons(1000));
	expect_kept_packets_numbered(&l, 0, 10);
	assert_int_equal(COUNT(rx_delivered), 10);
	inject_numbered_datagram(1000, 10);
	assert_int_equal(vma_ring_progress(ring), 1); /* one alone is none */
	assert_int_equal(l.calls, 2);
	expect_kept_packets_numbered(&l, 0, 11);
	dispatch_release_kept_packets(&l);
}

static void test_what_a_train_leaves_goes_to_the_sink(void **state)
{
	struct listener l;

	(void)state;
	attach_flow_with_train_sink(&l, 3);
	for (uint8_t i = 0; i < 8; i++)
		inject_numbered_datagram(1000, i);
	vma_ring_progress(ring);
	assert_int_equal(l.trains, 1);
	assert_int_equal(l.calls, 1 + 4);
	expect_kept_packets_numbered(&l, 0, 8);
	assert_int_equal(COUNT(rx_delivered), 8);
	l.detach_self = true; /* in the sink of the first that is left */
	for (uint8_t i = 8; i < 16; i++)
		inject_numbered_datagram(1000, i);
	vma_ring_progress(ring);
	expect_kept_packets_numbered(&l, 0, 12);
	assert_int_equal(COUNT(rx_delivered), 12);
	assert_int_equal(COUNT(rx_drop_no_flow), 4);
	dispatch_release_kept_packets(&l);
}

/* Whatever comes in between: what waits is taken first, so that the order stays. */
static void test_a_train_ends_where_another_packet_comes(void **state)
{
	struct listener l;
	uint8_t frame[128];

	(void)state;
	attach_flow_with_train_sink(&l, UINT32_MAX);
	for (uint8_t i = 0; i < 4; i++)
		inject_numbered_datagram(1000, i);
	inject_numbered_datagram(1001, 4); /* another sender */
	inject_numbered_datagram(1000, 5);
	inject_numbered_datagram(1000, 6);
	inject_numbered_datagram(1000, 7);
	udp_frame(frame, 1000, 53, "damaged", 7);
	frame[44] ^= 1;
	fake_nic_receive_frame(&fake, frame, 49);
	inject_tcp_segment(TH_SYN);
	inject_numbered_datagram(1000, 8);
	inject_numbered_datagram(1000, 9);
	assert_int_equal(vma_ring_progress(ring), 12);
	expect_kept_packets_numbered(&l, 0, 10);
	assert_int_equal(l.trains, 2);
	assert_int_equal(l.calls, 5);
	assert_int_equal(COUNT(rx_delivered), 10);
	assert_int_equal(COUNT(rx_drop_l4_checksum), 1);
	assert_int_equal(COUNT(rx_drop_no_flow), 1);
	dispatch_release_kept_packets(&l);
}

static void command_note_that_it_ran(struct vma_ring_command *command)
{
	*(bool *)(command + 1) = true;
}

static void post_command_while_drive_flag_is_taken(void *arg)
{
	fake.in_poll = NULL;
	vma_ring_queue_command_and_try_run(ring, arg); /* the flag is taken: it waits in the queue */
}

static void test_a_quiet_queue_is_polled_only_when_there_is_something_to_do(void **state)
{
	struct {
		struct vma_ring_command command;
		bool ran;
	} order = {.command = {.run = command_note_that_it_ran}};
	struct listener l;
	unsigned polls;

	(void)state;
	dispatch_attach_listener_flow(&l, flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), 0);
	vma_ring_progress(ring);
	fake.tells_quiet = true;
	polls = fake.polls;
	assert_int_equal(vma_ring_progress(ring), 0);
	assert_int_equal(fake.polls, polls);
	inject_udp_datagram(frame_dst_ip, 1000, 53);
	fake.in_poll = post_command_while_drive_flag_is_taken;
	fake.in_arg = &order;
	assert_int_equal(vma_ring_progress(ring), 1);
	assert_int_equal(fake.polls, polls + 1);
	assert_true(order.ran);
	l.refuse = true;
	for (unsigned i = 0; i < 64; i++) { /* what is owed is given back without an arrival */
		inject_udp_datagram(frame_dst_ip, 1000, 53);
		vma_ring_progress(ring);
	}
	vma_ring_progress(ring);
	polls = fake.polls;
	assert_int_equal(vma_ring_progress(ring), 0);
	assert_int_equal(fake.polls, polls);
	dispatch_release_kept_packets(&l);
}

static void test_progress_is_busy_within_a_sink(void **state)
{
	int result = 0;
	struct vma_flow flow = {
	        .key = flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0), .sink = sink_call_ring_progress, .owner = &result};

	(void)state;
	assert_int_equal(vma_ring_attach_flow(ring, &flow), 0);
	inject_udp_datagram(frame_dst_ip, 1, 53);
	inject_udp_datagram(frame_dst_ip, 1, 53);
	assert_int_equal(vma_ring_progress(ring), 2);
	assert_int_equal(result, -EBUSY);
	assert_int_equal(vma_ring_drive_holder_tid(ring, VMA_RING_RX), 0);
	vma_ring_detach_flow(ring, &flow);
}

static void test_wait_reports_arrival_timeout_and_what_is_there_already(void **state)
{
	(void)state;
	assert_int_equal(vma_ring_wait(ring, 0), 0);
	assert_int_equal(vma_ring_wait(ring, 1000000), 0);
	inject_udp_datagram(frame_dst_ip, 1, 53);
	assert_int_equal(vma_ring_wait(ring, UINT64_MAX), 1);
	assert_int_equal(vma_ring_progress(ring), 1);
}

struct note {
	struct vma_ring_command command; /* first */
	unsigned order, *counter, again;
};

static void note_order_of_command(struct vma_ring_command *command)
{
	struct note *note = (struct note *)command;

	note->order = ++*note->counter;
	assert_int_equal(vma_ring_progress(ring), -EBUSY);
	if (note->again-- > 0)
		vma_ring_queue_command_and_try_run(ring, command);
}

static bool sink_post_three_ring_commands(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct note *notes = flow->owner;

	(void)packet, (void)info;
	for (int i = 0; i < 3; i++)
		vma_ring_queue_command_and_try_run(ring, &notes[i].command);
	assert_int_equal(*notes[0].counter, 0); /* not now: this thread drives already */
	return false;
}

static void test_posted_commands_run_once_in_order_with_the_flag_held(void **state)
{
	unsigned counter = 0;
	struct note notes[3];
	struct vma_flow flow = {.key = flow_key(IPPROTO_UDP, frame_dst_ip, 53, 0),
	                        .sink = sink_post_three_ring_commands,
	                        .owner = notes};

	(void)state;
	for (int i = 0; i < 3; i++)
		notes[i] = (struct note){.command = {.run = note_order_of_command}, .counter = &counter};
	assert_int_equal(vma_ring_attach_flow(ring, &flow), 0);
	inject_udp_datagram(frame_dst_ip, 1, 53);
	assert_int_equal(vma_ring_progress(ring), 1);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(notes[i].order, i + 1);
	notes[0].again = 5;
	vma_ring_queue_command_and_try_run(ring, &notes[0].command);
	assert_int_equal(counter, 9);
	assert_int_equal(COUNT(rx_commands), 9);
	vma_ring_detach_flow(ring, &flow);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
static const struct CMUnitTest tests[] = {
        CASE(test_datagram_reaches_its_flow_with_bytes_and_addresses),
        CASE(test_five_tuple_wins_over_three_tuple),
        CASE(test_protocol_port_address_and_vlan_all_count),
        CASE(test_unicast_goes_to_the_first_attached_only),
        CASE(test_the_nic_learns_the_shadow_of_every_member),
        CASE(test_a_drained_detach_delivers_what_had_come_and_nothing_later),
        CASE(test_multicast_goes_to_all_members_one_reference_each),
        CASE(test_multicast_in_pieces_is_shared_whole),
        CASE(test_refused_packet_is_given_back_and_counted),
        CASE(test_dropped_packets_are_given_back),
        CASE(test_listener_gets_what_no_connection_takes),
        CASE(test_nic_steers_once_per_key),
        CASE(test_attach_refuses_what_cannot_be_and_leaves_no_trace),
        CASE(test_sink_may_detach_itself_and_others),
        CASE(test_sink_may_attach_the_flow_of_the_next_packet),
        CASE(test_a_train_of_packets_follows_every_attach_and_detach),
        CASE(test_a_train_is_taken_as_a_whole_in_order),
        CASE(test_what_a_train_leaves_goes_to_the_sink),
        CASE(test_a_train_ends_where_another_packet_comes),
        CASE(test_a_quiet_queue_is_polled_only_when_there_is_something_to_do),
        CASE(test_progress_is_busy_within_a_sink),
        CASE(test_wait_reports_arrival_timeout_and_what_is_there_already),
        CASE(test_posted_commands_run_once_in_order_with_the_flag_held),
};
VMA_TEST_MAIN(tests)
