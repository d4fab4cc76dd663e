/* name - addresses between the application, whose pointers may be anything, the shadow, and the library's own code. */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock_name.h>
#include <vma/sock_os.h>
#include <vma/sock_thread.h>

enum { IN6_LEN_MIN = 24 }; /* without the scope: the kernel's SIN6_LEN_RFC2133 */

int vma_copy_sockaddr_to_program(const void *own, socklen_t own_len, void *addr, socklen_t *len)
{
	socklen_t room;

	if (vma_memcpy_or_efault(&room, len, sizeof(room)) != 0)
		return -EFAULT;
	if ((int)room < 0)
		return -EINVAL;
	if (room > own_len)
		room = own_len;
	if (room > 0 && vma_memcpy_or_efault(addr, own, room) != 0)
		return -EFAULT;
	return vma_memcpy_or_efault(len, &own_len, sizeof(own_len));
}

/* ---- the form inside ---- */

static void name_set_ipv4_keep_port(union vma_name *name, uint32_t address)
{
	const uint16_t port_be = name->in6.sin6_port;

	name->in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port_be, .sin_addr.s_addr = address};
}

static void name_unmap_and_clear_padding(union vma_name *name)
{
	uint32_t address;

	if (name->any.sa_family == AF_INET) {
		memset(name->in.sin_zero, 0, sizeof(name->in.sin_zero));
	} else if (name->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&name->in6.sin6_addr)) {
		memcpy(&address, &name->in6.sin6_addr.s6_addr[12], sizeof(address));
		name_set_ipv4_keep_port(name, address);
	}
}

int vma_name_copy_from_program_sockaddr(int family, const struct sockaddr *addr, socklen_t len, union vma_name *name)
{
	memset(name, 0, sizeof(*name));
	if (len < sizeof(name->any.sa_family))
		return -EINVAL;
	if (vma_memcpy_or_efault(name, addr, len < sizeof(*name) ? len : sizeof(*name)) != 0)
		return -EFAULT;
	if (name->any.sa_family != AF_INET && (name->any.sa_family != AF_INET6 || family != AF_INET6))
		return -EAFNOSUPPORT;
	if (len < (name->any.sa_family == AF_INET ? sizeof(name->in) : IN6_LEN_MIN))
		return -EINVAL;
	name_unmap_and_clear_padding(name);
	return 0;
}

bool vma_sockaddr_is_of_family(int family, const struct sockaddr *addr, socklen_t len)
{
	sa_family_t given;

	return len >= sizeof(given) && vma_memcpy_or_efault(&given, addr, sizeof(given)) == 0 && given == family;
}

struct sockaddr_in vma_name_to_sockaddr_in(const union vma_name *name)
{
	if (name->any.sa_family == AF_INET6)
		return (struct sockaddr_in){.sin_family = AF_INET6, .sin_port = name->in6.sin6_port};
	return name->in;
}

/* ---- the socket's ---- */

struct in6_addr vma_v4mapped_in6_addr(uint32_t address)
{
	struct in6_addr mapped = {.s6_addr = {[10] = 0xff, [11] = 0xff}};

	memcpy(&mapped.s6_addr[12], &address, sizeof(address));
	return mapped;
}

socklen_t vma_name_fill_from_sockaddr_in(int family, const struct sockaddr_in *in, union vma_name *name)
{
	if (family != AF_INET6) {
		name->in = *in;
		return sizeof(name->in);
	}
	name->in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = in->sin_port};
	if (in->sin_addr.s_addr != INADDR_ANY)
		name->in6.sin6_addr = vma_v4mapped_in6_addr(in->sin_addr.s_addr);
	return sizeof(name->in6);
}

int vma_sockaddr_in_copy_to_program(int family, const struct sockaddr_in *in, struct sockaddr *addr, socklen_t *len)
{
	union vma_name name;
	const socklen_t own_len = vma_name_fill_from_sockaddr_in(family, in, &name);

	return vma_copy_sockaddr_to_program(&name, own_len, addr, len);
}

/* ---- the shadow ---- */

static bool name_is_v6only(int fd)
{
	return vma_os_getsockopt_int_or(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0) != 0;
}

static void name_turn_dual_stack_any_to_ipv4(int fd, union vma_name *name)
{
	if (name->any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&name->in6.sin6_addr) && !name_is_v6only(fd))
		name_set_ipv4_keep_port(name, INADDR_ANY);
}

int vma_name_copy_from_program_for_bind(int fd, int family, const struct sockaddr *addr, socklen_t len,
                                        union vma_name *name)
{
	const int rc = vma_name_copy_from_program_sockaddr(family, addr, len, name);

	if (rc == 0)
		name_turn_dual_stack_any_to_ipv4(fd, name);
	return rc;
}

int vma_shadow_getsockname(int fd, union vma_name *name, int *family)
{
	socklen_t len = sizeof(*name);

	memset(name, 0, sizeof(*name));
	if (vma_os.getsockname(fd, &name->any, &len) != 0)
		return -errno;
	if (family != NULL)
		*family = name->any.sa_family;
	name_unmap_and_clear_padding(name);
	name_turn_dual_stack_any_to_ipv4(fd, name);
	return 0;
}

int vma_shadow_getpeername(int fd, union vma_name *name)
{
	socklen_t len = sizeof(*name);

	memset(name, 0, sizeof(*name));
	if (vma_os.getpeername(fd, &name->any, &len) != 0)
		return -errno;
	name_unmap_and_clear_padding(name);
	return 0;
}

int vma_shadow_bind(int fd, int family, const struct sockaddr_in *in)
{
	union vma_name name;
	const socklen_t len = vma_name_fill_from_sockaddr_in(family, in, &name);

	return vma_os.bind(fd, &name.any, len) != 0 ? -errno : 0;
}

int vma_shadow_connect(int fd, int family, const struct sockaddr_in *in)
{
	union vma_name name;
	const socklen_t len = vma_name_fill_from_sockaddr_in(family, in, &name);

	return syscall(SYS_connect, fd, &name.any, len) != 0 ? -errno : 0;
}
