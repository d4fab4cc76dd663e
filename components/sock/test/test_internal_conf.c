/*
 * What the user's parameters make of the internal thread: each case runs in a child with an environment of its own.
 * seconds: 15
 * alone: a case looks at what has not happened by some time
 */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/packet.h>
#include <vma/test.h>

/* Bodies run in a child, which ends with the first thing that is not so, and does not go on as cmocka would. */
#define must(what)                                                                                                     \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                             \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
#undef assert_true
#undef assert_non_null
#undef assert_int_equal
#define assert_true(what) must(what)
#define assert_non_null(what) must((what) != NULL)
#define assert_int_equal(a, b) must((a) == (b))

#include "tcp_fixture.h"

VMA_TEST_FORKS_WITH_THREADS

/* ---- a child with an environment of its own ---- */

/* The arguments after `body` are "NAME=value" for the environment, up to NULL. */
static void run_body_in_child_with_env(void (*body)(void), char *const *environment)
{
	int status = -1;
	pid_t child = fork();

	if (child < 0)
		fail_msg("fork: %s", strerror(errno));
	if (child == 0) {
		void *state = NULL;

		alarm(120);
		for (; *environment != NULL; environment++)
			must(putenv(*environment) == 0);
		must(tcp_fixture_start(&state) == 0);
		body();
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0)
		fail_msg("the child has ended with %#x", (unsigned)status);
}
#define RUN_IN_CHILD_WITH_ENV(body, ...) run_body_in_child_with_env(body, (char *const[]){__VA_ARGS__, NULL})

static uint64_t ms_since(uint64_t since_ns)
{
	return (vma_now_ns() - since_ns) / MSEC;
}

/* ---- VMA_TIMER_RESOLUTION_MSEC ---- */

#define STEP (1000 * MSEC)

/*
 * Something is due in the middle of a step, to a silent peer: whether it has been looked at before the step is over.
 * -1: this thread had no core at the wrong moment.
 */
static int timer_ends_within_the_step(void)
{
	struct connection_pair connection_pair = tcp_fixture_connect_pair();
	uint64_t due, step;
	int ended;

	pause_peer(true);
	usleep(300000); /* what was due before has been looked at */
	while (vma_now_ns() % STEP < STEP * 2 / 10 || vma_now_ns() % STEP > STEP * 3 / 10)
		usleep(1000);
	step = vma_now_ns() / STEP;
	tcp_fixture_send_bytes(connection_pair.here, 1000);
	due = vma_tcp_next_due_ns(connection_pair.tcp);
	while (vma_now_ns() < step * STEP + STEP * 9 / 10)
		usleep(1000);
	ended = vma_tcp_next_due_ns(connection_pair.tcp) != due;
	if (due <= step * STEP || due >= step * STEP + STEP * 7 / 10 || vma_now_ns() / STEP != step)
		ended = -1;
	pause_peer(false);
	tcp_fixture_close_pair(&connection_pair);
	return ended;
}

/*
 * The internal thread may be late on a busy machine, for this step or for the one before, or this thread without a core
 * for a part of a step.
 */
static void expect_timer_ends_within_its_step_or_not(const char *test, int wanted)
{
	unsigned misses = 0;
	int ended;

	while ((ended = timer_ends_within_the_step()) != wanted &&
	       vma_test_remeasure(test, &misses, 10, "%s",
	                          ended < 0 ? "no timer in the middle of a step"
	                          : ended   ? "ended within the step"
	                                    : "ended in the next step"))
		;
	must(ended == wanted);
}

static void expect_timer_ends_in_next_step(void)
{
	expect_timer_ends_within_its_step_or_not(__func__, 0);
}

static void expect_timer_ends_within_its_step(void)
{
	expect_timer_ends_within_its_step_or_not(__func__, 1);
}

static void test_the_threads_timer_ends_at_multiples_of_its_resolution_if_that_is_set(void **state)
{
	(void)state;
	RUN_IN_CHILD_WITH_ENV(expect_timer_ends_in_next_step, "VMA_TIMER_RESOLUTION_MSEC=1000");
	RUN_IN_CHILD_WITH_ENV(expect_timer_ends_within_its_step, NULL);
}

