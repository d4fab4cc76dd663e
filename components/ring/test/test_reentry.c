/*
 * A signal handler on top of a thread that drives: it sends, flushes, asks for progress. Nothing deadlocks, nothing is
 * lost, nothing is sent twice.
 *
 * (What is not tested, because the contract excludes it: leaving a sink by siglongjmp. The flag would stay taken.)
 */
#include <signal.h>
#include <netinet/in.h>
#include <sys/time.h>

#include "../ring_priv.h"
#include "fake_nic.h"
#include "frames.h"

static struct fake_nic fake;
static struct vma_ring *ring;
/* Getting a buffer is not for signal handlers (the pool's cache is the thread's): theirs are prepared. */
static struct vma_nic_seg prepared[256];
static volatile sig_atomic_t next_prepared, handler_progress, handler_runs;

static void reentry_send_from_handler(int sig)
{
	(void)sig;
	handler_runs++;
	handler_progress = vma_ring_progress(ring);
	if (next_prepared < 256) {
		assert_int_equal(vma_ring_send(ring, &prepared[next_prepared], 1, 0), 1);
		next_prepared++;
	}
	vma_ring_flush_tx(ring);
}

static void raise_signal(void *arg)
{
	(void)arg;
	raise(SIGUSR1);
}

static int reentry_prepare_ring_and_handlers(enum vma_thread_mode mode)
{
	struct sigaction action = {.sa_handler = reentry_send_from_handler, .sa_flags = SA_RESTART};

	fake_init(&fake, VMA_NIC_CAP_SG);
	ring = fake_nic_create_ring(&fake, mode);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	next_prepared = handler_runs = 0;
	for (int i = 0; i < 256; i++) {
		struct vma_buf *buf = vma_ring_tx_buf(ring);

		assert_non_null(buf);
		prepared[i] = (struct vma_nic_seg){.buf = buf, .off = buf->data_off, .len = 60};
		memset(vma_buf_frame(fake.arena, buf) + buf->data_off, 0, 60);
		store_be16((uint8_t *)vma_buf_frame(fake.arena, buf) + buf->data_off, (uint16_t)(0x8000 | i));
	}
	return 0;
}

static int setup_reentry_in_single_thread_mode(void **state)
{
	(void)state;
	return reentry_prepare_ring_and_handlers(VMA_THREAD_SINGLE);
}

static int setup_reentry_in_mutex_thread_mode(void **state)
{
	(void)state;
	return reentry_prepare_ring_and_handlers(VMA_THREAD_MUTEX);
}

static int teardown(void **state)
{
	(void)state;
	signal(SIGUSR1, SIG_DFL);
	signal(SIGALRM, SIG_DFL);
	for (int i = next_prepared; i < 256; i++)
		vma_buf_put(fake.arena, prepared[i].buf);
	vma_ring_destroy(ring);
	fake_fini(&fake);
	return 0;
}

static void send_number(uint16_t number)
{
	struct vma_buf *buf = vma_ring_tx_buf(ring);
	struct vma_nic_seg seg;

	assert_non_null(buf);
	seg = (struct vma_nic_seg){.buf = buf, .off = buf->data_off, .len = 60};
	memset(vma_buf_frame(fake.arena, buf) + seg.off, 0, 60);
	store_be16((uint8_t *)vma_buf_frame(fake.arena, buf) + seg.off, number);
	assert_int_equal(vma_ring_send(ring, &seg, 1, 0), 1);
}

static void test_handler_that_sends_while_its_thread_sends(void **state)
{
	(void)state;
	fake.in_tx = raise_signal;
	send_number(7);
	/* The handler's own frame was sent by the interrupted driver, whose tx raised once more: until they are used
	 * up. */
	assert_int_equal(fake.sent[0].bytes[1], 7);
	for (unsigned i = 1; i < fake.sent_count; i++) {
		assert_int_equal(fake.sent[i].bytes[0], 0x80);
		assert_int_equal(fake.sent[i].bytes[1], i - 1);
	}
	assert_int_equal(fake.sent_count, 1 + (unsigned)next_prepared);
	assert_int_equal(next_prepared, 256);
	assert_int_equal(fake.queued_count, 0);
	assert_int_equal(vma_ring_drive_holder_tid(ring, VMA_RING_TX), 0);
}

static void test_handler_that_asks_for_progress_while_its_thread_receives(void **state)
{
	(void)state;
	fake.in_poll = raise_signal;
	assert_int_equal(vma_ring_progress(ring), 0);
	assert_int_equal(handler_runs, 1);
	assert_int_equal(handler_progress, -EBUSY);
	assert_int_equal(fake.sent_count, 1); /* transmit was free: it left at once */
	assert_int_equal(vma_ring_drive_holder_tid(ring, VMA_RING_RX), 0);
}

/* Signals at any instruction: a timer interrupts sends and progress for as long as the prepared frames last. */
static void test_signals_at_any_moment_lose_and_repeat_nothing(void **state)
{
	struct itimerval every = {.it_interval = {.tv_usec = 200}, .it_value = {.tv_usec = 200}};
	static bool seen[256];
	uint16_t number = 0;

	(void)state;
	setitimer(ITIMER_REAL, &every, NULL);
	while (next_prepared < 256 && number < 0x7fff && fake.sent_count < FAKE_LOG - 300) {
		if (number < 3000)
			send_number(number++);
		vma_ring_progress(ring);
	}
	setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	vma_ring_flush_tx(ring);
	assert_int_equal(fake.sent_count, number + (unsigned)next_prepared);
	memset(seen, 0, sizeof(seen));
	number = 0;
	for (unsigned i = 0; i < fake.sent_count; i++) {
		uint16_t is = (uint16_t)(fake.sent[i].bytes[0] << 8 | fake.sent[i].bytes[1]);

		if (is & 0x8000) {
			assert_false(seen[is & 0xff]);
			seen[is & 0xff] = true;
		} else {
			assert_int_equal(is, number++);
		}
	}
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_handler_that_sends_while_its_thread_sends,
                                        setup_reentry_in_single_thread_mode, teardown),
        {"test_handler_that_sends_while_its_thread_sends_with_threads", test_handler_that_sends_while_its_thread_sends,
         setup_reentry_in_mutex_thread_mode, teardown, NULL},
        cmocka_unit_test_setup_teardown(test_handler_that_asks_for_progress_while_its_thread_receives,
                                        setup_reentry_in_single_thread_mode, teardown),
        {"test_handler_that_asks_for_progress_with_threads",
         test_handler_that_asks_for_progress_while_its_thread_receives, setup_reentry_in_mutex_thread_mode, teardown,
         NULL},
        cmocka_unit_test_setup_teardown(test_signals_at_any_moment_lose_and_repeat_nothing,
                                        setup_reentry_in_single_thread_mode, teardown),
        {"test_signals_at_any_moment_lose_and_repeat_nothing_with_threads",
         test_signals_at_any_moment_lose_and_repeat_nothing, setup_reentry_in_mutex_thread_mode, teardown, NULL},
};
VMA_TEST_MAIN(tests)
