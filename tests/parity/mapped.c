/*
 * mapped - PARITY_MAPPED=1: a case runs on AF_INET6 sockets with mapped addresses, and does not know it.
 *
 *   case ── AF_INET, 10.9.0.2 ──> __wrap_sendto ── ::ffff:10.9.0.2 ──> the C library's, or the preloaded one
 *
 * The linker sends the program's calls here (--wrap, in the Makefile). An address that the case gives to a socket of
 * AF_INET6 is mapped; bound to, 0.0.0.0 becomes `::`. IP_MULTICAST_LOOP, which AF_INET6 sockets do not heed, becomes
 * IPV6_MULTICAST_LOOP. An address that the case has only room for as sockaddr_in is
 * received as sockaddr_in6, must be a mapped one of 28 bytes without scope and flow, and is given as IPv4; who has more
 * room sees what has come.
 */
#include <string.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "parity.h"

#define DECLARE_REAL_CALL(type, name, parameters)                                                                      \
	type __real_##name parameters;                                                                                 \
	type __wrap_##name parameters

bool ipv4_mapped_mode_is_on(void)
{
	static int known = -1;

	if (known < 0)
		known = getenv("PARITY_MAPPED") != NULL;
	return known;
}

/* ---- what is translated ---- */

static bool fd_is_mapped_ipv6_socket(int fd)
{
	int domain = 0, saved = errno;
	socklen_t len = sizeof(domain);
	bool yes = ipv4_mapped_mode_is_on() && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 &&
	           domain == AF_INET6;

	errno = saved;
	return yes;
}

/* Pointers of a case may be bad, and that is for the call to find out. */
static bool memory_is_accessible(const void *p, size_t size)
{
	char bytes[sizeof(struct sockaddr_in6)];
	struct iovec to = {.iov_base = bytes, .iov_len = size}, from = {.iov_base = (void *)p, .iov_len = size};
	int saved = errno;
	bool there = p != NULL && syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0) == (long)size;

	errno = saved;
	return there;
}

/* What the socket is to be given instead, in *mapped; else what the case gave. */
static const struct sockaddr *sockaddr_to_mapped(int fd, const struct sockaddr *addr, socklen_t *len,
                                                 struct sockaddr_in6 *mapped, bool bound)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)addr;

	if (*len < sizeof(*in) || *len > sizeof(struct sockaddr_storage) || !memory_is_accessible(in, sizeof(*in)) ||
	    in->sin_family != AF_INET || !fd_is_mapped_ipv6_socket(fd))
		return addr;
	*mapped = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = in->sin_port};
	if (!bound || in->sin_addr.s_addr != INADDR_ANY) {
		mapped->sin6_addr.s6_addr[10] = mapped->sin6_addr.s6_addr[11] = 0xff;
		memcpy(&mapped->sin6_addr.s6_addr[12], &in->sin_addr, 4);
	}
	*len = sizeof(*mapped);
	return (const struct sockaddr *)mapped;
}

/* Received in the place of a sockaddr_in. */
static void sockaddr_from_mapped(const struct sockaddr_in6 *got, socklen_t got_len, void *addr, socklen_t *len)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = got->sin6_port};

	*len = got_len;
	if (got_len == 0)
		return;
	if (got_len != sizeof(*got) || got->sin6_family != AF_INET6 || got->sin6_flowinfo != 0 ||
	    got->sin6_scope_id != 0 ||
	    (!IN6_IS_ADDR_V4MAPPED(&got->sin6_addr) && !IN6_IS_ADDR_UNSPECIFIED(&got->sin6_addr)))
		complain("an address of %u bytes, family %d, is not a mapped one", (unsigned)got_len, got->sin6_family);
	memcpy(&in.sin_addr, &got->sin6_addr.s6_addr[12], 4);
	memcpy(addr, &in, sizeof(in));
	*len = sizeof(in);
}

static bool has_room_for_ipv4_only(int fd, const void *addr, const socklen_t *len)
{
	return ipv4_mapped_mode_is_on() && memory_is_accessible(len, sizeof(*len)) &&
	       *len == sizeof(struct sockaddr_in) && memory_is_accessible(addr, sizeof(struct sockaddr_in)) &&
	       fd_is_mapped_ipv6_socket(fd);
}

