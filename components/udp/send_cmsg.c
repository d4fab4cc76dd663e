/* send_cmsg.c - control messages of a datagram that is sent: those that change its route or its header. */
#include <string.h>

#include "dst.h"

enum { CONTROL_BYTES_MAX = 256 }; /* IP_PKTINFO, IP_TTL and IP_TOS take 80; who sends more is the kernel's */

/* A group or a broadcast as a source is refused, which the route's lookup does not do for such a key. */
static bool udp_tx_cmsg_set_source_and_oif(struct udp_tx_cmsgs *out, uint32_t source, uint32_t oif)
{
	if (IN_MULTICAST(ntohl(source)) || source == INADDR_BROADCAST)
		return false;
	if (oif != 0)
		out->oif = oif;
	out->has_source = true;
	out->source = source;
	return true;
}

static bool parse_send_pktinfo(struct udp_tx_cmsgs *out, const uint8_t *data, size_t len)
{
	struct in_pktinfo info;

	if (len != sizeof(info))
		return false;
	memcpy(&info, data, sizeof(info));
	return udp_tx_cmsg_set_source_and_oif(out, info.ipi_spec_dst.s_addr, (uint32_t)info.ipi_ifindex);
}

/* IPV6_PKTINFO of what is sent by IPv4: its address must be a mapped one. */
static bool parse_send_pktinfo6_with_mapped_source(struct udp_tx_cmsgs *out, const uint8_t *data, size_t len)
{
	struct in6_pktinfo info;
	uint32_t source;

	if (len != sizeof(info))
		return false;
	memcpy(&info, data, sizeof(info));
	memcpy(&source, &info.ipi6_addr.s6_addr[12], sizeof(source));
	return IN6_IS_ADDR_V4MAPPED(&info.ipi6_addr) && udp_tx_cmsg_set_source_and_oif(out, source, info.ipi6_ifindex);
}

static bool parse_send_ttl(struct udp_tx_cmsgs *out, const uint8_t *data, size_t len)
{
	int ttl;

	if (len != sizeof(ttl))
		return false;
	memcpy(&ttl, data, sizeof(ttl));
	out->ttl = (uint8_t)ttl;
	return ttl >= 1 && ttl <= 255;
}

static bool parse_send_tos(struct udp_tx_cmsgs *out, const uint8_t *data, size_t len)
{
	int tos = *data;

	if (len != sizeof(tos) && len != 1)
		return false;
	if (len == sizeof(tos))
		memcpy(&tos, data, sizeof(tos));
	out->has_tos = true;
	out->tos = (uint8_t)tos;
	return tos >= 0 && tos <= 255;
}

static bool udp_parse_one_tx_cmsg(struct udp_tx_cmsgs *out, int family, const struct cmsghdr *header,
                                  const uint8_t *data)
{
	const size_t len = header->cmsg_len - sizeof(*header);

	if (family == AF_INET6 && header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_PKTINFO)
		return parse_send_pktinfo6_with_mapped_source(out, data, len);
	if (header->cmsg_level != IPPROTO_IP || len == 0)
		return false;
	switch (header->cmsg_type) {
	case IP_PKTINFO:
		return parse_send_pktinfo(out, data, len);
	case IP_TTL:
		return parse_send_ttl(out, data, len);
	case IP_TOS:
		return parse_send_tos(out, data, len);
	default:
		return false;
	}
}

bool udp_tx_cmsgs_read(struct udp_tx_cmsgs *out, int family, const struct msghdr *msg)
{
	_Alignas(struct cmsghdr) uint8_t bytes[CONTROL_BYTES_MAX];
	const size_t total = msg->msg_controllen;
	struct cmsghdr header;

	*out = (struct udp_tx_cmsgs){0};
	if (total > sizeof(bytes) || vma_memcpy_or_efault(bytes, msg->msg_control, total) != 0)
		return false;
	/* Less than a header behind the last one is no message. */
	for (size_t at = 0; at <= total && total - at >= sizeof(header); at += CMSG_ALIGN(header.cmsg_len)) {
		memcpy(&header, bytes + at, sizeof(header));
		if (header.cmsg_len < sizeof(header) || header.cmsg_len > total - at ||
		    !udp_parse_one_tx_cmsg(out, family, &header, bytes + at + sizeof(header)))
			return false;
	}
	return true;
}
