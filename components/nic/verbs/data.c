/*
 * data - the hot path of the verbs backend: one call into the provider for a burst, and no system call.
 *
 * Frames to be sent lie in `sent` from tx on. The kick hands them to the provider as a whole and rings the doorbell. So
 * the provider holds nothing between two calls, the thread may change meanwhile, and the last packet of a kick is
 * known.
 *
 * A received packet above one buffer lies in several, which were posted together. Buffers that it did not need stay
 * with the NIC (rx_open) for the next receive.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include <vma/log.h>
#include <vma/stats.h>

#include "../os.h"
#include "data.h"
#include "mlx5.h"
#include "verbs.h"

_Static_assert(sizeof(struct vma_buf) == 1 << VERBS_BUF_SHIFT, "a descriptor's distance is its number's, shifted");

char data_with_nic;

/* ---- posting ---- */

/* A receive of rx_bufs buffers that are the NIC's, as the i-th of a list. Their order is that of `next`. */
static inline void fill_receive_wr(struct verbs_qp *qp, unsigned i, struct vma_buf *const *bufs)
{
	struct ibv_sge *sge = qp->rx_wr[i].sg_list;

	for (uint32_t part = 0; part < qp->rx_bufs; part++) {
		sge[part].addr = (uintptr_t)verbs_frame_of_buf(qp, bufs[part]);
		verbs_lkey(qp, bufs[part], &sge[part].lkey);
		bufs[part]->next = part + 1 < qp->rx_bufs ? bufs[part + 1] : NULL;
	}
	qp->rx_wr[i].wr_id = (uintptr_t)bufs[0];
}

static __attribute__((cold, noinline)) void log_post_recv_failure(struct verbs_qp *qp, int rc)
{
	vma_log_debug("%s: posting receives: error %d", qp->name, rc);
	verbs_qp_note_maybe_broken(qp);
}

/* The first n of the list. What the device refuses is the NIC's all the same, until the queue pair's end. */
static void post_receive_list(struct verbs_qp *qp, unsigned n)
{
	struct ibv_recv_wr *bad = NULL;
	int rc;

	if (n == 0)
		return;
	qp->rx_wr[n - 1].next = NULL;
	rc = qp->queue.mlx5 != NULL ? mlx5_post_receive_list(qp, n) : ibv_post_recv(qp->queue.qp, qp->rx_wr, &bad);
	if (n < VERBS_BURST)
		qp->rx_wr[n - 1].next = &qp->rx_wr[n];
	if (__builtin_expect(rc != 0, 0))
		log_post_recv_failure(qp, rc);
}

/* As many receives as there are buffers for in rx_open. */
static void post_collected_receives(struct verbs_qp *qp)
{
	uint32_t at = 0;
	unsigned n = 0;

	for (; qp->rx_open_n - at >= qp->rx_bufs && n < VERBS_BURST; at += qp->rx_bufs)
		fill_receive_wr(qp, n++, qp->rx_open + at);
	post_receive_list(qp, n);
	qp->rx_open_n -= at;
	memmove(qp->rx_open, qp->rx_open + at, qp->rx_open_n * sizeof(qp->rx_open[0]));
}

/* Buffers of this binding's memory, not more than the queue has room for. */
static void post_receive_bufs(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	unsigned at = 0;

	for (unsigned i = 0; i < n; i++) {
		vma_buf_debug_mark_lent(qp->base.arena, bufs[i]);
		bufs[i]->user = &data_with_nic;
	}
	qp->rx_with_nic += n;
	while (at < n && (qp->rx_open_n != 0 || n - at < qp->rx_bufs)) {
		qp->rx_open[qp->rx_open_n++] = bufs[at++];
		if (qp->rx_open_n == qp->rx_bufs)
			post_collected_receives(qp);
	}
	while (n - at >= qp->rx_bufs) {
		unsigned in_list = 0;

		for (; n - at >= qp->rx_bufs && in_list < VERBS_BURST; at += qp->rx_bufs)
			fill_receive_wr(qp, in_list++, bufs + at);
		post_receive_list(qp, in_list);
	}
	while (at < n)
		qp->rx_open[qp->rx_open_n++] = bufs[at++];
}

/*
 * Receives of one buffer each, of which only what differs is written: the rest of a work request stays as it was. Ends
 * before a buffer without a key, and then returns fewer. The table of keys is read once: a loss is seen as late as if
 * all of the list had been posted a moment before.
 */
static inline unsigned fill_single_buffer_receives(struct verbs_qp *qp, struct vma_buf *const *bufs, unsigned n)
{
	const struct verbs_lkey *lkeys = atomic_load_explicit(&qp->lkeys, memory_order_relaxed);
	const uintptr_t base = qp->bufs;
	const uint32_t generation = qp->generation, shift = qp->frame_of_buf_shift;
	char *const frames = qp->frames;
	struct ibv_recv_wr *wr = qp->rx_wr;
	struct ibv_sge *sge = qp->rx_sge;
	struct vma_buf *const *const end = bufs + n, *const * at;

	for (at = bufs; at != end; at++, wr++, sge++) {
		struct vma_buf *buf = *at;
		const uintptr_t offset = (uintptr_t)buf - base;
		const struct verbs_lkey *entry = lkeys + offset / (sizeof(*buf) << VERBS_UNIT_SHIFT);

		if (__builtin_expect(atomic_load_explicit(&entry->generation, memory_order_relaxed) != generation, 0))
			break;
		sge->lkey = atomic_load_explicit(&entry->key, memory_order_relaxed);
		sge->addr = (uintptr_t)(frames + (offset << shift));
		wr->wr_id = (uintptr_t)buf;
		vma_buf_debug_mark_lent(qp->base.arena, buf);
		buf->user = &data_with_nic;
	}
	return (unsigned)(at - bufs);
}

