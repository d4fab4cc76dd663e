/*
 * backtrace - VMA_HANDLE_SIGSEGV: the calls that led to a fault that kills, with symbols, in the log.
 *
 * It runs in the handler of a process that is about to end. The functions that it calls take no memory then. The
 * unwinder is loaded at the start, and the symbols are written straight to the log's descriptor. The action is the
 * default one by then, so that a fault in here ends the process and does not begin again.
 */
#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <vma/log.h>

#include "thread.h"

#define CALLS_MAX 64

void backtrace_load_unwinder(void)
{
	void *calls[1];

	backtrace(calls, 1);
}

void backtrace_log_signal(int sig, const siginfo_t *info)
{
	void *calls[CALLS_MAX];
	int n, fd;

	if (!vma_log_level_is_enabled(VMA_LOG_ERROR))
		return;
	if (info->si_code > 0)
		vma_log_error("signal %d at address %p, after these calls:", sig, info->si_addr);
	else
		vma_log_error("signal %d, sent by process %d, after these calls:", sig, (int)info->si_pid);
	n = backtrace(calls, CALLS_MAX);
	fd = vma_log_fd();
	backtrace_symbols_fd(calls, n, fd >= 0 ? fd : STDERR_FILENO);
}
