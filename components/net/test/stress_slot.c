/* One writer, many readers of a path's template: every copy is one that was written, and copies never go back in time.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vma/test.h>

#include "../path_slot.h"

#define READERS 3

static struct vma_net_path path;
static _Atomic bool stop;
static _Atomic uint64_t copies, changes_seen, templates_torn_n, backwards;

/* A template and key that are one number all over, but for the version. */
static void fill_template_and_key_with_number(struct vma_net_template *t, struct vma_net_key *key, uint32_t number)
{
	uint32_t words[sizeof(*t) / 4];

	for (size_t i = 0; i < sizeof(words) / 4; i++)
		words[i] = number;
	memcpy(t, words, sizeof(*t));
	memcpy(key, words, sizeof(*key));
}

static bool template_is_whole(const uint64_t *words, uint32_t number, uint32_t version)
{
	struct vma_net_template t, wanted;
	struct vma_net_key key;

	memcpy(&t, words, sizeof(t));
	fill_template_and_key_with_number(&wanted, &key, number);
	wanted.version = version;
	return memcmp(&t, &wanted, sizeof(t)) == 0 && memcmp(words + VMA_NET_TEMPLATE_WORDS, &key, sizeof(key)) == 0;
}

static void *slot_reader(void *first_version)
{
	uint64_t words[PATH_SLOT_WORDS], mine = 0, changes = 0;
	uint32_t last = *(const uint32_t *)first_version;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		struct vma_net_template t;

		if (!vma_net_path_changed(&path, last) && mine % 16 != 0) {
			mine++;
			continue;
		}
		path_slot_read_template_words(&path, words, PATH_SLOT_WORDS);
		memcpy(&t, words, sizeof(t));
		if (!template_is_whole(words, t.ifindex, t.version))
			atomic_fetch_add(&templates_torn_n, 1);
		if ((int32_t)(t.version - last) < 0 || t.ifindex != t.version * 3)
			atomic_fetch_add(&backwards, 1);
		changes += t.version != last;
		last = t.version;
		mine++;
	}
	atomic_fetch_add(&copies, mine);
	atomic_fetch_add(&changes_seen, changes);
	return NULL;
}

static uint64_t stress_end_time_seconds(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return (uint64_t)time(NULL) + (text != NULL ? strtoul(text, NULL, 10) : 1) + 1;
}

static void test_readers_never_see_a_mixture(void **state)
{
	const uint64_t end = stress_end_time_seconds();
	uint32_t first = UINT32_MAX - 5000; /* the version wraps on the way */
	pthread_t threads[READERS];
	struct vma_net_template t;
	struct vma_net_key key;

	(void)state;
	atomic_init(&path.version, first - 1);
	fill_template_and_key_with_number(&t, &key, first * 3);
	path_slot_publish_template(&path, &t, &key);
	for (int i = 0; i < READERS; i++)
		pthread_create(&threads[i], NULL, slot_reader, &first);
	while (vma_test_goes_on((uint64_t)time(NULL) * 1000000000, end * 1000000000,
	                        atomic_load(&path.version) < first)) {
		for (int i = 0; i < 1000; i++) {
			fill_template_and_key_with_number(&t, &key, (atomic_load(&path.version) + 1) * 3);
			path_slot_publish_template(&path, &t, &key);
		}
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < READERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(templates_torn_n, 0);
	assert_int_equal(backwards, 0);
	assert_true(copies > 0 && changes_seen > READERS);
	assert_true(atomic_load(&path.version) < first); /* it did wrap */
}

/* The argument's other half: a writer that never finishes its slot harms nobody. */
static void test_writer_stopped_halfway_leaves_the_last_version_readable(void **state)
{
	static struct vma_net_path stalled;
	uint64_t words[PATH_SLOT_WORDS];
	struct vma_net_template t;
	struct vma_net_key key;

	(void)state;
	fill_template_and_key_with_number(&t, &key, 77);
	path_slot_publish_template(&stalled, &t, &key);
	for (size_t i = 0; i < PATH_SLOT_WORDS / 2; i++) /* half of version 2 */
		atomic_store_explicit(&stalled.slot[0].words[i], 1, memory_order_release);
	path_slot_read_template_words(&stalled, words, PATH_SLOT_WORDS);
	assert_true(template_is_whole(words, 77, 1));
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers_never_see_a_mixture),
        cmocka_unit_test(test_writer_stopped_halfway_leaves_the_last_version_readable),
};

VMA_TEST_MAIN(tests)
