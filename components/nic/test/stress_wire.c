/*
 * Stress: four queue pairs at each end, all in threads of their own, every sender to every receiver, receivers that
 * sleep, control calls meanwhile, indices that start just below the 32-bit wrap.
 *
 * A sender keeps at most WINDOW frames under way to each receiver, and every queue pair has buffers posted for more
 * than all windows together, so nothing may be lost, turned round or doubled. STRESS_SECONDS, default 1.
 */
#include <pthread.h>

#include "../wire/wire.h"
#include "fixture.h"

#define PORT 21000
#define WINDOW 40
#define DEPTH 256

struct stress {
	struct fixture w;
	_Atomic bool stop; /* senders; receivers stop later, since a sender in the middle waits for room */
	_Atomic bool stop_receiving;
	_Atomic uint32_t acked[FIXTURE_QPS][FIXTURE_QPS]; /* frames of sender s that receiver r has seen */
	_Atomic uint32_t sent[FIXTURE_QPS][FIXTURE_QPS];
	_Atomic uint32_t sleeps, bad;
};

struct stress_sender {
	struct stress *stress;
	int i;
};

static double wire_stress_seconds(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return text != NULL && atof(text) > 0 ? atof(text) : 1;
}

static void *wire_stress_sender_thread(void *arg)
{
	struct stress_sender *stress_sender = arg;
	struct stress *s = stress_sender->stress;
	int me = stress_sender->i;

	while (!atomic_load(&s->stop)) {
		bool idle = true;
		for (int r = 0; r < FIXTURE_QPS; r++) {
			uint32_t sent = atomic_load_explicit(&s->sent[me][r], memory_order_relaxed);
			if (sent - atomic_load(&s->acked[me][r]) >= WINDOW)
				continue;
			fixture_send(&s->w, 0, me,
			             udp((uint16_t)(PORT + me), (uint16_t)(PORT + r), 60 + sent % 900, sent));
			atomic_store(&s->sent[me][r], sent + 1);
			idle = false;
		}
		if (idle)
			sched_yield();
	}
	return NULL;
}

/* Everyone waits for someone's window, so a wake-up that is missed is a standstill. */
static void wait_readable_or_count_missed_wakeup(struct stress *s, int fd)
{
	for (int i = 0; i < 50; i++)
		if (wait_fd_readable(fd, 100) || atomic_load(&s->stop_receiving))
			return;
	atomic_fetch_add(&s->bad, 1);
}

static void *wire_stress_receiver_thread(void *arg)
{
	struct stress_sender *stress_sender = arg;
	struct stress *s = stress_sender->stress;
	int me = stress_sender->i;
	struct vma_nic_qp *qp = s->w.qp[1][me];
	struct packet *packet = malloc(sizeof(*packet));

	while (!atomic_load(&s->stop_receiving)) {
		if (!fixture_poll_one_packet(qp, packet)) {
			if (vma_nic_arm(qp) == 0) {
				atomic_fetch_add(&s->sleeps, 1);
				wait_readable_or_count_missed_wakeup(s, vma_nic_fd(qp));
			}
			continue;
		}
		uint32_t number = frame_number(packet->bytes, IPPROTO_UDP);
		int from = (packet->bytes[34] << 8 | packet->bytes[35]) - PORT;
		if (from < 0 || from >= FIXTURE_QPS || number != atomic_load(&s->acked[from][me]) ||
		    packet->len != 60 + number % 900 || packet->bytes[59] != frame_payload_byte_of_packet(number, 17)) {
			atomic_fetch_add(&s->bad, 1);
			continue;
		}
		atomic_store(&s->acked[from][me], number + 1);
	}
	free(packet);
	return NULL;
}

/* Flows and queue pairs that come and go beside the traffic, at both ends. */
static uint64_t wire_stress_count_acked_frames(struct stress *s)
{
	uint64_t frames = 0;

	for (int i = 0; i < FIXTURE_QPS; i++)
		for (int r = 0; r < FIXTURE_QPS; r++)
			frames += atomic_load_explicit(&s->acked[i][r], memory_order_relaxed);
	return frames;
}

static void reopen_queue_pairs_repeatedly(struct stress *s, uint64_t end_ns)
{
	struct vma_nic_qp_attr attr = {.rx_wre = 16, .tx_wre = 16};
	struct vma_wire_counts counts;

	for (uint32_t i = 0; vma_test_goes_on(fixture_now_ns(), end_ns, wire_stress_count_acked_frames(s) > 1000);
	     i++) {
		struct vma_nic_qp *qp = NULL;
		int end = (int)(i % 2);
		assert_int_equal(vma_nic_qp_create(s->w.nic[end], &attr, &qp), 0);
		for (uint16_t port = 1; port < 100; port++) {
			struct vma_flow_rule rule = make_flow_rule(end, IPPROTO_UDP, port, 0, 0);
			assert_int_equal(vma_nic_flow_add(qp, &rule), 0);
			if (port % 2 == 0)
				assert_int_equal(vma_nic_flow_del(qp, &rule.key), 0);
		}
		(void)vma_nic_arm(qp);
		vma_nic_qp_destroy(qp);
		vma_wire_read_counters(s->w.nic[end], &counts);
		usleep(500);
	}
}

