/* More runnable threads than cores: read from /proc/loadavg, at most so often, and then nobody begins to spin. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "../wait/load.h"
#include "wait_fixture.h"

#define BURNERS_MAX 512
#define LATER (2 * LOAD_NSEC)

static struct load load;
static int file;
static uint64_t now_tsc;

static void write_loadavg_file(const char *text)
{
	assert_int_equal(ftruncate(file, 0), 0);
	assert_int_equal(pwrite(file, text, strlen(text), 0), strlen(text));
}

static bool load_is_high_after(uint64_t nsec)
{
	now_tsc += vma_tsc_of_nsec(nsec);
	return loadavg_is_high(&load, now_tsc);
}

/* Read anew as often as it takes until a load that stays is high. */
static bool load_is_high_after_all_samples(void)
{
	for (int i = 1; i < LOAD_SAMPLES; i++)
		assert_false(load_is_high_after(LATER));
	return load_is_high_after(LATER);
}

static int setup_loadavg_memfd(void **state)
{
	(void)state;
	memset(&load, 0, sizeof(load));
	file = memfd_create("loadavg", MFD_CLOEXEC);
	loadavg_set_fd_and_cores(&load, file, 2);
	now_tsc = vma_tsc();
	return file >= 0 ? 0 : -1;
}

static int teardown_close_file(void **state)
{
	(void)state;
	return close(file);
}

/* ---- the text ---- */

static int parse_runnable_of_loadavg(const char *text)
{
	return loadavg_parse_runnable(text, strlen(text));
}

static void test_runnable_threads_are_the_fourth_field(void **state)
{
	(void)state;
	assert_int_equal(parse_runnable_of_loadavg("0.20 0.18 0.12 1/80 11206\n"), 1);
	assert_int_equal(parse_runnable_of_loadavg("100.20 90.18 80.12 4194304/4194304 4194304\n"), 4194304);
	assert_int_equal(parse_runnable_of_loadavg("0.00 0.00 0.00 0/1 1\n"), 0);
}

static void test_what_is_no_load_is_not_taken_for_one(void **state)
{
	const char *texts[] = {"",
	                       "\n",
	                       "0.20",
	                       "0.20 0.18 0.12",
	                       "0.20 0.18 0.12 ",
	                       "0.20 0.18 0.12 3",
	                       "0.20 0.18 0.12 /80 11206\n",
	                       "0.20 0.18 0.12 -3/80 11206\n",
	                       "0.20 0.18 0.12 3 80 11206\n",
	                       "0.20 0.18 0.12 99999999999999999999/80 11206\n"};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		assert_int_equal(parse_runnable_of_loadavg(texts[i]), -1);
	assert_int_equal(loadavg_parse_runnable("0.20 0.18 0.12 3/80", 16), -1); /* not beyond what was read */
}

/* ---- when it is read ---- */

static void test_as_many_threads_as_cores_are_not_too_many(void **state)
{
	(void)state;
	write_loadavg_file("0.20 0.18 0.12 2/80 1\n");
	assert_false(load_is_high_after(0));
	write_loadavg_file("0.20 0.18 0.12 3/80 1\n");
	assert_true(load_is_high_after_all_samples());
	assert_true(load_is_high_after(LATER));
	write_loadavg_file("0.20 0.18 0.12 2/80 1\n");
	assert_false(load_is_high_after(LATER));
}

static void test_too_many_threads_for_a_moment_are_no_load(void **state)
{
	(void)state;
	for (int i = 0; i < 5 * LOAD_SAMPLES; i++) {
		write_loadavg_file(i % LOAD_SAMPLES == 0 ? "0.20 0.18 0.12 2/80 1\n" : "0.20 0.18 0.12 9/80 1\n");
		assert_false(load_is_high_after(LATER));
	}
}

static void test_it_is_read_once_in_a_while(void **state)
{
	(void)state;
	write_loadavg_file("0.20 0.18 0.12 3/80 1\n");
	assert_true(load_is_high_after_all_samples());
	write_loadavg_file("0.20 0.18 0.12 1/80 1\n");
	assert_true(load_is_high_after(LOAD_NSEC / 2));
	assert_false(load_is_high_after(LOAD_NSEC));
}

static void test_what_cannot_be_read_is_never_high_and_not_read_again(void **state)
{
	(void)state;
	write_loadavg_file("0.20 0.18 0.12 3/80 1\n");
	assert_true(load_is_high_after_all_samples());
	write_loadavg_file("nothing");
	assert_false(load_is_high_after(LATER));
	write_loadavg_file("0.20 0.18 0.12 3/80 1\n");
	for (int i = 0; i <= LOAD_SAMPLES; i++)
		assert_false(load_is_high_after(LATER));
}

/* The thread that was reading when another one forked. */
static void test_forked_child_reads_though_its_parent_was_reading(void **state)
{
	(void)state;
	write_loadavg_file("0.20 0.18 0.12 3/80 1\n");
	assert_true(load_is_high_after_all_samples());
	atomic_store(&load.next_tsc, UINT64_MAX);
	loadavg_reset_in_fork_child(&load);
	assert_true(load_is_high_after_all_samples());
	write_loadavg_file("0.20 0.18 0.12 1/80 1\n");
	assert_false(load_is_high_after(LATER));
}

