/*
 * ring_tx.c - driving the transmit side.
 *
 *   send ──┬─ flag ──> [command queue first, if anything is there] ──> NIC ──> kick ──> release, look again
 *          └─ taken ─> slot, command queue ──> try the flag once more
 *
 * Frames of one thread leave in its order: if a sender finds the command queue (or its backlog) not empty, it sends
 * that first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>
#include <vma/packet.h>
#include <vma/probe.h>

#include "ring_priv.h"
#include "tx_cut.h"
#include "tx_packet.h"
#include "tx_slots.h"

enum { WARM_LINES = 16 }; /* of each function of the data path: most have fewer */

void ring_tx_init(struct vma_ring *ring)
{
	tx_slots_init(ring);
	command_queue_init(&ring->tx_queue);
}

/* ---- with the transmit flag ---- */

static void ring_update_has_tx_work(struct vma_ring *ring)
{
	const bool work = ((uintptr_t)ring->backlog | ring->unkicked) != 0; /* without a branch */

	if (atomic_load_explicit(&ring->tx_work, memory_order_relaxed) != work)
		atomic_store_explicit(&ring->tx_work, work, memory_order_relaxed);
}

static void __attribute__((cold)) ring_log_kick_error_once(struct vma_ring *ring, int rc)
{
	if (!ring->kick_failed)
		vma_log_warn("ring %s: kick: %s", ring->name, strerror(-rc));
	ring->kick_failed = true;
}

/* -EAGAIN leaves `unkicked`, and so the next driver or flush tries again; other errors cannot be cured by trying. */
static inline __attribute__((always_inline)) void tx_kick(struct vma_ring *ring)
{
	int rc = vma_nic_kick(ring->qp);

	VMA_PROBE2(sent, ring->unkicked, rc);
	vma_stats_add(&ring->stats->tx.tx_kicks, 1);
	if (__builtin_expect(rc == -EAGAIN, 0))
		return;
	ring->unkicked = 0;
	if (__builtin_expect(rc != 0, 0) && !vma_nic_qp_lost(ring->qp))
		ring_log_kick_error_once(ring, rc);
}

static void tx_reap(struct vma_ring *ring)
{
	vma_cq_reap_sent_bufs(ring->cq);
	ring->unreaped = 0;
}

static unsigned count_packets(const struct vma_nic_seg *segs, unsigned n, uint64_t *bytes)
{
	unsigned packets = 0;

	*bytes = 0;
	for (unsigned i = 0; i < n; i++) {
		packets += !(segs[i].flags & VMA_NIC_SEG_MORE);
		*bytes += segs[i].len;
	}
	return packets;
}

/* The NIC is full: makes room, and tries once more with what is left. */
static unsigned __attribute__((cold, noinline))
tx_retry_full(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n)
{
	unsigned taken;

	tx_kick(ring);
	tx_reap(ring);
	taken = vma_nic_tx(ring->qp, segs, n);
	if (taken < n)
		vma_stats_add(&ring->stats->tx.tx_full, 1);
	return taken;
}

/* Hands over n segments, which are `packets` of together `bytes`; makes room once. Returns how many the NIC took. */
static inline unsigned hand_to_nic(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n, unsigned packets,
                                   uint64_t bytes)
{
	struct vma_stats_ring_tx *stats = &ring->stats->tx;
	unsigned taken = vma_nic_tx(ring->qp, segs, n);

	if (__builtin_expect(taken < n, 0)) {
		taken += tx_retry_full(ring, segs + taken, n - taken);
		packets = count_packets(segs, taken, &bytes);
	}
	vma_stats_add(&stats->tx_packets, packets);
	vma_stats_add(&stats->tx_bytes, bytes);
	ring->unkicked += packets;
	ring->unreaped += taken;
	return taken;
}

static inline __attribute__((always_inline)) void kick_and_reap(struct vma_ring *ring, bool later)
{
	if (ring->unkicked != 0 && (!later || ring->unkicked >= LATER_MAX))
		tx_kick(ring);
	if (__builtin_expect(ring->unreaped >= ring->reap_at, 0))
		tx_reap(ring);
	ring_update_has_tx_work(ring);
}

