/*
 * stranger.c - a segment that no connection here takes, while another process or the kernel may have the connection.
 *
 * A RST would cut a connection that lives elsewhere. Silence leaves a peer alone that has lost its connection. If a
 * peer sends data, it sends it again, and is answered then. But the peer may never send more than an ACK without data:
 * the answer to a RST whose number was not exact (RFC 5961 3.2). So the peer is asked when the time of silence is over:
 *
 *   ACK ──> nothing ──silence, PROBE_DELAY_NS at least──> a keep-alive probe (RFC 1122 4.2.3.6) ──> ACK ──> RST
 *                                                                                      └──> its stack, if it has one
 *
 * The probe's number lies just below the peer's window. So every peer that has the connection answers by an ACK, and
 * changes nothing. If the connection lives elsewhere by then, the answer goes there: to a rule of its own, or to the
 * kernel. Only an answer that comes here is reset.
 *
 * Linux sends one such answer in 500 ms for each connection (tcp_invalid_ratelimit), and its first was the ACK that
 * came here: hence PROBE_DELAY_NS.
 *
 * Threads: the driver.
 * Memory: TCP_STRANGERS places, made when the first is needed. If another takes a stranger's place, the stranger
 * counts as a new one.
 */
#include <string.h>

#include <vma/packet.h>

#include "rx/segment.h"

#define NO_RESET_AFTER_CHANGE_NS                                                                                       \
	(2 * TCP_NS_PER_S) /* after a change of members, what is not known here may be known to another */
#define NO_RESET_SHARED_NS                                                                                             \
	(150 * TCP_NS_PER_MS) /* so late a member may hear of a change; less than a peer's first timeout */
#define STRANGER_EXPIRE_NS (5 * TCP_NS_PER_S) /* between two segments of a peer who sends again and again */
#define PROBE_DELAY_NS (600 * TCP_NS_PER_MS)
#define PROBES_MAX 2 /* the first, or its answer, may be lost */

struct tcp_stranger {
	struct vma_flow_key key;
	uint64_t first_ns, last_ns, no_reset_until_ns;
	uint64_t probe_due_ns; /* UINT64_MAX: not */
	uint32_t probes;
	uint32_t l3_off;
	uint8_t lower[VMA_PKT_ETH_HLEN + VMA_PKT_VLAN_HLEN +
	              VMA_PKT_IP4_HLEN]; /* of its ACK, for the frame of the probe */
	uint8_t ports[4];
	struct tcp_reply probe;
};

/* ---- who was here ---- */

static uint32_t stranger_hash_of(const struct vma_flow_key *key)
{
	uint32_t hash = 0, word;

	for (size_t i = 0; i < sizeof(*key); i += sizeof(word)) {
		memcpy(&word, (const uint8_t *)key + i, sizeof(word));
		hash = (hash ^ word ^ hash >> 15) * 0x9e3779b1U;
	}
	return hash;
}

static struct tcp_stranger *stranger_find_or_create(struct vma_tcp *tcp, const struct vma_rx_info *info)
{
	const struct vma_flow_key key = tcp_flow_key_of_packet(info);
	struct tcp_stranger *stranger;

	if (tcp->strangers == NULL)
		tcp->strangers = tcp_alloc_zeroed(tcp, TCP_STRANGERS * sizeof(*tcp->strangers));
	if (tcp->strangers == NULL)
		return NULL;
	stranger = &tcp->strangers[stranger_hash_of(&key) % TCP_STRANGERS];
	if (memcmp(&stranger->key, &key, sizeof(key)) != 0 || tcp->now_ns - stranger->last_ns > STRANGER_EXPIRE_NS)
		*stranger = (struct tcp_stranger){.key = key, .first_ns = tcp->now_ns, .probe_due_ns = UINT64_MAX};
	stranger->last_ns = tcp->now_ns;
	return stranger;
}

/* ---- for how long nothing is answered ---- */

/*
 * A process that dies has its connections' segments come here at once, and the owner of the device hears of its end a
 * moment later: so the first segment of a stranger is never answered while others serve the listener, too. And where
 * workers come and go all the time some change is always recent, and a connection that is nobody's would never hear so.
 *
 * While cookies are out: a flood has taken the segment that brings one back, and what comes behind it is a stranger's
 * until that is sent again.
 */
