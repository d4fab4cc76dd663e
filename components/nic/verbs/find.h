/*
 * find - which port of which RDMA device an interface is, by sysfs.
 *
 *   SYSFS/class/infiniband/DEVICE/ports/PORT/gid_attrs/ndevs/INDEX    the interface of that entry of the GID table
 *   SYSFS/class/net/IF/bonding/slaves                                 the interfaces of a bond
 *   SYSFS/class/net/IF/device -> .../0000:03:00.1                     the function of a card, with infiniband/ if it has
 *                                                                     a device of its own
 *
 * A bond's packets come by any of its interfaces. A card that carries the bond itself (LAG) has one device for all of its
 * functions. If it does not, each has a device of its own, which brings a part of the packets: none of them is used.
 *
 * Threads: any. Progress: reads files. Memory: the caller's.
 * Example: test/test_verbs_find.c.
 */
#ifndef VMA_NIC_VERBS_FIND_H
#define VMA_NIC_VERBS_FIND_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#define VERBS_NAME_MAX 64

struct verbs_device_port {
	char device[VERBS_NAME_MAX];
	uint8_t port;
};

const char *verbs_sysfs_path(void); /* SYSFS_PATH of the environment, if it may be believed; else /sys */
bool verbs_has_any_device(const char *sysfs);
/* 0; -ENODEV: no port of any device has this interface; -EXDEV: a bond of interfaces with devices, but without LAG; -EMFILE
 * and the like: this process cannot look. */
int verbs_find_device_of_interface(const char *sysfs, const char *ifname, struct verbs_device_port *out);
/* What carries a VLAN interface; of another one: itself. */
void verbs_vlan_lower_interface(const char *ifname, char lower[IF_NAMESIZE]);

#endif
