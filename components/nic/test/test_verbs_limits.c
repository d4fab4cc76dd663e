/* The verbs backend in a process that lacks something, or ends in the middle: on a card in this process. */
#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "fixture.h"
#include "loop_card.h"

static struct vma_bufarena *arena;

static int setup(void **state)
{
	loop_skip_without_interface(state);
	arena = fixture_arena();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (arena != NULL)
		vma_bufarena_destroy(arena);
	arena = NULL;
	assert_int_equal(loop.alive, 0);
	return 0;
}

static unsigned count_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n - 3; /* ".", "..", and the folder's own */
}

static int open_nic_and_qp(struct vma_nic **nic, struct vma_nic_qp **qp)
{
	const struct vma_nic_attr attr = {.arena = arena, .unwatched = true};
	const struct vma_nic_qp_attr ring = {.rx_wre = 64, .tx_wre = 64, .name = "ring"};
	int rc = vma_nic_open("verbs:lo", &attr, nic);

	*qp = NULL;
	return rc < 0 ? rc : vma_nic_qp_create(*nic, &ring, qp);
}

static struct vma_flow_rule udp_listener_rule(void)
{
	return (struct vma_flow_rule){.key = make_flow_rule(1, IPPROTO_UDP, 1, 0, 0).key};
}

/* ---- descriptors ---- */

/* A limit of so many above those that are open; its own numbers begin at half of it then. */
static void allow_more_fds(const struct rlimit *before, rlim_t more)
{
	const struct rlimit limit = {.rlim_cur = count_open_fds() + more, .rlim_max = before->rlim_max};

	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void test_whatever_descriptor_cannot_be_had_nothing_is_left_open(void **state)
{
	const unsigned before = count_open_fds();
	const struct vma_flow_rule rule = udp_listener_rule();
	unsigned refused_nics = 0, refused_qps = 0, refused_flows = 0;
	struct rlimit limit;
	int rc = -1;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	for (rlim_t more = 0; rc != 0 && more < 100; more++) {
		struct vma_nic *nic;
		struct vma_nic_qp *qp;

		allow_more_fds(&limit, more);
		rc = open_nic_and_qp(&nic, &qp);
		refused_nics += nic == NULL;
		refused_qps += nic != NULL && qp == NULL;
		if (rc == 0)
			rc = vma_nic_flow_add(qp, &rule);
		refused_flows += qp != NULL && rc != 0;
		vma_nic_qp_destroy(qp);
		vma_nic_close(nic);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
		assert_int_equal(count_open_fds(), before);
		assert_int_equal(loop.alive, 0);
	}
	assert_int_equal(rc, 0);
	assert_true(refused_nics >= 3);
	assert_true(refused_qps >= 3);
	assert_true(refused_flows >= 1);
}

/* ---- the interface ---- */

static void set_mtu_of_loopback(int mtu)
{
	struct ifreq req = {.ifr_name = "lo", .ifr_mtu = mtu};
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_int_equal(ioctl(fd, SIOCSIFMTU, &req), 0);
	close(fd);
}

/* Which is asked for at each rebind. */
static void test_an_mtu_that_takes_more_buffers_than_there_are_places_is_not_received(void **state)
{
	const struct vma_flow_rule rule = udp_listener_rule();
	struct vma_nic_qp *qp;
	struct vma_nic *nic;

	(void)state;
	assert_int_equal(open_nic_and_qp(&nic, &qp), 0);
	assert_int_equal(vma_nic_flow_add(qp, &rule), 0);
	set_mtu_of_loopback(65000);
	assert_true(loop_break(LOOP_QUEUE_STOPS, 0));
	while (!vma_nic_qp_lost(qp))
		usleep(1000);
	assert_int_equal(vma_nic_qp_rebind(qp), -EAGAIN);
	set_mtu_of_loopback(1500);
	assert_int_equal(vma_nic_qp_rebind(qp), 0);
	vma_nic_qp_destroy(qp);
	set_mtu_of_loopback(65000);
	assert_int_equal(vma_nic_open("verbs:lo", &(struct vma_nic_attr){.arena = arena, .unwatched = true},
	                              &(struct vma_nic *){NULL}),
	                 -EOPNOTSUPP);
	set_mtu_of_loopback(1500);
	vma_nic_close(nic);
}

/* A table of GIDs may name what has just gone. */
static void test_an_interface_that_only_the_table_has_is_not_opened(void **state)
{
	const struct vma_nic_attr attr = {.arena = arena, .unwatched = true};
	const unsigned before = count_open_fds();
	struct vma_nic *nic;
	char path[160];
	FILE *file;

	(void)state;
	snprintf(path, sizeof(path), "%s/class/infiniband/" LOOP_DEVICE "/ports/1/gid_attrs/ndevs/1", loop_sysfs);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("gone0\n", file);
	fclose(file);
	assert_int_equal(vma_nic_open("verbs:gone0", &attr, &nic), -ENODEV);
	assert_null(nic);
	assert_int_equal(count_open_fds(), before);
	unlink(path);
}

/* ---- a thread that is to be cancelled ---- */

static void *use_nic_before_cancellation(void *arg)
{
	const struct vma_flow_rule rule = udp_listener_rule();
	struct vma_nic_qp *qp;
	struct vma_nic *nic;
	bool *ended = arg;

	pthread_cancel(pthread_self());
	if (open_nic_and_qp(&nic, &qp) == 0) {
		*ended = vma_nic_flow_add(qp, &rule) == 0 && vma_nic_arm(qp) >= 0 &&
		         vma_nic_flow_del(qp, &rule.key) == 0;
		vma_nic_qp_destroy(qp);
		vma_nic_close(nic);
	}
	pthread_testcancel();
	*ended = false;
	return NULL;
}

static void test_no_call_is_a_cancellation_point(void **state)
{
	bool ended = false;
	pthread_t thread;
	void *how;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, use_nic_before_cancellation, &ended), 0);
	assert_int_equal(pthread_join(thread, &how), 0);
	assert_ptr_equal(how, PTHREAD_CANCELED);
	assert_true(ended);
}

