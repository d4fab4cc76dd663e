/*
 * The rules and the registered windows of the verbs backend, on a provider that is a table of functions: a table that
 * grows, moves that fail, flows that are given up, memory that runs out.
 */
#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/test.h>

#include "fake_provider.h"

static struct verbs_qp *qp, other;
static unsigned rules, rules_made, first_refused_rule_n; /* first_refused_rule_n: of the rules that are made, 0: none */
static int refusal;

static struct ibv_flow *make_rule(struct ibv_qp *of, struct ibv_flow_attr *attr)
{
	struct ibv_flow *flow;

	(void)attr;
	if (first_refused_rule_n != 0 && rules_made + 1 >= first_refused_rule_n) {
		errno = refusal;
		return NULL;
	}
	rules++;
	rules_made++;
	flow = calloc(1, sizeof(*flow));
	flow->context = of->context;
	return flow;
}

static int fake_destroy_flow_counting_rules(struct ibv_flow *flow)
{
	rules--;
	free(flow);
	return 0;
}

/* ---- memory ---- */

static unsigned regions, regions_left;
static size_t region_max; /* bytes of one */

static struct ibv_mr *fake_reg_mr_with_region_limit(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
	struct ibv_mr *mr;

	(void)pd, (void)at, (void)access;
	errno = ENOMEM;
	if (regions_left == 0 || bytes > region_max)
		return NULL;
	regions_left--;
	regions++;
	mr = calloc(1, sizeof(*mr));
	mr->lkey = 1000 + regions;
	return mr;
}

static int fake_dereg_mr_and_count(struct ibv_mr *mr)
{
	regions--;
	free(mr);
	return 0;
}

static int begin(void **state)
{
	(void)state;
	qp = fake_provider_setup_qp(16, 0);
	fake.nic.wake_fd = -1;
	fake.nic.diag_fd = -1;
	fake.context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	fake.context.sz = sizeof(fake.context);
	fake.context.ibv_create_flow = make_rule;
	fake.context.ibv_destroy_flow = fake_destroy_flow_counting_rules;
	fake.device.context = &fake.context.context;
	fake.qp.context = &fake.context.context;
	fake.lib.ibv_reg_mr = fake_reg_mr_with_region_limit;
	fake.lib.ibv_dereg_mr = fake_dereg_mr_and_count;
	fake.device.generation = 1;
	fake.nic.frames_max = 5000;
	fake.nic.qps = qp;
	other = (struct verbs_qp){.nic = &fake.nic, .fork_guard = qp->fork_guard, .queue = qp->queue};
	other.base.nic = &fake.nic.base;
	other.stats = vma_stats_block_alloc(NULL, VMA_STATS_TYPE_NIC, "other");
	rules = rules_made = first_refused_rule_n = regions = 0;
	regions_left = UINT32_MAX;
	region_max = SIZE_MAX;
	return 0;
}

static int end(void **state)
{
	(void)state;
	verbs_flows_end_of_qp(qp);
	verbs_flows_end_of_qp(&other);
	verbs_flows_fini(&fake.nic);
	assert_int_equal(rules, 0);
	assert_int_equal(regions, 0);
	vma_stats_block_free(NULL, other.stats);
	fake_provider_free_qp();
	return 0;
}

static struct vma_flow_rule connection(uint16_t peer_port)
{
	return (struct vma_flow_rule){.key = {.family = AF_INET,
	                                      .proto = IPPROTO_TCP,
	                                      .local_port_be = htons(80),
	                                      .peer_port_be = htons(peer_port),
	                                      .local = {10, 0, 0, 1},
	                                      .peer = {10, 0, 0, 2}}};
}

static int add(struct verbs_qp *to, uint16_t peer_port)
{
	const struct vma_flow_rule rule = connection(peer_port);

	return verbs_flow_add(&to->base, &rule);
}

static int delete_verbs_flow_of_peer_port(struct verbs_qp *of, uint16_t peer_port)
{
	const struct vma_flow_rule rule = connection(peer_port);

	return verbs_flow_del(&of->base, &rule.key);
}

static int move_verbs_flow_to_qp(struct verbs_qp *to, uint16_t peer_port)
{
	const struct vma_flow_rule rule = connection(peer_port);

	return verbs_flow_move(&qp->base, &to->base, &rule.key);
}

/* ---- flows ---- */

