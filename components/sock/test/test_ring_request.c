/* The ring that a socket asks for itself, in place of the configured logic. */
#include "wait_fixture.h"

static struct vma_ring_ctx *ring_ctx_by_request(enum vma_ring_ctx_side side, uint64_t socket,
                                                struct vma_ring_request rx, struct vma_ring_request tx)
{
	const struct vma_ring_requester where = {.socket_id = socket, .rx = rx, .tx = tx};
	struct vma_ring_ctx *ring_ctx = NULL;

	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, side, &where, &ring_ctx), 0);
	assert_true(vma_ring_ctx_is_that_of_requester(ring_ctx, side, &where));
	vma_ring_ctx_put(ring_ctx); /* the test compares numbers, while another reference keeps them */
	return ring_ctx;
}

static void test_a_socket_gets_the_ring_that_it_asks_for(void **state)
{
	const struct vma_ring_request none = {0},
	                              one = {.is_set = true, .logic = VMA_RING_LOGIC_PER_USER_ID, .user_id = 1},
	                              two = {.is_set = true, .logic = VMA_RING_LOGIC_PER_USER_ID, .user_id = 2},
	                              profile = {.is_set = true, .logic = VMA_RING_LOGIC_PER_INTERFACE, .profile = 1},
	                              plain = {.is_set = true, .logic = VMA_RING_LOGIC_PER_INTERFACE};
	const struct vma_ring_requester at_one = {.rx = one}, at_two = {.rx = two}, at_profile = {.rx = profile};
	struct vma_ring_ctx *first, *second, *third, *all = NULL;
	const struct vma_ring_requester anywhere = {0};

	(void)state;
	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_RX, &at_one, &first), 0);
	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_RX, &at_two, &second), 0);
	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_RX, &at_profile, &third), 0);
	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_TX, &anywhere, &all),
	                 0); /* logic 0 */
	assert_ptr_not_equal(first, second);
	assert_ptr_not_equal(third, all);
	assert_ptr_equal(ring_ctx_by_request(VMA_RING_CTX_RX, 5, one, two), first);
	assert_ptr_equal(ring_ctx_by_request(VMA_RING_CTX_RX, 6, two, one), second);
	assert_ptr_equal(ring_ctx_by_request(VMA_RING_CTX_TX, 6, two, one), first);
	assert_ptr_equal(ring_ctx_by_request(VMA_RING_CTX_RX, 7, plain, none), all);
	assert_ptr_equal(ring_ctx_by_request(VMA_RING_CTX_TX, 7, plain, none), all); /* as configured */
	assert_ptr_equal(ring_ctx_by_request(VMA_RING_CTX_TCP, 8, one, two), first);
	vma_ring_ctx_put(first);
	vma_ring_ctx_put(second);
	vma_ring_ctx_put(third);
	vma_ring_ctx_put(all);
}

static void test_a_connection_goes_by_its_request_for_sending_where_none_is_for_receiving(void **state)
{
	const struct vma_ring_request one = {.is_set = true, .logic = VMA_RING_LOGIC_PER_USER_ID, .user_id = 1};
	const struct vma_ring_requester where = {.socket_id = 9, .tx = one};
	struct vma_engine *engine = vma_engine_get_or_start();
	const int64_t logic = engine->conf.ring_allocation_logic_rx;
	struct vma_ring_ctx *ring_ctx;

	(void)state;
	engine->conf.ring_allocation_logic_rx = VMA_RING_LOGIC_PER_INTERFACE;
	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_TCP, &where, &ring_ctx), 0);
	assert_int_equal(ring_ctx->key.logic, VMA_RING_LOGIC_PER_USER_ID);
	vma_ring_ctx_put(ring_ctx);
	engine->conf.ring_allocation_logic_rx = VMA_RING_LOGIC_PER_SOCKET;
	assert_int_equal(vma_ring_ctx_find_or_create(&fixture.device, VMA_RING_CTX_TCP, &where, &ring_ctx), 0);
	assert_int_equal(ring_ctx->key.logic, VMA_RING_LOGIC_PER_SOCKET);
	vma_ring_ctx_put(ring_ctx);
	engine->conf.ring_allocation_logic_rx = logic;
}

static void test_an_accepted_socket_inherits_what_its_listener_asked_for(void **state)
{
	static struct vma_file listener, child;
	const struct vma_ring_request request = {.is_set = true, .logic = VMA_RING_LOGIC_PER_USER_ID, .user_id = 3};
	struct vma_engine *engine = vma_engine_get_or_start();
	const int64_t logic = engine->conf.ring_allocation_logic_rx;

	(void)state;
	engine->conf.ring_allocation_logic_rx = VMA_RING_LOGIC_PER_INTERFACE;
	listener.id = 1;
	child.id = 2;
	vma_file_set_ring_request(&listener, VMA_RING_CTX_RX, &request);
	assert_true(vma_conn_ring_may_differ_from_listener(engine, &child, &listener));
	vma_file_inherit_ring_requests(&child, &listener);
	assert_int_equal(vma_file_get_ring_alloc_request(&child, VMA_RING_CTX_RX).user_id, 3);
	assert_false(vma_conn_ring_may_differ_from_listener(engine, &child, &listener));
	assert_true(vma_ring_depends_on_creating_thread(engine, &child));
	engine->conf.ring_allocation_logic_rx = logic;
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_socket_gets_the_ring_that_it_asks_for),
        cmocka_unit_test(test_a_connection_goes_by_its_request_for_sending_where_none_is_for_receiving),
        cmocka_unit_test(test_an_accepted_socket_inherits_what_its_listener_asked_for),
};

VMA_TEST_MAIN_WITH(tests, wait_fixture_start, NULL)
