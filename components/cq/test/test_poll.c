/* Polling, refilling and spilling against a queue pair whose every step the test decides. */
#include <pthread.h>
#include <semaphore.h>

#include <vma/cq.h>
#include <vma/test_capture.h>

#include "../cq_priv.h"
#include "fake_nic.h"

struct fixture {
	struct vma_bufarena *arena;
	struct fake_nic fake;
	struct vma_cq *cq;
	struct vma_bufpool *spill;
	struct vma_stats_cq *count;
};

static struct fixture fx;

/* `spill_frames` 0: no spill pool. */
static void setup_cq_over_fake_nic(struct vma_cq_attr attr, uint32_t rx_frames, uint32_t spill_frames, bool self_fill,
                                   uint32_t quota)
{
	struct vma_bufarena_attr arena_attr = {.capacity = 8192};

	fx = (struct fixture){0};
	assert_int_equal(vma_bufarena_create(&arena_attr, &fx.arena), 0);
	fake_init(&fx.fake, fx.arena, rx_frames);
	fx.fake.qp.rx_self_fill = self_fill;
	fx.fake.qp.rx_quota = quota;
	if (spill_frames != 0) {
		struct vma_bufpool_attr pool_attr = {.arena = fx.arena, .name = "spill"};
		uint32_t first;

		assert_int_equal(vma_bufpool_create(&pool_attr, &fx.spill), 0);
		assert_int_equal(vma_bufarena_map_memory(fx.arena, spill_frames, &first), 0);
		assert_int_equal(vma_bufpool_add_frames(fx.spill, first, spill_frames), 0);
	}
	attr.qp = &fx.fake.qp;
	attr.spill_pool = fx.spill;
	assert_int_equal(vma_cq_create(&attr, &fx.cq), 0);
}

static void teardown_cq_and_arena(void)
{
	vma_cq_destroy(fx.cq);
	fake_fini(&fx.fake);
	if (fx.spill != NULL)
		vma_bufpool_retire(fx.spill, NULL, NULL);
	vma_bufarena_destroy(fx.arena);
}

static void test_create_fills_the_receive_queue(void **state)
{
	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true}, 512, 0, false, 0);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	teardown_cq_and_arena();
}

static void test_create_without_queue_pair_is_refused(void **state)
{
	struct vma_cq *cq;

	(void)state;
	assert_int_equal(vma_cq_create(&(struct vma_cq_attr){0}, &cq), -EINVAL);
}

static void test_poll_takes_at_most_the_batch(void **state)
{
	struct vma_buf *packets[64];

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.poll_batch_max = 8, .keep_qp_full = true}, 512, 0, false, 0);
	for (int i = 0; i < 20; i++)
		fake_receive_packet(&fx.fake, 60 + i, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 64), 8);
	assert_int_equal(vma_cq_poll(fx.cq, packets + 8, 56), 8);
	assert_int_equal(vma_cq_poll(fx.cq, packets + 16, 48), 4);
	assert_int_equal(vma_cq_poll(fx.cq, packets + 20, 44), 0);
	for (int i = 0; i < 20; i++)
		assert_int_equal(packets[i]->packet_len, 60 + i);
	vma_buf_put_burst(fx.arena, packets, 20);
	teardown_cq_and_arena();
}

static void test_full_queue_mode_refills_at_the_batching(void **state)
{
	struct vma_buf *packets[64];

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true, .rx_wre_batching = 8}, 512, 0, false, 0);
	for (int i = 0; i < 7; i++)
		fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 16), 7);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH - 7);
	fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets + 7, 16), 1);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	vma_buf_put_burst(fx.arena, packets, 8);
	teardown_cq_and_arena();
}

static void test_debt_mode_refills_when_idle(void **state)
{
	struct vma_buf *packets[64];

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = false, .rx_wre_batching = 4}, 512, 0, false, 0);
	for (int i = 0; i < 16; i++)
		fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 16), 16);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH - 16);
	assert_int_equal(vma_cq_poll(fx.cq, packets + 16, 16), 0);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	vma_buf_put_burst(fx.arena, packets, 16);
	teardown_cq_and_arena();
}