static void test_a_thousand_flows_are_each_found_again(void **state)
{
	(void)state;
	for (uint16_t i = 1; i <= 1000; i++)
		assert_int_equal(add(i % 2 ? qp : &other, i), 0);
	assert_int_equal(rules, 1000);
	assert_int_equal(vma_stats_read_counter(&qp->stats->flows), 500);
	for (uint16_t i = 1; i <= 1000; i++) {
		assert_int_equal(add(i % 2 ? qp : &other, i), -EEXIST);
		assert_int_equal(add(i % 2 ? &other : qp, i), -EADDRINUSE);
		assert_int_equal(delete_verbs_flow_of_peer_port(i % 2 ? &other : qp, i), -ENOENT);
	}
	for (uint16_t i = 1; i <= 1000; i += 3)
		assert_int_equal(delete_verbs_flow_of_peer_port(i % 2 ? qp : &other, i), 0);
	verbs_flows_end_of_qp(&other);
	assert_int_equal(vma_stats_read_counter(&qp->stats->flows), 333);
	assert_int_equal(rules, 333);
}

static void test_a_full_card_refuses_and_forgets(void **state)
{
	(void)state;
	assert_int_equal(add(qp, 1), 0);
	first_refused_rule_n = 2;
	refusal = ENOMEM;
	assert_int_equal(add(qp, 2), -ENOSPC);
	refusal = EINVAL;
	assert_int_equal(add(qp, 2), -EINVAL);
	refusal = 0;
	assert_int_equal(add(qp, 2), -EIO);
	first_refused_rule_n = 0;
	assert_int_equal(add(qp, 2), 0);
	assert_int_equal(rules, 2);
}

/* A card would give both processes each datagram. A connection's addresses no other process has. */
static void test_a_datagram_flow_of_one_peer_that_another_process_has_is_refused(void **state)
{
	struct vma_flow_rule rule = connection(9000);
	struct nic_verbs neighbour = {.claims_fd = epoll_create1(EPOLL_CLOEXEC)};
	int claim;

	(void)state;
	fake.nic.claims_fd = epoll_create1(EPOLL_CLOEXEC);
	fake.nic.base.info.ifindex = neighbour.base.info.ifindex = (uint32_t)getpid(); /* no other test's name */
	rule.key.proto = IPPROTO_UDP;
	claim = verbs_claim_flow_address(&neighbour, &rule.key);
	assert_true(claim >= 0);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), -EADDRINUSE);
	assert_int_equal(verbs_next_contested_claim(&neighbour), claim); /* whose user is to give it up */
	assert_int_equal(rules, 0);
	close(claim);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	assert_int_equal(verbs_claim_flow_address(&neighbour, &rule.key), -EADDRINUSE);
	verbs_flows_revoke_wanted_by_other_process(&fake.nic);
	assert_int_equal(rules, 0);
	assert_int_equal(verbs_flow_add(&qp->base, &rule), -EADDRINUSE); /* a contest */
	close(neighbour.claims_fd);
	close(fake.nic.claims_fd);
}

/* A descriptor for each would be as many again as the program's own. */
static void test_a_datagram_flow_whose_port_is_the_socket_s_alone_is_claimed_when_it_is_not_any_more(void **state)
{
	struct vma_flow_rule rule = connection(9000);
	struct nic_verbs neighbour = {.claims_fd = epoll_create1(EPOLL_CLOEXEC)};
	int claim;

	(void)state;
	fake.nic.claims_fd = epoll_create1(EPOLL_CLOEXEC);
	fake.nic.base.info.ifindex = neighbour.base.info.ifindex = (uint32_t)getpid();
	rule.key.proto = IPPROTO_UDP;
	rule.flags = VMA_FLOW_PORT_EXCLUSIVE;
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	claim = verbs_claim_flow_address(&neighbour, &rule.key);
	assert_true(claim >= 0);
	close(claim);
	rule.flags = 0;
	rule.shadow_cookie = 2;
	assert_int_equal(verbs_flow_add(&qp->base, &rule), -EEXIST);
	assert_int_equal(verbs_claim_flow_address(&neighbour, &rule.key), -EADDRINUSE);
	verbs_flows_revoke_contested(&fake.nic);
	assert_int_equal(rules, 1);
	assert_int_equal(verbs_flow_del(&qp->base, &rule.key), 0);
	rule.flags = VMA_FLOW_PORT_EXCLUSIVE;
	assert_int_equal(verbs_flow_add(&qp->base, &rule), 0);
	claim = verbs_claim_flow_address(&neighbour, &rule.key);
	assert_true(claim >= 0);
	rule.flags = 0;
	assert_int_equal(verbs_flow_add(&qp->base, &rule), -EEXIST);
	verbs_flows_revoke_contested(&fake.nic);
	assert_int_equal(rules, 0);
	close(claim);
	close(neighbour.claims_fd);
	close(fake.nic.claims_fd);
}

