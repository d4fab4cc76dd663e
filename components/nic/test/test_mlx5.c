/* The rings of an mlx5 card: what is written to them, what is read from them, and what is not believed. */
#include <vma/test.h>

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mlx5_model.h"

static struct verbs_qp *qp;

struct setting {
	uint32_t inline_max, rx_bufs, segs, depth;
	struct mlx5_model_config card;
};
static const struct setting usual = {.rx_bufs = 1, .segs = 16, .depth = 64, .card = {64, MODEL_BF, 0, true}};

static void mlx5_setup_qp_with_setting(const struct setting *setting)
{
	mlx5_model_detach();
	qp = fake_provider_setup_qp(16, setting->inline_max);
	fake.nic.wake_fd = -1;
	fake.nic.base.info.caps |= VMA_NIC_CAP_SG | VMA_NIC_CAP_TSO;
	fake.nic.base.info.tso_max_bytes = 65536;
	qp->rx_bufs = setting->rx_bufs;
	qp->tx_segs_max = setting->segs;
	qp->base.tx_depth = setting->depth;
	qp->base.rx_depth = setting->depth - setting->depth % setting->rx_bufs;
	atomic_store(&qp->broken, true); /* so that nobody is woken */
	mlx5_model_replace_qp_rings(&setting->card);
}

static int begin(void **state)
{
	(void)state;
	mlx5_setup_qp_with_setting(&usual);
	return 0;
}

static int mlx5_model_teardown(void **state)
{
	(void)state;
	mlx5_model_detach();
	fake_provider_free_qp();
	return 0;
}

static struct vma_nic_seg make_tx_segment_in_new_buf(uint32_t len)
{
	static uint8_t next;
	struct vma_nic_seg seg = {.len = len, .off = 32};
	char *frame;

	assert_int_equal(vma_bufpool_get(fake.tx_pool, &seg.buf, 1), 1);
	frame = vma_buf_frame(fake.arena, seg.buf) + seg.off;
	for (uint32_t i = 0; i < len; i++)
		frame[i] = (char)++next;
	return seg;
}

/* All of one packet, or of several of one segment each. */
static void queue(const struct vma_nic_seg *segs, unsigned n)
{
	mlx5_model_trap_register_stores();
	assert_int_equal(vma_nic_tx(&qp->base, segs, n), n);
}

