/* timeout - how long a call may wait, as the application gave it. */
#include <errno.h>

#include "iomux_priv.h"

#define SEC 1000000000ULL
#define LONGEST (UINT64_MAX / SEC / 2) /* seconds; whoever waits for centuries waits for ever */

int iomux_timeout_from_timespec(struct iomux_timeout *timeout, const struct timespec *from)
{
	struct timespec ts;

	*timeout = (struct iomux_timeout){.nsec = UINT64_MAX, .deadline = UINT64_MAX};
	if (from == NULL)
		return 0;
	if (vma_memcpy_or_efault(&ts, from, sizeof(ts)) < 0)
		return -EFAULT;
	if (ts.tv_sec < 0 || ts.tv_nsec < 0 || ts.tv_nsec >= (long)SEC)
		return -EINVAL;
	if ((uint64_t)ts.tv_sec < LONGEST)
		timeout->nsec = (uint64_t)ts.tv_sec * SEC + (uint64_t)ts.tv_nsec;
	return 0;
}

/* Asked for once, when it is known that there is something to wait for. */
void iomux_timeout_start(struct iomux_timeout *timeout)
{
	if (timeout->nsec == 0)
		timeout->deadline = 0;
	else if (timeout->nsec != UINT64_MAX && timeout->deadline == UINT64_MAX)
		timeout->deadline = vma_now_ns() + timeout->nsec;
}

void iomux_timeout_left(const struct iomux_timeout *timeout, struct timespec *left)
{
	uint64_t nsec = timeout->nsec, now;

	if (nsec == UINT64_MAX)
		return;
	if (timeout->deadline != UINT64_MAX) {
		now = vma_now_ns();
		nsec = timeout->deadline > now ? timeout->deadline - now : 0;
	}
	*left = (struct timespec){(time_t)(nsec / SEC), (long)(nsec % SEC)};
}
