/* Memberships and filters as the kernel has them, and the host's members. */
#include "control_fixture.h"

#include <stdio.h>
#include <sys/mman.h>

#include "../members.h"

static int fd;

static int setup_multicast_socket(void **state)
{
	(void)state;
	fixture_reset();
	fd = fixture_open_offloaded_udp_socket();
	return 0;
}

static int teardown_multicast_socket(void **state)
{
	(void)state;
	control_fixture_close(fd);
	return 0;
}

static bool group_accepts_source(const char *group, const char *src, uint32_t ifindex)
{
	return udp_multicast_filter_accepts_source(control_fixture_sock_of(fd), control_fixture_parse_ip(group),
	                                           control_fixture_parse_ip(src), ifindex);
}

static int set_source_membership(int name, const char *group, const char *src)
{
	const struct ip_mreq_source request = {.imr_multiaddr.s_addr = control_fixture_parse_ip(group),
	                                       .imr_interface.s_addr = htonl(INADDR_LOOPBACK),
	                                       .imr_sourceaddr.s_addr = control_fixture_parse_ip(src)};
	struct vma_thread *self = vma_enter();
	int rc = udp_setsockopt(vma_fd_lookup(fd), fd, IPPROTO_IP, name, &request, sizeof(request));

	vma_leave(self);
	return rc;
}

static unsigned count_memberships(void)
{
	const struct udp_groups *groups = atomic_load(&control_fixture_sock_of(fd)->groups);

	return groups != NULL ? groups->n : 0;
}

static void test_a_socket_without_memberships_takes_what_others_joined_unless_it_says_no(void **state)
{
	(void)state;
	assert_true(group_accepts_source("239.2.0.1", "10.77.0.2", LAN));
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0), 0);
	assert_false(group_accepts_source("239.2.0.1", "10.77.0.2", LAN));
	assert_int_equal(control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MULTICAST_ALL, 1), 0);
	assert_true(group_accepts_source("239.2.0.1", "10.77.0.2", LAN));
}

