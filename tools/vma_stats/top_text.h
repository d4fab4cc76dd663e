/*
 * top_text - the screen's text: numbers that fit a column, a trend as a line of blocks, and which columns a width has
 * room for.
 *
 * No text is longer than its column, even if a process has written nonsense into its memory. Every character but those
 * of the trend is printable ASCII.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_TOP_TEXT_H
#define VMA_STATS_TOOL_TOP_TEXT_H

#include "top_table.h"

#define TOP_NUMBER_BYTES 8
#define TOP_CELL_BYTES (3 * TOP_SAMPLES + 1)
#define TOP_LINE_BYTES 512

/* Five characters at most: "99999", "123k", "10.0M". */
void top_format_number(char text[TOP_NUMBER_BYTES], double value);
/* Bytes as megabytes (1,000,000): "0.583", "12.34", "1234". */
void top_format_megabytes(char text[TOP_NUMBER_BYTES], double bytes);
/*
 * The last `width` of `count` samples, the newest at the right, beside the largest of them; `width` characters. The
 * lowest level is for 0 alone.
 */
void top_format_trend_bars(char text[TOP_CELL_BYTES], const float *samples, unsigned count, unsigned width, bool utf8);

const char *top_heading(enum top_column column);
/* Without what fills the column up. `width` matters to the trend only. */
void top_format_cell(char text[TOP_CELL_BYTES], const struct top_line *line, enum top_column column, unsigned width,
                     bool utf8);

/* Columns grow with the texts in them, and shrink only if this is zeroed, so that they stand still. Zero it first. */
struct top_widths {
	unsigned of[TOP_COLUMNS];
};
void top_widen_columns_to_fit_table(struct top_widths *widths, const struct top_table *table);

struct top_layout {
	unsigned count;
	struct {
		enum top_column column;
		unsigned width;
	} cells[TOP_COLUMNS]; /* from left to right, a blank between two */
};
#define TOP_SKIP_MAX (TOP_COLUMNS - TOP_LOCAL - 1)
/* The columns of most worth that fit, without the first `skip` of those behind the type; the next one has its place. */
void top_layout_choose_columns_for_width(struct top_layout *layout, const struct top_widths *widths, unsigned skip,
                                         unsigned columns);
/* A line of the table; `line` NULL: the headings. */
void top_line_text(char text[TOP_LINE_BYTES], const struct top_layout *layout, const struct top_line *line, bool utf8);

#endif