static uint64_t stranger_no_rst_period_ns(const struct vma_tcp *tcp, bool cookies)
{
	const struct vma_nic_accept_page *member = tcp->member;

	if (member != NULL &&
	    tcp->now_ns < atomic_load_explicit(&member->changed_ns, memory_order_relaxed) + NO_RESET_AFTER_CHANGE_NS)
		return NO_RESET_AFTER_CHANGE_NS;
	return cookies || tcp_pending_is_shared(tcp) ? NO_RESET_SHARED_NS : 0;
}

/* ---- the question ---- */

static void strangers_set_timer(struct vma_tcp *tcp, uint64_t due_ns)
{
	struct tcp_timer_node *timer = &tcp->stranger_timer;

	if (!wheel_is_set(timer) || timer->due_ns > due_ns)
		wheel_set(&tcp->wheel, timer, due_ns);
}

static void stranger_schedule_probe(struct vma_tcp *tcp, struct tcp_stranger *stranger, struct vma_buf *packet)
{
	const uint8_t *frame = (const uint8_t *)vma_buf_data(tcp->arena, packet);
	const uint32_t lower_len = packet->l3_off + VMA_PKT_IP4_HLEN;
	struct segment s;

	segment_parse(&s, tcp->arena, packet);
	if (stranger->probe_due_ns != UINT64_MAX || stranger->probes != 0 || s.len != 0 ||
	    s.flags & (TCP_FIN | TCP_SYN) || lower_len > sizeof(stranger->lower))
		return;
	stranger->l3_off = packet->l3_off;
	memcpy(stranger->lower, frame, lower_len);
	memcpy(stranger->ports, s.header, sizeof(stranger->ports));
	stranger->probe = (struct tcp_reply){.seq = s.ack - 1,
	                                     .ack = s.seq,
	                                     .window = s.window,
	                                     .flags = TCP_ACK,
	                                     .has_ts = s.has_ts,
	                                     .ts_val = s.ts_ecr,
	                                     .ts_ecr = s.ts_val};
	stranger->probe_due_ns = stranger->first_ns + PROBE_DELAY_NS;
	strangers_set_timer(tcp, stranger->probe_due_ns);
}

static void stranger_probe(struct vma_tcp *tcp, struct tcp_stranger *stranger)
{
	const uint64_t no_reset_until_ns = stranger->no_reset_until_ns;

	stranger->probe_due_ns = UINT64_MAX;
	if (vma_ring_find_first_flow_of_key(tcp->ring, &stranger->key) != NULL)
		return;
	if (tcp->now_ns < no_reset_until_ns) {
		stranger->probe_due_ns = no_reset_until_ns;
		return;
	}
	stranger->last_ns = tcp->now_ns; /* the answer is a second segment of the same stranger */
	tcp_reply_to_headers(tcp, stranger->lower, stranger->l3_off, stranger->ports, &stranger->probe);
	if (++stranger->probes < PROBES_MAX)
		stranger->probe_due_ns = tcp->now_ns + PROBE_DELAY_NS;
}

void tcp_strangers_probe(struct vma_tcp *tcp)
{
	uint64_t next = UINT64_MAX;

	for (unsigned i = 0; i < TCP_STRANGERS; i++) {
		struct tcp_stranger *stranger = &tcp->strangers[i];

		if (stranger->first_ns == 0)
			continue;
		if (stranger->probe_due_ns <= tcp->now_ns)
			stranger_probe(tcp, stranger);
		if (stranger->probe_due_ns < next)
			next = stranger->probe_due_ns;
	}
	if (next != UINT64_MAX)
		strangers_set_timer(tcp, next);
}

bool tcp_stranger_gets_no_reset(struct vma_tcp *tcp, struct vma_buf *packet, const struct vma_rx_info *info,
                                bool cookies)
{
	const uint64_t exported_until_ns = tcp_exported_conn_remembered_until_ns(tcp, info),
	               quiet = stranger_no_rst_period_ns(tcp, cookies);
	struct tcp_stranger *stranger;

	if (exported_until_ns == 0 && quiet == 0)
		return false;
	stranger = stranger_find_or_create(tcp, info);
	if (stranger == NULL) /* no memory: the peer may have to wait for its own timers */
		return true;
	stranger->no_reset_until_ns = stranger->first_ns + quiet;
	if (stranger->no_reset_until_ns < exported_until_ns)
		stranger->no_reset_until_ns = exported_until_ns;
	if (tcp->now_ns >= stranger->no_reset_until_ns) {
		stranger->probe_due_ns = UINT64_MAX;
		return false;
	}
	stranger_schedule_probe(tcp, stranger, packet);
	return true;
}
