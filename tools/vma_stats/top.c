/* top - the loop of --top. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include <vma/log.h>

#include "top.h"
#include "top_screen.h"

struct top {
	const struct options *options;
	struct top_state state;
	struct top_host host;
	struct top_table table;
	struct top_widths widths;
	uint64_t read_ns; /* when the host was read */
	unsigned screens; /* that had new rates */
	sigset_t signals; /* the mask while it waits */
};

static uint64_t top_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- signals: they come only while it waits, so none is missed between a look and a wait ---- */

static volatile sig_atomic_t top_should_end;

static void on_signal_set_top_should_end(int signal)
{
	(void)signal;
	top_should_end = 1;
}

static void top_install_and_block_signals(struct top *top)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
	const struct sigaction note = {.sa_handler = on_signal_set_top_should_end};
	sigset_t held;

	sigemptyset(&held);
	sigaddset(&held, SIGWINCH); /* ncurses notes it, and the next key is KEY_RESIZE */
	for (unsigned i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		sigaction(ends[i], &note, NULL);
		sigaddset(&held, ends[i]);
	}
	sigprocmask(SIG_BLOCK, &held, &top->signals);
}

/* ---- the loop ---- */

static int refill_table(struct top *top)
{
	const int rc = top_table_fill(&top->table, &top->host, &top->state.choice);

	if (rc == 0) {
		if (top->state.redraw)
			top->widths = (struct top_widths){0};
		top_widen_columns_to_fit_table(&top->widths, &top->table);
		top_place_cursor(&top->state, &top->table, top_screen_lines_per_page());
	}
	return rc;
}

static int top_read_host_stats_and_refill_table(struct top *top)
{
	int rc;

	top->read_ns = top_now_ns();
	rc = top_host_read(&top->host, top->options, TOP_READ_NS);
	return rc == 0 ? refill_table(top) : rc;
}

static void draw_top(struct top *top)
{
	top_screen_draw(&top->state, &top->host, &top->table, &top->widths);
	top->state.redraw = false;
}

/* True: there is a key. False: it is time to read again, or a signal has come. */
static bool wait_for_key(const struct top *top)
{
	const uint64_t due = top->read_ns + top->state.interval * 1000000000ULL, now = top_now_ns();
	const uint64_t left = due > now ? due - now : 0;
	const struct timespec wait = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	const int n = ppoll(&input, 1, top->state.paused ? NULL : &wait, &top->signals);

	return n > 0 || (n < 0 && errno == EINTR);
}

/* All that have been typed; what comes after SIGWINCH is one, too. False: the terminal has gone. */
static bool top_handle_typed_keys(struct top *top)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	const bool typed = poll(&input, 1, 0) > 0;
	unsigned keys = 0;

	for (int key; (key = top_screen_read_key()) != -1; keys++)
		top_handle_key(&top->state, key, &top->table, top_screen_lines_per_page());
	return !typed || keys != 0;
}

/* 0, -ENOMEM, or -EIO: the terminal has gone. */
static int run_screens(struct top *top)
{
	int rc = top_read_host_stats_and_refill_table(top);

	while (rc == 0 && !top->state.ended && top_should_end == 0) {
		draw_top(top);
		if (top->options->cycles != 0 && top->screens == top->options->cycles)
			break;
		if (wait_for_key(top)) {
			rc = top_handle_typed_keys(top) ? refill_table(top) : -EIO;
		} else {
			rc = top_read_host_stats_and_refill_table(top);
			top->screens++;
		}
	}
	return rc;
}

/* A descriptor for each process. */
static void raise_limit_of_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

int top_run(const struct options *options)
{
	static struct top top;
	char wrong[128];
	int rc;

	top = (struct top){.options = options, .state = {.interval = options->interval, .choice.sort = TOP_TREND}};
	top_install_and_block_signals(&top);
	if (!top_screen_begin(wrong, sizeof(wrong))) {
		fprintf(stderr, "vmastat: %s\n", wrong);
		return EX_USAGE;
	}
	vma_log_set_level(VMA_LOG_NONE); /* it would be written over the screen */
	raise_limit_of_descriptors();
	rc = run_screens(&top);
	top_screen_end();
	top_table_fini(&top.table);
	top_host_fini(&top.host);
	if (rc == 0)
		return EXIT_SUCCESS;
	fprintf(stderr, "vmastat: %s\n", rc == -EIO ? "the terminal has gone" : strerrordesc_np(-rc));
	return EXIT_FAILURE;
}
