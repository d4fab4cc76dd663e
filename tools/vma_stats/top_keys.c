/* top_keys - keys, the cursor, and the messages about them. */
#include <ncurses.h>
#include <stdlib.h>
#include <string.h>

#include "top_keys.h"

#define KEY_ESCAPE 27
#define INTERVAL_MAX 1000000

const char *const top_help[] = {
        "<  >          sort by the column at the left, at the right",
        "r             reverse the order",
        "Up Down       choose a line; also PgUp, PgDn, Home, End",
        "Enter         only the process of that line; again, or Esc: all",
        "/             only programs with this text in their name; empty: all",
        "Left Right    leave columns out, so that others have room",
        "+  -  d       a longer or shorter interval; d asks for seconds",
        "p or blank    pause, and go on",
        "q             quit",
        "",
        "RX TX         packets: datagrams; of TCP, calls that moved bytes",
        "READY         what waits to be received: datagrams (p), bytes (B)",
        "PACKETS       the packet rate as it was, beside its largest value",
        "",
        "Any key goes back.",
        NULL,
};

/* ---- the cursor ---- */

static bool top_line_is_followed(const struct top_state *state, const struct top_line *line)
{
	return line->process->pid == state->follows.pid && line->row->place == state->follows.place &&
	       line->row->sequence == state->follows.sequence;
}

void top_place_cursor(struct top_state *state, const struct top_table *table, unsigned page)
{
	if (state->follows.pid != 0) {
		size_t i = 0;

		while (i < table->count && !top_line_is_followed(state, &table->lines[i]))
			i++;
		if (i < table->count)
			state->cursor = i;
		else
			state->follows.pid = 0;
	}
	if (state->cursor >= table->count)
		state->cursor = table->count != 0 ? table->count - 1 : 0;
	if (state->cursor < state->first)
		state->first = state->cursor;
	if (page != 0 && state->cursor >= state->first + page)
		state->first = state->cursor - page + 1;
	if (state->first + page > table->count)
		state->first = table->count > page ? table->count - page : 0;
}

static void move_cursor(struct top_state *state, const struct top_table *table, long by)
{
	const long last = table->count != 0 ? (long)table->count - 1 : 0;
	const long to = (long)state->cursor + by;

	state->cursor = (size_t)(to < 0 ? 0 : to > last ? last : to);
	if (table->count == 0)
		return;
	state->follows.pid = table->lines[state->cursor].process->pid;
	state->follows.place = table->lines[state->cursor].row->place;
	state->follows.sequence = table->lines[state->cursor].row->sequence;
}

/* ---- prompts ---- */

static void begin_prompt(struct top_state *state, enum top_prompt prompt)
{
	state->prompt = prompt;
	state->typed[0] = '\0';
}

static void top_apply_prompt_input(struct top_state *state)
{
	unsigned long seconds;

	if (state->prompt == PROMPT_FILTER)
		strcpy(state->choice.filter, state->typed);
	seconds = strtoul(state->typed, NULL, 10);
	if (state->prompt == PROMPT_INTERVAL && seconds >= 1 && seconds <= INTERVAL_MAX)
		state->interval = (unsigned)seconds;
	state->prompt = PROMPT_NONE;
}

static void top_handle_prompt_key(struct top_state *state, int key)
{
	const size_t len = strlen(state->typed);

	if (key == '\n' || key == '\r' || key == KEY_ENTER) {
		top_apply_prompt_input(state);
	} else if (key == KEY_ESCAPE) {
		state->prompt = PROMPT_NONE;
	} else if ((key == KEY_BACKSPACE || key == 127 || key == '\b') && len != 0) {
		state->typed[len - 1] = '\0';
	} else if (key >= ' ' && key <= '~' && len + 1 < sizeof(state->typed)) {
		state->typed[len] = (char)key;
		state->typed[len + 1] = '\0';
	}
}

/* ---- keys ---- */

static void top_toggle_process_filter(struct top_state *state, const struct top_table *table)
{
	if (state->choice.only != 0)
		state->choice.only = 0;
	else if (state->cursor < table->count)
		state->choice.only = table->lines[state->cursor].process->pid;
}

static bool top_handle_cursor_key(struct top_state *state, int key, const struct top_table *table, unsigned page)
{
	switch (key) {
	case KEY_UP:
		move_cursor(state, table, -1);
		break;
	case KEY_DOWN:
		move_cursor(state, table, 1);
		break;
	case KEY_PPAGE:
		move_cursor(state, table, -(long)page);
		break;
	case KEY_NPAGE:
		move_cursor(state, table, (long)page);
		break;
	case KEY_HOME:
		move_cursor(state, table, -(long)table->count);
		break;
	case KEY_END:
		move_cursor(state, table, (long)table->count);
		break;
	default:
		return false;
	}
	return true;
}

