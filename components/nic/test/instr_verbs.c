/*
 * instr_verbs - the verbs backend's own instructions, for callgrind to count: single packets of 64 bytes on a provider
 * that does nothing (fake_provider.h), whose functions are to be subtracted.
 *
 *   instr_verbs PACKETS
 *   valgrind --tool=callgrind --toggle-collect=phase_NAME build/components/nic/test/instr_verbs 4096
 *
 *   phase_verbs_send         queue one and kick; what has completed is taken back every 64 packets
 *   phase_verbs_send_inline  the same, of a packet that goes into the send queue itself
 *   phase_verbs_receive      poll finds one
 *   phase_verbs_post         one buffer is posted
 *   phase_verbs_empty        poll finds none
 */
#include <stdio.h>

#include "fake_provider.h"

#define PHASE __attribute__((noinline))
PHASE void phase_verbs_send(struct vma_nic_qp *qp, const struct vma_nic_seg *seg);
PHASE void phase_verbs_send_inline(struct vma_nic_qp *qp, const struct vma_nic_seg *seg);
PHASE unsigned phase_verbs_receive(struct vma_nic_qp *qp, struct vma_buf **bufs);
PHASE unsigned phase_verbs_post(struct vma_nic_qp *qp, struct vma_buf **fresh);
PHASE unsigned phase_verbs_empty(struct vma_nic_qp *qp, struct vma_buf **bufs);

static struct vma_buf *reaped[64];
static unsigned reaped_n;

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

unsigned phase_verbs_empty(struct vma_nic_qp *qp, struct vma_buf **bufs)
{
	return vma_nic_poll_rx(qp, bufs, 16);
}

static void measure_one_send(struct vma_nic_qp *qp, unsigned at, bool is_inline)
{
	struct vma_buf *buf;
	struct vma_nic_seg seg = {.len = 64, .flags = VMA_NIC_SEG_CSUM};

	if (vma_bufpool_get(fake.tx_pool, &buf, 1) != 1)
		abort();
	seg.buf = buf;
	for (unsigned reap = 0; reap <= (at % 64) / 63; reap++) {
		if (is_inline)
			phase_verbs_send_inline(qp, reap ? NULL : &seg);
		else
			phase_verbs_send(qp, reap ? NULL : &seg);
	}
	vma_buf_put_burst(fake.arena, reaped, reaped_n);
	reaped_n = 0;
}

static void measure_one_receive(struct vma_nic_qp *qp)
{
	struct vma_buf *bufs[16], *fresh;

	if (vma_bufpool_get(fake.rx_pool, &fresh, 1) != 1)
		abort();
	fake.due = 1;
	if (phase_verbs_receive(qp, bufs) != 1 || phase_verbs_post(qp, &fresh) != 1)
		abort();
	vma_buf_put(fake.arena, bufs[0]);
	if (phase_verbs_empty(qp, bufs) != 0)
		abort();
}

static void fill(struct vma_nic_qp *qp)
{
	struct vma_buf *bufs[16];

	for (unsigned i = 0; i < qp->rx_depth - 16; i += 16)
		if (vma_bufpool_get(fake.rx_pool, bufs, 16) != 16 || vma_nic_post_rx(qp, bufs, 16) != 16)
			abort();
}

int main(int argc, char **argv)
{
	const unsigned packets = argc > 1 ? (unsigned)atoi(argv[1]) : 4096;

	for (int is_inline = 0; is_inline < 2; is_inline++) {
		struct vma_nic_qp *qp = &fake_provider_begin(64, is_inline ? 204 : 0)->base;

		fill(qp);
		for (unsigned i = 0; i < packets; i++) {
			measure_one_send(qp, i, is_inline);
			if (!is_inline)
				measure_one_receive(qp);
		}
		if (fake.sends != packets || fake.inlined != (is_inline ? packets : 0))
			abort();
	}
	return 0;
}
