/*
 * The set of a flow's shadows: what is in it, and that closed sockets leave it before it grows without end.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vma/test.h>

#include "../sock_cookies.h"

static const struct vma_flow_key key_without_port = {.family = AF_INET, .proto = IPPROTO_UDP};

static void test_a_cookie_is_in_the_set_once(void **state)
{
	struct nic_cookies set = {0};

	(void)state;
	assert_false(nic_cookies_has(&set, 5));
	assert_int_equal(nic_cookies_add(&set, &key_without_port, 5), 0);
	assert_int_equal(nic_cookies_add(&set, &key_without_port, 5), 0);
	assert_int_equal(set.n, 1);
	assert_true(nic_cookies_has(&set, 5));
	nic_cookies_fini(&set);
}

static void test_no_shadow_is_no_member(void **state)
{
	struct nic_cookies set = {0};

	(void)state;
	assert_int_equal(nic_cookies_add(&set, &key_without_port, 0), 0);
	assert_int_equal(set.n, 0);
	nic_cookies_fini(&set);
}

/* Binds a socket; the first one chooses the port. */
static int open_reuseaddr_udp_member_of_key(struct vma_flow_key *key, uint64_t *cookie)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = key->local_port_be};
	socklen_t len = sizeof(address), cookie_len = sizeof(*cookie);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), yes = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_COOKIE, cookie, &cookie_len), 0);
	key->local_port_be = address.sin_port;
	return fd;
}

static void test_members_that_come_and_go_leave_room(void **state)
{
	struct vma_flow_key key = key_without_port;
	struct nic_cookies set = {0};
	uint64_t stays, cookie;
	int fd = open_reuseaddr_udp_member_of_key(&key, &stays);

	(void)state;
	assert_int_equal(nic_cookies_add(&set, &key, stays), 0);
	for (int i = 0; i < 1000; i++) {
		close(open_reuseaddr_udp_member_of_key(&key, &cookie));
		assert_int_equal(nic_cookies_add(&set, &key, cookie), 0);
	}
	assert_true(set.n <= 128 && set.capacity <= 128);
	assert_true(nic_cookies_has(&set, stays));
	assert_true(nic_cookies_has(&set, cookie));
	nic_cookies_prune(&set, &key, NULL);
	assert_int_equal(set.n, 1);
	assert_true(nic_cookies_has(&set, stays));
	close(fd);
	nic_cookies_fini(&set);
}

static void test_many_members_at_a_time_all_stay(void **state)
{
	enum { MEMBERS = 200 };
	struct vma_flow_key key = key_without_port;
	struct nic_cookies set = {0};
	uint64_t cookie[MEMBERS];
	int fd[MEMBERS];

	(void)state;
	for (int i = 0; i < MEMBERS; i++) {
		fd[i] = open_reuseaddr_udp_member_of_key(&key, &cookie[i]);
		assert_int_equal(nic_cookies_add(&set, &key, cookie[i]), 0);
	}
	assert_int_equal(set.n, MEMBERS);
	for (int i = 0; i < MEMBERS; i++) {
		assert_true(nic_cookies_has(&set, cookie[i]));
		close(fd[i]);
	}
	nic_cookies_fini(&set);
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_cookie_is_in_the_set_once),
        cmocka_unit_test(test_no_shadow_is_no_member),
        cmocka_unit_test(test_members_that_come_and_go_leave_room),
        cmocka_unit_test(test_many_members_at_a_time_all_stay),
};

VMA_TEST_MAIN(tests)
