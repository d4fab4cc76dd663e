/*
 * The process's engine: started once, its thread at work, devices refused, ring contexts over a link in memory, fork.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/nic_wire.h>
#include <vma/packet.h>
#include <vma/test.h>

#include "../engine/engine.h"
#include "fake_file.h"
#include "small_engine.h"

#define PORT 7000
#define TIMEOUT_MS 2000

static struct vma_nic *ends[2];
static struct vma_device device; /* one end of the link, as an interface would be */
static struct vma_device_priv device_priv;
static struct vma_ring *peer; /* at the other end */

/* Lets the process sleep until something has been so once, or too much time has passed. */
#define wait_until(what)                                                                                               \
	do {                                                                                                           \
		bool is_so = false;                                                                                    \
		for (int ms = 0; ms < TIMEOUT_MS && !(is_so = (what)); ms++)                                           \
			usleep(1000);                                                                                  \
		assert_true(is_so);                                                                                    \
	} while (0)

static int setup_engine_and_wire_pair(void **state)
{
	struct vma_ring_attr attr = {.name = "peer", .rx_wre = 64, .tx_wre = 64, .thread_mode = VMA_THREAD_SPIN};
	struct vma_wire_pair_attr pair = {0};
	struct vma_engine *engine;

	(void)state;
	engine = start_engine_with_few_buffers("4096", "256");
	if (engine == NULL)
		return -1;
	pair.arena[0] = pair.arena[1] = engine->arena;
	if (vma_wire_create_pair(&pair, ends) != 0)
		return -1;
	device = (struct vma_device){.nic = ends[0], .engine = engine, .priv = &device_priv};
	attr.nic = ends[1];
	attr.spill_pool = engine->spill;
	return vma_ring_create(&attr, &peer);
}

static struct vma_ring_ctx *get_rx_ring_ctx_for_socket_id(uint64_t socket)
{
	struct vma_ring_requester where = {.socket_id = socket};
	struct vma_ring_ctx *ring_ctx = NULL;

	assert_int_equal(vma_ring_ctx_find_or_create(&device, VMA_RING_CTX_RX, &where, &ring_ctx), 0);
	return ring_ctx;
}

/* ---- start ---- */

static void test_engine_is_started_once_and_is_whole(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();

	(void)state;
	assert_non_null(engine);
	assert_ptr_equal(vma_engine_start(), engine);
	assert_non_null(engine->net);
	assert_non_null(engine->arena);
	assert_non_null(engine->spill);
	assert_true(engine->cores >= 1);
	assert_false(engine->latency);
}

static void test_own_descriptors_are_high_and_guarded(void **state)
{
	int fds[16];
	unsigned n = vma_net_fds(vma_engine_get_or_start()->net, fds, 16);

	(void)state;
	assert_true(n >= 4 && n <= 16);
	for (unsigned i = 0; i < n; i++) {
		assert_true(vma_fd_is_library_internal(fds[i]));
		assert_true(fds[i] >= 100);
	}
}

/* ---- tasks ---- */

struct counted {
	struct vma_internal_task task; /* first */
	_Atomic int ran;
	_Atomic bool hold;
};

static void task_wait_for_release_and_count(struct vma_internal_task *task)
{
	struct counted *counted = (struct counted *)task;

	while (atomic_load(&counted->hold))
		usleep(100);
	atomic_fetch_add(&counted->ran, 1);
}

static void test_task_runs_once_for_all_posts_before_it_ran(void **state)
{
	static struct counted blocker = {.task = {.run = task_wait_for_release_and_count}, .hold = true};
	static struct counted counted = {.task = {.run = task_wait_for_release_and_count}};

	(void)state;
	vma_engine_post_task_to_internal_thread(&blocker.task);
	wait_until(!atomic_load(&blocker.task.queued)); /* it holds up the thread */
	for (int i = 0; i < 5; i++)
		vma_engine_post_task_to_internal_thread(&counted.task);
	assert_int_equal(atomic_load(&counted.ran), 0);
	atomic_store(&blocker.hold, false);
	wait_until(atomic_load(&counted.ran) == 1);
	vma_engine_post_task_to_internal_thread(&counted.task);
	wait_until(atomic_load(&counted.ran) == 2);
	usleep(5000);
	assert_int_equal(atomic_load(&counted.ran), 2);
}

