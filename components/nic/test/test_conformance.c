/*
 * Conformance: the same cases against every backend.
 *
 * Without environment it runs the wire's forms: a pair, a pair with jumbo frames and checksum offload, a file. Any
 * other two ends that reach each other are named by
 *
 *   VMA_CONFORMANCE="SPEC_A SPEC_B"            for example "xdp:veth0 xdp:veth1", as vma_nic_open takes them
 *   VMA_CONFORMANCE_NETNS="PATH_A PATH_B"      optional network namespaces, such as /run/netns/NAME or /proc/PID/ns/net
 *   VMA_CONFORMANCE_OWNER=vmad                 rent from a running vmad; else the device objects live in this process
 *   VMA_CONFORMANCE_MLX5=1                     with VMA_MLX5_DIRECT
 *
 * and then only they are tested. Both ends are opened by this one process, each control call in its end's namespace.
 * T='*pattern*' picks cases; the case's name ends with the name of its fixture. Where a device lacks a capability the
 * case is skipped, and says which.
 */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <vma/log.h>

#include "fixture.h"

#define PORT 21000
#define PEER_PORT 22000
#define DEPTH 256

struct conformance_backend {
	const char *name;
	struct vma_wire_pair_attr pair; /* used when spec[0] is NULL */
	const char *spec[2];
	const char *netns[2];
	enum vma_nic_owner owner;
};

static struct conformance_backend conformance_backends[4] = {
        {.name = "pair"},
        {.name = "jumbo pair",
         .pair = {.mtu = 9000, .checksum_offload = true, .segmentation_offload = true, .memory_link = true}},
        {.name = "file"},
};
static char file_spec[64], end_specs[2][256], netns[2][256];

/* ---- making and ending a fixture ---- */

static void conformance_open_nic_of_end(struct fixture *w, const struct conformance_backend *conformance_backend,
                                        int end)
{
	const bool rings = getenv("VMA_CONFORMANCE_MLX5") != NULL;
	struct vma_nic_attr attr = {.arena = w->arena, .owner = conformance_backend->owner, .mlx5_direct = rings};

	fixture_enter_netns(w, end);
	assert_int_equal(vma_nic_open(conformance_backend->spec[end], &attr, &w->nic[end]), 0);
}

static int setup(void **state)
{
	const struct conformance_backend *conformance_backend = *state;
	struct fixture *w = calloc(1, sizeof(*w));

	w->arena = fixture_arena();
	for (int end = 0; end < 2; end++)
		w->netns[end] = conformance_backend->netns[end] != NULL
		                        ? open(conformance_backend->netns[end], O_RDONLY | O_CLOEXEC)
		                        : -1;
	w->counts = conformance_backend->spec[0] == NULL || strncmp(conformance_backend->spec[0], "verbs:", 6) != 0;
	if (conformance_backend->spec[0] == NULL) {
		struct vma_wire_pair_attr attr = conformance_backend->pair;
		attr.arena[0] = attr.arena[1] = w->arena;
		assert_int_equal(vma_wire_create_pair(&attr, w->nic), 0);
	} else {
		w->kernel_sock = strncmp(conformance_backend->spec[0], "wire:", 5) != 0;
		w->unarms = w->arms_next = strncmp(conformance_backend->spec[0], "xdp:", 4) == 0;
		conformance_open_nic_of_end(w, conformance_backend, 0);
		conformance_open_nic_of_end(w, conformance_backend, 1);
	}
	fixture_create_qp_with_posted_rx(w, 0, 0, DEPTH);
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *w = *state;

	for (int end = 0; end < 2; end++) {
		fixture_nic_close(w, end);
		if (w->netns[end] >= 0)
			close(w->netns[end]);
	}
	vma_bufpool_flush_thread(w->arena);
	vma_bufarena_destroy(w->arena);
	free(w);
	return 0;
}

#define SKIP_WITHOUT_CAP(w, cap)                                                                                       \
	do {                                                                                                           \
		if (((w)->nic[0]->info.caps & (cap)) == 0) {                                                           \
			vma_test_skip("the device has no " #cap);                                                      \
		}                                                                                                      \
	} while (0)

static uint32_t longest_frame_of_end(const struct fixture *w)
{
	uint32_t frame = w->nic[0]->info.mtu + 14, room = (1U << w->arena->frame_shift) - w->qp[0][0]->tx_headroom;

	return frame < room ? frame : room;
}

/* ---- bytes ---- */

static void test_every_byte_arrives(void **state)
{
	struct fixture *w = *state;
	uint32_t sizes[] = {60,
	                    61,
	                    64,
	                    65,
	                    127,
	                    128,
	                    129,
	                    777,
	                    1024,
	                    1499,
	                    1513,
	                    longest_frame_of_end(w) - 1,
	                    longest_frame_of_end(w)};

	fixture_add_flow(w, 0, 0, IPPROTO_UDP, PORT, 0, 0);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		if (sizes[i] > longest_frame_of_end(w))
			continue;
		for (int end = 0; end < 2; end++) {
			fixture_send(w, end, 0, udp(PEER_PORT, PORT, sizes[i], i));
			fixture_assert_receives(w, 1 - end, 0, udp(PEER_PORT, PORT, sizes[i], i));
		}
	}
}

static void test_order_is_kept(void **state)
{
	struct fixture *w = *state;
	uint32_t received = 0;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t sent = 0; received < 3000;) {
		for (uint32_t i = 0; i < 64 && sent < 3000; i++, sent++)
			fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 60 + sent % 600, sent));
		for (; received < sent; received++)
			fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 60 + received % 600, received));
	}
	assert_no_packet_arrives(w, 1, 0);
}

static void test_checksum_is_filled_in_and_checked(void **state)
{
	struct fixture *w = *state;
	struct packet *packet;
	struct frame_spec spec = udp(PEER_PORT, PORT, 333, 5);

	SKIP_WITHOUT_CAP(w, VMA_NIC_CAP_TX_CSUM);
	SKIP_WITHOUT_CAP(w, VMA_NIC_CAP_RX_CSUM);
	packet = malloc(sizeof(*packet));
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (int spoil = 0; spoil < 2; spoil++) {
		spec.no_checksum = true;
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);
		seg.flags = spoil ? 0 : VMA_NIC_SEG_CSUM;
		if (spoil) /* a checksum that is there, and wrong */
			vma_buf_frame(w->arena, seg.buf)[seg.off + 40] = 0x55;
		assert_int_equal(vma_nic_tx(w->qp[0][0], &seg, 1), 1);
		vma_nic_kick(w->qp[0][0]);
		assert_true(fixture_recv(w->qp[1][0], packet, FIXTURE_TIMEOUT_NS));
		if (spoil) {
			/* A card may only say what it has found right. */
			assert_false(packet->flags & VMA_BUF_RX_L4_CSUM_OK);
			assert_true(w->kernel_sock || packet->flags & VMA_BUF_RX_L4_CSUM_BAD);
		} else {
			spec.no_checksum = false;
			assert_packet(w, packet, 0, spec);
			assert_int_equal(packet->flags, VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK);
		}
	}
	free(packet);
}

