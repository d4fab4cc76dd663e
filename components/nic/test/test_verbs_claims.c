/* Claims of flows from any peer: one process has a name, root and its own user may ask for it, and no asker is endless.
 * */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vma/test.h>

#include "../verbs/verbs.h"
#include "frames.h"

enum { STRANGER = 65534, CLAIMS = 4, BYTES = 8 };

static struct nic_verbs nic;

static int setup(void **state)
{
	(void)state;
	nic.base.info.ifindex = (uint32_t)getpid(); /* no other test's name */
	nic.claims_fd = epoll_create1(EPOLL_CLOEXEC);
	return nic.claims_fd < 0;
}

static int teardown(void **state)
{
	(void)state;
	close(nic.claims_fd);
	return 0;
}

static struct vma_flow_key listener_key(uint16_t port)
{
	return (struct vma_flow_key){
	        .family = AF_INET, .proto = IPPROTO_TCP, .local = {10, 0, 0, 1}, .local_port_be = htons(port)};
}

static int claim_flow_of_listener(uint16_t port)
{
	const struct vma_flow_key key = listener_key(port);

	return verbs_claim_flow_address(&nic, &key);
}

static bool claim_event_is_pending(void)
{
	struct pollfd pfd = {.fd = nic.claims_fd, .events = POLLIN};

	return poll(&pfd, 1, 0) == 1;
}

static void test_a_second_claim_is_refused_and_the_first_one_asked(void **state)
{
	const int first = claim_flow_of_listener(7000), other = claim_flow_of_listener(7001);

	(void)state;
	assert_true(first >= 0 && other >= 0);
	assert_int_equal(verbs_next_contested_claim(&nic), -1);
	assert_int_equal(claim_flow_of_listener(7000), -EADDRINUSE);
	assert_int_equal(verbs_next_contested_claim(&nic), first);
	assert_int_equal(verbs_next_contested_claim(&nic), -1);
	close(first);
	close(other);
}

static void test_a_datagram_flow_of_one_peer_has_a_name_of_its_own(void **state)
{
	struct vma_flow_rule rule = {.key = listener_key(7000)};
	struct vma_flow_key key;
	int first, other;

	(void)state;
	assert_true(verbs_flow_needs_claim(&rule));
	rule.key.peer_port_be = htons(9000);
	assert_false(verbs_flow_needs_claim(&rule)); /* a connection that was accepted */
	rule.key.proto = IPPROTO_UDP;
	assert_true(verbs_flow_needs_claim(&rule));
	rule.flags = VMA_FLOW_PORT_EXCLUSIVE;
	assert_false(verbs_flow_needs_claim(&rule)); /* nobody else can have the port */
	key = rule.key;
	memcpy(key.peer, (uint8_t[]){10, 0, 0, 2}, 4);
	first = verbs_claim_flow_address(&nic, &key);
	key.peer[3] = 3;
	other = verbs_claim_flow_address(&nic, &key);
	assert_true(first >= 0 && other >= 0);
	key.peer[3] = 2;
	assert_int_equal(verbs_claim_flow_address(&nic, &key), -EADDRINUSE);
	assert_int_equal(verbs_next_contested_claim(&nic), first);
	close(first);
	close(other);
}

static void test_a_connection_from_a_bound_port_is_the_first_ones_for_good(void **state)
{
	struct vma_flow_rule rule = {.key = listener_key(7000), .flags = VMA_FLOW_PORT_BOUND};
	int first, other;

	(void)state;
	rule.key.peer_port_be = htons(9000);
	memcpy(rule.key.peer, (uint8_t[]){10, 0, 0, 2}, 4);
	assert_true(verbs_flow_needs_claim(&rule));
	assert_false(verbs_flow_may_get_conflict(&rule)); /* later: before, the kernel is asked */
	first = verbs_claim_flow_address(&nic, &rule.key);
	assert_true(first >= 0);
	assert_int_equal(verbs_claim_flow_address(&nic, &rule.key), -EADDRINUSE);
	assert_false(claim_event_is_pending());
	assert_int_equal(verbs_next_contested_claim(&nic), -1);
	rule.key.peer_port_be = htons(9001);
	other = verbs_claim_flow_address(&nic, &rule.key);
	assert_true(other >= 0);
	close(other);
	close(first);
}

/* More bytes than one look takes, of a user who may not ask. */
static void flood_claims_with_bytes_as_other_user(const int *fds)
{
	struct sockaddr_un name;
	socklen_t len;
	int from;

	if (setresgid(STRANGER, STRANGER, STRANGER) < 0 || setresuid(STRANGER, STRANGER, STRANGER) < 0)
		_exit(1);
	from = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	for (int i = 0; i < CLAIMS; i++) {
		len = sizeof(name);
		if (getsockname(fds[i], (struct sockaddr *)&name, &len) < 0)
			_exit(2);
		for (int n = 0; n < BYTES; n++)
			if (sendto(from, "", 1, 0, (struct sockaddr *)&name, len) != 1)
				_exit(3);
	}
	_exit(0);
}

