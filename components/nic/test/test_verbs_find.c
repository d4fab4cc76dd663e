/* Interface to RDMA device, on a tree like that of sysfs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
	        CASE(test_the_tree_is_the_one_that_the_environment_names),
	        CASE(test_what_is_no_vlan_carries_itself),
	};

	vma_test_set_filter_from_env();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
