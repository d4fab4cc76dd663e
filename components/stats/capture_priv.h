/*
 * capture_priv - the ring as it lies in memory.
 *
 * A slot's `state` says whose it is: 2n + 1, record n is being written; 2n + 2, record n is complete; 0, nothing yet.
 *
 * Argument. A writer takes number n (fetch_add of head), and the slot by a compare-and-swap of state from an even value
 * below 2n + 1 (acquire) to 2n + 1. So a slot has one writer at a time, and its numbers only grow. Then it stores the
 * words (release each), and at last state 2n + 2 (release). A reader that wants record n loads state (acquire): 2n + 2
 * means that all words of n are visible. It loads the words (acquire each), then state again. If one of the words was
 * of a later writer, that load synchronises with its store; so the later writer's 2m + 1, which comes before, is visible
 * to the second load of state, and the copy is thrown away. No fence is needed, and ThreadSanitizer sees each step.
 *
 * Numbers are 64 bits and do not wrap.
 */
#ifndef VMA_STATS_CAPTURE_PRIV_H
#define VMA_STATS_CAPTURE_PRIV_H

#include <stdatomic.h>
#include <stddef.h>

#include <vma/capture.h>

#define CAPTURE_MAGIC 0x31504143414d5600u
#define CAPTURE_WORDS ((VMA_CAPTURE_SLOT_BYTES - sizeof(uint64_t)) / sizeof(uint64_t))
#define CAPTURE_INFO_WORDS (sizeof(struct vma_capture_info) / sizeof(uint64_t))

struct capture_slot {
	_Atomic uint64_t state;
	_Atomic uint64_t words[CAPTURE_WORDS]; /* struct vma_capture_info, then the frame */
};

struct vma_capture {
	_Atomic uint64_t magic; /* written last */
	_Atomic uint64_t grants;
	_Atomic uint64_t until_ns;                          /* CLOCK_MONOTONIC_COARSE: asked for until then */
	_Atomic uint64_t head __attribute__((aligned(64))); /* the next number */
	struct capture_slot slots[VMA_CAPTURE_SLOTS] __attribute__((aligned(4096)));
};
_Static_assert(sizeof(struct capture_slot) == VMA_CAPTURE_SLOT_BYTES, "a slot");
_Static_assert(sizeof(struct vma_capture) == VMA_CAPTURE_BYTES, "header and slots");
_Static_assert(sizeof(struct vma_capture_info) % sizeof(uint64_t) == 0, "whole words");
_Static_assert(sizeof(struct vma_capture_info) + sizeof(uint64_t) <= VMA_CAPTURE_HEAD_BYTES, "room for the head");

#endif