/* Whether the thread has just gone to sleep, is about to, or is awake: it has run within a few milliseconds. */
static void test_a_task_that_has_time_runs_soon_although_the_thread_may_be_falling_asleep(void **state)
{
	static struct counted counted = {.task = {.run = task_wait_for_release_and_count}};
	uint64_t longest = 0;

	(void)state;
	for (int i = 1; i <= 300; i++) {
		const uint64_t begin = vma_now_ns();

		vma_engine_post_task_within_1ms(&counted.task);
		vma_engine_post_task_within_1ms(&counted.task); /* one run is enough for both, or there are two */
		wait_until(!atomic_load(&counted.task.queued));
		if (vma_now_ns() - begin > longest)
			longest = vma_now_ns() - begin;
		if (i % 3 == 0)
			usleep((unsigned)i % 7 * 300);
	}
	wait_until(atomic_load(&counted.ran) >= 300);
	assert_true(longest < TIMEOUT_MS * 1000000ULL / 2); /* a wake-up that was lost would be missed for good */
}

/* ---- what is not offloaded ---- */

static void test_exception_handling_says_whether_the_kernel_does_it(void **state)
{
	static const struct {
		int mode, answer;
	} cases[] = {{-2, 0}, {-1, 0}, {0, 0}, {1, 0}, {2, -ENOPROTOOPT}};
	struct vma_engine *engine = vma_engine_get_or_start();
	int status;
	pid_t child;

	(void)state;
	vma_log_set_level(VMA_LOG_NONE);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		engine->conf.exception_handling = cases[i].mode;
		assert_int_equal(vma_engine_apply_offload_failure_policy(ENOPROTOOPT, "option %d", 7), cases[i].answer);
	}
	engine->conf.exception_handling = VMA_EXCEPTION_ABORT;
	child = fork();
	if (child == 0) {
		signal(SIGABRT, SIG_DFL);
		vma_engine_apply_offload_failure_policy(ENOPROTOOPT, "option %d", 7);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	engine->conf.exception_handling = VMA_EXCEPTION_DEBUG;
	vma_log_set_level(VMA_LOG_WARN);
}

static void test_a_socket_that_the_kernel_gets_is_an_exception_unless_somebody_requests_it(void **state)
{
	static const enum vma_sock_reason requested[] = {VMA_SOCK_OFFLOADED, VMA_SOCK_NEW,    VMA_SOCK_DEFERRED,
	                                                 VMA_SOCK_DISABLED,  VMA_SOCK_RULE,   VMA_SOCK_LOCAL,
	                                                 VMA_SOCK_IO_URING,  VMA_SOCK_OPTION, VMA_SOCK_INHERITED};
	static const enum vma_sock_reason told[] = {VMA_SOCK_IPV6,        VMA_SOCK_NO_DEVICE, VMA_SOCK_NO_MEMBERSHIP,
	                                            VMA_SOCK_PORT_SHARED, VMA_SOCK_FORKED,    VMA_SOCK_HANDS_OVER,
	                                            VMA_SOCK_EXEC,        VMA_SOCK_PASSED_ON, VMA_SOCK_REROUTED,
	                                            VMA_SOCK_NO_MEMORY,   VMA_SOCK_ENGINE};
	struct vma_engine *engine = vma_engine_get_or_start();

	(void)state;
	vma_log_set_level(VMA_LOG_NONE);
	for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
		engine->conf.exception_handling = VMA_EXCEPTION_RETURN;
		assert_int_equal(vma_engine_report_kernel_fallback(told[i], ENETUNREACH, "a socket"), -ENETUNREACH);
		engine->conf.exception_handling = VMA_EXCEPTION_ERROR_TO_OS;
		assert_int_equal(vma_engine_report_kernel_fallback(told[i], ENETUNREACH, "a socket"), 0);
	}
	engine->conf.exception_handling = VMA_EXCEPTION_ABORT;
	for (size_t i = 0; i < sizeof(requested) / sizeof(requested[0]); i++)
		assert_int_equal(vma_engine_report_kernel_fallback(requested[i], ENETUNREACH, "a socket"), 0);
	engine->conf.exception_handling = VMA_EXCEPTION_DEBUG;
	vma_log_set_level(VMA_LOG_WARN);
}