static void test_a_small_debt_waits_until_it_grows_or_somebody_wants_to_sleep(void **state)
{
	struct vma_buf *packets[FAKE_DEPTH / 8];
	const unsigned at = FAKE_DEPTH / 8;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true}, 512, 0, false, 0);
	for (unsigned i = 0; i + 1 < at; i++) {
		fake_receive_packet(&fx.fake, 60, 'a', 0);
		assert_int_equal(vma_cq_poll(fx.cq, &packets[i], 1), 1);
		assert_int_equal(vma_cq_poll(fx.cq, &packets[at - 1], 1), 0);
		assert_false(vma_cq_needs_refill(fx.cq));
		assert_int_equal(fx.fake.posted_count, FAKE_DEPTH - i - 1);
	}
	fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, &packets[at - 1], 1), 1);
	assert_true(vma_cq_needs_refill(fx.cq));
	assert_int_equal(vma_cq_poll(fx.cq, packets, 1), 0);
	assert_false(vma_cq_needs_refill(fx.cq));
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	vma_buf_put_burst(fx.arena, packets, at);
	fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 1), 1);
	vma_cq_arm(fx.cq);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	vma_buf_put(fx.arena, packets[0]);
	teardown_cq_and_arena();
}

static void test_half_posted_refill_keeps_the_rest_in_order(void **state)
{
	struct vma_buf *packets[64];

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true, .rx_wre_batching = 1}, 512, 0, false, 0);
	for (int i = 0; i < 16; i++)
		fake_receive_packet(&fx.fake, 60, 'a', 0);
	fx.fake.post_limit = 5;
	assert_int_equal(vma_cq_poll(fx.cq, packets, 16), 16);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH - 16 + 5);
	fx.fake.post_limit = 0; /* busy: nothing is taken, nothing is lost */
	assert_int_equal(vma_cq_refill(fx.cq), 0);
	fx.fake.post_limit = UINT32_MAX;
	assert_int_equal(vma_cq_refill(fx.cq), 11);
	for (unsigned i = 0; i < fx.fake.posted_count; i++)
		for (unsigned k = 0; k < i; k++)
			assert_ptr_not_equal(fx.fake.posted[i], fx.fake.posted[k]);
	vma_buf_put_burst(fx.arena, packets, 16);
	teardown_cq_and_arena();
}

static void test_multi_buffer_packet_arrives_as_one_chain_across_polls(void **state)
{
	struct vma_buf *packets[8];

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true}, 512, 0, false, 0);
	fake_receive_packet(&fx.fake, 100, 'x', 0);
	fake_receive_packet(&fx.fake, 1500, 'a', VMA_BUF_RX_MORE);
	fake_receive_packet(&fx.fake, 1500, 'b', VMA_BUF_RX_MORE);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 8), 1);
	fake_receive_packet(&fx.fake, 10, 'c', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets + 1, 7), 1);
	assert_int_equal(packets[1]->packet_len, 3010);
	assert_int_equal(packets[1]->len, 1500);
	assert_int_equal(*vma_buf_data(fx.arena, packets[1]->next), 'b');
	assert_int_equal(packets[1]->next->next->len, 10);
	assert_null(packets[1]->next->next->next);
	vma_buf_put_chain(fx.arena, packets[0]);
	vma_buf_put_chain(fx.arena, packets[1]);
	teardown_cq_and_arena();
}

static void test_endless_packet_is_dropped_and_counted_once(void **state)
{
	struct vma_buf *packets[64];
	unsigned got = 0;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true, .rx_wre_batching = 1}, 512, 0, false, 0);
	for (int i = 0; i < 200; i++) {
		fake_receive_packet(&fx.fake, 60, 'a', VMA_BUF_RX_MORE);
		got += vma_cq_poll(fx.cq, packets, 1);
	}
	fake_receive_packet(&fx.fake, 60, 'z', 0); /* its end */
	got += vma_cq_poll(fx.cq, packets, 1);
	assert_int_equal(got, 0);
	fake_receive_packet(&fx.fake, 60, 'n', 0); /* the next packet is well again */
	assert_int_equal(vma_cq_poll(fx.cq, packets, 1), 1);
	assert_int_equal(*vma_buf_data(fx.arena, packets[0]), 'n');
	assert_null(packets[0]->next);
	vma_buf_put_chain(fx.arena, packets[0]);
	teardown_cq_and_arena();
}