/* ---- a forked child ---- */

/* 0, or the number of the first thing that is wrong. */
static int child_finds(struct vma_nic *nic, struct vma_nic_qp *qp, unsigned fds_before_open)
{
	const struct vma_nic_qp_attr ring = {.rx_wre = 64, .tx_wre = 64, .name = "ring"};
	const struct vma_flow_rule rule = udp_listener_rule();
	struct vma_nic_qp *other;

	if (count_open_fds() != fds_before_open)
		return 1;
	if (vma_nic_qp_create(nic, &ring, &other) != -ENODEV || vma_nic_qp_rebind(qp) != -ENODEV)
		return 2;
	if (vma_nic_flow_add(qp, &rule) != -ENODEV || vma_nic_flow_del(qp, &rule.key) != -ENODEV)
		return 3;
	if (vma_nic_arm(qp) != -ENODEV || vma_nic_set_tx_pacing_rate(qp, 1000000, 0) != -ENODEV ||
	    vma_nic_set_interrupt_moderation(qp, 1, 1) != -ENODEV)
		return 4;
	vma_nic_qp_destroy(qp);
	vma_nic_close(nic);
	return 0;
}

static void test_a_forked_child_has_none_of_its_descriptors_and_may_call(void **state)
{
	const unsigned before = count_open_fds();
	const struct vma_flow_rule rule = udp_listener_rule();
	struct vma_nic_qp *qp;
	struct vma_nic *nic;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(open_nic_and_qp(&nic, &qp), 0);
	assert_int_equal(vma_nic_flow_add(qp, &rule), 0);
	assert_true(count_open_fds() > before + 10);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		exit(child_finds(nic, qp, before));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(vma_nic_flow_del(qp, &rule.key), 0);
	vma_nic_qp_destroy(qp);
	vma_nic_close(nic);
	assert_int_equal(count_open_fds(), before);
}

#define LIMITS_CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static const struct CMUnitTest tests[] = {
        LIMITS_CASE(test_whatever_descriptor_cannot_be_had_nothing_is_left_open),
        LIMITS_CASE(test_an_mtu_that_takes_more_buffers_than_there_are_places_is_not_received),
        LIMITS_CASE(test_an_interface_that_only_the_table_has_is_not_opened),
        LIMITS_CASE(test_no_call_is_a_cancellation_point),
        LIMITS_CASE(test_a_forked_child_has_none_of_its_descriptors_and_may_call),
};

VMA_TEST_MAIN_WITH(tests, loop_begin, loop_end)
