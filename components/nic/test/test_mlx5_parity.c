/*
 * The same steps, drawn by a seed, once through libibverbs (fake_provider.h) and once through the rings (mlx5_model.h):
 * what the card sends, what the user receives, what each call returns and what is counted is the same, byte by byte.
 *
 *   FIRST=N SEEDS=N STEPS=N   of each setting, from the N-th seed on; a run has room for some 12
 */
#include <vma/test.h>

#include <errno.h>

#include "mlx5_model.h"

enum { PARITY_PATHS = 2, DEPTH = 64, DUE = 4096 };
enum implementation { BY_LIBIBVERBS, BY_RINGS };
enum step { SEND, SEND_ONE, KICK, COMPLETE, FAIL_SEND, REAP, POST, RECEIVE, FAIL_RECEIVE, POLL, STEPS };

/* How often each is drawn, of a hundred. */
static const unsigned step_weights[STEPS] = {18, 10, 16, 10, 1, 8, 12, 14, 1, 10};

struct setting {
	const char *name;
	uint32_t inline_max, rx_bufs, batching;
	struct mlx5_model_config card;
};
static const struct setting settings[] = {
        {"usual", 0, 1, 16, {64, 256, 0, true}},
        {"inline", 204, 1, 16, {64, 256, 0, false}},
        {"each kick asks for a completion", 100, 1, 0, {64, 512, 0, false}},
        {"long completions, no BlueFlame", 204, 1, 16, {128, 0, 0, true}},
        {"several buffers to a receive", 60, 3, 16, {64, 256, 0, false}},
        {"indices of 16 bits go round", 204, 1, 16, {64, 256, 0xffc0, false}},
        {"indices of 24 bits go round", 0, 3, 16, {64, 64, 0xffffc0, false}},
        {"indices of 32 bits go round", 204, 1, 5, {128, 256, 0xffffffc0, false}},
};

/* ---- what can be compared ---- */

static struct trace {
	uint8_t *bytes;
	size_t n, room;
} traces[PARITY_PATHS], *trace;
static enum implementation implementation;
static struct verbs_qp *qp;

static void trace_bytes(const void *bytes, size_t n)
{
	if (trace->n + n > trace->room) {
		trace->room = 2 * (trace->n + n);
		trace->bytes = realloc(trace->bytes, trace->room);
		assert_non_null(trace->bytes);
	}
	memcpy(trace->bytes + trace->n, bytes, n);
	trace->n += n;
}

static void trace_value(uint64_t value)
{
	trace_bytes(&value, sizeof(value));
}

/* Of a packet that is shorter than Ethernet's header with a tag the rings make one that is not. */
static void trace_sent_frame_padded_to_18_bytes(const uint8_t *bytes, uint32_t len, bool checksum, uint16_t mss,
                                                uint16_t header)
{
	static const uint8_t zeros[MLX5_SEND_WQE_BB];

	trace_value(len < 18 ? 18 : len);
	trace_value(checksum);
	trace_value(mss);
	trace_value(header);
	trace_bytes(bytes, len);
	trace_bytes(zeros, len < 18 ? 18 - len : 0);
}

/* ---- the card behind libibverbs ---- */

static struct {
	uint8_t frame[MODEL_FRAME];
	uint32_t len;
	uint16_t mss, header;
	uint64_t asked[DUE];
	uint32_t asked_from, asked_to;
	uint64_t posted[DUE];
	uint32_t posted_from, posted_to;
	struct {
		uint64_t id;
		enum ibv_wc_status status;
		uint32_t len;
		unsigned flags;
	} sent[DUE], received[DUE];
	uint32_t sent_from, sent_to, received_from, received_to;
} plain;

static void fake_verbs_wr_send(struct ibv_qp_ex *ex)
{
	plain.len = 0;
	plain.mss = plain.header = 0;
	if (ex->wr_flags & IBV_SEND_SIGNALED)
		plain.asked[plain.asked_to++ % DUE] = ex->wr_id;
}