static void send_one(uint32_t len)
{
	const struct vma_nic_seg seg = make_tx_segment_in_new_buf(len);

	queue(&seg, 1);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(mlx5_model_take_sends(), 1);
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

static const struct mlx5_model_sent_frame *last_sent_model_frame(void)
{
	return &model.sent[model.sent_n - 1];
}

static bool frame_holds_segment(const struct mlx5_model_sent_frame *frame, uint32_t at, const struct vma_nic_seg *seg)
{
	return frame->len >= at + seg->len &&
	       memcmp(frame->bytes + at, vma_buf_frame(fake.arena, seg->buf) + seg->off, seg->len) == 0;
}

/* ---- sending ---- */

static void test_a_packet_is_one_block_that_is_rung_for_at_the_kick(void **state)
{
	struct vma_nic_seg seg = make_tx_segment_in_new_buf(64);

	(void)state;
	seg.flags = VMA_NIC_SEG_CSUM;
	queue(&seg, 1);
	assert_int_equal(model.records[MLX5_SND_DBR], 0);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(be32toh(model.records[MLX5_SND_DBR]), 1);
	assert_int_equal(mlx5_model_take_sends(), 1);
	assert_int_equal(model.rings, 1);
	assert_int_equal(model.blueflames, 1);
	assert_int_equal(last_sent_model_frame()->len, 64);
	assert_true(last_sent_model_frame()->checksum);
	assert_false(last_sent_model_frame()->is_inline);
	assert_true(frame_holds_segment(last_sent_model_frame(), 0, &seg));
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(mlx5_model_take_sends(), 0);
	assert_int_equal(vma_stats_read_counter(&qp->stats->kicks), 1);
}

static void test_packets_of_one_kick_have_one_doorbell(void **state)
{
	struct vma_nic_seg segs[8];

	(void)state;
	for (unsigned i = 0; i < 8; i++)
		segs[i] = make_tx_segment_in_new_buf(60 + i);
	queue(segs, 8);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(mlx5_model_take_sends(), 8);
	assert_int_equal(model.rings, 1);
	assert_int_equal(model.blueflames, 0);
	for (unsigned i = 0; i < 8; i++)
		assert_true(model.sent[i].len == 60 + i && frame_holds_segment(&model.sent[i], 0, &segs[i]));
}

static void test_a_card_without_blueflame_gets_the_doorbell_alone(void **state)
{
	struct setting setting = usual;

	(void)state;
	setting.card.bf_bytes = 0;
	mlx5_setup_qp_with_setting(&setting);
	for (unsigned i = 0; i < 8; i++)
		send_one(64);
	assert_int_equal(model.rings, 8);
	assert_int_equal(model.blueflames, 0);
}

static void test_inline_packets_keep_no_buffer_and_go_round_the_end_of_the_ring(void **state)
{
	struct setting setting = usual;

	(void)state;
	setting.inline_max = 204;
	setting.segs = 1; /* so that the ring is small, and a packet lies across its end */
	mlx5_setup_qp_with_setting(&setting);
	for (uint32_t i = 0; i < 1000; i++) {
		const struct vma_nic_seg seg = make_tx_segment_in_new_buf(18 + i % 187);
		uint8_t bytes[204];

		memcpy(bytes, vma_buf_frame(fake.arena, seg.buf) + seg.off, seg.len);
		queue(&seg, 1);
		assert_int_equal(vma_nic_kick(&qp->base), 0);
		assert_int_equal(atomic_load(&seg.buf->refs), 0);
		assert_int_equal(mlx5_model_take_sends(), 1);
		assert_int_equal(last_sent_model_frame()->len, seg.len);
		assert_memory_equal(last_sent_model_frame()->bytes, bytes, seg.len);
		assert_int_equal(last_sent_model_frame()->is_inline, seg.len > 18);
		mlx5_model_complete_send(0);
		assert_int_equal(reap_all(), 0);
	}
	send_one(205);
	assert_false(last_sent_model_frame()->is_inline);
}

static void test_a_packet_of_pieces_is_one_work_request(void **state)
{
	static const uint32_t lens[][4] = {
	        {100, 100, 100, 0}, {14, 40, 0, 0}, {1, 1, 30, 0}, {18, 20, 0, 0}, {17, 1, 1, 9}};

	(void)state;
	for (unsigned row = 0; row < 5; row++) {
		struct vma_nic_seg segs[4];
		uint32_t at = 0;
		unsigned n = 0;

		for (; n < 4 && lens[row][n] != 0; n++) {
			segs[n] = make_tx_segment_in_new_buf(lens[row][n]);
			segs[n].flags = VMA_NIC_SEG_MORE;
		}
		segs[n - 1].flags = 0;
		queue(segs, n);
		assert_int_equal(vma_nic_kick(&qp->base), 0);
		assert_int_equal(mlx5_model_take_sends(), 1);
		for (unsigned i = 0; i < n; at += segs[i++].len)
			assert_true(frame_holds_segment(last_sent_model_frame(), at, &segs[i]));
		assert_int_equal(last_sent_model_frame()->len, at);
	}
}

static void test_what_is_shorter_than_the_header_has_zeros_behind(void **state)
{
	const struct vma_nic_seg seg = make_tx_segment_in_new_buf(15);

	(void)state;
	queue(&seg, 1);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(mlx5_model_take_sends(), 1);
	assert_int_equal(last_sent_model_frame()->len, 18);
	assert_true(frame_holds_segment(last_sent_model_frame(), 0, &seg));
	assert_memory_equal(last_sent_model_frame()->bytes + 15, "\0\0\0", 3);
}

static void test_a_large_segment_is_cut_by_the_card(void **state)
{
	(void)state;
	for (uint16_t header = 54; header <= 128; header += 37) {
		struct vma_nic_seg segs[3] = {make_tx_segment_in_new_buf(header + 100u),
		                              make_tx_segment_in_new_buf(2000), make_tx_segment_in_new_buf(1500)};

		segs[0].flags = VMA_NIC_SEG_TSO | VMA_NIC_SEG_CSUM | VMA_NIC_SEG_MORE;
		segs[1].flags = VMA_NIC_SEG_MORE;
		segs[0].hdr_len = header;
		segs[0].mss = 1448;
		queue(segs, 3);
		assert_int_equal(vma_nic_kick(&qp->base), 0);
		assert_int_equal(mlx5_model_take_sends(), 1);
		assert_int_equal(last_sent_model_frame()->mss, 1448);
		assert_int_equal(last_sent_model_frame()->header, header);
		assert_true(last_sent_model_frame()->checksum);
		assert_int_equal(last_sent_model_frame()->len, header + 3600);
		assert_true(frame_holds_segment(last_sent_model_frame(), 0, &segs[0]) &&
		            frame_holds_segment(last_sent_model_frame(), header + 100u, &segs[1]) &&
		            frame_holds_segment(last_sent_model_frame(), header + 2100u, &segs[2]));
	}
}

static void test_headers_that_are_too_long_fail_the_kick_and_what_follows_is_sent(void **state)
{
	struct vma_nic_seg segs[2] = {make_tx_segment_in_new_buf(64), make_tx_segment_in_new_buf(400)};

	(void)state;
	segs[1].flags = VMA_NIC_SEG_TSO;
	segs[1].hdr_len = 129;
	segs[1].mss = 100;
	queue(segs, 2);
	assert_int_equal(vma_nic_kick(&qp->base), -EINVAL);
	assert_int_equal(mlx5_model_take_sends(), 0);
	assert_int_equal(atomic_load(&segs[0].buf->refs), 0);
	assert_int_equal(atomic_load(&segs[1].buf->refs), 0);
	send_one(64);
	assert_true(mlx5_model_complete_send(0)); /* it has asked for one, for the places of those */
	assert_int_equal(reap_all(), 1);
}

static void test_one_completion_is_enough_for_as_many_packets_as_with_libibverbs(void **state)
{
	unsigned completions = 0;

	(void)state;
	for (unsigned i = 0; i < 64; i++)
		send_one(64);
	while (mlx5_model_complete_send(0))
		completions++;
	assert_int_equal(completions, 4);
	assert_int_equal(reap_all(), 64);
	assert_true(vma_nic_tx_is_idle(&qp->base));
}

static void test_a_full_ring_takes_no_more_until_the_card_has_sent(void **state)
{
	struct vma_nic_seg seg;

	(void)state;
	for (unsigned i = 0; i < qp->base.tx_depth; i++)
		send_one(1500);
	seg = make_tx_segment_in_new_buf(64);
	assert_int_equal(vma_nic_tx(&qp->base, &seg, 1), 0);
	assert_int_equal(reap_all(), 0);
	while (mlx5_model_complete_send(0))
		;
	assert_int_equal(reap_all(), qp->base.tx_depth);
	queue(&seg, 1);
}

static void test_a_failed_send_gives_its_buffers_back_and_is_counted(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 16; i++)
		send_one(64);
	assert_true(mlx5_model_complete_send(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR));
	assert_int_equal(reap_all(), 16);
	assert_int_equal(vma_stats_read_counter(&qp->stats->tx_errors), 1);
	for (unsigned i = 0; i < 16; i++)
		send_one(64);
	mlx5_model_flush_sends();
	assert_int_equal(reap_all(), 16);
	assert_int_equal(vma_stats_read_counter(&qp->stats->tx_errors), 1);
	assert_false(mlx5_has_failed(&qp->queue));
}