/* Fewer than n: the queue is full, or the next buffer has no key. That they have keys says that the queue pair is
 * usable, too. */
static unsigned post_single_buffer_lists(struct verbs_qp *qp, struct vma_buf *const *bufs, unsigned n)
{
	const uint32_t room = qp->rx_single_max - qp->rx_with_nic;
	unsigned done = 0, filled, most;

	n = n < room ? n : room;
	do {
		most = n - done < VERBS_BURST ? n - done : VERBS_BURST;
		filled = fill_single_buffer_receives(qp, bufs + done, most);
		qp->rx_with_nic += filled;
		post_receive_list(qp, filled);
		done += filled;
	} while (done < n && filled == most);
	vma_stats_add(&qp->stats->fill_posted, done);
	return done;
}

static __attribute__((noinline)) unsigned verbs_post_rx_slow(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct vma_nic_qp *base = &qp->base;
	uint32_t lkey, room;
	unsigned done = 0, run;

	if (!qp_is_usable_in_this_process(qp))
		return 0;
	while (done < n) {
		room = base->rx_depth - qp->rx_with_nic;
		for (run = 0; done + run < n && run < room; run++)
			if (!verbs_lkey(qp, bufs[done + run], &lkey))
				break;
		if (run != 0) {
			post_receive_bufs(qp, bufs + done, run);
			done += run;
		} else if (room != 0) { /* of the memory before a rebind: home with it */
			vma_buf_put(base->arena, bufs[done++]);
		} else {
			break;
		}
	}
	vma_stats_add(&qp->stats->fill_posted, done);
	return done;
}

static __attribute__((noinline)) unsigned verbs_post_rx_list(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	const unsigned done = qp->rx_with_nic < qp->rx_single_max ? post_single_buffer_lists(qp, bufs, n) : 0;

	return done == n ? n : done + verbs_post_rx_slow(qp, bufs + done, n - done);
}

/* Of a single buffer, where a receive has no more. That it has a key says that the queue pair is usable, too. */
unsigned verbs_post_rx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct ibv_recv_wr *bad;
	struct vma_buf *buf;
	int rc;

	if (n != 1 || qp->rx_with_nic >= qp->rx_single_max || !verbs_lkey(qp, bufs[0], &qp->rx_one_sge.lkey))
		return verbs_post_rx_list(qp, bufs, n);
	buf = bufs[0];
	vma_buf_debug_mark_lent(base->arena, buf);
	buf->user = &data_with_nic;
	qp->rx_with_nic++;
	vma_stats_add(&qp->stats->fill_posted, 1);
	qp->rx_one_sge.addr = (uintptr_t)verbs_frame_of_buf(qp, buf);
	qp->rx_one.wr_id = (uintptr_t)buf;
	rc = ibv_post_recv(qp->queue.qp, &qp->rx_one, &bad);
	if (__builtin_expect(rc != 0, 0))
		log_post_recv_failure(qp, rc);
	return 1;
}

/* ---- receiving ---- */

/* A receive that has failed: its buffers are posted again, unless the queue has stopped. */
void data_receive_failed(struct verbs_qp *qp, const struct data_received *what)
{
	struct vma_buf *buf = (struct vma_buf *)what->id;

	if (what->status != IBV_WC_WR_FLUSH_ERR) {
		vma_log_debug("%s: a receive failed: status %d", qp->name, what->status);
		vma_stats_add(&qp->stats->rx_errors, 1);
	}
	verbs_qp_note_maybe_broken(qp);
	if (what->status == IBV_WC_WR_FLUSH_ERR)
		return;
	qp->rx_open[qp->rx_open_n++] = buf;
	while (qp->rx_bufs != 1 && (buf = buf->next) != NULL)
		qp->rx_open[qp->rx_open_n++] = buf;
	post_collected_receives(qp);
}

static inline uint16_t buf_flags_of_completion(unsigned wc_flags)
{
	_Static_assert((VMA_BUF_RX_L3_CSUM_OK | VMA_BUF_RX_L4_CSUM_OK) == IBV_WC_IP_CSUM_OK / 2 * 3, "without a test");
	return (uint16_t)((wc_flags & IBV_WC_IP_CSUM_OK) / 2 * 3);
}

/* Reads the next completion that there is. A poll that has begun has to be ended by end_cq_poll. */
static inline bool read_rx_completion(struct verbs_qp *qp, bool *reading, struct data_received *out)
{
	struct ibv_cq_ex *ex = qp->queue.rx_cq_ex;
	struct ibv_poll_cq_attr attr = {.comp_mask = 0};
	struct ibv_wc wc;

	if (__builtin_expect(ex == NULL, 0)) {
		if (qp->queue.mlx5 != NULL)
			return mlx5_read_rx_completion(qp, out);
		if (ibv_poll_cq(qp->queue.rx_cq, 1, &wc) <= 0)
			return false;
		*out = (struct data_received){wc.wr_id, wc.byte_len, wc.wc_flags, wc.status, 0};
		return true;
	}
	if ((*reading ? ibv_next_poll(ex) : ibv_start_poll(ex, &attr)) != 0)
		return false;
	*reading = true;
	out->id = ex->wr_id;
	out->status = ex->status;
	if (__builtin_expect(ex->status == IBV_WC_SUCCESS, 1)) {
		out->len = ibv_wc_read_byte_len(ex);
		out->flags = ibv_wc_read_wc_flags(ex);
		if (__builtin_expect(verbs_qp_timestamp_kind(qp) != VERBS_STAMPS_NONE, 0))
			out->stamp_ns = verbs_read_completion_timestamp_ns(qp, verbs_qp_timestamp_kind(qp));
	}
	return true;
}