/* ---- buffers ---- */

static void test_segments_become_one_packet(void **state)
{
	struct fixture *w = *state;
	struct frame_spec spec = udp(PEER_PORT, PORT, 1000, 3);

	SKIP_WITHOUT_CAP(w, VMA_NIC_CAP_SG);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	struct vma_nic_seg whole = fixture_build_frame_in_tx_buf(w, 0, 0, &spec), segs[3];
	uint32_t cuts[] = {0, 42, 531, 1000};
	for (int i = 0; i < 3; i++) {
		segs[i] = (struct vma_nic_seg){.buf = fixture_get_tx_buf_waiting(w->qp[0][0]),
		                               .off = whole.off + (uint32_t)i};
		segs[i].len = cuts[i + 1] - cuts[i];
		segs[i].flags = i < 2 ? VMA_NIC_SEG_MORE : 0;
		memcpy(vma_buf_frame(w->arena, segs[i].buf) + segs[i].off,
		       vma_buf_frame(w->arena, whole.buf) + whole.off + cuts[i], segs[i].len);
	}
	vma_buf_put(w->arena, whole.buf);
	assert_int_equal(vma_nic_tx(w->qp[0][0], segs, 2), 0); /* no end: not a whole packet */
	assert_int_equal(vma_nic_tx(w->qp[0][0], segs, 3), 3);
	vma_nic_kick(w->qp[0][0]);
	fixture_assert_receives(w, 1, 0, spec);
}

/* As one that was queued for the binding of before, which needed no room before a frame. */
static void test_a_frame_without_the_headroom_does_not_stop_those_behind_it(void **state)
{
	struct fixture *w = *state;
	struct frame_spec dropped = udp(1, PORT, 100, 1), spec = udp(1, PORT, 100, 2);
	struct vma_nic_seg segs[2];

	if (w->qp[0][0]->tx_headroom == 0)
		vma_test_skip("the device needs no room before a frame");
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	segs[0] = fixture_build_frame_in_tx_buf(w, 0, 0, &dropped);
	segs[0].off = 0;
	segs[1] = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);
	assert_int_equal(vma_nic_tx(w->qp[0][0], segs, 2), 2);
	while (vma_nic_kick(w->qp[0][0]) == -EAGAIN)
		sched_yield();
	fixture_reap_and_free_tx_bufs(w->qp[0][0]);
	fixture_assert_receives(w, 1, 0, spec);
	assert_no_packet_arrives(w, 1, 0);
}

/* A packet of TCP in three buffers, each as full as it can be, to be cut; number is its first sequence number's. */
static void fixture_make_tso_packet(struct fixture *w, const struct frame_spec *spec, struct vma_nic_seg segs[3])
{
	static uint8_t bytes[FRAME_MAX];
	const uint32_t room = (1U << w->arena->frame_shift) - w->qp[0][0]->tx_headroom;

	frame_build(bytes, spec);
	memcpy(bytes + 14 + 4, "\xff\xff", 2);         /* IP id */
	memcpy(bytes + 34 + 4, "\xff\xff\xff\x00", 4); /* sequence number */
	for (uint32_t i = 0, at = 0; i < 3; i++) {
		const uint32_t len = spec->len - at < room ? spec->len - at : room;

		segs[i] = (struct vma_nic_seg){.buf = fixture_get_tx_buf_waiting(w->qp[0][0]),
		                               .off = w->qp[0][0]->tx_headroom};
		memcpy(vma_buf_frame(w->arena, segs[i].buf) + segs[i].off, bytes + at, len);
		segs[i].len = len;
		segs[i].flags = i < 2 ? VMA_NIC_SEG_MORE : 0;
		at += len;
	}
	segs[0].flags |= VMA_NIC_SEG_TSO | VMA_NIC_SEG_CSUM;
	segs[0].mss = 1000;
	segs[0].hdr_len = FRAME_TCP_HEADERS;
}

/* The n-th frame of it, of `frames`. */
static void assert_tso_segment(const struct fixture *w, const struct packet *packet, struct frame_spec spec, uint32_t n,
                               uint32_t frames)
{
	static uint8_t whole[FRAME_MAX], expected[FRAME_MAX];
	const uint32_t left = spec.len - FRAME_TCP_HEADERS - 1000 * n, bytes = left < 1000 ? left : 1000;
	const uint32_t seq = htonl(0xffffff00 + 1000 * n);

	assert_int_equal(packet->len, FRAME_TCP_HEADERS + bytes);
	assert_true(packet->flags & VMA_BUF_RX_L3_CSUM_OK && packet->flags & VMA_BUF_RX_L4_CSUM_OK);
	frame_build(whole, &spec);
	memcpy(expected, whole, FRAME_TCP_HEADERS);
	memcpy(expected + FRAME_TCP_HEADERS, whole + FRAME_TCP_HEADERS + 1000 * n, bytes);
	frame_put_be16(expected + 16, 40 + bytes);
	frame_put_be16(expected + 18, (uint16_t)(0xffff + n));
	memcpy(expected + 38, &seq, 4);
	if (n + 1 < frames)
		expected[47] &= (uint8_t) ~(TH_PUSH | TH_FIN);
	if (n > 0)
		expected[47] &= 0x7f;
	memcpy(expected + 24, packet->bytes + 24, 2);
	memcpy(expected + 50, packet->bytes + 50, 2);
	assert_memory_equal(packet->bytes, expected, packet->len);
	(void)w;
}