/* ---- receiving ---- */

static void post(unsigned n)
{
	struct vma_buf *bufs[64];

	assert_int_equal(vma_bufpool_get(fake.rx_pool, bufs, n), n);
	assert_int_equal(vma_nic_post_rx(&qp->base, bufs, n), n);
}

static uint8_t pattern[3 * 2048];

static void fill_pattern(uint8_t first)
{
	for (size_t i = 0; i < sizeof(pattern); i++)
		pattern[i] = (uint8_t)(first + i * 7);
}

static void test_received_packets_are_the_users(void **state)
{
	struct vma_buf *bufs[16];

	(void)state;
	post(1);
	post(4);
	assert_int_equal(mlx5_model_posted_receives(), 5);
	for (uint8_t i = 0; i < 3; i++) {
		fill_pattern(i);
		assert_true(mlx5_model_receive_frame(pattern, 60u + i, i != 1, 0));
	}
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 3);
	for (uint8_t i = 0; i < 3; i++) {
		fill_pattern(i);
		assert_int_equal(bufs[i]->len, 60 + i);
		assert_int_equal(bufs[i]->packet_len, 60 + i);
		assert_int_equal(bufs[i]->flags, i != 1 ? VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK : 0);
		assert_memory_equal(vma_buf_data(fake.arena, bufs[i]), pattern, bufs[i]->len);
		assert_int_equal(atomic_load(&bufs[i]->refs), 1);
		assert_null(bufs[i]->user);
	}
	vma_buf_put_burst(fake.arena, bufs, 3);
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 0);
	assert_int_equal(qp->rx_with_nic, 2);
	assert_int_equal(vma_stats_read_counter(&qp->stats->rx_frames), 3);
	assert_int_equal(vma_stats_read_counter(&qp->stats->rx_bytes), 183);
}

