/* Threads that log at the same time: once is once, lines stay whole, the file may be set anew meanwhile. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <vma/test.h>

#include "sink.h"

#define THREADS 4

static struct sink sink;
static _Atomic bool stop;

static double stress_log_seconds_from_env(void)
{
	const char *text = getenv("STRESS_SECONDS");

	return text != NULL && *text != '\0' ? atof(text) : 1;
}

static double stress_log_now_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/*
 * Below the table's size, so that once must be exactly once. Two threads come to each text in step, because the moment
 * in which a missing compare-and-swap would show is a few nanoseconds long.
 */
#define TEXTS 800
static _Atomic unsigned said[TEXTS], arrived;

static void log_wait_for_other_threads_at_step(unsigned i)
{
	arrived++;
	for (unsigned spins = 1; arrived < 2 * (i + 1); spins++)
		if (spins % 1024 == 0)
			sched_yield();
}

static void *log_once_each_text(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < TEXTS; i++) {
		log_wait_for_other_threads_at_step(i);
		if (vma_log_once(VMA_LOG_WARN, "stress problem %u.", i))
			said[i]++;
	}
	for (unsigned i = 0; i < TEXTS; i++)
		if (vma_log_once(VMA_LOG_WARN, "stress problem %u.", i))
			said[i]++;
	return NULL;
}

static void test_threads_say_each_problem_exactly_once_together(void **state)
{
	pthread_t threads[2];

	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, log_once_each_text, NULL), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < TEXTS; i++)
		assert_int_equal(said[i], 1);
	sink_read(&sink);
	for (int i = 0; i < TEXTS; i++) {
		char line[64];
		snprintf(line, sizeof(line), "VMA WARNING: stress problem %d.\n", i);
		assert_int_equal(count_word_in_text(sink.text, line), 1);
	}
	sink_close(&sink);
}

/* Each line carries its length, so a reader sees whether it is whole. */
static void *log_lines_until_stop_thread(void *arg)
{
	char fill[200];
	uintptr_t count = 0;

	memset(fill, 'f', sizeof(fill));
	for (; !stop; count++) {
		int len = (int)((count * 37 + (uintptr_t)arg) % sizeof(fill));
		vma_log_info("<%d:%.*s>", len, len, fill);
		if (count % 64 == 63)
			usleep(100); /* two cores are shared with others */
	}
	return (void *)count;
}

static size_t count_and_check_log_lines(FILE *file)
{
	char line[VMA_LOG_LINE_MAX + 2];
	size_t n = 0;

	for (; fgets(line, sizeof(line), file) != NULL; n++) {
		int len, at = 0;
		assert_int_equal(sscanf(line, "VMA INFO: <%d:%n", &len, &at), 1);
		assert_int_equal(strspn(line + at, "f"), len);
		assert_string_equal(line + at + len, ">\n");
	}
	return n;
}

static void test_lines_stay_whole_while_the_file_is_set_anew(void **state)
{
	struct vma_log_attr attr = {.level = VMA_LOG_INFO};
	double end = stress_log_now_seconds() + stress_log_seconds_from_env();
	pthread_t threads[THREADS];
	size_t logged = 0, found = 0;
	int files[2];

	(void)state;
	char paths[2][32];
	for (int i = 0; i < 2; i++) {
		files[i] = memfd_create("log", 0);
		snprintf(paths[i], sizeof(paths[i]), "/proc/self/fd/%d", files[i]);
	}
	attr.file = paths[0];
	assert_int_equal(vma_log_init(&attr), 0);
	stop = false;
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, log_lines_until_stop_thread, (void *)i), 0);
	for (int i = 1; stress_log_now_seconds() < end; i++) {
		attr.file = paths[i % 2];
		assert_int_equal(vma_log_init(&attr), 0);
		usleep(500);
	}
	stop = true;
	for (int i = 0; i < THREADS; i++) {
		void *count;
		pthread_join(threads[i], &count);
		logged += (uintptr_t)count;
	}
	vma_log_fini();
	for (int i = 0; i < 2; i++) {
		FILE *file;
		lseek(files[i], 0, SEEK_SET);
		file = fdopen(files[i], "r");
		found += count_and_check_log_lines(file);
		fclose(file);
	}
	assert_true(logged > THREADS);
	assert_int_equal(found, logged);
}

/* The table is finite and never forgets: last in this program, because it fills it. */
static void test_full_table_prints_new_texts_rather_than_losing_them(void **state)
{
	unsigned written = 0;

	(void)state;
	sink_redirect_log(&sink, VMA_LOG_INFO, 0);
	for (unsigned i = 0; i < 3000; i++)
		written += vma_log_once(VMA_LOG_INFO, "filler %u", i);
	assert_int_equal(written, 3000);
	assert_true(vma_log_once(VMA_LOG_INFO, "said although the table is full"));
	assert_false(vma_log_once(VMA_LOG_INFO, "filler 0"));
	sink_close(&sink);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_say_each_problem_exactly_once_together),
        cmocka_unit_test(test_lines_stay_whole_while_the_file_is_set_anew),
        cmocka_unit_test(test_full_table_prints_new_texts_rather_than_losing_them),
};

VMA_TEST_MAIN(tests)
