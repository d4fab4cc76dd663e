/*
 * The control path against threads that poll: protocols that come and go, flows that are attached, steered and detached
 * at the same time. A protocol that was ended does not run; runs never overlap; what was due or posted runs without a
 * further call; and when all is quiet, the device has exactly the rules of those that were steered. STRESS_SECONDS.
 */
#include <netinet/in.h>
#include <sched.h>
#include <time.h>

#include "device_rules.h"
#include "frames.h"

enum { POLLERS = 2, STEERERS = 2, CONNS = 6 };

static struct fake_nic fake;
static struct vma_ring *ring;
static _Atomic bool stop;

static time_t stress_end_time_from_env(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return time(NULL) + 2 + (text != NULL ? (time_t)atof(text) : 0);
}

static void *poll_ring_until_stop(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		if (vma_ring_progress(ring) <= 0)
			sched_yield();
	}
	return NULL;
}

static void control_start_threads(pthread_t *threads, unsigned n, void *(*main)(void *))
{
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, main, (void *)(uintptr_t)i), 0);
}

static void control_join_threads(pthread_t *threads, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

/* ---- protocols ---- */

struct protocol {
	struct vma_ring_proto_ops proto_ops; /* first */
	unsigned runs;                       /* with the flag */
	_Atomic bool ended, due;
	_Atomic unsigned wrong;
};

static _Atomic unsigned in_runs;
static struct protocol protocols[2];

static bool control_proto_run_check_no_overlap(struct vma_ring_proto_ops *proto_ops, bool last)
{
	struct protocol *p = (struct protocol *)proto_ops;

	(void)last;
	if (atomic_fetch_add(&in_runs, 1) != 0 || atomic_load(&p->ended))
		atomic_fetch_add(&p->wrong, 1);
	atomic_store(&p->due, false);
	p->runs++;
	atomic_fetch_sub(&in_runs, 1);
	return false;
}

static bool control_is_due(struct vma_ring_proto_ops *proto_ops)
{
	return atomic_load(&((struct protocol *)proto_ops)->due);
}

/* Whether there is time left, or too little has happened: cores may be scarce. */
static bool stress_should_continue(time_t until, bool seen)
{
	return vma_test_goes_on((uint64_t)time(NULL) * 1000000000, (uint64_t)until * 1000000000, seen);
}

static void make_protocol_due_and_wait_for_run(struct protocol *p)
{
	time_t backoff = time(NULL) + 20;

	atomic_store(&p->due, true);
	while (atomic_load(&p->due)) {
		assert_true(time(NULL) < backoff);
		sched_yield();
	}
}

static void test_a_protocol_runs_whenever_it_is_due_and_never_after_its_end(void **state)
{
	pthread_t pollers[POLLERS];
	const time_t until = stress_end_time_from_env();
	unsigned rounds = 0;

	(void)state;
	fake_init(&fake, 0);
	fake.tells_quiet = true;
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	atomic_store(&stop, false);
	for (int i = 0; i < 2; i++)
		protocols[i] = (struct protocol){
		        .proto_ops = {.run = control_proto_run_check_no_overlap, .is_due = control_is_due},
		        .ended = true};
	control_start_threads(pollers, POLLERS, poll_ring_until_stop);
	for (; stress_should_continue(until, rounds > 10); rounds++) {
		struct protocol *p = &protocols[rounds % 2], *before = &protocols[1 - rounds % 2];

		atomic_store(&p->ended, false);
		vma_ring_attach_proto(ring, &p->proto_ops);
		atomic_store(&before->ended, true);
		make_protocol_due_and_wait_for_run(p);
		if (rounds % 3 == 0) {
			vma_ring_attach_proto(ring, NULL);
			atomic_store(&p->ended, true);
		}
	}
	vma_ring_attach_proto(ring, NULL);
	atomic_store(&stop, true);
	control_join_threads(pollers, POLLERS);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(atomic_load(&protocols[i].wrong), 0);
		assert_true(protocols[i].runs >= rounds / 2);
	}
	assert_true(rounds > 10);
	print_message("%u protocols\n", rounds);
	vma_ring_destroy(ring);
	fake_fini(&fake);
}

/* ---- flows ---- */

