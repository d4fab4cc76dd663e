/*
 * hammer - eight threads on one ring, an echo on the other end of a wire.
 *
 *   8 workers ── ring A ══ wire ══ ring B ── echo thread
 *
 * Each worker has a flow of its own and numbers its datagrams; at most WINDOW are on their way. Whoever drives ring A
 * runs the sinks of all; a sink checks that the next number of its worker comes, so a frame that is lost, repeated or
 * overtaken by another of the same thread stops the count for good.
 */
#ifndef HAMMER_H
#define HAMMER_H

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <vma/nic_wire.h>
#include <vma/ring.h>
#include <vma/test.h>

#include "frames.h"

enum { WORKERS = 8, WINDOW = 28, ECHO_PORT = 7, ECHO_BACKLOG_MAX = 4096, IDLE_ROUNDS = 64 };
static const uint8_t a_ip[4] = {10, 0, 0, 1}, b_ip[4] = {10, 0, 0, 2};

struct worker {
	struct vma_flow flow; /* first */
	uint16_t port;
	uint64_t sent;
	_Atomic uint64_t received; /* written by who drives */
	_Atomic uint64_t wrong;
	_Atomic uint32_t tid;
	pthread_t thread;
} __attribute__((aligned(64)));

struct hammer {
	struct vma_bufarena *arena;
	struct vma_bufpool *spill;
	struct vma_nic *nic[2];
	struct vma_ring *ring[2];
	_Atomic bool stop, stop_echo;
	struct worker workers[WORKERS];
	struct vma_flow echo;
	struct { /* answers that found no room; echo thread only */
		struct vma_nic_seg segs[ECHO_BACKLOG_MAX];
		uint64_t head, tail;
	} stash;
	_Atomic uint64_t echo_failed;
	pthread_t echo_thread;
};

static struct hammer hammer;

static uint64_t hammer_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static double hammer_seconds_from_env_or(double otherwise)
{
	const char *text = getenv("STRESS_SECONDS");

	return text != NULL && atof(text) > 0 ? atof(text) : otherwise;
}

/* ---- the echo ---- */

static bool hammer_sink_queue_echo_reply(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct vma_buf *buf = vma_ring_tx_buf(hammer.ring[1]);
	const char *frame = vma_buf_data(hammer.arena, packet);
	struct vma_pkt_udp headers;
	char *out;

	(void)flow;
	if (buf == NULL || hammer.stash.tail - hammer.stash.head == ECHO_BACKLOG_MAX) {
		atomic_fetch_add(&hammer.echo_failed, 1);
		if (buf != NULL)
			vma_buf_put(hammer.arena, buf);
		return false;
	}
	vma_pkt_udp_init_reply_headers(&headers, frame, info);
	out = vma_buf_data(hammer.arena, buf);
	memcpy(out + headers.len, frame + packet->payload_off, packet->payload_len);
	hammer.stash.segs[hammer.stash.tail++ % ECHO_BACKLOG_MAX] = (struct vma_nic_seg){
	        .buf = buf,
	        .off = buf->data_off,
	        .len = vma_pkt_udp_write(&headers, out, packet->payload_len, VMA_PKT_CSUM_FULL),
	};
	return false; /* the packet goes back at once */
}

static void send_echo_backlog(void)
{
	while (hammer.stash.head != hammer.stash.tail) {
		uint64_t at = hammer.stash.head % ECHO_BACKLOG_MAX, n = hammer.stash.tail - hammer.stash.head;

		if (n > 32)
			n = 32;
		if (n > ECHO_BACKLOG_MAX - at)
			n = ECHO_BACKLOG_MAX - at;
		n = vma_ring_send(hammer.ring[1], &hammer.stash.segs[at], (unsigned)n, 0);
		hammer.stash.head += n;
		if (n == 0)
			return;
	}
}

static void *echo_main(void *arg)
{
	(void)arg;
	while (!atomic_load(&hammer.stop_echo)) {
		if (vma_ring_progress(hammer.ring[1]) == 0 && hammer.stash.head == hammer.stash.tail)
			vma_ring_wait(hammer.ring[1], 10000000);
		send_echo_backlog();
	}
	while (hammer.stash.head != hammer.stash.tail)
		vma_buf_put(hammer.arena, hammer.stash.segs[hammer.stash.head++ % ECHO_BACKLOG_MAX].buf);
	vma_bufpool_flush_thread(hammer.arena);
	return NULL;
}

