/*
 * stats_sweep - what killed processes left behind goes: nobody else would remove it before the same pid comes round.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "stats_priv.h"

static bool is_stats_name(const char *name)
{
	static const char prefix[] = "vmastat.";
	const char *pid = name + sizeof(prefix) - 1;

	return strncmp(name, prefix, sizeof(prefix) - 1) == 0 && *pid != '\0' &&
	       strspn(pid, "0123456789") == strlen(pid);
}

int vma_stats_sweep(const char *dir)
{
	const struct dirent *entry;
	char path[PATH_MAX];
	int removed = 0;
	DIR *entries;

	if (dir == NULL || *dir == '\0')
		return 0;
	entries = opendir(dir);
	if (entries == NULL)
		return -errno;
	while ((entry = readdir(entries)) != NULL) {
		const int len = snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);

		if (is_stats_name(entry->d_name) && (size_t)len < sizeof(path))
			removed += stats_file_remove_leftover(path) == 0;
	}
	closedir(entries);
	return removed;
}
