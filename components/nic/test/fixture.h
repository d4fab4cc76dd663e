/*
 * fixture - two ends of a link with queue pairs, and what every test does with them. Any backend.
 *
 * Control calls run in the network namespace of their end (fixture_enter_netns), which for a wire is where we are.
 */
#ifndef VMA_NIC_TEST_FIXTURE_H
#define VMA_NIC_TEST_FIXTURE_H

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <vma/test.h>
#include <vma/bufpool.h>
#include <vma/nic.h>
#include <vma/nic_wire.h>

#include "frames.h"
#include "repost.h"

#define FIXTURE_QPS 4
#define FIXTURE_BURST 32
#define FIXTURE_TIMEOUT_NS 3000000000ULL

struct fixture {
	struct vma_bufarena *arena;
	struct vma_nic *nic[2];
	struct vma_nic_qp *qp[2][FIXTURE_QPS];
	uint8_t mac[2][6];
	int netns[2];     /* -1: where we are */
	bool kernel_sock; /* the kernel's stack sees the link too and may put frames of its own on it */
	bool unarms;      /* an fd that was unarmed is silent */
	bool counts;      /* what waits in a queue pair is counted */
	bool arms_next;   /* and what comes beside it is told of */
};

/* A received packet, in one piece. */
struct packet {
	uint32_t len;
	uint32_t buffers;
	uint16_t flags; /* of its first buffer, without MORE */
	uint8_t bytes[FRAME_MAX];
};

static inline uint64_t fixture_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static inline void fixture_enter_netns(const struct fixture *w, int end)
{
	if (w->netns[end] >= 0)
		assert_int_equal(setns(w->netns[end], CLONE_NEWNET), 0);
}

static inline struct vma_bufarena *fixture_arena(void)
{
	struct vma_bufarena *arena = NULL;
	struct vma_bufarena_attr attr = {.capacity = 1 << 18};

	assert_int_equal(vma_bufarena_create(&attr, &arena), 0);
	return arena;
}

/* Posts what the queue pair may hold; a backend that keeps the first fill itself wants none. */
static inline void fixture_post_rx_bufs(struct vma_nic_qp *qp)
{
	struct vma_bufpool *pool = atomic_load(&qp->rx_pool);
	struct vma_buf *bufs[FIXTURE_BURST];
	unsigned n, posted;

	if (qp->rx_self_fill)
		return;
	for (uint32_t total = 0; total < qp->rx_depth; total += posted) {
		n = vma_bufpool_get(pool, bufs, FIXTURE_BURST);
		posted = vma_nic_post_rx(qp, bufs, n);
		if (posted < n)
			vma_buf_put_burst(qp->arena, bufs + posted, n - posted);
		if (posted == 0)
			break;
	}
}

static inline struct vma_nic_qp *fixture_create_qp_with_posted_rx(struct fixture *w, int end, int i, uint32_t depth)
{
	struct vma_nic_qp_attr attr = {.rx_wre = depth, .tx_wre = depth, .name = "test"};

	fixture_enter_netns(w, end);
	assert_int_equal(vma_nic_qp_create(w->nic[end], &attr, &w->qp[end][i]), 0);
	fixture_post_rx_bufs(w->qp[end][i]);
	memcpy(w->mac[end], w->nic[end]->info.mac, 6);
	return w->qp[end][i];
}

static inline int fixture_try_add_flow(struct fixture *w, int end, int i, const struct vma_flow_rule *rule)
{
	fixture_enter_netns(w, end);
	return vma_nic_flow_add(w->qp[end][i], rule);
}
static inline void fixture_add_flow(struct fixture *w, int end, int i, uint8_t proto, uint16_t port, uint16_t peer_port,
                                    uint32_t flags)
{
	struct vma_flow_rule rule = make_flow_rule(end, proto, port, peer_port, flags);

	assert_int_equal(fixture_try_add_flow(w, end, i, &rule), 0);
}

static inline void fixture_delete_flow(struct fixture *w, int end, int i, uint8_t proto, uint16_t port,
                                       uint16_t peer_port)
{
	struct vma_flow_rule rule = make_flow_rule(end, proto, port, peer_port, 0);

	fixture_enter_netns(w, end);
	assert_int_equal(vma_nic_flow_del(w->qp[end][i], &rule.key), 0);
}

static inline void fixture_qp_destroy(struct fixture *w, int end, int i)
{
	fixture_enter_netns(w, end);
	vma_nic_qp_destroy(w->qp[end][i]);
	w->qp[end][i] = NULL;
}

static inline void fixture_nic_close(struct fixture *w, int end)
{
	for (int i = 0; i < FIXTURE_QPS; i++)
		if (w->qp[end][i] != NULL)
			fixture_qp_destroy(w, end, i);
	fixture_enter_netns(w, end);
	vma_nic_close(w->nic[end]);
	w->nic[end] = NULL;
}

/* Puts what completed; returns how many. */
static inline unsigned fixture_reap_and_free_tx_bufs(struct vma_nic_qp *qp)
{
	struct vma_buf *bufs[FIXTURE_BURST];
	unsigned n = vma_nic_reap_tx(qp, bufs, FIXTURE_BURST);

	if (n != 0)
		vma_buf_put_burst(qp->arena, bufs, n);
	return n;
}

