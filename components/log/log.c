/* log - the level in force, and a line from format to output. */
#include <errno.h>

#include "log_priv.h"

_Atomic int vma_log_level_now = VMA_LOG_INFO;

void vma_log_set_level(enum vma_log_level level)
{
	atomic_store_explicit(&vma_log_level_now, (int)level, memory_order_relaxed);
}

void vma_log_write(enum vma_log_level level, const char *fmt, ...)
{
	struct log_line line;
	int saved = errno; /* for the caller, and for a %m in fmt */
	va_list args;

	va_start(args, fmt);
	log_line_format_text(&line, fmt, args);
	va_end(args);
	log_out_write_line(&line, level);
	errno = saved;
}