static void test_a_move_that_fails_changes_nothing(void **state)
{
	(void)state;
	assert_int_equal(add(qp, 1), 0);
	assert_int_equal(move_verbs_flow_to_qp(&other, 2), -ENOENT);
	first_refused_rule_n = 2;
	refusal = EBUSY; /* a card that takes a rule once, whatever its priority */
	assert_int_equal(move_verbs_flow_to_qp(&other, 1), -EOPNOTSUPP);
	refusal = EINVAL;
	assert_int_equal(move_verbs_flow_to_qp(&other, 1), -EINVAL);
	first_refused_rule_n = 0;
	atomic_store(&other.base.lost, true);
	assert_int_equal(move_verbs_flow_to_qp(&other, 1), -EPIPE);
	assert_int_equal(add(&other, 3), -EPIPE);
	atomic_store(&other.base.lost, false);
	assert_int_equal(vma_stats_read_counter(&qp->stats->flows), 1);
	assert_int_equal(move_verbs_flow_to_qp(&other, 1), 0);
	assert_int_equal(rules, 1);
	assert_int_equal(vma_stats_read_counter(&other.stats->flows), 1);
	assert_int_equal(delete_verbs_flow_of_peer_port(&other, 1), 0);
}

static void test_a_queue_pair_that_is_given_up_tells_of_each_flow(void **state)
{
	struct vma_flow_key key;
	struct verbs_qp *of;
	unsigned n = 0;

	(void)state;
	for (uint16_t i = 1; i <= 100; i++)
		assert_int_equal(add(i % 4 ? qp : &other, i), 0);
	verbs_flows_revoke_all_of_qp(qp);
	assert_int_equal(rules, 25);
	while (verbs_flow_pop_revoked(&fake.nic, &of, &key)) {
		assert_ptr_equal(of, qp);
		assert_true(ntohs(key.peer_port_be) % 4 != 0);
		n++;
	}
	assert_int_equal(n, 75);
	assert_int_equal(add(qp, 1), 0); /* and each may be had again */
}

/* Its rules leave the card, and come back: but for those that it has no room for, which are revoked. */
static void test_what_a_new_queue_cannot_have_is_revoked(void **state)
{
	struct vma_flow_key key;
	struct verbs_qp *of;
	unsigned n = 0;

	(void)state;
	for (uint16_t i = 1; i <= 10; i++)
		assert_int_equal(add(qp, i), 0);
	verbs_flows_destroy_rules(qp);
	assert_int_equal(rules, 0);
	first_refused_rule_n = rules_made + 7;
	refusal = ENOMEM;
	verbs_flows_restore(qp);
	assert_int_equal(rules, 6);
	assert_int_equal(vma_stats_read_counter(&qp->stats->flows), 6);
	while (verbs_flow_pop_revoked(&fake.nic, &of, &key))
		n++;
	assert_int_equal(n, 4);
}

/* ---- windows ---- */

static uint32_t lkey_of_registered_memory(const struct verbs_registered_memory *window, uint32_t *generation)
{
	const struct verbs_lkey *entry = &fake.lkeys[window->first >> VERBS_UNIT_SHIFT];

	*generation = atomic_load(&entry->generation);
	return atomic_load(&entry->key);
}

