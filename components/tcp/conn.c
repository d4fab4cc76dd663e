/* conn.c - a connection's life: made, owned, taken through a run, ended, freed. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tcp_priv.h"
#include "lwip/port.h"
#include "rx/pingpong.h"
#include "zcopy.h"
#include "loss/sack_index.h"

/* ---- made ---- */

static bool conn_has_left_stack(const struct vma_tcp_conn *conn)
{
	return conn->prev_all == NULL;
}

/* What is to be done waits for the connection's step in the run that follows. */
void tcp_conn_schedule_work(struct vma_tcp_conn *conn, uint32_t work)
{
	conn->todo |= work;
	if (!conn_has_left_stack(conn))
		conn_enqueue_ready(conn);
}

/* The command of tcp_run_conn_work_now_or_queue. */
static void tcp_conn_schedule_posted_work(struct vma_ring_command *command)
{
	struct vma_tcp_conn *conn = (struct vma_tcp_conn *)((char *)command - offsetof(struct vma_tcp_conn, command));

	if (__builtin_expect(conn->posted_to != tcp_stack_now(conn), 0)) {
		tcp_queue_conn_command_for_ring_driver(conn, false); /* it has moved since */
		return;
	}
	tcp_conn_schedule_work(conn, atomic_exchange_explicit(&conn->work, 0, memory_order_acq_rel));
}

static void stack_add_conn_to_list(struct vma_tcp *tcp, struct vma_tcp_conn *conn)
{
	conn->next_all = tcp->all;
	conn->prev_all = &tcp->all;
	if (conn->next_all != NULL)
		conn->next_all->prev_all = &conn->next_all;
	tcp->all = conn;
}

static void stack_remove_conn_from_list(struct vma_tcp_conn *conn)
{
	*conn->prev_all = conn->next_all;
	if (conn->next_all != NULL)
		conn->next_all->prev_all = conn->prev_all;
	conn->prev_all = NULL;
}

void tcp_conn_move_to_stack(struct vma_tcp_conn *conn, struct vma_tcp *to)
{
	stack_remove_conn_from_list(conn);
	__atomic_store_n(&conn->tcp, to, __ATOMIC_RELEASE);
	stack_add_conn_to_list(to, conn);
}

static void conn_init_atomics_and_fifos(struct vma_tcp_conn *conn)
{
	atomic_init(&conn->refs, 1);
	atomic_init(&conn->state, TCP_CLOSE);
	atomic_init(&conn->urgent_at, -1);
	atomic_init(&conn->urgent_passed, -1);
	atomic_init(&conn->urgent_byte, -1);
	atomic_init(&conn->more_from, UINT64_MAX);
	conn->command.run = tcp_conn_schedule_posted_work;
	conn->memory = (struct fifo_memory){.alloc = conn->tcp->host.alloc_bytes,
	                                    .free = conn->tcp->host.free,
	                                    .used = &conn->tcp->attr.memory->used,
	                                    .put_frame = zcopy_release_frame_and_chunk};
	fifo_init(&conn->tx, &conn->memory);
	conn->tx.chunk_bytes = conn->tcp->attr.tx_buf_bytes;
	fifo_init(&conn->rx, &conn->memory);
}

struct vma_tcp_conn *tcp_conn_new(struct vma_tcp *tcp, const struct vma_flow_key *key,
                                  const struct vma_tcp_options *options)
{
	struct vma_tcp_conn *conn = tcp_alloc_zeroed(tcp, sizeof(*conn));
	const int32_t *values = (const int32_t *)options;

	if (conn == NULL)
		return NULL;
	conn->tcp = tcp;
	conn->key = *key;
	conn->flow = (struct vma_flow){.key = *key, .sink = tcp_conn_flow_sink, .owner = conn};
	for (unsigned i = 0; i < VMA_TCP_OPT_COUNT; i++)
		atomic_init(&conn->option[i], values[i]);
	conn_init_atomics_and_fifos(conn);
	conn->created_ns = tcp->now_ns;
	conn->ip_id = (uint16_t)(tcp_isn(tcp, key) >> 8);
	rtt_init(&conn->rtt);
	cc_init(&conn->cc, tcp_option(conn, VMA_TCP_OPT_CONGESTION), 536);
	recovery_init(conn);
	timers_init(conn);
	window_init(conn);
	stack_add_conn_to_list(tcp, conn);
	return conn;
}

/* ---- owned ---- */

void vma_tcp_conn_get(struct vma_tcp_conn *conn)
{
	atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
}