static void test_a_large_packet_of_tcp_is_cut_into_segments(void **state)
{
	struct fixture *w = *state;
	const uint32_t frame = 1U << w->arena->frame_shift, room = frame - w->qp[0][0]->tx_headroom;
	struct frame_spec spec = tcp(PEER_PORT, PORT, TH_ACK | TH_PUSH | TH_FIN | 0x80, 1);
	const uint32_t frames = (3 * room - 100 - FRAME_TCP_HEADERS + 999) / 1000;
	struct vma_nic_seg segs[3];
	struct packet *packet;

	SKIP_WITHOUT_CAP(w, VMA_NIC_CAP_TSO);
	packet = malloc(sizeof(*packet));
	fixture_add_flow(w, 1, 0, IPPROTO_TCP, PORT, PEER_PORT, 0);
	spec.len = 3 * room - 100;
	spec.no_checksum = true;
	spec.src_mac = w->mac[0];
	spec.dst_mac = w->mac[1];
	for (int round = 0; round < 20; round++) {
		fixture_make_tso_packet(w, &spec, segs);
		assert_int_equal(vma_nic_tx(w->qp[0][0], segs, 2), 0); /* not whole */
		assert_int_equal(vma_nic_tx(w->qp[0][0], segs, 3), 3);
		vma_nic_kick(w->qp[0][0]);
		fixture_reap_and_free_tx_bufs(w->qp[0][0]);
		for (uint32_t n = 0; n < frames; n++) {
			assert_true(fixture_recv(w->qp[1][0], packet, FIXTURE_TIMEOUT_NS));
			assert_tso_segment(w, packet, spec, n, frames);
		}
	}
	assert_no_packet_arrives(w, 1, 0);
	free(packet);
}

static void test_a_frame_above_one_buffer_arrives_in_several(void **state)
{
	struct fixture *w = *state;
	uint32_t room = 1U << w->arena->frame_shift, len = w->nic[0]->info.mtu + 14, n = 0;
	struct vma_nic_seg segs[16];
	struct packet *packet;
	uint8_t *frame;

	SKIP_WITHOUT_CAP(w, VMA_NIC_CAP_SG);
	if (len <= room) {
		vma_test_skip("the MTU fits one buffer");
	}
	packet = malloc(sizeof(*packet));
	frame = malloc(len);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	struct frame_spec spec = udp(PEER_PORT, PORT, len, 9);
	spec.src_mac = w->mac[0];
	spec.dst_mac = w->mac[1];
	frame_build(frame, &spec);
	for (uint32_t at = 0, part; at < len; at += part, n++) {
		part = len - at < 1500 ? len - at : 1500;
		segs[n] = (struct vma_nic_seg){.buf = fixture_get_tx_buf_waiting(w->qp[0][0]),
		                               .off = w->qp[0][0]->tx_headroom};
		segs[n].len = part;
		segs[n].flags = at + part < len ? VMA_NIC_SEG_MORE : 0;
		memcpy(vma_buf_frame(w->arena, segs[n].buf) + segs[n].off, frame + at, part);
	}
	assert_int_equal(vma_nic_tx(w->qp[0][0], segs, n), n);
	vma_nic_kick(w->qp[0][0]);
	assert_true(fixture_recv(w->qp[1][0], packet, FIXTURE_TIMEOUT_NS));
	assert_packet(w, packet, 0, spec);
	assert_true(packet->buffers > 1);
	free(packet);
	free(frame);
}

static void test_a_frame_above_the_mtu_is_refused(void **state)
{
	struct fixture *w = *state;
	uint32_t len = w->nic[0]->info.mtu + 14 + 1, room = 1U << w->arena->frame_shift;
	struct frame_spec spec = udp(PEER_PORT, PORT, len, 1);

	if (len + w->qp[0][0]->tx_headroom > room) {
		vma_test_skip("the MTU does not fit one buffer");
	}
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);
	assert_int_equal(vma_nic_tx(w->qp[0][0], &seg, 1), 0);
	vma_buf_put(w->arena, seg.buf);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 2));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 2));
}

static void test_a_full_transmit_queue_takes_less_and_recovers(void **state)
{
	struct fixture *w = *state;
	uint32_t taken = 0;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (;; taken++) {
		struct vma_buf *buf;
		assert_true(taken <= w->qp[0][0]->tx_depth);
		if (vma_bufpool_get(atomic_load(&w->qp[0][0]->tx_pool), &buf, 1) == 0)
			break;
		vma_buf_put(w->arena, buf);
		struct frame_spec spec = udp(PEER_PORT, PORT, 80, taken);
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);
		if (vma_nic_tx(w->qp[0][0], &seg, 1) == 0) { /* nothing was kicked or reaped */
			vma_buf_put(w->arena, seg.buf);
			break;
		}
	}
	assert_true(taken > 0);
	while (vma_nic_kick(w->qp[0][0]) == -EAGAIN)
		;
	for (uint32_t i = 0; i < taken; i++)
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 80, i));
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 80, taken));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 80, taken));
}

static void test_each_sent_buffer_is_reaped_once(void **state)
{
	struct fixture *w = *state;
	struct vma_buf *sent[100], *reaped[FIXTURE_BURST];
	unsigned seen[100] = {0}, total = 0;
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	for (uint32_t i = 0; i < 100; i++) {
		struct frame_spec spec = udp(PEER_PORT, PORT, 70, i);
		struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, 0, 0, &spec);
		sent[i] = seg.buf;
		assert_int_equal(vma_nic_tx(w->qp[0][0], &seg, 1), 1);
	}
	vma_nic_kick(w->qp[0][0]);
	while (total < 100 && fixture_now_ns() < give_up) {
		unsigned n = vma_nic_reap_tx(w->qp[0][0], reaped, FIXTURE_BURST);
		for (unsigned i = 0; i < n; i++, total++)
			for (unsigned j = 0; j < 100; j++)
				seen[j] += sent[j] == reaped[i];
		if (n == 0) {
			vma_nic_kick(w->qp[0][0]);
			sched_yield();
		}
	}
	for (unsigned j = 0; j < 100; j++) {
		assert_int_equal(seen[j], 1);
		assert_int_equal(atomic_load(&sent[j]->refs), 1);
		vma_buf_put(w->arena, sent[j]);
	}
	assert_int_equal(vma_nic_reap_tx(w->qp[0][0], reaped, FIXTURE_BURST), 0);
}