/* A packet is no timer. */
static void expect_packet_at_once(void)
{
	struct connection_pair connection_pair = tcp_fixture_connect_pair();
	uint64_t began;

	wait_until(connection_pair.ring_ctx->armed);
	began = vma_now_ns();
	for (int i = 0; i < 5; i++) {
		wait_until(connection_pair.ring_ctx->armed);
		tcp_fixture_send_bytes(connection_pair.there, 1);
		wait_until(vma_tcp_readable_bytes(connection_pair.here) == 1);
		consume_all(connection_pair.here);
	}
	must(ms_since(began) < 3500);
}

static void test_packets_do_not_wait_for_the_threads_timer(void **state)
{
	(void)state;
	/* Five would wait for four seconds at least. What meets this thread in the ring may have to wait once. */
	RUN_IN_CHILD_WITH_ENV(expect_packet_at_once, "VMA_TIMER_RESOLUTION_MSEC=1000");
}

/* ---- VMA_TCP_TIMER_RESOLUTION_MSEC ---- */

/* The peer is silent: how many of the times that are due are multiples of 50 milliseconds. */
static unsigned count_timers_on_50ms_steps(void)
{
	struct connection_pair connection_pair = tcp_fixture_connect_pair();
	unsigned even = 0;

	pause_peer(true);
	usleep(300000); /* what was due before has been looked at */
	tcp_fixture_send_bytes(connection_pair.here, 1000);
	for (int i = 0; i < 4; i++) {
		const uint64_t due = vma_tcp_next_due_ns(connection_pair.tcp);

		even += due % (50 * MSEC) == 0;
		wait_until(vma_tcp_next_due_ns(connection_pair.tcp) != due);
	}
	return even;
}

static void expect_timers_on_50ms_steps(void)
{
	must(count_timers_on_50ms_steps() == 4);
}

static void expect_timers_not_on_steps(void)
{
	must(count_timers_on_50ms_steps() < 4);
}

static void test_timers_of_tcp_end_at_multiples_of_their_resolution_if_that_is_set(void **state)
{
	(void)state;
	RUN_IN_CHILD_WITH_ENV(expect_timers_on_50ms_steps, "VMA_TCP_TIMER_RESOLUTION_MSEC=50");
	RUN_IN_CHILD_WITH_ENV(expect_timers_not_on_steps, NULL);
}

/* ---- VMA_TCP_CTL_THREAD ---- */

static struct {
	struct vma_tcp_conn *_Atomic conn;
	_Atomic int thread;
} accepted;

static bool on_accept_record_thread_and_conn(struct vma_tcp_listener *listener, void *arg, struct vma_tcp_conn *conn)
{
	(void)listener, (void)arg;
	vma_tcp_conn_set_owner_and_replay_events(conn, &silent, NULL);
	atomic_store(&accepted.thread, gettid());
	atomic_store(&accepted.conn, conn);
	return true;
}
static const struct vma_tcp_listener_ops notes_thread = {.admit = tcp_fixture_admit,
                                                         .accepted = on_accept_record_thread_and_conn};

#define CONTROL_PORT 5100
#define CONNECTIONS 20

/*
 * The peer connects while this thread drives without a break. How many connections were made by it; of each, data
 * follows and arrives. The time that each took at least, in *least_ms.
 */
static unsigned count_conns_accepted_by_driving_thread(uint64_t *least_ms)
{
	struct vma_tcp_options options;
	struct vma_tcp_listen_attr attr = {.owner = &notes_thread,
	                                   .options = &options,
	                                   .family = AF_INET,
	                                   .local_port_be = htons(CONTROL_PORT),
	                                   .backlog = 16};
	struct vma_tcp_listener *listener;
	struct vma_tcp *tcp;
	struct vma_ring_ctx *ring_ctx = new_ring_ctx(&tcp);
	unsigned mine = 0;

	*least_ms = UINT64_MAX;
	vma_tcp_options_init(&options);
	memcpy(attr.local, address[0], 16);
	must(vma_tcp_listen(tcp, &attr, &listener) == 0);
	for (int i = 0; i < CONNECTIONS; i++) {
		const uint64_t began = vma_now_ns();
		struct vma_tcp_conn *from;

		atomic_store(&accepted.conn, NULL);
		from = tcp_fixture_connect_from(peer.tcp, 1, CONTROL_PORT);
		while (atomic_load(&accepted.conn) == NULL && ms_since(began) < TIMEOUT_MS)
			vma_ring_ctxs_progress(vma_ring_ctx_bit(ring_ctx));
		must(atomic_load(&accepted.conn) != NULL);
		if (ms_since(began) < *least_ms)
			*least_ms = ms_since(began);
		mine += atomic_load(&accepted.thread) == gettid();
		wait_until(vma_tcp_state(from) == TCP_ESTABLISHED);
		tcp_fixture_send_bytes(from, 3000);
		while (vma_tcp_readable_bytes(accepted.conn) < 3000 && ms_since(began) < TIMEOUT_MS)
			vma_ring_ctxs_progress(vma_ring_ctx_bit(ring_ctx));
		must(vma_tcp_readable_bytes(accepted.conn) == 3000);
		close_disown_and_put_conn(from);
		close_disown_and_put_conn(accepted.conn);
	}
	vma_tcp_listener_close(listener);
	return mine;
}