/* ---- counters ---- */

static void test_as_many_sockets_are_counted_as_configured(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	struct vma_stats_socket *blocks[3];
	_Atomic bool counts[3] = {false};

	(void)state;
	engine->conf.stats_fd_num = 2;
	for (int i = 0; i < 3; i++)
		blocks[i] = vma_engine_alloc_socket_stats(engine, 10 + i, &counts[i]);
	assert_non_null(blocks[0]);
	assert_int_equal(vma_stats_read_counter(&blocks[1]->fd), 11);
	assert_null(blocks[2]);
	assert_int_equal(vma_stats_read_counter(&engine->process_stats->sockets_unseen), 1); /* and readers are told */
	assert_false(counts[2]);
	vma_engine_free_socket_stats(engine, blocks[0], &counts[0]);
	assert_false(counts[0]);
	blocks[2] = vma_engine_alloc_socket_stats(engine, 12, &counts[2]);
	assert_non_null(blocks[2]);
	for (int i = 1; i < 3; i++)
		vma_engine_free_socket_stats(engine, blocks[i], &counts[i]);
	vma_engine_free_socket_stats(engine, NULL, &counts[0]);
	engine->conf.stats_fd_num = 100;
}

/* Connections live on when they are closed; blocks are no more than the segment has for sockets. */
static void test_closed_sockets_do_not_count_as_configured_though_they_live_on(void **state)
{
	enum { BLOCKS = 1024 };
	static struct vma_stats_socket *blocks[BLOCKS];
	static _Atomic bool counts[BLOCKS];
	struct vma_engine *engine = vma_engine_get_or_start();
	const uint64_t unseen = vma_stats_read_counter(&engine->process_stats->sockets_unseen);
	_Atomic bool counts_more = false;

	(void)state;
	engine->conf.stats_fd_num = 1;
	for (int i = 0; i < BLOCKS; i++) {
		blocks[i] = vma_engine_alloc_socket_stats(engine, 10, &counts[i]);
		assert_non_null(blocks[i]);
		assert_null(vma_engine_alloc_socket_stats(engine, 11, &counts_more)); /* while the one before is open */
		vma_engine_uncount_socket_stats_at_close(engine, &counts[i]);
		vma_engine_uncount_socket_stats_at_close(engine, &counts[i]); /* once is enough */
	}
	assert_null(vma_engine_alloc_socket_stats(engine, 10, &counts_more));
	assert_int_equal(vma_stats_read_counter(&engine->process_stats->sockets_unseen), unseen + BLOCKS + 1);
	for (int i = 0; i < BLOCKS; i++)
		vma_engine_free_socket_stats(engine, blocks[i], &counts[i]);
	blocks[0] = vma_engine_alloc_socket_stats(engine, 10, &counts[0]);
	assert_non_null(blocks[0]);
	assert_null(vma_engine_alloc_socket_stats(engine, 11, &counts_more));
	vma_engine_free_socket_stats(engine, blocks[0], &counts[0]);
	engine->conf.stats_fd_num = 100;
}

/* ---- devices ---- */

static void test_loopback_and_what_is_not_there_are_refused(void **state)
{
	struct vma_device *out = NULL;

	(void)state;
	assert_int_equal(vma_device_find_or_open(vma_engine_get_or_start(), 1, &out), -EOPNOTSUPP);
	assert_int_equal(vma_device_find_or_open(vma_engine_get_or_start(), 1, &out), -EOPNOTSUPP); /* remembered */
	assert_int_equal(vma_device_find_or_open(vma_engine_get_or_start(), 0x7ffffff0, &out), -ENODEV);
	assert_null(out);
}

/* ---- ring contexts ---- */

static void test_interface_has_one_ring_context_that_stays(void **state)
{
	struct vma_ring_ctx *a = get_rx_ring_ctx_for_socket_id(1), *b = get_rx_ring_ctx_for_socket_id(2);

	(void)state;
	assert_ptr_equal(a, b);
	assert_ptr_equal(atomic_load(&vma_ring_ctxs[a->id % 64]), a);
	vma_ring_ctx_put(a);
	vma_ring_ctx_put(b);
	fake_poll_until_retired_are_freed();
	assert_ptr_equal(get_rx_ring_ctx_for_socket_id(3), a);
	vma_ring_ctx_put(a);
}

