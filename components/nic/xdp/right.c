/*
 * right - the proof that a process may be a client: a unix socket of this network namespace that bears a mark (SO_MARK)
 * of the interface.
 *
 * The kernel marks sockets only for a process with CAP_NET_RAW or CAP_NET_ADMIN over the namespace (CAP_NET_RAW from
 * 5.17 on). Such a process has the right to receive and send raw packets there anyway. Every holder of the fd has it
 * from such a process. So vmad need not read /proc (racy, and blind to user namespaces, where every user is root). A
 * right can be inherited by fork if the parent wants that (vma_nic_set_children_inherit_right). It also outlives vmad:
 * the next one accepts it, too.
 *
 * The right is good for nothing else: no route leads anywhere from a unix socket. The kernel keeps with it the process
 * and the user that made it. That process may show it as any user that it has become since. Other processes may show it
 * as the user that made it, or as any user if the mark says so. By removing the mark, vmad takes the right away from
 * every process that has a copy.
 *
 * If the kernel does not mark for CAP_NET_RAW, a process shows a raw socket bound to the interface. It never passes
 * that on: raw packets leave by it.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../os.h"
#include "proto.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

/* Other programs mark sockets that send by IP. */
#define MARK_VMAD 0x76000000u
#define MARK_ANY_USER 0x00800000u
#define MARK_IFINDEX_MAX 0x007fffffu

static uint32_t vmad_permission_so_mark(unsigned ifindex, bool any_user)
{
	return MARK_VMAD | (any_user ? MARK_ANY_USER : 0) | ifindex;
}

static int set_mark(int fd, uint32_t mark)
{
	return os_setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) == 0 ? 0 : -errno;
}

static int create_raw_socket_bound_to(const char *ifname)
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

int vmad_permission_socket_create(unsigned ifindex, const char *ifname)
{
	int pair[2], rc = -EOPNOTSUPP; /* the kernel notes who makes a pair */

	if (syscall(SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) != 0)
		return -errno;
	os_close(pair[1]);
	if (ifindex <= MARK_IFINDEX_MAX)
		rc = set_mark(pair[0], vmad_permission_so_mark(ifindex, false));
	if (rc == 0)
		return pair[0];
	os_close(pair[0]);
	return create_raw_socket_bound_to(ifname);
}

static bool socket_option_is(int fd, int option, int wanted)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return os_getsockopt(fd, SOL_SOCKET, option, &value, &len) == 0 && len == sizeof(value) && value == wanted;
}

/* The network namespace of a socket, as an inode number. */
static int netns_inode_of_socket(int socket_fd, ino_t *out)
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

static bool socket_is_marked(int fd, uint32_t mark)
{
	return socket_option_is(fd, SO_MARK, (int)mark);
}

static bool is_unix_datagram_socket(int fd)
{
	return socket_option_is(fd, SO_DOMAIN, AF_UNIX) && socket_option_is(fd, SO_TYPE, SOCK_DGRAM);
}

static bool socket_is_made_by_user_or_process(int fd, const struct ucred *who)
{
	struct ucred maker = {0};
	socklen_t len = sizeof(maker);

	return os_getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &len) == 0 && maker.pid != 0 &&
	       (maker.uid == who->uid || maker.pid == who->pid);
}

int vmad_permission_socket_set_mark(int fd, unsigned ifindex, bool any_user)
{
	if (fd < 0 || !is_unix_datagram_socket(fd))
		return -EPERM;
	if (socket_is_marked(fd, vmad_permission_so_mark(ifindex, any_user)))
		return 0;
	return set_mark(fd, vmad_permission_so_mark(ifindex, any_user));
}

void vmad_permission_socket_revoke(int fd)
{
	if (fd >= 0 && is_unix_datagram_socket(fd))
		set_mark(fd, 0);
}

/* It has ended, so its number may be another's by now. A kernel before 6.5 does not say. */
static bool permission_socket_maker_has_exited(int fd)
{
	struct pollfd process = {.fd = -1, .events = POLLIN};
	socklen_t len = sizeof(process.fd);
	bool ended;

	if (os_getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &process.fd, &len) != 0)
		return errno != ENOPROTOOPT;
	ended = os_poll(&process, 1, 0) != 0;
	os_close(process.fd);
	return ended;
}

/* Nobody passes a raw socket on. */
bool vmad_permission_socket_made_by_sender(int fd, const struct ucred *who)
{
	struct ucred maker = {0};
	socklen_t len = sizeof(maker);

	if (!is_unix_datagram_socket(fd))
		return true;
	return os_getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &len) == 0 && maker.pid != 0 &&
	       maker.pid == who->pid && !permission_socket_maker_has_exited(fd);
}

int vmad_permission_socket_check(int fd, unsigned ifindex, const struct ucred *who)
{
	bool is_right = false;

	if (is_unix_datagram_socket(fd))
		is_right = socket_is_marked(fd, vmad_permission_so_mark(ifindex, true)) ||
		           (socket_is_marked(fd, vmad_permission_so_mark(ifindex, false)) &&
		            socket_is_made_by_user_or_process(fd, who));
	else
		is_right = socket_option_is(fd, SO_DOMAIN, AF_INET) && socket_option_is(fd, SO_TYPE, SOCK_RAW) &&
		           socket_option_is(fd, SO_BINDTOIFINDEX, (int)ifindex);
	return is_right ? vmad_check_socket_in_same_netns(fd) : -EPERM;
}

static int check_same_netns(int own, int fd)
{
	ino_t here = 0, there = 0;
	int rc = netns_inode_of_socket(own, &here);

	if (rc == 0)
		rc = netns_inode_of_socket(fd, &there);
	return rc == 0 && there != here ? -EPERM : rc;
}

/* By the namespaces' cookies, which is one call; a kernel before 5.14 has none. */
int vmad_check_socket_in_same_netns(int fd)
{
	uint64_t here = 0, there = 0;
	socklen_t len = sizeof(here);
	int own, rc;

	own = os_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (own < 0)
		return -errno;
	if (os_getsockopt(own, SOL_SOCKET, SO_NETNS_COOKIE, &here, &len) < 0)
		rc = check_same_netns(own, fd);
	else if (os_getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &there, &len) < 0)
		rc = -errno;
	else
		rc = there == here ? 0 : -EPERM;
	os_close(own);
	return rc;
}