/* A queued packet of more segments than the NIC takes: gathered in place. False: no buffer now. */
static bool gather_slot_segments_into_one_buffer(struct vma_ring *ring, struct tx_slot *slot)
{
	struct vma_nic_seg all[TX_BURST], one;
	const unsigned n = tx_slots_copy_segs_to_array(slot, all);
	uint64_t len;
	int rc;

	packet_segment_count_and_bytes(all, n, &len);
	rc = tx_packet_gather(ring, all, n, len, &one);
	if (rc == 0) {
		tx_reap(ring); /* gather could not: it has no flag of its own */
		rc = tx_packet_gather(ring, all, n, len, &one);
	}
	if (rc == 0)
		return false;
	put_buffers_of_segs(ring, all, n);
	slots_free(ring, slot->more);
	slot->more = NULL;
	slot->segs_count = rc == 1;
	slot->segs[0] = one;
	if (rc != 1)
		vma_stats_add(&ring->stats->tx.tx_drop_too_long, 1);
	return true;
}

static bool tx_slot_needs_cut_into_frames(const struct vma_ring *ring, const struct tx_slot *slot)
{
	struct vma_nic_seg all[TX_BURST];
	unsigned n;
	uint64_t len;

	if (__builtin_expect(slot->segs_count == 0 || !(slot->segs[0].flags & (VMA_NIC_SEG_CSUM | VMA_NIC_SEG_TSO)), 1))
		return false;
	n = tx_slots_copy_segs_to_array(slot, all);
	packet_segment_count_and_bytes(all, n, &len);
	return tx_packet_needs_cut(ring, all, n, len);
}

/* False: the NIC is full, or there is no buffer; what is left of the packet waits. */
static bool __attribute__((cold)) tx_send_packet_cut_into_frames(struct vma_ring *ring, struct tx_slot *slot)
{
	struct vma_nic_seg all[TX_BURST], frame;
	const unsigned n = tx_slots_copy_segs_to_array(slot, all);
	struct tx_cut cut;
	uint64_t len;

	packet_segment_count_and_bytes(all, n, &len);
	tx_cut_begin(&cut, all, len);
	for (; slot->frames_sent < cut.frames; slot->frames_sent++) {
		int rc = tx_cut_build_frame(ring, &cut, slot->frames_sent, &frame);

		if (rc == 0) {
			tx_kick(ring); /* what was not kicked cannot complete */
			tx_reap(ring);
			rc = tx_cut_build_frame(ring, &cut, slot->frames_sent, &frame);
		}
		if (rc == 0)
			return false;
		if (rc < 0) {
			vma_stats_add(&ring->stats->tx.tx_drop_bad, 1);
			break;
		}
		if (hand_to_nic(ring, &frame, 1, 1, frame.len) == 0) {
			vma_buf_put(ring->rules.arena, frame.buf);
			return false;
		}
	}
	put_buffers_of_segs(ring, all, n);
	return true;
}

/* As many whole packets from the head of the backlog as fit; *end is the first that is not among them. */
static unsigned tx_collect_backlog(struct vma_ring *ring, struct vma_nic_seg segs[TX_BURST], ck_stack_entry_t **end)
{
	ck_stack_entry_t *entry = ring->backlog;
	unsigned n = 0;

	for (; entry != NULL; entry = ck_pr_load_ptr(&entry->next)) {
		struct tx_slot *slot = (struct tx_slot *)entry;

		if (tx_slot_needs_cut_into_frames(ring, slot) || (tx_slot_count_segs(slot) > ring_segs_max_now(ring) &&
		                                                  !gather_slot_segments_into_one_buffer(ring, slot)))
			break;
		if (n + tx_slot_count_segs(slot) > TX_BURST)
			break;
		n += tx_slots_copy_segs_to_array(slot, segs + n);
	}
	*end = entry;
	return n;
}

static void tx_pop_backlog(struct vma_ring *ring)
{
	struct tx_slot *slot = (struct tx_slot *)ring->backlog;

	ring->backlog = ck_pr_load_ptr(&slot->entry.next);
	slots_free(ring, slot);
}

/* Frees the slots at the head of the backlog whose segments are among the `taken`; up to end. Returns how many. */
static unsigned tx_free_sent_backlog_slots(struct vma_ring *ring, const ck_stack_entry_t *end, unsigned taken)
{
	unsigned packets = 0;

	while (ring->backlog != end) {
		unsigned k = tx_slot_count_segs((struct tx_slot *)ring->backlog);

		if (k > taken)
			break;
		taken -= k;
		packets++;
		tx_pop_backlog(ring);
	}
	return packets;
}

