/* Interface to RDMA device, on a tree like that of sysfs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/test.h>

#include "../verbs/find.h"

static char root[64];

static void put_gid_in_fake_sysfs(const char *device, unsigned port, unsigned index, const char *ifname)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "mkdir -p %s/class/infiniband/%s/ports/%u/gid_attrs/ndevs", root, device, port);
	assert_int_equal(system(path), 0);
	snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%u/gid_attrs/ndevs/%u", root, device, port, index);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(ifname, file);
	fclose(file);
}

static int setup(void **state)
{
	(void)state;
	strcpy(root, "/tmp/vma-find.XXXXXX");
	return mkdtemp(root) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	unsetenv("SYSFS_PATH");
	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

static void test_a_tree_without_devices_has_none(void **state)
{
	struct verbs_device_port place;
	char path[128];

	(void)state;
	assert_false(verbs_has_any_device(root));
	assert_int_equal(verbs_find_device_of_interface(root, "eth0", &place), -ENODEV);
	snprintf(path, sizeof(path), "mkdir -p %s/class/infiniband", root);
	assert_int_equal(system(path), 0);
	assert_false(verbs_has_any_device(root));
	assert_int_equal(verbs_find_device_of_interface(root, "eth0", &place), -ENODEV);
}

static void test_device_and_port_are_found_by_any_entry_of_the_table(void **state)
{
	struct verbs_device_port place;

	(void)state;
	put_gid_in_fake_sysfs("mlx5_0", 1, 0, "eth0\n");
	put_gid_in_fake_sysfs("mlx5_0", 1, 1, "eth0\n");
	put_gid_in_fake_sysfs("mlx5_1", 1, 0, "eth1\n");
	put_gid_in_fake_sysfs("mlx5_1", 2, 0, "");
	put_gid_in_fake_sysfs("mlx5_1", 2, 1, "eth2\n");
	assert_true(verbs_has_any_device(root));
	assert_int_equal(verbs_find_device_of_interface(root, "eth0", &place), 0);
	assert_string_equal(place.device, "mlx5_0");
	assert_int_equal(place.port, 1);
	assert_int_equal(verbs_find_device_of_interface(root, "eth1", &place), 0);
	assert_string_equal(place.device, "mlx5_1");
	assert_int_equal(place.port, 1);
	assert_int_equal(verbs_find_device_of_interface(root, "eth2", &place), 0);
	assert_string_equal(place.device, "mlx5_1");
	assert_int_equal(place.port, 2);
}

static void test_a_name_is_compared_as_a_whole(void **state)
{
	struct verbs_device_port place;

	(void)state;
	put_gid_in_fake_sysfs("mlx5_0", 1, 0, "eth10\n");
	put_gid_in_fake_sysfs("mlx5_0", 1, 1, "a-name-that-is-longer-than-any\n");
	assert_int_equal(verbs_find_device_of_interface(root, "eth1", &place), -ENODEV);
	assert_int_equal(verbs_find_device_of_interface(root, "eth100", &place), -ENODEV);
	assert_int_equal(verbs_find_device_of_interface(root, "eth10", &place), 0);
}

static unsigned lowest_free_fd(void)
{
	const int fd = dup(0);

	assert_true(fd >= 0);
	close(fd);
	return (unsigned)fd;
}

/* The interface may have a device all the same. */
static void test_a_process_without_descriptors_does_not_take_that_for_an_answer(void **state)
{
	struct verbs_device_port place;
	struct rlimit before, limit;
	bool any;
	int rc;

	(void)state;
	put_gid_in_fake_sysfs("mlx5_0", 1, 0, "eth0\n");
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	for (unsigned free_fds = 0; free_fds < 4; free_fds++) {
		limit.rlim_cur = lowest_free_fd() + free_fds;
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
		any = verbs_has_any_device(root);
		rc = verbs_find_device_of_interface(root, "eth0", &place);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
		assert_true(any);
		assert_int_equal(rc, free_fds < 3 ? -EMFILE : 0);
	}
}

/* ---- bonds ---- */

static void run(const char *format, const char *a, const char *b)
{
	char command[512];

	snprintf(command, sizeof(command), "cd %s && ", root);
	snprintf(command + strlen(command), sizeof(command) - strlen(command), format, a, b);
	assert_int_equal(system(command), 0);
}

static void put_bond_in_fake_sysfs(const char *ifname, const char *interfaces)
{
	run("mkdir -p class/net/%1$s/bonding && echo '%2$s' >class/net/%1$s/bonding/slaves", ifname, interfaces);
}

static void put_interface_in_fake_sysfs(const char *ifname, const char *pci, bool has_rdma_device)
{
	run("mkdir -p devices/%2$s class/net/%1$s && ln -s ../../../devices/%2$s class/net/%1$s/device", ifname, pci);
	if (has_rdma_device)
		run("mkdir class/net/%s/device/infiniband", ifname, "");
}

