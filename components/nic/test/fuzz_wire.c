/*
 * Fuzz: a peer that writes anything anywhere in the shared memory, while this end polls, sends, arms and reaps.
 *
 * The input is a list of steps. Whatever they do, no call leaves its memory (sanitizers), every call ends, every buffer
 * that is polled makes sense, and none is lost or given twice (checked at the end of each input).
 */
#include <assert.h>
#include <string.h>

#include "../wire/wire.h"
#include "frames.h"

#define SLOTS 16
#define MTU 4000 /* frames of up to two buffers */
#define DEPTH 16
#define NONCE 7

static struct {
	struct vma_bufarena *arena;
	struct wire_end *end;
	struct vma_nic_qp *qp[2];
	char *memory;
	struct wire_layout layout;
	uint32_t pushed[WIRE_LANES]; /* by the peer, when it behaves */
} f;

struct input {
	const uint8_t *at, *end;
};

static uint32_t fuzz_wire_input_take(struct input *in, unsigned bytes)
{
	uint32_t value = 0;

	while (bytes-- > 0)
		value = value << 8 | (in->at < in->end ? *in->at++ : 0);
	return value;
}

static void wire_setup_end_with_two_qps(void)
{
	struct vma_bufarena_attr arena_attr = {.capacity = 1 << 14};
	struct vma_nic_qp_attr qp_attr = {.rx_wre = DEPTH, .tx_wre = DEPTH};
	struct vma_flow_rule rule;
	void *end = NULL;
	int rc = vma_bufarena_create(&arena_attr, &f.arena);

	wire_layout_init(&f.layout, SLOTS, MTU);
	f.memory = wire_memory_map(f.layout.bytes);
	rc |= posix_memalign(&end, WIRE_LINE, sizeof(*f.end));
	f.end = end;
	rc |= wire_end_init(f.end, 0, f.memory, &f.layout, SLOTS, 0, f.arena);
	for (uint16_t i = 0; i < 2; i++) {
		rc |= vma_nic_qp_create(&f.end->nic, &qp_attr, &f.qp[i]);
		rule = make_flow_rule(0, IPPROTO_UDP, (uint16_t)(1000 + i), 0, 0);
		rc |= vma_nic_flow_add(f.qp[i], &rule);
	}
	rule = make_flow_rule(0, IPPROTO_TCP, 1000, 0, VMA_FLOW_LISTENER);
	rc |= vma_nic_flow_add(f.qp[0], &rule);
	if (rc != 0 || f.memory == NULL)
		abort();
}

static void fuzz_wire_post_buffers(struct vma_nic_qp *qp)
{
	struct vma_buf *bufs[DEPTH];
	unsigned n = vma_bufpool_get(atomic_load(&qp->rx_pool), bufs, DEPTH), posted = vma_nic_post_rx(qp, bufs, n);

	vma_buf_put_burst(f.arena, bufs + posted, n - posted);
}

static unsigned wire_poll_check_and_free_rx_bufs(struct vma_nic_qp *qp)
{
	struct vma_buf *bufs[DEPTH];
	unsigned n = vma_nic_poll_rx(qp, bufs, DEPTH);

	assert(n <= DEPTH);
	for (unsigned i = 0; i < n; i++) {
		assert(bufs[i]->len > 0 && bufs[i]->len <= 2048 && bufs[i]->data_off == 0);
		assert(bufs[i]->packet_len <= f.layout.frame_max); /* never a byte of another slot */
		assert(atomic_load(&bufs[i]->refs) == 1 && bufs[i]->pool == vma_bufpool_id(atomic_load(&qp->rx_pool)));
	}
	vma_buf_put_burst(f.arena, bufs, n);
	return n;
}

static void nic_wire_send_one(struct vma_nic_qp *qp, uint32_t len)
{
	struct vma_buf *buf;
	struct vma_nic_seg seg = {.len = len % 2048};

	if (vma_bufpool_get(atomic_load(&qp->tx_pool), &buf, 1) == 0)
		return;
	seg.buf = buf;
	memset(vma_buf_frame(f.arena, buf), 'x', seg.len);
	if (vma_nic_tx(qp, &seg, 1) == 0)
		vma_buf_put(f.arena, buf);
}

static void wire_reap_and_free_tx_bufs(struct vma_nic_qp *qp)
{
	struct vma_buf *bufs[DEPTH];

	vma_buf_put_burst(f.arena, bufs, vma_nic_reap_tx(qp, bufs, DEPTH));
}