static void test_hoarded_frames_are_copied_out_byte_for_byte(void **state)
{
	struct vma_buf *packets[64], *one;
	unsigned from_window = 0;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true, .rx_wre_batching = 1}, FAKE_DEPTH, 64, false,
	                       8);
	for (int i = 0; i < 20; i++) {
		fake_receive_packet(&fx.fake, 200, 'A' + i, 0);
		assert_int_equal(vma_cq_poll(fx.cq, &packets[i], 1), 1);
		from_window += packets[i]->pool == vma_bufpool_id(atomic_load(&fx.fake.qp.rx_pool));
	}
	assert_int_equal(from_window, 8);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH - 8);
	for (int i = 0; i < 20; i++) {
		const char *data = vma_buf_data(fx.arena, packets[i]);

		assert_int_equal(packets[i]->packet_len, 200);
		for (int k = 0; k < 200; k++)
			assert_int_equal(data[k], 'A' + i);
	}
	vma_buf_put_burst(fx.arena, packets, 20);
	fake_receive_packet(&fx.fake, 60, 'w', 0); /* nothing is held any more: the window serves again */
	assert_int_equal(vma_cq_poll(fx.cq, &one, 1), 1);
	assert_int_equal(one->pool, vma_bufpool_id(atomic_load(&fx.fake.qp.rx_pool)));
	vma_buf_put(fx.arena, one);
	teardown_cq_and_arena();
}

/* Who holds a burst behind a hole in its stream is over quota at each packet: a pool that is dry is not asked at each.
 */
static void test_dry_pool_is_not_asked_for_each_packet_that_is_copied_out(void **state)
{
	struct vma_buf *held[8], *packets[16];
	uint64_t before;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true, .rx_wre_batching = 1}, FAKE_DEPTH, 64, false,
	                       8);
	for (int i = 0; i < 8; i++) {
		fake_receive_packet(&fx.fake, 60, 'h', 0);
		assert_int_equal(vma_cq_poll(fx.cq, &held[i], 1), 1);
	}
	before = fx.cq->count->refill_short;
	for (int i = 0; i < 16; i++)
		fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 16), 16);
	for (int i = 0; i < 16; i++)
		assert_int_not_equal(packets[i]->pool, vma_bufpool_id(atomic_load(&fx.fake.qp.rx_pool)));
	assert_true(fx.cq->count->refill_short - before <= 2); /* before the burst, and after it */
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH - 8);
	vma_buf_put_burst(fx.arena, packets, 16);
	vma_buf_put_burst(fx.arena, held, 8);
	teardown_cq_and_arena();
}

static void test_without_spill_memory_the_queue_stays_full_and_packets_drop(void **state)
{
	struct vma_buf *packets[64];
	unsigned got = 0;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true, .rx_wre_batching = 1}, FAKE_DEPTH, 0, false,
	                       8);
	for (int i = 0; i < 20; i++) {
		fake_receive_packet(&fx.fake, 60, 'a', 0);
		got += vma_cq_poll(fx.cq, &packets[got], 1);
	}
	assert_int_equal(got, 8);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH - 8);
	vma_buf_put_burst(fx.arena, packets, got);
	teardown_cq_and_arena();
}