static void expect_conns_accepted_by_driving_thread(void)
{
	uint64_t least_ms;

	must(count_conns_accepted_by_driving_thread(&least_ms) > 0);
}

static void expect_conns_accepted_by_internal_thread(void)
{
	uint64_t least_ms;

	must(count_conns_accepted_by_driving_thread(&least_ms) == 0);
}

/* The request waits for one end of the timer, and what completes the handshake for the next. */
static void expect_conns_accepted_by_timer(void)
{
	uint64_t least_ms;

	must(count_conns_accepted_by_driving_thread(&least_ms) == 0);
	must(least_ms >= 30);
}

static void test_who_makes_connections_is_said_by_the_control_thread(void **state)
{
	(void)state;
	RUN_IN_CHILD_WITH_ENV(expect_conns_accepted_by_driving_thread, NULL);
	RUN_IN_CHILD_WITH_ENV(expect_conns_accepted_by_internal_thread, "VMA_TCP_CTL_THREAD=1");
	RUN_IN_CHILD_WITH_ENV(expect_conns_accepted_by_timer, "VMA_TCP_CTL_THREAD=2", "VMA_TIMER_RESOLUTION_MSEC=40");
}

/* ---- VMA_PROGRESS_ENGINE_INTERVAL and VMA_PROGRESS_ENGINE_WCE_MAX ---- */

static void expect_rx_delayed_at_least_200ms(void)
{
	struct connection_pair connection_pair = tcp_fixture_connect_pair();

	for (int i = 0; i < 3; i++) {
		uint64_t began;

		wait_until(connection_pair.ring_ctx->armed);
		began = vma_now_ns();
		tcp_fixture_send_bytes(connection_pair.there, 1);
		wait_until(vma_tcp_readable_bytes(connection_pair.here) == 1);
		must(ms_since(began) >= 200);
		consume_all(connection_pair.here);
	}
}

static void expect_internal_thread_never_polls_ring(void)
{
	struct connection_pair connection_pair;
	struct vma_tcp_counts counts;

	/* Nobody else would take the answer. */
	atomic_store(&peer.accepted, NULL);
	connection_pair.ring_ctx = new_ring_ctx(&connection_pair.tcp);
	connection_pair.here = tcp_fixture_connect_from(connection_pair.tcp, 0, PORT);
	usleep(300000);
	must(vma_tcp_state(connection_pair.here) == TCP_SYN_SENT);
	while (vma_tcp_state(connection_pair.here) != TCP_ESTABLISHED)
		vma_ring_ctxs_progress(vma_ring_ctx_bit(connection_pair.ring_ctx));
	wait_until(atomic_load(&peer.accepted) != NULL);
	connection_pair.there = atomic_load(&peer.accepted);
	usleep(300000);
	tcp_fixture_send_bytes(connection_pair.there, 1);
	usleep(50000);
	must(vma_tcp_readable_bytes(connection_pair.here) == 0);
	while (vma_tcp_readable_bytes(connection_pair.here) == 0)
		vma_ring_ctxs_progress(vma_ring_ctx_bit(connection_pair.ring_ctx));
	/* Timers are kept all the same. */
	pause_peer(true);
	tcp_fixture_send_bytes(connection_pair.here, 1000);
	wait_until((vma_tcp_read_counters(connection_pair.tcp, &counts), counts.retransmits + counts.tail_probes > 0));
}

