/*
 * A queue pair of the verbs backend whose device has gone, on a card in this process. The device goes with the n-th call
 * that something takes, for each n there is.
 */
#include <sys/mman.h>

#include "fixture.h"
#include "loop_card.h"

/* ---- what the log says ---- */

static int log_fd = -1;

static void rebind_log_begin(void)
{
	char path[32];

	log_fd = memfd_create("log", MFD_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", log_fd);
	assert_int_equal(vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_WARN, .file = path}), 0);
}

/* ---- a queue pair with flows ---- */

enum { FLOWS = 3, RATE = 1000000 };

static const struct {
	uint8_t proto;
	uint16_t port, peer_port;
	uint32_t flags;
} flows[FLOWS] = {{IPPROTO_UDP, 1, 0, 0}, {IPPROTO_TCP, 2, 3, 0}, {IPPROTO_TCP, 4, 0, VMA_FLOW_LISTENER}};

static struct rebind_world {
	struct vma_bufarena *arena;
	struct vma_nic *nic;
	struct vma_nic_qp *qp;
	_Atomic unsigned revoked, revoked_while_bound;
	_Atomic bool rebinds_once_revoked, rebinds_always, is_rebound;
	_Atomic unsigned attempts;
	bool lacked_memory;
} world;

/* Lines about a lost queue, and one about a device that cannot be opened, may be there; and no others. */
static void assert_log_blames_the_device_only(void)
{
	static char text[1 << 16];
	char *rest, *line;
	ssize_t len = pread(log_fd, text, sizeof(text) - 1, 0);

	assert_true(len >= 0);
	text[len] = '\0';
	vma_log_fini();
	close(log_fd);
	vma_log_set_level(VMA_LOG_ERROR);
	for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
		if (strstr(line, "has stopped its queue") == NULL && strstr(line, "is not used: opening it") == NULL &&
		    !(world.lacked_memory && strstr(line, "no more memory for its card") != NULL))
			fail_msg("%s", line);
	}
}

static struct nic_verbs *world_nic(void)
{
	return (struct nic_verbs *)world.nic;
}

static struct vma_flow_rule world_flow_rule(int i)
{
	return make_flow_rule(1, flows[i].proto, flows[i].port, flows[i].peer_port, flows[i].flags);
}

static bool world_flows_are_revoked(void)
{
	bool any;

	pthread_mutex_lock(&world_nic()->lock);
	any = world_nic()->revoked != NULL || world_nic()->flows_n == 0;
	pthread_mutex_unlock(&world_nic()->lock);
	return any;
}

static void world_on_event(struct vma_nic_qp *qp, enum vma_nic_event event, const struct vma_flow_key *key, void *arg)
{
	(void)key, (void)arg;
	if (event == VMA_NIC_EVENT_FLOW_REVOKED) {
		atomic_fetch_add(&world.revoked, 1);
		if (!vma_nic_qp_lost(qp))
			atomic_fetch_add(&world.revoked_while_bound, 1);
	} else if (atomic_load(&world.rebinds_always)) {
		atomic_fetch_add(&world.attempts, 1);
		vma_nic_qp_rebind(qp);
	} else if (atomic_load(&world.rebinds_once_revoked)) {
		if (world_flows_are_revoked())
			loop.refuses_open = false;
		if (vma_nic_qp_rebind(qp) == 0)
			atomic_store(&world.is_rebound, true);
	}
}

static int world_qp_create(uint32_t rx_wre)
{
	const struct vma_nic_qp_attr ring = {.rx_wre = rx_wre, .tx_wre = 64, .name = "ring", .event = world_on_event};

	return vma_nic_qp_create(world.nic, &ring, &world.qp);
}

static void world_open(void)
{
	const struct vma_nic_attr attr = {.arena = world.arena, .unwatched = true};

	assert_int_equal(vma_nic_open("verbs:lo", &attr, &world.nic), 0);
}

static void world_begin(void)
{
	memset(&world, 0, sizeof(world));
	world.arena = fixture_arena();
	loop.calls_to_go = 0;
	loop.goes_unannounced = loop.hides_its_going = loop.refuses_open = loop.refuses_memory = false;
	rebind_log_begin();
}

static void world_add_flows_and_pace(void)
{
	for (int i = 0; i < FLOWS; i++)
		assert_int_equal(vma_nic_flow_add(world.qp, &(struct vma_flow_rule){.key = world_flow_rule(i).key,
		                                                                    .flags = flows[i].flags}),
		                 0);
	assert_int_equal(vma_nic_set_tx_pacing_rate(world.qp, RATE, 0), 0);
}