static void test_it_asks_the_kernel_by_itself(void **state)
{
	const uint64_t begun_tsc = vma_tsc();
	struct load host = {0};

	(void)state;
	loadavg_is_high(&host, begun_tsc);
	if (host.cores == 0)
		vma_test_skip("no /proc/loadavg");
	assert_true(host.fd >= 0 && fcntl(host.fd, F_GETFD) == FD_CLOEXEC);
	assert_true(host.cores >= 1);
	assert_true(atomic_load(&host.next_tsc) != UINT64_MAX && atomic_load(&host.next_tsc) > begun_tsc);
	vma_fd_unguard_close(host.fd);
}

/* ---- what comes of it ---- */

static pid_t busy_process_pids[BURNERS_MAX];
static unsigned busy_processes_n;

static void start_busy_processes(void)
{
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);

	for (busy_processes_n = 0; busy_processes_n < BURNERS_MAX && busy_processes_n < cores + 1; busy_processes_n++) {
		busy_process_pids[busy_processes_n] = fork();
		if (busy_process_pids[busy_processes_n] == 0)
			for (;;)
				atomic_signal_fence(memory_order_seq_cst);
	}
}

static int teardown_kill_busy_processes(void **state)
{
	for (; busy_processes_n > 0; busy_processes_n--) {
		kill(busy_process_pids[busy_processes_n - 1], SIGKILL);
		waitpid(busy_process_pids[busy_processes_n - 1], NULL, 0);
	}
	return teardown_close_file(state);
}

/* Of so many waits of a quarter of a millisecond, those that looked more often than a wait does that sleeps at once. */
static unsigned count_spinning_waits(int64_t spin_loops, int64_t spin_nsec)
{
	struct thing_wait wait;
	unsigned spun = 0;

	for (int i = 0; i < 100; i++) {
		thing_wait_init(&wait, &fixture.things[0], fixture.bit, 250000);
		wait.wait.spin_loops = spin_loops;
		wait.wait.spin_nsec = spin_nsec;
		assert_int_equal(thing_wait_run(&wait), 0);
		spun += atomic_load(&wait.looks) > 8;
		usleep(3000); /* until it is read anew, and what a thread has seen of scarce cores is forgotten */
	}
	return spun;
}

static void test_nobody_begins_to_spin_while_cores_are_wanted(void **state)
{
	enum { ENOUGH = 20 }; /* twice as many as without */
	struct vma_engine *engine = vma_engine_get_or_start();
	unsigned loops, nsec, misses = 0;

	(void)state;
	engine->conf.given[VMA_CONF_AT_rx_poll] = engine->conf.given[VMA_CONF_AT_select_poll] = false;
	start_busy_processes();
	usleep(20000);
	count_spinning_waits(100000, -1); /* meanwhile the load is seen to stay */
	loops = count_spinning_waits(100000, -1);
	nsec = count_spinning_waits(-1, 100 * (int64_t)MSEC);
	assert_true(loops <= 10 && nsec <= 10);
	assert_true(count_spinning_waits(-1, -1) >= 90); /* for ever */
	/* Other bounds keep some from it. */
	engine->conf.given[VMA_CONF_AT_rx_poll] = true;
	while ((loops = count_spinning_waits(100000, -1)) < ENOUGH &&
	       vma_test_remeasure(__func__, &misses, 10, "%u of 100 waits spun", loops))
		;
	engine->conf.given[VMA_CONF_AT_rx_poll] = false;
	engine->conf.given[VMA_CONF_AT_select_poll] = true;
	while ((nsec = count_spinning_waits(-1, 100 * (int64_t)MSEC)) < ENOUGH &&
	       vma_test_remeasure(__func__, &misses, 10, "%u of 100 waits spun for a time", nsec))
		;
	engine->conf.given[VMA_CONF_AT_select_poll] = false;
	assert_true(loops >= ENOUGH && nsec >= ENOUGH);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_runnable_threads_are_the_fourth_field, setup_loadavg_memfd,
                                        teardown_close_file),
        cmocka_unit_test_setup_teardown(test_what_is_no_load_is_not_taken_for_one, setup_loadavg_memfd,
                                        teardown_close_file),
        cmocka_unit_test_setup_teardown(test_as_many_threads_as_cores_are_not_too_many, setup_loadavg_memfd,
                                        teardown_close_file),
        cmocka_unit_test_setup_teardown(test_too_many_threads_for_a_moment_are_no_load, setup_loadavg_memfd,
                                        teardown_close_file),
        cmocka_unit_test_setup_teardown(test_it_is_read_once_in_a_while, setup_loadavg_memfd, teardown_close_file),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_read_is_never_high_and_not_read_again, setup_loadavg_memfd,
                                        teardown_close_file),
        cmocka_unit_test_setup_teardown(test_forked_child_reads_though_its_parent_was_reading, setup_loadavg_memfd,
                                        teardown_close_file),
        cmocka_unit_test_setup_teardown(test_it_asks_the_kernel_by_itself, setup_loadavg_memfd, teardown_close_file),
        cmocka_unit_test_setup_teardown(test_nobody_begins_to_spin_while_cores_are_wanted, setup_loadavg_memfd,
                                        teardown_kill_busy_processes),
};
VMA_TEST_MAIN_WITH(tests, wait_fixture_start, NULL)