static void test_a_pool_grows_to_what_it_wants_and_its_keys_end_with_it(void **state)
{
	struct verbs_registered_memory *last;
	struct verbs_pool *pool;
	uint32_t generation, key, first;

	(void)state;
	assert_int_equal(verbs_pool_create(&fake.nic, &fake.device, "pool", NULL, 4500, &pool), 0);
	assert_int_equal(pool->frames, 4096);
	assert_true(verbs_pool_grow(&fake.nic, &fake.device, pool));
	assert_false(verbs_pool_grow(&fake.nic, &fake.device, pool));
	assert_int_equal(fake.nic.frames, 4500);
	assert_int_equal(regions, 2);
	last = pool->windows;
	first = last->first;
	key = lkey_of_registered_memory(last, &generation);
	assert_int_equal(key, last->mr->lkey);
	assert_int_equal(generation, 1);
	verbs_pool_deregister_and_retire(&fake.nic, &fake.device, pool);
	assert_int_equal(fake.nic.frames, 0);
	/* Who looks at this moment finds the window's own key, or that it has ended: never half of each. */
	assert_int_equal(atomic_load(&fake.lkeys[first >> VERBS_UNIT_SHIFT].generation), 0);
	assert_int_equal(atomic_load(&fake.lkeys[first >> VERBS_UNIT_SHIFT].key), key);
}

static void test_a_pool_makes_do_with_what_there_is(void **state)
{
	struct verbs_pool *pool, *second;

	(void)state;
	region_max = 1024u << fake.arena->frame_shift;
	assert_int_equal(verbs_pool_create(&fake.nic, &fake.device, "pool", NULL, 4500, &pool), 0);
	assert_int_equal(pool->frames, 1024);
	regions_left = 0;
	assert_false(verbs_pool_grow(&fake.nic, &fake.device, pool));
	assert_int_equal(fake.nic.frames_max, 1024); /* it asks no more */
	assert_int_equal(verbs_pool_create(&fake.nic, &fake.device, "second", NULL, 100, &second), -ENOMEM);
	assert_int_equal(fake.nic.frames, 1024);
	/* For a while. */
	assert_true(verbs_memory_end_pause_if_due(&fake.nic) > 0);
	fake.nic.memory_again_ms = 1;
	assert_int_equal(verbs_memory_end_pause_if_due(&fake.nic), 0);
	assert_int_equal(verbs_memory_end_pause_if_due(&fake.nic), -1);
	regions_left = 1;
	region_max = SIZE_MAX;
	assert_true(verbs_pool_grow(&fake.nic, &fake.device, pool));
	assert_int_equal(fake.nic.frames, pool->frames);
	verbs_pool_deregister_and_retire(&fake.nic, &fake.device, pool);
	verbs_pool_deregister_and_retire(&fake.nic, &fake.device, NULL);
}

static void test_a_pool_stops_at_the_limit_of_all(void **state)
{
	struct verbs_pool *pool;

	(void)state;
	fake.nic.frames_max = 4200;
	assert_int_equal(verbs_pool_create(&fake.nic, &fake.device, "pool", NULL, 5000, &pool), 0);
	assert_true(verbs_pool_grow(&fake.nic, &fake.device, pool));
	assert_int_equal(pool->frames, 4200);
	assert_false(verbs_pool_grow(&fake.nic, &fake.device, pool));
	verbs_pool_deregister_and_retire(&fake.nic, &fake.device, pool);
}

/* ---- the nic's thread, and what the device tells it ---- */

static struct ibv_async_event reported_async_events[8];
static _Atomic unsigned events_n, events_taken;
static _Atomic enum ibv_qp_state reported_qp_state;
static _Atomic unsigned qp_lost_events_n;

static int fake_get_async_event_from_queue(struct ibv_context *context, struct ibv_async_event *event)
{
	(void)context;
	if (events_taken == events_n)
		return -1;
	*event = reported_async_events[events_taken++];
	return 0;
}

static void fake_ack_async_event_noop(struct ibv_async_event *event)
{
	(void)event;
}

static int fake_query_qp_state(struct ibv_qp *of, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)of, (void)mask, (void)init;
	attr->qp_state = reported_qp_state;
	return 0;
}

static void count_qp_lost_event(struct vma_nic_qp *of, enum vma_nic_event event, const struct vma_flow_key *key,
                                void *arg)
{
	(void)key, (void)arg;
	qp_lost_events_n += event == VMA_NIC_EVENT_LOST && of == &qp->base;
}

static void start_verbs_thread_with_fakes(void)
{
	static struct verbs_pool nothing_wanted;

	fake.lib.ibv_get_async_event = fake_get_async_event_from_queue;
	fake.lib.ibv_ack_async_event = fake_ack_async_event_noop;
	fake.lib.ibv_query_qp = fake_query_qp_state;
	fake.context.context.async_fd = -1;
	fake.nic.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fake.nic.claims_fd = epoll_create1(EPOLL_CLOEXEC);
	qp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	qp->rx_memory = qp->tx_memory = &nothing_wanted;
	qp->attr.event = count_qp_lost_event;
	events_n = events_taken = qp_lost_events_n = 0;
	reported_qp_state = IBV_QPS_RTS;
	assert_int_equal(verbs_thread_start(&fake.nic), 0);
}

