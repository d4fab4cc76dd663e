/*
 * fake_nic - a NIC whose every answer the test decides: what arrives, how much room there is, what a kick returns.
 *
 * One queue pair. Sent frames are copied when they are queued; they complete when a kick goes through.
 */
#ifndef FAKE_NIC_H
#define FAKE_NIC_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <vma/ring.h>
#ifdef FAKE_NIC_ABORTS /* a program without cmocka */
#include <stdio.h>
#include <stdlib.h>
#define assert_true(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))
#define assert_int_equal(a, b) assert_true((a) == (b))
#define assert_non_null(x) assert_true((x) != NULL)
#else
#include <vma/test.h>
#endif

enum { FAKE_BUFS = 1024, FAKE_LOG = 4096, FAKE_FRAME = 2048 };

struct fake_frame {
	uint32_t len, segs;
	uint16_t flags;
	uint8_t bytes[FAKE_FRAME];
};

struct fake_nic {
	struct vma_nic nic; /* first */
	struct vma_nic_qp qp;
	struct vma_nic_qp_attr attr;
	struct vma_bufarena *arena;
	struct vma_bufpool *spill;
	uint32_t rx_first, tx_first;
	pthread_mutex_t lock; /* posted and arrived: a test may inject while another thread polls */
	struct vma_buf *posted[FAKE_BUFS], *arrived[FAKE_BUFS], *queued[FAKE_BUFS], *done[FAKE_BUFS];
	unsigned posted_count, arrived_count, queued_count, done_count;

	unsigned polls;
	bool tells_quiet; /* rx_is_empty knows */
	unsigned tx_room; /* segments that tx takes until it is full */
	int kick_result;  /* of every kick while kick_failures > 0 */
	unsigned kick_failures;
	unsigned kicks;
	int flow_result, rebind_result;
	int to_kernel_result;
	unsigned to_kernel;
	unsigned flows_added, flows_deleted, rebinds;
	struct vma_flow_key last_added, last_deleted;
	uint64_t last_cookie;     /* of the last flow_add, refused or not */
	void (*in_tx)(void *arg); /* called in the middle of tx and poll_rx: what a signal handler would do */
	void (*in_poll)(void *arg);
	void *in_arg;
	void (*in_create)(struct fake_nic *fake); /* of the queue pair */
	/* Instead of flow_result: what the owner of the device says. */
	int (*in_flow_add)(struct fake_nic *fake, const struct vma_flow_rule *rule);
	int (*in_flow_del)(struct fake_nic *fake, const struct vma_flow_key *key);
	void (*in_destroy)(struct fake_nic *fake);
	int (*in_exempt)(struct fake_nic *fake, const struct vma_flow_key *key); /* NULL: -EOPNOTSUPP */
	unsigned exempts;                                                        /* that have not ended */
	struct fake_frame *sent;
	unsigned sent_count;
	int event_fd;
};

static struct fake_nic *fake_of(const struct vma_nic_qp *qp)
{
	return (struct fake_nic *)((char *)(uintptr_t)qp - offsetof(struct fake_nic, qp));
}

static struct vma_bufpool *fake_nic_create_pool(struct fake_nic *fake, const char *name, uint32_t count)
{
	struct vma_bufpool_attr attr = {.arena = fake->arena, .name = name};
	struct vma_bufpool *pool;
	uint32_t first;

	assert_int_equal(vma_bufpool_create(&attr, &pool), 0);
	assert_int_equal(vma_bufarena_map_memory(fake->arena, count, &first), 0);
	assert_int_equal(vma_bufpool_add_frames(pool, first, count), 0);
	return pool;
}

static int fake_qp_create(struct vma_nic *nic, const struct vma_nic_qp_attr *attr, struct vma_nic_qp **out)
{
	struct fake_nic *fake = (struct fake_nic *)nic;

	fake->attr = *attr;
	fake->qp.ops = nic->ops;
	fake->qp.nic = nic;
	fake->qp.arena = fake->arena;
	atomic_store(&fake->qp.rx_pool, fake_nic_create_pool(fake, "rx", 512));
	atomic_store(&fake->qp.tx_pool, fake_nic_create_pool(fake, "tx", 512));
	fake->qp.rx_depth = attr->rx_wre != 0 && attr->rx_wre < 256 ? attr->rx_wre : 256;
	fake->qp.tx_depth = attr->tx_wre != 0 && attr->tx_wre < 256 ? attr->tx_wre : 256;
	*out = &fake->qp;
	if (fake->in_create != NULL)
		fake->in_create(fake);
	return 0;
}

