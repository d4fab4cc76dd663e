/*
 * vmad_right - the proof that a process may be a client: a raw socket of this network namespace, bound to the
 * interface.
 *
 * The kernel gives a raw socket only to a process with CAP_NET_RAW over the namespace, which is exactly the right to
 * receive and send raw packets there; whoever has the fd has it from such a process. So vmad need not read /proc (racy,
 * and blind to user namespaces, where everybody is root), a right survives a change of user, and it can be inherited by
 * fork when the parent wants that (vma_nic_pass_on). It also outlives vmad: the next one accepts it, too.
 *
 * What it gives to an unprivileged holder is no more than a queue pair does, raw packets on this one interface: the
 * binding cannot be changed without CAP_NET_RAW, and protocol 255 receives nothing.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nic_os.h"
#include "vmad_proto.h"

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

int vmad_right_create(const char *ifname)
{
	int fd = os_socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
	int rc;

	if (fd < 0)
		return -errno;
	if (os_setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, ifname, (socklen_t)strlen(ifname)) == 0)
		return fd;
	rc = -errno;
	os_close(fd);
	return rc;
}

static bool option_is(int fd, int option, int wanted)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return os_getsockopt(fd, SOL_SOCKET, option, &value, &len) == 0 && len == sizeof(value) && value == wanted;
}

/* The network namespace of a socket, as an inode number. */
static int namespace_of(int socket_fd, ino_t *out)
{
	struct stat st;
	int fd = os_ioctl(socket_fd, SIOCGSKNS, NULL), rc = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		rc = -errno;
	else
		*out = st.st_ino;
	os_close(fd);
	return rc;
}

int vmad_right_check(int fd, unsigned ifindex)
{
	if (!option_is(fd, SO_DOMAIN, AF_INET) || !option_is(fd, SO_TYPE, SOCK_RAW) ||
	    !option_is(fd, SO_BINDTOIFINDEX, (int)ifindex))
		return -EPERM;
	return vmad_namespace_check(fd);
}

int vmad_namespace_check(int fd)
{
	ino_t here, there;
	int own, rc;

	own = os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (own < 0)
		return -errno;
	rc = namespace_of(own, &here);
	if (rc == 0)
		rc = namespace_of(fd, &there);
	os_close(own);
	if (rc == 0 && there != here)
		rc = -EPERM;
	return rc;
}
