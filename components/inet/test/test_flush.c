/* The flush of sends: what a thread has left for a shared kick leaves, if its ring is still there. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include <vma/inet.h>
#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/sock_os.h>
#include <vma/test.h>

#include "../../sock/test/small_engine.h"

enum { IFINDEX = 4711, PORT = 7000 };

static struct vma_nic *end[2];
static struct vma_ring *peer;
static struct vma_ring_ctx *ring_ctx;
static struct vma_flow peer_flow;
static unsigned frames; /* that have come to the peer */
static struct vma_device device;
static struct {
	_Alignas(64) uint8_t bytes[256];
} device_priv; /* what sock keeps of a device */

static bool sink_count_frame(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)flow, (void)info;
	frames++;
	vma_buf_put(vma_engine_get_or_start()->arena, packet);
	return true;
}

/* How many frames have come since the last call. */
static unsigned peer_receive(void)
{
	unsigned before = frames;

	while (vma_ring_progress(peer) > 0)
		;
	return frames - before;
}

/* An empty datagram, for a kick to come. */
static void send_later(void)
{
	struct vma_pkt_udp_attr attr = {.src_ip = {10, 0, 0, 1},
	                                .dst_ip = {10, 0, 0, 2},
	                                .src_port_be = htons(PORT),
	                                .dst_port_be = htons(PORT),
	                                .ttl = 1};
	struct vma_buf *buf = vma_ring_tx_buf(ring_ctx->ring);
	struct vma_nic_seg seg = {.buf = buf};
	struct vma_pkt_udp pkt;

	assert_non_null(buf);
	vma_pkt_udp_init(&pkt, &attr);
	seg.off = buf->data_off;
	seg.len = vma_pkt_udp_write(&pkt, (uint8_t *)vma_buf_data(vma_engine_get_or_start()->arena, buf), 0,
	                            VMA_PKT_CSUM_FULL);
	assert_int_equal(vma_ring_send(ring_ctx->ring, &seg, 1, VMA_RING_SEND_LATER), 1);
	vma_thread_self()->tx_ring = ring_ctx->ring;
}

static void test_what_was_left_leaves_by_one_kick(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	for (int i = 0; i < 5; i++)
		send_later();
	assert_int_equal(peer_receive(), 0);
	vma_inet_flush_sends(self);
	assert_int_equal(peer_receive(), 5);
	assert_null(self->tx_ring);
	vma_leave(self);
}

static void test_row_and_queue_begin_anew(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	self->tx_burst = 4;
	vma_inet_flush_sends(self);
	assert_int_equal(self->tx_burst, 0);
	self->tx_ring = ring_ctx->ring;
	self->tx_batched = 3;
	vma_inet_flush_sends(self);
	assert_int_equal(self->tx_batched, 0);
	/* The flag was given back. */
	assert_true(vma_ring_try_acquire(ring_ctx->ring));
	vma_ring_release(ring_ctx->ring);
	vma_leave(self);
}

static void test_ring_that_has_gone_is_not_touched(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	self->tx_ring = (struct vma_ring *)64; /* nobody's memory */
	self->tx_batched = 1;
	vma_inet_flush_sends(self);
	assert_null(self->tx_ring);
	assert_int_equal(self->tx_batched, 0);
	vma_leave(self);
}

static int setup_wire_pair_and_peer_flow(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_ring_attr attr = {.name = "peer", .rx_wre = 512, .tx_wre = 512, .thread_mode = VMA_THREAD_SPIN};
	const struct vma_ring_requester where = {.socket_id = 1};
	struct vma_wire_pair_attr pair = {.arena = {engine->arena, engine->arena}};

	(void)state;
	if (vma_wire_create_pair(&pair, end) != 0)
		return -1;
	device = (struct vma_device){.ifindex = IFINDEX, .nic = end[0], .engine = engine, .priv = (void *)&device_priv};
	attr.nic = end[1];
	attr.spill_pool = engine->spill;
	if (vma_ring_ctx_find_or_create(&device, VMA_RING_CTX_RX, &where, &ring_ctx) != 0 ||
	    vma_ring_create(&attr, &peer) != 0)
		return -1;
	peer_flow = (struct vma_flow){
	        .sink = sink_count_frame,
	        .key = {.family = AF_INET, .proto = IPPROTO_UDP, .local = {10, 0, 0, 2}, .local_port_be = htons(PORT)}};
	return vma_ring_attach_flow(peer, &peer_flow);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_what_was_left_leaves_by_one_kick),
	        cmocka_unit_test(test_row_and_queue_begin_anew),
	        cmocka_unit_test(test_ring_that_has_gone_is_not_touched),
	};

	if (start_engine_with_few_buffers("8192", "512") == NULL)
		return 1;
	vma_test_set_filter_from_env();
	return cmocka_run_group_tests_name("inet", tests, setup_wire_pair_and_peer_flow, NULL);
}
