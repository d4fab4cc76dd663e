/*
 * stats_memory - the memory of a segment that other processes read, and the pipe by which they ask for something.
 *
 * The memory is a memfd with seals. F_SEAL_SHRINK: no process can shorten it, so neither a count nor a read raises
 * SIGBUS. F_SEAL_FUTURE_WRITE: writes are only possible through the mapping that exists already, the process's own. Its
 * space is taken at creation, but for the bases, which few processes ever need.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "capture_priv.h"
#include "stats_priv.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif
#define POPULATE_BYTES ((size_t)256 << 10) /* some hundred microseconds */
#define PAGE_BYTES 4096                    /* the smallest there is */

static int stats_create_memfd(const char *name)
{
	long fd = syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
		fd = syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd >= 0 ? (int)fd : -errno;
}

static int stats_memfd_seal(int fd)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

	if (syscall(SYS_fcntl, fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) == 0)
		return 0;
	if (errno != EINVAL) /* before Linux 5.1 */
		return -errno;
	return syscall(SYS_fcntl, fd, F_ADD_SEALS, seals) == 0 ? 0 : -errno;
}

/* The kernel would end a process that may have no file so long (SIGXFSZ). */
static bool file_size_limit_allows(size_t bytes)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= bytes;
}

static int map_stats_segment(int fd, struct stats_segment **segment)
{
	void *map;

	if (!file_size_limit_allows(sizeof(**segment)))
		return -EFBIG;
	if (syscall(SYS_fchmod, fd, 0600) < 0 || syscall(SYS_ftruncate, fd, (long)sizeof(**segment)) < 0 ||
	    syscall(SYS_fallocate, fd, 0, 0L, (long)STATS_RESERVED) < 0)
		return -errno;
	map = mmap(NULL, sizeof(**segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	*segment = map;
	return 0;
}

int stats_memory_create(struct stats_fd *memory, struct stats_segment **segment)
{
	int fd = stats_create_memfd("vmastat"), rc;

	if (fd < 0)
		return fd;
	rc = map_stats_segment(fd, segment);
	if (rc < 0) {
		syscall(SYS_close, fd);
		return rc;
	}
	rc = stats_memfd_seal(fd);
	if (rc == 0)
		rc = stats_fd_take_over_and_move_high(memory, fd);
	else
		syscall(SYS_close, fd);
	if (rc < 0)
		munmap(*segment, sizeof(**segment));
	return rc;
}

/* ---- the ring of a capture ---- */

static int map_capture(int fd, struct vma_capture **out)
{
	void *map;

	if (!file_size_limit_allows(sizeof(**out)))
		return -EFBIG;
	if (syscall(SYS_fchmod, fd, 0600) < 0 || syscall(SYS_ftruncate, fd, (long)sizeof(**out)) < 0)
		return -errno;
	map = mmap(NULL, sizeof(**out), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	*out = map;
	return 0;
}

static int capture_create(struct stats_fd *memory, struct vma_capture **out)
{
	struct vma_capture *capture = NULL;
	int fd = stats_create_memfd("vmacapture"), rc;

	if (fd < 0)
		return fd;
	rc = map_capture(fd, &capture);
	if (rc == 0)
		rc = stats_memfd_seal(fd);
	if (rc < 0)
		syscall(SYS_close, fd);
	else
		rc = stats_fd_take_over_and_move_high(memory, fd);
	if (rc < 0) {
		if (capture != NULL)
			munmap(capture, sizeof(*capture));
		return rc;
	}
	*out = capture;
	return 0;
}

static void capture_destroy(struct vma_stats *stats)
{
	munmap(stats->capture, sizeof(*stats->capture));
	stats->capture = NULL;
	stats->capture_ready = 0;
	stats_fd_close_if_still_ours(&stats->capture_memory);
}

/*
 * The next piece gets its space, so that a put cannot fail, and its pages, so that no put has to wait for the kernel to
 * make one. Nobody puts yet: what is written is the zero that is there.
 */
static int capture_populate(struct vma_stats *stats)
{
	const size_t from = stats->capture_ready, left = sizeof(*stats->capture) - from;
	const size_t piece = left < POPULATE_BYTES ? left : POPULATE_BYTES;
	volatile char *const bytes = (volatile char *)stats->capture + from;

	if (syscall(SYS_fallocate, stats->capture_memory.fd, 0, (long)from, (long)piece) < 0)
		return -errno;
	for (size_t at = 0; at < piece; at += PAGE_BYTES)
		bytes[at] = 0;
	stats->capture_ready += piece;
	return 0;
}

/* Release: a reader that sees the descriptor sees its inode. */
static void capture_publish(struct vma_stats *stats)
{
	struct stats_header *header = &stats->segment->header;

	atomic_store_explicit(&stats->capture->magic, CAPTURE_MAGIC, memory_order_release);
	atomic_store_explicit(&header->capture_ino, stats->capture_memory.ino, memory_order_relaxed);
	atomic_store_explicit(&header->capture_fd, stats->capture_memory.fd, memory_order_release);
}

/* -EAGAIN: a piece of it. */
static int capture_create_in_steps(struct vma_stats *stats)
{
	int rc = stats->capture == NULL ? capture_create(&stats->capture_memory, &stats->capture) : 0;

	if (rc < 0)
		return rc;
	rc = capture_populate(stats);
	if (rc < 0) {
		capture_destroy(stats);
		return rc;
	}
	if (stats->capture_ready < sizeof(*stats->capture))
		return -EAGAIN;
	capture_publish(stats);
	return 0;
}

/* A reader that asks in time is heard in each period, so what it asked for holds until the end of the next one. */
static uint32_t capture_snaplen_of_readers(struct vma_stats *stats, uint64_t now_ns, int snap)
{
	const uint32_t wanted = snap > 0 && snap < (int)VMA_CAPTURE_DATA_MAX ? (uint32_t)snap : VMA_CAPTURE_DATA_MAX;

	if (stats->snap.since_ns == 0 ||
	    now_ns - stats->snap.since_ns >= VMA_CAPTURE_LEASE_MAX * UINT64_C(1000000000)) {
		stats->snap.before = stats->snap.asked;
		stats->snap.asked = 0;
		stats->snap.since_ns = now_ns;
	}
	if (wanted > stats->snap.asked)
		stats->snap.asked = wanted;
	return stats->snap.asked > stats->snap.before ? stats->snap.asked : stats->snap.before;
}

int vma_stats_enable_packet_capture(struct vma_stats *stats, int seconds, int snap, struct vma_capture **out)
{
	struct timespec now;
	uint64_t now_ns;
	int rc;

	if (seconds < 1 || seconds > VMA_CAPTURE_LEASE_MAX || stats->memory.fd < 0)
		return -EINVAL;
	if (stats->capture_ready < VMA_CAPTURE_BYTES) {
		rc = capture_create_in_steps(stats);
		if (rc < 0)
			return rc;
	}
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	atomic_store_explicit(&stats->capture->snap, capture_snaplen_of_readers(stats, now_ns, snap),
	                      memory_order_relaxed);
	atomic_store_explicit(&stats->capture->until_ns, now_ns + (uint64_t)seconds * 1000000000, memory_order_relaxed);
	*out = stats->capture;
	return 0;
}

void vma_stats_count_capture_grant(struct vma_stats *stats)
{
	atomic_fetch_add_explicit(&stats->capture->grants, 1, memory_order_release);
}

/* Only the end that is read stays open here: senders open the other one by /proc. */
int stats_create_request_pipe(struct stats_fd *requests)
{
	int ends[2];

	if (syscall(SYS_pipe2, ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	syscall(SYS_close, ends[1]);
	return stats_fd_take_over_and_move_high(requests, ends[0]);
}

bool vma_stats_next_request(struct vma_stats *stats, struct vma_stats_request *out)
{
	struct stats_message message;

	/* A message is written whole, as it is shorter than PIPE_BUF. What is none is passed over. */
	while (stats->requests.fd >= 0 &&
	       syscall(SYS_read, stats->requests.fd, &message, sizeof(message)) == (long)sizeof(message)) {
		if (message.magic != STATS_MESSAGE_MAGIC || message.request.type >= VMA_STATS_REQUEST_COUNT)
			continue;
		*out = message.request;
		return true;
	}
	return false;
}
