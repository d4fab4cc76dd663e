/* find - sysfs is read with plain calls: a look at an interface without RDMA device costs one failed opendir. */
#include <dirent.h>
#include <errno.h>
#include <linux/if_vlan.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../os.h"
#include "find.h"

#define GIDS_MAX 1024
#define PATH_BYTES 512

const char *verbs_sysfs_path(void)
{
	const char *path = secure_getenv("SYSFS_PATH"); /* as libibverbs does */

	return path != NULL && *path != '\0' ? path : "/sys";
}

static DIR *open_infiniband_sysfs_dir(const char *sysfs)
{
	char path[PATH_BYTES];

	snprintf(path, sizeof(path), "%s/class/infiniband", sysfs);
	return opendir(path);
}

static const char *readdir_next_name(DIR *dir)
{
	const struct dirent *entry;

	do
		entry = readdir(dir);
	while (entry != NULL && entry->d_name[0] == '.');
	return entry != NULL ? entry->d_name : NULL;
}

/* It says nothing of the tree. */
static bool error_is_own_lack(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM;
}

bool verbs_has_any_device(const char *sysfs)
{
	DIR *devices = open_infiniband_sysfs_dir(sysfs);
	bool any;

	if (devices == NULL)
		return error_is_own_lack(errno);
	any = readdir_next_name(devices) != NULL;
	closedir(devices);
	return any;
}

/* 1: it is this one; 0: another one, or an entry that is not in use; -ENOENT: the table ends before it; -EMFILE, ... */
static int gid_entry_is_of_interface(const char *ports, unsigned port, unsigned index, const char *ifname)
{
	char path[PATH_BYTES + 64], text[IF_NAMESIZE + 2];
	ssize_t len;
	int fd, rc;

	snprintf(path, sizeof(path), "%s/%u/gid_attrs/ndevs/%u", ports, port, index);
	fd = os_open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || error_is_own_lack(errno) ? -errno : 0;
	len = os_read(fd, text, sizeof(text) - 1);
	os_close(fd);
	if (len <= 0)
		return 0;
	text[len] = '\0';
	text[strcspn(text, "\n")] = '\0';
	rc = strcmp(text, ifname) == 0;
	return rc;
}

/* 1, 0, or -errno: this process lacks something. */
static int rdma_port_is_of_interface(const char *ports, unsigned port, const char *ifname)
{
	int rc = 0;

	for (unsigned index = 0; index < GIDS_MAX && rc == 0; index++)
		rc = gid_entry_is_of_interface(ports, port, index, ifname);
	return rc == -ENOENT ? 0 : rc;
}

/* The lowest port that has the interface; 0: none; -errno: this process lacks something. */
static int find_rdma_port_of_interface(const char *ports, const char *ifname)
{
	DIR *dir = opendir(ports);
	const char *name;
	int found = 0, rc = 0;

	if (dir == NULL)
		return error_is_own_lack(errno) ? -errno : 0;
	while (rc >= 0 && (name = readdir_next_name(dir)) != NULL) {
		const unsigned long port = strtoul(name, NULL, 10);

		if (port == 0 || port > UINT8_MAX || (found != 0 && port >= (unsigned)found))
			continue;
		rc = rdma_port_is_of_interface(ports, (unsigned)port, ifname);
		if (rc == 1)
			found = (int)port;
	}
	closedir(dir);
	return rc < 0 ? rc : found;
}

static int find_device_in_gid_tables(const char *sysfs, const char *ifname, struct verbs_device_port *out)
{
	DIR *devices = open_infiniband_sysfs_dir(sysfs);
	char ports[PATH_BYTES];
	const char *name;
	int port = 0;

	if (devices == NULL)
		return error_is_own_lack(errno) ? -errno : -ENODEV;
	while (port == 0 && (name = readdir_next_name(devices)) != NULL) {
		if (strlen(name) >= sizeof(out->device))
			continue;
		snprintf(ports, sizeof(ports), "%s/class/infiniband/%s/ports", sysfs, name);
		port = find_rdma_port_of_interface(ports, ifname);
		if (port > 0) {
			strcpy(out->device, name);
			out->port = (uint8_t)port;
		}
	}
	closedir(devices);
	return port > 0 ? 0 : port < 0 ? port : -ENODEV;
}

