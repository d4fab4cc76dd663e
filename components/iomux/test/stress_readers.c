/*
 * Every way to wait for a datagram at once, on one ring: two threads in epoll_wait on edges, one in poll, one that
 * receives. Whoever drives the ring delivers to all of them, and no datagram lies for long.
 *
 *   peer ring ── fixture_send(file) ──> ring_ctx ── sink ──> queue of the file, vma_file_wake_readers_or_batch
 *     files 0, 1, 2 ──> the set (edge)      files 2, 3 ──> poll      file 3 ──> receive
 *
 * Once with the internal thread, which drives now and then, so that the others find the ring taken, and once without,
 * so that nobody but they themselves sees to it that the ring is watched.
 */
#include "../../sock/test/wait_fixture.h"

#include "backends.h"

#define FILES 4
#define SET_FILES 3
#define READERS 4
#define LATE_NS 20000000000ULL /* a lost one is never seen; a busy machine takes its time */

struct target {
	struct vma_file file;
	/* Plain loads and stores with no more order than a queue has. */
	_Atomic uint64_t queued, taken;
};
static struct backend backend = {.kind = OFFLOADED};
static struct target *targets[FILES];
static int fds[FILES], ep;
static struct vma_thread *_Atomic reader_threads_self[READERS];
static _Atomic bool stop;

static bool has_datagram(const struct target *target)
{
	return atomic_load_explicit(&target->queued, memory_order_acquire) !=
	       atomic_load_explicit(&target->taken, memory_order_relaxed);
}

static uint32_t target_poll(struct vma_file *file)
{
	return EPOLLOUT | (has_datagram((struct target *)file) ? EPOLLIN : 0);
}

static uint64_t target_rings(struct vma_file *file)
{
	(void)file;
	return fixture.bit;
}

static void target_destroy_does_nothing(struct vma_file *file)
{
	(void)file;
}

static const struct vma_file_ops target_ops = {
        .name = "target", .poll = target_poll, .rings = target_rings, .destroy = target_destroy_does_nothing};

static bool readers_sink_count_queued(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct target *target = flow->owner;

	(void)packet, (void)info;
	atomic_store_explicit(&target->queued, atomic_load_explicit(&target->queued, memory_order_relaxed) + 1,
	                      memory_order_release);
	vma_file_wake_readers_or_batch(&target->file);
	return false;
}

static bool target_take_one(struct target *target)
{
	uint64_t taken = atomic_load(&target->taken);

	while (taken != atomic_load(&target->queued))
		if (atomic_compare_exchange_weak(&target->taken, &taken, taken + 1))
			return true;
	return false;
}

/* ---- readers ---- */

static void register_reader_thread(int number)
{
	atomic_store(&reader_threads_self[number], vma_thread_self());
}

/* An edge is told once, so all that is there is taken. */
static void *read_by_epoll(void *arg)
{
	struct epoll_event event;

	register_reader_thread(*(int *)arg);
	while (!atomic_load(&stop))
		if (backend_epoll_wait(&backend, ep, &event, 1, -1) == 1)
			while (target_take_one(targets[event.data.u64]))
				;
	return NULL;
}

static void *read_by_poll(void *arg)
{
	register_reader_thread(*(int *)arg);
	while (!atomic_load(&stop)) {
		struct pollfd os_polled[2] = {{.fd = fds[2], .events = POLLIN}, {.fd = fds[3], .events = POLLIN}};

		backend_poll(&backend, os_polled, 2, -1);
		for (int i = 0; i < 2; i++)
			if (os_polled[i].revents & POLLIN)
				target_take_one(targets[2 + i]);
	}
	return NULL;
}

static int has_datagram_or_is_stopped(struct vma_wait *wait)
{
	return atomic_load(&stop) || has_datagram(wait->arg);
}

static uint64_t receive_wait_on_fixture_ring(struct vma_wait *wait)
{
	(void)wait;
	return fixture.bit;
}

