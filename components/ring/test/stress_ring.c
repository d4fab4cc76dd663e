/* Eight threads hammer one ring's receive and transmit side: nothing is lost, nothing comes twice. STRESS_SECONDS. */
#include "hammer.h"

static void test_eight_threads_lose_and_repeat_nothing(void **state)
{
	uint64_t nanoseconds = (uint64_t)(hammer_seconds_from_env_or(1.5) * 1e9);
	struct timespec pause = {.tv_sec = (time_t)(nanoseconds / 1000000000),
	                         .tv_nsec = (long)(nanoseconds % 1000000000)};

	(void)state;
	hammer_create_rings_and_start_workers();
	nanosleep(&pause, NULL);
	print_message("%lu round trips, %lu frames by other threads\n", (unsigned long)hammer_count_received(),
	              (unsigned long)vma_stats_read_counter(&vma_ring_stats(hammer.ring[0])->tx.tx_commands));
	for (int i = 0; i < WORKERS; i++)
		assert_true(atomic_load(&hammer.workers[i].received) > 0);
	hammer_stop_and_check_buffers_returned();
}

/* One thread is what the mode is for, and more are none the worse for it. */
static void test_eight_threads_lose_and_repeat_nothing_in_the_mode_for_one(void **state)
{
	hammer_mode = VMA_THREAD_SINGLE;
	test_eight_threads_lose_and_repeat_nothing(state);
	hammer_mode = VMA_THREAD_YIELD;
}

/* Flows come and go while others drive: a sink never runs after detach has returned. */
struct visitor {
	struct vma_flow flow; /* first */
	_Atomic bool gone;
	_Atomic uint64_t calls, after_the_end;
};

static bool visitor_count_packet(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct visitor *v = (struct visitor *)flow;

	(void)packet, (void)info;
	atomic_fetch_add(&v->calls, 1);
	if (atomic_load(&v->gone))
		atomic_fetch_add(&v->after_the_end, 1);
	return false;
}

static void send_one_byte_datagram_to_port(uint16_t port)
{
	uint8_t frame[64];
	struct vma_buf *buf = vma_ring_tx_buf(hammer.ring[1]);
	struct vma_nic_seg seg;

	if (buf == NULL)
		return;
	seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off};
	seg.len = udp_frame_to(frame, a_ip, 0, 1, port, "v", 1);
	memcpy(vma_buf_data(hammer.arena, buf), frame, seg.len);
	if (vma_ring_send(hammer.ring[1], &seg, 1, 0) == 0)
		vma_buf_put(hammer.arena, buf);
}

static void test_detach_returns_when_no_sink_runs_or_will_run(void **state)
{
	static struct visitor visitors[64];
	uint64_t end, runs = 0, calls = 0;
	struct visitor *v;

	(void)state;
	hammer_create_rings_and_start_workers();
	end = hammer_now_ns() + (uint64_t)(hammer_seconds_from_env_or(1.0) * 0.5e9);
	while (vma_test_goes_on(hammer_now_ns(), end, runs > 10)) {
		v = &visitors[runs++ % 64];
		calls += atomic_load(&v->calls);
		memset(v, 0, sizeof(*v));
		v->flow.key = flow_key(IPPROTO_UDP, a_ip, 5000, 0);
		v->flow.sink = visitor_count_packet;
		assert_int_equal(vma_ring_attach_flow(hammer.ring[0], &v->flow), 0);
		for (int i = 0; i < 4; i++)
			send_one_byte_datagram_to_port(5000);
		while (atomic_load(&v->calls) == 0 && hammer_now_ns() < end)
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
		vma_ring_detach_flow(hammer.ring[0], &v->flow);
		atomic_store(&v->gone, true);
		assert_int_equal(atomic_load(&v->after_the_end), 0);
	}
	for (int i = 0; i < 64; i++)
		assert_int_equal(atomic_load(&visitors[i].after_the_end), 0);
	print_message("%lu attachments, %lu visits\n", (unsigned long)runs, (unsigned long)calls);
	assert_true(runs > 10);
	hammer_stop_workers();
	for (int i = 0; i < WORKERS; i++)
		assert_int_equal(atomic_load(&hammer.workers[i].wrong), 0);
	hammer_stop_echo_and_destroy(); /* without the count: the visitors' packets are in it */
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eight_threads_lose_and_repeat_nothing),
        cmocka_unit_test(test_eight_threads_lose_and_repeat_nothing_in_the_mode_for_one),
        cmocka_unit_test(test_detach_returns_when_no_sink_runs_or_will_run),
};
VMA_TEST_MAIN(tests)
