/* log_once - each distinct text is written once. */
#include <errno.h>

#include "log_priv.h"

#define LOGGED_MAX 1024 /* 8 kB; a process has a few dozen problems, not a thousand */

/*
 * An open hash set that only grows. Slots go from 0 to a hash by compare-and-swap and never change again; every thread
 * probes from the same first slot in the same order. So of two threads with one hash, both reach the first slot that
 * was free, one swap succeeds, and the other reads the winner's hash there: exactly one gets true. Nothing is published
 * through a slot but its own value: relaxed is enough.
 */
static _Atomic uint64_t seen[LOGGED_MAX] __attribute__((section(".bss.far")));

static uint64_t hash_text(const char *text, size_t len) /* FNV-1a, 64 bits */
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
	return hash != 0 ? hash : 1; /* 0 is a free slot */
}

static bool message_is_first_time(uint64_t hash)
{
	for (size_t i = 0; i < LOGGED_MAX; i++) {
		_Atomic uint64_t *slot = &seen[(hash + i) % LOGGED_MAX];
		uint64_t found = atomic_load_explicit(slot, memory_order_relaxed);

		if (found == 0 && atomic_compare_exchange_strong_explicit(slot, &found, hash, memory_order_relaxed,
		                                                          memory_order_relaxed))
			return true;
		if (found == hash)
			return false;
	}
	return true; /* full: rather twice than never */
}

bool vma_log_once(enum vma_log_level level, const char *fmt, ...)
{
	struct log_line line;
	int saved = errno;
	bool first;
	va_list args;

	if (!vma_log_level_is_enabled(level))
		return false;
	va_start(args, fmt);
	log_line_format_text(&line, fmt, args);
	va_end(args);
	first = message_is_first_time(hash_text(log_line_text_at(&line), line.text_len));
	if (first)
		log_out_write_line(&line, level);
	errno = saved;
	return first;
}