static void receive_join_or_leave_wait_queue(struct vma_wait *wait, bool on)
{
	struct target *target = wait->arg;

	if (on)
		vma_waitq_add(&target->file.waitq, wait->self);
	else
		vma_waitq_remove(&target->file.waitq, wait->self);
}

static const struct vma_wait_ops receive_ops = {.ready = has_datagram_or_is_stopped,
                                                .rings = receive_wait_on_fixture_ring,
                                                .set_queued = receive_join_or_leave_wait_queue};

/* As recv does: a wake-up may have been spent on a call that takes one of several, or nothing. */
static void *readers_wait_and_receive_thread(void *arg)
{
	struct target *target = targets[3];
	struct vma_spin spin = {0};

	register_reader_thread(*(int *)arg);
	while (!atomic_load(&stop)) {
		struct vma_thread *self = vma_enter();
		struct vma_wait wait = {.ops = &receive_ops,
		                        .arg = target,
		                        .self = self,
		                        .spin = &spin,
		                        .deadline_ns = UINT64_MAX,
		                        .spin_loops = 1000,
		                        .spin_nsec = -1};

		if (vma_wait(&wait) == 1)
			target_take_one(target);
		if (has_datagram(target))
			vma_waitq_wake(&target->file.waitq, false);
		vma_leave(self);
	}
	return NULL;
}

/* ---- the test ---- */

static double stress_readers_seconds_from_env(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return text != NULL ? atof(text) : 1.0;
}

static void print_wait_queue(const char *of, struct vma_waitq *q)
{
	fprintf(stderr, "%s: used %u, overflow %u, places", of, atomic_load(&q->used), atomic_load(&q->overflow));
	for (unsigned i = 0; i < VMA_WAITQ_SLOTS; i++)
		fprintf(stderr, " %p", (void *)atomic_load(&q->slot[i]));
	fprintf(stderr, "\n");
}

/* What a wake-up depends on, for who looks for one that is missing. */
static void readers_dump_wait_state(void)
{
	struct vma_thread *self = vma_enter();
	struct epoll_set *set = epoll_set_find(ep);

	fprintf(stderr, "ring: watcher %p, held by %u, armed by the internal thread: %d\n",
	        (void *)atomic_load(&fixture.ring_ctx->watcher),
	        vma_ring_drive_holder_tid(fixture.ring_ctx->ring, VMA_RING_RX), atomic_load(&fixture.ring_ctx->armed));
	fprintf(stderr, "set: %u pending, ready list %s, lock %s\n", atomic_load(&set->n_pending),
	        ready_list_is_empty(&set->ready) ? "empty" : "not empty",
	        pthread_mutex_trylock(&set->lock) == 0 ? (pthread_mutex_unlock(&set->lock), "free") : "taken");
	print_wait_queue("set", &set->file.waitq);
	for (int i = 0; i < FILES; i++) {
		fprintf(stderr, "file %d, %lu queued, %lu taken: ", i, (unsigned long)atomic_load(&targets[i]->queued),
		        (unsigned long)atomic_load(&targets[i]->taken));
		print_wait_queue("queue", &targets[i]->file.waitq);
	}
	for (int i = 0; i < SET_FILES; i++)
		fprintf(stderr, "item %d: queued %d\n", i,
		        atomic_load(&epoll_item_find(set, &targets[i]->file, fds[i])->queued));
	for (int i = 0; i < READERS; i++)
		fprintf(stderr, "reader %d, %p: state %u, rings %lx\n", i, (void *)atomic_load(&reader_threads_self[i]),
		        atomic_load(&atomic_load(&reader_threads_self[i])->state),
		        (unsigned long)atomic_load(&atomic_load(&reader_threads_self[i])->rings));
	vma_leave(self);
}

static bool await_all_targets_drained(const uint64_t *sent)
{
	const uint64_t until = vma_now_ns() + LATE_NS;
	bool all;

	do {
		all = true;
		for (int i = 0; i < FILES; i++)
			all &= atomic_load(&targets[i]->taken) == sent[i];
		if (!all)
			sched_yield();
	} while (!all && vma_now_ns() < until);
	return all;
}

