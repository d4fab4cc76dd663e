/* ring_rx.c - driving the receive side: a burst from the queue, header checks, flows, and posted commands. */
#include <netinet/in.h>
#include <errno.h>
#include <time.h>

#include <vma/nic_tap.h>
#include <vma/probe.h>

#include "ring_priv.h"
#include "train.h"

/* What one burst adds to the counters, written once at its end. */
struct tally {
	uint64_t bytes, delivered;
};

static void ring_count_drops(struct vma_ring *ring, unsigned reason, uint64_t n)
{
	vma_stats_add((_Atomic uint64_t *)((char *)&ring->stats->rx + reason), n);
}

/* A reason is the place of its counter. */
static const char *drop_reason_name(unsigned reason)
{
	static const char *const names[] = {
#define X(name, text) [offsetof(struct vma_stats_ring_rx, name) / sizeof(uint64_t)] = #name,
	        VMA_STATS_RING_RX(X)
#undef X
	};

	return names[reason / sizeof(uint64_t)];
}

static void __attribute__((cold)) ring_drop_packet(struct vma_ring *ring, struct vma_buf *packet, unsigned reason)
{
	VMA_PROBE3(dropped, drop_reason_name(reason), 1, packet->packet_len);
	vma_nic_tap_on_drop(ring->qp, packet, drop_reason_name(reason));
	ring_count_drops(ring, reason, 1);
	vma_buf_put_chain(ring->rules.arena, packet);
}

bool vma_ring_reinject_packet(struct vma_ring *ring, const struct vma_buf *packet)
{
	const int rc = vma_nic_pass_packet_to_kernel(ring->qp, packet);

	if (rc == -EADDRNOTAVAIL)
		ring->martian = packet;
	if (rc < 0)
		return false;
	vma_stats_add(&ring->stats->rx.rx_to_kernel, 1);
	return true;
}

/* What to_kernel has said of the packet, or else this. */
static unsigned __attribute__((cold))
packet_drop_reason_of(struct vma_ring *ring, const struct vma_buf *packet, unsigned otherwise)
{
	const bool is_martian = ring->martian == packet;

	ring->martian = NULL;
	return is_martian ? PACKET_DROP(martian) : otherwise;
}

/* Of the reasons for which it did not pass. */
static void __attribute__((cold, noinline))
ring_rx_drop_or_pass_to_kernel(struct vma_ring *ring, struct vma_buf *packet, unsigned verdict)
{
	if (verdict == PACKET_TO_KERNEL && vma_ring_reinject_packet(ring, packet))
		vma_buf_put_chain(ring->rules.arena, packet);
	else
		ring_drop_packet(ring, packet,
		                 verdict == PACKET_TO_KERNEL
		                         ? packet_drop_reason_of(ring, packet, PACKET_DROP(ip_fragment))
		                         : verdict);
}

static inline void ring_deliver_packet_to_flow(struct vma_ring *ring, struct vma_flow *flow, struct vma_buf *packet,
                                               const struct vma_rx_info *info, struct tally *tally)
{
	if (__builtin_expect(flow->sink(flow, packet, info), 1))
		tally->delivered++;
	else
		ring_drop_packet(ring, packet, packet_drop_reason_of(ring, packet, PACKET_DROP(sink)));
}

/* IPv4, which is all that packet_validate_and_parse_headers lets pass: four bytes, and twelve that are zero. */
static inline struct flow_words flow_words_of_packet(const struct vma_rx_info *info)
{
	struct flow_words words = {0};
	uint32_t local, peer;

	memcpy(&local, info->dst, 4);
	memcpy(&peer, info->src, 4);
	words.w[0] = flow_word0(info->family, info->proto, info->vlan, info->dst_port_be, info->src_port_be);
	words.w[1] = local;
	words.w[3] = peer;
	return words;
}

static inline struct flow_words flow_words_without_peer(struct flow_words words)
{
	words.w[0] &= FLOW_WORD0_LOCAL;
	words.w[3] = 0;
	return words;
}