static inline void end_cq_poll(struct verbs_qp *qp, bool reading)
{
	if (reading)
		ibv_end_poll(qp->queue.rx_cq_ex);
}

static __attribute__((cold, noinline)) void end_cq_poll_on_failed_receive(struct verbs_qp *qp, struct ibv_cq_ex *ex)
{
	const struct data_received what = {.id = ex->wr_id, .status = ex->status};

	ibv_end_poll(ex);
	data_receive_failed(qp, &what);
}

/* On buffers that are the user's, the first of each packet. */
void data_set_rx_timestamps(const struct verbs_qp *qp, struct vma_buf **bufs, const uint64_t *stamps_ns, unsigned n)
{
	const bool own = qp->queue.rx_stamps != VERBS_STAMPS_SYSTEM;

	for (unsigned i = 0; i < n; i++) {
		if (stamps_ns[i] == 0)
			continue;
		bufs[i]->timestamp_ns = stamps_ns[i];
		bufs[i]->flags |= VMA_BUF_RX_HW_TIMESTAMP | (own ? VMA_BUF_RX_NIC_CLOCK : 0);
	}
}

/*
 * Packets of one buffer each. A receive that has failed is dealt with when the poll has ended, and the look goes on
 * behind it: 0 has to mean that there is nothing.
 */
static inline __attribute__((always_inline)) unsigned poll_single_buffer_packets(struct verbs_qp *qp,
                                                                                 struct ibv_cq_ex *ex,
                                                                                 struct vma_buf **bufs, unsigned n,
                                                                                 bool with_stamps)
{
	static struct ibv_poll_cq_attr attr; /* nobody writes to it */
	unsigned got = 0;

	while (got < n && ibv_start_poll(ex, &attr) == 0) {
		bool is_empty = false;

		while (__builtin_expect(ex->status == IBV_WC_SUCCESS, 1)) {
			const uint32_t len = ibv_wc_read_byte_len(ex);
			const uint16_t flags = buf_flags_of_completion(ibv_wc_read_wc_flags(ex));
			struct vma_buf *buf = (struct vma_buf *)ex->wr_id;
			struct vma_stats_nic *stats = qp->stats;

			data_init_received_buf(qp, buf, len, flags);
			if (with_stamps) {
				const uint64_t stamp_ns =
				        verbs_read_completion_timestamp_ns(qp, verbs_qp_timestamp_kind(qp));

				data_set_rx_timestamps(qp, &buf, &stamp_ns, 1);
			}
			vma_stats_add(&stats->rx_frames, 1);
			bufs[got++] = buf;
			is_empty = got == n || ibv_next_poll(ex) != 0;
			if (is_empty)
				break;
		}
		if (__builtin_expect(is_empty, 1)) {
			ibv_end_poll(ex);
			break;
		}
		end_cq_poll_on_failed_receive(qp, ex);
	}
	return got;
}

/* The same of a provider of the old kind. */
static __attribute__((noinline)) unsigned poll_single_by_poll_cq(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	struct data_received what;
	bool reading = false;
	unsigned got = 0;

	if (qp->queue.mlx5 != NULL)
		return mlx5_poll_rx_single_buffer(qp, bufs, n);
	while (got < n && read_rx_completion(qp, &reading, &what)) {
		if (__builtin_expect(what.status != IBV_WC_SUCCESS, 0)) {
			data_receive_failed(qp, &what);
			continue;
		}
		bufs[got] = (struct vma_buf *)what.id;
		data_init_received_buf(qp, bufs[got++], what.len, buf_flags_of_completion(what.flags));
	}
	vma_stats_add(&qp->stats->rx_frames, got);
	return got;
}

/* A packet of several buffers, into rx_pending; those that it left empty go to rx_open. */
static void collect_multi_buffer_packet(struct verbs_qp *qp, const struct data_received *what)
{
	struct vma_buf *buf = (struct vma_buf *)what->id, *next;
	uint32_t left = what->len;
	unsigned n = 0;

	for (; buf != NULL; buf = next) {
		const uint32_t len = left < data_frame_bytes(qp) ? left : data_frame_bytes(qp);

		next = buf->next;
		if (len == 0) {
			qp->rx_open[qp->rx_open_n++] = buf;
			continue;
		}
		left -= len;
		data_init_received_buf(qp, buf, len,
		                       (n == 0 ? buf_flags_of_completion(what->flags) : 0) |
		                               (left != 0 ? VMA_BUF_RX_MORE : 0));
		qp->rx_pending[n++] = buf;
	}
	if (__builtin_expect(what->stamp_ns != 0, 0))
		data_set_rx_timestamps(qp, qp->rx_pending, &what->stamp_ns, 1);
	qp->rx_pending_at = 0;
	qp->rx_pending_n = n;
	vma_stats_add(&qp->stats->rx_frames, 1);
	if (qp->rx_open_n >= qp->rx_bufs)
		post_collected_receives(qp);
}

/* When none is left, rx_pending_n is 0. */
static unsigned take_pending_bufs(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	unsigned got = 0;

	while (got < n && qp->rx_pending_at < qp->rx_pending_n)
		bufs[got++] = qp->rx_pending[qp->rx_pending_at++];
	if (qp->rx_pending_at == qp->rx_pending_n)
		qp->rx_pending_at = qp->rx_pending_n = 0;
	return got;
}

/* The next packet, or what it lacked, in rx_pending. False: there is none. */
static bool poll_into_pending(struct verbs_qp *qp)
{
	struct data_received what = {.stamp_ns = 0};
	bool reading = false;

	qp->rx_pending_at = qp->rx_pending_n = 0;
	if (qp->rx_bufs == 1 && qp->queue.rx_cq_ex != NULL)
		return (qp->rx_pending_n =
		                poll_single_buffer_packets(qp, qp->queue.rx_cq_ex, qp->rx_pending, 1, true)) != 0;
	if (qp->rx_bufs == 1)
		return (qp->rx_pending_n = poll_single_by_poll_cq(qp, qp->rx_pending, 1)) != 0;
	if (!read_rx_completion(qp, &reading, &what))
		return false;
	end_cq_poll(qp, reading);
	if (what.status != IBV_WC_SUCCESS)
		data_receive_failed(qp, &what);
	else
		collect_multi_buffer_packet(qp, &what);
	return true;
}

