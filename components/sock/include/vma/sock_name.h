/*
 * sock_name - addresses with ports, where the application and the kernel's socket meet the library's own code.
 *
 *   application, shadow   sockaddr_in, or sockaddr_in6 with IPv4 mapped (::ffff:a.b.c.d): by the socket's family
 *   inside                union vma_name in one form: IPv4 is AF_INET, whatever the socket's family; AF_INET6 is IPv6
 *
 * An AF_INET6 socket that is not IPV6_V6ONLY serves IPv4, too, and its unbound address `::` stands for 0.0.0.0 as well.
 * Inside, such a `::` is 0.0.0.0. A `::` that is IPV6_V6ONLY stays AF_INET6, as does every address that is not mapped.
 * Functions return 0 or a negative errno.
 *
 * Threads: any, inside (the application's pointers may be bad).
 * Progress: the calls on a shadow are system calls.
 * Memory: the caller's.
 * Example: test/test_name.c.
 */
#ifndef VMA_SOCK_NAME_H
#define VMA_SOCK_NAME_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

union vma_name {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/*
 * An address that the application gives to a socket of `family`, as the kernel reads it: -EFAULT; -EINVAL, it is too
 * short; -EAFNOSUPPORT, it is of a family that such a socket does not take. AF_INET is read on AF_INET6 sockets, since
 * UDP takes it there; TCP does not, and asks vma_sockaddr_is_of_family first.
 */
int vma_name_copy_from_program_sockaddr(int family, const struct sockaddr *addr, socklen_t len, union vma_name *name);
/* The same of a local address for the socket fd: `::` is 0.0.0.0 unless it is IPV6_V6ONLY. */
int vma_name_copy_from_program_for_bind(int fd, int family, const struct sockaddr *addr, socklen_t len,
                                        union vma_name *name);
/* The address says of itself to be of this family. */
bool vma_sockaddr_is_of_family(int family, const struct sockaddr *addr, socklen_t len);

/* What a socket of `family` says for this IPv4 address (0.0.0.0: `::`), and its length. */
socklen_t vma_name_fill_from_sockaddr_in(int family, const struct sockaddr_in *in, union vma_name *name);
/* The same to the application, as vma_copy_sockaddr_to_program. */
int vma_sockaddr_in_copy_to_program(int family, const struct sockaddr_in *in, struct sockaddr *addr, socklen_t *len);
/* The mapped address. */
struct in6_addr vma_v4mapped_in6_addr(uint32_t address);

/* What fields of IPv4 code keep of a name: of an IPv6 one the family and the port alone. */
struct sockaddr_in vma_name_to_sockaddr_in(const union vma_name *name);

/* ---- the shadow, which may be of either family ---- */

/* getsockname, getpeername; `family`, unless NULL, becomes the socket's own. */
int vma_shadow_getsockname(int fd, union vma_name *name, int *family);
int vma_shadow_getpeername(int fd, union vma_name *name);
/* The system calls: no cancellation points. */
int vma_shadow_bind(int fd, int family, const struct sockaddr_in *in);
int vma_shadow_connect(int fd, int family, const struct sockaddr_in *in);

#endif