/* The driver frees, see tcp_run_conn_work_now_or_queue. acq_rel: all that other holders did to it comes before that. */
void vma_tcp_conn_put(struct vma_tcp_conn *conn)
{
	if (atomic_fetch_sub_explicit(&conn->refs, 1, memory_order_acq_rel) == 1)
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_UNUSED);
}

static void conn_set_owner_ops(struct vma_tcp_conn *conn, const struct vma_tcp_conn_ops *owner, void *arg)
{
	atomic_store_explicit(&conn->owner_arg, arg, memory_order_relaxed);
	atomic_store_explicit(&conn->owner, owner, memory_order_release);
}

void vma_tcp_conn_drop_owner_and_abort(struct vma_tcp_conn *conn)
{
	bool acquired;
	struct vma_tcp *tcp = tcp_conn_acquire_ring_of_stack(conn, &acquired);

	conn_set_owner_ops(conn, NULL, NULL);
	atomic_store_explicit(&conn->stats, NULL, memory_order_relaxed);
	if (!conn->is_over && !conn->closing && !zcopy_close_is_deferred(conn) && !(conn->todo & TCP_WORK_CLOSE) &&
	    !(atomic_load(&conn->work) & TCP_WORK_CLOSE))
		tcp_run_conn_work_now_or_queue(conn, TCP_WORK_ABORT);
	if (acquired)
		vma_ring_release(tcp->ring);
}

void vma_tcp_conn_set_owner_and_replay_events(struct vma_tcp_conn *conn, const struct vma_tcp_conn_ops *owner,
                                              void *arg)
{
	bool acquired;
	struct vma_tcp *tcp = tcp_conn_acquire_ring_of_stack(conn, &acquired);

	conn_set_owner_ops(conn, owner, arg);
	if (conn->past_events != 0 && owner != NULL)
		owner->event(conn, arg, conn->past_events);
	if (acquired)
		vma_ring_release(tcp->ring);
}

struct vma_tcp *vma_tcp_conn_current_stack(const struct vma_tcp_conn *conn)
{
	return tcp_stack_now(conn);
}

void vma_tcp_conn_key(const struct vma_tcp_conn *conn, struct vma_flow_key *out)
{
	*out = conn->key;
}

bool vma_tcp_conn_has_own_nic_rule(const struct vma_tcp_conn *conn)
{
	bool acquired;
	struct vma_tcp *tcp = tcp_conn_acquire_ring_of_stack(conn, &acquired);
	const bool has = conn->steered;

	if (acquired)
		vma_ring_release(tcp->ring);
	return has;
}

/* Receive flag held. */
static void conn_report_steered(struct vma_tcp_conn *conn)
{
	const struct vma_tcp_conn_ops *owner = atomic_load(&conn->owner);

	conn->steered = true;
	if (owner != NULL)
		owner->event(conn, atomic_load(&conn->owner_arg), VMA_TCP_STEERED);
}

/*
 * The internal thread may be here while another thread accepts the connection, and moves it. Of a connection that has
 * no rule yet the move makes one at the other ring. If it finds no room there, it takes back the one that was made here
 * meanwhile: the ring knows. Of one that has a rule, the rule may be on its way, and `steered` holds.
 */
int vma_tcp_conn_add_own_nic_rule(struct vma_tcp_conn *conn)
{
	int rc = vma_ring_request_nic_rule_of_flow(tcp_stack_now(conn)->ring, &conn->flow);
	struct vma_tcp *tcp;
	bool acquired;

	if (rc != 0)
		return rc;
	tcp = tcp_conn_acquire_ring_of_stack(conn, &acquired);
	if (conn->steered || vma_ring_flow_is_alone_with_nic_rule(tcp->ring, &conn->flow))
		conn_report_steered(conn);
	else
		rc = -EINVAL;
	if (acquired)
		vma_ring_release(tcp->ring);
	return rc;
}

/*
 * The first from `conn` on that has no rule of its own, held in memory; NULL: there is none. Receive flag held. One
 * that moves gets its rule there, and may not be held here: it leaves the list.
 */
static struct vma_tcp_conn *next_conn_without_rule(struct vma_tcp_conn *conn)
{
	while (conn != NULL &&
	       (conn->is_over || conn->steered || conn->moving || !conn->attached || vma_tcp_is_pending(conn)))
		conn = conn->next_all;
	if (conn != NULL)
		conn->held++;
	return conn;
}