static void run_wire_stress_threads(struct stress *s)
{
	struct stress_sender actors[FIXTURE_QPS];
	pthread_t senders[FIXTURE_QPS], receivers[FIXTURE_QPS];
	uint64_t total = 0;

	for (int i = 0; i < FIXTURE_QPS; i++) {
		fixture_create_qp_with_posted_rx(&s->w, 0, i, DEPTH);
		fixture_create_qp_with_posted_rx(&s->w, 1, i, DEPTH);
		fixture_add_flow(&s->w, 1, i, IPPROTO_UDP, (uint16_t)(PORT + i), 0, 0);
		actors[i] = (struct stress_sender){.stress = s, .i = i};
	}
	for (int i = 0; i < FIXTURE_QPS; i++) {
		assert_int_equal(pthread_create(&receivers[i], NULL, wire_stress_receiver_thread, &actors[i]), 0);
		assert_int_equal(pthread_create(&senders[i], NULL, wire_stress_sender_thread, &actors[i]), 0);
	}
	reopen_queue_pairs_repeatedly(s, fixture_now_ns() + (uint64_t)(wire_stress_seconds() * 1e9));
	for (uint64_t give_up = fixture_now_ns() + FIXTURE_TIMEOUT_NS;
	     fixture_now_ns() < give_up;) { /* still moving? */
		uint32_t before = atomic_load(&s->acked[0][0]);
		usleep(1000);
		if (atomic_load(&s->acked[0][0]) != before)
			break;
	}
	atomic_store(&s->stop, true);
	for (int i = 0; i < FIXTURE_QPS; i++)
		pthread_join(senders[i], NULL);
	atomic_store(&s->stop_receiving, true);
	for (int i = 0; i < FIXTURE_QPS; i++)
		pthread_join(receivers[i], NULL);
	assert_int_equal(atomic_load(&s->bad), 0);
	/* What was under way when everybody stopped is still there. */
	struct packet *packet = malloc(sizeof(*packet));
	for (int r = 0; r < FIXTURE_QPS; r++)
		while (fixture_poll_one_packet(s->w.qp[1][r], packet)) {
			int from = (packet->bytes[34] << 8 | packet->bytes[35]) - PORT;
			assert_in_range(from, 0, FIXTURE_QPS - 1);
			assert_int_equal(frame_number(packet->bytes, IPPROTO_UDP),
			                 atomic_fetch_add(&s->acked[from][r], 1));
		}
	free(packet);
	for (int i = 0; i < FIXTURE_QPS; i++)
		for (int r = 0; r < FIXTURE_QPS; r++) {
			assert_int_equal(atomic_load(&s->sent[i][r]), atomic_load(&s->acked[i][r]));
			total += atomic_load(&s->sent[i][r]);
		}
	print_message("%lu frames, %u sleeps\n", (unsigned long)total, atomic_load(&s->sleeps));
	assert_true(total > 1000);
}

static void wire_stress_close_and_free(struct stress *s)
{
	for (int end = 0; end < 2; end++)
		fixture_nic_close(&s->w, end);
	vma_bufpool_flush_thread(s->w.arena);
	vma_bufarena_destroy(s->w.arena);
	free(s);
}

static struct stress *wire_stress_alloc_with_arena(void)
{
	struct stress *s = calloc(1, sizeof(*s));

	s->w.arena = fixture_arena();
	s->w.netns[0] = s->w.netns[1] = -1;
	return s;
}

static void test_a_pair_loses_nothing_among_eight_threads(void **state)
{
	struct stress *s = wire_stress_alloc_with_arena();
	struct vma_wire_pair_attr attr = {.arena = {s->w.arena, s->w.arena}, .queue_frames = 64};

	(void)state;
	assert_int_equal(wire_pair_create(&attr, UINT32_MAX - 200, s->w.nic), 0);
	run_wire_stress_threads(s);
	wire_stress_close_and_free(s);
}

static void test_a_file_loses_nothing_among_eight_threads(void **state)
{
	struct stress *s = wire_stress_alloc_with_arena();
	struct vma_nic_attr attr = {.arena = s->w.arena};
	char spec[64];

	(void)state;
	snprintf(spec, sizeof(spec), "wire:/tmp/vma-wire-stress.%d", getpid());
	assert_int_equal(vma_nic_open(spec, &attr, &s->w.nic[0]), 0);
	assert_int_equal(vma_nic_open(spec, &attr, &s->w.nic[1]), 0);
	run_wire_stress_threads(s);
	wire_stress_close_and_free(s);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pair_loses_nothing_among_eight_threads),
        cmocka_unit_test(test_a_file_loses_nothing_among_eight_threads),
};

VMA_TEST_MAIN(tests)
