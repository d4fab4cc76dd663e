/* The hot path of the verbs backend, on a provider that does nothing: what it hands over, takes back and refuses. */
#include <vma/test.h>

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_provider.h"

static struct verbs_qp *qp;

static int begin(void **state)
{
	(void)state;
	qp = fake_provider_setup_qp(16, 0);
	fake.nic.wake_fd = -1;
	return 0;
}

static int end(void **state)
{
	(void)state;
	fake_provider_free_qp();
	return 0;
}

static struct vma_nic_seg make_tx_segment(uint32_t len)
{
	struct vma_nic_seg seg = {.len = len, .off = 32, .flags = VMA_NIC_SEG_CSUM};

	assert_int_equal(vma_bufpool_get(fake.tx_pool, &seg.buf, 1), 1);
	return seg;
}

static unsigned reap_all(void)
{
	struct vma_buf *bufs[16];
	unsigned n, all = 0;

	while ((n = vma_nic_reap_tx(&qp->base, bufs, 16)) != 0) {
		vma_buf_put_burst(fake.arena, bufs, n);
		all += n;
	}
	return all;
}

/* ---- sending ---- */

static void test_a_packet_is_handed_over_as_it_lies(void **state)
{
	struct vma_nic_seg seg = make_tx_segment(64);

	(void)state;
	assert_int_equal(vma_nic_tx(&qp->base, &seg, 1), 1);
	assert_int_equal(fake.sends, 0); /* nothing leaves before the kick */
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.sends, 1);
	assert_int_equal(fake.addr, (uintptr_t)vma_buf_frame(fake.arena, seg.buf) + 32);
	assert_int_equal(fake.length, 64);
	assert_int_equal(fake.lkey, 100 + (vma_buf_index(fake.arena, seg.buf) >> VERBS_UNIT_SHIFT));
	assert_int_equal(fake.flags, IBV_SEND_IP_CSUM);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.sends, 1);
	assert_int_equal(vma_stats_read_counter(&qp->stats->tx_frames), 1);
	assert_int_equal(vma_stats_read_counter(&qp->stats->tx_bytes), 64);
}

static void test_packets_one_by_one_and_in_bursts_ask_for_a_completion_as_often(void **state)
{
	(void)state;
	for (unsigned burst = 1; burst <= 4; burst *= 4) {
		uint32_t asked = fake.signalled_to;

		for (unsigned i = 0; i < 64; i += burst) {
			struct vma_nic_seg segs[4];

			for (unsigned k = 0; k < burst; k++)
				segs[k] = make_tx_segment(64);
			assert_int_equal(vma_nic_tx(&qp->base, segs, burst), burst);
			assert_int_equal(vma_nic_kick(&qp->base), 0);
		}
		assert_int_equal(fake.signalled_to - asked, 4);
		assert_int_equal(reap_all(), 64);
	}
	assert_int_equal(fake.sends, 128);
	assert_true(vma_nic_tx_is_idle(&qp->base));
}

static void test_a_full_queue_takes_no_more_until_it_is_reaped(void **state)
{
	struct vma_nic_seg seg = make_tx_segment(64);

	(void)state;
	for (unsigned i = 0; i < qp->base.tx_depth; i++) {
		struct vma_nic_seg next = make_tx_segment(64);

		assert_int_equal(vma_nic_tx(&qp->base, &next, 1), 1);
	}
	assert_int_equal(vma_nic_tx(&qp->base, &seg, 1), 0);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(reap_all(), qp->base.tx_depth);
	assert_int_equal(vma_nic_tx(&qp->base, &seg, 1), 1);
}

static void test_what_is_no_packet_ends_the_burst(void **state)
{
	const struct vma_nic_seg whole = make_tx_segment(64);
	struct vma_nic_seg bad[] = {whole, whole, whole, whole, whole};

	(void)state;
	bad[0].len = 13;
	bad[1].len = 1515;
	bad[2].off = 2000;
	bad[3].flags = VMA_NIC_SEG_DUMMY;
	bad[4].off = UINT32_MAX;
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(vma_nic_tx(&qp->base, &bad[i], 1), 0);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.sends, 0);
}