static void test_a_long_packet_lies_in_the_buffers_of_one_receive(void **state)
{
	struct setting setting = usual;
	struct vma_buf *bufs[16];

	(void)state;
	setting.rx_bufs = 3;
	mlx5_setup_qp_with_setting(&setting);
	post(6);
	fill_pattern(9);
	assert_true(mlx5_model_receive_frame(pattern, 5000, true, 0));
	assert_true(mlx5_model_receive_frame(pattern, 100, true, 0));
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 2), 2); /* and the third next time */
	assert_false(vma_nic_rx_is_empty(&qp->base));
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs + 2, 14), 2);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(bufs[i]->len, i < 2 ? 2048 : 904);
		assert_int_equal(bufs[i]->flags & VMA_BUF_RX_MORE, i < 2 ? VMA_BUF_RX_MORE : 0);
		assert_memory_equal(vma_buf_data(fake.arena, bufs[i]), pattern + i * 2048, bufs[i]->len);
	}
	assert_int_equal(bufs[3]->len, 100);
	assert_true(vma_nic_rx_is_empty(&qp->base));
	assert_int_equal(qp->rx_open_n, 2); /* what the short one did not need */
	post(1);
	assert_int_equal(mlx5_model_posted_receives(), 1);
}

static void test_a_receive_that_has_failed_is_posted_again_and_the_look_goes_on(void **state)
{
	struct vma_buf *bufs[16];

	(void)state;
	post(4);
	assert_true(mlx5_model_complete_receive_with_error(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR));
	assert_true(mlx5_model_receive_frame(pattern, 64, true, 0));
	assert_true(mlx5_model_complete_receive_with_error(MLX5_CQE_SYNDROME_WR_FLUSH_ERR));
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 1);
	assert_int_equal(vma_stats_read_counter(&qp->stats->rx_errors), 1);
	assert_int_equal(mlx5_model_posted_receives(), 2);
	assert_int_equal(qp->rx_with_nic, 3);
	assert_false(mlx5_has_failed(&qp->queue));
}

static void test_no_more_is_posted_than_the_ring_holds(void **state)
{
	struct vma_buf *buf;

	(void)state;
	for (unsigned i = 0; i < qp->base.rx_depth; i++)
		post(1);
	assert_int_equal(vma_bufpool_get(fake.rx_pool, &buf, 1), 1);
	assert_int_equal(vma_nic_post_rx(&qp->base, &buf, 1), 0);
	assert_int_equal(mlx5_model_posted_receives(), qp->base.rx_depth);
}

static struct vma_buf *stamped(enum verbs_timestamp_kind stamps, uint64_t ticks)
{
	struct vma_buf *buf = NULL;

