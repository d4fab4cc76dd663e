/* card_segment - a received frame as the minisocks read it: as fill_minisock_segment of xdp/steer.bpf.c. */
#include <arpa/inet.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>

#include "../xdp/flow.h"
#include "card.h"

#define TAG_BYTES 4
#define VLAN_ID_BITS 0x0fff
#define STAMPS_KIND 0x0101080a /* two NOPs, kind 8, length 10 */

struct stamps {
	uint32_t kind, val, ecr;
};

/* Bytes before the IP header; 0: another protocol, or too short. */
static uint32_t frame_link_header_len(const uint8_t *frame, uint32_t bytes, uint16_t *vlan)
{
	uint16_t type, tag;

	*vlan = 0;
	if (bytes < ETH_HLEN)
		return 0;
	memcpy(&type, frame + 2 * ETH_ALEN, sizeof(type));
	if (type == htons(ETHERTYPE_IP))
		return ETH_HLEN;
	if (type != htons(ETHERTYPE_VLAN) || bytes < ETH_HLEN + TAG_BYTES)
		return 0;
	memcpy(&tag, frame + ETH_HLEN, sizeof(tag));
	memcpy(&type, frame + ETH_HLEN + 2, sizeof(type));
	*vlan = ntohs(tag) & VLAN_ID_BITS;
	return type == htons(ETHERTYPE_IP) ? ETH_HLEN + TAG_BYTES : 0;
}

static void segment_read_tcp_timestamps(const uint8_t *options, uint32_t bytes, struct xdp_minisock_segment *out)
{
	struct stamps stamps;

	if (bytes < sizeof(stamps))
		return;
	memcpy(&stamps, options, sizeof(stamps));
	if (stamps.kind != htonl(STAMPS_KIND))
		return;
	out->has_ts = 1;
	out->ts_val = ntohl(stamps.val);
	out->ts_ecr = ntohl(stamps.ecr);
}

bool vmad_card_parse_segment(const uint8_t *frame, uint32_t bytes, bool is_whole, struct xdp_minisock_segment *out)
{
	uint32_t link_bytes, ip_bytes, tcp_bytes, segment_bytes, left;
	struct iphdr ip;
	struct tcphdr tcp;
	uint16_t vlan;

	link_bytes = frame_link_header_len(frame, bytes, &vlan);
	if (link_bytes == 0 || bytes - link_bytes < sizeof(ip) + sizeof(tcp))
		return false;
	memcpy(&ip, frame + link_bytes, sizeof(ip));
	ip_bytes = ip.ihl * 4u;
	left = bytes - link_bytes;
	if (ip.version != 4 || ip_bytes < sizeof(ip) || ip.protocol != IPPROTO_TCP ||
	    (ip.frag_off & htons(IP_MF | IP_OFFMASK)) != 0 || ntohs(ip.tot_len) < ip_bytes + sizeof(tcp) ||
	    (is_whole && ntohs(ip.tot_len) > left) || left < ip_bytes + sizeof(tcp))
		return false;
	memcpy(&tcp, frame + link_bytes + ip_bytes, sizeof(tcp));
	segment_bytes = ntohs(ip.tot_len) - ip_bytes;
	tcp_bytes = tcp.doff * 4u;
	left -= ip_bytes;
	if (tcp_bytes < sizeof(tcp) || tcp_bytes > segment_bytes || tcp_bytes > left)
		return false;
	*out = (struct xdp_minisock_segment){
	        .key = {.peer = ip.saddr,
	                .local = ip.daddr,
	                .peer_port = tcp.source,
	                .local_port = tcp.dest,
	                .vlan = vlan,
	                .proto = IPPROTO_TCP},
	        .seq = ntohl(tcp.seq),
	        .ack = ntohl(tcp.ack_seq),
	        .payload_bytes = (uint16_t)(segment_bytes - tcp_bytes),
	        .tcp_flags = (frame + link_bytes + ip_bytes)[13],
	};
	segment_read_tcp_timestamps(frame + link_bytes + ip_bytes + sizeof(tcp), tcp_bytes - (uint32_t)sizeof(tcp),
	                            out);
	return true;
}
