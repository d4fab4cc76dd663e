/* The object behind a descriptor: which sockets have one, what is said of it, and calls that keep it alive. */
#include <errno.h>
#include <string.h>

#include <vma/inet.h>
#include <vma/sock_os.h>
#include <vma/test.h>

#include "../../sock/test/small_engine.h"

static void test_families_flags_and_protocols(void **state)
{
	(void)state;
	assert_true(vma_inet_socket_type_is(AF_INET, SOCK_DGRAM, 0, SOCK_DGRAM, IPPROTO_UDP));
	assert_true(vma_inet_socket_type_is(AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP,
	                                    SOCK_DGRAM, IPPROTO_UDP));
	assert_false(vma_inet_socket_type_is(AF_UNIX, SOCK_DGRAM, 0, SOCK_DGRAM, IPPROTO_UDP));
	assert_false(vma_inet_socket_type_is(AF_INET, SOCK_STREAM, 0, SOCK_DGRAM, IPPROTO_UDP));
	assert_false(vma_inet_socket_type_is(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE, SOCK_DGRAM, IPPROTO_UDP));
}

static void test_new_socket_is_the_kernels_for_a_reason(void **state)
{
	struct vma_engine *engine = vma_engine_get_or_start();
	const bool before = engine->conf.offloaded_sockets;

	(void)state;
	assert_int_equal(vma_inet_initial_offload_reason(NULL), VMA_SOCK_ENGINE);
	engine->conf.offloaded_sockets = false;
	assert_int_equal(vma_inet_initial_offload_reason(engine), VMA_SOCK_DISABLED);
	engine->conf.offloaded_sockets = true;
	assert_int_equal(vma_inet_initial_offload_reason(engine), VMA_SOCK_NEW);
	atomic_store(&vma_sockets_stay, true);
	assert_int_equal(vma_inet_initial_offload_reason(engine), VMA_SOCK_IO_URING);
	atomic_store(&vma_sockets_stay, false);
	engine->conf.offloaded_sockets = before;
}

static void test_statistics_have_addresses_in_host_order(void **state)
{
	const struct sockaddr_in local = {.sin_port = htons(7000), .sin_addr.s_addr = htonl(0x0a000001)};
	const struct sockaddr_in peer = {.sin_port = htons(8000), .sin_addr.s_addr = htonl(0x0a000002)};
	const struct vma_wait slept = {.slept = true}, spun = {.slept = false};
	struct vma_stats_socket *stats = vma_alloc(sizeof(*stats));
	struct vma_file file = {.rule_line = 12};
	struct vma_inet_sock_description described = {.file = &file,
	                                              .reason = VMA_SOCK_OFFLOADED,
	                                              .protocol = IPPROTO_UDP,
	                                              .nonblocking = true,
	                                              .local = &local,
	                                              .peer = &peer,
	                                              .rx_limit_bytes = 4096};

	(void)state;
	assert_non_null(stats);
	vma_inet_stats_describe(stats, &described);
	assert_int_equal(vma_stats_read_counter(&stats->offloaded), 1);
	assert_int_equal(vma_stats_read_counter(&stats->local_addr), 0x0a000001);
	assert_int_equal(vma_stats_read_counter(&stats->local_port), 7000);
	assert_int_equal(vma_stats_read_counter(&stats->peer_addr), 0x0a000002);
	assert_int_equal(vma_stats_read_counter(&stats->peer_port), 8000);
	assert_int_equal(vma_stats_read_counter(&stats->rx_limit_bytes), 4096);
	assert_int_equal(vma_stats_read_counter(&stats->protocol), IPPROTO_UDP);
	assert_int_equal(vma_stats_read_counter(&stats->nonblocking), 1);
	assert_int_equal(vma_stats_read_counter(&stats->rule_line), 12);
	assert_int_equal(vma_stats_read_counter(&stats->ring), 0);
	vma_inet_stats_set_nonblocking(stats, false);
	assert_int_equal(vma_stats_read_counter(&stats->nonblocking), 0);
	vma_inet_count_failed_call(stats, &stats->rx_errors, -ECONNREFUSED);
	assert_int_equal(vma_stats_read_counter(&stats->rx_errors), 1);
	assert_int_equal(vma_stats_read_counter(&stats->last_error), ECONNREFUSED);
	described.reason = VMA_SOCK_OPTION;
	vma_inet_stats_describe(stats, &described);
	assert_int_equal(vma_stats_read_counter(&stats->offloaded), 0);
	assert_int_equal(vma_stats_read_counter(&stats->reason), VMA_SOCK_OPTION);
	vma_inet_count_wait_poll_hit_or_miss(stats, &slept);
	vma_inet_count_wait_poll_hit_or_miss(stats, &spun);
	vma_inet_count_wait_poll_hit_or_miss(stats, &spun);
	assert_int_equal(vma_stats_read_counter(&stats->rx_poll_misses), 1);
	assert_int_equal(vma_stats_read_counter(&stats->rx_poll_hits), 2);
	vma_inet_stats_describe(NULL, &described);
	vma_inet_count_wait_poll_hit_or_miss(NULL, &slept);
	vma_free(stats);
}

static void test_last_call_looks_after_the_end(void **state)
{
	static const struct vma_file_ops ops = {.name = "test"};
	struct vma_thread *self = vma_enter();
	struct vma_file *file = vma_alloc(sizeof(*file));
	int fd = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	_Atomic uint32_t waiting = 0;

	(void)state;
	vma_file_init(file, VMA_FILE_UDP, &ops);
	assert_int_equal(vma_fd_install(fd, file), 0);
	vma_file_get(file);
	assert_true(vma_inet_add_waiting_call(file, &waiting));
	assert_true(vma_inet_add_waiting_call(file, &waiting));
	assert_false(vma_inet_remove_waiting_call(file, &waiting)); /* nobody has closed it */
	assert_int_equal(waiting, 1);
	vma_fd_remove(fd);
	assert_false(vma_inet_add_waiting_call(file, &waiting));
	assert_true(vma_inet_remove_waiting_call(file, &waiting));
	assert_true(vma_inet_remove_waiting_call(file, &waiting));
	assert_int_equal(waiting, 0);
	vma_file_put(file);
	vma_leave(self);
	vma_os.close(fd);
}

static void test_deadline_of_no_time_is_never(void **state)
{
	const uint64_t before = vma_now_ns(), deadline = vma_inet_deadline(1000), after = vma_now_ns();

	(void)state;
	assert_int_equal(vma_inet_deadline(UINT64_MAX), UINT64_MAX);
	assert_in_range(deadline, before + 1000, after + 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_families_flags_and_protocols),
	        cmocka_unit_test(test_new_socket_is_the_kernels_for_a_reason),
	        cmocka_unit_test(test_statistics_have_addresses_in_host_order),
	        cmocka_unit_test(test_last_call_looks_after_the_end),
	        cmocka_unit_test(test_deadline_of_no_time_is_never),
	};

	if (start_engine_with_few_buffers("1024", "64") == NULL)
		return 1;
	vma_test_set_filter_from_env();
	return cmocka_run_group_tests_name("inet", tests, NULL, NULL);
}
