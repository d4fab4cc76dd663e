/* Counters and blocks under threads, with a reader on the file. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <vma/stats_read.h>
#include <vma/test.h>

#define THREADS 3

static char dir[64], path[128];
static struct vma_stats *stats;
static _Atomic bool stop;

static int stress_make_stats(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/vma_stats_test.XXXXXX");
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/vmastat.%d", dir, getpid());
	stop = false;
	return vma_stats_create(dir, &stats);
}

static int stress_remove_stats(void **state)
{
	(void)state;
	vma_stats_destroy(stats);
	return rmdir(dir);
}

static double monotonic_now_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static double stress_end_in_monotonic_seconds(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return monotonic_now_seconds() + (text != NULL && *text != '\0' ? atof(text) : 1);
}

/* A busy machine gets ten seconds more before having seen nothing counts as a failure. */
static bool stress_goes_on(double end, bool enough)
{
	return monotonic_now_seconds() < end || (!enough && monotonic_now_seconds() < end + 10);
}

/* Both halves of each value move in every step, so a torn value has halves that differ. */
#define STEP 0x0000000100000001u

static void *thread_increment_cq_counters(void *arg)
{
	struct vma_stats_cq *cq = arg;
	uint64_t steps = 0;

	for (; !stop; steps++) {
		vma_stats_add(&cq->polls, STEP);
		vma_stats_add(&cq->packets, STEP);
		if (steps % 4096 == 4095)
			sched_yield();
	}
	return (void *)(uintptr_t)steps;
}

struct reading {
	uint64_t polls, packets;
};

static bool counter_is_not_torn(uint64_t value)
{
	return value >> 32 == (value & 0xffffffff);
}

static bool read_cq_counters_are_not_torn(struct vma_stats_view *view, struct reading *now)
{
	const struct vma_stats_cq *cq;
	enum vma_stats_type type;
	const char *name;
	const void *block;
	size_t cursor = 0;

	if (!vma_stats_view_next(view, &cursor, &type, &name, &block))
		return false;
	cq = block;
	now->polls = vma_stats_read_counter(&cq->polls);
	now->packets = vma_stats_read_counter(&cq->packets);
	return counter_is_not_torn(now->polls) && counter_is_not_torn(now->packets);
}

static void test_reader_sees_whole_values_that_only_grow(void **state)
{
	struct vma_stats_cq *cq = vma_stats_block_alloc(stats, VMA_STATS_TYPE_CQ, "counted");
	double end = stress_end_in_monotonic_seconds();
	struct reading last = {0}, seen = {0};
	uint64_t changes = 0;
	struct vma_stats_view *view;
	bool whole = true, grows = true;
	pthread_t writer;
	void *steps;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	assert_int_equal(pthread_create(&writer, NULL, thread_increment_cq_counters, cq), 0);
	for (; stress_goes_on(end, changes > 10); last = seen) {
		whole &= read_cq_counters_are_not_torn(view, &seen);
		grows &= seen.polls >= last.polls && seen.packets >= last.packets;
		changes += seen.polls != last.polls;
	}
	stop = true;
	pthread_join(writer, &steps);
	assert_true(whole);
	assert_true(grows);
	assert_true(changes > 10);
	assert_true(vma_stats_read_counter(&cq->polls) == (uintptr_t)steps * STEP);
	assert_true(vma_stats_read_counter(&cq->packets) == (uintptr_t)steps * STEP);
	vma_stats_view_close(view);
	vma_stats_block_free(stats, cq);
}

/* Takes blocks, fills every counter with one tag that the name carries too, looks whether they stayed so, drops. */
struct taker {
	uint64_t tag;
	uint64_t rounds;
	bool clean;
};

static void set_all_nic_counters(struct vma_stats_nic *nic, uint64_t value)
{
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(VMA_STATS_TYPE_NIC, &count);

	for (size_t i = 0; i < count; i++)
		vma_stats_set((_Atomic uint64_t *)((char *)nic + fields[i].offset), value);
}

static bool nic_counters_all_equal(const struct vma_stats_nic *nic, uint64_t value, bool or_zero)
{
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(VMA_STATS_TYPE_NIC, &count);
	bool same = true;

	for (size_t i = 0; i < count; i++) {
		uint64_t found =
		        vma_stats_read_counter((const _Atomic uint64_t *)((const char *)nic + fields[i].offset));
		same &= found == value || (or_zero && found == 0);
	}
	return same;
}