static void stop_verbs_thread(void)
{
	atomic_store(&fake.nic.closing, true);
	verbs_thread_wake(&fake.nic);
	pthread_join(fake.nic.thread, NULL);
	close(fake.nic.wake_fd);
	close(fake.nic.claims_fd);
	close(qp->wake_fd);
	qp->rx_memory = qp->tx_memory = NULL;
}

static void feed_async_event_to_verbs_thread(struct ibv_async_event event)
{
	reported_async_events[events_n] = event;
	events_n++;
	verbs_thread_wake(&fake.nic);
	while (events_taken != events_n)
		usleep(1000);
}

static bool qp_is_lost_within_10s(void)
{
	for (int i = 0; i < 10000 && qp_lost_events_n == 0; i++)
		usleep(1000);
	return qp_lost_events_n != 0 && vma_nic_qp_lost(&qp->base);
}

static void test_an_error_of_a_completion_queue_is_its_queue_pairs_loss(void **state)
{
	struct ibv_cq cq, stranger;

	(void)state;
	qp->queue.rx_cq = &cq;
	start_verbs_thread_with_fakes();
	feed_async_event_to_verbs_thread((struct ibv_async_event){.event_type = IBV_EVENT_PORT_ACTIVE});
	feed_async_event_to_verbs_thread(
	        (struct ibv_async_event){.event_type = IBV_EVENT_CQ_ERR, .element.cq = &stranger});
	assert_int_equal(qp_lost_events_n, 0);
	feed_async_event_to_verbs_thread((struct ibv_async_event){.event_type = IBV_EVENT_CQ_ERR, .element.cq = &cq});
	assert_true(qp_is_lost_within_10s());
	stop_verbs_thread();
}

static uint64_t verbs_thread_cpu_ns(void)
{
	struct timespec used;
	clockid_t clock;

	assert_int_equal(pthread_getcpuclockid(fake.nic.thread, &clock), 0);
	assert_int_equal(clock_gettime(clock, &used), 0);
	return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void test_the_thread_sleeps_although_a_program_has_closed_its_descriptors(void **state)
{
	uint64_t before_ns;

	(void)state;
	start_verbs_thread_with_fakes();
	close(fake.nic.claims_fd);
	feed_async_event_to_verbs_thread((struct ibv_async_event){.event_type = IBV_EVENT_PORT_ACTIVE});
	before_ns = verbs_thread_cpu_ns();
	usleep(500000);
	assert_in_range(verbs_thread_cpu_ns() - before_ns, 0, 50000000);
	fake.nic.claims_fd = epoll_create1(EPOLL_CLOEXEC);
	stop_verbs_thread();
}

static void test_a_failed_packet_is_no_loss_while_its_queue_goes_on(void **state)
{
	(void)state;
	start_verbs_thread_with_fakes();
	verbs_qp_note_maybe_broken(qp);
	while (atomic_load(&qp->broken))
		usleep(1000);
	feed_async_event_to_verbs_thread(
	        (struct ibv_async_event){.event_type = IBV_EVENT_PORT_ACTIVE}); /* the look is over */
	assert_int_equal(qp_lost_events_n, 0);
	reported_qp_state = IBV_QPS_ERR;
	verbs_qp_note_maybe_broken(qp);
	assert_true(qp_is_lost_within_10s());
	stop_verbs_thread();
}

static void feed_port_event_to_verbs_thread(enum ibv_event_type type, int port)
{
	feed_async_event_to_verbs_thread((struct ibv_async_event){.event_type = type, .element.port_num = port});
}

static void test_a_port_that_goes_down_and_comes_up_has_a_line_for_each(void **state)
{
	const int fd = memfd_create("log", MFD_CLOEXEC);
	char path[32], heard[1024] = "";
	char wanted[] =
	        "VMA WARNING: vs0: RDMA device soft0, port 2 is down: nothing comes or goes until it is up again\n"
	        "VMA INFO: vs0: RDMA device soft0, port 2 is up again\n";

	(void)state;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	assert_int_equal(vma_log_init(&(struct vma_log_attr){.level = VMA_LOG_INFO, .file = path}), 0);
	strcpy(fake.nic.name, "vs0");
	strcpy(fake.device.place.device, "soft0");
	fake.device.place.port = 2;
	start_verbs_thread_with_fakes();
	feed_port_event_to_verbs_thread(IBV_EVENT_PORT_ACTIVE, 2); /* it was not down */
	feed_port_event_to_verbs_thread(IBV_EVENT_PORT_ERR, 1);    /* another interface's */
	feed_port_event_to_verbs_thread(IBV_EVENT_PORT_ERR, 2);
	feed_port_event_to_verbs_thread(IBV_EVENT_PORT_ERR, 2);
	feed_port_event_to_verbs_thread(IBV_EVENT_PORT_ACTIVE, 1);
	feed_port_event_to_verbs_thread(IBV_EVENT_PORT_ACTIVE, 2);
	feed_port_event_to_verbs_thread(IBV_EVENT_PORT_ACTIVE, 2);
	stop_verbs_thread();
	assert_true(pread(fd, heard, sizeof(heard) - 1, 0) >= 0);
	vma_log_fini();
	close(fd);
	assert_string_equal(heard, wanted);
	assert_int_equal(qp_lost_events_n, 0);
}

/* ---- calls of the backend that need no device ---- */

static struct ibv_modify_cq_attr moderation_set_last;

static int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	(void)cq;
	moderation_set_last = *attr;
	return 0;
}

