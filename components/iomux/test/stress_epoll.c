/*
 * Deliverers push events of many files, collectors wait for one set, and one thread adds, changes, removes and closes
 * members all the while. Every datagram is taken by somebody, and nobody sleeps beside one.
 */
#include "backends.h"

#define PUSHERS 2
#define COLLECTORS 2
#define FILES 16
#define CHURNED 8

static struct backend backend = {.kind = OFFLOADED};
static int ep, fd[FILES];
static struct fake *fake[FILES];
static _Atomic uint64_t pushed, taken;
static _Atomic bool stop, pushers_done;
static _Atomic int late;

static double stress_epoll_seconds_from_env(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return text != NULL ? atof(text) : 1.0;
}

static void *push_datagrams_thread(void *arg)
{
	unsigned at = *(unsigned *)arg;

	for (uint64_t n = 0; !atomic_load_explicit(&stop, memory_order_relaxed); n++) {
		at = at * 1103515245u + 12345u;
		/* what is queued is bounded: a collector is left behind on a loaded machine */
		if (atomic_load(&fake[at / 65536 % FILES]->queued) > 1000) {
			sched_yield();
			continue;
		}
		fake_queue_datagram_and_wake(fake[at / 65536 % FILES]);
		atomic_fetch_add(&pushed, 1);
		if (n % 512 == 0)
			usleep(200); /* the collectors fall asleep now and then */
	}
	return NULL;
}

/* Members by number: even ones are level, odd ones edge, every fourth one-shot. */
static uint32_t epoll_mode_events_of_member(unsigned i)
{
	return EPOLLIN | (i % 2 != 0 ? EPOLLET : 0) | (i % 4 == 2 ? EPOLLONESHOT : 0);
}

static void *epoll_collect_events_thread(void *arg)
{
	struct epoll_event events[4];

	(void)arg;
	for (;;) {
		int n = backend_epoll_wait(&backend, ep, events, 4, 500);

		if (n == 0 && atomic_load(&pushers_done))
			return NULL;
		for (int k = 0; k < n; k++) {
			uint64_t i = events[k].data.u64;

			if (i >= FILES)
				continue; /* one of the churned */
			atomic_fetch_add(&taken, (uint64_t)atomic_exchange(&fake[i]->queued, 0));
			if (epoll_mode_events_of_member((unsigned)i) & EPOLLONESHOT)
				backend_epoll_ctl(&backend, ep, EPOLL_CTL_MOD, fd[i],
				                  epoll_mode_events_of_member((unsigned)i), i);
		}
		if (n == 0 && atomic_load(&pushed) - atomic_load(&taken) > 100 && !atomic_load(&stop))
			atomic_fetch_add(&late, 1);
	}
}

static void *add_and_remove_members_thread(void *arg)
{
	int other[CHURNED];

	(void)arg;
	for (int i = 0; i < CHURNED; i++)
		other[i] = backend_socket(&backend);
	for (unsigned n = 0; !atomic_load(&stop); n++) {
		int *at = &other[n % CHURNED];

		backend_epoll_ctl(&backend, ep, EPOLL_CTL_ADD, *at, EPOLLIN | (n % 3 ? EPOLLET : 0), 1000 + n);
		fake_queue_datagram_and_wake(fake_file_of_fd(*at));
		backend_epoll_ctl(&backend, ep, EPOLL_CTL_MOD, *at, EPOLLIN | EPOLLET, 1000 + n);
		if (n % 2) {
			backend_epoll_ctl(&backend, ep, EPOLL_CTL_DEL, *at, 0, 0);
		} else {
			backend_close(&backend, *at);
			*at = backend_socket(&backend);
		}
		/* There again, it tells of what came meanwhile. */
		assert_int_equal(backend_epoll_ctl(&backend, ep, EPOLL_CTL_DEL, fd[n % FILES], 0, 0), 0);
		assert_int_equal(backend_epoll_ctl(&backend, ep, EPOLL_CTL_ADD, fd[n % FILES],
		                                   epoll_mode_events_of_member(n % FILES), n % FILES),
		                 0);
		vma_run_due_deferred_frees();
	}
	for (int i = 0; i < CHURNED; i++)
		backend_close(&backend, other[i]);
	return NULL;
}

static void every_datagram_is_taken(enum kind kind)
{
	pthread_t push[PUSHERS], collect[COLLECTORS], churn;
	unsigned seed[PUSHERS];
	uint64_t until;

	backend.kind = kind;
	atomic_store(&pushed, 0);
	atomic_store(&taken, 0);
	atomic_store(&stop, false);
	atomic_store(&pushers_done, false);
	ep = epoll_create1(0);
	for (unsigned i = 0; i < FILES; i++) {
		fd[i] = backend_socket(&backend);
		fake[i] = fake_file_of_fd(fd[i]);
		assert_int_equal(
		        backend_epoll_ctl(&backend, ep, EPOLL_CTL_ADD, fd[i], epoll_mode_events_of_member(i), i), 0);
	}
	for (int i = 0; i < COLLECTORS; i++)
		pthread_create(&collect[i], NULL, epoll_collect_events_thread, NULL);
	for (unsigned i = 0; i < PUSHERS; i++) {
		seed[i] = i * 77 + 1;
		pthread_create(&push[i], NULL, push_datagrams_thread, &seed[i]);
	}
	pthread_create(&churn, NULL, add_and_remove_members_thread, NULL);
	until = vma_now_ns() + (uint64_t)(stress_epoll_seconds_from_env() * 1e9);
	while (vma_test_goes_on(vma_now_ns(), until, atomic_load(&pushed) > 100))
		usleep(1000);
	atomic_store(&stop, true);
	for (int i = 0; i < PUSHERS; i++)
		pthread_join(push[i], NULL);
	pthread_join(churn, NULL);
	atomic_store(&pushers_done, true);
	for (int i = 0; i < COLLECTORS; i++)
		pthread_join(collect[i], NULL);
	assert_true(atomic_load(&pushed) > 100);
	assert_int_equal(atomic_load(&taken), atomic_load(&pushed));
	assert_int_equal(atomic_load(&late), 0);
	print_message("%llu datagrams\n", (unsigned long long)atomic_load(&pushed));
	for (int i = 0; i < FILES; i++)
		backend_close(&backend, fd[i]);
	backend_close(&backend, ep);
	backends_free_retired_objects();
}

static void test_every_datagram_is_taken(void **state)
{
	(void)state;
	every_datagram_is_taken(OFFLOADED);
}

static void test_every_datagram_is_taken_without_shadows(void **state)
{
	(void)state;
	every_datagram_is_taken(OWN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_datagram_is_taken),
	        cmocka_unit_test(test_every_datagram_is_taken_without_shadows),
	};

	return run_backends(__FILE__, tests, sizeof(tests) / sizeof(tests[0]));
}
