/*
 * capture_priv - the ring as it lies in memory.
 *
 * A slot's `state` says whose it is, by the slot's number n, and how far it has come:
 *
 *   0                     nothing has been written yet
 *   4n + CAPTURE_WRITING  it is being written
 *   4n + CAPTURE_FIRST    complete: a record begins here
 *   4n + CAPTURE_MORE     complete: the record before goes on here; or its writer has given up
 *
 * Argument. A writer takes all numbers of its record at once (fetch_add of head). It takes each slot by a
 * compare-and-swap of state (acquire), from 0 or a complete state below 4n to 4n + CAPTURE_WRITING. So a slot has one
 * writer at a time, and its numbers only grow. Then it stores the words (release each), and at last the state
 * (release); that of the record's first slot after those of all others. A reader that wants record n loads state
 * (acquire): 4n + CAPTURE_FIRST means that all words of the record, in all of its slots, are visible. It loads the
 * words of a slot (acquire each), then that slot's state again. If one of the words was of a later writer, that load
 * synchronises with its store. The later writer's 4m + CAPTURE_WRITING comes before that store, so the second load of
 * state sees it, and the copy is thrown away. No fence is needed, and ThreadSanitizer sees each step.
 *
 * Numbers are 62 bits and do not wrap.
 *
 * Lost records are lost slots without those that continue a record. `more` counts the latter as they are put, and the
 * reader counts those that it has read.
 *
 * Threads: any thread of the process writes, and a slot is its own from its compare-and-swap until `state` says that
 * the slot is complete. Only the internal thread writes `magic`, `grants`, `until_ns` and `snap`. Readers are other
 * processes, which map the ring read-only.
 */
#ifndef VMA_STATS_CAPTURE_PRIV_H
#define VMA_STATS_CAPTURE_PRIV_H

#include <stdatomic.h>
#include <stddef.h>

#include <vma/capture.h>

#define CAPTURE_MAGIC 0x32504143414d5600u
#define CAPTURE_WORDS ((VMA_CAPTURE_SLOT_BYTES - sizeof(uint64_t)) / sizeof(uint64_t))
#define CAPTURE_INFO_WORDS (sizeof(struct vma_capture_info) / sizeof(uint64_t))
#define CAPTURE_FIRST_BYTES                                                                                            \
	((CAPTURE_WORDS - CAPTURE_INFO_WORDS) * sizeof(uint64_t)) /* of a frame, in the first slot */
#define CAPTURE_MORE_BYTES (CAPTURE_WORDS * sizeof(uint64_t))     /* in each other one */

enum capture_state { CAPTURE_WRITING = 1, CAPTURE_FIRST, CAPTURE_MORE, CAPTURE_STATES };

struct capture_slot {
	_Atomic uint64_t state;
	_Atomic uint64_t words[CAPTURE_WORDS]; /* of the first: struct vma_capture_info; then the frame */
};

struct vma_capture {
	_Atomic uint64_t magic; /* written last */
	_Atomic uint64_t grants;
	_Atomic uint64_t until_ns;                          /* CLOCK_MONOTONIC_COARSE: asked for until then */
	_Atomic uint32_t snap;                              /* bytes of each frame that are asked for */
	_Atomic uint64_t head __attribute__((aligned(64))); /* the next number */
	_Atomic uint64_t more;                              /* slots put so far that continue a record */
	struct capture_slot slots[VMA_CAPTURE_SLOTS] __attribute__((aligned(4096)));
};
_Static_assert(sizeof(struct capture_slot) == VMA_CAPTURE_SLOT_BYTES, "a slot");
_Static_assert(sizeof(struct vma_capture) == VMA_CAPTURE_BYTES, "header and slots");
_Static_assert(sizeof(struct vma_capture_info) % sizeof(uint64_t) == 0, "whole words");
_Static_assert(VMA_CAPTURE_DATA_MAX == UINT16_MAX, "no length is longer than a frame's copy");
_Static_assert(CAPTURE_STATES == 4, "a number is a quarter of a state");

static inline uint64_t capture_slots_needed_for_bytes(uint32_t captured)
{
	return captured <= CAPTURE_FIRST_BYTES
	               ? 1
	               : 1 + (captured - CAPTURE_FIRST_BYTES + CAPTURE_MORE_BYTES - 1) / CAPTURE_MORE_BYTES;
}

#endif
