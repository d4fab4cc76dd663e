/* flow_table.c - open addressing with linear probing; removal shifts back, so there are no tombstones to walk over. */
#include "flow_table.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_SIZE = 16 };

/* Without random numbers from the kernel (early boot, a sandbox) the clock and an address are what an outsider lacks.
 * Not the C library's getrandom, which is a cancellation point: locks of who makes a ring would stay taken. */
static void flow_hash_choose_secret(uint64_t secret[4])
{
	struct timespec now;

	if (syscall(SYS_getrandom, secret, 4 * sizeof(secret[0]), GRND_NONBLOCK) == 4 * (long)sizeof(secret[0]))
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	secret[0] = flow_hash_multiply_fold((uint64_t)now.tv_nsec ^ 0x9e3779b97f4a7c15,
	                                    (uintptr_t)secret ^ 0xbf58476d1ce4e5b9);
	for (int i = 1; i < 4; i++)
		secret[i] = flow_hash_multiply_fold(secret[i - 1] ^ 0x94d049bb133111eb,
		                                    (uint64_t)now.tv_sec + 0x2545f4914f6cdd1d);
}

int flow_table_init(struct flow_table *table)
{
	table->entries = calloc(FIRST_SIZE, sizeof(*table->entries));
	if (table->entries == NULL)
		return -ENOMEM;
	table->mask = FIRST_SIZE - 1;
	table->used = 0;
	flow_hash_choose_secret(table->secret);
	return 0;
}

void flow_table_fini(struct flow_table *table)
{
	free(table->entries);
	table->entries = NULL;
}

static struct flow_entry *flow_table_find_empty_entry(struct flow_table *table, uint32_t hash)
{
	uint32_t i = hash & table->mask;

	while (table->entries[i].head != NULL)
		i = (i + 1) & table->mask;
	return &table->entries[i];
}

static int flow_table_grow(struct flow_table *table)
{
	struct flow_entry *old = table->entries;
	uint32_t old_size = table->mask + 1;
	struct flow_entry *entries = calloc((size_t)old_size * 2, sizeof(*entries));

	if (entries == NULL)
		return -ENOMEM;
	table->entries = entries;
	table->mask = old_size * 2 - 1;
	for (uint32_t i = 0; i < old_size; i++) {
		if (old[i].head != NULL)
			*flow_table_find_empty_entry(table, old[i].hash) = old[i];
	}
	free(old);
	return 0;
}

int flow_table_insert(struct flow_table *table, struct vma_flow *flow, struct flow_entry **out)
{
	struct flow_words words = flow_words_of(&flow->key);
	struct flow_entry *entry = flow_table_find(table, &words);
	struct vma_flow **tail;

	flow->next = NULL;
	if (entry != NULL) {
		for (tail = &entry->head; *tail != NULL; tail = &(*tail)->next)
			;
		*tail = flow;
		*out = entry;
		return 0;
	}
	if ((table->used + 1) * 2 > table->mask + 1 && flow_table_grow(table) != 0)
		return -ENOMEM;
	entry = flow_table_find_empty_entry(table, flow_hash(table, &words));
	*entry = (struct flow_entry){.head = flow, .hash = flow_hash(table, &words)};
	table->used++;
	*out = entry;
	return 0;
}

/*
 * Closes the gap at `hole`: an entry further on in the same cluster moves into it unless its home lies after the hole
 * (cyclically), because a search for it would then start behind where it stands.
 */
static void flow_table_fill_hole_by_shifting(struct flow_table *table, uint32_t hole)
{
	for (uint32_t i = (hole + 1) & table->mask; table->entries[i].head != NULL; i = (i + 1) & table->mask) {
		uint32_t home = table->entries[i].hash & table->mask;

		if (((i - home) & table->mask) < ((i - hole) & table->mask))
			continue;
		table->entries[hole] = table->entries[i];
		hole = i;
	}
	table->entries[hole].head = NULL;
}

bool flow_table_remove(struct flow_table *table, struct vma_flow *flow)
{
	struct flow_words words = flow_words_of(&flow->key);
	struct flow_entry *entry = flow_table_find(table, &words);
	struct vma_flow *rest = flow->next, **link = entry == NULL ? NULL : &entry->head;

	while (link != NULL && *link != flow)
		link = *link == NULL ? NULL : &(*link)->next;
	if (link == NULL)
		return false;
	flow->next = NULL;
	if (link == &entry->head && rest == NULL) {
		flow_table_fill_hole_by_shifting(table, (uint32_t)(entry - table->entries));
		table->used--;
		return true;
	}
	*link = rest;
	return false;
}
