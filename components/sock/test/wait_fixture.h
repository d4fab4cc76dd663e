/*
 * wait_fixture - things to wait for, waits for them, and a ring context over a link in memory that brings them.
 *
 *   peer ring ── fixture_send(i) ──> ring_ctx ── sink ──> things[i].count, wake
 *
 * While hold_internal_thread() holds the internal thread nobody but the test's own threads drives the ring context:
 * what they do not wake for stays where it is.
 */
#ifndef VMA_SOCK_TEST_WAIT_FIXTURE_H
#define VMA_SOCK_TEST_WAIT_FIXTURE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/test.h>

#include "../engine/engine.h"
#include "../thread/thread.h"
#include "internal_thread.h"
#include "small_engine.h"

#define FIXTURE_PORT 7000
#define FIXTURE_THINGS 16
#define MSEC 1000000ULL

/* A number of things of one kind; who waits takes one. */
struct thing {
	struct vma_waitq q;
	_Atomic unsigned count;
	struct vma_flow flow;
};

struct thing_wait {
	struct vma_wait wait; /* first */
	struct thing *thing;
	struct vma_spin spin;
	_Atomic uint64_t rings;
	_Atomic unsigned looks, asks, abandoned;
	int os;                                   /* what poll_os says */
	void (*on_look)(struct thing_wait *self); /* NULL: nothing else to do */
	void (*before_queue)(struct thing_wait *self);
};

static inline struct thing_wait *thing_wait_of(struct vma_wait *wait)
{
	return (struct thing_wait *)wait;
}
static int fixture_check_ready_and_call_on_look(struct vma_wait *wait)
{
	struct thing_wait *self = thing_wait_of(wait);
	int rc = atomic_load(&self->thing->count) > 0;

	atomic_fetch_add(&self->looks, 1);
	if (self->on_look != NULL)
		self->on_look(self);
	return rc;
}
static int fake_ask_os_count_and_answer(struct vma_wait *wait)
{
	atomic_fetch_add(&thing_wait_of(wait)->asks, 1);
	return thing_wait_of(wait)->os;
}
static uint64_t fixture_ring_bits_of_wait(struct vma_wait *wait)
{
	return atomic_load_explicit(&thing_wait_of(wait)->rings, memory_order_relaxed);
}
static void fixture_enter_or_leave_waitq(struct vma_wait *wait, bool on)
{
	struct thing_wait *self = thing_wait_of(wait);

	if (on && self->before_queue != NULL)
		self->before_queue(self);
	if (on)
		vma_waitq_add(&self->thing->q, wait->self);
	else
		vma_waitq_remove(&self->thing->q, wait->self);
}
static void fixture_count_abandoned(struct vma_wait *wait)
{
	atomic_fetch_add(&thing_wait_of(wait)->abandoned, 1);
}
static const struct vma_wait_ops fixture_ops = {
        .ready = fixture_check_ready_and_call_on_look,
        .poll_os = fake_ask_os_count_and_answer,
        .rings = fixture_ring_bits_of_wait,
        .set_queued = fixture_enter_or_leave_waitq,
        .abandon = fixture_count_abandoned,
};

/* One that sleeps at once; spin_loops and spin_nsec may be changed. timeout_ns: UINT64_MAX for ever. */
static inline void thing_wait_init(struct thing_wait *self, struct thing *thing, uint64_t rings, uint64_t timeout_ns)
{
	memset(self, 0, sizeof(*self));
	self->thing = thing;
	self->rings = rings;
	self->wait = (struct vma_wait){.ops = &fixture_ops, .self = vma_thread_self(), .spin = &self->spin};
	self->wait.deadline_ns = timeout_ns == UINT64_MAX ? UINT64_MAX : vma_now_ns() + timeout_ns;
	self->wait.spin_nsec = -1;
}

/* As a call does it. */
static inline int thing_wait_run(struct thing_wait *self)
{
	struct vma_thread *thread = vma_enter();
	int rc = vma_wait(&self->wait);

	vma_leave(thread);
	return rc;
}

static inline bool thing_try_take_one(struct thing *thing)
{
	unsigned count = atomic_load(&thing->count);

	while (count > 0)
		if (atomic_compare_exchange_weak(&thing->count, &count, count - 1))
			return true;
	return false;
}