static void test_a_bond_that_its_card_carries_has_the_device_of_both_functions(void **state)
{
	struct verbs_device_port place;

	(void)state;
	put_bond_in_fake_sysfs("bond0", "eth0 eth1");
	put_interface_in_fake_sysfs("eth0", "0000:03:00.0", true);
	put_interface_in_fake_sysfs("eth1", "0000:03:00.1", false);
	put_gid_in_fake_sysfs("mlx5_bond_0", 1, 0, "bond0\n");
	assert_int_equal(verbs_find_device_of_interface(root, "bond0", &place), 0);
	assert_string_equal(place.device, "mlx5_bond_0");
}

/* The kernel lists a bond's addresses at the devices of its interfaces, too. */
static void test_a_bond_of_two_devices_is_none_of_them(void **state)
{
	struct verbs_device_port place;

	(void)state;
	put_bond_in_fake_sysfs("bond0", "eth0 eth1");
	put_interface_in_fake_sysfs("eth0", "0000:03:00.0", true);
	put_interface_in_fake_sysfs("eth1", "0000:03:00.1", true);
	put_gid_in_fake_sysfs("mlx5_0", 1, 0, "eth0\n");
	put_gid_in_fake_sysfs("mlx5_1", 1, 0, "eth1\n");
	assert_int_equal(verbs_find_device_of_interface(root, "bond0", &place), -EXDEV);
	put_gid_in_fake_sysfs("mlx5_0", 1, 1, "bond0\n");
	assert_int_equal(verbs_find_device_of_interface(root, "bond0", &place), -EXDEV);
	put_gid_in_fake_sysfs("mlx5_1", 1, 1, "bond0\n");
	assert_int_equal(verbs_find_device_of_interface(root, "bond0", &place), -EXDEV);
	assert_int_equal(verbs_find_device_of_interface(root, "eth1", &place), 0);
	assert_string_equal(place.device, "mlx5_1");
}

static void test_a_bond_of_two_cards_is_no_device(void **state)
{
	struct verbs_device_port place;

	(void)state;
	put_bond_in_fake_sysfs("bond0", "eth0 eth1");
	put_interface_in_fake_sysfs("eth0", "0000:03:00.0", true);
	put_interface_in_fake_sysfs("eth1", "0000:04:00.0", false);
	put_gid_in_fake_sysfs("mlx5_0", 1, 0, "bond0\n");
	assert_int_equal(verbs_find_device_of_interface(root, "bond0", &place), -EXDEV);
}

static void test_a_bond_without_rdma_devices_is_an_interface_without_one(void **state)
{
	struct verbs_device_port place;

	(void)state;
	put_bond_in_fake_sysfs("bond0", "eth0 tap0");
	put_interface_in_fake_sysfs("eth0", "0000:03:00.0", false);
	put_gid_in_fake_sysfs("mlx5_0", 1, 0, "eth7\n");
	assert_int_equal(verbs_find_device_of_interface(root, "bond0", &place), -ENODEV);
	put_bond_in_fake_sysfs("bond1", "");
	assert_int_equal(verbs_find_device_of_interface(root, "bond1", &place), -ENODEV);
}

static void test_the_tree_is_the_one_that_the_environment_names(void **state)
{
	(void)state;
	assert_string_equal(verbs_sysfs_path(), "/sys");
	setenv("SYSFS_PATH", root, 1);
	assert_string_equal(verbs_sysfs_path(), root);
	setenv("SYSFS_PATH", "", 1);
	assert_string_equal(verbs_sysfs_path(), "/sys");
}

static void test_what_is_no_vlan_carries_itself(void **state)
{
	char lower[IF_NAMESIZE];

	(void)state;
	verbs_vlan_lower_interface("lo", lower);
	assert_string_equal(lower, "lo");
	verbs_vlan_lower_interface("none-such", lower);
	assert_string_equal(lower, "none-such");
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CASE(test_a_tree_without_devices_has_none),
	        CASE(test_device_and_port_are_found_by_any_entry_of_the_table),
	        CASE(test_a_name_is_compared_as_a_whole),
	        CASE(test_a_process_without_descriptors_does_not_take_that_for_an_answer),
	        CASE(test_a_bond_that_its_card_carries_has_the_device_of_both_functions),
	        CASE(test_a_bond_of_two_devices_is_none_of_them),
	        CASE(test_a_bond_of_two_cards_is_no_device),
	        CASE(test_a_bond_without_rdma_devices_is_an_interface_without_one),
	        CASE(test_the_tree_is_the_one_that_the_environment_names),
	        CASE(test_what_is_no_vlan_carries_itself),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
