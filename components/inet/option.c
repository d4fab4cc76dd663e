/* option.c - options that only the kernel serves. */
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>

#include <vma/inet_option.h>
#include <vma/sock_engine.h>
#include <vma/sock_os.h>
#include <vma/sock_thread.h>

bool vma_inet_option_is_set(int fd, int level, int name, enum vma_inet_enabled_by how)
{
	char value[64];
	socklen_t len = sizeof(value);
	uint64_t rate = UINT64_MAX;

	switch (how) {
	case VMA_INET_BY_VALUE:
	case VMA_INET_BY_ONE:
		return vma_os_getsockopt_int_or(fd, level, name, 0) != 0;
	case VMA_INET_BY_SIGN:
		return vma_os_getsockopt_int_or(fd, level, name, -1) >= 0;
	case VMA_INET_BY_LENGTH:
		return vma_os.getsockopt(fd, level, name, value, &len) == 0 && len > 0;
	case VMA_INET_BY_RATE:
		len = sizeof(rate);
		return vma_os.getsockopt(fd, level, name, &rate, &len) == 0 && rate != UINT64_MAX;
	default:
		return how == VMA_INET_ALWAYS;
	}
}

/* The application's value, as the kernel reads it: IP's options may be a byte. False: there is none. */
static bool read_int_option_value(int level, const void *value, socklen_t len, int *number)
{
	uint8_t byte;

	if (len >= sizeof(*number))
		return vma_memcpy_or_efault(number, value, sizeof(*number)) == 0;
	if (level != IPPROTO_IP || len == 0 || vma_memcpy_or_efault(&byte, value, sizeof(byte)) != 0)
		return false;
	*number = byte;
	return true;
}

static bool pacing_rate_is_limited(const void *value, socklen_t len)
{
	uint32_t rate32;
	uint64_t rate;

	if (len == sizeof(rate))
		return vma_memcpy_or_efault(&rate, value, sizeof(rate)) == 0 && rate != UINT64_MAX;
	return len >= sizeof(rate32) && vma_memcpy_or_efault(&rate32, value, sizeof(rate32)) == 0 &&
	       rate32 != UINT32_MAX;
}

bool vma_inet_option_enables(int level, enum vma_inet_enabled_by how, const void *value, socklen_t len)
{
	int number;

	switch (how) {
	case VMA_INET_BY_LENGTH:
		return len != 0;
	case VMA_INET_BY_RATE:
		return pacing_rate_is_limited(value, len);
	case VMA_INET_ALWAYS:
	case VMA_INET_NEVER:
		return how == VMA_INET_ALWAYS;
	default:
		break;
	}
	if (!read_int_option_value(level, value, len, &number))
		return false;
	return how == VMA_INET_BY_VALUE ? number != 0 : how == VMA_INET_BY_ONE ? number == 1 : number >= 0;
}

int vma_inet_read_allowed_privileged_option(const struct vma_engine *engine, int level, int name, const void *from,
                                            socklen_t len, int *value)
{
	if (engine == NULL || !engine->conf.given[VMA_CONF_AT_allow_privileged_sock_opt] ||
	    !engine->conf.allow_privileged_sock_opt || level != SOL_SOCKET)
		return -EPERM;
	if (name != SO_RCVBUFFORCE && name != SO_SNDBUFFORCE && name != SO_MARK)
		return -EPERM;
	return len >= sizeof(*value) && vma_memcpy_or_efault(value, from, sizeof(*value)) == 0 ? 0 : -EPERM;
}