static void test_the_users_interval_holds_for_tcp_if_it_is_set(void **state)
{
	(void)state;
	RUN_IN_CHILD_WITH_ENV(expect_rx_delayed_at_least_200ms, "VMA_PROGRESS_ENGINE_INTERVAL=200");
	RUN_IN_CHILD_WITH_ENV(expect_packet_at_once,
	                      "VMA_SPEC=latency"); /* the profile's own value is not set by anybody */
	RUN_IN_CHILD_WITH_ENV(expect_internal_thread_never_polls_ring, "VMA_PROGRESS_ENGINE_INTERVAL=0");
	RUN_IN_CHILD_WITH_ENV(expect_internal_thread_never_polls_ring, "VMA_PROGRESS_ENGINE_WCE_MAX=0");
}

/* ---- threads that seem to drive ---- */

static struct vma_ring_ctx *_Atomic shown_driven;

/* To the internal thread the ring context seems to be driven by somebody all the time. */
static void *count_ring_as_driven_until_stop(void *arg)
{
	(void)arg;
	for (;;) {
		struct vma_ring_ctx *ring_ctx = atomic_load(&shown_driven);

		if (ring_ctx != NULL)
			atomic_fetch_add(&ring_ctx->driven, 1);
		usleep(20);
	}
	return NULL;
}

static void start_thread_faking_ring_driven(struct vma_ring_ctx *ring_ctx)
{
	pthread_t thread;

	must(pthread_create(&thread, NULL, count_ring_as_driven_until_stop, NULL) == 0);
	atomic_store(&shown_driven, ring_ctx);
	usleep(20000);
}

/* ---- VMA_INTERNAL_THREAD_ARM_CQ ---- */

static bool send_byte_and_is_received_within(const struct connection_pair *connection_pair, unsigned for_ms)
{
	const uint64_t began = vma_now_ns();

	tcp_fixture_send_bytes(connection_pair->there, 1);
	while (vma_tcp_readable_bytes(connection_pair->here) == 0 && ms_since(began) < for_ms)
		usleep(1000);
	return vma_tcp_readable_bytes(connection_pair->here) != 0;
}

static void expect_tcp_packet_though_others_seem_to_drive(void)
{
	struct connection_pair connection_pair = tcp_fixture_connect_pair();

	start_thread_faking_ring_driven(connection_pair.ring_ctx);
	for (int i = 0; i < 10; i++) {
		must(send_byte_and_is_received_within(&connection_pair, TIMEOUT_MS));
		consume_all(connection_pair.here);
	}
}

static void expect_no_tcp_packet_in_300ms(void)
{
	struct connection_pair connection_pair = tcp_fixture_connect_pair();

	wait_until(connection_pair.ring_ctx->armed);
	must(!send_byte_and_is_received_within(&connection_pair, 300));
}

static _Atomic unsigned datagrams;

static bool count_datagram(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)flow, (void)packet, (void)info;
	atomic_fetch_add(&datagrams, 1);
	return false;
}

static void send_datagram(void)
{
	const struct vma_pkt_udp_attr attr = {
	        .src_ip = {10, 0, 0, 2}, .dst_ip = {10, 0, 0, 1}, .src_port_be = htons(1), .dst_port_be = htons(2)};
	struct vma_buf *buf = vma_ring_tx_buf(peer.ring);
	struct vma_nic_seg seg = {.buf = buf};
	struct vma_pkt_udp headers;

	must(buf != NULL);
	vma_pkt_udp_init(&headers, &attr);
	seg.off = buf->data_off;
	memset(vma_buf_data(device.engine->arena, buf) + headers.len, 'x', 8);
	seg.len = vma_pkt_udp_write(&headers, vma_buf_data(device.engine->arena, buf), 8, VMA_PKT_CSUM_FULL);
	must(vma_ring_send(peer.ring, &seg, 1, 0) == 1);
}

/* Of ten datagrams, one after the other, how many are taken within some time. */
static unsigned send_ten_datagrams_count_taken_in_time(unsigned for_ms)
{
	struct vma_flow flow = {
	        .key = {.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = htons(2), .local = {10, 0, 0, 1}},
	        .sink = count_datagram};
	struct vma_ring_requester where = {.socket_id = 4711};
	struct vma_ring_ctx *ring_ctx = NULL;

	must(vma_ring_ctx_find_or_create(&device, VMA_RING_CTX_RX, &where, &ring_ctx) == 0);
	must(vma_ring_attach_flow(ring_ctx->ring, &flow) == 0);
	usleep(100000);
	start_thread_faking_ring_driven(ring_ctx);
	for (unsigned i = 0; i < 10; i++) {
		const uint64_t began = vma_now_ns();

		send_datagram();
		while (atomic_load(&datagrams) == i && ms_since(began) < for_ms)
			usleep(1000);
		if (atomic_load(&datagrams) == i)
			return i;
	}
	return 10;
}

