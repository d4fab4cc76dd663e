/* log_line - the shape of a line: [Time: ms ][Pid: n ][Tid: n ]VMA LEVEL: text. */
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "log_priv.h"

#define CUT_MARK " [...]"
#define COLOR_RED "\033[31m"
#define COLOR_DIM "\033[2m"
#define COLOR_END "\033[0m"

_Static_assert(sizeof(COLOR_END "\n") - 1 <= LOG_TAIL_MAX, "room for the tail");

static uint64_t log_start_ns;

static uint64_t log_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Preloaded or linked in, this runs when the process starts; after dlopen, time counts from there. */
__attribute__((constructor)) static void record_start_time(void)
{
	log_start_ns = log_now_ns();
}

static void cut_log_text(char *text, size_t *len)
{
	size_t end = LOG_TEXT_MAX - 1 - (sizeof(CUT_MARK) - 1);

	while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80) /* not inside a UTF-8 character */
		end--;
	memcpy(text + end, CUT_MARK, sizeof(CUT_MARK));
	*len = end + sizeof(CUT_MARK) - 1;
}

void log_line_format_text(struct log_line *line, const char *fmt, va_list args)
{
	char *text = line->bytes + LOG_HEAD_MAX;
	int n = vsnprintf(text, LOG_TEXT_MAX, fmt, args);
	size_t len;

	if (n < 0) { /* an encoding error in an argument: the format still says where */
		len = strnlen(fmt, LOG_TEXT_MAX - 1);
		memcpy(text, fmt, len);
	} else if ((size_t)n >= LOG_TEXT_MAX) {
		cut_log_text(text, &len);
	} else {
		len = (size_t)n;
	}
	while (len > 0 && text[len - 1] == '\n')
		len--;
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)text[i];
		if ((c < 0x20 && c != '\t') || c == 0x7f)
			text[i] = '?';
	}
	line->text_len = len;
}

const char *log_line_color(enum vma_log_level level)
{
	if (level >= VMA_LOG_PANIC && level <= VMA_LOG_WARN)
		return COLOR_RED;
	return level >= VMA_LOG_FINE ? COLOR_DIM : NULL;
}

/* Returns the length; every part is bounded, so LOG_HEAD_MAX is never reached. */
static size_t log_write_head(char *head, enum vma_log_level level, unsigned details, const char *color)
{
	size_t len = 0;

	if (color != NULL)
		len += (size_t)snprintf(head + len, LOG_HEAD_MAX - len, "%s", color);
	if (details >= 3) {
		uint64_t us = (log_now_ns() - log_start_ns) / 1000;
		len += (size_t)snprintf(head + len, LOG_HEAD_MAX - len, "Time: %llu.%03llu ",
		                        (unsigned long long)(us / 1000), (unsigned long long)(us % 1000));
	}
	if (details >= 2)
		len += (size_t)snprintf(head + len, LOG_HEAD_MAX - len, "Pid: %ld ", syscall(SYS_getpid));
	if (details >= 1)
		len += (size_t)snprintf(head + len, LOG_HEAD_MAX - len, "Tid: %ld ", syscall(SYS_gettid));
	len += (size_t)snprintf(head + len, LOG_HEAD_MAX - len, "VMA %s: ", vma_log_level_name(level));
	return len;
}

const char *log_line_add_head_and_newline(struct log_line *line, enum vma_log_level level, unsigned details,
                                          bool terminal, size_t *len)
{
	const char *color = terminal ? log_line_color(level) : NULL;
	const char *tail = color != NULL ? COLOR_END "\n" : "\n";
	char head[LOG_HEAD_MAX];
	size_t head_len = log_write_head(head, level, details, color);
	char *start = line->bytes + LOG_HEAD_MAX - head_len;

	memcpy(start, head, head_len);
	memcpy(line->bytes + LOG_HEAD_MAX + line->text_len, tail, strlen(tail));
	*len = head_len + line->text_len + strlen(tail);
	return start;
}
