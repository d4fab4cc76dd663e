/* load - whether more threads are runnable on this host than it has cores: load.h. */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/sock.h>
#include <vma/sock_thread.h>

#include "load.h"

#define DIGITS_MAX 7 /* the kernel has at most 2^22 threads */

/* "0.20 0.18 0.12 RUNNABLE/ALL PID" */
int loadavg_parse_runnable(const char *text, size_t len)
{
	size_t at = 0, begun;
	int runnable = 0;

	for (int fields = 0; fields < 3; fields++) {
		while (at < len && text[at] != ' ')
			at++;
		at++;
	}
	for (begun = at; at < len && text[at] >= '0' && text[at] <= '9'; at++) {
		if (at - begun >= DIGITS_MAX)
			return -1;
		runnable = runnable * 10 + (text[at] - '0');
	}
	return at > begun && at < len && text[at] == '/' ? runnable : -1;
}

void loadavg_set_fd_and_cores(struct load *load, int fd, uint32_t cores)
{
	load->fd = fd;
	load->cores = cores;
}

static bool loadavg_open_host(struct load *load)
{
	int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/loadavg", O_RDONLY | O_CLOEXEC), up;
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	if (fd < 0 || cores < 1)
		return false;
	up = vma_fd_move_high_and_guard(fd);
	loadavg_set_fd_and_cores(load, up < 0 ? fd : up, (uint32_t)cores);
	return true;
}

/* -1: it cannot be read, now or later. */
static int loadavg_read_runnable(struct load *load)
{
	char text[128];
	ssize_t len;

	if (load->cores == 0 && !loadavg_open_host(load))
		return -1;
	len = syscall(SYS_pread64, load->fd, text, sizeof(text), (off_t)0);
	return len < 0 ? -1 : loadavg_parse_runnable(text, (size_t)len);
}

/*
 * Who moves next_tsc on to UINT64_MAX has fd, cores and high_samples to itself until it stores the next time, with
 * release, for the acquire of the next one. If the file cannot be read that time never comes, and nothing is high.
 */
static __attribute__((noinline)) void loadavg_sample(struct load *load, uint64_t now_tsc, uint64_t next_tsc)
{
	const int saved = errno;
	int runnable;

	if (!atomic_compare_exchange_strong_explicit(&load->next_tsc, &next_tsc, UINT64_MAX, memory_order_acquire,
	                                             memory_order_relaxed))
		return;
	runnable = loadavg_read_runnable(load);
	if (runnable <= (int)load->cores)
		load->high_samples = 0;
	else if (load->high_samples < LOAD_SAMPLES)
		load->high_samples++;
	atomic_store_explicit(&load->high, load->high_samples == LOAD_SAMPLES, memory_order_relaxed);
	if (runnable >= 0)
		atomic_store_explicit(&load->next_tsc, now_tsc + vma_tsc_of_nsec(LOAD_NSEC), memory_order_release);
	errno = saved;
}

bool loadavg_is_high(struct load *load, uint64_t now_tsc)
{
	uint64_t next_tsc = atomic_load_explicit(&load->next_tsc, memory_order_relaxed);

	if (__builtin_expect(now_tsc >= next_tsc, 0))
		loadavg_sample(load, now_tsc, next_tsc);
	return atomic_load_explicit(&load->high, memory_order_relaxed);
}

void loadavg_reset_in_fork_child(struct load *load)
{
	load->high_samples = 0;
	atomic_store_explicit(&load->high, false, memory_order_relaxed);
	atomic_store_explicit(&load->next_tsc, 0, memory_order_relaxed);
}
