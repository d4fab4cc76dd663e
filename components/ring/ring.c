/* ring.c - life of a ring: queue pair, completion side, and the NIC's events. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vma/log.h>
#include <vma/packet.h>

#include "ring_priv.h"

/* ---- events: called by a thread of the NIC's ---- */

/* At create and after a rebind, which may have found another MTU. Senders read without a flag: what was checked by the
 * old one is the NIC's to drop. */
static void ring_update_frame_max_from_mtu(struct vma_ring *ring)
{
	const uint32_t frame_max = vma_nic_info(ring->nic)->mtu + VMA_PKT_ETH_HLEN;

	atomic_store_explicit(&ring->frame_max, frame_max, memory_order_relaxed);
	atomic_store_explicit(&ring->plain_span,
	                      (frame_max < ring->buf_size ? frame_max : ring->buf_size) - VMA_PKT_ETH_HLEN,
	                      memory_order_relaxed);
}

/*
 * Both flags held, or nobody knows the ring. Who has seen that a binding can sum or cut may go on to ask for it: what
 * the binding of now cannot is done here (tx_cut.h). A packet that is not to be sent has no such way.
 */
static void ring_update_offload_flags_of_nic(struct vma_ring *ring)
{
	const uint16_t lacking = ring_seg_flags_nic_lacks(ring);
	const uint16_t unable = atomic_load_explicit(&ring->flags_unable, memory_order_relaxed);
	const uint32_t most = vma_nic_info(ring->nic)->tso_max_bytes;

	atomic_store_explicit(&ring->flags_unable, (unable & lacking) | (lacking & VMA_NIC_SEG_DUMMY),
	                      memory_order_relaxed);
	atomic_store_explicit(&ring->flags_special, lacking | VMA_NIC_SEG_MORE | VMA_NIC_SEG_TSO, memory_order_relaxed);
	if (most > atomic_load_explicit(&ring->tso_bytes_max, memory_order_relaxed))
		atomic_store_explicit(&ring->tso_bytes_max, most, memory_order_relaxed);
}

/* Both flags held. On -EAGAIN the NIC goes on trying and sends the event again. */
static void ring_recover_lost_queue_pair(struct vma_ring *ring)
{
	struct vma_ring_proto_ops *proto_ops = vma_ring_proto_ops(ring);
	int rc;

	/* The event may be older than a rebind; the completion side would take the queue for an empty one. */
	if (!vma_nic_qp_lost(ring->qp))
		return;
	vma_cq_drop_pending_and_refill_bufs(ring->cq);
	rc = vma_nic_qp_rebind(ring->qp);
	if (rc == -EAGAIN)
		return;
	if (rc != 0) {
		vma_log_error("ring %s: cannot get its queue pair back: %s", ring->name, strerror(-rc));
		return;
	}
	vma_cq_take_up_rebound_qp(ring->cq);
	ring_update_frame_max_from_mtu(ring);
	ring_update_offload_flags_of_nic(ring);
	ring->unreaped = 0;
	if (proto_ops != NULL && proto_ops->rebound != NULL)
		proto_ops->rebound(proto_ops);
	vma_log_info("ring %s: offloaded again", ring->name);
}

static void ring_recover_after_device_loss(struct vma_ring *ring)
{
	drive_flag_acquire(&ring->rx);
	drive_flag_acquire(&ring->tx);
	if (!atomic_load(&ring->closing))
		ring_recover_lost_queue_pair(ring);
	ring_tx_release_drive_flag(ring, drive_get_own_thread_id());
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
}

struct revocation {
	struct vma_ring_command command; /* first */
	struct vma_ring *ring;
	struct vma_flow_key key;
	bool was_lost; /* the queue pair, at the event: it may be there again by the time the command runs */
};

static void ring_run_flow_revocation(struct vma_ring_command *command)
{
	struct revocation *r = (struct revocation *)command;
	struct vma_ring *ring = r->ring;
	struct flow_words words = flow_words_of(&r->key);
	struct flow_entry *entry = flow_table_find(ring_flow_table_for_key(ring, &r->key), &words);
	char local[INET_ADDRSTRLEN];

	if (r->key.proto == VMA_FLOW_TCP_PORTS || r->key.proto == VMA_FLOW_TCP_ADDRESS)
		ring_forget_revoked_port_block(ring, &r->key);
	if (entry != NULL && ring_stale_rule_of(entry) != NULL) {
		ring_stale_rule_free(ring, ring_stale_rule_of(entry));
	} else if (entry != NULL && !entry->revoked) {
		entry->revoked = true;
		inet_ntop(AF_INET, r->key.local, local, sizeof(local));
		/* Of a device that has gone the loss was told. */
		vma_log_at(r->was_lost ? VMA_LOG_DEBUG : VMA_LOG_WARN,
		           "ring %s: the kernel has %s port %u of %s again: %s", ring->name,
		           r->key.proto == IPPROTO_TCP ? "TCP" : "UDP", ntohs(r->key.local_port_be), local,
		           r->was_lost ? "the device has gone"
		                       : "somebody else wants it too, or its card has no room for the rule");
		for (struct vma_flow *flow = entry->head; flow != NULL; flow = ring->cursor) {
			ring->cursor = flow->next;
			if (flow->ops != NULL && flow->ops->revoked != NULL)
				flow->ops->revoked(flow);
		}
	}
	free(r);
}