/* Fills a slot of the peer as the input says; the headers are right at first, so that frames get as far as a buffer. */
static void fuzz_peer_push_frame(struct input *in)
{
	uint32_t what = fuzz_wire_input_take(in, 1), lane = what % WIRE_LANES, len = fuzz_wire_input_take(in, 2),
	         index = f.pushed[lane]++;
	char *slots = wire_lane(f.memory, &f.layout, 1, lane);
	struct wire_slot *slot = wire_slot_at(slots, index, SLOTS - 1, f.layout.slot_bytes);
	struct frame_spec spec = {.from = 1,
	                          .proto = what & 0x20 ? IPPROTO_TCP : IPPROTO_UDP,
	                          .tcp_flags = 2,
	                          .dst_port = (uint16_t)(1000 + (what >> 6)),
	                          .len = 60 + len % (MTU - 46),
	                          .src_mac = (const uint8_t *)"abcdef",
	                          .dst_mac = (const uint8_t *)"ghijkl"};

	frame_build((uint8_t *)slot->bytes, &spec);
	for (uint32_t edits = fuzz_wire_input_take(in, 1) % 8; edits > 0; edits--) {
		uint32_t at = fuzz_wire_input_take(in, 1);
		slot->bytes[at % 80] = (char)fuzz_wire_input_take(in, 1);
	}
	atomic_store(&slot->len, what & 0x10 ? len << 4 : spec.len);
	atomic_store(&slot->seq, wire_index_with_nonce(NONCE, index + 1));
	atomic_fetch_or(&wire_side_page(f.memory, 1)->lanes_in_use, 1U << lane);
}

/* Anything anywhere: both pages, all slots. */
static void fuzz_peer_writes_anywhere(struct input *in)
{
	uint32_t where = fuzz_wire_input_take(in, 1), len = fuzz_wire_input_take(in, 1) % 64;
	size_t at = fuzz_wire_input_take(in, 2);

	if (where & 1) /* a slot's head, somewhere */
		at = 2 * WIRE_PAGE + (where >> 1) % (2 * WIRE_LANES) * f.layout.lane_bytes +
		     at % SLOTS * f.layout.slot_bytes;
	else
		at %= 2 * WIRE_PAGE;
	for (uint32_t i = 0; i < len; i++)
		f.memory[at + i] = (char)fuzz_wire_input_take(in, 1);
}

static void fuzz_peer_set_consumed_index(struct input *in)
{
	uint32_t lane = fuzz_wire_input_take(in, 1) % 2, value = fuzz_wire_input_take(in, 1);

	atomic_store(&wire_side_page(f.memory, 1)->consumed[lane].value,
	             wire_index_with_nonce(NONCE, value < 128 ? wire_qp_of_nic_qp(f.qp[lane])->tx.kicked
	                                                      : fuzz_wire_input_take(in, 4)));
}

static void fuzz_wire_step(struct input *in)
{
	uint32_t what = fuzz_wire_input_take(in, 1);
	struct vma_nic_qp *qp = f.qp[what >> 7];

	switch (what % 10) {
	case 0:
	case 1:
		fuzz_peer_push_frame(in);
		break;
	case 2:
		fuzz_peer_writes_anywhere(in);
		break;
	case 3:
		fuzz_peer_set_consumed_index(in);
		break;
	case 4:
		wire_poll_check_and_free_rx_bufs(qp);
		break;
	case 5:
		fuzz_wire_post_buffers(qp);
		break;
	case 6:
		nic_wire_send_one(qp, fuzz_wire_input_take(in, 2));
		break;
	case 7:
		vma_nic_kick(qp);
		break;
	case 8:
		wire_reap_and_free_tx_bufs(qp);
		break;
	default:
		vma_nic_arm(qp);
	}
}

/* Back to an empty link: another nonce makes both sides start anew. */
static void fuzz_restart_link(uint32_t nonce)
{
	memset(f.memory, 0, 2 * WIRE_PAGE);
	wire_end_set_link(f.end, nonce);
	for (uint32_t i = 0; i < WIRE_LANES; i++) {
		atomic_fetch_or(&wire_side_page(f.memory, 1)->lanes_in_use, 1U << i);
		f.pushed[i] = 0;
		for (uint32_t slot = 0; slot < SLOTS; slot++)
			atomic_store(&wire_slot_at(wire_lane(f.memory, &f.layout, 1, i), slot, SLOTS - 1,
			                           f.layout.slot_bytes)
			                      ->seq,
			             0);
	}
	for (int i = 0; i < 2; i++) {
		vma_nic_kick(f.qp[i]);
		wire_reap_and_free_tx_bufs(f.qp[i]);
		while (wire_poll_check_and_free_rx_bufs(f.qp[i]) != 0)
			;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, data + size};

	if (f.arena == NULL)
		wire_setup_end_with_two_qps();
	fuzz_restart_link(NONCE + 1);
	fuzz_restart_link(NONCE);
	for (int i = 0; i < 200 && in.at < in.end; i++)
		fuzz_wire_step(&in);
	fuzz_restart_link(NONCE + 1);
	/* Every buffer is in exactly one place: posted, or in its pool, which must not run dry as inputs go by. */
	for (int i = 0; i < 2; i++) {
		struct wire_qp *qp = wire_qp_of_nic_qp(f.qp[i]);
		assert(qp->rx_outstanding == wire_ring_count(&qp->posted));
		assert(wire_ring_count(&qp->done) == 0 && qp->sent_queued == qp->sent_reaped);
	}
	return 0;
}
