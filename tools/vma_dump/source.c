/* source - requests and records of one process. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "source.h"

#define ASK_NS UINT64_C(500000000)
#define LEASE_NS (SOURCE_LEASE_SECONDS * UINT64_C(1000000000))
#define DRAIN_STEP_NS UINT64_C(1000000000) /* longer than an unfinished record is waited for */

struct source *source_create(struct vma_stats_view *view, pid_t pid, struct merge *merge)
{
	struct source *source = calloc(1, sizeof(*source));

	if (source == NULL) {
		vma_stats_view_close(view);
		return NULL;
	}
	source->view = view;
	source->pid = pid;
	processes_name(pid, source->name);
	source->queue.of = source;
	merge_add_queue(merge, &source->queue);
	return source;
}

void source_destroy(struct source *source, struct merge *merge)
{
	merge_remove_queue(merge, &source->queue);
	vma_capture_close(source->reader);
	vma_stats_view_close(source->view);
	free(source);
}

/* ---- requests ---- */

/* If the pipe is full, the process has requests enough. */
static int source_request_capture(struct source *source, uint32_t snap, uint64_t now_ns)
{
	const struct vma_stats_request request = {
	        .type = VMA_STATS_REQUEST_CAPTURE, .fd = (int32_t)snap, .value = SOURCE_LEASE_SECONDS};
	const int rc = vma_stats_view_request(source->view, &request);

	source->asked_ns = now_ns;
	return rc == -EAGAIN ? 0 : rc;
}

/* What was copied before the process ended the capture comes before the gap. */
static void source_note_capture_gap(struct source *source, struct merge *merge, uint64_t now_ns)
{
	source->interruptions++;
	source_read_remaining_records(source, merge, now_ns);
	source->queue.interrupted = true;
}

/* The ring is there after the first request, and packets come for certain once another one has been served. */
static int source_open_and_await_capture(struct source *source, uint32_t snap, uint64_t now_ns)
{
	int rc = 0;

	if (source->reader == NULL) {
		rc = vma_capture_open(source->view, &source->reader);
		if (rc == 0) {
			source->grants = vma_capture_grant_count(source->reader);
			return source_request_capture(source, snap, now_ns);
		}
	} else {
		source->captures = vma_capture_grant_count(source->reader) != source->grants;
	}
	if (rc < 0 && rc != -EAGAIN)
		return rc;
	return !source->captures && now_ns - source->began_ns > SOURCE_START_NS ? -ETIMEDOUT : 0;
}

int source_keep_capture_requested(struct source *source, uint32_t snap, struct merge *merge, uint64_t now_ns)
{
	int rc = 0;

	if (source->began_ns == 0)
		source->began_ns = source->asked_ns = now_ns - ASK_NS;
	if (source->captures && now_ns - source->asked_ns > LEASE_NS)
		source_note_capture_gap(source, merge, now_ns);
	if (now_ns - source->asked_ns >= ASK_NS)
		rc = source_request_capture(source, snap, now_ns);
	if (rc == 0 && !source->captures)
		rc = source_open_and_await_capture(source, snap, now_ns);
	return rc;
}

/* ---- records ---- */

uint64_t source_lost_packet_count(const struct source *source)
{
	return source->reader != NULL ? vma_capture_lost(source->reader) : 0;
}

/* clock_ns: by which an unfinished record is given up. */
static bool source_read_records(struct source *source, struct merge *merge, uint64_t now_ns, uint64_t clock_ns)
{
	static uint8_t data[VMA_CAPTURE_DATA_MAX];
	struct vma_capture_info info;
	unsigned n = 0;

	while (source->reader != NULL && n < VMA_CAPTURE_SLOTS &&
	       vma_capture_next(source->reader, clock_ns, &info, data) == 1) {
		const uint64_t lost = source_lost_packet_count(source);

		n++;
		if (lost > source->lost) {
			source->queue.lost += lost - source->lost;
			source->lost = lost;
		}
		if (!merge_push_record(merge, &source->queue, &info, data, now_ns))
			break;
	}
	return n != 0;
}

bool source_move_packets_to_merge(struct source *source, struct merge *merge, uint64_t now_ns)
{
	return source_read_records(source, merge, now_ns, now_ns);
}

/* Nobody may be writing any more: an unfinished record is given up, so that what comes behind it is read. */
void source_read_remaining_records(struct source *source, struct merge *merge, uint64_t now_ns)
{
	uint64_t clock_ns = now_ns;

	for (unsigned nothing = 0; nothing < 2 && clock_ns - now_ns < VMA_CAPTURE_SLOTS * DRAIN_STEP_NS;
	     clock_ns += DRAIN_STEP_NS)
		nothing = source_read_records(source, merge, now_ns, clock_ns) ? 0 : nothing + 1;
}