static inline __attribute__((always_inline)) struct vma_flow *flow_table_find_first_flow(const struct flow_table *table,
                                                                                         struct flow_words words)
{
	struct flow_entry *entry = table->used == 0 ? NULL : flow_table_find(table, &words);

	return entry == NULL ? NULL : entry->head;
}

/* 5-tuples before 3-tuples. Packets come in trains: that of the one before is looked for at ring->last first. */
static inline __attribute__((always_inline)) struct vma_flow *
find_first_flow(struct vma_ring *ring, const struct vma_rx_info *info, bool *again)
{
	const struct flow_words words = flow_words_of_packet(info);
	const uint64_t addresses = words.w[1] | words.w[3] << 32;
	struct vma_flow *flow;

	*again = ring->last.word0 == words.w[0] && ring->last.addresses == addresses;
	if (__builtin_expect(*again, 1))
		return ring->last.flow;
	flow = flow_table_find_first_flow(&ring->five_tuples, words);
	if (flow == NULL)
		flow = flow_table_find_first_flow(&ring->three_tuples, flow_words_without_peer(words));
	ring->last.word0 = words.w[0];
	ring->last.addresses = addresses;
	ring->last.flow = flow;
	return flow;
}

static void packet_chain_add_ref(struct vma_buf *packet)
{
	for (; packet != NULL; packet = packet->next)
		vma_buf_ref(packet);
}

static inline struct vma_ring_proto_ops *proto_ops_of(const struct vma_ring *ring)
{
	return atomic_load_explicit(&ring->proto_ops, memory_order_acquire);
}

static void __attribute__((cold, noinline))
rx_answer_or_drop_unmatched(struct vma_ring *ring, struct vma_buf *packet, const struct vma_rx_info *info,
                            struct tally *tally)
{
	struct vma_ring_proto_ops *proto_ops = info->proto == IPPROTO_TCP ? proto_ops_of(ring) : NULL;

	if (proto_ops != NULL && proto_ops->unmatched != NULL &&
	    ring_has_port_block(ring, info->dst, info->vlan, info->dst_port_be) &&
	    proto_ops->unmatched(proto_ops, packet, info))
		tally->delivered++;
	else
		ring_drop_packet(ring, packet, PACKET_DROP(no_flow));
}

/* One reference per member, taken before its sink can give it back; the ring's own keeps the packet alive meanwhile. */
static unsigned deliver_packet_to_flow_members(struct vma_ring *ring, struct vma_flow *first, struct vma_buf *packet,
                                               const struct vma_rx_info *info, struct tally *tally)
{
	unsigned members = 0;

	for (struct vma_flow *flow = first; flow != NULL; flow = ring->cursor) {
		ring->cursor = flow->next;
		members++;
		packet_chain_add_ref(packet);
		ring_deliver_packet_to_flow(ring, flow, packet, info, tally);
	}
	return members;
}

static void __attribute__((noinline))
deliver_packet_to_all_matching_flows(struct vma_ring *ring, struct vma_buf *packet, const struct vma_rx_info *info,
                                     struct tally *tally)
{
	const struct flow_words words = flow_words_of_packet(info);
	unsigned members = deliver_packet_to_flow_members(ring, flow_table_find_first_flow(&ring->five_tuples, words),
	                                                  packet, info, tally);

	members += deliver_packet_to_flow_members(
	        ring, flow_table_find_first_flow(&ring->three_tuples, flow_words_without_peer(words)), packet, info,
	        tally);
	if (members == 0)
		ring_drop_packet(ring, packet, PACKET_DROP(no_flow));
	else
		vma_buf_put_chain(ring->rules.arena, packet);
}

static void __attribute__((noinline)) ring_dispatch(struct vma_ring *ring, struct vma_buf *packet,
                                                    const struct vma_rx_info *info, bool group, struct tally *tally)
{
	struct vma_flow *flow;
	bool again;

	if (__builtin_expect(group, 0)) {
		deliver_packet_to_all_matching_flows(ring, packet, info, tally);
		return;
	}
	flow = find_first_flow(ring, info, &again);
	if (flow != NULL)
		ring_deliver_packet_to_flow(ring, flow, packet, info, tally);
	else
		rx_answer_or_drop_unmatched(ring, packet, info, tally);
}

