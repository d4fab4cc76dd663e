/* capture_read - a reader's own state, of which the process that writes knows nothing. */
#ifndef VMA_STATS_CAPTURE_READ_H
#define VMA_STATS_CAPTURE_READ_H

#include <vma/capture.h>

struct vma_capture_reader {
	const struct vma_capture *ring; /* read-only mapping */
	uint64_t next;                  /* the number of the slot that is wanted */
	uint64_t stuck_at, stuck_ns;    /* next + 1, and since when its slot has not been written */
	uint64_t lost_slots, more;      /* slots passed over; those read, or older, that continue a record */
	bool mapped;                    /* by vma_capture_open */
};

#endif
