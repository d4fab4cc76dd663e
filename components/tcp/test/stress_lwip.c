/*
 * Two threads, each with a stack and connections of its own, in lwIP at the same time: what lwIP keeps outside its
 * objects is each thread's own. ThreadSanitizer sees a variable that is not.
 */
#include <pthread.h>

#include "lwip_fixture.h"

enum { ROUNDS = 2000 };
static struct fixture fixtures[2];
static pthread_barrier_t threads_start_barrier;

/* A connection made, some bytes each way, and closed by this side. Payloads and numbers differ between the threads. */
static void stress_lwip_one_connection(struct fixture *w, unsigned i, const char *payload)
{
	uint32_t bytes = (uint32_t)strlen(payload), ours = FIXTURE_ISN + 1;

	lwip_fixture_establish(w);
	lwip_enter(&w->tcp, &w->conn);
	assert_int_equal(tcp_write(w->conn.pcb, payload, (u16_t)bytes, 0), ERR_OK);
	assert_int_equal(tcp_output(w->conn.pcb), ERR_OK);
	lwip_leave();
	assert_int_equal(w->sent.payload, bytes);
	assert_memory_equal(w->sent.bytes + w->sent.len - bytes, payload, bytes);
	w->received_bytes = 0;
	/* The second half first. */
	lwip_fixture_receive_segment(
	        w, (struct segment){.flags = TCP_ACK, .seq = 5001 + bytes, .ack = ours + bytes, .payload = payload});
	assert_int_equal(w->received_bytes, 0);
	lwip_fixture_receive_segment(
	        w, (struct segment){.flags = TCP_ACK, .seq = 5001, .ack = ours + bytes, .payload = payload});
	assert_int_equal(w->received_bytes, 2 * bytes);
	lwip_enter(&w->tcp, &w->conn);
	tcp_ack_now(w->conn.pcb);
	assert_int_equal(tcp_output(w->conn.pcb), ERR_OK);
	lwip_leave();
	assert_int_equal(w->sent.ack, 5001 + 2 * bytes);
	if (i % 2)
		lwip_fixture_receive_segment(w, (struct segment){.flags = TCP_RST, .seq = 5001 + 2 * bytes});
	else
		lwip_fixture_abort(w);
	assert_null(w->conn.pcb);
	assert_int_equal(port_memory_in_use(&w->tcp), 0);
}

static void *stress_lwip_thread(void *arg)
{
	unsigned me = arg == &fixtures[1];

	fixture = arg;
	pthread_barrier_wait(&threads_start_barrier);
	for (unsigned i = 0; i < ROUNDS; i++)
		stress_lwip_one_connection(arg, i, me ? "of the second thread" : "of the first");
	return NULL;
}

static void test_two_threads_in_lwip_do_not_see_each_other(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_barrier_init(&threads_start_barrier, NULL, 2), 0);
	for (unsigned i = 0; i < 2; i++)
		lwip_fixture_open(&fixtures[i], NULL);
	assert_int_equal(pthread_create(&thread, NULL, stress_lwip_thread, &fixtures[1]), 0);
	stress_lwip_thread(&fixtures[0]); /* here, where a failed assertion can say so */
	assert_int_equal(pthread_join(thread, NULL), 0);
	for (unsigned i = 0; i < 2; i++)
		lwip_fixture_close(&fixtures[i]);
	pthread_barrier_destroy(&threads_start_barrier);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_threads_in_lwip_do_not_see_each_other),
};
VMA_TEST_MAIN(tests)