static void test_pieces_and_long_packets_are_one_send(void **state)
{
	struct vma_nic_seg segs[4];

	(void)state;
	qp->tx_segs_max = 16;
	fake.nic.base.info.caps |= VMA_NIC_CAP_SG | VMA_NIC_CAP_TSO;
	fake.nic.base.info.tso_max_bytes = 65536;
	verbs_qp_data_path_init(qp);
	for (unsigned i = 0; i < 4; i++)
		segs[i] = make_tx_segment(100);
	segs[0].flags |= VMA_NIC_SEG_MORE;
	segs[2].flags |= VMA_NIC_SEG_MORE | VMA_NIC_SEG_TSO;
	segs[2].hdr_len = 54;
	segs[2].mss = 50;
	assert_int_equal(vma_nic_tx(&qp->base, segs, 4), 4);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.sends, 2);
	assert_int_equal(fake.pieces, 2);
	assert_int_equal(fake.hdr_len, 54);
	assert_int_equal(fake.mss, 50);
	assert_int_equal(fake.length, 200 - 54);
	assert_int_equal(vma_stats_read_counter(&qp->stats->tx_frames), 2);
	assert_int_equal(vma_stats_read_counter(&qp->stats->tx_tso), 1);
	for (unsigned i = 0; i < 14; i++) {
		segs[0] = make_tx_segment(64);
		assert_int_equal(vma_nic_tx(&qp->base, segs, 1), 1);
		assert_int_equal(vma_nic_kick(&qp->base), 0);
	}
	assert_int_equal(reap_all(), 4 + 14);
}

static struct ibv_send_wr posted_last;

static int post_send(struct ibv_qp *of, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)of, (void)bad;
	for (; wr != NULL; wr = wr->next) {
		posted_last = *wr;
		fake.sends++;
	}
	return 0;
}

static void test_a_provider_of_the_old_kind_cuts_packets_too(void **state)
{
	struct vma_nic_seg segs[2];

	(void)state;
	qp->tx_segs_max = 16;
	fake.nic.base.info.caps |= VMA_NIC_CAP_SG | VMA_NIC_CAP_TSO;
	fake.nic.base.info.tso_max_bytes = 65536;
	fake.qp.context = &fake.context.context;
	fake.context.context.ops.post_send = post_send;
	qp->queue.qp_ex = NULL;
	verbs_qp_data_path_init(qp);
	for (unsigned i = 0; i < 2; i++)
		segs[i] = make_tx_segment(1000);
	segs[0].flags |= VMA_NIC_SEG_MORE | VMA_NIC_SEG_TSO;
	segs[0].hdr_len = 66;
	segs[0].mss = 700;
	assert_int_equal(vma_nic_tx(&qp->base, segs, 2), 2);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.sends, 1);
	assert_int_equal(posted_last.opcode, IBV_WR_TSO);
	assert_int_equal(posted_last.num_sge, 2);
	assert_int_equal(posted_last.tso.hdr_sz, 66);
	assert_int_equal(posted_last.tso.mss, 700);
	assert_true(posted_last.send_flags & IBV_SEND_IP_CSUM);
	qp->queue.qp_ex = &fake.qp_ex;
}

static void test_inline_packets_keep_no_buffer(void **state)
{
	struct vma_nic_seg segs[3];

	(void)state;
	qp->queue.inline_max = 200;
	qp->tx_segs_max = 16;
	fake.nic.base.info.caps |= VMA_NIC_CAP_SG;
	for (unsigned i = 0; i < 3; i++)
		segs[i] = make_tx_segment(100);
	segs[1].flags |= VMA_NIC_SEG_MORE;
	assert_int_equal(vma_nic_tx(&qp->base, segs, 3), 3);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.inlined, 2);
	assert_int_equal(fake.pieces, 2);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(atomic_load(&segs[i].buf->refs), 0);
	segs[0] = make_tx_segment(201);
	assert_int_equal(vma_nic_tx(&qp->base, segs, 1), 1);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.inlined, 2);
	assert_int_equal(atomic_load(&segs[0].buf->refs), 1);
}