	qp->queue.rx_stamps = fake.nic.stamps = stamps;
	fake.nic.stamped = true;
	qp->rx_clock = verbs_clock_init(UINT64_MAX, 1000000);
	verbs_timestamps_start_on_qp(qp);
	post(1);
	assert_true(mlx5_model_receive_frame(pattern, 64, true, ticks));
	assert_int_equal(vma_nic_poll_rx(&qp->base, &buf, 1), 1);
	return buf;
}

static void test_stamps_are_the_completions(void **state)
{
	const struct vma_buf *buf;

	(void)state;
	buf = stamped(VERBS_STAMPS_RAW, 123456);
	assert_int_equal(buf->timestamp_ns, 123456);
	assert_int_equal(buf->flags & (VMA_BUF_RX_HW_TIMESTAMP | VMA_BUF_RX_NIC_CLOCK),
	                 VMA_BUF_RX_HW_TIMESTAMP | VMA_BUF_RX_NIC_CLOCK);
	mlx5_model_clock.nsec = 1000;
	mlx5_model_clock.last_cycles = 50;
	buf = stamped(VERBS_STAMPS_WALL, 75);
	assert_int_equal(buf->timestamp_ns, 1025);
}

/* ---- emptiness ---- */

static void test_it_is_known_whether_something_has_come(void **state)
{
	struct vma_buf *buf;

	(void)state;
	assert_true(vma_nic_rx_is_empty(&qp->base));
	post(2);
	assert_true(vma_nic_rx_is_empty(&qp->base));
	assert_true(mlx5_model_receive_frame(pattern, 64, true, 0));
	assert_false(vma_nic_rx_is_empty(&qp->base));
	assert_int_equal(vma_nic_poll_rx(&qp->base, &buf, 1), 1);
	assert_true(vma_nic_rx_is_empty(&qp->base));
	assert_int_equal(atomic_load(&qp->lookers), 0);
	atomic_store(&qp->base.lost, true);
	verbs_data_select_paths(qp);
	assert_false(vma_nic_rx_is_empty(&qp->base));
}

static void test_a_rebind_leaves_the_ring_to_who_looks_at_it(void **state)
{
	const struct verbs_mlx5 *before = qp->queue.mlx5;
	uint64_t failed_ns;

	(void)state;
	qp->wake_fd = eventfd(0, EFD_NONBLOCK);
	atomic_store(&qp->base.lost, true);
	verbs_data_select_paths(qp);
	atomic_store(&qp->lookers, 1);
	assert_int_equal(vma_nic_qp_rebind(&qp->base), -EAGAIN);
	assert_ptr_equal(qp->queue.mlx5, before);
	/* It counts as failed, and from the first time on. */
	failed_ns = qp->failed_ns;
	assert_int_not_equal(failed_ns, 0);
	assert_int_equal(vma_nic_qp_rebind(&qp->base), -EAGAIN);
	assert_int_equal(qp->failed_ns, failed_ns);
	close(qp->wake_fd);
}

/* ---- sleeping ---- */

static struct ibv_comp_channel channel;
static unsigned acknowledged;

static int fake_get_cq_event(struct ibv_comp_channel *of, struct ibv_cq **cq, void **context)
{
	(void)of, (void)cq, (void)context;
	if (model.events == acknowledged)
		return -1;
	acknowledged++;
	return 0;
}

static void fake_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	(void)cq, (void)n;
}

static void test_arming_names_the_next_completion_and_the_events_so_far(void **state)
{
	struct vma_buf *buf;

	(void)state;
	mlx5_model_trap_register_stores();
	acknowledged = 0;
	fake.lib.ibv_get_cq_event = fake_get_cq_event;
	fake.lib.ibv_ack_cq_events = fake_ack_cq_events;
	qp->epoll_fd = epoll_create1(0);
	channel.fd = eventfd(0, EFD_NONBLOCK);
	qp->queue.channel = &channel;
	post(40);
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(vma_nic_arm(&qp->base), 0);
		mlx5_model_take_cq_arm();
		assert_int_equal(model.arms, i + 1);
		assert_int_equal(vma_nic_arm(&qp->base), 0); /* it is still armed */
		assert_int_equal(model.cq_uar[MLX5_CQ_DOORBELL + 7], 0);
		assert_true(mlx5_model_receive_frame(pattern, 64, true, 0));
		assert_int_equal(model.events, i + 1);
		assert_int_equal(vma_nic_poll_rx(&qp->base, &buf, 1), 1);
	}
	/* The arm has to take what it finds. */
	assert_true(mlx5_model_receive_frame(pattern, 64, true, 0));
	assert_int_equal(vma_nic_arm(&qp->base), 1);
	assert_false(vma_nic_rx_is_empty(&qp->base));
	assert_int_equal(vma_nic_poll_rx(&qp->base, &buf, 1), 1);
	assert_true(vma_nic_rx_is_empty(&qp->base));
	close(qp->epoll_fd);
	close(channel.fd);
}