static void test_ring_context_of_a_socket_ends_with_it_and_its_number_is_used_again(void **state)
{
	struct vma_ring_ctx *a, *b;
	uint32_t id;

	(void)state;
	device.engine->conf.ring_allocation_logic_rx = VMA_RING_LOGIC_PER_SOCKET;
	a = get_rx_ring_ctx_for_socket_id(11);
	b = get_rx_ring_ctx_for_socket_id(12);
	assert_ptr_not_equal(a, b);
	assert_int_not_equal(a->id, b->id);
	assert_ptr_equal(get_rx_ring_ctx_for_socket_id(12), b);
	vma_ring_ctx_put(b);
	id = a->id;
	vma_ring_ctx_put(a);
	assert_null(ring_ctx_of_id(id));
	a = get_rx_ring_ctx_for_socket_id(13);
	assert_int_equal(a->id, id);
	vma_ring_ctx_put(a);
	vma_ring_ctx_put(b);
	fake_poll_until_retired_are_freed();
	device.engine->conf.ring_allocation_logic_rx = VMA_RING_LOGIC_PER_INTERFACE;
}

static void test_limit_of_ring_contexts_makes_sockets_share(void **state)
{
	struct vma_ring_ctx *ring_ctxs[4];

	(void)state;
	device.engine->conf.ring_allocation_logic_rx = VMA_RING_LOGIC_PER_SOCKET;
	device.engine->conf.ring_limit_per_interface = 2; /* one is the interface's, from the test before */
	for (unsigned i = 0; i < 4; i++)
		ring_ctxs[i] = get_rx_ring_ctx_for_socket_id(20 + i);
	assert_true(device_priv.ring_ctxs_made <= 2);
	for (unsigned i = 0; i < 4; i++)
		vma_ring_ctx_put(ring_ctxs[i]);
	fake_poll_until_retired_are_freed();
	device.engine->conf.ring_limit_per_interface = 0;
	device.engine->conf.ring_allocation_logic_rx = VMA_RING_LOGIC_PER_INTERFACE;
}

/* ---- what the thread does with ring contexts ---- */

static _Atomic unsigned received;

static bool sink_count_received_packet(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	(void)flow;
	(void)packet;
	(void)info;
	atomic_fetch_add(&received, 1);
	return false;
}

static void send_one_udp_packet_by_ring(struct vma_ring *from, unsigned flags)
{
	static const struct vma_pkt_udp_attr attr = {
	        .src_ip = {10, 0, 0, 2},
	        .dst_ip = {10, 0, 0, 1},
	        .src_port_be = 0x1234,
	        .dst_port_be = (uint16_t)(PORT << 8 | PORT >> 8),
	};
	struct vma_buf *buf = vma_ring_tx_buf(from);
	struct vma_pkt_udp headers;
	struct vma_nic_seg seg;

	assert_non_null(buf);
	vma_pkt_udp_init(&headers, &attr);
	seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off};
	memset(vma_buf_data(device.engine->arena, buf) + headers.len, 'x', 8);
	seg.len = vma_pkt_udp_write(&headers, vma_buf_data(device.engine->arena, buf), 8, VMA_PKT_CSUM_FULL);
	assert_int_equal(vma_ring_send(from, &seg, 1, flags), 1);
}

static struct vma_flow make_counting_udp_flow(void)
{
	return (struct vma_flow){
	        .key = {.family = AF_INET, .proto = IPPROTO_UDP, .local_port_be = htons(PORT), .local = {10, 0, 0, 1}},
	        .sink = sink_count_received_packet,
	};
}

static void test_ring_that_nobody_drives_is_driven_by_the_thread(void **state)
{
	struct vma_ring_ctx *ring_ctx = get_rx_ring_ctx_for_socket_id(1);
	struct vma_flow flow = make_counting_udp_flow();

	(void)state;
	assert_int_equal(vma_ring_attach_flow(ring_ctx->ring, &flow), 0);
	for (unsigned i = 1; i <= 3; i++) {
		send_one_udp_packet_by_ring(peer, 0);
		wait_until(atomic_load(&received) == i);
		usleep(50000); /* it is armed again by now: the next packet has to wake the thread */
	}
	vma_ring_detach_flow(ring_ctx->ring, &flow);
	vma_ring_ctx_put(ring_ctx);
}

