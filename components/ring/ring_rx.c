/* ring_rx.c - driving the receive side: a burst from the queue, header checks, flows, and what others asked for. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <errno.h>

#include "ring_priv.h"

/* What one burst adds to the counters, written once at its end. */
struct tally {
	uint64_t bytes, delivered;
};

static void count(struct vma_ring *ring, unsigned reason, uint64_t n)
{
	vma_stats_add((_Atomic uint64_t *)((char *)&ring->stats->rx + reason), n);
}

static void __attribute__((cold)) drop(struct vma_ring *ring, struct vma_buf *packet, unsigned reason)
{
	count(ring, reason, 1);
	vma_buf_put_chain(ring->rules.arena, packet);
}

static inline void hand_over(struct vma_ring *ring, struct vma_flow *flow, struct vma_buf *packet,
                             const struct vma_rx_info *info, struct tally *tally)
{
	if (__builtin_expect(flow->sink(flow, packet, info), 1))
		tally->delivered++;
	else
		drop(ring, packet, PACKET_DROP(sink));
}

static inline bool takes(const struct vma_flow *flow, const struct vma_rx_info *info)
{
	if (__builtin_expect(!(flow->flags & VMA_FLOW_SYN_ONLY), 1))
		return true;
	return (info->tcp_flags & (TH_SYN | TH_ACK)) == TH_SYN;
}

static inline struct flow_words words_of(const struct vma_rx_info *info, bool with_peer)
{
	struct flow_words k = {0};
	uint32_t local, peer;

	/* IPv4, which is all that packet_check lets pass: four bytes, and twelve that are zero. */
	memcpy(&local, info->dst, 4);
	memcpy(&peer, info->src, 4);
	k.w[0] =
	        flow_word0(info->family, info->proto, info->vlan, info->dst_port_be, with_peer ? info->src_port_be : 0);
	k.w[1] = local;
	k.w[3] = with_peer ? peer : 0;
	return k;
}

static inline __attribute__((always_inline)) struct vma_flow *find(const struct flow_table *table,
                                                                   const struct vma_rx_info *info, bool with_peer)
{
	struct flow_words words;
	struct flow_entry *entry;

	if (table->used == 0)
		return NULL;
	words = words_of(info, with_peer);
	entry = flow_table_find(table, &words);
	return entry == NULL ? NULL : entry->head;
}

static void ref_chain(struct vma_buf *packet)
{
	for (; packet != NULL; packet = packet->next)
		vma_buf_ref(packet);
}

/* One reference per member, taken before its sink can give it back; the ring's own keeps the packet alive meanwhile. */
static unsigned deliver_to_members(struct vma_ring *ring, struct vma_flow *first, struct vma_buf *packet,
                                   const struct vma_rx_info *info, struct tally *tally)
{
	unsigned members = 0;

	for (struct vma_flow *flow = first; flow != NULL; flow = ring->cursor) {
		ring->cursor = flow->next;
		if (!takes(flow, info))
			continue;
		members++;
		ref_chain(packet);
		hand_over(ring, flow, packet, info, tally);
	}
	return members;
}

static void __attribute__((noinline))
deliver_to_group(struct vma_ring *ring, struct vma_buf *packet, const struct vma_rx_info *info, struct tally *tally)
{
	unsigned members = deliver_to_members(ring, find(&ring->five, info, true), packet, info, tally);

	members += deliver_to_members(ring, find(&ring->three, info, false), packet, info, tally);
	if (members == 0)
		drop(ring, packet, PACKET_DROP(no_flow));
	else
		vma_buf_put_chain(ring->rules.arena, packet);
}

static inline void dispatch(struct vma_ring *ring, struct vma_buf *packet, const struct vma_rx_info *info, bool group,
                            struct tally *tally)
{
	struct vma_flow *flow;

	if (__builtin_expect(group, 0)) {
		deliver_to_group(ring, packet, info, tally);
		return;
	}
	flow = find(&ring->five, info, true);
	if (flow == NULL)
		flow = find(&ring->three, info, false);
	if (flow != NULL && takes(flow, info))
		hand_over(ring, flow, packet, info, tally);
	else
		drop(ring, packet, PACKET_DROP(no_flow));
}

static inline unsigned drive_burst(struct vma_ring *ring)
{
	struct vma_buf *packets[RX_BURST];
	unsigned n = vma_cq_poll(ring->cq, packets, RX_BURST);
	struct vma_rx_info info;
	struct tally tally = {0};

	if (n == 0) {
		ring_rebind_if_wanted(ring);
		return 0;
	}
	memset(&info, 0, sizeof(info));
	for (unsigned i = 0; i < n; i++) {
		struct vma_buf *packet = packets[i];
		bool group = false;
		unsigned verdict;

		if (i + 1 < n)
			__builtin_prefetch(vma_buf_data(ring->rules.arena, packets[i + 1]));
		tally.bytes += packet->packet_len;
		verdict = packet_check(&ring->rules, packet, &info, &group);
		if (__builtin_expect(verdict == PACKET_PASS, 1))
			dispatch(ring, packet, &info, group, &tally);
		else
			drop(ring, packet, verdict);
	}
	vma_stats_add(&ring->stats->rx.rx_packets, n);
	vma_stats_add(&ring->stats->rx.rx_bytes, tally.bytes);
	vma_stats_add(&ring->stats->rx.rx_delivered, tally.delivered);
	return n;
}

/* Receive flag held. A command may post again, itself included: that one waits for the next round. */
static void __attribute__((cold)) run_commands(struct vma_ring *ring)
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

void ring_rx_release(struct vma_ring *ring, uint32_t tid)
{
	for (;;) {
		if (command_queue_pending(&ring->rx_queue))
			run_commands(ring);
		drive_release(&ring->rx);
		/* What came between the look and the release failed to get the flag because of us: command_queue.h. */
		if (!command_queue_pending(&ring->rx_queue) || !drive_try(&ring->rx, tid))
			return;
	}
}

void vma_ring_post(struct vma_ring *ring, struct vma_ring_command *command)
{
	uint32_t tid = drive_tid();

	_Static_assert(offsetof(struct vma_ring_command, link) == 0 &&
	                       sizeof(command->link) == sizeof(ck_stack_entry_t),
	               "link is the queue's entry");
	command_queue_push_mpsc(&ring->rx_queue, (ck_stack_entry_t *)&command->link);
	if (drive_try(&ring->rx, tid))
		ring_rx_release(ring, tid);
}

int vma_ring_progress(struct vma_ring *ring)
{
	uint32_t tid = drive_tid();
	unsigned n;

	if (__builtin_expect(atomic_load_explicit(&ring->rx.courtesy, memory_order_relaxed) != 0, 0) &&
	    drive_courteous(&ring->rx))
		return -EBUSY;
	if (!drive_try(&ring->rx, tid))
		return -EBUSY;
	n = drive_burst(ring);
	ring_rx_release(ring, tid);
	if (__builtin_expect(atomic_load_explicit(&ring->tx_work, memory_order_relaxed), 0) ||
	    command_queue_pending(&ring->tx_queue))
		ring_tx_service(ring);
	return (int)n;
}
