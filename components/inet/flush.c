/* flush.c - the kick, or the run of the protocol, that a thread's sends in a row share. */
#include <vma/inet.h>
#include <vma/sock_engine.h>

static struct vma_ring_ctx *ring_ctx_with_ring(const struct vma_ring *ring)
{
	for (unsigned bit = 0; bit < 64; bit++) {
		struct vma_ring_ctx *ring_ctx = atomic_load_explicit(&vma_ring_ctxs[bit], memory_order_acquire);

		for (; ring_ctx != NULL; ring_ctx = atomic_load_explicit(&ring_ctx->next, memory_order_acquire)) {
			if (ring_ctx->ring == ring)
				return ring_ctx;
		}
	}
	return NULL;
}

/* The ring is used only if it is still there: its last socket may have been closed by another thread meanwhile. */
void vma_inet_flush_sends_slow(struct vma_thread *self)
{
	struct vma_ring *ring = self->tx_ring;
	const bool queued = self->tx_batched != 0;

	self->tx_ring = NULL;
	self->tx_batched = 0;
	if (ring_ctx_with_ring(ring) == NULL)
		return;
	/* Who has the flag looks at the queue once more before, or after, it gives it back. */
	if (queued && vma_ring_try_acquire(ring))
		vma_ring_release(ring);
	vma_ring_flush_tx(ring);
}
