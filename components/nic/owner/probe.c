/*
 * probe - segments in the name of a connection whose process has gone, by a raw socket of the kernel's: probes, and a
 * minisock's answers.
 *
 * If a process has died, no process knows the connection's sequence numbers any more, and a RST must carry the exact
 * one (RFC 5961, 3.2). But the peer tells it. In a synchronized state it answers a SYN of any number with an ACK (RFC
 * 5961, 4.2). It answers a segment outside its window, too (RFC 9293, 3.10.7.4). That ACK finds the connection's
 * minisock, which answers with the RST that the peer believes, made from the peer's own numbers (RFC 9293, 3.10.7.1).
 *
 * The kernel resolves the route to the peer and fills in length, identification and checksum of the IP header.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>

#include "../os.h"
#include "owner.h"

struct stamps { /* RFC 7323, behind two NOPs */
	uint32_t kind, val, ecr;
};

struct probe {
	struct iphdr ip;
	struct tcphdr tcp;
	struct stamps stamps; /* perhaps */
};

#define STAMPS_KIND 0x0101080a
#define WINDOW 1024

int owner_open_raw_ip_socket(void)
{
	int fd = os_socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);

	return fd < 0 ? -errno : fd;
}

/* RFC 1071, over 16-bit words as they lie in memory. */
static uint32_t checksum_add_words(uint32_t sum, const void *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 2) {
		uint16_t word;

		memcpy(&word, (const char *)data + i, sizeof(word));
		sum += word;
	}
	return sum;
}

static uint16_t tcp_checksum_of_probe(const struct probe *probe, size_t tcp_bytes)
{
	const uint16_t rest[2] = {htons(IPPROTO_TCP), htons((uint16_t)tcp_bytes)};
	uint32_t sum = checksum_add_words(0, &probe->ip.saddr, 8);

	sum = checksum_add_words(sum, rest, sizeof(rest));
	sum = checksum_add_words(sum, &probe->tcp, tcp_bytes);
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~(sum + (sum >> 16));
}

/* The TCP header's length, options included. */
static size_t build_raw_tcp_packet(struct probe *probe, const struct vma_flow_key *key,
                                   const struct owner_tcp_segment *segment)
{
	const size_t tcp_bytes = sizeof(probe->tcp) + (segment->has_ts ? sizeof(probe->stamps) : 0);

	*probe = (struct probe){
	        .ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP},
	        .tcp = {.source = key->local_port_be,
	                .dest = key->peer_port_be,
	                .seq = htonl(segment->seq),
	                .ack_seq = htonl(segment->ack),
	                .doff = (uint16_t)(tcp_bytes / 4) & 0xf,
	                .syn = segment->syn,
	                .rst = segment->rst,
	                .ack = segment->has_ack,
	                .window = htons(segment->rst ? 0 : WINDOW)},
	        .stamps = {htonl(STAMPS_KIND), htonl(segment->ts_val), htonl(segment->ts_ecr)},
	};
	memcpy(&probe->ip.saddr, key->local, 4);
	memcpy(&probe->ip.daddr, key->peer, 4);
	probe->tcp.check = tcp_checksum_of_probe(probe, tcp_bytes);
	return tcp_bytes;
}

/* By the interface itself, whatever routes say by now; by a VLAN's, whose number is not known here, as these say. */
int owner_send_raw_segment(int fd, unsigned ifindex, const struct vma_flow_key *key,
                           const struct owner_tcp_segment *segment)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	struct probe probe;
	struct iovec iov = {.iov_base = &probe,
	                    .iov_len = sizeof(probe.ip) + build_raw_tcp_packet(&probe, key, segment)};
	const struct in_pktinfo by = {.ipi_ifindex = (int)ifindex};
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(by))];
	} control = {.head = {.cmsg_level = IPPROTO_IP, .cmsg_type = IP_PKTINFO, .cmsg_len = CMSG_LEN(sizeof(by))}};
	struct msghdr msg = {.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &iov, .msg_iovlen = 1};

	if (key->vlan == 0) {
		memcpy(CMSG_DATA(&control.head), &by, sizeof(by));
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
	}
	memcpy(&to.sin_addr, key->peer, 4);
	return os_sendmsg(fd, &msg, 0) < 0 ? -errno : 0;
}

int owner_probe_send(int fd, unsigned ifindex, const struct vma_flow_key *key, bool syn, uint32_t seq)
{
	const struct owner_tcp_segment segment = {.seq = seq, .syn = syn, .has_ack = !syn};

	return owner_send_raw_segment(fd, ifindex, key, &segment);
}