static void test_what_the_provider_refuses_goes_home(void **state)
{
	struct vma_nic_seg segs[2];

	(void)state;
	atomic_store(&qp->broken, true); /* so that nobody is woken */
	for (unsigned n = 1; n <= 2; n++) {
		for (unsigned i = 0; i < n; i++)
			segs[i] = make_tx_segment(64);
		fake.fails = ENOMEM;
		assert_int_equal(vma_nic_tx(&qp->base, segs, n), n);
		assert_int_equal(vma_nic_kick(&qp->base), -ENOMEM);
		for (unsigned i = 0; i < n; i++)
			assert_int_equal(atomic_load(&segs[i].buf->refs), 0);
		assert_int_equal(vma_nic_kick(&qp->base), 0);
	}
	segs[0] = make_tx_segment(64);
	assert_int_equal(vma_nic_tx(&qp->base, segs, 1), 1);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_true(fake.flags & IBV_SEND_SIGNALED); /* for the places of those */
}

/* ---- receiving ---- */

static void post(unsigned n)
{
	struct vma_buf *bufs[16];

	assert_int_equal(vma_bufpool_get(fake.rx_pool, bufs, n), n);
	assert_int_equal(vma_nic_post_rx(&qp->base, bufs, n), n);
}

static void test_received_packets_are_the_users(void **state)
{
	struct vma_buf *bufs[16];

	(void)state;
	post(1);
	post(4);
	fake.due = 3;
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(atomic_load(&bufs[i]->refs), 1);
		assert_int_equal(bufs[i]->len, 64);
		assert_int_equal(bufs[i]->packet_len, 64);
		assert_int_equal(bufs[i]->flags, VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK);
		assert_null(bufs[i]->next);
		assert_null(bufs[i]->user);
	}
	vma_buf_put_burst(fake.arena, bufs, 3);
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 0);
	assert_int_equal(qp->rx_with_nic, 2);
	assert_int_equal(vma_stats_read_counter(&qp->stats->rx_frames), 3);
	assert_int_equal(vma_stats_read_counter(&qp->stats->rx_bytes), 192);
	assert_int_equal(vma_stats_read_counter(&qp->stats->fill_posted), 5);
}

static void test_a_look_for_a_packet_keeps_what_it_finds_for_the_next_poll(void **state)
{
	struct vma_buf *bufs[16];

	(void)state;
	post(4);
	assert_false(vma_nic_rx_has_packet(&qp->base));
	fake.due = 3;
	assert_true(vma_nic_rx_has_packet(&qp->base));
	assert_true(vma_nic_rx_has_packet(&qp->base));
	assert_int_equal(fake.due, 2);
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal((uintptr_t)bufs[i], fake.posted[i]);
	fake.due = 0;
	assert_false(vma_nic_rx_has_packet(&qp->base));
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs + 3, 13), 0);
	vma_buf_put_burst(fake.arena, bufs, 3);
}

static void test_a_receive_that_has_failed_is_no_packet(void **state)
{
	(void)state;
	atomic_store(&qp->broken, true);
	post(4);
	fake.due = 1;
	fake.status = IBV_WC_GENERAL_ERR;
	assert_false(vma_nic_rx_has_packet(&qp->base));
	assert_int_equal(qp->rx_with_nic, 4);
	assert_int_equal(fake.posted_to - fake.posted_from, 4);
}

static void test_no_more_is_posted_than_the_queue_holds(void **state)
{
	struct vma_buf *buf;

	(void)state;
	for (unsigned i = 0; i < qp->base.rx_depth; i++)
		post(1);
	assert_int_equal(vma_bufpool_get(fake.rx_pool, &buf, 1), 1);
	assert_int_equal(vma_nic_post_rx(&qp->base, &buf, 1), 0);
	vma_buf_put(fake.arena, buf);
}

static void test_a_receive_that_has_failed_is_posted_again_and_the_look_goes_on(void **state)
{
	struct vma_buf *bufs[16];

	(void)state;
	atomic_store(&qp->broken, true);
	post(4);
	fake.due = 3;
	fake.status = IBV_WC_GENERAL_ERR;
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 2);
	vma_buf_put_burst(fake.arena, bufs, 2);
	assert_int_equal(qp->rx_with_nic, 2);
	assert_int_equal(fake.posted_to - fake.posted_from, 2);
	assert_int_equal(vma_stats_read_counter(&qp->stats->rx_errors), 1);
}

static void test_a_refused_post_is_the_nics_until_the_end(void **state)
{
	(void)state;
	atomic_store(&qp->broken, true);
	fake.post_fails = ENOMEM;
	post(1);
	fake.post_fails = ENOMEM;
	post(4);
	assert_int_equal(qp->rx_with_nic, 5);
}

/* ---- who may not ---- */

