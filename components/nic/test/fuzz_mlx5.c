/*
 * fuzz_mlx5 - an mlx5 card that writes anything into its rings of completions, at any time. Nothing is read or written
 * outside the rings and the frames, no buffer is given to the user twice or with more bytes than it has, and the card
 * is refused or obeyed.
 *
 * The input is a run of steps, each a byte: work is given to the card, the card does what a card does, it writes over a
 * completion, or its user looks.
 */
#include <vma/log.h>

#include "mlx5_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DEPTH = 32 };
enum step { POST, SEND, KICK, RECEIVE, FAIL, COMPLETE, WRITE_RX, WRITE_TX, POLL, REAP, LOOK, STEPS };

struct input {
	const uint8_t *at, *end;
};

static struct vma_buf *rx_bufs[2 * FAKE_DEPTH]; /* all that there are */
static bool fake_card_has_lied;

static uint8_t fuzz_byte(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

static void fuzz_post_rx_bufs(struct verbs_qp *qp, unsigned n)
{
	struct vma_buf *bufs[16];
	const unsigned got = vma_bufpool_get(fake.rx_pool, bufs, n), taken = vma_nic_post_rx(&qp->base, bufs, got);

	vma_buf_put_burst(fake.arena, bufs + taken, got - taken);
}

static void fuzz_queue_tx_segment(struct verbs_qp *qp, uint32_t len)
{
	struct vma_nic_seg seg = {.len = 14 + len, .flags = len & 1 ? VMA_NIC_SEG_CSUM : 0};

	if (vma_bufpool_get(fake.tx_pool, &seg.buf, 1) == 1 && vma_nic_tx(&qp->base, &seg, 1) == 0)
		vma_buf_put(fake.arena, seg.buf);
}

static void fuzz_kick_and_take_sent_frames(struct verbs_qp *qp)
{
	MUST(vma_nic_kick(&qp->base) == 0);
	model.sq_free = model.sq_index; /* it may have said so, in vain or not */
	mlx5_model_take_sends();
	for (uint32_t i = 0; i < model.sent_n; i++)
		free(model.sent[i].bytes);
	model.sent_n = 0;
}

/* Of the next completion, or of any, so many bytes from one on. */
static void fuzz_write_cqe_bytes(struct mlx5_model_cq *cq, struct input *in)
{
	const uint8_t where = fuzz_byte(in), first = fuzz_byte(in), n = fuzz_byte(in) % 64;
	const uint32_t at = where < 128 ? cq->produced : where;
	char *entry = cq->entries + (size_t)(at & (cq->count - 1)) * cq->bytes;

	for (uint32_t i = 0; i < n; i++)
		entry[(first + i) % cq->bytes] = (char)fuzz_byte(in);
	cq->produced += where & 1;
	fake_card_has_lied = true;
}

/* A card that has lied does not know any more what is posted to it. */
static bool fuzz_card_is_honest_and_has_cq_room(const struct mlx5_model_cq *cq)
{
	return !fake_card_has_lied && ((cq->produced - be32toh(cq->record[0])) & 0xffffff) < cq->count;
}

static void fuzz_poll_and_check_rx_bufs(struct verbs_qp *qp, unsigned n)
{
	struct vma_buf *bufs[16];
	const unsigned got = vma_nic_poll_rx(&qp->base, bufs, n);

	MUST(got <= n);
	for (unsigned i = 0; i < got; i++) {
		MUST(atomic_load(&bufs[i]->refs) == 1 && bufs[i]->user == NULL);
		MUST(bufs[i]->len != 0 && bufs[i]->len <= 2048 && bufs[i]->data_off == 0);
		for (unsigned k = 0; k < i; k++)
			MUST(bufs[k] != bufs[i]);
	}
	vma_buf_put_burst(fake.arena, bufs, got);
	MUST(qp->rx_with_nic <= qp->base.rx_depth);
}

static void fuzz_reap_and_free_tx_bufs(struct verbs_qp *qp)
{
	struct vma_buf *bufs[16];
	const unsigned got = vma_nic_reap_tx(&qp->base, bufs, 16);

	for (unsigned i = 0; i < got; i++)
		MUST(atomic_load(&bufs[i]->refs) == 1);
	vma_buf_put_burst(fake.arena, bufs, got);
}

static void fuzz_step(struct verbs_qp *qp, struct input *in)
{
	static uint8_t frame[2048];
	const uint8_t byte = fuzz_byte(in);

	switch ((enum step)(byte % STEPS)) {
	case POST:
		fuzz_post_rx_bufs(qp, 1 + byte / STEPS % 16);
		break;
	case SEND:
		fuzz_queue_tx_segment(qp, fuzz_byte(in));
		break;
	case KICK:
		fuzz_kick_and_take_sent_frames(qp);
		break;
	case RECEIVE:
		if (fuzz_card_is_honest_and_has_cq_room(&model.rx))
			mlx5_model_receive_frame(frame, 1 + fuzz_byte(in), byte & 1, 0);
		break;
	case FAIL:
		if (fuzz_card_is_honest_and_has_cq_room(&model.rx))
			mlx5_model_complete_receive_with_error(fuzz_byte(in));
		break;
	case COMPLETE:
		if (fuzz_card_is_honest_and_has_cq_room(&model.tx))
			mlx5_model_complete_send(byte & 1 ? fuzz_byte(in) : 0);
		break;
	case WRITE_RX:
		fuzz_write_cqe_bytes(&model.rx, in);
		break;
	case WRITE_TX:
		fuzz_write_cqe_bytes(&model.tx, in);
		break;
	case POLL:
		fuzz_poll_and_check_rx_bufs(qp, 1 + byte / STEPS % 16);
		break;
	case REAP:
		fuzz_reap_and_free_tx_bufs(qp);
		break;
	default:
		vma_nic_rx_is_empty(&qp->base);
	}
}

/* The pools and the arena of one queue pair serve all inputs: everything is given back. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};
	const uint8_t how = fuzz_byte(&in);
	const struct mlx5_model_config card = {.cqe_bytes = how & 1 ? 64 : 128,
	                                       .bf_bytes = how & 2 ? 256 : 0,
	                                       .start = how & 4   ? 0xfffffff0
	                                                : how & 8 ? 0xfff0
	                                                          : 0};
	struct verbs_qp *qp = fake.verbs;

	if (qp == NULL) {
		qp = fake_provider_setup_qp(4, 0);
		fake.nic.wake_fd = -1;
		vma_log_set_level(VMA_LOG_ERROR); /* a refused card is a warning */
		MUST(vma_bufpool_get(fake.rx_pool, rx_bufs, 2 * FAKE_DEPTH) == 2 * FAKE_DEPTH);
		vma_buf_put_burst(fake.arena, rx_bufs, 2 * FAKE_DEPTH);
	}
	fake_card_has_lied = false;
	qp->queue.inline_max = how & 16 ? 204 : 0;
	qp->tx_segs_max = 1;
	qp->base.tx_depth = qp->base.rx_depth = DEPTH;
	atomic_store(&qp->broken, true);
	mlx5_model_replace_qp_rings(&card);
	while (in.at < in.end)
		fuzz_step(qp, &in);
	verbs_data_reclaim_bufs(qp);
	for (unsigned i = 0; i < 2 * FAKE_DEPTH; i++)
		if (rx_bufs[i]->user == &data_with_nic && atomic_load(&rx_bufs[i]->refs) == 0) {
			rx_bufs[i]->user = NULL;
			vma_buf_debug_mark_returned(fake.arena, rx_bufs[i]);
			vma_buf_put(fake.arena, rx_bufs[i]);
		}
	mlx5_queue_close_rings(qp->queue.mlx5);
	qp->queue.mlx5 = NULL;
	return 0;
}
