/* top_screen - drawing. All text comes from top_text and top_keys; here it is cut to the terminal's size. */
#include <langinfo.h>
#include <locale.h>
#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "top_screen.h"

static struct {
	SCREEN *screen;
	bool utf8;
} terminal;

void top_screen_end(void)
{
	endwin();
	delscreen(terminal.screen);
	terminal.screen = NULL;
}

/* False: its kind is not known, or it cannot place its cursor, as "dumb". */
static bool open_terminal(void)
{
	const char *cursor_address;

	terminal.screen = newterm(NULL, stdout, stdin);
	if (terminal.screen == NULL)
		return false;
	cursor_address = tigetstr("cup");
	if (cursor_address != NULL && cursor_address != (char *)-1)
		return true;
	top_screen_end();
	return false;
}

bool top_screen_begin(char *wrong, unsigned wrong_bytes)
{
	const char *const type = getenv("TERM");

	if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO)) {
		snprintf(wrong, wrong_bytes, "--top needs a terminal: standard %s is none",
		         isatty(STDOUT_FILENO) ? "input" : "output");
		return false;
	}
	setlocale(LC_CTYPE, "");
	terminal.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	if (!open_terminal()) {
		snprintf(wrong, wrong_bytes,
		         "--top needs a terminal that is known and can place its cursor: TERM is '%.32s'",
		         type != NULL ? type : "");
		return false;
	}
	cbreak();
	noecho();
	nodelay(stdscr, TRUE);
	keypad(stdscr, TRUE);
	set_escdelay(50);
	return true;
}

int top_screen_read_key(void)
{
	const int key = getch();

	return key != ERR ? key : -1;
}

/* ---- drawing ---- */

/* On a low terminal the head gives way to the table. */
static unsigned top_head_line_count(void)
{
	return LINES >= 8 ? TOP_HEAD_LINES : LINES >= 4 ? 1 : 0;
}

unsigned top_screen_lines_per_page(void)
{
	const int page = LINES - (int)top_head_line_count() - 1;

	return page > 0 ? (unsigned)page : 0;
}

/* Printable ASCII. */
static void draw_text(unsigned row, const char *text)
{
	mvaddnstr((int)row, 0, text, COLS);
}

static void draw_reverse_text_line(unsigned row, const char *text)
{
	attron(A_REVERSE);
	mvhline((int)row, 0, ' ', COLS);
	draw_text(row, text);
	attroff(A_REVERSE);
}

/* The trend's characters have three bytes each; the layout sees to the width. */
static void draw_line(unsigned row, const char *text, bool highlighted)
{
	if (highlighted)
		attron(A_BOLD);
	mvaddstr((int)row, 0, text);
	if (highlighted)
		attroff(A_BOLD);
}

static void draw_help(void)
{
	for (unsigned i = 0; top_help[i] != NULL; i++)
		draw_text(i, top_help[i]);
}

static void draw_table(const struct top_state *state, const struct top_table *table, const struct top_widths *widths,
                       unsigned row)
{
	const unsigned page = top_screen_lines_per_page();
	struct top_layout layout;
	char text[TOP_LINE_BYTES];

	top_layout_choose_columns_for_width(&layout, widths, state->skip, (unsigned)COLS);
	top_line_text(text, &layout, NULL, false);
	draw_reverse_text_line(row++, text);
	for (size_t i = state->first; i < table->count && i < state->first + page; i++) {
		top_line_text(text, &layout, &table->lines[i], terminal.utf8);
		draw_line(row++, text, i == state->cursor);
	}
}

void top_screen_draw(const struct top_state *state, const struct top_host *host, const struct top_table *table,
                     const struct top_widths *widths)
{
	char text[TOP_LINE_BYTES];

	erase();
	if (state->redraw)
		clearok(curscr, TRUE);
	curs_set(state->prompt != PROMPT_NONE);
	if (state->help) {
		draw_help();
	} else {
		for (unsigned line = 0; line < top_head_line_count(); line++) {
			top_head_text(text, line, state, host, table);
			draw_text(line, text);
		}
		draw_table(state, table, widths, top_head_line_count());
	}
	if (state->prompt != PROMPT_NONE) {
		top_prompt_text(text, state);
		draw_reverse_text_line((unsigned)LINES - 1, text);
	}
	refresh();
}
