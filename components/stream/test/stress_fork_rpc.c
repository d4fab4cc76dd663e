/*
 * Processes ask through one page, are killed in the middle of it, give up, and ask again: each answer is the answer to
 * the question, no slot has two owners, and none is lost for good. And what moves is seen to move.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vma/sock.h>
#include <vma/test.h>

#include "../fork_rpc.h"

/* On a machine whose cores are away, ENOUGH answers may take longer: TIMEOUT_NS at most. */
enum { CHILDREN = 6, FOR_NS = 700000000, NUMBERS = 1024, ENOUGH = 101 };
static const uint64_t TIMEOUT_NS = 60000000000;

/* What the children have counted, and what the parent has answered: by id, how often. */
struct tally {
	_Atomic unsigned long done, unknown, in_vain, wrong;
	_Atomic unsigned answered[NUMBERS];
	_Atomic bool stop;
};

static struct fork_rpc_page *page;
static struct tally *tally;
static int event_fd;

static int fork_rpc_set_up(void **state)
{
	(void)state;
	page = fork_rpc_page_create();
	tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	event_fd = eventfd(0, EFD_NONBLOCK);
	return page == NULL || tally == MAP_FAILED || event_fd < 0;
}

static int tear_down(void **state)
{
	(void)state;
	fork_rpc_page_free(page);
	munmap(tally, sizeof(*tally));
	close(event_fd);
	return 0;
}

/* ---- the parent ---- */

/* Odd ones are unknown. */
static enum fork_rpc_result fork_rpc_count_and_answer_odd_ids_unknown(uint64_t id)
{
	atomic_fetch_add(&tally->answered[id % NUMBERS], 1);
	return id % 2 != 0 ? FORK_RPC_UNKNOWN : FORK_RPC_DONE;
}

static void answer_fork_rpcs_for_ns(uint64_t ns)
{
	const uint64_t end_ns = vma_now_ns() + ns;
	struct pollfd fd = {.fd = event_fd, .events = POLLIN};
	uint64_t times;

	while (vma_now_ns() < end_ns) {
		if (poll(&fd, 1, 10) == 1 && read(event_fd, &times, sizeof(times)) > 0)
			fork_rpc_answer_all(page, fork_rpc_count_and_answer_odd_ids_unknown);
	}
}

/* ---- a child ---- */

static void fork_rpc_wake(void *arg)
{
	const uint64_t one = 1;

	(void)arg;
	if (write(event_fd, &one, sizeof(one)) < 0)
		_exit(9);
}

static bool is_alive(void *arg)
{
	(void)arg;
	return true;
}

static bool parent_is_never_alive(void *arg)
{
	(void)arg;
	return false;
}

static void fork_rpc_count_result(uint64_t id, enum fork_rpc_result got)
{
	if (got == FORK_RPC_TIMED_OUT)
		atomic_fetch_add(&tally->in_vain, 1);
	else if (got != (id % 2 != 0 ? FORK_RPC_UNKNOWN : FORK_RPC_DONE))
		atomic_fetch_add(&tally->wrong, 1);
	else
		atomic_fetch_add(got == FORK_RPC_DONE ? &tally->done : &tally->unknown, 1);
}

/* Some do not wait: they take the question back while it is answered. */
static void fork_rpc_keep_calling(unsigned seed)
{
	struct fork_rpc_parent parent = {.wake = fork_rpc_wake, .is_alive = is_alive};

	while (!atomic_load(&tally->stop)) {
		uint64_t id;

		seed = seed * 1664525 + 1013904223;
		id = 1 + (seed >> 8) % (NUMBERS - 1);
		parent.timeout_ns = seed >> 28 == 0 ? 0 : 2000000000;
		fork_rpc_count_result(id, fork_rpc_call(page, id, &parent));
	}
}

static pid_t fork_child_to_run(void (*run)(unsigned), unsigned seed)
{
	pid_t parent = getpid(), child = fork();

	assert_true(child >= 0);
	if (child != 0)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == parent)
		run(seed);
	_exit(0);
}