static void *thread_alloc_fill_and_free_stats_blocks(void *arg)
{
	struct taker *taker = arg;
	struct vma_stats_nic *held[8];

	taker->clean = true;
	for (; !stop; taker->rounds++) {
		uint64_t tag = taker->tag + THREADS * taker->rounds;
		char name[VMA_STATS_NAME_MAX];

		snprintf(name, sizeof(name), "%llu", (unsigned long long)tag);
		for (int i = 0; i < 8; i++) {
			held[i] = vma_stats_block_alloc(stats, VMA_STATS_TYPE_NIC, name);
			taker->clean &= nic_counters_all_equal(held[i], 0, false);
			set_all_nic_counters(held[i], tag);
		}
		if (taker->rounds % 16 == 15)
			sched_yield(); /* with blocks in hand, for the reader to find on a machine with one core too */
		for (int i = 0; i < 8; i++) {
			taker->clean &= nic_counters_all_equal(held[i], tag, false); /* nobody else has it */
			vma_stats_block_free(stats, held[i]);
		}
	}
	return NULL;
}

/* A block that was seen belongs to one owner: name and every counter that is not still zero carry the same tag. */
static size_t check_each_block_has_one_owners_values(struct vma_stats_view *view, bool *clean)
{
	size_t cursor = 0, seen = 0;
	enum vma_stats_type type;
	const char *name;
	const void *block;

	for (; vma_stats_view_next(view, &cursor, &type, &name, &block); seen++) {
		*clean &= type == VMA_STATS_TYPE_NIC;
		*clean &= nic_counters_all_equal(block, strtoull(name, NULL, 10), true);
	}
	return seen;
}

static void test_block_has_one_owner_and_a_reader_never_mixes_two(void **state)
{
	struct taker takers[THREADS] = {0};
	pthread_t threads[THREADS];
	double end = stress_end_in_monotonic_seconds();
	struct vma_stats_view *view;
	size_t seen = 0;
	bool clean = true;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		takers[i].tag = i + 1;
		assert_int_equal(pthread_create(&threads[i], NULL, thread_alloc_fill_and_free_stats_blocks, &takers[i]),
		                 0);
	}
	while (stress_goes_on(end, seen > 0))
		seen += check_each_block_has_one_owners_values(view, &clean);
	stop = true;
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		assert_true(takers[i].clean);
		assert_true(takers[i].rounds > 0);
	}
	assert_true(clean);
	assert_true(seen > 0);
	assert_int_equal(check_each_block_has_one_owners_values(view, &clean), 0); /* every block came back */
	vma_stats_view_close(view);
}

/* Each socket counts by one, up to COUNTED, and is closed. */
#define COUNTED 100

static void *thread_count_packets_in_short_lived_blocks(void *arg)
{
	uint64_t *rounds = arg;

	for (; !stop; ++*rounds) {
		struct vma_stats_socket *socket = vma_stats_block_alloc(stats, VMA_STATS_TYPE_SOCKET, "fd");

		for (int i = 0; i < COUNTED; i++)
			vma_stats_add(&socket->rx_packets, 1);
		vma_stats_block_free(stats, socket);
		if (*rounds % 16 == 15)
			usleep(1000); /* readers are to find it at rest, too */
	}
	return NULL;
}

static uint64_t sum_rx_packets_of_sockets(const struct vma_stats_snapshot *snapshot)
{
	uint64_t sum = vma_stats_read_counter(&snapshot->retired[VMA_STATS_TYPE_SOCKET].socket.rx_packets);

	for (size_t i = 0; i < snapshot->count; i++)
		sum += vma_stats_read_counter(&snapshot->items[i].socket.rx_packets);
	return sum;
}

static void test_sum_only_grows_while_sockets_come_and_go(void **state)
{
	static struct vma_stats_snapshot snapshot;
	pthread_t threads[THREADS];
	uint64_t rounds[THREADS] = {0}, sum = 0, last = 0, changes = 0, all = 0;
	double end = stress_end_in_monotonic_seconds();
	struct vma_stats_view *view;
	bool grows = true;

	(void)state;
	assert_int_equal(vma_stats_view_open(path, &view), 0);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(
		        pthread_create(&threads[i], NULL, thread_count_packets_in_short_lived_blocks, &rounds[i]), 0);
	while (stress_goes_on(end, changes > 10)) {
		vma_stats_view_read(view, &snapshot);
		if (!snapshot.whole)
			continue;
		sum = sum_rx_packets_of_sockets(&snapshot);
		grows &= sum >= last;
		changes += sum != last;
		last = sum;
	}
	stop = true;
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		all += rounds[i] * COUNTED;
	}
	assert_true(grows);
	assert_true(changes > 10);
	vma_stats_view_read(view, &snapshot);
	assert_true(snapshot.whole);
	assert_int_equal(sum_rx_packets_of_sockets(&snapshot), all); /* and so none was ever more than there was */
	vma_stats_view_close(view);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reader_sees_whole_values_that_only_grow, stress_make_stats,
                                        stress_remove_stats),
        cmocka_unit_test_setup_teardown(test_sum_only_grows_while_sockets_come_and_go, stress_make_stats,
                                        stress_remove_stats),
        cmocka_unit_test_setup_teardown(test_block_has_one_owner_and_a_reader_never_mixes_two, stress_make_stats,
                                        stress_remove_stats),
};

VMA_TEST_MAIN(tests)