static inline void thing_add_one_and_wake(struct thing *thing)
{
	struct vma_thread *thread = vma_enter();

	atomic_fetch_add(&thing->count, 1);
	vma_waitq_wake(&thing->q, false);
	vma_leave(thread);
}

static inline uint64_t fixture_thread_cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Lets the process sleep until something has been so once, or too much time has passed. */
#define fixture_wait_until(what)                                                                                       \
	do {                                                                                                           \
		bool is_so = false;                                                                                    \
		for (int ms = 0; ms < 5000 && !(is_so = (what)); ms++)                                                 \
			usleep(1000);                                                                                  \
		assert_true(is_so);                                                                                    \
	} while (0)

/* ---- the ring context ---- */

static struct {
	struct vma_nic *ends[2];
	uint32_t lacks; /* enum vma_nic_caps of the ring context's end; before the start */
	struct vma_device device;
	struct vma_device_priv device_priv;
	struct vma_ring *peer;
	struct vma_ring_ctx *ring_ctx;
	uint64_t bit;
	struct thing things[FIXTURE_THINGS];
} fixture;

static bool sink_count_and_wake_waiters(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct thing *thing = flow->owner;

	(void)packet, (void)info;
	atomic_fetch_add(&thing->count, 1);
	vma_waitq_wake(&thing->q, false);
	return false;
}

static inline int fixture_start_flows(void)
{
	for (uint16_t i = 0; i < FIXTURE_THINGS; i++) {
		fixture.things[i].flow = (struct vma_flow){
		        .key = {.family = AF_INET, .proto = IPPROTO_UDP, .local = {10, 0, 0, 1}},
		        .sink = sink_count_and_wake_waiters,
		        .owner = &fixture.things[i],
		};
		fixture.things[i].flow.key.local_port_be = htons((uint16_t)(FIXTURE_PORT + i));
		if (vma_ring_attach_flow(fixture.ring_ctx->ring, &fixture.things[i].flow) != 0)
			return -1;
	}
	return 0;
}

static inline int wait_fixture_start(void **state)
{
	struct vma_ring_attr attr = {.name = "peer", .rx_wre = 64, .tx_wre = 64, .thread_mode = VMA_THREAD_SPIN};
	struct vma_ring_requester where = {.socket_id = 1};
	struct vma_wire_pair_attr pair = {0};
	struct vma_engine *engine;

	(void)state;
	engine = start_engine_with_few_buffers("4096", "256");
	if (engine == NULL)
		return -1;
	pair.arena[0] = pair.arena[1] = engine->arena;
	if (vma_wire_create_pair(&pair, fixture.ends) != 0)
		return -1;
	fixture.ends[0]->info.caps &= ~fixture.lacks;
	fixture.device = (struct vma_device){.nic = fixture.ends[0], .engine = engine, .priv = &fixture.device_priv};
	attr.nic = fixture.ends[1];
	attr.spill_pool = engine->spill;
	if (vma_ring_create(&attr, &fixture.peer) != 0 ||
	    vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_RX, &where, &fixture.ring_ctx) != 0)
		return -1;
	fixture.bit = vma_ring_ctx_bit(fixture.ring_ctx);
	return fixture_start_flows();
}

static inline void fixture_send(uint16_t thing)
{
	const uint16_t port = (uint16_t)(FIXTURE_PORT + thing);
	const struct vma_pkt_udp_attr attr = {
	        .src_ip = {10, 0, 0, 2},
	        .dst_ip = {10, 0, 0, 1},
	        .src_port_be = 0x1234,
	        .dst_port_be = htons(port),
	};
	struct vma_buf *buf = vma_ring_tx_buf(fixture.peer);
	struct vma_pkt_udp headers;
	struct vma_nic_seg seg;

	assert_non_null(buf);
	vma_pkt_udp_init(&headers, &attr);
	seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off};
	memset(vma_buf_data(fixture.device.engine->arena, buf) + headers.len, 'x', 8);
	seg.len = vma_pkt_udp_write(&headers, vma_buf_data(fixture.device.engine->arena, buf), 8, VMA_PKT_CSUM_FULL);
	assert_int_equal(vma_ring_send(fixture.peer, &seg, 1, 0), 1);
}

#endif
