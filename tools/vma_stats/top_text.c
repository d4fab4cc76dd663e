/* top_text - cells, widths and lines. */
#include <string.h>

#include "top_text.h"
#include "view.h"

/* ---- numbers ---- */

void top_format_number(char text[TOP_NUMBER_BYTES], double value)
{
	static const char units[] = "kMGTPE";
	unsigned unit = 0;

	if (value < 99999.5) {
		snprintf(text, TOP_NUMBER_BYTES, "%.0f", value);
		return;
	}
	for (value /= 1000; value >= 9999.5 && units[unit + 1] != '\0'; unit++)
		value /= 1000;
	if (value >= 9999.5)
		snprintf(text, TOP_NUMBER_BYTES, "huge");
	else
		snprintf(text, TOP_NUMBER_BYTES, value < 99.95 ? "%.1f%c" : "%.0f%c", value, units[unit]);
}

void top_format_megabytes(char text[TOP_NUMBER_BYTES], double bytes)
{
	const double value = bytes / 1e6;

	if (value == 0 || value >= 999.95)
		top_format_number(text, value);
	else
		snprintf(text, TOP_NUMBER_BYTES, "%.*f", value < 9.9995 ? 3 : value < 99.995 ? 2 : 1, value);
}

/* ---- the trend ---- */

#define LEVELS 8

static unsigned trend_bar_level_of_rate(float sample, float most)
{
	if (sample <= 0)
		return 0;
	return sample >= most ? LEVELS - 1 : 1 + (unsigned)(sample / most * (LEVELS - 1));
}

void top_format_trend_bars(char text[TOP_CELL_BYTES], const float *samples, unsigned count, unsigned width, bool utf8)
{
	static const char *const blocks[LEVELS] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
	static const char *const marks[LEVELS] = {"_", ".", "-", ":", "=", "+", "*", "#"};
	const unsigned shown = count < width ? count : width;
	size_t n = 0;
	float most = 0;

	for (unsigned i = count - shown; i < count; i++)
		most = samples[i] > most ? samples[i] : most;
	for (; n < width - shown; n++)
		text[n] = ' ';
	text[n] = '\0';
	for (unsigned i = count - shown; i < count; i++) {
		const unsigned level = trend_bar_level_of_rate(samples[i], most);

		n = (size_t)(stpcpy(text + n, (utf8 ? blocks : marks)[level < LEVELS ? level : LEVELS - 1]) - text);
	}
}

/* ---- cells ---- */

static const struct {
	const char *heading;
	unsigned least, most; /* characters */
	bool left;            /* texts are at the left of their column, numbers at the right */
} columns[TOP_COLUMNS] = {
        [TOP_PID] = {"PID", 5, 10, false},        [TOP_PROGRAM] = {"PROGRAM", 7, 15, true},
        [TOP_FD] = {"FD", 3, 7, false},           [TOP_TYPE] = {"TYPE", 4, 4, true},
        [TOP_LOCAL] = {"LOCAL", 5, 21, true},     [TOP_PEER] = {"PEER", 4, 21, true},
        [TOP_OFFLOAD] = {"OFFLOAD", 7, 13, true}, [TOP_RX] = {"RX/s", 5, 5, false},
        [TOP_TX] = {"TX/s", 5, 5, false},         [TOP_RX_MB] = {"RXMB/s", 6, 6, false},
        [TOP_TX_MB] = {"TXMB/s", 6, 6, false},    [TOP_DROPPED] = {"DROP/s", 6, 6, false},
        [TOP_READY] = {"READY", 6, 6, false},     [TOP_TREND] = {"PACKETS", 8, TOP_SAMPLES, false},
};

const char *top_heading(enum top_column column)
{
	return columns[column].heading;
}

static void format_address_cell(char text[TOP_CELL_BYTES], uint64_t address, uint64_t port)
{
	char name[VIEW_NAME_BYTES] = "-";

	if (address != 0 || port != 0)
		view_format_address_and_port(name, address, port);
	strcpy(text, name);
}

/* The library does not know what waits in the kernel, nor at a listener. */
static void format_ready_data_cell(char text[TOP_CELL_BYTES], const struct top_row *row)
{
	char number[TOP_NUMBER_BYTES];

	if (row->offload != TOP_OFFLOADED || row->listens) {
		strcpy(text, "-");
		return;
	}
	top_format_number(number, (double)(row->tcp ? row->ready_bytes : row->ready_packets));
	snprintf(text, TOP_CELL_BYTES, "%s%c", number, row->tcp ? 'B' : 'p');
}

void top_format_cell(char text[TOP_CELL_BYTES], const struct top_line *line, enum top_column column, unsigned width,
                     bool utf8)
{
	const struct top_row *const row = line->row;
	char word[16];

	text[0] = '\0';
	switch (column) {
	case TOP_PID:
		snprintf(text, TOP_CELL_BYTES, "%d", (int)line->process->pid);
		break;
	case TOP_PROGRAM:
		snprintf(text, TOP_CELL_BYTES, "%.15s", line->process->name);
		break;
	case TOP_FD:
		if (row->fd <= 9999999)
			snprintf(text, TOP_CELL_BYTES, "%" PRIu64, row->fd);
		else
			strcpy(text, "?");
		break;
	case TOP_TYPE:
		strcpy(text, row->tcp ? "tcp" : "udp");
		break;
	case TOP_LOCAL:
		format_address_cell(text, row->local_addr, row->local_port);
		break;
	case TOP_PEER:
		format_address_cell(text, row->peer_addr, row->peer_port);
		break;
	case TOP_OFFLOAD:
		strcpy(text, top_offloaded_or_reason_word(row, word));
		break;
	case TOP_RX:
	case TOP_TX:
		top_format_number(text, row->rates[column == TOP_RX ? TOP_RX_PACKETS : TOP_TX_PACKETS]);
		break;
	case TOP_RX_MB:
	case TOP_TX_MB:
		top_format_megabytes(text, row->rates[column == TOP_RX_MB ? TOP_RX_BYTES : TOP_TX_BYTES]);
		break;
	case TOP_DROPPED:
		top_format_number(text, row->rates[TOP_DROPS]);
		break;
	case TOP_READY:
		format_ready_data_cell(text, row);
		break;
	case TOP_TREND:
		top_format_trend_bars(text, row->history + TOP_SAMPLES - row->samples, row->samples, width, utf8);
		break;
	case TOP_COLUMNS:
		break;
	}
}

