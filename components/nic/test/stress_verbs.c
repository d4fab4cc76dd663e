/*
 * Stress: the verbs backend on a card in this process (loop_card.h). Each of three rings has a thread for either half;
 * all send to all. Meanwhile the nic's thread adds memory and meets queues and devices that fail, queue pairs are bound
 * again, rules, queue pairs and time stamps come, and at last all is closed beside a card that goes on breaking.
 *
 * A frame may be lost, if a queue is full or has failed. None may be damaged, and those of one sender come in order.
 * STRESS_SECONDS, default 1, for each case.
 */
#include <pthread.h>

#include "fixture.h"
#include "loop_card.h"

enum {
	RINGS = 3,
	PORT = 21000,               /* + the ring that receives */
	PORT_MOVING = PORT + RINGS, /* of a flow that moves from ring to ring */
	PORT_OTHER = 30000,         /* of flows without traffic */
	SENDER = 22000,             /* + the ring that sends */
	DEPTH = 3072,               /* a pool has half as much again, which is more than at first */
	BURST = 16,
	HELD = 64, /* received buffers that a ring keeps, also beyond a rebind */
	ROUNDS = 2,
};

struct stress;

struct stress_ring {
	struct stress *stress;
	int i;
	struct vma_nic_qp *qp;
	pthread_mutex_t rx, tx; /* the halves; a rebind takes both, in this order */
	/* receive half */
	uint32_t posted;
	uint32_t last[RINGS]; /* number of the last frame of each sender */
	struct vma_buf *held[HELD];
	uint32_t held_at;
	/* transmit half */
	uint32_t number;
	/* any thread */
	_Atomic uint32_t received, rebinds;
	struct vma_buf *_Atomic passed; /* to the other half's thread, which puts it */
};

struct stress {
	struct vma_bufarena *arena;
	struct vma_nic *nic;
	struct stress_ring rings[RINGS];
	bool removes_devices;
	_Atomic bool stop, stop_breaking;
	_Atomic uint32_t bad, revoked, broken[LOOP_DEVICE_GOES + 1];
};

static void stress_count_bad(struct stress *s, const char *what)
{
	if (atomic_fetch_add(&s->bad, 1) < 10)
		fprintf(stderr, "stress_verbs: %s\n", what);
}

static struct frame_spec stress_frame_spec(int from, uint16_t dst_port, uint32_t number)
{
	static const uint8_t mac[6];
	struct frame_spec spec = udp((uint16_t)(SENDER + from), dst_port, 60 + number % 900, number);

	spec.src_mac = spec.dst_mac = mac;
	spec.no_checksum = true;
	return spec;
}

/* ---- receive half ---- */

/* Also long after it was received: its memory may be of a binding that has ended. */
static void check_frame_and_put(struct stress_ring *ring, struct vma_buf *buf)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(ring->stress->arena, buf);
	const int from = (frame[34] << 8 | frame[35]) - SENDER;
	const uint16_t port = (uint16_t)(frame[36] << 8 | frame[37]);
	uint8_t expected[LOOP_FRAME];
	struct frame_spec spec;

	if (from < 0 || from >= RINGS) {
		stress_count_bad(ring->stress, "a frame of nobody");
	} else {
		spec = stress_frame_spec(from, port, frame_number(frame, IPPROTO_UDP));
		frame_build(expected, &spec);
		if (buf->len != spec.len || memcmp(frame, expected, spec.len) != 0)
			stress_count_bad(ring->stress, "a damaged frame");
	}
	vma_buf_put(ring->stress->arena, buf);
}