static void expect_all_datagrams_taken(void)
{
	must(send_ten_datagrams_count_taken_in_time(TIMEOUT_MS) == 10);
}

static void expect_no_datagram_taken_in_300ms(void)
{
	must(send_ten_datagrams_count_taken_in_time(300) == 0);
}

static void test_each_packet_wakes_the_thread_if_that_is_set(void **state)
{
	(void)state;
	RUN_IN_CHILD_WITH_ENV(expect_tcp_packet_though_others_seem_to_drive, "VMA_INTERNAL_THREAD_ARM_CQ=1",
	                      "VMA_PROGRESS_ENGINE_INTERVAL=60000");
	RUN_IN_CHILD_WITH_ENV(expect_no_tcp_packet_in_300ms, "VMA_PROGRESS_ENGINE_INTERVAL=1500");
	RUN_IN_CHILD_WITH_ENV(expect_all_datagrams_taken, "VMA_INTERNAL_THREAD_ARM_CQ=1",
	                      "VMA_PROGRESS_ENGINE_INTERVAL=60000");
	RUN_IN_CHILD_WITH_ENV(expect_no_datagram_taken_in_300ms, "VMA_PROGRESS_ENGINE_INTERVAL=60000");
}

/* ---- VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING ---- */

/*
 * The ring context is watched, as one that others drive, and is not looked at any more. The thread may be about to arm
 * it at that very moment: then once more.
 */
static void wait_until_ring_ctx_is_left_unchecked(const struct connection_pair *connection_pair)
{
	do {
		send_byte_and_is_received_within(connection_pair, 1); /* the packet that it may sleep for */
		atomic_store(&connection_pair->ring_ctx->check_ns, UINT64_MAX);
		usleep(10000);
	} while (connection_pair->ring_ctx->armed || atomic_load(&connection_pair->ring_ctx->check_ns) != UINT64_MAX);
}

/* The peer is silent, and others are to drive: whether what is due is looked at within some time. */
static bool due_tcp_timer_is_run_within(unsigned for_ms)
{
	struct connection_pair connection_pair = tcp_fixture_connect_pair();
	uint64_t due;

	start_thread_faking_ring_driven(connection_pair.ring_ctx);
	wait_until_ring_ctx_is_left_unchecked(&connection_pair);
	pause_peer(true);
	vma_ring_progress(connection_pair.ring_ctx->ring);
	tcp_fixture_send_bytes(connection_pair.here, 1000);
	due = vma_tcp_next_due_ns(connection_pair.tcp);
	while (vma_tcp_next_due_ns(connection_pair.tcp) <= due && vma_now_ns() < due + for_ms * MSEC)
		usleep(1000);
	return vma_tcp_next_due_ns(connection_pair.tcp) > due;
}

static void expect_due_tcp_timer_is_run(void)
{
	must(due_tcp_timer_is_run_within(TIMEOUT_MS));
}

static void expect_due_tcp_timer_not_run(void)
{
	must(!due_tcp_timer_is_run_within(200));
}

static void test_who_keeps_timers_while_others_drive_is_said_by_the_handling(void **state)
{
	(void)state;
	RUN_IN_CHILD_WITH_ENV(expect_due_tcp_timer_is_run, "VMA_INTERNAL_THREAD_TCP_TIMER_HANDLING=1");
	RUN_IN_CHILD_WITH_ENV(expect_due_tcp_timer_not_run, NULL);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_threads_timer_ends_at_multiples_of_its_resolution_if_that_is_set),
        cmocka_unit_test(test_packets_do_not_wait_for_the_threads_timer),
        cmocka_unit_test(test_timers_of_tcp_end_at_multiples_of_their_resolution_if_that_is_set),
        cmocka_unit_test(test_who_makes_connections_is_said_by_the_control_thread),
        cmocka_unit_test(test_the_users_interval_holds_for_tcp_if_it_is_set),
        cmocka_unit_test(test_each_packet_wakes_the_thread_if_that_is_set),
        cmocka_unit_test(test_who_keeps_timers_while_others_drive_is_said_by_the_handling),
};

VMA_TEST_MAIN(tests)
