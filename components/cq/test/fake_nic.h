/*
 * fake_nic - a queue pair that does what a test tells it: arrivals are written by hand, posting can be limited.
 * Its receive queue holds the posted buffers in order; the next arrival uses the oldest one.
 */
#ifndef FAKE_NIC_H
#define FAKE_NIC_H

#include <errno.h>
#include <string.h>

#include <vma/nic.h>
#include <vma/test.h>

#define FAKE_DEPTH 64

struct fake_nic {
	struct vma_nic_qp qp; /* first: the ops get its address */
	struct vma_nic nic;
	struct vma_buf *posted[4096];
	unsigned posted_count;
	struct vma_buf *arrived[4096];
	unsigned arrived_count;
	struct vma_buf *sent[256];
	unsigned sent_count;
	unsigned post_limit; /* how many buffers a call takes at most */
	unsigned moderate_calls, count, period_usec;
	int moderate_result;
	uint64_t now_ns;
};

static inline unsigned fake_post_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct fake_nic *fake = (struct fake_nic *)qp;

	if (n > fake->post_limit)
		n = fake->post_limit;
	vma_bufpool_uncount_bufs_given_to_nic(atomic_load(&qp->rx_pool), bufs, n);
	for (unsigned i = 0; i < n; i++)
		fake->posted[fake->posted_count++] = bufs[i];
	return n;
}

static inline unsigned fake_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct fake_nic *fake = (struct fake_nic *)qp;

	if (n > fake->arrived_count)
		n = fake->arrived_count;
	memcpy(bufs, fake->arrived, n * sizeof(bufs[0]));
	memmove(fake->arrived, fake->arrived + n, (fake->arrived_count - n) * sizeof(bufs[0]));
	fake->arrived_count -= n;
	return n;
}

static inline unsigned fake_reap_tx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct fake_nic *fake = (struct fake_nic *)qp;

	if (n > fake->sent_count)
		n = fake->sent_count;
	for (unsigned i = 0; i < n; i++)
		bufs[i] = fake->sent[--fake->sent_count];
	return n;
}

static inline int fake_moderate(struct vma_nic_qp *qp, uint32_t count, uint32_t period_usec)
{
	struct fake_nic *fake = (struct fake_nic *)qp;

	fake->moderate_calls++;
	fake->count = count;
	fake->period_usec = period_usec;
	return fake->moderate_result;
}

static inline int fake_arm(struct vma_nic_qp *qp)
{
	return ((struct fake_nic *)qp)->arrived_count > 0;
}

static inline uint64_t fake_now_ns(const struct vma_nic *nic)
{
	return ((const struct fake_nic *)((const char *)nic - offsetof(struct fake_nic, nic)))->now_ns;
}

static const struct vma_nic_ops fake_ops = {
        .name = "fake",
        .post_rx = fake_post_rx,
        .poll_rx = fake_poll_rx,
        .reap_tx = fake_reap_tx,
        .moderate = fake_moderate,
        .arm = fake_arm,
        .now_ns = fake_now_ns,
};

/* A queue pair FAKE_DEPTH deep whose rx_pool has `frames` buffers. */
static inline void fake_init(struct fake_nic *fake, struct vma_bufarena *arena, uint32_t frames)
{
	struct vma_bufpool_attr attr = {.arena = arena, .name = "fake rx", .batching_mode = 1};
	struct vma_bufpool *pool;
	uint32_t first;

	*fake = (struct fake_nic){.post_limit = UINT32_MAX};
	fake->nic = (struct vma_nic){
	        .ops = &fake_ops, .arena = arena, .info = {.name = "fake0", .caps = VMA_NIC_CAP_MODERATION}};
	assert_int_equal(vma_bufpool_create(&attr, &pool), 0);
	assert_int_equal(vma_bufarena_map_memory(arena, frames, &first), 0);
	assert_int_equal(vma_bufpool_add_frames(pool, first, frames), 0);
	fake->qp.ops = &fake_ops;
	fake->qp.nic = &fake->nic;
	fake->qp.arena = arena;
	atomic_init(&fake->qp.rx_pool, pool);
	fake->qp.rx_depth = FAKE_DEPTH;
}

/* The oldest posted buffer arrives with `len` bytes of `fill`. */
static inline struct vma_buf *fake_receive_packet(struct fake_nic *fake, uint32_t len, char fill, uint16_t flags)
{
	struct vma_buf *buf;

	assert_true(fake->posted_count > 0);
	buf = fake->posted[0];
	memmove(fake->posted, fake->posted + 1, --fake->posted_count * sizeof(buf));
	vma_bufpool_init_bufs_taken_from_nic(atomic_load(&fake->qp.rx_pool), &buf, 1);
	buf->data_off = 64;
	buf->len = len;
	buf->flags = flags;
	memset(vma_buf_data(fake->qp.arena, buf), fill, len);
	fake->arrived[fake->arrived_count++] = buf;
	return buf;
}

/* Everything that the "device" holds goes back to its pool, as a real backend does when the queue pair ends. */
static inline void fake_fini(struct fake_nic *fake)
{
	struct vma_bufpool *pool = atomic_load(&fake->qp.rx_pool);

	vma_bufpool_init_bufs_taken_from_nic(pool, fake->posted, fake->posted_count);
	vma_buf_put_burst(fake->qp.arena, fake->posted, fake->posted_count);
	vma_buf_put_burst(fake->qp.arena, fake->arrived, fake->arrived_count);
	vma_bufpool_retire(pool, NULL, NULL);
}

#endif