static void __attribute__((cold, noinline))
rx_fragment(struct vma_ring *ring, struct vma_buf *packet, struct vma_rx_info *info, struct tally *tally)
{
	struct vma_bufarena *arena = ring->rules.arena;
	struct vma_buf *whole;
	const uint8_t *frame;
	struct timespec now;
	unsigned verdict;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	whole = ring_fragments_add(&ring->fragments, arena, packet, info->vlan,
	                           (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
	if (ring->fragments.dropped != 0) {
		VMA_PROBE3(dropped, drop_reason_name(PACKET_DROP(ip_fragment)), ring->fragments.dropped, 0);
		ring_count_drops(ring, PACKET_DROP(ip_fragment), ring->fragments.dropped);
	}
	ring->fragments.dropped = 0;
	if (whole == NULL)
		return;
	frame = (const uint8_t *)vma_buf_data(arena, whole);
	verdict = packet_validate_and_parse_headers(&ring->rules, whole, frame, info);
	if (verdict == PACKET_PASS)
		ring_dispatch(ring, whole, info, packet_is_multicast_or_broadcast(frame, info), tally);
	else
		ring_drop_packet(ring, whole, verdict);
}

/* ---- trains ---- */

/* What the flow does not take goes the usual way, each by a look of its own: a sink may detach the flow. */
static void rx_deliver_train_in_one_call(struct vma_ring *ring, struct vma_flow *flow, struct vma_buf *const *packets,
                                         unsigned n, const struct vma_rx_info *info, struct tally *tally)
{
	const unsigned taken = flow->ops->take_train(flow, packets, n, info);

	tally->delivered += taken;
	for (unsigned i = taken; i < n; i++)
		ring_dispatch(ring, packets[i], info, false, tally);
}

/*
 * The first one has passed, is the flow's, may begin a train, and has not been sunk. Delivers it with all that go on
 * with it, of at most n: how many. A sink that attaches or detaches makes the ring forget the packet before, which ends
 * the train.
 */
static unsigned __attribute__((noinline))
rx_deliver_same_flow_datagrams(struct vma_ring *ring, struct vma_flow *flow, struct vma_buf *const *packets, unsigned n,
                               const struct vma_rx_info *info, struct tally *tally)
{
	const struct vma_bufarena *arena = ring->rules.arena;
	const bool is_taken = flow->ops != NULL && flow->ops->take_train != NULL;
	struct train train;
	uint64_t bytes = 0;
	const char *next;
	unsigned i;

	train_begin(&train, &ring->rules, packets[0], info);
	if (!is_taken)
		ring_deliver_packet_to_flow(ring, flow, packets[0], info, tally);
	next = n > 1 ? vma_buf_data(arena, packets[1]) : NULL;
	for (i = 1; i < n; i++) {
		struct vma_buf *packet = packets[i];
		const uint8_t *frame = (const uint8_t *)next;

		if (i + 1 < n) {
			next = vma_buf_data(arena, packets[i + 1]);
			__builtin_prefetch(next);
		}
		if (__builtin_expect(!is_taken && ring->last.word0 == 0, 0) ||
		    __builtin_expect(!train_accepts_packet(&train, packet, frame), 0))
			break;
		bytes += packet->packet_len;
		VMA_PROBE2(packet_in, frame, packet->packet_len);
		if (!is_taken)
			ring_deliver_packet_to_flow(ring, flow, packet, info, tally);
	}
	tally->bytes += bytes;
	if (is_taken)
		rx_deliver_train_in_one_call(ring, flow, packets, i, info, tally);
	return i;
}

/* ---- a burst ---- */

/* The first of n packets, whose bytes are at `frame`, and what follows it in a train: how many. */
static inline __attribute__((always_inline)) unsigned
rx_check_and_deliver_next_packets(struct vma_ring *ring, struct vma_buf *const *packets, unsigned n,
                                  const uint8_t *frame, struct vma_rx_info *info, struct tally *tally)
{
	struct vma_buf *packet = packets[0];
	struct vma_flow *flow;
	unsigned verdict;
	bool again;

	tally->bytes += packet->packet_len;
	VMA_PROBE2(packet_in, frame, packet->packet_len);
	verdict = packet_validate_and_parse_headers(&ring->rules, packet, frame, info);
	if (__builtin_expect(verdict != PACKET_PASS, 0)) {
		if (verdict == PACKET_DROP(ip_fragment))
			rx_fragment(ring, packet, info, tally);
		else
			ring_rx_drop_or_pass_to_kernel(ring, packet, verdict);
		return 1;
	}
	if (__builtin_expect(packet_is_multicast_or_broadcast(frame, info), 0)) {
		deliver_packet_to_all_matching_flows(ring, packet, info, tally);
		return 1;
	}
	flow = find_first_flow(ring, info, &again);
	if (__builtin_expect(flow == NULL, 0))
		rx_answer_or_drop_unmatched(ring, packet, info, tally);
	else if (n > 1 && again && train_may_begin(packet, info))
		return rx_deliver_same_flow_datagrams(ring, flow, packets, n, info, tally);
	else
		ring_deliver_packet_to_flow(ring, flow, packet, info, tally);
	return 1;
}

static inline void ring_count_received_packets(struct vma_ring *ring, unsigned n, const struct tally *tally)
{
	vma_stats_add(&ring->stats->rx.rx_packets, n);
	vma_stats_add(&ring->stats->rx.rx_bytes, tally->bytes);
	vma_stats_add(&ring->stats->rx.rx_delivered, tally->delivered);
}

static void __attribute__((noinline))
rx_process_burst(struct vma_ring *ring, struct vma_buf *const *packets, unsigned n)
{
	const struct vma_bufarena *arena = ring->rules.arena;
	struct vma_rx_info info;
	struct tally tally = {0};
	const char *next;

	memset(&info, 0, sizeof(info));
	next = vma_buf_data(arena, packets[0]);
	for (unsigned i = 0, done; i < n; i += done) {
		const uint8_t *frame = (const uint8_t *)next;

		if (i + 1 < n) {
			next = vma_buf_data(arena, packets[i + 1]);
			__builtin_prefetch(next);
		}
		done = rx_check_and_deliver_next_packets(ring, packets + i, n - i, frame, &info, &tally);
		if (done > 1 && i + done < n)
			next = vma_buf_data(arena, packets[i + done]);
	}
	ring_count_received_packets(ring, n, &tally);
}

static void __attribute__((noinline)) rx_process_one_packet(struct vma_ring *ring, struct vma_buf *packet)
{
	struct vma_rx_info info;
	struct tally tally = {0};

	memset(&info, 0, sizeof(info));
	rx_check_and_deliver_next_packets(ring, &packet, 1, (const uint8_t *)vma_buf_data(ring->rules.arena, packet),
	                                  &info, &tally);
	ring_count_received_packets(ring, 1, &tally);
}

static inline unsigned drive_burst(struct vma_ring *ring)
{
	struct vma_buf *packets[RX_BURST];
	unsigned n = vma_cq_poll(ring->cq, packets, RX_BURST);

	if (n == 1)
		rx_process_one_packet(ring, packets[0]);
	else if (n != 0)
		rx_process_burst(ring, packets, n);
	return n;
}

/*
 * Before a protocol's run everything that waits is taken, within a bound. A thread that comes by now and then, between
 * calls of a busy program, would otherwise take a burst each time, while what others send fills the receive queue, and
 * the kernel drops what has no room there. So the run also sees of each connection what belongs together: merged into
 * one piece, answered by one ACK; and the acknowledgement comes before the timer that waits for it.
 */
static __attribute__((noinline)) unsigned drive_bursts_until_empty(struct vma_ring *ring, unsigned n)
{
	unsigned total = n;

	while (n != 0 && total < RX_BEFORE_RUN && !vma_nic_rx_is_empty(ring->qp)) {
		n = drive_burst(ring);
		total += n;
	}
	return total;
}

static inline unsigned drive_bursts(struct vma_ring *ring)
{
	const unsigned n = drive_burst(ring);

	/* One alone was all that waited: a poll takes several. */
	return __builtin_expect(n <= 1, 1) || proto_ops_of(ring) == NULL ? n : drive_bursts_until_empty(ring, n);
}

/* Receive flag held. A command may post again, itself included: that one waits for the next round. */
static void __attribute__((cold)) ring_run_queued_commands(struct vma_ring *ring)
{
	ck_stack_entry_t *entry = command_queue_take_all(&ring->rx_queue);
	uint64_t n = 0;

	while (entry != NULL) {
		struct vma_ring_command *command = (struct vma_ring_command *)entry;

		entry = ck_pr_load_ptr(&entry->next); /* before run, which may free it */
		command->run(command);
		n++;
	}
	vma_stats_add(&ring->stats->rx.rx_commands, n);
}

void vma_ring_notify_listener(struct vma_ring *ring)
{
	struct vma_ring_listener *listener = atomic_load_explicit(&ring->listener, memory_order_acquire);

	if (listener != NULL)
		listener->heard(listener);
}

/* With the flag. What it could not do before more is read is left, after so many times, to who drives next. */
static __attribute__((cold, noinline)) void ring_rerun_protocol_stack_while_busy(struct vma_ring *ring,
                                                                                 struct vma_ring_proto_ops *proto_ops)
{
	unsigned left = RUNS_MAX - 1, n = 0;

	do
		n += drive_bursts(ring);
	while (proto_ops->run(proto_ops, left == 1) && --left > 0);
	if (n != 0)
		vma_ring_notify_listener(ring);
}

static inline void ring_run_protocol_stack(struct vma_ring *ring)
{
	struct vma_ring_proto_ops *proto_ops = proto_ops_of(ring);

	if (__builtin_expect(proto_ops != NULL, 0) && __builtin_expect(proto_ops->run(proto_ops, false), 0))
		ring_rerun_protocol_stack_while_busy(ring, proto_ops);
}

static void __attribute__((cold, noinline)) rx_drive_again(struct vma_ring *ring, uint32_t tid)
{
	while (command_queue_pending(&ring->rx_queue) && drive_flag_try_acquire(&ring->rx, tid)) {
		ring_run_queued_commands(ring);
		ring_run_protocol_stack(ring);
		drive_flag_release_with_full_barrier(&ring->rx, tid);
	}
}

/* fully: see drive_flag_release_with_full_barrier. */
static inline __attribute__((always_inline)) void rx_run_queued_work_and_unlock(struct vma_ring *ring, uint32_t tid,
                                                                                bool fully)
{
	if (command_queue_pending(&ring->rx_queue))
		ring_run_queued_commands(ring);
	ring_run_protocol_stack(ring);
	drive_flag_release_with_optional_barrier(&ring->rx, tid, fully);
	/* What came between the look and the release failed to get the flag because of us: command_queue.h. */
	if (command_queue_pending(&ring->rx_queue))
		rx_drive_again(ring, tid);
}

void ring_rx_run_queued_work_and_unlock(struct vma_ring *ring, uint32_t tid)
{
	rx_run_queued_work_and_unlock(ring, tid, false);
}

void vma_ring_queue_command(struct vma_ring *ring, struct vma_ring_command *command)
{
	_Static_assert(offsetof(struct vma_ring_command, link) == 0 &&
	                       sizeof(command->link) == sizeof(ck_stack_entry_t),
	               "link is the queue's entry");
	command_queue_push_mpsc(&ring->rx_queue, (ck_stack_entry_t *)&command->link);
}

void vma_ring_queue_command_and_try_run(struct vma_ring *ring, struct vma_ring_command *command)
{
	uint32_t tid = drive_get_own_thread_id();

	vma_ring_queue_command(ring, command);
	if (drive_flag_try_acquire(&ring->rx, tid))
		ring_rx_run_queued_work_and_unlock(ring, tid);
}

/* Something to do on the receive side, as far as can be seen without the flag. */
static inline bool has_rx_work(struct vma_ring *ring, bool timers)
{
	struct vma_ring_proto_ops *proto_ops;

	if (!vma_nic_rx_is_empty(ring->qp) || vma_cq_needs_refill(ring->cq) || command_queue_pending(&ring->rx_queue))
		return true;
	if (!timers)
		return false;
	proto_ops = proto_ops_of(ring);
	return __builtin_expect(proto_ops != NULL, 0) && proto_ops->is_due(proto_ops);
}

static inline bool has_tx_work(struct vma_ring *ring)
{
	return __builtin_expect(atomic_load_explicit(&ring->tx_work, memory_order_relaxed), 0) ||
	       command_queue_pending(&ring->tx_queue);
}

bool vma_ring_acquire(struct vma_ring *ring)
{
	return drive_flag_acquire(&ring->rx);
}

bool vma_ring_try_acquire(struct vma_ring *ring)
{
	return drive_flag_try_acquire(&ring->rx, drive_get_own_thread_id());
}

void vma_ring_release(struct vma_ring *ring)
{
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
}

/*
 * Whoever polls may still read the old one, to ask whether it is due: its memory must outlive the calls of progress
 * that are under way, as the ring's own does.
 */
void vma_ring_attach_proto(struct vma_ring *ring, struct vma_ring_proto_ops *proto_ops)
{
	bool acquired = drive_flag_acquire(&ring->rx);

	atomic_store_explicit(&ring->proto_ops, proto_ops, memory_order_release);
	if (acquired)
		ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
}

void vma_ring_set_listener(struct vma_ring *ring, struct vma_ring_listener *listener)
{
	atomic_store_explicit(&ring->listener, listener, memory_order_release);
}

struct vma_ring_proto_ops *vma_ring_proto_ops(const struct vma_ring *ring)
{
	return proto_ops_of(ring);
}

void ring_rx_drain(struct vma_ring *ring)
{
	uint32_t polled = 0;

	while (polled < ring->qp->rx_depth) {
		unsigned n = drive_burst(ring);

		if (n == 0)
			break;
		polled += n;
	}
	if (polled != 0)
		vma_ring_notify_listener(ring);
}

void vma_ring_drain(struct vma_ring *ring)
{
	ring_rx_drain(ring);
}

static int __attribute__((noinline)) rx_drive(struct vma_ring *ring)
{
	uint32_t tid = drive_get_own_thread_id();
	unsigned n;

	if (!drive_flag_try_acquire(&ring->rx, tid))
		return -EBUSY;
	n = drive_bursts(ring);
	rx_run_queued_work_and_unlock(ring, tid, true);
	if (has_tx_work(ring))
		ring_tx_try_drain_and_kick(ring);
	return (int)n;
}

/*
 * A thread that spins looks here at the line that the NIC writes, and takes the flag, with its two locked instructions,
 * only when there is a reason. Nobody can have failed to get a flag that was not taken, so nothing is left behind.
 */
static inline int ring_try_process_rx_and_tx(struct vma_ring *ring, bool timers)
{
	if (__builtin_expect(atomic_load_explicit(&ring->rx.yield_budget, memory_order_relaxed) != 0, 0) &&
	    drive_flag_yield_to_waiters(&ring->rx))
		return -EBUSY;
	if (drive_flag_is_held(&ring->rx))
		return -EBUSY;
	if (has_rx_work(ring, timers))
		return rx_drive(ring);
	if (has_tx_work(ring))
		ring_tx_try_drain_and_kick(ring);
	return 0;
}

int vma_ring_progress(struct vma_ring *ring)
{
	return ring_try_process_rx_and_tx(ring, true);
}

int vma_ring_poll(struct vma_ring *ring)
{
	return ring_try_process_rx_and_tx(ring, false);
}

int vma_ring_progress_and_notify(struct vma_ring *ring)
{
	const int n = vma_ring_progress(ring);

	if (n > 0)
		vma_ring_notify_listener(ring);
	return n;
}
