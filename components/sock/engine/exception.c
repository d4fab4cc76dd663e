/* exception - VMA_EXCEPTION_HANDLING: what happens where a program asks for what is not offloaded. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <vma/log.h>

#include "engine.h"

#define TEXT_MAX 256

static int exception_mode(void)
{
	const struct vma_engine *engine = atomic_load_explicit(&vma_engine_now, memory_order_acquire);

	return engine != NULL ? engine->conf.exception_handling : VMA_EXCEPTION_DEBUG;
}

int vma_engine_exception(int error, const char *fmt, ...)
{
	const int mode = exception_mode();
	const enum vma_log_level level = mode >= VMA_EXCEPTION_ERROR_TO_OS ? VMA_LOG_ERROR : VMA_LOG_DEBUG;
	char text[TEXT_MAX];
	va_list args;

	if (vma_log_on(level)) {
		va_start(args, fmt);
		vsnprintf(text, sizeof(text), fmt, args);
		va_end(args);
		vma_log_write(level, "not offloaded: %s", text);
	}
	if (mode == VMA_EXCEPTION_ABORT)
		abort();
	return mode == VMA_EXCEPTION_RETURN ? -error : 0;
}