/* ---- columns ---- */

/* Columns of one width, and the trend, which has what is left, do not depend on what is in them. */
static bool top_column_width_depends_on_text(enum top_column column)
{
	return columns[column].least != columns[column].most && column != TOP_TREND;
}

void top_widen_columns_to_fit_table(struct top_widths *widths, const struct top_table *table)
{
	char text[TOP_CELL_BYTES];

	for (enum top_column column = 0; column < TOP_COLUMNS; column++) {
		unsigned *const width = &widths->of[column];

		*width = *width < columns[column].least ? columns[column].least : *width;
		for (size_t i = 0;
		     top_column_width_depends_on_text(column) && i < table->count && *width < columns[column].most;
		     i++) {
			size_t len;

			top_format_cell(text, &table->lines[i], column, 0, false);
			len = strlen(text);
			if (len > *width)
				*width = len < columns[column].most ? (unsigned)len : columns[column].most;
		}
	}
}

/* The columns that are shown so far. */
struct top_columns_fit {
	unsigned width[TOP_COLUMNS]; /* 0: it is not */
	unsigned used, room;         /* characters, with the blanks between columns */
};

static void top_fit_column(struct top_columns_fit *top_columns_fit, const struct top_widths *widths,
                           enum top_column column)
{
	const unsigned wanted = widths->of[column] + (top_columns_fit->used != 0);

	if (top_columns_fit->width[column] != 0 ||
	    (top_columns_fit->used != 0 && top_columns_fit->used + wanted > top_columns_fit->room))
		return;
	top_columns_fit->width[column] = widths->of[column];
	top_columns_fit->used += wanted;
}

/* The trend has what is left; if not even the first column has room, it is cut. */
static void give_trend_column_spare_width(struct top_columns_fit *top_columns_fit)
{
	const unsigned left =
	        top_columns_fit->used < top_columns_fit->room ? top_columns_fit->room - top_columns_fit->used : 0;
	const unsigned more = columns[TOP_TREND].most - top_columns_fit->width[TOP_TREND];

	if (top_columns_fit->width[TOP_TREND] != 0)
		top_columns_fit->width[TOP_TREND] += more < left ? more : left;
	if (top_columns_fit->used > top_columns_fit->room)
		top_columns_fit->width[TOP_PID] = top_columns_fit->room;
}

void top_layout_choose_columns_for_width(struct top_layout *layout, const struct top_widths *widths, unsigned skip,
                                         unsigned room)
{
	static const enum top_column top_columns_by_importance[] = {
	        TOP_PID,   TOP_PROGRAM, TOP_RX,    TOP_TX,      TOP_FD,    TOP_TYPE, TOP_OFFLOAD,
	        TOP_LOCAL, TOP_RX_MB,   TOP_TX_MB, TOP_DROPPED, TOP_READY, TOP_PEER, TOP_TREND};
	struct top_columns_fit top_columns_fit = {.room = room};

	_Static_assert(sizeof(top_columns_by_importance) / sizeof(top_columns_by_importance[0]) == TOP_COLUMNS,
	               "each column has its worth");
	top_fit_column(&top_columns_fit, widths, TOP_PID);
	if (skip != 0)
		top_fit_column(&top_columns_fit, widths, TOP_LOCAL + skip);
	for (unsigned i = 0; i < TOP_COLUMNS; i++)
		if (top_columns_by_importance[i] < TOP_LOCAL || top_columns_by_importance[i] >= TOP_LOCAL + skip)
			top_fit_column(&top_columns_fit, widths, top_columns_by_importance[i]);
	give_trend_column_spare_width(&top_columns_fit);
	layout->count = 0;
	for (enum top_column column = 0; column < TOP_COLUMNS; column++)
		if (top_columns_fit.width[column] != 0) {
			layout->cells[layout->count].column = column;
			layout->cells[layout->count++].width = top_columns_fit.width[column];
		}
}

void top_line_text(char text[TOP_LINE_BYTES], const struct top_layout *layout, const struct top_line *line, bool utf8)
{
	char cell[TOP_CELL_BYTES];
	size_t n = 0;

	text[0] = '\0';
	for (unsigned i = 0; i < layout->count; i++) {
		const enum top_column column = layout->cells[i].column;
		const int width = (int)layout->cells[i].width;

		if (line == NULL)
			strcpy(cell, columns[column].heading);
		else
			top_format_cell(cell, line, column, (unsigned)width, utf8);
		if (i != 0)
			text[n++] = ' ';
		if (line != NULL && column == TOP_TREND) /* as wide as its column, in more bytes */
			n += (size_t)snprintf(text + n, TOP_LINE_BYTES - n, "%s", cell);
		else
			n += (size_t)snprintf(text + n, TOP_LINE_BYTES - n, "%*.*s",
			                      columns[column].left ? -width : width, width, cell);
	}
}