/* A drop of the copy is to be told of the packet that came in. */
static void test_a_capture_is_told_of_copies_and_of_packets_for_which_there_is_no_memory(void **state)
{
	struct test_capture capture;
	struct vma_buf *packets[16];
	uint32_t came[16];
	unsigned got = 0;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true, .rx_wre_batching = 1}, FAKE_DEPTH, 4, false,
	                       8);
	test_capture_start(&capture, 0);
	for (int i = 0; i < 14; i++) {
		came[i] = vma_buf_index(fx.arena, fake_receive_packet(&fx.fake, 60, 'a', 0));
		got += vma_cq_poll(fx.cq, &packets[got], 1);
	}
	assert_int_equal(got, 8 + 4);
	for (int i = 8; i < 12; i++)
		test_capture_note(&capture, VMA_CAPTURE_MOVED, came[i], NULL, vma_buf_index(fx.arena, packets[i]));
	for (int i = 12; i < 14; i++)
		test_capture_note(&capture, VMA_CAPTURE_DROP, came[i], "drop_no_memory", 0);
	test_capture_nothing_more(&capture);
	test_capture_stop(&capture);
	vma_buf_put_burst(fx.arena, packets, got);
	teardown_cq_and_arena();
}

static void test_shared_window_gets_back_only_what_was_polled(void **state)
{
	struct vma_buf *packets[64];

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true, .rx_wre_batching = 1}, FAKE_DEPTH, 0, true,
	                       0);
	assert_int_equal(fx.fake.posted_count, 0); /* the owner filled it */
	fx.fake.posted_count = vma_bufpool_get(atomic_load(&fx.fake.qp.rx_pool), fx.fake.posted, FAKE_DEPTH);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	vma_bufpool_uncount_bufs_given_to_nic(atomic_load(&fx.fake.qp.rx_pool), fx.fake.posted, FAKE_DEPTH);
	for (int i = 0; i < 3; i++)
		fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 16), 3);
	vma_buf_put_burst(fx.arena, packets, 3);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 16), 0);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	teardown_cq_and_arena();
}

/* A thread that gives packets back, which stay in its cache as long as it lives. */
static struct {
	pthread_t thread;
	sem_t go, done;
	struct vma_buf **packets;
	unsigned n; /* 0: end */
} buf_returner;

static void *buf_returning_thread(void *arg)
{
	for (;;) {
		sem_wait(&buf_returner.go);
		if (buf_returner.n == 0)
			return arg;
		vma_buf_put_burst(fx.arena, buf_returner.packets, buf_returner.n);
		sem_post(&buf_returner.done);
	}
}

static void return_packets_in_other_thread(struct vma_buf **packets, unsigned n)
{
	buf_returner.packets = packets;
	buf_returner.n = n;
	sem_post(&buf_returner.go);
	if (n != 0)
		sem_wait(&buf_returner.done);
}

static void inject_packets_and_poll_cq(struct vma_buf **packets, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, n), n);
}

/* To take them back costs a system call and interrupts other cores. */
static void test_a_small_debt_leaves_other_threads_their_buffers(void **state)
{
	struct vma_buf *packets[FAKE_DEPTH / 8];
	struct vma_bufpool *pool;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true}, FAKE_DEPTH, 0, true, 0);
	pool = atomic_load(&fx.fake.qp.rx_pool);
	fx.fake.posted_count = vma_bufpool_get(pool, fx.fake.posted, FAKE_DEPTH);
	vma_bufpool_uncount_bufs_given_to_nic(pool, fx.fake.posted, FAKE_DEPTH);
	sem_init(&buf_returner.go, 0, 0);
	sem_init(&buf_returner.done, 0, 0);
	assert_int_equal(pthread_create(&buf_returner.thread, NULL, buf_returning_thread, NULL), 0);
	inject_packets_and_poll_cq(packets, 3);
	return_packets_in_other_thread(packets, 3);
	assert_int_equal(vma_cq_arm(fx.cq), 0);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH - 3);
	inject_packets_and_poll_cq(packets, FAKE_DEPTH / 8 - 3);
	return_packets_in_other_thread(packets, FAKE_DEPTH / 8 - 3);
	assert_int_equal(vma_cq_arm(fx.cq), 0);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	return_packets_in_other_thread(NULL, 0);
	assert_int_equal(pthread_join(buf_returner.thread, NULL), 0);
	teardown_cq_and_arena();
}