static void mark_qp_as_lost(void)
{
	atomic_store(&qp->base.lost, true);
	verbs_data_select_paths(qp);
}

static bool lost_qp_calls_do_nothing(void)
{
	struct vma_nic_seg segs[2];
	struct vma_buf *bufs[2];

	if (vma_bufpool_get(fake.tx_pool, bufs, 2) != 2)
		return false;
	for (unsigned i = 0; i < 2; i++)
		segs[i] = (struct vma_nic_seg){.buf = bufs[i], .len = 64};
	fake.due = 1;
	return vma_nic_tx(&qp->base, segs, 1) == 0 && vma_nic_tx(&qp->base, segs, 2) == 0 &&
	       vma_nic_kick(&qp->base) == -ENODEV && vma_nic_post_rx(&qp->base, bufs, 1) == 0 &&
	       vma_nic_post_rx(&qp->base, bufs, 2) == 0 && vma_nic_poll_rx(&qp->base, bufs, 1) == 0 &&
	       !vma_nic_rx_has_packet(&qp->base) && vma_nic_reap_tx(&qp->base, bufs, 1) == 0 && fake.sends == 0;
}

static void queue_test_packet(void)
{
	struct vma_nic_seg seg = make_tx_segment(64);

	assert_int_equal(vma_nic_tx(&qp->base, &seg, 1), 1);
}

static void test_a_lost_queue_pair_does_nothing(void **state)
{
	(void)state;
	post(4);
	queue_test_packet();
	mark_qp_as_lost();
	assert_true(lost_qp_calls_do_nothing());
	atomic_store(&qp->base.lost, false);
	verbs_data_select_paths(qp);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.sends, 1);
}

static void zero_memory_that_fork_child_lacks(void)
{
	memset(qp->sent, 0, FAKE_DEPTH * sizeof(struct verbs_send_segment));
	memset((void *)fake.lkeys, 0, FAKE_LKEYS_BYTES);
}

static void test_a_child_does_nothing_with_what_its_parent_has_queued(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	post(4);
	queue_test_packet();
	pid = fork();
	if (pid == 0) {
		if (!fake.is_wiped) /* by the kernel: as child_give_up does it then */
			zero_memory_that_fork_child_lacks();
		_exit(lost_qp_calls_do_nothing() ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.sends, 1);
}

static void test_a_buffer_of_an_older_device_is_dropped(void **state)
{
	struct vma_nic_seg seg = make_tx_segment(64);
	struct vma_buf *buf;

	(void)state;
	assert_int_equal(vma_bufpool_get(fake.rx_pool, &buf, 1), 1);
	qp->generation = 2;
	assert_int_equal(vma_nic_tx(&qp->base, &seg, 1), 1);
	assert_int_equal(atomic_load(&seg.buf->refs), 0);
	assert_int_equal(vma_nic_post_rx(&qp->base, &buf, 1), 1);
	assert_int_equal(atomic_load(&buf->refs), 0);
	assert_int_equal(qp->rx_with_nic, 0);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(fake.sends, 0);
	assert_int_equal(vma_stats_read_counter(&qp->stats->tx_foreign), 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CASE(test_a_packet_is_handed_over_as_it_lies),
	        CASE(test_packets_one_by_one_and_in_bursts_ask_for_a_completion_as_often),
	        CASE(test_a_full_queue_takes_no_more_until_it_is_reaped),
	        CASE(test_what_is_no_packet_ends_the_burst),
	        CASE(test_pieces_and_long_packets_are_one_send),
	        CASE(test_a_provider_of_the_old_kind_cuts_packets_too),
	        CASE(test_inline_packets_keep_no_buffer),
	        CASE(test_what_the_provider_refuses_goes_home),
	        CASE(test_received_packets_are_the_users),
	        CASE(test_a_look_for_a_packet_keeps_what_it_finds_for_the_next_poll),
	        CASE(test_a_receive_that_has_failed_is_no_packet),
	        CASE(test_no_more_is_posted_than_the_queue_holds),
	        CASE(test_a_receive_that_has_failed_is_posted_again_and_the_look_goes_on),
	        CASE(test_a_refused_post_is_the_nics_until_the_end),
	        CASE(test_a_lost_queue_pair_does_nothing),
	        CASE(test_a_child_does_nothing_with_what_its_parent_has_queued),
	        CASE(test_a_buffer_of_an_older_device_is_dropped),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