static unsigned poll_multi_buffer_packets(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	unsigned got = 0;

	while (got < n && poll_into_pending(qp))
		got += take_pending_bufs(qp, bufs + got, n - got);
	return got;
}

static __attribute__((noinline)) unsigned verbs_poll_rx_slow(struct verbs_qp *qp, struct vma_buf **bufs, unsigned n)
{
	unsigned got;

	if (!qp_is_usable_in_this_process(qp))
		return 0;
	got = take_pending_bufs(qp, bufs, n);
	bufs += got;
	n -= got;
	if (qp->rx_bufs != 1)
		return got + poll_multi_buffer_packets(qp, bufs, n);
	if (qp->queue.rx_cq_ex == NULL)
		return got + poll_single_by_poll_cq(qp, bufs, n);
	return got + poll_single_buffer_packets(qp, qp->queue.rx_cq_ex, bufs, n, true);
}

/* As an arm looks: what the poll finds is kept in rx_pending. A receive that has failed is no packet. */
bool verbs_rx_has_packet(struct vma_nic_qp *base)
{
	struct verbs_qp *qp = verbs_qp_of(base);

	if (!qp_is_usable_in_this_process(qp))
		return false;
	data_set_has_pending_rx(qp, true);
	while (qp->rx_pending_n == 0 && poll_into_pending(qp))
		;
	data_set_has_pending_rx(qp, qp->rx_pending_n != 0);
	return qp->rx_pending_n != 0;
}

unsigned verbs_poll_rx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct ibv_cq_ex *ex = atomic_load_explicit(&qp->rx_ex, memory_order_relaxed);

	if (__builtin_expect(!qp_opened_by_this_process(qp), 0))
		return 0;
	if (__builtin_expect(ex == NULL || qp->rx_pending_n != 0, 0))
		return verbs_poll_rx_slow(qp, bufs, n);
	return poll_single_buffer_packets(qp, ex, bufs, n, false);
}

/* ---- sleeping ---- */

/* What an earlier arm was told is taken back. True: there was something, and the queue is not armed any more. */
static bool ack_cq_events(struct verbs_qp *qp)
{
	const struct verbs_lib *lib = qp->queue.device->lib;
	struct ibv_cq *cq;
	void *context;
	unsigned n = 0;
	int cancel_state;

	/* libibverbs reads here, which is a cancellation point: the ring's flag would stay taken. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
	while (lib->ibv_get_cq_event(qp->queue.channel, &cq, &context) == 0)
		n++;
	pthread_setcancelstate(cancel_state, NULL);
	if (n != 0)
		lib->ibv_ack_cq_events(qp->queue.rx_cq, n);
	if (qp->queue.mlx5 != NULL)
		mlx5_advance_cq_arm_sequence(qp, n);
	return n != 0;
}

/*
 * In this order: the events of the past go; the queue is armed, if it is not armed still; then a look. What came before
 * the arming is found by the look, and what comes after it is told of. The look has to take what it finds: rx_pending.
 */
int verbs_rx_arm(struct verbs_qp *qp)
{
	struct epoll_event event = {.events = EPOLLIN};
	bool found;
	int rc;

	if (ack_cq_events(qp))
		qp->rx_armed = false;
	if (!qp->rx_armed) {
		rc = qp->queue.mlx5 != NULL ? mlx5_arm_rx_cq(qp) : ibv_req_notify_cq(qp->queue.rx_cq, 0);
		if (rc != 0)
			return -rc;
		qp->rx_armed = true;
	}
	if (!qp->rx_watched) {
		if (os_epoll_ctl(qp->epoll_fd, EPOLL_CTL_ADD, qp->queue.channel->fd, &event) < 0)
			return -errno;
		qp->rx_watched = true;
	}
	data_set_has_pending_rx(qp, true);
	found = poll_into_pending(qp);
	data_set_has_pending_rx(qp, qp->rx_pending_n != 0);
	return found;
}

int verbs_arm_rx_wakeup(struct vma_nic_qp *base)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	const int saved = errno;
	int rc;

	if (atomic_load_explicit(qp->fork_guard, memory_order_relaxed) == 0)
		return -ENODEV;
	qp->rx_sleeps = true; /* for rebind */
	if (vma_nic_qp_lost(base))
		return 0;
	rc = qp->rx_pending_at < qp->rx_pending_n ? 1 : verbs_rx_arm(qp);
	errno = saved;
	return rc;
}

/* The device cannot be told to stay silent: an arrival may be told of once more. */
void verbs_unarm_rx_wakeup(struct vma_nic_qp *base)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	const int saved = errno;

	qp->rx_sleeps = false;
	if (qp_is_usable_in_this_process(qp) && qp->rx_armed && ack_cq_events(qp))
		qp->rx_armed = false;
	errno = saved;
}

int verbs_qp_epoll_fd(const struct vma_nic_qp *base)
{
	return ((const struct verbs_qp *)base)->epoll_fd;
}

/* ---- sending ---- */

enum tx_verdict { PACKET_SEND, PACKET_DROP, PACKET_STOP };

static inline uint16_t send_flags_of_segment(uint16_t seg_flags)
{
	return (uint16_t)((seg_flags & VMA_NIC_SEG_CSUM) * (IBV_SEND_IP_CSUM / VMA_NIC_SEG_CSUM));
}