/* The NIC is asked without the receive flag; a connection that is held stays in the list. */
void vma_tcp_steer_all_conns_to_own_rules(struct vma_tcp *tcp)
{
	struct vma_tcp_conn *conn = NULL, *before;
	bool acquired;

	do {
		before = conn;
		acquired = vma_ring_acquire(tcp->ring);
		conn = next_conn_without_rule(before != NULL ? before->next_all : tcp->all);
		if (before != NULL) {
			before->held--;
			conn_enqueue_ready(before); /* if it is over, it goes now */
		}
		if (acquired)
			vma_ring_release(tcp->ring);
		if (conn != NULL)
			vma_tcp_conn_add_own_nic_rule(conn);
	} while (conn != NULL);
}

/* ---- a run's step ---- */

void tcp_conn_apply_path(struct vma_tcp_conn *conn)
{
	struct vma_tcp_path *path = atomic_exchange_explicit(&conn->path_request, NULL, memory_order_acq_rel);

	bool lost = conn->path.len == 0;

	if (path == NULL)
		return;
	conn->path = *path;
	conn->memory.free(path);
	tcp_conn_mss_update(conn);
	if (lost && conn->pcb != NULL && conn->pcb->unacked != NULL)
		tcp_output_retransmit(conn, conn->pcb->unacked); /* it has not gone anywhere */
}

static __attribute__((cold, noinline)) void conn_do_rare_pending_work(struct vma_tcp_conn *conn, uint32_t todo)
{
	if (todo & TCP_WORK_ZCOPY)
		zcopy_apply_mode_and_inspection_changes(conn);
	if (todo & TCP_WORK_KEEPALIVE)
		keepalive_probe(conn);
}

static void conn_do_pending_work(struct vma_tcp_conn *conn)
{
	uint32_t todo = conn->todo;

	conn->todo = 0;
	if (todo & TCP_WORK_UNUSED)
		conn->is_unused = true;
	if (todo & TCP_WORK_PATH)
		tcp_conn_apply_path(conn);
	if (conn->is_over)
		return;
	if (todo & TCP_WORK_OPTIONS)
		tcp_apply_changed_options(conn);
	if (todo & TCP_WORK_ICMP)
		tcp_handle_posted_icmp_error(conn);
	if (todo & (TCP_WORK_CLOSE | TCP_WORK_ABORT | TCP_WORK_SHUT_WR | TCP_WORK_UNUSED) && !conn->is_over)
		conn_do_close_work(conn, todo);
	if (todo & TCP_WORK_WINDOW && conn->pcb != NULL)
		window_after_read(conn);
	if (todo & (TCP_WORK_KEEPALIVE | TCP_WORK_ZCOPY) && conn->pcb != NULL)
		conn_do_rare_pending_work(conn, todo);
}

void tcp_conn_drop_received_packets(struct vma_tcp_conn *conn)
{
	while (conn->burst != NULL) {
		struct vma_buf *packet = conn->burst;

		conn->burst = packet->user;
		vma_buf_put_chain(conn->tcp->arena, packet);
	}
	conn->burst_last = NULL;
}

/* A command that is queued comes first; from then on none is, see tcp_run_conn_work_now_or_queue. */
static void conn_free_if_over(struct vma_tcp_conn *conn)
{
	uint32_t none = 0;

	if (!conn->is_over || !conn->is_unused || conn->held != 0 || conn->in_ready || conn->in_retry ||
	    conn->in_small_mss_queue)
		return;
	if (!atomic_compare_exchange_strong(&conn->work, &none, TCP_WORK_FREED))
		return;
	stack_remove_conn_from_list(conn);
	conn->next_dead = conn->tcp->dead;
	conn->tcp->dead = conn;
	stack_tell_host_if_idle(conn->tcp);
}

/* Not before the last bytes are in the receive fifo and the FIN has been acknowledged, which may have to wait for
 * memory or a frame: nobody else does it for a pcb that has gone. */
static void conn_free_pcb_in_timewait(struct vma_tcp_conn *conn)
{
	struct tcp_pcb *pcb = conn->pcb;

	tcp_conn_drop_received_packets(conn); /* has been answered, if there is any */
	lwip_enter(conn->tcp, conn);
	if (pcb->refused_data != NULL)
		tcp_process_refused_data(pcb);
	if (pcb->flags & TF_ACK_NOW)
		tcp_output_ack(conn);
	lwip_leave();
	if (conn->moving)
		return; /* move.c has it looked at again */
	if (!timewait_ensure_memory(conn->tcp))
		conn_enqueue_retry(conn);
	else if (pcb->refused_data == NULL && !(pcb->flags & TF_ACK_NOW))
		timewait_begin(conn);
}

static void conn_report_events(struct vma_tcp_conn *conn)
{
	uint32_t events;

	tcp_conn_publish_state_and_events(conn);
	events = conn->events;
	conn->events = 0;
	conn_tell_owner_events(conn, events);
}