static void fake_verbs_wr_send_tso(struct ibv_qp_ex *ex, void *header, uint16_t len, uint16_t mss)
{
	fake_verbs_wr_send(ex);
	memcpy(plain.frame, header, len);
	plain.len = plain.header = len;
	plain.mss = mss;
}

static void fake_verbs_add_frame_bytes(const void *bytes, size_t n)
{
	assert_true(n <= sizeof(plain.frame) - plain.len);
	memcpy(plain.frame + plain.len, bytes, n);
	plain.len += (uint32_t)n;
}

static void fake_verbs_record_frame(const struct ibv_qp_ex *ex)
{
	trace_sent_frame_padded_to_18_bytes(plain.frame, plain.len, ex->wr_flags & IBV_SEND_IP_CSUM, plain.mss,
	                                    plain.header);
}

static void fake_verbs_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	for (size_t i = 0; i < n; i++)
		fake_verbs_add_frame_bytes((const void *)(uintptr_t)list[i].addr, list[i].length);
	fake_verbs_record_frame(ex);
}

static void fake_verbs_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	const struct ibv_sge sge = {addr, length, lkey};

	fake_verbs_set_sge_list(ex, 1, &sge);
}

static void fake_verbs_set_inline_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	for (size_t i = 0; i < n; i++)
		fake_verbs_add_frame_bytes(list[i].addr, list[i].length);
	fake_verbs_record_frame(ex);
}

static void fake_verbs_set_inline(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	const struct ibv_data_buf data = {addr, length};

	fake_verbs_set_inline_list(ex, 1, &data);
}

static int fake_verbs_tx_next(struct ibv_cq_ex *cq)
{
	if (plain.sent_from == plain.sent_to)
		return ENOENT;
	cq->wr_id = plain.sent[plain.sent_from % DUE].id;
	cq->status = plain.sent[plain.sent_from++ % DUE].status;
	return 0;
}

static int fake_verbs_tx_start(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	(void)attr;
	return fake_verbs_tx_next(cq);
}

static int fake_verbs_post_recv(struct ibv_qp *of, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)of, (void)bad;
	for (; wr != NULL; wr = wr->next)
		plain.posted[plain.posted_to++ % DUE] = wr->wr_id;
	return 0;
}

static int fake_verbs_rx_next(struct ibv_cq_ex *cq)
{
	if (plain.received_from == plain.received_to)
		return ENOENT;
	cq->wr_id = plain.received[plain.received_from % DUE].id;
	cq->status = plain.received[plain.received_from++ % DUE].status;
	return 0;
}

static int fake_verbs_rx_start(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	(void)attr;
	return fake_verbs_rx_next(cq);
}

static uint32_t fake_verbs_byte_len(struct ibv_cq_ex *cq)
{
	(void)cq;
	return plain.received[(plain.received_from - 1) % DUE].len;
}

static unsigned fake_verbs_wc_flags(struct ibv_cq_ex *cq)
{
	(void)cq;
	return plain.received[(plain.received_from - 1) % DUE].flags;
}

static void fake_verbs_install_callbacks(void)
{
	memset(&plain, 0, sizeof(plain));
	fake.qp_ex.wr_send = fake_verbs_wr_send;
	fake.qp_ex.wr_send_tso = fake_verbs_wr_send_tso;
	fake.qp_ex.wr_set_sge = fake_verbs_set_sge;
	fake.qp_ex.wr_set_sge_list = fake_verbs_set_sge_list;
	fake.qp_ex.wr_set_inline_data = fake_verbs_set_inline;
	fake.qp_ex.wr_set_inline_data_list = fake_verbs_set_inline_list;
	fake.tx_cq.start_poll = fake_verbs_tx_start;
	fake.tx_cq.next_poll = fake_verbs_tx_next;
	fake.rx_cq.start_poll = fake_verbs_rx_start;
	fake.rx_cq.next_poll = fake_verbs_rx_next;
	fake.rx_cq.read_byte_len = fake_verbs_byte_len;
	fake.rx_cq.read_wc_flags = fake_verbs_wc_flags;
	fake.context.context.ops.post_recv = fake_verbs_post_recv;
}

