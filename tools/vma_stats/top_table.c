/* top_table - filter, order and sums. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "top_table.h"
#include "view.h"

void top_table_fini(struct top_table *table)
{
	free(table->lines);
	*table = (struct top_table){0};
}

bool top_column_sorts_descending(enum top_column column)
{
	return column >= TOP_RX;
}

const char *top_offloaded_or_reason_word(const struct top_row *row, char word[16])
{
	const char *const reason = row->offload == TOP_OFFLOADED ? "yes" : view_reason_word(row->reason);
	size_t n = 0;

	for (; n < 15 && reason[n] != '\0'; n++)
		word[n] = (char)tolower((unsigned char)reason[n]);
	word[n] = '\0';
	return word;
}

/* ---- order ---- */

#define COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

static int compare_addresses_then_ports(uint64_t addr_a, uint64_t port_a, uint64_t addr_b, uint64_t port_b)
{
	return addr_a != addr_b ? COMPARE(addr_a, addr_b) : COMPARE(port_a, port_b);
}

static int compare_offload(const struct top_row *a, const struct top_row *b)
{
	char word_a[16], word_b[16];

	return strcmp(top_offloaded_or_reason_word(a, word_a), top_offloaded_or_reason_word(b, word_b));
}

static double top_packet_rate_of_row(const struct top_row *row)
{
	return row->rates[TOP_RX_PACKETS] + row->rates[TOP_TX_PACKETS];
}

static int compare_column(const struct top_line *a, const struct top_line *b, enum top_column column)
{
	const struct top_row *const x = a->row, *const y = b->row;

	switch (column) {
	case TOP_PROGRAM:
		return strcmp(a->process->name, b->process->name);
	case TOP_FD:
		return COMPARE(x->fd, y->fd);
	case TOP_TYPE:
		return COMPARE(x->tcp, y->tcp);
	case TOP_LOCAL:
		return compare_addresses_then_ports(x->local_addr, x->local_port, y->local_addr, y->local_port);
	case TOP_PEER:
		return compare_addresses_then_ports(x->peer_addr, x->peer_port, y->peer_addr, y->peer_port);
	case TOP_OFFLOAD:
		return compare_offload(x, y);
	case TOP_RX:
		return COMPARE(x->rates[TOP_RX_PACKETS], y->rates[TOP_RX_PACKETS]);
	case TOP_TX:
		return COMPARE(x->rates[TOP_TX_PACKETS], y->rates[TOP_TX_PACKETS]);
	case TOP_RX_MB:
		return COMPARE(x->rates[TOP_RX_BYTES], y->rates[TOP_RX_BYTES]);
	case TOP_TX_MB:
		return COMPARE(x->rates[TOP_TX_BYTES], y->rates[TOP_TX_BYTES]);
	case TOP_DROPPED:
		return COMPARE(x->rates[TOP_DROPS], y->rates[TOP_DROPS]);
	case TOP_READY:
		return COMPARE(x->ready_bytes, y->ready_bytes);
	case TOP_TREND:
		return COMPARE(top_packet_rate_of_row(x), top_packet_rate_of_row(y));
	case TOP_PID: /* below */
	case TOP_COLUMNS:
		break;
	}
	return COMPARE(a->process->pid, b->process->pid);
}

/* Equal lines stay where they were: by process and descriptor, whichever way the column goes. */
static int compare_lines(const void *a, const void *b, void *arg)
{
	const struct top_line *const x = a, *const y = b;
	const struct top_choice *const choice = arg;
	const int order = compare_column(x, y, choice->sort);

	if (order != 0)
		return top_column_sorts_descending(choice->sort) != choice->reverse ? -order : order;
	if (x->process->pid != y->process->pid)
		return COMPARE(x->process->pid, y->process->pid);
	return x->row->fd != y->row->fd ? COMPARE(x->row->fd, y->row->fd) : COMPARE(x->row->place, y->row->place);
}

/* ---- lines ---- */

static bool top_process_is_chosen(const struct top_process *process, const struct top_choice *choice)
{
	return process->view != NULL && (choice->only == 0 || process->pid == choice->only) &&
	       strstr(process->name, choice->filter) != NULL;
}

static int top_table_reserve_lines(struct top_table *table, const struct top_host *host)
{
	struct top_line *lines;
	size_t room = 1;

	for (size_t i = 0; i < host->count; i++)
		room += host->processes[i].sockets.count;
	if (room <= table->room)
		return 0;
	lines = realloc(table->lines, room * sizeof(*lines));
	if (lines == NULL)
		return -ENOMEM;
	table->lines = lines;
	table->room = room;
	return 0;
}

static void top_add_sockets_of_process(struct top_table *table, const struct top_process *process)
{
	table->processes++;
	for (size_t i = 0; i < process->sockets.count; i++) {
		const struct top_row *row = &process->sockets.rows[i];

		table->lines[table->count++] = (struct top_line){process, row};
		table->sockets[row->offload]++;
		for (unsigned rate = 0; rate < TOP_RATES; rate++)
			table->rates[rate] += row->rates[rate];
	}
}

int top_table_fill(struct top_table *table, const struct top_host *host, const struct top_choice *choice)
{
	if (top_table_reserve_lines(table, host) < 0)
		return -ENOMEM;
	*table = (struct top_table){.lines = table->lines, .room = table->room};
	for (size_t i = 0; i < host->count; i++)
		if (top_process_is_chosen(&host->processes[i], choice))
			top_add_sockets_of_process(table, &host->processes[i]);
	qsort_r(table->lines, table->count, sizeof(*table->lines), compare_lines, (void *)choice);
	return 0;
}