static void test_progress_drives_ring_contexts_by_mask_and_counts_packets(void **state)
{
	struct vma_ring_ctx *ring_ctx = get_rx_ring_ctx_for_socket_id(1);
	struct vma_flow flow = make_counting_udp_flow();
	static struct counted blocker = {.task = {.run = task_wait_for_release_and_count}, .hold = true};
	unsigned before;
	uint64_t driven;
	int n = 0;

	(void)state;
	vma_engine_post_task_to_internal_thread(&blocker.task);
	wait_until(!atomic_load(&blocker.task.queued)); /* the thread keeps out of it */
	before = atomic_load(&received);
	assert_int_equal(vma_ring_attach_flow(ring_ctx->ring, &flow), 0);
	assert_int_equal(vma_ring_ctxs_progress(0), 0);
	assert_int_equal(vma_ring_ctxs_progress(~vma_ring_ctx_bit(ring_ctx)), 0);
	driven = atomic_load(&ring_ctx->driven);
	send_one_udp_packet_by_ring(peer, 0);
	for (int i = 0; i < TIMEOUT_MS && n == 0; i++) {
		n = vma_ring_ctxs_progress(vma_ring_ctx_bit(ring_ctx));
		usleep(n == 0 ? 1000 : 0);
	}
	assert_int_equal(n, 1);
	assert_int_equal(atomic_load(&received), before + 1);
	assert_true(atomic_load(&ring_ctx->driven) > driven);
	vma_ring_detach_flow(ring_ctx->ring, &flow);
	vma_ring_ctx_put(ring_ctx);
	atomic_store(&blocker.hold, false);
}

static void test_frame_left_for_later_leaves_soon(void **state)
{
	struct vma_ring_ctx *ring_ctx = get_rx_ring_ctx_for_socket_id(1);
	struct vma_wire_counts counts;
	unsigned waited = 0;
	uint64_t sent;

	(void)state;
	/* A look of the thread that was still due may send it at once. */
	for (int i = 0; i < 20 && waited < 3; i++) {
		vma_wire_read_counters(ends[0], &counts);
		sent = counts.sent;
		send_one_udp_packet_by_ring(ring_ctx->ring, VMA_RING_SEND_LATER);
		vma_wire_read_counters(ends[0], &counts);
		waited += counts.sent == sent;
		vma_engine_flush_rings_within_1ms(vma_ring_ctx_bit(ring_ctx));
		for (int ms = 0; ms < TIMEOUT_MS && counts.sent == sent; ms++) {
			usleep(1000);
			vma_wire_read_counters(ends[0], &counts);
		}
		assert_int_equal(counts.sent, sent + 1);
	}
	assert_int_equal(waited, 3);
	vma_ring_ctx_put(ring_ctx);
}

/* ---- idle ---- */

static long internal_thread_wakeup_count(void)
{
	char path[64], line[256];
	long count = -1;

	for (int tid = getpid() + 1; tid < getpid() + 200 && count < 0; tid++) {
		FILE *file;
		bool found = false;

		snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
		file = fopen(path, "r");
		if (file == NULL)
			continue;
		while (fgets(line, sizeof(line), file) != NULL) {
			if (strcmp(line, "Name:\tvma-internal\n") == 0)
				found = true;
			if (found)
				sscanf(line, "voluntary_ctxt_switches: %ld", &count);
		}
		fclose(file);
	}
	return count;
}

static void test_idle_process_is_not_woken(void **state)
{
	struct vma_ring_ctx *ring_ctx = get_rx_ring_ctx_for_socket_id(1);
	unsigned misses = 0;
	long before, woken;

	(void)state;
	wait_until(ring_ctx->armed);
	before = internal_thread_wakeup_count();
	if (before < 0)
		vma_test_skip("the thread's wake-ups are not to be known");
	/* What was still due of what was before may come late on a busy machine. */
	do {
		before = internal_thread_wakeup_count();
		usleep(300000);
		woken = internal_thread_wakeup_count() - before;
	} while (woken != 0 && vma_test_remeasure(__func__, &misses, 5, "woken %ld times in 300 ms", woken));
	assert_int_equal(woken, 0);
	vma_ring_ctx_put(ring_ctx);
}

