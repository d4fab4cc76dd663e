/* policy - the user's settings, and when the OS is due to be asked. */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "iomux_priv.h"

#include <vma/sock_engine.h>

#define OS_POLL_INTERVAL_NSEC 20000

/* As in conf_params.h; before the engine runs no member is offloaded, and the kernel's answer is all there is. */
static const struct iomux_policy defaults = {.spin_nsec = 100000000, .os_ratio = 10, .skip_os = 3};

void iomux_policy_get(struct iomux_policy *policy)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);
	const struct vma_conf *conf;

	*policy = defaults;
	if (engine == NULL)
		return;
	conf = &engine->conf;
	policy->spin_nsec = conf->select_poll < 0 ? -1 : conf->select_poll * 1000;
	policy->os_ratio = (uint32_t)conf->select_poll_os_ratio;
	/* Once in so many calls; 0, never by count, becomes a count that nobody lives to see the end of. */
	policy->skip_os = (uint32_t)conf->select_skip_os - 1;
	policy->yield = conf->rx_poll_yield;
	policy->os_force = conf->select_poll_os_force;
}

bool iomux_conf_forces_os_poll(void)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return engine != NULL && engine->conf.select_poll_os_force;
}

void iomux_note_os_polled_now(struct iomux_os_polled *os_polled)
{
	*os_polled = (struct iomux_os_polled){.tsc = vma_tsc()};
}

bool iomux_os_poll_is_long_ago(const struct iomux_os_polled *os_polled)
{
	static _Atomic uint64_t ticks;
	uint64_t gap = atomic_load_explicit(&ticks, memory_order_relaxed);

	if (gap == 0) {
		gap = vma_tsc_of_nsec(OS_POLL_INTERVAL_NSEC) | 1;
		atomic_store_explicit(&ticks, gap, memory_order_relaxed);
	}
	return os_polled->tsc == 0 || vma_tsc() - os_polled->tsc > gap;
}

/* A pending signal is no reason to fail: the caller goes on to wait, or comes to iomux_run_held_signals_return_eintr.
 * */
static int os_poll_result(long rc)
{
	if (rc >= 0)
		return (int)rc;
	return errno == EINTR ? 0 : -errno;
}

/* By syscall: the C library's are cancellation points, and this may be under a lock. */
int iomux_os_poll_nonblocking(struct pollfd *fds, nfds_t n)
{
	struct timespec none = {0, 0};

	return os_poll_result(syscall(SYS_ppoll, fds, n, &none, NULL, 0));
}

int iomux_os_epoll_nonblocking(int epfd, struct epoll_event *events, int max)
{
	return os_poll_result(syscall(SYS_epoll_pwait, epfd, events, max, 0, NULL, _NSIG / 8));
}
