/*
 * stats_view - the reader's side: another process's segment, of which nothing is believed.
 *
 * The file is read into a private copy. The two descriptors that it names are opened by /proc, which asks for the right
 * to trace the process: root, or the same user. They are looked at before they are opened. They are used only if they
 * are what the file says: a memfd that cannot be shortened, and a pipe, both of the file's owner. After the header has
 * been compared with what this build would write, all sizes and places are our own constants.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "capture_read.h"
#include "stats_priv.h"

struct vma_stats_view {
	const struct stats_segment *segment; /* read-only mapping */
	struct vma_stats_item *copies;       /* one per block; made by the first vma_stats_view_next */
	int requests;                        /* the pipe, -1: it is not to be had */
	int pid;
	pid_t found_pid; /* under which its descriptors are found */
	uid_t owner;
	uint64_t cookie;
};

static int view_open_file(const char *path, int flags)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, flags | O_NONBLOCK | O_CLOEXEC);

	return fd >= 0 ? (int)fd : -errno;
}

static int read_stats_locator_file(const char *path, struct stats_locator *locator, uid_t *owner)
{
	int fd = view_open_file(path, O_RDONLY | O_NOFOLLOW), rc = -EPROTO;
	struct stat st;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    syscall(SYS_pread64, fd, locator, sizeof(*locator), 0L) == (long)sizeof(*locator) &&
	    locator->magic == STATS_MAGIC && locator->version == STATS_VERSION && locator->pid > 0)
		rc = 0;
	*owner = st.st_uid;
	syscall(SYS_close, fd);
	return rc;
}

/*
 * A descriptor of another process, opened for `flags`, if it has this inode and kind, and is this user's. It is looked
 * at first by O_PATH: to open what is something else, a device for example, could have effects.
 */
static int open_fd_of_other_process(pid_t pid, int number, uint64_t ino, mode_t kind, uid_t owner, int flags)
{
	char path[64];
	struct stat st;
	int fd, opened;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, number);
	fd = view_open_file(path, O_PATH);
	if (fd < 0)
		return fd == -ENOENT ? -ESRCH : fd;
	if (fstat(fd, &st) < 0 || (st.st_mode & S_IFMT) != kind || st.st_ino != ino || st.st_uid != owner) {
		syscall(SYS_close, fd);
		return -ESRCH; /* another process, that has the pid by now, or in its own namespace */
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	opened = view_open_file(path, flags);
	syscall(SYS_close, fd);
	return opened;
}

static bool stats_header_is_compatible(const struct stats_header *found)
{
	struct stats_header wanted = {0};

	stats_header_fill(&wanted);
	return found->fields_hash == wanted.fields_hash && found->file_bytes == wanted.file_bytes &&
	       found->version == wanted.version && found->header_bytes == wanted.header_bytes &&
	       found->entry_bytes == wanted.entry_bytes && found->block_bytes == wanted.block_bytes &&
	       found->block_count == wanted.block_count &&
	       memcmp(found->type_bytes, wanted.type_bytes, sizeof(wanted.type_bytes)) == 0;
}

static int stats_view_check_header(struct vma_stats_view *view, const struct stats_locator *locator)
{
	const struct stats_header *header = &view->segment->header;
	struct stats_header found;

	/* Acquire: pairs with the writer's last store of the header. */
	if (atomic_load_explicit(&header->magic, memory_order_acquire) != STATS_MAGIC)
		return -EPROTO;
	memcpy(&found, header, sizeof(found));
	if (!stats_header_is_compatible(&found))
		return -EPROTO;
	view->pid = found.pid;
	return found.cookie == locator->cookie && found.pid == locator->pid ? 0 : -ESRCH;
}

static int map_stats_segment_of_view(struct vma_stats_view *view, int fd)
{
	const long seals = syscall(SYS_fcntl, fd, F_GET_SEALS);
	struct stat st;
	void *map;

	if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) < 0 ||
	    st.st_size < (off_t)sizeof(*view->segment))
		return -EPROTO;
	map = mmap(NULL, sizeof(*view->segment), PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	view->segment = map;
	return 0;
}

/* A file under another process's number is nobody's: what it leads to would be taken for that process. */
static bool stats_file_name_matches_pid(const char *path, pid_t pid)
{
	const char *const slash = strrchr(path, '/'), *const name = slash != NULL ? slash + 1 : path;
	char own[32];

	snprintf(own, sizeof(own), "vmastat.%d", (int)pid);
	return strncmp(name, "vmastat.", 8) != 0 || strcmp(name, own) == 0;
}

static int stats_view_open_path(struct vma_stats_view *view, const char *path)
{
	struct stats_locator locator = {0};
	uid_t owner = 0;
	int rc = read_stats_locator_file(path, &locator, &owner), fd;

	if (rc == 0 && !stats_file_name_matches_pid(path, locator.pid))
		rc = -EPROTO;
	if (rc < 0)
		return rc;
	view->found_pid = locator.pid;
	view->owner = owner;
	view->cookie = locator.cookie;
	fd = open_fd_of_other_process(locator.pid, locator.memory_fd, locator.memory_ino, S_IFREG, owner, O_RDONLY);
	if (fd < 0)
		return fd;
	rc = map_stats_segment_of_view(view, fd);
	syscall(SYS_close, fd);
	if (rc == 0)
		rc = stats_view_check_header(view, &locator);
	if (rc == 0)
		view->requests = open_fd_of_other_process(locator.pid, locator.request_fd, locator.request_ino, S_IFIFO,
		                                          owner, O_WRONLY);
	return rc;
}