/* The ring's queue pair with an unarm that is counted. */
static _Atomic unsigned unarmed;
static struct vma_nic_ops counting_ops;
static const struct vma_nic_ops *original_nic_ops;

static void counted_unarm(struct vma_nic_qp *qp)
{
	atomic_fetch_add(&unarmed, 1);
	original_nic_ops->unarm(qp);
}

static void install_counting_unarm(struct vma_ring_ctx *ring_ctx)
{
	struct vma_nic_qp *qp = vma_ring_qp(ring_ctx->ring);

	atomic_store(&unarmed, 0);
	original_nic_ops = qp->ops;
	counting_ops = *original_nic_ops;
	counting_ops.unarm = counted_unarm;
	qp->ops = &counting_ops;
}

static void send_and_poll_ring_repeatedly(struct vma_ring_ctx *ring_ctx, unsigned drives)
{
	for (unsigned i = 0; i < drives; i++) {
		send_one_udp_packet_by_ring(peer, 0);
		for (int ms = 0; ms < TIMEOUT_MS && vma_ring_ctxs_progress(vma_ring_ctx_bit(ring_ctx)) <= 0; ms++)
			sched_yield();
	}
}

static void test_ring_that_is_busy_and_not_slept_on_is_unarmed(void **state)
{
	static struct counted blocker = {.task = {.run = task_wait_for_release_and_count}, .hold = true};
	struct vma_ring_ctx *ring_ctx = get_rx_ring_ctx_for_socket_id(31);
	struct vma_flow flow = make_counting_udp_flow();

	(void)state;
	vma_engine_post_task_to_internal_thread(&blocker.task);
	wait_until(!atomic_load(&blocker.task.queued));
	install_counting_unarm(ring_ctx);
	assert_int_equal(vma_ring_attach_flow(ring_ctx->ring, &flow), 0);
	send_and_poll_ring_repeatedly(ring_ctx, 3 * RING_CTX_BUSY_DRIVES);
	atomic_store(&ring_ctx->armed, false);
	ring_ctx_count_arm(ring_ctx);
	assert_int_equal(vma_ring_arm(ring_ctx->ring), 0);
	atomic_store(&unarmed, 0);
	send_and_poll_ring_repeatedly(ring_ctx, RING_CTX_BUSY_DRIVES - 1); /* somebody has armed it in this time */
	assert_int_equal(atomic_load(&unarmed), 0);
	atomic_store(&ring_ctx->watcher, vma_thread_self());
	send_and_poll_ring_repeatedly(ring_ctx, 2 * RING_CTX_BUSY_DRIVES);
	assert_int_equal(atomic_load(&unarmed), 0);
	atomic_store(&ring_ctx->watcher, NULL);
	ring_ctx_count_arm(ring_ctx); /* as one who has slept, and is up again */
	send_and_poll_ring_repeatedly(ring_ctx, 2 * RING_CTX_BUSY_DRIVES);
	assert_int_equal(atomic_load(&unarmed), 1);
	send_and_poll_ring_repeatedly(ring_ctx, 3 * RING_CTX_BUSY_DRIVES); /* once is enough */
	assert_int_equal(atomic_load(&unarmed), 1);
	vma_ring_qp(ring_ctx->ring)->ops = original_nic_ops;
	vma_ring_detach_flow(ring_ctx->ring, &flow);
	atomic_store(&blocker.hold, false);
	vma_ring_ctx_put(ring_ctx);
}

/* The internal thread looks at the queue pair's calls as well: it changes them itself, while we wait. */
static struct nic_ops_change_task {
	struct vma_internal_task task;
	struct vma_ring_ctx *ring_ctx;
	bool back;
	_Atomic bool done;
} nic_ops_change_task;

static void task_swap_nic_ops(struct vma_internal_task *task)
{
	(void)task;
	if (nic_ops_change_task.back)
		vma_ring_qp(nic_ops_change_task.ring_ctx->ring)->ops = original_nic_ops;
	else
		install_counting_unarm(nic_ops_change_task.ring_ctx);
	atomic_store(&nic_ops_change_task.done, true);
}

static void set_counting_unarm_by_internal_thread(struct vma_ring_ctx *ring_ctx, bool back)
{
	nic_ops_change_task =
	        (struct nic_ops_change_task){.task.run = task_swap_nic_ops, .ring_ctx = ring_ctx, .back = back};
	vma_engine_post_task_to_internal_thread(&nic_ops_change_task.task);
	wait_until(atomic_load(&nic_ops_change_task.done));
}

