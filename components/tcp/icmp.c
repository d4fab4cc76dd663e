/*
 * icmp.c - ICMP errors about a connection (RFC 1122 4.2.3.9, 1191, 5927), and new routes to its peer.
 *
 * An error must quote a sequence number that is in flight. While a connection is being made, an error ends it. Later an
 * error is only remembered (the soft error, for a connection that gives up by timeout). The exception is a smaller MTU,
 * to which segments are cut.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "tcp_priv.h"
#include "lwip/port.h"

enum { ICMP_UNREACHABLE = 3, ICMP_TIME_EXCEEDED = 11, ICMP_PARAMETER = 12, CODE_TOO_LONG = 4 };
#define MTU_MIN 552 /* the kernel's ip_rt_min_pmtu */

int vma_tcp_set_path(struct vma_tcp_conn *conn, const struct vma_tcp_path *path)
{
	struct vma_tcp_path *copy = conn->memory.alloc(sizeof(*copy)), *before;

	if (copy == NULL)
		return -ENOMEM;
	*copy = *path;
	before = atomic_exchange_explicit(&conn->path_request, copy, memory_order_acq_rel);
	if (before != NULL)
		conn->memory.free(before);
	tcp_run_conn_work_now_or_queue(conn, TCP_WORK_PATH);
	return 0;
}

void vma_tcp_post_icmp_error(struct vma_tcp_conn *conn, uint8_t type, uint8_t code, uint16_t mtu, uint32_t seq)
{
	uint64_t request = (uint64_t)type << 56 | (uint64_t)(code & 0xff) << 48 | (uint64_t)mtu << 32 | seq;

	atomic_store_explicit(&conn->icmp_request, request, memory_order_release);
	tcp_run_conn_work_now_or_queue(conn, TCP_WORK_ICMP);
}

/* ---- whose it is ---- */

#define ICMP_LEN 8
#define IP_LEN 20

/* The message quotes the packet that it is about: its IP header and the ports and number of its TCP header. */
static bool icmp_parse_quoted_segment(const uint8_t *icmp, size_t len, struct vma_flow_key *key, uint32_t *seq)
{
	const uint8_t *ip = icmp + ICMP_LEN, *tcp;
	size_t ip_len;

	if (len < ICMP_LEN + IP_LEN)
		return false;
	ip_len = (size_t)(ip[0] & 15) * 4;
	if (ip[0] >> 4 != 4 || ip_len < IP_LEN || len < ICMP_LEN + ip_len + 8 || ip[9] != IPPROTO_TCP ||
	    (ip[6] & 0x1f) != 0 || ip[7] != 0)
		return false;
	tcp = ip + ip_len;
	*key = (struct vma_flow_key){.family = AF_INET, .proto = IPPROTO_TCP, .vlan = key->vlan};
	memcpy(key->local, ip + 12, 4);
	memcpy(key->peer, ip + 16, 4);
	memcpy(&key->local_port_be, tcp, 2);
	memcpy(&key->peer_port_be, tcp + 2, 2);
	memcpy(seq, tcp + 4, 4);
	*seq = lwip_ntohl(*seq);
	return true;
}

bool vma_tcp_icmp_packet(struct vma_tcp *tcp, uint16_t vlan, const void *message, size_t len)
{
	const uint8_t *icmp = message;
	struct vma_flow_key key = {.vlan = vlan};
	struct vma_flow *flow;
	uint32_t seq;
	bool acquired, found;

	if (!icmp_parse_quoted_segment(icmp, len, &key, &seq))
		return false;
	acquired = vma_ring_acquire(tcp->ring); /* the connection stays while it is looked at */
	flow = vma_ring_find_first_flow_of_key(tcp->ring, &key);
	found = flow != NULL && flow->sink == tcp_conn_flow_sink;
	if (found)
		vma_tcp_post_icmp_error(flow->owner, icmp[0], icmp[1], (uint16_t)(icmp[6] << 8 | icmp[7]), seq);
	if (acquired)
		vma_ring_release(tcp->ring);
	return found;
}

/* ---- driver ---- */

static int icmp_type_to_errno(uint8_t type, uint8_t code)
{
	static const uint8_t unreachable[] = {ENETUNREACH,  EHOSTUNREACH, ENOPROTOOPT,  ECONNREFUSED,
	                                      EMSGSIZE,     EOPNOTSUPP,   ENETUNREACH,  EHOSTDOWN,
	                                      ENONET,       ENETUNREACH,  EHOSTUNREACH, ENETUNREACH,
	                                      EHOSTUNREACH, EHOSTUNREACH, EHOSTUNREACH, EHOSTUNREACH};

	if (type == ICMP_UNREACHABLE)
		return code < sizeof(unreachable) ? unreachable[code] : EHOSTUNREACH;
	if (type == ICMP_TIME_EXCEEDED)
		return EHOSTUNREACH;
	return type == ICMP_PARAMETER ? EPROTO : 0;
}

static void conn_lower_path_mtu(struct vma_tcp_conn *conn, uint32_t mtu)
{
	if (tcp_option(conn, VMA_TCP_OPT_PMTUDISC) == 0)
		return; /* its packets may be cut on the way */
	mtu = mtu < MTU_MIN ? MTU_MIN : mtu;
	if (mtu >= conn->path.mtu)
		return;
	conn->path.mtu = mtu;
	tcp_conn_mss_update(conn);
}

void tcp_handle_posted_icmp_error(struct vma_tcp_conn *conn)
{
	uint64_t request = atomic_exchange_explicit(&conn->icmp_request, 0, memory_order_acq_rel);
	uint8_t type = (uint8_t)(request >> 56), code = (uint8_t)(request >> 48);
	const struct tcp_pcb *pcb = conn->pcb;
	uint32_t seq = (uint32_t)request;
	int error = icmp_type_to_errno(type, code);

	if (pcb == NULL || error == 0 || TCP_SEQ_LT(seq, pcb->lastack) || TCP_SEQ_GT(seq, pcb->snd_nxt))
		return;
	if (type == ICMP_UNREACHABLE && code == CODE_TOO_LONG)
		conn_lower_path_mtu(conn, (uint32_t)(request >> 32) & 0xffff);
	else if (pcb->state == SYN_SENT || pcb->state == SYN_RCVD)
		conn_fail_with_error(conn, error, false);
	else
		conn->soft_error = (uint32_t)error;
}