/* ---- calls ---- */

DECLARE_REAL_CALL(int, socket, (int domain, int type, int protocol))
{
	const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (ipv4_mapped_mode_is_on() && domain == AF_INET && (kind == SOCK_DGRAM || kind == SOCK_STREAM))
		domain = AF_INET6;
	return __real_socket(domain, type, protocol);
}

DECLARE_REAL_CALL(int, bind, (int fd, const struct sockaddr *addr, socklen_t len))
{
	struct sockaddr_in6 mapped;

	addr = sockaddr_to_mapped(fd, addr, &len, &mapped, true);
	return __real_bind(fd, addr, len);
}

DECLARE_REAL_CALL(int, connect, (int fd, const struct sockaddr *addr, socklen_t len))
{
	struct sockaddr_in6 mapped;

	addr = sockaddr_to_mapped(fd, addr, &len, &mapped, false);
	return __real_connect(fd, addr, len);
}

DECLARE_REAL_CALL(ssize_t, sendto,
                  (int fd, const void *data, size_t size, int flags, const struct sockaddr *addr, socklen_t len))
{
	struct sockaddr_in6 mapped;

	addr = sockaddr_to_mapped(fd, addr, &len, &mapped, false);
	return __real_sendto(fd, data, size, flags, addr, len);
}

DECLARE_REAL_CALL(ssize_t, sendmsg, (int fd, const struct msghdr *msg, int flags))
{
	struct sockaddr_in6 mapped;
	struct msghdr own;

	if (!ipv4_mapped_mode_is_on() || !memory_is_accessible(msg, sizeof(struct sockaddr_in)))
		return __real_sendmsg(fd, msg, flags);
	own = *msg;
	own.msg_name = (void *)sockaddr_to_mapped(fd, own.msg_name, &own.msg_namelen, &mapped, false);
	return __real_sendmsg(fd, &own, flags);
}

DECLARE_REAL_CALL(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t len))
{
	if (level == IPPROTO_IP && name == IP_MULTICAST_LOOP && fd_is_mapped_ipv6_socket(fd)) {
		level = IPPROTO_IPV6;
		name = IPV6_MULTICAST_LOOP;
	}
	return __real_setsockopt(fd, level, name, value, len);
}

#define WRAP_SOCKET_NAME_CALL(name)                                                                                    \
	DECLARE_REAL_CALL(int, name, (int fd, struct sockaddr *addr, socklen_t *len))                                  \
	{                                                                                                              \
		struct sockaddr_in6 got = {0};                                                                         \
		socklen_t got_len = sizeof(got);                                                                       \
		int rc;                                                                                                \
                                                                                                                       \
		if (!has_room_for_ipv4_only(fd, addr, len))                                                            \
			return __real_##name(fd, addr, len);                                                           \
		rc = __real_##name(fd, (struct sockaddr *)&got, &got_len);                                             \
		if (rc >= 0)                                                                                           \
			sockaddr_from_mapped(&got, got_len, addr, len);                                                \
		return rc;                                                                                             \
	}
WRAP_SOCKET_NAME_CALL(getsockname)
WRAP_SOCKET_NAME_CALL(getpeername)
WRAP_SOCKET_NAME_CALL(accept)

DECLARE_REAL_CALL(int, accept4, (int fd, struct sockaddr *addr, socklen_t *len, int flags))
{
	struct sockaddr_in6 got = {0};
	socklen_t got_len = sizeof(got);
	int rc;

	if (!has_room_for_ipv4_only(fd, addr, len))
		return __real_accept4(fd, addr, len, flags);
	rc = __real_accept4(fd, (struct sockaddr *)&got, &got_len, flags);
	if (rc >= 0)
		sockaddr_from_mapped(&got, got_len, addr, len);
	return rc;
}