/* TIME_WAIT, and what has ended, are the step's. It is told at once: an accepted connection is its owner's from here.
 */
void tcp_conn_receive_burst(struct vma_tcp_conn *conn)
{
	if (conn->burst == NULL || conn->pcb == NULL || conn->pcb->state == TIME_WAIT)
		return;
	lwip_enter(conn->tcp, conn);
	tcp_input_burst(conn);
	lwip_leave();
	conn_report_events(conn);
}

static inline void conn_receive_and_transmit(struct vma_tcp_conn *conn)
{
	lwip_enter(conn->tcp, conn);
	if (conn->burst != NULL)
		tcp_input_burst(conn);
	if (conn->pcb != NULL && conn->pcb->state != TIME_WAIT)
		tcp_output_conn_data(conn);
	lwip_leave();
}

void tcp_conn_run_step(struct vma_tcp_conn *conn)
{
	if (conn->pcb == NULL && !conn->is_over) { /* connect is asking the NIC for its rule: nothing has been sent */
		tcp_conn_drop_received_packets(conn);
		return;
	}
	if (conn->todo == TCP_WORK_SEND && conn->burst == NULL && conn->pcb != NULL && tcp_output_sole_message(conn)) {
		conn->todo = 0;
		conn_report_events(conn);
		return;
	}
	if (conn->todo != 0)
		conn_do_pending_work(conn);
	if (conn->pcb != NULL) {
		/* Nothing ends by it: when it is all of the step, there is nothing more to see to. */
		if (conn->burst != NULL && tcp_pingpong_input(conn) && tcp_pingpong_finish_if_nothing_to_send(conn)) {
			tcp_pingpong_publish(conn);
			return;
		}
		conn_receive_and_transmit(conn);
	}
	if (conn->pcb != NULL && conn->pcb->state == TIME_WAIT)
		conn_free_pcb_in_timewait(conn);
	conn_report_events(conn);
	conn_free_if_over(conn);
}

/* ---- ended ---- */

void tcp_conn_remove_flow_and_drop_burst(struct vma_tcp_conn *conn)
{
	tcp_detach_flow_now_or_later(conn->tcp, &conn->flow);
	conn->attached = false;
	tcp_conn_drop_received_packets(conn);
}

/*
 * The pcb has been freed, or passed on to TIME_WAIT, which has a flow of its own by then. What the application is told
 * is told by the step that is under way, or the next one.
 */
void conn_clean_up_after_pcb_freed(struct vma_tcp_conn *conn, int error)
{
	if (conn->is_over)
		return;
	assert(conn->pcb == NULL);
	conn->is_over = true;
	if (conn->listener != NULL || !tcp_pending_was_adopted(conn)) /* else accept is to see that */
		tcp_pending_withdraw(conn);
	recovery_reset_segment_state(conn);
	timers_stop_all(conn);
	tcp_conn_drop_received_packets(conn);
	if (conn->listener != NULL)
		tcp_half_open_end(conn);
	if (conn->is_orphan)
		conn->tcp->orphans--;
	if (conn->attached && !conn->moving) {
		if (!conn->exported)
			tcp_note_ended_conn(conn->tcp, &conn->key);
		tcp_conn_remove_flow_and_drop_burst(conn);
	}
	conn_set_busy_and_count(conn, false);
	conn_set_ended(conn, error);
	conn_enqueue_ready(conn);
}

/* ---- the stack ends ---- */

void tcp_conns_abandon_at_destroy(struct vma_tcp *tcp)
{
	for (struct vma_tcp_conn *conn = tcp->all; conn != NULL; conn = conn->next_all) {
		conn_set_owner_ops(conn, NULL, NULL);
		if (!conn->is_over)
			conn_fail_with_error(conn, 0, false);
	}
}

void tcp_conns_free(struct vma_tcp *tcp)
{
	while (tcp->all != NULL) {
		struct vma_tcp_conn *conn = tcp->all;

		stack_remove_conn_from_list(conn);
		vma_tcp_conn_free(conn);
	}
}

/* ---- freed ---- */

/* The stack may be gone. */
void vma_tcp_conn_free(struct vma_tcp_conn *conn)
{
	void (*release)(void *memory) = conn->memory.free;
	struct vma_tcp_path *path = atomic_load(&conn->path_request);

	if (path != NULL)
		release(path);
	sack_index_free(conn);
	fifo_fini(&conn->tx);
	fifo_fini(&conn->rx);
	zcopy_fini(conn);
	release(tcp_allocated_base(conn));
}
