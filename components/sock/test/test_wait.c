/*
 * One wait: what ends it, how soon, and what is left behind when a handler or cancellation ends it.
 * alone: it compares deadlines with the thread's own sleeps
 */
#include <sys/wait.h>

#include <vma/stats.h>

#include "wait_fixture.h"

static struct thing thing;
static _Atomic unsigned handled;
static sigjmp_buf back;

static void handler_count_sigusr1(int sig)
{
	(void)sig;
	atomic_fetch_add(&handled, 1);
}

static void handler_longjmp_out_of_wait(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

static void wait_test_set_sigusr1_handler(void (*handler)(int sig), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	assert_int_equal(vma_sigaction(SIGUSR1, &action, NULL), 0);
}

/* ThreadSanitizer keeps handlers back by itself, until the thread is in a system call that it knows. */
static void skip_where_handlers_wait(void)
{
#ifdef VMA_TSAN
	vma_test_skip("ThreadSanitizer keeps handlers back");
#endif
}

static bool waitq_has_waiters(const struct vma_waitq *q)
{
	bool there = atomic_load(&q->overflow) != 0;

	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++)
		there |= atomic_load(&q->slot[i]) != NULL;
	return there;
}

static int reset_wait_test_state(void **state)
{
	(void)state;
	memset(&thing, 0, sizeof(thing));
	atomic_store(&handled, 0);
	for (int i = 0; i < FIXTURE_THINGS; i++)
		atomic_store(&fixture.things[i].count, 0);
	return 0;
}

static int teardown_expect_thread_idle(void **state)
{
	struct vma_thread *self = vma_thread_self();

	(void)state;
	release_internal_thread();
	assert_int_equal(self->inside, 0);
	assert_null(self->waiting);
	assert_int_equal(atomic_load(&self->rings), 0);
	assert_true(atomic_load(&self->state) == VMA_THREAD_AWAKE || atomic_load(&self->state) == VMA_THREAD_WOKEN);
	assert_false(self->spinning);
	assert_ptr_not_equal(atomic_load(&fixture.ring_ctx->watcher), self);
	assert_false(waitq_has_waiters(&thing.q));
	return 0;
}

/* ---- a sleeper beside the test ---- */

struct sleeper {
	pthread_t thread;
	struct thing *thing;
	uint64_t rings, timeout_ns;
	struct thing_wait wait;
	struct vma_thread *_Atomic self;
	_Atomic bool done;
	_Atomic int rc;
	_Atomic uint64_t done_ns;
};

static void *sleeper_main(void *arg)
{
	struct sleeper *sleeper = arg;

	thing_wait_init(&sleeper->wait, sleeper->thing, sleeper->rings, sleeper->timeout_ns);
	atomic_store(&sleeper->self, vma_thread_self());
	atomic_store(&sleeper->rc, thing_wait_run(&sleeper->wait));
	atomic_store(&sleeper->done_ns, vma_now_ns());
	atomic_store(&sleeper->done, true);
	return NULL;
}

static bool is_asleep(struct sleeper *sleeper)
{
	struct vma_thread *self = atomic_load(&sleeper->self);

	return self != NULL && atomic_load(&self->state) == VMA_THREAD_ASLEEP;
}

static void sleeper_start(struct sleeper *sleeper, struct thing *what, uint64_t rings, uint64_t timeout_ns)
{
	memset(sleeper, 0, sizeof(*sleeper));
	sleeper->thing = what;
	sleeper->rings = rings;
	sleeper->timeout_ns = timeout_ns;
	assert_int_equal(pthread_create(&sleeper->thread, NULL, sleeper_main, sleeper), 0);
	fixture_wait_until(is_asleep(sleeper));
	usleep(2000); /* from the state to the system call */
}

static int sleeper_end(struct sleeper *sleeper)
{
	assert_int_equal(pthread_join(sleeper->thread, NULL), 0);
	return atomic_load(&sleeper->rc);
}

/* ---- what ends a wait ---- */

static void test_what_is_there_ends_it_at_once(void **state)
{
	struct thing_wait wait;

	(void)state;
	atomic_store(&thing.count, 1);
	thing_wait_init(&wait, &thing, fixture.bit, UINT64_MAX);
	assert_int_equal(thing_wait_run(&wait), 1);
	assert_int_equal(atomic_load(&wait.looks), 1);
	assert_int_equal(atomic_load(&wait.asks), 0);
	assert_false(wait.wait.slept);
}

static void test_deadline_of_before_asks_the_os_and_does_not_sleep(void **state)
{
	struct thing_wait wait;

	(void)state;
	thing_wait_init(&wait, &thing, 0, 0);
	assert_int_equal(thing_wait_run(&wait), 0);
	assert_int_equal(atomic_load(&wait.asks), 1);
	assert_false(wait.wait.slept);
	wait.os = 1;
	assert_int_equal(thing_wait_run(&wait), 1);
	wait.os = -EBADF;
	assert_int_equal(thing_wait_run(&wait), -EBADF);
}

enum { TRIES = 15 };

static uint64_t wait_median(uint64_t late[TRIES])
{
	for (unsigned i = 1; i < TRIES; i++) {
		for (unsigned j = i; j > 0 && late[j] < late[j - 1]; j--) {
			uint64_t smaller = late[j];

			late[j] = late[j - 1];
			late[j - 1] = smaller;
		}
	}
	return late[TRIES / 2];
}