static void top_handle_key_command(struct top_state *state, int key, const struct top_table *table)
{
	struct top_choice *const choice = &state->choice;

	switch (key) {
	case '<':
		choice->sort = choice->sort != 0 ? choice->sort - 1 : TOP_COLUMNS - 1;
		break;
	case '>':
		choice->sort = (choice->sort + 1) % TOP_COLUMNS;
		break;
	case 'r':
	case 'R':
		choice->reverse = !choice->reverse;
		break;
	case KEY_LEFT:
		state->skip -= state->skip != 0;
		break;
	case KEY_RIGHT:
		state->skip += state->skip < TOP_SKIP_MAX;
		break;
	case '+':
		state->interval += state->interval < INTERVAL_MAX;
		break;
	case '-':
		state->interval -= state->interval > 1;
		break;
	case 'd':
		begin_prompt(state, PROMPT_INTERVAL);
		break;
	case '/':
		begin_prompt(state, PROMPT_FILTER);
		break;
	case '\n':
	case '\r':
	case KEY_ENTER:
		top_toggle_process_filter(state, table);
		break;
	case KEY_ESCAPE:
		choice->only = 0;
		break;
	case 'p':
	case ' ':
		state->paused = !state->paused;
		break;
	case 'h':
	case '?':
		state->help = true;
		break;
	case 'q':
		state->ended = true;
		break;
	default:
		break;
	}
}

void top_handle_key(struct top_state *state, int key, const struct top_table *table, unsigned page)
{
	if (key == KEY_RESIZE || key == ('l' & 31)) /* Ctrl-L: other programs have written to the terminal */
		state->redraw = true;
	else if (state->help)
		state->help = false;
	else if (state->prompt != PROMPT_NONE)
		top_handle_prompt_key(state, key);
	else if (!top_handle_cursor_key(state, key, table, page))
		top_handle_key_command(state, key, table);
}

/* ---- texts ---- */

static size_t top_append_rates_text(char *text, const double *rates, const char *name, enum top_rate packets,
                                    enum top_rate bytes)
{
	char number[TOP_NUMBER_BYTES], megabytes[TOP_NUMBER_BYTES];

	top_format_number(number, rates[packets]);
	top_format_megabytes(megabytes, rates[bytes]);
	return (size_t)sprintf(text, "%s %s/s, %s MB/s   ", name, number, megabytes);
}

static void top_format_total_rates(char text[TOP_LINE_BYTES], const struct top_table *table)
{
	char number[TOP_NUMBER_BYTES];
	size_t n = top_append_rates_text(text, table->rates, "rx", TOP_RX_PACKETS, TOP_RX_BYTES);

	n += top_append_rates_text(text + n, table->rates, "tx", TOP_TX_PACKETS, TOP_TX_BYTES);
	top_format_number(number, table->rates[TOP_DROPS]);
	sprintf(text + n, "drops %s/s", number);
}

static void top_format_status_line(char text[TOP_LINE_BYTES], const struct top_state *state,
                                   const struct top_host *host)
{
	const struct top_choice *const choice = &state->choice;
	int n = sprintf(text, "sort %s, %s", top_heading(choice->sort),
	                top_column_sorts_descending(choice->sort) != choice->reverse ? "falling" : "rising");

	if (state->paused)
		n += sprintf(text + n, "; paused");
	if (choice->only != 0)
		n += sprintf(text + n, "; process %d only", (int)choice->only);
	if (choice->filter[0] != '\0')
		n += sprintf(text + n, "; programs with '%s'", choice->filter);
	if (host->unreadable != 0)
		n += sprintf(text + n, "; processes not readable: %u", host->unreadable);
	if (host->put_off != 0)
		n += sprintf(text + n, "; put off: %u", host->put_off);
	if (host->left_out != 0)
		sprintf(text + n, "; sockets left out: %zu", host->left_out);
}

void top_head_text(char text[TOP_LINE_BYTES], unsigned line, const struct top_state *state, const struct top_host *host,
                   const struct top_table *table)
{
	if (line == 0)
		sprintf(text, "vma_stats, every %u s: processes %zu; sockets offloaded %zu, kernel %zu, undecided %zu",
		        state->interval, table->processes, table->sockets[TOP_OFFLOADED], table->sockets[TOP_BY_KERNEL],
		        table->sockets[TOP_UNDECIDED]);
	else if (line == 1)
		top_format_total_rates(text, table);
	else
		top_format_status_line(text, state, host);
}

void top_prompt_text(char text[TOP_LINE_BYTES], const struct top_state *state)
{
	sprintf(text, "%s: %s", state->prompt == PROMPT_FILTER ? "programs with (empty: all)" : "interval in seconds",
	        state->typed);
}
