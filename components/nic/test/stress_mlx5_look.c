/*
 * Whether the receive queue is empty is asked by threads that hold nothing, while packets come and are polled, and
 * while queues end and their rings are unmapped. STRESS_SECONDS, default 1.
 */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <vma/test.h>

#include "mlx5_model.h"

enum { LOOKERS = 2, BURST = 8 };

static struct verbs_qp *qp;
static _Atomic bool stop;
static _Atomic uint64_t empty, filled;

static uint64_t look_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *count_rx_is_empty_answers_thread(void *arg)
{
	(void)arg;
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		atomic_fetch_add_explicit(vma_nic_rx_is_empty(&qp->base) ? &empty : &filled, 1, memory_order_relaxed);
	return NULL;
}

/* Packets come and are taken: between the two the queue is not empty, whoever else looks. */
static void receive_burst_and_check_rx_is_empty(void)
{
	static const uint8_t packet[64];
	struct vma_buf *bufs[BURST];

	assert_int_equal(vma_bufpool_get(fake.rx_pool, bufs, BURST), BURST);
	assert_int_equal(vma_nic_post_rx(&qp->base, bufs, BURST), BURST);
	for (unsigned i = 0; i < BURST; i++) {
		assert_true(vma_nic_rx_is_empty(&qp->base) == (i == 0));
		assert_true(mlx5_model_receive_frame(packet, sizeof(packet), true, 0));
	}
	assert_false(vma_nic_rx_is_empty(&qp->base));
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, BURST), BURST);
	assert_true(vma_nic_rx_is_empty(&qp->base));
	vma_buf_put_burst(fake.arena, bufs, BURST);
}

/* As the nic's thread and a rebind do it. */
static void close_and_reopen_mlx5_rings(const struct mlx5_model_config *card)
{
	atomic_store(&qp->base.lost, true);
	verbs_data_select_paths(qp);
	while (atomic_load(&qp->lookers) != 0)
		sched_yield();
	mlx5_queue_close_rings(qp->queue.mlx5);
	qp->queue.mlx5 = NULL;
	mlx5_model_replace_qp_rings(card);
	atomic_store(&qp->base.lost, false);
	verbs_data_select_paths(qp);
}

static void test_lookers_meet_no_ring_that_has_ended(void **state)
{
	const struct mlx5_model_config card = {.cqe_bytes = 64, .bf_bytes = MODEL_BF};
	const char *seconds = getenv("STRESS_SECONDS");
	const uint64_t until = look_now_ns() + (seconds != NULL ? (uint64_t)atoi(seconds) : 1) * 1000000000u;
	pthread_t threads[LOOKERS];
	unsigned ends = 0;

	(void)state;
	qp = fake_provider_setup_qp(16, 0);
	fake.nic.wake_fd = -1;
	qp->base.rx_depth = qp->base.tx_depth = 16;
	qp->tx_segs_max = 1;
	atomic_store(&qp->broken, true);
	mlx5_model_replace_qp_rings(&card);
	for (unsigned i = 0; i < LOOKERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_rx_is_empty_answers_thread, NULL), 0);
	while (vma_test_goes_on(look_now_ns(), until, empty != 0 && filled != 0 && ends > 20)) {
		for (unsigned i = 0; i < 50; i++)
			receive_burst_and_check_rx_is_empty();
		close_and_reopen_mlx5_rings(&card);
		ends++;
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < LOOKERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	print_message("%u rings; %llu times empty, %llu times not\n", ends, (unsigned long long)empty,
	              (unsigned long long)filled);
	assert_true(empty != 0 && filled != 0 && ends > 20);
	mlx5_model_detach();
	fake_provider_free_qp();
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lookers_meet_no_ring_that_has_ended),
};

VMA_TEST_MAIN(tests)