/* How late this thread is without the library: a spinning one loses its core where a sleeping one would get it. */
static uint64_t measure_lateness_of_sleep_or_spin(bool spins)
{
	const uint64_t until = vma_now_ns() + 20 * MSEC;

	if (!spins)
		nanosleep(&(struct timespec){.tv_nsec = 20 * MSEC}, NULL);
	while (vma_now_ns() < until)
		;
	return vma_now_ns() - until;
}

/* Never early; how late mostly, and how late the thread's own sleeps or spins of that length are, which a busy machine
 * delays, too. */
static void measure_median_lateness_of_wait(uint64_t rings, int64_t spin_nsec, uint64_t *median,
                                            uint64_t *median_itself)
{
	uint64_t late[TRIES], late_itself[TRIES], until;
	struct thing_wait wait;

	for (unsigned i = 0; i < TRIES; i++) {
		thing_wait_init(&wait, &thing, rings, 20 * MSEC);
		wait.wait.spin_loops = spin_nsec != 0 ? -1 : 0;
		wait.wait.spin_nsec = spin_nsec;
		until = wait.wait.deadline_ns;
		assert_int_equal(thing_wait_run(&wait), 0);
		late[i] = vma_now_ns() - until;
		assert_true(vma_now_ns() >= until);
		assert_int_equal(atomic_load(&wait.asks) > 0, 1);
		late_itself[i] = measure_lateness_of_sleep_or_spin(spin_nsec != 0);
	}
	*median = wait_median(late);
	*median_itself = wait_median(late_itself);
}

/* Whose turn a core's absence hits, is chance: then another round is made, and told. */
static void expect_wait_ends_on_time(const char *test, uint64_t rings, int64_t spin_nsec)
{
	uint64_t late, itself;
	unsigned misses = 0;

	do
		measure_median_lateness_of_wait(rings, spin_nsec, &late, &itself);
	while (late > itself + 2 * MSEC &&
	       vma_test_remeasure(test, &misses, 10, "a wait %lu us late, without the library %lu", late / 1000,
	                          itself / 1000));
	assert_true(late <= itself + 2 * MSEC);
}

static void test_deadline_is_kept_asleep(void **state)
{
	(void)state;
	expect_wait_ends_on_time(__func__, 0, 0);
	expect_wait_ends_on_time(__func__, fixture.bit, 0);
}

static void test_deadline_is_kept_while_spinning(void **state)
{
	(void)state;
	expect_wait_ends_on_time(__func__, fixture.bit, -1);
	expect_wait_ends_on_time(__func__, fixture.bit, 100000);
}

static void test_readable_descriptor_ends_the_sleep(void **state)
{
	struct thing_wait wait;
	struct pollfd pfd[2];
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(write(fds[1], "x", 1), 1);
	thing_wait_init(&wait, &thing, 0, UINT64_MAX);
	pfd[0] = (struct pollfd){.fd = -1, .events = POLLIN, .revents = 77};
	pfd[1] = (struct pollfd){.fd = fds[0], .events = POLLIN};
	wait.wait.fds = pfd;
	wait.wait.nfds = 2;
	wait.os = 1;
	assert_int_equal(thing_wait_run(&wait), 1);
	assert_int_equal(atomic_load(&wait.asks), 1);
	assert_int_equal(pfd[0].revents, 0);
	assert_int_equal(pfd[1].revents, POLLIN);
	assert_true(wait.wait.slept);
	close(fds[0]);
	close(fds[1]);
}

static void test_many_descriptors_are_slept_on(void **state)
{
	struct pollfd pfds[500];
	struct thing_wait wait;
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	for (int i = 0; i < 500; i++)
		pfds[i] = (struct pollfd){.fd = i == 499 ? fds[0] : -1, .events = POLLIN};
	thing_wait_init(&wait, &thing, fixture.bit, 10 * MSEC);
	wait.wait.fds = pfds;
	wait.wait.nfds = 500;
	assert_int_equal(thing_wait_run(&wait), 0);
	assert_int_equal(write(fds[1], "x", 1), 1);
	wait.os = 1;
	wait.wait.deadline_ns = UINT64_MAX;
	assert_int_equal(thing_wait_run(&wait), 1);
	assert_int_equal(pfds[499].revents, POLLIN);
	close(fds[0]);
	close(fds[1]);
}