static void world_end(void)
{
	vma_nic_qp_destroy(world.qp);
	vma_nic_close(world.nic);
	world.qp = NULL;
	vma_bufarena_destroy(world.arena);
	assert_log_blames_the_device_only();
	assert_int_equal(loop.alive, 0);
}

static void world_await_lost(void)
{
	while (!vma_nic_qp_lost(world.qp))
		usleep(500);
}

static void assert_flows_are_in_the_card(void)
{
	unsigned rules = 0;

	for (int i = 0; i < FLOWS; i++)
		assert_int_equal(vma_nic_flow_add(world.qp, &(struct vma_flow_rule){.key = world_flow_rule(i).key,
		                                                                    .flags = flows[i].flags}),
		                 -EEXIST);
	for (const struct loop_rule *rule = loop.rules; rule != NULL; rule = rule->next)
		rules++;
	assert_int_equal(rules, FLOWS);
	assert_int_equal(atomic_load(&world.revoked), 0);
	assert_int_equal(verbs_qp_of(world.qp)->pace_kbps, RATE / 125);
}

static void world_begin_with_stopped_queue(void)
{
	world_begin();
	world_open();
	assert_int_equal(world_qp_create(64), 0);
	world_add_flows_and_pace();
	assert_true(loop_break(LOOP_QUEUE_STOPS, 0));
	world_await_lost();
}

/* ---- cases ---- */

/* The queue has failed, and the device goes while there is to be another one. It is back at once. */
static void rebind_while_device_goes(bool unannounced, bool hidden)
{
	uint32_t n = 1, left;

	do {
		world_begin_with_stopped_queue();
		loop.goes_unannounced = unannounced;
		loop.hides_its_going = hidden;
		loop.calls_to_go = n;
		assert_int_equal(vma_nic_qp_rebind(world.qp), 0);
		left = loop.calls_to_go;
		loop.calls_to_go = 0;
		assert_false(vma_nic_qp_lost(world.qp));
		assert_flows_are_in_the_card();
		world_end();
		n++;
	} while (left == 0);
	assert_true(n > 10); /* a queue takes some calls */
}

static void test_a_device_that_goes_during_a_rebind_costs_no_flow_and_no_line(void **state)
{
	(void)state;
	rebind_while_device_goes(false, false);
}

static void test_a_device_that_goes_during_a_rebind_is_found_gone_before_its_event(void **state)
{
	(void)state;
	rebind_while_device_goes(true, false);
}

static void test_a_device_that_goes_during_a_rebind_may_answer_queries_still(void **state)
{
	(void)state;
	rebind_while_device_goes(false, true);
}

static void test_a_device_that_goes_for_good_during_a_rebind_leaves_nothing(void **state)
{
	uint32_t n = 1, left;

	(void)state;
	do {
		world_begin_with_stopped_queue();
		loop.refuses_open = true;
		loop.calls_to_go = n;
		vma_nic_qp_rebind(world.qp);
		left = loop.calls_to_go;
		loop.calls_to_go = 0;
		assert_int_equal(vma_nic_qp_lost(world.qp), left == 0);
		world_end();
		n++;
	} while (left == 0);
}

/* Whatever goes wrong is said once, of the queue pair that is not made, and of no memory and no rules. */
static void test_a_device_that_goes_while_memory_grows_or_flows_come_is_no_want_of_either(void **state)
{
	uint32_t n = 1, left;
	int rc;

	(void)state;
	do {
		world_begin();
		world_open();
		assert_int_equal(world_qp_create(64), 0);
		loop.goes_unannounced = true;
		loop.refuses_open = true;
		loop.calls_to_go = n;
		for (int i = 0; i < FLOWS; i++) {
			const struct vma_flow_rule rule = world_flow_rule(i);

			rc = vma_nic_flow_add(world.qp, &(struct vma_flow_rule){.key = rule.key, .flags = rule.flags});
			assert_int_equal(rc, loop.calls_to_go == 0 ? -EPIPE : 0);
		}
		assert_int_equal(vma_nic_set_tx_pacing_rate(world.qp, RATE, 0), 0);
		assert_int_equal(verbs_qp_of(world.qp)->pace_kbps, RATE / 125);
		left = loop.calls_to_go;
		if (left == 0)
			world_await_lost();
		loop.calls_to_go = 0;
		world_end();
		n++;
	} while (left == 0);
	assert_int_equal(n, 1 + FLOWS + 2); /* a call for each, and one more with which nothing goes */
	for (n = 1; n < 4; n++) {
		world_begin();
		world_open();
		loop.goes_unannounced = true;
		loop.refuses_open = true;
		pthread_mutex_lock(&world_nic()->events); /* the nic's thread does not get beyond its first window */
		pthread_mutex_unlock(&world_nic()->events);
		assert_int_equal(world_qp_create(3 * 4096), 0);
		pthread_mutex_lock(&world_nic()->lock);
		if (verbs_qp_of(world.qp)->rx_memory->frames < verbs_qp_of(world.qp)->rx_memory->wanted)
			loop.calls_to_go = 1;
		left = loop.calls_to_go;
		pthread_mutex_unlock(&world_nic()->lock);
		if (left != 0)
			world_await_lost();
		world_end();
	}
}