static bool fake_verbs_complete_send(enum ibv_wc_status status)
{
	if (plain.asked_from == plain.asked_to)
		return false;
	plain.sent[plain.sent_to % DUE].id = plain.asked[plain.asked_from++ % DUE];
	plain.sent[plain.sent_to++ % DUE].status = status;
	return true;
}

static bool fake_verbs_receive_frame(const uint8_t *bytes, uint32_t len, bool checksums_ok, enum ibv_wc_status status)
{
	const uint32_t frame = 1u << fake.arena->frame_shift;
	uint64_t id;

	if (plain.posted_from == plain.posted_to)
		return false;
	id = plain.posted[plain.posted_from++ % DUE];
	plain.received[plain.received_to % DUE].id = id;
	plain.received[plain.received_to % DUE].status = status;
	plain.received[plain.received_to % DUE].len = len;
	plain.received[plain.received_to++ % DUE].flags = checksums_ok ? IBV_WC_IP_CSUM_OK : 0;
	for (const struct vma_buf *buf = (const void *)(uintptr_t)id; len != 0; buf = buf->next) {
		const uint32_t part = len < frame ? len : frame;

		memcpy(vma_buf_frame(fake.arena, buf), bytes, part);
		bytes += part;
		len -= part;
	}
	return true;
}

/* ---- steps ---- */

static uint64_t drawn;

static uint32_t random_number_less_than(uint32_t below)
{
	drawn ^= drawn << 13;
	drawn ^= drawn >> 7;
	drawn ^= drawn << 17;
	return (uint32_t)(drawn >> 16) % below;
}

static struct vma_nic_seg make_random_segment_in_buf(uint32_t least, uint32_t most)
{
	struct vma_nic_seg seg = {.len = least + random_number_less_than(most - least + 1)};
	uint8_t *frame;

	assert_int_equal(vma_bufpool_get(fake.tx_pool, &seg.buf, 1), 1);
	seg.off = random_number_less_than(2048 - seg.len + 1);
	frame = (uint8_t *)vma_buf_frame(fake.arena, seg.buf) + seg.off;
	for (uint32_t i = 0; i < seg.len; i++)
		frame[i] = (uint8_t)random_number_less_than(256);
	return seg;
}

static unsigned make_random_packet_segments(struct vma_nic_seg *segs)
{
	const unsigned kind = random_number_less_than(10);
	unsigned n = 1;

	if (kind < 7) {
		segs[0] = random_number_less_than(3) == 0
		                  ? make_random_segment_in_buf(14, 30)
		                  : make_random_segment_in_buf(14, random_number_less_than(2) ? 1514 : 220);
	} else if (kind < 9) {
		n = 2 + random_number_less_than(3);
		for (unsigned i = 0; i < n; i++)
			segs[i] = i + 1 < n && random_number_less_than(2) ? make_random_segment_in_buf(1, 60)
			                                                  : make_random_segment_in_buf(14, 370);
	} else {
		n = 1 + random_number_less_than(5);
		for (unsigned i = 0; i < n; i++)
			segs[i] = make_random_segment_in_buf(200, 2000);
		segs[0].hdr_len = (uint16_t)(14 + random_number_less_than(115));
		segs[0].mss = (uint16_t)(1 + random_number_less_than(1460));
		segs[0].flags = VMA_NIC_SEG_TSO;
	}
	for (unsigned i = 0; i + 1 < n; i++)
		segs[i].flags |= VMA_NIC_SEG_MORE;
	segs[0].flags |= random_number_less_than(2) ? VMA_NIC_SEG_CSUM : 0;
	return n;
}