static void ring_queue_flow_revocation(struct vma_ring *ring, const struct vma_flow_key *key)
{
	struct revocation *r = malloc(sizeof(*r));

	if (r == NULL) {
		vma_log_error("ring %s: no memory to say that a flow was revoked", ring->name);
		return;
	}
	*r = (struct revocation){.command = {.run = ring_run_flow_revocation},
	                         .ring = ring,
	                         .key = *key,
	                         .was_lost = vma_nic_qp_lost(ring->qp)};
	vma_ring_queue_command_and_try_run(ring, &r->command);
}

struct adoption {
	struct vma_ring_command command; /* first */
	struct vma_ring *ring;
	struct vma_pending pending;
};

static void ring_run_adoption_of_pending_conn(struct vma_ring_command *command)
{
	struct adoption *a = (struct adoption *)command;
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = IPPROTO_TCP,
	                           .vlan = a->pending.vlan,
	                           .local_port_be = a->pending.local_port_be};
	struct vma_ring_proto_ops *proto_ops = vma_ring_proto_ops(a->ring);
	struct vma_flow *listener;

	memcpy(key.local, a->pending.local, sizeof(a->pending.local));
	listener = vma_ring_find_first_flow_of_key(a->ring, &key);
	if (listener != NULL && proto_ops != NULL && proto_ops->accept_pending != NULL)
		proto_ops->accept_pending(proto_ops, listener, &a->pending);
	if (a->ring->qp->member != NULL)
		atomic_store(&a->ring->qp->member->adopted, a->pending.number);
	free(a);
}

static void ring_queue_adoption_of_pending_conn(struct vma_nic_qp *qp, const struct vma_pending *pending, void *arg)
{
	struct vma_ring *ring = arg;
	struct adoption *a;

	(void)qp;
	if (atomic_load(&ring->closing))
		return;
	a = malloc(sizeof(*a));
	if (a == NULL) {
		vma_log_error("ring %s: no memory to take a connection over", ring->name);
		return;
	}
	a->command = (struct vma_ring_command){.run = ring_run_adoption_of_pending_conn};
	a->ring = ring;
	memcpy(&a->pending, pending, sizeof(*pending));
	vma_ring_queue_command_and_try_run(ring, &a->command);
}

static void ring_on_event(struct vma_nic_qp *qp, enum vma_nic_event event, const struct vma_flow_key *key, void *arg)
{
	struct vma_ring *ring = arg;

	(void)qp;
	if (atomic_load(&ring->closing))
		return;
	if (event == VMA_NIC_EVENT_LOST)
		ring_recover_after_device_loss(ring);
	else if (event == VMA_NIC_EVENT_FLOW_REVOKED && key != NULL)
		ring_queue_flow_revocation(ring, key);
}

/* ---- create and destroy ---- */

static int create_queues(struct vma_ring *ring, const struct vma_ring_attr *attr)
{
	struct vma_nic_qp_attr qp = {
	        .rx_wre = attr->rx_wre,
	        .tx_wre = attr->tx_wre,
	        .tx_inline = attr->tx_inline,
	        .tx_batching = attr->tx_wre_batching,
	        .name = ring->name,
	        .event = ring_on_event,
	        .adopt = ring_queue_adoption_of_pending_conn,
	        .event_arg = ring,
	};
	struct vma_cq_attr cq = attr->cq;
	int rc = vma_nic_qp_create(ring->nic, &qp, &ring->qp);

	if (rc != 0)
		return rc;
	cq.qp = ring->qp;
	cq.spill_pool = attr->spill_pool;
	cq.stats = attr->stats;
	cq.name = ring->name;
	return vma_cq_create(&cq, &ring->cq);
}

/* The last steps; accepts what create has built so far. */
static void ring_dismantle(struct vma_ring *ring)
{
	ring_exempts_fini(ring);
	ring_stale_rules_fini(ring);
	ring_ports_fini(ring);
	flow_table_fini(&ring->five_tuples);
	flow_table_fini(&ring->three_tuples);
	if (ring->stats != NULL)
		vma_stats_block_free(ring->stats_home, ring->stats);
	free(ring->slots);
	free(ring);
}

