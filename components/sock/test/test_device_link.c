/* What the kernel says of an interface decides whether it is opened at all; and where vmad is looked for. */
#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vma/sock_engine.h>
#include <vma/test.h>

static struct vma_conf conf;
static const struct vma_net_link usable_link = {.flags = IFF_UP, .hw_type = ARPHRD_ETHER, .name = "eth0"};

static int check_link_and_expect_reason(struct vma_net_link link, const char *wanted)
{
	const char *why = NULL;
	int rc;

	vma_conf_load_without_warnings(&conf, NULL);
	rc = vma_device_check_link(&conf, &link, &why);
	assert_string_equal(why, wanted);
	return rc;
}

static void test_ethernet_that_is_up_is_opened(void **state)
{
	(void)state;
	assert_int_equal(check_link_and_expect_reason(usable_link, ""), 0);
}

static void test_what_is_never_opened_says_why(void **state)
{
	struct vma_net_link link = usable_link;

	(void)state;
	link.flags |= IFF_LOOPBACK;
	assert_int_equal(check_link_and_expect_reason(link, "it is the loopback interface"), -EOPNOTSUPP);
	link = usable_link;
	link.hw_type = ARPHRD_NONE;
	assert_int_equal(check_link_and_expect_reason(link, "it is not Ethernet"), -EOPNOTSUPP);
	link = usable_link;
	link.vlan = 5;
	assert_int_equal(check_link_and_expect_reason(link, "it is a VLAN interface"), -EOPNOTSUPP);
}

static void test_what_is_down_may_come_up(void **state)
{
	struct vma_net_link link = usable_link;

	(void)state;
	link.flags = 0;
	assert_int_equal(check_link_and_expect_reason(link, "it is down"), -ENETDOWN);
}

static void test_none_opens_nothing(void **state)
{
	char *const env[] = {"VMA_NIC=none", NULL};
	const char *why;

	(void)state;
	vma_conf_load_without_warnings(&conf, env);
	assert_int_equal(vma_device_check_link(&conf, &usable_link, &why), -EOPNOTSUPP);
	assert_string_equal(why, "VMA_NIC is none");
}

/* ---- vmad ---- */

static char root[32];

static void make_file(const char *name, mode_t mode)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fclose(file);
	chmod(path, mode);
}

static int make_tree(void **state)
{
	static const char *const folders[] = {"bin", "sbin", "lib", "lib/multi", "build", "build/bin"};
	char path[128];

	(void)state;
	strcpy(root, "/tmp/vma-test-XXXXXX");
	if (mkdtemp(root) == NULL)
		return -1;
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", root, folders[i]);
		mkdir(path, 0755);
	}
	make_file("lib/libvma.so", 0644);
	make_file("lib/multi/libvma.so", 0644);
	make_file("build/libvma.so", 0644);
	return 0;
}

static int remove_tree(void **state)
{
	static const char *const names[] = {"sbin/vmad",
	                                    "bin/vmad",
	                                    "build/bin/vmad",
	                                    "lib/multi/libvma.so",
	                                    "build/libvma.so",
	                                    "build/bin",
	                                    "lib/libvma.so",
	                                    "lib/multi",
	                                    "build",
	                                    "lib",
	                                    "sbin",
	                                    "bin",
	                                    ""};
	char path[128];

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", root, names[i]);
		remove(path);
	}
	return 0;
}

/* Whether the vmad that belongs to a library of the tree is this one of the tree; "": none of the tree. */
static void assert_vmad_found_for_library(const char *library, const char *wanted)
{
	char name[128], found[256], whole[4096] = "", expected[128] = "";

	snprintf(name, sizeof(name), "%s/%s", root, library);
	vma_engine_find_vmad(name, found, sizeof(found));
	if (*wanted != '\0')
		snprintf(expected, sizeof(expected), "%s/%s", root, wanted);
	if (strncmp(found, root, strlen(root)) == 0)
		assert_non_null(realpath(found, whole));
	assert_string_equal(whole, expected);
}

static void test_vmad_is_looked_for_beside_the_library(void **state)
{
	(void)state;
	assert_vmad_found_for_library("lib/libvma.so", "");
	make_file("bin/vmad", 0644);
	assert_vmad_found_for_library("lib/libvma.so", ""); /* it is not executable */
	make_file("sbin/vmad", 0755);
	assert_vmad_found_for_library("lib/libvma.so", "sbin/vmad");
	assert_vmad_found_for_library("lib/multi/libvma.so", "sbin/vmad");
	assert_vmad_found_for_library("build/libvma.so", "sbin/vmad");
	make_file("build/bin/vmad", 0755);
	assert_vmad_found_for_library("build/libvma.so", "build/bin/vmad");
	assert_vmad_found_for_library("lib/libvma.so", "sbin/vmad");
}

static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ethernet_that_is_up_is_opened),
        cmocka_unit_test(test_what_is_never_opened_says_why),
        cmocka_unit_test(test_what_is_down_may_come_up),
        cmocka_unit_test(test_none_opens_nothing),
        cmocka_unit_test_setup_teardown(test_vmad_is_looked_for_beside_the_library, make_tree, remove_tree),
};
VMA_TEST_MAIN(tests)
