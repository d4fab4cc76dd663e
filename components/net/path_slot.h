/*
 * path_slot.h - a path's template: one writer at a time, any number of readers, no lock.
 *
 * The words of version v lie in slot v % 2. The writer of v + 1 fills the other slot, then publishes v + 1. If a writer
 * is descheduled in the middle, version v stays whole and readable, so no reader waits for it. (ck_sequence has only
 * one copy: its readers would wait.) A reader copies the slot of the version that it saw. It keeps the copy if the
 * version is still the same:
 *
 *  - The copy is at least as new as v. Publishing v is a release store after all of v's words, and the reader began
 *    with an acquire load of v.
 *  - Nothing in the copy is newer. The next writer of this slot writes v + 2. All its words are release stores, and
 *    come after v + 1 was published. A reader that gets one of them gets it by an acquire load. So v + 1 happens before
 *    the reader's second load of the version, which cannot return v any more.
 *
 * Hence a reader starts again only if a writer has published meanwhile. There are no fences, so ThreadSanitizer checks
 * all of it; on x86-64 every access is a plain move. The version wraps: a reader would be deceived only if it slept for
 * exactly 2^32 updates in the middle of a copy.
 *
 * Threads: one writes, with net's lock; any thread reads.
 */
#ifndef VMA_NET_PATH_SLOT_H
#define VMA_NET_PATH_SLOT_H

#include <string.h>

#include <vma/net.h>

#define PATH_SLOT_WORDS (VMA_NET_TEMPLATE_WORDS + VMA_NET_KEY_WORDS)

/* Publishes the template (whose version is filled in) and the key that it belongs to; one writer at a time. */
static inline void path_slot_publish_template(struct vma_net_path *path, struct vma_net_template *t,
                                              const struct vma_net_key *key)
{
	const uint32_t version = atomic_load_explicit(&path->version, memory_order_relaxed) + 1;
	uint64_t words[PATH_SLOT_WORDS];

	t->version = version;
	memcpy(words, t, sizeof(*t));
	memcpy(words + VMA_NET_TEMPLATE_WORDS, key, sizeof(*key));
	for (size_t i = 0; i < PATH_SLOT_WORDS; i++)
		atomic_store_explicit(&path->slot[version % 2].words[i], words[i], memory_order_release);
	atomic_store_explicit(&path->version, version, memory_order_release);
}

/* The first n words of the present version. */
static inline void path_slot_read_template_words(const struct vma_net_path *path, uint64_t *words, size_t n)
{
	uint32_t version;

	do {
		version = atomic_load_explicit(&path->version, memory_order_acquire);
		for (size_t i = 0; i < n; i++)
			words[i] = atomic_load_explicit(&path->slot[version % 2].words[i], memory_order_acquire);
	} while (atomic_load_explicit(&path->version, memory_order_relaxed) != version);
}

#endif
