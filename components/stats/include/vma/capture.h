/*
 * capture - packets that another process can read while they pass: a ring of records in a sealed memfd.
 *
 *   any thread ── vma_capture_write_packet ──> slots n % SLOTS and on ──> ... overwritten SLOTS slots later
 *                                         │
 *   another process ── read-only map ─────┘ vma_capture_next: in order, or so many are lost
 *
 * A record is one slot, or several if its frame is longer than a slot.
 *
 * The writer knows nothing of readers, and overwrites. A reader finds out what it has lost by the numbers of the slots.
 * The reader believes nothing that it reads: sizes are this build's constants, lengths and kinds are checked, texts are
 * ended and printable.
 *
 * Threads: any number of threads put, none waits. Each reader is one thread at a time.
 * Progress: a put may find its slot in the hands of a thread that lost its core a whole ring ago. Then it gives up, and
 *           the record counts as lost.
 * Memory: VMA_CAPTURE_BYTES, from the first capture to the end of the process. Its user and root may read it.
 * Example: test/stress_capture.c.
 */
#ifndef VMA_CAPTURE_H
#define VMA_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define VMA_CAPTURE_SLOTS 16384u
#define VMA_CAPTURE_SLOT_BYTES 2048u
#define VMA_CAPTURE_DATA_MAX 65535u /* of a frame; the rest is cut off */
#define VMA_CAPTURE_TEXT_MAX 32
#define VMA_CAPTURE_LEASE_MAX 10 /* seconds that one request may ask for */

enum vma_capture_kind {
	VMA_CAPTURE_IN,
	VMA_CAPTURE_OUT,
	VMA_CAPTURE_DROP, /* no packet: the one that came with the same id has been dropped, for the reason in `text` */
	VMA_CAPTURE_MOVED, /* no packet: the one that came with the same id has been copied, and has the id `len` now */
	VMA_CAPTURE_KINDS
};
enum vma_capture_flags { VMA_CAPTURE_CSUM_OPEN = 1 << 0 }; /* the device, or the peer's, may finish the checksum */

/* What is said of a packet. */
struct vma_capture_info {
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint32_t len;     /* of the whole frame */
	uint32_t id;      /* of its buffer, the first of several */
	uint16_t captured;
	uint8_t kind;                    /* enum vma_capture_kind */
	uint8_t flags;                   /* enum vma_capture_flags */
	char text[VMA_CAPTURE_TEXT_MAX]; /* interface; reason of a drop */
};

/* ---- the writer ---- */

struct vma_capture;
/* Copies `info` and the frame, which lies in n pieces, to the length that was asked for. info->captured is filled in.
 * Data path. */
void vma_capture_write_packet(struct vma_capture *capture, struct vma_capture_info *info, const struct iovec *pieces,
                              unsigned n);
/* Whether somebody has asked for packets lately: vma_stats_enable_packet_capture. Data path. */
bool vma_capture_wanted(const struct vma_capture *capture);

/* ---- the reader ---- */

struct vma_capture_reader;
struct vma_stats_view;
/*
 * The ring of the process that the view is of, which has been asked for it (VMA_STATS_REQUEST_CAPTURE). -EAGAIN: it has
 * not made it yet; -EPROTO, -ESRCH, -EACCES as vma_stats_view_open. What comes from now on is read.
 */
int vma_capture_open(const struct vma_stats_view *view, struct vma_capture_reader **out);
/* On memory of VMA_CAPTURE_BYTES that the caller has mapped; for tests. */
#define VMA_CAPTURE_BYTES (4096 + (size_t)VMA_CAPTURE_SLOTS * VMA_CAPTURE_SLOT_BYTES)
int vma_capture_open_memory(const void *memory, struct vma_capture_reader **out);
void vma_capture_close(struct vma_capture_reader *reader);
/* How many requests for a capture the process has served. */
uint64_t vma_capture_grant_count(const struct vma_capture_reader *reader);
/*
 * The next record: 1, and data has info->captured bytes (at most VMA_CAPTURE_DATA_MAX); 0: there is none yet. now_ns:
 * any clock, by which a slot that is never finished is given up.
 */
int vma_capture_next(struct vma_capture_reader *reader, uint64_t now_ns, struct vma_capture_info *info, uint8_t *data);
/* How many records were lost so far. Among records of several slots, too few until all that was put has been read. */
uint64_t vma_capture_lost(const struct vma_capture_reader *reader);

#endif