static void test_flows_that_a_lost_queue_pair_gives_up_are_told_of_before_it_is_bound_again(void **state)
{
	(void)state;
	world_begin();
	world_open();
	assert_int_equal(world_qp_create(64), 0);
	world_add_flows_and_pace();
	loop.refuses_open = true;
	atomic_store(&world.rebinds_once_revoked, true);
	assert_true(loop_break(LOOP_DEVICE_GOES, 0));
	while (!atomic_load(&world.is_rebound) || atomic_load(&world.revoked) < FLOWS)
		usleep(1000);
	assert_int_equal(atomic_load(&world.revoked_while_bound), 0);
	world_end();
}

/* ---- buffers of other pools ---- */

#define OTHERS 4

static struct vma_bufarena *arena;
static struct vma_nic_qp *qp;
static struct vma_bufpool *others[OTHERS]; /* one of them has the place of a pool that has ended */
static unsigned looks;

static void give_places_of_ended_pools_away(void)
{
	const struct vma_bufpool_attr other = {.arena = arena, .name = "other"};
	uint32_t first;

	for (int i = 0; i < OTHERS && others[i] == NULL; i++) {
		assert_int_equal(vma_bufpool_create(&other, &others[i]), 0);
		assert_int_equal(vma_bufarena_map_memory(arena, 64, &first), 0);
		assert_int_equal(vma_bufpool_add_frames(others[i], first, 64), 0);
	}
}

static void expect_no_buffers(void)
{
	struct vma_buf *buf;

	assert_int_equal(vma_bufpool_get(atomic_load(&qp->rx_pool), &buf, 1), 0);
	assert_int_equal(vma_bufpool_get(atomic_load(&qp->tx_pool), &buf, 1), 0);
}

/* Of a rebind that has ended the old binding: senders look without waiting for it. */
static void look_while_the_device_is_opened(void)
{
	give_places_of_ended_pools_away();
	expect_no_buffers();
	looks++;
}

static struct vma_bufpool *looked_up; /* by a sender that has not taken a buffer yet */

/* None, or one of the queue pair's. */
static void expect_no_buffer_of_another_pool_for_a_late_sender(void)
{
	struct vma_buf *buf;

	if (vma_bufpool_get(looked_up, &buf, 1) == 0)
		return;
	assert_int_equal(buf->pool, vma_bufpool_id(atomic_load(&qp->tx_pool)));
	vma_buf_put(arena, buf);
}

static void open_nic_and_lose_its_device(struct vma_nic **nic)
{
	const struct vma_nic_qp_attr ring = {.rx_wre = 64, .tx_wre = 64, .name = "ring"};

	arena = fixture_arena();
	looks = 0;
	assert_int_equal(vma_nic_open("verbs:lo", &(struct vma_nic_attr){.unwatched = true, .arena = arena}, nic), 0);
	assert_int_equal(vma_nic_qp_create(*nic, &ring, &qp), 0);
	looked_up = atomic_load(&qp->tx_pool);
	assert_int_equal(
	        vma_nic_flow_add(qp, &(struct vma_flow_rule){.key = make_flow_rule(1, IPPROTO_UDP, 1, 0, 0).key}), 0);
	loop.refuses_open = true;
	assert_true(loop_break(LOOP_DEVICE_GOES, 0));
	while (!vma_nic_qp_lost(qp))
		usleep(1000);
}