static void test_moderation_is_as_much_as_the_call_has_room_for(void **state)
{
	struct ibv_cq cq = {.context = &fake.context.context};

	(void)state;
	assert_int_equal(vma_nic_verbs_ops.moderate(&qp->base, 16, 50), -ENODEV);
	fake.context.modify_cq = modify_cq;
	qp->queue.rx_cq = &cq;
	assert_int_equal(vma_nic_verbs_ops.moderate(&qp->base, 16, 50), 0);
	assert_int_equal(moderation_set_last.moderate.cq_count, 16);
	assert_int_equal(moderation_set_last.moderate.cq_period, 50);
	assert_int_equal(vma_nic_verbs_ops.moderate(&qp->base, 100000, 70000), 0);
	assert_int_equal(moderation_set_last.moderate.cq_count, UINT16_MAX);
	assert_int_equal(moderation_set_last.moderate.cq_period, UINT16_MAX);
}

static void test_a_look_at_an_interface_without_device_finds_none(void **state)
{
	const struct vma_nic_attr attr = {.arena = fake.arena};
	struct vma_nic *nic = NULL;

	(void)state;
	assert_int_equal(vma_nic_verbs_ops.look("lo", &attr), -ENODEV);
	assert_int_equal(vma_nic_verbs_ops.look("a name that no interface has", &attr), -ENODEV);
	assert_int_equal(vma_nic_verbs_ops.open("lo", &attr, &nic), -ENODEV);
	assert_int_equal(vma_nic_verbs_ops.open("a name that no interface has", &attr, &nic), -ENODEV);
	assert_null(nic);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
static const struct CMUnitTest tests[] = {
        CASE(test_a_thousand_flows_are_each_found_again),
        CASE(test_a_full_card_refuses_and_forgets),
        CASE(test_a_datagram_flow_of_one_peer_that_another_process_has_is_refused),
        CASE(test_a_datagram_flow_whose_port_is_the_socket_s_alone_is_claimed_when_it_is_not_any_more),
        CASE(test_a_move_that_fails_changes_nothing),
        CASE(test_a_queue_pair_that_is_given_up_tells_of_each_flow),
        CASE(test_what_a_new_queue_cannot_have_is_revoked),
        CASE(test_a_pool_grows_to_what_it_wants_and_its_keys_end_with_it),
        CASE(test_a_pool_makes_do_with_what_there_is),
        CASE(test_a_pool_stops_at_the_limit_of_all),
        CASE(test_an_error_of_a_completion_queue_is_its_queue_pairs_loss),
        CASE(test_the_thread_sleeps_although_a_program_has_closed_its_descriptors),
        CASE(test_a_failed_packet_is_no_loss_while_its_queue_goes_on),
        CASE(test_a_port_that_goes_down_and_comes_up_has_a_line_for_each),
        CASE(test_moderation_is_as_much_as_the_call_has_room_for),
        CASE(test_a_look_at_an_interface_without_device_finds_none),
};
VMA_TEST_MAIN(tests)
