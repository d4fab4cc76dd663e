/*
 * instr_verbs - the verbs backend's own instructions, for callgrind to count: single packets of 64 bytes on a provider
 * that does nothing (fake_provider.h), whose functions are to be subtracted; and on the rings of an mlx5 card
 * (mlx5_model.h), where there is nothing to subtract: the card works between the phases.
 *
 *   instr_verbs PACKETS
 *   valgrind --tool=callgrind --toggle-collect=phase_NAME build/components/nic/test/instr_verbs 4096
 *
 *   phase_verbs_send         queue one and kick; what has completed is taken back every 64 packets
 *   phase_verbs_send_inline  the same, of a packet that goes into the send queue itself
 *   phase_verbs_receive      poll finds one
 *   phase_verbs_post         one buffer is posted
 *   phase_verbs_post_list    64 are posted together, as cq does for a thread that spins
 *   phase_verbs_empty        poll finds none
 *   phase_mlx5_...           the same six on the rings
 *   phase_mlx5_is_empty      whether something has come is asked without the receive half
 */
#include <stdio.h>

#include "mlx5_model.h"

#define PHASE __attribute__((noinline))
PHASE void phase_verbs_send(struct vma_nic_qp *qp, const struct vma_nic_seg *seg);
PHASE void phase_verbs_send_inline(struct vma_nic_qp *qp, const struct vma_nic_seg *seg);
PHASE unsigned phase_verbs_receive(struct vma_nic_qp *qp, struct vma_buf **bufs);
PHASE unsigned phase_verbs_post(struct vma_nic_qp *qp, struct vma_buf **fresh);
PHASE unsigned phase_verbs_post_list(struct vma_nic_qp *qp, struct vma_buf **fresh);
PHASE unsigned phase_verbs_empty(struct vma_nic_qp *qp, struct vma_buf **bufs);
PHASE void phase_mlx5_send(struct vma_nic_qp *qp, const struct vma_nic_seg *seg);
PHASE void phase_mlx5_send_inline(struct vma_nic_qp *qp, const struct vma_nic_seg *seg);
PHASE unsigned phase_mlx5_receive(struct vma_nic_qp *qp, struct vma_buf **bufs);
PHASE unsigned phase_mlx5_post(struct vma_nic_qp *qp, struct vma_buf **fresh);
PHASE unsigned phase_mlx5_post_list(struct vma_nic_qp *qp, struct vma_buf **fresh);
PHASE unsigned phase_mlx5_empty(struct vma_nic_qp *qp, struct vma_buf **bufs);
PHASE bool phase_mlx5_is_empty(const struct vma_nic_qp *qp);

#define POST_LIST 64 /* IDLE_DEBT of cq; VMA_RX_WRE_BATCHING is as many */

static struct vma_buf *reaped[64];
static unsigned reaped_n;
static bool measures_mlx5_rings;

/* seg NULL: takes back what has completed. What failed shows at the end, by the number of packets. */
static inline void tx_segment_or_reap(struct vma_nic_qp *qp, const struct vma_nic_seg *seg)
{
	if (seg == NULL) {
		reaped_n = vma_nic_reap_tx(qp, reaped, 64);
		return;
	}
	vma_nic_tx(qp, seg, 1);
	vma_nic_kick(qp);
}

void phase_verbs_send(struct vma_nic_qp *qp, const struct vma_nic_seg *seg)
{
	tx_segment_or_reap(qp, seg);
}

void phase_verbs_send_inline(struct vma_nic_qp *qp, const struct vma_nic_seg *seg)
{
	tx_segment_or_reap(qp, seg);
}

unsigned phase_verbs_receive(struct vma_nic_qp *qp, struct vma_buf **bufs)
{
	return vma_nic_poll_rx(qp, bufs, 16);
}

unsigned phase_verbs_post(struct vma_nic_qp *qp, struct vma_buf **fresh)
{
	return vma_nic_post_rx(qp, fresh, 1);
}

unsigned phase_verbs_post_list(struct vma_nic_qp *qp, struct vma_buf **fresh)
{
	return vma_nic_post_rx(qp, fresh, POST_LIST);
}

unsigned phase_verbs_empty(struct vma_nic_qp *qp, struct vma_buf **bufs)
{
	return vma_nic_poll_rx(qp, bufs, 16);
}

void phase_mlx5_send(struct vma_nic_qp *qp, const struct vma_nic_seg *seg)
{
	tx_segment_or_reap(qp, seg);
}

void phase_mlx5_send_inline(struct vma_nic_qp *qp, const struct vma_nic_seg *seg)
{
	tx_segment_or_reap(qp, seg);
}

unsigned phase_mlx5_receive(struct vma_nic_qp *qp, struct vma_buf **bufs)
{
	return vma_nic_poll_rx(qp, bufs, 16);
}

unsigned phase_mlx5_post(struct vma_nic_qp *qp, struct vma_buf **fresh)
{
	return vma_nic_post_rx(qp, fresh, 1);
}

unsigned phase_mlx5_post_list(struct vma_nic_qp *qp, struct vma_buf **fresh)
{
	return vma_nic_post_rx(qp, fresh, POST_LIST);
}

