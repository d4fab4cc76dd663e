/*
 * timewait.c - the rest of a connection in TIME_WAIT: its names, its numbers, 60 seconds; two cache lines.
 *
 * A record has a flow of its own under the connection's key. So late segments come here, and a caller that wants the
 * 4-tuple finds it (vma_ring_find_first_flow_of_key). It answers as the kernel's tcp_timewait_state_process does.
 * Records lie in blocks that are never given back before the stack ends, and in a list by the time at which they end.
 * All of a list live equally long, so one timer, of the first, is enough.
 *
 * There are two lists. The NIC may give the kernel packets that are not known here (VMA_NIC_CAP_TO_KERNEL). Then a
 * connection that began here has a rule of the NIC for itself alone. The NIC has no block of ports in its place. So its
 * record lives for a second only. The kernel answers later segments by RST. Such a segment is a FIN that is repeated
 * still, so the RST harms no connection. The clock in initial sequence numbers keeps the next connection of the same
 * names apart from it.
 */
#include <errno.h>
#include <string.h>

#include "rx/segment.h"

#define TIMEWAIT_MS 60000
#define TIMEWAIT_BRIEF_MS 1000
#define REUSE_AFTER_MS 1000 /* the kernel's tcp_tw_reuse_delay */
#define REUSE_LAST_MS 250   /* for who has no other port left: 28,232 ports then last for 110,000 connects a second */
#define BLOCK_BITS 8
#define BLOCK_RECORDS (1u << BLOCK_BITS)
#define EXPIRE_AT_ONCE 16
#define NONE UINT32_MAX
#define HAS_TS (UINT32_C(1) << 31)
#define SHIFTED_TS (UINT32_C(1) << 30)
#define BRIEF (UINT32_C(1) << 29)
#define ISN_STEP (65535 + 2)

struct record {
	struct vma_flow flow; /* first */
	uint32_t next, prev;
	uint32_t snd_nxt, rcv_nxt, ts_recent;
	uint32_t window; /* as it was announced; HAS_TS; SHIFTED_TS; BRIEF */
	uint32_t end_ms;
	uint32_t number;
};
_Static_assert(sizeof(struct record) <= 128, "two cache lines");

struct timewait_record_list {
	struct tcp_timer_node timer; /* of the first record */
	uint32_t first, last;
	uint32_t lifetime_ms;
	uint32_t port_search_at; /* where the next look for a port goes on; NONE: at the first */
};

#define LISTS 2
struct tcp_timewait_table {
	struct vma_tcp *tcp;
	struct timewait_record_list list[LISTS]; /* of 60 s, and brief ones */
	struct record **blocks;
	uint32_t blocks_count;
	uint32_t free; /* the number of a record */
	uint32_t count;
};

static struct record *timewait_record_at(const struct tcp_timewait_table *tw, uint32_t number)
{
	return &tw->blocks[number >> BLOCK_BITS][number & (BLOCK_RECORDS - 1)];
}

static uint32_t timewait_now_ms(const struct vma_tcp *tcp)
{
	return (uint32_t)(tcp->now_ns / TCP_NS_PER_MS);
}

/* ---- the lists ---- */

static struct timewait_record_list *timewait_list_of_record(struct tcp_timewait_table *tw, const struct record *record)
{
	return &tw->list[(record->window & BRIEF) != 0];
}

static void timewait_set_timer(struct tcp_timewait_table *tw, struct timewait_record_list *list)
{
	struct vma_tcp *tcp = tw->tcp;
	int32_t left;

	if (list->first == NONE) {
		wheel_stop(&tcp->wheel, &list->timer);
		return;
	}
	if (wheel_is_set(&list->timer))
		return; /* for one that has ended, or moved: it will be set again then */
	left = (int32_t)(timewait_record_at(tw, list->first)->end_ms - timewait_now_ms(tcp));
	wheel_set(&tcp->wheel, &list->timer, tcp->now_ns + (left > 0 ? (uint32_t)left : 0) * TCP_NS_PER_MS);
}

static void timewait_append(struct tcp_timewait_table *tw, struct record *record)
{
	struct timewait_record_list *list = timewait_list_of_record(tw, record);

	record->end_ms = timewait_now_ms(tw->tcp) + list->lifetime_ms;
	record->next = NONE;
	record->prev = list->last;
	if (list->last != NONE)
		timewait_record_at(tw, list->last)->next = record->number;
	else
		list->first = record->number;
	list->last = record->number;
	timewait_set_timer(tw, list);
}