static bool seg_in_frame(const struct verbs_qp *qp, const struct vma_nic_seg *seg)
{
	return seg->len > 0 && seg->off < data_frame_bytes(qp) && seg->len <= data_frame_bytes(qp) - seg->off;
}

/* A VLAN tag does not count against the MTU. */
static bool within_mtu(const struct verbs_qp *qp, const struct vma_nic_seg *seg, uint64_t bytes, uint32_t longest)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_frame(qp->base.arena, seg->buf) + seg->off;

	return bytes <= longest || (bytes <= longest + VERBS_TAG_BYTES && seg->len >= VERBS_L2_BYTES &&
	                            frame[12] == 0x81 && frame[13] == 0x00);
}

static bool packet_can_use_tso(const struct verbs_qp *qp, const struct vma_nic_seg *seg, uint64_t bytes)
{
	return seg->hdr_len >= VERBS_L2_BYTES && seg->hdr_len < seg->len && seg->mss != 0 &&
	       bytes - seg->hdr_len <= qp->base.nic->info.tso_max_bytes;
}

/* Looks at the packet that starts at segs[0]; *count becomes its number of segments. */
static enum tx_verdict classify_outgoing_packet(const struct verbs_qp *qp, const struct vma_nic_seg *segs, unsigned n,
                                                unsigned *count)
{
	const uint32_t caps = qp->base.nic->info.caps;
	const uint16_t unable = VMA_NIC_SEG_DUMMY | (caps & VMA_NIC_CAP_TX_CSUM ? 0 : VMA_NIC_SEG_CSUM) |
	                        (caps & VMA_NIC_CAP_TSO ? 0 : VMA_NIC_SEG_TSO);
	enum tx_verdict verdict = PACKET_SEND;
	uint64_t bytes = 0;
	uint32_t lkey;
	unsigned i = 0;

	for (;; i++) {
		if (i == n || i == qp->tx_segs_max || !seg_in_frame(qp, &segs[i]) || segs[i].flags & unable)
			return PACKET_STOP;
		if (!verbs_lkey(qp, segs[i].buf, &lkey))
			verdict = PACKET_DROP;
		bytes += segs[i].len;
		if (!(segs[i].flags & VMA_NIC_SEG_MORE))
			break;
	}
	*count = i + 1;
	if (verdict == PACKET_DROP)
		return verdict;
	if (segs[0].flags & VMA_NIC_SEG_TSO)
		return packet_can_use_tso(qp, &segs[0], bytes) ? PACKET_SEND : PACKET_STOP;
	if (bytes < VERBS_L2_BYTES)
		return PACKET_STOP;
	if (within_mtu(qp, &segs[0], bytes, qp->tx_longest))
		return PACKET_SEND;
	/* Whoever queued it may have gone by the MTU of before a rebind; it must not stop what is behind it. */
	return within_mtu(qp, &segs[0], bytes, qp->tx_longest_ever) ? PACKET_DROP : PACKET_STOP;
}

/*
 * What nearly all packets are: one segment of memory that this device knows, with at most a checksum to be done. True:
 * it waits for the kick. That it has a key says that the queue pair is usable, too.
 */
static inline __attribute__((always_inline)) bool queue_single_segment_packet(struct verbs_qp *qp,
                                                                              const struct vma_nic_seg *seg)
{
	const uint32_t len = seg->len;
	struct vma_stats_nic *stats;
	struct verbs_send_segment *place;
	uint32_t lkey;

	if (qp->sent_queued == qp->sent_end || (seg->flags & qp->tx_not_plain) != 0 ||
	    len - VERBS_L2_BYTES > qp->tx_plain_most || (uint64_t)seg->off + len > qp->tx_frame_bytes ||
	    !verbs_lkey(qp, seg->buf, &lkey))
		return false;
	place = &qp->sent[qp->sent_queued & qp->sent_mask];
	place->addr = (uintptr_t)(verbs_frame_of_buf(qp, seg->buf) + seg->off);
	place->buf = seg->buf;
	place->len = len;
	place->lkey = lkey;
	place->how = (uint16_t)(SENT_PLAIN + seg->flags * (IBV_SEND_IP_CSUM / VMA_NIC_SEG_CSUM)); /* it has no other */
	qp->sent_queued++;
	stats = qp->stats;
	vma_stats_add(&stats->tx_frames, 1);
	vma_stats_add(&stats->tx_bytes, seg->len);
	return true;
}

/* A part of any other. */
static void queue_send_segment(struct verbs_qp *qp, const struct vma_nic_seg *seg)
{
	struct verbs_send_segment *place = &qp->sent[qp->sent_queued++ & qp->sent_mask];

	*place = (struct verbs_send_segment){.buf = seg->buf,
	                                     .addr = (uintptr_t)(verbs_frame_of_buf(qp, seg->buf) + seg->off),
	                                     .len = seg->len,
	                                     .flags = seg->flags,
	                                     .mss = seg->mss,
	                                     .hdr_len = seg->hdr_len,
	                                     .how = send_flags_of_segment(seg->flags)};
	verbs_lkey(qp, seg->buf, &place->lkey);
	vma_stats_add(&qp->stats->tx_bytes, seg->len);
}

/* All others, from the first one on that is not plain or has no room. */
static __attribute__((noinline)) unsigned verbs_tx_slow(struct verbs_qp *qp, const struct vma_nic_seg *segs, unsigned n)
{
	struct vma_nic_qp *base = &qp->base;
	uint64_t frames = 0, cut = 0;
	unsigned done = 0, count = 0;

	while (done < n) {
		const enum tx_verdict verdict = classify_outgoing_packet(qp, segs + done, n - done, &count);

		if (verdict == PACKET_STOP)
			break;
		if (verdict == PACKET_DROP) {
			vma_stats_add(&qp->stats->tx_foreign, 1);
			for (unsigned i = 0; i < count; i++)
				vma_buf_put(base->arena, segs[done + i].buf);
			done += count;
			continue;
		}
		if (qp->sent_end - qp->sent_queued < count)
			break;
		cut += (segs[done].flags & VMA_NIC_SEG_TSO) != 0;
		for (unsigned i = 0; i < count; i++)
			queue_send_segment(qp, &segs[done++]);
		frames++;
	}
	vma_stats_add(&qp->stats->tx_frames, frames);
	vma_stats_add(&qp->stats->tx_tso, cut);
	return done;
}