static void test_posted_buffers_come_back_as_often_as_posted(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = w->qp[1][0];
	struct vma_buf *held[64], *extra;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	if (!qp->rx_self_fill) { /* full: one more is refused, and stays ours */
		assert_int_equal(vma_bufpool_get(atomic_load(&qp->rx_pool), &extra, 1), 1);
		assert_int_equal(vma_nic_post_rx(qp, &extra, 1), 0);
		vma_buf_put(w->arena, extra);
	}
	for (uint32_t round = 0; round < 40; round++) { /* more frames than the queue has buffers, 64 held at a time */
		unsigned n = 0;
		uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;
		for (uint32_t i = 0; i < 64; i++)
			fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 90, round * 64 + i));
		while (n < 64 && fixture_now_ns() < give_up)
			n += vma_nic_poll_rx(qp, held + n, 64 - n);
		assert_int_equal(n, 64);
		for (unsigned i = 0; i < n; i++) {
			const uint8_t *frame = (const uint8_t *)vma_buf_data(w->arena, held[i]);
			assert_int_equal(frame_number(frame, IPPROTO_UDP), round * 64 + i);
		}
		assert_true(repost_rx_bufs_until_taken(qp, held, n));
	}
}

/* Everything that is there, after what is in `held` already, until there has been nothing for a while. */
static unsigned conformance_poll_until_50ms_quiet(struct vma_nic_qp *qp, struct vma_buf **held, unsigned n)
{
	uint64_t quiet_since = fixture_now_ns();

	while (n < DEPTH && fixture_now_ns() - quiet_since < 50000000) {
		unsigned k = vma_nic_poll_rx(qp, held + n, DEPTH - n);

		if (k > 0)
			quiet_since = fixture_now_ns();
		n += k;
	}
	return n;
}

/* A device queue that is shared may refuse to give so much to one; then the rest has to wait, and not to go. */
static void test_who_posts_late_gets_the_rest_then(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = w->qp[1][0];
	struct vma_buf *held[DEPTH];
	unsigned n = 0;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < DEPTH; i++) {
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 90, i));
		n += vma_nic_poll_rx(qp, held + n, DEPTH - n);
	}
	n = conformance_poll_until_50ms_quiet(qp, held, n);
	assert_in_range(n, qp->rx_quota, DEPTH);
	for (unsigned i = 0; i < n; i++) {
		const uint8_t *frame = (const uint8_t *)vma_buf_data(w->arena, held[i]);

		assert_int_equal(frame_number(frame, IPPROTO_UDP), i);
	}
	assert_true(repost_rx_bufs_until_taken(qp, held, n));
	for (uint32_t i = n; i < DEPTH; i++)
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 90, i));
}

/* ---- flows ---- */

static void test_five_tuple_wins_over_three_tuple(void **state)
{
	struct fixture *w = *state;

	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	fixture_add_flow(w, 1, 1, IPPROTO_UDP, PORT, PEER_PORT, 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 1));
	fixture_send(w, 0, 0, udp(PEER_PORT + 1, PORT, 100, 2));
	fixture_assert_receives(w, 1, 1, udp(PEER_PORT, PORT, 100, 1));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT + 1, PORT, 100, 2));
	assert_no_packet_arrives(w, 1, 1);
}

static void test_a_deleted_flow_delivers_no_more(void **state)
{
	struct fixture *w = *state;
	struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, PORT, 0, 0);

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 1));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 1));
	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_flow_del(w->qp[1][0], &rule.key), 0);
	assert_int_equal(vma_nic_flow_del(w->qp[1][0], &rule.key), -ENOENT);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 2));
	assert_no_packet_arrives(w, 1, 0);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 3));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 3));
}

static void test_a_flow_is_had_once(void **state)
{
	struct fixture *w = *state;
	struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, PORT, 0, 0);

	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), 0);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &rule), -EEXIST);
	assert_int_equal(fixture_try_add_flow(w, 1, 1, &rule), -EADDRINUSE);
	fixture_qp_destroy(w, 1, 0);
	assert_int_equal(fixture_try_add_flow(w, 1, 1, &rule), 0);
}

static struct {
	unsigned forks;
	uint64_t longest_ns;
} forker;

static void fork_at_descriptor(int fd, bool on)
{
	const uint64_t before_ns = fixture_now_ns();
	const pid_t pid = fork();

	(void)fd, (void)on;
	if (pid == 0)
		_exit(0);
	if (fixture_now_ns() - before_ns > forker.longest_ns)
		forker.longest_ns = fixture_now_ns() - before_ns;
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	forker.forks++;
}

/* As a signal handler may. Its own thread has the nic's lock: the fork cannot wait for it, and does not try for long. */
static void test_a_fork_in_the_middle_of_a_call_does_not_wait_for_that_call(void **state)
{
	struct fixture *w = *state;

	forker.forks = 0;
	forker.longest_ns = 0;
	vma_nic_fd_hook = fork_at_descriptor;
	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	vma_nic_fd_hook = NULL;
	if (forker.forks == 0)
		vma_test_skip("the device has no descriptors of its own");
	assert_in_range(forker.longest_ns, 0, 2000000000);
}

/* What is in the queue at this moment, from `next` on. */
static uint32_t drain_numbered_frames(struct fixture *w, int i, uint32_t next)
{
	struct packet *packet = malloc(sizeof(*packet));

	while (fixture_poll_one_packet(w->qp[1][i], packet))
		assert_packet(w, packet, 0, udp(PEER_PORT, PORT, 100, next++));
	free(packet);
	return next;
}

static void test_a_flow_moves_between_queue_pairs_and_none_of_its_packets_is_lost(void **state)
{
	struct fixture *w = *state;
	struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, PORT, 0, 0);
	uint32_t number = 0, received = 0;

	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_flow_move(w->qp[1][1], w->qp[1][0], &rule.key), -ENOENT);
	assert_int_equal(vma_nic_flow_move(w->qp[1][0], w->qp[1][0], &rule.key), -EINVAL);
	for (int round = 0; round < 6; round++) {
		const int from = round % 2;

		for (int i = 0; i < 20; i++, number++)
			fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, number));
		fixture_assert_receives(w, 1, from, udp(PEER_PORT, PORT, 100, received++));
		fixture_enter_netns(w, 1);
		assert_int_equal(vma_nic_flow_move(w->qp[1][from], w->qp[1][1 - from], &rule.key), 0);
		received = drain_numbered_frames(w, from, received);
		/* What lies in a wire's lane is steered when this end looks for it. */
		for (; received < number; received++)
			fixture_assert_receives(w, 1, 1 - from, udp(PEER_PORT, PORT, 100, received));
		assert_no_packet_arrives(w, 1, from);
	}
	assert_int_equal(vma_nic_flow_del(w->qp[1][1], &rule.key), -ENOENT);
	assert_int_equal(vma_nic_flow_del(w->qp[1][0], &rule.key), 0);
}