static void fake_nic_free_all_buffers(struct fake_nic *fake)
{
	vma_bufpool_init_bufs_taken_from_nic(atomic_load(&fake->qp.rx_pool), fake->posted, fake->posted_count);
	vma_buf_put_burst(fake->arena, fake->posted, fake->posted_count);
	vma_buf_put_burst(fake->arena, fake->arrived, fake->arrived_count);
	vma_buf_put_burst(fake->arena, fake->queued, fake->queued_count);
	vma_buf_put_burst(fake->arena, fake->done, fake->done_count);
	fake->posted_count = fake->arrived_count = fake->queued_count = fake->done_count = 0;
}

static void fake_qp_destroy(struct vma_nic_qp *qp)
{
	struct fake_nic *fake = fake_of(qp);

	if (fake->in_destroy != NULL)
		fake->in_destroy(fake);
	fake_nic_free_all_buffers(fake);
	vma_bufpool_retire(atomic_load(&qp->rx_pool), NULL, NULL);
	vma_bufpool_retire(atomic_load(&qp->tx_pool), NULL, NULL);
}

static int fake_qp_rebind(struct vma_nic_qp *qp)
{
	struct fake_nic *fake = fake_of(qp);

	fake->rebinds++;
	if (fake->rebind_result != 0)
		return fake->rebind_result;
	fake_qp_destroy(qp);
	atomic_store(&qp->rx_pool, fake_nic_create_pool(fake, "rx2", 512));
	atomic_store(&qp->tx_pool, fake_nic_create_pool(fake, "tx2", 512));
	atomic_store(&qp->lost, false);
	return 0;
}

static int fake_flow_add(struct vma_nic_qp *qp, const struct vma_flow_rule *rule)
{
	struct fake_nic *fake = fake_of(qp);

	if (fake->in_flow_add != NULL)
		return fake->in_flow_add(fake, rule);
	fake->last_cookie = rule->shadow_cookie;
	if (fake->flow_result != 0)
		return fake->flow_result;
	fake->flows_added++;
	fake->last_added = rule->key;
	return 0;
}

static int fake_flow_del(struct vma_nic_qp *qp, const struct vma_flow_key *key)
{
	struct fake_nic *fake = fake_of(qp);

	if (fake->in_flow_del != NULL)
		return fake->in_flow_del(fake, key);
	fake->flows_deleted++;
	fake->last_deleted = *key;
	return 0;
}

static unsigned fake_post_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct fake_nic *fake = fake_of(qp);

	pthread_mutex_lock(&fake->lock);
	if (n > qp->rx_depth - fake->posted_count)
		n = qp->rx_depth - fake->posted_count;
	vma_bufpool_uncount_bufs_given_to_nic(atomic_load(&qp->rx_pool), bufs, n);
	memcpy(fake->posted + fake->posted_count, bufs, n * sizeof(*bufs));
	fake->posted_count += n;
	pthread_mutex_unlock(&fake->lock);
	return n;
}

static unsigned fake_poll_rx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct fake_nic *fake = fake_of(qp);

	if (fake->in_poll != NULL)
		fake->in_poll(fake->in_arg);
	pthread_mutex_lock(&fake->lock);
	if (n > fake->arrived_count)
		n = fake->arrived_count;
	fake->polls++;
	memcpy(bufs, fake->arrived, n * sizeof(*bufs));
	memmove(fake->arrived, fake->arrived + n, (fake->arrived_count - n) * sizeof(*bufs));
	fake->arrived_count -= n;
	pthread_mutex_unlock(&fake->lock);
	return n;
}

