/*
 * answers - a minisock's answer to a segment. RFC 9293, 3.10.7.1 applies to connections that were cut. For those that
 * have ended on our side 3.10.7.4 and RFC 1122, 4.2.2.13 apply.
 *
 * A minisock of a connection that has ended knows both next sequence numbers, and nothing else: no window, no time
 * stamps. Time stamps come from the segment itself. Its own value is echoed, and ours is the value that it echoes,
 * which the peer has seen already. A pure ACK is answered only if it asks for an answer (keep alive), so two minisocks
 * cannot keep each other talking. The checksum has not been looked at. A segment that was changed on its way gets an
 * answer that does not fit, which the peer ignores.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <vma/log.h>

#include "owner.h"
#include "../xdp/flow.h"

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define MS 1000000ull

/* A flood of segments is not answered by a flood. */
#define TOKENS_PER_MS 100
#define TOKENS_MAX 1000

static bool minisock_reply_rate_permits(struct owner_minisocks *minisocks, uint64_t now)
{
	const uint64_t ms = (now - minisocks->tokens_ns) / MS;

	if (ms >= TOKENS_MAX / TOKENS_PER_MS)
		minisocks->tokens = TOKENS_MAX;
	else
		minisocks->tokens += (uint32_t)ms * TOKENS_PER_MS;
	if (minisocks->tokens > TOKENS_MAX)
		minisocks->tokens = TOKENS_MAX;
	minisocks->tokens_ns += ms * MS;
	if (minisocks->tokens == 0)
		return false;
	minisocks->tokens--;
	return true;
}

static bool minisocks_open_raw_socket_once(struct owner_minisocks *minisocks)
{
	int fd;

	if (minisocks->is_open)
		return true;
	fd = owner_open_raw_ip_socket();
	if (fd < 0) {
		vma_log_once(VMA_LOG_WARN, "%s: peers of ended processes are not answered: no raw socket: %s",
		             minisocks->name, strerrordesc_np(-fd));
		return false;
	}
	minisocks->fd = fd;
	minisocks->is_open = true;
	return true;
}

/* One that cannot be sent is lost, as on the way: the peer says it again. */
static void minisock_reply(struct owner_minisocks *minisocks, const struct vma_flow_key *key,
                           const struct owner_tcp_segment *segment, uint64_t now)
{
	if (minisock_reply_rate_permits(minisocks, now) && minisocks_open_raw_socket_once(minisocks))
		owner_send_raw_segment(minisocks->fd, minisocks->ifindex, key, segment);
}

static struct vma_flow_key minisock_segment_key(const struct xdp_minisock_segment *segment)
{
	struct vma_flow_key key = {.family = AF_INET,
	                           .proto = segment->key.proto,
	                           .vlan = segment->key.vlan,
	                           .local_port_be = segment->key.local_port,
	                           .peer_port_be = segment->key.peer_port};

	memcpy(key.local, &segment->key.local, sizeof(segment->key.local));
	memcpy(key.peer, &segment->key.peer, sizeof(segment->key.peer));
	return key;
}

/* ---- RST ---- */

/* What a peer had on its way when its connection was cut: the first RST is enough, and another one after a
 * millisecond, should that be lost. */
static bool minisock_rst_was_sent_recently_or_note(struct owner_minisock *minisock,
                                                   const struct xdp_minisock_segment *segment, uint64_t now)
{
	if (segment->payload_bytes == 0)
		return false;
	if (minisock->rst_ack == segment->ack && minisock->rst_port_be == segment->key.peer_port &&
	    now - minisock->rst_sent_ns < MS)
		return true;
	minisock->rst_ack = segment->ack;
	minisock->rst_port_be = segment->key.peer_port;
	minisock->rst_sent_ns = now;
	return false;
}

static uint32_t segment_payload_end_seq(const struct xdp_minisock_segment *segment)
{
	return segment->seq + segment->payload_bytes;
}

static void minisock_reset_peer(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                const struct xdp_minisock_segment *segment, uint64_t now)
{
	const struct vma_flow_key key = minisock_segment_key(segment);
	struct owner_tcp_segment out = {.rst = true, .seq = segment->ack};

	if (minisock_rst_was_sent_recently_or_note(minisock, segment, now))
		return;
	if (!(segment->tcp_flags & ACK)) {
		out.seq = 0;
		out.has_ack = true;
		out.ack =
		        segment_payload_end_seq(segment) + !!(segment->tcp_flags & SYN) + !!(segment->tcp_flags & FIN);
	}
	minisock_reply(minisocks, &key, &out, now);
}

/* ---- ACK ---- */

static void minisock_acknowledge(struct owner_minisocks *minisocks, const struct owner_minisock *minisock,
                                 const struct xdp_minisock_segment *segment, uint64_t now)
{
	const struct owner_tcp_segment out = {.seq = minisock->snd_nxt,
	                                      .ack = minisock->rcv_nxt,
	                                      .has_ack = true,
	                                      .has_ts = segment->has_ts,
	                                      .ts_val = segment->ts_ecr,
	                                      .ts_ecr = segment->ts_val};

	minisock_reply(minisocks, &minisock->key, &out, now);
}