static void take_frame(struct stress_ring *ring, struct vma_buf *buf)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(ring->stress->arena, buf);
	const int from = (frame[34] << 8 | frame[35]) - SENDER;
	const uint32_t number = frame_number(frame, IPPROTO_UDP);

	if (from >= 0 && from < RINGS && (frame[36] << 8 | frame[37]) == PORT + ring->i) {
		if (number <= ring->last[from])
			stress_count_bad(ring->stress, "a frame out of order");
		ring->last[from] = number;
	}
	if (atomic_fetch_add_explicit(&ring->received, 1, memory_order_relaxed) % 64 == 0) {
		buf = atomic_exchange(&ring->passed, buf);
	} else {
		struct vma_buf **held = &ring->held[ring->held_at++ % HELD], *before = *held;

		*held = buf;
		buf = before;
	}
	if (buf != NULL)
		check_frame_and_put(ring, buf);
}

static void post_receives(struct stress_ring *ring)
{
	struct vma_buf *bufs[BURST];

	while (ring->posted < ring->qp->rx_depth) {
		const unsigned n = vma_bufpool_get(atomic_load(&ring->qp->rx_pool), bufs, BURST);
		const unsigned posted = n != 0 ? vma_nic_post_rx(ring->qp, bufs, n) : 0;

		vma_buf_put_burst(ring->stress->arena, bufs + posted, n - posted);
		ring->posted += posted;
		if (posted < BURST)
			break;
	}
}

/* Both halves held. */
static void rebind_ring(struct stress_ring *ring)
{
	const int rc = vma_nic_qp_rebind(ring->qp);

	if (rc == 0) {
		ring->posted = 0;
		atomic_fetch_add(&ring->rebinds, 1);
	} else if (rc != -EAGAIN) {
		stress_count_bad(ring->stress, "a rebind that can never be");
	}
}

/* Whether anything came. */
static bool run_receive_half(struct stress_ring *ring)
{
	struct vma_buf *bufs[BURST];
	unsigned n;

	/* The last ring's is bound again by the nic's thread: stress_event. */
	if (vma_nic_qp_lost(ring->qp) && ring->i != RINGS - 1) {
		pthread_mutex_lock(&ring->tx);
		rebind_ring(ring);
		pthread_mutex_unlock(&ring->tx);
	}
	post_receives(ring);
	n = vma_nic_poll_rx(ring->qp, bufs, BURST);
	ring->posted -= n;
	for (unsigned i = 0; i < n; i++)
		take_frame(ring, bufs[i]);
	return n != 0;
}

static void *receive_thread(void *arg)
{
	struct stress_ring *ring = arg;

	for (uint32_t i = 0; !atomic_load_explicit(&ring->stress->stop, memory_order_relaxed); i++) {
		bool sleeps = false;

		pthread_mutex_lock(&ring->rx);
		if (!run_receive_half(ring))
			sleeps = vma_nic_arm(ring->qp) == 0;
		else if (i % 100 == 0)
			vma_nic_unarm(ring->qp);
		if (i % 1000 == 0)
			vma_nic_set_interrupt_moderation(ring->qp, 10, 10);
		pthread_mutex_unlock(&ring->rx);
		if (vma_nic_qp_lost(ring->qp))
			usleep(500); /* for the thread that binds it again */
		else if (sleeps)
			wait_fd_readable(vma_nic_fd(ring->qp), 5);
	}
	return NULL;
}

/* ---- transmit half ---- */

static void reap(struct stress_ring *ring)
{
	struct vma_buf *bufs[BURST];
	unsigned n;

	while ((n = vma_nic_reap_tx(ring->qp, bufs, BURST)) != 0)
		vma_buf_put_burst(ring->stress->arena, bufs, n);
}