static void test_a_connection_moves_and_its_listener_does_not(void **state)
{
	struct fixture *w = *state;
	struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_TCP, PORT, PEER_PORT, 0),
	                     listener = make_flow_rule(1, IPPROTO_TCP, PORT, 0, VMA_FLOW_LISTENER);

	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	fixture_add_flow(w, 1, 0, IPPROTO_TCP, PORT, 0, VMA_FLOW_LISTENER);
	fixture_add_flow(w, 1, 0, IPPROTO_TCP, PORT, PEER_PORT, 0);
	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_flow_move(w->qp[1][0], w->qp[1][1], &listener.key), -EINVAL);
	for (uint32_t to = 1, number = 0; number < 4; number++, to = 1 - to) {
		fixture_enter_netns(w, 1);
		assert_int_equal(vma_nic_flow_move(w->qp[1][1 - to], w->qp[1][to], &rule.key), 0);
		fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x10, number));
		fixture_assert_receives(w, 1, (int)to, tcp(PEER_PORT, PORT, 0x10, number));
	}
	fixture_enter_netns(w, 1);
	assert_int_equal(vma_nic_flow_del(w->qp[1][0], &rule.key), 0);
	assert_int_equal(vma_nic_flow_del(w->qp[1][0], &listener.key), 0);
}

static void test_what_was_sent_is_idle_when_the_other_end_has_it(void **state)
{
	struct fixture *w = *state;
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	assert_true(vma_nic_tx_is_idle(w->qp[0][0]));
	for (uint32_t i = 0; i < 20; i++)
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, i));
	for (uint32_t i = 0; i < 20; i++)
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, i));
	while (!vma_nic_tx_is_idle(w->qp[0][0])) {
		fixture_reap_and_free_tx_bufs(w->qp[0][0]);
		assert_true(fixture_now_ns() < give_up);
		sched_yield();
	}
}

static void test_a_bad_flow_is_refused(void **state)
{
	struct fixture *w = *state;
	struct vma_flow_rule good = make_flow_rule(1, IPPROTO_UDP, PORT, PEER_PORT, 0), bad;

#define BAD(change, error)                                                                                             \
	do {                                                                                                           \
		bad = good;                                                                                            \
		change;                                                                                                \
		assert_int_equal(fixture_try_add_flow(w, 1, 0, &bad), error);                                          \
	} while (0)
	BAD(bad.key.family = AF_INET6, -EAFNOSUPPORT);
	BAD(bad.key.family = 99, -EINVAL);
	BAD(bad.key.proto = IPPROTO_ICMP, -EINVAL);
	BAD(bad.key.local_port_be = 0, -EINVAL);
	BAD(memset(bad.key.local, 0, 16), -EINVAL);
	BAD(bad.key.local[4] = 1, -EINVAL);
	BAD(bad.key.peer[15] = 1, -EINVAL);
	BAD(bad.key.peer_port_be = 0, -EINVAL);
	BAD(memset(bad.key.peer, 0, 16), -EINVAL);
	BAD(bad.key.vlan = 4095, -EINVAL);
	BAD(bad.flags = VMA_FLOW_LISTENER, -EINVAL);                                /* not TCP */
	BAD((bad.flags = VMA_FLOW_LISTENER, bad.key.proto = IPPROTO_TCP), -EINVAL); /* of one peer */
	BAD(bad.flags = VMA_FLOW_RING_ONLY, -EINVAL);                               /* that is no rule */
	BAD(bad.flags = 1U << 31, -EINVAL);
	assert_int_equal(fixture_try_add_flow(w, 1, 0, &good), 0);
}

static void test_what_nobody_wants_is_not_delivered(void **state)
{
	struct fixture *w = *state;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, PEER_PORT, 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT + 1, 100, 1));
	fixture_send(w, 0, 0, udp(PEER_PORT + 1, PORT, 100, 2));
	fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x10, 3));
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 4));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 4));
	assert_no_packet_arrives(w, 1, 0);
}

static void test_a_listener_gets_every_segment_that_no_connection_takes(void **state)
{
	static const uint8_t flags[] = {0x02, 0x10, 0x12,
	                                0x18, 0x11, 0x04}; /* SYN, ACK, SYN ACK, PSH ACK, FIN ACK, RST */
	struct fixture *w = *state;

	fixture_create_qp_with_posted_rx(w, 1, 1, DEPTH);
	fixture_add_flow(w, 1, 0, IPPROTO_TCP, PORT, 0, VMA_FLOW_LISTENER);
	fixture_add_flow(w, 1, 1, IPPROTO_TCP, PORT, PEER_PORT, 0);
	for (uint32_t i = 0; i < sizeof(flags); i++) {
		fixture_send(w, 0, 0, tcp(PEER_PORT + 1, PORT, flags[i], i));
		fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, flags[i], 100 + i));
		fixture_assert_receives(w, 1, 0, tcp(PEER_PORT + 1, PORT, flags[i], i));
		fixture_assert_receives(w, 1, 1, tcp(PEER_PORT, PORT, flags[i], 100 + i));
	}
	fixture_send(w, 0, 0, tcp(PEER_PORT + 1, PORT + 1, 0x02, 50)); /* another port */
	fixture_send(w, 0, 0, udp(PEER_PORT + 1, PORT, 100, 51));
	assert_no_packet_arrives(w, 1, 0);
	assert_no_packet_arrives(w, 1, 1);
}

/* What a listener has accepted gets a rule of its own some time later, and keeps it when the listener goes. */
static void test_a_connection_of_a_listener_gets_a_rule_of_its_own_later(void **state)
{
	struct fixture *w = *state;

	fixture_add_flow(w, 1, 0, IPPROTO_TCP, PORT, 0, VMA_FLOW_LISTENER);
	fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x02, 1));
	fixture_assert_receives(w, 1, 0, tcp(PEER_PORT, PORT, 0x02, 1));
	fixture_add_flow(w, 1, 0, IPPROTO_TCP, PORT, PEER_PORT, 0);
	fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x10, 2));
	fixture_assert_receives(w, 1, 0, tcp(PEER_PORT, PORT, 0x10, 2));
	fixture_delete_flow(w, 1, 0, IPPROTO_TCP, PORT, 0);
	fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x18, 3));
	fixture_send(w, 0, 0, tcp(PEER_PORT + 1, PORT, 0x02, 4));
	fixture_assert_receives(w, 1, 0, tcp(PEER_PORT, PORT, 0x18, 3));
	assert_no_packet_arrives(w, 1, 0);
	fixture_delete_flow(w, 1, 0, IPPROTO_TCP, PORT, PEER_PORT);
	fixture_send(w, 0, 0, tcp(PEER_PORT, PORT, 0x18, 5));
	assert_no_packet_arrives(w, 1, 0);
}

