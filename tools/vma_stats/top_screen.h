/*
 * top_screen - the terminal, by ncurses.
 *
 * Threads: one.
 */
#ifndef VMA_STATS_TOOL_TOP_SCREEN_H
#define VMA_STATS_TOOL_TOP_SCREEN_H

#include "top_keys.h"

/* False: standard input or output is no terminal, or one that is not known; `wrong` says so in a sentence. */
bool top_screen_begin(char *wrong, unsigned wrong_bytes);
void top_screen_end(void);
/* The next key that has been typed, as ncurses numbers it; -1: there is none. */
int top_screen_read_key(void);
/* Lines of the table that fit. */
unsigned top_screen_lines_per_page(void);
void top_screen_draw(const struct top_state *state, const struct top_host *host, const struct top_table *table,
                     const struct top_widths *widths);

#endif
