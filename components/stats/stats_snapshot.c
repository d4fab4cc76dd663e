/* stats_snapshot - what was counted between two readings; and which processes there are to read. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stats_priv.h"

/* Both are in the order of places, so one pass finds all pairs. */
static const struct vma_stats_item *stats_item_find_same(const struct vma_stats_item *item,
                                                         const struct vma_stats_snapshot *before, size_t *at)
{
	while (*at < before->count && before->items[*at].place < item->place)
		++*at;
	return *at < before->count && before->items[*at].place == item->place &&
	                       before->items[*at].sequence == item->sequence
	               ? &before->items[*at]
	               : NULL;
}

static void subtract_item(struct vma_stats_item *item, const struct vma_stats_item *then)
{
	size_t count;
	const struct vma_stats_field *fields = vma_stats_fields_of_type(item->type, &count);

	for (size_t i = 0; i < count; i++) {
		const size_t word = fields[i].offset / sizeof(uint64_t);
		_Atomic uint64_t *counter = item->words + word;
		const uint64_t was = vma_stats_read_counter(then->words + word);

		/* It was zeroed meanwhile, if it is less. */
		if (fields[i].kind == VMA_STATS_COUNT && was <= vma_stats_read_counter(counter))
			vma_stats_set(counter, vma_stats_read_counter(counter) - was);
	}
}

void vma_stats_snapshot_subtract(struct vma_stats_snapshot *now, const struct vma_stats_snapshot *before)
{
	size_t at = 0;

	for (size_t i = 0; i < now->count; i++) {
		const struct vma_stats_item *then = stats_item_find_same(&now->items[i], before, &at);

		if (then != NULL)
			subtract_item(&now->items[i], then);
	}
	for (unsigned type = 0; type < VMA_STATS_TYPE_COUNT; type++)
		if (now->retired[type].type == before->retired[type].type)
			subtract_item(&now->retired[type], &before->retired[type]);
}

const struct vma_stats_item *vma_stats_snapshot_find(const struct vma_stats_snapshot *snapshot,
                                                     enum vma_stats_type type, const char *name)
{
	for (size_t i = 0; i < snapshot->count; i++)
		if (snapshot->items[i].type == type && strcmp(snapshot->items[i].name, name) == 0)
			return &snapshot->items[i];
	return NULL;
}

/* Whether a process holds the file's lock. */
static bool stats_file_is_locked_by_process(const char *path)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	bool live;

	if (fd < 0)
		return false;
	live = flock((int)fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	syscall(SYS_close, fd);
	return live;
}

static int compare_pids(const void *a, const void *b)
{
	const pid_t left = *(const pid_t *)a, right = *(const pid_t *)b;

	return left < right ? -1 : left > right;
}

int vma_stats_list_live_pids(const char *dir, bool clean, pid_t *pids, unsigned most)
{
	const struct dirent *entry;
	char path[PATH_MAX];
	unsigned n = 0;
	DIR *entries = opendir(dir);

	if (entries == NULL)
		return -errno;
	while (n < most && (entry = readdir(entries)) != NULL) {
		const pid_t pid = stats_file_pid(entry->d_name);

		if (pid == 0 || (size_t)snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name) >= sizeof(path))
			continue;
		if (stats_file_is_locked_by_process(path))
			pids[n++] = pid;
		else if (clean)
			stats_file_remove_leftover(path);
	}
	closedir(entries);
	qsort(pids, n, sizeof(*pids), compare_pids);
	return (int)n;
}