/* Of one or two pieces; each may be refused: no buffer, no room, no queue. */
static void send_frame(struct stress_ring *ring)
{
	struct vma_bufpool *pool = atomic_load(&ring->qp->tx_pool);
	const uint32_t number = ++ring->number;
	const bool in_two = number % 7 == 0;
	const struct frame_spec spec = stress_frame_spec(ring->i, (uint16_t)(PORT + number % (RINGS + 1)), number);
	struct vma_buf *bufs[2] = {NULL, NULL};
	struct vma_nic_seg segs[2];
	uint8_t *frame;
	unsigned n = vma_bufpool_get(pool, bufs, 1u + in_two), sent = 0;

	if (n == 1u + in_two) {
		frame = (uint8_t *)vma_buf_frame(ring->stress->arena, bufs[0]);
		frame_build(frame, &spec);
		segs[0] = (struct vma_nic_seg){.buf = bufs[0], .len = spec.len, .flags = VMA_NIC_SEG_CSUM};
		if (in_two) {
			segs[0].len = 42;
			segs[0].flags |= VMA_NIC_SEG_MORE;
			segs[1] = (struct vma_nic_seg){.buf = bufs[1], .len = spec.len - 42};
			memcpy(vma_buf_frame(ring->stress->arena, bufs[1]), frame + 42, spec.len - 42);
		}
		sent = vma_nic_tx(ring->qp, segs, n);
	}
	vma_buf_put_burst(ring->stress->arena, bufs + sent, n - sent);
}

static void *send_thread(void *arg)
{
	struct stress_ring *ring = arg;

	while (!atomic_load_explicit(&ring->stress->stop, memory_order_relaxed)) {
		struct vma_buf *passed = atomic_exchange(&ring->passed, NULL);

		if (passed != NULL)
			check_frame_and_put(ring, passed);
		pthread_mutex_lock(&ring->tx);
		for (uint32_t burst = 1 + ring->number % 7; burst != 0; burst--)
			send_frame(ring);
		vma_nic_kick(ring->qp);
		reap(ring);
		vma_nic_tx_is_idle(ring->qp);
		pthread_mutex_unlock(&ring->tx);
		if (vma_nic_qp_lost(ring->qp))
			usleep(500);
		else
			sched_yield();
	}
	return NULL;
}

/* ---- the nic's thread ---- */

static void stress_event(struct vma_nic_qp *qp, enum vma_nic_event event, const struct vma_flow_key *key, void *arg)
{
	struct stress_ring *ring = arg;

	(void)qp, (void)key;
	if (event == VMA_NIC_EVENT_FLOW_REVOKED)
		atomic_fetch_add(&ring->stress->revoked, 1);
	if (event != VMA_NIC_EVENT_LOST || ring->i != RINGS - 1)
		return;
	pthread_mutex_lock(&ring->rx);
	pthread_mutex_lock(&ring->tx);
	rebind_ring(ring);
	pthread_mutex_unlock(&ring->tx);
	pthread_mutex_unlock(&ring->rx);
}

/* ---- control calls, by the thread of the test ---- */

static void add_and_delete_flows(struct stress *s, uint32_t i)
{
	struct vma_nic_qp *qp = s->rings[i % RINGS].qp;

	for (uint16_t k = 0; k < 8; k++) {
		struct vma_flow_rule rule = make_flow_rule(1, k % 2 != 0 ? IPPROTO_TCP : IPPROTO_UDP,
		                                           (uint16_t)(PORT_OTHER + k), k < 4 ? 1000 : 0, 0);
		int rc;

		if (k == 7)
			rule.flags = VMA_FLOW_LISTENER;
		rc = vma_nic_flow_add(qp, &rule);
		if (rc != 0 && rc != -EEXIST && rc != -EADDRINUSE && rc != -EPIPE && rc != -EIO)
			stress_count_bad(s, "a flow that is refused");
		if (i % 2 == 0)
			vma_nic_flow_del(qp, &rule.key);
	}
}

/* A device that goes in the middle of a rebind takes flows with it: FLOW_REVOKED. */
static void add_flows_with_traffic(struct stress *s)
{
	const struct vma_flow_rule moving = make_flow_rule(1, IPPROTO_UDP, PORT_MOVING, 0, VMA_FLOW_PORT_EXCLUSIVE);

	for (int i = 0; i < RINGS; i++) {
		const struct vma_flow_rule rule =
		        make_flow_rule(1, IPPROTO_UDP, (uint16_t)(PORT + i), 0, VMA_FLOW_PORT_EXCLUSIVE);

		vma_nic_flow_add(s->rings[i].qp, &rule);
	}
	vma_nic_flow_add(s->rings[0].qp, &moving);
}