static void test_rebind_starts_a_new_debt_and_drops_the_half_packet(void **state)
{
	struct vma_buf *packets[8];
	struct vma_bufpool *old;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true}, 512, 0, false, 0);
	fake_receive_packet(&fx.fake, 1500, 'a', VMA_BUF_RX_MORE);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 8), 0);
	old = atomic_load(&fx.fake.qp.rx_pool);
	vma_bufpool_init_bufs_taken_from_nic(old, fx.fake.posted, fx.fake.posted_count);
	vma_buf_put_burst(fx.arena, fx.fake.posted, fx.fake.posted_count);
	vma_bufpool_retire(old, NULL, NULL);
	fake_init(&fx.fake, fx.arena, 512);
	vma_cq_take_up_rebound_qp(fx.cq);
	assert_int_equal(fx.fake.posted_count, FAKE_DEPTH);
	fake_receive_packet(&fx.fake, 60, 'b', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 8), 1);
	assert_int_equal(packets[0]->packet_len, 60);
	assert_null(packets[0]->next);
	vma_buf_put_chain(fx.arena, packets[0]);
	teardown_cq_and_arena();
}

/* As a rebind leaves a queue pair for which there is no memory: its pool has ended, and another has its place. */
static struct vma_bufpool *lose_rx_pool_to_another(struct vma_bufpool *empty)
{
	struct vma_bufpool *old = atomic_load(&fx.fake.qp.rx_pool), *other;
	const struct vma_bufpool_attr attr = {.arena = fx.arena, .name = "another's"};
	uint32_t first;

	vma_bufpool_init_bufs_taken_from_nic(old, fx.fake.posted, fx.fake.posted_count);
	vma_buf_put_burst(fx.arena, fx.fake.posted, fx.fake.posted_count);
	fx.fake.posted_count = 0;
	fx.fake.post_limit = 0;
	atomic_store(&fx.fake.qp.rx_pool, empty);
	vma_bufpool_retire(old, NULL, NULL);
	assert_int_equal(vma_bufpool_create(&attr, &other), 0);
	assert_ptr_equal(other, old);
	assert_int_equal(vma_bufarena_map_memory(fx.arena, 512, &first), 0);
	assert_int_equal(vma_bufpool_add_frames(other, first, 512), 0);
	return other;
}

static void test_a_queue_pair_without_memory_takes_no_buffers_of_another_pool(void **state)
{
	struct vma_bufpool_attr attr = {.name = "none"};
	struct vma_bufpool *empty, *other;
	struct vma_buf *packets[64], *bufs[512];
	unsigned n;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = false}, 512, 0, false, 0);
	attr.arena = fx.arena;
	assert_int_equal(vma_bufpool_create(&attr, &empty), 0);
	for (int i = 0; i < 16; i++)
		fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 64), 16);
	vma_buf_put_burst(fx.arena, packets, 16);
	vma_cq_drop_pending_and_refill_bufs(fx.cq);
	other = lose_rx_pool_to_another(empty);
	for (int i = 0; i < 100; i++)
		assert_int_equal(vma_cq_poll(fx.cq, packets, 64), 0);
	assert_int_equal(vma_cq_arm(fx.cq), 0);
	assert_int_equal(vma_cq_refill(fx.cq), 0);
	n = vma_bufpool_get(other, bufs, 512);
	assert_int_equal(n, 512);
	vma_buf_put_burst(fx.arena, bufs, n);
	vma_bufpool_retire(other, NULL, NULL);
	teardown_cq_and_arena();
}

static void test_reap_returns_sent_buffers_to_their_pool(void **state)
{
	struct vma_bufpool *pool;
	struct vma_buf *bufs[600];
	unsigned n;

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true}, 512, 0, false, 0);
	pool = atomic_load(&fx.fake.qp.rx_pool);
	n = vma_bufpool_get(pool, bufs, 512);
	memcpy(fx.fake.sent, bufs, 150 * sizeof(bufs[0]));
	fx.fake.sent_count = 150;
	vma_buf_put_burst(fx.arena, bufs + 150, n - 150);
	assert_int_equal(vma_cq_reap_sent_bufs(fx.cq), 150);
	assert_int_equal(vma_bufpool_get(pool, bufs, 512), n);
	vma_buf_put_burst(fx.arena, bufs, n);
	teardown_cq_and_arena();
}

