/* log_priv - a line on its way: composed by log_line.c, sent by log_out.c. */
#ifndef VMA_LOG_PRIV_H
#define VMA_LOG_PRIV_H

#include <stdarg.h>

#include <vma/log.h>

/* Room before the text for colour, time, pid, tid and level, and after it for the colour's end and the newline. */
#define LOG_HEAD_MAX 112
#define LOG_TAIL_MAX 8
#define LOG_TEXT_MAX (VMA_LOG_LINE_MAX - LOG_HEAD_MAX - LOG_TAIL_MAX)

/* The text stands at a fixed place; the head is put right before it when its length is known. */
struct log_line {
	char bytes[VMA_LOG_LINE_MAX];
	size_t text_len;
};

/* Fills in the text: formatted, cut with a mark, without control characters. */
void log_line_format_text(struct log_line *line, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));
static inline const char *log_line_text_at(const struct log_line *line)
{
	return line->bytes + LOG_HEAD_MAX;
}
/* Puts head and tail around the text; returns the first byte to send, and how many. */
const char *log_line_add_head_and_newline(struct log_line *line, enum vma_log_level level, unsigned details,
                                          bool terminal, size_t *len);
/* NULL: lines of this level have no colour. */
const char *log_line_color(enum vma_log_level level);

/* Sends the line to where the log goes now. */
void log_out_write_line(struct log_line *line, enum vma_log_level level);

#endif