static void move_flow(struct stress *s, uint32_t i)
{
	const struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, PORT_MOVING, 0, VMA_FLOW_PORT_EXCLUSIVE);

	vma_nic_flow_move(s->rings[i % RINGS].qp, s->rings[(i + 1) % RINGS].qp, &rule.key);
}

static void make_and_end_queue_pair(struct stress *s, uint32_t i)
{
	const struct vma_nic_qp_attr attr = {.rx_wre = 16, .tx_wre = 16, .name = "extra"};
	const struct vma_flow_rule rule =
	        make_flow_rule(1, IPPROTO_UDP, (uint16_t)(PORT_OTHER + 100 + i % 10), 0, VMA_FLOW_PORT_EXCLUSIVE);
	struct vma_nic_qp *qp = NULL;

	if (vma_nic_qp_create(s->nic, &attr, &qp) != 0)
		return; /* the device has just gone */
	fixture_post_rx_bufs(qp);
	vma_nic_flow_add(qp, &rule);
	vma_nic_arm(qp);
	vma_nic_qp_destroy(qp);
}

/* Not before frames have come since the last one: a card that does nothing but break shows nothing. */
static void *break_thread(void *arg)
{
	struct stress *s = arg;
	uint64_t delivered = 0;

	for (uint32_t i = 0; !atomic_load(&s->stop_breaking); usleep(2000)) {
		enum loop_fault fault = (enum loop_fault)(i % LOOP_DEVICE_GOES);

		if (loop_delivered() < delivered + 100)
			continue;
		if (s->removes_devices && i % 8 == 7)
			fault = LOOP_DEVICE_GOES;
		if (!loop_break(fault, i * 7))
			continue;
		atomic_fetch_add(&s->broken[fault], 1);
		delivered = loop_delivered();
		i++;
	}
	return NULL;
}

/* ---- a round ---- */

/* Every ring has received, and has been bound again; the pools have grown. */
static bool stress_has_seen_all(struct stress *s)
{
	bool seen = atomic_load(&s->broken[s->removes_devices ? LOOP_DEVICE_GOES : LOOP_QUEUE_STOPS]) != 0;

	for (int i = 0; i < RINGS; i++)
		seen = seen && atomic_load(&s->rings[i].received) > 200 && atomic_load(&s->rings[i].rebinds) != 0;
	return seen;
}

static void open_nic_and_rings(struct stress *s)
{
	const struct vma_nic_attr attr = {.arena = s->arena, .unwatched = true, .hw_ts_conversion = 3};

	assert_int_equal(vma_nic_open("verbs:lo", &attr, &s->nic), 0);
	for (int i = 0; i < RINGS; i++) {
		struct stress_ring *ring = &s->rings[i];
		const struct vma_nic_qp_attr qp = {.rx_wre = DEPTH,
		                                   .tx_wre = 256,
		                                   .tx_inline = i != 0 ? LOOP_INLINE : 0,
		                                   .tx_batching = i != 1 ? 16 : 0,
		                                   .name = "ring",
		                                   .event = stress_event,
		                                   .event_arg = ring};

		*ring = (struct stress_ring){.stress = s, .i = i};
		pthread_mutex_init(&ring->rx, NULL);
		pthread_mutex_init(&ring->tx, NULL);
		assert_int_equal(vma_nic_qp_create(s->nic, &qp, &ring->qp), 0);
	}
}

/* Buffers that are held still are put when all else has ended. */
static void close_rings_and_nic(struct stress *s)
{
	for (int i = 0; i < RINGS; i++)
		vma_nic_qp_destroy(s->rings[i].qp);
	vma_nic_close(s->nic);
	for (int i = 0; i < RINGS; i++) {
		struct stress_ring *ring = &s->rings[i];

		for (int k = 0; k < HELD; k++)
			if (ring->held[k] != NULL)
				check_frame_and_put(ring, ring->held[k]);
		if (ring->passed != NULL)
			check_frame_and_put(ring, ring->passed);
		pthread_mutex_destroy(&ring->rx);
		pthread_mutex_destroy(&ring->tx);
	}
}

