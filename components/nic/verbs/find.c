/* find - sysfs is read with plain calls: a look at an interface without RDMA device costs one failed opendir. */
#include <dirent.h>
#include <errno.h>
#include <linux/if_vlan.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

bool verbs_has_any_device(const char *sysfs)
{
	DIR *devices = open_infiniband_sysfs_dir(sysfs);
	const bool any = devices != NULL && readdir_next_name(devices) != NULL;

	if (devices != NULL)
		closedir(devices);
	return any;
}

/* 1: it is this one; 0: another one, or an entry that is not in use; -ENOENT: the table ends before it. */
static int gid_entry_is_of_interface(const char *ports, unsigned port, unsigned index, const char *ifname)
{
	char path[PATH_BYTES + 64], text[IF_NAMESIZE + 2];
	ssize_t len;
	int fd, rc;

	snprintf(path, sizeof(path), "%s/%u/gid_attrs/ndevs/%u", ports, port, index);
	fd = os_open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -ENOENT : 0;
	len = os_read(fd, text, sizeof(text) - 1);
	os_close(fd);
	if (len <= 0)
		return 0;
	text[len] = '\0';
	text[strcspn(text, "\n")] = '\0';
	rc = strcmp(text, ifname) == 0;
	return rc;
}

static bool rdma_port_is_of_interface(const char *ports, unsigned port, const char *ifname)
{
	int rc = 0;

	for (unsigned index = 0; index < GIDS_MAX && rc == 0; index++)
		rc = gid_entry_is_of_interface(ports, port, index, ifname);
	return rc == 1;
}

/* The lowest port that has the interface; 0: none. */
static unsigned find_rdma_port_of_interface(const char *ports, const char *ifname)
{
	DIR *dir = opendir(ports);
	const char *name;
	unsigned found = 0;

	if (dir == NULL)
		return 0;
	while ((name = readdir_next_name(dir)) != NULL) {
		const unsigned long port = strtoul(name, NULL, 10);

		if (port > 0 && port <= UINT8_MAX && (found == 0 || port < found) &&
		    rdma_port_is_of_interface(ports, (unsigned)port, ifname))
			found = (unsigned)port;
	}
	closedir(dir);
	return found;
}

int verbs_find_device_of_interface(const char *sysfs, const char *ifname, struct verbs_device_port *out)
{
	DIR *devices = open_infiniband_sysfs_dir(sysfs);
	char ports[PATH_BYTES];
	const char *name;
	unsigned port = 0;

	if (devices == NULL)
		return -ENODEV;
	while (port == 0 && (name = readdir_next_name(devices)) != NULL) {
		if (strlen(name) >= sizeof(out->device))
			continue;
		snprintf(ports, sizeof(ports), "%s/class/infiniband/%s/ports", sysfs, name);
		port = find_rdma_port_of_interface(ports, ifname);
		if (port != 0) {
			strcpy(out->device, name);
			out->port = (uint8_t)port;
		}
	}
	closedir(devices);
	return port != 0 ? 0 : -ENODEV;
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