struct conn {
	struct vma_flow flow; /* first */
	bool attached;
	_Atomic unsigned steered;
};

static struct conn conns[CONNS];

static bool control_sink_take_nothing(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)flow, (void)packet, (void)info;
	return false;
}

static void slow_down_by_yield(void)
{
	sched_yield();
}

static int device_add_rule_slowly(struct fake_nic *nic, const struct vma_flow_rule *rule)
{
	int rc;

	slow_down_by_yield();
	rc = fake_device_add_rule(nic, rule);
	slow_down_by_yield();
	return rc;
}

/* Steers whatever is there, at any time; -EINVAL is the answer for what is not, or has gone meanwhile. */
static void *steer_conns_until_stop(void *arg)
{
	unsigned i = (unsigned)(uintptr_t)arg;

	for (; !atomic_load(&stop); i++) {
		struct conn *conn = &conns[i % CONNS];
		int rc = vma_ring_request_nic_rule_of_flow(ring, &conn->flow);

		if (rc != 0 && rc != -EINVAL)
			abort();
		atomic_fetch_add_explicit(&conn->steered, rc == 0, memory_order_relaxed);
	}
	return NULL;
}

static unsigned control_count_steers(void)
{
	unsigned steered = 0;

	for (unsigned i = 0; i < CONNS; i++)
		steered += atomic_load(&conns[i].steered);
	return steered;
}

static bool is_ring_only_in_three_of_four_rounds(unsigned round)
{
	return round % 4 != 3;
}

static void test_the_device_has_the_rules_of_what_is_steered_whatever_ends_meanwhile(void **state)
{
	pthread_t pollers[1], steerers[STEERERS];
	const time_t until = stress_end_time_from_env();
	unsigned rounds = 0;

	(void)state;
	fake_init(&fake, 0);
	fake_device_reset_rules(&fake);
	fake.in_flow_add = device_add_rule_slowly;
	ring = fake_nic_create_ring(&fake, VMA_THREAD_YIELD);
	atomic_store(&stop, false);
	for (unsigned i = 0; i < CONNS; i++)
		conns[i] =
		        (struct conn){.flow = {.key = flow_key(IPPROTO_TCP, frame_dst_ip, 80, (uint16_t)(1000 + i / 2)),
		                               .sink = control_sink_take_nothing}};
	control_start_threads(pollers, 1, poll_ring_until_stop);
	control_start_threads(steerers, STEERERS, steer_conns_until_stop);
	for (; stress_should_continue(until, rounds > 10 && control_count_steers() > 0); rounds++) {
		struct conn *conn = &conns[rounds % CONNS];

		if (conn->attached) {
			vma_ring_detach_flow(ring, &conn->flow);
		} else {
			assert_true(vma_ring_acquire(ring)); /* steer reads the flags with the flag */
			conn->flow.flags =
			        is_ring_only_in_three_of_four_rounds(rounds / CONNS) ? VMA_FLOW_RING_ONLY : 0;
			assert_int_equal(vma_ring_attach_flow(ring, &conn->flow), 0);
			vma_ring_release(ring);
		}
		conn->attached = !conn->attached;
		if (rounds % 16 < CONNS) /* for a while all that are there stay */
			slow_down_by_yield();
	}
	atomic_store(&stop, true);
	control_join_threads(pollers, 1);
	control_join_threads(steerers, STEERERS);
	for (unsigned i = 0; i < CONNS; i++) {
		if (!conns[i].attached)
			continue;
		assert_int_equal(vma_ring_request_nic_rule_of_flow(ring, &conns[i].flow), 0);
		assert_true(fake_device_has_rule(&conns[i].flow.key));
	}
	for (unsigned i = 0; i < CONNS; i++)
		vma_ring_detach_flow(ring, &conns[i].flow);
	assert_int_equal(device.count, 0);
	assert_true(rounds > 10 && control_count_steers() > 0);
	print_message("%u flows came or went, %u were steered\n", rounds, control_count_steers());
	vma_ring_destroy(ring);
	fake_fini(&fake);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_protocol_runs_whenever_it_is_due_and_never_after_its_end),
        cmocka_unit_test(test_the_device_has_the_rules_of_what_is_steered_whatever_ends_meanwhile),
};
VMA_TEST_MAIN(tests)