/* So long without a frame the machine had something else to do, and the thread may sleep on the ring. */
#define AWAY_NS 500000
#define STAY_NS 100000000  /* of sending without that */
#define BUSY_NS 3000000000 /* a machine that has not left the sender alone for so long does not: any moment will do */

/* How often the sender was away. */
static unsigned send_for_a_while_count_stalls(struct vma_ring_ctx *ring_ctx)
{
	const uint64_t begin = vma_now_ns();
	uint64_t now = begin, last, since = begin;
	unsigned away = 0;

	while (now - begin < 300000000 ||
	       (now - since < STAY_NS && now - begin < 10000000000 && (now - begin < BUSY_NS || ring_ctx->armed))) {
		send_one_udp_packet_by_ring(ring_ctx->ring, 0);
		vma_ring_ctx_count_send(ring_ctx);
		vma_ring_progress(peer);
		last = now;
		now = vma_now_ns();
		if (now - last > AWAY_NS) {
			since = now;
			away++;
		}
	}
	return away;
}

static void test_ring_that_only_sends_is_not_slept_on_by_the_thread(void **state)
{
	struct vma_ring_ctx *ring_ctx = get_rx_ring_ctx_for_socket_id(1);
	unsigned away;

	(void)state;
	wait_until(ring_ctx->armed);
	set_counting_unarm_by_internal_thread(ring_ctx, false);
	away = send_for_a_while_count_stalls(ring_ctx);
	if (away > 0)
		print_message("away %u times\n", away);
	assert_false(ring_ctx->armed);
	assert_int_not_equal(atomic_load(&unarmed), 0);
	assert_true(atomic_load(&unarmed) < 4 + away);
	wait_until(ring_ctx->armed); /* and it has ended */
	set_counting_unarm_by_internal_thread(ring_ctx, true);
	vma_ring_ctx_put(ring_ctx);
}

/* ---- files ---- */

static void test_refused_file_is_asked_again_each_second_until_it_is_not_refused(void **state)
{
	struct fake_file *refused = fake_file_create(), *content = fake_file_create();

	(void)state;
	refused->reason = VMA_SOCK_PORT_SHARED;
	content->reason = VMA_SOCK_OFFLOADED;
	assert_int_equal(vma_fd_install(5000, &refused->file), 0);
	assert_int_equal(vma_fd_install(5001, &content->file), 0);
	vma_engine_schedule_offload_retry();
	wait_until(atomic_load(&refused->net_changed) == 1);
	refused->reason = VMA_SOCK_OFFLOADED;
	usleep(1200000);
	assert_int_equal(atomic_load(&refused->net_changed), 1);
	assert_int_equal(atomic_load(&content->net_changed), 0);
	vma_fd_remove(5000);
	vma_fd_remove(5001);
	fake_poll_until_retired_are_freed();
}

static _Atomic(struct vma_file *) failed_file;

static void record_failed_file(struct vma_file *file)
{
	atomic_store(&failed_file, file);
}

static void test_refused_datagram_of_a_watched_socket_is_reported(void **state)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(9)};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct fake_file *fake = fake_file_create();

	(void)state;
	vma_engine_on_error = record_failed_file;
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_int_equal(vma_fd_install(fd, &fake->file), 0);
	assert_int_equal(vma_engine_watch_errors(fd, &fake->file), 0);
	assert_int_equal(vma_engine_watch_errors(fd, &fake->file), 0);
	usleep(20000);
	assert_null(atomic_load(&failed_file));
	assert_int_equal(send(fd, "x", 1, 0), 1);
	wait_until(atomic_load(&failed_file) == &fake->file);
	vma_fd_remove(fd);
	close(fd);
	fake_poll_until_retired_are_freed();
}

/* ---- fork ---- */