/* ---- what is not believed ---- */

static void corrupt_last_written_cqe(struct mlx5_model_cq *cq, unsigned how)
{
	struct mlx5_cqe64 *cqe;

	cq->produced--;
	cqe = mlx5_model_next_cqe(cq);
	cq->produced++;
	switch (how) {
	case 0:
		cqe->op_own |= 3 << 2; /* compressed */
		break;
	case 1:
		cqe->op_own |= 1 << 2; /* with the data in it */
		break;
	case 2:
		cqe->op_own = (uint8_t)(MLX5_CQE_RESIZE_CQ << 4 | (cqe->op_own & 1));
		break;
	case 3:
		cqe->wqe_counter = htobe16((uint16_t)(be16toh(cqe->wqe_counter) + 1));
		break;
	case 4:
		cqe->byte_cnt = htobe32(2049);
		break;
	default:
		cqe->byte_cnt = 0;
	}
}

static void test_a_strange_completion_ends_the_direct_path(void **state)
{
	struct vma_buf *bufs[16];

	(void)state;
	for (unsigned how = 0; how < 6; how++) {
		mlx5_setup_qp_with_setting(&usual);
		post(4);
		assert_true(mlx5_model_receive_frame(pattern, 64, true, 0));
		assert_true(mlx5_model_receive_frame(pattern, 64, true, 0));
		corrupt_last_written_cqe(&model.rx, how);
		assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 1);
		assert_true(mlx5_has_failed(&qp->queue));
		assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 0);
		assert_int_equal(qp->rx_with_nic, 3);
	}
	for (unsigned how = 0; how < 3; how++) {
		mlx5_setup_qp_with_setting(&usual);
		for (unsigned i = 0; i < 16; i++)
			send_one(64);
		assert_true(mlx5_model_complete_send(0));
		corrupt_last_written_cqe(&model.tx, how);
		assert_int_equal(reap_all(), 0);
		assert_true(mlx5_has_failed(&qp->queue));
	}
}

static void test_a_completion_of_nothing_ends_the_direct_path(void **state)
{
	struct vma_buf *bufs[16];

	(void)state;
	mlx5_model_next_cqe(&model.rx)->byte_cnt = htobe32(64);
	mlx5_model_push_cqe(&model.rx, MLX5_CQE_RESP_SEND);
	assert_int_equal(vma_nic_poll_rx(&qp->base, bufs, 16), 0);
	assert_true(mlx5_has_failed(&qp->queue));
}

static int fake_get_async_event_none(struct ibv_context *context, struct ibv_async_event *event)
{
	(void)context, (void)event;
	return -1;
}

static bool qp_becomes_lost_within_10s(void)
{
	for (unsigned i = 0; i < 10000 && !vma_nic_qp_lost(&qp->base); i++)
		usleep(1000);
	return vma_nic_qp_lost(&qp->base);
}