static __attribute__((noinline)) unsigned tx_queue_burst(struct verbs_qp *qp, const struct vma_nic_seg *segs,
                                                         unsigned n)
{
	unsigned done = 0;

	if (!qp_is_usable_in_this_process(qp))
		return 0;
	while (done < n && queue_single_segment_packet(qp, &segs[done]))
		done++;
	return done == n ? done : done + verbs_tx_slow(qp, segs + done, n - done);
}

unsigned verbs_tx_queue_packets(struct vma_nic_qp *base, const struct vma_nic_seg *segs, unsigned n)
{
	struct verbs_qp *qp = verbs_qp_of(base);

	return n == 1 && queue_single_segment_packet(qp, segs) ? 1 : tx_queue_burst(qp, segs, n);
}

static void wr_set_inline_segments(struct ibv_qp_ex *ex, const struct data_outgoing *out)
{
	struct ibv_data_buf data[VERBS_SEGS_MAX];

	for (unsigned i = 0; i < out->sges; i++)
		data[i] = (struct ibv_data_buf){(void *)(uintptr_t)out->sge[i].addr, out->sge[i].length};
	if (out->sges == 1)
		ibv_wr_set_inline_data(ex, data[0].addr, data[0].length);
	else
		ibv_wr_set_inline_data_list(ex, out->sges, data);
}

/* A packet of one segment, with the place behind it. */
static inline __attribute__((always_inline)) void wr_build_single_segment_packet(struct verbs_qp *qp,
                                                                                 struct ibv_qp_ex *ex,
                                                                                 struct verbs_send_segment *seg,
                                                                                 uint32_t end, bool signal)
{
	ex->wr_id = end;
	ex->wr_flags = (uint8_t)seg->how;
	if (__builtin_expect(signal, 0))
		ex->wr_flags |= IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	if (seg->len <= qp->queue.inline_max) {
		ibv_wr_set_inline_data(ex, (void *)(uintptr_t)seg->addr, seg->len);
		vma_buf_put(qp->base.arena, seg->buf);
		seg->buf = NULL;
	} else {
		ibv_wr_set_sge(ex, seg->lkey, seg->addr, seg->len);
	}
}

/* Any other packet. Returns the place behind it. */
static __attribute__((noinline)) uint32_t wr_build_packet(struct verbs_qp *qp, struct ibv_qp_ex *ex, uint32_t at)
{
	struct data_outgoing out;

	data_collect_outgoing_packet(qp, at, &out);
	ex->wr_id = out.end;
	ex->wr_flags = data_send_flags(qp, &out);
	if (data_is_tso(&out))
		ibv_wr_send_tso(ex, (void *)(uintptr_t)out.first->addr, out.first->hdr_len, out.first->mss);
	else
		ibv_wr_send(ex);
	if (data_is_inline(qp, &out)) {
		wr_set_inline_segments(ex, &out);
		data_release_inlined_bufs(qp, &out);
	} else if (out.sges == 1) {
		ibv_wr_set_sge(ex, out.sge[0].lkey, out.sge[0].addr, out.sge[0].length);
	} else {
		ibv_wr_set_sge_list(ex, out.sges, out.sge);
	}
	return out.end;
}

/* All that waits, and the doorbell. 0 or an errno. */
static int verbs_kick_by_ibv_wr(struct verbs_qp *qp, struct ibv_qp_ex *ex)
{
	ibv_wr_start(ex);
	for (uint32_t at = qp->sent_kicked; at != qp->sent_queued;) {
		struct verbs_send_segment *seg = &qp->sent[at & qp->sent_mask];

		if (__builtin_expect(send_seg_is_fast_path_packet(seg), 1)) {
			at++;
			wr_build_single_segment_packet(qp, ex, seg, at,
			                               verbs_send_needs_signal(&qp->signals, 1, at == qp->sent_queued));
		} else {
			at = wr_build_packet(qp, ex, at);
		}
	}
	return ibv_wr_complete(ex);
}

/* The same for a provider of the old kind: one call, and so one doorbell, for each burst. */
static __attribute__((noinline)) int verbs_kick_by_post_send(struct verbs_qp *qp)
{
	struct ibv_send_wr wr[VERBS_BURST], *bad;
	struct data_outgoing out[VERBS_BURST];
	int rc = 0;

	for (uint32_t at = qp->sent_kicked; at != qp->sent_queued && rc == 0;) {
		unsigned n = 0;

		for (; at != qp->sent_queued && n < VERBS_BURST; at = out[n++].end) {
			data_collect_outgoing_packet(qp, at, &out[n]);
			wr[n] = (struct ibv_send_wr){.wr_id = out[n].end,
			                             .sg_list = out[n].sge,
			                             .num_sge = (int)out[n].sges,
			                             .opcode = IBV_WR_SEND,
			                             .send_flags = data_send_flags(qp, &out[n])};
			if (data_is_inline(qp, &out[n]))
				wr[n].send_flags |= IBV_SEND_INLINE;
			if (data_is_tso(&out[n])) {
				wr[n].opcode = IBV_WR_TSO;
				wr[n].tso.hdr = (void *)(uintptr_t)out[n].first->addr;
				wr[n].tso.hdr_sz = out[n].first->hdr_len;
				wr[n].tso.mss = out[n].first->mss;
			}
			if (n > 0)
				wr[n - 1].next = &wr[n];
		}
		bad = NULL;
		rc = ibv_post_send(qp->queue.qp, wr, &bad);
		for (unsigned i = 0; i < n && (rc == 0 || &wr[i] != bad); i++) {
			if (wr[i].send_flags & IBV_SEND_INLINE)
				data_release_inlined_bufs(qp, &out[i]);
			qp->sent_kicked = out[i].end;
		}
	}
	return rc;
}

