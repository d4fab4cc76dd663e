/* stats - a process's segment: created with or without a file, destroyed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "stats_priv.h"

static int map_segment(struct vma_stats *stats)
{
	bool shared = stats->file.fd >= 0;
	void *map = mmap(NULL, sizeof(*stats->segment), PROT_READ | PROT_WRITE,
	                 shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, stats->file.fd, 0);

	if (map == MAP_FAILED)
		return -errno;
	stats->segment = map;
	return 0;
}

int vma_stats_create(const char *dir, struct vma_stats **out)
{
	struct vma_stats *stats = calloc(1, sizeof(*stats));
	int rc;

	if (stats == NULL)
		return -ENOMEM;
	stats->file.fd = -1;
	if (dir != NULL && dir[0] != '\0') {
		rc = stats_file_create(&stats->file, dir, sizeof(*stats->segment));
		if (rc < 0)
			vma_log_once(VMA_LOG_WARN,
			             "cannot create the statistics file %s: %s; vma_stats will not see %s",
			             stats->file.path, strerrordesc_np(-rc), "this process");
	}
	rc = map_segment(stats);
	if (rc < 0) {
		stats_file_remove(&stats->file);
		free(stats);
		return rc;
	}
	stats_header_fill(&stats->segment->header);
	stats->segment->header.pid = getpid();
	atomic_store_explicit(&stats->segment->header.magic, STATS_MAGIC, memory_order_release);
	*out = stats;
	return 0;
}

void vma_stats_hide(struct vma_stats *stats)
{
	stats_file_remove(&stats->file);
}

__attribute__((cold)) void vma_stats_forked(struct vma_stats *stats)
{
	if (stats->file.fd < 0)
		return;
	syscall(SYS_close, stats->file.fd);
	stats->file.fd = -1;
	/* A mapping keeps the file open, and so locked, as a descriptor does. */
	mmap(stats->segment, sizeof(*stats->segment), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
	     -1, 0);
}

int vma_stats_fd(const struct vma_stats *stats)
{
	return stats->file.fd;
}

void vma_stats_destroy(struct vma_stats *stats)
{
	if (stats == NULL)
		return;
	stats_file_remove(&stats->file);
	munmap(stats->segment, sizeof(*stats->segment));
	free(stats);
}