static void test_a_refused_card_loses_its_queue_and_gets_no_other_one_of_this_kind(void **state)
{
	struct verbs_pool full = {.frames = 0};
	struct vma_buf *buf;

	(void)state;
	fake.nic.wake_fd = eventfd(0, EFD_NONBLOCK);
	fake.nic.claims_fd = fake.nic.diag_fd = fake.context.context.async_fd = -1;
	fake.nic.qps = qp;
	fake.nic.mlx5_direct = true;
	fake.lib.ibv_get_async_event = fake_get_async_event_none;
	fake.device.context = &fake.context.context;
	qp->rx_memory = qp->tx_memory = &full;
	qp->wake_fd = eventfd(0, EFD_NONBLOCK);
	pthread_mutex_init(&fake.nic.events, NULL);
	pthread_mutex_init(&fake.nic.lock, NULL);
	atomic_store(&qp->broken, false);
	post(1);
	assert_true(mlx5_model_receive_frame(pattern, 64, true, 0));
	corrupt_last_written_cqe(&model.rx, 0);
	assert_int_equal(verbs_thread_start(&fake.nic), 0);
	assert_int_equal(vma_nic_poll_rx(&qp->base, &buf, 1), 0);
	assert_true(qp_becomes_lost_within_10s());
	atomic_store(&fake.nic.closing, true);
	verbs_thread_wake(&fake.nic);
	pthread_join(fake.nic.thread, NULL);
	assert_false(fake.nic.mlx5_direct);
	close(fake.nic.wake_fd);
	close(qp->wake_fd);
}

/* ---- which rings ---- */

static void spoil_direct_verbs_object(unsigned how, struct mlx5dv_obj *obj)
{
	struct mlx5dv_qp *dv = obj->qp.out;
	struct mlx5dv_cq *cq = obj->cq.out;

	if (dv != NULL && how == 0)
		dv->sq.wqe_cnt /= 2; /* a full queue of the longest packets has no room */
	if (dv != NULL && how == 1)
		dv->sq.stride = 128;
	if (dv != NULL && how == 2)
		dv->rq.stride = 8;
	if (dv != NULL && how == 3)
		dv->rq.wqe_cnt -= 1;
	if (dv != NULL && how == 4)
		dv->bf.reg = NULL;
	if (cq != NULL && how == 5)
		cq->cqe_size = 32;
	if (cq != NULL && how == 6)
		cq->cqe_cnt /= 2;
}

static unsigned spoiled_field_index;

static int fake_mlx5_init_obj_spoiling_a_field(struct mlx5dv_obj *obj, uint64_t type)
{
	const int rc = mlx5_model_init_obj(obj, type);

	spoil_direct_verbs_object(spoiled_field_index, obj);
	return spoiled_field_index == 7 ? EOPNOTSUPP : rc;
}

static void test_rings_of_another_form_are_left_to_libibverbs(void **state)
{
	const struct verbs_queue_attr attr = {
	        .rx_packets = 64, .rx_sges = 1, .tx_packets = 64, .tx_sges = 16, .tso = true};
	struct verbs_queue queue;
	const char *what;

	(void)state;
	mlx5_queue_close_rings(qp->queue.mlx5);
	qp->queue.mlx5 = NULL;
	queue = qp->queue;
	for (spoiled_field_index = 0; spoiled_field_index < 8; spoiled_field_index++) {
		model.lib.init_obj = fake_mlx5_init_obj_spoiling_a_field;
		what = NULL;
		assert_int_equal(mlx5_queue_open_rings(&queue, &attr, &what), -EOPNOTSUPP);
		assert_non_null(what);
		assert_null(queue.mlx5);
	}
	model.lib.init_obj = mlx5_model_init_obj;
	queue.td = NULL;
	assert_int_equal(mlx5_queue_open_rings(&queue, &attr, &what), -EOPNOTSUPP);
	queue.td = qp->queue.td;
	assert_int_equal(mlx5_queue_open_rings(&queue, &attr, &what), 0);
	mlx5_queue_close_rings(queue.mlx5);
}

static void test_a_device_of_another_kind_is_left_to_libibverbs(void **state)
{
	static char memory[4096]; /* as large as libmlx5 expects what it looks at */

	(void)state;
	fake.context.context.device = (struct ibv_device *)(void *)memory;
	fake.device.context = &fake.context.context;
	mlx5_enable_direct_rings_if_supported(&fake.device, "eth0");
	assert_null(fake.device.mlx5);
}

/* ---- who may not ---- */