/* ---- sleeping ---- */

/* On a real interface the kernel's own frames may be there already. */
static void arm_after_draining_foreign_packets(struct vma_nic_qp *qp)
{
	while (vma_nic_arm(qp) != 0) {
		struct packet *packet = malloc(sizeof(*packet));
		assert_false(fixture_poll_one_packet(qp, packet));
		free(packet);
	}
}

static void test_arm_makes_the_fd_readable_at_the_next_arrival(void **state)
{
	struct fixture *w = *state;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < 5; i++) {
		arm_after_draining_foreign_packets(w->qp[1][0]);
		assert_false(wait_fd_readable(vma_nic_fd(w->qp[1][0]), 0));
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, i));
		assert_true(wait_fd_readable(vma_nic_fd(w->qp[1][0]), 3000));
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, i));
	}
}

/* Silence is what it is for where the kernel pays for reports; elsewhere an fd may report all the same. */
static void test_unarmed_fd_is_armed_again_by_the_next_arm(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = w->qp[1][0];

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < 3; i++) {
		arm_after_draining_foreign_packets(qp);
		vma_nic_unarm(qp);
		vma_nic_unarm(qp);
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 2 * i));
		assert_false(w->unarms && wait_fd_readable(vma_nic_fd(qp), 50));
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 2 * i));
		arm_after_draining_foreign_packets(qp);
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 2 * i + 1));
		assert_true(wait_fd_readable(vma_nic_fd(qp), 3000));
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 2 * i + 1));
	}
}

static void test_arm_says_when_something_is_already_there(void **state)
{
	struct fixture *w = *state;
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	assert_int_equal(vma_nic_arm(w->qp[1][0]), 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 1));
	while (vma_nic_arm(w->qp[1][0]) == 0)
		assert_true(fixture_now_ns() < give_up);
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 1));
	assert_int_equal(vma_nic_arm(w->qp[1][0]), 0);
	assert_false(wait_fd_readable(vma_nic_fd(w->qp[1][0]), 0));
}

/* A backend may not know; but while it says so there is nothing, and it never goes on saying so when there is. */
static void test_quiet_is_said_of_an_empty_queue_only(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = w->qp[1][0];
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < 5; i++) {
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, i));
		while (vma_nic_rx_is_empty(qp))
			assert_true(fixture_now_ns() < give_up);
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, i));
	}
	if (qp->ops->rx_is_empty != NULL && vma_nic_info(w->nic[1])->device_queues == 1)
		assert_true(vma_nic_rx_is_empty(qp));
}

/* Every backend knows, if its receive half asks: also again and again, and the poll finds all of it. */
static void test_whether_a_packet_has_come_is_known_to_the_receive_half(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = w->qp[1][0];
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < 5; i++) {
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 2 * i));
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 2 * i + 1));
		while (!vma_nic_rx_has_packet(qp))
			assert_true(fixture_now_ns() < give_up);
		assert_true(vma_nic_rx_has_packet(qp));
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 2 * i));
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 2 * i + 1));
	}
	if (vma_nic_info(w->nic[1])->device_queues == 1)
		assert_false(vma_nic_rx_has_packet(qp));
}

/* Also of frames that nobody has polled: each next one is told of, and all of them are counted. */
static void test_each_next_arrival_is_told_of_beside_what_waits(void **state)
{
	struct fixture *w = *state;
	struct vma_nic_qp *qp = w->qp[1][0];
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	if (!w->counts) {
		assert_int_equal(vma_nic_rx_waiting_count(qp), -EOPNOTSUPP);
		vma_test_skip("this backend does not count");
	}
	for (int i = 0; i < 5; i++) {
		const int armed = vma_nic_arm_for_next_packet(qp);

		assert_int_equal(armed, w->arms_next ? i : -EOPNOTSUPP);
		assert_false(w->arms_next && wait_fd_readable(vma_nic_fd(qp), 0));
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, (uint32_t)i));
		assert_true(!w->arms_next || wait_fd_readable(vma_nic_fd(qp), 3000));
		while (vma_nic_rx_waiting_count(qp) != i + 1)
			assert_true(fixture_now_ns() < give_up);
	}
	assert_int_equal(vma_nic_arm(qp), 1);
	for (uint32_t i = 0; i < 5; i++)
		fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, i));
	assert_int_equal(vma_nic_rx_waiting_count(qp), 0);
	assert_int_equal(vma_nic_arm(qp), 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 5));
	assert_true(wait_fd_readable(vma_nic_fd(qp), 3000));
	fixture_assert_receives(w, 1, 0, udp(PEER_PORT, PORT, 100, 5));
}

struct waker {
	struct fixture *w;
	_Atomic uint32_t received;
};

static void *receive_200_frames_by_arm_and_wait(void *arg)
{
	struct waker *waker = arg;
	struct vma_nic_qp *qp = waker->w->qp[1][0];
	struct packet *packet = malloc(sizeof(*packet));

	while (atomic_load(&waker->received) < 200) {
		if (fixture_poll_one_packet(qp, packet))
			atomic_fetch_add(&waker->received, 1);
		else if (vma_nic_arm(qp) == 0 && !wait_fd_readable(vma_nic_fd(qp), 3000))
			break;
	}
	free(packet);
	return NULL;
}

static void test_a_sleeping_thread_misses_no_frame(void **state)
{
	struct fixture *w = *state;
	struct waker waker = {.w = w};
	pthread_t thread;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	assert_int_equal(pthread_create(&thread, NULL, receive_200_frames_by_arm_and_wait, &waker), 0);
	for (uint32_t i = 0; i < 200; i++) {
		uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, i));
		while (atomic_load(&waker.received) <= i && fixture_now_ns() < give_up)
			sched_yield();
	}
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&waker.received), 200);
}

/* ---- four queue pairs on one device queue, each in its own thread ---- */

#define EXCHANGES 2000
#define WINDOW 16

struct player {
	struct fixture *w;
	int end, i;
	uint32_t sent, received;
	bool bad;
};