static bool is_keep_alive(const struct owner_minisock *minisock, const struct xdp_minisock_segment *segment)
{
	return segment->payload_bytes <= 1 && segment->seq == minisock->rcv_nxt - 1;
}

/* Our FIN is acknowledged, the peer's has not come. Data that nobody will read is worth a RST. */
static void minisock_in_fin_wait_rx(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                    const struct xdp_minisock_segment *segment, uint64_t now)
{
	const bool fin = segment->tcp_flags & FIN;

	if (segment->payload_bytes > 0 && (int32_t)(segment_payload_end_seq(segment) - minisock->rcv_nxt) > 0) {
		owner_minisock_set_state(minisocks, minisock, MINISOCK_RESET, now);
		minisock_reset_peer(minisocks, minisock, segment, now);
		return;
	}
	if (fin && segment_payload_end_seq(segment) == minisock->rcv_nxt) {
		minisock->rcv_nxt++;
		owner_minisock_set_state(minisocks, minisock, MINISOCK_TIME_WAIT, now);
	}
	if (fin || segment->payload_bytes > 0 || is_keep_alive(minisock, segment))
		minisock_acknowledge(minisocks, minisock, segment, now);
}

static void minisock_in_time_wait_rx(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                     const struct xdp_minisock_segment *segment, uint64_t now)
{
	if (!(segment->tcp_flags & FIN) && segment->payload_bytes == 0 && !is_keep_alive(minisock, segment))
		return;
	owner_minisock_set_state(minisocks, minisock, MINISOCK_TIME_WAIT, now);
	minisock_acknowledge(minisocks, minisock, segment, now);
}

/* ---- a segment ---- */

/* RFC 1122, 3.2.1.3: not a source. The kernel has not looked at it yet, and an answer would go to many, or to a
 * connection within this host. */
static bool segment_source_is_invalid(const struct xdp_minisock_segment *segment)
{
	uint8_t first;

	memcpy(&first, &segment->key.peer, 1);
	return first == 0 || first == IN_LOOPBACKNET || first >= 224 || segment->key.peer == segment->key.local;
}

static struct owner_minisock *minisock_of_segment(struct owner_minisocks *minisocks,
                                                  const struct xdp_minisock_segment *segment)
{
	struct vma_flow_key key = minisock_segment_key(segment);
	struct owner_minisock *minisock = owner_minisock_find(minisocks, &key);

	if (minisock == NULL || minisock->number != segment->number) {
		key.peer_port_be = 0;
		memset(key.peer, 0, sizeof(key.peer));
		minisock = owner_minisock_find(minisocks, &key);
	}
	/* Another number: it met one that was here before. */
	return minisock != NULL && minisock->number == segment->number ? minisock : NULL;
}

/* RFC 5961, 3.2: with the very number that is expected. Of a process that died nobody knows that. */
static bool rst_is_valid(const struct owner_minisock *minisock, const struct xdp_minisock_segment *segment)
{
	const bool is_known = minisock->state == MINISOCK_FIN_WAIT || minisock->state == MINISOCK_TIME_WAIT;

	return minisock->key.peer_port_be != 0 && minisock->state != MINISOCK_DELETED &&
	       (!is_known || segment->seq == minisock->rcv_nxt);
}

static void minisock_process_segment(struct owner_minisocks *minisocks, struct owner_minisock *minisock,
                                     const struct xdp_minisock_segment *segment, uint64_t now)
{
	if (minisock->state == MINISOCK_WAITS || minisock->state == MINISOCK_PARKED ||
	    segment_source_is_invalid(segment))
		return;
	if (segment->tcp_flags & RST) {
		if (rst_is_valid(minisock, segment))
			owner_minisock_set_state(minisocks, minisock, MINISOCK_DELETED,
			                         now); /* as many come as there were segments */
	} else if (minisock->state == MINISOCK_DELETED || minisock->state == MINISOCK_RESET ||
	           segment->tcp_flags & SYN) {
		minisock_reset_peer(minisocks, minisock, segment, now);
	} else if (!(segment->tcp_flags & ACK)) {
		return;
	} else if (minisock->state == MINISOCK_FIN_WAIT) {
		minisock_in_fin_wait_rx(minisocks, minisock, segment, now);
	} else {
		minisock_in_time_wait_rx(minisocks, minisock, segment, now);
	}
}

int owner_minisocks_handle_segment(struct owner_minisocks *minisocks, const struct xdp_minisock_segment *segment,
                                   uint64_t now)
{
	struct owner_minisock *minisock = minisock_of_segment(minisocks, segment);

	if (minisock != NULL && segment->is_over)
		owner_minisock_end(minisocks, minisock);
	else if (minisock != NULL)
		minisock_process_segment(minisocks, minisock, segment, now);
	return --minisocks->reads > 0 ? 0 : -EAGAIN;
}
