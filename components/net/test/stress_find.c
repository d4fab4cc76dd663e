/* Senders find, read and ask by key while paths enter the table, leave it and are reused for other destinations. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <vma/test.h>

#include "../net_priv.h"

#define FINDERS 3
#define KEYS 512

static struct vma_net *net;
static _Atomic bool stop;
static _Atomic uint64_t found, missed, wrong;

static struct vma_net_key make_loopback_key_of_number(unsigned i)
{
	struct vma_net_key key = {.family = AF_INET, .dst = {127, 2, (uint8_t)(i >> 8), (uint8_t)i}};

	key.uid = (uint32_t)geteuid();
	return key;
}

static void *thread_find_templates_and_count(void *seed)
{
	unsigned i = *(const unsigned *)seed;
	uint64_t hits = 0, misses = 0;

	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		const struct vma_net_key key = make_loopback_key_of_number(i = (i * 1103515245u + 12345u) % KEYS);
		struct vma_net_template t;

		if (!vma_net_find_template(net, &key, &t)) {
			if (++misses % 8 == 0)
				vma_net_request_path(net, &key);
			continue;
		}
		hits++;
		if (t.state != VMA_NET_USE_OS || memcmp(t.next_hop, key.dst, 16) != 0)
			atomic_fetch_add(&wrong, 1);
		if (hits % 256 == 0)
			vma_net_request_path_check(net, &key, VMA_NET_REQUEST_RECHECK | VMA_NET_REQUEST_PROBE);
	}
	atomic_fetch_add(&found, hits);
	atomic_fetch_add(&missed, misses);
	return NULL;
}

static void forget_path_of_key(const struct vma_net_key *key)
{
	struct vma_net_path *path;
	struct net_hold hold;

	net_lock(net, &hold);
	path = path_table_find(&net->table, key);
	if (path != NULL)
		net_path_free(net, (struct path *)path);
	net_unlock(net, &hold);
}

static void test_what_is_found_is_what_was_asked_for(void **state)
{
	const char *text = getenv("STRESS_SECONDS");
	const uint64_t end = (uint64_t)time(NULL) + (text != NULL ? strtoul(text, NULL, 10) : 1) + 1;
	pthread_t threads[FINDERS];
	unsigned seeds[FINDERS], i = 0;

	(void)state;
	assert_int_equal(vma_net_create(NULL, &net), 0);
	for (unsigned j = 0; j < FINDERS; j++) {
		seeds[j] = j * 77;
		pthread_create(&threads[j], NULL, thread_find_templates_and_count, &seeds[j]);
	}
	while (vma_test_goes_on((uint64_t)time(NULL) * 1000000000, end * 1000000000, i > 2 * KEYS)) {
		const struct vma_net_key key = make_loopback_key_of_number(i % KEYS),
		                         old = make_loopback_key_of_number((i + KEYS / 2) % KEYS);
		struct vma_net_path *path;

		assert_int_equal(vma_net_path_get(net, &key, &path), 0);
		vma_net_path_put(net, path);
		forget_path_of_key(&old);
		if (++i % 64 == 0)
			assert_true(vma_net_process_events(net) >= 0);
	}
	atomic_store(&stop, true);
	for (unsigned j = 0; j < FINDERS; j++)
		pthread_join(threads[j], NULL);
	assert_int_equal(wrong, 0);
	assert_true(found > 0 && missed > 0);
	assert_true(i > 2 * KEYS); /* every path was reused */
	vma_net_destroy(net);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_found_is_what_was_asked_for),
};

VMA_TEST_MAIN(tests)
