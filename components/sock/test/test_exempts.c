/* Connections that are the kernel's, of a device that takes what is the kernel's: wherever their listener is. */
#include "tcp_fixture.h"

/* The link of the tests gives nothing to a kernel; its rings believe that it does. */
static int setup_tcp_with_to_kernel_cap(void **state)
{
	const int rc = tcp_fixture_start(state);

	if (rc == 0)
		ends[0]->info.caps |= VMA_NIC_CAP_TO_KERNEL;
	return rc;
}

static bool exempt_and_check_listener_ring_has_flow(struct vma_ring_ctx *at, struct vma_ring_ctx *listens_at,
                                                    const struct vma_flow_key *key)
{
	struct vma_thread *self = vma_enter();
	bool acquired, is;

	vma_ring_ctx_leave_flow_to_kernel(at, key);
	acquired = vma_ring_acquire(listens_at->ring);
	is = vma_ring_find_first_flow_of_key(listens_at->ring, key) != NULL;
	if (acquired)
		vma_ring_release(listens_at->ring);
	vma_leave(self);
	return is;
}

static void test_a_connection_that_has_moved_is_exempt_where_its_listener_is(void **state)
{
	struct vma_tcp_conn *_Atomic accepted = NULL;
	struct vma_tcp *tcp, *other_tcp;
	struct vma_ring_ctx *ring_ctx = new_ring_ctx(&tcp), *other = new_ring_ctx(&other_tcp);
	struct vma_tcp_listener *listener = tcp_fixture_listen_on(tcp, 0, 7000, &accepted);
	struct vma_flow_key key = {
	        .family = AF_INET, .proto = IPPROTO_TCP, .local_port_be = htons(7000), .peer_port_be = htons(1000)};

	(void)state;
	memcpy(key.local, address[0], 4);
	memcpy(key.peer, address[1], 4);
	/* The kernel has no such connection: the sweep may just have ended the exemption. */
	wait_until(exempt_and_check_listener_ring_has_flow(other, ring_ctx, &key));
	assert_false(atomic_load(&other->to_sweep));
	assert_ptr_not_equal(other_tcp, tcp);
	vma_tcp_listener_close(listener);
	vma_ring_ctx_put(other);
	vma_ring_ctx_put(ring_ctx);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_connection_that_has_moved_is_exempt_where_its_listener_is),
};

VMA_TEST_MAIN_WITH(tests, setup_tcp_with_to_kernel_cap, tcp_fixture_stop)
