/*
 * stats_requests - requests of vma_stats and vma_dump to this process. Counters begin at zero, the log says more or
 * less, a socket's counters go to the log, packets are captured.
 *
 * Requests come by a pipe that only root and this user can open (<vma/stats.h>). The internal thread reads them, so
 * they cost the program's threads nothing. After a burst of requests its other work comes first.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include <vma/log.h>
#include <vma/nic_tap.h>
#include <vma/stats.h>

#include "engine.h"

enum { REQUESTS_AT_ONCE = 16 };

static struct vma_engine *requests_engine;
static struct vma_internal_task requests_read_task, requests_remaining_task, requests_capture_task;
static struct vma_stats_request capture_request; /* the last one for a capture */

static void dump_socket_unless_closed(struct vma_file *file, void *arg)
{
	const struct vma_stats_request *request = arg;
	const int fd = atomic_load_explicit(&file->fd, memory_order_relaxed);

	if (file->ops->dump != NULL && !vma_file_is_closed(file))
		file->ops->dump(file, request->fd != 0 ? request->fd : fd, (enum vma_log_level)request->value);
}

static void dump_sockets_of_request(struct vma_stats_request *request)
{
	struct vma_file *file = request->fd > 0 ? vma_fd_lookup(request->fd) : NULL;

	if (request->value < VMA_LOG_PANIC || request->value > VMA_LOG_ALL)
		return;
	if (request->fd == 0)
		vma_file_each(dump_socket_unless_closed, request);
	else if (file != NULL)
		dump_socket_unless_closed(file, request);
	else
		vma_log_write((enum vma_log_level)request->value, "statistics: fd %d is no socket of the library's",
		              request->fd);
}

/* The first time the memory is made, in pieces: between them this thread does its other work. */
static void serve_capture(struct vma_internal_task *task)
{
	struct vma_stats *stats = requests_engine->stats;
	const int fd = vma_stats_capture_fd(stats);
	struct vma_capture *capture;
	const int rc = vma_stats_enable_packet_capture(stats, capture_request.value, capture_request.fd, &capture);

	if (fd < 0 && vma_stats_capture_fd(stats) >= 0)
		vma_fd_guard_same_number(vma_stats_capture_fd(stats));
	if (rc == 0) {
		vma_nic_tap_start_capture(capture);
		vma_stats_count_capture_grant(stats);
	} else if (rc == -EAGAIN) {
		vma_engine_post_task_within_1ms(task);
	} else if (rc != -EINVAL) {
		vma_log_warn("packets cannot be captured: %s", strerrordesc_np(-rc));
	}
}

static void serve_stats_request(struct vma_engine *engine, struct vma_stats_request *request)
{
	int rc;

	switch ((enum vma_stats_request_type)request->type) {
	case VMA_STATS_REQUEST_ZERO:
		rc = vma_stats_zero(engine->stats);
		if (rc < 0)
			vma_log_warn("statistics: the counters cannot be zeroed: %s", strerrordesc_np(-rc));
		break;
	case VMA_STATS_REQUEST_LOG_LEVEL:
		if (request->value >= VMA_LOG_PANIC && request->value <= VMA_LOG_ALL)
			vma_log_set_level((enum vma_log_level)request->value);
		break;
	case VMA_STATS_REQUEST_DETAILS:
		if (request->value >= 0 && request->value <= 3)
			vma_log_set_details((unsigned)request->value);
		break;
	case VMA_STATS_REQUEST_DUMP:
		dump_sockets_of_request(request);
		break;
	case VMA_STATS_REQUEST_CAPTURE:
		capture_request = *request;
		serve_capture(&requests_capture_task);
		break;
	case VMA_STATS_REQUEST_COUNT:
		break;
	}
}

/* The pipe is watched for edges: what is left is read by a task that is posted. */
static void serve_requests(struct vma_internal_task *task)
{
	struct vma_stats_request request;

	(void)task;
	for (unsigned i = 0; i < REQUESTS_AT_ONCE; i++) {
		if (!vma_stats_next_request(requests_engine->stats, &request))
			return;
		serve_stats_request(requests_engine, &request);
	}
	vma_engine_post_task_within_1ms(&requests_remaining_task);
}

/* Without a thread nobody reads them: the counters are seen all the same. */
int stats_requests_start(struct vma_engine *engine)
{
	int fds[VMA_STATS_FDS];

	requests_engine = engine;
	requests_read_task = requests_remaining_task = (struct vma_internal_task){.run = serve_requests};
	requests_capture_task = (struct vma_internal_task){.run = serve_capture};
	if (vma_stats_fds(engine->stats, fds) == VMA_STATS_FDS)
		vma_engine_watch_fd_with_task(fds[VMA_STATS_FDS - 1], EPOLLIN | EPOLLET, &requests_read_task);
	return 0;
}