static void timewait_unlink_record(struct tcp_timewait_table *tw, struct record *record)
{
	struct timewait_record_list *list = timewait_list_of_record(tw, record);

	if (list->port_search_at == record->number)
		list->port_search_at = record->next;
	if (record->prev != NONE)
		timewait_record_at(tw, record->prev)->next = record->next;
	else
		list->first = record->next;
	if (record->next != NONE)
		timewait_record_at(tw, record->next)->prev = record->prev;
	else
		list->last = record->prev;
}

static void timewait_restart_period(struct tcp_timewait_table *tw, struct record *record)
{
	timewait_unlink_record(tw, record);
	timewait_append(tw, record);
}

/* ---- records ---- */

static int timewait_add_record_block(struct tcp_timewait_table *tw)
{
	struct vma_tcp *tcp = tw->tcp;
	struct record **blocks = tcp_alloc_zeroed(tcp, (tw->blocks_count + 1) * sizeof(*blocks));
	struct record *block = blocks != NULL ? tcp_alloc_zeroed(tcp, BLOCK_RECORDS * sizeof(*block)) : NULL;

	if (block == NULL) {
		tcp_free_memory(tcp, blocks);
		return -ENOMEM;
	}
	for (uint32_t i = BLOCK_RECORDS; i-- > 0;) {
		block[i].number = tw->blocks_count * BLOCK_RECORDS + i;
		block[i].next = tw->free;
		tw->free = block[i].number;
	}
	if (tw->blocks_count != 0)
		memcpy(blocks, tw->blocks, tw->blocks_count * sizeof(*blocks));
	tcp_free_memory(tcp, tw->blocks);
	blocks[tw->blocks_count++] = block;
	tw->blocks = blocks;
	return 0;
}

bool timewait_ensure_memory(struct vma_tcp *tcp)
{
	struct tcp_timewait_table *tw = tcp->timewait;

	return tw->count >= tcp->attr.time_wait_max || tw->free != NONE || timewait_add_record_block(tw) == 0;
}

/* NULL: no memory, or too many. */
static struct record *timewait_alloc_record(struct tcp_timewait_table *tw)
{
	struct record *record;

	if (tw->count >= tw->tcp->attr.time_wait_max || (tw->free == NONE && timewait_add_record_block(tw) != 0))
		return NULL;
	record = timewait_record_at(tw, tw->free);
	tw->free = record->next;
	tw->count++;
	return record;
}

static void timewait_free_record(struct tcp_timewait_table *tw, struct record *record)
{
	if (record->flow.ring != NULL)
		tcp_detach_flow_now_or_later(tw->tcp, &record->flow);
	record->next = tw->free;
	tw->free = record->number;
	tw->count--;
	stack_tell_host_if_idle(tw->tcp);
}

static void timewait_expire_record(struct tcp_timewait_table *tw, struct record *record)
{
	struct timewait_record_list *list = timewait_list_of_record(tw, record);

	timewait_unlink_record(tw, record);
	timewait_free_record(tw, record);
	timewait_set_timer(tw, list);
}

/* ---- a segment comes ---- */

/*
 * A connection that came from another stack had time stamps of that one's clock (SHIFTED_TS), for which a record has no
 * room. A wrong one would be discarded by the peer (PAWS), and one is not demanded of an ACK.
 */
static void timewait_send_ack(struct vma_tcp *tcp, const struct record *record, struct vma_buf *packet)
{
	struct tcp_reply reply = {.seq = record->snd_nxt,
	                          .ack = record->rcv_nxt,
	                          .window = (uint16_t)record->window,
	                          .flags = TCP_ACK,
	                          .has_ts = (record->window & (HAS_TS | SHIFTED_TS)) == HAS_TS,
	                          .ts_val = port_clock_ms(tcp),
	                          .ts_ecr = record->ts_recent};

	tcp_reply(tcp, packet, &reply);
}

static bool timewait_paws_rejects_segment(const struct record *record, const struct segment *s)
{
	return record->window & HAS_TS && s->has_ts && (int32_t)(record->ts_recent - s->ts_val) > 0;
}