static void ring_init_limits_from_nic_and_attr(struct vma_ring *ring, const struct vma_ring_attr *attr)
{
	const struct vma_nic_info *info = vma_nic_info(ring->nic);
	uint32_t batching = attr->tx_wre_batching != 0 ? attr->tx_wre_batching : 64;
	uint32_t most = ring->qp->tx_depth / 2 > 0 ? ring->qp->tx_depth / 2 : 1;

	atomic_store_explicit(&ring->flags_unable, UINT16_MAX, memory_order_relaxed);
	ring_update_offload_flags_of_nic(ring);
	ring->segs_max = ring_segs_max_now(ring);
	ring->buf_size = UINT32_C(1) << ring->qp->arena->frame_shift;
	ring_update_frame_max_from_mtu(ring);
	ring_fragments_init(&ring->fragments, ring->qp,
	                    ring->qp->rx_quota != 0 ? ring->qp->rx_quota : ring->qp->rx_depth);
	ring->reap_at = batching < most ? batching : most;
	ring->rules = (struct packet_rules){
	        .arena = ring->qp->arena,
	        .sw_csum = attr->rx_sw_csum,
	        .memory_link = info->caps & VMA_NIC_CAP_MEMORY_LINK,
	        .to_kernel = info->caps & VMA_NIC_CAP_TO_KERNEL,
	};
}

static struct vma_ring *ring_allocate(const struct vma_ring_attr *attr)
{
	size_t size = (sizeof(struct vma_ring) + 63) / 64 * 64, slots_size = TX_SLOTS * sizeof(struct tx_slot);
	struct vma_ring *ring = aligned_alloc(64, size);

	if (ring == NULL)
		return NULL;
	memset(ring, 0, size);
	ring->nic = attr->nic;
	ring->stats_home = attr->stats;
	snprintf(ring->name, sizeof(ring->name), "%s", attr->name != NULL ? attr->name : vma_nic_info(attr->nic)->name);
	drive_flag_init(&ring->rx, attr->thread_mode);
	drive_flag_init(&ring->tx, attr->thread_mode);
	command_queue_init(&ring->rx_queue);
	ring_stale_rules_init(ring);
	ring_exempts_init(ring);
	ring_ports_init(ring);
	ring->slots = aligned_alloc(64, (slots_size + 63) / 64 * 64);
	ring->stats = vma_stats_block_alloc(attr->stats, VMA_STATS_TYPE_RING, ring->name);
	if (ring->slots == NULL || ring->stats == NULL || flow_table_init(&ring->five_tuples) != 0 ||
	    flow_table_init(&ring->three_tuples) != 0) {
		ring_dismantle(ring);
		return NULL;
	}
	ring_tx_init(ring);
	return ring;
}

int vma_ring_create(const struct vma_ring_attr *attr, struct vma_ring **out)
{
	struct vma_ring *ring;
	int rc;

	if (attr->nic == NULL || (unsigned)attr->thread_mode > VMA_THREAD_YIELD)
		return -EINVAL;
	ring = ring_allocate(attr);
	if (ring == NULL)
		return -ENOMEM;
	/* An event may come before there is a cq: it finds the flags taken, and waits. */
	drive_flag_acquire(&ring->rx);
	drive_flag_acquire(&ring->tx);
	rc = create_queues(ring, attr);
	if (rc == 0)
		ring_init_limits_from_nic_and_attr(ring, attr);
	else
		atomic_store(&ring->closing, true);
	ring_tx_release_drive_flag(ring, drive_get_own_thread_id());
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	if (rc != 0) {
		vma_nic_qp_destroy(ring->qp); /* without the flags: an event that is at work waits for them */
		ring_dismantle(ring);
		return rc;
	}
	*out = ring;
	return 0;
}

/*
 * 1. closing: an event that comes from now on takes the flags, sees it and does nothing; one that is at work holds a
 *    flag and is waited for.
 * 2. With the flags: what was queued and not sent is given back; nothing is owed to NIC or completion side any more.
 * 3. The completion side goes, while its queue pair is there, and then the queue pair: no event runs after that.
 * 4. What was posted by then is run (commands own memory).
 */
void vma_ring_destroy(struct vma_ring *ring)
{
	if (ring == NULL)
		return;
	atomic_store(&ring->closing, true);
	drive_flag_acquire(&ring->rx);
	drive_flag_acquire(&ring->tx);
	vma_cq_reap_sent_bufs(ring->cq);
	ring_exempts_fini(ring); /* one may have a rule of the queue pair */
	ring_fragments_end(&ring->fragments, ring->rules.arena);
	ring_tx_fini(ring);
	drive_flag_release(&ring->tx, drive_get_own_thread_id());
	drive_flag_release(&ring->rx, drive_get_own_thread_id());
	vma_cq_destroy(ring->cq);
	vma_nic_qp_destroy(ring->qp);
	drive_flag_acquire(&ring->rx);
	ring_rx_run_queued_work_and_unlock(ring, drive_get_own_thread_id());
	ring_dismantle(ring);
}

/* ---- accessors ---- */

struct vma_nic_qp *vma_ring_qp(struct vma_ring *ring)
{
	return ring->qp;
}

struct vma_cq *vma_ring_cq(struct vma_ring *ring)
{
	return ring->cq;
}

uint32_t vma_ring_segs_max(const struct vma_ring *ring)
{
	return ring->segs_max;
}

struct vma_stats_ring *vma_ring_stats(struct vma_ring *ring)
{
	return ring->stats;
}

struct vma_nic *vma_ring_nic(struct vma_ring *ring)
{
	return ring->nic;
}

int vma_ring_fd(const struct vma_ring *ring)
{
	return vma_cq_fd(ring->cq);
}