static void step_send_random_packets(unsigned packets)
{
	struct vma_nic_seg segs[64];
	unsigned n = 0, taken;

	while (packets-- > 0)
		n += make_random_packet_segments(segs + n);
	taken = vma_nic_tx(&qp->base, segs, n);
	trace_value(taken);
	for (; taken < n; taken++)
		vma_buf_put(fake.arena, segs[taken].buf);
}

static void step_kick(void)
{
	const int rc = vma_nic_kick(&qp->base);

	if (implementation == BY_RINGS) {
		mlx5_model_take_sends();
		for (uint32_t i = 0; i < model.sent_n; i++) {
			const struct mlx5_model_sent_frame *frame = &model.sent[i];

			trace_sent_frame_padded_to_18_bytes(frame->bytes, frame->len, frame->checksum, frame->mss,
			                                    frame->header);
			free(frame->bytes);
		}
		model.sent_n = 0;
	}
	trace_value((uint64_t)rc);
}

static void step_complete_sends(unsigned n, bool fails)
{
	for (; n > 0; n--)
		trace_value(implementation == BY_RINGS
		                    ? mlx5_model_complete_send(fails ? MLX5_CQE_SYNDROME_LOCAL_PROT_ERR : 0)
		                    : fake_verbs_complete_send(fails ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS));
}

static void step_reap(unsigned n)
{
	struct vma_buf *bufs[64];
	const unsigned got = vma_nic_reap_tx(&qp->base, bufs, n);

	trace_value(got);
	vma_buf_put_burst(fake.arena, bufs, got);
}

static void step_post_rx_bufs(unsigned n)
{
	struct vma_buf *bufs[64];
	unsigned taken;

	assert_int_equal(vma_bufpool_get(fake.rx_pool, bufs, n), n);
	taken = vma_nic_post_rx(&qp->base, bufs, n);
	trace_value(taken);
	vma_buf_put_burst(fake.arena, bufs + taken, n - taken);
}

static void step_receive_random_frame(void)
{
	static uint8_t bytes[3 * 2048];
	const uint32_t len = 1 + random_number_less_than(random_number_less_than(2) ? qp->rx_bufs * 2048 : 100);
	const bool checksums_ok = random_number_less_than(4) != 0;

	for (uint32_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)random_number_less_than(256);
	trace_value(implementation == BY_RINGS ? mlx5_model_receive_frame(bytes, len, checksums_ok, 0)
	                                       : fake_verbs_receive_frame(bytes, len, checksums_ok, IBV_WC_SUCCESS));
}

static void step_complete_receive_with_error(void)
{
	trace_value(implementation == BY_RINGS
	                    ? mlx5_model_complete_receive_with_error(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR)
	                    : fake_verbs_receive_frame(NULL, 0, false, IBV_WC_LOC_PROT_ERR));
}

static void step_poll(unsigned n)
{
	struct vma_buf *bufs[64];
	const unsigned got = vma_nic_poll_rx(&qp->base, bufs, n);

	trace_value(got);
	for (unsigned i = 0; i < got; i++) {
		trace_value(bufs[i]->len);
		trace_value(bufs[i]->flags);
		trace_bytes(vma_buf_data(fake.arena, bufs[i]), bufs[i]->len);
	}
	if (implementation == BY_RINGS && got < n)
		assert_true(vma_nic_rx_is_empty(&qp->base));
	vma_buf_put_burst(fake.arena, bufs, got);
}

static void run_random_step(void)
{
	uint32_t at = random_number_less_than(100);
	enum step step = 0;

	for (; at >= step_weights[step]; step++)
		at -= step_weights[step];
	switch (step) {
	case SEND:
		step_send_random_packets(1 + random_number_less_than(6));
		break;
	case SEND_ONE:
		step_send_random_packets(1);
		step_kick();
		break;
	case KICK:
		step_kick();
		break;
	case COMPLETE:
		step_complete_sends(1 + random_number_less_than(3), false);
		break;
	case FAIL_SEND:
		step_complete_sends(1, true);
		break;
	case REAP:
		step_reap(1 + random_number_less_than(64));
		break;
	case POST:
		step_post_rx_bufs(random_number_less_than(3) ? 1 : 1 + random_number_less_than(40));
		break;
	case RECEIVE:
		step_receive_random_frame();
		break;
	case FAIL_RECEIVE:
		step_complete_receive_with_error();
		break;
	default:
		step_poll(1 + random_number_less_than(20));
	}
}

