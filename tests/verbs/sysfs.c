/*
 * The tree that libibverbs reads in place of /sys: SYSFS_PATH names it. It says which devices there are, and what a
 * program reads of them without a request: addresses, and the network interface behind a port.
 */
#include "card.h"
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define NO_GID_HALF "0000:0000:0000:0000"

static const char *sysfs_root_folder;

/* Makes the folders above a path, too. */
static int fake_sysfs_write_file(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fake_sysfs_write_file(const char *path, const char *format, ...)
{
	char full[512];
	va_list args;
	FILE *file;
	size_t root = strlen(sysfs_root_folder);

	if (snprintf(full, sizeof(full), "%s/%s", sysfs_root_folder, path) >= (int)sizeof(full))
		return -1;
	for (char *slash = strchr(full + root + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(full, 0755) && errno != EEXIST)
			return -1;
		*slash = '/';
	}
	file = fopen(full, "we");
	if (!file)
		return -1;
	va_start(args, format);
	vfprintf(file, format, args);
	va_end(args);
	return fclose(file);
}

static int fake_sysfs_write_device_file(const char *folder, const char *name, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
static int fake_sysfs_write_device_file(const char *folder, const char *name, const char *format, ...)
{
	char path[256], value[256];
	va_list args;

	va_start(args, format);
	vsnprintf(value, sizeof(value), format, args);
	va_end(args);
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return fake_sysfs_write_file(path, "%s\n", value);
}

/*
 * The port's two GIDs are its link-local address (RFC 4291, appendix A), for both versions of RoCE. The other entries of
 * the table are empty. Of such an entry the kernel lets no type and no interface be read; libibverbs takes that for the
 * type that is written here.
 */
int fake_sysfs_create_card_tree(const char *folder, int index, const char *socket_path)
{
	const uint8_t *mac = card.mac;
	char uverbs[64], ib[64], guid[64];
	struct stat device;
	int failed = 0;

	sysfs_root_folder = folder;
	if (stat(CARD_NODE, &device) || (mkdir(folder, 0755) && errno != EEXIST))
		return -1;
	snprintf(uverbs, sizeof(uverbs), "class/infiniband_verbs/uverbs%d", index);
	snprintf(ib, sizeof(ib), "class/infiniband/%s", card.name);
	snprintf(guid, sizeof(guid), "%02x%02x:%02xff:fe%02x:%02x%02x", mac[0] ^ 2, mac[1], mac[2], mac[3], mac[4],
	         mac[5]);
	failed |= fake_sysfs_write_file("class/infiniband_verbs/abi_version", "6\n");
	failed |= fake_sysfs_write_device_file(uverbs, "ibdev", "%s", card.name);
	failed |= fake_sysfs_write_device_file(uverbs, "abi_version", "1");
	/* The device node is one more /dev/zero: it is needed to be opened, mapped and locked. */
	failed |= fake_sysfs_write_device_file(uverbs, "dev", "%u:%u", major(device.st_rdev), minor(device.st_rdev));
	failed |= fake_sysfs_write_device_file(ib, "node_type", "1: CA");
	failed |= fake_sysfs_write_device_file(ib, "node_guid", "%s", guid);
	failed |= fake_sysfs_write_device_file(ib, "sys_image_guid", "%s", guid);
	failed |= fake_sysfs_write_device_file(ib, "node_desc", "network card made of software");
	failed |= fake_sysfs_write_device_file(ib, "fw_ver", "1.0.0");
	failed |= fake_sysfs_write_device_file(ib, "card", "%s", socket_path);
	failed |= fake_sysfs_write_device_file(ib, "ports/1/link_layer", "Ethernet");
	failed |= fake_sysfs_write_device_file(ib, "ports/1/state", "4: ACTIVE");
	failed |= fake_sysfs_write_device_file(ib, "ports/1/pkeys/0", "0xffff");
	for (int i = 0; i < CARD_MAX_GIDS; i++) {
		const bool used = i < CARD_USED_GIDS;
		char path[64];

		snprintf(path, sizeof(path), "ports/1/gids/%d", i);
		failed |= fake_sysfs_write_device_file(ib, path, "%s:%s", used ? "fe80:0000:0000:0000" : NO_GID_HALF,
		                                       used ? guid : NO_GID_HALF);
		snprintf(path, sizeof(path), "ports/1/gid_attrs/ndevs/%d", i);
		failed |= fake_sysfs_write_device_file(ib, path, "%s", used ? card.tap_name : "");
		snprintf(path, sizeof(path), "ports/1/gid_attrs/types/%d", i);
		failed |= fake_sysfs_write_device_file(ib, path, "%s", i == 1 ? "RoCE v2" : "IB/RoCE v1");
	}
	return failed ? -1 : 0;
}