static void append_to_tx_backlog(struct vma_ring *ring, ck_stack_entry_t *entry)
{
	if (entry == NULL)
		return;
	if (ring->backlog == NULL)
		ring->backlog = entry;
	else
		ck_pr_store_ptr(&ring->backlog_tail->next, entry);
	for (; entry != NULL; entry = ck_pr_load_ptr(&entry->next))
		ring->backlog_tail = entry;
}

/* Takes over the command queue and sends as much as the NIC takes. */
static void __attribute__((cold)) tx_drain_queue(struct vma_ring *ring)
{
	struct vma_stats_ring_tx *stats = &ring->stats->tx;

	append_to_tx_backlog(ring, command_queue_take_all(&ring->tx_queue));
	vma_stats_add(&stats->tx_drop_queue, atomic_exchange_explicit(&ring->refused, 0, memory_order_relaxed));
	vma_stats_add(&stats->tx_drop_too_long, atomic_exchange_explicit(&ring->too_long, 0, memory_order_relaxed));
	vma_stats_add(&stats->tx_drop_bad, atomic_exchange_explicit(&ring->bad, 0, memory_order_relaxed));
	while (ring->backlog != NULL) {
		struct vma_nic_seg segs[TX_BURST];
		ck_stack_entry_t *end;
		unsigned n, packets, taken;
		uint64_t bytes;

		if (tx_slot_needs_cut_into_frames(ring, (struct tx_slot *)ring->backlog)) {
			if (!tx_send_packet_cut_into_frames(ring, (struct tx_slot *)ring->backlog))
				break;
			tx_pop_backlog(ring);
			vma_stats_add(&stats->tx_commands, 1);
			continue;
		}
		n = tx_collect_backlog(ring, segs, &end);
		packets = count_packets(segs, n, &bytes);
		taken = n == 0 ? 0 : hand_to_nic(ring, segs, n, packets, bytes);
		packets = tx_free_sent_backlog_slots(ring, end, taken);

		vma_stats_add(&stats->tx_commands, packets);
		if (packets == 0 || ring->backlog != end)
			break;
	}
}

static void drain_tx_queue_and_kick(struct vma_ring *ring)
{
	tx_drain_queue(ring);
	kick_and_reap(ring, false);
}

void ring_tx_drain_and_reap(struct vma_ring *ring)
{
	drain_tx_queue_and_kick(ring);
	tx_reap(ring);
}

static void __attribute__((cold, noinline)) tx_drain_queue_until_empty(struct vma_ring *ring, uint32_t tid)
{
	while (command_queue_pending(&ring->tx_queue) && drive_flag_try_acquire(&ring->tx, tid)) {
		drain_tx_queue_and_kick(ring);
		drive_flag_release(&ring->tx, tid);
	}
}

static inline void tx_release_drive_flag_and_recheck_queue(struct vma_ring *ring, uint32_t tid)
{
	drive_flag_release(&ring->tx, tid);
	/* Who queued a frame while we drove could not get the flag because of us: command_queue.h. */
	if (command_queue_pending(&ring->tx_queue))
		tx_drain_queue_until_empty(ring, tid);
}

void ring_tx_release_drive_flag(struct vma_ring *ring, uint32_t tid)
{
	tx_release_drive_flag_and_recheck_queue(ring, tid);
}

void ring_tx_try_drain_and_kick(struct vma_ring *ring)
{
	uint32_t tid = drive_get_own_thread_id();

	if (!drive_flag_try_acquire(&ring->tx, tid))
		return;
	drain_tx_queue_and_kick(ring);
	ring_tx_release_drive_flag(ring, tid);
}

/* ---- any thread ---- */

static void __attribute__((cold)) count_refused_tx_packet(struct vma_ring *ring, _Atomic uint64_t *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
	command_queue_set_pending(&ring->tx_queue); /* the next driver carries it to the statistics */
}

/* Somebody else has the flag: leaves the packets in the command queue, one entry each, and looks once more. */
static unsigned __attribute__((noinline))
queue_packets_for_tx_driver(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n, uint32_t tid)
{
	unsigned done = 0;

	while (done < n) {
		uint64_t len;
		unsigned k = packet_segment_count_and_bytes(segs + done, n - done, &len);
		struct tx_slot *slot = tx_slots_claim_and_fill_for_packet(ring, segs + done, k, tid);

		if (slot == NULL) {
			count_refused_tx_packet(ring, &ring->refused);
			break;
		}
		command_queue_push_mpsc(&ring->tx_queue, &slot->entry);
		done += k;
	}
	ring_tx_try_drain_and_kick(ring);
	return done;
}