static inline struct vma_buf *fixture_get_tx_buf_waiting(struct vma_nic_qp *qp)
{
	struct vma_buf *buf = NULL;
	uint64_t end = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	while (vma_bufpool_get(atomic_load(&qp->tx_pool), &buf, 1) == 0) {
		fixture_reap_and_free_tx_bufs(qp);
		vma_nic_kick(qp);
		assert_true(fixture_now_ns() < end);
		sched_yield();
	}
	return buf;
}

static inline struct vma_nic_seg fixture_build_frame_in_tx_buf(struct fixture *w, int end, int i,
                                                               struct frame_spec *spec)
{
	struct vma_buf *buf = fixture_get_tx_buf_waiting(w->qp[end][i]);
	uint32_t room = w->qp[end][i]->tx_headroom;

	spec->from = end;
	spec->src_mac = w->mac[end];
	spec->dst_mac = w->mac[1 - end];
	assert_true(room + spec->len <= 1U << w->arena->frame_shift);
	frame_build((uint8_t *)vma_buf_frame(w->arena, buf) + room, spec);
	return (struct vma_nic_seg){.buf = buf, .off = room, .len = spec->len};
}

/* Sends one frame that fits one buffer, waiting for room as long as it takes. */
static inline void fixture_send(struct fixture *w, int end, int i, struct frame_spec spec)
{
	struct vma_nic_seg seg = fixture_build_frame_in_tx_buf(w, end, i, &spec);
	uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;

	while (vma_nic_tx(w->qp[end][i], &seg, 1) == 0) {
		vma_nic_kick(w->qp[end][i]);
		fixture_reap_and_free_tx_bufs(w->qp[end][i]);
		assert_true(fixture_now_ns() < give_up);
		sched_yield();
	}
	while (vma_nic_kick(w->qp[end][i]) == -EAGAIN)
		sched_yield();
	fixture_reap_and_free_tx_bufs(w->qp[end][i]);
}

static inline struct frame_spec udp(uint16_t src_port, uint16_t dst_port, uint32_t len, uint32_t number)
{
	return (struct frame_spec){
	        .proto = IPPROTO_UDP, .src_port = src_port, .dst_port = dst_port, .len = len, .number = number};
}

static inline struct frame_spec tcp(uint16_t src_port, uint16_t dst_port, uint8_t flags, uint32_t number)
{
	return (struct frame_spec){.proto = IPPROTO_TCP,
	                           .tcp_flags = flags,
	                           .src_port = src_port,
	                           .dst_port = dst_port,
	                           .len = 100,
	                           .number = number};
}

/* One packet if there is one now. */
static inline bool fixture_poll_one_packet(struct vma_nic_qp *qp, struct packet *out)
{
	struct vma_buf *buf;
	bool more = true;

	out->len = out->buffers = 0;
	while (more) {
		if (vma_nic_poll_rx(qp, &buf, 1) == 0) {
			if (out->buffers == 0)
				return false;
			continue; /* the rest of a packet is never far */
		}
		assert_int_equal(atomic_load(&buf->refs), 1);
		assert_int_equal(buf->pool, vma_bufpool_id(atomic_load(&qp->rx_pool)));
		if (out->buffers++ == 0)
			out->flags = buf->flags & (uint16_t)~VMA_BUF_RX_MORE;
		assert_true(out->len + buf->len <= FRAME_MAX);
		memcpy(out->bytes + out->len, vma_buf_data(qp->arena, buf), buf->len);
		out->len += buf->len;
		more = (buf->flags & VMA_BUF_RX_MORE) != 0;
		assert_true(repost_rx_bufs_until_taken(qp, &buf, 1));
	}
	return true;
}

static inline bool fixture_recv(struct vma_nic_qp *qp, struct packet *out, uint64_t timeout_ns)
{
	uint64_t end = fixture_now_ns() + timeout_ns;

	while (!fixture_poll_one_packet(qp, out)) {
		if (fixture_now_ns() >= end)
			return false;
		sched_yield();
	}
	return true;
}

static inline void assert_packet(const struct fixture *w, const struct packet *packet, int from, struct frame_spec spec)
{
	static _Thread_local uint8_t expected[FRAME_MAX];

	spec.from = from;
	spec.src_mac = w->mac[from];
	spec.dst_mac = w->mac[1 - from];
	frame_build(expected, &spec);
	assert_int_equal(packet->len, spec.len);
	assert_memory_equal(packet->bytes, expected, spec.len);
}

static inline void fixture_assert_receives(struct fixture *w, int end, int i, struct frame_spec spec)
{
	static _Thread_local struct packet packet;

	assert_true(fixture_recv(w->qp[end][i], &packet, FIXTURE_TIMEOUT_NS));
	assert_packet(w, &packet, 1 - end, spec);
}

/* Nothing comes, although there was time. */
static inline void assert_no_packet_arrives(struct fixture *w, int end, int i)
{
	static _Thread_local struct packet packet;

	assert_false(fixture_recv(w->qp[end][i], &packet, w->kernel_sock ? 50000000 : 2000000));
}

static inline bool wait_fd_readable(int fd, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, timeout_ms) == 1;
}

#endif