unsigned phase_mlx5_empty(struct vma_nic_qp *qp, struct vma_buf **bufs)
{
	return vma_nic_poll_rx(qp, bufs, 16);
}

bool phase_mlx5_is_empty(const struct vma_nic_qp *qp)
{
	return vma_nic_rx_is_empty(qp);
}

static void measure_one_send_phase(struct vma_nic_qp *qp, const struct vma_nic_seg *seg, bool is_inline)
{
	if (measures_mlx5_rings && is_inline)
		phase_mlx5_send_inline(qp, seg);
	else if (measures_mlx5_rings)
		phase_mlx5_send(qp, seg);
	else if (is_inline)
		phase_verbs_send_inline(qp, seg);
	else
		phase_verbs_send(qp, seg);
}

static void fake_card_completes_sends(void)
{
	if (!measures_mlx5_rings)
		return;
	fake.sends += mlx5_model_take_sends();
	for (uint32_t i = 0; i < model.sent_n; i++) {
		fake.inlined += model.sent[i].is_inline;
		free(model.sent[i].bytes);
	}
	model.sent_n = 0;
	while (mlx5_model_complete_send(0))
		;
}

static void measure_one_send(struct vma_nic_qp *qp, unsigned at, bool is_inline)
{
	struct vma_buf *buf;
	struct vma_nic_seg seg = {.len = 64, .flags = VMA_NIC_SEG_CSUM};

	if (vma_bufpool_get(fake.tx_pool, &buf, 1) != 1)
		abort();
	seg.buf = buf;
	measure_one_send_phase(qp, &seg, is_inline);
	fake_card_completes_sends();
	if (at % 64 == 63)
		measure_one_send_phase(qp, NULL, is_inline);
	vma_buf_put_burst(fake.arena, reaped, reaped_n);
	reaped_n = 0;
}

static void measure_one_receive(struct vma_nic_qp *qp)
{
	static const uint8_t packet[64];
	struct vma_buf *bufs[16], *fresh;
	unsigned got, posted, none;

	if (vma_bufpool_get(fake.rx_pool, &fresh, 1) != 1)
		abort();
	if (measures_mlx5_rings) {
		mlx5_model_receive_frame(packet, sizeof(packet), true, 0);
		got = phase_mlx5_receive(qp, bufs);
		posted = phase_mlx5_post(qp, &fresh);
		none = !phase_mlx5_is_empty(qp) + phase_mlx5_empty(qp, bufs + 1);
	} else {
		fake.due = 1;
		got = phase_verbs_receive(qp, bufs);
		posted = phase_verbs_post(qp, &fresh);
		none = phase_verbs_empty(qp, bufs + 1);
	}
	if (got != 1 || posted != 1 || none != 0)
		abort();
	vma_buf_put(fake.arena, bufs[0]);
}

static void measure_posting_of_one_list(struct vma_nic_qp *qp)
{
	static const uint8_t packet[64];
	struct vma_buf *bufs[POST_LIST], *fresh[POST_LIST];
	unsigned posted;

	if (vma_bufpool_get(fake.rx_pool, fresh, POST_LIST) != POST_LIST)
		abort();
	fake.due = POST_LIST;
	for (unsigned i = 0; i < POST_LIST; i++) {
		if (measures_mlx5_rings)
			mlx5_model_receive_frame(packet, sizeof(packet), true, 0);
		if (vma_nic_poll_rx(qp, bufs + i, 1) != 1)
			abort();
	}
	posted = measures_mlx5_rings ? phase_mlx5_post_list(qp, fresh) : phase_verbs_post_list(qp, fresh);
	if (posted != POST_LIST)
		abort();
	vma_buf_put_burst(fake.arena, bufs, POST_LIST);
}

static void post_rx_bufs_until_nearly_full(struct vma_nic_qp *qp)
{
	struct vma_buf *bufs[16];

	for (unsigned i = 0; i < qp->rx_depth - 16; i += 16)
		if (vma_bufpool_get(fake.rx_pool, bufs, 16) != 16 || vma_nic_post_rx(qp, bufs, 16) != 16)
			abort();
}

int main(int argc, char **argv)
{
	const struct mlx5_model_config card = {.cqe_bytes = 64, .bf_bytes = MODEL_BF};
	const unsigned packets = argc > 1 ? (unsigned)atoi(argv[1]) : 4096;

	for (int round = 0; round < 4; round++) {
		const bool is_inline = round % 2;
		struct vma_nic_qp *qp;

		mlx5_model_detach();
		qp = &fake_provider_setup_qp(64, is_inline ? 204 : 0)->base;
		measures_mlx5_rings = round >= 2;
		if (measures_mlx5_rings)
			mlx5_model_replace_qp_rings(&card);
		post_rx_bufs_until_nearly_full(qp);
		for (unsigned i = 0; i < packets; i++) {
			measure_one_send(qp, i, is_inline);
			if (!is_inline)
				measure_one_receive(qp);
			if (!is_inline && i % POST_LIST == POST_LIST - 1)
				measure_posting_of_one_list(qp);
		}
		if (fake.sends != packets || fake.inlined != (is_inline ? packets : 0))
			abort();
	}
	mlx5_model_detach();
	return 0;
}