/* Our own come on top, and so many the kernel refuses. */
static void test_as_many_descriptors_as_the_process_may_have_are_slept_on(void **state)
{
	struct rlimit limit, few;
	struct pollfd pfds[100];
	struct thing_wait wait;
	int fds[2], rc[2];
	unsigned looks;

	(void)state;
	assert_int_equal(pipe(fds), 0);
	for (int i = 0; i < 100; i++)
		pfds[i] = (struct pollfd){.fd = i == 99 ? fds[0] : -1, .events = POLLIN};
	thing_wait_init(&wait, &thing, fixture.bit, 100 * MSEC);
	wait.wait.fds = pfds;
	wait.wait.nfds = 100;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	few = (struct rlimit){100, limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	rc[0] = thing_wait_run(&wait);
	looks = atomic_load(&wait.looks);
	wait.os = 1; /* whoever asks finds it ready */
	wait.wait.deadline_ns = vma_now_ns() + 2000 * MSEC;
	rc[1] = thing_wait_run(&wait);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(rc[0], 0);
	assert_true(looks < 400); /* it slept */
	assert_int_equal(rc[1], 1);
	assert_true(vma_now_ns() < wait.wait.deadline_ns - 1000 * MSEC);
	close(fds[0]);
	close(fds[1]);
}

static void test_sleeper_is_woken_by_who_delivers(void **state)
{
	struct sleeper sleeper;

	(void)state;
	sleeper_start(&sleeper, &thing, 0, UINT64_MAX);
	thing_add_one_and_wake(&thing);
	assert_int_equal(sleeper_end(&sleeper), 1);
	assert_true(sleeper.wait.wait.slept);
}

/* After the announcement, before the sleep: the look that decides has been taken. */
static void on_look_deliver_once_queued(struct thing_wait *wait)
{
	if (waitq_has_waiters(&thing.q) && atomic_load(&thing.count) == 0) {
		wait->on_look = NULL;
		thing_add_one_and_wake(&thing);
	}
}

static void test_delivery_between_last_look_and_sleep_is_not_lost(void **state)
{
	struct thing_wait wait;

	(void)state;
	for (int i = 0; i < 2; i++) {
		atomic_store(&thing.count, 0);
		thing_wait_init(&wait, &thing, i == 0 ? 0 : fixture.bit, UINT64_MAX);
		wait.on_look = on_look_deliver_once_queued;
		assert_int_equal(thing_wait_run(&wait), 1);
	}
}

/* Nobody stands in the queue yet, and whoever moves a socket wakes nobody. */
static void move_to_ring(struct thing_wait *wait)
{
	wait->before_queue = NULL;
	atomic_store(&wait->rings, fixture.bit);
	vma_waitq_wake(&wait->thing->q, true);
}

static void test_who_waits_for_a_socket_that_moves_before_it_is_queued_sleeps_for_the_new_ring(void **state)
{
	struct thing_wait wait;

	(void)state;
	hold_internal_thread();
	fixture_send(0);
	thing_wait_init(&wait, &fixture.things[0], 0, 3000 * MSEC);
	wait.before_queue = move_to_ring;
	assert_int_equal(thing_wait_run(&wait), 1);
}

static void test_a_sleeper_goes_along_with_its_socket(void **state)
{
	struct sleeper sleeper;

	(void)state;
	hold_internal_thread();
	sleeper_start(&sleeper, &fixture.things[0], 0, UINT64_MAX);
	atomic_store(&sleeper.wait.rings, fixture.bit);
	vma_waitq_wake(&fixture.things[0].q, true);
	fixture_wait_until(atomic_load(&atomic_load(&sleeper.self)->rings) == fixture.bit);
	fixture_send(0);
	assert_int_equal(sleeper_end(&sleeper), 1);
}

/* ---- handlers ---- */

static void interrupt_sleeper(int flags, bool restarts)
{
	struct sleeper sleeper;

	wait_test_set_sigusr1_handler(handler_count_sigusr1, flags);
	sleeper_start(&sleeper, &thing, fixture.bit, UINT64_MAX);
	assert_int_equal(pthread_kill(sleeper.thread, SIGUSR1), 0);
	assert_int_equal(sleeper_end(&sleeper), -EINTR);
	assert_int_equal(atomic_load(&handled), 1);
	assert_int_equal(sleeper.wait.wait.restart, restarts);
}

static void test_handler_ends_the_sleep(void **state)
{
	(void)state;
	interrupt_sleeper(0, false);
	atomic_store(&handled, 0);
	interrupt_sleeper(SA_RESTART, true);
}

static void raise_signal_once_in_queue(struct thing_wait *wait)
{
	if (waitq_has_waiters(&thing.q)) {
		wait->on_look = NULL;
		raise(SIGUSR1);
		assert_int_equal(atomic_load(&handled), 0);
	}
}

static void test_signal_between_last_look_and_sleep_is_not_lost(void **state)
{
	struct thing_wait wait;

	(void)state;
	skip_where_handlers_wait();
	wait_test_set_sigusr1_handler(handler_count_sigusr1, 0);
	for (unsigned i = 0; i < 2; i++) {
		atomic_store(&handled, 0);
		thing_wait_init(&wait, &thing, i == 0 ? 0 : fixture.bit, 5000 * MSEC);
		wait.on_look = raise_signal_once_in_queue;
		assert_int_equal(thing_wait_run(&wait), -EINTR);
		assert_int_equal(atomic_load(&handled), 1);
		assert_false(wait.wait.restart);
	}
}

static void raise_signal_at_fifth_look(struct thing_wait *wait)
{
	if (atomic_load(&wait->looks) == 5) {
		wait->on_look = NULL;
		raise(SIGUSR1);
	}
}

static void test_handler_ends_the_spinning(void **state)
{
	struct thing_wait wait;

	(void)state;
	skip_where_handlers_wait();
	wait_test_set_sigusr1_handler(handler_count_sigusr1, 0);
	thing_wait_init(&wait, &thing, fixture.bit, UINT64_MAX);
	wait.wait.spin_loops = -1;
	wait.on_look = raise_signal_at_fifth_look;
	assert_int_equal(thing_wait_run(&wait), -EINTR);
	assert_int_equal(atomic_load(&handled), 1);
	assert_true(atomic_load(&wait.looks) < 1000);
	assert_false(wait.wait.slept);
}

static _Atomic int rc_within;

/* A wait of its own, on more descriptors than the stack has room for, as the one that it interrupts. */
static void handler_do_nested_wait(int sig)
{
	static struct pollfd pfds[200];
	static struct thing inner;
	struct thing_wait wait;

	(void)sig;
	for (int i = 0; i < 200; i++)
		pfds[i].fd = -1;
	thing_wait_init(&wait, &inner, fixture.bit, 5 * MSEC);
	wait.wait.fds = pfds;
	wait.wait.nfds = 200;
	atomic_store(&rc_within, thing_wait_run(&wait));
}

static void on_look_raise_signal_once_queued(struct thing_wait *wait)
{
	if (waitq_has_waiters(&thing.q)) {
		wait->on_look = NULL;
		raise(SIGUSR1);
	}
}

static void test_handler_may_wait_by_itself(void **state)
{
	struct pollfd pfds[200];
	struct thing_wait wait;

	(void)state;
	skip_where_handlers_wait();
	wait_test_set_sigusr1_handler(handler_do_nested_wait, 0);
	for (int i = 0; i < 200; i++)
		pfds[i] = (struct pollfd){.fd = -1};
	atomic_store(&rc_within, -1);
	thing_wait_init(&wait, &thing, fixture.bit, UINT64_MAX);
	wait.wait.fds = pfds;
	wait.wait.nfds = 200;
	wait.on_look = on_look_raise_signal_once_queued;
	assert_int_equal(thing_wait_run(&wait), -EINTR);
	assert_int_equal(atomic_load(&rc_within), 0);
	for (int i = 0; i < 200; i++)
		assert_int_equal(pfds[i].revents, 0);
}

/* ---- left by a jump, or for ever ---- */

static void *thread_sleep_until_longjmp(void *arg)
{
	struct sleeper *sleeper = arg;
	int jumped = sigsetjmp(back, 1);

	if (jumped == 0)
		sleeper_main(sleeper);
	atomic_store(&sleeper->rc, jumped);
	atomic_store(&sleeper->done, true);
	while (!atomic_load(&fixture.things[15].count))
		usleep(1000);
	return NULL;
}

/* The others of the ring get what is theirs though its watcher has gone, and nobody else drives. */
static void expect_wakeup_after_watcher_ends(struct sleeper *watcher, void (*how)(struct sleeper *watcher))
{
	struct sleeper other;

	hold_internal_thread();
	sleeper_start(&other, &fixture.things[1], fixture.bit, UINT64_MAX);
	assert_ptr_equal(atomic_load(&fixture.ring_ctx->watcher), atomic_load(&watcher->self));
	how(watcher);
	fixture_wait_until(atomic_load(&fixture.ring_ctx->watcher) == atomic_load(&other.self));
	usleep(2000);
	fixture_send(1);
	fixture_wait_until(atomic_load(&other.done));
	assert_int_equal(sleeper_end(&other), 1);
	assert_null(atomic_load(&fixture.ring_ctx->watcher));
	release_internal_thread();
}

static void signal_sleeper_and_expect_it_returns(struct sleeper *watcher)
{
	assert_int_equal(pthread_kill(watcher->thread, SIGUSR1), 0);
	fixture_wait_until(atomic_load(&watcher->done));
	assert_int_equal(atomic_load(&watcher->rc), 1);
}

static void test_jump_out_of_the_sleep_leaves_the_watch_to_others(void **state)
{
	static struct sleeper watcher;
	struct vma_thread *self;

	(void)state;
	skip_where_handlers_wait();
	wait_test_set_sigusr1_handler(handler_longjmp_out_of_wait, 0);
	memset(&watcher, 0, sizeof(watcher));
	watcher.thing = &fixture.things[0];
	watcher.rings = fixture.bit;
	watcher.timeout_ns = UINT64_MAX;
	assert_int_equal(pthread_create(&watcher.thread, NULL, thread_sleep_until_longjmp, &watcher), 0);
	fixture_wait_until(is_asleep(&watcher));
	expect_wakeup_after_watcher_ends(&watcher, signal_sleeper_and_expect_it_returns);
	self = atomic_load(&watcher.self);
	assert_int_equal(self->inside, 0);
	assert_null(self->waiting);
	assert_int_equal(atomic_load(&self->rings), 0);
	assert_false(waitq_has_waiters(&fixture.things[0].q));
	atomic_store(&fixture.things[15].count, 1);
	assert_int_equal(pthread_join(watcher.thread, NULL), 0);
}

static void cancel_sleeper_and_expect_cleanup(struct sleeper *watcher)
{
	void *result;

	assert_int_equal(pthread_cancel(watcher->thread), 0);
	assert_int_equal(pthread_join(watcher->thread, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	assert_int_equal(atomic_load(&watcher->wait.abandoned), 1);
	assert_false(waitq_has_waiters(&watcher->thing->q));
}

static void test_cancelled_sleeper_leaves_the_watch_to_others(void **state)
{
	struct sleeper watcher;

	(void)state;
	sleeper_start(&watcher, &fixture.things[0], fixture.bit, UINT64_MAX);
	expect_wakeup_after_watcher_ends(&watcher, cancel_sleeper_and_expect_cleanup);
}

static void expect_sleeper_is_served(struct sleeper *watcher)
{
	fixture_send(0);
	assert_int_equal(sleeper_end(watcher), 1);
}

static void test_served_watcher_leaves_the_watch_to_others(void **state)
{
	struct sleeper watcher;

	(void)state;
	sleeper_start(&watcher, &fixture.things[0], fixture.bit, UINT64_MAX);
	expect_wakeup_after_watcher_ends(&watcher, expect_sleeper_is_served);
}

static void *thread_wait_spinning_without_timeout(void *arg)
{
	struct sleeper *sleeper = arg;

	thing_wait_init(&sleeper->wait, sleeper->thing, fixture.bit, UINT64_MAX);
	sleeper->wait.wait.spin_loops = -1;
	atomic_store(&sleeper->self, vma_thread_self());
	thing_wait_run(&sleeper->wait);
	return NULL;
}

static void test_spinner_can_be_cancelled(void **state)
{
	struct sleeper spinner = {.thing = &thing};

	(void)state;
	assert_int_equal(pthread_create(&spinner.thread, NULL, thread_wait_spinning_without_timeout, &spinner), 0);
	fixture_wait_until(atomic_load(&spinner.wait.looks) > 100);
	cancel_sleeper_and_expect_cleanup(&spinner);
}

/* ---- several ---- */

static void test_others_are_woken_by_the_watcher(void **state)
{
	struct sleeper sleepers[5];

	(void)state;
	hold_internal_thread();
	for (int i = 0; i < 5; i++)
		sleeper_start(&sleepers[i], &fixture.things[i], fixture.bit, UINT64_MAX);
	assert_ptr_equal(atomic_load(&fixture.ring_ctx->watcher), atomic_load(&sleepers[0].self));
	for (uint16_t i = 4; i > 0; i--) {
		fixture_send(i);
		assert_int_equal(sleeper_end(&sleepers[i]), 1);
		assert_int_equal(atomic_load(&fixture.things[i].count), 1);
	}
	assert_false(atomic_load(&sleepers[0].done));
	fixture_send(0);
	assert_int_equal(sleeper_end(&sleepers[0]), 1);
}

/* What the watcher delivers to itself costs no wake-up of its own: its descriptor is silent afterwards. */
static void *thread_sleep_then_poll_own_wake_fd(void *arg)
{
	struct sleeper *sleeper = arg;
	struct pollfd pfd = {.events = POLLIN};

	sleeper_main(sleeper);
	pfd.fd = atomic_load(&vma_thread_self()->wake_fd);
	atomic_store(&sleeper->rc, atomic_load(&sleeper->rc) == 1 ? poll(&pfd, 1, 0) : -1);
	return NULL;
}

static void test_watcher_does_not_wake_itself(void **state)
{
	struct sleeper sleeper = {.thing = &fixture.things[0], .rings = fixture.bit, .timeout_ns = UINT64_MAX};

	(void)state;
	hold_internal_thread();
	assert_int_equal(pthread_create(&sleeper.thread, NULL, thread_sleep_then_poll_own_wake_fd, &sleeper), 0);
	fixture_wait_until(is_asleep(&sleeper));
	usleep(2000);
	fixture_send(0);
	assert_int_equal(sleeper_end(&sleeper), 0);
}

static unsigned sum_looks_of_sleepers(struct sleeper *sleepers, unsigned n)
{
	unsigned looks = 0;

	for (unsigned i = 0; i < n; i++)
		looks += atomic_load(&sleepers[i].wait.looks);
	return looks;
}

static uint64_t wakes_counted(void)
{
	const _Atomic uint64_t *wakes = &vma_engine_get_or_start()->process_stats->wake_0;
	uint64_t sum = 0;

	for (unsigned i = 0; i < VMA_STATS_WAKES; i++)
		sum += vma_stats_read_counter(&wakes[i]);
	return sum;
}

static void test_wakeup_is_timed(void **state)
{
	const uint64_t before = wakes_counted();
	struct sleeper sleeper;

	(void)state;
	sleeper_start(&sleeper, &thing, 0, UINT64_MAX);
	fixture_wait_until(is_asleep(&sleeper));
	thing_add_one_and_wake(&thing);
	assert_int_equal(sleeper_end(&sleeper), 1);
	assert_true(wakes_counted() > before);
}

/* Two who wait for the same must not keep each other awake. */
static void test_needless_wakeup_ends(void **state)
{
	struct sleeper sleepers[3];
	struct vma_thread *self;
	unsigned quiet = 0;

	(void)state;
	for (int i = 0; i < 3; i++)
		sleeper_start(&sleepers[i], &thing, fixture.bit, UINT64_MAX);
	self = vma_enter();
	vma_waitq_wake(&thing.q, false);
	vma_leave(self);
	for (int i = 0; i < 50 && quiet < 3; i++) {
		const unsigned before = sum_looks_of_sleepers(sleepers, 3);

		usleep(20000);
		quiet = sum_looks_of_sleepers(sleepers, 3) == before ? quiet + 1 : 0;
	}
	assert_int_equal(quiet, 3);
	assert_true(sum_looks_of_sleepers(sleepers, 3) <
	            100); /* and none in between was only one without a core for them */
	for (int i = 0; i < 3; i++)
		thing_add_one_and_wake(&thing);
	for (int i = 0; i < 3; i++)
		assert_int_equal(sleeper_end(&sleepers[i]), 1);
}

/* Woken just before its last look, its time over just after it. */
static void on_look_wake_waiter_and_expire_deadline(struct thing_wait *wait)
{
	if (atomic_load(&wait->wait.self->state) == VMA_THREAD_GOING) {
		wait->on_look = NULL;
		vma_waitq_wake(&thing.q, false);
		wait->wait.deadline_ns = 1;
	}
}

static void test_wakeup_of_one_whose_time_is_over_is_passed_on(void **state)
{
	struct sleeper patient;
	struct thing_wait wait;
	unsigned looks;

	(void)state;
	/* The first place is the impatient one's. */
	thing_wait_init(&wait, &thing, 0, UINT64_MAX);
	vma_waitq_add(&thing.q, vma_thread_self());
	sleeper_start(&patient, &thing, 0, UINT64_MAX);
	looks = atomic_load(&patient.wait.looks);
	wait.on_look = on_look_wake_waiter_and_expire_deadline;
	assert_int_equal(thing_wait_run(&wait), 0);
	fixture_wait_until(atomic_load(&patient.wait.looks) > looks);
	thing_add_one_and_wake(&thing);
	assert_int_equal(sleeper_end(&patient), 1);
}

static void test_wakeup_of_one_who_is_served_is_not_passed_on(void **state)
{
	struct sleeper sleepers[2];
	unsigned looks;
	int served;

	(void)state;
	for (int i = 0; i < 2; i++)
		sleeper_start(&sleepers[i], &thing, 0, UINT64_MAX);
	looks = atomic_load(&sleepers[0].wait.looks) + atomic_load(&sleepers[1].wait.looks);
	thing_add_one_and_wake(&thing);
	fixture_wait_until(atomic_load(&sleepers[0].done) || atomic_load(&sleepers[1].done));
	usleep(5000);
	served = atomic_load(&sleepers[0].done) ? 0 : 1;
	assert_false(atomic_load(&sleepers[1 - served].done));
	assert_int_equal(atomic_load(&sleepers[0].wait.looks) + atomic_load(&sleepers[1].wait.looks), looks + 1);
	thing_add_one_and_wake(&thing);
	for (int i = 0; i < 2; i++)
		assert_int_equal(sleeper_end(&sleepers[i]), 1);
}

/* The watcher leaves and wakes another for the watch, who finds something of its own and leaves, too. */
static void test_watch_finds_its_way_past_one_who_leaves(void **state)
{
	struct sleeper sleepers[3];

	(void)state;
	hold_internal_thread();
	for (int i = 0; i < 3; i++)
		sleeper_start(&sleepers[i], &fixture.things[i], fixture.bit, UINT64_MAX);
	assert_ptr_equal(atomic_load(&fixture.ring_ctx->watcher), atomic_load(&sleepers[0].self));
	atomic_store(&fixture.things[1].count, 1); /* which nobody tells it */
	fixture_send(0);
	assert_int_equal(sleeper_end(&sleepers[0]), 1);
	assert_int_equal(sleeper_end(&sleepers[1]), 1);
	fixture_wait_until(atomic_load(&fixture.ring_ctx->watcher) == atomic_load(&sleepers[2].self));
	fixture_send(2);
	assert_int_equal(sleeper_end(&sleepers[2]), 1);
}

/* ---- manners ---- */

static uint64_t cpu_percent_of_idle_waits(void)
{
	uint64_t cpu = 0, wall = 0;
	struct thing_wait wait;

	thing_wait_init(&wait, &thing, fixture.bit, 0);
	wait.wait.spin_loops = -1;
	wait.wait.spin_nsec = 100 * (int64_t)MSEC;
	for (int i = 0; i < 60; i++) {
		if (i == 20) { /* by now it has learned */
			cpu = fixture_thread_cpu_ns();
			wall = vma_now_ns();
		}
		wait.wait.deadline_ns = vma_now_ns() + 10 * MSEC;
		assert_int_equal(thing_wait_run(&wait), 0);
	}
	return (fixture_thread_cpu_ns() - cpu) * 100 / (vma_now_ns() - wall);
}

/* In one of some rounds: a virtual core may be taken away unseen, and what it lacked is counted as used. */
static void test_idle_waiter_costs_next_to_nothing(void **state)
{
#if defined(VMA_TSAN) || defined(VMA_DEBUG)
	const uint64_t limit = 10;
#else
	const uint64_t limit = 2;
#endif
	uint64_t percent = 100;

	(void)state;
	for (int i = 0; i < 10 && percent >= limit; i++)
		percent = cpu_percent_of_idle_waits();
	assert_true(percent < limit);
}

/* Packets and the OS end waits in turn, as they do for a proxy whose backend is on this host. */
static void on_look_deliver_at_every_fourth(struct thing_wait *self)
{
	if (atomic_load(&self->looks) % 4 == 3)
		atomic_store(&self->thing->count, 1);
}

static uint32_t spin_budget_after_alternating_waits(bool mixed)
{
	struct thing_wait wait;

	thing_wait_init(&wait, &thing, fixture.bit, UINT64_MAX);
	wait.wait.spin_loops = -1;
	wait.wait.spin_nsec = 100 * (int64_t)MSEC;
	wait.wait.os_ratio = 1;
	wait.wait.mixed = mixed;
	for (int i = 0; i < 40; i++) {
		wait.os = i % 2;
		wait.on_look = i % 2 == 0 ? on_look_deliver_at_every_fourth : NULL;
		assert_int_equal(thing_wait_run(&wait), 1);
		atomic_store(&thing.count, 0);
	}
	return atomic_load(&wait.spin.budget_nsec);
}

static void test_a_wait_that_the_os_ends_makes_it_spin_less(void **state)
{
	uint32_t budget = 0;

	(void)state;
	assert_int_equal(spin_budget_after_alternating_waits(true), 1000); /* the least */
	for (int i = 0; i < 20 && budget < 500000; i++) /* a turn without a core counts as one in vain */
		budget = spin_budget_after_alternating_waits(false);
	assert_true(budget >= 500000);
}

/* A thread that has the ring's flag and does not run keeps nobody awake. */
static void ring_command_hold_rx_flag_100ms(struct vma_ring_command *command)
{
	(void)command;
	usleep(100000);
}

static void *thread_post_100ms_ring_command(void *arg)
{
	static struct vma_ring_command command = {.run = ring_command_hold_rx_flag_100ms};
	struct vma_thread *self = vma_enter();

	vma_ring_queue_command_and_try_run(fixture.ring_ctx->ring, &command);
	vma_leave(self);
	return arg;
}

static void test_sleeper_does_not_burn_while_somebody_holds_the_ring(void **state)
{
	struct thing_wait wait;
	pthread_t thread;
	uint64_t cpu;

	(void)state;
	hold_internal_thread();
	assert_int_equal(pthread_create(&thread, NULL, thread_post_100ms_ring_command, NULL), 0);
	fixture_wait_until(vma_ring_drive_holder_tid(fixture.ring_ctx->ring, VMA_RING_RX) != 0);
	thing_wait_init(&wait, &thing, fixture.bit, 60 * MSEC);
	cpu = fixture_thread_cpu_ns();
	assert_int_equal(thing_wait_run(&wait), 0);
	cpu = fixture_thread_cpu_ns() - cpu;
	assert_true(cpu < 30 * MSEC);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static _Atomic bool let_go;

static void *hold_ring(void *arg)
{
	assert_true(vma_ring_acquire(fixture.ring_ctx->ring));
	while (!atomic_load(&let_go))
		usleep(100);
	vma_ring_release(fixture.ring_ctx->ring);
	return arg;
}

static unsigned look_at_which_os_is_ready;

/* Only one look finds it, as only one finds an edge. */
static void os_is_ready_at_one_look(struct thing_wait *self)
{
	atomic_store(&self->thing->count, atomic_load(&self->looks) + 1 == look_at_which_os_is_ready);
}

static void test_what_is_told_once_is_not_lost_while_others_drive(void **state)
{
	struct thing_wait wait;
	pthread_t thread;

	(void)state;
	hold_internal_thread();
	atomic_store(&let_go, false);
	assert_int_equal(pthread_create(&thread, NULL, hold_ring, NULL), 0);
	fixture_wait_until(vma_ring_drive_holder_tid(fixture.ring_ctx->ring, VMA_RING_RX) != 0);
	for (look_at_which_os_is_ready = 2; look_at_which_os_is_ready < 40; look_at_which_os_is_ready++) {
		thing_wait_init(&wait, &thing, fixture.bit, 5000 * MSEC);
		wait.wait.spin_loops = -1;
		wait.on_look = os_is_ready_at_one_look;
		assert_int_equal(thing_wait_run(&wait), 1);
		assert_int_equal(atomic_load(&wait.looks), look_at_which_os_is_ready);
	}
	atomic_store(&let_go, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* ---- no descriptor left, fork ---- */

static void *thread_sleep_without_wake_fd(void *arg)
{
	int fd = atomic_exchange(&vma_thread_self()->wake_fd, -1); /* of a thread that has ended */

	if (fd >= 0)
		vma_fd_unguard_close(fd);
	sleeper_main(arg);
	return NULL;
}

static bool has_wake_fd(const struct sleeper *sleeper)
{
	return atomic_load(&atomic_load(&sleeper->self)->wake_fd) >= 0;
}

/* Asleep in a process at its limit of descriptors. The limit as it was. */
static struct rlimit sleeper_start_without_descriptors(struct sleeper *sleeper)
{
	struct rlimit limit, none = {0, 0};

	*sleeper = (struct sleeper){.thing = &thing, .timeout_ns = UINT64_MAX};
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none.rlim_max = limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(pthread_create(&sleeper->thread, NULL, thread_sleep_without_wake_fd, sleeper), 0);
	fixture_wait_until(is_asleep(sleeper));
	assert_false(has_wake_fd(sleeper));
	return limit;
}

static void test_sleeper_without_descriptor_looks_by_itself(void **state)
{
	struct sleeper sleeper;
	const struct rlimit limit = sleeper_start_without_descriptors(&sleeper);

	(void)state;
	thing_add_one_and_wake(&thing);
	assert_int_equal(sleeper_end(&sleeper), 1);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void test_sleeper_that_was_without_descriptor_gets_one(void **state)
{
	struct sleeper sleeper;
	const struct rlimit limit = sleeper_start_without_descriptors(&sleeper);

	(void)state;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	fixture_wait_until(has_wake_fd(&sleeper));
	fixture_wait_until(is_asleep(&sleeper));
	thing_add_one_and_wake(&thing);
	assert_int_equal(sleeper_end(&sleeper), 1);
}

static void *thread_wake_sleeper_once_asleep(void *arg)
{
	struct vma_thread *whom = arg;

	for (int ms = 0; ms < 10000 && atomic_load(&whom->state) != VMA_THREAD_ASLEEP; ms++)
		usleep(1000);
	thing_add_one_and_wake(&thing);
	return NULL;
}

/* 0, or the number of what was not so. */
static int forked_child_check_wait_and_wake(int parents_fd)
{
	struct thing_wait wait;
	pthread_t thread;

	vma_engine_reset_in_fork_child();
	thing_wait_init(&wait, &thing, 0, 20000 * MSEC);
	if (pthread_create(&thread, NULL, thread_wake_sleeper_once_asleep, vma_thread_self()) != 0)
		return 1;
	if (thing_wait_run(&wait) != 1 || !wait.wait.slept)
		return 2;
	if (atomic_load(&vma_thread_self()->wake_fd) < 0)
		return 3;
	pthread_join(thread, NULL);
	return parents_fd >= 0 ? 0 : 4;
}

static void test_forked_child_sleeps_and_is_woken_by_its_own(void **state)
{
	struct vma_thread *self = vma_thread_self();
	struct pollfd pfd = {.events = POLLIN};
	struct thing_wait wait;
	int status;
	pid_t child;

	(void)state;
#ifdef VMA_TSAN
	/* It takes a new one for one of them. */
	vma_test_skip("ThreadSanitizer still knows the parent's threads in the child");
#endif
	thing_wait_init(&wait, &thing, 0, MSEC);
	assert_int_equal(thing_wait_run(&wait), 0);
	vma_engine_fork_prepare();
	child = fork();
	if (child == 0)
		_exit(forked_child_check_wait_and_wake(atomic_load(&self->wake_fd)));
	vma_engine_after_fork_in_parent();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	pfd.fd = atomic_load(&self->wake_fd);
	assert_int_equal(poll(&pfd, 1, 0), 0); /* the parent's is another one */
}

#define T(name) cmocka_unit_test_setup_teardown(name, reset_wait_test_state, teardown_expect_thread_idle)
static const struct CMUnitTest tests[] = {
        T(test_what_is_there_ends_it_at_once),
        T(test_deadline_of_before_asks_the_os_and_does_not_sleep),
        T(test_deadline_is_kept_asleep),
        T(test_deadline_is_kept_while_spinning),
        T(test_readable_descriptor_ends_the_sleep),
        T(test_many_descriptors_are_slept_on),
        T(test_as_many_descriptors_as_the_process_may_have_are_slept_on),
        T(test_sleeper_is_woken_by_who_delivers),
        T(test_delivery_between_last_look_and_sleep_is_not_lost),
        T(test_who_waits_for_a_socket_that_moves_before_it_is_queued_sleeps_for_the_new_ring),
        T(test_a_sleeper_goes_along_with_its_socket),
        T(test_handler_ends_the_sleep),
        T(test_signal_between_last_look_and_sleep_is_not_lost),
        T(test_handler_ends_the_spinning),
        T(test_handler_may_wait_by_itself),
        T(test_jump_out_of_the_sleep_leaves_the_watch_to_others),
        T(test_cancelled_sleeper_leaves_the_watch_to_others),
        T(test_served_watcher_leaves_the_watch_to_others),
        T(test_spinner_can_be_cancelled),
        T(test_others_are_woken_by_the_watcher),
        T(test_watcher_does_not_wake_itself),
        T(test_wakeup_is_timed),
        T(test_needless_wakeup_ends),
        T(test_wakeup_of_one_whose_time_is_over_is_passed_on),
        T(test_wakeup_of_one_who_is_served_is_not_passed_on),
        T(test_watch_finds_its_way_past_one_who_leaves),
        T(test_idle_waiter_costs_next_to_nothing),
        T(test_a_wait_that_the_os_ends_makes_it_spin_less),
        T(test_sleeper_does_not_burn_while_somebody_holds_the_ring),
        T(test_what_is_told_once_is_not_lost_while_others_drive),
        T(test_sleeper_without_descriptor_looks_by_itself),
        T(test_sleeper_that_was_without_descriptor_gets_one),
        T(test_forked_child_sleeps_and_is_woken_by_its_own),
};

VMA_TEST_FORKS_WITH_THREADS

VMA_TEST_MAIN_WITH(tests, wait_fixture_start, NULL)
