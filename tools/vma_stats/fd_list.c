/* fd_list - from text to ranges. */
#include <stdlib.h>

#include "fd_list.h"

#define FD_MOST 1000000000UL

/* A number, and where it ends; NULL: there is none. */
static const char *parse_fd(const char *text, uint64_t *fd)
{
	char *end;
	unsigned long value;

	if (*text < '0' || *text > '9')
		return NULL;
	value = strtoul(text, &end, 10);
	*fd = value;
	return value <= FD_MOST ? end : NULL;
}

bool fd_list_parse(struct fd_list *list, const char *text)
{
	list->count = 0;
	for (;; text++) {
		uint64_t first, last;

		text = parse_fd(text, &first);
		last = first;
		if (text != NULL && *text == '-')
			text = parse_fd(text + 1, &last);
		if (text == NULL || last < first || list->count == FD_LIST_RANGES)
			return false;
		list->ranges[list->count].first = first;
		list->ranges[list->count++].last = last;
		if (*text != ',')
			return *text == '\0';
	}
}

bool fd_list_has(const struct fd_list *list, uint64_t fd)
{
	for (unsigned i = 0; i < list->count; i++)
		if (fd >= list->ranges[i].first && fd <= list->ranges[i].last)
			return true;
	return list->count == 0;
}
