/*
 * spin.so - the spinning twin: waits of an unmodified program on kernel sockets become loops without sleep. What only
 * this gains is the kernel's wake-up, so what the library gains beyond it is its own. Preloaded by bench/tcp.sh.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <time.h>

static uint64_t spin_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

#define POLL_WITHOUT_SLEEPING(call, timeout_ms)                                                                        \
	uint64_t end = (timeout_ms) > 0 ? spin_now_ms() + (uint64_t)(timeout_ms) : 0;                                  \
	int rc;                                                                                                        \
                                                                                                                       \
	do                                                                                                             \
		rc = call;                                                                                             \
	while (rc == 0 && ((timeout_ms) < 0 || ((timeout_ms) > 0 && spin_now_ms() < end)));                            \
	return rc

int epoll_wait(int set, struct epoll_event *events, int max, int timeout_ms)
{
	static int (*real)(int, struct epoll_event *, int, int);

	if (real == 0)
		*(void **)&real = dlsym(RTLD_NEXT, "epoll_wait");
	POLL_WITHOUT_SLEEPING(real(set, events, max, 0), timeout_ms);
}

int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	static int (*real)(struct pollfd *, nfds_t, int);

	if (real == 0)
		*(void **)&real = dlsym(RTLD_NEXT, "poll");
	POLL_WITHOUT_SLEEPING(real(fds, n, 0), timeout_ms);
}