/* Older frames go first; true: they have gone. */
static bool __attribute__((cold, noinline)) send_backlog(struct vma_ring *ring)
{
	tx_drain_queue(ring);
	if (ring->backlog == NULL)
		return true;
	vma_stats_add(&ring->stats->tx.tx_drop_queue, 1);
	return false;
}

/* Packets that are known to be fit to send: n segments of `packets`, together `bytes`. */
static inline __attribute__((always_inline)) unsigned send_valid_packets_or_queue_them(struct vma_ring *ring,
                                                                                       const struct vma_nic_seg *segs,
                                                                                       unsigned n, unsigned packets,
                                                                                       uint64_t bytes, bool later)
{
	uint32_t tid = drive_get_own_thread_id();
	unsigned taken = 0;
	bool backlog;

	if (!drive_flag_try_acquire(&ring->tx, tid))
		return queue_packets_for_tx_driver(ring, segs, n, tid);
	backlog = command_queue_pending(&ring->tx_queue) || ring->backlog != NULL;
	if (__builtin_expect(!backlog, 1) || send_backlog(ring))
		taken = hand_to_nic(ring, segs, n, packets, bytes);
	kick_and_reap(ring, later);
	tx_release_drive_flag_and_recheck_queue(ring, tid);
	return taken;
}

/* One packet of more segments than the NIC takes. Returns n, or 0: nothing was taken. */
static unsigned send_gathered(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n, uint64_t len)
{
	struct vma_nic_seg one;
	int rc = tx_packet_gather(ring, segs, n, len, &one);

	if (rc == 0) {
		count_refused_tx_packet(ring, &ring->refused);
		return 0;
	}
	if (rc < 0) {
		count_refused_tx_packet(ring, &ring->too_long);
	} else if (send_valid_packets_or_queue_them(ring, &one, 1, 1, len, true) == 0) {
		vma_buf_put(ring->rules.arena, one.buf);
		return 0;
	}
	put_buffers_of_segs(ring, segs, n);
	return n;
}

/* By the queue, whose drain does it: see tx_cut.h. */
static bool packet_needs_cut_into_frames(const struct vma_ring *ring, const struct vma_nic_seg *packet, unsigned k,
                                         uint64_t len)
{
	return packet->flags & (VMA_NIC_SEG_CSUM | VMA_NIC_SEG_TSO) && tx_packet_needs_cut(ring, packet, k, len);
}

/* Packet by packet: some have several segments, or are too long. */
static unsigned __attribute__((noinline))
send_packets_one_by_one(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n, bool later)
{
	unsigned done = 0;

	while (done < n) {
		const struct vma_nic_seg *packet = segs + done;
		uint64_t len;
		unsigned k = packet_segment_count_and_bytes(packet, n - done, &len), sent = k;
		enum tx_check check = tx_packet_validate(ring, packet, k, len);

		if (check != TX_CHECK_SEND) {
			count_refused_tx_packet(ring, check == TX_CHECK_BAD ? &ring->bad : &ring->too_long);
			put_buffers_of_segs(ring, packet, k);
		} else if (__builtin_expect(packet_needs_cut_into_frames(ring, packet, k, len), 0)) {
			sent = queue_packets_for_tx_driver(ring, packet, k, drive_get_own_thread_id());
		} else if (k > ring->segs_max) {
			sent = send_gathered(ring, packet, k, len);
		} else {
			sent = send_valid_packets_or_queue_them(ring, packet, k, 1, len, true);
		}
		if (sent == 0)
			break;
		done += k;
	}
	if (!later)
		vma_ring_flush_tx(ring);
	return done;
}

