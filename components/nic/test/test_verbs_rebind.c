/* A queue pair of the verbs backend whose device has gone, on a card in this process. */
#include "fixture.h"
#include "loop_card.h"

static void test_a_queue_pair_without_a_device_gives_no_buffers_of_another_pool(void **state)
{
	struct vma_bufarena *arena = fixture_arena();
	const struct vma_nic_attr attr = {.arena = arena, .unwatched = true};
	const struct vma_nic_qp_attr ring = {.rx_wre = 64, .tx_wre = 64, .name = "ring"};
	const struct vma_bufpool_attr other = {.arena = arena, .name = "other"};
	struct vma_bufpool *others[4];
	struct vma_nic_qp *qp;
	struct vma_nic *nic;
	struct vma_buf *buf;
	uint32_t first;

	(void)state;
	assert_int_equal(vma_nic_open("verbs:lo", &attr, &nic), 0);
	assert_int_equal(vma_nic_qp_create(nic, &ring, &qp), 0);
	assert_int_equal(
	        vma_nic_flow_add(qp, &(struct vma_flow_rule){.key = make_flow_rule(1, IPPROTO_UDP, 1, 0, 0).key}), 0);
	loop.refuses_open = true;
	assert_true(loop_break(LOOP_DEVICE_GOES, 0));
	while (!vma_nic_qp_lost(qp))
		usleep(1000);
	assert_int_equal(vma_nic_qp_rebind(qp), -EAGAIN);
	for (int i = 0; i < 4; i++) { /* one of them has the place of a pool that has ended */
		assert_int_equal(vma_bufpool_create(&other, &others[i]), 0);
		assert_int_equal(vma_bufarena_map_memory(arena, 64, &first), 0);
		assert_int_equal(vma_bufpool_add_frames(others[i], first, 64), 0);
	}
	assert_int_equal(vma_bufpool_get(atomic_load(&qp->rx_pool), &buf, 1), 0);
	assert_int_equal(vma_bufpool_get(atomic_load(&qp->tx_pool), &buf, 1), 0);
	loop.refuses_open = false;
	assert_int_equal(vma_nic_qp_rebind(qp), 0);
	assert_int_equal(vma_bufpool_get(atomic_load(&qp->tx_pool), &buf, 1), 1);
	vma_buf_put(arena, buf);
	vma_nic_qp_destroy(qp);
	vma_nic_close(nic);
	for (int i = 0; i < 4; i++)
		vma_bufpool_retire(others[i], NULL, NULL);
	vma_bufarena_destroy(arena);
	assert_int_equal(loop.alive, 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_queue_pair_without_a_device_gives_no_buffers_of_another_pool,
                               loop_skip_without_interface),
};

VMA_TEST_MAIN_WITH(tests, loop_begin, loop_end)