/* Each of end 0's threads keeps up to WINDOW numbered frames under way; end 1's thread answers each. */
static void *conformance_exchange_thread(void *arg)
{
	struct player *p = arg;
	struct fixture *w = p->w;
	uint16_t port = (uint16_t)(PORT + p->i);
	uint64_t give_up = fixture_now_ns() + 4 * FIXTURE_TIMEOUT_NS;
	struct packet *packet = malloc(sizeof(*packet));

	while (p->received < EXCHANGES && fixture_now_ns() < give_up && !p->bad) {
		if (p->end == 0 && p->sent < EXCHANGES && p->sent - p->received < WINDOW) {
			fixture_send(w, 0, p->i, udp(port, port, 64 + p->sent % 1000, p->sent));
			p->sent++;
		}
		if (!fixture_poll_one_packet(w->qp[p->end][p->i], packet)) {
			sched_yield();
			continue;
		}
		p->bad = frame_number(packet->bytes, IPPROTO_UDP) != p->received ||
		         packet->len != 64 + p->received % 1000 || packet->bytes[37] != (port & 0xff);
		if (p->end == 1)
			fixture_send(w, 1, p->i, udp(port, port, packet->len, p->received));
		p->received++;
	}
	free(packet);
	return NULL;
}

static bool player_received_all(const struct player *p)
{
	if (!p->bad && p->received == EXCHANGES)
		return true;
	print_message("end %d, queue pair %d: %u sent, %u received%s\n", p->end, p->i,
	              p->end == 0 ? p->sent : p->received, p->received, p->bad ? ", the last one not as sent" : "");
	return false;
}

static void test_four_queue_pairs_on_one_device_queue_each_in_its_own_thread(void **state)
{
	struct fixture *w = *state;
	struct player players[2][FIXTURE_QPS];
	pthread_t threads[2][FIXTURE_QPS];
	int unlucky = 0;

	for (int i = 0; i < FIXTURE_QPS; i++)
		for (int end = 0; end < 2; end++) {
			if (i > 0)
				fixture_create_qp_with_posted_rx(w, end, i, DEPTH);
			fixture_add_flow(w, end, i, IPPROTO_UDP, (uint16_t)(PORT + i), (uint16_t)(PORT + i), 0);
		}
	for (int i = 0; i < FIXTURE_QPS; i++)
		for (int end = 0; end < 2; end++) {
			players[end][i] = (struct player){.w = w, .end = end, .i = i};
			assert_int_equal(
			        pthread_create(&threads[end][i], NULL, conformance_exchange_thread, &players[end][i]),
			        0);
		}
	for (int i = 0; i < FIXTURE_QPS; i++)
		for (int end = 0; end < 2; end++)
			pthread_join(threads[end][i], NULL);
	for (int i = 0; i < FIXTURE_QPS; i++)
		for (int end = 0; end < 2; end++)
			unlucky += !player_received_all(&players[end][i]);
	assert_int_equal(unlucky, 0);
}

/* ---- ending ---- */

static void test_a_queue_pair_ends_while_its_buffers_are_held(void **state)
{
	struct fixture *w = *state;
	struct vma_buf *held[4];
	unsigned n = 0;
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	for (uint32_t i = 0; i < 8; i++)
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, i));
	while (n < 4 && fixture_now_ns() < give_up)
		n += vma_nic_poll_rx(w->qp[1][0], held + n, 4 - n);
	assert_int_equal(n, 4);
	fixture_qp_destroy(w, 1, 0);
	for (uint32_t i = 0; i < 4; i++) {
		const uint8_t *frame = (const uint8_t *)vma_buf_data(w->arena, held[i]);
		assert_int_equal(frame_number(frame, IPPROTO_UDP), i);
		vma_buf_put(w->arena, held[i]);
	}
	fixture_create_qp_with_posted_rx(w, 1, 0, DEPTH);
	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	fixture_send(w, 0, 0, udp(PEER_PORT, PORT, 100, 77));
	struct packet *packet = malloc(sizeof(*packet));
	do /* frames 4 to 7 may have been taken up by the device, or only now */
		assert_true(fixture_recv(w->qp[1][0], packet, FIXTURE_TIMEOUT_NS));
	while (frame_number(packet->bytes, IPPROTO_UDP) != 77);
	free(packet);
}

static const struct conformance_backend *current_fixture_kind; /* of the case that runs: reopening needs the specs */

static void test_a_nic_closes_and_opens_again(void **state)
{
	struct fixture *w = *state;

	if (current_fixture_kind->spec[0] == NULL) {
		vma_test_skip("a pair has no name to open again");
	}
	for (int round = 0; round < 3; round++) {
		int end = round % 2;
		fixture_nic_close(w, end);
		usleep(1000); /* the other end may notice, or not */
		uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;
		struct vma_nic_attr attr = {.arena = w->arena, .owner = current_fixture_kind->owner};
		fixture_enter_netns(w, end);
		assert_int_equal(vma_nic_open(current_fixture_kind->spec[end], &attr, &w->nic[end]), 0);
		fixture_create_qp_with_posted_rx(w, end, 0, DEPTH);
		fixture_add_flow(w, end, 0, IPPROTO_UDP, PORT, 0, 0);
		struct packet *packet = malloc(sizeof(*packet));
		do { /* until there is a link again, frames are lost */
			fixture_send(w, 1 - end, 0, udp(PEER_PORT, PORT, 100, 5));
			assert_true(fixture_now_ns() < give_up);
		} while (!fixture_recv(w->qp[end][0], packet, 5000000));
		assert_packet(w, packet, 1 - end, udp(PEER_PORT, PORT, 100, 5));
		free(packet);
	}
}

/* ---- back to the kernel ---- */

/* With the flow in, so that it is not in the flow's way. */
static int open_bound_kernel_udp_socket(struct fixture *w, int end)
{
	const struct timeval soon = {.tv_sec = FIXTURE_TIMEOUT_NS / 1000000000};
	const struct sockaddr_in name = {
	        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = test_ip(end)};
	int fd;

	fixture_enter_netns(w, end);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)), 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
	return fd;
}

