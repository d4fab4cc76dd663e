/* xtreme_ring.h - what SocketXtreme has of a ring bit: sources with something to tell, and places for its completions.
 * */
#ifndef VMA_INET_XTREME_RING_H
#define VMA_INET_XTREME_RING_H

#include <vma/inet_xtreme.h>

struct vma_xtreme_ring {
	/* poller's: the thread that has `taking` */
	_Alignas(64) _Atomic bool taking;
	unsigned bit;   /* constant */
	uint32_t spare; /* free places: the first one's index and 1 */
	uint32_t n;     /* sources of the list */
	struct vma_xtreme_source *first, *last;

	/* anybody's */
	_Alignas(64) struct vma_xtreme_source *_Atomic arrived; /* newest first */
	_Atomic uint32_t dead; /* sources that have ended on a list since it was last gone through for them */
	_Alignas(64) _Atomic uint32_t returned; /* places: the last one's index and 1 */
};

struct vma_xtreme_source {
	struct vma_xtreme_source *next;
	struct vma_file *_Atomic file; /* NULL: it has ended */
	_Atomic bool queued;
	_Atomic uint32_t refs; /* its owner's, and the list's */
	_Atomic uint32_t events;
	struct vma_xtreme_ring *ring;
};

extern struct vma_xtreme_ring *_Atomic xtreme_rings[64] __attribute__((visibility("hidden")));
static inline struct vma_xtreme_ring *xtreme_ring_get_by_bit(unsigned bit)
{
	return atomic_load_explicit(&xtreme_rings[bit], memory_order_acquire);
}
void xtreme_rings_clear_in_forked_child(void);

#endif