unsigned vma_ring_send(struct vma_ring *ring, const struct vma_nic_seg *segs, unsigned n, unsigned flags)
{
	bool later = flags & VMA_RING_SEND_LATER;
	const uint32_t span = atomic_load_explicit(&ring->plain_span, memory_order_relaxed);
	const uint16_t special = atomic_load_explicit(&ring->flags_special, memory_order_relaxed);
	uint64_t bytes = 0;

	for (unsigned i = 0; i < n; i++) {
		const struct vma_nic_seg *seg = &segs[i];

		/* Not between 14 bytes and the maximum (one comparison), beyond its buffer, or not a packet by itself.
		 */
		if (__builtin_expect(seg->len - VMA_PKT_ETH_HLEN > span || seg->off > ring->buf_size - seg->len ||
		                             seg->flags & special,
		                     0))
			return send_packets_one_by_one(ring, segs, n, later);
		bytes += seg->len;
	}
	return n == 0 ? 0 : send_valid_packets_or_queue_them(ring, segs, n, n, bytes, later);
}

/* What is prefetched as data is code to the second-level cache. */
static void prefetch_code(const void *code)
{
	for (unsigned line = 0; line < WARM_LINES; line++)
		__builtin_prefetch((const char *)code + 64 * line);
}

/* The device is asked to take no frame: it looks at its queue, and writes nothing. */
void vma_ring_send_dummy(struct vma_ring *ring, const struct vma_nic_seg *seg)
{
	const uint32_t tid = drive_get_own_thread_id();

	prefetch_code((const void *)(uintptr_t)vma_ring_send);
	prefetch_code((const void *)(uintptr_t)vma_nic_qp_ops(ring->qp)->tx);
	prefetch_code((const void *)(uintptr_t)vma_nic_qp_ops(ring->qp)->kick);
	if (seg->len - VMA_PKT_ETH_HLEN > atomic_load_explicit(&ring->plain_span, memory_order_relaxed) ||
	    !drive_flag_try_acquire(&ring->tx, tid))
		return;
	__builtin_prefetch(&ring->stats->tx, 1);
	__builtin_prefetch(seg->buf, 1);
	vma_nic_tx(ring->qp, seg, 0);
	ring_update_has_tx_work(ring);
	tx_release_drive_flag_and_recheck_queue(ring, tid);
}

/*
 * A kick may be owed by frames of this thread that another one sent and left for later: marking the queue makes whoever
 * holds the flag drain and kick at its release.
 */
void vma_ring_flush_tx(struct vma_ring *ring)
{
	if (!atomic_load_explicit(&ring->tx_work, memory_order_relaxed) && !command_queue_pending(&ring->tx_queue))
		return;
	command_queue_set_pending(&ring->tx_queue);
	ring_tx_try_drain_and_kick(ring);
}

/*
 * No flag is held, so a rebind may end the pool between its look-up and the get. Then the get finds no buffer, or one of
 * the queue pair's next pool: a pool's address is kept for pools of the same queue pair (nic.h).
 */
static inline struct vma_buf *get_tx_buf(struct vma_nic_qp *qp)
{
	struct vma_bufpool *pool = atomic_load_explicit(&qp->tx_pool, memory_order_acquire);
	struct vma_buf *buf;

	if (__builtin_expect(vma_bufpool_get(pool, &buf, 1) == 0, 0))
		return NULL;
	buf->data_off = qp->tx_headroom;
	return buf;
}

/* The pool is dry: what has been sent is looked for. */
static struct vma_buf *__attribute__((cold, noinline)) tx_buf_get_after_reap(struct vma_ring *ring)
{
	uint32_t tid = drive_get_own_thread_id();

	if (!drive_flag_try_acquire(&ring->tx, tid))
		return NULL;
	kick_and_reap(ring, false); /* what was not kicked cannot complete */
	tx_reap(ring);
	tx_release_drive_flag_and_recheck_queue(ring, tid);
	return get_tx_buf(ring->qp);
}

struct vma_buf *vma_ring_tx_buf(struct vma_ring *ring)
{
	struct vma_buf *buf = get_tx_buf(ring->qp);

	return __builtin_expect(buf != NULL, 1) ? buf : tx_buf_get_after_reap(ring);
}

void ring_tx_fini(struct vma_ring *ring)
{
	append_to_tx_backlog(ring, command_queue_take_all(&ring->tx_queue));
	while (ring->backlog != NULL) {
		for (struct tx_slot *part = (struct tx_slot *)ring->backlog; part != NULL; part = part->more)
			put_buffers_of_segs(ring, part->segs, part->segs_count);
		tx_pop_backlog(ring);
	}
	ring->unkicked = ring->unreaped = 0;
}