static void test_a_member_takes_all_sources_on_its_interface_only(void **state)
{
	(void)state;
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
	assert_int_equal(control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.2.0.2"), 0);
	assert_true(group_accepts_source("239.2.0.2", "10.77.0.2", LAN));
	assert_false(group_accepts_source("239.2.0.2", "10.77.0.2", 7));
	assert_false(group_accepts_source("239.2.0.3", "10.77.0.2", LAN));
	assert_int_equal(control_fixture_set_membership(fd, IP_DROP_MEMBERSHIP, "239.2.0.2"), 0);
	assert_false(group_accepts_source("239.2.0.2", "10.77.0.2", LAN));
}

static void test_the_kernel_s_refusal_is_the_answer_and_changes_nothing(void **state)
{
	(void)state;
	assert_int_equal(control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.2.0.2"), 0);
	assert_int_equal(control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.2.0.2"), -EADDRINUSE);
	assert_int_equal(control_fixture_set_membership(fd, IP_DROP_MEMBERSHIP, "239.2.0.9"), -EADDRNOTAVAIL);
	assert_int_equal(control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "10.1.1.1"), -EINVAL);
	assert_int_equal(count_memberships(), 1);
}

static void test_sources_that_were_asked_for_and_no_others(void **state)
{
	(void)state;
	assert_int_equal(set_source_membership(IP_ADD_SOURCE_MEMBERSHIP, "232.2.0.1", "10.77.0.2"), 0);
	assert_int_equal(set_source_membership(IP_ADD_SOURCE_MEMBERSHIP, "232.2.0.1", "10.77.0.3"), 0);
	assert_true(group_accepts_source("232.2.0.1", "10.77.0.2", LAN));
	assert_true(group_accepts_source("232.2.0.1", "10.77.0.3", LAN));
	assert_false(group_accepts_source("232.2.0.1", "10.77.0.4", LAN));
	assert_int_equal(set_source_membership(IP_DROP_SOURCE_MEMBERSHIP, "232.2.0.1", "10.77.0.2"), 0);
	assert_false(group_accepts_source("232.2.0.1", "10.77.0.2", LAN));
	assert_true(group_accepts_source("232.2.0.1", "10.77.0.3", LAN));
}

static void test_dropping_the_last_source_leaves_the_group(void **state)
{
	(void)state;
	set_source_membership(IP_ADD_SOURCE_MEMBERSHIP, "232.2.0.2", "10.77.0.2");
	assert_int_equal(count_memberships(), 1);
	assert_int_equal(set_source_membership(IP_DROP_SOURCE_MEMBERSHIP, "232.2.0.2", "10.77.0.2"), 0);
	assert_int_equal(count_memberships(), 0);
}

static void test_blocked_sources_are_not_heard_until_unblocked(void **state)
{
	(void)state;
	control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.2.0.4");
	assert_int_equal(set_source_membership(IP_BLOCK_SOURCE, "239.2.0.4", "10.77.0.2"), 0);
	assert_false(group_accepts_source("239.2.0.4", "10.77.0.2", LAN));
	assert_true(group_accepts_source("239.2.0.4", "10.77.0.3", LAN));
	assert_int_equal(set_source_membership(IP_UNBLOCK_SOURCE, "239.2.0.4", "10.77.0.2"), 0);
	assert_true(group_accepts_source("239.2.0.4", "10.77.0.2", LAN));
}

static void test_a_whole_filter_is_set_at_once_by_either_name(void **state)
{
	struct {
		struct ip_msfilter head;
		struct in_addr more;
	} filter = {.head = {.imsf_multiaddr.s_addr = control_fixture_parse_ip("239.2.0.5"),
	                     .imsf_interface.s_addr = htonl(INADDR_LOOPBACK),
	                     .imsf_fmode = MCAST_INCLUDE,
	                     .imsf_numsrc = 2}};
	struct vma_thread *self = vma_enter();

	(void)state;
	filter.head.imsf_slist[0].s_addr = control_fixture_parse_ip("10.77.0.5");
	(&filter.head.imsf_slist[0])[1].s_addr = control_fixture_parse_ip("10.77.0.6");
	control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.2.0.5");
	assert_int_equal(udp_setsockopt(vma_fd_lookup(fd), fd, IPPROTO_IP, IP_MSFILTER, &filter, IP_MSFILTER_SIZE(2)),
	                 0);
	vma_leave(self);
	assert_true(group_accepts_source("239.2.0.5", "10.77.0.6", LAN));
	assert_false(group_accepts_source("239.2.0.5", "10.77.0.7", LAN));
}

static int set_membership_by_group_req(int name, const char *group)
{
	struct group_req request = {.gr_interface = LAN};
	const struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = control_fixture_parse_ip(group)};
	struct vma_thread *self = vma_enter();
	int rc;

	memcpy(&request.gr_group, &to, sizeof(to));
	rc = udp_setsockopt(vma_fd_lookup(fd), fd, IPPROTO_IP, name, &request, sizeof(request));
	vma_leave(self);
	return rc;
}

static void test_the_protocol_independent_names_do_the_same(void **state)
{
	(void)state;
	control_fixture_setsockopt_int(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
	assert_int_equal(set_membership_by_group_req(MCAST_JOIN_GROUP, "239.2.0.6"), 0);
	assert_true(group_accepts_source("239.2.0.6", "10.77.0.2", LAN));
	assert_int_equal(set_membership_by_group_req(MCAST_LEAVE_GROUP, "239.2.0.6"), 0);
	assert_false(group_accepts_source("239.2.0.6", "10.77.0.2", LAN));
}

static void test_more_sources_than_fit_one_answer_are_all_known(void **state)
{
	enum { SOURCES = 40 }; /* the kernel's own bound, igmp_max_msf, may be lower: what it takes is known */
	char text[32];
	int taken = 0;

	(void)state;
	for (int i = 0; i < SOURCES; i++) {
		snprintf(text, sizeof(text), "10.77.1.%d", i + 1);
		taken += set_source_membership(IP_ADD_SOURCE_MEMBERSHIP, "232.2.0.3", text) == 0;
	}
	assert_true(taken > 0);
	for (int i = 0; i < SOURCES; i++) {
		snprintf(text, sizeof(text), "10.77.1.%d", i + 1);
		assert_int_equal(group_accepts_source("232.2.0.3", text, LAN), i < taken);
	}
}

static void test_a_bad_pointer_is_efault_and_changes_nothing(void **state)
{
	struct vma_thread *self = vma_enter();

	(void)state;
	fixture_restore_library_fault_handlers();
	assert_int_equal(udp_setsockopt(vma_fd_lookup(fd), fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, NULL, 12), -EFAULT);
	vma_leave(self);
	assert_int_equal(count_memberships(), 0);
}

/* ---- the host's members ---- */

static struct members *read_igmp_members_from_text(const char *text)
{
	int file = memfd_create("igmp", MFD_CLOEXEC);
	struct members *set;

	assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
	lseek(file, 0, SEEK_SET);
	set = udp_mcast_members_read_proc_igmp(file);
	close(file);
	return set;
}

static void test_the_kernel_s_list_is_read_by_interface(void **state)
{
	struct members *set =
	        read_igmp_members_from_text("Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n"
	                                    "1\tlo        :     1      V3\n"
	                                    "\t\t\t\t010000E0     1 0:00000000\t\t0\n"
	                                    "12\teth0      :     2      V3\n"
	                                    "\t\t\t\t010101EF     1 0:00000000\t\t0\n"
	                                    "\t\t\t\t010000E0     1 0:00000000\t\t0\n");

	(void)state;
	assert_non_null(set);
	assert_true(udp_mcast_members_set_has(set, control_fixture_parse_ip("239.1.1.1"), 12));
	assert_false(udp_mcast_members_set_has(set, control_fixture_parse_ip("239.1.1.1"), 1));
	assert_true(udp_mcast_members_set_has(set, control_fixture_parse_ip("224.0.0.1"), 1));
	assert_false(udp_mcast_members_set_has(set, control_fixture_parse_ip("239.1.1.2"), 12));
	vma_free(set);
}

static void test_a_list_of_thousands_is_read_to_its_end_and_rubbish_does_no_harm(void **state)
{
	static char text[200000];
	size_t len = 0;
	struct members *set;

	(void)state;
	len += (size_t)sprintf(text, "heading\nnonsense\n\n\t\t\tzz\n7\tx : 1 V3\n");
	for (unsigned i = 0; i < 3000; i++)
		len += (size_t)sprintf(text + len, "\t\t\t\t%02X%02X02EF     1 0:00000000\t\t0\n", i % 256, i / 256);
	memset(text + len, 'x', 5000); /* a line longer than any */
	text[len + 5000] = '\0';
	set = read_igmp_members_from_text(text);
	assert_non_null(set);
	for (unsigned i = 0; i < 3000; i++)
		assert_true(udp_mcast_members_set_has(set, htonl(0xef020000u | (i / 256) << 8 | i % 256), 7));
	assert_false(udp_mcast_members_set_has(set, control_fixture_parse_ip("239.3.0.0"), 7));
	vma_free(set);
}

static bool group_has_local_members_on(const char *group, uint32_t ifindex)
{
	struct vma_thread *self = vma_enter();
	bool answer = udp_group_has_local_members(control_fixture_parse_ip(group), ifindex);

	vma_leave(self);
	return answer;
}

static bool group_has_local_members_on_lan(const char *group)
{
	return group_has_local_members_on(group, LAN);
}

/*
 * The answer is "yes", too, while the list cannot be had in time: a reading took long, or another thread reads. So "no"
 * is waited for, 5 seconds at most.
 */
static bool group_has_no_members_within_time(const char *group, uint32_t ifindex)
{
	for (int i = 0; i < 1000; i++, usleep(5000)) {
		if (!group_has_local_members_on(group, ifindex))
			return true;
	}
	return false;
}

/* A "yes" right after this comes from the list, which is younger than 100 ms. */
static bool wait_until_igmp_list_was_read_again(void)
{
	return group_has_no_members_within_time("239.2.0.29", LAN); /* nobody's group */
}

static void test_a_join_of_this_process_is_known_at_once(void **state)
{
	(void)state;
	assert_true(group_has_no_members_within_time("239.2.0.20", LAN)); /* the list is fresh from here on */
	control_fixture_set_membership(fd, IP_ADD_MEMBERSHIP, "239.2.0.20");
	assert_true(group_has_local_members_on_lan("239.2.0.20"));
	assert_true(wait_until_igmp_list_was_read_again());
	assert_true(group_has_local_members_on_lan("239.2.0.20"));
	assert_true(group_has_no_members_within_time("239.2.0.20", 7));
}

static void test_a_member_that_we_do_not_know_of_is_seen_soon_and_so_is_its_end(void **state)
{
	const struct ip_mreqn request = {.imr_multiaddr.s_addr = control_fixture_parse_ip("239.2.0.21"),
	                                 .imr_ifindex = LAN};
	int other = vma_os.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	(void)state;
	assert_true(group_has_no_members_within_time("239.2.0.21", LAN));
	assert_int_equal(vma_os.setsockopt(other, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof(request)), 0);
	usleep(150000);
	assert_true(group_has_local_members_on_lan("239.2.0.21"));
	assert_true(wait_until_igmp_list_was_read_again());
	assert_true(group_has_local_members_on_lan("239.2.0.21"));
	vma_os.close(other);
	assert_true(group_has_no_members_within_time("239.2.0.21", LAN));
}

#define T(name) cmocka_unit_test_setup_teardown(test_##name, setup_multicast_socket, teardown_multicast_socket)
static const struct CMUnitTest tests[] = {
        T(a_socket_without_memberships_takes_what_others_joined_unless_it_says_no),
        T(a_member_takes_all_sources_on_its_interface_only),
        T(the_kernel_s_refusal_is_the_answer_and_changes_nothing),
        T(sources_that_were_asked_for_and_no_others),
        T(dropping_the_last_source_leaves_the_group),
        T(blocked_sources_are_not_heard_until_unblocked),
        T(a_whole_filter_is_set_at_once_by_either_name),
        T(the_protocol_independent_names_do_the_same),
        T(more_sources_than_fit_one_answer_are_all_known),
        T(a_bad_pointer_is_efault_and_changes_nothing),
        T(the_kernel_s_list_is_read_by_interface),
        T(a_list_of_thousands_is_read_to_its_end_and_rubbish_does_no_harm),
        T(a_join_of_this_process_is_known_at_once),
        T(a_member_that_we_do_not_know_of_is_seen_soon_and_so_is_its_end),
};

FIXTURE_MAIN("multicast", tests)