static void test_a_stranger_may_not_ask_and_holds_the_thread_up_for_a_few_bytes_only(void **state)
{
	int fds[CLAIMS], status, looks = 0;
	pid_t child;

	(void)state;
	if (getuid() != 0)
		vma_test_skip("only root can be another user");
	for (int i = 0; i < CLAIMS; i++) {
		fds[i] = claim_flow_of_listener((uint16_t)(7000 + i));
		assert_true(fds[i] >= 0);
	}
	child = fork();
	if (child == 0)
		flood_claims_with_bytes_as_other_user(fds);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	for (; claim_event_is_pending() && looks < 100; looks++)
		assert_int_equal(verbs_next_contested_claim(&nic), -1);
	assert_true(looks > 1);
	assert_false(claim_event_is_pending());
	for (int i = 0; i < CLAIMS; i++)
		close(fds[i]);
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void test_who_gives_a_flow_up_has_it_back_only_when_nobody_asks_any_more(void **state)
{
	const struct vma_flow_key key = listener_key(7000);
	const int first = claim_flow_of_listener(7000);
	uint64_t renewed_ms;
	int rc;

	(void)state;
	assert_true(first >= 0);
	assert_int_equal(claim_flow_of_listener(7000), -EADDRINUSE);
	assert_int_equal(verbs_next_contested_claim(&nic), first);
	assert_int_equal(verbs_flow_contest_take_back_claim(&nic, &key), -ENOENT);
	verbs_flow_contest_begin(&nic, &key, first);
	usleep(1500000);
	assert_int_equal(claim_flow_of_listener(7000), -EADDRINUSE); /* the other one asks again */
	assert_int_equal(verbs_next_contested_claim(&nic), first);
	renewed_ms = now_ms();
	verbs_flow_contest_extend_or_drop_claim(&nic, first);
	while ((rc = verbs_flow_contest_take_back_claim(&nic, &key)) == -EADDRINUSE)
		usleep(10000);
	assert_int_equal(rc, first);
	assert_true(now_ms() - renewed_ms >= 2900);
	assert_int_equal(verbs_flow_contests_expire(&nic), -1);
	assert_int_equal(claim_flow_of_listener(7000), -EADDRINUSE); /* it was never free */
	close(first);
}

static void test_a_contest_that_nobody_takes_up_ends(void **state)
{
	const struct vma_flow_key key = listener_key(7000);
	int first = claim_flow_of_listener(7000), ms;

	(void)state;
	verbs_flow_contest_begin(&nic, &key, first);
	while ((ms = verbs_flow_contests_expire(&nic)) >= 0)
		usleep((unsigned)ms * 1000);
	first = claim_flow_of_listener(7000);
	assert_true(first >= 0);
	close(first);
}

static bool port_claim_is_free(uint16_t port)
{
	const int fd = claim_flow_of_listener(port);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

/* One of several ends when another process asks and this one does not, one when this one asks, one with the nic. */
static void test_contests_end_one_by_one(void **state)
{
	struct vma_flow_key keys[3];
	int fds[3];

	(void)state;
	for (uint16_t i = 0; i < 3; i++) {
		keys[i] = listener_key((uint16_t)(7100 + i));
		fds[i] = claim_flow_of_listener((uint16_t)(7100 + i));
		assert_true(fds[i] >= 0);
		assert_true(verbs_flow_contest_begin(&nic, &keys[i], fds[i]));
	}
	assert_int_equal(verbs_flow_contest_take_back_claim(&nic, &keys[1]), -EADDRINUSE);
	verbs_flow_contest_extend_or_drop_claim(&nic, -5);
	verbs_flow_contest_extend_or_drop_claim(&nic, fds[0]); /* this process has just wanted it */
	assert_int_equal(nic.contests_n, 3);
	usleep(3200000);
	verbs_flow_contest_extend_or_drop_claim(&nic, fds[0]);
	assert_int_equal(nic.contests_n, 2);
	assert_true(port_claim_is_free(7100));
	assert_int_equal(verbs_flow_contest_take_back_claim(&nic, &keys[1]), fds[1]);
	close(fds[1]);
	assert_true(port_claim_is_free(7101));
	assert_false(port_claim_is_free(7102));
	verbs_flow_contests_fini(&nic);
	assert_int_equal(nic.contests_n, 0);
	assert_true(port_claim_is_free(7102));
}

static void test_contests_beyond_the_limit_are_none(void **state)
{
	const struct vma_flow_key key = listener_key(7200);
	unsigned n = 0;
	int fd;

	(void)state;
	while (verbs_flow_contest_begin(&nic, &key, fd = dup(0)))
		assert_true(++n < 10000);
	assert_int_equal(nic.contests_n, n);
	assert_int_equal(fcntl(fd, F_GETFD), -1); /* closed: the name is free at once */
	verbs_flow_contests_fini(&nic);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_contests_end_one_by_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_contests_beyond_the_limit_are_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_second_claim_is_refused_and_the_first_one_asked, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_datagram_flow_of_one_peer_has_a_name_of_its_own, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_connection_from_a_bound_port_is_the_first_ones_for_good, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_stranger_may_not_ask_and_holds_the_thread_up_for_a_few_bytes_only, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_who_gives_a_flow_up_has_it_back_only_when_nobody_asks_any_more, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_contest_that_nobody_takes_up_ends, setup, teardown),
};

VMA_TEST_MAIN(tests)