/*
 * What the provider refused will never be sent: its buffers go home, and its places with the next completion, which the
 * next packet asks for.
 */
int data_drop_sends_after_kick_failure(struct verbs_qp *qp, int error)
{
	for (uint32_t at = qp->sent_kicked; at != qp->sent_queued; at++) {
		struct verbs_send_segment *seg = &qp->sent[at & qp->sent_mask];

		if (seg->buf != NULL)
			vma_buf_put(qp->base.arena, seg->buf);
		seg->buf = NULL;
	}
	verbs_signal_request_on_next_send(&qp->signals);
	if (qp->sent_completed == qp->sent_kicked)
		qp->sent_completed = qp->sent_queued; /* nothing is on its way that they could come behind */
	qp->sent_kicked = qp->sent_queued;
	vma_stats_add(&qp->stats->kick_errors, 1);
	verbs_qp_note_maybe_broken(qp);
	return -error;
}

int data_send_all_queued_packets(struct verbs_qp *qp)
{
	int error;

	if (!qp_is_usable_in_this_process(qp))
		return -ENODEV;
	if (qp->sent_kicked == qp->sent_queued)
		return 0;
	if (__builtin_expect(qp->queue.qp_ex != NULL, 1))
		error = verbs_kick_by_ibv_wr(qp, qp->queue.qp_ex);
	else
		error = qp->queue.mlx5 != NULL ? mlx5_send_queued_packets(qp) : verbs_kick_by_post_send(qp);
	if (__builtin_expect(error != 0, 0))
		return data_drop_sends_after_kick_failure(qp, error);
	qp->sent_kicked = qp->sent_queued;
	vma_stats_add(&qp->stats->kicks, 1);
	return 0;
}

/* Of a single packet, which is plain. */
int verbs_kick(struct vma_nic_qp *base)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	struct ibv_qp_ex *ex = atomic_load_explicit(&qp->tx_ex, memory_order_relaxed);
	struct verbs_send_segment *seg = &qp->sent[qp->sent_kicked & qp->sent_mask];
	int error;

	if (ex == NULL || qp->sent_kicked + 1 != qp->sent_queued || !send_seg_is_fast_path_packet(seg))
		return data_send_all_queued_packets(qp);
	ibv_wr_start(ex);
	wr_build_single_segment_packet(qp, ex, seg, qp->sent_queued, verbs_single_send_needs_signal(&qp->signals));
	error = ibv_wr_complete(ex);
	if (__builtin_expect(error != 0, 0))
		return data_drop_sends_after_kick_failure(qp, error);
	qp->sent_kicked++;
	vma_stats_add(&qp->stats->kicks, 1);
	return error;
}

/* ---- completions ---- */

void data_send_failed(struct verbs_qp *qp, enum ibv_wc_status status)
{
	if (status != IBV_WC_WR_FLUSH_ERR) {
		vma_log_debug("%s: a send failed: status %d", qp->name, status);
		vma_stats_add(&qp->stats->tx_errors, 1);
	}
	verbs_qp_note_maybe_broken(qp);
}

static void poll_send_completions(struct verbs_qp *qp)
{
	struct ibv_cq_ex *ex = qp->queue.tx_cq_ex;
	struct ibv_poll_cq_attr attr = {.comp_mask = 0};
	struct ibv_wc wc[VERBS_BURST];
	int n;

	if (__builtin_expect(ex != NULL, 1)) {
		if (ibv_start_poll(ex, &attr) != 0)
			return;
		do
			data_handle_send_completion(qp, ex->wr_id, ex->status);
		while (ibv_next_poll(ex) == 0);
		ibv_end_poll(ex);
		return;
	}
	if (qp->queue.mlx5 != NULL) {
		mlx5_poll_tx_completions(qp);
		return;
	}
	while ((n = ibv_poll_cq(qp->queue.tx_cq, VERBS_BURST, wc)) > 0)
		for (int i = 0; i < n; i++)
			data_handle_send_completion(qp, wc[i].wr_id, wc[i].status);
}

static inline uint32_t min_of_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

unsigned verbs_reap_tx(struct vma_nic_qp *base, struct vma_buf **bufs, unsigned n)
{
	struct verbs_qp *qp = verbs_qp_of(base);
	unsigned got = 0;

	if (!qp_is_usable_in_this_process(qp))
		return 0;
	if (qp->sent_completed != qp->sent_kicked)
		poll_send_completions(qp);
	while (got < n && qp->sent_reaped != qp->sent_completed) {
		const uint32_t first = qp->sent_reaped & qp->sent_mask;
		uint32_t run = min_of_u32(qp->sent_completed - qp->sent_reaped, qp->sent_mask + 1 - first);
		const struct verbs_send_segment *at = &qp->sent[first], *end;
		struct vma_buf **out = bufs + got;

		run = min_of_u32(run, n - got);
		for (end = at + run; at != end; at++)
			if (at->buf != NULL)
				*out++ = at->buf;
		got = (unsigned)(out - bufs);
		qp->sent_reaped += run;
	}
	qp->sent_end = qp->sent_reaped + base->tx_depth;
	vma_stats_add(&qp->stats->completions, got);
	return got;
}