static void bind_again_and_close(struct vma_nic *nic)
{
	struct vma_buf *buf;

	loop.refuses_open = false;
	assert_int_equal(vma_nic_qp_rebind(qp), 0);
	expect_no_buffer_of_another_pool_for_a_late_sender();
	assert_int_equal(vma_bufpool_get(atomic_load(&qp->tx_pool), &buf, 1), 1);
	vma_buf_put(arena, buf);
	vma_nic_qp_destroy(qp);
	vma_nic_close(nic);
	for (int i = 0; i < OTHERS; i++) {
		vma_bufpool_retire(others[i], NULL, NULL);
		others[i] = NULL;
	}
	vma_bufarena_destroy(arena);
	assert_int_equal(loop.alive, 0);
}

static void test_a_queue_pair_without_a_device_gives_no_buffers_of_another_pool(void **state)
{
	struct vma_nic *nic;

	(void)state;
	open_nic_and_lose_its_device(&nic);
	assert_int_equal(vma_nic_qp_rebind(qp), -EAGAIN);
	give_places_of_ended_pools_away();
	expect_no_buffers();
	expect_no_buffer_of_another_pool_for_a_late_sender();
	bind_again_and_close(nic);
}

static void test_a_queue_pair_gives_no_buffers_of_another_pool_while_it_is_bound_again(void **state)
{
	struct vma_nic *nic;

	(void)state;
	open_nic_and_lose_its_device(&nic);
	loop.in_open = look_while_the_device_is_opened;
	assert_int_equal(vma_nic_qp_rebind(qp), -EAGAIN);
	assert_int_equal(vma_nic_qp_rebind(qp), -EAGAIN);
	loop.in_open = NULL;
	assert_int_equal(looks, 2);
	bind_again_and_close(nic);
}

/* Ten times a second. The first and the last one come in between, and a wake-up that was under way. */
static void attempts_keep_their_pause(enum loop_fault fault)
{
	uint64_t begun_ms;

	world_begin();
	world_open();
	assert_int_equal(world_qp_create(64), 0);
	world_add_flows_and_pace();
	atomic_store(&world.rebinds_always, true);
	loop.refuses_open = loop.refuses_memory = world.lacked_memory = true;
	begun_ms = fixture_now_ns() / 1000000;
	assert_true(loop_break(fault, 0));
	while (atomic_load(&world.attempts) < 5)
		usleep(1000);
	usleep(100000);
	assert_true(atomic_load(&world.attempts) <= (fixture_now_ns() / 1000000 - begun_ms) / 100 + 3);
	assert_true(vma_nic_qp_lost(world.qp));
	loop.refuses_open = loop.refuses_memory = false;
	while (vma_nic_qp_lost(world.qp))
		usleep(1000);
	world_end();
}

static void test_a_device_that_has_gone_is_looked_for_with_pauses(void **state)
{
	(void)state;
	attempts_keep_their_pause(LOOP_DEVICE_GOES);
}

static void test_memory_that_is_refused_is_asked_for_with_pauses(void **state)
{
	(void)state;
	attempts_keep_their_pause(LOOP_QUEUE_STOPS);
}

#define REBIND_CASE(f) cmocka_unit_test_setup(f, loop_skip_without_interface)

static const struct CMUnitTest tests[] = {
        REBIND_CASE(test_a_device_that_goes_during_a_rebind_costs_no_flow_and_no_line),
        REBIND_CASE(test_a_device_that_goes_during_a_rebind_is_found_gone_before_its_event),
        REBIND_CASE(test_a_device_that_goes_during_a_rebind_may_answer_queries_still),
        REBIND_CASE(test_a_device_that_goes_for_good_during_a_rebind_leaves_nothing),
        REBIND_CASE(test_a_device_that_goes_while_memory_grows_or_flows_come_is_no_want_of_either),
        REBIND_CASE(test_flows_that_a_lost_queue_pair_gives_up_are_told_of_before_it_is_bound_again),
        REBIND_CASE(test_a_device_that_has_gone_is_looked_for_with_pauses),
        REBIND_CASE(test_memory_that_is_refused_is_asked_for_with_pauses),
        REBIND_CASE(test_a_queue_pair_without_a_device_gives_no_buffers_of_another_pool),
        REBIND_CASE(test_a_queue_pair_gives_no_buffers_of_another_pool_while_it_is_bound_again),
};

VMA_TEST_MAIN_WITH(tests, loop_begin, loop_end)
