/* option.c - what the kernel says of a socket when it is asked. */
#include <vma/sock_os.h>

int vma_os_getsockopt_int_or(int fd, int level, int name, int otherwise)
{
	int value = 0;
	socklen_t len = sizeof(value);

	return vma_os.getsockopt(fd, level, name, &value, &len) == 0 ? value : otherwise;
}

uint64_t vma_sock_cookie(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	return vma_os.getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 ? cookie : 0;
}