static void trace_qp_counters(void)
{
	const struct vma_stats_nic *stats = qp->stats;

	trace_value(vma_stats_read_counter(&stats->tx_frames));
	trace_value(vma_stats_read_counter(&stats->tx_bytes));
	trace_value(vma_stats_read_counter(&stats->tx_errors));
	trace_value(vma_stats_read_counter(&stats->kicks));
	trace_value(vma_stats_read_counter(&stats->completions));
	trace_value(vma_stats_read_counter(&stats->rx_frames));
	trace_value(vma_stats_read_counter(&stats->rx_bytes));
	trace_value(vma_stats_read_counter(&stats->rx_errors));
	trace_value(vma_stats_read_counter(&stats->fill_posted));
	trace_value(qp->rx_with_nic);
}

static void trace_steps_by_rings_or_verbs(enum implementation which, const struct setting *setting, uint64_t seed,
                                          unsigned steps)
{
	implementation = which;
	trace = &traces[which];
	trace->n = 0;
	drawn = seed;
	mlx5_model_detach();
	qp = fake_provider_setup_qp(setting->batching, setting->inline_max);
	fake_verbs_install_callbacks();
	fake.nic.wake_fd = -1;
	fake.nic.base.info.caps |= VMA_NIC_CAP_SG | VMA_NIC_CAP_TSO;
	fake.nic.base.info.tso_max_bytes = 65536;
	qp->rx_bufs = setting->rx_bufs;
	qp->tx_segs_max = 5;
	qp->base.tx_depth = DEPTH;
	qp->base.rx_depth = DEPTH - DEPTH % setting->rx_bufs;
	atomic_store(&qp->broken, true);
	if (which == BY_RINGS)
		mlx5_model_replace_qp_rings(&setting->card);
	else
		verbs_qp_data_path_init(qp);
	for (unsigned i = 0; i < steps; i++)
		run_random_step();
	step_kick();
	step_complete_sends(DEPTH, false);
	step_reap(64);
	step_poll(64);
	trace_qp_counters();
	assert_false(mlx5_has_failed(&qp->queue));
}

static unsigned env_number_or(const char *name, unsigned otherwise)
{
	const char *value = getenv(name);

	return value != NULL ? (unsigned)atoi(value) : otherwise;
}

static void test_rings_do_what_libibverbs_does(void **state)
{
	const unsigned first = env_number_or("FIRST", 1), end = first + env_number_or("SEEDS", 3),
	               steps = env_number_or("STEPS", 3000);

	(void)state;
	for (unsigned i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		for (uint64_t seed = first; seed < end; seed++) {
			size_t at = 0;

			trace_steps_by_rings_or_verbs(BY_LIBIBVERBS, &settings[i], seed * 0x9e3779b97f4a7c15u, steps);
			trace_steps_by_rings_or_verbs(BY_RINGS, &settings[i], seed * 0x9e3779b97f4a7c15u, steps);
			while (at < traces[0].n && at < traces[1].n && traces[0].bytes[at] == traces[1].bytes[at])
				at++;
			if (at != traces[0].n || at != traces[1].n)
				fail_msg("%s, seed %u: they differ at byte %zu of %zu and %zu", settings[i].name,
				         (unsigned)seed, at, traces[0].n, traces[1].n);
			assert_true(at > (size_t)steps * 100); /* packets did move */
		}
	mlx5_model_detach();
	fake_provider_free_qp();
	free(traces[0].bytes);
	free(traces[1].bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rings_do_what_libibverbs_does),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