/* RFC 6191 2, RFC 1122 4.2.2.13: newer by number or by time stamp. */
static bool timewait_may_reopen(const struct record *record, const struct segment *s)
{
	if ((s->flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_SYN || timewait_paws_rejects_segment(record, s))
		return false;
	return TCP_SEQ_GT(s->seq, record->rcv_nxt) ||
	       (record->window & HAS_TS && s->has_ts && (int32_t)(record->ts_recent - s->ts_val) < 0);
}

/* Who listens where the record's connection was; NULL: nobody. */
static struct vma_flow *timewait_listener_of(const struct tcp_timewait_table *tw, const struct record *record)
{
	struct vma_flow_key key = record->flow.key;
	struct vma_flow *listener;

	key.peer_port_be = 0;
	memset(key.peer, 0, sizeof(key.peer));
	listener = vma_ring_find_first_flow_of_key(tw->tcp->ring, &key);
	return listener != NULL && listener->sink == tcp_listener_sink ? listener : NULL;
}

/*
 * A SYN that is answered by a cookie leaves nothing behind, so the record stays where it is: with it the NIC's rule
 * would go, and the owner of the device would reset what comes next. It makes way for the ACK that brings the cookie
 * back.
 */
static bool timewait_is_evictable(const struct record *record, const struct vma_flow *listener, const struct segment *s)
{
	if (s->flags & TCP_SYN)
		return !tcp_listener_sends_cookies(listener);
	return TCP_SEQ_GT(s->seq, record->rcv_nxt) && tcp_listener_packet_has_valid_syn_cookie(listener, s->packet);
}

/* The old connection makes way for a new one, if anybody listens. True: the packet has been taken. */
static bool timewait_reopen(struct tcp_timewait_table *tw, struct record *record, const struct segment *s,
                            const struct vma_rx_info *info, bool *done)
{
	struct vma_flow *listener = timewait_listener_of(tw, record);
	struct vma_tcp *tcp = tw->tcp;
	uint32_t isn = record->snd_nxt + ISN_STEP;
	bool taken;

	*done = listener != NULL;
	if (!*done)
		return false;
	if (timewait_is_evictable(record, listener, s)) {
		timewait_expire_record(tw, record);
		if (s->flags & TCP_SYN)
			tcp->isn_above = isn != 0 ? isn : 1;
	} else if (!(s->flags & TCP_SYN)) {
		*done = false;
		return false;
	}
	taken = tcp_listener_sink(listener, s->packet, info);
	tcp->isn_above = 0;
	return taken;
}

static void timewait_handle_segment(struct tcp_timewait_table *tw, struct record *record, const struct segment *s)
{
	bool old = timewait_paws_rejects_segment(record, s);

	if (!old && s->seq == record->rcv_nxt && (s->seq == s->end || s->flags & TCP_RST)) {
		if (s->flags & TCP_RST) {
			timewait_expire_record(tw, record);
			return;
		}
		if (s->has_ts)
			record->ts_recent = s->ts_val;
		timewait_restart_period(tw, record);
		return;
	}
	if (s->flags & TCP_RST)
		return;
	if (old || s->flags & TCP_ACK)
		timewait_restart_period(tw, record);
	timewait_send_ack(tw->tcp, record, s->packet);
}

static bool timewait_receive_packet(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info)
{
	struct record *record = (struct record *)flow;
	struct tcp_timewait_table *tw = flow->owner;
	struct segment s;
	bool reopened = false, taken;

	tcp_update_now(tw->tcp);
	segment_parse(&s, tw->tcp->arena, packet);
	if (!s.is_plain)
		segment_options_parse(&s);
	if (timewait_may_reopen(record, &s) || (s.flags & (TCP_SYN | TCP_RST | TCP_FIN | TCP_ACK)) == TCP_ACK) {
		taken = timewait_reopen(tw, record, &s, info, &reopened);
		if (reopened)
			return taken;
	}
	timewait_handle_segment(tw, record, &s);
	vma_buf_put_chain(tw->tcp->arena, packet);
	return true;
}

/* ---- in, and out again ---- */

static void timewait_record_fill_from_conn(struct tcp_timewait_table *tw, struct record *record,
                                           const struct vma_tcp_conn *conn)
{
	const struct tcp_pcb *pcb = conn->pcb;
	uint32_t window = pcb->rcv_wnd >> pcb->rcv_scale;

	record->flow = (struct vma_flow){
	        .key = conn->key, .flags = VMA_FLOW_RING_ONLY, .sink = timewait_receive_packet, .owner = tw};
	record->snd_nxt = pcb->snd_nxt;
	record->rcv_nxt = pcb->rcv_nxt;
	record->ts_recent = pcb->ts_recent;
	record->window = (window < 65535 ? window : 65535) | (pcb->flags & TF_TIMESTAMP ? HAS_TS : 0) |
	                 (conn->clock_shift_ms != 0 ? SHIFTED_TS : 0) |
	                 (!conn->passive && conn->tcp->nic->caps & VMA_NIC_CAP_TO_KERNEL ? BRIEF : 0);
}

/*
 * The record's flow joins the connection's before that goes, so that the NIC's rule, if there is one, stays.
 */
void timewait_begin(struct vma_tcp_conn *conn)
{
	struct tcp_timewait_table *tw = conn->tcp->timewait;
	struct record *record = timewait_alloc_record(tw);

	if (record != NULL) {
		timewait_record_fill_from_conn(tw, record, conn);
		if (vma_ring_attach_flow(conn->tcp->ring, &record->flow) == 0) {
			timewait_append(tw, record);
			TCP_COUNT(conn->tcp, time_waits, 1);
		} else {
			timewait_free_record(tw, record);
		}
	}
	lwip_enter(conn->tcp, conn);
	conn->pcb->errf = NULL;
	tcp_abandon(conn->pcb, 0);
	lwip_leave();
	conn_clean_up_after_pcb_freed(conn, 0);
}

bool timewait_evict(struct vma_tcp *tcp, struct vma_flow *flow)
{
	if (flow->sink != timewait_receive_packet)
		return false;
	timewait_expire_record(tcp->timewait, (struct record *)flow);
	return true;
}

static bool timewait_record_is_older_than_ms(struct tcp_timewait_table *tw, const struct record *record, int32_t ms)
{
	return (int32_t)(timewait_now_ms(tw->tcp) -
	                 (record->end_ms - timewait_list_of_record(tw, record)->lifetime_ms)) > ms;
}

bool timewait_end_if_reusable(struct vma_tcp *tcp, const struct vma_flow_key *key, enum timewait_reuse_rule use,
                              uint32_t *isn_above)
{
	struct tcp_timewait_table *tw = tcp->timewait;
	struct vma_flow *flow = vma_ring_find_first_flow_of_key(tcp->ring, key);
	struct record *record = (struct record *)flow;

	if (flow == NULL || flow->sink != timewait_receive_packet)
		return flow == NULL;
	if (use != TIMEWAIT_USE_LAST && !(record->window & HAS_TS))
		return false;
	if (use != TIMEWAIT_USE_BOUND &&
	    !timewait_record_is_older_than_ms(tw, record, use == TIMEWAIT_USE_LAST ? REUSE_LAST_MS : REUSE_AFTER_MS))
		return false;
	*isn_above = record->snd_nxt + ISN_STEP;
	*isn_above = *isn_above != 0 ? *isn_above : 1;
	timewait_expire_record(tw, record);
	return true;
}

#define PORT_SEARCH_MAX 4096

/*
 * Goes on where the last look ended, and from the first when there is none behind: those of other services, which may
 * be thousands, are not passed by each connection again.
 */
static uint16_t oldest_port_in(struct tcp_timewait_table *tw, struct timewait_record_list *list,
                               const struct vma_flow_key *key)
{
	struct vma_flow_key wanted = *key;
	bool from_first = list->port_search_at == NONE;

	for (unsigned i = 0; i < PORT_SEARCH_MAX; i++) {
		const uint32_t at = list->port_search_at != NONE ? list->port_search_at : list->first;
		const struct record *record = at != NONE ? timewait_record_at(tw, at) : NULL;

		if (record == NULL || !timewait_record_is_older_than_ms(tw, record, REUSE_LAST_MS)) {
			list->port_search_at = NONE;
			if (from_first)
				return 0;
			from_first = true;
			continue;
		}
		list->port_search_at = at;
		wanted.local_port_be = record->flow.key.local_port_be;
		if (memcmp(&wanted, &record->flow.key, sizeof(wanted)) == 0)
			return wanted.local_port_be;
		list->port_search_at = record->next;
	}
	return 0;
}

uint16_t timewait_oldest_port(struct vma_tcp *tcp, const struct vma_flow_key *key)
{
	struct tcp_timewait_table *tw = tcp->timewait;
	uint16_t port_be = 0;

	for (unsigned i = 0; port_be == 0 && i < LISTS; i++)
		port_be = oldest_port_in(tw, &tw->list[i], key);
	return port_be;
}

/* The kernel lets a closed connection wait for the peer's FIN as it does in TIME_WAIT. */
bool conn_end_for_tuple_reuse(struct vma_tcp_conn *conn, uint32_t *isn_above)
{
	if (conn->pcb == NULL || !conn->is_orphan || conn->pcb->state != FIN_WAIT_2 ||
	    !(conn->pcb->flags & TF_TIMESTAMP))
		return false;
	*isn_above = conn->pcb->snd_nxt + ISN_STEP;
	*isn_above = *isn_above != 0 ? *isn_above : 1;
	conn_fail_with_error(conn, 0, false);
	return true;
}

/* Those of connections that ended together end in many runs: the NIC's rule of each may take a system call or an
 * answer of vmad to take back, and packets are to go on meanwhile. */
static void timewait_list_expire(struct tcp_timewait_table *tw, struct timewait_record_list *list)
{
	for (unsigned i = 0; i < EXPIRE_AT_ONCE && list->first != NONE; i++) {
		struct record *record = timewait_record_at(tw, list->first);

		if ((int32_t)(record->end_ms - timewait_now_ms(tw->tcp)) > 0)
			break;
		timewait_expire_record(tw, record);
	}
	timewait_set_timer(tw, list);
}

void timewait_expire(struct vma_tcp *tcp)
{
	for (unsigned i = 0; i < LISTS; i++)
		timewait_list_expire(tcp->timewait, &tcp->timewait->list[i]);
}

/* ---- life ---- */

int timewait_init(struct vma_tcp *tcp)
{
	struct tcp_timewait_table *tw = tcp_alloc_zeroed(tcp, sizeof(*tw));

	if (tw == NULL)
		return -ENOMEM;
	tw->tcp = tcp;
	tw->free = NONE;
	for (unsigned i = 0; i < LISTS; i++)
		tw->list[i] = (struct timewait_record_list){.timer = {.kind = TCP_TIMER_TIMEWAIT},
		                                            .first = NONE,
		                                            .last = NONE,
		                                            .lifetime_ms = i == 0 ? TIMEWAIT_MS : TIMEWAIT_BRIEF_MS,
		                                            .port_search_at = NONE};
	tcp->timewait = tw;
	return 0;
}

void timewait_end_some(struct vma_tcp *tcp, uint32_t most)
{
	struct tcp_timewait_table *tw = tcp->timewait;

	for (unsigned i = 0; i < LISTS; i++)
		for (; most > 0 && tw->list[i].first != NONE; most--)
			timewait_expire_record(tw, timewait_record_at(tw, tw->list[i].first));
}

void timewait_fini(struct vma_tcp *tcp)
{
	struct tcp_timewait_table *tw = tcp->timewait;

	timewait_end_some(tcp, UINT32_MAX);
	for (uint32_t i = 0; i < tw->blocks_count; i++)
		tcp_free_memory(tcp, tw->blocks[i]);
	tcp_free_memory(tcp, tw->blocks);
	tcp_free_memory(tcp, tw);
	tcp->timewait = NULL;
}

static const struct record *timewait_first_record(const struct tcp_timewait_table *tw)
{
	for (unsigned i = 0; i < LISTS; i++)
		if (tw->list[i].first != NONE)
			return timewait_record_at(tw, tw->list[i].first);
	return NULL;
}

static const struct record *timewait_next_record(const struct tcp_timewait_table *tw, const struct record *record)
{
	uint32_t at = record->next;

	if (at == NONE && !(record->window & BRIEF))
		at = tw->list[LISTS - 1].first;
	return at != NONE ? timewait_record_at(tw, at) : NULL;
}

bool timewait_has_port(const struct vma_tcp *tcp, const uint8_t *local, uint16_t port_be)
{
	const struct tcp_timewait_table *tw = tcp->timewait;

	for (const struct record *record = timewait_first_record(tw); record != NULL;
	     record = timewait_next_record(tw, record)) {
		if (record->flow.key.local_port_be == port_be &&
		    (local == NULL || memcmp(record->flow.key.local, local, 4) == 0))
			return true;
	}
	return false;
}

uint32_t timewait_count(const struct vma_tcp *tcp)
{
	return tcp->timewait->count;
}

bool timewait_for_each_latest(const struct vma_tcp *tcp, uint32_t most,
                              bool (*see)(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt,
                                          void *arg),
                              void *arg)
{
	const struct tcp_timewait_table *tw = tcp->timewait;
	const struct record *record;

	for (unsigned i = 0; i < LISTS; i++) {
		for (uint32_t at = tw->list[i].last; at != NONE && most > 0; at = record->prev, most--) {
			record = timewait_record_at(tw, at);
			if (see(&record->flow.key, record->snd_nxt, record->rcv_nxt, arg))
				return true;
		}
	}
	return false;
}

void timewait_for_each(const struct vma_tcp *tcp,
                       void (*see)(const struct vma_flow_key *key, uint32_t snd_nxt, uint32_t rcv_nxt, void *arg),
                       void *arg)
{
	const struct tcp_timewait_table *tw = tcp->timewait;

	for (const struct record *record = timewait_first_record(tw); record != NULL;
	     record = timewait_next_record(tw, record))
		see(&record->flow.key, record->snd_nxt, record->rcv_nxt, arg);
}