DECLARE_REAL_CALL(ssize_t, recvfrom,
                  (int fd, void *data, size_t size, int flags, struct sockaddr *addr, socklen_t *len))
{
	struct sockaddr_in6 got = {0};
	socklen_t got_len = sizeof(got);
	ssize_t rc;

	if (!has_room_for_ipv4_only(fd, addr, len))
		return __real_recvfrom(fd, data, size, flags, addr, len);
	rc = __real_recvfrom(fd, data, size, flags, (struct sockaddr *)&got, &got_len);
	if (rc >= 0)
		sockaddr_from_mapped(&got, got_len, addr, len);
	return rc;
}

DECLARE_REAL_CALL(ssize_t, recvmsg, (int fd, struct msghdr *msg, int flags))
{
	struct sockaddr_in6 got = {0};
	void *addr;
	ssize_t rc;

	if (!ipv4_mapped_mode_is_on() || !memory_is_accessible(msg, sizeof(struct sockaddr_in)) ||
	    !has_room_for_ipv4_only(fd, msg->msg_name, &msg->msg_namelen))
		return __real_recvmsg(fd, msg, flags);
	addr = msg->msg_name;
	msg->msg_name = &got;
	msg->msg_namelen = sizeof(got);
	rc = __real_recvmsg(fd, msg, flags);
	msg->msg_name = addr;
	if (rc >= 0)
		sockaddr_from_mapped(&got, msg->msg_namelen, addr, &msg->msg_namelen);
	else
		msg->msg_namelen = sizeof(struct sockaddr_in);
	return rc;
}

/* All messages of a case have the same room. */
DECLARE_REAL_CALL(int, recvmmsg, (int fd, struct mmsghdr *msgs, unsigned n, int flags, struct timespec *timeout))
{
	enum { MESSAGES = 8 };
	struct sockaddr_in6 got[MESSAGES] = {0};
	void *addr[MESSAGES];
	int rc;

	if (!ipv4_mapped_mode_is_on() || n == 0 || n > MESSAGES ||
	    !memory_is_accessible(msgs, sizeof(struct sockaddr_in)) ||
	    !has_room_for_ipv4_only(fd, msgs[0].msg_hdr.msg_name, &msgs[0].msg_hdr.msg_namelen))
		return __real_recvmmsg(fd, msgs, n, flags, timeout);
	for (unsigned i = 0; i < n; i++) {
		addr[i] = msgs[i].msg_hdr.msg_name;
		msgs[i].msg_hdr.msg_name = &got[i];
		msgs[i].msg_hdr.msg_namelen = sizeof(got[i]);
	}
	rc = __real_recvmmsg(fd, msgs, n, flags, timeout);
	for (unsigned i = 0; i < n; i++) {
		msgs[i].msg_hdr.msg_name = addr[i];
		if (rc > (int)i)
			sockaddr_from_mapped(&got[i], msgs[i].msg_hdr.msg_namelen, addr[i],
			                     &msgs[i].msg_hdr.msg_namelen);
		else
			msgs[i].msg_hdr.msg_namelen = sizeof(struct sockaddr_in);
	}
	return rc;
}

/* As many as cases send at a time; the vector is theirs again afterwards. */
DECLARE_REAL_CALL(int, sendmmsg, (int fd, struct mmsghdr *msgs, unsigned n, int flags))
{
	enum { MESSAGES = 8 };
	struct sockaddr_in6 mapped[MESSAGES];
	struct msghdr given[MESSAGES];
	int rc;

	if (!ipv4_mapped_mode_is_on() || n > MESSAGES || !memory_is_accessible(msgs, sizeof(struct sockaddr_in)))
		return __real_sendmmsg(fd, msgs, n, flags);
	for (unsigned i = 0; i < n; i++) {
		struct msghdr *msg = &msgs[i].msg_hdr;

		given[i] = *msg;
		msg->msg_name = (void *)sockaddr_to_mapped(fd, msg->msg_name, &msg->msg_namelen, &mapped[i], false);
	}
	rc = __real_sendmmsg(fd, msgs, n, flags);
	for (unsigned i = 0; i < n; i++)
		msgs[i].msg_hdr = given[i];
	return rc;
}