int vma_stats_view_open(const char *path, struct vma_stats_view **out)
{
	struct vma_stats_view *view = calloc(1, sizeof(*view));
	int rc;

	if (view == NULL)
		return -ENOMEM;
	view->requests = -1;
	rc = stats_view_open_path(view, path);
	if (rc < 0) {
		vma_stats_view_close(view);
		return rc;
	}
	*out = view;
	return 0;
}

bool vma_stats_view_is_current(const struct vma_stats_view *view, const char *path)
{
	struct stats_locator locator = {0};
	uid_t owner = 0;

	return read_stats_locator_file(path, &locator, &owner) == 0 && owner == view->owner &&
	       locator.pid == view->found_pid && locator.cookie == view->cookie;
}

static int map_capture_reader(int fd, struct vma_capture_reader **out)
{
	const long seals = syscall(SYS_fcntl, fd, F_GET_SEALS);
	struct stat st;
	void *map;
	int rc;

	if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) < 0 || st.st_size < (off_t)VMA_CAPTURE_BYTES)
		return -EPROTO;
	map = mmap(NULL, VMA_CAPTURE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	rc = vma_capture_open_memory(map, out);
	if (rc < 0)
		munmap(map, VMA_CAPTURE_BYTES);
	else
		(*out)->mapped = true;
	return rc;
}

int vma_capture_open(const struct vma_stats_view *view, struct vma_capture_reader **out)
{
	const struct stats_header *header = &view->segment->header;
	const int number = atomic_load_explicit(&header->capture_fd, memory_order_acquire);
	const uint64_t ino = atomic_load_explicit(&header->capture_ino, memory_order_relaxed);
	int fd, rc;

	if (number <= 0)
		return -EAGAIN;
	fd = open_fd_of_other_process(view->found_pid, number, ino, S_IFREG, view->owner, O_RDONLY);
	if (fd < 0)
		return fd;
	rc = map_capture_reader(fd, out);
	syscall(SYS_close, fd);
	return rc;
}

void vma_capture_close(struct vma_capture_reader *reader)
{
	if (reader == NULL)
		return;
	if (reader->mapped)
		munmap((void *)(uintptr_t)reader->ring, VMA_CAPTURE_BYTES);
	free(reader);
}

void vma_stats_view_close(struct vma_stats_view *view)
{
	if (view == NULL)
		return;
	if (view->segment != NULL)
		munmap((void *)view->segment, sizeof(*view->segment));
	if (view->requests >= 0)
		syscall(SYS_close, view->requests);
	free(view->copies);
	free(view);
}

int vma_stats_view_pid(const struct vma_stats_view *view)
{
	return view->pid;
}

/* The caller's SIGPIPE, if the process has gone, is not raised: the signal is blocked, and taken if it has come. */
int vma_stats_view_request(const struct vma_stats_view *view, const struct vma_stats_request *request)
{
	const struct stats_message message = {.magic = STATS_MESSAGE_MAGIC, .request = *request};
	const struct timespec none = {0};
	sigset_t pipe, before;
	int rc = 0;

	if (view->requests < 0)
		return -EPIPE;
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	if (syscall(SYS_write, view->requests, &message, sizeof(message)) < 0)
		rc = -errno;
	if (rc == -EPIPE && sigismember(&before, SIGPIPE) == 0)
		sigtimedwait(&pipe, NULL, &none);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

bool vma_stats_view_next(struct vma_stats_view *view, size_t *cursor, enum vma_stats_type *type, const char **name,
                         const void **block)
{
	if (view->copies == NULL)
		view->copies = aligned_alloc(VMA_STATS_ALIGN, STATS_BLOCKS * sizeof(*view->copies));
	while (view->copies != NULL && *cursor < STATS_BLOCKS) {
		struct vma_stats_item *item = &view->copies[(*cursor)++];

		if (!stats_copy_entry_consistently(view->segment, *cursor - 1, item))
			continue;
		*type = item->type;
		*name = item->name;
		*block = item->words;
		return true;
	}
	return false;
}

static void stats_read_blocks(const struct stats_segment *segment, struct vma_stats_snapshot *out)
{
	out->count = 0;
	for (size_t place = 0; place < STATS_BLOCKS; place++)
		out->count += stats_copy_entry_consistently(segment, place, &out->items[out->count]);
	for (unsigned type = 0; type < VMA_STATS_TYPE_COUNT; type++)
		if (!stats_copy_entry_consistently(segment, STATS_RETIRED(type), &out->retired[type]) ||
		    out->retired[type].type != type)
			out->retired[type] = (struct vma_stats_item){.type = VMA_STATS_TYPE_FREE};
}

#define TRIES_WHOLE 16

/*
 * All drops that have begun are done, and none begins until the end: then each count was read once. `done` is read
 * first. Every load of stats_read_blocks acquires, so the last look at `begun` is not older than any of them.
 */
static void stats_read_consistent(const struct stats_segment *segment, struct vma_stats_snapshot *out)
{
	out->whole = false;
	for (int tries = 0; tries < TRIES_WHOLE && !out->whole; tries++) {
		const uint64_t done = atomic_load_explicit(&segment->drops.done, memory_order_acquire);
		const uint64_t begun = atomic_load_explicit(&segment->drops.begun, memory_order_acquire);

		stats_read_blocks(segment, out);
		out->whole =
		        begun == done && atomic_load_explicit(&segment->drops.begun, memory_order_relaxed) == begun;
	}
}

void vma_stats_view_read(const struct vma_stats_view *view, struct vma_stats_snapshot *out)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	out->pid = view->pid;
	out->taken_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	stats_read_consistent(view->segment, out);
}