static bool fake_nic_rx_is_empty(const struct vma_nic_qp *qp)
{
	struct fake_nic *fake = fake_of(qp);
	bool quiet;

	if (!fake->tells_quiet) /* a signal handler may ask within the lock */
		return false;
	pthread_mutex_lock(&fake->lock);
	quiet = fake->arrived_count == 0;
	pthread_mutex_unlock(&fake->lock);
	return quiet;
}

/* As a device does of whose offload a packet asks in vain. */
static bool fake_lacks_offload(const struct fake_nic *fake, uint16_t flags)
{
	return (flags & VMA_NIC_SEG_TSO && !(fake->nic.info.caps & VMA_NIC_CAP_TSO)) ||
	       (flags & VMA_NIC_SEG_CSUM && !(fake->nic.info.caps & VMA_NIC_CAP_TX_CSUM));
}

static unsigned fake_tx(struct vma_nic_qp *qp, const struct vma_nic_seg *segs, unsigned n)
{
	struct fake_nic *fake = fake_of(qp);
	unsigned taken = 0;

	if (fake->in_tx != NULL)
		fake->in_tx(fake->in_arg);
	while (taken < n && fake->sent_count < FAKE_LOG) {
		struct fake_frame *frame = &fake->sent[fake->sent_count];
		unsigned k = taken;

		*frame = (struct fake_frame){.flags = segs[k].flags};
		do {
			if (frame->len + segs[k].len <= FAKE_FRAME)
				memcpy(frame->bytes + frame->len, vma_buf_frame(fake->arena, segs[k].buf) + segs[k].off,
				       segs[k].len);
			frame->len += segs[k].len;
			frame->segs++;
		} while (segs[k++].flags & VMA_NIC_SEG_MORE);
		if (frame->segs > fake->nic.info.tx_segs_max || frame->segs > qp->tx_depth ||
		    fake_lacks_offload(fake, frame->flags))
			break; /* never */
		if (frame->segs > fake->tx_room || fake->queued_count + fake->done_count + frame->segs > FAKE_BUFS)
			break;
		fake->tx_room -= frame->segs;
		for (unsigned i = taken; i < k; i++)
			fake->queued[fake->queued_count++] = segs[i].buf;
		taken = k;
		fake->sent_count++;
	}
	return taken;
}

static int fake_kick(struct vma_nic_qp *qp)
{
	struct fake_nic *fake = fake_of(qp);

	fake->kicks++;
	if (fake->kick_failures > 0) {
		fake->kick_failures--;
		return fake->kick_result;
	}
	memcpy(fake->done + fake->done_count, fake->queued, fake->queued_count * sizeof(*fake->queued));
	fake->done_count += fake->queued_count;
	fake->queued_count = 0;
	return 0;
}

static unsigned fake_reap_tx(struct vma_nic_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct fake_nic *fake = fake_of(qp);

	if (n > fake->done_count)
		n = fake->done_count;
	memcpy(bufs, fake->done, n * sizeof(*bufs));
	memmove(fake->done, fake->done + n, (fake->done_count - n) * sizeof(*bufs));
	fake->done_count -= n;
	return n;
}

static int fake_arm(struct vma_nic_qp *qp)
{
	struct fake_nic *fake = fake_of(qp);
	int rc;

	pthread_mutex_lock(&fake->lock);
	rc = fake->arrived_count > 0;
	pthread_mutex_unlock(&fake->lock);
	return rc;
}

static int fake_fd(const struct vma_nic_qp *qp)
{
	return fake_of(qp)->event_fd;
}

static uint64_t fake_now_ns(const struct vma_nic *nic)
{
	(void)nic;
	return 0;
}

static int fake_to_kernel(struct vma_nic_qp *qp, const struct vma_buf *packet)
{
	struct fake_nic *fake = fake_of(qp);

	assert_true(packet->packet_len != 0);
	fake->to_kernel += fake->to_kernel_result == 0;
	return fake->to_kernel_result;
}

static int fake_exempt(struct vma_nic *nic, const struct vma_flow_key *key)
{
	struct fake_nic *fake = (struct fake_nic *)nic;
	const int rc = fake->in_exempt != NULL ? fake->in_exempt(fake, key) : -EOPNOTSUPP;

	fake->exempts += rc == 0;
	return rc;
}

