/*
 * fuzz_stats_requests - hostile requests by the pipe of the statistics, served by the internal thread of a whole
 * engine. The input is a list of messages: length (1 byte), bytes. The length's lowest bit set: the bytes are a
 * request; else they are written as they are, too few or too many. Each is either served or passed over: the level
 * remains within its range, a socket is dumped only under its number and a level, and the next request that is valid is
 * served.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <vma/log.h>
#include <vma/stats_read.h>

#include "fake_file.h"
#include "small_engine.h"

#define FAKE_FD 700

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct vma_engine *engine;
static struct vma_stats_view *view;
static struct fake_file *fake;
static int pipe_fd, raw_fd;
static _Atomic unsigned dumps, bad_dumps;

static void abort_unless(bool holds)
{
	if (!holds)
		abort();
}

static void fake_dump_count_calls(struct vma_file *file, int fd, enum vma_log_level level)
{
	if (file != &fake->file || fd != FAKE_FD || level < VMA_LOG_PANIC || level > VMA_LOG_ALL)
		atomic_fetch_add(&bad_dumps, 1);
	atomic_fetch_add(&dumps, 1);
}

static void stats_requests_set_up(void)
{
	static struct vma_file_ops ops;
	int fds[VMA_STATS_FDS];
	char path[64];

	setenv("VMA_STATS_SHMEM_DIR", "/tmp", 1);
	setenv("VMA_LOG_FILE", "/dev/null", 1);
	engine = start_engine_with_few_buffers("1024", "128");
	abort_unless(engine != NULL && vma_stats_fds(engine->stats, fds) == VMA_STATS_FDS);
	pipe_fd = fds[VMA_STATS_FDS - 1];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", pipe_fd);
	raw_fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	snprintf(path, sizeof(path), "/tmp/vmastat.%d", getpid());
	abort_unless(raw_fd >= 0 && vma_stats_view_open(path, &view) == 0);
	ops = fake_ops;
	ops.dump = fake_dump_count_calls;
	fake = fake_file_create();
	abort_unless(fake != NULL);
	fake->file.ops = &ops;
	abort_unless(vma_fd_install(FAKE_FD, &fake->file) == 0);
}

static void wait_until_pipe_is_empty(void)
{
	int left;

	do
		abort_unless(ioctl(pipe_fd, FIONREAD, &left) == 0);
	while (left != 0 && usleep(10) == 0);
}

/* A valid request is served, after all that came before it. */
static void expect_valid_request_is_served(void)
{
	const struct vma_stats_request request = {.type = VMA_STATS_REQUEST_DUMP, .fd = FAKE_FD, .value = VMA_LOG_INFO};
	const unsigned before = atomic_load(&dumps);

	wait_until_pipe_is_empty();
	abort_unless(vma_stats_view_request(view, &request) == 0);
	while (atomic_load(&dumps) == before)
		usleep(10);
	abort_unless(atomic_load(&bad_dumps) == 0);
	abort_unless(atomic_load(&vma_log_level_now) >= VMA_LOG_PANIC &&
	             atomic_load(&vma_log_level_now) <= VMA_LOG_ALL);
}

static void send_stats_request_or_raw_bytes(bool is_request, const uint8_t *data, size_t size)
{
	struct vma_stats_request request = {0};
	ssize_t written;

	if (is_request) {
		memcpy(&request, data, size < sizeof(request) ? size : sizeof(request));
		request.type %= VMA_STATS_REQUEST_COUNT + 1;
		vma_stats_view_request(view, &request);
	} else {
		written = write(raw_fd, data, size);
		(void)written; /* the pipe may be full */
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (engine == NULL)
		stats_requests_set_up();
	while (size > 1) {
		const size_t wanted = data[0] / 2, len = wanted < size - 1 ? wanted : size - 1;

		send_stats_request_or_raw_bytes(data[0] % 2 != 0, data + 1, len);
		data += 1 + len;
		size -= 1 + len;
	}
	expect_valid_request_is_served();
	return 0;
}