/* ---- the workers ---- */

static bool worker_expect_next_number(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct worker *w = (struct worker *)flow;
	uint64_t number, expected = atomic_load_explicit(&w->received, memory_order_relaxed);

	memcpy(&number, vma_buf_data(hammer.arena, packet) + packet->payload_off, sizeof(number));
	if (packet->payload_len != sizeof(number) || number != expected || info->src_port_be != htons(ECHO_PORT))
		atomic_fetch_add(&w->wrong, 1);
	else
		atomic_store(&w->received, expected + 1);
	return false;
}

static bool hammer_send_next_numbered_datagram(struct worker *w, struct vma_pkt_udp *headers)
{
	struct vma_buf *buf = vma_ring_tx_buf(hammer.ring[0]);
	struct vma_nic_seg seg;
	char *frame;

	if (buf == NULL)
		return false;
	frame = vma_buf_data(hammer.arena, buf);
	memcpy(frame + headers->len, &w->sent, sizeof(w->sent));
	seg = (struct vma_nic_seg){
	        .buf = buf,
	        .off = buf->data_off,
	        .len = vma_pkt_udp_write(headers, frame, sizeof(w->sent), VMA_PKT_CSUM_FULL),
	};
	if (vma_ring_send(hammer.ring[0], &seg, 1, w->sent % 4 == 0 ? VMA_RING_SEND_LATER : 0) == 0) {
		vma_buf_put(hammer.arena, buf);
		return false;
	}
	w->sent++;
	return true;
}

static uint64_t worker_datagrams_in_flight(const struct worker *w)
{
	return w->sent - atomic_load(&w->received);
}

static void *worker_send_and_check_echo_thread(void *arg)
{
	struct worker *w = arg;
	struct vma_pkt_udp_attr attr = {.src_port_be = htons(w->port), .dst_port_be = htons(ECHO_PORT)};
	struct vma_ring_backoff backoff = {0};
	struct vma_pkt_udp headers;
	unsigned idle = 0;

	memcpy(attr.src_ip, a_ip, 4);
	memcpy(attr.dst_ip, b_ip, 4);
	vma_pkt_udp_init(&headers, &attr);
	atomic_store(&w->tid, (uint32_t)syscall(SYS_gettid));
	while (!atomic_load(&hammer.stop)) {
		int n;

		while (worker_datagrams_in_flight(w) < WINDOW && hammer_send_next_numbered_datagram(w, &headers))
			idle = 0;
		n = vma_ring_progress(hammer.ring[0]);
		if (n == -EBUSY) {
			vma_ring_wait_for_holder(hammer.ring[0], VMA_RING_RX, &backoff, 100000000);
		} else if (n > 0) {
			idle = 0;
		} else if (++idle > IDLE_ROUNDS) {
			vma_ring_wait(hammer.ring[0], 20000000);
		}
	}
	vma_bufpool_flush_thread(hammer.arena);
	return NULL;
}

/* ---- set-up ---- */

static enum vma_thread_mode hammer_mode = VMA_THREAD_YIELD;

static struct vma_ring *hammer_create_ring(struct vma_nic *nic, const char *name)
{
	struct vma_ring_attr attr = {
	        .nic = nic,
	        .spill_pool = hammer.spill,
	        .rx_wre = 1024,
	        .tx_wre = 1024,
	        .tx_wre_batching = 32,
	        .thread_mode = hammer_mode,
	        .rx_sw_csum = true,
	        .name = name,
	};
	struct vma_ring *ring;

	assert_int_equal(vma_ring_create(&attr, &ring), 0);
	return ring;
}

