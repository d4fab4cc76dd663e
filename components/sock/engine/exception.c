/* exception - VMA_EXCEPTION_HANDLING: the answer if a socket, or a call on it, cannot be offloaded. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <vma/log.h>
#include <vma/probe.h>

#include "engine.h"

#define TEXT_MAX 256

static int exception_mode(void)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return engine != NULL ? engine->conf.exception_handling : VMA_EXCEPTION_DEBUG;
}

int vma_engine_apply_offload_failure_policy(int error, const char *fmt, ...)
{
	const int mode = exception_mode();
	const enum vma_log_level level = mode >= VMA_EXCEPTION_ERROR_TO_OS ? VMA_LOG_ERROR : VMA_LOG_DEBUG;
	char text[TEXT_MAX];
	va_list args;

	if (vma_log_level_is_enabled(level)) {
		va_start(args, fmt);
		vsnprintf(text, sizeof(text), fmt, args);
		va_end(args);
		vma_log_write(level, "not offloaded: %s", text);
	}
	if (mode == VMA_EXCEPTION_ABORT)
		abort();
	return mode == VMA_EXCEPTION_RETURN ? -error : 0;
}

/* It was asked for, there was nothing to offload, or it is too early to tell. Options are told when they are set. */
static bool reason_is_expected_or_undecided(enum vma_sock_reason reason)
{
	switch (reason) {
	case VMA_SOCK_OFFLOADED:
	case VMA_SOCK_NEW:
	case VMA_SOCK_DEFERRED:
	case VMA_SOCK_DISABLED:
	case VMA_SOCK_IO_URING:
	case VMA_SOCK_RULE:
	case VMA_SOCK_TYPE:
	case VMA_SOCK_LOCAL:
	case VMA_SOCK_OPTION:
	case VMA_SOCK_INHERITED:
		return true;
	default:
		return false;
	}
}

static bool reason_is_final(enum vma_sock_reason reason)
{
	return reason != VMA_SOCK_OFFLOADED && reason != VMA_SOCK_NEW && reason != VMA_SOCK_DEFERRED &&
	       reason != VMA_SOCK_INHERITED;
}

int vma_engine_report_kernel_fallback(enum vma_sock_reason reason, int error, const char *what)
{
	if (reason_is_final(reason))
		VMA_PROBE3(fallback, reason, vma_sock_reason_text(reason), what);
	return reason_is_expected_or_undecided(reason)
	               ? 0
	               : vma_engine_apply_offload_failure_policy(error, "%s: %s", what, vma_sock_reason_text(reason));
}