/* ---- bonds ---- */

/* Their names with a space between them. False: the interface is no bond. */
static bool read_interfaces_of_bond(const char *sysfs, const char *ifname, char *names, size_t size)
{
	char path[PATH_BYTES];
	ssize_t len;
	int fd;

	snprintf(path, sizeof(path), "%s/class/net/%s/bonding/slaves", sysfs, ifname);
	fd = os_open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	len = os_read(fd, names, size - 1);
	os_close(fd);
	names[len > 0 ? len : 0] = '\0';
	names[strcspn(names, "\n")] = '\0';
	return true;
}

static bool interface_has_own_rdma_device(const char *sysfs, const char *ifname)
{
	char path[PATH_BYTES];
	DIR *dir;

	snprintf(path, sizeof(path), "%s/class/net/%s/device/infiniband", sysfs, ifname);
	dir = opendir(path);
	if (dir != NULL)
		closedir(dir);
	return dir != NULL;
}

/* Its PCI address without the function; "": it has none. */
static void read_card_of_interface(const char *sysfs, const char *ifname, char *card, size_t size)
{
	char path[PATH_BYTES], target[PATH_BYTES];
	const char *name;
	ssize_t len;

	snprintf(path, sizeof(path), "%s/class/net/%s/device", sysfs, ifname);
	len = readlink(path, target, sizeof(target) - 1);
	target[len > 0 ? len : 0] = '\0';
	name = strrchr(target, '/');
	name = name != NULL ? name + 1 : target;
	snprintf(card, size, "%.*s", (int)strcspn(name, "."), name);
}

/* How many of a bond's interfaces have devices of their own; *is_of_one_card: all are functions of one card. */
static unsigned count_rdma_devices_of_bond(const char *sysfs, char *names, bool *is_of_one_card)
{
	char first[PATH_BYTES] = "", card[PATH_BYTES], *rest;
	unsigned interfaces = 0, devices = 0;

	*is_of_one_card = true;
	for (const char *name = strtok_r(names, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest)) {
		read_card_of_interface(sysfs, name, card, sizeof(card));
		if (interfaces++ == 0)
			strcpy(first, card);
		if (*card == '\0' || strcmp(card, first) != 0)
			*is_of_one_card = false;
		devices += interface_has_own_rdma_device(sysfs, name);
	}
	return devices;
}

int verbs_find_device_of_interface(const char *sysfs, const char *ifname, struct verbs_device_port *out)
{
	char names[PATH_BYTES];
	int rc = find_device_in_gid_tables(sysfs, ifname, out);
	bool is_of_one_card;
	unsigned devices;

	if (!read_interfaces_of_bond(sysfs, ifname, names, sizeof(names)))
		return rc;
	devices = count_rdma_devices_of_bond(sysfs, names, &is_of_one_card);
	if (rc == 0)
		return devices == 1 && is_of_one_card ? 0 : -EXDEV;
	return devices != 0 ? -EXDEV : rc;
}

/* An ioctl, because sysfs shows the network namespace that it was mounted in. */
void verbs_vlan_lower_interface(const char *ifname, char lower[IF_NAMESIZE])
{
	struct vlan_ioctl_args vlan = {.cmd = GET_VLAN_REALDEV_NAME_CMD};
	const int fd = os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(lower, IF_NAMESIZE, "%s", ifname);
	snprintf(vlan.device1, sizeof(vlan.device1), "%s", ifname);
	if (fd < 0)
		return;
	if (os_ioctl(fd, SIOCGIFVLAN, &vlan) == 0)
		snprintf(lower, IF_NAMESIZE, "%.*s", IF_NAMESIZE - 1, vlan.u.device2);
	os_close(fd);
}
