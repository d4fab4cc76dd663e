/*
 * top_keys - what a key does: the state of the screen, without the screen.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_TOP_KEYS_H
#define VMA_STATS_TOOL_TOP_KEYS_H

#include "top_table.h"
#include "top_text.h"

enum top_prompt { PROMPT_NONE, PROMPT_FILTER, PROMPT_INTERVAL };

/* Zero it first, but for interval and choice. */
struct top_state {
	unsigned interval; /* seconds */
	struct top_choice choice;
	bool paused, help, ended;
	bool redraw;            /* the screen is to be drawn from nothing */
	enum top_prompt prompt; /* typed text goes there */
	char typed[TOP_FILTER_BYTES];
	unsigned skip;        /* columns that are left out, from the local address on */
	size_t first, cursor; /* lines of the table: at the top of the screen; highlighted */
	struct {
		pid_t pid;
		uint32_t place, sequence;
	} follows; /* the socket on which the cursor stays; pid 0: it stays on its line */
};

/* A key as ncurses numbers it, `page` lines of the table being on the screen. */
void top_handle_key(struct top_state *state, int key, const struct top_table *table, unsigned page);
/* After the table or the page has changed: the cursor is on its socket, and on the screen. */
void top_place_cursor(struct top_state *state, const struct top_table *table, unsigned page);
/* What the head and the last line say. */
void top_head_text(char text[TOP_LINE_BYTES], unsigned line, const struct top_state *state, const struct top_host *host,
                   const struct top_table *table);
#define TOP_HEAD_LINES 3
void top_prompt_text(char text[TOP_LINE_BYTES], const struct top_state *state);
extern const char *const top_help[]; /* lines, and NULL */

#endif