static void test_a_device_that_takes_more_than_it_should_gives_the_kernel_its_packets(void **state)
{
	enum { PACKETS = 40, BYTES = 300 };
	struct fixture *w = *state;
	const bool can = w->nic[1]->info.caps & VMA_NIC_CAP_TO_KERNEL;
	struct vma_nic_qp *qp = w->qp[1][0];
	uint8_t expected[BYTES], got[BYTES];
	struct vma_buf *buf;
	int fd;

	fixture_add_flow(w, 1, 0, IPPROTO_UDP, PORT, 0, 0);
	if (!can) {
		buf = fixture_get_tx_buf_waiting(qp);
		assert_int_equal(vma_nic_pass_packet_to_kernel(qp, buf), -EOPNOTSUPP);
		vma_buf_put(w->arena, buf);
		return;
	}
	fd = open_bound_kernel_udp_socket(w, 1);
	for (uint32_t i = 0; i < PACKETS; i++)
		fixture_send(w, 0, 0, udp(PEER_PORT, PORT, BYTES, i));
	for (uint32_t i = 0; i < PACKETS; i++) {
		const uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

		while (vma_nic_poll_rx(qp, &buf, 1) == 0)
			assert_true(fixture_now_ns() < give_up);
		assert_int_equal(vma_nic_pass_packet_to_kernel(qp, buf), 0);
		assert_true(repost_rx_bufs_until_taken(qp, &buf, 1));
	}
	for (uint32_t i = 0; i < PACKETS; i++) {
		struct frame_spec spec = udp(PEER_PORT, PORT, BYTES, i);

		spec.src_mac = w->mac[0];
		spec.dst_mac = w->mac[1];
		frame_build(expected, &spec);
		assert_int_equal(recv(fd, got, sizeof(got), 0), BYTES - FRAME_UDP_HEADERS);
		assert_memory_equal(got, expected + FRAME_UDP_HEADERS, BYTES - FRAME_UDP_HEADERS);
	}
	close(fd);
}

/* ---- every case in every fixture ---- */

static int setup_with_fixture_kind(void **state)
{
	current_fixture_kind = *state;
	return setup(state);
}

static const struct {
	const char *name;
	void (*run)(void **state);
} cases[] = {
#define CASE(f)                                                                                                        \
	{                                                                                                              \
#f, f                                                                                                  \
	}
        CASE(test_every_byte_arrives),
        CASE(test_order_is_kept),
        CASE(test_checksum_is_filled_in_and_checked),
        CASE(test_segments_become_one_packet),
        CASE(test_a_frame_without_the_headroom_does_not_stop_those_behind_it),
        CASE(test_a_large_packet_of_tcp_is_cut_into_segments),
        CASE(test_a_frame_above_one_buffer_arrives_in_several),
        CASE(test_a_frame_above_the_mtu_is_refused),
        CASE(test_a_full_transmit_queue_takes_less_and_recovers),
        CASE(test_each_sent_buffer_is_reaped_once),
        CASE(test_posted_buffers_come_back_as_often_as_posted),
        CASE(test_who_posts_late_gets_the_rest_then),
        CASE(test_five_tuple_wins_over_three_tuple),
        CASE(test_a_deleted_flow_delivers_no_more),
        CASE(test_a_flow_is_had_once),
        CASE(test_a_fork_in_the_middle_of_a_call_does_not_wait_for_that_call),
        CASE(test_a_flow_moves_between_queue_pairs_and_none_of_its_packets_is_lost),
        CASE(test_a_connection_moves_and_its_listener_does_not),
        CASE(test_what_was_sent_is_idle_when_the_other_end_has_it),
        CASE(test_a_bad_flow_is_refused),
        CASE(test_what_nobody_wants_is_not_delivered),
        CASE(test_a_listener_gets_every_segment_that_no_connection_takes),
        CASE(test_a_connection_of_a_listener_gets_a_rule_of_its_own_later),
        CASE(test_arm_makes_the_fd_readable_at_the_next_arrival),
        CASE(test_unarmed_fd_is_armed_again_by_the_next_arm),
        CASE(test_arm_says_when_something_is_already_there),
        CASE(test_quiet_is_said_of_an_empty_queue_only),
        CASE(test_whether_a_packet_has_come_is_known_to_the_receive_half),
        CASE(test_each_next_arrival_is_told_of_beside_what_waits),
        CASE(test_a_sleeping_thread_misses_no_frame),
        CASE(test_four_queue_pairs_on_one_device_queue_each_in_its_own_thread),
        CASE(test_a_queue_pair_ends_while_its_buffers_are_held),
        CASE(test_a_device_that_takes_more_than_it_should_gives_the_kernel_its_packets),
        CASE(test_a_nic_closes_and_opens_again),
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

/* Which fixtures there are: those of the environment, or the wire's. */
static size_t conformance_backends_from_environment(void)
{
	const char *env = getenv("VMA_CONFORMANCE"), *env_netns = getenv("VMA_CONFORMANCE_NETNS");
	const char *owner = getenv("VMA_CONFORMANCE_OWNER");

	if (env == NULL || *env == '\0') {
		snprintf(file_spec, sizeof(file_spec), "wire:/tmp/vma-conformance.%d", getpid());
		conformance_backends[2].spec[0] = conformance_backends[2].spec[1] = file_spec;
		return 3;
	}
	if (sscanf(env, "%255s %255s", end_specs[0], end_specs[1]) != 2) {
		fprintf(stderr, "VMA_CONFORMANCE: two specs are wanted\n");
		exit(2);
	}
	conformance_backends[0] =
	        (struct conformance_backend){.name = end_specs[0], .spec = {end_specs[0], end_specs[1]}};
	if (owner != NULL && strcmp(owner, "vmad") == 0)
		conformance_backends[0].owner = VMA_NIC_OWNER_VMAD;
	if (env_netns != NULL && sscanf(env_netns, "%255s %255s", netns[0], netns[1]) == 2)
		conformance_backends[0].netns[0] = netns[0], conformance_backends[0].netns[1] = netns[1];
	return 1;
}

int main(void)
{
	size_t nmakes = conformance_backends_from_environment(), n = 0;
	struct CMUnitTest tests[CASES * 4];
	static char names[CASES * 4][160];

	vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_ERROR});
	for (size_t m = 0; m < nmakes; m++)
		for (size_t c = 0; c < CASES; c++, n++) {
			snprintf(names[n], sizeof(names[n]), "%s on %s", cases[c].name, conformance_backends[m].name);
			tests[n] = (struct CMUnitTest){.name = names[n],
			                               .test_func = cases[c].run,
			                               .setup_func = setup_with_fixture_kind,
			                               .teardown_func = teardown,
			                               .initial_state = &conformance_backends[m]};
		}
	vma_test_set_filter_from_env();
	return _cmocka_run_group_tests("conformance", tests, n, NULL, NULL);
}
