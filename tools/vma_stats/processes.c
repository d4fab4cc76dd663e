/* processes - the processes that have statistics. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vma/stats_read.h>

#include "processes.h"

/* A file of /proc/PID, to its first zero or newline; what is not printable becomes '?'. */
static bool read_proc_file_first_line(pid_t pid, const char *file, char text[PROCESSES_NAME_BYTES])
{
	char path[64];
	size_t n;
	FILE *from;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	from = fopen(path, "re");
	if (from == NULL)
		return false;
	n = fread(text, 1, PROCESSES_NAME_BYTES - 1, from);
	fclose(from);
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	for (char *c = text; *c != '\0'; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return true;
}

static const char *file_name_of_path(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

/* The kernel's name of the program is cut after 15 bytes, so the command's first word counts, too. */
static bool process_has_name(pid_t pid, const char *name)
{
	char text[PROCESSES_NAME_BYTES];

	if (read_proc_file_first_line(pid, "comm", text) && strcmp(text, name) == 0)
		return true;
	return read_proc_file_first_line(pid, "cmdline", text) && strcmp(file_name_of_path(text), name) == 0;
}

unsigned processes_find(const struct options *options, pid_t pids[PROCESSES_MAX])
{
	const int all = vma_stats_list_live_pids(options->directory, !options->forbid_clean, pids, PROCESSES_MAX);
	unsigned n = 0;

	for (int i = 0; i < all; i++)
		if ((options->pid == 0 || options->pid == pids[i]) &&
		    (options->name == NULL || process_has_name(pids[i], options->name)))
			pids[n++] = pids[i];
	return n;
}

pid_t processes_ask_user_to_choose(const pid_t *pids, unsigned count)
{
	const bool asks = isatty(STDIN_FILENO) == 1;
	char text[PROCESSES_NAME_BYTES];
	unsigned long chosen;

	fprintf(stderr, "vmastat: %u processes:\n", count);
	for (unsigned i = 0; i < count; i++)
		fprintf(stderr, "%4u. pid %d  %s\n", i + 1, (int)pids[i],
		        read_proc_file_first_line(pids[i], "comm", text) ? text : "?");
	if (!asks) {
		fputs("vmastat: choose one with -p or -n\n", stderr);
		return 0;
	}
	fputs("Number: ", stderr);
	if (fgets(text, sizeof(text), stdin) == NULL)
		return 0;
	chosen = strtoul(text, NULL, 10);
	return chosen >= 1 && chosen <= count ? pids[chosen - 1] : 0;
}

bool processes_path(const struct options *options, pid_t pid, char *path, unsigned bytes)
{
	return (unsigned)snprintf(path, bytes, "%s/vmastat.%d", options->directory, (int)pid) < bytes;
}

bool processes_name(pid_t pid, char name[PROCESSES_NAME_BYTES])
{
	return read_proc_file_first_line(pid, "comm", name);
}

bool process_is_alive(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	return access(path, F_OK) == 0;
}
