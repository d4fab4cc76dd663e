/* timeout - SO_RCVTIMEO and SO_SNDTIMEO, as both kinds of sockets mirror them. */
#include <sys/time.h>

#include <vma/sock_thread.h>
#include <vma/sock_os.h>

uint64_t vma_sock_timeout_ns(int fd, int name, const void *value)
{
	struct timeval given = {0}, deferred_signals = {0};
	socklen_t len = sizeof(deferred_signals);

	/* A negative one is none to the kernel's getsockopt, and not to wait at all in its calls. */
	if (vma_memcpy_or_efault(&given, value, sizeof(given)) == 0 && given.tv_sec < 0)
		return 0;
	if (vma_os.getsockopt(fd, SOL_SOCKET, name, &deferred_signals, &len) != 0 ||
	    (deferred_signals.tv_sec == 0 && deferred_signals.tv_usec == 0))
		return UINT64_MAX;
	if ((uint64_t)deferred_signals.tv_sec >= UINT64_MAX / 1000000000 - 1)
		return UINT64_MAX;
	return (uint64_t)deferred_signals.tv_sec * 1000000000 + (uint64_t)deferred_signals.tv_usec * 1000;
}