/* 0, or the number of what was not so. */
static int forked_child_check_own_engine(struct fake_file *fake, const struct vma_engine *parents)
{
	static struct counted counted = {.task = {.run = task_wait_for_release_and_count}};
	struct vma_engine *mine;

	if (atomic_load(&vma_engine_now) != NULL || fake->forked != 1)
		return 1;
	for (unsigned bit = 0; bit < 64; bit++)
		if (atomic_load(&vma_ring_ctxs[bit]) != NULL)
			return 2;
	mine = vma_engine_get_or_start();
	if (mine == NULL || mine == parents || mine->net == parents->net)
		return 3;
	vma_engine_post_task_to_internal_thread(&counted.task);
	for (int ms = 0; ms < TIMEOUT_MS && atomic_load(&counted.ran) == 0; ms++)
		usleep(1000);
	return atomic_load(&counted.ran) == 1 ? 0 : 4;
}

static void test_child_starts_an_engine_of_its_own_and_leaves_the_parents_alone(void **state)
{
	static struct counted counted = {.task = {.run = task_wait_for_release_and_count}};
	struct fake_file *fake = fake_file_create();
	struct vma_engine *engine = vma_engine_get_or_start();
	int status;
	pid_t child;

	(void)state;
	assert_int_equal(vma_fd_install(5002, &fake->file), 0);
	vma_engine_fork_prepare();
	child = fork();
	if (child == 0) {
		vma_engine_reset_in_fork_child();
		_exit(forked_child_check_own_engine(fake, engine));
	}
	vma_engine_after_fork_in_parent();
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_ptr_equal(vma_engine_get_or_start(), engine);
	assert_int_equal(fake->forked, 0);
	vma_engine_post_task_to_internal_thread(&counted.task);
	wait_until(atomic_load(&counted.ran) == 1);
	vma_fd_remove(5002);
	fake_poll_until_retired_are_freed();
}

static void test_exit_sends_what_was_left_for_later(void **state)
{
	struct vma_ring_ctx *ring_ctx = get_rx_ring_ctx_for_socket_id(1);
	struct vma_wire_counts before, after;

	(void)state;
	vma_wire_read_counters(ends[0], &before);
	send_one_udp_packet_by_ring(ring_ctx->ring, VMA_RING_SEND_LATER);
	vma_engine_flush_and_log_at_exit();
	vma_wire_read_counters(ends[0], &after);
	assert_int_equal(after.sent, before.sent + 1);
	vma_ring_ctx_put(ring_ctx);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_is_started_once_and_is_whole),
        cmocka_unit_test(test_own_descriptors_are_high_and_guarded),
        cmocka_unit_test(test_task_runs_once_for_all_posts_before_it_ran),
        cmocka_unit_test(test_a_task_that_has_time_runs_soon_although_the_thread_may_be_falling_asleep),
        cmocka_unit_test(test_exception_handling_says_whether_the_kernel_does_it),
        cmocka_unit_test(test_a_socket_that_the_kernel_gets_is_an_exception_unless_somebody_requests_it),
        cmocka_unit_test(test_as_many_sockets_are_counted_as_configured),
        cmocka_unit_test(test_closed_sockets_do_not_count_as_configured_though_they_live_on),
        cmocka_unit_test(test_loopback_and_what_is_not_there_are_refused),
        cmocka_unit_test(test_interface_has_one_ring_context_that_stays),
        cmocka_unit_test(test_ring_context_of_a_socket_ends_with_it_and_its_number_is_used_again),
        cmocka_unit_test(test_limit_of_ring_contexts_makes_sockets_share),
        cmocka_unit_test(test_ring_that_nobody_drives_is_driven_by_the_thread),
        cmocka_unit_test(test_progress_drives_ring_contexts_by_mask_and_counts_packets),
        cmocka_unit_test(test_frame_left_for_later_leaves_soon),
        cmocka_unit_test(test_idle_process_is_not_woken),
        cmocka_unit_test(test_ring_that_is_busy_and_not_slept_on_is_unarmed),
        cmocka_unit_test(test_ring_that_only_sends_is_not_slept_on_by_the_thread),
        cmocka_unit_test(test_refused_file_is_asked_again_each_second_until_it_is_not_refused),
        cmocka_unit_test(test_refused_datagram_of_a_watched_socket_is_reported),
        cmocka_unit_test(test_child_starts_an_engine_of_its_own_and_leaves_the_parents_alone),
        cmocka_unit_test(test_exit_sends_what_was_left_for_later),
};

VMA_TEST_FORKS_WITH_THREADS

VMA_TEST_MAIN_WITH(tests, setup_engine_and_wire_pair, NULL)