static void test_arm_tells_when_something_is_there_already(void **state)
{
	struct vma_buf *packets[8];

	(void)state;
	setup_cq_over_fake_nic((struct vma_cq_attr){.keep_qp_full = true}, 512, 0, false, 0);
	assert_int_equal(vma_cq_arm(fx.cq), 0);
	fake_receive_packet(&fx.fake, 60, 'a', 0);
	assert_int_equal(vma_cq_arm(fx.cq), 1);
	assert_int_equal(vma_cq_poll(fx.cq, packets, 8), 1);
	vma_buf_put_chain(fx.arena, packets[0]);
	teardown_cq_and_arena();
}

static void test_a_device_without_moderation_is_asked_once_and_sleepers_hold_back(void **state)
{
	struct vma_cq_attr attr = {
	        .keep_qp_full = true, .moderation_enable = true, .aim = {.base = {48, 50}, .interval_msec = 250}};

	(void)state;
	setup_cq_over_fake_nic(attr, 512, 0, false, 0);
	assert_int_equal(fx.fake.moderate_calls, 1);
	assert_int_equal(fx.fake.count, 48);
	assert_int_equal(fx.fake.period_usec, 50);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).period_ns, 0);
	fx.fake.moderate_result = -EOPNOTSUPP;
	vma_cq_take_up_rebound_qp(fx.cq);
	assert_int_equal(fx.fake.moderate_calls, 2); /* the new binding was asked, and refused */
	fx.fake.now_ns += 1000000000;
	vma_cq_arm(fx.cq);
	assert_int_equal(fx.fake.moderate_calls, 2);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).period_ns, 50000);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).count, 48);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).spacing_ns, 0);
	teardown_cq_and_arena();
}

static void test_without_moderation_nothing_is_held_back(void **state)
{
	struct vma_cq_attr attr = {.keep_qp_full = true,
	                           .aim = {.base = {48, 50}, .interval_msec = 250, .interrupts_per_sec = 5000}};

	(void)state;
	setup_cq_over_fake_nic(attr, 512, 0, false, 0);
	fx.fake.moderate_result = -EOPNOTSUPP;
	for (int i = 0; i < 3; i++) {
		vma_cq_count_wakeup(fx.cq);
		fx.fake.now_ns += 1000000000;
		vma_cq_prepare_sleep(fx.cq);
	}
	assert_int_equal(fx.fake.moderate_calls, 0);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).period_ns +
	                         vma_cq_get_sleeper_hold_times(fx.cq).spacing_ns +
	                         vma_cq_get_sleeper_hold_times(fx.cq).count,
	                 0);
	teardown_cq_and_arena();
}

static void test_a_moderation_that_is_modified_holds_from_then_on(void **state)
{
	struct vma_cq_attr attr = {.keep_qp_full = true, .aim = {.interval_msec = 250, .interrupts_per_sec = 5000}};

	(void)state;
	setup_cq_over_fake_nic(attr, 512, 0, false, 0);
	assert_false(vma_cq_moderation_is_on(fx.cq));
	vma_cq_set_moderation(fx.cq, (struct vma_cq_moderation){16, 300});
	assert_true(vma_cq_moderation_is_on(fx.cq));
	assert_int_equal(fx.fake.moderate_calls, 1);
	assert_int_equal(fx.fake.count, 16);
	assert_int_equal(fx.fake.period_usec, 300);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).period_ns, 0); /* the device does it */
	fx.fake.now_ns += 1000000000;
	vma_cq_arm(fx.cq);
	assert_int_equal(fx.fake.moderate_calls, 1); /* nothing adapts it */
	fx.fake.moderate_result = -EOPNOTSUPP;
	vma_cq_take_up_rebound_qp(fx.cq);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).period_ns, 300000);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).count, 16);
	vma_cq_set_moderation(fx.cq, (struct vma_cq_moderation){32, 400});
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).period_ns, 400000);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).count, 32);
	vma_cq_set_moderation(fx.cq, (struct vma_cq_moderation){0, 0});
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).period_ns + vma_cq_get_sleeper_hold_times(fx.cq).count,
	                 0);
	teardown_cq_and_arena();
}

