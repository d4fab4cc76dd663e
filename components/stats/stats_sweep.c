/* stats_sweep - removes what killed processes left behind. Else it would stay until the same pid comes round. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stats_priv.h"

enum { NAMES_AT_ONCE = 4096 };

pid_t stats_file_pid(const char *name)
{
	static const char prefix[] = "vmastat.";
	const char *pid = name + sizeof(prefix) - 1;
	long value;

	if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 || *pid == '\0' || strspn(pid, "0123456789") != strlen(pid))
		return 0;
	value = strtol(pid, NULL, 10);
	return value > 0 && value <= INT_MAX ? (pid_t)value : 0;
}

int vma_stats_remove_leftover_files(const char *dir, long *at)
{
	const struct dirent *entry = NULL;
	char path[PATH_MAX];
	int removed = 0;
	DIR *entries;
	long from = *at;

	*at = 0;

	if (dir == NULL || *dir == '\0')
		return 0;
	entries = opendir(dir);
	if (entries == NULL)
		return -errno;
	if (from != 0)
		seekdir(entries, from);
	for (int i = 0; i < NAMES_AT_ONCE && (entry = readdir(entries)) != NULL; i++) {
		const int len = snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);

		if (stats_file_pid(entry->d_name) != 0 && (size_t)len < sizeof(path))
			removed += stats_file_remove_leftover(path) == 0;
	}
	if (entry != NULL)
		*at = telldir(entries);
	closedir(entries);
	return removed;
}