/* While packets are on their way that no completion was asked for, it is not known. */
bool verbs_tx_is_idle(struct vma_nic_qp *base)
{
	struct verbs_qp *qp = verbs_qp_of(base);

	if (!qp_is_usable_in_this_process(qp))
		return true;
	if (qp->sent_completed != qp->sent_kicked)
		poll_send_completions(qp);
	return qp->sent_completed == qp->sent_queued;
}

/* ---- a binding ---- */

/* Relaxed: the objects behind them stay until both halves are held. */
void verbs_data_select_paths(struct verbs_qp *qp)
{
	const bool works = !vma_nic_qp_lost(&qp->base);
	const bool is_single = works && qp->rx_bufs == 1 && verbs_qp_timestamp_kind(qp) == VERBS_STAMPS_NONE;

	atomic_store_explicit(&qp->lkeys, works ? qp->nic->lkeys : qp->nic->no_lkeys, memory_order_relaxed);
	atomic_store_explicit(&qp->rx_ex, is_single ? qp->queue.rx_cq_ex : NULL, memory_order_relaxed);
	atomic_store_explicit(&qp->tx_ex, works ? qp->queue.qp_ex : NULL, memory_order_relaxed);
	atomic_store_explicit(&qp->rx_mlx5, is_single ? qp->queue.mlx5 : NULL, memory_order_relaxed);
	atomic_store_explicit(&qp->tx_mlx5, works ? qp->queue.mlx5 : NULL, memory_order_relaxed);
	/* Sequentially consistent: see mlx5_rx_is_empty. */
	atomic_store(&qp->rx_look, works ? qp->queue.mlx5 : NULL);
}

void verbs_qp_data_path_init(struct verbs_qp *qp)
{
	const bool has_checksum = qp->base.nic->info.caps & VMA_NIC_CAP_TX_CSUM;
	const struct vma_bufarena *arena = qp->base.arena;

	qp->bufs = (uintptr_t)arena->bufs;
	qp->frames = arena->frames;
	qp->frame_shift = arena->frame_shift;
	qp->frame_of_buf_shift = arena->frame_shift - VERBS_BUF_SHIFT;
	for (unsigned i = 0; i < VERBS_BURST; i++)
		qp->rx_wr[i] = (struct ibv_recv_wr){.next = i + 1 < VERBS_BURST ? &qp->rx_wr[i + 1] : NULL,
		                                    .sg_list = &qp->rx_sge[(size_t)i * qp->rx_bufs],
		                                    .num_sge = (int)qp->rx_bufs};
	for (unsigned i = 0; i < VERBS_BURST * VERBS_SEGS_MAX; i++)
		qp->rx_sge[i].length = data_frame_bytes(qp);
	qp->rx_one = (struct ibv_recv_wr){.sg_list = &qp->rx_one_sge, .num_sge = 1};
	qp->rx_one_sge.length = data_frame_bytes(qp);
	qp->rx_single_max = qp->rx_bufs == 1 ? qp->base.rx_depth : 0;
	qp->tx_frame_bytes = data_frame_bytes(qp);
	qp->tx_plain_most = min_of_u32(qp->tx_longest, data_frame_bytes(qp)) - VERBS_L2_BYTES;
	qp->tx_not_plain = (uint16_t) ~(has_checksum ? VMA_NIC_SEG_CSUM : 0);
	qp->rx_with_nic = qp->rx_open_n = qp->rx_pending_at = qp->rx_pending_n = 0;
	qp->rx_armed = qp->rx_watched = false;
	data_set_has_pending_rx(qp, false);
	qp->sent_reaped = qp->sent_completed = qp->sent_kicked = qp->sent_queued = 0;
	qp->sent_end = qp->base.tx_depth;
	qp->signals = verbs_signal_interval_init(qp->attr.tx_batching, qp->base.tx_depth);
	verbs_data_select_paths(qp);
}

/*
 * A buffer without references is the pool's or the device's: `user` tells. What became of a receive need not be asked,
 * so a device that does not answer any more loses nothing.
 *
 * Buffers that the device does not have are other threads', which write `user` as they like. They write addresses of
 * their own objects or of buffers, or NULL. So whichever of these is read, and a word is read whole, it is not
 * data_with_nic. Only the receive half writes that, and it is held. The read is hidden from ThreadSanitizer, for which
 * the other side would have to be atomic, too.
 */
static __attribute__((no_sanitize_thread, noinline)) bool buf_is_with_nic(const struct vma_buf *buf)
{
	return __atomic_load_n(&buf->user, __ATOMIC_RELAXED) == (void *)&data_with_nic &&
	       atomic_load_explicit(&buf->refs, memory_order_relaxed) == 0;
}

static void reclaim_posted_bufs(struct verbs_qp *qp, const struct verbs_pool *pool)
{
	for (const struct verbs_registered_memory *window = pool->windows; window != NULL; window = window->next)
		for (uint32_t i = 0; i < window->count; i++) {
			struct vma_buf *buf = vma_buf_at(pool->arena, window->first + i);

			if (!buf_is_with_nic(buf))
				continue;
			buf->user = NULL;
			vma_buf_debug_mark_returned(pool->arena, buf);
			vma_buf_put(qp->base.arena, buf);
		}
}

void verbs_data_reclaim_bufs(struct verbs_qp *qp)
{
	struct vma_buf *buf;

	while (take_pending_bufs(qp, &buf, 1) != 0)
		vma_buf_put(qp->base.arena, buf);
	for (; qp->sent_reaped != qp->sent_queued; qp->sent_reaped++) {
		buf = qp->sent[qp->sent_reaped & qp->sent_mask].buf;
		if (buf != NULL)
			vma_buf_put(qp->base.arena, buf);
	}
	if (qp->rx_memory != NULL)
		reclaim_posted_bufs(qp, qp->rx_memory);
}
