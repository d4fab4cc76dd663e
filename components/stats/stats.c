/* stats - a process's segment: created with or without a file, destroyed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vma/log.h>

#include "stats_priv.h"

/* Memory of this process's own: counting goes on unseen. */
static int stats_map_private(struct vma_stats *stats)
{
	void *map = mmap(NULL, sizeof(*stats->segment), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return -errno;
	stats->segment = map;
	return 0;
}

static void stats_init_segment_header(struct stats_segment *segment, uint64_t cookie)
{
	stats_header_fill(&segment->header);
	stats_retired_init(segment);
	segment->header.pid = getpid();
	segment->header.cookie = cookie;
	atomic_store_explicit(&segment->header.magic, STATS_MAGIC, memory_order_release);
}

/*
 * File, memory and pipe; the file says where the others are when they are ready. If the kernel gives this process no
 * memfd, it cannot be offloaded at all, and is told so where that is found: not here as well.
 */
static int stats_create_shared_memory_and_file(struct vma_stats *stats, const char *dir, enum vma_log_level *level)
{
	struct stats_locator locator = {.magic = STATS_MAGIC, .version = STATS_VERSION, .pid = getpid()};
	int rc = stats_file_create(&stats->file, dir);

	*level = VMA_LOG_WARN;
	if (rc == 0) {
		rc = stats_memory_create(&stats->memory, &stats->segment);
		if (rc == -EPERM || rc == -ENOSYS)
			*level = VMA_LOG_DETAILS;
	}
	if (rc == 0)
		rc = stats_create_request_pipe(&stats->requests);
	if (rc == 0 && syscall(SYS_getrandom, &locator.cookie, sizeof(locator.cookie), 0U) < 0)
		rc = -errno;
	if (rc == 0) {
		stats_init_segment_header(stats->segment, locator.cookie);
		locator.memory_fd = stats->memory.fd;
		locator.memory_ino = stats->memory.ino;
		locator.request_fd = stats->requests.fd;
		locator.request_ino = stats->requests.ino;
		rc = stats_file_write_locator(&stats->file, &locator);
	}
	if (rc == 0)
		return 0;
	stats_file_remove(&stats->file);
	stats_fd_close_if_still_ours(&stats->memory);
	stats_fd_close_if_still_ours(&stats->requests);
	if (stats->segment != NULL)
		munmap(stats->segment, sizeof(*stats->segment));
	stats->segment = NULL;
	return rc;
}

int vma_stats_create(const char *dir, struct vma_stats **out)
{
	struct vma_stats *stats = calloc(1, sizeof(*stats));
	enum vma_log_level level;
	int rc;

	if (stats == NULL)
		return -ENOMEM;
	stats->file.held.fd = stats->memory.fd = stats->requests.fd = stats->capture_memory.fd = -1;
	if (dir != NULL && dir[0] != '\0') {
		rc = stats_create_shared_memory_and_file(stats, dir, &level);
		if (rc < 0)
			vma_log_once(level, "cannot create the statistics file %s: %s; vma_stats will not see %s",
			             stats->file.path, strerrordesc_np(-rc), "this process");
	}
	if (stats->segment == NULL) {
		rc = stats_map_private(stats);
		if (rc < 0) {
			free(stats);
			return rc;
		}
		stats_init_segment_header(stats->segment, 0);
	}
	*out = stats;
	return 0;
}

/* The memory stays sealed and readable for who has it; the file is not to be found any more. */
void vma_stats_remove_file(struct vma_stats *stats)
{
	stats_file_remove(&stats->file);
}

__attribute__((cold)) void vma_stats_detach_from_parent_after_fork(struct vma_stats *stats)
{
	if (stats->memory.fd < 0)
		return;
	stats_fd_close_if_still_ours(&stats->file.held);
	stats_fd_close_if_still_ours(&stats->memory);
	stats_fd_close_if_still_ours(&stats->requests);
	stats_fd_close_if_still_ours(&stats->capture_memory);
	if (stats->capture != NULL) /* the parent's still */
		munmap(stats->capture, VMA_CAPTURE_BYTES);
	stats->capture = NULL;
	stats->capture_ready = 0;
	mmap(stats->segment, sizeof(*stats->segment), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
	     -1, 0);
}

unsigned vma_stats_fds(const struct vma_stats *stats, int fds[VMA_STATS_FDS])
{
	const int held[] = {stats->file.held.fd, stats->memory.fd, stats->requests.fd};
	unsigned n = 0;

	for (unsigned i = 0; i < VMA_STATS_FDS; i++)
		if (held[i] >= 0)
			fds[n++] = held[i];
	return n;
}

int vma_stats_capture_fd(const struct vma_stats *stats)
{
	return stats->capture_memory.fd;
}

void vma_stats_destroy(struct vma_stats *stats)
{
	if (stats == NULL)
		return;
	stats_file_remove(&stats->file);
	stats_fd_close_if_still_ours(&stats->memory);
	stats_fd_close_if_still_ours(&stats->requests);
	stats_fd_close_if_still_ours(&stats->capture_memory);
	if (stats->capture != NULL)
		munmap(stats->capture, VMA_CAPTURE_BYTES);
	munmap(stats->segment, sizeof(*stats->segment));
	free(stats);
}