/* One interval of 250 ms in which so many packets were polled. */
static void run_moderation_interval(unsigned packets)
{
	vma_stats_add(&fx.cq->count->packets, packets);
	vma_cq_count_wakeup(fx.cq);
	fx.fake.now_ns += 250000000;
	vma_cq_prepare_sleep(fx.cq);
}

/* At 5000 wake-ups per second they are 200 microseconds apart, or as long as the most packets take to come. */
static void test_counted_sleeps_keep_wakeups_apart_and_silence_ends_that(void **state)
{
	struct vma_cq_attr attr = {
	        .keep_qp_full = true,
	        .moderation_enable = true,
	        .aim = {.max_count = 560, .max_period_usec = 250, .interval_msec = 250, .interrupts_per_sec = 5000}};

	(void)state;
	setup_cq_over_fake_nic(attr, 512, 0, false, 0);
	fx.fake.moderate_result = -EOPNOTSUPP;
	vma_cq_take_up_rebound_qp(fx.cq);
	run_moderation_interval(1000);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).spacing_ns, 0);
	for (int i = 0; i < 12; i++)
		run_moderation_interval(25000);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).spacing_ns, 200000);
	for (int i = 0; i < 12; i++)
		run_moderation_interval(1400000);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).spacing_ns, 100000);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).period_ns, 0);
	for (int i = 0; i < 12; i++)
		run_moderation_interval(0);
	assert_int_equal(vma_cq_get_sleeper_hold_times(fx.cq).spacing_ns, 0);
	teardown_cq_and_arena();
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_fills_the_receive_queue),
        cmocka_unit_test(test_create_without_queue_pair_is_refused),
        cmocka_unit_test(test_poll_takes_at_most_the_batch),
        cmocka_unit_test(test_full_queue_mode_refills_at_the_batching),
        cmocka_unit_test(test_debt_mode_refills_when_idle),
        cmocka_unit_test(test_a_small_debt_waits_until_it_grows_or_somebody_wants_to_sleep),
        cmocka_unit_test(test_half_posted_refill_keeps_the_rest_in_order),
        cmocka_unit_test(test_multi_buffer_packet_arrives_as_one_chain_across_polls),
        cmocka_unit_test(test_endless_packet_is_dropped_and_counted_once),
        cmocka_unit_test(test_hoarded_frames_are_copied_out_byte_for_byte),
        cmocka_unit_test(test_dry_pool_is_not_asked_for_each_packet_that_is_copied_out),
        cmocka_unit_test(test_without_spill_memory_the_queue_stays_full_and_packets_drop),
        cmocka_unit_test(test_a_capture_is_told_of_copies_and_of_packets_for_which_there_is_no_memory),
        cmocka_unit_test(test_shared_window_gets_back_only_what_was_polled),
        cmocka_unit_test(test_a_small_debt_leaves_other_threads_their_buffers),
        cmocka_unit_test(test_rebind_starts_a_new_debt_and_drops_the_half_packet),
        cmocka_unit_test(test_a_queue_pair_without_memory_takes_no_buffers_of_another_pool),
        cmocka_unit_test(test_reap_returns_sent_buffers_to_their_pool),
        cmocka_unit_test(test_arm_tells_when_something_is_there_already),
        cmocka_unit_test(test_a_device_without_moderation_is_asked_once_and_sleepers_hold_back),
        cmocka_unit_test(test_without_moderation_nothing_is_held_back),
        cmocka_unit_test(test_a_moderation_that_is_modified_holds_from_then_on),
        cmocka_unit_test(test_counted_sleeps_keep_wakeups_apart_and_silence_ends_that),
};

VMA_TEST_MAIN(tests)