static int wait_for_child_status(pid_t child)
{
	int status = 0;

	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void child_exit_at_once(unsigned seed)
{
	(void)seed;
}

/* ---- tests ---- */

static void test_every_answer_is_that_of_the_question(void **state)
{
	pid_t child[CHILDREN];
	uint64_t begin_ns;

	(void)state;
	for (unsigned i = 0; i < CHILDREN; i++)
		child[i] = fork_child_to_run(fork_rpc_keep_calling, i);
	begin_ns = vma_now_ns();
	do
		answer_fork_rpcs_for_ns(FOR_NS);
	while ((atomic_load(&tally->done) < ENOUGH || atomic_load(&tally->unknown) < ENOUGH) &&
	       vma_now_ns() - begin_ns < TIMEOUT_NS);
	atomic_store(&tally->stop, true);
	for (unsigned i = 0; i < CHILDREN; i++) {
		int status = 0;

		while (waitpid(child[i], &status, WNOHANG) == 0)
			answer_fork_rpcs_for_ns(1000000); /* what they still ask */
		assert_int_equal(status, 0);
	}
	assert_int_equal(atomic_load(&tally->wrong), 0);
	assert_true(atomic_load(&tally->done) >= ENOUGH && atomic_load(&tally->unknown) >= ENOUGH);
	for (unsigned i = 0; i < FORK_RPC_SLOTS; i++)
		assert_int_equal(atomic_load(&page->slot[i].owner), 0);
}

static unsigned long answered(void)
{
	return atomic_load(&tally->done) + atomic_load(&tally->unknown);
}

/* All slots are theirs in the beginning, and each that is killed leaves another one, in whatever state. */
static void test_slots_of_those_who_were_killed_are_taken_again(void **state)
{
	pid_t child[CHILDREN] = {0};
	unsigned killed = 0;
	uint64_t begin_ns;

	(void)state;
	for (unsigned i = 0; i < FORK_RPC_SLOTS; i++) { /* as if each had been killed with one */
		pid_t dead = fork_child_to_run(child_exit_at_once, 0);

		wait_for_child_status(dead);
		atomic_store(&page->slot[i].owner, dead);
		atomic_store(&page->slot[i].word, i << 2 | i % 4);
	}
	begin_ns = vma_now_ns();
	while (killed <= CHILDREN || vma_now_ns() - begin_ns < FOR_NS ||
	       (answered() < ENOUGH && vma_now_ns() - begin_ns < TIMEOUT_NS)) {
		unsigned i = killed % CHILDREN;

		if (child[i] != 0) {
			kill(child[i], SIGKILL);
			wait_for_child_status(child[i]);
			killed++;
		}
		child[i] = fork_child_to_run(fork_rpc_keep_calling, killed);
		answer_fork_rpcs_for_ns(3000000);
	}
	for (unsigned i = 0; i < CHILDREN; i++) {
		if (child[i] != 0) {
			kill(child[i], SIGKILL);
			wait_for_child_status(child[i]);
		}
	}
	assert_int_equal(atomic_load(&tally->wrong), 0);
	assert_true(killed > CHILDREN);
	assert_true(answered() >= ENOUGH);
}

static void test_a_parent_that_is_gone_or_dead_is_not_waited_for(void **state)
{
	struct fork_rpc_parent parent = {
	        .wake = fork_rpc_wake, .is_alive = parent_is_never_alive, .timeout_ns = 10000000000};
	uint64_t begin_ns = vma_now_ns();

	(void)state;
	assert_int_equal(fork_rpc_call(page, 2, &parent), FORK_RPC_TIMED_OUT);
	parent.is_alive = is_alive;
	fork_rpc_close_page(page);
	assert_int_equal(fork_rpc_call(page, 2, &parent), FORK_RPC_TIMED_OUT);
	assert_true(vma_now_ns() - begin_ns < 5000000000);
	for (unsigned i = 0; i < FORK_RPC_SLOTS; i++)
		assert_int_equal(atomic_load(&page->slot[i].owner), 0);
}

/*
 * `touched` is for the socket: a child that sees that it was touched, and no note, must see that it is finished. Rounds
 * go by number: connection `id` is round `id`.
 */
static struct {
	_Atomic uint64_t touched, finished;
} * moved;

static void fork_rpc_check_hand_over_marks(unsigned seed)
{
	uint64_t last = 0;

	(void)seed;
	while (!atomic_load(&tally->stop)) {
		uint64_t id = atomic_load(&moved->touched);

		if (id == last || fork_rpc_hand_over_in_progress(page, id)) {
			sched_yield();
			continue;
		}
		if (atomic_load(&moved->finished) < id)
			atomic_fetch_add(&tally->wrong, 1);
		atomic_fetch_add(&tally->done, 1);
		last = id;
	}
}

static void test_what_looks_connected_and_is_not_noted_is_finished(void **state)
{
	const uint64_t begin_ns = vma_now_ns();
	pid_t child[2];

	(void)state;
	moved = mmap(NULL, sizeof(*moved), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(moved != MAP_FAILED);
	for (unsigned i = 0; i < 2; i++)
		child[i] = fork_child_to_run(fork_rpc_check_hand_over_marks, i);
	for (uint64_t id = 1; vma_now_ns() - begin_ns < FOR_NS / 2 ||
	                      (atomic_load(&tally->done) < ENOUGH && vma_now_ns() - begin_ns < TIMEOUT_NS);
	     id++) {
		unsigned move = fork_rpc_mark_hand_over_begin(page, id);

		atomic_store_explicit(&moved->touched, id, memory_order_release);
		if (id % 8 == 0)
			sched_yield();
		atomic_store_explicit(&moved->finished, id, memory_order_relaxed);
		fork_rpc_mark_hand_over_end(page, move);
		if (id % 16 == 0)
			sched_yield();
	}
	usleep(20000);
	atomic_store(&tally->stop, true);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(wait_for_child_status(child[i]), 0);
	assert_int_equal(atomic_load(&tally->wrong), 0);
	assert_true(atomic_load(&tally->done) >= ENOUGH);
	munmap(moved, sizeof(*moved));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(test_every_answer_is_that_of_the_question, fork_rpc_set_up, tear_down),
	        cmocka_unit_test_setup_teardown(test_slots_of_those_who_were_killed_are_taken_again, fork_rpc_set_up,
	                                        tear_down),
	        cmocka_unit_test_setup_teardown(test_a_parent_that_is_gone_or_dead_is_not_waited_for, fork_rpc_set_up,
	                                        tear_down),
	        cmocka_unit_test_setup_teardown(test_what_looks_connected_and_is_not_noted_is_finished, fork_rpc_set_up,
	                                        tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
