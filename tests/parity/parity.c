/* parity - the list of cases, and main: `parity --list`, `parity CASE`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parity.h"

static struct parity_case *first, **last = &first;
static int failures;
const char *here, *there, *there_too, *here_second, *there_second, *if_first, *if_second, *this_program;

void parity_register_case(struct parity_case *entry)
{
	*last = entry;
	last = &entry->next;
}

bool is_preloaded(void)
{
	static int known = -1;

	if (known < 0)
		known = getenv("PARITY_PRELOAD") != NULL;
	return known;
}

void die_with_message(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, " (%s)\n", strerror(errno));
	_exit(1);
}

void complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	failures++;
}

static const char *getenv_or_exit(const char *name)
{
	const char *value = getenv(name);

	if (value == NULL) {
		fprintf(stderr, "%s is not set: tests/e2e/parity.sh sets it\n", name);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	struct parity_case *entry;

	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (entry = first; entry != NULL; entry = entry->next)
			printf("%s %s\n", entry->name, entry->sentence);
		return 0;
	}
	if (argc < 2) {
		fprintf(stderr, "usage: parity --list | CASE\n");
		return 2;
	}
	this_program = argv[0];
	here = getenv_or_exit("PARITY_HERE");
	there = getenv_or_exit("PARITY_THERE");
	there_too = getenv_or_exit("PARITY_THERE_TOO");
	here_second = getenv_or_exit("PARITY_HERE_SECOND");
	there_second = getenv_or_exit("PARITY_THERE_SECOND");
	if_first = getenv_or_exit("PARITY_IF_FIRST");
	if_second = getenv_or_exit("PARITY_IF_SECOND");
	for (entry = first; entry != NULL; entry = entry->next)
		if (strcmp(entry->name, argv[1]) == 0) {
			entry->run();
			return failures == 0 ? 0 : 1;
		}
	fprintf(stderr, "no case %s\n", argv[1]);
	return 2;
}