static void hammer_create_rings_and_start_workers(void)
{
	struct vma_bufarena_attr arena = {.capacity = 65536};
	struct vma_wire_pair_attr wire = {.queue_frames = 2048};
	struct vma_bufpool_attr spill = {.name = "spill", .max_bufs = 8192};

	memset(&hammer, 0, sizeof(hammer));
	assert_int_equal(vma_bufarena_create(&arena, &hammer.arena), 0);
	wire.arena[0] = wire.arena[1] = spill.arena = hammer.arena;
	assert_int_equal(vma_bufpool_create(&spill, &hammer.spill), 0);
	assert_int_equal(vma_wire_create_pair(&wire, hammer.nic), 0);
	hammer.ring[0] = hammer_create_ring(hammer.nic[0], "hammered");
	hammer.ring[1] = hammer_create_ring(hammer.nic[1], "echo");
	hammer.echo.key = flow_key(IPPROTO_UDP, b_ip, ECHO_PORT, 0);
	hammer.echo.sink = hammer_sink_queue_echo_reply;
	assert_int_equal(vma_ring_attach_flow(hammer.ring[1], &hammer.echo), 0);
	assert_int_equal(pthread_create(&hammer.echo_thread, NULL, echo_main, NULL), 0);
	for (int i = 0; i < WORKERS; i++) {
		struct worker *w = &hammer.workers[i];

		w->port = (uint16_t)(1000 + i);
		w->flow.key = flow_key(IPPROTO_UDP, a_ip, w->port, 0);
		w->flow.sink = worker_expect_next_number;
		assert_int_equal(vma_ring_attach_flow(hammer.ring[0], &w->flow), 0);
	}
	for (int i = 0; i < WORKERS; i++)
		assert_int_equal(pthread_create(&hammer.workers[i].thread, NULL, worker_send_and_check_echo_thread,
		                                &hammer.workers[i]),
		                 0);
}

static inline uint64_t hammer_count_received(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < WORKERS; i++)
		sum += atomic_load(&hammer.workers[i].received);
	return sum;
}

static void hammer_assert_all_echoes_received(void)
{
	uint64_t deadline = hammer_now_ns() + 5000000000, delivered = 0, sent = 0;
	const struct vma_stats_ring *stats = vma_ring_stats(hammer.ring[0]);

	for (int i = 0; i < WORKERS; i++) {
		while (worker_datagrams_in_flight(&hammer.workers[i]) > 0 && hammer_now_ns() < deadline) {
			if (vma_ring_progress(hammer.ring[0]) == 0)
				vma_ring_wait(hammer.ring[0], 1000000);
		}
		if (worker_datagrams_in_flight(&hammer.workers[i]) != 0 || atomic_load(&hammer.workers[i].wrong) != 0)
			fail_msg("worker %d: sent %lu, back %lu, out of turn %lu, echo failed %lu", i,
			         (unsigned long)hammer.workers[i].sent,
			         (unsigned long)atomic_load(&hammer.workers[i].received),
			         (unsigned long)atomic_load(&hammer.workers[i].wrong),
			         (unsigned long)atomic_load(&hammer.echo_failed));
		sent += hammer.workers[i].sent;
		delivered += atomic_load(&hammer.workers[i].received);
	}
	/* The counters tell the same story. */
	assert_int_equal(vma_stats_read_counter(&stats->tx.tx_packets), sent);
	assert_int_equal(vma_stats_read_counter(&stats->rx.rx_packets), delivered);
	assert_int_equal(vma_stats_read_counter(&stats->rx.rx_drop_sink), delivered);
}

static void hammer_stop_workers(void)
{
	atomic_store(&hammer.stop, true);
	for (int i = 0; i < WORKERS; i++)
		pthread_join(hammer.workers[i].thread, NULL);
}

static void hammer_stop_echo_and_destroy(void)
{
	atomic_store(&hammer.stop_echo, true);
	pthread_join(hammer.echo_thread, NULL);
	for (int i = 0; i < WORKERS; i++)
		vma_ring_detach_flow(hammer.ring[0], &hammer.workers[i].flow);
	vma_ring_detach_flow(hammer.ring[1], &hammer.echo);
	for (int i = 0; i < 2; i++) {
		vma_ring_destroy(hammer.ring[i]);
		vma_nic_close(hammer.nic[i]);
	}
	vma_bufpool_retire(hammer.spill, NULL, NULL);
	vma_bufpool_flush_thread(hammer.arena);
	vma_bufarena_destroy(hammer.arena);
}

static void hammer_stop_and_check_buffers_returned(void)
{
	hammer_stop_workers();
	hammer_assert_all_echoes_received();
	hammer_stop_echo_and_destroy();
}

#endif