static void create_udp_sockets_and_epoll_set(void)
{
	ep = epoll_create1(0);
	for (int i = 0; i < FILES; i++) {
		fds[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		targets[i] = vma_alloc(sizeof(*targets[i]));
		assert_non_null(targets[i]);
		vma_file_init(&targets[i]->file, VMA_FILE_UDP, &target_ops);
		assert_int_equal(vma_fd_install(fds[i], &targets[i]->file), 0);
		if (i < SET_FILES)
			assert_int_equal(
			        backend_epoll_ctl(&backend, ep, EPOLL_CTL_ADD, fds[i], EPOLLIN | EPOLLET, (uint64_t)i),
			        0);
		fixture.things[i].flow.sink = readers_sink_count_queued;
		fixture.things[i].flow.owner = targets[i];
	}
}

static uint64_t stress_send_and_check_all_drained(uint64_t *sent)
{
	const uint64_t until = vma_now_ns() + (uint64_t)(stress_readers_seconds_from_env() * 1e9);
	uint64_t total = 0;
	unsigned seed = 11;

	while (vma_test_goes_on(vma_now_ns(), until, total > 100)) {
		seed = seed * 1103515245 + 12345;
		for (unsigned n = seed >> 16 & 3 ? 1 : seed >> 20 & 15; n > 0; n--) {
			unsigned to = (seed >> 24) + n * (seed >> 22 & 1);

			fixture_send((uint16_t)(to % FILES));
			sent[to % FILES]++;
			total++;
		}
		if (!await_all_targets_drained(sent)) {
			readers_dump_wait_state();
			return 0;
		}
		if (seed >> 28 == 0) /* they fall asleep */
			usleep(seed >> 18 & 1023);
	}
	return total;
}

/* Each that still waits is given something, until all have seen that it is over. */
static void end_readers(const pthread_t *threads)
{
	atomic_store(&stop, true);
	for (int i = 0; i < READERS; i++)
		while (pthread_tryjoin_np(threads[i], NULL) != 0) {
			struct vma_thread *self = vma_enter();

			for (int k = 0; k < FILES; k++) {
				atomic_fetch_add(&targets[k]->queued, 1);
				vma_file_wake_sleepers_and_watchers(&targets[k]->file, EPOLLIN);
			}
			vma_leave(self);
			usleep(1000);
		}
}

static void run_reader_threads_and_check(void)
{
	void *(*const ways[READERS])(void *arg) = {read_by_epoll, read_by_epoll, read_by_poll,
	                                           readers_wait_and_receive_thread};
	static int numbers[READERS];
	pthread_t threads[READERS];
	uint64_t sent[FILES] = {0}, total;

	create_udp_sockets_and_epoll_set();
	atomic_store(&stop, false);
	for (int i = 0; i < READERS; i++) {
		numbers[i] = i;
		assert_int_equal(pthread_create(&threads[i], NULL, ways[i], &numbers[i]), 0);
	}
	total = stress_send_and_check_all_drained(sent);
	print_message("%lu datagrams\n", (unsigned long)total);
	assert_true(total > 100);
	end_readers(threads);
	for (int i = 0; i < FILES; i++)
		backend_close(&backend, fds[i]);
	backend_close(&backend, ep);
	backends_free_retired_objects();
}

static void test_no_datagram_lies_beside_the_internal_thread(void **state)
{
	(void)state;
	run_reader_threads_and_check();
}

static void test_no_datagram_lies_without_the_internal_thread(void **state)
{
	(void)state;
	hold_internal_thread();
	run_reader_threads_and_check();
	release_internal_thread();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_no_datagram_lies_beside_the_internal_thread),
	        cmocka_unit_test(test_no_datagram_lies_without_the_internal_thread),
	};

	if (wait_fixture_start(NULL) != 0)
		return 1;
	return run_backends(__FILE__, tests, 2);
}