static void run_round(struct stress *s, uint64_t ns)
{
	pthread_t receivers[RINGS], senders[RINGS];
	const uint64_t end = fixture_now_ns() + ns;
	uint64_t registered = loop.registered;

	for (int i = 0; i <= LOOP_DEVICE_GOES; i++)
		atomic_store(&s->broken[i], 0);
	atomic_store(&s->stop, false);
	open_nic_and_rings(s);
	for (int i = 0; i < RINGS; i++) {
		assert_int_equal(pthread_create(&receivers[i], NULL, receive_thread, &s->rings[i]), 0);
		assert_int_equal(pthread_create(&senders[i], NULL, send_thread, &s->rings[i]), 0);
	}
	for (uint32_t i = 0; vma_test_goes_on(fixture_now_ns(), end, stress_has_seen_all(s)); i++) {
		add_flows_with_traffic(s);
		add_and_delete_flows(s, i);
		move_flow(s, i);
		if (i % 4 == 0)
			make_and_end_queue_pair(s, i);
		if (i == 5)
			assert_int_equal(vma_nic_enable_hw_timestamps(s->nic), 0);
		vma_nic_set_tx_pacing_rate(s->rings[i % RINGS].qp, i % 3 * 1000000, 0);
		usleep(1000);
	}
	atomic_store(&s->stop, true);
	for (int i = 0; i < RINGS; i++) {
		pthread_join(receivers[i], NULL);
		pthread_join(senders[i], NULL);
	}
	for (int i = 0; i < RINGS; i++)
		print_message("# ring %d: %u frames, bound again %u times\n", i, atomic_load(&s->rings[i].received),
		              atomic_load(&s->rings[i].rebinds));
	print_message("# %u queues and %u devices have failed, %u flows were revoked\n",
	              atomic_load(&s->broken[LOOP_QUEUE_STOPS]), atomic_load(&s->broken[LOOP_DEVICE_GOES]),
	              atomic_load(&s->revoked));
	assert_true(stress_has_seen_all(s));
	close_rings_and_nic(s);
	/* A pool begins with one region; the nic's thread adds the others. */
	assert_true(loop.registered - registered > 2 * RINGS);
}

static void run_stress(bool removes_devices)
{
	const char *seconds = getenv("STRESS_SECONDS");
	const double s_all = seconds != NULL && atof(seconds) > 0 ? atof(seconds) : 1;
	struct stress *s = calloc(1, sizeof(*s));
	pthread_t breaker;

	s->arena = fixture_arena();
	s->removes_devices = removes_devices;
	assert_int_equal(pthread_create(&breaker, NULL, break_thread, s), 0);
	for (int i = 0; i < ROUNDS; i++)
		run_round(s, (uint64_t)(s_all * 1e9 / ROUNDS));
	atomic_store(&s->stop_breaking, true);
	pthread_join(breaker, NULL);
	assert_int_equal(atomic_load(&s->bad), 0);
	assert_int_equal(loop.bad_keys, 0);
	assert_int_equal(loop.alive, 0);
	vma_bufpool_flush_thread(s->arena);
	vma_bufarena_destroy(s->arena);
	free(s);
}

static void test_rings_send_and_receive_while_queues_fail_and_rules_come_and_go(void **state)
{
	(void)state;
	run_stress(false);
}

static void test_rings_send_and_receive_while_devices_fail(void **state)
{
	(void)state;
	run_stress(true);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_rings_send_and_receive_while_queues_fail_and_rules_come_and_go,
                               loop_skip_without_interface),
        cmocka_unit_test_setup(test_rings_send_and_receive_while_devices_fail, loop_skip_without_interface),
};

VMA_TEST_MAIN_WITH(tests, loop_begin, loop_end)
