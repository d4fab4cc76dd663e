/*
 * Stress: forks beside nics and queue pairs of the verbs backend that are opened and closed all the time, on a card in
 * this process (loop_card.h). No child has a descriptor of theirs. Each opening is slow: it rests at every descriptor.
 *
 * STRESS_SECONDS, default 1.
 */
#include <pthread.h>
#include <sys/wait.h>

#include <vma/ck_tsan.h>

#include "../os.h"
#include "fixture.h"
#include "loop_card.h"

enum { OPENERS = 2, FDS = 4096, FORKS_LEAST = 100, OPENINGS_LEAST = 10, REST_US = 100 };

struct opener {
	pthread_t thread;
	uint16_t port;
	_Atomic uint32_t openings;
};

static struct vma_bufarena *arena;
static _Atomic bool stop;
static bool was_open[FDS]; /* before there was a nic */

static void rest_at_descriptor(int fd, bool on)
{
	(void)fd, (void)on;
	usleep(REST_US);
}

/* In a thread that is not cmocka's. */
static void opener_must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "stress_verbs_fork: not so: %s\n", what);
	abort();
}

static void open_and_close(struct opener *opener)
{
	const struct vma_nic_attr attr = {.arena = arena, .unwatched = true};
	const struct vma_nic_qp_attr ring = {.rx_wre = 16, .tx_wre = 16, .name = "ring"};
	const struct vma_flow_rule rule = make_flow_rule(1, IPPROTO_UDP, opener->port, 0, 0);
	struct vma_nic_qp *qp;
	struct vma_nic *nic;
	int rc;

	opener_must(vma_nic_open("verbs:lo", &attr, &nic) == 0, "a nic opens");
	for (int i = 0; i < 3; i++) {
		opener_must(vma_nic_qp_create(nic, &ring, &qp) == 0, "a queue pair is made");
		rc = vma_nic_flow_add(qp, &rule); /* with a claim, which a child may not have closed yet */
		opener_must(rc == 0 || rc == -EADDRINUSE, "a flow is added");
		vma_nic_qp_destroy(qp);
	}
	vma_nic_close(nic);
	atomic_fetch_add(&opener->openings, 1);
}

static void *opener_thread(void *arg)
{
	while (!atomic_load(&stop))
		open_and_close(arg);
	return NULL;
}

/* Calls `each` for every open descriptor, without a call that is not safe in a child. */
static void visit_open_fds(void (*each)(int fd))
{
	const int dir = os_open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char list[4096] __attribute__((aligned(8)));
	long bytes;

	while ((bytes = syscall(SYS_getdents64, dir, list, sizeof(list))) > 0)
		for (long at = 0; at < bytes;) {
			uint16_t length;
			int fd = 0;

			memcpy(&length, list + at + 16, sizeof(length)); /* d_ino, d_off, d_reclen, d_type, d_name */
			for (const char *c = list + at + 19; *c >= '0' && *c <= '9'; c++)
				fd = 10 * fd + *c - '0';
			if (list[at + 19] != '.' && fd != dir)
				each(fd);
			at += length;
		}
	os_close(dir);
}

static void note_open_fd(int fd)
{
	assert_true(fd < FDS);
	was_open[fd] = true;
}

static unsigned inherited;

static void count_inherited_fd(int fd)
{
	char path[64], target[128];
	ssize_t len;

	if (fd < FDS && was_open[fd])
		return;
	inherited++;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	len = readlink(path, target, sizeof(target) - 1);
	dprintf(STDERR_FILENO, "stress_verbs_fork: a child has %d: %.*s\n", fd, len > 0 ? (int)len : 0, target);
}

static bool fork_child_that_has_no_descriptor_of_a_nic(void)
{
	int status;
	const pid_t pid = fork();

	if (pid == 0) {
		visit_open_fds(count_inherited_fd);
		_exit(inherited != 0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool fork_stress_has_seen_all(const struct opener *openers, uint32_t forks)
{
	bool seen = forks >= FORKS_LEAST;

	for (int i = 0; i < OPENERS; i++)
		seen = seen && atomic_load(&openers[i].openings) >= OPENINGS_LEAST;
	return seen;
}

static void test_a_fork_beside_openings_leaves_its_child_no_descriptor_of_a_nic(void **state)
{
	const char *seconds = getenv("STRESS_SECONDS");
	const double s = seconds != NULL && atof(seconds) > 0 ? atof(seconds) : 1;
	struct opener openers[OPENERS] = {{.port = 21001}, {.port = 21002}};
	uint32_t forks = 0, bad = 0;
	uint64_t end;

	(void)state;
#ifdef VMA_TSAN
	vma_test_skip(
	        "ThreadSanitizer takes a descriptor's number, closed by a call that it does not see, for the same "
	        "descriptor when it is open again");
#endif
	arena = fixture_arena();
	open_and_close(&openers[0]); /* what is opened once for all */
	visit_open_fds(note_open_fd);
	vma_nic_fd_hook = rest_at_descriptor;
	for (int i = 0; i < OPENERS; i++)
		assert_int_equal(pthread_create(&openers[i].thread, NULL, opener_thread, &openers[i]), 0);
	end = fixture_now_ns() + (uint64_t)(s * 1e9);
	for (; bad == 0 && vma_test_goes_on(fixture_now_ns(), end, fork_stress_has_seen_all(openers, forks)); forks++)
		bad += !fork_child_that_has_no_descriptor_of_a_nic();
	atomic_store(&stop, true);
	for (int i = 0; i < OPENERS; i++)
		pthread_join(openers[i].thread, NULL);
	vma_nic_fd_hook = NULL;
	print_message("# %u forks beside %u openings\n", forks,
	              atomic_load(&openers[0].openings) + atomic_load(&openers[1].openings));
	assert_int_equal(bad, 0);
	assert_true(fork_stress_has_seen_all(openers, forks));
	vma_bufpool_flush_thread(arena);
	vma_bufarena_destroy(arena);
	assert_int_equal(loop.alive, 0);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_fork_beside_openings_leaves_its_child_no_descriptor_of_a_nic,
                               loop_skip_without_interface),
};

VMA_TEST_MAIN_WITH(tests, loop_begin, loop_end)