static bool lost_qp_calls_do_nothing(void)
{
	struct vma_nic_seg segs[2];
	struct vma_buf *bufs[2];

	if (vma_bufpool_get(fake.tx_pool, bufs, 2) != 2)
		return false;
	for (unsigned i = 0; i < 2; i++)
		segs[i] = (struct vma_nic_seg){.buf = bufs[i], .len = 64};
	return vma_nic_tx(&qp->base, segs, 1) == 0 && vma_nic_tx(&qp->base, segs, 2) == 0 &&
	       vma_nic_kick(&qp->base) == -ENODEV && vma_nic_post_rx(&qp->base, bufs, 1) == 0 &&
	       vma_nic_post_rx(&qp->base, bufs, 2) == 0 && vma_nic_poll_rx(&qp->base, bufs, 1) == 0 &&
	       vma_nic_reap_tx(&qp->base, bufs, 1) == 0 && !vma_nic_rx_is_empty(&qp->base) &&
	       mlx5_model_take_sends() == 0;
}

static void queue_tx_and_rx_left_unpolled(void)
{
	const struct vma_nic_seg seg = make_tx_segment_in_new_buf(64);

	post(4);
	assert_true(mlx5_model_receive_frame(pattern, 64, true, 0));
	queue(&seg, 1);
}

static void test_a_lost_queue_pair_does_nothing(void **state)
{
	(void)state;
	queue_tx_and_rx_left_unpolled();
	atomic_store(&qp->base.lost, true);
	verbs_data_select_paths(qp);
	assert_true(lost_qp_calls_do_nothing());
	atomic_store(&qp->base.lost, false);
	verbs_data_select_paths(qp);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(mlx5_model_take_sends(), 1);
}

static void test_a_child_does_nothing_with_its_parents_rings(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	queue_tx_and_rx_left_unpolled();
	pid = fork();
	if (pid == 0) {
		if (!fake.is_wiped) { /* by the kernel: as verbs_nic_close_in_child does it then */
			memset(qp->sent, 0, FAKE_DEPTH * sizeof(struct verbs_send_segment));
			memset((void *)fake.lkeys, 0, FAKE_LKEYS_BYTES);
		}
		_exit(lost_qp_calls_do_nothing() ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(vma_nic_kick(&qp->base), 0);
	assert_int_equal(mlx5_model_take_sends(), 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, mlx5_model_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CASE(test_a_packet_is_one_block_that_is_rung_for_at_the_kick),
	        CASE(test_packets_of_one_kick_have_one_doorbell),
	        CASE(test_a_card_without_blueflame_gets_the_doorbell_alone),
	        CASE(test_inline_packets_keep_no_buffer_and_go_round_the_end_of_the_ring),
	        CASE(test_a_packet_of_pieces_is_one_work_request),
	        CASE(test_what_is_shorter_than_the_header_has_zeros_behind),
	        CASE(test_a_large_segment_is_cut_by_the_card),
	        CASE(test_headers_that_are_too_long_fail_the_kick_and_what_follows_is_sent),
	        CASE(test_one_completion_is_enough_for_as_many_packets_as_with_libibverbs),
	        CASE(test_a_full_ring_takes_no_more_until_the_card_has_sent),
	        CASE(test_a_failed_send_gives_its_buffers_back_and_is_counted),
	        CASE(test_received_packets_are_the_users),
	        CASE(test_a_long_packet_lies_in_the_buffers_of_one_receive),
	        CASE(test_a_receive_that_has_failed_is_posted_again_and_the_look_goes_on),
	        CASE(test_no_more_is_posted_than_the_ring_holds),
	        CASE(test_stamps_are_the_completions),
	        CASE(test_it_is_known_whether_something_has_come),
	        CASE(test_a_rebind_leaves_the_ring_to_who_looks_at_it),
	        CASE(test_arming_names_the_next_completion_and_the_events_so_far),
	        CASE(test_a_strange_completion_ends_the_direct_path),
	        CASE(test_a_completion_of_nothing_ends_the_direct_path),
	        CASE(test_a_refused_card_loses_its_queue_and_gets_no_other_one_of_this_kind),
	        CASE(test_rings_of_another_form_are_left_to_libibverbs),
	        CASE(test_a_device_of_another_kind_is_left_to_libibverbs),
	        CASE(test_a_lost_queue_pair_does_nothing),
	        CASE(test_a_child_does_nothing_with_its_parents_rings),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