static void fake_unexempt(struct vma_nic *nic, const struct vma_flow_key *key)
{
	(void)key;
	assert_true(((struct fake_nic *)nic)->exempts-- > 0);
}

static const struct vma_nic_ops fake_ops = {
        .name = "fake",
        .qp_create = fake_qp_create,
        .qp_destroy = fake_qp_destroy,
        .qp_rebind = fake_qp_rebind,
        .flow_add = fake_flow_add,
        .flow_del = fake_flow_del,
        .exempt = fake_exempt,
        .unexempt = fake_unexempt,
        .post_rx = fake_post_rx,
        .poll_rx = fake_poll_rx,
        .rx_is_empty = fake_nic_rx_is_empty,
        .tx = fake_tx,
        .kick = fake_kick,
        .reap_tx = fake_reap_tx,
        .arm = fake_arm,
        .fd = fake_fd,
        .to_kernel = fake_to_kernel,
        .now_ns = fake_now_ns,
};

static void fake_init(struct fake_nic *fake, uint32_t caps)
{
	struct vma_bufarena_attr arena = {.capacity = 65536};

	memset(fake, 0, sizeof(*fake));
	pthread_mutex_init(&fake->lock, NULL);
	assert_int_equal(vma_bufarena_create(&arena, &fake->arena), 0);
	fake->nic.ops = &fake_ops;
	fake->nic.arena = fake->arena;
	strcpy(fake->nic.info.name, "fake");
	fake->nic.info.mtu = 1500;
	fake->nic.info.caps = caps;
	fake->nic.info.tx_segs_max = caps & VMA_NIC_CAP_SG ? 64 : 1;
	fake->tx_room = UINT32_MAX;
	fake->sent = calloc(FAKE_LOG, sizeof(*fake->sent));
	assert_non_null(fake->sent);
	fake->event_fd = eventfd(0, EFD_NONBLOCK);
}

static inline void fake_fini(struct fake_nic *fake)
{
	close(fake->event_fd);
	free(fake->sent);
	vma_bufpool_flush_thread(fake->arena);
	vma_bufarena_destroy(fake->arena);
	pthread_mutex_destroy(&fake->lock);
}

static struct vma_ring *fake_nic_create_ring(struct fake_nic *fake, enum vma_thread_mode mode)
{
	struct vma_ring_attr attr = {
	        .nic = &fake->nic,
	        .thread_mode = mode,
	        .rx_sw_csum = true,
	        .tx_wre_batching = 8,
	        .name = "test",
	};
	struct vma_ring *ring;

	assert_int_equal(vma_ring_create(&attr, &ring), 0);
	return ring;
}

/* A frame arrives, cut into pieces of at most `piece` bytes (0: whole). */
static inline void fake_nic_receive_in_pieces(struct fake_nic *fake, const void *frame, uint32_t len, uint32_t piece)
{
	const char *from = frame;
	uint64_t one = 1;

	pthread_mutex_lock(&fake->lock);
	do {
		uint32_t here = piece != 0 && piece < len ? piece : len;
		struct vma_buf *buf;

		assert_true(fake->posted_count > 0);
		buf = fake->posted[--fake->posted_count];
		vma_bufpool_init_bufs_taken_from_nic(atomic_load(&fake->qp.rx_pool), &buf, 1);
		buf->next = NULL;
		buf->data_off = 256;
		buf->len = here;
		buf->flags = here < len ? VMA_BUF_RX_MORE : 0;
		memcpy(vma_buf_data(fake->arena, buf), from, here);
		fake->arrived[fake->arrived_count++] = buf;
		from += here;
		len -= here;
	} while (len > 0);
	pthread_mutex_unlock(&fake->lock);
	assert_int_equal(write(fake->event_fd, &one, sizeof(one)), sizeof(one));
}

static inline void fake_nic_receive_frame(struct fake_nic *fake, const void *frame, uint32_t len)
{
	fake_nic_receive_in_pieces(fake, frame, len, 0);
}

#endif
